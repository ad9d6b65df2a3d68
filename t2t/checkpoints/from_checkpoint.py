"""Initialization from another checkpoint, `config.init.checkpoint`."""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp

from t2t import UserError, losses
from t2t.checkpoints import adapter_restore, base_model_ref, fisher_store, manager, pretrained
from t2t.checkpoints.vocab_transfer import Pieces
from t2t.checkpoints.warm_start import Taken, warm_start
from t2t.configuration.schema import Config, InitSource
from t2t.models import adapters as adapters_lib
from t2t.models.config import EMBEDDINGS
from t2t.param_tree import Params, Vocabulary, flatten, join_frozen, matches, unflatten
from t2t.runtime import hosts
from t2t.training import sparsity
from t2t.training.recipe import Program
from t2t.training.train_state import TrainState


def start(
  program: Program, config: Config, checkpoints: manager.Checkpoints, key: jax.Array, *, vocabulary: Vocabulary | None
) -> TrainState:
  """Returns a state of step 0 with the parameters of `config.init.checkpoint`, all or the ones selected by config.init.

  Args:
    program: of the run.
    config: of the run.
    checkpoints: of the workdir; adapter steps leave out the parameters of the checkpoint.
    key: random key of fresh parameters.
    vocabulary: see `initialize.start`.

  Raises:
    UserError: the checkpoint belongs to another model; or its embedding would be taken, but has another vocabulary.
  """
  initial = join_frozen(program.state.params, program.state.frozen_params)
  if config.adapters or config.init.others:  # digests need float32, whatever dtype the run keeps them in
    is_number = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)
    initial = jax.tree.map(lambda x: x.update(dtype=jnp.float32) if is_number(x) else x, initial)
  workdir, frozen = checkpoints.directory.parent, program.state.frozen_params
  begin, taken, below = (lambda params: params), {}, []
  fisher = fisher_store.open_fisher(config.optimizer.fisher) if config.optimizer.fisher else None
  if fisher is not None:
    fisher_store.check(fisher, program.state)
  if config.init.checkpoint:
    source = pretrained.read_source(config.init.checkpoint, where="config.init.checkpoint=")
    mine = _matching(initial, config.init.other_patterns, inverted=True)
    pieces = _pieces(source, vocabulary) if config.init.transfer_vocab else None
    if pieces is None:
      _check_vocabulary(source, config.init.source_list[""], vocabulary, mine, where="config.init.checkpoint=")
    new = _new_adapters(source, config)
    begin = adapters_lib.beginning(new, vocabulary, seed=config.train.seed)
    init = config.init
    taken[""] = warm_start(
      source,
      mine,
      fresh=init.reinit,
      parts=init.rename,
      rows=init.resize,
      repeated=init.tile,
      pieces=pieces,
      layers=_layers(config),
      base_path=functools.partial(_base_path, config, new),
      model=config.model,
      elsewhere=init.other_patterns,
    )
    rules: Any = source.run.get("optimizer", {}).get("param_groups", ())
    if line := sparsity.lost_zeros(taken[""].params, rules, config, f"config.init.checkpoint={init.checkpoint}"):
      hosts.log_once(line)
    frozen_part = _matching(frozen, config.init.other_patterns, inverted=True)
    _check_trained(taken[""].fresh_in(frozen_part), config)
    if config.adapters:
      below.append(adapter_restore.base_of(taken[""], frozen_part, workdir))
    if fisher is not None:
      fisher_store.check_base(fisher, program.state, taken[""])
  for name, init_source in config.init.others.items():
    taken[name] = _take(name, init_source, initial, vocabulary)
    if init_source.frozen:
      frozen_part = _matching(frozen, init_source.patterns)
      _check_trained(taken[name].fresh_in(frozen_part), config)
      below.append(adapter_restore.base_of(taken[name], frozen_part, workdir, name=name))
  checkpoints.base = base_model_ref.Base.joined(below)

  def over(fresh: Params, params: Any) -> Params:
    for name, part in params.items():
      fresh = taken[name].over(fresh, part)
    return begin(fresh)

  state = program.init_from_params(over)({name: part.params for name, part in taken.items()}, key)
  return state if fisher is None else fisher_store.begin(fisher, program.state, state)


def _base_path(config: Config, new: adapters_lib.Adapters, path: str) -> str | None:
  """Returns a parameter's path in the checkpoint's model; None for parameters of adapters and projections."""
  if config.distillation is None or not config.distillation.teacher:
    return adapters_lib.base_path(path, adapters=new)
  prefix = f"{losses.part_of(config.to_dict())}/"
  return path.removeprefix(prefix) if path.startswith(prefix) else None


def _layers(config: Config) -> tuple[int, ...]:
  """Returns config.init.layers as numbers.

  Raises:
    UserError: an entry is no number, or the model has another number of layers.
  """
  where = f"config.init.layers={','.join(config.init.layers)}"
  if not all(text.isdecimal() for text in config.init.layers):
    raise UserError(f"{where}: not a list of layers. Give layers of the checkpoint, counted from 0, such as 0,2,4.")
  if config.init.layers and config.adapters:
    raise UserError(
      f"{where} selects layers of the checkpoint, but config.{next(iter(config.adapters))} keeps a reference to the "
      "whole checkpoint. Leave out one of the two keys."
    )
  for side in config.model.kind.sides if config.init.layers else ():
    number = getattr(config.model, f"num_{side}_layers")
    if number != len(config.init.layers):
      raise UserError(
        f"{where} names {len(config.init.layers)} layers, but config.model.num_{side}_layers={number}. Give as many "
        "layers as the model has."
      )
  return tuple(map(int, config.init.layers))


def _matching(params: Params, patterns: tuple[str, ...], *, inverted: bool = False) -> Params:
  """Returns the nested parameters with paths that match one of the patterns; `inverted`: the others."""
  flat = flatten(params)
  chosen = {path: x for path, x in flat.items() if matches(patterns, path) != inverted}
  return unflatten(chosen)


def _take(name: str, init_source: InitSource, initial: Params, vocabulary: Vocabulary | None) -> Taken:
  """Reads the initial parameters of a part of the model.

  Raises:
    UserError: as `warm_start`, with the keys of this source; or its vocabulary differs.
  """
  where = f"config.init.others.{name}.checkpoint="
  source = pretrained.read_source(init_source.checkpoint, where=where)
  if init_source.frozen:
    pretrained.check_may_be_base(source, where=f"{where}{init_source.checkpoint}")
  mine = _matching(initial, init_source.patterns)
  _check_vocabulary(source, init_source, vocabulary, mine, where=where)
  try:
    return warm_start(
      source,
      mine,
      fresh=init_source.reinit,
      parts=init_source.rename,
      rows=init_source.resize,
      repeated=init_source.tile,
      whole_model=False,
    )
  except UserError as error:
    raise UserError(str(error).replace("config.init.", f"config.init.others.{name}.")) from error


def _new_adapters(source: pretrained.Source, config: Config) -> adapters_lib.Adapters:
  """Returns the adapters that the run adds to the checkpoint's model; {} if it continues to train the existing ones.

  Raises:
    UserError: the checkpoint's model has an adapter that cannot be merged and differs from the run's, or one that must
      be merged first.
  """
  if config.adapters:
    pretrained.check_may_be_base(source, where=f"config.init.checkpoint={config.init.checkpoint}")
  there = adapters_lib.kept(source.adapters)
  if there and there != config.adapters:
    named = "/".join(there)
    raise UserError(
      f"config.init.checkpoint={config.init.checkpoint}: the model has the adapter config.{named}, which cannot be "
      f"merged. Give the same config.{named} to continue the training of the adapter, or give its base checkpoint."
    )
  return {} if there else config.adapters


def _pieces(source: pretrained.Source, vocabulary: Vocabulary | None) -> Pieces:
  """Maps rows of the run's vocabulary to rows of the checkpoint's vocabulary.

  Raises:
    UserError: the vocabulary of the checkpoint or of the run is unknown.
  """
  if vocabulary is None:
    raise UserError(
      "config.init.transfer_vocab=True needs the run's vocabulary, but config.data.vocabulary is empty. Give "
      "--config.data.vocabulary=FILE."
    )
  from t2t.data.vocabularies import token_mapping

  trained: Any = pretrained.vocabulary(source)
  configured: Any = vocabulary
  return Pieces(token_mapping.old_pieces(trained, configured))


def _check_vocabulary(
  source: pretrained.Source, init: InitSource, vocabulary: Vocabulary | None, initial: Params, *, where: str
) -> None:
  """Warns or raises an error if embeddings would be taken from a checkpoint with other pieces."""
  paths = flatten(initial)
  tables = [path for path in paths if path.endswith(("embed/table", "head/projection"))]
  if all(matches(init.reinit, path) for path in tables):
    return
  where = f"{where}{init.checkpoint}"
  if not source.vocabulary:
    hosts.log_once(f"{where} has no vocabulary, so the vocabularies of checkpoint and run cannot be compared")
    return
  if vocabulary is None:
    hosts.log_once(
      f"{where}: the vocabularies of checkpoint and run cannot be compared (config.data.vocabulary is empty)"
    )
    return
  from t2t.data import vocabularies

  try:
    trained: Any = pretrained.vocabulary(source)
  except UserError as error:  # the run does not need it
    hosts.log_once(f"{where}: the vocabularies of checkpoint and run cannot be compared ({error})")
    return
  # Compare pieces, because the vocabulary files of Hugging Face and t2t differ.
  by_ids = [name for name in ("embed/table", "head") if any(f"/{name}/" in f"/{path}/" for path in paths)]
  configured: Any = vocabulary
  if warning := vocabularies.compare_start(trained, configured, where=where, by_ids=by_ids):
    hosts.log_once(warning)


def _check_trained(fresh: Sequence[str], config: Config) -> None:
  """Raises an error if a randomly initialized parameter is not trained, because of an adapter or a freeze pattern.

  Untrained heads are allowed, because the loss does not use them, and parameters that are no weights.
  """
  constants = EMBEDDINGS[config.model.embedding].constants  # the run fills them
  idle = [path for path in fresh if "heads/" not in path and not matches(constants, path)]
  if idle:
    keys = [f"add {idle[0]} to config.{name}.also_train" for name in config.adapters]
    keys += [f"exclude {idle[0]} from config.train.freeze"] if matches(config.train.freeze, idle[0]) else []
    keys += ["add a rule to config.optimizer.param_groups, 'PATTERN: trained'"] if config.optimizer.param_groups else []
    more = f" (and {len(idle) - 1} more)" if len(idle) > 1 else ""
    raise UserError(
      f"config.init: {idle[0]}{more} is initialized at random (wholly or in new rows), but is not trained. To train "
      f"{idle[0]}, {', or '.join(keys)}."
    )
