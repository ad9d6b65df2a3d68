"""The three architectures: how each one combines its stacks, and which batch features it reads.

Each is a `ModelProtocol`; generative ones also have `start_decode`, `decode_step` and `ready`.
"""

from collections.abc import Callable
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean, sharding
from t2t.models import attention, auxiliary, heads, layers
from t2t.models.architecture import (
  DECODER_ONLY,
  ENCODER_DECODER,
  ENCODER_ONLY,
  Architecture,
  Batch,
  decoder_mask,
  reading_mask,
  real_positions,
  segments_of,
)
from t2t.models.auxiliary import Auxiliary, Hidden
from t2t.models.config import EMBEDDINGS, TransformerConfig
from t2t.models.masks import AttentionMask
from t2t.models.stack import Caches, Layer, LayerLoop, Stack, Weights, unstack_layers
from t2t.runtime.lazy_table import load


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
  """State that decoding carries from one position to the next.

  cache: keys and values of the positions so far: a prompt once, then every beam; see `AttentionMask.key_positions`.
  position: int [], position of the next token.
  segments: int [batch, key], 0 for empty keys of the cache; None: all keys are filled.
  padding: int [batch], positions before a sequence's first token; negative if the sequence starts at a later position.
    None: 0 for all.
  memory: keys and values of the encoder's output for each layer's cross-attention.
  memory_mask: mask of the encoder's padding.
  ancestors: see `AttentionMask`; None: no beams.
  tasks: int [batch, 1], see `Stack`; None: the model does not read task ids.
  weights, logits_fn: the decoder's weights and head as prepared by `ready` for many steps; None: not prepared.
  future: keys and values of the layers that predict later tokens, see `multi_token.extend`; None: they do not run.
  """

  cache: Caches
  position: jax.Array
  segments: jax.Array | None = None
  padding: jax.Array | None = None
  memory: Caches | None = None
  memory_mask: AttentionMask | None = None
  ancestors: jax.Array | None = None
  tasks: jax.Array | None = None
  weights: Weights | tuple[Weights, ...] | None = None
  logits_fn: Callable[[jax.Array], jax.Array] | None = None
  future: attention.KVCache | None = None

  @property
  def num_keys(self) -> int:
    """Returns the number of keys that the cache can hold."""
    return (self.cache[0] if isinstance(self.cache, tuple) else self.cache).keys.shape[-2]

  def follow(self, parents: jax.Array) -> "DecodeState":
    """Returns the state in which each beam continues another beam, `parents` int [batch, beams].

    Of keys and values only `ancestors` is permuted; they stay in place.
    """
    is_cache = lambda x: isinstance(x, attention.KVCache)
    cache = jax.tree.map(lambda x: x.follow(parents), self.cache, is_leaf=is_cache)
    old = self.ancestors
    ancestors = None if old is None else jnp.take_along_axis(old, parents[..., None], axis=1)
    return dataclasses.replace(self, cache=cache, ancestors=ancestors)


def _shard_cache(cache: attention.KVCache) -> attention.KVCache:
  return jax.tree.map(lambda x: sharding.shard(x, "layers", "batch", "heads", None, "kv"), cache)


def _of_rows(batch: Batch) -> jax.Array | None:
  """Returns the task of each generated row (of its first sequence, if packed), int [batch, 1]; None: no tasks."""
  return batch["decoder_tasks"][:, :1] if "decoder_tasks" in batch else None


def _looked_at(kept: Caches | jax.Array | None) -> jax.Array:
  assert isinstance(kept, jax.Array)
  return kept


def _no_ancestors(batch_size: int, num_beams: int, max_length: int) -> jax.Array | None:
  if num_beams == 1:
    return None
  return sharding.shard(jnp.full((batch_size, num_beams, max_length), -1, jnp.int32), "batch", None, None)


class _Transformer(nnx.Module):
  """Base class: config, embedding, vocabulary head and other heads."""

  if TYPE_CHECKING:  # set by subclasses; `decoder` only by generative ones
    architecture: ClassVar[Architecture]
    decoder: Stack

    def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden: ...

    def hidden_states(
      self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None
    ) -> Hidden: ...

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.config = config
    self.embed = EMBEDDINGS[config.embedding](config, rngs)
    self.head = heads.VocabularyHead(config, rngs) if config.vocabulary_head else None
    self.heads = heads.build(config, rngs)

  @property
  def input_embed(self) -> layers.Embed:
    """Returns the embedding of the side that heads read."""
    return self.embed

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    return self.hidden(batch, dropout_key=dropout_key).x

  def states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> jax.Array:
    return self.hidden_states(batch, every_layer=every_layer, dropout_key=dropout_key).x

  def logits_fn(self, name: str = "") -> Callable[[jax.Array], jax.Array]:
    """Returns a function from [..., embed] to float32 logits [..., vocab], a pytree with its weights; see `heads`.

    Args:
      name: a boundary head, which maps its own inputs to logits; "": the vocabulary head.

    Raises:
      UserError: the model has no vocabulary head.
    """
    if name:
      return self.heads[name].logits_fn(self.embed)
    if self.head is None:
      there = ", ".join(self.heads) or "none"
      raise UserError(
        f"config.model.vocabulary_head=False: the model has no logits over the vocabulary. The model's heads: "
        f"{there}. Set --config.model.vocabulary_head=True. If the checkpoint has no such head, also set "
        "--config.init.reinit=^head/ to initialize the new parameters."
      )
    return self.head.logits_fn(self.embed)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns float32 logits [batch, length, vocab] from hidden states [batch, length, embed]."""
    return sharding.shard(self.logits_fn()(hidden), "batch", "length", "vocab")

  def head_logits(self, name: str, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns the logits of a head, float32 [..., classes], from its input states, [..., embed]; see `heads.Head`.

    Raises:
      UserError: the model has no such head.
    """
    if name not in self.heads:
      there = ", ".join(self.heads) or "none"
      raise UserError(
        f"config.model.heads: the model has no head {name!r}. Known heads: {there}{did_you_mean(name, self.heads)}"
      )
    return self.heads[name](hidden, dropout_key=dropout_key)

  def _places(self, stack: Stack, tokens: jax.Array, positions: jax.Array | None) -> jax.Array | None:
    """Returns indices into the position embeddings, after the stack's learned prefix; None: 0, 1, 2, ..."""
    if not stack.front:
      return positions
    return stack.front + (jnp.arange(tokens.shape[1])[None] if positions is None else positions)

  def _body(self) -> Layer | None:
    """Returns the encoder layers that the decoder shares, if any."""
    return None

  def _prompted(self, batch: Batch) -> Batch:
    """Prepends the learned prompt to each row of the input side; returns the batch unchanged without a prompt.

    Targets keep their positions; `of_text` removes the states of the prompt.
    """
    ids = self.input_embed.prompt_ids
    if not ids.size:
      return batch
    side, size = self.architecture.answers, ids.size
    fronts = {"input_tokens": ids, "positions": jnp.arange(size), "segment_ids": 1, "causal_attention": 1}
    fronts |= dict.fromkeys(("token_types", "ranks", "global_tokens", "perturbation"), 0)
    prompted = dict(batch)
    for name, front in fronts.items():
      if (x := batch.get(f"{side}_{name}")) is not None:
        front = jnp.broadcast_to(front, (x.shape[0], size, *x.shape[2:])).astype(x.dtype)
        prompted[f"{side}_{name}"] = jnp.concatenate([front, x + size if name == "positions" else x], axis=1)
    return prompted

  def _reading_mask(self, batch: Batch) -> AttentionMask:
    """Returns the mask of the encoder's self-attention."""
    return reading_mask(self.config.attention_class.with_features(self.config, batch), "encoder")

  def of_text(self, states: jax.Array) -> jax.Array:
    """Removes the prompt's states from [..., length, embed]."""
    return states[..., self.input_embed.prompt_ids.size :, :]

  def _real(self, batch: Batch, side: str, length: int) -> jax.Array | None:
    """Returns which of `length` positions hold a token, prompt included; None: all, or no layer reads it."""
    is_known = f"{side}_segment_ids" in batch or side == "encoder" or "decoder_target_tokens" in batch
    if not self.config.reads_real or not is_known:
      return None
    real = real_positions(batch, side)
    return jnp.pad(real, [(0, 0), (length - real.shape[1], 0)], constant_values=True)

  def _carried(self, batch: Batch, side: str) -> dict[str, jax.Array]:
    """Returns a side's layer states after the previous rows, name -> [layers, batch, ...]; empty if there are none."""
    begin = f"{auxiliary.CARRIED}{side}/"
    states = {name.removeprefix(begin): x for name, x in batch.items() if name.startswith(begin)}
    states = {name: jnp.moveaxis(x, 0, 1) for name, x in states.items()}
    if not states:
      return states
    from t2t.models import layer_memory  # few models carry states

    of_text = [name for name, state in layer_memory.carried(self.config).items() if state.evaluated]
    return layer_memory.of_row(states, batch.get(f"{side}_continues"), of_text)

  def _types(self, batch: Batch) -> jax.Array | None:
    """Returns the segment type of each encoder token; None: type 0 everywhere, as in all generated text."""
    return batch.get("encoder_token_types") if self.config.segment_types > 1 else None

  def ready(self, state: DecodeState) -> DecodeState:
    """Returns an equivalent state with weights and caches laid out for many steps, which makes decoding faster."""
    num_layers = self.config.num_decoder_layers
    apart = lambda x: unstack_layers(x, num_layers) if sharding.platform() == "cpu" and x is not None else x
    return dataclasses.replace(
      state,
      weights=self.decoder.ready_weights(self._body()),
      logits_fn=self.logits_fn(),
      cache=apart(state.cache),
      memory=apart(state.memory),
    )

  def decode_step(self, tokens: jax.Array, state: DecodeState) -> tuple[jax.Array, DecodeState]:
    """Returns logits of the next token, float32 [batch, vocab], after `tokens`, int [batch], and the updated state.

    With beams, logits are [batch, beams, vocab] after int [batch, beams]; see `DecodeState.follow`.
    """
    columns = tokens.reshape(tokens.shape[0], -1)
    num_beams, position, ancestors = columns.shape[1], state.position, state.ancestors
    if ancestors is not None:
      beam_ids = jnp.broadcast_to(jnp.arange(num_beams)[None, :, None], (*columns.shape, 1))
      num_shared = state.num_keys - self.decoder.front - num_beams * ancestors.shape[2]
      ancestors = jax.lax.dynamic_update_slice_in_dim(ancestors, beam_ids, position - num_shared, axis=2)
    positions = position if state.padding is None else (position - state.padding)[:, None]
    mask = AttentionMask(
      None if state.segments is None else jnp.ones_like(columns),
      state.segments,
      query_offset=position,
      ancestors=ancestors,
      positions=jnp.broadcast_to(positions, (columns.shape[0], 1)),
      causal=True,
    )
    positions = jnp.broadcast_to(positions, columns.shape)
    memory_mask = state.memory_mask
    if memory_mask is not None:
      memory_mask = dataclasses.replace(memory_mask, positions=positions)
    x, cache, _ = self.decoder(
      self.embed(columns, positions=positions + self.decoder.front, decoder_positions=self.decoder.embed),
      mask=mask,
      body=self._body(),
      weights=state.weights,
      memory=state.memory,
      memory_mask=memory_mask,
      cache=state.cache,
      tasks=state.tasks,
      keep_cache=True,
    )
    assert isinstance(cache, attention.KVCache | tuple)  # because of `keep_cache`
    logits_fn = self.logits_fn() if state.logits_fn is None else state.logits_fn
    logits = sharding.shard(logits_fn(x), "batch", "length", "vocab").reshape(*tokens.shape, -1)
    return logits, dataclasses.replace(state, cache=cache, position=position + 1, ancestors=ancestors)


class EncoderDecoder(_Transformer):
  """T5 (Raffel et al. 2020) and its descendants: an encoder for the inputs, a decoder for the targets."""

  architecture = ENCODER_DECODER

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    super().__init__(config, rngs)
    self.encoder = Stack(config.of_stack("encoder"), rngs, num_layers=config.num_encoder_layers, causal=False)
    self.decoder = Stack(
      config, rngs, num_layers=config.num_decoder_layers, causal=True, cross=True, only_cross=config.share_stacks
    )

  @property
  def input_embed(self) -> layers.Embed:
    return self.embed if self.encoder.embed is None else self.encoder.embed

  def _body(self) -> Layer | None:
    return self.encoder.own_layers if self.config.share_stacks else None

  def hidden_states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns the encoder's output, which does not depend on the decoder's input; see `ModelProtocol`."""
    x, _, aux = self._encode(self._prompted(batch), every_layer=every_layer, dropout_key=dropout_key)
    return Hidden(self.of_text(x), auxiliary.of_stacks(encoder=aux))

  def attention_map(self, batch: Batch, kind: str, head: jax.Array) -> jax.Array:
    if kind == "encoder":
      return _looked_at(self._encode(self._prompted(batch), probe=attention.AttentionProbe(head))[1])
    return _looked_at(self._run(batch, probe=attention.AttentionProbe(head, cross=kind == "cross"))[1])

  def _encode(self, batch: Batch, **options: Any) -> tuple[jax.Array, Caches | jax.Array | None, Auxiliary]:
    """Returns the encoder's output at all its positions, prompt included, and the other outputs of `Stack`."""
    tokens, positions = batch["encoder_input_tokens"], batch.get("encoder_positions")
    x = self.input_embed(
      tokens,
      positions=self._places(self.encoder, tokens, positions),
      segments=self._types(batch),
      perturbation=batch.get("encoder_perturbation"),
    )
    mask, tasks = self._reading_mask(batch), batch.get("encoder_tasks")
    real = self._real(batch, "encoder", x.shape[1])
    return self.encoder(x, mask=mask, tasks=tasks, real=real, carried=self._carried(batch, "encoder"), **options)

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns the decoder's output, [batch, targets length, embed], for seqio's encoder-decoder features.

    Args:
      batch: encoder_input_tokens, decoder_input_tokens int [batch, length]; packed, also their segment_ids and
        positions. 0 is padding.
      dropout_key: None at evaluation.
    """
    return self._run(batch, dropout_key=dropout_key)[0]

  def _run(
    self, batch: Batch, *, probe: attention.AttentionProbe | None = None, dropout_key: jax.Array | None = None
  ) -> tuple[Hidden, Caches | jax.Array | None]:
    encoder_key, decoder_key = layers.split_key(dropout_key, 2)
    batch = self._prompted(batch)
    (memory, _, read), tokens = self._encode(batch, dropout_key=encoder_key), batch["decoder_input_tokens"]
    places = self._places(self.decoder, tokens, batch.get("decoder_positions"))
    x, kv_cache, written = self.decoder(
      self.embed(tokens, positions=places, decoder_positions=self.decoder.embed),
      mask=decoder_mask(batch, bidirectional_prefix=self.config.bidirectional_prefix),
      body=self._body(),
      memory=memory,
      memory_mask=reading_mask(batch, "decoder"),
      tasks=batch.get("decoder_tasks"),
      probe=probe,
      real=self._real(batch, "decoder", tokens.shape[1]),
      carried=self._carried(batch, "decoder"),
      dropout_key=decoder_key,
    )
    return Hidden(x, auxiliary.of_stacks(encoder=read, decoder=written)), kv_cache

  def start_decode(self, batch: Batch, max_length: int, *, num_beams: int = 1) -> tuple[jax.Array, DecodeState]:
    """Encodes the inputs and allocates a cache of `max_length` positions.

    Args:
      batch: encoder_input_tokens, int [batch, length]; optional decoder_input_tokens, with the start token in
        the first column (default 0); optional decoder_positions, with its position, clipped to learned positions.
      max_length: maximum number of calls of `decode_step`.
      num_beams: sequences per row.

    Returns:
      The start token of each sequence, int32 [batch], and the state.
    """
    batch = self._prompted(batch)
    memory, segments = self._encode(batch)[0], segments_of(batch, "encoder")
    config, batch_size = self.config, memory.shape[0]
    first = batch["decoder_input_tokens"][:, 0] if "decoder_input_tokens" in batch else jnp.zeros(batch_size, jnp.int32)
    if config.block_class.is_recurrent:
      return first, load("t2t.contrib.recurrent.decoding:after_inputs")(self, memory, segments, num_beams)
    room, pals, prefix = max_length * num_beams, self.decoder.pals, self.decoder.prefix
    shape = (config.num_decoder_layers, batch_size, config.kv_heads, room, config.head_dim)
    empty, position = jnp.zeros(shape, config.dtype), jnp.zeros((), jnp.int32)
    cache = attention.KVCache(empty, empty, None if pals is None else pals.room(batch_size, room, config.dtype))
    cache = cache if prefix is None else cache.behind(prefix())
    places = batch.get("decoder_positions")
    if places is not None:
      places = jnp.clip(places[:, 0], 0, (config.most_positions or jnp.iinfo(jnp.int32).max) - max_length)
    return first, DecodeState(
      cache=_shard_cache(cache),
      position=position,
      padding=None if places is None else -places,
      memory=self.decoder.read(memory),
      memory_mask=AttentionMask(jnp.ones((batch_size, num_beams), jnp.int32), segments, query_offset=position),
      ancestors=_no_ancestors(batch_size, num_beams, max_length),
      tasks=_of_rows(batch),
    )


class DecoderOnly(_Transformer):
  """GPT (Radford et al. 2018) and Llama; with `bidirectional_prefix` a prefix language model (Dong et al. 2019; T5)."""

  architecture = DECODER_ONLY

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    super().__init__(config, rngs)
    self.decoder = Stack(config, rngs, num_layers=config.num_decoder_layers, causal=True)
    self.future = load("t2t.models.multi_token:FutureLayers")(config, rngs) if config.future_tokens else None

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns hidden states [batch, length, embed] for seqio's decoder features.

    Args:
      batch: decoder_input_tokens int [batch, length]; packed, also decoder_segment_ids and decoder_positions; with
        inputs, decoder_causal_attention, which is 1 at inputs. Padding ends a sequence.
      dropout_key: None at evaluation.
    """
    return self.hidden_states(batch, dropout_key=dropout_key)

  def hidden_states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> Hidden:
    x, _, aux = self._run(batch, every_layer=every_layer, dropout_key=dropout_key)
    return Hidden(self.of_text(x), auxiliary.of_stacks(decoder=aux))

  def future_states(self, batch: Batch, hidden: Hidden, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns states that predict later tokens, [future tokens, batch, length, embed]; see `multi_token.FutureLayers`.

    Args:
      batch: argument of `hidden`.
      hidden: result of `hidden` on this batch.
      dropout_key: None at evaluation.
    """
    assert self.future is not None
    last_input = hidden.aux.states["decoder/last_input"]
    batch = self._prompted(batch)
    mask = decoder_mask(batch, bidirectional_prefix=self.config.bidirectional_prefix)
    real = self._real(batch, "decoder", last_input.shape[1])
    states, _ = self.future(self.decoder, last_input, mask=mask, real=real, dropout_key=dropout_key)
    return self.of_text(states)

  def attention_map(self, batch: Batch, kind: str, head: jax.Array) -> jax.Array:
    return _looked_at(self._run(batch, probe=attention.AttentionProbe(head))[1])

  def _run(self, batch: Batch, **options: Any) -> tuple[jax.Array, Caches | jax.Array | None, Auxiliary]:
    batch = self._prompted(batch)
    tokens = batch["decoder_input_tokens"]
    places = self._places(self.decoder, tokens, batch.get("decoder_positions"))
    x = self.embed(tokens, positions=places, perturbation=batch.get("decoder_perturbation"))
    if self.config.embedding_dropout and options.get("dropout_key") is not None:
      x = load("t2t.contrib.recurrent.words:drop_tokens")(x, tokens, self.config, options["dropout_key"])
    mask = decoder_mask(batch, bidirectional_prefix=self.config.bidirectional_prefix)
    real = self._real(batch, "decoder", x.shape[1])
    beside = dict(tasks=batch.get("decoder_tasks"), real=real, carried=self._carried(batch, "decoder"))
    return self.decoder(x, mask=mask, **beside, **options)

  def start_decode(
    self, batch: Batch, max_length: int, *, num_beams: int = 1, with_future: bool = False
  ) -> tuple[jax.Array, DecodeState]:
    """Runs the prompts and allocates a cache of `max_length` positions after the longest possible prompt.

    Prompts are right-aligned, so that all sequences continue at the same position.

    Args:
      batch: decoder_input_tokens int [batch, length] and decoder_causal_attention, which is 1 at the prompt (including
        the start token). Alternatively decoder_segment_ids, 1 at the prompt, for causal attention even with
        `bidirectional_prefix`. Without both, the prompt is the first token.
      max_length: maximum number of calls of `decode_step`.
      num_beams: sequences per row.
      with_future: whether to run the layers that predict later tokens, for `extend`.

    Returns:
      The last token of each prompt, int32 [batch], as input of `decode_step`, and the state.
    """
    batch = self._prompted(batch)
    tokens = batch["decoder_input_tokens"]
    prompt = batch.get("decoder_causal_attention")
    both_ways = self.config.bidirectional_prefix and prompt is not None  # as in training
    prompt = batch.get("decoder_segment_ids") if prompt is None else prompt
    if prompt is None:
      tokens = tokens[:, : self.embed.prompt_ids.size + 1]
      prompt = jnp.ones_like(tokens)
    width = tokens.shape[1]
    padding = width - jnp.sum(prompt, axis=1)
    columns = jnp.arange(width)[None, :] - padding[:, None]
    tokens = jnp.take_along_axis(tokens, jnp.maximum(columns, 0), axis=1)
    real = (columns >= 0).astype(jnp.int32)
    if self.config.block_class.is_recurrent:
      return tokens[:, -1], load("t2t.contrib.recurrent.decoding:start")(self, tokens, real, num_beams)
    # The first step runs the prompt's last token again, to compute its logits, so the cache excludes it.
    room = max_length * num_beams
    segments = jnp.pad(real[:, :-1], [(0, 0), (0, room)], constant_values=1)
    positions, prefix = jnp.maximum(columns, 0), real if both_ways else None
    mask = AttentionMask(real, real, prefix=prefix, positions=positions, causal=True)
    _, cache, aux = self.decoder(
      self.embed(tokens, positions=positions + self.decoder.front),
      mask=mask,
      tasks=_of_rows(batch),
      real=real > 0 if self.config.reads_real else None,
      keep_cache=True,
    )
    make_room = lambda x: jnp.pad(x[:, :, :, :-1], [(0, 0), (0, 0), (0, 0), (0, room), (0, 0)])
    future = None
    if with_future:
      assert self.future is not None
      future = self.future(self.decoder, aux.states["last_input"], mask=mask)[1]
      future = _shard_cache(jax.tree.map(make_room, future))
    return tokens[:, -1], DecodeState(
      cache=_shard_cache(jax.tree.map(make_room, cache)),
      position=jnp.asarray(width - 1, jnp.int32),
      segments=segments,
      padding=padding,
      ancestors=_no_ancestors(tokens.shape[0], num_beams, max_length),
      tasks=_of_rows(batch),
      future=future,
    )


class EncoderOnly(_Transformer):
  """BERT (Devlin et al. 2019), RoBERTa, ALBERT, ModernBERT: bidirectional attention over a text.

  With `two_streams` and encoder_ranks, a second stream of states at the same positions attends to tokens of lower ranks
  only, not to the position's own. Its states are the model's output (XLNet, Yang et al. 2019). With `block_length` each
  token attends to its own and earlier blocks; in training a second stream has the noisy tokens, see `text_blocks`.
  """

  architecture = ENCODER_ONLY

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    super().__init__(config, rngs)
    self.encoder = Stack(config, rngs, num_layers=config.num_encoder_layers, causal=False)

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns hidden states [batch, length, embed] for seqio's encoder features.

    Args:
      batch: encoder_input_tokens int [batch, length]; optional encoder_token_types int [batch, length], the segment
        type of each token, and encoder_ranks, see `AttentionMask.ranks`; packed, also encoder_segment_ids and
        encoder_positions. 0 is padding.
      dropout_key: None at evaluation.
    """
    return self._states(batch, predicts=True, dropout_key=dropout_key)

  def hidden_states(self, batch: Batch, *, every_layer: bool = False, dropout_key: jax.Array | None = None) -> Hidden:
    return self._states(batch, every_layer=every_layer, dropout_key=dropout_key)

  def _states(self, batch: Batch, **options: Any) -> Hidden:
    batch = self._prompted(batch)
    read = self.read(self._embedded(batch), batch, **options)
    return dataclasses.replace(read, x=self.of_text(read.x))

  def run_layers(self, batch: Batch, x: jax.Array | None, layer_loop: LayerLoop) -> jax.Array:
    """Returns the normed states after `layer_loop`, see `Stack`; prompts are included.

    Args:
      batch: model features.
      x: states before some layer, [batch, prompt and length, embed]; None: embedded tokens.
      layer_loop: runs some of the layers.
    """
    batch = self._prompted(batch)
    x = self._embedded(batch) if x is None else x
    return self._run(x, batch, self.encoder, layer_loop=layer_loop)[0]

  def attention_map(self, batch: Batch, kind: str, head: jax.Array) -> jax.Array:
    batch = self._prompted(batch)
    return _looked_at(self._run(self._embedded(batch), batch, self.encoder, probe=attention.AttentionProbe(head))[1])

  def _embedded(self, batch: Batch) -> jax.Array:
    places = self._places(self.encoder, batch["encoder_input_tokens"], batch.get("encoder_positions"))
    x = self.look_up(batch, places=places)
    if self._denoises(batch):
      x = jnp.concatenate([self.look_up(load("t2t.models.text_blocks:clean")(batch), places=places), x], axis=1)
    elif self._has_two_streams(batch):
      tokens, places = batch["encoder_input_tokens"], batch.get("encoder_positions") if places is None else places
      x = jnp.concatenate([x, self.embed.unread(tokens, positions=places, segments=self._types(batch))], axis=1)
    return self.embed.project(x)

  def _has_two_streams(self, batch: Batch) -> bool:
    return self._denoises(batch) or (self.config.two_streams and "encoder_ranks" in batch)

  def _denoises(self, batch: Batch) -> bool:
    return self.config.block_length > 0 and "encoder_noise_levels" in batch

  def look_up(
    self,
    batch: Batch,
    *,
    embed: layers.Embed | None = None,
    table: nnx.Param | None = None,
    places: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the token embeddings, [batch, length, embedding width], from this model's or another embedding.

    Args:
      batch: model features.
      embed: another embedding; None: this model's.
      table: another token table; None: the embedding's.
      places: positions of the tokens; None: the batch's positions.
    """
    places = batch.get("encoder_positions") if places is None else places
    tokens, types, noise = batch["encoder_input_tokens"], self._types(batch), batch.get("encoder_perturbation")
    return (embed or self.embed).look_up(tokens, positions=places, segments=types, perturbation=noise, table=table)

  def read(
    self,
    x: jax.Array,
    batch: Batch,
    *,
    encoder: Stack | None = None,
    every_layer: bool = False,
    predicts: bool = False,
    dropout_key: jax.Array | None = None,
  ) -> Hidden:
    """Returns hidden states of embedded tokens, [batch, length, embed], by this model's layers or another encoder's.

    Args:
      x: embedded tokens.
      batch: model features.
      encoder: another encoder; None: this model's.
      every_layer, predicts, dropout_key: see `Stack`.
    """
    options = {"every_layer": every_layer, "predicts": predicts, "dropout_key": dropout_key}
    x, _, aux = self._run(x, batch, encoder or self.encoder, **options)
    return Hidden(x, auxiliary.of_stacks(encoder=aux))

  def _run(
    self, x: jax.Array, batch: Batch, encoder: Stack, **options: Any
  ) -> tuple[jax.Array, Caches | jax.Array | None, Auxiliary]:
    length = x.shape[1] // (2 if self._has_two_streams(batch) else 1)
    mask, real = self._reading_mask(batch), self._real(batch, "encoder", length)
    if self.config.relative_segments:
      mask = dataclasses.replace(mask, token_types=batch.get("encoder_token_types"))
    if self.config.block_length:
      masked = load("t2t.models.text_blocks:masked")
      mask = masked(mask, self.config.block_length, prompt=self.embed.prompt_ids.size, denoised=self._denoises(batch))
    elif self._has_two_streams(batch):
      mask = mask.in_two_streams()
    beside = dict(tasks=batch.get("encoder_tasks"), carried=self._carried(batch, "encoder"))
    if mask.streams == 1:
      return encoder(x, mask=mask, real=real, **beside, **options)
    real = None if real is None else jnp.concatenate([real, real], axis=1)
    x, kept, aux = encoder(x, mask=mask, real=real, **beside, **options)
    return x[..., length:, :], kept, aux


Transformer = EncoderDecoder | DecoderOnly | EncoderOnly  # each is a `Model`
MODELS = (EncoderDecoder, DecoderOnly, EncoderOnly)
_MODULES = {module.architecture.name: module for module in MODELS}


def build(config: TransformerConfig, rngs: nnx.Rngs) -> Transformer:
  """Returns a new model of the class that `config.architecture` names."""
  return _MODULES[config.architecture](config, rngs)
