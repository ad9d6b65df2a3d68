"""Loss of models whose layers multiply in 8 bits, compared with bfloat16.

  python benchmarks/low_precision.py                              # tiny_t5, three kinds, two seeds: 20 minutes
  python benchmarks/low_precision.py --config tiny_gpt --seeds 3 --config.train.steps=2000

Each arm is a `t2t train` with activations in bfloat16, on the same batches and initial parameters: matrix products in
bfloat16, in int8 and in fp8. Only the loss is measured, because 8 bits are slower, not faster, on a CPU.

Prints a table; writes low_precision.json and low_precision.png.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from etils import epath
import matplotlib.figure
import numpy as np

from t2t import UserError
from t2t.training import metric_writers

# config.model.quantization -> name, colour
ARMS = {"": ("bfloat16", "#1f5fa8"), "int8": ("int8", "#c8442e"), "fp8": ("fp8", "#e39a3b")}
_LOG = "log.txt"
_SMOOTH = 25  # steps averaged in a point of the curve


def train(workdir: pathlib.Path, config: str, overrides: list[str]) -> tuple[dict[int, float], float]:
  """Trains a run, or resumes it; returns its losses by step and its held-out loss.

  Raises:
    UserError: the run failed.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, "-m", "t2t", "train", "--config", config, "--workdir", str(workdir), *overrides]
  with (workdir / _LOG).open("w") as log:
    ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
  if ended.returncode:
    raise UserError(f"{' '.join(command)} failed:\n{(workdir / _LOG).read_text()[-2_000:]}")
  path = epath.Path(workdir) / "metrics.jsonl"
  held_out = metric_writers.read_metrics(path, "eval/loss")
  return metric_writers.read_metrics(path, "train/loss"), held_out[max(held_out)]


def draw(curves: dict[str, list[dict[int, float]]], path: pathlib.Path) -> None:
  """Plots the loss against steps, and the difference of the 8-bit arms to bfloat16, for each seed."""
  figure = matplotlib.figure.Figure(figsize=(9.5, 3.8), dpi=110, layout="constrained")
  losses, differences = figure.subplots(1, 2)
  smooth = lambda curve: np.convolve([curve[step] for step in sorted(curve)], np.ones(_SMOOTH) / _SMOOTH, "valid")
  for kind, (name, colour) in ARMS.items():
    for seed, curve in enumerate(curves[kind]):
      label = name if seed == 0 else None
      values, steps = smooth(curve), sorted(curve)[_SMOOTH - 1 :]
      losses.plot(steps, values, color=colour, linewidth=1, label=label)
      if kind:
        differences.plot(steps, values - smooth(curves[""][seed]), color=colour, linewidth=1, label=label)
  differences.axhline(0, color=ARMS[""][1], linewidth=1)
  for axis, title in (
    (losses, "training loss (nats per target)"),
    (differences, "difference to bfloat16 on the same batches"),
  ):
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xlabel(f"step (means of {_SMOOTH})", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
  figure.savefig(path)


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser("python benchmarks/low_precision.py", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("--config", default="tiny_t5", help="config to train")
  parser.add_argument("--seeds", type=int, default=2, help="runs of each kind")
  parser.add_argument(
    "--output", type=pathlib.Path, default=pathlib.Path("runs/low_precision"), help="folder for runs and results"
  )
  options, overrides = parser.parse_known_args(argv)
  curves: dict[str, list[dict[int, float]]] = {kind: [] for kind in ARMS}
  held_out: dict[str, list[float]] = {kind: [] for kind in ARMS}
  print("| products | held-out loss (nats per target) | difference to bfloat16 |\n|---|---|---|", flush=True)
  for kind, (name, _) in ARMS.items():
    for seed in range(options.seeds):
      fixed = ["--config.train.log_every=1", "--config.model.dtype=bfloat16", f"--config.model.quantization={kind}"]
      workdir = options.output / options.config / f"{name}_{seed}"
      print(f"{name}, seed {seed}: training, log in {workdir / _LOG}", file=sys.stderr)
      curve, loss = train(workdir, options.config, [*fixed, f"--config.train.seed={seed}", *overrides])
      curves[kind].append(curve)
      held_out[kind].append(loss)
    above = [with_bits - baseline for with_bits, baseline in zip(held_out[kind], held_out[""], strict=True)]
    print(f"| {name} | {_spread(held_out[kind], '.4f')} | {_spread(above, '+.4f') if kind else ''} |", flush=True)
  (options.output / "low_precision.json").write_text(json.dumps({"held_out": held_out, "curves": curves}))
  draw(curves, options.output / "low_precision.png")


def _spread(values: list[float], form: str) -> str:
  return f"{statistics.mean(values):{form}}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
