"""`t2t infer --template`: lines with the fields of a template get the label of a word, or a text."""

import json
import textwrap

from etils import epath
import numpy as np
import pytest
import toy
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.inference import jsonl_io, option_scores, prompted

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


TASKS = """
  import seqio
  import tensorflow as tf
  from t2t.data import postprocessors, preprocessors
  from t2t.evaluation import task_metrics

  LEFT, RIGHT = ["quick", "dogs jump", "fox"], ["brown fox", "a", "lazy dog"]

  def records(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices({"left": LEFT, "right": RIGHT})

  def labels(dataset):
    return dataset.map(lambda x: {**x, "inputs": x["left"], "targets": "first", "options": ["first", "second"]})

  def texts(dataset):
    return dataset.map(lambda x: {**x, "inputs": x["left"], "targets": x["left"], "options": [x["left"], x["right"]]})

  for name, make in (("pick", labels), ("name", texts)):
    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(records, splits=("train", "validation"), num_input_examples={"train": 3}),
      preprocessors=preprocessors.text_to_text(make),
      output_features=preprocessors.t5_features(),
      postprocess_fn=postprocessors.text(),
      metric_fns=[task_metrics.accuracy],
    )
"""
RANKED = """
[pick.words]
text = "{left} or {right}? {blank}"
words = {first = ["{left}", "one"], second = "{right}"}
[pick.inside]
text = "{left} {blank}, {right}"
words = {first = "yes", second = ["no", "never"]}
[name.candidates]
text = "Which is it, {left} or {right}? {blank}"
[name.inside]
text = "{left} and {right}: {blank} was it."
"""
ITEMS = [("quick", "brown fox"), ("dogs jump", "a"), ("fox", "lazy dog")]


@pytest.fixture(scope="module")
def module(tmp_path_factory):
  """Returns a file that registers two tasks with the items, as labels and as texts; a process imports it once."""
  path = tmp_path_factory.mktemp("tasks") / "items.py"
  path.write_text(textwrap.dedent(TASKS))
  return path


@pytest.mark.slow
@pytest.mark.parametrize(
  ("architecture", "names"),
  [
    ("decoder_only", ("name.candidates", "name.inside", "pick.words", "pick.inside")),
    # Bytes have no sentinel for a blank inside the text.
    pytest.param("encoder_decoder", ("name.candidates", "pick.words"), marks=pytest.mark.exhaustive),
  ],
)
def test_lines_have_the_scores_of_the_evaluation(architecture, names, module, tmp_path, monkeypatch):
  """Words and candidates of lines have the scores that `t2t eval` gives to the options of the same examples."""
  (tmp_path / "ranked.toml").write_text(RANKED)
  scored = []
  rank = option_scores.Ranker.__call__

  def recorded(*args, **how):
    scores = rank(*args, **how)
    scored.append(list(scores))  # the evaluation replaces the scores of words by those of labels
    return scores

  monkeypatch.setattr(option_scores.Ranker, "__call__", recorded)
  checkpoint = f"--checkpoint={trained.workdir(architecture)}"
  arguments = ["eval", checkpoint, f"--workdir={tmp_path / 'eval'}", "--config.data.mixture=pick,name"]
  arguments += [f"--config.data.task_modules={module}", "--config.data.inputs_length=64"]
  arguments += [f"--config.data.templates={tmp_path / 'ranked.toml'}", "--config.eval.method=rank"]
  arguments += [f"--config.data.template_names={','.join(name.partition('.')[2] for name in names)}"]
  assert command.main([*arguments, "--config.data.targets_length=24"]) == 0
  expected = dict(zip(names, scored, strict=True))
  for name, scores in expected.items():
    lines, output = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.out.jsonl"
    candidates = lambda pair, name=name: {"candidates": list(pair)} if name.startswith("name") else {}
    fields = [{"left": left, "right": right} | candidates((left, right)) for left, right in ITEMS]
    lines.write_text("".join(json.dumps(line) + "\n" for line in fields))
    scored.clear()
    options = ["infer", checkpoint, f"--input={lines}", f"--output={output}"]
    assert command.main([*options, f"--template={tmp_path / 'ranked.toml'}:{name}"]) == 0
    (found,) = scored
    for of_line, of_example in zip(found, scores, strict=True):
      np.testing.assert_allclose(of_line, of_example, rtol=1e-5, atol=1e-4)
    rows = [json.loads(row) for row in output.read_text().splitlines()]
    # The only template of a task has no name there.
    (predicted,) = (tmp_path / "eval" / "predictions").glob(f"{name if len(names) > 2 else name.partition('.')[0]}.v*")
    results = [json.loads(line) for line in predicted.read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [result["value"] for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_decoder_ranks_or_generates_by_line(kind, tmp_path):
  """A line of text is the only field; lines with candidates are ranked, and a text is generated for others."""
  (tmp_path / "one.toml").write_text(
    '[a.words]\ntext = "{topic} is {blank}"\nwords = {good = "quick", bad = "lazy"}\n'
    '[a.free]\ntext = "{topic}: {blank}"\n'
  )
  lines = tmp_path / f"lines.{kind}"
  topics = ["fox", "dog"]
  fields = [{"topic": "fox", "candidates": ["quick", "lazy"]}, {"topic": "dog"}]
  lines.write_text(
    "".join(f"{x}\n" if kind == "txt" else f"{json.dumps(y)}\n" for x, y in zip(topics, fields, strict=True))
  )
  options = ["infer", f"--checkpoint={trained.workdir('decoder_only')}", f"--input={lines}"]
  rows = {}
  for name in ("words", "free"):
    output = tmp_path / f"{name}.jsonl"
    assert command.main([*options, f"--output={output}", f"--template={tmp_path / 'one.toml'}:{name}"]) == 0
    rows[name] = [json.loads(row) for row in output.read_text().splitlines()]
  assert all(list(row["probabilities"]) == ["good", "bad"] for row in rows["words"])
  ranked, generated = rows["free"]
  assert ("probabilities" in ranked) == (kind == "jsonl") and "probabilities" not in generated
  if kind == "jsonl":
    assert ranked["prediction"] in ("quick", "lazy") and sum(ranked["probabilities"]) == pytest.approx(1, abs=1e-4)


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
  with pytest.raises(UserError, match="--template gpt3_superglu: no such file; give a TOML file, or one of gpt3_super"):
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
