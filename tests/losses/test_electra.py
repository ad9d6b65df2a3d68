"""ELECTRA: a generator trained together with the model, and tokens sampled on the device."""

import dataclasses
import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, losses, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.losses import electra
from t2t.models import adapters as adapters_lib
from t2t.models.adapters.prefix import PrefixConfig
from t2t.models.adapters.prompt import PromptConfig
from t2t.training import optimizers, train_state, train_step

pytestmark = pytest.mark.slow

MODEL = toy.config(
  architecture="encoder_only",
  num_encoder_layers=2,
  num_decoder_layers=0,
  positions="learned",
  max_length=16,
  norm="layer",
  post_norm=True,
  biases=True,
  embedding_norm=True,
  embedding_dim=8,
  tied_logits=True,
  init_scale=0.3,
  mlp_activation="gelu",
  segment_types=2,
  heads=({"name": "replaced", "kind": "detector", "num_classes": 1},),
)
SMALL = electra.ElectraConfig(embed_dim=12, num_heads=2, mlp_dim=16, num_layers=1)


def loss_of(**changed) -> electra.Electra:
  return electra.Electra(dataclasses.replace(SMALL, **changed), toy.loss_config(z_loss=0.0, logits_chunk_tokens=5))


def batch_of(rows=8):
  """Returns rows with one text each; a third of the tokens is masked."""
  batch = toy.batch([8, 1, 5, 3, 8, 2, 7, 4] * (rows // 8), (1,) * rows, padded_to=(8, 8), architecture="encoder_only")
  real = batch["encoder_target_tokens"] > 0
  masked = (np.arange(batch["encoder_target_tokens"].size).reshape(real.shape) % 3 == 0) & real
  inputs = np.where(masked, 39, batch["encoder_target_tokens"])
  return batch | {"encoder_loss_weights": masked.astype(np.float32), "encoder_input_tokens": inputs}


def pair_of(loss, model=MODEL):
  return loss.build(model, nnx.Rngs(3))


def gradient(loss, pair, batch, key=0):
  graphdef, params = nnx.split(pair, graph=False)

  def terms(params):
    module = nnx.merge(graphdef, params)
    return loss(module, batch, loss.weights(batch), key=jax.random.key(key), train=True)

  return jax.jit(lambda params: train_step.gradient(terms, params))(params)


@pytest.mark.exhaustive
def test_both_are_trained_and_each_parameter_counts():
  """Every parameter of both models has a gradient; a shared embedding has gradients from both."""
  grads, metrics = gradient(loss_of(), pair_of(loss_of()), batch_of())
  for path, leaf in toy.flat(nnx.to_pure_dict(grads)).items():
    assert float(jnp.max(jnp.abs(leaf))) > 0, path
  assert set(metrics) == {"loss", "accuracy", "generator_loss", "generator_accuracy", "replaced"}


@pytest.mark.exhaustive
def test_a_shared_table_has_only_the_generators_gradient():
  """Gradient-disentangled sharing (He et al. 2023): the discriminator adds a difference, which starts at 0."""
  loss, batch = loss_of(mask_decoder=True), batch_of()
  positions = dict(positions="disentangled", relative_position_buckets=8, relative_position_max_distance=4)
  pair = pair_of(loss, dataclasses.replace(MODEL, embedding_difference=True, vocabulary_head=False, **positions))
  graphdef, params = toy.split(pair)
  assert not np.any(params["discriminator"]["embed"]["difference"]) and "table" not in params["generator"]["embed"]

  def term(name, params):
    return loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=toy.key(), train=True)[0][name]

  names = "generator", "discriminator"
  both = jax.jit(lambda params: [jax.grad(functools.partial(term, name))(params) for name in names])
  generator, discriminator = (toy.flat(gradients) for gradients in both(params))
  largest = lambda gradients, path: float(jnp.max(jnp.abs(gradients[path])))
  table, difference = "discriminator/embed/table", "discriminator/embed/difference"
  assert largest(generator, table) > 0 and largest(generator, difference) == 0
  assert largest(discriminator, table) == 0 and largest(discriminator, difference) > 0
  for path in generator:
    assert max(largest(generator, path), largest(discriminator, path)) > 0, path
    assert (largest(generator, path) > 0) == (path == table or path.startswith("generator/")), path


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "adapters",
  [{"prompt": PromptConfig(length=5)}, {"prefix": PrefixConfig(length=5, hidden=3)}],
  ids=["prompt", "prefix"],
)
@pytest.mark.parametrize("share_embeddings", [True, False])
def test_what_stands_in_front_is_the_discriminators(adapters, share_embeddings):
  """Adapters change only the discriminator; all added parameters are trained."""
  loss = loss_of(share_embeddings=share_embeddings)
  pair, batch = pair_of(loss), batch_of()
  adapted = adapters_lib.adapt(pair, adapters, nnx.Rngs(toy.key(1)))
  np.testing.assert_array_equal(adapted(batch), pair(batch))
  states = adapted.discriminator(batch)
  assert states.shape == pair.discriminator(batch).shape
  assert np.max(np.abs(states - pair.discriminator(batch))) > 1e-2
  for path, leaf in toy.flat(nnx.to_pure_dict(gradient(loss, adapted, batch)[0])).items():
    assert adapters_lib.base_path(path, adapters) is not None or float(jnp.max(jnp.abs(leaf))) > 0, path


@pytest.mark.exhaustive
def test_the_formula():
  """Compares with the generator's loss at masked tokens, and the discriminator's at all real tokens."""
  loss, batch = loss_of(), batch_of()
  pair = pair_of(loss)
  terms, metrics = loss(pair, batch, loss.weights(batch), key=jax.random.key(7), train=False)
  targets, masked, real = (
    batch["encoder_target_tokens"],
    batch["encoder_loss_weights"],
    batch["encoder_target_tokens"] > 0,
  )
  logits = pair.logits(pair(batch))
  key = jax.random.key(jax.random.bits(jax.random.split(jax.random.key(7), 3)[0], dtype=jnp.uint32))
  noise = np.stack([jax.random.gumbel(jax.random.fold_in(key, i), (40,)) for i in range(targets.size)])
  tokens = np.argmax(logits + noise.reshape(*targets.shape, 40), axis=-1)
  corrupted = np.where(masked > 0, tokens, targets)
  log_p = jax.nn.log_softmax(logits)
  generator = -np.sum(np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0] * masked) / masked.sum()
  changed = batch | {"encoder_input_tokens": corrupted, "encoder_segment_ids": real.astype(np.int32)}
  scores = np.asarray(pair.discriminator.head_logits("replaced", pair.discriminator(changed))[..., 0])
  replaced = corrupted != targets
  each = np.where(replaced, np.logaddexp(0, -scores), np.logaddexp(0, scores))
  assert 0 < replaced.sum() <= masked.sum()
  np.testing.assert_allclose(terms["generator"], generator, rtol=1e-5)
  np.testing.assert_allclose(terms["discriminator"], 50 * each[real].mean(), rtol=1e-5)
  np.testing.assert_allclose(metrics["replaced"].value(), replaced.sum() / real.sum(), rtol=1e-6)
  np.testing.assert_allclose(metrics["accuracy"].value(), ((scores > 0) == replaced)[real].mean(), rtol=1e-6)


def test_the_id_of_padding_may_be_drawn():
  """A sampled padding id does not mask a position of the discriminator."""
  loss, batch = loss_of(), batch_of()
  graphdef, params = toy.split(pair_of(loss))
  params["generator"]["head"]["bias"] = params["generator"]["head"]["bias"].at[0].set(1e3)
  pair = nnx.merge(graphdef, params)
  terms, metrics = loss(pair, batch, loss.weights(batch), key=jax.random.key(7), train=False)
  real = np.asarray(batch["encoder_target_tokens"] > 0)
  replaced = np.asarray(batch["encoder_loss_weights"] > 0)
  corrupted = np.where(replaced, 0, batch["encoder_target_tokens"])
  changed = batch | {"encoder_input_tokens": corrupted, "encoder_segment_ids": real.astype(np.int32)}
  scores = np.asarray(pair.discriminator.head_logits("replaced", pair.discriminator(changed))[..., 0])
  each = np.where(replaced, np.logaddexp(0, -scores), np.logaddexp(0, scores))
  np.testing.assert_allclose(metrics["replaced"].value(), replaced.sum() / real.sum(), rtol=1e-6)
  np.testing.assert_allclose(terms["discriminator"], 50 * each[real].mean(), rtol=1e-5)


def test_the_two_models_drop_for_themselves(monkeypatch):
  """Both dropout keys differ from each other and from the sampling key."""
  keys, loss, batch = toy.dropout_keys(monkeypatch), loss_of(), batch_of()
  pair, key = pair_of(loss, dataclasses.replace(MODEL, dropout_rate=0.1)), jax.random.key(7)
  jax.block_until_ready(jax.jit(lambda pair: loss(pair, batch, loss.weights(batch), key=key, train=True)[0])(pair))
  jax.effects_barrier()
  assert len(keys) > 2 * (MODEL.num_encoder_layers + SMALL.num_layers)
  assert len(set(keys)) == len(keys)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "changed", [{"positions": "masked"}, {"predicts": "tokens"}, {"share_embeddings": False}], ids=lambda x: next(iter(x))
)
def test_ablations_are_settings(changed):
  """Each ablation trains all of its parameters."""
  loss = loss_of(**changed)
  model = dataclasses.replace(MODEL, logits_transform=True, heads=()) if "predicts" in changed else MODEL
  grads, _ = gradient(loss, pair_of(loss, model), batch_of())
  flat = toy.flat(nnx.to_pure_dict(grads))
  assert all(float(jnp.max(jnp.abs(leaf))) > 0 for leaf in flat.values())
  assert ("generator/embed/table" in flat) == ("share_embeddings" in changed)
  assert any(path.startswith("discriminator/heads/") for path in flat) == ("predicts" not in changed)


def stepped(shape, microbatches):
  """Returns parameters and metrics after one step of gradient descent."""
  loss, batch = loss_of(), batch_of(16)
  one = shape == {"data": 1}
  mesh = sharding.make_mesh(shape, devices=jax.devices()[:1] if one else None)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(learning_rate=0.1), 10)
  with jax.set_mesh(mesh):
    graphdef, state, shardings = train_state.init_train_state(lambda _: pair_of(loss), tx, toy.key(), mesh)
    step = train_step.make_train_step(graphdef, loss, tx, shardings, num_microbatches=microbatches)
    state, metrics = step(state, jax.device_put(batch, sharding.batch_sharding(mesh)), toy.key())
    del metrics["grad_squares"]
    return jax.device_get(state.params), {name: float(metric.value()) for name, metric in metrics.items()}


@pytest.mark.exhaustive
def test_a_mesh_draws_what_one_device_draws():
  """A mesh also gives the same update."""
  (alone, expected), (spread, found) = stepped({"data": 1}, 1), stepped({"data": 2, "fsdp": 2, "tensor": 2}, 1)
  assert found == pytest.approx(expected, rel=1e-4)
  toy.assert_trees_close(spread, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_microbatches_have_the_weights_of_the_whole_batch():
  """Samples depend on microbatches; the numbers of masked and of all tokens do not."""
  _, whole = stepped({"data": 1}, 1)
  _, cut_up = stepped({"data": 1}, 4)
  assert cut_up["tokens"] == whole["tokens"]
  assert cut_up["generator_loss"] == pytest.approx(whole["generator_loss"], rel=1e-4)  # equal without dropout


@pytest.mark.exhaustive
def test_a_generator_may_stay_as_it_is():
  """A frozen generator needs no gradient; a loss without any gradient is an error."""
  loss, batch = loss_of(share_embeddings=False), batch_of()
  graphdef, params = nnx.split(pair_of(loss), graph=False)
  params = nnx.to_pure_dict(params)

  def terms(trained):
    return loss(nnx.merge(graphdef, params | trained), batch, loss.weights(batch), key=jax.random.key(0), train=True)

  discriminator = {"discriminator": params["discriminator"]}
  grads, _ = train_step.gradient(terms, discriminator, all_terms=False)
  assert float(jnp.max(jnp.abs(grads["discriminator"]["embed"]["table"]))) > 0
  with pytest.raises(ValueError, match="loss term 'generator' does not depend on any trained parameter"):
    train_step.gradient(terms, discriminator)


@pytest.mark.exhaustive
@pytest.mark.parametrize("microbatches", [1, 4])
def test_both_models_in_a_pipeline(microbatches):
  """The tokens that replace others are drawn outside of the layers, so two stages draw as one device does."""
  loss = loss_of(num_layers=2)
  model = dataclasses.replace(MODEL, num_encoder_layers=4, pipeline_microbatches=microbatches, unroll=1)
  pair, batch = pair_of(loss, model), batch_of()
  expected = jax.device_get(gradient(loss, pair, batch))
  mesh = sharding.make_mesh({"stage": 2}, devices=jax.devices()[:2])
  graphdef, params = nnx.split(pair, graph=False)
  placed = jax.device_put(nnx.to_pure_dict(params), sharding.param_shardings(params, mesh))
  with jax.set_mesh(mesh):
    rows = jax.device_put(batch, sharding.batch_sharding(mesh))
    grads, metrics = jax.device_get(gradient(loss, nnx.merge(graphdef, placed), rows))
  toy.assert_trees_close(metrics, expected[1])
  toy.assert_trees_close(nnx.to_pure_dict(grads), nnx.to_pure_dict(expected[0]), atol=1e-4, rtol=1e-4)
  assert float(metrics["replaced"].value()) > 0


@pytest.mark.exhaustive
def test_evaluation_draws_the_same_again():
  loss, batch = loss_of(), batch_of()
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)
  with jax.set_mesh(mesh):
    graphdef, state, _ = train_state.init_train_state(lambda _: pair_of(loss), tx, toy.key(), mesh)
    evaluate = functools.partial(train_step.evaluate, train_step.make_eval_step(graphdef, loss))
    first, again = (evaluate(state, [batch]) for _ in range(2))
    later = evaluate(dataclasses.replace(state, step=state.step + 1), [batch])
  value = lambda metrics: float(metrics["loss"].value())
  assert value(first) == value(again) != value(later)


@pytest.mark.parametrize(
  ("section", "changed", "message"),
  [
    ("electra", {"mlp_dim": 9_999}, "config.electra.mlp_dim=9999: must be from 1 to the discriminator's"),
    ("electra", {"num_heads": 0}, "config.electra.num_heads=0"),
    ("model", {"heads": ()}, "a detector 'replaced' with one score, but config.model.heads has none"),
    (
      "model",
      {"heads": ({"name": "replaced", "num_classes": 1},)},
      r"with one score, but config.model.heads has replaced \(class, 1\)",
    ),
    ("model", {"absolute_positions": "mask_decoder"}, "Set config.model.absolute_positions='' and config.electra.mask"),
    ("electra", {"mask_decoder": True}, "mask_decoder=True needs config.model.positions=disentangled"),
    ("electra", {"predicts": "words"}, "config.electra.predicts=words: unknown value. Known values: replaced, tokens"),
    (
      "model",
      {"architecture": "decoder_only", "num_decoder_layers": 3, "num_encoder_layers": 0},
      "needs a bidirectional encoder",
    ),
    ("train", {"loss": "electr"}, "config.train.loss=electr: unknown loss. Known values: .*; did you mean electra?"),
  ],
)
def test_what_it_cannot_be(section, changed, message):
  config = load_config("tiny_electra")
  config[section].update(changed)
  if "architecture" in changed:
    config.model.update(segment_types=0, positions="rotary", heads=())
  with pytest.raises(UserError, match=message):
    losses.make(records(config))


def test_it_needs_its_section():
  config = load_config("tiny_bert")
  config.train.loss = "electra"
  with pytest.raises(UserError, match="config.electra is missing"):
    losses.make(records(config))


def test_the_published_generators():
  """Generators have a third or a quarter of the width and all layers; an override changes only its key."""
  for name, ratio in (("electra_small", 4), ("electra_base", 3), ("electra_large", 4)):
    run = records(override(load_config(name), ["--config.electra.num_heads=1"]))
    generator = electra.generator_config(run.model, run.electra)
    assert run.model.embed_dim == ratio * generator.embed_dim
    assert (generator.num_encoder_layers, generator.head_dim) == (run.model.num_encoder_layers, run.model.head_dim)


@pytest.mark.exhaustive
def test_the_command(tmp_path, capsys):
  """Trains and resumes both models, and exports and imports the discriminator of a checkpoint."""
  lines = [f"the quick brown fox jumps over lazy dog {i} and sees {3 * i} wizards" for i in range(400)]
  (tmp_path / "text.txt").write_text("\n".join(lines))
  small = {"vocab_size": 384, "embed_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "num_encoder_layers": 2}
  options = ["--config=tiny_electra", f"--config.data.files={tmp_path}/text.txt", "--config.data.vocabulary=bytes"]
  options += ["--config.data.objective=masked_lm"]
  options += [f"--config.model.{key}={value}" for key, value in small.items()]
  options += ["--config.data.inputs_length=64", "--config.data.targets_length=64"]
  options += ["--config.train.batch_size=8", "--config.eval.every=2", "--config.eval.batches=1"]
  generator = {"embed_dim": 8, "num_heads": 1, "mlp_dim": 16, "num_layers": 1}
  train = ["train", *options, f"--workdir={tmp_path}/run", "--config.checkpoint.save_interval_steps=2"]
  train += [f"--config.electra.{key}={value}" for key, value in generator.items()]
  assert command.main([*train, "--config.train.steps=2"]) == 0
  assert command.main([*train, "--config.train.steps=4"]) == 0
  said = capsys.readouterr()
  assert "resuming from step 2" in said.err and "constant " in said.out
  assert command.main(["convert", f"{tmp_path}/run", "--to", "hf", f"{tmp_path}/hf"]) == 0
  assert "only the discriminator is converted, without the generator" in capsys.readouterr().out.replace("\n", " ")
  found, theirs = (pretrained.read_source(str(tmp_path / name)) for name in ("run", "hf"))
  assert found.part == "discriminator" and theirs.model.heads == found.model.heads
  mesh = sharding.make_mesh({"fsdp": 8})
  own = pretrained.load(found, mesh).params
  assert not any(path.startswith("generator") for path in toy.flat(own))
  toy.assert_trees_close(pretrained.load(theirs, mesh).params, own, atol=0, rtol=0)
  asked = ["eval", "--config=finetune_docs_match", f"--checkpoint={tmp_path}/run", f"--workdir={tmp_path}/eval"]
  assert command.main(asked) == 2
  assert "is a discriminator" in capsys.readouterr().err
  # A run with both models.
  again = [each.replace("/run", "/again") for each in train]
  assert command.main([*again, "--config.train.steps=1", f"--config.init.checkpoint={tmp_path}/run"]) == 0
  assert "starting from the parameters of" in capsys.readouterr().err
  # Initialization of a masked language model.
  warm = [
    "train",
    *options,
    f"--workdir={tmp_path}/warm",
    "--config.train.steps=1",
    "--config.train.loss=cross_entropy",
  ]
  warm += ["--config.model.heads=()", "--config.model.logits_transform=True", "--config.init.reinit=^head/"]
  assert command.main([*warm, f"--config.init.checkpoint={tmp_path}/run"]) == 0
  assert "fresh:" in capsys.readouterr().err
