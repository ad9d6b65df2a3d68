import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t.models import transformer

T5_1_1 = toy.KINDS["t5_1_1"]
KINDS = pytest.mark.parametrize("kind", toy.KINDS)
ENCODER, DECODER = np.arange(2, 9)[None], np.arange(10, 20)[None]  # every token has a separate row of the table


def reached(config, batch, tokens):
  """Returns bool [position, token]: whether a position's output depends on a token, by gradient."""
  graphdef, params = toy.split(toy.model(config))
  read_out = np.random.default_rng(0).normal(size=16)

  def of_table(table):
    hidden = nnx.merge(graphdef, params | {"embed": params["embed"] | {"table": table}})(batch)
    return hidden[0] @ read_out

  gradient = np.abs(jax.jit(jax.jacrev(of_table))(params["embed"]["table"])).max(-1)[:, np.ravel(tokens)]
  # Either zero, or more than rounding errors.
  assert np.all((gradient == 0.0) | (gradient > 1e-6))
  return gradient > 0.0


def seen(config, length, prefix):
  """Returns bool [position, position]: visibility through all layers together."""
  place, reach = np.arange(length), np.eye(length, dtype=bool)
  within = (place[:, None] < prefix) & (place[None, :] < prefix)
  causal = within | (place[:, None] >= place[None, :])
  near = np.abs(place[:, None] - place[None, :]) <= config.attention_window
  for index in range(config.num_encoder_layers + config.num_decoder_layers):
    every, window = config.global_attention_every, config.attention_window
    is_local = bool(window) and not (every and index % every == 0)
    allowed = np.ones_like(near) if config.architecture == "encoder_only" else causal
    reach = (allowed & near if is_local else allowed) @ reach
  return reach


@pytest.mark.exhaustive
def test_decoder_is_causal_by_gradient():
  """The output at position i depends on the decoder's tokens up to i, on none after, and on all of the encoder's."""
  batch = {"encoder_input_tokens": ENCODER, "decoder_input_tokens": DECODER}
  found = reached(T5_1_1, batch, np.concatenate([ENCODER, DECODER], axis=1))
  np.testing.assert_array_equal(found[:, 7:], np.tri(10, dtype=bool))
  assert np.all(found[:, :7])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "local_llama", "prefix_lm", "local_prefix_lm"])
def test_a_decoder_alone_is_causal_by_gradient(kind):
  """No position depends on a token to its right, except within a prefix; a window limits the reach of each layer."""
  config = toy.KINDS[kind]
  batch = {"decoder_input_tokens": DECODER, "decoder_causal_attention": np.array([[1] * 4 + [0] * 6])}
  expected = seen(config, 10, prefix=4 if config.bidirectional_prefix else 0)
  if not config.bidirectional_prefix:
    assert not np.any(np.triu(expected, 1))
  np.testing.assert_array_equal(reached(config, batch, DECODER), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "modern_bert", "local_bert"])
def test_an_encoder_alone_sees_both_directions_by_gradient(kind):
  """Every position depends on every token; with windows in all layers, on tokens within their combined reach."""
  expected = seen(toy.KINDS[kind], 10, prefix=0)
  np.testing.assert_array_equal(reached(toy.KINDS[kind], {"encoder_input_tokens": DECODER}, DECODER), expected)
  assert np.all(expected) != (kind == "local_bert")


@pytest.mark.parametrize(
  ("direction", "ranks"),
  [
    pytest.param("both", [0] * 5, marks=pytest.mark.exhaustive),
    ("to targets", [0, 0, 1, 2, 3]),
    pytest.param("rightward", [0, 1, 2, 3, 4], marks=pytest.mark.slow),
    pytest.param("leftward", [4, 3, 2, 1, 0], marks=pytest.mark.exhaustive),
  ],
)
def test_ranks_limit_what_a_position_sees_by_gradient(direction, ranks):
  """A position depends on exactly the tokens of its packed example with its own and lower ranks."""
  del direction
  batch = {
    "encoder_input_tokens": DECODER,
    "encoder_segment_ids": np.array([[1] * 5 + [2] * 5]),
    "encoder_positions": np.array([[*range(5)] * 2]),
    "encoder_ranks": np.array([[*ranks, *ranks[::-1]]], np.int32),
  }
  see = lambda ranks: np.array(ranks)[:, None] >= np.array(ranks)
  expected = np.block([[see(ranks), np.zeros((5, 5), bool)], [np.zeros((5, 5), bool), see(ranks[::-1])]])
  np.testing.assert_array_equal(reached(toy.KINDS["bert"], batch, DECODER), expected)


@pytest.mark.slow
def test_encoder_sees_both_directions_by_gradient():
  """Every position of the encoder depends on every token, except on padding."""
  graphdef, params = toy.split(toy.model(T5_1_1))
  batch = {"encoder_input_tokens": np.array([[2, 3, 4, 5, 0, 0]])}

  def of_table(table):
    return nnx.merge(graphdef, params | {"embed": {"table": table}}).states(batch)[0, :4].sum(-1)

  reached = np.abs(jax.jit(jax.jacrev(of_table))(params["embed"]["table"])).max(-1)
  assert np.all(reached[:, 2:6] > 1e-6)
  np.testing.assert_array_equal(reached[:, 0], 0.0)


def real(batch):
  """Returns bool [batch, length]: positions with used outputs."""
  return np.asarray(batch.get("decoder_target_tokens", batch.get("encoder_target_tokens"))) > 0


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@KINDS
def test_packed_equals_unpacked(kind):
  """Examples in one row, separated by segment ids, have the same logits as in separate rows."""
  model, architecture = toy.model(toy.KINDS[kind]), toy.KINDS[kind].architecture
  rows = toy.batch(architecture=architecture)
  apart = np.asarray(toy.logits(model, rows))[real(rows)]
  together = np.asarray(toy.logits(model, toy.packed(rows)))[0, : len(apart)]
  np.testing.assert_allclose(together, apart, atol=1e-5)


@pytest.mark.slow
@KINDS
def test_padding_changes_nothing(kind):
  """Logits of real positions do not depend on the padding of inputs and targets."""
  model, architecture = toy.model(toy.KINDS[kind]), toy.KINDS[kind].architecture
  short, long = (toy.batch(padded_to=lengths, architecture=architecture) for lengths in ((8, 6), (11, 9)))
  found, expected = (np.asarray(toy.logits(model, batch))[real(batch)] for batch in (long, short))
  np.testing.assert_allclose(found, expected, atol=1e-5)


@jax.jit
def decoded(model, batch, tokens):
  """Returns logits [step, batch, vocab] of steps with inputs `tokens`, [step, batch], and each row's start token."""
  first, state = model.start_decode(batch, max_length=9)
  step = lambda state, tokens: model.decode_step(tokens, state)[::-1]
  return first, jax.lax.scan(step, state, tokens)[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", toy.kinds("encoder_decoder"))
def test_cached_decode_equals_teacher_forcing(kind):
  """Decoding token by token gives the logits of all positions of the targets at once."""
  model, batch = toy.model(toy.KINDS[kind]), toy.batch()
  first, logits = decoded(model, batch, batch["decoder_input_tokens"].T)
  np.testing.assert_array_equal(first, [0, 0])
  real = np.asarray(batch["decoder_target_tokens"]) > 0  # experts leave out padding
  np.testing.assert_allclose(logits.swapaxes(0, 1)[real], toy.logits(model, batch)[real], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", toy.kinds("decoder_only"))
def test_decoding_behind_a_prompt_equals_teacher_forcing(kind):
  """Prompts of 5 and 8 tokens, run at once and continued token by token."""
  model = toy.model(toy.KINDS[kind])
  batch = toy.batch(architecture="decoder_only")
  given, forced = np.asarray(batch["decoder_input_tokens"]), toy.logits(model, batch)
  last = np.asarray(batch["decoder_causal_attention"]).sum(1) - 1  # of each prompt
  assert len(set(last)) == 2
  places = last[:, None] + np.arange(5)
  first, logits = decoded(model, batch, np.take_along_axis(given, places, axis=1).T)
  np.testing.assert_array_equal(first, np.take_along_axis(given, last[:, None], axis=1)[:, 0])
  expected = np.take_along_axis(np.asarray(forced), places[..., None], axis=1)
  for row, number in enumerate((3, 5)):  # of targets
    np.testing.assert_allclose(logits[:number, row], expected[row, :number], atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "prefix_lm"])
def test_decoding_without_a_prompt_equals_teacher_forcing(kind):
  """Only the first token is the prompt."""
  model, batch = toy.model(toy.KINDS[kind]), toy.batch(architecture="decoder_only")
  unread = {"decoder_input_tokens": batch["decoder_input_tokens"]}
  _, logits = decoded(model, unread, batch["decoder_input_tokens"][:, :9].T)
  np.testing.assert_allclose(logits.swapaxes(0, 1), toy.logits(model, unread)[:, :9], atol=1e-5)


def test_a_row_starts_with_its_own_token():
  """An encoder-decoder starts with the first decoder input token, if given."""
  batch = toy.batch()
  started = batch | {"decoder_input_tokens": batch["decoder_input_tokens"].at[:, 0].set(jnp.array([3, 7]))}
  first, _ = jax.jit(lambda model, batch: model.start_decode(batch, 1))(toy.model(T5_1_1), started)
  np.testing.assert_array_equal(first, [3, 7])


@pytest.mark.slow
def test_a_sequence_longer_than_the_learned_positions_is_an_error():
  """The position table has no row beyond its length."""
  model = toy.model(toy.KINDS["gpt2"])
  with pytest.raises(ValueError, match="max_length=40: a sequence has 41 positions, but only 40 positions are learned"):
    jax.eval_shape(model, {"decoder_input_tokens": np.ones((1, 41), np.int32)})
  jax.eval_shape(model, {"decoder_input_tokens": np.ones((1, 40), np.int32)})


def test_token_types_tell_the_parts_of_a_sequence_apart():
  """Each type has its row; without types all tokens have type 0."""
  model, batch = toy.model(toy.KINDS["bert"]), toy.batch(architecture="encoder_only")
  untyped = {name: x for name, x in batch.items() if name != "encoder_token_types"}
  first = batch | {"encoder_token_types": jnp.zeros((2, 8), jnp.int32)}
  np.testing.assert_allclose(toy.logits(model, untyped), toy.logits(model, first), atol=1e-5)
  assert np.max(np.abs(toy.logits(model, batch) - toy.logits(model, first))) > 0.1


@pytest.mark.slow
def test_positions_are_counted_from_the_offset():
  """RoBERTa's first position has the third row of the table; the first two are unused."""
  model, batch = toy.model(toy.KINDS["roberta"]), toy.batch(architecture="encoder_only")
  graphdef, params = toy.split(model)
  rows = params["embed"]["positions"]
  assert rows.shape == (42, 16)

  def changed(index):
    other = params | {"embed": params["embed"] | {"positions": rows.at[index].add(jax.random.normal(toy.key(), (16,)))}}
    return np.max(np.abs(toy.logits(nnx.merge(graphdef, other), batch) - toy.logits(model, batch)))

  assert changed(0) == changed(1) == changed(10) == 0.0
  assert changed(2) > 0.1
  assert changed(9) > 0.01


@pytest.mark.exhaustive
@KINDS
def test_each_parameter_is_trained(kind):
  """Every parameter affects the pre-training loss and has a gradient."""
  graphdef, params = toy.split(toy.model(toy.KINDS[kind]))
  batch = toy.batch(architecture=toy.KINDS[kind].architecture)
  loss_fn = toy.summed_loss()
  gradient = jax.grad(lambda params: loss_fn(nnx.merge(graphdef, params), batch, None)[0])
  flat = toy.flat(jax.jit(gradient)(params))
  unused = {name for name, x in flat.items() if not np.any(np.abs(x) > 1e-6)}
  # A constant added to all keys changes no softmax, and batches without ranks have no query stream.
  assert {name for name in unused if not name.endswith(("key_bias", "query_stream"))} == set()
  if kind == "modern_bert":
    assert not np.any(flat["encoder/layers/self_attention_norm/scale"][0])


@pytest.mark.exhaustive
def test_dropout_follows_its_key():
  """The same key gives the same logits, another key others, and no key the logits of a model without dropout."""
  dropping, plain = toy.model(toy.config(dropout_rate=0.3)), toy.model(T5_1_1)
  batch = toy.batch()
  first, again, other = (toy.logits(dropping, batch, toy.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.max(np.abs(first - other)) > 0.1
  np.testing.assert_array_equal(toy.logits(dropping, batch), toy.logits(plain, batch))
  assert np.max(np.abs(first - toy.logits(plain, batch))) > 0.1


@pytest.mark.slow
def test_bfloat16_computes_in_bfloat16_with_float32_ends():
  """Hidden states are bfloat16; parameters and logits float32, near a float32 model's."""
  config = dataclasses.replace(T5_1_1, dtype="bfloat16")
  model, batch = toy.model(config), toy.batch()
  assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
  assert jax.eval_shape(model, batch).dtype == jnp.bfloat16
  logits, exact = toy.logits(model, batch), toy.logits(toy.model(T5_1_1), batch)
  assert logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, exact, atol=0.05 * np.abs(exact).max())


@KINDS
def test_activations_keep_their_dtype(kind):
  """In bfloat16 no sum or norm converts the residual stream to float32, in decoding, too."""
  config = dataclasses.replace(toy.KINDS[kind], dtype="bfloat16")
  abstract = jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0)))
  batch = toy.batch(architecture=config.architecture)
  assert jax.eval_shape(lambda model: model(batch), abstract).dtype == jnp.bfloat16
  assert jax.eval_shape(lambda model: model.logits(model(batch)), abstract).dtype == jnp.float32
  if config.architecture != "encoder_only":
    cache = jax.eval_shape(lambda model: model.start_decode(batch, 3)[1].cache, abstract)
    kept = "float32" if config.block_class.is_recurrent else "bfloat16"  # states are sums over a text
    assert {cache.keys.dtype, cache.values.dtype} == {jnp.dtype(kept)}


def test_shared_modules_are_refused():
  """A parameter under two paths raises an error when the model is split, instead of two diverging parameters."""
  model = toy.model(T5_1_1)
  model.head.projection = model.embed.table
  with pytest.raises(ValueError, match="[Ss]hared"):
    toy.split(model)
