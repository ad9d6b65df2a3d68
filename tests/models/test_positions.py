"""A position scheme registered in the table, with parameters per stack and per layer, and every hook."""

import dataclasses
import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.configuration import schema
from t2t.models import config as config_lib
from t2t.models import layers
from t2t.models.kernels import dispatch
from t2t.models.positions import Positions, Scheme


class Vectors(nnx.Module):
  """A float32 matrix."""

  def __init__(self, rngs, shape, axes):
    self.table = layers.param(rngs, shape, axes, scale=1.0)


@dataclasses.dataclass(frozen=True)
class ContentPositions(Positions):
  """Logits of queries with a vector per distance, scaled by each layer; queries and keys are doubled."""

  vectors: jax.Array | None = None

  def on_queries(self, queries):
    return 2.0 * queries

  def on_keys(self, keys):
    return 2.0 * keys

  def on_logits(self, queries, keys, parameters):
    scaled = self.vectors * parameters.table[...][0, 0]
    return jnp.einsum("bhqk,qsk->bhqs", queries, scaled[:, : keys.shape[2]], preferred_element_type=jnp.float32)


class Content(Scheme):
  """A vector for each distance up to 7, shared by a stack, and a factor of each layer."""

  bias = "rows"

  def stack_parameters(self, rngs, *, bidirectional):
    return Vectors(rngs, (15, self.config.head_dim), ("positions", "kv"))

  def layer_parameters(self, rngs):
    return Vectors(rngs, (1, 1), (None, None))

  def positions(self, shared, call):
    queries = jnp.arange(call.query_positions)[:, None] + call.mask.query_offset
    distances = jnp.clip(jnp.arange(call.key_length)[None] - queries, -7, 7) + 7
    vectors = shared.table[...][distances]
    return lambda index: ContentPositions(is_local=self.config.is_local(index), vectors=vectors)


@pytest.fixture
def content(monkeypatch):
  """Registers the scheme: config.model.positions=content."""
  monkeypatch.setitem(config_lib.POSITIONS.rows, "content", f"{__name__}:Content")


KINDS = ["t5_1_1", "gpt2", "bert"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_scheme_of_another_file_is_trained(content, kind):
  """Its parameters are in the stack and in each layer, all have gradients, and the order of tokens matters."""
  config = dataclasses.replace(toy.KINDS[kind], positions="content", dropout_rate=0.0, dtype="float32")
  batch = toy.batch((8, 8), (6, 6), architecture=config.architecture)
  graphdef, params = toy.split(toy.model(config))
  side = config.kind.predicts
  flat = toy.flat(params)
  shared, own = f"{side}/position_bias/table", f"{side}/layers/self_attention/position/table"
  assert flat[shared].shape == (15, config.head_dim)
  assert flat[own].shape == (getattr(config, f"num_{side}_layers"), 1, 1)
  assert not [path for path in flat if "cross_attention/position/" in path or path == "embed/positions"]
  read_out = jnp.asarray(np.random.default_rng(0).normal(size=config.embed_dim), jnp.float32)
  total = lambda params: jnp.sum(nnx.merge(graphdef, params)(batch) @ read_out)
  gradient = toy.flat(jax.grad(total)(params))
  for path in (shared, own):
    assert np.all(np.isfinite(gradient[path])) and np.any(np.abs(gradient[path]) > 1e-6), path


@pytest.mark.exhaustive
def test_a_scheme_of_another_file_decodes_as_it_is_trained(content):
  """Decoding by token equals the logits of all positions."""
  config = dataclasses.replace(toy.KINDS["gpt2"], positions="content", dropout_rate=0.0, dtype="float32")
  model = toy.model(config)
  tokens = jnp.asarray(np.random.default_rng(1).integers(1, config.vocab_size, (2, 6)), jnp.int32)
  expected = model.logits(model({"decoder_input_tokens": tokens}))
  _, state = model.start_decode({"decoder_input_tokens": tokens[:, :1]}, 6)
  for column in range(6):
    logits, state = model.decode_step(tokens[:, column], state)
    np.testing.assert_allclose(logits, expected[:, column], atol=2e-4)


def test_logits_of_each_row_run_on_no_kernel(content):
  """No kernel supports them, on any platform."""
  config = dataclasses.replace(toy.KINDS["gpt2"], positions="content")
  shapes = (4, 4, 256, 64), (4, 4, 256, 64)
  mask = dispatch.AttentionMask(causal=True)
  for platform in ("tpu", "gpu"):
    bias = config.position_scheme.bias
    chosen = dispatch.choose(*shapes, "bfloat16", mask, platform=platform, bias=bias, compute_capability="9.0")
    assert str(chosen) == "plain (bias per row)"


@pytest.mark.parametrize("name", config_lib.POSITIONS)
def test_the_help_names_each_scheme(name):
  """`t2t train --help model` and docs/config_keys.md take it from the key's comment."""
  assert re.search(rf"\b{name} \(", schema.comments()["model.positions"])


def test_a_scheme_that_there_is_not():
  """The message has the known names."""
  known = ", ".join(config_lib.POSITIONS)
  with pytest.raises(
    UserError, match=re.escape(f"config.model.positions='contents': unknown value. Known values: {known}")
  ):
    dataclasses.replace(toy.KINDS["gpt2"], positions="contents")
