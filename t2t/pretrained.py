"""A checkpoint as a model to be used: for evaluation, for writing text, and as where fine-tuning starts."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from etils import epath
from flax import nnx
import jax
from ml_collections import ConfigDict

from t2t import UserError, checkpoint, sharding
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.optimizers import Params


@dataclasses.dataclass(frozen=True)
class Source:
  """What a checkpoint says of itself.

  path: its folder.
  model: the shape of its model.
  run: the config that it was trained with, {section: {key: value}}.
  vocabulary: the folder of its vocabulary, "" if it was not saved beside it.
  """

  path: epath.Path
  model: TransformerConfig
  run: Mapping[str, Mapping[str, Any]]
  vocabulary: str


@dataclasses.dataclass(frozen=True)
class Model:
  """A model with its parameters on the mesh: `nnx.merge(graphdef, params)`."""

  config: TransformerConfig
  graphdef: nnx.GraphDef
  params: Params


def find(path: str, *, where: str = "--checkpoint ") -> Source:
  """Reads what a checkpoint says of itself; no device is needed.

  Args:
    path: a workdir that t2t trained in, or one of its checkpoints.
    where: what the user named it with, for messages.

  Raises:
    UserError: there is none, or it is another version's.
  """
  folder = checkpoint.find(path, where=where)
  run = checkpoint.read_config(folder)
  known = {field.name for field in dataclasses.fields(TransformerConfig)}
  unknown = sorted(set(run["model"]) - known)
  if unknown:
    raise UserError(
      f"{where}{path}: its model has {unknown[0]!r}, which this version of t2t does not know; upgrade t2t"
    )
  return Source(folder, TransformerConfig(**run["model"]), run, _vocabulary(folder))


def _vocabulary(folder: epath.Path) -> str:
  # WORKDIR/checkpoints/STEP; or the folder of a checkpoint that was copied together with its vocabulary.
  for parent in (folder, folder.parent.parent):
    if (parent / checkpoint.VOCABULARY).exists():
      return str(parent / checkpoint.VOCABULARY)
  return ""


def adopt(config: ConfigDict, source: Source) -> None:
  """Makes the checkpoint's model and vocabulary those of `config`, which keeps its rate of dropout.

  Inputs are at most as long as the positions that the model has learned.
  """
  from t2t.data import vocabularies

  config.model.update(dataclasses.asdict(source.model) | {"dropout_rate": config.model.dropout_rate})
  if source.model.most_positions:
    # A decoder alone has the answer in the same row; an encoder alone a short one, [CLS] and [SEP].
    others = {"encoder_decoder": 0, "decoder_only": config.data.targets_length + 1, "encoder_only": 32}
    room = source.model.most_positions - others[source.model.architecture]
    config.data.inputs_length = max(1, min(config.data.inputs_length, room))
  if source.vocabulary:
    config.data.vocabulary = source.vocabulary
    config.data.extra_ids = vocabularies.saved_extra_ids(epath.Path(source.vocabulary))


def vocabulary(source: Source):
  """The seqio vocabulary that a checkpoint was trained with: the one saved beside it, or else what its config names.

  Raises:
    UserError: it cannot be found.
  """
  from t2t.data import pipeline, vocabularies

  if source.vocabulary:
    folder = epath.Path(source.vocabulary)
    return vocabularies.load(source.vocabulary, extra_ids=vocabularies.saved_extra_ids(folder))
  known = {field.name for field in dataclasses.fields(pipeline.DataConfig)}
  return pipeline.vocabulary(pipeline.DataConfig(**{k: v for k, v in source.run["data"].items() if k in known}))


def abstract(source: Source, mesh: jax.sharding.Mesh) -> Model:
  """The model with the shapes of its parameters, each with its sharding, in their place.

  Without an accelerator it computes in float32, which a CPU does faster than bfloat16.

  Raises:
    UserError: the mesh does not divide a parameter.
  """
  on_cpu = mesh.devices.flat[0].platform == "cpu"
  config = dataclasses.replace(source.model, dtype="float32" if on_cpu else source.model.dtype, dropout_rate=0.0)
  graphdef, state = nnx.split(
    jax.eval_shape(lambda key: transformer.build(config, nnx.Rngs(key)), jax.random.key(0)), graph=False
  )
  place = lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
  params = jax.tree.map(place, nnx.to_pure_dict(state), sharding.param_shardings(state, mesh))
  return Model(config, graphdef, params)


def load(source: Source, mesh: jax.sharding.Mesh) -> Model:
  """`abstract` with the parameters themselves, each array read directly into its shards.

  Raises:
    UserError: as there, or the checkpoint has other arrays than its config says.
  """
  model = abstract(source, mesh)
  return dataclasses.replace(model, params=checkpoint.restore_params(source.path, model.params))
