"""ULMFiT: a language model of general text, of the task's text, and a classifier (Howard & Ruder 2018)."""

from collections.abc import Mapping
import json
import re
from typing import Any

from etils import epath
import numpy as np

from t2t.studies import claims, suite
from t2t.studies.definition import ActionStage, Arm, Column, Curve, Folders, Scale, Setting, Study, TrainStage
from t2t.training import metric_writers

FULL, GENERAL, SCRATCH = "general and task LM", "general LM", "from scratch"
_GENERAL, _TARGET, _CLASSIFIER, _TEXTS = "general", "target", "classifier", "texts"  # stages
_DISCRIMINATIVE, _GRADUAL = "depth=0.3846", "unfreeze_every=epoch"  # 1 / 2.6


# ---- Text ------------------------------------------------------------------------------------------------------------


def _write_texts(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Writes general text, the documents without the sentences of the task, and the task's inputs in random order."""
  from t2t.data.sources import docstrings

  for split in ("train", "validation"):
    lines = (workdirs[suite.TEXT] / f"{split}.jsonl").read_text().splitlines()
    documents = [json.loads(line)["text"] for line in lines]
    parts = map(docstrings.split, documents)
    texts = [part[1] if part else document for document, part in zip(documents, parts, strict=True)]
    examples = docstrings.shuffled(docstrings.DocstringSource().get_dataset(split)).as_numpy_iterator()
    inputs = np.random.default_rng(seed).permutation([example["summary"].decode() for example in examples]).tolist()
    for name, rows in (("general", texts), ("task", inputs)):
      content = "".join(json.dumps({"text": text}) + "\n" for text in rows)
      (workdir / f"{name}_{split}.jsonl").write_text(content)


def _files(setting: Setting, name: str) -> dict[str, Any]:
  """Returns the keys of the text that `_write_texts` has written; at larger scales the user gives the text."""
  if setting.scale != "toy":
    return {}
  files = {"data.mixture": "", "data.files": f"{{{_TEXTS}}}/{name}_train.jsonl"}
  return {**files, "data.eval_files": f"{{{_TEXTS}}}/{name}_validation.jsonl"}


# ---- Stages ----------------------------------------------------------------------------------------------------------


def general(setting: Setting) -> TrainStage:
  """Returns the stage of the general language model, which all seeds share: an LSTM, or the user's config."""
  steps = setting.sized(toy=600, small=30_000, base=125_000)
  keys = {**_files(setting, "general"), "data.objective": "causal_lm", **suite.budget(steps)}
  if setting.scale == "toy":
    keys |= {"data.vocabulary": f"{{{suite.TEXT}}}/spiece.model", "train.batch_size": 32}
    if not setting.config:
      size = {"embed_dim": 64, "recurrent_hidden": 128, "num_decoder_layers": 2}
      keys |= {f"model.{field}": value for field, value in size.items()}
  elif not setting.config:
    keys["eval.every"] = steps // 20  # the average of the weights begins when the loss no longer falls
  config = setting.config or ("tiny_lstm" if setting.scale == "toy" else "awd_lstm_ulmfit")
  return TrainStage(_GENERAL, config, keys, seed=0)


def target(setting: Setting) -> TrainStage:
  """Returns the stage that trains the language model on the task's text."""
  text = _files(setting, "task") if suite.is_docs(setting) else {}
  keys = {**text, **suite.budget(setting.sized(toy=200, small=2_000, base=2_000))}
  if setting.scale == "toy":
    keys |= {"data.targets_length": 64, "train.batch_size": 32, "data.num_streams": 1}
  if not setting.config:
    keys |= {"data.continuous_rows": True, "optimizer.learning_rate": 0.004}  # the paper's rate
  return TrainStage(_TARGET, "ulmfit_task", keys, start=_GENERAL)


def classifier(setting: Setting, start: str, rules: str, more: Mapping[str, Any] | None = None) -> TrainStage:
  """Returns the stage of the classifier.

  Args:
    setting: of the study.
    start: earlier stage.
    rules: settings of all parameters in config.optimizer.param_groups; "": all have one rate from the first step.
    more: further keys.
  """
  keys: dict[str, Any] = {
    "optimizer.param_groups": f".: {rules}" if rules else "",
    "data.num_streams": 1,  # the examples are few
    "eval.num_logged_samples": 0,
    "checkpoint.max_to_keep": 1,
    "train.log_every": 10,
  }
  if suite.is_docs(setting):
    keys |= {"data.mixture": "docs_order", "data.task_modules": "t2t.tasks.docs"}
    keys |= {"data.max_train_examples": 1_000, "data.subset_seed": "{seed}"}
    keys |= {"data.inputs_length": 48, "data.targets_length": 4}
    keys |= {"train.batch_size": 32, "train.epochs": 8.0, "eval.max_examples": 400}
  else:
    keys |= {"data.mixture": "glue_sst2", "data.task_modules": "t2t.tasks.glue"}
    keys |= {"data.benchmark_dirs.glue": setting.data, "data.inputs_length": 128, "data.targets_length": 4}
  if not setting.config:
    # Texts of a batch do not continue those before. The rate is the paper's.
    keys |= {"model.recurrent_carry": False, "optimizer.learning_rate": 0.01}
  return TrainStage(_CLASSIFIER, "ulmfit_classifier", {**keys, **(more or {})}, start=start)


def arms(setting: Setting) -> list[Arm]:
  """Returns the classifier from scratch, from the general LM, from the task's LM, and without each of the rules."""
  texts = [ActionStage(_TEXTS, _write_texts, reads=(suite.TEXT,), seed=0)] if setting.scale == "toy" else []
  lm = [*suite.text_stages(setting), *texts, general(setting)]
  both = [*lm, target(setting)]
  rules = f"{_DISCRIMINATIVE} {_GRADUAL}"
  return [
    Arm(SCRATCH, [*lm, classifier(setting, _GENERAL, "", {"init.parameters": False})]),
    Arm(GENERAL, [*lm, classifier(setting, _GENERAL, rules)]),
    Arm(FULL, [*both, classifier(setting, _TARGET, rules)]),
    Arm("without gradual unfreezing", [*both, classifier(setting, _TARGET, _DISCRIMINATIVE)]),
    Arm("without discriminative rates", [*both, classifier(setting, _TARGET, _GRADUAL)]),
    Arm("without both", [*both, classifier(setting, _TARGET, "")]),
  ]


# ---- Columns ---------------------------------------------------------------------------------------------------------


def accuracies(folders: Folders) -> dict[int, float]:
  """Returns step -> accuracy of the classifier's task, which may be the user's."""
  metrics = metric_writers.read_all_metrics(folders[_CLASSIFIER] / "metrics.jsonl")
  return next((values for name, values in metrics.items() if re.fullmatch(r"eval/.+/accuracy", name)), {})


def _last(folders: Folders) -> float | None:
  values = accuracies(folders)
  return values[max(values)] if values else None


def columns(setting: Setting) -> list[Column]:
  """Returns the accuracy after the last step."""
  del setting
  return [Column("accuracy", _last)]


def curves(setting: Setting) -> list[Curve]:
  """Returns the accuracy by step."""
  del setting
  return [Curve("held-out accuracy (%)", accuracies)]


STUDY = Study(
  title="ULMFiT",
  question="What do a general language model, the task's text, and the rules of ULMFiT add to a classifier?",
  paper=(
    "Howard & Ruder 2018, Universal Language Model Fine-tuning for Text Classification, section 5, tables 4, 6 and 7"
  ),
  claim=(
    "Pre-training lowers the validation error of ULMFiT: from 5.63 to 5.00 % on IMDb, from 10.67 to 5.69 % on TREC-6, "
    "from 5.52 to 5.38 % on AG. Without a language model of the task's text the error is 6.99, 6.38 and 6.09 %. A "
    "classifier from scratch has 9.93, 13.36 and 6.81 %; fine-tuning of all layers with one rate has 6.87, 6.86 and "
    "5.81 %."
  ),
  rule=claims.all_of(
    claims.higher(FULL, than=SCRATCH, column="accuracy"),
    claims.higher(FULL, than=GENERAL, column="accuracy"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      17,
      "A language model with two LSTM layers of 128 and 64 units, trained once for 600 steps of 32 x 64 tokens of the "
      "documentation without the task's sentences. 200 steps on the task's texts. The task is the order of words, 8 "
      "epochs of 2,000 examples.",
    ),
    "small": Scale("one H200", 300, "The LSTM of ULMFiT, 30,000 steps; SST-2, an epoch for each layer and 3 more."),
    "base": Scale("eight H200", 500, "The LSTM of ULMFiT, 125,000 steps; SST-2, an epoch for each layer and 3 more."),
  },
  caveats=(
    "the language model reads about a million tokens, the paper's text has a hundred million words. The general text "
    "is documentation, as the task's, so that the step between both is small. The task's text includes the sentences "
    "with words in another order, without labels. The classifier of every arm has the paper's rate and slanted "
    "triangle, which the paper stops early. All seeds share the general model and the held-out examples. No arm has "
    "the task's language model without the general one. The rule does not test gradual unfreezing and discriminative "
    "rates. The arm from scratch has neither, as the arm without both."
  ),
)
