"""Samples of a model on held-out text: filled blanks and continuations."""

from collections.abc import Collection, Sequence
import functools
from typing import Protocol

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from t2t.inference import decoding, head_predictor
from t2t.losses import head_losses
from t2t.models.architecture import Batch, predicted_side, real_positions
from t2t.param_tree import join_frozen
from t2t.training.train_state import TrainState

Example = tuple[str, str, str]  # input, prediction, truth

# tokens of a prompt and of a continuation for a causal language model, and of each end of a shortened text
_PROMPT = 32


class TextVocabulary(Protocol):
  """The methods of a seqio vocabulary that samples need."""

  def decode(self, ids: Sequence[int]) -> str:
    pass


def _spans(tokens: np.ndarray, sentinels: dict[int, int]) -> dict[int, list[int]]:
  """Returns the ids after the sentinel of each blank, by the number of the blank."""
  spans: dict[int, list[int]] = {}
  current = None
  for token in tokens.tolist():
    if token in sentinels:
      current = sentinels[token]
      spans.setdefault(current, [])
    elif current is not None:
      spans[current].append(token)
  return spans


def fill_in_the_blank(
  inputs: np.ndarray,
  prediction: np.ndarray,
  targets: np.ndarray,
  *,
  vocabulary: TextVocabulary,
  sentinel_ids: Sequence[int],
  hidden_ids: Collection[int],
  num_blanks: int = 3,
  context: int = 24,
) -> Example:
  """Returns the beginning of a span-corrupted example, with numbered blanks: input, prediction, truth.

  Args:
    inputs, prediction, targets: int [length] each, one unpacked example.
    vocabulary: decodes ids.
    sentinel_ids: of the first blank, the second, ...
    hidden_ids: omitted: padding, EOS, ...
    num_blanks: number of blanks shown.
    context: tokens shown before the first blank and after the last.

  In:  "the <extra_id_0> sat on <extra_id_1> mat",
       "<extra_id_0> dog <extra_id_1> the", "<extra_id_0> cat <extra_id_1> the"
  Out: "the [1] sat on [2] mat", "[1] dog [2] the", "[1] cat [2] the"
  """
  sentinels = {token: number for number, token in enumerate(sentinel_ids, start=1)}

  def text(tokens: Sequence[int]) -> str:
    parts, run = [], []
    for token in [*tokens, None]:
      if token in sentinels or token is None:
        parts += [_text(run, vocabulary)] if run else []
        parts += [f"[{sentinels[token]}]"] if token is not None else []
        run = []
      elif token not in hidden_ids:
        run.append(token)
    return " ".join(part for part in parts if part)

  tokens = [token for token in inputs.tolist() if token not in hidden_ids]
  places = [index for index, token in enumerate(tokens) if token in sentinels][:num_blanks]
  if places:
    start, stop = max(0, places[0] - context), places[-1] + 1 + context
    later = [index for index in range(places[-1] + 1, min(stop, len(tokens))) if tokens[index] in sentinels]
    stop = min([stop, *later])
    shown = ("... " if start else "") + text(tokens[start:stop]) + (" ..." if stop < len(tokens) else "")
  else:
    shown = text(tokens[: 2 * context])
  numbers = [sentinels[tokens[position]] for position in places]

  def answers(tokens: np.ndarray) -> str:
    spans = _spans(tokens, sentinels)
    return "  ".join(f"[{number}] {text(spans.get(number, [])) or '-'}" for number in numbers)

  return shown, answers(prediction), answers(targets)


def masked_tokens(
  prediction: np.ndarray,
  targets: np.ndarray,
  weights: np.ndarray,
  *,
  vocabulary: TextVocabulary,
  hidden_ids: Collection[int],
) -> Example:
  """Returns the beginning of a masked example, with a numbered blank for each token with a loss weight.

  Args:
    prediction, targets, weights: int [length] each: the likeliest tokens, the text, and 1 at predicted
      positions.
    vocabulary: decodes ids.
    hidden_ids: omitted.
  """
  places = np.flatnonzero(weights)
  # Negative ids mark blanks; no vocabulary has such ids.
  blanks = [-1 - number for number in range(len(places))]
  inputs = np.array(targets)
  inputs[places] = blanks
  answers = lambda tokens: np.array([x for pair in zip(blanks, tokens[places], strict=True) for x in pair], np.int64)
  return fill_in_the_blank(
    inputs,
    answers(prediction),
    answers(targets),
    vocabulary=vocabulary,
    sentinel_ids=blanks,
    hidden_ids=hidden_ids,
    num_blanks=6,
    context=12,
  )


def _text(tokens: Sequence[int], vocabulary: TextVocabulary) -> str:
  return " ".join(named_text(vocabulary, tokens).split())


def named_text(vocabulary: TextVocabulary, tokens: Sequence[int]) -> str:
  """Returns the text of ids for display; masks and unknown tokens have names if the vocabulary has `decode_named`."""
  decode = getattr(vocabulary, "decode_named", vocabulary.decode)
  return decode([int(token) for token in tokens])


def _shortened(tokens: np.ndarray, vocabulary: TextVocabulary, hidden_ids: Collection[int], *, end: int = 0) -> str:
  """Returns the first `_PROMPT` tokens as text, and the last `end` tokens."""
  tokens = [token for token in tokens.tolist() if token not in hidden_ids]
  if len(tokens) <= _PROMPT + end:
    return _text(tokens, vocabulary)
  return f"{_text(tokens[:_PROMPT], vocabulary)} ... {_text(tokens[len(tokens) - end :], vocabulary)}".rstrip()


def answered(
  graphdef: nnx.GraphDef,
  state: TrainState,
  batch: Batch,
  *,
  vocabulary: TextVocabulary,
  hidden_ids: Collection[int],
  number: int,
) -> list[Example]:
  """Returns predictions of heads for the first example in each of the first rows: text, prediction, truth.

  Args: see `held_out`.
  """
  gather = lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True))
  model = jax.eval_shape(lambda state: state.model(graphdef), state)
  side = model.architecture.answers
  host = {name.removeprefix(f"{side}_"): gather(x) for name, x in batch.items()}
  head_indices = {int(x) - 1 for x in np.unique(host["answer_heads"]) if x}
  heads = {head_index: head for head_index, head in enumerate(model.config.heads) if head_index in head_indices}
  names = [head.name for head in heads.values()]
  logits = {name: gather(x) for name, x in _answers(state, batch, graphdef=graphdef, names=tuple(names)).items()}
  shown = []
  for i in np.flatnonzero(host["answer_heads"].any(axis=1))[:number]:
    groups, is_asked = host["answer_groups"][i], host["answer_heads"][i] > 0
    first = groups == groups[is_asked].min()
    places = np.flatnonzero(first & is_asked)
    head = heads[int(host["answer_heads"][i, places[0]]) - 1]
    predicted, right = head_predictor.sample(head, logits[head.name][i, places], host["answer_targets"][i, places])
    shown.append((_shortened(host["input_tokens"][i][first], vocabulary, hidden_ids, end=_PROMPT), predicted, right))
  return shown


def held_out(
  graphdef: nnx.GraphDef,
  state: TrainState,
  batch: Batch,
  *,
  vocabulary: TextVocabulary,
  sentinel_ids: Sequence[int],
  hidden_ids: Collection[int],
  eos_id: int,
  vocab_size: int,
  number: int,
) -> list[Example]:
  """Returns samples of the first rows of a batch: masked tokens, blanks, or continuations.

  Args:
    graphdef, state: the model; every host takes part.
    batch: model features of any architecture; for packed rows the first sequence is shown.
    vocabulary: decodes ids.
    sentinel_ids: of the first blank, the second, ...
    hidden_ids: omitted: padding, EOS, ...
    eos_id: ends a text.
    vocab_size: number of ids with a token; the model may have more, which are never predicted.
    number: of rows.
  """
  gather = lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True))
  host = {name: gather(x) for name, x in batch.items()}
  side = predicted_side(host)
  first = first_sequence(host, side)
  # Padding rows may be anywhere: each data stream fills its own part of the batch when held-out text ends.
  rows = np.flatnonzero(first.any(axis=1))[:number]
  if not rows.size:
    return []
  blanks = rows
  if side == "decoder":  # a row that is bidirectional throughout has no continuation
    both_ways = host.get("decoder_causal_attention", np.zeros_like(first))
    blanks = rows[~np.any(first & (both_ways == 0), axis=1)[rows]]
  prompted_rows = np.setdiff1d(rows, blanks)
  shown = {}
  if blanks.size:
    special = tuple(sorted({*hidden_ids, *sentinel_ids}))
    arrays = (
      gather(_likeliest(state, batch, blanks, graphdef=graphdef, vocab_size=vocab_size, special_ids=special)),
      *(host[f"{side}_{name}"][blanks] for name in ("target_tokens", "loss_weights")),
    )
    for row, end, *row_arrays in zip(blanks, first[blanks].sum(axis=1), *arrays, strict=True):
      shown[row] = masked_tokens(*(x[:end] for x in row_arrays), vocabulary=vocabulary, hidden_ids=hidden_ids)
  if prompted_rows.size:
    texts = {"vocabulary": vocabulary, "sentinel_ids": sentinel_ids, "hidden_ids": hidden_ids, "eos_id": eos_id}
    written = _written(graphdef, state, batch, host, first, rows=prompted_rows, vocab_size=vocab_size, **texts)
    shown |= dict(zip(prompted_rows, written, strict=True))
  return [shown[row] for row in rows]


def _written(
  graphdef: nnx.GraphDef,
  state: TrainState,
  batch: Batch,
  host: dict[str, np.ndarray],
  first: np.ndarray,
  *,
  rows: np.ndarray,
  vocabulary: TextVocabulary,
  sentinel_ids: Sequence[int],
  hidden_ids: Collection[int],
  eos_id: int,
  vocab_size: int,
) -> list[Example]:
  """Returns samples of the rows with generated text."""
  gather = lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True))
  # EOS, which is hidden, replaces padding, because id 0 may be a token.
  targets = np.where(first, host["decoder_target_tokens"], eos_id)
  has_inputs = "encoder_input_tokens" in host or "decoder_causal_attention" in host
  if "encoder_input_tokens" in host:
    inputs = np.where(first_sequence(host, "encoder"), host["encoder_input_tokens"], eos_id)
    max_length = targets.shape[1]
  else:
    batch, inputs, targets, longest = _prompts(host, batch, targets, first=first, rows=rows, eos_id=eos_id)
    # Learned positions end at the length of training.
    max_length = min(_PROMPT, targets.shape[1] + 1 - longest)
  write = _writing(graphdef, decoding.DecodeConfig(max_length, vocab_size=vocab_size), eos_id=eos_id)
  params = join_frozen(state.params, state.frozen_params)
  written = gather(write(params, batch).tokens)[:, 0]
  written = np.where(np.cumsum(written == eos_id, axis=1) > 0, eos_id, written)
  # A sentinel is a blank only if inputs and targets have it; vocabularies without a mask token use sentinels as masks.
  blanks = set(sentinel_ids).intersection(*(x[rows].flatten().tolist() for x in (inputs, targets)))
  if has_inputs and blanks:
    return [
      fill_in_the_blank(
        inputs[i], written[i], targets[i], vocabulary=vocabulary, sentinel_ids=sentinel_ids, hidden_ids=hidden_ids
      )
      for i in rows
    ]
  text = lambda tokens: _shortened(tokens, vocabulary, hidden_ids)
  return [
    (_shortened(inputs[i], vocabulary, hidden_ids, end=_PROMPT), text(written[i]), text(targets[i])) for i in rows
  ]


def first_sequence(host: dict[str, np.ndarray], side: str) -> np.ndarray:
  """Returns the mask of the first sequence of each row, bool [batch, length]."""
  segments = host.get(f"{side}_segment_ids")
  return real_positions(host, side) if segments is None else segments == 1


def in_no_text(model_vocab_size: int, vocab_size: int, special_ids: Collection[int]) -> np.ndarray:
  """Returns the mask of ids that no text contains, bool [model_vocab_size]: special ids and ids without a token."""
  ids = np.arange(model_vocab_size)
  return (ids >= vocab_size) | np.isin(ids, list(special_ids))


# Compiled once per model and reused for all later samples.
_writing = functools.lru_cache(maxsize=2)(decoding.make_decode)


@functools.partial(jax.jit, static_argnames=("graphdef", "names"))
def _answers(
  state: TrainState, batch: Batch, *, graphdef: nnx.GraphDef, names: tuple[str, ...]
) -> dict[str, jax.Array]:
  return head_losses.all_answers(state.model(graphdef), batch, names)


@functools.partial(jax.jit, static_argnames=("graphdef", "vocab_size", "special_ids"))
def _likeliest(
  state: TrainState,
  batch: Batch,
  rows: np.ndarray,
  *,
  graphdef: nnx.GraphDef,
  vocab_size: int,
  special_ids: tuple[int, ...],
) -> jax.Array:
  model = state.model(graphdef)
  logits = model.logits(model(batch)[rows])
  return jnp.argmax(jnp.where(in_no_text(logits.shape[-1], vocab_size, special_ids), -jnp.inf, logits), axis=-1)


def _prompts(
  host: dict[str, np.ndarray], batch: Batch, targets: np.ndarray, *, first: np.ndarray, rows: np.ndarray, eos_id: int
) -> tuple[Batch, np.ndarray, np.ndarray, int]:
  """Returns a batch of prompts, the prompts, their continuations, and the length of the longest prompt of `rows`.

  A prompt is the inputs, or else the beginning of a text, which is read from left to right.
  """
  columns = np.arange(targets.shape[1])[None, :]
  prompt = (columns <= np.minimum(_PROMPT, first.sum(axis=1) // 2)[:, None]).astype(np.int32)
  reads = "decoder_segment_ids"
  if "decoder_causal_attention" in host:
    prefix_mask = host["decoder_causal_attention"] * first
    prompt = np.where(prefix_mask.any(axis=1, keepdims=True), prefix_mask, prompt)
    reads = "decoder_causal_attention" if prefix_mask[rows].any() else reads
  sharding = batch["decoder_input_tokens"].sharding
  placed = jax.make_array_from_callback(prompt.shape, sharding, lambda index: prompt[index])
  prompt_names = ("decoder_input_tokens", "decoder_tasks")
  prompts = {name: batch[name] for name in prompt_names if name in batch} | {reads: placed}
  # The input at position i is the target at i - 1, so a prompt of n inputs has n - 1 targets.
  lengths = np.maximum(prompt.sum(axis=1) - 1, 0)
  shown = columns < lengths[:, None]
  continuations = np.where(shown, eos_id, targets)
  continuations = np.stack([np.roll(row, -length) for row, length in zip(continuations, lengths, strict=True)])
  return prompts, np.where(shown, targets, eos_id), continuations, int(prompt[rows].sum(axis=1).max())
