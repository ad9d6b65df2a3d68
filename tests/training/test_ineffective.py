"""Settings that cannot take effect are an error or are reported by name, before a run begins."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
import seqio
import test_recipe
import toy

from t2t import UserError
from t2t.configuration import stages
from t2t.configuration.loading import config_names, load_config, override, records
from t2t.configuration.schema import INTERVALS
from t2t.data import train_data
from t2t.training import ineffective, optimizers, schedule_free, schedules


def notes(*options, name="tiny_t5", begins=True):
  config = records(override(load_config(name), [f"--config.{option}" for option in options]))
  config = config.with_(train={"loss": config.train.loss or "cross_entropy"})
  every = {name: {key: getattr(getattr(config, name), key) or 100} for name, key in INTERVALS.items()}
  return ineffective.check(config, stages.of(config.with_(**every)), begins=begins)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_a_warmup_as_long_as_the_run_is_refused(schedule):
  """The rate would never reach its peak; a resumed run only reports it."""
  options = ("train.steps=4", f"optimizer.schedule={schedule}", "optimizer.warmup_steps=10_000")
  message = r"warmup_steps=10000 is a warm-up of 10000 steps, but the run has 4: .* would not pass 2e-05 of 0.05"
  with pytest.raises(UserError, match=message):
    notes(*options)
  assert "2e-05 of 0.05" in notes(*options, begins=False)[0]
  with pytest.raises(UserError, match=r"never fall\. Give --config.optimizer.warmup_ratio=0.1 \(2 steps\)"):
    notes("train.steps=20", f"optimizer.schedule={schedule}", "optimizer.warmup_steps=20")
  assert not any("warm" in note for note in notes("train.steps=20", "optimizer.warmup_steps=18"))


def test_a_warmup_as_long_as_a_stage_is_refused():
  """A stage with its own rate has a schedule over its own steps."""
  own = '{"name": "a", "fraction": 0.9}, {"name": "b", "optimizer.learning_rate": 0.1, "optimizer.warmup_steps": 50}'
  with pytest.raises(UserError, match=r"config.stages, b: optimizer.warmup_steps=50 is .* the stage has 50"):
    notes(f"stages={own}")
  assert notes(f"stages={own.replace('50', '5')}", "eval.every=50", "checkpoint.save_interval_steps=50") == []


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ("optimizer.schedule=t5_inverse_sqrt optimizer.warmup_steps=500", "the learning rate stays at 0.05"),
    ("optimizer.warmup_ratio=0.0005", "of 500 steps is less than one step: there is no warm-up"),
    ("optimizer.warmup_steps=499", "the warm-up leaves one of 500 steps, so the learning rate does not fall"),
    (
      "optimizer.schedule=wsd optimizer.decay_fraction=0.002",
      "of 500 steps is 1 step: the learning rate does not fall",
    ),
    ("optimizer.schedule=wsd optimizer.decay_fraction=0", "give at least 0.01"),
    (
      "optimizer.schedule=one_cycle optimizer.warmup_fraction=0.001",
      "fraction=0.001 of 500 steps is less than one step",
    ),
    (
      "optimizer.schedule=slanted_triangle optimizer.warmup_fraction=1.0",
      "leaves no step in which the learning rate falls",
    ),
    ("optimizer.learning_rate=0", "no parameter changes"),
    ("optimizer.name=adafactor optimizer.b1=0.5", "b1=0.5 has no effect: config.optimizer.name=adafactor does not"),
    (
      "optimizer.schedule=constant optimizer.end_lr_fraction=0.1",
      "config.optimizer.schedule=constant does not read it",
    ),
    ("optimizer.schedule=one_cycle optimizer.warmup_steps=10", "warmup_steps=10 has no effect"),
    ("optimizer.no_decay=norm", "config.optimizer.no_decay=norm has no effect"),
    ("eval.every=501", "config.eval.every=501: more than the run's 500 steps; only the last step is evaluated"),
    (
      "eval.every=600 checkpoint.save_interval_steps=700",
      "every=600, config.checkpoint.save_interval_steps=700: more .* is evaluated and saved",
    ),
    ("train.log_every=501", "only the last step of the run is logged"),
    ("logging.histograms=501", "no histogram is written"),
    ("eval.patience=4 eval.every=100", "have 4 evaluations before the last .* early stopping needs 5"),
    (
      "eval.early_stopping_metric=rte/f1",
      "early_stopping_metric=rte/f1 has no effect: config.eval.patience=0: no evaluation ends the run",
    ),
    ("nan_policy.spike_deviations=4 nan_policy.spike_window=500", "no loss counts as a spike. Give a smaller window"),
    ("nan_policy.on_spike=rollback", "config.nan_policy.on_spike=rollback has no effect"),
    ("nan_policy.max_skipped_fraction=0.5", "no update is skipped"),
    ("model.rotary_base=500000", "rotary_base=500000.0 has no effect: config.model.positions=relative"),
    ("eval.method=rank eval.num_beams=4", "config.eval.num_beams=4 has no effect"),
    ("optimizer.layer_decay=0.9 optimizer.param_groups=.:depth=0.5", "layer_decay=0.9 has no effect: a rule"),
    ("eval.length_penalty=1.0", "there is no beam search"),
    ("init.reinit=head", "config.init.reinit=.* has no effect: config.init.checkpoint is empty"),
    ("train.loss=contrastive train.label_smoothing=0.1", "config.train.loss=contrastive predicts no tokens"),
    ("train.loss=heads train.z_loss=0.01", "config.train.z_loss=0.01 has no effect"),
    (
      "data.files=a.txt data.train_split=train[:10]",
      r"train_split=train\[:10\] has no effect: config.data.files is read",
    ),
    ("data.files=a.txt data.alpha=0.3", "config.data.alpha=0.3 has no effect"),
    ("data.files=a.txt data.translation=fr", "translation=fr has no effect: config.data.objective=span_corruption"),
    ("data.files=a.txt data.tokens_end=3", "tokens_end=3 has no effect: config.data.files has no token ids"),
    ("data.files=a.npy data.field=body", "config.data.field=body has no effect: config.data.files has token ids"),
    ("data.files=a.txt data.annotations=names", "config.data.annotations=names has no effect"),
    (
      "data.files=a.txt eval.num_shots=2",
      "config.eval.num_shots=2 has no effect: .* training text without answers to evaluate",
    ),
    ("data.mixture=rte data.language=sw", "config.data.mixture=rte defines the examples itself"),
    ("data.mixture=rte data.field=body", "config.data.field=body has no effect"),
    ("data.mixture=rte data.noise_density=0.3", "config.data.noise_density=0.3 has no effect"),
    ("data.mixture=rte data.alpha=0.3", "config.data.alpha=0.3 has no effect: config.data.sources is empty"),
    ("data.sources.a.files=a.txt data.sources.a.rate=2 data.alpha=0.3", "each source has a rate or a share"),
    (
      "data.sources.a.files=a.txt data.cache_dir=cache",
      "no source is a registered task",
    ),
    ("data.sources.a.mixture=rte data.shuffle_buffer=9", "shuffle_buffer=9 has no effect: no source has files"),
  ],
)
def test_what_has_no_effect_is_reported(options, message):
  """The note is one sentence with the key and its value; without the setting there is none."""
  found = [note for note in notes(*options.split()) if re.search(message, note)]
  assert len(found) == 1
  assert not [note for note in notes() if re.search(message, note)]


@pytest.mark.parametrize(
  "option",
  [
    *("objective=prefix_lm", "noise_density=0.3", "mean_noise_span_length=5.0", "field=body", "translation=fr"),
    *(
      "both_directions=True",
      "language=sw",
      "train_split=train[:10]",
      "eval_split=test",
      "cache_dir=cache",
      "alpha=0.3",
    ),
    *("shuffle_buffer=9", "mixing_unit=tokens"),
  ],
)
def test_keys_that_a_table_does_not_read_are_reported(option):
  """A table defines examples by its columns; splits, objectives and rates belong to other data."""
  found = notes("data.files=a.tsv", "data.mixture=", "data.labels=auto", f"data.{option}")
  assert [note for note in found if "a table" in note] == [
    f"config.data.{option} has no effect: config.data.files is a table (config.data.labels), whose columns define"
    " the examples"
  ]


def test_writing_by_an_encoder_alone_is_reported():
  """Heads answer its tasks."""
  (note,) = (note for note in notes("eval.method=generate", name="tiny_bert") if "eval.method" in note)
  assert note == "config.eval.method=generate has no effect: an encoder alone generates no text"


@pytest.mark.parametrize(
  ("key", "why"),
  [
    ("most_global_tokens=3", "config.model.attention=full"),
    ("lsh_rounds=9", "config.model.attention=full"),
    ("relative_clamp=9", "config.model.positions=rotary"),
    ("step_signal=learned", "config.model.recurrence=''"),
    ("ponder_coefficient=0.5", "config.model.halting_threshold=0.0"),
    ("logits_norm=layer", "config.model.logits_transform=False"),
    ("memory_reuse=3", "config.model.memory_length=0"),
    ("pipeline_rounds=2", "config.mesh.stage=1"),
  ],
)
def test_keys_of_a_part_that_the_model_lacks_are_reported(key, why):
  assert f"config.model.{key} has no effect: {why}" in notes(f"model.{key}", name="tiny_llama")


def test_a_ratio_in_place_of_steps_is_reported():
  """A script may set one key on a config with the other."""
  config = load_config("tiny_t5")
  config.optimizer.warmup_steps = 7
  made = records(config).with_(train={"loss": "cross_entropy"})
  (note,) = ineffective.check(made, stages.of(made), begins=True)
  assert "config.optimizer.warmup_steps=7 has no effect" in note


@pytest.mark.slow
def test_shipped_configs_have_no_setting_without_effect():
  """Checks one size of each family; configs that start from a checkpoint report that it is missing."""
  families = {load_config(name).data.mixture: name for name in config_names()}
  for name in families.values():
    if "distillation" in load_config(name):
      continue  # a run needs a teacher
    missing = ("config.init.use_model_config=True", "config.init.checkpoint is empty")
    assert [note for note in notes(name=name) if not any(text in note for text in missing)] == [], name


class _Reads:
  """A record that notes which of its fields are read."""

  def __init__(self, record):
    self._record, self.names = record, set()

  def __getattr__(self, name):
    self.names.add(name)
    return getattr(self._record, name)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_keys_of_optimizers_are_those_that_they_read(name):
  """The table lists exactly these keys for each optimizer."""
  fields = vars(toy.optimizer_config(name=name))
  config = _Reads(optimizers._OfModel(**fields, num_layers=1))
  params = {"encoder/layers/up": jnp.ones((1, 2, 2)), "bias": jnp.ones(2)}
  chain = optax.chain(optax.identity(), *optimizers.OPTIMIZERS[name](config))
  if name == schedule_free.NAME:
    chain = schedule_free.wrap(chain, optax.constant_schedule(0.1), config)
  jax.eval_shape(lambda params: chain.update(params, chain.init(params), params), params)
  told = {key for key, names in ineffective._BY_OPTIMIZER.items() if name in names}
  assert config.names & set(ineffective._BY_OPTIMIZER) == told


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_keys_of_schedules_are_those_that_they_read(name):
  """The ratio is converted to steps before."""
  config = _Reads(toy.optimizer_config(schedule=name))
  schedules.SCHEDULES[name](config, 100)
  told = {key for key, names in ineffective._BY_SCHEDULE.items() if name in names} - {"warmup_ratio"}
  assert config.names & set(ineffective._BY_SCHEDULE) == told


def test_a_source_that_is_never_drawn_is_reported(monkeypatch, capsys):
  """A source with 1/1000 of 4 steps of 2 rows is never drawn; with a tenth it is drawn once."""
  for name in ("often", "seldom"):
    monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, name, test_recipe.test_head_examples.task().replace(name=name))
  for rate in (0.001, 0.2):
    mixture = seqio.Mixture("drawn", [("often", 1.0), ("seldom", rate)])
    monkeypatch.setitem(seqio.MixtureRegistry._REGISTRY, "drawn", mixture)
    config = test_recipe.registered_run("drawn", train_split="train").with_(train={"steps": 4, "batch_size": 2})
    train_data._tell_undrawn(stages.of(config)[0])
    said = capsys.readouterr().err
    assert ("drawn: seldom has a share of 0.001" in said) == (rate < 0.01) and "about" not in said
    train_data._tell_undrawn(stages.of(config.with_(train={"steps": 3, "epochs": 1.0}))[0])
    assert "examples of seldom are read" in capsys.readouterr().err


@pytest.mark.slow
def test_epochs_that_leave_examples_unread_are_reported(config, capsys):
  """A step of four leaves one of five examples unread."""
  for number, unread in ((2.0, False), (2.5, True)):
    train_data.resolved_stages(test_recipe.epochs(config, number, batch_size=4))
    assert ("unread in the last epoch" in capsys.readouterr().err) == unread


config = test_recipe.config
