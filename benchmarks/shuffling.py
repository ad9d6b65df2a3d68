"""How far the neighbours of a sorted corpus are from each other in the first epoch of training.

  python benchmarks/shuffling.py                              # 100,000 records of 500 bytes, each kind of file
  python benchmarks/shuffling.py --records 20000 --kinds jsonl,parquet

Each kind of file holds the same numbered records in order, and is read by the real `train_batches`, with the default
shuffle buffer. Beside them are tf.data's shuffle buffers over the same order, and a permutation of all records.

  distance    mean distance of two neighbours of the corpus, in percent of the epoch; 33.3 for a permutation
  near        share of neighbours with less than 1,000 examples between them; 2 % of 100,000 for a permutation
  tenths      tenths of the corpus that the first 1,000 examples come from; 10 for a permutation

Prints a table and writes shuffling.json and shuffling.png.
"""

import argparse
from collections.abc import Callable, Iterator
import gzip
import io
import json
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline
from t2t.runtime import numeric

_LENGTH = 512  # tokens of a row, one record
_NEAR = 1_000
_MARK = re.compile(rb"(\d{9}) ")


def _records(start: int, stop: int) -> Iterator[str]:
  for number in range(start, stop):
    yield f"{number:09d} {'x' * 480}"


def _json_lines(start: int, stop: int) -> bytes:
  return "".join(json.dumps({"text": text}) + "\n" for text in _records(start, stop)).encode()


def _jsonl(folder: pathlib.Path, number: int) -> str:
  (folder / "a.jsonl").write_bytes(_json_lines(0, number))
  return str(folder / "a.jsonl")


def _gzip(folder: pathlib.Path, number: int) -> str:
  (folder / "a.jsonl.gz").write_bytes(gzip.compress(_json_lines(0, number), 1))
  return str(folder / "a.jsonl.gz")


def _jsonl_files(folder: pathlib.Path, number: int) -> str:
  bounds = np.linspace(0, number, 33).astype(int)
  for part, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
    (folder / f"part{part:02d}.jsonl").write_bytes(_json_lines(start, stop))
  return str(folder / "part*.jsonl")


def _parquet(folder: pathlib.Path, number: int) -> str:
  table = pa.table({"text": list(_records(0, number))})
  pa.parquet.write_table(table, folder / "a.parquet", row_group_size=10_000)
  return str(folder / "a.parquet")


def _tfrecord(folder: pathlib.Path, number: int) -> str:
  with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as file:
    for text in _records(0, number):
      feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
      file.write(tf.train.Example(features=tf.train.Features(feature={"text": feature})).SerializeToString())
  return str(folder / "a.tfrecord")


# kind -> function that writes the records into a folder and returns the glob of its files
_FILES: dict[str, Callable[[pathlib.Path, int], str]] = {
  "jsonl": _jsonl,
  "jsonl.gz": _gzip,
  "32 jsonl files": _jsonl_files,
  "parquet": _parquet,
  "tfrecord": _tfrecord,
}
_TASK = "seqio task"
_BUFFERS = (1_000, 10_000)


def epoch(data: DataConfig, number: int) -> np.ndarray:
  """Returns the records of the first epoch in the order of training, numbered without the held-out records."""
  mesh = sharding.make_mesh({"data": 1, "fsdp": -1, "tensor": 1})
  batches = pipeline.train_batches(data, "decoder_only", mesh, batch_size=128, seed=0)
  order: dict[int, None] = {}  # a stream that is through with its share begins the next epoch
  read = 0
  try:
    while read < 1.3 * number + 1_000:  # streams have unequal shares
      for stream in batches.next_rows().values():
        for row in stream["decoder_target_tokens"]:
          text = (row[(row >= 3) & (row < 259)] - 3).astype(np.uint8).tobytes()
          found = [int(mark) for mark in _MARK.findall(text)]
          order.update(dict.fromkeys(found))
          read += len(found)
  finally:
    batches.close()
  if len(order) < 0.9 * number:
    raise UserError(f"{data.files}: {len(order):,} of {number:,} records came in {read:,} reads")
  return np.unique(list(order), return_inverse=True)[1]


def of_buffer(number: int, size: int) -> np.ndarray:
  """Returns the order of tf.data's shuffle buffer over the sorted records, int [number]."""
  return np.array(list(tf.data.Dataset.range(number).shuffle(size, seed=0).as_numpy_iterator()))


def figures(order: np.ndarray) -> dict[str, float]:
  """Returns the columns of the table for an order of records, int [records]."""
  place = np.empty_like(order)
  place[order] = np.arange(len(order))
  apart = np.abs(np.diff(place))
  return {
    "distance": 100 * float(apart.mean()) / len(order),
    "near": 100 * float((apart < _NEAR).mean()),
    "tenths": len(np.unique(order[:_NEAR] * 10 // len(order))),
  }


def draw(orders: dict[str, np.ndarray]) -> bytes:
  """Returns a PNG with a panel for each order: place in the corpus over place in the epoch, of 3,000 records."""
  import matplotlib.figure

  columns = 3
  rows = -(-len(orders) // columns)
  figure = matplotlib.figure.Figure(figsize=(2.4 * columns, 2.6 * rows), dpi=120, layout="constrained")
  panels: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
  for axes in panels.flat[len(orders) :]:
    axes.set_visible(False)
  for axes, (name, order) in zip(panels.flat, orders.items(), strict=False):
    shown = np.sort(np.random.default_rng(0).choice(len(order), min(3_000, len(order)), replace=False))
    axes.scatter(100 * shown / len(order), 100 * order[shown] / len(order), s=1.2, color="#1f5fa8", linewidths=0)
    axes.set_title(name, fontsize=9)
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100), aspect="equal")
    axes.tick_params(labelsize=8)
  figure.supxlabel("place in the epoch, %", fontsize=9)
  figure.supylabel("place in the sorted corpus, %", fontsize=9)
  content = io.BytesIO()
  figure.savefig(content, format="png")
  return content.getvalue()


def _register(number: int) -> str:
  """Registers a task of a Python function with the records; returns its name."""
  feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=0))
  texts = lambda split, shuffle_files, seed=None: tf.data.Dataset.from_generator(
    lambda: ({"text": text} for text in _records(0, number)), output_signature={"text": tf.TensorSpec([], tf.string)}
  )
  seqio.TaskRegistry.add(
    "shuffling_records",
    source=seqio.FunctionDataSource(texts, splits=["train"], num_input_examples={"train": number}),
    preprocessors=objectives.preprocessors("causal_lm", pack=True),
    output_features={"targets": feature},
  )
  return "shuffling_records"


def _order(kind: str, folder: pathlib.Path, number: int) -> np.ndarray:
  folder.mkdir(parents=True, exist_ok=True)
  text = {"mixture": _register(number)} if kind == _TASK else {"files": _FILES[kind](folder, number)}
  return epoch(DataConfig(**text, vocabulary="bytes", objective="causal_lm", targets_length=_LENGTH, pack=True), number)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--records", type=numeric.integer(2 * _NEAR), default=100_000, help="of the corpus")
  kinds = [*_FILES, _TASK]
  parser.add_argument("--kinds", default=",".join(kinds), help=f"comma-separated, of {', '.join(kinds)}")
  parser.add_argument("--output", type=pathlib.Path, default="runs/shuffling", help="folder of the files")
  options = parser.parse_args()
  chosen = options.kinds.split(",")
  if unknown := [kind for kind in chosen if kind not in kinds]:
    raise UserError(f"--kinds {unknown[0]}: unknown. Known are {', '.join(kinds)}.")
  orders = {}
  for kind in chosen:
    orders[kind] = _order(kind, options.output / re.sub(r"\W", "_", kind), options.records)
    print(f"{kind}: {figures(orders[kind])}", file=sys.stderr)
  for size in _BUFFERS:
    orders[f"buffer of {size:,}"] = of_buffer(options.records, size)
  orders["permutation"] = np.random.default_rng(0).permutation(options.records)
  table = {name: figures(order) for name, order in orders.items()}
  print("| records in | distance | near | tenths |\n|---|---|---|---|")
  for name, row in table.items():
    print(f"| {name} | {row['distance']:.1f} % | {row['near']:.1f} % | {row['tenths']} |")
  (options.output / "shuffling.json").write_text(json.dumps({"records": options.records, "orders": table}, indent=1))
  (options.output / "shuffling.png").write_bytes(draw(orders))


if __name__ == "__main__":
  try:
    main()
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
