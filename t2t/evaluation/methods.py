"""How a model is asked for the answer of a task: it writes, it ranks the options, or a head answers."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flax import nnx
import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.configuration.schema import DataConfig, EvalConfig
from t2t.data import head_examples, raw_text
from t2t.inference import decoding, head_predictor, predictor, prompt_features, ties
from t2t.models.config import ANSWERED_HEADS, HeadConfig, TransformerConfig
from t2t.param_tree import Params

if TYPE_CHECKING:  # it comes with t2t.data, which quiets what TensorFlow says when it is loaded
  import seqio

Examples = Sequence[Mapping[str, Any]]
Done = Callable[[float, int], None] | None  # of examples and tokens, after each batch


@dataclasses.dataclass(frozen=True)
class EvaluationContext:
  """A model, and how it is asked.

  data: lengths of inputs and targets.
  settings: of beams.
  config, graphdef, mesh: of the model.
  vocabulary: of the model.
  batch_size: rows over all devices.
  ends_prompts: whether a decoder alone was trained with EOS behind what it is given; None: as each task has it.
  causal: whether a decoder alone that can read both ways reads prompts from left to right.
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


class Answers(NamedTuple):
  """Answers to examples.

  texts: of each the answer.
  scores: of each the log-probability.
  tied: of each all answers that are as good, the given one among them; empty where no other is.
  """

  texts: Sequence[str]
  scores: Sequence[float]
  tied: Sequence[tuple[str, ...]]


class Method(Protocol):
  """A way to ask."""

  def task(self, task: "seqio.Task") -> "seqio.Task":
    """The task as its examples are read."""

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """Whether the task can be asked so.

    Raises:
      UserError: it cannot; says what would do.
    """

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    """What the model is given of an example, token ids."""

  def answer(self, task: "seqio.Task", examples: Examples, params: Params, done: Done) -> Answers:
    """The answer to each example."""

  def log_likelihood(self, examples: Examples, params: Params, done: Done) -> np.ndarray:
    """Of each example's own target, float32 [examples]; where `check` lets tasks pass that measure it."""


def text(value: bytes | str) -> str:
  """A field of an example that is a text."""
  return value.decode() if isinstance(value, bytes) else str(value)


class Writes:
  """The answer is written, token by token."""

  def __init__(self, context: EvaluationContext):
    config, settings = context.config, context.settings
    self._context, self._vocabulary = context, context.vocabulary
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

  writes = True

  def task(self, task: "seqio.Task") -> "seqio.Task":
    """As it is."""
    return task

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """Any task can be."""

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    """EOS ends what an encoder reads that a decoder answers; behind a decoder's prompt it stands if it did in training.

    An encoder alone is given a prompt that its answer goes on from.
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
    """Returns the written tokens and their log-probability; of tokens that tie, the lower id is written, as argmax."""
    del task
    written = self._predictor.generate(params, [example["inputs"] for example in examples], on_batch=done)
    texts = [self._vocabulary.decode(generated.tokens[0]) for generated in written]
    return Answers(texts, [generated.scores[0] for generated in written], [()] * len(texts))

  def log_likelihood(self, examples: Examples, params: Params, done: Done) -> np.ndarray:
    """See `Method`."""
    pairs = [(example["inputs"], example["targets"].tolist()) for example in examples]
    return self._predictor.log_likelihood(params, pairs, on_batch=done)


class Ranks(Writes):
  """The likeliest option: by its log-probability, of a masked language model by the mean over its tokens."""

  writes = False

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """It has options."""
    if task.predict_metric_fns and "options" not in example:
      raise UserError(
        f"{task.name}: its examples have no 'options' to choose among, which an encoder alone and"
        " config.eval.method=rank need; leave it out of config.eval.tasks, or have it written:"
        " config.eval.method=generate"
      )
    if "tags" in example:
      raise UserError(
        f"{task.name}: its answer is a tag for each word, among which config.eval.method=rank cannot choose; fine-tune"
        " a head on it, config.train.loss=heads, or have it written: config.eval.method=generate"
      )

  def answer(self, task, examples: Examples, params: Params, done: Done) -> Answers:
    """See the class; options that tie are all told."""
    del task
    kind = self._context.config.kind
    end = [self._vocabulary.eos_id] if kind.has_encoder_and_decoder else []
    options = [[text(option) for option in example["options"]] for example in examples]
    encoded = {
      option_text: raw_text.encode_again(self._vocabulary, option_text, example.get("targets", ()))
      for example, texts in zip(examples, options, strict=True)
      for option_text in texts
    }
    pairs = [
      (example["inputs"], [*encoded[option_text], *end])
      for example, texts in zip(examples, options, strict=True)
      for option_text in texts
    ]
    # Of so many options as make one example.
    share = len(examples) / len(pairs)
    step = None if done is None else lambda number, tokens: done(number * share, tokens)
    scores = self._predictor.log_likelihood(params, pairs, on_batch=step)
    if not kind.is_generative:
      scores = scores / np.array([max(len(target), 1) for _, target in pairs])
    ends = np.cumsum([len(texts) for texts in options])
    chosen, best, tied = [], [], []
    for texts, of_texts in zip(options, np.split(scores, ends[:-1]), strict=True):
      chosen.append(texts[int(np.argmax(of_texts))])
      best.append(float(np.max(of_texts)))
      tied_texts = tuple(texts[index] for index in ties.best(of_texts))
      tied.append(tied_texts if len(set(tied_texts)) > 1 else ())
    return Answers(chosen, best, tied)


class HeadMethod:
  """A head answers."""

  def __init__(self, context: EvaluationContext):
    self._context = context
    self._answerer = head_predictor.Answerer(
      context.config,
      context.graphdef,
      context.mesh,
      pad_id=max(context.vocabulary.pad_id, 0),
      batch_size=context.batch_size,
    )
    self._heads: dict[str, HeadConfig] = {}
    if context.settings.num_shots:
      raise UserError(
        f"config.eval.num_shots={context.settings.num_shots}: solved examples are for models that write; a head reads"
        " one"
        " example"
      )

  def task(self, task: "seqio.Task") -> "seqio.Task":
    """With the examples as a head reads them."""
    config = self._context.config
    number, need = head_examples.head_of(task, config.heads)
    head = config.heads[number]
    # What a model from elsewhere calls its classes may be written otherwise, or not at all.
    self._heads[task.name] = dataclasses.replace(head, labels=head_examples.labels_of(head, need))
    return head_examples.for_heads(task, config.architecture, config.heads)

  def check(self, task: "seqio.Task", example: Mapping[str, Any]) -> None:
    """It measures answers, and not how likely texts are."""
    del example
    if task.score_metric_fns:
      raise UserError(
        f"{task.name}: its metrics are of how likely its targets are, which a head does not say; leave it out of"
        " config.eval.tasks"
      )

  def inputs(self, task: "seqio.Task", example: Mapping[str, Any]) -> Sequence[int]:
    """As the task frames them."""
    del task
    return example["inputs"]

  def answer(self, task: "seqio.Task", examples: Examples, params: Params, done: Done) -> Answers:
    """What the head says, as the text that would have been written."""
    head = self._heads[task.name]
    # Of so many windows as make one example.
    share = len(examples) / sum(len(head_predictor.rows_of(example)) for example in examples)
    step = None if done is None else lambda number, tokens: done(number * share, tokens)
    logits_by_example = self._answerer.logits(params, head, examples, on_batch=step)
    pairs = [
      head_predictor.answer(head, example, logits) for example, logits in zip(examples, logits_by_example, strict=True)
    ]
    tied = [
      head_predictor.tied(head, example, logits) for example, logits in zip(examples, logits_by_example, strict=True)
    ]
    return Answers([answer for answer, _ in pairs], [score for _, score in pairs], tied)


METHODS: dict[str, Callable[[EvaluationContext], Method]] = {"generate": Writes, "rank": Ranks, "head": HeadMethod}


def choose(name: str, config: TransformerConfig, *, by_heads: bool) -> str:
  """A key of `METHODS`: what is asked for; or by heads if these were trained to, in writing, or by ranking.

  Args:
    name: config.eval.method; "": to be chosen.
    config: of the model.
    by_heads: whether the model was trained to answer by its heads.

  Raises:
    UserError: no such method, or not with this model.
  """
  if name and name not in METHODS:
    raise UserError(
      f"config.eval.method={name}: no such method; there are {', '.join(METHODS)}{did_you_mean(name, METHODS)}"
    )
  answering_heads = [head.name for head in config.heads if head.kind in ANSWERED_HEADS]
  if name == "head" and not answering_heads:
    raise UserError(
      "config.eval.method=head: the model has no head that answers; fine-tune it on the tasks first, with"
      " config.train.loss=heads"
    )
  if not config.is_generative:
    return "head" if answering_heads and by_heads and name != "rank" else "rank" if name != "head" else name
  return name or ("head" if answering_heads and by_heads else "generate")
