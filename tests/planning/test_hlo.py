"""Counts from compiled programs: from text written here, and from programs with known numbers."""

import functools
import textwrap

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import pytest

from t2t.planning.hlo import cost as hlo_cost
from t2t.planning.hlo import text as hlo

MESH = {"data": 2, "fsdp": 4}


def program(entry: str, *others: str) -> str:
  """Returns HLO text with a main computation after others."""
  body = lambda text: textwrap.indent(textwrap.dedent(text).strip(), "  ")
  others = [f"%{name} (p: f32[]) -> f32[] {{\n{body(text)}\n}}\n" for name, text in others]
  return "HloModule main\n\n" + "\n".join(others) + f"\nENTRY %main (p: f32[]) -> f32[] {{\n{body(entry)}\n}}\n"


def analyse(entry: str, *others: str, mesh=MESH, **options) -> hlo_cost.HloProgram:
  return hlo_cost.analyse(program(entry, *others), mesh, **options)


# ---- Text ------------------------------------------------------------------------------------------------------------


def test_an_instruction_is_taken_apart():
  """Name, arrays with their memory space, operands and attributes, in any notation of the line."""
  text = program(
    """
    %a = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(0)
    ROOT %t.1 = (bf16[8,128]{1,0}, /*index=1*/s4[3]{0}, token[]) custom-call(%a, /*index=1*/%a), custom_call_target="x"
    """
  )
  root = hlo.parse(text).entry.root
  assert (root.name, root.opcode, root.operands) == ("t.1", "custom-call", ("a", "a"))
  assert [array.bytes for array in root.arrays] == [2048, 1.5, 0]
  assert hlo.parse(text).entry.instructions["a"].arrays[0].space == 1
  assert root.attribute("custom_call_target") == '"x"'


def test_attributes_may_have_lines_of_their_own():
  """Kernels have settings as text with line breaks."""
  text = program('ROOT %k = f32[4]{0} custom-call(), frontend_attributes={kernel_metadata={\n"block_q": 512\n}}, x=3')
  assert hlo.parse(text).entry.root.attribute("x") == "3"


def test_other_text_is_refused():
  """A program in another format would silently count as empty."""
  with pytest.raises(ValueError, match="ENTRY"):
    hlo.parse("module @jit_step {\n}")


# ---- Loops -----------------------------------------------------------------------------------------------------------


def loop(body: str, *, limit: str = "12", step: int = 1, note: str = "") -> tuple[str, ...]:
  """Returns a program whose loop counts from 0 to `limit` in steps and runs `body` in each."""
  entry = f"""
    %zero = s32[] constant(0)
    %w = f32[64,64]{{1,0}} parameter(0)
    %n = s32[] parameter(1)
    %t = (s32[], f32[64,64]{{1,0}}, s32[]) tuple(%zero, %w, %n)
    ROOT %loop = (s32[], f32[64,64]{{1,0}}, s32[]) while(%t), condition=%cond, body=%body{note}
    """
  state = "%p = (s32[], f32[64,64]{1,0}, s32[]) parameter(0)\n%i = s32[] get-tuple-element(%p), index=0\n"
  state += "%x = f32[64,64]{1,0} get-tuple-element(%p), index=1\n%n = s32[] get-tuple-element(%p), index=2\n"
  count = f"%by = s32[] constant({step})\n%next = s32[] add(%i, %by)\n"
  end = "ROOT %r = (s32[], f32[64,64]{1,0}, s32[]) tuple(%next, %y, %n)"
  known = "" if limit == "n" else f"%n.1 = s32[] constant({limit})\n"
  test = f"{known}ROOT %c = pred[] compare(%i, {'%n' if limit == 'n' else '%n.1'}), direction=LT"
  return entry, ("body", f"{state}{count}{textwrap.dedent(body)}\n{end}"), ("cond", state + test)


_DOT = "%y = f32[64,64]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


@pytest.mark.parametrize(
  ("options", "trips"), [({}, 12), ({"step": 2}, 6), ({"limit": "7", "step": 2}, 4), ({"limit": "0"}, 0)]
)
def test_a_loop_counts_as_often_as_it_runs(options, trips):
  """Without the compiler's note, the loop's counter is evaluated."""
  assert analyse(*loop(_DOT, **options)).flops == trips * 2 * 64**3


def test_what_the_compiler_notes_of_a_loop_is_believed():
  """In some versions its backend_config has the number of iterations."""
  note = ', backend_config={"known_trip_count":{"n":"5"}}'
  assert analyse(*loop(_DOT, note=note)).flops == 5 * 2 * 64**3


def test_a_loop_that_the_data_ends_runs_as_often_as_is_said():
  """The option `unknown_trips` gives the number for such loops."""
  found = analyse(*loop(_DOT, limit="n"), unknown_trips=3)
  assert (found.flops, found.unknown_loops) == (3 * 2 * 64**3, 1)


def test_loops_multiply():
  """A nested loop gets its limit through the outer one."""
  entry, body, condition = loop("%y = f32[64,64]{1,0} get-tuple-element(%inner), index=1", limit="3")
  inner_entry, inner_body, inner_condition = loop(_DOT, limit="n")
  del inner_entry
  name, text = body
  inner = """
    %four = s32[] constant(4)
    %zero = s32[] constant(0)
    %t = (s32[], f32[64,64]{1,0}, s32[]) tuple(%zero, %x, %four)
    %inner = (s32[], f32[64,64]{1,0}, s32[]) while(%t), condition=%inner_cond, body=%inner_body
    """
  outer = (name, text.replace("%y = ", f"{textwrap.dedent(inner).strip()}\n%y = "))
  others = [outer, condition, ("inner_body", inner_body[1]), ("inner_cond", inner_condition[1])]
  assert analyse(entry, *others).flops == 3 * 4 * 2 * 64**3


def test_collectives_in_loops_are_sent_each_time():
  """Twelve iterations send twelve times."""
  line = "%y = f32[64,64]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}"
  assert analyse(*loop(line)).sent() == {"all-reduce": {("fsdp",): 12 * 2 * 64 * 64 * 4 * 3 / 4}}


# ---- FLOPs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("line", "flops"),
  [
    # A plain matmul in a TPU's notation.
    ("f32[8,32]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", 2 * 8 * 16 * 32),
    # 3 x 3 over 4 x 4 without padding: each of 2 x 2 positions sees the whole window.
    (
      "f32[1,2,2,5]{3,2,1,0} convolution(%image, %kernel), window={size=3x3}, dim_labels=b01f_01io->b01f",
      2 * 4 * 9 * 7 * 5,
    ),
    # With padding, the corners see 4 and the edges 6 of 9.
    (
      "f32[1,4,4,5]{3,2,1,0} convolution(%image, %kernel), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
      2 * (4 * 4 + 8 * 6 + 4 * 9) * 7 * 5,
    ),
    # A batch of 6 matmuls as a convolution whose window meets one input at each step.
    (
      "f32[6,8,32]{2,1,0} convolution(%c, %d), window={size=6 stride=5 lhs_dilate=6}, dim_labels=0bf_0io->0bf",
      2 * 6 * 8 * 16 * 32,
    ),
  ],
)
def test_flops_of_convolutions(line, flops):
  """Positions in padding or between dilated inputs cost nothing, so a batch of matmuls has its normal cost."""
  found = analyse(
    f"""
    %a = f32[8,16]{{1,0}} parameter(0)
    %b = f32[16,32]{{1,0}} parameter(1)
    %c = f32[6,8,16]{{2,1,0}} parameter(2)
    %d = f32[6,16,32]{{2,1,0}} parameter(3)
    %image = f32[1,4,4,7]{{3,2,1,0}} parameter(4)
    %kernel = f32[3,3,7,5]{{3,2,1,0}} parameter(5)
    ROOT %r = {line}
    """
  )
  assert found.flops == flops


@pytest.mark.parametrize(
  ("left", "right", "pace"), [("s8", "s8", 2), ("f8e4m3fn", "f8e5m2", 4), ("s8", "bf16", 1), ("bf16", "bf16", 1)]
)
def test_products_of_8_bits_have_a_pace_of_their_own(left, right, pace):
  """If both operands have 8 bits and the device is faster with them; inside fusions, too."""
  entry = f"""
  %a = {left}[8,16]{{1,0}} parameter(0)
  %b = {right}[16,32]{{1,0}} parameter(1)
  ROOT %r = f32[8,32]{{1,0}} fusion(%a, %b), kind=kOutput, calls=%product
  """
  product = f"""
  %p = {left}[8,16]{{1,0}} parameter(0)
  %q = {right}[16,32]{{1,0}} parameter(1)
  ROOT %c = f32[8,32]{{1,0}} convolution(%p, %q), dim_labels=bf_io->bf
  """
  found = analyse(entry, ("product", product), paces={"int8": 2.0, "fp8": 4.0})
  assert (found.flops, [each.pace for each in found.operations]) == (2 * 8 * 16 * 32, [pace])
  assert [each.pace for each in analyse(entry, ("product", product)).operations] == [1]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_flops_of_splash_attention(causal, segments):
  """2 + 3 + 5 matmuls over the blocks of the grid; a causal mask omits blocks above the diagonal.

  Segments, and query positions of causal kernels, have the layout of JAX's kernels.
  """
  sizes = ", ".join(f'\\"{name}{part}\\": 128' for part in ("", "_dq", "_dkv") for name in ("block_q", "block_kv"))
  metadata = '{kernel_metadata={\n"xprof_metadata":"{' + sizes + '}"\n}}'

  def call(*places):
    operands, target = ", ".join(["%grid", "%q", *places]), 'custom_call_target="tpu_custom_call"'
    return f"custom-call({operands}), {target}, frontend_attributes={metadata}"

  # One number per position, in every lane or in every sublane; key segments have the opposite layout of query segments.
  upright, turned = ["%lanes"] * causal + ["%lanes", "%sublanes"] * segments, ["%sublanes"] * causal
  turned += ["%sublanes", "%lanes"] * segments
  found = analyse(
    f"""
    %grid = s8[1,4,4]{{2,1,0}} parameter(0)
    %q = bf16[2,8,512,64]{{3,2,1,0}} parameter(1)
    %lanes = s32[512,128]{{1,0}} parameter(2)
    %sublanes = s32[8,512]{{1,0}} parameter(3)
    %splash_mha_fwd_residuals.3 = bf16[2,8,512,64]{{3,2,1,0}} {call(*upright)}
    %splash_mha_dq.1 = bf16[2,8,512,64]{{3,2,1,0}} {call(*upright)}
    ROOT %splash_mha_dkv.2 = (bf16[2,4,8,512,64]{{4,3,2,1,0}}, bf16[2,8,512,64]{{3,2,1,0}}) {call(*turned)}
    """
  )
  visible = 512 * 512 * ((4 + 1) / (2 * 4) if causal else 1)
  assert found.flops == (2 + 3 + 5) * 2 * 2 * 8 * visible * 64
  assert not found.uncounted


def test_flops_of_a_grouped_product():
  """Tiles of rows that two groups share are computed twice; with experts on 4 devices groups fill a quarter."""
  noted = 'backend_config={"cost_estimate":{"flops":"6400","transcendentals":"0"}}'
  text = f"""
    %number = s32[] parameter(0)
    %starts = s32[9]{{0}} parameter(1)
    %groups = s32[71]{{0}} parameter(2)
    %rows = bf16[512,16]{{1,0}} parameter(3)
    %matrices = bf16[8,16,16]{{2,1,0}} parameter(4)
    ROOT %transpose_jvp_jit_gmm___.2 = bf16[512,16]{{1,0}} custom-call(%number, %starts, %groups, %groups, %rows, \
%matrices), custom_call_target="tpu_custom_call", {noted}
    """.replace("\\\n", "")
  (kernel,) = analyse(text).operations
  assert (kernel.flops, kernel.busy_flops, kernel.is_kernel) == (6400, 100 * 71, False)
  (kernel,) = analyse(text, mesh={"expert": 4}).operations
  assert (kernel.flops, kernel.busy_flops) == (1600, 100 * (16 + 7))


def test_a_kernel_that_is_not_known_is_named():
  """Its FLOPs are not silently zero."""
  call = 'ROOT %mystery.12 = f32[4]{0} custom-call(), custom_call_target="tpu_custom_call"'
  assert analyse(call).uncounted == ("mystery",)


# ---- Memory ----------------------------------------------------------------------------------------------------------


def test_what_goes_to_the_host_and_comes_back():
  """Slices of host arrays, and copies; on-chip memory does not count, nor do indices."""
  far, near, chip = "f32[4,8]{1,0:S(5)}", "f32[1,8]{1,0}", "f32[1,8]{1,0:S(1)}"
  found = analyse(
    f"""
    %far = {far} parameter(0)
    %near = {near} parameter(1)
    %i = s32[] parameter(2)
    %u = (({far}, {near}, s32[], s32[]), {far}, u32[]{{:S(2)}}) dynamic-update-slice-start(%far, %near, %i, %i)
    %done = {far} dynamic-update-slice-done(%u)
    %s = (({far}, s32[], s32[]), {near}, u32[]{{:S(2)}}) dynamic-slice-start(%done, %i, %i)
    %back = {near} dynamic-slice-done(%s)
    %v = ({chip}, {near}, u32[]{{:S(2)}}) copy-start(%back)
    %on_chip = {chip} copy-done(%v)
    %c = (f32[1,8]{{1,0:S(5)}}, {near}, u32[]{{:S(2)}}) copy-start(%back)
    ROOT %out = f32[1,8]{{1,0:S(5)}} copy-done(%c)
    """
  )
  assert found.host_bytes == 3 * 32
  # Each of the three, and the copy to the chip, reads or writes the device's memory once.
  assert found.bytes == 4 * 32
  assert all(operation.overlaps for operation in found.operations)


def test_of_what_is_sliced_the_slice_is_read():
  """A loop over stacked weights reads one layer per iteration; writing a stack counts likewise."""
  found = analyse(
    """
    %stack = f32[24,1000]{1,0} parameter(0)
    %i = s32[] parameter(1)
    ROOT %f = f32[24,1000]{1,0} fusion(%stack, %i), kind=kLoop, calls=%update
    """,
    (
      "update",
      """
      %p = f32[24,1000]{1,0} parameter(0)
      %i = s32[] parameter(1)
      %z = s32[] constant(0)
      %s = f32[1,1000]{1,0} dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,1000}
      %e = f32[1,1000]{1,0} exponential(%s)
      ROOT %u = f32[24,1000]{1,0} dynamic-update-slice(%p, %e, %i, %z)
      """,
    ),
  )
  assert found.bytes == 4_000 + 4 + 4_000


def test_memory_on_the_chip_is_not_counted():
  """A copy to on-chip memory reads main memory once; computing there moves nothing."""
  found = analyse(
    """
    %a = f32[1000]{0} parameter(0)
    %s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%a)
    %d = f32[1000]{0:S(1)} copy-done(%s)
    ROOT %e = f32[1000]{0:S(1)} exponential(%d)
    """
  )
  assert found.bytes == 4_000
  assert [each.overlaps for each in found.operations] == [True]


# ---- Programs that XLA compiles --------------------------------------------------------------------------------------


@functools.cache
def compiled(kind: str) -> hlo_cost.HloProgram:
  """Returns a small program on eight devices, data 2 x fsdp 4."""
  mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
  put = lambda shape, *spec: jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))
  )
  x, w = put((64, 32), ("data", "fsdp"), None), put((32, 48), "fsdp", None)
  whole = NamedSharding(mesh, PartitionSpec())
  gathered = lambda w: jax.lax.with_sharding_constraint(w, whole)
  if kind == "matmul":
    step, arguments = lambda x, w: x @ gathered(w), (x, w)
  elif kind == "gradient":
    loss = lambda w, x: jnp.sum(jnp.square(x @ w))
    step, arguments = lambda x, w: jax.lax.with_sharding_constraint(jax.grad(loss)(w, x), whole), (x, put((32, 48)))
  else:
    layers = put((6, 32, 32), None, "fsdp", None)
    run = lambda x, layers: jax.lax.scan(lambda x, w: (jnp.tanh(x @ gathered(w)), None), x, layers)[0]
    step, arguments = run, (x, layers)
  with jax.set_mesh(mesh):
    text = jax.jit(step).lower(*arguments).compile().as_text()
  return hlo_cost.analyse(text, mesh.shape)


def test_a_sharded_matmul():
  """Each device multiplies its rows, and receives the other three quarters of the weights."""
  found = compiled("matmul")
  assert found.flops == 2 * 8 * 32 * 48
  assert found.sent() == {"all-gather": {("fsdp",): 32 * 48 * 4 * 3 / 4}}


def test_a_gradient_is_summed_over_all_devices():
  """Forward and backward are a matmul each; the sum is over both axes, of 8 devices."""
  found = compiled("gradient")
  assert found.flops == 2 * 2 * 8 * 32 * 48
  assert found.sent() == {"all-reduce": {("data", "fsdp"): 2 * 32 * 48 * 4 * 7 / 8}}


def test_a_scan_over_layers():
  """Six layers: six matmuls and six gathered weights, though the program has one."""
  found = compiled("scan")
  assert found.flops == 6 * 2 * 8 * 32 * 32
  assert found.sent() == {"all-gather": {("fsdp",): 6 * 32 * 32 * 4 * 3 / 4}}


def test_what_a_scan_keeps_for_its_backward_pass():
  """Stacks of the forward loop count, gradients that the backward loop stacks do not."""

  def loss(layers, x):
    return jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, layers)[0])

  shapes = jax.ShapeDtypeStruct((6, 32, 32), jnp.float32), jax.ShapeDtypeStruct((8, 32), jnp.float32)
  text = jax.jit(jax.grad(loss)).lower(*shapes).compile().as_text()
  # The input of each layer, and the argument of the sine.
  assert hlo_cost.analyse(text, {"data": 1}).saved_bytes == 2 * 6 * 8 * 32 * 4
