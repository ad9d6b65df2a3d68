"""Sets up a training run: data, mesh, programs, checkpoints and callbacks; and rolls it back to a checkpoint."""

from collections.abc import Iterator, Sequence
import contextlib
import functools
import json
from typing import Any

import jax

from t2t import losses
from t2t.checkpoints import initialize as starts
from t2t.checkpoints import manager, rollback, verify, workdir_lock
from t2t.configuration import stages
from t2t.configuration.schema import Config
from t2t.runtime import hosts, lazy_table, preemption, watchdog
from t2t.storage import gcs
from t2t.training import callbacks as configured
from t2t.training import ineffective, session_clock, stage_program
from t2t.training.run import Callback, Rollback, Run
from t2t.training.throughput import Throughput
from t2t.training.train_logger import TrainLogger


@contextlib.contextmanager
def open_run(
  config: Config, workdir: str, callbacks: Sequence[Callback] = (), *, data: stage_program.Data | None = None
) -> Iterator[Run]:
  """Opens a run at its last checkpoint, at `config.init.checkpoint` or at fresh parameters.

  Args: see `train.train`.

  Raises:
    UserError: see `train.train`.
  """
  gcs.check(workdir, where="--workdir ")
  folder = gcs.absolute(workdir)
  if "hf://" in str(config.to_dict()):
    from t2t.training import hub_pins

    config = hub_pins.pinned(config, folder)
  for name, source in config.init.source_list.items():
    gcs.check(source.checkpoint, where=f"config.init.{f'others.{name}.' if name else ''}checkpoint=")
  starts.check(config, folder)
  read_teachers: dict[str, Any] = {}
  if losses.has_teacher(config):
    from t2t.checkpoints import teachers  # few runs have teachers

    config = teachers.resolved(config, folder, read_teachers)
  data = data or stage_program.from_config()
  run_stages = _resolved_stages(config, data)
  notes = ineffective.check(config, run_stages, begins=not verify.steps(folder / manager.CHECKPOINTS))
  for stage in run_stages:
    stage_program.check_scoring(stage)
  config = run_stages[-1].config
  if losses.has_teacher(config):
    from t2t.checkpoints import logit_files, teachers

    teachers.check_vocabularies(config, data.vocabulary(config), read_teachers)
    logit_files.check_steps(run_stages)
  hosts.check_number(config.train.num_processes)
  mesh, why_mesh = stage_program.make_mesh(run_stages)
  steps = watchdog.Watchdog(config.train.hang_timeout_factor, longest=config.train.stall_seconds)

  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    programs = stage_program.StagePrograms(run_stages, mesh, data)
    # Compilation takes longest, so it runs beside everything until the first step.
    programs.prepare(starts.next_stage(run_stages, folder))
    stack.enter_context(steps.running())
    data.check_stages(run_stages)
    for note in notes:
      hosts.log_once(note)
    lock = stack.enter_context(workdir_lock.held(folder))
    clock = stack.enter_context(session_clock.running(folder))
    hosts.log_once(f"{programs[-1].described}; {folder}" + (f"\nmesh: {why_mesh}" if why_mesh else ""))
    vocabulary = data.vocabulary(config)
    for program in programs:
      program.check_measured()

    # ---- Checkpoints, data and state -----------------------------------------
    verify.set_aside(folder / manager.CHECKPOINTS)
    checkpoints = manager.Checkpoints(
      folder,
      keep=config.checkpoint.max_to_keep,
      ends=[stage.end for stage in run_stages[:-1]],
      retry_seconds=config.checkpoint.retry_seconds,
      host_memory_limit=round(config.checkpoint.host_memory_gb * 1e9) or None,
    )
    stack.callback(checkpoints.close)
    data.check_vocabulary(config, vocabulary, folder / manager.VOCABULARY, checkpoints.latest_identity())
    saved_data: Any = checkpoints.latest_config().get("data", {})
    batches = data.batches(
      run_stages,
      mesh,
      num_streams=saved_data.get("num_streams"),
      first=stages.at(run_stages, checkpoints.latest_step() or 0),
      left_out=functools.partial(rollback.left_out, folder),
    )
    if losses.has_teacher(config) and config.distillation.logits:
      batches = lazy_table.load("t2t.checkpoints.logit_files:LabelledBatches")(batches, config.distillation, mesh)
    stack.callback(batches.close)
    # The number of streams determines the data order, so a resumed run needs it in the saved config.
    run_stages = [stage.with_(data={"num_streams": batches.num_streams}) for stage in run_stages]
    resolved = [json.loads(json.dumps(stage.config.to_dict())) for stage in run_stages]
    first = programs[batches.stage]
    parameter_key, dropout_key = jax.random.split(jax.random.key(config.train.seed))
    with clock.phase(session_clock.STARTUP if checkpoints.latest_step() is None else session_clock.RESTORE):
      state, step, saved = starts.start(
        first.program, run_stages[batches.stage], checkpoints, batches, parameter_key, vocabulary=vocabulary
      )
    if jax.process_index() == 0:
      data.keep_vocabulary(vocabulary, folder / manager.VOCABULARY)

    # ---- Metrics and callbacks -----------------------------------------------
    logger = TrainLogger(folder, num_steps=config.train.steps, start=step, unwritten=saved)
    stack.callback(logger.close)
    throughput = Throughput(devices=list(mesh.devices.flat))
    run = Run(
      config=config,
      workdir=folder,
      mesh=mesh,
      stages=run_stages,
      resolved=resolved,
      programs=programs,
      batches=batches,
      checkpoints=checkpoints,
      lock=lock,
      vocabulary=vocabulary,
      stop=stack.enter_context(preemption.after_steps()),
      clock=clock,
      watchdog=steps,
      throughput=throughput,
      logger=logger,
      callbacks=configured.of_run(config, callbacks),
      key=dropout_key,
      state=state,
      step=step,
      saved=saved,
    )
    del state  # the first step donates its memory
    for callback in run.callbacks:
      stack.callback(callback.on_close, run)
    logger.on_row = functools.partial(run.call, "on_log")
    throughput.begin(first.prepare())
    yield run


def _resolved_stages(config: Config, data: stage_program.Data) -> Sequence[stages.Stage]:
  """Returns the stages, resolved with the data; logs stages without a step."""
  run_stages = data.resolved_stages(config)
  for name in (x.name for x in config.stages if x.name not in {stage.name for stage in run_stages}):
    hosts.log_once(f"stage {name}: skipped, because its fraction of {config.train.steps} steps is less than one step")
  return run_stages


def write_config(run: Run) -> None:
  """Writes config.json, but not for a finished run, because this call's settings train nothing."""
  path = run.workdir / "config.json"
  if jax.process_index() == 0 and (run.goes_on() or not path.exists()):
    path.write_text(json.dumps(run.resolved[-1], indent=2) + "\n")


def roll_back(run: Run, request: Rollback) -> None:
  """Restores the last checkpoint and skips the batches up to that of `request.step`.

  Raises:
    UserError: there is no checkpoint, or the run was rolled back too often.
  """
  run.watchdog.pause()
  before = run.clock.enter(session_clock.RESTORE)
  released: Any = None
  run.state = released  # the devices have no room for two states
  run.state, run.step, run.saved = rollback.go_back(
    request.step, request.why, run.program.stage.config, run.checkpoints, run.program.program.state, run.batches
  )
  run.throughput.pause()
  run.logger.truncate_to(run.step, run.saved)
  run.measured_step, run.saved_step, run.samples_step = None, run.step, None
  run.call("on_rollback")
  run.clock.enter(before)
  run.watchdog.resume()
