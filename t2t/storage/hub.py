"""Recognizes names of models on Hugging Face's hub, which t2t does not download, and says what does."""

import os
import pathlib
import re
import shlex

from t2t import UserError

# A model with its owner, and the models that the hub has without one.
_OWNED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BARE = re.compile(r"(t5|bert|roberta|xlm-roberta|albert|distilbert|distilroberta|gpt2|distilgpt2)(-[\w.-]+)?")
_PREFIX = re.compile(r"(hf://|(https?://)?(www\.)?(huggingface\.co|hf\.co)/)(models/)?")


def name_of(path: str) -> str:
  """Returns the name of the model on the hub that a path looks like; "" for paths of this machine and of buckets.

  In:  "google/t5-v1_1-small", "https://huggingface.co/google/t5-v1_1-small/tree/main", "runs/tiny", "gs://b/c"
  Out: "google/t5-v1_1-small", "google/t5-v1_1-small", "", ""

  The last but one is a path because `runs` is a folder here.
  """
  path = os.fspath(path)
  if match := _PREFIX.match(path):
    return "/".join(path[match.end() :].strip("/").split("/")[:2])
  if os.path.exists(path):
    return ""
  if _OWNED.fullmatch(path):
    return "" if pathlib.Path(path).parts[0] in _FOLDERS or os.path.exists(path.split("/")[0]) else path
  return path if _BARE.fullmatch(path) else ""


# What folders of checkpoints are usually called; nobody of that name has models on the hub.
_FOLDERS = frozenset(
  ("runs", "run", "checkpoints", "checkpoint", "models", "model", "out", "output", "outputs", "data", "tmp", "workdir")
)


def check(path: str, *, where: str) -> None:
  """Refuses names of the hub where a folder is needed.

  Args:
    path: what the user gave.
    where: what the user named it with, for messages.

  Raises:
    UserError: it looks like a name of the hub; says how to download it.
  """
  name = name_of(path)
  if name:
    folder = name.rpartition("/")[2]
    raise UserError(
      f"{where}{path}: there is no such folder. It looks like a model on Hugging Face's hub, which t2t does not"
      f" download. Run `hf download {shlex.quote(name)} --local-dir {shlex.quote(folder)}` (pip install"
      f" huggingface_hub), and give {folder}"
    )
