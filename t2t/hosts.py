"""The hosts of one run: how they find each other, and what is said when one of them does not come or stands still.

A run on several hosts is the same command on each of them.  Who they are comes from Cloud TPU, GKE or SLURM, or from
`--coordinator`, `--num_processes` and `--process_id`.
"""

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import faulthandler
import os
import socket
import statistics
import sys
import threading
import time

import jax
from ml_collections import ConfigDict

from t2t import UserError, xla_flags
from t2t.models import cpu

_JOIN_SECONDS = 300
_MISSING_SHOWN = 8
# A step that takes so many times the usual one, and no less than so many seconds, is told.
_SHORTEST_STALL = 60.0


@dataclasses.dataclass(frozen=True)
class Place:
  """One process of a run among all.

  address: host:port of the first, which the others call.
  number: of all processes.
  index: of this one.
  devices: numbers of the devices of this machine that are its own; None: all.
  """

  address: str
  number: int
  index: int
  devices: tuple[int, ...] | None = None


# ---- Finding each other ----------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
  """The options of a command that runs on several hosts."""
  group = parser.add_argument_group("several hosts (found by themselves on Cloud TPU, GKE and SLURM)")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="the first host, and a port that is free there")
  group.add_argument("--num_processes", type=int, metavar="N", help="how many run this command")
  group.add_argument("--process_id", type=int, metavar="I", help="which of them this is, 0 to N-1")
  group.add_argument(
    "--join_seconds", type=int, default=_JOIN_SECONDS, metavar="S", help=f"to wait for all; default: {_JOIN_SECONDS}"
  )


def find(options: argparse.Namespace) -> Place | None:
  """What the options or the environment say of the other hosts; None: there are none.

  Raises:
    UserError: options that do not go together.
  """
  given = {name: getattr(options, name) for name in ("coordinator", "num_processes", "process_id")}
  if any(value is not None for value in given.values()):
    missing = [name for name, value in given.items() if value is None]
    if missing:
      raise UserError(f"--{missing[0]} is missing; --coordinator, --num_processes and --process_id go together")
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdecimal():
      raise UserError(f"--coordinator {options.coordinator}: give HOST:PORT, for example 10.0.0.2:8476")
    if not 0 <= options.process_id < options.num_processes:
      raise UserError(
        f"--process_id {options.process_id}: of {options.num_processes} processes the first is 0, the last"
        f" {options.num_processes - 1}"
      )
    return Place(options.coordinator, options.num_processes, options.process_id)
  # Not public, but what jax.distributed.initialize asks; it cannot be asked without joining.
  from jax._src import clusters

  address, number, index, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, options.join_seconds
  )
  if address is None or number is None or number < 2:
    return None
  return Place(address, number, index, None if devices is None else tuple(devices))


def start(options: argparse.Namespace, config: ConfigDict) -> None:
  """All that comes before JAX starts a backend, and would do nothing after it: memory, XLA's flags, the other hosts.

  Args:
    options: of a parser with `add_options`.
    config: see configs/default.py.

  Raises:
    UserError: see `join`.
  """
  cpu.keep_freed_memory()
  if config.train.xla_flags:
    xla_flags.apply()
  join(options)


def join(options: argparse.Namespace) -> None:
  """Makes this process one of those that run together; alone it does nothing.  Call it before devices are asked for.

  Raises:
    UserError: some have not come after `join_seconds`: says which.
  """
  place = find(options)
  if place is None:
    return
  roll_call(place, seconds=options.join_seconds)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")  # of others nothing is changed by it
  jax.distributed.initialize(
    place.address,
    place.number,
    place.index,
    local_device_ids=place.devices,
    initialization_timeout=options.join_seconds,
  )


def roll_call(place: Place, *, seconds: float) -> None:
  """Waits until all processes are there.

  JAX waits as well, but then ends the process without a word about who is missing.  Here each process calls the first
  one, at the port below the coordinator's, and is told by it.

  Raises:
    UserError: some are not there in time; names them.
  """
  host, _, port = place.address.rpartition(":")
  here = f"{socket.gethostname()} (process {place.index})"
  if place.index == 0:
    missing = _take_roll(int(port) - 1, place, seconds)
  else:
    missing = _answer((host.strip("[]"), int(port) - 1), place, seconds)
  if missing:
    shown = ", ".join(_name(index) for index in missing[:_MISSING_SHOWN])
    more = f" and {len(missing) - _MISSING_SHOWN} more" if len(missing) > _MISSING_SHOWN else ""
    raise UserError(
      f"{here}: {len(missing)} of {place.number} processes did not come within {seconds:.0f} s: {shown}{more};"
      " look at their logs, start the command on every host, or give --join_seconds more"
    )


def _name(index: int) -> str:
  """What is known of a process that has not said its name."""
  names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
  return f"process {index}" + (f" on {names[index]}" if index < len(names) else "")


def _take_roll(port: int, place: Place, seconds: float) -> list[int]:
  """The processes that have not called after `seconds`; all who have are told."""
  deadline = time.monotonic() + seconds
  callers: dict[int, socket.socket] = {}
  with contextlib.ExitStack() as stack:
    try:
      server = stack.enter_context(socket.create_server(("", port), backlog=place.number))
    except OSError as error:
      raise UserError(
        f"port {port} of {socket.gethostname()} is taken ({error.strerror}); another run? give --coordinator another"
      ) from error
    while len(callers) < place.number - 1 and time.monotonic() < deadline:
      server.settimeout(max(0.01, deadline - time.monotonic()))
      try:
        caller = stack.enter_context(server.accept()[0])
        caller.settimeout(5.0)
        callers[int(caller.makefile().readline())] = caller
      except (TimeoutError, ValueError):  # nobody, or nobody of ours
        continue
    missing = [index for index in range(1, place.number) if index not in callers]
    for caller in callers.values():
      with contextlib.suppress(OSError):
        caller.sendall((",".join(map(str, missing)) + "\n").encode())
  return missing


def _answer(address: tuple[str, int], place: Place, seconds: float) -> list[int]:
  """What the first process says: who is missing."""
  deadline = time.monotonic() + seconds
  while True:
    try:
      with socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic())) as caller:
        caller.sendall(f"{place.index}\n".encode())
        # It may have begun to wait when this one did.
        caller.settimeout(max(0.1, deadline - time.monotonic()) + seconds)
        said = caller.makefile().readline()
      if not said:
        raise ConnectionError("it hung up")
      return [int(index) for index in said.strip().split(",") if index]
    except OSError as error:
      if time.monotonic() >= deadline:
        raise UserError(
          f"{socket.gethostname()} (process {place.index}): the first process, at {address[0]}, did not answer within"
          f" {seconds:.0f} s ({error}); was the command started there, and may this host reach its port {address[1]}?"
        ) from error
      time.sleep(0.2)


def check_number(wanted: int) -> None:
  """Whether as many hosts came as the config says.

  Raises:
    UserError: fewer or more.
  """
  if wanted and wanted != jax.process_count():
    raise UserError(
      f"config.train.hosts={wanted}, but {jax.process_count()} came: start the command on every host, or set"
      f" config.train.hosts={jax.process_count()}"
    )


# ---- Standing still --------------------------------------------------------------------------------------------------


class Watchdog:
  """Writes the stacks of all threads to stderr when a step takes many times as long as the steps before it.

  So the log of every host says where it stands when one of them is gone, instead of nothing.

  Args:
    factor: how many times the usual step; 0: never.
    shortest: seconds below which no step is long.
  """

  def __init__(self, factor: float, *, shortest: float = _SHORTEST_STALL):
    self._factor, self._shortest = factor, shortest
    self._seconds: list[float] = []
    self._began: float | None = None
    self._told = False
    self._changed = threading.Condition()
    self._closed = False

  @contextlib.contextmanager
  def running(self) -> Iterator["Watchdog"]:
    """Watches until the block ends."""
    thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
    if self._factor:
      thread.start()
    try:
      yield self
    finally:
      with self._changed:
        self._closed = True
        self._changed.notify()

  def step(self) -> None:
    """A step has ended, and the next one begins."""
    now = time.monotonic()
    with self._changed:
      if self._began is not None:
        self._seconds = [*self._seconds[-49:], now - self._began]
      self._began, self._told = now, False
      self._changed.notify()

  def pause(self) -> None:
    """What comes until the next `step` is none: an evaluation, a checkpoint."""
    with self._changed:
      self._began = None
      self._changed.notify()

  def _limit(self) -> float | None:
    """How long the running step may take; None: it is not known, or there is none."""
    if self._began is None or len(self._seconds) < 3 or self._told:
      return None
    return max(self._factor * statistics.median(self._seconds), self._shortest)

  def _watch(self) -> None:
    with self._changed:
      while not self._closed:
        limit = self._limit()
        left = None if limit is None else self._began + limit - time.monotonic()
        if left is not None and left <= 0:
          self._told = True
          print(
            f"\nhost {jax.process_index()} ({socket.gethostname()}): this step takes longer than {limit:.0f} s, usual"
            f" are {statistics.median(self._seconds):.2g} s; where it stands:",
            file=sys.stderr,
            flush=True,
          )
          faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
          continue
        self._changed.wait(left)
