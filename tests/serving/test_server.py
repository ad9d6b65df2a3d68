"""Server and page: streams, errors and access."""

import base64
import concurrent.futures
import functools
import hashlib
import html.parser
import http.client
import json
import re
import socket

import pytest
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.inference import decoding, prompt_builder
from t2t.serving import engine, html_page, routes, server, slots, text_predictor

GREEDY = {"inputs": "naïve 校服 dog", "max_length": 12}
SAMPLED = GREEDY | {"temperature": 0.9, "top_p": 0.95, "seed": 3}
BEAM = GREEDY | {"beam": 3, "min_length": 7}


@functools.cache
def service(architecture: str) -> text_predictor.WritingService:
  source = pretrained.read_source(str(trained.workdir(architecture)))
  return text_predictor.WritingService(
    engine.Ready(source, ends_prompts=prompt_builder.ends_prompts(source)[0]),
    defaults=decoding.DecodeConfig(max_length=12, temperature=0.9, top_p=0.95),
  )


@pytest.fixture(scope="module")
def port():
  """Port of a server with the encoder-decoder."""
  with server.make_server(service("encoder_decoder"), host="127.0.0.1", port=0) as running:
    yield running.server_port


def ask(port, method, path, body=None, **headers):
  """Returns status, headers and content of a response."""
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
  content = json.dumps(body).encode() if isinstance(body, dict) else body
  named = {name.replace("_", "-"): value for name, value in headers.items()}
  connection.request(method, path, content, {"Content-Type": "application/json", **named})
  answer = connection.getresponse()
  found = answer.status, answer.headers, answer.read()
  connection.close()
  return found


def events(port, **request):
  status, headers, content = ask(port, "POST", "/generate", request)
  assert status == 200 and headers["Content-Type"] == "application/x-ndjson"
  return [json.loads(line) for line in content.splitlines()]


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_an_old_client_gets_no_chunks(path, port):
  """HTTP/1.0 has no chunked encoding; closing the connection ends the response."""
  body = {"/generate": GREEDY, "/v1/completions": {"prompt": "dog", "max_tokens": 3, "stream": True}}[path]
  content = json.dumps(body).encode()
  head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
  with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
    client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
    answer = b"".join(iter(lambda: client.recv(65_536), b""))
  headers, _, found = answer.partition(b"\r\n\r\n")
  assert b"200 OK" in headers and b"chunked" not in headers
  lines = [line for line in found.decode().splitlines() if line and not line.startswith(":")]
  if path == "/generate":
    assert [json.loads(line) for line in lines][-1]["prediction"]
  else:
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)


@pytest.mark.parametrize(
  ("headers", "status", "message"),
  [
    ({"Transfer-Encoding": "chunked"}, 411, "Transfer-Encoding chunked is not supported; send Content-Length instead"),
    (
      {"Content-Encoding": "gzip", "Content-Length": "2"},
      415,
      "Content-Encoding gzip is not supported; send the JSON uncompressed",
    ),
    ({}, 411, "Content-Length is missing; send the number of bytes"),
  ],
)
def test_a_body_that_is_not_read_is_named(headers, status, message, port):
  lines = {"Host": "localhost", "Content-Type": "application/json", **headers}
  head = "POST /generate HTTP/1.1\r\n" + "".join(f"{name}: {x}\r\n" for name, x in lines.items())
  with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
    client.sendall(f"{head}\r\n{{}}".encode())
    client.shutdown(socket.SHUT_WR)
    answer = b"".join(iter(lambda: client.recv(65_536), b"")).decode()
  assert answer.startswith(f"HTTP/1.1 {status} ") and message in answer


@pytest.mark.slow
def test_requests_that_come_together_share_steps(port, monkeypatch):
  """Seven clients, of which one leaves, get the texts of one after another, with fewer steps than tokens."""
  bodies = [{"inputs": f"dog {number}", "max_length": 20 + number, "min_length": 20} for number in range(6)]
  expected = [events(port, **body)[-1] for body in bodies]
  steps, advance = [], slots.Slots.advance
  monkeypatch.setattr(slots.Slots, "advance", lambda group: (steps.append(group.size), advance(group)))
  content = json.dumps(bodies[0] | {"max_length": 60}).encode()
  head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
  with socket.create_connection(("127.0.0.1", port), timeout=60) as leaves:
    leaves.sendall(head % len(content) + content)
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
      found = list(pool.map(lambda body: events(port, **body)[-1], bodies))
  for one, other in zip(found, expected, strict=True):
    assert one["prediction"] == other["prediction"] and one["score"] == pytest.approx(other["score"], rel=1e-4)
  assert max(steps) > 1 and len(steps) < sum(one["tokens"] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("held", [0.0, 1.2])
def test_a_text_that_others_complete_is_answered_whole(held, monkeypatch):
  """Between two looks of a request other requests may generate all the rest, also while it waits for the device."""
  writer = service("encoder_decoder")
  ready, request = writer._ready, text_predictor.parse(json.dumps(GREEDY | {"min_length": 10}).encode())
  expected = list(writer.generate(request))[-1]
  waiting = routes.waiting

  def others_first(device):
    yield from waiting(device)
    for group in ready._groups.values():
      if group.size:
        group.advance()
        group.advance()
    if held:
      device.release()
      yield {"state": "waiting"}
      yield from waiting(device)

  monkeypatch.setattr(routes, "waiting", others_first)
  found = list(writer.generate(request))
  assert found[-1]["prediction"] == expected["prediction"]
  assert (found[-1]["tokens"], found[-1]["ended"]) == (expected["tokens"], expected["ended"])
  assert found[-1]["score"] == pytest.approx(expected["score"], rel=1e-4)


# ---- Texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("request_", [GREEDY, SAMPLED, BEAM], ids=["greedy", "sampled", "beam"])
def test_the_page_writes_what_a_file_gets(architecture, request_, tmp_path):
  """The last event has text, score and alternatives of `t2t infer` for the same line."""
  found = list(service(architecture).generate(text_predictor.parse(json.dumps(request_).encode())))[-1]
  (tmp_path / "in.txt").write_text(request_["inputs"])
  options = [f"--{name}={value}" for name, value in request_.items() if name != "inputs"]
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl")]
  assert command.main(["infer", "--checkpoint", str(trained.workdir(architecture)), *files, *options]) == 0
  row = json.loads((tmp_path / "out.jsonl").read_text())
  assert found["prediction"] == row["prediction"]
  assert found["score"] == pytest.approx(row["score"], rel=1e-4)
  texts = lambda fields: [each["prediction"] for each in fields.get("alternatives", [])]
  assert texts(found) == texts(row)
  assert len(texts(found)) == request_.get("beam", 1) - 1


@pytest.mark.exhaustive
def test_a_text_has_as_many_tokens_as_are_asked_for():
  """The minimum length holds even if the text would end earlier; the model's positions limit it."""
  service_ = service("decoder_only")

  def written(seed: int, **options) -> dict:
    asked = {"inputs": "dog", "temperature": 1.0, "max_length": 64, "seed": seed} | options
    return list(service_.generate(text_predictor.parse(json.dumps(asked).encode())))[-1]

  seed = next(seed for seed in range(100) if written(seed)["tokens"] < 40)
  assert written(seed, min_length=39)["tokens"] >= 39 and written(seed, min_length=64)["tokens"] == 40


def test_what_a_request_does_not_say():
  """Defaults are those of the command."""
  decode = lambda **options: text_predictor.parse(json.dumps({"inputs": "a"} | options).encode()).decode
  assert decode() == decoding.DecodeConfig(max_length=64)
  assert decode(beam=4) == decoding.DecodeConfig(max_length=64, min_length=1, num_beams=4)
  assert decode(top_p=0.9) == decoding.DecodeConfig(max_length=64, temperature=1.0, top_p=0.9)


@pytest.mark.slow
def test_text_comes_token_by_token(port):
  """Each event has one more token and extends the text; the last has the whole text."""
  found = [event for event in events(port, **SAMPLED) if "prediction" in event]
  assert [event["tokens"] for event in found] == list(range(1, len(found) + 1))
  assert len(found) == 12 or found[-1]["ended"]
  for before, after in zip(found, found[1:], strict=False):
    assert after["prediction"].startswith(before["prediction"])
  assert "ended" in found[-1] and not any("ended" in event for event in found[:-1])


def test_length_asked_for_is_kept(port):
  """The same program generates texts of different lengths, with the same beginning."""
  short, long = events(port, **(SAMPLED | {"max_length": 3})), events(port, **SAMPLED)
  assert short[-1]["tokens"] == 3 and long[-1]["prediction"].startswith(short[-1]["prediction"])
  assert not any("state" in event for event in long)


@pytest.mark.slow
def test_a_long_input_is_cut_and_said_to_be(port):
  assert events(port, **(GREEDY | {"inputs": "x" * 60}))[0] == {"cut": 13}


def test_requests_wait_for_each_other():
  """A pending request gets the state "waiting"."""
  first, second = (
    service("encoder_decoder").generate(text_predictor.parse(json.dumps(GREEDY).encode())) for _ in range(2)
  )
  next(first)
  assert next(second) == {"state": "waiting"}
  first.close()  # the first client has left
  assert list(second)[-1]["tokens"] == 12


# ---- Errors ----------------------------------------------------------------------------------------------------------

REFUSED = {
  b"{": "not valid JSON",
  b"[]": "not a JSON object",
  b'{"inputs": ""}': "'inputs' is \"\"; give a text that is not empty",
  b'{"inputs": " \\n"}': r"""'inputs' is " \n"; give a text that is not empty""",
  b"{}": "'inputs' is missing; give a text",
  b'{"inputs": "\\ud800"}': "'inputs' is not valid Unicode: character 1, \\ud800, is an unpaired surrogate",
  b'{"inputs": "a", "beam": 2, "length_penalty": NaN}': "'length_penalty' is nan; give -10 to 10",
  b'{"inputs": "a", "beam": 2, "length_penalty": 1e400}': "'length_penalty' is inf; give -10 to 10",
  b'{"inputs": 3}': "'inputs' is 3; give a string",
  b'{"inputs": "a", "beams": 3}': (
    "'beams' is an unknown field. Known fields: inputs, adapter, max_length, min_length, beam"
  ),
  b'{"inputs": "a", "beam": 17}': "'beam' is 17; give 1 to 16",
  b'{"inputs": "a", "beam": true}': "'beam' is true; give a whole number",
  b'{"inputs": "a", "temperature": "hot"}': "'temperature' is \"hot\"; give a number",
  b'{"inputs": "a", "temperature": NaN}': "'temperature' is nan; give 0 to 100",
  b'{"inputs": "a", "temperature": 1e-300}': "'temperature' is 1e-300; give 0.001 to 100, or 0",
  b'{"inputs": "a", "temperature": Infinity}': "'temperature' is inf; give 0 to 100",
  b'{"inputs": "a", "max_length": 0}': "'max_length' is 0; give 1 to 1024",
  b'{"inputs": "a", "min_length": -1}': "'min_length' is -1; give 0 to 1024",
  b'{"inputs": "a", "min_length": 1.5}': "'min_length' is 1.5; give a whole number",
  b'{"inputs": "a", "min_length": 65}': "min_length 65 must be 0 to 64, the value of max_length",
  b'{"inputs": "a", "beam": 2, "top_k": 3}': "beam 2 and top_k 3: beam search does not sample",
  b'{"inputs": "a", "length_penalty": 1}': "length_penalty 1 needs beam search; give beam 4",
  b'{"inputs": "a", "temperature": 0, "top_p": 0.5}': "temperature 0 turns off sampling; leave out top_p",
  b'{"inputs": "a", "temperature": 1, "top_p": 0}': "'top_p' is 0; give more than 0 and at most 1",
  b'{"inputs": "a", "seed": -1}': "'seed' is -1; give 0 to 4294967295",
}


@pytest.mark.parametrize("body", REFUSED)
def test_a_bad_request_is_400_and_says_why(body, port):
  status, headers, content = ask(port, "POST", "/generate", body)
  assert status == 400 and headers["Content-Type"] == "application/json"
  assert REFUSED[body] in json.loads(content)["error"]


def test_other_paths_sites_and_types(port):
  """Other hosts' names and forms of other sites are refused; the page itself is served."""
  assert ask(port, "GET", "/favicon.ico")[0] == 404
  assert ask(port, "POST", "/other", {"inputs": "a"})[0] == 404
  assert ask(port, "GET", "/about", Host="evil.example:80")[0] == 403
  assert ask(port, "POST", "/generate", GREEDY, Host="evil.example")[0] == 403
  assert ask(port, "GET", "/about", Host=f"localhost:{port}")[0] == 200
  status, _, content = ask(port, "POST", "/generate", GREEDY, Content_Type="text/plain")
  assert status == 400 and "application/json" in json.loads(content)["error"]


@pytest.mark.parametrize(
  ("path", "allowed"),
  [
    *((path, "GET, HEAD, OPTIONS") for path in ("/", "/about", "/schema.json", "/v1/models", "/v1/models/x?a=1")),
    *((path, "POST, OPTIONS") for path in ("/generate", "/attention", "/score", "/v1/completions?api-version=1")),
  ],
)
def test_methods_of_a_path(path, allowed, port):
  """HEAD is GET without content; other methods are refused in JSON with the allowed ones."""
  status, headers, content = ask(port, "OPTIONS", path)
  assert (status, headers["Allow"], content) == (204, allowed, b"")
  if "GET" in allowed:
    got, head = ask(port, "GET", path), ask(port, "HEAD", path)
    assert head[0] == got[0] and head[2] == b"" and head[1]["Content-Type"] == got[1]["Content-Type"]
    assert int(head[1]["Content-Length"]) == len(got[2])
  for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "BREW"} - set(allowed.split(", ")):
    status, headers, content = ask(port, method, path)
    assert (status, headers["Allow"], headers["Content-Type"]) == (405, allowed, "application/json")
    assert method == "HEAD" or allowed in str(json.loads(content)["error"])


def test_what_is_no_http_is_refused_in_json(port):
  """Malformed lines, versions and headers, and unknown methods."""
  host = f"Host: 127.0.0.1:{port}\r\n"
  for request, status in (
    ("GET / HTTP/9.9\r\n\r\n", 505),
    ("nonsense\r\n\r\n", 400),
    (f"GET /{'x' * 70_000} HTTP/1.1\r\n{host}\r\n", 414),
    (f"GET / HTTP/1.1\r\n{host}{'a: b' * 20_000}\r\n\r\n", 431),
    (f"PUT /other HTTP/1.1\r\n{host}\r\n", 404),
    ("PUT / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    (f"GET /v1/chat HTTP/1.1\r\n{host}\r\n", 404),
  ):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
      connection.sendall(request.encode())
      answer = b"".join(iter(lambda: connection.recv(65_536), b""))  # noqa: B023
    head, _, content = answer.partition(b"\r\n\r\n")
    assert f" {status} ".encode() in head.splitlines()[0], answer[:200]
    assert b"content-type: application/json" in head.lower() and json.loads(content)["error"]


@pytest.mark.parametrize("path", ["/generate", "/other"])
def test_a_refusal_reaches_who_still_sends(port, path):
  """The connection is not reset before the client has read the response to a body larger than the buffers."""
  status, _, content = ask(port, "POST", path, b" " * 30_000_000)
  assert status == (413 if path == "/generate" else 404) and json.loads(content)["error"]


def test_a_port_that_is_taken(port):
  with pytest.raises(UserError, match=f"--port {port} cannot be used .*--port .0: any"):
    server.make_server(service("encoder_decoder"), host="127.0.0.1", port=port)


# ---- Page ------------------------------------------------------------------------------------------------------------


def test_what_the_page_is_told(port):
  """`/about` has facts of the model and the defaults of the command."""
  found = json.loads(ask(port, "GET", "/about")[2])
  assert found["architecture"] == "encoder-decoder" and found["max_inputs"] == 48
  assert (found["checkpoint"], found["step"]) == ("encoder_decoder", 2) and found["max_length"] == 1_024
  assert found["defaults"] == {"mode": "sample", "max_length": 12, "temperature": 0.9, "top_p": 0.95, "top_k": 0}


def test_the_page_needs_nothing_from_elsewhere(port):
  """The page has no URLs of other hosts and no other files, and its policy allows only its own script and style."""
  status, headers, content = ask(port, "GET", "/")
  text = content.decode()
  assert status == 200 and headers["Content-Type"].startswith("text/html")
  assert not re.search(r"https?://|@import|url\(", text)
  references = []

  class Finder(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
      references.extend(value for name, value in attrs if name in ("src", "href", "action"))
      assert not any(name.startswith("on") or name == "style" for name, _ in attrs), tag

  Finder().feed(text)
  assert references == ["data:,"]
  assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
  script = re.search("<script>(.*?)</script>", text, re.DOTALL)[1]
  digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
  assert f"script-src 'sha256-{digest}'" in headers["Content-Security-Policy"]
  assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_the_page_sends_what_the_server_takes():
  """Every option of the page is a field of a request, within its limits."""
  known = {field.name: field for field in text_predictor.FIELDS}
  inputs = re.findall(r'data-option="(\w+)" min="([\d.]+)"(?: max="([\d.]+)")?', html_page.page()[0].decode())
  assert len(inputs) == len(known) - len({"inputs", "adapter", "token_probabilities"})
  for name, least, most in inputs:
    field = known[name]
    assert field.least <= float(least) and (not most or float(most) <= field.most), name
