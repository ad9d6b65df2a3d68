import jax
import jax.numpy as jnp
import numpy as np
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
