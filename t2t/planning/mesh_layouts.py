"""Physical layouts of a mesh on a slice, and predictions of a compiled step's time with another layout.

The bytes sent along an axis hardly depend on the layout, but the number of links does.
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
  """Yields boxes for all axes except the last, which takes the rest; neighbours first."""
  if len(axes) < 2:
    yield ()
    return
  for box in accelerators.boxes(left, sizes[axes[0]]):
    remaining = tuple(side // part for side, part in zip(left, box, strict=True))
    for inner_boxes in _nested(remaining, axes[1:], sizes):
      yield (f"{axes[0]}:{sharding.box_text(box)}", *inner_boxes)


def speeds(mesh: jax.sharding.Mesh) -> dict[str, float]:
  """Returns seconds per byte that a chip sends, by mesh axes (single and combined, named as in reports)."""
  chip = accelerators.CHIPS[mesh.devices.flat[0].device_kind]
  split = [axis for axis, size in mesh.shape.items() if size > 1]
  groups = itertools.chain.from_iterable(itertools.combinations(split, n) for n in range(1, len(split) + 1))
  return {roofline.name(axes): accelerators.send_seconds(chip, mesh, axes, 1.0) for axes in groups}


def all_orders(mesh: jax.sharding.Mesh) -> dict[Order, dict[str, float]]:
  """Returns the layouts of a mesh with distinct link speeds -> `speeds`; empty for other devices than TPUs.

  The mesh's own layout is (), whether or not a config names it.
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
  """Returns the predicted time of a plan's step with another layout's links, by the rule of roofline.py.

  Args:
    plan: result of `plan.make_plan`, with a prediction.
    own_links: `speeds` of its mesh.
    other_links: `speeds` of the other layout.
  """
  if plan["bound"] in ("copies", "host"):  # independent of the layout
    return plan["predicted_step_seconds"]
  hidden = waits = 0.0
  for name, took in plan["seconds_at_peak"]["links"].items():
    then, waited = took * other_links[name] / own_links[name], plan["waiting_seconds"].get(name, 0.0)
    if waited:  # hidden time is limited by the computation beside it
      waits += max(0.0, then - (took - waited))
    else:
      hidden += then
  return max(plan["predicted_step_seconds"] - plan["exposed_seconds"], hidden) + waits


def promising(plan: Mapping[str, Any], mesh: jax.sharding.Mesh, *, gain: float) -> list[Order]:
  """Returns layouts with a shorter predicted step time than the plan's own, the fastest first.

  Args:
    plan: plan of the step, with a prediction.
    mesh: the mesh that it was compiled for.
    gain: fraction of the step that a layout must save to be worth a compilation.
  """
  order_speeds = all_orders(mesh)
  if len(order_speeds) < 2:
    return []
  took = {order: seconds(plan, order_speeds[()], its) for order, its in order_speeds.items()}
  worth = [order for order in took if took[order] < (1 - gain) * took[()]]
  return sorted(worth, key=took.get)
