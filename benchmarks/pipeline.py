"""Speed of the input pipeline on the host, without a model.

  python benchmarks/pipeline.py [--files GLOB] [--vocabulary MODEL] [--batch_size 128] [--seconds 20] [--pack] [--json]
  python benchmarks/pipeline.py --sources 5      # the same files as a mixture of 5 sources, relative to one source

Counts non-padding tokens of inputs and targets of the real `train_batches`, after a warm-up. Without --files it reads
../shared/data/wikipedia with the T5 vocabulary if it exists, otherwise the installed documentation. With --json the
last line is one JSON object.

With --sources the files are split into sources, mixed by size to the power of 0.3. Both ways of reading alternate, four
times each.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import time

import jax
import numpy as np

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline
from t2t.data.sources import text_files
from t2t.runtime import numeric

_SHARED = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "data"
_WIKIPEDIA = str(_SHARED / "wikipedia" / "train-*.jsonl.gz")
_T5 = str(_SHARED / "tokenizers" / "t5_spiece" / "spiece.model")


def measure(data: DataConfig, *, batch_size: int, seconds: float) -> dict[str, float]:
  """Returns the pipeline's tokens/s, the time to its first batch, and the size of its state."""
  started = time.monotonic()
  mesh = sharding.make_mesh({"data": 1, "fsdp": -1, "tensor": 1})
  batches = pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=batch_size, seed=0)
  next(batches)
  first_batch_seconds = time.monotonic() - started
  for _ in range(4):  # batches prefetched while the first was computed
    next(batches)
  tokens = positions = steps = 0
  started = time.monotonic()
  while time.monotonic() - started < seconds:
    # Rows from tf.data: counting on the device would measure the device.
    for features in batches.next_rows().values():
      for name in ("encoder_input_tokens", "decoder_target_tokens"):
        tokens += int(np.count_nonzero(features[name]))
        positions += features[name].size
    steps += 1
  elapsed = time.monotonic() - started
  state = batches.state()
  return {
    "tokens_per_second": round(tokens / elapsed),
    "batches_per_second": round(steps / elapsed, 2),
    "padding": round(1 - tokens / positions, 4),
    "first_batch_seconds": round(first_batch_seconds, 2),
    "state_bytes": sum(len(part) for part in state.values()),
    "num_streams": batches.num_streams,
  }


def compare(data: DataConfig, number: int, *, batch_size: int, seconds: float) -> dict[str, float]:
  """Returns the speeds of one source and of several, and the median ratio of alternating pairs."""
  files = text_files.find_files(data.files)
  if len(files) < number:
    raise UserError(f"--sources {number}: more than the {len(files)} file(s); give more files, or fewer sources")
  named = {f"part{i}": {"files": ",".join(files[i::number])} for i in range(number)}
  ways = {"one": data, "several": dataclasses.replace(data, files="", sources=named, alpha=0.3)}
  speeds: dict[str, list[float]] = {name: [] for name in ways}
  for turn in range(4):
    for name in sorted(ways, reverse=bool(turn % 2)):
      speeds[name].append(measure(ways[name], batch_size=batch_size, seconds=seconds)["tokens_per_second"])
  ratios = [several / single for single, several in zip(*speeds.values(), strict=True)]
  medians = {f"tokens_per_second_{name}": statistics.median(samples) for name, samples in speeds.items()}
  return medians | {"ratio": round(statistics.median(ratios), 3), "lowest_ratio": round(min(ratios), 3)}


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--files", default="", help="globs, comma-separated; default: see above")
  parser.add_argument("--vocabulary", default="", help='"bytes" or a SentencePiece model; default: T5\'s, if it exists')
  parser.add_argument("--field", default="text")
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--seconds", type=numeric.number(0, above=True), default=20.0)
  parser.add_argument("--num_streams", type=int, default=0)
  parser.add_argument("--pack", action="store_true", help="pack separate documents with segment ids")
  parser.add_argument("--sources", type=int, default=0, help="number of sources for the comparison")
  parser.add_argument("--json", action="store_true")
  arguments = parser.parse_args()

  files = arguments.files or (_WIKIPEDIA if _SHARED.exists() else "")
  if files:
    data = DataConfig(
      files=files, vocabulary=arguments.vocabulary or (_T5 if _SHARED.exists() else "bytes"), field=arguments.field
    )
  else:
    data = DataConfig(mixture="docs_span_corruption", task_modules=("t2t.tasks.docs",))
  data = dataclasses.replace(data, pack=arguments.pack, num_streams=arguments.num_streams)
  options = {"batch_size": arguments.batch_size, "seconds": arguments.seconds}
  if arguments.sources and not files:
    raise UserError("--sources: needs files; give --files")
  result = compare(data, arguments.sources, **options) if arguments.sources else measure(data, **options)
  print(f"{files or 'installed documentation'}, {'packed' if data.pack else 'merged'}, on {jax.devices()[0].platform}:")
  for name, value in result.items():
    print(f"  {name:20} {value:>12,}")
  if arguments.json:
    print(json.dumps({"benchmark": "pipeline", "pack": data.pack, **result}))


if __name__ == "__main__":
  try:
    main()
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
