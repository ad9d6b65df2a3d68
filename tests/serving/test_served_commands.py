"""Server for models that do not generate: answers equal those of `t2t infer` for a line."""

import functools
import json
import pathlib
import re

import pytest
import test_classification
import test_server
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.commands import infer
from t2t.inference import head_predictor, text_generation
from t2t.serving import html_page, model_service, server

pytestmark = pytest.mark.exhaustive

several = test_classification.several  # fixture


def service(checkpoint, *options) -> model_service.Asker:
  """Builds the service as the command does."""
  parsed = infer._parser().parse_args(["--checkpoint", str(checkpoint), "--server", *options])
  return infer._service(
    parsed, pretrained.read_source(str(checkpoint)), {}, text_generation.decode_config(max_length=64)
  )


def row(checkpoint, line, folder: pathlib.Path, *options) -> dict:
  """Returns the row that the command writes for a line."""
  (folder / "in.jsonl").write_text(json.dumps(line))
  files = ["--input", str(folder / "in.jsonl"), "--output", str(folder / "out.jsonl")]
  assert command.main(["infer", "--checkpoint", str(checkpoint), *files, *options]) == 0
  return json.loads((folder / "out.jsonl").read_text())


def values(fields: dict) -> dict:
  """Returns the prediction, and score and probabilities as lists."""
  kept = {name: x for name, x in fields.items() if name in ("prediction", "score", "probabilities")}
  return {name: list(x.values()) if isinstance(x, dict) else x for name, x in kept.items()}


@pytest.mark.parametrize("head", ["pair", "copa"])  # a number is handled like a class
def test_a_head_answers_as_for_a_line(head, several, tmp_path):
  """The last event has the fields of a row; `about` has the kind of answer."""
  asker = service(several, f"--head={head}")
  about = asker.about()
  kind = {"pair": "class", "copa": "choice"}[head]
  assert (about["asks"], about["pairs"], about["max_inputs"], about["head"]) == (kind, True, 72, head)
  line = {name: x for name, x in test_classification.LINES[head][3].items() if name != "id"}
  *before, found = asker.generate(asker.parse(json.dumps(line).encode()))
  assert {"state": "compiling"} in before and found["ended"]
  *before, again = asker.generate(asker.parse(json.dumps(line).encode()))
  assert {"state": "compiling"} not in before and again == found
  expected = row(several, line, tmp_path, f"--head={head}", "--batch_size=1")
  for name, value in values(expected).items():
    assert values(found)[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), name


def test_blanks_are_filled_over_http(tmp_path):
  """The server sends a line for each event; a text without a blank gets instructions."""
  checkpoint = trained.workdir("encoder_only")
  asker = service(checkpoint, "--top=4")
  with server.make_server(asker, host="127.0.0.1", port=0) as running:
    ask = functools.partial(test_server.ask, running.server_port, "POST", "/generate")
    about = json.loads(test_server.ask(running.server_port, "GET", "/about")[2])
    filled = [json.loads(line) for line in ask({"inputs": "the [MASK] fox" + "x" * 50})[2].splitlines()]
    without = [json.loads(line) for line in ask({"inputs": "the fox"})[2].splitlines()]
    status, _, refused = ask({"inputs": "the fox", "beam": 3})
  assert about["asks"] == "fill" and not about["pairs"]
  assert filled[0] == {"cut": 12} and len(filled[-1]["fillings"][0]) == 4 and filled[-1]["tokens"] == 48
  expected = row(checkpoint, {"inputs": "the [MASK] fox" + "x" * 50}, tmp_path, "--top=4")
  assert filled[-1]["prediction"] == expected["prediction"]
  assert without[-1] == {"error": "the request: no blank; put [MASK] in place of each missing word"}
  assert status == 400 and "'beam' is an unknown field; give one of inputs" in json.loads(refused)["error"]


@pytest.mark.parametrize(
  ("body", "message"),
  [
    (b"[]", "not a JSON object"),
    (b"{}", "'inputs' is missing; give a text"),
    (b'{"inputs": " "}', "'inputs' is empty; give a text"),
    (b'{"inputs": 3}', "'inputs' is a number; give a text"),
    (b'{"parts": "a", "candidates": ["b"]}', "field 'parts' is \"a\", not a list of texts; give a list"),
    (b'{"inputs": "a"}', "the request has no field 'candidates'"),
    (b'{"inputs": "a", "candidates": [1]}', "field 'candidates' is [1], not a list of texts; give a list"),
  ],
)
def test_a_bad_request_says_why(body, message, several):
  asker = _choice(several)
  with pytest.raises(UserError, match=re.escape(message)):
    asker.parse(body)


@functools.cache
def _choice(checkpoint) -> model_service.Asker:
  return service(checkpoint, "--head=copa")


def test_the_page_shows_every_kind_of_answer():
  """The page's table has every kind of model."""
  table = html_page.page()[0].decode().partition("const WAYS = {")[2].partition("\n};")[0]
  assert set(re.findall(r"^  (\w+): \{", table, re.MULTILINE)) == {"write", "fill", *head_predictor.KINDS}
