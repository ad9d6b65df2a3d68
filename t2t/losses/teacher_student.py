"""A loss with frozen teachers: the loss of the data, soft targets, and distances of the layers' outputs.

`config.distillation.teacher` wraps the loss of a run in it. Sources: Hinton et al. 2015; DistilBERT (Sanh et al. 2019);
TinyBERT (Jiao et al. 2020); MobileBERT (Sun et al. 2020); MiniLM (Wang et al. 2020, 2021).
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
from typing import Any, ClassVar, cast

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config
from t2t.losses import head_losses, soft_tokens, transfer_terms
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig, is_sparse
from t2t.losses.distillation import DistillationConfig
from t2t.losses.head_losses import HeadLosses, HeadTargets
from t2t.losses.protocol import Baseline, Loss, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers, observation, transformer
from t2t.models.architecture import Batch, decoder_mask, predicted_side, reading_mask, real_positions
from t2t.models.auxiliary import Hidden
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.head_config import HeadConfig
from t2t.models.observation import Observation

PART = "student"  # path of the model that is kept
_SOFT_HEADS = ("class", "tag", "cloze", "score", "choice", "span")  # kinds of heads with soft targets
_BASES = ("cross_entropy", "heads", "tokens_and_heads")
_STATES = {"query": observation.QUERY, "key": observation.KEY, "value": observation.VALUE}


def teacher_models(settings: DistillationConfig) -> dict[str, TransformerConfig]:
  """Returns the config of each teacher by name, without dropout and in the dtype of the settings.

  Raises:
    UserError: the teachers' checkpoints have not been read, see `checkpoints.teachers`.
  """
  if len(settings.models) != len(settings.teacher):
    raise UserError(
      f"config.distillation.teacher={','.join(settings.teacher)}: this command does not read teachers. Leave out "
      "config.distillation.teacher."
    )
  plain = {"dtype": settings.dtype, "dropout_rate": 0.0, "remat": "none", "attention_kernel": "", "attention_block": 0}
  plain |= {"quantization": "", "gradient_dtype": ""}
  models = (TransformerConfig(**json.loads(text) | plain) for text in settings.models)
  return dict(zip(settings.names, models, strict=True))


def check_base(base: Loss, run: Config, key: str) -> None:
  """Checks the settings of distillation, and that terms of a teacher can be added to a run's loss.

  Args:
    base: the loss of the data.
    run: the run.
    key: of the teacher or its logits, for messages.

  Raises:
    UserError: with the key.
  """
  run.distillation.check()
  name = run.train.loss or "cross_entropy"
  if name not in _BASES or not isinstance(base, CrossEntropy | HeadLosses):
    raise UserError(
      f"{key} needs config.train.loss={' or '.join(_BASES)}, not {name}. Set config.train.loss='', which selects by "
      "the data."
    )
  for adapter in run.adapters:
    raise UserError(f"config.{adapter}: a student is trained as a whole. Leave out config.{adapter} or {key}.")


def without(run: Config) -> Config:
  """Returns the config of a run without teachers, for a program that runs the student alone."""
  settings = run.distillation
  if settings is None or not (settings.teacher or settings.logits):
    return run
  others = {name: source for name, source in run.init.others.items() if name not in settings.names}
  return run.with_section("distillation", None).with_(init={"others": others})


class TeacherStudent(nnx.Module):
  """A student, its teachers, and projections of the student's states to the teacher's width.

  Every method of the student is one of this module, so that a run evaluates it as the student.
  """

  def __init__(self, config: TransformerConfig, teachers: Mapping[str, TransformerConfig], rngs: nnx.Rngs):
    # The student is first, so that it begins as without teachers.
    self.student = transformer.build(config, rngs)
    self.projections = nnx.Dict({})
    for name, model in teachers.items():
      setattr(self, name, transformer.build(model, rngs))

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns the student's hidden states."""
    return self.student(batch, dropout_key=dropout_key)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_") or name == PART:
      raise AttributeError(name)
    return getattr(self.student, name)


@dataclasses.dataclass(frozen=True)
class TeacherLoss:
  """The loss of the data (hard targets) plus terms of teachers.

  Terms, each with its weight in config.distillation: soft_targets (of tokens), NAME_soft_targets (of a head), and
  hidden_states, hidden_means, hidden_variances, embeddings, attention, relations, cosine. Those of layers are sums over
  pairs of layers and means over positions; an encoder-decoder has them for each stack, encoder_NAME and decoder_NAME.
  They read the first teacher; soft targets have the mean of all teachers' logits.

  Metrics: those of the loss of the data, which are the student's alone; each term without its weight; and agreement,
  the fraction of tokens or answers with the likeliest class of the teachers.
  """

  base: CrossEntropy | HeadLosses
  settings: DistillationConfig
  model: TransformerConfig
  teachers: Mapping[str, TransformerConfig]
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  keeps_heads: bool = True
  of_stages: tuple[DistillationConfig, ...] = ()  # settings of all stages, which share their parameters
  supports_microbatching: ClassVar[bool] = True
  part: ClassVar[str] = PART

  @classmethod
  def wrapping(cls, base: Loss, run: Config) -> "TeacherLoss":
    """Adds the teachers of a run to its loss.

    Raises:
      UserError: the teachers do not fit the student, the loss or the settings.
    """
    settings: DistillationConfig = run.distillation
    check_base(base, run, "config.distillation.teacher")
    if not run.init.parameters:
      raise UserError(
        "config.init.parameters=False: the teacher would have random parameters. Leave out config.init.parameters; "
        "without config.init.checkpoint the student begins at random values."
      )
    model, checked = run.model, cast("CrossEntropy | HeadLosses", base)
    prefix = "distillation."
    of_stages: list[DistillationConfig] = []
    for stage in run.stages:
      changes: dict[str, Any] = {k.removeprefix(prefix): x for k, x in stage.changes.items() if k.startswith(prefix)}
      of_stages.append(dataclasses.replace(settings, **changes))
    teachers, has_stages = teacher_models(settings), bool(run.stages)
    loss = cls(checked, settings, model, teachers, base.auxiliary, has_stages, tuple(of_stages))
    loss._check()
    return loss

  # ---- Checks --------------------------------------------------------------------------------------------------------

  def _check(self) -> None:
    for name, teacher in self.teachers.items():
      where = f"config.distillation.teacher={self.settings.teacher[self.settings.names.index(name)]}"
      if teacher.architecture != self.model.architecture:
        raise UserError(
          f"{where}: the teacher has config.model.architecture={teacher.architecture}, the student "
          f"{self.model.architecture}. Give a teacher or a student of the same architecture."
        )
      if self._reads_tokens and not teacher.vocabulary_head:
        raise UserError(
          f"{where}: the teacher has no vocabulary head, so there are no soft targets of tokens. Give a language "
          "model, or set config.distillation.soft_weight=0.0."
        )
      for head in self._soft_heads if self.settings.soft_weight else ():
        self._check_head(where, head, teacher)
    for key in ("memory_length", "two_streams"):
      for owner, config in (("student", self.model), *self.teachers.items()):
        if getattr(config, key):
          raise UserError(
            f"config.distillation.teacher does not support config.model.{key}={getattr(config, key)} of the {owner}. "
            "Give another model."
          )
    self._check_attention()
    self._check_has_effect()

  def _check_has_effect(self) -> None:
    settings, kinds = self.settings, [head.kind for _, head in getattr(self.base, "_asked", ())]
    if self._reads_layers and not [pair for side in self.sides for pair in self._pairs(side)]:
      raise UserError(
        f"config.distillation.layers={','.join(settings.layers)}: the teacher has no effect: the map has no pair of "
        f"layers for {self.sides[0]}s of {getattr(self.model, f'num_{self.sides[0]}_layers')} layers in the student. "
        "Set config.distillation.layers=last."
      )
    others = self._reads_layers or settings.embedding_weight or settings.cosine_weight
    if not (others or self._reads_tokens or self._soft_heads):
      raise UserError(
        f"config.distillation.teacher={','.join(settings.teacher)}: the teacher has no effect: heads of kind "
        f"{', '.join(dict.fromkeys(kinds))} have no soft targets. Set config.distillation.hidden_weight=1.0, or leave "
        "out config.distillation.teacher."
      )

  def _check_head(self, where: str, head: HeadConfig, teacher: TransformerConfig) -> None:
    theirs = {x.name: x.spelled_out(teacher.kind) for x in teacher.heads}
    if head.name not in theirs:
      listing = ", ".join(theirs) or "none"
      raise UserError(
        f"{where}: the teacher has no head {head.name!r}. Its heads: {listing}{did_you_mean(head.name, theirs)} Give a "
        "teacher trained on the task of config.data, or set config.distillation.soft_weight=0.0."
      )
    other = theirs[head.name]
    for key in ("kind", "num_classes", "labels"):
      ours, found = getattr(head, key), getattr(other, key)
      if ours != found and not (key == "labels" and not (ours and found)):
        raise UserError(
          f"{where}: the head {head.name!r} differs: {key} is {found!r} in the teacher and {ours!r} in the student. "
          "Give a teacher trained on the task of config.data."
        )

  def _check_attention(self) -> None:
    settings, teacher = self.settings, self._first
    keys = [key for key in ("attention_weight", "relation_weight") if getattr(settings, key)]
    for key in keys:
      for owner, config in (("student", self.model), ("teacher", teacher)):
        if config.attention != "full":
          raise UserError(
            f"config.distillation.{key}={getattr(settings, key)}: the {owner} has config.model.attention="
            f"{config.attention}, whose attention is not computed as a whole. Set config.distillation.{key}=0.0."
          )
    for side in self.sides if keys else ():
      ours, theirs = self.model.of_stack(side), teacher.of_stack(side)
      if settings.attention_weight and ours.num_heads != theirs.num_heads:
        raise UserError(
          f"config.distillation.attention_weight={settings.attention_weight}: the {side} has {ours.num_heads} heads in "
          f"the student and {theirs.num_heads} in the teacher. Set config.model.num_heads={theirs.num_heads}; or "
          "compare relations, with config.distillation.relation_weight and relation_heads."
        )
      for name in settings.relations if settings.relation_weight else ():
        counts = [config.num_heads if name == "query" else config.kv_heads for config in (ours, theirs)]
        widths = [number * config.head_dim for number, config in zip(counts, (ours, theirs), strict=True)]
        heads = settings.relation_heads
        if heads and any(width % heads for width in widths):
          raise UserError(
            f"config.distillation.relation_heads={heads} does not divide the {name} width {widths[0]} of the student "
            f"and {widths[1]} of the teacher. Give a common divisor."
          )
        if not heads and counts[0] != counts[1]:
          raise UserError(
            f"config.distillation.relations={name}: the {side} has {counts[0]} heads in the student and {counts[1]} in "
            "the teacher. Give config.distillation.relation_heads, a common divisor of both widths."
          )

  def check_lengths(self, lengths: Mapping[str, int]) -> None:
    """Checks that the teachers' learned positions cover the sequences of training.

    Args:
      lengths: positions of "encoder" and "decoder".

    Raises:
      UserError: a teacher has fewer positions.
    """
    for path, teacher in zip(self.settings.teacher, self.teachers.values(), strict=True):
      most = teacher.most_positions
      for side, length in lengths.items():
        if most and length > most and side in self.sides:
          raise UserError(
            f"config.distillation.teacher={path}: the teacher has {most} learned positions, but the {side}'s sequences "
            f"have {length}. Reduce config.data.inputs_length or config.data.targets_length."
          )

  # ---- The protocol --------------------------------------------------------------------------------------------------

  @property
  def unit(self) -> str:
    """Returns the unit of the metric "loss"."""
    return self.base.unit

  @property
  def heads(self) -> tuple[str, ...]:
    return self.base.heads if self._trains_predictions else ()

  @property
  def sides(self) -> tuple[str, ...]:
    """Lists the stacks that the loss runs."""
    return (self.model.kind.answers,) if isinstance(self.base, HeadLosses) else self.model.kind.sides

  @property
  def _first(self) -> TransformerConfig:
    return next(iter(self.teachers.values()))

  @property
  def _tokens(self) -> CrossEntropyConfig | None:
    """Returns the settings of the loss of tokens; None: heads alone predict."""
    return self.base.tokens if isinstance(self.base, HeadLosses) else self.base.config

  @property
  def _reads_tokens(self) -> bool:
    return self.settings.soft_weight > 0 and self._tokens is not None

  @property
  def _soft_heads(self) -> list[HeadConfig]:
    """Lists the heads that the student learns from the teachers."""
    asked = self.base._asked if isinstance(self.base, HeadLosses) else []
    return [head.spelled_out(self.model.kind) for _, head in asked if head.kind in _SOFT_HEADS]

  @property
  def _trains_predictions(self) -> bool:
    return self.keeps_heads or self.settings.soft_weight > 0 or self.settings.hard_weight > 0

  @property
  def _observation(self) -> Observation:
    settings = self.settings
    hidden = self._compares_hidden or settings.embedding_weight > 0
    return Observation(hidden, settings.attention_weight > 0, settings.relation_weight > 0)

  @property
  def _compares_hidden(self) -> bool:
    return _compares_hidden(self.settings)

  @property
  def _reads_layers(self) -> bool:
    return any((self._compares_hidden, self.settings.attention_weight, self.settings.relation_weight))

  def _pairs(self, side: str) -> transfer_terms.LayerPairs:
    numbers = (getattr(config, f"num_{side}_layers") for config in (self.model, self._first))
    return transfer_terms.layer_pairs(self.settings.layers, *numbers, where=f"the {side}")

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Builds student, teachers and projections; the layers of student and first teacher return what the terms read."""
    module, teacher = TeacherStudent(config, self.teachers, rngs), self._first
    every = (self.settings, *self.of_stages)
    for side in self.sides:
      widths = (config.of_stack(side).embed_dim, teacher.of_stack(side).embed_dim)
      is_last = side == self.sides[-1]
      used = {
        "hidden": any(_compares_hidden(x) or (is_last and x.cosine_weight > 0) for x in every),
        "embedding": any(x.embedding_weight for x in every),
      }
      for name in used if widths[0] != widths[1] else ():
        if used[name]:
          scale = layers.fan_in_scale(config, widths[0])
          module.projections[f"{side}_{name}"] = layers.param(rngs, widths, ("embed", None), scale=scale)
      if self._observation != Observation():
        for model in (module.student, module.teacher):
          getattr(model, side).observation = self._observation
    return module

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns patterns of the student's parameters that neither its loss nor the teachers' terms use."""
    patterns = self.base.untrained_params(model)
    if not self._trains_predictions:
      has_own = model.vocabulary_head and (model.logits_transform or model.logits_bias or not model.tied_logits)
      patterns = tuple(dict.fromkeys((*patterns, *(("^head/",) if has_own else ()))))
    prefix = f"{self.part}/" if self.part else ""
    return tuple(f"^{prefix}{pattern.removeprefix('^')}" for pattern in patterns)

  def weights(self, batch: Batch) -> Weights:
    """Returns the denominators of the loss of the data, and the numbers of positions."""
    weights = dict(dataclasses.replace(self.base, auxiliary=self.auxiliary).weights(batch))
    if self._reads_tokens:
      weights["soft_targets"] = jnp.sum(self._token_weights(batch))
    positions = {f"{side}_positions": jnp.sum(real_positions(batch, side), dtype=jnp.float32) for side in self.sides}
    return weights | positions

  def _token_weights(self, batch: Batch) -> jax.Array:
    side = predicted_side(batch)
    if self.settings.soft_positions == "all":
      return real_positions(batch, side).astype(jnp.float32)
    return batch[f"{side}_loss_weights"].astype(jnp.float32)

  def __call__(
    self, module: TeacherStudent, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    base, settings = dataclasses.replace(self.base, auxiliary=self.auxiliary), self.settings
    student, dropout_key = self._student(module), key if train else None

    # ---- Hard targets ------------------------------------------------------------------------------------------------
    head_logits: Mapping[str, jax.Array] = {}
    if isinstance(base, HeadLosses):
      outputs, head_logits = base.predict(student, batch, dropout_key=dropout_key)
      terms, metrics = base.of_logits(student, outputs, head_logits, batch, weights, train=train)
    else:
      outputs = student.hidden(batch, dropout_key=dropout_key)
      terms, metrics = base.of_hidden(student, outputs, batch, weights, train=train)
    of_layers = self.auxiliary.rows  # not scaled: they regularize the student's layers
    hard = {name: settings.hard_weight * term for name, term in terms.items() if name not in of_layers}
    terms = {name: term for name, term in terms.items() if name in of_layers} | (hard if settings.hard_weight else {})

    # ---- Teachers ----------------------------------------------------------------------------------------------------
    for name, weight, denominator, sums in self._teacher_terms(module, outputs, head_logits, batch, weights, train):
      total, number = sums
      if weight:
        terms[name] = weight * total / jnp.maximum(denominator, 1e-8)
      metrics = {**metrics, name: WeightedSum(total, number)}
    return terms, metrics

  def _student(self, module: Any) -> Any:
    return module.student

  def _teacher_terms(self, module, outputs, head_logits, batch, weights, train) -> Iterator[tuple[str, Any, Any, Any]]:
    del train
    teachers = [getattr(module, name) for name in self.teachers]
    taught = [jax.lax.stop_gradient(self._outputs(teacher, batch)) for teacher in teachers]

    def answers(name: str) -> jax.Array:
      theirs = [
        head_losses.answers(teacher, hidden.x, batch, name) for teacher, hidden in zip(teachers, taught, strict=True)
      ]
      logits: Any = sum(theirs) / len(theirs)
      return logits

    if self._reads_tokens:
      pairs = tuple((teacher.logits_fn(), last(hidden)) for teacher, hidden in zip(teachers, taught, strict=True))
      yield from self._soft_tokens(module.student, outputs, pairs, batch, weights)
    yield from self._soft_head_terms(head_logits, answers, batch, weights)
    yield from self._layer_terms(module, outputs, taught[0], batch, weights)

  def _outputs(self, teacher: transformer.Transformer, batch: Batch) -> Hidden:
    if isinstance(self.base, HeadLosses):
      return teacher.hidden_states(batch, every_layer=head_losses.reads_every_layer(teacher.config))
    return teacher.hidden(batch)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of the student's step, of the logits of soft targets, and of the teachers' forward passes."""
    sizes: dict[str, Any] = {"batch_size": batch_size, "lengths": lengths}
    total = self.base.flops(config, **sizes, predicted=predicted)
    share = 0.0
    if self._reads_tokens:
      share = predicted if self.settings.soft_positions == "predicted" else 1.0
      total += model_flops(config, **sizes, predicted=share) - model_flops(config, **sizes, predicted=0.0)
    return total + sum(model_flops(model, **sizes, predicted=share) / 3.0 for model in self.teachers.values())

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    return self.base.baselines(batches, vocab_size)

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    return self.base.chance(values, batch_size=batch_size, vocab_size=vocab_size)

  # ---- Terms: name, weight, denominator, and (sum, number of its units in these rows) --------------------------------

  def _is_sparse(self, batch: Batch) -> bool:
    """Returns whether many tokens have no soft targets."""
    return self.settings.soft_positions == "predicted" and (isinstance(self.base, HeadLosses) or is_sparse(batch))

  def _soft_tokens(
    self, student, outputs, teachers: soft_tokens.Teachers, batch, weights, normalizer: jax.Array | None = None
  ) -> Iterator[tuple[str, Any, Any, Any]]:
    settings, tokens, at = self.settings, self._tokens, self._token_weights(batch)
    assert tokens is not None
    total, agreed = soft_tokens.soft_sums(
      tokens,
      student.logits_fn(),
      last(outputs),
      teachers,
      at,
      temperature=settings.temperature,
      sparse=self._is_sparse(batch),
      normalizer=normalizer,
    )
    number = jnp.sum(at)
    yield "soft_targets", settings.soft_weight, weights["soft_targets"], (total, number)
    yield "agreement", 0.0, 1.0, (agreed, number)

  def _soft_head_terms(self, head_logits, answers, batch, weights) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields terms of heads; `answers` maps the name of a head to the teachers' logits."""
    if not self.settings.soft_weight:
      return
    names = {head.name: number for number, head in getattr(self.base, "_asked", ())}
    for head in self._soft_heads:
      logits = jax.lax.stop_gradient(answers(head.name))
      head_targets = head_losses.asked_of(batch, names[head.name])
      divergence, agrees = soft_head(head, head_logits[head.name], logits, head_targets, self.settings.temperature)
      number = jnp.sum(head_losses.head_units(head, head_targets))
      yield f"{head.name}_soft_targets", self.settings.soft_weight, weights[head.name], (jnp.sum(divergence), number)
      if agrees is not None:
        alone = len(self._soft_heads) == 1 and self._tokens is None
        yield "agreement" if alone else f"{head.name}_agreement", 0.0, 1.0, (jnp.sum(agrees), number)

  def _layer_terms(self, module, outputs, taught, batch, weights) -> Iterator[tuple[str, Any, Any, Any]]:
    settings = self.settings
    for side in self.sides:
      prefix, real = "" if len(self.sides) == 1 else f"{side}_", real_positions(batch, side)
      ours, theirs = (observation.states_of(hidden.aux, side) for hidden in (outputs, taught))
      positions, number = weights[f"{side}_positions"], jnp.sum(real, dtype=jnp.float32)
      named = lambda name, weight, total: (prefix + name, weight, positions, (total, number))  # noqa: B023 - used here
      pick = lambda states, index: states[np.asarray([pair[index] for pair in pairs], np.int32)]  # noqa: B023
      pairs = self._pairs(side) if self._reads_layers else ()
      if self._compares_hidden and pairs:
        student = self._projected(module, f"{side}_hidden", pick(ours[observation.HIDDEN][1:], 0))
        teacher = pick(theirs[observation.HIDDEN][1:], 1)
        if settings.hidden_loss == "mse":
          yield named("hidden_states", settings.hidden_weight, transfer_terms.states(student, teacher, real))
        else:
          shape, mean, variance = transfer_terms.normalized_states(student, teacher, real)
          yield named("hidden_states", settings.hidden_weight, shape)
          yield named("hidden_means", settings.mean_weight, mean)
          yield named("hidden_variances", settings.variance_weight, variance)
      if settings.embedding_weight:
        student = self._projected(module, f"{side}_embedding", ours[observation.HIDDEN][0])
        total = transfer_terms.states(student, theirs[observation.HIDDEN][0], real)
        yield named("embeddings", settings.embedding_weight, total)
      if settings.attention_weight and pairs:
        scores = pick(ours[observation.SCORES], 0), pick(theirs[observation.SCORES], 1)
        total = transfer_terms.attention(*scores, real, kind=settings.attention_loss)
        yield named("attention", settings.attention_weight, total)
      if settings.relation_weight and pairs:
        attends = self._attends(batch, side)
        total = jnp.zeros(())
        for name in settings.relations:
          states = pick(ours[_STATES[name]], 0), pick(theirs[_STATES[name]], 1)
          ours_of, theirs_of = (
            transfer_terms.relation_logits(x, attends, heads=settings.relation_heads) for x in states
          )
          total += transfer_terms.attention(ours_of, theirs_of, real, kind="kl")
        yield named("relations", settings.relation_weight, total)
      if settings.cosine_weight and side == self.sides[-1]:
        student = self._projected(module, f"{side}_hidden", last(outputs))
        total = transfer_terms.cosine(student, last(taught), real)
        yield "cosine", settings.cosine_weight, positions, (total, number)

  def _projected(self, module: TeacherStudent, name: str, x: jax.Array) -> jax.Array:
    if name not in module.projections:
      return x
    return x.astype(jnp.float32) @ module.projections[name][...]

  def _attends(self, batch: Batch, side: str) -> jax.Array:
    """Returns the pairs of positions with relations, bool, broadcastable to [batch, heads, query, key]."""
    length = batch[f"{side}_input_tokens"].shape[1]
    if side == "encoder":
      mask = reading_mask(batch, "encoder")
    else:
      mask = decoder_mask(batch, bidirectional_prefix=self.model.bidirectional_prefix)
    allowed = mask.allowed(length, length)
    return jnp.ones((1, 1, length, length), bool) if allowed is None else allowed


def _compares_hidden(settings: DistillationConfig) -> bool:
  return any((settings.hidden_weight, settings.mean_weight, settings.variance_weight))


def last(hidden: Hidden) -> jax.Array:
  """Returns states of the last layer, [batch, length, embed]."""
  return hidden.x if hidden.x.ndim == 3 else hidden.x[-1]


def soft_head(
  head: HeadConfig, logits: jax.Array, teacher: jax.Array, head_targets: HeadTargets, temperature: float
) -> tuple[jax.Array, jax.Array | None]:
  """Computes soft targets of a head, and whether both models have the same likeliest class.

  Args:
    head: a head of a kind in `_SOFT_HEADS`.
    logits, teacher: [batch, length, classes].
    head_targets: labels of the head.
    temperature: divides the logits.

  Returns:
    float32 [batch, length], whose sum is divided like the loss of the head: for classes T**2 times the KL divergence;
    for candidates and spans that of the positions; for scores the squared difference. And 1 where the classes agree,
    None for other kinds.
  """
  at = head_targets.at
  if head.kind == "score":
    return jnp.where(at, jnp.square(logits[..., 0] - teacher[..., 0]), 0.0), None
  if head.kind in ("choice", "span"):
    columns = []
    for column in range(logits.shape[-1]):
      scores = (x[..., column] / temperature for x in (logits, teacher))
      # Positions before the first label of a row have no group: exp would overflow, and its gradient would be NaN.
      log_p, log_q = (jnp.where(at, x - head_losses._logsumexp(head_targets, at, x), 0.0) for x in scores)
      columns.append(jnp.where(at, jnp.exp(log_q) * (log_q - log_p), 0.0))
    return temperature**2 * sum(columns[1:], columns[0]) / len(columns), None
  divergence = jnp.where(at, transfer_terms.soft_targets(logits, teacher, temperature), 0.0)
  return divergence, at * (jnp.argmax(logits, axis=-1) == jnp.argmax(teacher, axis=-1)).astype(jnp.float32)
