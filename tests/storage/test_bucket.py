"""Every command on gs://, against a local emulator with faults, through the real clients."""

import collections
import dataclasses
import gzip
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import types

from etils import epath
import folders
import jax
import numpy as np
import orbax.checkpoint as ocp
import pyarrow as pa
import pyarrow.parquet
import pytest
from tensorboardX.proto import event_pb2
import tensorflow as tf

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import manager, restore, verify
from t2t.checkpoints import retry as checkpoint_retry
from t2t.commands import eval as eval_command
from t2t.data.sources import file_validation, text_files
from t2t.data.vocabularies import training
from t2t.inference import jsonl_io as read_lines
from t2t.reports import history
from t2t.runtime import exit_codes
from t2t.storage import gcs as gcs_module
from t2t.storage import lease, logs, tfrecord
from t2t.storage.outage import Away
from t2t.training import metric_writers
from t2t.training.train_state import TrainState

pytestmark = pytest.mark.slow

pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed (the extra `test`)")
import fake_gcs  # noqa: E402
from fake_gcs import Fault  # noqa: E402
import test_manager  # noqa: E402
import test_nan_policy  # noqa: E402
import test_offline_cache  # noqa: E402
import trained  # noqa: E402

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box with dire liquid jugs".split()  # noqa: SIM905


def documents(number: int) -> list[str]:
  random = np.random.default_rng(0)
  return [" ".join(random.choice(WORDS, size=60)) for _ in range(number)]


def tfrecords(texts) -> bytes:
  feature = lambda text: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
  example = lambda text: tf.train.Example(features=tf.train.Features(feature={"text": feature(text)}))
  return b"".join(tfrecord.frame(example(text).SerializeToString()) for text in texts)


def parquet(texts) -> bytes:
  content = io.BytesIO()
  pa.parquet.write_table(pa.table({"text": list(texts)}), content, row_group_size=7)
  return content.getvalue()


def lines(texts) -> bytes:
  return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
  """A bucket with a text in each format and a vocabulary; all clients of this process and its children use it."""
  folder = tmp_path_factory.mktemp("gcs")
  texts = documents(160)
  formats = {
    "a.jsonl.gz": lambda part: gzip.compress(lines(part)),
    "b.txt": lambda part: "\n".join(part).encode(),
    "c.parquet": parquet,
    "d.tfrecord-00000-of-00001": tfrecords,
  }
  with fake_gcs.Gcs(folder) as gcs, pytest.MonkeyPatch.context() as patch:
    for name, value in gcs.environment().items():
      patch.setenv(name, value)
    patch.setenv("T2T_CACHE_DIR", str(folder / "cache"))
    for number, (name, content) in enumerate(formats.items()):
      gcs.write(f"text/{name}", content(texts[number::4]))
    gcs.write("held_out/text.jsonl", lines(documents(200)[160:]))
    model = training.train_sentencepiece(texts, size=40, output_dir=folder / "v", character_coverage=1.0)
    gcs.write("vocabulary/spiece.model", pathlib.Path(model).read_bytes())
    gcs_module.client.cache_clear()
    yield gcs
    gcs_module.client.cache_clear()


@pytest.fixture(autouse=True)
def no_faults(gcs):
  yield
  gcs.faults.clear()


MODEL = ("--config=t5_1_1_small", *trained.MODEL, trained.ONE_ENCODER, trained.ONE_DECODER)


def train(workdir: str, *options: str) -> list[str]:
  data = (
    "--config.data.files=gs://bucket/text/*",
    "--config.data.eval_files=gs://bucket/held_out/*.jsonl",
    "--config.data.vocabulary=gs://bucket/vocabulary/spiece.model",
    "--config.data.inputs_length=48",
    "--config.data.targets_length=24",
    "--config.data.num_streams=1",
  )
  run = (
    "--config.train.batch_size=8",
    "--config.train.steps=6",
    "--config.eval.batches=1",
    "--config.eval.every=3",
    "--config.eval.num_logged_samples=0",
    "--config.checkpoint.save_interval_steps=2",
  )
  return ["train", *MODEL, *data, *run, "--workdir", f"gs://bucket/{workdir}", *options]


def rows(gcs, workdir: str) -> list[dict]:
  return [json.loads(line) for line in gcs.read(f"{workdir}/metrics.jsonl").splitlines()]


def steps(gcs, workdir: str, name: str) -> tuple[list[int], list[int]]:
  """Returns the steps of a metric in metrics.jsonl, and in the event files."""
  found = []
  for path in gcs.sizes(f"{workdir}/tensorboard/events"):
    for record in tfrecord.read(io.BytesIO(gcs.read(path))):
      event = event_pb2.Event.FromString(record)
      found += [event.step for value in event.summary.value if value.tag == name]
  return [row["step"] for row in rows(gcs, workdir) if name in row], sorted(found)


@pytest.fixture(scope="module")
def run(gcs, tmp_path_factory):
  """Workdir of a run that was killed while it saved step 4, with various faults before, and then resumed to 6."""
  log = tmp_path_factory.mktemp("run") / "log"
  program = "import sys, conftest\nfrom t2t import __main__ as command\nsys.exit(command.main(sys.argv[1:]))"
  environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folders.TESTS), *sys.path])}
  with log.open("w") as file:
    child = subprocess.Popen([sys.executable, "-c", program, *train("run")], stderr=file, stdout=file, env=environment)
  gcs.faults[:] = [
    Fault("name=run/checkpoints/4/commit_success.txt", times=1000, dropped=True, then=child.kill),
    Fault("GET /download/storage/v1/b/bucket/o/text/a.jsonl.gz", status=503, times=2),
    Fault("GET /download/storage/v1/b/bucket/o/text/d.tfrecord", cut=True),
    Fault("o/text/c.parquet", dropped=True),
    Fault("o/vocabulary/spiece.model", slow=1.0),
    Fault("run/metrics.jsonl/compose", lost=True),
    Fault("run/metrics.jsonl/compose", status=503),
    Fault("run/checkpoints/2/state", status=503, times=3),
    Fault("run/checkpoints/2/state", dropped=True),
  ]
  assert child.wait() == -9, log.read_text()
  untouched = [fault for fault in gcs.faults[1:] if fault.times]
  gcs.faults.clear()
  killed = {
    "faults": untouched,
    "steps": sorted({row["step"] for row in rows(gcs, "run")}),
    "found": restore.checkpoint_folder("gs://bucket/run").name,
    "begun": bool(gcs.sizes("run/checkpoints/4/")),
  }
  gcs.faults[:] = [Fault("run/checkpoints/6/state", away=3.0), Fault("run/metrics.jsonl", status=429, times=2)]
  assert command.main(train("run")) == 0
  killed["later faults"] = [fault for fault in gcs.faults if fault.times]
  gcs.faults.clear()
  return killed


def test_a_run_that_is_killed_while_it_saves_has_lost_nothing(gcs, run):
  """Every fault occurred, all steps up to the interrupted save are logged, and earlier checkpoints are found."""
  assert run["faults"] == [] and run["later faults"] == []
  assert run["steps"][:4] == [1, 2, 3, 4] and run["begun"]  # saving continues during later steps: 5 and 6 may exist
  assert run["found"] == "2"


def test_every_step_is_measured_once(gcs, run):
  """In metrics.jsonl and in the event files, which are truncated on resume."""
  assert steps(gcs, "run", "train/loss") == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
  assert steps(gcs, "run", "eval/loss") == ([3, 6], [3, 6])
  assert metric_writers.read_metrics(epath.Path("gs://bucket/run/metrics.jsonl"), "eval/loss").keys() == {3, 6}
  assert gcs.sizes("run/loss.png") and not [name for name in gcs.sizes("run/") if name.endswith(".part")]


def test_a_run_in_a_bucket_has_its_report(gcs, run, capsys):
  """The killed start has no end; the run is found in the bucket, and its report is written again."""
  notes = history.read(epath.Path("gs://bucket/run"))
  assert [note["event"] for note in notes] == ["start", "start", "end"]
  assert notes[0]["step"] == 0 < notes[1]["step"] < notes[2]["step"] == 6
  assert 0 < gcs.sizes("run/report.html")["run/report.html"] < 300_000
  assert command.main(["runs", "gs://bucket", "--json"]) == 0
  found = next(each for each in json.loads(capsys.readouterr().out) if each["run"] == "run")
  assert (found["step"], found["state"], found["path"]) == (6, "finished", "gs://bucket/run")
  assert command.main(["report", "gs://bucket/run", "--output", "gs://bucket/page.html"]) == 0
  assert b"step 6 of 6" in gcs_module.read(epath.Path("gs://bucket/page.html"))


@pytest.mark.exhaustive
def test_a_run_is_held_by_what_lies_in_a_bucket(gcs, run, capsys):
  """Fisher files are written and verified in the bucket, and read at the start and on resume."""
  assert command.main(["fisher", "gs://bucket/run", "--output", "gs://bucket/fisher", "--examples", "8"]) == 0
  assert command.main(["checkpoint", "verify", "gs://bucket/fisher"]) == 0
  assert "whole" in capsys.readouterr().out
  start = ("--config.init.checkpoint=gs://bucket/run", "--config.optimizer.fisher=gs://bucket/fisher")
  for number in (2, 4):
    held = (*start, "--config.optimizer.param_groups=.: anchor=10", f"--config.train.steps={number}")
    assert command.main(train("held", *held)) == 0
  assert [row["step"] for row in rows(gcs, "held") if "train/distance/embed" in row] == [1, 2, 3, 4]


def test_a_step_without_its_marker_is_no_checkpoint(gcs, run):
  """The last complete step is used; to request an incomplete step is an error."""
  for name in gcs.sizes("run/checkpoints/6/"):
    if name != "run/checkpoints/6/commit_success.txt":
      gcs.write(f"cut_off/{name.removeprefix('run/')}".replace("/6/", "/8/"), gcs.read(name))
    gcs.write(f"cut_off/{name.removeprefix('run/')}", gcs.read(name))
  assert restore.checkpoint_folder("gs://bucket/cut_off").name == "6"
  with pytest.raises(UserError, match="checkpoints/8 was not saved completely.* commit_success.txt"):
    restore.checkpoint_folder("gs://bucket/cut_off/checkpoints/8")


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("name", "killed_at"), [("damaged", "_CHECKPOINT_METADATA"), ("torn", "")])
def test_a_damaged_step_is_set_aside_in_a_bucket(gcs, capsys, name, killed_at):
  """By the bucket's metadata; after a kill during the move, the next start completes it."""
  workdir = epath.Path(f"gs://bucket/{name}")
  checkpoints = manager.Checkpoints(workdir, keep=3)
  for step in (1, 2, 3):
    checkpoints.save(step, test_manager.make_state(value=float(step)), {"a": b"x"}, {}, metrics=None)
  checkpoints.close()
  assert verify.of_step(workdir / "checkpoints" / "3", step=3) == []
  largest = max(gcs.sizes(f"{name}/checkpoints/3/state"), key=gcs.sizes().get)
  content = bytearray(gcs.read(largest))
  content[0] ^= 1
  gcs.write(largest, bytes(content))
  asked, before = len(gcs.requests), gcs.sizes(f"{name}/checkpoints/3/")
  assert verify.of_step(workdir / "checkpoints" / "3") == [
    f"{largest.removeprefix(f'{name}/checkpoints/3/')} does not match its checksum"
  ]
  assert not [request for request, _ in gcs.requests[asked:] if "/state" in request and "alt=media" in request]
  assert command.main(["checkpoint", "verify", f"gs://bucket/{name}"]) == 1
  assert re.findall(r"^(\d): (\w+)", capsys.readouterr().out, re.MULTILINE) == [
    *(("1", "whole"), ("2", "whole"), ("3", "damaged"))
  ]
  gcs.faults[:] = [
    Fault(f"DELETE /storage/v1/b/bucket/o/{name}/checkpoints/3/{killed_at}", status=403, after=0 if killed_at else 3)
  ]
  with pytest.raises(UserError, match="checkpoints/3 is damaged, but cannot be renamed"):
    verify.set_aside(workdir / "checkpoints")
  assert verify.steps(workdir / "checkpoints") == [1, 2]  # its marker was moved first
  aside = gcs.sizes(f"{name}/checkpoints/damaged_3/")
  assert {each.replace("/damaged_3/", "/3/"): size for each, size in aside.items()} == before
  assert "resuming from step 2" not in capsys.readouterr().err
  verify.set_aside(workdir / "checkpoints")
  reopened = manager.Checkpoints(workdir, keep=3)
  assert reopened.latest_step() == 2
  reopened.save(4, test_manager.make_state(value=4.0), {"a": b"x"}, {}, metrics=None)
  reopened.close()
  assert verify.steps(workdir / "checkpoints") == [1, 2, 4]
  assert command.main(["checkpoint", "prune", f"gs://bucket/{name}", "--keep", "2", "--yes"]) == 0
  assert not gcs.sizes(f"{name}/checkpoints/1/") and verify.steps(workdir / "checkpoints") == [2, 4]
  assert command.main(["checkpoint", "list", f"gs://bucket/{name}"]) == 0
  assert "damaged_3: set aside because it was damaged" in capsys.readouterr().out
  assert gcs.sizes(f"{name}/checkpoints/damaged_3/") == aside


@pytest.mark.exhaustive
def test_superglue_starts_from_a_bucket_and_ends_in_one(gcs, run, capsys):
  """Warm start, fine-tuning, evaluation of the best step, and the leaderboard's files."""
  for split, number in (("train", 12), ("val", 5), ("test", 4)):
    pairs = [{"premise": f"it rains {i}", "hypothesis": f"it is wet {i}", "idx": i} for i in range(number)]
    labels = [{}] if split == "test" else [{"label": name} for name in ("entailment", "contradiction", "neutral")]
    content = "".join(json.dumps(pair | labels[i % len(labels)]) + "\n" for i, pair in enumerate(pairs))
    gcs.write(f"SuperGLUE/CB/{split}.jsonl", content.encode())
  options = ("--config.data.benchmark_dirs.superglue=gs://bucket/SuperGLUE", "--config.eval.tasks=cb")
  sizes = ("--config.data.inputs_length=40", "--config.data.targets_length=16", "--config.train.batch_size=8")
  length = ("--config.train.steps=1", "--config.eval.every=1", "--config.checkpoint.save_interval_steps=1")
  start = ("--checkpoint=gs://bucket/run", "--workdir=gs://bucket/superglue")
  assert command.main(["superglue", *start, *options, *sizes, *length]) == 0
  found = json.loads(gcs.read("superglue/results.json"))
  assert found["super_glue_cb.validation"]["examples"] == 5 and found["super_glue_cb.test"]["examples"] == 4
  assert gcs.read("superglue/super_glue.zip").startswith(b"PK")
  assert steps(gcs, "superglue/finetune", "eval/super_glue_cb/score") == ([1], [1])
  evaluation = ["eval", "--checkpoint=gs://bucket/superglue/finetune", "--workdir=gs://bucket/eval", *options]
  assert command.main([*evaluation, "--config.data.inputs_length=40", "--config.data.targets_length=16"]) == 0
  again = json.loads(gcs.read("eval/results.json"))["super_glue_cb.validation"]
  assert again["metrics"] == pytest.approx(found["super_glue_cb.validation"]["metrics"], rel=1e-3)


@pytest.mark.exhaustive
def test_a_checkpoint_is_converted_and_asked_from_bucket_to_bucket(gcs, run, tmp_path, capsys):
  """t2t to Hugging Face and back; both checkpoints give the same predictions."""
  assert command.main(["convert", "gs://bucket/run", "--to", "hf", "gs://bucket/hf"]) == 0
  assert command.main(["convert", "--from", "hf", "gs://bucket/hf", "--to", "t2t", "gs://bucket/back"]) == 0
  assert "back/checkpoints/0/commit_success.txt" in gcs.sizes("back/")
  with pytest.raises(UserError, match="--input: gs://bucket/prompts.txt cannot be read .404 Not Found"):
    list(read_lines.read("gs://bucket/prompts.txt"))
  gcs.write("prompts.txt", b"the quick\nlazy dog\n")
  written = []
  for name in ("run", "back"):
    output = tmp_path / f"{name}.jsonl"
    asked = ("--checkpoint", f"gs://bucket/{name}", "--input", "gs://bucket/prompts.txt", "--output", str(output))
    assert command.main(["infer", *asked, "--max_length", "4", "--batch_size", "2"]) == 0
    written.append([json.loads(line)["prediction"] for line in output.read_text().splitlines()])
  assert written[0] == written[1] and len(written[0]) == 2


# ---- Reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl.gz", "b.txt", "c.parquet", "d.tfrecord-00000-of-00001"])
def test_a_file_is_read_whole_or_not_at_all(gcs, name, monkeypatch):
  """From the start or from any line; if the bucket keeps failing, an error instead of a part."""
  path = f"gs://bucket/text/{name}"
  whole = list(text_files.records(path, field="text", where="config.data.files"))
  assert [number for number, _ in whole] == list(range(1, 41))
  if name.endswith(".txt"):
    start = len(whole[0][1]) + 3  # within the second line
    assert [line for _, line in text_files.lines(path, where="config.data.files", start=start)] == [
      line for _, line in whole[2:]
    ]
  monkeypatch.setattr(gcs_module, "RETRY_SECONDS", 1)
  monkeypatch.setattr(gcs_module, "_READ_AT_ONCE", 4000)
  download = f"/download/storage/v1/b/bucket/o/text/{name}"
  gcs.faults[:] = [Fault(download, status=503, times=10**6, after=0 if name.endswith(".gz") else 1)]
  with pytest.raises(UserError, match=f"config.data.files: .*{name} cannot be read .*503 Service Unavailable.* again"):
    list(text_files.read_texts(path, field="text"))
  gcs.faults[:] = [Fault(f"/o/text/{name}", status=404, times=10**6)]
  with pytest.raises(UserError, match=f"config.data.files: .*{name} cannot be read .*404 Not Found"):
    list(text_files.read_texts(path, field="text"))


@pytest.mark.parametrize(
  "status, wanted", [(408, "408 Request Timeout"), (410, "410 Gone"), (418, "418"), (499, "499")]
)
def test_a_status_that_the_client_has_no_class_for_is_told(gcs, status, wanted, monkeypatch):
  """With the status code, and its name if it has one."""
  monkeypatch.setattr(gcs_module, "RETRY_SECONDS", 0.1)
  gcs.write("statuses/one", b"text")
  gcs.faults[:] = [Fault("/o/statuses/one", status=status, times=10**6)]
  with pytest.raises(OSError, match=wanted):
    gcs_module.read("gs://bucket/statuses/one")


def test_a_bucket_may_be_away_for_most_of_the_time_that_there_is(monkeypatch):
  """For any random waits between retries."""
  now = [0.0]
  clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
  for name in ("retry_base", "retry_unary"):
    monkeypatch.setattr(f"google.api_core.retry.{name}.time", clock)

  def ask():
    if now[0] < until:
      raise ConnectionError
    return "it answers"

  for seed in range(20):
    random.seed(seed)
    until = now[0] + gcs_module.RETRY_SECONDS - 10
    assert gcs_module.patience()["retry"](ask)() == "it answers"


def test_a_bucket_that_is_away_is_asked_again_by_who_starts_runs(gcs, monkeypatch):
  """Its exit code allows a restart, unlike that of a missing bucket."""
  retry = gcs_module.patience()["retry"]
  monkeypatch.setattr(gcs_module, "patience", lambda seconds=None: {"retry": retry.with_timeout(0.1), "timeout": 5})
  gcs.faults[:] = [Fault("/b/bucket/o", dropped=True, times=10**6)]
  with pytest.raises(Away, match="config.data.files=gs://bucket/a: bucket 'bucket' cannot be reached") as away:
    gcs_module.check("gs://bucket/a", where="config.data.files=")
  with pytest.raises(Away, match="gs://bucket/run/.lock cannot be written") as unwritten:
    lease.Lease("gs://bucket/run/.lock", on_lost=print)
  gcs.faults.clear()
  with pytest.raises(UserError, match="bucket 'gone' does not exist") as gone:
    gcs_module.check("gs://gone/a", where="")
  codes = [each.value.exit_code for each in (away, unwritten, gone)]
  assert [exit_codes.goes_on(code) for code in codes] == [True, True, False]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"cut": True}, {"dropped": True}])
def test_an_outage_of_the_data_ends_a_run_with_what_launchers_start_again_at(gcs, fault, tmp_path, monkeypatch, capsys):
  """In mid-run and with one sentence."""
  monkeypatch.setattr(gcs_module, "RETRY_SECONDS", 1)
  fault_of_reads = Fault("/bucket/o/text/", times=10**6, **fault)
  trained.after_step(monkeypatch, 3, lambda: gcs.faults.append(fault_of_reads))
  run = train("", "--config.train.steps=100000", "--config.eval.every=1000000", f"--workdir={tmp_path / 'run'}")
  assert command.main(run) == 75
  last = capsys.readouterr().err.strip().splitlines()[-1]
  assert last.startswith("t2t train: error: ") and "gs://bucket/text/" in last and "cannot be read" in last


@pytest.mark.exhaustive
def test_a_bucket_that_is_away_for_20_seconds_loses_no_step(gcs, monkeypatch, capsys):
  """The run continues, or stops with one sentence and the exit code of an outage; the same command resumes."""

  def leave():
    gcs.away_until = time.monotonic() + 20

  trained.after_step(monkeypatch, 3, leave)
  run = train("away", "--config.train.steps=60", "--config.checkpoint.save_interval_steps=20")
  code = command.main(run)
  assert code in (0, 75) and gcs.away_until > 0
  if code:
    assert "t2t train: error: " in capsys.readouterr().err.strip().splitlines()[-1]
    gcs.away_until = 0.0
    assert command.main(run) == 0
  assert steps(gcs, "away", "train/loss")[0] == list(range(1, 61))


@pytest.mark.exhaustive
def test_what_is_added_is_there_once(gcs):
  """Although the answer to each append is lost, and the request is repeated."""
  grows = gcs_module.Object(f"gs://{fake_gcs.BUCKET}/grows.txt", "text/plain")
  assert grows.size() == 0
  for row in (b"one\n", b"two\n", b"three\n"):
    gcs.faults += [fake_gcs.Fault("upload", lost=True), fake_gcs.Fault("/compose", lost=True)]
    grows.append(row)
  assert grows.read() == b"one\ntwo\nthree\n"
  grows.close()


def test_logs_of_one_folder_are_written_at_once(gcs):
  """While an addition to one is joined, another log of the folder is written and closed; no part is left."""
  one, two = (logs.Log(epath.Path(f"gs://bucket/logs/{name}.jsonl"), keep=bytes) for name in ("one", "two"))

  def write(log, text):
    log.add(text)
    log.bring()

  for log in (one, two):
    write(log, b"begin\n")
  gcs.faults[:] = [Fault("one.jsonl/compose", then=lambda: (write(two, b"two\n"), two.close()))]
  write(one, b"one\n")
  one.close()
  assert (gcs.read("logs/one.jsonl"), gcs.read("logs/two.jsonl")) == (b"begin\none\n", b"begin\ntwo\n")
  assert list(gcs.sizes("logs/")) == ["logs/one.jsonl", "logs/two.jsonl"]


def test_an_object_that_is_not_there_is_as_a_file(gcs):
  """Without waiting: steps without metrics are missing."""
  gcs.requests.clear()
  with pytest.raises(FileNotFoundError, match="404 Not Found"):
    gcs_module.read(epath.Path("gs://bucket/gone"))
  assert verify.noted(epath.Path("gs://bucket/gone"), surely=True) == {} and len(gcs.requests) == 2


@pytest.mark.parametrize(("saved", "of_table"), [('{"data": {"table": {"a": 1}}}', True), ('{"data": {}}', False)])
def test_eval_reads_the_config_of_a_checkpoint_without_a_listing(gcs, saved, of_table):
  """The bucket is listed once, when the option is checked; an outage is no config without a table."""
  gcs.write("evaluated/config.json", saved.encode())
  gcs.requests.clear()
  assert eval_command._is_of_table(["--checkpoint", "gs://bucket/evaluated/checkpoints/9"]) == of_table
  assert not any("/b/bucket/o?" in request for request, _ in gcs.requests)


def test_an_object_that_is_gone_is_named(gcs):
  with pytest.raises(UserError, match="config.data.files: gs://bucket/text/gone.txt does not exist"):
    file_validation.scan(("gs://bucket/text/b.txt", "gs://bucket/text/gone.txt"), field="text")


def test_a_thousand_files_take_a_request_to_find_and_one_to_know(gcs):
  """Each file costs only requests for its size and its bytes."""
  for number in range(1200):
    gcs.write(f"many/{number:04}.txt", b"a line of text\n")
  gcs.requests.clear()
  files = text_files.find_files("gs://bucket/many/*.txt")
  assert len(files) == 1200 and text_files.stats(files).keys() == set(files)
  assert 4 <= len(gcs.requests) < 8  # two pages each; a slow machine may retry
  assert text_files.find_files("gs://bucket/m**/0007.txt") == ("gs://bucket/many/0007.txt",)
  gcs.requests.clear()
  assert file_validation.scan(files[:20], field="text").documents == 20
  asked = collections.Counter(name for name, _ in gcs.requests if "/o/many" in name)
  assert max(asked.values()) == 1


cached = test_offline_cache.data  # a fixture


@pytest.mark.exhaustive
def test_cached_tasks_are_read_from_a_bucket(gcs, cached):
  """The same examples as from the disk where they were written."""
  test_offline_cache.write(cached)
  expected = test_offline_cache.examples(cached)
  gcs.upload(pathlib.Path(cached.cache_dir), "cache")
  assert test_offline_cache.examples(dataclasses.replace(cached, cache_dir="gs://bucket/cache")) == expected


# ---- Typing errors ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  "arguments, named",
  [
    (train("x", "--workdir=gs://nothing/run"), "--workdir gs://nothing/run: bucket 'nothing' does not exist"),
    (
      train("x", "--config.data.files=gs://nothing/*.txt"),
      "config.data.files: gs://nothing/.*: bucket 'nothing' does not exist",
    ),
    (train("x", "--config.data.files=gs://bucket/txt/*"), "no file matches gs://bucket/txt/.*gs://bucket/, contains"),
    (
      train("x", "--config.data.vocabulary=gs://nothing/v"),
      "config.data.vocabulary=gs://nothing/v: bucket 'nothing' does not exist",
    ),
    (
      train("x", "--config.init.checkpoint=gs://nothing/a"),
      "config.init.checkpoint=gs://nothing/a: bucket 'nothing' does not exist",
    ),
    (
      ["eval", "--checkpoint=gs://nothing/a", "--workdir=x"],
      "--checkpoint gs://nothing/a: bucket 'nothing' does not exist",
    ),
    (
      ["infer", "--checkpoint=gs://nothing/a", "--input=x.txt", "--output=-"],
      "gs://nothing/a: bucket 'nothing' does not exist",
    ),
    (["convert", "gs://nothing/a", "--to", "hf", "x"], "gs://nothing/a: bucket 'nothing' does not exist"),
    (["convert", "x", "--to", "hf", "gs://nothing/b"], "gs://nothing/b: bucket 'nothing' does not exist"),
  ],
)
def test_a_bucket_that_is_not_there_is_one_sentence(gcs, arguments, named, capsys):
  """After a few requests, not thousands."""
  gcs.requests.clear()
  assert command.main(arguments) == 2
  error = capsys.readouterr().err
  assert re.search(named, error) and "Traceback" not in error
  assert len(gcs.requests) < 50


@pytest.mark.exhaustive
def test_a_run_in_a_bucket_goes_back_and_its_step_is_done_again(gcs, monkeypatch, capsys):
  """Each step has one row of metrics, and a replay writes nothing."""
  test_nan_policy.poison(monkeypatch, 3)
  assert command.main(train("went_back", "--config.nan_policy.on_nonfinite=rollback")) == 0
  assert json.loads(gcs.read("went_back/went_back.jsonl")) == {"checkpoint": 2, "step": 3}
  assert len(np.load(io.BytesIO(gcs.read("went_back/bad_batches/step_3.npz")))["encoder_input_tokens"]) == 8
  assert steps(gcs, "went_back", "train/loss") == ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
  before = gcs.sizes("went_back/")
  # From the checkpoint of the rollback, with the skipped batches.
  assert command.main(["replay", "gs://bucket/went_back", "--step", "3"]) == 0
  assert "replayed from step 2" in (out := capsys.readouterr().out) and "bit-identical to the recorded loss" in out
  assert gcs.sizes("went_back/") == before


# ---- Saves during an outage ------------------------------------------------------------------------------------------


def small_state() -> TrainState:
  zero = lambda: jax.numpy.zeros(3)
  return TrainState(jax.numpy.array(3, jax.numpy.int32), {"a": zero()}, {}, {"a": zero()})


def saver(workdir: str) -> manager.Checkpoints:
  return manager.Checkpoints(epath.Path(workdir), keep=2, retry_seconds=100.0)


@pytest.mark.exhaustive
def test_a_folder_that_cannot_be_made_keeps_no_thread_waiting(gcs, monkeypatch, capsys):
  """Otherwise Orbax's threads would wait five minutes for it, and so would the close."""
  monkeypatch.setattr(checkpoint_retry, "_FIRST_WAIT", 0.0)
  checkpoints = saver("gs://bucket/not_made")
  gcs.faults.append(Fault("name=not_made/checkpoints/3/state/", status=403))
  checkpoints.save(3, small_state(), {"a": b"x"}, {}, metrics=None)
  checkpoints._settle()
  assert not [thread for thread in threading.enumerate() if type(thread).__name__ == "_SignalingThread"]
  assert verify.steps(checkpoints.directory) == []
  gcs.faults.clear()
  checkpoints.wait()
  checkpoints.close()
  said = capsys.readouterr().err
  assert "step 3 could not be saved (" in said and "saving works again" in said
  assert verify.steps(checkpoints.directory) == [3] and not verify.of_step(checkpoints.directory / "3")


@pytest.mark.exhaustive
def test_a_listing_that_lacks_a_step_begins_nothing_anew(gcs, monkeypatch):
  """During an outage TensorFlow's client reports that a folder is missing."""
  checkpoints = saver("gs://bucket/listed")
  checkpoints.save(3, small_state(), {"a": b"x"}, {}, metrics=None)
  checkpoints.wait()
  checkpoints.close()
  with monkeypatch.context() as patch:
    patch.setattr(ocp.CheckpointManager, "all_steps", lambda *arguments, **options: [])
    with pytest.raises(Away, match=r"lacked step 3, which exists.*resumes from the saved steps"):
      saver("gs://bucket/listed")
  again = saver("gs://bucket/listed")
  assert again.latest_step() == 3
  again.close()


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["[a].txt", "b{c}.txt"])
def test_the_literal_name_of_an_object_is_found(gcs, name):
  """Brackets in the name of an existing object are literal."""
  for each in (name, "a.txt", "bc.txt"):
    gcs.write(f"names/{each}", b"text\n")
  assert gcs_module.glob(f"gs://bucket/names/{name}", where="x") == [f"gs://bucket/names/{name}"]
