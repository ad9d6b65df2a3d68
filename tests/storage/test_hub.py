"""Names of the Hugging Face hub in place of a folder are recognized, with the command that downloads the model."""

import json

import pytest

import t2t
from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.data import vocabularies
from t2t.storage import hub

NAME = "google/t5-v1_1-small"
DOWNLOAD = f"hf download {NAME} --local-dir t5-v1_1-small"


@pytest.mark.parametrize(
  ("path", "name"),
  [
    (NAME, NAME),
    (f"https://huggingface.co/{NAME}/tree/main", NAME),
    (f"hf://{NAME}", NAME),
    ("huggingface.co/gpt2", "gpt2"),
    ("bert-base-uncased", "bert-base-uncased"),
    ("gpt2", "gpt2"),
    ("runs/tiny", ""),
    ("here/model", ""),
    ("./google/t5", ""),
    ("/google/t5", ""),
    ("~/t5", ""),
    ("a/b/c", ""),
    ("gs://bucket/model", ""),
    ("nowhere", ""),
    ("bert.model", ""),
  ],
)
def test_names_of_the_hub_are_told_from_paths(path, name, tmp_path, monkeypatch):
  """A path with an existing first folder is never a name of the hub."""
  (tmp_path / "here").mkdir()
  monkeypatch.chdir(tmp_path)
  assert hub.name_of(path) == name


def test_a_folder_of_that_name_is_a_folder(tmp_path, monkeypatch):
  (tmp_path / NAME).mkdir(parents=True)
  monkeypatch.chdir(tmp_path)
  assert hub.name_of(NAME) == ""
  with pytest.raises(UserError, match="no checkpoint in"):
    pretrained.read_source(NAME)


@pytest.mark.slow
def test_everything_that_names_a_checkpoint_says_how_to_download_it(tmp_path, monkeypatch, capsys):
  """In Python, by the config, and by each command's option."""
  monkeypatch.chdir(tmp_path)
  for ask in (lambda: t2t.load(NAME), lambda: vocabularies.load(NAME), lambda: pretrained.read_source(NAME)):
    with pytest.raises(UserError) as error:
      ask()
    assert DOWNLOAD in str(error.value) and "give t5-v1_1-small" in str(error.value)
  (tmp_path / "in.txt").write_text("a text\n")
  (tmp_path / "adapter").mkdir()
  settings = {"peft_type": "LORA", "base_model_name_or_path": NAME}
  (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
  for options in (
    ["convert", NAME, "out"],
    ["convert", "--from", "hf", NAME, "--to", "t2t", "out"],
    ["convert", "adapter", "out"],
    ["convert", "adapter", "out", "--base", NAME],
    ["eval", "--checkpoint", NAME, "--config", "superglue", "--workdir", "eval"],
    ["infer", "--checkpoint", NAME, "--input", "in.txt", "--output", "out.jsonl"],
    ["embed", "--checkpoint", NAME, "--input", "in.txt", "--output", "out.npy"],
    ["checkpoint", "diff", NAME, NAME],
    ["train", "--config", "finetune_superglue", f"--config.init.checkpoint={NAME}", "--workdir", "w"],
  ):
    assert command.main(options) == 2
    assert DOWNLOAD in " ".join(capsys.readouterr().err.split()), options
