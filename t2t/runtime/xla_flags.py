"""XLA flags that overlap collectives with computation, applied to training and evaluation.

A flag that the user has set is kept. A flag that the installed compiler does not know is skipped, because it would
abort the process. `config.train.xla_flags=False` applies none.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import importlib.util
import mmap
import os
import pathlib
import re

from t2t import UserError


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag with its value and purpose."""

  name: str
  value: str
  why: str

  def __str__(self) -> str:
    return f"--{self.name}={self.value}"


# platform -> flags. Sources: MaxText's benchmarks/xla_flags_library.py (Google), and NVIDIA's "Tips for
# high-performance LLMs with JAX and XLA" (docs.nvidia.com/jax-toolbox).
FLAGS: Mapping[str, tuple[Flag, ...]] = {
  "tpu": (
    Flag("xla_enable_async_all_gather", "true", "parameters are gathered while the previous layer is computed"),
    Flag("xla_tpu_enable_async_collective_fusion", "true", "collectives are fused with adjacent matmuls"),
    Flag("xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true", "also for gathers of parameters"),
    Flag(
      "xla_enable_async_all_reduce", "true", "gradients are summed while the rest of the layer's gradients are computed"
    ),
    Flag("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", "true", "also for sums of gradients"),
    Flag("xla_tpu_enable_async_collective_fusion_multiple_steps", "true", "over several matmuls if one is too short"),
    Flag(
      "xla_jf_crs_combiner_threshold_in_bytes",
      "1000000",
      "each matrix is summed separately, overlapped with computation",
    ),
    Flag("xla_tpu_overlap_compute_collective_tc", "true", "the core computes while the links are busy"),
    Flag("xla_jf_spmd_threshold_for_windowed_einsum_mib", "1000000", "no product is split into narrow steps"),
    Flag(
      "xla_tpu_enable_data_parallel_all_reduce_opt", "true", "gradients of several slices are summed in the background"
    ),
    Flag("xla_tpu_data_parallel_opt_different_sized_ops", "true", "for gradients of any size"),
  ),
  "gpu": (
    Flag("xla_gpu_enable_latency_hiding_scheduler", "true", "collectives start as soon as their inputs are ready"),
    Flag("xla_gpu_enable_pipelined_all_gather", "true", "the next layer's parameters are gathered ahead"),
    Flag("xla_gpu_enable_pipelined_reduce_scatter", "true", "gradients are scattered during the next layer's matmuls"),
    Flag("xla_gpu_enable_pipelined_all_reduce", "true", "also for sums of replicated gradients"),
    Flag("xla_gpu_enable_while_loop_double_buffering", "true", "gathered parameters are not copied in a scan"),
  ),
}
# Excludes sums in the order of thread arrival, and kernels selected by measured speed.
DETERMINISTIC = Flag("xla_gpu_deterministic_ops", "true", "the same program gives the same bits each time")
_VARIABLE = {"tpu": "LIBTPU_INIT_ARGS", "gpu": "XLA_FLAGS"}


def _compiler(platform: str) -> pathlib.Path | None:
  """Returns the library that reads the flags of a platform; None if the platform is not installed."""
  package, pattern = {"tpu": ("libtpu", "libtpu.so"), "gpu": ("jaxlib", "libjax_common.so")}[platform]
  installed = importlib.util.find_spec("libtpu" if platform == "tpu" else "jax_plugins")
  spec = importlib.util.find_spec(package)
  if installed is None or spec is None:
    return None
  path = pathlib.Path(next(iter(spec.submodule_search_locations))) / pattern
  return path if path.exists() else None


def known(platform: str, flags: Sequence[Flag] | None = None) -> list[Flag]:
  """Returns the flags that the installed compiler knows; [] if it is not installed.

  Args:
    platform: a key of `FLAGS`.
    flags: to check; None for the platform's flags.
  """
  path = _compiler(platform)
  if path is None:
    return []
  with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
    return [flag for flag in (FLAGS[platform] if flags is None else flags) if library.find(flag.name.encode()) != -1]


def apply() -> list[Flag]:
  """Sets the flags of the installed platforms that are not set yet.

  Call it before JAX starts a backend; later it has no effect.
  """
  applied = []
  for platform, variable in _VARIABLE.items():
    user_flags = os.environ.get(variable, "")
    flags = list(_missing(known(platform), user_flags))
    if flags:
      os.environ[variable] = " ".join([*map(str, flags), *user_flags.split()])
      applied += flags
  return applied


def make_deterministic() -> list[Flag]:
  """Makes GPU results reproducible bit for bit; CPUs and TPUs are by default. Call it as `apply`.

  Returns:
    The flags that were set: none without a GPU's compiler, or if the user has set the flag.

  Raises:
    UserError: XLA_FLAGS sets the opposite, or the compiler does not know the flag.
  """
  user_flags = os.environ.get("XLA_FLAGS", "")
  for text, value in re.findall(rf"(--{DETERMINISTIC.name}(?:=(\S+))?)(?=\s|$)", user_flags):
    if value.lower() not in ("", "true", "1"):
      raise UserError(
        f"config.train.deterministic=True, but XLA_FLAGS has {text}. Remove the flag from XLA_FLAGS, or set "
        "config.train.deterministic=False."
      )
  if _compiler("gpu") is None:
    return []
  if not known("gpu", [DETERMINISTIC]):
    raise UserError(
      f"config.train.deterministic=True: the installed jaxlib does not know the XLA flag {DETERMINISTIC.name}. "
      "Install another version of jaxlib, or set config.train.deterministic=False."
    )
  flags = list(_missing([DETERMINISTIC], user_flags))
  os.environ["XLA_FLAGS"] = " ".join([*map(str, flags), *user_flags.split()])
  return flags


def _missing(flags: list[Flag], user_flags: str) -> Iterator[Flag]:
  names = set(re.findall(r"--(\w+)", user_flags))
  return (flag for flag in flags if flag.name not in names)


def as_options(platform: str) -> dict[str, str | bool]:
  """Returns the flags that `apply` sets as `compiler_options`, to compile for a device that is not present."""
  if platform not in FLAGS:
    return {}
  # XLA itself, which compiles for GPUs, takes a bool instead of "true".
  value = lambda flag: {"true": True, "false": False}.get(flag.value, flag.value) if platform == "gpu" else flag.value
  return {flag.name: value(flag) for flag in _missing(known(platform), os.environ.get(_VARIABLE[platform], ""))}
