"""What a model is asked and what it answers: text to tokens and back, as in its training."""

import dataclasses
import math
import re
from typing import Any, NamedTuple

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.schema import DataConfig
from t2t.inference import predictor

# Which letters of a prompt that spell control tokens are these: none, those of missing text, all.
SPECIAL_TOKENS = ("none", "blanks", "all")
_FILLING = "span_corruption"  # an objective; its tasks' names end in it


class Prompts:
  """Texts as a model reads them.

  Args:
    vocabulary: of the model.
    ends: whether EOS comes last, see `ends_prompts`.
    longest: tokens at most, EOS included.
    special_tokens: which letters that spell control tokens are these, see `vocabularies.encode_text`.
    prefix: text in front of each that does not begin with it, see `prefix`.
  """

  def __init__(
    self, vocabulary, *, ends: bool, longest: int, special_tokens: str = "blanks", prefix: "TaskPrefix | None" = None
  ):
    self._vocabulary, self._special_tokens, self._prefix = vocabulary, special_tokens, prefix or TaskPrefix()
    self._end = [vocabulary.eos_id] if ends else []
    self._room = longest - len(self._end)

  def __call__(self, text: str) -> tuple[list[int], int]:
    """The tokens of a text, and how many of them were cut from its end."""
    tokens = self.prompt(text)
    return [*tokens[: self._room], *self._end], max(0, len(tokens) - self._room)

  def prompt(self, text: str) -> list[int]:
    """Returns the tokens of an input, all of them, those of its prefix first."""
    return self.encode(self._prefix.before(text))

  def encode(self, text: str) -> list[int]:
    """The tokens of a text, all of them, with nothing around them."""
    from t2t.data import vocabularies

    return vocabularies.encode_text(self._vocabulary, text, special_tokens=self._special_tokens)


def special_tokens(source: pretrained.Source, requested: str) -> str:
  """Returns which letters of an input that spell control tokens are these: `requested`, or if "" those of training.

  A model of a table reads rows as its training read them. Of other models' training not all texts are known: they read
  blanks.
  """
  data = source.run["data"]
  if requested or not data.get("table"):
    return requested or "blanks"
  return "all" if data.get("special_tokens") else "none"


def said(special_tokens: str) -> dict[str, str]:
  """Returns the options that rows depend on, if they are not the default."""
  return {} if special_tokens == "blanks" else {"special_tokens": special_tokens}


class TaskPrefix(NamedTuple):
  """Text in front of each input that a model was fine-tuned on.

  text: "mnli hypothesis: "; "" where it is not known, or not one for all.
  name: of the task, "mnli", behind which the fields of an input may come in any order; "": there is no name.
  """

  text: str = ""
  name: str = ""

  def before(self, text: str) -> str:
    """A text with the prefix in front, once.

    In:  "It is wet."
    Out: "mnli hypothesis: It is wet."
    In:  "mnli premise: It rained. hypothesis: It is wet."
    Out: "mnli premise: It rained. hypothesis: It is wet."
    """
    begins = text.startswith(self.text) or self.name and text.startswith(f"{self.name} ")
    return text if not text or begins else f"{self.text}{text}"


_TASK_AND_FIELD = re.compile(r"(\w+(?: \w+)*) \w+: ")


def prefix(source: pretrained.Source) -> TaskPrefix:
  """The prefix of the table or of the one task that a model was fine-tuned on.

  Of several tasks it is that of the one that is chosen, see `select_task`.
  """
  if table := source.run["data"].get("table"):
    return TaskPrefix(table["prefix"])
  from t2t.data import task_prefixes

  tasks = [task for task in pretrained.trained_tasks(source) if source.prefix_task in ("", task.name)]
  prefix_sets = {task_prefixes.of(task) for task in tasks}
  shared_prefixes = prefix_sets.pop() if len(prefix_sets) == 1 else ()
  if len(shared_prefixes) != 1:
    return TaskPrefix()
  named = _TASK_AND_FIELD.fullmatch(shared_prefixes[0])
  return TaskPrefix(shared_prefixes[0], named[1] if named else "")


def tasks_with_prefixes(source: pretrained.Source) -> tuple[str, ...]:
  """Names of the tasks that a model was fine-tuned on in writing, where they are several with a prefix of each."""
  from t2t.data import task_prefixes

  if pretrained.answers_by_heads(source) or not source.model.is_generative:
    return ()
  tasks = [task.name for task in pretrained.trained_tasks(source) if len(task_prefixes.of(task)) == 1]
  return tuple(tasks) if len(tasks) > 1 else ()


def ends_prompts(source: pretrained.Source, wanted: str = "") -> tuple[bool, str]:
  """Whether EOS ends what a model is given, and why, in words for a person.

  Args:
    source: the checkpoint.
    wanted: yes or no; empty: as in training, where an encoder always reads EOS.
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
  """What stood in front of the inputs of the tasks that the model was trained on, as far as its run says so."""
  from t2t.data import languages, task_prefixes, task_resolution

  data = source.run["data"]
  known_fields = {field.name for field in dataclasses.fields(DataConfig)}
  prefix_texts: list[str] = []
  for source_settings in data.get("sources", {}).values() or [{}]:
    merged = {**data, "sources": {}, **{key: x for key, x in source_settings.items() if x}}
    try:
      if merged.get("files"):
        prefix_texts += task_prefixes.of_objective(merged["objective"])
        tags = languages.tags(
          DataConfig(**{key: x for key, x in merged.items() if key in known_fields}), where="config.data"
        )
        prefix_texts += [f"{tag} " for tag in tags if tag]
      elif merged.get("mixture"):
        prefix_texts += task_prefixes.of(
          task_resolution.named(merged["mixture"], modules=pretrained.task_modules(source)[0])
        )
    except UserError:  # nobody asked for the module that would say it
      continue
  return tuple(dict.fromkeys(prefix_texts))


def blank(source: pretrained.Source) -> str:
  """What stands in each input that the model was trained on, "<extra_id_", where that is all it was; or ""."""
  data = source.run["data"]
  named = data.get("objective", "") if data.get("files") else data.get("mixture", "")
  is_alone = not data.get("sources") and not source.run.get("stages")
  return "<extra_id_" if is_alone and named.endswith(_FILLING) and source.model.kind.has_encoder_and_decoder else ""


def longest_prompt(source: pretrained.Source, *, inputs_length: int, max_length: int) -> int:
  """Tokens of a prompt at most, EOS included.

  Args:
    source: the checkpoint.
    inputs_length: what the user wants; 0: as many as in training, if there are positions for them.
    max_length: tokens to be written.
  """
  if inputs_length < 0:
    raise UserError(f"--inputs_length {inputs_length}: must be at least 1; without it, as in training")
  if inputs_length:
    return inputs_length
  trained = source.run["data"]["inputs_length"]
  if not source.asked.most_positions:
    return trained
  # A decoder alone has BOS and the answer, but for its last token, in the same row.
  reserved = max_length if source.model.kind.is_decoder_only else 0
  return max(1, min(trained, source.asked.most_positions - reserved))


def longest_text(source: pretrained.Source, *, inputs_length: int) -> int:
  """Tokens of a text at most that is read and not answered in writing, special tokens included.

  Args:
    source: the checkpoint.
    inputs_length: what the user wants; 0: as many as in training, if there are positions for them.

  Raises:
    UserError: there are not so many positions.
  """
  longest, most = longest_prompt(source, inputs_length=inputs_length, max_length=0), source.asked.most_positions
  if most and longest > most:
    raise UserError(f"--inputs_length {inputs_length}: the model has learned {most} positions; give no more")
  return longest


def rounded(score: float) -> float:
  """A float32 with the digits that count."""
  return float(f"{score:.6g}")


def answer(generation: predictor.Generation, vocabulary) -> dict[str, Any]:
  """What was written as fields of a row: the best, and with beams the others."""
  texts = [vocabulary.decode(tokens) for tokens in generation.tokens]
  scores = [rounded(score) for score in generation.scores]
  if not math.isfinite(scores[0]):
    raise UserError(
      f"--checkpoint: the score of a prediction is {scores[0]}: its training had gone wrong; take another"
    )
  row: dict[str, Any] = {"prediction": texts[0], "score": scores[0]}
  other_beams = zip(texts[1:], scores[1:], strict=True)
  alternatives = [{"prediction": text, "score": score} for text, score in other_beams if math.isfinite(score)]
  return row | ({"alternatives": alternatives} if alternatives else {})
