"""GPU kernels: cuDNN on padded rows, its results kept for the backward pass, and programs in XLA's GPU notation."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import accelerators, sharding
from t2t.models import heads, stack
from t2t.models import remat as remat_lib
from t2t.models.kernels import dispatch
from t2t.models.masks import AttentionMask
from t2t.models.stack import unrolled
from t2t.planning import aot_compile
from t2t.planning.hlo import cost as hlo_cost

LENGTHS = (6, 4, 0)  # of three rows of six positions


@pytest.fixture
def lowers_for_gpus(monkeypatch):
  cudnn = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91_000)
  monkeypatch.setattr(sharding, "platform", lambda: "gpu")


def padded(*, queries: int = 6, is_cross: bool = False) -> AttentionMask:
  real = (np.arange(6) < np.array(LENGTHS)[:, None]).astype(np.int32)
  return AttentionMask(np.ones((3, queries), np.int32) if is_cross else real, real, padded=True)


def gradients(mask: AttentionMask, kernel: str, arrays, bias=None):
  """Returns result, and gradients of queries, keys and values, of a sum over positions that are not padding."""
  query, keys, values, weights = arrays
  weights = weights * (np.asarray(mask.query_segments) > 0)[:, None, :, None]

  def total(query, keys, values):
    result = dispatch.attend(query, keys, values, mask, kernel=kernel, bias=bias)
    return jnp.sum(result * weights), result

  return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(query, keys, values)


def operands(queries: int = 6):
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.normal(size=(3, 2, length, 8)), jnp.float32) for length in (queries, 6, 6, queries)]


@pytest.mark.parametrize("is_cross", [False, True])
def test_padding_is_a_length_to_cudnn(is_cross):
  """Results equal attention with segments, padding gets no gradient, and nothing is NaN."""
  queries = 4 if is_cross else 6
  mask, arrays = padded(queries=queries, is_cross=is_cross), operands(queries)
  by_segments = dataclasses.replace(mask, padded=False)
  bias = jnp.asarray(np.random.default_rng(1).normal(size=(1, 2, queries, 6)), jnp.float32)
  (_, result), found = gradients(mask, "cudnn", arrays, bias)
  (_, expected), known = gradients(by_segments, "cudnn", arrays, bias)
  rows = slice(0, 2)  # the third row is only padding
  asks = (np.asarray(mask.query_segments) > 0)[rows, None, :, None]
  np.testing.assert_allclose(np.where(asks, result[rows], 0), np.where(asks, expected[rows], 0), atol=1e-6)
  for one, other in zip(found, known, strict=True):
    np.testing.assert_allclose(one[rows], other[rows], atol=1e-6)
  hidden = np.asarray(mask.key_segments)[rows, None, :, None] == 0
  assert all(np.isfinite(x).all() for x in (result, *found))
  assert all((np.where(hidden, x[rows], 0) == 0).all() for x in found[1:])


def test_a_padded_batch_needs_no_pairs_of_each_row(lowers_for_gpus):
  """cuDNN gets the common bias and the lengths of rows."""
  arrays = [x.astype(jnp.bfloat16) for x in operands()]
  bias = jnp.zeros((1, 2, 6, 6), jnp.bfloat16)
  text = jax.jit(lambda *x: gradients(padded(), "cudnn", x, bias)).trace(*arrays).lower(lowering_platforms=("cuda",))
  assert "tensor<1x2x6x6xbf16>" in text.as_text()
  assert not any(f"tensor<3x{heads}x6x6x" in text.as_text() for heads in (1, 2))
  assert 'mask_type = "PADDING"' in text.as_text() or "\\22mask_type\\22: \\22PADDING\\22" in text.as_text()


def test_padding_does_not_need_even_lengths():
  """Lengths of rows are not a bias, for which cuDNN requires even lengths."""
  shapes = ((3, 2, 511, 64), (3, 2, 511, 64))
  asked = lambda mask: dispatch.choose(*shapes, "bfloat16", mask, platform="gpu", compute_capability="9.0").kernel
  segments = np.ones((3, 511), np.int32)
  assert asked(AttentionMask(segments, segments, padded=True)) == "cudnn"
  assert asked(AttentionMask(segments, segments)) == "plain"


@pytest.mark.parametrize(
  ("remat", "times"),
  [("minimal", 1), ("offload", 1), ("query,key,value,attention", 1), ("query,key,value", 2), ("full", 2)],
)
def test_a_policy_that_keeps_kernels_keeps_cudnns(lowers_for_gpus, remat, times):
  """Its forward pass is repeated only under policies that drop it."""
  policy = remat_lib.policy(remat, "")
  arrays = [x.astype(jnp.bfloat16) for x in operands()[:3]]
  attend = jax.checkpoint(lambda *x: jnp.tanh(dispatch.attend(*x, AttentionMask(), kernel="cudnn")), policy=policy)
  function = jax.grad(lambda *x: jnp.sum(attend(*x).astype(jnp.float32)), argnums=(0, 1, 2))
  found = [e.primitive.name for e, _ in toy.equations(jax.make_jaxpr(function)(*arrays).jaxpr)]
  assert sum(name.startswith("dot_product_attention_fwd") for name in found) == times


@pytest.mark.slow
def test_the_gradients_of_logits_are_products_in_the_activations_dtype():
  """float32 gradients equal autodiff's; for bfloat16 no operand is wider, and results agree to bfloat16 precision."""
  rng = np.random.default_rng(3)
  hidden, table = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 5, 8), (32, 8)))
  weights = jnp.asarray(rng.normal(size=(2, 5, 32)), jnp.float32)
  for axes, matrix in (("...e,ve->...v", table), ("...e,ev->...v", table.T)):
    plain = lambda x, w, axes=axes: jnp.sum(jnp.einsum(axes, x, w, preferred_element_type=jnp.float32) * weights)
    ours = lambda x, w, axes=axes: jnp.sum(heads._against(x, w, axes) * weights)
    expected = jax.grad(plain, argnums=(0, 1))(hidden, matrix)
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)):
      given = (hidden.astype(dtype), matrix.astype(dtype))
      found = jax.grad(ours, argnums=(0, 1))(*given)
      for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=tolerance * float(jnp.abs(other).max()))
      products = [e for e, _ in toy.equations(jax.make_jaxpr(jax.grad(ours, argnums=(0, 1)))(*given).jaxpr)]
      products = [e for e in products if e.primitive.name == "dot_general"]
      assert len(products) == 3
      assert {x.aval.dtype for e in products for x in e.invars} == {jnp.dtype(dtype)}


@pytest.mark.exhaustive
def test_layers_may_be_unrolled(monkeypatch):
  """Each iteration of the loop has the requested number of layers, at most all, and the loss is unchanged."""
  monkeypatch.setattr(stack, "unrolled", unrolled)
  found = {}
  for unroll in (1, 2, 9):
    model = toy.model(toy.config(unroll=unroll))
    jaxpr = jax.make_jaxpr(lambda batch, model=model: toy.logits(model, batch))(toy.batch()).jaxpr
    turns = [e.params["unroll"] for e, _ in toy.equations(jaxpr) if e.primitive.name == "scan"]
    found[unroll] = turns, toy.logits(model, toy.batch())
  assert [found[unroll][0] for unroll in found] == [
    [1, 1],
    [2, 2],
    [2, 3],
  ]  # an encoder's two layers, a decoder's three
  np.testing.assert_allclose(found[1][1], found[9][1], atol=1e-5)


# ---- Their programs, counted -----------------------------------------------------------------------------------------


def analyse(entry: str, *others: str) -> hlo_cost.HloProgram:
  text = "HloModule main\n\n" + "".join(others) + f"\nENTRY %main (p: f32[]) -> f32[] {{\n{entry}\n}}\n"
  return hlo_cost.analyse(text, {"data": 1}, paces=accelerators.PACES["NVIDIA H200"])


def test_flops_of_cudnns_attention():
  """Two products forward and five backward, of all pairs or the causal half; each at its own speed."""
  query, keys = "bf16[3,8,2,64]{3,2,1,0}", "bf16[3,16,2,64]{3,2,1,0}"
  shared = f"  %q = {query} parameter(0)\n  %k = {keys} parameter(1)\n"
  call = lambda name, target, mask, root="", window=0: (
    f'  {root}%{name} = {query} custom-call(%q, %k, %k), custom_call_target="__cudnn$fmha{target}",'
    f' backend_config={{"mask_type": "{mask}", "sliding_window_length": {window}}}\n'
  )
  pairs = 3 * 2 * 8 * 16 * 64 * 2
  found = analyse(shared + call("a", "Softmax", "PADDING") + call("b", "ScaleBiasSoftmaxBackward", "NO_MASK", "ROOT "))
  assert [each.flops for each in found.operations] == [2 * pairs, 5 * pairs]
  assert [each.pace for each in found.operations] == [pytest.approx(0.31), pytest.approx(0.16)]
  assert all(each.is_kernel for each in found.operations)
  assert not found.uncounted
  causal = analyse(shared + call("a", "Softmax", "CAUSAL", "ROOT "))
  # Of eight queries the first attends to one key, and the last to eight.
  assert causal.flops == 2 * pairs / (8 * 16) * sum(range(1, 9))
  windowed = analyse(shared + call("a", "Softmax", "CAUSAL", "ROOT ", window=3))
  assert windowed.flops == 2 * pairs / (8 * 16) * (1 + 2 + 3 * 6)


def test_a_fusion_beside_others_moves_what_it_updates():
  """It moves the new slice of its in-place update, and takes no separate time."""
  stack_of, layer = "bf16[12,64]{1,0}", "bf16[1,64]{1,0}"
  fused = (
    f"%update (a: {stack_of}, i: s32[], x: {layer}) -> {stack_of} {{\n  %a = {stack_of} parameter(0)\n"
    f"  %i = s32[] parameter(1)\n  %x = {layer} parameter(2)\n  %zero = s32[] constant(0)\n"
    f"  ROOT %new = {stack_of} dynamic-update-slice(%a, %x, %i, %zero)\n}}\n"
  )
  entry = (
    f"  %a = {stack_of} parameter(0)\n  %i = s32[] parameter(1)\n  %x = {layer} parameter(2)\n"
    f"  %start = (({stack_of}, s32[], {layer}), {stack_of}, u32[]) fusion-start(%a, %i, %x), kind=kLoop,"
    " calls=%update\n"
    f"  ROOT %done = {stack_of} fusion-done(%start)\n"
  )
  found = analyse(entry, fused)
  assert [each.overlaps for each in found.operations] == [True]
  assert found.bytes == 2 * math.prod((1, 64)) * 2 + 4


def test_products_of_float32_take_longer():
  """They use TF32, at a third of bfloat16's speed."""
  dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
  entry = f"  %a = f32[8,8]{{1,0}} parameter(0)\n  ROOT %dot = f32[8,8]{{1,0}} dot(%a, %a), {dims}\n"
  assert [each.pace for each in analyse(entry).operations] == [pytest.approx(0.33)]


def test_a_flag_that_no_program_may_have_is_left_out():
  """Some GPU flags are read only from the environment; other errors are raised."""
  lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
  compiled = aot_compile._with_flags(lowered, {"xla_no_such_flag": True, "xla_cpu_enable_fast_math": False})
  np.testing.assert_array_equal(compiled(jnp.ones(3)), [2, 2, 2])
  with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_enable_fast_math"):
    aot_compile._with_flags(lowered, {"xla_cpu_enable_fast_math": "neither"})
