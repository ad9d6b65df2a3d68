"""Tasks with templates: seqio preprocessors that fill templates with records, for each architecture."""

from collections.abc import Callable, Mapping, Sequence
import functools
import re
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError, did_you_mean
from t2t.data import preprocessors, registry, vocabularies
from t2t.data.templates import chat
from t2t.data.templates.format import Filled, Template
from t2t.feature_spec import UNKNOWN
from t2t.models.architecture import architecture_of

Features = dict[str, Any]

_SENTINEL = re.compile(r"<extra_id_\d+>")
# Fields of an example that only heads read.
_OF_HEADS = ("head", "parts", "candidates", "classes")
_EOS = (seqio.preprocessors.append_eos, seqio.preprocessors.append_eos_after_trim)


# ---- Filling a template ----------------------------------------------------------------------------------------------


def fill(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Mapping[str, int] | None,
  *,
  task: seqio.Task,
  templates: Sequence[Template],
) -> tf.data.Dataset:
  """Fills one of the templates with each record; with several, the seed of the example draws one.

  In:  {"premise": "It rained.", "hypothesis": "It is wet.", "label": 0}           a task with the classes "yes", "no"
  Out: {"inputs": "It rained.? _, It is wet.", "targets": "yes", "blank_before": "It rained.?", "blank_after":
        ", It is wet.", "blank_space": " ", "blank_word": "Yes", "blank_words": ["Yes", "No"], "blank_labels": ["yes",
        "no"], "label": 0, "options": ["yes", "no"], ...}             for "{premise}? {blank}, {hypothesis}"

  A text longer than `sequence_length` loses the end of its longest field; "inputs_uncut" has its length before.

  Args:
    dataset: records of the task's source.
    output_features: of the task.
    sequence_length: feature -> maximum number of tokens; empty: no limit.
    task: the task without templates, whose formats give label, options and further fields.
    templates: of the task.
  """
  formats = task.replace(preprocessors=[step for step in task.preprocessors if not _tokenizes(step)])

  def examples_of(record: Any) -> tf.data.Dataset:
    # A format may remove a record, or make several examples of it.
    one = tf.data.Dataset.from_tensors(record)
    part = formats.preprocess_postcache(
      formats.preprocess_precache(one, seed=0), sequence_length=sequence_length or {}, seed=0
    )
    return part.map(lambda example: {"record": _flat(record), "example": example})

  examples = dataset.flat_map(tf.autograph.experimental.do_not_convert(examples_of))
  if len(templates) > 1:
    examples = _numbered(examples, number=len(templates))
  writer = _Writer(
    task.name, templates, output_features, (sequence_length or {}).get("inputs"), **examples.element_spec
  )
  return examples.map(tf.autograph.experimental.do_not_convert(writer), num_parallel_calls=tf.data.AUTOTUNE)


@seqio.map_over_dataset(num_seeds=1)
def _numbered(example: Features, seed: tf.Tensor, *, number: int) -> Features:
  """Draws the index of a template for each example."""
  return {**example, "number": tf.random.stateless_uniform([], seed, 0, number, tf.int32)}


def _flat(record: Any, prefix: str = "") -> Features:
  """Returns the fields of a record that a template can name: texts, numbers, and lists of them."""
  if not isinstance(record, Mapping):
    return {}
  fields: Features = {}
  for name, value in record.items():
    if isinstance(value, Mapping):
      fields |= _flat(value, f"{prefix}{name}.")
    elif isinstance(value, tf.Tensor) and value.shape.rank in (0, 1):
      fields[f"{prefix}{name}"] = value
  return fields


def _tokenizes(step: Callable) -> bool:
  return registry.function_of(step) in (*preprocessors.TOKENIZERS, *_EOS)


class _Writer:
  """Fills templates: {record, example, number of the template} -> fields of `fill`."""

  def __init__(
    self,
    task: str,
    templates: Sequence[Template],
    output_features: Mapping[str, seqio.Feature],
    limit: int | None,
    record: Features,
    example: Features,
    number: tf.TensorSpec | None = None,
  ):
    del number
    self._task, self._templates, self._limit = task, templates, limit
    vocabulary = output_features["inputs" if "inputs" in output_features else "targets"].vocabulary
    self._size = lambda text: len(vocabulary.encode(text))
    self._has_options = "options" in example
    # The text that a task writes from a record is no field of the record.
    of_example = {name: x for name, x in example.items() if name not in ("inputs", "targets")}
    known = {**_known(of_example), **_known(record)}
    for template in templates:
      for field in template.fields:
        if field.name not in known:
          raise UserError(
            f"{template.where}: the records of {task} have no field {field.name}; known fields: "
            f"{', '.join(sorted(known))}{did_you_mean(field.name, known)}"
          )
    if not self._has_options and "targets" not in example:
      raise UserError(
        f"config.data.templates: {task} has no targets, so nothing fills the blank; name only other tasks"
      )
    self._from_record = sorted({field.name for t in templates for field in t.fields if field.name in record})
    self._from_example = sorted(
      {field.name for t in templates for field in t.fields if field.name not in record and field.name in of_example}
    )

  def __call__(self, drawn: Features) -> Features:
    record, example = drawn["record"], drawn["example"]
    names = [*self._from_record, *self._from_example]
    values = [record[name] for name in self._from_record] + [example[name] for name in self._from_example]
    options = example.get("options", tf.constant([], tf.string))
    texts, lists, uncut = tf.numpy_function(
      functools.partial(self._write, names),
      [drawn.get("number", tf.constant(0)), example["targets"], options, *values],
      (tf.string, tf.string, tf.int32),
      stateful=False,
    )
    inputs, before, after, space, word, header, filled = tf.unstack(tf.ensure_shape(texts, [7]))
    written = {
      "inputs": inputs,
      "inputs_uncut": tf.ensure_shape(uncut, []),
      "blank_before": before,
      "blank_after": after,
      "blank_space": space,
      "blank_word": word,
      "header": header,
      "filled": filled,
    }
    lists = tf.ensure_shape(lists, [2, None])
    if self._has_options or any(template.words for template in self._templates):
      written |= {"blank_words": lists[0], "blank_labels": lists[1]}
    return {**example, **written}

  def _write(self, names, number, target, options, *values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    template = self._templates[number]
    fields = {name: _text(value) for name, value in zip(names, values, strict=True)}
    label = _text(target)
    words = self._words(template, fields, [_text(option) for option in options])
    gold = next((word for word, of in words if of == label), UNKNOWN) if words else label
    filled = template.fill(fields, words, size=self._size, limit=self._limit)
    before, after, space = filled.before, filled.after, filled.space
    texts = [
      f"{before}{space}_{after}",
      before,
      after,
      space,
      gold,
      filled.header,
      f"{before}{space}{gold}{after}{template.separator}",
    ]
    columns = list(zip(*words, strict=True)) if words else [(), ()]
    return _array(texts), _array(columns).reshape(2, -1), np.int32(filled.uncut)

  def _words(self, template: Template, fields: Mapping[str, Any], options: list[str]) -> list[tuple[str, str]]:
    """Returns each word that may fill the blank, with its label."""
    if not template.words:
      return [(option, option) for option in options]
    labels = dict.fromkeys(options) if self._has_options else template.words
    missing = [label for label in labels if label not in template.words]
    unknown = [label for label in template.words if label not in labels]
    if missing or unknown:
      wrong = f"no words for {', '.join(missing)}" if missing else f"words for {', '.join(unknown)}"
      raise UserError(
        f"{template.where} words: {wrong}, but the labels of {self._task} are {', '.join(labels)}; give each of them "
        "words"
      )
    return [(template.filled(word, fields), label) for label in labels for word in template.words[label]]


def _known(spec: Mapping[str, Any]) -> Features:
  return {name: x for name, x in spec.items() if isinstance(x, tf.TensorSpec) and x.shape.rank in (0, 1)}


def _text(value: Any) -> Any:
  """Returns a text or number as str, and a list as a list of them."""
  if isinstance(value, np.ndarray) and value.ndim:
    return [_text(x) for x in value]
  if isinstance(value, np.ndarray | np.generic):
    value = value.item()
  return value.decode() if isinstance(value, bytes) else str(value)


def _array(texts: Any) -> np.ndarray:
  return np.array(np.vectorize(lambda text: text.encode(), otypes=[object])(np.array(texts, object)), object)


# ---- Blanks ----------------------------------------------------------------------------------------------------------


def compose(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  *,
  form: str,
  blank: str,
  templates: Sequence[Template],
) -> tf.data.Dataset:
  """Writes inputs and targets as a model reads the blank.

  Args:
    dataset: result of `fill`.
    output_features: of the task.
    form: "text": of an encoder-decoder, which reads a sentinel where the blank is, or predicts the word after the text
      if the blank is at its end. "continuation": of a decoder, which predicts the word and the text behind it. "cloze":
      of an encoder, which reads the text behind the blank as "suffix", token ids.
    blank: "sentinel": an encoder-decoder reads a sentinel at the end, too; otherwise "auto".
    templates: of the task.

  Raises:
    UserError: the vocabulary has no name for the sentinel.
  """
  vocabulary = output_features["inputs" if "inputs" in output_features else "targets"].vocabulary
  check_sentinel(vocabulary, templates, form=form, blank=blank)

  def read(before, after, space, header, words) -> tuple[np.ndarray, np.ndarray]:
    filled = Filled(_text(before), _text(after), _text(space), _text(header), (), 0, 0)
    inputs, behind, complete = filled.read_by(form, blank)
    return _array([inputs, behind]), _array([complete(word) for word in _text(words)])

  @tf.autograph.experimental.do_not_convert
  def written(example: Features) -> Features:
    parts = [example[name] for name in ("blank_before", "blank_after", "blank_space", "header")]
    word, words = example["blank_word"], example.get("blank_words", tf.constant([], tf.string))
    texts, completed = tf.numpy_function(
      read, [*parts, tf.concat([[word], words], axis=0)], (tf.string, tf.string), stateful=False
    )
    inputs, behind = tf.unstack(tf.ensure_shape(texts, [2]))
    completed = tf.ensure_shape(completed, [None])
    suffix = {"suffix": tf.cast(vocabulary.encode_tf(behind), tf.int32)} if form == "cloze" else {}
    targets = tf.where(word == UNKNOWN, word, completed[0])
    options = {}
    if "blank_words" in example:
      options = {"options": completed[1:], "option_labels": example["blank_labels"]}
    kept = {
      name: x
      for name, x in example.items()
      if name not in (*_OF_HEADS, "targets", "options") and not name.startswith("blank_")
    }
    return {
      **kept,
      "inputs": inputs,
      "targets": targets,
      "gold": example["targets"],
      **options,
      **suffix,
    }

  return dataset.map(written, num_parallel_calls=tf.data.AUTOTUNE)


def check_sentinel(vocabulary: seqio.Vocabulary, templates: Sequence[Template], *, form: str, blank: str) -> None:
  """Checks that an encoder-decoder can read a sentinel where the blank is.

  Args: see `compose`.

  Raises:
    UserError: the vocabulary has no name for the sentinel.
  """
  if form == "text" and "<extra_id_0>" not in vocabularies.control_tokens_of(vocabulary):
    for template in templates:
      if blank == "sentinel" or template.has_text_behind:
        raise UserError(
          f"{template.where}: an encoder-decoder reads the sentinel <extra_id_0> where the blank is, but the "
          "vocabulary has no such token; put the blank at the end of the text, with config.data.template_blank=auto"
        )


def form_of(architecture: str, templates: Sequence[Template]) -> str:
  """Returns how an architecture reads templates, see `compose`.

  Raises:
    UserError: a template has no blank, but an encoder needs one.
  """
  kind = architecture_of(architecture)
  for template in templates:
    if not (kind.is_generative or template.has_blank):
      raise UserError(
        f"{template.where} text={template.text!r} has no {{blank}}, but an encoder predicts masked words; put "
        "{blank} where the answer belongs"
      )
  return "cloze" if not kind.is_generative else "continuation" if kind.is_decoder_only else "text"


class Compose(functools.partial):
  """The step `compose` of a task; `task_resolution.for_architecture` adapts it to the model."""

  def for_architecture(self, architecture: str) -> "Compose":
    """Returns the step that writes the blank as the architecture reads it; raises as `form_of`."""
    form = form_of(architecture, self.keywords["templates"])
    return Compose(self.func, **{**self.keywords, "form": form})


STEPS = (fill, compose)


# ---- Tasks -----------------------------------------------------------------------------------------------------------


class _Postprocess:
  """Postprocess function of a task with templates: reads the label of a word, and calls the function of the task."""

  def __init__(self, task: seqio.Task):
    self._task = task

  def __call__(self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> Any:
    if example is not None and "gold" in example:
      gold = _text(example["gold"])
      example = {**example, "targets_pretokenized": gold}
      text = gold if is_target else label_of(text, example)
    return self._task.postprocess_fn(text, example=example, is_target=is_target)


def label_of(text: str, example: Mapping[str, Any]) -> str:
  """Returns the label that a text stands for in an example of `compose`; other texts without sentinels.

  In:  " Yes", {"options": [" Yes", " No"], "option_labels": ["entailment", "contradiction"]}
  Out: "entailment"
  """
  bare = lambda text: _SENTINEL.sub("", text).strip()
  options, labels = example.get("options", ()), example.get("option_labels", ())
  words = {bare(_text(word)): _text(label) for word, label in zip(options, labels, strict=True)}
  return words.get(bare(text), bare(text))


def apply(task: seqio.Task, templates: Mapping[str, Sequence[Template]], *, where: str, blank: str) -> seqio.Task:
  """Returns a registered task whose text comes from templates instead of its own format.

  Args:
    task: stays unchanged.
    templates: task name -> templates.
    where: the user's key, for messages.
    blank: value of config.data.template_blank.

  Raises:
    UserError: there is no template for the task.
  """
  if is_templated(task):
    return task
  if task.name not in templates:
    raise UserError(
      f"{where}: no template for {task.name}; add [{task.name}.NAME] to the file, or name only other tasks in "
      f"config.data.mixture. The file has templates for {', '.join(templates)}{did_you_mean(task.name, templates)}"
    )
  rows, written = tuple(templates[task.name]), [step for step in task.preprocessors if _tokenizes(step)]
  converses = any(registry.function_of(step) is chat.answers for step in task.preprocessors)
  if converses or any(row.turns for row in rows):
    if not converses or len(rows) != 1 or not rows[0].turns:
      raise UserError(
        f"{rows[0].where}: {task.name} {'has' if converses else 'has no'} conversations; give one template, "
        f"{'with' if converses else 'without'} turns"
      )
    return task.replace(preprocessors=[functools.partial(chat.answers, turns=rows[0].turns), *written])
  steps = [
    functools.partial(fill, task=task, templates=tuple(templates[task.name])),
    Compose(compose, form="text", blank=blank, templates=tuple(templates[task.name])),
    *(written or [preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim]),
  ]
  return task.replace(preprocessors=steps, postprocess_fn=_Postprocess(task))


def _step(task: seqio.Task, function: Callable) -> functools.partial | None:
  found = (step for step in task.preprocessors if registry.function_of(step) is function)
  return next((step for step in found if isinstance(step, functools.partial)), None)


def is_templated(task: seqio.Task) -> bool:
  """Returns True for a result of `apply`."""
  return _step(task, fill) is not None


def base_name(task: seqio.Task) -> str:
  """Returns the name of the registered task of a result of `variants`; other names unchanged."""
  step = _step(task, fill)
  return task.name if step is None else step.keywords["task"].name


def templates_of(task: seqio.Task) -> tuple[Template, ...]:
  """Returns the templates of a result of `apply`; () for other tasks."""
  step = _step(task, fill)
  return () if step is None else step.keywords["templates"]


def _with(task: seqio.Task, functions: Sequence[Callable], **changes: Any) -> list[Callable]:
  """Returns the preprocessors of a task after a change of the arguments of some steps."""
  change = lambda step: type(step)(step.func, **{**step.keywords, **changes})
  return [change(step) if registry.function_of(step) in functions else step for step in task.preprocessors]


def variants(task: seqio.Task) -> list[seqio.Task]:
  """Returns one task for each template, TASK.TEMPLATE; the task itself if it has one template or none."""
  templates = templates_of(task)
  if len(templates) < 2:
    return [task]
  return [
    task.replace(name=f"{task.name}.{template.name}", preprocessors=_with(task, STEPS, templates=(template,)))
    for template in templates
  ]
