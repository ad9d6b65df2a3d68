"""Compiled programs, held-out batches and evaluation tasks of each stage of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, Protocol

from etils import epath
from flax import nnx
import jax

from t2t import UserError, losses
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.metrics import Metrics
from t2t.models.architecture import Batch
from t2t.models.kernels import dispatch
from t2t.param_tree import Vocabulary, path_name
from t2t.runtime import amounts, hosts
from t2t.training import config_checks, mesh_selection, recipe, state_collections
from t2t.training.background_compile import BackgroundCompile
from t2t.training.train_state import TrainState

if TYPE_CHECKING:
  from t2t.data.stage_iterator import StagedBatches
  from t2t.evaluation import evaluate


class Data(Protocol):
  """Data of a run: `t2t.data.train_data` reads config.data, and `t2t.train` takes a user's batches."""

  def resolved_stages(self, config: Config) -> tuple[Stage, ...]:
    """Returns the stages of a run, resolved with their data."""

  def check_stages(self, run: Sequence[Stage]) -> None:
    """Raises an error if the data does not fit the run."""

  def vocabulary(self, config: Config) -> Vocabulary | None:
    """Returns seqio's vocabulary for the ids in the batches; None if it is unknown."""

  def check_vocabulary(
    self,
    config: Config,
    vocabulary: Vocabulary | None,
    vocabulary_folder: epath.Path,
    saved: Mapping[str, object] | None,
  ) -> None:
    """Raises an error if the vocabulary differs from the one at the start of the run."""

  def keep_vocabulary(self, vocabulary: Vocabulary | None, folder: epath.Path) -> None:
    """Saves the run's own copy."""

  def batches(
    self,
    run: Sequence[Stage],
    mesh: jax.sharding.Mesh,
    *,
    num_streams: int | None,
    first: int,
    left_out: Callable[[int, int], int],
  ) -> "StagedBatches":
    """Returns the training batches."""

  def eval_batches(self, config: Config, mesh: jax.sharding.Mesh) -> list[Batch]:
    """Returns the held-out batches, the same on each call."""

  def eval_batches_by_source(self, config: Config, mesh: jax.sharding.Mesh) -> dict[str, list[Batch]]:
    """Returns the held-out batches of each source that names its language."""

  def evaluation(self, config: Config, graphdef: nnx.GraphDef, mesh: jax.sharding.Mesh) -> "evaluate.Evaluation | None":
    """Returns the evaluation of the tasks; None if no task has metrics."""


def from_config() -> Data:
  """Returns the data that config.data selects. Imports TensorFlow (5 s), which the rest of t2t does not need."""
  from t2t.data import train_data

  data: Any = train_data
  return data


def make_mesh(run: Sequence[Stage]) -> tuple[jax.sharding.Mesh, str]:
  """Returns the mesh of a run, chosen for the stage with the most tokens in a batch, and the reason for its sizes.

  Raises:
    UserError: see `mesh_selection.make`.
  """
  return mesh_selection.make(recipe.largest(run).config)


class StageProgram:
  """A stage with its programs.

  Args:
    stage: with a resolved config (`Data.resolved_stages`).
    mesh: the current one.
    data: of the stage; None for the data of its config.

  Raises:
    UserError: see `Recipe.build`.
  """

  def __init__(self, stage: Stage, mesh: jax.sharding.Mesh, data: Data | None = None):
    self.stage, self._mesh, self._data = stage, mesh, data
    with stage.error_context():
      self.made = recipe.make(stage.config)
      self.program = self.made.build(mesh)

  @functools.cached_property
  def train_step(self) -> BackgroundCompile:
    """The training step; compilation starts on first access."""
    return BackgroundCompile(
      self.program.train_step, self._mesh, self.program.state, *recipe.arguments(self.stage.config, self._mesh)
    )

  def takes_step_of(self, other: "StageProgram") -> bool:
    """Returns True if another stage's step is the same program for batches of the same shapes."""
    mine, its = self.stage.config, other.stage.config
    return dataclasses.replace(mine, data=its.data) == its and recipe.batch(mine) == recipe.batch(its)

  @functools.cached_property
  def eval_batches(self) -> list[Batch]:
    """Held-out batches of the stage's own data."""
    return (self._data or from_config()).eval_batches(self.stage.config, self._mesh)

  def check_counts(self) -> None:
    """Checks that some position of the held-out batches counts; otherwise the held-out loss would always be 0.

    Raises:
      UserError: no position counts.
    """
    # Auxiliary terms of layers count every token, even without a target.
    weights = losses.without_auxiliary(self.made.loss).weights
    if not any(float(weight) > 0 for batch in self.eval_batches for weight in weights(batch).values()):
      config = self.stage.config
      where = config.data.named if config.data.is_named else "eval_batches"
      raise UserError(
        f"{where}: no position of the held-out batches counts in the loss "
        f"(config.train.loss={config.train.loss}: all weights are 0). Give other held-out data, or a loss that "
        "fits this data; `t2t tasks show` prints the features of a task."
      )

  @functools.cached_property
  def by_source(self) -> dict[str, list[Batch]]:
    """Held-out batches of each source that names its language."""
    return (self._data or from_config()).eval_batches_by_source(self.stage.config, self._mesh)

  @functools.cached_property
  def tasks(self) -> "evaluate.Evaluation | None":
    """Evaluation of the stage's tasks; None if there is none."""
    return (self._data or from_config()).evaluation(self.stage.config, self.program.reader, self._mesh)

  def check_measured(self) -> None:
    """Checks that the stage's evaluations have `config.eval.early_stopping_metric`.

    Raises:
      UserError: with the nearest metric.
    """
    settings = self.stage.config.eval
    if not settings.patience or settings.early_stopping_metric == "loss":
      return
    with self.stage.error_context():
      config_checks.check_measured(settings, ["loss", *(() if self.tasks is None else self.tasks.metric_names())])

  @functools.cached_property
  def baselines(self) -> Sequence[losses.Baseline]:
    """Losses of models that have learned nothing, on the stage's held-out batches."""
    return self.made.loss.baselines(self.eval_batches, self.stage.config.model.vocab_size)

  @functools.cached_property
  def bytes_per_target(self) -> float:
    """UTF-8 bytes of text for each held-out target token; 0.0: the loss is not that of text, or bytes are unknown.

    Sentinels and EOS are targets without bytes. Targets of a masked language model are single tokens between known
    ones, and tasks have their own metrics.
    """
    config = self.stage.config
    if not (config.data.is_named and self.tasks is None and losses.is_likelihood(config)):
      return 0.0
    from t2t.data import pipeline, vocabularies

    sizes = vocabularies.token_bytes(pipeline.vocabulary(config.data))
    return 0.0 if sizes is None else losses.mean_over_targets(self.eval_batches, sizes)

  @functools.cached_property
  def flops(self) -> float:
    """FLOPs of one training step."""
    return self.made.flops(predicted=losses.share_of_weights(self.eval_batches))

  @property
  def described(self) -> str:
    """Summary of parameters, trainable parameters and devices."""
    training_recipe, state, mesh = self.made, self.program.state, self._mesh
    trained, frozen = (sum(math.prod(x.shape) for x in jax.tree.leaves(x)) for x in (state.params, state.frozen_params))
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    number = f"{amounts.compact_count(trained + frozen)} parameters"
    if frozen:
      number += f" ({amounts.compact_count(trained)} trainable, {100 * trained / (trained + frozen):.2g} %)"
    where = f"on {mesh.size} x {mesh.devices.flat[0].device_kind} ({axes})"
    if training_recipe.idle_heads:
      heads = ", ".join(training_recipe.idle_heads)
      where += (
        f"; config.train.loss={training_recipe.config.train.loss} does not use head {heads}, whose parameters are "
        "not trained"
      )
    return f"{number} {where}"

  def prepare(self) -> float:
    """Builds held-out batches and evaluation tasks, and logs the kernels; returns the FLOPs of a step.

    Raises:
      UserError: see `check_counts`.
    """
    self.check_counts()
    hosts.log_once(dispatch.described(recipe.attention_kernels(self.stage.config, self.eval_batches[0])))
    if bits := self.stage.config.model.quantization:
      hosts.log_once(f"layers multiply in {bits}; parameters are saved without quantization")
    self.tasks  # noqa: B018 - built here, and not within the first evaluation
    return self.flops


def check_scoring(stage: Stage) -> None:
  """Checks the keys of the rule by which evaluations of tasks score options; loads nothing.

  Args:
    stage: of a run.

  Raises:
    UserError: see `evaluation.methods.check`.
  """
  config, settings = stage.config, stage.config.eval
  if config.data.reads_only_tasks and (settings.normalize or settings.neutral_context or settings.pseudo_likelihood):
    from t2t.evaluation import methods

    with stage.error_context():
      methods.check(settings, config.model, by_heads=losses.answered_by_heads(config.train.loss))


class StagePrograms:
  """Programs of all stages; the next stage's step is compiled while the current stage runs.

  Args:
    run: the stages.
    mesh: the current one.
    data: see `StageProgram`.

  Raises:
    UserError: model or optimizer of a stage have other parameters than in the first stage.
  """

  def __init__(self, run: Sequence[Stage], mesh: jax.sharding.Mesh, data: Data | None = None):
    self._programs = [StageProgram(stage, mesh, data) for stage in run]
    for program in self._programs[1:]:
      _check_same(self._programs[0], program)

  def __getitem__(self, number: int) -> StageProgram:
    return self._programs[number]

  def __iter__(self) -> Iterator[StageProgram]:
    return iter(self._programs)

  def step(self, number: int, state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, Metrics]:
    """Runs a step of a stage (`Program.train_step`)."""
    result = self._programs[number].train_step(state, batch, key)
    self.prepare(number + 1)
    return result

  def prepare(self, number: int) -> None:
    """Starts compiling the step of a stage, if there is such a stage."""
    if number >= len(self._programs):
      return
    program = self._programs[number]
    if number and "train_step" not in vars(program) and program.takes_step_of(self._programs[number - 1]):
      program.train_step = self._programs[number - 1].train_step
    program.train_step  # noqa: B018 - compiled from here on


def _check_same(first: StageProgram, later: StageProgram) -> None:
  """Checks that a stage can take over the state of the first stage."""
  rows, before = later.stage.config.train.batch_size, first.stage.config.train.batch_size
  program = first.program
  if carried := rows != before and state_collections.features(program.collections, program.state.collections):
    raise UserError(
      f"config.stages, {later.stage.name}: config.train.batch_size={rows} differs from {before} in {first.stage.name}, "
      f"but rows carry states from step to step ({', '.join(carried)}). Give all stages one config.train.batch_size."
    )
  shapes = lambda program: {
    path_name(path): (x.shape, x.dtype) for path, x in jax.tree_util.tree_leaves_with_path(program.program.state)
  }
  old, new = shapes(first), shapes(later)
  name = next((name for name in {**old, **new} if old.get(name) != new.get(name)), None)
  if name is None:
    return
  shown = lambda shape_and_dtype: f"{shape_and_dtype[0]} {shape_and_dtype[1]}" if shape_and_dtype else "missing"
  changed = ", ".join(f"{key}={value}" for key, value in later.stage.own.items() if key.startswith("model."))
  named = f" ({changed})" if changed else ""
  raise UserError(
    f"config.stages, {later.stage.name}: the model differs from the model of {first.stage.name} ({name} is "
    f"{shown(new.get(name))}, it was {shown(old.get(name))}). Leave out the changed key of the stage"
    f"{named}, or set it for the whole run: a stage keeps all parameters and their shapes."
  )
