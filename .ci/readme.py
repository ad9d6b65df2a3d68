"""Runs every ```sh block of Markdown files, top to bottom, in one shell, and stops at the first that fails.

A block that stands on two pages is run once.  What cannot be run here (it asks a cloud, or has names that the reader
is to replace) is an indented block, which nobody runs.

Of its `t2t` commands each would spend a third of its time on loading TensorFlow and JAX.  A process that has loaded
them forks for each command, and gives it the shell's arguments, folder, environment and terminal.  `make train`, which
comes first, starts as everybody's does.
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
# In the background it is the process that `kill $!` ends, as a command is.
_COMMAND = 't2t() {{ if [ "$BASHPID" = "$$" ]; then {here} "$@"; else exec {here} "$@"; fi; }}'


def blocks_of(*paths: str) -> dict[str, str]:
  """Each ```sh block, in order and once, and the first file that has it."""
  found: dict[str, str] = {}
  for path in paths:
    for block in re.findall(r"^```sh\n(.*?)^```$", pathlib.Path(path).read_text(), re.DOTALL | re.MULTILINE):
      found.setdefault(block, path)
  return found


def run(*paths: str) -> int:
  """The exit status of the first block that fails, or 0."""
  blocks = blocks_of(*paths)
  if not blocks:
    print(f"{' '.join(paths)}: no ```sh block found", file=sys.stderr)
    return 1
  # The tests have run already, with the same command.
  script = "\n".join(f": {path}\n{block}" for block, path in blocks.items() if block.strip() != "make test")
  # Each trains for a few steps: programs that are compiled as they are take less time than ones that are optimised.
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
  """Loads what all commands load, and forks for each that is asked for."""
  import importlib

  from jax._src import xla_bridge

  from t2t import __main__ as command

  for name in _LOADED:
    importlib.import_module(name)
  # Functions that read data are as the programs above: to optimise them is a ninth of a command's CPU time.
  sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
  assert not xla_bridge.backends_are_initialized()  # whose threads no fork takes along
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
        sys.argv = ["t2t", *asked["arguments"]]
        sys.exit(command.main(asked["arguments"]))
      for descriptor in descriptors:
        os.close(descriptor)
      ended = os.pidfd_open(process)
      if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(process, signal.SIGTERM)  # who asked for it was ended
      os.close(ended)
      _, status = os.waitpid(process, 0)
      with contextlib.suppress(BrokenPipeError), connection:
        connection.send(bytes([os.waitstatus_to_exitcode(status) % 256]))


def ask(address: str, *arguments: str) -> int:
  """The exit status of a command.

  Raises:
    OSError: the process that runs it has ended.
  """
  with socket.socket(socket.AF_UNIX) as connection:
    for _ in range(600):  # it may be loading still
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
