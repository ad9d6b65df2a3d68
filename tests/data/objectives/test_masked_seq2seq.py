"""Targets with loss weights or positions: examples, batches, and model outputs."""

import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
import toy

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import feature_converters, objectives, pipeline
from t2t.data.objectives import corruption, masked_seq2seq, masking
from t2t.training import recipe

pytestmark = pytest.mark.slow


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, 1 EOS, 99 the mask, and 3 to 8 are ordinary."""

  mask_id, pad_id, bos_id, special_ids = 99, 0, 0, {*range(100)} - {*range(3, 9)}

  def __init__(self):
    super().__init__(100, eos_id=1)
    self._extra_ids = 0


def examples(preprocessor, *documents, inputs=16, targets=16, seed=0, **options):
  dataset = tf.data.Dataset.from_tensor_slices({"targets": tf.ragged.constant(documents, tf.int32)})
  features = dict.fromkeys(("inputs", "targets"), seqio.Feature(Ids(), add_eos=True))
  with seqio.utils.map_seed_manager(seed):
    lengths = {"inputs": inputs, "targets": targets}
    dataset = preprocessor(dataset, lengths, features, merge_documents=False, **options)
  return [{name: x.tolist() for name, x in example.items()} for example in dataset.as_numpy_iterator()]


def batch(found, *, inputs=8, targets=6, pack=False):
  """Returns the model features of examples."""
  lengths = feature_converters.feature_lengths(
    "encoder_decoder", tuple(found[0]), inputs_length=inputs, targets_length=targets
  )
  signature = {name: tf.TensorSpec([None], tf.int32) for name in found[0]}
  dataset = tf.data.Dataset.from_generator(lambda: iter(found), output_signature=signature)
  converted = feature_converters.convert(dataset, "encoder_decoder", lengths, vocabulary=Ids(), pack=pack)
  return [{name: x.tolist() for name, x in row.items()} for row in converted.as_numpy_iterator()]


# ---- Loss at masked tokens -------------------------------------------------------------------------------------------


def test_masked_only():
  """The docstring's example; exactly the corrupted tokens have a loss, and targets are the text."""
  text = [3, 4, 5, 6, 7, 8]
  found = examples(masked_seq2seq.bert_style_masked_only, *[text] * 3_000, noise_density=0.3)
  example = {"inputs": [3, 99, 5, 6, 7, 4, 1], "targets": [*text, 1], "loss_weights": [0, 1, 0, 0, 0, 1, 0]}
  assert example in found
  for each in found:
    inputs, targets, weights = (np.array(each[name]) for name in example)
    np.testing.assert_array_equal(targets, [*text, 1])
    np.testing.assert_array_equal(inputs[weights == 0], targets[weights == 0])
    assert weights.sum() == 2
  shares = np.mean([each["inputs"].count(99) / 2 for each in found])
  assert abs(shares - 0.9) < 0.02  # T5's 90 % of masks
  options = {"mask_id": 99, "ordinary_ids": np.arange(3, 9, dtype=np.int32)}
  plain, (hidden, _) = (
    f(tf.constant(text), tf.constant([1, 2]), **options) for f in (masking.bert_style, masking.hide)
  )
  np.testing.assert_array_equal(plain, hidden)


def test_masked_lm_of_an_encoder_decoder():
  """The docstring's example; the decoder reads predicted tokens and masks, and inputs follow the 80/10/10 rule."""
  text = [3, 4, 5, 6, 7, 8]
  found = examples(masked_seq2seq.masked_lm_seq2seq, *[text] * 3_000, noise_density=0.3)
  example = {"inputs": [3, 99, 5, 6, 7, 4, 1], "targets": [*text, 1], "loss_weights": [0, 1, 0, 0, 0, 1, 0]}
  assert example | {"target_inputs": [99, 4, 99, 99, 99, 8, 99]} in found
  hidden = []
  for each in found:
    inputs, weights, read = (np.array(each[name]) for name in ("inputs", "loss_weights", "target_inputs"))
    assert each["targets"] == [*text, 1] and weights.sum() == 2
    np.testing.assert_array_equal(read, np.where(weights, each["targets"], 99))
    np.testing.assert_array_equal(inputs[weights == 0], np.array(each["targets"])[weights == 0])
    hidden += inputs[weights == 1].tolist()
  assert abs(np.mean(np.array(hidden) == 99) - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 6_000)
  unmasked = examples(masked_seq2seq.masked_lm_seq2seq, *[text] * 50, mask_rate=0.0, random_rate=0.0)
  assert all(each["inputs"] == [*text, 1] for each in unmasked)


@pytest.mark.parametrize("pack", [False, True])
def test_what_the_decoder_reads(pack):
  """Its inputs are shifted by one position in each example; BOS begins, and other features do not change."""
  found = [
    {"inputs": [3, 99, 1], "targets": [3, 4, 1], "loss_weights": [0, 1, 0], "target_inputs": [99, 4, 99]},
    {"inputs": [99, 1], "targets": [6, 1], "loss_weights": [1, 0], "target_inputs": [6, 99]},
  ]
  rows = batch(found, pack=pack)
  read = [row.pop("decoder_input_tokens") for row in rows]
  assert (read[0][:5] if pack else [row[: 3 - i] for i, row in enumerate(read)]) == (
    [0, 99, 4, 0, 6] if pack else [[0, 99, 4], [0, 6]]
  )
  plain = batch([{name: x for name, x in each.items() if name != "target_inputs"} for each in found], pack=pack)
  assert all(row.pop("decoder_input_tokens") for row in plain)
  assert rows == plain


def test_weights_of_a_batch():
  """A weight of 0 is not padding, packed or unpacked, and other features do not depend on weights."""
  found = [
    {"inputs": [3, 99, 5, 1], "targets": [3, 4, 5, 1], "loss_weights": [0, 1, 0, 0]},
    {"inputs": [99, 1], "targets": [6, 1], "loss_weights": [1, 0]},
  ]
  weights = {True: [[0, 1, 0, 0, 1, 0]], False: [[0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]}
  for pack in (True, False):
    rows = batch(found, pack=pack)
    assert [row.pop("decoder_loss_weights") for row in rows] == weights[pack]
    plain = batch([{name: each[name] for name in ("inputs", "targets")} for each in found], pack=pack)
    for row in plain:
      assert all(row.pop("decoder_loss_weights")[:2])
    assert rows == plain


def test_only_what_was_hidden_is_learned():
  """Targets without weight change neither loss nor count."""
  model = toy.model(toy.KINDS["t5_1_1"])
  rows = toy.batch()
  weights = jnp.zeros_like(rows["decoder_loss_weights"]).at[:, 1].set(1.0)
  loss = toy.summed_loss()

  def value(targets):
    each = rows | {"decoder_loss_weights": weights, "decoder_target_tokens": targets}
    return float(loss(model, each, None)[0])

  targets = rows["decoder_target_tokens"]
  assert value(targets) == value(targets.at[:, 0].set(7)) != value(targets.at[:, 1].set(7))


# ---- A fragment at its positions -------------------------------------------------------------------------------------


def test_mass_in_place():
  """The docstring's example, and the paper's figure: the third to the sixth of eight words, at these positions."""
  found = examples(masked_seq2seq.mass_in_place, *[[3, 4, 5, 6, 7, 8]] * 60)
  assert {"inputs": [3, 4, 99, 99, 99, 8, 1], "targets": [5, 6, 7, 1], "target_places": [2, 3, 4, 5]} in found
  figure = {
    "inputs": [11, 12, 99, 99, 99, 99, 17, 18, 1],
    "targets": [13, 14, 15, 16, 1],
    "target_places": [2, 3, 4, 5, 6],
  }
  assert figure in examples(masked_seq2seq.mass_in_place, *[list(range(11, 19))] * 60)
  (row,) = batch([figure], inputs=9)
  assert row["decoder_input_tokens"] == [0, 13, 14, 15, 16, 1]  # the start token, at the position of the mask
  assert row["decoder_positions"] == [2, 3, 4, 5, 6, 0]
  for each in examples(masked_seq2seq.mass_in_place, *[list(range(10, 10 + n)) for n in (1, 2, 3, 9, 14, 15, 40)] * 9):
    tokens = dict(zip(each["target_places"], each["targets"][:-1], strict=False))
    filled = [tokens.get(i, token) for i, token in enumerate(each["inputs"][:-1])]
    assert filled == list(range(filled[0], filled[0] + len(filled)))
    assert len(each["inputs"]) <= 16 and len(each["target_places"]) == len(each["targets"])
  with pytest.raises(
    UserError, match=r"targets_length=8 is too short. .* 8 of 15 text tokens.* Set .*targets_length=9"
  ):
    examples(masked_seq2seq.mass_in_place, [3, 4], targets=8)


def test_packed_positions():
  """The converter's docstring: weights and positions of each example."""
  found = [
    {"inputs": [8, 9, 9, 1], "targets": [6, 4, 1], "loss_weights": [1, 1, 0], "target_places": [1, 2, 3]},
    {"inputs": [9, 1], "targets": [5, 1], "loss_weights": [1, 0], "target_places": [0, 1]},
  ]
  (row,) = batch(found, pack=True)
  assert row["decoder_loss_weights"] == [1, 1, 0, 1, 0, 0] and row["decoder_positions"] == [1, 2, 3, 0, 1, 0]
  assert row["decoder_segment_ids"] == [1, 1, 1, 2, 2, 0] and row["decoder_input_tokens"] == [0, 6, 4, 0, 5, 0]


def test_fragments():
  """The docstrings' examples; every run of candidates occurs, and the encoder's objective masks one."""
  candidates = tf.constant([False, True, True, True, True, False])
  seeds = [tf.constant([seed, 3]) for seed in range(60)]
  drawn = {tuple(corruption.fragment(candidates, seed).numpy().astype(int).tolist()) for seed in seeds}
  assert drawn == {(0, 1, 1, 0, 0, 0), (0, 0, 1, 1, 0, 0), (0, 0, 0, 1, 1, 0)}
  chosen, groups = masking.one_fragment(candidates, candidates, seeds[0])
  np.testing.assert_array_equal(chosen, corruption.fragment(candidates, seeds[0]))
  np.testing.assert_array_equal(groups, range(6))
  # A special token inside the text belongs to no fragment, but splits none.
  parted = tf.constant([True, True, False, True])
  assert {tuple(corruption.fragment(parted, seed).numpy().astype(int).tolist()) for seed in seeds} >= {(0, 1, 0, 1)}
  assert objectives.OBJECTIVES["fragment_masked_lm"].published["noise_density"] == 0.5


def moved(rows, by):
  length = rows["decoder_input_tokens"].shape[1]
  return rows | {"decoder_positions": jnp.broadcast_to(jnp.arange(length) + by, rows["decoder_input_tokens"].shape)}


def test_who_knows_where_a_fragment_stands():
  """Learned positions change the logits; relative ones do not."""
  rows = toy.batch()
  relative, learned = toy.model(toy.KINDS["t5_1_1"]), toy.model(toy.KINDS["bart"])
  for model, knows in ((relative, False), (learned, True)):
    plain, here, there = (toy.logits(model, each) for each in (rows, moved(rows, 0), moved(rows, 3)))
    np.testing.assert_allclose(plain, here, atol=1e-5)
    assert (np.abs(here - there).max() > 1e-3) == knows


def test_a_fragment_is_written_where_it_was_learned():
  """Decoding starts at the first position, and equals teacher forcing."""
  model, rows = toy.model(toy.KINDS["bart"]), toy.batch()
  rows = moved(rows, 2) | {"decoder_input_tokens": rows["decoder_input_tokens"].at[:, 0].set(0)}
  expected = toy.logits(model, rows)
  tokens, state = model.start_decode(rows, 4)
  for step in range(4):
    found, state = model.decode_step(rows["decoder_input_tokens"][:, step], state)
    np.testing.assert_allclose(found, expected[:, step], atol=1e-4)
  assert tokens.tolist() == [0] * len(tokens)


# ---- Whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("objective", ["mass_in_place", "bert_style_masked_only"])
def test_a_plan_has_the_features_of_the_batches(tmp_path, objective, pack):
  """Features of files, of registered tasks, and of tasks in modules."""
  from t2t.configuration.loading import load_config, records

  path = tmp_path / "text.txt"
  path.write_text("\n".join(f"line {i} of some text" for i in range(400)))
  files = {"files": str(path), "mixture": "", "task_modules": (), "vocabulary": "bytes", "objective": objective}
  docs = {"mixture": f"docs_{objective}", "task_modules": ("t2t.tasks.docs",)}
  config = records(load_config("tiny_t5")).with_(train={"batch_size": 2})
  for chosen in (files, docs):
    changed = config.with_(data=chosen | {"inputs_length": 64, "targets_length": 64, "pack": pack})
    assert ("decoder_positions" in recipe.batch(changed)) == (pack or objective == "mass_in_place")
    if chosen is files:
      data = changed.data
      assert isinstance(data, DataConfig)
      rows = pipeline.eval_rows(data, "encoder_decoder", batch_size=2, max_batches=1)[0]
      assert {name: (x.shape, x.dtype) for name, x in rows.items()} == {
        name: (x.shape, x.dtype) for name, x in recipe.batch(changed).items()
      }
