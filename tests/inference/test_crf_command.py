"""Tags with transitions by the commands: fine-tuning on a table, and predictions that keep to the scheme."""

import json

import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.commands import train as train_command

pytestmark = pytest.mark.exhaustive

HEAD = '({"name": "crf", "kind": "crf", "num_classes": 3, "scheme": "bio"},)'
WORDS, TAGS = ["Ann", "Lee", "saw", "Bob"], ["B-PER", "I-PER", "O", "B-PER"]


def arguments(folder, rows):
  lines = [json.dumps({"words": [*words, str(i)], "tags": [*tags, "O"]}) for i, (words, tags) in enumerate(rows)]
  (folder / "tags.jsonl").write_text("\n".join(lines) + "\n")
  return [
    *("train", "--config=finetune", f"--config.init.checkpoint={trained.workdir('encoder_only')}"),
    *(f"--config.data.files={folder / 'tags.jsonl'}", "--config.data.labels=auto", "--config.train.steps=3"),
    *(f"--config.model.heads={HEAD}", "--config.eval.num_logged_samples=2", f"--workdir={folder / 'run'}"),
  ]


def test_a_table_of_tags_is_learned_and_predicted(tmp_path, capsys):
  """I-PER never follows O, whatever the head scores; each word has a tag, and the score is a log-probability."""
  assert command.main(arguments(tmp_path, [(WORDS, TAGS)] * 40)) == 0
  assert "crf" in json.loads((tmp_path / "run" / "config.json").read_text())["model"]["heads"][0]["kind"]
  inputs = [{"words": words} for words in (WORDS, ["Lee"] * 9, ["a", "b"], ["who", "saw", "Ann"])]
  (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in inputs))
  paths = [f"--checkpoint={tmp_path / 'run'}", f"--input={tmp_path / 'in.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
  assert command.main(["infer", *paths]) == 0
  rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert [len(row["tags"]) for row in rows] == [len(line["words"]) for line in inputs]
  for row in rows:
    pairs = zip(["O", *row["tags"]], row["tags"], strict=False)
    assert all(before != "O" for before, tag in pairs if tag == "I-PER") and row["score"] < 0
  capsys.readouterr()


def test_tags_that_break_the_scheme_are_refused(tmp_path):
  """Before the first step; the message has the tags."""
  rows = [(WORDS, TAGS), (WORDS, ["O", "I-PER", "O", "B-PER"])] * 20
  with pytest.raises(UserError, match="has the tags .* which the scheme 'bio' of the head 'crf' does not allow"):
    train_command.main(arguments(tmp_path, rows)[1:])
