"""The t2t command that every host is to run: checked on this machine, before anything is paid for."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import glob
import hashlib
import importlib.util
import os
import pathlib
import re
import shlex

from ml_collections import ConfigDict

from t2t import UserError, did_you_mean
from t2t.commands.options import config_parser, parse
from t2t.configuration import stages
from t2t.configuration.loading import load_config, override, records
from t2t.launch import shell as shell_lib

# Keys of a config that name files which the hosts read.
_PATHS = (
  "data.files",
  "data.eval_files",
  "data.benchmark_dirs",
  "data.sources",
  "data.vocabulary",
  "init.checkpoint",
)

_OF_SOURCE = ("files", "eval_files")  # keys of each of data.sources

FOLDER = "files"  # where the files of a job lie, from the folder that a host runs it in


@dataclasses.dataclass(frozen=True)
class Job:
  """A t2t command, and the files of this machine that it needs.

  Attributes:
    argv: what stands behind `t2t`, files by the names that they have on the hosts.
    files: name in the hosts' folder `files` -> path on this machine.
    workdir: of its --workdir, or None.
    reads: key or option, "config.data.vocabulary" -> the paths in buckets that the command reads for it.
  """

  argv: tuple[str, ...]
  files: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
  workdir: str | None = None
  reads: dict[str, list[str]] = dataclasses.field(default_factory=dict)

  @property
  def fingerprint(self) -> str:
    """Twelve hex digits that are the same for the same command with the same files."""
    content = [repr(self.argv)]
    content += [f"{name} {path.read_text()}" for name, path in sorted(self.files.items())]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


# What the hosts are to have of this machine's environment, where it is a place in a bucket.
_PLACES = ("TFDS_DATA_DIR",)


def environment() -> dict[str, str]:
  """Variables of this machine's environment that every host is to have.

  Raises:
    UserError: one holds a character that would end a line.
  """
  variables = {name: os.environ[name] for name in _PLACES if os.environ.get(name, "").startswith("gs://")}
  shell_lib.check_words(variables)
  return variables


def exports() -> str:
  """`environment` as lines of a shell script."""
  return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment().items())


def option(argv: Sequence[str], name: str) -> str | None:
  """The value of `--name VALUE` or `--name=VALUE`, the last one given."""
  value = None
  for i, argument in enumerate(argv):
    if argument.startswith(f"--{name}="):
      value = argument.partition("=")[2]
    elif argument == f"--{name}" and i + 1 < len(argv):
      value = argv[i + 1]
  return value


def _config(argv: Sequence[str]) -> ConfigDict | None:
  """The config of a command as far as this machine can tell; of `t2t train` every option is read."""
  command, *arguments = argv
  if command == "train":
    from t2t.runtime import hosts

    parser = config_parser("t2t train", "")
    parser.add_argument("--workdir")
    hosts.add_options(parser)
    return parse(parser, arguments)[1]
  spec = option(arguments, "config")
  if spec is None:
    return None
  # Other commands have options of their own, which they check themselves.
  return override(load_config(spec), [argument for argument in arguments if re.match(r"--(no)?config\.", argument)])


def _paths(config: ConfigDict) -> Iterator[tuple[str, str]]:
  """Keys of `_PATHS` and what the config says there; of a mapping, of each of its names, and of each one's files."""
  for key in _PATHS:
    section, _, field = key.partition(".")
    value = config[section][field]
    if isinstance(value, ConfigDict):
      for name, entry in value.items():
        paths = (
          {f".{file}": entry.get(file, "") for file in _OF_SOURCE} if isinstance(entry, ConfigDict) else {"": entry}
        )
        yield from ((f"{key}.{name}{file}", path) for file, path in paths.items())
    else:
      yield key, value
  for number, stage in enumerate(config.stages, start=1):
    for key, value in stage.items():
      of_source = key.startswith("data.sources.") and key.rpartition(".")[2] in _OF_SOURCE
      if isinstance(value, str) and (key in _PATHS or of_source):
        yield f"stages, {stage.get('name', number)}: {key}", value


def _check_paths(config: ConfigDict) -> None:
  for key, value in _paths(config):
    for part in value.split(","):
      if part and "://" not in part and glob.glob(part):
        raise UserError(
          f"config.{key}={part} is on this machine, where the hosts cannot read it; copy it to the bucket"
          f" (gcloud storage cp --recursive {part} gs://BUCKET/data/) and give its path there"
        )


def _reads(config: ConfigDict | None, named: Mapping[str, str]) -> dict[str, list[str]]:
  """Key or option -> the paths in buckets that a command reads."""
  values = [] if config is None else [(f"config.{key}", value) for key, value in _paths(config)]
  values += [(option, named[option]) for option in ("--checkpoint", "--input")]
  bucket_paths = {key: [part for part in value.split(",") if part.startswith("gs://")] for key, value in values}
  return {key: paths for key, paths in bucket_paths.items() if paths}


def _installed(module: str) -> str:
  """The module, if the hosts have it, too: files are copied, packages of this machine are not."""
  if module.startswith("t2t."):
    return module
  try:
    spec = importlib.util.find_spec(module)
  except (ImportError, ValueError):
    spec = None
  folders = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
  here = pathlib.Path.cwd().resolve()
  is_installed = any("site-packages" in folder or not pathlib.Path(folder).is_relative_to(here) for folder in folders)
  if not is_installed:
    raise UserError(
      f"config.data.task_modules={module}: {'is on this machine alone' if spec else 'no such module'}; give its file,"
      f" {module.replace('.', '/')}.py, which is copied to the hosts"
    )
  return module


def _shipped(argv: Sequence[str], config: ConfigDict) -> tuple[list[str], dict[str, pathlib.Path]]:
  """The command with its .py files by their names on the hosts, and those files."""
  files: dict[str, pathlib.Path] = {}

  def ship(path: str) -> str:
    source = pathlib.Path(path)
    if ":" in source.name or source.name.startswith("-"):  # scp and gcloud would take it for a host, or a flag
      raise UserError(f"{path}: is copied to the hosts; give it a name without a colon, and no dash first")
    if not source.is_file():
      raise UserError(f"{path}: no such file; it would be copied to the hosts")
    if files.setdefault(source.name, source) != source:
      raise UserError(f"{files[source.name]} and {source} have the same name; give one another, since both are copied")
    return f"{FOLDER}/{source.name}"

  changed = list(argv)
  spec = option(argv, "config")
  path, colon, argument = spec.partition(":")
  if path.endswith(".py"):
    local = ship(path) + colon + argument
    at = max(i for i, word in enumerate(argv) if word == "--config" or word.startswith("--config="))
    changed[at : at + (2 if argv[at] == "--config" else 1)] = [f"--config={local}"]
  modules = [ship(module) if module.endswith(".py") else _installed(module) for module in config.data.task_modules]
  if modules != list(config.data.task_modules):
    key = "--config.data.task_modules="
    changed = [word for word in changed if not word.startswith(key)] + [key + ",".join(modules)]
  return changed, files


def read(argv: Sequence[str], *, remote: bool, devices: int | None = None) -> Job:
  """The job that stands behind `--` on the command line.

  Args:
    argv: a t2t command and its options.
    remote: the hosts do not share this machine's files: the workdir must be in a bucket, data must not be on this
      machine, and .py files are copied.
    devices: that the hosts have together, if it is known.

  Raises:
    UserError: no such command, a config that `t2t train` would refuse, a mesh of another size than the devices, or
      files that the hosts would not see.
  """
  from t2t import __main__ as t2t_main

  known = [name for name in t2t_main.SUBCOMMANDS if name != "launch"]
  if not argv:
    raise UserError("after -- comes the t2t command that the hosts run: ... -- train --config NAME --workdir gs://...")
  if argv[0] == "t2t":
    argv = argv[1:]  # `-- t2t train ...` is what one pastes
  if not argv or argv[0] not in known:
    name = argv[0] if argv else ""
    raise UserError(f"-- {name}: no t2t command{did_you_mean(name, known)}; there are {', '.join(known)}")
  if gin_option := next((word for word in argv if re.match(r"--gin(_file|\.|=|_search_paths)", word)), ""):
    raise UserError(
      f"-- {argv[0]} {gin_option}: hosts are started with a config; `t2t convert --gin_file FILE.gin > NAME.py` makes"
      " one of a gin file, and --config NAME.py is copied to them"
    )
  # What names a file, or a place, is shown, looked up and copied; other words may be any text.
  named = {f"--{name}": option(argv, name) or "" for name in ("config", "workdir", "checkpoint", "input", "output")}
  shell_lib.check_words(named)
  config = _config(argv)
  run = records(config) if config is not None and argv[0] == "train" else None
  parts = stages.of(run) if run is not None else ()
  if devices is not None and parts:
    from t2t.training import mesh_selection, recipe

    mesh_selection.choose(recipe.largest(parts).config, devices)
  workdir = option(argv, "workdir")
  if argv[0] == "train" and not workdir:
    raise UserError("-- train: --workdir is missing" + ("; give a path in a bucket, gs://BUCKET/RUN" if remote else ""))
  if workdir and remote and not re.fullmatch(r"gs://[^/]+/.+", workdir):
    raise UserError(
      f"--workdir {workdir}: the machines' disks go away with them; give a path in a bucket, gs://BUCKET/RUN"
    )
  files: dict[str, pathlib.Path] = {}
  if remote and config is not None:
    _check_paths(config)
    argv, files = _shipped(argv, config)
  if run is not None and not run.init.use_model_config:  # or the checkpoint's vocabulary takes its place
    run.data.check_vocabulary()
  return Job(tuple(argv), files, workdir, _reads(config, named))
