"""Linear-chain conditional random field (Lafferty et al. 2001): the score of a tag depends on the tag before."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.models.task_heads import AnswerHead

_NOT_ALLOWED = -1e30  # score of a transition that the scheme does not allow


class Transitions(NamedTuple):
  """Scores of tags by the tag before, float32, and which transitions are allowed.

  between: [tags, tags], from the tag of the row to the tag of the column.
  first, last: [tags], of the first and of the last tag of a sequence.
  allowed: bool [tags, tags]. allowed_first: bool [tags].
  """

  between: jax.Array
  first: jax.Array
  last: jax.Array
  allowed: jax.Array
  allowed_first: jax.Array


class Chain(NamedTuple):
  """Sequences of tags in the rows of a batch, bool [batch, length].

  at: positions with a tag; other positions between them are passed over.
  first, last: positions with the first and with the last tag of a sequence.
  """

  at: jax.Array
  first: jax.Array
  last: jax.Array


def allowed_by_bio(labels: Sequence[str], *, name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the transitions that the BIO scheme allows, bool [tags, tags], and the first tags, bool [tags].

  In:  ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
  Out: all but O and B-LOC, I-LOC to I-PER, O and B-PER, I-PER to I-LOC; and O, B-PER, B-LOC

  Args:
    labels: names of the tags.
    name: name of the head, for messages.

  Raises:
    UserError: there are no labels, or they are not tags of the scheme.
  """
  strange = [label for label in labels if label != "O" and label[:2] not in ("B-", "I-")]
  if not labels or strange or not any(label == "O" or label.startswith("B-") for label in labels):
    listed = f"the label {strange[0]!r} is no tag of this scheme" if strange else f"its labels are {tuple(labels)}"
    raise UserError(
      f"config.model.heads: {name} has scheme='bio', but {listed}. Give labels such as O, B-PER, I-PER, or remove "
      "scheme."
    )
  goes_on = np.array([label.startswith("I-") for label in labels])
  inside = np.array([label[2:] for label in labels])
  same = (inside[:, None] == inside[None, :]) & (np.array(labels) != "O")[:, None]
  return ~goes_on[None, :] | same, ~goes_on


class CrfHead(AnswerHead):
  """Tag head with scores of transitions between neighbouring tags, which begin at 0: then tags are independent."""

  def __init__(self, config: TransformerConfig, head: HeadConfig, rngs: nnx.Rngs):
    super().__init__(config, head, rngs)
    self.head, number = head, head.num_classes
    self._allowed()  # raises before parameters are used
    zeros = lambda *shape: nnx.Param(jnp.zeros(shape, jnp.float32), axes=(None,) * len(shape))
    self.transitions, self.first, self.last = zeros(number, number), zeros(number), zeros(number)

  def _allowed(self) -> tuple[np.ndarray, np.ndarray]:
    if self.head.scheme:
      return allowed_by_bio(self.head.labels, name=self.head.name)
    return np.ones((self.head.num_classes,) * 2, bool), np.ones(self.head.num_classes, bool)

  def scores(self) -> Transitions:
    """Returns the scores of transitions."""
    allowed, allowed_first = map(jnp.asarray, self._allowed())
    return Transitions(self.transitions[...], self.first[...], self.last[...], allowed, allowed_first)


def chain_of(at: jax.Array, groups: jax.Array) -> Chain:
  """Returns the sequences of tags of a batch.

  In:  at [[F, T, F, T, T, F]], groups [[1, 1, 1, 1, 2, 0]]
  Out: first [[F, T, F, F, T, F]], last [[F, F, F, T, T, F]]

  Args:
    at: bool [batch, length], positions with a tag.
    groups: int [batch, length]; positions of a row with the same number belong to one sequence; increase along a row.
  """
  shown = jnp.where(at, groups, 0)
  before = jnp.pad(jax.lax.cummax(shown, axis=1)[:, :-1], [(0, 0), (1, 0)])
  far = jnp.iinfo(jnp.int32).max
  behind = jax.lax.cummin(jnp.where(at, groups, far), axis=1, reverse=True)
  behind = jnp.pad(behind[:, 1:], [(0, 0), (0, 1)], constant_values=far)
  return Chain(at, at & (shown > before), at & (groups < behind))


def _continued(transitions: Transitions, logits: jax.Array, chain: Chain, reduce: Callable) -> jax.Array:
  """Returns the score of each tag with the rest of its sequence, float32 [batch, length, tags].

  It is the backward algorithm: with `logsumexp` over all continuations, with `max` the best of them (Viterbi).
  """
  between = jnp.where(transitions.allowed, transitions.between, _NOT_ALLOWED)

  def step(behind: jax.Array, position: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    emission, at, last = position
    scores = emission + jnp.where(last[:, None], transitions.last, behind)
    before = reduce(between + scores[:, None, :], axis=-1)
    return jnp.where(at[:, None], before, behind), scores

  # States of padding may be anything, also NaN.
  emissions = jnp.where(chain.at[..., None], logits.astype(jnp.float32), 0.0)
  columns = tuple(jnp.moveaxis(x, 1, 0) for x in (emissions, chain.at, chain.last))
  _, scores = jax.lax.scan(step, jnp.zeros_like(columns[0][0]), columns, reverse=True)
  return jnp.moveaxis(scores, 0, 1)


def conditional_logits(transitions: Transitions, logits: jax.Array, chain: Chain, tags: jax.Array) -> jax.Array:
  """Returns logits of each tag given the text and the tag before, float32 [batch, length, tags].

  The log-probabilities of `tags` under their softmax add up to the log-probability of the sequence. If all scores of
  transitions are 0, they equal `logits` up to a constant. A tag of `tags` that the scheme does not allow counts as
  allowed at its position.

  Args:
    transitions: scores of transitions.
    logits: [batch, length, tags].
    chain: positions with tags.
    tags: int [batch, length].
  """
  length = tags.shape[1]
  places = jax.lax.cummax(jnp.where(chain.at, jnp.arange(length), 0), axis=1)
  before = jnp.take_along_axis(tags, jnp.pad(places[:, :-1], [(0, 0), (1, 0)]), axis=1)
  choose = lambda first, between: jnp.where(chain.first[..., None], first, between[before])
  allowed = choose(transitions.allowed_first, transitions.allowed) | (tags[..., None] == jnp.arange(logits.shape[-1]))
  scores = choose(transitions.first, transitions.between)
  scores += _continued(transitions, logits, chain, jax.nn.logsumexp)
  return jnp.where(allowed, scores, _NOT_ALLOWED)


def best_tags(transitions: Transitions, logits: jax.Array, chain: Chain) -> jax.Array:
  """Returns the tags of the likeliest sequence by the Viterbi algorithm, int32 [batch, length].

  Args: see `conditional_logits`.
  """
  between = jnp.where(transitions.allowed, transitions.between, _NOT_ALLOWED)
  begins = jnp.where(transitions.allowed_first, transitions.first, _NOT_ALLOWED)

  def step(before: jax.Array, position: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    scores, at, first = position
    scores = scores + jnp.where(first[:, None], begins, between[before])
    tag = jnp.where(at, jnp.argmax(scores, axis=-1).astype(jnp.int32), before)
    return tag, tag

  best = _continued(transitions, logits, chain, jnp.max)
  columns = tuple(jnp.moveaxis(x, 1, 0) for x in (best, chain.at, chain.first))
  _, tags = jax.lax.scan(step, jnp.zeros(logits.shape[0], jnp.int32), columns)
  return jnp.moveaxis(tags, 0, 1)


def decoded(transitions: Transitions, logits: jax.Array, chain: Chain) -> jax.Array:
  """Returns each position's tag in the likeliest sequence, and its log-probability given the tag before.

  Args: see `conditional_logits`.

  Returns:
    float32 [batch, length, 2].
  """
  tags = best_tags(transitions, logits, chain)
  log_p = jax.nn.log_softmax(conditional_logits(transitions, logits, chain, tags))
  of_tags = jnp.take_along_axis(log_p, tags[..., None], axis=-1)
  return jnp.concatenate([tags[..., None].astype(jnp.float32), of_tags], axis=-1)
