"""Feeds every reader of files with files that are none, and says how many were read, and how many clearly refused.

  python benchmarks/fuzz.py [--inputs 100000] [--reader NAME] [--seed 0] [--seconds S] [--gigabytes 4]

An input is a whole file with bytes changed, taken out, put in twice or cut off, numbers in its text replaced by absurd
ones, or nothing but random bytes.  Each reader has a process of its own, which may take so much memory beyond what it
begins with.  Any other error than a clear one is told with its input, which is kept; and so is one that ends the
process.  The exit code is 1 then.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import gzip
import io
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from etils import epath
import msgpack
import numpy as np

from t2t import UserError
from t2t import config as config_lib
from t2t.checkpoints import damage, manifest
from t2t.configs import default
from t2t.convert import flax_msgpack, safetensors
from t2t.storage import records, untrusted

_TEXTS = [f"number {i}: the quick brown fox jumps over {i * 7} lazy dogs" for i in range(8)]
_ABSURD = (
  b"-1",
  b"0",
  b"1e400",
  b"NaN",
  b"9" * 30,
  b"2147483648",
  b"9223372036854775807",
  b'"x"',
  b"[]",
  b"{}",
  b"null",
)
_SHOWN = 5  # errors that are told


@dataclasses.dataclass(frozen=True)
class _Reader:
  """What is read.

  name: of the file.
  whole: of contents that are right.
  read: takes the path.
  fresh: the file needs a folder of its own each time, since what was read of a path is remembered.
  """

  name: str
  whole: Callable[[], Sequence[bytes]]
  read: Callable[[pathlib.Path], object]
  fresh: bool = False


# ---- What is read ----------------------------------------------------------------------------------------------------


def _texts(path: pathlib.Path) -> None:
  from t2t.data.sources import faults, text_files

  for _ in text_files.read_texts(str(path), field="text", tally=faults.Tally(0.0)):
    pass


def _lines() -> bytes:
  return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(_TEXTS))


def _parquet() -> bytes:
  import pyarrow as pa
  import pyarrow.parquet

  file = io.BytesIO()
  pa.parquet.write_table(pa.table({"text": _TEXTS, "id": list(range(len(_TEXTS)))}), file)
  return file.getvalue()


def _tfrecord() -> bytes:
  import tensorflow as tf

  feature = lambda text: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
  example = lambda text: tf.train.Example(features=tf.train.Features(feature={"text": feature(text)}))
  return b"".join(records.frame(example(text).SerializeToString()) for text in _TEXTS)


def _safetensors() -> bytes:
  head = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "__metadata__": {"format": "pt"},
  }
  text = json.dumps(head).encode()
  return len(text).to_bytes(8, "little") + text + bytes(range(32))


def _read_safetensors(path: pathlib.Path) -> None:
  for entry in safetensors.read_header(epath.Path(path)).values():
    if not 8 <= entry.begin <= entry.begin + entry.nbytes <= path.stat().st_size:
      raise AssertionError(f"{entry} is not within the file")
    entry.read()


def _msgpack() -> bytes:
  array = msgpack.packb([[2, 3], "float32", np.arange(6, dtype=np.float32).tobytes()])
  return msgpack.packb({"version": 3, "optimizer": {"target": {"a": msgpack.ExtType(1, array), "b": {"c": 1.5}}}})


def _vocabulary(path: pathlib.Path) -> None:
  from t2t.data import vocabularies

  vocabulary = vocabularies.load(str(path), extra_ids=0)
  vocabulary.encode("the quick brown fox")
  vocabularies.token_texts(vocabulary)


def _bpe(path: pathlib.Path) -> None:
  (path.parent / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
  _vocabulary(path)


def _merges(path: pathlib.Path) -> None:
  (path.parent / "vocab.json").write_bytes(_pieces())
  _vocabulary(path.parent / "vocab.json")


def _pieces() -> bytes:
  import tokenizers

  bytes_ = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  return json.dumps({piece: i for i, piece in enumerate(["<pad>", "</s>", "<unk>", *bytes_, "th", "the"])}).encode()


def _wordpieces() -> bytes:
  return "\n".join(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##s", *map(chr, range(97, 123))]
  ).encode()


def _tokenizer() -> bytes:
  import tokenizers

  made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
  made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=300,
    special_tokens=["<pad>", "</s>", "<unk>"],
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  made.train_from_iterator(_TEXTS, trainer)
  return made.to_str().encode()


def _sentencepiece() -> bytes:
  import sentencepiece

  model = io.BytesIO()
  options = dict(vocab_size=50, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2)
  sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(_TEXTS * 9), model_writer=model, **options)
  return model.getvalue()


def _overrides(path: pathlib.Path) -> None:
  arguments = path.read_bytes().decode(errors="surrogateescape").split("\n")
  config_lib.records(config_lib.override(default.get_config(), arguments))


def _manifest(path: pathlib.Path) -> None:
  try:
    manifest.read(epath.Path(path.parent))
  except UserError:
    raise
  except ValueError as error:  # what is said of a step whose manifest is none
    raise UserError(f"{path}: {error}") from error
  damage.noted(epath.Path(path))


def _manifest_content() -> bytes:
  return manifest._render(manifest.Manifest(7, {"state/d/0": (100, 17), "streams/stream-0": (20, 4_000_000_000)}))


def _events(path: pathlib.Path) -> None:
  from t2t.training import writers

  for name in ("tensorboard/events.out.tfevents.1.a", "metrics.jsonl"):
    (path.parent / name).parent.mkdir(exist_ok=True)
    (path.parent / name).write_bytes(path.read_bytes())
  writers.Writer(epath.Path(path.parent), start=9).close()


def _event_content() -> bytes:
  from tensorboardX.proto import event_pb2

  events = (event_pb2.Event(wall_time=1.0, step=step, file_version="brain.Event:2") for step in range(4))
  return b"".join(records.frame(event.SerializeToString()) for event in events)


_ROWS = b"".join(b'{"step": %d, "train/loss": %d.5}\n' % (i, i) for i in range(4))
_ARGUMENTS = (
  b"--config.train.steps=3\n--config.model.num_heads=2\n--config.data.folders.superglue=x\n--config.lora.rank=2"
)

_READERS = {
  "json": _Reader(
    "any.json", lambda: [_lines().splitlines()[0], _pieces()], lambda path: untrusted.read_json(epath.Path(path))
  ),
  "safetensors": _Reader("any.safetensors", lambda: [_safetensors()], _read_safetensors),
  "msgpack": _Reader("any.msgpack", lambda: [_msgpack()], lambda path: flax_msgpack.read(epath.Path(path))),
  "text": _Reader("any.txt", lambda: ["\n".join(_TEXTS).encode()], _texts),
  "jsonl": _Reader("any.jsonl", lambda: [_lines()], _texts),
  "gz": _Reader("any.jsonl.gz", lambda: [gzip.compress(_lines()), gzip.compress(_lines()) * 2], _texts),
  "parquet": _Reader("any.parquet", lambda: [_parquet()], _texts),
  "tfrecord": _Reader("any.tfrecord", lambda: [_tfrecord()], _texts),
  "wordpiece": _Reader("vocab.txt", lambda: [_wordpieces()], _vocabulary, fresh=True),
  "bpe": _Reader("vocab.json", lambda: [_pieces()], _bpe, fresh=True),
  "merges": _Reader("merges.txt", lambda: [b"#version: 0.2\nt h\nth e\n"], _merges, fresh=True),
  "tokenizer": _Reader("tokenizer.json", lambda: [_tokenizer()], _vocabulary, fresh=True),
  "sentencepiece": _Reader("spiece.model", lambda: [_sentencepiece()], _vocabulary, fresh=True),
  "overrides": _Reader("overrides", lambda: [_ARGUMENTS], _overrides),
  "manifest": _Reader(manifest.NAME, lambda: [_manifest_content()], _manifest),
  "metrics": _Reader("any", lambda: [_event_content(), _ROWS], _events, fresh=True),
}


# ---- What it is fed with ---------------------------------------------------------------------------------------------


def spoiled(whole: bytes, draws: random.Random) -> bytes:
  """A file that is like this one, but for a few changes; now and then one that is not like it at all."""
  if draws.random() < 0.02:
    return draws.randbytes(draws.randrange(100))
  content = bytearray(whole)
  for _ in range(draws.choice((1, 1, 1, 2, 3, 8))):
    kind, at = draws.randrange(7), draws.randrange(len(content) + 1)
    size = draws.choice((1, 1, 2, 4, 8, 30))
    if kind == 0 and content:
      content[min(at, len(content) - 1)] ^= 1 << draws.randrange(8)
    elif kind == 1:
      content[at : at + size] = draws.randbytes(size)
    elif kind == 2:
      del content[at : at + size]
    elif kind == 3:
      content[at:at] = content[at : at + size] * draws.choice((1, 2, 50))
    elif kind == 4:
      content[at : at + 1] = bytes([draws.choice((0, 10, 34, 91, 123, 125, 127, 128, 255))])
    elif kind == 5:
      numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
      if numbers:
        number = draws.choice(numbers)
        content[number.start() : number.end()] = draws.choice(_ABSURD)
    elif draws.random() < 0.3:
      del content[at:]
  return bytes(content)


def _run(name: str, *, inputs: int, seed: int, seconds: float, gigabytes: float, kept: pathlib.Path) -> int:
  """Feeds one reader; what is kept of an input that ends the process is the file that it was written to."""
  reader, draws = _READERS[name], random.Random(f"{name} {seed}")
  contents = reader.whole()
  counts, slowest, faults = {"read": 0, "refused": 0}, 0.0, 0
  kept.mkdir(parents=True, exist_ok=True)
  for content in contents:  # what is right is read, and all that is imported for it, before memory is bounded
    _feed(reader, content, kept / "whole")
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
  limit = pages * resource.getpagesize() + int(gigabytes * 2**30)
  resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
  end = time.monotonic() + seconds
  for number in range(inputs):
    if time.monotonic() > end:
      inputs = number
      break
    content = spoiled(draws.choice(contents), draws)
    began = time.perf_counter()
    try:
      _feed(reader, content, kept / (f"{number}" if reader.fresh else "last"))
      counts["read"] += 1
    except UserError:
      counts["refused"] += 1
    except BaseException as error:
      if isinstance(error, KeyboardInterrupt):
        raise
      faults += 1
      if faults <= _SHOWN:
        (kept / f"fault_{number}").write_bytes(content)
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        print(f"  {place.filename}, line {place.lineno}; input: {kept}/fault_{number}", flush=True)
    slowest = max(slowest, time.perf_counter() - began)
    if reader.fresh:
      shutil.rmtree(kept / f"{number}", ignore_errors=True)
  said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
  print(f"{name:<14}{inputs:>9,} inputs: {said}, {faults:,} other errors; slowest {1000 * slowest:.0f} ms", flush=True)
  return 1 if faults else 0


def _feed(reader: _Reader, content: bytes, folder: pathlib.Path) -> None:
  folder.mkdir(exist_ok=True)
  path = folder / reader.name
  path.write_bytes(content)
  with contextlib.redirect_stderr(io.StringIO()):
    reader.read(path)


def main() -> int:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--inputs", type=int, default=100_000, metavar="N", help="of each reader; default: 100000")
  parser.add_argument("--reader", choices=_READERS, metavar="NAME", help=f"one alone: {', '.join(_READERS)}")
  parser.add_argument("--seed", type=int, default=0, help="of the draws; default: 0")
  parser.add_argument(
    "--seconds", type=float, default=math.inf, help="after which a reader has had enough; default: inf"
  )
  parser.add_argument("--gigabytes", type=float, default=4.0, help="that a reader may take; default: 4")
  parser.add_argument("--kept", type=pathlib.Path, help="folder for inputs that were faults; default: a new one")
  options = parser.parse_args()
  kept = options.kept or pathlib.Path(tempfile.mkdtemp(prefix="t2t_fuzz_"))
  if options.reader:
    limits = {key: getattr(options, key) for key in ("inputs", "seed", "seconds", "gigabytes")}
    return _run(options.reader, **limits, kept=kept / options.reader)
  failed = False
  for name in _READERS:
    given = [f"--{key}={getattr(options, key)}" for key in ("inputs", "seed", "seconds", "gigabytes")]
    command = [sys.executable, __file__, "--reader", name, *given, "--kept", str(kept)]
    code = subprocess.run(command, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}).returncode
    failed |= code != 0
    if code < 0:
      print(f"{name}: ended by {signal.Signals(-code).name}, at the input in {kept / name}", flush=True)
  if not failed:
    shutil.rmtree(kept, ignore_errors=True)
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
