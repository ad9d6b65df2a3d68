"""Training on a user's own batches gives the same run as the pipeline's batches."""

import itertools
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import test_training_run

import t2t
from t2t import UserError
from t2t.checkpoints import manager
from t2t.configuration import loading
from t2t.data import array_batches, batch_checks, train_data
from t2t.training import mesh_selection

pytestmark = pytest.mark.slow

losses, text = test_training_run.losses, test_training_run.text
SMALL = test_training_run.SMALL | {"data.vocabulary": ""}
# Features that cannot be derived, so that a user has to give them.
NEEDED = {
  "t5_1_1_small": ("encoder_input_tokens", "decoder_target_tokens"),
  "gpt2_small": ("decoder_target_tokens",),
  "bert_base": ("encoder_input_tokens", "encoder_target_tokens", "encoder_loss_weights"),
}


def small(name="t5_1_1_small", **changes):
  layers = {"gpt2_small": {"model.num_encoder_layers": 0}, "bert_base": {"model.num_decoder_layers": 0}}.get(name, {})
  if name == "bert_base":
    layers |= {"data.objective": "masked_lm", "train.loss": "cross_entropy", "model.heads": ()}
  given = {key: value for key, value in SMALL.items() if key != "train.steps" or "train.epochs" not in changes}
  return t2t.config(name, given | layers | {"stages": ()} | changes)


def random_batches(read=0, *, rows=8, inputs=30, targets=20):
  """Yields batches without end, each determined by its number."""
  for number in itertools.count(read):
    ids = np.random.default_rng(number).integers(3, 384, size=(rows, inputs))
    yield {"encoder_input_tokens": ids, "decoder_target_tokens": ids[:, :targets]}


def held_out():
  return list(itertools.islice(random_batches(1_000), 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(NEEDED))
def test_what_the_pipeline_makes_trains_as_from_the_pipeline(text, tmp_path, name):
  """Losses agree bit for bit; features that the user leaves out are derived and equal the pipeline's."""
  config = small(name, **{"data.files": str(text), "data.vocabulary": "bytes"})
  rows = list(t2t.train(config, str(tmp_path / "pipeline")))
  run = train_data.resolved(loading.records(config))
  mesh, _ = mesh_selection.make(run)
  needed = lambda batch: {feature: np.asarray(batch[feature]) for feature in NEEDED[name]}
  made = train_data.batches(train_data.resolved_stages(run), mesh, num_streams=2)
  given = [needed(next(made)) for _ in range(6)]
  evaluated = [needed(batch) for batch in train_data.eval_batches(run, mesh)]
  own = list(t2t.train(config, str(tmp_path / "own"), batches=given, eval_batches=evaluated))
  assert losses(own) == losses(rows) and losses(own)
  assert t2t.load(str(tmp_path / "own")).tokenize(["fox"])  # the vocabulary is saved beside the checkpoint


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  "made",
  [
    lambda: itertools.cycle(itertools.islice(random_batches(), 4)),
    lambda: list(itertools.islice(random_batches(), 4)),
    lambda: random_batches,
  ],
  ids=["an iterator", "again and again", "a function"],
)
def test_whoever_leaves_goes_on_later(tmp_path, made, capsys):
  whole = t2t.train(small(), str(tmp_path / "whole"), batches=made(), eval_batches=held_out()).run()
  for row in t2t.train(small(), str(tmp_path / "run"), batches=made(), eval_batches=held_out()):
    if row["step"] == 2:
      break
  assert 2 <= manager.Checkpoints(tmp_path / "run", keep=1).latest_step() < 6
  capsys.readouterr()
  rest = t2t.train(small(), str(tmp_path / "run"), batches=made(), eval_batches=held_out()).run()
  assert {key: rest[key] for key in ("step", "train/loss", "eval/loss")} == {
    key: whole[key] for key in ("step", "train/loss", "eval/loss")
  }
  assert ("skipping the" in "".join(capsys.readouterr())) == (made() is not random_batches)


@pytest.mark.exhaustive
def test_the_end_of_the_batches_is_the_end_of_the_run(tmp_path, capsys):
  """Saves and evaluates after the step of the last batch."""
  four = lambda: itertools.islice(random_batches(), 4)
  config = small(**{"eval.every": 100, "checkpoint.save_interval_steps": 100})
  rows = list(t2t.train(config, str(tmp_path / "run"), batches=four(), eval_batches=held_out()))
  assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
  assert [row["step"] for row in rows if "eval/loss" in row] == [4]
  assert manager.Checkpoints(tmp_path / "run", keep=1).latest_step() == 4
  assert "batches ended after 4, of config.train.steps=6: the run ends here" in "".join(capsys.readouterr())
  with pytest.raises(
    UserError,
    match="batches= ended after 4 batches, but config.train.steps=6. Give more batches, or lower config.train.steps",
  ):
    t2t.train(config, str(tmp_path / "run"), batches=four(), eval_batches=held_out()).run()


@pytest.mark.exhaustive
def test_what_a_user_s_code_raises_is_raised_and_all_is_saved(tmp_path):
  def fails_at_the_fifth():
    yield from itertools.islice(random_batches(), 4)
    raise KeyError("fifth")

  config = small(**{"eval.every": 100, "checkpoint.save_interval_steps": 100})
  with pytest.raises(KeyError, match="fifth"):
    t2t.train(config, str(tmp_path / "run"), batches=fails_at_the_fifth(), eval_batches=held_out()).run()
  assert manager.Checkpoints(tmp_path / "run", keep=1).latest_step() == 4


@pytest.mark.exhaustive
def test_a_user_s_code_knows_nothing_of_the_mesh(tmp_path):
  """A user's generator sees no mesh, and the JAX settings that it changes do not reach the run."""
  meshes_seen = []

  def on_its_own():
    with jax.enable_x64(True):
      for batch in random_batches():
        meshes_seen.append(jax.sharding.get_mesh())
        yield batch

  expected = list(t2t.train(small(), str(tmp_path / "a"), batches=random_batches, eval_batches=held_out()))
  found = list(t2t.train(small(), str(tmp_path / "b"), batches=on_its_own(), eval_batches=held_out()))
  assert losses(found) == losses(expected)
  assert all(mesh.empty for mesh in meshes_seen) and meshes_seen


@pytest.mark.exhaustive
def test_an_iterator_that_a_run_has_begun_is_not_begun_again(tmp_path):
  batches = random_batches()
  for _ in t2t.train(small(), str(tmp_path / "run"), batches=batches, eval_batches=held_out()):
    break
  with pytest.raises(UserError, match="batches= is an iterator that a run has already read from. Give a new iterator"):
    t2t.train(small(), str(tmp_path / "run"), batches=batches, eval_batches=held_out()).run()


@pytest.mark.parametrize(
  ("source", "message"),
  [
    (lambda read: next(iter([])), "batches= raised StopIteration"),
    (lambda read: None, r"batches\(0\) returned NoneType, which is not iterable. Return an iterable of dicts"),
    (lambda read: [], r"batches= ended after 0 batches, but .*\. Give more"),
  ],
)
def test_a_function_that_gives_none_is_told(source, message):
  config = loading.records(small())
  with pytest.raises(UserError, match=message):
    next(array_batches.OwnBatches(source, config, mesh_selection.make(config)[0]))


@pytest.mark.exhaustive
def test_zero_may_be_a_token(tmp_path):
  """Segment ids mark the text, and are required when 0 is a token of the vocabulary."""
  config = loading.records(small("gpt2_small"))
  ids = np.array([[5, 0, 6, 7]])
  given = {"decoder_target_tokens": ids, "decoder_segment_ids": np.ones_like(ids)}
  framing = batch_checks.ArrayFraming(begins=9, zero_pads=False)
  found = batch_checks.completed(given, config, where="here", framing=framing)
  assert found["decoder_input_tokens"][0, :4].tolist() == [9, 5, 0, 6]
  assert found["decoder_loss_weights"][0].tolist() == [1.0] * 4 + [0.0] * 20
  assert found["decoder_segment_ids"][0].tolist() == [1] * 4 + [0] * 20
  with pytest.raises(
    UserError, match="has no decoder_segment_ids. Add segment ids to mark the text, because id 0 is a token"
  ):
    batch_checks.completed({"decoder_target_tokens": ids}, config, where="here", framing=framing)
  made = lambda read: [given]
  held = [given]
  run = t2t.train(small("gpt2_small", **{"train.steps": 1}), str(tmp_path / "run"), batches=made, eval_batches=held)
  assert np.isfinite(run.run()["eval/loss"])


@pytest.mark.exhaustive
def test_no_more_batches_are_taken_than_steps_are_made(tmp_path):
  taken = []

  def counted():
    for number, batch in enumerate(random_batches()):
      taken.append(number)
      yield batch

  t2t.train(small(**{"train.steps": 3}), str(tmp_path / "run"), batches=counted(), eval_batches=held_out()).run()
  assert taken == [0, 1, 2]


@pytest.mark.exhaustive
def test_memory_may_be_written_again(tmp_path):
  """A loader may reuse one array for all batches."""

  def in_one_place():
    kept = {}
    for batch in random_batches():
      for name, array in batch.items():
        kept.setdefault(name, np.zeros(array.shape, np.int32))[:] = array
      yield kept

  expected = list(t2t.train(small(), str(tmp_path / "a"), batches=random_batches, eval_batches=held_out()))
  found = list(t2t.train(small(), str(tmp_path / "b"), batches=in_one_place(), eval_batches=held_out()))
  assert losses(found) == losses(expected)


def test_fewer_rows_and_positions_are_filled_up():
  config = loading.records(small())
  found = batch_checks.completed(next(random_batches(rows=3, inputs=7, targets=4)), config, where="here")
  assert {name: array.shape for name, array in found.items()} == {
    "encoder_input_tokens": (8, 48),
    "decoder_input_tokens": (8, 24),
    "decoder_target_tokens": (8, 24),
    "decoder_loss_weights": (8, 24),
  }
  assert found["decoder_loss_weights"].sum() == 3 * 4
  assert (found["decoder_input_tokens"][:3, 1:5] == found["decoder_target_tokens"][:3, :4]).all()
  assert not found["decoder_input_tokens"][:, 0].any()


@pytest.mark.exhaustive
def test_neither_tensorflow_nor_seqio_is_asked(tmp_path):
  script = (
    "import sys\n"
    "for name in ('tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'seqio'):\n"
    "  sys.modules[name] = None\n"
    "import numpy as np, t2t\n"
    f"config = t2t.config('t5_1_1_small', {SMALL!r})\n"
    "rows = {'encoder_input_tokens': np.full((8, 3), 5), 'decoder_target_tokens': np.full((8, 2), 6)}\n"
    f"print(t2t.train(config, {str(tmp_path / 'run')!r}, batches=[rows], eval_batches=[rows]).run()['step'])\n"
  )
  ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
  assert ended.returncode == 0, ended.stderr
  assert ended.stdout.splitlines()[-1] == "6"


def test_a_run_that_went_wrong_goes_back_where_it_can(tmp_path):
  """A function can restart after any batch; an iterator that has advanced is refused."""
  config = loading.records(small())
  mesh, _ = mesh_selection.make(config)
  ids = lambda batch: np.asarray(batch["decoder_target_tokens"]).tolist()
  whole = array_batches.OwnBatches(random_batches, config, mesh)
  every = [ids(next(whole)) for _ in range(6)]
  for source in (random_batches, list(itertools.islice(random_batches(), 6))):
    batches = array_batches.OwnBatches(source, config, mesh)
    next(batches)
    saved = batches.state(1)
    next(batches)
    batches.restore(saved, step=1)
    batches.leave_out(1, 3)
    assert [ids(next(batches)) for _ in range(3)] == every[3:]
  batches = array_batches.OwnBatches(random_batches(), config, mesh)
  next(batches)
  with pytest.raises(UserError, match="batches= is an iterator and cannot be rewound"):
    batches.restore(batches.state(1), step=1)


@pytest.mark.exhaustive
def test_runs_of_one_kind_are_not_gone_on_with_as_the_other(text, tmp_path):
  files = {"data.files": str(text), "data.vocabulary": "bytes"}
  t2t.train(small(**{"train.steps": 3}), str(tmp_path / "own"), batches=random_batches, eval_batches=held_out()).run()
  with pytest.raises(UserError, match=r"data\.batches.*those that t2t\.train\(batches=\.\.\.\) was given"):
    t2t.train(small(**files), str(tmp_path / "own")).run()
  t2t.train(small(**files, **{"train.steps": 3}), str(tmp_path / "files")).run()
  with pytest.raises(UserError, match=r"this run has so far read the data of config\.data"):
    t2t.train(small(), str(tmp_path / "files"), batches=random_batches, eval_batches=held_out()).run()


GOOD = next(random_batches())


@pytest.mark.parametrize(
  ("batch", "message"),
  [
    (
      [1, 2],
      r"^batches, batch 1 is list, not a dict\. Give a dict of arrays\. "
      r"This config's model takes encoder_input_tokens \[8, 48",
    ),
    (
      GOOD | {"encoder_input_token": 0},
      r"'encoder_input_token' is not a feature of this model; did you mean encoder_input",
    ),
    (
      {"encoder_input_tokens": GOOD["encoder_input_tokens"]},
      r"has no decoder_input_tokens, decoder_target_tokens, deco",
    ),
    (
      GOOD | {"encoder_input_tokens": [[1], [1, 2]]},
      r"encoder_input_tokens cannot be converted to an array \[rows, length\]",
    ),
    (
      GOOD | {"encoder_input_tokens": [1, 2]},
      r"encoder_input_tokens has shape \[2\], but the config allows \[rows, length\]",
    ),
    (GOOD | {"encoder_input_tokens": np.ones((9, 3), int)}, r"has shape \[9, 3\], .* up to \[8, 48\]"),
    (GOOD | {"encoder_input_tokens": np.ones((8, 3))}, r"has dtype float64, but must contain integers"),
    (GOOD | {"encoder_input_tokens": np.full((8, 3), 2**40)}, r"has values beyond 32 bits"),
    (
      GOOD | {"encoder_input_tokens": np.full((8, 3), 384)},
      r"ids from 384 to 384, but ids must be from 0 to 383, because config\.model\.vocab_size is 384",
    ),
    (GOOD | {"encoder_input_tokens": np.full((8, 3), -1)}, r"ids from -1 to -1"),
    ({name: x[:0] for name, x in GOOD.items()}, r"batches, batch 1 has no rows"),
    (
      GOOD | {"decoder_loss_weights": np.full((8, 20), -1.0)},
      r"weights from -1\.0 to -1\.0\. Give finite weights of at least 0",
    ),
    (GOOD | {"decoder_loss_weights": np.full((8, 20), np.nan)}, r"weights from nan to nan"),
    (GOOD | {"encoder_segment_ids": np.full((8, 20), -1)}, r"ids from -1 to -1, but ids must be at least 0"),
    (
      GOOD | {"encoder_input_tokens": np.ones((4, 3), int)},
      r"different numbers of rows \(encoder_input_tokens 4, deco",
    ),
  ],
)
def test_a_batch_that_cannot_be_is_told(batch, message):
  with pytest.raises(UserError, match=message):
    batch_checks.completed(batch, loading.records(small()), where="batches, batch 1")


@pytest.mark.exhaustive
def test_which_batch_cannot_be_is_told(tmp_path):
  bad = GOOD | {"encoder_input_tokens": np.full((8, 3), 384)}
  with pytest.raises(UserError, match=r"^batches, batch 2: encoder_input_tokens has ids from 384"):
    t2t.train(small(), str(tmp_path / "run"), batches=[GOOD, bad], eval_batches=held_out()).run()
  with pytest.raises(UserError, match=r"^eval_batches, batch 2: encoder_input_tokens has ids from 384"):
    t2t.train(small(), str(tmp_path / "run"), batches=[GOOD], eval_batches=[GOOD, bad]).run()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"stages": ({"name": "a", "fraction": 0.5}, {"name": "b"})},
      r"^config\.stages: a run with batches= cannot have stages",
    ),
    ({"train.epochs": 1.0}, r"^config\.train\.epochs=1\.0: with batches= the number of batches per epoch is unknown"),
    (
      {"eval.every": 0},
      r"^config\.eval\.every=0: with batches= the number .* unknown\. Set config\.eval\.every to a number of steps\.$",
    ),
    ({"eval.tasks": ("cb",)}, r"^config\.eval\.tasks=\('cb',\): a run with batches= has no tasks"),
  ],
)
def test_a_config_that_own_batches_cannot_have_is_told(tmp_path, changes, message):
  with pytest.raises(UserError, match=message):
    t2t.train(small(**changes), str(tmp_path / "run"), batches=random_batches, eval_batches=held_out()).run()


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"batches": [GOOD]}, r"^only batches= is given; give both"),
    ({"batches": 3, "eval_batches": [GOOD]}, r"^'batches' has type int; give an iterable of dicts"),
    (
      {"batches": [GOOD], "eval_batches": random_batches},
      r"^'eval_batches' has type function; give an iterable of dicts",
    ),
  ],
)
def test_what_is_no_batches_is_told_at_once(tmp_path, options, message):
  with pytest.raises(UserError, match=message):
    t2t.train(small(), str(tmp_path / "run"), **options)


def test_held_out_batches_are_needed():
  """At least one held-out target must count, because a loss of 0 would be the best."""
  config = loading.records(small())
  nothing = GOOD | {"decoder_loss_weights": np.zeros((8, 20))}
  for held, message in ([], "^eval_batches=.. is empty"), ([nothing], "^eval_batches: all decoder_loss_weights are 0"):
    data = array_batches.OwnData(random_batches, held)
    with pytest.raises(UserError, match=message):
      data.check_stages(data.resolved_stages(config))


HEADED = {
  "model.num_decoder_layers": 0,
  "model.heads": ({"name": "nli", "num_classes": 3},),
  "train.loss": "heads",
}


def test_heads_are_asked_of_what_the_encoder_reads():
  """A model that also has a decoder takes batches without decoder features."""
  config = t2t.config("t5_1_1_small", SMALL | {"model.heads": HEADED["model.heads"], "train.loss": "heads"})
  names = ("input_tokens", "segment_ids", "positions", "answer_heads", "answer_targets", "answer_groups", "token_types")
  good = {f"encoder_{each}": np.ones((8, 4), int) for each in names}
  assert set(batch_checks.completed(good, loading.records(config), where="here")) == set(good)


@pytest.mark.exhaustive_from(4)
@pytest.mark.parametrize(
  ("name", "number", "message"),
  [
    ("encoder_answer_targets", 3, r"has classes from 3 to 3, but the head nli has only the classes 0 to 2"),
    ("encoder_answer_targets", -100, r"has classes from -100 to .*, but the head nli"),
    (
      "encoder_answer_heads",
      2,
      r"has ids from 2 to 2, but ids must be from 0 to 1, because the number of config\.model\.heads plus one is 2",
    ),
    (
      "encoder_token_types",
      7,
      r"has ids from 7 to 7, but ids must be from 0 to 1, because config\.model\.segment_types is 2",
    ),
    (
      "encoder_positions",
      10**6,
      r"has ids from 1000000 to 1000000, but ids must be from 0 to 511, because the model's number of positions is 512",
    ),
  ],
)
def test_what_no_row_of_a_table_is_for_is_refused(name, number, message):
  """Ids outside a table would otherwise pass silently as other ids."""
  config = loading.records(t2t.config("bert_base", SMALL | HEADED | {"stages": ()}))
  names = ("input_tokens", "segment_ids", "positions", "answer_heads", "answer_targets", "answer_groups", "token_types")
  good = {f"encoder_{each}": np.ones((8, 4), int) for each in names}
  assert batch_checks.completed(good, config, where="here")
  with pytest.raises(UserError, match=message):
    batch_checks.completed(good | {name: np.full((8, 4), number)}, config, where="here")


@pytest.mark.exhaustive
def test_what_is_kept_names_no_other_data(text, tmp_path):
  """The saved config has no data files, because the model did not read them; the caller gives the vocabulary."""
  config, run = small(**{"data.files": str(text)}), str(tmp_path / "run")
  t2t.train(config, run, batches=random_batches, eval_batches=held_out()).run()
  assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["files"] == ""
  with pytest.raises(UserError, match="there is no vocabulary beside this checkpoint"):
    t2t.load(run).generate(["a fox"])
  assert t2t.load(run, vocabulary="bytes").score(["a fox"], ["runs"]).shape == (1,)
