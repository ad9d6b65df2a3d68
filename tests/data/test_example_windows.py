"""Rows: a run that stops after any step resumes with the same data, whatever the task."""

import copy
import dataclasses
import functools
import itertools
import json
import random

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import determinism, example_windows, objectives, pipeline, preprocessors, sources, validation

pytestmark = pytest.mark.slow

STEPS = 14
TEXTS = [" ".join(f"word{(i * k) % 31}" for k in range(1, 9 + i % 23)) + f" {i}." for i in range(60)]


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
  """Windows of a few examples, so that a few steps cover many windows and several epochs."""
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setattr(example_windows, "_EXAMPLES_OF_WINDOW", 8)
  monkeypatch.setattr(example_windows, "_MIXED_PACKED", 12)
  monkeypatch.setattr(example_windows, "_MIXED_ALONE", 12)


@pytest.fixture
def files(tmp_path):
  (tmp_path / "a.txt").write_text("\n".join(TEXTS[:40]))
  (tmp_path / "b.txt").write_text("\n".join(TEXTS[40:]))
  return DataConfig(
    files=f"{tmp_path}/?.txt", vocabulary="bytes", inputs_length=64, targets_length=64, shuffle_buffer=5, num_streams=2
  )


@functools.cache
def mesh():
  return sharding.make_mesh({"fsdp": -1})


def batches(data, architecture="encoder_decoder", **options):
  return pipeline.train_batches(data, architecture, mesh(), **{"batch_size": 8, "seed": 1, **options})


def take(iterator, number):
  return [{name: np.asarray(array) for name, array in next(iterator).items()} for _ in range(number)]


def assert_same(left, right):
  for step, (a, b) in enumerate(zip(left, right, strict=True)):
    for name in a.keys() | b.keys():
      np.testing.assert_array_equal(a[name], b[name], err_msg=f"step {step}, {name}")


def assert_stopping_changes_nothing(iterator, *, steps=STEPS, every=1):
  """Restores after every `every` steps, from a position that was itself saved after a restore. Returns the
  uninterrupted batches.
  """
  whole = take(iterator, steps)
  iterator.restore(BEGINNING(iterator), step=0)
  state, stopped = iterator.state(), []
  while len(stopped) < steps:
    iterator.restore(json.loads(json.dumps({k: v.decode() for k, v in state.items()}), object_hook=_bytes), step=0)
    stopped += take(iterator, min(every, steps - len(stopped)))
    state = iterator.state()
  assert_same(stopped, whole)
  return whole


def _bytes(found):
  return {name: value.encode() for name, value in found.items()}


def BEGINNING(iterator):
  """Returns the state of an iterator at its beginning."""
  fresh = example_windows.beginning(iterator._plan)
  now = iterator._positions
  iterator._positions = dict.fromkeys(now, fresh)
  state = iterator.state()
  iterator._positions = now
  return state


OBJECTIVES = {
  "span_corruption": "encoder_decoder",
  "ul2": "encoder_decoder",
  "causal_lm": "decoder_only",
  "masked_lm": "encoder_only",
  "masked_diffusion": "encoder_only",
}


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("objective", "pack"),
  [("span_corruption", True), ("ul2", True), ("causal_lm", False), ("masked_lm", True), ("masked_diffusion", False)],
)
def test_stopped_after_every_step(files, objective, pack):
  data = dataclasses.replace(files, objective=objective, pack=pack)
  whole = assert_stopping_changes_nothing(batches(data, OBJECTIVES[objective]))
  if objective != "causal_lm":  # causal_lm has no noise
    kept = np.concatenate([batch["encoder_input_tokens"] for batch in whole])
    assert len(np.unique(kept, axis=0)) > 0.9 * len(kept)  # windows and epochs do not repeat each other's noise


def test_the_order_is_the_same_on_every_machine(files):
  """The order depends only on numbers and a checksum of the task's name, because Python's hash differs between
  processes.
  """
  plan = pipeline.plan(files, "encoder_decoder", pipeline.load_task(files), train=True, seed=7)
  (source,) = example_windows.sources_of(plan, 2)
  assert source.order(1).seed == (7, 1, 104153177)  # zlib.crc32(b"files")


# ---- Registered tasks ------------------------------------------------------------------------------------------------


def records(split, shuffle_files=False, seed=None, *, number):
  return tf.data.Dataset.from_tensor_slices(
    {"inputs": [f"{number}: {text}"[:50] for text in TEXTS], "targets": [str(len(text)) for text in TEXTS]}
  )


@pytest.fixture
def register():
  """Registers question-answer tasks, and removes them after the test."""
  names = []

  def add(name, *steps, number=0):
    seqio.TaskRegistry.add(
      name,
      source=seqio.FunctionDataSource(functools.partial(records, number=number), splits=("train",)),
      preprocessors=[*steps, *preprocessors.text_to_text(lambda dataset: dataset)],
      output_features=preprocessors.t5_features(),
      shuffle_buffer_size=7,
    )
    names.append(name)
    return name

  yield add
  for name in names:
    seqio.TaskRegistry.remove(name)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [False, True])
def test_a_mixture_stopped_after_every_step(register, pack):
  """The example number selects the task, in proportion to the rates."""
  names = [register(f"rows_{number}", number=number) for number in range(3)]
  seqio.MixtureRegistry.add("rows_mixture", list(zip(names, (1, 2, 5), strict=True)))
  data = DataConfig(
    mixture="rows_mixture", eval_split="train", vocabulary="bytes", inputs_length=64, targets_length=64, pack=pack
  )
  try:
    whole = assert_stopping_changes_nothing(batches(data, num_streams=2), every=2)
  finally:
    seqio.MixtureRegistry.remove("rows_mixture")
  if not pack:
    first = np.concatenate([batch["encoder_input_tokens"][:, 0] for batch in whole])
    shares = np.bincount(first - (ord("0") + 3), minlength=3) / len(first)
    np.testing.assert_allclose(shares, [0.125, 0.25, 0.625], atol=0.16)
    streams = np.stack([batch["encoder_input_tokens"][:, 0].reshape(2, -1) for batch in whole])
    assert np.any(streams[:, 0] != streams[:, 1])  # streams sample independently


def test_a_task_stopped_after_every_step(register):
  data = DataConfig(
    mixture=register("rows_alone"), eval_split="train", vocabulary="bytes", inputs_length=64, targets_length=16
  )
  assert_stopping_changes_nothing(batches(data, num_streams=4), every=3)


@seqio.map_over_dataset(num_seeds=1)
def drawn_from_seeds(features, seed):
  number = tf.random.stateless_uniform([], seed, 0, 1000, tf.int32)
  return {**features, "inputs": features["inputs"] + tf.strings.as_string(number)}


@seqio.map_over_dataset
def drawn_anew(features):
  return {**features, "inputs": features["inputs"] + tf.strings.as_string(tf.random.uniform([], 0, 10**6, tf.int32))}


def counted():
  numbers = itertools.count()

  @seqio.map_over_dataset
  def counting(features):
    number = tf.ensure_shape(tf.numpy_function(lambda: np.int64(next(numbers)), [], tf.int64), [])
    return {**features, "inputs": features["inputs"] + tf.strings.as_string(number)}

  return counting


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("step", "name"), [(drawn_anew, "drawn_anew"), (counted(), "counting")])
def test_a_preprocessor_with_a_memory_is_named(register, step, name):
  data = DataConfig(mixture=register("rows_stateful", drawn_from_seeds, step), eval_split="train", vocabulary="bytes")
  with pytest.raises(UserError, match=f"rows_stateful: its preprocessor .*{name} returns different results"):
    validation.check(data, batch_size=8, model_vocab_size=384)


@pytest.mark.exhaustive
def test_a_preprocessor_that_draws_from_its_seeds_passes(register):
  data = DataConfig(
    mixture=register("rows_stateless", drawn_from_seeds), eval_split="train", vocabulary="bytes", targets_length=16
  )
  validation.check(data, batch_size=8, model_vocab_size=384)
  found = take(batches(data, num_streams=2), 30)  # several epochs, each with other random numbers
  kept = np.concatenate([batch["encoder_input_tokens"] for batch in found])
  assert len(np.unique(kept, axis=0)) > 0.9 * len(kept)


def rarely_dropped(dataset):
  return dataset.filter(lambda features: tf.random.uniform([]) > 1e-6)


def named_at_random(dataset):
  word = str(random.random())
  return dataset.map(lambda features: {**features, "inputs": features["inputs"] + word})


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("step", [rarely_dropped, named_at_random])
def test_draws_that_a_few_records_hardly_show_are_found(register, step):
  """Random operations are found in the graph; randomness at build time is found by building the graph twice."""
  data = DataConfig(mixture=register("rows_hidden", drawn_from_seeds, step), eval_split="train", vocabulary="bytes")
  with pytest.raises(UserError, match=f"rows_hidden: its preprocessor .*{step.__name__} returns different results"):
    validation.check(data, batch_size=8, model_vocab_size=384)


def test_the_first_few_records_are_not_those_of_each_window(register):
  data = DataConfig(
    mixture=register("rows_few", lambda dataset: dataset.take(5)), eval_split="train", vocabulary="bytes"
  )
  with pytest.raises(UserError, match="rows_few: its preprocessors make 5 examples of 30 records and of 60"):
    validation.check(data, batch_size=8, model_vocab_size=384)


def test_a_source_that_shuffles_by_itself_is_named(register):
  name = register("rows_shuffled")
  task = seqio.TaskRegistry.get(name)
  shuffled = lambda split, shuffle_files=False, seed=None: records(split, number=0).shuffle(60)
  plan = pipeline.plan(
    DataConfig(mixture=name, vocabulary="bytes"),
    "encoder_decoder",
    task.replace(source=seqio.FunctionDataSource(shuffled, splits=("train",))),
    train=True,
    seed=0,
  )
  with pytest.raises(UserError, match="rows_shuffled: its source yields different records, or another order"):
    determinism.check(plan)


class OtherFiles(sources.FileSource):
  """A user's file source."""


class OtherVocabulary(seqio.ByteVocabulary):
  """A user's vocabulary."""


def closed_over(function):
  def step(dataset):
    return function(dataset)

  step.__module__ = "t2t.data"
  return step


@pytest.mark.parametrize(
  "change",
  [
    lambda task: {"preprocessors": [*task.preprocessors, rarely_dropped]},
    lambda task: {"preprocessors": [drawn_anew, *task.preprocessors]},
    lambda task: {"preprocessors": [functools.partial(seqio.preprocessors.rekey, key_map=rarely_dropped)]},
    lambda task: {"preprocessors": [functools.partial(seqio.preprocessors.rekey, key_map={"a": [rarely_dropped]})]},
    lambda task: {"preprocessors": [functools.partial(closed_over(rarely_dropped))]},
    lambda task: {"source": seqio.FunctionDataSource(functools.partial(records, number=0), splits=("train",))},
    lambda task: {"source": copied(task.source, OtherFiles)},
    lambda task: {"output_features": {"targets": seqio.Feature(OtherVocabulary())}},
  ],
)
def test_code_of_a_user_is_looked_at_wherever_it_is_held(files, change):
  """A task is built twice only if it holds code from outside t2t."""
  task = pipeline.load_task(files)
  assert not determinism._has_user_code(task)
  assert determinism._has_user_code(task.replace(**change(task)))


def copied(source, kind):
  found = copy.copy(source)
  found.__class__ = kind
  return found


def test_streams_draw_noise_of_their_own(files):
  """Held-out rows of different streams are masked at different positions."""
  data = dataclasses.replace(files, eval_files=files.files)
  (batch, *_) = pipeline.eval_rows(data, "encoder_decoder", batch_size=8, max_batches=1)
  places = {tuple(np.flatnonzero(row >= 259)) for row in batch["encoder_input_tokens"]}
  assert len(places) >= 6


@pytest.mark.exhaustive
def test_more_streams_than_records(files, tmp_path):
  """Streams without records read all records, each in its own order."""
  (tmp_path / "few.txt").write_text("\n".join(TEXTS[:3]))
  data = dataclasses.replace(files, files=str(tmp_path / "few.txt"), eval_files=files.files, num_streams=8)
  assert_stopping_changes_nothing(batches(data), steps=4)


@pytest.mark.exhaustive
def test_what_is_held_out_ends_where_a_task_is_never_drawn(register):
  """A rate of 0 excludes a task, so evaluation does not wait for the end of its examples."""
  names = [register(f"rows_{number}", number=number) for number in range(2)]
  seqio.MixtureRegistry.add("rows_one_of_two", list(zip(names, (0, 1), strict=True)))
  data = DataConfig(mixture="rows_one_of_two", eval_split="train", vocabulary="bytes", inputs_length=64, num_streams=1)
  try:
    found = list(pipeline.eval_rows(data, "encoder_decoder", batch_size=8, max_batches=20))
  finally:
    seqio.MixtureRegistry.remove("rows_one_of_two")
  first = np.concatenate([batch["encoder_input_tokens"][:, 0] for batch in found])
  assert (first == ord("1") + 3).sum() == len(TEXTS) and not (first == ord("0") + 3).any()


def test_a_mixture_that_draws_in_its_own_way_is_refused(register):
  name = register("rows_own")
  mixture = seqio.Mixture("rows_drawn", [(name, 1)], sample_fn=lambda datasets, rates, seed: datasets[0])
  plan = example_windows.DataPlan(
    mixture, "train", lengths={"inputs": 8, "targets": 8}, convert=lambda x: x, pack=False, seed=0
  )
  with pytest.raises(UserError, match="rows_drawn: the mixture is registered with a sample_fn"):
    example_windows.mixing_rates(plan)


# ---- Windows ---------------------------------------------------------------------------------------------------------


def test_a_position_is_a_few_integers(files):
  iterator = batches(files)
  take(iterator, 3)
  (saved, _) = (json.loads(each) for each in iterator.state().values())
  assert saved["position"].keys() == {"window", "taken", "tasks"} and len(saved["position"]["tasks"]["files"]) == 4
  assert len(json.dumps(saved)) < 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
def test_the_border_of_a_window_costs_next_to_nothing(files, tmp_path, monkeypatch, pack):
  """Windows of the usual size make less than 0.1 % more rows than a single window of the same text."""
  (tmp_path / "long.txt").write_text("\n".join(TEXTS * 60))
  data = dataclasses.replace(files, eval_files=str(tmp_path / "long.txt"), objective="causal_lm", pack=pack)
  plan = pipeline.plan(data, "decoder_only", pipeline.load_task(data), train=False, seed=0)

  def made(examples):
    monkeypatch.setattr(example_windows, "_EXAMPLES_OF_WINDOW", examples)
    parts = example_windows.of_streams(
      plan, [0], lambda _: example_windows.beginning(plan), num_streams=1, rows=64, parts=400
    )
    return sum(int((part[example_windows.POSITION][0, :, 0] >= 0).numpy().sum()) for part in parts)

  with_borders, without = made(512), made(10**9)
  assert without > 4000 and abs(with_borders - without) < 1e-3 * without


@pytest.mark.exhaustive
def test_an_older_position_starts_at_the_same_part_of_the_epoch(files, capfd):
  """The bytes of an old position are ignored; the step gives the number of examples that were taken."""
  iterator = batches(files)
  old = {name: b"1 2\n{}whatever it was" for name in iterator.stream_names}
  places = []
  for step in (0, 30, 300):
    iterator.restore(old, step=step)
    take(iterator, 1)
    places.append(json.loads(iterator.state()[iterator.stream_names[0]])["position"]["tasks"]["files"][:2])
  assert places[0] == [0, 0] and places == sorted(places) and places[2][0] > places[1][0]
  assert capfd.readouterr().err.count("older version of t2t") == 3


@pytest.mark.exhaustive
def test_streams_shared_by_hosts_are_the_same(files):
  """With more hosts than streams, each host makes its whole stream, and a stream's first host saves the position."""
  plan = pipeline.plan(files, "encoder_decoder", pipeline.load_task(files), train=True, seed=1)
  make = functools.partial(
    example_windows.of_streams,
    plan,
    start=lambda stream: example_windows.beginning(plan),
    num_streams=2,
    rows=4,
    streams=[1],
  )
  ((one,), (other,)) = (list(make().take(1)) for _ in range(2))
  np.testing.assert_array_equal(one["encoder_input_tokens"], other["encoder_input_tokens"])


def test_objectives_have_a_row_each():
  """The objectives tested above are entries of the objective table."""
  assert set(OBJECTIVES) <= set(objectives.OBJECTIVES)
