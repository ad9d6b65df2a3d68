"""Stages: keys that they may change, the begin of their data, and bit-exact resumption at every step."""

import dataclasses
import itertools
import json
import re
import shutil
import types

import jax
import numpy as np
import pytest
import seqio
import test_example_windows
import test_nan_policy
import test_train

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.configuration import stages
from t2t.configuration.loading import load_config, override, records, saved_config
from t2t.configuration.schema import DataConfig
from t2t.data import example_windows, position_migration, shard_order, train_data
from t2t.training import schedules, stage_program

small, files, register = test_example_windows.small, test_example_windows.files, test_example_windows.register
text = test_train.text  # the fixture, as the three above


def config_of(*found, name="tiny", overrides=()):
  config = load_config(name)
  config.stages = found
  return records(override(config, list(overrides)))


SHORT, LONG = {"name": "short", "fraction": 0.9, "data.inputs_length": 32}, {"name": "long", "train.batch_size": 8}


# ---- Config ----------------------------------------------------------------------------------------------------------


def test_a_run_without_stages_is_one():
  config = load_config("tiny")
  (stage,) = stages.of(records(config))
  assert (stage.begin, stage.end, stage.described) == (0, config.train.steps, "")


@pytest.mark.parametrize(
  ("said", "ends"),
  [
    ([{"fraction": 0.9}, {}], [90, 100]),
    ([{"steps": 10}, {"fraction": 0.25}, {}], [10, 35, 100]),
    ([{}, {"steps": 1}], [99, 100]),
    ([{"fraction": 0.5}, {"fraction": 0.5}], [50, 100]),
    ([{"fraction": 0.333}, {"fraction": 0.333}, {"fraction": 0.334}], [33, 66, 100]),
  ],
)
def test_steps_are_said_as_numbers_or_shares_or_are_what_is_left(said, ends):
  found = stages.of(config_of(*said, overrides=["--config.train.steps=100"]))
  assert [stage.end for stage in found] == ends and [stage.begin for stage in found] == [0, *ends[:-1]]
  assert [stage.name for stage in found] == [str(number) for number in range(1, len(said) + 1)]
  unnamed = config_of(*({"name": ""} | x for x in said), overrides=["--config.train.steps=100"])
  assert stages.of(unnamed)[0].name == "1"
  made = [stages.at(found, step) for step in range(101)]
  assert made == sorted(made) and made[0] == 0 and all(found[made[end]].end == end for end in ends)


@pytest.mark.parametrize(("total", "ends"), [(1, [1]), (2, [1, 2]), (4, [3, 4]), (1_000_000, [900_000, 1_000_000])])
def test_a_run_of_few_steps_has_what_stages_it_can(total, ends):
  """A run of two steps has both stages; a run of one step has the last."""
  assert [stage.end for stage in stages.of(config_of(SHORT, LONG, overrides=[f"--config.train.steps={total}"]))] == ends


def test_a_stage_is_the_run_but_for_what_it_changes():
  config = config_of(SHORT, LONG)
  short, long = stages.of(config)
  without = lambda found: dataclasses.replace(found, stages=())
  assert without(short.config) == without(config.with_(data={"inputs_length": 32}))
  assert without(long.config) == without(config.with_(train={"batch_size": 8}))


def test_the_config_of_any_stage_has_all_stages():
  """A checkpoint is saved with the config of its stage, from which a reader gets the others."""
  heads = ({"name": "a", "num_classes": 3},)
  found = stages.of(
    config_of({**SHORT, "data.sources": {"a": {"files": "a.txt", "rate": 2.0}}}, LONG | {"model.heads": heads})
  )
  for stage in found:
    saved = json.loads(json.dumps(stage.config.to_dict()))
    assert stages.of(records(saved_config(saved))) == found
  assert found[0].config.data.sources["a"].rate == 2.0 and not found[0].config.data.mixture
  assert not found[1].config.data.sources


def test_a_source_is_changed_by_its_keys():
  """Keys that are not changed keep their values."""
  options = [
    "--config.data.sources.a.files=a.txt",
    "--config.data.sources.a.rate=1",
    "--config.data.sources.b.files=b.txt",
  ]
  options += ["--config.data.sources.b.rate=1", "--config.data.vocabulary=bytes"]
  found = stages.of(config_of({"fraction": 0.5}, {"data.sources.b.rate": 3}, overrides=options))
  of = lambda stage: {name: (source.files, source.rate) for name, source in stage.config.data.sources.items()}
  assert of(found[0]) == {"a": ("a.txt", 1.0), "b": ("b.txt", 1.0)}
  assert of(found[1]) == {"a": ("a.txt", 1.0), "b": ("b.txt", 3.0)}


@pytest.mark.parametrize(
  ("said", "message"),
  [
    ([{"fraction": 0.5}, {"fraction": 0.4}], "add up|= 90 steps"),
    ([{"fraction": 1.0}, {}], "2 needs at least one step, but the other stages leave 0 of config.train.steps"),
    ([{"steps": 10}, {"fraction": 0.5}, {"fraction": 0.5}], "10 \\+ 50 \\+ 50 = 110 steps"),
    ([{"fraction": 0.5}, {"fraction": 0.5}, {"steps": 30}], "50 \\+ 50 \\+ 30 = 130 steps"),
    ([{}, {}], "1, 2 have neither steps nor fraction"),
    ([{"name": "a", "fraction": 0.5}, {"name": "a"}], "two stages have the name 'a'"),
    (
      [{"name": "a b/c", "fraction": 0.5}, {}],
      "'a b/c' is not a valid name of a stage; use only letters, digits and _",
    ),
    ([{"steps": 3, "fraction": 0.1}, {}], "give only one of these keys"),
    ([{"steps": 0.5}, {}], "steps=0.5 must be an integer of at least 1"),
    ([{"fraction": 1.5}, {}], "fraction=1.5 must be a fraction of config.train.steps, from 0 to 1"),
    ([{"step": 3}, {}], "stage 1: no such key 'step'; did you mean steps"),
    ([{"steps": 0}, {}], "steps=0 must be an integer of at least 1"),
    (["short"], "'short' is not a mapping.*in Python syntax"),
    ([{3: 4}], "stage 1: the key 3 is not a string"),
    ([{"data.sources": {"a": 3}}], "data.sources.a=3 must be a mapping with these keys: files"),
    ([{"data.input_length": 3}], "no such key 'data.input_length'.*data.inputs_length"),
    ([{"inputs_length": 3}], "no such key 'inputs_length'.*data.inputs_length"),
    ([{"data.inputs_length": "32"}], "data.inputs_length='32' must be of type int"),
    ([{"data.vocabulary": "x"}], "data.vocabulary cannot change.*one embedding"),
    ([{"optimizer.name": "lamb"}], "optimizer.name cannot change.*A stage may change learning_rate"),
    ([{"optimizer.b1": 0.5}], "optimizer.b1 cannot change.*The optimizer's state continues"),
    ([{"mesh.fsdp": 2}], "mesh.fsdp cannot change.*sharded over devices once"),
    ([{"train.seed": 2}], "train.seed cannot change"),
    ([{"train.steps": 2, "fraction": 0.5}, {}], "train.steps cannot change.*Give steps or fraction"),
    (
      [{"checkpoint.save_interval_steps": 2}],
      "checkpoint.save_interval_steps cannot change.*data, train, optimizer, model",
    ),
    ([{"data.sources.a.ratee": 2}], "no such key 'data.sources.a.ratee'.*rate"),
    ([{"model.dropout_rate": 2.0}], "1: config.model.dropout_rate=2.0"),
  ],
)
def test_what_cannot_be_is_said(said, message):
  with pytest.raises(UserError, match=f"config.stages.*({message})"):
    stages.of(config_of(*said, overrides=["--config.train.steps=100"]))


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("key", ["model.embed_dim", "model.num_encoder_layers", "model.vocab_size"])
def test_a_stage_has_the_same_parameters(key):
  mesh = sharding.make_mesh({"data": 1}, devices=[test_example_windows.mesh().devices.flat[0]])
  value = {"model.embed_dim": 32, "model.num_encoder_layers": 1, "model.vocab_size": 256}[key]
  run = train_data.resolved_stages(config_of({"fraction": 0.5}, {"name": "wide", key: value}))
  message = f"config.stages, wide: the model differs from the model of 1 .* it was .*the stage \\({key}={value}\\), or"
  with jax.set_mesh(mesh), pytest.raises(UserError, match=message):
    stage_program.StagePrograms(run, mesh)


def test_what_is_typed_for_the_run_has_a_say_in_some_stage():
  """An override without effect in every stage is refused."""
  stage = {"fraction": 0.5, "data.inputs_length": 32}
  typed = ["--config.data.inputs_length=48"]
  assert [x.config.data.inputs_length for x in stages.of(config_of(stage, {}, overrides=typed))] == [32, 48]
  with pytest.raises(
    UserError,
    match=r"inputs_length=48 has no effect, because every stage of this config sets "
    r"data.inputs_length \(1: 32, 2: 16\)",
  ):
    config_of(stage, {"data.inputs_length": 16}, overrides=typed)
  assert config_of(stage, {"data.inputs_length": 16}, overrides=["--config.stages=()", *typed]).stages == ()


# ---- Learning rate ---------------------------------------------------------------------------------------------------

RATE = ("--config.train.steps=100", "--config.optimizer.schedule=cosine", "--config.optimizer.warmup_steps=10")


def test_one_schedule_goes_over_all_stages():
  config = config_of(SHORT, LONG, overrides=RATE)
  whole = schedules.make_schedule(config.optimizer, 100)
  of_run = schedules.of_run(stages.of(config)[1].config)
  assert [float(of_run(step)) for step in range(100)] == [float(whole(step)) for step in range(100)]


def test_a_stage_may_have_a_rate_of_its_own():
  """The stage's schedule is that of a separate run; other stages follow the run's schedule."""
  own = {"optimizer.schedule": "linear", "optimizer.learning_rate": 0.5, "optimizer.warmup_steps": 4}
  config = config_of({"steps": 30}, {"steps": 20, **own}, {}, overrides=RATE)
  whole = schedules.make_schedule(config.optimizer, 100)
  stage = schedules.make_schedule(
    dataclasses.replace(config.optimizer, schedule="linear", learning_rate=0.5, warmup_steps=4), 20
  )
  of_run = schedules.of_run(config)
  found = [float(of_run(step)) for step in range(100)]
  expected = [float(whole(step) if not 30 <= step < 50 else stage(step - 30)) for step in range(100)]
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert found[33] == pytest.approx(0.5) and found[29] < 0.5


def test_a_bad_rate_of_a_stage_is_refused():
  config = config_of({"fraction": 0.5}, {"name": "b", "optimizer.learning_rate": -1.0})
  with pytest.raises(UserError, match="^config.stages, b: config.optimizer.learning_rate=-1.0 must be at least 0"):
    stage_program.StagePrograms(stages.of(config), test_example_windows.mesh())


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_stage_that_a_run_of_few_steps_has_not_has_no_rate(name):
  own = {"fraction": 0.9, "optimizer.schedule": name}
  found = schedules.of_run(config_of(own, {"optimizer.learning_rate": 0.5}, overrides=["--config.train.steps=1"]))
  alone = schedules.of_run(config_of(overrides=["--config.train.steps=1", "--config.optimizer.learning_rate=0.5"]))
  assert float(found(0)) == float(alone(0)) > 0


@pytest.mark.parametrize(("size", "warmup", "rates"), [("base", 3e9, (8e-4, 3e-4)), ("large", 2e9, (5e-4, 5e-5))])
def test_modern_bert_has_the_rates_that_were_published(size, warmup, rates):
  """Warner et al. 2024, section 2.2.2: tokens of warmup, and learning rates of the first and later phases."""
  config = config_of(*load_config(f"modern_bert_{size}").stages, name=f"modern_bert_{size}")
  schedule, run = schedules.of_run(config), stages.of(config)
  assert config.optimizer.warmup_steps * config.train.batch_size * 1_024 == pytest.approx(warmup, rel=0.01)
  found = [float(schedule(step)) for step in (run[0].end - 1, run[1].begin, run[2].begin)]
  np.testing.assert_allclose(found, [rates[0], rates[1], rates[1]], rtol=1e-5)


# Recipe -> for each phase the last tokens read in billions, length, fraction of masked tokens, first and last rate.
PHASES = {
  # Weller et al. 2025, standard/base of the released configs.
  "ettin_encoder_150m": [
    (1_700, 1_024, 0.3, 8e-4, 8e-4),
    (1_950, 8_192, 0.3, 8e-4, 4e-4),
    (2_000, 8_192, 0.15, 4e-4, 1.6e-5),
  ],
  # Boizard et al. 2025.
  "eurobert_610m": [(4_800, 2_048, 0.5, 1e-4, 1e-4), (5_000, 8_192, 0.1, 1e-4, 0.0)],
  # Le Breton et al. 2025: 2 M tokens a step.
  "neobert_base": [
    (1_887.4, 1_024, 0.2, 6e-4, 6e-5),
    (2_097.2, 1_024, 0.2, 6e-5, 6e-5),
    (2_202, 4_096, 0.2, 6e-5, 6e-5),
  ],
}


@pytest.mark.parametrize("name", PHASES)
def test_phases_of_encoders_are_the_published_ones(name):
  """Tokens, lengths, mask rates and learning rates of each phase; warm-up and ramp of the batch are left out."""
  config = records(load_config(name))
  schedule, tokens, found = schedules.of_run(config), 0, {}
  for stage in stages.of(config):
    data, train = stage.config.data, stage.config.train
    tokens += (stage.end - stage.begin) * train.batch_size * data.inputs_length
    key = "short" if stage.name.startswith("ramp") else stage.name
    begin = stage.begin if stage.begin else schedules.warmup(config.optimizer, config.train.steps)
    first = found[key][3] if key in found else float(schedule(begin))
    found[key] = (tokens / 1e9, data.inputs_length, data.noise_density, first, float(schedule(stage.end - 1)))
  np.testing.assert_allclose(list(found.values()), PHASES[name], rtol=2e-3, atol=1e-7)


def test_batches_of_gpt_bert_grow_while_fewer_tokens_are_masked():
  """The released code: from a quarter of 4.2 M tokens, and from 30 % to 15 %; both linear, here in tenths."""
  config = records(load_config("gpt_bert_base"))
  run = stages.of(config)
  middles = np.array([(stage.begin + stage.end) / 2 / config.train.steps for stage in run[:-2]])
  tokens = [stage.config.train.batch_size * stage.config.data.targets_length for stage in run[:-2]]
  masked = [stage.config.data.sources["masked"].noise_density for stage in run[:-2]]
  np.testing.assert_allclose(tokens, 32_768 * 128 * (0.25 + 0.75 * middles), rtol=0.02)
  np.testing.assert_allclose(masked, 0.3 - 0.15 * middles, atol=1e-3)
  assert [stage.config.data.targets_length for stage in run] == [128] * 7 + [256] * 2 + [512] * 2
  rates = [float(schedules.of_run(config)(step)) for step in (run[-1].begin - 1, run[-1].begin, run[-1].end - 1)]
  np.testing.assert_allclose(rates, [1e-3, 1e-3, 0.0], atol=2e-5)


# ---- Data ------------------------------------------------------------------------------------------------------------


def staged(data, *changes, ends=(4, 9, 14), left_out=lambda begin, end: 0):
  """Returns batches of a run over `data` with these changes per stage."""
  config = records(load_config("tiny")).with_(
    train={"steps": ends[-1], "batch_size": 8, "seed": 1}, data=dataclasses.asdict(data) | {"mixture": ""}
  )
  begins = [0, *ends]
  said = [{"steps": end - begin, **own} for begin, end, own in zip(begins, ends, changes, strict=False)]
  run = stages.of(dataclasses.replace(config, stages=tuple(said)))
  return train_data.batches(run, test_example_windows.mesh(), num_streams=None, left_out=left_out)


CHANGES = {
  "lengths": ({"data.inputs_length": 32, "data.targets_length": 16}, {}, {"data.pack": True}),
  "batches": ({}, {"train.batch_size": 16}, {"train.batch_size": 24}),
  "objectives": ({"data.objective": "prefix_lm"}, {"data.objective": "deshuffling"}, {}),
}


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", CHANGES)
def test_stopped_after_every_step(files, kind):
  """Stopping at a boundary saves the position of the stage that made the last step."""
  whole, states, iterator = [], [], staged(files, *CHANGES[kind], ends=(2, 4, 6))
  for step in range(1, 7):
    whole += test_example_windows.take(iterator, 1)
    states.append(iterator.state(step))
  sizes = [len(batch["decoder_target_tokens"]) for batch in whole]
  assert sizes == ([8, 8, 16, 16, 24, 24] if kind == "batches" else [8] * 6)
  other = staged(files, *CHANGES[kind], ends=(2, 4, 6))
  for step in (5, 4, 3, 2, 1):
    other.restore(states[step - 1], step=step)
    test_example_windows.assert_same(test_example_windows.take(other, 1), whole[step : step + 1])


def by_stream(batches, name):
  """Returns the rows of a feature from each of the two streams."""
  parts = [np.split(batch[name], 2) for batch in batches]
  return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


@pytest.mark.exhaustive
def test_larger_batches_are_of_the_very_next_rows(files):
  """With growing batch sizes, no row is repeated or skipped."""
  found = test_example_windows.take(staged(files, {}, {"train.batch_size": 16}, {"train.batch_size": 32}), 14)
  whole = test_example_windows.take(test_example_windows.batches(files), 4 + 2 * 5 + 4 * 5)
  for name in whole[0]:
    np.testing.assert_array_equal(by_stream(found, name), by_stream(whole, name))


def test_streams_divide_the_batches_of_all_stages(files):
  data = dataclasses.replace(files, num_streams=16)
  with pytest.raises(
    UserError, match=r"=16 does not divide .*batch_size, the greatest common divisor of all stages=8\."
  ):
    staged(data, {"train.batch_size": 16}, {"train.batch_size": 24}, {"train.batch_size": 16})


def numbers_in(batch):
  """Returns the four-digit numbers at the start of texts in a batch of bytes."""
  both = np.concatenate([batch["encoder_input_tokens"], batch["decoder_target_tokens"]], axis=1)
  texts = (bytes(int(token) - 3 if token >= 3 else 32 for token in row) for row in both)
  return {int(found) for text in texts for found in re.findall(rb"(?<!\d)\d{4}(?!\d)", text)}


@pytest.mark.exhaustive
def test_a_stage_of_other_lengths_reads_on(tmp_path):
  """No text of an earlier stage is repeated in the same epoch."""
  (tmp_path / "a.txt").write_text("\n".join(f"{number:04d} {'x' * 50}" for number in range(6000)))
  data = DataConfig(
    files=f"{tmp_path}/a.txt",
    eval_files=f"{tmp_path}/a.txt",
    objective="prefix_lm",
    vocabulary="bytes",
    inputs_length=64,
    targets_length=64,
    num_streams=2,
    shuffle_buffer=1,
  )
  longer = {"data.inputs_length": 128, "data.targets_length": 128}
  batches = test_example_windows.take(staged(data, {}, longer, {}, ends=(9, 16, 20)), 20)
  first, second, third = (set.union(*map(numbers_in, part)) for part in (batches[:9], batches[9:16], batches[16:]))
  assert min(map(len, (first, second, third))) > 20
  assert not first & second and not first & third and not second & third


@pytest.mark.exhaustive
def test_other_files_are_read_from_their_beginning(files, tmp_path):
  (tmp_path / "c.txt").write_text("\n".join(f"other {text}" for text in test_example_windows.TEXTS))
  found = test_example_windows.take(staged(files, {}, {"data.files": f"{tmp_path}/c.txt"}, {}), 14)
  other = dataclasses.replace(files, files=f"{tmp_path}/c.txt")
  alone = test_example_windows.take(test_example_windows.batches(other), 5)
  test_example_windows.assert_same(found[4:9], alone)


class Numbered:
  """Shards with records of random lengths, unrelated to their weights; a record is (shard, number)."""

  def read(self, piece):
    random = np.random.default_rng(piece.shard)
    for number in range(int(random.integers(1, 40))):
      yield int(random.exponential(500)), (piece.shard, number)

  def parse(self, found):
    return found


@pytest.mark.slow
@pytest.mark.exhaustive_from(6)
@pytest.mark.parametrize("old", [1000, 3000, 50_000])
@pytest.mark.parametrize("new", [1000, 7000, 200_000])
def test_what_is_left_of_an_epoch_is_what_was_not_read(old, new):
  """Records continue exactly for every window size, because the order of shards is the same."""
  share = tuple(shard_order.Piece(number, weight=10_000.0 + number) for number in range(20))
  plan = types.SimpleNamespace(task=types.SimpleNamespace(name="a"), seed=1, train=True, continuous=False)
  both = [
    example_windows.TaskSource(types.SimpleNamespace(**vars(plan), window_bytes=size), plan.task, Numbered(), [share])
    for size in (old, new)
  ]
  is_epoch = lambda window: window.position.epoch == 3
  found = [list(itertools.takewhile(is_epoch, source.windows(0, shard_order.WindowPosition(3)))) for source in both]
  for number, window in enumerate(found[0][:-1]):
    place = position_migration._same_text(*both, 0, window.position)
    rest = [x for x in found[1] if dataclasses.astuple(x.position) >= dataclasses.astuple(place)]
    read = {record for x in found[0][:number] for record in x.records}
    again = {record for x in rest for record in x.records}
    assert not read & again
    begun = len(found[1]) - len(rest)  # of these, all but the last are needed
    assert begun == 0 or read & set(found[1][begun - 1].records)


@pytest.mark.exhaustive
def test_all_stages_have_one_vocabulary(register):
  """Tasks may define vocabularies if config.data.vocabulary is empty."""
  first, second = register("in_bytes"), register("in_others")
  for name, extra_ids in ((first, 0), (second, 8)):
    features = dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(extra_ids=extra_ids)))
    task = seqio.TaskRegistry.get(name).replace(output_features=features)
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add_provider(name, task)
  data = {"mixture": first, "vocabulary": "", "eval_split": "train"}
  config = config_of({"fraction": 0.5}, {"name": "later", "data.mixture": second}).with_(data=data)
  with pytest.raises(
    UserError, match="config.stages, later: .*=in_others: the vocabulary differs from the vocabulary of stage 1"
  ):
    train_data.check_stages(train_data.resolved_stages(config))
  train_data.check_stages(train_data.resolved_stages(config.with_(data={"vocabulary": "bytes"})))


@pytest.mark.exhaustive
def test_batches_are_left_out_of_the_stage_that_they_are_of(files, tmp_path):
  """A rollback from the second stage to the first skips consumed batches of both."""
  (tmp_path / "c.txt").write_text("\n".join(f"other {text}" for text in test_example_windows.TEXTS))
  changes = {}, {"data.files": f"{tmp_path}/c.txt"}
  whole = test_example_windows.take(staged(files, *changes, ends=(4, 9)), 8)
  left = staged(files, *changes, ends=(4, 9), left_out=lambda begin, end: 2 if begin == 4 else 0)
  test_example_windows.take(left, 2)
  left.leave_out(2, 6)  # steps 3 to 6 include two of the first stage
  found = test_example_windows.take(left, 4)
  test_example_windows.assert_same(found[:2], test_example_windows.take(test_example_windows.batches(files), 6)[4:])
  test_example_windows.assert_same(found[2:], whole[6:8])


# ---- Command line ----------------------------------------------------------------------------------------------------

SAID = (
  '--config.stages={"name": "short", "steps": 4, "data.inputs_length": 32, "data.targets_length": 12},'
  '{"name": "long", "train.batch_size": 16, "optimizer.learning_rate": 0.01}'
)


def arguments(text, workdir, *options):
  return test_nan_policy.arguments(
    text,
    workdir,
    "--config.train.steps=7",
    "--config.checkpoint.save_interval_steps=2",
    "--config.checkpoint.max_to_keep=9",
    *options,
  )


@pytest.mark.exhaustive
def test_a_run_with_stages_is_the_same_run_wherever_it_stops(text, tmp_path, capsys, monkeypatch):
  """Losses are bit-identical; replay works in both stages; other commands read the stage's config."""
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert command.main(arguments(text, whole, SAID)) == 0
  err = capsys.readouterr().err
  assert "stage short, steps 1 to 4" in err and "stage long, steps 5 to 7" in err
  rows_found = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
  assert [row["step"] for row in rows_found if "eval/loss" in row] == [4, 7]  # evaluation at the end of each stage
  losses = test_train.losses(whole)
  assert list(losses) == [1, 2, 3, 4, 5, 6, 7]
  for step in (4, 6):
    shutil.copytree(whole, parts)
    for later in (parts / "checkpoints").iterdir():
      if int(later.name) > step:
        shutil.rmtree(later)
    assert command.main(arguments(text, parts, SAID)) == 0
    assert test_train.losses(parts) == losses
    shutil.rmtree(parts)
  for step in (4, 5):
    capsys.readouterr()
    assert command.main(["replay", str(whole), "--step", str(step)]) == 0
    assert "bit-identical to the recorded loss" in capsys.readouterr().out
  # Checkpoints are saved with the config of their stage.
  assert command.main(["checkpoint", "diff", *(str(whole / "checkpoints" / step) for step in "47")]) == 0
  assert "data.inputs_length" in capsys.readouterr().out
  # Past boundaries are fixed; future ones may move.
  moved = SAID.replace('"steps": 4', '"steps": 3')
  assert command.main(arguments(text, whole, moved)) == 2
  assert (
    "step 7 belongs to stage long, steps 4 to 7, but was saved in stage long, which began at step 5"
    in capsys.readouterr().err
  )
  assert command.main(arguments(text, whole, SAID, "--config.train.steps=8")) == 0
  # The error for a run that started without stages gives the argument to resume it.
  assert command.main(arguments(text, parts, "--config.train.steps=1")) == 0
  assert command.main(arguments(text, parts, SAID)) == 2
  assert "The run was saved without stages. Resume the run with --config.stages='()'" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_run_that_goes_back_over_a_boundary_is_the_same_however_it_is_broken_off(text, tmp_path, monkeypatch):
  back = ("--config.nan_policy.on_nonfinite=rollback", "--config.checkpoint.save_interval_steps=3", SAID)
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  with monkeypatch.context() as patch:
    test_nan_policy.poison(patch, 4, 6)
    assert command.main(arguments(text, whole, *back)) == 0
  turns = [json.loads(line) for line in (whole / "went_back.jsonl").read_text().splitlines()]
  assert turns[0] == {"checkpoint": 3, "step": 4}
  shutil.copytree(
    whole, parts, ignore=lambda folder, names: [x for x in names if folder.endswith("checkpoints") and int(x) > 4]
  )
  assert command.main(arguments(text, parts, *back)) == 0
  assert test_train.losses(parts) == test_train.losses(whole)
