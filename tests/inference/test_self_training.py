"""`t2t infer --min_confidence`: which lines become a training file, with which columns."""

import dataclasses
import json

from hypothesis import given, settings, strategies
import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.data import tables
from t2t.data.tables import examples
from t2t.inference import jsonl_io, self_training, table_output

SPEC = tables.TableSpec("class", ("review",), "sentiment", classes=("no", "yes"))


def labelled(tmp_path, probabilities, *, spec=SPEC, lines=None, **options):
  """Returns the training file and the summary of lines with these probabilities of the class yes; None: an error."""
  output = tmp_path / "out.jsonl"
  lines = lines or [
    jsonl_io.Line(i + 1, f"text {i}", {"review": f"text {i}", "id": i}) for i in range(len(probabilities))
  ]
  rows = [
    {"prediction": None, "error": "empty line"}
    if p is None
    else {"prediction": "yes" if p >= 0.5 else "no", "probabilities": {"no": 1 - p, "yes": p}}
    for p in probabilities
  ]
  with open(table_output.rows_path(str(output)), "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
  summary = self_training.write(str(output), lambda: (line for line in lines), spec=spec, **options)
  return [json.loads(line) for line in output.read_text().splitlines()], summary


@settings(max_examples=40, deadline=None)
@given(
  strategies.lists(strategies.none() | strategies.floats(0, 1, width=16), max_size=20),
  strategies.floats(0, 1, width=16),
  strategies.sampled_from(["", "1", "3", "equal"]),
)
def test_confident_lines_are_kept(tmp_path_factory, probabilities, least, per_class):
  """In order, with both columns; limited for each class to the most confident."""
  found, summary = labelled(tmp_path_factory.mktemp("rows"), probabilities, least=least, per_class=per_class)
  confident = {"no": [], "yes": []}
  for i, p in enumerate(probabilities):
    if p is not None and max(p, 1 - p) >= least:
      confident["yes" if p >= 0.5 else "no"].append((-max(p, 1 - p), i))
  sizes = [len(x) for x in confident.values() if x]
  limit = min(sizes, default=0) if per_class == "equal" else int(per_class or 99)
  expected = {i: label for label, x in confident.items() for _, i in sorted(x)[:limit]}
  assert found == [{"review": f"text {i}", "sentiment": expected[i]} for i in sorted(expected)]
  assert summary[0].split()[1:4] == [str(len(expected)), "of", str(len(probabilities))]


def test_columns_without_a_table(tmp_path):
  """A text has the columns inputs and label, and a pair two texts; a table's model may read plain lines, too."""
  lines = [jsonl_io.Line(1, "a", {}), jsonl_io.Line(2, "b c", {"parts": ["b", "c"]})]
  found, summary = labelled(tmp_path, [0.9, 0.2], spec=None, lines=lines, least=0.8)
  assert found == [{"inputs": "a", "label": "yes"}, {"sentence1": "b", "sentence2": "c", "label": "no"}]
  assert summary[1:] == ["  no           1 of 1", "  yes          1 of 1"]
  assert labelled(tmp_path, [0.9], lines=lines[:1], least=0.8)[0] == [{"review": "a", "sentiment": "yes"}]


def test_a_threshold_without_effect_and_unbalanced_classes_are_noted(tmp_path):
  """A threshold of 1/classes keeps all; a class without lines, or with less than half as many, is named."""
  note = lambda *arguments, **options: "\n".join(labelled(tmp_path, *arguments, **options)[1][3:])
  assert note([0.9, 0.1], least=0.51) == ""
  assert "0.5 keeps every line, because the likeliest of 2 classes" in note([0.9, 0.1], least=0.5)
  assert "no line is kept of the class no." in note([0.9, 0.3], least=0.8)
  assert "1 to 2 lines of a class. --per_class equal keeps 1 of each" in note([0.9, 0.9, 0.1], least=0.8)
  assert note([0.9, 0.9, 0.1], least=0.8, per_class="equal") == ""


def test_held_out_rows_with_predicted_labels_are_noted(tmp_path):
  """In a table of the file that is written; a file of human labels for evaluation ends the note."""
  human = tmp_path / "human.jsonl"
  human.write_text(
    "".join(json.dumps({"review": f"seen {i}", "sentiment": ["no", "yes"][i % 2]}) + "\n" for i in range(40))
  )
  labelled(tmp_path, [i % 2 for i in range(40)], least=0.8)
  both = dataclasses.replace(SPEC, files=f"{human},{tmp_path / 'out.jsonl'}")
  notes = lambda spec: [x for x in examples.load(spec).notes if "labels that a model predicted" in x]
  (note,) = notes(both)
  held_out = examples.load(both).held_out
  predicted = sum("text" in row["key"] for row in held_out)
  assert 0 < predicted < len(held_out) and note.startswith(f"warning: {predicted} of {len(held_out)} held-out rows")
  assert not notes(dataclasses.replace(both, eval_files=str(human))) and not notes(
    dataclasses.replace(both, files=str(human))
  )


def test_bad_options_are_refused(tmp_path):
  """Before the checkpoint is read."""
  (tmp_path / "in.jsonl").write_text("{}\n")
  cases = [
    ("out.tsv", "", "writes JSON lines"),
    ("in.jsonl", "", "is also the input"),
    ("o.jsonl", "0", "--per_class 0"),
  ]
  for output, per_class, message in cases:
    with pytest.raises(UserError, match=message):
      self_training.check(str(tmp_path / output), str(tmp_path / "in.jsonl"), per_class)


@pytest.mark.slow
def test_a_model_without_classes_is_refused(tmp_path, capsys):
  """Generated texts have no confidence; --per_class alone has no effect."""
  (tmp_path / "in.txt").write_text("a\n")
  options = ["infer", "--checkpoint", str(trained.workdir("encoder_decoder")), "--input", str(tmp_path / "in.txt")]
  options += ["--output", str(tmp_path / "out.jsonl")]
  assert command.main([*options, "--min_confidence", "0.9"]) == 2
  assert "--min_confidence needs a model that predicts one of several classes" in capsys.readouterr().err
  assert command.main([*options, "--per_class", "3"]) == 2
  assert "--per_class 3 needs --min_confidence" in capsys.readouterr().err
