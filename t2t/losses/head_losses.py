"""Losses of heads: classes, scores, tags, spans, pairs and choices, alone or together with masked tokens.

Together with masked tokens, boundary heads are trained as well, see span_boundary.py.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses import span_boundary
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig, future_layers, token_sums, uniform, unigram
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import crf, heads, layers, span_pair, task_heads, transformer
from t2t.models.architecture import Batch, predicted_side, real_positions, segments_of, sides
from t2t.models.auxiliary import Hidden
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.head_config import ANSWERED_HEADS, ASKED_HEADS, HeadConfig

AnyHead = heads.Head  # `HeadLosses` has a property `heads`
_NOT_THERE = -1e30  # logit of padding


class HeadTargets(NamedTuple):
  """Labels of one head in a batch.

  at: bool [batch, length], positions with a label.
  targets: int32 labels: a class; the bits of a float32 score; 1 for a right candidate; for spans 1 at the start plus 2
    at the end, of an answer or (boundary heads) of masked tokens; or for a pair of spans 1 in the first plus 2 in the
    second plus 4 times the class.
  groups: int32 [batch, length]; positions of a row with the same number belong to one example.
  """

  at: jax.Array
  targets: jax.Array
  groups: jax.Array


def asked_of(batch: Batch, number: int) -> HeadTargets:
  """Returns the labels of the head with this index in the model's config; 0 in a batch without labels."""
  side = sides(batch)[0]
  positions = batch[f"{side}_answer_heads"] == number + 1
  groups = batch.get(f"{side}_answer_groups")
  groups = real_positions(batch, side).astype(jnp.int32) if groups is None else groups
  targets = batch.get(f"{side}_answer_targets")
  return HeadTargets(positions, jnp.zeros_like(groups) if targets is None else targets, groups)


# ---- Kinds -----------------------------------------------------------------------------------------------------------


class HeadLoss(NamedTuple):
  """Contributions of each position to the loss and to the number of right answers, float32 [batch, length]."""

  loss: jax.Array
  right: jax.Array


def starts_group(head_targets: HeadTargets) -> jax.Array:
  """Returns the first position of each group, bool [batch, length]; group numbers increase along a row."""
  groups = jnp.where(head_targets.at, head_targets.groups, 0)
  return groups > jnp.pad(jax.lax.cummax(groups, axis=1)[:, :-1], [(0, 0), (1, 0)])


def _over_group(reduce: Callable, head_targets: HeadTargets, at: jax.Array, x: jax.Array) -> jax.Array:
  """Reduces `x` over the positions `at` of each group by a segment function; returns [batch, length]."""
  empty = 0.0 if reduce is jax.ops.segment_sum else _NOT_THERE
  groups = jnp.cumsum(starts_group(head_targets), axis=1)
  of_row = lambda x, groups: reduce(x, groups, num_segments=len(x) + 1)[groups]
  return jax.vmap(of_row)(jnp.where(at, x, empty), groups)


_sum = functools.partial(_over_group, jax.ops.segment_sum)


def _max(head_targets: HeadTargets, at: jax.Array, x: jax.Array) -> jax.Array:
  return _over_group(jax.ops.segment_max, head_targets, at, jax.lax.stop_gradient(x))


def _logsumexp(head_targets: HeadTargets, at: jax.Array, x: jax.Array) -> jax.Array:
  most = _max(head_targets, at, x)
  # Masking keeps values of other groups and padding from becoming infinite.
  return jnp.log(jnp.maximum(_sum(head_targets, at, jnp.exp(jnp.where(at, x - most, 0.0))), 1e-30)) + most


def _one_each(head_targets: HeadTargets) -> jax.Array:
  return head_targets.at.astype(jnp.float32)


def _class(logits: jax.Array, head_targets: HeadTargets) -> HeadLoss:
  """Computes the cross-entropy of classes; the accuracy is 1/k if k classes tie."""
  log_p = jax.nn.log_softmax(logits)
  is_target = jnp.where(head_targets.at, head_targets.targets, 0)[..., None] == jnp.arange(logits.shape[-1])
  at, of_target = _one_each(head_targets), jnp.sum(jnp.where(is_target, log_p, 0.0), axis=-1)
  is_best = logits >= jnp.max(logits, axis=-1, keepdims=True)
  right = jnp.any(is_best & is_target, axis=-1) / jnp.maximum(jnp.sum(is_best, axis=-1), 1)  # NaN is never right
  return HeadLoss(-at * of_target, at * right)


def scores_of(targets: jax.Array) -> jax.Array:
  """Returns int32 targets as the float32 numbers with the same bits."""
  return jax.lax.bitcast_convert_type(targets, jnp.float32)


def _score(logits: jax.Array, head_targets: HeadTargets) -> HeadLoss:
  """Computes the squared error; a score within 0.5 of the target is right."""
  error = jnp.where(head_targets.at, logits[..., 0] - scores_of(head_targets.targets), 0.0)
  return HeadLoss(jnp.square(error), _one_each(head_targets) * (jnp.abs(error) <= 0.5))


def _right(head_targets: HeadTargets) -> jax.Array:
  return head_targets.at & (head_targets.targets > 0)


def _one_for_each_right(head_targets: HeadTargets) -> jax.Array:
  """Returns weights of right candidates, which sum to 1 per example."""
  right = _right(head_targets)
  number = _sum(head_targets, right, jnp.ones(right.shape))
  return jnp.where(right, 1.0 / jnp.maximum(number, 1), 0.0)


def _choice(logits: jax.Array, head_targets: HeadTargets) -> HeadLoss:
  """Computes the negative log-probability of the right candidates under a softmax over the example's candidates."""
  scores, units = logits[..., 0], _one_for_each_right(head_targets)
  total, right = (_logsumexp(head_targets, at, scores) for at in (head_targets.at, _right(head_targets)))
  # The accuracy is the fraction of right candidates among those that tie for the best score.
  is_best = head_targets.at & (scores >= _max(head_targets, head_targets.at, scores))
  best, best_right = (
    _sum(head_targets, at, jnp.ones(scores.shape)) for at in (is_best, is_best & _right(head_targets))
  )
  return HeadLoss(jnp.where(units > 0, units * (total - right), 0.0), units * best_right / jnp.maximum(best, 1.0))


def _starts(head_targets: HeadTargets) -> jax.Array:
  return (head_targets.at & (head_targets.targets % 2 == 1)).astype(jnp.float32)


def _span(logits: jax.Array, head_targets: HeadTargets) -> HeadLoss:
  """Computes the mean cross-entropy of the first and the last position, over the positions of the example.

  Source: Devlin et al. 2019, section 4.2; the mean as in transformers.
  """
  bounds = _starts(head_targets), (head_targets.at & (head_targets.targets >= 2)).astype(jnp.float32)
  loss, is_right = jnp.zeros(head_targets.at.shape), []
  for number, is_bound in enumerate(bounds):
    scores = logits[..., number]
    total = _logsumexp(head_targets, head_targets.at, scores)
    loss += 0.5 * jnp.where(is_bound > 0, total - scores, 0.0)
    is_best = head_targets.at & (scores >= _max(head_targets, head_targets.at, scores))
    number = _sum(head_targets, is_best, jnp.ones(scores.shape))
    is_right.append(is_bound * is_best / jnp.maximum(number, 1.0))  # 1/k if k positions tie
  return HeadLoss(loss, is_right[0] * _max(head_targets, head_targets.at, is_right[1]))


def _symmetric_kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
  """Computes KL(p, q) + KL(q, p) of log-probabilities over the last axis.

  The gradient takes the first argument of each KL divergence as constant, as in He et al. 2021 and its code.
  """
  return jnp.sum(jax.lax.stop_gradient(jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q), axis=-1)


def _of_classes(logits: jax.Array, others: jax.Array, head_targets: HeadTargets) -> jax.Array:
  kl = _symmetric_kl(jax.nn.log_softmax(logits), jax.nn.log_softmax(others))
  return jnp.where(head_targets.at, kl, 0.0)


def _of_scores(logits: jax.Array, others: jax.Array, head_targets: HeadTargets) -> jax.Array:
  return jnp.where(head_targets.at, jnp.square(logits[..., 0] - others[..., 0]), 0.0)


def _of_positions(
  units: Callable[[HeadTargets], jax.Array], logits: jax.Array, others: jax.Array, head_targets: HeadTargets
) -> jax.Array:
  """Computes the symmetric KL divergence of softmaxes over the positions of each example, one for each column."""
  at = head_targets.at
  log_p = lambda scores: jnp.where(at, scores - _logsumexp(head_targets, at, scores), 0.0)
  columns = [
    _symmetric_kl(log_p(logits[..., i])[..., None], log_p(others[..., i])[..., None]) for i in range(logits.shape[-1])
  ]
  labels = jnp.where(at, _sum(head_targets, at, units(head_targets)), 0.0)
  return labels * sum(columns) / len(columns)


def _crf(logits: jax.Array, head_targets: HeadTargets, head: heads.Head) -> HeadLoss:
  """Computes the negative log-likelihood of tag sequences, and whether the likeliest sequence has the tags."""
  assert isinstance(head, crf.CrfHead)
  scores, chain = head.scores(), crf.chain_of(head_targets.at, head_targets.groups)
  loss, _ = _class(crf.conditional_logits(scores, logits, chain, head_targets.targets), head_targets)
  tags = crf.best_tags(*jax.lax.stop_gradient((scores, logits)), chain)
  return HeadLoss(loss, _one_each(head_targets) * ((tags == head_targets.targets) & jnp.isfinite(loss)))


def _class_of_pair(head_targets: HeadTargets) -> HeadTargets:
  """Returns the class of each pair of spans, at its first position."""
  classes = head_targets.targets >> span_pair.CLASS_BITS
  return HeadTargets(starts_group(head_targets), classes, head_targets.groups)


def _without_head(measure: Callable[[jax.Array, HeadTargets], HeadLoss]) -> Callable[..., HeadLoss]:
  return lambda logits, head_targets, head: measure(logits, head_targets)


@dataclasses.dataclass(frozen=True)
class _HeadKind:
  """Scoring of one kind of head.

  measure: maps logits [batch, length, classes], labels and the head to loss and accuracy.
  units: float32 [batch, length]; their sum divides the summed loss.
  baseline: the loss of predicting label frequencies, as a mean over batches.
  divergence: maps two logits and labels to float32 [batch, length], whose sum is divided like the loss; see
    `divergence`.
  """

  measure: Callable[[jax.Array, HeadTargets, heads.Head], HeadLoss]
  units: Callable[[HeadTargets], jax.Array]
  baseline: Callable[[Sequence[HeadTargets], int], jax.Array]
  divergence: Callable[[jax.Array, jax.Array, HeadTargets], jax.Array]


def _entropy(batch_targets: Sequence[HeadTargets], classes: int) -> jax.Array:
  counts = sum(
    jnp.zeros(classes).at[head_targets.targets].add(_one_each(head_targets), mode="drop")
    for head_targets in batch_targets
  )
  shares = counts / jnp.maximum(jnp.sum(counts), 1.0)
  return -jnp.sum(jax.scipy.special.xlogy(shares, shares))


def _variance(batch_targets: Sequence[HeadTargets], classes: int) -> jax.Array:
  del classes
  sums = [0.0, 0.0, 0.0]
  for head_targets in batch_targets:
    x = jnp.where(head_targets.at, scores_of(head_targets.targets), 0.0)
    sums = [a + jnp.sum(b) for a, b in zip(sums, (_one_each(head_targets), x, jnp.square(x)), strict=True)]
  number, first, second = jnp.maximum(sums[0], 1.0), sums[1], sums[2]
  return second / number - jnp.square(first / number)


def _chance(units: Callable[[HeadTargets], jax.Array], batch_targets: Sequence[HeadTargets]) -> jax.Array:
  """Returns the loss of a uniform choice: the mean logarithm of the number of candidates."""
  total, number = 0.0, 0.0
  for head_targets in batch_targets:
    weights = units(head_targets)
    total += jnp.sum(weights * jnp.log(jnp.maximum(_sum(head_targets, head_targets.at, jnp.ones(weights.shape)), 1.0)))
    number += jnp.sum(weights)
  return total / jnp.maximum(number, 1.0)


_KINDS = {
  "class": _HeadKind(_without_head(_class), _one_each, _entropy, _of_classes),
  "score": _HeadKind(_without_head(_score), _one_each, _variance, _of_scores),
  "choice": _HeadKind(
    _without_head(_choice),
    _one_for_each_right,
    lambda batch_targets, _: _chance(_one_for_each_right, batch_targets),
    functools.partial(_of_positions, _one_for_each_right),
  ),
  "tag": _HeadKind(_without_head(_class), _one_each, _entropy, _of_classes),
  "crf": _HeadKind(_crf, _one_each, _entropy, _of_classes),  # per word, as tags without transitions
  "span": _HeadKind(
    _without_head(_span),
    _starts,
    lambda batch_targets, _: _chance(_starts, batch_targets),
    functools.partial(_of_positions, _starts),
  ),
  "cloze": _HeadKind(_without_head(_class), _one_each, _entropy, _of_classes),
  "span_pair": _HeadKind(
    lambda logits, head_targets, head: _class(logits, _class_of_pair(head_targets)),
    lambda head_targets: _one_each(_class_of_pair(head_targets)),
    lambda batch_targets, classes: _entropy([_class_of_pair(x) for x in batch_targets], classes),
    lambda logits, others, head_targets: _of_classes(logits, others, _class_of_pair(head_targets)),
  ),
}


def divergence(head: HeadConfig, logits: jax.Array, others: jax.Array, head_targets: HeadTargets) -> jax.Array:
  """Computes the distance of two predictions at labeled positions, summed over the batch: float32 [].

  It is the symmetric KL divergence of classes, candidates, or start and end positions (their mean). For scores it is
  the squared difference.

  Args:
    head: a head with labels.
    logits, others: [batch, length, classes].
    head_targets: labels of the head.
  """
  return jnp.sum(_KINDS[head.kind].divergence(logits, others, head_targets))


def head_units(head: HeadConfig, head_targets: HeadTargets) -> jax.Array:
  """Returns the units of a head, float32 [batch, length]; their sum divides the summed loss."""
  if head.kind == "boundary":
    return span_boundary.units(head_targets.at, head_targets.targets, head.num_classes)
  return _KINDS[head.kind].units(head_targets)


def _number_of_examples(head_targets: HeadTargets) -> jax.Array:
  """Returns the number of groups with labels of a head."""
  return jnp.sum(starts_group(head_targets).astype(jnp.float32))


# ---- Hidden states ---------------------------------------------------------------------------------------------------


def answers(
  module: transformer.Transformer, states: jax.Array, batch: Batch, name: str, *, dropout_key: jax.Array | None = None
) -> jax.Array:
  """Computes logits of a head at every position, float32 [batch, length, classes].

  Args:
    module: the model.
    states: states of the last layer, or of every layer; see `ModelProtocol.states`.
    batch: model features.
    name: name of the head.
    dropout_key: None at evaluation.
  """
  head = module.heads[name]
  hidden = states if head.layers == "mix" or states.ndim == 3 else states[-1]
  pools = {"mean": task_heads.mean_of_segments, "concat": task_heads.concat_of_segments}
  if head.reads in pools:
    hidden = pools[head.reads](hidden, segments_of(batch, module.architecture.answers))
  if isinstance(head, span_pair.SpanPairHead):
    _, marks, groups = head_targets = asked_of(batch, _number(module, name))
    hidden = head.read(hidden, jnp.where(head_targets.at, marks, 0), groups)
  if isinstance(head, task_heads.ClozeHead):
    logits_fn = module.logits_fn()
    assert isinstance(logits_fn, jax.tree_util.Partial)
    return head.of_vocabulary(logits_fn, hidden)
  return module.head_logits(name, hidden, dropout_key=dropout_key)


def _number(module: transformer.Transformer, name: str) -> int:
  return [head.name for head in module.config.heads].index(name)


def all_answers(module: transformer.Transformer, batch: Batch, names: Sequence[str]) -> dict[str, jax.Array]:
  """Computes the outputs of several heads, by name: `answers`, or for a crf head `crf.decoded`.

  Args:
    module: the model.
    batch: model features, with answer_heads for crf heads, and answer_targets for pairs of spans.
    names: names of heads.
  """
  states = module.states(batch, every_layer=reads_every_layer(module.config))
  outputs = {}
  for name in names:
    outputs[name] = answers(module, states, batch, name)
    head = module.heads[name]
    if isinstance(head, crf.CrfHead):
      at, _, groups = asked_of(batch, _number(module, name))
      outputs[name] = crf.decoded(head.scores(), outputs[name], crf.chain_of(at, groups))
  return outputs


def without_tokens(model: TransformerConfig) -> tuple[str, ...]:
  """Returns patterns of parameters that are unused if no tokens are predicted; see `Loss.untrained_params`."""
  has_own = model.vocabulary_head and (model.logits_transform or model.logits_bias or not model.tied_logits)
  stacks = ("^decoder/",) if model.kind.has_encoder_and_decoder else future_layers(model)
  streams = ("^embed/query_stream$",) if model.two_streams else ()
  reads_tokens = any(head.kind == "cloze" for head in model.heads)
  return (*(("^head/",) if has_own and not reads_tokens else ()), *stacks, *streams)


def reads_every_layer(model: TransformerConfig) -> bool:
  """Returns True if a head of the model reads every layer."""
  return any(head.layers == "mix" for head in model.heads)


# ---- The loss --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class HeadLosses:
  """Loss terms: one per head with labels, and with `tokens` one term for predicted tokens.

  A head's term is its mean loss times the fraction of the batch's examples with labels for it. Therefore every example
  of a mixture counts alike.

  Metrics: loss and accuracy, of the tokens if any, else of all heads; with several terms also per head.
  """

  config: TransformerConfig
  tokens: CrossEntropyConfig | None
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = True
  part: ClassVar[str] = ""

  @classmethod
  def from_config(cls, run: Config) -> "HeadLosses":
    """Builds the loss of a run.

    Raises:
      UserError: no head of the model can be trained.
    """
    beside_tokens = run.train.loss == "tokens_and_heads"
    if not any(head.kind in (ASKED_HEADS if beside_tokens else ANSWERED_HEADS) for head in run.model.heads):
      raise UserError(
        f"config.train.loss={run.train.loss}: no head of config.model.heads can be trained. Give "
        "config.data.mixture a task with options, which adds its head, or add a head to config.model.heads."
      )
    if beside_tokens and run.model.absolute_positions == "mask_decoder":
      raise UserError(
        "config.train.loss=tokens_and_heads: heads and tokens have the same states, but "
        "config.model.absolute_positions=mask_decoder gives tokens other states. Set config.train.loss=cross_entropy, "
        "or config.model.absolute_positions=''."
      )
    tokens = CrossEntropy.from_config(run).config if beside_tokens else None
    return cls(run.model, tokens, AuxiliaryTerms.from_config(run, only_states=True))

  @property
  def unit(self) -> str:
    """Returns the unit of the metric "loss"."""
    return "per answer" if self.tokens is None else CrossEntropy.unit

  @property
  def heads(self) -> tuple[str, ...]:
    """Lists all heads that the loss can train."""
    return tuple(head.name for _, head in self._asked)

  @property
  def _asked(self) -> list[tuple[int, HeadConfig]]:
    # Boundary heads need the masked tokens, which a batch has only if tokens are predicted.
    kinds = ANSWERED_HEADS if self.tokens is None else ASKED_HEADS
    return [(number, head) for number, head in enumerate(self.config.heads) if head.kind in kinds]

  def units(self, head: HeadConfig, head_targets: HeadTargets) -> jax.Array:
    """Returns `head_units`."""
    return head_units(head, head_targets)

  def measure(self, head: HeadConfig, logits: jax.Array, head_targets: HeadTargets, module: AnyHead) -> HeadLoss:
    """Returns loss and accuracy of each position by the kind of the head."""
    return _KINDS[head.kind].measure(logits, head_targets, module)

  def baseline(self, head: HeadConfig, batch_targets: Sequence[HeadTargets]) -> jax.Array:
    """Returns the loss of predicting label frequencies, by the kind of the head."""
    return _KINDS[head.kind].baseline(batch_targets, head.num_classes)

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> transformer.Transformer:
    return transformer.build(config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    return future_layers(model) if self.tokens is not None else without_tokens(model)

  def weights(self, batch: Batch) -> Weights:
    """Returns units of each head times all examples over its examples; all examples; and the weight of tokens."""
    units, examples = {}, {}
    for number, head in self._asked:
      head_targets = asked_of(batch, number)
      units[head.name] = jnp.sum(self.units(head, head_targets))
      examples[head.name] = _number_of_examples(head_targets)
    total = sum(examples.values())
    weights = {name: number * total / jnp.maximum(examples[name], 1.0) for name, number in units.items()}
    weights["examples"] = total
    if self.tokens is not None:
      weights["tokens"] = jnp.sum(batch[f"{predicted_side(batch)}_loss_weights"].astype(jnp.float32))
    return weights | self.auxiliary.weights(batch)

  def __call__(
    self, module: transformer.Transformer, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    outputs, logits = self.predict(module, batch, dropout_key=key if train else None)
    return self.of_logits(module, outputs, logits, batch, weights, train=train)

  def predict(
    self, module: transformer.Transformer, batch: Batch, *, dropout_key: jax.Array | None
  ) -> tuple[Hidden, dict[str, jax.Array]]:
    """Returns the model's states, and `answers` of each head with labels, by name."""
    body_key, *keys = layers.split_key(dropout_key, len(self.config.heads) + 1)
    outputs = module.hidden_states(batch, every_layer=reads_every_layer(self.config), dropout_key=body_key)
    return outputs, self._head_logits(module, outputs, batch, keys)

  def _head_logits(
    self, module: transformer.Transformer, outputs: Hidden, batch: Batch, keys: Sequence[jax.Array | None]
  ) -> dict[str, jax.Array]:
    return {
      head.name: answers(module, outputs.x, batch, head.name, dropout_key=keys[number])
      for number, head in self._asked
      if head.kind != "boundary"
    }

  def of_logits(
    self,
    module: transformer.Transformer,
    outputs: Hidden,
    logits: Mapping[str, jax.Array],
    batch: Batch,
    weights: Weights,
    *,
    train: bool,
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Computes terms and metrics from the results of `predict`; see `Loss`."""
    hidden = outputs.x if outputs.x.ndim == 3 else outputs.x[-1]
    terms, metrics, added = {}, {}, []
    for number, head in self._asked:
      head_targets = asked_of(batch, number)
      units = jnp.sum(self.units(head, head_targets))
      if head.kind == "boundary":
        summed, (loss, _, right) = span_boundary.sums(
          self._of_tokens(train), module, head, hidden, batch, head_targets.at, head_targets.targets
        )
      else:
        measured = self.measure(head, logits[head.name], head_targets, module.heads[head.name])
        loss, right = (jnp.sum(x) for x in measured)
        summed = loss
      terms[head.name] = summed / jnp.maximum(weights[head.name], 1e-8)
      metrics[f"{head.name}_loss"] = WeightedSum(loss, units)
      metrics[f"{head.name}_accuracy"] = WeightedSum(right, units)
      # Uses weights of the whole batch, because this may be a microbatch. With one head every answer counts alike.
      share = weights["examples"] / jnp.maximum(weights[head.name], 1e-8) if len(self._asked) > 1 else 1.0
      added.append((loss * share, right * share, units * share))
    if self.tokens is None:
      sums: Any = (sum(column) for column in zip(*added, strict=True))
      loss, right, examples = sums
      total_metrics = {"loss": WeightedSum(loss, examples), "accuracy": WeightedSum(right, examples)}
      metrics = total_metrics | (metrics if len(added) > 1 else {})
    terms, metrics = self._with_tokens(module, hidden, batch, weights, terms, metrics, train=train)
    return self.auxiliary.joined(terms, metrics, outputs.aux, batch, weights)

  def _of_tokens(self, train: bool) -> CrossEntropyConfig:
    """Returns settings of the token loss; evaluation has no label smoothing."""
    assert self.tokens is not None
    return self.tokens if train else dataclasses.replace(self.tokens, label_smoothing=0.0)

  def _with_tokens(self, module, hidden, batch, weights, terms, metrics, *, train: bool):
    """Adds the term of predicted tokens, if the loss has one, and the metrics of this term."""
    if self.tokens is None:
      return terms, metrics
    config = self._of_tokens(train)
    side = predicted_side(batch)
    loss_weights = batch[f"{side}_loss_weights"].astype(jnp.float32)
    targets = batch[f"{side}_target_tokens"]
    summed, sums, _ = token_sums(config, module.logits_fn(), hidden, targets, loss_weights, sparse=True)
    of_tokens = {
      name: WeightedSum(sums[i], jnp.sum(loss_weights)) for i, name in enumerate(("loss", "z_loss", "accuracy"))
    }
    return terms | {"tokens": summed / jnp.maximum(weights["tokens"], 1.0)}, of_tokens | metrics

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns FLOPs of the model with logits of predicted tokens, and again for each boundary head."""
    predicted = predicted if self.tokens is not None else 0.0
    sizes = {"batch_size": batch_size, "lengths": lengths, "predicted": predicted}
    again = [span_boundary.flops(config, **sizes) for _, head in self._asked if head.kind == "boundary"]
    return model_flops(config, **sizes) + sum(again)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """Returns the loss of predicting label frequencies."""
    if self.tokens is not None:
      return [unigram(batches, vocab_size)]
    total, number = 0.0, 0.0
    for index, head in self._asked:
      batch_targets = [asked_of(batch, index) for batch in batches]
      examples = sum(_number_of_examples(head_targets) for head_targets in batch_targets)
      total += examples * self.baseline(head, batch_targets)
      number += examples
    knows = "predicts each answer by its frequency"
    return [Baseline("constant", float(total / jnp.maximum(number, 1.0)), knows, cause=_CAUSE)]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    del values, batch_size
    # A scheme forbids transitions, so that a constant output has a lower loss.
    kinds = ("class", "span_pair", "tag", "crf", "cloze")
    class_heads = {head.name: head for _, head in self._asked if head.kind in kinds and not head.scheme}
    alone = self.tokens is None and len(self._asked) == 1
    baselines = {
      "loss" if alone else f"{name}_loss": Baseline(
        "chance", math.log(head.num_classes), f"gives each class of {name} the same probability", cause=_CAUSE
      )
      for name, head in class_heads.items()
      if head.num_classes > 1
    }
    return baselines if self.tokens is None else baselines | {"loss": uniform(vocab_size)}


_CAUSE = (
  "the answer is the same for every text; give a lower config.optimizer.learning_rate or a longer warm-up, start "
  "from a trained model (config.init.checkpoint), or check whether labels belong to their texts"
)
