"""Models with task-specific parameters, by the commands: training on several sources, and inference for each task."""

import json
import re

import numpy as np
import pytest
import test_evaluate
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import pretrained, select_task
from t2t.inference import decoding
from t2t.serving import engine, text_predictor

pytestmark = pytest.mark.slow

module = test_evaluate.module  # fixture

PALS = ("--config.pals.tasks=poems,news", "--config.pals.size=8", "--config.pals.heads=2")
LINES = [{"inputs": text} for text in ("the quick brown fox", "a lazy dog sleeps", "one two three")]
CONFIGS = {
  "encoder_decoder": ("t5_1_1_small", "span_corruption"),
  "decoder_only": ("tiny_gpt", "prefix_lm"),
  "encoder_only": ("tiny_bert", "masked_lm"),
}


def train(architecture, folder, workdir, *options, names=("news", "poems"), pals=PALS):
  """Trains PALs of two tasks on some of them, packed; returns the exit status of the command."""
  name, objective = CONFIGS[architecture]
  base = f"--config.init.checkpoint={trained.workdir(architecture)}"
  fixed = [f"--config={name}", base, "--config.init.use_model_config=True"]
  read = [f"--config.data.objective={objective}", "--config.data.pack=True"]
  for source, letters in (("news", "ab"), ("poems", "uv")):
    (folder / f"{source}.txt").write_text("\n".join(letters[i % 2] * (9 + i % 13) for i in range(200)))
    read += [f"--config.data.sources.{source}.files={folder}/{source}.txt"] if source in names else []
  optimizer = ["--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.1"]
  small = trained.SMALL[len(trained.MODEL) :]
  return command.main(["train", *fixed, *read, *optimizer, *small, *pals, *options, "--workdir", str(workdir)])


def infer(checkpoint, lines, folder, *options):
  """Returns the predictions of the command for these lines, and the scores."""
  (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  out = folder / "out.jsonl"
  out.unlink(missing_ok=True)
  files = ["--input", str(folder / "in.jsonl"), "--output", str(out), *options]
  assert command.main(["infer", "--checkpoint", str(checkpoint), *files]) == 0
  rows = map(json.loads, out.read_text().splitlines())
  return [(row["prediction"], round(row["score"], 4)) for row in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A T5 on both tasks, with a stage of other proportions from step 3 on; stopped after step 4."""
  folder = tmp_path_factory.mktemp("tasks")
  stages = '--config.stages={"steps": 2},\n  {"data.alpha": 0.2}'
  for steps in (4, 12):
    assert train("encoder_decoder", folder, folder / "run", stages, f"--config.train.steps={steps}") == 0
  return folder / "run"


@pytest.mark.exhaustive
def test_each_task_is_asked_by_its_name(run, tmp_path):
  """--task for all lines, a task in each line, and --adapter on the base give the same predictions."""
  base, short = trained.workdir("encoder_decoder"), ("--max_length", "6")
  each = {task: infer(run, LINES, tmp_path, *short, "--task", task) for task in ("news", "poems")}
  assert each["news"] != each["poems"] and infer(base, LINES, tmp_path, *short) not in each.values()
  named = [line | {"adapter": task} for line in LINES for task in each]
  for checkpoint, besides in ((run, []), (base, ["--adapter", *(f"{task}={run}" for task in each)])):
    found = infer(checkpoint, named, tmp_path, *short, *besides)
    assert found[::2] == each["news"] and found[1::2] == each["poems"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_a_task_that_is_not_read_stays_as_it_was(architecture, tmp_path, capsys):
  """Training on one task leaves the other's parameters unchanged."""
  told = ["--config.eval.num_logged_samples=1", "--config.train.steps=6"]
  assert train(architecture, tmp_path, tmp_path / "run", *told, names=("poems",)) == 0
  assert re.search(r"parameters \(.* trainable, .* %\)", capsys.readouterr().err)
  options = ["--max_length", "6", "--prompt_eos", "yes"]
  ask = lambda checkpoint, *more: infer(checkpoint, LINES, tmp_path, *options, *more)
  plain = ask(trained.workdir(architecture))
  poems = ask(tmp_path / "run", "--task", "poems")
  assert ask(tmp_path / "run", "--task", "news") == plain != poems
  further = ["--config.train.steps=6", f"--config.init.checkpoint={tmp_path / 'run'}"]
  assert train(architecture, tmp_path, tmp_path / "further", *further, names=("news",)) == 0
  assert ask(tmp_path / "further", "--task", "poems") == poems
  assert ask(tmp_path / "further", "--task", "news") not in (plain, poems)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("options", "message"),
  [
    (("--input", "in.txt"), "--task is missing: .*has task-specific parameters.* one of: poems, news"),
    (
      ("--input", "in.txt", "--task", "poem"),
      "--task poem: unknown task. The tasks .* poems, news; did you mean poems",
    ),
    (
      ("--input", "in.jsonl"),
      "line 1 has no field 'adapter', but the base model cannot be used without an adapter; .* poems, news",
    ),
    (("--input", "named.jsonl"), "unknown adapter 'poem'. Known adapters: poems, news; did you mean poem"),
    (("--input", "named.jsonl", "--task", "news"), "selects the adapter 'poem', but no adapter is loaded"),
    (
      ("--checkpoint", "{base}", "--input", "in.txt", "--task", "news"),
      "has no task-specific parameters. Leave the task out",
    ),
    (
      ("--checkpoint", "{base}", "--adapter", "poem={run}", "--input", "in.jsonl"),
      "--adapter poem=.*: the task poem: unknown task. The tasks of config.pals.*did you mean poems",
    ),
  ],
)
def test_a_task_that_is_missing_or_unknown_is_refused(run, options, message, tmp_path, monkeypatch, capsys):
  """The error comes before the model is loaded, with the existing tasks."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("a text\n")
  (tmp_path / "in.jsonl").write_text('{"inputs": "a"}\n{"inputs": "b", "adapter": "poems"}\n')
  (tmp_path / "named.jsonl").write_text('{"inputs": "b", "adapter": "poem"}\n')
  given = [each.format(run=run, base=trained.workdir("encoder_decoder")) for each in options]
  assert command.main(["infer", "--checkpoint", str(run), "--output", "-", *given]) == 2
  assert re.search(message, " ".join(capsys.readouterr().err.split()))


@pytest.mark.exhaustive
def test_the_body_may_be_trained_as_well(tmp_path, capsys):
  """The body trains as in the paper; each task can still be selected, and resuming with other tasks is an error."""
  run, whole = tmp_path / "run", ("--config.pals.also_train=.",)
  assert train("encoder_decoder", tmp_path, run, *whole) == 0
  assert " trainable, " not in capsys.readouterr().err
  named = [line | {"adapter": task} for line in LINES[:1] for task in ("news", "poems")]
  assert len(infer(run, named, tmp_path, "--max_length", "4")) == 2
  capsys.readouterr()
  pals = ["--config.pals.tasks=news,poems", *PALS[1:], *whole]
  assert train("encoder_decoder", tmp_path, run, *whole, "--config.train.steps=4", pals=pals) == 2
  assert "pals.tasks" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_request_names_its_task(run, tmp_path):
  """The server holds the model once; a request without a task is an error."""
  source = pretrained.read_source(str(run))
  model = engine.Ready(source, adapters=select_task.split_by_task(source), ends_prompts=True)
  service = text_predictor.WritingService(model, defaults=decoding.DecodeConfig(max_length=6))
  assert service.about()["adapters"] == ["poems", "news"]
  for task in ("news", "poems"):
    expected = infer(run, LINES[:1], tmp_path, "--max_length", "6", "--task", task)
    body = {"inputs": LINES[0]["inputs"], "max_length": 6, "adapter": task}
    (*_, found) = service.generate(service.parse(json.dumps(body).encode()))
    assert [(found["prediction"], pytest.approx(found["score"], abs=1e-3))] == expected
  with pytest.raises(UserError, match="the request has no field 'adapter', .* give one of poems, news"):
    service.parse(b'{"inputs": "x"}')


@pytest.mark.exhaustive
def test_vectors_are_those_of_a_task(run, tmp_path, capsys):
  """Vectors differ between tasks; without a task the command fails."""
  (tmp_path / "in.txt").write_text("a text\nanother\n")
  ask = lambda *more: command.main(["embed", "--checkpoint", str(run), "--input", str(tmp_path / "in.txt"), *more])
  for task in ("news", "poems"):
    assert ask("--output", str(tmp_path / f"{task}.npy"), "--task", task) == 0
  news, poems = (np.load(tmp_path / f"{task}.npy") for task in ("news", "poems"))
  assert np.abs(news - poems).max() > 1e-3
  capsys.readouterr()
  assert ask("--output", str(tmp_path / "out.npy")) == 2
  assert "--task is missing" in " ".join(capsys.readouterr().err.split())


@pytest.mark.exhaustive
def test_each_registered_task_is_measured_as_its_own(module, tmp_path, capsys):
  """During training and by `t2t eval`: an untrained task has the metrics of the base."""
  names, base = ("odd_label", "odd_likelihood"), trained.workdir("encoder_decoder")
  pals = [f"--config.pals.tasks={','.join(names)}", *PALS[1:]]
  fixed = ["--config=t5_1_1_small", f"--config.init.checkpoint={base}", "--config.init.use_model_config=True", *pals]
  small = ["--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.1", "--config.train.steps=4"]
  small += ["--config.eval.every=4", "--config.eval.num_logged_samples=0", "--config.data.vocabulary=bytes"]
  told = [*fixed, *small, *test_evaluate.options(module, "odd_label"), "--workdir", str(tmp_path / "run")]
  assert command.main(["train", *told]) == 0
  rows = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
  between = [row["eval/odd_label/accuracy"] for row in rows if "eval/odd_label/accuracy" in row]
  measured = {}
  for name, checkpoint in (("base", base), ("pals", tmp_path / "run")):
    asked = [f"--checkpoint={checkpoint}", f"--workdir={tmp_path / name}", *test_evaluate.options(module, "odd")]
    assert command.main(["eval", *asked]) == 0
    found = json.loads((tmp_path / name / "results.json").read_text())
    measured[name] = found["odd_likelihood.validation"]["metrics"]["likelihood"]
    scores = test_evaluate.predictions(tmp_path / name, "odd_label.validation")
    measured[name, "scores"] = [row["score"] for row in scores]
    measured[name, "accuracy"] = found["odd_label.validation"]["metrics"]["accuracy"]
  assert measured["pals"] == measured["base"] and measured["pals", "scores"] != measured["base", "scores"]
  assert between[-1:] == [measured["pals", "accuracy"]]
  capsys.readouterr()
  asked = ["eval", f"--checkpoint={tmp_path / 'run'}", f"--workdir={tmp_path / 'no'}"]
  assert command.main([*asked, *test_evaluate.options(module, "odd_tags")]) == 2
  said = " ".join(capsys.readouterr().err.split())
  assert "config.data.mixture=odd_tags: odd_tags: unknown task. The tasks of config.pals are odd_label" in said


def test_superglue_does_not_ask_by_task(tmp_path, capsys):
  """Its diagnostic sets have no task: the error comes before training."""
  asked = ["superglue", f"--checkpoint={trained.workdir('encoder_decoder')}", f"--workdir={tmp_path}"]
  assert command.main([*asked, "--config.pals.tasks=super_glue_rte,super_glue_cb"]) == 2
  assert "has separate parameters for each task, but not for AX-b and AX-g" in " ".join(capsys.readouterr().err.split())
