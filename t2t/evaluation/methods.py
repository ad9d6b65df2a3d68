"""Evaluation methods: generation, ranking of options, a task head, or a baseline."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flax import nnx
import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig, EvalConfig
from t2t.data import head_examples, raw_text
from t2t.inference import (
  decoding,
  head_predictor,
  option_scores,
  predictor,
  prompt_features,
  pseudo_likelihood,
  text_scores,
)
from t2t.models.config import TransformerConfig
from t2t.models.head_config import ANSWERED_HEADS, HeadConfig
from t2t.param_tree import Params
from t2t.runtime import hosts
from t2t.runtime.lazy_table import load

if TYPE_CHECKING:  # seqio is imported by t2t.data, which silences TensorFlow's messages first
  import seqio

Examples = Sequence[Mapping[str, Any]]
Done = Callable[[float, int], None] | None  # numbers of examples and tokens, after each batch


@dataclasses.dataclass(frozen=True)
class EvaluationContext:
  """Model with the settings of its evaluation.

  data: lengths of inputs and targets.
  settings: beam search.
  config, graphdef, mesh: of the model.
  vocabulary: of the model.
  batch_size: rows over all devices.
  ends_prompts: whether a decoder-only model was trained with EOS after its prompt; None: as each task has it.
  causal: whether a prefix LM reads prompts with causal attention.
  members: number of models of an ensemble, see `models.ensemble`; 1: a single model.
  """

  data: DataConfig
  settings: EvalConfig
  config: TransformerConfig
  graphdef: nnx.GraphDef
  mesh: jax.sharding.Mesh
  vocabulary: "seqio.Vocabulary"
  batch_size: int
  ends_prompts: bool | None
  causal: bool = False
  members: int = 1


class Answers(NamedTuple):
  """Answers to examples.

  texts: answer to each example.
  scores: log-probability of each answer.
  tied: for each example all answers with the same best score, including the chosen one; empty without a tie.
  """

  texts: Sequence[str]
  scores: Sequence[float]
  tied: Sequence[tuple[str, ...]]


class Method(Protocol):
  """Evaluation method.

  rule: settings of config.eval that scores depend on: normalize, pseudo_likelihood, neutral_context.
  """

  rule: dict[str, str]

  def task(self, task: "seqio.Task") -> "seqio.Task":
    """Returns the task with its examples as the method reads them."""

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """Checks that the method can evaluate the task.

    Raises:
      UserError: it cannot; the message suggests another method.
    """

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    """Returns the model's input for an example, as token ids."""

  def answer(self, task: "seqio.Task", examples: Examples, params: Params, done: Done) -> Answers:
    """Returns the answer to each example."""

  def log_likelihood(self, examples: Examples, params: Params, done: Done) -> np.ndarray:
    """Returns the log-likelihood of each example's target, float32 [examples]; for tasks with score metrics."""


def text(value: bytes | str) -> str:
  """Returns a text field of an example as str."""
  return value.decode() if isinstance(value, bytes) else str(value)


class Writes:
  """Generates the answer, token by token."""

  def __init__(self, context: EvaluationContext):
    config, settings = context.config, context.settings
    self._context, self._vocabulary = context, context.vocabulary
    pseudo = pseudo_likelihood.choose(settings.pseudo_likelihood, is_generative=config.kind.is_generative)
    self._predictor = predictor.Predictor(
      config,
      context.graphdef,
      context.mesh,
      prompt_features.framing(context.vocabulary, causal=context.causal),
      decode=decoding.DecodeConfig(
        max_length=context.data.targets_length, num_beams=settings.num_beams, length_penalty=settings.length_penalty
      )
      if self.writes
      else None,
      batch_size=context.batch_size,
      max_inputs=context.data.inputs_length,
    )
    self._scorer = text_scores.Scorer(self._predictor, context.vocabulary, pseudo_likelihood=pseudo)
    self.rule = {"pseudo_likelihood": pseudo} if pseudo else {}

  writes = True

  def task(self, task: "seqio.Task") -> "seqio.Task":
    return task

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """Accepts any task."""

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    """Returns the input ids: encoder-decoder inputs end in EOS, decoder-only prompts end in EOS if they did in
    training.

    Inputs of an encoder do not end in EOS.
    """
    if "inputs" not in example:
      return []
    kind, eos_id = self._context.config.kind, self._vocabulary.eos_id
    tokens = example["inputs"].tolist()
    if kind.has_encoder_and_decoder:
      return tokens
    if tokens and tokens[-1] == eos_id:
      tokens.pop()
    ends = self._context.ends_prompts
    as_the_task = task.output_features["inputs"].add_eos if ends is None else ends
    if kind.is_generative and as_the_task:
      return [*tokens[: self._context.data.inputs_length - 1], eos_id]
    return tokens

  def answer(self, task, examples: Examples, params: Params, done: Done) -> Answers:
    """Returns the generated texts and their log-probability; ties between tokens go to the lower id, as in argmax."""
    del task
    written = self._predictor.generate(params, [example["inputs"] for example in examples], on_batch=done)
    texts = [self._vocabulary.decode(generated.tokens[0]) for generated in written]
    return Answers(texts, [generated.scores[0] for generated in written], [()] * len(texts))

  def log_likelihood(self, examples: Examples, params: Params, done: Done) -> np.ndarray:
    pairs = [(example["inputs"], example["targets"].tolist()) for example in examples]
    scores = self._scorer(params, pairs, on_batch=done)
    _log_long(self._scorer.long_note(scores))
    return np.array([score.log_p for score in scores], np.float32)


class Ranks(Writes):
  """Chooses the option with the highest score, see `option_scores`; tied options are all answers."""

  writes = False

  def __init__(self, context: EvaluationContext):
    super().__init__(context)
    settings = context.settings
    normalize = option_scores.choose(settings.normalize, is_generative=context.config.kind.is_generative)
    self.rule = {"normalize": normalize, **self.rule}
    if option_scores.NORMALIZATIONS[normalize].needs_neutral:
      self.rule["neutral_context"] = settings.neutral_context

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    # An encoder always ranks, whatever the config.
    is_generative = self._context.config.is_generative
    who = "config.eval.method=rank" if is_generative else "an encoder"
    otherwise = ", or set config.eval.method=generate" if is_generative else ""
    if task.predict_metric_fns and "options" not in example:
      raise UserError(
        f"{task.name}: the examples have no field 'options', but {who} needs this field. Name only other tasks in "
        f"config.eval.tasks{otherwise}."
      )
    if "tags" in example:
      raise UserError(
        f"{task.name}: {who} cannot predict a tag for each word. Fine-tune a head with "
        f"config.train.loss=heads{otherwise}."
      )

  def answer(self, task, examples: Examples, params: Params, done: Done) -> Answers:
    """Returns the best option of each example, with all tied options."""
    return self.best(*self.option_scores(task, examples, params, done))

  def option_scores(
    self, task, examples: Examples, params: Params, done: Done = None
  ) -> tuple[list[list[str]], list[np.ndarray]]:
    """Returns the options of each example, and their scores, float64 [options]; of a template, one for each label."""
    kind = self._context.config.kind
    end = [self._vocabulary.eos_id] if kind.has_encoder_and_decoder else []
    texts = [[text(option) for option in example["options"]] for example in examples]
    encoded = {
      option: option_scores.Option(
        option, (*raw_text.encode_again(self._vocabulary, option, example.get("targets", ())), *end)
      )
      for example, option_texts in zip(examples, texts, strict=True)
      for option in option_texts
    }
    ranker = option_scores.Ranker(self._scorer, normalize=self.rule["normalize"], neutral=self._neutral(task))
    options = [[encoded[option] for option in option_texts] for option_texts in texts]
    suffixes = [example.get("suffix", ()) for example in examples]
    inputs = [example["inputs"] for example in examples]
    scores = ranker(params, inputs, options, suffixes=suffixes, on_batch=done)
    _log_long(ranker.note)
    for number, example in enumerate(examples):
      if "option_labels" in example:
        words, scores[number] = option_scores.of_labels(scores[number], [text(x) for x in example["option_labels"]])
        texts[number] = [texts[number][word] for word in words]
    return texts, scores

  @staticmethod
  def best(texts: Sequence[Sequence[str]], scores: Sequence[np.ndarray]) -> Answers:
    """Returns the option of each example with the highest score, with all tied options."""
    # The first of tied options is the answer, so that rounding, and thus the batch size, does not decide.
    best = [option_scores.best(of_options) for of_options in scores]
    tied = [tuple(names[i] for i in indices) for names, indices in zip(texts, best, strict=True)]
    return Answers(
      [names[indices[0]] for names, indices in zip(texts, best, strict=True)],
      [float(of_options[indices[0]]) for of_options, indices in zip(scores, best, strict=True)],
      [names if len(set(names)) > 1 else () for names in tied],
    )

  def _neutral(self, task: "seqio.Task") -> list[int]:
    """Returns the neutral context as the input of the task that has only this text."""
    context = self.rule.get("neutral_context", "")
    tokens = raw_text.encode_again(self._vocabulary, context, ()) if context else []
    return list(self.inputs(task, {"inputs": np.array([*tokens, self._vocabulary.eos_id], np.int32)}))


def _log_long(note: str) -> None:
  if note:
    hosts.log_once(note)


class HeadMethod:
  """Predicts with a task head."""

  def __init__(self, context: EvaluationContext):
    self._context, self.rule = context, {}
    self._answerer = head_predictor.of_model(
      context.config,
      context.graphdef,
      context.mesh,
      exits=(context.settings.exit_entropy, context.settings.exit_patience),
      where="config.eval.",
      pad_id=max(context.vocabulary.pad_id, 0),
      batch_size=context.batch_size,
      members=context.members,
    )
    self._heads: dict[str, HeadConfig] = {}
    self._orders: dict[str, list[int]] = {}
    if context.settings.num_shots:
      raise UserError(
        f"config.eval.num_shots={context.settings.num_shots}: few-shot evaluation needs a generative model, but "
        "this model predicts with a head. Set config.eval.num_shots=0."
      )

  def task(self, task: "seqio.Task") -> "seqio.Task":
    config = self._context.config
    number, need = head_examples.head_of(task, config.heads)
    head = config.heads[number]
    # A foreign model may have other class names, or none.
    labels = head_examples.labels_of(head, need)
    self._heads[task.name] = dataclasses.replace(head, labels=labels)
    self._answerer.check(head)
    self._orders[task.name] = [labels.index(label) for label in need.labels]
    return head_examples.for_heads(task, config.architecture, config.heads)

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """Refuses tasks with score metrics, because a head gives no log-likelihood of targets."""
    del example
    if task.score_metric_fns:
      raise UserError(
        f"{task.name}: the metrics need the log-likelihood of targets, but a head computes none; name only other "
        "tasks in config.eval.tasks"
      )

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    del task
    return example["inputs"]

  def answer(self, task: "seqio.Task", examples: Examples, params: Params, done: Done) -> Answers:
    """Returns the head's predictions as the texts that generation would produce."""
    head = self._heads[task.name]
    # Examples per window, for the progress count.
    share = len(examples) / sum(len(head_predictor.rows_of(example)) for example in examples)
    step = None if done is None else lambda number, tokens: done(number * share, tokens)
    logits_by_example = self._answerer.logits(params, head, examples, on_batch=step)
    if used := self._answerer.layers:
      mean, most = np.mean(used), self._context.config.num_encoder_layers
      hosts.log_once(f"{task.name}: {mean:.2f} of {most} layers on average")
    return self.answers_of(task, examples, logits_by_example)

  def answers_of(self, task: "seqio.Task", examples: Examples, logits_by_example: Sequence[np.ndarray]) -> Answers:
    """Returns the answers of a task from the head's logits; see `head_predictor.answer`."""
    head = self._heads[task.name]
    pairs = [
      head_predictor.answer(head, example, logits) for example, logits in zip(examples, logits_by_example, strict=True)
    ]
    tied = [
      head_predictor.tied(head, example, logits) for example, logits in zip(examples, logits_by_example, strict=True)
    ]
    return Answers([answer for answer, _ in pairs], [score for _, score in pairs], tied)

  def exit_logits(self, task: "seqio.Task", examples: Examples, params: Params) -> np.ndarray:
    """Returns the logits of a head after every layer, float32 [examples, layers, classes]."""
    from t2t.inference import early_exit

    return early_exit.of_examples(self._answerer, params, self._heads[task.name], examples)

  def class_logits(self, task: "seqio.Task", examples: Examples, params: Params) -> np.ndarray:
    """Returns the logits of a class head in the order of the task's classes, float32 [examples, classes]."""
    head, order = self._heads[task.name], self._orders[task.name]
    rows = self._answerer.logits(params, head, examples)
    return np.stack([row[0] for row in rows])[:, order].astype(np.float32)


def _most_frequent(context: EvaluationContext) -> Method:
  return load("t2t.contrib.static.most_frequent:MostFrequent")(context)  # few evaluations are of this baseline


METHODS: dict[str, Callable[[EvaluationContext], Method]] = {
  "generate": Writes,
  "rank": Ranks,
  "head": HeadMethod,
  "most_frequent": _most_frequent,
}
WITHOUT_TOKENS = ("head", "most_frequent")  # methods that need no vocabulary head


def check(settings: EvalConfig, config: TransformerConfig, *, by_heads: bool) -> str:
  """Returns a key of `METHODS`, after a check of the keys of scoring rules; see `choose`.

  Raises:
    UserError: a value is unknown, or does not fit the model or the method.
  """
  is_generative = config.kind.is_generative
  method = choose(settings.method, config, by_heads=by_heads)
  normalize = option_scores.choose(settings.normalize, is_generative=is_generative)
  for key in ("normalize", "neutral_context"):
    value = getattr(settings, key)
    if value and method != "rank":
      raise UserError(
        f"config.eval.{key}={value}: only ranked options are normalized, but this evaluation has the method "
        f"{method!r}. Set config.eval.method=rank, or leave out config.eval.{key}."
      )
  if settings.pseudo_likelihood and method in WITHOUT_TOKENS:
    who = "a head" if method == "head" else "the most frequent class"
    raise UserError(
      f"config.eval.pseudo_likelihood={settings.pseudo_likelihood}: {who} predicts without pseudo-log-likelihoods. "
      "Set config.eval.method=rank, or leave out config.eval.pseudo_likelihood."
    )
  pseudo_likelihood.choose(settings.pseudo_likelihood, is_generative=is_generative)
  option_scores.check_neutral(normalize, settings.neutral_context)
  return method


def choose(name: str, config: TransformerConfig, *, by_heads: bool) -> str:
  """Returns a key of `METHODS`: the requested one; otherwise heads if the model was trained with them, else generation
  or, for encoders, ranking.

  Args:
    name: config.eval.method; "": choose automatically.
    config: of the model.
    by_heads: whether the model was trained to predict with its heads.

  Raises:
    UserError: the method is unknown, or does not fit the model.
  """
  if name and name not in METHODS:
    raise UserError(
      f"config.eval.method={name}: unknown value. Known values: {', '.join(METHODS)}{did_you_mean(name, METHODS)}"
    )
  if name == "most_frequent":
    return name
  answering_heads = [head.name for head in config.heads if head.kind in ANSWERED_HEADS]
  if name == "head" and not answering_heads:
    raise UserError(
      "config.eval.method=head: the model has no task head; fine-tune the model with config.train.loss=heads first"
    )
  if name == "generate" and not config.is_generative:
    raise UserError(
      "config.eval.method=generate: an encoder generates no text. Set config.eval.method=rank, or leave it out"
    )
  if not config.is_generative:
    return "head" if answering_heads and by_heads and name != "rank" else "rank" if name != "head" else name
  return name or ("head" if answering_heads and by_heads else "generate")
