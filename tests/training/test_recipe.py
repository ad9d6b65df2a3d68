"""Settings that the data decides, such as the steps of an epoch."""

import dataclasses

import pytest
import seqio
import test_head_examples
import test_spans

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.data import train_data
from t2t.models.head_config import HeadConfig
from t2t.training import recipe


@pytest.fixture
def config(monkeypatch):
  """Returns a config with three records, one without a label, for a head."""
  found = test_head_examples.task().replace(name="runs_labelled")
  monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, found.name, found)
  return registered_run(found.name)


def registered_run(name, **data):
  config = records(load_config("tiny_bert"))
  data = {"mixture": name, "task_modules": (), "eval_split": "train", "inputs_length": 32, **data}
  return config.with_(data=data, train={"loss": "", "batch_size": 2}, model={"vocab_size": 384})


def epochs(config, number, **train):
  return config.with_(train={"epochs": number, **train}, eval={"every": 0}, checkpoint={"save_interval_steps": 0})


@pytest.mark.exhaustive
def test_epochs_pass_over_what_is_learned(config):
  """Records without a label do not count; intervals of an epoch follow."""
  found = train_data.resolved(epochs(config, 3.0))
  assert (found.train.steps, found.eval.every, found.checkpoint.save_interval_steps) == (3, 1, 1)
  assert [head.name for head in found.model.heads] == ["sure"]
  assert train_data.resolved(epochs(config, 0.1)).train.steps == 1
  assert train_data.resolved(epochs(config, 10.0, batch_size=1)).train.steps == 20
  assert train_data.resolved(epochs(config, 0.0, steps=7)).train.steps == 7


def test_a_head_that_no_task_uses_is_named(config, capsys):
  """It is left out, and the log has the nearest head of a task."""
  heads = (HeadConfig("sur", 2), HeadConfig("sure", 2, layers="mix", reads="mean"))
  found = train_data.resolved(epochs(config, 1.0).with_(model={"heads": heads}))
  assert [(head.name, head.layers) for head in found.model.heads] == [("sure", "mix")]
  assert (
    "no task of this run uses sur; left out. Heads of the tasks: sure; did you mean sure?" in capsys.readouterr().err
  )


def test_the_vocabulary_says_how_many_rows_its_embedding_has(config):
  """A multiple of 128 in the resolved config; an explicit number stays."""
  found = train_data.resolved(config.with_(model={"vocab_size": 0}))
  size = train_data.vocabulary(config).vocab_size
  assert found.model.vocab_size % 128 == 0 and 0 <= found.model.vocab_size - size < 128
  assert found.to_dict()["model"]["vocab_size"] == found.model.vocab_size
  assert train_data.resolved(config).model.vocab_size == 384
  with pytest.raises(
    UserError,
    match="config.model.vocab_size=0: the vocabulary size is only known .* Give --config.model.vocab_size=NUMBER",
  ):
    recipe.make(config.with_(model={"vocab_size": 0}))


@pytest.mark.exhaustive
def test_a_context_is_as_many_rows_as_windows(tmp_path, monkeypatch):
  """A long text has several windows, and an epoch covers all of them."""
  found = test_spans.registry.task_or_mixture("squad_v2", modules=("t2t.tasks.squad",))
  folder = test_spans.write(tmp_path, 4)
  read = test_spans.task_resolution.adapt(found, vocabulary=test_head_examples.BYTES, folders={"squad_v2": str(folder)})
  (head,) = test_spans.head_examples.heads_of([read], test_head_examples.BERT_LIKE, test_head_examples.BYTES)
  run = registered_run("squad_v2", inputs_length=256, train_split="train")
  run = run.with_(train={"loss": "heads"}, model={"heads": (dataclasses.replace(head, reads="each"),)})
  made = test_spans.head_examples.for_heads(read, "encoder_only", run.model.heads)
  rows = made.get_dataset({"inputs": 256}, split="train", shuffle=False, num_epochs=1)
  windows = sum(1 for _ in rows.as_numpy_iterator())
  assert windows > 8 and train_data._rows_of_a_record(run, read) == windows / 8


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"data": {"pack": True}},
      "config.train.epochs=3.0: with config.data.pack=True a row has an unknown number of examples",
    ),
    ({"train": {"epochs": -1.0}}, "config.train.epochs=-1.0: the number of epochs must not be below 0"),
    (
      {"data": {"mixture": "", "files": "text.txt"}},
      "config.train.epochs=3.0: epochs count examples of tasks, but config.data.mixture is",
    ),
  ],
)
def test_epochs_that_cannot_be_counted(config, changes, message):
  """With an alternative."""
  with pytest.raises(UserError, match=message):
    train_data.resolved(epochs(config, 3.0).with_(**changes))


def test_a_task_of_an_unknown_number(config, monkeypatch):
  """Its source reports no size."""
  found = test_head_examples.task().replace(name="runs_unknown")
  unknown = seqio.FunctionDataSource(found.source._dataset_fn, splits=("train",))
  monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, found.name, found.replace(source=unknown))
  with pytest.raises(UserError, match="the number of examples of runs_unknown is unknown. Set config.train.steps"):
    train_data.resolved(
      epochs(config, 1.0).with_(data={"mixture": found.name}, model={"heads": (HeadConfig("sure", 2),)})
    )
