"""How arrays lie on the mesh: the only file that knows which logical axis goes to which mesh axis.

Models, losses and decoding name axes ("batch", "embed", "mlp", ...) and never devices.  One table with two columns says
what a name means: for activations (`shard`) and for parameters (`param_shardings`).
"""

from collections.abc import Callable, Mapping, Sequence
import contextvars
import functools
import math
from typing import Any

from flax import nnx
import jax
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from t2t import UserError, accelerators

# From the slowest links to the fastest: between slices, within a slice, between neighbours.
MESH_AXES = ("dcn_data", "data", "fsdp", "sequence", "tensor")
# Axes that a mesh has only where they have a size.
_OPTIONAL = ("dcn_data", "sequence")

_COPIES = ("dcn_data", "data")  # axes along which parameters are copied
_BATCH, _PARAMETER = (*_COPIES, "fsdp"), ("fsdp", "sequence")

# logical axis -> (mesh axes of an activation, mesh axes of a parameter)
RULES: dict[str, tuple[str | tuple[str, ...] | None, str | tuple[str, ...] | None]] = {
  "batch": (_BATCH, None),
  "copies": (_COPIES, None),
  "rows": ("fsdp", None),  # those of one copy
  "length": ("sequence", None),
  "tokens": ((*_BATCH, "sequence"), None),
  "embed": (None, _PARAMETER),
  "residual": ("tensor", None),  # the embed axis of the sum that layers add to, see `split_residual`
  "heads": ("tensor", "tensor"),
  "mlp": ("tensor", "tensor"),
  "vocab": ("tensor", "tensor"),
  "kv": (None, None),
  "layers": (None, None),
  "buckets": (None, None),
  "positions": (None, None),
  "segments": (None, None),
  "factor": (None, _PARAMETER),
  "rank": (None, None),
  # Of an update that is made matrix by matrix: whole ones over a slice's devices, and before and after by their rows.
  "matrices": ((*_PARAMETER, "tensor", "data"), None),
  "matrix_rows": (_PARAMETER, None),
}


def mesh_sizes(shape: Mapping[str, int], num_devices: int) -> dict[str, int]:
  """The size of every mesh axis, with the one -1 filled in; dcn_data and sequence only where they are more than 1.

  Raises:
    UserError: unknown axis, more than one -1, or sizes whose product is not `num_devices`.
  """
  unknown = sorted(set(shape) - set(MESH_AXES))
  if unknown:
    raise UserError(f"config.mesh.{unknown[0]}: no such mesh axis; the axes are {', '.join(MESH_AXES)}")
  sizes = {axis: int(shape.get(axis, 1)) for axis in MESH_AXES}
  wrong = {axis: size for axis, size in sizes.items() if size < 1 and size != -1}
  if wrong:
    axis, size = next(iter(wrong.items()))
    raise UserError(f"config.mesh.{axis}={size}: give a positive size, or -1 for all devices that are left")
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise UserError(f"config.mesh: {' and '.join(free)} are both -1; only one axis can take the devices that are left")
  fixed = math.prod(size for size in sizes.values() if size != -1)
  text = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if axis not in _OPTIONAL or size != 1)
  if free:
    if num_devices % fixed:
      divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
      raise UserError(
        f"config.mesh: {text} does not fit {num_devices} device(s): {fixed} does not divide {num_devices}; the sizes"
        f" beside {free[0]}, which takes the rest, must multiply to {' or '.join(map(str, divisors))}"
      )
    sizes[free[0]] = num_devices // fixed
  elif fixed != num_devices:
    raise UserError(
      f"config.mesh: {text} makes {fixed} device(s), but there are {num_devices};"
      " set one axis to -1 to use all that are left, for example --config.mesh.fsdp=-1"
    )
  return {axis: size for axis, size in sizes.items() if axis not in _OPTIONAL or size != 1}


def make_mesh(
  shape: Mapping[str, int], *, devices: list[jax.Device] | None = None, order: Sequence[str] = ()
) -> jax.sharding.Mesh:
  """A mesh with axes data, fsdp and tensor, and where they are asked for dcn_data and sequence, over all devices.

  dcn_data goes from slice to slice (or, where there are no slices, from host to host): over the network of the data
  centre, where the gradients of a step are summed and nothing else.

  Args:
    shape: size of each axis; an axis left out is 1, and one may be -1 (all devices that are left).
    devices: defaults to `jax.devices()`; devices of an ahead-of-time topology work too.
    order: how it lies on a slice, "tensor:2x4": tensor covers 2 x 4 neighbours; then "fsdp:4x2": fsdp 4 x 2 such
      boxes.  Axes that are not named share what is left, row by row; (): see `_placed`.

  Raises:
    UserError: see `mesh_sizes`; or the slices are not as many as `dcn_data`; or the slice cannot be covered so.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = mesh_sizes(shape, len(devices))
  axis_types = (jax.sharding.AxisType.Auto,) * len(sizes)
  granules, wanted = _granules(devices), sizes.get("dcn_data", 1)
  has_slices = len({_slice(device) for device in devices}) > 1
  if wanted != len(granules) and (has_slices or (wanted > 1 and len(granules) > 1)):
    raise UserError(
      f"config.mesh.dcn_data={wanted}, but the devices are {len(granules)} {'slices' if has_slices else 'hosts'};"
      f" set --config.mesh.dcn_data={len(granules)}"
    )
  if wanted == 1 or len(granules) == 1:
    return jax.sharding.Mesh(_placed(sizes, devices, order), tuple(sizes), axis_types=axis_types)
  # Each slice in the order that suits its own links, one slice after another.
  inner = {axis: size for axis, size in sizes.items() if axis != "dcn_data"}
  return jax.sharding.Mesh(np.stack([_placed(inner, g, order) for g in granules]), tuple(sizes), axis_types=axis_types)


def _placed(sizes: Mapping[str, int], devices: list[jax.Device], order: Sequence[str]) -> np.ndarray:
  """A slice's devices by their place in a mesh, [sizes]: as JAX lays them, but a tensor axis on rings.

  It is waited for in every layer, and its devices hold the same rows of a batch, which few hosts should share.
  """
  if order:
    boxes = _boxes(sizes, devices, order)
    other_axes = [axis for axis in sizes if axis not in boxes]
    axes = [*other_axes, *reversed(boxes)]
    placed = accelerators.in_order(devices, list(boxes.values())).reshape([sizes[axis] for axis in axes])
    return placed.transpose([axes.index(axis) for axis in sizes])
  blocks = accelerators.in_blocks(devices, sizes["tensor"])
  if blocks is not None:
    return blocks.reshape(tuple(sizes.values()))
  return mesh_utils.create_device_mesh(tuple(sizes.values()), devices, allow_split_physical_axes=True)


def box_text(box: Sequence[int]) -> str:
  """Returns a box as `config.mesh.physical_layout` has it: (2, 4, 1) -> "2x4"."""
  last = max([i for i, part in enumerate(box) if part > 1], default=0)
  return "x".join(map(str, box[: max(last + 1, 2)]))


def _boxes(sizes: Mapping[str, int], devices: list[jax.Device], order: Sequence[str]) -> dict[str, tuple[int, ...]]:
  """Axis -> chips along each side, in the order of `config.mesh.physical_layout`."""
  text, sides = f"config.mesh.physical_layout={','.join(order)}", accelerators.sides(devices)
  if sides is None:
    raise UserError(f"{text}: only for whole slices of TPUs with one device on a chip, which these devices are not")
  left, boxes = list(sides), {}
  for entry in order:
    axis, _, box = entry.partition(":")
    parts = [int(part) if part.isdecimal() else 0 for part in box.split("x")]
    parts += [1] * (len(sides) - len(parts))  # a slice of two sides has a third of one chip
    if axis not in sizes or axis in boxes:
      known = f"is none of {', '.join(sizes)}"
      raise UserError(f"{text}: {axis!r} {'is in it twice' if axis in boxes else known}")
    if (
      len(parts) != len(sides)
      or math.prod(parts) != sizes[axis]
      or any(not part or side % part for side, part in zip(left, parts, strict=True))
    ):
      works = ", ".join(box_text(shape) for shape in accelerators.boxes(left, sizes[axis]))
      raise UserError(
        f"{text}: {entry} is no box of {axis}'s {sizes[axis]} device(s) in the {box_text(left)} that are left of"
        f" a slice of {box_text(sides)}; {f'there are {works}' if works else 'no box has so many'}"
      )
    boxes[axis] = tuple(parts)
    left = [side // part for side, part in zip(left, parts, strict=True)]
  return boxes


def _slice(device: jax.Device) -> int:
  return getattr(device, "slice_index", 0)


def _granules(devices: list[jax.Device]) -> list[list[jax.Device]]:
  """The devices of each slice; where there are no slices, of each host."""
  has_slices = len({_slice(device) for device in devices}) > 1
  groups: dict[int, list[jax.Device]] = {}
  for device in devices:
    groups.setdefault(_slice(device) if has_slices else device.process_index, []).append(device)
  return [groups[index] for index in sorted(groups)]


def _spec(axes: tuple[str | None, ...], column: int, *, used: Mapping[str, int]) -> PartitionSpec:
  entries = []
  for axis in axes:
    if axis == "any":
      entries.append(PartitionSpec.UNCONSTRAINED)
      continue
    names = None if axis is None else RULES[axis][column]
    names = (names,) if isinstance(names, str) else names
    names = tuple(name for name in names or () if name in used)
    entries.append(names if len(names) > 1 else (names[0] if names else None))
  return PartitionSpec(*entries)


# Whether what is traced sees the rows of one copy of the parameters alone; see `by_copy`.
_in_a_copy = contextvars.ContextVar("in_a_copy", default=False)


def _free() -> dict[str, int]:
  """Sizes of the axes of the mesh that is set, without those that `by_copy` has split the batch along already."""
  shape = jax.sharding.get_abstract_mesh().shape
  return {axis: size for axis, size in shape.items() if not (_in_a_copy.get() and axis in _COPIES)}


def _constrain(x: jax.Array, axes: tuple[str | None, ...], column: int) -> jax.Array:
  used = _free()
  if not used:
    return x
  if len(axes) != x.ndim:
    raise ValueError(f"shard: {len(axes)} axis names {axes} for an array of shape {x.shape}")
  # A single token that is being decoded stays whole, as does a width that the devices do not divide.
  axes = tuple(
    None if axis in ("length", "residual") and size % num_shards(axis) else axis
    for axis, size in zip(axes, x.shape, strict=True)
  )
  return jax.lax.with_sharding_constraint(x, _spec(axes, column, used=used))


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrains an activation by the logical name of each of its dimensions; without a mesh it does nothing.

  None is a dimension that no device splits, "any" one that the compiler may split as it likes.
  """
  return _constrain(x, axes, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _exchange(x: jax.Array, there: tuple, back: tuple) -> jax.Array:
  """`x` constrained by names and their column of the table, and its gradient by others: that of `shard` has its own."""
  return _constrain(x, *there)


def _exchange_forward(x, there, back):
  return _constrain(x, *there), None


def _exchange_backward(there, back, _, cotangent):
  return (_constrain(cotangent, *back),)


_exchange.defvjp(_exchange_forward, _exchange_backward)


def gather(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  """A parameter as activations meet it: gathered over the axes that only parameters are split along.

  Its gradient goes straight back into the parameter's shards, by a reduce-scatter; the transpose of `shard` would have
  it summed on every device first.
  """
  return _exchange(x, (axes, 0), (axes, 1))


_WHOLE, _SPLIT = (("batch", "length", "embed"), 0), (("batch", "length", "residual"), 0)


def split_residual(x: jax.Array) -> jax.Array:
  """[batch, length, embed] as the residual sum lies: each device of a tensor axis has a part of the features.

  What a product that is split along that axis gives is reduce-scattered into it, and norms, dropout and sums are
  computed once, not by each of the axis's devices, which keep only their part.  Source: Korthikanti et al. 2022,
  section 4.2.2, who split positions; features divide whatever a sequence's length.
  """
  return _exchange(x, _SPLIT, _WHOLE) if num_shards("residual") > 1 else shard(x, *_WHOLE[0])


def join_residual(x: jax.Array) -> jax.Array:
  """The same, as a product reads it that is split along a tensor axis: all features on each of its devices."""
  return _exchange(x, _WHOLE, _SPLIT) if num_shards("residual") > 1 else x


def platform() -> str:
  """What the program is made for, "cpu", "gpu" or "tpu": the devices of the mesh that is set, or else those here."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def is_alone() -> bool:
  """Whether the program is made for one device: on the mesh that is set, or on none."""
  return jax.sharding.get_abstract_mesh().size <= 1


def device_kind() -> str:
  """`jax.Device.device_kind` of what the program is made for, as `platform` has it."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return (jax.devices()[0] if device is None else device).device_kind


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
  """How a batch, [batch, ...], lies on the mesh."""
  return NamedSharding(mesh, _spec(("batch",), 0, used=mesh.shape))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """The same value on every device."""
  return NamedSharding(mesh, PartitionSpec())


def mesh_of(x: jax.Array) -> jax.sharding.Mesh:
  """Returns the mesh that an array, or the shape of one with a sharding, lies on."""
  placed: Any = x.sharding  # a NamedSharding, of which JAX's type says nothing
  return placed.mesh


def logical_axes(path: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
  """The axis names of a parameter; a stacked layer has one more dimension than its module declared."""
  if len(shape) == len(axes) + 1:
    return ("layers", *axes)
  if len(shape) != len(axes):
    raise ValueError(f"parameter {path} has shape {shape}, but axes {axes}")
  return tuple(axes)


def param_shardings(params: nnx.State, mesh: jax.sharding.Mesh) -> dict:
  """A sharding for each parameter, from its `axes` metadata, as a nested dict like `nnx.to_pure_dict(params)`.

  Raises:
    UserError: a dimension that its mesh axes do not divide; names the parameter, the axis and sizes that would do.
  """

  def param_sharding(path, variable: nnx.Variable) -> NamedSharding:
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    shape = variable.get_value().shape
    axes = logical_axes(name, shape, variable.get_metadata()["axes"])
    spec = _spec(axes, 1, used=mesh.shape)
    for axis, size, entry in zip(axes, shape, spec, strict=True):
      names = (entry,) if isinstance(entry, str) else entry or ()
      parts = math.prod(mesh.shape[mesh_axis] for mesh_axis in names)
      if size % parts:
        works = [n for n in range(1, int(np.prod(list(mesh.shape.values()))) + 1) if size % n == 0]
        raise UserError(
          f"config.mesh.{'*'.join(names)}={parts} does not divide {axis}={size} (parameter {name} {shape});"
          f" sizes that would do: {works}"
        )
    return NamedSharding(mesh, spec)

  is_variable = lambda x: isinstance(x, nnx.Variable)
  return nnx.to_pure_dict(jax.tree_util.tree_map_with_path(param_sharding, params, is_leaf=is_variable))


def num_shards(axis: str, mesh: jax.sharding.Mesh | None = None) -> int:
  """In how many parts an activation is split along a logical axis, on `mesh` or else the one that is set; or 1."""
  shape, names = _free() if mesh is None else mesh.shape, RULES[axis][0]
  return math.prod(shape.get(name, 1) for name in ((names,) if isinstance(names, str) else names or ()))


def per_device(
  function: Callable[..., jax.Array], in_axes: tuple[tuple[str | None, ...], ...], out_axes: tuple[str | None, ...]
) -> Callable[..., jax.Array]:
  """`function` run by every device on its own part of the activations: for what the compiler cannot split, as kernels.

  Args:
    function: of arrays (or None), positional; sees a device's part, and what it returns is a device's part.
    in_axes: logical axes of each argument; the mesh must divide these dimensions (see `num_shards`).
    out_axes: logical axes of the result.
  """
  used = _free()
  if not used:
    return function
  in_specs, out_specs = tuple(_spec(axes, 0, used=used) for axes in in_axes), _spec(out_axes, 0, used=used)
  # Not check_vma: the kernels do not say along which mesh axes their results vary.
  return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def num_copies() -> int:
  """How often the mesh that is set holds the parameters."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape.get(axis, 1) for axis in _COPIES)


def by_copy(function: Callable[..., Any]) -> Callable[..., Any]:
  """`function` of each copy of the parameters by itself, as `jax.vmap`: nothing is summed over the copies.

  Left to the compiler, gradients are, wherever they come up: in each of the microbatches, where once would do.

  Args:
    function: (parameters, rows, key), of which rows and keys have a leading axis of `num_copies()` here, and the
      result has one.
  """

  def run_copy(*args):
    token = _in_a_copy.set(True)
    try:
      return function(*args)
    finally:
      _in_a_copy.reset(token)

  return jax.vmap(run_copy, in_axes=(None, 0, 0), axis_name="copies", spmd_axis_name=_copy_axes())


def _copy_axes() -> tuple[str, ...]:
  shape = jax.sharding.get_abstract_mesh().shape
  return tuple(axis for axis in _COPIES if axis in shape)


def of_each_copy(placed: NamedSharding) -> NamedSharding:
  """Of an array with a leading axis of `num_copies()`, each of which lies as `placed`."""
  axes = tuple(axis for axis in _COPIES if axis in placed.mesh.shape)
  return NamedSharding(placed.mesh, PartitionSpec(axes, *placed.spec))


def most_of_copies(x: jax.Array) -> jax.Array:
  """The largest of all copies, inside of `by_copy`; elsewhere `x`."""
  return jax.lax.pmax(x, "copies") if _in_a_copy.get() else x
