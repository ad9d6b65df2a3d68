"""Speed and memory of `t2t convert` on this machine.

  python benchmarks/convert.py                                      # T5 1.1 large: 3.1 GB, three times on the disk
  python benchmarks/convert.py --config t5_1_1_small --folder /mnt/disk
  python benchmarks/convert.py --config llama2_7b --dtype=bfloat16 --folder /mnt/disk

Writes a model with random weights as a sharded Hugging Face folder, and converts it to t2t and back. Each conversion
runs in a separate process. The peak is that of the process (ru_maxrss); the first row has the peak without a
conversion. Both Hugging Face folders must be equal, byte for byte.
"""

import filecmp
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from etils import epath
import numpy as np

from t2t import UserError
from t2t.commands.options import config_parser, parse
from t2t.convert import huggingface, lazy_tensors
from t2t.models.config import TransformerConfig

_SHARD = 1_000_000_000  # bytes; below transformers' default, so that there are several


def random_model(model: TransformerConfig) -> lazy_tensors.Foreign:
  """Returns a checkpoint whose parameters are generated when they are read."""
  parameters = {}
  for index, (path, x) in enumerate(lazy_tensors.expected(model).items()):
    stacked = "/layers/" in path
    shape = x.shape[1:] if stacked else x.shape
    seeds = [(index, layer) for layer in range(x.shape[0] if stacked else 1)]
    parts = tuple(functools.partial(_draw, seed, shape) for seed in seeds)
    parameters[path] = lazy_tensors.Tensor(x.shape, np.dtype(np.float32), parts, stacked=stacked)
  return lazy_tensors.Foreign(epath.Path("random"), "t2t", model, "", 0, {}, parameters)


def _draw(seed: tuple[int, int], shape: tuple[int, ...]) -> np.ndarray:
  return 0.02 * np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(*arguments: str) -> tuple[float, float]:
  """Runs `t2t convert`; returns its seconds and peak bytes."""
  started = time.perf_counter()
  process = subprocess.Popen([sys.executable, "-m", "t2t", "convert", *arguments], stdout=subprocess.DEVNULL)
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)  # prevents a second wait
  if process.returncode:
    raise UserError(f"t2t convert {' '.join(arguments)} failed; see its output above")
  # ru_maxrss is in kilobytes on Linux, and in bytes on macOS.
  return time.perf_counter() - started, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)


def size(folder: pathlib.Path) -> int:
  """Returns the size of a folder's files in bytes."""
  return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(model: TransformerConfig, folder: pathlib.Path, *, dtype: str) -> dict:
  """Converts a random model there and back in an empty folder."""
  foreign = random_model(model)
  theirs, ours, back = (folder / name for name in ("hf", "t2t", "hf_again"))
  huggingface.save(foreign, epath.Path(theirs), dtype=dtype, max_shard_bytes=_SHARD)
  rows = {"(nothing: --help)": (*run("--help"), 0)}
  rows["hf -> t2t"] = (*run(str(theirs), str(ours), "--from=hf", "--to=t2t"), size(ours))
  options = (f"--dtype={dtype}", f"--max_shard_size={_SHARD}")
  rows["t2t -> hf"] = (*run(str(ours), str(back), "--from=t2t", "--to=hf", *options), size(back))
  names = sorted(path.name for path in theirs.iterdir())
  same = names == sorted(path.name for path in back.iterdir()) and not any(
    filecmp.cmpfiles(theirs, back, names, shallow=False)[1:]
  )
  return {
    "parameters": sum(math.prod(tensor.shape) for tensor in foreign.tensors.values()),
    "files": sum(name.endswith(".safetensors") for name in names),
    "bytes": size(theirs),
    "largest_tensor_bytes": max(
      tensor.nbytes // (tensor.shape[0] if tensor.stacked else 1) for tensor in foreign.tensors.values()
    ),
    "identical": same,
    "rows": {
      name: {"seconds": seconds, "peak_bytes": peak, "bytes_per_second": written / seconds}
      for name, (seconds, peak, written) in rows.items()
    },
  }


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = config_parser("python benchmarks/convert.py", __doc__)
  parser.set_defaults(config="t5_1_1_large")
  parser.add_argument("--dtype", default="float32", help="dtype of the Hugging Face folders")
  parser.add_argument("--folder", help="folder with enough space; default: the folder of temporary files")
  parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
  options, config = parse(parser, argv)
  with tempfile.TemporaryDirectory(prefix="t2t_convert_", dir=options.folder) as folder:
    result = measure(TransformerConfig(**config.model), pathlib.Path(folder), dtype=options.dtype)
  print(
    f"{options.config}: {result['parameters']:,} parameters; {options.dtype}, {result['files']} files,"
    f" {result['bytes'] / 1e9:.2f} GB; largest tensor {result['largest_tensor_bytes'] / 1e9:.2f} GB as float32"
  )
  print(f"{'':<20}{'seconds':>9}{'GB/s':>8}{'peak GB':>9}")
  for name, row in result["rows"].items():
    speed = f"{row['bytes_per_second'] / 1e9:.2f}" if row["bytes_per_second"] else ""
    print(f"{name:<20}{row['seconds']:>9.1f}{speed:>8}{row['peak_bytes'] / 1e9:>9.2f}")
  print("round trip: " + ("identical, byte for byte" if result["identical"] else "NOT IDENTICAL"))
  if options.json:
    print(json.dumps({"config": options.config} | result))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
