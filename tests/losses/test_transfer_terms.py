"""Terms of distillation: each equals its formula in numpy, and layer maps name the pairs of their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t import UserError
from t2t.losses import transfer_terms

RANDOM = np.random.default_rng(0)
REAL = np.array([[True, True, True, False], [True, True, True, True]])


def states(*leading):
  return [RANDOM.normal(size=(*leading, 2, 4, 6)).astype(np.float32) for _ in range(2)]


def softmax(x):
  powers = np.exp(x - x.max(axis=-1, keepdims=True))
  return powers / powers.sum(axis=-1, keepdims=True)


def test_soft_targets_are_the_divergence_of_softened_distributions():
  student, teacher = RANDOM.normal(size=(2, 5, 7))
  q, p = softmax(teacher / 3), softmax(student / 3)
  expected = 9 * np.sum(q * np.log(q / p), axis=-1)
  np.testing.assert_allclose(
    transfer_terms.soft_targets(jnp.array(student), jnp.array(teacher), 3.0), expected, rtol=1e-4
  )


def test_states_have_the_mean_squared_error_of_real_positions():
  student, teacher = states(3)
  expected = np.mean((student - teacher) ** 2, axis=-1)[:, REAL].sum()
  np.testing.assert_allclose(transfer_terms.states(student, teacher, REAL), expected, rtol=1e-5)


def test_normalized_states_have_separate_terms_of_mean_and_variance():
  student, teacher = states(2)
  normed = lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
  expected = (
    np.mean((normed(student) - normed(teacher)) ** 2, axis=-1)[:, REAL].sum(),
    ((student.mean(-1) - teacher.mean(-1)) ** 2)[:, REAL].sum(),
    np.abs(student.var(-1) - teacher.var(-1))[:, REAL].sum(),
  )
  np.testing.assert_allclose(transfer_terms.normalized_states(student, teacher, REAL), expected, rtol=1e-4)


def test_cosine_is_one_minus_the_cosine_and_zero_for_scaled_states():
  student, teacher = states()
  of = lambda a, b: np.sum(a * b, -1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
  expected = (1 - of(student, teacher))[REAL].sum()
  np.testing.assert_allclose(transfer_terms.cosine(student, teacher, REAL), expected, rtol=1e-5)
  np.testing.assert_allclose(transfer_terms.cosine(student, 3 * student, REAL), 0.0, atol=1e-5)


@pytest.mark.parametrize("kind", transfer_terms.ATTENTION_LOSSES)
def test_attention_is_a_mean_over_heads_and_attended_keys(kind):
  """Row 0 has three real positions: the logits of its padding count in no term, and have no gradient."""
  scores = RANDOM.normal(size=(2, 1, 2, 3, 4, 4)).astype(np.float32)  # two models, layer, batch, heads, query, key
  attends = (REAL[:, None, :, None] == REAL[:, None, None, :])[None]
  student, teacher = (np.where(attends, x, -np.inf) for x in scores)
  expected = 0.0
  for row, number in enumerate(REAL.sum(axis=1)):
    ours, theirs = (x[0, row, :, :number, :number] for x in scores)
    p, q = softmax(ours), softmax(theirs)
    of_pairs = {"scores": (ours - theirs) ** 2, "probabilities": (p - q) ** 2, "kl": number * q * np.log(q / p)}[kind]
    expected += of_pairs.mean(axis=-1).mean(axis=0).sum()
  term = lambda x: transfer_terms.attention(x, teacher, REAL, kind=kind)
  value, gradient = jax.value_and_grad(term)(student)
  np.testing.assert_allclose(value, expected, rtol=1e-4)
  assert np.isfinite(gradient).all()
  assert not np.any(gradient[0, 0, :, 3])


def test_relations_split_all_heads_into_relation_heads():
  """Two relation heads of three features each, from three heads of two (Wang et al. 2021)."""
  x = RANDOM.normal(size=(1, 3, 4, 2)).astype(np.float32)
  joined = np.moveaxis(x, 1, 2).reshape(1, 4, 6)
  expected = (
    np.stack([joined[..., i : i + 3] @ np.moveaxis(joined[..., i : i + 3], 1, 2) for i in (0, 3)], axis=1) / 3**0.5
  )
  np.testing.assert_allclose(transfer_terms.relation_logits(x, True, heads=2), expected, rtol=1e-5)
  own = transfer_terms.relation_logits(x, True, heads=0)
  np.testing.assert_allclose(own, x @ np.swapaxes(x, -1, -2) / 2**0.5, rtol=1e-5)


def test_layer_maps():
  pairs = lambda *layers: transfer_terms.layer_pairs(layers, 4, 12, where="the encoder")
  assert pairs("uniform") == ((0, 2), (1, 5), (2, 8), (3, 11))  # g(m) = 3 m (Jiao et al. 2020)
  assert pairs("skip") == ((0, 2), (1, 5), (2, 8))  # without the last layer (Sun et al. 2019)
  assert pairs("last") == ((0, 8), (1, 9), (2, 10), (3, 11))
  assert pairs("final") == ((3, 11),)
  assert pairs("0", "2", "4", "11") == ((0, 0), (1, 2), (2, 4), (3, 11))
  assert pairs("3:10", "0:0") == ((3, 10), (0, 0))


@pytest.mark.parametrize(
  "layers, message",
  [
    (("0", "2", "12", "3"), "12 layers in the teacher, 0 to 11, but the map names layer 12"),
    (("4:0",), "4 layers in the student, 0 to 3, but the map names layer 4"),
    (("0", "2"), "4 layers in the student, but the map names 2"),
    (("every",), "not a layer map. Give uniform, skip, last, final"),
    ((), "not a layer map"),
    (("2", "0:1"), "'2' has no student layer, but other elements are pairs"),
    (("0:0", "1:2", "0:00"), "names the pair 0:0 twice"),
  ],
)
def test_a_map_names_layers_that_exist(layers, message):
  with pytest.raises(UserError, match=message):
    transfer_terms.layer_pairs(layers, 4, 12, where="the encoder")


def test_a_teacher_has_at_least_the_layers_of_its_student():
  with pytest.raises(UserError, match="6 layers in the student and 4 in the teacher"):
    transfer_terms.layer_pairs(("uniform",), 6, 4, where="the encoder")
