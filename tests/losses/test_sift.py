"""SiFT: the divergence of predictions from clean and from perturbed embeddings."""

import dataclasses
import json

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, feature_spec, losses
from t2t import __main__ as command
from t2t.configuration.loading import load_config, override, records
from t2t.losses import head_losses, sift
from t2t.models import layers
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

HEADS = (
  HeadConfig("topic", 3),
  HeadConfig("likeness", 1, "score"),
  HeadConfig("cause", 1, "choice"),
  HeadConfig("names", 4, "tag"),
  HeadConfig("answer", 2, "span"),
)
SETTINGS = sift.SiftConfig(weight=3.0, init_perturbation=0.3, step_size=0.1)
SCORE = int(np.float32(0.7).view(np.int32))
# Columns of a row: a class and a score; two candidates and a span; tags and padding.
ANSWERS = {
  "heads": [[1, 0, 0, 0, 2, 0, 0, 0], [3, 0, 0, 3, 0, 5, 5, 5], [4, 4, 4, 0, 0, 0, 0, 0]],
  "targets": [[2, 0, 0, 0, SCORE, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1, 2], [3, 0, 1, 0, 0, 0, 0, 0]],
  "groups": [[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0, 0]],
}
SEGMENTS = [[1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 1, 0, 0, 0]]


def case(kind="bert", heads=HEADS, settings=SETTINGS, **fields):
  """Returns loss, structure and parameters of a model, and a batch."""
  config = dataclasses.replace(toy.KINDS[kind], **({"heads": heads, "dropout_rate": 0.0} | fields))
  side, random = config.kind.answers, np.random.default_rng(3)
  tokens = np.where(np.array(SEGMENTS) > 0, random.integers(3, 40, (3, 8)), 0)
  batch = {f"{side}_input_tokens": tokens, f"{side}_target_tokens": tokens, f"{side}_segment_ids": SEGMENTS}
  batch |= {f"{side}_answer_{name}": values for name, values in ANSWERS.items()}
  graphdef, params = toy.split(toy.model(config))
  params["heads"] = jax.tree.map(lambda x: x + 0.5 * random.normal(size=x.shape).astype(x.dtype), params["heads"])
  batch = {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}
  return sift.Sift(config, None, settings=settings), graphdef, params, batch


def predictions(module, batch):
  """Returns the logits of each head."""
  return head_losses.all_answers(module, batch, [head.name for head in HEADS])


def symmetric_kl(p, q):
  p, q = (np.asarray(x, np.float64) for x in (p, q))
  p, q = (np.exp(x) / np.exp(x).sum(axis=0) for x in (p, q))
  return float(np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p)))


def test_the_perturbation_has_the_width_of_the_embedding_that_heads_read():
  """An encoder may have another width than the decoder, whose embedding is not perturbed."""
  loss, graphdef, params, batch = case("t5gemma")

  def compute(params):
    module = nnx.merge(graphdef, params)
    return loss.perturbation(module, batch, predictions(module, batch), key=toy.key())

  assert loss.config.encoder_embed_dim not in (0, loss.config.embed_dim)
  shapes = jax.tree.map(lambda x: x.shape, jax.eval_shape(compute, params))
  assert shapes == {"encoder_perturbation": (3, 8, loss.config.encoder_embed_dim)}


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["bert", "t5_1_1", "local_prefix_lm"])
def test_the_terms_are_the_formula(kind):
  """Symmetric KL divergences of classes, candidates, tags, and of start and end; the squared difference of scores."""
  loss, graphdef, params, batch = case(kind)
  weights, plain = loss.weights(batch), head_losses.HeadLosses(loss.config, None)

  @jax.jit
  def compute(params):
    module = nnx.merge(graphdef, params)
    clean = predictions(module, batch)
    delta = loss.perturbation(module, batch, clean, key=jax.random.split(toy.key(), 3)[1])
    trained = loss(module, batch, weights, key=toy.key(), train=True)
    plain_terms = plain(module, batch, weights, key=None, train=False)[0]
    return trained, plain_terms, (clean, predictions(module, batch | delta))

  (terms, metrics), plain_terms, pairs = compute(params)
  both = lambda name, *at: (np.asarray(logits[name])[at] for logits in pairs)
  expected = {
    "topic": symmetric_kl(*both("topic", 0, 0)),
    "likeness": float(np.square(np.subtract(*both("likeness", 0, 4, 0)))),
    "cause": symmetric_kl(*both("cause", 1, [0, 3], 0)),
    "names": sum(symmetric_kl(*both("names", 2, i)) for i in range(3)) / 3,
    "answer": sum(symmetric_kl(*both("answer", 1, slice(5, 8), i)) for i in range(2)) / 2,
  }
  assert terms.keys() == {*plain_terms, *(f"{name}_divergence" for name in expected)}
  for name, value in expected.items():
    assert value > 1e-5
    np.testing.assert_allclose(metrics[f"{name}_divergence"].value(), value, rtol=2e-3)
    # Each of the five heads has one of the five examples.
    np.testing.assert_allclose(terms[f"{name}_divergence"], 3.0 * value / 5, rtol=2e-3)
    np.testing.assert_allclose(terms[name], plain_terms[name], rtol=1e-5)


def test_the_perturbation_is_added_to_normalized_embeddings():
  """The embedding is the model's norm of normalized vectors plus the perturbation, for tables of any scale."""
  config = toy.KINDS["bert"]
  tokens, delta = jnp.array([[5, 9, 3]]), 0.3 * jax.random.normal(toy.key(), (1, 3, config.embed_dim))
  embed = layers.Embed(config, nnx.Rngs(0))
  rows = embed.table[...][tokens] + embed.positions[...][:3] + (0.0 if embed.segments is None else embed.segments[0])
  normalized = (rows - rows.mean(axis=-1, keepdims=True)) / rows.std(axis=-1, keepdims=True)
  expected = embed.norm(normalized + delta)
  np.testing.assert_allclose(embed(tokens, perturbation=delta), expected, atol=1e-4)
  assert np.abs(expected - embed(tokens)).max() > 0.1
  plain = layers.Embed(toy.KINDS["t5_1_1"], nnx.Rngs(0))
  change = lambda: plain(tokens, perturbation=delta[..., : plain.added_width]) - plain(tokens)
  first = change()
  plain.table[...] = 100.0 * plain.table[...]
  np.testing.assert_allclose(change(), 100.0 * first, rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
def test_the_search_is_gradient_ascent():
  """Noise of bounded size, plus each token's gradient over its largest component, once for each step."""
  loss, graphdef, params, batch = case(settings=dataclasses.replace(SETTINGS, steps=2))
  module = nnx.merge(graphdef, params)
  clean = jax.jit(predictions)(module, batch)

  @jax.jit
  def total(delta):
    noisy = predictions(module, batch | {"encoder_perturbation": delta})
    of_head = lambda number, name: head_losses.divergence(
      loss.config.heads[number], clean[name], noisy[name], head_losses.asked_of(batch, number)
    )
    return sum(of_head(number, head.name) for number, head in enumerate(HEADS))

  noise_key = jax.random.split(toy.key(), 3)[0]
  expected = 0.3 * np.clip(jax.random.normal(noise_key, (3, 8, loss.config.embed_dim)), -2, 2)
  start, gradient_of = float(total(expected)), jax.jit(jax.grad(total))
  for _ in range(2):
    gradient = np.asarray(gradient_of(expected))
    expected += 0.1 * gradient / (np.abs(gradient).max(axis=-1, keepdims=True) + 1e-6)
  found = jax.jit(lambda m: loss.perturbation(m, batch, clean, key=toy.key()))(module)["encoder_perturbation"]
  np.testing.assert_allclose(found, expected, atol=1e-3)
  assert float(total(found)) > start


@pytest.mark.exhaustive
def test_neither_the_perturbation_nor_the_targets_are_differentiated():
  """The gradient is that of the formula with the perturbation and both targets as constants, and noise-free tables."""
  loss, graphdef, params, batch = case(heads=HEADS[:1])
  weights = loss.weights(batch)
  answer = lambda params, rows: head_losses.all_answers(nnx.merge(graphdef, params), rows, ["topic"])

  @jax.jit
  def constants(params):
    clean, search_key = answer(params, batch), jax.random.split(toy.key(), 3)[1]
    delta = loss.perturbation(nnx.merge(graphdef, params), batch, clean, key=search_key)
    of_example = lambda logits: jax.nn.softmax(logits["topic"][0, 0])
    return delta, of_example(clean), of_example(answer(params, batch | delta))

  delta, clean_targets, noisy_targets = constants(params)
  tables = params["embed"]

  def formula(params):
    terms, _ = head_losses.HeadLosses(loss.config, None)(
      nnx.merge(graphdef, params), batch, weights, key=None, train=False
    )
    fixed = params | {"embed": tables | {"norm": params["embed"]["norm"]}}
    noisy, clean = (answer(*given)["topic"][0, 0] for given in ((fixed, batch | delta), (params, batch)))
    # The cross-entropies of the authors' code.
    both = clean_targets * jax.nn.log_softmax(noisy) + noisy_targets * jax.nn.log_softmax(clean)
    return terms["topic"] - 3.0 * jnp.sum(both)

  def trained(params):
    terms, _ = loss(nnx.merge(graphdef, params), batch, weights, key=toy.key(), train=True)
    return sum(terms.values())

  toy.assert_trees_close(jax.jit(jax.grad(trained))(params), jax.jit(jax.grad(formula))(params), atol=1e-4, rtol=1e-3)


@pytest.mark.exhaustive
def test_without_noise_it_is_the_loss_of_heads():
  """The gradient of a model without dropout is that of the plain loss; evaluation has no perturbation at all."""
  loss, graphdef, params, batch = case(settings=sift.SiftConfig(init_perturbation=0.0, step_size=0.0))
  plain, weights = head_losses.HeadLosses(loss.config, None), loss.weights(batch)

  def gradient(loss):
    total = lambda params: sum(loss(nnx.merge(graphdef, params), batch, weights, key=toy.key(), train=True)[0].values())
    return jax.jit(jax.value_and_grad(total))(params)

  toy.assert_trees_close(gradient(loss), gradient(plain), atol=1e-5, rtol=1e-4)
  evaluate = lambda loss: jax.jit(
    lambda params: loss(nnx.merge(graphdef, params), batch, weights, key=None, train=False)
  )(params)
  toy.assert_trees_close(evaluate(loss), evaluate(plain), atol=0, rtol=0)


@pytest.mark.slow
def test_a_step_costs_what_the_loss_says():
  """XLA counts the FLOPs of two training passes and of a search without gradients of parameters."""
  sizes = dict(embed_dim=64, mlp_dim=512, head_dim=16, num_encoder_layers=3, share_layers=False, remat="none")

  def counted(loss, graphdef, params, batch):
    weights = loss.weights(batch)
    total = lambda params: sum(loss(nnx.merge(graphdef, params), batch, weights, key=toy.key(), train=True)[0].values())
    cost = jax.jit(jax.grad(total)).lower(params).compile().cost_analysis()["flops"]
    return cost, loss.flops(loss.config, batch_size=3, lengths={"encoder": 8}, predicted=0.0)

  loss, *rest = case(heads=HEADS[:1], **sizes)
  counts = [counted(each, *rest) for each in (loss, head_losses.HeadLosses(loss.config, None))]
  (cost, flops), (plain_cost, plain_flops) = counts
  assert flops / plain_flops == pytest.approx(2 + 2 / 3)
  assert cost / plain_cost == pytest.approx(flops / plain_flops, rel=0.05)


def test_the_search_is_not_differentiated_again(monkeypatch):
  """A step can be traced although the backward pass of the search has no derivative, like that of a kernel."""

  @jax.custom_jvp
  def no_derivative(x):
    return x

  @no_derivative.defjvp
  def refuse(primals, tangents):
    raise AssertionError("the gradient of the search was differentiated")

  once = jax.custom_vjp(jnp.square)
  once.defvjp(lambda x: (jnp.square(x), x), lambda x, cotangent: (2.0 * no_derivative(x) * cotangent,))
  real = sift.divergence
  monkeypatch.setattr(sift, "divergence", lambda *given: once(real(*given)))
  loss, graphdef, params, batch = case(heads=HEADS[:1])
  weights = loss.weights(batch)
  total = lambda params: sum(loss(nnx.merge(graphdef, params), batch, weights, key=toy.key(), train=True)[0].values())
  jax.make_jaxpr(jax.grad(total))(params)


def test_facts_of_the_table():
  """Features and data follow the row alone: a second loss of heads needs no other place."""
  assert losses.answered_by_heads_alone("sift") and losses.answered_by_heads_alone("heads")
  assert losses.answered_by_heads("tokens_and_heads") and not losses.answered_by_heads_alone("tokens_and_heads")
  assert not losses.answered_by_heads_alone("cross_entropy") and not losses.answered_by_heads_alone("")
  config = records(load_config("tiny_bert"))
  features = lambda loss: recipe.task_features(config.with_(train={"loss": loss}))
  assert features("sift") == features("heads") == feature_spec.ANSWERED
  assert features("tokens_and_heads") == (*feature_spec.ANSWERED, "targets", "loss_weights")


@pytest.mark.parametrize(
  ("option", "message"),
  [
    ("weight=0.0", "config.sift.weight=0.0: must be above 0. For no divergence, set --config.train.loss=heads"),
    ("steps=-1", "config.sift.steps=-1: must be at least 0"),
    ("step_size=-1.0", "config.sift.step_size=-1.0: must be at least 0"),
    ("init_perturbation=-0.1", "config.sift.init_perturbation=-0.1: must be at least 0"),
  ],
)
def test_settings_out_of_range_are_refused(option, message):
  """The message names key, value and remedy."""
  config = load_config("tiny_bert")
  config.model.heads = ({"name": "topic", "num_classes": 3},)
  config = override(config, ["--config.train.loss=sift", f"--config.sift.{option}"])
  with pytest.raises(UserError) as error:
    recipe.make(records(config))
  assert message in str(error.value)


def test_a_model_without_heads_is_refused():
  """The message names a remedy."""
  with pytest.raises(UserError, match=r"loss=sift: no head of config.model.heads can be trained. Give config.data"):
    recipe.make(records(load_config("tiny_bert")).with_(train={"loss": "sift"}))


@pytest.mark.exhaustive
def test_the_command_trains_a_classifier(tmp_path):
  """`t2t train` reads the table for the new loss as for heads, and learns the classes."""
  rows = [f"{('aaaa', 'zzzz')[i % 2]} {i % 7},{('warm', 'cold')[i % 2]}" for i in range(64)]
  (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
  options = ("--config.data.labels=warm,cold", "--config.data.vocabulary=bytes", "--config.train.loss=sift")
  sizes = {"train.steps": 60, "eval.every": 60, "checkpoint.save_interval_steps": 60, "train.batch_size": 16}
  sizes |= {"data.inputs_length": 24, "eval.num_logged_samples": 0, "model.num_encoder_layers": 1}
  sizes |= {"model.embed_dim": 32, "model.mlp_dim": 64, "model.dropout_rate": 0.0}
  sizes |= {"optimizer.learning_rate": 0.03, "optimizer.name": "adamw", "optimizer.schedule": "constant"}
  options += tuple(f"--config.{key}={value}" for key, value in sizes.items())
  files = (f"--config.data.files={tmp_path / 'table.csv'}", f"--workdir={tmp_path / 'run'}")
  assert command.main(["train", "--config=tiny_bert", *options, *files]) == 0
  rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
  assert all(row["train/table_divergence"] > 0 for row in rows if "train/loss" in row)
  losses_of_steps = [row["train/loss"] for row in rows if "train/loss" in row]
  assert len(losses_of_steps) == 60 and losses_of_steps[-1] < 0.3 < losses_of_steps[0]
