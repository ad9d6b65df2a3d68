"""In which orders a mesh's axes may lie over a slice, and what another one would make of a step that was compiled.

Which numbers are sent along which axis hardly depends on the order; over how many links they go does.
"""

from collections.abc import Iterator, Mapping
import itertools
import math
from typing import Any

import jax

from t2t import accelerators, sharding
from t2t.planning import roofline

Order = tuple[str, ...]


def _nested(left: tuple[int, ...], axes: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[Order]:
  """Boxes for all axes but the last, which has what they leave; neighbours first."""
  if len(axes) < 2:
    yield ()
    return
  for box in accelerators.boxes(left, sizes[axes[0]]):
    remaining = tuple(side // part for side, part in zip(left, box, strict=True))
    for inner_boxes in _nested(remaining, axes[1:], sizes):
      yield (f"{axes[0]}:{sharding.box_text(box)}", *inner_boxes)


def speeds(mesh: jax.sharding.Mesh) -> dict[str, float]:
  """Axes of a mesh, alone and together as reports name them -> seconds for a byte that a chip sends along them."""
  chip = accelerators.CHIPS[mesh.devices.flat[0].device_kind]
  split = [axis for axis, size in mesh.shape.items() if size > 1]
  groups = itertools.chain.from_iterable(itertools.combinations(split, n) for n in range(1, len(split) + 1))
  return {roofline.name(axes): accelerators.send_seconds(chip, mesh, axes, 1.0) for axes in groups}


def all_orders(mesh: jax.sharding.Mesh) -> dict[Order, dict[str, float]]:
  """The orders of a mesh in which some axis has other links than in each of the others -> `speeds`; none but for TPUs.

  `mesh`'s own order is (), whether or not a config names it.
  """
  devices = list(mesh.devices[0].flat if "dcn_data" in mesh.shape else mesh.devices.flat)
  sides, sizes = accelerators.sides(devices), dict(mesh.shape)
  if sides is None:
    return {}
  known_orders = {(): speeds(mesh)}
  axes = [axis for axis, size in sizes.items() if size > 1 and axis != "dcn_data"]
  for permuted in itertools.permutations(reversed(axes)):
    for order in _nested(sides, permuted, sizes):
      if order:
        its = speeds(sharding.make_mesh(sizes, devices=list(mesh.devices.flat), order=order))
        is_new = all(any(not math.isclose(its[name], links[name]) for name in its) for links in known_orders.values())
        known_orders |= {order: its} if is_new else {}
  return known_orders


def seconds(plan: Mapping[str, Any], own_links: Mapping[str, float], other_links: Mapping[str, float]) -> float:
  """What the step of a plan would take if its collectives had another order's links, by the rule of roofline.py.

  Args:
    plan: of `plan.make_plan`, with a prediction.
    own_links: `speeds` of its mesh.
    other_links: those of the mesh in another order.
  """
  if plan["bound"] in ("copies", "host"):  # which take as long in any order
    return plan["predicted_step_seconds"]
  hidden = waits = 0.0
  for name, took in plan["seconds_at_peak"]["links"].items():
    then, waited = took * other_links[name] / own_links[name], plan["waiting_seconds"].get(name, 0.0)
    if waited:  # behind what is computed no more is hidden than it is
      waits += max(0.0, then - (took - waited))
    else:
      hidden += then
  return max(plan["predicted_step_seconds"] - plan["exposed_seconds"], hidden) + waits


def promising(plan: Mapping[str, Any], mesh: jax.sharding.Mesh, *, gain: float) -> list[Order]:
  """Orders in which a step should take less time than in its own, the fastest first.

  Args:
    plan: of the step, with a prediction.
    mesh: that it was compiled for.
    gain: share of the step that an order must save to be worth a compilation.
  """
  order_speeds = all_orders(mesh)
  if len(order_speeds) < 2:
    return []
  took = {order: seconds(plan, order_speeds[()], its) for order, its in order_speeds.items()}
  worth = [order for order in took if took[order] < (1 - gain) * took[()]]
  return sorted(worth, key=took.get)
