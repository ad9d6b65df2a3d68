"""Answers that are entities of a text, one of them right: each is a candidate where the text mentions it first."""

from collections.abc import Sequence
import re

import numpy as np
import tensorflow as tf

from t2t.data.head_examples.reading import Features, Reading
from t2t.data.vocabularies import offsets


def find(passage: str, entities: Sequence[str]) -> list[list[int]]:
  """The first characters of all mentions of each entity, in words of their own; else wherever it is spelled.

  In:  "Annabel met Ann.", ["Ann", "bel", "Bob"]
  Out: [[12], [4], []]
  """
  mentions = []
  for entity in entities:
    pattern = re.escape(entity)
    places = [match.start() for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", passage)] if entity else []
    mentions.append(places or ([match.start() for match in re.finditer(pattern, passage)] if entity else []))
  return mentions


def candidates(starts: np.ndarray, ends: np.ndarray, mentions: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
  """(token, number of the entity) of the first mention of each entity, in the order of tokens.

  A token stands for one entity: of two that begin alike ("York", "York City") the second has its next mention, and none
  if it has no other.

  Args:
    starts, ends: characters of the tokens that are read.
    mentions: of each entity, see `find`.
  """
  entity_of_token: dict[int, int] = {}
  for number, places in sorted(enumerate(mentions), key=lambda pair: len(pair[1])):
    for mention in places:
      (tokens,) = np.nonzero((starts <= mention) & (ends > mention))
      if len(tokens) and int(tokens[0]) not in entity_of_token:
        entity_of_token[int(tokens[0])] = number
        break
  return sorted(entity_of_token.items())


def make(example: Features, reading: Reading) -> Features:
  """A passage and a query; where the passage first mentions an entity the head is asked whether it is the answer.

  In:  {"passage": "Ann met Bob and Ann won", "query": "@placeholder is glad", "options": ["Ann", "Bob", "Eve"],
        "answers": ["Bob"], "training": False}                        words 5, 6, ... with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 7, 8, 5, 9, 102, 10, 11, 12, 13, 102],
        "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], "texts": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "answer_heads": [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "answer_targets": [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "options": ["Ann", "Bob"], "inputs_uncut": 13,
        "has_answer": True}

  "options" are those that are asked, in the order of the passage.  Of a passage that does not fit the end is cut; in
  training, where that would leave no right answer, the beginning.
  """

  def row(passage, query, entities, right, training) -> tuple[np.ndarray, ...]:
    passage, names = passage.decode(), [entity.decode() for entity in entities]
    framing, vocabulary = reading.framing, reading.vocabulary
    tokens, asks = (offsets.tokens_of(vocabulary, text) for text in (passage, query.decode()))
    uncut = len(tokens.ids) + len(asks.ids) + framing.size(2)
    room = reading.length - framing.size(2)
    # The query is short: where it is not, the passage keeps half of the room.
    behind = asks.ids[: room - min(len(tokens.ids), room // 2)]
    room -= len(behind)
    mentions = find(passage, names)
    is_right = np.isin(entities, right) if len(right) else np.zeros(len(names), bool)
    places = [mention for places, is_own in zip(mentions, is_right, strict=True) if is_own for mention in places]
    first = 0
    if training and places:
      (reached,) = np.nonzero(tokens.ends > min(places))
      first = min(int(reached[0]), len(tokens.ids) - room) if len(reached) and reached[0] >= room else 0
    ids, starts, ends = (column[first : first + room] for column in tokens)
    candidate_tokens = candidates(starts, ends, mentions)
    before = len(framing.begin)
    inputs = np.concatenate([framing.begin, ids, framing.between, behind, framing.end]).astype(np.int32)
    types, heads, targets = (np.zeros(len(inputs), np.int32) for _ in range(3))
    types[before + len(ids) + len(framing.between) :] = 1
    for token, number in candidate_tokens:
      heads[before + token] = reading.number + 1
      targets[before + token] = is_right[number]
    options = np.array([entities[number] for _, number in candidate_tokens], object)
    return inputs, types, heads, targets, options, np.int32(uncut)

  arguments = [example[name] for name in ("passage", "query", "options", "answers", "training")]
  *columns, uncut = tf.numpy_function(row, arguments, [tf.int32] * 4 + [tf.string, tf.int32], stateful=False)
  inputs, types, heads, targets, options = (tf.ensure_shape(x, [None]) for x in columns)
  return {
    "inputs": inputs,
    "token_types": types,
    "texts": tf.zeros_like(inputs),
    "answer_heads": heads,
    "answer_targets": targets,
    "options": options,
    "inputs_uncut": tf.ensure_shape(uncut, []),
    "has_answer": tf.reduce_any(targets > 0),
  }
