"""Benchmark of families: every row is a valid command, and families fall below the unigram model."""

import pathlib

import pytest
import toy

from t2t.configuration.loading import load_config, override, records
from t2t.data import docs_corpus
from t2t.training import recipe


@pytest.fixture(scope="module")
def families():
  folder = str(pathlib.Path(__file__).parents[2] / "benchmarks")
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)  # benchmarks import each other as scripts do
    return toy.benchmark("families")


def test_every_row_is_a_valid_config(families, monkeypatch):
  """Options name existing keys, and config, loss and objective fit each other."""
  files = {split: pathlib.Path(f"{split}.jsonl") for split in ("train", "validation")}
  monkeypatch.setattr(docs_corpus, "files", lambda: files)
  for family in families.FAMILIES.values():
    _, name, *options = families.arguments(family, steps=200)
    config = records(override(load_config(name), options))
    recipe.make(config)
    assert config.data.files == "train.jsonl" and config.train.steps == config.eval.every == 200


def test_families_above_the_unigram_model_are_reported(families):
  """A loss that is equal, higher or NaN is not below."""
  losses = {"below": 2.0, "equal": 3.0, "above": 4.0, "diverged": float("nan")}
  results = {name: {"held_out_loss": loss, "unigram_loss": 3.0} for name, loss in losses.items()}
  assert families.behind(results) == ["equal", "above", "diverged"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["RedLLM", "Switch Transformer", "Transformer-XL"])
def test_families_fall_below_the_unigram_model(families, tmp_path, name):
  """The benchmark's own run, with the steps of the published table."""
  row = families.run(families.FAMILIES[name], tmp_path, steps=200)
  assert families.behind({name: row}) == [], row
