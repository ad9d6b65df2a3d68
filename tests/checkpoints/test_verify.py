"""Damaged checkpoints: each damage is detected, reported and set aside, and the step before is used."""

import builtins
import errno
import io
import json
import os
import pathlib
import re
import shutil

from etils import epath
import pytest
import test_manager
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import manager, manifest, restore, verify
from t2t.data import batch_iterator

CONFIG = test_manager.CONFIG


def positions(step: int, number: int = 2) -> dict[str, bytes]:
  """Returns streams in the saved format."""
  names = [batch_iterator.stream_name(stream, number) for stream in range(number)]
  return {name: json.dumps({"step": step, "stream": name, "position": 7 * step}).encode() for name in names}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
  """Three steps; read-only."""
  workdir = tmp_path_factory.mktemp("saved")
  checkpoints = manager.Checkpoints(epath.Path(workdir), keep=3)
  for step in (10, 20, 30):
    state = test_manager.make_state(value=float(step))
    checkpoints.save(step, state, positions(step), CONFIG, metrics={"loss": 1.0 / step})
  checkpoints.close()
  return workdir


@pytest.fixture
def workdir(saved, tmp_path) -> pathlib.Path:
  """A copy of the steps."""
  return pathlib.Path(shutil.copytree(saved, tmp_path / "run"))


def files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns all files except Orbax's markers, whose content is irrelevant."""
  found = sorted(path for path in folder.rglob("*") if path.is_file())
  return [path for path in found if path != folder / manifest.COMMITTED]


def flip(path: pathlib.Path) -> None:
  """Flips the lowest bit of the middle byte."""
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def wrong(folder: pathlib.Path, step: int | None = None) -> list[str]:
  return verify.of_step(epath.Path(folder), step=step)


def without_manifests(workdir: pathlib.Path) -> None:
  """Removes the manifests, as in steps of an older t2t."""
  for path in workdir.rglob(manifest.NAME):
    path.unlink()


def test_every_file_is_noted(saved):
  """Arrays, streams, config, metrics, and Orbax's metadata."""
  folder = saved / "checkpoints" / "20"
  noted = manifest.read(epath.Path(folder))
  assert noted.step == 20
  assert set(noted.files) == {str(path.relative_to(folder)) for path in files(folder)} - {manifest.NAME}
  assert {name.split("/")[0] for name in noted.files} == {"config", "metrics", "state", "streams", manifest.ORBAX}
  assert wrong(folder, 20) == []


@pytest.mark.slow
def test_every_bit_and_every_end_counts(workdir):
  """A flipped bit, a truncation, or a removal of any file is reported with the file."""
  folder = workdir / "checkpoints" / "30"
  assert len(files(folder)) > 12
  for path in files(folder):
    whole, name = path.read_bytes(), str(path.relative_to(folder))
    flip(path)
    assert [name in line for line in wrong(folder)] == [True], name
    path.write_bytes(whole[: len(whole) // 2])
    assert [name in line for line in wrong(folder)] == [True], name
    assert verify.of_step(epath.Path(folder), largest=0) == wrong(folder)  # by size alone
    path.unlink()
    if name != manifest.NAME:  # without it the step looks like one of an older t2t
      assert wrong(folder) == [f"{name} is missing"]
    path.write_bytes(whole)
  assert wrong(folder, 30) == []


def test_hosts_share_out_the_files(workdir):
  """Each host reads its share, and the union equals the result of one."""
  folder = workdir / "checkpoints" / "30"
  for path in files(folder)[::2]:
    flip(path) if path.name != manifest.NAME else None
  found = [verify.of_step(epath.Path(folder), step=30, share=(index, 3)) for index in range(3)]
  assert all(found)
  assert sorted(line for lines in found for line in lines) == sorted(wrong(folder, 30))


def remove(name):
  return lambda folder: shutil.rmtree(folder / name)


def swap_streams(folder):
  names = [folder / "streams" / name for name in positions(0)]
  names[0].rename(folder / "between")
  names[1].rename(names[0])
  (folder / "between").rename(names[1])


def older_streams(folder):
  shutil.rmtree(folder / "streams")
  shutil.copytree(folder.parent / "20" / "streams", folder / "streams")


def older_step(folder):
  shutil.rmtree(folder)
  shutil.copytree(folder.parent / "10", folder)


def empty_folder(folder):
  (folder.parent / "40").mkdir()


def file_in_its_place(folder):
  (folder.parent / "40").write_bytes(b"lost+found")


# Change of step 30 -> message about it, or about 40; and whether it is detected without a manifest.
FAULTS = {
  "no state": (remove("state"), "state/.* is missing", True),
  "no streams": (remove("streams"), "streams/.* is missing", True),
  "no config": (remove("config"), "config/metadata is missing", True),
  "swapped streams": (swap_streams, "streams/stream-00000-of-00002", True),
  "older streams": (older_streams, "streams/stream-00000-of-00002", True),
  "older step": (older_step, "saved as step 10", True),
  "empty folder": (empty_folder, "the folder is empty", True),
  "file": (file_in_its_place, "the path is a file", True),
  "a bit": (lambda folder: flip(max((folder / "state").rglob("d/*"), key=os.path.getsize)), "state/.* other", False),
}


@pytest.mark.exhaustive_from(15)
@pytest.mark.parametrize("older", [False, True], ids=["now", "older"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_step_is_set_aside(name, older, workdir, capsys):
  """The damage is reported, the step renamed, nothing deleted, and the step before is the last."""
  fault, said, without = FAULTS[name]
  if older and not without:
    return
  checkpoints = workdir / "checkpoints"
  if older:
    without_manifests(workdir)
  fault(checkpoints / "30")
  step, last = (40, 30) if (checkpoints / "40").exists() else (30, 20)
  left = sorted(str(path.relative_to(checkpoints / str(step))) for path in (checkpoints / str(step)).rglob("*"))
  verify.set_aside(epath.Path(checkpoints))
  said_of_it = capsys.readouterr().err
  assert f"checkpoints/{step} is damaged, and was renamed to damaged_{step}; resuming from step {last}" in said_of_it
  if not older:
    assert re.search(said, said_of_it)
  else:
    assert "saved it without checksums" in said_of_it
  aside = checkpoints / f"damaged_{step}"
  assert sorted(str(path.relative_to(aside)) for path in aside.rglob("*")) == left
  opened = test_manager.reopened(workdir)
  assert opened.latest_step() == last
  state, _ = opened.restore(last, test_manager.abstract(test_manager.make_state()), tuple(positions(last)))
  opened.close()
  test_manager.assert_same(state, test_manager.make_state(value=float(last)))


def test_a_second_of_the_same_step_has_a_name_of_its_own(workdir):
  """An earlier damaged step is set aside as well; intact ones stay."""
  checkpoints = workdir / "checkpoints"
  (checkpoints / "damaged_30").mkdir()
  shutil.rmtree(checkpoints / "30" / "state")
  (checkpoints / "10" / "metrics" / "metrics").write_bytes(b'{"loss')
  verify.set_aside(epath.Path(checkpoints))
  assert sorted(path.name for path in checkpoints.iterdir()) == ["20", "damaged_10", "damaged_30", "damaged_30_2"]


@pytest.mark.parametrize("name", ["manifest.json", "config/metadata"])
def test_what_cannot_be_read_for_a_while_is_not_damaged(name, workdir, monkeypatch):
  """Reads of a flaky disk are retried; a permanent failure is an error, and the step keeps its name."""
  monkeypatch.setattr(manifest, "_WAITS", (0.0, 0.0))
  path, opened, failures = str(workdir / "checkpoints" / "30" / name), builtins.open, iter([True, True])

  def flaky(file, *args, **kwargs):
    if str(file) == path and next(failures, False):
      raise OSError(errno.EIO, "Input/output error", path)
    return opened(file, *args, **kwargs)

  monkeypatch.setattr(builtins, "open", flaky)
  monkeypatch.setattr(io, "open", flaky)
  verify.set_aside(epath.Path(workdir / "checkpoints"))
  assert next(failures, None) is None
  failures = iter([True] * 20)
  with pytest.raises(
    UserError, match=f"checkpoints/30/{name} cannot be read after several attempts .Input/output error"
  ):
    verify.set_aside(epath.Path(workdir / "checkpoints"))
  assert verify.steps(epath.Path(workdir / "checkpoints")) == [10, 20, 30]


def test_nothing_sound_is_an_error_and_no_fresh_start(workdir):
  """Every attempt fails, and nothing changes until a person moves the folders."""
  checkpoints = epath.Path(workdir / "checkpoints")
  for step in (10, 20, 30):
    shutil.rmtree(workdir / "checkpoints" / str(step) / "streams")
  for _ in range(2):
    with pytest.raises(UserError, match=r"(?s)no step is intact.*checkpoints/30:\n  streams/.*give another --workdir"):
      verify.set_aside(checkpoints)
  assert verify.steps(checkpoints) == [10, 20, 30]
  for step in (10, 20, 30):
    (checkpoints / str(step)).rename(checkpoints / f"damaged_{step}")
  with pytest.raises(UserError, match=r"no step is intact \(damaged_10, damaged_20, damaged_30\)"):
    verify.set_aside(checkpoints)
  verify.set_aside(epath.Path(workdir / "elsewhere"))  # nothing existed


@pytest.mark.parametrize("name", ["config/metadata", "metrics/metrics", "state/_METADATA"])
def test_what_an_older_step_cannot_be_read_without(name, workdir):
  """The file has no checksum, but must be JSON."""
  without_manifests(workdir)
  path = workdir / "checkpoints" / "30" / name
  path.write_bytes(path.read_bytes()[:-5])
  assert [line.split(" (")[0] for line in wrong(workdir / "checkpoints" / "30")] == [f"{name} cannot be read"]
  verify.set_aside(epath.Path(workdir / "checkpoints"))
  opened = test_manager.reopened(workdir)
  assert opened.latest_step() == 20
  opened.close()


def test_arrays_of_an_older_step_that_are_cut_off_are_one_error(workdir):
  """Arrays without a manifest: detected during the restore."""
  without_manifests(workdir)
  for path in (workdir / "checkpoints" / "30" / "state").rglob("d/*"):
    path.write_bytes(path.read_bytes()[:-40])
  opened = test_manager.reopened(workdir)
  with pytest.raises(UserError, match="checkpoints/30 cannot be read .*move it away"):
    opened.restore(30, test_manager.abstract(test_manager.make_state()), ())
  opened.close()


def test_arrays_of_another_step_are_refused(workdir):
  """The checkpoint has neither a manifest nor streams with their step."""
  without_manifests(workdir)
  for path in (workdir / "checkpoints" / "10" / "streams").iterdir():
    path.write_bytes(b"{}")
  older_step(workdir / "checkpoints" / "30")
  verify.set_aside(epath.Path(workdir / "checkpoints"))
  opened = test_manager.reopened(workdir)
  with pytest.raises(UserError, match="checkpoints/30 contains the arrays of step 10"):
    opened.restore(30, test_manager.abstract(test_manager.make_state()), ())
  opened.close()


def test_parameters_of_a_damaged_checkpoint_are_not_read(workdir, monkeypatch):
  """The message contains the other steps, and nothing is renamed; small files are checked first."""
  checkpoints = workdir / "checkpoints"
  largest = max((checkpoints / "30" / "state").rglob("d/*"), key=os.path.getsize)
  flip(largest)
  params = test_manager.abstract(test_manager.make_state().params)
  for path in (workdir, checkpoints / "30"):
    with pytest.raises(UserError, match=r"(?s)checkpoint is damaged:\n  state/.*Give another step .10, 20"):
      restore.checkpoint_folder(str(path))
  monkeypatch.setattr(verify, "_SMALL", 0)
  assert restore.checkpoint_folder(str(workdir)).name == "30"
  with pytest.raises(UserError, match="checkpoint is damaged"):
    restore.restore_params(epath.Path(checkpoints / "30"), params)
  assert sorted(path.name for path in checkpoints.iterdir()) == ["10", "20", "30"]
  restore.restore_params(restore.checkpoint_folder(str(checkpoints / "20")), params)


@pytest.mark.exhaustive
def test_commands_name_a_damaged_checkpoint(tmp_path, capsys, monkeypatch):
  """Every command that reads a checkpoint; also with a folder copied without its workdir."""
  monkeypatch.setattr(verify, "_SMALL", 0)  # treats the array as large, so that it is verified when parameters are read
  workdir = shutil.copytree(trained.workdir("encoder_decoder"), tmp_path / "run")
  flip(max((workdir / "checkpoints" / "2" / "state").rglob("d/*"), key=os.path.getsize))
  (workdir / "checkpoints" / "2").rename(tmp_path / "copied")
  checkpoint, out = str(tmp_path / "copied"), str(tmp_path / "out")
  (tmp_path / "lines.txt").write_text("a\n")
  lines = ("--input", str(tmp_path / "lines.txt"), "--output")
  for argv in (
    ["infer", "--checkpoint", checkpoint, *lines, f"{out}.jsonl"],
    ["embed", "--checkpoint", checkpoint, *lines, f"{out}.npy"],
    ["convert", checkpoint, out],
    [*trained.arguments("encoder_decoder", pathlib.Path(out)), f"--config.init.checkpoint={checkpoint}"],
  ):
    assert command.main(argv) == 2, argv
    assert "this checkpoint is damaged:\n  state/" in capsys.readouterr().err, argv


@pytest.mark.exhaustive
def test_the_same_command_does_not_start_afresh(tmp_path, capsys):
  """Its only step is damaged: the run fails, and nothing changes."""
  workdir = shutil.copytree(trained.workdir("encoder_decoder"), tmp_path / "run")
  flip(max((workdir / "checkpoints" / "2" / "state").rglob("d/*"), key=os.path.getsize))
  before = {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"}
  assert command.main(trained.arguments("encoder_decoder", workdir)) == 2
  error = capsys.readouterr().err
  assert "no step is intact" in error and "does not match its checksum" in error
  assert {path: path.read_bytes() for path in workdir.rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_what_was_sound_once_is_read_again_where_it_is_asked_for(workdir):
  """A rollback after hours verifies again; other reads use the cached result."""
  folder = workdir / "checkpoints" / "20"
  verify.check(epath.Path(folder))
  flip(max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0))
  verify.check(epath.Path(folder))
  with pytest.raises(verify.DamagedCheckpoint, match="does not match its checksum"):
    verify.check(epath.Path(folder), again=True)
