"""Tasks with different features in one run: missing features get the model's defaults."""

import dataclasses

import numpy as np
import pytest
import seqio
import test_example_windows

from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import default_features, example_windows, pipeline
from t2t.training import recipe

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
  """Text for masked LM and sentence pairs for translation LM: XLM's two objectives (Lample & Conneau 2019, section
  3.5).
  """
  (tmp_path / "a.txt").write_text("\n".join(f"a {text}" for text in test_example_windows.TEXTS))
  pairs = [f"p {text[:20]}\tq {text[-20:]}\n" for text in test_example_windows.TEXTS]
  (tmp_path / "b.tsv").write_text("".join(pairs))
  return DataConfig(
    sources={
      "a": {"files": f"{tmp_path}/a.txt", "objective": "masked_lm", "rate": 1.0},
      "b": {"files": f"{tmp_path}/b.tsv", "objective": "translation_lm", "rate": 1.0},
    },
    vocabulary="bytes",
    inputs_length=64,
    targets_length=64,
    shuffle_buffer=5,
    num_streams=2,
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize("pack", [False, True])
def test_masked_lm_and_translation_lm_are_mixed(monkeypatch, data, pack):
  """Resuming after any step is bit-exact; `recipe.batch` has the features of the batches."""
  monkeypatch.setattr(example_windows, "_EXAMPLES_OF_WINDOW", 8)
  monkeypatch.setattr(example_windows, "_MIXED_PACKED", 12)
  monkeypatch.setattr(example_windows, "_MIXED_ALONE", 12)
  data = dataclasses.replace(data, pack=pack)
  iterator = test_example_windows.batches(data, "encoder_only", num_streams=2)
  test_example_windows.assert_stopping_changes_nothing(iterator, every=7)
  found = pipeline.eval_rows(data, "encoder_only", batch_size=8, max_batches=2)
  config = records(load_config("tiny_bert")).with_(data=vars(data) | {"mixture": ""}, train={"batch_size": 8})
  assert {name: (x.shape, x.dtype) for name, x in found[0].items()} == {
    name: (x.shape, x.dtype) for name, x in recipe.batch(config).items()
  }
  held_out = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
  if not pack:
    are_pairs = held_out["encoder_token_types"].any(axis=1)
    real = held_out["encoder_segment_ids"].any(axis=1)
    assert are_pairs.any() and (real & ~are_pairs).any()
    for row in np.flatnonzero(real & ~are_pairs):
      size = held_out["encoder_segment_ids"][row].sum()
      assert held_out["encoder_positions"][row, :size].tolist() == list(range(size))


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [False, True])
def test_what_is_filled_in_is_what_the_model_would_have_been_given(data, pack):
  """Rows are the same, feature for feature; without packing they also have the model's default positions."""
  alone = dataclasses.replace(
    data,
    sources={},
    files=data.sources["a"].files,
    eval_files=data.sources["a"].files,
    objective="masked_lm",
    pack=pack,
  )
  task = pipeline.load_task(alone)
  other = pipeline.load_task(
    dataclasses.replace(alone, files=data.sources["b"].files, eval_files="", objective="translation_lm")
  )
  completed, same = default_features.alike([task, other.replace(name="other")])
  assert set(completed.output_features) == set(same.output_features) == set(other.output_features)
  made = lambda task: [
    {name: np.asarray(x) for name, x in row.items()}
    for row in pipeline.model_features(
      alone, "encoder_only", task, pipeline.task_examples(alone, "encoder_only", task, split="validation")
    ).as_numpy_iterator()
  ]
  for plain, full in zip(made(task), made(completed), strict=True):
    if not pack:
      places = full.pop("encoder_positions")
      size = plain["encoder_segment_ids"].sum()
      np.testing.assert_array_equal(places, [*range(size), *[0] * (64 - size)])
    test_example_windows.assert_same([plain], [full])


def test_fragments_at_their_places_and_others(data):
  """Targets without explicit positions start at position 0."""
  tasks = [
    pipeline.load_task(dataclasses.replace(data, sources={}, files=data.sources["a"].files, objective=objective))
    for objective in ("mass_in_place", "mass")
  ]
  placed, plain = default_features.alike([task.replace(name=str(i)) for i, task in enumerate(tasks)])
  assert "target_places" in tasks[0].output_features and "target_places" not in tasks[1].output_features
  found = next(pipeline.task_examples(data, "encoder_decoder", plain, split="train").as_numpy_iterator())
  assert found["target_places"].tolist() == list(range(len(found["targets"])))
  assert placed.preprocessors == tasks[0].preprocessors


def test_what_does_not_follow_is_not_made_up(data):
  """Tasks with features that cannot be derived stay unchanged; a later check refuses them."""
  of = lambda objective: pipeline.load_task(
    dataclasses.replace(data, sources={}, files=data.sources["a"].files, objective=objective)
  ).replace(name=objective)
  tasks = [of("masked_lm"), of("span_corruption")]
  assert default_features.alike(tasks) == tasks
  assert isinstance(pipeline.load_task(data), seqio.Mixture)
