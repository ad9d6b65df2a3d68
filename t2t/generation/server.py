"""`t2t infer --server`: a page on this machine where one types an input and watches the model write."""

import base64
from collections.abc import Iterator, Mapping
import dataclasses
import functools
import hashlib
import http.server
import json
import math
import pathlib
import re
import socket
import sys
import threading
import time
from typing import Any

import jax
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import pretrained
from t2t.generation import decoding, predictor, prompting, writing
from t2t.training import writers

# What a request may ask for: a page is no place for more, and the memory for it is taken from the device.
_MAX_LENGTH, _MAX_BEAMS, _MAX_TOP_K, _MAX_BODY = 1_024, 16, 1_000_000, 1_000_000
_SMALLEST_ROOM = 64  # positions; shorter texts are written with the same program
_LINGER_SECONDS, _LINGER_BYTES = 5.0, 64_000_000  # for the rest of a request that was refused

Event = dict[str, Any]


# ---- Requests --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Request:
  """What is to be written; see `t2t infer --help` for the options.

  mode: greedy, sample or beam, as the others say.
  """

  inputs: str
  max_length: int = 64
  beam: int = 1
  length_penalty: float = 0.6
  temperature: float = 0.0
  top_p: float = 1.0
  top_k: int = 0
  seed: int = 0

  @property
  def mode(self) -> str:
    """Which of the three ways to write it asks for."""
    return "beam" if self.beam > 1 else "sample" if self.temperature else "greedy"


# option -> the least and the greatest value
_RANGES: dict[str, tuple[float, float]] = {
  "max_length": (1, _MAX_LENGTH),
  "beam": (1, _MAX_BEAMS),
  "length_penalty": (-10, 10),
  "temperature": (0, 100),
  "top_p": (0, 1),
  "top_k": (0, _MAX_TOP_K),
  "seed": (0, 2**32 - 1),
}


def parse(body: bytes) -> Request:
  """The request that a JSON object makes.

  In:  b'{"inputs": "2 + 2 =", "beam": 4}'
  Out: Request(inputs="2 + 2 =", beam=4)

  Raises:
    UserError: what cannot be used, and what would be right.
  """
  try:
    fields = json.loads(body)
  except (ValueError, RecursionError) as error:
    raise UserError(f"the request is not JSON: {error}") from None
  if not isinstance(fields, dict):
    raise UserError('the request is no JSON object; it must be like {"inputs": "..."}')
  types = {field.name: field.type for field in dataclasses.fields(Request)}
  for name, value in fields.items():
    if name not in types:
      raise UserError(f"{name!r}: no such option; there are {', '.join(types)}")
    accepted = (int, float) if types[name] is float else types[name]
    if not isinstance(value, accepted) or isinstance(value, bool):
      raise UserError(f"{name}: is {json.dumps(value)[:40]}; give a {_TYPES[types[name]]}")
    if name in _RANGES and not _RANGES[name][0] <= value <= _RANGES[name][1]:
      raise UserError(f"{name}: is {value}; give {_RANGES[name][0]} to {_RANGES[name][1]}")
  if not _is_text(fields.get("inputs", "")):
    raise UserError("inputs: there is nothing to read; write something")
  return Request(**fields)


_TYPES = {str: "string", int: "whole number", float: "number"}


def _is_text(text: str) -> bool:
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:  # half of a surrogate pair
    return False
  return bool(text.strip())


# ---- Answers ---------------------------------------------------------------------------------------------------------


class Service:
  """One model, which answers one request after another.

  Args:
    source: its checkpoint.
    ends_prompts: whether EOS ends an input, see `prompting.ends_prompts`.
    inputs_length: tokens of an input at most; 0: as in training.
    tensor: devices that the model is split over; the others stay idle, since there is one row at a time.
    defaults: how text is written unless the page says otherwise.
  """

  def __init__(
    self,
    source: pretrained.Source,
    *,
    ends_prompts: bool,
    inputs_length: int = 0,
    tensor: int = 1,
    defaults: decoding.DecodeConfig,
  ):
    self._source = source
    self._defaults = defaults
    devices = jax.devices()
    if not 1 <= tensor <= len(devices):
      raise UserError(f"--tensor {tensor}: there are {len(devices)} device(s)")
    self._mesh = sharding.make_mesh({"tensor": tensor}, devices=devices[:tensor])
    self._vocabulary = pretrained.vocabulary(source)
    self._framing = predictor.framing(self._vocabulary)
    most = self._room(_MAX_LENGTH)
    self._max_inputs = prompting.longest_prompt(source, inputs_length=inputs_length, max_length=most)
    self._prompts = prompting.Prompts(self._vocabulary, ends=ends_prompts, longest=self._max_inputs)
    self._extra = int(source.model.kind.continues)  # BOS
    decoding.check_positions(source.model, self._max_inputs + self._extra, most)
    self._model = pretrained.load(source, self._mesh)
    self._device = threading.Lock()
    # A program for each choice of options; of those that were not used for long the memory is given back.
    self._stream = functools.lru_cache(maxsize=16)(self._make_stream)
    self._beams = functools.lru_cache(maxsize=16)(self._make_beams)
    self._compiled: set[tuple] = set()

  def about(self) -> dict[str, Any]:
    """What the page says of the model, and what it offers."""
    number = sum(math.prod(x.shape) for x in jax.tree.leaves(self._model.params))
    path = self._source.path
    # By name: where it lies is nobody's business who opens the page.
    run, step = (path.parent.parent.name, path.name) if path.parent.name == "checkpoints" else (path.name, "")
    defaults = self._defaults
    chosen = Request("", defaults.max_length, defaults.num_beams, temperature=defaults.temperature)
    shown = {"mode": chosen.mode, "max_length": defaults.max_length}
    if chosen.mode == "beam":
      shown |= {"beam": defaults.num_beams, "length_penalty": defaults.length_penalty}
    if chosen.mode == "sample":
      shown |= {name: getattr(defaults, name) for name in ("temperature", "top_p", "top_k")}
    return {
      "architecture": self._model.config.architecture.replace("_", "-"),
      "parameters": writers.compact_count(number),
      "checkpoint": run,
      "step": int(step) if step.isdigit() else None,
      "max_inputs": self._max_inputs,
      "max_length": self._room(_MAX_LENGTH),
      "defaults": shown,
    }

  def generate(self, request: Request) -> Iterator[Event]:
    """What happens until the text is written; each event has the whole text so far.

    The last one has "ended", whether the model came to the end; before it come any number of {"state": "waiting"},
    {"state": "compiling"}, {"state": "searching"} and {"prediction": text, "tokens": number, "tokens_per_second": ...}.
    """
    # Something is sent all the time, so that who has left is noticed.
    while not self._device.acquire(timeout=1.0):
      yield {"state": "waiting"}
    try:
      tokens, cut = self._prompts(request.inputs)
      if cut:
        yield {"cut": cut}
      yield from (self._search if request.beam > 1 else self._write)(tokens, request)
    finally:
      self._device.release()

  # ---- With beams ----------------------------------------------------------

  def _search(self, tokens: list[int], request: Request) -> Iterator[Event]:
    config = writing.decode_config(
      max_length=self._room(request.max_length), beam=request.beam, length_penalty=request.length_penalty
    )
    predictor = self._beams(config)
    seen = self._seen(config, len(tokens))
    yield {"state": "searching" if seen else "compiling"}
    start = time.monotonic()
    generation = predictor.generate(self._model.params, [tokens])[0]
    found = prompting.answer(generation, self._vocabulary)
    ended = len(generation.tokens[0]) < config.max_length
    number = len(generation.tokens[0]) + ended
    speed = {"tokens_per_second": number / (time.monotonic() - start)} if seen else {}
    yield found | speed | {"tokens": number, "ended": ended}

  def _make_beams(self, config: decoding.DecodeConfig) -> predictor.Predictor:
    return predictor.Predictor(
      self._model.config,
      self._model.graphdef,
      self._mesh,
      self._framing,
      decode=config,
      batch_size=1,
      max_inputs=self._max_inputs,
    )

  # ---- Token by token ------------------------------------------------------

  def _write(self, tokens: list[int], request: Request) -> Iterator[Event]:
    limit = self._room(request.max_length)
    # Room for more than is asked for: the options' program then serves all lengths up to that.
    room = self._room(max(_SMALLEST_ROOM, 1 << (limit - 1).bit_length()))
    drawing = dict(temperature=request.temperature, top_p=request.top_p, top_k=request.top_k)
    config = writing.decode_config(max_length=room, **(drawing if request.temperature else {}))
    begin, advance = self._stream(config)
    if not self._seen(config, len(tokens)):
      yield {"state": "compiling"}
    with jax.set_mesh(self._mesh):
      # The key of the first line of a file.
      keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(request.seed), np.zeros(1, np.uint32))
      carry = begin(self._model.params, self._features(tokens), keys)
    while True:
      with jax.set_mesh(self._mesh):
        carry = advance(self._model.params, carry)
        written, position, score = jax.device_get((carry.tokens[0], carry.position, carry.scores[0]))
      written = written[:position].tolist()
      ended = written[-1] == self._framing.eos_id
      text = self._vocabulary.decode(written[:-1] if ended else written)
      event: Event = {"prediction": text, "tokens": len(written)}
      if len(written) == 1:
        first = time.monotonic()  # before it came the prompt, and perhaps the compiler
      else:
        event["tokens_per_second"] = (len(written) - 1) / (time.monotonic() - first)
      if ended or len(written) == limit:
        yield event | {"score": prompting.rounded(score), "ended": ended}
        return
      # Half of a character that is made of several bytes.
      yield event | {"prediction": text.rstrip("\ufffd")}

  def _make_stream(self, config: decoding.DecodeConfig):
    return decoding.make_stream(self._model.graphdef, config, eos_id=self._framing.eos_id, tokens_per_call=1)

  def _features(self, tokens: list[int]) -> Mapping[str, np.ndarray]:
    width = predictor.bucket(len(tokens) + self._extra, self._max_inputs + self._extra)
    architecture = self._model.config.architecture
    return predictor.prompt_features([tokens], width, architecture=architecture, framing=self._framing)

  # ---- Sizes ---------------------------------------------------------------

  def _room(self, max_length: int) -> int:
    """`max_length`, or as many positions as the model has learned to write in."""
    most = self._source.model.most_positions
    if self._source.model.kind.continues:
      most //= 2  # the other half is the prompt's
    return min(max_length, most) if most else max_length

  def _seen(self, config: decoding.DecodeConfig, length: int) -> bool:
    """Whether this has been asked for before; if not, it has to be compiled."""
    program = (config, predictor.bucket(length + self._extra, self._max_inputs + self._extra))
    known = program in self._compiled
    self._compiled.add(program)
    return known


# ---- The page --------------------------------------------------------------------------------------------------------


@functools.cache
def page() -> tuple[bytes, str]:
  """The page, which loads nothing from elsewhere, and the policy by which a browser runs no other script on it."""
  content = pathlib.Path(__file__).with_name("page.html").read_text()

  def hashed(tag: str) -> str:
    inside = re.search(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)[1]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

  policy = (
    f"default-src 'none'; script-src {hashed('script')}; style-src {hashed('style')}; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
  )
  return content.encode(), policy


class _Handler(http.server.BaseHTTPRequestHandler):
  """GET / is the page, GET /about says what model it is, POST /generate answers with a line of JSON for each event."""

  protocol_version = "HTTP/1.1"
  service: Service  # set by `make_server`
  only_local: bool

  def do_GET(self) -> None:  # noqa: N802  http.server's name
    """The page, and what it says of the model."""
    if not self._is_ours():
      return
    if self.path == "/":
      content, policy = page()
      self._reply(200, "text/html; charset=utf-8", content, {"Content-Security-Policy": policy})
    elif self.path == "/about":
      self._reply_json(200, self.service.about())
    else:
      self._reply_json(404, {"error": f"nothing is at {self.path}; the page is at /"})

  def do_POST(self) -> None:  # noqa: N802  http.server's name
    """What the model writes."""
    if not self._is_ours():
      return
    if self.path != "/generate":
      self._refuse(404, f"nothing is at {self.path}; give POST /generate")
      return
    try:
      request = parse(self._body())
    except UserError as error:
      self._refuse(400, str(error))
      return
    self._stream(self.service.generate(request))

  def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  http.server's name
    """Says nothing: what goes wrong is told to who asked."""

  def _is_ours(self) -> bool:
    """Whether the page itself asks: another site that a browser shows must not get at what this machine serves."""
    host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
    if self.only_local and host.strip("[]") not in ("localhost", "127.0.0.1", "::1"):
      self._refuse(403, f"no requests for {host}; this page is at localhost")
      return False
    return True

  def _body(self) -> bytes:
    # A form on another site can send text, but no JSON without being allowed to.
    if self.headers.get_content_type() != "application/json":
      raise UserError("Content-Type: must be application/json")
    length = self.headers.get("Content-Length", "")
    if not length.isdigit():
      raise UserError("Content-Length: is missing")
    if int(length) > _MAX_BODY:
      raise UserError(f"the request has {int(length):,} bytes; {_MAX_BODY:,} are the most")
    return self.rfile.read(int(length))

  def _refuse(self, status: int, reason: str) -> None:
    """Answers a request whose body was perhaps not read, and ends the connection."""
    self.close_connection = True
    self._reply_json(status, {"error": reason})
    # A connection that is closed while data are on their way is reset, and who sends them never sees the answer: so
    # the rest is taken and thrown away, up to a limit.
    try:
      self.connection.shutdown(socket.SHUT_WR)
      self.connection.settimeout(_LINGER_SECONDS)
      end = time.monotonic() + _LINGER_SECONDS
      left = _LINGER_BYTES
      while left > 0 and time.monotonic() < end and (taken := len(self.rfile.read1(65_536))):
        left -= taken
    except OSError:
      pass  # the other side has gone, or says nothing more

  def _reply_json(self, status: int, value: Mapping[str, Any]) -> None:
    self._reply(status, "application/json", json.dumps(value).encode(), {})

  def _reply(self, status: int, content_type: str, content: bytes, headers: Mapping[str, str]) -> None:
    self._start(status, content_type, headers | {"Content-Length": str(len(content))})
    self.wfile.write(content)

  def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    self.send_response(status)
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    for name, value in (fixed | dict(headers)).items():
      self.send_header(name, value)
    if self.close_connection:
      self.send_header("Connection", "close")
    self.end_headers()

  def _stream(self, events: Iterator[Event]) -> None:
    self._start(200, "application/x-ndjson", {"Transfer-Encoding": "chunked"})
    try:
      try:
        for event in events:
          self._chunk(event)
      except UserError as error:
        self._chunk({"error": str(error)})
      except ConnectionError:
        raise
      except Exception as error:  # whatever a device raises, such as that it has no memory left
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        self._chunk({"error": f"{type(error).__name__}: {str(error)[:300]}"})
      self.wfile.write(b"0\r\n\r\n")
    except ConnectionError:
      self.close_connection = True  # who asked has left: nothing more is written for them
    finally:
      events.close()

  def _chunk(self, event: Event) -> None:
    content = json.dumps(event).encode() + b"\n"
    self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


def make_server(service: Service, *, host: str, port: int) -> http.server.ThreadingHTTPServer:
  """A server that has its port and waits to be started with `serve_forever`.

  Args:
    service: answers.
    host: address whose requests are heard.
    port: 0 is any that is free.

  Raises:
    UserError: the port is taken, or there is no such address.
  """
  local = host in ("127.0.0.1", "localhost", "::1")
  handler = type("Handler", (_Handler,), {"service": service, "only_local": local})
  try:
    return http.server.ThreadingHTTPServer((host, port), handler)
  except (OSError, OverflowError) as error:
    raise UserError(f"--host {host} --port {port}: {error}; give another, or --port 0 for any that is free") from error


def serve(
  source: pretrained.Source,
  *,
  ends_prompts: bool,
  inputs_length: int,
  tensor: int,
  defaults: decoding.DecodeConfig,
  host: str,
  port: int,
) -> None:
  """Serves the page until Ctrl-C.

  Args:
    source, ends_prompts, inputs_length, tensor, defaults: see `Service`.
    host, port: see `make_server`.
  """
  service = Service(source, ends_prompts=ends_prompts, inputs_length=inputs_length, tensor=tensor, defaults=defaults)
  with make_server(service, host=host, port=port) as server:
    print(f"http://{host}:{server.server_port}/ is the page; Ctrl-C ends it", flush=True)
    try:
      server.serve_forever()
    except KeyboardInterrupt:
      print("\nended", file=sys.stderr)
