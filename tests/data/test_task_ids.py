"""Task ids of rows, for packed and unpacked texts."""

import dataclasses

import numpy as np
import pytest
import seqio
import tensorflow as tf
import test_evaluate
import test_example_windows

from t2t import UserError, feature_spec
from t2t.configuration.loading import load_config, override, records
from t2t.data import feature_converters, train_data
from t2t.training import recipe

pytestmark = pytest.mark.slow

module = test_evaluate.module  # the fixture

LETTERS = {"news": b"ab", "poems": b"uv"}
# A config, and the objectives of its sources.
CASES = {
  "t5": ("t5_1_1_small", ("span_corruption", "prefix_lm")),
  "gpt": ("tiny_gpt", ("prefix_lm", "prefix_lm")),
  "gpt_bert": ("tiny_gpt", ("next_token", "masked_next_token")),
  "bert": ("tiny_bert", ("masked_lm", "masked_lm")),
}


@pytest.fixture
def typed(tmp_path):
  """Text of two tasks with distinct letters; the adapter lists poems first."""
  found = []
  for name, letters in LETTERS.items():
    lines = ("".join(chr(letters[(i + j) % 2]) for j in range(6 + i % 17)) for i in range(90))
    (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    found.append(f"--config.data.sources.{name}.files={tmp_path}/{name}.txt")
  return [*found, "--config.pals.tasks=poems,news", "--config.data.vocabulary=bytes"]


def run_of(case, typed, *options, pack=False):
  name, objectives = CASES[case]
  if sum(".files=" in each for each in typed) == 2:
    own = zip(LETTERS, objectives, strict=True)
    options = [*(f"--config.data.sources.{source}.objective={objective}" for source, objective in own), *options]
  data = ["--config.data.inputs_length=32", "--config.data.targets_length=32", "--config.data.num_streams=1"]
  given = [*typed, *data, f"--config.data.pack={pack}", "--config.train.batch_size=8", "--config.eval.batches=4"]
  return train_data.resolved(records(override(load_config(name), [*given, *options])))


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_each_position_has_the_number_of_its_task(case, pack, typed):
  """By its letters, in training and held out; unpacked each row has one; features are those that are planned."""
  config = run_of(case, typed, pack=pack)
  trained = train_data.batches(train_data.resolved_stages(config), test_example_windows.mesh(), num_streams=1)
  batches = [next(trained), *train_data.eval_batches(config, test_example_windows.mesh())]
  trained.close()
  planned = recipe.batch(config)
  seen = set()
  for batch in batches:
    assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
      name: (x.shape, x.dtype) for name, x in planned.items()
    }
    for side in config.model.kind.sides:
      kind = "target" if f"{side}_target_tokens" in batch else "input"
      tokens, tasks = np.asarray(batch[f"{side}_{kind}_tokens"]), np.asarray(batch[f"{side}_tasks"])
      tasks = np.broadcast_to(tasks, tokens.shape)
      for number, source in enumerate(("poems", "news")):
        there = np.isin(tokens - 3, list(LETTERS[source]))
        assert there.any() and set(tasks[there]) == {number}
      mixed = [len(np.unique(row[real])) for row, real in zip(tasks, tokens > 0, strict=True) if real.any()]
      seen |= set(mixed)
  assert seen == ({1, 2} if pack else {1})


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_all_else_is_as_without(case, typed):
  """Ids, weights, segments and positions equal a run without task ids."""
  config = run_of(case, typed, pack=True)
  plain = dataclasses.replace(config, sections={})
  for found, expected in zip(
    *(train_data.eval_batches(each, test_example_windows.mesh()) for each in (config, plain)), strict=True
  ):
    assert {x for x in found if not x.endswith("_tasks")} == expected.keys()
    for feature, x in expected.items():
      np.testing.assert_array_equal(found[feature], x, err_msg=feature)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_what_a_task_has_padded_stays_padding(architecture, pack):
  """Zeros of its own, behind a text or in front, count as little as without; a row is of its task all the same."""
  texts = [{"inputs": [7, 8, 1, 0, 0], "targets": [0, 9, 1, 0]}, {"inputs": [0, 6, 1], "targets": [4, 1, 0]}]
  signature = dict.fromkeys(("inputs", "targets"), tf.TensorSpec([None], tf.int32))
  plain = tf.data.Dataset.from_generator(lambda: iter(texts), output_signature=signature)
  told = plain.map(lambda example: example | {feature_spec.TASK: tf.constant(2)})
  options = {"vocabulary": seqio.ByteVocabulary(), "pack": pack}
  convert = lambda examples: feature_converters.convert(
    examples, architecture, {"inputs": 12, "targets": 12}, **options
  )
  for found, expected in zip(*(convert(each).as_numpy_iterator() for each in (told, plain)), strict=True):
    for name, x in expected.items():
      np.testing.assert_array_equal(found[name], x, err_msg=name)
    for name in found.keys() - expected.keys():
      tokens = expected[f"{name.partition('_')[0]}_{'target' if 'decoder' in name else 'input'}_tokens"]
      assert set(found[name][tokens > 0] if pack else found[name]) == {2}


def test_numbers_stay_where_others_are_read(typed, tmp_path):
  """Ids are positions in the adapter's names, independent of the sources."""
  alone = [typed[0], *typed[2:]]
  assert train_data.task_numbers_of(run_of("bert", alone)) == {"news": 1}
  more = [*typed[:2], f"--config.data.sources.ads.files={tmp_path}/news.txt", "--config.data.vocabulary=bytes"]
  config = run_of("bert", [*more, "--config.pals.tasks=poems,news,ads"])
  assert train_data.task_numbers_of(config) == {"ads": 2, "news": 1, "poems": 0}


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      ["--config.pals.tasks=poms,news"],
      "config.data.sources.poems: unknown task. The tasks of config.pals are poms, news; did you mean poms",
    ),
    (["--config.pals.tasks=news"], "config.data.sources.poems: unknown task. The tasks of config.pals are news"),
    (["--config.pals.tasks=news,poems,news"], "config.pals.tasks=news,poems,news: 'news' occurs twice"),
    (
      ["--config.pals.tasks=news,poems", "--config.pals.size=200"],
      "size=200 is not divisible by config.pals.heads=12. Set config.pals.size to 192 or 204",
    ),
    (["--config.pals.tasks=news,poems", "--config.pals.heads=0"], "config.pals.heads=0: must be at least 1"),
    (["--config.pals.tasks=" + ",".join(f"t{i}" for i in range(128))], "128 tasks, but at most 127 are possible"),
  ],
)
def test_what_does_not_fit_is_refused(typed, options, message):
  """Before anything is on a device; the message names the key, and what would be right."""
  with pytest.raises(UserError, match=message):
    train_data.check(run_of("bert", [*(each for each in typed if "pals" not in each), *options]))


def test_files_without_a_name_are_refused(typed):
  """Unnamed files are rejected with several tasks and accepted with one."""
  files = [f"--config.data.files={typed[0].partition('=')[2]}", "--config.data.vocabulary=bytes"]
  with pytest.raises(UserError, match="files=.*news.txt has no task name.* --config.data.sources.poems.files="):
    train_data.check(run_of("bert", [*files, "--config.pals.tasks=poems,news"]))
  assert train_data.task_numbers_of(run_of("bert", [*files, "--config.pals.tasks=news"])) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
def test_texts_that_heads_answer_say_their_task(module, pack):
  """Rows of registered tasks with a head each have the id of their task."""
  names = ("odd_tags", "odd_label")
  typed = [f"--config.data.mixture={','.join(names)}", f"--config.data.task_modules={module}"]
  typed += [f"--config.pals.tasks={','.join(names)}", "--config.data.vocabulary=bytes"]
  config = run_of("bert", [*typed, "--config.data.inputs_length=72"], pack=pack)
  assert [head.kind for head in config.model.heads] == ["class", "tag"] and config.train.loss == "heads"
  seen = set()
  for batch in train_data.eval_batches(config, test_example_windows.mesh()):
    assert {name: x.shape[1:] for name, x in batch.items()} == {
      name: x.shape[1:] for name, x in recipe.batch(config).items()
    }
    asked = np.asarray(batch["encoder_answer_heads"])
    tasks = np.broadcast_to(np.asarray(batch["encoder_tasks"]), asked.shape)
    assert set(zip(asked[asked > 0], tasks[asked > 0], strict=True)) <= {(2, 0), (1, 1)}
    seen |= set(asked.ravel())
  assert seen == {0, 1, 2}
