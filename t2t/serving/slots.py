"""Texts of several requests that are generated together, although they begin and end at different times.

Source: iteration-level scheduling of Orca (Yu et al. 2022, OSDI).
"""

from collections.abc import Iterator, MutableMapping, Sequence
import contextlib
import dataclasses
from typing import Any

from flax import nnx
import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import decoding
from t2t.models.architecture import Batch
from t2t.param_tree import Params

SIZES = (1, 4, 8, 16)  # rows of a step; few sizes, because each is a program


@dataclasses.dataclass(eq=False)
class RunningText:
  """A text that is being generated.

  limit: maximum number of tokens, EOS included.
  tokens: ids so far, without EOS.
  score: see `decoding.Decoded`.
  ended: whether EOS was generated.
  error: of the step that failed.
  left: whether nobody reads it any longer.
  """

  limit: int
  tokens: list[int] = dataclasses.field(default_factory=list)
  score: float = 0.0
  ended: bool = False
  error: Exception | None = None
  left: bool = False

  @property
  def is_complete(self) -> bool:
    return self.ended or len(self.tokens) == self.limit


@dataclasses.dataclass(frozen=True, eq=False)
class SharedWeights:
  """Weights as decoding reads them, which all texts of a model share; see `DecodeState`."""

  weights: Any
  logits_fn: Any


def _split(stream: decoding.Stream) -> tuple[decoding.Stream, tuple[Any, Any]]:
  """Returns the stream without the model's weights, and these weights, which all texts share."""
  state = stream.state
  separate = dataclasses.replace(state, weights=None, logits_fn=None)
  return dataclasses.replace(stream, state=separate), (state.weights, state.logits_fn)


def _joined(stream: decoding.Stream, shared: tuple[Any, Any]) -> decoding.Stream:
  weights, logits_fn = shared
  return dataclasses.replace(stream, state=dataclasses.replace(stream.state, weights=weights, logits_fn=logits_fn))


class Programs:
  """Compiled programs of one model with one choice of decoding options, for any number of rows.

  The state of each row has a batch of its own, so that rows may be at different positions.

  Args:
    model: its structure.
    config: without beam search.
    eos_id: ends a text.

  Raises:
    UserError: the model's decoder does not generate from left to right.
  """

  def __init__(self, model: pretrained.PretrainedModel, config: decoding.DecodeConfig, *, eos_id: int):
    if not model.config.text_decoder.streams:
      raise UserError(
        f"config.model.decoder={model.config.decoder} cannot stream, because this decoder does not generate from left "
        "to right; request the whole text"
      )
    merged = lambda params: nnx.merge(model.graphdef, params)
    start = lambda params, batch, key: _split(decoding.start(merged(params), batch, key, config))

    def step(params: Params, shared: tuple[Any, Any], streams: decoding.Stream) -> decoding.Stream:
      module = merged(params)
      advance = lambda stream: decoding.next_token(module, _joined(stream, shared), config, eos_id)
      advance_row = lambda stream: _split(advance(stream))[0]
      # Each token of a mixture of experts needs other weights, and `jax.lax.ragged_dot` has no vmap over tokens alone.
      return jax.lax.map(advance_row, streams) if model.config.feed_forward == "moe" else jax.vmap(advance_row)(streams)

    def put(streams: decoding.Stream, stream: decoding.Stream, keys: jax.Array, row: jax.Array) -> decoding.Stream:
      stream = stream if stream.keys is None else dataclasses.replace(stream, keys=keys)
      return jax.tree.map(lambda leaf, new: leaf.at[row].set(new), streams, stream)

    self.eos_id = eos_id
    self.begin = jax.jit(lambda params, batch, key: start(params, batch, key)[0])
    self.shared = jax.jit(lambda params, batch, key: start(params, batch, key)[1])
    self.step = jax.jit(step, donate_argnums=2)
    self.put = jax.jit(put, donate_argnums=0)
    self.take = jax.jit(lambda streams, rows: jax.tree.map(lambda leaf: leaf[rows], streams))
    self.repeat = jax.jit(lambda stream: jax.tree.map(lambda leaf: leaf[None], stream))


class Slots:
  """Rows of one step: texts of one model, with the same options and width of prompts.

  Callers hold the lock of the device, except for `RunningText.left`, which may be set at any time. A text does not
  depend on other texts, except for rounding, which may differ between numbers of rows.

  Args:
    programs: of the model.
    params: nested dict.
    mesh: on which the parameters are.
    name: of the model.
    shared: name -> weights that groups of this model use; a group in use holds a reference.
  """

  def __init__(
    self,
    programs: Programs,
    params: Params,
    mesh: jax.sharding.Mesh,
    name: str,
    shared: MutableMapping[str, SharedWeights],
  ):
    self._programs, self._params, self._mesh, self._name, self._all_shared = programs, params, mesh, name, shared
    self._texts: list[RunningText] = []  # of each row; more rows repeat the first
    self._streams: decoding.Stream | None = None
    self._shared: SharedWeights | None = None
    self._line: list[RunningText] = []  # first texts of the requests that wait for rows

  @property
  def size(self) -> int:
    """Number of rows of a step; 0: no text is being generated."""
    return 0 if self._streams is None else self._streams.done.shape[0]

  @property
  def is_used(self) -> bool:
    """Returns whether texts are being generated, or wait for rows."""
    return any(map(_is_running, self._texts)) or not all(text.left for text in self._line)

  def size_with(self, number: int) -> int:
    """Returns the number of rows of a step with `number` further texts; 0: there are too many."""
    running = sum(map(_is_running, self._texts))
    needed = next((size for size in SIZES if size >= running + number), 0)
    # Rows that would soon be needed again are kept.
    return self.size if 1 < needed < self.size and 2 * running > needed else needed

  def line_up(self, texts: Sequence[RunningText]) -> None:
    """Lets texts wait for rows, in the order of these calls."""
    self._line.append(texts[0])

  def is_first(self, texts: Sequence[RunningText]) -> bool:
    """Returns whether texts are first in line."""
    self._line = [text for text in self._line if not text.left]
    return self._line[0] is texts[0]

  def enter(self, texts: Sequence[RunningText], batch: Batch, keys: jax.Array) -> bool:
    """Begins texts after one prompt; returns False if rows are missing, or if others are first in line.

    Args:
      texts: see `line_up`.
      batch: features of the prompt, int [1, length].
      keys: random keys, [texts].
    """
    if not self.is_first(texts) or not self.size_with(len(texts)):
      return False
    del self._line[0]
    with jax.set_mesh(self._mesh):
      stream = self._programs.begin(self._params, batch, keys[:1])
    with self._failing(), jax.set_mesh(self._mesh):
      if self._streams is None:
        self._shared = self._all_shared.get(self._name)
        if self._shared is None:
          self._shared = SharedWeights(*self._programs.shared(self._params, batch, keys[:1]))
          self._all_shared[self._name] = self._shared
        self._streams, self._texts = self._programs.repeat(stream), []
      self._resize(len(texts))
      rows = [row for row in range(self.size) if row >= len(self._texts) or not _is_running(self._texts[row])]
      self._texts += [RunningText(0, left=True) for _ in range(self.size - len(self._texts))]
      for i, (row, text) in enumerate(zip(rows, texts, strict=False)):
        self._streams = self._programs.put(self._streams, stream, keys[i : i + 1], row)
        self._texts[row] = text
    return True

  def _resize(self, further: int) -> None:
    """Changes the number of rows, if `further` texts need more, or the running ones far fewer."""
    size = self.size_with(further)
    if size != self.size:
      running = [row for row, text in enumerate(self._texts) if _is_running(text)]
      self._streams = self._programs.take(self._streams, np.array(running + [0] * (size - len(running)), np.int32))
      self._texts = [self._texts[row] for row in running]

  def advance(self) -> None:
    """Generates one token of every text."""
    if not any(map(_is_running, self._texts)):
      self._clear()
      return
    with self._failing(), jax.set_mesh(self._mesh):
      self._resize(0)
      shared = self._shared.weights, self._shared.logits_fn
      self._streams = self._programs.step(self._params, shared, self._streams)
      tokens, scores = jax.device_get((self._streams.last[:, 0], self._streams.scores[:, 0]))
    for text, token, score in zip(self._texts, tokens.tolist(), scores.tolist(), strict=False):
      if _is_running(text):
        text.score, text.ended = score, token == self._programs.eos_id
        text.tokens += [] if text.ended else [token]
    if not any(map(_is_running, self._texts)):
      self._clear()

  def _clear(self) -> None:
    """Frees the memory."""
    self._streams, self._shared, self._texts = None, None, []

  @contextlib.contextmanager
  def _failing(self) -> Iterator[None]:
    """Ends all texts if a program fails, because it may already have overwritten their state."""
    try:
      yield
    except Exception as error:
      for text in filter(_is_running, self._texts):
        text.error = error
      self._clear()
      raise


def _is_running(text: RunningText) -> bool:
  return not (text.left or text.is_complete or text.error)
