"""Whole commands on models that were distilled, pruned or trained on predicted labels."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import test_exits_command
import test_served_commands
import test_server
import trained

from t2t import __main__ as command
from t2t import convert
from t2t.checkpoints import tensor_writer
from t2t.param_tree import is_prunable
from t2t.serving import server
from t2t.training import metric_writers

pytestmark = pytest.mark.exhaustive

RULE = "--config.optimizer.param_groups=/layers/.*(attention|mlp)/: "


def table(folder: pathlib.Path, number: int = 80) -> pathlib.Path:
  """Writes a table of short reviews with two classes."""
  words = test_exits_command._WORDS
  rows = [f"It was {words[i % 8]}, film {i}.\t{'yes' if i % 8 < 4 else 'no'}" for i in range(number)]
  path = folder / "reviews.tsv"
  path.write_text("\n".join(["review\tliked", *rows]) + "\n")
  return path


def t2t(*argv: object) -> None:
  assert command.main(list(map(str, argv))) == 0, argv


def train(config: str, workdir: pathlib.Path, *options: object) -> dict[str, dict[int, float]]:
  """Trains a small model with a config; returns name -> step -> value of its metrics."""
  fixed = (f"--config={config}", *trained.SMALL, "--config.model.max_length=80", "--config.train.log_every=1")
  t2t("train", *fixed, *options, "--workdir", workdir)
  return metric_writers.read_all_metrics(workdir / "metrics.jsonl")


def layers(number: int) -> str:
  return f"--config.model.num_encoder_layers={number}"


def weights(checkpoint: pathlib.Path) -> dict[str, np.ndarray]:
  return {path: tensor.read() for path, tensor in tensor_writer.open_foreign(str(checkpoint)).tensors.items()}


def lines(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_student_is_read_without_its_teacher(tmp_path):
  """t2t eval, infer, serve and convert; the folder of the teacher is removed after training."""
  data = (f"--config.data.files={table(tmp_path)}", "--config.data.labels=auto")
  teacher, student = tmp_path / "teacher", tmp_path / "student"
  train("tiny_bert", teacher, *data, layers(3), "--config.model.init_scale=0.3")
  terms = (f"--config.distillation.teacher={teacher}", "--config.distillation.hidden_weight=1.0")
  metrics = train("tiny_bert", student, *data, *terms, layers(2), "--config.init.layers=0,2")
  assert {"train/table_soft_targets", "train/hidden_states", "eval/agreement"} <= set(metrics)
  expected = weights(student)
  shutil.rmtree(teacher)
  assert not [path for path in expected if "teacher" in path or path.startswith("student")]
  t2t("eval", "--checkpoint", student, "--workdir", tmp_path / "eval")
  assert json.loads((tmp_path / "eval" / "results.json").read_text())
  (tmp_path / "in.jsonl").write_text(json.dumps({"inputs": "It was fine."}) + "\n")
  infer = ("infer", "--input", tmp_path / "in.jsonl", "--checkpoint")
  t2t(*infer, student, "--output", tmp_path / "out.jsonl")
  (row,) = lines(tmp_path / "out.jsonl")
  asker = test_served_commands.service(student)
  with server.make_server(asker, host="127.0.0.1", port=0) as running:
    answer = test_server.ask(running.server_port, "POST", "/generate", {"inputs": "It was fine."})[2]
  served = json.loads(answer.splitlines()[-1])
  assert served["prediction"] == row["prediction"]
  # transformers' head of a text reads [CLS], which bytes do not have.
  t2t("convert", student, "--to", "hf", "--head", "vocabulary", tmp_path / "hf")
  converted = convert.open_foreign(str(tmp_path / "hf")).tensors
  for path, tensor in converted.items():
    np.testing.assert_array_equal(tensor.read(), expected[path], err_msg=path)
  assert set(expected) - set(converted) == {path for path in expected if path.startswith("heads/")}


def test_a_soft_movement_run_becomes_a_ticket_and_a_narrow_model(tmp_path):
  """A whole run of soft_movement, then t2t prune rewind with a run on its ticket, and t2t prune neurons."""
  text = f"--config.data.files={trained.workdir('encoder_only').with_name('encoder_only.jsonl')}"
  pruning = {"penalty": 0.0001, "score_rate": 0.5, "every": 1, "end": 4}
  schedule = [f"--config.pruning.{key}={value}" for key, value in pruning.items()]
  often = ("--config.checkpoint.save_interval_steps=2", "--config.checkpoint.max_to_keep=9")
  options = (text, "--config.data.objective=masked_lm", layers(2))
  soft = tmp_path / "soft"
  metrics = train("tiny_bert", soft, *options, f"{RULE}soft_movement=0.3", *schedule, *often, "--config.train.steps=6")
  pruned = {path: x for path, x in weights(soft).items() if is_prunable(path, x.shape) and "/layers/" in path}
  zeros = {path: np.mean(x == 0) for path, x in pruned.items()}
  assert len(zeros) > 5 and 0.05 < np.mean(list(zeros.values())) < 1.0, zeros
  assert any("sparsity" in name for name in metrics), list(metrics)
  early, ticket = soft / "checkpoints" / "2", tmp_path / "ticket"
  t2t("prune", "rewind", soft, "--to", early, "--output", ticket)
  begun = weights(early)
  for path, x in weights(ticket).items():
    np.testing.assert_array_equal(x, np.where(pruned[path] == 0, 0, begun[path]) if path in pruned else begun[path])
  train("tiny_bert", tmp_path / "again", *options, f"--config.init.checkpoint={ticket}", f"{RULE}mask=zeros")
  for path, x in weights(tmp_path / "again").items():
    if path in pruned:
      assert not np.any(x[pruned[path] == 0]) and np.any(x != weights(ticket)[path])
  narrow = tmp_path / "narrow"
  t2t("prune", "neurons", soft, "--share", "0.5", "--examples", "8", "--output", narrow)
  assert json.loads((narrow / "config.json").read_text())["model"]["mlp_dim"] == 16
  starts = (f"--config.init.checkpoint={narrow}", "--config.model.mlp_dim=16")
  assert 2 in train("tiny_bert", tmp_path / "tuned", *options, *starts)["eval/loss"]


def test_predicted_labels_are_trained_on(tmp_path):
  """t2t infer --min_confidence labels lines, and a run fine-tunes on its file."""
  reviews, out = table(tmp_path), tmp_path / "labelled.jsonl"
  options = ("--config.data.labels=auto", layers(1), "--config.model.init_scale=0.3")
  train("tiny_bert", tmp_path / "first", *options, f"--config.data.files={reviews}")
  unlabelled = tmp_path / "more.jsonl"
  unlabelled.write_text(
    "".join(
      json.dumps({"review": f"A {word} film, number {i}"}) + "\n"
      for i, word in enumerate(test_exits_command._WORDS * 8)
    )
  )
  t2t("infer", "--checkpoint", tmp_path / "first", "--input", unlabelled, "--output", out, "--min_confidence", "0.5")
  rows, given = lines(out), lines(unlabelled)
  assert [row["review"] for row in rows] == [row["review"] for row in given]
  assert {row["liked"] for row in rows} <= {"yes", "no"}
  metrics = train(
    "tiny_bert",
    tmp_path / "second",
    *options,
    f"--config.data.files={reviews},{out}",
    f"--config.init.checkpoint={tmp_path / 'first'}",
  )
  assert 2 in metrics["eval/accuracy"]


def test_tinybert_learns_layers_and_then_predictions(tmp_path):
  """The config tinybert_task at toy size: the second stage trains soft targets alone."""
  data = (f"--config.data.files={table(tmp_path)}", "--config.data.labels=auto", "--config.data.mixture=")
  teacher = tmp_path / "teacher"
  train("tiny_bert", teacher, *data[:2], layers(4), "--config.model.embed_dim=24")
  general = tmp_path / "general"
  options = (layers(2), "--config.model.mlp_dim=32")
  text = f"--config.data.files={trained.workdir('encoder_only').with_name('encoder_only.jsonl')}"
  options += (f"--config.distillation.teacher={teacher}", "--config.data.extra_ids=100", "--config.data.mixture=")
  train("tinybert_general", general, text, *options)
  # The model is that of the checkpoint.
  fixed = [option for option in trained.SMALL if "config.train." in option or "config.eval." in option]
  fixed += ["--config.data.num_streams=1", "--config.train.log_every=1", "--config.train.steps=8"]
  starts = (f"--config.init.checkpoint={general}", f"--config.distillation.teacher={teacher}")
  task = tmp_path / "task"
  t2t("train", "--config=tinybert_task", *data, *fixed, *starts, "--workdir", task)
  metrics = metric_writers.read_all_metrics(task / "metrics.jsonl")
  assert set(metrics["train/hidden_states"]) == set(range(1, 7))
  assert set(metrics["train/table_soft_targets"]) == {7, 8}


def test_mobilebert_transfers_layer_after_layer(tmp_path):
  """Both configs of mobilebert_distilled at toy size: a stage for each layer, then the pre-training."""
  teacher, transfer = tmp_path / "teacher", tmp_path / "transfer"
  text = f"--config.data.files={trained.workdir('encoder_only').with_name('encoder_only.jsonl')}"
  train("tiny_bert", teacher, text, "--config.data.objective=masked_lm", layers(2), "--config.model.embed_dim=24")
  stages = [{"name": f"layer_{i}", "steps": 2, "distillation.layers": [f"{i}:{i}"]} for i in range(2)]
  stages = ",".join(map(json.dumps, stages))
  options = [text, "--config.data.mixture=", "--config.data.objective=masked_lm", layers(2)]
  options += ["--config.data.extra_ids=100"]
  options += [f"--config.model.{key}={x}" for key, x in _NARROW.items()]
  options += [f"--config.distillation.teacher={teacher}", "--config.train.steps=4", "--config.train.batch_size=64"]
  metrics = train("mobilebert_distilled_transfer", transfer, *options, f"--config.stages={stages}")
  for name in ("hidden_states", "hidden_means", "hidden_variances", "attention"):
    assert set(metrics[f"train/{name}"]) == {1, 2, 3, 4} and np.isfinite(list(metrics[f"train/{name}"].values())).all()
  options += [f"--config.init.checkpoint={transfer}", "--config.optimizer.warmup_steps=0"]
  metrics = train("mobilebert_distilled_pretraining", tmp_path / "mobile", *options)
  assert set(metrics["train/soft_targets"]) == {1, 2, 3, 4}


# MobileBERT's shapes, of a width of 16.
_NARROW = {"bottleneck_dim": 8, "head_dim": 4, "num_heads": 2, "embedding_dim": 6, "output_embedding_dim": 16}
