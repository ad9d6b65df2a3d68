"""Effect of block sizes on attention kernels, in the plan's times and in the search."""

import pytest
from test_plan import config

from t2t import UserError, accelerators
from t2t.models.kernels import blocks, dispatch, splash
from t2t.models.masks import AttentionMask
from t2t.planning import kernel_cycles, roofline

_V6E = "TPU v6 lite"


def on(kernel: str) -> dict[str, dispatch.Choice]:
  return dict.fromkeys(("encoder", "decoder", "cross"), dispatch.Choice(kernel, "as the test says"))


def a_t5(length: int, *more: str):
  heads = ("--config.model.head_dim=64", "--config.model.dtype=bfloat16")
  return config(f"--config.data.inputs_length={length}", *heads, *more)


@pytest.mark.parametrize("kernel", kernel_cycles.CYCLES)
def test_all_that_is_known_is_of_t2ts_own_blocks_too(kernel):
  """The default blocks serve for uncounted ones; no core exceeds the rate of its matrix units."""
  for kind, cycles in kernel_cycles.CYCLES[kernel].items():
    assert blocks.LARGEST in cycles
    clock = (
      accelerators.peak_flops(kind)
      / 2
      / kernel_cycles._MULTIPLY_ADDS[kind]
      / (2 if kind in ("TPU v4", "TPU v5") else 1)
    )
    assert 1.0e9 < clock < 2.5e9  # two cores of a v4 or a v5p are one device
    assert all(
      kernel[1] * kernel_cycles._PRODUCTS / kernel_cycles._MULTIPLY_ADDS[kind] < each for each in cycles.values()
    )


def reached(cycles: int, kind: str, *, heads: int = 1) -> float:
  """Returns the fraction of peak for seven products of 512 x 512 x 128 in this number of cycles."""
  return 7 * heads * 512 * 512 * 128 / cycles / (262_144 if kind in (_V6E, "TPU7x") else 65_536)


def test_the_share_is_that_of_the_blocks_that_run():
  """Encoders, packed rows, short texts, requested blocks; and matmuls' fraction for uncounted kernels."""
  share = lambda of, kernel="distance", kind=_V6E: kernel_cycles.share(of, kind, on(kernel))
  cycles = kernel_cycles.CYCLES["distance", 2][_V6E]
  assert share(a_t5(512)) == share(a_t5(128)) == reached(cycles[512, 512], _V6E, heads=2)
  assert share(a_t5(4096, "--config.data.pack=True")) == share(a_t5(512))
  assert share(a_t5(4096)) == reached(cycles[512, 1024], _V6E, heads=2)
  assert share(a_t5(512, "--config.model.attention_block=256")) == reached(cycles[256, 256], _V6E, heads=2)
  wide = a_t5(512, "--config.model.head_dim=128")
  assert share(wide) == reached(kernel_cycles.CYCLES["distance", 1][_V6E][512, 512], _V6E)
  assert share(a_t5(4096), "plain") == share(a_t5(4096), kind="TPU v2") == roofline.MATMUL_SHARE


def test_what_smaller_blocks_cost_larger_ones_save():
  """Savings are a fraction of the kernels' time; nothing if the default blocks are the fastest known."""
  cycles = kernel_cycles.CYCLES["distance", 2][_V6E]
  small = a_t5(4096, "--config.model.attention_block=256")
  relative = {size: cycles[size, size] / cycles[256, 256] for size in (512, 1024)}
  expected = {size: pytest.approx(10.0 * (1 - each)) for size, each in relative.items()}
  assert kernel_cycles.saved(small, _V6E, on("distance"), 10.0) == expected
  assert kernel_cycles.saved(a_t5(4096, "--config.model.attention_block=1024"), _V6E, on("distance"), 10.0) == {}


@pytest.mark.parametrize("skips", ["--config.data.pack=True", "--config.model.attention_window=128"])
def test_nothing_is_said_where_segments_or_a_window_skip_blocks(skips):
  """Larger blocks skip less, by an amount that is unknown in advance."""
  assert kernel_cycles.saved(a_t5(8192, skips), _V6E, on("distance"), 10.0) == {}
  llama = config("--config.data.targets_length=8192", skips, name="llama2_1b")
  assert kernel_cycles.saved(llama, _V6E, on("splash"), 10.0) == {}


def test_a_share_is_that_of_the_blocks_that_a_core_has_room_for():
  """A v4 does not fit keys of 1,024 with queries of 512, and at 8,192 positions only 256."""
  cycles = kernel_cycles.CYCLES["distance", 2]["TPU v4"]
  for length, block in ((2048, 512), (8192, 256)):
    own = reached(cycles[block, block], "TPU v4", heads=2)
    assert kernel_cycles.share(a_t5(length), "TPU v4", on("distance")) == own


def test_a_window_that_hides_nothing_is_none():
  """Among alternating layers, those without a window count."""
  share = lambda of: kernel_cycles.share(of, _V6E, on("distance"))
  assert share(a_t5(4096, "--config.model.attention_window=5000")) == share(a_t5(4096))
  turns = ("--config.model.attention_window=100", "--config.model.global_attention_every=2")
  assert share(a_t5(4096, *turns)) == share(a_t5(4096)) != share(a_t5(4096, turns[0]))


def a_gpt(length: int, *more: str):
  return config(f"--config.data.targets_length={length}", "--config.model.dtype=bfloat16", *more, name="gpt2_small")


def test_what_a_causal_mask_leaves_out_counts():
  """A kernel computes 10 of 4 x 4 blocks, and 3 of 2 x 2: on a v5e this cancels the gain of larger blocks."""
  of = lambda length, kind, *more: kernel_cycles.saved(a_gpt(length, *more), kind, on("splash"), 1.0)
  cycles = kernel_cycles.CYCLES["splash", 1][_V6E]
  relative = cycles[1024, 1024] / cycles[512, 512] * (3 / 4) / (10 / 16)
  assert of(2048, _V6E) == {1024: pytest.approx(1 - relative)}
  assert of(2048, "TPU v5 lite") == {}
  assert of(8192, "TPU v5 lite") == {}
  assert of(8192, "TPU v5 lite", "--config.model.attention_block=512")[1024] > 0.1
  assert of(512, _V6E) == {}


@pytest.mark.parametrize("kind", kernel_cycles.CYCLES["splash", 1])
def test_long_causal_sequences_have_the_blocks_that_are_faster(kind):
  """Except with segments, sharded sequences, float32, wide heads or requested blocks."""
  cycles = kernel_cycles.CYCLES["splash", 1][kind]
  share = lambda length, *more: kernel_cycles.share(a_gpt(length, *more), kind, on("splash"))
  assert share(splash.LONG) == reached(cycles[1024, 1024], kind)
  assert kernel_cycles.saved(a_gpt(splash.LONG), kind, on("splash"), 1.0) == {}
  asked = "--config.model.attention_block=512"
  assert 1024 in kernel_cycles.saved(a_gpt(splash.LONG, asked), kind, on("splash"), 1.0)
  others = ("--config.data.pack=True", "--config.model.attention_window=9", "--config.model.dtype=float32", asked)
  others += ("--config.mesh.sequence=2", "--config.model.head_dim=192")
  for own in (share(splash.LONG - 512), *(share(splash.LONG, each) for each in others)):
    assert own == reached(cycles[512, 512], kind)


def test_keys_of_a_block_are_more_where_none_can_be_skipped():
  """Only in an encoder whose segments mark just padding, and only if no size is requested."""
  ids = object()
  padded = AttentionMask(ids, ids, padded=True)
  assert blocks.largest(padded, 0) == blocks.largest(AttentionMask(), 0) == (512, 1024)
  for mask in (AttentionMask(causal=True), AttentionMask(window=9), AttentionMask(ids, ids), AttentionMask(ranks=ids)):
    assert blocks.largest(mask, 0) == blocks.LARGEST
  assert blocks.largest(padded, 256) == (256, 256)
  assert blocks.largest(padded, 0, has_ranks=True) == blocks.LARGEST


def test_blocks_can_be_halved_down_to_whole_lanes():
  for wrong in (100, 64, 384, 4_096):
    with pytest.raises(UserError, match=f"attention_block={wrong}: must be 128, 256, 512, 1024, 2048, or 0"):
      a_t5(512, f"--config.model.attention_block={wrong}")


def test_blocks_of_2048_are_taken_where_a_core_has_the_room():
  """Elsewhere half the positions, because libtpu runs out of memory."""
  bounds = lambda kind, head_dim=128, dtype="bfloat16": splash.bounds(
    2_048, (8_192, 8_192), head_dim, dtype, causal=True, device_kind=kind
  )
  assert bounds(_V6E) == (2_048, 2_048)
  smaller = [bounds("TPU v5 lite"), bounds("TPU7x"), bounds(_V6E, head_dim=256), bounds(_V6E, dtype="float32")]
  assert smaller == 4 * [(1_024, 1_024)]
