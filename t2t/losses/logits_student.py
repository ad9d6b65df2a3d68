"""A loss with logits that a teacher wrote beforehand: soft targets of tokens and heads, without a teacher in memory.

`t2t infer --logits` writes the logits of the rows of a run; with `config.distillation.logits` they are features of its
batches. A full row of logits gives the loss and gradients of `teacher_student` to the bit.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import json
from typing import Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config
from t2t.losses import head_losses, soft_tokens
from t2t.losses.distillation import DistillationConfig
from t2t.losses.protocol import Loss
from t2t.losses.teacher_student import TeacherLoss, check_base, last
from t2t.models import transformer
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

TOKENS = "tokens"  # name of the output of the vocabulary head; of other heads heads/NAME
PREFIX = "teacher/"  # of features of a batch
KEY = "config.distillation.logits"
_LAYERS = ("hidden", "mean", "variance", "embedding", "cosine", "attention", "relation")


@dataclasses.dataclass(frozen=True)
class TeacherOutput:
  """Logits of one kind in the files of a teacher.

  name: `TOKENS`, or heads/NAME.
  side: the stack whose positions have logits.
  size: number of all logits of a position: rows of the vocabulary, or classes.
  width: number of logits that were written; below `size` the largest, with their ids.
  head: kind, num_classes and labels of a head; empty for tokens.
  """

  name: str
  side: str
  size: int
  width: int
  head: Mapping[str, object] = dataclasses.field(default_factory=dict)

  @property
  def is_whole(self) -> bool:
    return self.width == self.size

  @property
  def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns name -> dtype and shape of the arrays of a position."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {"values": ("float32", (self.width,))}
    return arrays if self.is_whole else arrays | {"ids": ("int32", (self.width,)), "normalizer": ("float32", ())}


@dataclasses.dataclass(frozen=True)
class LogitsManifest:
  """Settings of the files that a teacher wrote.

  teacher: digest of its parameters.
  vocabulary: digest of the vocabulary; "": unknown.
  temperature: of the normalizer of the largest logits.
  positions: tokens with logits, a value of config.distillation.soft_positions.
  num_streams: number of data streams, which determines the rows.
  outputs: the kinds of logits.
  dtype: of the teacher's parameters, config.distillation.dtype.
  """

  teacher: str
  vocabulary: str
  temperature: float
  positions: str
  num_streams: int
  outputs: tuple[TeacherOutput, ...]
  dtype: str = "bfloat16"

  @classmethod
  def from_json(cls, text: str) -> "LogitsManifest":
    """Parses the result of `to_json`; other keys are ignored.

    Raises:
      ValueError, TypeError, KeyError: it is not a manifest.
    """
    values = json.loads(text)
    outputs = tuple(TeacherOutput(**output) for output in values["outputs"])
    settings: Any = {field.name: values[field.name] for field in dataclasses.fields(cls)}
    settings["outputs"] = outputs
    return cls(**settings)

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self), sort_keys=True)


def manifest_of(settings: DistillationConfig) -> LogitsManifest:
  """Returns the settings of the files of a run.

  Raises:
    UserError: the files have not been opened, see `checkpoints.logit_files`.
  """
  if not settings.written:
    raise UserError(f"{KEY}={','.join(settings.logits)}: this command does not read logits. Leave out {KEY}.")
  return LogitsManifest.from_json(settings.written)


def features(settings: DistillationConfig, rows: int, lengths: Mapping[str, int]) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of the logits of a batch.

  Args:
    settings: with the settings of the files.
    rows: number of rows.
    lengths: number of positions of the encoder and the decoder.
  """
  return {
    f"{PREFIX}{output.name}/{name}": jax.ShapeDtypeStruct((rows, lengths[output.side], *shape), dtype)
    for output in manifest_of(settings).outputs
    for name, (dtype, shape) in output.arrays.items()
  }


def outputs_of(loss: TeacherLoss, teacher: TransformerConfig, *, width: int) -> tuple[TeacherOutput, ...]:
  """Returns the kinds of logits that a teacher writes.

  Args:
    loss: the loss of the run with this teacher.
    teacher: the teacher.
    width: number of logits of a token; 0: all.

  Raises:
    UserError: `width` is more than the vocabulary has rows, or no tokens are predicted.
  """
  outputs = []
  if loss._reads_tokens:
    size = min(loss.model.vocab_size, teacher.vocab_size)
    if width > size:
      raise UserError(f"--logits {width}: the vocabulary has {size:,} rows. Give at most {size}, or --logits all.")
    outputs.append(TeacherOutput(TOKENS, loss.sides[-1], size, width or size))
  elif width:
    raise UserError(
      f"--logits {width} applies to tokens, but config.train.loss predicts none. Give --logits all: the logits of "
      "heads are always whole."
    )
  for head in loss._soft_heads:
    classes = head.num_classes
    outputs.append(TeacherOutput(f"heads/{head.name}", loss.model.kind.answers, classes, classes, _described(head)))
  return tuple(outputs)


def _described(head: HeadConfig) -> dict[str, Any]:
  return {"kind": head.kind, "num_classes": head.num_classes, "labels": list(head.labels)}


def written(
  loss: TeacherLoss, outputs: tuple[TeacherOutput, ...], teacher: transformer.Transformer, batch: Batch
) -> dict[str, dict[str, jax.Array]]:
  """Returns the arrays of each output for a batch, [batch, length, ...], and "at", the positions that count, bool."""
  hidden = loss._outputs(teacher, batch)
  numbers = {head.name: number for number, head in getattr(loss.base, "_asked", ())}
  arrays = {}
  for output in outputs:
    if output.name == TOKENS:
      weights = loss._token_weights(batch)
      assert loss._tokens is not None
      values = soft_tokens.written(
        loss._tokens,
        teacher.logits_fn(),
        last(hidden),
        weights,
        width=output.width,
        vocab_size=output.size,
        temperature=loss.settings.temperature,
        sparse=loss._is_sparse(batch),
      )
      arrays[output.name] = values | {"at": weights != 0}
    else:
      name = output.name.removeprefix("heads/")
      logits = head_losses.answers(teacher, hidden.x, batch, name).astype(jnp.float32)
      arrays[output.name] = {"values": logits, "at": head_losses.asked_of(batch, numbers[name]).at}
  return arrays


@functools.cache
def _scattered(size: int) -> jax.tree_util.Partial:
  """Returns the function from (values, ids), [tokens, width], to logits [tokens, size], -inf for other ids."""

  def fn(values_and_ids: tuple[jax.Array, jax.Array]) -> jax.Array:
    values, ids = values_and_ids
    rows = jnp.arange(len(ids))[:, None]
    return jnp.full((len(ids), size), -jnp.inf, values.dtype).at[rows, ids].set(values)

  return jax.tree_util.Partial(fn)


def _as_they_are(values: jax.Array) -> jax.Array:
  return values


@dataclasses.dataclass(frozen=True)
class LogitsLoss(TeacherLoss):
  """The loss of the data plus soft targets from logits in the batch; metrics are those of `TeacherLoss`.

  Held-out batches have no logits, so an evaluation has the metrics of the data alone.
  """

  part: ClassVar[str] = ""

  @classmethod
  def wrapping(cls, base: Loss, run: Config) -> "LogitsLoss":
    """Adds the logits of a run to its loss.

    Raises:
      UserError: the logits do not fit the student, the loss or the settings.
    """
    check_base(base, run, KEY)
    loss: Any = cls(base, run.distillation, run.model, {}, base.auxiliary, keeps_heads=bool(run.stages))  # type: ignore
    loss._check()
    return loss

  @functools.cached_property
  def _outputs_by_name(self) -> dict[str, TeacherOutput]:
    return {output.name: output for output in manifest_of(self.settings).outputs}

  def _check(self) -> None:
    settings, manifest = self.settings, manifest_of(self.settings)
    where = f"{KEY}={','.join(settings.logits)}"
    for name in _LAYERS:
      if value := getattr(settings, f"{name}_weight"):
        raise UserError(
          f"config.distillation.{name}_weight={value}: files have logits, not the teacher's layers. Set "
          f"config.distillation.{name}_weight=0.0, or give the teacher as config.distillation.teacher."
        )
    if not (self._reads_tokens or self._soft_heads):
      kinds = ", ".join(dict.fromkeys(head.kind for _, head in getattr(self.base, "_asked", ())))
      raise UserError(f"{where} has no effect: heads of kind {kinds} have no soft targets. Leave out {KEY}.")
    written_names = ", ".join(self._outputs_by_name)
    if self._reads_tokens:
      tokens = self._outputs_by_name.get(TOKENS)
      if tokens is None:
        raise UserError(f"{where} has no logits of tokens, only of {written_names}. Write them with this run's config.")
      if settings.soft_positions == "all" and manifest.positions != "all":
        raise UserError(
          f"config.distillation.soft_positions=all: {where} has logits of predicted tokens alone. Run `t2t infer "
          "--logits` with --config.distillation.soft_positions=all, or set soft_positions=predicted."
        )
      if tokens.size > self.model.vocab_size:
        raise UserError(
          f"{where} has logits of {tokens.size:,} ids, but config.model.vocab_size={self.model.vocab_size}. Run "
          "`t2t infer --logits` with this run's config."
        )
      if settings.tail == "bucket" and not tokens.is_whole and manifest.temperature != settings.temperature:
        raise UserError(
          f"config.distillation.temperature={settings.temperature}: the rest of the {tokens.width} largest logits is "
          f"known at temperature {manifest.temperature} of {where}. Set "
          f"config.distillation.temperature={manifest.temperature}, or config.distillation.tail=renormalized."
        )
    for head in self._soft_heads:
      output = self._outputs_by_name.get(f"heads/{head.name}")
      if output is None:
        raise UserError(
          f"{where} has no logits of the head {head.name!r}, only of {written_names}"
          f"{did_you_mean(f'heads/{head.name}', self._outputs_by_name) or '.'} Write them with this run's config."
        )
      for key, ours in _described(head).items():
        if ours != (theirs := output.head[key]) and not (key == "labels" and not (ours and theirs)):
          raise UserError(
            f"{where}: the head {head.name!r} differs: {key} is {theirs!r} in the teacher and {ours!r} in the student. "
            "Give logits of a teacher that was trained on the task of config.data."
          )

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    module: Any = self.base.build(config, rngs)
    return module

  def _student(self, module: Any) -> Any:
    return module

  def _teacher_terms(self, module, outputs, head_logits, batch, weights, train) -> Iterator[tuple[str, Any, Any, Any]]:
    if not any(name.startswith(PREFIX) for name in batch):
      if train:
        raise ValueError("the batch has no logits of a teacher; read it with `checkpoints.logit_files`")
      return
    if self._reads_tokens:
      output, normalizer = self._outputs_by_name[TOKENS], None
      arrays = {name: batch[f"{PREFIX}{TOKENS}/{name}"] for name in output.arrays}
      teacher: Any = (jax.tree_util.Partial(_as_they_are), arrays["values"])
      if not output.is_whole:
        teacher = (_scattered(output.size), (arrays["values"], arrays["ids"]))
        normalizer = arrays["normalizer"] if self.settings.tail == "bucket" else None
      yield from self._soft_tokens(module, outputs, (teacher,), batch, weights, normalizer)
    answers = lambda name: batch[f"{PREFIX}heads/{name}/values"]
    yield from self._soft_head_terms(head_logits, answers, batch, weights)
