"""A run on several hosts is the run on one; and what is said of hosts that do not come, or stand still."""

import argparse
import faulthandler
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
import test_train

from t2t import UserError, hosts, writers
from t2t import __main__ as command

# Several runs one after another, by the same hosts: they need to find each other only once.
_CHILD = """
import json, sys
from t2t import __main__ as command
sys.exit(any(command.main(argv) for argv in json.loads(sys.argv[1])))
"""
MESHES = {
  "8": ("--config.mesh.fsdp=8",),
  "4-2": ("--config.mesh.fsdp=4", "--config.mesh.tensor=2"),
  "2-2-2": ("--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"),
  "sequence": ("--config.mesh.fsdp=2", "--config.mesh.sequence=2", "--config.mesh.tensor=2"),
}
text = test_train.text  # the fixture
_SHORT = (
  "--config.model.num_encoder_layers=1",
  "--config.model.num_decoder_layers=1",
  "--config.eval.batches=1",
  "--config.eval.examples=0",
)


def free_port() -> int:
  """One that is free, as the one below it is."""
  while True:
    with socket.socket() as upper, socket.socket() as lower:
      upper.bind(("", 0))
      port = upper.getsockname()[1]
      try:
        lower.bind(("", port - 1))
      except OSError:
        continue
      return port


def arguments(text: pathlib.Path, workdir: pathlib.Path, *overrides: str) -> list[str]:
  return test_train.arguments(text, workdir, *_SHORT, *overrides)


def on_hosts(number: int, devices: int, runs: list[list[str]]) -> list[str]:
  """Runs commands on so many processes with so many devices each; what each wrote to stderr."""
  address = f"localhost:{free_port()}"
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
  environment |= {"PYTHONPATH": str(pathlib.Path(__file__).parents[1]), "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
  children = []
  for index in range(number):
    where = [f"--coordinator={address}", f"--num_processes={number}", f"--process_id={index}", "--join_seconds=120"]
    argv = json.dumps([[*runs[0], *where], *runs[1:]])
    children.append(
      subprocess.Popen(
        [sys.executable, "-c", _CHILD, argv],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  said = [child.communicate()[1] for child in children]
  assert all(child.returncode == 0 for child in children), "\n".join(said)
  return said


def curves(workdir: pathlib.Path) -> list[dict[int, float]]:
  return [writers.read_metrics(workdir / "metrics.jsonl", f"{name}/loss") for name in ("train", "eval")]


def assert_same_losses(one: pathlib.Path, other: pathlib.Path) -> None:
  for found, expected in zip(curves(one), curves(other), strict=True):
    assert found == pytest.approx(expected, rel=1e-5) and found


def test_two_hosts_train_as_one_does(text, tmp_path):
  """On every mesh, data, order and loss are those of one process with as many devices; one of them writes."""
  runs = lambda folder: [
    arguments(text, tmp_path / folder / name, *mesh, "--config.train.steps=3", "--config.eval.every=3")
    for name, mesh in MESHES.items()
  ]
  said = on_hosts(2, 4, runs("two"))
  assert "step 3/3" in said[0] and "step" not in said[1]
  for argv in runs("one"):
    assert command.main(argv) == 0
  for name in MESHES:
    assert_same_losses(tmp_path / "two" / name, tmp_path / "one" / name)


def test_what_four_hosts_saved_goes_on_on_two_and_on_one(text, tmp_path):
  """With the same batches: the losses are those of a run that one host made without a stop."""
  whole = arguments(text, tmp_path / "whole", "--config.data.num_streams=8")
  assert command.main(whole) == 0
  part = lambda folder, *others: arguments(
    text, tmp_path / folder, "--config.data.num_streams=8", *others, "--config.mesh.data=2"
  )
  stopped = ("--config.train.steps=3", "--config.mesh.fsdp=4", "--config.mesh.tensor=2")
  on_hosts(4, 4, [part("two", *stopped)])
  shutil.copytree(tmp_path / "two", tmp_path / "one")
  on_hosts(2, 2, [part("two")])
  assert command.main(part("one")) == 0
  for folder in ("one", "two"):
    assert_same_losses(tmp_path / folder, tmp_path / "whole")


# ---- Who does not come -----------------------------------------------------------------------------------------------


def options(**values) -> argparse.Namespace:
  defaults = dict(coordinator=None, num_processes=None, process_id=None, join_seconds=1)
  return argparse.Namespace(**(defaults | values))


def called(place: hosts.Place, seconds: float, said: dict[int, str | None]) -> threading.Thread:
  def call():
    try:
      said[place.index] = hosts.roll_call(place, seconds=seconds)
    except UserError as error:
      said[place.index] = str(error)

  thread = threading.Thread(target=call)
  thread.start()
  return thread


def test_a_roll_call_ends_when_all_are_there():
  """However long it might have waited."""
  address, said = f"localhost:{free_port()}", {}
  threads = [called(hosts.Place(address, 3, index), 60.0, said) for index in (2, 0, 1)]
  for thread in threads:
    thread.join()
  assert said == {0: None, 1: None, 2: None}


def test_those_who_are_there_say_who_is_missing(monkeypatch):
  """By number, and by name where the environment has names."""
  monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b,c,d")
  address, said = f"localhost:{free_port()}", {}
  threads = [called(hosts.Place(address, 4, index), 0.5, said) for index in (0, 2)]
  for thread in threads:
    thread.join()
  for index in (0, 2):
    assert f"(process {index}): 2 of 4 processes did not come" in said[index]
    assert "process 1 on b, process 3 on d" in said[index]


def test_without_the_first_process_the_others_say_so():
  """With the address that they called."""
  port = free_port()
  with pytest.raises(UserError, match=f"the first process, at localhost, did not answer .* its port {port - 1}"):
    hosts.roll_call(hosts.Place(f"localhost:{port}", 2, 1), seconds=0.3)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (dict(coordinator="a:1"), "--num_processes is missing"),
    (dict(num_processes=2, process_id=0), "--coordinator is missing"),
    (dict(coordinator="a", num_processes=2, process_id=0), "--coordinator a: give HOST:PORT"),
    (dict(coordinator="a:1", num_processes=2, process_id=2), "of 2 processes the first is 0, the last 1"),
  ],
)
def test_options_that_do_not_go_together(given, message):
  """Before anything is waited for."""
  with pytest.raises(UserError, match=message):
    hosts.find(options(**given))


def test_slurm_says_who_is_who(monkeypatch):
  """The first node of the step is called; a process has the device of its number on the node."""
  for name, value in dict(JOB_ID="7", STEP_NODELIST="n[3-4]", NTASKS="4", PROCID="2", LOCALID="1").items():
    monkeypatch.setenv(f"SLURM_{name}", value)
  place = hosts.find(options())
  assert place.address.startswith("n3:") and (place.number, place.index, place.devices) == (4, 2, (1,))


def test_a_machine_by_itself_is_no_cluster():
  """Nothing is waited for."""
  assert hosts.find(options()) is None
  hosts.join(options())


def test_too_few_hosts_are_refused(text, tmp_path, capsys):
  """Before anything is compiled."""
  assert command.main(arguments(text, tmp_path, "--config.train.hosts=4")) == 2
  assert "config.train.hosts=4, but 1 came" in capsys.readouterr().err


# ---- Who stands still ------------------------------------------------------------------------------------------------


def test_a_long_step_is_told_once(capfd, monkeypatch):
  """With the stacks of all threads; steps of the usual length, and what is between them, are not."""
  # What is printed is read when all of it stands: who reads while another writes may lose some of it.
  dump, told = faulthandler.dump_traceback, threading.Event()
  monkeypatch.setattr(faulthandler, "dump_traceback", lambda **options: (dump(**options), told.set()))
  with hosts.Watchdog(5.0, shortest=0.05).running() as watchdog:
    for _ in range(5):
      watchdog.step()
    assert told.wait(30)
    time.sleep(0.2)
    said = capfd.readouterr().err
    assert said.count("longer than 0 s") == 1 and "test_a_long_step_is_told_once" in said
    watchdog.pause()
    watchdog.step()
  assert capfd.readouterr().err.count("longer than") == 0


def test_a_watchdog_that_is_off_watches_nothing():
  """No thread."""
  before = threading.active_count()
  with hosts.Watchdog(0.0).running() as watchdog:
    watchdog.step()
    assert threading.active_count() == before
