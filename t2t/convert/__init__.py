"""Conversion of checkpoints: Hugging Face folders and PEFT adapters (import and export), and T5X (import).

Imports are deferred, because every command calls `kind_of`.
"""

import typing

if typing.TYPE_CHECKING:
  from t2t.convert.lazy_tensors import Foreign


def is_huggingface(path: str) -> bool:
  """Returns whether a Hugging Face folder is at `path`; reads file names and config.json."""
  from t2t.convert import huggingface

  return huggingface.is_huggingface(path)


def is_t5x(path: str) -> bool:
  """Returns whether a T5X checkpoint is at `path`; reads file names and first bytes."""
  from t2t.convert import t5x

  return t5x.is_t5x(path)


def is_peft(path: str) -> bool:
  """Returns whether a PEFT adapter is at `path`; reads file names."""
  from t2t.convert import peft

  return peft.is_peft(path)


def kind_of(path: str) -> str:
  """Returns the kind of a checkpoint: "int8", "hf", "peft", "t5x", or "t2t" for all others."""
  from t2t.storage import gcs

  if (gcs.absolute(path) / "int8.safetensors").exists():
    return "int8"
  for kind, is_one in (("peft", is_peft), ("hf", is_huggingface), ("t5x", is_t5x)):
    if is_one(path):
      return kind
  return "t2t"


def open_foreign(path: str, *, where: str = "") -> "Foreign":
  """Opens the checkpoint of Hugging Face or T5X at `path` as a t2t model with lazy parameters.

  Args:
    path: local or gs://.
    where: the option or key of the path, for messages.

  Raises:
    UserError: it cannot be read.
  """
  from t2t import UserError
  from t2t.convert import huggingface, int8, t5x

  if kind_of(path) == "int8":
    return int8.open_foreign(path, where=where)
  if is_peft(path):
    raise UserError(
      f"{where}{path} is a PEFT adapter without its base model. Run"
      f" `t2t convert --from peft {path} --base BASE --to t2t OUT`, and give OUT instead."
    )
  return (huggingface if is_huggingface(path) else t5x).open_foreign(path, where=where)
