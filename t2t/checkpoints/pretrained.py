"""A checkpoint as a model for evaluation, inference, or the start of fine-tuning.

It has t2t's own format, or the format of Hugging Face or T5X, which is converted in memory.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import sys
import typing
from typing import Any

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from t2t import UserError, feature_spec, losses, sharding
from t2t.checkpoints import base_model_ref, manager, restore
from t2t.configuration.schema import DataConfig
from t2t.models import adapters as adapters_lib
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params, Vocabulary, flatten, unflatten
from t2t.runtime import hosts, lazy_table
from t2t.storage import gcs, hub

if typing.TYPE_CHECKING:
  from t2t.convert.lazy_tensors import Foreign

WEIGHTS = (*restore.WEIGHTS, "int8")  # values of --weights of commands that only read


@dataclasses.dataclass(frozen=True)
class Source:
  """Description of a checkpoint, without arrays.

  path: its folder.
  model: config of its model.
  run: the training config, {section: {key: value}}; for a checkpoint of another library the known part.
  vocabulary: as `vocabularies.load` takes it; "" if there is none beside the checkpoint.
  foreign: lazy parameters, if their format is not t2t's.
  adapters: adapters of its model; readers get parameters with merged adapters, if merging is possible.
  base: reference to parameters in another checkpoint; None: all are in this one.
  part: path of its model among jointly trained parameters; "" if it is all of them.
  keeps: whether adapters stay unmerged although merging is possible.
  task: selected task of a model with task-specific parameters; "": none, see `select_task`.
  prefix_task: task whose prefix is added to each input; "": that of the only task.
  weights: average, trained, or "", which is the training's config.eval.average; see `restore.trained_keys`.
  int8: whether matrices are rounded when parameters are read, see `int8_matrix.weight_only`.
  """

  path: epath.Path
  model: TransformerConfig
  run: Mapping[str, Mapping[str, object]]
  vocabulary: str
  foreign: "Foreign | None" = None
  adapters: adapters_lib.Adapters = dataclasses.field(default_factory=dict)
  base: base_model_ref.Base | None = None
  part: str = ""
  keeps: bool = False
  task: str = ""
  prefix_task: str = ""
  weights: str = ""
  int8: bool = False

  @property
  def name(self) -> str:
    """Path for messages and outputs: the one in its store, if `path` is a local copy."""
    return gcs.origin(str(self.path))

  @property
  def read_as(self) -> dict[str, str]:
    """Entry `weights` of results: the value of --weights; none by default."""
    value = "int8" if self.int8 else self.weights
    return {"weights": value} if value else {}

  @property
  def prefix(self) -> str:
    """Path prefix of the model's parameters in the checkpoint."""
    return f"{self.part}/" if self.part else ""

  @property
  def merged(self) -> adapters_lib.Adapters:
    """Adapters that are merged when parameters are read."""
    return {} if self.keeps else adapters_lib.mergeable(self.adapters)

  @property
  def tasks(self) -> tuple[str, ...]:
    """Tasks to choose from before inference; empty if one is chosen or there is only one."""
    known = adapters_lib.tasks(self.adapters)
    return known if len(known) > 1 and not self.task else ()

  @property
  def asked(self) -> TransformerConfig:
    """Config of its model for inference, see `adapters_lib.as_asked`."""
    return adapters_lib.as_asked(self.model, self.adapters)

  @property
  def extra_ids(self) -> int:
    """Number of sentinels after the vocabulary's own ids."""
    from t2t.data import vocabularies

    if self.foreign is not None:
      return self.foreign.extra_ids
    extra_ids: Any = vocabularies.saved_extra_ids(epath.Path(self.vocabulary))
    return extra_ids


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
  """A model with parameters on the mesh: `nnx.merge(graphdef, params)`; its config is `Source.asked`."""

  config: TransformerConfig
  graphdef: nnx.GraphDef
  params: Params


def read_source(path: str, *, where: str = "--checkpoint ", weights: str = "") -> Source:
  """Reads the description of a checkpoint; needs no device.

  Args:
    path: a t2t workdir, one of its checkpoints, or a checkpoint of Hugging Face or T5X.
    where: the option or key of the path, for messages.
    weights: see `Source`; "int8" sets its `int8`.

  Raises:
    UserError: there is none, another version wrote it, it cannot be converted, or it has no average.
  """
  from t2t import convert

  if weights == "int8":
    return dataclasses.replace(read_source(path, where=where), int8=True)
  path = gcs.fetched(path, where=where)
  hub.check(path, where=where)
  if convert.kind_of(path) != "t2t":
    if weights:
      raise UserError(
        f"--weights {weights}: {path} is not a checkpoint of t2t and has one set of weights. Leave it out."
      )
    return of_foreign(convert.open_foreign(path, where=where))
  folder = restore.checkpoint_folder(path, where=where)
  if (folder / restore.FISHER).exists():
    raise UserError(
      f"{where}{path} is Fisher information, not a model. Give a model, or give this path as "
      f"--config.optimizer.fisher={path}."
    )
  run: dict[str, Any] = restore.read_config(folder)
  known = {field.name for field in dataclasses.fields(TransformerConfig)}
  unknown = sorted(set(run["model"]) - known)
  if unknown:
    raise UserError(
      f"{where}{path}: the checkpoint's config.model has the key {unknown[0]!r}, which this t2t does not know. "
      "Upgrade t2t."
    )
  adapters = {name: adapters_lib.ADAPTERS[name].config(**run[name]) for name in adapters_lib.ADAPTERS if name in run}
  part = losses.part_of(run)
  # The saved kernel suits the training devices, and parameters are not quantized: readers need neither.
  settings: dict[str, Any] = {**run["model"], "attention_kernel": "", "attention_block": 0, "quantization": ""}
  model = TransformerConfig(**settings)
  base = restore.read_base(folder)
  if weights:
    from t2t.checkpoints import averaged_weights

    averaged_weights.check(folder, run, weights)
  return Source(folder, model, run, _vocabulary(folder), adapters=adapters, base=base, part=part, weights=weights)


def of_foreign(foreign: "Foreign") -> Source:
  """Returns the description of a checkpoint of Hugging Face or T5X."""
  lengths = {"inputs_length": 512, "targets_length": 512} | dict(foreign.lengths)
  data: dict[str, Any] = lengths | {"vocabulary": foreign.vocabulary, "extra_ids": foreign.extra_ids}
  if foreign.table:
    data["table"] = dict(foreign.table)
  run = {"model": dataclasses.asdict(foreign.model), "data": data}
  return Source(foreign.path, foreign.model, run, foreign.vocabulary, foreign)


def _vocabulary(folder: epath.Path) -> str:
  # Either WORKDIR/checkpoints/STEP, or a checkpoint's folder that was copied together with its vocabulary.
  for parent in (folder, folder.parent.parent):
    if (parent / manager.VOCABULARY).exists():
      return str(parent / manager.VOCABULARY)
  return ""


def adopt(config: ConfigDict, source: Source) -> None:
  """Copies the checkpoint's model and vocabulary to `config`, which keeps its own dropout, heads and computation.

  Limits the inputs length to the learned positions of the model.
  """
  kept = ("dropout_rate", "layer_drop", "attention_kernel", "attention_block", "quantization")
  kept_fields = {name: config.model[name] for name in (*kept, "pipeline_microbatches", "pipeline_rounds")}
  for name in ("heads", "fake_quantization"):
    kept_fields[name] = config.model[name] or getattr(source.model, name)
  config.model.update(dataclasses.asdict(source.model) | kept_fields)
  if most := source.asked.most_positions:
    # A decoder-only model has the answer in the same row; an encoder a short one, [CLS] and [SEP].
    reserved = {"encoder_decoder": 0, "decoder_only": config.data.targets_length + 1, "encoder_only": 32}
    room = most - reserved[source.model.architecture]
    if config.data.inputs_length:  # 0: the data determines the length
      config.data.inputs_length = max(1, min(config.data.inputs_length, room))
  if source.vocabulary:
    config.data.vocabulary = gcs.origin(source.vocabulary)
    config.data.extra_ids = source.extra_ids


def vocabulary(source: Source) -> Vocabulary:
  """Returns the seqio vocabulary of a checkpoint: the one saved beside it, otherwise the one in its config.

  Raises:
    UserError: it is not found, or only by running untrusted code.
  """
  from t2t.data import vocabularies

  if source.vocabulary:
    return vocabularies.load(source.vocabulary, extra_ids=source.extra_ids)
  known = {field.name for field in dataclasses.fields(DataConfig)}
  modules, untrusted = task_modules(source)
  values: dict[str, Any] = {key: value for key, value in source.run["data"].items() if key in known}
  data = DataConfig(**values | {"task_modules": modules})
  if not (data.vocabulary or data.is_named):
    raise UserError(
      f"{source.name}: there is no vocabulary beside this checkpoint. Convert the checkpoint again with a vocabulary:"
      " `t2t convert --from CHECKPOINT --to t2t OUT --vocabulary FILE`. In Python, give t2t.load(..., vocabulary=FILE)."
    )
  if data.vocabulary:
    return vocabularies.load(data.vocabulary, extra_ids=data.extra_ids)
  from t2t.runtime import data_packages

  with data_packages.says_what_is_missing():
    from t2t.data import run_sources
  try:
    return run_sources.of(data).vocabulary()
  except UserError as error:
    if not untrusted:
      raise
    raise UserError(f"{source.name}: the vocabulary belongs to {run_sources.of(data).title}; {untrusted}") from error


def trust(modules: str) -> None:
  """Imports comma-separated modules that the user trusts; later, checkpoints may refer to them.

  Raises:
    UserError: a module cannot be imported.
  """
  if modules:
    from t2t.data import registry

    for module in modules.split(","):
      registry.load(module, where="--task_modules")


def task_modules(source: Source) -> tuple[tuple[str, ...], str]:
  """Returns the trusted modules of a checkpoint's tasks, and the reason why others may not be imported, or ""."""
  from t2t.data import registry

  data: Any = source.run["data"]
  modules = tuple(data.get("task_modules", ()))
  why = registry.why_untrusted(modules)
  return tuple(filter(registry.is_trusted, modules)), f"{why} (in t2t eval: --config.data.task_modules)" if why else ""


def trained_tasks(source: Source) -> list[typing.Any]:
  """Returns the registered seqio tasks of the fine-tuning, without pre-training objectives and untrusted modules."""
  from t2t.data import objectives

  data: Any = source.run["data"]
  mixture = data.get("mixture", "")
  if not mixture or data.get("files") or data.get("sources") or data.get("table"):
    return []
  if objectives.of_corpus_tasks(mixture, data.get("task_modules", ())) is not None:
    return []
  try:
    registered = _registered(source, mixture)
  except UserError:
    return []
  from t2t.data import task_resolution

  return [task for task in task_resolution.tasks_of(registered) if task.metric_fns and not objectives.of(task)]


def _registered(source: Source, mixture: str) -> Any:
  """Returns the seqio task or mixture of a checkpoint.

  Raises:
    UserError: it is unknown or in an untrusted module, or seqio is not installed, which is logged.
  """
  from t2t.runtime import data_packages

  try:
    with data_packages.says_what_is_missing():
      from t2t.data import task_resolution
  except data_packages.MissingPackage:
    _note_missing(f"{source.path}: trained on the task {mixture}, but seqio, which has its input format, is missing")
    raise
  return task_resolution.named(mixture, modules=task_modules(source)[0])


@functools.cache
def _note_missing(text: str) -> None:
  from t2t.runtime import versions

  hosts.log_once(f"{text}. Write the prefix of the task in the texts, or run `{versions.install_command('data')}`.")


def objectives_of(source: Source, mixture: str) -> set[str]:
  """Returns the pre-training objectives of a mixture; empty for tasks without an objective.

  Raises:
    UserError: see `_registered`.
  """
  from t2t.data import objectives

  data: Any = source.run["data"]
  known = objectives.of_corpus_tasks(mixture, data.get("task_modules", ()))
  return objectives.of(_registered(source, mixture)) if known is None else known


def answers_by_heads(source: Source) -> bool:
  """Returns whether the model was trained to predict with its heads."""
  if source.foreign is not None or not source.model.vocabulary_head:
    # Heads beside token logits belong to pre-training (BERT's NSP), not to a task.
    return not source.model.vocabulary_head
  train: Any = source.run.get("train", {})
  return losses.answered_by_heads(train.get("loss", ""))


def is_diffusion(source: Source) -> bool:
  """Returns whether the model was trained by masked diffusion."""
  train: Any = source.run.get("train", {})
  return source.foreign is None and train.get("loss", "") == "diffusion"


def predicts_tokens(source: Source) -> bool:
  """Returns whether the model was trained to predict tokens, possibly besides its heads."""
  train: Any = source.run.get("train", {})
  return source.model.vocabulary_head and losses.trains_tokens(train.get("loss", ""))


def ends_prompts(source: Source) -> tuple[bool | None, str]:
  """Returns whether a decoder-only model was trained with EOS after its inputs, and the reason; None: unknown.

  Pre-training objectives and prefix_lm end inputs with EOS; text-to-text tasks and plain language modeling do not.
  """
  from t2t.data import objectives

  data: Any = source.run["data"]
  if data.get("sources"):  # evaluate each source as if it were the only one
    sources = [
      {**data, "sources": {}, **{key: x for key, x in values.items() if x}} for values in data["sources"].values()
    ]
    answers = {
      ends_prompts(dataclasses.replace(source, run={**source.run, "data": source_data}))[0] for source_data in sources
    }
    named = f"config.data.sources ({', '.join(data['sources'])})"
    return (answers.pop(), named) if len(answers) == 1 else (None, f"{named} has sources with EOS and sources without")
  if data.get("files"):
    return objectives.ends_inputs(data["objective"]), f"config.data.objective={data['objective']}"
  mixture = data.get("mixture", "")
  if data.get("table"):
    return False, f"{DataConfig.described(data['table']['files'])} is a table"
  if not mixture:
    return None, "its checkpoint does not record its training data"
  named_objectives = objectives.of_corpus_tasks(mixture, data.get("task_modules", ()))
  if named_objectives is not None:
    answers = {objectives.ends_inputs(name) for name in named_objectives}
    ends = answers.pop() if len(answers) == 1 else None
  else:
    try:
      registered = _registered(source, mixture)
    except UserError as error:
      return None, task_modules(source)[1] or str(error)
    from t2t.data import task_resolution

    ends = task_resolution.ends_inputs(registered, "decoder_only")
  return ends, f"config.data.mixture={mixture}" + (" has tasks with EOS and tasks without" if ends is None else "")


def reads_causally(source: Source) -> bool:
  """Returns whether prompts are encoded causally by a bidirectional-prefix model, because training had no inputs.

  GPT-BERT attends to hidden tokens in both directions, and continues text from left to right.
  """
  data: Any = source.run["data"]
  if not source.model.bidirectional_prefix or source.foreign is not None:
    return False
  names: set[str] = set()
  for source_data in data.get("sources", {}).values() or [data]:
    if not source_data.get("files"):
      try:
        named_objectives = objectives_of(source, source_data.get("mixture", ""))
      except UserError:
        return False
      if not named_objectives:
        return False
      names |= named_objectives
    else:
      names.add(source_data.get("objective") or data["objective"])
  return names <= {*feature_spec.WITHOUT_INPUTS, *feature_spec.WITH_NEXT_TOKENS}


def abstract(source: Source, mesh: jax.sharding.Mesh) -> PretrainedModel:
  """Returns the model with shapes and shardings in place of its parameters.

  Computes with the settings of `TransformerConfig.for_inference`.

  Raises:
    UserError: the mesh does not divide a parameter.
  """
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  config = source.model.for_inference(on_cpu=on_cpu)

  def make(key: jax.Array) -> nnx.Module:
    rngs = nnx.Rngs(key)
    unmerged = {name: x for name, x in source.adapters.items() if name not in source.merged}
    model = adapters_lib.adapt(transformer.build(config, rngs), unmerged, rngs)
    if source.int8:
      return lazy_table.load("t2t.models.int8_matrix:weight_only")(model)
    is_int8 = on_cpu and source.foreign is not None and source.foreign.kind == "int8"
    return lazy_table.load("t2t.models.int8_matrix:with_integers")(model) if is_int8 else model

  graphdef, state = nnx.split(jax.eval_shape(make, jax.random.key(0)), graph=False)
  with_sharding = lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
  params = jax.tree.map(with_sharding, nnx.to_pure_dict(state), sharding.param_shardings(state, mesh))
  return PretrainedModel(adapters_lib.as_asked(config, source.adapters), graphdef, params)


def load(source: Source, mesh: jax.sharding.Mesh) -> PretrainedModel:
  """Loads the model of `abstract`, each array directly into its shards, and restricts it to the chosen task, if any.

  Raises:
    UserError: as there, or the checkpoint's arrays differ from its config.
  """
  model = abstract(source, mesh)
  return dataclasses.replace(model, params=of_task(source, load_params(source, model.params)))


def of_task(source: Source, params: Params) -> Params:
  """Returns the parameters of the chosen task, or all; the structure of the model is the same."""
  if not source.task:
    return params
  number = adapters_lib.number_of(source.task, source.adapters, where=source.name)
  return adapters_lib.of_task(params, source.adapters, number)


def load_params(source: Source, params: Params) -> Params:
  """Loads the parameters of a checkpoint, including adapters, merged or not.

  Args:
    source: the checkpoint.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings.

  Raises:
    UserError: the checkpoint has other parameters.
  """
  if source.int8:
    return lazy_table.load("t2t.checkpoints.int8_weights:load")(source, params)
  if source.foreign is None and not (source.adapters or source.part or source.base):
    return restore.restore_params(source.path, params, weights=source.weights)
  if source.foreign is not None:
    from t2t.convert import lazy_tensors

    _tell(source)
    foreign = source.foreign
    if foreign.kind == "int8":
      foreign = lazy_table.load("t2t.convert.int8:for_params")(foreign, flatten(params))
    return lazy_tensors.load(foreign, params)
  wanted: Any = flatten(params)
  check_has(source, wanted)
  return unflatten(read(source, {path: (path, x) for path, x in wanted.items()}))


def check_has(source: Source, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
  """Checks that a checkpoint has these parameters, by path, and no others but heads.

  Raises:
    UserError: it has not.
  """
  from t2t.convert import lazy_tensors

  of_source = shapes(source, heads_of=wanted)
  there = {path: shape for path, shape in of_source.items() if path in wanted or not path.startswith("heads/")}
  lazy_tensors.compare(source.name, there, {path: x.shape for path, x in wanted.items()})


def shapes(source: Source, heads_of: Iterable[str] = ()) -> dict[str, tuple[int, ...]]:
  """Returns path and shape of each parameter of a checkpoint's model, without parameters merged into others.

  Args:
    source: the checkpoint.
    heads_of: paths in another model, whose class heads may take the checkpoint's pooler.
  """
  if source.foreign is None:
    param_shapes = {_base(source, path): shape for path, shape in _saved_shapes(source).items()}
    return {path: shape for path, shape in param_shapes.items() if path is not None}
  from t2t.convert import lazy_tensors

  param_shapes = {path: tensor.shape for path, tensor in source.foreign.tensors.items()}
  return param_shapes | lazy_tensors.pooler_shapes(source.foreign, heads_of)


def _base(source: Source, path: str) -> str | None:
  """Returns the model's path of a saved parameter; None: it is outside the model, or is merged into others."""
  prefix = source.prefix
  return adapters_lib.base_path(path.removeprefix(prefix), source.merged) if path.startswith(prefix) else None


def _saved_shapes(source: Source) -> dict[str, tuple[int, ...]]:
  """Returns path and shape of each parameter, saved or in the base."""
  below = () if source.base is None else source.base.all_bases
  entries = {path: entry.shape for base in below for path, entry in base.entries.items()}
  return restore.param_shapes(source.path) | entries


def base_of(source: Source, base: base_model_ref.Base | None = None) -> Source:
  """Returns the base of an adapter's checkpoint, or one of its `Base.all_bases`.

  Raises:
    UserError: it no longer exists, or cannot be read.
  """
  base, workdir = base or source.base, source.path.parent.parent
  assert base is not None
  return open_base(base, base.locate(workdir), where=f"{source.name}: its base: ")


def check_may_be_base(source: Source, *, where: str) -> None:
  """Raises an error for a base that is merged when read, because its bits, and digests, depend on mesh and machine.

  Args:
    source: base of a new adapter.
    where: the option or key of its path, for messages.

  Raises:
    UserError: its model has an adapter that is merged.
  """
  if source.merged:
    raise UserError(
      f"{where}: the model has the adapter config.{'/'.join(source.merged)}, and its merged parameters depend on the "
      f"machine. Merge the adapter once with `t2t adapt merge {source.name} --output FOLDER`, and give FOLDER."
    )


def open_base(base: base_model_ref.Base, path: str, *, where: str) -> Source:
  """Opens a base at `path` as it was when the adapter was trained; see `read_source`."""
  return dataclasses.replace(read_source(path, where=where), part=base.part)


def read_base(
  base: base_model_ref.Base,
  source: Source,
  wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]],
  *,
  where: str = "",
) -> dict[str, jax.Array]:
  """Reads some parameters of an adapter's base and compares their digests.

  Args:
    base: reference with digests.
    source: the base; see `open_base`.
    wanted: name -> (path in the adapted model, its shape with a sharding); a dimension of another length is truncated
      or zero-padded, and the parameter is not compared.
    where: key and path of the base if it is frozen in a run without adapter, for messages.

  Raises:
    UserError: a digest differs.
  """
  params = read(source, {name: (base.entries[path].name, x) for name, (path, x) in wanted.items()})
  complete = {path: params[name] for name, (path, x) in wanted.items() if x.shape == base.entries[path].shape}
  than = {"than": "that the run was trained with"} if where else {}
  base.check(base_model_ref.digests(complete), where or source.name, **than)
  return params


def _read_saved(source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Reads saved parameters like `restore.read_params`, and parameters of the base from there."""
  paths = source.base.paths if source.base is not None else ()
  saved = {name: target for name, target in wanted.items() if target[0] not in paths}
  params = restore.read_params(source.path, saved, weights=source.weights)
  for base in source.base.all_bases if source.base is not None else ():
    below = {name: target for name, target in wanted.items() if target[0] in base.entries}
    params |= read_base(base, base_of(source, base), below) if below else {}
  return params


def read(source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Reads some parameters of a checkpoint, each directly into its shards, with merged adapters.

  Args:
    source: the checkpoint.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). A dimension of another length
      is truncated or zero-padded.

  Returns:
    Name -> array.

  Raises:
    UserError: an adapted matrix is requested in another shape.
  """
  if source.foreign is None:
    return _read_own(source, wanted)
  from t2t.convert import lazy_tensors

  _tell(source)
  return lazy_tensors.place_on_mesh(source.foreign, wanted)


def _read_own(source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  saved = _saved_shapes(source)
  prefix = source.prefix
  places = {_base(source, path): path for path in saved}
  if not source.merged:
    return _read_saved(source, {name: (places[path], x) for name, (path, x) in wanted.items()})
  added: dict[str, list[str]] = {}  # by the path of the parameter that they are merged into
  for path in saved:
    if path.startswith(prefix) and _base(source, path) is None:
      for base in adapters_lib.merged_into(path.removeprefix(prefix), source.merged):
        added.setdefault(base, []).append(path)
  for path, x in wanted.values():
    if added.get(path) and saved[places[path]] != x.shape:
      raise UserError(
        f"{source.name}: {path} has an adapter, so its shape {list(saved[places[path]])} cannot be changed to "
        f"{list(x.shape)}. Merge the adapter first: `t2t adapt merge {source.name} --output FOLDER`."
      )
  structs: dict[str, Any] = dict(wanted.values())
  everywhere = {path: sharding.replicated(x.sharding.mesh) for path, x in structs.items()}
  narrow = {
    factor: (factor, jax.ShapeDtypeStruct(saved[factor], jnp.float32, sharding=everywhere[path]))
    for path in everywhere
    for factor in added.get(path, [])
  }
  # Two requested names may share a path, so each is read and merged separately.
  wide = {f"{name}:": (places[path], x) for name, (path, x) in wanted.items()}
  arrays = _read_saved(source, wide | narrow)

  def merge(wide: dict[str, jax.Array], narrow: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def merged_param(name: str, path: str) -> jax.Array:
      parts = {places[path]: wide[f"{name}:"]} | {factor: narrow[factor] for factor in added.get(path, [])}
      return adapters_lib.merge({factor.removeprefix(prefix): x for factor, x in parts.items()}, source.merged)[path]

    return {name: merged_param(name, path) for name, (path, _) in wanted.items()}

  # The outputs reuse the memory of the inputs.
  merged = jax.jit(merge, donate_argnums=0, out_shardings={name: x.sharding for name, (_, x) in wanted.items()})
  return merged({name: arrays[name] for name in wide}, {name: arrays[name] for name in narrow})


def _tell(source: Source) -> None:
  if jax.process_index() == 0:
    assert source.foreign is not None
    for note in source.foreign.notes:
      print(f"{source.name}: {note}", file=sys.stderr)
