"""Value of pre-training: fine-tuning from a checkpoint, and training the same model from scratch on the same examples.

  python benchmarks/finetuning.py                                 # pre-trains tiny_t5 first, then six runs
  python benchmarks/finetuning.py --checkpoint runs/tiny --task docs_match --steps 400
  python benchmarks/finetuning.py --config.optimizer.learning_rate=0.02

Each run is a `t2t train` of the config finetune_TASK. Both runs of a seed read the same batches. The documents of the
held-out examples were held out in pre-training, too. Prints a table, writes finetuning.json and finetuning.png; the
same command resumes an interrupted benchmark.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
from typing import Any

from etils import epath
import matplotlib.figure
from ml_collections import ConfigDict
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.data.train_data import resolved
from t2t.runtime import memory
from t2t.training import metric_writers
from t2t.training.train import train

# Metric of each task.
TASKS = {"docs_summary": "rougeLsum", "docs_match": "accuracy"}
# Whether a run starts from the checkpoint's parameters, and its colour.
ARMS = {"pre-trained": (True, "#1f5fa8"), "from scratch": (False, "#c8442e")}

Curves = dict[str, dict[int, float]]  # metric -> step -> value


def pretrain(workdir: pathlib.Path) -> None:
  """Trains the remaining steps of tiny_t5, with twice its default number of steps."""
  config = load_config("tiny_t5")
  config.train.steps *= 2
  if config.train.steps not in metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", "eval/loss"):
    with _quietly():
      train(records(config), str(workdir))


def run_config(task: str, source: str, arm: str, *, seed: int, steps: int, overrides: list[str]) -> ConfigDict:
  """Returns the config of a run.

  Args:
    task: a key of `TASKS`.
    source: a workdir or checkpoint.
    arm: a key of `ARMS`.
    seed: of the data order, and of the initial parameters of runs from scratch.
    steps: of the run; 0: as in the config.
    overrides: "--config.SECTION.KEY=VALUE".
  """
  config = load_config(f"finetune_{task}")
  pretrained.adopt(config, pretrained.read_source(source))
  config.init.checkpoint = source
  config.init.parameters = ARMS[arm][0]
  config.train.seed = seed
  if steps:
    config.train.steps = steps
  config.eval.every = max(1, config.train.steps // 8)
  config.checkpoint.save_interval_steps = config.train.steps
  config.checkpoint.max_to_keep = 1
  config.eval.num_logged_samples = 0
  return override(config, overrides)


def run(config: ConfigDict, workdir: pathlib.Path) -> Curves:
  """Fine-tunes without output, unless the run is complete; returns its metrics."""
  metrics = epath.Path(workdir) / "metrics.jsonl"
  done = config.train.steps in metric_writers.read_metrics(metrics, "eval/loss")
  if not (done and _is_run_of(config, workdir)):
    shutil.rmtree(workdir, ignore_errors=True)
    with _quietly():
      train(records(config), str(workdir))
  names = {"loss": "eval/loss", **{metric: f"eval/{task}/{metric}" for task, metric in TASKS.items()}}
  curves = {name: metric_writers.read_metrics(metrics, recorded) for name, recorded in names.items()}
  return {name: curve for name, curve in curves.items() if curve}


def _is_run_of(config: ConfigDict, workdir: pathlib.Path) -> bool:
  """Returns True if the run in a workdir had this config."""
  wanted = json.loads(json.dumps(resolved(records(config)).to_dict()))
  had = json.loads((workdir / "config.json").read_text())
  wanted["data"]["num_streams"] = had["data"]["num_streams"]  # the value chosen for 0
  return wanted == had


@contextlib.contextmanager
def _quietly():
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    yield


# ---- Results ---------------------------------------------------------------------------------------------------------


def summary(runs: list[Curves], name: str) -> dict[str, tuple[float, float]]:
  """Returns mean and standard deviation over runs of a metric's last and best value."""
  best = min if name == "loss" else max
  last = [list(curves[name].values())[-1] for curves in runs]
  bests = [best(curves[name].values()) for curves in runs]
  return {
    label: (float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
    for label, values in {"final": last, "best": bests}.items()
  }


def table(results: dict[str, list[Curves]], task: str) -> str:
  """Formats a line for each metric and arm, and the step at which pre-training overtakes."""
  seeds = min(len(runs) for runs in results.values())
  head = f"{f'{task}, {seeds} seed(s)':<38}{'final':>18}{'best':>18}"
  lines = [head, "-" * len(head)]
  for name in ("loss", TASKS[task]):
    for arm, runs in results.items():
      cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in summary(runs, name).values()]
      lines.append(f"{f'held-out {name}':<22}{arm:<16}" + "".join(f"{cell:>18}" for cell in cells))
  return "\n".join([*lines, "", _overtaken(results)])


def _overtaken(results: dict[str, list[Curves]]) -> str:
  """Describes how many steps the pre-trained model needs for the final loss of the other."""
  started, scratch = (_mean(results[arm], "loss") for arm in ARMS)
  end = min(scratch.values())
  steps = [step for step, loss in started.items() if loss <= end]
  if not steps:
    return f"the pre-trained model never reaches the loss from scratch, {end:.3f}"
  return f"pre-trained: reaches the best loss from scratch, {end:.3f}, after {steps[0]} of {max(scratch)} steps"


def _mean(runs: list[Curves], name: str) -> dict[int, float]:
  return {step: float(np.mean([curves[name][step] for curves in runs])) for step in runs[0][name]}


def draw(results: dict[str, list[Curves]], task: str, path: pathlib.Path) -> None:
  """Plots held-out loss and metric against steps: each seed, and their mean."""
  figure = matplotlib.figure.Figure(figsize=(8.4, 3.4), dpi=110, layout="constrained")
  labels = {"loss": "held-out loss (nats per target token)", TASKS[task]: f"held-out {TASKS[task]} (%)"}
  for axis, (name, label) in zip(figure.subplots(1, len(labels)), labels.items(), strict=True):
    for arm, runs in results.items():
      colour = ARMS[arm][1]
      for curves in runs:
        axis.plot(list(curves[name]), list(curves[name].values()), color=colour, linewidth=0.7, alpha=0.4)
      mean = _mean(runs, name)
      axis.plot(list(mean), list(mean.values()), color=colour, linewidth=1.8, label=arm)
    axis.set_xlabel("fine-tuning step", fontsize=8)
    axis.set_ylabel(label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  axis.legend(frameon=False, fontsize=8)
  figure.suptitle(task, fontsize=9)
  figure.savefig(path)


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/finetuning.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--task", default="docs_summary", help=f"one of {', '.join(TASKS)}")
  parser.add_argument("--checkpoint", help="workdir of `t2t train`; default: pre-trains tiny_t5")
  parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
  parser.add_argument("--steps", type=int, default=0, help="steps of each run; 0: as in finetune_TASK")
  parser.add_argument("--workdir", default="runs/finetuning", help="folder for results, picture and the runs' workdirs")
  options, overrides = parser.parse_known_args(argv)
  if options.task not in TASKS:
    raise UserError(f"--task {options.task}: unknown task; known are {', '.join(TASKS)}")
  if options.seeds < 1:
    raise UserError(f"--seeds {options.seeds}: must be 1 or more")
  memory.keep_freed_memory()
  workdir = pathlib.Path(options.workdir)
  source = options.checkpoint or str(workdir / "tiny_t5")
  if not options.checkpoint:
    print("pre-training tiny_t5 (resumed or skipped if it exists)", file=sys.stderr, flush=True)
    pretrain(pathlib.Path(source))
  results: dict[str, list[Curves]] = {}
  # Seed by seed, so that arms are comparable at any time.
  for seed in range(options.seeds):
    for arm in ARMS:
      config = run_config(options.task, source, arm, seed=seed, steps=options.steps, overrides=overrides)
      curves = run(config, workdir / options.task / f"{arm.replace(' ', '_')}_{seed}")
      results.setdefault(arm, []).append(curves)
      scores = ", ".join(f"{name} {list(curve.values())[-1]:.3f}" for name, curve in curves.items())
      print(f"seed {seed}, {arm}: {scores}", file=sys.stderr, flush=True)
    record: dict[str, Any] = {"task": options.task, "checkpoint": source, "curves": results}
    (workdir / "finetuning.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(results, options.task, workdir / "finetuning.png")
  print(table(results, options.task))
  print(f"\ncurves  {os.path.relpath(workdir / 'finetuning.png')}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
