"""The three architectures as all else knows them: what each reads, which side it predicts, whether it writes."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import TYPE_CHECKING, ClassVar, Protocol

import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean
from t2t.models.auxiliary import Hidden
from t2t.models.masks import AttentionMask

if TYPE_CHECKING:
  from flax import nnx

Batch = Mapping[str, jax.Array]  # seqio's model features, each [batch, length]


@dataclasses.dataclass(frozen=True)
class Architecture:
  """What holds for every model of an architecture; its module, in transformer.py, is built from a `TransformerConfig`.

  name: in configs, config.model.architecture.
  sides: its stacks, in the order in which they read: encoder, decoder.
  features: model features that every batch has.
  packed: those that are there besides where examples are packed.  Of vocabularies whose token 0 is no padding,
    segment ids are there unpacked, too.
  with_inputs: those besides of tasks that have inputs.
  decoder: row of `config.DECODERS` that generates text where config.model.decoder names none; "": none does.
  """

  name: str
  sides: tuple[str, ...]
  features: tuple[str, ...]
  packed: tuple[str, ...]
  with_inputs: tuple[str, ...] = ()
  decoder: str = ""

  @property
  def predicts(self) -> str:
    """The side whose tokens have a loss and a score: the last."""
    return self.sides[-1]

  @property
  def answers(self) -> str:
    """The side whose states heads read: the first, which has seen all of the inputs."""
    return self.sides[0]

  @property
  def is_generative(self) -> bool:
    """Whether it writes text, token after token; otherwise it reads both ways, and answers at every position."""
    return self.predicts == "decoder"

  @property
  def has_encoder_and_decoder(self) -> bool:
    """Whether inputs are read by a stack of their own, and not in one row with the targets."""
    return len(self.sides) == 2

  @property
  def attentions(self) -> tuple[str, ...]:
    """Its kinds of attention: of each side to itself, and of the second to the first."""
    return (*self.sides, "cross") if self.has_encoder_and_decoder else self.sides

  @property
  def is_decoder_only(self) -> bool:
    """Whether it writes on, in the same row, behind what it was given."""
    return self.is_generative and not self.has_encoder_and_decoder


ENCODER_DECODER = Architecture(
  "encoder_decoder",
  sides=("encoder", "decoder"),
  features=("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"),
  packed=("encoder_segment_ids", "encoder_positions", "decoder_segment_ids", "decoder_positions"),
  decoder="autoregressive",
)
DECODER_ONLY = Architecture(
  "decoder_only",
  sides=("decoder",),
  features=("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"),
  packed=("decoder_segment_ids", "decoder_positions"),
  with_inputs=("decoder_causal_attention",),
  decoder="autoregressive",
)
ENCODER_ONLY = Architecture(
  "encoder_only",
  sides=("encoder",),
  features=(
    *("encoder_input_tokens", "encoder_target_tokens", "encoder_loss_weights"),
    *("encoder_token_types", "encoder_segment_ids"),
  ),
  packed=("encoder_segment_ids", "encoder_positions"),
)

ARCHITECTURES = {architecture.name: architecture for architecture in (ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY)}


def architecture_of(name: str) -> Architecture:
  """The architecture of that name.

  Raises:
    UserError: there is none; names those that there are.
  """
  if name not in ARCHITECTURES:
    known = ", ".join(ARCHITECTURES)
    raise UserError(f"architecture {name!r}: there are {known}{did_you_mean(name, ARCHITECTURES)}")
  return ARCHITECTURES[name]


def sides(batch: Batch) -> list[str]:
  """Which of "encoder" and "decoder" a batch has features for."""
  return [side for side in ENCODER_DECODER.sides if any(name.startswith(side) for name in batch)]


def predicted_side(batch: Batch) -> str:
  """The side of a batch whose tokens have a loss, see `Architecture.predicts`."""
  return sides(batch)[-1]


def real_positions(batch: Batch, side: str) -> jax.Array:
  """Which positions of one side are not padding: bool, in the shape of the features, which may be NumPy's.

  Where id 0 is a token, segment ids tell.  What a decoder is fed may start with padding; what it writes does not.
  """
  if f"{side}_segment_ids" in batch:
    return batch[f"{side}_segment_ids"] > 0
  return batch["encoder_input_tokens" if side == "encoder" else "decoder_target_tokens"] > 0


def segments_of(batch: Batch, side: str) -> jax.Array:
  """Segment ids of a packed batch; of others, 1 where there is a token: int [batch, length]."""
  segments = batch.get(f"{side}_segment_ids")
  return real_positions(batch, side).astype(jnp.int32) if segments is None else segments


def is_padded(batch: Batch) -> bool:
  """Whether all that is hidden of an encoder's positions is padding behind the text of a row."""
  return "encoder_segment_ids" not in batch


def reading_mask(batch: Batch, side: str) -> AttentionMask:
  """Who on a side of the batch sees which positions of the encoder: those of its own text, or all that has text."""
  segments, padded = segments_of(batch, "encoder"), is_padded(batch)
  if side == "encoder":
    return AttentionMask(segments, segments, positions=batch.get("encoder_positions"), padded=padded)
  queries = batch.get("decoder_segment_ids")
  queries = jnp.ones_like(batch["decoder_input_tokens"]) if queries is None else queries
  return AttentionMask(queries, segments, padded=padded)


def decoder_mask(batch: Batch, *, bidirectional_prefix: bool) -> AttentionMask:
  """Padding ends a sequence, so that the causal mask already hides it; only packed sequences need more."""
  segments = batch.get("decoder_segment_ids")
  prefix = batch.get("decoder_causal_attention") if bidirectional_prefix else None
  return AttentionMask(segments, segments, prefix=prefix, positions=batch.get("decoder_positions"), causal=True)


class ModelProtocol(Protocol):
  """What a loss, a head and an evaluation know of a model, whatever its architecture.

  One that writes has `start_decode`, `decode_step` and `ready` as well.
  """

  architecture: ClassVar[Architecture]
  heads: "nnx.Dict"  # by name, each a `heads.Head`

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Hidden states [batch, length, embed] of the side that is predicted."""
    ...

  def states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> jax.Array:
    """Hidden states of the side that heads read, `Architecture.answers`: [batch, length, embed].

    With `every_layer` [layers + 1, batch, length, embed]; see `Stack`.
    """
    ...

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """As a call gives them, with what layers return beside."""
    ...

  def hidden_states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> Hidden:
    """As `states` gives them, with what the layers of its side return beside."""
    ...

  def attention_map(self, batch: Batch, kind: str, head: jax.Array) -> jax.Array:
    """How much each position takes of each other one, float32 [layers, batch, query, key], learned ones in front.

    Args:
      batch: model features.
      kind: one of `Architecture.attentions`.
      head: int [], its number.
    """
    ...

  def logits_fn(self, name: str = "") -> Callable[[jax.Array], jax.Array]:
    """[..., embed] -> float32 [..., vocab], as a pytree that holds its weights; with a name a boundary head's."""
    ...

  def logits(self, hidden: jax.Array) -> jax.Array:
    """float32 [batch, length, vocab]."""
    ...

  def head_logits(self, name: str, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """float32 [..., classes] of the head of that name, from the states that it reads, [..., embed]."""
    ...
