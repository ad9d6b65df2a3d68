"""Converts texts to prompts as in training, and generated tokens to rows."""

from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any, NamedTuple

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.schema import DataConfig
from t2t.inference import predictor

# Control tokens that are parsed in a prompt: none, only blanks, all.
SPECIAL_TOKENS = ("none", "blanks", "all")
_FILLING = "span_corruption"  # suffix of task names with this objective


class Prompts:
  """Converts texts to model input.

  Args:
    vocabulary: of the model.
    ends: whether EOS comes last, see `ends_prompts`.
    longest: maximum number of tokens, EOS included.
    special_tokens: control tokens that are parsed, see `vocabularies.encode_text`.
    prefix: added to texts that lack it, see `prefix`.
  """

  def __init__(
    self, vocabulary, *, ends: bool, longest: int, special_tokens: str = "blanks", prefix: "TaskPrefix | None" = None
  ):
    self._vocabulary, self._special_tokens, self._prefix = vocabulary, special_tokens, prefix or TaskPrefix()
    self._end = [vocabulary.eos_id] if ends else []
    self._room = longest - len(self._end)

  def __call__(self, text: str) -> tuple[list[int], int]:
    """Returns the tokens of a text, and the number of tokens truncated from its end."""
    return self._framed(self.prompt(text))

  def without_prefix(self, text: str) -> tuple[list[int], int]:
    """Returns the tokens of a text that has its own format; see `__call__`."""
    return self._framed(self.encode(text))

  def _framed(self, tokens: list[int]) -> tuple[list[int], int]:
    return [*tokens[: self._room], *self._end], max(0, len(tokens) - self._room)

  def prompt(self, text: str) -> list[int]:
    """Returns all tokens of an input, including its prefix."""
    return self.encode(self._prefix.before(text))

  def encode(self, text: str) -> list[int]:
    """Returns all tokens of a text, without special tokens around them."""
    from t2t.data import vocabularies

    return vocabularies.encode_text(self._vocabulary, text, special_tokens=self._special_tokens)


def special_tokens(source: pretrained.Source, requested: str) -> str:
  """Returns which control tokens are parsed in an input: `requested`, or by default the same as in training.

  A model of a table reads rows as in training. For other models, whose training texts are not all known, the
  default
  is "blanks".
  """
  data = source.run["data"]
  if requested or not data.get("table"):
    return requested or "blanks"
  return "all" if data.get("special_tokens") else "none"


def said(special_tokens: str) -> dict[str, str]:
  """Returns the options that rows depend on, if not the default."""
  return {} if special_tokens == "blanks" else {"special_tokens": special_tokens}


class TaskPrefix(NamedTuple):
  """Prefix of the inputs that a model was fine-tuned on.

  text: "mnli hypothesis: "; "" if unknown or different between inputs.
  name: of the task ("mnli"), after which fields may come in any order; "" without a name.
  """

  text: str = ""
  name: str = ""

  def before(self, text: str) -> str:
    """Returns the text with the prefix, which is added once.

    In:  "It is wet."
    Out: "mnli hypothesis: It is wet."
    In:  "mnli premise: It rained. hypothesis: It is wet."
    Out: "mnli premise: It rained. hypothesis: It is wet."
    """
    begins = text.startswith(self.text) or self.name and text.startswith(f"{self.name} ")
    return text if not text or begins else f"{self.text}{text}"


_TASK_AND_FIELD = re.compile(r"(\w+(?: \w+)*) \w+: ")


def prefix(source: pretrained.Source) -> TaskPrefix:
  """Returns the prefix of the table or single task that a model was fine-tuned on.

  With several tasks, it is the prefix of the selected task, see `select_task`.
  """
  if table := source.run["data"].get("table"):
    return TaskPrefix(table["prefix"])
  if source.run["data"].get("templates"):  # they replace the text of a task
    return TaskPrefix()
  tasks = [task for task in pretrained.trained_tasks(source) if source.prefix_task in ("", task.name)]
  if not tasks:
    return TaskPrefix()
  from t2t.data import task_prefixes  # imports seqio

  prefix_sets = {task_prefixes.of(task) for task in tasks}
  shared_prefixes = prefix_sets.pop() if len(prefix_sets) == 1 else ()
  if len(shared_prefixes) != 1:
    return TaskPrefix()
  named = _TASK_AND_FIELD.fullmatch(shared_prefixes[0])
  return TaskPrefix(shared_prefixes[0], named[1] if named else "")


def tasks_with_prefixes(source: pretrained.Source) -> tuple[str, ...]:
  """Returns the names of the text-to-text tasks of a model, if there are several with a single prefix."""
  if pretrained.answers_by_heads(source) or not source.model.is_generative or source.run["data"].get("templates"):
    return ()
  tasks = pretrained.trained_tasks(source)
  if len(tasks) < 2:
    return ()
  from t2t.data import task_prefixes  # imports seqio

  names = tuple(task.name for task in tasks if len(task_prefixes.of(task)) == 1)
  return names if len(names) > 1 else ()


def ends_prompts(source: pretrained.Source, wanted: str = "") -> tuple[bool, str]:
  """Returns whether EOS ends a prompt, and the reason in words.

  Args:
    source: the checkpoint.
    wanted: "yes" or "no"; "": as in training, where an encoder always reads EOS.
  """
  ends, reason = (True, "it has an encoder")
  if source.model.kind.is_decoder_only:
    ends, reason = pretrained.ends_prompts(source)
  if wanted:
    return wanted == "yes", f"--prompt_eos {wanted}"
  if ends is None:
    return False, f"not known from training: {reason}; --prompt_eos yes adds it"
  return ends, f"as in training: {reason}"


def known_prefixes(source: pretrained.Source) -> tuple[str, ...]:
  """Returns the prefixes of the inputs that the model was trained on, as far as its run records them."""
  from t2t.data import languages
  from t2t.data.objectives import denoisers

  data = source.run["data"]
  known_fields = {field.name for field in dataclasses.fields(DataConfig)}
  prefix_texts: list[str] = []
  for source_settings in data.get("sources", {}).values() or [{}]:
    merged = {**data, "sources": {}, **{key: x for key, x in source_settings.items() if x}}
    try:
      if merged.get("files"):
        prefix_texts += denoisers.mode_tokens(merged["objective"])
        tags = languages.tags(
          DataConfig(**{key: x for key, x in merged.items() if key in known_fields}), where="config.data"
        )
        prefix_texts += [f"{tag} " for tag in tags if tag]
      elif merged.get("mixture"):
        prefix_texts += _prefixes_of_mixture(source, merged["mixture"])
    except UserError:  # the task's module is not loaded
      continue
  return tuple(dict.fromkeys(prefix_texts))


def _prefixes_of_mixture(source: pretrained.Source, mixture: str) -> Sequence[str]:
  from t2t.data import objectives
  from t2t.data.objectives import denoisers

  names = objectives.of_corpus_tasks(mixture, source.run["data"].get("task_modules", ()))
  if names is not None:
    return [token for name in sorted(names) for token in denoisers.mode_tokens(name)]
  from t2t.runtime import data_packages

  with data_packages.says_what_is_missing():
    from t2t.data import task_prefixes, task_resolution
  return task_prefixes.of(task_resolution.named(mixture, modules=pretrained.task_modules(source)[0]))


def blank(source: pretrained.Source) -> str:
  """Returns "<extra_id_" if the model was only trained on inputs with such blanks, otherwise ""."""
  data = source.run["data"]
  named = data.get("objective", "") if data.get("files") else data.get("mixture", "")
  is_alone = not data.get("sources") and not source.run.get("stages")
  return "<extra_id_" if is_alone and named.endswith(_FILLING) and source.model.kind.has_encoder_and_decoder else ""


def longest_prompt(source: pretrained.Source, *, inputs_length: int, max_length: int) -> int:
  """Returns the maximum number of prompt tokens, EOS included.

  Args:
    source: the checkpoint.
    inputs_length: given by the user; 0: as in training, limited by the model's positions.
    max_length: number of tokens to generate.
  """
  if inputs_length < 0:
    raise UserError(
      f"--inputs_length {inputs_length} must be at least 1; leave out --inputs_length to use the length of training"
    )
  if inputs_length:
    return inputs_length
  trained = source.run["data"]["inputs_length"]
  if not source.asked.most_positions:
    return trained
  # A decoder-only model has BOS and the answer, without its last token, in the same row.
  reserved = max_length if source.model.kind.is_decoder_only else 0
  return max(1, min(trained, source.asked.most_positions - reserved))


def longest_text(source: pretrained.Source, *, inputs_length: int) -> int:
  """Returns the maximum number of tokens of a text without generated output, special tokens included.

  Args:
    source: the checkpoint.
    inputs_length: given by the user; 0: as in training, limited by the model's positions.

  Raises:
    UserError: the model has fewer positions.
  """
  longest, most = longest_prompt(source, inputs_length=inputs_length, max_length=0), source.asked.most_positions
  if most and longest > most:
    raise UserError(f"--inputs_length {inputs_length}: the model has only {most} positions; give {most} or less")
  return longest


def rounded(score: float) -> float:
  """Rounds a float32 to its significant digits."""
  return float(f"{score:.6g}")


def answer(generation: predictor.Generation, vocabulary) -> dict[str, Any]:
  """Returns generated text as fields of a row: the best, and with beam search the alternatives."""
  texts = [vocabulary.decode(tokens) for tokens in generation.tokens]
  scores = [rounded(score) for score in generation.scores]
  if not math.isfinite(scores[0]):
    raise UserError(
      f"--checkpoint: the model produced {scores[0]} as the score of a prediction; use a different checkpoint"
    )
  row: dict[str, Any] = {"prediction": texts[0], "score": scores[0]}
  other_beams = zip(texts[1:], scores[1:], strict=True)
  alternatives = [{"prediction": text, "score": score} for text, score in other_beams if math.isfinite(score)]
  return row | ({"alternatives": alternatives} if alternatives else {})
