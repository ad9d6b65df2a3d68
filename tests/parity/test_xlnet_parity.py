"""t2t's XLNet against Hugging Face's, with the same random weights: one stream, two streams, memories and heads.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import parity
import pytest
import toy

from t2t.models import bert_variants
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

torch = parity.torch

SHAPE = dict(vocab_size=53, embed_dim=18, num_heads=3, head_dim=6, mlp_dim=28, num_encoder_layers=3)
SHAPE |= dict(dtype="float32", dropout_rate=0.0, norm_epsilon=1e-3)
CONFIG = TransformerConfig(**(bert_variants.xlnet("base") | SHAPE))
MEMORY = 7


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  return parity.pair(CONFIG, tmp_path_factory.mktemp("xlnet"))


def batch(*, ranks=True, memory=False):
  """Returns padded rows of odd lengths, in which a third of the tokens are predicted in a random order."""
  random = np.random.default_rng(0)
  rows = dict(toy.batch((19, 6, 11), (1, 1, 1), padded_to=(23, 1), architecture="encoder_only"))
  rows["encoder_input_tokens"] = rows["encoder_target_tokens"]
  chosen = (random.random((3, 23)) < 0.3) & (np.asarray(rows["encoder_target_tokens"]) > 0)
  order = np.argsort(np.argsort(np.where(chosen, random.random((3, 23)), 2.0), axis=1), axis=1)
  rows["encoder_loss_weights"] = jnp.asarray(chosen, jnp.float32)
  if ranks:
    rows["encoder_ranks"] = jnp.asarray(np.where(chosen, 1 + order, 0), jnp.int32)
  if memory:
    states = random.normal(size=(3, 3, MEMORY, 18))
    rows["carried/encoder/memory"] = jnp.asarray(states, jnp.float32)
  return rows


def inputs(rows):
  """Returns the arguments of transformers: a mask of pairs for the order, and all positions as targets."""
  features = parity.inputs(rows)
  if "encoder_ranks" in rows:
    ranks = np.asarray(rows["encoder_ranks"])
    hidden = (ranks[:, None, :] > 0) & (ranks[:, :, None] <= ranks[:, None, :])
    features["perm_mask"] = torch.tensor(hidden, dtype=torch.float32)
    features["target_mapping"] = torch.eye(ranks.shape[1])[None].expand(len(ranks), -1, -1)
  if "carried/encoder/memory" in rows:
    states = np.asarray(rows["carried/encoder/memory"])
    features |= {"mems": [torch.tensor(x) for x in np.transpose(states, (1, 2, 0, 3))], "use_mems": True}
  return features


@pytest.mark.parametrize("memory", [False, True], ids=["alone", "memory"])
def test_the_query_streams_logits_loss_and_gradients_are_theirs(pair, memory):
  """Predicted tokens are compared, each from tokens of lower ranks, and from the memory of the rows before."""
  rows = batch(memory=memory)
  config = dataclasses.replace(CONFIG, memory_length=MEMORY if memory else 0)
  pair = dataclasses.replace(pair, config=config, graphdef=toy.split(toy.model(config))[0])
  predicted = np.asarray(rows["encoder_loss_weights"]) > 0
  with torch.no_grad():
    expected = pair.theirs(**inputs(rows))[0].numpy()[predicted]
  logits = np.asarray(toy.logits(pair.model, rows))[predicted]
  np.testing.assert_allclose(logits, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))
  parity.assert_same_loss_and_gradients(pair, rows, inputs)


def test_the_content_streams_states_are_theirs(pair):
  """Without ranks all positions read each other, as in fine-tuning."""
  parity.assert_same_hidden_states(pair, batch(ranks=False))
  parity.assert_same_logits(pair, batch(ranks=False))


HEADS = {
  "class": HeadConfig("class", 3, reads="last", pooler="tanh", dropout_rate=0.1),
  "score": HeadConfig("score", 1, "score", reads="last", pooler="tanh", dropout_rate=0.1),
  "tag": HeadConfig("tag", 4, "tag"),
  "span": HeadConfig("span", 2, "span"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_theirs(kind, tmp_path):
  """The summary is of the last token; transformers needs padding on the left, which moves no token relatively."""
  config = dataclasses.replace(CONFIG, heads=(HEADS[kind],), vocabulary_head=False)
  pair, rows = parity.pair(config, tmp_path), batch(ranks=False)
  real = parity.real(rows)
  order = np.argsort(real, axis=1, kind="stable")
  left = lambda x: torch.tensor(np.take_along_axis(np.asarray(x), order, axis=1), dtype=torch.long)
  with torch.no_grad():
    outputs = pair.theirs(**{name: left(x) for name, x in parity.inputs(rows).items()})
  hidden = jax.jit(lambda model, rows: model.states(rows))(pair.model, rows)
  if kind in ("class", "score"):
    last = hidden[np.arange(3), real.sum(1) - 1]
    actual, expected = pair.model.head_logits(kind, last), outputs.logits.numpy()
  else:
    logits = outputs.logits if kind == "tag" else torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    actual = pair.model.head_logits(kind, hidden)[real]
    expected = logits.numpy()[np.take_along_axis(real, order, axis=1)]
  np.testing.assert_allclose(actual, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))
