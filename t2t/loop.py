"""The loop: from a config and a workdir to a trained model."""

import collections
from collections.abc import Mapping, Sequence
import contextlib
import functools
import json
from typing import Any, Protocol

from etils import epath
import jax

from t2t import course, stages
from t2t import metrics as metrics_lib
from t2t.checkpoints import damage, outdated, store, writer
from t2t.checkpoints import start as starts
from t2t.checkpoints.going_back import go_back
from t2t.checkpoints.going_back import left_out as left_out_of
from t2t.models import kernels
from t2t.models.architecture import Batch
from t2t.params import join_frozen
from t2t.reports import history, seen, written
from t2t.runtime import hosts, stopping, watchdog
from t2t.sections import Config
from t2t.storage import bucket
from t2t.training import finite, histograms, ineffective, numbers, recipe
from t2t.training import report as reports
from t2t.training.early import EarlyStop
from t2t.training.throughput import Throughput
from t2t.training.train_state import TrainState


class Follower(Protocol):
  """Who goes along with a run, in the thread that trains."""

  def begins(self, stop: stopping.Steps) -> None:
    """Before the first step; `stop.ask` has the run end, saved, after a step."""

  def told(self, rows: Sequence[Mapping[str, float]]) -> None:
    """What was written to metrics.jsonl; the run goes on when this returns."""


def train(
  config: Config, workdir: str, *, follower: Follower | None = None, data: course.Data | None = None
) -> TrainState:
  """Trains until `config.train.steps`, resuming from `workdir` if anything is there.

  Args:
    config: see `t2t.settings.records`, and configs/default.py for what each key means.
    workdir: local or gs://; checkpoints, metrics and config.json are written there.
    follower: is told what is measured.
    data: what is read; None: what the config says.

  Returns:
    The state after the last step.

  Raises:
    UserError: something in the config, the data or the workdir cannot be used; before any training unless a record
      of a large corpus turns out to be broken on the way, the loss stops being finite, or nothing can be saved.
    Stopped: a signal has asked for it, and what was reached is saved; it ends the process with the signal's exit code.
  """
  bucket.check(workdir, where="--workdir ")
  bucket.check(config.init.checkpoint, where="config.init.checkpoint=")
  starts.check(config, bucket.absolute(workdir))
  data = data or course.from_config()

  # ---- Mesh and data -------------------------------------------------------
  run = data.resolved_stages(config)
  for name in (x.name for x in config.stages if x.name not in {stage.name for stage in run}):
    hosts.say(f"stage {name}: its share of {config.train.steps} steps is less than one, and it is left out")
  begins = not damage.steps(bucket.absolute(workdir) / store.CHECKPOINTS)
  for note in ineffective.check(config, run, begins=begins):
    hosts.say(note)
  config = run[-1].config
  hosts.check_number(config.train.hosts)
  mesh, why = course.make_mesh(run)
  steps = watchdog.Watchdog(config.train.stall_factor, longest=config.train.stall_seconds)
  workdir = bucket.absolute(workdir)

  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    legs = course.Course(run, mesh, data)
    # The longest part of the start, beside all that follows until the first step.
    legs.prepare(starts.next_stage(run, workdir))
    stack.enter_context(steps.running())
    data.check_stages(run)
    held = stack.enter_context(writer.held(workdir))

    # ---- Model, optimizer, and what the tasks are measured by --------------
    hosts.say(f"{legs[-1].described}; {workdir}" + (f"\nmesh: {why}" if why else ""))
    vocabulary = data.vocabulary(config)
    for leg in legs:
      leg.check_measured()

    # ---- Where training starts ---------------------------------------------
    damage.set_aside(workdir / store.CHECKPOINTS)
    settings = config.checkpoint
    ends = [stage.end for stage in run[:-1]]
    checkpoints = store.Checkpoints(workdir, keep=settings.keep, ends=ends, retry_seconds=settings.retry_seconds)
    stack.callback(checkpoints.close)
    data.check_vocabulary(config, vocabulary, workdir / store.VOCABULARY, checkpoints.latest_identity())
    num_streams = checkpoints.latest_config().get("data", {}).get("num_streams")
    first = stages.at(run, checkpoints.latest_step() or 0)
    left_out = functools.partial(left_out_of, workdir)
    batches = data.batches(run, mesh, num_streams=num_streams, first=first, left_out=left_out)
    stack.callback(batches.close)
    # What was chosen at the first start is part of the config from then on: it decides the order of the data.
    run = [stage.with_(data={"num_streams": batches.num_streams}) for stage in run]
    resolved = [json.loads(json.dumps(stage.config.to_dict())) for stage in run]
    leg, program = legs[batches.stage], legs[batches.stage].program
    parameter_key, dropout_key = jax.random.split(jax.random.key(config.train.seed))
    begun = starts.start(program, run[batches.stage], checkpoints, batches, parameter_key, vocabulary=vocabulary)
    state, first_step, saved = begun
    if jax.process_index() == 0:
      (workdir / "config.json").write_text(json.dumps(resolved[-1], indent=2) + "\n")
      data.keep_vocabulary(vocabulary, workdir / store.VOCABULARY)

    history.started(workdir, first_step, flops_per_step=leg.flops if len(run) == 1 else None)

    # ---- What is measured --------------------------------------------------
    throughput = Throughput(devices=list(mesh.devices.flat))
    watch = numbers.Watch(config, workdir, program.state.params, saved)
    report = reports.Report(
      *(config, workdir, leg.made.schedule, throughput, watch),
      start=first_step,
      unwritten=saved,
      resolved=resolved[-1],
      followed=follower is not None,
    )
    stack.callback(report.close)
    stop = stack.enter_context(stopping.after_steps())
    if follower is not None:
      follower.begins(stop)
    measure = functools.partial(_measure, report, stop, vocabulary)
    spread = histograms.Histograms(config.logging.histograms, mesh, report.histograms)
    tasks = _begin(leg, throughput)
    if not batches.begins_stage:
      report.stage(leg.stage, leg.made.loss, leg.made.schedule)
    early = EarlyStop(config.eval, saved)
    why_here = lambda: early.why or batches.ended

    # ---- Steps -------------------------------------------------------------
    if first_step == config.train.steps:
      hosts.say("nothing left to train: more --config.train.steps go on; what follows is the run as it stands")
    measured, measured_step, saved_step, last_step = None, None, first_step or None, first_step
    evaluates = 0 < first_step < config.train.steps and _is_due(leg.stage, first_step, config.eval.every)
    if evaluates and not checkpoints.was_measured(first_step):
      # A run that was stopped at an evaluation makes up for it; stopped there again, it goes no further.
      with contextlib.suppress(stopping.Abandoned):
        measured, measured_step = measure(leg, tasks, first_step, state), first_step
        early.note(first_step, measured)
    # Read after the next step has been dispatched, so that the device never waits.
    unread: collections.deque[reports.Made] = collections.deque()
    while last_step < config.train.steps and not stop.stops and not why_here():
      if begins := batches.begins_stage:
        steps.pause()
        stop.saving()  # what is opened takes longer than a step, and all is saved
        batches.begin_stage()
        watch.begin_stage()
        early.begin_stage()
      if leg is not legs[batches.stage]:  # or the run has gone back over its beginning
        leg = legs[batches.stage]
        tasks = _begin(leg, throughput)
      if begins:
        report.stage(leg.stage, leg.made.loss, leg.made.schedule)
        steps.resume()
      batch = next(batches)
      if last_step == leg.stage.begin and vocabulary is not None:
        seen.note(workdir, leg.stage, batch, vocabulary)
      step = functools.partial(legs.step, batches.stage)
      state, metrics = spread.around(last_step + 1, step, state, batch, dropout_key)
      last_step += 1
      unread.append(reports.Made(last_step, metrics, batches.wait_seconds, batch, batches.epochs))
      # A save that failed is made up for, with the state as it is now.
      saves = stop.reached() or checkpoints.overdue() or bool(batches.ended)
      saves = saves or _is_due(leg.stage, last_step, config.checkpoint.every)
      evaluates = _is_due(leg.stage, last_step, config.eval.every) and not stop.stops
      # A checkpoint is made of a state whose loss is known to be finite.
      looks, follows = evaluates or saves, len(unread) > 1
      wrong = report.steps(unread, leaves=0 if looks else 1)
      if wrong is not None:
        steps.pause()
        del state  # there is no room for two
        state, last_step, saved = go_back(*wrong, leg.stage.config, checkpoints, program.state, batches)
        report.rewind(last_step, saved)
        early.restore(saved)
        measured_step, saved_step = None, last_step
        steps.resume()
        continue
      if follows:
        steps.step()
      if looks:
        throughput.pause()
        steps.pause()
      if evaluates:
        with contextlib.suppress(stopping.Abandoned):
          measured, measured_step = measure(leg, tasks, last_step, state), last_step
          early.note(last_step, measured)
      if saves or stop.stops or why_here():
        held.check()
        stop.saving()
        finite.check(state, step=last_step)
        # A run that goes on from this checkpoint finds all that was measured up to it, there or in the checkpoint.
        beside = batches.state(last_step) | report.flush() | early.state()
        found = measured if measured_step == last_step else None
        checkpoints.save(last_step, state, beside, resolved[batches.stage], metrics=found)
        saved_step = last_step
      _note(report, workdir)
      if looks:
        steps.resume()
      if follower is not None and (rows := report.rows()):
        throughput.pause()
        steps.pause()
        follower.told(rows)
        steps.resume()
    steps.pause()
    stop.saving()
    checkpoints.wait()
    stop.finish(functools.partial(_stopped, report, workdir, last_step))
    if measured_step != last_step:
      measured = measure(leg, tasks, last_step, state)  # nothing was left to train
    _note(report, workdir)
    if report.shown_at != last_step:
      report.samples(last_step, leg.samples(state, vocabulary))
    if follower is not None and (rows := report.rows()):
      follower.told(rows)
    report.end()
    if why := why_here():
      hosts.say(why)

    # ---- What came out -----------------------------------------------------
    baselines = leg.baselines
    if jax.process_index() == 0:
      kept = checkpoints.metrics()
      loss, best = measured["loss"], (outdated.best_of_stages(kept, ends) or [{}])[-1]
      unit = leg.made.loss.unit
      reports.summarise(workdir, loss, unit, baselines, report.shown, saved_step, kept, best, run)
      history.ended(workdir, last_step, why or history.FINISHED, unit=unit, baselines=baselines, examples=report.shown)
      written.at_end(workdir, ends=True)
  return state


def _stopped(report: reports.Report, workdir: epath.Path, step: int) -> None:
  """Tells and notes that the run ends before its last step."""
  report.stopped(step)
  history.ended(workdir, step, history.STOPPED)
  written.at_end(workdir, ends=False)


def _note(report: reports.Report, workdir: epath.Path) -> None:
  """Keeps what was reported of a collapse, for the report of the run."""
  for step, text in report.remarks():
    history.noted(workdir, step, text)


def _is_due(stage: stages.Stage, step: int, every: int) -> bool:
  return step % every == 0 or step == stage.end


def _begin(leg: course.Leg, throughput: Throughput) -> Any:
  """Has what is measured be that of a stage; returns what its tasks are measured by."""
  leg.check_counts()
  hosts.say(kernels.described(recipe.attention_kernels(leg.stage.config, leg.eval_batches[0])))
  if bits := leg.stage.config.model.quantization:
    hosts.say(f"layers multiply in {bits}, parameters are saved as they are")
  throughput.begin(leg.flops)
  return leg.tasks


def _measure(
  report: reports.Report,
  stop: stopping.Steps,
  vocabulary: Any,
  leg: course.Leg,
  tasks: Any,
  step: int,
  state: TrainState,
) -> dict[str, float]:
  """Every metric by name, of all held-out batches together: the loss, and what the tasks are measured by.

  Of some sources the loss is told by itself, too.

  Raises:
    Abandoned: a signal came, and the state is to be saved.
  """

  def of(found: Sequence[Batch]) -> metrics_lib.Metrics:
    return functools.reduce(metrics_lib.merge, (leg.program.eval_step(state, x) for x in stop.abandonable(found)))

  by_source = {name: of(found) for name, found in leg.by_source.items()}
  loss = report.evaluation(step, of(leg.eval_batches), by_source, baselines=leg.baselines)
  if leg.stage.config.logging.texts:
    stop.saving()  # the first time it is compiled
    report.samples(step, leg.samples(state, vocabulary))
  if tasks is None:
    return {"loss": loss}
  params = join_frozen(state.params, state.frozen_params)
  return {"loss": loss} | report.tasks(step, tasks.run(params, on_batch=stop.between))
