"""Collectives of small programs: bytes sent, and operations that run beside them."""

import pytest
from test_hlo import MESH, analyse

from t2t import UserError
from t2t.planning.hlo import cost as hlo_cost

# 1,024 floats: 4,096 bytes. In the mesh of 2 x 4 devices, data is 0..1 and fsdp 0..3: device 4 * data + fsdp.
_FSDP = "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"


@pytest.mark.parametrize(
  ("line", "kind", "axes", "sent"),
  [
    (f"f32[4096]{{0}} all-gather(%a), channel_id=1, {_FSDP}", "all-gather", ("fsdp",), 4096 * 4 * 3 / 4),
    (f"f32[256]{{0}} reduce-scatter(%a), channel_id=1, {_FSDP}", "reduce-scatter", ("fsdp",), 4096 * 3 / 4),
    (f"f32[1024]{{0}} all-to-all(%a), channel_id=1, {_FSDP}", "all-to-all", ("fsdp",), 4096 * 3 / 4),
    (f"f32[1024]{{0}} all-reduce(%a), channel_id=1, {_FSDP}", "all-reduce", ("fsdp",), 2 * 4096 * 3 / 4),
    ("f32[1024]{0} all-reduce(%a), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0)", "all-reduce", ("data",), 4096),
    (
      "f32[1024]{0} all-reduce(%a), channel_id=1, replica_groups=[1,8]<=[8]",
      "all-reduce",
      ("data", "fsdp"),
      2 * 4096 * 7 / 8,
    ),
    ("f32[1024]{0} all-reduce(%a), replica_groups={}", "all-reduce", ("data", "fsdp"), 2 * 4096 * 7 / 8),
    (
      "f32[1024]{0} all-reduce(%a), replica_groups=mesh['x'=2,'y'=4] {'y'}",
      "all-reduce",
      ("fsdp",),
      2 * 4096 * 3 / 4,
    ),
    ("f32[1024]{0} all-reduce(%a), replica_groups=mesh['x'=8] {'x':(1)2}", "all-reduce", ("data",), 4096),
    (
      "f32[1024]{0} all-reduce(%a), replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}",
      "all-reduce",
      ("fsdp",),
      2 * 4096 * 3 / 4,
    ),
    (
      "f32[1024]{0} collective-permute(%a), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
      "collective-permute",
      ("fsdp",),
      4096,
    ),
  ],
)
def test_what_a_collective_sends(line, kind, axes, sent):
  """By the formulas of ring algorithms, over the axes along which a group's devices differ."""
  found = analyse(f"%a = f32[1024]{{0}} parameter(0)\nROOT %c = {line}")
  assert found.sent() == {kind: {axes: sent}}
  assert found.collectives[0].beside is None


@pytest.mark.parametrize(
  ("transfer", "kind", "sent"),
  [
    ("ALL_REDUCE", "all-reduce", 2 * 4096 * 2 / 3),
    ("ALL_GATHER", "all-gather", 4096 * 3 * 2 / 3),
    ("REDUCE_SCATTER", "reduce-scatter", 4096 * 2 / 3),
    ("ONE_TO_ONE", "collective-permute", 4096),
  ],
)
def test_what_goes_from_slice_to_slice(transfer, kind, sent):
  """Through the hosts: it counts where data is sent, not where it is received."""
  handler = (
    f'frontend_attributes={{_xla_megascale_target="{{1,2,3}}x{{0:7}}",_xla_megascale_transfer_type="{transfer}"}}'
  )
  found = analyse(
    f"""
    %a = f32[1024]{{0}} parameter(0)
    %t = token[] after-all()
    %s = (f32[1024]{{0}}, u32[], token[]) send(%a, %t), channel_id=2, is_host_transfer=true, {handler}
    %r = (f32[1024]{{0}}, u32[], token[]) recv(%t), channel_id=1, is_host_transfer=true, {handler}
    %e = token[] send-done(%s), channel_id=2, is_host_transfer=true
    ROOT %d = (f32[1024]{{0}}, token[]) recv-done(%r), channel_id=1, is_host_transfer=true
    """,
    mesh={"dcn_data": 3} | MESH,
  )
  assert found.sent() == {kind: {("dcn_data",): sent}}
  (one,) = found.collectives
  assert [found.operations[index].name for index in one.beside] == ["r"]


def test_groups_in_an_unknown_form_are_an_error():
  """A wrong interpretation would silently give wrong numbers."""
  with pytest.raises(UserError, match="unknown HLO notation of a collective.s groups"):
    analyse("%a = f32[8]{0} parameter(0)\nROOT %b = f32[8]{0} all-reduce(%a), replica_groups=<3>")


def test_a_group_of_one_sends_nothing():
  """Neither does a permute from each device to itself."""
  alone = "%a = f32[8]{0} parameter(0)\n%b = f32[8]{0} all-reduce(%a), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}"
  found = analyse(f"{alone}\nROOT %c = f32[8]{{0}} collective-permute(%b), source_target_pairs={{{{0,0}},{{1,1}}}}")
  assert found.sent() == {}


def test_a_collective_that_is_started_ahead_counts_once():
  """Its end does not count again, and it runs beside exactly the operations between start and end."""
  found = analyse(
    f"""
    %a = f32[1024]{{0}} parameter(0)
    %before = f32[1024]{{0}} negate(%a)
    %s = (f32[1024]{{0}}, f32[4096]{{0}}) all-gather-start(%a), channel_id=1, {_FSDP}
    %beside = f32[1024]{{0}} negate(%before)
    %too = f32[1024]{{0}} negate(%beside)
    %d = f32[4096]{{0}} all-gather-done(%s)
    ROOT %after = f32[4096]{{0}} negate(%d)
    """
  )
  assert found.sent() == {"all-gather": {("fsdp",): 4096 * 4 * 3 / 4}}
  (gather,) = found.collectives
  assert [found.operations[index].name for index in gather.beside] == ["beside", "too"]


def test_what_is_started_in_a_loop_runs_beside_what_is_left_of_it():
  """Its end is in the next iteration, or after the loop."""
  found = analyse(
    """
    %a = f32[1024]{0} parameter(0)
    %zero = s32[] constant(0)
    %t = (s32[], f32[1024]{0}) tuple(%zero, %a)
    ROOT %w = (s32[], f32[1024]{0}) while(%t), condition=%cond, body=%body
    """,
    (
      "body",
      f"""
      %p = (s32[], f32[1024]{{0}}) parameter(0)
      %i = s32[] get-tuple-element(%p), index=0
      %x = f32[1024]{{0}} get-tuple-element(%p), index=1
      %one = s32[] constant(1)
      %next = s32[] add(%i, %one)
      %y = f32[1024]{{0}} negate(%x)
      %s = (f32[1024]{{0}}, f32[4096]{{0}}) all-gather-start(%y), channel_id=1, {_FSDP}
      %z = f32[1024]{{0}} negate(%y)
      ROOT %r = (s32[], f32[1024]{{0}}) tuple(%next, %z)
      """,
    ),
    (
      "cond",
      """
      %p = (s32[], f32[1024]{0}) parameter(0)
      %i = s32[] get-tuple-element(%p), index=0
      %n = s32[] constant(3)
      ROOT %lt = pred[] compare(%i, %n), direction=LT
      """,
    ),
  )
  (gather,) = found.collectives
  assert gather.times == 3
  assert [found.operations[index].name for index in gather.beside] == ["z"]


def test_what_a_branch_sends_runs_beside_that_branch():
  """The branch with the higher cost counts, after the operations before it."""
  branch = f"""
    %p = f32[1024]{{0}} parameter(0)
    %s = (f32[1024]{{0}}, f32[4096]{{0}}) all-gather-start(%p), channel_id=1, {_FSDP}
    %beside = f32[1024]{{0}} negate(%p)
    %d = f32[4096]{{0}} all-gather-done(%s)
    ROOT %r = f32[1024]{{0}} slice(%d), slice={{[0:1024]}}
  """
  found = analyse(
    """
    %a = f32[1024]{0} parameter(0)
    %i = s32[] parameter(1)
    %before = f32[1024]{0} negate(%a)
    ROOT %c = f32[1024]{0} conditional(%i, %before, %before), branch_computations={%dear, %cheap}
    """,
    ("dear", branch),
    ("cheap", "ROOT %p = f32[1024]{0} parameter(0)"),
  )
  (gather,) = found.collectives
  assert [found.operations[index].name for index in gather.beside] == ["beside"]


def test_a_collective_spread_over_fusions_counts_once():
  """TPUs repeat it in each fusion that moves a part of it; only the starting one counts."""
  gather = f"%p = f32[1024]{{0}} parameter(0)\n%g = f32[4096]{{0}} all-gather(%p), channel_id=7, {_FSDP}\n"
  call = 'ROOT %r = (f32[1024]{0}, f32[4096]{0}) custom-call(%g), custom_call_target="AsyncCollective'
  found = analyse(
    """
    %a = f32[1024]{0} parameter(0)
    %x = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kCustom, calls=%start
    %y = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kCustom, calls=%step
    ROOT %z = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kCustom, calls=%done
    """,
    ("start", f'{gather}{call}Start"'),
    ("step", f"{gather}ROOT %r = (f32[1024]{{0}}, f32[4096]{{0}}) tuple(%p, %g)"),
    ("done", f'{gather}{call}Done"'),
  )
  assert found.sent() == {"all-gather": {("fsdp",): 4096 * 4 * 3 / 4}}
  assert found.bytes == 0.0
  assert found.collectives[0].beside == ()


def test_what_runs_beside_a_spread_collective_moves_its_own():
  """The product of that step reads or writes neither the gathered array nor its existing part."""
  found = analyse(
    """
    %a = f32[1024]{0} parameter(0)
    %b = f32[8,128]{1,0} parameter(1)
    %x = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kCustom, calls=%start
    %there = f32[4096]{0} get-tuple-element(%x), index=1
    ROOT %y = (f32[8,128]{1,0}, f32[1024]{0}, f32[4096]{0}) fusion(%a, %there, %b), kind=kOutput, calls=%step
    """,
    (
      "start",
      f"""
      %p = f32[1024]{{0}} parameter(0)
      %g = f32[4096]{{0}} all-gather(%p), channel_id=7, {_FSDP}
      ROOT %r = (f32[1024]{{0}}, f32[4096]{{0}}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
      """,
    ),
    (
      "step",
      f"""
      %p = f32[1024]{{0}} parameter(0)
      %q = f32[4096]{{0}} parameter(1)
      %b = f32[8,128]{{1,0}} parameter(2)
      %g = f32[4096]{{0}} all-gather(%p), channel_id=7, {_FSDP}
      %m = f32[8,128]{{1,0}} multiply(%b, %b)
      ROOT %r = (f32[8,128]{{1,0}}, f32[1024]{{0}}, f32[4096]{{0}}) tuple(%m, %p, %g)
      """,
    ),
  )
  assert found.bytes == 2 * 8 * 128 * 4


def test_a_reduction_of_which_each_keeps_a_slice_is_a_reduce_scatter():
  """TPUs write it as an all-reduce and a slice in one fusion, which sends half of an all-reduce."""
  found = analyse(
    "%a = f32[1024]{0} parameter(0)\nROOT %f = f32[256]{0} fusion(%a), kind=kCustom, calls=%scatter",
    (
      "scatter",
      f"""
      %p = f32[1024]{{0}} parameter(0)
      %r = f32[1024]{{0}} all-reduce(%p), channel_id=3, {_FSDP}
      %i = s32[] constant(0)
      ROOT %s = f32[256]{{0}} dynamic-slice(%r, %i), dynamic_slice_sizes={{256}}
      """,
    ),
  )
  assert found.sent() == {"reduce-scatter": {("fsdp",): 4096 * 3 / 4}}


def test_only_what_has_a_step_of_a_spread_collective_moves_it():
  """Operations between two steps do not move it, and so hide nothing of it."""
  gather = f"%p = f32[1024]{{0}} parameter(0)\n%g = f32[4096]{{0}} all-gather(%p), channel_id=7, {_FSDP}\n"
  step = f"{gather}%n = f32[1024]{{0}} negate(%p)\nROOT %r = (f32[1024]{{0}}, f32[4096]{{0}}) tuple(%n, %g)"
  found = analyse(
    """
    %a = f32[1024]{0} parameter(0)
    %x = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kCustom, calls=%start
    %y = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kLoop, calls=%step
    %between = f32[1024]{0} negate(%a)
    ROOT %z = (f32[1024]{0}, f32[4096]{0}) fusion(%a), kind=kLoop, calls=%another
    """,
    (
      "start",
      f'{gather}ROOT %r = (f32[1024]{{0}}, f32[4096]{{0}}) custom-call(%g), custom_call_target="AsyncCollectiveStart"',
    ),
    ("step", step),
    ("another", step),
  )
  (one,) = found.collectives
  assert [each.name for each in found.operations] == ["y", "between", "z"]
  assert [found.operations[index].name for index in one.beside] == ["y", "z"]


def test_what_a_sparse_core_runs_is_a_computation_too():
  """TPU7x's programs mark the core after a computation."""
  text = """HloModule step, is_scheduled=true

%gathered (p: f32[2]) -> f32[4] {
  %p = f32[2]{0} parameter(0)
  ROOT %g = f32[4]{0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, dimensions={0}
}, execution_thread="sparsecore"

ENTRY %main (x: f32[2]) -> f32[4] {
  %x = f32[2]{0} parameter(0)
  ROOT %c = f32[4]{0} call(%x), to_apply=%gathered
}
"""
  (found,) = hlo_cost.analyse(text, {"fsdp": 2}).collectives
  assert (found.kind, found.axes, found.bytes) == ("all-gather", ("fsdp",), 8.0)
