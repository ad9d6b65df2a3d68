"""Builds the training program of a config: model, loss, optimizer, trained parameters and feature shapes.

Training and planning both use this module, so a plan describes the actual run. TensorFlow is only imported if a task
must be loaded to find its features.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from t2t import UserError, feature_spec, losses, sharding
from t2t.configuration import section_keys
from t2t.configuration.schema import Config, SourceSpec
from t2t.configuration.stages import Stage
from t2t.metrics import Metrics
from t2t.models import adapters as adapters_lib
from t2t.models.architecture import Batch
from t2t.models.config import EMBEDDINGS
from t2t.models.kernels import dispatch
from t2t.param_tree import Params, join_frozen, matches, path_name, split_frozen
from t2t.runtime import lazy_table
from t2t.training import (
  config_checks,
  l2_sp,
  optimizers,
  param_groups,
  schedules,
  state_collections,
  train_state,
  train_step,
)

if TYPE_CHECKING:
  from t2t.models import stage_pipeline


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Training program of a config, shared by `t2t train`, `plan`, `eval` and the benchmarks.

  Attributes:
    model_fn: key -> model.
    loss: the training loss.
    tx, schedule: the optimizer, and its learning rate by step.
    collections: of the train state.
  """

  config: Config
  model_fn: Callable[[jax.Array], nnx.Module]
  loss: losses.Loss
  tx: optax.GradientTransformation
  schedule: optax.Schedule
  collections: state_collections.Collections

  def state(
    self, mesh: jax.sharding.Mesh
  ) -> tuple[nnx.GraphDef, train_state.TrainState, Callable[[jax.Array], train_state.TrainState]]:
    """Returns the model's structure, the shapes of the train state with shardings, and key -> state.

    Raises:
      UserError: the mesh does not divide a size, or a pattern matches no parameter.
    """
    return train_state.abstract_train_state(
      self.model_fn,
      self.tx,
      mesh,
      freeze=self.freeze,
      halved=self.halved,
      offload_optimizer=self.config.train.offload_optimizer,
      collections=self.collections,
    )

  @functools.cached_property
  def freeze(self) -> tuple[str, ...]:
    """Patterns of frozen parameters: the config's, those that adapters freeze, and unused heads.

    Raises:
      UserError: rules do not fit the model, or contradict each other; see `param_groups.check`.
    """
    never = self._never_trained
    init = self.config.init
    rules = self.config.optimizer.param_groups or self.config.train.freeze
    if rules or init.others:
      key = jax.eval_shape(lambda: jax.random.key(0))
      params = jax.eval_shape(lambda key: nnx.to_pure_dict(nnx.split(self.model_fn(key), graph=False)[1]), key)
      leaves = jax.tree_util.tree_leaves_with_path(params)
      shapes = {path_name(path): x.shape for path, x in leaves}
      param_groups.check_adapters(self.config, shapes)
      for name, source in init.others.items():
        for path, pattern in zip(source.subtrees, source.patterns, strict=True):
          if not any(matches((pattern,), param_path) for param_path in shapes):
            raise UserError(
              f"config.init.others.{name}.rename: no {path!r} in the model{param_groups.nearest(path, shapes)} "
              "Correct the name."
            )
        for path in shapes:
          if adapters_lib.base_path(path, self.config.adapters) is None and matches(source.patterns, path):
            raise UserError(
              f"config.{'/'.join(self.config.adapters)} adds {path} to a part that is initialized by "
              f"config.init.others.{name}. Adapt other parts of the model. Or train without an adapter first, "
              "and give that run as config.init.checkpoint."
            )
      if rules:
        param_groups.check(self.config, shapes, never=never, part=self.loss.part)
    return (*param_groups.frozen_patterns(self.config), *never)

  @property
  def halved(self) -> tuple[str, ...]:
    """Patterns of frozen parameters that are stored in bfloat16."""
    return (*param_groups.halved_patterns(self.config), *self.config.init.halved_patterns)

  @property
  def _never_trained(self) -> tuple[str, ...]:
    """Patterns of parameters that adapters freeze, of unused heads, and of parts that another checkpoint has frozen."""
    model = self.config.model
    there = {head.name for head in model.heads if model.has_parameters(head)}
    idle = (f"(^|/)heads/{name}/" for name in self.idle_heads if name in there)
    idle = (*idle, *self.loss.untrained_params(model), *EMBEDDINGS[model.embedding].constants)
    return (*adapters_lib.frozen(self.config.adapters), *idle, *self.config.init.frozen_patterns)

  @property
  def idle_heads(self) -> tuple[str, ...]:
    """Heads that the loss does not use; they are frozen, because weight decay would change them without a gradient."""
    return tuple(head.name for head in self.config.model.heads if head.name not in self.loss.heads)

  def flops(self, *, predicted: float) -> float:
    """Returns the FLOPs of one training step; see `models.flops.model_flops`."""
    size, predicted = self.config.train.batch_size, predicted * share_of_text(self.config)
    return self.loss.flops(self.config.model, batch_size=size, lengths=positions(self.config), predicted=predicted)

  def build(self, mesh: jax.sharding.Mesh) -> "Program":
    """Returns the programs for a mesh, which must be the current one; nothing is compiled.

    Raises:
      UserError: see `state`; or the mesh does not divide the batch.
    """
    train = self.config.train
    check_sizes(self.config, mesh)
    check_front(self.config)
    check_lengths(self.config, mesh)
    graphdef, state, make_state = self.state(mesh)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    step = train_step.make_train_step(
      graphdef,
      self.loss,
      self.tx,
      shardings,
      num_microbatches=train.microbatches,
      skip_not_finite=self.config.nan_policy.on_nonfinite == "skip",
      term_weights=train.term_weights,
      collections=self.collections,
    )
    evaluate = train_step.make_eval_step(graphdef, self.loss, self.collections)
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    reader = functools.cache(lambda: self._reader(on_cpu=on_cpu))
    frozen = self.freeze, self.halved
    return Program(graphdef, reader, state, shardings, make_state, step, evaluate, *frozen, self.collections)

  def _reader(self, *, on_cpu: bool) -> nnx.GraphDef:
    config = dataclasses.replace(self.config, model=self.config.model.for_inference(on_cpu=on_cpu))
    # Built by the training loss: another loss may reject a model without dropout.
    built = jax.eval_shape(_model_fn(self.loss, config), jax.eval_shape(lambda: jax.random.key(0)))
    return nnx.split(built, graph=False)[0]


@dataclasses.dataclass(frozen=True)
class Program:
  """Programs that run on a mesh.

  Attributes:
    graphdef: structure of the model.
    make_reader: returns `reader`, and traces the model once.
    state: shapes of the train state, with shardings; `shardings` has the shardings alone.
    make_state: key -> a fresh state; to be compiled with `shardings`.
    train_step, eval_step: see `training.train_step`; `evaluate` runs the second on all held-out batches.
    freeze, halved: see `Recipe`.
  """

  graphdef: nnx.GraphDef
  make_reader: Callable[[], nnx.GraphDef]
  state: train_state.TrainState
  shardings: train_state.TrainState
  make_state: Callable[[jax.Array], train_state.TrainState]
  train_step: Callable[[train_state.TrainState, Batch, jax.Array], tuple[train_state.TrainState, Metrics]]
  eval_step: Callable[[train_state.TrainState, Batch, Mapping[str, jax.Array]], tuple[Metrics, dict[str, jax.Array]]]
  freeze: tuple[str, ...]
  halved: tuple[str, ...] = ()
  collections: state_collections.Collections = dataclasses.field(default_factory=dict)

  def evaluate(self, state: train_state.TrainState, batches: Iterable[Batch]) -> Metrics:
    """Returns the metrics of all held-out batches; a memory passes from each batch to the next."""
    return train_step.evaluate(self.eval_step, state, batches, self.collections)

  def evaluated(self, state: train_state.TrainState) -> train_state.TrainState:
    """Returns a state with the parameters for evaluation: their average, or transformed."""
    return train_step.evaluated(self.collections, state)

  @property
  def reader(self) -> nnx.GraphDef:
    """Structure of the model for task evaluation and generation, see `TransformerConfig.for_inference`.

    Its texts have other lengths than in training, so each attention selects its kernel by its own lengths.
    """
    return self.make_reader()

  def init(self) -> Callable[[jax.Array], train_state.TrainState]:
    """Returns the compiled key -> state, with each array created in its shards."""
    return jax.jit(self.make_state, out_shardings=self.shardings)

  def init_from_params(
    self, over: Callable[[Params, Params], Params] = lambda fresh, params: params
  ) -> Callable[[Params, jax.Array], train_state.TrainState]:
    """Returns the compiled (parameters, key) -> fresh state (step 0, new optimizer) that reuses the parameters' memory.

    Parameters are arguments, not constants of the program. Constants would be in memory twice, take minutes to compile,
    and be unavailable on several hosts, each of which has only its shards.

    Args:
      over: (fresh parameters, given parameters) -> the model's, if the given ones are incomplete.
    """

    def make(params: Params, key: jax.Array) -> train_state.TrainState:
      state = self.make_state(key)
      params = over(join_frozen(state.params, state.frozen_params), params)
      trained, frozen = split_frozen(params, self.freeze, halved=self.halved)
      collection_values, trained = state_collections.init(self.collections, trained)
      begun = l2_sp.starting_from(state.opt_state, trained)
      return train_state.TrainState(state.step, trained, frozen, begun, collection_values)

    return jax.jit(make, donate_argnums=0, out_shardings=self.shardings)


def make(config: Config) -> Recipe:
  """Returns the recipe of a config; uses no device.

  Raises:
    UserError: an unknown loss, optimizer, schedule or NaN policy, or a combination that is not supported.
  """
  if not config.model.vocab_size:
    raise UserError(
      "config.model.vocab_size=0: the vocabulary size is only known in a run with data. Give "
      "--config.model.vocab_size=NUMBER."
    )
  loss = losses.make(config)
  if config.optimizer.layer_decay < 1.0 and config.model.share_layers:
    raise UserError(
      f"config.optimizer.layer_decay={config.optimizer.layer_decay}: all layers share their parameters "
      "(config.model.share_layers) and have one rate. Give --config.optimizer.layer_decay=1.0."
    )
  _check_fisher(config)
  if losses.has_teacher(config):
    of_teachers: Any = loss
    of_teachers.check_lengths(lengths(config))
  layers = config.model.deepest_stack
  tx, schedule = optimizers.make_optimizer(
    config.optimizer, config.train.steps, num_layers=layers, schedule=schedules.of_run(config)
  )
  config_checks.check(config)
  config_checks.check_continuous(config)

  return Recipe(config, _model_fn(loss, config), loss, tx, schedule, state_collections.of_run(config))


def _model_fn(loss: losses.Loss, config: Config) -> Callable[[jax.Array], nnx.Module]:
  """Returns key -> the trained model with its adapters."""

  def model_fn(key: jax.Array) -> nnx.Module:
    rngs = nnx.Rngs(key)
    return adapters_lib.adapt(loss.build(config.model, rngs), config.adapters, rngs)

  return model_fn


def _check_fisher(config: Config) -> None:
  """Checks that Fisher information has parameters to apply to."""
  where = f"config.optimizer.fisher={config.optimizer.fisher}"
  if not config.optimizer.fisher:
    return
  if not param_groups.sets(config.optimizer, "anchor"):
    raise UserError(
      f"{where}: no rule of config.optimizer.param_groups sets 'anchor', so the Fisher information has no effect. "
      "Add a rule '.: anchor=NUMBER' (`t2t fisher` prints a suitable number), or leave config.optimizer.fisher "
      "out."
    )
  for name in config.adapters:
    raise UserError(
      f"{where}: config.{name} already freezes the checkpoint's parameters. Leave one of the two keys out."
    )


# ---- Shapes ----------------------------------------------------------------------------------------------------------


def task_features(config: Config) -> tuple[str, ...]:
  """Returns the features of the training task on which models depend: "targets", "inputs" if it has any, and others.

  The others are `feature_spec.optional_features`. The objective determines the features of files, and the name those of
  t2t's own tasks. Other tasks must be registered, so their modules are imported, and TensorFlow with them.

  Raises:
    UserError: a task module cannot be imported, or the mixture does not exist.
  """
  if losses.answered_by_heads(config.train.loss):
    of_tokens = () if losses.answered_by_heads_alone(config.train.loss) else ("targets", "loss_weights")
    return (*feature_spec.ANSWERED, *of_tokens)
  if losses.compares_texts(config.train.loss):
    return feature_spec.PAIRED
  data, optional = config.data, tuple(feature_spec.optional_features(config.model.kind))
  if data.table:
    return _BOTH
  named = [source for source in data.source_list if source.name]
  yields: dict[str, None] = {}  # union over sources; sources without a feature pad it
  for source in named or data.source_list[:1] or [SourceSpec(objective=data.objective)]:
    yields |= dict.fromkeys(_source_features(source, optional, data.task_modules))
  return tuple(yields)


_BOTH, _ALONE = ("inputs", "targets"), ("targets",)


def _source_features(source: SourceSpec, optional: tuple[str, ...], modules: Sequence[str]) -> tuple[str, ...]:
  """Returns `task_features` of one source; for `optional` see `feature_spec.optional_features`."""
  decoder_only = optional == tuple(feature_spec.BESIDE_NEXT_TOKENS)
  base = feature_spec.NEXT_TOKENS if decoder_only else _BOTH
  both_and = lambda has: (*base, *(name for name in optional if has(name)))
  if source.files or not source.mixture:
    if source.objective in feature_spec.WITHOUT_INPUTS:
      return _ALONE
    if decoder_only and source.objective not in feature_spec.WITH_NEXT_TOKENS:
      return _BOTH
    return both_and(lambda name: source.objective in feature_spec.WITH_OPTIONAL[name])
  if modules and all(module.startswith("t2t.tasks.") for module in modules):
    parts = [name.strip().partition("_") for name in source.mixture.split(",")]
    are = lambda names: all(
      corpus in feature_spec.CORPORA and objective_name.startswith(names) for corpus, _, objective_name in parts
    )
    # An encoder always reads inputs, even of a task without them.
    if not decoder_only or are(feature_spec.WITH_NEXT_TOKENS):
      return both_and(lambda name: are(feature_spec.WITH_OPTIONAL[name]))
    return _ALONE if are(feature_spec.WITHOUT_INPUTS) else _BOTH
  from t2t.data import task_resolution

  output_features = task_resolution.named(source.mixture, modules=modules).output_features
  if not decoder_only or "both_ways" in output_features:
    return both_and(lambda name: name in output_features)
  return _BOTH if "inputs" in output_features else _ALONE


def asks_data(config: Config) -> bool:
  """Returns True if training depends on the data itself: heads, steps of an epoch, embedding rows; see `resolved`."""
  train, data = config.train, config.data
  if train.epochs or not (config.eval.every and config.checkpoint.save_interval_steps and config.model.vocab_size):
    return True
  if data.labels or not (data.inputs_length and data.targets_length):
    return True
  if any(f"={param_groups.EPOCH}" in rule for rule in config.optimizer.param_groups):
    return True
  alone = next((source for source in data.source_list if not source.name), SourceSpec())
  if alone.files or not alone.mixture or config.model.heads:
    return False
  is_objective = alone.mixture in {f"{corpus}_{data.objective}" for corpus in feature_spec.CORPORA}
  if losses.answered_by_heads_alone(train.loss):
    return True
  return not train.loss and not config.model.kind.is_generative and not is_objective


def _task_lengths(config: Config) -> dict[str, int]:
  return feature_spec.task_lengths(
    config.model.architecture,
    task_features(config),
    inputs_length=config.data.inputs_length,
    targets_length=config.data.targets_length,
  )


def lengths(config: Config) -> dict[str, int]:
  """Returns the positions of encoder and decoder in training, without reading data."""
  return feature_spec.model_lengths(config.model.architecture, _task_lengths(config))


def positions(config: Config) -> dict[str, int]:
  """Returns `lengths` plus the positions that adapters compute before each text."""
  sizes = lengths(config)
  front = config.model.kind.answers
  return sizes | {front: sizes[front] + adapters_lib.positions(config.adapters, computed=True)}


def largest(run: Sequence[Stage]) -> Stage:
  """Returns the stage with the most positions in a batch."""
  positions_of = lambda stage: stage.config.train.batch_size * sum(lengths(stage.config).values())
  return run[0] if len(run) == 1 else max(run, key=positions_of)


def attention_kernels(config: Config, rows: Batch) -> dict[str, dispatch.Choice]:
  """Returns `dispatch.attention_kernels` of the run's adapted model, for features or their shapes."""
  prompt = adapters_lib.positions(config.adapters, computed=True)
  prefix = dict.fromkeys(adapters_lib.prefixed(config.adapters), adapters_lib.positions(config.adapters))
  return dispatch.attention_kernels(config.model, rows, prompt=prompt, prefix=prefix)


def share_of_text(config: Config) -> float:
  """Returns the fraction of the last stack's `positions` that belongs to the text."""
  all_positions, text = positions(config), lengths(config)
  last = list(text)[-1]
  return text[last] / all_positions[last]


def batch(config: Config) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of a training batch's features, [batch, length]: int32, weights float32; and of its logits."""
  feature_lengths = feature_spec.model_features(
    config.model.architecture,
    _task_lengths(config),
    pack=config.data.pack,
    tasks=len(adapters_lib.tasks(config.adapters)) > 1,
    continuous=config.data.continuous_rows,
  )
  rows = config.train.batch_size
  dtype = lambda name: jnp.float32 if name.endswith("loss_weights") else jnp.int32
  shapes = {name: jax.ShapeDtypeStruct((rows, length), dtype(name)) for name, length in feature_lengths.items()}
  if config.distillation is None or not config.distillation.logits:
    return shapes
  return shapes | lazy_table.load("t2t.losses.logits_student:features")(config.distillation, rows, lengths(config))


def arguments(config: Config, mesh: jax.sharding.Mesh) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
  """Returns the shapes of batch and key for a training step, with shardings."""
  key = jax.eval_shape(lambda: jax.random.key(0))
  placed = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  rows = {name: placed(x, sharding.batch_sharding(mesh)) for name, x in batch(config).items()}
  return rows, placed(key, sharding.replicated(mesh))


def share_predicted(config: Config) -> float:
  """Estimates the fraction of the last stack's positions with a loss; the exact value depends on the data."""
  if not config.model.kind.is_generative:
    return config.data.noise_density or 0.15
  if config.model.kind.is_decoder_only:
    task_lengths = _task_lengths(config)
    return task_lengths["targets"] / sum(task_lengths.values())
  return 1.0


# ---- Divisibility ----------------------------------------------------------------------------------------------------


def check_positive(config: Config) -> None:
  """Checks ranges of values that do not depend on the devices.

  Raises:
    UserError: with the key.
  """
  for name in ("train", "data", "eval", "checkpoint"):
    section_keys.check_ranges(name, getattr(config, name))


def check_sizes(config: Config, mesh: jax.sharding.Mesh) -> None:
  """Checks that sizes are positive and that the mesh divides them.

  Raises:
    UserError: with the keys, and sizes that work.
  """
  check_positive(config)
  shards = sharding.num_shards("batch", mesh)
  rows = shards * config.train.microbatches
  if config.train.batch_size % rows:
    low = config.train.batch_size // rows * rows
    axes = sharding.axes_text("batch", mesh)
    raise UserError(
      f"config.train.batch_size={config.train.batch_size} does not divide into {config.train.microbatches} "
      f"microbatch(es) over {shards} batch shard(s) ({axes}). Give "
      f"{' or '.join(str(size) for size in (low, low + rows) if size)}."
    )
  check_pipeline(config, mesh)
  if config.eval.batch_size % shards:
    raise UserError(
      f"config.eval.batch_size={config.eval.batch_size} does not divide over {shards} batch shard(s). Give a multiple "
      f"of {shards}."
    )
  model = config.model
  has_heads = not model.block_class.is_recurrent
  for key in ("num_heads", "num_kv_heads", "encoder_num_heads", "encoder_num_kv_heads") if has_heads else ():
    if (heads := getattr(model, key)) % mesh.shape["tensor"]:
      works = [n for n in range(1, heads + 1) if heads % n == 0]
      raise UserError(
        f"config.mesh.tensor={mesh.shape['tensor']} does not divide config.model.{key}={heads}. Give one of {works}."
      )


def check_pipeline(config: Config, mesh: jax.sharding.Mesh) -> None:
  """Checks that the layers divide into stages, and the rows into the pipeline's microbatches.

  Raises:
    UserError: with values that work.
  """
  stages, model = sharding.num_shards("stages", mesh), config.model
  if stages == 1:
    return
  where = f"config.mesh.stage={stages}"
  if model.share_layers:
    raise UserError(
      f"{where}: all layers share their parameters (config.model.share_layers), so that stages would have no layers of "
      "their own. Set --config.mesh.stage=1 and use config.mesh.fsdp."
    )
  unset = {"recurrence": "", "future_tokens": 0, "beside_first": ""}
  if model.position_scheme.decodes_masks:
    unset["absolute_positions"] = ""
  for key, value in unset.items():
    if getattr(model, key) != value:
      raise UserError(
        f"{where} does not support config.model.{key}={getattr(model, key)}, which joins layers of different stages. "
        f"Set --config.mesh.stage=1, or config.model.{key}={value!r}."
      )
  rounds, pattern = model.pipeline_rounds, len(model.feed_forward_pattern)
  depths = {f"num_{side}_layers": getattr(model, f"num_{side}_layers") for side in model.kind.sides}
  for key, layers in depths.items():
    if layers % (stages * rounds * pattern):
      times = f" x config.model.pipeline_rounds={rounds}" if rounds > 1 else ""
      times += f" x config.model.moe_every={pattern}" if pattern > 1 else ""
      unit = rounds * pattern
      works = [n for n in range(1, layers + 1) if all(depth % (n * unit) == 0 for depth in depths.values())]
      text = f"Stages that work: {works}" if works else "Set config.model.pipeline_rounds=1"
      raise UserError(f"{where}{times} does not divide config.model.{key}={layers}. {text}.")
  parts, number = sharding.num_shards("microbatch", mesh), model.pipeline_microbatches
  for key, rows in (
    ("train.batch_size", config.train.batch_size // config.train.microbatches),
    ("eval.batch_size", config.eval.batch_size),
  ):
    if number and rows % parts == 0 and rows // parts % number:
      own = rows // parts
      works = [n for n in range(1, own + 1) if own % n == 0]
      raise UserError(
        f"config.model.pipeline_microbatches={number} does not divide the {own} rows of config.{key} in a pipeline. "
        f"Give 0 (automatic) or one of {works}."
      )


def pipeline_schedule(config: Config, mesh: jax.sharding.Mesh) -> "stage_pipeline.Schedule | None":
  """Returns the schedule of a training step's pipelines, one for each accumulated microbatch; None without stages."""
  stages, parts = (sharding.num_shards(axis, mesh) for axis in ("stages", "microbatch"))
  if stages == 1:
    return None
  from t2t.models import stage_pipeline

  return stage_pipeline.of_batch(
    config.model, config.train.batch_size // config.train.microbatches, stages=stages, parts=parts
  )


def check_lengths(config: Config, mesh: jax.sharding.Mesh) -> None:
  """Checks that the mesh divides the positions of "encoder" and "decoder".

  Raises:
    UserError: with lengths that work.
  """
  parts = sharding.num_shards("length", mesh)
  for side, length in positions(config).items():
    if length % parts:
      low = length // parts * parts
      raise UserError(
        f"config.mesh.sequence={parts} does not divide the {side}'s {length} positions. Give a length of "
        f"{' or '.join(str(size) for size in (low, low + parts) if size)}."
      )


def check_positions(config: Config) -> None:
  """Checks that learned positions cover the sequences (`feature_spec.check_learned`), without reading data."""
  most = adapters_lib.as_asked(config.model, config.adapters).most_positions
  feature_spec.check_learned(config.model.architecture, _task_lengths(config), most)


def check_front(config: Config) -> None:
  """Checks that prompts and prefixes fit before the text.

  Raises:
    UserError: a row has several texts, each of which would need its own prompt; or the learned positions are too few.
  """
  taken = adapters_lib.positions(config.adapters)
  if adapters_lib.positions(config.adapters, computed=True):
    kinds = {head.kind for head in config.model.heads}
    for several, reason in (
      (config.data.pack, "config.data.pack=True"),
      (losses.compares_texts(config.train.loss), f"config.train.loss={config.train.loss}"),
      (losses.answered_by_heads(config.train.loss) and "choice" in kinds, "a task with candidates, each a text"),
    ):
      if several:
        or_apart = ", or set config.data.pack=False" if config.data.pack else ""
        raise UserError(
          f"config.prompt precedes a row, but rows have several texts here ({reason}). Use config.prefix, which "
          f"applies to each text{or_apart}."
        )
  most = config.model.most_positions
  for side, length in lengths(config).items() if taken and most else ():
    if length + taken > most:
      raise UserError(
        f"config.{next(iter(config.adapters))}.length={taken} and the {side}'s {length} positions exceed the "
        f"model's {most} learned positions (config.model.max_length). Reduce the "
        f"{'lengths' if config.model.kind.is_decoder_only else 'length'} of the data to {most - taken}, or the "
        "adapter's length."
      )
