"""Benchmarks as text: seqio preprocessors from a record of TensorFlow Datasets to {"inputs", "targets", ...}.

The formats are T5's (Raffel et al. 2020, appendix D; where the data has changed since, the paper's code), so that its
checkpoints know them. Beside the text every example keeps the fields of evaluation: "idx", the record's number;
"label", the class or -1 if unknown; "options", the texts of the classes; "answers", all correct answers. For models
with heads the texts are also separate: "head", the name of the task's head; "parts", in reading order; "candidates",
the texts to choose from. Records come from `benchmark_files.BenchmarkSource`, which adds "training" to TFDS's fields.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import re

import numpy as np
import seqio
import tensorflow as tf

from t2t.data import qa_preprocessors, vocabularies
from t2t.feature_spec import UNKNOWN

Features = dict[str, tf.Tensor]
Preprocessor = Callable[..., tf.data.Dataset]


LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


# ---- Classification --------------------------------------------------------------------------------------------------


def _target(label: tf.Tensor, labels: Sequence[str]) -> tf.Tensor:
  """Returns the text of a class, `UNKNOWN` for -1."""
  return _named(tf.cast(label, tf.int32), tf.constant([*labels]))


def _named(number: tf.Tensor, names: tf.Tensor) -> tf.Tensor:
  """Returns the name of a number, `UNKNOWN` below 0; a number without a name is an error of tf.data."""
  count = tf.size(names)
  message = ["a label must be below the number of classes, counted from 0:", number, count]
  tf.debugging.Assert(tf.reduce_all(number < count), message)
  return tf.where(number < 0, UNKNOWN, tf.gather(names, tf.clip_by_value(number, 0, count - 1)))


@seqio.map_over_dataset
def labelled(
  features: Features, *, prefix: str, fields: Sequence[str], labels: Sequence[str], parts: Sequence[str] = ()
) -> Features:
  """Makes examples of one or more texts, each behind its field name, with one of a few labels.

  In:  {"premise": "Valence the void-brain, Valence the virtuous valet. Why couldn't the figger choose his own portion"
        " of titanic anatomy to shaft? Did he think he was helping?",
        "hypothesis": "Valence was helping", "label": 1, "idx": 0}
  Out: {"inputs": "cb hypothesis: Valence was helping premise: Valence the void-brain, Valence the virtuous valet. Why"
        " couldn't the figger choose his own portion of titanic anatomy to shaft? Did he think he was helping?",
        "targets": "contradiction", "label": 1, "idx": 0, "options": ["entailment", "contradiction", "neutral"],
        "head": "cb", "parts": ["Valence the void-brain, Valence the virtuous valet. Why couldn't the figger choose his"
        " own portion of titanic anatomy to shaft? Did he think he was helping?", "Valence was helping"]}

  Args:
    features: the `fields` and "label"; "idx" is kept.
    prefix: name of the task.
    fields: fields in reading order.
    labels: texts of the classes.
    parts: fields in the reading order of an encoder; empty: `fields`.
  Source: Raffel et al. 2020, appendix D.9, and D.1 to D.12 for other tasks; parts as in Devlin et al. 2019, section
    4.1.
  """
  words = [prefix]
  for field in fields:
    words += [f"{field}:", features[field]]
  return {
    "inputs": tf.strings.join(words, " "),
    "targets": _target(features["label"], labels),
    "label": tf.cast(features["label"], tf.int32),
    "options": tf.constant(labels),
    "head": tf.constant(qa_preprocessors.head_name(prefix)),
    "parts": tf.stack([features[field] for field in parts or fields]),
  } | _number_of(features)


def _number_of(features: Features) -> Features:
  """Returns the number of the record, if it has one."""
  return {"idx": tf.cast(features["idx"], tf.int32)} if "idx" in features else {}


@seqio.map_over_dataset
def choices(
  features: Features, *, prefix: str, fields: Sequence[str], candidates: str | Sequence[str], label: str = "label"
) -> Features:
  """Makes examples of one or more texts, each behind its field name, with several candidates, one of them correct.

  In:  {"context": "It rained all day.", "endings": ["It is wet.", "It is dry.", "It is old."], "label": 1}
  Out: {"inputs": "weather context: It rained all day. choice1: It is wet. choice2: It is dry. choice3: It is old.",
        "targets": "choice2", "label": 1, "options": ["choice1", "choice2", "choice3"], "head": "weather",
        "parts": ["It rained all day."], "candidates": ["It is wet.", "It is dry.", "It is old."]}

  Args:
    features: as above; "idx" is kept.
    prefix: name of the task.
    fields: fields in reading order.
    candidates: the field with all candidates, or fields with one each.
    label: the field with the number of the correct candidate; -1 if unknown.
  Source: COPA in Raffel et al. 2020, appendix D.10, with the candidates last.
  """
  candidate_texts = (
    features[candidates] if isinstance(candidates, str) else tf.stack([features[name] for name in candidates])
  )
  options = tf.strings.join(["choice", tf.strings.as_string(tf.range(1, tf.size(candidate_texts) + 1))])
  words = [prefix]
  for field in fields:
    words += [f"{field}:", features[field]]
  words.append(tf.strings.reduce_join(tf.strings.join([options, candidate_texts], ": "), separator=" "))
  right = tf.cast(features[label], tf.int32)
  return {
    "inputs": tf.strings.join(words, " "),
    "targets": _named(right, options),
    "label": right,
    "options": options,
    "head": tf.constant(qa_preprocessors.head_name(prefix)),
    "parts": tf.stack([features[field] for field in fields]),
    "candidates": candidate_texts,
  } | _number_of(features)


@seqio.map_over_dataset
def scored(features: Features, *, prefix: str, fields: Sequence[str], label: str = "label") -> Features:
  """Makes examples of one or more texts, each behind its field name, with a number as target.

  In:  {"review": "Good, not great.", "stars": 3.5}
  Out: {"inputs": "rating review: Good, not great.", "targets": "3.5", "label": 3.5, "head": "rating",
        "parts": ["Good, not great."]}

  Args:
    features: as above; "idx" is kept.
    prefix: name of the task.
    fields: fields in reading order.
    label: the field with the number; NaN if unknown.
  """
  words = [prefix]
  for field in fields:
    words += [f"{field}:", features[field]]
  number = tf.cast(features[label], tf.float32)
  return {
    "inputs": tf.strings.join(words, " "),
    "targets": tf.where(tf.math.is_nan(number), UNKNOWN, tf.strings.as_string(number, shortest=True)),
    "label": number,
    "head": tf.constant(qa_preprocessors.head_name(prefix)),
    "parts": tf.stack([features[field] for field in fields]),
  } | _number_of(features)


@seqio.map_over_dataset
def in_language(features: Features, *, language: str) -> Features:
  """Selects one language of an XNLI record with a sentence pair in several languages.

  In:  {"premise": {"de": "Es regnet.", "en": "It rains."}, "label": 1,
        "hypothesis": {"language": ["en", "de"], "translation": ["It is wet.", "Es ist nass."]}}
  Out: {"premise": "Es regnet.", "hypothesis": "Es ist nass.", "label": 1}

  Args:
    features: as above.
    language: key of the premise.
  """
  hypotheses = features["hypothesis"]
  (hypothesis,) = tf.unstack(tf.boolean_mask(hypotheses["translation"], hypotheses["language"] == language)[:1], num=1)
  return {"premise": features["premise"][language], "hypothesis": hypothesis, "label": features["label"]}


def with_id(dataset: tf.data.Dataset, *, begins: str) -> tf.data.Dataset:
  """Selects records by the beginning of their id, which is the language in TyDi QA.

  In:  {"id": "swahili-12-0"}, {"id": "finnish-3-0"}        begins "swahili-"
  Out: {"id": "swahili-12-0"}
  """
  return dataset.filter(lambda features: tf.strings.substr(features["id"], 0, len(begins)) == begins)


_COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


@seqio.map_over_dataset
def copa(features: Features) -> Features:
  """Makes examples that ask which of two sentences is the cause, or the effect, of another.

  In:  {"premise": "It rained.", "choice1": "It is wet.", "choice2": "It is dry.", "question": "effect", "label": 0,
        "idx": 3}
  Out: {"inputs": "copa choice1: It is wet. choice2: It is dry. premise: It rained. question: effect",
        "targets": "choice1", "label": 0, "idx": 3, "options": ["choice1", "choice2"],
        "head": "copa", "parts": ["It rained. What happened as a result?"], "candidates": ["It is wet.", "It is dry."]}

  Source: Raffel et al. 2020, appendix D.10; the question in words as in SuperGLUE's baselines (Wang et al. 2019).
  """
  words = ["copa"]
  for field in ("choice1", "choice2", "premise", "question"):
    words += [f"{field}:", features[field]]
  labels = ("choice1", "choice2")
  question = tf.where(features["question"] == "cause", _COPA_QUESTIONS["cause"], _COPA_QUESTIONS["effect"])
  return {
    "inputs": tf.strings.join(words, " "),
    "targets": _target(features["label"], labels),
    "label": tf.cast(features["label"], tf.int32),
    "idx": tf.cast(features["idx"], tf.int32),
    "options": tf.constant(labels),
    "head": tf.constant("copa"),
    "parts": tf.strings.join([features["premise"], question], " ")[None],
    "candidates": tf.stack([features["choice1"], features["choice2"]]),
  }


@seqio.map_over_dataset
def multirc(features: Features, *, labels: Sequence[str]) -> Features:
  """Makes examples that ask whether an answer to a question on a paragraph is correct; markup is removed.

  In:  {"paragraph": "<b>Sent 1: </b>Once upon a time, there was a squirrel named Joey.<br>",
        "question": "Who was Joey?", "answer": "A squirrel", "label": 1,
        "idx": {"paragraph": 5, "question": 2, "answer": 9}}
  Out: {"inputs": "multirc question: Who was Joey? answer: A squirrel paragraph: Sent 1: Once upon a time, there was a"
        " squirrel named Joey. ",
        "targets": "True", "label": 1, "idx": [5, 2, 9], "options": ["False", "True"], "head": "multirc",
        "parts": ["Sent 1: Once upon a time, there was a squirrel named Joey. ", "Who was Joey?", "A squirrel"]}

  Args:
    features: as above.
    labels: texts of the classes.
  Source: Raffel et al. 2020, appendix D.11, which shows the markup; T5's code removes it.
  """
  words = ["multirc"]
  for field in ("question", "answer", "paragraph"):
    words += [f"{field}:", features[field]]
  plain = lambda text: tf.strings.regex_replace(tf.strings.regex_replace(text, "<br>", " "), "</?b>", "")
  return {
    "inputs": plain(tf.strings.join(words, " ")),
    "targets": _target(features["label"], labels),
    "label": tf.cast(features["label"], tf.int32),
    "idx": tf.stack([tf.cast(features["idx"][part], tf.int32) for part in ("paragraph", "question", "answer")]),
    "options": tf.constant(labels),
    "head": tf.constant("multirc"),
    "parts": plain(tf.stack([features[part] for part in ("paragraph", "question", "answer")])),
  }


@seqio.map_over_dataset
def stsb(features: Features) -> Features:
  """Makes examples with the similarity of two sentences, 0 to 5, as text rounded to a multiple of 0.2.

  In:  {"sentence1": "Representatives for Puretunes could not immediately be reached for comment Wednesday.",
        "sentence2": "Puretunes representatives could not be located Thursday to comment on the suit.",
        "label": 3.25, "idx": 7}
  Out: {"inputs": "stsb sentence1: Representatives for Puretunes could not immediately be reached for comment"
        " Wednesday. sentence2: Puretunes representatives could not be located Thursday to comment on the suit.",
        "targets": "3.2", "label": 3.25, "idx": 7, "head": "stsb",
        "parts": ["Representatives for Puretunes could not immediately be reached for comment Wednesday.",
        "Puretunes representatives could not be located Thursday to comment on the suit."]}

  Args:
    features: as above; a label below 0 is unknown, and becomes NaN.
  Source: Raffel et al. 2020, section 2.4 and appendix D.8.
  """
  label = tf.cast(features["label"], tf.float32)
  label = tf.where(label < 0, float("nan"), label)
  rounded = tf.strings.as_string(tf.round(label * 5) / 5, precision=1)
  return {
    "inputs": tf.strings.join(["stsb sentence1:", features["sentence1"], "sentence2:", features["sentence2"]], " "),
    "targets": tf.where(tf.math.is_nan(label), UNKNOWN, rounded),
    "label": label,
    "idx": tf.cast(features["idx"], tf.int32),
    "head": tf.constant("stsb"),
    "parts": tf.stack([features["sentence1"], features["sentence2"]]),
  }


@seqio.map_over_dataset
def pair(features: Features) -> Features:
  """Adds the number of the pair that differs only in a pronoun's gender in Winogender (AX-g): neighbouring examples.

  In:  {"idx": 7}
  Out: {"idx": 7, "pair": 3}
  """
  return {**features, "pair": features["idx"] // 2}


# ---- Words of the text -----------------------------------------------------------------------------------------------


def _mark_pronoun(text: tf.Tensor, pronoun: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
  """Puts stars around the word `pronoun` nearest to word `index`, because a few of the released indices are off.

  In:  "Mark told Pete many lies. He lied.", "He", 6
  Out: "Mark told Pete many lies. *He* lied."
  """
  words = tf.strings.split(text, " ")
  places = tf.where(_bare(words) == _bare(pronoun))[:, 0]
  distances = tf.abs(places - tf.cast(index, tf.int64))
  # [1], or [0] if the word does not occur; then nothing is marked.
  nearest = tf.gather(places, tf.argsort(distances, stable=True)[:1])
  marked = tf.strings.regex_replace(tf.gather(words, nearest), r"^(\W*)(.*?)(\W*)$", r"\1*\2*\3")
  return tf.strings.reduce_join(tf.tensor_scatter_nd_update(words, nearest[:, None], marked), separator=" ")


def _bare(words: tf.Tensor) -> tf.Tensor:
  return tf.strings.lower(tf.strings.regex_replace(words, r"^\W+|\W+$", ""))


def only_right(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Removes training records with a wrong noun, because they do not name the correct one.

  Evaluation keeps them, and compares the generated text with their noun. Heads keep them too, because a head predicts
  whether a noun is correct.

  In:  {"label": 1, "training": True}, {"label": 0, "training": True}
  Out: {"label": 1, "training": True}

  Source: Raffel et al. 2020, section 2.4.
  """
  return dataset.filter(lambda features: (features["label"] == 1) | ~features["training"])


@seqio.map_over_dataset
def wsc(features: Features) -> Features:
  """Makes examples that ask for the noun of a marked pronoun.

  In:  {"text": "The stable was very roomy, with four good stalls; a large swinging window opened into the yard , which"
        " made it pleasant and airy.",
        "span1_text": "stable", "span2_text": "it", "span2_index": 20, "label": 1, "idx": 4, "training": True}
  Out: {"inputs": "wsc: The stable was very roomy, with four good stalls; a large swinging window opened into the yard"
        " , which made *it* pleasant and airy.",
        "targets": "stable", "label": 1, "idx": 4, "head": "wsc",
        "parts": ["The stable was very roomy, with four good stalls; a large swinging window opened into the yard ,"
        " which made *it* pleasant and airy.", "stable"], "classes": ["another", "stable"]}

  The second class means that the noun is correct.

  Source: Raffel et al. 2020, section 2.4 and appendix D.13.
  """
  text = _mark_pronoun(features["text"], features["span2_text"], features["span2_index"])
  return {
    "inputs": tf.strings.join(["wsc: ", text]),
    "targets": features["span1_text"],
    "label": tf.cast(features["label"], tf.int32),
    "idx": tf.cast(features["idx"], tf.int32),
    "head": tf.constant("wsc"),
    "parts": tf.stack([text, features["span1_text"]]),
    "classes": tf.stack(["another", features["span1_text"]]),
  }


@seqio.map_over_dataset
def wsc_spans(features: Features, *, labels: Sequence[str]) -> Features:
  """Makes examples that ask whether a pronoun refers to a noun of the text, with the bounds of both in characters.

  In:  {"text": "Mark told Pete many lies about himself. He lied.", "span1_text": "Mark", "span1_index": 0,
        "span2_text": "He", "span2_index": 7, "label": 1, "idx": 4}
  Out: {"inputs": "wsc span1: Mark span2: He text: Mark told Pete many lies about himself. He lied.",
        "targets": "True", "label": 1, "idx": 4, "options": ["False", "True"], "head": "wsc_spans",
        "text": "Mark told Pete many lies about himself. He lied.", "spans": [[0, 4], [40, 42]]}

  A span is the mention of its words nearest to its word index, because a few of the released indices are off.

  Args:
    features: as above.
    labels: texts of the classes.
  Source: the pairs of spans in Wang et al. 2019 (SuperGLUE).
  """
  words = ["wsc"]
  for name, field in (("span1", "span1_text"), ("span2", "span2_text"), ("text", "text")):
    words += [f"{name}:", features[field]]
  arguments = [features["text"]]
  arguments += [features[f"{span}_{part}"] for span in ("span1", "span2") for part in ("text", "index")]
  spans = tf.ensure_shape(tf.numpy_function(_bounds_of_spans, arguments, tf.int32, stateful=False), [2, 2])
  return {
    "inputs": tf.strings.join(words, " "),
    "targets": _target(features["label"], labels),
    "label": tf.cast(features["label"], tf.int32),
    "idx": tf.cast(features["idx"], tf.int32),
    "options": tf.constant(labels),
    "head": tf.constant("wsc_spans"),
    "text": features["text"],
    "spans": spans,
  }


def _bounds_of_spans(text: bytes, *texts_and_indices: bytes | int) -> np.ndarray:
  """Returns first character and end of each span, int32 [spans, 2]; see `wsc_spans`."""
  decoded = text.decode()
  word_starts = [match.start() for match in re.finditer(r"\S+", decoded)]
  bounds = []
  for span, index in zip(texts_and_indices[::2], texts_and_indices[1::2], strict=True):
    pattern = r"\s+".join(map(re.escape, span.decode().split()))
    mentions = [match.span() for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", decoded, re.IGNORECASE)]
    place = word_starts[min(int(index), len(word_starts) - 1)] if word_starts else 0
    # A span that does not occur is the word at its index.
    end = next((match.end() for match in re.finditer(r"\S+", decoded) if match.end() > place), len(decoded))
    bounds.append(min(mentions, key=lambda span, place=place: abs(span[0] - place), default=(place, end)))
  return np.array(bounds, np.int32)


# ---- Answers in a text: see qa_preprocessors.py ---------------------------------------------------------------------

record, each_answer = qa_preprocessors.record, qa_preprocessors.each_answer
spans, squad, tagged = qa_preprocessors.spans, qa_preprocessors.squad, qa_preprocessors.tagged


# ---- Text to text ----------------------------------------------------------------------------------------------------


@seqio.map_over_dataset
def summarize(features: Features, *, document: str, summary: str) -> Features:
  """Makes examples of a document and its summary.

  In:  {"article": "It rained all day.", "highlights": "Rain."}
  Out: {"inputs": "summarize: It rained all day.", "targets": "Rain."}

  Args:
    features: the two texts.
    document: name of the document's field.
    summary: name of the summary's field.
  Source: Raffel et al. 2020, appendix D.14.
  """
  return {"inputs": tf.strings.join(["summarize: ", features[document]]), "targets": features[summary]}


@seqio.map_over_dataset
def translate(features: Features, *, source: str, target: str) -> Features:
  """Makes examples of a sentence and its translation.

  In:  {"de": "Das ist gut.", "en": "That is good."}
  Out: {"inputs": "translate English to German: That is good.", "targets": "Das ist gut."}

  Args:
    features: the sentence in each language.
    source: key of `LANGUAGES`.
    target: key of `LANGUAGES`.
  Source: Raffel et al. 2020, section 2.4 and appendix D.16.
  """
  prompt = f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "
  return {"inputs": tf.strings.join([prompt, features[source]]), "targets": features[target]}


@seqio.map_over_dataset
def pairs(features: Features, *, first: str, second: str) -> Features:
  """Makes pairs of texts for a contrastive loss: a sentence in two languages, or a question and its answer.

  In:  {"de": "Das ist gut.", "en": "That is good.", "idx": 3}
  Out: {"first": "That is good.", "second": "Das ist gut."}

  Args:
    features: the two texts, and perhaps others.
    first: name of the first field, "en" above.
    second: name of the second field, "de" above.
  Source: Feng et al. 2022 (LaBSE), section 2.1.
  """
  return {"first": features[first], "second": features[second]}


# Steps that add or remove examples for generated answers; a head predicts for each record.
FOR_WRITING = (only_right, each_answer)


# ---- Preprocessors of a task -----------------------------------------------------------------------------------------


def tokenize(dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """Tokenizes texts without EOS; the texts stay under another name, and all other features stay.

  In:  {"inputs": "a b", "targets": "b", "idx": 3}            with a vocabulary that has "a" 5 and "b" 6
  Out: {"inputs": [5, 6], "targets": [6], "idx": 3, "inputs_pretokenized": "a b", "targets_pretokenized": "b"}
  """

  def encode(features: Features) -> Features:
    texts = {name: features[name] for name in output_features}
    ids = {name: output_features[name].vocabulary.encode_tf(text) for name, text in texts.items()}
    return {**features, **ids, **{f"{name}_pretokenized": text for name, text in texts.items()}}

  # seqio's own step runs 256 calls at once for each task and stream, far more than the tasks of a mixture can use.
  return dataset.map(encode, num_parallel_calls=tf.data.AUTOTUNE)


# Steps that turn text into ids.
TOKENIZERS = (tokenize, seqio.preprocessors.tokenize, seqio.preprocessors.tokenize_and_append_eos)


def text_to_text(*formats: Preprocessor, **options) -> list[Preprocessor]:
  """Returns the preprocessors of a seqio task: the formats in sequence, then tokenization and EOS.

  Args:
    *formats: functions of this file, or your own that yield "inputs" and "targets".
    **options: arguments of the first format.
  """
  first, *other_formats = formats
  return [functools.partial(first, **options), *other_formats, tokenize, seqio.preprocessors.append_eos_after_trim]


preprocessors = text_to_text  # earlier name, in users' tasks


def t5_features() -> dict[str, seqio.Feature]:
  """Returns the output features of these tasks, with T5's vocabulary."""
  text = seqio.Feature(vocabularies.t5_vocabulary(extra_ids=100), add_eos=True)
  return {"inputs": text, "targets": text}
