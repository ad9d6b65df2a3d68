"""Distillation on a classification task: a student of half the layers, with and without its teacher.

  python benchmarks/distillation.py --output runs/distillation      # about ten minutes on two cores

The task is the package of a docstring (docs_package), nine classes. Every seed trains a teacher of four layers, and a
student of two layers three times, in a quarter of the steps: from random values on the labels alone; from the teacher's
layers 1 and 3 on the labels alone; and from these layers with the teacher. Prints a table, writes distillation.json and
distillation.png; the same command resumes.
"""

import argparse
import json
import pathlib

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table

from t2t import __main__ as t2t
from t2t.training import metric_writers

TASK, METRIC = "docs_package", "eval/docs_package/accuracy"
SHAPE = dict(embed_dim=64, num_heads=2, head_dim=32, mlp_dim=192, attention_window=0, global_attention_every=0)
LAYERS = {"teacher": 4, "alone": 2, "layers": 2, "taught": 2}
NAMES = {
  "teacher": "teacher, 4 layers",
  "alone": "student, 2 layers, from random values",
  "layers": "student, from the teacher's layers",
  "taught": "student, from the teacher's layers, with the teacher",
}


def options_of(arm: str, teacher: pathlib.Path) -> list[str]:
  """Returns the config keys of an arm, besides those of all runs."""
  layers = "--config.init.layers=1,3"
  if arm == "taught":
    terms = ("soft_weight=1", "hard_weight=1", "hidden_weight=0.1", "dtype=float32")
    return [layers, f"--config.distillation.teacher={teacher}", *(f"--config.distillation.{term}" for term in terms)]
  return [layers, f"--config.init.checkpoint={teacher}"] if arm == "layers" else []


def accuracy(arm: str, seed: int, output: pathlib.Path, steps: int) -> dict[int, float]:
  """Trains an arm, unless it is finished, and returns step -> held-out accuracy, in percent.

  Raises:
    SystemExit: the run failed.
  """
  workdir, teacher = output / f"{arm}_{seed}", output / f"teacher_{seed}"
  steps = steps if arm == "teacher" else steps // 4
  every = steps // 5
  metrics = workdir / "metrics.jsonl"
  if metrics.exists() and steps in (curve := metric_writers.read_metrics(metrics, METRIC)):
    return curve
  shape = [f"--config.model.{key}={value}" for key, value in SHAPE.items()]
  code = t2t.main(
    [
      *("train", "--config", "tiny_modern_bert", "--workdir", str(workdir), *shape),
      *(f"--config.data.mixture={TASK}", "--config.data.inputs_length=64", "--config.data.targets_length=8"),
      *(f"--config.model.num_encoder_layers={LAYERS[arm]}", f"--config.train.seed={seed}"),
      *(f"--config.train.steps={steps}", "--config.train.batch_size=32", "--config.train.log_every=20"),
      *("--config.model.dtype=float32", "--config.optimizer.learning_rate=0.03", "--config.eval.batch_size=64"),
      *(f"--config.eval.every={every}", f"--config.checkpoint.save_interval_steps={steps}"),
      *("--config.eval.num_logged_samples=0", "--config.model.vocabulary_head=False", *options_of(arm, teacher)),
    ]
  )
  if code:
    raise SystemExit(code)
  return metric_writers.read_metrics(metrics, METRIC)


def draw(curves: dict[str, list[dict[int, float]]], path: pathlib.Path) -> None:
  """Plots the held-out accuracy of each arm against steps: mean and range of the seeds."""
  figure = matplotlib.figure.Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
  axis = figure.subplots()
  for arm, colour in zip(NAMES, ("black", "tab:red", "tab:orange", "tab:blue"), strict=True):
    steps = sorted(set.intersection(*map(set, curves[arm])))
    values = np.array([[curve[step] for step in steps] for curve in curves[arm]])
    axis.plot(steps, values.mean(axis=0), marker="o", color=colour, label=NAMES[arm])
    axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15)
  axis.set(xlabel="steps", ylabel="held-out accuracy (%)")
  axis.grid(alpha=0.3)
  axis.legend(fontsize=8)
  figure.savefig(path)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    "--output", type=pathlib.Path, default=pathlib.Path("runs/distillation"), help="folder of the runs"
  )
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--seeds", type=int, default=3)
  options = parser.parse_args()
  curves: dict[str, list[dict[int, float]]] = {arm: [] for arm in NAMES}
  for seed in range(options.seeds):
    for arm in NAMES:
      curves[arm].append(accuracy(arm, seed, options.output, options.steps))
      (options.output / "distillation.json").write_text(json.dumps(curves, indent=2) + "\n")
  draw(curves, options.output / "distillation.png")
  table = rich.table.Table("", "accuracy, %", "of the teacher's, %", box=rich.box.SIMPLE)
  last = {arm: np.array([curve[max(curve)] for curve in runs]) for arm, runs in curves.items()}
  for arm, name in NAMES.items():
    values, shares = last[arm], 100 * last[arm] / last["teacher"]
    spread = lambda x: f" ± {x.std(ddof=1):.1f}" if len(x) > 1 else ""
    table.add_row(name, f"{values.mean():.1f}{spread(values)}", f"{shares.mean():.1f}{spread(shares)}")
  rich.console.Console().print(table)


if __name__ == "__main__":
  main()
