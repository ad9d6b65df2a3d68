"""Questions with entities of a passage as candidates: a head scores each entity at a mention in the passage."""

from __future__ import annotations

from collections.abc import Sequence
import re

import numpy as np

from t2t.data.head_examples.reading import Features, Reading
from t2t.data.vocabularies import offsets
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")


def find(passage: str, entities: Sequence[str]) -> list[list[int]]:
  """Returns the start characters of all mentions per entity: whole words, or any match if there is no whole word.

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
  """Returns (token, entity index) for one mention of each entity, in token order.

  A token represents one entity. If mentions of two entities ("York", "York City") begin in the same token, the entity
  with fewer mentions takes it. The other entity takes its next mention, and is left out if there is none.

  Args:
    starts, ends: character offsets of the tokens.
    mentions: start characters per entity, from `find`.
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
  """Converts a passage and a query; the head predicts at an entity's mention whether the entity is the answer.

  In:  {"passage": "Ann met Bob and Ann won", "query": "@placeholder is glad", "options": ["Ann", "Bob", "Eve"],
        "answers": ["Bob"], "training": False}                        words 5, 6, ... with [CLS] 101 and [SEP] 102
  Out: {"inputs": [101, 5, 6, 7, 8, 5, 9, 102, 10, 11, 12, 13, 102],
        "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1], "texts": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "answer_heads": [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "answer_targets": [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "options": ["Ann", "Bob"], "inputs_uncut": 13,
        "has_answer": True}

  "options" lists the entities with a mention, in passage order. If a passage does not fit, its end is cut. In training,
  its beginning is cut instead if the end has all mentions of the right answers.
  """

  def row(passage, query, entities, right, training) -> tuple[np.ndarray, ...]:
    passage, names = passage.decode(), [entity.decode() for entity in entities]
    framing, vocabulary = reading.framing, reading.vocabulary
    tokens, asks = (offsets.tokens_of(vocabulary, text) for text in (passage, query.decode()))
    uncut = len(tokens.ids) + len(asks.ids) + framing.size(2)
    room = reading.length - framing.size(2)
    # Queries are usually short. A long query is cut so that the passage keeps half of the room.
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
