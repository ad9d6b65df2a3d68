"""The offline cache: equal to its source, rejected for another source, written by Beam."""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, offline_cache, pipeline, preprocessors, task_resolution, validation, vocabularies
from t2t.data.objectives import chunking, entity_masking, sentence_pairs


def needs_beam(test):
  """Marks a test that needs Apache Beam; `make beam` runs only these tests."""
  there = importlib.util.find_spec("apache_beam")
  return pytest.mark.beam(pytest.mark.skipif(not there, reason="Apache Beam is not installed")(test))


_TASK_FILE = """
import functools
import seqio
import tensorflow as tf
from t2t.data import objectives, preprocessors
feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100))
def texts(split, shuffle_files, seed=None):
  del shuffle_files, seed
  count = {"train": 60, "validation": 12}[split]
  texts = [f"{split} document {i} says {i % 7} words" for i in range(count)]
  return tf.data.Dataset.from_tensor_slices({"text": texts, "title": [f"title {i}" for i in range(count)]})
def add(name, preprocessors):
  seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(texts, splits=["train", "validation"]),
    preprocessors=preprocessors,
    output_features={"inputs": feature, "targets": feature},
    shuffle_buffer_size=10,
  )
add("cache_test_spans", objectives.preprocessors("span_corruption"))
summaries = preprocessors.text_to_text(preprocessors.summarize, document="text", summary="title")
add("cache_test_pairs", summaries)
def fails(dataset):
  return dataset.map(lambda x: {**x, "title": tf.strings.as_string(tf.debugging.assert_less(1, 0, "on purpose") or 1)})
add("cache_test_fails", [fails, *summaries])
seqio.MixtureRegistry.add("cache_test_both", [("cache_test_spans", 1.0), ("cache_test_pairs", 2.0)])
"""


@pytest.fixture
def data(tmp_path):
  """Two tasks and their mixture, registered by a user's file."""
  path = tmp_path / "my_tasks.py"
  path.write_text(_TASK_FILE)
  yield DataConfig(
    mixture="cache_test_pairs",
    task_modules=(str(path),),
    cache_dir=str(tmp_path / "cache"),
    inputs_length=64,
    targets_length=32,
  )
  for name in [name for name in seqio.TaskRegistry.names() if name.startswith("cache_test_")]:
    seqio.TaskRegistry.remove(name)
  if "cache_test_both" in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.remove("cache_test_both")


@pytest.fixture(scope="module")
def mesh():
  return sharding.make_mesh({"fsdp": -1})


def uncached(data):
  return dataclasses.replace(data, cache_dir="")


def write(data, *, num_files=4, splits=("train", "validation"), identity="1"):
  """The cache of a config's tasks, in seqio's format, without Beam."""
  for task in task_resolution.tasks_of(pipeline.load_task(uncached(data))):
    folder = pathlib.Path(offline_cache.folder_of(data.cache_dir, task))
    folder.mkdir(parents=True)
    before, _ = offline_cache.split_preprocessors(task)
    for split in splits:
      dataset = task.source.get_dataset(split, shuffle=False)
      for step in before:
        dataset = seqio.utils.add_kwargs_to_transform(step, output_features=task.output_features)(dataset)
      write_split(folder, split, list(dataset), num_files)
    (folder / "t2t.json").write_text(json.dumps(offline_cache.record(task) | {"id": identity}))
    (folder / "COMPLETED").touch()


def write_split(folder, split, examples, num_files):
  for number in range(num_files):
    with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord-{number:05d}-of-{num_files:05d}")) as file:
      for example in examples[number::num_files]:
        file.write(seqio.dict_to_tfexample(example).SerializeToString())
  features = {
    name: {"dtype": value.dtype.name, "shape": [None] * len(value.shape)} for name, value in examples[0].items()
  }
  info = {"features": features, "num_shards": num_files, "seqio_version": seqio.__version__}
  (folder / f"info.{split}.json").write_text(json.dumps(info))
  (folder / f"stats.{split}.json").write_text(json.dumps({"examples": len(examples)}))


def examples(data, split="train", **options):
  """Sorted examples of a task."""
  dataset = pipeline.task_examples(data, "encoder_decoder", pipeline.load_task(data), split=split, **options)
  return sorted(tuple(sorted((k, str(v)) for k, v in x.items())) for x in dataset.as_numpy_iterator())


def batches(data, mesh, **options):
  return pipeline.train_batches(data, "encoder_decoder", mesh, **{"batch_size": 8, "seed": 1, **options})


def take(iterator, count):
  return [{name: np.asarray(array) for name, array in next(iterator).items()} for _ in range(count)]


def assert_same(left, right):
  for a, b in zip(left, right, strict=True):
    for name in a:
      np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# ---- Cached steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(name for name, x in objectives.OBJECTIVES.items() if not x.counted))
def test_text_is_cached_as_tokens(name):
  """The cache ends at tokens for every objective; random steps and lengths are applied in training."""
  vocabulary = seqio.ByteVocabulary(extra_ids=127)
  source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=["train"])
  features = objectives.output_features(name, vocabulary)
  task = seqio.Task(name, source=source, preprocessors=objectives.preprocessors(name), output_features=features)
  before, after = offline_cache.split_preprocessors(task)
  tokenize = entity_masking.tokenize if objectives.is_annotated(name) else chunking.tokenize
  tokenize = sentence_pairs.encode if objectives.is_parallel(name) else tokenize
  assert [step.func for step in before] == [tokenize] and len(after) == len(task.preprocessors) - 1
  assert objectives.of(task.replace(preprocessors=after)) == {name}  # still known without the first step


def test_where_a_task_is_cached():
  """The cache ends after tokenization or at a placeholder; tasks with neither, or with noise before, are rejected."""
  tokenize, eos = preprocessors.tokenize, seqio.preprocessors.append_eos
  place = seqio.CacheDatasetPlaceholder()
  noise = seqio.map_over_dataset(lambda features, seed: features, num_seeds=1)
  source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=["train"])

  def split(*steps, source=source):
    task = seqio.Task("mine", source=source, preprocessors=steps, output_features={})
    return offline_cache.split_preprocessors(task)

  rekey = functools.partial(seqio.preprocessors.rekey, key_map={})
  assert split(rekey, tokenize, eos) == ([rekey, tokenize], [eos])
  assert split(rekey, place, tokenize) == ([rekey], [tokenize])
  assert split(rekey, tokenize, eos, place) == ([rekey, tokenize, eos], [])
  for steps in [(rekey,), (noise, tokenize), (chunking.random_chunk, tokenize)]:
    with pytest.raises(UserError, match=r"mine cannot be cached, .* Put seqio.CacheDatasetPlaceholder\(\)"):
      split(*steps)
  with pytest.raises(UserError, match="mine cannot be cached, .* caching_permitted=False"):
    split(tokenize, source=seqio.FunctionDataSource(source._dataset_fn, splits=["train"], caching_permitted=False))


# ---- Reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_cached_task_yields_the_same_examples(data, split):
  write(data)
  found = examples(data, split)
  assert found == examples(uncached(data), split) and len(found) == {"train": 60, "validation": 12}[split]


@pytest.mark.exhaustive
def test_a_cached_objective_is_the_uncached_one(data):
  """Noise is drawn in training: the same seed gives the same noise, another seed gives other noise."""
  data = dataclasses.replace(data, mixture="cache_test_spans")
  write(data, num_files=1)  # in the order of the source
  assert examples(data) == examples(uncached(data))
  assert examples(data) != examples(data, seed=1)


@pytest.mark.slow
def test_resumed_bit_for_bit(data, mesh):
  """A cached mixture resumes exactly, within an epoch and after several epochs."""
  data = dataclasses.replace(data, mixture="cache_test_both")
  write(data)
  for steps in (3, 30):
    iterator = batches(data, mesh, num_streams=2)
    take(iterator, steps)
    state = iterator.state()
    expected = take(iterator, 5)
    resumed = batches(data, mesh, num_streams=2)
    resumed.restore(state, step=0)
    assert_same(take(resumed, 5), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "num_files", "num_shards"), [(50, 4, 2), (50, 4, 3), (4_000, 4, 2), (4_000, 4, 3)])
def test_each_example_is_in_one_shard(tmp_path, number, num_files, num_shards):
  """Shards partition the examples with and without separate files, with a seed per shard."""
  write_split(tmp_path, "train", [{"x": tf.constant([i])} for i in range(number)], num_files)
  source = offline_cache.CacheSource(str(tmp_path))
  shards = [
    [
      int(example["x"][0])
      for example in source.get_dataset("train", seed=i, shard_info=seqio.ShardInfo(i, num_shards)).as_numpy_iterator()
    ]
    for i in range(num_shards)
  ]
  assert sorted(sum(shards, [])) == list(range(number))
  assert max(map(len, shards)) - min(map(len, shards)) <= num_files


@pytest.mark.slow
def test_streams_are_not_more_than_the_text(data, mesh):
  """A small cache limits the number of streams."""
  write(dataclasses.replace(data, mixture="cache_test_spans"))
  data = dataclasses.replace(data, mixture="cache_test_spans", train_split="validation")
  assert batches(data, mesh).num_streams == 2


@pytest.mark.slow
def test_the_position_belongs_to_one_cache(data, mesh, tmp_path):
  """A position is rejected for the source or a rewritten cache; the folder may move."""
  write(data)
  state = batches(data, mesh, num_streams=2).state()
  moved = dataclasses.replace(data, cache_dir=shutil.move(data.cache_dir, tmp_path / "moved"))
  batches(moved, mesh, num_streams=2).restore(state, step=0)
  write(data, identity="2")
  for other in (data, uncached(data)):
    with pytest.raises(
      UserError, match=r"config.data.cache_dir (is|has) .*, but the checkpoint's .* belongs to 'cache \w+'"
    ):
      batches(other, mesh, num_streams=2).restore(state, step=0)


@pytest.mark.slow
def test_a_file_of_the_cache_that_was_altered_is_named(data, mesh):
  """The error names the altered file even if the cache record is unchanged."""
  write(data)
  state = batches(data, mesh, num_streams=2).state()
  path = (
    pathlib.Path(offline_cache.folder_of(data.cache_dir, pipeline.load_task(data))) / "train.tfrecord-00001-of-00004"
  )
  path.write_bytes(bytes(reversed(path.read_bytes())))
  with pytest.raises(
    UserError, match=f"config.data.cache_dir differ .*: {path.relative_to(data.cache_dir)} has changed"
  ):
    batches(data, mesh, num_streams=2).restore(state, step=0)


def test_a_vocabulary_is_known_by_its_words(tmp_path):
  """Vocabularies of equal size with other tokens differ."""
  records = []
  for name, words in (("ours", "ab"), ("copy", "ab"), ("theirs", "cd")):
    (tmp_path / name).mkdir()
    (tmp_path / name / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    records.append(offline_cache._vocabulary_record(vocabularies.load(str(tmp_path / name), extra_ids=1)))
  ours, copy, theirs = records
  assert ours == copy and ours["ids"] == theirs["ids"]
  assert ours != theirs


@pytest.mark.slow
def test_what_seqio_cached_by_itself_is_read(data):
  """A cache of seqio has no vocabulary record and is still read."""
  write(data)
  for path in pathlib.Path(data.cache_dir).rglob("t2t.json"):
    path.unlink()
  assert examples(data) == examples(uncached(data))


def check(data):
  validation.check(data, batch_size=8, model_vocab_size=384)


@pytest.mark.exhaustive
def test_a_cache_that_cannot_be_used(data, tmp_path):
  """The error gives the missing file and the command that writes the cache."""
  with pytest.raises(
    UserError,
    match=r"cache_dir=.*: cache_test_pairs is not cached, because .*/COMPLETED does not exist. "
    "Write the cache with `t2t ca",
  ):
    check(data)
  write(data)
  check(data)
  with pytest.raises(
    UserError, match=r"cached with another vocabulary \(359 ids\) than the present vocabulary of its inputs \(309 ids\)"
  ):
    check(dataclasses.replace(data, vocabulary="bytes", extra_ids=50))
  with pytest.raises(
    UserError,
    match="eval_split=test: config.data.mixture=cache_test_pairs has no such split. Choose from train, validation",
  ):
    check(dataclasses.replace(data, eval_split="test"))
  with pytest.raises(UserError, match="cache_dir=.* is for registered tasks, but config.data.files is set"):
    check(dataclasses.replace(data, mixture="", files=f"{tmp_path}/*.txt", vocabulary="bytes"))
  folder = pathlib.Path(data.cache_dir) / "cache_test_pairs"
  record = json.loads((folder / "t2t.json").read_text())
  (folder / "t2t.json").write_text(json.dumps(record | {"preprocessors": ["translate", "tokenize"]}))
  with pytest.raises(
    UserError, match=r"was cached behind translate, tokenize, but the task now begins with summarize, tokenize\."
  ):
    check(data)
  (folder / "t2t.json").write_text(json.dumps(record))
  (folder / "train.tfrecord-00001-of-00004").unlink()
  with pytest.raises(UserError, match="only 3 of 4 files of split train exist. Copy the whole folder again"):
    check(data)
  (folder / "COMPLETED").unlink()
  with pytest.raises(
    UserError,
    match="cache_test_pairs is cached only in part, because .* does not exist. "
    "Write the cache with `t2t cache --mixture cac",
  ):
    check(data)


def test_a_split_that_was_not_cached(data):
  write(data, splits=("train",))
  with pytest.raises(
    UserError,
    match=r"cached without the split validation \(cached splits: train\)\. .*--splits train,validation --over",
  ):
    check(data)


# ---- Writing ---------------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
  """Exit code, standard output and standard error of `t2t`."""
  code = command.main(list(arguments))
  return code, *capsys.readouterr()


def cache(capsys, data, *options, mixture=None):
  required = ("--mixture", mixture or data.mixture, "--output_dir", data.cache_dir)
  return run(capsys, "cache", *required, "--task_modules", data.task_modules[0], "--num_shards", "3", *options)


def test_without_beam(data, capsys, monkeypatch):
  """The error says what to install before anything is read."""
  monkeypatch.setitem(sys.modules, "apache_beam", None)
  code, _, error = cache(capsys, data)
  assert code == 2 and "t2t cache: error: Apache Beam cannot be imported" in error and ".[cache]" in error


@needs_beam
def test_caches_and_trains(data, capsys, tmp_path):
  """Caching and training work from a task file; cached examples equal uncached ones."""
  registered = set(seqio.TaskRegistry.names())
  code, output, error = cache(capsys, data, mixture="cache_test_both")
  assert code == 0, error
  assert "caching with DirectRunner, 1 of 2: cache_test_pairs (train, validation)" in output
  assert "cache_test_pairs train: 60 examples, " in output and " kB in 3 files" in output
  assert f"--config.data.mixture=cache_test_both --config.data.cache_dir={data.cache_dir}" in output
  assert not {name for name in set(seqio.TaskRegistry.names()) - registered if name.endswith(".cached")}
  for split in ("train", "validation"):
    assert examples(data, split) == examples(uncached(data), split)
  small = dict(vocab_size=384, embed_dim=16, num_heads=2, head_dim=8, mlp_dim=32)
  small |= dict(num_encoder_layers=1, num_decoder_layers=1)
  code, _, error = run(
    capsys,
    "train",
    "--config=t5_1_1_small",
    f"--workdir={tmp_path / 'run'}",
    *(f"--config.model.{key}={value}" for key, value in small.items()),
    f"--config.data.task_modules={data.task_modules[0]}",
    "--config.data.mixture=cache_test_both",
    f"--config.data.cache_dir={data.cache_dir}",
    "--config.data.inputs_length=64",
    "--config.data.targets_length=32",
    "--config.data.num_streams=2",
    "--config.train.batch_size=8",
    "--config.train.steps=2",
  )
  assert code == 0, error
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert max(line["step"] for line in lines) == 2


@needs_beam
def test_what_is_complete_is_left(data, capsys):
  """Complete caches stay unless --overwrite is given; partial caches are rewritten and foreign folders stay."""
  folder = pathlib.Path(data.cache_dir) / data.mixture
  assert cache(capsys, data, "--splits", "train")[0] == 0
  before = (folder / "t2t.json").read_text()
  code, output, _ = cache(capsys, data, "--splits", "train")
  assert code == 0 and "cache_test_pairs is cached already:" in output and "0 of 1 tasks written" in output
  assert "cached without split validation. To cache this split, give --overwrite" in cache(capsys, data)[2]
  other = ("--vocabulary", "bytes", "--extra_ids", "50", "--splits", "train")
  assert "cached with another vocabulary (359 ids) than" in cache(capsys, data, *other)[2]
  assert (folder / "t2t.json").read_text() == before
  assert cache(capsys, data, *other, "--overwrite")[0] == 0
  assert "309" in (folder / "t2t.json").read_text()
  (folder / "COMPLETED").unlink()
  (folder / "train.tfrecord-00009-of-00010").touch()
  assert cache(capsys, data, "--splits", "train")[0] == 0
  assert sorted(path.name for path in folder.glob("*.tfrecord-*")) == [
    f"train.tfrecord-0000{i}-of-00003" for i in (0, 1, 2)
  ]
  shutil.rmtree(folder)
  folder.mkdir()
  (folder / "letter.txt").touch()
  code, _, error = cache(capsys, data)
  assert code == 2 and "contains files that `t2t cache` did not write" in error and os.listdir(folder) == ["letter.txt"]


@needs_beam
def test_a_failure(data, capsys):
  """A failure is reported in one line and keeps earlier caches; invalid options are rejected first."""
  code, output, error = cache(capsys, data, mixture="cache_test_pairs,cache_test_fails")
  assert code == 2 and "caching cache_test_fails failed: " in error and "on purpose" in error
  assert "cache_test_pairs train: 60 examples" in output
  examples(data)
  with pytest.raises(UserError, match="cache_test_fails is cached only in part"):
    examples(dataclasses.replace(data, mixture="cache_test_fails"))
  for options, message in [
    (("--splits", "test"), "--splits test: cache_test_pairs has no such split; choose from train, validation"),
    (("--runner", "NoRunner"), "--runner NoRunner: Unexpected pipeline runner"),
    (("--extra_ids", "5"), "--extra_ids 5 needs --vocabulary"),
    (("--vocabulary", "/nowhere"), "--vocabulary /nowhere: no such file"),
    (("--mixture", "cache_test_pair"), "--mixture cache_test_pair: no task or mixture has this name. Similar names:"),
  ]:
    code, _, error = cache(capsys, data, *options)
    assert code == 2 and message in error, error
  with pytest.raises(SystemExit, match="^2$"):
    cache(capsys, data, "--num_shards", "-1")
