"""`t2t tasks`: lists the registered tasks, and shows the examples that a task yields."""

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
from t2t.models.head_config import HeadConfig
from t2t.runtime import numeric

_WIDEST = 120  # columns; longer lines are hard to read
# ---- List ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Row:
  """A task or mixture in the list."""

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
  # TFDS reads the data set to find its splits, unless the task names them. The property of the base class returns only
  # the named ones.
  return seqio.DataSource.splits.fget(source) or ("(those of the data set)",)


def _print_list(console: rich.console.Console, pattern: str, modules: Sequence[str]) -> None:
  groups, failures = _groups(modules)
  known = [name for names in groups.values() for name in names]
  shown = {group: [name for name in names if _matches(name, pattern)] for group, names in groups.items()}
  if pattern and not any(shown.values()):
    raise UserError(
      f"{pattern}: no task or mixture matches{did_you_mean(pattern, known) or '.'} `t2t tasks` lists all names."
    )
  for group, names in shown.items():
    if names:
      _print_group(console, group, [_row(name) for name in names])
  for module, reason in failures.items():
    console.print(rich.text.Text(f"{module} cannot be imported: {reason}", "red"))
  console.print("`t2t tasks show NAME` shows what a task yields.")


def _groups(modules: Sequence[str]) -> tuple[dict[str, Sequence[str]], dict[str, str]]:
  """Returns heading -> names registered by a module; and t2t module -> reason why its import fails."""
  groups: dict[str, Sequence[str]] = {}
  failures = {}
  loaded = []
  for module in registry.shipped():
    try:
      loaded.append((module, registry.load(module)))
    except UserError as error:
      # Only these tasks need the missing package.
      failures[module] = str(error.__cause__ or error)
  # User modules come last because they may import t2t modules; each task is then listed under the module that registers
  # it.
  loaded += [(module, registry.load(module, where="--task_modules")) for module in modules]
  for module, names in loaded:
    text = registry.description(module)
    groups[f"{module}: {text}" if text else module] = names
  elsewhere = set(registry.names()) - {name for names in groups.values() for name in names}
  return groups | {"registered elsewhere": sorted(elsewhere)}, failures


def _matches(name: str, pattern: str) -> bool:
  return fnmatch.fnmatch(name, pattern if any(character in pattern for character in "*?[") else f"*{pattern}*")


def _print_group(console: rich.console.Console, heading: str, rows: Sequence[_Row]) -> None:
  """Prints a line for each task; columns with a common value are printed once above."""
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


# ---- Selection -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Choice:
  """The task to show, with data and model as in training."""

  data: DataConfig
  architecture: str
  task: seqio.Task | seqio.Mixture
  split: str
  heads: tuple[HeadConfig, ...] = ()  # heads of the model
  answers: tuple[HeadConfig, ...] = ()  # heads that the task trains
  stage: stages.Stage | None = None


def _config(parser: argparse.ArgumentParser, argv: list[str]) -> ConfigDict:
  """Returns the config as in training, with the model of its initial checkpoint; without --config the defaults."""
  options, overrides = options_lib.parse_known(parser, argv)
  if options.config:
    return options_lib.inherited(options_lib.parse(parser, argv)[1], parser, argv)
  config = override(default.get_config(), overrides)
  if config.init.checkpoint:
    raise UserError(
      f"config.init.checkpoint={config.init.checkpoint} needs the training config. Give --config, for example "
      "--config finetune_superglue."
    )
  return config


def _choose(parser: argparse.ArgumentParser, argv: list[str]) -> _Choice:
  """Parses the command line, and checks data and model as training does.

  Raises:
    UserError: the task, config or split does not exist, they do not fit together, or a preprocessor fails.
  """
  options, overrides = options_lib.parse_known(parser, argv)
  stage = _stage(records(_config(parser, argv)), options.stage)
  typed = {argument.lstrip("-").partition("=")[0] for argument in overrides}
  with stage.error_context():
    choice = _choose_of(stage.config, options, typed | {f"config.{key}" for key in stage.own})
  return dataclasses.replace(choice, stage=stage)


def _stage(config: Config, name: str) -> stages.Stage:
  """Returns the stage with this name, or the first stage."""
  by_name = {stage.name: stage for stage in stages.of(config)}
  if name and name not in by_name:
    there = (
      f"Give one of: {', '.join(by_name)}{did_you_mean(name, by_name)}"
      if config.stages
      else "config.stages is empty. Leave out --stage."
    )
    raise UserError(f"--stage {name}: no such stage. {there}")
  return by_name[name] if name else next(iter(by_name.values()))


def _choose_of(config: Config, options: argparse.Namespace, typed_keys: Collection[str]) -> _Choice:
  """Returns the selection for a run or a stage; `typed_keys` are typed or changed by the stage."""
  data = config.data
  data = dataclasses.replace(data, task_modules=(*data.task_modules, *options.task_modules))
  if "[" in options.split:  # a named slice is a split
    data = dataclasses.replace(data, eval_split=options.split)
  if options.name:
    _check_registered(options.name, data.task_modules)
    data = data.reading(mixture=options.name)
  elif not data.is_named:
    raise UserError("NAME is missing. Give a task (`t2t tasks` lists them), or --config with a mixture or files.")
  elif not run_sources.of(data).name:  # a mixture beside text belongs to the config
    data = dataclasses.replace(data, mixture="")
  if options.config:
    # The example count is needed for epochs only, and is not known for every task.
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
  # Use a shorter length if the vocabulary has too few sentinels for the objective at T5's length.
  lengths = (512, 256, 128) if objectives.of(task) else (512,)
  if "config.data.inputs_length" in typed_keys:
    lengths = (data.inputs_length,)
  errors = []
  for length in lengths:
    fitting = dataclasses.replace(data, inputs_length=length, train_split=split, eval_split=split)
    if "config.data.targets_length" not in typed_keys and objectives.of(task) != {"span_corruption"}:
      # The default fits the spans of 512 tokens; in other objectives the targets are as long as the inputs.
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
    raise UserError(f"--split {name}: {source} has no such split. Give one of: {', '.join(sorted(task.splits))}")
  return name


def _check(choice: _Choice, **model: int) -> None:
  """Runs the checks of training; explains errors of user preprocessors."""
  try:
    validation.check(choice.data, architecture=choice.architecture, heads=choice.answers, trains=False, **model)
  except Exception as error:  # user preprocessors raise any exception
    cause = error.__cause__ if isinstance(error, validation.PreprocessorsFail) else error
    if isinstance(cause, UserError):
      raise
    lengths = pipeline.feature_lengths(choice.data, choice.architecture, choice.task)
    raise examples.explain(cause, choice.task, split=choice.split, lengths=lengths) from cause


def _check_registered(name: str, modules: Sequence[str]) -> None:
  """Imports the modules that may register the task, including t2t's; raises an error for an unknown name."""
  shipped = registry.load_shipped()
  for part in name.split(","):
    registry.task_or_mixture(part.strip(), modules=[*shipped, *modules], where="", modules_where="--task_modules")


def _architecture(task: seqio.Task | seqio.Mixture) -> str:
  """Returns the architecture that fits the features and the objective of a task."""
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


# ---- Command ---------------------------------------------------------------------------------------------------------


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
    help="your modules or .py files that register tasks, comma-separated",
  )
  parser.add_argument(
    "--color", choices=("auto", "always", "never"), default="auto", help="auto: on a terminal, unless NO_COLOR is set"
  )
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t tasks` and `t2t tasks show`.

  Args:
    argv: arguments after `t2t tasks`.

  Raises:
    UserError: the task, split or config does not exist, or a task fails.
  """
  if argv[:1] == ["show"]:
    parser = _parser(
      "t2t tasks show",
      "Shows the first examples of a task: the source's record, the example after each\n"
      "preprocessor, and the model's features.",
      "examples:\n"
      "  t2t tasks show docs_span_corruption\n"
      "  t2t tasks show my_task --task_modules my_tasks.py --split train\n"
      "  t2t tasks show --config tiny_bert\n"
      "  t2t tasks show --config finetune_glue --config.init.checkpoint=runs/tiny_bert\n"
      "  t2t tasks show docs_ul2 --config.data.inputs_length=128 --examples 1\n",
      "t2t tasks show [NAME] [options] [--config.data.KEY=VALUE ...]",
    )
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="a task or mixture; default: the config's")
    parser.add_argument(
      "--config", help="use model and data of this training config; default: a model that fits the task"
    )
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
      help="number of examples in the statistics, 0: none; default: 100",
    )
    options, _ = options_lib.parse_known(parser, argv[1:])
    if not max(options.examples, options.summary):
      raise UserError("--examples 0 and --summary 0: nothing to show. Give one of these options a positive number.")
    _show(_console(options.color), _choose(parser, argv[1:]), options)
    return 0
  parser = _parser(
    "t2t tasks",
    "Lists the registered tasks and mixtures; `t2t tasks show NAME` shows the\n"
    "examples of one (`t2t tasks show --help`).",
    "examples:\n  t2t tasks\n  t2t tasks masked\n  t2t tasks 'docs_*lm' --task_modules my_tasks.py\n",
    "t2t tasks [PATTERN] [options]\n       t2t tasks show [NAME] [options]",
  )
  parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="part of a name, or a glob: 'docs_*'")
  options = parser.parse_args(argv)
  _print_list(_console(options.color), options.pattern, options.task_modules)
  return 0
