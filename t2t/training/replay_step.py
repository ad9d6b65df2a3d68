"""One step of a run done again, and looked at: from the last checkpoint before it, with the data that it had.

Nothing is written to the run's workdir.
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

from t2t import UserError
from t2t.checkpoints import manager, rollback, verify
from t2t.configuration import stages
from t2t.configuration.loading import records, saved_config
from t2t.configuration.schema import Config
from t2t.models.architecture import Batch
from t2t.runtime import hosts, progress
from t2t.training import grad_stats, metric_writers, nan_tracer, stage_program
from t2t.training.callbacks import metrics as metrics_callback
from t2t.training.callbacks import nan_policy


@dataclasses.dataclass(frozen=True)
class Replayed:
  """What came of a step.

  checkpoint: the step that it was replayed from.
  recorded: the loss in metrics.jsonl; None: it is not there.
  loss, grad_norm: now.
  parameter: the first that was not finite before the step; "": all were.
  origin: where the first number that is not finite arises; None: nowhere.
  gradient: the first parameter whose gradient is not finite; "": all are.
  batch: host arrays, [rows, length].
  num_streams: parts of the data that the rows come from, in order.
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
    """Whether loss and gradient are."""
    return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def config_of(workdir: epath.Path) -> Config:
  """The config that a run was last started with.

  Raises:
    UserError: there is no run.
  """
  path = workdir / "config.json"
  if not path.exists():
    raise UserError(f"{workdir}: no run there, for it has no config.json; give the --workdir of `t2t train`")
  return _config(json.loads(path.read_text()))


def _config(saved: Mapping[str, Any]) -> Config:
  """A config as it was saved; keys that there were not yet have their defaults."""
  return records(saved_config(saved))


def replay(workdir: epath.Path, step: int) -> Replayed:
  """Restores the newest sound checkpoint before a step, goes on to it, and looks at it.

  Args:
    workdir: of the run, local or gs://.
    step: which.

  Raises:
    UserError: there is no such step, no checkpoint before it, or its data are others by now.
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
    # Whoever saved the next checkpoint has made the step; behind the last it was whoever began last.
    after = min((saved_step for saved_step in there if saved_step >= step), default=None)
    config = last if after is None else _config(checkpoints.config(after))
    if why := registry.why_untrusted(config.data.task_modules):
      raise UserError(f"{workdir}: {why}")
    if not config.data.is_named:
      raise UserError(
        f"{workdir}: was given batches of its own (t2t.train(batches=...)), which nobody else can read; its bad_batches"
        " has those that went wrong"
      )
    run = train_data.resolved_stages(config)
    mesh, _ = stage_program.make_mesh(run)
    stack.enter_context(jax.set_mesh(mesh))
    programs = stage_program.StagePrograms(run, mesh)
    left_out = functools.partial(rollback.left_out, workdir)
    batches = train_data.batches(
      run, mesh, num_streams=config.data.num_streams, first=stages.at(run, first), left_out=left_out
    )
    stack.callback(batches.close)
    program = programs[batches.stage].program
    verify.check(directory / str(first))
    state, saved = rollback.restore_step(checkpoints, first, program.state, batches.stream_names, config=config)
    batches.restore(saved, step=first)
    turns = rollback.on_all_hosts(workdir)
    _, dropout_key = jax.random.split(jax.random.key(config.train.seed))
    batch, metrics, before = {}, {}, None  # there is one step at least
    for number in progress.track(range(first, step), f"from step {first} to step {step}"):
      rollback.pass_over(batches, turns, number)
      batch = next(batches)
      if number == step - 1:
        # The step reuses the state's memory; in the host's it is out of the way.
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
  """Refuses a step that the run did not make; of one that it ended at, all that is there may be the batch."""
  if step < 1 or step > config.train.steps:
    raise UserError(f"--step {step}: no such step; {workdir} has steps 1 to {config.train.steps}")
  ended_there = (workdir / nan_policy.BAD_BATCHES / f"step_{step}.npz").exists()
  if step > reached + config.train.log_every and not ended_there:
    raise UserError(f"--step {step}: no such step; {workdir} has come to step {reached}")


def _sound_before(directory: epath.Path, there: list[int], step: int) -> int:
  """The newest checkpoint before a step that is as it was saved."""
  for saved_step in sorted((earlier for earlier in there if earlier < step), reverse=True):
    faults = verify.of_step(directory / str(saved_step), step=saved_step)
    if not faults:
      return saved_step
    hosts.log_once(f"{directory / str(saved_step)} is damaged ({faults[0]}); looking at the one before it")
  listed = ", ".join(map(str, there)) or "none"
  raise UserError(
    f"--step {step}: no sound checkpoint before it; {directory} has {listed}; give a later step, or have a run keep"
    " more of them, config.checkpoint.max_to_keep"
  )


def _shards(x: jax.Array) -> list[tuple[jax.Device, np.ndarray]]:
  """What this process has of an array, in its own memory."""
  return [(shard.device, np.array(shard.data)) for shard in x.addressable_shards]


def _of_shards(abstract: jax.ShapeDtypeStruct, shards: list[tuple[jax.Device, np.ndarray]]) -> jax.Array:
  """The array that `_shards` was given."""
  arrays = [jax.device_put(x, device) for device, x in shards]
  return jax.make_array_from_single_device_arrays(abstract.shape, abstract.sharding, arrays)


def _gathered(batch: Batch) -> dict[str, np.ndarray]:
  return {name: np.asarray(multihost_utils.process_allgather(x, tiled=True)) for name, x in batch.items()}
