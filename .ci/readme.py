"""Runs every ```sh block of Markdown files in order, in one shell, and stops at the first failure.

A block on two pages runs once. Commands that cannot run here (because they need a cloud, or contain placeholders) are
in indented blocks, which are skipped.

A `t2t` command would spend a third of its time on importing TensorFlow and JAX. Therefore one process imports them and
forks for each command, with the shell's arguments, folder, environment and terminal; so it does for `python` with a
file or standard input. `make train`, which comes first, and `python -m` start normally. All share a cache of compiled
programs, because the pages train the same few models. At the end the most expensive commands are printed.
"""

import contextlib
import gc
import json
import os
import pathlib
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

# What most commands import, at once or later.
_LOADED = (
  *("orbax.checkpoint", "t2t.training.train", "t2t.data.pipeline", "t2t.evaluation", "t2t.inference.predictor"),
  *("t2t.data.train_data", "t2t.data.head_examples", "t2t.data.docs_corpus", "t2t.evaluation.evaluate"),
  *("t2t.inference.eval_samples", "t2t.reports.single", "tensorboardX", "matplotlib.figure", "matplotlib.ticker"),
  *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
)
# A background command is a single process, so that `kill $!` ends it.
_COMMANDS = """
t2t() { if [ "$BASHPID" = "$$" ]; then HERE t2t "$@"; else exec HERE t2t "$@"; fi; }
python() { case "$1" in -?*) command python "$@" ;; *) HERE python "$@" ;; esac; }
"""
# Programs run a few steps, and compile in half of the CPU time; see tests/conftest.py.
_FLAGS = (
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)
_SHOWN = 8  # commands with their CPU time


def blocks_of(*paths: str) -> dict[str, str]:
  """Returns each ```sh block, in order and without duplicates, with the first file that has it."""
  found: dict[str, str] = {}
  for path in paths:
    for block in re.findall(r"^```sh\n(.*?)^```$", pathlib.Path(path).read_text(), re.DOTALL | re.MULTILINE):
      found.setdefault(block, path)
  return found


def run(*paths: str) -> int:
  """Returns the exit status of the first block that fails, or 0."""
  import importlib.metadata

  blocks = blocks_of(*paths)
  if not blocks:
    print(f"{' '.join(paths)}: has no ```sh block", file=sys.stderr)
    return 1
  # The tests have run already, with the same command.
  script = "\n".join(f": {path}\n{block}" for block, path in blocks.items() if block.strip() != "make test")
  flags = _FLAGS
  if int(importlib.metadata.version("jax").split(".")[1]) < 11:  # XLA, from 0.12, ends at an unknown flag
    flags += " --xla_cpu_use_fusion_emitters=false"
  environment = dict(os.environ)
  with tempfile.TemporaryDirectory() as folder:
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    environment |= {
      "JAX_COMPILATION_CACHE_DIR": f"{folder}/programs",
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
      "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    address, commands = f"{folder}/socket", pathlib.Path(folder, "commands.sh")
    here = f"{sys.executable} -IS {pathlib.Path(__file__).resolve()} ask {address}"
    commands.write_text(f"{_COMMANDS.replace('HERE', here)}\n{script}")
    server = subprocess.Popen([sys.executable, __file__, "serve", address], env=environment)
    try:
      code = subprocess.run(["bash", "-euxo", "pipefail", commands], check=False, env=environment).returncode
    finally:
      server.kill()
      server.wait()
    _print_times(pathlib.Path(f"{address}.times"))
    return code


def _print_times(path: pathlib.Path) -> None:
  """Prints the CPU time of the forked commands; each line of the file is a pair of seconds and a command."""
  if not path.exists():
    return
  times = [json.loads(line) for line in path.read_text().splitlines()]
  print(f"CPU time of {len(times)} commands: {sum(seconds for seconds, _ in times):.0f} s; the longest:")
  for seconds, command in sorted(times, reverse=True)[:_SHOWN]:
    print(f"{seconds:6.1f} s  {command[:100]}")


def serve(address: str) -> None:
  """Imports the modules of all commands, and forks for each request."""
  import importlib

  import jax
  from jax._src import xla_bridge

  from t2t import __main__ as command

  for name in _LOADED:
    importlib.import_module(name)
  # Optimizing tf.data functions would take a ninth of a command's CPU time.
  sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  assert not xla_bridge.backends_are_initialized()  # because threads do not survive a fork
  gc.freeze()  # otherwise each command would copy the memory that its garbage collection visits
  with socket.socket(socket.AF_UNIX) as server:
    server.bind(address)
    server.listen()
    while True:
      connection, _ = server.accept()
      message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
      asked = json.loads(message)
      process = os.fork()
      if not process:
        for number, descriptor in enumerate(descriptors):
          os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        # JAX has read its variables already, when it was imported.
        if "JAX_NUM_CPU_DEVICES" in os.environ:
          jax.config.update("jax_num_cpu_devices", int(os.environ["JAX_NUM_CPU_DEVICES"]))
        what, *arguments = sys.argv = asked["arguments"]
        if what == "t2t":
          sys.exit(command.main(arguments))
        sys.argv = arguments
        sys.path[0] = os.path.dirname(arguments[0])
        source = sys.stdin.read() if arguments[0] == "-" else pathlib.Path(arguments[0]).read_text()
        exec(compile(source, arguments[0], "exec"), {"__name__": "__main__", "__file__": arguments[0]})
        sys.exit(0)
      for descriptor in descriptors:
        os.close(descriptor)
      ended = os.pidfd_open(process)
      if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(process, signal.SIGTERM)  # the client has ended
      os.close(ended)
      _, status, usage = os.wait4(process, 0)
      with open(f"{address}.times", "a") as file:
        print(json.dumps([usage.ru_utime + usage.ru_stime, shlex.join(asked["arguments"])]), file=file)
      with contextlib.suppress(BrokenPipeError), connection:
        connection.send(bytes([os.waitstatus_to_exitcode(status) % 256]))


def ask(address: str, *arguments: str) -> int:
  """Returns the exit status of a command.

  Raises:
    OSError: the process that runs it has ended.
  """
  with socket.socket(socket.AF_UNIX) as connection:
    for _ in range(3_000):  # while the server is still importing
      with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        connection.connect(address)
        break
      time.sleep(0.2)
    message = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(message).encode()], [0, 1, 2])
    return connection.recv(1)[0]


if __name__ == "__main__":
  what, *others = sys.argv[1:]
  sys.exit({"run": run, "serve": serve, "ask": ask}[what](*others))
