"""Service of `t2t infer --server` for generative models: texts, token probabilities and attention maps."""

from collections.abc import Iterator
import contextlib
import dataclasses
import math
import time
from typing import Any

from t2t import UserError
from t2t.inference import adapter_routing, decoding, prompt_builder, text_generation, token_logprobs
from t2t.serving import attention_maps, engine, model_service, openai_api, request_schema, routes, scoring
from t2t.serving.routes import Endpoint, Event

_MAX_BEAMS, MAX_ROWS, _MAX_TOP_K = 16, 16, 1_000_000
_LENGTH = 64  # default of max_length


# ---- Requests --------------------------------------------------------------------------------------------------------

_ADAPTER = request_schema.Field("adapter", "string", "Adapter; default: the base model.")

# Options of `t2t infer`, and further ones.
_OPTIONS = (
  request_schema.Field("max_length", "integer", "Maximum number of new tokens.", 1, engine.MAX_LENGTH, default=_LENGTH),
  request_schema.Field(
    "min_length", "integer", "Minimum number of tokens before the text may end; 1 with beams.", 0, engine.MAX_LENGTH
  ),
  request_schema.Field("beam", "integer", "Number of beams; above 1: beam search.", 1, _MAX_BEAMS, default=1),
  request_schema.Field(
    "length_penalty",
    "number",
    "For beams: larger values favour longer texts.",
    -decoding.MOST_PENALTY,
    decoding.MOST_PENALTY,
  ),
  request_schema.Field(
    "temperature",
    "number",
    "Samples with this temperature; below 1 favours likely tokens.",
    0,
    100,
    or_least=decoding.LEAST_TEMPERATURE,
  ),
  request_schema.Field(
    "top_p", "number", "Samples from the likeliest tokens with this total probability.", 0, 1, above=True
  ),
  request_schema.Field("top_k", "integer", "Samples from the k likeliest tokens; 0: all.", 0, _MAX_TOP_K),
  request_schema.Field("seed", "integer", "Random seed of sampling.", 0, 2**32 - 1, default=0),
)
_MORE = (
  request_schema.Field("n", "integer", "Number of sampled texts.", 1, MAX_ROWS, default=1),
  request_schema.Field(
    "token_probabilities", "boolean", "Adds the probability of each token to the last line.", default=False
  ),
)
FIELDS = (
  request_schema.Field("inputs", "string", "Prompt of the model.", required=True, filled=True),
  _ADAPTER,
  *_OPTIONS,
  *_MORE,
)


@dataclasses.dataclass(frozen=True)
class WritingRequest:
  """A parsed generation request.

  adapter: selected adapter; "" for the base model.
  decode: decoding options, with the requested lengths.
  seed: of the samples.
  n: number of sampled texts.
  token_probabilities: whether to return the probability of each token.
  """

  inputs: str
  decode: decoding.DecodeConfig
  seed: int = 0
  adapter: str = ""
  n: int = 1
  token_probabilities: bool = False


def parse(body: bytes) -> WritingRequest:
  """Parses a JSON object.

  In:  b'{"inputs": "2 + 2 =", "beam": 4}'
  Out: WritingRequest("2 + 2 =", DecodeConfig(max_length=64, min_length=1, num_beams=4))

  Raises:
    UserError: the request is invalid; says how to fix it.
  """
  request_fields = request_schema.check(request_schema.read(body), FIELDS)
  request_options = {
    name: request_fields.pop(name) for name in ("seed", "adapter", "n", "token_probabilities") if name in request_fields
  }
  inputs = request_fields.pop("inputs")
  try:
    decode = text_generation.decode_config(**({"max_length": _LENGTH} | request_fields))
  except UserError as error:  # contradictory options, with the names of the command's flags
    raise UserError(str(error).replace("--", "")) from None
  if request_options.get("n", 1) > 1 and not decode.temperature:
    raise UserError(
      f"'n' is {request_options['n']}, but several texts need sampling or beam search; give temperature 1, or "
      f"beam {request_options['n']} instead of 'n'"
    )
  return WritingRequest(inputs, decode, **request_options)


@dataclasses.dataclass(frozen=True)
class Looked:
  """A parsed request of an attention map, for a prompt and a text after it."""

  map_key: attention_maps.AttentionMapKey
  inputs: str
  targets: str
  adapter: str


# ---- Service ---------------------------------------------------------------------------------------------------------

_TEXT_REPLY = routes.record(
  "The last line; earlier lines have a state, or (without beam search) the text so far.",
  prediction=routes.TEXT,
  score=routes.number(),
  tokens=routes.COUNT,
  ended=routes.record() | {"type": "boolean"},
  alternatives=routes.listed({"type": "object"}),
  token_probabilities=routes.listed(
    routes.record(
      text=routes.TEXT,
      id=routes.COUNT,
      probability=routes.number(0),
      likeliest=routes.listed(routes.record(text=routes.TEXT, probability=routes.number(0))),
    )
  ),
)


class WritingService:
  """The service of a generative model, see `routes.Service`.

  Args:
    model: on the devices.
    defaults: decoding options that the page shows first.
  """

  def __init__(self, model: engine.Ready, *, defaults: decoding.DecodeConfig):
    self._ready, self._source, self._defaults = model, model.source, defaults
    self._sizes = attention_maps.sizes(self._ready.config, self._ready.config.kind.attentions)
    self._prefixes = prompt_builder.known_prefixes(self._source)
    named = model_service.facts(self._source, next(iter(self._ready.params.values())))["checkpoint"]
    self._completions = openai_api.Completions(self._ready, name=named)

  def about(self) -> dict[str, Any]:
    defaults = self._defaults
    mode = "beam" if defaults.num_beams > 1 else "sample" if defaults.temperature else "greedy"
    shown = {"mode": mode, "max_length": defaults.max_length}
    if defaults.min_length != (mode == "beam"):  # default of a request
      shown["min_length"] = defaults.min_length
    if mode == "beam":
      shown |= {"beam": defaults.num_beams, "length_penalty": defaults.length_penalty}
    if mode == "sample":
      shown |= {name: getattr(defaults, name) for name in ("temperature", "top_p", "top_k")}
    params = self._ready.params
    return (
      model_service.facts(self._source, params.get(adapter_routing.BASE, next(iter(params.values()))))
      | model_service.adapters_of(self._ready.names)
      | {
        "asks": "write",
        "max_inputs": self._ready.max_inputs,
        "max_length": self._ready.room(engine.MAX_LENGTH),
        "defaults": shown,
        "prefixes": list(self._prefixes),
        "attention": self._sizes,
      }
    )

  def endpoints(self) -> dict[str, Endpoint]:
    kinds = [
      request_schema.schema((*self._looked_fields(kind), *attention_maps.place_fields(kind, size)))
      for kind, size in self._sizes.items()
    ]
    return {
      "/generate": Endpoint(
        "Generated text; one JSON line for each event.",
        self.parse,
        self.generate,
        request_schema.schema(FIELDS),
        replies=_TEXT_REPLY,
      ),
      "/attention": Endpoint(
        f"Attention probabilities of one layer and head; at most {attention_maps.MOST} tokens.",
        self._parse_looked,
        self._look,
        {"oneOf": kinds},
        form=lambda _: routes.WHOLE,
        forms=(routes.WHOLE,),
        replies=attention_maps.REPLIES,
      ),
      **scoring.Scoring(self._ready).endpoints(),
      "/v1/completions": self._completions.endpoint(),
    }

  @property
  def models(self) -> list[str]:
    return self._completions.models

  def parse(self, body: bytes) -> WritingRequest:
    """Parses a request, and checks its adapter."""
    request = parse(body)
    adapter_routing.named(request.adapter or None, self._ready.names, "the request")
    return request

  # ---- Texts ---------------------------------------------------------------------------------------------------------

  def generate(self, request: WritingRequest) -> Iterator[Event]:
    """Yields events until the text is complete; each has the whole text so far.

    The last event has "ended", true if the model generated EOS. Earlier events are {"state": "waiting"},
    {"state": "compiling"}, {"state": "searching"} and {"prediction": text, "tokens": number,
    "tokens_per_second": ...}.
    """
    prompt, cut = self._ready.prompts[request.adapter](request.inputs)
    if cut:
      yield {"cut": cut}
    yield from (self._search if request.decode.num_beams > 1 else self._write)(prompt, request)

  def _search(self, prompt: list[int], request: WritingRequest) -> Iterator[Event]:
    yield from routes.waiting(self._ready.device)
    try:
      seen = not self._ready.is_new(prompt, request.decode, request.adapter)
      yield {"state": "searching" if seen else "compiling"}
      start = time.monotonic()
      generation, limit = self._ready.search(prompt, request.decode, request.adapter)
    finally:
      self._ready.device.release()
    answer_fields = prompt_builder.answer(generation, self._ready.vocabulary)
    rows = [
      engine.PartialText(tokens, len(tokens) < limit, score)
      for tokens, score in zip(generation.tokens, generation.scores, strict=True)
    ]
    number = len(rows[0].tokens) + rows[0].ended
    speed = {"tokens_per_second": number / (time.monotonic() - start)} if seen else {}
    texts = [answer_fields, *answer_fields.get("alternatives", [])]
    yield from self._tell(prompt, request, rows[: len(texts)], texts)
    yield answer_fields | speed | {"tokens": number, "ended": rows[0].ended}

  def _write(self, prompt: list[int], request: WritingRequest) -> Iterator[Event]:
    writing = yield from self._ready.enter(
      prompt, request.decode, request.adapter, seed=request.seed, numbers=range(request.n)
    )
    first, before, event, rows = None, 0, {}, []
    with contextlib.closing(writing.rows()) as written:
      for rows in written:
        if not rows:
          yield {"state": "waiting"}
          continue
        number = sum(len(row.tokens) + row.ended for row in rows)
        event = _event(self._ready.decode(rows[0].tokens), len(rows[0].tokens) + rows[0].ended)
        if first is None:
          first, before = time.monotonic(), number  # excludes the prompt and compilation
        else:
          event["tokens_per_second"] = (number - before) / (time.monotonic() - first)
        if all(row.ended or len(row.tokens) == text.limit for row, text in zip(rows, writing.texts, strict=True)):
          break
        # Drops an incomplete multi-byte character.
        yield event | {"prediction": event["prediction"].rstrip("\ufffd")}
    texts = [_event(self._ready.decode(row.tokens), len(row.tokens) + row.ended) for row in rows]
    for text, row in zip(texts, rows, strict=True):
      text |= {"score": prompt_builder.rounded(row.score), "ended": row.ended}
    yield from self._tell(prompt, request, rows, texts)
    yield event | texts[0] | ({"alternatives": texts[1:]} if len(texts) > 1 else {})

  def _tell(
    self, prompt: list[int], request: WritingRequest, rows: list[engine.PartialText], texts: list[dict[str, Any]]
  ) -> Iterator[Event]:
    """Adds token probabilities to each text, if requested."""
    if not request.token_probabilities:
      return
    yield from routes.waiting(self._ready.device)
    try:
      yield {"state": "telling"}
      likelihoods = self._ready.text_likelihoods(prompt, rows, request.adapter)
    finally:
      self._ready.device.release()
    for text, (ids, token_likelihoods) in zip(texts, likelihoods, strict=True):
      text["token_probabilities"] = self._of_tokens(ids, token_likelihoods)

  def _of_tokens(self, ids: list[int], token_likelihoods: token_logprobs.Likelihoods) -> list[dict[str, Any]]:
    names = self._ready.token_texts
    ended = bool(ids) and ids[-1] == self._ready.vocabulary.eos_id
    texts = token_logprobs.pieces(self._ready.decode, ids[:-1] if ended else ids) + ([""] if ended else [])
    share = lambda log_p: prompt_builder.rounded(min(1.0, float(math.exp(log_p))))
    return [
      {
        "text": text,
        "id": token,
        "probability": share(log_p),
        "likeliest": [
          {"text": names[int(other_id)], "probability": share(x)}
          for other_id, x in zip(other_ids, of_others, strict=True)
        ],
      }
      for text, token, log_p, other_ids, of_others in zip(
        texts, ids, token_likelihoods.log_p, token_likelihoods.ids, token_likelihoods.log_p_of, strict=True
      )
    ]

  # ---- Attention -----------------------------------------------------------

  def _looked_fields(self, kind: str) -> tuple[request_schema.Field, ...]:
    inputs = request_schema.Field("inputs", "string", "Prompt of the model.", required=True, filled=True)
    targets = request_schema.Field("targets", "string", "Text after the prompt, as far as it is read.", default="")
    return (inputs, _ADAPTER) if kind == "encoder" else (inputs, targets, _ADAPTER)

  def _parse_looked(self, body: bytes) -> Looked:
    request_values = request_schema.read(body)
    map_key = attention_maps.taken(request_values, self._sizes)
    checked = request_schema.check(request_values, self._looked_fields(map_key.which))
    adapter = checked.get("adapter", "")
    adapter_routing.named(adapter or None, self._ready.names, "the request")
    return Looked(map_key, checked["inputs"], checked.get("targets", ""), adapter)

  def _look(self, request: Looked) -> Iterator[Event]:
    yield from routes.waiting(self._ready.device)
    try:
      prompts = self._ready.prompts[request.adapter]
      (prompt, _), targets = prompts(request.inputs), prompts.encode(request.targets)
      yield self._ready.attention_map(prompt, list(map(int, targets)), request.map_key, request.adapter)
    finally:
      self._ready.device.release()


def _event(text: str, tokens: int) -> Event:
  return {"prediction": text, "tokens": tokens}
