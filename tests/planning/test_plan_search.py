"""`t2t plan --search`: candidates, their compilation, and the ranking."""

import json

import jax
import pytest
from test_plan import SMALL, T5, config

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.models.remat import ATTENTION_KEPT, ATTENTION_ON_HOST
from t2t.planning import autotune, autotune_candidates
from t2t.planning.roofline import BOUNDS

_ADAMW = "--config.optimizer.name=adamw"


def candidate(
  batch_size=16, microbatches=1, remat="none", offload_optimizer=False, **mesh
) -> autotune_candidates.Candidate:
  mesh = {"data": 1, "fsdp": 8, "tensor": 1} | mesh
  return autotune_candidates.Candidate(tuple(mesh.items()), batch_size, microbatches, remat, offload_optimizer)


def planned(total: float, speed: float, capacity: float = 10.0) -> dict:
  """Returns the fields of a plan that a search reads."""
  found = {"memory_per_chip": {"total": total, "capacity": capacity}, "fits": total <= capacity}
  return found | {
    "tokens_per_second": speed,
    "seconds_at_peak": {"compute": 0.7},
    "exposed_seconds": 0.1,
    "predicted_step_seconds": 1.0,
    "predicted_mfu": 0.5,
    "bound": max(BOUNDS, key=len),
  }


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path))
  return tmp_path


def run(ordered, make_plan, **options):
  return list(autotune.run(config(*T5), ordered, make_plan, **({"where": "x", "max_compiles": 99} | options)))


def test_meshes_divide_devices_and_heads():
  """Every mesh uses all devices; tensor divides query heads and key heads."""
  found = autotune_candidates.meshes(config("--config.model.num_heads=12"), 32)
  assert all(mesh["data"] * mesh["fsdp"] * mesh["tensor"] == 32 for mesh in found)
  assert {mesh["tensor"] for mesh in found} == {1, 2, 4}
  grouped = autotune_candidates.meshes(config("--config.model.num_heads=12", "--config.model.num_kv_heads=2"), 32)
  assert {mesh["tensor"] for mesh in grouped} == {1, 2}


@pytest.mark.exhaustive
def test_candidates_fit_their_mesh_and_begin_with_the_own_batch_size():
  """Batches divide; meshes without memory for parameters and optimizer are excluded."""
  found = autotune_candidates.candidates(config(*T5), jax.devices(), capacity=None)
  assert found[0].batch_size == 16
  assert {each.batch_size for each in found} == {16, 32, 64}
  assert all(each.batch_size % (dict(each.mesh)["data"] * dict(each.mesh)["fsdp"]) == 0 for each in found)
  # All float32 parameters take 118 kB, so they fit only if they are split.
  split = autotune_candidates.candidates(config(*T5), jax.devices(), capacity=60e3)
  assert {dict(each.mesh)["fsdp"] * dict(each.mesh)["tensor"] for each in split} <= {4, 8}
  assert autotune_candidates.candidates(config(*T5), jax.devices(), capacity=1e3) == []


def test_what_cannot_be_better_is_not_compiled(cache):
  """A candidate with more recomputation than a fitting one is slower; one with less than a failing one is larger."""
  sizes = {"none": 20.0, "minimal": 5.0, "full": 1.0}
  compiled = []

  def make_plan(changed):
    compiled.append((changed.model.remat, changed.train.microbatches))
    return planned(sizes[changed.model.remat] / changed.train.microbatches, 1.0)

  ordered = [candidate(remat=remat, microbatches=n) for n in (1, 2) for remat in ("minimal", "none", "full")]
  run(ordered, make_plan)
  # "full" and two microbatches of "minimal" are slower than "minimal"; "none" is tried again in two microbatches.
  assert compiled == [("minimal", 1), ("none", 1), ("none", 2)]


def test_what_computes_more_may_be_faster_where_memory_bounds():
  """Recomputed values are not read; recomputation is useless only if products and waiting take most of the step."""
  plan = planned(1.0, 1.0)
  own, again = candidate(), candidate(remat="full")
  slower = lambda **times: again.is_slower(own, plan | times)
  assert slower()
  assert not slower(seconds_at_peak={"compute": 0.4})  # products take 0.5 of one second, and a third more is below one
  assert slower(seconds_at_peak={"compute": 0.4}, exposed_seconds=0.35)
  assert not own.is_slower(again, plan)
  # Without predicted times, FLOPs rank.
  assert slower(seconds_at_peak=None)
  # More microbatches of the same are never faster.
  assert candidate(microbatches=2).is_slower(own, plan | {"seconds_at_peak": {"compute": 0.1}})


@pytest.mark.exhaustive
def test_meshes_that_evaluation_does_not_divide_over_are_no_candidates():
  shards = lambda *more: {
    dict(each.mesh)["data"] * dict(each.mesh)["fsdp"]
    for each in autotune_candidates.candidates(config(*T5, *more), jax.devices(), capacity=None)
  }
  assert shards() == {2, 4, 8}
  assert shards("--config.eval.batch_size=4") == {2, 4}
  changed = config(*T5, "--config.eval.batch_size=4")
  estimate = autotune_candidates.Estimate(changed, jax.devices())
  left_out = autotune_candidates.without_evaluation(changed, estimate, len(jax.devices()))
  assert left_out and all(each["data"] * each["fsdp"] == 8 for each in left_out)


def test_what_is_as_large_as_what_did_not_fit_comes_last(cache):
  """By an estimate scaled by the compiled candidate's error; microbatches of as many rows fail for certain."""
  first, second, smaller = candidate(batch_size=16), candidate(batch_size=16, fsdp=4, data=2), candidate(fsdp=2, data=4)
  sizes = {first: 8.0, second: 7.0, smaller: 6.0, candidate(remat="full"): 7.9}
  compiled = []

  def make_plan(changed):
    compiled.append((changed.mesh.sizes["fsdp"], changed.model.remat))
    return planned(12.0, 1.0)  # half as much again as estimated, of 10

  run(list(sizes), make_plan, memory=sizes.get)
  # 12.0, 9.0 and another policy; then 10.5, because the estimate's error may differ between meshes.
  assert compiled == [(8, "none"), (2, "none"), (8, "full"), (4, "none")]
  assert candidate(batch_size=32, microbatches=2).needs_more(candidate(batch_size=16))
  assert not candidate(batch_size=32, microbatches=4).needs_more(candidate(batch_size=16))
  assert not candidate(batch_size=16).needs_more(candidate(batch_size=32, microbatches=2))


def test_batch_sizes_take_turns_though_some_are_left_out(cache):
  """A skipped candidate does not cost a turn."""
  own = [candidate(batch_size=16, microbatches=n) for n in (1, 2, 4)]
  larger = [candidate(batch_size=32, fsdp=n) for n in (8, 4, 2)]
  compiled = []

  def make_plan(changed):
    compiled.append(changed.train.batch_size)
    return planned(1.0, 1.0)

  run([own[0], *own[1:], candidate(batch_size=16, data=2, fsdp=4), *larger], make_plan)
  assert compiled == [16, 32, 16, 32, 32]  # with more microbatches the first is certainly slower


@pytest.mark.slow
def test_larger_batches_are_tried_in_larger_parts():
  found = autotune_candidates.candidates(config(*T5), jax.devices(), capacity=None)
  assert {(each.batch_size, each.microbatches) for each in found if each.batch_size > 16} == {(32, 1), (64, 1), (64, 2)}


def test_what_waits_on_the_host_is_its_own_way_out():
  """Offloading may fit if all else is too large, and may be slower than recomputation on the device."""
  on_host, kept = candidate(remat=ATTENTION_ON_HOST), candidate(remat=ATTENTION_KEPT)
  assert not on_host.needs_more(candidate(remat="full"))
  plan = planned(1.0, 1.0)
  assert on_host.is_slower(kept, plan)
  assert not kept.is_slower(on_host, plan)
  assert kept.needs_more(candidate(remat="full"))


@pytest.mark.slow
def test_a_policy_of_ones_own_is_tried():
  """Beside the others, and compared only with itself."""
  found = autotune_candidates.candidates(
    config(*T5, "--config.model.remat=input,attention"), jax.devices(), capacity=None
  )
  assert {each.remat for each in found} == {*autotune_candidates._REMATS, "input,attention"}
  own = candidate(remat="input,attention")
  assert candidate(batch_size=32, remat="input,attention").needs_more(own)
  assert not candidate(batch_size=32, remat="none").needs_more(own)
  assert not own.needs_more(candidate(remat="full"))


def test_logits_are_counted_where_no_kernel_runs(monkeypatch):
  """On a TPU memory holds no logits, unless the plain kernel is requested."""
  memory = lambda *more: autotune_candidates.Estimate(config(*T5, *more), jax.devices()[:1]).memory(one)
  one = candidate(fsdp=1)
  long = ("--config.data.inputs_length=4096", "--config.data.targets_length=4096", "--config.model.head_dim=32")
  monkeypatch.setattr(sharding, "platform", lambda: "tpu")
  scores = memory(*long, "--config.model.attention_kernel=plain") - memory(*long)
  assert scores > 16 * 3 * 4_096**2 * 4 * 4  # rows, arrays, pairs, heads, bytes: of a layer


@pytest.mark.exhaustive
def test_the_optimizer_may_wait_on_the_host():
  """If it takes a relevant fraction of memory; config and table then contain it."""
  own, away = candidate(), candidate(offload_optimizer=True)
  assert own.needs_more(away)
  assert not away.needs_more(own)
  assert away.is_slower(own, planned(1.0, 1.0))
  assert not own.is_slower(away, planned(1.0, 1.0))
  assert away.apply(config(*T5)).train.offload_optimizer
  assert away.flags() == own.flags() + " --config.train.offload_optimizer=True"
  assert "none*" in autotune.table([autotune.SearchResult(away, planned(1.0, 1.0))])
  # AdamW's moments take twice the parameters' bytes, 236 kB: split over 8 devices, 30 kB beside 15 kB.
  found = lambda capacity: {
    each.offload_optimizer
    for each in autotune_candidates.candidates(config(*T5, _ADAMW), jax.devices(), capacity=capacity)
  }
  assert found(None) == {False}
  assert found(1e9) == {False}
  assert found(100e3) == {False, True}
  assert found(40e3) == {True}


def test_a_failure_is_a_result(cache):
  """The search continues, and reports the failure instead of a plan."""

  def make_plan(changed):
    if changed.train.batch_size == 16:
      raise UserError("the compiler fails: scoped memory\nand more")
    return planned(1.0, 7.0)

  found = run([candidate(16), candidate(32)], make_plan)
  assert [each.failure for each in found] == ["the compiler fails: scoped memory", ""]
  assert [each.candidate.batch_size for each in autotune.ranked(found)] == [32]
  assert "fails:\n    the compiler fails: scoped memory" in autotune.table(found)


def test_a_search_ends_and_goes_on(cache):
  """After a number of compilations; cached results cost nothing the next time."""
  calls = []

  def make_plan(changed):
    calls.append(changed.train.batch_size)
    return planned(1.0, float(changed.train.batch_size))

  ordered = [candidate(size) for size in (16, 32, 64)]
  assert len(run(ordered, make_plan, max_compiles=2)) == 2
  assert len(run(ordered, make_plan, max_compiles=2)) == 3
  assert calls == [16, 32, 64]
  assert run([candidate(128)], make_plan, budget=-1.0) == []
  seen = [autotune.SearchResult(candidate(16), planned(1.0, 1.0))]
  assert run([candidate(16), candidate(16, remat="full")], make_plan, seen=seen) == []  # and slower candidates


def test_the_fastest_that_fits_comes_first():
  """Failing candidates follow, however fast; lines have at most 80 columns."""
  results = [
    autotune.SearchResult(candidate(16), planned(5.0, 3e6)),
    autotune.SearchResult(candidate(32, data=16, fsdp=16, tensor=16), planned(6.0, 4e6)),
    autotune.SearchResult(candidate(64), planned(11.0, 9e6)),
  ]
  assert [each.candidate.batch_size for each in autotune.ranked(results)] == [32, 16]
  lines = autotune.table(results).splitlines()
  assert [line.split()[-1] for line in lines[1:]] == [max(BOUNDS, key=len)] * 2 + ["fit"]
  assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_a_compiler_that_dies_is_a_failure():
  """Its process ends, and the next plan gets a new one."""
  worker = autotune.Worker("v5e:2x2", 1)
  try:
    with pytest.raises(UserError, match="the compiler process ended with exit code"):
      # Not a config: unpickling it ends the process.
      worker.make_plan(_Exit())
  finally:
    worker.close()


class _Exit:
  """Ends the process that unpickles it."""

  def __reduce__(self):
    return exit, (7,)


@pytest.mark.exhaustive
def test_the_command_searches(capsys, cache):
  """A table, then the best plan with its flags, and JSON with the whole ranking."""
  arguments = ["plan", "--config", "t5_1_1_small", *SMALL, *T5, "--search", "--max_compiles", "4", "--json"]
  assert command.main(arguments) == 0
  out, error = capsys.readouterr()
  found = json.loads(out.splitlines()[-1])
  assert len(found["ranking"]) == 4  # including the compilation reserved for other layouts, which a CPU does not have
  assert "--config.train.batch_size=" in out
  assert "compiling up to 4 of" in error
