"""Metrics of a task are equal for the same checkpoint and examples: during training, in the report, and by `t2t eval`
with any batch size.
"""

import json

import folders
import numpy as np
import pytest
import test_spans
import trained

from t2t import __main__ as command
from t2t.training import metric_writers

pytestmark = pytest.mark.slow

DATA = folders.SHARED / "data"
ONCE = ("--config.train.steps=1", "--config.eval.every=1", "--config.checkpoint.save_interval_steps=1")
# float32, because candidates of a tiny model differ by less than bfloat16's rounding.
SMALL = (
  "--config.model.dtype=bfloat16",
  "--config.data.inputs_length=56",
  "--config.data.targets_length=8",
  "--config.data.num_streams=1",
  "--config.train.batch_size=8",
  "--config.eval.batches=1",
  "--config.eval.num_logged_samples=0",
  "--config.eval.max_examples=12",
)
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SUPERGLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")


def metrics_of(folder):
  """Returns task -> metrics of the validation split, from results.json."""
  found = json.loads((folder / "results.json").read_text())
  return {name.split(".")[0]: own for name, own in found.items() if name.endswith(".validation")}


def at_step(workdir, task, step):
  """Returns the metrics of a task at a training step."""
  names = {
    name.removeprefix(f"eval/{task}/"): own[step]
    for name, own in metric_writers.parse_metrics((workdir / "metrics.jsonl").read_bytes()).items()
    if name.startswith(f"eval/{task}/") and not name.endswith("/score")
  }
  assert names, task
  return names


def check_eval(workdir, step, folder, config, *options, tasks, batch_sizes=(3,)):
  """Checks that `t2t eval` of a step, with other batch sizes, equals the metrics of training."""
  checkpoint = f"--checkpoint={workdir / 'checkpoints' / str(step)}"
  given = [option for option in SMALL if not option.startswith(("--config.model", "--config.train"))]
  for size in batch_sizes:
    arguments = ["eval", f"--config={config}", checkpoint, f"--workdir={folder / f'eval{size}'}", *given, *options]
    assert command.main([*arguments, f"--config.eval.batch_size={size}"]) == 0
    found = metrics_of(folder / f"eval{size}")
    for task in tasks:
      assert found[task]["metrics"] == pytest.approx(at_step(workdir, task, step), abs=1e-3), (task, size)


def superglue_in(folder, *, whole):
  """Writes real examples of SuperGLUE; unless `whole`, only training and validation sets."""
  if not (DATA / "superglue").exists():
    pytest.skip(f"{DATA / 'superglue'} is not there: real examples of SuperGLUE")
  stems = (
    (("train", "train32"), ("val", "dev32"), ("test", "dev32")) if whole else (("train", "train32"), ("val", "dev32"))
  )
  for name in ("CB", "COPA", "MultiRC", "RTE", "WiC", "WSC"):
    (folder / name).mkdir()
    for stem, _ in stems:
      (folder / name / f"{stem}.jsonl").symlink_to(DATA / "superglue" / name / f"{stem}.jsonl")
  for name in ("BoolQ", "ReCoRD"):
    (folder / name).mkdir()
    for ours, theirs in stems:
      (folder / name / f"{ours}.jsonl").symlink_to(DATA / "superglue_fewshot" / name / f"{theirs}.jsonl")
  for name in ("AX-b", "AX-g") if whole else ():
    (folder / name).symlink_to(DATA / "superglue" / name)
  return f"--config.data.benchmark_dirs.superglue={folder}"


@pytest.fixture(scope="module")
def superglue(tmp_path_factory):
  """All tasks of SuperGLUE in one folder, without test sets."""
  return superglue_in(tmp_path_factory.mktemp("SuperGLUE"), whole=False)


@pytest.fixture(scope="module")
def whole_superglue(tmp_path_factory):
  """All tasks of SuperGLUE in one folder, with test sets and diagnostic sets."""
  return superglue_in(tmp_path_factory.mktemp("SuperGLUE"), whole=True)


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
  """All tasks of GLUE as published files, with generated sentences."""
  folder = tmp_path_factory.mktemp("GLUE")
  random = np.random.default_rng(0)
  words = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog")
  text = lambda: " ".join(random.choice(words, size=6))
  two = ("entailment", "not_entailment")
  columns = {
    "SST-2": (("sentence", "label"), ("0", "1")),
    "STS-B": (("sentence1", "sentence2", "score"), ("0.5", "2.25", "4.0")),
    "QQP": (("question1", "question2", "is_duplicate"), ("0", "1")),
    "QNLI": (("question", "sentence", "label"), two),
    "RTE": (("sentence1", "sentence2", "label"), two),
    "WNLI": (("sentence1", "sentence2", "label"), ("0", "1")),
    "MRPC": (("Quality", "#1 String", "#2 String"), ("0", "1")),
    "MNLI": (("sentence1", "sentence2", "gold_label"), ("neutral", "entailment", "contradiction")),
  }
  for name, (heads, labels) in columns.items():
    stems = ("train", "dev_matched", "dev_mismatched") if name == "MNLI" else ("train", "dev")
    stems = ("msr_paraphrase_train", "dev") if name == "MRPC" else stems
    (folder / name).mkdir()
    for stem in stems:
      rows = [
        [
          labels[i % len(labels)] if head in ("label", "score", "is_duplicate", "Quality", "gold_label") else text()
          for head in heads
        ]
        for i in range(12)
      ]
      lines = ["\t".join(row) for row in [list(heads), *rows]]
      suffix = ".txt" if name == "MRPC" else ".tsv"
      (folder / name / f"{stem}{suffix}").write_text("\n".join(lines) + "\n")
  (folder / "CoLA").mkdir()
  for stem in ("train", "dev"):
    (folder / "CoLA" / f"{stem}.tsv").write_text("".join(f"s\t{i % 2}\t\t{text()}\n" for i in range(12)))
  return f"--config.data.benchmark_dirs.glue={folder}"


def check_superglue(folder, given, names, *, steps, batch_sizes):
  """Checks that `t2t superglue` reports the metrics that selected its steps, and that `t2t eval` equals them."""
  checkpoint = f"--checkpoint={trained.workdir('encoder_only')}"
  own = [given, f"--config.eval.tasks={','.join(f'super_glue_{name}' for name in names)}"]
  arguments = ["superglue", checkpoint, f"--workdir={folder}", *own, *SMALL, *ONCE, f"--config.train.steps={steps}"]
  assert command.main(arguments) == 0
  found = metrics_of(folder)
  assert len(found) == len(names)
  for task, reported in sorted(found.items()):
    scores = metric_writers.read_metrics(folder / "finetune" / "metrics.jsonl", f"eval/{task}/score")
    step = max(scores, key=scores.get)  # the first of equal scores
    assert reported["metrics"] == pytest.approx(at_step(folder / "finetune", task, step), abs=1e-3), task
  check_eval(folder / "finetune", steps, folder, "superglue", *own, tasks=found, batch_sizes=batch_sizes)


@pytest.mark.exhaustive
def test_kinds_of_superglue_by_heads(superglue, tmp_path):
  """Choices, questions with several answers, and word mentions."""
  check_superglue(tmp_path, superglue, ("copa", "multirc", "record"), steps=1, batch_sizes=(3,))


@pytest.mark.exhaustive
def test_every_task_of_superglue_by_heads(whole_superglue, tmp_path):
  check_superglue(tmp_path, whole_superglue, SUPERGLUE, steps=2, batch_sizes=(3, 16))


@pytest.mark.exhaustive
def test_every_task_of_glue_by_heads(glue, tmp_path):
  """Single sentences, pairs, and a regression task."""
  mixture = ",".join(f"glue_{name}" for name in GLUE)
  arguments = ["train", "--config=finetune_glue", f"--config.init.checkpoint={trained.workdir('encoder_only')}"]
  arguments += [f"--workdir={tmp_path / 'run'}", f"--config.data.mixture={mixture}", glue, *SMALL, *ONCE]
  assert command.main(arguments) == 0
  own = (f"--config.data.mixture={mixture}", "--config.data.task_modules=t2t.tasks.glue", glue)
  check_eval(tmp_path / "run", 1, tmp_path, "superglue", *own, tasks=mixture.split(","), batch_sizes=(3, 16))


@pytest.mark.exhaustive
def test_classes_scores_spans_and_tags_by_heads(glue, tmp_path):
  """Single texts, pairs, a score, spans in several windows, and tags."""
  (tmp_path / "squad").mkdir()
  (tmp_path / "conll").mkdir()
  test_spans.write(tmp_path / "squad", 3)
  words = ("Ann B-PER", "Lee I-PER", "saw O", "Rome B-LOC", "and O", "Fiat B-ORG", "again O")
  sentences = [words[i:] + words[:i] for i in range(len(words))]
  text = "\n\n".join("\n".join(word.replace(" ", " NNP I-NP ") for word in sentence) for sentence in sentences)
  for name in ("train", "valid"):
    (tmp_path / "conll" / f"{name}.txt").write_text(text + "\n")
  tasks = ["glue_cola", "glue_mnli", "glue_stsb", "squad_v2", "conll2003"]
  modules = ",".join(f"t2t.tasks.{name}" for name in ("glue", "squad", "conll2003"))
  data = [f"--config.data.mixture={','.join(tasks)}", f"--config.data.task_modules={modules}", glue]
  data += [f"--config.data.benchmark_dirs.squad_v2={tmp_path / 'squad'}"]
  data += [f"--config.data.benchmark_dirs.conll2003={tmp_path / 'conll'}", "--config.data.inputs_length=256"]
  model = ["--config=tiny_bert", *trained.SMALL, "--config.model.num_encoder_layers=1", "--config.model.max_length=256"]
  assert command.main(["train", *model, *SMALL, *data, *ONCE, f"--workdir={tmp_path / 'run'}"]) == 0
  check_eval(tmp_path / "run", 1, tmp_path, "finetune_squad_v2", *data, tasks=tasks)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("architecture", "options"),
  [
    ("encoder_decoder", ("--config.eval.num_beams=2", "--config.eval.num_shots=1")),
    ("encoder_decoder", ("--config.eval.method=rank",)),
    ("decoder_only", ("--config.eval.method=rank", "--config.eval.num_shots=1")),
    ("decoder_only", ("--config.train.loss=heads",)),
  ],
)
def test_what_is_written_and_ranked(architecture, options, superglue, tmp_path):
  """Beams, few-shot examples, ranking, and heads on a decoder."""
  tasks = ["super_glue_copa", "super_glue_multirc"]
  arguments = ["train", "--config=finetune_superglue", f"--config.init.checkpoint={trained.workdir(architecture)}"]
  arguments += [f"--workdir={tmp_path / 'run'}", f"--config.data.mixture={','.join(tasks)}", superglue]
  assert command.main([*arguments, *SMALL, *ONCE, *options]) == 0
  of_eval = [option for option in options if option.startswith("--config.eval")]
  tasks_given = f"--config.eval.tasks={','.join(tasks)}"
  check_eval(tmp_path / "run", 1, tmp_path, "superglue", superglue, tasks_given, *of_eval, tasks=tasks)
