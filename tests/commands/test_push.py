"""`t2t push`: a folder of Hugging Face with a model card, and its upload to a local hub."""

import json
import pathlib
import re

import fake_hub
from fake_hub import Fault
import pytest
import trained
import yaml

from t2t import __main__ as command
from t2t.reports import hub_licenses, model_card
from t2t.storage import hub_files


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
  """A hub, the user's token, and uploads by Git LFS, because a local hub has no Xet storage."""
  import huggingface_hub.constants

  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
  with fake_hub.running() as server:
    values = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "T2T_CACHE_DIR": str(tmp_path / "cache")}
    for name, value in {**values, "HF_TOKEN": server.token}.items():
      monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    hub_files._commits.clear()
    yield server


def push(*options: object) -> int:
  workdir = trained.workdir("encoder_decoder")
  return command.main(["push", str(workdir), *map(str, options)])


def front_matter(card: str) -> dict:
  return yaml.safe_load(card.split("---")[1])


@pytest.mark.slow
def test_a_pushed_model_is_read_from_the_hub(the_hub, tmp_path, capsys):
  """After faults; the second upload replaces the weights and the card of the first, in one commit."""
  the_hub.faults[:] = [Fault("/repos/create", status=503), Fault("/preupload/", status=503), Fault("PUT /upload")]
  assert push("hf://ORG/tiny", "--license", "apache-2.0") == 0
  assert not [fault for fault in the_hub.faults if fault.times]
  repository = the_hub.repositories["ORG/tiny"]
  files = repository.commits[repository.branches["main"]]
  assert {"README.md", "config.json", "model.safetensors"} <= files.keys()
  assert the_hub.token not in "".join(capsys.readouterr())
  (tmp_path / "in.txt").write_text("a text\n")
  read = ["infer", "--checkpoint", "hf://ORG/tiny", "--input", "in.txt", "--output"]
  assert command.main([*read, "out.jsonl"]) == 0
  here = ["infer", "--checkpoint", str(trained.workdir("encoder_decoder")), *read[3:], "here.jsonl"]
  assert command.main(here) == 0
  lines = [json.loads((tmp_path / name).read_text()) for name in ("out.jsonl", "here.jsonl")]
  assert lines[0]["prediction"] == lines[1]["prediction"]
  commits = len(repository.commits)
  assert push("hf://ORG/tiny", "--license", "mit", "--max_shard_size", "40KB", "--message", "Shard it") == 0
  files = repository.commits[repository.branches["main"]]
  assert "model.safetensors" not in files and "model.safetensors.index.json" in files
  assert front_matter(files["README.md"].decode())["license"] == "mit"
  assert len(repository.commits) == commits + 1


@pytest.mark.slow
def test_a_card_of_the_user_is_kept(the_hub, tmp_path, capsys):
  """The text of an own license is uploaded beside it."""
  the_hub.repository("ORG/tiny", {"README.md": b"# Mine\n"})
  (tmp_path / "terms.txt").write_text("use it")
  named = ("--license_name", "terms", "--license_link", str(tmp_path / "terms.txt"))
  assert push("hf://ORG/tiny@candidate", "--license", "other", *named) == 0
  repository = the_hub.repositories["ORG/tiny"]
  assert repository.commits[repository.branches["candidate"]]["README.md"] == b"# Mine\n"
  assert repository.commits[repository.branches["candidate"]]["LICENSE"] == b"use it"
  assert "config.json" not in repository.commits[repository.branches["main"]]
  assert "README.md of ORG/tiny is kept" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_writes_the_folder(the_hub, tmp_path, capsys):
  """The card has data, steps, figures, picture and command of the run; the hub is not asked."""
  assert push("hf://ORG/tiny", "--license", "apache-2.0", "--dry_run") == 0
  assert not [request for request in the_hub.requests if "agent" not in request]
  folder = tmp_path / "tiny"
  assert (folder / "model.safetensors").exists() and (folder / "loss.png").exists()
  card = (folder / "README.md").read_text()
  assert front_matter(card)["license"] == "apache-2.0" and model_card.MARK in card
  workdir = pathlib.Path(trained.workdir("encoder_decoder"))
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  loss = next(row["eval/loss"] for row in reversed(rows) if "eval/loss" in row)
  assert re.search(rf"\| eval/loss \| {loss:.4g} \|", card)
  for text in ("- steps: 2\n", "encoder_decoder.jsonl", "T5ForConditionalGeneration", "![Loss over steps](loss.png)"):
    assert text in card
  assert "is not uploaded because of --dry_run" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["hf://ORG/tiny"], "--license is missing. Give the license of the model"),
    (["hf://ORG/tiny", "--license", "All rights reserved"], "All rights reserved is not an identifier"),
    (["hf://ORG/tiny", "--license", "Apache 2.0"], "is not an identifier of the hub; did you mean apache-2.0?"),
    (["hf://ORG/tiny", "--license", "gpl3"], "gpl3 is not an identifier of the hub; did you mean gpl"),
    (["hf://ORG/tiny", "--license", "other"], "Give --license_name NAME."),
    (["hf://ORG/tiny", "--license", "other", "--license_name", "x"], "Give --license_link URL|FILE."),
    (["hf://ORG/tiny", "--license", "other", "--license_name", "x", "--license_link", "/no"], "/no: no such file"),
    (["hf://ORG/tiny", "--license", "mit", "--license_name", "x"], "--license_name x: only for --license other"),
    (["ORG/tiny", "--license", "mit"], "ORG/tiny is not a path of the Hugging Face hub"),
    (["hf://datasets/ORG/tiny", "--license", "mit"], "is not a repository of a model"),
    (["hf://ORG/tiny/a/b", "--license", "mit"], "is not a repository of a model"),
  ],
)
def test_mistakes_are_named_before_the_export(the_hub, options, message, capsys):
  assert command.main(["push", "nowhere", *options]) == 2
  assert message in " ".join(capsys.readouterr().err.split())
  assert the_hub.requests == []


@pytest.mark.parametrize(("token", "message"), [("", "there is no token"), ("hf_wrong", "refuses the token|token")])
def test_an_upload_needs_a_token(the_hub, monkeypatch, token, message, capsys):
  """Before the export, which may take hours."""
  monkeypatch.setenv("HF_TOKEN", token)
  assert command.main(["push", "nowhere", "hf://ORG/tiny", "--license", "mit"]) == 2
  error = capsys.readouterr().err
  assert re.search(message, error) and "hf_wrong" not in error and "HF_TOKEN" in error


def test_links_of_the_hub_are_in_the_front_matter():
  """Data sets and the base model of the run."""
  config = {"data.files": "hf://datasets/ORG/text@abc/**", "init.checkpoint": "hf://ORG/base@def"}
  license = hub_licenses.front_matter("other", name="own terms", link="https://ORG/terms")
  card = "\n".join(model_card._front_matter(license, config))
  assert front_matter(card)["datasets"] == ["ORG/text"] and front_matter(card)["base_model"] == ["ORG/base"]
  assert {key: value for key, value in front_matter(card).items() if key.startswith("license")} == license
