"""Lock of a workdir, on a disk and in a bucket; and runs with a moved workdir."""

import os
import socket
import subprocess
import threading

from etils import epath
import pytest

from t2t import UserError
from t2t.checkpoints import workdir_lock
from t2t.storage import gcs as gcs_module
from t2t.storage import lease

# ---- On a disk -------------------------------------------------------------------------------------------------------


def test_who_deletes_the_lock_lets_nobody_in(tmp_path):
  """The folder itself is locked, too."""
  with workdir_lock.held(epath.Path(tmp_path)):
    (tmp_path / ".lock").unlink()
    with pytest.raises(UserError, match="another run"), workdir_lock.held(epath.Path(tmp_path)):
      pass
  with workdir_lock.held(epath.Path(tmp_path)):
    pass


@pytest.mark.parametrize("again", [False, True])
def test_a_workdir_that_was_moved_is_told(tmp_path, again):
  """With and without a new folder in its place."""
  workdir = tmp_path / "run"
  with workdir_lock.held(epath.Path(workdir)) as held:
    held.check()
    workdir.rename(tmp_path / "elsewhere")
    if again:
      workdir.mkdir()
    with pytest.raises(UserError, match="was moved or deleted"):
      held.check()


def test_a_workdir_that_cannot_be_is_one_sentence(tmp_path):
  """A file at its path, or at a parent: a one-line error before anything else."""
  (tmp_path / "file").write_text("")
  for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
    with pytest.raises(UserError, match="--workdir .* cannot be created"), workdir_lock.held(epath.Path(workdir)):
      pass
  if os.geteuid():  # root may write anywhere
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"), workdir_lock.held(epath.Path(tmp_path / "closed")):
      pass


# ---- In a bucket -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
  pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed (the extra `test`)")
  import fake_gcs

  with fake_gcs.Gcs(tmp_path_factory.mktemp("gcs")) as gcs, pytest.MonkeyPatch.context() as patch:
    for name, value in gcs.environment().items():
      patch.setenv(name, value)
    gcs_module.client.cache_clear()
    yield gcs
    gcs_module.client.cache_clear()


PATH = "gs://bucket/run/.lock"


def never(why: str) -> None:
  raise AssertionError(why)


def another(gcs, monkeypatch, *, host: str = "another", pid: int = 7) -> lease.Lease:
  """Returns a lease of another machine."""
  with monkeypatch.context() as patch:
    patch.setattr(socket, "gethostname", lambda: host)
    patch.setattr(os, "getpid", lambda: pid)
    return lease.Lease(PATH, on_lost=never)


def test_a_lease_that_is_renewed_is_not_given_away(gcs, monkeypatch):
  """The error contains holder and time; after the release the next one gets the lease."""
  monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
  held = another(gcs, monkeypatch)
  with pytest.raises(UserError, match=r"another run \(process 7 on another, since 2\d\d\d-.* UTC\) is writing there"):
    lease.Lease(PATH, on_lost=never)
  held.release()
  assert not gcs.sizes("run/")
  with lease.held(PATH, on_lost=never):
    assert list(gcs.sizes("run/")) == ["run/.lock"]
  assert not gcs.sizes("run/")


def test_a_lease_that_is_not_renewed_is_taken_over(gcs, monkeypatch):
  """The former holder is notified and leaves the lease alone."""
  monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
  lost, told = threading.Event(), []
  swap, stopped = gcs_module.swap, threading.Event()

  def stops(path, content, generation):
    if threading.current_thread().name == "lease" and b'"pid": 7' in content:
      assert stopped.wait(60)
    return swap(path, content, generation)

  monkeypatch.setattr(gcs_module, "swap", stops)
  with monkeypatch.context() as patch:
    patch.setattr(os, "getpid", lambda: 7)
    patch.setattr(socket, "gethostname", lambda: "another")
    lease.Lease(PATH, on_lost=lambda why: (told.append(why), lost.set()))
  with lease.held(PATH, on_lost=never):
    stopped.set()
    assert lost.wait(60) and "another run has taken the lease over" in told[0]
    assert f'"pid": {os.getpid()}'.encode() in gcs.read("run/.lock")


def test_of_a_process_that_is_no_more_nobody_waits(gcs, monkeypatch):
  """A lease of a dead process of this machine, as after a crash."""
  monkeypatch.setattr(lease, "RENEW_SECONDS", 3600.0)
  child = subprocess.Popen(["true"])
  child.wait()
  another(gcs, monkeypatch, host=socket.gethostname(), pid=child.pid)
  with lease.held(PATH, on_lost=never):
    assert gcs.sizes("run/")


def test_of_many_who_come_at_once_one_has_it(gcs, monkeypatch):
  """The bucket's precondition decides."""
  monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
  found, together, look = [], threading.Barrier(4), gcs_module.look
  first = threading.local()

  def sees_nothing(path):
    seen = look(path)
    if not hasattr(first, "done"):
      first.done = together.wait()
    return seen

  monkeypatch.setattr(gcs_module, "look", sees_nothing)

  def take():
    try:
      found.append(lease.Lease(PATH, on_lost=never))
    except UserError as error:
      found.append(str(error))

  threads = [threading.Thread(target=take) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  leases = [each for each in found if isinstance(each, lease.Lease)]
  assert len(leases) == 1 and len(found) == 4
  leases[0].release()


def test_a_lost_answer_is_no_refusal(gcs):
  """After a lost answer the written content is compared."""
  import fake_gcs

  gcs.faults.append(fake_gcs.Fault("POST", lost=True))
  with lease.held(PATH, on_lost=never):
    assert gcs.sizes("run/")
  gcs.faults.clear()


def test_a_run_in_a_bucket_holds_a_lease(gcs, monkeypatch):
  """A second run fails with the holder's name."""
  monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
  with workdir_lock.held(epath.Path("gs://bucket/run")):
    message = f"process {os.getpid()} on {socket.gethostname()}, since"
    with pytest.raises(UserError, match=message), workdir_lock.held(epath.Path("gs://bucket/run")):
      pass
