"""Downstream suite of pre-training studies: one fine-tuning with the same budget for all arms, and its columns.

At scale toy the tasks are made from the installed documentation: topic (docs_package), order of words (docs_order),
tags of words (docs_punctuation), and for models that generate a summary (docs_summary). They are mixed in one run, as
T5 fine-tunes on the tasks of GLUE together; an encoder has a head for each. With the user's folder of GLUE the tasks
are those of GLUE.
"""

from collections.abc import Mapping
import functools
import pathlib
import shutil
from typing import Any

from etils import epath

from t2t import UserError
from t2t.data import docs_corpus
from t2t.studies import figures
from t2t.studies.definition import NEITHER, ActionStage, Column, Folders, Setting, TrainStage

# Task -> name of the column, and metric. Summaries are for models that generate.
_DOCS = {
  "docs_package": ("class", "accuracy"),
  "docs_order": ("order", "accuracy"),
  "docs_punctuation": ("tag F1", "f1"),
  "docs_summary": ("ROUGE-L", "rougeLsum"),
}
_GLUE = {
  "glue_cola": ("CoLA", "matthews"),
  "glue_sst2": ("SST-2", "accuracy"),
  "glue_mrpc": ("MRPC", "f1"),
  "glue_stsb": ("STS-B", "spearman"),
  "glue_qqp": ("QQP", "f1"),
  "glue_mnli": ("MNLI", "accuracy"),
  "glue_qnli": ("QNLI", "accuracy"),
  "glue_rte": ("RTE", "accuracy"),
}

# Task -> kind of its head, and number of classes; a head that reads all layers has to name them.
_DOCS_HEADS = {
  "docs_package": ("class", 9),
  "docs_order": ("class", 2),
  "docs_punctuation": ("tag", 3),
}
_GLUE_HEADS = {
  "glue_cola": ("class", 2),
  "glue_sst2": ("class", 2),
  "glue_mrpc": ("class", 2),
  "glue_stsb": ("score", 1),
  "glue_qqp": ("class", 2),
  "glue_mnli": ("class", 3),
  "glue_qnli": ("class", 2),
  "glue_rte": ("class", 2),
}

ENCODER = "encoder_only"
ONLY_HEADS = {"train.freeze": "^(?!heads/)"}  # keys of a fine-tuning whose features are frozen
TEXT = "text"  # name of the stage of `documentation`


def is_docs(setting: Setting) -> bool:
  """Returns whether the tasks are those of the installed documentation.

  Raises:
    UserError: a larger scale lacks --data.
  """
  if setting.scale != "toy" and not setting.data:
    raise UserError(
      f"--data is missing. Scale {setting.scale} is evaluated on GLUE: give --data FOLDER with its files."
    )
  return not setting.data


def columns(setting: Setting, architecture: str, *, stage: str = "finetune") -> list[Column]:
  """Returns a column for each task, and their mean; a mean of an arm without one of the tasks is "-".

  Args:
    setting: of the study.
    architecture: `ENCODER` leaves out the summaries; "" keeps them, also if only some arms generate.
    stage: of `finetuning`.
  """
  tasks = _tasks(setting, architecture)
  of_tasks = [Column(name, figures.metric(stage, f"eval/{task}/{metric}")) for task, (name, metric) in tasks.items()]
  return [*of_tasks, figures.mean_of("mean", of_tasks)]


def held_out_loss(name: str = "loss", *, better: str = NEITHER) -> Column:
  """Returns the column of the held-out loss of the stage "pretrain"; losses of different targets do not compare."""
  return Column(name, figures.metric("pretrain", "eval/loss"), better)


def _tasks(setting: Setting, architecture: str) -> dict[str, tuple[str, str]]:
  tasks = _DOCS if is_docs(setting) else _GLUE
  return {task: names for task, names in tasks.items() if task != "docs_summary" or architecture != ENCODER}


def finetuning(
  setting: Setting, architecture: str, *, start: str, name: str = "finetune", keys: Mapping[str, Any] | None = None
) -> TrainStage:
  """Returns the stage that fine-tunes an earlier stage on all tasks, with a budget that depends on the scale alone.

  Args:
    setting: of the study.
    architecture: of the model, see `columns`.
    start: the earlier stage.
    name: of the stage.
    keys: further keys.
  """
  tasks = _tasks(setting, architecture)
  common = {
    "data.mixture": ",".join(tasks),
    "eval.num_logged_samples": 0,
    "checkpoint.max_to_keep": 2,
  }
  if not is_docs(setting):
    steps = setting.sized(small=20_000, base=60_000)
    budget = {"data.benchmark_dirs.glue": setting.data, "train.steps": steps, "eval.every": steps}
    budget |= {"checkpoint.save_interval_steps": steps, "train.batch_size": 32, "train.epochs": 0.0}
    if architecture == ENCODER:
      budget |= {"optimizer.learning_rate": 3e-5, "data.inputs_length": 128}
    return TrainStage(name, "finetune_glue", {**common, **budget, **(keys or {})}, start=start)
  steps = 300
  budget = {
    "data.inputs_length": 64,
    "data.targets_length": 4 if architecture == ENCODER else 40,
    "data.num_streams": 1,  # each stream builds the preprocessing again
    "data.max_train_examples": 1_000,  # of each task; with many labels pre-training matters little
    "data.subset_seed": "{seed}",
    "train.batch_size": 32,
    "train.steps": steps,
    "eval.every": steps,
    "eval.max_examples": 400,
    "checkpoint.save_interval_steps": steps,
    "train.log_every": 10,
  }
  return TrainStage(name, "finetune_docs_package", {**common, **budget, **(keys or {})}, start=start)


# Learning rates of fine-tuning, of which each arm takes the better one; rates are absolute.
RATES = {"toy": (1e-3, 5e-3), "small": (3e-5, 1e-3), "base": (3e-5, 1e-3)}


def finetunings(
  setting: Setting, architecture: str, *, start: str, keys: Mapping[str, Any] | None = None
) -> list[TrainStage]:
  """Returns a stage as of `finetuning` for each rate of `RATES`, for arms that train unequal parts of a model."""
  return [
    finetuning(
      setting,
      architecture,
      start=start,
      name=_at_rate(number),
      keys={"optimizer.scale_by_parameter": False, "optimizer.learning_rate": rate, **(keys or {})},
    )
    for number, rate in enumerate(RATES[setting.scale], start=1)
  ]


def _at_rate(number: int) -> str:
  return f"finetune{number}"


def columns_at_best(setting: Setting, architecture: str) -> list[Column]:
  """Returns `columns` of the stage of `finetunings` with the higher mean, and its rate."""
  rates = RATES[setting.scale]
  by_rate = [columns(setting, architecture, stage=_at_rate(number)) for number in range(1, len(rates) + 1)]

  def best(folders: Folders) -> int | None:
    means = {number: mean for number, of_rate in enumerate(by_rate) if (mean := of_rate[-1].value(folders)) is not None}
    return max(means, key=lambda number: means[number]) if means else None

  def at_best(column: int, folders: Folders) -> float | None:
    number = best(folders)
    return None if number is None else by_rate[number][column].value(folders)

  def rate(folders: Folders) -> float | None:
    number = best(folders)
    return None if number is None else rates[number]

  of_tasks = [
    Column(column.name, functools.partial(at_best, index), column.better) for index, column in enumerate(by_rate[0])
  ]
  return [*of_tasks, Column("rate", rate, NEITHER)]


def heads(setting: Setting, *, layers: str = "mix") -> dict[str, Any]:
  """Returns the key of the heads of all tasks, alike for every encoder, so that arms differ in their features only.

  Args:
    setting: of the study.
    layers: "last", or "mix" for a learned weighted sum of all layers, as in ELMo (Peters et al. 2018).
  """
  docs = is_docs(setting)
  made = []
  for name, (kind, classes) in (_DOCS_HEADS if docs else _GLUE_HEADS).items():
    head: dict[str, Any] = {"name": name, "kind": kind, "num_classes": classes, "layers": layers}
    if docs:
      head["pooler"] = "norm"  # what `finetuning` adds to the encoder of scale toy
    if kind in ("class", "score"):
      head["reads"] = "mean" if docs else "first"  # the documentation's vocabulary has no [CLS]
    made.append(head)
  return {"model.heads": tuple(made)}


# ---- Pre-training ----------------------------------------------------------------------------------------------------


def documentation() -> ActionStage:
  """Returns the stage that writes the installed documentation as files: train.jsonl, validation.jsonl, spiece.model.

  An objective of files has more keys than a registered task. All seeds share the stage.
  """
  return ActionStage(TEXT, _write_documentation, seed=0)


def _write_documentation(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  del workdirs, seed
  from t2t.data import vocabularies

  for split, path in docs_corpus.files().items():
    shutil.copyfile(path, workdir / f"{split}.jsonl")
  vocabulary = vocabularies.docs_vocabulary()
  assert vocabulary.vocab_size  # trains the model on first use
  shutil.copyfile(pathlib.Path(vocabulary.sentencepiece_model_file), workdir / "spiece.model")


def text_stages(setting: Setting) -> list[ActionStage]:
  """Returns the stage of `documentation` at scale toy, otherwise none: the user gives the text."""
  return [documentation()] if setting.scale == "toy" else []


def text_keys(setting: Setting) -> dict[str, Any]:
  """Returns the keys of the pre-training text: that of `documentation` at scale toy; otherwise the user's.

  At larger scales the user gives --stage.STAGE.data.files and --stage.STAGE.data.vocabulary.
  """
  if setting.scale != "toy":
    return {}
  return {
    "data.mixture": "",
    "data.files": f"{{{TEXT}}}/train.jsonl",
    "data.eval_files": f"{{{TEXT}}}/validation.jsonl",
    "data.vocabulary": f"{{{TEXT}}}/spiece.model",
  }


# Model and optimizer of scale toy, and its budget: 1,000 steps of 2,048 positions. Muon, and attention that starts at
# neighbours, as in `tiny`, have the lower held-out loss after equal steps: 4.23 against 4.47 with rotary positions.
TOY_MODEL = {
  "model.positions": "relative",
  "model.attention_init_bias": 6.0,
  "model.embed_dim": 64,
  "model.num_heads": 4,
  "model.head_dim": 16,
  "model.mlp_dim": 192,
  "optimizer.name": "muon",
  "optimizer.muon_iterations": 3,
}
TOY_STEPS = 1_000
LAYERS = {"toy": 2, "small": 8, "base": 12}  # of each stack of an encoder-decoder


def budget(steps: int) -> dict[str, Any]:
  """Returns the keys of a pre-training of so many steps: one evaluation and one checkpoint at the end."""
  return {
    "train.steps": steps,
    "eval.every": steps,
    "checkpoint.save_interval_steps": steps,
    "checkpoint.max_to_keep": 2,
    "eval.num_logged_samples": 0,
    "train.log_every": 10,
  }


def encoder(
  setting: Setting, keys: Mapping[str, Any] | None = None, *, objective: str = "masked_lm", name: str = "pretrain"
) -> TrainStage:
  """Returns the stage that pre-trains an encoder: a tiny encoder at scale toy, `bert_base` or the user's config.

  Args:
    setting: of the study.
    keys: further keys, "SECTION.KEY" -> value, which go over those of the scale.
    objective: of the text files.
    name: of the stage.
  """
  if setting.scale == "toy":
    config = setting.config or "tiny_modern_bert"
    layers = {"model.num_encoder_layers": 2, "data.inputs_length": 64, "data.targets_length": 64}
    sizes = {} if setting.config else {**TOY_MODEL, **layers, "train.batch_size": 32}
    size = {**sizes, **budget(TOY_STEPS)}
  else:
    config = setting.config or "bert_base"
    size = budget(setting.sized(small=30_000, base=125_000))
  return TrainStage(name, config, {**text_keys(setting), "data.objective": objective, **size, **(keys or {})})


def encoder_decoder(
  setting: Setting, keys: Mapping[str, Any] | None = None, *, objective: str = "span_corruption", name: str = "pretrain"
) -> TrainStage:
  """Returns the stage that pre-trains a T5 1.1, or with keys of the model a decoder with its layers; see `encoder`.

  A row has 64 positions at scale toy and 512 at the others, which `keys` divide into inputs and targets.
  """
  if setting.scale == "toy":
    config = setting.config or "tiny_t5"
    layers = dict.fromkeys(("model.num_encoder_layers", "model.num_decoder_layers"), LAYERS["toy"])
    sizes = {} if setting.config else {**TOY_MODEL, **layers, "train.batch_size": 32}
    size = {**sizes, **budget(TOY_STEPS)}
  else:
    config = setting.config or f"t5_1_1_{setting.scale}"
    size = budget(setting.sized(small=30_000, base=125_000))
  return TrainStage(name, config, {**text_keys(setting), "data.objective": objective, **size, **(keys or {})})


def as_decoder(setting: Setting) -> dict[str, Any]:
  """Returns the keys that make the model of `encoder` a decoder with the same layers, for causal_lm.

  Raises:
    UserError: with the user's own config, which may lack these layers.
  """
  if setting.config:
    raise UserError(f"--config {setting.config}: this study changes the encoder to a decoder. Leave out --config.")
  layers = 2 if setting.scale == "toy" else 12
  return {
    "model.architecture": "decoder_only",
    "model.num_encoder_layers": 0,
    "model.num_decoder_layers": layers,
    "model.logits_transform": False,
  }
