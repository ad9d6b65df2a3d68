"""Auxiliary outputs of layers: a term of two softly gated experts in every loss, its metrics, and states."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from configs import default
from t2t import losses, sharding
from t2t.configuration.loading import override, records
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.models import adapters as adapters_lib
from t2t.models import config as config_lib
from t2t.models import layers, stack
from t2t.models.adapters.prompt import PromptConfig
from t2t.models.architecture import real_positions
from t2t.models.auxiliary import Auxiliary, Hidden, Term
from t2t.models.feed_forward import FeedForward, Mlp
from t2t.models.masks import AttentionMask
from t2t.training import fisher_information, optimizers, train_state, train_step


class Balanced(FeedForward):
  """Two MLPs and a gate; squared gate shares are a term, the first share is a metric, and all shares are a state."""

  reads_real = True

  def __init__(self, config, rngs):
    self.first, self.second = Mlp(config, rngs), Mlp(config, rngs)
    self.gate = layers.param(rngs, (config.embed_dim, 2), ("embed", None), scale=1.0)

  def __call__(self, x, dropout_key=None, *, real=None):
    shares = jax.nn.softmax(layers.dense(x, self.gate).astype(jnp.float32), axis=-1)
    counts = jnp.ones(x.shape[:2], bool) if real is None else real
    of_real = lambda x: jnp.sum(jnp.where(counts, x, 0.0))
    terms = {"balance": of_real(jnp.sum(jnp.square(shares), axis=-1)), "first_share": of_real(shares[..., 0])}
    keys = layers.split_key(dropout_key, 2)
    y = shares[..., :1] * self.first(x, keys[0]) + shares[..., 1:] * self.second(x, keys[1])
    return Hidden(y.astype(x.dtype), Auxiliary(terms, {"shares": shares}))

  @classmethod
  def terms(cls, config):
    return {"balance": Term(0.25), "first_share": Term(0.0)}

  @classmethod
  def multiply_adds(cls, config):
    return 2 * Mlp.multiply_adds(config) + 2 * config.embed_dim

  @classmethod
  def inner_features(cls, config):
    return 2 * Mlp.inner_features(config) + 2


class Silent(Mlp):
  """The MLP, as a layer that could return terms, but returns none."""

  def __call__(self, x, dropout_key=None, *, real=None):
    assert real is None  # reads_real is False
    return Hidden(super().__call__(x, dropout_key))


class Undeclared(Balanced):
  """A layer with terms that its class does not declare."""

  @classmethod
  def terms(cls, config):
    return {"balance": Term(0.25)}


class Taken(Balanced):
  """A layer with a term named like a metric of the loss."""

  def __call__(self, x, dropout_key=None, *, real=None):
    found = super().__call__(x, dropout_key, real=real)
    return Hidden(found.x, Auxiliary({"accuracy": found.aux.terms["balance"]}))

  @classmethod
  def terms(cls, config):
    return {"accuracy": Term(0.25)}


class Unsummed(Balanced):
  """A layer with a vector as term."""

  def __call__(self, x, dropout_key=None, *, real=None):
    return Hidden(x, Auxiliary({"balance": x[0, 0]}))


@pytest.fixture(autouse=True)
def rows(monkeypatch):
  """Registers the layers in the table: config.model.feed_forward=balanced, for example."""
  for row in (Balanced, Silent, Undeclared, Taken, Unsummed):
    monkeypatch.setitem(config_lib.FEED_FORWARD.rows, row.__name__.lower(), f"{__name__}:{row.__name__}")


def model_config(kind, **fields):
  return dataclasses.replace(toy.KINDS[kind], **(dict(feed_forward="balanced", dropout_rate=0.0) | fields))


HEADS = {
  "heads": ({"name": "nli", "num_classes": 2},),
  "tokens_and_heads": ({"name": "nli", "num_classes": 2},),
  "sift": ({"name": "nli", "num_classes": 2},),
  "electra": ({"name": "replaced", "num_classes": 1, "kind": "detector"},),
  "contrastive": ({"name": "text", "num_classes": 0, "kind": "vector"},),
}
ELECTRA = ("embed_dim=12", "num_heads=2", "mlp_dim=16", "num_layers=1", "generator_weight=1.0")


def make(loss, kind, **fields):
  """Returns a loss, a model with all parameters that the loss trains, and its config."""
  electra = [f"--config.electra.{each}" for each in ELECTRA] if loss == "electra" else []
  given = override(default.get_config(), [f"--config.train.loss={loss}", *electra])
  config = model_config(kind, heads=HEADS.get(loss, ()), **fields)
  given.model.update(dataclasses.asdict(config))
  given.data.pack, given.train.z_loss = False, 0.0
  made = losses.make(records(given))
  return made, made.build(config, nnx.Rngs(toy.key())), config


def batch_of(loss, architecture, lengths=((8, 3, 5, 7), (6, 2, 1, 4)), padded_to=(8, 6)):
  """Returns rows of uneven lengths, with labels of the first head, or two texts for losses that compare them."""
  batch = toy.batch(*lengths, architecture=architecture, padded_to=padded_to)
  side = config_lib.ARCHITECTURES[architecture].answers
  tokens = batch[f"{side}_input_tokens"]
  if losses.answered_by_heads(loss):
    first = jnp.zeros(tokens.shape, jnp.int32).at[:, 0]
    answers = {"heads": first.set(1), "targets": first.set(jnp.arange(len(tokens)) % 2), "groups": first.set(1)}
    batch |= {f"{side}_answer_{name}": x for name, x in answers.items()}
  if loss == "contrastive":
    real = real_positions(batch, side)
    batch[f"{side}_segment_ids"] = jnp.where(real, 1 + (jnp.arange(tokens.shape[1]) >= 2), 0)
  return batch


def value_and_gradient(loss, module, batch, *, name="balance", train=False):
  """Returns terms, metrics, and the gradient of one of the terms."""
  graphdef, params = toy.split(module)

  def one(params):
    found = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=toy.key(), train=train)
    return found[0][name], found

  (_, (terms, metrics)), gradient = jax.jit(jax.value_and_grad(one, has_aux=True))(params)
  return terms, metrics, toy.flat(gradient)


CASES = [
  *(("cross_entropy", kind) for kind in ("t5_1_1", "local_prefix_lm", "bert")),
  *(("heads", kind) for kind in ("t5_1_1", "local_prefix_lm", "bert")),
  *(("contrastive", kind) for kind in ("t5_1_1", "local_prefix_lm", "bert")),
  ("cross_entropy", "shared_everything"),
  ("tokens_and_heads", "bert"),
  ("sift", "bert"),
  ("electra", "bert"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("loss", "kind"), CASES)
def test_a_term_of_layers_is_one_of_the_loss(loss, kind):
  """Its value is the mean over layers and real positions, times its coefficient; it has a gradient and a metric."""
  made, module, config = make(loss, kind)
  batch = batch_of(loss, config.architecture)
  if loss == "electra":
    # The generator's, because the discriminator's input is sampled.
    aux, sides = module.hidden(batch).aux, ("encoder",)
    name, gate, other = (
      "generator_balance",
      "generator/encoder/layers/mlp/gate",
      "discriminator/encoder/layers/mlp/gate",
    )
    terms, metrics, gradient = value_and_gradient(made, module, batch)
    assert np.any(np.abs(gradient[other]) > 1e-6) and not np.any(gradient[gate])
    np.testing.assert_allclose(terms["balance"], 0.25 * metrics["balance"].value(), rtol=1e-5)
  else:
    only_states = loss != "cross_entropy"
    aux = (module.hidden_states if only_states else module.hidden)(batch).aux
    sides = (config.kind.answers,) if only_states else config.kind.sides
    name, gate = "balance", f"{sides[0]}/{'layer' if config.share_layers else 'layers'}/mlp/gate"
  terms, metrics, gradient = value_and_gradient(made, module, batch, name=name)
  total = weight = 0.0
  assert set(aux.states) == {f"{side}/shares" for side in sides}
  for side in sides:
    shares, real = aux.states[f"{side}/shares"], real_positions(batch, side)
    assert shares.shape == (getattr(module, side).num_layers if loss != "electra" else 1, *real.shape, 2)
    total += float(jnp.sum(jnp.square(shares) * real[None, ..., None]))
    weight += shares.shape[0] * float(jnp.sum(real))
  assert weight < sum(x.shape[0] * x.shape[1] * x.shape[2] for x in aux.states.values())  # some positions are padding
  np.testing.assert_allclose(metrics[name].value(), total / weight, rtol=1e-5)
  np.testing.assert_allclose(terms[name], 0.25 * total / weight, rtol=1e-5)
  assert np.all(np.isfinite(gradient[gate])) and np.any(np.abs(gradient[gate]) > 1e-6)
  first = name.replace("balance", "first_share")
  assert first in metrics and first not in terms  # without a coefficient it is only a metric


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "bert"])
def test_padding_does_not_count(kind):
  """The term does not depend on the amount of padding."""
  made, module, config = make("cross_entropy", kind)
  short, long = (batch_of("cross_entropy", config.architecture, padded_to=to) for to in ((8, 6), (11, 9)))
  found = [value_and_gradient(made, module, batch) for batch in (short, long)]
  np.testing.assert_allclose(found[0][0]["balance"], found[1][0]["balance"], rtol=1e-5)
  toy.assert_trees_close(found[0][2], found[1][2])


# Unrolled layers, or layers recomputed for the backward pass.
WAYS = {
  "scanned": dict(unroll=1),
  "unrolled": dict(unroll=3),
  "full": dict(unroll=1, remat="full"),
  "named": dict(unroll=3, remat="input,mlp_up"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("share_layers", [False, True])
def test_scan_equals_loop_and_remat_equals_none(share_layers, monkeypatch):
  """Terms, metrics and gradients, dropout included."""
  monkeypatch.setattr(stack, "unrolled", lambda num_layers, asked: asked)  # a fixture sets it to 1 elsewhere
  found = {}
  for name, fields in WAYS.items():
    made, module, config = make("cross_entropy", "bert", dropout_rate=0.1, share_layers=share_layers, **fields)
    terms, metrics, gradient = value_and_gradient(made, module, batch_of("", config.architecture), train=True)
    found[name] = terms, {name: metric.value() for name, metric in metrics.items()}, gradient
  assert "first_share" in found["scanned"][1]
  for name in WAYS:
    toy.assert_trees_close(found[name], found["scanned"])


@pytest.mark.exhaustive
def test_layers_apart_return_the_same():
  """Decoding on a CPU runs layers this way, with a cache per layer."""
  _, model, _ = make("cross_entropy", "gpt2")
  tokens = toy.batch((4, 4), (3, 3), architecture="decoder_only")["decoder_input_tokens"]
  first, state = model.start_decode({"decoder_input_tokens": tokens}, 4)
  x, mask = model.embed(first[:, None]), AttentionMask(query_offset=state.position, causal=True)
  ready = model.ready(state)
  assert isinstance(ready.cache, tuple)
  together, apart = (
    model.decoder(x, mask=mask, cache=each.cache, weights=each.weights, keep_cache=True)[2] for each in (state, ready)
  )
  assert together.states["shares"].shape == (3, 2, 1, 2)
  toy.assert_trees_close(apart, together)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("kind", "microbatches", "mesh"),
  [("t5_1_1", 2, {"data": 2}), ("bert", 4, {"data": 1}), ("bert", 1, {"data": 2, "fsdp": 2})],
)
def test_microbatches_equal_the_full_batch(kind, microbatches, mesh):
  """Parameters and metrics after a step, for any distribution of tokens over microbatches, copies and shards."""
  config = model_config(kind)
  loss, module, _ = make("cross_entropy", kind)
  lengths = (8, 3, 5, 7, 2, 8, 4, 6), (6, 2, 1, 4, 5, 3, 2, 6)
  batch = batch_of("cross_entropy", config.architecture, lengths)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(), 10)

  def step(number, sizes):
    devices = jax.devices()[: int(np.prod(list(sizes.values())))]
    mesh = sharding.make_mesh(sizes, devices=devices)
    graphdef, state, shardings = train_state.init_train_state(lambda _: module, tx, toy.key(), mesh)
    with jax.set_mesh(mesh):
      made = train_step.make_train_step(graphdef, loss, tx, shardings, num_microbatches=number)
      state, metrics = made(state, jax.device_put(batch, sharding.batch_sharding(mesh)), toy.key())
    return jax.device_get(state.params), {name: float(metrics[name].value()) for name in ("loss", "balance")}

  (params, metrics), (expected_params, expected_metrics) = step(microbatches, mesh), step(1, {"data": 1})
  toy.assert_trees_close(params, expected_params)
  np.testing.assert_allclose(metrics["balance"], expected_metrics["balance"], rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "local_prefix_lm"])
def test_positions_of_a_learned_prompt_count(kind):
  """They pass through the layers like a text's positions."""
  config, length = model_config(kind), 3
  adapted = adapters_lib.adapt(toy.model(config), {"prompt": PromptConfig(length=length)}, nnx.Rngs(toy.key()))
  batch, side = batch_of("", config.architecture), config.kind.predicts
  aux = adapted.hidden(batch).aux
  real = jnp.pad(real_positions(batch, side), [(0, 0), (length, 0)], constant_values=True)
  expected = jnp.sum(jnp.square(aux.states[f"{side}/shares"]) * real[None, ..., None])
  np.testing.assert_allclose(aux.terms["balance"], expected, rtol=1e-5)
  given = override(default.get_config(), [f"--config.prompt.length={length}"])
  given.model.update(dataclasses.asdict(config))
  weights = losses.make(records(given)).weights(batch)
  assert float(weights["balance"]) == 3 * float(jnp.sum(real))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "bert"])
def test_without_terms_nothing_is_computed_or_named(kind):
  """The program of a layer without terms equals that of the MLP, equation by equation, and has no more metrics."""
  batch = batch_of("cross_entropy", toy.KINDS[kind].architecture)

  def program(loss, config):
    graphdef, params = toy.split(toy.model(config))
    run = lambda params: loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    gradient = jax.value_and_grad(lambda params: (sum((found := run(params))[0].values()), found[1]), has_aux=True)
    cost = jax.jit(gradient).lower(params).cost_analysis()["flops"]
    return run, params, str(jax.make_jaxpr(gradient)(params)), cost

  run, params, plain, cost = program(toy.loss(), toy.KINDS[kind])
  terms, metrics = jax.eval_shape(run, params)
  assert set(terms) == {"loss"} and set(metrics) == {"loss", "z_loss", "accuracy"}
  for row in ("dense", "silent"):
    made, _, config = make("cross_entropy", kind, feed_forward=row)
    assert set(made.weights(batch)) == {"loss"} and made.auxiliary.model == config
    _, _, found, found_cost = program(dataclasses.replace(made, config=toy.loss_config()), config)
    assert found == plain and found_cost == cost


def test_fisher_information_is_of_the_likelihood_alone():
  """Terms of layers are not part of it."""
  given = default.get_config()
  given.model.update(dataclasses.asdict(model_config("gpt2")))
  config = records(given)
  batch = batch_of("", "decoder_only")
  assert set(losses.make(config).weights(batch)) == {"loss", "balance", "first_share"}
  assert set(fisher_information.likelihood(config).weights(batch)) == {"loss"}


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ("undeclared", r"feed_forward=undeclared: the layers return the terms \['balance', 'first_share'\]"),
    ("taken", "the auxiliary term 'accuracy' has the name of a term or metric of the loss"),
    ("unsummed", r"the auxiliary term 'balance' has the shape \(16,\). Return the sum of the term"),
  ],
)
def test_terms_that_a_loss_cannot_take_are_refused(row, message):
  """During tracing of the step."""
  made, module, config = make("cross_entropy", "gpt2", feed_forward=row)
  batch = batch_of("", config.architecture)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(lambda: made(module, batch, made.weights(batch), key=None, train=False))


@pytest.mark.slow
def test_a_loss_may_leave_them_out():
  """A loss without a config has no terms."""
  _, module, config = make("cross_entropy", "gpt2")
  batch = batch_of("", config.architecture)
  assert toy.loss().auxiliary == AuxiliaryTerms()
  terms, metrics, _ = value_and_gradient(toy.loss(), module, batch, name="loss")
  assert set(terms) == {"loss"} and "balance" not in metrics
