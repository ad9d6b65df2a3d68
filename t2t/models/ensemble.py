"""An ensemble of models with one vocabulary: the mean of their probabilities of each token."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from t2t.models import transformer
from t2t.models.architecture import Batch


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EnsembleState:
  """State of decoding: that of each member, see `transformer.DecodeState`."""

  members: tuple[transformer.DecodeState, ...]

  def follow(self, parents: jax.Array) -> "EnsembleState":
    """Returns the state in which each beam continues another beam, `parents` int [batch, beams]."""
    return EnsembleState(tuple(state.follow(parents) for state in self.members))


def mean_log_probabilities(logits: Sequence[jax.Array]) -> jax.Array:
  """Returns the logarithm of the mean of the members' softmax, float32 [..., vocab].

  Args:
    logits: of each member, [..., vocab].
  """
  log_p = jnp.stack([jax.nn.log_softmax(x.astype(jnp.float32), axis=-1) for x in logits])
  return jax.nn.logsumexp(log_p, axis=0) - jnp.log(float(len(logits)))


class EnsembleModel(nnx.Module):
  """Predicts tokens with the mean of the members' probabilities; members read the same tokens.

  Hidden states are those of the members, joined on the last axis, which `logits_fn` separates. Members may differ in
  their sizes. Heads are of single members, see `member`.

  Args:
    members: with one architecture, vocabulary and dtype.
  """

  def __init__(self, members: Sequence[transformer.Transformer]):
    self.number, self.config = len(members), members[0].config
    for number, model in enumerate(members):
      setattr(self, member_name(number), model)

  def member(self, number: int) -> transformer.Transformer:
    """Returns one of the models."""
    return getattr(self, member_name(number))

  @property
  def _members(self) -> list[Any]:
    return [self.member(number) for number in range(self.number)]

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns [batch, length, sum of the members' widths]."""
    return jnp.concatenate([model(batch, dropout_key=dropout_key) for model in self._members], axis=-1)

  def logits_fn(self) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from joined hidden states to the logarithm of the mean probabilities, float32 [..., vocab]."""
    functions = [model.logits_fn() for model in self._members]
    ends, end = [], 0
    for model in self._members[:-1]:
      end += model.config.of_stack(model.config.kind.predicts).embed_dim
      ends.append(end)

    def logits(hidden: jax.Array) -> jax.Array:
      parts = jnp.split(hidden, ends, axis=-1)
      return mean_log_probabilities([function(part) for function, part in zip(functions, parts, strict=True)])

    return logits

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns the result of `logits_fn`, float32 [..., vocab]."""
    return self.logits_fn()(hidden)

  def start_decode(self, batch: Batch, max_length: int, *, num_beams: int = 1) -> tuple[jax.Array, EnsembleState]:
    """Starts decoding of each member; see `transformer.DecoderOnly.start_decode`."""
    tokens, states = zip(
      *(model.start_decode(batch, max_length, num_beams=num_beams) for model in self._members), strict=True
    )
    return tokens[0], EnsembleState(states)

  def ready(self, state: EnsembleState) -> EnsembleState:
    """Prepares the members' weights for many steps."""
    return EnsembleState(tuple(model.ready(x) for model, x in zip(self._members, state.members, strict=True)))

  def decode_step(self, tokens: jax.Array, state: EnsembleState) -> tuple[jax.Array, EnsembleState]:
    """Returns the logarithm of the mean probabilities of the next token, and the state.

    Args:
      tokens: int [batch], or [batch, beams].
      state: result of `ready` or of the step before.
    """
    steps = [model.decode_step(tokens, x) for model, x in zip(self._members, state.members, strict=True)]
    return mean_log_probabilities([logits for logits, _ in steps]), EnsembleState(tuple(x for _, x in steps))


def member_name(number: int) -> str:
  """Returns the name of a member in the tree of parameters."""
  return f"member_{number}"
