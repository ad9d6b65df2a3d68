"""`t2t plan --search`: searches for the fastest mesh, remat policy, microbatches, batch and kernel blocks on a slice.

An estimate orders the candidates, so that good ones are compiled first. Candidates are skipped if their parameters and
optimizer do not fit, or if a compiled candidate shows that they are slower or too large. The ranking uses compiled
programs only.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
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

import jax

from t2t import UserError, accelerators, sharding
from t2t.configuration.schema import Config
from t2t.models.remat import ATTENTION_KEPT, ATTENTION_ON_HOST
from t2t.planning import aot_compile, kernel_cycles, mesh_layouts, plan
from t2t.planning.autotune_candidates import Candidate, Estimate, candidates, without_evaluation
from t2t.runtime import amounts

# Number of layouts and kernel blocks that are also compiled for the best candidate, and the smallest predicted gain.
_MOST_REFINED, _WORTH_IT = 2, 0.01
# Abbreviations in the table.
_SHORT = {ATTENTION_KEPT: "qkv", ATTENTION_ON_HOST: "on host"}


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """Result of a candidate: a plan, or a failure."""

  candidate: Candidate
  plan: plan.Plan | None
  failure: str = ""

  @property
  def fits(self) -> bool:
    """Returns True if the candidate fits; with unknown capacity, if it compiles."""
    return self.plan is not None and self.plan["fits"] is not False

  @property
  def speed(self) -> float:
    """Returns the ranking key: predicted tokens/s, or without a prediction the negative FLOPs per token."""
    if self.plan["tokens_per_second"] is not None:
      return self.plan["tokens_per_second"]
    return -(self.plan["executed_flops_per_step"] or math.inf) / self.plan["tokens_per_step"]


# ---- Compiling -------------------------------------------------------------------------------------------------------


def _serve(connection, topology: str, slices: int) -> None:
  """Main loop of the worker process, which compiles the configs that it receives."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
  devices = list(aot_compile.devices(topology, slices=slices))
  while True:
    config = connection.recv()
    try:
      connection.send((plan.make_plan(config, devices), ""))
    except Exception as error:  # reported as a result, because the next candidate may compile
      connection.send((None, str(error)))


class Worker:
  """Compiles in a separate process, so that a crash of the compiler does not end the search."""

  def __init__(self, topology: str, slices: int):
    self._arguments = topology, slices
    self._process, self._connection = None, None

  def make_plan(self, config: Config) -> plan.Plan:
    """Returns `plan.make_plan` of the config.

    Raises:
      UserError: the compiler fails or crashes.
    """
    if self._process is None:
      context = multiprocessing.get_context("spawn")
      self._connection, child_end = context.Pipe()
      self._process = context.Process(target=_serve, args=(child_end, *self._arguments), daemon=True)
      self._process.start()
      child_end.close()
    try:
      self._connection.send(config)
      planned, failure = self._connection.recv()
    except (EOFError, OSError) as error:
      self._process.join()
      code = self._process.exitcode
      self.close()
      raise UserError(f"the compiler process ended with exit code {code}") from error
    if failure:
      raise UserError(failure)
    return planned

  def close(self) -> None:
    """Kills the process."""
    if self._process is not None:
      self._process.kill()
      self._process.join()
      self._connection.close()
      self._process = None


def run(
  config: Config,
  ordered: Sequence[Candidate],
  make_plan,
  *,
  where: str,
  max_compiles: int,
  budget: float | None = None,
  seen: Sequence[SearchResult] = (),
  memory: Callable[[Candidate], float] | None = None,
) -> Iterator[SearchResult]:
  """Compiles candidates in sequence and yields their results.

  Args:
    config: base config of the search.
    ordered: see `candidates`; candidates with the config's batch size and others alternate.
    make_plan: config -> plan; raises a UserError if the compiler fails.
    where: name of the devices, for the cache.
    max_compiles: maximum number of compilations; cached plans do not count.
    budget: seconds after which no compilation is started.
    seen: results of earlier candidates, which are not tried again.
    memory: estimate of a device's bytes, corrected by failed candidates with the same remat policy. Candidates with an
      estimate above the capacity come last; None: no such order.
  """
  started, compiled, seen = time.monotonic(), 0, list(seen)

  def is_worth_it(candidate: Candidate) -> bool:
    return not any(candidate == result.candidate or _is_no_better(candidate, result) for result in seen)

  def may_fit(candidate: Candidate) -> bool:
    return is_worth_it(candidate) and not any(_is_as_large(candidate, result, memory) for result in seen)

  passes = [is_worth_it] if memory is None else [may_fit, is_worth_it]
  in_turns = (_in_turns(ordered, test, batch_size=config.train.batch_size) for test in passes)
  for candidate in itertools.chain.from_iterable(in_turns):
    changed = candidate.apply(config)
    path = plan.cache_path(changed, where)
    if not path.exists():
      if compiled == max_compiles or (budget is not None and time.monotonic() - started > budget):
        continue
      compiled += 1
    try:
      result = SearchResult(candidate, plan.cached(path, lambda changed=changed: make_plan(changed)))
    except UserError as error:
      result = SearchResult(candidate, None, str(error).splitlines()[0])
    seen.append(result)
    yield result


def _in_turns(
  ordered: Sequence[Candidate], is_worth_it: Callable[[Candidate], bool], *, batch_size: int
) -> Iterator[Candidate]:
  """Alternates between candidates with the config's batch size and others; tests each when it is reached."""
  kinds = [
    iter([candidate for candidate in ordered if (candidate.batch_size == batch_size) == is_own])
    for is_own in (True, False)
  ]
  while kinds:
    for kind in list(kinds):
      candidate = next(filter(is_worth_it, kind), None)
      if candidate is None:
        kinds.remove(kind)
      else:
        yield candidate


def refined(config: Config, results: Sequence[SearchResult], devices: Sequence[jax.Device]) -> list[Candidate]:
  """Returns variants of the fastest fitting candidate with kernel blocks and mesh layouts that should be faster."""
  best = next(iter(ranked(results)), None)
  if best is None or best.plan["seconds_at_peak"] is None:
    return []
  mesh = sharding.make_mesh(dict(best.candidate.mesh), devices=devices)
  best_candidate, least = best.candidate, best.plan["predicted_step_seconds"] * _WORTH_IT
  refinements = []
  if best.plan["kernel_seconds"]:
    changed, kind = best_candidate.apply(config), devices[0].device_kind
    chosen = aot_compile.attention_kernels(changed, mesh)
    saved = kernel_cycles.saved(changed, kind, chosen, best.plan["kernel_seconds"])
    refinements = [
      dataclasses.replace(best_candidate, attention_block=block) for block in saved if saved[block] > least
    ]
    refinements = sorted(refinements, key=lambda candidate: saved[candidate.attention_block], reverse=True)[:1]
  other_orders = mesh_layouts.promising(best.plan, mesh, gain=_WORTH_IT)
  return refinements + [dataclasses.replace(best_candidate, order=order) for order in other_orders]


def _is_no_better(candidate: Candidate, result: SearchResult) -> bool:
  """Returns True if the candidate certainly fails, too, or is slower."""
  if result.fits:
    return candidate.is_slower(result.candidate, result.plan)
  return result.plan is not None and candidate.needs_more(result.candidate)


def _is_as_large(candidate: Candidate, result: SearchResult, memory: Callable[[Candidate], float]) -> bool:
  """Returns True if the estimate, scaled by the result of another candidate, exceeds the capacity."""
  if result.fits or result.plan is None or candidate.remat != result.candidate.remat:
    return False
  per_chip = result.plan["memory_per_chip"]
  return memory(candidate) / memory(result.candidate) * per_chip["total"] > per_chip["capacity"]


# ---- Report ----------------------------------------------------------------------------------------------------------


def ranked(results: Iterable[SearchResult]) -> list[SearchResult]:
  """Returns the results that fit, the fastest first."""
  return sorted((result for result in results if result.fits), key=lambda result: result.speed, reverse=True)


def table(results: Sequence[SearchResult]) -> str:
  """Returns the ranking with the bound of each candidate, then failures; at most 80 columns.

  A star marks an optimizer in the host's memory.
  """
  lines = [f"{'mesh':<25}{'batch':>6} {'mic':>3} {'remat':<8}{'memory':>8}{'step':>8}{'MFU':>5}{'tok/s':>7} bound"]
  for result in [*ranked(results), *(result for result in results if not result.fits)]:
    mesh = " ".join(f"{axis} {size}" for axis, size in result.candidate.mesh if size > 1) or "one device"
    remat = _SHORT.get(result.candidate.remat, result.candidate.remat) + "*" * result.candidate.offload_optimizer
    line = f"{mesh:<25}{result.candidate.batch_size:>6} {result.candidate.microbatches:>3} {remat:<8}"
    if result.plan is None:
      line += "    fails:\n" + textwrap.fill(result.failure, 80, initial_indent="    ", subsequent_indent="    ")
    else:
      line += f"{amounts.nbytes(result.plan['memory_per_chip']['total']):>8}"
      if not result.fits:
        line += "  does not fit"
      elif result.plan["predicted_step_seconds"] is not None:
        seconds = plan.seconds(result.plan["predicted_step_seconds"])
        speed = amounts.with_prefix(result.plan["tokens_per_second"], digits=3)
        line += f"{seconds:>8}{result.plan['predicted_mfu']:>5.0%}{speed:>7} {result.plan['bound']}"
    lines += line.splitlines()
    if result.candidate.order:
      lines.append(f"    physical_layout {','.join(result.candidate.order)}")
    if result.candidate.attention_block:
      lines.append(f"    attention blocks of {result.candidate.attention_block}")
  return "\n".join(lines)


def _say(number: int, result: SearchResult) -> None:
  """Prints one line per result as it arrives."""
  text = "\n    ".join(table([result]).splitlines()[1:])
  print(f"{number:>3} {text}", file=sys.stderr, flush=True)


def search(config: Config, options: argparse.Namespace) -> None:
  """Runs the search command; prints the ranking and the best plan, also after an interrupt."""
  devices, where = plan.find_devices(options.topology, slices=options.slices)
  chip = accelerators.CHIPS.get(devices[0].device_kind)
  with plan.working("estimating candidate meshes"):
    estimate = Estimate(config, devices)
    ordered = candidates(config, devices, capacity=None if chip is None else chip.hbm_bytes, estimate=estimate)
  if not ordered:
    raise UserError(
      f"--search: no mesh of {len(devices)} device(s) fits. A mesh must divide the model, "
      f"config.train.batch_size={config.train.batch_size} and config.eval.batch_size={config.eval.batch_size}, "
      "and have memory for parameters and optimizer. Give more chips or other batch sizes."
    )
  if undivided := without_evaluation(config, estimate, len(devices)):
    reason = f"with a number of batch shards that does not divide config.eval.batch_size={config.eval.batch_size}"
    print(f"excluded: {len(undivided)} mesh{'es' * (len(undivided) > 1)} {reason}", file=sys.stderr)
  results: list[SearchResult] = []
  with contextlib.ExitStack() as stack:
    make_plan = lambda changed: plan.make_plan(changed, devices)
    if options.topology is not None:
      worker = Worker(options.topology, options.slices)
      stack.callback(worker.close)
      make_plan = worker.make_plan
    print(f"compiling up to {options.max_compiles} of {len(ordered)} candidates for {where}", file=sys.stderr)
    print(f"    {table([])}", file=sys.stderr)
    # Results are reported even if an exception ends the search.
    stack.callback(_finish, config, options, results)
    started = time.monotonic()

    def compile_some(
      proposed: Sequence[Candidate], number: int, memory: Callable[[Candidate], float] | None = estimate.memory
    ) -> None:
      left = None if options.budget is None else options.budget - (time.monotonic() - started)
      known = {"where": where, "seen": tuple(results), "memory": memory}
      for result in run(config, proposed, make_plan, max_compiles=number, budget=left, **known):
        results.append(result)
        _say(len(results), result)

    kept_back = min(_MOST_REFINED, options.max_compiles // 4)
    compile_some(ordered, options.max_compiles - kept_back)
    # The results determine which candidate is worth refining, and with which blocks and layouts.
    again = refined(config, results, devices)[:kept_back]
    compile_some(again, kept_back, memory=None)  # their memory is already known
    compile_some(ordered, kept_back - len(again))


def _finish(config: Config, options: argparse.Namespace, results: Sequence[SearchResult]) -> None:
  if not results:
    return
  print(table(results))
  if any(result.candidate.offload_optimizer for result in results):
    print("* optimizer moments in the host's memory")
  best = ranked(results)
  if not best:
    print("\nno compiled candidate fits. Give more chips, or a longer search with --max_compiles and --budget.")
    best = sorted(
      (result for result in results if result.plan), key=lambda result: result.plan["memory_per_chip"]["total"]
    )
  same_batch = [result for result in best if result.candidate.batch_size == config.train.batch_size]
  if same_batch and same_batch[0] is not best[0]:
    print(f"\nbest with the config's batch size:\n  {same_batch[0].candidate.flags()}")
  if best:
    print(f"\nbest:\n  {best[0].candidate.flags()}\n")
    about = {"config": options.config, "topology": options.topology, "slices": options.slices}
    full_plan = plan.with_budget(about | best[0].plan, options.tokens, options.price)
    print(plan.report(full_plan))
    if options.json:
      ranking = [
        dataclasses.asdict(result.candidate) | {"plan": result.plan, "failure": result.failure} for result in results
      ]
      print(json.dumps(full_plan | {"ranking": ranking}))
