"""The roll call of a run: each process calls the first one, proves that it is of the run, and is told whether all came.

Anyone who reaches the port may call.  Who does not know the run's token is hung up on, and cannot hold up the others:
lines, seconds and callers at a time are limited.  The token is T2T_RUN_TOKEN, which `t2t launch` makes anew for each
job; without it, it follows from what all processes know, which keeps off those that call by mistake.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import os
import queue
import secrets
import socket
import threading
import time

from t2t import UserError
from t2t.runtime import console, peer_monitor

TOKEN = "T2T_RUN_TOKEN"
_MISSING_SHOWN = 8
_LINE, _LONG_LINE = 1024, 65536  # bytes: of a greeting; of the numbers of ten thousand processes that are missing
_GREETING_SECONDS = 5.0
_STRANGERS = 32  # that may call at a time, besides the processes of the run


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
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


Others = dict[int, tuple[socket.socket, str]]  # index -> its connection, name of its host


def roll_call(process: ProcessSpec, *, seconds: float) -> Others:
  """Waits until all processes are there.

  JAX waits as well, but then ends the process without a word about who is missing.  Here each process calls the first
  one, at the port below the coordinator's, and is told by it.

  Returns:
    The connections, which stay open: index -> (connection, name of the host); see `peer_monitor.Link`.

  Raises:
    UserError: some are not there in time; names them.
  """
  host, _, port = process.address.rpartition(":")
  here = f"{socket.gethostname()} (process {process.index})"
  token = _token(process)
  if process.index == peer_monitor.FIRST:
    peers, missing = _Roll(process, token).take(int(port) - 1, seconds)
  else:
    peers, missing = _answer((host.strip("[]"), int(port) - 1), process, token, seconds)
  if missing:
    for connection, _ in peers.values():
      connection.close()
    shown = ", ".join(_name(index) for index in missing[:_MISSING_SHOWN])
    more = f" and {len(missing) - _MISSING_SHOWN} more" if len(missing) > _MISSING_SHOWN else ""
    raise UserError(
      f"{here}: {len(missing)} of {process.number} processes did not come within {seconds:.0f} s: {shown}{more};"
      " look at their logs, start the command on every host, or give --join_seconds more"
    )
  return peers


def _token(process: ProcessSpec) -> bytes:
  secret = os.environ.get(TOKEN) or f"{process.address} {process.number} {os.environ.get('SLURM_JOB_ID', '')}"
  return hashlib.sha256(secret.encode()).digest()


def _proof(token: bytes, *words: str) -> str:
  """What only who knows the token can say of these words."""
  return hmac.new(token, "\n".join(words).encode(), hashlib.sha256).hexdigest()


def _name(index: int) -> str:
  """What is known of a process that has not said its name."""
  names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
  return f"process {index}" + (f" on {names[index]}" if index < len(names) else "")


def _line(connection: socket.socket, seconds: float, *, limit: int = _LINE) -> str:
  """What comes until the end of the line, and nothing of what comes after it.

  Raises:
    OSError: nothing comes in time, it is hung up, or the line is too long.
  """
  deadline, received = time.monotonic() + seconds, b""
  while not received.endswith(b"\n"):
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    byte = connection.recv(1)
    if not byte:
      raise ConnectionError("it hung up")
    received += byte
    if len(received) > limit or time.monotonic() > deadline:
      raise ConnectionError("what it said has no end")
  return received.decode("ascii", "replace").strip()


class _Roll:
  """Who has called the first process."""

  def __init__(self, process: ProcessSpec, token: bytes):
    self._place, self._token = process, token
    self._came: queue.Queue[tuple[int, socket.socket, str, str]] = queue.Queue()
    self._greeting = threading.Semaphore(process.number + _STRANGERS)
    self._told = threading.Lock()  # taken for good by the first stranger

  def take(self, port: int, seconds: float) -> tuple[Others, list[int]]:
    """Who has called after `seconds`, and who has not; all who have are told.

    Raises:
      UserError: another program has the port.
    """
    deadline = time.monotonic() + seconds
    callers: dict[int, tuple[socket.socket, str, str]] = {}
    try:
      server = socket.create_server(("", port), backlog=max(128, self._place.number + _STRANGERS))
    except OSError as error:
      raise UserError(
        f"port {port} of {socket.gethostname()} is taken ({error.strerror}); another run? give --coordinator another"
      ) from error
    with server:
      while len(callers) < self._place.number - 1 and time.monotonic() < deadline:
        server.settimeout(max(0.01, min(0.1, deadline - time.monotonic())))
        with contextlib.suppress(OSError):
          caller, address = server.accept()
          if self._greeting.acquire(blocking=False):
            threading.Thread(target=self._greet, args=(caller, address[0]), daemon=True).start()
          else:
            caller.close()
        with contextlib.suppress(queue.Empty):
          while True:
            index, caller, name, nonce = self._came.get_nowait()
            if index in callers:  # it was started again
              callers[index][0].close()
            callers[index] = caller, name, nonce
    missing = [index for index in range(1, self._place.number) if index not in callers]
    text = "all" if not missing else ",".join(map(str, missing))
    for caller, _, nonce in callers.values():
      with contextlib.suppress(OSError):
        caller.settimeout(_GREETING_SECONDS)
        caller.sendall(f"{text} {_proof(self._token, 'told', nonce, text)}\n".encode())
    return {index: (caller, name) for index, (caller, name, _) in callers.items()}, missing

  def _greet(self, caller: socket.socket, address: str) -> None:
    try:
      challenge = secrets.token_hex(16)
      caller.settimeout(_GREETING_SECONDS)
      caller.sendall(f"{challenge}\n".encode())
      index, name, nonce, proof = _line(caller, _GREETING_SECONDS).split(" ")
      if not hmac.compare_digest(proof, _proof(self._token, "call", challenge, index, name, nonce)):
        raise ValueError("it does not know the run's token")
      if not 0 < int(index) < self._place.number:
        raise ValueError("there is no such process")
      self._came.put((int(index), caller, name, nonce))
    except (OSError, ValueError, TypeError):
      caller.close()
      if self._told.acquire(blocking=False):
        console.tell(
          f"{address} called at the port of the roll call, and is no process of this run: it is ignored, as all others"
          f" are that come ({TOKEN} must be the same on all hosts, if it is set)"
        )
    finally:
      self._greeting.release()


def _answer(address: tuple[str, int], process: ProcessSpec, token: bytes, seconds: float) -> tuple[Others, list[int]]:
  """The first process, and who is missing, as it says."""
  deadline = time.monotonic() + seconds
  while True:
    caller = None
    try:
      caller = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
      challenge = _line(caller, _GREETING_SECONDS)
      index, name, nonce = str(process.index), socket.gethostname().replace(" ", "_"), secrets.token_hex(16)
      proof = _proof(token, "call", challenge, index, name, nonce)
      caller.sendall(f"{index} {name} {nonce} {proof}\n".encode())
      # It may have begun to wait when this one did.
      reply, _, proof = _line(caller, max(0.1, deadline - time.monotonic()) + seconds, limit=_LONG_LINE).partition(" ")
      if not hmac.compare_digest(proof, _proof(token, "told", nonce, reply)):
        raise ConnectionError(f"who is there has another {TOKEN}")
      return {peer_monitor.FIRST: (caller, address[0])}, [] if reply == "all" else [
        int(index) for index in reply.split(",")
      ]
    except OSError as error:
      if caller is not None:
        caller.close()
      if time.monotonic() >= deadline:
        raise UserError(
          f"{socket.gethostname()} (process {process.index}): the first process, at {address[0]}, did not answer within"
          f" {seconds:.0f} s ({error}); was the command started there, and may this host reach its port {address[1]}?"
        ) from error
      time.sleep(0.2)
