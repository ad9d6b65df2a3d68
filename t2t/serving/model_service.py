"""Service of `t2t infer --server` for models that do not generate; requests are handled like lines of a file."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import functools
import json
import math
import pathlib
from typing import Any

import jax

from t2t import UserError
from t2t.checkpoints import multi_adapter, pretrained
from t2t.inference import adapter_routing, batch_inference, jsonl_io, predictor, row_batches
from t2t.param_tree import Params
from t2t.runtime import amounts
from t2t.serving import attention_maps, encoder_scores, engine, openai_api, request_schema, routes, scoring
from t2t.serving.routes import Endpoint, Event
from t2t.storage import encoding


def facts(source: pretrained.Source, params: Params) -> dict[str, Any]:
  """Returns the facts that the page shows of any model."""
  number = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
  path = pathlib.PurePosixPath(source.name)
  # Only the name, because clients must not see the path.
  run, step = (path.parent.parent.name, path.name) if path.parent.name == "checkpoints" else (path.name, "")
  return {
    "architecture": source.model.architecture.replace("_", "-"),
    "parameters": amounts.compact_count(number),
    "checkpoint": run,
    "step": int(step) if step.isdigit() else None,
  }


def adapters_of(names: Iterable[str]) -> dict[str, Any]:
  """Returns the adapters that a request may select, in the format of the page."""
  found = [name for name in names if name != adapter_routing.BASE]
  return {"adapters": found} if found else {}


class Asker:
  """Serves a model whose requests are handled like lines of a file.

  Args:
    source: its checkpoint.
    make_way: builds its way on a mesh.
    adapters: of the model, see `multi_adapter.open_all`; the way routes between them.
    tensor: number of devices that share the model.
  """

  def __init__(
    self,
    source: pretrained.Source,
    make_way: Callable[[jax.sharding.Mesh], batch_inference.Way],
    *,
    adapters: Mapping[str, pretrained.Source] | None = None,
    tensor: int = 1,
  ):
    from t2t.data import vocabularies

    mesh = engine.make_mesh(tensor)
    self._source, self._way, self._adapters = source, make_way(mesh), adapters or {}
    of_all = multi_adapter.load(source, self._adapters, mesh)
    self._base = of_all[adapter_routing.BASE]
    self._params = of_all if adapters else self._base
    self._device, self._widths = routes.Turns(), set()
    self._mesh, self._vocabulary = mesh, pretrained.vocabulary(source)
    self._token_texts = vocabularies.token_texts(self._vocabulary)
    self._maps = functools.cache(self._make_maps)
    self._sizes = attention_maps.sizes(source.model, (source.model.kind.answers,))
    self._scores = None
    if not adapters and _scores_texts(source, self._vocabulary):
      self._scores = encoder_scores.EncoderScores(source, self._base, mesh, self._device)

  def about(self) -> dict[str, Any]:
    found = facts(self._source, self._base) | adapters_of(self._adapters)
    head = {"head": self._way.options["head"]} if "head" in self._way.options else {}
    found |= head | {"asks": self._way.asks, "pairs": self._way.pairs, "max_inputs": self._way.longest}
    return found | {"attention": self._sizes}

  def endpoints(self) -> dict[str, Endpoint]:
    (which, size), form = next(iter(self._sizes.items())), _form_schema(self._way, list(self._adapters))
    place = request_schema.schema(attention_maps.place_fields(which, size))
    looked = form | {"properties": place["properties"] | form["properties"], "required": ["which", *form["required"]]}
    return {
      "/generate": Endpoint("Prediction of the model; one JSON line for each event.", self.parse, self.generate, form),
      "/attention": Endpoint(
        f"Attention probabilities of one layer and head; at most {attention_maps.MOST} tokens.",
        self._parse_looked,
        self._look,
        looked,
        form=lambda _: routes.WHOLE,
        forms=(routes.WHOLE,),
        replies=attention_maps.REPLIES,
      ),
      **self._scoring_endpoints(),
    }

  def _scoring_endpoints(self) -> dict[str, Endpoint]:
    if self._scores is None:
      return {}
    completions = openai_api.Completions(self._scores, name=self.about()["checkpoint"])
    return {**scoring.Scoring(self._scores).endpoints(), "/v1/completions": completions.endpoint()}

  @property
  def models(self) -> list[str]:
    return [self.about()["checkpoint"], *self._adapters]

  def parse(self, body: bytes) -> jsonl_io.Line:
    """Returns the line of a JSON object, like a line of a file.

    In:  b'{"parts": ["a", "b"], "candidates": ["c", "d"]}'
    Out: Line(1, "a b", {"parts": ["a", "b"], "candidates": ["c", "d"]})

    Raises:
      UserError: the request is invalid; says how to fix it.
    """
    return self._line(request_schema.read(body))

  def _line(self, given: dict[str, Any]) -> jsonl_io.Line:
    where, form = "the request", self._way.form
    known = tuple(dict.fromkeys((form.field, *form.lists, *form.needs, *form.may, *form.columns)))
    for name in given:
      if name not in known:
        raise UserError(f"{name!r} is an unknown field; give one of {', '.join(known)}")
    ways = [name for name in (form.field, *form.lists) if name in given]
    columns = [name for name in form.columns if name in given]
    own = [name for name in columns if name not in (form.field, *form.lists, *form.needs, *form.may)]
    if len(ways) + bool(own) > 1:
      both = " and ".join(repr(name) for name in (*ways, *own[:1]))
      raise UserError(f"{both} both give the text; give only one of these fields")
    text = given.pop(form.field, None)
    for name in form.lists:
      if text is None and name in given:
        text = " ".join(jsonl_io.texts(given, name, where))
    if text is None and own:
      if missing := [name for name in form.columns if given.get(name) is None]:
        raise UserError(f"{missing[0]!r} is missing; give {', '.join(map(repr, form.columns))}, or only {form.field!r}")
      text = " ".join(x if isinstance(x, str) else json.dumps(x) for x in map(given.get, form.columns))
    called = own[0] if own else form.field
    if isinstance(text, str) and (reason := encoding.unpaired_surrogate(text)):
      raise UserError(f"{called!r} {reason}")
    if text is not None and not isinstance(text, str):
      raise UserError(f"{called!r} is {jsonl_io.json_kind(text)}; give a text")
    if text is None or not text.strip():
      raise UserError(f"{called!r} is {'missing' if text is None else 'empty'}; give a text")
    line = jsonl_io.Line(1, text, given)
    self._way.check(line, where)
    return line

  def generate(self, request: jsonl_io.Line) -> Iterator[Event]:
    """Yields events until the answer, see `text_predictor.WritingService.generate`; the last event has the fields of a
    row.
    """
    yield from routes.waiting(self._device)
    try:
      asked = self._way.read(request)
      if asked.error:
        raise UserError(f"the request: {asked.error}; {batch_inference.REMEDIES[asked.error]}")
      if asked.cut:
        yield {"cut": asked.cut}
      width = predictor.bucket(asked.tokens - asked.cut, self._way.longest)
      if width not in self._widths:
        yield {"state": "compiling"}
        self._widths.add(width)
      (answer,) = self._way.answer(self._params, [asked.given], numbers=[0], done=None)
      yield answer | {"tokens": asked.tokens - asked.cut, "ended": True}
    finally:
      self._device.release()

  # ---- Attention -----------------------------------------------------------

  def _parse_looked(self, body: bytes) -> tuple[attention_maps.AttentionMapKey, jsonl_io.Line]:
    given = request_schema.read(body)
    return attention_maps.taken(given, self._sizes), self._line(given)

  def _look(self, request: tuple[attention_maps.AttentionMapKey, jsonl_io.Line]) -> Iterator[Event]:
    place, line = request
    yield from routes.waiting(self._device)
    try:
      asked, name = self._way.read(line), line.others.get(adapter_routing.FIELD, adapter_routing.BASE)
      # A text without a blank has a map, too.
      if asked.given is None:
        raise UserError(f"the request: {asked.error}; {batch_inference.REMEDIES[asked.error]}")
      example = _example(asked.given[1] if self._adapters and not asked.error else asked.given)
      tokens = attention_maps.named(example["inputs"], self._token_texts)
      width = attention_maps.width(len(tokens), self._model(name).config, place.which)
      batch = row_batches.features_of([example], width, side=place.which, pad_id=max(self._vocabulary.pad_id, 0))
      params = self._params[name] if self._adapters else self._params
      yield self._maps(name)(params, batch, place, tokens={place.which: tokens})
    finally:
      self._device.release()

  def _model(self, name: str) -> pretrained.PretrainedModel:
    return pretrained.abstract(self._adapters.get(name, self._source), self._mesh)

  def _make_maps(self, name: str) -> attention_maps.Maps:
    return attention_maps.Maps(self._model(name).graphdef, self._mesh)


def _scores_texts(source: pretrained.Source, vocabulary: Any) -> bool:
  """Returns whether a model is an encoder that predicts masked tokens."""
  from t2t.data import vocabularies

  has_mask = vocabularies.find_mask_id(vocabulary) is not None
  detects = any(head.kind == "detector" for head in source.model.heads)
  return not source.model.kind.is_generative and has_mask and not detects and pretrained.predicts_tokens(source)


def _example(given: Any) -> row_batches.Example:
  """Returns the row of a way's input: ids with blanks, features, or the first of several windows."""
  if isinstance(given, Mapping):
    return given["windows"][0] if "windows" in given else given
  return {"inputs": given}


def _form_schema(way: batch_inference.Way, adapters: list[str]) -> dict[str, Any]:
  """Returns the JSON Schema of a line's object."""
  form = way.form
  text = request_schema.Field(form.field, "string", "The text.", filled=True).schema()
  several = {"type": "array", "items": {"type": "string"}, "minItems": 1}
  bounds = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
  kinds = {"context": {"type": "string"}, jsonl_io.ADAPTER: {"enum": adapters}}
  kinds["spans"] = {"type": "array", "items": bounds, "minItems": 2, "maxItems": 2}
  properties = {form.field: text} | {name: several for name in form.lists}
  properties |= {name: kinds.get(name, several) for name in (*form.needs, *form.may)}
  column = {"type": ["string", "number", "array", "object"]}  # as in the table that the model was fine-tuned on
  properties |= {name: column for name in form.columns if name not in properties}
  found = {"type": "object", "properties": properties, "additionalProperties": False, "required": list(form.needs)}
  if form.columns:  # a row of its table, or a text
    return found | {"required": []}
  if not form.lists:
    return found | {"required": [form.field, *form.needs]}
  return found | {"anyOf": [{"required": [name]} for name in (form.field, *form.lists)]}
