"""The span boundary objective: data, loss and whole runs."""

import dataclasses
import functools

from etils import epath
from flax import nnx
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
import toy

from t2t import UserError, feature_spec, losses, sharding
from t2t.configuration import stages
from t2t.configuration.loading import load_config, override, records
from t2t.data import feature_converters, train_data
from t2t.data.objectives import masking
from t2t.losses import head_losses, span_boundary
from t2t.models.head_config import HeadConfig
from t2t.training import recipe
from t2t.training.metric_writers import read_metrics
from t2t.training.train import train

pytestmark = pytest.mark.slow

HEAD = HeadConfig("sbo", 3, "boundary")  # spans of the objective are longer
FEATURES = ("inputs", "targets", "loss_weights", *feature_spec.ANSWERED[1:])
LENGTH = 24


class Vocabulary(seqio.PassThroughVocabulary):
  """Maps ids to themselves; 0 is padding, 1 EOS, 37 a mask; with `framed` 38 is [CLS] and 39 [SEP]."""

  mask_id, bos_id = 37, 1

  def __init__(self, framed=True):
    super().__init__(40, eos_id=1)
    self.cls_id, self.sep_id = (38, 39) if framed else (None, None)
    self.special_ids = frozenset({0, 1, 37, 38, 39})

  def token_texts(self):
    return [" x"] * 40


def masked(lengths, *, framed=True, seed=1, noise_density=0.3):
  """Returns examples of the objective from random texts of these lengths."""
  random = np.random.default_rng(seed)
  rows = tf.ragged.constant([random.integers(3, 37, length).tolist() for length in lengths], tf.int32)
  dataset = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: {"targets": row})
  feature = seqio.Feature(Vocabulary(framed), add_eos=True)
  with seqio.map_seed_manager(initial_seed=seed):
    made = masking.masked_spans(
      dataset,
      {"inputs": LENGTH, "targets": LENGTH},
      {"targets": feature},
      noise_density=noise_density,
      merge_documents=False,
    )
  return list(made.as_numpy_iterator())


@functools.cache
def batches(seed=1):
  """Returns ten texts, unpacked and packed."""
  lengths = np.random.default_rng(seed).integers(5, LENGTH - 2, 10)

  def batch(pack):
    signature = dict.fromkeys(FEATURES, tf.TensorSpec([None], tf.int32))
    dataset = tf.data.Dataset.from_generator(lambda: iter(masked(lengths, seed=seed)), output_signature=signature)
    rows = feature_converters.convert(
      dataset, "encoder_only", dict.fromkeys(FEATURES, 2 * LENGTH), vocabulary=Vocabulary(), pack=pack
    )
    rows = list(rows.as_numpy_iterator())
    return {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}

  return batch(False), batch(True)


def with_head(name="bert", head=HEAD, **fields):
  return dataclasses.replace(toy.KINDS[name], heads=(head,), max_length=60, **fields)


def loss_of(config, **fields):
  """Returns (parameters, batch, weights or None) -> (loss, metrics) with gradients, nonzero parameters, the loss."""
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(1)
  params["heads"] = jax.tree.map(lambda x: x + 0.2 * jnp.asarray(random.normal(size=x.shape), x.dtype), params["heads"])
  loss = head_losses.HeadLosses(config, toy.loss_config(**fields))

  def compute(params, batch, weights=None):
    weights = loss.weights(batch) if weights is None else weights
    terms, metrics = loss(nnx.merge(graphdef, params), batch, weights, key=None, train=False)
    return sum(terms.values()), (terms, metrics)

  return jax.jit(jax.value_and_grad(compute, has_aux=True)), params, loss


def spans_of(chosen):
  """Returns (first, last) of each run."""
  edges = np.diff(np.concatenate([[0], chosen.astype(int), [0]]))
  return list(zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1, strict=True))


# ---- Data ------------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_docstrings():
  """The docstrings' arrays, for some seed."""
  flags = lambda *bits: tf.constant([bool(bit) for bit in bits])
  heads, targets = masking.asked_spans(flags(1, 0, 1, 1, 0, 1, 0))
  assert heads.numpy().tolist() == [0, 0, 1, 1, 0, 1, 0] and targets.numpy().tolist() == [0, 0, 1, 2, 0, 3, 0]
  found = span_boundary.bounds(jnp.array([[0, 1, 1, 0, 1, 0]], bool), jnp.array([[0, 1, 2, 0, 3, 0]]))
  expected = [[[0, 0, 0, 0, 3, 3]], [[3, 3, 3, 5, 5, 5]], [[0, 0, 1, 2, 0, 1]]]
  assert [x.tolist() for x in found] == expected
  feature, text = seqio.Feature(Vocabulary(framed=False), add_eos=True), tf.data.Dataset.from_tensors([3, 4, 5, 6, 7])
  drawn = masking.masked_spans(
    text.repeat(200).map(lambda row: {"targets": row}),
    {"inputs": 6, "targets": 6},
    {"targets": feature},
    noise_density=0.4,
    merge_documents=False,
  )
  nothing = [0] * 6
  assert {
    "inputs": [3, 37, 37, 6, 7, 1],
    "targets": [3, 4, 5, 6, 7, 1],
    "loss_weights": [0, 1, 1, 0, 0, 0],
    "token_types": nothing,
    "texts": nothing,
    "answer_heads": [0, 1, 1, 0, 0, 0],
    "answer_targets": [0, 1, 2, 0, 0, 0],
  } in [{name: x.tolist() for name, x in example.items()} for example in drawn.as_numpy_iterator()]


@pytest.mark.exhaustive
@hypothesis.given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_span_is_asked_where_something_stands_on_both_sides(bits):
  """Each run is one span, and the loss finds the same boundaries."""
  chosen = np.array(bits)
  heads, targets = (x.numpy() for x in masking.asked_spans(tf.constant(chosen)))
  expected = np.zeros_like(heads)
  for first, last in spans_of(chosen):
    if first > 0 and last < len(bits) - 1:
      expected[first : last + 1] = 1
  np.testing.assert_array_equal(heads, expected)
  left, right, places = (np.asarray(x)[0] for x in span_boundary.bounds(jnp.asarray(heads[None] > 0), targets[None]))
  for first, last in spans_of(heads > 0):
    assert set(left[first : last + 1]) == {first - 1} and set(right[first : last + 1]) == {last + 1}
    assert places[first : last + 1].tolist() == list(range(last - first + 1))
    assert not chosen[first - 1] and not chosen[last + 1]


def test_examples_are_one_segment():
  """With [CLS] and [SEP] all masked tokens are predicted; without them not the ones at the start of a text."""
  for example in masked([LENGTH - 2] * 200):
    assert example["targets"][[0, -1]].tolist() == [38, 39] and np.sum(example["targets"] >= 37) == 2
    np.testing.assert_array_equal(example["answer_heads"], example["loss_weights"])
    assert not example["token_types"].any() and not example["texts"].any()
  plain = masked([LENGTH - 2] * 200, framed=False)
  begins = [example["loss_weights"][0] for example in plain]
  assert 0 < sum(begins) < 200
  for example in plain:
    np.testing.assert_array_equal(example["answer_heads"] > 0, _without_the_first(example["loss_weights"] > 0))


def _without_the_first(chosen):
  return chosen & (np.cumsum(~chosen) > 0)


# ---- The loss --------------------------------------------------------------------------------------------------------


def by_hand(config, params, hidden, batch):
  """Computes losses of all predicted tokens and the number of right ones, span by span."""
  own, table = params["heads"]["sbo"], params["embed"]["table"]
  gelu = functools.partial(jax.nn.gelu, approximate=False)

  def layer(name, x):
    x = gelu(x @ own[name] + own[f"{name}_bias"])
    x = (x - x.mean()) / np.sqrt(np.square(x - x.mean()).mean() + config.norm_epsilon)
    return x * own[f"{name}_norm"]["scale"] + own[f"{name}_norm"]["bias"]

  found, right = [], 0
  for row, heads in enumerate(np.asarray(batch["encoder_answer_heads"])):
    for first, last in spans_of(heads > 0):
      for place in range(min(last - first + 1, config.heads[0].num_classes)):
        read = np.concatenate([hidden[row, first - 1], hidden[row, last + 1], own["positions"][place]])
        scale = config.embed_dim**-0.5  # of a table with standard deviation 1
        logits = np.asarray(scale * layer("second", layer("first", read)) @ table.T + own["bias"])
        target = batch["encoder_target_tokens"][row, first + place]
        found.append(np.log(np.exp(logits).sum()) - logits[target])
        right += logits.argmax() == target
  return np.array(found), right


@pytest.mark.exhaustive
def test_it_is_the_formula():
  """The loss is the mean over tokens in spans plus the mean over all masked tokens; both have metrics."""
  config, batch = with_head(), batches()[0]
  compute, params, loss = loss_of(config, z_loss=0.0)
  (total, (terms, metrics)), _ = compute(params, batch)
  model = nnx.merge(toy.split(toy.model(config))[0], params)
  found, right = by_hand(config, params, np.asarray(model.states(batch)), batch)
  asked = int(jnp.sum(batch["encoder_answer_heads"]))
  assert 20 < len(found) < asked  # some spans exceed the number of places
  assert loss.weights(batch)["sbo"] == len(found)
  np.testing.assert_allclose(terms["sbo"], found.mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics["sbo_loss"].value(), found.mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics["sbo_accuracy"].value(), right / len(found), rtol=1e-5)
  plain, _ = losses.CrossEntropy(loss.tokens)(model, batch, {"loss": 1.0}, key=None, train=False)
  tokens = plain["loss"] / jnp.sum(batch["encoder_loss_weights"])
  np.testing.assert_allclose(metrics["loss"].value(), tokens, rtol=1e-5)
  np.testing.assert_allclose(total, tokens + found.mean(), rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert", "albert", "modern_bert"])
def test_packed_equals_unpacked(name):
  """Loss, gradients and metrics are equal; every parameter of the head has a gradient."""
  config, (alone, packed) = with_head(name), batches()
  assert len(packed["encoder_input_tokens"]) < len(alone["encoder_input_tokens"]) == 10
  compute, params, _ = loss_of(config)
  ((loss, (_, metrics)), gradient), ((expected, (_, theirs)), expected_gradient) = (
    compute(params, batch) for batch in (packed, alone)
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=2e-5)
  toy.assert_trees_close({n: x.value() for n, x in metrics.items()}, {n: x.value() for n, x in theirs.items()})
  assert all(np.any(x) for x in jax.tree.leaves(gradient["heads"]))


@pytest.mark.exhaustive
def test_parts_of_a_batch_add_up():
  compute, params, loss = loss_of(with_head())
  batch, _ = batches()
  (expected, _), expected_gradient = compute(params, batch)
  weights = loss.weights(batch)
  parts = [{name: x[rows] for name, x in batch.items()} for rows in (slice(0, 3), slice(3, 10))]
  found = [compute(params, part, weights) for part in parts]
  np.testing.assert_allclose(sum(each[0][0] for each in found), expected, rtol=1e-5)
  toy.assert_trees_close(jax.tree.map(jnp.add, found[0][1], found[1][1]), expected_gradient)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh_shape", [{"data": 4, "tensor": 2}, {"fsdp": 2, "sequence": 4}])
def test_the_mesh_changes_nothing(mesh_shape):
  """Boundaries may be on another device than the span."""
  batch = {name: x[:8] for name, x in batches()[0].items()}
  compute, params, _ = loss_of(with_head())
  (expected, _), expected_gradient = compute(params, batch)
  mesh = sharding.make_mesh(mesh_shape)
  with jax.set_mesh(mesh):
    compute, *_ = loss_of(with_head())
    (loss, _), gradient = compute(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.exhaustive
def test_logits_of_a_whole_batch_never_exist():
  """The search for boundaries creates no array of size length times length, either."""
  config, batch = with_head(attention_window=1), batches()[0]
  rows, length = batch["encoder_input_tokens"].shape
  compute, params, loss = loss_of(config, logits_chunk_tokens=16)
  module = nnx.merge(toy.split(toy.model(config))[0], params)
  hidden, asked = module.states(batch), head_losses.asked_of(batch, 0)
  jaxpr = jax.make_jaxpr(
    jax.grad(lambda hidden: span_boundary.sums(loss.tokens, module, HEAD, hidden, batch, asked.at, asked.targets)[0])
  )(hidden)
  shapes = {tuple(x.aval.shape) for each, _ in toy.equations(jaxpr.jaxpr) for x in each.outvars}
  assert not any(shape.count(length) > 1 for shape in shapes)
  assert max(np.prod(shape) for shape in shapes if config.vocab_size in shape) < rows * length * config.vocab_size / 4


def test_flops_count_the_second_projection():
  """FLOPs include the projection of tokens in spans, and the two layers before it."""
  config = with_head()
  sizes = {"batch_size": 2, "lengths": {"encoder": 10}, "predicted": 0.5}
  plain = losses.CrossEntropy(toy.loss_config()).flops(config, **sizes)
  more = head_losses.HeadLosses(config, toy.loss_config()).flops(config, **sizes) - plain
  assert more == 6 * 2 * 10 * 0.5 * (232 * 16 + 16 * 16 + 16 * 40)


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def test_it_is_learned_beside_tokens_alone():
  """The loss needs masked tokens; a fine-tuned model has another head."""
  config = records(load_config("tiny_spanbert"))
  assert recipe.make(config).idle_heads == ()
  with pytest.raises(UserError, match="train.loss=heads: no head of config.model.heads can be trained"):
    recipe.make(config.with_(train={"loss": "heads"}))
  own = HeadConfig("topic", 3)
  config = config.with_(model={"heads": (*config.model.heads, own)}, train={"loss": "heads"})
  assert recipe.make(config).idle_heads == ("sbo",)


def test_an_objective_that_asks_no_head_is_refused():
  """An objective without heads is refused for losses of heads; the message names objectives with heads."""
  config = train_data.resolved(records(load_config("tiny_spanbert")).with_(data={"mixture": "docs_masked_lm"}))
  with pytest.raises(
    UserError, match="docs_masked_lm: the examples have no answers for heads, .* span_masked_lm_sbo, masked_lm_nsp"
  ):
    train_data.check(config)


@pytest.mark.exhaustive
def test_what_is_planned_is_what_is_read():
  """The recipe's features equal those of the pipeline; files get the head automatically."""
  config = train_data.resolved(records(load_config("tiny_spanbert"))).with_(train={"batch_size": 8})
  batch = next(train_data.batches(stages.of(config), sharding.make_mesh({"fsdp": 8}), num_streams=None))
  planned = recipe.batch(config)
  assert {n: (x.shape, x.dtype) for n, x in batch.items()} == {n: (x.shape, x.dtype) for n, x in planned.items()}
  objective = {"mixture": "docs_span_masked_lm_sbo", "objective": "span_masked_lm_sbo"}
  bare = train_data.resolved(records(load_config("tiny_bert")).with_(data=objective))
  assert bare.train.loss == "tokens_and_heads" and bare.model.heads == config.model.heads


@pytest.mark.exhaustive
def test_a_run_on_own_text(tmp_path, capsys):
  """Trains on a mesh with microbatches: both losses are logged and fall, and samples are masked tokens."""
  text = "the quick brown fox jumps over the lazy dog and runs away from it again\n" * 300
  (tmp_path / "text.txt").write_text(text)
  config = override(
    load_config("tiny_spanbert"),
    [
      f"--config.data.files={tmp_path}/text.txt", f"--config.data.eval_files={tmp_path}/text.txt",
      "--config.data.vocabulary=bytes", "--config.data.inputs_length=64", "--config.model.vocab_size=384",
      "--config.model.embed_dim=32", "--config.model.num_heads=2", "--config.model.head_dim=16",
      "--config.model.mlp_dim=32", "--config.model.num_encoder_layers=1", "--config.train.steps=24",
      "--config.eval.every=12", "--config.eval.batches=1", "--config.mesh.data=2", "--config.mesh.fsdp=4",
      "--config.train.microbatches=2",
    ],
  )  # fmt: skip
  train(records(config), str(tmp_path / "run"))
  for name in ("eval/loss", "eval/sbo_loss"):
    first, *_, last = read_metrics(epath.Path(tmp_path / "run" / "metrics.jsonl"), name).values()
    assert last < first < 7.0
  assert "[1] " in capsys.readouterr().out
