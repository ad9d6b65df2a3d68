"""Hosts of a run: detection, startup and communication.

A run on several hosts is the same command on each host. Cloud TPU, GKE and SLURM are detected; elsewhere use
`--coordinator`, `--num_processes` and `--process_id`.
"""

import argparse
import json
import os
import re
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from t2t import UserError
from t2t.runtime import cache_folder, console, descriptors, memory, numeric, xla_flags

if TYPE_CHECKING:
  from t2t.runtime import rendezvous

_LOST_SECONDS = 60


# ---- Startup ---------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a command that runs on several hosts."""
  group = parser.add_argument_group("several hosts (detected on Cloud TPU, GKE and SLURM)")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="the first host, and a free port on it")
  group.add_argument(
    "--num_processes", type=numeric.integer(1), metavar="N", help="number of processes that run this command"
  )
  group.add_argument("--process_id", type=numeric.integer(0), metavar="I", help="index of this process, 0 to N-1")
  group.add_argument(
    "--join_seconds",
    type=numeric.integer(1),
    metavar="S",
    help="time to wait for all processes; default: 300, with several TPU slices 1800",
  )
  group.add_argument(
    "--lost_seconds",
    type=numeric.integer(1),
    default=_LOST_SECONDS,
    metavar="S",
    help=f"all processes exit if one does not answer for this time; default: {_LOST_SECONDS}",
  )


def place_of(options: argparse.Namespace) -> "rendezvous.ProcessSpec | None":
  """Returns this process's place among all, from the options or the environment; None for a single process.

  Raises:
    UserError: the options contradict each other.
  """
  typed = {name: getattr(options, name) for name in ("coordinator", "num_processes", "process_id")}
  if any(value is not None for value in typed.values()):
    missing = [name for name, value in typed.items() if value is None]
    if missing:
      raise UserError(f"--{missing[0]} is missing: give --coordinator, --num_processes and --process_id together")
    host, _, port = options.coordinator.rpartition(":")
    if not host or not port.isdecimal():
      raise UserError(
        f"--coordinator {options.coordinator} is not an address. Give HOST:PORT, for example 10.0.0.2:8476."
      )
    if not 0 <= options.process_id < options.num_processes:
      raise UserError(
        f"--process_id {options.process_id} does not exist in a run with --num_processes {options.num_processes}. "
        f"Give a number from 0 to {options.num_processes - 1}."
      )
    return _place(options.coordinator, options.num_processes, options.process_id)
  # A private module that jax.distributed.initialize uses; the public function cannot detect without joining.
  from jax._src import clusters

  address, number, index, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, _join_seconds(options)
  )
  if address is None or number is None or number < 2:
    return None
  return _place(address, number, index, None if devices is None else tuple(devices))


def _place(*values: Any) -> "rendezvous.ProcessSpec":
  from t2t.runtime import rendezvous

  return rendezvous.ProcessSpec(*values)


def log_once(text: str) -> None:
  """Prints a message on the first process only."""
  if jax.process_index() == 0:
    console.tell(text)


def start(options: argparse.Namespace, train: Any) -> None:
  """Does everything that must precede JAX's first backend: memory, XLA flags, other hosts.

  Args:
    options: of a parser with `add_options`.
    train: section of the config, typed or as a record. Its xla_flags enables xla_flags.py, its
      compilation_cache is the folder of `keep_programs`; for deterministic see `xla_flags.make_deterministic`.

  Raises:
    UserError: see `join`, `descriptors.allow` and `xla_flags.make_deterministic`.
  """
  descriptors.allow()
  memory.keep_freed_memory()
  start_enough_cpu_threads()
  if train.xla_flags:
    xla_flags.apply()
  if train.deterministic:
    xla_flags.make_deterministic()
  keep_programs(train.compilation_cache)
  join(options)


def keep_programs(folder: str) -> None:
  """Enables JAX's persistent compilation cache, so that for example a preempted run does not compile again.

  Args:
    folder: local or gs://; "auto" for t2t's own cache folder; "" for no cache. The environment variables
      JAX_COMPILATION_CACHE_DIR and JAX_ENABLE_COMPILATION_CACHE have precedence.
  """
  if folder and not jax.config.jax_compilation_cache_dir:
    path = str(cache_folder.cache_dir() / "compiled" / cache_folder.processor()) if folder == "auto" else folder
    jax.config.update("jax_compilation_cache_dir", path)


def join(options: argparse.Namespace) -> None:
  """Joins this process with the other processes of the run, if there are any; must precede the first use of devices.

  Raises:
    UserError: the environment contradicts itself (`slices.number`).
    Incomplete: some processes did not come within `join_seconds`, with their names; or JAX does not see all slices.
  """
  if any(name in os.environ for name in ("MEGASCALE_NUM_SLICES", "T2T_NUM_SLICES")):
    from t2t.runtime import slices

    slices.number()  # before place_of waits
  process = place_of(options)
  if process is not None:
    from t2t.runtime import rendezvous

    rendezvous.join(process, seconds=_join_seconds(options), lost_seconds=options.lost_seconds)


def _join_seconds(options: argparse.Namespace) -> int:
  # A spot slice that was taken away may come back late, and a JobSet limits the number of its restarts.
  return options.join_seconds or (1_800 if "MEGASCALE_NUM_SLICES" in os.environ else 300)


def check_number(wanted: int) -> None:
  """Checks that the number of processes is the config's.

  Raises:
    UserError: fewer or more.
  """
  if wanted and wanted != jax.process_count():
    raise UserError(
      f"config.train.num_processes={wanted}, but the number of processes is {jax.process_count()}. Start the command "
      f"on every host, or set config.train.num_processes={jax.process_count()}."
    )


def share(value: Any) -> Any:
  """Broadcasts the first process's value to all processes; the other values are ignored.

  Args:
    value: a JSON value.
  """
  if jax.process_count() == 1:
    return value
  content = np.frombuffer(json.dumps(value).encode(), np.uint8)
  size = int(multihost_utils.broadcast_one_to_all(np.array(content.size)))
  padded = np.zeros(1 << size.bit_length(), np.uint8)  # few sizes, because each compiles a program
  if jax.process_index() == 0:
    padded[:size] = content
  return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(padded))[:size].tobytes())


def gather(value: Any) -> list[Any]:
  """Returns the value of each process, in order, on all processes.

  Args:
    value: a JSON value.
  """
  if jax.process_count() == 1:
    return [value]
  content = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = np.asarray(multihost_utils.process_allgather(np.array(content.size)))
  padded = np.zeros(1 << int(sizes.max()).bit_length(), np.uint8)
  padded[: content.size] = content
  rows = np.asarray(multihost_utils.process_allgather(padded))
  return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def start_enough_cpu_threads() -> None:
  """Makes XLA start two threads for each CPU device; must precede JAX's first backend.

  By default XLA starts as many threads as there are cores or devices, whichever is more. Some may then run one part of
  a collective while the others wait to launch programs more than 32 launches later. That blocks forever, or until XLA
  aborts the process (seen with jaxlib 0.10.2: three of eight threads in `AwaitAndLogIfStuck`, five in `ExecuteLaunch`
  -> `Semaphore::Acquire`). XLA reads NPROC (`DefaultThreadPoolSize`); a value that is already set stays.
  """
  flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
  devices = max(jax.config.jax_num_cpu_devices, int(flag[1]) if flag else 1)
  if devices > 1:
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 2 * devices)))
