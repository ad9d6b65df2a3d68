"""Mapping of named heads to Hugging Face's model classes and config.json."""

from collections.abc import Collection, Mapping
import dataclasses
from typing import Any

from t2t import UserError, did_you_mean
from t2t.convert import hf_mappings
from t2t.convert.hf_mappings import Family, HeadTask, Settings
from t2t.convert.lazy_tensors import Foreign
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

VOCABULARY = "vocabulary"  # name of the head over the vocabulary
KEY = "t2t_head"  # key of config.json for t2t's name of the head
NO_ANSWER = "t2t_no_answer"  # key for spans without an answer
DROPOUT = "t2t_head_dropout"  # key for a dropout that differs from the class
_PARTS = ("kind", "num_classes", "labels", "reads", "layers", "pooler", "bias")  # fields that determine logits


def class_of(family: Family, model: TransformerConfig) -> tuple[str, HeadTask | None]:
  """Returns the transformers class of a model, and its task; "": there is none.

  Args:
    family: the model's.
    model: with at most the heads of one class, as returned by `reduced`.
  """
  if not model.heads:
    return (family.model_class if model.vocabulary_head else family.bare_class), None
  head = model.heads[0]
  for name, task in family.tasks.items():
    is_its = not task.pretrains or task.head == head.name
    if head.kind in task.kinds and task.pretrains == model.vocabulary_head and is_its:
      return name, task
  return "", None


def reduced(family: Family, model: TransformerConfig, chosen: str = "") -> TransformerConfig:
  """Returns the model with the heads of one transformers class: over the vocabulary, one by name, or both in
  pre-training.

  Args:
    family: the model's.
    model: with any heads.
    chosen: name of a head, or `VOCABULARY`; "": the only head besides pre-training, if there is one.

  Raises:
    hf_mappings.Unknown: there is no such class, or the head is ambiguous.
  """
  names = [head.name for head in model.heads]
  if chosen not in ("", VOCABULARY, *names):
    there = ", ".join(names) or "none"
    raise hf_mappings.Unknown(
      f"the model has no head {chosen!r}. The model's heads: {there}{did_you_mean(chosen, names)}"
    )
  first = [head for head in model.heads if _pretrains(family, model, head)]
  other_heads = [head for head in model.heads if head not in first]
  if chosen in names:
    heads = [head for head in model.heads if head.name == chosen]
  elif not chosen and all(head.kind == "vector" for head in other_heads):
    heads = first  # a vector head is the model without a head
  else:
    heads = [] if chosen else other_heads or first
  if len(heads) > 1:
    raise hf_mappings.Unknown(
      f"config.model.heads has {', '.join(head.name for head in heads)}, but a class of transformers has only one "
      "head. Select a head with --head NAME."
    )
  keeps = model.vocabulary_head and all(head in first for head in heads)
  if chosen == VOCABULARY and not model.vocabulary_head:
    raise hf_mappings.Unknown(
      "config.model.vocabulary_head=False: the model has no head over the vocabulary. Give another head, or leave "
      "out --head."
    )
  reduced_model = dataclasses.replace(model, heads=tuple(heads), vocabulary_head=keeps)
  if class_of(family, reduced_model)[0]:
    return reduced_model
  if not heads:
    raise hf_mappings.Unknown("config.model.vocabulary_head=False: transformers has no class without a head")
  if heads[0].kind == "vector":
    raise hf_mappings.Unknown(
      f"config.model.heads: {heads[0].name} is a vector head, and vectors come from the model without a head. Leave "
      "out --head."
    )
  raise hf_mappings.Unknown(
    f"config.model.heads: t2t writes no transformers class with a {heads[0].kind} head, such as {heads[0].name}"
    f"{leaves_out(model)}"
  )


def leaves_out(model: TransformerConfig) -> str:
  """Returns the end of a message about an unsupported head."""
  return f". Give --head {VOCABULARY} to write the rest of the model." if model.vocabulary_head else ""


def _pretrains(family: Family, model: TransformerConfig, head: HeadConfig) -> bool:
  return model.vocabulary_head and any(
    task.pretrains and task.head == head.name and head.kind in task.kinds for task in family.tasks.values()
  )


# ---- Reading ---------------------------------------------------------------------------------------------------------


def class_in(family: Family, settings: Settings, names: Collection[str]) -> str:
  """Returns the class of a folder, from config.json or its tensors; "": the family's main class.

  Args:
    family: of the folder.
    settings: its config.json.
    names: of its tensors.
  """
  class_name = next(iter(settings.get("architectures") or ()), "")
  if class_name in family.tasks or (class_name and class_name == family.bare_class):
    return class_name
  # Published masked language models also contain the next-sentence head.
  for name, task in family.tasks.items():
    if task.pretrains and all(tensor in names for tensor in task.names):
      return name
  return ""


def read(family: Family, class_name: str, settings: Settings, dropout_rate: float) -> dict[str, Any]:
  """Returns the fields of `TransformerConfig` about heads.

  Args:
    family: of the folder.
    class_name: see `class_in`.
    settings: its config.json.
    dropout_rate: of the model.

  Raises:
    hf_mappings.Unknown: t2t does not support a head.
  """
  task = family.tasks.get(class_name)
  if task is None:
    return {"heads": (), "vocabulary_head": class_name in ("", family.model_class)}
  return {"heads": (_read_head(task, settings, dropout_rate),), "vocabulary_head": task.pretrains}


def _read_head(task: HeadTask, settings: Settings, dropout_rate: float) -> HeadConfig:
  kind, number, labels = task.kinds[0], task.num_classes, task.labels
  if not number:
    id2label = settings.get("id2label") or {}
    labels = tuple(str(id2label[key]) for key in sorted(id2label, key=int))
    number = len(labels) or settings.get("num_labels") or settings.get("_num_labels") or 2
    if labels == _unnamed(number):
      labels = ()
    if "score" in task.kinds:
      kind = _kind(settings, number)
  fields = dict(task.fields) | task.read(settings)
  their_rate = settings.get(task.dropout_key) if task.dropout_key else None
  rate = task.dropout_rate if their_rate is None else their_rate
  rate = -1.0 if rate is None else float(rate)
  rate, fields["drops_inputs"] = settings.get(DROPOUT) or (rate, fields.get("drops_inputs", False))
  if rate == _implied(kind, dropout_rate):
    rate = -1.0
  name = settings.get(KEY) or task.head or kind
  no_answer = kind == "span" and bool(settings.get(NO_ANSWER))
  return HeadConfig(name, number, kind, labels, dropout_rate=rate, no_answer=no_answer, **fields)


def _kind(settings: Settings, number: int) -> str:
  problem = settings.get("problem_type") or ("regression" if number == 1 else "single_label_classification")
  if problem == "regression" and number == 1:
    return "score"
  if problem != "single_label_classification":
    raise hf_mappings.Unknown(
      f"problem_type={problem!r} with {number} labels: t2t supports only single-label classification, "
      "or regression of one number"
    )
  return "class"


def _unnamed(number: int) -> tuple[str, ...]:
  return tuple(f"LABEL_{index}" for index in range(number))


def renamed(foreign: Foreign, name: str) -> Foreign:
  """Returns a checkpoint with its head renamed, usually to a task.

  Raises:
    UserError: it has no head, or several.
  """
  if len(foreign.model.heads) != 1:
    there = ", ".join(head.name for head in foreign.model.heads) or "none"
    raise UserError(
      f"--head {name} needs a checkpoint with one named head, but {foreign.path} has {there}. Leave out --head."
    )
  (head,) = foreign.model.heads
  model = dataclasses.replace(foreign.model, heads=(dataclasses.replace(head, name=name),))
  old, new = f"heads/{head.name}/", f"heads/{name}/"
  moved = lambda path: new + path.removeprefix(old) if path.startswith(old) else path
  tensors = {moved(path): tensor for path, tensor in foreign.tensors.items()}
  return dataclasses.replace(foreign, model=model, tensors=tensors)


# ---- Writing ---------------------------------------------------------------------------------------------------------


def write(family: Family, model: TransformerConfig, *, hint: str = "") -> dict[str, Any]:
  """Returns the keys of config.json for the head of a model.

  Args:
    family: the model's.
    model: as returned by `reduced`.
    hint: end of the error message.

  Raises:
    hf_mappings.Unknown: the head of the class differs.
  """
  _, task = class_of(family, model)
  if task is None:
    return {}
  head = model.heads[0]
  settings: dict[str, Any] = {KEY: head.name} if head.name != (task.head or head.kind) else {}
  settings |= {NO_ANSWER: True} if head.no_answer else {}
  if not task.num_classes:
    labels = head.labels or _unnamed(head.num_classes)
    settings |= {"id2label": {str(i): label for i, label in enumerate(labels)}}
    settings |= {"label2id": {label: i for i, label in enumerate(labels)}}
  if "score" in task.kinds:
    settings["problem_type"] = "regression" if head.kind == "score" else "single_label_classification"
  if task.dropout_key:
    settings[task.dropout_key] = _rate(head, model)
  settings |= task.write(head.spelled_out(model.kind))
  again = _read_head(task, settings, model.dropout_rate)
  named = head if head.labels else dataclasses.replace(head, labels=again.labels)
  mine, theirs = (_that_matter(variant, model) for variant in (named, again))
  different = [f"{key}={mine[key]!r} (transformers {theirs[key]!r})" for key in _PARTS if mine[key] != theirs[key]]
  if different:
    if theirs["reads"] == "first" and mine["reads"] == "mean":
      hint = f"{hint or '.'} Heads read the first token if the vocabulary has [CLS]. Train such a vocabulary with"
      hint += " `t2t vocab train --type wordpiece`, and train the model with this vocabulary."
    raise hf_mappings.Unknown(f"config.model.heads: {head.name} has {', '.join(different)}{hint}")
  dropouts = [(variant.drops_inputs, _rate(variant, model)) for variant in (again, head)]
  if dropouts[0] != dropouts[1]:
    settings[DROPOUT] = [_rate(head, model), head.drops_inputs]
  return settings


def _implied(kind: str, dropout_rate: float) -> float:
  """Returns the default dropout rate before the logits of a head, for a model with this rate."""
  return 0.0 if kind == "span" else dropout_rate


def _rate(head: HeadConfig, model: TransformerConfig) -> float:
  return _implied(head.kind, model.dropout_rate) if head.dropout_rate < 0 else head.dropout_rate


def _that_matter(head: HeadConfig, model: TransformerConfig) -> Mapping[str, Any]:
  fields = vars(head.spelled_out(model.kind))
  return {key: fields[key] for key in _PARTS}
