"""`t2t sweep`: trains with each combination of values of some keys, and compares the held-out loss or a metric."""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
import shlex
import sys
import time
import traceback
from typing import Any

from absl import logging
from etils import epath
import jax

from t2t import UserError, did_you_mean, losses
from t2t.checkpoints import workdir_lock
from t2t.commands import saved_settings, sweep_grid, sweep_halving
from t2t.commands.options import config_parser, inherited, parse, parse_known
from t2t.commands.sweep_grid import GridPoint
from t2t.configuration.loading import flat, records
from t2t.configuration.schema import Config
from t2t.reports import history, seed_scores, sweep_page, sweep_picture, sweep_table, written
from t2t.reports.sweep_table import SweepRow
from t2t.runtime import amounts, console, exit_codes, hosts, numeric
from t2t.storage import gcs, outage
from t2t.training import recipe, stage_program
from t2t.training.callbacks.one_of_many import OneOfMany
from t2t.training.callbacks.stop_at import StopAt
from t2t.training.run import Callback, Diverged, Run
from t2t.training.train import train

SETTINGS = "sweep.json"
_HALVING = "successive halving: "  # begins the reason for the end of a rung in a run's history


@dataclasses.dataclass(frozen=True)
class SweepPlan:
  """Points of a sweep, and how their runs are compared.

  configs: of each point, with any seed.
  seeds: of the runs of each point.
  steps: of a complete run, by point.
  metric: name after "eval/" in metrics.jsonl.
  lower_is_better: direction of the metric.
  halving: 1/halving of the points of a rung continue; 0: all runs are complete.
  """

  configs: Mapping[GridPoint, Config]
  seeds: Sequence[int]
  steps: Mapping[GridPoint, int]
  metric: str
  lower_is_better: bool
  halving: int = 0

  @property
  def best(self) -> str:
    return "min" if self.lower_is_better else "max"

  @functools.cached_property
  def rungs(self) -> list[int]:
    """Last step of each rung; [0] without halving: every run has its own number of steps."""
    if not self.halving:
      return [0]
    return sweep_halving.rungs(next(iter(self.steps.values())), self.halving, len(self.configs))

  def planned_steps(self) -> int:
    """Returns the steps of all runs together."""
    if not self.halving:
      return len(self.seeds) * sum(self.steps.values())
    total, number, before = 0, len(self.configs), 0
    for step in self.rungs:
      total += number * (step - before) * len(self.seeds)
      number, before = max(1, number // self.halving), step
    return total


class MetricCheck(Callback):
  """Refuses a metric that no evaluation of the run has, before the first step.

  Attributes:
    error: the refusal; None if the metric exists.
  """

  def __init__(self, metric: str):
    self._metric = metric
    self.error: UserError | None = None

  def on_start(self, run: Run) -> None:
    tasks, known = run.program.tasks, ["loss", "accuracy"]
    if run.program.bytes_per_target:
      known += ["perplexity", "bits_per_byte"]
    task, _, name = self._metric.rpartition("/")
    # A loss names further metrics only when it is evaluated.
    if task == "loss" or (not task and not did_you_mean(name, known)):
      return
    try:
      seed_scores.check_metric(self._metric, [*known, *(() if tasks is None else tasks.metric_names())])
    except UserError as error:
      self.error = error
      raise


class Sweep:
  """Runs of a sweep in one folder, one after another.

  Args:
    plan: of the sweep.
    folder: has the runs in POINT/seed-K, sweep.jsonl with a row for each, sweep.png and report.html.
    keep_checkpoints: whether runs that no rung continues keep their checkpoints.
  """

  def __init__(self, plan: SweepPlan, folder: epath.Path, *, keep_checkpoints: bool = False, debug: bool = False):
    self._plan, self._folder, self._keep, self._debug = plan, folder, keep_checkpoints, debug
    saved = sweep_table.read(folder / sweep_table.ROWS) if jax.process_index() == 0 else []
    rows = [sweep_table.parsed(row) for row in hosts.share(sweep_table.as_json(saved))]
    new = {"metric": plan.metric, "best": plan.best}
    broken = [dataclasses.replace(row, **new) for row in rows if row.status == sweep_table.DIVERGED]
    self._broken = {(row.point, row.seed): row for row in broken}
    points = {point.name: point for point in [*map(GridPoint.of_row, (row.values for row in rows)), *plan.configs]}
    earlier = {(points[row.point], row.seed) for row in rows if row.point in points}
    wanted = {(point, seed) for point in plan.configs for seed in plan.seeds}
    self._runs = sorted(earlier | wanted, key=lambda run: (run[0].order, run[1]))
    self._halved: set[GridPoint] = set()
    self._ended: dict[tuple[str, int], SweepRow] = {}  # rows of runs that are not trained any more
    self._done_steps, self._seconds, self._left_steps = 0, 0.0, plan.planned_steps()

  def of_run(self, point: GridPoint, seed: int) -> epath.Path:
    """Returns the workdir of a run."""
    return self._folder / point.name / f"seed-{seed}"

  def unfinished(self) -> list[tuple[GridPoint, int]]:
    """Returns the runs that have neither finished nor diverged."""
    rows = {(row.point, row.seed): row for row in self.rows()}
    wanted = [(point, seed) for point in self._plan.configs for seed in self._plan.seeds]
    return [(point, seed) for point, seed in wanted if (point.name, seed) not in rows]

  def train(self) -> list[SweepRow]:
    """Trains every run that has not finished, rung by rung; returns the rows.

    Raises:
      UserError: the metric does not exist; on several hosts, also any error of a run except divergence.
      Stopped: a signal stopped a run, which the same command resumes.
    """
    points = list(self._plan.configs)
    for rung, step in enumerate(self._plan.rungs, start=1):
      wanted = [(point, seed) for point in points for seed in self._plan.seeds]
      for number, (point, seed) in enumerate(wanted, start=1):
        where = f"rung {rung} of {len(self._plan.rungs)}, " if self._plan.halving else ""
        target = step or self._plan.steps[point]
        which = f"{where}run {number} of {len(wanted)}: {point.described}, seed {seed}"
        if self._train_run(point, seed, target, which):
          self.publish()
      if step and step < self._plan.rungs[-1]:
        scores = [self._mean_at(point, step) for point in points]
        kept = sweep_halving.kept(points, scores, self._plan.halving, lower_is_better=self._plan.lower_is_better)
        for point in (point for point in points if point not in kept):
          self._halved.add(point)
          for seed in self._plan.seeds:
            self._discard_checkpoints(point, seed)
        names = "; ".join(point.described for point in kept)
        hosts.log_once(f"sweep: rung {rung} of {len(self._plan.rungs)}: {names or 'no point'} continues")
        points = kept
    return self.publish()

  def _train_run(self, point: GridPoint, seed: int, target: int, which: str) -> bool:
    """Trains a run to a step; returns False if it had reached the step or diverged before."""
    folder, total = self.of_run(point, seed), self._plan.steps[point]
    reached = self._scores(point, seed)
    before = max((step for step in reached if step < target), default=0) if self._plan.halving else 0
    state = self._state(point, seed)
    if state is not None and not reached and (point.name, seed) not in self._broken:
      self._check_metric(folder)
    if (point.name, seed) in self._broken or state is not None or target in reached and target < total:
      score = "diverged" if (point.name, seed) in self._broken else f"{self._plan.metric} {self._last(reached):.4g}"
      hosts.log_once(f"sweep: {which}: finished, {score}")
      self._left_steps -= target - before
      return False
    left = self._seconds / self._done_steps * self._left_steps if self._done_steps else 0.0
    hosts.log_once(f"sweep: {which}" + (f"; about {amounts.duration(left)} left" if left else ""))
    callbacks: list[Callback] = [metric := MetricCheck(self._plan.metric), OneOfMany()]
    if target < total:
      callbacks.append(StopAt(target, f"{_HALVING}the rung ends at step {target} of {total}"))
    started = time.monotonic()
    try:
      train(self._plan.configs[point].with_(train={"seed": seed}), str(folder), callbacks=callbacks)
    except Exception as error:
      if metric.error is not None or not self._continues_after(error):
        raise
      self._note(point, seed, error, which)
    else:
      self._check_metric(folder)
      reached = self._scores(point, seed)
      hosts.log_once(f"sweep: {which}: {self._plan.metric} {self._last(reached):.4g} at step {max(reached):,}")
      if target == total:
        self._discard_checkpoints(point, seed)
    self._seconds += time.monotonic() - started
    self._done_steps += target - before
    self._left_steps -= target - before
    return True

  def _check_metric(self, folder: epath.Path) -> None:
    names = hosts.share(sorted(seed_scores.evaluations(folder)) if jax.process_index() == 0 else [])
    seed_scores.check_metric(self._plan.metric, names)

  def _continues_after(self, error: Exception) -> bool:
    """Returns whether other runs can be trained after an error of one."""
    if isinstance(error, Diverged):
      return True  # all processes raise it alike
    # Another process may wait within a collective, and a full disk or an unreachable bucket fails every run.
    return jax.process_count() == 1 and not isinstance(error, OSError) and not outage.reason(error)

  def _note(self, point: GridPoint, seed: int, error: Exception, which: str) -> None:
    status = sweep_table.DIVERGED if isinstance(error, Diverged) else sweep_table.FAILED
    text = str(error).partition("\n")[0]
    text = text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
    if self._debug:
      traceback.print_exc()
    hosts.log_once(f"sweep: {which}: {status}: {text}")
    step = max(self._scores(point, seed), default=0)
    self._broken[point.name, seed] = self._row(point, seed, status, math.nan, step, text)
    if status == sweep_table.DIVERGED:
      self._discard_checkpoints(point, seed)  # a failed run may resume

  def _discard_checkpoints(self, point: GridPoint, seed: int) -> None:
    """Removes the checkpoints of a run that is not continued; metrics, config and history stay."""
    checkpoints = self.of_run(point, seed) / "checkpoints"
    if not self._keep and jax.process_index() == 0 and checkpoints.exists():
      checkpoints.rmtree()

  # ---- Results -------------------------------------------------------------------------------------------------------

  def _scores(self, point: GridPoint, seed: int) -> dict[int, float]:
    """Returns step -> value of the metric in the evaluations of a run; the first process reads them."""
    values: Any = {}
    if jax.process_index() == 0:
      values = seed_scores.evaluations(self.of_run(point, seed)).get(self._plan.metric, {})
    return {int(step): float(value) for step, value in hosts.share(sorted(values.items()) if values else [])}

  def _last(self, scores: Mapping[int, float]) -> float:
    return scores[max(scores)] if scores else math.nan

  def _state(self, point: GridPoint, seed: int) -> str | None:
    """Returns why a run ended completely; None if it has not begun, was stopped, or ended with a rung."""
    notes: Any = None
    if jax.process_index() == 0:
      events = history.read(self.of_run(point, seed))
      notes = events[-1] if events else None
    note = hosts.share(notes)
    if note is None or note["event"] != history.END:
      return None
    why = str(note["why"])
    return None if why == history.STOPPED or why.startswith(_HALVING) else why

  def _mean_at(self, point: GridPoint, step: int) -> float:
    """Returns the mean over the seeds at a step; NaN if a run has no finite value there."""
    scores = []
    for seed in self._plan.seeds:
      of_run = {} if (point.name, seed) in self._broken else self._scores(point, seed)
      # A run with config.eval.patience may have ended before.
      ended = self._last(of_run) if of_run and max(of_run) < step else math.nan
      scores.append(of_run.get(step, ended))
    return math.fsum(scores) / len(scores)

  def _row(self, point: GridPoint, seed: int, status: str, score: float, step: int, error: str = "") -> SweepRow:
    metric, best = self._plan.metric, self._plan.best
    return SweepRow(point.name, dict(point.values), seed, status, metric, score, step, error, best)

  def rows(self) -> list[SweepRow]:
    """Returns a row for each run that has finished, diverged, failed, or was ended by a rung; also of earlier calls."""
    rows = []
    for point, seed in self._runs:
      known = self._broken.get((point.name, seed)) or self._ended.get((point.name, seed))
      if known is not None:
        rows.append(known)
        continue
      scores = self._scores(point, seed)
      halved = point in self._halved
      if not scores or not (halved or self._state(point, seed) is not None):
        continue
      score = self._last(scores)
      status = sweep_table.HALVED if halved else sweep_table.FINISHED
      status = status if math.isfinite(score) else sweep_table.DIVERGED
      self._ended[point.name, seed] = self._row(point, seed, status, score, max(scores))
      rows.append(self._ended[point.name, seed])
    return rows

  def publish(self) -> list[SweepRow]:
    """Writes sweep.jsonl, sweep.png and report.html; returns the rows."""
    rows = self.rows()
    if rows and jax.process_index() == 0:
      sweep_table.write(self._folder / sweep_table.ROWS, rows)
      picture = sweep_picture.draw(rows, lower_is_better=self._plan.lower_is_better, title=self._folder.name)
      (self._folder / sweep_picture.NAME).write_bytes(picture)
      sweep_page.write(self._folder, rows)
    return rows


# ---- Command ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
  parser = config_parser(
    "t2t sweep",
    "Trains with every combination of values of some keys, each with several seeds, and compares the runs:\n\n"
    "  t2t sweep --config tiny --workdir runs/sweep --config.train.steps=300 \\\n"
    "    --set optimizer.learning_rate=0.01,0.03,0.1 --set train.batch_size=8,16\n\n"
    "A table has the held-out loss, or --metric, with 95 % intervals. The same command again resumes: finished runs "
    "are not repeated, and more values or --seeds may be added.",
    epilog=(
      "examples:\n"
      "  t2t sweep --config finetune --config.init.checkpoint=runs/tiny \\\n"
      "    --config.data.files=reviews.tsv --config.data.labels=auto \\\n"
      "    --set optimizer.learning_rate=1e-4,3e-4,1e-3 --seeds 5 \\\n"
      "    --metric table/accuracy --workdir runs/rates\n"
      "  t2t sweep --config t5_1_1_small --workdir gs://BUCKET/sweep --halving 3 \\\n"
      "    --config.data.files='text/*.jsonl' --config.data.vocabulary=bytes \\\n"
      "    --set optimizer.learning_rate=1e-3,3e-3,1e-2 --set train.z_loss=0,1e-4,1e-3\n"
      "values that contain commas are separated by semicolons:\n"
      "  --set 'optimizer.no_decay=norm,bias;norm'"
    ),
    required="--config NAME --workdir FOLDER --set KEY=V,V",
    brief=True,
  )
  runs = parser.add_argument_group("runs")
  runs.add_argument(
    "--workdir", metavar="FOLDER", help="required: folder or gs:// path for the runs, table, picture and report"
  )
  runs.add_argument(
    "--set",
    action="append",
    default=[],
    metavar="KEY=V,V,...",
    help="required: a key and its values, train.batch_size=16,32; once for each key",
  )
  runs.add_argument("--seeds", type=numeric.integer(1), default=3, metavar="N", help="runs of each point; default: 3")
  runs.add_argument(
    "--halving",
    type=numeric.integer(2),
    default=0,
    metavar="ETA",
    help="train all points to an early step, and only the best 1/ETA of them further; default: all to the end",
  )
  runs.add_argument(
    "--keep_checkpoints", action="store_true", help="keep the checkpoints of ended runs; default: remove"
  )
  runs.add_argument(
    "--launch", metavar="FILE", help="train nothing; write a `t2t train` command for each unfinished run; -: print"
  )
  comparison = parser.add_argument_group("comparison")
  comparison.add_argument(
    "--metric",
    default="loss",
    metavar="NAME",
    help="loss, accuracy, TASK/METRIC or another value of metrics.jsonl below eval/; default: held-out loss",
  )
  comparison.add_argument(
    "--best", choices=("min", "max"), help="whether low or high is best; default: min of losses, max of others"
  )
  hosts.add_options(parser)
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t sweep`; returns the exit code.

  Raises:
    UserError: an option is missing or invalid; see `Sweep.train`.
  """
  parser = _parser()
  options, config = parse(parser, argv)
  typed = parse_known(parser, argv)[1]
  if not options.workdir:
    raise UserError("--workdir is missing. Give --workdir FOLDER, a local folder or a gs:// path for the runs.")
  if not options.set:
    raise UserError("--set is missing. Give a key and its values, such as --set optimizer.learning_rate=1e-3,3e-4.")
  if options.launch and options.halving:
    raise UserError("--launch: a rung of --halving needs the results of all runs. Leave out one of the two options.")
  if seed := next((argument for argument in typed if argument.startswith("--config.train.seed")), None):
    raise UserError(f"{seed}: --seeds sets this key. Leave the key out.")
  gcs.check_folder(options.workdir, where="--workdir ")
  axes = sweep_grid.parse_axes(options.set, typed)
  with_override = lambda key, text: _value(parse(parser, [*argv, f"--config.{key}={text}"])[1], key)
  points = sweep_grid.grid(axes, with_override)
  if any(axis.key == "train.batch_size" for axis in axes) and not config.eval.batch_size:
    # Otherwise the size of a point would decide how many held-out texts measure it.
    same = f"--config.eval.batch_size={config.train.batch_size}"
    console.tell(f"sweep: {same}, so that all points are measured on the same held-out texts")
    argv, typed, config.eval.batch_size = [*argv, same], [*typed, same], config.train.batch_size
  hosts.start(options, config.train)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  plan = _plan(parser, argv, options, points)
  folder = gcs.absolute(options.workdir)
  with workdir_lock.held(folder):  # another sweep would replace the rows of this one
    _check_settings(folder, flat(config.to_dict()), plan, axes)
    sweep = Sweep(plan, folder, keep_checkpoints=options.keep_checkpoints, debug=options.debug)
    if options.launch:
      _write_commands(options, typed, sweep)
      return exit_codes.DONE
    number = f"{len(points)} point{'s' * (len(points) != 1)} x {options.seeds} seed{'s' * (options.seeds != 1)}"
    hosts.log_once(f"sweep: {number}; {folder}")
    rows = sweep.train()
  return _report(rows, plan, folder)


def _value(config: Any, key: str) -> Any:
  """Returns the value of a key, as JSON has it."""
  value = functools.reduce(lambda section, name: section[name], key.split("."), config)
  return value.to_dict() if hasattr(value, "to_dict") else value


def _plan(
  parser: argparse.ArgumentParser, argv: Sequence[str], options: argparse.Namespace, points: Sequence[GridPoint]
) -> SweepPlan:
  """Returns the plan, with the config of each point checked as far as possible without training.

  Raises:
    UserError: names the point.
  """
  configs, steps = {}, {}
  for point in points:
    arguments = [*argv, *point.overrides]
    try:
      configs[point] = records(inherited(parse(parser, arguments)[1], parser, arguments))
      steps[point] = _checked_steps(configs[point], trains=not options.launch)
    except UserError as error:
      raise UserError(f"point {point.described}: {error}") from error
  if options.halving and len(set(steps.values())) > 1:
    listed = "; ".join(f"{point.described}: {number:,} steps" for point, number in steps.items())
    raise UserError(
      f"--halving {options.halving}: a rung compares runs after the same step, but the points have different lengths "
      f"({listed}). Leave out --halving, or keys that change the number of steps."
    )
  lower = options.best == "min" if options.best else seed_scores.lower_is_better(options.metric)
  plan = SweepPlan(configs, range(options.seeds), steps, options.metric, lower, options.halving)
  plan.rungs  # noqa: B018 - checks the number of points
  return plan


def _checked_steps(config: Config, *, trains: bool) -> int:
  """Returns the number of steps of a config, after the checks of a run that need no compilation.

  Args:
    config: of a point.
    trains: whether this machine trains the runs, so that its devices must divide the batch.
  """
  if losses.has_teacher(config):
    from t2t.checkpoints import teachers  # few runs have teachers

    config = teachers.resolved(config)
  run_stages = stage_program.from_config().resolved_stages(config)
  mesh = stage_program.make_mesh(run_stages)[0] if trains else None
  for stage in run_stages:
    with stage.error_context():
      recipe.make(stage.config)
      recipe.check_positive(stage.config)
      recipe.check_front(stage.config)
      if mesh is not None:
        recipe.check_sizes(stage.config, mesh)
        recipe.check_lengths(stage.config, mesh)
  return run_stages[-1].end


def _check_settings(
  folder: epath.Path, config: Mapping[str, Any], plan: SweepPlan, axes: Sequence[sweep_grid.SweepAxis]
) -> None:
  """Refuses a folder with a sweep of other settings. The points of a halving decide together, so they cannot change."""
  keys = [axis.key for axis in axes]
  settings = {key: value for key, value in config.items() if key not in (*keys, "train.seed")}
  of_halving = {
    "seeds": len(plan.seeds),
    "metric": plan.metric,
    "best": plan.best,
    "points": [point.name for point in plan.configs],
  }
  options = {"set": keys, "halving": plan.halving or None} | (of_halving if plan.halving else {})
  saved_settings.check(folder / SETTINGS, settings, options, kind="sweep")


def _write_commands(options: argparse.Namespace, typed: Sequence[str], sweep: Sweep) -> None:
  """Writes a command for each unfinished run, and the results of the others."""
  rows = sweep.publish()
  lines = []
  for point, seed in sweep.unfinished():
    workdir = f"{options.workdir.rstrip('/')}/{point.name}/seed-{seed}"
    command = ["t2t", "train", "--config", options.config, *typed, *point.overrides, f"--config.train.seed={seed}"]
    lines.append(shlex.join([*command, "--workdir", workdir]) + "\n")
  if jax.process_index() != 0:
    return
  if options.launch == "-":
    sys.stdout.write("".join(lines))
  else:
    try:
      gcs.write(gcs.absolute(options.launch), "".join(lines))
    except OSError as error:
      raise UserError(f"--launch {options.launch} cannot be written ({error}). Give a writable file.") from error
  print(f"{len(lines)} unfinished runs, {len(rows)} with a result", file=sys.stderr)


def _report(rows: Sequence[SweepRow], plan: SweepPlan, folder: epath.Path) -> int:
  """Prints the table, the options of the best point and the list of failed runs; returns the exit code."""
  points = sweep_table.summaries(rows)
  best = sweep_table.best_of(points, lower_is_better=plan.lower_is_better)
  failed = [row for row in rows if row.status == sweep_table.FAILED]
  if jax.process_index() == 0:
    print("\n" + "\n".join(sweep_table.table(rows, lower_is_better=plan.lower_is_better)))
    if best is not None:
      texts = [f"--config.{key}={sweep_table.value_text(value)}" for key, value in best.values.items()]
      print(shlex.join(texts))
    print(f"picture        {folder / sweep_picture.NAME}")
    print(f"report         {folder / written.NAME}")
    for row in failed:
      print(f"failed: {row.point}/seed-{row.seed}: {row.error}", file=sys.stderr)
    if failed:
      print("The same command trains the failed runs again.", file=sys.stderr)
  return exit_codes.FAILED if failed or best is None else exit_codes.DONE
