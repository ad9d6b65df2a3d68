"""Estimates the Fisher information of a checkpoint's parameters in one pass over examples."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json

import jax
from ml_collections import ConfigDict

from t2t import UserError, losses
from t2t.checkpoints import fisher_store, pretrained
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import override, saved_config
from t2t.configuration.schema import OPTIONAL, SOURCE_KEYS, Config
from t2t.models import adapters as adapters_lib
from t2t.models.architecture import Batch
from t2t.param_tree import Params
from t2t.runtime import progress
from t2t.training import fisher_information, mesh_selection, recipe

_READ = tuple(f"--config.data.{key}" for key in ("mixture=", "files=", "sources."))  # overrides that select the data


@dataclasses.dataclass(frozen=True)
class FisherInformation:
  """Result of a pass over examples.

  Attributes:
    diagonal: nested dict of float32, sharded as the parameters.
    params: of the checkpoint, sharded alike.
    examples: number of examples read.
    config: of the pass.
  """

  diagonal: Params
  params: Params
  examples: int
  config: Config

  def save(self, source: pretrained.Source, out: str, *, about: Mapping[str, object]) -> None:
    """Saves the result; see `fisher_store.save`."""
    config, about = json.loads(json.dumps(self.config.to_dict())), {"examples": self.examples, **about}
    fisher_store.save(self.diagonal, source, self.params, out, config=config, about=about)


def run_config(source: pretrained.Source, arguments: Sequence[str]) -> ConfigDict:
  """Returns the config of the pass: the data of the checkpoint's run or of the arguments, one example per row.

  Args:
    source: the checkpoint.
    arguments: "--config.SECTION.KEY=VALUE".

  Raises:
    UserError: see `override`; or no key selects the data.
  """
  plain, config = default.get_config(), saved_config(source.run)
  with config.unlocked():
    for name in OPTIONAL:  # adapters are merged; `compute` checks the rest
      if name in config:
        del config[name]
    config.mesh, config.optimizer, config.stages = plain.mesh, plain.optimizer, plain.stages
    config.init.others = plain.init.others  # teachers
  pretrained.adopt(config, source)
  config.train.freeze, config.train.microbatches, config.train.epochs = (), 1, 0.0
  if any(argument.startswith(_READ) for argument in arguments):
    for key in (*SOURCE_KEYS, "eval_files", "num_streams"):
      config.data[key] = plain.data[key]
    config.train.loss = ""
  if any(argument.startswith(_READ[0]) for argument in arguments):  # the words of a mixture stay as they are
    config.data.dictionary, config.data.switching_rate = "", 0.0
  config = override(config, list(arguments))
  config.data.pack = False
  if not any(config.data[key] for key in SOURCE_KEYS):
    raise UserError(
      f"{source.name}: the checkpoint's config does not select training data. Give --config.data.mixture=TASKS "
      "with --task_modules, or --config.data.files=PATH."
    )
  return config


@dataclasses.dataclass(frozen=True)
class LikelihoodPass:
  """A checkpoint's model with a loss and batches of examples, one example per row, on the current mesh."""

  config: Config
  loss: losses.Loss
  model: pretrained.PretrainedModel
  batches: Iterator[Batch]


@contextlib.contextmanager
def reading(config: Config, source: pretrained.Source) -> Iterator[LikelihoodPass]:
  """Yields the model, its likelihood and training examples; closes the data at the end.

  Args:
    source: the checkpoint.
    config: see `run_config`; `train.seed` sets the data order and the random choices of preprocessors.

  Raises:
    UserError: the data does not fit the model, or is not trusted.
  """
  from t2t.data import registry, train_data

  if why := registry.why_untrusted(config.data.task_modules):
    raise UserError(f"{source.name}: {why}")
  if source.foreign is not None and source.foreign.kind == "int8":
    raise UserError(
      f"{source.name}: int8 tensors have no gradient. Run `t2t convert {source.name} --to t2t OUT`, and give OUT."
    )
  pretrained.check_may_be_base(source, where=source.name)
  if there := adapters_lib.kept(source.adapters):
    raise UserError(
      f"{source.name} has parameters of config.{'/'.join(there)}, which cannot be merged into the base model. "
      "Give a checkpoint without such parameters."
    )
  config = train_data.resolved(config)
  loss = fisher_information.likelihood(config)
  for head in config.model.heads:
    if head not in source.model.heads:
      raise UserError(
        f"{source.name} has no head {head.name!r} with the settings that {config.data.named} requires. Give a "
        "checkpoint that was trained on this data, or other data."
      )
  mesh, _ = mesh_selection.make(config)
  recipe.check_sizes(config, mesh)
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    train_data.check(config)
    batches = train_data.batches(stages.of(config), mesh, num_streams=config.data.num_streams)
    stack.callback(batches.close)
    yield LikelihoodPass(config, loss, pretrained.load(source, mesh), batches)


def compute(config: Config, source: pretrained.Source, *, examples: int) -> FisherInformation:
  """Computes the mean squared gradient of the log-likelihood over training examples.

  Args:
    source, config: see `reading`.
    examples: number of examples; rows without an example do not count.

  Raises:
    UserError: see `reading`; or there is no example.
  """
  with reading(config, source) as read:
    config, model = read.config, read.model
    shardings = jax.tree.map(lambda x: x.sharding, model.params)
    step, sums = (
      fisher_information.make_step(model.graphdef, read.loss, shardings),
      fisher_information.zeros(model.params, shardings),
    )
    left = range(examples, 0, -config.train.batch_size)
    for number, batch in progress.track(zip(left, read.batches), "Fisher information", total=len(left)):  # noqa: B905
      sums = step(sums, model.params, batch, number)
    num_examples = int(sums.examples)
    if not num_examples:
      raise UserError(
        f"{config.data.named}: no training example in {examples} rows. Check the data with `t2t tasks show`."
      )
    return FisherInformation(sums.mean, model.params, num_examples, config)
