"""Layers trained one after another, against all at once and no pre-training (Bengio et al. 2007)."""

from typing import Any

from t2t.studies import claims, suite
from t2t.studies.definition import Arm, Column, Scale, Setting, Study, TrainStage

GREEDY, TOGETHER, SCRATCH = "layer by layer", "all layers at once", "no pre-training"


def _layers(setting: Setting) -> int:
  return setting.sized(toy=3, small=4, base=12)


def _steps(setting: Setting) -> int:
  return setting.sized(toy=1_200, small=30_000, base=120_000)


def _pretraining(
  setting: Setting, name: str, layers: int, steps: int, keys: dict[str, Any] | None = None
) -> TrainStage:
  size = {"model.num_encoder_layers": layers, **suite.budget(steps)}
  return suite.encoder(setting, {**size, **(keys or {})}, name=name)


def stages(setting: Setting) -> list[TrainStage]:
  """Returns a stage for each layer, with an equal part of the steps.

  A stage takes the trained layers, adds one that begins as a copy of the last, and trains it with a new head.
  """
  number = _layers(setting)
  steps = _steps(setting) // number
  made = [_pretraining(setting, "layer_1", 1, steps)]
  for layers in range(2, number + 1):
    taken = [*range(layers - 1), layers - 2]
    grown = {
      "init.checkpoint": f"{{layer_{layers - 1}}}",
      "init.layers": ",".join(map(str, taken)),
      "init.reinit": "head",
      "train.freeze": "^embed",
      "optimizer.param_groups": "^encoder/layers: top=1",
    }
    made.append(_pretraining(setting, f"layer_{layers}", layers, steps, grown))
  return made


def arms(setting: Setting) -> list[Arm]:
  """Returns the three ways to the same model, with the same fine-tuning."""
  text, greedy = suite.text_stages(setting), stages(setting)
  together = _pretraining(setting, "together", _layers(setting), _steps(setting))
  tune = lambda start, keys=None: suite.finetuning(setting, suite.ENCODER, start=start, keys=keys)
  return [
    Arm(GREEDY, [*text, *greedy, tune(greedy[-1].name)]),
    Arm(TOGETHER, [*text, together, tune(together.name)]),
    Arm(SCRATCH, [*text, together, tune(together.name, {"init.parameters": False})]),
  ]


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite."""
  return suite.columns(setting, suite.ENCODER)


STUDY = Study(
  title="Layer by layer",
  question="Does unsupervised pre-training of one layer after another help, and as much as that of all layers at once?",
  paper=(
    "Bengio et al. 2007, Greedy Layer-Wise Training of Deep Networks, table 1; Erhan et al. 2010, Why Does "
    "Unsupervised Pre-training Help Deep Learning?"
  ),
  claim=(
    "Deep networks that are pre-trained layer by layer, each layer as an autoencoder of the one below, have a lower "
    "test error on digits than networks from random weights. The papers do not compare with training of all layers at "
    "once on unlabelled data."
  ),
  rule=claims.higher(GREEDY, than=SCRATCH, column="mean"),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      20,
      "A tiny encoder of 3 layers with width 64. 1,200 steps of 32 x 64 tokens of the documentation, 400 for each "
      "layer or all at once. Then 300 steps of fine-tuning of all layers on three tasks.",
    ),
    "small": Scale("one H200", 400, "BERT of 4 layers, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 900, "BERT base, 120,000 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "each layer restores masked tokens, as a denoising autoencoder, and not the output of the layer below. The first "
    "layer trains the embedding, which later stages freeze. A new layer begins as a copy of the last one."
  ),
)
