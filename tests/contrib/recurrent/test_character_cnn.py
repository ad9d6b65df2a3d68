"""Character CNN: its formula, what its vectors depend on, and the settings that it refuses."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.contrib.recurrent import character_cnn
from t2t.models import transformer
from t2t.models.config import EMBEDDINGS

LSTM = dataclasses.replace(toy.KINDS["awd_lstm"], embedding="characters", tied_logits=False, character_cnn="tiny")
ELMO = dataclasses.replace(
  toy.KINDS["bilstm"],
  embedding="characters_both_directions",
  embedding_dim=8,
  embedding_norm=False,
  character_cnn="tiny",
  tied_logits=False,
  logits_transform=False,
)
SIZES = character_cnn.SIZES["tiny"]


def rows(number: int, seed: int = 0) -> np.ndarray:
  """Returns random characters between marks, of one to all positions, as `character_table.row` returns them."""
  random = np.random.default_rng(seed)
  made = np.full((number, SIZES.longest), 261, np.int32)
  for row, length in zip(made, random.integers(1, SIZES.longest - 1, number), strict=True):
    row[: length + 2] = [259, *random.integers(1, 257, length), 260]
  return made


def embedding(config, table: np.ndarray, *, seed: int = 0):
  """Returns the module with random weights and these characters of each id."""
  module = EMBEDDINGS[config.embedding](config, nnx.Rngs(seed))
  random = np.random.default_rng(seed)
  for name in ("bias", "projection_bias"):
    part = getattr(module.cnn, name)
    part[...] = jnp.asarray(random.normal(size=part[...].shape), jnp.float32)
  module.characters = nnx.Param(jnp.asarray(table), axes=("vocab", None))
  return module


def formula(params: dict, characters: np.ndarray) -> np.ndarray:
  """Returns the vector of one token, written out in float64."""
  cnn = {path.removeprefix("cnn/"): np.asarray(x, np.float64) for path, x in params.items() if path.startswith("cnn/")}
  x = cnn["characters"][characters]
  values = []
  for width, number in SIZES.filters:
    kernel = cnn[f"kernels/width_{width}"].reshape(width, SIZES.width, number)
    places = [np.einsum("wc,wcf->f", x[i : i + width], kernel) for i in range(len(x) - width + 1)]
    values.append(np.max(places, axis=0))
  y = np.maximum(np.concatenate(values) + cnn["bias"], 0)
  for i in range(SIZES.highways):
    kernel, bias, gate, gate_bias = (cnn[f"highways/layer_{i}/{x}"] for x in ("kernel", "bias", "gate", "gate_bias"))
    opened = 1 / (1 + np.exp(-(y @ gate + gate_bias)))
    y = opened * np.maximum(y @ kernel + bias, 0) + (1 - opened) * y
  return y @ cnn["projection"] + cnn["projection_bias"]


@pytest.mark.parametrize("config", [LSTM, ELMO], ids=["lstm", "elmo"])
def test_vectors_are_those_of_the_formula(config):
  """Both directions have one vector."""
  module = embedding(config, rows(40))
  params = toy.flat(toy.split(module)[1])
  tokens = np.array([[3, 7, 39], [7, 0, 1]])
  found = np.asarray(module(jnp.asarray(tokens)))
  expected = np.stack([[formula(params, rows(40)[token]) for token in row] for row in tokens])
  expected = np.concatenate([expected, expected], axis=-1) if config is ELMO else expected
  np.testing.assert_allclose(found, expected, atol=2e-5)


def test_vectors_depend_on_characters_alone():
  """Two ids with the same characters have the same vector; another character changes the vector."""
  table = rows(40)
  table[5] = table[9]
  other = table[9].copy()
  other[1] = 1 + (other[1] + 5) % 256
  table[6] = other
  x = embedding(LSTM, table)(jnp.array([[5, 9, 6]]))[0]
  np.testing.assert_array_equal(x[0], x[1])
  assert np.max(np.abs(x[2] - x[1])) > 1e-3


def test_the_number_of_padded_characters_changes_nothing():
  """Rows have a window of padding alone, which the maximum reads."""
  cnn = character_cnn.CharacterCnn(LSTM, SIZES, nnx.Rngs(0))
  short = np.array([[259, 98, 117, 260, *[261] * 4], [259, 98, 260, *[261] * 5]])
  long = np.pad(short, [(0, 0), (0, 12)], constant_values=261)
  np.testing.assert_allclose(cnn(jnp.asarray(short)), cnn(jnp.asarray(long)), atol=1e-6)


@pytest.mark.parametrize("remat", ["none", "minimal"])
def test_every_weight_has_a_gradient(remat):
  """Also with recomputation, whose gradients are the same."""

  def gradients(config):
    module = embedding(config, rows(40))
    graphdef, params = toy.split(module)
    characters = params.pop("characters")
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(1, 40, 16)), jnp.float32)
    run = lambda params: nnx.merge(graphdef, params | {"characters": characters})(jnp.arange(40)[None])
    return toy.flat(jax.jit(jax.grad(lambda params: jnp.sum(run(params) * weights)))(params))

  found = gradients(dataclasses.replace(LSTM, remat=remat))
  assert all(np.any(x) for x in found.values())
  plain = gradients(LSTM)
  for path, x in found.items():
    np.testing.assert_allclose(x, plain[path], rtol=1e-4, atol=1e-5)


def test_a_model_has_no_table_of_vectors():
  model = toy.model(LSTM)
  params = toy.flat(toy.split(model)[1])
  assert "embed/table" not in params and params["embed/characters"].shape == (40, SIZES.longest)
  with pytest.raises(UserError, match="embedding=characters: token vectors are computed from characters"):
    _ = model.embed.table


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"character_cnn": "elmo_smal"}, "character_cnn='elmo_smal': unknown sizes. Give one of elmo, .*elmo_small"),
    ({"tied_logits": True}, "tied_logits=True needs a table .* Set --config.model.tied_logits=False"),
    ({"embedding_difference": True}, "embedding_difference=True needs a table"),
  ],
)
def test_settings_that_need_a_table_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    jax.eval_shape(lambda: transformer.build(dataclasses.replace(LSTM, **changes), nnx.Rngs(0)))


def test_multiplications_are_counted():
  """The count has every window, the highway layers and the projection, once for both directions."""
  count = sum((20 - width + 1) * width * 8 * number for width, number in SIZES.filters) + 120 * (2 * 120)
  assert EMBEDDINGS[LSTM.embedding].multiply_adds(LSTM) == count + 120 * LSTM.embed_dim
  assert EMBEDDINGS[ELMO.embedding].multiply_adds(ELMO) == count + 120 * 8
