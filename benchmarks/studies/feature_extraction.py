"""Frozen features against fine-tuning: heads on the last or on all layers, unfreezing, and probes of each layer."""

import dataclasses
import json
from typing import Any

from etils import epath
import numpy as np

from t2t.studies import claims, figures, suite
from t2t.studies.definition import (
  HIGHER,
  LOWER,
  NEITHER,
  ActionStage,
  Arm,
  Column,
  Curve,
  Folders,
  Scale,
  Setting,
  Study,
)
from t2t.training import metric_writers


def arms(setting: Setting) -> list[Arm]:
  """Returns the arms; each ends with a probe of every layer of the encoder that it has used or made."""
  text = suite.text_stages(setting)
  layers = {"model.num_encoder_layers": 4} if setting.scale == "toy" else {}
  pretrain = dataclasses.replace(suite.encoder(setting, layers), seed=0)
  # Fresh parameters, except for one step without a learning rate: what an encoder without pre-training gives.
  one_step = {"train.steps": 1, "eval.every": 1, "checkpoint.save_interval_steps": 1, "optimizer.learning_rate": 1e-12}
  untrained = dataclasses.replace(suite.encoder(setting, {**layers, **one_step}, name="pretrain"), seed=0)
  every = setting.sized(toy=30, small=4_000, base=12_000)
  gradual = {"optimizer.param_groups": f".: unfreeze_every={every}"}
  probes = lambda of: ActionStage("probes", _probe(setting, of), reads=(of,))
  of_pretrained, of_finetuned = probes("pretrain"), probes("finetune")
  finetuning = lambda keys: suite.finetuning(setting, suite.ENCODER, start="pretrain", keys=keys)
  return [
    Arm("fine-tuning", [*text, pretrain, finetuning({}), of_finetuned]),
    Arm("gradual unfreezing", [*text, pretrain, finetuning(gradual), of_finetuned]),
    Arm(
      "features: all layers", [*text, pretrain, finetuning({**suite.ONLY_HEADS, **suite.heads(setting)}), of_pretrained]
    ),
    Arm("features: last layer", [*text, pretrain, finetuning(suite.ONLY_HEADS), of_pretrained]),
    Arm("features: untrained", [*text, untrained, finetuning(suite.ONLY_HEADS), of_pretrained]),
  ]


def _probe(setting: Setting, stage: str) -> Any:
  """Returns the action that fits a linear classifier to the vectors of each layer of a stage's encoder."""
  docs = suite.is_docs(setting)
  task, options = "docs_package", []
  if not docs:
    task, options = "glue_sst2", [f"--config.data.benchmark_dirs.glue={setting.data}"]

  def probe_layers(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
    del seed  # the classifier has no random choice
    from t2t.checkpoints import pretrained
    from t2t.configs import default
    from t2t.configuration.loading import override, records
    from t2t.evaluation import probes
    from t2t.inference import batch_inference, prompt_builder

    source = pretrained.read_source(str(workdirs[stage]))
    data = records(override(default.get_config(), options)).data
    longest = prompt_builder.longest_text(source, inputs_length=0)
    data = dataclasses.replace(data, mixture=task, files="", inputs_length=longest)
    result = probes.probe(data, source, batch_inference.make_mesh(1), limit=2_000)
    (workdir / "probes.json").write_text(json.dumps(dataclasses.asdict(result)))

  return probe_layers


def _accuracies(folders: Folders) -> dict[int, float]:
  result = json.loads((folders["probes"] / "probes.json").read_text())
  return {int(layer): accuracy for layer, accuracy in result["accuracy"].items()}


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, the best and the last probe, and costs: parameters, loss gap, speed."""

  def gap(folders: Folders) -> float | None:
    """Returns the held-out loss minus the mean of the last training losses."""
    held_out = figures.metric("finetune", "eval/loss")(folders)
    training = metric_writers.read_metrics(folders["finetune"] / "metrics.jsonl", "train/loss")
    last = [training[step] for step in sorted(training)][-10:]
    return None if held_out is None or not last else held_out - float(np.mean(last))

  return [
    *suite.columns(setting, suite.ENCODER),
    Column("best probe", lambda folders: max(_accuracies(folders).values()), HIGHER),
    Column("best layer", lambda folders: float(max(_accuracies(folders).items(), key=lambda item: item[1])[0]), ""),
    Column("trained parameters", figures.parameters("finetune", trained=True), LOWER),
    Column("loss gap", gap, NEITHER),
    Column("step (ms)", _step_time, LOWER),
  ]


def _step_time(folders: Folders) -> float | None:
  """Returns the median duration of a step of fine-tuning in milliseconds."""
  seconds = metric_writers.read_metrics(folders["finetune"] / "metrics.jsonl", "train/step_seconds")
  return 1_000 * float(np.median(list(seconds.values()))) if seconds else None


def curves(setting: Setting) -> list[Curve]:
  """Returns the probe of each layer; layer 0 is the embedding."""
  del setting
  return [Curve("linear probe, accuracy (%)", _accuracies, "layer; 0 is the embedding")]


STUDY = Study(
  title="Frozen features and fine-tuning",
  question="Are frozen features of a pre-trained encoder as good as fine-tuning, and which layer has them?",
  paper=(
    "Devlin et al. 2019, BERT, table 7; Howard & Ruder 2018, Universal Language Model Fine-tuning for Text "
    "Classification, for gradual unfreezing"
  ),
  claim=(
    "On the development set of CoNLL-2003, fine-tuning of BERT base has 96.4 F1. Its frozen features have 96.1 from "
    "the last four layers joined, 95.5 from a weighted sum of all layers, and 94.9 from the last layer. So "
    "fine-tuning is above the last layer, and all layers are above the last one. The rule also tests a control: "
    "frozen features of a pre-trained encoder are above those of an untrained one."
  ),
  rule=claims.all_of(
    claims.higher("fine-tuning", than="features: last layer", column="mean"),
    claims.higher("features: all layers", than="features: last layer", column="mean"),
    claims.higher("features: last layer", than="features: untrained", column="mean"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      35,
      "A tiny encoder, 4 layers of width 64, pre-trained once for 1,000 steps of 32 x 64 tokens of the "
      "documentation; 300 steps on three tasks; probes of 2,000 docstrings for their package.",
    ),
    "small": Scale("one H200", 400, "BERT base, 30,000 steps; GLUE, 20,000 steps; probes of SST-2."),
    "base": Scale("eight H200", 900, "BERT base, 125,000 steps; GLUE, 60,000 steps; probes of SST-2."),
  },
  caveats=(
    "features of a tiny model that has read two million tokens may be poor. All arms have one learning rate and 300 "
    "steps, which is little for a new head on frozen features: linear probes of the same layers classify better. The "
    "paper's features feed a BiLSTM of two layers. All seeds share one pre-trained encoder, so the intervals cover "
    "the drawn labels and fine-tuning only, and probes have one value. The held-out sets have 191 examples (order: "
    "378). The loss gap is the held-out loss minus the training loss of all tasks."
  ),
)
