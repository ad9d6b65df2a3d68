"""Kinds of run sources: one class per kind, and a further kind added by a class and a row."""

import pytest
import seqio
import tensorflow as tf
import test_training_run

import t2t
from t2t import UserError
from t2t.commands import tasks
from t2t.configuration.schema import DataConfig
from t2t.data import fingerprint, pipeline, run_sources, task_resolution

KINDS = {
  run_sources.MixedSources: {"sources": {"a": {"files": "a.txt"}, "b": {"mixture": "b_task"}}},
  run_sources.TextFiles: {"files": "a.txt"},
  run_sources.TableTask: {"mixture": "table", "table": {"files": "a.tsv", "eval_files": ""}},
  run_sources.RegisteredTasks: {"mixture": "b_task"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_key_names_a_kind(kind):
  assert type(run_sources.of(DataConfig(**KINDS[kind]))) is kind


def test_parts_are_the_other_kinds():
  source = run_sources.of(DataConfig(**KINDS[run_sources.MixedSources]))
  assert {name: type(part) for name, part in source.parts.items()} == {
    "a": run_sources.TextFiles,
    "b": run_sources.RegisteredTasks,
  }
  keys = ["config.data.sources.a.files=a.txt", "config.data.sources.b.mixture=b_task"]
  assert [part.key for part in source.parts.values()] == keys
  assert source.parts["a"].patterns() == {"config.data.sources.a.files": "a.txt"}


@pytest.mark.parametrize("both", [{}, {"files": "a.txt", "mixture": "b_task"}])
def test_one_source_is_read(both):
  with pytest.raises(
    UserError, match=r"config.data.files='.*' and config.data.mixture='.*': exactly one of these keys must be set"
  ):
    run_sources.of(DataConfig(vocabulary="bytes", **both)).load_task()


# ---- A further kind --------------------------------------------------------------------------------------------------


class Generated(run_sources.Text):
  """Text that a function generates: config.data.files=generated:N has N documents to train on."""

  kind = "a generator"

  @classmethod
  def reads(cls, data):
    return data.files.startswith("generated:")

  def make_source(self):
    number = int(self.data.files.partition(":")[2])
    numbers = {"train": range(number), "validation": range(number, number + 20)}

    def texts(split, shuffle_files, seed=None):
      return tf.data.Dataset.from_tensor_slices({"text": [f"{i} and {i + 1} are neighbours" for i in numbers[split]]})

    counts = {split: len(each) for split, each in numbers.items()}
    return seqio.FunctionDataSource(texts, splits=tuple(numbers), num_input_examples=counts)


@pytest.fixture
def generated(monkeypatch):
  monkeypatch.setattr(run_sources, "KINDS", [Generated, *run_sources.KINDS])


@pytest.mark.exhaustive
def test_a_further_kind_trains(generated, tmp_path):
  data = {"data.files": "generated:300", "data.vocabulary": "bytes"}
  config = t2t.config("t5_1_1_small", test_training_run.SMALL | data | {"train.steps": 1})
  last = t2t.train(config, str(tmp_path)).run()
  assert last["train/loss"] > 0 and last["eval/loss"] > 0


@pytest.mark.exhaustive
def test_a_further_kind_is_shown(generated, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  tasks.main(["show", "--config.data.files=generated:40", "--config.data.vocabulary=bytes", "--examples", "1"])
  lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
  assert lines[0] == "generated:40" and "source a generator" in lines
  assert "split validation (available: train, validation)" in lines and "40 and 41 are neighbours" in " ".join(lines)


def test_a_further_kind_is_mixed_with_others(generated, tmp_path):
  (tmp_path / "a.txt").write_text("".join(f"line {i} of a file\n" for i in range(100)))
  sources = {"file": {"files": f"{tmp_path}/a.txt", "share": 0.25}, "made": {"files": "generated:60"}}
  data = DataConfig(sources=sources, vocabulary="bytes")
  mixture = pipeline.load_task(data, "encoder_decoder")
  rates = {task.name: float(mixture.get_rate(task)) for task in task_resolution.tasks_of(mixture)}
  assert rates == {"file": 0.25, "made": 0.75}
  settings = fingerprint.settings(data, pipeline.vocabulary(data), batch_size=8, seed=0, num_streams=1)
  assert settings["data.sources.made.files"] == "generated:60"
  assert set(fingerprint.files(data, mixture)) == {"config.data.sources.file.files"}


def test_only_the_keys_of_a_kind_count_in_its_position(generated):
  data = DataConfig(files="generated:60", vocabulary="bytes", language="sw", alpha=0.3)
  settings = fingerprint.settings(data, pipeline.vocabulary(data), batch_size=8, seed=0, num_streams=1)
  assert settings["data.files"] == "generated:60" and settings["data.objective"] == "span_corruption"
  assert not {"data.language", "data.alpha", "data.dictionary"} & set(settings)
