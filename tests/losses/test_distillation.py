"""Distillation of classes: the loss equals the divergence of softened distributions, and its settings are checked."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.inference import head_predictor
from t2t.losses import distillation, head_losses
from t2t.models.head_config import HeadConfig

HEAD = HeadConfig("label", 2, "class")
LOGITS = np.array([[0.5, -0.5], [-2.0, 1.0]], np.float32)


def targets():
  """Returns the labels of two packed examples of three tokens, which begin at positions 0 and 3."""
  bits = np.zeros((1, 6), np.float32)
  bits[0, [0, 1]], bits[0, [3, 4]] = LOGITS
  at = np.array([[True, True, False, True, True, False]])
  groups = np.array([[1, 1, 1, 2, 2, 2]], np.int32)
  return head_losses.HeadTargets(jnp.array(at), jnp.array(bits.view(np.int32)), jnp.array(groups))


def loss(temperature=2.0):
  model = dataclasses.replace(toy.KINDS["bert"], heads=(HEAD,))
  return distillation.Distillation(model, None, temperature=temperature)


def kl(teacher, student, temperature=2.0):
  log_q, log_p = jax.nn.log_softmax(teacher / temperature), jax.nn.log_softmax(student / temperature)
  return temperature**2 * float(np.sum(np.exp(log_q) * (log_q - log_p)))


def test_the_loss_is_the_divergence_at_the_first_token_of_each_example():
  student = np.random.default_rng(0).normal(size=(1, 6, 2)).astype(np.float32)
  measured = loss().measure(HEAD, jnp.array(student), targets(), None)
  expected = [[kl(LOGITS[0], student[0, 0]), 0, 0, kl(LOGITS[1], student[0, 3]), 0, 0]]
  np.testing.assert_allclose(measured.loss, expected, atol=1e-5)
  right = [int(student[0, i].argmax() == LOGITS[row].argmax()) for row, i in enumerate((0, 3))]
  assert measured.right.sum() == sum(right)
  assert loss().units(HEAD, targets()).tolist() == [[1, 0, 0, 1, 0, 0]]


def test_a_student_that_equals_the_teacher_has_no_loss():
  student = jnp.zeros((1, 6, 2)).at[0, [0, 3]].set(LOGITS)
  np.testing.assert_allclose(loss().measure(HEAD, student, targets(), None).loss, 0.0, atol=1e-6)


def test_the_baseline_is_the_mean_distribution():
  mean = np.mean(jax.nn.softmax(LOGITS / 2), axis=0)
  expected = np.mean([kl(row, 2 * np.log(mean)) for row in LOGITS])
  np.testing.assert_allclose(loss().baseline(HEAD, [targets()]), expected, rtol=1e-5)


def test_labels_are_needed():
  run = types.SimpleNamespace(data=types.SimpleNamespace(train_labels=""))
  with pytest.raises(
    UserError, match="config.train.loss=distillation learns a teacher's labels.*train_labels is empty"
  ):
    distillation.Distillation.from_config(run)


def test_a_sample_names_the_teachers_class():
  """The bits of logits are no class; a sample has the likeliest class of student and teacher."""
  head = HeadConfig("label", 2, "class", labels=("no", "yes"))
  bits = LOGITS[1].view(np.int32)
  assert head_predictor.sample(head, np.array([[3.0, 1.0], [0.0, 9.0]]), bits) == ("no", "yes")
