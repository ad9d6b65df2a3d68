"""Feeds corrupted files to every reader of foreign files, and counts the outcomes.

  python benchmarks/fuzz.py [READER ...] [--inputs 100000] [--seed 0] [--seconds 10] [--memory 4] [--keep FOLDER]

An input is a valid file with bytes changed, removed, repeated, or replaced by extreme numbers, or with extreme values
in its JSON. A reader may return data, or raise a UserError. Every other outcome counts as a crash and is kept: another
exception, more than --seconds, or more than --memory GiB.
"""

import argparse
import collections
from collections.abc import Callable
import contextlib
import dataclasses
import io
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback

os.environ["JAX_PLATFORMS"] = "cpu"
_TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "checkpoints"), str(_TESTS / "data" / "sources")]

from etils import epath  # noqa: E402
import foreign  # noqa: E402
import seqio  # noqa: E402
import t5x_files  # noqa: E402
import test_file_sources  # noqa: E402
import test_manager  # noqa: E402
import toy  # noqa: E402

from t2t import UserError  # noqa: E402
from t2t.checkpoints import manager, manifest, verify  # noqa: E402
from t2t.configuration import loading as config_lib  # noqa: E402
from t2t.convert import huggingface, t5x  # noqa: E402
from t2t.data.sources import bad_records, text_files  # noqa: E402
from t2t.data.vocabularies import reserved_ids, training  # noqa: E402
from t2t.inference import jsonl_io  # noqa: E402
from t2t.runtime import numeric  # noqa: E402
from t2t.training import recipe  # noqa: E402

_NUMBERS = (0, 1, 127, 255, 2**15, 2**31 - 1, 2**32 - 1, 2**60, 2**63 - 1, 2**64 - 1)
_WORDS = (b"-1", b"1e400", b"NaN", b"null", b"true", b'"../../x"', b"[]", b"{}", b"18446744073709551616", b"9" * 400)
_VALUES = (
  "-1",
  "0",
  "nan",
  "inf",
  "1e400",
  "10000000",
  "9" * 30,
  "",
  "None",
  "True",
  "x",
  "(1,)",
  "('a',)",
  "[",
  "{}",
  "\0",
)


@dataclasses.dataclass(frozen=True)
class Reader:
  """A reader, and valid files for it.

  write: writes the files in a folder.
  read: reads all files of a folder.
  must_refuse: whether it must detect every changed bit.
  """

  write: Callable[[pathlib.Path], object]
  read: Callable[[pathlib.Path], object]
  must_refuse: bool = False


_CONFIG = toy.config(relative_position_buckets=8)


def _params() -> dict:
  return foreign.random_params(_CONFIG)


def _hugging_face(folder: pathlib.Path) -> None:
  huggingface.save(foreign.in_memory(_CONFIG, _params()), epath.Path(folder / "model"))


def _texts(name: str) -> Reader:
  read = lambda folder: list(text_files.read_texts(str(folder / name), field="text", tally=bad_records.Tally(0.5)))
  return Reader(lambda folder: test_file_sources.write(folder, name, test_file_sources.TEXTS[:12]), read)


def _lines(name: str, content: str) -> Reader:
  return Reader(
    lambda folder: (folder / name).write_text(content), lambda folder: list(jsonl_io.read(str(folder / name)))
  )


def _vocabulary(kind: str, name: str) -> Reader:
  train = getattr(training, f"train_{kind}")
  size = {"sentencepiece": 34, "wordpiece": 60, "bpe": 280}[kind]

  def read(folder: pathlib.Path) -> None:
    # Vocabularies are cached by path, so each is read from a new path.
    with tempfile.TemporaryDirectory(dir=folder.parent) as elsewhere:
      reserved_ids.load(shutil.copy(folder / name, elsewhere)).encode("some text")
    seqio.vocabularies._load_model_internal.cache_clear()  # would keep every model in memory

  return Reader(lambda folder: train(test_file_sources.TEXTS * 3, size=size, output_dir=folder), read)


def _step(folder: pathlib.Path) -> None:
  checkpoints = manager.Checkpoints(epath.Path(folder / "run"), keep=1)
  checkpoints.save(3, test_manager.make_state(), {"a": b"{}"}, test_manager.CONFIG, metrics={"loss": 1.0})
  checkpoints.close()


def _whole_step(folder: pathlib.Path) -> None:
  if problems := verify.of_step(epath.Path(folder / "run" / "checkpoints" / "3"), step=3):
    raise UserError("\n".join(problems))


READERS = {
  "text": _texts("a.txt"),
  "json_lines": _texts("a.jsonl"),
  "gzip": _texts("a.jsonl.gz"),
  "parquet": _texts("a.parquet"),
  "tfrecord": _texts("a.tfrecord"),
  "hugging_face": Reader(_hugging_face, lambda folder: foreign.read(huggingface.open_foreign(str(folder / "model")))),
  "t5x_zarr": Reader(  # scanned, with a quarter of the arrays, to save time
    lambda folder: t5x_files.write(folder / "model", t5x_files.scanned(t5x_files.parameters(), axis=1)),
    lambda folder: foreign.read(t5x.open_foreign(str(folder / "model"))),
  ),
  "t5x_msgpack": Reader(
    lambda folder: t5x_files.single_file(folder / "model", t5x_files.parameters()),
    lambda folder: foreign.read(t5x.open_foreign(str(folder / "model"))),
  ),
  "sentencepiece": _vocabulary("sentencepiece", "spiece.model"),
  "wordpiece": _vocabulary("wordpiece", "vocab.txt"),
  "bpe": _vocabulary("bpe", "tokenizer.json"),
  "input_text": _lines("in.txt", "a line\n\nanother \u00e9\n" * 5),
  "input_json": _lines("in.jsonl", '{"inputs": "a line", "id": 3}\n{"inputs": "b"}\n' * 5),
  "checkpoint": Reader(_step, _whole_step, must_refuse=True),
}


def spoil(content: bytes, draw: random.Random) -> bytes:
  """Returns a file with one to four faults."""
  spoiled = bytearray(content)
  for _ in range(draw.choice((1, 1, 2, 4))):
    at, length = draw.randrange(len(spoiled) + 1), draw.choice((1, 1, 2, 8, 64, 1000))
    match draw.randrange(8):
      case 0:
        spoiled[at : at + 1] = bytes([draw.randrange(256)])
      case 1:
        spoiled[at : at + 1] = bytes(byte ^ 1 << draw.randrange(8) for byte in spoiled[at : at + 1])
      case 2:
        del spoiled[at : at + length]
      case 3:
        spoiled[at:at] = spoiled[at : at + length] * draw.choice((1, 1, 1000))
      case 4:
        del spoiled[at:]
      case 5:
        size = draw.choice((1, 2, 4, 8))
        number = draw.choice(_NUMBERS) % 2 ** (8 * size)
        spoiled[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
      case 6:
        spoiled[at:at] = draw.randbytes(length)
      case 7:  # in JSON
        tokens = [match.span() for match in re.finditer(rb'-?[0-9.]+|"[^"]*"', bytes(spoiled[:20_000]))]
        if tokens:
          begin, end = draw.choice(tokens)
          spoiled[begin:end] = draw.choice(_WORDS)
  return bytes(spoiled)


class _TooLong(BaseException):
  """Time limit exceeded; a BaseException, so that no reader catches it."""


def _alarm(*_) -> None:
  raise _TooLong


def fuzz(name: str, *, inputs: int, seed: int, seconds: float, keep: pathlib.Path) -> dict[str, object]:
  """Returns counts by outcome, and the slowest time."""
  reader, draw, counts = READERS[name], random.Random(f"{name} {seed}"), collections.Counter()
  folder = pathlib.Path(tempfile.mkdtemp(prefix="t2t_fuzz_", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
  os.environ["T2T_CACHE_DIR"] = str(folder / "cache")
  good = folder / "good"
  good.mkdir()
  reader.write(good)
  reader.read(good)
  paths = [path for path in sorted(good.rglob("*")) if path.is_file() and path.stat().st_size]
  # Orbax's marker has no content that matters.
  paths = [path for path in paths if path.name != manifest.COMMITTED]
  kinds: collections.Counter[str] = collections.Counter()
  last = keep / f"{name}_last"  # kept if the process is killed
  keep.mkdir(parents=True, exist_ok=True)
  slowest, shown, stderr = 0.0, time.monotonic(), io.StringIO()
  for number in range(inputs):
    path = draw.choice(paths)
    content = path.read_bytes()
    spoiled = spoil(content, draw)
    path.write_bytes(spoiled)
    last.write_bytes(spoiled)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
      with contextlib.redirect_stderr(stderr):
        reader.read(good)
      outcome = "missed" if reader.must_refuse and spoiled != content else "read"
    except UserError as error:
      outcome = "refused" if str(error).strip() else "without words"
    except (Exception, _TooLong) as error:
      frames = [
        f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
      ]
      outcome = f"{type(error).__name__} at {' '.join(frames[-3:])}: {str(error)[:80]!r}"
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)
    slowest = max(slowest, time.monotonic() - began)
    path.write_bytes(content)
    stderr.seek(0)
    stderr.truncate()
    if outcome not in ("read", "refused"):
      where = outcome.partition(": ")[0]
      kinds[where] += 1
      if kinds[where] == 1:
        copy = keep / f"{name}_{number}_{path.name}"
        copy.write_bytes(spoiled)
        print(f"{name}: {outcome}; {path.relative_to(good)} kept as {copy}", flush=True)
      outcome = "crashed"
    counts[outcome] += 1
    if time.monotonic() - shown > 30:
      shown = time.monotonic()
      print(f"{name}: {number + 1:,} of {inputs:,}", file=sys.stderr, flush=True)
  shutil.rmtree(folder)
  last.unlink()
  return {"reader": name, "inputs": inputs, **counts, "slowest_ms": round(slowest * 1000)}


def fuzz_overrides(*, inputs: int, seed: int) -> dict[str, object]:
  """Fuzzes --config.KEY= values, up to building the training program; returns counts by outcome."""
  draw, counts = random.Random(seed), collections.Counter()
  keys = [key for key, _ in _leaves(config_lib.load_config("tiny").to_dict())]
  kinds: collections.Counter[str] = collections.Counter()
  for _ in range(inputs):
    typed = [f"--config.{draw.choice(keys)}={draw.choice(_VALUES)}" for _ in range(draw.choice((1, 1, 2)))]
    try:
      recipe.make(config_lib.records(config_lib.override(config_lib.load_config("tiny"), typed)))
      counts["read"] += 1
    except UserError:
      counts["refused"] += 1
    except Exception as error:
      frame = traceback.extract_tb(error.__traceback__)[-1]
      where = f"{type(error).__name__} at {pathlib.Path(frame.filename).name}:{frame.lineno}"
      kinds[where] += 1
      if kinds[where] == 1:
        print(f"overrides: {where}: {str(error)[:80]!r}; {' '.join(typed)}", flush=True)
      counts["crashed"] += 1
  return {"reader": "overrides", "inputs": inputs, **counts}


def _leaves(tree: dict, prefix: str = "") -> list[tuple[str, object]]:
  leaves = []
  for key, value in tree.items():
    leaves += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
  return leaves


def main() -> int:
  """Prints a line for each reader; returns 0 if none crashed."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "readers", nargs="*", metavar="READER", help=f"reader; default: all: {', '.join(READERS)}, overrides"
  )
  parser.add_argument("--inputs", type=int, default=100_000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--seconds", type=numeric.number(0, above=True), default=10, help="time limit of one input")
  parser.add_argument(
    "--memory",
    type=numeric.number(0, above=True),
    default=4,
    help="GiB that the process may additionally allocate",
  )
  parser.add_argument("--keep", type=pathlib.Path, default="fuzzed", help="folder for inputs that crashed")
  arguments = parser.parse_args()
  if unknown := set(arguments.readers) - READERS.keys() - {"overrides"}:
    parser.error(f"unknown reader {', '.join(unknown)}; known are {', '.join(READERS)} and overrides")
  signal.signal(signal.SIGALRM, _alarm)
  crashed = 0
  for name in arguments.readers or [*READERS, "overrides"]:
    if name == "overrides":
      outcomes = fuzz_overrides(inputs=arguments.inputs, seed=arguments.seed)
    else:
      virtual = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
      most = virtual + int(arguments.memory * 2**30)
      resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
      outcomes = fuzz(
        name, inputs=arguments.inputs, seed=arguments.seed, seconds=arguments.seconds, keep=arguments.keep
      )
    print(
      ", ".join(f"{key} {value:,}" if isinstance(value, int) else f"{value}" for key, value in outcomes.items()),
      flush=True,
    )
    crashed += outcomes.get("crashed", 0)
  return int(bool(crashed))


if __name__ == "__main__":
  sys.exit(main())
