"""`t2t eval` and `t2t superglue` with several checkpoints: mean probabilities, and refused combinations."""

import dataclasses
import json

import numpy as np
import pytest
import test_evaluate
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import ensemble, pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.evaluation import evaluate

module, superglue_folder = test_evaluate.module, test_evaluate.superglue_folder  # fixtures


def results(workdir, name="odd_label.validation"):
  return json.loads((workdir / "results.json").read_text())[name]


def evaluated(module, workdir, checkpoint, *others):
  arguments = ["eval", f"--checkpoint={checkpoint}", f"--workdir={workdir}", *test_evaluate.options(module), *others]
  assert command.main(arguments) == 0
  return test_evaluate.predictions(workdir, "odd_label.validation")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["generate", "rank"])
def test_an_ensemble_of_equal_models_is_the_single_model(method, module, tmp_path):
  """Whole command, for generated texts and for ranked options."""
  path = trained.workdir("decoder_only")
  alone = evaluated(module, tmp_path / "one", path, f"--config.eval.method={method}")
  twice = evaluated(module, tmp_path / "two", f"{path},{path}", f"--config.eval.method={method}")
  assert [row["prediction"] for row in twice] == [row["prediction"] for row in alone]
  np.testing.assert_allclose([row["score"] for row in twice], [row["score"] for row in alone], rtol=1e-4)
  assert results(tmp_path / "two")["checkpoint"].count("decoder_only") == 2


@pytest.fixture(scope="module")
def finetuned(module, tmp_path_factory):
  """Two fine-tuned heads of one encoder, with other seeds."""
  folders = []
  for seed in (0, 1):
    folder = tmp_path_factory.mktemp("ensemble") / f"seed{seed}"
    arguments = ["train", "--config=finetune_superglue", f"--config.init.checkpoint={trained.workdir('encoder_only')}"]
    arguments += [*test_evaluate.options(module), "--config.train.steps=2", "--config.train.epochs=0"]
    arguments += ["--config.eval.every=2", "--config.checkpoint.save_interval_steps=2"]
    assert command.main([*arguments, f"--config.train.seed={seed}", f"--workdir={folder}"]) == 0
    folders.append(folder)
  return folders


@pytest.mark.exhaustive
def test_heads_predict_with_the_mean_of_two_members(finetuned, module, tmp_path):
  """The predictions of the command are the likeliest classes by the mean probabilities, computed by hand."""
  config = records(override(load_config("superglue"), test_evaluate.options(module)))
  sources = [pretrained.read_source(str(folder)) for folder in finetuned]
  alone = evaluate.prepare(config, sources[0], tasks=(), split="validation")
  logits = [np.float64(alone.class_logits(pretrained.load(source, alone.mesh).params)) for source in sources]
  probabilities = [np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in logits]
  assert not np.allclose(*probabilities, rtol=1e-3)
  mean = np.mean(probabilities, axis=0)
  both = evaluate.prepare(config, sources[0], tasks=(), split="validation", others=sources[1:])
  params = ensemble.load(sources, both.mesh).params
  np.testing.assert_allclose(np.exp(both.class_logits(params)), mean, rtol=1e-4)
  rows = evaluated(module, tmp_path, ",".join(map(str, finetuned)))
  assert [row["prediction"] for row in rows] == [("no", "yes")[i] for i in mean.argmax(axis=-1)]
  np.testing.assert_allclose([row["score"] for row in rows], np.log(mean.max(axis=-1)), rtol=1e-3)


def read(architecture):
  return pretrained.read_source(str(trained.workdir(architecture)))


def changed(source, **fields):
  return dataclasses.replace(source, model=dataclasses.replace(source.model, **fields))


@pytest.mark.slow
def test_checkpoints_that_predict_other_things_are_refused():
  """Architecture, vocabulary, its size, heads and dtype; sizes of the model may differ."""
  source = read("encoder_decoder")
  head = ({"name": "other", "num_classes": 2},)
  more_sentinels = dataclasses.replace(
    source, vocabulary="", run=source.run | {"data": source.run["data"] | {"vocabulary": "bytes", "extra_ids": 7}}
  )
  for other, message in (
    (read("decoder_only"), "architecture is encoder_decoder and decoder_only"),
    (changed(source, vocab_size=512), "vocabulary size is 384 and 512"),
    (changed(source, heads=head), "set of heads is"),
    (changed(source, dtype="bfloat16"), "dtype is float32 and bfloat16"),
    (more_sentinels, "the vocabularies differ"),
  ):
    with pytest.raises(UserError, match=message):
      ensemble.check([source, other])
  ensemble.check([source, changed(source, embed_dim=32)])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("others", "message"),
  [
    ((), "architecture is encoder_decoder and encoder_only"),
    (("--config.eval.method=loss",), "config.eval.method=loss measures one checkpoint"),
  ],
)
def test_the_command_refuses_before_device_work(others, message, module, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(pretrained, "load", lambda *_: pytest.fail("parameters were read"))
  checkpoints = ",".join(str(trained.workdir(name)) for name in ("encoder_decoder", "encoder_only"))
  arguments = ["eval", f"--checkpoint={checkpoints}", f"--workdir={tmp_path}", *test_evaluate.options(module), *others]
  assert command.main(arguments) == 2
  assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.exhaustive
def test_superglue_predicts_with_several_members(superglue_folder, tmp_path):
  """Each member has a seed of its own and its best step, and the same command resumes."""
  path = trained.workdir("encoder_decoder")
  arguments = ["superglue", f"--checkpoint={path},{path}", f"--workdir={tmp_path}"]
  arguments += [f"--config.data.benchmark_dirs.superglue={superglue_folder}", "--config.eval.tasks=cb"]
  arguments += ["--config.data.inputs_length=40", "--config.data.targets_length=16", "--config.train.batch_size=8"]
  arguments += ["--config.train.steps=2", "--config.eval.every=1", "--config.checkpoint.save_interval_steps=1"]
  assert command.main(arguments) == 0
  seeds = [
    json.loads((tmp_path / name / "config.json").read_text())["train"]["seed"] for name in ("finetune", "finetune-2")
  ]
  record = results(tmp_path, "super_glue_cb.validation")
  members = record["checkpoint"].split(",")
  assert seeds[1] == seeds[0] + 1 and len(members) == 2 and "finetune-2/checkpoints/" in members[1]
  assert (tmp_path / "super_glue.zip").exists()
  again = ["eval", "--config=superglue", f"--checkpoint={record['checkpoint']}", f"--workdir={tmp_path / 'again'}"]
  again += [f"--config.data.benchmark_dirs.superglue={superglue_folder}", "--config.eval.tasks=cb"]
  assert command.main([*again, "--config.data.inputs_length=40", "--config.data.targets_length=16"]) == 0
  assert results(tmp_path / "again", "super_glue_cb.validation")["metrics"] == pytest.approx(record["metrics"])
