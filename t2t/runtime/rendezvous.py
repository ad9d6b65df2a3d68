"""Roll call of a run: each process connects to the first, authenticates, and learns whether all have come.

Any program may connect to the port. Connections without the run's token are closed, and cannot delay the others: length
and time of messages and the number of connections are limited. `t2t launch` creates a random token, T2T_RUN_TOKEN, for
each job. Without it, the token is derived from facts that all processes know, which rejects accidental connections.
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

import jax

from t2t import UserError
from t2t.runtime import console, peer_monitor, quiet, slices

TOKEN = "T2T_RUN_TOKEN"
_MISSING_SHOWN = 8
_LINE, _LONG_LINE = 1024, 65536  # bytes: of a greeting; of a list of ten thousand missing processes
_GREETING_SECONDS = 5.0
_STRANGERS = 32  # unknown callers at a time, besides the processes of the run


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
  """A process of a run.

  Attributes:
    address: host:port of the first process.
    number: of all processes.
    index: of this one.
    devices: numbers of this machine's devices that it uses; None for all.
  """

  address: str
  number: int
  index: int
  devices: tuple[int, ...] | None = None


Others = dict[int, tuple[socket.socket, str]]  # index -> (connection, host name)


def join(process: ProcessSpec, *, seconds: float, lost_seconds: int) -> None:
  """Joins this process with the others: roll call, peer monitor and JAX's service.

  Raises:
    Incomplete: see `roll_call`; or JAX does not see all slices.
  """
  quiet.without_gloo()
  peers = roll_call(process, seconds=seconds)
  peer_monitor.Link(process.index, peers, silence=lost_seconds).start_listening()
  jax.config.update("jax_cpu_collectives_implementation", "gloo")  # other platforms ignore it
  # The service would handle SIGTERM itself; see preemption.py.
  jax.config.update("jax_enable_preemption_service", False)
  jax.distributed.initialize(
    process.address,
    process.number,
    process.index,
    local_device_ids=process.devices,
    initialization_timeout=int(seconds),
    # Later than the peer monitor, which also names the process.
    heartbeat_timeout_seconds=2 * lost_seconds + 60,
  )
  slices.check_devices()


def roll_call(process: ProcessSpec, *, seconds: float) -> Others:
  """Waits until all processes have come.

  JAX also waits, but then aborts without naming the missing processes. Here each process connects to the first one, at
  the port below the coordinator's, which reports the result.

  Returns:
    The open connections: index -> (connection, host name); see `peer_monitor.Link`.

  Raises:
    Incomplete: some processes did not come in time; with their names.
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
    raise slices.Incomplete(
      f"{here}: {len(missing)} of {process.number} processes did not start within {seconds:.0f} s "
      f"({shown}{more}). Check the logs of these processes, start the command on every host, or raise --join_seconds."
    )
  return peers


def _token(process: ProcessSpec) -> bytes:
  secret = os.environ.get(TOKEN) or f"{process.address} {process.number} {os.environ.get('SLURM_JOB_ID', '')}"
  return hashlib.sha256(secret.encode()).digest()


def _proof(token: bytes, *words: str) -> str:
  """Returns a proof of these words that requires the token."""
  return hmac.new(token, "\n".join(words).encode(), hashlib.sha256).hexdigest()


def _name(index: int) -> str:
  """Returns a name for a process that has not connected."""
  names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
  return f"process {index}" + (f" on {names[index]}" if index < len(names) else "")


def _line(connection: socket.socket, seconds: float, *, limit: int = _LINE) -> str:
  """Reads one line, and nothing after it.

  Raises:
    OSError: a timeout, a closed connection, or a line that is too long.
  """
  deadline, received = time.monotonic() + seconds, b""
  while not received.endswith(b"\n"):
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    byte = connection.recv(1)
    if not byte:
      raise ConnectionError("connection closed by the peer")
    received += byte
    if len(received) > limit or time.monotonic() > deadline:
      raise ConnectionError(f"line longer than {limit} bytes")
  return received.decode("ascii", "replace").strip()


class _Roll:
  """Connections to the first process."""

  def __init__(self, process: ProcessSpec, token: bytes):
    self._place, self._token = process, token
    self._came: queue.Queue[tuple[int, socket.socket, str, str]] = queue.Queue()
    self._greeting = threading.Semaphore(process.number + _STRANGERS)
    self._told = threading.Lock()  # held after the first unknown caller

  def take(self, port: int, seconds: float) -> tuple[Others, list[int]]:
    """Returns the processes that connected within `seconds`, and the missing ones; sends the result to all callers.

    Raises:
      UserError: another program uses the port.
    """
    deadline = time.monotonic() + seconds
    callers: dict[int, tuple[socket.socket, str, str]] = {}
    try:
      server = socket.create_server(("", port), backlog=max(128, self._place.number + _STRANGERS))
    except OSError as error:
      raise UserError(
        f"port {port} of {socket.gethostname()} is in use ({error.strerror}), perhaps by another run. Give "
        "another port in --coordinator."
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
            if index in callers:  # the process was restarted
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
        raise ValueError("wrong token of the run")
      if not 0 < int(index) < self._place.number:
        raise ValueError(f"no process {index}")
      self._came.put((int(index), caller, name, nonce))
    except (OSError, ValueError, TypeError):
      caller.close()
      if self._told.acquire(blocking=False):
        console.tell(
          f"{address} connected to the rendezvous port but is not a process of this run; such connections "
          f"are ignored (if {TOKEN} is set, it must be the same on all hosts)"
        )
    finally:
      self._greeting.release()


def _answer(address: tuple[str, int], process: ProcessSpec, token: bytes, seconds: float) -> tuple[Others, list[int]]:
  """Connects to the first process; returns it, and the missing processes that it reports."""
  deadline = time.monotonic() + seconds
  while True:
    caller = None
    try:
      caller = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
      challenge = _line(caller, _GREETING_SECONDS)
      index, name, nonce = str(process.index), socket.gethostname().replace(" ", "_"), secrets.token_hex(16)
      proof = _proof(token, "call", challenge, index, name, nonce)
      caller.sendall(f"{index} {name} {nonce} {proof}\n".encode())
      # The first process may have started to wait at the same time as this one.
      reply, _, proof = _line(caller, max(0.1, deadline - time.monotonic()) + seconds, limit=_LONG_LINE).partition(" ")
      if not hmac.compare_digest(proof, _proof(token, "told", nonce, reply)):
        raise ConnectionError(f"{TOKEN} is different there")
      return {peer_monitor.FIRST: (caller, address[0])}, [] if reply == "all" else [
        int(index) for index in reply.split(",")
      ]
    except OSError as error:
      if caller is not None:
        caller.close()
      if time.monotonic() >= deadline:
        raise slices.Incomplete(
          f"{socket.gethostname()} (process {process.index}): the first process, at {address[0]}, did not answer "
          f"within {seconds:.0f} s ({error}). Check that the command runs on {address[0]}, and that this host can "
          f"reach port {address[1]} there."
        ) from error
      time.sleep(0.2)
