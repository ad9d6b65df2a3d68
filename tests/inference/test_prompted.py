"""`t2t infer --template`: lines with the fields of a template get the label of a word, or a text."""

import json

from etils import epath
import numpy as np
import pytest
import toy
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.inference import jsonl_io, prompted

TEMPLATES = """
[pick.answer]
text = "{left} or {right}? {blank}"
words = {first = ["{left}", "one"], second = "{right}"}

[pick.indexed]
text = "{both[1]} {both[0]}"

[talk.bars]
turns = {user = "| {content}", assistant = "> {content}"}
"""
LINES = [{"left": "quick", "right": "brown fox"}, {"left": "dogs " * 30, "right": "a", "id": 7}]


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "pick.toml"
  path.write_text(TEMPLATES)
  return path


def chosen(spec, **data):
  """Returns the template that a model with these keys of config.data reads."""
  source = pretrained.Source(path=epath.Path("m"), model=toy.decoder(), run={"data": data}, vocabulary="")
  return prompted.choose(source, spec)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_a_line_gets_the_label_of_its_likeliest_words(architecture, file, tmp_path):
  lines, output = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
  lines.write_text("".join(json.dumps(line) + "\n" for line in LINES))
  options = ["infer", "--checkpoint", str(trained.workdir(architecture)), "--input", str(lines)]
  assert command.main([*options, "--output", str(output), "--template", f"{file}:answer"]) == 0
  rows = [json.loads(row) for row in output.read_text().splitlines()]
  for row, line in zip(rows, LINES, strict=True):
    assert row.items() >= line.items()
    assert list(row["probabilities"]) == ["first", "second"]
    assert row["prediction"] == max(row["probabilities"], key=row["probabilities"].get)
    np.testing.assert_allclose(sum(row["probabilities"].values()), 1, atol=1e-4)
  assert ["cut" in row for row in rows] == [False, True]


def test_a_template_is_that_of_the_option_or_of_the_training(file):
  assert chosen("") is None
  assert chosen(f"{file}:answer") == chosen(f"{file}:pick.answer") == chosen("answer", templates=str(file))
  trained_on = {"templates": str(file), "mixture": "pick"}
  assert chosen("", **trained_on, template_names=("indexed",)).name == "indexed"
  assert chosen("", templates=str(file), mixture="talk") is None  # conversations have no fields


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    (
      "",
      "--template FILE: the file has 3 templates that fit. Give one of them as --template FILE:TASK.NAME: pick.answ",
    ),
    (":answr", "--template FILE:answr: the file has no template answr.*; did you mean answer?"),
    (":pick.middle", "the file has no template pick.middle"),
    (":bars", r"\[talk.bars\]: turns are of conversations"),
  ],
)
def test_unknown_and_ambiguous_names(spec, message, file):
  with pytest.raises(UserError, match=message.replace("FILE", str(file))):
    chosen(f"{file}{spec}")


def test_a_missing_file_is_named():
  with pytest.raises(UserError, match="--template gpt3_superglu: cannot be read .*, or one of gpt3_superglue"):
    chosen("gpt3_superglu")


@pytest.mark.parametrize(
  ("name", "line", "message"),
  [
    (
      "answer",
      {"left": "a"},
      r"line 1 has no field 'right' \(fields: 'left'\), but .*pick.answer\] reads 'left', 'right'",
    ),
    ("answer", {"left": "a", "right": ["b"]}, r"line 1: field 'right' is \"\['b'\]\", but .* reads a text"),
    ("answer", {"inputs": "a"}, "line 1 has no field|line 1: field 'left' is missing"),
    ("indexed", {"both": ["a"]}, r"line 1: field 'both' is .*, but .* reads a list of 2 or more texts"),
  ],
)
def test_a_line_without_a_field_is_named(name, line, message, file, tmp_path):
  template, path = chosen(f"{file}:{name}"), tmp_path / "lines.jsonl"
  path.write_text(json.dumps(line) + "\n")
  fields = prompted.LineFields(template, size=len, limit=99)
  with pytest.raises(UserError, match=message):
    for read in jsonl_io.read(str(path), form=prompted.line_form(template)):
      fields.check(read, jsonl_io.location(str(path), read.number))
