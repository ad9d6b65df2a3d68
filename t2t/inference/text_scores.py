"""Log-likelihoods of texts after a prefix, for models of every architecture; long texts are scored in windows."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.inference import predictor, prompt_features, pseudo_likelihood
from t2t.inference.prompt_features import Tokens
from t2t.param_tree import Params

_NO_LIMIT = 1 << 30
# The argument of `Scorer` has the name of the module.
_PASSES, _choose = pseudo_likelihood.PSEUDO_LIKELIHOODS, pseudo_likelihood.choose


class ScoredText(NamedTuple):
  """A continuation, and the prefix that it is scored after; each is a text, or token ids that are read unchanged.

  num_bytes: UTF-8 bytes of the continuation; None: of its text.
  num_unscored: first tokens of a continuation of token ids that are read, but not scored. A decoder with an encoder
    reads them at the beginning of each window.
  suffix: token ids that an encoder reads behind the continuation.
  """

  prefix: str | Tokens
  continuation: str | Tokens
  num_bytes: int | None = None
  num_unscored: int = 0
  suffix: Tokens = ()


@dataclasses.dataclass(frozen=True)
class TextScore:
  """Score of one continuation.

  log_p: log-probability in nats, summed over the tokens; for encoders the pseudo-log-likelihood. The log-softmax and
    the sums are float32.
  num_tokens: number of scored tokens; of an encoder-decoder with the end-of-sequence token.
  num_bytes: UTF-8 bytes of the continuation.
  is_greedy: whether each token is the likeliest.
  num_windows: number of windows; 1 if the model reads prefix and continuation at once.
  num_cut: tokens of prefix and suffix that no window reads.
  """

  log_p: float
  num_tokens: int
  num_bytes: int
  is_greedy: bool
  num_windows: int = 1
  num_cut: int = 0


class ScoredWindow(NamedTuple):
  """Positions of tokens in a text: [start, end) are read, and [first, last) are scored."""

  start: int
  end: int
  first: int
  last: int


def windows(length: int, width: int, stride: int, *, first: int = 0, is_causal: bool = True) -> list[ScoredWindow]:
  """Returns windows that score each token from `first` on once.

  In:  length 10, width 4, stride 2
  Out: [(0, 4, 0, 4), (2, 6, 4, 6), (4, 8, 6, 8), (6, 10, 8, 10)]
  In:  length 8, width 4, stride 2, is_causal False
  Out: [(0, 4, 0, 3), (2, 6, 3, 5), (4, 8, 5, 8)]

  A causal window scores its last `stride` tokens, the first window all of its tokens. Other windows score the tokens
  in their middle, which have context on both sides.

  Args:
    length: number of tokens.
    width: maximum number of tokens in a window.
    stride: number of tokens that a window adds, at most `width`.
    first: position of the first token that is scored; the tokens before it are context.
    is_causal: whether tokens are predicted from earlier tokens alone.
  """
  before, after = (width - stride, 0) if is_causal else ((width - stride) // 2,) * 2
  spans = []
  while first < length:
    start = max(0, min(first - before, length - width))
    end = min(start + width, length)
    last = length if end == length else end - after
    spans.append(ScoredWindow(start, end, first, last))
    first = last
  return spans


class TextLayout(NamedTuple):
  """Tokens of a text as a model reads them.

  prompt, target: token ids of prefix and continuation.
  inside: tokens of the prefix that are in the row of the target.
  windows: of the row.
  num_tokens: number of scored tokens.
  num_cut: tokens of prefix and suffix that no window reads.
  suffix: token ids behind the target.
  num_repeated: first tokens of the target that each window begins with.
  """

  prompt: list[int]
  target: list[int]
  inside: int
  windows: list[ScoredWindow]
  num_tokens: int
  num_cut: int
  suffix: Tokens = ()
  num_repeated: int = 0

  @property
  def is_long(self) -> bool:
    """True if the model does not read the text at once."""
    return len(self.windows) > 1 or self.num_cut > 0


class Scorer:
  """Scores texts with one model; the text after a prefix, or a whole text after an empty prefix.

  A decoder-only model predicts a text from left to right after its start token. An encoder-decoder reads the prefix,
  and predicts the continuation and the end-of-sequence token. An encoder has pseudo-log-likelihoods.

  Args:
    reader: of the model; generates nothing.
    vocabulary: of the model.
    pseudo_likelihood: key of `pseudo_likelihood.PSEUDO_LIKELIHOODS`, for an encoder; "": the default.
    max_tokens: maximum number of tokens read at once, special tokens included; 0: the positions of the model. Longer
      texts are scored in windows.
    stride: tokens that a window adds, see `windows`; 0: half a window.
    ends_prompts: whether a decoder-only model reads EOS after a prefix that is a text.
    encode: text -> token ids; None: without control tokens.

  Raises:
    UserError: an option is out of range, or an encoder has no mask token.
  """

  def __init__(
    self,
    reader: predictor.Predictor,
    vocabulary: Any,
    *,
    pseudo_likelihood: str = "",
    max_tokens: int = 0,
    stride: int = 0,
    ends_prompts: bool = False,
    encode: Callable[[str], list[int]] | None = None,
  ):
    self.reader, self._vocabulary, self.encode = reader, vocabulary, encode or self._plain
    self._kind, most = reader.config.kind, reader.config.most_positions
    self._ends = ends_prompts or self._kind.has_encoder_and_decoder
    if max_tokens < 0 or most and max_tokens > most:
      raise UserError(
        f"max_tokens={max_tokens}: the model has {most or 'any number of'} positions; give "
        f"{f'1 to {most}' if most else '1 or more'}, or 0 for all positions"
      )
    self.max_tokens = max_tokens or most
    special = 0 if self._kind.is_generative else len(reader.framing.around)
    self._width = (self.max_tokens or _NO_LIMIT) - special
    if self._width < 1 or not 0 <= stride <= self._width:
      raise UserError(
        f"stride={stride}, max_tokens={self.max_tokens}: a window has {self._width} tokens of the text; give a stride "
        "from 1 to this number, or 0 for half of it"
      )
    self.stride = stride or max(1, self._width // 2)
    self._passes = None
    self.pseudo_likelihood = _choose(pseudo_likelihood, is_generative=self._kind.is_generative)
    if not self._kind.is_generative:
      self._passes = _PASSES[self.pseudo_likelihood]
      if reader.framing.mask_id is None:
        raise UserError(
          "config.data.vocabulary has no mask token, which pseudo-log-likelihoods of an encoder need; use the "
          "vocabulary of the model's training"
        )

  def __call__(
    self, params: Params, items: Sequence[tuple], *, on_batch: Callable[[float, int], None] | None = None
  ) -> list[TextScore]:
    """Returns the score of each item, in order; scores do not depend on the order.

    Scores of a float32 model differ between batch sizes by less than a tie, those of a bfloat16 model by more.

    Args:
      params: nested dict.
      items: `ScoredText`, or pairs of a prefix and a continuation.
      on_batch: called after each batch with the numbers of items, which may be fractions, and of scored tokens.
    """
    rows: list[predictor.ScoredRow] = []
    ends, facts = [], []
    for item in items:
      text = ScoredText(*item)
      layout = self.layout(text)
      rows += self.rows(layout)
      ends.append(len(rows))
      facts.append((layout.num_tokens, self._num_bytes(text), len(layout.windows) or 1, layout.num_cut))
    share = len(items) / max(len(rows), 1)
    step = None if on_batch is None else lambda number, tokens: on_batch(number * share, tokens)
    log_p, is_greedy = self.reader.likelihoods(params, rows, on_batch=step)
    scores = []
    for start, end, (num_tokens, num_bytes, num_windows, num_cut) in zip([0, *ends], ends, facts, strict=False):
      total = float(np.sum(log_p[start:end], dtype=np.float32))
      scores.append(TextScore(total, num_tokens, num_bytes, bool(np.all(is_greedy[start:end])), num_windows, num_cut))
    return scores

  def by_window(
    self, params: Params, texts: Sequence[ScoredText], *, on_batch: Callable[[float, int], None] | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns log-probability and number of scored tokens of each window of all texts, float32 and int [windows]."""
    layouts = [self.layout(text) for text in texts]
    windows_of = [(layout, window) for layout in layouts for window in layout.windows]
    groups = [self._window_rows(layout, window) for layout, window in windows_of]
    rows = [row for group in groups for row in group]
    share = len(groups) / max(len(rows), 1)
    step = None if on_batch is None else lambda number, tokens: on_batch(number * share, tokens)
    log_p, _ = self.reader.likelihoods(params, rows, on_batch=step)
    starts = np.cumsum([0, *(len(group) for group in groups)])[:-1]
    sums = np.add.reduceat(log_p, starts) if rows else log_p
    return sums, np.array([window.last - window.first for _, window in windows_of])

  def texts(self, params: Params, texts: Sequence[str], *, on_batch: Callable | None = None) -> list[TextScore]:
    """Returns the score of each whole text; see `__call__`."""
    return self(params, [ScoredText("", text) for text in texts], on_batch=on_batch)

  def tokens(self, text: ScoredText) -> tuple[list[int], list[int]]:
    """Returns the token ids of prefix and continuation as the model reads them.

    Texts that a model reads in one row are encoded together, because a vocabulary may encode the start of a text
    differently. If a token would cross the boundary, prefix and continuation are encoded by themselves.
    """
    prefix, continuation = text.prefix, text.continuation
    has_eos = self._kind.has_encoder_and_decoder
    end = [self._vocabulary.eos_id] if self._ends else []
    prompt = [*self.encode(prefix), *(end if prefix else [])] if isinstance(prefix, str) else list(prefix)
    if not isinstance(continuation, str):
      target = list(continuation)
    elif isinstance(prefix, str) and prefix and not end:
      whole = self.encode(prefix + continuation)
      target = whole[len(prompt) :] if whole[: len(prompt)] == prompt else self.encode(continuation)
    else:
      target = [*self.encode(continuation), *([self._vocabulary.eos_id] if has_eos else [])]
    # An encoder of an encoder-decoder reads at least one token.
    return (prompt or [self._vocabulary.eos_id]) if has_eos else prompt, target

  def long_note(self, scores: Sequence[TextScore]) -> str:
    """Returns a sentence on the texts that are longer than the model; "" if there are none."""
    long_scores = [score for score in scores if score.num_windows > 1 or score.num_cut]
    if not long_scores:
      return ""
    num_cut = sum(score.num_cut > 0 for score in long_scores)
    cut = f"; the beginning of {num_cut:,} prefixes is not read" if num_cut else ""
    return (
      f"{len(long_scores):,} of {len(scores):,} texts are longer than the {self.max_tokens:,} tokens that the model "
      f"reads at once, and are scored in windows with stride {self.stride:,}{cut}"
    )

  def layout(self, text: ScoredText) -> TextLayout:
    """Returns the tokens of a text and its windows; uses no device.

    A text with a suffix has one window around the target; prefix and suffix lose the tokens farthest from the target.

    Raises:
      UserError: unscored tokens that each window begins with leave no room.
    """
    prompt, target = self.tokens(text)
    apart, width, unscored = self._kind.has_encoder_and_decoder, self._width, text.num_unscored
    if len(text.suffix) and target and not self._kind.is_generative:
      room = max(0, width - len(target))
      behind = min(len(text.suffix), max(room - len(prompt), room // 2))
      before = min(len(prompt), room - behind)
      num_cut = len(prompt) - before + len(text.suffix) - behind
      end = before + len(target)
      window = ScoredWindow(0, end, before + unscored, end)
      prompt, suffix = prompt[len(prompt) - before :], list(text.suffix[:behind])
      return TextLayout(prompt, target, before, [window], len(target) - unscored, num_cut, suffix)
    # An encoder-decoder reads the prefix in the encoder, with its own positions.
    num_cut = max(0, len(prompt) - width) if apart else 0
    prompt, inside = prompt[num_cut:], 0 if apart else len(prompt)
    first, length = inside + unscored, inside + len(target)
    if first >= length:
      return TextLayout(prompt, target, inside, [], 0, 0)
    repeated = 0
    if length <= width:
      spans = [ScoredWindow(0, length, first, length)]
    else:
      # The sentinel of a span tells the decoder which text it predicts.
      repeated = unscored if apart else 0
      room = width - repeated
      if room < 1:
        raise UserError(
          f"max_tokens={self.max_tokens}: each window begins with {repeated} tokens that are not scored; give "
          f"{repeated + 1} or more"
        )
      stride = min(self.stride, room)
      is_causal = self._kind.is_generative
      shifted = windows(length - repeated, room, stride, first=first - repeated, is_causal=is_causal)
      spans = [ScoredWindow(*(position + repeated for position in span)) for span in shifted]
    num_cut += min(spans[0].start, inside)
    return TextLayout(prompt, target, inside, spans, len(target) - unscored, num_cut, num_repeated=repeated)

  def rows(self, layout: TextLayout) -> list[predictor.ScoredRow]:
    """Returns the rows of a text; together they score each token once, from first to last."""
    return [row for window in layout.windows for row in self._window_rows(layout, window)]

  def _window_rows(self, layout: TextLayout, window: ScoredWindow) -> list[predictor.ScoredRow]:
    inside, (start, end, first, last), repeated = layout.inside, window, layout.num_repeated
    read = layout.prompt if self._kind.has_encoder_and_decoder else layout.prompt[start:]
    offset = max(start - inside, 0)
    shown = [*layout.target[:repeated], *layout.target[offset : end - inside]]
    scored = range(repeated + first - inside - offset, repeated + last - inside - offset)
    return self._scored_rows(read, shown, scored, suffix=layout.suffix)

  def _scored_rows(
    self, prompt: list[int], target: list[int], scored: range, *, suffix: Tokens = ()
  ) -> list[predictor.ScoredRow]:
    """Returns one row, or for an encoder one row for each pass that scores tokens."""
    if self._passes is None:
      return [predictor.ScoredRow(prompt, target, scored)]
    starts = self._starts_word[np.minimum(np.asarray(target, np.int64), len(self._starts_word) - 1)]
    starts[:1] = True
    passes = [
      ([position for position in positions if position in scored], masked) for positions, masked in self._passes(starts)
    ]
    read = [*target, *suffix]
    return [predictor.ScoredRow(prompt, read, positions, masked) for positions, masked in passes if positions]

  @functools.cached_property
  def _starts_word(self) -> np.ndarray:
    from t2t.data import vocabularies

    return vocabularies.starts_word(self._vocabulary)

  def _num_bytes(self, text: ScoredText) -> int:
    if text.num_bytes is not None:
      return text.num_bytes
    continuation = text.continuation
    if not isinstance(continuation, str):
      continuation = self._vocabulary.decode([int(i) for i in continuation if i != self._vocabulary.eos_id])
    return len(continuation.encode(errors="surrogateescape"))

  def _plain(self, text: str) -> list[int]:
    from t2t.data import vocabularies

    return vocabularies.encode_text(self._vocabulary, text, special_tokens="none")


def of_source(source: pretrained.Source, mesh: jax.sharding.Mesh, *, batch_size: int, **options: Any) -> Scorer:
  """Returns the scorer of a checkpoint; uses no device.

  Without `max_tokens` a model of one stack without learned positions reads at most the length of its training.

  Args:
    source: the checkpoint; `pretrained.load` loads its parameters.
    mesh: on which its parameters are loaded.
    batch_size: rows of a batch, over all devices.
    options: see `Scorer`.

  Raises:
    UserError: see `Scorer`; or the model does not predict tokens.
  """
  predictor.check_predicts_tokens(source.model, where=f"--checkpoint {source.name}")
  vocabulary, model, data = pretrained.vocabulary(source), pretrained.abstract(source, mesh), source.run["data"]
  kind, trained = model.config.kind, max(data["inputs_length"], data["targets_length"])
  if not (kind.has_encoder_and_decoder or model.config.most_positions):
    options = {"max_tokens": trained} | options
  framing = prompt_features.framing(vocabulary, causal=pretrained.reads_causally(source))
  reader = predictor.Predictor(
    model.config, model.graphdef, mesh, framing, decode=None, batch_size=batch_size, max_inputs=trained
  )
  return Scorer(reader, vocabulary, **options)
