"""Losses of heads, independent of the layout of examples in rows."""

import dataclasses
import functools
import types

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
import toy

from t2t import UserError, losses, metrics, sharding
from t2t.configuration.loading import load_config, records
from t2t.data import feature_converters
from t2t.inference import row_batches
from t2t.losses import head_losses
from t2t.models import auxiliary, task_heads
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

pytestmark = pytest.mark.slow

HEADS = (
  HeadConfig("topic", 3),
  HeadConfig("likeness", 1, "score"),
  HeadConfig("cause", 1, "choice"),
  HeadConfig("names", 4, "tag"),
  HeadConfig("answer", 2, "span"),
  HeadConfig("entities", 4, "crf"),
  HeadConfig("pair", 2, "span_pair"),
)
LENGTH = 16
FEATURES = ("inputs", "token_types", "texts", "answer_heads", "answer_targets")


class Vocabulary(seqio.PassThroughVocabulary):
  """Maps ids to themselves; 0 is padding."""

  bos_id = 0

  def __init__(self):
    super().__init__(40, eos_id=1)


def example(kind, random, reads):
  """Returns an example for a head of this kind, with random texts and labels."""
  number = 2 if kind == "choice" else 1
  lengths = random.integers(2, 6, number)
  tokens = random.integers(3, 40, lengths.sum())
  texts = np.repeat(np.arange(number), lengths)
  ends = np.cumsum(lengths)
  at = ends - 1 if reads == "last" else ends - lengths
  found = {"inputs": tokens, "token_types": (np.arange(len(tokens)) % 3 == 2).astype(int), "texts": texts}
  heads, targets = np.zeros_like(tokens), np.zeros_like(tokens)
  place = [head.kind for head in HEADS].index(kind) + 1
  if kind in ("class", "score", "choice"):
    heads[at] = place
    score = np.float32(random.normal()).view(np.int32)
    targets[at] = {"class": random.integers(0, 3), "score": score, "choice": np.eye(2, dtype=int)[random.integers(2)]}[
      kind
    ]
  else:
    heads[1:] = place
    if kind == "span_pair":
      targets[1:] = random.permutation(np.r_[1, 2, random.integers(0, 4, len(tokens))])[: len(tokens) - 1]
      heads[1:] *= targets[1:] > 0
      targets += 4 * random.integers(0, 2) * (heads > 0)
    elif kind in ("tag", "crf"):
      targets[1:] = random.integers(0, 4, len(tokens) - 1)
    else:
      start = random.integers(1, len(tokens))
      targets[start] += 1
      targets[random.integers(start, len(tokens))] += 2
  return found | {"answer_heads": heads, "answer_targets": targets}


def batch_of(examples, architecture, *, pack):
  """Returns model features of examples, [rows, LENGTH]."""
  signature = dict.fromkeys(FEATURES, tf.TensorSpec([None], tf.int32))
  dataset = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)
  rows = feature_converters.convert(
    dataset, architecture, dict.fromkeys(FEATURES, LENGTH), vocabulary=Vocabulary(), pack=pack
  )
  rows = list(rows.as_numpy_iterator())
  return {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}


@functools.cache
def asked(architecture, seed=0, number=2):
  """Returns `number` examples of each kind in random order, packed and unpacked."""
  random, reads = np.random.default_rng(seed), "last" if architecture == "decoder_only" else "first"
  examples = [example(head.kind, random, reads) for head in HEADS for _ in range(number)]
  examples = [examples[i] for i in random.permutation(len(examples))]
  return tuple(batch_of(examples, architecture, pack=pack) for pack in (False, True))


def with_heads(name, heads=HEADS, **fields):
  return dataclasses.replace(toy.KINDS[name], heads=heads, **fields)


def loss_of(config, *, tokens=None):
  """Returns (parameters, batch, weights or None) -> (loss, metrics), and parameters that give distinct rows."""
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(1)
  params["heads"] = jax.tree.map(lambda x: x + 0.3 * jnp.asarray(random.normal(size=x.shape), x.dtype), params["heads"])
  loss = head_losses.HeadLosses(config, tokens)

  def compute(params, batch, weights=None):
    weights = loss.weights(batch) if weights is None else weights
    terms, metrics = loss(nnx.merge(graphdef, params), batch, weights, key=None, train=False)
    return sum(terms.values()), metrics

  return jax.jit(jax.value_and_grad(compute, has_aux=True)), params, loss


# ---- Examples in rows ------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_example_of_the_converter():
  """The docstring's arrays."""
  examples = [
    {"inputs": [8, 9, 4], "token_types": [0, 0, 0], "texts": [0, 0, 0]}
    | {"answer_heads": [1, 0, 0], "answer_targets": [5, 0, 0]},
    {"inputs": [8, 9, 8, 7], "token_types": [0, 1, 0, 1], "texts": [0, 0, 1, 1]}
    | {"answer_heads": [2, 0, 2, 0], "answer_targets": [0, 0, 1, 0]},
  ]
  (row,) = (np.asarray(x)[0, :8].tolist() for x in [batch_of(examples, "encoder_only", pack=True)["encoder_positions"]])
  assert row == [0, 1, 2, 0, 1, 0, 1, 0]
  found = {name: np.asarray(x)[0, :8].tolist() for name, x in batch_of(examples, "encoder_only", pack=True).items()}
  assert found == {
    "encoder_input_tokens": [8, 9, 4, 8, 9, 8, 7, 0],
    "encoder_token_types": [0, 0, 0, 0, 1, 0, 1, 0],
    "encoder_answer_heads": [1, 0, 0, 2, 0, 2, 0, 0],
    "encoder_answer_targets": [5, 0, 0, 0, 0, 1, 0, 0],
    "encoder_answer_groups": [1, 1, 1, 2, 2, 2, 2, 0],
    "encoder_segment_ids": [1, 1, 1, 2, 2, 3, 3, 0],
    "encoder_positions": [0, 1, 2, 0, 1, 0, 1, 0],
  }


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("value", [0.0, -0.0, 3.25, -1e-30, 1e30, float(np.float32(0.1))])
def test_bits_of_a_score_come_through(value):
  """Negative scores set the highest bit; 0.0 has all bits zero, like padding."""
  one = {name: [0, 0] for name in FEATURES} | {"inputs": [5, 6], "answer_heads": [1, 0]}
  one["answer_targets"] = [int(np.float32(value).view(np.int32)), 0]
  batch = batch_of([one], "encoder_only", pack=True)
  found = head_losses.scores_of(batch["encoder_answer_targets"])[0, 0]
  assert np.float32(found).tobytes() == np.float32(value).tobytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert", "t5_1_1", "gpt2", "prefix_lm"])
def test_packed_equals_unpacked(name):
  """Loss, gradients and every metric of two examples of each kind do not depend on packing."""
  config = with_heads(name)
  alone, packed = asked(config.architecture)
  side = config.kind.answers
  rows = [len(batch[f"{side}_input_tokens"]) for batch in (alone, packed)]
  assert rows[0] == 2 * len(HEADS) and rows[1] < rows[0] - 3
  compute, params, _ = loss_of(config)
  ((loss, metrics), gradient), ((expected, theirs), expected_gradient) = compute(params, packed), compute(params, alone)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-5)
  toy.assert_trees_close({n: x.value() for n, x in metrics.items()}, {n: x.value() for n, x in theirs.items()})
  # A bias added to all candidates or positions does not change a softmax.
  idle = ("heads/cause/projection_bias", "heads/answer/projection_bias")
  assert all(np.any(x) for path, x in toy.flat(gradient).items() if path.startswith("heads/") and path not in idle)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", ["gpt2", "prefix_lm"])
def test_a_text_that_is_answered_is_a_prefix(name):
  """A prefix language model attends bidirectionally to the whole text, in training and in inference."""
  kind = example("choice", np.random.default_rng(0), "last")
  number = len(kind["inputs"])
  trained = batch_of([kind], "decoder_only", pack=False)
  trained = {name: x for name, x in trained.items() if "answer" not in name}
  asked = row_batches.features_of([kind], LENGTH, side="decoder", pad_id=0)
  assert {name: x.tolist() for name, x in trained.items()} == {name: x.tolist() for name, x in asked.items()}
  model = toy.model(toy.KINDS[name])
  states = jax.jit(lambda tokens: model.states({**trained, "decoder_input_tokens": tokens})[0])
  tokens = trained["decoder_input_tokens"]
  end = int(np.sum(kind["texts"] == 0)) - 1
  changed = np.any(np.asarray(states(tokens) != states(tokens.at[0, end].add(1)))[:number], axis=-1)
  assert changed[end] and changed[:end].tolist() == [name == "prefix_lm"] * end
  assert not changed[end + 1 :].any()


@pytest.mark.exhaustive
def test_parts_of_a_batch_add_up():
  """Microbatches with uneven labels sum to the loss of the whole batch."""
  config = with_heads("bert")
  batch, _ = asked("encoder_only")
  compute, params, loss = loss_of(config)
  (expected, measured), expected_gradient = compute(params, batch)
  weights = loss.weights(batch)
  parts = [{name: x[rows] for name, x in batch.items()} for rows in (slice(0, 2), slice(2, None))]
  found = [compute(params, part, weights) for part in parts]
  np.testing.assert_allclose(sum(each[0][0] for each in found), expected, rtol=1e-5)
  toy.assert_trees_close(jax.tree.map(jnp.add, found[0][1], found[1][1]), expected_gradient)
  added = metrics.merge(*(each[0][1] for each in found))
  for name, whole in measured.items():
    np.testing.assert_allclose(added[name].value(), whole.value(), rtol=1e-5, err_msg=name)
  np.testing.assert_allclose(measured["loss"].value(), expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_what_a_head_alone_measures_does_not_depend_on_the_batch():
  """Every tag counts alike, independent of batches with sentences of different lengths."""
  config = with_heads("bert", heads=tuple(head for head in HEADS if head.kind == "tag"))
  random = np.random.default_rng(3)
  batch = batch_of([example("tag", random, "first") for _ in range(5)], "encoder_only", pack=False)
  batch["encoder_answer_heads"] = np.minimum(batch["encoder_answer_heads"], 1)
  compute, params, _ = loss_of(config)
  (_, whole), _ = compute(params, batch)
  parts = [compute(params, {name: x[rows] for name, x in batch.items()})[0][1] for rows in (slice(0, 1), slice(1, 5))]
  for name, expected in whole.items():
    np.testing.assert_allclose(metrics.merge(*parts)[name].value(), expected.value(), rtol=1e-5, err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh_shape", [{"data": 8}, {"data": 4, "tensor": 2}, {"fsdp": 2, "sequence": 4}])
def test_the_mesh_changes_nothing(mesh_shape):
  """Rows, or parts of rows, are distributed over eight devices."""
  batch = asked("encoder_only", number=8)[0]
  config = with_heads("bert")
  compute, params, _ = loss_of(config)
  (expected, _), expected_gradient = compute(params, batch)
  mesh = sharding.make_mesh(mesh_shape)
  with jax.set_mesh(mesh):
    compute, *_ = loss_of(config)
    (loss, _), gradient = compute(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-5, rtol=1e-4)


# ---- Losses of each kind ---------------------------------------------------------------------------------------------


def logsumexp(x):
  return np.log(np.sum(np.exp(x)))


def by_hand(head, logits, targets):
  """Computes loss, number of answers and number of right answers of one example from its logits."""
  if head.kind == "span_pair":
    logits, targets = logits[:1], targets[:1] >> 2
  if head.kind in ("class", "tag", "span_pair"):
    loss = sum(logsumexp(row) - row[target] for row, target in zip(logits, targets, strict=True))
    return loss, len(targets), np.sum(logits.argmax(-1) == targets)
  if head.kind == "score":
    error = logits[0, 0] - np.int32(targets[0]).view(np.float32)
    return error**2, 1, abs(error) <= 0.5
  if head.kind == "choice":
    scores = logits[:, 0]
    return logsumexp(scores) - logsumexp(scores[targets > 0]), 1, targets[scores.argmax()] > 0
  start, end = np.flatnonzero(targets % 2)[0], np.flatnonzero(targets >= 2)[0]
  loss = sum(logsumexp(logits[:, i]) - logits[at, i] for i, at in enumerate((start, end))) / 2
  return loss, 1, logits[:, 0].argmax() == start and logits[:, 1].argmax() == end


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_each_term_is_its_formula(seed):
  """Each head's loss is a mean over answers, weighted by its fraction of examples."""
  config = with_heads("bert")
  batch, _ = asked("encoder_only", seed=seed)
  graphdef, _ = toy.split(toy.model(config))
  compute, params, _ = loss_of(config)
  (loss, metrics), _ = compute(params, batch)
  model = nnx.merge(graphdef, params)
  # tests/models/test_crf.py has the formula of tags with transitions.
  names = [head.name for head in HEADS if head.kind != "crf"]
  logits = {n: np.asarray(x) for n, x in head_losses.all_answers(model, batch, names).items()}
  sums = {head.name: np.zeros(3) for head in HEADS}
  host = {name.removeprefix("encoder_answer_"): np.asarray(x) for name, x in batch.items()}
  for row in range(2 * len(HEADS)):
    at = host["heads"][row] > 0
    head = HEADS[host["heads"][row][at][0] - 1]
    if head.name not in logits:
      continue
    sums[head.name] += by_hand(head, logits[head.name][row][at], host["targets"][row][at])
  del sums["entities"]
  for name, (total, answers, right) in sums.items():
    np.testing.assert_allclose(metrics[f"{name}_loss"].value(), total / answers, rtol=1e-4)
    np.testing.assert_allclose(metrics[f"{name}_accuracy"].value(), right / answers, rtol=1e-5)
  losses_of_heads = [total / answers for total, answers, _ in sums.values()]  # two examples of each
  expected = np.mean([*losses_of_heads, metrics["entities_loss"].value()])
  np.testing.assert_allclose(loss, expected, rtol=1e-4)
  np.testing.assert_allclose(metrics["loss"].value(), expected, rtol=1e-4)


@pytest.mark.exhaustive
def test_one_of_several_right_candidates_is_enough():
  """Probabilities of several right candidates are added, and count as one answer."""
  one = {name: [0, 0, 0] for name in FEATURES} | {"inputs": [5, 6, 7], "texts": [0, 1, 2]}
  one |= {"answer_heads": [3, 3, 3], "answer_targets": [1, 0, 1]}
  config = with_heads("bert")
  compute, params, loss = loss_of(config)
  batch = batch_of([one], "encoder_only", pack=False)
  assert loss.weights(batch)["cause"] == 1.0
  logits = head_losses.all_answers(nnx.merge(toy.split(toy.model(config))[0], params), batch, ["cause"])["cause"][
    0, :3, 0
  ]
  expected = -np.log(jax.nn.softmax(logits)[jnp.array([0, 2])].sum())
  np.testing.assert_allclose(compute(params, batch)[0][0], expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_examples_of_a_mixture_count_alike():
  """With three examples of one task and one of another, the second task has a quarter of the loss."""
  random = np.random.default_rng(0)
  examples = [example("class", random, "first") for _ in range(3)] + [example("tag", random, "first")]
  compute, params, _ = loss_of(with_heads("bert"))
  batch = batch_of(examples, "encoder_only", pack=False)
  (loss, metrics), _ = compute(params, batch)
  expected = 0.75 * metrics["topic_loss"].value() + 0.25 * metrics["names_loss"].value()
  np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_a_head_that_is_not_asked_costs_nothing():
  """A head without labels has zero gradients, not NaN."""
  batch = batch_of([example("class", np.random.default_rng(0), "first")], "encoder_only", pack=False)
  compute, params, _ = loss_of(with_heads("bert"))
  (loss, _), gradient = compute(params, batch)
  assert np.isfinite(loss) and all(np.all(np.isfinite(x)) for x in jax.tree.leaves(gradient))
  assert not any(np.any(x) for path, x in toy.flat(gradient).items() if path.startswith(("heads/cause", "heads/names")))


@pytest.mark.parametrize("kind", ["class", "score", "choice", "tag", "span"])
def test_a_loss_needs_memory_for_its_positions_alone(kind):
  """Memory is linear, not quadratic, in the length."""
  (head,) = (head for head in HEADS if head.kind == kind)
  loss = head_losses.HeadLosses(toy.encoder(heads=(head,)), None)

  def scored(hidden: jax.Array) -> jax.Array:
    """Returns logits of a model whose states are its logits, with heads that read all positions."""
    ones = jnp.ones(hidden.shape[:2], jnp.int32)
    batch = {f"encoder_{name}": ones for name in ("answer_heads", "answer_targets", "answer_groups", "input_tokens")}
    model = types.SimpleNamespace(
      heads={head.name: types.SimpleNamespace(layers="last", reads="each")},
      hidden_states=lambda batch, **options: auxiliary.Hidden(hidden),
      head_logits=lambda name, hidden, dropout_key: hidden,
    )
    terms, _ = loss(model, batch, loss.weights(batch), key=None, train=False)
    return sum(terms.values())

  def most(length: int) -> int:
    traced = jax.make_jaxpr(jax.grad(scored))(jnp.ones((2, length, head.num_classes)))
    return max(out.aval.size for equation, _ in toy.equations(traced.jaxpr) for out in equation.outvars)

  assert most(512) < 5 * most(128)


@pytest.mark.exhaustive
def test_constant_answers():
  """The baseline is the entropy, variance, or chance among candidates."""
  batch, _ = asked("encoder_only", number=4)
  for kind, expected in (("class", np.log(3)), ("choice", np.log(2)), ("score", 4.0)):
    place = [head.kind for head in HEADS].index(kind)
    own = jnp.where(batch["encoder_answer_heads"] == place + 1, place + 1, 0)
    (found,) = head_losses.HeadLosses(with_heads("bert"), None).baselines([batch | {"encoder_answer_heads": own}], 40)
    assert 0 < found.loss <= expected + 1e-5


# ---- Inputs of heads -------------------------------------------------------------------------------------------------


def test_a_mean_is_of_the_own_text():
  """The mean is over the segment without padding, at each of its positions."""
  hidden = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
  segments = np.array([[1, 1, 2, 2, 2], [1, 0, 0, 0, 0]])
  found = task_heads.mean_of_segments(jnp.asarray(hidden), jnp.asarray(segments))
  np.testing.assert_allclose(found[0, :2], np.tile(hidden[0, :2].mean(0), (2, 1)), rtol=1e-5)
  np.testing.assert_allclose(found[0, 2:], np.tile(hidden[0, 2:].mean(0), (3, 1)), rtol=1e-5)
  np.testing.assert_allclose(found[1], [hidden[1, 0], *np.zeros((4, 3))], rtol=1e-5)


def test_a_concatenation_is_of_the_own_text():
  """Last state, maximum and mean of the segment, also if maxima are equal; padding has and gives nothing."""
  hidden = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32).round(1)
  segments = np.array([[1, 1, 2, 2, 2], [1, 0, 0, 0, 0]])
  pooled = jax.jit(task_heads.concat_of_segments)
  found = pooled(hidden, segments)
  for row, start, stop in ((0, 0, 2), (0, 2, 5), (1, 0, 1)):
    text = hidden[row, start:stop]
    expected = np.concatenate([text[-1], text.max(0), text.mean(0)])
    np.testing.assert_allclose(found[row, start:stop], np.tile(expected, (stop - start, 1)), atol=1e-6)
  assert not np.any(found[1, 1:])
  other = np.where(segments[..., None] > 0, hidden, np.nan).astype(np.float32)
  np.testing.assert_array_equal(pooled(jnp.nan_to_num(other, nan=9.0), segments), found)
  read = task_heads.read_texts(jnp.asarray(hidden), jnp.asarray(segments), number=2, reads="concat")
  np.testing.assert_allclose(read, [[found[0, 0], found[0, 2]], [found[1, 0], np.zeros(9)]], atol=1e-6)


def test_the_gradient_of_a_concatenation():
  """It equals the gradient of jnp.max and jnp.mean over the text alone, also where maxima are equal."""
  hidden = jnp.asarray([[[1.0, 5.0], [3.0, 5.0], [3.0, 2.0], [9.0, 9.0]]])
  weights = jnp.asarray(np.random.default_rng(0).normal(size=6))
  segments = jnp.asarray([[1, 1, 1, 0]])
  theirs = lambda x: jnp.concatenate([x[0, 2], jnp.max(x[0, :3], 0), jnp.mean(x[0, :3], 0)]) @ weights
  ours = lambda x: task_heads.concat_of_segments(x, segments)[0, 0] @ weights
  np.testing.assert_allclose(jax.grad(ours)(hidden), jax.grad(theirs)(hidden), atol=1e-6)


def test_a_concatenation_of_computed_states_has_a_gradient():
  """A compiler may compute the states twice and round differently, so that none equals the maximum."""
  random = np.random.default_rng(0)
  x, kernel, weights = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((2, 32, 16), (16, 16), 48))
  segments = jnp.asarray([[1] * 26 + [0] * 6, [1] * 20 + [0] * 12])

  def states(kernel):
    y = x + jax.nn.gelu(x @ kernel) @ kernel.T
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    return 1.1 * y * jax.lax.rsqrt(jnp.mean(y**2, axis=-1, keepdims=True) + 1e-6) + 0.3

  def ours(kernel):
    return jnp.sum(task_heads.read_texts(states(kernel), segments, number=1, reads="concat") @ weights)

  def theirs(kernel):
    texts = [states(kernel)[row, :length] for row, length in ((0, 26), (1, 20))]
    return sum(jnp.concatenate([text[-1], jnp.max(text, 0), jnp.mean(text, 0)]) @ weights for text in texts)

  value, gradient = jax.jit(jax.value_and_grad(ours))(kernel)
  expected, expected_gradient = jax.value_and_grad(theirs)(kernel)
  np.testing.assert_allclose(value, expected, rtol=1e-4)
  np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert", "t5_1_1", "gpt2"])
def test_a_class_head_of_the_concatenation_does_not_depend_on_packing(name):
  """And it has three times the model's width."""
  config = with_heads(name, (HeadConfig("topic", 3, reads="concat"),))
  reads = "last" if name == "gpt2" else "first"
  examples = [example("class", np.random.default_rng(seed), reads) for seed in range(4)]
  alone, packed = (batch_of(examples, config.architecture, pack=pack) for pack in (False, True))
  compute, params, _ = loss_of(config)
  assert params["heads"]["topic"]["projection" if name == "gpt2" else "pooler"].shape[0] == 3 * config.embed_dim
  ((loss, _), gradient), ((expected, _), expected_gradient) = compute(params, packed), compute(params, alone)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert", "t5_1_1", "gpt2", "albert"])
def test_every_layer(name):
  """States are the embedding and the output of each layer; the last is the model's output."""
  config = toy.KINDS[name]
  model, batch = toy.model(config), toy.batch(architecture=config.architecture)
  states = model.states(batch, every_layer=True)
  assert len(states) == 1 + (config.num_encoder_layers or config.num_decoder_layers)
  np.testing.assert_allclose(states[-1], model.states(batch), atol=1e-6)
  assert len({np.asarray(x).tobytes() for x in states}) == len(states)
  fewer = {"num_encoder_layers": 1} if config.num_encoder_layers else {"num_decoder_layers": 1}
  if not config.share_layers and config.post_norm:
    graphdef, params = toy.split(model)
    shorter = toy.split(toy.model(dataclasses.replace(config, **fewer)))[0]
    side = config.kind.answers
    first = params | {side: params[side] | {"layers": jax.tree.map(lambda x: x[:1], params[side]["layers"])}}
    np.testing.assert_allclose(states[1], nnx.merge(shorter, first).states(batch), atol=1e-5)


@pytest.mark.exhaustive
def test_a_mix_of_layers_is_weighed():
  """The mix is scale * sum of softmax(weights) * states, initially their mean; weights and scale have gradients."""
  head = HeadConfig("topic", 3, layers="mix", reads="mean", pooler="")
  config = with_heads("bert", (head,))
  batch, _ = asked("encoder_only")
  batch = batch | {"encoder_answer_heads": jnp.where(batch["encoder_answer_heads"] == 1, 1, 0)}
  compute, params, _ = loss_of(config)
  own, model = params["heads"]["topic"], toy.model(config)
  states = np.asarray(model.states(batch, every_layer=True))
  weights = np.exp(own["mix"]) / np.exp(own["mix"]).sum() * own["mix_scale"]
  mixed = np.einsum("s,sble->ble", weights, states)
  segments = batch["encoder_segment_ids"]
  expected = task_heads.mean_of_segments(mixed, segments) @ own["projection"] + own["projection_bias"]
  graphdef, _ = toy.split(model)
  found = head_losses.all_answers(nnx.merge(graphdef, params), batch, ["topic"])["topic"]
  real = np.asarray(segments) > 0
  np.testing.assert_allclose(np.asarray(found)[real], np.asarray(expected)[real], atol=1e-4)
  gradient = compute(params, batch)[1]["heads"]["topic"]
  assert np.all(gradient["mix"] != 0) and gradient["mix_scale"] != 0


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def test_what_is_not_read_is_not_trained():
  """An unused vocabulary head or decoder is frozen, because weight decay would shrink it."""
  for name in ("bert", "t5_1_1"):
    config = records(load_config("tiny"))
    config = dataclasses.replace(config, model=with_heads(name)).with_(train={"loss": "heads"})
    _, state, _ = recipe.make(config).state(sharding.make_mesh({"fsdp": 8}))
    frozen = {path.split("/")[0] for path in toy.flat(state.frozen_params)}
    assert frozen == ({"head"} if name == "bert" else {"head", "decoder"})
    assert any(path.startswith("heads/") for path in toy.flat(state.params))


def test_a_model_without_heads_answers_nothing():
  """The message names a remedy."""
  config = records(load_config("tiny_bert")).with_(train={"loss": "heads"})
  with pytest.raises(
    UserError, match=r"loss=heads: no head of config.model.heads can be trained. Give config.data.mixture"
  ):
    recipe.make(config)


def test_what_the_held_out_loss_is_a_number_of():
  """The unit is a token if tokens are predicted, else an answer."""
  config = with_heads("bert")
  assert head_losses.HeadLosses(config, None).unit == "per answer"
  assert head_losses.HeadLosses(config, losses.CrossEntropyConfig(0.0, 0.0, 8)).unit == "nats per target token"


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", ["bert", "t5_1_1", "gpt2", "t5gemma"])
def test_flops_are_those_of_the_side_that_answers(name):
  """An unused decoder has no FLOPs."""
  config = with_heads(name)
  sizes = {"batch_size": 2, "lengths": {config.kind.answers: 8}, "predicted": 0.0}
  found = head_losses.HeadLosses(config, None).flops(config, **sizes)
  assert 0 < found == losses.CrossEntropy(toy.loss_config()).flops(config, **sizes)
