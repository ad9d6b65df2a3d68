"""The hosts of one run: how they find each other, and what is said of one that does not come.

A run on several hosts is the same command on each of them.  Who they are comes from Cloud TPU, GKE or SLURM, or from
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
from t2t.runtime import cache_folder, console, descriptors, memory, numeric, quiet, xla_flags

if TYPE_CHECKING:
  from t2t.runtime import rendezvous

_JOIN_SECONDS, _LOST_SECONDS = 300, 60


# ---- Finding each other ----------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
  """The options of a command that runs on several hosts."""
  group = parser.add_argument_group("several hosts (found by themselves on Cloud TPU, GKE and SLURM)")
  group.add_argument("--coordinator", metavar="HOST:PORT", help="the first host, and a port that is free there")
  group.add_argument("--num_processes", type=numeric.integer(1), metavar="N", help="how many run this command")
  group.add_argument("--process_id", type=numeric.integer(0), metavar="I", help="which of them this is, 0 to N-1")
  group.add_argument(
    "--join_seconds",
    type=numeric.integer(1),
    default=_JOIN_SECONDS,
    metavar="S",
    help=f"to wait for all; default: {_JOIN_SECONDS}",
  )
  group.add_argument(
    "--lost_seconds",
    type=numeric.integer(1),
    default=_LOST_SECONDS,
    metavar="S",
    help=f"all end when nothing was heard of one for so long; default: {_LOST_SECONDS}",
  )


def place_of(options: argparse.Namespace) -> "rendezvous.ProcessSpec | None":
  """What the options or the environment say of the other hosts; None: there are none.

  Raises:
    UserError: options that do not go together.
  """
  typed = {name: getattr(options, name) for name in ("coordinator", "num_processes", "process_id")}
  if any(value is not None for value in typed.values()):
    missing = [name for name, value in typed.items() if value is None]
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
    return _place(options.coordinator, options.num_processes, options.process_id)
  # Not public, but what jax.distributed.initialize asks; it cannot be asked without joining.
  from jax._src import clusters

  address, number, index, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, options.join_seconds
  )
  if address is None or number is None or number < 2:
    return None
  return _place(address, number, index, None if devices is None else tuple(devices))


def _place(*values: Any) -> "rendezvous.ProcessSpec":
  from t2t.runtime import rendezvous

  return rendezvous.ProcessSpec(*values)


def log_once(text: str) -> None:
  """Tells what is going on, once, however many hosts there are."""
  if jax.process_index() == 0:
    console.tell(text)


def start(options: argparse.Namespace, train: Any) -> None:
  """All that comes before JAX starts a backend, and would do nothing after it: memory, XLA's flags, the other hosts.

  Args:
    options: of a parser with `add_options`.
    train: that section of the config, as it is typed or as a record: its xla_flags has those of xla_flags.py set, its
      compilation_cache is the folder of `keep_programs`, and for deterministic see `xla_flags.make_deterministic`.

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
  process = place_of(options)
  if process is None:
    return
  from t2t.runtime import peer_monitor, rendezvous

  quiet.without_gloo()
  peers = rendezvous.roll_call(process, seconds=options.join_seconds)
  peer_monitor.Link(process.index, peers, silence=options.lost_seconds).start_listening()
  jax.config.update("jax_cpu_collectives_implementation", "gloo")  # of others nothing is changed by it
  # It would take SIGTERM for itself; see preemption.py.
  jax.config.update("jax_enable_preemption_service", False)
  jax.distributed.initialize(
    process.address,
    process.number,
    process.index,
    local_device_ids=process.devices,
    initialization_timeout=options.join_seconds,
    # The link notices sooner, and says who.
    heartbeat_timeout_seconds=2 * options.lost_seconds + 60,
  )


def check_number(wanted: int) -> None:
  """Whether as many hosts came as the config says.

  Raises:
    UserError: fewer or more.
  """
  if wanted and wanted != jax.process_count():
    raise UserError(
      f"config.train.num_processes={wanted}, but {jax.process_count()} came: start the command on every host, or set"
      f" config.train.num_processes={jax.process_count()}"
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


def gather(value: Any) -> list[Any]:
  """The value of each process, in their order, on all.

  Args:
    value: what JSON takes, and gives back as it was.
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
  """Has XLA start two threads for each CPU device; it is called before JAX starts a backend.

  Of as many threads as there are cores or devices, whichever is more, some may run one part of a collective while the
  others wait to launch what comes more than 32 programs later: for ever, or until XLA ends the process (seen with
  jaxlib 0.10.2: three of eight threads in `AwaitAndLogIfStuck`, five in `ExecuteLaunch` -> `Semaphore::Acquire`).
  NPROC is what XLA reads (`DefaultThreadPoolSize`); one that is set stays.
  """
  flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
  devices = max(jax.config.jax_num_cpu_devices, int(flag[1]) if flag else 1)
  if devices > 1:
    os.environ.setdefault("NPROC", str(max(os.cpu_count() or 1, 2 * devices)))
