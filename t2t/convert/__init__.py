"""Checkpoints of other formats: Hugging Face folders and PEFT's adapters, read and written, and T5X's, read.

Nothing is imported before it is needed: every command asks of which kind a checkpoint is.
"""

import typing

if typing.TYPE_CHECKING:
  from t2t.convert.lazy_tensors import Foreign


def is_huggingface(path: str) -> bool:
  """Whether a Hugging Face folder is at `path`; looks at names and at config.json."""
  from t2t.convert import huggingface

  return huggingface.is_huggingface(path)


def is_t5x(path: str) -> bool:
  """Whether a T5X checkpoint is at `path`; looks at names and first bytes."""
  from t2t.convert import t5x

  return t5x.is_t5x(path)


def is_peft(path: str) -> bool:
  """Whether an adapter of PEFT's is at `path`; looks at names."""
  from t2t.convert import peft

  return peft.is_peft(path)


def kind_of(path: str) -> str:
  """ "hf", "peft", "t5x", or "t2t" for all else."""
  for kind, is_one in (("peft", is_peft), ("hf", is_huggingface), ("t5x", is_t5x)):
    if is_one(path):
      return kind
  return "t2t"


def open_foreign(path: str, *, where: str = "") -> "Foreign":
  """The checkpoint of Hugging Face's or T5X's at `path` as a t2t model; its parameters are not read yet.

  Args:
    path: local or gs://.
    where: what the user named it with, for messages.

  Raises:
    UserError: it cannot be read; says what is wrong with it.
  """
  from t2t import UserError
  from t2t.convert import huggingface, t5x

  if is_peft(path):
    raise UserError(
      f"{where}{path}: is an adapter of PEFT's, which is no model by itself; put it on top of its base by"
      f" `t2t convert --from peft {path} --base BASE --to t2t OUT`, and give OUT"
    )
  return (huggingface if is_huggingface(path) else t5x).open_foreign(path, where=where)
