"""Catastrophic forgetting: accuracy on an old task while a new one is learned, with five methods.

  python benchmarks/forgetting.py                        # three seeds of each: 10 to 20 minutes on two cores
  python benchmarks/forgetting.py --seeds 1 --workdir runs/once

Trains a small T5 on one question about a line of letters (two_questions.py), and then on another question about the
same letters, with `t2t train`. The methods are: plain fine-tuning; a penalty for distance from the old parameters
(L2-SP; EWC, with `t2t fisher` of the old task); one old example in ten (replay); and low-rank adapters (LoRA). Both
questions are evaluated during training. Writes forgetting.md with the table and the commands, forgetting.png and
forgetting.json; the same command resumes an interrupted benchmark.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any

from etils import epath
import matplotlib.figure
import numpy as np

from t2t import UserError
from t2t import __main__ as command
from t2t.runtime import memory
from t2t.training import metric_writers

OLD, NEW = "colour", "shape"
_TASKS = pathlib.Path(__file__).with_name("two_questions.py")
_STEPS, _OLD_STEPS, _EVERY = 300, 300, 50
_EXAMPLES = 1_024  # examples for the Fisher information

# Options of both tasks: a model of 0.2 million parameters, and a plain AdamW.
_MODEL = [
  "--config=t5_1_1_small",
  "--config.model.embed_dim=64",
  "--config.model.num_heads=4",
  "--config.model.head_dim=16",
  "--config.model.mlp_dim=128",
  "--config.model.num_encoder_layers=2",
  "--config.model.num_decoder_layers=1",
  "--config.model.vocab_size=384",
  "--config.model.dropout_rate=0.0",
  "--config.data.extra_ids=0",
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=32",
  "--config.data.targets_length=8",
  "--config.train.batch_size=64",
  "--config.train.label_smoothing=0.1",
  "--config.optimizer.name=adamw",
  "--config.optimizer.learning_rate=0.003",
  "--config.optimizer.schedule=constant",
  "--config.optimizer.warmup_steps=0",
  "--config.optimizer.scale_by_parameter=False",
  "--config.optimizer.clip_norm=1.0",
  "--config.eval.batches=2",
  "--config.eval.batch_size=256",
  "--config.eval.num_logged_samples=0",
  "--config.checkpoint.max_to_keep=1",
]


@dataclasses.dataclass(frozen=True)
class Arm:
  """A method of learning the new task.

  mixture: of the training examples.
  colour, line: in the picture.
  options: further options of `t2t train`; {fisher} is the old task's Fisher information.
  """

  mixture: str
  colour: str
  line: str
  options: tuple[str, ...] = ()


_ALONE = f"{NEW}_alone"
# Strengths were tuned on seed 0, which is excluded from the results.
ARMS = {
  "nothing": Arm(_ALONE, "#555555", "-"),
  "L2-SP": Arm(_ALONE, "#c8442e", "--", ("--config.optimizer.param_groups=.: anchor=20",)),
  "EWC": Arm(
    _ALONE, "#1f5fa8", "-", ("--config.optimizer.fisher={fisher}", "--config.optimizer.param_groups=.: anchor=300")
  ),
  "replay": Arm(f"{NEW}_with_{OLD}", "#2e8b57", "-."),
  "LoRA": Arm(_ALONE, "#b8860b", ":", ("--config.lora.rank=8", "--config.lora.targets=attention/,mlp/")),
}

Curves = dict[str, dict[int, float]]  # OLD and NEW -> step -> accuracy


# ---- Runs ------------------------------------------------------------------------------------------------------------


def old_arguments(workdir: pathlib.Path, seed: int) -> list[str]:
  """Returns the command that trains the old task."""
  return _arguments(workdir, f"{OLD}_alone", seed=seed, steps=_OLD_STEPS)


def fisher_arguments(old: pathlib.Path, out: pathlib.Path) -> list[str]:
  """Returns the command for the Fisher information of the old task."""
  return ["fisher", str(old), "--output", str(out), "--examples", str(_EXAMPLES), "--task_modules", str(_TASKS)]


def new_arguments(workdir: pathlib.Path, arm: str, old: pathlib.Path, fisher: pathlib.Path, *, seed: int) -> list[str]:
  """Returns the command that trains the new task with one of the methods."""
  init_arguments = [f"--config.init.checkpoint={old}", *(option.format(fisher=fisher) for option in ARMS[arm].options)]
  return [*_arguments(workdir, ARMS[arm].mixture, seed=seed + 100, steps=_STEPS), *init_arguments]


def _arguments(workdir: pathlib.Path, mixture: str, *, seed: int, steps: int) -> list[str]:
  run = [f"--config.data.mixture={mixture}", f"--config.data.task_modules={_TASKS}"]
  run += [f"--config.train.steps={steps}", f"--config.train.seed={seed}"]
  run += [f"--config.eval.every={_EVERY}", f"--config.checkpoint.save_interval_steps={steps}"]
  return ["train", *_MODEL, *run, "--workdir", str(workdir)]


def run(arguments: list[str], out: pathlib.Path, *, devices: int = 1) -> float:
  """Runs a command without output, unless it was completed before; returns its seconds.

  Args:
    arguments: of `t2t`.
    out: file or folder that the command writes.
    devices: number of CPU devices; several need a process of their own.

  Raises:
    UserError: the command failed; includes the end of its output.
  """
  done = out.with_name(f"{out.name}.done.json")
  if done.exists() and (record := json.loads(done.read_text()))["arguments"] == arguments and out.exists():
    return record["seconds"]
  shutil.rmtree(out, ignore_errors=True)
  started = time.monotonic()
  code, output = _run(arguments, devices)
  if code:
    raise UserError(f"t2t {shlex.join(arguments)}: exited with {code}; fix the error and rerun\n{output[-2_000:]}")
  seconds = time.monotonic() - started
  done.write_text(json.dumps({"arguments": arguments, "seconds": seconds}) + "\n")
  return seconds


def _run(arguments: list[str], devices: int) -> tuple[int, str]:
  """Runs a command; returns its exit code and its output."""
  if devices > 1:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, "-m", "t2t", *arguments], env=environment, **options)
    return done.returncode, done.stdout
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
    return command.main(arguments), output.getvalue()


def accuracies(workdir: pathlib.Path) -> Curves:
  """Returns the accuracies of both tasks in percent, by step."""
  read = lambda name: metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", f"eval/{name}/accuracy")
  return {task: read(task) or read(f"{task}_held_out") for task in (OLD, NEW)}


def seed_curves(workdir: pathlib.Path, seed: int) -> tuple[dict[str, Curves], dict[str, float]]:
  """Returns the curves of all arms, with the old run as step 0, and the seconds of each command."""
  old, fisher = workdir / f"old_{seed}", workdir / f"fisher_{seed}"
  seconds = {
    "old task": run(old_arguments(old, seed), old),
    "Fisher information": run(fisher_arguments(old, fisher), fisher),
  }
  before = {task: list(curve.values())[-1] for task, curve in accuracies(old).items()}
  curves_by_arm = {}
  for arm in ARMS:
    out = workdir / f"{arm.lower().replace('-', '')}_{seed}"
    seconds[arm] = run(new_arguments(out, arm, old, fisher, seed=seed), out)
    curves_by_arm[arm] = {task: {0: before[task], **curve} for task, curve in accuracies(out).items()}
    last = ", ".join(f"{task} {list(curve.values())[-1]:.1f} %" for task, curve in curves_by_arm[arm].items())
    print(f"seed {seed}, {arm}: {last}", file=sys.stderr, flush=True)
  return curves_by_arm, seconds


# ---- Results ---------------------------------------------------------------------------------------------------------


def table(results: dict[str, list[Curves]]) -> str:
  """Formats a Markdown table of final accuracies: mean and spread of both tasks, and of their mean."""
  lines = [f"| | old task ({OLD}) | new task ({NEW}) | mean of both |", "|---|---|---|---|"]
  for arm, runs in results.items():
    last = np.array([[list(curves[task].values())[-1] for task in (OLD, NEW)] for curves in runs])
    columns = [*last.T, last.mean(axis=1)]
    spread = lambda column: f" ± {np.std(column, ddof=1):.1f}" if len(column) > 1 else ""
    lines.append(f"| {arm} | " + " | ".join(f"{np.mean(column):.1f}{spread(column)}" for column in columns) + " |")
  return "\n".join(lines)


def draw(results: dict[str, list[Curves]], path: pathlib.Path) -> None:
  """Plots the accuracies of the old and of the new task against steps: each seed, and their mean."""
  figure = matplotlib.figure.Figure(figsize=(9.0, 3.9), dpi=120, layout="constrained", facecolor="white")
  axes = figure.subplots(1, 2, sharey=True)
  titles = {OLD: f"old task ({OLD}), learned before step 0", NEW: f"new task ({NEW})"}
  for axis, (task, title) in zip(axes, titles.items(), strict=True):
    for arm, runs in results.items():
      steps, look = list(runs[0][task]), {"color": ARMS[arm].colour, "linestyle": ARMS[arm].line}
      values = np.array([[curves[task][step] for step in steps] for curves in runs])
      for seed_values in values:
        axis.plot(steps, seed_values, **look, linewidth=0.6, alpha=0.35)
      axis.plot(steps, values.mean(axis=0), **look, linewidth=2.0, label=arm)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("steps on the new task", fontsize=9)
    axis.set_ylim(-3, 103)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  axes[0].set_ylabel("held-out accuracy (%)", fontsize=9)
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9, handlelength=3
  )
  figure.savefig(path)


def _commit() -> str:
  git_command = ["git", "rev-parse", "--short", "HEAD"]
  return subprocess.run(git_command, cwd=_TASKS.parent, capture_output=True, text=True, check=False).stdout.strip()


def page(results: dict[str, list[Curves]], seconds: list[dict[str, float]], typed: list[str], *, commit: str) -> str:
  """Returns the Markdown page of the results."""
  total = sum(sum(timings.values()) for timings in seconds)
  mean = {name: np.mean([timings[name] for timings in seconds]) for name in seconds[0]}
  times = ", ".join(f"{name} {value:.0f}" for name, value in mean.items())
  options = "\n".join(f"    {arm:<8}  {shlex.join(_shown(arm))}" for arm in results)
  return f"""\
# What is forgotten, and what keeps it

{table(results)}

Held-out accuracy in percent after {_STEPS} steps on the new task; {len(seconds)} seed(s): mean and standard deviation.

![Accuracy of the old and of the new task while the new one is learned](forgetting.png)

Written by `{shlex.join(["python", "benchmarks/forgetting.py", *typed])}` at commit {commit or "unknown"}, seeds 1 to \
{len(seconds)} (strengths were chosen on seed 0), {total:.0f} s on {os.cpu_count()} CPUs; seconds of each command, on \
average: {times}.

Besides what they share, `t2t train` is given:

{options}
"""


def _shown(arm: str) -> list[str]:
  return [
    f"--config.data.mixture={ARMS[arm].mixture}",
    *(option.format(fisher="FISHER") for option in ARMS[arm].options),
  ]


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/forgetting.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--seeds", type=int, default=3, help="number of old runs, each followed by one run of every arm")
  parser.add_argument(
    "--workdir", default="runs/forgetting", help="folder for the page, picture and the runs' workdirs"
  )
  options = parser.parse_args(argv)
  if options.seeds < 1:
    raise UserError(f"--seeds {options.seeds}: must be 1 or more")
  memory.keep_freed_memory()
  workdir, commit = pathlib.Path(options.workdir), _commit()
  workdir.mkdir(parents=True, exist_ok=True)
  results: dict[str, list[Curves]] = {arm: [] for arm in ARMS}
  seconds: list[dict[str, float]] = []
  for seed in range(1, options.seeds + 1):
    curves_by_arm, took = seed_curves(workdir, seed)
    seconds.append(took)
    for arm, curves in curves_by_arm.items():
      results[arm].append(curves)
    record: dict[str, Any] = {"curves": results, "seconds": seconds}
    (workdir / "forgetting.json").write_text(json.dumps(record, indent=1) + "\n")
    (workdir / "forgetting.md").write_text(page(results, seconds, argv, commit=commit))
    draw(results, workdir / "forgetting.png")
  print(table(results))
  print(f"\npage   {os.path.relpath(workdir / 'forgetting.md')}")
  print(f"curves {os.path.relpath(workdir / 'forgetting.png')}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
