"""Plans of experts: FLOPs and bytes between devices equal the formulas by hand."""

from flax import nnx
import jax
import jax.numpy as jnp
import pytest
import toy

from t2t import sharding
from t2t.configuration.loading import load_config, override, records
from t2t.models import moe
from t2t.planning import plan
from t2t.planning.hlo import cost

BATCH, LENGTH, EXPERTS, CHOICES = 8, 64, 4, 2
EMBED, MLP, LAYERS = 128, 256, 2
SIZES = dict(embed_dim=EMBED, mlp_dim=MLP, num_heads=2, vocab_size=256, num_decoder_layers=LAYERS)
SIZES |= dict(feed_forward="moe", moe_experts=EXPERTS, moe_experts_per_token=CHOICES, moe_capacity_factor=1.0)


def planned(**fields):
  flags = [f"--config.model.{name}={value}" for name, value in (SIZES | fields).items()]
  flags += [f"--config.train.batch_size={BATCH}"]
  flags += [f"--config.data.targets_length={LENGTH}", "--config.mesh.expert=4", "--config.mesh.fsdp=2"]
  return plan.make_plan(records(override(load_config("tiny_gpt"), flags)), jax.devices())


def test_flops_of_one_layer_are_those_of_its_slots():
  """Two for each multiply-add: three matrices for every slot, and the router; backward twice the forward pass."""
  config = toy.decoder(**SIZES, mlp_activation="gated_silu")
  layer = moe.Moe(config, nnx.Rngs(0))
  x = jnp.zeros((BATCH, LENGTH, EMBED))
  slots = BATCH * EXPERTS * moe.capacity_of(config, LENGTH)
  assert slots == BATCH * LENGTH * CHOICES
  one = 2 * (slots * 3 * EMBED * MLP + BATCH * LENGTH * EMBED * EXPERTS)
  run = lambda layer, x: jnp.sum(jnp.tanh(layer(x, jax.random.key(0)).x))  # a key, as in training
  for function, passes in ((run, 1), (jax.grad(run, argnums=(0, 1)), 3)):
    found = cost.analyse(jax.jit(function).lower(layer, x).compile().as_text(), {"data": 1})
    assert found.flops == pytest.approx(passes * one, rel=0.03)  # counting the ranks adds little


def test_slots_travel_to_their_expert_and_back():
  """Forward and backward, two directions each; a device keeps a quarter of its slots."""
  sent = planned(remat="none")["collective_bytes"]["all-to-all"]
  tokens = BATCH * LENGTH / sharding.num_shards("batch", sharding.make_mesh({"expert": 4, "fsdp": 2}))
  slots_bytes = tokens * CHOICES * EMBED * 4
  # The gates of the slots travel, too.
  assert sent == {"expert": pytest.approx(LAYERS * 2 * 2 * slots_bytes * 3 / 4, rel=0.01)}
