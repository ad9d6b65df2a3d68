"""Load test of `t2t infer --server`: answers, refusals, and lost or wrong responses under many clients.

  python benchmarks/server.py                                  # 200 clients for two minutes
  python benchmarks/server.py --seconds 30 --clients 50
  python benchmarks/server.py --throughput                     # tokens per second of 1, 8 and 32 clients
  python benchmarks/server.py --throughput --checkpoint runs/gpt

A small T5 with random weights runs in a separate process with `t2t infer --server`. Most clients request a few tokens.
Others send a byte per second, bodies that are too large, or malformed requests, do not read the response, or disconnect
during it. Every complete response is compared with the response to the same request on an idle server. Clients and
server share this machine, so latencies are those of a full queue.

Prints JSON lines: answers of each kind of client, latencies, and the server's memory, threads and open files before and
after. `lost` and `wrong` must be 0.

--throughput measures the server without such clients: each sends one request after another, for 64 tokens. Beside it
stands a loop over the same prompts without a server, one text at a time. Without --checkpoint the model is a T5 1.1
small with random weights.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from t2t.runtime import numeric

_SERVER = """
import sys
from t2t import __main__
sys.exit(__main__.main(["infer", "--checkpoint", sys.argv[1], "--server", "--port", "0"]))
"""
_INPUTS = [f"what follows {number} words of text" for number in range(16)]
_KINDS = ("asks",) * 12 + ("beams", "slow", "large", "malformed", "deaf", "leaves", "about", "strange")


_TOY = {"vocab_size": 384, "embed_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 128}
_TOY |= {"num_encoder_layers": 2, "num_decoder_layers": 2}


def checkpoint(folder: pathlib.Path, sizes_: dict[str, int]) -> str:
  """Writes a T5 1.1 that reads bytes, with random weights; returns its folder."""
  from etils import epath
  from flax import nnx, traverse_util
  import jax
  import numpy as np

  from t2t.checkpoints import tensor_writer
  from t2t.convert.lazy_tensors import Foreign, Tensor
  from t2t.models import presets, transformer
  from t2t.models.config import TransformerConfig

  jax.config.update("jax_platforms", "cpu")
  model = TransformerConfig(**(dict(presets.t5_1_1("small")) | sizes_))
  state = nnx.to_pure_dict(nnx.split(transformer.build(model, nnx.Rngs(0)), graph=False)[1])
  tensors = {}
  for name, value in traverse_util.flatten_dict(state, sep="/").items():
    value = np.asarray(value, np.float32)
    stacked = "/layers/" in name
    parts = tuple(lambda part=part: part for part in (value if stacked else [value]))
    tensors[name] = Tensor(value.shape, value.dtype, parts, stacked=stacked)
  lengths = {"inputs_length": 64, "targets_length": 32}
  tensor_writer.save(
    Foreign(epath.Path("random"), "hf", model, "bytes", 100, lengths, tensors), epath.Path(folder / "run")
  )
  return str(folder / "run")


def usage(pid: int) -> dict[str, float]:
  """Returns memory in MB, threads and open files of a process; {} if the system does not provide them."""
  try:
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
      "memory_mb": int(fields["VmRSS"].split()[0]) // 1000,
      "threads": int(fields["Threads"]),
      "files": len(os.listdir(f"/proc/{pid}/fd")),
    }
  except OSError:
    return {}


class Clients:
  """Clients of many kinds, with counts of their answers."""

  def __init__(self, port: int):
    self.port = port
    self.answers: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    self.seconds: dict[str, list[float]] = collections.defaultdict(list)
    self.expected: dict[str, str] = {}
    self.wrong = self.lost = 0
    self._lock = threading.Lock()

  def _note(self, kind: str, answer: str, seconds: float) -> None:
    with self._lock:
      self.answers[kind][answer] += 1
      if answer == "200":
        self.seconds[kind].append(seconds)

  def ask(self, body: dict) -> tuple[int, list[dict]]:
    """Returns status and events of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=310)
    try:
      connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
      answer = connection.getresponse()
      return answer.status, [json.loads(line) for line in answer.read().splitlines()]
    finally:
      connection.close()

  def run(self, until: float, seed: int) -> None:
    """Runs one client until a time."""
    draws = random.Random(seed)
    kind = _KINDS[seed % len(_KINDS)]
    while time.monotonic() < until:
      started = time.monotonic()
      try:
        answer = getattr(self, f"_{kind}")(draws, until)
      except (OSError, http.client.HTTPException) as error:
        answer = type(error).__name__
      self._note(kind, answer, time.monotonic() - started)
      if answer != "200":
        time.sleep(draws.uniform(0.1, 0.5))

  def _asks(self, draws: random.Random, until: float, **options) -> str:
    text = draws.choice(_INPUTS)
    status, events = self.ask({"inputs": text, "max_length": 8} | options)
    if status == 200:
      if not events or "ended" not in events[-1]:
        self.lost += 1
        return "cut off"
      key = json.dumps([text, options])
      self.wrong += self.expected.setdefault(key, events[-1]["prediction"]) != events[-1]["prediction"]
    return str(status)

  def _beams(self, draws: random.Random, until: float) -> str:
    return self._asks(draws, until, beam=2)

  def _about(self, draws: random.Random, until: float) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
    connection.request("GET", draws.choice(["/", "/about"]))
    status = connection.getresponse().status
    connection.close()
    time.sleep(0.2)
    return str(status)

  def _send(self, content: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
    connection.sendall(content)
    return connection

  def _status(self, connection: socket.socket) -> str:
    head = connection.recv(100)
    return head.split(b" ")[1].decode() if head.startswith(b"HTTP/1") else "closed"

  def _slow(self, draws: random.Random, until: float) -> str:
    with self._send(b"POST /generate HTTP/1.1\r\nHost: localhost\r\n") as connection:
      while time.monotonic() < until:
        connection.sendall(b"X")
        time.sleep(1.0)
    return "connected until the end"

  def _large(self, draws: random.Random, until: float) -> str:
    size = draws.choice([150_000, 900_000, 30_000_000])
    return str(self.ask({"inputs": "a" * size})[0])

  def _malformed(self, draws: random.Random, until: float) -> str:
    content = draws.choice(
      [
        draws.randbytes(300) + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{{{",
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"A" * 70_000 + b"\r\n\r\n",
      ]
    )
    with self._send(content) as connection:
      return self._status(connection)

  def _strange(self, draws: random.Random, until: float) -> str:
    value = draws.choice([1e-300, float("nan"), -1, "hot", 10**400, None, [], {}])
    return str(self.ask({"inputs": "a", draws.choice(["temperature", "beam", "seed", "top_p"]): value})[0])

  def _whole(self, length: int) -> bytes:
    body = json.dumps({"inputs": "a", "max_length": length}).encode()
    head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

  def _deaf(self, draws: random.Random, until: float) -> str:
    with self._send(self._whole(64)) as connection:
      time.sleep(draws.uniform(1, 8))
      return self._status(connection)

  def _leaves(self, draws: random.Random, until: float) -> str:
    with self._send(self._whole(64)):
      time.sleep(draws.uniform(0, 1))
    return "left"


def measure(folder: pathlib.Path, *, clients: int, seconds: float) -> dict:
  """Starts the server, runs the clients for some seconds, and stops it."""
  run = checkpoint(folder, _TOY)
  started = subprocess.Popen([sys.executable, "-c", _SERVER, run], stdout=subprocess.PIPE, text=True)
  try:
    line = started.stdout.readline()
    pool = Clients(int(line.split(":")[2].split("/")[0]))
    for text in _INPUTS:  # on an idle server: compiles the programs, and records the expected answers
      for options in ({}, {"beam": 2}):
        events = pool.ask({"inputs": text, "max_length": 8} | options)[1]
        pool.expected[json.dumps([text, options])] = events[-1]["prediction"]
    pool.ask({"inputs": "a", "max_length": 64})
    before, until = usage(started.pid), time.monotonic() + seconds
    threads = [threading.Thread(target=pool.run, args=(until, number), daemon=True) for number in range(clients)]
    for thread in threads:
      thread.start()
    most = before
    while time.monotonic() < until:
      time.sleep(1.0)
      most = {name: max(value, most.get(name, 0)) for name, value in usage(started.pid).items()}
    for thread in threads:
      thread.join(320)
    time.sleep(20.0)  # slow clients are disconnected by now
    after = usage(started.pid)
    status, events = pool.ask({"inputs": _INPUTS[0], "max_length": 8})
    still = status == 200 and events[-1]["prediction"] == pool.expected[json.dumps([_INPUTS[0], {}])]
    # Stops it while it generates: the pending answer gets a last event.
    last = []
    late = threading.Thread(target=lambda: last.extend(pool.ask({"inputs": "a", "max_length": 1_000})[1]))
    late.start()
    time.sleep(0.3)
    started.send_signal(signal.SIGTERM)
    code = started.wait(60)
    late.join(60)
  finally:
    started.kill()
    started.wait()
  for kind, answers in sorted(pool.answers.items()):
    latencies = sorted(pool.seconds[kind])
    row = {"client": kind, "answers": dict(answers)}
    if latencies:
      row |= {
        "median_s": round(statistics.median(latencies), 3),
        "p99_s": round(latencies[int(0.99 * (len(latencies) - 1))], 3),
      }
    print(json.dumps(row), flush=True)
  return {
    "clients": clients,
    "seconds": seconds,
    "before": before,
    "most": most,
    "after": after,
    "lost": pool.lost,
    "wrong": pool.wrong,
    "answers_afterwards": still,
    "ended_with": code,
    "last_event": list(last[-1]) if last else None,
  }


_CLIENTS, _TEXTS, _LENGTH = (1, 8, 32), 64, 64


def loop(run: str) -> float:
  """Returns tokens per second of a loop over the prompts, without a server."""
  import jax

  from t2t import sharding
  from t2t.checkpoints import pretrained
  from t2t.inference import decoding, predictor, prompt_builder, prompt_features

  source = pretrained.read_source(run)
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  model, vocabulary = pretrained.load(source, mesh), pretrained.vocabulary(source)
  writer = predictor.Predictor(
    source.asked,
    model.graphdef,
    mesh,
    prompt_features.framing(vocabulary, causal=pretrained.reads_causally(source)),
    decode=decoding.DecodeConfig(_LENGTH, min_length=_LENGTH),
    batch_size=1,
    max_inputs=64,
  )
  prompts = prompt_builder.Prompts(vocabulary, ends=prompt_builder.ends_prompts(source)[0], longest=64)
  texts = [prompts(text)[0] for text in _INPUTS]
  writer.generate(model.params, texts[:1])
  started = time.monotonic()
  for text in texts:
    writer.generate(model.params, [text])
  return len(texts) * _LENGTH / (time.monotonic() - started)


def throughput(folder: pathlib.Path, path: str) -> None:
  """Prints the tokens per second of several numbers of clients, and of a loop over requests."""
  run = path or checkpoint(folder, {})
  print(json.dumps({"loop": round(loop(run), 1)}), flush=True)
  started = subprocess.Popen([sys.executable, "-c", _SERVER, run], stdout=subprocess.PIPE, text=True)
  try:
    pool = Clients(int(started.stdout.readline().split(":")[2].split("/")[0]))
    body = {"max_length": _LENGTH, "min_length": _LENGTH}

    def client(number: int, clients: int) -> None:
      for i in range(number, max(clients, _TEXTS), clients):
        pool.ask(body | {"inputs": _INPUTS[i % len(_INPUTS)]})

    for clients in _CLIENTS:
      for _ in range(2):  # the first round compiles
        threads = [threading.Thread(target=client, args=(number, clients)) for number in range(clients)]
        began = time.monotonic()
        for thread in threads:
          thread.start()
        for thread in threads:
          thread.join()
        speed = max(clients, _TEXTS) * _LENGTH / (time.monotonic() - began)
      print(json.dumps({"clients": clients, "tokens_per_second": round(speed, 1)}), flush=True)
  finally:
    started.kill()
    started.wait()


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seconds", type=numeric.number(0, above=True), default=120.0)
  parser.add_argument("--clients", type=int, default=200)
  parser.add_argument("--throughput", action="store_true")
  parser.add_argument("--checkpoint", default="", help="with --throughput: a generative model")
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    if options.throughput:
      throughput(pathlib.Path(folder), options.checkpoint)
      return
    result = measure(pathlib.Path(folder), clients=options.clients, seconds=options.seconds)
  print(json.dumps(result), flush=True)
  if result["lost"] or result["wrong"] or not result["answers_afterwards"] or result["ended_with"] != 143:
    sys.exit(1)


if __name__ == "__main__":
  main()
