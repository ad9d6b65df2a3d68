"""Sharding of arrays on the mesh: the only file that maps logical axes to mesh axes.

Models, losses and decoding name logical axes ("batch", "embed", "mlp", ...) and never devices. One table has two
columns: mesh axes of activations (`shard`) and of parameters (`param_shardings`).
"""

from collections.abc import Callable, Mapping, Sequence
import contextvars
import dataclasses
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
MESH_AXES = ("dcn_data", "stage", "data", "fsdp", "expert", "sequence", "tensor")
# Mesh axes that exist only with a size other than 1.
_OPTIONAL = ("dcn_data", "stage", "expert", "sequence")

_COPIES = ("dcn_data", "data")  # axes along which parameters are replicated
_ROWS = (*_COPIES, "fsdp")
# Outside of a pipeline its devices share the rows of a batch. A parameter with an axis of layers uses "stage" for it.
_MICROBATCH, _PARAMETER = (*_ROWS, "expert"), ("fsdp", "expert", "sequence", "stage")
_BATCH = (*_MICROBATCH, "stage")

# logical axis -> (mesh axes of an activation, mesh axes of a parameter)
RULES: dict[str, tuple[str | tuple[str, ...] | None, str | tuple[str, ...] | None]] = {
  "batch": (_BATCH, None),
  "copies": (_COPIES, None),
  "rows": (("fsdp", "expert", "stage"), None),  # rows of one copy
  "microbatch": (_MICROBATCH, None),  # rows in a pipeline, of which each stage has its own
  "stages": ("stage", None),  # the stages of a pipeline, see `by_stage`
  "experts": ("expert", "expert"),  # an expert's matrices are on its devices; other axes of it are not split there
  "expert_rows": ((*_ROWS, "stage"), None),  # rows at the devices of an expert, see `models.moe`
  "routes": (None, None),
  "length": ("sequence", None),
  "tokens": ((*_BATCH, "sequence"), None),
  "embed": (None, _PARAMETER),
  "residual": ("tensor", None),  # embed axis of the residual stream, see `split_residual`
  "heads": ("tensor", "tensor"),
  "mlp": ("tensor", "tensor"),
  "vocab": ("tensor", "tensor"),
  "kv": (None, None),
  "layers": (None, "stage"),
  "buckets": (None, None),
  "positions": (None, None),
  "segments": (None, None),
  "factor": (None, _PARAMETER),
  "rank": (None, None),
  # Axes of updates that work on whole matrices: matrices are split over a slice's devices during the update, and by
  # their rows before and after it.
  "matrices": ((*_PARAMETER, "tensor", "data"), None),
  "matrix_rows": (_PARAMETER, None),
}


def mesh_sizes(shape: Mapping[str, int], num_devices: int) -> dict[str, int]:
  """Returns the size of every mesh axis, with -1 filled in; optional axes only if their size is not 1.

  Raises:
    UserError: unknown axis, more than one -1, or sizes with another product than `num_devices`.
  """
  unknown = sorted(set(shape) - set(MESH_AXES))
  if unknown:
    raise UserError(f"config.mesh.{unknown[0]}: unknown mesh axis. The axes are {', '.join(MESH_AXES)}.")
  sizes = {axis: int(shape.get(axis, 1)) for axis in MESH_AXES}
  wrong = {axis: size for axis, size in sizes.items() if size < 1 and size != -1}
  if wrong:
    axis, size = next(iter(wrong.items()))
    raise UserError(
      f"config.mesh.{axis}={size}: invalid size. Give a positive number, or -1 for all remaining devices."
    )
  free = [axis for axis, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise UserError(
      f"config.mesh: {' and '.join(free)} are -1, but only one axis can take the remaining devices. Set the "
      "other axes to a number."
    )
  fixed = math.prod(size for size in sizes.values() if size != -1)
  text = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if axis not in _OPTIONAL or size != 1)
  if free:
    if num_devices % fixed:
      divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
      raise UserError(
        f"config.mesh: {text} does not fit {num_devices} device(s), because {fixed} does not divide {num_devices}. "
        f"The product of all sizes except {free[0]} must be {' or '.join(map(str, divisors))}."
      )
    sizes[free[0]] = num_devices // fixed
  elif fixed != num_devices:
    raise UserError(
      f"config.mesh: {text} needs {fixed} device(s), but there are {num_devices}. Set one axis to -1 for all "
      "remaining devices, for example --config.mesh.fsdp=-1."
    )
  return {axis: size for axis, size in sizes.items() if axis not in _OPTIONAL or size != 1}


def make_mesh(
  shape: Mapping[str, int], *, devices: list[jax.Device] | None = None, order: Sequence[str] = ()
) -> jax.sharding.Mesh:
  """Returns a mesh over all devices with axes data, fsdp and tensor, and other axes if their size is not 1.

  dcn_data runs across slices (without slices, across hosts), over the data-centre network. Only the gradients of a step
  are summed along it.

  Args:
    shape: size of each axis; a missing axis is 1, and one axis may be -1 (all remaining devices).
    devices: defaults to `jax.devices()`; devices of an ahead-of-time topology work, too.
    order: layout on a slice: "tensor:2x4" puts tensor on 2 x 4 neighbours; a following "fsdp:4x2" puts fsdp on 4 x 2
      such boxes. The other axes share the rest, row by row; (): see `_placed`.

  Raises:
    UserError: see `mesh_sizes`; or the number of slices is not `dcn_data`; or `order` does not fit the slice.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = mesh_sizes(shape, len(devices))
  axis_types = (jax.sharding.AxisType.Auto,) * len(sizes)
  granules, wanted = _granules(devices), sizes.get("dcn_data", 1)
  has_slices = len({_slice(device) for device in devices}) > 1
  if wanted != len(granules) and (has_slices or (wanted > 1 and len(granules) > 1)):
    raise UserError(
      f"config.mesh.dcn_data={wanted}, but the devices form {len(granules)} "
      f"{'slices' if has_slices else 'hosts'}. Set --config.mesh.dcn_data={len(granules)}."
    )
  if wanted == 1 or len(granules) == 1:
    return jax.sharding.Mesh(_placed(sizes, devices, order), tuple(sizes), axis_types=axis_types)
  # Each slice is ordered by its own links; the slices follow one after another.
  inner = {axis: size for axis, size in sizes.items() if axis != "dcn_data"}
  return jax.sharding.Mesh(np.stack([_placed(inner, g, order) for g in granules]), tuple(sizes), axis_types=axis_types)


def _placed(sizes: Mapping[str, int], devices: list[jax.Device], order: Sequence[str]) -> np.ndarray:
  """Returns a slice's devices by mesh position, [sizes]: JAX's layout, but with the tensor axis on rings.

  Every layer waits for communication on the tensor axis. Its devices read the same rows of a batch, so few hosts should
  share them.
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
  """Returns a box in the syntax of `config.mesh.physical_layout`: (2, 4, 1) -> "2x4"."""
  last = max([i for i, part in enumerate(box) if part > 1], default=0)
  return "x".join(map(str, box[: max(last + 1, 2)]))


def _boxes(sizes: Mapping[str, int], devices: list[jax.Device], order: Sequence[str]) -> dict[str, tuple[int, ...]]:
  """Returns the chips along each side by axis, in the order of `config.mesh.physical_layout`."""
  text, sides = f"config.mesh.physical_layout={','.join(order)}", accelerators.sides(devices)
  if sides is None:
    raise UserError(
      f"{text} needs whole TPU slices with one device per chip, but these devices are {devices[0].device_kind!r} "
      "or an incomplete slice. Remove config.mesh.physical_layout."
    )
  left, boxes = list(sides), {}
  for entry in order:
    axis, _, box = entry.partition(":")
    parts = [int(part) if part.isdecimal() else 0 for part in box.split("x")]
    parts += [1] * (len(sides) - len(parts))  # a two-dimensional slice has a third side of one chip
    if axis not in sizes or axis in boxes:
      known = f"is not an axis. Known axes: {', '.join(sizes)}"
      raise UserError(f"{text}: {axis!r} {'occurs twice. Remove one entry.' if axis in boxes else known}")
    if (
      len(parts) != len(sides)
      or math.prod(parts) != sizes[axis]
      or any(not part or side % part for side, part in zip(left, parts, strict=True))
    ):
      works = ", ".join(box_text(shape) for shape in accelerators.boxes(left, sizes[axis]))
      raise UserError(
        f"{text}: {entry} must be a box of {sizes[axis]} device(s) with sides that divide the remaining "
        f"{box_text(left)} of the slice {box_text(sides)}. "
        f"{f'Possible boxes: {works}' if works else 'No box has this size.'}"
      )
    boxes[axis] = tuple(parts)
    left = [side // part for side, part in zip(left, parts, strict=True)]
  return boxes


def _slice(device: jax.Device) -> int:
  return getattr(device, "slice_index", 0)


def _granules(devices: list[jax.Device]) -> list[list[jax.Device]]:
  """Returns the devices of each slice; without slices, of each host."""
  has_slices = len({_slice(device) for device in devices}) > 1
  groups: dict[int, list[jax.Device]] = {}
  for device in devices:
    groups.setdefault(_slice(device) if has_slices else device.process_index, []).append(device)
  return [groups[index] for index in sorted(groups)]


def _spec(axes: tuple[str | None, ...], column: int, *, used: Mapping[str, int]) -> PartitionSpec:
  """Returns the mesh axes among `used` of each dimension; the first dimension with a mesh axis has it."""
  entries: list[Any] = []
  taken: set[str] = set()
  for axis in axes:
    if axis == "any":
      entries.append(PartitionSpec.UNCONSTRAINED)
      continue
    names = None if axis is None else RULES[axis][column]
    names = (names,) if isinstance(names, str) else names
    # An array is split once along a mesh axis, for its first logical axis with it.
    names = tuple(name for name in names or () if name in used and name not in taken)
    taken.update(names)
    entries.append(names if len(names) > 1 else (names[0] if names else None))
  return PartitionSpec(*entries)


# Mesh axes of enclosing maps: `by_copy` and `by_stage` trace a function of one copy's rows, or of one stage.
_mapped: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("mapped", default=())


def _free(mapped: tuple[str, ...] | None = None) -> dict[str, int]:
  """Returns the sizes of the current mesh's axes without those of enclosing maps."""
  mapped = _mapped.get() if mapped is None else mapped
  return {axis: size for axis, size in jax.sharding.get_abstract_mesh().shape.items() if axis not in mapped}


def _map(function: Callable[..., Any], axes: tuple[str, ...], **options: Any) -> Callable[..., Any]:
  """Returns `jax.vmap(function)` whose mapped dimension is split along these axes of the mesh."""

  def run(*args):
    token = _mapped.set((*_mapped.get(), *axes))
    try:
      return function(*args)
    finally:
      _mapped.reset(token)

  there = tuple(axis for axis in axes if axis in jax.sharding.get_abstract_mesh().shape)
  return jax.vmap(run, spmd_axis_name=there or None, **options)


def _constrain(
  x: jax.Array, axes: tuple[str | None, ...], column: int, mapped: tuple[str, ...] | None = None
) -> jax.Array:
  used = _free(mapped)
  if not used:
    return x
  if len(axes) != x.ndim:
    raise ValueError(f"shard: {len(axes)} axis names {axes} do not match an array of shape {x.shape}")
  # A single token in decoding stays whole, as does a width that the devices do not divide.
  axes = tuple(
    None if axis in ("length", "residual") and size % _shards(axis, used) else axis
    for axis, size in zip(axes, x.shape, strict=True)
  )
  return jax.lax.with_sharding_constraint(x, _spec(axes, column, used=used))


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrains the sharding of an activation by the logical name of each dimension; does nothing without a mesh.

  None is a dimension that is not split, "any" a dimension that the compiler may split.
  """
  return _constrain(x, axes, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _exchange(x: jax.Array, there: tuple, back: tuple, mapped: tuple[str, ...]) -> jax.Array:
  """Constrains `x` by `there` and its gradient by `back`, pairs of axis names and a column of RULES.

  `mapped` is the value of `_mapped` at the call, because JAX traces both rules later.
  """
  return _constrain(x, *there, mapped)


def _exchange_forward(x, there, back, mapped):
  return _constrain(x, *there, mapped), None


def _exchange_backward(there, back, mapped, _, cotangent):
  return (_constrain(cotangent, *back, mapped),)


_exchange.defvjp(_exchange_forward, _exchange_backward)


def gather(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
  """Gathers a parameter over the axes along which only parameters are split.

  The gradient goes directly into the parameter's shards, by a reduce-scatter. The transpose of `shard` would first
  all-reduce it on every device.
  """
  return _exchange(x, (axes, 0), (axes, 1), _mapped.get())


def gather_exchanged(x: jax.Array, axes: tuple[str | None, str | None]) -> jax.Array:
  """Gathers a matrix, [in, out], before products of which XLA would exchange rows between devices.

  Found with jax 0.10.2 in both partitioners: with several copies of the parameters, and `fsdp` and `tensor` of the same
  size, products with a matrix split along both, into features split over tensor, are wrong for few rows. Such products
  are in the forward pass if the matrix is split as (tensor, fsdp), otherwise in the backward pass.
  """
  shape = jax.sharding.get_abstract_mesh().shape
  first, last = axes
  if first is None or last is None or num_copies() == 1 or num_shards(first) == num_shards(last) == 1:
    return x
  return gather(x, (first, last)) if shape.get("fsdp") == shape.get("tensor") else x


_WHOLE, _SPLIT = (("batch", "length", "embed"), 0), (("batch", "length", "residual"), 0)


def split_residual(x: jax.Array) -> jax.Array:
  """Splits the residual stream, [batch, length, embed], by features over the devices of the tensor axis.

  Products that are split along the tensor axis are reduce-scattered into it. Norms, dropout and sums are then computed
  once, instead of on each of the axis's devices. Source: Korthikanti et al. 2022, section 4.2.2, which splits
  positions; features divide evenly at any sequence length.
  """
  return _exchange(x, _SPLIT, _WHOLE, _mapped.get()) if num_shards("residual") > 1 else shard(x, *_WHOLE[0])


def join_residual(x: jax.Array) -> jax.Array:
  """Gathers all features of the residual stream on each device, for products that are split along the tensor axis."""
  return _exchange(x, _WHOLE, _SPLIT, _mapped.get()) if num_shards("residual") > 1 else x


def platform() -> str:
  """Returns the target platform, "cpu", "gpu" or "tpu": of the current mesh, or else of the attached devices."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def is_alone() -> bool:
  """Returns True if the program targets one device: the current mesh has one device, or no mesh is set."""
  return jax.sharding.get_abstract_mesh().size <= 1


def device_kind() -> str:
  """Returns the `jax.Device.device_kind` of the target, see `platform`."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return (jax.devices()[0] if device is None else device).device_kind


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Returns the sharding of a batch, [batch, ...]."""
  return NamedSharding(mesh, _spec(("batch",), 0, used=mesh.shape))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
  """Returns the sharding with the same value on every device."""
  return NamedSharding(mesh, PartitionSpec())


def mesh_of(x: jax.Array) -> jax.sharding.Mesh:
  """Returns the mesh of an array, or of a shape with a sharding."""
  placed: Any = x.sharding  # NamedSharding, which JAX's type does not show
  return placed.mesh


def logical_axes(path: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the axis names of a parameter; a stacked layer has one more dimension than its module declares."""
  if len(shape) == len(axes) + 1:
    return ("layers", *axes)
  if len(shape) != len(axes):
    raise ValueError(f"parameter {path} has the shape {shape}, but {len(axes)} axis names: {axes}")
  return tuple(axes)


def param_shardings(params: nnx.State, mesh: jax.sharding.Mesh) -> dict:
  """Returns a sharding for each parameter from its `axes` metadata, nested like `nnx.to_pure_dict(params)`.

  Raises:
    UserError: mesh axes do not divide a dimension; the message contains the parameter, the axis and sizes that work.
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
          f"config.mesh.{'*'.join(names)}={parts} does not divide {axis}={size} (parameter {name} of shape {shape}). "
          f"Sizes that work: {works}."
        )
    return NamedSharding(mesh, spec)

  is_variable = lambda x: isinstance(x, nnx.Variable)
  return nnx.to_pure_dict(jax.tree_util.tree_map_with_path(param_sharding, params, is_leaf=is_variable))


def num_shards(axis: str, mesh: jax.sharding.Mesh | None = None) -> int:
  """Returns an activation's number of shards along a logical axis, on `mesh` or the current mesh; 1 without."""
  return _shards(axis, _free() if mesh is None else mesh.shape)


def axes_text(axis: str, mesh: jax.sharding.Mesh) -> str:
  """Returns the config keys of the mesh axes along which a logical axis is split, for messages."""
  names = RULES[axis][0]
  names = (names,) if isinstance(names, str) else names or ()
  return " * ".join(f"config.mesh.{name}" for name in names if name in mesh.shape)


def _shards(axis: str, used: Mapping[str, int]) -> int:
  names = RULES[axis][0]
  return math.prod(used.get(name, 1) for name in ((names,) if isinstance(names, str) else names or ()))


@dataclasses.dataclass(frozen=True)
class Parameter:
  """Logical axes of an argument of `per_device` that is split like a parameter; see `gather_parts`."""

  axes: tuple[str, ...]


def per_device(
  function: Callable[..., Any],
  in_axes: tuple[tuple[str | None, ...] | Parameter, ...],
  out_axes: tuple[str | None, ...],
) -> Callable[..., Any]:
  """Runs `function` on each device's part of the activations, for code that the compiler cannot split (kernels).

  Args:
    function: takes positional arrays (or None), each a device's part, and returns a device's part.
    in_axes: logical axes of each argument; the mesh must divide these dimensions (see `num_shards`).
    out_axes: logical axes of the result, or of all results.
  """
  used = _free()
  if not used:
    return function
  in_specs = tuple(
    _spec(axes.axes, 1, used=used) if isinstance(axes, Parameter) else _spec(axes, 0, used=used) for axes in in_axes
  )
  out_specs = _spec(out_axes, 0, used=used)
  # Without check_vma, because the kernels do not declare the mesh axes along which their results vary.
  return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def parameter_parts(axes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
  """Returns the mesh axes along which only parameters are split, for each dimension with these logical axes.

  Derivatives are traced when `by_copy` and `by_stage` are over, so call this in the forward pass.
  """
  used = _free()
  names = lambda entry: (entry,) if isinstance(entry, str) else entry or ()
  whole, split = (_spec(axes, column, used=used) for column in (0, 1))
  return tuple(
    tuple(name for name in names(own) if name not in names(shared)) for own, shared in zip(split, whole, strict=True)
  )


def gather_parts(x: jax.Array, parts: tuple[tuple[str, ...], ...]) -> jax.Array:
  """Gathers a `Parameter` of `per_device` over the axes of `parameter_parts`."""
  for dimension, names in enumerate(parts):
    x = jax.lax.all_gather(x, names, axis=dimension, tiled=True) if names else x
  return x


def scatter_parts(x: jax.Array, parts: tuple[tuple[str, ...], ...]) -> jax.Array:
  """Sums gradients over the devices and returns the device's part; the transpose of `gather_parts`."""
  for dimension, names in enumerate(parts):
    x = jax.lax.psum_scatter(x, names, scatter_dimension=dimension, tiled=True) if names else x
  return x


def num_copies() -> int:
  """Returns the number of copies of the parameters on the current mesh."""
  shape = jax.sharding.get_abstract_mesh().shape
  return math.prod(shape.get(axis, 1) for axis in _COPIES)


def by_copy(function: Callable[..., Any]) -> Callable[..., Any]:
  """Maps `function` over the copies of the parameters, like `jax.vmap`; nothing is summed over the copies.

  The compiler would otherwise all-reduce gradients in each microbatch, where once per step is enough.

  Args:
    function: (parameters, rows, key); rows, keys and the result have a leading axis of `num_copies()` outside.
  """
  return _map(function, _COPIES, in_axes=(None, 0, 0), axis_name="copies")


def by_stage(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """Maps `function` over the stages of a pipeline, like `jax.vmap` with these options; each runs on its own devices."""
  return _map(function, ("stage",), **options)


def of_each_copy(placed: NamedSharding) -> NamedSharding:
  """Returns the sharding of an array with a leading axis of `num_copies()` and entries sharded as `placed`."""
  axes = tuple(axis for axis in _COPIES if axis in placed.mesh.shape)
  return NamedSharding(placed.mesh, PartitionSpec(axes, *placed.spec))


def sum_of_copies(x: jax.Array) -> jax.Array:
  """Returns the sum over all copies inside of `by_copy`; elsewhere `x`."""
  return jax.lax.psum(x, "copies") if set(_COPIES) <= set(_mapped.get()) else x


def _along(axis: str) -> tuple[str, ...]:
  names, shape = RULES[axis][0], _free()
  return tuple(name for name in ((names,) if isinstance(names, str) else names or ()) if shape.get(name, 1) > 1)


def shard_index(axis: str) -> jax.Array | int:
  """Returns the index of this device's part along a logical axis, within `per_device`."""
  return jax.lax.axis_index(names) if (names := _along(axis)) else 0


def all_gather(x: jax.Array, axis: str) -> jax.Array:
  """Concatenates the parts of the devices along a logical axis by the first dimension, within `per_device`."""
  return jax.lax.all_gather(x, names, tiled=True) if (names := _along(axis)) else x


def reduce_scatter(x: jax.Array, axis: str) -> jax.Array:
  """Sums over the devices along a logical axis and splits the first dimension among them, within `per_device`."""
  return jax.lax.psum_scatter(x, names, tiled=True) if (names := _along(axis)) else x


def all_sum(x: jax.Array, axis: str) -> jax.Array:
  """Sums over the devices along a logical axis, within `per_device`."""
  return jax.lax.psum(x, names) if (names := _along(axis)) else x


def most_of_copies(x: jax.Array) -> jax.Array:
  """Returns the maximum over all copies inside of `by_copy`; elsewhere `x`."""
  return jax.lax.pmax(x, "copies") if set(_COPIES) <= set(_mapped.get()) else x
