"""`POST /v1/score` and `/score`: log-probabilities of given targets, equal to `t2t.load(...).score`."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from t2t.inference import adapter_routing
from t2t.serving import encoder_scores, engine, request_schema, routes
from t2t.serving.routes import Endpoint, Event

_MAX_PAIRS = 128  # limited by the number of texts, see `request_schema.read`

FIELDS = (
  request_schema.Field(
    "inputs", "strings", 'Inputs, one for each target; may be "" without an encoder-decoder.', 1, _MAX_PAIRS
  ),
  request_schema.Field(
    "targets", "strings", "Text to score after the input.", 1, _MAX_PAIRS, required=True, filled=True
  ),
  request_schema.Field("adapter", "string", "Adapter; default: the base model.", nullable=True),
)

_REPLIES = routes.record(
  "One entry for each pair.",
  scores=routes.listed(routes.number()),
  is_greedy=routes.listed({"type": "boolean"}),
  tokens=routes.listed(routes.listed(routes.TEXT)),
  token_logprobs=routes.listed(routes.listed(routes.number())),
)


class TooLong(request_schema.FieldError):
  """A text has more tokens than the model reads."""


@dataclasses.dataclass(frozen=True)
class ScoringRequest:
  """Token ids of each pair, including EOS of prompt and target, and the selected adapter."""

  pairs: list[tuple[list[int], list[int]]]
  adapter: str


class Scoring:
  """Scores targets; with an encoder by pseudo-log-likelihoods.

  Args:
    model: used for scoring.
  """

  def __init__(self, model: engine.Ready | encoder_scores.EncoderScores):
    self._ready = model
    needed = dataclasses.replace(FIELDS[0], required=True, filled=model.config.kind.has_encoder_and_decoder)
    self._fields = (needed, *FIELDS[1:])

  def endpoints(self) -> dict[str, Endpoint]:
    """Returns the endpoint by its paths."""
    return dict.fromkeys(("/score", "/v1/score"), self._endpoint())

  def _endpoint(self) -> Endpoint:
    return Endpoint(
      "Log-probability of each target given its input, in nats, summed over its tokens.",
      self.parse,
      self.answer,
      request_schema.schema(self._fields),
      form=lambda _: routes.WHOLE,
      forms=(routes.WHOLE,),
      replies=_REPLIES,
    )

  def parse(self, body: bytes) -> ScoringRequest:
    """Parses a JSON object.

    In:  b'{"inputs": ["2 + 2 ="], "targets": ["4"]}'

    Raises:
      FieldError: the request is invalid; says how to fix it.
    """
    request_fields = request_schema.check(request_schema.read(body), self._fields)
    inputs, targets, adapter = request_fields["inputs"], request_fields["targets"], request_fields.get("adapter", "")
    adapter_routing.named(adapter or None, self._ready.names, "the request")
    if len(inputs) != len(targets):
      message = f"there are {len(targets)} targets for {len(inputs)} inputs"
      raise request_schema.FieldError("targets", f"{message}; give one target for each input")
    return ScoringRequest([self._pair(*pair, adapter) for pair in zip(inputs, targets, strict=True)], adapter)

  def _pair(self, input_text: str, target_text: str, adapter: str) -> tuple[list[int], list[int]]:
    """Returns the token ids of an input and its target.

    Raises:
      TooLong: they have more tokens than the model reads.
    """
    vocabulary, reads_apart = self._ready.vocabulary, self._ready.config.kind.has_encoder_and_decoder
    prompt = self._ready.read(input_text, adapter).tokens
    target = [*self._ready.prompts[adapter].encode(target_text), *([vocabulary.eos_id] if reads_apart else [])]
    longest = self._ready.longest_text
    limits = [("targets", len(target), longest), ("inputs", len(prompt), self._ready.max_inputs)]
    if not reads_apart:
      limits = [("inputs", len(prompt) + len(target), longest)]
    for name, number, most in limits:
      if number > most:
        message = f"{name!r} has {number:,} tokens" + ("" if reads_apart else " including the target")
        raise TooLong(name, f"{message}, more than {most:,}, the maximum of this model; shorten the text")
    return prompt, target

  def answer(self, request: ScoringRequest) -> Iterator[Event]:
    """Yields states while waiting and scoring; the answer comes last."""
    yield from routes.waiting(self._ready.device)
    try:
      reply: dict[str, list[Any]] = {"scores": [], "is_greedy": [], "tokens": [], "token_logprobs": []}
      yield {"state": "scoring"}
      found = self._ready.tell(request.pairs, request.adapter)
      for (_, target), odds in zip(request.pairs, found, strict=True):
        reply["scores"].append(float(odds.log_p.sum(dtype="float64")))
        reply["is_greedy"].append(bool((odds.log_p >= odds.log_p_of[:, 0]).all()))
        reply["tokens"].append([self._ready.token_names[token] for token in target])
        reply["token_logprobs"].append(list(map(float, odds.log_p)))
      yield reply
    finally:
      self._ready.device.release()
