"""Draws pictures of the shards that eight devices hold, computed by t2t/sharding.py.

.venv/bin/python docs/site/meshes.py           # writes docs/pictures/meshes/NAME.svg
"""

from collections.abc import Mapping
import pathlib
import sys

from flax import nnx
import jax
import jax.numpy as jnp
import svg

from t2t import sharding

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "pictures" / "meshes"
DEVICES = 8
_SIZE, _CELL, _STEP = 8, 7, 68

# Name -> the mesh.
MESHES: Mapping[str, Mapping[str, int]] = {
  "data": {"data": 8},
  "fsdp": {"fsdp": 8},
  "data_fsdp": {"data": 2, "fsdp": 4},
  "fsdp_tensor": {"fsdp": 4, "tensor": 2},
  "fsdp_sequence": {"fsdp": 4, "sequence": 2},
}
_Part = tuple[slice, slice]


def held(name: str) -> tuple[list[_Part], list[_Part]]:
  """Returns each device's shard of a batch, [batch, length], and of a matrix, [embed, mlp], both 8 x 8."""
  mesh = sharding.make_mesh(MESHES[name], devices=jax.devices()[:DEVICES])
  with jax.set_mesh(mesh):
    batch = jax.jit(lambda x: sharding.shard(x, "batch", "length"))(jnp.zeros((_SIZE, _SIZE))).sharding
  matrix = nnx.Param(jnp.zeros((_SIZE, _SIZE)), axes=("embed", "mlp"))
  placed = sharding.param_shardings(nnx.State({"up": matrix}), mesh)["up"]
  return tuple(
    [_whole(where.devices_indices_map((_SIZE, _SIZE))[device]) for device in mesh.devices.flat]
    for where in (batch, placed)
  )


def _whole(part: tuple) -> _Part:
  rows, columns = (slice(*each.indices(_SIZE)[:2]) for each in part)
  return rows, columns


def draw(name: str) -> str:
  """Returns the picture of a mesh."""
  sizes = " x ".join(f"{axis} {size}" for axis, size in MESHES[name].items())
  parts, said = [svg.text(8, 20, sizes)], []
  for column in range(DEVICES):
    x = 60 + column * _STEP
    parts.append(svg.text(x + _SIZE * _CELL / 2, 42, f"device {column}", anchor="middle", colour=svg.SOFT, size=11))
  for number, (label, second, fill) in enumerate((("batch", "length", "#1f5fa8"), ("embed", "mlp", "#b45309"))):
    y = 50 + number * (_SIZE * _CELL + 26)
    parts.append(svg.text(54, y + 34, label, colour=svg.SOFT, anchor="end", size=11))
    parts.append(svg.text(60, y + _SIZE * _CELL + 13, second, colour=svg.SOFT, size=11))
    for column, (rows, columns) in enumerate(held(name)[number]):
      x = 60 + column * _STEP
      parts.append(svg.box(x, y, _SIZE * _CELL, _SIZE * _CELL, fill="#f6f8fa"))
      wide, high = (columns.stop - columns.start) * _CELL, (rows.stop - rows.start) * _CELL
      parts.append(svg.box(x + columns.start * _CELL, y + rows.start * _CELL, wide, high, fill=fill, border=svg.INK))
      said.append(
        f"device {column}: {label} {rows.start} to {rows.stop - 1}, {second} {columns.start} to {columns.stop - 1}"
      )
  return svg.picture(60 + DEVICES * _STEP, 50 + 2 * (_SIZE * _CELL + 26), parts, title=sizes, about="; ".join(said))


def main() -> int:
  """Draws all pictures."""
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", DEVICES)
  return svg.write(FOLDER, MESHES, draw)


if __name__ == "__main__":
  sys.exit(main())
