"""Samples of the model during training: held-out text, predictions and the likeliest tokens."""

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
from t2t.models.head_config import ANSWERED_HEADS
from t2t.training.train_state import TrainState

NOTHING = "(end)"  # shown where the model predicts the end of the blank: the next sentinel or EOS

Line = tuple[str, str]  # label and text; an empty label repeats the label before it


def show(graphdef: nnx.GraphDef, state: TrainState, batch: Batch, vocabulary: Any, *, number: int) -> list[list[Line]]:
  """Returns samples for the first rows of a batch that have text: input, prediction, likeliest tokens and truth.

  Args:
    graphdef, state: the model; every host takes part.
    batch: model features of any architecture.
    vocabulary: of seqio, with the special ids.
    number: of rows; may be 0.
  """
  from t2t.data import vocabularies

  if not number:
    return []
  hidden_ids = vocabularies.framing_ids(vocabulary)
  options = dict(vocabulary=vocabulary, hidden_ids=hidden_ids, number=number)
  if any(name.endswith("answer_heads") for name in batch) and _has_answers(graphdef, state):
    return [_lines(*example) for example in samples.answered(graphdef, state, batch, **options)]
  if not any(name.endswith("target_tokens") for name in batch) or batch.keys() & {
    "encoder_windows",
    "encoder_pair_counts",
  }:
    return []  # pairs of texts, or word vectors, which read all words
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
  """Returns True if a head predicts answers; span boundary heads only predict the masked tokens again."""
  model = jax.eval_shape(lambda state: state.model(graphdef), state)
  return any(head.kind in ANSWERED_HEADS for head in model.config.heads)


def places_of(targets: np.ndarray, counts: np.ndarray, sentinel_ids: Collection[int] | None) -> list[np.ndarray]:
  """Returns the position where the first token of each blank is predicted, int [blanks] of each row.

  In:  [["<X>", "cat", "<Y>", "the", EOS]], all of which count, sentinels {"<X>", "<Y>"}
  Out: [[1, 3]]

  Args:
    targets: int [rows, length].
    counts: bool [rows, length], positions with a loss weight.
    sentinel_ids: sentinels before each blank in the targets; None: each position that counts is a blank.
  """
  if sentinel_ids is None:
    return [np.flatnonzero(row) for row in counts]
  opened = np.isin(targets, list(sentinel_ids)) & counts
  # A truncated row lacks the text of its last sentinel.
  return [np.flatnonzero(row) + 1 for row in opened[:, :-1] & counts[:, 1:]]


def in_words(token: str) -> str:
  """Returns the text of a token for a list with commas: quoted, unless it has a letter or a digit."""
  text = token.strip()
  if not text:
    return "_"
  return text if any(map(str.isalnum, text)) else f"'{text}'" if text != "'" else f'"{text}"'


def in_percent(chance: float) -> str:
  """Formats a probability above 0; never as 0%."""
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
  """Returns a line for each of the first blanks, for each of the first rows: "[1] the 12%, a 5%, its 3%".

  The model predicts each blank from the true text of the blanks before it.

  Args:
    graphdef, state: the model; every host takes part.
    batch: model features of any architecture.
    vocabulary: decodes ids.
    sentinel_ids: of the first blank, the second, ...
    hidden_ids: special ids, which end a blank like sentinels; never predicted for single masked tokens.
    vocab_size: number of ids with a token; the model may have more.
    number: of rows.
    blanks: number of blanks per row.
    guesses: number of predictions per blank.
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
  """Returns the likeliest tokens at positions of rows, and their probabilities, [rows, positions, number] each."""
  model = state.model(graphdef)
  chances = jax.nn.softmax(model.logits(model(batch)[rows[:, None], positions]))
  never = samples.in_no_text(chances.shape[-1], vocab_size, ends if side == "encoder" else ())
  chances = jnp.where(never, 0.0, chances)
  of_ends = np.array([token for token in ends if token < chances.shape[-1]], np.int32)
  if of_ends.size and side == "decoder":  # counted as one prediction
    together = chances[..., of_ends].sum(-1)
    chances = chances.at[..., of_ends].set(0.0).at[..., of_ends[0]].set(together)
  return jax.lax.top_k(chances, number)
