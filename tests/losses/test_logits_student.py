"""Losses with written logits: whole ones equal the teacher to the bit, and the largest ones lose what is documented."""

import dataclasses
import json
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_teacher_student
import toy

from t2t import UserError
from t2t.losses import logits_student, soft_tokens, transfer_terms
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig
from t2t.losses.distillation import DistillationConfig
from t2t.losses.head_losses import HeadLosses
from t2t.losses.logits_student import LogitsManifest, TeacherOutput
from t2t.models.head_config import HeadConfig

HEAD = HeadConfig("label", 3, "class")
BASE = CrossEntropy(CrossEntropyConfig(1e-4, 0.0, 8))


def student(model, manifest, *, base=BASE, loss="cross_entropy", written=True, **settings):
  """Returns the loss of a run with logits of these settings."""
  text = manifest.to_json() if written else ""
  run = types.SimpleNamespace(
    distillation=DistillationConfig(logits=("runs/logits",), written=text, **settings),
    train=types.SimpleNamespace(loss=loss),
    adapters={},
    model=model,
    stages=(),
  )
  return logits_student.LogitsLoss.wrapping(base, run)


def manifest(*outputs, temperature=2.0, positions="predicted"):
  return LogitsManifest("digest", "digest", temperature, positions, 1, outputs)


def gradient(loss, graphdef, params, batch):
  """Returns terms, metrics and gradients of a loss."""

  @jax.jit
  def step(params, batch):
    def total(params):
      terms, metrics = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=True)
      return sum(terms.values()), (terms, metrics)

    return jax.grad(total, has_aux=True)(params)

  return step(params, batch)


def check_bits(kind, *, loss="cross_entropy", base=BASE, heads=(), **settings):
  model = dataclasses.replace(toy.KINDS[kind], heads=heads)
  batch = toy.batch(architecture=model.architecture)
  if heads:
    names = ("encoder_answer_heads", "encoder_answer_targets")
    batch |= {name: jnp.zeros_like(batch["encoder_input_tokens"]).at[:, 0].set(1) for name in names}
    base = HeadLosses(model, base.config)
  fixed = dict(dtype="float32", temperature=3.0, **settings)
  online = test_teacher_student.made(model, model, base=base, loss=loss, **fixed)
  graphdef, state = nnx.split(online.build(model, nnx.Rngs(0)), graph=False)
  params = nnx.to_pure_dict(state)
  outputs = logits_student.outputs_of(online, model, width=0)

  @jax.jit
  def write(params, batch):
    return logits_student.written(online, outputs, nnx.merge(graphdef, params).teacher, batch)

  arrays = write(params, batch)  # XLA would fold constant parameters, with other bits
  logits = {
    f"{logits_student.PREFIX}{name}/values": jnp.where(array["at"][..., None], array["values"], 0.0)
    for name, array in arrays.items()
  }
  settings_of_files = manifest(*outputs, positions=online.settings.soft_positions)
  offline = student(model, settings_of_files, base=base, loss=loss, **fixed)
  alone = nnx.split(offline.build(model, nnx.Rngs(0)), graph=False)[0]
  expected, (_, metrics) = gradient(online, graphdef, params, batch)
  found, (_, their_metrics) = gradient(offline, alone, params["student"], batch | logits)
  jax.tree.map(np.testing.assert_array_equal, found, expected["student"])
  jax.tree.map(np.testing.assert_array_equal, their_metrics, metrics)
  assert any(np.any(x) for x in jax.tree.leaves(found)) and any("soft_targets" in name for name in metrics)


@pytest.mark.exhaustive
def test_whole_logits_give_the_loss_and_gradients_of_the_teacher_to_the_bit():
  """Masked tokens and classes of a text, in several chunks."""
  check_bits("bert", loss="tokens_and_heads", heads=(HEAD,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "t5_1_1", "llama", "prefix_lm", "gemma"])
@pytest.mark.parametrize("positions", ["predicted", "all"])
def test_every_architecture_learns_whole_logits_to_the_bit(kind, positions):
  check_bits(kind, soft_positions=positions)


def of_few(random, width, *, tail):
  """Returns the divergence of some tokens from their largest logits, and the logits of both models."""
  hidden, kernel = random.normal(size=(1, 5, 4)), random.normal(size=(4, 11))
  teacher = random.normal(size=(1, 5, 11)) * 3
  ids = np.argsort(-teacher)[..., :width]
  arrays = (jnp.array(np.take_along_axis(teacher, ids, -1), jnp.float32), jnp.array(ids))
  normalizer = jnp.array(np.log(np.exp(teacher / 2.0).sum(-1)), jnp.float32) if tail else None

  @jax.jit
  def compute(kernel, hidden, arrays, normalizer):
    product = jax.tree_util.Partial(test_teacher_student._product, kernel)
    options = dict(temperature=2.0, sparse=False, normalizer=normalizer)
    teachers = ((logits_student._scattered(11), arrays),)
    return soft_tokens.soft_sums(
      CrossEntropyConfig(0.0, 0.0, 5), product, hidden, teachers, jnp.ones((1, 5)), **options
    )

  loss, _ = compute(jnp.array(kernel, jnp.float32), jnp.array(hidden, jnp.float32), arrays, normalizer)
  return float(loss), (hidden @ kernel)[0], teacher[0], ids[0]


def softmax(x):
  return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def test_the_largest_logits_are_renormalized():
  """The target has no probability for other tokens; the student's softmax is over the whole vocabulary."""
  loss, student_logits, teacher, ids = of_few(np.random.default_rng(0), 3, tail=False)
  q = softmax(np.take_along_axis(teacher, ids, -1) / 2)
  p = np.take_along_axis(softmax(student_logits / 2), ids, -1)
  np.testing.assert_allclose(loss, 4 * np.sum(q * np.log(q / p)), rtol=1e-5)


def test_a_bucket_has_the_rest_of_the_probability():
  """Its divergence is that of merged tokens, and grows to that of whole logits as more are known."""
  losses = []
  for width in (1, 4, 10):
    loss, student_logits, teacher, ids = of_few(np.random.default_rng(0), width, tail=True)
    q, p = (np.take_along_axis(softmax(x / 2), ids, -1) for x in (teacher, student_logits))
    q, p = (np.concatenate([x, 1 - x.sum(-1, keepdims=True)], -1) for x in (q, p))
    np.testing.assert_allclose(loss, 4 * np.sum(q * np.log(q / p)), rtol=1e-4)
    losses.append(loss)
  whole = float(jnp.sum(transfer_terms.soft_targets(jnp.array(student_logits), jnp.array(teacher), 2.0)))
  assert losses == sorted(losses)
  np.testing.assert_allclose(losses[-1], whole, rtol=1e-4)  # the bucket of ten known tokens is the eleventh


def test_written_tokens_are_the_largest_of_each_row():
  """Values fall, ids name them, and the normalizer is that of the whole vocabulary at the temperature."""
  random = np.random.default_rng(0)
  hidden, kernel = (jnp.array(random.normal(size=shape), jnp.float32) for shape in ((2, 5, 4), (4, 11)))
  weights = jnp.array(random.integers(0, 2, (2, 5)), jnp.float32)

  @jax.jit
  def compute(kernel, hidden, weights):
    product = jax.tree_util.Partial(test_teacher_student._product, kernel)
    options = dict(width=4, vocab_size=10, temperature=2.0, sparse=True)
    return soft_tokens.written(CrossEntropyConfig(0.0, 0.0, 3), product, hidden, weights, **options)

  found = compute(kernel, hidden, weights)
  at, logits = np.array(weights) > 0, np.array(hidden @ kernel)[..., :10]
  ids = np.argsort(-logits, axis=-1)[..., :4]
  np.testing.assert_array_equal(found["ids"][at], ids[at])
  np.testing.assert_allclose(found["values"][at], np.take_along_axis(logits, ids, -1)[at], rtol=1e-5)
  np.testing.assert_allclose(found["normalizer"][at], np.log(np.exp(logits / 2).sum(-1))[at], rtol=1e-5)


BERT = toy.KINDS["bert"]
TOKENS = TeacherOutput("tokens", "encoder", BERT.vocab_size, 4)
OF_HEAD = TeacherOutput("heads/label", "encoder", 3, 3, {"kind": "class", "num_classes": 2, "labels": []})


@pytest.mark.parametrize(
  ("outputs", "settings", "message"),
  [
    ((TOKENS,), {"written": False}, "this command does not read logits"),
    ((TOKENS,), {"hidden_weight": 0.5}, r"hidden_weight=0\.5: files have logits, not the teacher's layers"),
    ((TOKENS,), {"attention_weight": 1.0}, r"attention_weight=1\.0: files have logits"),
    ((TOKENS,), {"soft_weight": 0.0}, "all weights of the teacher's terms are 0"),
    ((TOKENS,), {"soft_positions": "all"}, "logits of predicted tokens alone"),
    ((TOKENS,), {"tail": "bucket", "temperature": 4.0}, r"temperature=4\.0: .*known at temperature 2\.0"),
    ((TOKENS,), {"tail": "ghost"}, "Known values: renormalized, bucket"),
    ((dataclasses.replace(TOKENS, size=999),), {}, "logits of 999 ids, but config.model.vocab_size"),
    ((), {}, "no logits of tokens"),
    ((TOKENS,), {"loss": "electra"}, "config.distillation.logits needs config.train.loss="),
    ((), {"head": True}, "no logits of the head 'label'"),
    ((OF_HEAD,), {"head": True}, "the head 'label' differs: num_classes is 2 in the teacher and 3"),
  ],
)
def test_logits_that_do_not_fit_are_refused(outputs, settings, message):
  model, base = BERT, BASE
  if settings.pop("head", False):
    model = dataclasses.replace(BERT, heads=(HEAD,))
    base, settings["loss"] = HeadLosses(model, None), "heads"
  with pytest.raises(UserError, match=message):
    student(model, manifest(*outputs), base=base, **settings)


def test_more_logits_than_there_are_tokens_are_refused():
  loss = test_teacher_student.made(BERT, BERT, base=BASE, loss="cross_entropy")
  with pytest.raises(UserError, match=rf"--logits {BERT.vocab_size + 1}: the vocabulary has {BERT.vocab_size} rows"):
    logits_student.outputs_of(loss, BERT, width=BERT.vocab_size + 1)
  model = dataclasses.replace(BERT, heads=(HEAD,))
  loss = test_teacher_student.made(model, model, base=HeadLosses(model, None), loss="heads")
  with pytest.raises(UserError, match="--logits 4 applies to tokens"):
    logits_student.outputs_of(loss, model, width=4)


def test_a_temperature_matters_only_for_the_bucket():
  student(BERT, manifest(TOKENS), temperature=4.0)
  student(BERT, manifest(dataclasses.replace(TOKENS, width=TOKENS.size)), temperature=4.0, tail="bucket")


def test_a_manifest_survives_json():
  written = manifest(TOKENS, OF_HEAD)
  assert LogitsManifest.from_json(written.to_json()) == written
  assert json.loads(written.to_json())["outputs"][0]["width"] == 4
