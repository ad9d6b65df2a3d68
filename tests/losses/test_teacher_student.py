"""Losses with teachers: a student that equals its teacher has no distance, and microbatches add up."""

import dataclasses
import json
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.configuration.schema import StageConfig
from t2t.losses import soft_tokens, teacher_student, transfer_terms
from t2t.losses.cross_entropy import CrossEntropy, CrossEntropyConfig
from t2t.losses.distillation import DistillationConfig
from t2t.losses.head_losses import HeadLosses, HeadTargets
from t2t.models import attention, masks, observation, positions
from t2t.models.head_config import HeadConfig

ALL = dict(hidden_weight=1.0, embedding_weight=1.0, cosine_weight=1.0, attention_weight=1.0, relation_weight=1.0)
ALL |= dict(relations=("query", "key", "value"), dtype="float32")
HEAD = HeadConfig("label", 3, "class")


def made(model, *teachers, base=None, loss="cross_entropy", stages=(), parameters=True, **settings):
  """Returns the loss of a student with teachers of these shapes."""
  paths = tuple(f"runs/{number}" for number in range(len(teachers)))
  models = tuple(json.dumps(dataclasses.asdict(teacher)) for teacher in teachers)
  run = types.SimpleNamespace(
    distillation=DistillationConfig(teacher=paths, models=models, **settings),
    train=types.SimpleNamespace(loss=loss),
    init=types.SimpleNamespace(parameters=parameters),
    adapters={},
    model=model,
    stages=stages,
  )
  base = base or CrossEntropy(CrossEntropyConfig(1e-4, 0.0, 8))
  return teacher_student.TeacherLoss.wrapping(base, run)


def built(loss, model, *, same=False):
  """Returns the module of a loss; `same`: the teacher has the student's parameters."""
  graphdef, params = nnx.split(loss.build(model, nnx.Rngs(0)), graph=False)
  params = nnx.to_pure_dict(params)
  return nnx.merge(graphdef, params | {"teacher": params["student"]} if same else params)


def check_equal_models(kind):
  """All terms of a student are 0 if the teacher has its parameters; both see the same tokens as likeliest."""
  model = toy.KINDS[kind]
  loss, batch = made(model, model, **ALL), toy.batch(architecture=model.architecture)
  module = built(loss, model, same=True)
  terms, metrics = jax.jit(lambda batch: loss(module, batch, loss.weights(batch), key=None, train=False))(batch)
  of_teacher = {name for name in terms if name not in ("loss", *loss.auxiliary.rows)}
  names = {"hidden_states", "embeddings", "attention", "relations"}
  names = {f"{side}_{name}" for side in loss.sides for name in names} if len(loss.sides) > 1 else names
  assert of_teacher == names | {"soft_targets", "cosine"}
  for name in of_teacher:
    np.testing.assert_allclose(terms[name], 0.0, atol=1e-5, err_msg=name)
  assert metrics["agreement"].value() == 1.0


@pytest.mark.slow
def test_a_student_that_equals_its_teacher_has_no_distance():
  check_equal_models("t5_1_1")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["llama", "bert", "mobilebert", "deberta", "modern_bert", "gemma", "bart"])
def test_every_family_observes_its_layers(kind):
  check_equal_models(kind)


@pytest.mark.slow
def test_terms_of_microbatches_add_up_and_the_teacher_is_a_constant():
  """A wider teacher with two layers for each of the student's; the student begins as without a teacher."""
  model = toy.encoder(num_encoder_layers=1, num_heads=2)
  teacher = toy.encoder(num_encoder_layers=2, num_heads=2, embed_dim=24)
  loss, batch = made(model, teacher, **ALL, layers=("uniform",)), toy.batch(architecture="encoder_only")
  module = built(loss, model)
  graphdef, params = nnx.split(module, graph=False)
  params = nnx.to_pure_dict(params)
  alone = nnx.to_pure_dict(nnx.split(loss.base.build(model, nnx.Rngs(0)), graph=False)[1])
  jax.tree.map(np.testing.assert_array_equal, params["student"], alone)
  assert params["projections"].keys() == {"encoder_hidden", "encoder_embedding"}
  weights = loss.weights(batch)

  @jax.jit
  def gradient(batch):
    def total(params):
      terms, _ = loss(nnx.merge(graphdef, params), batch, weights, key=None, train=False)
      return sum(terms.values())

    return jax.grad(total)(params)

  whole = gradient(batch)
  halves = [gradient({name: jnp.repeat(x[i : i + 1], 2, axis=0) for name, x in batch.items()}) for i in range(2)]
  for part in ("student", "projections"):  # each half is there twice
    added = jax.tree.map(lambda a, b: 0.5 * (a + b), *(half[part] for half in halves))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), whole[part], added)
    assert any(np.any(x) for x in jax.tree.leaves(whole[part]))
  assert not any(np.any(x) for x in jax.tree.leaves(whole["teacher"]))


def test_soft_targets_in_chunks_equal_those_of_whole_logits():
  """Two teachers, one with a larger vocabulary, whose additional rows are left out; also the gradients."""
  random = np.random.default_rng(0)
  normal = lambda *shape: jnp.array(random.normal(size=shape), jnp.float32)
  hidden, teachers = normal(2, 6, 4), [(normal(5, 11), normal(2, 6, 5)), (normal(3, 13), normal(2, 6, 3))]
  projection, weights = normal(4, 11), jnp.array(random.integers(0, 2, (2, 6)), jnp.float32)
  as_fn = lambda kernel: jax.tree_util.Partial(_product, kernel)
  functions = tuple((as_fn(kernel), x) for kernel, x in teachers)
  options = dict(temperature=2.0, sparse=True)

  def chunked(projection, hidden):
    config = CrossEntropyConfig(0.0, 0.0, 5)
    return soft_tokens.soft_sums(config, as_fn(projection), hidden, functions, weights, **options)[0]

  def whole(projection, hidden):
    mean = sum((x @ kernel)[..., :11] for kernel, x in teachers) / 2
    return jnp.sum(weights * transfer_terms.soft_targets(hidden @ projection, mean, 2.0))

  expected, found = (jax.value_and_grad(f, argnums=(0, 1))(projection, hidden) for f in (whole, chunked))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def _product(kernel, hidden):
  return hidden @ kernel


def test_soft_targets_of_heads():
  """Classes of one text, and candidates of an example at positions 0 and 2."""
  random, at = np.random.default_rng(0), jnp.array([[True, False, True, False]])
  targets = HeadTargets(at, jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4), jnp.int32))
  student, teacher = jnp.array(random.normal(size=(2, 1, 4, 3)), jnp.float32)
  found, agrees = teacher_student.soft_head(HEAD, student, teacher, targets, 2.0)
  expected = transfer_terms.soft_targets(student, teacher, 2.0)
  np.testing.assert_allclose(found, jnp.where(at, expected, 0.0))
  np.testing.assert_array_equal(agrees, at * (student.argmax(-1) == teacher.argmax(-1)))
  choice = HeadConfig("best", 1, "choice")
  found, _ = teacher_student.soft_head(choice, student[..., :1], teacher[..., :1], targets, 2.0)
  candidates = student[0, ::2, 0], teacher[0, ::2, 0]
  np.testing.assert_allclose(jnp.sum(found), transfer_terms.soft_targets(*candidates, 2.0), rtol=1e-4)


@pytest.mark.slow
def test_soft_targets_of_heads_have_finite_gradients():
  """Also in rows that begin without a label, as [CLS] before a span, and in rows without any."""
  random = np.random.default_rng(0)
  at = jnp.array([[False, True, False, True, False], [False] * 5])
  targets = HeadTargets(at, jnp.zeros((2, 5), jnp.int32), jnp.array([[1, 1, 1, 1, 0]] * 2, jnp.int32))

  def total(x, kind):
    teacher = jnp.flip(x)
    return jnp.sum(teacher_student.soft_head(types.SimpleNamespace(kind=kind), x, teacher, targets, 2.0)[0])

  for kind in teacher_student._SOFT_HEADS:
    logits = jnp.array(random.normal(size=(2, 5, 1 if kind in ("score", "choice") else 2)), jnp.float32)
    gradient = np.asarray(jax.grad(total)(logits, kind))
    assert np.all(np.isfinite(gradient)) and np.any(gradient[0]), kind


BERT = toy.KINDS["bert"]
ONE = dataclasses.replace(BERT, num_encoder_layers=1)
CRF = dataclasses.replace(BERT, heads=(HeadConfig("label", 3, "crf"),))
HEADS = HeadLosses(dataclasses.replace(BERT, heads=(HEAD,)), None)


@pytest.mark.parametrize(
  "changed, message",
  [
    (dict(teacher=toy.KINDS["llama"]), "architecture=decoder_only, the student encoder_only"),
    (dict(layers=("0", "1", "7")), "3 layers in the teacher, 0 to 2, but the map names layer 7"),
    (dict(teacher=dataclasses.replace(BERT, num_encoder_layers=2)), "3 layers in the student and 2 in the teacher"),
    (dict(teacher=dataclasses.replace(BERT, num_heads=2)), "4 heads in the student and 2 in the teacher"),
    (dict(relation_weight=1.0, relation_heads=5), "relation_heads=5 does not divide the value width 24"),
    (dict(teacher=toy.KINDS["longformer"]), "the teacher has config.model.attention=longformer"),
    (dict(teacher=toy.KINDS["xlnet"]), "two_streams=True of the teacher"),
    (dict(teacher=dataclasses.replace(BERT, vocabulary_head=False)), "the teacher has no vocabulary head"),
    (dict(model=HEADS.config, base=HEADS, loss="heads"), "the teacher has no head 'label'. Its heads: none"),
    (
      dict(
        model=HEADS.config,
        base=HEADS,
        loss="heads",
        teacher=dataclasses.replace(BERT, heads=(HeadConfig("label", 2, "class"),)),
      ),
      "the head 'label' differs: num_classes is 2 in the teacher and 3 in the student",
    ),
    (dict(loss="electra"), "needs config.train.loss=cross_entropy or heads or tokens_and_heads, not electra"),
    (dict(temperature=0.0), "temperature=0.0: must be above 0"),
    (dict(soft_weight=-1.0), "soft_weight=-1.0: must be at least 0"),
    (dict(soft_weight=0.0, hidden_weight=0.0, attention_weight=0.0), "all weights of the teacher's terms are 0"),
    (dict(attention_loss="cosine"), "attention_loss=cosine: unknown value. Known values: scores, probabilities, kl"),
    (dict(mean_weight=1.0), "mean_weight=1.0 needs config.distillation.hidden_loss=normalized"),
    (
      dict(model=ONE, layers=("skip",), soft_weight=0.0, attention_weight=0.0),
      "the teacher has no effect: the map has",
    ),
    (
      dict(model=CRF, teacher=CRF, base=HeadLosses(CRF, None), loss="heads", hidden_weight=0.0, attention_weight=0.0),
      "the teacher has no effect: heads of kind crf have no soft targets",
    ),
    (dict(parameters=False), "init.parameters=False: the teacher would have random parameters"),
  ],
)
def test_teachers_that_do_not_fit_are_refused(changed, message):
  options = dict(model=BERT, teacher=BERT, hidden_weight=1.0, attention_weight=1.0) | changed
  with pytest.raises(UserError, match=message):
    made(options.pop("model"), options.pop("teacher"), **options)


def test_predictions_without_a_term_are_not_trained():
  """TinyBERT's first stage has no soft and hard targets, so the head has no gradient; a later stage may have them."""
  settings = dict(soft_weight=0.0, hard_weight=0.0, hidden_weight=1.0)
  assert made(BERT, BERT, **settings).untrained_params(BERT) == ("^student/head/",)
  assert made(BERT, BERT, **settings, stages=(StageConfig("a"), StageConfig("b"))).untrained_params(BERT) == ()
  assert made(BERT, BERT).untrained_params(BERT) == ()


def test_flops_have_a_forward_pass_of_each_teacher():
  sizes = dict(batch_size=2, lengths={"encoder": 8}, predicted=0.5)
  alone = CrossEntropy(CrossEntropyConfig(0.0, 0.0, 8)).flops(BERT, **sizes)
  loss = made(BERT, BERT, BERT, dtype="float32")
  logits = alone - CrossEntropy(CrossEntropyConfig(0.0, 0.0, 8)).flops(BERT, **(sizes | {"predicted": 0.0}))
  np.testing.assert_allclose(loss.flops(BERT, **sizes), alone + logits + 2 * alone / 3, rtol=1e-6)


@pytest.mark.parametrize("kind", ["t5_1_1", "bert"])
def test_relations_of_queries_are_of_unscaled_projections(kind):
  """MiniLM: softmax(Q Q^T / sqrt(d)) with Q = x W_q + b; T5 has no scale in the attention, BERT has 1 / sqrt(d)."""
  config = toy.KINDS[kind]
  assert config.scale_attention == (kind == "bert")
  module = attention.Attention(config, nnx.Rngs(0))
  random = np.random.default_rng(0)
  x = jnp.array(random.normal(size=(2, 5, config.embed_dim)), jnp.float32)
  if module.query_bias is not None:
    module.query_bias[...] = jnp.array(random.normal(size=module.query_bias.shape), jnp.float32)
  keys = module._project(x, "key", None)
  observed = observation.Observation(projections=True).at(
    module, x, keys, keys, mask=masks.AttentionMask(), positions=positions.Positions()
  )
  query = x @ module.query[...] + (0.0 if module.query_bias is None else module.query_bias[...])
  query = query.reshape(2, 5, config.num_heads, config.head_dim).swapaxes(1, 2)
  expected = query @ query.swapaxes(-1, -2) / config.head_dim**0.5
  found = transfer_terms.relation_logits(observed[observation.QUERY], jnp.array(True), heads=0)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_moments_alone_have_a_projection():
  """A student of another width without hidden_weight."""
  narrow = dataclasses.replace(BERT, embed_dim=12)
  settings = dict(hidden_loss="normalized", mean_weight=1.0, dtype="float32")
  loss = made(narrow, BERT, **settings)
  module = nnx.eval_shape(lambda: loss.build(narrow, nnx.Rngs(0)))
  assert dict(module.projections).keys() == {"encoder_hidden"}


def test_stages_share_projections():
  """TinyBERT's second stage has no terms of layers, but the parameters of the first."""
  narrow = dataclasses.replace(BERT, embed_dim=12)
  changes = {"distillation.hidden_weight": 1.0, "distillation.embedding_weight": 1.0}
  stages = (StageConfig("layers", changes=changes), StageConfig("predictions"))
  loss = made(narrow, BERT, stages=stages)
  module = nnx.eval_shape(lambda: loss.build(narrow, nnx.Rngs(0)))
  assert dict(module.projections).keys() == {"encoder_hidden", "encoder_embedding"}
