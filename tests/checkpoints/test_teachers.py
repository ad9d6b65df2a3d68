"""Runs with teachers: a student begins as layers of its teacher, and its checkpoints refer to the teacher."""

import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import foreign
import jax
import numpy as np
import pytest
import test_array_batches
import test_hosts
from test_state_collections import Recorder
import trained

import t2t
from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained, restore, tensor_writer
from t2t.configuration import loading
from t2t.convert import huggingface
from t2t.losses import teacher_student
from t2t.training import metric_writers


def settings(**changes):
  every = {"train.steps": 2, "eval.every": 2, "checkpoint.save_interval_steps": 2, "eval.num_logged_samples": 0}
  rate = {"optimizer.name": "adamw", "optimizer.learning_rate": 0.01, "optimizer.scale_by_parameter": False}
  rate |= {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant", "optimizer.weight_decay": 0.0}
  changes = {"model.num_encoder_layers": 2, "model.max_length": 64, "model.dropout_rate": 0.1} | changes
  return test_array_batches.small("bert_base", **every | rate | changes)


def of_student(teacher, **changes):
  terms = {"hidden_weight": 0.5, "attention_weight": 1.0, "cosine_weight": 1.0}
  terms = {f"distillation.{key}": value for key, value in terms.items()}
  return settings(**{"distillation.teacher": (str(teacher),), "init.layers": ("0", "2")} | terms | changes)


def batches(read=0):
  for number in itertools.count(read):
    random = np.random.default_rng(number)
    ids = random.integers(3, 384, size=(8, 16))
    weights = (random.random(ids.shape) < 0.3).astype(np.float32)
    inputs = np.where(weights > 0, 2, ids)
    yield {"encoder_input_tokens": inputs, "encoder_target_tokens": ids, "encoder_loss_weights": weights}


def train(config, workdir):
  recorder = Recorder()
  held_out = list(itertools.islice(batches(1_000), 1))
  t2t.train(config, str(workdir), batches=batches, eval_batches=held_out, callbacks=[recorder]).run()
  return recorder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """A random BERT of three layers, in the format of Hugging Face."""
  model = dataclasses.replace(loading.records(settings()).model, num_encoder_layers=3)
  folder = tmp_path_factory.mktemp("teacher")
  huggingface.save(foreign.in_memory(model, foreign.random_params(model)), folder)
  return folder


def arrays(source):
  shapes = pretrained.shapes(source)
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  read = {path: (path, jax.ShapeDtypeStruct(shape, np.float32, sharding=place)) for path, shape in shapes.items()}
  return pretrained.read(source, read)


@pytest.mark.slow
def test_a_student_begins_as_layers_of_its_teacher(teacher, tmp_path, monkeypatch, capfd):
  """At a rate of 0 it stays there. Its checkpoint has no parameter of the teacher, and is read as the student alone.

  The start reads the teacher's description once, and the line of an evaluation has the agreement.
  """
  reads, read_source = [], pretrained.read_source
  note = lambda path, **keys: reads.append(keys["where"]) or read_source(path, **keys)
  monkeypatch.setattr(pretrained, "read_source", note)
  train(of_student(teacher, **{"optimizer.learning_rate": 0.0}), tmp_path / "run")
  assert reads.count("config.distillation.teacher=") == 1
  monkeypatch.undo()
  rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  measured = next(row["eval/agreement"] for row in rows if "eval/agreement" in row)
  assert re.search(rf"held-out loss .*, agreement {measured:.1%}$", capfd.readouterr().err, re.MULTILINE)
  source = pretrained.read_source(str(tmp_path / "run"))
  assert (source.part, source.model.num_encoder_layers) == ("student", 2)
  whole = foreign.read(huggingface.open_foreign(str(teacher)))
  student = arrays(source)
  for path, value in student.items():
    expected = whole[path][[0, 2]] if "/layers/" in path else whole[path]
    np.testing.assert_array_equal(value, expected, err_msg=path)
  step = restore.checkpoint_folder(str(tmp_path / "run"))
  assert not [path for path in restore.param_shapes(step) if not path.startswith("student/")]
  base = restore.read_base(step)
  assert base.name == "teacher" and set(base.entries) == {f"teacher/{path}" for path in whole}
  away = teacher.rename(tmp_path / "away")  # readers of tensors, such as t2t convert, need no teacher
  tensors = tensor_writer.open_foreign(str(tmp_path / "run")).tensors
  away.rename(teacher)
  assert tensors.keys() == student.keys()
  for path, value in student.items():
    np.testing.assert_array_equal(tensors[path].read(), value, err_msg=path)
  text = "eval/soft_targets"
  assert text in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"train.microbatches": 2, "mesh.data": 1, "mesh.fsdp": 4, "mesh.tensor": 2},
    {"mesh.data": 8, "mesh.fsdp": 1},
    {"mesh.data": 1, "mesh.fsdp": 4, "mesh.tensor": 2},
    {"model.embed_dim": 8, "model.num_heads": 2, "init.layers": (), "distillation.embedding_weight": 1.0},
  ],
)
def test_a_run_with_a_teacher_resumes_to_the_bit(teacher, tmp_path, changes):
  """Also without the checkpoint of the student's start, with projections, microbatches and on meshes."""
  whole = train(of_student(teacher, **changes, **{"train.steps": 3}), tmp_path / "whole")
  train(of_student(teacher, **changes), tmp_path / "run")
  resumed = train(of_student(teacher, **changes, **{"train.steps": 3}), tmp_path / "run")
  assert len(resumed.params) == 1
  jax.tree.map(np.testing.assert_array_equal, resumed.params[-1], whole.params[-1])


@pytest.mark.exhaustive
def test_a_resumed_run_has_the_same_teachers(teacher, tmp_path):
  """A copy is accepted; another model, other parameters and the run itself, also through a link, are refused."""
  run, copy, other, link = (tmp_path / name for name in ("run", "copy", "other", "link"))
  train(of_student(teacher, **{"train.steps": 1, "eval.every": 1, "checkpoint.save_interval_steps": 1}), run)
  shutil.copytree(teacher, copy)
  model = dataclasses.replace(loading.records(settings()).model, num_encoder_layers=3)
  other.mkdir()
  (tmp_path / "deeper").mkdir()
  params = jax.tree.map(lambda x: x + 1, foreign.random_params(model))
  huggingface.save(foreign.in_memory(model, params), other)
  deeper = dataclasses.replace(model, num_encoder_layers=4)
  huggingface.save(foreign.in_memory(deeper, foreign.random_params(deeper)), tmp_path / "deeper")
  link.symlink_to(run)
  for path, message in (
    (run, "is the run's own"),
    (link, "is the run's own"),
    (tmp_path / "deeper", "is not the teacher of the run .*num_encoder_layers is 4, expected 3"),
    (other, "is not the model that the run was trained with"),
  ):
    with pytest.raises(UserError, match=f"config.distillation.teacher={path}.*{message}"):
      train(of_student(path, **{"init.layers": ()}), run)
  train(of_student(copy, **{"init.checkpoint": str(teacher)}), run)


def test_bad_teachers_are_named_before_anything_is_written(teacher, tmp_path):
  run = tmp_path / "run"
  for path, message in ((tmp_path / "none", "no checkpoint in"), (run, "is the run's own workdir")):
    with pytest.raises(UserError, match=f"config.distillation.teacher={path}.*{message}"):
      train(of_student(path, **{"init.layers": ()}), run)
  with pytest.raises(UserError, match="3 layers in the teacher, 0 to 2, but the map names layer 5"):
    train(of_student(teacher, **{"distillation.layers": ("0", "5")}), run)
  prefixed = "config.train.freeze: '\\^embed': .* matches no parameter, .* begin with student/. Give '\\^student/embed'"
  with pytest.raises(UserError, match=prefixed):
    train(of_student(teacher, **{"train.freeze": ("^embed",)}), run)
  assert not run.exists()


@pytest.mark.slow
def test_layers_of_a_checkpoint_must_exist(teacher, tmp_path):
  for layers, message in (
    (("0", "3"), "config.init.layers=0,3: the encoder of .* has 3 layers, 0 to 2"),
    (("0",), "names 1 layers, but config.model.num_encoder_layers=2"),
    (("a", "b"), "not a list of layers"),
  ):
    with pytest.raises(UserError, match=message):
      train(settings(**{"init.checkpoint": str(teacher), "init.layers": layers}), tmp_path / "run")


def test_a_teacher_is_a_frozen_source_of_the_run():
  """`distillation.teacher` fills init.others; two teachers have two names, and the loss is chosen by the data."""
  options = ["--config.distillation.teacher=runs/a,hf://o/b", "--config.train.loss=distillation"]
  config = loading.records(loading.override(loading.load_config("tiny_bert"), options))
  assert config.train.loss == "" and config.distillation.temperature == 2.0
  assert {name: source.checkpoint for name, source in config.init.others.items()} == {
    "teacher": "runs/a",
    "teacher_2": "hf://o/b",
  }
  assert config.init.frozen_patterns == ("^teacher(/|$)", "^teacher_2(/|$)") == config.init.halved_patterns
  assert loading.records(loading.saved_config(config.to_dict())).init == config.init
  alone = teacher_student.without(config)
  assert not alone.init.others and alone.distillation is None
  with pytest.raises(UserError, match="distillation.dtype=.*no effect.*or --config.distillation.teacher=PATH"):
    loading.override(loading.load_config("tiny_bert"), ["--config.distillation.dtype=float32"])


# ---- Whole commands --------------------------------------------------------------------------------------------------

# Terms of layers, with projections from a width of 24 and at a scale at which each has a gradient.
_TERMS = ("hidden_weight=1.0", "embedding_weight=1.0", "cosine_weight=1.0", "attention_weight=1.0", "dtype=float32")
_STUDENT = (
  *(f"--config.distillation.{term}" for term in _TERMS),
  "--config.distillation.layers=last",
  "--config.model.embed_dim=24",
  "--config.model.init_scale=0.3",
  "--config.model.dropout_rate=0.1",
  "--config.optimizer.name=adamw",
  "--config.optimizer.scale_by_parameter=False",
  "--config.train.log_every=1",
  "--config.data.num_streams=2",
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
  """Returns name -> function of a workdir to the command that trains this student."""
  folder = tmp_path_factory.mktemp("teachers")
  words = ("great", "lovely", "superb", "fine", "awful", "dull", "boring", "poor")
  rows = [f"It was {words[i % 8]}, film {i}.\t{'yes' if i % 8 < 4 else 'no'}" for i in range(80)]
  (folder / "reviews.tsv").write_text("\n".join(["review\tliked", *rows]) + "\n")

  def of_table(workdir):
    argv = trained.arguments("encoder_only", workdir)
    options = (f"--config.data.files={folder / 'reviews.tsv'}", "--config.data.labels=auto")
    return [word for word in argv if "data.files" not in word and "data.objective" not in word] + list(options)

  assert command.main(of_table(folder / "of_table")) == 0
  student = lambda argv, teacher: [*argv, *_STUDENT, f"--config.distillation.teacher={teacher}"]
  of_text = lambda name: lambda workdir: student(trained.arguments(name, workdir), trained.workdir(name))
  return {
    "masked_lm": of_text("encoder_only"),
    "encoder_decoder": of_text("encoder_decoder"),
    "heads": lambda workdir: student(of_table(workdir), folder / "of_table"),
  }


# The second run is killed after its fifth step, while checkpoints are written.
_KILLED = """
import json, os, pytest, sys
import trained
from t2t import __main__ as command
runs = iter([False, True])
trained.after_step(pytest.MonkeyPatch(), 5, lambda: next(runs) and os.kill(os.getpid(), 9))
for argv in json.loads(sys.argv[1]):
  assert command.main(argv) == 0
"""


def metrics(workdir):
  """Returns name -> step -> value, without measurements of the machine."""
  ours = metric_writers.read_all_metrics(workdir / "metrics.jsonl")
  machine = ("seconds", "per_second", "input_wait", "memory")
  return {name: values for name, values in ours.items() if not any(word in name for word in machine)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["masked_lm", "encoder_decoder", "heads"])
def test_a_killed_student_resumes_to_the_bit(name, commands, tmp_path):
  """SIGKILL in the fifth of six steps; the same command ends with the parameters and metrics of an unbroken run."""
  often = ("--config.train.steps=6", "--config.eval.every=6", "--config.checkpoint.save_interval_steps=2")
  made = {run: [*commands[name](tmp_path / run), *often] for run in ("whole", "run")}
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2", "T2T_CACHE_DIR": str(tmp_path)}
  environment["PYTHONPATH"] = os.pathsep.join(map(str, (test_hosts.folders.ROOT, test_hosts.folders.TESTS)))
  child = lambda *argv: subprocess.run(
    [sys.executable, "-c", _KILLED, json.dumps(argv)], env=environment, capture_output=True, text=True, check=False
  )
  killed = child(made["whole"], made["run"])
  assert killed.returncode == -9, killed.stderr
  assert max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()) in (2, 4)
  resumed = child(made["run"])
  assert resumed.returncode == 0, resumed.stderr
  assert "step 1/6" not in resumed.stderr and "step 6/6" in resumed.stderr
  assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
  whole, run = (arrays(pretrained.read_source(str(tmp_path / folder))) for folder in ("whole", "run"))
  jax.tree.map(np.testing.assert_array_equal, run, whole)


@pytest.mark.exhaustive
def test_students_on_two_processes_equal_those_on_one(commands, tmp_path):
  """All metrics of training and evaluation, on meshes whose axes cross processes."""
  meshes = {"masked_lm": test_hosts.TWO["data"], "encoder_decoder": test_hosts.TWO["fsdp"], "heads": ()}
  plain = ("--config.model.dropout_rate=0.0", "--config.eval.every=2")
  for number, folder in ((1, "one"), (2, "two")):
    runs = [[*commands[name](tmp_path / folder / name), *plain, *mesh] for name, mesh in meshes.items()]
    codes, logs = test_hosts.Processes(number, 4 // number, runs, cache=tmp_path).wait()
    assert codes == [0] * number, "\n".join(logs)
  for name in meshes:
    one, two = (metrics(tmp_path / folder / name) for folder in ("one", "two"))
    assert one.keys() == two.keys() and "train/hidden_states" in " ".join(one).replace("encoder_", "")
    for key, values in one.items():
      assert two[key] == pytest.approx(values, rel=1e-3, abs=1e-6), (name, key)
