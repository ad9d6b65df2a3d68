"""`POST /v1/completions`: what programs that were written for OpenAI's API ask of a model, and get of it."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import secrets
import time
from typing import Any

from t2t import UserError, did_you_mean
from t2t.generation import choosing, decoding, endpoints, fields, likelihoods, ready
from t2t.generation.endpoints import Endpoint, Event

_MAX_PROMPTS, _MAX_CHOICES, _MAX_STOPS = 16, 16, 4
_MAX_TOKENS = _MAX_CHOICES * ready.MAX_LENGTH  # of a request: meanwhile all others wait
_LENGTH = 16  # tokens, if a request does not say: OpenAI's


def _neutral(name: str, value: float) -> fields.Field:
  return fields.Field(name, "number", f"Only {value}: nothing here is penalised.", value, value, nullable=True)


FIELDS = (
  fields.Field("prompt", "strings", "What the model reads.", 1, _MAX_PROMPTS, required=True, filled=True),
  fields.Field("model", "string", "One of GET /v1/models; without it the model itself.", nullable=True),
  fields.Field(
    "max_tokens", "integer", "Tokens at most; 0 only with echo.", 0, ready.MAX_LENGTH, nullable=True, default=_LENGTH
  ),
  fields.Field(
    "temperature",
    "number",
    "0: the likeliest token each time.",
    0,
    2,
    or_least=decoding.LEAST_TEMPERATURE,
    nullable=True,
    default=1,
  ),
  fields.Field("top_p", "number", "See /generate; nothing is drawn at temperature 0.", 0, 1, above=True, nullable=True),
  fields.Field("n", "integer", "Choices for each prompt.", 1, _MAX_CHOICES, nullable=True, default=1),
  fields.Field("best_of", "integer", "Only what n is.", 1, _MAX_CHOICES, nullable=True),
  fields.Field("stop", "strings", "A text ends before any of these.", 0, _MAX_STOPS, nullable=True),
  fields.Field("logprobs", "integer", "So many likeliest tokens at each place.", 0, likelihoods.TOP, nullable=True),
  fields.Field("echo", "boolean", "The prompt comes first, as the model read it.", nullable=True, default=False),
  fields.Field("seed", "integer", "Of what is drawn; without it each time another.", 0, 2**32 - 1, nullable=True),
  fields.Field("stream", "boolean", "Server-sent events, each with more of the text.", nullable=True, default=False),
  fields.Field("user", "string", "Is not looked at.", nullable=True),
  _neutral("frequency_penalty", 0),
  _neutral("presence_penalty", 0),
)


@dataclasses.dataclass(frozen=True)
class Request:
  """What is to be written; see `FIELDS`.

  adapter: that is asked, of the name that `model` has.
  logprobs: None: none are told.
  """

  prompts: list[str]
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


class NotFound(fields.FieldError):
  """There is no such model."""


def error(status: int, message: str, cause: Exception | None = None) -> dict[str, Any]:
  """An error as OpenAI's clients read it."""
  kinds = {401: "authentication_error", 403: "permission_error", 404: "invalid_request_error"}
  kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
  param = cause.field if isinstance(cause, fields.FieldError) else None
  code = "model_not_found" if isinstance(cause, NotFound) else None
  return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_LOGPROBS = endpoints.record(
  tokens=endpoints.listed(endpoints.TEXT),
  token_logprobs=endpoints.listed(endpoints.number()),
  top_logprobs=endpoints.listed({"type": "object", "additionalProperties": endpoints.number()}),
  text_offset=endpoints.listed(endpoints.COUNT),
)
_REPLIES = endpoints.record(
  id=endpoints.TEXT,
  object={"const": "text_completion"},
  created=endpoints.COUNT,
  model=endpoints.TEXT,
  choices=endpoints.listed(
    endpoints.record(
      text=endpoints.TEXT,
      index=endpoints.COUNT,
      logprobs={"anyOf": [_LOGPROBS, {"type": "null"}]},
      finish_reason={"enum": ["stop", "length", None]},
    )
  ),
  usage=endpoints.record(
    prompt_tokens=endpoints.COUNT, completion_tokens=endpoints.COUNT, total_tokens=endpoints.COUNT
  ),
)


class Completions:
  """Answers as OpenAI's completions do.

  Args:
    model: that writes.
    name: by which it is called; its adapters have their own.
  """

  def __init__(self, model: ready.Ready, *, name: str):
    self._ready = model
    self._adapters = {name or "t2t" if each == choosing.BASE else each: each for each in model.names}

  @property
  def models(self) -> list[str]:
    """Their names: the model's, if it can be asked by itself, and its adapters'."""
    return list(self._adapters)

  def endpoint(self) -> Endpoint:
    """What stands behind the path."""
    return Endpoint(
      "What the model writes, asked and answered as by OpenAI's API.",
      self.parse,
      self.answer,
      fields.schema(FIELDS),
      form=lambda request: endpoints.EVENTS if request.stream else endpoints.WHOLE,
      forms=(endpoints.WHOLE, endpoints.EVENTS),
      replies=_REPLIES,
    )

  # ---- Requests ------------------------------------------------------------

  def parse(self, body: bytes) -> Request:
    """The request that a JSON object makes.

    Raises:
      FieldError: what cannot be used, and what would be right.
    """
    found = fields.check(fields.read(body), FIELDS)
    if "model" not in found and choosing.BASE not in self._ready.names:
      raise fields.FieldError(
        "model", f"model: is missing, and there is no other; give one of {', '.join(self.models)}"
      )
    model = found.get("model", self.models[0])
    if model not in self._adapters:
      near = did_you_mean(model, self.models)
      raise NotFound("model", f"model: there is no {model[:60]!r}; there are {', '.join(self.models)}{near}")
    n, temperature = found.get("n", 1), found.get("temperature", 1)
    echo, logprobs, stream = found.get("echo", False), found.get("logprobs"), found.get("stream", False)
    max_tokens = found.get("max_tokens", _LENGTH)
    if found.get("best_of", n) != n:
      raise fields.FieldError("best_of", f"best_of: is {found['best_of']}; give {n}, which is n, or leave it out")
    if not max_tokens and not echo:
      raise fields.FieldError("max_tokens", "max_tokens: is 0; give 1 or more, or echo as well")
    if (total := max_tokens * n * len(found["prompt"])) > _MAX_TOKENS:
      said = f"{len(found['prompt'])} prompts with {n} choices of {max_tokens:,} tokens are {total:,}"
      raise fields.FieldError("max_tokens", f"max_tokens: {said}; {_MAX_TOKENS:,} are the most at a time")
    if echo:
      self._check_echo()
    if stream and logprobs is not None:
      raise fields.FieldError("logprobs", "logprobs: are told of whole texts alone; leave out stream, or logprobs")
    if stream and echo:
      raise fields.FieldError("echo", "echo: comes with whole texts alone; leave out stream, or echo")
    drawing = {"temperature": temperature, "top_p": found.get("top_p", 1.0)} if temperature else {}
    return Request(
      found["prompt"],
      model,
      self._adapters[model],
      decoding.DecodeConfig(max_length=max(1, max_tokens), **drawing),
      max_tokens,
      n,
      tuple(filter(None, found.get("stop", ()))),
      logprobs,
      echo,
      found.get("seed", secrets.randbelow(2**32)),
      stream,
    )

  def _check_echo(self) -> None:
    if self._ready.config.kind.reads_apart:
      raise fields.FieldError("echo", "echo: this model reads the prompt apart from what it writes; leave it out")
    if not self._ready.reads_causally:
      raise fields.FieldError(
        "echo", "echo: this model reads prompts both ways, and tells no token of one; leave it out"
      )
    if self._ready.ends_prompts:
      raise fields.FieldError("echo", "echo: this model reads an end behind each prompt; leave it out")

  # ---- Answers -------------------------------------------------------------

  def answer(self, request: Request) -> Iterator[Event]:
    """States while it waits and writes; the answer last, or pieces of it if it is streamed."""
    yield from endpoints.waiting(self._ready.device)
    try:
      head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
      head |= {"model": request.model}
      prompts = [self._read(prompt) for prompt in request.prompts]
      choices, written = [], 0
      for number, prompt in enumerate(prompts):
        numbers = range(number * request.n, (number + 1) * request.n)
        told = yield from self._write(prompt, request, numbers, head)
        written += sum(len(row.tokens) + row.ended for row in told)
        choices += [] if request.stream else self._choices(prompt, request, numbers, told)
      if not request.stream:
        read = sum(map(len, prompts))
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        yield head | {"choices": choices, "usage": usage}
    finally:
      self._ready.device.release()

  def _read(self, prompt: str) -> list[int]:
    """Its tokens.

    Raises:
      FieldError: there are more than the model reads.
    """
    tokens, cut = self._ready.prompt(prompt)
    if cut:
      number, most = len(tokens) + cut, self._ready.max_inputs
      raise fields.FieldError("prompt", f"prompt: has {number:,} tokens; this model reads {most:,} at most")
    return tokens

  def _write(
    self, prompt: list[int], request: Request, numbers: Sequence[int], head: Mapping[str, Any]
  ) -> Iterator[Event]:
    """Writes until all texts have ended, or have what stops them; returns them."""
    if not request.max_tokens:
      return [ready.Row([], False, 0.0) for _ in numbers]
    rows: list[ready.Row] = []
    stopped: dict[int, ready.Row] = {}
    sent = ["" for _ in numbers]
    options = {"seed": request.seed, "numbers": numbers}
    for rows in self._ready.write(prompt, request.decode, request.adapter, **options):
      yield {"state": "writing"}
      for index, row in enumerate(rows):
        if index in stopped:
          continue
        text = self._ready.decode(row.tokens)
        if row.ended or _cut(text, request.stop) is not None:
          stopped[index] = row
        if request.stream:
          last = index in stopped or len(row.tokens) == self._ready.room(request.decode.max_length)
          yield from self._piece(text, row, request, sent, index, numbers[index], head, last=last)
      if len(stopped) == len(rows):
        break
    return [stopped.get(index, row) for index, row in enumerate(rows)]

  def _piece(
    self,
    text: str,
    row: ready.Row,
    request: Request,
    sent: list[str],
    index: int,
    number: int,
    head: Mapping[str, Any],
    *,
    last: bool,
  ) -> Iterator[Event]:
    """What is new of a text, but for what may yet become another character, or the beginning of what stops it."""
    end = _cut(text, request.stop)
    whole = text if end is None else text[:end]
    safe = whole if last else whole[: len(whole) - _held_back(whole, request.stop)]
    if not safe.startswith(sent[index]):
      if last:  # a vocabulary that writes a token otherwise once more have come
        raise UserError("the text came out otherwise than it had begun; ask without stream")
      return
    new, sent[index] = safe[len(sent[index]) :], safe
    reason = _reason(row, end) if last else None
    if new or last:
      choice = {"text": new, "index": number, "logprobs": None, "finish_reason": reason}
      yield dict(head) | {"choices": [choice]}

  def _choices(
    self, prompt: list[int], request: Request, numbers: Sequence[int], rows: list[ready.Row]
  ) -> list[dict[str, Any]]:
    told = self._told(prompt, request, rows) if request.logprobs is not None else [None] * len(rows)
    found = []
    for number, row, logprobs in zip(numbers, rows, told, strict=True):
      text = self._ready.decode([*prompt, *row.tokens] if request.echo else row.tokens)
      start = len(self._ready.decode(prompt)) if request.echo else 0
      end = _cut(text, request.stop, start)
      text = text if end is None else text[:end]
      choice = {"text": text, "index": number, "logprobs": logprobs and _within(logprobs, len(text))}
      found.append(choice | {"finish_reason": _reason(row, end)})
    return found

  def _told(self, prompt: list[int], request: Request, rows: list[ready.Row]) -> list[dict[str, Any]]:
    """Of each text how likely its tokens were, without its end; with `echo` those of the prompt as well."""
    before = prompt if request.echo else []
    texts = [ready.Row([*before, *row.tokens], row.ended, row.score) for row in rows]
    if not any(row.tokens or row.ended for row in texts):
      return [{"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []} for _ in rows]
    names, found = self._ready.token_texts, []
    for row, (_, odds) in zip(
      texts, self._ready.told([] if request.echo else prompt, texts, request.adapter), strict=True
    ):
      parts, offsets = likelihoods.pieces(self._ready.decode, row.tokens), [0]
      for part in parts:
        offsets.append(offsets[-1] + len(part))
      # As OpenAI's: the token itself is among them, however unlikely it was.
      likeliest = [
        {names[int(other)]: float(x) for other, x in list(zip(ids, of_ids, strict=True))[: request.logprobs]}
        | {names[token]: float(own)}
        for token, own, ids, of_ids in zip(row.tokens, odds.log_p, odds.ids, odds.log_p_of, strict=False)
      ]
      number = len(row.tokens)
      found.append(
        {
          "tokens": [names[token] for token in row.tokens],
          "token_logprobs": [float(x) for x in odds.log_p[:number]],
          "top_logprobs": likeliest if request.logprobs else None,
          "text_offset": offsets[:number],
        }
      )
    return found


def _cut(text: str, stop: Sequence[str], start: int = 0) -> int | None:
  """Where the first of what stops a text begins, from `start` on; None: it is not there."""
  places = [place for each in stop if (place := text.find(each, start)) >= 0]
  return min(places, default=None)


def _held_back(text: str, stop: Sequence[str]) -> int:
  """How many characters at a text's end may yet become others: of half a character, or of what stops it."""
  half = len(text) - len(text.rstrip("\ufffd"))
  begun = [size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])]
  return max([half, *begun])


def _reason(row: ready.Row, end: int | None) -> str:
  return "stop" if row.ended or end is not None else "length"


def _within(logprobs: Mapping[str, Any], length: int) -> dict[str, Any]:
  """Those of tokens that begin before a text was cut."""
  number = sum(offset < length for offset in logprobs["text_offset"])
  return {name: x and x[:number] for name, x in logprobs.items()}


def models(names: Sequence[str], created: int) -> dict[str, Any]:
  """What `GET /v1/models` answers."""
  return {
    "object": "list",
    "data": [{"id": name, "object": "model", "created": created, "owned_by": "t2t"} for name in names],
  }
