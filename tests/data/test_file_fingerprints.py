"""Resumed runs detect which of their data files have changed."""

import json
import os
import pathlib

import jax
import pytest
import test_bad_records
import test_file_sources

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import batch_iterator, fingerprint, pipeline
from t2t.data.sources import file_fingerprints, text_files

TEXTS = test_file_sources.TEXTS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


def changed(before: file_fingerprints.Contents, folder: pathlib.Path) -> list[str]:
  text_files.sizes.cache_clear()  # as in another process
  now = file_fingerprints.Contents(text_files.find_files(f"{folder}/*.txt"))
  return now.differences(json.loads(json.dumps(before.saved())))


def test_each_change_has_its_words(tmp_path, monkeypatch):
  """Reports files that are added, removed, longer, or altered at the ends or in the middle. Touched and moved files
  count as unchanged.
  """
  monkeypatch.setattr(file_fingerprints, "_MOST", 3 * 100)
  for name in ("a.txt", "b.txt"):
    (tmp_path / name).write_bytes(bytes(range(97, 107)) * 100)
  before = file_fingerprints.Contents(text_files.find_files(f"{tmp_path}/*.txt"))
  before.saved()
  os.utime(tmp_path / "a.txt", (1, 1))
  (tmp_path / "moved").mkdir()
  for name in ("a.txt", "b.txt"):
    (tmp_path / "moved" / name).write_bytes((tmp_path / name).read_bytes())
  assert changed(before, tmp_path) == changed(before, tmp_path / "moved") == []
  original = (tmp_path / "a.txt").read_bytes()
  for place in (0, 500, 999):
    (tmp_path / "a.txt").write_bytes(original[:place] + b"X" + original[place + 1 :])
    assert changed(before, tmp_path) == ["a.txt has changed content of the same size"]
  (tmp_path / "a.txt").write_bytes(original + b"more")
  (tmp_path / "b.txt").rename(tmp_path / "c.txt")
  assert changed(before, tmp_path) == ["a.txt had 1,000 bytes and has 1,004", "b.txt is gone", "c.txt is new"]


def test_little_is_read_of_much(tmp_path, monkeypatch):
  """Large files are sampled at both ends and the middle, and many files with less of each, within one total bound."""
  monkeypatch.setattr(file_fingerprints, "_BYTES", 2**16)
  for number in range(4):
    with (tmp_path / f"{number}.txt").open("wb") as file:
      file.truncate(2**40)  # sparse
  found = file_fingerprints.Contents(text_files.find_files(f"{tmp_path}/*.txt")).saved()
  assert found["each"] == 2**14 and [size for _, size, _ in found["files"]] == [2**40] * 4


@pytest.mark.slow
def test_a_run_goes_on_with_other_files_only_where_it_may(tmp_path, capfd):
  """The error names the file and the key; a checkpoint without fingerprints resumes as before."""
  for name in ("a.txt", "b.txt"):
    test_file_sources.write(tmp_path, name, TEXTS)
  iterator = test_bad_records.batches(tmp_path, "*.txt")
  for _ in range(3):
    next(iterator)
  state = iterator.state()
  path = tmp_path / "b.txt"
  path.write_text(path.read_text().replace("number 7 ", "number 8 "))

  def resumed(state, **options):
    text_files.sizes.cache_clear()
    found = test_bad_records.batches(tmp_path, "*.txt", **options)
    found.restore(state, step=3)
    return next(found)

  with pytest.raises(UserError, match="b.txt has changed content .* config.data.allow_changed_files=True"):
    resumed(state)
  (name,), said = state, ("contents", "digests")
  older = {name: json.dumps({key: x for key, x in json.loads(state[name]).items() if key not in said}).encode()}
  resumed(older)
  test_file_sources.write(tmp_path, "c.txt", TEXTS)
  with pytest.raises(UserError, match="config.data.files is .*, but the checkpoint's data position belongs to"):
    resumed(older)
  resumed(state, allow_changed_files=True)
  assert "b.txt has changed content of the same size; c.txt is new; the data continues" in capfd.readouterr().err


@pytest.mark.slow
def test_a_key_that_only_one_of_them_has_is_told_as_such(tmp_path):
  test_file_sources.write(tmp_path, "a.txt", TEXTS)
  iterator = test_bad_records.batches(tmp_path, "*.txt")
  next(iterator)
  (name,) = state = iterator.state()
  saved = json.loads(state[name])
  key, value = next(item for item in saved["identity"].items() if item[0] != "data.vocabulary")
  without = {other: x for other, x in saved["identity"].items() if other != key}
  for said, message in (
    (without, rf"config.{key} is {value!r}, but the checkpoint's data position belongs to a run without one\."),
    (saved["identity"] | {"data.dictionary": "d.tsv"}, r"config.data.dictionary has no value, but .* to 'd.tsv'\."),
  ):
    with pytest.raises(UserError, match=message):
      iterator.restore({name: json.dumps(saved | {"identity": said}).encode()}, step=1)


@pytest.mark.slow
def test_each_host_compares_its_own_files(tmp_path, capfd):
  """Hosts have separate disks, and files on other disks do not matter, even with more hosts than before."""
  for host in ("first", "second"):
    (tmp_path / host).mkdir()
    for name in ("a.txt", "b.txt"):
      test_file_sources.write(tmp_path / host, name, [f"{text} on the {host}" for text in TEXTS])

  def iterator(host: str, *own: int, **options) -> batch_iterator.BatchIterator:
    text_files.sizes.cache_clear()
    data = DataConfig(files=f"{tmp_path}/{host}/*.txt", vocabulary="bytes", inputs_length=32, targets_length=16)
    task = pipeline.load_task(data)
    return batch_iterator.BatchIterator(
      pipeline.plan(data, "encoder_decoder", task, train=True, seed=1),
      own,
      num_streams=4,
      batch_size=4,
      batch_sharding=sharding.batch_sharding(sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])),
      identity={},
      files=fingerprint.files(data, task),
      **options,
    )

  state = iterator("first", 0, 1).state(0) | iterator("second", 2, 3).state(0)
  for host, own in (("first", (0, 1)), ("second", (2, 3)), ("second", (3,))):
    iterator(host, *own).restore(state, step=0)
  path = tmp_path / "second" / "b.txt"
  path.write_text(path.read_text().replace("number 7 ", "number 8 "))
  iterator("first", 0, 1).restore(state, step=0)
  changed = "config.data.files differ from the files .*: b.txt has changed content of the same size"
  with pytest.raises(UserError, match=changed):
    iterator("second", 2, 3).restore(state, step=0)
  with pytest.raises(UserError, match="config.data.files differ from the files .*: their content, on this host"):
    iterator("second", 3).restore(state, step=0)
  iterator("second", 3, allow_changed_files=True).restore(state, step=0)
  assert "config.data.files have changed since the checkpoint: their content, on this host" in capfd.readouterr().err
  copied = {name: {"each": 2**20, "sorts": ["crc32c"], "digest": "0"} for name in ("config.data.files",)}
  moved = {name: json.dumps(json.loads(x) | {"digests": copied}).encode() for name, x in state.items()}
  iterator("second", 3).restore(moved, step=0)  # a bucket's checksums cannot be compared with a disk's


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("key", ["eval_files", "folders.superglue"])
def test_what_is_held_out_and_what_was_released_counts_as_well(key, tmp_path, capfd):
  """Changed held-out or benchmark files are refused unless allowed, because losses would come from different texts."""
  for name in ("a.txt", "held_out.txt"):
    test_file_sources.write(tmp_path, name, TEXTS)
  (tmp_path / "CB").mkdir()
  row = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "neutral"}
  for name in ("train.jsonl", "val.jsonl"):
    (tmp_path / "CB" / name).write_text("".join(json.dumps(row | {"idx": i}) + "\n" for i in range(20)))
  own = {"files": f"{tmp_path}/a.txt", "eval_files": f"{tmp_path}/held_out.txt"}
  released = {
    "mixture": "super_glue_cb",
    "task_modules": ("t2t.tasks.superglue",),
    "benchmark_dirs": {"superglue": f"{tmp_path}"},
  }
  mesh = sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])

  def batches(**options):
    text_files.sizes.cache_clear()
    given = (own if key == "eval_files" else released) | options
    data = DataConfig(**given, vocabulary="bytes", inputs_length=64, targets_length=24, num_streams=1)
    return pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1)

  state = batches().state(0)
  batches().restore(state, step=0)
  path = tmp_path / ("held_out.txt" if key == "eval_files" else "CB/val.jsonl")
  path.write_text(path.read_text().replace("1", "2"))
  named = f"config.data.{key} differ from the files .*: {path.relative_to(tmp_path)} has changed content"
  with pytest.raises(UserError, match=named):
    batches().restore(state, step=0)
  batches(allow_changed_files=True).restore(state, step=0)
  assert f"config.data.{key} have changed since the checkpoint: {path.relative_to(tmp_path)}" in capfd.readouterr().err


OWN_TASK = """
import seqio
from t2t.data import preprocessors

seqio.TaskRegistry.add(
  "contents_test_NAME",
  source=seqio.TextLineDataSource({split: "FOLDER/%s.txt" % split for split in ("train", "validation")}),
  preprocessors=[lambda lines: lines.map(lambda x: {"inputs": x, "targets": x}), seqio.preprocessors.tokenize],
  output_features=preprocessors.t5_features(),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("changes", ["train.txt", "validation.txt"])
def test_files_of_a_task_of_ones_own_count_as_well(changes, tmp_path):
  """Files of both splits are compared, under the task's name."""
  (tmp_path / "own.py").write_text(OWN_TASK.replace("FOLDER", str(tmp_path)).replace("NAME", changes[:-4]))
  for name in ("train.txt", "validation.txt"):
    (tmp_path / name).write_text("".join(f"line {i}\n" for i in range(20)))
  given = {"mixture": f"contents_test_{changes[:-4]}", "task_modules": (str(tmp_path / "own.py"),), "inputs_length": 64}

  def batches():
    text_files.sizes.cache_clear()
    mesh = sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])
    data = DataConfig(**given, vocabulary="bytes", targets_length=24, num_streams=1)
    return pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1)

  state = batches().state(0)
  batches().restore(state, step=0)
  (tmp_path / changes).write_text("another\n")
  with pytest.raises(
    UserError, match=f"the files of config.data.mixture=contents_test_{changes[:-4]} differ .*: {changes} "
  ):
    batches().restore(state, step=0)


@pytest.mark.slow
def test_files_of_tasks_that_are_evaluated_count_while_they_are(tmp_path):
  """Only held-out files of evaluated tasks are compared; a run may resume with other config.eval.tasks."""
  row = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}
  for folder in ("CB", "RTE"):
    (tmp_path / folder).mkdir()
    for name in ("train.jsonl", "val.jsonl"):
      (tmp_path / folder / name).write_text("".join(json.dumps(row | {"idx": i}) + "\n" for i in range(20)))
  given = {"mixture": "super_glue_rte", "task_modules": ("t2t.tasks.superglue",)}
  mesh = sharding.make_mesh({"fsdp": -1}, devices=jax.devices()[:1])
  data = DataConfig(
    **given,
    benchmark_dirs={"superglue": str(tmp_path)},
    vocabulary="bytes",
    inputs_length=64,
    targets_length=24,
    num_streams=1,
  )

  def batches(*evaluated):
    text_files.sizes.cache_clear()
    return pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=4, seed=1, evaluated=evaluated)

  state = batches("cb").state(0)
  for name in ("train.jsonl", "val.jsonl"):
    batches("cb").restore(state, step=0)
    (tmp_path / "CB" / name).write_text(json.dumps(row | {"idx": 0}) + "\n")
  with pytest.raises(UserError, match="the files of config.eval.tasks=super_glue_cb differ .*: CB/val.jsonl had"):
    batches("cb").restore(state, step=0)
  batches().restore(state, step=0)
