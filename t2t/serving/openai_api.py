"""`POST /v1/completions`: an OpenAI-compatible endpoint."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import itertools
import secrets
import time
from typing import Any

import numpy as np

from t2t import UserError, did_you_mean
from t2t.inference import adapter_routing, decoding, token_logprobs
from t2t.serving import encoder_scores, engine, request_schema, routes, scoring
from t2t.serving.routes import Endpoint, Event

_MAX_PROMPTS, _MAX_CHOICES, _MAX_STOPS = 16, 16, 4
_MAX_TOKENS = _MAX_CHOICES * engine.MAX_LENGTH  # of one request
_LENGTH = 16  # OpenAI's default of max_tokens


_SCORE = "Leave out 'echo', or send POST /v1/score for the log-probabilities of given targets."


def _neutral(name: str, value: float) -> request_schema.Field:
  return request_schema.Field(
    name, "number", f"Only {value}: penalties are not supported.", value, value, nullable=True
  )


FIELDS = (
  request_schema.Field("prompt", "prompts", "Prompt: text, or token ids.", 1, _MAX_PROMPTS, required=True, filled=True),
  request_schema.Field("model", "string", "One of GET /v1/models; default: the base model.", nullable=True),
  request_schema.Field(
    "max_tokens",
    "integer",
    "Maximum number of tokens; 0 only with echo.",
    0,
    engine.MAX_LENGTH,
    nullable=True,
    default=_LENGTH,
  ),
  request_schema.Field("max_completion_tokens", "integer", "As max_tokens.", 0, engine.MAX_LENGTH, nullable=True),
  request_schema.Field(
    "temperature",
    "number",
    "Sampling temperature; 0: greedy decoding.",
    0,
    2,
    or_least=decoding.LEAST_TEMPERATURE,
    nullable=True,
    default=1,
  ),
  request_schema.Field("top_p", "number", "See /generate; ignored at temperature 0.", 0, 1, above=True, nullable=True),
  request_schema.Field("n", "integer", "Number of choices for each prompt.", 1, _MAX_CHOICES, nullable=True, default=1),
  request_schema.Field("best_of", "integer", "Must equal n.", 1, _MAX_CHOICES, nullable=True),
  request_schema.Field("stop", "strings", "The text ends before any of these strings.", 0, _MAX_STOPS, nullable=True),
  request_schema.Field(
    "logprobs", "integer", "Number of likeliest tokens for each position.", 0, token_logprobs.TOP, nullable=True
  ),
  request_schema.Field(
    "echo", "boolean", "Returns the prompt before the text, as the model read it.", nullable=True, default=False
  ),
  request_schema.Field(
    "seed", "integer", "Random seed; default: a new one for each request.", 0, 2**32 - 1, nullable=True
  ),
  request_schema.Field(
    "stream", "boolean", "Server-sent events, each with more of the text.", nullable=True, default=False
  ),
  request_schema.Field(
    "stream_options",
    "object",
    "Only with stream.",
    nullable=True,
    fields=(
      request_schema.Field(
        "include_usage", "boolean", "Adds a last event with usage and without choices.", nullable=True, default=False
      ),
      request_schema.Field(
        "include_obfuscation", "boolean", "Only false: obfuscation is not supported.", choices=(False,), nullable=True
      ),
    ),
  ),
  request_schema.Field("user", "string", "Has no effect.", nullable=True),
  request_schema.Field("suffix", "string", "Only empty: insertion is not supported.", choices=("",), nullable=True),
  request_schema.Field("logit_bias", "object", "Only empty: token biases are not supported.", nullable=True),
  _neutral("frequency_penalty", 0),
  _neutral("presence_penalty", 0),
)


@dataclasses.dataclass(frozen=True)
class Request:
  """A parsed request; see `FIELDS`.

  adapter: selected by `model`.
  logprobs: None for no log-probabilities.
  include_usage: whether a stream ends with an event of usage.
  only_reads: whether one forward pass gives the log-probabilities and at most one new token.
  """

  prompts: list[engine.Prompt]
  model: str
  adapter: str
  decode: decoding.DecodeConfig
  max_tokens: int
  n: int
  stop: tuple[str, ...]
  logprobs: int | None
  echo: bool
  seed: int
  stream: bool
  include_usage: bool
  only_reads: bool


class NotFound(request_schema.FieldError):
  """An unknown model."""


def error(status: int, message: str, cause: Exception | None = None) -> dict[str, Any]:
  """Returns an error in OpenAI's format."""
  kinds = {401: "authentication_error", 403: "permission_error", 404: "invalid_request_error"}
  kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
  param = cause.field if isinstance(cause, request_schema.FieldError) else None
  code = "model_not_found" if isinstance(cause, NotFound) else None
  code = "context_length_exceeded" if isinstance(cause, scoring.TooLong) else code
  return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_LOGPROBS = routes.record(
  tokens=routes.listed(routes.TEXT),
  token_logprobs=routes.listed(routes.or_null(routes.number())),
  top_logprobs=routes.or_null(
    routes.listed(routes.or_null({"type": "object", "additionalProperties": routes.number()}))
  ),
  text_offset=routes.listed(routes.COUNT),
)
_REPLIES = routes.record(
  id=routes.TEXT,
  object={"const": "text_completion"},
  created=routes.COUNT,
  model=routes.TEXT,
  choices=routes.listed(
    routes.record(
      text=routes.TEXT,
      index=routes.COUNT,
      logprobs=routes.or_null(_LOGPROBS),
      finish_reason={"enum": ["stop", "length", None]},
    )
  ),
  usage=routes.or_null(
    routes.record(prompt_tokens=routes.COUNT, completion_tokens=routes.COUNT, total_tokens=routes.COUNT)
  ),
)


class Completions:
  """Serves OpenAI's completions.

  Args:
    model: a generative model, or an encoder, which only scores prompts.
    name: of the base model; adapters have their own names.
  """

  def __init__(self, model: engine.Ready | encoder_scores.EncoderScores, *, name: str):
    self._ready = model
    self._adapters = {name or "t2t" if each == adapter_routing.BASE else each: each for each in model.names}
    self._fields = tuple(
      dataclasses.replace(field, ids=model.vocab_size) if field.name == "prompt" else field for field in FIELDS
    )

  @property
  def models(self) -> list[str]:
    """Names of the models: the base model, if it may be selected, and the adapters."""
    return list(self._adapters)

  def endpoint(self) -> Endpoint:
    return Endpoint(
      "Generated text, in the format of OpenAI's API.",
      self.parse,
      self.answer,
      request_schema.schema(self._fields),
      form=lambda request: routes.EVENTS if request.stream else routes.WHOLE,
      forms=(routes.WHOLE, routes.EVENTS),
      replies=_REPLIES,
    )

  # ---- Requests ------------------------------------------------------------

  def parse(self, body: bytes) -> Request:
    """Parses a JSON object.

    Raises:
      FieldError: the request is invalid; says how to fix it.
    """
    found = request_schema.check(request_schema.read(body), self._fields)
    if "model" not in found and adapter_routing.BASE not in self._ready.names:
      raise request_schema.FieldError(
        "model", f"'model' is missing, and there is no base model; give one of {', '.join(self.models)}"
      )
    model = found.get("model", self.models[0])
    self.check_model(model)
    n, temperature = found.get("n", 1), found.get("temperature", 1)
    echo, logprobs, stream = found.get("echo", False), found.get("logprobs"), found.get("stream", False)
    max_tokens = self._max_tokens(found)
    if found.get("best_of", n) != n:
      raise request_schema.FieldError(
        "best_of", f"'best_of' is {found['best_of']}, but 'n' is {n}; leave out 'best_of', or give {n}"
      )
    if not max_tokens and not echo:
      raise request_schema.FieldError(
        "max_tokens", f"'max_tokens' is {max_tokens} without 'echo'; give 1 or more, or echo=true"
      )
    if (total := max_tokens * n * len(found["prompt"])) > _MAX_TOKENS:
      said = f"{len(found['prompt'])} prompts with {n} choices of {max_tokens:,} tokens are {total:,} tokens"
      raise request_schema.FieldError(
        "max_tokens", f"'max_tokens': {said}, more than the limit of {_MAX_TOKENS:,}; split the request"
      )
    if echo:
      self._check_echo(max_tokens, temperature)
    elif not self._ready.config.kind.is_generative:
      raise request_schema.FieldError(
        "echo", "this model is an encoder and generates no text; give echo=true and max_tokens=0 to score the prompt"
      )
    if stream and logprobs is not None:
      raise request_schema.FieldError(
        "logprobs", "'logprobs' is not supported with stream=true; leave out 'stream' or 'logprobs'"
      )
    if stream and echo:
      raise request_schema.FieldError("echo", "'echo' is not supported with stream=true; leave out 'stream' or 'echo'")
    if "stream_options" in found and not stream:
      raise request_schema.FieldError(
        "stream_options", "'stream_options' needs stream=true; give stream=true, or leave out 'stream_options'"
      )
    drawing = {"temperature": temperature, "top_p": found.get("top_p", 1.0)} if temperature else {}
    decode = decoding.DecodeConfig(max_length=max(1, max_tokens), **drawing)
    # One forward pass gives the log-probabilities of the prompt and the next token.
    only_reads = echo and (not max_tokens or (max_tokens == 1 and not temperature))
    return Request(
      self._prompts(found["prompt"], self._adapters[model], told=max_tokens if only_reads else None, echo=echo),
      model,
      self._adapters[model],
      decode,
      max_tokens,
      n,
      tuple(filter(None, found.get("stop", ()))),
      logprobs,
      echo,
      found.get("seed", secrets.randbelow(2**32)),
      stream,
      found.get("stream_options", {}).get("include_usage", False),
      only_reads,
    )

  def check_model(self, name: str) -> None:
    """Checks that the server has this model.

    Raises:
      NotFound: the model is unknown; lists the known models.
    """
    if name not in self._adapters:
      near = did_you_mean(name, self.models)
      raise NotFound("model", f"model {name[:60]!r} is unknown. Known models: {', '.join(self.models)}{near}")

  def _max_tokens(self, found: Mapping[str, Any]) -> int:
    names = [name for name in ("max_tokens", "max_completion_tokens") if name in found]
    if len({found[name] for name in names}) > 1:
      said = f"'max_completion_tokens' is {found[names[1]]}, but 'max_tokens' is {found[names[0]]}"
      raise request_schema.FieldError("max_completion_tokens", f"{said}; give only one of these fields")
    return found[names[0]] if names else _LENGTH

  def _prompts(
    self, given: Sequence[str | list[int]], adapter: str, *, told: int | None, echo: bool
  ) -> list[engine.Prompt]:
    """Returns the tokens of the prompts; with `told` they are scored in one pass, with `told` more tokens.

    With `echo` no prefix is added, because its tokens would appear among the client's.

    Raises:
      TooLong: a prompt has more tokens than the model reads.
    """
    prompts = [self._ready.read(each, adapter, as_given=echo) for each in given]
    most = self._ready.max_inputs if told is None else self._ready.longest_text - told
    for prompt in prompts:
      if echo and self._ready.config.kind.has_encoder_and_decoder and len(prompt.start) > self._ready.max_inputs:
        raise scoring.TooLong(
          "prompt",
          f"'prompt' has {len(prompt.start):,} tokens up to EOS, more than {self._ready.max_inputs:,}, the maximum of "
          "this model's encoder; shorten the prompt",
        )
      if (number := len(prompt.tokens)) > most:
        behind = "" if told is None else " with echo" + (f" and max_tokens={told}" if told else "")
        raise scoring.TooLong(
          "prompt",
          f"'prompt' has {number:,} tokens, more than {most:,}, the maximum of this model{behind}; shorten the prompt",
        )
    return prompts

  def _check_echo(self, max_tokens: int, temperature: float) -> None:
    kind = self._ready.config.kind
    if not kind.is_decoder_only and max_tokens > (0 if temperature and kind.is_generative else 1):
      raise request_schema.FieldError(
        "max_tokens",
        f"'max_tokens' is {max_tokens}, but with 'echo' this model only scores the prompt; give max_tokens=0, or 1 "
        "with temperature=0",
      )
    if kind.has_encoder_and_decoder:
      return
    if not self._ready.reads_causally:
      raise request_schema.FieldError(
        "echo", f"'echo' is not supported, because this model reads prompts in both directions. {_SCORE}"
      )
    if self._ready.ends_prompts:
      raise request_schema.FieldError(
        "echo", f"'echo' is not supported, because this model reads EOS after each prompt. {_SCORE}"
      )

  # ---- Answers -------------------------------------------------------------

  def answer(self, request: Request) -> Iterator[Event]:
    """Yields states while waiting and generating; the answer comes last, or in pieces if streamed."""
    head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    head |= {"model": request.model}
    choices: list[dict[str, Any]] = []
    written = 0
    echoed = itertools.repeat(None)
    if request.only_reads:
      echoed = yield from self._alone(lambda: self._echoed(request))
    for number, (prompt, known) in enumerate(zip(request.prompts, echoed, strict=False)):
      numbers = range(number * request.n, (number + 1) * request.n)
      if known is None:
        rows = yield from self._write(prompt, request, numbers, head)
        told = [None] * len(rows)
        if request.logprobs is not None:
          told = yield from self._alone(functools.partial(self._told, prompt, request, rows))
      else:
        rows, told = ([each] * request.n for each in known)
      for index, row, odds in zip(numbers, rows, told, strict=True):
        choice, tokens = self._choice(prompt, request, row, odds)
        choices.append(choice | {"index": index})
        written += tokens
    read = sum(len(prompt.ids) for prompt in request.prompts)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if not request.stream:
      yield head | {"choices": choices, "usage": usage}
    elif request.include_usage:
      yield head | {"choices": [], "usage": usage}

  def _alone(self, compute: Callable[[], Any]) -> Generator[Event, None, Any]:
    """Returns the result of a computation that holds the device; yields states while it waits."""
    yield from routes.waiting(self._ready.device)
    try:
      return compute()
    finally:
      self._ready.device.release()

  def _write(
    self, prompt: engine.Prompt, request: Request, numbers: Sequence[int], head: Mapping[str, Any]
  ) -> Iterator[Event]:
    """Generates until all texts have ended or contain a stop string; returns them."""
    rows: list[engine.PartialText] = []
    stopped: dict[int, engine.PartialText] = {}
    sent = ["" for _ in numbers]
    options = {"seed": request.seed, "numbers": numbers}
    writing = yield from self._ready.enter(prompt.tokens, request.decode, request.adapter, **options)
    with contextlib.closing(writing.rows()) as partial_rows:
      for rows in partial_rows:
        yield {"state": "writing"}
        if not rows:
          continue
        for index, row in enumerate(rows):
          if index in stopped:
            continue
          text = self._ready.continued(prompt, row.tokens)
          complete = row.ended or len(row.tokens) == writing.texts[index].limit
          if complete or _cut(text, request.stop) is not None:
            stopped[index] = row
            writing.texts[index].left = True
          if request.stream:
            yield from self._piece(text, row, request, sent, index, numbers[index], head, last=index in stopped)
        if len(stopped) == len(rows):
          break
    return [stopped.get(index, row) for index, row in enumerate(rows)]

  def _piece(
    self,
    text: str,
    row: engine.PartialText,
    request: Request,
    sent: list[str],
    index: int,
    number: int,
    head: Mapping[str, Any],
    *,
    last: bool,
  ) -> Iterator[Event]:
    """Yields the new part of a text, except an end that may still become another character or a stop string."""
    end = _cut(text, request.stop)
    whole = text if end is None else text[:end]
    safe = whole if last else whole[: len(whole) - _held_back(whole, request.stop)]
    if not safe.startswith(sent[index]):
      if last:  # a token can change the text of earlier tokens
        raise UserError("streaming failed, because a later token changed the text already sent; leave out 'stream'")
      return
    new, sent[index] = safe[len(sent[index]) :], safe
    reason = _reason(row, end) if last else None
    if new or last:
      choice = {"text": new, "index": number, "logprobs": None, "finish_reason": reason}
      yield dict(head) | {"choices": [choice]} | ({"usage": None} if request.include_usage else {})

  def _echoed(self, request: Request) -> list[tuple[engine.PartialText, token_logprobs.Likelihoods]]:
    """Returns the next token, if requested, and the log-probabilities of each prompt that is only read."""
    kind, end = self._ready.config.kind, self._ready.vocabulary.eos_id
    ends = [end] if request.max_tokens and kind.is_generative else []
    read = lambda prompt: list(prompt.start) if kind.has_encoder_and_decoder else []
    pairs = [(read(prompt), [*prompt.tokens, *ends]) for prompt in request.prompts]
    found = []
    for odds in self._ready.tell(pairs, request.adapter):
      if not request.max_tokens:
        found.append((engine.PartialText([], False, 0.0), odds))
      elif not kind.is_generative:
        # A text that is given whole ends where it ends.
        after = token_logprobs.Likelihoods(
          np.zeros(1, np.float32), np.full((1, token_logprobs.TOP), end), np.zeros((1, token_logprobs.TOP))
        )
        found.append((engine.PartialText([], True, 0.0), token_logprobs.joined([odds, after])))
      else:
        row = self._ready.next_row(odds)
        found.append((row, dataclasses.replace(odds, log_p=np.append(odds.log_p[:-1], np.float32(row.score)))))
    return found

  def _told(
    self, prompt: engine.Prompt, request: Request, rows: list[engine.PartialText]
  ) -> Sequence[token_logprobs.Likelihoods]:
    """Returns the log-probabilities of the tokens of each text, EOS included; with `echo` also those of the prompt."""
    before = prompt.tokens if request.echo else []
    texts = [engine.PartialText([*before, *row.tokens], row.ended, row.score) for row in rows]
    return [
      odds for _, odds in self._ready.text_likelihoods([] if request.echo else prompt.tokens, texts, request.adapter)
    ]

  def _choice(
    self, prompt: engine.Prompt, request: Request, row: engine.PartialText, odds: token_logprobs.Likelihoods | None
  ) -> tuple[dict[str, Any], int]:
    """Returns the choice of a row, and its number of generated tokens."""
    before = len(prompt.ids) if request.echo else 0
    text, parts = self._ready.continued(prompt, row.tokens), []
    if request.echo or request.logprobs is not None or _cut(text, request.stop) is not None:
      parts = self._ready.parts(prompt, row.tokens, echo=request.echo) + [""] * row.ended
      text = "".join(parts)
    end = _cut(text, request.stop, sum(map(len, parts[:before])))
    reason, written = _reason(row, end), len(row.tokens) + row.ended
    if end is not None:
      # Tokens that begin before the stop string; the last may extend beyond it.
      offsets = _offsets(parts)
      written = sum(offset < end for offset in offsets[before:])
      parts = [text[offset : min(offset + len(part), end)] for offset, part in zip(offsets, parts, strict=True)]
      parts, text = parts[: before + written], text[:end]
    logprobs = None
    if request.logprobs is not None:
      logprobs = self._logprobs(prompt if request.echo else None, row, odds, parts, request.logprobs)
    return {"text": text, "logprobs": logprobs, "finish_reason": reason}, written

  def _logprobs(
    self,
    prompt: engine.Prompt | None,
    row: engine.PartialText,
    odds: token_logprobs.Likelihoods,
    parts: list[str],
    number: int,
  ) -> dict[str, Any]:
    """Returns an entry for each token, including EOS; null for the start token of the prompt."""
    start, tokens = (list(prompt.start), prompt.tokens) if prompt else ([], [])
    ids = [*start, *tokens, *row.tokens, self._ready.vocabulary.eos_id][: len(parts)]
    nothing, names = [None] * len(start), self._ready.token_names
    own = [*nothing, *map(float, odds.log_p)][: len(parts)]
    likeliest: list[dict[str, float] | None] = [*nothing]
    for token, part, log_p, others, of_others in zip(
      ids[len(start) :], parts[len(start) :], own[len(start) :], odds.ids, odds.log_p_of, strict=False
    ):
      # As in OpenAI's API, the token itself is included even if it is not among the likeliest.
      found = {names[int(x)]: float(y) for x, y in zip(others[:number], of_others, strict=False) if int(x) != token}
      found[names[token] if part in found else part] = log_p
      likeliest.append(dict(sorted(found.items(), key=lambda each: -each[1])))
    return {
      "tokens": parts,
      "token_logprobs": own,
      "top_logprobs": likeliest if number else None,
      "text_offset": _offsets(parts),
    }


def _offsets(parts: Sequence[str]) -> list[int]:
  """Returns the offset of each part in the joined text."""
  return [0, *itertools.accumulate(map(len, parts))][: len(parts)]


def _cut(text: str, stop: Sequence[str], start: int = 0) -> int | None:
  """Returns the index of the first stop string from `start` on, or None."""
  places = [place for each in stop if (place := text.find(each, start)) >= 0]
  return min(places, default=None)


def _held_back(text: str, stop: Sequence[str]) -> int:
  """Returns the number of characters at the end that may still change: an incomplete character, or part of a stop
  string.
  """
  half = len(text) - len(text.rstrip("\ufffd"))
  begun = [size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])]
  return max([half, *begun])


def _reason(row: engine.PartialText, end: int | None) -> str:
  return "stop" if row.ended or end is not None else "length"


def models(names: Sequence[str], created: int) -> dict[str, Any]:
  """Returns the response of `GET /v1/models`."""
  return {
    "object": "list",
    "data": [{"id": name, "object": "model", "created": created, "owned_by": "t2t"} for name in names],
  }
