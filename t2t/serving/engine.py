"""Engine of a served generative model: parameters and compiled programs, reused between requests."""

from collections.abc import Generator, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import time
from typing import Any
import weakref

import jax
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import multi_adapter, pretrained
from t2t.inference import (
  adapter_routing,
  decoding,
  predictor,
  prompt_builder,
  prompt_features,
  text_scores,
  token_logprobs,
)
from t2t.models.config import TransformerConfig
from t2t.serving import attention_maps, routes, slots

MAX_LENGTH = 1_024  # maximum new tokens; determines memory on the device
_LONGEST_TEXT = 2_048  # maximum tokens of a scored text without learned positions; attention is quadratic in them
_SMALLEST_ROOM = 64  # positions; shorter outputs use the same program


def make_mesh(tensor: int) -> jax.sharding.Mesh:
  """Returns a mesh of the first `tensor` devices; the others stay idle, because requests have only one row.

  Raises:
    UserError: there are fewer devices.
  """
  devices = jax.devices()
  if not 1 <= tensor <= len(devices):
    raise UserError(f"--tensor {tensor} must be 1 to {len(devices)}, the number of devices")
  return sharding.make_mesh({"tensor": tensor}, devices=devices[:tensor])


@dataclasses.dataclass(frozen=True)
class PartialText:
  """A text during generation: tokens without EOS, whether EOS was generated, and the score, see `decoding.Decoded`."""

  tokens: list[int]
  ended: bool
  score: float


@dataclasses.dataclass(frozen=True)
class RunningRequest:
  """Texts of one request that are being generated.

  device: lock of the device.
  group: rows of the texts.
  texts: in the order of their numbers.
  """

  device: routes.Turns
  group: slots.Slots
  texts: Sequence[slots.RunningText]

  def rows(self) -> Iterator[list[PartialText]]:
    """Yields the texts whenever they have further tokens, until all are complete.

    While other requests hold the device, it yields the same texts again, or none before the first token. Closing the
    iterator ends the texts.
    """
    seen, rows = 0, []
    try:
      while True:
        with contextlib.closing(routes.waiting(self.device)) as states:
          for _ in states:
            yield rows
        try:
          if self._number() == seen:
            self.group.advance()  # other requests may already have done it
          if error := next((text.error for text in self.texts if text.error), None):
            raise error
          seen, rows = self._number(), [PartialText(list(text.tokens), text.ended, text.score) for text in self.texts]
          are_complete = all(text.is_complete for text in self.texts)
        finally:
          self.device.release()
        yield rows
        if are_complete:
          return
    finally:
      for text in self.texts:
        text.left = True

  def _number(self) -> int:
    return sum(len(text.tokens) + text.ended for text in self.texts)


@dataclasses.dataclass(frozen=True)
class Prompt:
  """Tokens that a model reads before it generates.

  start: tokens without a log-probability: a BOS or EOS that begins a decoder-only prompt, and what
    the encoder of an encoder-decoder reads before a prompt that is scored.
  tokens: ids after the model's own BOS, with EOS if the model's prompts end in it.
  ends_in_space: whether the text ended in whitespace that the vocabulary drops.
  """

  start: tuple[int, ...]
  tokens: list[int]
  ends_in_space: bool = False

  @property
  def ids(self) -> list[int]:
    """All token ids, the start token first."""
    return [*self.start, *self.tokens]


class Ready:
  """A loaded model with its adapters; callers must hold the lock `device`.

  Args:
    source: its checkpoint.
    adapters: of the model, see `multi_adapter.open_all`.
    ends_prompts: whether EOS ends a prompt, see `prompt_builder.ends_prompts`.
    inputs_length: maximum tokens of a prompt; 0: as in training.
    tensor: number of devices that share the model.
    special_tokens: see `prompt_builder.special_tokens`.
  """

  def __init__(
    self,
    source: pretrained.Source,
    *,
    adapters: Mapping[str, pretrained.Source] | None = None,
    ends_prompts: bool,
    inputs_length: int = 0,
    tensor: int = 1,
    special_tokens: str = "",
  ):
    from t2t.data import vocabularies
    from t2t.data.vocabularies import continuation

    self.source, self.device = source, routes.Turns()
    self._mesh = make_mesh(tensor)
    self.vocabulary = pretrained.vocabulary(source)
    self._framing = prompt_features.framing(self.vocabulary, causal=pretrained.reads_causally(source))
    sources = adapter_routing.named_models(source, adapters or {})
    # Length limits hold for every adapter.
    shortest = min(sources.values(), key=lambda adapter_source: adapter_source.asked.most_positions)
    self._model_config = shortest.asked
    most = self.room(MAX_LENGTH)
    self.max_inputs = prompt_builder.longest_prompt(shortest, inputs_length=inputs_length, max_length=most)
    self.ends_prompts = ends_prompts
    # Adapters may have been fine-tuned on different tables or tasks, with different prefixes.
    self.prompts = {
      name: prompt_builder.Prompts(
        self.vocabulary,
        ends=ends_prompts,
        longest=self.max_inputs,
        special_tokens=prompt_builder.special_tokens(adapter_source, special_tokens),
        prefix=prompt_builder.prefix(adapter_source),
      )
      for name, adapter_source in sources.items()
    }
    self._extra = int(source.model.kind.is_decoder_only)  # BOS
    self._model_config.text_decoder.check(self._model_config, self.max_inputs + self._extra, most)
    self._models = {name: pretrained.abstract(adapter_source, self._mesh) for name, adapter_source in sources.items()}
    # Models with the same structure share the programs of the first.
    self._alike = {
      name: next(
        other_name for other_name, other_model in self._models.items() if other_model.graphdef == model.graphdef
      )
      for name, model in self._models.items()
    }
    self.params = multi_adapter.load(source, adapters or {}, self._mesh)
    named = token_logprobs.token_names(self.vocabulary, source.model.vocab_size)
    self.token_texts, self.token_names, self.vocab_size = named
    self._framing_ids = vocabularies.framing_ids(self.vocabulary)
    self._starts = {self._framing.bos_id, self._framing.eos_id} if source.model.kind.is_decoder_only else set()
    self._continuation = functools.partial(continuation.decode_continuation, self.vocabulary)
    self._continuation_texts = functools.partial(continuation.continuation_texts, self.vocabulary)
    # One program per choice of options; the least recently used are freed.
    self._programs = functools.lru_cache(maxsize=16)(self._make_programs)
    self._beams = functools.lru_cache(maxsize=16)(self._make_beams)
    self._scorer, self._maps = functools.cache(self._make_scorer), functools.cache(self._make_maps)
    self._compiled: set[tuple] = set()
    self._groups: dict[tuple[str, decoding.DecodeConfig, int], slots.Slots] = {}
    self._shared: weakref.WeakValueDictionary[str, slots.SharedWeights] = weakref.WeakValueDictionary()

  @property
  def names(self) -> list[str]:
    """Names of the adapters; `adapter_routing.BASE` is the base model."""
    return list(self._models)

  @property
  def config(self) -> TransformerConfig:
    """Config of the model for inference."""
    return self._model_config

  @property
  def reads_causally(self) -> bool:
    """True if prompt tokens have log-probabilities, because each attends only to the tokens before it."""
    kind, both_ways = self.config.kind, self.config.bidirectional_prefix and not self._framing.causal
    return kind.is_decoder_only and not both_ways

  def decode(self, tokens: Sequence[int]) -> str:
    return self.vocabulary.decode(list(tokens))

  def read(self, prompt: str | Sequence[int], adapter: str = "", *, as_given: bool = False) -> Prompt:
    """Returns all tokens of a prompt.

    Text gets the prefix of the adapter's (or model's) task, unless it is `as_given`.

    A BOS or EOS at the start of a decoder-only prompt, as an id or spelled out, replaces the model's own.
    Evaluation harnesses start texts with either, whatever the model was trained with.

    An encoder-decoder reads a prompt that is given for scoring up to its first EOS in the encoder, and predicts the
    rest. Without EOS the encoder reads EOS alone, as in the harness' perplexities.
    """
    if as_given and self.config.kind.has_encoder_and_decoder:
      return self._divided(prompt, adapter)
    end = [self._framing.eos_id] if self.ends_prompts else []
    if isinstance(prompt, str):
      names = {self.token_texts[start]: start for start in self._starts}
      name = next((name for name in names if prompt.startswith(name)), "")
      prompts = self.prompts[adapter]
      encode = prompts.encode if as_given else prompts.prompt
      tokens = encode(prompt.removeprefix(name))
      ends_in_space = prompt[-1:].isspace() and bool(tokens) and not self.decode(tokens)[-1:].isspace()
      return Prompt((names[name],) if name else (), tokens + end, ends_in_space)
    start = tuple(prompt[:1]) if prompt[0] in self._starts else ()
    tokens = list(prompt[len(start) :])
    return Prompt(start, tokens if tokens[-1:] == end else tokens + end)

  def _divided(self, prompt: str | Sequence[int], adapter: str) -> Prompt:
    end = self._framing.eos_id
    if isinstance(prompt, str):
      inputs, has_end, target = prompt.partition(self.token_texts[end])
      encode = self.prompts[adapter].encode
      return Prompt((*encode(inputs), end), encode(target)) if has_end else Prompt((), encode(prompt))
    size = list(prompt).index(end) + 1 if end in prompt else 0
    return Prompt(tuple(prompt[:size]), list(prompt[size:]))

  def continued(self, prompt: Prompt, tokens: Sequence[int]) -> str:
    """Returns the text that tokens add to a prompt, including the space between; for an encoder-decoder, their own
    text.
    """
    if not self.config.kind.is_decoder_only:
      return self.decode(tokens)
    text = self._continuation(prompt.tokens, tokens)
    return text.removeprefix(" ") if prompt.ends_in_space else text

  def parts(self, prompt: Prompt, tokens: Sequence[int], *, echo: bool) -> list[str]:
    """Returns the text that each token adds; with `echo` the prompt comes first, special tokens by name."""
    if echo:
      texts = self._continuation_texts([], [*prompt.ids, *tokens])
      named = [self.token_texts[token] if token in self._framing_ids else "" for token in prompt.ids]
      return [name or text for name, text in zip(named + [""] * len(tokens), texts, strict=True)]
    if not self.config.kind.is_decoder_only:
      return token_logprobs.pieces(self.decode, tokens)
    texts = self._continuation_texts(prompt.tokens, tokens)
    if prompt.ends_in_space and texts:
      first = next((number for number, text in enumerate(texts) if text), 0)
      texts[first] = texts[first].removeprefix(" ")
    return texts

  # ---- Generation ----------------------------------------------------------------------------------------------------

  def search(self, prompt: list[int], config: decoding.DecodeConfig, name: str) -> tuple[predictor.Generation, int]:
    """Runs a beam search; returns the generation and the maximum length used."""
    self._free()
    config = self._within(config, self.room(config.max_length))
    beams = self._beams(config, self._alike[name])
    return beams.generate(self.params[name], [prompt])[0], config.max_length

  def enter(
    self, prompt: list[int], config: decoding.DecodeConfig, name: str, *, seed: int, numbers: Sequence[int]
  ) -> Generator[routes.Event, None, RunningRequest]:
    """Begins texts, one for each of `numbers`, which select the samples; yields states while they wait.

    Callers must not hold `device`. Texts of several requests are generated together, see `slots`.

    Raises:
      Busy: they waited too long.
    """
    until = told = time.monotonic()
    until += routes.LONGEST_WAIT
    texts = [slots.RunningText(self.room(config.max_length)) for _ in numbers]
    writing: RunningRequest | None = None
    try:
      while True:
        yield from routes.waiting(self.device)
        try:
          if writing is None:
            writing = RunningRequest(self.device, self._slots(config, name, self._width(prompt)), texts)
            writing.group.line_up(texts)
          rows, program = writing.group.size_with(len(texts)), (self._alike[name], self._streamed(config))
          program += (self._width(prompt),)
          if rows and writing.group.is_first(texts) and (*program, rows) not in self._compiled:
            yield {"state": "compiling"}
          if writing.group.enter(texts, self._features(prompt), self._keys(seed, numbers)):
            self._compiled.add((*program, writing.group.size))
            return writing
          with contextlib.suppress(Exception):  # its texts tell it to their own requests
            writing.group.advance()  # so that rows become free
        finally:
          self.device.release()
        if time.monotonic() > until:
          raise routes.busy()
        if time.monotonic() > told + 1.0:
          yield {"state": "waiting"}
          told = time.monotonic()
    except BaseException:
      for text in texts:
        text.left = True
      raise

  def _keys(self, seed: int, numbers: Sequence[int]) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), np.array(numbers, np.uint32))

  def _slots(self, config: decoding.DecodeConfig, name: str, width: int) -> slots.Slots:
    key = (name, self._streamed(config), width)
    self._free()
    if key not in self._groups:
      programs = self._programs(key[1], self._alike[name])
      self._groups[key] = slots.Slots(programs, self.params[name], self._mesh, name, self._shared)
    return self._groups[key]

  def _free(self) -> None:
    """Frees the memory of texts that nobody reads any longer."""
    self._groups = {key: group for key, group in self._groups.items() if group.is_used}

  def is_new(self, prompt: list[int], config: decoding.DecodeConfig, name: str) -> bool:
    """Returns True if this beam search needs compilation, and records it as compiled."""
    program = (self._alike[name], self._within(config, self.room(config.max_length)), self._width(prompt), 0)
    is_new = program not in self._compiled
    self._compiled.add(program)
    return is_new

  def _streamed(self, config: decoding.DecodeConfig) -> decoding.DecodeConfig:
    """Rounds the maximum length up, so that one program serves many lengths."""
    limit = self.room(config.max_length)
    room = self.room(max(_SMALLEST_ROOM, 1 << (limit - 1).bit_length()))
    return dataclasses.replace(self._within(config, limit), max_length=room)

  def _make_beams(self, config: decoding.DecodeConfig, name: str) -> predictor.Predictor:
    model = self._models[name]
    options = dict(decode=config, batch_size=1, max_inputs=self.max_inputs)
    return predictor.Predictor(model.config, model.graphdef, self._mesh, self._framing, **options)

  def _make_programs(self, config: decoding.DecodeConfig, name: str) -> slots.Programs:
    return slots.Programs(self._models[name], config, eos_id=self._framing.eos_id)

  def _features(self, prompt: list[int]) -> Mapping[str, np.ndarray]:
    architecture = self.source.model.architecture
    return prompt_features.prompt_features(
      [prompt], self._width(prompt), architecture=architecture, framing=self._framing
    )

  # ---- Analysis ------------------------------------------------------------------------------------------------------

  def text_likelihoods(
    self, prompt: Sequence[int], texts: Sequence[PartialText], name: str
  ) -> list[tuple[list[int], token_logprobs.Likelihoods]]:
    """Returns tokens (including EOS if generated) and log-probabilities of each text after the prompt."""
    ids = [[*row.tokens, *([self._framing.eos_id] if row.ended else [])] for row in texts]
    return list(zip(ids, self.tell([(prompt, row_ids) for row_ids in ids], name), strict=True))

  def tell(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], name: str) -> list[token_logprobs.Likelihoods]:
    """Returns the log-probabilities of each target after its prompt; EOS counts if the target has it.

    Args:
      pairs: token ids of prompts and targets; an empty prompt scores a decoder-only model from its first token.
      name: of the adapter.
    """
    self._free()
    items = [text_scores.ScoredText(prompt, target, 0) for prompt, target in pairs]
    return self._scorer(self._alike[name])(self.params[name], items)

  def next_row(self, token_likelihoods: token_logprobs.Likelihoods) -> PartialText:
    """Returns the likeliest token at the last position."""
    token, log_p = int(token_likelihoods.ids[-1][0]), float(token_likelihoods.log_p_of[-1][0])
    return PartialText([], True, log_p) if token == self._framing.eos_id else PartialText([token], False, log_p)

  def _make_scorer(self, name: str) -> token_logprobs.TokenScorer:
    model = self._models[name]
    options = dict(decode=None, batch_size=1, max_inputs=self.max_inputs)
    reader = predictor.Predictor(model.config, model.graphdef, self._mesh, self._framing, **options)
    return token_logprobs.TokenScorer(text_scores.Scorer(reader, self.vocabulary), vocab_size=self.vocab_size)

  def attention_map(
    self, prompt: list[int], targets: list[int], map_key: attention_maps.AttentionMapKey, name: str
  ) -> dict[str, Any]:
    """Returns an attention map of the prompt and the targets, see `attention_maps.Maps`.

    Raises:
      UserError: there are too many tokens.
    """
    config, kind = self._models[name].config, self.config.kind
    row = predictor.ScoredRow(prompt, [*targets, self._framing.eos_id])  # the last token is not an input
    named = lambda ids: attention_maps.named(ids, self.token_texts)
    tokens = {"encoder": named(prompt), "decoder": ["(start)", *named(targets)]}
    if not kind.has_encoder_and_decoder:
      tokens = {"decoder": ["(start)", *named(prompt), *named(targets)]}
    widths = [attention_maps.width(len(token_names), config, side) for side, token_names in tokens.items()]
    features = predictor.scored_features([row], widths, architecture=config.architecture, framing=self._framing)
    return self._maps(self._alike[name])(self.params[name], features, map_key, tokens=tokens)

  def _make_maps(self, name: str) -> attention_maps.Maps:
    return attention_maps.Maps(self._models[name].graphdef, self._mesh)

  # ---- Lengths -------------------------------------------------------------------------------------------------------

  @property
  def longest_text(self) -> int:
    """Maximum tokens of a text for scoring, of an encoder or a decoder."""
    return self._model_config.most_positions or max(self.max_inputs, _LONGEST_TEXT)

  def room(self, max_length: int) -> int:
    """Limits `max_length` to the positions that the model can generate."""
    most = self._model_config.most_positions
    if self.source.model.kind.is_decoder_only:
      most //= 2  # the other half is for the prompt
    return min(max_length, most) if most else max_length

  def _within(self, config: decoding.DecodeConfig, limit: int) -> decoding.DecodeConfig:
    """Limits the lengths of a decoding config."""
    return dataclasses.replace(config, max_length=limit, min_length=min(config.min_length, limit))

  def _width(self, prompt: Sequence[int]) -> int:
    return predictor.bucket(len(prompt) + self._extra, self.max_inputs + self._extra)
