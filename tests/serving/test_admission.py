"""Server limits: access, amounts and deadlines, with a service without a model."""

import collections
import contextlib
import json
import os
import signal
import socket
import threading
import time

import pytest
import test_server

from t2t import UserError
from t2t.inference import decoding
from t2t.runtime import preemption
from t2t.serving import admission, app, connection, routes, server, text_predictor

ask = test_server.ask
ASKED = {"inputs": "a"}


class Counting:
  """A service that counts as far as requested, and records when a client leaves."""

  def __init__(self, number: int = 3):
    self.number, self.left, self.goes_on = number, threading.Event(), threading.Event()
    self.goes_on.set()

  def about(self):
    return {"asks": "write"}

  def parse(self, body):
    return text_predictor.parse(body)

  def endpoints(self):
    whole = routes.Endpoint("Counts.", self.parse, self.generate, {}, form=lambda _: routes.WHOLE)
    return {"/generate": routes.Endpoint("Counts.", self.parse, self.generate, {}), "/v1/whole": whole}

  def generate(self, request):
    try:
      for number in range(self.number):
        self.goes_on.wait(30)
        yield {"prediction": "x" * 10_000, "tokens": number, "inputs": request.inputs}
    finally:
      self.left.set()


def running(service, *, host="127.0.0.1"):
  return server.make_server(service, host=host, port=0)


def send(port: int, content: bytes) -> socket.socket:
  client = socket.create_connection(("127.0.0.1", port), timeout=30)
  client.sendall(content)
  return client


POST = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WHOLE = POST + b'Content-Length: 15\r\n\r\n{"inputs": "a"}'


# ---- Access ----------------------------------------------------------------------------------------------------------


def test_names_origins_and_tokens():
  """Other sites' names and pages, and clients without the token, are refused; IP addresses are accepted."""
  here = admission.Admission("127.0.0.1")
  there = admission.Admission("0.0.0.0", "a" * 20)
  right = {"Authorization": "Bearer " + "a" * 20}
  for let_in, headers, status in (
    (here, {"Host": "localhost:8000"}, None),
    (here, {"Host": "[::1]:8000", "Origin": "http://[::1]:8000"}, None),
    (here, {"Host": "10.0.0.7:8000"}, 403),
    (here, {"Host": "evil.example"}, 403),
    (here, {"Host": "localhost@evil.example["}, 403),
    (here, {}, 403),
    (here, {"Host": "localhost:8000", "Origin": "http://evil.example"}, 403),
    (here, {"Host": "localhost:8000", "Origin": "http://localhost:9000"}, 403),
    (here, {"Host": "localhost:8000", "Origin": "null"}, 403),
    (here, {"Host": "localhost:8000", "Sec-Fetch-Site": "cross-site"}, 403),
    (there, {"Host": "10.0.0.7:8000"} | right, None),
    (there, {"Host": "10.0.0.7:8000"}, 401),
    (there, {"Host": "10.0.0.7:8000", "Authorization": "Bearer é"}, 401),
    (there, {"Host": "evil.example"} | right, 403),
    (there, {"Host": "10.0.0.7:8000", "Origin": "http://evil.example"} | right, 403),
  ):
    found = let_in.refusal(headers, asks=True)
    assert (found and found[0]) == status, (headers, found)


def test_beyond_this_machine_only_with_a_token(monkeypatch):
  """The token is new each time, or that of the environment; the page itself needs none."""
  first, second = (admission.of("0.0.0.0").token for _ in range(2))
  assert first != second and len(first) >= 16 and admission.of("localhost").token == ""
  monkeypatch.setenv(admission.TOKEN, "short")
  with pytest.raises(UserError, match="T2T_SERVER_TOKEN must have at least 16 characters"):
    admission.of("localhost")
  monkeypatch.setenv(admission.TOKEN, "0123456789abcdef")
  with running(Counting(), host="0.0.0.0") as found:
    port = found.server_port
    assert ask(port, "GET", "/")[0] == 200
    assert ask(port, "GET", "/about")[0] == ask(port, "POST", "/generate", ASKED)[0] == 401
    assert ask(port, "GET", "/about", Authorization="Bearer 0123456789abcdef")[0] == 200
    assert ask(port, "POST", "/generate", ASKED, Authorization="Bearer 0123456789abcdef")[0] == 200


# ---- Sizes -----------------------------------------------------------------------------------------------------------


def test_texts_are_bounded():
  """A request with too much text is refused with the limit, in any field."""
  with running(Counting()) as found:
    for body in (
      {"inputs": "a" * 100_001},
      {"parts": ["a"] * 257},
      {"candidates": [{"a": ["b" * 60_000, "b" * 60_000]}]},
    ):
      status, _, content = ask(found.server_port, "POST", "/generate", body)
      assert status == 413 and "more than 100,000 characters or 256 texts" in json.loads(content)["error"]
    status, _, content = ask(found.server_port, "POST", "/generate", b" " * 1_000_001)
    assert status == 413 and "more than the limit of 1,000,000" in json.loads(content)["error"]


@pytest.mark.parametrize(
  ("length", "status"),
  [
    (b"Content-Length: -1", 400),
    (b"Content-Length: \xb2", 400),
    (b"Content-Length: " + b"9" * 30, 400),
    (b"Content-Length: 15\r\nContent-Length: 3", 400),
    (b"Content-Length: 15\r\nTransfer-Encoding: chunked", 411),
    (b"Accept: */*", 411),
  ],
)
def test_lengths_that_are_none(length, status, capfd):
  """The error is one sentence, without a traceback."""
  with running(Counting()) as found, send(found.server_port, POST + length + b"\r\n\r\n") as client:
    assert b" %d " % status in client.recv(100)
  assert capfd.readouterr().err == ""


def test_temperatures(monkeypatch):
  for value in (1e-300, float("nan"), float("inf"), -1.0):
    with pytest.raises(UserError, match="temperature="):
      decoding.DecodeConfig(max_length=3, temperature=value)


# ---- Numbers ---------------------------------------------------------------------------------------------------------


def test_connections_and_requests_are_bounded(monkeypatch):
  """A connection above the limit is refused, and accepted after others have closed."""
  monkeypatch.setattr(connection, "MAX_CONNECTIONS", 3)
  monkeypatch.setattr(app, "MAX_REQUESTS", 1)
  service = Counting()
  service.goes_on.clear()
  with running(service) as found, send(found.server_port, WHOLE) as first:
    assert b"200" in first.recv(100)
    status, headers, _ = ask(found.server_port, "POST", "/generate", ASKED)
    assert status == 503 and headers["Retry-After"]
    while (
      len(found.server_state.connections) > 1
    ):  # until the server has closed it; otherwise it would refuse one of the next
      time.sleep(0.01)
    idle = [send(found.server_port, head) for head in (b"GET", POST + b"Content-Length: 15\r\n\r\n{")]
    while len(found.server_state.connections) < 3:  # until the server has accepted both
      time.sleep(0.01)
    assert ask(found.server_port, "GET", "/about")[0] == 503
    for each in idle:
      each.close()
    service.goes_on.set()
    assert service.left.wait(30)
    first.close()
    status = 503
    while status == 503:
      with contextlib.suppress(ConnectionError):  # a refused client may be disconnected before it has sent everything
        status = ask(found.server_port, "POST", "/generate", ASKED)[0]
    assert status == 200


def test_many_clients_at_once():
  """Each of 200 clients gets a whole answer or a refusal, within the limits, and all places are freed."""
  service = Counting()
  service.goes_on.clear()
  answers = collections.Counter()

  def client(path):
    try:
      status, headers, content = ask(found.server_port, "POST", path, ASKED)
    except ConnectionError:  # a refused client may be disconnected before it has sent everything
      status, headers, content = 503, {"Retry-After": "2"}, b""
    whole = json.loads(content.splitlines()[-1])["tokens"] == 2 if status == 200 else headers["Retry-After"]
    answers[status, bool(whole)] += 1
    if answers[503, True] >= 200 - app.MAX_REQUESTS:  # all others wait
      service.goes_on.set()

  with running(service) as found:
    paths = ("/generate", "/v1/whole")
    threads = [threading.Thread(target=client, args=(paths[number % 2],)) for number in range(200)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(60)
    assert answers == {(200, True): app.MAX_REQUESTS, (503, True): 200 - app.MAX_REQUESTS}
    assert ask(found.server_port, "POST", "/generate", ASKED)[0] == 200
    assert found.application.wait_for_answers(30.0) == 0  # a place is freed after the last byte


# ---- Deadlines -------------------------------------------------------------------------------------------------------


def test_a_request_must_come_in_time(monkeypatch):
  """Slow heads are disconnected and slow bodies get an error, even if they keep sending."""
  monkeypatch.setattr(connection, "READ_SECONDS", 0.3)
  with running(Counting()) as found:
    with send(found.server_port, b"GET / HT") as client:
      received, started = None, time.monotonic()
      with contextlib.suppress(ConnectionError):
        while received != b"" and time.monotonic() < started + 20:
          client.settimeout(0.1)
          with contextlib.suppress(TimeoutError):
            received = client.recv(100)
          client.sendall(b"T")
      assert time.monotonic() < started + 20
    with send(found.server_port, POST + b"Content-Length: 15\r\n\r\n{") as client:
      assert b"408" in client.recv(100)


def test_slow_clients_block_nobody():
  """A hundred clients that send a byte now and then do not delay other clients."""
  stopped = threading.Event()
  head = POST + b"Content-Length: 1000\r\n\r\n{"

  def dribble(clients):
    while not stopped.wait(0.05):
      for client in clients:
        client.sendall(b" ")

  with running(Counting()) as found, contextlib.ExitStack() as stack:
    slow = [stack.enter_context(send(found.server_port, each)) for each in (b"GET / HTTP/1.1\r\nX: ", head) * 50]
    thread = threading.Thread(target=dribble, args=(slow,))
    thread.start()
    started = time.monotonic()
    try:
      for path in ("/generate", "/v1/whole") * 10:
        assert ask(found.server_port, "POST", path, ASKED)[0] == 200
    finally:
      stopped.set()
      thread.join()
    assert time.monotonic() < started + connection.READ_SECONDS / 2
    assert len(found.server_state.connections) >= len(slow)


@pytest.mark.parametrize("leaves", [True, False])
def test_who_leaves_or_does_not_read_frees_the_model(leaves, monkeypatch):
  monkeypatch.setattr(connection, "WRITE_SECONDS", 0.3)
  service = Counting(number=10**9)
  with running(service) as found, send(found.server_port, WHOLE) as client:
    assert b"200" in client.recv(100)
    if leaves:
      client.close()
    assert service.left.wait(30)


def test_who_waits_for_a_whole_answer_and_leaves_frees_the_model():
  """A disconnected client frees the model, although nothing is written to it."""
  service = Counting(number=10**9)
  with running(service) as found, send(found.server_port, WHOLE.replace(b"/generate", b"/v1/whole")) as client:
    while found.application.places._value == app.MAX_REQUESTS:  # until it is being answered
      time.sleep(0.01)
    client.close()
    assert service.left.wait(30)


def test_whole_answers_have_the_guards_of_all():
  """Only the last event is sent; refusals for load, shutdown and access have OpenAI's format."""
  with running(Counting()) as found:
    status, headers, content = ask(found.server_port, "POST", "/v1/whole", ASKED)
    assert status == 200 and headers["Content-Type"] == "application/json" and json.loads(content)["tokens"] == 2
    found.application.cutting = True
    status, headers, content = ask(found.server_port, "POST", "/v1/whole", ASKED)
    assert (
      status == 503 and headers["Retry-After"] and "the server shut down" in json.loads(content)["error"]["message"]
    )
    found.application.ending = True
    assert ask(found.server_port, "POST", "/v1/whole", ASKED)[0] == 503
  with running(Counting(), host="0.0.0.0") as found:
    for method, path in (("POST", "/v1/whole"), ("GET", "/v1/models")):
      status, _, content = ask(found.server_port, method, path, ASKED if method == "POST" else None)
      assert status == 401 and json.loads(content)["error"]["type"] == "authentication_error"
    assert ask(found.server_port, "GET", "/schema.json")[0] == 401


def test_what_goes_wrong_in_a_whole_answer_is_said(capfd):
  """A device error gives 500, a user error 400, each as a sentence; the next request works."""
  service = Counting()

  def fails(request):
    yield {"state": "writing"}
    raise UserError("too long") if request.inputs == "a" else MemoryError("no memory left")

  service.generate = fails
  with running(service) as found:
    for inputs, status, message in (("a", 400, "too long"), ("b", 500, "MemoryError: no memory left")):
      answer = ask(found.server_port, "POST", "/v1/whole", {"inputs": inputs})
      assert answer[0] == status and json.loads(answer[2])["error"]["message"] == message
  assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("in_time", [True, False])
def test_who_has_asked_is_answered_before_the_end(in_time, number, capsys, monkeypatch):
  """Late answers get an error, new clients are refused, and the exit code is that of the signal."""
  monkeypatch.setattr(app, "END_SECONDS", 60.0 if in_time else 0.2)
  service, found = Counting(number=3 if in_time else 10**9), []
  service.goes_on.clear()

  def client():
    while "http://" not in (said := capsys.readouterr().out):
      time.sleep(0.01)
    port = int(said.split(":")[2].split("/")[0])
    sender = send(port, WHOLE)
    sender.recv(100)
    os.kill(os.getpid(), number)
    with contextlib.suppress(ConnectionError):  # a connection that was not accepted when the port closed is reset
      while True:
        socket.create_connection(("127.0.0.1", port)).close()
    service.goes_on.set()
    while block := sender.recv(1_000_000):
      found.append(block)

  thread = threading.Thread(target=client)
  thread.start()
  with preemption.watched("infer"), pytest.raises(preemption.Stopped) as stopped:
    server.serve(service, host="127.0.0.1", port=0)
  thread.join(30)
  answer = b"".join(found)
  assert stopped.value.code == 128 + number and answer.endswith(b"0\r\n\r\n")
  assert (b'"tokens": 2' in answer and b"error" not in answer) if in_time else b"the server shut down" in answer
