"""Runs on several processes equal runs on one, for any axis across processes; missing hosts are reported.

Processes are started twice: two with two devices each, and four with one. Each start runs several commands in sequence.
"""

import argparse
import collections
from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from etils import epath
import fake_hub
import folders
import numpy as np
import pytest
import test_evaluate
import test_token_files
import test_train

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import manifest, verify
from t2t.reports import first_batches
from t2t.runtime import exit_codes, hosts, rendezvous
from t2t.training import metric_writers

pytestmark = pytest.mark.slow

_CHILD = """
import json, signal, sys
from t2t import __main__ as command
from t2t import data
data.tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as in tests, see conftest.py
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # though `nohup` runs the tests
for argv in json.loads(sys.argv[1]):
  print("$ t2t", *argv, file=sys.stderr, flush=True)
  code = command.main(argv)
  if code not in (0, 129):  # stopped as the test asked for
    sys.exit(code)
"""
text, module = test_train.text, test_evaluate.module  # fixtures
_SHORT = (
  "--config.model.num_heads=4",
  "--config.model.head_dim=4",
  "--config.model.num_encoder_layers=1",
  "--config.model.num_decoder_layers=1",
  "--config.train.steps=2",
  "--config.eval.batches=1",
  "--config.eval.every=2",
  "--config.eval.num_logged_samples=0",
)
_GOES_ON = ("--config.train.steps=4",)
# Until a signal, with saves at steps that the processes agree on.
_ENDLESS = (
  *("--config.train.steps=100000", "--config.checkpoint.save_interval_steps=100000"),
  "--config.checkpoint.continuous=True",
)


_SAME_DATA = ("--config.data.num_streams=2", "--config.train.log_every=1")


def mesh(**sizes: int) -> tuple[str, ...]:
  return tuple(f"--config.mesh.{axis}={size}" for axis, size in sizes.items())


_LOGGED = ("--config.eval.num_logged_samples=1", "--config.logging.histograms=1", "--config.logging.tracker=mlflow")
_STAGES = '--config.stages={"name": "short", "fraction": 0.5, "data.inputs_length": 32},{"train.batch_size": 16}'
# The first axis of size 2 or more crosses two processes with two devices; both axes cross four with one.
TWO = {
  "data": mesh(data=2, fsdp=2),
  "fsdp": mesh(fsdp=4),
  "dcn_data": mesh(dcn_data=2, fsdp=2),
  "tensor": mesh(tensor=4),
  "sequence": mesh(sequence=4),
}
FOUR = {"fsdp_tensor": mesh(fsdp=2, tensor=2), "data_sequence": mesh(data=2, sequence=2)}


def free_port() -> int:
  """Returns a port that is free, as is the one below it; connections of other tests cannot take it meanwhile.

  Linux takes ports from 32768 for outgoing connections.
  """
  while True:
    port = random.SystemRandom().randrange(10_001, 32_768)  # not seeded, because test processes have equal seeds
    with socket.socket() as upper, socket.socket() as lower:
      try:
        upper.bind(("", port))
        lower.bind(("", port - 1))
      except OSError:
        continue
      return port


class Processes:
  """Processes that run the same commands in sequence, until one fails.

  Args:
    runs: arguments of `t2t`.
    last: index -> command of one process in place of the last of `runs`.
    cache: folder of compiled programs.
  """

  def __init__(
    self,
    number: int,
    devices: int,
    runs: Sequence[list[str]],
    *,
    cache: pathlib.Path,
    last: Mapping[int, list[str]] = collections.ChainMap(),
  ):
    address = f"localhost:{free_port()}"
    environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "JAX_NUM_CPU_DEVICES": str(devices),
      "T2T_CACHE_DIR": str(cache),
    }
    environment |= {"PYTHONPATH": str(folders.ROOT), "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    self._logs = [cache / f"{number}_{index}.log" for index in range(number)]
    self.children = []
    for index, log in enumerate(self._logs):
      where = [f"--coordinator={address}", f"--num_processes={number}", f"--process_id={index}"]
      own = [[*runs[0], *where], *runs[1:-1], last.get(index, runs[-1])]
      with open(log, "w") as file:
        self.children.append(
          subprocess.Popen([sys.executable, "-c", _CHILD, json.dumps(own)], env=environment, stdout=file, stderr=file)
        )

  def wait(self) -> tuple[list[int], list[str]]:
    """Returns the exit code and the output of each."""
    try:
      codes = [child.wait(timeout=600) for child in self.children]
    finally:
      for child in self.children:
        child.kill()
    return codes, [log.read_text() for log in self._logs]


def arguments(text: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
  return test_train.arguments(text, workdir, *_SHORT, *overrides)


def curves(workdir: pathlib.Path) -> list[dict[int, float]]:
  return [metric_writers.read_metrics(workdir / "metrics.jsonl", f"{name}/loss") for name in ("train", "eval")]


def assert_same_losses(one: pathlib.Path, other: pathlib.Path, *, steps: int) -> None:
  for found, expected in zip(curves(one), curves(other), strict=True):
    expected = {step: loss for step, loss in expected.items() if step <= steps}
    assert found == pytest.approx(expected, rel=1e-5) and steps in found, one


def commands(folder: pathlib.Path, text: pathlib.Path, module: pathlib.Path) -> dict[str, list[str]]:
  """Returns the commands that run on one process and on several."""
  whole, tasks = folder.parent / "one" / "train", test_evaluate.options(module)
  finetune = ["train", "--config=finetune_superglue", f"--config.init.checkpoint={whole}", *tasks, *_SHORT[4:]]
  return {
    "warm": arguments(text, folder / "warm", f"--config.init.checkpoint={whole}"),
    "stages": arguments(text, folder / "stages", *_GOES_ON, _STAGES),
    "finetune": [*finetune, "--config.data.num_streams=2", f"--workdir={folder / 'finetune'}"],
    "eval": ["eval", f"--checkpoint={whole}", f"--workdir={folder / 'eval'}", *tasks],
    "infer": [
      *("infer", f"--checkpoint={whole}", f"--input={folder.parent / 'lines.txt'}", "--max_length=4"),
      *(f"--output={folder / 'infer' / 'out.jsonl'}", "--batch_size=4", "--temperature=1"),
    ],
  }


@pytest.fixture(scope="module")
def alone(text, module, tmp_path_factory) -> pathlib.Path:
  """A run of four steps on one process; see `also_alone`."""
  folder = tmp_path_factory.mktemp("processes")
  (folder / "lines.txt").write_text("".join(f"{word} <extra_id_0>\n" for word in ("quick", "brown", "fox", "", "dog")))
  assert command.main(arguments(text, folder / "one" / "train", *_GOES_ON)) == 0
  return folder


def also_alone(alone: pathlib.Path, text: pathlib.Path, module: pathlib.Path, *names: str) -> None:
  """Outputs of one process from that run's checkpoint, by `commands`."""
  for name in names:
    if not (alone / "one" / name).exists():
      assert command.main(commands(alone / "one", text, module)[name]) == 0


def assert_as_alone(alone: pathlib.Path, folder: pathlib.Path) -> None:
  """Checks that the outputs of `commands` equal those of one process."""
  for name in ("warm", "finetune"):
    if (folder / name).exists():
      assert_same_losses(folder / name, alone / "one" / name, steps=2)
  if (folder / "eval").exists():
    found, expected = (json.loads((each / "eval" / "results.json").read_text()) for each in (folder, alone / "one"))
    assert found == expected
  if (folder / "infer").exists():
    found, expected = ((each / "infer" / "out.jsonl").read_text().splitlines() for each in (folder, alone / "one"))
    assert len(found) == 5
    for line, other in zip(map(json.loads, found), map(json.loads, expected), strict=True):
      assert line.pop("score") == pytest.approx(other.pop("score"), rel=1e-4)
      assert line == other


def assert_told_by_the_first(workdir: pathlib.Path, said: Sequence[str]) -> None:
  """Checks that the first process wrote a run's other files, once and with all rows."""
  noted = [json.loads(line)["event"] for line in (workdir / "history.jsonl").read_text().splitlines()]
  assert noted == ["start", "end"]
  (_, samples), *others = metric_writers.read_samples(workdir / "samples.jsonl").items()
  assert not others and [label for label, _ in samples[0]][:2] == ["input", "prediction"]
  assert [given["step"] for given in first_batches.read(workdir)] == [0]
  page = (workdir / "report.html").read_text()
  assert "step 2 of 2" in page and "Example 1" in page and "First training rows" in page
  tracker = said[0].count("config.logging.tracker=mlflow: not installed") or said[0].count("mlflow: run ")
  assert (tracker, said[1].count("mlflow:")) == (1, 0)
  assert [each.count(f"{workdir / 'report.html'}") for each in said] == [1, 0]
  assert len(list((workdir / "tensorboard").iterdir())) == 1


def stopped(workdir: pathlib.Path, processes: Processes, *, after: int) -> None:
  """Sends SIGHUP to the last process when the run in `workdir` has saved a step beyond `after`."""
  saved = lambda: max(verify.steps(epath.Path(workdir / "checkpoints")), default=0)
  while saved() <= after and processes.children[-1].poll() is None:
    time.sleep(0.1)
  processes.children[-1].send_signal(signal.SIGHUP)


def test_two_processes_do_as_one_does(text, module, alone, tmp_path):
  """Over axes that cross processes; a signal to one process stops all after a save; a process that waits for data is
  named.
  """
  folder = alone / "two"
  also_alone(alone, text, module, "finetune")
  train = lambda name, *others: arguments(text, folder / name, *others)
  os.mkfifo(tmp_path / "pipe.txt")
  stuck = ("--config.train.stall_seconds=20", "--workdir", str(tmp_path / "stuck"))
  processes = Processes(
    2,
    2,
    [
      train("dcn_data", *TWO["dcn_data"], "--config.train.offload_optimizer=True", *_LOGGED),
      train("tensor", *TWO["tensor"]),
      train("tensor", *_ENDLESS, *TWO["fsdp"]),
      [*commands(folder, text, module)["finetune"], *TWO["data"]],
      train("stuck", *stuck),
    ],
    last={1: [*train("stuck", *stuck), f"--config.data.files={tmp_path / 'pipe.txt'}"]},
    cache=tmp_path,
  )
  stopped(folder / "tensor", processes, after=4)
  codes, said = processes.wait()
  assert codes == [exit_codes.LOST] * 2, "\n".join(said)
  assert_same_losses(folder / "dcn_data", alone / "one" / "train", steps=2)
  assert_told_by_the_first(folder / "dcn_data", said)
  for found, expected in zip(curves(folder / "tensor"), curves(alone / "one" / "train"), strict=True):
    assert {step: found.get(step) for step in expected} == pytest.approx(expected, rel=1e-5) and 4 in found
  assert_as_alone(alone, folder)
  saved = verify.steps(epath.Path(folder / "tensor" / "checkpoints"))
  assert max(saved) == max(curves(folder / "tensor")[0])
  # Each save between the second step and the signal was continuous, and both processes wrote it.
  assert len(saved) > 1
  for step in saved:
    files = manifest.read(epath.Path(folder / "tensor" / "checkpoints" / str(step))).files
    assert {name.split("/")[1] for name in files if "ocdbt.process" in name} == {"ocdbt.process_0", "ocdbt.process_1"}
  assert "SIGHUP: saving after this step" in said[1] and "SIGHUP came: saving after this step" in said[0]
  assert "step 2/2" in said[0] and "step 2/2" not in said[1]
  for index in range(2):
    assert f"; process {index} on {socket.gethostname()} exits, too" in said[index]
    assert "no step has ended for 20 s; positions:" in said[index]
    assert f"process 1 on {socket.gethostname()} in t2t/data/" in said[index]


@pytest.mark.exhaustive
def test_two_processes_do_the_rest_as_one_does(text, module, alone, tmp_path):
  """A Hugging Face checkpoint on a sequence axis, a run of several stages, an evaluation."""
  folder = alone / "rest"
  also_alone(alone, text, module, "warm", "stages", "eval")
  assert command.main(["convert", str(alone / "one" / "train"), str(alone / "hf")]) == 0
  own = commands(folder, text, module)
  hf = arguments(text, folder / "hf", *TWO["sequence"], f"--config.init.checkpoint={alone / 'hf'}")
  runs = [hf, [*own["stages"], *TWO["fsdp"]], [*own["eval"], *TWO["tensor"]]]
  codes, said = Processes(2, 2, runs, cache=tmp_path).wait()
  assert codes == [0] * 2, "\n".join(said)
  assert_same_losses(folder / "hf", alone / "one" / "warm", steps=2)
  assert_same_losses(folder / "stages", alone / "one" / "stages", steps=4)
  assert_as_alone(alone, folder)


@pytest.mark.exhaustive
def test_two_processes_read_the_hub_and_token_files_as_one_does(text, tmp_path, monkeypatch):
  """The same rows, numbers of tokens and losses, from files of a hub and of token ids."""
  monkeypatch.setenv("HF_HOME", str(tmp_path))
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path))
  monkeypatch.delenv("HF_TOKEN", raising=False)
  documents = [json.loads(line)["text"] for line in (text / "validation.jsonl").read_text().splitlines()]
  for number, part in enumerate((documents[::2], documents[1::2])):
    np.save(tmp_path / f"{number}.npy", test_token_files.stream(part))
    test_token_files.stream(part).tofile(tmp_path / f"{number}.bin")
  lines = [json.dumps({"text": document}) + "\n" for document in documents * 9]
  files = {f"train/{number}.jsonl": "".join(lines[number::3]).encode() for number in range(3)}
  ours = "hf://datasets/ORG/text@main/train/*.jsonl"
  data = {
    "hub": (f"--config.data.files={ours}", "--config.data.vocabulary=bytes"),
    "npy": (f"--config.data.files={tmp_path}/*.npy", "--config.data.vocabulary=bytes"),
    "bin": (f"--config.data.files={tmp_path}/*.bin", "--config.data.vocabulary=bytes"),
  }
  data["npy"] += (f"--config.data.eval_files={tmp_path}/0.npy",)
  data["bin"] += (f"--config.data.eval_files={tmp_path}/0.bin", "--config.data.tokens_dtype=uint16")
  train = lambda folder, name: arguments(text, tmp_path / folder / name, *data[name], *TWO["data"], *_SAME_DATA)
  with fake_hub.running() as hub:
    hub.repository("datasets/ORG/text", files)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    for number, folder in ((1, "one"), (2, "two")):
      runs = [train(folder, name) for name in data]
      codes, said = Processes(number, 4 // number, runs, cache=tmp_path).wait()
      assert codes == [0] * number, "\n".join(said)
  for name in data:
    one, two = tmp_path / "one" / name, tmp_path / "two" / name
    tokens = [metric_writers.read_metrics(folder / "metrics.jsonl", "train/tokens") for folder in (one, two)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 2
    assert curves(two) == curves(one)
    assert first_batches.read(epath.Path(two)) == first_batches.read(epath.Path(one)) != []


@pytest.mark.exhaustive
def test_four_processes_do_as_one_does(text, module, alone, tmp_path):
  """On meshes with two axes across processes; if one process fails, the others print the reason."""
  folder = alone / "four"
  also_alone(alone, text, module, "infer")
  own = commands(folder, text, module)
  train = lambda name, *others: arguments(text, folder / name, *others)
  (tmp_path / "broken.jsonl").write_text('{"text": "good"}\n{"text": \n')
  processes = Processes(
    4,
    1,
    [
      train("four", *FOUR["fsdp_tensor"]),
      train("four", *_GOES_ON, *FOUR["data_sequence"]),
      [*own["infer"], "--tensor=2"],
      train("broken"),
    ],
    last={2: [*train("broken"), f"--config.data.files={tmp_path / 'broken.jsonl'}"]},
    cache=tmp_path,
  )
  codes, said = processes.wait()
  assert codes == [2] * 4, "\n".join(said)
  assert_same_losses(folder / "four", alone / "one" / "train", steps=4)
  assert_as_alone(alone, folder)
  assert "broken.jsonl, line 2" in said[2]
  for index in (0, 1, 3):
    assert f"process 2 on {socket.gethostname()}: " in said[index].splitlines()[-1]
    assert "broken.jsonl, line 2" in said[index].splitlines()[-1]


# Of ten records the first stream has those with odd targets, see
# `test_a_stream_whose_share_makes_nothing_reads_the_other_shares`.
_FILTERED = """
import seqio, tensorflow as tf
from t2t.data import preprocessors
def source(split, shuffle_files=False, seed=None):
  numbers = range(10)
  texts = {"inputs": [f"{i} plus 1" for i in numbers], "targets": [f"{split} {i + 1}" for i in numbers]}
  return tf.data.Dataset.from_tensor_slices(texts)
for name, pattern in (("one_half", "train .*[13579]"), ("none_held_out", "validation .*")):
  left_out = lambda dataset, pattern=pattern: dataset.filter(
    lambda x: tf.logical_not(tf.strings.regex_full_match(x["targets"], pattern))
  )
  splits = {"train": 10, "validation": 10}
  seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(source, splits=tuple(splits), num_input_examples=splits),
    preprocessors=preprocessors.text_to_text(left_out),
    output_features=preprocessors.t5_features(),
  )
"""


@pytest.mark.exhaustive
def test_two_processes_read_tasks_whose_examples_are_left_out(tmp_path):
  """A process without examples in its share reads the other's; without held-out examples both print the same error."""
  (tmp_path / "filtered.py").write_text(_FILTERED)
  train = lambda mixture: [
    *("train", *test_train.T5, *_SHORT, *TWO["data"], "--config.data.num_streams=2"),
    *(f"--config.data.mixture={mixture}", f"--config.data.task_modules={tmp_path / 'filtered.py'}"),
    *("--config.data.vocabulary=bytes", f"--workdir={tmp_path / mixture}"),
  ]
  codes, said = Processes(2, 2, [train("one_half"), train("none_held_out")], cache=tmp_path).wait()
  assert codes == [2] * 2, "\n".join(said)
  assert 2 in curves(tmp_path / "one_half")[0]
  for each in said:
    assert "no held-out example: none_held_out makes no example from 10 records" in each.splitlines()[-1]


# ---- Missing processes -----------------------------------------------------------------------------------------------


def options(**values) -> argparse.Namespace:
  defaults = dict(coordinator=None, num_processes=None, process_id=None, join_seconds=1)
  return argparse.Namespace(**(defaults | values))


def called(place: rendezvous.ProcessSpec, seconds: float, said: dict) -> threading.Thread:
  def call():
    try:
      said[place.index] = rendezvous.roll_call(place, seconds=seconds)
    except UserError as error:
      said[place.index] = str(error)

  thread = threading.Thread(target=call)
  thread.start()
  return thread


def test_a_roll_call_ends_when_all_are_there():
  """Independent of the time limit."""
  address, said = f"localhost:{free_port()}", {}
  threads = [called(rendezvous.ProcessSpec(address, 3, index), 60.0, said) for index in (2, 0, 1)]
  for thread in threads:
    thread.join()
  shown = {index: others if isinstance(others, str) else sorted(others) for index, others in said.items()}
  assert shown == {0: [1, 2], 1: [0], 2: [0]}


def test_those_who_are_there_say_who_is_missing(monkeypatch):
  """By number, and by name if the environment has names."""
  monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b,c,d")
  address, said = f"localhost:{free_port()}", {}
  threads = [called(rendezvous.ProcessSpec(address, 4, index), 0.5, said) for index in (0, 2)]
  for thread in threads:
    thread.join()
  for index in (0, 2):
    assert f"(process {index}): 2 of 4 processes did not start" in said[index]
    assert "process 1 on b, process 3 on d" in said[index]


def test_without_the_first_process_the_others_say_so():
  """With the address that they called."""
  port = free_port()
  with pytest.raises(UserError, match=f"the first process, at localhost, did not answer .* port {port - 1} there"):
    rendezvous.roll_call(rendezvous.ProcessSpec(f"localhost:{port}", 2, 1), seconds=0.3)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (dict(coordinator="a:1"), "--num_processes is missing"),
    (dict(num_processes=2, process_id=0), "--coordinator is missing"),
    (dict(coordinator="a", num_processes=2, process_id=0), "--coordinator a is not an address. Give HOST:PORT"),
    (
      dict(coordinator="a:1", num_processes=2, process_id=2),
      "--process_id 2 does not exist .* --num_processes 2. Give a number from 0 to 1",
    ),
  ],
)
def test_options_that_do_not_go_together(given, message):
  """Before any waiting."""
  with pytest.raises(UserError, match=message):
    hosts.place_of(options(**given))


def test_slurm_says_who_is_who(monkeypatch):
  """The first node of the step is the coordinator; a process has the device of its number on the node."""
  for name, value in dict(JOB_ID="7", STEP_NODELIST="n[3-4]", NTASKS="4", PROCID="2", LOCALID="1").items():
    monkeypatch.setenv(f"SLURM_{name}", value)
  place = hosts.place_of(options())
  assert place.address.startswith("n3:") and (place.number, place.index, place.devices) == (4, 2, (1,))


def test_a_machine_by_itself_is_no_cluster():
  """Without waiting."""
  assert hosts.place_of(options()) is None
  hosts.join(options())


def test_too_few_hosts_are_refused(text, tmp_path, capsys):
  """Before any compilation."""
  assert command.main(arguments(text, tmp_path, "--config.train.num_processes=4")) == 2
  assert "config.train.num_processes=4, but the number of processes is 1" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_two_processes_set_a_damaged_step_aside(text, alone, tmp_path):
  """With one flipped bit in the last step, both resume from the step before, and later saves have checksums of both."""
  workdir = shutil.copytree(alone / "one" / "train", tmp_path / "train")
  array = max((workdir / "checkpoints" / "4" / "state").rglob("d/*"), key=os.path.getsize)
  content = array.read_bytes()
  array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
  resumed = arguments(text, workdir, *_GOES_ON, *TWO["fsdp"])
  codes, logs = Processes(2, 2, [resumed], cache=tmp_path).wait()
  assert codes == [0, 0], logs
  said = "checkpoints/4 is damaged, and was renamed to damaged_4; resuming from step 3"
  assert [log.count(said) for log in logs] == [1, 0]
  assert_same_losses(workdir, alone / "one" / "train", steps=4)
  step = epath.Path(workdir / "checkpoints" / "4")
  assert verify.of_step(step, step=4) == []
  noted = manifest.read(step).files
  assert {name.split("/")[1] for name in noted if "ocdbt.process" in name} == {"ocdbt.process_0", "ocdbt.process_1"}
  assert len([name for name in noted if name.startswith("streams/stream-")]) == 2


@pytest.fixture(scope="module")
def wild(text, tmp_path_factory) -> tuple[pathlib.Path, list[str]]:
  """A run of two processes with losses that are not finite, and the output of each."""
  overrides = (
    "--config.optimizer.name=sgd",
    "--config.optimizer.learning_rate=1e30",
    "--config.optimizer.schedule=constant",
    "--config.optimizer.warmup_steps=0",
    "--config.train.steps=4",
  )
  back = (
    "--config.nan_policy.on_nonfinite=rollback",
    "--config.nan_policy.max_rollbacks=1",
    "--config.checkpoint.save_interval_steps=1",
  )
  folder = tmp_path_factory.mktemp("wild")
  run = arguments(text, folder / "run", *overrides, *back, *mesh(data=2))
  codes, logs = Processes(2, 1, [run], cache=folder).wait()
  assert codes == [exit_codes.REFUSED] * 2, logs
  return folder / "run", logs


def test_two_processes_go_back_together(wild):
  """Up to the limit of rollbacks, then both end and the batch is saved."""
  workdir, logs = wild
  assert [log.count("rolling back to step 1, and skipping the 1 batches after it") for log in logs] == [1, 0]
  assert all("has rolled back 1 times, the limit of config.nan_policy.max_rollbacks=1" in log for log in logs)
  assert json.loads((workdir / "went_back.jsonl").read_text()) == {"checkpoint": 1, "step": 2}
  assert len(np.load(workdir / "bad_batches" / "step_2.npz")["encoder_input_tokens"]) == 8


@pytest.mark.exhaustive
def test_two_processes_look_where_a_number_arose(wild, tmp_path):
  """Both repeat the step; the first prints the result."""
  replay = ["replay", str(wild[0]), "--step", "2", "--rows", "1"]
  codes, logs = Processes(2, 1, [replay], cache=tmp_path).wait()
  assert codes == [0, 0], logs
  assert "first place    infinity, backward, by mul at models/layers.py" in logs[0], logs
  assert "of 8, of stream" in logs[0] and "first NaN or Inf" in logs[0] and "first place" not in logs[1]


@pytest.mark.exhaustive
def test_a_sweep_continues_after_a_point_diverges(text, tmp_path):
  """Both processes decide alike; the same command again trains nothing."""
  options = ("--set=optimizer.learning_rate=0.01,1e30,0.03", "--seeds=1", "--halving=2", *mesh(data=2), *_GOES_ON)
  made = ["sweep", *arguments(text, tmp_path / "sweep", *options)[1:]]
  codes, logs = Processes(2, 1, [made, made], cache=tmp_path).wait()
  assert codes == [0, 0], "".join(log[-3_000:] for log in logs)
  rows = [json.loads(line) for line in (tmp_path / "sweep" / "sweep.jsonl").read_text().splitlines()]
  states = {row["values"]["optimizer.learning_rate"]: row["status"] for row in rows}
  assert states.pop(1e30) == "diverged" and sorted(states.values()) == ["finished", "halved"]
  first, _, again = logs[0].rpartition("$ t2t")
  assert "diverged" in first and "rung 2 of 2, run 1 of 1" in first
  assert again.count(": finished, ") == 4 and "step 1/4" not in again
