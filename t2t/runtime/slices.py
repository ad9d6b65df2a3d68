"""Slices of a TPU job: what the cluster says of them, checked before this process waits for the others.

GKE's JobSet and Cloud TPU set MEGASCALE_NUM_SLICES, MEGASCALE_SLICE_ID and MEGASCALE_COORDINATOR_ADDRESS on each host.
Without one of them JAX takes each slice for the first or the only one, and the processes wait for each other until a
timeout. `t2t launch gke` adds the number of slices that the job has.
"""

from collections.abc import Mapping
import os

import jax

from t2t import UserError
from t2t.runtime import exit_codes

JOB_SLICES = "T2T_NUM_SLICES"  # set by a launcher
_NUMBER, _INDEX, _ADDRESS = "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"


class Incomplete(UserError):
  """Processes or slices of the run are missing; the same command works when they are back."""

  exit_code = exit_codes.LOST


def number(environment: Mapping[str, str] = os.environ) -> int:
  """Returns the number of slices that the environment says; 1 without a cluster.

  Raises:
    UserError: variables contradict each other, or one is missing.
  """
  slices = _integer(environment, _NUMBER, 1)
  expected = _integer(environment, JOB_SLICES, slices)
  if expected != slices:
    raise UserError(
      f"the job has {expected} slices ({JOB_SLICES}), but {_NUMBER} is {environment.get(_NUMBER) or 'not set'}. Check "
      "that the JobSet has one replica for each slice, and that the cluster's JobSet controller is at least v0.5."
    )
  if slices > 1:
    missing = [name for name in (_INDEX, _ADDRESS) if not environment.get(name)]
    if missing:
      raise UserError(f"{_NUMBER}={slices}, but {missing[0]} is not set. Set it on all hosts.")
    if not 0 <= (index := _integer(environment, _INDEX, 0)) < slices:
      raise UserError(f"{_INDEX}={index} is not a slice of {slices}. Give a number from 0 to {slices - 1}.")
  workers = [name for name in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
  worker = _integer(environment, "TPU_WORKER_ID", 0)
  if workers and not 0 <= worker < len(workers):
    raise UserError(
      f"TPU_WORKER_ID={worker}, but TPU_WORKER_HOSTNAMES has {len(workers)} hosts. Give all pods of a slice "
      "the list of its hosts."
    )
  return slices


def check_devices() -> None:
  """Checks that JAX sees all slices, after all processes have joined.

  Raises:
    Incomplete: a slice is missing.
  """
  if (expected := number()) == 1:
    return
  seen = {getattr(device, "slice_index", 0) for device in jax.devices()}
  if len(seen) != expected:
    raise Incomplete(
      f"{_NUMBER}={expected}, but JAX sees devices of {len(seen)} slices ({', '.join(map(str, sorted(seen)))}). The "
      "job is restarted with all slices; if this repeats, look at the logs of the missing slices."
    )


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
  text = environment.get(name) or str(default)
  if not text.isdecimal():
    raise UserError(f"{name}={text} is not a number. Give the number that the cluster sets.")
  return int(text)
