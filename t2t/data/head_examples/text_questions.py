"""Features of questions about texts, in NumPy: for inference, which has no answers and may have no TensorFlow.

The functions return what `kinds.QuestionKind.make` returns for a question without an answer, without the features of
answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.head_examples.reading import Reading
from t2t.data.special_tokens import Framing

LEAST = 4  # minimum tokens of a candidate and its prompt, without special tokens

Question = Mapping[str, Any]  # texts and lists of texts by the field names of tasks
Arrays = dict[str, np.ndarray]  # int32 [tokens] each, and "inputs_uncut" []


def shortened(lengths: Sequence[int], room: int) -> list[int]:
  """Returns the kept length of each text if all do not fit; see `special_tokens.shortened`."""
  limit = next(limit for limit in range(max(room, 0), -1, -1) if _total(lengths, limit) <= max(room, 0))
  kept = [min(length, limit) for length in lengths]
  spare = room - sum(kept)
  for number, length in enumerate(lengths):
    if length > limit and spare > 0:
      kept[number], spare = limit + 1, spare - 1
  return kept


def _total(lengths: Sequence[int], limit: int) -> int:
  return sum(min(length, limit) for length in lengths)


def framed(texts: Sequence[Sequence[int]], framing: Framing, length: int) -> tuple[list[int], list[int]]:
  """Joins several texts into one sequence, with token types; see `special_tokens.framed`."""
  room = length - framing.size(len(texts))
  lengths = [len(text) for text in texts]
  kept = shortened(lengths, room) if sum(lengths) > room else lengths
  tokens, types = list(framing.begin), [0] * len(framing.begin)
  for number, (text, size) in enumerate(zip(texts, kept, strict=True)):
    part = [*text[:size], *(framing.end if number == len(texts) - 1 else framing.between)]
    tokens += part
    types += [min(number, 1)] * len(part)
  return tokens, types


def joins_space(vocabulary: Any) -> bool:
  """Returns True if a space before a word has no token of its own."""
  return len(vocabulary.encode(" a")) == len(vocabulary.encode("a"))


def _arrays(**features: Sequence[int] | int) -> Arrays:
  return {name: np.array(values, np.int32) for name, values in features.items()}


def _head_numbers(tokens: Sequence[int], reading: Reading) -> list[int]:
  """Returns the number of the head plus 1 at the position that represents a text, 0 elsewhere."""
  heads = [0] * len(tokens)
  heads[-1 if reading.reads == "last" else 0] = reading.number + 1
  return heads


def read_text(question: Question, reading: Reading) -> Arrays:
  """Converts a text, or its parts, to a question for a class or a score.

  In:  {"parts": ["a b", "c"]}                         head 0, with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 102, 7, 102], "inputs_uncut": 6, "token_types": [0, 0, 0, 0, 1, 1],
        "texts": [0, 0, 0, 0, 0, 0], "answer_heads": [1, 0, 0, 0, 0, 0]}
  """
  texts = [question["inputs"]] if reading.whole or "parts" not in question else question["parts"]
  parts = [reading.vocabulary.encode(text) for text in texts]
  tokens, types = framed(parts, reading.framing, reading.length)
  return _arrays(
    inputs=tokens,
    inputs_uncut=sum(map(len, parts)) + reading.framing.size(len(parts)),
    token_types=types,
    texts=[0] * len(tokens),
    answer_heads=_head_numbers(tokens, reading),
  )


def read_choice(question: Question, reading: Reading) -> Arrays:
  """Converts a text with candidates, each after a copy of the text; see `kinds.KINDS`.

  Raises:
    UserError: not all candidates fit.
  """
  parts, candidates = ([reading.vocabulary.encode(text) for text in question[name]] for name in ("parts", "candidates"))
  framing, number = reading.framing, len(candidates)
  around = len(framing.begin) + len(framing.end) + len(framing.between)
  if reading.length // max(number, 1) < around + LEAST:
    raise too_many_candidates(number, reading)
  shared = around + (len(parts) - 1) * len(framing.between) + sum(map(len, parts))
  lengths = [shared + len(candidate) for candidate in candidates]
  most = shortened(lengths, reading.length) if sum(lengths) > reading.length else lengths
  inputs, token_types, texts, heads = [], [], [], []
  for index, candidate in enumerate(candidates):
    tokens, types = framed([*parts, candidate], framing, most[index])
    inputs += tokens
    token_types += types
    texts += [index] * len(tokens)
    heads += _head_numbers(tokens, reading)
  return _arrays(inputs=inputs, inputs_uncut=sum(lengths), token_types=token_types, texts=texts, answer_heads=heads)


def too_many_candidates(number: int, reading: Reading) -> UserError:
  """Returns the error for more candidates than fit."""
  return UserError(
    f"config.data.inputs_length={reading.length} is too short for an example with {number} candidates. Each "
    f"candidate needs at least {LEAST + 4} positions. Set --config.data.inputs_length={16 * number} or more."
  )


def read_cloze(question: Question, reading: Reading) -> Arrays:
  """Converts a filled template whose blank is one masked token, at which the head answers; see `kinds.KINDS`."""
  framing, vocabulary = reading.framing, reading.vocabulary
  space = "" if joins_space(vocabulary) else question["blank_space"]
  before = vocabulary.encode(f"{question['header']}{question['blank_before']}{space}")
  after = vocabulary.encode(question["blank_after"])
  room = reading.length - len(framing.begin) - len(framing.end) - 1
  behind = min(len(after), max(room - len(before), room // 2))
  before = before[max(len(before) - (room - behind), 0) :]
  tokens = [*framing.begin, *before, vocabularies.mask_id(vocabulary), *after[:behind], *framing.end]
  heads = [0] * len(tokens)
  heads[len(framing.begin) + len(before)] = reading.number + 1
  zeros = [0] * len(tokens)
  return _arrays(
    inputs=tokens, inputs_uncut=int(question["inputs_uncut"]), token_types=zeros, texts=zeros, answer_heads=heads
  )
