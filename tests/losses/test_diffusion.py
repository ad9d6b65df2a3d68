"""Masked diffusion: literal weights, the bound by enumeration, held-out samples, and settings that do not fit."""

import dataclasses
import itertools
import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from test_masked_next_token import Ids, batch
import toy

import t2t
from t2t import UserError, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.data import train_data
from t2t.data.objectives import masked_diffusion
from t2t.data.vocabularies import reserved_ids
from t2t.feature_spec import NOISE_UNITS
from t2t.losses import diffusion

TEXT = (3, 5, 4)  # of four tokens; 99 is the mask
HALF, QUARTER = NOISE_UNITS // 2, NOISE_UNITS // 4


def examples(name, rows, *, length, seed=0):
  """Returns the examples of an objective as lists."""
  dataset = tf.data.Dataset.from_generator(
    lambda: iter(rows), output_signature={key: tf.TensorSpec([None], tf.int32) for key in rows[0]}
  )
  features = {"targets": seqio.Feature(Ids(), add_eos=True)}
  with seqio.utils.map_seed_manager(seed):
    noised = getattr(masked_diffusion, name)(
      dataset, {"inputs": length, "targets": length}, features, merge_documents=False
    )
  return [{key: x.tolist() for key, x in row.items()} for row in noised.as_numpy_iterator()]


def encoder_batch(rows):
  of = lambda name: jnp.asarray([row[name] for row in rows])
  names = {"input_tokens": "inputs", "target_tokens": "targets", "noise_levels": "noise_levels"}
  features = {f"encoder_{name}": of(feature) for name, feature in names.items()}
  return features | {"encoder_loss_weights": of("loss_weights").astype(jnp.float32)}


def loss(**fields):
  return diffusion.Diffusion(toy.loss_config(z_loss=0.0), **fields)


class Uniform:
  """Gives each of eight tokens the same probability."""

  def hidden(self, batch, *, dropout_key=None):
    from t2t.models.auxiliary import Hidden

    return Hidden(jnp.zeros((*batch["encoder_input_tokens"].shape, 2)))

  def logits_fn(self):
    return jax.tree_util.Partial(lambda table, hidden: hidden @ table, jnp.zeros((2, 8)))


# ---- Objectives ------------------------------------------------------------------------------------------------------


def test_tokens_are_masked_with_the_probability_of_their_level():
  """Levels are uniform on (0, 1], masks are independent, and EOS is a token like any other."""
  rows = examples("masked_diffusion", [{"targets": [3, 4, 5, 6, 1]}] * 2_000, length=5)
  levels, weights = (np.array([row[name] for row in rows]) for name in ("noise_levels", "loss_weights"))
  inputs = np.array([row["inputs"] for row in rows])
  assert (levels == levels[:, :1]).all() and levels.min() > 0 and levels.max() <= NOISE_UNITS
  t = levels[:, 0] / NOISE_UNITS
  np.testing.assert_allclose(np.histogram(t, bins=4, range=(0, 1))[0] / 2_000, 0.25, atol=0.04)
  np.testing.assert_array_equal(inputs, np.where(weights > 0, 99, [3, 4, 5, 6, 1]))
  masked = weights.mean(axis=1)
  for low in (0.0, 0.25, 0.5, 0.75):
    part = (t > low) & (t <= low + 0.25)
    np.testing.assert_allclose(masked[part].mean(), t[part].mean(), atol=0.04)
  np.testing.assert_allclose(weights.mean(axis=0), 0.5, atol=0.05)


def test_a_prompt_is_never_masked():
  """EOS fills the row after the answer, and is masked like it; the longer text is cut."""
  (short, long) = ({"first": [3, 4, 5], "second": [6, 7]}, {"first": [3] * 9, "second": [4, 5]})
  rows = examples("answer_diffusion", [short, long] * 50, length=8)
  for row, targets, given in zip(rows, [[3, 4, 5, 6, 7, 1, 1, 1], [3] * 5 + [4, 5, 1]] * 50, [3, 5] * 50, strict=True):
    assert row["targets"] == targets and row["inputs"][:given] == targets[:given]
    assert not any(row["noise_levels"][:given]) and len(set(row["noise_levels"][given:])) == 1
  assert {len(row["loss_weights"]) for row in rows} == {8} and any(row["loss_weights"][-1] for row in rows)


# ---- The bound -------------------------------------------------------------------------------------------------------


def test_weights_are_one_over_t():
  """Written-out weights and loss: (2 + 4 + 4) ln 8, divided by the five tokens that may be masked."""
  rows = encoder_batch(
    [
      {
        "inputs": [3, 99, 4],
        "targets": [3, 5, 4],
        "loss_weights": [0, 1, 0],
        "noise_levels": [HALF, HALF, HALF],
      },
      {"inputs": [3, 99, 99], "targets": [3, 5, 4], "loss_weights": [0, 1, 1], "noise_levels": [0, QUARTER, QUARTER]},
    ]
  )
  assert diffusion.bound_weights(rows, "encoder").tolist() == [[0, 2, 0], [0, 4, 4]]
  weights = loss().weights(rows)
  assert weights["loss"] == 5
  terms, metrics = loss()(Uniform(), rows, weights, key=None, train=True)
  np.testing.assert_allclose(terms["loss"], 10 * math.log(8) / 5, rtol=1e-6)
  np.testing.assert_allclose(metrics["loss"].value(), 10 * math.log(8) / 5, rtol=1e-6)
  assert metrics["accuracy"].weight == 10


MODEL = toy.encoder(num_encoder_layers=1, vocab_size=100)


def token_losses(model):
  """Returns the cross-entropy of each token of `TEXT` for each set of masked positions."""
  sets = [mask for size in (1, 2, 3) for mask in itertools.combinations(range(3), size)]
  inputs = np.array([[99 if i in mask else TEXT[i] for i in range(3)] for mask in sets])
  log_p = np.asarray(jax.nn.log_softmax(toy.logits(model, {"encoder_input_tokens": jnp.asarray(inputs)})), np.float64)
  return {mask: {i: -log_p[row, i, TEXT[i]] for i in mask} for row, mask in enumerate(sets)}


@pytest.mark.slow
def test_the_estimate_is_the_bound_by_enumeration():
  """The mean over levels and masks equals LLaDA's form, MDLM's integral and the any-order model, and bounds its NLL.

  LLaDA: the number of masks is uniform, positions are drawn without replacement, and the weight is length / number
  (Nie et al. 2025, equation 14). MDLM: the integral of t**(m - 1) * (1 - t)**(L - m).
  """
  model = toy.model(MODEL)
  nats = token_losses(model)
  llada = sum(
    np.mean([3 / size * sum(nats[mask].values()) for mask in itertools.combinations(range(3), size)]) / 3
    for size in (1, 2, 3)
  )
  integral = sum(
    math.factorial(len(mask) - 1) * math.factorial(3 - len(mask)) / math.factorial(3) * sum(of.values())
    for mask, of in nats.items()
  )
  orders = [
    sum(nats[tuple(sorted(order[k:]))][order[k]] for k in range(3)) for order in itertools.permutations(range(3))
  ]
  np.testing.assert_allclose([llada, integral], np.mean(orders), rtol=1e-9)
  assert llada > -np.log(np.mean(np.exp(-np.array(orders))))  # of the mixture of all orders
  rows = examples("masked_diffusion", [{"targets": list(TEXT)}] * 1_500, length=3)
  estimates = [
    sum(nats[tuple(np.flatnonzero(row["loss_weights"]))].values()) * NOISE_UNITS / row["noise_levels"][0]
    if any(row["loss_weights"])
    else 0.0
    for row in rows
  ]
  error = np.std(estimates) / math.sqrt(len(rows))
  assert abs(np.mean(estimates) - llada) < 4 * error < 0.3 * llada
  features = encoder_batch(rows)
  _, metrics = loss()(model, features, loss().weights(features), key=None, train=True)
  np.testing.assert_allclose(metrics["loss"].value(), np.mean(estimates) / 3, rtol=1e-4)
  # Held out: four levels of each row, with less variance.
  _, metrics = loss()(model, features, loss().weights(features), key=None, train=False)
  assert abs(metrics["loss"].value() * 3 - llada) < 2 * error
  parts = [metrics[f"loss_t{i}"].value() for i in (1, 2, 3, 4)]
  np.testing.assert_allclose(np.mean(parts), metrics["loss"].value(), rtol=1e-5)


# ---- Blocks ----------------------------------------------------------------------------------------------------------


def block_model(length, **fields):
  return toy.model(dataclasses.replace(MODEL, block_length=length, **fields), seed=4)


def prediction(model, given, block):
  """Returns log p of each token at the places of `block`, after the tokens `given`, float64 [block, vocab]."""
  row = jnp.asarray([[*given, *block]])
  logits = toy.logits(model, {"encoder_input_tokens": row, "encoder_segment_ids": jnp.ones_like(row)})  # 0 is a token
  return np.asarray(jax.nn.log_softmax(logits), np.float64)[0, len(given) :]


def bound_of_blocks(model, text, length, *, mask_id):
  """Returns the sum over blocks of the integral of sums over masks, in nats, from predictions of one stream."""
  total = 0.0
  for begin in range(0, len(text), length):
    block = text[begin : begin + length]
    for size in range(1, len(block) + 1):
      # Integral of t**(m - 1) * (1 - t)**(L - m).
      share = math.factorial(size - 1) * math.factorial(len(block) - size) / math.factorial(len(block))
      for mask in itertools.combinations(range(len(block)), size):
        log_p = prediction(model, text[:begin], [mask_id if i in mask else x for i, x in enumerate(block)])
        total -= share * sum(log_p[i, block[i]] for i in mask)
  return total


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("length", [2, 1, 3, 5])
def test_the_bound_of_blocks_is_exact(length):
  """Two streams, weights and levels of each block give the brute-force sum; blocks of one token the exact likelihood.

  The vocabulary has four tokens, 3 is the mask. The expectation over levels is Gauss-Legendre quadrature, which is
  exact for the polynomials of t.
  """
  model, text = block_model(length, vocab_size=4), (2, 0, 1, 1)
  blocks = [list(range(begin, min(begin + length, 4))) for begin in range(0, 4, length)]
  nodes, shares = np.polynomial.legendre.leggauss(2)
  nodes, shares = (nodes + 1) / 2, shares / 2
  rows, chances = [], []
  for mask in itertools.product((0, 1), repeat=4):
    for choice in itertools.product((0, 1), repeat=len(blocks)):
      levels, chance = np.zeros(4, int), 1.0
      for block, node in zip(blocks, choice, strict=True):
        levels[block] = round(nodes[node] * NOISE_UNITS)
        chance *= shares[node] * math.prod(nodes[node] if mask[i] else 1 - nodes[node] for i in block)
      inputs = [3 if hidden else x for x, hidden in zip(text, mask, strict=True)]
      rows.append({"inputs": inputs, "targets": text, "loss_weights": mask, "noise_levels": levels.tolist()})
      chances.append(chance)
  np.testing.assert_allclose(sum(chances), 1.0)
  batch = encoder_batch(rows)
  batch["encoder_segment_ids"] = jnp.ones_like(batch["encoder_input_tokens"])  # 0 is a token
  log_p = np.asarray(jax.nn.log_softmax(toy.logits(model, batch)), np.float64)
  nats = -np.take_along_axis(log_p, np.asarray(batch["encoder_target_tokens"])[..., None], -1)[..., 0]
  expected = np.sum(np.array(chances)[:, None] * nats * np.asarray(diffusion.bound_weights(batch, "encoder")))
  np.testing.assert_allclose(expected, bound_of_blocks(model, text, length, mask_id=3), rtol=1e-5)
  if length == 1:
    chain = -sum(prediction(model, text[:i], [3])[0, text[i]] for i in range(4))
    np.testing.assert_allclose(expected, chain, rtol=1e-5)


def text_rows(number, length=8, **options):
  return examples("masked_diffusion", [{"targets": [3, 4, 5, 6, 7, 8, 9, 1]}] * number, length=length, **options)


@pytest.mark.slow
def test_the_estimate_of_blocks_is_the_bound():
  """The loss of drawn levels and masks, in training and held out, has the brute-force sum as mean."""
  model, rows = block_model(3), text_rows(1_500)
  expected = bound_of_blocks(model, (3, 4, 5, 6, 7, 8, 9, 1), 3, mask_id=99) / 8
  batch, loss_of_blocks = encoder_batch(rows), loss(block_length=3)
  parts = [jax.tree.map(lambda x, i=i: x[i : i + 50], batch) for i in range(0, 1_500, 50)]
  run = jax.jit(
    lambda batch, train: loss_of_blocks(model, batch, loss_of_blocks.weights(batch), key=None, train=train)[1],
    static_argnums=1,
  )
  for train in (True, False):
    values = np.array([run(part, train)["loss"].value() for part in parts])
    error = values.std() / math.sqrt(len(parts))
    assert abs(values.mean() - expected) < 4 * error < 0.1 * expected


def test_each_block_has_a_level_and_masks_of_it():
  """Levels are uniform in every block and evenly spread over a row; the first block keeps its draw."""
  batch = encoder_batch(text_rows(2_000))
  noisy = diffusion.in_blocks(batch, "encoder", 2)
  levels, masked, old = (
    np.asarray(x) for x in (noisy["encoder_noise_levels"], noisy["encoder_loss_weights"], batch["encoder_input_tokens"])
  )
  np.testing.assert_array_equal(noisy["encoder_input_tokens"], np.where(masked, 99, batch["encoder_target_tokens"]))
  np.testing.assert_array_equal(noisy["encoder_input_tokens"][:, :2], old[:, :2])
  np.testing.assert_array_equal(levels[:, ::2], levels[:, 1::2])
  t = levels[:, ::2] / NOISE_UNITS
  assert levels.min() > 0 and levels.max() <= NOISE_UNITS
  in_order = np.sort(t, axis=1)
  assert np.diff(in_order, axis=1, append=in_order[:, :1] + 1).max() < 0.4
  for block in range(4):
    np.testing.assert_allclose(np.histogram(t[:, block], bins=4, range=(0, 1))[0] / 2_000, 0.25, atol=0.04)
    for low in (0.0, 0.25, 0.5, 0.75):
      part = (t[:, block] > low) & (t[:, block] <= low + 0.25)
      np.testing.assert_allclose(masked[part, 2 * block : 2 * block + 2].mean(), t[part, block].mean(), atol=0.05)
  # Masks of different blocks are independent given the levels.
  residuals = (masked - levels / NOISE_UNITS)[:, ::2]
  assert np.abs(np.corrcoef(residuals.T) - np.eye(4)).max() < 0.1


@pytest.mark.exhaustive
def test_one_block_is_masked_diffusion():
  """With the same draws, bit for bit in levels and masks, and with the same loss in training and held out."""
  batch = encoder_batch(text_rows(8))
  for name, x in diffusion.in_blocks(batch, "encoder", 8).items():
    np.testing.assert_array_equal(x, batch[name])
  for train in (True, False):
    whole, blocks = (
      loss(block_length=length)(block_model(length), batch, loss().weights(batch), key=None, train=train)[1]
      for length in (0, 8)
    )
    for name, x in whole.items():
      np.testing.assert_allclose(blocks[name].value(), x.value(), rtol=1e-5)


def test_blocks_of_packed_texts_begin_with_each_text():
  """Padding and given tokens keep level 0, and the first block of each text its draw."""
  rows = {
    "inputs": [99, 4, 5, 6, 7, 99, 99, 5, 6, 0],
    "targets": [3, 4, 5, 6, 7, 3, 4, 5, 6, 0],
    "loss_weights": [1, 0, 0, 0, 0, 1, 1, 0, 0, 0],
    "noise_levels": [HALF] * 4 + [0, QUARTER, QUARTER, QUARTER, QUARTER, 0],
  }
  batch = encoder_batch([rows]) | {"encoder_positions": jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]])}
  noisy = diffusion.in_blocks(batch, "encoder", 3)
  second = (HALF - 1 + diffusion._BETWEEN_BLOCKS) % NOISE_UNITS + 1
  third = (QUARTER - 1 + diffusion._BETWEEN_BLOCKS) % NOISE_UNITS + 1
  expected = [HALF] * 3 + [second, 0, QUARTER, QUARTER, third, third, 0]
  assert noisy["encoder_noise_levels"][0].tolist() == expected
  shown = noisy["encoder_input_tokens"][0].tolist()
  assert shown[:3] == [99, 4, 5] and shown[4:7] == [7, 99, 99] and shown[9] == 0


@pytest.mark.exhaustive
def test_blocks_do_not_depend_on_the_mesh():
  """Levels and masks of blocks are drawn on the devices, and two streams are sharded like one."""
  batch, loss_of_blocks = encoder_batch(text_rows(8)), loss(block_length=3)
  graphdef, params = toy.split(block_model(3))

  def losses_of(params, batch):
    model = nnx.merge(graphdef, params)
    weights = loss_of_blocks.weights(batch)
    return [loss_of_blocks(model, batch, weights, key=None, train=x)[1]["loss"].value() for x in (True, False)]

  expected = jax.jit(losses_of)(params, batch)
  for mesh_shape in ({"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "sequence": 4}):
    mesh = sharding.make_mesh(mesh_shape)
    with jax.set_mesh(mesh):
      values = jax.jit(losses_of)(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.exhaustive
def test_a_run_in_blocks_resumes_to_the_bit(tmp_path):
  """A run that stopped after two of four steps has the losses of an uninterrupted run."""
  (tmp_path / "a.txt").write_text("".join(f"a text with the number {i}\n" * 9 for i in range(100)))
  changes = {"data.mixture": "", "data.files": f"{tmp_path}/a.txt", "data.eval_files": f"{tmp_path}/a.txt"}
  changes |= {"data.vocabulary": "bytes", "data.inputs_length": 32, "data.targets_length": 32, "train.batch_size": 8}
  changes |= {"model.vocab_size": 384, "model.num_encoder_layers": 1, "train.steps": 4, "eval.every": 4}
  changes |= {"checkpoint.save_interval_steps": 1, "eval.batches": 1, "train.log_every": 1}
  config = t2t.config("tiny_block_diffusion", changes)

  def losses_of(workdir):
    rows = t2t.train(config, str(workdir))
    return {(row["step"], name): row[name] for row in rows for name in row if name.endswith("loss")}

  whole = losses_of(tmp_path / "whole")
  for row in t2t.train(config, str(tmp_path / "run")):
    if row["step"] == 2:
      break
  resumed = losses_of(tmp_path / "run")
  assert 0 < len(resumed) < len(whole) and (4, "eval/loss") in resumed
  assert resumed == {key: whole[key] for key in resumed}


# ---- Held-out samples ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_held_out_masks_are_of_the_row_and_in_each_part():
  """New masks of packed decoder rows keep BOS, prompts and padding, and do not depend on the place of a row."""
  rows = [
    {"inputs": [3, 99, 5, 1], "targets": [3, 4, 5, 1], "loss_weights": [0, 1, 0, 0], "both_ways": [1] * 4},
    {"inputs": [6, 99, 1], "targets": [6, 7, 1], "loss_weights": [0, 1, 0], "both_ways": [1] * 3},
    {"inputs": [7, 8, 1, 99, 9], "targets": [7, 8, 1, 6, 9], "loss_weights": [0, 0, 0, 1, 0], "both_ways": [1] * 5},
  ]
  levels = [[HALF] * 4, [0, QUARTER, QUARTER], [NOISE_UNITS] * 5]
  packed = batch([row | {"noise_levels": level} for row, level in zip(rows, levels, strict=True)], pack=True)
  features = {name: jnp.asarray(x) for name, x in packed.items()}
  assert features["decoder_noise_levels"][0].tolist() == [HALF] * 4 + [0, QUARTER, QUARTER, 0]
  seen = set()
  for part in range(4):
    drawn = diffusion.resampled(features, "decoder", jnp.asarray(part), 4)
    turned = diffusion.resampled({name: x[::-1] for name, x in features.items()}, "decoder", jnp.asarray(part), 4)
    for name, x in drawn.items():
      np.testing.assert_array_equal(x, turned[name][::-1])
    unit = NOISE_UNITS // 4
    expected = [unit * part + HALF // 4] * 4 + [0] + [unit * part + QUARTER // 4] * 2 + [0]
    assert drawn["decoder_noise_levels"][0].tolist() == expected
    masked, targets = np.asarray(drawn["decoder_loss_weights"]), np.asarray(drawn["decoder_target_tokens"])
    for row, starts in ((0, (0, 4)), (1, (0,))):
      inputs = np.asarray(drawn["decoder_input_tokens"][row])
      for i in range(5):
        shown = 0 if i in starts else 99 if masked[row, i - 1] else targets[row, i - 1]
        assert inputs[i] == shown
    assert not masked[0, 4] and not masked[0, 7] and not masked[1, 5:].any()
    seen.add(tuple(masked.ravel().tolist()))
  assert len(seen) > 1


def test_without_a_mask_to_copy_nothing_changes():
  """A batch without any masked token does not show the id of the mask."""
  rows = encoder_batch([{"inputs": [3, 4], "targets": [3, 4], "loss_weights": [0, 0], "noise_levels": [HALF, HALF]}])
  drawn = diffusion.resampled(rows, "encoder", jnp.asarray(3), 4)
  assert all((drawn[name] == x).all() for name, x in rows.items())


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh_shape", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "sequence": 4}])
def test_neither_loss_depends_on_the_mesh(mesh_shape):
  """Training and held-out losses are equal on every mesh, although held-out masks are drawn on the devices."""
  rows = encoder_batch(examples("masked_diffusion", [{"targets": [3, 4, 5, 6, 7, 8, 9, 1]}] * 8, length=8))
  graphdef, params = toy.split(toy.model(MODEL))

  def losses_of(params, rows):
    calls = (loss()(nnx.merge(graphdef, params), rows, loss().weights(rows), key=None, train=x) for x in (True, False))
    return [metrics["loss"].value() for _, metrics in calls]

  expected = jax.jit(losses_of)(params, rows)
  mesh = sharding.make_mesh(mesh_shape)
  with jax.set_mesh(mesh):
    values = jax.jit(losses_of)(params, jax.device_put(rows, sharding.batch_sharding(mesh)))
  np.testing.assert_allclose(values, expected, rtol=1e-5)


# ---- Settings that do not fit ----------------------------------------------------------------------------------------


NO_MASK = f"data.vocabulary={reserved_ids._docs_model(reserved_ids.DOCS_SIZE)}"


@pytest.mark.parametrize(
  ("spec", "changes", "message"),
  [
    ("tiny_diffusion", ["data.objective=masked_lm"], "needs noise levels.*objective=masked_diffusion"),
    ("tiny_diffusion", ["train.loss=cross_entropy"], "ignores noise levels. Set --config.train.loss=diffusion"),
    ("tiny_gpt", ["data.objective=masked_diffusion"], "bidirectional_prefix=False makes attention causal"),
    (
      "tiny_diffusion",
      ["data.extra_ids=0", NO_MASK],
      "has no mask.*Set config.data.extra_ids=1",
    ),
    (
      "tiny_block_diffusion",
      ["train.loss=cross_entropy", "data.objective=masked_lm"],
      "block_length=4 is for masked diffusion or heads.*--config.train.loss=diffusion",
    ),
    ("tiny_diffusion", ["diffusion.eval_samples=3"], "eval_samples=3: must be a power of two"),
  ],
)
def test_a_run_that_does_not_fit_is_refused_before_training(tmp_path, spec, changes, message):
  """Each message names the key, and what to set."""
  (tmp_path / "a.txt").write_text("".join(f"a text with the number {i}\n" * 9 for i in range(100)))
  config = load_config(spec)
  arguments = ["data.mixture=", f"data.files={tmp_path}/a.txt", "data.vocabulary=bytes", *changes]
  override(config, [f"--config.{argument}" for argument in arguments])
  with pytest.raises(UserError, match=message):
    run = train_data.resolved(records(config))
    diffusion.Diffusion.from_config(run)
    train_data.check(run)
