"""Data that many runs of one process share: what is made once, and what is made again."""

import dataclasses

import jax
import numpy as np
import pytest

from t2t.configs import default
from t2t.configuration.loading import records
from t2t.training import remembered_data, stage_program


class Counted:
  """Data that counts the calls, with vocabularies by folder."""

  def __init__(self, vocabularies):
    self.calls, self._vocabularies = [], vocabularies

  def vocabulary(self, config):
    return self._vocabularies[config.data.vocabulary]

  def check_stages(self, run):
    self.calls.append("check")

  def __getattr__(self, name):
    return lambda *_: self.calls.append(name) or object()


@dataclasses.dataclass
class Of:
  config: object


CONTENT = {"a": "1", "copy of a": "1", "b": "2", "own class": ""}


@pytest.fixture
def data(monkeypatch):
  counted = Counted({name: name for name in CONTENT})
  monkeypatch.setattr(stage_program, "from_config", lambda: counted)
  monkeypatch.setattr(remembered_data.vocabularies, "digest", CONTENT.__getitem__)
  return remembered_data.RememberedData(), counted


def config_of(vocabulary="a", **keys):
  config = default.get_config()
  config.data.vocabulary = vocabulary
  config.update_from_flattened_dict({name.replace("__", "."): value for name, value in keys.items()})
  return records(config)


MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


def all_of(data, config):
  data.check_stages([Of(config)])
  results = data.eval_batches(config, MESH), data.eval_batches_by_source(config, MESH)
  return [*results, data.evaluation(config, None, MESH)]


@pytest.mark.parametrize(
  "other",
  [
    config_of("copy of a"),
    config_of(train__seed=7),
    config_of(init__checkpoint="runs/other"),
    config_of(optimizer__learning_rate=0.5),
  ],
)
def test_equal_data_are_made_once(data, other):
  """A copy of the vocabulary, the start, the seed and the optimizer do not change the data."""
  remembered, counted = data
  assert all_of(remembered, config_of()) == all_of(remembered, other)
  assert counted.calls == ["check", "eval_batches", "eval_batches_by_source", "evaluation"]


@pytest.mark.parametrize(
  "other",
  [
    config_of("b"),
    config_of("own class"),
    config_of(data__mixture="docs_order"),
    config_of(eval__max_examples=3),
    config_of(model__embed_dim=64),
    config_of(train__batch_size=2),
  ],
)
def test_other_data_are_made_again(data, other):
  """Nothing of a run with other data or another model is taken."""
  remembered, counted = data
  first, second = all_of(remembered, config_of()), all_of(remembered, other)
  assert not set(first) & set(second) and len(counted.calls) == 8
  assert all_of(remembered, config_of()) == first


def test_memory_is_bounded(data):
  """The results of the oldest configs are dropped."""
  remembered, counted = data
  for step in range(remembered_data._MOST):
    all_of(remembered, config_of(eval__max_examples=step + 1))
  assert len(remembered._results) == remembered_data._MOST
  counted.calls.clear()
  all_of(remembered, config_of(eval__max_examples=1))
  assert counted.calls == ["eval_batches", "eval_batches_by_source", "evaluation"]
