"""The command `t2t tasks`: lists what is registered, and shows what a task makes of its text, as view.py prints it."""

import argparse
from collections.abc import Collection, Sequence
import dataclasses
import fnmatch
import os
import sys
import textwrap

from ml_collections import ConfigDict
import rich.console
import rich.text

import t2t.data  # noqa: F401  before seqio: it keeps TensorFlow quiet

# isort: split
import seqio

from t2t import UserError, did_you_mean
from t2t.commands import options as options_lib
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import override, records
from t2t.configuration.schema import Config, DataConfig
from t2t.data import objectives, pipeline, registry, run_sources, task_resolution, train_data, validation
from t2t.data.preview import examples, printed
from t2t.models import adapters as adapters_lib
from t2t.models.config import HeadConfig
from t2t.runtime import numeric

_WIDEST = 120  # columns; longer lines are hard to read
# ---- The list --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Row:
  """What the list says of a task or mixture."""

  name: str
  objective: str
  yields: str
  splits: str
  source: str


def _row(name: str) -> _Row:
  task = seqio.get_mixture_or_task(name)
  first = [feature for feature in ("inputs", "targets", "loss_weights") if feature in task.output_features]
  other_features = [feature for feature in task.output_features if feature not in first]
  tasks = examples.tasks_of(task)
  splits = list(dict.fromkeys(split for subtask in tasks for split in _splits(subtask.source)))
  if isinstance(task, seqio.Mixture):
    source = f"mixes {', '.join(subtask.name for subtask in tasks)}"
  else:
    source = printed.source_name(task.source)
  return _Row(
    name=name,
    objective=" ".join(sorted(objectives.of(task))),
    yields=" ".join([*first, *other_features]),
    splits=" ".join(splits),
    source=source,
  )


def _splits(source: seqio.DataSource) -> Sequence[str]:
  # TFDS finds out which splits there are by reading, unless the task names them: the property of the class that it
  # derives from has what the task names.
  return seqio.DataSource.splits.fget(source) or ("(those of the data set)",)


def _print_list(console: rich.console.Console, pattern: str, modules: Sequence[str]) -> None:
  groups, failures = _groups(modules)
  known = [name for names in groups.values() for name in names]
  shown = {group: [name for name in names if _matches(name, pattern)] for group, names in groups.items()}
  if pattern and not any(shown.values()):
    raise UserError(f"{pattern}: no task or mixture whose name matches{did_you_mean(pattern, known)}")
  for group, names in shown.items():
    if names:
      _print_group(console, group, [_row(name) for name in names])
  for module, reason in failures.items():
    console.print(rich.text.Text(f"{module} cannot be imported: {reason}", "red"))
  console.print("`t2t tasks show NAME` shows what a task yields.")


def _groups(modules: Sequence[str]) -> tuple[dict[str, Sequence[str]], dict[str, str]]:
  """Heading -> names that a module registered; and module of t2t -> why it cannot be imported."""
  groups: dict[str, Sequence[str]] = {}
  failures = {}
  loaded = []
  for module in registry.shipped():
    try:
      loaded.append((module, registry.load(module)))
    except UserError as error:
      # For want of a package that only these tasks need; the others do not.
      failures[module] = str(error.__cause__ or error)
  # The user's modules may import t2t's: those come first, so that each task is under the module that registers it.
  loaded += [(module, registry.load(module, where="--task_modules")) for module in modules]
  for module, names in loaded:
    text = registry.description(module)
    groups[f"{module}: {text}" if text else module] = names
  elsewhere = set(registry.names()) - {name for names in groups.values() for name in names}
  return groups | {"registered elsewhere": sorted(elsewhere)}, failures


def _matches(name: str, pattern: str) -> bool:
  return fnmatch.fnmatch(name, pattern if any(character in pattern for character in "*?[") else f"*{pattern}*")


def _print_group(console: rich.console.Console, heading: str, rows: Sequence[_Row]) -> None:
  """A line for each task; what all of them have in common is said in front, so that a line has room for the rest."""
  console.print(rich.text.Text(textwrap.fill(heading, console.width), "bold"))
  columns = ["name", "objective", "yields", "splits", "source"]
  if all(objective in row.name for row in rows for objective in row.objective.split()):
    columns.remove("objective")
  common = [column for column in ("source", "splits") if len({getattr(row, column) for row in rows}) == 1]
  if len(rows) > 1 and common:
    shared = "; ".join(f"{column}: {getattr(rows[0], column)}" for column in common)
    console.print(rich.text.Text(textwrap.fill(shared, console.width), "dim"))
    columns = [column for column in columns if column not in common]
  printed.print_columns(console, [[getattr(row, column) for column in columns] for row in rows])
  console.print()


# ---- What is chosen --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Choice:
  """What is to be shown, as training would have it."""

  data: DataConfig
  architecture: str
  task: seqio.Task | seqio.Mixture
  split: str
  heads: tuple[HeadConfig, ...] = ()  # of the model
  answers: tuple[HeadConfig, ...] = ()  # those of them that answer the task
  stage: stages.Stage | None = None


def _config(parser: argparse.ArgumentParser, argv: list[str]) -> ConfigDict:
  """The config as training has it, with the model of the checkpoint that it starts from; without one the defaults."""
  options, overrides = options_lib.parse_known(parser, argv)
  if options.config:
    return options_lib.inherited(options_lib.parse(parser, argv)[1], parser, argv)
  config = override(default.get_config(), overrides)
  if config.init.checkpoint:
    raise UserError(
      f"config.init.checkpoint={config.init.checkpoint}: needs the config that training starts from it with; give one"
      " as --config finetune_superglue"
    )
  return config


def _choose(parser: argparse.ArgumentParser, argv: list[str]) -> _Choice:
  """Reads the command line, and checks data and model as training does.

  Raises:
    UserError: no such task, config or split, or they do not go together, or a preprocessor fails.
  """
  options, overrides = options_lib.parse_known(parser, argv)
  stage = _stage(records(_config(parser, argv)), options.stage)
  typed = {argument.lstrip("-").partition("=")[0] for argument in overrides}
  with stage.error_context():
    choice = _choose_of(stage.config, options, typed | {f"config.{key}" for key in stage.own})
  return dataclasses.replace(choice, stage=stage)


def _stage(config: Config, name: str) -> stages.Stage:
  """The stage of that name, or the first."""
  by_name = {stage.name: stage for stage in stages.of(config)}
  if name and name not in by_name:
    there = (
      f"there are {', '.join(by_name)}{did_you_mean(name, by_name)}" if config.stages else "config.stages is empty"
    )
    raise UserError(f"--stage {name}: no such stage; {there}")
  return by_name[name] if name else next(iter(by_name.values()))


def _choose_of(config: Config, options: argparse.Namespace, typed_keys: Collection[str]) -> _Choice:
  """What is to be shown of a run, or of a stage; `typed_keys`: keys that are typed, or that the stage changes."""
  data = config.data
  data = dataclasses.replace(data, task_modules=(*data.task_modules, *options.task_modules))
  if "[" in options.split:  # a slice is a split where it is named
    data = dataclasses.replace(data, eval_split=options.split)
  if options.name:
    _check_registered(options.name, data.task_modules)
    data = data.reading(mixture=options.name)
  elif not data.is_named:
    raise UserError("NAME is missing: give a task (`t2t tasks` lists them), or --config with a mixture or files")
  elif not run_sources.of(data).name:  # a mixture beside text is the config's own
    data = dataclasses.replace(data, mixture="")
  if options.config:
    # A task is shown even if nobody can count its examples, of which epochs are.
    run = train_data.resolved(dataclasses.replace(config, data=data).with_(train={"epochs": 0.0}))
    model, answers = run.model, train_data.heads_asked(run)
    task = pipeline.load_task(data, model.architecture, heads=answers)
    split = options.split or pipeline.split_of(data, train=False)
    task = task_resolution.for_architecture(task, model.architecture)
    choice = _Choice(data, model.architecture, task, _split(split, task, data), model.heads, answers)
    _check(
      choice,
      batch_size=config.train.batch_size,
      model_vocab_size=model.vocab_size,
      model_max_length=adapters_lib.as_asked(model, run.adapters).most_positions,
    )
    return choice
  task = pipeline.load_task(data)
  split = options.split or next((name for name in ("validation", "train") if name in task.splits), min(task.splits))
  split = _split(split, task, data)
  architecture = config.model.architecture
  if "config.model.architecture" not in typed_keys:
    architecture = _architecture(task)
  task = task_resolution.for_architecture(task, architecture)
  # Shorter where the vocabulary has too few sentinels for the objective at T5's length.
  lengths = (512, 256, 128) if objectives.of(task) else (512,)
  if "config.data.inputs_length" in typed_keys:
    lengths = (data.inputs_length,)
  errors = []
  for length in lengths:
    fitting = dataclasses.replace(data, inputs_length=length, train_split=split, eval_split=split)
    if "config.data.targets_length" not in typed_keys and objectives.of(task) != {"span_corruption"}:
      # The default is what spans of 512 tokens come to; elsewhere the targets are as long as the inputs, or alone.
      fitting = dataclasses.replace(fitting, targets_length=length)
    choice = _Choice(fitting, architecture, task, split)
    try:
      _check(choice, batch_size=1, model_vocab_size=task_resolution.vocabulary_of(task).vocab_size)
    except UserError as error:
      errors.append(error)
    else:
      return choice
  raise errors[0]


def _split(name: str, task: seqio.Task | seqio.Mixture, data: DataConfig) -> str:
  if name not in task.splits:
    source = run_sources.of(data).name or data.named
    raise UserError(f"--split {name}: {source} has no such split; it has {', '.join(sorted(task.splits))}")
  return name


def _check(choice: _Choice, **model: int) -> None:
  """As training does before it starts; an error of the user's preprocessors is explained."""
  try:
    validation.check(choice.data, architecture=choice.architecture, heads=choice.answers, trains=False, **model)
  except Exception as error:  # whatever the user's preprocessors raise
    cause = error.__cause__ if isinstance(error, validation.PreprocessorsFail) else error
    if isinstance(cause, UserError):
      raise
    lengths = pipeline.feature_lengths(choice.data, choice.architecture, choice.task)
    raise examples.explain(cause, choice.task, split=choice.split, lengths=lengths) from cause


def _check_registered(name: str, modules: Sequence[str]) -> None:
  """Imports what may register the task, t2t's own modules among it, and refuses a name that nothing registers."""
  shipped = registry.load_shipped()
  for part in name.split(","):
    registry.task_or_mixture(part.strip(), modules=[*shipped, *modules], where="", modules_where="--task_modules")


def _architecture(task: seqio.Task | seqio.Mixture) -> str:
  """The architecture that a task is for, by what it yields, and by its objective where that is for others."""
  features = set(task.output_features)
  architecture = "encoder_decoder" if "inputs" in features else "decoder_only"
  if {"loss_weights", "texts"} & features:
    architecture = "encoder_only"
  for name in objectives.of(task):
    fitting = objectives.OBJECTIVES[name].architectures
    if architecture not in fitting:
      return fitting[0]
  return architecture


def _show(console: rich.console.Console, choice: _Choice, options: argparse.Namespace) -> None:
  if choice.stage.described:
    other_stages = [stage.name for stage in choice.stage.config.stages if stage.name != choice.stage.name]
    more = f"; --stage {' or '.join(other_stages)} shows another" if other_stages and not options.stage else ""
    about = f"{choice.stage.described}: {choice.stage.changes or 'as the config has it'}{more}"
    console.print(rich.text.Text(textwrap.fill(about, console.width)))
  shown = examples.preview(
    choice.data,
    choice.architecture,
    choice.task,
    split=choice.split,
    num_records=options.examples,
    num_examples=max(options.examples, options.summary),
    heads=choice.heads,
  )
  printed.print_preview(
    console, shown, choice.data, examples=options.examples, tokens=options.tokens, summary=bool(options.summary)
  )


# ---- The command -----------------------------------------------------------------------------------------------------


def _console(color: str) -> rich.console.Console:
  plain = color == "never" or (color == "auto" and (bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()))
  console = rich.console.Console(
    color_system=None if plain else "standard" if color == "always" else "auto",
    force_terminal=not plain,
    no_color=plain,
    highlight=False,
    markup=False,
    emoji=False,
  )
  console.width = min(console.width, _WIDEST)
  return console


def _modules(text: str) -> tuple[str, ...]:
  return tuple(filter(None, (part.strip() for part in text.split(","))))


def _parser(prog: str, description: str, epilog: str, usage: str) -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog=prog,
    usage=usage,
    description=description,
    epilog=epilog,
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--task_modules",
    type=_modules,
    default=(),
    metavar="M,...",
    help="modules or .py files of your own that register tasks, comma-separated",
  )
  parser.add_argument(
    "--color", choices=("auto", "always", "never"), default="auto", help="auto: on a terminal, unless NO_COLOR is set"
  )
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> int:
  """`t2t tasks` and `t2t tasks show`.

  Args:
    argv: what follows `t2t tasks`.

  Raises:
    UserError: no such task, split or config, or a task that fails.
  """
  if argv[:1] == ["show"]:
    parser = _parser(
      "t2t tasks show",
      "Shows the first examples of a task: what the source has, what the task's\n"
      "preprocessors make of it, piece by piece, and what the model gets.",
      "examples:\n"
      "  t2t tasks show docs_span_corruption\n"
      "  t2t tasks show my_task --task_modules my_tasks.py --split train\n"
      "  t2t tasks show --config tiny_bert\n"
      "  t2t tasks show --config finetune_glue --config.init.checkpoint=runs/tiny_bert\n"
      "  t2t tasks show docs_ul2 --config.data.inputs_length=128 --examples 1\n",
      "t2t tasks show [NAME] [options] [--config.data.KEY=VALUE ...]",
    )
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a task or mixture; default: the config's")
    parser.add_argument("--config", help="model and data as in training with this config; default: what fits the task")
    parser.add_argument("--stage", default="", metavar="NAME", help="one of config.stages; default: the first")
    parser.add_argument("--split", default="", help="default: the held-out split")
    parser.add_argument(
      "--examples", type=numeric.integer(0), default=3, metavar="N", help="examples to show; default: 3"
    )
    parser.add_argument(
      "--tokens",
      type=numeric.integer(0),
      default=64,
      metavar="N",
      help="tokens to show of each feature, 0: all; default: 64",
    )
    parser.add_argument(
      "--summary",
      type=numeric.integer(0),
      default=100,
      metavar="N",
      help="examples to count over, 0: none; default: 100",
    )
    options, _ = options_lib.parse_known(parser, argv[1:])
    if not max(options.examples, options.summary):
      raise UserError("--examples 0 --summary 0: nothing is left to show")
    _show(_console(options.color), _choose(parser, argv[1:]), options)
    return 0
  parser = _parser(
    "t2t tasks",
    "Lists the tasks and mixtures that are registered; `t2t tasks show NAME` shows\n"
    "what one yields (`t2t tasks show --help`).",
    "examples:\n  t2t tasks\n  t2t tasks masked\n  t2t tasks 'docs_*lm' --task_modules my_tasks.py\n",
    "t2t tasks [PATTERN] [options]\n       t2t tasks show [NAME] [options]",
  )
  parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="part of a name, or a glob: 'docs_*'")
  options = parser.parse_args(argv)
  _print_list(_console(options.color), options.pattern, options.task_modules)
  return 0
