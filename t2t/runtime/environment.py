"""Checks the machine for everything that t2t needs; each finding of a problem has a remedy.

Credentials are only checked for presence, never printed.
"""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from t2t.runtime import amounts, cache_folder, descriptors, quiet, versions

FINE, MISSING, WRONG = "ok", "-", "!"

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow", "tensorflow-text", "seqio")
_PACKAGES += ("tensorflow-datasets", "sentencepiece", "tokenizers", "ml-collections")
# Extra -> a module that it installs, and its purpose.
EXTRAS = {
  "data": ("seqio", "text files, tables and seqio tasks, on Python 3.11 to 3.13"),
  "tpu": ("libtpu", "TPUs, and `t2t plan` for TPUs from any machine"),
  "gpu": ("jax_plugins.xla_cuda13", "NVIDIA GPUs"),
  "quantization": ("qwix", "8-bit matrix products"),
  "tokamax": ("tokamax", "attention kernels on GPUs"),
  "serve": ("uvicorn", "`t2t infer --server`"),
  "cache": ("apache_beam", "`t2t cache`"),
  "wandb": ("wandb", "metrics in Weights & Biases"),
  "trackio": ("trackio", "metrics in Trackio"),
  "mlflow": ("mlflow", "metrics in MLflow"),
}
_TOOLS = {
  "gcloud": "launch tpu-vm, gke",
  "kubectl": "launch gke",
  "sbatch": "launch slurm",
  "git": "the commit of a run",
}
_LEAST_MEMORY, _LEAST_DISK = 8e9, 10e9  # bytes: for a small model and its input; for an environment or some checkpoints
# Devices are searched in a separate process, because one that another process holds may block forever.
_DEVICES = (
  "import jax, json; print(json.dumps([[d.platform, d.device_kind,"
  " (d.memory_stats() or {}).get('bytes_limit', 0)] for d in jax.local_devices()]))"
)
_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Finding:
  """Result of one check.

  Attributes:
    state: `FINE`; `MISSING` for optional things; `WRONG`.
    name, found: the subject, and what was found.
    remedy: what to do about a problem.
  """

  state: str
  name: str
  found: str
  remedy: str = ""


def everything() -> Iterator[tuple[str, list[Finding]]]:
  """Yields each category with its findings, as they are checked."""
  yield "versions", [Finding(FINE, "t2t", versions.line()), *_packages()]
  yield "devices", list(_devices())
  yield "memory and disk", list(_room())
  yield "extras", [_extra(name) for name in EXTRAS]
  yield "credentials", [*_credentials(), *map(_tool, _TOOLS)]


def _packages() -> Iterator[Finding]:
  """Yields the main packages, and any package with a version that t2t does not support."""
  requirements = _asked()
  installed = {name: versions.of(name) for name in _PACKAGES}
  yield Finding(FINE, "packages", ", ".join(f"{name} {number}" for name, number in installed.items() if number))
  for name, (text, allows) in requirements.items():
    number = versions.of(name)
    if not number or not allows(number):
      have = number or "not installed"
      yield Finding(WRONG, name, f"{have}; t2t needs {text}", f"pip install '{text}'")


def _asked() -> dict[str, tuple[str, Callable[[str], bool]]]:
  """Returns t2t's requirements: distribution -> requirement, and a check of a version."""
  from packaging.requirements import Requirement

  try:
    lines = importlib.metadata.requires(versions.DISTRIBUTION) or []
  except importlib.metadata.PackageNotFoundError:
    return {}
  requirements = {}
  for line in lines:
    need = Requirement(line)
    if need.marker is None or need.marker.evaluate({"extra": ""}):
      need.marker = None
      requirements[need.name] = str(need), lambda version, need=need: need.specifier.contains(version, prereleases=True)
  return requirements


def _devices() -> Iterator[Finding]:
  """Yields the devices that JAX finds, and those that it does not use."""
  try:
    done = subprocess.run(
      [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
  except subprocess.TimeoutExpired:
    yield Finding(
      WRONG,
      "devices",
      f"JAX found no devices in {_SECONDS} s",
      "check whether another process holds them (`ps aux | grep python`), or whether other hosts of the slice "
      "must start, too (see `t2t launch`)",
    )
    return
  if done.returncode:
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    yield Finding(WRONG, "devices", f"JAX cannot start: {last}", "install the versions of requirements.lock")
    return
  devices = json.loads(done.stdout.splitlines()[-1])
  kinds = sorted({(platform, kind, limit) for platform, kind, limit in devices})
  for name, kind, limit in kinds:
    number = devices.count([name, kind, limit])
    memory = f", {amounts.nbytes(limit)} each" if limit else ""
    yield Finding(FINE, name, f"{number} x {kind}{memory}, on {os.cpu_count()} cores")
  yield from _left_aside({name for name, _, _ in kinds})


def _left_aside(used: set[str], *, root: pathlib.Path = pathlib.Path("/dev")) -> Iterator[Finding]:
  """Yields accelerators of the machine that JAX does not use."""
  forced = os.environ.get("JAX_PLATFORMS")
  there = {"gpu": [root / "nvidia0"], "tpu": [root / "accel0", root / "vfio" / "0"]}
  for kind, paths in there.items():
    if kind in used or not any(path.exists() for path in paths):
      continue
    remedy = f"unset JAX_PLATFORMS={forced}" if forced and not quiet.chose_cpu() else versions.install_command(kind)
    yield Finding(WRONG, kind, "the machine has one, but JAX does not use it", remedy)


def _room() -> Iterator[Finding]:
  """Yields memory, disk and open files."""
  total, free = _memory()
  if total:
    few = free < _LEAST_MEMORY
    yield Finding(
      WRONG if few else FINE,
      "memory",
      f"{amounts.nbytes(free)} free of {amounts.nbytes(total)}",
      "stop other processes, or train a smaller model; `t2t plan` prints the memory of a model" if few else "",
    )
  folders = {"here": pathlib.Path.cwd(), "cache": cache_folder.cache_dir(), "tmp": pathlib.Path(tempfile.gettempdir())}
  yield from (_disk(name, folder) for name, folder in folders.items())
  try:
    import resource
  except ImportError:  # Windows has no such limit
    return
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  few = hard != resource.RLIM_INFINITY and hard < descriptors.NEEDED
  shown = lambda number: "any number" if number == resource.RLIM_INFINITY else f"{number:,}"
  yield Finding(
    WRONG if few else FINE,
    "open files",
    f"{shown(soft)}; t2t raises it up to {shown(hard)}",
    "ulimit -n 4096" if few else "",
  )


def _memory() -> tuple[float, float]:
  """Returns total and free bytes of memory; 0 if the system does not report them."""
  try:
    text = pathlib.Path("/proc/meminfo").read_text()
  except OSError:
    return 0.0, 0.0
  byte_counts = {name: 1024.0 * int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
  return byte_counts.get("MemTotal", 0.0), byte_counts.get("MemAvailable", 0.0)


def _disk(name: str, folder: pathlib.Path) -> Finding:
  """Checks that a folder has space and can be written."""
  there = folder
  while not there.exists():
    there = there.parent
  if not os.access(there, os.W_OK):
    wanted = "set T2T_CACHE_DIR to a writable folder" if name == "cache" else "change to a writable folder"
    return Finding(WRONG, f"disk, {name}", f"{folder}: cannot be written", wanted)
  free = shutil.disk_usage(there).free
  few = free < _LEAST_DISK
  return Finding(
    WRONG if few else FINE,
    f"disk, {name}",
    f"{amounts.nbytes(free)} free in {folder}",
    "free some space, or use another folder" if few else "",
  )


def _extra(name: str) -> Finding:
  module, purpose = EXTRAS[name]
  if _is_there(module):
    return Finding(FINE, name, purpose)
  return Finding(MISSING, name, f"not installed: {purpose}", versions.install_command(name))


def _is_there(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # the parent package is missing
    return False


def _credentials() -> Iterator[Finding]:
  """Yields which credentials exist, without printing them."""
  home = pathlib.Path.home()
  gcloud = pathlib.Path(os.environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
  named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
  if named and not pathlib.Path(named).is_file():
    yield Finding(
      WRONG,
      "Google Cloud",
      "GOOGLE_APPLICATION_CREDENTIALS is not a file",
      "unset it, or set it to the path of the key",
    )
  else:
    file = [pathlib.Path(named)] if named else [gcloud / "application_default_credentials.json"]
    yield _credential("Google Cloud", file, (), "buckets", "gcloud auth application-default login")
  hub = pathlib.Path(os.environ.get("HF_HOME") or home / ".cache" / "huggingface")
  yield _credential(
    "Hugging Face",
    [hub / "token"],
    ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    "gated models that you download for `t2t convert`",
    "set HF_TOKEN",
  )


def _credential(
  name: str, files: Iterable[pathlib.Path], variables: Iterable[str], purpose: str, remedy: str
) -> Finding:
  if any(os.environ.get(variable) for variable in variables) or any(file.is_file() for file in files):
    return Finding(FINE, name, "credentials found")
  return Finding(MISSING, name, f"no credentials: {purpose}", remedy)


def _tool(name: str) -> Finding:
  if path := shutil.which(name):
    return Finding(FINE, name, path)
  return Finding(MISSING, name, f"not installed: {_TOOLS[name]}", f"install {name} if you need it")
