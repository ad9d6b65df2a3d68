import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import types

from etils import epath
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import pytest
import toy

from t2t import UserError, sharding
from t2t.checkpoints import initialize, inspect, manager, manifest, restore, retention, workdir_lock
from t2t.configs import default
from t2t.configuration import stages
from t2t.configuration.loading import records
from t2t.param_tree import split_frozen
from t2t.storage import gcs
from t2t.training import metric_writers, optimizers, train_state

STREAMS = {"stream-0": b"at 17", "stream-1": b"\x00\xff"}
CONFIG = {"model": {"embed_dim": 4}, "data": {"num_streams": 2}}


def placed(mesh_shape, x):
  """Shards matrices over fsdp and tensor, and replicates other arrays."""
  spec = PartitionSpec("fsdp", "tensor") if x.ndim == 2 else PartitionSpec()
  return NamedSharding(sharding.make_mesh(mesh_shape), spec)


def make_state(*, value=1.0, width=8, mesh_shape=None, optimizer="adamw", freeze=()) -> train_state.TrainState:
  """Returns a state with two matrices and a vector; `value` makes it distinct."""
  params = {
    "encoder": {"kernel": value * jnp.arange(8.0 * width).reshape(8, width), "scale": jnp.full(3, value)},
    "decoder": {"kernel": -value * jnp.ones((16, 4))},
  }
  trained, frozen = split_frozen(params, freeze)
  tx, _ = optimizers.make_optimizer(toy.optimizer_config(name=optimizer), 10)
  opt_state = jax.tree.map(lambda x: x + jnp.asarray(value, x.dtype), tx.init(trained))
  state = train_state.TrainState(jnp.array(int(value), jnp.int32), trained, frozen, opt_state)
  return jax.tree.map(lambda x: jax.device_put(x, placed(mesh_shape or {"fsdp": -1}, x)), state)


def abstract(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def save(workdir, *steps, keep=3, **how):
  """Saves a state with `value` = step at each of `steps`, (step, loss)."""
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=keep)
  for step, loss in steps:
    checkpoints.save(
      step, make_state(value=float(step), **how), STREAMS, CONFIG, metrics=None if loss is None else {"loss": loss}
    )
  checkpoints.close()


def reopened(workdir, keep=3):
  return manager.Checkpoints(epath.Path(workdir), keep=keep)


def assert_same(actual, expected):
  toy.assert_trees_close(actual, expected, atol=0, rtol=0)


def test_what_a_step_was_measured_at_is_read_again(tmp_path, monkeypatch):
  """A short outage of a disk or bucket is retried; a permanent one is an error."""
  save(tmp_path, (5, 0.25))
  monkeypatch.setattr(manifest, "_WAITS", (0.0, 0.0))
  left, read = [2], gcs.read

  def failing(path):
    if left[0]:
      left[0] -= 1
      raise OSError("the bucket is away")
    return read(path)

  monkeypatch.setattr(gcs, "read", failing)
  checkpoints = reopened(tmp_path)
  assert checkpoints.metrics() == {5: {"loss": 0.25}} and left == [0]
  left[0] = 3
  with pytest.raises(UserError, match="metrics/metrics cannot be read after several attempts .the bucket is away"):
    checkpoints.was_measured(5)


def test_what_was_saved_is_restored(tmp_path):
  """State and config are equal, streams byte by byte; each array is in its shards."""
  save(tmp_path, (5, None))
  checkpoints, expected = reopened(tmp_path), make_state(value=5.0)
  state, streams = checkpoints.restore(5, abstract(expected), ("stream-1", "stream-0"))
  assert checkpoints.latest_step() == 5
  assert_same(state, expected)
  assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, expected)
  assert streams == STREAMS
  assert checkpoints.config(5) == CONFIG
  checkpoints.close()


def test_a_run_goes_on_with_all_that_was_saved(tmp_path):
  """State, step, data position, and metric rows that could not be written earlier."""
  unwritten, expected = dict.fromkeys(metric_writers.UNWRITTEN[:1], b"row"), make_state(value=5.0)
  checkpoints = reopened(tmp_path)
  checkpoints.save(5, expected, STREAMS | unwritten, {}, metrics=None)
  checkpoints.wait()
  restored = {}
  batches = types.SimpleNamespace(stream_names=tuple(STREAMS), restore=lambda saved, step: restored.update(saved))
  program = types.SimpleNamespace(state=abstract(expected))
  (stage,) = stages.of(records(default.get_config()))
  state, step, saved = initialize.start(program, stage, checkpoints, batches, toy.key(), vocabulary=None)
  checkpoints.close()
  assert step == 5 and saved == STREAMS | unwritten
  assert STREAMS.items() <= restored.items()
  assert_same(state, expected)


def test_restores_onto_another_mesh(tmp_path):
  """Saved on eight row shards, restored on four by two, or on one shard."""
  save(tmp_path, (2, None), mesh_shape={"fsdp": 8})
  expected = make_state(value=2.0, mesh_shape={"fsdp": 4, "tensor": 2})
  checkpoints = reopened(tmp_path)
  state, _ = checkpoints.restore(2, abstract(expected), ())
  checkpoints.close()
  assert_same(state, expected)
  assert {x.data.shape for x in state.params["encoder"]["kernel"].addressable_shards} == {(2, 4)}


@pytest.mark.slow
def test_the_last_and_the_best_are_kept(tmp_path):
  """The best has the lowest held-out loss; a step without a loss is never the best."""
  save(tmp_path, (1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 4.0), keep=2)
  assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [2, 4, 5]
  checkpoints = reopened(tmp_path, keep=2)
  assert retention.best_steps(checkpoints.metrics()) == {"loss": 2}
  assert checkpoints.latest_step() == 5
  # A resumed run knows the best step of the earlier run.
  checkpoints.save(6, make_state(value=6.0), STREAMS, CONFIG, metrics={"loss": 3.5})
  checkpoints.save(7, make_state(value=7.0), STREAMS, CONFIG, metrics={"loss": 0.5})
  checkpoints.save(8, make_state(value=8.0), STREAMS, CONFIG, metrics={"loss": 3.5})
  checkpoints.save(9, make_state(value=9.0), STREAMS, CONFIG, metrics={"loss": 3.5})
  checkpoints.close()
  assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [7, 8, 9]


def test_the_best_by_each_metric_is_kept(tmp_path):
  """The lowest loss, the highest value of other metrics, and the earliest of equal ones."""
  measured = {
    1: {"loss": 1.0, "cb/f1": 10.0, "rte/accuracy": 50.0},
    2: {"loss": 2.0, "cb/f1": 30.0, "rte/accuracy": 50.0},
    3: {"loss": 3.0, "cb/f1": 20.0, "rte/accuracy": 40.0},
    4: None,
    5: {"loss": 3.0, "cb/f1": 20.0, "rte/accuracy": 40.0},
  }
  checkpoints = reopened(tmp_path, keep=1)
  for step, metrics in measured.items():
    checkpoints.save(step, make_state(value=float(step)), STREAMS, CONFIG, metrics=metrics)
  checkpoints.wait()
  kept = checkpoints.metrics()
  checkpoints.close()
  assert kept == {step: measured[step] for step in (1, 2, 4, 5)}  # the last but one replaces a damaged last step
  assert retention.best_steps(kept) == {"loss": 1, "cb/f1": 2, "rte/accuracy": 1}


@pytest.mark.slow
def test_each_stage_has_its_best(tmp_path):
  """Losses of stages are not comparable: otherwise the best of the first stage would always win."""
  config = CONFIG | {"train": {"steps": 9}, "stages": [{"name": "first", "steps": 2}, {"name": "second"}]}
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=1, ends=(2,))
  for step, loss in enumerate((1.0, 0.5, 3.0, 2.0, 4.0, 5.0, 6.0), start=1):
    checkpoints.save(step, make_state(value=float(step)), STREAMS, config, metrics={"loss": loss})
  checkpoints.wait()
  kept = checkpoints.metrics()
  checkpoints.close()
  assert list(kept) == [2, 4, 6, 7]
  folder = checkpoints.directory
  assert [each.step for each in inspect.superfluous(folder, keep=1)] == [6]
  assert inspect.best(folder, inspect.steps(folder)) == [{"loss": 2}, {"loss": 4}]
  assert retention.best_of_stages(kept, (2,)) == [{"loss": 2}, {"loss": 4}]
  assert retention.best_of_stages(kept, ()) == [retention.best_steps(kept)] == [{"loss": 2}]


def test_what_is_no_number_is_never_the_best(tmp_path):
  """The docstring's example; a NaN is replaced by the first number, on disk as well."""
  nan = float("nan")
  measured = {10: {"loss": nan, "cb/f1": 50.0}, 20: {"loss": 1.5, "cb/f1": 50.0, "rte/f1": nan}, 30: None}
  assert retention.best_steps(measured) == {"loss": 20, "cb/f1": 10}
  assert retention.best_steps({1: {"loss": nan}, 2: {"loss": nan}}) == {}
  save(tmp_path, (1, nan), (2, 3.0), (3, nan), (4, None), keep=1)
  assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [2, 3, 4]


def test_nothing_saved_is_nothing_found(tmp_path):
  """A new workdir has neither a last step nor a best one."""
  checkpoints = reopened(tmp_path)
  assert checkpoints.latest_step() is None
  assert checkpoints.metrics() == {}
  checkpoints.close()


def test_what_is_missing_of_a_step_is_said(tmp_path):
  """The error comes before the restore, with the step to fall back to."""
  save(tmp_path, (1, None), (2, None))
  shutil.rmtree(tmp_path / "checkpoints" / "2" / "state")
  checkpoints = reopened(tmp_path)
  assert checkpoints.config(1) == CONFIG
  with pytest.raises(UserError, match=r"checkpoints/2: .* because it lacks state. .* resumes from step 1"):
    checkpoints.config(2)
  shutil.rmtree(tmp_path / "checkpoints" / "1" / "streams")
  with pytest.raises(UserError, match=r"has no data position .`t2t convert` writes none.. .* --config.init.check"):
    checkpoints.config(1)
  checkpoints.close()
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "checkpoints").touch()
  with pytest.raises(UserError, match="other/checkpoints is a file"):
    reopened(tmp_path / "other")


def test_a_link_that_leads_nowhere_is_said(tmp_path):
  """An unmounted disk must not look like a new workdir."""
  (tmp_path / "checkpoints").symlink_to(tmp_path / "disk" / "run")
  with pytest.raises(UserError, match="checkpoints is a link to .*disk/run, which does not exist. Restore that folder"):
    reopened(tmp_path)


def test_state_may_be_donated_while_it_is_saved(tmp_path):
  """The saved state is that of the call of `save`."""
  checkpoints = reopened(tmp_path)
  state = make_state(value=3.0)
  checkpoints.save(3, state, STREAMS, CONFIG, metrics=None)
  jax.block_until_ready(jax.jit(lambda tree: jax.tree.map(lambda x: x * 0, tree), donate_argnums=0)(state))
  checkpoints.wait()
  restored, _ = checkpoints.restore(3, abstract(make_state()), ())
  checkpoints.close()
  assert_same(restored, make_state(value=3.0))


@pytest.mark.slow
def test_what_waits_in_the_hosts_memory_is_copied(tmp_path):
  """Its memory is reused at once, unlike Orbax's view of it."""
  checkpoints = reopened(tmp_path)
  make = lambda: make_state(value=3.0, width=1 << 18)  # large enough to be written longer than the next step takes
  on_host = lambda x: jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))
  state = make()
  state = dataclasses.replace(state, opt_state=jax.tree.map(on_host, state.opt_state))
  placed = jax.tree.map(lambda x: x.sharding, state)
  next_step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0, out_shardings=placed)
  next_step = next_step.lower(state).compile()
  checkpoints.save(3, state, STREAMS, CONFIG, metrics=None)
  jax.block_until_ready(next_step(state))
  assert all(x.is_deleted() for x in jax.tree.leaves(state.opt_state))
  checkpoints.wait()
  expected = make()
  restored, _ = checkpoints.restore(3, abstract(expected), ())
  checkpoints.close()
  assert_same(restored, expected)


def test_other_shapes_are_refused(tmp_path):
  """The message contains the first different arrays, with both shapes."""
  save(tmp_path, (1, None))
  checkpoints = reopened(tmp_path)
  with pytest.raises(UserError, match=r"params/encoder/kernel: \(8, 8\) in the checkpoint, \(8, 16\) in config.model"):
    checkpoints.restore(1, abstract(make_state(width=16)), ())
  with pytest.raises(UserError, match="opt_state.*unknown"):
    checkpoints.restore(1, abstract(make_state(optimizer="sgd")), ())
  checkpoints.close()


@pytest.mark.parametrize("saved_frozen", [(), ("encoder",)])
def test_parameters_come_from_a_run_of_another_kind(tmp_path, saved_frozen):
  """Another optimizer, frozen parameters or mesh: the parameters are equal."""
  save(tmp_path, (4, None), optimizer="adafactor", freeze=saved_frozen)
  expected = make_state(value=4.0, mesh_shape={"fsdp": 4, "tensor": 2}).params
  params = restore.restore_params(restore.checkpoint_folder(str(tmp_path)), abstract(expected))
  assert_same(params, expected)
  assert params["encoder"]["kernel"].sharding == expected["encoder"]["kernel"].sharding


def test_parameters_of_other_shapes_are_refused(tmp_path):
  """The message contains the first differences."""
  save(tmp_path, (4, None))
  wanted = make_state(width=16).params | {"extra": {"scale": jnp.ones(3)}}
  with pytest.raises(UserError, match=r"(?s)encoder/kernel: \(8, 8\).*extra/scale: missing in the checkpoint"):
    restore.restore_params(restore.checkpoint_folder(str(tmp_path)), abstract(wanted))


def test_find_takes_a_workdir_or_a_checkpoint(tmp_path):
  """In a workdir it is the last step, in numeric order."""
  save(tmp_path, (9, None), (10, None))
  for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "10"):
    assert restore.checkpoint_folder(str(path)) == epath.Path(tmp_path / "checkpoints" / "10")
  assert restore.checkpoint_folder(str(tmp_path / "checkpoints" / "9")).name == "9"


def test_find_says_where_it_looked(tmp_path):
  """A missing folder and an empty one are no checkpoints."""
  (tmp_path / "empty").mkdir()
  for name in ("empty", "missing"):
    with pytest.raises(UserError, match=f"config.init.checkpoint=.*{name}: no checkpoint in"):
      restore.checkpoint_folder(str(tmp_path / name))


def test_a_missing_folder_names_the_nearest(tmp_path, monkeypatch):
  """Also for a step of a workdir, as the user wrote the path; nothing if no name is similar."""
  (tmp_path / "runs" / "tiny_bert" / "checkpoints" / "10").mkdir(parents=True)
  (tmp_path / "runs" / "other").mkdir()
  monkeypatch.chdir(tmp_path)
  for below in ("", "/checkpoints/10"):
    for begin in ("runs", f"{tmp_path}/runs"):
      with pytest.raises(UserError, match=f"not exist; did you mean {begin}/tiny_bert{below}[?]$"):
        restore.checkpoint_folder(f"{begin}/tiny_brt{below}")
  with pytest.raises(UserError, match="the folder does not exist$"):
    restore.checkpoint_folder("runs/unlike_all")


def test_an_interrupted_save_loses_nothing(tmp_path):
  """The remains of a killed save are ignored; the earlier step is intact, and saving continues."""
  save(tmp_path, (1, None))
  unfinished = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-17"
  (unfinished / "state").mkdir(parents=True)
  (unfinished / "state" / "manifest.ocdbt").write_bytes(b"half")
  assert restore.checkpoint_folder(str(tmp_path)).name == "1"
  checkpoints = reopened(tmp_path)
  assert checkpoints.latest_step() == 1
  assert_same(checkpoints.restore(1, abstract(make_state()), ())[0], make_state(value=1.0))
  checkpoints.save(2, make_state(value=2.0), STREAMS, CONFIG, metrics=None)
  checkpoints.close()
  assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


@pytest.mark.slow
def test_a_workdir_has_one_writer(tmp_path):
  """The lock of another process is an error with its id, and ends with the process."""
  program = (
    "import sys\nfrom etils import epath\nfrom t2t.checkpoints import workdir_lock\n"
    "with workdir_lock.held(epath.Path(sys.argv[1])):\n  print('held', flush=True)\n  sys.stdin.read()\n"
  )
  workdir = epath.Path(tmp_path)
  holder = subprocess.Popen(
    [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  try:
    assert holder.stdout.readline() == "held\n"
    message = rf"another run \(process {holder.pid}\) is writing there"
    with pytest.raises(UserError, match=message), workdir_lock.held(workdir):
      pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
  finally:
    holder.kill()
    holder.communicate()
  with workdir_lock.held(workdir):
    assert (tmp_path / ".lock").read_text() == str(os.getpid())
