"""Preprocessors for tasks with answers in a text; preprocessors.py re-exports them.

For models with heads the text is kept unchanged, with the positions of the answers.
"""

from collections.abc import Sequence
import re

import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import postprocessors
from t2t.feature_spec import UNKNOWN

Features = dict[str, tf.Tensor]


def head_name(prefix: str) -> str:
  """Returns a name that is valid in the path of a parameter.

  In:  "docs match"
  Out: "docs_match"
  """
  return re.sub(r"\W", "_", prefix)


# ---- Reading comprehension -------------------------------------------------------------------------------------------


@seqio.map_over_dataset
def record(features: Features) -> Features:
  """Makes examples that ask which entity of a passage replaces @placeholder in a query.

  In:  {"passage": "Ann met Bob.\\n@highlight\\nAnn won", "query": "@placeholder is glad", "entities": ["Ann", "Bob"],
        "answers": ["Ann", "Bob"], "idx": {"passage": 3, "query": 8}, "training": True}
  Out: {"inputs": "record query: @placeholder is glad entities: Ann, Bob passage: Ann met Bob. Ann won",
        "targets": "Ann", "idx": [3, 8], "options": ["Ann", "Bob"], "answers": ["Ann", "Bob"], "training": True,
        "head": "record", "passage": "Ann met Bob. Ann won", "query": "@placeholder is glad"}

  The first answer is the target. Highlights become sentences of the passage, after an added full stop if one is
  missing.

  Source: T5's code; the paper does not show the task.
  """
  passage = tf.strings.regex_replace(features["passage"], r"""([.?!"'])\n@highlight\n""", r"\1 ")
  passage = tf.strings.regex_replace(passage, r"\n@highlight\n", ". ")
  entities = tf.strings.reduce_join(features["entities"], separator=", ")
  return {
    "inputs": tf.strings.join(["record query:", features["query"], "entities:", entities, "passage:", passage], " "),
    "targets": tf.concat([features["answers"], [UNKNOWN]], 0)[0],
    "idx": tf.stack([tf.cast(features["idx"][part], tf.int32) for part in ("passage", "query")]),
    "options": features["entities"],
    "answers": features["answers"],
    "training": features["training"],
    "head": tf.constant("record"),
    "passage": passage,
    "query": features["query"],
  }


def each_answer(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Makes one training example per correct answer; evaluation and heads keep one example.

  In:  {"targets": "a", "answers": ["a", "b"], "training": True}, {"targets": "c", "answers": ["c", "d"],
        "training": False}
  Out: {"targets": "a", "answers": ["a", "b"]}, {"targets": "b", "answers": ["a", "b"]},
       {"targets": "c", "answers": ["c", "d"]}

  Source: T5's code.
  """

  def apart(features: Features) -> tf.data.Dataset:
    more = features["training"] & (tf.size(features["answers"]) > 0)
    targets = tf.cond(more, lambda: features["answers"], lambda: features["targets"][None])
    other_features = {name: x for name, x in features.items() if name != "training"}
    return tf.data.Dataset.from_tensor_slices(targets).map(lambda target: {**other_features, "targets": target})

  return dataset.flat_map(apart)


def _space_punctuation(text: tf.Tensor) -> tf.Tensor:
  """Adds spaces around all characters except ASCII letters, digits and underscores, as T5 does.

  In:  "Is it $5?"
  Out: "Is it $ 5 ?"
  """
  text = tf.strings.regex_replace(text, r"(\W)", r" \1 ")
  return tf.strings.strip(tf.strings.regex_replace(text, r"\s+", " "))


@seqio.map_over_dataset
def spans(features: Features, *, unanswerable: bool = False) -> Features:
  """Makes examples of a question on a paragraph, with the answer's words from the paragraph as target.

  In:  {"id": "a1", "question": "What does it displace?", "context": "Oxygen (O2) displaces carbon monoxide.",
        "answers": {"text": ["carbon monoxide", "monoxide."], "answer_start": [22, 29]}}
  Out: {"inputs": "question: What does it displace ? context: Oxygen ( O2 ) displaces carbon monoxide .",
        "targets": "carbon monoxide", "answers": ["carbon monoxide", "monoxide ."], "id": "a1", "head": "span",
        "question": "What does it displace?", "context": "Oxygen (O2) displaces carbon monoxide.",
        "answer_texts": ["carbon monoxide", "monoxide."], "answer_starts": [22, 29]}

  T5's code puts spaces around punctuation, in answers as well; appendix D.15 of the paper shows the text without them.
  They give an answer the same tokens at any place of the paragraph. The first answer is the target.

  Args:
    features: as above; "answer_start" counts characters.
    unanswerable: whether a question without answers has the target `postprocessors.UNANSWERABLE`; otherwise such
      questions are left out.
  """
  gold_answers = features["answers"]
  spaced = _space_punctuation(gold_answers["text"])
  question, context = _space_punctuation(features["question"]), _space_punctuation(features["context"])
  nothing = postprocessors.UNANSWERABLE if unanswerable else UNKNOWN
  return {
    "inputs": tf.strings.join(["question:", question, "context:", context], " "),
    "targets": tf.concat([spaced, [nothing]], 0)[0],
    "answers": spaced,
    "id": features["id"],
    "head": tf.constant("span"),
    "question": features["question"],
    "context": features["context"],
    "answer_texts": gold_answers["text"],
    "answer_starts": tf.cast(gold_answers["answer_start"], tf.int32),
  } | ({"no_answer": tf.constant(nothing)} if unanswerable else {})


squad = spans  # T5's name


# ---- Tags ------------------------------------------------------------------------------------------------------------


@seqio.map_over_dataset
def tagged(features: Features, *, words: str, tags: str, names: Sequence[str], prefix: str) -> Features:
  """Makes examples of words, with the entities that tags mark as target, or with the tags if they mark none.

  In:  {"tokens": ["Ann", "Lee", "saw", "Rome"], "ner": [1, 2, 0, 3]}
  Out: {"inputs": "ner: Ann Lee saw Rome", "targets": "PER: Ann Lee; LOC: Rome", "head": "ner",
        "words": ["Ann", "Lee", "saw", "Rome"], "tags": [1, 2, 0, 3], "options": ["O", "B-PER", "I-PER", "B-LOC"]}

  Args:
    features: as above.
    words: name of the field with the words.
    tags: name of the field with the number of each word's tag.
    names: names of the tags: B- and I- before an entity type, and O; or classes of single words: DET, NOUN.
    prefix: name of the task.

  Raises:
    UserError: see `postprocessors.mark_entities`.

  Source: tags of Ramshaw & Marcus 1995, with B- at the start of each entity.
  """
  postprocessors.mark_entities(names)

  def write(words, tags) -> bytes:
    unknown = [int(tag) for tag in tags if not 0 <= tag < len(names)]
    if unknown:
      raise UserError(
        f"{prefix}: a word has the tag {unknown[0]}, but there are only {len(names)} tags, numbered from 0: "
        f"{', '.join(names)}. Correct the tag of the word, or the names of the tags."
      )
    return postprocessors.written_tags([word.decode() for word in words], [names[tag] for tag in tags], names).encode()

  numbers = tf.cast(features[tags], tf.int32)
  targets = tf.numpy_function(write, [features[words], numbers], tf.string, stateful=False)
  return {
    "inputs": tf.strings.join([prefix, ": ", tf.strings.reduce_join(features[words], separator=" ")]),
    "targets": tf.ensure_shape(targets, []),
    "head": tf.constant(head_name(prefix)),
    "words": features[words],
    "tags": numbers,
    "options": tf.constant(names),
  }
