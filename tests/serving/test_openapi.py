"""`/schema.json` agrees with the server: requests valid by it are accepted, and others refused."""

import functools
import json

import hypothesis
from hypothesis import strategies as st
import pytest
import test_served_commands
import test_server
import trained

from t2t import UserError
from t2t.serving import openapi, request_schema, server

pytestmark = pytest.mark.slow

ask = test_server.ask

# Contradictory options, which no schema expresses; the message names both.
_TOGETHER = (
  "beam search does not sample",
  "needs beam search",
  "turns off sampling",
  "the value of max_length",
  "several texts need sampling",
  "leave out 'best_of'",
  "without 'echo'",
  "only scores the prompt",
  "generates no text",
  "Leave out 'echo'",
  "leave out 'stream",
  "is unknown. Known models",
  ": unknown adapter",  # an adapter
  "no adapter is loaded",
  "; split the request",
  "that fit in",
)


def values(schema):
  """Generates values that are valid by a schema."""
  if "const" in schema:
    return st.just(schema["const"])
  if "enum" in schema:
    return st.sampled_from(schema["enum"])
  if "anyOf" in schema and "type" not in schema:
    return st.one_of([values(each) for each in schema["anyOf"]])
  if "oneOf" in schema:
    return st.one_of([values(each) for each in schema["oneOf"]])
  if schema["type"] == "object":
    return objects(schema)
  if schema["type"] == "array":
    return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=schema.get("maxItems", 3))
  if schema["type"] == "string":
    text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=6)
    return text.map(lambda x: f"{x}a") if schema.get("pattern") == r"\S" else text
  if schema["type"] == "integer":
    return st.integers(schema.get("minimum"), schema.get("maximum"))
  if schema["type"] == "number":
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    return st.floats(low if above is None else above, schema["maximum"], exclude_min=above is not None)
  return {"boolean": st.booleans(), "null": st.none()}[schema["type"]]


def objects(schema):
  """Generates objects with all required properties, and any of the others."""
  properties = {name: values(each) for name, each in schema["properties"].items()}
  needed = [schema["required"]]
  if "anyOf" in schema:
    needed = [[*schema["required"], *each["required"]] for each in schema["anyOf"]]
  choose = lambda names: st.fixed_dictionaries(
    {name: properties[name] for name in names},
    optional={name: each for name, each in properties.items() if name not in names},
  )
  return st.one_of([choose(names) for names in needed])


def spoiled(schema, request, draw):
  """Returns a valid request with one violation of the schema."""
  schema = draw(st.sampled_from(schema["oneOf"])) if "oneOf" in schema else schema
  name = draw(st.sampled_from(sorted(schema["properties"])))
  own = schema["properties"][name]
  kinds = [own, *own.get("anyOf", [])]
  wrong = [{"no": "object"}]
  wrong += [each["maximum"] + 1 for each in kinds if "maximum" in each]
  wrong += [each["minimum"] - 1 for each in kinds if "minimum" in each and each["minimum"] <= 0]
  wrong += [" \n" for each in kinds if each.get("pattern") == r"\S"]
  wrong += [1.5 for each in kinds if each.get("type") == "integer"]
  wrong += [["a"] * (each["maxItems"] + 1) for each in kinds if "maxItems" in each]
  missing = {key: x for key, x in request.items() if key not in schema["required"][:1]}
  if draw(st.booleans()) and schema["required"]:
    return missing
  return draw(st.sampled_from([request | {name: draw(st.sampled_from(wrong))}, request | {"no_such_field": 1}]))


def _endpoints():
  """Yields the names of all endpoints of each kind of model."""
  for kind in ("encoder_decoder", "decoder_only", "encoder_only"):
    for path in ("/generate", "/attention", "/v1/score", "/v1/completions"):
      yield f"{kind}{path}"


@functools.cache
def found(kind: str):
  if kind == "encoder_only":
    return test_served_commands.service(trained.workdir(kind), "--top=2").endpoints()
  return test_server.service(kind).endpoints()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(_endpoints()))
def test_a_request_is_taken_if_its_schema_says_so(name):
  """A request is refused if its schema refuses it; the schema over HTTP is the same."""
  kind, _, path = name.partition("/")
  endpoint = found(kind)[f"/{path}"]
  schema = openapi.document(found(kind))["paths"][f"/{path}"]["post"]["requestBody"]["content"]["application/json"]
  schema = json.loads(json.dumps(schema["schema"]))

  @hypothesis.settings(max_examples=60)
  @hypothesis.given(st.data())
  def check(data):
    request = data.draw(values(schema))
    try:
      endpoint.parse(json.dumps(request).encode())
    except UserError as error:
      assert any(each in str(error) for each in _TOGETHER), (request, str(error))
    wrong = spoiled(schema, request, data.draw)
    with pytest.raises(UserError) as refused:
      endpoint.parse(json.dumps(wrong).encode())
    assert str(refused.value) and "Traceback" not in str(refused.value)

  check()


def test_the_document_over_http():
  """OpenAPI 3.1 with every path; schemas are valid by a JSON Schema validator, if one is installed."""
  with server.make_server(test_server.service("encoder_decoder"), host="127.0.0.1", port=0) as running:
    status, _, content = ask(running.server_port, "GET", "/schema.json")
    refused = ask(running.server_port, "GET", "/schema.json", Host="evil.example")[0]
  document = json.loads(content)
  assert status == 200 and refused == 403 and document["openapi"] == "3.1.0"
  assert set(document["paths"]) == {
    *("/about", "/schema.json", "/v1/models", "/v1/models/{model}"),
    *("/generate", "/attention", "/score", "/v1/score", "/v1/completions"),
  }
  jsonschema = pytest.importorskip("jsonschema", reason="no validator of JSON Schema is installed")
  for path in document["paths"].values():
    if "post" in path:
      post = path["post"]
      jsonschema.Draft202012Validator.check_schema(post["requestBody"]["content"]["application/json"]["schema"])
      for reply in post["responses"]["200"]["content"].values():
        jsonschema.Draft202012Validator.check_schema(reply["schema"])


def test_a_whole_number_may_be_written_with_a_point():
  """JSON Schema counts 4.0 as an integer, but no boolean."""
  number = request_schema.Field("number", "integer", "", 1, 9)
  assert number.check(4.0) == 4 and isinstance(number.check(4.0), int)
  for wrong in (4.5, True, "4", float("nan"), float("inf"), 10**400):
    with pytest.raises(request_schema.FieldError, match="'number' is "):
      number.check(wrong)
