"""`t2t fisher`: computes the Fisher information of a checkpoint's parameters."""

import argparse
from collections.abc import Iterator
import math
import shlex
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp

from t2t.checkpoints import pretrained
from t2t.commands import options as options_lib
from t2t.configs import default
from t2t.configuration.loading import records
from t2t.convert import atomic_output
from t2t.runtime import hosts, numeric
from t2t.storage import gcs
from t2t.training import estimate_fisher

_DESCRIPTION = """\
Computes the diagonal of the Fisher information of a checkpoint's parameters:
the mean, over examples, of the squared gradient of an example's log
likelihood, which sums over its targets from the data (the empirical Fisher).
With config.optimizer.fisher=DIR a later run keeps the parameters with large
values near the checkpoint (EWC, Kirkpatrick et al. 2017).

The examples come from the training split that RUN was trained on, or from
--config.data.mixture or --config.data.files. A row is one example: packing is
off (config.data.pack). One row is computed at a time on each copy of the
parameters: memory holds three times the parameters, at any batch size. DIR is
as large as the parameters, and contains the path of RUN and a digest of each
of its arrays."""
_EXAMPLES = """\
examples:
  t2t fisher runs/old --output runs/fisher
  t2t fisher runs/tiny --output gs://BUCKET/fisher --examples 5000 \\
    --config.data.mixture=docs_match --task_modules t2t.tasks.docs
  t2t train --config finetune_docs_match --workdir runs/new \\
    --config.init.checkpoint=runs/old --config.optimizer.fisher=runs/fisher \\
    --config.optimizer.param_groups='.: anchor=300'"""
_EXAMPLES_READ = 1024


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t fisher",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    usage="t2t fisher RUN --output DIR [options] [--config.SECTION.KEY=VALUE ...]",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  add = parser.add_argument
  add("run", metavar="RUN", help="a workdir that t2t trained in, one of its checkpoints, or one of Hugging Face's")
  add("--output", required=True, metavar="DIR", help="folder to create, local or gs://")
  add(
    "--examples",
    type=numeric.integer(1),
    default=_EXAMPLES_READ,
    metavar="N",
    help=f"number of examples, shuffled and repeated if there are fewer; default: {_EXAMPLES_READ}",
  )
  add(
    "--seed",
    type=numeric.integer(0, 2**31 - 1),
    default=0,
    metavar="S",
    help="seed of the order and of random preprocessing; default: 0",
  )
  add("--task_modules", default="", metavar="M", help="modules or .py files that register tasks and that you trust")
  add("--debug", action="store_true", help="show the traceback of an error")
  hosts.add_options(parser)
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t fisher`.

  Args:
    argv: arguments after `t2t fisher`.

  Raises:
    UserError: see `estimate_fisher.run_config` and `estimate_fisher.compute`; or the output exists.
  """
  options, overrides = options_lib.parse_known(_parser(), argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  gcs.check(options.output, where="--output ")
  hosts.start(options, default.get_config().train)
  atomic_output.check(gcs.absolute(options.output), 0)
  source = pretrained.read_source(options.run, where="")
  pretrained.trust(options.task_modules)
  config = estimate_fisher.run_config(source, overrides)
  user_modules = [module for module in options.task_modules.split(",") if module]
  config.data.task_modules = tuple(dict.fromkeys([*config.data.task_modules, *user_modules]))
  packed = source.run["data"].get("pack", False)
  config.train.seed = options.seed
  information = estimate_fisher.compute(records(config), source, examples=options.examples)
  information.save(source, options.output, about={"seed": options.seed})
  for line in _lines(information, source, options.output, packed=packed):
    hosts.log_once(line)


def _lines(
  information: estimate_fisher.FisherInformation, source: pretrained.Source, out: str, *, packed: bool
) -> Iterator[str]:
  from t2t.data import run_sources

  source_read = run_sources.of(information.config.data)
  of = f"{source_read.name}, {information.config.data.train_split}" if source_read.name else source_read.title
  mean, largest = _sizes(information.diagonal)
  yield f"{out}: Fisher information of {source.name}, from {information.examples:,} examples of {of}"
  if packed:
    yield "  one example per row: the run packed several (config.data.pack), and this computation does not"
  yield f"  mean {mean:.3g}, largest {largest:.3g}"
  if not largest > 0:
    yield "  every gradient of these examples is 0, so EWC has no effect; use a checkpoint with a larger loss"
    return
  options = f"--config.init.checkpoint={source.name} --config.optimizer.fisher={out}"
  strength = anchor(mean)
  yield (
    f"  try: t2t train ... {shlex.join(options.split())} --config.optimizer.param_groups='.: anchor={strength:g}'"
    f" (mean x anchor = {mean * strength:.2g}; a larger anchor keeps the old task better, a smaller one learns more)"
  )


# Mean of F (1.0e-3) times the anchor (300) that was tuned on the old task of docs/forgetting.md.
_MEAN_PULL = 0.3


def anchor(mean: float) -> float:
  """Returns a first anchor strength, to one digit, for Fisher information of this mean: their product is constant."""
  strength = _MEAN_PULL / mean
  digit = 10.0 ** math.floor(math.log10(strength))
  return round(strength / digit) * digit


@jax.jit
def _moments(diagonal: Any) -> tuple[jax.Array, jax.Array]:
  leaves = jax.tree.leaves(diagonal)
  mean = sum(map(jnp.sum, leaves)) / sum(x.size for x in leaves)
  return mean, jnp.max(jnp.stack([jnp.max(x) for x in leaves]))


def _sizes(diagonal: Any) -> tuple[float, float]:
  mean, largest = _moments(diagonal)
  return float(mean), float(largest)
