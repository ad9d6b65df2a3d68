"""What is shown of a model while it trains: held-out text, what it makes of it, and how sure it is."""

from collections.abc import Collection, Sequence
import functools
from typing import Any

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from t2t.inference import samples
from t2t.inference.samples import TextVocabulary
from t2t.models.architecture import Batch, predicted_side
from t2t.models.config import ANSWERED_HEADS
from t2t.training.train_state import TrainState

NOTHING = "(end)"  # a guess that the blank ends here: the next sentinel, EOS

Line = tuple[str, str]  # what it is, and the text; several in a row may be of one kind


def show(graphdef: nnx.GraphDef, state: TrainState, batch: Batch, vocabulary: Any, *, number: int) -> list[list[Line]]:
  """Of each of the first rows of a batch that have text, what is given, what the model makes of it, and what is right.

  Args:
    graphdef, state: the model; every host takes part.
    batch: model features of any architecture.
    vocabulary: seqio's; says which ids mean what.
    number: rows; 0: none.
  """
  from t2t.data import vocabularies

  if not number:
    return []
  hidden_ids = vocabularies.framing_ids(vocabulary)
  options = dict(vocabulary=vocabulary, hidden_ids=hidden_ids, number=number)
  if any(name.endswith("answer_heads") for name in batch) and _has_answers(graphdef, state):
    return [_lines(*example) for example in samples.answered(graphdef, state, batch, **options)]
  if not any(name.endswith("target_tokens") for name in batch):
    return []  # pairs of texts, which are compared
  options |= dict(sentinel_ids=vocabularies.sentinel_ids(vocabulary, vocabularies.num_sentinels(vocabulary)))
  options |= dict(vocab_size=vocabulary.vocab_size)
  examples = samples.held_out(graphdef, state, batch, eos_id=vocabulary.eos_id, **options)
  guesses = likeliest(graphdef, state, batch, **options)
  return [_lines(*example, guesses=row_guesses) for example, row_guesses in zip(examples, guesses, strict=True)]


def _lines(input_text: str, prediction: str, right: str, *, guesses: Sequence[str] = ()) -> list[Line]:
  labelled_texts = [("input", input_text), ("prediction", prediction)]
  labelled_texts += [("" if number else "likeliest", text) for number, text in enumerate(guesses)]
  return [*labelled_texts, ("truth", right)]


def _has_answers(graphdef: nnx.GraphDef, state: TrainState) -> bool:
  """Whether a head answers; one that is asked of the boundaries of spans guesses the masked tokens once more."""
  model = jax.eval_shape(lambda state: state.model(graphdef), state)
  return any(head.kind in ANSWERED_HEADS for head in model.config.heads)


def places_of(targets: np.ndarray, counts: np.ndarray, sentinel_ids: Collection[int] | None) -> list[np.ndarray]:
  """Where the first token of each blank is predicted, int [blanks] of each row.

  In:  [["<X>", "cat", "<Y>", "the", EOS]], all of which count, sentinels {"<X>", "<Y>"}
  Out: [[1, 3]]

  Args:
    targets: int [rows, length].
    counts: bool [rows, length], whose prediction is trained.
    sentinel_ids: what stands before a blank's text in the targets; None: each token that counts is a blank.
  """
  if sentinel_ids is None:
    return [np.flatnonzero(row) for row in counts]
  opened = np.isin(targets, list(sentinel_ids)) & counts
  # What stood behind the last sentinel of a row that was cut is not there.
  return [np.flatnonzero(row) + 1 for row in opened[:, :-1] & counts[:, 1:]]


def in_words(token: str) -> str:
  """The text of a token in a list that has commas: in quotes, unless it has a letter or a digit."""
  text = token.strip()
  if not text:
    return "_"
  return text if any(map(str.isalnum, text)) else f"'{text}'" if text != "'" else f'"{text}"'


def in_percent(chance: float) -> str:
  """A probability above 0, which no rounding makes 0."""
  percent = f"{chance:.0%}"
  return "<1%" if percent == "0%" else percent


def likeliest(
  graphdef: nnx.GraphDef,
  state: TrainState,
  batch: Batch,
  *,
  vocabulary: TextVocabulary,
  sentinel_ids: Sequence[int],
  hidden_ids: Collection[int],
  vocab_size: int,
  number: int,
  blanks: int = 3,
  guesses: int = 5,
) -> list[list[str]]:
  """For each of the first rows, a line for each of its first blanks: "[1] the 12%, a 5%, its 3%".

  Each is what the model expects behind the true text of the blanks before it.

  Args:
    graphdef, state: the model; every host takes part.
    batch: model features of any architecture.
    vocabulary: turns ids into text.
    sentinel_ids: of the first blank, the second, ...
    hidden_ids: ids that end a blank, as sentinels do; where each masked token is one, it is none of either.
    vocab_size: ids that have a piece; the model may have more.
    number: rows.
    blanks: of a row.
    guesses: in a blank.
  """
  gather = lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True))
  side = predicted_side(batch)
  host = {name: gather(x) for name, x in batch.items() if name.startswith(side)}
  first = samples.first_sequence(host, side)
  rows = np.flatnonzero(first.any(axis=1))[:number]
  if not rows.size:
    return []
  targets, counts = host[f"{side}_target_tokens"][rows], first[rows]
  if f"{side}_loss_weights" in host:
    counts = counts & (host[f"{side}_loss_weights"][rows] > 0)
  blank_positions = [
    places[:blanks] for places in places_of(targets, counts, sentinel_ids if side == "decoder" else None)
  ]
  positions = np.zeros((len(rows), blanks), np.int32)
  for row, places in enumerate(blank_positions):
    positions[row, : len(places)] = places

  ends = tuple(sorted({*sentinel_ids, *hidden_ids}))
  found_there = _guesses(
    state, batch, rows, positions, graphdef=graphdef, side=side, ends=ends, vocab_size=vocab_size, number=guesses
  )
  chances, tokens = map(gather, found_there)

  def line(row: int, blank: int) -> str:
    text = lambda token: NOTHING if token in ends else in_words(samples.named_text(vocabulary, [token]))
    pairs = zip(tokens[row, blank].tolist(), chances[row, blank].tolist(), strict=True)
    return f"[{blank + 1}] " + ", ".join(f"{text(token)} {in_percent(chance)}" for token, chance in pairs)

  return [[line(row, blank) for blank in range(len(places))] for row, places in enumerate(blank_positions)]


@functools.partial(jax.jit, static_argnames=("graphdef", "side", "ends", "vocab_size", "number"))
def _guesses(
  state: TrainState,
  batch: Batch,
  rows: np.ndarray,
  positions: np.ndarray,
  *,
  graphdef: nnx.GraphDef,
  side: str,
  ends: tuple[int, ...],
  vocab_size: int,
  number: int,
) -> tuple[jax.Array, jax.Array]:
  """The likeliest tokens of places in rows, and their probabilities, [rows, places, number] each."""
  model = state.model(graphdef)
  chances = jax.nn.softmax(model.logits(model(batch)[rows[:, None], positions]))
  never = samples.in_no_text(chances.shape[-1], vocab_size, ends if side == "encoder" else ())
  chances = jnp.where(never, 0.0, chances)
  of_ends = np.array([token for token in ends if token < chances.shape[-1]], np.int32)
  if of_ends.size and side == "decoder":  # all of them are one guess
    together = chances[..., of_ends].sum(-1)
    chances = chances.at[..., of_ends].set(0.0).at[..., of_ends[0]].set(together)
  return jax.lax.top_k(chances, number)
