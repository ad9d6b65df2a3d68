"""What the tests share: a model that compiles in a second or two, batches for it, and a look into a program."""

from collections.abc import Iterator, Sequence
import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import losses, optimizers
from t2t.models import transformer
from t2t.models.config import TransformerConfig

EOS = 1


def config(**fields) -> TransformerConfig:
  """A T5 1.1 whose sizes are all different, and divide over 8 devices where an axis is split."""
  sizes = dict(vocab_size=40, embed_dim=16, num_heads=4, head_dim=6, mlp_dim=32)
  layers = dict(num_encoder_layers=2, num_decoder_layers=3)
  others = dict(architecture="encoder_decoder", dtype="float32")
  positions = dict(relative_position_buckets=8, relative_position_max_distance=6)
  return TransformerConfig(**(sizes | layers | positions | others | fields))


def loss_config(**fields) -> losses.CrossEntropyConfig:
  return losses.CrossEntropyConfig(**(dict(z_loss=1e-2, label_smoothing=0.0, chunk_tokens=1_024) | fields))


def optimizer_config(**fields) -> optimizers.OptimizerConfig:
  """Plain gradient descent."""
  defaults = dict(
    name="sgd",
    learning_rate=0.1,
    schedule="constant",
    warmup_steps=0,
    final_ratio=0.0,
    clip_norm=0.0,
    scale_by_parameter=False,
    weight_decay=0.0,
    no_decay=(),
    adafactor_decay_rate=0.8,
    adafactor_clip=1.0,
    b1=0.9,
    b2=0.999,
    epsilon=1e-8,
  )
  return optimizers.OptimizerConfig(**(defaults | fields))


def key(seed: int = 0) -> jax.Array:
  """A random key whose draws compile ten times faster than those of JAX's default."""
  return jax.random.key(seed, impl="unsafe_rbg")


@functools.cache
def _params(config: TransformerConfig, seed: int) -> dict:
  return split(jax.jit(lambda key: transformer.build(config, nnx.Rngs(key)))(key(seed)))[1]


def model(config: TransformerConfig, *, seed: int = 0) -> nnx.Module:
  """A model with random parameters; they do not depend on dropout, remat or dtype."""
  graphdef, _ = split(jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0))))
  return nnx.merge(
    graphdef, _params(dataclasses.replace(config, dropout_rate=0.0, remat="none", dtype="float32"), seed)
  )


def batch(
  inputs: Sequence[int] = (7, 4), targets: Sequence[int] = (3, 5), *, padded_to: tuple[int, int] = (8, 6), seed: int = 0
) -> dict[str, jax.Array]:
  """Examples with so many random tokens each, EOS last, the same tokens however far they are padded."""
  random = np.random.default_rng(seed)

  def side(lengths, length):
    tokens = np.zeros((len(lengths), length), np.int32)
    for row, number in zip(tokens, lengths, strict=True):
      row[:number] = [*random.integers(2, 40, number - 1), EOS]
    return tokens

  encoder, decoder = side(inputs, padded_to[0]), side(targets, padded_to[1])
  return {
    "encoder_input_tokens": jnp.asarray(encoder),
    "decoder_target_tokens": jnp.asarray(decoder),
    "decoder_input_tokens": jnp.asarray(np.pad(decoder, [(0, 0), (1, 0)])[:, :-1]),
    "decoder_loss_weights": jnp.asarray(decoder > 0, jnp.float32),
  }


@jax.jit
def logits(model: nnx.Module, batch: transformer.Batch, dropout_key: jax.Array | None = None) -> jax.Array:
  """float32 [batch, length, vocab]."""
  return model.logits(model(batch, dropout_key=dropout_key))


def split(model: nnx.Module) -> tuple[nnx.GraphDef, dict]:
  """The structure of a model and its parameters as a nested dict; `nnx.merge` puts them together."""
  graphdef, state = nnx.split(model, graph=False)
  return graphdef, nnx.to_pure_dict(state)


def flat(tree) -> dict[str, jax.Array]:
  """Path -> leaf."""
  return {optimizers.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_trees_close(actual, expected, *, atol: float = 1e-5, rtol: float = 1e-5) -> None:
  actual, expected = flat(actual), flat(expected)
  assert actual.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(actual[name], value, atol=atol, rtol=rtol, err_msg=name)


def equations(jaxpr, repeated: int = 1) -> Iterator[tuple[jax.extend.core.JaxprEqn, int]]:
  """Every primitive that a program calls, at any depth, and how often it runs (the body of a scan: many times)."""
  for equation in jaxpr.eqns:
    yield equation, repeated
    inner = repeated * equation.params["length"] if equation.primitive.name == "scan" else repeated
    for child in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
      child = getattr(child, "jaxpr", child)
      if hasattr(child, "eqns"):
        yield from equations(child, inner)
