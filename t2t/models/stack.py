"""The Transformer block, and a stack of blocks that runs as one layer scan, for encoders and decoders."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any, ClassVar, Protocol, TypeVar

from flax import nnx
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from t2t import sharding
from t2t.models import attention, auxiliary, layers, remat
from t2t.models import positions as positions_lib
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import BESIDE_FIRST, EMBEDDINGS, RECURRENCES, TransformerConfig
from t2t.models.feed_forward import Alternating
from t2t.models.masks import AttentionMask
from t2t.runtime import lazy_table

T = TypeVar("T")
TaskAttention = Callable[..., tuple[jax.Array, attention.KVCache]]  # see `Layer.__call__`


class LearnedKeys(Protocol):
  """A module that returns learned keys and values of all layers, which precede a row's own."""

  length: int

  def __call__(self) -> attention.KVCache:
    """Returns keys and values, [layers, kv heads, length, kv]."""


class Recurrence(Protocol):
  """A module that changes inputs and outputs of the layers of a stack, with a state of its own type in between.

  Its class also has `terms` and `multiply_adds`, as `FeedForward` has.

  adds_signals: whether `enter` adds to the hidden states, which are not the output of a norm then.
  """

  adds_signals: ClassVar[bool]

  def begin(self, x: jax.Array) -> object:
    """Returns the state before the first layer."""

  def state(self, progress: object) -> jax.Array:
    """Returns the hidden states, [batch, length, embed]."""

  def prepare(self, positions: jax.Array) -> object:
    """Returns values common to all layers, of positions, int [batch or 1, length], counted in each text."""

  def enter(self, progress: object, index: jax.Array | int, prepared: object) -> jax.Array:
    """Returns the input of the layer with this index."""

  def leave(self, progress: object, x: jax.Array, y: jax.Array) -> object:
    """Returns the state after a layer with input `x` and output `y`."""

  def finish(self, progress: object, real: jax.Array | None) -> auxiliary.Hidden:
    """Returns the output after the last layer, before the stack's norm, with auxiliary outputs of the stack."""


class SmallAttentions(Protocol):
  """A module with a small attention in parallel to each layer, see `adapters.pals.Pals`."""

  @property
  def of_layers(self) -> tuple[jax.Array, ...]:
    """Returns the parameters of all layers, stacked along a leading axis."""

  def room(self, batch_size: int, length: int, dtype: str) -> attention.KVCache:
    """Returns an empty cache of all layers."""

  __call__: TaskAttention


class BesideFirst(Protocol):
  """A branch beside an encoder's first layer, a row of `config.BESIDE_FIRST`; built from a config and random keys."""

  def __call__(
    self, first: jax.Array, x: jax.Array, *, mask: AttentionMask, dropout_key: jax.Array | None = None
  ) -> jax.Array:
    """Returns the input of the second layer, from embedded tokens and the first layer's output."""


class Layer(nnx.Module):
  """Residual block: self-attention, optional cross-attention, feed-forward; norms before or after the branches.

  With `only_cross` it has just a cross-attention, and another layer has the rest (see `__call__`). A stack of layers
  with different feed-forward layers sets `mlp` itself.

  is_recurrent: whether the block has states instead of attention, and no norms.
  """

  is_recurrent: ClassVar[bool] = False

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, cross: bool, only_cross: bool = False):
    self.dropout_rate = config.dropout_rate
    self.broadcast_axis = -2 if config.broadcast_dropout else None
    self.post_norm, self.memory_reuse = config.post_norm, config.memory_reuse
    if not only_cross:
      self.self_attention_norm = layers.Norm(config, config.embed_dim)
      self.self_attention = config.attention_class(config, rngs)
    if cross:
      self.cross_attention_norm = layers.Norm(config, config.embed_dim)
      self.cross_attention = attention.Attention(config, rngs, cross=True)
    if not only_cross:
      self.mlp_norm = layers.Norm(config, config.embed_dim)
      self.mlp: Any = config.feed_forward_class(config, rngs) if len(config.feed_forward_pattern) == 1 else None
    branches = (*(() if only_cross else ("self_attention", "mlp")), *(("cross_attention",) if cross else ()))
    branch_norms = (
      nnx.Dict({name: layers.Norm(config, config.embed_dim) for name in branches}) if config.branch_norm else None
    )
    self.branch_norms = branch_norms
    self.adapters: nnx.Dict | None = None  # branch -> adapter after the branch; only in adapted models

  def _branch_input(self, x: jax.Array, norm: layers.Norm, is_normed: jax.Array | bool = False) -> jax.Array:
    """Returns the input of a branch from the residual stream `x`, which may already be normed."""
    normed = x if self.post_norm else norm(x)
    return sharding.join_residual(normed if is_normed is False else jnp.where(is_normed, x, normed))

  def _add(
    self, x: jax.Array, update: jax.Array, branch: str, key: jax.Array | None, beside: jax.Array | None = None
  ) -> jax.Array:
    """Adds a branch's output and `beside` to the residual stream `x`; applies the norm of post-norm models."""
    update = sharding.split_residual(update)
    update = update if self.branch_norms is None else self.branch_norms[branch](update)
    update = layers.dropout(update, self.dropout_rate, key, broadcast_axis=self.broadcast_axis)
    if self.adapters is not None and branch in self.adapters:
      update = self.adapters[branch](update)
    x = x + update if beside is None else x + update + sharding.split_residual(beside)
    return getattr(self, f"{branch}_norm")(x) if self.post_norm else x

  def _add_memory(
    self,
    x: jax.Array,
    memory: jax.Array | attention.KVCache,
    mask: AttentionMask | None,
    positions: positions_lib.Positions,
    keys: list[jax.Array | None],
    probe: attention.AttentionProbe | None,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns `x` plus the cross-attention over `memory`, and the attention probabilities if the probe reads them."""
    assert mask is not None
    normed = self._branch_input(x, self.cross_attention_norm)
    if not isinstance(memory, attention.KVCache):
      memory = attention.KVCache(*self.cross_attention.keys_and_values(memory, positions, dropout_key=keys[0]))
    options = {"mask": mask, "positions": positions}
    update = self.cross_attention(normed, memory.keys, memory.values, **options, dropout_key=keys[0])
    seen: Any = None
    if probe is not None and probe.cross:
      seen = probe.at(self.cross_attention, normed, memory.keys, memory.values, **options)
    return self._add(x, update, "cross_attention", keys[1]), seen

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    positions: positions_lib.Positions = positions_lib.NOWHERE,
    is_normed: jax.Array | bool = False,
    context: jax.Array | None = None,
    attention_input: jax.Array | None = None,
    memory: jax.Array | attention.KVCache | None = None,
    memory_mask: AttentionMask | None = None,
    cross_positions: positions_lib.Positions = positions_lib.NOWHERE,
    cross_layer: "Layer | None" = None,
    cache: attention.KVCache | None = None,
    prefix_kv: attention.KVCache | None = None,
    task_attention: TaskAttention | None = None,
    probe: attention.AttentionProbe | None = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, attention.KVCache | jax.Array | None, Auxiliary]:
    """Maps [batch, length, embed] to the same shape; also returns the self-attention's cache and auxiliary outputs.

    Args:
      x: residual stream.
      mask, positions: mask and positions of the self-attention.
      is_normed: bool [], whether `x` is the output of a norm, so that the self-attention reads it directly.
      context: [batch, length, embed], residual stream from which the self-attention takes keys and values; None: `x`.
      attention_input: input of the self-attention, with its width; None: the residual stream, normed.
      memory: input of the cross-attention, [batch, length, embed], or its keys and values.
      memory_mask, cross_positions: mask and positions of the cross-attention.
      cross_layer: layer with the cross-attention, if this layer has none.
      cache: keys and values of earlier positions; the keys and values of `x` are added.
      prefix_kv: learned keys and values, [kv heads, few, kv], before the keys of `x`; a cache already has them.
      task_attention: a small parallel attention, (self-attention's input, mask, cache) -> (update, keys and values).
        The update is added together with the update of the feed-forward layer.
      probe: selects attention probabilities, returned instead of keys and values, float32 [batch, query, key].
      real: see `FeedForward`.
      carried: states of the previous rows: the memory, see `models.layer_memory`, and those of the `FeedForward`.
      dropout_key: None at evaluation.
    """
    keys = layers.split_key(dropout_key, 6)
    normed = self._branch_input(x, self.self_attention_norm, is_normed) if attention_input is None else attention_input
    read = normed if context is None else self._branch_input(context, self.self_attention_norm, is_normed)
    others, states = None, {}
    read = read[:, : mask.num_keys(x.shape[1])]
    if carried:
      from t2t.models import layer_memory  # few models carry states

      past, others = layer_memory.split(carried)
      if past is not None:
        states = {layer_memory.NAME: layer_memory.pushed(past, x[:, : read.shape[1]], real, reuse=self.memory_reuse)}
        before = self._branch_input(jax.lax.stop_gradient(past), self.self_attention_norm, is_normed)
        read = jnp.concatenate([before.astype(read.dtype), read], axis=1)
    kv = self.self_attention.keys_and_values(read, positions, dropout_key=keys[0])
    kv = attention.KVCache(*kv)
    kv = kv if prefix_kv is None else kv.behind(prefix_kv)
    written = None if cache is None else cache.beside
    beside, task_cache = (None, None) if task_attention is None else task_attention(normed, mask=mask, cache=written)
    cache = kv if cache is None else cache.write(kv.keys, kv.values, mask.key_index(cache.keys.shape[2]))
    update = self.self_attention(normed, cache.keys, cache.values, mask=mask, positions=positions, dropout_key=keys[0])
    seen: Any = None
    if probe is not None and not probe.cross:
      seen = probe.at(self.self_attention, normed, cache.keys, cache.values, mask=mask, positions=positions)
    x = self._add(x, update, "self_attention", keys[1])
    if memory is not None:
      layer = self if cross_layer is None else cross_layer
      x, crossing = layer._add_memory(x, memory, memory_mask, cross_positions, keys[2:4], probe)
      seen = crossing if seen is None else seen
    beside_rows: dict[str, Any] = {} if others is None else {"carried": others}
    if mask.is_decoding and type(self.mlp).reads_real:
      beside_rows["is_decoding"] = True
    output = auxiliary.hidden_of(self.mlp(self._branch_input(x, self.mlp_norm), keys[4], real=real, **beside_rows))
    x = self._add(x, output.x, "mlp", keys[5], beside)
    aux = dataclasses.replace(output.aux, states={**output.aux.states, **states}) if states else output.aux
    return x, dataclasses.replace(cache, beside=task_cache) if probe is None else seen, aux

  @classmethod
  def multiply_adds(cls, config: TransformerConfig) -> float:
    """Returns multiplications with parameters per position, without cross-attention, for `model_flops`."""
    return config.attention_class.multiply_adds(config) + config.feed_forward_class.multiply_adds(config)

  @classmethod
  def inner_features(cls, config: TransformerConfig) -> float:
    """Returns features per position of matrix outputs between the branches' inputs, except attention's."""
    return config.feed_forward_class.inner_features(config)


Weights = tuple[Layer | None, Layer | None]  # a stack's own layers, and layers shared from another stack
Caches = attention.KVCache | tuple[attention.KVCache, ...]  # with a leading "layers" axis, or one for each layer
LayerLoop = Callable[..., tuple[jax.Array, tuple[Caches | None, jax.Array | None, Auxiliary]]]  # see `Stack.__call__`


def unstack_layers(stacked: T, num_layers: int) -> tuple[T, ...]:
  """Splits a tree of stacked arrays into a tuple of one tree per layer."""
  alternates = lambda x: isinstance(x, Alternating)
  pick = lambda x, index: x.of_layer(index) if alternates(x) else x[index]
  return tuple(jax.tree.map(functools.partial(pick, index=i), stacked, is_leaf=alternates) for i in range(num_layers))


def _in_groups(run: Callable, size: int) -> Callable:
  """Returns a function that runs `size` layers in sequence, from the inputs of one to the stacked inputs of all."""

  def run_group(x, inputs):
    outputs = []
    for layer_inputs in unstack_layers(inputs, size):
      x, (cached, state, aux) = run(x, layer_inputs)
      outputs.append((cached, state, aux))
    cached, states, aux = zip(*outputs, strict=True)
    stacked = jax.tree.map(lambda *values: jnp.stack(values), *zip(cached, states, strict=True))
    return x, (*stacked, auxiliary.of_layers(aux))

  return run_group


def unrolled(num_layers: int, requested: int = 0) -> int:
  """Returns the number of layers per scan iteration; `requested` is `config.model.unroll`.

  A loop on a CPU copies each layer's weights out of the stack, forward and backward: a fifth of a step of T5 small.
  """
  return min(requested or (num_layers if sharding.platform() == "cpu" else 1), num_layers)


def _decode_masks(run_layer: Callable, mask_queries: jax.Array) -> Callable:
  """Returns a function that runs a layer twice, with queries of positions and keys of `x`.

  Source: He et al. 2021, section 3.2, and the released code.
  """

  def run_twice(x, dropout_key):
    keys = layers.split_key(dropout_key, 2)
    queries, _, _ = run_layer(x + mask_queries, context=x, dropout_key=keys[0])
    return run_layer(queries, context=x, dropout_key=keys[1])

  return run_twice


class Stack(nnx.Module):
  """Layers of one shape, each parameter with a leading "layers" axis, run with one `jax.lax.scan`.

  Only one layer is compiled. With `config.share_layers` there is one layer, which runs repeatedly.
  """

  def __init__(
    self,
    config: TransformerConfig,
    rngs: nnx.Rngs,
    *,
    num_layers: int,
    causal: bool,
    cross: bool = False,
    only_cross: bool = False,
  ):
    if config.memory_length or config.memory_reuse:
      from t2t.models import layer_memory

      layer_memory.check(config)
    self.num_layers = num_layers
    self.config = config
    bidirectional = not causal or config.bidirectional_prefix
    self.position_bias = config.position_scheme.stack_parameters(rngs, bidirectional=bidirectional)
    make = lambda key: config.block_class(config, nnx.Rngs(key), cross=cross, only_cross=only_cross)
    key = rngs.params()
    if config.share_layers:
      self.layer = make(key)
    else:
      self.layers = jax.vmap(make)(jax.random.split(key, num_layers))
    beside_first = BESIDE_FIRST[config.beside_first] if config.beside_first and not causal else None
    self.beside_first: BesideFirst | None = None if beside_first is None else beside_first(config, rngs)
    if len(config.feed_forward_pattern) > 1 and not only_cross:
      self.own_layers.mlp = nnx.data(Alternating(config, rngs, num_layers=num_layers))
    has_norm = not (config.post_norm or config.block_class.is_recurrent)
    self.norm = layers.Norm(config, config.embed_dim) if has_norm else None
    row = config.recurrence_row
    self.recurrence: Recurrence | None = RECURRENCES[row](config, rngs, num_layers=num_layers) if row else None
    # Parts of the embedding that the other stack does not have.
    own_part: Any = layers.DecoderPositions if causal else EMBEDDINGS[config.embedding]
    has_part = config.own_decoder_positions if causal else config.own_encoder_embedding
    self.embed: Any = own_part(config, rngs) if has_part else None
    self.prefix: LearnedKeys | None = None  # adapted models: learned keys before a row's own
    self.pals: SmallAttentions | None = None  # adapted models with several tasks
    self.observation: Any = None  # `observation.Observation`: outputs of every layer, for a loss that reads them

  @property
  def front(self) -> int:
    """Returns the number of learned keys before a row's own; they take the first positions."""
    return 0 if self.prefix is None else self.prefix.length

  @property
  def own_layers(self) -> Layer:
    """Returns the stacked layers, or the single shared layer."""
    return self.layer if self.config.share_layers else self.layers

  def weights(self, body: Layer | None = None) -> Weights:
    """Returns the weights that the scan iterates over; a shared layer is not among them."""
    return (None, None) if self.config.share_layers else (self.layers, body)

  def ready_weights(self, body: Layer | None = None) -> Weights | tuple[Weights, ...]:
    """Returns `weights` prepared for many calls: matrices in the activations' dtype, on a CPU split by layer."""
    # Vectors, which have two dimensions here, stay float32, because norms are computed in float32.
    exact = lambda x: isinstance(x, nnx.Variable) and x.get_metadata().get("keeps_float32", False)
    cast = lambda x: x if exact(x) or x.ndim < 3 or x.dtype == jnp.int8 else x.astype(self.config.dtype)
    weights = jax.tree.map(cast, self.weights(body), is_leaf=exact)
    return unstack_layers(weights, self.num_layers) if sharding.platform() == "cpu" else weights

  def read(self, memory: jax.Array) -> attention.KVCache:
    """Returns each layer's cross-attention keys and values of [batch, length, embed], with a leading "layers" axis."""
    positions = self.config.position_scheme.cross_positions(None, memory.shape[1])
    read_layer = lambda attend: attention.KVCache(*attend.keys_and_values(memory, positions))
    stacked = self.own_layers.cross_attention
    if self.config.share_layers:
      return jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_layers, *x.shape)), read_layer(stacked))
    return jax.lax.scan(
      lambda _, layer: (None, read_layer(layer)),
      None,
      stacked,
      unroll=unrolled(self.num_layers, self.config.unroll),
    )[1]

  def is_normed(self, index: jax.Array | int) -> jax.Array | bool:
    """Returns whether a layer's input is the output of a norm, as for ModernBERT's first layer (Warner et al. 2024)."""
    if self.recurrence is not None and self.recurrence.adds_signals:
      return False
    return self.config.embedding_norm and not self.config.post_norm and index == 0

  def __call__(
    self,
    x: jax.Array,
    *,
    mask: AttentionMask,
    body: Layer | None = None,
    weights: Weights | tuple[Weights, ...] | None = None,
    memory: jax.Array | Caches | None = None,
    memory_mask: AttentionMask | None = None,
    cache: Caches | None = None,
    tasks: jax.Array | None = None,
    keep_cache: bool = False,
    every_layer: bool = False,
    predicts: bool = False,
    probe: attention.AttentionProbe | None = None,
    real: jax.Array | None = None,
    carried: Mapping[str, jax.Array] | None = None,
    layer_loop: LayerLoop | None = None,
    dropout_key: jax.Array | None = None,
  ) -> tuple[jax.Array, Caches | jax.Array | None, Auxiliary]:
    """Maps [batch, length, embed] to the same shape, normed; also returns all layers' cache and auxiliary outputs.

    With `every_layer` the result is [layers + 1, batch, length, embed]: the embedded tokens and each layer's output. In
    pre-norm models only the last of them is normed.

    Args:
      x: embedded tokens.
      mask: mask of the self-attention.
      body: stacked layers with the self-attention and feed-forward layers, if this stack has only cross-attentions.
      weights: result of `weights` or `ready_weights`, if already computed.
      memory: the encoder's output, or its keys and values.
      memory_mask: mask of the cross-attention.
      cache: keys and values of earlier positions.
      tasks: task id of each position, int [batch, length], or of each row, [batch, 1]; for adapted models with several
        tasks.
      keep_cache: whether to return keys and values of all layers.
      every_layer: see above.
      predicts: whether vocabulary logits read the result; see `Scheme.decodes_masks`.
      probe: selects attention probabilities, returned instead of a cache, float32 [layers, batch, query, key].
      real: see `FeedForward`.
      carried: name -> [layers, batch, ...], see `Layer`.
      layer_loop: runs the layers instead of a scan, for early exit: (run, `x`, stacked inputs) -> (states, outputs).
      dropout_key: None at evaluation.
    """
    config = self.config
    embed_key, layers_key, out_key = layers.split_key(dropout_key, 3)
    beside_key = None if dropout_key is None else jax.random.fold_in(dropout_key, 1)
    apart = isinstance(cache, tuple)
    mask = dataclasses.replace(mask, front=self.front)
    if carried:
      from t2t.models import layer_memory

      mask = layer_memory.mask_with(mask, carried, x.shape[1])
    num_keys = self.front + mask.memory + mask.num_keys(x.shape[1])
    key_length = num_keys if cache is None else (cache[0] if apart else cache).keys.shape[-2]
    memory_is_cached = isinstance(memory, attention.KVCache | tuple)
    prefix: Any = self.prefix
    layer_inputs: dict[str, Any] = {
      "index": range(self.num_layers) if apart else jnp.arange(self.num_layers),
      "weights": self.weights(body) if weights is None else weights,
      "key": None if layers_key is None else jax.random.split(layers_key, self.num_layers),
      "cache": cache,
      "prefix_kv": prefix() if self.front and cache is None else None,
      "memory": memory if memory_is_cached else None,
      "task_attention": None if self.pals is None else self.pals.of_layers,
      "carried": carried or None,
    }
    if apart and self.pals is not None:
      layer_inputs["task_attention"] = unstack_layers(layer_inputs["task_attention"], self.num_layers)

    rows: dict[str, Any] = {"mask": mask, "memory_mask": memory_mask, "tasks": tasks, "real": real}
    rows["memory"] = None if memory_is_cached else memory
    read = memory[0] if isinstance(memory, tuple) else memory
    num_read = 0 if read is None else (read.keys if isinstance(read, attention.KVCache) else read).shape[-2]
    recurrence: Any = self.recurrence
    prepared = recurrence and recurrence.prepare(self._positions(x, mask))
    # What inference keeps of each layer is small in training, or absent.
    is_inference = cache is not None or memory_is_cached or keep_cache or probe is not None
    observation = None if is_inference else self.observation
    probe, every_state = probe or observation, every_layer or (observation is not None and observation.hidden)

    def run_layers(progress, layer_inputs, rows, position_bias):
      """Runs consecutive layers on some rows of the batch."""
      x, scheme = recurrence.state(progress) if recurrence else progress, config.position_scheme
      drops = dropout_key is not None
      call = positions_lib.Call(x.shape[0], x.shape[1], key_length, rows["mask"], self.front, drops=drops)
      positions = scheme.positions(position_bias, call)
      mask_queries = scheme.mask_queries(position_bias, call) if predicts and scheme.decodes_masks else None
      crossing = (
        scheme.cross_positions(rows["memory_mask"], num_read, front=self.front) if num_read else positions_lib.NOWHERE
      )
      run_layer = functools.partial(run, rows, positions, crossing, mask_queries)
      if layer_loop is not None:
        return layer_loop(run_layer, progress, layer_inputs)
      return self._loop(run_layer, progress, layer_inputs, apart=apart)

    def run(rows, positions, crossing, mask_queries, progress, inputs):
      x = recurrence.enter(progress, inputs["index"], prepared) if recurrence else progress
      entered = x = checkpoint_name(x, "input")
      layer, borrowed = (self.layer, body) if config.share_layers else inputs["weights"]
      index, key = inputs["index"], inputs["key"]
      run_layer = functools.partial(
        layer if borrowed is None else borrowed,
        mask=rows["mask"],
        positions=positions(index),
        is_normed=self.is_normed(index),
        memory=inputs["memory"] if memory_is_cached else rows["memory"],
        memory_mask=rows["memory_mask"],
        cross_positions=crossing,
        cross_layer=layer,
        cache=inputs["cache"],
        prefix_kv=inputs["prefix_kv"],
        task_attention=None
        if self.pals is None
        else functools.partial(self.pals, layer_matrices=inputs["task_attention"], tasks=rows["tasks"]),
        probe=probe,
        real=rows["real"],
        carried=inputs["carried"],
      )
      if config.layer_drop and key is not None:
        run_layer = lazy_table.load("t2t.models.layer_drop:sometimes")(run_layer, config.layer_drop, key)
      if mask_queries is None:
        output, cached, aux = run_layer(x, dropout_key=key)
      else:
        output, cached, aux = jax.lax.cond(
          index == self.num_layers - 1,
          _decode_masks(run_layer, mask_queries),
          lambda x, key: run_layer(x, dropout_key=key),
          x,
          key,
        )
      if self.beside_first is not None:
        beside = functools.partial(self.beside_first, first, mask=mask, dropout_key=beside_key)
        output = jax.lax.cond(index == 0, beside, lambda output: output, output)
      progress = recurrence.leave(progress, entered, output) if recurrence else output
      output = recurrence.state(progress) if recurrence else output
      if observation is not None:
        aux, cached = observation.added(aux, cached), None
      return progress, (cached if keep_cache or probe is not None else None, output if every_state else None, aux)

    broadcast_axis = -2 if config.broadcast_dropout else None
    x = layers.dropout(x, config.dropout_rate, embed_key, broadcast_axis=broadcast_axis)
    x = sharding.split_residual(x)
    first = x
    progress = recurrence.begin(x) if recurrence else x
    stages, parts = sharding.num_shards("stages"), sharding.num_shards("microbatch")
    run_pipeline: Callable = run_layers
    if stages > 1 and not is_inference:
      from t2t.models import stage_pipeline  # few runs have stages

      schedule = stage_pipeline.of_batch(config, x.shape[0], stages=stages, parts=parts)
      if schedule is not None:
        policy = None if config.remat == "none" else remat.policy(config.remat, config.quantization)
        run_pipeline = functools.partial(stage_pipeline.run, run_layers, plan=schedule, remat_policy=policy)
    result: tuple[Any, Any] = run_pipeline(progress, layer_inputs, rows, self.position_bias)
    progress, (cached, states, aux) = result
    output = recurrence.finish(progress, real) if recurrence else auxiliary.Hidden(progress)
    x, aux = output.x, auxiliary.with_outputs(auxiliary.of_layers(aux), output.aux)
    x = x if self.norm is None else self.norm(x)
    if config.broadcast_dropout:
      x = layers.dropout(x, config.dropout_rate, out_key, broadcast_axis=-2)
    x = sharding.join_residual(x)
    every = jnp.concatenate([first[None], states[:-1], x[None]]) if every_state else x
    if observation is not None and observation.hidden:
      aux = observation.with_hidden(aux, every)
    x = every if every_layer else x
    return x, cached if keep_cache or probe is not None else None, aux

  def _positions(self, x: jax.Array, mask: AttentionMask) -> jax.Array:
    """Returns the position of each query in its text, int [batch or 1, length], after learned keys."""
    return self.front + (mask.query_places(x.shape[1])[None] if mask.positions is None else mask.positions)

  def _loop(self, run: Callable, x: Any, layer_inputs: dict[str, Any], *, apart: bool) -> tuple[Any, Any]:
    """Runs layers in sequence; `layer_inputs`: argument -> values of these layers, stacked, or tuples if `apart`."""
    if self.config.remat != "none":
      # The scan already prevents XLA from merging the recomputation with the forward pass.
      run = jax.checkpoint(run, policy=remat.policy(self.config.remat, self.config.quantization), prevent_cse=False)

    if not apart:
      num_layers = len(layer_inputs["index"])
      # Layers of one pattern are one iteration.
      size = len(self.config.feed_forward_pattern)
      if size == 1:
        return jax.lax.scan(run, x, layer_inputs, unroll=unrolled(num_layers, self.config.unroll))
      groups = num_layers // size
      grouped = jax.tree.map(lambda x: x.reshape(groups, -1, *x.shape[1:]), layer_inputs)
      unroll = unrolled(groups, -(-self.config.unroll // size))
      x, (cached, states, aux) = jax.lax.scan(_in_groups(run, size), x, grouped, unroll=unroll)
      cached, states, of_aux = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (cached, states, dict(aux.states)))
      return x, (cached, states, dataclasses.replace(aux, states=of_aux))
    outputs = []
    for index in range(self.num_layers):
      x, output = run(x, {name: None if part is None else part[index] for name, part in layer_inputs.items()})
      outputs.append(output)
    # Same structure as from a scan: a tree of tuples, not a tuple of trees.
    return x, tuple(zip(*outputs, strict=True))
