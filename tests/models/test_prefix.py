import dataclasses

import adapters as shared
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.inference import decoding
from t2t.models import adapters as adapters_lib
from t2t.models import attention
from t2t.models.adapters import prefix
from t2t.models.kernels import dispatch
from t2t.models.positions import NOWHERE
from t2t.training import recipe

pytestmark = pytest.mark.slow

LENGTH = 5
DUMMY = 7  # an arbitrary token


def with_prefix(config, *, sides=prefix.SIDES, hidden=0):
  """Returns a model with a prefix in some of its stacks."""
  wanted = prefix.PrefixConfig(length=LENGTH, hidden=hidden, sides=sides)
  return adapters_lib.adapt(toy.model(config), {"prefix": wanted}, nnx.Rngs(toy.key(1)))


@pytest.fixture
def by_hand(monkeypatch):
  """Returns (model, side) -> the model without the prefix, which replaces keys and values of dummy tokens."""
  plain = attention.Attention.keys_and_values

  def keys_and_values(self, memory, positions=NOWHERE, *, dropout_key=None):
    found = attention.KVCache(*plain(self, memory, positions, dropout_key=dropout_key))
    if "fixed" in vars(self):
      own = jax.tree.map(lambda x: x[:, :, LENGTH:], found)
      found = own.behind(attention.KVCache(self.fixed["keys"][...], self.fixed["values"][...]))
    return found.keys, found.values

  monkeypatch.setattr(attention.Attention, "keys_and_values", keys_and_values)

  def replaced(model, side):
    stack = getattr(model, side)
    made, stack.prefix = stack.prefix(), None
    if model.config.share_layers:  # which has one layer
      made = jax.tree.map(lambda x: x[0], made)
    layer = stack.own_layers if hasattr(stack.own_layers, "self_attention") else model.encoder.own_layers
    layer.self_attention.fixed = nnx.data({name: nnx.Param(getattr(made, name)) for name in ("keys", "values")})
    return model

  return replaced


# Longformer's and Reformer's attention take no keys in front of a row; recurrent blocks have no keys.
KINDS = [
  kind for kind, config in toy.KINDS.items() if config.attention == "full" and not config.block_class.is_recurrent
]


def longer(batch, side):
  """Returns a batch with dummy tokens before one side."""
  front = {"input_tokens": DUMMY, "token_types": 0, "causal_attention": 1, "target_tokens": DUMMY, "loss_weights": 0}
  names = [f"{side}_{name}" for name in front if f"{side}_{name}" in batch]
  pad = lambda name: jnp.pad(batch[name], [(0, 0), (LENGTH, 0)], constant_values=front[name.removeprefix(f"{side}_")])
  return batch | {name: pad(name) for name in names}


def alike_in_all_layers(model, side):
  """Makes the prefix equal in all layers; with shared layers the running layer is unknown."""
  if model.config.share_layers or model.config.share_stacks:
    made = getattr(model, side).prefix
    for each in (made.keys, made.values):
      each[...] = jnp.broadcast_to(each[...][:1], each[...].shape)
  return model


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("kind", "side"), [(kind, side) for kind in KINDS for side in toy.KINDS[kind].kind.sides])
def test_it_is_keys_and_values_in_front_of_a_row(kind, side, by_hand):
  """In each layer it acts like keys of preceding tokens, at their positions and under the same masks."""
  config = toy.KINDS[kind]
  batch = toy.batch(architecture=config.architecture)
  make = lambda: alike_in_all_layers(with_prefix(config, sides=(side,)), side)
  reads = side == config.kind.answers
  run = jax.jit(lambda model, batch: model.states(batch) if reads else model(batch))
  found = run(make(), batch)
  if config.share_stacks and not reads:
    pytest.skip("the decoder's self-attention is the encoder's, too, which would have it in the reference")
  expected = run(by_hand(make(), side), longer(batch, side))[:, LENGTH:]
  at = np.asarray(batch.get(f"{side}_target_tokens", batch[f"{side}_input_tokens"]) > 0)
  np.testing.assert_allclose(found[at], expected[at], atol=1e-4)
  assert np.max(np.abs(found - run(toy.model(config), batch))) > 1e-2


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_packed_equals_unpacked(kind):
  """Each text of a row attends to the prefix as if directly after it."""
  config = toy.KINDS[kind]
  batch = toy.batch(architecture=config.architecture)
  model = with_prefix(config, hidden=4)
  apart, together = toy.logits(model, batch), toy.logits(model, toy.packed(batch))[0]
  side = config.kind.predicts
  lengths = np.sum(np.asarray(batch[f"{side}_target_tokens"]) > 0, axis=1)
  rows = np.concatenate([row[:length] for row, length in zip(apart, lengths, strict=True)])
  np.testing.assert_allclose(together[: len(rows)], rows, atol=1e-4)


@pytest.mark.parametrize("kind", ["t5_1_1", "prefix_lm", "gemma", "shared_everything"])
def test_what_beams_write_is_as_likely_as_it_is_said_to_be(kind):
  """The sum of a beam's log-probabilities equals that of the same text in one pass."""
  config = toy.KINDS[kind]
  model = with_prefix(config)
  settings = decoding.DecodeConfig(max_length=4, num_beams=3, length_penalty=0.0)
  lengths = (2, 6)
  batch = toy.batch(lengths, (4, 4), padded_to=(6, 4), architecture=config.architecture)
  found = jax.jit(lambda model, batch: decoding.decode(model, batch, config=settings, eos_id=-1))(model, batch)
  for beam in range(3):
    tokens, again = np.asarray(found.tokens[:, beam]), dict(batch)
    if config.kind.has_encoder_and_decoder:
      again |= {"decoder_target_tokens": tokens, "decoder_loss_weights": np.ones((2, 4), np.float32)}
    else:
      row = np.array(batch["decoder_target_tokens"])
      weights = np.zeros(row.shape, np.float32)
      for index, length in enumerate(lengths):
        row[index, length : length + 4], weights[index, length : length + 4] = tokens[index], 1.0
      again |= {"decoder_target_tokens": row, "decoder_loss_weights": weights}
    again["decoder_input_tokens"] = np.pad(again["decoder_target_tokens"], [(0, 0), (1, 0)])[:, :-1]
    expected = jax.jit(lambda m, b: decoding.likelihoods(m, b)[0])(model, jax.tree.map(jnp.asarray, again))
    np.testing.assert_allclose(found.scores[:, beam], expected, rtol=1e-3)


def test_no_kernel_takes_it():
  """On a TPU, too, where the other attentions use kernels; a run prints the reason."""
  mask = attention.AttentionMask(front=LENGTH, causal=True)
  shape = (8, 4, 1024, 64)
  choose = lambda mask: dispatch.choose(shape, shape, jnp.bfloat16, mask, platform="tpu", device_kind="TPU v5")
  assert choose(dataclasses.replace(mask, front=0)).kernel == "splash"
  assert str(choose(mask)) == "plain (learned prefix keys)"
  given = override(default.get_config(), ["--config.prefix.sides=decoder"])
  config = records(given).with_(model={"positions": "rotary"})
  chosen = recipe.attention_kernels(config, recipe.batch(config))
  assert {name: choice.reason for name, choice in chosen.items()} == dict.fromkeys(chosen, "CPU")
  tokens = {side: jax.ShapeDtypeStruct((8, 1024), jnp.int32) for side in prefix.SIDES}
  masks = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(dispatch, "choose_here", lambda query, keys, mask, **options: masks.append(mask.front))
    features = {f"{side}_input_tokens": x for side, x in tokens.items()}
    dispatch.attention_kernels(config.model, features, prefix={"decoder": LENGTH})
  assert masks == [0, LENGTH, 0]  # encoder, decoder, cross


# ---- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.prefix.length=0"], "config.prefix.length=0: must be at least 1"),
    (["--config.prefix.hidden=-1"], "config.prefix.hidden=-1: must be at least 0"),
    (
      ["--config.prefix.sides=decodr"],
      "config.prefix.sides: unknown side 'decodr'. Known values: .*; did you mean decoder?",
    ),
    (
      ["--config.prefix.sides="],
      "config.prefix.sides=: the model does not have these sides. Set --config.prefix.sides=encoder,decoder",
    ),
    (
      ["--config.prefix.also_train=nrom"],
      "config.prefix.also_train: the pattern 'nrom' matches no path. Paths: .* mean norm?",
    ),
  ],
)
def test_what_does_not_fit_is_refused(arguments, message):
  """Before anything is on a device; the message has the key and a value that works."""
  with pytest.raises(UserError, match=message):
    shared.program(*arguments)


@pytest.mark.exhaustive
def test_learned_positions_are_the_texts_and_the_prefixs():
  """Rows may be packed; no more positions are computed."""
  lengths = ("--config.data.inputs_length=24", "--config.data.targets_length=8", "--config.data.pack=True")
  learned = dict(positions="learned", max_length=40)
  shared.program(*lengths, "--config.prefix.length=16", **learned)
  with pytest.raises(UserError, match=r"config.prefix.length=17 in front of the encoder's 24 positions"):
    shared.program(*lengths, "--config.prefix.length=17", **learned)
  config = records(override(default.get_config(), ["--config.prefix.length=16"]))
  assert recipe.positions(config) == recipe.lengths(config)
