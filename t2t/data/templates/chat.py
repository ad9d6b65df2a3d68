"""Conversations as text: one example for each answer of the assistant, with the turns before it as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t2t import UserError, did_you_mean
from t2t.runtime import data_packages

if TYPE_CHECKING:
  import seqio

tf = data_packages.lazy_module("tensorflow")

# Role -> text of a turn. Each has {content} once; what stands before it in the assistant's text asks for the answer.
PLAIN = {"system": "{content}\n", "user": "User: {content}\n", "assistant": "Assistant: {content}\n"}
_CONTENT = "{content}"
_ANSWERS, _KEPT = "assistant", "system"
_EOS = 1


def check(turns: Mapping[str, Any], *, where: str) -> None:
  """Checks the texts of the roles.

  Raises:
    UserError: the assistant has no text, or a text has no {content}.
  """
  if _ANSWERS not in turns:
    raise UserError(f"{where} turns: no text for the role assistant, whose answers are learned; give it one")
  for role, text in turns.items():
    if not isinstance(text, str) or text.count(_CONTENT) != 1:
      raise UserError(f"{where} turns.{role}={text!r} must be a text with {_CONTENT} once")


def answers(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Mapping[str, int] | None,
  *,
  turns: Mapping[str, str],
) -> tf.data.Dataset:
  """Makes an example of each message of the assistant, so that only answers count in the loss.

  In:  {"roles": ["user", "assistant", "user", "assistant"], "contents": ["Hi", "Hello", "Bye", "See you"]}
  Out: {"inputs": "User: Hi\\nAssistant: ", "targets": "Hello"},
       {"inputs": "User: Hi\\nAssistant: Hello\\nUser: Bye\\nAssistant: ", "targets": "See you"}

  Inputs longer than `sequence_length` lose the oldest turns, except those of the system; "inputs_uncut" has their
  length before.

  Args:
    dataset: roles and texts of messages.
    output_features: of the task.
    sequence_length: feature -> maximum number of tokens; empty: no limit.
    turns: role -> text, see `PLAIN`.
  """
  vocabulary, limit = output_features["inputs"].vocabulary, (sequence_length or {}).get("inputs")
  size = lambda text: len(vocabulary.encode(text))

  def written(roles: np.ndarray, contents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    messages = [(role.decode(), content.decode()) for role, content in zip(roles, contents, strict=True)]
    rows = [_row(messages[:i], text, turns, size, limit) for i, (role, text) in enumerate(messages) if role == _ANSWERS]
    texts = np.array([[x.encode() for x in row[:2]] for row in rows], object).reshape(-1, 2)
    return texts, np.array([row[2] for row in rows], np.int32)

  def examples(record: Mapping[str, Any]) -> tf.data.Dataset:
    texts, uncut = tf.numpy_function(
      written, [record["roles"], record["contents"]], (tf.string, tf.int32), stateful=False
    )
    texts, uncut = tf.ensure_shape(texts, [None, 2]), tf.ensure_shape(uncut, [None])
    return tf.data.Dataset.from_tensor_slices({"inputs": texts[:, 0], "targets": texts[:, 1], "inputs_uncut": uncut})

  return dataset.flat_map(tf.autograph.experimental.do_not_convert(examples))


def _row(
  before: Sequence[tuple[str, str]], answer: str, turns: Mapping[str, str], size: Any, limit: int | None
) -> tuple[str, str, int]:
  prompt = turns[_ANSWERS].partition(_CONTENT)[0]
  kept = list(before)
  text = lambda: "".join(_turn(role, content, turns) for role, content in kept) + prompt
  uncut = length = size(text()) + _EOS
  while limit is not None and length > limit:
    oldest = next((i for i, (role, _) in enumerate(kept[:-1]) if role != _KEPT), None)
    if oldest is None:
      break
    del kept[oldest]
    length = size(text()) + _EOS
  return text(), answer, uncut


def _turn(role: str, content: str, turns: Mapping[str, str]) -> str:
  if role not in turns:
    raise UserError(
      f"a message has the role {role}; correct it, or give turns.{role} in the chat template. Known roles: "
      f"{', '.join(turns)}{did_you_mean(role, turns)}"
    )
  before, _, after = turns[role].partition(_CONTENT)
  return f"{before}{content}{after}"
