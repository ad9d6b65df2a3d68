"""Layouts of a mesh's axes on a slice: their enumeration, and predicted step times."""

import dataclasses
import types

import pytest
from test_plan import config
from test_topologies import chips_of

from t2t import sharding
from t2t.models.kernels import dispatch
from t2t.planning import aot_compile, autotune, autotune_candidates, mesh_layouts

_V5E, _V5P = "TPU v5 lite", "TPU v5"


@pytest.fixture(autouse=True)
def meshes_of_chips(monkeypatch):
  """Allows meshes of device descriptions, which JAX would refuse."""

  def make(sizes, *, devices, order=()):
    sizes = sharding.mesh_sizes(sizes, len(devices))
    return types.SimpleNamespace(devices=sharding._placed(sizes, devices, order), shape=sizes)

  monkeypatch.setattr(sharding, "make_mesh", make)


def mesh(kind: str, *sides: int, **sizes: int):
  return sharding.make_mesh(sizes, devices=chips_of(kind, *sides))


def a_plan(its, *, work: float, sent: dict[str, float], bound: str = "matmuls") -> dict:
  """Returns the plan of a step with synchronous collectives."""
  links = {name: its[name] * number for name, number in sent.items()}
  waited = sum(links.values())
  return {
    "seconds_at_peak": {"compute": 0.8 * work, "memory": 0.0, "links": links},
    "waiting_seconds": links,
    "exposed_seconds": waited,
    "kernel_seconds": 0.0,
    "predicted_step_seconds": work + waited,
    "bound": bound,
  }


@pytest.mark.parametrize(
  ("kind", "sides", "sizes"),
  [
    (_V5E, (8, 8), {"fsdp": 8, "tensor": 8}),
    (_V5E, (4, 8), {"data": 2, "fsdp": 4, "tensor": 4}),
    (_V5P, (4, 4, 4), {"fsdp": 16, "tensor": 4}),
  ],
)
def test_every_order_has_links_of_its_own(kind, sides, sizes):
  """A config with the layout gets a mesh with equal speeds."""
  one = mesh(kind, *sides, **sizes)
  found = mesh_layouts.all_orders(one)
  seen = [tuple(round(1e15 * its[name]) for name in sorted(its)) for its in found.values()]
  assert () in found and len(set(seen)) == len(seen)
  assert all(mesh_layouts.speeds(sharding.make_mesh(sizes, devices=list(one.devices.flat), order=o)) == its
             for o, its in found.items() if o)  # fmt: skip


def test_a_step_in_another_order_waits_as_long_as_its_links_take():
  """Twice the links halve the waiting time; the computation stays."""
  own, other = {"fsdp": 1.0, "tensor": 1.0}, {"fsdp": 2.0, "tensor": 0.5}
  found = a_plan(own, work=10.0, sent={"fsdp": 2.0, "tensor": 4.0})
  assert mesh_layouts.seconds(found, own, own) == pytest.approx(found["predicted_step_seconds"])
  assert mesh_layouts.seconds(found, own, other) == pytest.approx(10.0 + 4.0 + 2.0)
  # All but a second of fsdp is hidden, until it takes longer.
  beside = found | {"waiting_seconds": {"tensor": 4.0}, "exposed_seconds": 4.0, "predicted_step_seconds": 14.0}
  assert mesh_layouts.seconds(beside, own, other) == pytest.approx(10.0 + 2.0)
  assert mesh_layouts.seconds(beside, own, other | {"fsdp": 8.0}) == pytest.approx(16.0 + 2.0)
  # Computation hides 3 of tensor's 4 seconds, in any layout.
  partly = found | {"waiting_seconds": {"tensor": 1.0}, "exposed_seconds": 1.0, "predicted_step_seconds": 11.0}
  assert mesh_layouts.seconds(partly, own, own) == pytest.approx(11.0)
  assert mesh_layouts.seconds(partly, own, own | {"tensor": 0.5}) == pytest.approx(10.0)
  assert mesh_layouts.seconds(partly, own, own | {"tensor": 2.0}) == pytest.approx(10.0 + 8.0 - 3.0)
  # Host transfers do not become shorter.
  assert mesh_layouts.seconds(found | {"bound": "host"}, own, other) == found["predicted_step_seconds"]


def test_the_axis_that_sends_most_is_given_the_neighbours():
  """If fsdp sends all, fsdp; if tensor does, the default layout is the best."""
  one = mesh(_V5E, 8, 8, fsdp=8, tensor=8)
  own = mesh_layouts.speeds(one)
  best = mesh_layouts.promising(a_plan(own, work=1.0, sent={"fsdp": 100e9}), one, gain=0.01)
  assert best[0][0].startswith("fsdp:")
  assert mesh_layouts.promising(a_plan(own, work=1.0, sent={"tensor": 100e9}), one, gain=0.01) == []
  # A hundredth of the step is not worth a compilation.
  assert mesh_layouts.promising(a_plan(own, work=1000.0, sent={"fsdp": 100e9}), one, gain=0.01) == []


def test_the_search_tries_orders_of_the_best(monkeypatch):
  """For the fastest candidate that fits, with its flags; a plan without a prediction has no other layouts."""
  one = mesh(_V5E, 8, 8, fsdp=8, tensor=8)
  devices, own = list(one.devices.flat), mesh_layouts.speeds(one)
  sizes = (("data", 1), ("fsdp", 8), ("tensor", 8))
  candidates = {rows: autotune_candidates.Candidate(sizes, rows, 1, "none") for rows in (16, 32)}
  plans = a_plan(own, work=1.0, sent={"fsdp": 100e9}) | {"fits": True}
  results = [
    autotune.SearchResult(candidate, plans | {"tokens_per_second": float(rows)})
    for rows, candidate in candidates.items()
  ]
  found = autotune.refined(config(), results, devices)
  assert found and all(each.order and each.batch_size == 32 for each in found)
  assert f"--config.mesh.physical_layout={','.join(found[0].order)}" in found[0].flags()
  assert not found[0].is_slower(results[1].candidate, results[1].plan)
  results[1].plan["seconds_at_peak"] = None
  assert autotune.refined(config(), results, devices) == []


def test_the_search_tries_other_blocks_of_the_best(monkeypatch):
  """Before other layouts, if they save a hundredth of the step; the flags contain them."""
  one = mesh("TPU v6 lite", 8, 8, fsdp=64)
  devices, own = list(one.devices.flat), mesh_layouts.speeds(one)
  choice = dispatch.Choice("distance", "as the test says")
  monkeypatch.setattr(
    aot_compile, "attention_kernels", lambda *_: dict.fromkeys(("encoder", "decoder", "cross"), choice)
  )
  plan = a_plan(own, work=1.0, sent={"fsdp": 1.0}) | {"fits": True, "tokens_per_second": 1.0, "kernel_seconds": 0.5}
  best = autotune_candidates.Candidate((("data", 1), ("fsdp", 64), ("tensor", 1)), 64, 1, "none", attention_block=256)
  long = config(
    *("--config.data.inputs_length=4096", "--config.model.attention_block=256"),
    *("--config.model.head_dim=64", "--config.model.dtype=bfloat16"),
  )
  found, *_ = autotune.refined(long, [autotune.SearchResult(best, plan)], devices)
  assert found == dataclasses.replace(best, attention_block=1024)
  assert found.apply(long).model.attention_block == 1024
  assert "--config.model.attention_block=1024" in found.flags()
  seen = [autotune.SearchResult(best, plan)]
  tried = autotune.run(long, [found], lambda _: plan, where="blocks", max_compiles=1, seen=seen)
  assert [each.candidate for each in tried] == [found]
  assert autotune.refined(long, [autotune.SearchResult(best, plan | {"kernel_seconds": 0.01})], devices) == []
