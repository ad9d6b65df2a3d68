"""Helpers for tests: a model that compiles in a second or two, batches for it, and inspection of programs."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import importlib.util
import pathlib
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import losses
from t2t.configuration.schema import OptimizerConfig
from t2t.models import layers, positions, transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import path_name

EOS = 1


def config(**fields) -> TransformerConfig:
  """Returns a T5 1.1 with distinct sizes that divide over 8 devices along split axes."""
  sizes = dict(vocab_size=40, embed_dim=16, num_heads=4, head_dim=6, mlp_dim=32)
  layers = dict(num_encoder_layers=2, num_decoder_layers=3)
  other_fields = dict(architecture="encoder_decoder", dtype="float32")
  positions = dict(relative_position_buckets=8, relative_position_max_distance=6)
  return TransformerConfig(**(sizes | layers | positions | other_fields | fields))


def encoder(**fields) -> TransformerConfig:
  """Returns an encoder-only model with parts other than T5's."""
  other_fields = dict(norm="layer", embedding_norm=True, scale_attention=True, logits_transform=True, tied_logits=True)
  layers = dict(num_encoder_layers=3, num_decoder_layers=0)
  return config(**(dict(architecture="encoder_only", broadcast_dropout=False) | layers | other_fields | fields))


def decoder(**fields) -> TransformerConfig:
  """Returns a decoder-only model."""
  return config(**(dict(architecture="decoder_only", num_encoder_layers=0, broadcast_dropout=False) | fields))


_LEARNED = dict(positions="learned", max_length=40)
_ROTARY = dict(positions="rotary", scale_attention=True, num_kv_heads=2)
_BERT = _LEARNED | dict(post_norm=True, biases=True, mlp_activation="gelu", segment_types=2)
_DISENTANGLED = dict(positions="disentangled", relative_position_buckets=12, relative_position_max_distance=6)
_FUNCTIONAL = dict(positions="functional_relative", relative_position_max_distance=3)
_UNIVERSAL = dict(recurrence="universal", share_layers=True, positions="none", halting_threshold=0.9)
_MOBILE = dict(norm="affine", logits_norm="layer", embedding="trigram", embedding_dim=6, output_embedding_dim=16)
_MOBILE |= dict(block="bottleneck", bottleneck_dim=8, mlp_activation="relu")

_RECURRENT = dict(block="recurrent", positions="none")
_ELMO = dict(feed_forward="lstm", recurrent_hidden=24, recurrent_projection=True, recurrent_residual=True)
_MOE = dict(feed_forward="moe", moe_experts=4)
_XL = dict(positions="relative_xl", scale_attention=True, attention_biases=False)
_XLNET = dict(segment_types=0, logits_transform=False, embedding_norm=False, max_length=0)

# Kinds of models: each config switch is set in one model of each architecture that has it. Initial weights are T5's,
# because BERT's and GPT-2's are so small that outputs hardly depend on anything.
KINDS: dict[str, TransformerConfig] = {
  "t5_1_1": config(),
  "t5_1_0": config(mlp_activation="relu", tied_logits=True),
  "modern_t5": config(qk_norm=True, mlp_activation="gated_silu", **_ROTARY),
  "red_llm": config(
    rotary_cross_attention=True, qk_norm=True, tied_logits=True, mlp_activation="gated_silu", **_ROTARY
  ),
  "gemma_t5": config(
    norm_offset=True, branch_norm=True, scale_embedding=True, attention_softcap=1.5, logits_softcap=2.0, **_ROTARY
  ),
  "t5gemma": config(
    **dict(norm_offset=True, branch_norm=True, scale_embedding=True, tied_logits=True, attention_softcap=1.5),
    **dict(attention_window=2, global_attention_every=2, global_attention_first=1, own_encoder_embedding=True),
    **dict(encoder_embed_dim=24, encoder_num_heads=8, encoder_num_kv_heads=4, encoder_head_dim=4, encoder_mlp_dim=40),
    encoder_attention_window=3,
    **_ROTARY,
  ),
  "shared_stacks": config(share_stacks=True, num_encoder_layers=3),
  "shared_everything": config(
    share_stacks=True, share_layers=True, num_encoder_layers=3, post_norm=True, norm="layer", biases=True, **_LEARNED
  ),
  "bert2bert": config(
    **(_BERT | dict(norm="layer", embedding_norm=True, scale_attention=True, logits_transform=True, tied_logits=True)),
    broadcast_dropout=False,
  ),
  "bart": config(
    **(_BERT | dict(norm="layer", embedding_norm=True, scale_attention=True, tied_logits=True, segment_types=0)),
    own_decoder_positions=True,
    position_offset=2,
    broadcast_dropout=False,
  ),
  "marian": config(
    **dict(positions="sinusoidal", post_norm=True, norm="layer", biases=True, mlp_activation="silu"),
    **dict(scale_attention=True, scale_embedding=True, tied_logits=True, init_scale=0.2, logits_bias=True),
    broadcast_dropout=False,
  ),
  "universal": config(**_UNIVERSAL, post_norm=True, share_stacks=True, num_encoder_layers=3),
  "universal_gpt": decoder(**(_UNIVERSAL | dict(step_signal="learned"))),
  "universal_bert": encoder(**_UNIVERSAL),
  "gpt2": decoder(norm="layer", biases=True, mlp_activation="gelu_tanh", tied_logits=True, **_LEARNED),
  "llama": decoder(mlp_activation="gated_silu", **_ROTARY),
  "qwen2": decoder(
    **dict(qkv_biases=True, mlp_activation="gated_silu", rotary_scaling="yarn", rotary_scaling_factor=4.0),
    **dict(rotary_scaling_original_length=8, rotary_scaling_beta_fast=2.0, rotary_scaling_beta_slow=0.1),
    **(_ROTARY | dict(rotary_base=50.0)),
  ),
  "local_llama": decoder(attention_window=2, qk_norm=True, **_ROTARY),
  "gemma": decoder(
    norm_offset=True,
    branch_norm=True,
    scale_embedding=True,
    attention_scale_dim=3,
    attention_softcap=1.5,
    logits_softcap=2.0,
    attention_window=2,
    global_attention_every=2,
    global_attention_first=1,
    local_rotary_base=100.0,
    **_ROTARY,
  ),
  "reformer": decoder(attention="lsh", norm="layer", scale_attention=True, feed_forward_chunk=3, **_LEARNED),
  "mpt": decoder(norm="layer", mlp_activation="gelu", tied_logits=True, scale_attention=True, positions="alibi"),
  "transformer_xl": decoder(norm="layer", post_norm=True, biases=True, mlp_activation="relu", **_XL),
  "prefix_lm": decoder(bidirectional_prefix=True, num_kv_heads=1),
  "learned_prefix_lm": decoder(bidirectional_prefix=True, share_layers=True, post_norm=True, **_LEARNED),
  "local_prefix_lm": decoder(
    bidirectional_prefix=True, attention_window=3, global_attention_every=2, local_rotary_base=100.0, **_ROTARY
  ),
  "bert": encoder(**_BERT),
  "roberta": encoder(**(_BERT | dict(position_offset=2, segment_types=1))),
  "albert": encoder(embedding_dim=12, share_layers=True, **_BERT),
  "rembert": encoder(**(_BERT | dict(embedding_dim=12, output_embedding_dim=24, tied_logits=False))),
  "mobilebert": encoder(**(_BERT | _MOBILE), num_feed_forwards=3),
  "mobilebert_tiny": encoder(**(_BERT | _MOBILE), bottleneck_attention=True),
  "bottleneck_decoder": decoder(norm="layer", block="bottleneck", bottleneck_dim=8, post_norm=True, **_ROTARY),
  "modern_bert": encoder(
    attention_window=2,
    global_attention_every=2,
    local_rotary_base=100.0,
    mlp_activation="gated_gelu_exact",
    **_ROTARY,
  ),
  "local_bert": encoder(attention_window=1, num_kv_heads=2),
  "longformer": encoder(
    attention="longformer", attention_window=2, global_tokens="first", most_global_tokens=3, **_BERT
  ),
  "xlnet": encoder(relative_segments=True, two_streams=True, logits_bias=True, **(_BERT | _XL | _XLNET)),
  "mosaic_bert": encoder(positions="alibi", mlp_activation="gated_gelu_exact"),
  "deberta": encoder(**(_BERT | _DISENTANGLED), absolute_positions="input", key_bias=False),
  "deberta_v2": encoder(
    **(_BERT | _DISENTANGLED | dict(relative_position_max_distance=12, segment_types=0)),
    share_position_projections=True,
    relative_position_norm=True,
    absolute_positions="mask_decoder",
    beside_first="convolution",
  ),
  "disentangled_t5": config(**_DISENTANGLED, share_position_projections=True, num_kv_heads=2),
  "disentangled_gpt": decoder(**_DISENTANGLED, disentangled_terms="position_to_content", scale_attention=True),
  "nezha": encoder(**(_BERT | _FUNCTIONAL)),
  "functional_t5": config(**_FUNCTIONAL),
  "functional_gpt": decoder(**_FUNCTIONAL, num_kv_heads=2, scale_attention=True),
  # Without dropped tokens, which depend on the other tokens of a row.
  "switch": config(
    mlp_activation="relu", num_decoder_layers=4, moe_every=2, moe_first=1, moe_capacity_factor=4.0, **_MOE
  ),
  "mixtral": decoder(
    mlp_activation="gated_silu", moe_experts_per_token=2, moe_normalize_gates=True, **(_MOE | _ROTARY)
  ),
  "awd_lstm": decoder(feed_forward="lstm", recurrent_hidden=24, tied_logits=True, **_RECURRENT),
  "awd_qrnn": decoder(feed_forward="qrnn", recurrent_hidden=24, **_RECURRENT),
  "elmo_lm": decoder(recurrent_clip=3.0, **(_ELMO | _RECURRENT)),
  "bilstm": encoder(**(_ELMO | _RECURRENT)),
  "gru_lm": decoder(feed_forward="gru", recurrent_hidden=24, **_RECURRENT),
  "gru_seq2seq": config(feed_forward="gru", encoder_embed_dim=24, own_encoder_embedding=True, **_RECURRENT),
  "luong": config(
    **(_RECURRENT | dict(feed_forward="lstm", block="recurrent_attention", encoder_embed_dim=24)),
    **dict(own_encoder_embedding=True, embedding_dim=8, output_embedding_dim=16, logits_bias=True),
  ),
  "moe_bert": encoder(moe_experts_per_token=2, moe_every=3, moe_capacity_factor=2.0, **(_MOE | _BERT)),
}

# One of each architecture, which together set most switches: the kinds that `make test` uses.
REPRESENTATIVES = ("t5_1_1", "local_prefix_lm", "bert")


def kinds(*architectures: str) -> list[str]:
  """Returns the names of the kinds of these architectures."""
  return [name for name, config in KINDS.items() if config.architecture in architectures]


def loss_config(**fields) -> losses.CrossEntropyConfig:
  return losses.CrossEntropyConfig(**(dict(z_loss=1e-2, label_smoothing=0.0, logits_chunk_tokens=1_024) | fields))


def loss(**fields) -> losses.CrossEntropy:
  return losses.CrossEntropy(loss_config(**fields))


def summed_loss(config: losses.CrossEntropyConfig | None = None):
  """Returns (model, batch, dropout key or None) -> (summed loss, metrics): cross-entropy before the division."""
  cross_entropy = losses.CrossEntropy(config or loss_config())

  def loss_fn(model, batch, key):
    terms, metrics = cross_entropy(model, batch, {"loss": jnp.ones(())}, key=key, train=True)
    return sum(terms.values()), metrics

  return loss_fn


def optimizer_config(**fields) -> OptimizerConfig:
  """Returns a config of plain gradient descent."""
  defaults = dict(
    name="sgd",
    learning_rate=0.1,
    schedule="constant",
    warmup_steps=0,
    warmup_ratio=0.0,
    layer_decay=1.0,
    end_lr_fraction=0.0,
    decay_fraction=0.2,
    decay_shape="linear",
    warmup_fraction=0.1,
    init_lr_divisor=32.0,
    clip_norm=0.0,
    scale_by_parameter=False,
    weight_decay=0.0,
    no_decay=(),
    adafactor_decay_rate=0.8,
    adafactor_clip=1.0,
    b1=0.9,
    b2=0.999,
    epsilon=1e-8,
    muon_momentum=0.95,
    muon_iterations=5,
    param_groups=(),
    fisher="",
    log_distance=False,
  )
  return OptimizerConfig(**(defaults | fields))


def key(seed: int = 0) -> jax.Array:
  """Returns a random key whose draws compile ten times faster than with JAX's default."""
  return jax.random.key(seed, impl="unsafe_rbg")


@functools.cache
def _params(config: TransformerConfig, seed: int) -> dict:
  return split(jax.jit(lambda key: transformer.build(config, nnx.Rngs(key)))(key(seed)))[1]


def model(config: TransformerConfig, *, seed: int = 0) -> nnx.Module:
  """Returns a model with random parameters, which do not depend on dropout, remat or dtype."""
  graphdef, _ = split(jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0))))
  return nnx.merge(
    graphdef, _params(dataclasses.replace(config, dropout_rate=0.0, remat="none", dtype="float32"), seed)
  )


def batch(
  inputs: Sequence[int] = (7, 4),
  targets: Sequence[int] = (3, 5),
  *,
  padded_to: tuple[int, int] = (8, 6),
  seed: int = 0,
  architecture: str = "encoder_decoder",
) -> dict[str, jax.Array]:
  """Returns examples of the given lengths with random tokens, EOS last; the tokens do not depend on padding.

  A decoder-only model reads inputs and targets in one row; an encoder-only model reads the inputs.
  """
  random = np.random.default_rng(seed)

  def side(lengths):
    return [np.array([*random.integers(2, 40, number - 1), EOS], np.int32) for number in lengths]

  def padded(rows, length):
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows])

  inputs, targets = side(inputs), side(targets)
  if architecture == "encoder_only":
    masked = [random.random(len(row)) < 0.3 for row in inputs]
    features = {
      "encoder_input_tokens": [np.where(hidden, 39, row) for row, hidden in zip(inputs, masked, strict=True)],
      "encoder_target_tokens": inputs,
      "encoder_loss_weights": [hidden.astype(np.float32) for hidden in masked],
      "encoder_token_types": [np.arange(len(row)) >= len(row) // 2 for row in inputs],
    }
    features = {name: padded(rows, padded_to[0]) for name, rows in features.items()}
    features["encoder_token_types"] = features["encoder_token_types"].astype(np.int32)
    return jax.tree.map(jnp.asarray, features)
  features = {}
  if architecture == "encoder_decoder":
    features["encoder_input_tokens"] = padded(inputs, padded_to[0])
    decoder = padded(targets, padded_to[1])
    features["decoder_loss_weights"] = (decoder > 0).astype(np.float32)
  else:
    decoder = padded([np.concatenate(pair) for pair in zip(inputs, targets, strict=True)], sum(padded_to))
    read = [np.ones(len(row) + 1, np.int32) for row in inputs]  # and the start token
    features["decoder_causal_attention"] = padded(read, sum(padded_to))
    is_input = padded([np.ones_like(row) for row in inputs], sum(padded_to))
    features["decoder_loss_weights"] = ((decoder > 0) & (is_input == 0)).astype(np.float32)
  features["decoder_target_tokens"] = decoder
  features["decoder_input_tokens"] = np.pad(decoder, [(0, 0), (1, 0)])[:, :-1]
  return jax.tree.map(jnp.asarray, features)


def packed(batch: transformer.Batch) -> dict[str, jax.Array]:
  """Packs all examples of a batch into one row, with segment ids and positions, and padding at the end."""
  packed_batch = {}
  for side in ("encoder", "decoder"):
    features = {name: np.asarray(x) for name, x in batch.items() if name.startswith(side)}
    if features:
      # Decoder inputs start with 0, which is not padding.
      tokens = features.get(f"{side}_target_tokens", features.get(f"{side}_input_tokens"))
      lengths = np.sum(tokens > 0, axis=1)
      features[f"{side}_segment_ids"] = np.broadcast_to(np.arange(1, len(lengths) + 1)[:, None], tokens.shape)
      features[f"{side}_positions"] = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
      for name, x in features.items():
        row = np.concatenate([x[index, :length] for index, length in enumerate(lengths)])
        packed_batch[name] = jnp.asarray(np.pad(row, (0, 2))[None])
  return packed_batch


@jax.jit
def logits(model: nnx.Module, batch: transformer.Batch, dropout_key: jax.Array | None = None) -> jax.Array:
  """Returns float32 logits [batch, length, vocab]."""
  return model.logits(model(batch, dropout_key=dropout_key))


def split(model: nnx.Module) -> tuple[nnx.GraphDef, dict]:
  """Returns a model's structure and its parameters as a nested dict; `nnx.merge` combines them."""
  graphdef, state = nnx.split(model, graph=False)
  return graphdef, nnx.to_pure_dict(state)


def flat(tree) -> dict[str, jax.Array]:
  """Returns path -> leaf."""
  return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def dropout_keys(monkeypatch) -> list[bytes]:
  """Records the dropout keys of programs that run from now on; nothing is dropped."""
  keys = []

  def dropout(x, rate, key, *, broadcast_axis=None):
    del broadcast_axis
    if rate and key is not None:
      jax.debug.callback(lambda data: keys.append(data.tobytes()), jax.random.key_data(key))
    return x

  monkeypatch.setattr(layers, "dropout", dropout)
  return keys


def assert_trees_close(actual, expected, *, atol: float = 1e-5, rtol: float = 1e-5) -> None:
  actual, expected = flat(actual), flat(expected)
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(actual[name], value, atol=atol, rtol=rtol, err_msg=name)


def rotary_angles(length: int, head_dim: int, base: float, offset: jax.Array | int = 0) -> tuple[jax.Array, jax.Array]:
  """Returns cosine and sine of the rotary angles of `length` positions from `offset` on."""
  return positions.angles_at(jnp.arange(length) + offset, positions.rotary_frequencies(head_dim, base))


def equations(jaxpr, repeated: int = 1) -> Iterator[tuple[jax.extend.core.JaxprEqn, int]]:
  """Yields every primitive of a program, at any depth, with its number of executions (many in the body of a scan)."""
  for equation in jaxpr.eqns:
    yield equation, repeated
    inner = repeated * equation.params["length"] if equation.primitive.name == "scan" else repeated
    for child in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
      child = getattr(child, "jaxpr", child)
      if hasattr(child, "eqns"):
        yield from equations(child, inner)


def benchmark(name: str) -> types.ModuleType:
  """Returns the script benchmarks/NAME.py as a module, without running it."""
  path = pathlib.Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
  spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
