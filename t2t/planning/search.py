"""`t2t plan --search`: which mesh, remat policy, microbatches and batch run a config best on a slice.

Candidates are ordered by an estimate, so that good ones are compiled first; those whose parameters and optimizer alone
do not fit are never compiled, nor those that a compiled one shows to be slower or too large.  What counts in the end is
the compiled program.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import signal
import sys
import textwrap
import time
from typing import NamedTuple

import jax

from t2t import UserError, chips, sharding
from t2t.models.flops import model_flops
from t2t.models.remat import ATTENTION_KEPT, ATTENTION_ON_HOST
from t2t.planning import orders, plan, program, roofline
from t2t.runtime import amounts
from t2t.sections import Config
from t2t.training import recipe

_MOST_TENSOR = 16
_BATCHES = (1, 2, 4)  # times config.train.batch_size
_MICROBATCHES = (1, 2, 4, 8, 16)
# From what keeps most on the device to what keeps least; what is computed again as a share of forward and backward
# together: these are three passes of matmuls, and "full" runs the forward one again, ATTENTION_KEPT two thirds of it.
_RECOMPUTES = {"none": 0.0, "minimal": 0.02, ATTENTION_KEPT: 0.22, ATTENTION_ON_HOST: 0.22, "full": 1 / 3}
_REMATS = tuple(_RECOMPUTES)
_WORTH_OFFLOADING = 0.02  # of a device's memory
# Orders of axes of the best candidate that are compiled, if so much of its step is to be saved.
_MOST_ORDERS, _WORTH_AN_ORDER = 2, 0.01
# As the table names them.
_SHORT = {ATTENTION_KEPT: "qkv", ATTENTION_ON_HOST: "on host"}


def _recomputes(remat: str) -> float:
  """See `_RECOMPUTES`; a policy of the user's own names about as much as that which keeps attention's."""
  return _RECOMPUTES.get(remat, _RECOMPUTES[ATTENTION_KEPT])


@dataclasses.dataclass(frozen=True)
class Candidate:
  """What a search may change.

  mesh: (axis, size) for every axis.
  offload_optimizer: its moments wait in the host's memory.
  order: of the mesh's axes over a slice, see `config.mesh.order`.
  """

  mesh: tuple[tuple[str, int], ...]
  batch_size: int
  microbatches: int
  remat: str
  offload_optimizer: bool = False
  order: orders.Order = ()

  def apply(self, config: Config) -> Config:
    """The config with this in it."""
    return config.with_(
      mesh=dict(self.mesh) | {"order": self.order},
      train={
        "batch_size": self.batch_size,
        "microbatches": self.microbatches,
        "offload_optimizer": self.offload_optimizer,
      },
      model={"remat": self.remat},
    )

  def needs_more(self, other: "Candidate") -> bool:
    """Whether it certainly takes at least the memory of `other`."""
    if self.remat == other.remat:
      kept = (0, 0)
    elif {self.remat, other.remat} <= set(_REMATS):
      kept = [_REMATS.index(each.remat) for each in (self, other)]
    else:
      return False
    return (
      self.mesh == other.mesh
      and self.remat != ATTENTION_ON_HOST  # which even "full" may need more for: what layers read
      and self.batch_size >= other.batch_size
      and self.microbatches <= other.microbatches
      and kept[0] <= kept[1]
      and self.offload_optimizer <= other.offload_optimizer
    )

  def is_slower(self, other: "Candidate") -> bool:
    """Whether it certainly computes at least as much as `other` for the same batch, which waits for no host."""
    return other.remat != ATTENTION_ON_HOST and (
      (self.mesh, self.order, self.batch_size) == (other.mesh, other.order, other.batch_size)
      and self.microbatches >= other.microbatches
      and _recomputes(self.remat) >= _recomputes(other.remat)
      and self.offload_optimizer >= other.offload_optimizer
    )

  def flags(self) -> str:
    """What to type for it."""
    mesh = " ".join(f"--config.mesh.{axis}={size}" for axis, size in self.mesh if size > 1)
    mesh += f" --config.mesh.order={','.join(self.order)}" if self.order else ""
    return (
      f"{mesh} --config.train.batch_size={self.batch_size} --config.train.microbatches={self.microbatches}"
      f" --config.model.remat={self.remat}{' --config.train.offload_optimizer=True' * self.offload_optimizer}"
    ).strip()


@dataclasses.dataclass(frozen=True)
class Result:
  """What came of a candidate: a plan, or why there is none."""

  candidate: Candidate
  plan: plan.Plan | None
  failure: str = ""

  @property
  def fits(self) -> bool:
    """Where the capacity is not known, what compiles counts as fitting."""
    return self.plan is not None and self.plan["fits"] is not False

  @property
  def speed(self) -> float:
    """To rank by: predicted tokens/s, or where there is no prediction, how little is computed."""
    if self.plan["tokens_per_second"] is not None:
      return self.plan["tokens_per_second"]
    return -(self.plan["executed_flops_per_step"] or math.inf) / self.plan["tokens_per_step"]


def meshes(config: Config, num_devices: int) -> list[dict[str, int]]:
  """Meshes to try: tensor over up to 16 devices that share the heads, the rest fsdp, data, or both.

  Axes besides these three stay as the config has them.
  """
  sizes = sharding.mesh_sizes({**config.mesh.sizes, "data": 1, "fsdp": -1, "tensor": 1}, num_devices)
  others = {axis: size for axis, size in sizes.items() if axis not in ("data", "fsdp", "tensor")}
  free = num_devices // math.prod(others.values())
  kv_heads = config.model.num_kv_heads or config.model.num_heads
  found = []
  for tensor in range(1, min(free, _MOST_TENSOR) + 1):
    if free % tensor or math.gcd(config.model.num_heads, kv_heads) % tensor:
      continue
    rest = free // tensor
    splits = {1, rest} | {data for data in (2, 4, 8, 16, 32, 64) if rest % data == 0 and rest // data >= 4}
    found += [{**others, "data": data, "fsdp": rest // data, "tensor": tensor} for data in sorted(splits)]
  return [{axis: mesh[axis] for axis in sizes} for mesh in found]


# ---- Arithmetic before anything is compiled --------------------------------------------------------------------------


class _Parts(NamedTuple):
  """What is known of a mesh: itself, bytes of parameters and of the optimizer on one device, and which sides' attention
  runs on no kernel."""

  mesh: jax.sharding.Mesh
  params: int
  optimizer: int
  plain: set[str]


class Estimate:
  """Memory and time of candidates by arithmetic, for the order in which they are compiled.

  Args:
    config: what is searched around.
    devices: of the slice.
  """

  def __init__(self, config: Config, devices: Sequence[jax.Device]):
    self._config, self._devices = config, devices
    self._model = config.model
    kind = devices[0].device_kind
    self._chip, self._peak = chips.CHIPS.get(kind), chips.peak_flops(kind) or 1e12
    self._parts: dict[tuple[tuple[str, int], ...], _Parts | None] = {}

  def state(self, mesh_sizes: tuple[tuple[str, int], ...]) -> _Parts | None:
    """None if the mesh does not divide the parameters, or a kernel that is asked for cannot be had on it."""
    if mesh_sizes not in self._parts:
      try:
        mesh = sharding.make_mesh(dict(mesh_sizes), devices=self._devices)
        with jax.set_mesh(mesh):
          _, state, _ = recipe.make(self._config).state(mesh)
          chosen = recipe.attention_kernels(self._config, recipe.batch(self._config))
        plain = {side for side, choice in chosen.items() if choice.kernel == "plain"}
        params = program.bytes_per_device((state.params, state.frozen_params))
        self._parts[mesh_sizes] = _Parts(mesh, params, program.bytes_per_device(state.opt_state), plain)
      except UserError:
        self._parts[mesh_sizes] = None
    return self._parts[mesh_sizes]

  def memory(self, candidate: Candidate) -> float:
    """Bytes of one device: state, gradients, and what the layers keep for the backward pass; rough."""
    mesh, params, optimizer, plain = self.state(candidate.mesh)
    optimizer = 0 if candidate.offload_optimizer else optimizer
    model, tensor = self._model, dict(candidate.mesh)["tensor"]
    rows = candidate.batch_size / sharding.num_shards("batch", mesh) / candidate.microbatches
    width = 2 if model.dtype == "bfloat16" else 4
    # Features for each position and layer: the residual sums; outputs of matmuls; what lies between those.
    residual = model.embed_dim / tensor
    joined, inner = model.num_heads * model.head_dim, (2 if model.gated else 1) * model.mlp_dim
    matmuls = 2 * residual + (2 * joined + 2 * model.kv_heads * model.head_dim + inner) / tensor
    kept = {"full": residual, "minimal": residual + matmuls, "none": 4 * model.embed_dim + 2 * matmuls}
    kept[ATTENTION_KEPT] = residual + 2 * (joined + model.kv_heads * model.head_dim) / tensor
    kept[ATTENTION_ON_HOST] = joined / tensor
    sides = recipe.positions(self._config)
    layers = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    total = 0.0
    for side, length in sides.items():
      # Where no kernel runs, logits of all pairs.
      scores = model.num_heads / tensor * length * 3 if side in plain else 0
      extra = {"none": scores}.get(candidate.remat, 0.0)
      total += rows * length * width * layers[side] * (kept.get(candidate.remat, kept[ATTENTION_KEPT]) + extra)
      # One layer is worked on at a time.
      total = max(total, total + rows * length * width * (kept["none"] + scores))
    return 2 * params + optimizer + total

  def seconds(self, candidate: Candidate) -> float:
    """Of one step, rough: matmuls, the traffic of the axes that matters most, and the optimizer's way to its host."""
    mesh, params, optimizer, _ = self.state(candidate.mesh)
    model, sizes = self._model, dict(candidate.mesh)
    sides = recipe.positions(self._config)
    flops = model_flops(model, batch_size=candidate.batch_size, lengths=sides)
    compute = flops * (1 + _recomputes(candidate.remat)) / mesh.size / (self._peak * roofline.MATMUL_SHARE)
    if self._chip is None:
      return compute
    passes = 3 if candidate.remat == "full" else 2

    def send(axis: str, number: float) -> float:
      if sizes[axis] == 1:
        return 0.0
      return chips.send_seconds(self._chip, mesh, (axis,), number * (sizes[axis] - 1) / sizes[axis])

    # Weights are gathered in bfloat16 for every pass of every microbatch; gradients go back once in each.
    gathered = params * sizes["fsdp"] / 2
    fsdp = send("fsdp", gathered * (passes + 1) * candidate.microbatches)
    data = send("data", 2 * params * candidate.microbatches)
    rows = candidate.batch_size / sharding.num_shards("batch", mesh)
    sums = model.num_encoder_layers * 2 * sides.get("encoder", 0)
    sums += model.num_decoder_layers * (3 if model.num_encoder_layers else 2) * sides.get("decoder", 0)
    tensor = send("tensor", 2 * passes * rows * sums * model.embed_dim * 2)
    host = 2 * optimizer / self._chip.host_bandwidth if candidate.offload_optimizer else 0.0
    return max(compute, fsdp) + data + tensor + host


def candidates(config: Config, devices: Sequence[jax.Device], *, capacity: float | None) -> list[Candidate]:
  """What may be compiled, the most promising first: own batch size and larger ones take turns.

  Args:
    config: what is searched around.
    devices: of the slice.
    capacity: bytes of one device; a mesh is left out whose parameters alone do not fit, or with their optimizer, where
      that stays on the device.
  """
  estimate, own, larger = Estimate(config, devices), [], []
  remats = list(dict.fromkeys([*reversed(_REMATS), config.model.remat]))
  for sizes in meshes(config, len(devices)):
    mesh_sizes = tuple(sizes.items())
    state = estimate.state(mesh_sizes)
    if state is None:
      continue
    mesh, params, optimizer, _ = state
    shards = sharding.num_shards("batch", mesh)
    for offload in (False, True):
      # A small optimizer in the host's memory costs time and gives next to nothing.
      if offload and optimizer < _WORTH_OFFLOADING * (capacity or math.inf):
        continue
      if capacity is not None and params + (0 if offload else optimizer) > capacity:
        continue
      for times, parts, remat in itertools.product(_BATCHES, _MICROBATCHES, remats):
        batch_size = config.train.batch_size * times
        if batch_size % (shards * parts) == 0:
          (own if times == 1 else larger).append(Candidate(mesh_sizes, batch_size, parts, remat, offload))

  def key(candidate: Candidate):
    # The estimate of memory may be off by a third.
    too_large = capacity is not None and estimate.memory(candidate) > capacity * 1.3
    return too_large, estimate.seconds(candidate) / candidate.batch_size

  turns = itertools.zip_longest(sorted(own, key=key), sorted(larger, key=key))
  return [each for pair in turns for each in pair if each is not None]


# ---- Compiling -------------------------------------------------------------------------------------------------------


def _serve(connection, topology: str, slices: int) -> None:
  """The other process: compiles what it is sent."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
  devices = list(program.devices(topology, slices=slices))
  while True:
    config = connection.recv()
    try:
      connection.send((plan.make_plan(config, devices), ""))
    except Exception as error:  # a result like any other: the next candidate may do better
      connection.send((None, str(error)))


class Worker:
  """Compiles in a process of its own: what brings the compiler down does not end the search."""

  def __init__(self, topology: str, slices: int):
    self._arguments = topology, slices
    self._process, self._connection = None, None

  def make_plan(self, config: Config) -> plan.Plan:
    """As `plan.make_plan`.

    Raises:
      UserError: the compiler fails, or ends with its process.
    """
    if self._process is None:
      context = multiprocessing.get_context("spawn")
      self._connection, other = context.Pipe()
      self._process = context.Process(target=_serve, args=(other, *self._arguments), daemon=True)
      self._process.start()
      other.close()
    try:
      self._connection.send(config)
      found, failure = self._connection.recv()
    except (EOFError, OSError) as error:
      self._process.join()
      code = self._process.exitcode
      self.close()
      raise UserError(f"the compiler ended with its process (exit code {code})") from error
    if failure:
      raise UserError(failure)
    return found

  def close(self) -> None:
    """Ends the process, whatever it does."""
    if self._process is not None:
      self._process.kill()
      self._process.join()
      self._connection.close()
      self._process = None


def run(
  config: Config,
  ordered: Iterable[Candidate],
  make_plan,
  *,
  where: str,
  max_compiles: int,
  budget: float | None = None,
  seen: Sequence[Result] = (),
) -> Iterator[Result]:
  """Compiles candidates one after another and yields what came of each.

  Args:
    config: what is searched around.
    ordered: see `candidates`.
    make_plan: config -> plan; raises a UserError if the compiler fails.
    where: names the devices, for the cache.
    max_compiles: how many may be compiled; what is in the cache does not count.
    budget: seconds after which no other compilation is started.
    seen: what came of others before, which are not tried again.
  """
  started, compiled, seen = time.monotonic(), 0, list(seen)
  for candidate in ordered:
    if any(candidate == each.candidate for each in seen):
      continue
    if any(candidate.is_slower(each.candidate) if each.fits else _fails_too(candidate, each) for each in seen):
      continue
    changed = candidate.apply(config)
    path = plan.cache_path(changed, where)
    if not path.exists():
      if compiled == max_compiles or (budget is not None and time.monotonic() - started > budget):
        continue
      compiled += 1
    try:
      result = Result(candidate, plan.cached(path, lambda changed=changed: make_plan(changed)))
    except UserError as error:
      result = Result(candidate, None, str(error).splitlines()[0])
    seen.append(result)
    yield result


def refined(results: Sequence[Result], devices: Sequence[jax.Device]) -> list[Candidate]:
  """The fastest candidate that fits in other orders of its axes, those that should be faster; the fastest first."""
  best = next(iter(ranked(results)), None)
  if best is None or best.plan["seconds_at_peak"] is None:
    return []
  mesh = sharding.make_mesh(dict(best.candidate.mesh), devices=devices)
  found = orders.promising(best.plan, mesh, gain=_WORTH_AN_ORDER)
  return [dataclasses.replace(best.candidate, order=order) for order in found]


def _fails_too(candidate: Candidate, result: Result) -> bool:
  return result.plan is not None and candidate.needs_more(result.candidate)


# ---- Report ----------------------------------------------------------------------------------------------------------


def ranked(results: Iterable[Result]) -> list[Result]:
  """Those that fit, the fastest first."""
  return sorted((each for each in results if each.fits), key=lambda each: each.speed, reverse=True)


def table(results: Sequence[Result]) -> str:
  """The ranking, what bounds each, then what does not fit or compile; at most 80 columns.

  A star: the optimizer is in the host's memory.
  """
  lines = [f"{'mesh':<25}{'batch':>6} {'mic':>3} {'remat':<8}{'memory':>8}{'step':>8}{'MFU':>5}{'tok/s':>7} bound"]
  for each in [*ranked(results), *(each for each in results if not each.fits)]:
    mesh = " ".join(f"{axis} {size}" for axis, size in each.candidate.mesh if size > 1) or "one device"
    remat = _SHORT.get(each.candidate.remat, each.candidate.remat) + "*" * each.candidate.offload_optimizer
    line = f"{mesh:<25}{each.candidate.batch_size:>6} {each.candidate.microbatches:>3} {remat:<8}"
    if each.plan is None:
      line += "    fails:\n" + textwrap.fill(each.failure, 80, initial_indent="    ", subsequent_indent="    ")
    else:
      line += f"{amounts.nbytes(each.plan['memory_per_chip']['total']):>8}"
      if not each.fits:
        line += "  does not fit"
      elif each.plan["predicted_step_seconds"] is not None:
        seconds = plan.seconds(each.plan["predicted_step_seconds"])
        speed = amounts.with_prefix(each.plan["tokens_per_second"], digits=3)
        line += f"{seconds:>8}{each.plan['predicted_mfu']:>5.0%}{speed:>7} {each.plan['bound']}"
    lines += line.splitlines()
    if each.candidate.order:
      lines.append(f"    in the order {','.join(each.candidate.order)}")
  return "\n".join(lines)


def _say(number: int, result: Result) -> None:
  """One line for each result, as it comes."""
  text = "\n    ".join(table([result]).splitlines()[1:])
  print(f"{number:>3} {text}", file=sys.stderr, flush=True)


def search(config: Config, options: argparse.Namespace) -> None:
  """The command, from `t2t plan`'s options; prints the ranking and the best plan, also when it is interrupted."""
  devices, where = plan.find_devices(options.topology, slices=options.slices)
  chip = chips.CHIPS.get(devices[0].device_kind)
  with plan.working("estimating which meshes may do"):
    ordered = candidates(config, devices, capacity=None if chip is None else chip.hbm_bytes)
  if not ordered:
    raise UserError(
      f"--search: no mesh of {len(devices)} device(s) divides the model and config.train.batch_size="
      f"{config.train.batch_size} and has room for parameters and optimizer; give more chips or another batch size"
    )
  results: list[Result] = []
  with contextlib.ExitStack() as stack:
    make_plan = lambda changed: plan.make_plan(changed, devices)
    if options.topology is not None:
      worker = Worker(options.topology, options.slices)
      stack.callback(worker.close)
      make_plan = worker.make_plan
    print(f"compiling up to {options.max_compiles} of {len(ordered)} candidates for {where}", file=sys.stderr)
    # What was found is told whatever ends the search.
    stack.callback(_finish, config, options, results)
    started = time.monotonic()

    def compile_some(proposed: Iterable[Candidate], number: int) -> None:
      left = None if options.budget is None else options.budget - (time.monotonic() - started)
      known = {"where": where, "seen": tuple(results)}
      for result in run(config, proposed, make_plan, max_compiles=number, budget=left, **known):
        results.append(result)
        _say(len(results), result)

    kept_back = min(_MOST_ORDERS, options.max_compiles // 4)
    compile_some(ordered, options.max_compiles - kept_back)
    # Only what came of these says of which candidate another order is worth trying.
    reordered = refined(results, devices)[:kept_back]
    compile_some(reordered, kept_back)
    compile_some(ordered, kept_back - len(reordered))


def _finish(config: Config, options: argparse.Namespace, results: Sequence[Result]) -> None:
  if not results:
    return
  print(table(results))
  if any(each.candidate.offload_optimizer for each in results):
    print("* with the optimizer's moments in the host's memory")
  best = ranked(results)
  if not best:
    print("\nnothing that was tried fits; more chips, or --max_compiles and --budget for a longer search")
    best = sorted((each for each in results if each.plan), key=lambda each: each.plan["memory_per_chip"]["total"])
  own = [each for each in best if each.candidate.batch_size == config.train.batch_size]
  if own and own[0] is not best[0]:
    print(f"\nbest with the config's batch size:\n  {own[0].candidate.flags()}")
  if best:
    print(f"\nbest:\n  {best[0].candidate.flags()}\n")
    about = {"config": options.config, "topology": options.topology, "slices": options.slices}
    found = plan.with_budget(about | best[0].plan, options.tokens, options.price)
    print(plan.report(found))
    if options.json:
      ranking = [dataclasses.asdict(each.candidate) | {"plan": each.plan, "failure": each.failure} for each in results]
      print(json.dumps(found | {"ranking": ranking}))
