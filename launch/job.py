"""The t2t command for all hosts, checked locally before anything costs money."""

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

# Config keys with files that the hosts read.
_PATHS = (
  "data.files",
  "data.eval_files",
  "data.benchmark_dirs",
  "data.sources",
  "data.vocabulary",
  "init.checkpoint",
)

_OF_SOURCE = ("files", "eval_files")  # keys of each of data.sources

FOLDER = "files"  # folder of a job's files, relative to the job's working folder


@dataclasses.dataclass(frozen=True)
class Job:
  """A t2t command, and the local files that it needs.

  Attributes:
    argv: arguments of `t2t`, with the hosts' names of files.
    files: name in the hosts' folder `files` -> path on this machine.
    workdir: of its --workdir, or None.
    reads: key or option, "config.data.vocabulary" -> paths in buckets that the command reads for it.
  """

  argv: tuple[str, ...]
  files: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
  workdir: str | None = None
  reads: dict[str, list[str]] = dataclasses.field(default_factory=dict)

  @property
  def fingerprint(self) -> str:
    """Twelve hex digits that identify a command with its files."""
    content = [repr(self.argv)]
    content += [f"{name} {path.read_text()}" for name, path in sorted(self.files.items())]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:12]


# Environment variables that are passed to the hosts if they are paths in a bucket.
_PLACES = ("TFDS_DATA_DIR",)


def environment() -> dict[str, str]:
  """Returns the variables of this machine's environment for every host.

  Raises:
    UserError: a value contains a character that would end a line.
  """
  variables = {name: os.environ[name] for name in _PLACES if os.environ.get(name, "").startswith("gs://")}
  shell_lib.check_words(variables)
  return variables


def exports() -> str:
  """Returns `environment` as lines of a shell script."""
  return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment().items())


def option(argv: Sequence[str], name: str) -> str | None:
  """Returns the value of the last `--name VALUE` or `--name=VALUE`."""
  value = None
  for i, argument in enumerate(argv):
    if argument.startswith(f"--{name}="):
      value = argument.partition("=")[2]
    elif argument == f"--{name}" and i + 1 < len(argv):
      value = argv[i + 1]
  return value


def _config(argv: Sequence[str]) -> ConfigDict | None:
  """Returns the config of a command as far as this machine can read it; for `t2t train` with all options."""
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
  # Other commands check their own options.
  return override(load_config(spec), [argument for argument in arguments if re.match(r"--(no)?config\.", argument)])


def _paths(config: ConfigDict) -> Iterator[tuple[str, str]]:
  """Yields keys of `_PATHS` with their values, for mappings one per name and per file of a source."""
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
          f"config.{key}={part} is on this machine, and the hosts cannot read this path. Copy the data to the bucket "
          f"(gcloud storage cp --recursive {part} gs://BUCKET/data/), and give the path in the bucket."
        )


def _reads(config: ConfigDict | None, named: Mapping[str, str]) -> dict[str, list[str]]:
  """Returns key or option -> paths in buckets that a command reads."""
  values = [] if config is None else [(f"config.{key}", value) for key, value in _paths(config)]
  values += [(option, named[option]) for option in ("--checkpoint", "--input")]
  bucket_paths = {key: [part for part in value.split(",") if part.startswith("gs://")] for key, value in values}
  return {key: paths for key, paths in bucket_paths.items() if paths}


def _installed(module: str) -> str:
  """Checks that the hosts have a module, too: files are copied, packages of this machine are not."""
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
      f"config.data.task_modules={module}: {'the module is only on this machine' if spec else 'no such module'}. "
      f"Give the file {module.replace('.', '/')}.py, which is copied to the hosts."
    )
  return module


def _shipped(argv: Sequence[str], config: ConfigDict) -> tuple[list[str], dict[str, pathlib.Path]]:
  """Returns the command with the hosts' names of its .py files, and those files."""
  files: dict[str, pathlib.Path] = {}

  def ship(path: str) -> str:
    source = pathlib.Path(path)
    if ":" in source.name or source.name.startswith("-"):  # scp and gcloud would take it for a host or a flag
      raise UserError(
        f"{path} cannot be copied to the hosts, because the name has a colon or begins with a dash. Rename the file."
      )
    if not source.is_file():
      raise UserError(f"{path}: no such file on this machine, so it cannot be copied to the hosts. Check the path.")
    if files.setdefault(source.name, source) != source:
      raise UserError(
        f"{files[source.name]} and {source} have the same name. Rename one file, because both are copied into one "
        "folder."
      )
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
  """Reads the job after `--` on the command line.

  Args:
    argv: a t2t command and its options.
    remote: whether the hosts lack this machine's files: then the workdir must be in a bucket, data must not be on
      this machine, and .py files are copied.
    devices: total of all hosts, if known.

  Raises:
    UserError: an unknown command, an invalid config, a mesh that does not fit the devices, or files that the hosts
      cannot read.
  """
  from t2t import __main__ as t2t_main

  known = [name for name in t2t_main.SUBCOMMANDS if name != "launch"]
  if not argv:
    raise UserError(
      "no command after --. Give the t2t command of the hosts: ... -- train --config NAME --workdir gs://..."
    )
  if argv[0] == "t2t":
    argv = argv[1:]  # accepts a pasted `-- t2t train ...`
  if not argv or argv[0] not in known:
    name = argv[0] if argv else ""
    raise UserError(f"-- {name}: not a t2t command{did_you_mean(name, known) or '.'} Give one of {', '.join(known)}.")
  if gin_option := next((word for word in argv if re.match(r"--gin(_file|\.|=|_search_paths)", word)), ""):
    raise UserError(
      f"-- {argv[0]} {gin_option}: hosts need a config instead of a gin file. Run `t2t convert "
      "--gin_file FILE.gin > NAME.py`, and give --config NAME.py, which is copied to the hosts."
    )
  # Names of files and places are printed, looked up and copied; other words may be any text.
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
    wanted = "a path in a bucket, gs://BUCKET/RUN" if remote else "a folder that all nodes share"
    raise UserError(f"-- train: --workdir is missing. Give {wanted}.")
  if workdir and remote and not re.fullmatch(r"gs://[^/]+/.+", workdir):
    raise UserError(
      f"--workdir {workdir}: the machines' disks are deleted with the machines. Give a path in a bucket, "
      "gs://BUCKET/RUN."
    )
  files: dict[str, pathlib.Path] = {}
  if remote and config is not None:
    _check_paths(config)
    argv, files = _shipped(argv, config)
  if run is not None and not run.init.use_model_config:  # otherwise the checkpoint's vocabulary replaces it
    run.data.check_vocabulary()
  return Job(tuple(argv), files, workdir, _reads(config, named))
