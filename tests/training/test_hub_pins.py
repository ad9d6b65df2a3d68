"""Runs on data, vocabularies and checkpoints of the Hugging Face hub, at the commits of their first start."""

import json

from etils import epath
import fake_hub
from fake_hub import Fault
import pyarrow as pa
import pyarrow.parquet
import pytest
import trained

from t2t import __main__ as command
from t2t.configuration.loading import overridden, records
from t2t.runtime import exit_codes
from t2t.storage import hub_cache, hub_files
from t2t.training import hub_pins

TEXTS = [f"the quick brown fox number {number} jumps over the lazy dog and over a box of jugs" for number in range(400)]


def lines(texts: list[str]) -> bytes:
  return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def parquet(column: list) -> bytes:
  sink = pa.BufferOutputStream()
  pa.parquet.write_table(pa.table({"text": column}), sink)
  return sink.getvalue().to_pybytes()


def forget() -> None:
  """Makes the process as new: only the disk remembers."""
  hub_files._commits.clear()
  hub_files._matched.clear()
  hub_files._tree.cache_clear()


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
  with fake_hub.running() as server:
    server.repository(
      "datasets/ORG/text", {"train/a.jsonl": lines(TEXTS[::2]), "train/b.parquet": parquet(TEXTS[1::2])}
    )
    values = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "T2T_CACHE_DIR": str(tmp_path / "cache")}
    for name, value in values.items():
      monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    forget()
    yield server
  forget()


def config(*options: str):
  return records(overridden("tiny", ["--config.data.vocabulary=bytes", *options]))


FILES = "--config.data.files=hf://datasets/ORG/text@main/train/*.jsonl,hf://datasets/ORG/text/train/*.parquet"


def saved(pinned, workdir) -> None:
  workdir.mkdir()
  (workdir / "config.json").write_text(json.dumps(pinned.to_dict()))


def test_every_path_of_a_config_gets_its_commit(the_hub, tmp_path):
  """In lists of globs, named sources and stages; local paths, buckets and commits stay."""
  commit = the_hub.repositories["datasets/ORG/text"].branches["main"]
  model = the_hub.repository("ORG/model", {"config.json": b"{}"}).branches["main"]
  run = config(
    FILES, "--config.init.checkpoint=hf://ORG/model", f"--config.data.eval_files=hf://datasets/O/x@{commit}/a"
  )
  pinned = hub_pins.pinned(run, epath.Path(tmp_path / "run"))
  at = f"hf://datasets/ORG/text@{commit}/train"
  assert pinned.data.files == f"{at}/*.jsonl,{at}/*.parquet"
  assert pinned.data.eval_files == run.data.eval_files
  assert pinned.init.checkpoint == f"hf://ORG/model@{model}"
  assert pinned.data.hub_revisions == (f"ORG/model@main={model}", f"datasets/ORG/text@main={commit}")
  several = config(
    *("--config.data.sources.one.files=hf://datasets/ORG/text/train/*.jsonl", "--config.data.sources.two.files=a.txt"),
    "--config.stages=({'data.inputs_length': 64, 'data.sources.one.rate': 1.0, 'fraction': 0.5}, {'fraction': 0.5})",
  )
  sources = hub_pins.pinned(several, epath.Path(tmp_path / "run")).data.sources
  assert sources["one"].files == f"{at}/*.jsonl" and sources["two"].files == "a.txt"


def test_a_resume_reads_the_commit_of_the_first_start(the_hub, tmp_path):
  """Although the branch has moved, and although this process has read the new commit already."""
  workdir, repository = tmp_path / "run", the_hub.repositories["datasets/ORG/text"]
  first = hub_pins.pinned(config(FILES), epath.Path(workdir))
  saved(first, workdir)
  moved = repository.commit({"train/c.jsonl": lines(TEXTS)})
  forget()
  assert hub_pins.pinned(config(FILES), epath.Path(workdir)) == first
  forget()
  fresh = hub_files.pinned(hub_files.parse("hf://datasets/ORG/text@main"), where="").revision
  assert fresh == moved
  adopted = config(f"--config.data.files=hf://datasets/ORG/text@{fresh}/train/*,hf://datasets/ORG/text@main/train/*")
  old = f"hf://datasets/ORG/text@{repository.commits and first.data.hub_revisions[0].rpartition('=')[2]}/train/*"
  assert hub_pins.pinned(adopted, epath.Path(workdir)).data.files == f"{old},{old}"
  forget()
  assert hub_pins.pinned(config(FILES), epath.Path(tmp_path / "other")).data.hub_revisions[0].endswith(moved)


def test_another_branch_is_resolved_anew(the_hub, tmp_path):
  """Only the same repository and revision keep a commit."""
  workdir, repository = tmp_path / "run", the_hub.repositories["datasets/ORG/text"]
  saved(hub_pins.pinned(config(FILES), epath.Path(workdir)), workdir)
  second = repository.commit({"train/c.jsonl": lines(TEXTS)}, branch="second")
  forget()
  pinned = hub_pins.pinned(config("--config.data.files=hf://datasets/ORG/text@second/**/*.jsonl"), epath.Path(workdir))
  assert pinned.data.files == f"hf://datasets/ORG/text@{second}/**/*.jsonl"


def train(workdir, *options: str) -> int:
  model = ("--config=t5_1_1_small", *trained.SMALL, trained.ONE_ENCODER, trained.ONE_DECODER)
  return command.main(["train", *model, "--workdir", str(workdir), *options])


@pytest.mark.exhaustive
def test_a_run_on_the_hub_resumes_without_it(the_hub, tmp_path, monkeypatch, capsys):
  """Offline and with a moved branch: the same files, whose new version is damaged."""
  import huggingface_hub.constants

  assert train(tmp_path / "run", FILES) == 0
  the_hub.repositories["datasets/ORG/text"].commit({"train/a.jsonl": b"damaged", "train/b.parquet": b"damaged"})
  forget()
  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
  asked = len(the_hub.requests)
  assert train(tmp_path / "run", FILES, "--config.train.steps=3") == 0
  assert len(the_hub.requests) == asked
  assert "resuming from step 2" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_hub_that_disappears_stops_a_run_for_its_launcher(the_hub, tmp_path, monkeypatch, capsys):
  """Files were checked, then evicted from a small cache: exit code 75, one sentence, and the same command resumes."""
  the_hub.repository("datasets/ORG/text", {"train/a.jsonl": lines(TEXTS), "train/b.jsonl": lines(TEXTS[::-1])})
  size = len(lines(TEXTS))
  monkeypatch.setenv(hub_cache.LIMIT_VARIABLE, str(1.5 * size / 1e9))
  monkeypatch.setattr(hub_files, "RETRY_SECONDS", 0.5)
  files = "--config.data.files=hf://datasets/ORG/text@main/train/*.jsonl"
  the_hub.faults[:] = [Fault("GET /cdn", times=1000, status=503, skip=2)]
  assert train(tmp_path / "run", files) == exit_codes.LOST
  error = capsys.readouterr().err
  assert error.count("error: ") == 1 and "Traceback" not in error
  assert "the Hugging Face hub does not answer (HTTP 503). Run the same command again to resume." in " ".join(
    error.split()
  )
  the_hub.faults.clear()
  assert train(tmp_path / "run", files) == 0


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      ["--config.data.files=hf://datasets/ORG/text@gone/*"],
      "config.data.files=hf://datasets/ORG/text@gone/*: the dataset",
    ),
    (
      ["--config.data.files=hf://datasets/ORG/text/*.csv"],
      "config.data.files: no file matches hf://datasets/ORG/text@",
    ),
    (["--config.data.files=hf://datasets/ORG/mixed/*"], "column 'text' has type int64, not string"),
    ([FILES, "--config.init.checkpoint=hf://ORG/gone"], "config.init.checkpoint=hf://ORG/gone: the hub has no model"),
    ([FILES, "--config.data.vocabulary=hf://datasets/ORG/text@main/x.model"], "contains no vocabulary"),
  ],
)
@pytest.mark.slow
def test_mistakes_are_named_before_training(the_hub, tmp_path, options, message, capsys):
  the_hub.repository("datasets/ORG/mixed", {"a.parquet": parquet(TEXTS), "b.parquet": parquet([1, 2])})
  assert train(tmp_path / "run", *options) == 2
  assert message in " ".join(capsys.readouterr().err.split())
  assert not (tmp_path / "run" / "metrics.jsonl").exists()
