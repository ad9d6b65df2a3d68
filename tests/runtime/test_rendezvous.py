"""Unknown callers neither end nor delay the roll call of a run; callers with its token are accepted."""

import contextlib
import socket
import threading

import pytest
import test_hosts

from t2t import UserError
from t2t.runtime import rendezvous

STRANGERS = (b"99\n", b"1 host nonce proof\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00\n", b"x" * 70_000, b"", b"1")


def come(port: int, number: int, indices, *, seconds: float = 60.0) -> dict:
  """Returns the result for each process."""
  said = {}
  threads = [
    test_hosts.called(rendezvous.ProcessSpec(f"localhost:{port}", number, index), seconds, said) for index in indices
  ]
  for thread in threads:
    thread.join()
  return said


def strangers(port: int, ended: threading.Event) -> list[socket.socket]:
  """Callers with invalid messages; some stay connected."""
  found = []
  for words in STRANGERS:
    while not ended.is_set():
      with contextlib.suppress(OSError):
        caller = socket.create_connection(("localhost", port - 1), timeout=60)
        caller.sendall(words)
        found.append(caller)
        break
  return found


def test_strangers_are_ignored(capfd):
  """They come first and stay connected; one message reports them."""
  port, said, ended = test_hosts.free_port(), {}, threading.Event()
  first = test_hosts.called(rendezvous.ProcessSpec(f"localhost:{port}", 3, 0), 60.0, said)
  callers = strangers(port, ended)
  assert len(callers) == len(STRANGERS)
  said |= come(port, 3, (1, 2))
  first.join()
  assert {index: sorted(others) for index, others in said.items()} == {0: [1, 2], 1: [0], 2: [0]}
  for caller in callers:
    caller.close()
  assert capfd.readouterr().err.count("is not a process of this run") == 1


def test_more_strangers_than_may_come_are_hung_up_on(monkeypatch):
  """Processes of the run are accepted when the others are gone."""
  monkeypatch.setattr(rendezvous, "_STRANGERS", 0)
  monkeypatch.setattr(rendezvous, "_GREETING_SECONDS", 0.3)
  port, said, ended = test_hosts.free_port(), {}, threading.Event()
  first = test_hosts.called(rendezvous.ProcessSpec(f"localhost:{port}", 2, 0), 60.0, said)
  callers = [caller for _ in range(3) for caller in strangers(port, ended)]
  assert sorted(come(port, 2, (1,))[1]) == [0]
  first.join()
  assert sorted(said[0]) == [1] and callers


def test_the_token_must_be_the_same(monkeypatch, capfd):
  """A process with another token does not belong to the run, and gets an error."""
  port, said = test_hosts.free_port(), {}
  monkeypatch.setattr(rendezvous, "_token", lambda place: b"another" if place.index else b"one")
  first = test_hosts.called(rendezvous.ProcessSpec(f"localhost:{port}", 2, 0), 1.5, said)
  with pytest.raises(UserError, match="did not answer within"):
    rendezvous.roll_call(rendezvous.ProcessSpec(f"localhost:{port}", 2, 1), seconds=0.5)
  first.join()
  assert "process 1" in said[0] and rendezvous.TOKEN in capfd.readouterr().err


def test_the_first_process_proves_itself_as_well(monkeypatch):
  """A program on its port without the token is rejected."""
  with socket.create_server(("", 0)) as server:

    def lie():
      with contextlib.suppress(OSError):
        while True:
          caller = server.accept()[0]
          caller.sendall(b"challenge\nall proof\n")

    threading.Thread(target=lie, daemon=True).start()
    address = f"localhost:{server.getsockname()[1] + 1}"
    with pytest.raises(UserError, match=f"{rendezvous.TOKEN} is different there"):
      rendezvous.roll_call(rendezvous.ProcessSpec(address, 2, 1), seconds=0.3)
