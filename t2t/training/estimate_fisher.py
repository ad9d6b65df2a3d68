"""One pass over examples that says how much what a checkpoint has learned depends on each of its parameters."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import json

import jax
from ml_collections import ConfigDict

from t2t import UserError
from t2t.checkpoints import fisher_store, pretrained
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import override, saved_config
from t2t.configuration.schema import OPTIONAL, SOURCE_KEYS, Config
from t2t.models import adapters as adapters_lib
from t2t.param_tree import Params
from t2t.runtime import progress
from t2t.training import fisher_information, mesh_selection, recipe

_READ = tuple(f"--config.data.{key}" for key in ("mixture=", "files=", "sources."))  # what says what is read


@dataclasses.dataclass(frozen=True)
class FisherInformation:
  """What came of a pass.

  diagonal: nested dict of float32, in the shards of the parameters.
  params: of the checkpoint, likewise.
  examples: that were read.
  config: it was computed with.
  """

  diagonal: Params
  params: Params
  examples: int
  config: Config

  def save(self, source: pretrained.Source, out: str, *, about: Mapping[str, object]) -> None:
    """Writes it; see `fisher_store.save`."""
    config, about = json.loads(json.dumps(self.config.to_dict())), {"examples": self.examples, **about}
    fisher_store.save(self.diagonal, source, self.params, out, config=config, about=about)


def run_config(source: pretrained.Source, arguments: Sequence[str]) -> ConfigDict:
  """What a checkpoint was trained on, or what is typed, as it is read here: an example a row, on the devices here.

  Args:
    source: the checkpoint.
    arguments: "--config.SECTION.KEY=VALUE".

  Raises:
    UserError: see `override`; or nothing says what is to be read.
  """
  plain, config = default.get_config(), saved_config(source.run)
  with config.unlocked():
    for name in OPTIONAL:  # what adapts the model is merged, and what is besides is asked for below
      if name in config:
        del config[name]
    config.mesh, config.optimizer, config.stages = plain.mesh, plain.optimizer, plain.stages
  pretrained.adopt(config, source)
  config.train.freeze, config.train.microbatches, config.train.epochs = (), 1, 0.0
  if any(argument.startswith(_READ) for argument in arguments):
    for key in (*SOURCE_KEYS, "eval_files", "num_streams"):
      config.data[key] = plain.data[key]
    config.train.loss = ""
  if any(argument.startswith(_READ[0]) for argument in arguments):  # whose words stay as they are
    config.data.dictionary, config.data.switching_rate = "", 0.0
  config = override(config, list(arguments))
  config.data.pack = False
  if not any(config.data[key] for key in SOURCE_KEYS):
    raise UserError(
      f"{source.path}: does not say what it was trained on; give --config.data.mixture=TASKS and --task_modules, or"
      " --config.data.files"
    )
  return config


def compute(config: Config, source: pretrained.Source, *, examples: int) -> FisherInformation:
  """The mean, over examples of the training split, of the squared gradient of an example's log-likelihood.

  Args:
    config: see `run_config`; `train.seed` is of the order of the data and of what preprocessors draw.
    source: the checkpoint.
    examples: how many, or a few more where some are no examples.

  Raises:
    UserError: the data and the model do not go together, or there is no example.
  """
  from t2t.data import registry, train_data

  if why := registry.why_untrusted(config.data.task_modules):
    raise UserError(f"{source.path}: {why}")
  pretrained.check_may_be_base(source, where=str(source.path))
  if there := adapters_lib.kept(source.adapters):
    raise UserError(f"{source.path}: has what config.{'/'.join(there)} added, which no later task's model has")
  config = train_data.resolved(config)
  loss = fisher_information.likelihood(config)
  for head in config.model.heads:
    if head not in source.model.heads:
      raise UserError(f"{source.path}: has no head {head.name!r} as {config.data.named} asks it")
  mesh, _ = mesh_selection.make(config)
  recipe.check_sizes(config, mesh)
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    train_data.check(config)
    batches = train_data.batches(stages.of(config), mesh, num_streams=config.data.num_streams)
    stack.callback(batches.close)
    model = pretrained.load(source, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, model.params)
    step, sums = (
      fisher_information.make_step(model.graphdef, loss, shardings),
      fisher_information.zeros(model.params, shardings),
    )
    left = range(examples, 0, -config.train.batch_size)
    for number, batch in progress.track(zip(left, batches), "Fisher information", total=len(left)):  # noqa: B905
      sums = step(sums, model.params, batch, number)
    num_examples = int(sums.examples)
    if not num_examples:
      raise UserError(f"{config.data.named}: none of {examples} rows is an example to learn from")
    return FisherInformation(sums.mean, model.params, num_examples, config)
