"""Runs every ```sh block of Markdown files in order, in one shell, and stops at the first failure.

A block on two pages runs once. Commands that cannot run here (because they need a cloud, or contain placeholders) are
in indented blocks, which are skipped.

A `t2t` command would spend a third of its time on importing TensorFlow and JAX. Therefore one process imports them and
forks for each command, with the shell's arguments, folder, environment and terminal. `make train`, which comes first,
starts normally.
"""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

_LOADED = ("orbax.checkpoint", "t2t.training.train", "t2t.data.pipeline", "t2t.evaluation", "t2t.inference.predictor")
# A background command is a single process, so that `kill $!` ends it.
_COMMAND = 't2t() {{ if [ "$BASHPID" = "$$" ]; then {here} "$@"; else exec {here} "$@"; fi; }}'


def blocks_of(*paths: str) -> dict[str, str]:
  """Returns each ```sh block, in order and without duplicates, with the first file that has it."""
  found: dict[str, str] = {}
  for path in paths:
    for block in re.findall(r"^```sh\n(.*?)^```$", pathlib.Path(path).read_text(), re.DOTALL | re.MULTILINE):
      found.setdefault(block, path)
  return found


def run(*paths: str) -> int:
  """Returns the exit status of the first block that fails, or 0."""
  blocks = blocks_of(*paths)
  if not blocks:
    print(f"{' '.join(paths)}: has no ```sh block", file=sys.stderr)
    return 1
  # The tests have run already, with the same command.
  script = "\n".join(f": {path}\n{block}" for block, path in blocks.items() if block.strip() != "make test")
  # Runs are short, so compiling without optimization is faster in total.
  flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
  environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
  with tempfile.TemporaryDirectory() as folder:
    address = f"{folder}/socket"
    server = subprocess.Popen([sys.executable, __file__, "serve", address])
    try:
      here = f"{sys.executable} -IS {pathlib.Path(__file__).resolve()} ask {address}"
      return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", f"{_COMMAND.format(here=here)}\n{script}"], check=False, env=environment
      ).returncode
    finally:
      server.kill()


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
        sys.argv = ["t2t", *asked["arguments"]]
        sys.exit(command.main(asked["arguments"]))
      for descriptor in descriptors:
        os.close(descriptor)
      ended = os.pidfd_open(process)
      if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(process, signal.SIGTERM)  # the client has ended
      os.close(ended)
      _, status = os.waitpid(process, 0)
      with contextlib.suppress(BrokenPipeError), connection:
        connection.send(bytes([os.waitstatus_to_exitcode(status) % 256]))


def ask(address: str, *arguments: str) -> int:
  """Returns the exit status of a command.

  Raises:
    OSError: the process that runs it has ended.
  """
  with socket.socket(socket.AF_UNIX) as connection:
    for _ in range(600):  # while the server is still importing
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
