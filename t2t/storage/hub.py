"""Recognizes names of models on the Hugging Face hub."""

import os
import pathlib
import re
import shlex

from t2t import UserError

# Model names with an owner, and the models that the hub has without one.
_OWNED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BARE = re.compile(r"(t5|bert|roberta|xlm-roberta|albert|distilbert|distilroberta|gpt2|distilgpt2)(-[\w.-]+)?")
_PREFIX = re.compile(r"(hf://|(https?://)?(www\.)?(huggingface\.co|hf\.co)/)(models/)?")


def name_of(path: str) -> str:
  """Returns the model name on the hub that a path looks like; "" for local paths and buckets.

    In:  "google/t5-v1_1-small", "https://huggingface.co/google/t5-v1_1-small/tree/main", "runs/tiny", "gs://b/c"
    Out: "google/t5-v1_1-small", "google/t5-v1_1-small", "", ""

  "runs/tiny" is a path because `runs` is a usual name of a folder.
  """
  path = os.fspath(path)
  if match := _PREFIX.match(path):
    return "/".join(path[match.end() :].strip("/").split("/")[:2])
  if os.path.exists(path) or path.endswith(_FILE_ENDINGS):
    return ""
  if _OWNED.fullmatch(path):
    return "" if pathlib.Path(path).parts[0] in _FOLDERS or os.path.exists(path.split("/")[0]) else path
  return path if _BARE.fullmatch(path) else ""


# Endings of vocabulary files: "text/spiece.model" is a missing file, not a model.
_FILE_ENDINGS = (".model", ".json", ".txt", ".bpe")

# Usual names of local folders; no owner on the hub has one of these names.
_FOLDERS = frozenset(
  ("runs", "run", "checkpoints", "checkpoint", "models", "model", "out", "output", "outputs", "data", "tmp", "workdir")
)


def check(path: str, *, where: str) -> None:
  """Raises an error for a name of the hub in place of a folder.

  Args:
    path: the user's value.
    where: the user's key or flag for it, for messages.

  Raises:
    UserError: with the command that downloads the model.
  """
  name = name_of(path)
  if name:
    folder = name.rpartition("/")[2]
    raise UserError(
      f"{where}{path}: no such folder. It looks like a model on the Hugging Face hub. Give hf://{name}; or run "
      f"`hf download {shlex.quote(name)} --local-dir {shlex.quote(folder)}`, and give {folder}."
    )
