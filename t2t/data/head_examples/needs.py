"""Determines the head that a task needs from the first example of its text preprocessors."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import re
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.data import objectives, preprocessors, raw_text, registry, task_resolution, vocabularies
from t2t.data.head_examples import kinds
from t2t.data.sources import bad_records, named
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.runtime import hosts

_ANY_LENGTH = 512  # tokens
# Steps that prepare text for generative models; the head feature converter replaces them.
_WRITING = (
  *preprocessors.TOKENIZERS,
  seqio.preprocessors.append_eos,
  seqio.preprocessors.append_eos_after_trim,
  *raw_text.STEPS,
)


@dataclasses.dataclass(frozen=True)
class Need:
  """The head that a task needs.

  Attributes:
    head: name of the head; tasks with the same name share one head.
    kind: kind of the head.
    labels: names of the classes, if all examples have the same.
    number: number of logits.
    no_answer: whether a span question may have no answer.
    words: token ids of the words of each class that a template has.
  """

  head: str
  kind: str
  labels: tuple[str, ...]
  number: int
  no_answer: bool = False
  words: tuple[tuple[int, ...], ...] = ()


def formats_of(task: seqio.Task) -> list:
  """Returns a task's preprocessors up to the text of its examples, without steps for generation."""
  steps = [step for step in task.preprocessors if registry.function_of(step) not in preprocessors.FOR_WRITING]
  if any(isinstance(step, seqio.CacheDatasetPlaceholder) for step in steps):
    raise UserError(
      f"{task.name}: heads need the text of the records, but a task with seqio.CacheDatasetPlaceholder is read from a "
      "cache of tokens. Remove the placeholder from the preprocessors of the task."
    )
  # A step that depends on the architecture writes the blank of a template for generative models.
  return [s for s in steps if registry.function_of(s) not in _WRITING and not hasattr(s, "for_architecture")]


def formatted(task: seqio.Task, records: tf.data.Dataset, lengths: Mapping[str, int] | None = None) -> tf.data.Dataset:
  """Applies a task's text preprocessors to records; `lengths` (feature -> tokens) is for steps that read it."""
  part = task.replace(preprocessors=formats_of(task))
  return part.preprocess_postcache(part.preprocess_precache(records, seed=0), sequence_length=lengths or {}, seed=0)


def need_of(task: seqio.Task) -> Need:
  """Returns the head that a task needs; reads the task's first record.

  Raises:
    UserError: no head can answer the task, or it has no record.
  """
  split = _split(task)
  records = task.source.get_dataset(split=split, shuffle=False, seed=0).take(bad_records.MOST_UNUSED)
  dataset = formatted(task, records)
  kind = kinds.kind_of(dataset.element_spec)
  if not kind:
    fields = ", ".join(f"{kind.fields[0]} ({name})" for name, kind in kinds.KINDS.items())
    raise UserError(
      f"{task.name}: no head can answer this task. The examples have the fields {', '.join(dataset.element_spec)}, but "
      f"a head needs one of {fields}. For a class head, let the preprocessors keep the names of the classes as "
      "'options'. To generate the answer with a decoder instead, set --config.train.loss=cross_entropy."
    )
  try:
    # The list reads the iterator to its end: TensorFlow logs a message if an open one is closed when the process exits.
    first = next(iter(list(dataset.take(1).as_numpy_iterator())), None)
    if first is None:
      raise bad_records.NoExamples(task.name, split, int(records.reduce(0, lambda number, _: number + 1)))
  except tf.errors.OpError as error:
    raise named.failure(error, task.name, what="its source or its preprocessors fail") from error
  name = first["head"].decode() if "head" in first else re.sub(r"\W", "_", task.name)
  name = name if re.match(r"[A-Za-z]", name) else f"head_{name}"
  question = kinds.KINDS[kind]
  labels = () if question.number else tuple(text.decode() for text in first.get("options", ()))
  number = question.number or len(labels) or len(first["classes"])
  words = _words(task, first, labels) if question.head == "cloze" else ()
  name = f"{name}_cloze" if words else name
  return Need(name, question.head, labels, number, question.head == "span" and "no_answer" in first, words)


def _words(task: seqio.Task, example: Mapping[str, Any], labels: Sequence[str]) -> tuple[tuple[int, ...], ...]:
  """Returns the token ids of the words of each label in an example of a template.

  Raises:
    UserError: a word has several tokens, or the templates of the task have different words.
  """
  from t2t.data import templates

  rows = templates.templates_of(task)
  vocabulary = task.output_features["inputs"].vocabulary
  for row in rows:
    if row.words != rows[0].words or any(templates.has_fields(word) for words in row.words.values() for word in words):
      raise UserError(
        f"{row.where}: a head of the masked token needs the same words for every example, but they differ from those "
        f"of {rows[0].where} or have fields. Choose one with config.data.template_names, or evaluate without training."
      )
  space = example["blank_space"].decode() if kinds.joins_space(vocabulary) else ""
  pairs = zip(example["blank_words"], example["blank_labels"], strict=True)
  ids: dict[str, list[int]] = {label: [] for label in labels}
  for word, label in pairs:
    tokens = vocabulary.encode(space + word.decode())
    if len(tokens) != 1:
      raise UserError(
        f"{rows[0].where} words.{label.decode()}: {word.decode()!r} has {len(tokens)} tokens in this vocabulary, but "
        "the head of a masked token needs words of one token. Give another word."
      )
    ids[label.decode()].append(int(tokens[0]))
  return tuple(tuple(ids[label]) for label in labels)


def heads_of(
  tasks: Sequence[seqio.Task], model: TransformerConfig, vocabulary: seqio.Vocabulary, *, reads: str = ""
) -> tuple[HeadConfig, ...]:
  """Returns the heads that a model needs for tasks; an existing head with the needed name is kept.

  A decoder answers at the last token, an encoder with [CLS] in its vocabulary at the first, and other models from the
  mean of the tokens.

  Args:
    tasks: answered by heads.
    model: of the run.
    vocabulary: of the model.
    reads: config.train.head_reads, what new heads of whole texts read; "": see above.

  Raises:
    UserError: two tasks need different heads with one name, or a head of the model does not fit its task.
  """
  heads_by_name: dict[str, tuple[HeadConfig, str]] = {}
  for task in tasks:
    need = need_of(task)
    fields = dict(reads=_reads(model, need, vocabulary), no_answer=need.no_answer, words=need.words)
    fields |= model.published_head(need.kind) | ({"reads": reads} if reads and need.kind in _OF_TEXTS else {})
    head = HeadConfig(*(need.head, need.number, need.kind, need.labels), **fields)
    model_head = _head_of_name(need, model.heads)
    if model_head is not None:
      if head.reads == "mean" and not model_head.reads and need.kind in _OF_TEXTS:
        hosts.log_once(
          f"config.model.heads: {model_head.name} reads the first token, and the vocabulary has no [CLS]. A head that "
          'reads all tokens has "reads": "mean".'
        )
      head = _checked(model_head, need, task.name)
    earlier_head, name = heads_by_name.get(head.name, (head, task.name))
    # In a mixture, a head may answer "no answer" if questions of one of its tasks may have none.
    either = head.no_answer or earlier_head.no_answer
    head, earlier_head = (dataclasses.replace(head_config, no_answer=either) for head_config in (head, earlier_head))
    if earlier_head != head:
      raise UserError(
        f"config.data.mixture: {name} and {task.name} need different heads with the name {need.head!r}. One head has "
        f"{earlier_head.num_classes} classes{_listed(earlier_head.labels)}, and the other has {head.num_classes} "
        f"classes{_listed(head.labels)}. Give the examples of one task another name in their field 'head'."
      )
    heads_by_name[head.name] = head, name
  return tuple(head for head, _ in heads_by_name.values())


def _head_of_name(need: Need, heads: Sequence[HeadConfig]) -> HeadConfig | None:
  """Returns the head with the needed name, or the model's only head if its name is its kind (as in transformers)."""
  named = [head for head in heads if head.name == need.head]
  if not named and len(heads) == 1 and heads[0].name == heads[0].kind and heads[0].answers_as == need.kind:
    return heads[0]
  return named[0] if named else None


def _key(head: HeadConfig, need: Need) -> Callable[[str], str]:
  """Returns the key by which class names are compared: without case, unless case distinguishes two classes."""
  folded = [len({label.casefold() for label in labels}) == len(labels) for labels in (head.labels, need.labels)]
  return str.casefold if all(folded) else str


def order_of(head: HeadConfig, need: Need) -> tuple[int, ...]:
  """Returns the head's index of each class of a task; names are compared without case where that is unambiguous.

  In:  classes of the head "CONTRADICTION", "ENTAILMENT", of the task "entailment", "contradiction"
  Out: (1, 0)
  """
  key = _key(head, need)
  theirs = [key(label) for label in head.labels]
  if not theirs or not need.labels:
    return tuple(range(need.number))
  return tuple(theirs.index(key(label)) for label in need.labels)


def labels_of(head: HeadConfig, need: Need) -> tuple[str, ...]:
  """Returns a head's classes in its order, spelled as in the task; a head without names of classes takes the task's.

  In:  classes of the head "CONTRADICTION", "ENTAILMENT", of the task "entailment", "contradiction"
  Out: ("contradiction", "entailment")
  """
  key = _key(head, need)
  written = {key(label): label for label in need.labels}
  return tuple(written.get(key(label), label) for label in head.labels) or need.labels


_OF_TEXTS = ("class", "choice", "score")  # kinds of heads that read a whole text


def _reads(model: TransformerConfig, need: Need, vocabulary: seqio.Vocabulary) -> str:
  if need.kind == "span_pair":
    return ""
  if need.kind in ("tag", "span", "cloze"):
    return "each"
  if model.kind.is_decoder_only:
    return "last"
  return (
    "first"
    if not ARCHITECTURES[model.architecture].is_generative and vocabularies.cls_id(vocabulary) is not None
    else "mean"
  )


def _checked(head: HeadConfig, need: Need, task: str) -> HeadConfig:
  """Returns the model's head if it fits the task, and raises UserError otherwise."""
  key = _key(head, need)
  model_labels, needed_labels = (sorted(key(label) for label in labels) for labels in (head.labels, need.labels))
  if (
    head.answers_as != need.kind
    or head.num_classes != need.number
    or (model_labels and needed_labels and model_labels != needed_labels)
  ):
    raise UserError(
      f"config.model.heads: {head.name} is a {head.kind} head with {head.num_classes} "
      f"classes{_listed(head.labels)}, but {task} needs a {need.kind} head with "
      f"{need.number}{_listed(need.labels)}. Give --config.model.heads='()' --config.init.reinit=^heads/{head.name}/ "
      "to initialize a new head."
    )
  return dataclasses.replace(head, labels=head.labels or need.labels, no_answer=head.no_answer or need.no_answer)


def _listed(labels: Sequence[str]) -> str:
  return f" ({', '.join(labels)})" if labels else ""


def head_of(task: seqio.Task, heads: Sequence[HeadConfig]) -> tuple[int, Need]:
  """Returns the index of the head that answers a task, and the task's need.

  Raises:
    UserError: the model has no such head; the message lists the model's heads.
  """
  need = need_of(task)
  model_head = _head_of_name(need, heads)
  if model_head is None:
    head_names = ", ".join(head.name for head in heads) or "none"
    raise UserError(
      f"{task.name}: the model has no head {need.head!r} to answer this task. Heads of the model: {head_names}. "
      f"Fine-tune the model on the task with --config.data.mixture={task.name}."
    )
  _checked(model_head, need, task.name)
  return list(heads).index(model_head), need


def is_answered(provider: task_resolution.Provider) -> bool:
  """Returns True if no task is a pre-training objective, and each has metrics or fields of a question for a head."""
  return all(not objectives.of(task) and (task.metric_fns or asks(task)) for task in task_resolution.tasks_of(provider))


def asks(task: seqio.Task) -> bool:
  """Returns True if a task's examples have the fields of a question for a head; reads no record."""
  if feature_spec.are_compared(task.output_features):
    return False
  records = task.source.get_dataset(split=_split(task), shuffle=False, seed=0)
  steps = [step for step in task.preprocessors if not isinstance(step, seqio.CacheDatasetPlaceholder)]
  # A user's step may read lengths; the fields of the examples do not depend on them.
  lengths = dict.fromkeys(task.output_features, _ANY_LENGTH)
  spec = formatted(task.replace(preprocessors=steps), records, lengths).element_spec
  return isinstance(spec, Mapping) and bool(kinds.kind_of(spec))


def _split(task: seqio.Task) -> str:
  return "train" if "train" in task.splits else task.splits[0]
