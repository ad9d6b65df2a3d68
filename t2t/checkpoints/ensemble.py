"""Several checkpoints as one model that predicts with the mean of their probabilities."""

from collections.abc import Sequence

from flax import nnx
import jax

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.models import adapters as adapters_lib
from t2t.models import ensemble
from t2t.param_tree import Params


def check(sources: Sequence[pretrained.Source]) -> None:
  """Checks that checkpoints predict the same answers to the same inputs; uses no device.

  Sizes of the models may differ.

  Args:
    sources: at least one.

  Raises:
    UserError: architecture, vocabulary, heads or the format of prompts differ, or a model has task-specific parameters.
  """
  from t2t.data.vocabularies import vocab_checkpoint

  first, *others = sources
  for source in sources:
    if len(adapters_lib.tasks(source.adapters)) > 1:
      raise UserError(
        f"--checkpoint {source.name} has separate parameters for each task, which an ensemble does not select. Give "
        "one checkpoint."
      )
  vocabulary = pretrained.vocabulary(first)
  for source in others:
    pair = f"--checkpoint {first.name},{source.name}"
    for fact, read in _FACTS.items():
      here, there = read(first), read(source)
      if here != there:
        raise UserError(f"{pair}: {fact} is {here} and {there}. Give checkpoints with the same {fact}.")
    if text := vocab_checkpoint.difference(vocabulary, pretrained.vocabulary(source)):
      raise UserError(f"{pair}: the vocabularies differ ({text}). Give checkpoints with one vocabulary.")


_FACTS = {
  "architecture": lambda source: source.model.architecture,
  "decoder": lambda source: source.model.decoder or source.model.kind.decoder,
  "vocabulary size": lambda source: source.model.vocab_size,
  "dtype": lambda source: source.model.dtype,
  "number of learned positions": lambda source: source.asked.most_positions,
  "set of heads": lambda source: [(head.name, head.kind, head.num_classes, head.labels) for head in source.model.heads],
  "use of heads": pretrained.answers_by_heads,
  "format of prompts": lambda source: (pretrained.ends_prompts(source)[0], pretrained.reads_causally(source)),
}


def abstract(sources: Sequence[pretrained.Source], mesh: jax.sharding.Mesh) -> pretrained.PretrainedModel:
  """Returns the ensemble with shapes and shardings in place of its parameters; see `pretrained.abstract`.

  Its config is that of the first model.
  """
  return _joined([pretrained.abstract(source, mesh) for source in sources])


def load(sources: Sequence[pretrained.Source], mesh: jax.sharding.Mesh) -> pretrained.PretrainedModel:
  """Loads the ensemble of `abstract`; all members are in the devices' memory."""
  return _joined([pretrained.load(source, mesh) for source in sources])


def _joined(models: Sequence[pretrained.PretrainedModel]) -> pretrained.PretrainedModel:
  if len(models) == 1:
    return models[0]
  # The structure needs no arrays, and nnx.merge takes shapes as well.
  shapes = [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), model.params) for model in models]
  members = [nnx.merge(model.graphdef, x) for model, x in zip(models, shapes, strict=True)]
  graphdef, _ = nnx.split(ensemble.EnsembleModel(members), graph=False)
  params: Params = {ensemble.member_name(number): model.params for number, model in enumerate(models)}
  return pretrained.PretrainedModel(models[0].config, graphdef, params)
