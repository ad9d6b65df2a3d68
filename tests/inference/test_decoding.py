import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.inference import decoding
from t2t.inference.decoding import DecodeConfig

LENGTH = 7
NEVER = -1
FREE = DecodeConfig(LENGTH)
BEAMS = DecodeConfig(LENGTH, num_beams=4)
WRITERS = ["t5_1_1", "modern_t5", "red_llm", "marian", "shared_stacks", "shared_everything", "bert2bert", "bart"]
WRITERS += [
  "gpt2",
  "reformer",
  "mpt",
  "llama",
  "qwen2",
  "local_llama",
  "gemma",
  "gemma_t5",
  "prefix_lm",
  "learned_prefix_lm",
  "local_prefix_lm",
  "awd_lstm",
  "awd_qrnn",
]
# T5 1.0 decodes like T5 1.1; the others differ from other kinds in layers and positions only.
FORCED = ["t5_1_0", "disentangled_t5", "disentangled_gpt", "functional_t5", "functional_gpt", "switch", "mixtral"]
FORCED += ["transformer_xl", "bottleneck_decoder", "universal", "universal_gpt", "t5gemma", "elmo_lm"]
FORCED += ["gru_lm", "gru_seq2seq", "luong"]


@functools.partial(jax.jit, static_argnames="config")
def decode(model, batch, eos_id, key=None, *, config=FREE):
  return decoding.decode(model, batch, key, config=config, eos_id=eos_id)


log_likelihood = jax.jit(lambda model, batch: decoding.likelihoods(model, batch)[0])


def greedy(model, batch, eos_id=NEVER):
  return np.asarray(decode(model, batch, eos_id).tokens[:, 0])


def example():
  return toy.model(toy.config(), seed=1), toy.batch((7, 4, 2), (3, 5, 2))


def prompts(architecture):
  return toy.batch((7, 4, 2), (1, 1, 1), padded_to=(8, 1), architecture=architecture)


def forced(batch, tokens, eos_id=toy.EOS):
  """Returns the batch that feeds generated tokens, [batch, length], back to the model and predicts them."""
  tokens = np.asarray(tokens)
  ends = np.cumsum(tokens == eos_id, axis=1) - (tokens == eos_id)
  weights = (ends == 0).astype(np.float32)
  if "encoder_input_tokens" in batch:
    inputs = {"encoder_input_tokens": batch["encoder_input_tokens"]}
    features = {"input": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1], "target": tokens}
    return inputs | {f"decoder_{name}_tokens": x for name, x in features.items()} | {"decoder_loss_weights": weights}
  read = np.asarray(batch["decoder_causal_attention"])
  given, length = np.asarray(batch["decoder_input_tokens"]), read.shape[1] + tokens.shape[1]
  found = {
    name: np.zeros((len(tokens), length), np.int32)
    for name in ("decoder_input_tokens", "decoder_target_tokens", "decoder_causal_attention", "decoder_loss_weights")
  }
  for row, prompt in enumerate(read.sum(axis=1)):
    text = np.concatenate([given[row, :prompt], tokens[row]])
    found["decoder_input_tokens"][row, : len(text)] = text
    found["decoder_target_tokens"][row, : len(text) - 1] = text[1:]
    found["decoder_causal_attention"][row, :prompt] = 1
    found["decoder_loss_weights"][row, prompt - 1 : len(text) - 1] = weights[row]
  return found


# ---- Greedy decoding -------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_greedy_takes_the_likeliest_token_at_each_position():
  """With teacher forcing, every generated token is the likeliest."""
  model, batch = example()
  written = greedy(model, batch)
  assert len(np.unique(written)) > 3  # the same token everywhere would prove little
  expected = np.argmax(toy.logits(model, batch | forced(batch, written)), axis=-1)
  np.testing.assert_array_equal(written, expected)


def test_greedy_stops_at_eos():
  """Zeros follow the first EOS of a sequence; other sequences are unaffected."""
  model, batch = example()
  free = greedy(model, batch)
  eos_id = int(free[0, 2])
  expected = free.copy()
  for row in expected:
    ends = np.flatnonzero(row == eos_id)
    if ends.size:
      row[ends[0] + 1 :] = 0
  assert np.any(expected != free)
  np.testing.assert_array_equal(greedy(model, batch, eos_id), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_beams", [1, 4])
def test_decoding_ends_when_every_sequence_has(num_beams):
  """A batch that ends at once has EOS and zeros, and the loop stops."""
  model, batch = example()
  batch = jax.tree.map(lambda x: x[:1], batch)
  eos_id = int(greedy(model, batch)[0, 0])
  found = decode(model, batch, eos_id, config=DecodeConfig(LENGTH, num_beams=num_beams, length_penalty=0.0))
  np.testing.assert_array_equal(found.tokens[0, 0], [eos_id, *[0] * (LENGTH - 1)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"temperature": 1.0}], ids=str)
def test_a_text_has_the_least_length(options):
  """EOS is the likeliest first token; scores equal the model's log-likelihoods."""
  model, batch = example()
  eos_id = int(greedy(model, batch)[0, 0])
  key = jax.random.key(0) if "temperature" in options else None
  for least in (0, 1, 3):
    config = DecodeConfig(LENGTH, min_length=least, length_penalty=0.0, **options)
    found = decode(model, batch, eos_id, config=config, key=key)
    lengths = np.array([(list(row) + [eos_id]).index(eos_id) for row in np.asarray(found.tokens)[:, 0]])
    assert lengths.min() >= least and (least or options.get("temperature") or lengths[0] == 0)
    expected = log_likelihood(model, forced(batch, found.tokens[:, 0], eos_id))
    np.testing.assert_allclose(found.scores[:, 0], expected, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["learned_prefix_lm", "llama", "local_prefix_lm"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_decoding_goes_on_from_each_prompt(kind, num_beams):
  """Prompts of 8, 5 and 3 tokens give the same texts as each alone and unpadded."""
  model, batch = toy.model(toy.KINDS[kind], seed=6), prompts("decoder_only")
  config = FREE if num_beams == 1 else BEAMS
  together = decode(model, batch, NEVER, config=config)
  assert len(np.unique(together.tokens)) > 3
  for row, prompt in enumerate((8, 5, 3)):
    alone = {name: x[row : row + 1, :prompt] for name, x in batch.items()}
    found = decode(model, alone, NEVER, config=config)
    np.testing.assert_array_equal(found.tokens[0], together.tokens[row])
    np.testing.assert_allclose(found.scores[0], together.scores[row], atol=1e-4)


def test_decoding_starts_with_the_token_that_is_given():
  """Another start token gives another text."""
  model, batch = example()
  started = batch | {"decoder_input_tokens": batch["decoder_input_tokens"].at[:, 0].set(9)}
  written = greedy(model, started)
  read = started | {"decoder_input_tokens": jnp.pad(written, [(0, 0), (1, 0)], constant_values=9)[:, :-1]}
  np.testing.assert_array_equal(written, np.argmax(toy.logits(model, read), axis=-1))
  assert np.any(written != greedy(model, batch))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "kind", [kind for kind in WRITERS if kind not in ("shared_stacks", "gemma_t5", "prefix_lm", "gpt2")]
)
def test_scores_are_the_likelihood_of_what_was_written(kind):
  """Scores equal the log-likelihoods under teacher forcing, divided by the penalty; greedy and with beams.

  A beam with the keys of another beam would have another score.
  """
  model, batch = toy.model(toy.KINDS[kind], seed=6), prompts(toy.KINDS[kind].architecture)
  one, beams = decode(model, batch, toy.EOS), decode(model, batch, toy.EOS, config=BEAMS)
  np.testing.assert_allclose(one.scores[:, 0], log_likelihood(model, forced(batch, one.tokens[:, 0])), atol=1e-4)
  for beam in range(4):
    tokens = np.asarray(beams.tokens[:, beam])
    ends = np.argmax(tokens == toy.EOS, axis=1)
    lengths = np.where((tokens == toy.EOS).any(axis=1), ends + 1, LENGTH)
    expected = np.asarray(log_likelihood(model, forced(batch, tokens))) / BEAMS.penalty(lengths)
    np.testing.assert_allclose(beams.scores[:, beam], expected, atol=1e-4)
  assert np.all(np.diff(beams.scores, axis=1) <= 0)
  assert all(len(np.unique(row, axis=0)) == 4 for row in np.asarray(beams.tokens))


# ---- Beam search -----------------------------------------------------------------------------------------------------


@functools.cache
def every_text(kind):
  """Returns a model with four tokens, its inputs, all texts up to length four, and their log-likelihoods."""
  make = toy.config if kind == "encoder_decoder" else toy.decoder
  model = toy.model(make(vocab_size=4), seed=3)
  inputs = np.array([[2, 3, 1, 0], [3, 3, 2, 1]], np.int32)
  if kind == "encoder_decoder":
    batch = {"encoder_input_tokens": jnp.asarray(inputs)}
  else:
    batch = {"decoder_input_tokens": inputs, "decoder_causal_attention": np.array([[1, 1, 1, 0], [1] * 4], np.int32)}
  texts = {(*text[: text.index(1)], 1) if 1 in text else text for text in itertools.product(range(4), repeat=4)}
  texts = [np.pad(text, (0, 4 - len(text))) for text in sorted(texts)]
  # 0 is a token of this vocabulary, too; positions after EOS have no weight.
  rows = [jax.tree.map(lambda x, row=row: jnp.repeat(x[row : row + 1], len(texts), axis=0), batch) for row in (0, 1)]
  likelihoods = [np.asarray(log_likelihood(model, forced(row, np.stack(texts)))) for row in rows]
  return model, batch, np.stack(texts), np.stack(likelihoods)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize(("penalty", "form"), [(0.6, "gnmt"), (0.0, "gnmt"), (0.5, "power"), (-1.0, "power")])
def test_wide_beam_search_is_exhaustive_search(kind, penalty, form):
  """With a beam for each prefix, beam search finds the best of all texts, in order."""
  model, batch, texts, likelihoods = every_text(kind)
  config = DecodeConfig(4, num_beams=64, length_penalty=penalty, length_penalty_form=form)
  found = decode(model, batch, toy.EOS, config=config)
  ended = texts == toy.EOS
  lengths = np.where(ended.any(axis=1), np.argmax(ended, axis=1) + 1, 4)
  scores = likelihoods / ((5 + lengths) / 6 if form == "gnmt" else lengths) ** penalty
  for row in range(2):
    best = np.argsort(-scores[row], kind="stable")[:12]
    np.testing.assert_allclose(found.scores[row, :12], scores[row, best], atol=1e-5)
    np.testing.assert_array_equal(found.tokens[row, :12], texts[best])
  assert len({*lengths[np.argsort(-scores[0])[:12]]}) > 1  # a length penalty matters only if some are shorter


def plain_search(model, batch, config, eos_id):
  """Beam search of one row in NumPy with lists; runs the model on whole sequences at each step."""
  running, ended = [(0.0, ())], []
  for length in range(1, config.max_length + 1):
    padded = [np.pad(np.array(text, np.int32), (0, config.max_length - len(text))) for _, text in running]
    padded += [padded[0]] * (config.num_beams - len(padded))
    rows = jax.tree.map(lambda x: jnp.repeat(x, config.num_beams, axis=0), batch)
    start = 0 if "encoder_input_tokens" in batch else int(batch["decoder_causal_attention"].sum()) - 1
    logits = np.asarray(toy.logits(model, rows | forced(rows, np.stack(padded))))[:, start + length - 1]
    gains = np.asarray(jax.nn.log_softmax(logits))
    candidates = [
      (total + gains[beam, token], (*text, token))
      for beam, (total, text) in enumerate(running)
      for token in range(gains.shape[1])
    ]
    candidates = sorted(candidates, key=lambda pair: -pair[0])[: 2 * config.num_beams]
    is_end = lambda text, length=length: text[-1] == eos_id or length == config.max_length
    new = [(total / config.penalty(length), text) for total, text in candidates[: config.num_beams] if is_end(text)]
    ended = sorted(ended + new, key=lambda pair: -pair[0])[: config.num_beams]
    running = [pair for pair in candidates if not is_end(pair[1])][: config.num_beams]
  return ended


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "llama"])
@pytest.mark.parametrize(("penalty", "form"), [(0.6, "gnmt"), (-2.0, "gnmt"), (3.0, "power")])
def test_beam_search_equals_one_without_caches_or_early_stops(kind, penalty, form):
  """A search without caches, reordering and early stops finds the same texts, for each row alone."""
  model, batch = toy.model(toy.KINDS[kind], seed=6), prompts(toy.KINDS[kind].architecture)
  eos_id = int(greedy(model, batch)[0, 2])
  config = DecodeConfig(LENGTH, num_beams=3, length_penalty=penalty, length_penalty_form=form)
  found = decode(model, batch, eos_id, config=config)
  for row in range(3):
    alone = jax.tree.map(lambda x, row=row: x[row : row + 1], batch)
    expected = plain_search(model, alone, config, eos_id)
    for beam, (score, text) in enumerate(expected):
      np.testing.assert_array_equal(found.tokens[row, beam], np.pad(text, (0, LENGTH - len(text))))
      np.testing.assert_allclose(found.scores[row, beam], score, atol=1e-4)


@pytest.mark.slow
def test_one_beam_is_greedy():
  """A search with one beam ends as soon as EOS is the likeliest."""
  model, batch = example()
  eos_id = int(greedy(model, batch)[0, 2])
  config = DecodeConfig(LENGTH, length_penalty=0.0)
  found = jax.jit(lambda model, batch, eos_id: decoding._search(model, batch, config, eos_id))(model, batch, eos_id)
  expected = decode(model, batch, eos_id)
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.exhaustive
def test_fewer_texts_than_beams():
  """Empty beams have zeros and a score of minus infinity."""
  model, batch, *_ = every_text("encoder_decoder")
  found = decode(model, batch, toy.EOS, config=DecodeConfig(1, num_beams=6))
  assert np.all(np.isfinite(found.scores) == [True] * 4 + [False] * 2)
  np.testing.assert_array_equal(found.tokens[:, 4:], np.zeros((2, 2, 1)))
  np.testing.assert_array_equal(np.sort(found.tokens[:, :4, 0]), [[0, 1, 2, 3]] * 2)


# ---- Sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_largest_are_those_of_top_k():
  """Values and indices equal those of `top_k`, including ties, for any size."""
  random = np.random.default_rng(0)
  for size, number in ((40, 3), (1_024, 1), (1_024, 8), (1_000, 5)):
    x = random.integers(-4, 40, (3, 2, size)).astype(np.float32)  # many ties
    found, expected = decoding.largest(jnp.asarray(x), number), jax.lax.top_k(x, number)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
  nothing = jnp.full((1, 1_000), -jnp.inf)
  np.testing.assert_array_equal(decoding.largest(nothing, 2)[1], [[0, 1]])


@pytest.mark.parametrize(
  ("top_p", "expected"),
  [
    (0.7, [False, True, False, True]),
    (0.75, [False, True, False, True]),
    (0.76, [False, True, True, True]),
    (0.5, [False, True, False, False]),
    (1e-6, [False, True, False, False]),
    (1.0, [True, True, True, True]),
  ],
)
def test_the_nucleus_ends_with_the_token_that_crosses_the_threshold(top_p, expected):
  """The set has at least one token, and no more than needed."""
  probabilities = jnp.array([[0.125, 0.5, 0.125, 0.25]]).at[0, 0].set(0.1).at[0, 2].set(0.15)
  np.testing.assert_array_equal(decoding.nucleus(probabilities, top_p), [expected])


def drawn(config, logits, number=20_000):
  """Returns the frequency of each token."""
  rows = jnp.broadcast_to(jnp.asarray(logits), (number, len(logits)))
  tokens = decoding.draw(rows, jax.random.split(jax.random.key(0), number), config)
  return np.bincount(np.asarray(tokens), minlength=len(logits)) / number


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    (dict(temperature=1.0), [0.1, 0.5, 0.15, 0.25]),
    (dict(temperature=0.5), [0.01, 0.25, 0.0225, 0.0625]),
    (dict(temperature=1.0, top_k=2), [0.0, 0.5, 0.0, 0.25]),
    (dict(temperature=1.0, top_p=0.8), [0.0, 0.5, 0.15, 0.25]),
    # A temperature of 0.5 squares the probabilities before top_p, so fewer tokens reach 0.8.
    (dict(temperature=0.5, top_p=0.8), [0.0, 0.25, 0.0, 0.0625]),
    # After top_k, the first of 0.5 and 0.25 has two thirds, which satisfies top_p.
    (dict(temperature=1.0, top_k=2, top_p=0.6), [0.0, 1.0, 0.0, 0.0]),
    (dict(temperature=1.0, top_k=9), [0.1, 0.5, 0.15, 0.25]),
  ],
)
def test_tokens_are_drawn_as_often_as_they_should(options, expected):
  """Frequencies of 20,000 samples are within five standard deviations."""
  expected = np.array(expected) / np.sum(expected)
  found = drawn(DecodeConfig(1, **options), np.log([0.1, 0.5, 0.15, 0.25]))
  assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / 20_000))


@pytest.mark.slow
def test_drawing_among_one_is_greedy():
  """The temperature does not matter, and scores are the model's own."""
  model, batch = example()
  config = DecodeConfig(LENGTH, temperature=3.0, top_k=1)
  found, expected = decode(model, batch, toy.EOS, toy.key(), config=config), decode(model, batch, toy.EOS)
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.exhaustive
def test_the_same_key_writes_the_same_text():
  """Another key gives another text; rows are independent; equal rows differ."""
  model, batch = example()
  config = DecodeConfig(LENGTH, temperature=1.0)
  batch = jax.tree.map(lambda x: x[jnp.array([0, 0, 1])], batch)
  write = lambda seed, batch: np.asarray(decode(model, batch, toy.EOS, jax.random.key(seed), config=config).tokens)
  found = write(0, batch)
  np.testing.assert_array_equal(found, write(0, batch))
  assert np.any(found != write(1, batch))
  assert np.any(found[0] != found[1])
  others = batch | {"encoder_input_tokens": batch["encoder_input_tokens"].at[1:].add(1)}
  np.testing.assert_array_equal(found[0], write(0, others)[0])
  np.testing.assert_array_equal(found[:2], write(0, jax.tree.map(lambda x: x[:2], batch)))


@pytest.mark.slow
def test_drawn_texts_have_the_likelihood_that_the_model_gives_them():
  """Scores ignore the temperature."""
  model, batch = example()
  found = decode(model, batch, toy.EOS, jax.random.key(3), config=DecodeConfig(LENGTH, temperature=2.0, top_p=0.9))
  np.testing.assert_allclose(found.scores[:, 0], log_likelihood(model, forced(batch, found.tokens[:, 0])), atol=1e-4)


# ---- Meshes ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [{"fsdp": 8}, {"data": 4, "tensor": 2}])
@pytest.mark.parametrize(("kind", "config"), [("t5_1_1", BEAMS), ("llama", FREE)])
def test_decoding_on_a_mesh_equals_one_device(shape, kind, config):
  """Texts and scores are equal; the decoding state is sharded by rows and heads."""
  architecture = toy.KINDS[kind].architecture
  model, batch = toy.model(toy.KINDS[kind], seed=6), toy.batch((7, 4) * 4, (1,) * 8, architecture=architecture)
  expected, likelihoods = decode(model, batch, toy.EOS, config=config), log_likelihood(model, batch)
  graphdef, params = toy.split(model)
  mesh = sharding.make_mesh(shape)
  abstract = jax.eval_shape(lambda: toy.model(toy.KINDS[kind], seed=6))
  placed = jax.device_put(params, sharding.param_shardings(toy.nnx.split(abstract, graph=False)[1], mesh))
  with jax.set_mesh(mesh):
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    found = decoding.make_decode(graphdef, config, eos_id=toy.EOS)(placed, batch)
    start = lambda params: toy.nnx.merge(graphdef, params).start_decode(batch, LENGTH, num_beams=config.num_beams)[1]
    keys = jax.jit(start)(placed).cache.keys
    np.testing.assert_allclose(decoding.make_likelihoods(graphdef)(placed, batch)[0], likelihoods, atol=1e-4)
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
  parts = [whole // part for whole, part in zip(keys.shape, keys.addressable_shards[0].data.shape, strict=True)]
  assert parts == [1, 8 // shape.get("tensor", 1), shape.get("tensor", 1), 1, 1]


# ---- Likelihood ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["t5_1_1", "gpt2", "prefix_lm", "bert"])
def test_log_likelihood_is_the_sum_over_what_counts(kind, monkeypatch):
  """Log-softmax of all logits at the targets, times the weights, summed by row; independent of chunks and padding."""
  model, architecture = toy.model(toy.KINDS[kind], seed=1), toy.KINDS[kind].architecture
  batch = toy.batch(architecture=architecture)
  side = "encoder" if architecture == "encoder_only" else "decoder"
  targets, weights = batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"]
  each = jax.nn.log_softmax(toy.logits(model, batch))
  expected = np.sum(np.take_along_axis(each, targets[..., None], axis=-1)[..., 0] * weights, axis=1)
  assert np.all(expected < -1)
  np.testing.assert_allclose(log_likelihood(model, batch), expected, atol=1e-4)
  longer = toy.batch(padded_to=(11, 9), architecture=architecture)
  np.testing.assert_allclose(log_likelihood(model, longer), expected, atol=1e-4)
  packed = toy.packed(batch)
  np.testing.assert_allclose(log_likelihood(model, packed), [expected.sum()], atol=1e-4)
  monkeypatch.setattr(decoding, "_CHUNK_TOKENS", 6)  # three positions of two rows
  np.testing.assert_allclose(jax.jit(lambda m, b: decoding.likelihoods(m, b)[0])(model, batch), expected, atol=1e-4)


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (dict(max_length=0), "max_length=0 must be at least 1"),
    (dict(num_beams=0), "num_beams=0 must be at least 1"),
    (dict(temperature=-0.5), "temperature=-0.5 must be at least 0"),
    (dict(temperature=float("nan")), "temperature=nan must be a finite number"),
    (dict(top_k=-1), "top_k=-1 must be at least 0"),
    (dict(temperature=1.0, top_p=0.0), "top_p=0.0 must be above 0 and at most 1"),
    (dict(temperature=1.0, top_p=1.5), "top_p=1.5 must be above 0"),
    (
      dict(length_penalty_form="gmnt"),
      "length_penalty_form='gmnt': unknown value. Known values: gnmt, power.*did you mean gnmt",
    ),
    (dict(num_beams=4, temperature=0.7), "num_beams=4 and temperature=0.7: beam search does not sample"),
    (dict(top_k=5), "top_k=5 needs sampling, but temperature=0.0 turns sampling off; set temperature=1"),
  ],
)
def test_bad_options_are_refused(options, message):
  with pytest.raises(UserError, match=message):
    DecodeConfig(**(dict(max_length=4) | options))


def test_sampling_without_a_key_is_refused():
  model, batch = example()
  with pytest.raises(UserError, match="temperature=1.0: sampling needs a random key"):
    decode(model, batch, toy.EOS, config=DecodeConfig(2, temperature=1.0))


def test_positions_that_were_not_learned_are_refused():
  """Decoder-only models need no position for the last token; an encoder-decoder has two sequences; others have no
  limit.
  """
  gpt, t5 = toy.KINDS["gpt2"], toy.KINDS["shared_everything"]  # 40 positions
  decoding.check_positions(gpt, 30, 11)
  with pytest.raises(
    UserError, match="max_length=12 and a prompt of 30 tokens need 41 positions, .* 40 positions .* max_length=11"
  ):
    decoding.check_positions(gpt, 30, 12)
  with pytest.raises(UserError, match="shorten the prompt to at most 40 tokens"):
    decoding.check_positions(gpt, 41, 1)
  decoding.check_positions(t5, 40, 40)
  for lengths, name in (((41, 1), "inputs_length=41"), ((1, 41), "max_length=41")):
    with pytest.raises(UserError, match=f"{name}: the model has only 40 positions"):
      decoding.check_positions(t5, *lengths)
  for kind in ("t5_1_1", "llama"):
    decoding.check_positions(toy.KINDS[kind], 1_000, 1_000)
  with pytest.raises(UserError, match="an encoder-only model cannot generate text"):
    decoding.check_positions(toy.KINDS["bert"], 1, 1)


def test_every_model_that_writes_is_tried():
  """This file covers the kinds of toy.py, except those that test_transformer.py compares with teacher forcing only."""
  writes = lambda config: config.kind.is_generative
  assert {*WRITERS, *FORCED} == {name for name, config in toy.KINDS.items() if writes(config)}
