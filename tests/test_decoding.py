import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import decoding

LENGTH = 7
NEVER = -1


def greedy(model, batch, eos_id):
  return np.asarray(jax.jit(lambda m, b, e: decoding.greedy(m, b, max_length=LENGTH, eos_id=e))(model, batch, eos_id))


def example():
  return toy.model(toy.config(), seed=1), toy.batch((7, 4, 2), (3, 5, 2))


def test_greedy_takes_the_likeliest_token_at_each_position():
  """Given what was written, teacher forcing finds every written token the likeliest."""
  model, batch = example()
  written = greedy(model, batch, NEVER)
  assert len(np.unique(written)) > 3  # the same token everywhere would prove little
  forced = batch | {"decoder_input_tokens": jnp.pad(written, [(0, 0), (1, 0)])[:, :-1]}
  np.testing.assert_array_equal(written, np.argmax(toy.logits(model, forced), axis=-1))


def test_greedy_stops_at_eos():
  """A sequence ends with its first EOS and zeros behind it; the others go on as they would have."""
  model, batch = example()
  free = greedy(model, batch, NEVER)
  eos_id = int(free[0, 2])
  expected = free.copy()
  for row in expected:
    ends = np.flatnonzero(row == eos_id)
    if ends.size:
      row[ends[0] + 1 :] = 0
  assert np.any(expected != free)
  np.testing.assert_array_equal(greedy(model, batch, eos_id), expected)


def test_greedy_ends_when_every_sequence_has():
  """Sequences that end at once are EOS and zeros."""
  model, batch = example()
  batch = jax.tree.map(lambda x: x[:1], batch)
  eos_id = int(greedy(model, batch, NEVER)[0, 0])
  np.testing.assert_array_equal(greedy(model, batch, eos_id), [[eos_id, *[0] * (LENGTH - 1)]])


@pytest.mark.parametrize("kind", ["learned_prefix_lm", "llama", "local_prefix_lm"])
def test_greedy_goes_on_from_each_prompt(kind):
  """Prompts of 8, 5 and 3 tokens: what is written is what each would have written in a batch of its own."""
  model = toy.model(toy.KINDS[kind], seed=6)
  batch = toy.batch((7, 4, 2), (1, 1, 1), padded_to=(8, 1), architecture="decoder_only")
  together = greedy(model, batch, NEVER)
  assert len(np.unique(together)) > 3
  for row, prompt in enumerate((8, 5, 3)):
    alone = {name: x[row : row + 1, :prompt] for name, x in batch.items()}
    for position in range(LENGTH):
      tokens = jnp.concatenate([alone["decoder_input_tokens"], together[row : row + 1, :position]], axis=1)
      tokens = jnp.pad(tokens, [(0, 0), (0, 8 + LENGTH - tokens.shape[1])])  # one shape: compiled once
      read = jnp.arange(8 + LENGTH)[None] < prompt
      forced = {"decoder_input_tokens": tokens, "decoder_causal_attention": read.astype(jnp.int32)}
      logits = toy.logits(model, forced)[0, prompt - 1 + position]
      assert int(np.argmax(logits)) == together[row, position]


def test_greedy_starts_with_the_token_that_is_given():
  """Another token at the start, another text."""
  model, batch = example()
  started = batch | {"decoder_input_tokens": batch["decoder_input_tokens"].at[:, 0].set(9)}
  written = greedy(model, started, NEVER)
  forced = started | {"decoder_input_tokens": jnp.pad(written, [(0, 0), (1, 0)], constant_values=9)[:, :-1]}
  np.testing.assert_array_equal(written, np.argmax(toy.logits(model, forced), axis=-1))
  assert np.any(written != greedy(model, batch, NEVER))
