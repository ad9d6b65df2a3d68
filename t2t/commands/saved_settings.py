"""Settings of a command that makes many runs in one folder: saved at the first call, and checked at later calls."""

from collections.abc import Mapping
import json
from typing import Any

from etils import epath
import jax

from t2t import UserError
from t2t.storage import gcs


def check(path: epath.Path, config: Mapping[str, Any], options: Mapping[str, Any], *, kind: str) -> None:
  """Refuses a folder that was made with other settings; saves the settings of a new folder.

  Args:
    path: of the file with the settings.
    config: "SECTION.KEY" -> value, without keys that differ between the runs.
    options: name of an option without dashes -> value.
    kind: of the folder, for the message: "curve".

  Raises:
    UserError: names the first setting that differs, with both values.
  """
  settings = dict(config) | {f"--{name}": value for name, value in options.items()}
  settings = json.loads(json.dumps(settings, default=str))
  if not path.exists():
    if jax.process_index() == 0:
      gcs.write(path, json.dumps(settings, indent=1))
    return
  saved = json.loads(path.read_text())
  for key in sorted(settings.keys() | saved.keys()):
    if settings.get(key) != saved.get(key):
      named = key if key.startswith("--") else f"config.{key}"
      raise UserError(
        f"{named}={settings.get(key)}: the {kind} in {path.parent} was made with {saved.get(key)}. Give the earlier "
        "value, or another --workdir."
      )
