"""Multi-token prediction: layers beside the last one, each of which predicts a later token (Gloeckle et al. 2024)."""

from collections.abc import Mapping
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import attention, layers, remat, transformer
from t2t.models import positions as positions_lib
from t2t.models.auxiliary import Auxiliary, Hidden, Term
from t2t.models.config import TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.stack import Layer, Stack


def _check(config: TransformerConfig) -> None:
  where = f"config.model.future_tokens={config.future_tokens}"
  if config.share_layers:
    raise UserError(f"{where} needs layers with separate parameters. Set --config.model.share_layers=False.")
  feed_forward = config.feed_forward_class
  if feed_forward.terms(config) or feed_forward.carried(config):
    raise UserError(
      f"{where} does not support config.model.feed_forward={config.feed_forward}, whose layers return auxiliary terms "
      "or carry states. Set --config.model.feed_forward=dense."
    )


class LastInput(nnx.Module):
  """A `stack.Recurrence` that returns the input of the last layer, auxiliary state "last_input"."""

  adds_signals = False

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, num_layers: int):
    del config, rngs, num_layers

  def begin(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, x

  def state(self, progress: tuple[jax.Array, jax.Array]) -> jax.Array:
    return progress[0]

  def prepare(self, positions: jax.Array) -> None:
    del positions

  def enter(self, progress: tuple[jax.Array, jax.Array], index: jax.Array | int, prepared: None) -> jax.Array:
    del index, prepared
    return progress[0]

  def leave(self, progress: tuple[jax.Array, jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    del progress
    return y, x

  def finish(self, progress: tuple[jax.Array, jax.Array], real: jax.Array | None) -> Hidden:
    del real
    x, last_input = progress
    return Hidden(x, Auxiliary(states={"last_input": sharding.join_residual(last_input)}))

  @classmethod
  def terms(cls, config: TransformerConfig) -> Mapping[str, Term]:
    del config
    return {}

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    del config
    return 0.0


class FutureLayers(nnx.Module):
  """Layers that read the last layer's input; layer k predicts the token k + 1 positions after the next one.

  They share the position scheme, the final norm and the vocabulary head of the decoder. The decoder itself predicts the
  next token, so a checkpoint without these layers is a plain decoder.

  Source: Gloeckle et al. 2024, section 2, with the published models' shared norm.

  Raises:
    UserError: layers share parameters, return auxiliary terms or carry states.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    _check(config)
    self.config = config
    keys = jax.random.split(rngs.params(), config.future_tokens)
    self.layers = jax.vmap(lambda key: Layer(config, nnx.Rngs(key), cross=False))(keys)

  def __call__(
    self,
    decoder: Stack,
    x: jax.Array,
    *,
    mask: AttentionMask,
    cache: attention.KVCache | None = None,
    real: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, attention.KVCache]:
    """Returns the states for later tokens, [future tokens, batch, length, embed], and the layers' keys and values.

    Args:
      decoder: stack with the shared norm and positions.
      x: input of the decoder's last layer, [batch, length, embed].
      mask: mask of the decoder's self-attention.
      cache: keys and values of earlier positions, with a leading axis of layers.
      real: see `FeedForward`.
      dropout_key: None at evaluation.
    """
    config = self.config
    key_length = x.shape[1] if cache is None else cache.keys.shape[-2]
    call = positions_lib.Call(x.shape[0], x.shape[1], key_length, mask, front=0, drops=dropout_key is not None)
    positions = config.position_scheme.positions(decoder.position_bias, call)(config.num_decoder_layers - 1)
    is_normed = decoder.is_normed(config.num_decoder_layers - 1)
    x = sharding.split_residual(x)
    keys = None if dropout_key is None else jax.random.split(dropout_key, 2 * config.future_tokens).reshape(2, -1)

    def run(_, inputs):
      layer, written, layer_keys = inputs
      layer_key, out_key = (None, None) if layer_keys is None else layer_keys
      states, written, _ = layer(
        x, mask=mask, positions=positions, is_normed=is_normed, cache=written, real=real, dropout_key=layer_key
      )
      states = states if decoder.norm is None else decoder.norm(states)
      if config.broadcast_dropout:
        states = layers.dropout(states, config.dropout_rate, out_key, broadcast_axis=-2)
      return None, (sharding.join_residual(states), dataclasses.replace(written, beside=None))

    if config.remat != "none":
      run = jax.checkpoint(run, policy=remat.policy(config.remat, config.quantization), prevent_cse=False)
    return jax.lax.scan(run, None, (self.layers, cache, None if keys is None else keys.T))[1]


def extend(
  model: transformer.DecoderOnly, tokens: jax.Array, state: transformer.DecodeState
) -> tuple[jax.Array, transformer.DecodeState]:
  """Runs several tokens of each row at once, without beams.

  The position of the returned state is the first token's. Set `position` to the number of tokens to keep: keys after
  it are overwritten by the next call.

  Args:
    model: has layers that predict later tokens.
    tokens: int [batch, number].
    state: result of `start_decode` with `with_future`.

  Returns:
    States after each token, [1 + future tokens, batch, number, embed], first those for the next token; and the
    updated state.
  """
  assert model.future is not None
  positions = state.position + jnp.arange(tokens.shape[1])
  positions = positions[None] - (0 if state.padding is None else state.padding[:, None])
  segments = None if state.segments is None else jnp.ones_like(tokens)
  mask = AttentionMask(segments, state.segments, query_offset=state.position, causal=True)
  x, cache, aux = model.decoder(
    model.embed(tokens, positions=jnp.broadcast_to(positions, tokens.shape)),
    mask=mask,
    weights=state.weights,
    cache=state.cache,
    tasks=state.tasks,
    keep_cache=True,
  )
  assert isinstance(cache, attention.KVCache | tuple)  # because of `keep_cache`
  states, future = model.future(model.decoder, aux.states["last_input"], mask=mask, cache=state.future)
  return jnp.concatenate([x[None], states]), dataclasses.replace(state, cache=cache, future=future)
