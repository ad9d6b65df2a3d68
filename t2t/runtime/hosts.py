"""The hosts of one run: how they find each other, and what is said of one that does not come.

A run on several hosts is the same command on each of them.  Who they are comes from Cloud TPU, GKE or SLURM, or from
`--coordinator`, `--num_processes` and `--process_id`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import sys
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from t2t import UserError
from t2t.runtime import cache_folder, link, memory, xla_flags

_JOIN_SECONDS, _LOST_SECONDS = 300, 60
_MISSING_SHOWN = 8


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
  group.add_argument(
    "--lost_seconds",
    type=int,
    default=_LOST_SECONDS,
    metavar="S",
    help=f"all end when nothing was heard of one for so long; default: {_LOST_SECONDS}",
  )


def place_of(options: argparse.Namespace) -> Place | None:
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


def say(text: str) -> None:
  """Tells what is going on, once, however many hosts there are."""
  if jax.process_index() == 0:
    print(text, file=sys.stderr, flush=True)


def start(options: argparse.Namespace, *, compiler_flags: bool, programs: str) -> None:
  """All that comes before JAX starts a backend, and would do nothing after it: memory, XLA's flags, the other hosts.

  Args:
    options: of a parser with `add_options`.
    compiler_flags: sets those of xla_flags.py.
    programs: see `keep_programs`.

  Raises:
    UserError: see `join`.
  """
  memory.keep_freed_memory()
  if compiler_flags:
    xla_flags.apply()
  keep_programs(programs)
  join(options)


def keep_programs(folder: str) -> None:
  """Has JAX keep what it compiles, and find it when the same program is compiled again: after a preemption, say.

  Args:
    folder: local or gs://; "auto": in t2t's own cache folder; "": nothing is kept.  What the environment says
      (JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE) has the last word.
  """
  if folder and not jax.config.jax_compilation_cache_dir:
    path = str(cache_folder.cache_dir() / "compiled" / cache_folder.processor()) if folder == "auto" else folder
    jax.config.update("jax_compilation_cache_dir", path)


def join(options: argparse.Namespace) -> None:
  """Makes this process one of those that run together; alone it does nothing.  Call it before devices are asked for.

  Raises:
    UserError: some have not come after `join_seconds`: says which.
  """
  place = place_of(options)
  if place is None:
    return
  others = roll_call(place, seconds=options.join_seconds)
  link.Link(place.index, others, silence=options.lost_seconds).start_listening()
  jax.config.update("jax_cpu_collectives_implementation", "gloo")  # of others nothing is changed by it
  # It would take SIGTERM for itself; see stopping.py.
  jax.config.update("jax_enable_preemption_service", False)
  jax.distributed.initialize(
    place.address,
    place.number,
    place.index,
    local_device_ids=place.devices,
    initialization_timeout=options.join_seconds,
    # The link notices sooner, and says who.
    heartbeat_timeout_seconds=2 * options.lost_seconds + 60,
  )


def roll_call(place: Place, *, seconds: float) -> dict[int, tuple[socket.socket, str]]:
  """Waits until all processes are there.

  JAX waits as well, but then ends the process without a word about who is missing.  Here each process calls the first
  one, at the port below the coordinator's, and is told by it.

  Returns:
    The connections, which stay open: index -> (connection, name of the host); see `link.Link`.

  Raises:
    UserError: some are not there in time; names them.
  """
  host, _, port = place.address.rpartition(":")
  here = f"{socket.gethostname()} (process {place.index})"
  if place.index == link.FIRST:
    others, missing = _take_roll(int(port) - 1, place, seconds)
  else:
    others, missing = _answer((host.strip("[]"), int(port) - 1), place, seconds)
  if missing:
    for connection, _ in others.values():
      connection.close()
    shown = ", ".join(_name(index) for index in missing[:_MISSING_SHOWN])
    more = f" and {len(missing) - _MISSING_SHOWN} more" if len(missing) > _MISSING_SHOWN else ""
    raise UserError(
      f"{here}: {len(missing)} of {place.number} processes did not come within {seconds:.0f} s: {shown}{more};"
      " look at their logs, start the command on every host, or give --join_seconds more"
    )
  return others


def _name(index: int) -> str:
  """What is known of a process that has not said its name."""
  names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
  return f"process {index}" + (f" on {names[index]}" if index < len(names) else "")


def _line(connection: socket.socket) -> str:
  """What comes until the end of the line, and nothing of what comes after it; "": it was hung up."""
  found = b""
  while not found.endswith(b"\n"):
    byte = connection.recv(1)
    if not byte:
      return ""
    found += byte
  return found.decode().strip()


def _take_roll(port: int, place: Place, seconds: float) -> tuple[dict[int, tuple[socket.socket, str]], list[int]]:
  """Who has called after `seconds`, and who has not; all who have are told."""
  deadline = time.monotonic() + seconds
  callers: dict[int, tuple[socket.socket, str]] = {}
  try:
    server = socket.create_server(("", port), backlog=place.number)
  except OSError as error:
    raise UserError(
      f"port {port} of {socket.gethostname()} is taken ({error.strerror}); another run? give --coordinator another"
    ) from error
  with server:
    while len(callers) < place.number - 1 and time.monotonic() < deadline:
      server.settimeout(max(0.01, deadline - time.monotonic()))
      try:
        caller = server.accept()[0]
        caller.settimeout(5.0)
        index, _, name = _line(caller).partition(" ")
        callers[int(index)] = caller, name
      except (OSError, ValueError):  # nobody, or nobody of ours
        continue
  missing = [index for index in range(1, place.number) if index not in callers]
  for caller, _ in callers.values():
    with contextlib.suppress(OSError):
      caller.sendall(("all" if not missing else ",".join(map(str, missing))).encode() + b"\n")
  return callers, missing


def _answer(
  address: tuple[str, int], place: Place, seconds: float
) -> tuple[dict[int, tuple[socket.socket, str]], list[int]]:
  """The first process, and who is missing, as it says."""
  deadline = time.monotonic() + seconds
  while True:
    caller = None
    try:
      caller = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
      caller.sendall(f"{place.index} {socket.gethostname()}\n".encode())
      # It may have begun to wait when this one did.
      caller.settimeout(max(0.1, deadline - time.monotonic()) + seconds)
      said = _line(caller)
      if not said:
        raise ConnectionError("it hung up")
      return {link.FIRST: (caller, address[0])}, [] if said == "all" else [int(index) for index in said.split(",")]
    except OSError as error:
      if caller is not None:
        caller.close()
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


def share(value: Any) -> Any:
  """The first process's value, on all; those of the others count for nothing.

  Args:
    value: what JSON takes, and gives back as it was.
  """
  if jax.process_count() == 1:
    return value
  content = np.frombuffer(json.dumps(value).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.array(content.size)))
  padded = np.zeros(1 << size.bit_length(), np.uint8)  # few sizes: each is a program of its own
  if jax.process_index() == 0:
    padded[:size] = content
  return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded))[:size].tobytes())
