"""Which head a task needs: read off the first example that its formats make of its records."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import re

import seqio
import tensorflow as tf

from t2t import UserError, feature_spec
from t2t.data import objectives, preprocessors, raw_text, registry, task_resolution, vocabularies
from t2t.data.head_examples import kinds
from t2t.data.sources import bad_records, named
from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import HeadConfig, TransformerConfig

_ANY_LENGTH = 512  # tokens
# Steps that make what a model writes of text; for a head it is framed in another way.
_WRITING = (
  *preprocessors.TOKENIZERS,
  seqio.preprocessors.append_eos,
  seqio.preprocessors.append_eos_after_trim,
  *raw_text.STEPS,
)


@dataclasses.dataclass(frozen=True)
class Need:
  """What a task asks.

  head: name of the one that answers it; tasks that are asked alike have one head.
  kind: of the head.
  labels: texts of the classes, where all examples have the same.
  number: of logits.
  no_answer: of a span, whether there may be none.
  """

  head: str
  kind: str
  labels: tuple[str, ...]
  number: int
  no_answer: bool = False


def formats_of(task: seqio.Task) -> list:
  """A task's preprocessors up to the text of its examples, without those that are there for what is written."""
  steps = [step for step in task.preprocessors if registry.function_of(step) not in preprocessors.FOR_WRITING]
  if any(isinstance(step, seqio.CacheDatasetPlaceholder) for step in steps):
    raise UserError(
      f"{task.name}: heads answer what a task's formats make of its records, which a cache has not; leave"
      " config.data.cache_dir empty"
    )
  return [step for step in steps if registry.function_of(step) not in _WRITING]


def formatted(task: seqio.Task, records: tf.data.Dataset, lengths: Mapping[str, int] | None = None) -> tf.data.Dataset:
  """Returns what a task's formats make of records; `lengths` are tokens of each feature, for steps that read them."""
  part = task.replace(preprocessors=formats_of(task))
  return part.preprocess_postcache(part.preprocess_precache(records, seed=0), sequence_length=lengths or {}, seed=0)


def need_of(task: seqio.Task) -> Need:
  """What a task asks; its first record is read.

  Raises:
    UserError: no head could answer it, or there is no record.
  """
  split = _split(task)
  records = task.source.get_dataset(split=split, shuffle=False, seed=0).take(bad_records.MOST_UNUSED)
  dataset = formatted(task, records)
  kind = kinds.kind_of(dataset.element_spec)
  if not kind:
    fields = ", ".join(f"{kind.fields[0]} ({name})" for name, kind in kinds.KINDS.items())
    raise UserError(
      f"{task.name}: no head answers it: its examples have {', '.join(dataset.element_spec)}, and none of {fields};"
      " a class is one of the texts that its preprocessors keep as 'options'; a model with a decoder can be trained to"
      " write the answer: config.train.loss=cross_entropy"
    )
  try:
    # To its end: an iterator that is left open is closed when the process ends, and says so.
    first = next(iter(list(dataset.take(1).as_numpy_iterator())), None)
    if first is None:
      raise bad_records.NoExamples(task.name, split, int(records.reduce(0, lambda number, _: number + 1)))
  except tf.errors.OpError as error:
    raise named.failure(error, task.name, what="its source or its formats fail") from error
  name = first["head"].decode() if "head" in first else re.sub(r"\W", "_", task.name)
  name = name if re.match(r"[A-Za-z]", name) else f"head_{name}"
  question = kinds.KINDS[kind]
  labels = () if question.number else tuple(text.decode() for text in first.get("options", ()))
  number = question.number or len(labels) or len(first["classes"])
  return Need(name, question.head, labels, number, question.head == "span" and "no_answer" in first)


def heads_of(
  tasks: Sequence[seqio.Task], model: TransformerConfig, vocabulary: seqio.Vocabulary
) -> tuple[HeadConfig, ...]:
  """The heads that a model needs to answer tasks; one that it has by that name stays as it is.

  A text is answered for by [CLS] where the vocabulary has it, by the last token in a decoder, else by the mean.

  Raises:
    UserError: two tasks want different heads of one name, or a head of the model has another number of classes.
  """
  heads_by_name: dict[str, tuple[HeadConfig, str]] = {}
  for task in tasks:
    need = need_of(task)
    reads = _reads(model, need, vocabulary)
    head = HeadConfig(
      *(need.head, need.number, need.kind, need.labels),
      **dict(reads=reads, no_answer=need.no_answer) | model.published_head(need.kind),
    )
    model_head = _head_of_name(need, model.heads)
    if model_head is not None:
      head = _checked(model_head, need, task.name)
    earlier_head, name = heads_by_name.get(head.name, (head, task.name))
    # Some of a mixture's questions may have no answer, where those of one of its tasks may.
    either = head.no_answer or earlier_head.no_answer
    head, earlier_head = (dataclasses.replace(head_config, no_answer=either) for head_config in (head, earlier_head))
    if earlier_head != head:
      raise UserError(
        f"config.data.mixture: {name} and {task.name} both ask a head {need.head!r}, with {earlier_head.num_classes}"
        f" and {head.num_classes} classes ({', '.join(earlier_head.labels)}; {', '.join(head.labels)}); register one of"
        " them with another name of its head"
      )
    heads_by_name[head.name] = head, name
  return tuple(head for head, _ in heads_by_name.values())


def _head_of_name(need: Need, heads: Sequence[HeadConfig]) -> HeadConfig | None:
  """The head that is called so; or the only one, if it is called no more than what it is, as those of transformers."""
  named = [head for head in heads if head.name == need.head]
  if not named and len(heads) == 1 and heads[0].name == heads[0].kind == need.kind:
    return heads[0]
  return named[0] if named else None


def _key(head: HeadConfig, need: Need) -> Callable[[str], str]:
  """By what classes of both are the same: upper case is lower case, unless one of them tells classes by it."""
  folded = [len({label.casefold() for label in labels}) == len(labels) for labels in (head.labels, need.labels)]
  return str.casefold if all(folded) else str


def order_of(head: HeadConfig, need: Need) -> tuple[int, ...]:
  """Of each class of a task its number in a head, whose classes may stand in another order; upper case is lower case.

  In:  classes of the head "CONTRADICTION", "ENTAILMENT", of the task "entailment", "contradiction"
  Out: (1, 0)
  """
  key = _key(head, need)
  theirs = [key(label) for label in head.labels]
  if not theirs or not need.labels:
    return tuple(range(need.number))
  return tuple(theirs.index(key(label)) for label in need.labels)


def labels_of(head: HeadConfig, need: Need) -> tuple[str, ...]:
  """Classes of a head in its own order, as the task writes them; a head whose classes have no names has the task's.

  In:  classes of the head "CONTRADICTION", "ENTAILMENT", of the task "entailment", "contradiction"
  Out: ("contradiction", "entailment")
  """
  key = _key(head, need)
  written = {key(label): label for label in need.labels}
  return tuple(written.get(key(label), label) for label in head.labels) or need.labels


def _reads(model: TransformerConfig, need: Need, vocabulary: seqio.Vocabulary) -> str:
  if need.kind in ("tag", "span"):
    return "each"
  if model.kind.is_decoder_only:
    return "last"
  return (
    "first"
    if not ARCHITECTURES[model.architecture].is_generative and vocabularies.cls_id(vocabulary) is not None
    else "mean"
  )


def _checked(head: HeadConfig, need: Need, task: str) -> HeadConfig:
  """The model's own head, if it answers the task."""
  key = _key(head, need)
  model_labels, needed_labels = (sorted(key(label) for label in labels) for labels in (head.labels, need.labels))
  if (
    head.kind != need.kind
    or head.num_classes != need.number
    or (model_labels and needed_labels and model_labels != needed_labels)
  ):
    raise UserError(
      f"config.model.heads: {head.name} is a {head.kind} head with {head.num_classes} classes"
      f"{_listed(head.labels)}, and {task} needs a {need.kind} head with {need.number}{_listed(need.labels)}; begin"
      f" that head anew: config.model.heads=() and config.init.reinit=^heads/{head.name}/"
    )
  return dataclasses.replace(head, labels=head.labels or need.labels, no_answer=head.no_answer or need.no_answer)


def _listed(labels: Sequence[str]) -> str:
  return f" ({', '.join(labels)})" if labels else ""


def head_of(task: seqio.Task, heads: Sequence[HeadConfig]) -> tuple[int, Need]:
  """The number of the head that answers a task, and what that asks.

  Raises:
    UserError: there is none; lists those there are.
  """
  need = need_of(task)
  model_head = _head_of_name(need, heads)
  if model_head is None:
    head_names = ", ".join(head.name for head in heads) or "none"
    raise UserError(
      f"{task.name} is answered by a head {need.head!r}, which the model has not; it has {head_names}: fine-tune it on"
      f" the task, config.data.mixture={task.name}"
    )
  _checked(model_head, need, task.name)
  return list(heads).index(model_head), need


def is_answered(provider: task_resolution.Provider) -> bool:
  """Returns True if all tasks have answers, by their metrics or by the fields of their examples, and no objective."""
  return all(not objectives.of(task) and (task.metric_fns or asks(task)) for task in task_resolution.tasks_of(provider))


def asks(task: seqio.Task) -> bool:
  """Returns True if the examples of a task have the fields of a question that a head answers; reads no record."""
  if feature_spec.are_compared(task.output_features):
    return False
  records = task.source.get_dataset(split=_split(task), shuffle=False, seed=0)
  steps = [step for step in task.preprocessors if not isinstance(step, seqio.CacheDatasetPlaceholder)]
  # A user's own step may read lengths; which fields examples have does not depend on them.
  lengths = dict.fromkeys(task.output_features, _ANY_LENGTH)
  spec = formatted(task.replace(preprocessors=steps), records, lengths).element_spec
  return isinstance(spec, Mapping) and bool(kinds.kind_of(spec))


def _split(task: seqio.Task) -> str:
  return "train" if "train" in task.splits else task.splits[0]
