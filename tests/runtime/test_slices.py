"""Slices of a job: contradictions of the environment are errors before any waiting."""

import types

import jax
import pytest
import test_hosts

from t2t import UserError
from t2t.runtime import exit_codes, hosts, rendezvous, slices

TWO = {
  "MEGASCALE_NUM_SLICES": "2",
  "MEGASCALE_SLICE_ID": "1",
  "MEGASCALE_COORDINATOR_ADDRESS": "a",
  "T2T_NUM_SLICES": "2",
  "TPU_WORKER_HOSTNAMES": "b,c",
  "TPU_WORKER_ID": "1",
}


def test_slices_of_a_whole_environment():
  assert slices.number({}) == slices.number({"T2T_NUM_SLICES": "1"}) == 1
  assert slices.number(TWO) == 2


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"MEGASCALE_NUM_SLICES": ""}, "the job has 2 slices .* MEGASCALE_NUM_SLICES is not set. Check that the JobSet"),
    ({"MEGASCALE_NUM_SLICES": "3"}, "the job has 2 slices .* MEGASCALE_NUM_SLICES is 3"),
    ({"MEGASCALE_SLICE_ID": ""}, "MEGASCALE_NUM_SLICES=2, but MEGASCALE_SLICE_ID is not set"),
    ({"MEGASCALE_COORDINATOR_ADDRESS": ""}, "MEGASCALE_COORDINATOR_ADDRESS is not set"),
    ({"MEGASCALE_SLICE_ID": "2"}, "MEGASCALE_SLICE_ID=2 is not a slice of 2"),
    ({"TPU_WORKER_ID": "2"}, "TPU_WORKER_ID=2, but TPU_WORKER_HOSTNAMES has 2 hosts"),
    ({"MEGASCALE_NUM_SLICES": "two"}, "MEGASCALE_NUM_SLICES=two is not a number"),
  ],
)
def test_a_contradiction_is_refused_before_waiting(monkeypatch, changes, message):
  """With the exit code after which no launcher restarts the job."""
  for name, value in (TWO | changes).items():
    monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match=message) as error:
    hosts.join(test_hosts.options())
  assert error.value.exit_code == exit_codes.REFUSED


def test_missing_processes_and_slices_restart_the_job(monkeypatch):
  """With the exit code after which a JobSet restarts all slices."""
  port = test_hosts.free_port()
  for index in (0, 1):
    with pytest.raises(slices.Incomplete) as error:
      rendezvous.roll_call(rendezvous.ProcessSpec(f"localhost:{port}", 2, index), seconds=0.2)
    assert error.value.exit_code == exit_codes.LOST and exit_codes.goes_on(error.value.exit_code)
  devices = [types.SimpleNamespace(slice_index=index) for index in (0, 0, 2)]
  monkeypatch.setattr(jax, "devices", lambda: devices)
  monkeypatch.setattr(slices, "number", lambda: 2)
  slices.check_devices()
  monkeypatch.setattr(slices, "number", lambda: 3)
  with pytest.raises(slices.Incomplete, match=r"MEGASCALE_NUM_SLICES=3, but JAX sees devices of 2 slices \(0, 2\)"):
    slices.check_devices()


def test_several_slices_are_waited_for_longer(monkeypatch):
  options = test_hosts.options(join_seconds=None)
  assert hosts._join_seconds(options) == 300
  for name, value in TWO.items():
    monkeypatch.setenv(name, value)
  assert hosts._join_seconds(options) == 1_800
