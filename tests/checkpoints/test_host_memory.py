"""Saves with a limit of host memory: the same checkpoint, copied in batches while the state stays unchanged."""

from etils import epath
import jax
from orbax.checkpoint._src.serialization import replica_slices
import pytest
import test_manager

from t2t.checkpoints import host_memory, manager, verify


@pytest.fixture
def copies(monkeypatch):
  """Bytes of each call by which Orbax copies arrays to host memory."""
  copied, copy = [], replica_slices.transfer_arrays_to_host

  def transfer(arrays, *args, **how):
    found = copy(arrays, *args, **how)
    copied.append(sum(slices.nbytes for slices in found))
    return found

  monkeypatch.setattr(replica_slices, "transfer_arrays_to_host", transfer)
  return copied


def sizes(state) -> list[int]:
  """Returns the bytes of each array, the step first, in the order in which Orbax copies them."""
  arrays = jax.tree.leaves({"": state.step, **{k: v for k, v in manager._saved(state).items() if k != "step"}})
  return [host_memory.copied_bytes(x, jax.process_index()) for x in arrays]


@pytest.mark.parametrize("limit", [None, 10**9, 1_024])
def test_a_donated_state_is_saved_whole(tmp_path, copies, limit):
  """When `save` returns, the next step may overwrite the state; no two batches in a row exceed the limit."""
  state, expected = test_manager.make_state(value=5.0), test_manager.make_state(value=5.0)
  whole = sum(sizes(state))
  checkpoints = manager.Checkpoints(epath.Path(tmp_path), keep=2, host_memory_limit=limit)
  checkpoints.save(5, state, test_manager.STREAMS, test_manager.CONFIG, metrics=None)
  jax.tree.map(lambda x: x.delete(), state)
  checkpoints.wait()
  checkpoints.close()
  if limit == 1_024:  # the number of the step is copied first
    assert copies[0] == 4 and sum(copies) == whole and len(copies) > 2
    _, *copies = copies
    assert max(map(sum, zip(copies, [*copies[1:], 0], strict=True))) <= limit
  else:
    assert copies == [whole]
  pairs = zip(copies, [*copies[1:], 0], strict=True)
  _, *others = sizes(expected)
  assert max(map(sum, pairs)) == (host_memory.peak_bytes(others, limit) if limit == 1_024 else whole)
  reopened = test_manager.reopened(tmp_path)
  restored, _ = reopened.restore(5, test_manager.abstract(expected), ())
  test_manager.assert_same(restored, expected)
  assert verify.of_step(reopened.directory / "5", step=5) == []
  reopened.close()
