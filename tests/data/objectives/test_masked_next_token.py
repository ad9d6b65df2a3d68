"""Batches with bidirectional and left-to-right rows: examples, batches, attention, whole runs."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from test_masked_seq2seq import Ids
import toy

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.data import feature_converters, objectives
from t2t.data.objectives import masked_next_token
from t2t.inference import predictor, prompt_features

pytestmark = pytest.mark.slow

MODEL = toy.decoder(vocab_size=100, bidirectional_prefix=True)


def examples(name, *documents, length=16, seed=0, **options):
  dataset = tf.data.Dataset.from_tensor_slices({"targets": tf.ragged.constant(documents, tf.int32)})
  options |= {"merge_documents": False}
  if name == "masked_next_token":
    options["output_features"] = {"targets": seqio.Feature(Ids(), add_eos=True)}
  with seqio.utils.map_seed_manager(seed):
    dataset = getattr(masked_next_token, name)(dataset, {"targets": length}, **options)
  return [{name: x.tolist() for name, x in example.items()} for example in dataset.as_numpy_iterator()]


def batch(found, *, length=8, pack=False, vocabulary=None):
  """Returns the model features of examples, as arrays of all rows."""
  names = tuple(found[0])
  lengths = feature_converters.feature_lengths("decoder_only", names, inputs_length=1, targets_length=length)
  signature = {name: tf.TensorSpec([None], tf.int32) for name in names}
  dataset = tf.data.Dataset.from_generator(lambda: iter(found), output_signature=signature)
  converted = feature_converters.convert(dataset, "decoder_only", lengths, vocabulary=vocabulary or Ids(), pack=pack)
  made = list(converted.as_numpy_iterator())
  return {name: np.stack([row[name] for row in made]) for name in made[0]}


# ---- Examples and batches --------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_examples_are_as_documented():
  """The docstrings' examples; EOS is never masked; 80 % of chosen tokens are masks and a tenth stays."""
  text = [3, 4, 5, 6, 1]
  ones, zeros = [1] * 5, [0] * 5
  assert examples("next_token", text) == [
    {"inputs": text, "targets": text, "loss_weights": ones, "both_ways": zeros},
  ]
  found = examples("masked_next_token", *[text] * 2_000, noise_density=0.25)
  expected = {"inputs": [3, 99, 5, 6, 1], "targets": text, "loss_weights": [0, 1, 0, 0, 0], "both_ways": ones}
  assert expected in found
  hidden = [(x, y) for each in found for x, y, w in zip(each["inputs"], text, each["loss_weights"], strict=True) if w]
  assert len(hidden) == len(found) and all(y != 1 for _, y in hidden)
  assert abs(np.mean([x == 99 for x, _ in hidden]) - 0.8) < 0.03
  assert 0.1 < np.mean([x == y for x, y in hidden]) < 0.15  # a tenth, plus random tokens that are equal by chance


PACKED = [
  {"inputs": [3, 99, 5, 1], "targets": [3, 4, 5, 1], "loss_weights": [0, 1, 0, 0], "both_ways": [1] * 4},
  {"inputs": [6, 7, 1], "targets": [6, 7, 1], "loss_weights": [1] * 3, "both_ways": [0] * 3},
]


def test_a_batch_is_as_documented():
  """Packed rows are the converter's example, with BOS 0; unpacked, each example has a row."""
  found = {name: x.tolist() for name, x in batch(PACKED, pack=True).items()}
  assert found == {
    "decoder_input_tokens": [[0, 3, 99, 5, 0, 6, 7, 0]],
    "decoder_target_tokens": [[3, 4, 5, 1, 6, 7, 1, 0]],
    "decoder_loss_weights": [[0, 1, 0, 0, 1, 1, 1, 0]],
    "decoder_causal_attention": [[1, 1, 1, 1, 0, 0, 0, 0]],
    "decoder_segment_ids": [[1, 1, 1, 1, 2, 2, 2, 0]],
    "decoder_positions": [[0, 1, 2, 3, 0, 1, 2, 0]],
  }
  rows = {name: x.tolist() for name, x in batch(PACKED, length=5).items()}
  assert rows["decoder_input_tokens"] == [[0, 3, 99, 5, 1], [0, 6, 7, 1, 0]]
  assert rows["decoder_causal_attention"] == [[1, 1, 1, 1, 0], [0] * 5]
  assert rows["decoder_loss_weights"] == [[0, 1, 0, 0, 0], [1, 1, 1, 0, 0]]


def test_from_left_to_right_it_is_causal_lm():
  """Tokens equal those of causal_lm for a decoder, without bidirectional attention."""
  texts = [[3, 4, 5, 1], [6, 1]]
  plain = batch([{"targets": text} for text in texts])
  beside = batch(examples("next_token", *texts))
  assert not beside.pop("decoder_causal_attention").any()
  jax.tree.map(np.testing.assert_array_equal, plain, beside)


# ---- Attention -------------------------------------------------------------------------------------------------------


def seen(row, model=MODEL):
  """Returns bool [query, key]: whether a position's state depends on another position's input."""
  features = {name: jnp.asarray(x[None]) for name, x in row.items()}
  built = toy.model(model)

  @jax.jit
  def states(tokens):
    return built(features | {"decoder_input_tokens": tokens})[0]

  tokens = features["decoder_input_tokens"]
  plain = states(tokens)
  changed = [states(tokens.at[0, key].set(50)) for key in range(tokens.shape[1])]
  return np.stack([np.abs(x - plain).max(axis=-1) > 1e-6 for x in changed], axis=1)


@pytest.mark.exhaustive
def test_each_row_sees_as_it_says():
  """Each text of a row attends as its features say, only to itself, and not to padding."""
  both, causal = ({name: x[i] for name, x in batch(PACKED, length=5).items()} for i in range(2))
  assert seen(both)[:4, :4].all() and not seen(both)[:4, 4].any()
  np.testing.assert_array_equal(seen(causal)[:3, :3], np.tri(3, dtype=bool))
  packed = seen({name: x[0] for name, x in batch(PACKED, pack=True).items()})
  assert packed[:4, :4].all() and not packed[:4, 4:].any() and not packed[4:7, :4].any()
  np.testing.assert_array_equal(packed[4:7, 4:7], np.tri(3, dtype=bool))


def test_a_hidden_token_is_not_seen():
  """Changing a masked token changes the targets, but no input."""
  one, other = PACKED[0], PACKED[0] | {"targets": [3, 8, 5, 1]}
  a, b = batch([one]), batch([other])
  differ = {name for name in a if (a[name] != b[name]).any()}
  assert differ == {"decoder_target_tokens"}


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def text(path):
  words = "the quick brown fox jumps over the lazy dog while seven wizards box with jugs"
  path.write_text("\n".join(f"{i} {words} {i * i}" for i in range(200)) + "\n")
  return path


def arguments(tmp_path, *more):
  return [
    *("train", "--config=tiny_gpt", "--config.data.vocabulary=bytes", "--config.model.vocab_size=384"),
    *("--config.model.num_decoder_layers=1", "--config.model.embed_dim=32", "--config.model.mlp_dim=32"),
    *("--config.data.targets_length=32", "--config.train.batch_size=8", "--config.train.steps=3"),
    *("--config.eval.batches=1", "--config.eval.num_logged_samples=4", f"--workdir={tmp_path / 'run'}", *more),
  ]


@pytest.mark.exhaustive
def test_two_objectives_on_the_same_files_are_one_batch(tmp_path, capsys):
  """A hybrid run mixes both kinds of rows; afterwards the model fills masks and continues prompts."""
  files = text(tmp_path / "text.txt")
  both = [
    *(f"--config.data.sources.causal.files={files}", "--config.data.sources.causal.objective=next_token"),
    *(f"--config.data.sources.masked.files={files}", "--config.data.sources.masked.objective=masked_next_token"),
    *(
      f"--config.data.sources.{name}.{key}"
      for name in ("causal", "masked")
      for key in (f"eval_files={files}", "share=0.5")
    ),
  ]
  assert command.main(arguments(tmp_path, *both)) == 2
  error = capsys.readouterr().err
  assert "config.data.sources.masked.objective=masked_next_token needs bidirectional attention" in error
  assert "Set config.model.bidirectional_prefix=True" in error
  assert command.main(arguments(tmp_path, *both, "--config.model.bidirectional_prefix=True")) == 0
  out = capsys.readouterr().out
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert all(np.isfinite(line.get("train/loss", 0.0)) for line in lines)
  # A prompt is read from left to right, without EOS.
  source = pretrained.read_source(str(tmp_path / "run"))
  assert pretrained.reads_causally(source) and not pretrained.ends_prompts(source)[0]
  assert re.search(r"input +.*\[1\]", out) and re.search(r"input  +[^\[\n]+\n", out)


def test_a_source_of_text_alone_is_refused_beside_them(tmp_path, capsys):
  """causal_lm has no attention features, so it cannot be mixed; next_token can."""
  files = text(tmp_path / "text.txt")
  both = [
    *(f"--config.data.sources.causal.files={files}", "--config.data.sources.causal.objective=causal_lm"),
    *(f"--config.data.sources.masked.files={files}", "--config.data.sources.masked.objective=masked_next_token"),
    "--config.model.bidirectional_prefix=True",
  ]
  assert command.main(arguments(tmp_path, *both)) == 2
  assert "yield the same features" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("causal", [False, True])
def test_a_prompt_is_read_as_it_says(causal):
  """Decoding gives the same next token as the whole row, bidirectional or not."""
  framing = prompt_features.PromptFraming(bos_id=0, eos_id=1, pad_id=0, causal=causal)
  prompts = [[5, 6, 7, 8], [9, 10]]
  model = toy.model(MODEL)
  features = prompt_features.prompt_features(prompts, 6, architecture="decoder_only", framing=framing)
  last, state = model.start_decode({name: jnp.asarray(x) for name, x in features.items()}, 2)
  found, _ = model.decode_step(last, state)
  scored = [predictor.ScoredRow(p, [3]) for p in prompts]
  rows = predictor.scored_features(scored, (6,), architecture="decoder_only", framing=framing)
  logits = toy.logits(model, rows)
  expected = np.stack([logits[0, 4], logits[1, 2]])
  np.testing.assert_allclose(found, expected, atol=1e-5)
  other = predictor.scored_features(
    scored,
    (6,),
    architecture="decoder_only",
    framing=dataclasses.replace(framing, causal=not causal),
  )
  assert np.abs(toy.logits(model, other)[0, 4] - expected[0]).max() > 1e-3


def test_what_they_are_for():
  """Only decoders are supported; a prompt has no EOS, as in training."""
  for name in ("next_token", "masked_next_token"):
    with pytest.raises(UserError, match=f"{name} does not fit"):
      objectives.check_fits(name, "encoder_only")
    assert not objectives.ends_inputs(name)
  assert dataclasses.asdict(MODEL)["bidirectional_prefix"]
