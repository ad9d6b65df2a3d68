"""A checkpoint as a model to be used: for evaluation, for writing text, and as where fine-tuning starts.

It is one of t2t's own, or a folder of Hugging Face's or T5X's, which is converted in memory.
"""

from collections.abc import Iterable, Mapping
import dataclasses
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
from t2t.storage import gcs, hub

if typing.TYPE_CHECKING:
  from t2t.convert.lazy_tensors import Foreign


@dataclasses.dataclass(frozen=True)
class Source:
  """What a checkpoint says of itself.

  path: its folder.
  model: the shape of its model.
  run: the config that it was trained with, {section: {key: value}}; of one that t2t did not train what is known of it.
  vocabulary: its vocabulary, as `vocabularies.load` takes it; "" if there is none beside it.
  foreign: where its parameters are, if they are not in t2t's format.
  adapters: what its model was adapted by; whoever reads its parameters finds that merged into them, if it can be.
  base: what of its parameters lies in another checkpoint; None: nothing.
  part: where its model is among the parameters that were trained together; "" where it is all of them.
  keeps: whether what its model was adapted by stays beside the parameters, though it could be merged into them.
  task: the one that its model is asked for, if it tells tasks apart; "": none is chosen, see `select_task`.
  prefix_task: the one of its tasks whose prefix stands in front of each input; "": of the only one.
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

  @property
  def prefix(self) -> str:
    """What paths of the model's parameters begin with where they were saved."""
    return f"{self.part}/" if self.part else ""

  @property
  def merged(self) -> adapters_lib.Adapters:
    """Those of the adapters that nobody sees who reads the parameters."""
    return {} if self.keeps else adapters_lib.mergeable(self.adapters)

  @property
  def tasks(self) -> tuple[str, ...]:
    """Those that one is to be chosen of, before its model is asked anything."""
    known = adapters_lib.tasks(self.adapters)
    return known if len(known) > 1 and not self.task else ()

  @property
  def asked(self) -> TransformerConfig:
    """The shape of its model for those who ask it something, see `adapters_lib.as_asked`."""
    return adapters_lib.as_asked(self.model, self.adapters)

  @property
  def extra_ids(self) -> int:
    """Sentinels behind the vocabulary's own ids."""
    from t2t.data import vocabularies

    if self.foreign is not None:
      return self.foreign.extra_ids
    extra_ids: Any = vocabularies.saved_extra_ids(epath.Path(self.vocabulary))
    return extra_ids


@dataclasses.dataclass(frozen=True)
class PretrainedModel:
  """A model with its parameters on the mesh: `nnx.merge(graphdef, params)`; its shape is `Source.asked`."""

  config: TransformerConfig
  graphdef: nnx.GraphDef
  params: Params


def read_source(path: str, *, where: str = "--checkpoint ") -> Source:
  """Reads what a checkpoint says of itself; no device is needed.

  Args:
    path: a workdir that t2t trained in, one of its checkpoints, or a checkpoint of Hugging Face's or T5X's.
    where: what the user named it with, for messages.

  Raises:
    UserError: there is none, it is another version's, or it cannot be converted.
  """
  from t2t import convert

  gcs.check(path, where=where)
  hub.check(path, where=where)
  if convert.kind_of(path) != "t2t":
    return of_foreign(convert.open_foreign(path, where=where))
  folder = restore.checkpoint_folder(path, where=where)
  if (folder / restore.FISHER).exists():
    raise UserError(f"{where}{path}: is Fisher information, and no model; give it as config.optimizer.fisher")
  run: dict[str, Any] = restore.read_config(folder)
  known = {field.name for field in dataclasses.fields(TransformerConfig)}
  unknown = sorted(set(run["model"]) - known)
  if unknown:
    raise UserError(
      f"{where}{path}: its model has {unknown[0]!r}, which this version of t2t does not know; upgrade t2t"
    )
  adapters = {name: adapters_lib.ADAPTERS[name].config(**run[name]) for name in adapters_lib.ADAPTERS if name in run}
  name = run.get("train", {}).get("loss", "cross_entropy")  # the only one, before they had names
  part = losses.LOSSES[name].part if name in losses.LOSSES else ""
  # The kernel that was asked for is one of the chips it was trained on, and parameters are not quantized: who reads
  # them needs neither.
  settings: dict[str, Any] = {**run["model"], "attention_kernel": "", "attention_block": 0, "quantization": ""}
  model = TransformerConfig(**settings)
  base = restore.read_base(folder)
  return Source(folder, model, run, _vocabulary(folder), adapters=adapters, base=base, part=part)


def of_foreign(foreign: "Foreign") -> Source:
  """What a checkpoint of Hugging Face's or T5X's says of itself."""
  lengths = {"inputs_length": 512, "targets_length": 512} | dict(foreign.lengths)
  data: dict[str, Any] = lengths | {"vocabulary": foreign.vocabulary, "extra_ids": foreign.extra_ids}
  if foreign.table:
    data["table"] = dict(foreign.table)
  run = {"model": dataclasses.asdict(foreign.model), "data": data}
  return Source(foreign.path, foreign.model, run, foreign.vocabulary, foreign)


def _vocabulary(folder: epath.Path) -> str:
  # WORKDIR/checkpoints/STEP; or the folder of a checkpoint that was copied together with its vocabulary.
  for parent in (folder, folder.parent.parent):
    if (parent / manager.VOCABULARY).exists():
      return str(parent / manager.VOCABULARY)
  return ""


def adopt(config: ConfigDict, source: Source) -> None:
  """Makes the checkpoint's model and vocabulary those of `config`, which keeps its own dropout, kernel, bits and heads.

  Inputs are at most as long as the positions that the model has learned.
  """
  kept_fields = {
    name: config.model[name] for name in ("dropout_rate", "attention_kernel", "attention_block", "quantization")
  }
  kept_fields["heads"] = config.model.heads or source.model.heads
  config.model.update(dataclasses.asdict(source.model) | kept_fields)
  if most := source.asked.most_positions:
    # A decoder alone has the answer in the same row; an encoder alone a short one, [CLS] and [SEP].
    reserved = {"encoder_decoder": 0, "decoder_only": config.data.targets_length + 1, "encoder_only": 32}
    room = most - reserved[source.model.architecture]
    if config.data.inputs_length:  # else the data decides
      config.data.inputs_length = max(1, min(config.data.inputs_length, room))
  if source.vocabulary:
    config.data.vocabulary = source.vocabulary
    config.data.extra_ids = source.extra_ids


def vocabulary(source: Source) -> Vocabulary:
  """The seqio vocabulary that a checkpoint was trained with: the one saved beside it, or else what its config names.

  Raises:
    UserError: it cannot be found, or only by running code that nobody asked for.
  """
  from t2t.data import pipeline, run_sources, vocabularies

  if source.vocabulary:
    return vocabularies.load(source.vocabulary, extra_ids=source.extra_ids)
  known = {field.name for field in dataclasses.fields(DataConfig)}
  modules, untrusted = task_modules(source)
  values: dict[str, Any] = {key: value for key, value in source.run["data"].items() if key in known}
  data = DataConfig(**values | {"task_modules": modules})
  if not (data.vocabulary or data.is_named):
    raise UserError(
      f"{source.path}: there is no vocabulary beside this checkpoint; convert it again with one:"
      " t2t convert --from CHECKPOINT --to t2t OUT --vocabulary FILE, or t2t.load(..., vocabulary=FILE) in Python"
    )
  try:
    return pipeline.vocabulary(data)
  except UserError as error:
    if not untrusted:
      raise
    raise UserError(f"{source.path}: its vocabulary is that of {run_sources.of(data).title}; {untrusted}") from error


def trust(modules: str) -> None:
  """Imports what the user asked for, comma-separated: from now on a checkpoint may name it, too.

  Raises:
    UserError: it cannot be imported.
  """
  if modules:
    from t2t.data import registry

    for module in modules.split(","):
      registry.load(module, where="--task_modules")


def task_modules(source: Source) -> tuple[tuple[str, ...], str]:
  """The modules of a checkpoint's tasks that may be imported, and why others may not, "" where there are none."""
  from t2t.data import registry

  data: Any = source.run["data"]
  modules = tuple(data.get("task_modules", ()))
  why = registry.why_untrusted(modules)
  return tuple(filter(registry.is_trusted, modules)), f"{why} (of eval: --config.data.task_modules)" if why else ""


def trained_tasks(source: Source) -> list[typing.Any]:
  """Returns the registered seqio tasks that a model was fine-tuned on, without objectives and untrusted code's."""
  from t2t.data import objectives, task_resolution

  data: Any = source.run["data"]
  mixture = data.get("mixture", "")
  if not mixture or data.get("files") or data.get("sources") or data.get("table"):
    return []
  try:
    registered = task_resolution.named(mixture, modules=task_modules(source)[0])
  except UserError:
    return []
  return [task for task in task_resolution.tasks_of(registered) if task.metric_fns and not objectives.of(task)]


def answers_by_heads(source: Source) -> bool:
  """Whether the model was trained to answer by its heads."""
  if source.foreign is not None or not source.model.vocabulary_head:
    # Where tokens have logits, its heads are those of pre-training (BERT's NSP), and no task's.
    return not source.model.vocabulary_head
  train: Any = source.run.get("train", {})
  return losses.answered_by_heads(train.get("loss", ""))


def predicts_tokens(source: Source) -> bool:
  """Whether the model was trained to predict tokens, perhaps beside what its heads answer."""
  return source.model.vocabulary_head and source.run.get("train", {}).get("loss", "") != "heads"


def ends_prompts(source: Source) -> tuple[bool | None, str]:
  """Whether a decoder alone was trained with EOS behind what it is given, and what says so; None: nothing does.

  Pre-training objectives end the inputs, and so do prefix_lm's; behind those of text-to-text tasks, and in text that is
  simply continued, the next token follows at once.
  """
  from t2t.data import objectives, task_resolution

  data: Any = source.run["data"]
  if data.get("sources"):  # each as if it were all that was read
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
    return None, "its checkpoint does not say what it was trained on"
  modules, untrusted = task_modules(source)
  try:
    registered = task_resolution.named(mixture, modules=modules)
  except UserError as error:
    return None, untrusted or str(error)
  ends = task_resolution.ends_inputs(registered, "decoder_only")
  return ends, f"config.data.mixture={mixture}" + (" has tasks with EOS and tasks without" if ends is None else "")


def reads_causally(source: Source) -> bool:
  """Whether prompts are read from left to right by a model that can read both ways: if none was given it to read so.

  GPT-BERT reads hidden tokens both ways, and continues text from left to right.
  """
  from t2t.data import objectives, task_resolution

  data: Any = source.run["data"]
  if not source.model.bidirectional_prefix or source.foreign is not None:
    return False
  names: set[str] = set()
  for source_data in data.get("sources", {}).values() or [data]:
    if not source_data.get("files"):
      try:
        named_objectives = objectives.of(
          task_resolution.named(source_data.get("mixture", ""), modules=task_modules(source)[0])
        )
      except UserError:
        return False
      if not named_objectives:
        return False
      names |= named_objectives
    else:
      names.add(source_data.get("objective") or data["objective"])
  return names <= {*feature_spec.WITHOUT_INPUTS, *feature_spec.WITH_NEXT_TOKENS}


def abstract(source: Source, mesh: jax.sharding.Mesh) -> PretrainedModel:
  """The model with the shapes of its parameters, each with its sharding, in their place.

  It computes as `TransformerConfig.for_inference` says.

  Raises:
    UserError: the mesh does not divide a parameter.
  """
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  config = source.model.for_inference(on_cpu=on_cpu)

  def make(key: jax.Array) -> nnx.Module:
    rngs = nnx.Rngs(key)
    unmerged = {name: x for name, x in source.adapters.items() if name not in source.merged}
    return adapters_lib.adapt(transformer.build(config, rngs), unmerged, rngs)

  graphdef, state = nnx.split(jax.eval_shape(make, jax.random.key(0)), graph=False)
  with_sharding = lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
  params = jax.tree.map(with_sharding, nnx.to_pure_dict(state), sharding.param_shardings(state, mesh))
  return PretrainedModel(adapters_lib.as_asked(config, source.adapters), graphdef, params)


def load(source: Source, mesh: jax.sharding.Mesh) -> PretrainedModel:
  """`abstract` with the parameters themselves, each array read directly into its shards; of one task, if it is chosen.

  Raises:
    UserError: as there, or the checkpoint has other arrays than its config says.
  """
  model = abstract(source, mesh)
  return dataclasses.replace(model, params=of_task(source, load_params(source, model.params)))


def of_task(source: Source, params: Params) -> Params:
  """Those of the one task that is chosen, if any is: the model of all has the same structure."""
  if not source.task:
    return params
  number = adapters_lib.number_of(source.task, source.adapters, where=str(source.path))
  return adapters_lib.of_task(params, source.adapters, number)


def load_params(source: Source, params: Params) -> Params:
  """The parameters of a checkpoint; what its model was adapted by is merged into them, or among them.

  Args:
    source: the checkpoint.
    params: nested dict of `jax.ShapeDtypeStruct` with shardings.

  Raises:
    UserError: the checkpoint's parameters are not these.
  """
  if source.foreign is None and not (source.adapters or source.part or source.base):
    return restore.restore_params(source.path, params)
  from t2t.convert import lazy_tensors

  if source.foreign is not None:
    _tell(source)
    return lazy_tensors.load(source.foreign, params)
  wanted: Any = flatten(params)
  there = {path: shape for path, shape in shapes(source).items() if path in wanted or not path.startswith("heads/")}
  lazy_tensors.compare(str(source.path), there, {path: x.shape for path, x in wanted.items()})
  return unflatten(read(source, {path: (path, x) for path, x in wanted.items()}))


def shapes(source: Source, heads_of: Iterable[str] = ()) -> dict[str, tuple[int, ...]]:
  """Path and shape of each parameter of a checkpoint's model, without what is merged into them.

  Args:
    source: the checkpoint.
    heads_of: paths in another model: a class head there finds the checkpoint's pooler.
  """
  if source.foreign is None:
    param_shapes = {_base(source, path): shape for path, shape in _saved_shapes(source).items()}
    return {path: shape for path, shape in param_shapes.items() if path is not None}
  from t2t.convert import lazy_tensors

  param_shapes = {path: tensor.shape for path, tensor in source.foreign.tensors.items()}
  return param_shapes | lazy_tensors.pooler_shapes(source.foreign, heads_of)


def _base(source: Source, path: str) -> str | None:
  """Where a saved parameter is in the checkpoint's model; None: it is not of the model, or is merged into others."""
  prefix = source.prefix
  return adapters_lib.base_path(path.removeprefix(prefix), source.merged) if path.startswith(prefix) else None


def _saved_shapes(source: Source) -> dict[str, tuple[int, ...]]:
  """Path and shape of each parameter as it was saved, or lies in the base."""
  below = () if source.base is None else source.base.all_bases
  entries = {path: entry.shape for base in below for path, entry in base.entries.items()}
  return restore.param_shapes(source.path) | entries


def base_of(source: Source, base: base_model_ref.Base | None = None) -> Source:
  """What a checkpoint of an adapter lies on top of, or one of its `Base.all_bases`.

  Raises:
    UserError: it is not there any more, or cannot be read.
  """
  base, workdir = base or source.base, source.path.parent.parent
  assert base is not None
  return open_base(base, base.locate(workdir), where=f"{source.path}: its base: ")


def check_may_be_base(source: Source, *, where: str) -> None:
  """Refuses what no digest tells: what is merged when it is read has not the same bits on every mesh and machine.

  Args:
    source: what an adapter is to lie on top of.
    where: what the user named it with, for messages.

  Raises:
    UserError: its model has an adapter that is merged; says what to do.
  """
  if source.merged:
    raise UserError(
      f"{where}: its model has what config.{'/'.join(source.merged)} added, and what is merged anew by whoever reads it"
      f" is not everywhere the same to the bit; make it a model by itself, `t2t adapt merge {source.path} --output"
      " FOLDER`, and give that"
    )


def open_base(base: base_model_ref.Base, path: str, *, where: str) -> Source:
  """A base that lies at `path`, read as it was when an adapter was put on top of it; see `read_source`."""
  return dataclasses.replace(read_source(path, where=where), part=base.part)


def read_base(
  base: base_model_ref.Base, source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]
) -> dict[str, jax.Array]:
  """Some parameters of what an adapter lies on top of, compared with what they were.

  Args:
    base: what they were.
    source: where they are; see `open_base`.
    wanted: name -> (path in the adapted model, its shape with a sharding); of another length than there a dimension is
      cut off, or filled up, and the parameter is not compared.

  Raises:
    UserError: one has another digest.
  """
  params = read(source, {name: (base.entries[path].name, x) for name, (path, x) in wanted.items()})
  complete = {path: params[name] for name, (path, x) in wanted.items() if x.shape == base.entries[path].shape}
  base.check(base_model_ref.digests(complete), str(source.path))
  return params


def _read_saved(source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """`restore.read_params`, of the base what lies there."""
  paths = source.base.paths if source.base is not None else ()
  params = restore.read_params(source.path, {name: target for name, target in wanted.items() if target[0] not in paths})
  for base in source.base.all_bases if source.base is not None else ():
    below = {name: target for name, target in wanted.items() if target[0] in base.entries}
    params |= read_base(base, base_of(source, base), below) if below else {}
  return params


def read(source: Source, wanted: Mapping[str, tuple[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.Array]:
  """Some parameters of a checkpoint, each directly in its shards; what its model was adapted by is merged into them.

  Args:
    source: the checkpoint.
    wanted: name -> (path of the parameter in the checkpoint, its shape with a sharding). Of another length than there,
      a dimension is cut off, or filled up with zeros.

  Returns:
    Name -> array.

  Raises:
    UserError: a matrix that was adapted is asked for in another shape.
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
        f"{source.path}: {path} was adapted, and is asked for in another shape; merge it first:"
        f" t2t convert --from t2t {source.path} --to hf FOLDER"
      )
  structs: dict[str, Any] = dict(wanted.values())
  everywhere = {path: sharding.replicated(x.sharding.mesh) for path, x in structs.items()}
  narrow = {
    factor: (factor, jax.ShapeDtypeStruct(saved[factor], jnp.float32, sharding=everywhere[path]))
    for path in everywhere
    for factor in added.get(path, [])
  }
  # Two names that are asked for may be of one path, and neither be that path: each is read, and merged by itself.
  wide = {f"{name}:": (places[path], x) for name, (path, x) in wanted.items()}
  arrays = _read_saved(source, wide | narrow)

  def merge(wide: dict[str, jax.Array], narrow: dict[str, jax.Array]) -> dict[str, jax.Array]:
    def merged_param(name: str, path: str) -> jax.Array:
      parts = {places[path]: wide[f"{name}:"]} | {factor: narrow[factor] for factor in added.get(path, [])}
      return adapters_lib.merge({factor.removeprefix(prefix): x for factor, x in parts.items()}, source.merged)[path]

    return {name: merged_param(name, path) for name, (path, _) in wanted.items()}

  # What comes out takes the memory of what goes in.
  merged = jax.jit(merge, donate_argnums=0, out_shardings={name: x.sharding for name, (_, x) in wanted.items()})
  return merged({name: arrays[name] for name in wide}, {name: arrays[name] for name in narrow})


def _tell(source: Source) -> None:
  if jax.process_index() == 0:
    assert source.foreign is not None
    for note in source.foreign.notes:
      print(f"{source.path}: {note}", file=sys.stderr)
