"""Steps compiled for TPUs that are not attached; needs libtpu (the [tpu] extra), and no TPU."""

import dataclasses
import functools
import importlib.util
import math
import re

import jax
import numpy as np
import pytest
import toy

from t2t import UserError, accelerators, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.models.kernels import dispatch, splash
from t2t.models.masks import AttentionMask
from t2t.models.remat import ATTENTION_KEPT
from t2t.planning import aot_compile, autotune_candidates, plan
from t2t.planning.hlo import cost

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install -e '.[tpu]'"
)

SLICES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
_MESH = ("--config.mesh.fsdp=2", "--config.mesh.tensor=2")


@functools.cache
def compiled(generation: str, name: str, *overrides: str) -> plan.Plan:
  config = records(override(load_config(name), [*_MESH, *overrides]))
  # Users' precision, unlike other tests: splash attention has no kernel of "highest" precision for bfloat16.
  with jax.default_matmul_precision("default"):
    return plan.make_plan(config, list(aot_compile.devices(SLICES[generation])))


@pytest.mark.parametrize("generation", SLICES)
def test_a_slice_has_the_devices_of_its_shape(generation):
  """Four chips are four devices, of a kind with known memory and peaks."""
  devices = aot_compile.devices(SLICES[generation])
  assert len(devices) == 4
  assert {device.device_kind for device in devices} == {_KINDS[generation]}
  assert _KINDS[generation] in accelerators.CHIPS


@pytest.mark.parametrize("topology", ["v4:4x4x4", "v5e:8x8", "v5p:4x4x8", "v6e:4x8", "tpu7x:4x4x4"])
@pytest.mark.parametrize("shape", [{"tensor": 2}, {"tensor": 8}, {"data": 2}, {"data": 8, "tensor": 2}], ids=str)
def test_any_mesh_lies_on_a_slice(topology, shape):
  """Also if an axis is only a part of a side."""
  devices = list(aot_compile.devices(topology))
  mesh = sharding.make_mesh({"fsdp": -1} | shape, devices=devices)
  assert {id(device) for device in mesh.devices.flat} == {id(device) for device in devices}


def test_axes_lie_over_a_slice_as_they_are_told():
  """With real devices, on each of two slices; the two devices of one TPU7x share coordinates."""
  shape, order = {"dcn_data": 2, "fsdp": 2, "tensor": 4}, ("tensor:1x4",)
  mesh = sharding.make_mesh(shape, devices=list(aot_compile.devices("v5e:2x4", slices=2)), order=order)
  for group in mesh.devices.reshape(4, 4):
    assert len({(device.slice_index, device.coords[0]) for device in group}) == 1
  with pytest.raises(UserError, match="config.mesh.physical_layout=tensor:1x4 needs whole TPU slices"):
    sharding.make_mesh({"tensor": 8}, devices=list(aot_compile.devices("tpu7x:2x2x1")), order=order)


@pytest.mark.exhaustive
def test_a_matrix_is_made_orthogonal_on_one_device():
  """Muon's iterations send nothing: five send as much as two, and compute more."""
  few, many = (
    compiled("v5e", "tiny_t5", "--config.optimizer.name=muon", f"--config.optimizer.muon_iterations={number}")
    for number in (2, 5)
  )
  assert few["collective_bytes"] == many["collective_bytes"]
  assert many["executed_flops_per_step"] > few["executed_flops_per_step"]


def test_a_search_begins_with_what_reads_little():
  """Layers that keep all activations move enough bytes that a little recomputation is tried first."""
  config = records(override(load_config("t5_1_1_base"), ["--config.train.batch_size=256"]))
  ordered = autotune_candidates.candidates(config, list(aot_compile.devices("v5e:4x4")), capacity=16e9)
  own = [each.remat for each in ordered if each.mesh == ordered[0].mesh and each.batch_size == 256]
  assert own[0] == "minimal" and own.index("none") > own.index(ATTENTION_KEPT)


def test_several_slices():
  """Two slices, identified by the device's slice index."""
  devices = aot_compile.devices("v5e:2x2", slices=2)
  assert sorted(device.slice_index for device in devices) == [0] * 4 + [1] * 4


@pytest.mark.exhaustive
def test_what_is_offloaded_goes_to_the_host_and_back():
  """The bytes of layers' activations, twice, at the host's bandwidth."""
  size = ("--config.model.num_decoder_layers=8", "--config.train.batch_size=256")
  keep, offload = (
    compiled("v5e", "tiny_gpt", *size, f"--config.model.remat={name}") for name in ("minimal", "offload")
  )
  kept, left = (found["memory_per_chip"]["activations"] for found in (keep, offload))
  assert left < 0.3 * kept
  assert keep["host_bytes_per_step"] == 0.0
  assert offload["host_bytes_per_step"] == pytest.approx(2 * (kept - left), rel=0.3)
  assert offload["predicted_step_seconds"] > offload["seconds_at_peak"]["host"] > keep["predicted_step_seconds"]


def test_a_step_over_several_slices():
  """Each chip sends its shard of the gradients to the other slice, and nothing else."""
  mesh = ("--config.mesh.dcn_data=2", "--config.mesh.fsdp=4", "--config.mesh.tensor=1")
  options = ("--config.train.batch_size=16", "--config.model.dtype=float32")
  config = records(override(load_config("tiny_t5"), [*mesh, *options]))
  with jax.default_matmul_precision("default"):
    found = plan.make_plan(config, list(aot_compile.devices("v5e:2x2", slices=2)))
  between = {kind: axes["dcn_data"] for kind, axes in found["collective_bytes"].items() if "dcn_data" in axes}
  assert set(between) == {"all-reduce"}
  # Twice a half of the gradients in float32, of which a chip has a quarter; the embedding has two, one from each use,
  # and its rows are padded.
  gradients = found["parameters"] + config.model.vocab_size * config.model.embed_dim
  assert between["all-reduce"] == pytest.approx(4 * gradients / 4, rel=0.1)


def test_products_of_8_bits_stay_so(tmp_path):
  """On matrix units, and in all-gathers; the other products are bfloat16's."""
  size = ("--config.mesh.fsdp=4", "--config.mesh.tensor=1", "--config.model.dtype=bfloat16")
  config = records(override(load_config("tiny_gpt"), [*size, "--config.model.quantization=int8"]))
  with jax.default_matmul_precision("default"):
    plan.make_plan(config, list(aot_compile.devices(SLICES["v5e"])), hlo=str(tmp_path / "step.hlo"))
  text = (tmp_path / "step.hlo").read_text()
  assert len(re.findall(r"= s32\[[\d,]*\]\S* convolution\(", text)) >= 2 * 6  # per layer, forward and backward
  assert re.findall(r"= bf16\[[\d,]*\]\S* convolution\(", text)
  assert re.findall(r"= s8\[[\d,]*\]\S* all-gather\(|= \(?s8\[[^=]* all-gather-start\(", text)


def test_t5_holds_no_logits_of_attention(tmp_path):
  """No array of the compiled step has queries and keys: forward, backward, encoder, decoder, and cross-attention.

  It fits, and computes about as much as the formula.
  """
  sizes = dict(embed_dim=256, num_heads=4, mlp_dim=512, vocab_size=4096, num_encoder_layers=2, num_decoder_layers=2)
  flags = [f"--config.model.{name}={value}" for name, value in sizes.items()]
  flags += ["--config.data.inputs_length=384", "--config.data.targets_length=640", "--config.train.batch_size=8"]
  config = records(override(load_config("t5_1_1_small"), [*_MESH, *flags, "--config.model.remat=minimal"]))
  with jax.default_matmul_precision("default"):
    found = plan.make_plan(config, list(aot_compile.devices(SLICES["v5e"])), hlo=str(tmp_path / "step.hlo"))
  text = (tmp_path / "step.hlo").read_text()
  assert "distance_attention_backward" in text
  assert re.findall(r"\w+\[(?:\d+,)*(?:384|640),(?:384|640)(?:,\d+)*\]", text) == []
  assert found["fits"] and 0.005 < found["predicted_mfu"] < 0.8
  # Attention's backward kernels recompute logits, and its blocks of 640 positions have 768.
  assert found["executed_flops_per_step"] == pytest.approx(found["flops_per_step"], rel=0.2)
  assert found["collective_bytes"]["all-gather"]["tensor"] > 0


@pytest.mark.parametrize(("parts", "products"), [(8, [2, 5]), (1, [2, 3, 4])])
def test_what_splash_attention_computes_is_counted(monkeypatch, parts, products):
  """A causal mask leaves 3 of 2 x 2 blocks; backward one kernel, or two if one would have too many parts."""
  monkeypatch.setattr(splash, "MOST_PARTS", parts)
  device = aot_compile.devices(SLICES["v5e"])[0]
  where = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array([device]), ("data",)), jax.sharding.PartitionSpec())
  shape = (2, 4, 1_024, 128)
  x = jax.ShapeDtypeStruct(shape, jax.numpy.bfloat16, sharding=where)
  attended = lambda *x: dispatch.attend(*x, AttentionMask(causal=True), kernel="splash").astype("float32")
  with jax.set_mesh(where.mesh), jax.default_matmul_precision("default"):
    step = jax.jit(jax.grad(lambda *x: (attended(*x[:3]) * x[3]).sum(), argnums=(0, 1, 2)))
    found = cost.analyse(step.lower(x, x, x, x).compile().as_text(), {"data": 1})
  one = 2 * math.prod(shape) * shape[2] * 3 / 4
  assert sorted(each.flops for each in found.operations if each.is_kernel) == [number * one for number in products]


def test_long_sequences_of_t5_on_a_small_core(tmp_path):
  """A v4 has 16 MiB for a kernel, too little for blocks of the usual size."""
  flags = ["--config.data.inputs_length=1024", "--config.model.dtype=float32", "--config.model.head_dim=64"]
  config = records(override(load_config("tiny_t5"), [*_MESH, *flags]))
  plan.make_plan(config, list(aot_compile.devices(SLICES["v4"])), hlo=str(tmp_path / "step.hlo"))
  assert "distance_attention_backward" in (tmp_path / "step.hlo").read_text()


def test_gradients_travel_in_their_dtype():
  """Matrices' in half the bytes of float32, which the others use anyway, and layers keep about as much."""
  overrides = ("--config.mesh.fsdp=1", "--config.mesh.tensor=1", "--config.mesh.data=4")
  # Enough layers that they are scanned and their activations are stacked.
  overrides += ("--config.model.num_encoder_layers=6", "--config.model.num_decoder_layers=6")
  found = [
    compiled("v5e", "tiny_t5", *overrides, f"--config.model.gradient_dtype={dtype}")
    for dtype in ("bfloat16", "float32")
  ]
  sent = [each["collective_bytes"]["all-reduce"]["data"] for each in found]
  # Each chip of a ring sends, and receives, three quarters of the array twice.
  assert sent[1] == pytest.approx(4 * found[1]["parameters"] * 1.5, rel=0.05)
  config = load_config("tiny_t5").model
  assert sent[1] - sent[0] > 0.9 * 2 * 1.5 * (found[1]["parameters"] - 2 * config.vocab_size * config.embed_dim)
  memory = [each["memory_per_chip"]["activations"] for each in found]
  # A product's input is kept once; twice would be half as much again.
  assert 1e6 < memory[0] <= memory[1] < 1.15 * memory[0]


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("generation", "kind"),
  [*((each, "t5_1_1") for each in SLICES if each != "v5e"), ("v5e", "llama"), ("v5p", "modern_bert")],
)
def test_every_architecture_compiles(generation, kind):
  """A tiny model of each, in bfloat16; tensor-parallel sums are sent between chips."""
  fields = dataclasses.asdict(toy.KINDS[kind]) | dict(dtype="bfloat16")
  name = {"encoder_only": "tiny_bert", "decoder_only": "tiny_gpt"}.get(fields["architecture"], "tiny_t5")
  overrides = [f"--config.model.{key}={value}" for key, value in fields.items()]
  found = compiled(generation, name, *overrides)
  assert found["fits"]
  assert found["executed_flops_per_step"] == pytest.approx(found["flops_per_step"], rel=0.5)
  assert sum(axes.get("tensor", 0) for axes in found["collective_bytes"].values()) > 0


def test_what_does_not_fit_is_said():
  """With the missing bytes, and changes that should suffice."""
  found = compiled("v5e", "t5_1_1_base", "--config.train.batch_size=4096", "--config.model.remat=none")
  assert found["fits"] is False
  assert found["memory_per_chip"]["total"] > found["memory_per_chip"]["capacity"]
  assert found["would_fit"][0].startswith("--config.train.microbatches=")
  assert found["would_fit"][-1].startswith("--config.model.remat=full")
