"""Pins the revisions of a run's paths hf:// to commits, the same ones after a resume and on all hosts."""

from collections.abc import Callable, Mapping
import json
import re
from typing import Any

from etils import epath
import jax

from t2t.configuration.loading import records, saved_config
from t2t.configuration.schema import Config
from t2t.runtime import hosts
from t2t.storage import gcs, hub_files

_URL = re.compile(r"hf://[^\s,]+")  # several globs are separated by commas
_KEY = "hub_revisions"


def pinned(config: Config, workdir: epath.Path) -> Config:
  """Returns a config with commits in its paths, and in config.data.hub_revisions.

  A revision that the saved config of the workdir has pinned keeps its commit, although its branch may have moved.

  Args:
    config: of the run.
    workdir: of the run, new or not.

  Raises:
    UserError: a repository or a revision does not exist.
    Away: the hub does not answer.
  """
  values: Mapping[str, Any] = json.loads(json.dumps(config.to_dict()))
  fresh = hub_files.commits()
  commits = adopt(values, workdir)
  with_commits = _replaced(values, lambda url, _: _with_commit(url, commits, fresh))
  with_commits["data"][_KEY] = tuple(f"{key}={commit}" for key, commit in sorted(commits.items()))
  return records(saved_config(with_commits))


def adopt(config: Mapping[str, object], workdir: epath.Path | None) -> dict[str, str]:
  """Makes this process read the commits of a run, which the first process chooses.

  Args:
    config: {section: {key: value}}.
    workdir: of the run; None: of a command without one.

  Returns:
    Repository and revision -> commit, of all revisions in the config.

  Raises: see `pinned`.
  """
  commits: dict[str, str] = {}
  if jax.process_index() == 0:
    data: Any = config["data"]
    known = _saved(workdir / "config.json") if workdir else {}
    known |= _parsed(data[_KEY])

    def pin(url: str, key: str) -> str:
      location = hub_files.parse(url)
      hub_files.adopt({key: known[key] for key in {location.key} & known.keys()})
      commit = hub_files.pinned(location, where=f"config.{key}=").revision
      if commit != location.revision:
        commits[location.key] = commit
      return url

    _replaced(config, pin)
    commits = {**{key: known[key] for key in _parsed(data[_KEY])}, **commits}
  commits = hosts.share(commits)
  hub_files.adopt(commits)
  return commits


def _saved(path: epath.Path) -> dict[str, str]:
  """Returns the commits of a saved config; {} without one."""
  try:
    return _parsed(json.loads(gcs.read(path))["data"].get(_KEY, ()))
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return {}  # `open_run` reports a damaged workdir


def _parsed(revisions: Any) -> dict[str, str]:
  return dict(text.rsplit("=", 1) for text in revisions if "=" in text)


def _with_commit(url: str, commits: Mapping[str, str], fresh: Mapping[str, str]) -> str:
  """Returns a path with its commit; a commit that this process found before it read the workdir is replaced, too."""
  location = hub_files.parse(url)
  begin = location.key.rpartition("@")[0]
  for key, commit in commits.items():
    if key == location.key or (key.startswith(f"{begin}@") and location.revision == fresh.get(key)):
      return hub_files.at_commit(location, commit)
  return url


def _replaced(value: Any, change: Callable[[str, str], str], at: str = "") -> Any:
  """Returns nested config values with each path hf:// changed; `change` takes the path and its key."""
  if isinstance(value, Mapping):
    items = {key: (item, f"{at}.{key}" if at else key) for key, item in value.items()}
    return {key: item if key == _KEY else _replaced(item, change, inner) for key, (item, inner) in items.items()}
  if isinstance(value, list | tuple):
    return type(value)(_replaced(item, change, at) for item in value)
  return _URL.sub(lambda match: change(match[0], at), value) if isinstance(value, str) else value
