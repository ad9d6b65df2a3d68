"""FLOPs of the matrix products of a compiled program: two for each multiply-add.

A second count includes idle parts of a TPU's matrix units, which process 128 rows and columns at a time. (Units of v6e
and TPU7x are twice as wide; published runs with heads of 128 show no loss there.)
"""

from collections.abc import Sequence
import functools
import math
import re

import numpy as np

from t2t.planning.hlo import text as hlo

MATRIX_UNIT = 128


def idle(*sizes: int) -> float:
  """Returns the factor by which partly filled matrix units slow down products of these sizes."""
  return math.prod(-(-size // MATRIX_UNIT) * MATRIX_UNIT / max(size, 1) for size in sizes)


def _dims(instruction: hlo.Instruction, name: str) -> list[int]:
  return [int(i) for i in (instruction.attribute(name) or "").split(",") if i]


def dot(computation: hlo.Computation, instruction: hlo.Instruction) -> tuple[float, float]:
  """Returns the FLOPs of a dot: every element of the result is a sum over the contracted dimensions."""
  left, right = (operand[0].dims for operand in computation.operand_arrays(instruction)[:2])
  contracted, batch = _dims(instruction, "lhs_contracting_dims"), _dims(instruction, "lhs_batch_dims")
  inner, batches = (math.prod(left[i] for i in dims) for dims in (contracted, batch))
  flops = 2.0 * instruction.arrays[0].elements * inner
  return flops, flops * idle(inner, *(math.prod(dims) // max(inner * batches, 1) for dims in (left, right)))


def _window(attributes: str) -> dict[str, list]:
  """Parses a convolution's window, field -> one entry per dimension: "size=1x3 pad=0_0x2_2"."""
  match = re.search(r"window=\{([^{}]*)\}", attributes)
  fields = dict(part.split("=") for part in match[1].split()) if match else {}
  return {name: [tuple(map(int, part.split("_"))) for part in text.split("x")] for name, text in fields.items()}


def convolution(computation: hlo.Computation, instruction: hlo.Instruction) -> tuple[float, float]:
  """Returns the FLOPs of a convolution as XLA counts them: padding and holes of dilations cost nothing."""
  left, right = (operand[0].dims for operand in computation.operand_arrays(instruction)[:2])
  labels = instruction.attribute("dim_labels")
  left_labels, right_labels, out_labels = re.split(r"_|->", labels)
  out, window = instruction.arrays[0].dims, _window(instruction.attributes)
  # A spatial dimension with one output position is summed over, like the features.
  valid, inner = 1, right[right_labels.index("i")]
  for dimension in range(sum(label.isdigit() for label in left_labels)):
    field = lambda name, default, i=dimension: window[name][i][0] if name in window else default
    if out[out_labels.index(str(dimension))] == 1:
      inner *= right[right_labels.index(str(dimension))]
    valid *= _valid_positions(
      left[left_labels.index(str(dimension))],
      right[right_labels.index(str(dimension))],
      out[out_labels.index(str(dimension))],
      stride=field("stride", 1),
      pad=field("pad", 0),
      left_dilation=field("lhs_dilate", 1),
      right_dilation=field("rhs_dilate", 1),
    )
  batch_groups = int(instruction.attribute("batch_group_count") or 1)
  batch = left[left_labels.index("b")] // batch_groups
  # The kernel's input features are already per feature group.
  outer = right[right_labels.index("o")]
  flops = 2.0 * batch * right[right_labels.index("i")] * outer * valid
  return flops, flops * idle(inner, outer)


@functools.cache
def _valid_positions(
  left: int, right: int, out: int, *, stride: int, pad: int, left_dilation: int, right_dilation: int
) -> int:
  """Returns the number of pairs of output and kernel positions that meet an input."""
  at = np.arange(out)[:, None] * stride - pad + np.arange(right)[None, :] * right_dilation
  return int(np.sum((at >= 0) & (at % left_dilation == 0) & (at // left_dilation < left)))


def gemm(instruction: hlo.Instruction, operands: Sequence[Sequence[hlo.Array]]) -> float:
  """Returns the FLOPs of a cuBLAS call; its configuration contains the contracted dimensions."""
  contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
  dims = [int(i) for i in re.findall(r"\d+", contracted[1])] if contracted else [len(operands[0][0].dims) - 1]
  return 2.0 * instruction.arrays[0].elements * math.prod(operands[0][0].dims[i] for i in dims)


def is_grouped(instruction: hlo.Instruction) -> bool:
  """Returns True for a kernel of `models.kernels.grouped_matmul`."""
  return instruction.target == "tpu_custom_call" and re.search(r"(^|_)t?gmm(_|\.|$)", instruction.name) is not None


def grouped(
  instruction: hlo.Instruction, operands: Sequence[Sequence[hlo.Array]], *, devices: int
) -> tuple[float, float]:
  """Returns the FLOPs of a grouped product, and FLOPs including tiles that two groups compute.

  Args:
    instruction: the kernel.
    operands: tables of the groups (starts, then the group of each tile), and the two operands.
    devices: devices with different groups; each has rows for all tokens, of which groups of equal size fill a part.
  """
  noted = re.search(r'"cost_estimate":\{[^{}]*"flops":"?(\d+)', instruction.attributes)
  tables = [
    arrays[0].elements for arrays in operands if arrays and arrays[0].dtype == "s32" and len(arrays[0].dims) == 1
  ]
  num_groups, entries = tables[0] - 1, max(tables[1:])
  tiles = (entries - num_groups + 1) / devices
  flops = float(noted[1]) / devices
  return flops, flops * (tiles + num_groups - 1) / tiles


# Matmuls per block: scores and weighted values; in the backward pass scores, the gradient of the probabilities, and
# that of the queries (dq), or of keys and values (dkv). The fused kernel (all) returns all three, with query gradients
# in parts along an additional axis.
_SPLASH_MATMULS = {"fwd": 2, "dq": 3, "dkv": 4, "all": 5}


def splash(instruction: hlo.Instruction, operands: Sequence[Sequence[hlo.Array]]) -> float | None:
  """Returns the FLOPs of splash attention: the blocks of its grid, without those above the diagonal of a causal mask,
  or beyond the text for a window.
  """
  part = re.match(r"splash_m[hq]a_(fwd|dq|dkv)", instruction.name)
  blocks = dict(re.findall(r"\b(block_\w+)\W+(\d+)", instruction.attributes))
  arrays = [operand[0] for operand in operands if operand]
  grids = [array.dims for array in arrays if array.dtype in ("s8", "s32") and len(array.dims) == 3]
  floats = [array.dims for array in arrays if array.dtype in ("bf16", "f32")]
  if not part or not blocks or not grids or not floats:
    return None
  suffix = "" if part[1] == "fwd" else f"_{part[1]}"
  if f"block_q{suffix}" not in blocks:
    return None
  query = floats[0]  # [heads, length, kv], optionally with a leading batch axis
  block = int(blocks[f"block_q{suffix}"]) * int(blocks[f"block_kv{suffix}"])
  _, rows, columns = grids[0]
  # Causal masks have positions of queries, [length, 128], or [8, length] if blocks are transposed; segments of both
  # sides have either layout.
  lanes = sum(array.dtype == "s32" and len(array.dims) >= 2 and array.dims[-1] == 128 for array in arrays)
  sublanes = sum(array.dtype == "s32" and len(array.dims) >= 2 and array.dims[-2] == 8 for array in arrays)
  products = "all" if any(len(array.dims) > len(query) for array in instruction.arrays) else part[1]
  causal = sublanes > lanes if part[1] == "dkv" else lanes > sublanes
  # The grid of a window has the largest number of visible blocks per row; the first rows have fewer, as with a causal
  # mask. A window to both sides is not marked in the program. Then as many blocks are missing at both ends, half of
  # these in total, which is few.
  side = min(rows, columns)
  run = rows * columns - (side * (side - 1) // 2 if causal else 0)
  return 2.0 * _SPLASH_MATMULS[products] * math.prod(query[:-2]) * run * block * query[-1]


def cudnn(instruction: hlo.Instruction, operands: Sequence[Sequence[hlo.Array]]) -> float:
  """Returns the FLOPs of cuDNN attention: two products forward and five backward, over visible pairs.

  Its first operands are queries and keys, [batch, length, heads, kv], as in `jax.nn.dot_product_attention`.
  """
  query, keys = (operand[0].dims for operand in operands[:2])
  seen = np.full(query[1], keys[1])
  if re.search(r'"mask_type": ?"\w*CAUSAL"', instruction.attributes):
    window = re.search(r'"sliding_window_length": ?"?([1-9]\d*)', instruction.attributes)
    seen = np.minimum(np.arange(1, query[1] + 1), int(window[1]) if window else keys[1])
  products = 5 if "Backward" in instruction.target else 2
  return 2.0 * products * math.prod(query) / query[1] * float(seen.sum())
