"""Replays one step of a run from the last checkpoint before it, with the same data, and traces NaN values.

The workdir is not written.
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import functools
import json
import math
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from t2t import UserError, losses
from t2t.checkpoints import manager, rollback, verify
from t2t.configuration import stages
from t2t.configuration.loading import records, saved_config
from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.runtime import hosts, lazy_table, progress
from t2t.training import grad_stats, metric_writers, nan_tracer, stage_program
from t2t.training.callbacks import metrics as metrics_callback
from t2t.training.callbacks import nan_policy


@dataclasses.dataclass(frozen=True)
class Replayed:
  """Result of a replay.

  Attributes:
    checkpoint: the step that the replay started from.
    recorded: the loss in metrics.jsonl; None if it is missing.
    loss, grad_norm: of the replay.
    parameter: the first that was not finite before the step; "" if all were finite.
    origin: of the first value that is not finite; None if all are finite.
    gradient: the first parameter with a gradient that is not finite; "" if all are finite.
    batch: host arrays, [rows, length].
    num_streams: number of data streams that the rows come from, in order.
  """

  step: int
  checkpoint: int
  recorded: float | None
  loss: float
  grad_norm: float
  parameter: str
  origin: nan_tracer.Origin | None
  gradient: str
  batch: Mapping[str, np.ndarray]
  num_streams: int

  @property
  def finite(self) -> bool:
    return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def config_of(workdir: epath.Path) -> Config:
  """Returns the config that a run was last started with.

  Raises:
    UserError: there is no run.
  """
  path = workdir / "config.json"
  if not path.exists():
    raise UserError(f"{workdir} has no config.json, so it is not a run. Give the --workdir of `t2t train`.")
  return _config(json.loads(path.read_text()))


def _config(saved: Mapping[str, Any]) -> Config:
  """Converts a saved config; keys that are newer have their defaults."""
  return records(saved_config(saved))


def replay(workdir: epath.Path, step: int) -> Replayed:
  """Restores the newest valid checkpoint before a step, trains up to the step, and inspects it.

  Args:
    workdir: of the run, local or gs://.
    step: the step to inspect.

  Raises:
    UserError: the step does not exist, there is no checkpoint before it, or the data has changed.
  """
  from t2t.data import registry, train_data

  rows = (
    metric_writers.read_metrics(workdir / "metrics.jsonl", "train/loss") if (workdir / "metrics.jsonl").exists() else {}
  )
  last = config_of(workdir)
  directory = workdir / manager.CHECKPOINTS
  there = verify.steps(directory)
  _check_step(workdir, step, last, reached=max([0, *rows, *there]))
  first = _sound_before(directory, there, step)
  with contextlib.ExitStack() as stack:
    checkpoints = manager.Checkpoints(workdir, keep=2, read_only=True)
    stack.callback(checkpoints.close)
    # The start that saved the next checkpoint made the step; after the last checkpoint it was the latest start.
    after = min((saved_step for saved_step in there if saved_step >= step), default=None)
    config = last if after is None else _config(checkpoints.config(after))
    if why := registry.why_untrusted(config.data.task_modules):
      raise UserError(f"{workdir}: {why}")
    if not config.data.is_named:
      raise UserError(
        f"{workdir}: the run trained on batches of a program (t2t.train(batches=...)), which cannot be read "
        f"again. The batches of bad steps are in {workdir / nan_policy.BAD_BATCHES}."
      )
    run = train_data.resolved_stages(config)
    mesh, _ = stage_program.make_mesh(run)
    stack.enter_context(jax.set_mesh(mesh))
    programs = stage_program.StagePrograms(run, mesh)
    left_out = functools.partial(rollback.left_out, workdir)
    batches = train_data.batches(
      run, mesh, num_streams=config.data.num_streams, first=stages.at(run, first), left_out=left_out
    )
    if losses.has_teacher(config) and config.distillation.logits:
      batches = lazy_table.load("t2t.checkpoints.logit_files:LabelledBatches")(batches, config.distillation, mesh)
    stack.callback(batches.close)
    program = programs[batches.stage].program
    verify.check(directory / str(first))
    state, saved = rollback.restore_step(checkpoints, first, program.state, batches.stream_names, config=config)
    batches.restore(saved, step=first)
    turns = rollback.on_all_hosts(workdir)
    _, dropout_key = jax.random.split(jax.random.key(config.train.seed))
    batch, metrics, before = {}, {}, None  # the loop has at least one step
    for number in progress.track(range(first, step), f"from step {first} to step {step}"):
      rollback.pass_over(batches, turns, number)
      batch = next(batches)
      if number == step - 1:
        # The step donates the state, so a copy is kept in host memory.
        before = jax.tree.map(_shards, state)
      program = programs[batches.stage].program
      state, metrics = program.train_step(state, batch, dropout_key)
    host = jax.device_get(metrics)
    squares = host.pop("grad_squares").total
    values = metrics_callback.means(host)
    replayed = Replayed(
      step,
      first,
      recorded=rows.get(step),
      loss=values["loss"],
      grad_norm=values["grad_norm"],
      parameter="",
      origin=None,
      gradient=grad_stats.first_not_finite(program.state.params, squares),
      batch=_gathered(batch),
      num_streams=batches.num_streams,
    )
    if replayed.finite:
      return replayed
    del state
    state = jax.tree.map(_of_shards, program.state, before)
    spoilt = grad_stats.squares(jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), 0.0, jnp.nan), state.params))
    train = run[batches.stage].config.train
    size = train.batch_size if train.microbatches == 1 else 0
    return dataclasses.replace(
      replayed,
      parameter=grad_stats.first_not_finite(program.state.params, np.asarray(spoilt)),
      origin=nan_tracer.find(program.train_step, state, batch, dropout_key, rows=size),
    )


def _check_step(workdir: epath.Path, step: int, config: Config, *, reached: int) -> None:
  """Checks that the run made a step; a step at which the run ended may have only a saved batch."""
  if step < 1 or step > config.train.steps:
    raise UserError(f"--step {step}: no such step in {workdir}. Give 1 to {config.train.steps}.")
  ended_there = (workdir / nan_policy.BAD_BATCHES / f"step_{step}.npz").exists()
  if step > reached + config.train.log_every and not ended_there:
    raise UserError(f"--step {step}: {workdir} has reached only step {reached}. Give an earlier step.")


def _sound_before(directory: epath.Path, there: list[int], step: int) -> int:
  """Returns the newest intact checkpoint before a step."""
  for saved_step in sorted((earlier for earlier in there if earlier < step), reverse=True):
    faults = verify.of_step(directory / str(saved_step), step=saved_step)
    if not faults:
      return saved_step
    hosts.log_once(f"{directory / str(saved_step)} is damaged ({faults[0]}); trying the previous checkpoint")
  listed = ", ".join(map(str, there)) or "none"
  raise UserError(
    f"--step {step}: no valid checkpoint before this step ({directory} has {listed}). Give a later step, or keep more "
    "checkpoints with config.checkpoint.max_to_keep."
  )


def _shards(x: jax.Array) -> list[tuple[jax.Device, np.ndarray]]:
  """Copies this process's shards of an array to host memory."""
  return [(shard.device, np.array(shard.data)) for shard in x.addressable_shards]


def _of_shards(abstract: jax.ShapeDtypeStruct, shards: list[tuple[jax.Device, np.ndarray]]) -> jax.Array:
  """Returns the array of these `_shards`."""
  arrays = [jax.device_put(x, device) for device, x in shards]
  return jax.make_array_from_single_device_arrays(abstract.shape, abstract.sharding, arrays)


def _gathered(batch: Batch) -> dict[str, np.ndarray]:
  return {name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in batch.items()}
