"""`t2t prune`: writes smaller models from a checkpoint, and lottery tickets."""

import argparse
import shlex
import textwrap

from absl import logging
import jax

from t2t import UserError
from t2t.checkpoints import shrink
from t2t.commands import config_of_run
from t2t.commands import options as options_lib
from t2t.convert import atomic_output
from t2t.runtime import numeric
from t2t.storage import gcs

_EXAMPLES = """\
examples:
  t2t prune layers runs/bert --every 2 --output runs/bert_6_layers
  t2t prune layers runs/t5 --side decoder --keep 0,5,11 --output runs/t5_short
  t2t prune heads runs/t5 --share 0.5 --output runs/t5_6_heads
  t2t prune neurons runs/bert --share 0.25 --output runs/bert_narrow \\
    --config.data.files=reviews.tsv --config.data.labels=auto
  t2t prune rewind runs/sparse --to runs/sparse/checkpoints/100 \\
    --output runs/ticket"""
# Of heads and neurons.
_CONFIG_HELP = """\
config:
  --config.SECTION.KEY=VALUE  changes the data that ranks the units, by default
                              that of RUN: --config.data.files=FILE or
                              --config.data.mixture=TASKS, and other keys of
                              config.data; t2t train --help data lists them"""
_EXAMPLES_READ = 256
# Command -> (line in the list of commands, description).
_TEXTS = {
  "layers": (
    "keep some layers of a stack, every K-th or a list",
    "Keeps some layers of a stack, every K-th or a list, as LayerDrop does (Fan et al. 2020). Train with "
    "--config.model.layer_drop=0.2 first, so that the model works without them.",
  ),
  "heads": (
    "remove the least important attention heads of every layer",
    "Removes the same share of attention heads from every layer: those with the smallest mean of |dL/dgate| "
    "over examples (Michel et al. 2019). With a position bias that layers share (T5), all layers lose the same heads. "
    "Heads with common keys and values are removed together.",
  ),
  "neurons": (
    "remove the least important neurons of every feed-forward layer",
    "Removes the same share of neurons from every feed-forward layer: those with the smallest mean of |dL/dgate| over "
    "examples.",
  ),
  "rewind": (
    "write a lottery ticket: early parameters with the final zeros",
    "Writes a lottery ticket: the parameters of an early step, with the zeros of a finished run (Frankle & "
    "Carbin 2019). Train it with config.optimizer.param_groups='/layers/: mask=zeros'.",
  ),
}


def _parser() -> argparse.ArgumentParser:
  form = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="t2t prune",
    description="Writes smaller dense models from a checkpoint, and lottery tickets. Every\n"
    "command of t2t reads the result, and t2t convert exports it. Masks of single\n"
    "weights are settings of a run: docs/compression.md.",
    epilog=_EXAMPLES,
    formatter_class=form,
    allow_abbrev=False,
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_TEXTS))
  for name, (help_text, text) in _TEXTS.items():
    sub = commands.add_parser(
      name,
      help=help_text,
      description=textwrap.fill(text, 80),
      formatter_class=form,
      allow_abbrev=False,
    )
    sub.add_argument("run", metavar="RUN", help="a workdir that t2t trained in, or one of its checkpoints")
    sub.add_argument("--output", required=True, metavar="DIR", help="folder to create, local or gs://")
    sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
  layers, heads, neurons, rewind = (commands.choices[name] for name in _TEXTS)
  which = layers.add_mutually_exclusive_group(required=True)
  which.add_argument("--every", type=numeric.integer(2), metavar="K", help="keep layers 0, K, 2K, ...")
  which.add_argument("--keep", default="", metavar="LIST", help="indices of the layers to keep, from 0: 0,2,5")
  layers.add_argument("--side", choices=("encoder", "decoder"), help="stack; default: all stacks of the model")
  for kind, sub in (("heads", heads), ("neurons", neurons)):
    sub.usage = f"t2t prune {kind} RUN --share F --output DIR [--config.KEY=VALUE ...]"
    sub.epilog = _CONFIG_HELP
    share = numeric.number(0.0, 1.0, above=True)
    sub.add_argument(
      "--share",
      required=True,
      type=share,
      metavar="F",
      help=f"share of the {kind} that is removed, above 0 and below 1",
    )
    sub.add_argument(
      "--examples",
      type=numeric.integer(1),
      default=_EXAMPLES_READ,
      metavar="N",
      help=f"training examples that rank the units; default: {_EXAMPLES_READ}",
    )
    sub.add_argument(
      "--task_modules", default="", metavar="M", help="modules or .py files that register tasks and that you trust"
    )
  rewind.add_argument("--to", required=True, metavar="EARLY", help="an early checkpoint of the same run")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t prune`.

  Args:
    argv: arguments after `t2t prune`.

  Raises:
    UserError: see `shrink`; or the output exists.
  """
  options, overrides = options_lib.parse_known(_parser(), argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if overrides and options.command not in ("heads", "neurons"):
    raise UserError(f"{overrides[0]}: t2t prune {options.command} reads no data. Leave the option out.")
  for path, where in ((options.run, ""), (options.output, "--output ")):
    gcs.check(path, where=where)
  atomic_output.check(gcs.absolute(options.output), 0)
  if options.command in ("layers", "rewind"):
    # Both only copy parameters, and a run on this machine may hold its accelerators.
    jax.config.update("jax_platforms", "cpu")
  source, foreign = shrink.open_checkpoint(options.run)
  before = shrink.num_parameters(foreign)
  if options.command == "layers":
    foreign, text = _layers(foreign, options)
  elif options.command == "rewind":
    foreign, zeros = shrink.rewound(foreign, shrink.open_checkpoint(options.to)[1])
    text = f"parameters of {options.to}, {zeros:.1%} of the pruned matrices zero as in {options.run}"
  else:
    foreign, text = _units(source, foreign, options, overrides)
  shrink.save(source, foreign, options.output)
  print(f"{options.output}  {text}")
  print(f"  parameters: {shrink.num_parameters(foreign):,}, before {before:,}")
  if why := _not_exported(foreign):
    print(f"  t2t convert --to hf cannot export this model: {why}")
  out = shlex.quote(options.output)
  rule = " --config.optimizer.param_groups='/layers/: mask=zeros'" if options.command == "rewind" else ""
  # A ticket has the sizes of the run; a smaller model has not those of any config.
  model = "" if options.command == "rewind" else " --config.init.use_model_config=True"
  config = config_of_run.quoted_name(options.run)
  print(f"  try: t2t train --config {config} --config.init.checkpoint={out}{model}{rule} --workdir WORKDIR")


def _layers(foreign, options: argparse.Namespace):
  model = foreign.model
  sides = (options.side,) if options.side else model.kind.sides
  try:
    listed = tuple(int(text) for text in options.keep.split(",")) if options.keep else ()
  except ValueError:
    raise UserError(f"--keep {options.keep}: give indices of layers with commas: --keep 0,2,5") from None
  for side in sides:
    number = getattr(model, f"num_{side}_layers")
    kept = listed or tuple(range(0, number, options.every))
    if len(kept) == number:
      raise UserError(f"{foreign.path}: the {side} has {number} layers, and all would be kept. Remove at least one.")
    foreign = shrink.with_layers(foreign, side, kept)
  counts = " + ".join(str(getattr(foreign.model, f"num_{side}_layers")) for side in model.kind.sides)
  return foreign, f"{counts} layers of {options.run}"


def _units(source, foreign, options: argparse.Namespace, overrides: list[str]):
  """Ranks heads or neurons, and removes the least important ones."""
  from t2t.checkpoints import pretrained
  from t2t.configuration.loading import records
  from t2t.training import estimate_fisher, unit_importance

  kind = options.command
  if kind == "heads":
    shrink.check_heads(foreign)
  totals = {unit_importance.num_units(kind, foreign.model, side): side for side in foreign.model.kind.sides}
  for total in totals:
    shrink.number_kept(total, options.share, kind)
  pretrained.trust(options.task_modules)
  config = estimate_fisher.run_config(source, overrides)
  modules = [module for module in options.task_modules.split(",") if module]
  config.data.task_modules = tuple(dict.fromkeys([*config.data.task_modules, *modules]))
  importance = unit_importance.compute(records(config), source, kind=kind, examples=options.examples)
  same = shrink.shared_bias(foreign.model) if kind == "heads" else ()
  kept = {}
  for module, values in importance.items():
    number = shrink.number_kept(values.shape[1], options.share, kind)
    kept |= shrink.best_units({module: values}, number, same=same)
  for module, values in importance.items():
    total = values.sum()
    share = sum(values[layer, units].sum() for layer, units in enumerate(kept[module])) / total if total else 0.0
    number = f"{kept[module].shape[1]} of {values.shape[1]}"
    print(f"  {module}: {number} {kind} in each layer have {share:.1%} of the importance")
  change = shrink.with_heads if kind == "heads" else shrink.with_neurons
  return change(foreign, kept), f"{options.run} without {options.share:.0%} of its {kind}"


def _not_exported(foreign) -> str:
  """Returns why transformers has no model of these sizes; "" if it has one."""
  from t2t.convert import hf_config

  try:
    hf_config.written_as(foreign.model, str(foreign.path))
  except UserError as error:
    return str(error).rpartition("\n")[2].strip()
  return ""
