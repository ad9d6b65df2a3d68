"""Architectures crossed with objectives, as in T5's comparison: every cell is trained on the same number of positions.

  python benchmarks/matrix.py                                   # all cells: about half an hour on two cores
  python benchmarks/matrix.py --architectures encoder_decoder,prefix_lm --objectives 'span*,prefix_lm' --steps 300

Each cell is a `t2t train` of tiny_t5 with the same text, vocabulary, width, depth, optimizer and steps. Batches have
the same number of positions (inputs and targets together). Prints a table, writes matrix.json and curves of the
held-out loss, matrix.png. Held-out losses are comparable within an objective only, because targets differ; the unigram
loss on the same targets gives the scale.
"""

import argparse
import contextlib
import fnmatch
import io
import json
import os
import pathlib
import shutil
import sys
import time
from typing import Any

from etils import epath
import matplotlib.figure
import matplotlib.lines
from ml_collections import ConfigDict

from t2t import UserError, losses
from t2t.configuration.loading import load_config, records
from t2t.data import objectives, pipeline
from t2t.runtime import amounts, memory
from t2t.training import metric_writers
from t2t.training.train import train

# Rows of T5's table (Raffel et al. 2020, table 2), and encoders. Fields of tiny_t5's model.
ARCHITECTURES: dict[str, dict[str, Any]] = {
  "encoder_decoder": {},
  "shared": {"share_stacks": True},
  "prefix_lm": {"architecture": "decoder_only", "num_encoder_layers": 0, "bidirectional_prefix": True},
  "language_model": {"architecture": "decoder_only", "num_encoder_layers": 0},
  "encoder_only": {"architecture": "encoder_only", "num_decoder_layers": 0},
}
# Objectives with token targets; losses of text pairs are not per token.
_FOUND = {name: objectives.OBJECTIVES[name] for name in objectives.OF_TEXT}
OBJECTIVES = {name: objective for name, objective in _FOUND.items() if "targets" in objective.features}
# Objectives for decoders with bidirectional prefixes only.
_BOTH_WAYS = ("masked_next_token",)
# Lengths of objectives whose targets are shorter than their inputs.
_LENGTHS = {"span_corruption": (128, 34), "r_denoising": (128, 48), "mass": (128, 66), "mass_in_place": (128, 66)}
_LENGTHS |= {"iid_span_corruption": (128, 40), "iid_token_corruption": (128, 40), "drop_tokens": (128, 24)}


def _alone(features: tuple[str, ...]) -> bool:
  """Returns True if a decoder's row is as long as its targets."""
  return "inputs" not in features or "both_ways" in features


def fits(row: str, objective: str) -> bool:
  """Returns True if an architecture supports an objective."""
  fields = ARCHITECTURES[row]
  if objective in _BOTH_WAYS and not fields.get("bidirectional_prefix"):
    return False
  return fields.get("architecture", "encoder_decoder") in OBJECTIVES[objective].architectures


def cell(row: str, objective: str, *, steps: int, positions: int) -> ConfigDict:
  """Returns the config of a cell."""
  config = load_config("tiny_t5")
  config.model.update(ARCHITECTURES[row])
  config.data.mixture = f"docs_{objective}"
  inputs, targets = _LENGTHS.get(objective, (128, 128))
  config.data.inputs_length, config.data.targets_length = inputs, targets
  features = OBJECTIVES[objective].features
  length = {"encoder_only": inputs}.get(row, targets if _alone(features) else inputs + targets)
  config.train.batch_size = max(1, positions // length)
  config.train.steps = steps
  config.optimizer.warmup_steps = min(50, steps // 4)
  config.optimizer.warmup_ratio = 0.0
  config.eval.every = config.checkpoint.save_interval_steps = max(1, steps // 10)
  config.eval.num_logged_samples = 0
  return config


def run(config: ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
  """Trains a cell without output; returns its metrics."""
  shutil.rmtree(workdir, ignore_errors=True)
  started = time.monotonic()
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    train(records(config), str(workdir))
  metrics = epath.Path(workdir) / "metrics.jsonl"
  speed = metric_writers.read_metrics(metrics, "train/steps_per_second")
  tokens = metric_writers.read_metrics(metrics, "train/tokens")
  return held_out(config, workdir) | {
    "steps_per_second": speed[config.train.steps],
    "tokens": sum(tokens.values()),
    "seconds": time.monotonic() - started,
    "curve": metric_writers.read_metrics(metrics, "eval/loss"),
  }


def held_out(config: ConfigDict, workdir: pathlib.Path, *, metric: str = "loss") -> dict[str, float]:
  """Returns a metric of a run's last step, and the loss of the best unigram model on the same held-out targets."""
  values = metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", f"eval/{metric}")
  batches = pipeline.eval_rows(
    records(config).data, config.model.architecture, batch_size=config.train.batch_size, max_batches=config.eval.batches
  )
  return {
    "held_out_loss": values[config.train.steps],
    "unigram_loss": float(losses.unigram_loss(batches, config.model.vocab_size)),
  }


def draw(results: dict[str, dict[str, Any]], path: pathlib.Path) -> None:
  """Plots a panel for each objective, with a curve for each architecture."""
  panels = sorted({key.split("/")[1] for key in results}, key=list(OBJECTIVES).index)
  columns = min(4, len(panels))
  lines = -(-len(panels) // columns)
  figure = matplotlib.figure.Figure(figsize=(3.4 * columns, 2.6 * lines), dpi=110, layout="constrained")
  axes = figure.subplots(lines, columns, squeeze=False).flatten()
  colours = dict(zip(ARCHITECTURES, ("#1f5fa8", "#5ba3cf", "#c8442e", "#e39a3b", "#3c8d5a"), strict=True))
  for panel, axis in zip(panels, axes, strict=False):
    for row, colour in colours.items():
      result = results.get(f"{row}/{panel}")
      if result:
        axis.plot(list(result["curve"]), list(result["curve"].values()), color=colour, linewidth=1.5)
        axis.axhline(result["unigram_loss"], color="#8a8a8a", linestyle="--", linewidth=0.8)
    axis.set_title(panel, fontsize=9)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  for axis in axes[len(panels) :]:
    axis.set_axis_off()
  for axis in axes[max(0, len(panels) - columns) : len(panels)]:
    axis.set_xlabel("step", fontsize=8)
  drawn = {key.split("/")[0] for key in results}
  line = matplotlib.lines.Line2D
  handles = [line([], [], color=colour, label=row) for row, colour in colours.items() if row in drawn]
  handles.append(line([], [], color="#8a8a8a", linestyle="--", label="unigram model"))
  figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
  figure.supylabel("held-out loss (nats per target token)", fontsize=8)
  figure.savefig(path)


def table(results: dict[str, dict[str, Any]]) -> str:
  """Formats a line for each cell, objective by objective."""
  head = f"{'objective':<22}{'architecture':<17}{'held-out':>9}{'unigram':>9}{'steps/s':>9}{'tokens':>10}"
  lines = [head, "-" * len(head)]
  for objective in OBJECTIVES:
    for row in ARCHITECTURES:
      result = results.get(f"{row}/{objective}")
      if result:
        lines.append(
          f"{objective:<22}{row:<17}{result['held_out_loss']:>9.3f}{result['unigram_loss']:>9.3f}"
          f"{result['steps_per_second']:>9.2f}{amounts.compact_count(result['tokens']):>10}"
        )
  return "\n".join(lines)


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/matrix.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--architectures", default="*", help=f"patterns, comma-separated; of {', '.join(ARCHITECTURES)}")
  parser.add_argument("--objectives", default="*", help="patterns, comma-separated; `t2t tasks` lists docs_OBJECTIVE")
  parser.add_argument("--steps", type=int, default=200, help="steps of each cell")
  parser.add_argument("--positions", type=int, default=2_592, help="positions of a batch, inputs and targets together")
  parser.add_argument(
    "--output", default="runs/matrix", help="folder for matrix.json, matrix.png and the cells' workdirs"
  )
  options = parser.parse_args(argv)
  chosen = lambda name, patterns: any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split(","))
  cells = [
    (row, objective)
    for objective in OBJECTIVES
    for row in ARCHITECTURES
    if fits(row, objective) and chosen(row, options.architectures) and chosen(objective, options.objectives)
  ]
  if not cells:
    raise UserError(
      f"--architectures {options.architectures} --objectives {options.objectives}: no cell matches; objectives "
      f"are {', '.join(OBJECTIVES)}"
    )
  memory.keep_freed_memory()
  output = pathlib.Path(options.output)
  output.mkdir(parents=True, exist_ok=True)
  results: dict[str, dict[str, Any]] = {}
  for number, (row, objective) in enumerate(cells, start=1):
    config = cell(row, objective, steps=options.steps, positions=options.positions)
    results[f"{row}/{objective}"] = result = run(config, output / row / objective)
    print(
      f"{number}/{len(cells)}  {objective}, {row}: held-out loss {result['held_out_loss']:.3f}"
      f" in {result['seconds']:.0f} s",
      file=sys.stderr,
      flush=True,
    )
    # After each cell, so that an interrupted run keeps its results.
    (output / "matrix.json").write_text(json.dumps(results, indent=1))
    draw(results, output / "matrix.png")
  print(table(results))
  print(f"\ncurves  {os.path.relpath(output / 'matrix.png')}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
