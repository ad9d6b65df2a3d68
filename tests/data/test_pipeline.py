"""Batches: bit-exact resuming, independence of the number of hosts, and error messages."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import batch_iterator, pipeline, registry, validation
from t2t.data import fingerprint as identities
from t2t.data.sources import file_validation

WORDS = ["".join(chr(97 + (i * j * 7) % 26) for j in range(1, 3 + i % 5)) for i in range(19)]
TEXTS = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 6 + i % 9)) + f" {i}" for i in range(150)]
ONE_EPOCH = 12  # batches of 8 that contain more examples than the corpus


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path):
  for shard in range(2):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[shard::2])
    (tmp_path / f"train-{shard}.jsonl").write_text(lines)
  return DataConfig(
    files=f"{tmp_path}/train-*.jsonl",
    vocabulary="bytes",
    inputs_length=128,
    targets_length=40,
    shuffle_buffer=10,
    num_streams=2,  # each stream costs 0.3 s to build
  )


@pytest.fixture(scope="module")
def mesh():
  return sharding.make_mesh({"fsdp": -1})


def batches(data, mesh, **options):
  return pipeline.train_batches(data, "encoder_decoder", mesh, **{"batch_size": 8, "seed": 1, **options})


def take(iterator, count):
  return [{name: np.asarray(array) for name, array in next(iterator).items()} for _ in range(count)]


def assert_same(left, right):
  assert len(left) == len(right)
  for a, b in zip(left, right, strict=True):
    assert a.keys() == b.keys()
    for name in a:
      np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.slow
def test_features_and_their_shapes(data, mesh):
  """Features are seqio's model features, int32 except for the weights, which are 1 on real targets."""
  batch = take(batches(data, mesh), 1)[0]
  shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
  assert shapes == {
    "encoder_input_tokens": ((8, 128), "int32"),
    "decoder_target_tokens": ((8, 40), "int32"),
    "decoder_input_tokens": ((8, 40), "int32"),
    "decoder_loss_weights": ((8, 40), "float32"),
  }
  targets = batch["decoder_target_tokens"]
  np.testing.assert_array_equal(batch["decoder_loss_weights"], targets != 0)
  np.testing.assert_array_equal(batch["decoder_input_tokens"][:, 1:], targets[:, :-1])  # shifted by one
  assert (targets[:, 0] == 358).all() and (targets.max(1) == 358).all()  # the first sentinel, the bytes' last id
  assert ((targets == 1).sum(1) == 1).all()  # each ends in EOS


@pytest.mark.exhaustive
def test_packed_sequences_hold_several_documents(data, mesh):
  """Segment ids and positions separate the documents."""
  batch = take(batches(dataclasses.replace(data, pack=True), mesh), 1)[0]
  assert batch["encoder_segment_ids"].max(1).min() > 1
  np.testing.assert_array_equal(batch["encoder_segment_ids"] > 0, batch["encoder_input_tokens"] > 0)
  starts = (np.diff(batch["encoder_segment_ids"], axis=1) == 1) & (batch["encoder_positions"][:, 1:] == 0)
  np.testing.assert_array_equal(starts.sum(1) + 1, batch["encoder_segment_ids"].max(1))
  eos = (batch["encoder_input_tokens"] == 1).sum(1)
  np.testing.assert_array_equal(eos, batch["encoder_segment_ids"].max(1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("steps", [3, 2 * ONE_EPOCH])
def test_restored_batches_go_on_bit_for_bit(data, mesh, pack, steps):
  """A new iterator resumes exactly from a position within an epoch and after one."""
  data = dataclasses.replace(data, pack=pack)
  iterator = batches(data, mesh)
  take(iterator, steps)
  state = iterator.state()
  expected = take(iterator, 6)
  resumed = batches(data, mesh, num_streams=iterator.num_streams)
  take(resumed, 1)
  resumed.restore(state, step=0)
  assert_same(take(resumed, 6), expected)
  assert set(state) == set(iterator.stream_names) and iterator.stream_names[0] == "stream-00000-of-00002"
  assert sum(len(part) for part in state.values()) < 2_000


@pytest.mark.exhaustive
def test_seeds_and_epochs_differ(data, mesh):
  """Another seed gives other batches; the next epoch has other noise."""
  data = dataclasses.replace(data, pack=True)  # documents stay apart, so that they can be recognised
  first = take(batches(data, mesh), 2)
  assert_same(first, take(batches(data, mesh), 2))
  assert not np.array_equal(
    first[0]["encoder_input_tokens"], take(batches(data, mesh, seed=2), 1)[0]["encoder_input_tokens"]
  )
  rows = np.concatenate([batch["encoder_input_tokens"] for batch in take(batches(data, mesh), 2 * ONE_EPOCH)])
  assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_hosts", [2])
def test_the_number_of_hosts_changes_nothing(data, mesh, num_hosts):
  """A global batch has the same rows in the same order, read by one host or by several."""
  data = dataclasses.replace(data, num_streams=4)
  whole = take(batches(data, mesh), 3)
  per_host = 8 // num_hosts
  hosts = {host: {(host * per_host, (host + 1) * per_host)} for host in range(num_hosts)}
  plan = pipeline.plan(data, "encoder_decoder", pipeline.load_task(data), train=True, seed=1)
  parts = []
  for host in range(num_hosts):
    iterator = batch_iterator.BatchIterator(
      plan,
      batch_iterator.host_streams(hosts[host], batch_size=8, num_streams=4),
      num_streams=4,
      batch_size=8,
      batch_sharding=sharding.batch_sharding(mesh),
      identity={},
    )
    parts.append([iterator.next_rows() for _ in range(3)])
  for step, batch in enumerate(whole):
    for name, array in batch.items():
      rows = [part[step][stream][name] for part in parts for stream in sorted(part[step])]
      np.testing.assert_array_equal(np.concatenate(rows), array, err_msg=name)


def test_streams_for_any_layout_of_hosts():
  """The number of streams divides the batch and prefers whole streams per host; hosts may share a stream."""
  one = {0: {(0, 12)}}
  assert batch_iterator.choose_num_streams(one, batch_size=12) == 6
  assert batch_iterator.choose_num_streams({0: {(0, 8)}}, batch_size=8, documents=5) == 1
  many = {host: {(host * 2, host * 2 + 2)} for host in range(64)}
  assert batch_iterator.choose_num_streams(many, batch_size=128) == 128
  assert (
    batch_iterator.choose_num_streams({host: {(host * 8, host * 8 + 8)} for host in range(256)}, batch_size=2048) == 256
  )
  assert batch_iterator.choose_num_streams(many, batch_size=128, wanted=8) == 8
  assert batch_iterator.host_streams(many[9], batch_size=128, num_streams=8) == [1]
  shared = {0: {(0, 4)}, 1: {(0, 4)}, 2: {(4, 8)}, 3: {(4, 8)}}  # a tensor axis that spans two hosts
  assert batch_iterator.choose_num_streams(shared, batch_size=8) == 8
  assert batch_iterator.host_streams(shared[2], batch_size=8, num_streams=4) == [2, 3]
  apart = {(0, 2), (4, 6)}
  assert batch_iterator.host_streams(apart, batch_size=8, num_streams=4) == [0, 2]
  uneven = {0: {(0, 48)}, 1: {(48, 96)}, 2: {(96, 144)}}
  assert batch_iterator.choose_num_streams(uneven, batch_size=144) == 24  # multiple of three hosts
  with pytest.raises(
    UserError, match=r"num_streams=5 does not divide config.train.batch_size=12.*\[1, 2, 3, 4, 6, 12\]"
  ):
    batch_iterator.choose_num_streams(one, batch_size=12, wanted=5)


def test_rows_of_hosts(mesh):
  (rows,) = batch_iterator.host_rows(sharding.batch_sharding(mesh), 8 * jax.device_count()).values()
  assert sum(stop - start for start, stop in rows) == 8 * jax.device_count()


@pytest.mark.exhaustive
def test_eval_batches_are_always_the_same(data, mesh):
  """Two calls agree; the last batch is padded with rows of weight 0."""
  data = dataclasses.replace(data, eval_files=data.files)
  first = pipeline.eval_batches(data, "encoder_decoder", mesh, batch_size=8, max_batches=100)
  second = pipeline.eval_batches(data, "encoder_decoder", mesh, batch_size=8, max_batches=100)
  assert_same(first, second)
  assert len(pipeline.eval_batches(data, "encoder_decoder", mesh, batch_size=8, max_batches=2)) == 2
  real = np.asarray(first[-1]["decoder_loss_weights"]).sum(1) > 0
  assert real[0] and not real[-1] and not np.asarray(first[-1]["encoder_input_tokens"])[~real].any()
  assert all(batch["encoder_input_tokens"].shape == (8, 128) for batch in first)


@pytest.mark.slow
def test_held_out_text_is_not_trained_on(data, mesh):
  """Training never reads the held-out text if eval_files is not set."""
  data = dataclasses.replace(data, pack=True)
  held_out = pipeline.eval_rows(data, "encoder_decoder", batch_size=8, max_batches=9)
  assert sum(batch["decoder_loss_weights"].sum() for batch in held_out) > 0
  task = pipeline.load_task(data)
  texts = {
    split: {element["text"] for element in task.source.get_dataset(split).as_numpy_iterator()}
    for split in ("train", "validation")
  }
  assert texts["validation"] and not texts["train"] & texts["validation"]
  assert len(texts["train"]) + len(texts["validation"]) == len(TEXTS)


@pytest.mark.slow
def test_a_position_of_other_data_is_refused(data, mesh):
  state = batches(data, mesh).state()
  with pytest.raises(UserError, match="config.data.inputs_length is 100, but the checkpoint's .* belongs to 128"):
    batches(dataclasses.replace(data, inputs_length=100), mesh).restore(state, step=0)
  with pytest.raises(UserError, match="config.train.seed is 2"):
    batches(data, mesh, seed=2).restore(state, step=0)
  with pytest.raises(UserError, match="no data position for stream-00000-of-00004"):
    batches(data, mesh, num_streams=4).restore(state, step=0)


def test_a_position_belongs_to_all_that_the_order_of_the_data_depends_on(data):
  """Every key that affects training data changes the fingerprint; locations and other keys do not."""
  # Files and folders are identified by their contents.
  moves = {"files", "vocabulary", "cache_dir", "benchmark_dirs"}
  free = moves | {"eval_files", "eval_split", "task_modules", "num_streams", "annotations", "translation"}
  free |= {"max_bad_record_fraction", "allow_changed_files", "repeat_warning_epochs", "sources", "mixing_unit", "alpha"}
  free |= {"dictionary", "switching_rate"}  # counted together
  free |= {"language", "subset_seed"}  # count where tags name it, or a subset is drawn
  free |= {"templates", "template_names", "template_blank", "train_labels"}  # count by their contents
  free |= {"labels", "columns", "prefix", "table"}  # of a table, which counts by `tables.identity`
  free |= {"tokens_dtype", "tokens_end"}  # of files of ids, which count by their source
  free |= {"hub_revisions"}  # the paths have the commits

  def identity(data, **options):
    options = {"batch_size": 8, "seed": 1, "num_streams": 2} | options
    return identities.settings(data, pipeline.vocabulary(data), **options)

  own = identity(data)
  few = [identity(dataclasses.replace(data, max_train_examples=3, subset_seed=seed)) for seed in (0, 1)]
  assert few[0] != few[1]
  for key, value in dataclasses.asdict(data).items():
    if key not in free:
      other = (not value) if isinstance(value, bool) else f"{value}x" if isinstance(value, str) else value + 1
      other = {"objective": "causal_lm", "max_train_examples": 3}.get(key, other)  # valid values
      assert identity(dataclasses.replace(data, **{key: other})) != own, key
  marked = dataclasses.replace(data, objective="annotated_masked_lm")
  pairs = dataclasses.replace(data, objective="translation_lm", translation=".txt=.fr.txt")
  for key, other, reads in (("annotations", marked, True), ("annotations", data, False), ("translation", data, False)):
    assert (identity(dataclasses.replace(other, **{key: "other"})) != identity(other)) is reads
  for tags in ("", "<2{target}>"):
    one, other = (dataclasses.replace(pairs, language=name, language_tags=tags) for name in ("en,fr", "en,sw"))
    assert (identity(one) != identity(other)) is bool(tags)
  assert identity(pairs)["data.translation"] == ".txt=.fr.txt"
  assert identity(data, batch_size=16) != own and identity(data, seed=2) != own and identity(data, num_streams=4) != own


@pytest.mark.slow
def test_a_bad_line_in_the_middle_of_training(data, mesh, tmp_path, monkeypatch):
  """The pipeline names the bad line of a corpus that is too large to validate, and does not hang."""
  monkeypatch.setattr(file_validation, "READ_WHOLE_BYTES", 0)
  monkeypatch.setattr(file_validation, "SAMPLED_RECORDS", 10)
  path = tmp_path / "train-1.jsonl"
  lines = path.read_text().splitlines()
  path.write_text("\n".join([*lines[:40], '{"text": "cut off', *lines[40:]]))
  iterator = batches(data, mesh)
  with pytest.raises(UserError, match="train-1.jsonl, line 41: .* is not JSON"):
    take(iterator, 2 * ONE_EPOCH)


# ---- Errors of `check` -----------------------------------------------------------------------------------------------


def check(data, *, batch_size=8, model_vocab_size=384, **model):
  validation.check(data, batch_size=batch_size, model_vocab_size=model_vocab_size, **model)


@pytest.mark.exhaustive
def test_good_data_passes(data):
  check(data)
  check(dataclasses.replace(data, pack=True))


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"vocabulary": ""}, 'config.data.vocabulary is empty, but config.data.files needs a vocabulary. Give "bytes"'),
    ({"files": ""}, "exactly one of these keys must be set"),
    ({"mixture": "c4_span_corruption"}, "exactly one of these keys must be set"),
    ({"objective": "span_corruptoin"}, "did you mean span_corruption"),
    ({"field": "body"}, r"train-0.jsonl, line 1: no field 'body' \(fields: 'text'\)"),
    ({"eval_files": "/nowhere/*.txt"}, "config.data.eval_files: no file matches /nowhere"),
    ({"targets_length": 10}, "config.data.targets_length=10 is too short"),
    ({"extra_ids": 2}, "config.data.extra_ids=2"),
    ({"inputs_length": 0}, "config.data.inputs_length=0: the value must be 1 or more"),
    ({"num_streams": -1}, "config.data.num_streams=-1"),
  ],
)
def test_bad_settings(data, changes, message):
  with pytest.raises(UserError, match=message):
    check(dataclasses.replace(data, **changes))


def test_a_vocabulary_that_does_not_fit_the_model(data):
  with pytest.raises(UserError, match="config.model.vocab_size=300 is too small"):
    check(data, model_vocab_size=300)


def test_an_objective_of_another_architecture(data):
  """The error lists the objectives that fit."""
  with pytest.raises(
    UserError,
    match="config.data.objective=masked_lm does not fit .*=decoder_only. Give one of the objectives .*causal_lm",
  ):
    check(dataclasses.replace(data, objective="masked_lm"), architecture="decoder_only")
  with pytest.raises(
    UserError, match="span_corruption does not fit .*=encoder_only. Give one of the objectives .*masked_lm"
  ):
    check(data, architecture="encoder_only")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "architecture, objective, longest, keys",
  [
    ("encoder_decoder", "span_corruption", 128, "^config.data.inputs_length: .* 128 in the encoder"),
    (
      "decoder_only",
      "prefix_lm",
      168,
      "^config.data.inputs_length . config.data.targets_length: .* 168 in the decoder",
    ),
    ("decoder_only", "causal_lm", 40, "^config.data.targets_length: .* 40 in the decoder"),
    ("encoder_only", "masked_lm", 128, "^config.data.inputs_length: .* 128 in the encoder"),
  ],
)
def test_a_sequence_longer_than_learned_positions(data, architecture, objective, longest, keys):
  """A maximum length below the sequence is rejected; models without a maximum accept any length."""
  data = dataclasses.replace(data, objective=objective)
  check(data, architecture=architecture, model_max_length=longest)
  check(data, architecture=architecture)
  with pytest.raises(UserError, match=keys):
    check(data, architecture=architecture, model_max_length=longest - 1)


@pytest.mark.slow
def test_a_corpus_smaller_than_a_batch(data):
  with pytest.raises(UserError, match=r"fewer than config.train.batch_size=.*batch_size=\d+ or less"):
    check(data, batch_size=512)


@pytest.mark.slow
def test_a_corpus_of_no_example(tmp_path):
  """The only document is held out; with other evaluation text, it fills no batch of two."""
  (tmp_path / "a.txt").write_text("word\n")
  data = DataConfig(files=str(tmp_path / "a.txt"), vocabulary="bytes", inputs_length=32, targets_length=16)
  with pytest.raises(UserError, match="the only document is held out.* config.data.eval_files"):
    check(data, batch_size=2)
  with pytest.raises(
    UserError, match="make 1 example.s., fewer than config.train.batch_size=.*. Give more text, or set .*batch_size=1"
  ):
    check(dataclasses.replace(data, eval_files=data.files), batch_size=2)


def test_an_unknown_architecture(data, mesh):
  with pytest.raises(UserError, match="'decoder': unknown architecture. Known values: encoder_decoder, decoder_only"):
    pipeline.train_batches(data, "decoder", mesh, batch_size=8, seed=0)


# ---- Registered tasks ------------------------------------------------------------------------------------------------

_TASK_FILE = """
import seqio
from t2t.data import objectives
import tensorflow as tf
feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100))
def texts(split, shuffle_files, seed=None):
  return tf.data.Dataset.from_tensor_slices({"text": [f"the text of document {i}" for i in range(100)]})
seqio.TaskRegistry.add(
  "pipeline_test_task",
  source=seqio.FunctionDataSource(texts, splits=["train", "validation"]),
  preprocessors=objectives.preprocessors("span_corruption"),
  output_features={"inputs": feature, "targets": feature},
)
seqio.MixtureRegistry.add("pipeline_test_mixture", [("pipeline_test_task", 1.0)])
"""


@pytest.fixture
def registered(tmp_path):
  path = tmp_path / "my_tasks.py"
  path.write_text(_TASK_FILE)
  yield DataConfig(mixture="pipeline_test_mixture", task_modules=(str(path),), inputs_length=32, targets_length=12)
  seqio.TaskRegistry.remove("pipeline_test_task")
  seqio.MixtureRegistry.remove("pipeline_test_mixture")


@pytest.mark.exhaustive
def test_a_users_own_mixture(registered, mesh):
  """A .py file registers the mixture, is imported once, and resumes like files."""
  check(registered)
  check(registered)
  iterator = batches(registered, mesh, num_streams=2)
  take(iterator, 2)
  state = iterator.state()
  expected = take(iterator, 3)
  resumed = batches(registered, mesh, num_streams=2)
  resumed.restore(state, step=0)
  assert_same(take(resumed, 3), expected)


@pytest.mark.exhaustive
def test_a_mixture_of_another_architecture(registered):
  """The objective of registered tasks is known although the config does not name it."""
  with pytest.raises(
    UserError, match="config.data.mixture=pipeline_test_mixture: the objective span_corruption does no"
  ):
    check(registered, architecture="encoder_only")
  check(registered, architecture="decoder_only")


@pytest.mark.exhaustive
def test_another_vocabulary_for_a_mixture(registered):
  """The mixture is rebuilt with the vocabulary, outside the registry."""
  before = set(seqio.TaskRegistry.names())
  data = dataclasses.replace(registered, vocabulary="bytes", extra_ids=50)
  validation.check(data, batch_size=8, model_vocab_size=384)
  assert pipeline.vocabulary(data).vocab_size == 309
  assert pipeline.load_task(data).output_features["targets"].vocabulary.vocab_size == 309
  assert set(seqio.TaskRegistry.names()) - before == {"pipeline_test_task"}


def test_names_that_are_not_registered(registered, tmp_path):
  with pytest.raises(
    UserError, match="config.data.mixture=pipeline_test_mixtur:.*Similar names: pipeline_test_mixture"
  ):
    check(dataclasses.replace(registered, mixture="pipeline_test_mixtur"))
  with pytest.raises(UserError, match="config.data.task_modules: t2t.tasks.nothing: no such module"):
    check(dataclasses.replace(registered, task_modules=("t2t.tasks.nothing",)))
  with pytest.raises(UserError, match="none.py: no such file"):
    check(dataclasses.replace(registered, task_modules=(str(tmp_path / "none.py"),)))
  (tmp_path / "fails.py").write_text("import os\n\nraise RuntimeError('on purpose')\n")
  with pytest.raises(UserError, match="cannot be imported: .*fails.py, line 3: RuntimeError: on purpose"):
    check(dataclasses.replace(registered, task_modules=(str(tmp_path / "fails.py"),)))
  (tmp_path / "syntax.py").write_text("x = 1\ny = = 2\n")
  with pytest.raises(UserError, match="cannot be imported: .*syntax.py, line 2: SyntaxError"):
    check(dataclasses.replace(registered, task_modules=(str(tmp_path / "syntax.py"),)))
  with pytest.raises(
    UserError, match="config.data.eval_split=test: config.data.mixture=pipeline_test_mixture has no such split"
  ):
    check(dataclasses.replace(registered, eval_split="test"))
  with pytest.raises(UserError, match="config.data.eval_split=validatoin: .*; did you mean validation"):
    check(dataclasses.replace(registered, eval_split="validatoin"))


def test_shipped_tasks_cost_nothing_to_register(tmp_path):
  """Registration reads neither the documentation nor a vocabulary."""
  for name in ("docs", "c4", "wikipedia"):
    registry.task_or_mixture(f"{name}_span_corruption", modules=(f"t2t.tasks.{name}",))
  assert not (tmp_path / "cache").exists()


def test_tensorflow_sees_no_accelerator():
  assert tf.config.get_visible_devices("GPU") == []


def test_preprocessors_that_fail(tmp_path):
  """A failing preprocessor is reported in one line with the command that locates it."""
  (tmp_path / "fails.py").write_text(
    "import seqio, tensorflow as tf\n"
    "from t2t.data import objectives, vocabularies\n"
    "features = objectives.output_features('causal_lm', vocabularies.load('bytes'))\n"
    "make = lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(['a text'] * 9)\n"
    "source = seqio.FunctionDataSource(make, splits=['train', 'validation'])\n"
    "steps = [lambda dataset: dataset.map(lambda x: x['text'])]\n"
    "seqio.TaskRegistry.add('pipeline_test_fails', source, features, steps, metric_fns=[])\n"
  )
  data = DataConfig(mixture="pipeline_test_fails", task_modules=(str(tmp_path / "fails.py"),))
  try:
    with pytest.raises(
      UserError, match=r"pipeline_test_fails: the preprocessors fail with .*`t2t tasks show pipeline_test"
    ):
      check(dataclasses.replace(data, inputs_length=32, targets_length=32), architecture="decoder_only")
  finally:
    seqio.TaskRegistry.remove("pipeline_test_fails")
