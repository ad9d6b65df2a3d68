from collections.abc import Callable
import dataclasses
import functools

from flax import nnx
from hypothesis import given, settings, strategies
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import losses, sharding
from t2t.configuration.loading import load_config, records
from t2t.models.auxiliary import Hidden
from t2t.training import recipe

TIED, UNTIED = (toy.config(num_encoder_layers=1, num_decoder_layers=1, tied_logits=tied) for tied in (True, False))


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
  z_loss=strategies.floats(0, 1),
  label_smoothing=strategies.floats(0, 0.9),
  scale=strategies.sampled_from([0.1, 1.0, 100.0]),
  seed=strategies.integers(0, 100),
)
def test_token_cross_entropy_is_its_formula(z_loss, label_smoothing, scale, seed):
  """The loss is -sum(q log p) with a smoothed one-hot q; z-loss is z_loss * log(Z)**2."""
  random = np.random.default_rng(seed)
  logits, targets = scale * random.normal(size=(2, 3, 7)), random.integers(0, 7, (2, 3))
  log_z = np.log(np.sum(np.exp(logits - logits.max(-1, keepdims=True)), -1)) + logits.max(-1)
  q = (1 - label_smoothing) * np.eye(7)[targets] + label_smoothing / 7
  expected = -np.sum(q * (logits - log_z[..., None]), -1)
  loss, z_term, is_right = losses.token_cross_entropy(
    jnp.asarray(logits), targets, z_loss=z_loss, label_smoothing=label_smoothing
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(z_term, z_loss * log_z**2, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(is_right, logits.argmax(-1) == targets)


@pytest.mark.slow
def test_cross_entropy_of_uniform_logits():
  """The loss is log(vocab), in bfloat16 as well, because it is computed in float32."""
  loss, _, _ = losses.token_cross_entropy(jnp.full((1, 1000), 7, jnp.bfloat16), jnp.array([3]))
  assert loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, [np.log(1000)], rtol=1e-6)


def plain_loss(graphdef, batch, config):
  """Computes the loss from all logits at once, differentiated by JAX."""
  side = "encoder" if "encoder_target_tokens" in batch else "decoder"

  def loss(params):
    model = nnx.merge(graphdef, params)
    cross_entropy, z_term, _ = losses.token_cross_entropy(
      model.logits(model(batch)),
      batch[f"{side}_target_tokens"],
      z_loss=config.z_loss,
      label_smoothing=config.label_smoothing,
    )
    return jnp.sum((cross_entropy + z_term) * batch[f"{side}_loss_weights"])

  return loss


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("model_config", "logits_chunk_tokens"),
  [(UNTIED, 5), (UNTIED, 1_000), (TIED, 4)],
  ids=["untied-5", "untied-all", "tied-4"],
)
def test_chunked_loss_equals_the_plain_one(model_config, logits_chunk_tokens):
  """Compares loss, metrics and every gradient, for chunks that divide the 12 positions and chunks that do not."""
  graphdef, params = toy.split(toy.model(model_config))
  batch = toy.batch()
  batch["decoder_loss_weights"] *= jnp.array([[1.0], [0.25]])
  config = toy.loss_config(z_loss=0.05, label_smoothing=0.1, logits_chunk_tokens=logits_chunk_tokens)
  chunked = lambda params: toy.summed_loss(config)(nnx.merge(graphdef, params), batch, None)
  # Squared, so that the incoming gradient is not 1.
  squared = lambda loss: lambda params: loss(params) ** 2 / 100
  (value, metrics), gradient = jax.jit(
    lambda params: (chunked(params), jax.grad(squared(lambda p: chunked(p)[0]))(params))
  )(params)
  expected, expected_gradient = jax.jit(
    lambda params: (
      plain_loss(graphdef, batch, config)(params),
      jax.grad(squared(plain_loss(graphdef, batch, config)))(params),
    )
  )(params)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].total + metrics["z_loss"].total, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, rtol=1e-4)
  np.testing.assert_allclose(metrics["loss"].weight, 3 + 5 / 4)
  logits = toy.logits(nnx.merge(graphdef, params), batch)
  right = (np.argmax(logits, -1) == batch["decoder_target_tokens"]) * batch["decoder_loss_weights"]
  np.testing.assert_allclose(metrics["accuracy"].total, right.sum(), rtol=1e-5)


# One layer each suffices for tests of the loss.
ENCODER = toy.encoder(num_encoder_layers=1, biases=True)
PREFIX = toy.decoder(num_decoder_layers=1, bidirectional_prefix=True, tied_logits=True)
SPARSE_CONFIG = toy.loss_config(z_loss=0.05, label_smoothing=0.1, logits_chunk_tokens=6)


def weights(kind, shape):
  """Returns weights of targets: all equal, all zero, one in five random, or one row only."""
  random = np.random.default_rng(0)
  uneven = random.uniform(0.1, 2.0, shape) * (random.random(shape) < 0.2)
  one_row = np.zeros(shape)
  one_row[5] = 1.0
  return {"all": np.ones(shape), "none": np.zeros(shape), "uneven": uneven, "one-row": one_row}[kind]


@functools.cache
def sparse_and_plain(config, mesh_shape=()):
  """Returns functions of (parameters, batch) to loss and gradients: sparse chunks, and all logits.

  A function compiled on one mesh cannot run on another.
  """
  graphdef, params = toy.split(toy.model(config))
  loss_fn = toy.summed_loss(SPARSE_CONFIG)
  sparse = lambda params, batch: loss_fn(nnx.merge(graphdef, params), batch, None)[0]
  plain = lambda params, batch: plain_loss(graphdef, batch, SPARSE_CONFIG)(params)
  return *(jax.jit(jax.value_and_grad(function)) for function in (sparse, plain)), params


def eight_rows(config, kind):
  batch = toy.batch((7, 3, 8, 5, 1, 8, 2, 6), (6, 1, 5, 2, 3, 6, 4, 1), architecture=config.architecture)
  name = next(name for name in batch if name.endswith("loss_weights"))
  return batch | {name: jnp.asarray(weights(kind, batch[name].shape), jnp.float32)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["all", "none", "uneven", "one-row"])
@pytest.mark.parametrize("config", [ENCODER, PREFIX], ids=["encoder", "prefix"])
def test_loss_of_what_has_weight_equals_the_plain_one(config, kind):
  """Sparse chunks, used for masked language models and prefixes, change neither loss nor gradients."""
  batch = eight_rows(config, kind)
  sparse, plain, params = sparse_and_plain(config)
  (loss, gradient), (expected, expected_gradient) = sparse(params, batch), plain(params, batch)
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)
  if kind == "none":
    assert loss == 0.0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


MESHES = [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "sequence": 4}]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh_shape", MESHES, ids=["8", "2-2-2", "2-4"])
@pytest.mark.parametrize("config", [ENCODER, PREFIX], ids=["encoder", "prefix"])
def test_loss_of_what_has_weight_does_not_depend_on_the_mesh(config, mesh_shape):
  """Shards with different numbers of weighted tokens run as many chunks as the fullest shard."""
  _, plain, params = sparse_and_plain(config)
  mesh = sharding.make_mesh(mesh_shape)
  for kind in ("uneven", "one-row"):
    batch = eight_rows(config, kind)
    expected, expected_gradient = plain(params, batch)
    with jax.set_mesh(mesh):
      sparse, *_ = sparse_and_plain(config, tuple(mesh_shape.items()))
      loss, gradient = sparse(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    toy.assert_trees_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counting:
  """Returns given hidden states, and a head that counts its calls."""

  given: jax.Array
  table: jax.Array
  note: Callable[[], None] = dataclasses.field(metadata={"static": True})

  def hidden(self, batch, *, dropout_key=None):
    return Hidden(self.given)

  def logits_fn(self):
    def logits(table, hidden):
      jax.debug.callback(self.note)
      return hidden @ table

    return jax.tree_util.Partial(logits, self.table)


def chunks_run(batch, *, with_gradients):
  """Counts the chunks of 10 positions that a loss, or its gradient, projects to the vocabulary."""
  runs, random = [], np.random.default_rng(0)
  hidden, table = random.normal(size=(4, 25, 3)), random.normal(size=(3, 7))
  model = Counting(hidden.astype(np.float32), table.astype(np.float32), lambda: runs.append(0))
  loss_fn = toy.summed_loss(toy.loss_config(logits_chunk_tokens=10))
  function = lambda model: loss_fn(model, batch, None)[0]
  jax.block_until_ready(jax.jit(jax.grad(function) if with_gradients else function)(model))
  jax.effects_barrier()
  return len(runs)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(("num_weights", "num_chunks"), [(0, 0), (1, 1), (10, 1), (11, 2), (100, 10)])
def test_only_what_has_weight_is_projected(with_gradients, num_weights, num_chunks):
  """The number of computed chunks (of 10, with 10 positions each) depends only on the number of weighted tokens."""
  weights, targets = np.zeros(100, np.float32), np.ones((4, 25), np.int32)
  weights[np.random.default_rng(0).permutation(100)[:num_weights]] = 1.0
  weights = jnp.asarray(weights.reshape(4, 25))
  masked = {"encoder_target_tokens": targets, "encoder_loss_weights": weights}
  plain = {"decoder_target_tokens": targets, "decoder_loss_weights": weights}
  behind = plain | {"decoder_causal_attention": targets}
  for batch, expected in ((masked, num_chunks), (behind, num_chunks), (plain, 10)):
    assert chunks_run(batch, with_gradients=with_gradients) == expected


def test_share_of_weights_is_what_is_projected():
  """3 of 8 positions in a sparse batch; all if every target has weight."""
  weights = np.array([[0, 1, 0, 0], [0.5, 0, 0, 2.0]])
  masked = {"encoder_target_tokens": np.ones((2, 4)), "encoder_loss_weights": weights}
  behind = {"decoder_loss_weights": weights, "decoder_causal_attention": np.ones((2, 4))}
  assert losses.share_of_weights([masked]) == losses.share_of_weights([behind, behind]) == 3 / 8
  assert losses.share_of_weights([{"decoder_loss_weights": weights}]) == 1.0


def test_means_over_targets_have_the_weights_of_the_loss():
  """(5 + 0.5 * 7) / 1.5 over both batches; ids beyond the numbers have 0, and a batch for heads has no targets."""
  targets = lambda *ids: {"decoder_target_tokens": jnp.array([ids])}
  weights = lambda *values: {"decoder_loss_weights": jnp.array([values])}
  batches = [targets(0, 1) | weights(0.0, 1.0), targets(2, 9) | weights(0.5, 0.0)]
  assert losses.mean_over_targets(batches, np.array([3, 5, 7])) == pytest.approx((5 + 0.5 * 7) / 1.5)
  assert losses.mean_over_targets([targets(1, 9) | weights(1.0, 1.0)], np.array([3, 5, 7])) == 2.5
  assert losses.mean_over_targets([{"encoder_target_tokens": np.ones((1, 2))}], np.array([3])) == 0.0


@pytest.mark.exhaustive
def test_positions_without_weight_do_not_count():
  """With zero weights, loss and gradients are zero, not NaN."""
  graphdef, params = toy.split(toy.model(UNTIED))
  batch = toy.batch() | {"decoder_loss_weights": jnp.zeros((2, 6))}
  loss_fn = toy.summed_loss(toy.loss_config())
  (loss, metrics), gradient = jax.jit(
    jax.value_and_grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None), has_aux=True)
  )(params)
  assert loss == 0.0
  assert metrics["loss"].value() == 0.0
  assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.exhaustive
def test_bfloat16_loss_is_summed_in_float32():
  """Loss and gradients of a bfloat16 model are float32, and close to those of a float32 model."""
  batch = toy.batch()

  def loss_and_gradient(dtype):
    graphdef, params = toy.split(
      toy.model(toy.config(num_encoder_layers=1, num_decoder_layers=1, tied_logits=True, dtype=dtype))
    )
    loss_fn = toy.summed_loss(toy.loss_config(logits_chunk_tokens=5))
    return jax.jit(jax.value_and_grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0]))(params)

  (exact, exact_gradient), (loss, gradient) = loss_and_gradient("float32"), loss_and_gradient("bfloat16")
  assert {leaf.dtype for leaf in jax.tree.leaves((loss, gradient))} == {jnp.dtype("float32")}
  np.testing.assert_allclose(loss, exact, rtol=0.02)
  table, exact_table = gradient["embed"]["table"], exact_gradient["embed"]["table"]
  assert np.linalg.norm(table - exact_table) < 0.05 * np.linalg.norm(exact_table)


@pytest.mark.exhaustive
def test_gradients_that_are_summed_in_float32():
  """In a bfloat16 model, gradients of matrices and of the embedding are accumulated without rounding."""
  batch = toy.batch()

  def is_rounded(gradient_dtype):
    graphdef, params = toy.split(toy.model(toy.config(dtype="bfloat16", gradient_dtype=gradient_dtype)))
    loss_fn = toy.summed_loss(toy.loss_config())
    gradient = jax.jit(jax.grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0]))(params)
    matrices = {path: g for path, g in toy.flat(gradient).items() if g.ndim > (2 if "layers" in path else 1)}
    return {path: np.array_equal(g, g.astype("bfloat16").astype("float32")) for path, g in matrices.items()}

  rounded, exact = is_rounded(""), is_rounded("float32")
  of_stacks = [path for path in rounded if "layers" in path]
  assert len(of_stacks) > 10 and all(rounded[path] for path in of_stacks)
  assert not any(exact[path] for path in of_stacks)
  assert not rounded["embed/table"] and not exact["embed/table"]


def largest_logits(logits_chunk_tokens):
  """Returns the number of vocabulary-length rows in the largest array of loss and gradient, for any order of axes."""
  graphdef, params = toy.split(toy.model(toy.config(vocab_size=53, num_encoder_layers=1, num_decoder_layers=1)))
  batch = toy.batch((5,) * 8, (7,) * 8, padded_to=(5, 8))
  loss_fn = toy.summed_loss(toy.loss_config(logits_chunk_tokens=logits_chunk_tokens))
  function = jax.value_and_grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0])
  shapes = {
    out.aval.shape for equation, _ in toy.equations(jax.make_jaxpr(function)(params).jaxpr) for out in equation.outvars
  }
  return max(int(np.prod(shape)) // 53 for shape in shapes if 53 in shape)


@pytest.mark.exhaustive
def test_logits_of_the_whole_batch_never_exist():
  """With chunks of 4 tokens no array has 64 rows of logits; the largest is the projection, [embed, vocab]."""
  assert largest_logits(logits_chunk_tokens=4) == 16
  assert largest_logits(logits_chunk_tokens=64) == 64  # control: the search finds them if they exist


def test_unigram_loss_is_the_entropy_of_the_targets():
  """Fractions 1/2, 1/4, 1/4 over two batches give 1.5 bits; a target of weight zero does not count."""
  batches = [
    {"decoder_target_tokens": np.array([[1, 1]]), "decoder_loss_weights": np.array([[1.0, 1.0]])},
    {"decoder_target_tokens": np.array([[2, 3, 4]]), "decoder_loss_weights": np.array([[1.0, 1.0, 0.0]])},
  ]
  np.testing.assert_allclose(losses.unigram_loss(batches, vocab_size=6), 1.5 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
  ("times", "what", "loss"),
  [
    (10, "predicts each token by its frequency in these 40 targets", np.log(4)),
    # Each token occurs 8 times among the 35 others; 0.01 is added to all 6.
    (9, "predicts each token by its frequency in the others of these 36 targets", np.log(35.06 / 8.01)),
  ],
)
def test_a_unigram_model_of_few_targets_is_one_of_the_others(times, what, loss):
  """The leave-one-out model has not seen the token that it predicts, as a model of other text."""
  targets = np.tile([[1, 2, 3, 4]], (1, times))
  batches = [{"decoder_target_tokens": targets, "decoder_loss_weights": np.full(targets.shape, 0.1)}]
  found = losses.unigram(batches, vocab_size=6)
  assert (found.knows, found.loss) == (what, pytest.approx(loss, rel=1e-6))


@pytest.mark.slow
def test_a_unigram_model_of_few_targets_is_no_better_than_one_that_knows_all():
  """For tokens from Zipf's law, the loss is slightly above the true entropy; the sample entropy is far below."""
  shares = 1 / np.arange(1, 1_001)
  shares /= shares.sum()
  targets = np.random.default_rng(0).choice(1_000, size=(1, 3_000), p=shares)
  batches = [{"decoder_target_tokens": targets, "decoder_loss_weights": np.ones(targets.shape)}]
  entropy = -np.sum(shares * np.log(shares))
  assert losses.unigram_loss(batches, vocab_size=1_000) < entropy - 0.1
  assert entropy < losses.unigram(batches, vocab_size=1_000).loss < entropy + 0.25


def test_evaluation_takes_the_loss_of_training(monkeypatch):
  """Evaluation reuses the training loss, because some losses refuse the evaluation model without dropout."""
  run = records(load_config("tiny_t5")).with_(model={"vocab_size": 384, "dropout_rate": 0.1})
  made = recipe.make(run)
  monkeypatch.setattr(losses, "make", lambda run: pytest.fail(f"made again, of dropout_rate={run.model.dropout_rate}"))
  assert made._reader(on_cpu=True) is not None
