"""Properties of the three architectures (features, stacks, predicted side), and the protocol that models implement."""

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
  """Properties of an architecture; its module, in transformer.py, is built from a `TransformerConfig`.

  name: value of config.model.architecture.
  sides: its stacks in order: encoder, decoder.
  features: model features of every batch.
  packed: additional features of packed batches. Vocabularies that use token 0 have segment ids without packing, too.
  with_inputs: additional features of tasks with inputs.
  decoder: default of config.model.decoder, a row of `config.DECODERS`; "": generates no text.
  """

  name: str
  sides: tuple[str, ...]
  features: tuple[str, ...]
  packed: tuple[str, ...]
  with_inputs: tuple[str, ...] = ()
  decoder: str = ""

  @property
  def predicts(self) -> str:
    """Returns the side with loss and scores: the last."""
    return self.sides[-1]

  @property
  def answers(self) -> str:
    """Returns the side that heads read: the first, which contains all of the inputs."""
    return self.sides[0]

  @property
  def is_generative(self) -> bool:
    """Returns True if the model generates text; otherwise its attention is bidirectional."""
    return self.predicts == "decoder"

  @property
  def has_encoder_and_decoder(self) -> bool:
    """Returns True if a separate stack reads the inputs, instead of one row with inputs and targets."""
    return len(self.sides) == 2

  @property
  def attentions(self) -> tuple[str, ...]:
    """Returns the kinds of attention: self-attention of each side, and cross-attention."""
    return (*self.sides, "cross") if self.has_encoder_and_decoder else self.sides

  @property
  def is_decoder_only(self) -> bool:
    """Returns True if the model generates text in the same row as its input."""
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
  """Returns the architecture with this name.

  Raises:
    UserError: the name is unknown; the message contains the known names.
  """
  if name not in ARCHITECTURES:
    known = ", ".join(ARCHITECTURES)
    raise UserError(
      f"config.model.architecture={name!r}: unknown architecture. Known values: "
      f"{known}{did_you_mean(name, ARCHITECTURES)}"
    )
  return ARCHITECTURES[name]


def sides(batch: Batch) -> list[str]:
  """Returns the sides, "encoder" and "decoder", that a batch has features of."""
  return [side for side in ENCODER_DECODER.sides if any(name.startswith(side) for name in batch)]


def predicted_side(batch: Batch) -> str:
  """Returns the side of a batch with a loss, see `Architecture.predicts`."""
  return sides(batch)[-1]


def real_positions(batch: Batch, side: str) -> jax.Array:
  """Returns the positions of one side that are not padding, bool in the shape of the (NumPy or JAX) features.

  Segment ids decide if present, because id 0 may be a token. Decoder inputs may start with id 0, so targets decide
  there.
  """
  if f"{side}_segment_ids" in batch:
    return batch[f"{side}_segment_ids"] > 0
  return batch["encoder_input_tokens" if side == "encoder" else "decoder_target_tokens"] > 0


def segments_of(batch: Batch, side: str) -> jax.Array:
  """Returns segment ids, int [batch, length]; without packing, 1 for tokens and 0 for padding."""
  segments = batch.get(f"{side}_segment_ids")
  return real_positions(batch, side).astype(jnp.int32) if segments is None else segments


def is_padded(batch: Batch) -> bool:
  """Returns True if the encoder's mask hides only padding at the ends of rows."""
  return "encoder_segment_ids" not in batch


def reading_mask(batch: Batch, side: str) -> AttentionMask:
  """Returns the mask of a side's attention to the encoder: keys of the query's segment, or all that are not padding."""
  segments, padded = segments_of(batch, "encoder"), is_padded(batch)
  if side == "encoder":
    ranks, positions, flags = (batch.get(f"encoder_{name}") for name in ("ranks", "positions", "global_tokens"))
    return AttentionMask(segments, segments, ranks=ranks, positions=positions, global_tokens=flags, padded=padded)
  queries = batch.get("decoder_segment_ids")
  queries = jnp.ones_like(batch["decoder_input_tokens"]) if queries is None else queries
  return AttentionMask(queries, segments, positions=batch.get("decoder_positions"), padded=padded)


def decoder_mask(batch: Batch, *, bidirectional_prefix: bool) -> AttentionMask:
  """Returns the decoder's mask. Without packing the causal mask suffices, because padding ends a sequence."""
  segments = batch.get("decoder_segment_ids")
  prefix = batch.get("decoder_causal_attention") if bidirectional_prefix else None
  return AttentionMask(segments, segments, prefix=prefix, positions=batch.get("decoder_positions"), causal=True)


class ModelProtocol(Protocol):
  """Interface of a model for losses, heads and evaluation, independent of the architecture.

  Generative models also have `start_decode`, `decode_step` and `ready`.
  """

  architecture: ClassVar[Architecture]
  heads: "nnx.Dict"  # name -> `heads.Head`

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns hidden states [batch, length, embed] of the predicted side."""
    ...

  def states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns hidden states of the side that heads read, `Architecture.answers`: [batch, length, embed].

    With `every_layer` [layers + 1, batch, length, embed]; see `Stack`.
    """
    ...

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns the hidden states of a call, with auxiliary outputs of the layers."""
    ...

  def hidden_states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns the result of `states`, with auxiliary outputs of that side's layers."""
    ...

  def attention_map(self, batch: Batch, kind: str, head: jax.Array) -> jax.Array:
    """Returns attention probabilities, float32 [layers, batch, query, key], with learned prefix positions first.

    Args:
      batch: model features.
      kind: one of `Architecture.attentions`.
      head: int [], index of the head.
    """
    ...

  def logits_fn(self, name: str = "") -> Callable[[jax.Array], jax.Array]:
    """Returns a pytree function from [..., embed] to float32 [..., vocab]; `name`: a boundary head."""
    ...

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns float32 logits [batch, length, vocab]."""
    ...

  def head_logits(self, name: str, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns the logits of a head, float32 [..., classes], from its input states, [..., embed]."""
    ...
