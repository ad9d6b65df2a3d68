"""Multi-token prediction: states, loss, denominators and speculative decoding."""

import dataclasses
import json
import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.inference import decoding, speculative
from t2t.losses import multi_token
from t2t.models import multi_token as multi_token_model
from t2t.models import transformer
from t2t.models.config import POSITIONS
from t2t.models.masks import AttentionMask

KINDS = {
  "llama": toy.decoder(future_tokens=2, mlp_activation="gated_silu", positions="rotary", scale_attention=True),
  "gpt1": toy.decoder(
    future_tokens=1, norm="layer", post_norm=True, biases=True, positions="learned", max_length=40, remat="full"
  ),
  "local": toy.decoder(future_tokens=2, attention_window=3, global_attention_every=3, bidirectional_prefix=True),
}


def states_of(model, batch):
  hidden = model.hidden(batch)
  return jnp.concatenate([hidden.x[None], model.future_states(batch, hidden)])


BATCH = dict(inputs=(7, 4), targets=(3, 5), architecture="decoder_only")


@pytest.mark.parametrize(
  "kind", [pytest.param("llama", marks=pytest.mark.slow), pytest.param("gpt1", marks=pytest.mark.exhaustive)]
)
def test_each_later_layer_replaces_the_last_layer(kind):
  """A later token's states are those of the model with its layer in place of the last one."""
  config, batch = KINDS[kind], toy.batch(**BATCH)
  model = toy.model(config)
  states = jax.jit(states_of)(model, batch)
  plain = toy.model(config)
  np.testing.assert_allclose(states[0], plain(batch), atol=1e-5)
  layer = jax.tree.map(lambda x: x[0], nnx.state(model.future.layers))
  layers = jax.tree.map(lambda stacked, one: stacked.at[-1].set(one), nnx.state(model.decoder.layers), layer)
  nnx.update(plain.decoder.layers, layers)
  np.testing.assert_allclose(states[1], plain(batch), atol=1e-5)
  assert np.abs(states[1] - states[0]).max() > 1e-2


def test_states_for_later_tokens_are_causal():
  """No state depends on a token to its right, by gradient."""
  model, batch = toy.model(KINDS["llama"]), toy.batch(**BATCH)
  table = jax.nn.one_hot(batch["decoder_input_tokens"], 40)

  def of_tokens(table, position):
    mask = AttentionMask(causal=True)
    aux = model.decoder(table @ model.embed.table[...], mask=mask)[2]
    states, _ = model.future(model.decoder, aux.states["last_input"], mask=mask)
    return jnp.sum(states[:, :, position])

  gradient = np.abs(jax.jit(jax.grad(of_tokens), static_argnums=1)(table, 4)).max(axis=(0, 2))
  assert np.all(gradient[:5] > 0) and not np.any(gradient[5:])


@pytest.mark.slow
def test_no_token_is_predicted_across_segments():
  """The loss of packed rows equals the formula, with a denominator per distance that counts targets in the segment."""
  config = KINDS["llama"]
  model, batch = toy.model(config), toy.packed(toy.batch(**BATCH))
  loss = multi_token.MultiToken(toy.loss_config(z_loss=0.0), future_tokens=2, weight=0.5)
  weights = loss.weights(batch)
  terms, metrics = jax.jit(lambda m, b: loss(m, b, weights, key=None, train=False))(model, batch)
  logits = np.asarray(jax.vmap(model.logits)(states_of(model, batch)), np.float64)
  log_probs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  features = {name.removeprefix("decoder_"): np.asarray(x)[0] for name, x in batch.items()}
  targets, target_weights, segments = (features[name] for name in ("target_tokens", "loss_weights", "segment_ids"))
  for distance, name in enumerate(("loss", "future_1", "future_2")):
    at = [
      place
      for place in range(len(targets) - distance)
      if target_weights[place + distance] and segments[place] == segments[place + distance]
    ]
    losses = [-log_probs[distance, 0, place, targets[place + distance]] for place in at]
    assert float(weights[name]) == len(at) > 0
    np.testing.assert_allclose(terms[name], (0.5 if distance else 1.0) * np.mean(losses), rtol=1e-5)
    metric = metrics["loss" if not distance else f"{name}_loss"]
    np.testing.assert_allclose(metric.value(), np.mean(losses), rtol=1e-5)


def test_weights_of_later_tokens_are_the_docstrings():
  """The example arrays of `later_weights`."""
  batch = {
    "decoder_target_tokens": jnp.array([[5, 6, 1, 7, 1]]),
    "decoder_loss_weights": jnp.ones((1, 5)),
    "decoder_segment_ids": jnp.array([[1, 1, 1, 2, 2]]),
  }
  targets, weights = multi_token.later_weights(batch, 1)
  np.testing.assert_array_equal(targets, [[6, 1, 7, 1, 0]])
  np.testing.assert_array_equal(weights, [[1, 1, 0, 1, 0]])
  assert not np.any(multi_token.later_weights(batch, 9)[1])


@pytest.mark.parametrize(
  "kind",
  [
    pytest.param("llama", marks=pytest.mark.slow),
    *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("gpt1", "local")),
  ],
)
def test_speculative_decoding_equals_greedy_decoding(kind):
  """Tokens and scores are greedy decoding's, in fewer calls when drafts are right."""
  config = KINDS[kind]
  model, batch = toy.model(config), toy.batch(**BATCH)
  prompts = {
    name: x[:, :8] for name, x in batch.items() if name in ("decoder_input_tokens", "decoder_causal_attention")
  }
  options = decoding.DecodeConfig(9, min_length=3, vocab_size=30)
  for eos_id in (-1, 17):
    expected = jax.jit(lambda m, b, eos=eos_id: decoding.decode(m, b, config=options, eos_id=eos))(model, prompts)
    drafted = jax.jit(lambda m, b, eos=eos_id: speculative.Speculative.decode(m, b, None, config=options, eos_id=eos))(
      model, prompts
    )
    np.testing.assert_array_equal(drafted.tokens, expected.tokens)
    np.testing.assert_allclose(drafted.scores, expected.scores, rtol=1e-4)
    counts = drafted.counts
    assert np.all(counts["accepted"] <= counts["drafted"]) and np.all(counts["calls"] <= 9)


def test_right_drafts_save_calls():
  """With logits that are all equal, every draft is right: each call gives one token more than there are drafts."""
  model, batch = toy.model(KINDS["llama"]), toy.batch(**BATCH)
  model.head.projection[...] = jnp.zeros_like(model.head.projection[...])
  prompts = {name: batch[name][:, :8] for name in ("decoder_input_tokens", "decoder_causal_attention")}
  options = decoding.DecodeConfig(9)
  drafted = jax.jit(lambda m, b: speculative.Speculative.decode(m, b, None, config=options, eos_id=-1))(model, prompts)
  # Drafts of the first call are token 0, which is right here, too.
  np.testing.assert_array_equal(drafted.counts["calls"], [3, 3])
  np.testing.assert_array_equal(drafted.counts["drafted"], [4, 4])
  np.testing.assert_array_equal(drafted.counts["accepted"], [4, 4])


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("positions", [name for name in POSITIONS if name != "none"])
def test_several_tokens_at_once_equal_a_forward_pass(positions):
  """With every position scheme, for rows whose prompts have different lengths."""
  fields = dict(max_length=40, relative_position_buckets=8, relative_position_max_distance=16, scale_attention=True)
  model = toy.model(toy.decoder(future_tokens=2, positions=positions, **fields))
  tokens, prompts = np.random.default_rng(0).integers(2, 40, (2, 12)), np.array([5, 3])
  is_prompt = (np.arange(6)[None] < prompts[:, None]).astype(np.int32)
  batch = {"decoder_input_tokens": jnp.asarray(tokens[:, :6] * is_prompt), "decoder_causal_attention": is_prompt}
  _, state = model.start_decode(batch, 8, with_future=True)
  drafts = np.stack([row[length - 1 : length + 3] for row, length in zip(tokens, prompts, strict=True)])
  found = jax.jit(lambda drafts, state: multi_token_model.extend(model, drafts, state)[0][0])(
    jnp.asarray(drafts), state
  )
  for row, length in enumerate(prompts):
    expected = model({"decoder_input_tokens": jnp.asarray(tokens[row : row + 1, : length + 3])})[0, length - 1 :]
    np.testing.assert_allclose(found[row], expected, atol=1e-4)


def test_drafts_before_the_first_wrong_one_are_accepted():
  """The docstring's example."""
  drafts, likeliest = jnp.array([[5, 6, 7], [5, 6, 7]]), jnp.array([[5, 6, 8], [4, 6, 7]])
  np.testing.assert_array_equal(speculative.num_accepted(drafts, likeliest), [2, 0])


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(architecture="encoder_decoder", num_encoder_layers=2), "needs config.model.architecture=decoder_only"),
    (dict(share_layers=True), "Set --config.model.share_layers=False"),
  ],
)
def test_a_model_that_cannot_predict_later_tokens_is_an_error(fields, message):
  with pytest.raises(UserError, match=re.escape(message)):
    config = dataclasses.replace(KINDS["llama"], **fields)
    jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))


def test_speculative_decoding_without_drafts_is_an_error():
  config = dataclasses.replace(KINDS["llama"], future_tokens=0, decoder="speculative")
  with pytest.raises(UserError, match="config.model.future_tokens=0"):
    config.text_decoder.check(config, 4, 8)
  with pytest.raises(UserError, match="temperature=1.0: config.model.decoder=speculative supports only greedy"):
    speculative.Speculative.decode(None, {}, None, config=decoding.DecodeConfig(4, temperature=1.0), eos_id=1)


@pytest.mark.exhaustive
def test_loss_and_gradients_do_not_depend_on_the_mesh():
  """They equal one device's on data 2 x fsdp 2 x tensor 2, with microbatches of uneven weights, too."""
  config = dataclasses.replace(KINDS["llama"], future_tokens=2)
  model, loss = toy.model(config), multi_token.MultiToken(toy.loss_config(), future_tokens=2)
  batch = toy.batch((7, 4, 3, 6) * 2, (3, 5, 2, 4) * 2, architecture="decoder_only")
  graphdef, params = toy.split(model)

  def terms(params, batch, weights):
    terms, _ = loss(nnx.merge(graphdef, params), batch, weights, key=None, train=True)
    return sum(terms.values())

  step = jax.jit(jax.value_and_grad(terms))
  weights = loss.weights(batch)
  expected = step(params, batch, weights)
  parts = [step(params, jax.tree.map(lambda x, i=i: x[i : i + 3], batch), weights) for i in (0, 3, 6)]
  toy.assert_trees_close(jax.tree.map(lambda *x: sum(x), *parts), expected)
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  with jax.set_mesh(mesh):
    shapes = nnx.split(model, graph=False)[1]
    placed = jax.device_put(params, sharding.param_shardings(shapes, mesh))
    toy.assert_trees_close(step(placed, jax.device_put(batch, sharding.batch_sharding(mesh)), weights), expected)


@pytest.mark.exhaustive
def test_the_commands_train_and_generate(tmp_path, capsys):
  """`t2t train` trains the later tokens' layers; `t2t infer` writes the same text with and without drafts."""
  options = ("--config.train.steps=4", "--config.train.batch_size=8", "--config.data.targets_length=32")
  options += ("--config.model.future_tokens=2", "--config.train.loss=multi_token", "--config.eval.num_logged_samples=0")
  assert command.main(["train", "--config=tiny_gpt", f"--workdir={tmp_path / 'run'}", *options]) == 0
  assert "future_2_loss" in (tmp_path / "run/metrics.jsonl").read_text()
  (tmp_path / "in.txt").write_text("The config\nA run reads files\n")
  rows = []
  for decoder in ("autoregressive", "speculative"):
    output = tmp_path / f"{decoder}.jsonl"
    files = (f"--checkpoint={tmp_path / 'run'}", f"--input={tmp_path / 'in.txt'}", f"--output={output}")
    assert command.main(["infer", *files, "--max_length=12", f"--decoder={decoder}"]) == 0
    rows.append([json.loads(line)["prediction"] for line in output.read_text().splitlines()])
  assert rows[0] == rows[1]
  assert re.search(r"drafts +\d+% of \d+ accepted", capsys.readouterr().out)
