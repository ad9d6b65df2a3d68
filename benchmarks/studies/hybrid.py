"""Causal and masked rows in one decoder, against either kind alone (Charpentier and Samuel 2024)."""

import json
from typing import Any

from etils import epath

from t2t.studies import claims, suite
from t2t.studies.definition import LOWER, ActionStage, Arm, Column, Folders, Scale, Setting, Study, TrainStage

# Arm -> share of causal rows. GPT-BERT has one in sixteen.
SHARES = {"causal": 1.0, "15/16 causal": 15 / 16, "1/2 causal": 1 / 2, "1/16 causal": 1 / 16, "masked": 0.0}
OBJECTIVES = {"causal": "next_token", "masked": "masked_next_token"}
MASK_RATE = 0.2

# Share -> stage: the user names the files of each source of a stage at larger scales.
_STAGES = {1.0: "causal", 0.0: "masked"}


def pretraining(setting: Setting, share: float) -> TrainStage:
  """Returns the stage that pre-trains a decoder whose attention depends on the row; all arms have equal steps."""
  if setting.scale == "toy":
    config, length = setting.config or "tiny_llama", 64
    size = {} if setting.config else {**suite.TOY_MODEL, "model.num_decoder_layers": 2, "train.batch_size": 32}
    size |= {"model.num_kv_heads": 0} if not setting.config else {}
  else:
    config, length = setting.config or setting.sized(small="ettin_decoder_32m", base="ettin_decoder_150m"), 128
    size = {"train.batch_size": 256, "stages": ()}
  text: dict[str, Any] = suite.text_keys(setting)
  files = {key.removeprefix("data."): text.pop(key) for key in ("data.files", "data.eval_files") if key in text}
  sources: dict[str, Any] = {}
  for name, part in (("causal", share), ("masked", 1.0 - share)):
    if part:
      of_source = {"objective": OBJECTIVES[name], "share": part, **files}
      of_source |= {"noise_density": MASK_RATE} if name == "masked" else {}
      sources |= {f"data.sources.{name}.{key}": value for key, value in of_source.items()}
  keys = {**text, **sources, "data.inputs_length": length, "data.targets_length": length, **size}
  keys |= {"model.bidirectional_prefix": True}
  keys |= suite.budget(setting.sized(toy=suite.TOY_STEPS, small=30_000, base=125_000))
  return TrainStage(_STAGES.get(share, "hybrid"), config, keys)


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each share of causal rows."""
  built = []
  for name, share in SHARES.items():
    pretrain = pretraining(setting, share)
    # A head answers, because the masked arm has never continued a text; all read the inputs in both directions.
    keys = {"train.loss": "heads"}
    finetune = suite.finetuning(setting, suite.ENCODER, start=pretrain.name, keys=keys)
    evaluate = ActionStage("evaluate", measure, reads=(pretrain.name,))
    built.append(Arm(name, [*suite.text_stages(setting), pretrain, evaluate, finetune]))
  return built


_FIGURES = "losses.json"


def measure(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Measures the held-out losses of causal and of masked rows, whatever the run was trained on."""
  del seed
  from t2t.commands import eval as evaluation

  (run,) = workdirs.values()
  data = json.loads((run / "config.json").read_text())["data"]
  source = next(iter(data["sources"].values()))
  losses = {}
  for name, objective in OBJECTIVES.items():
    folder = workdir / name
    keys = {"eval_files": source["eval_files"] or source["files"], "objective": objective}
    keys |= {"inputs_length": data["inputs_length"], "targets_length": data["targets_length"], "mixture": ""}
    keys |= {"noise_density": MASK_RATE} if name == "masked" else {}
    arguments = [f"--config.data.{key}={value}" for key, value in keys.items()]
    limits = ["--config.eval.method=loss", "--config.eval.max_examples=640", "--config.eval.batch_size=32"]
    evaluation.main(["--config", "tiny_llama", "--checkpoint", str(run), "--workdir", str(folder), *arguments, *limits])
    losses[name] = json.loads((folder / "results.json").read_text())["held_out"]["metrics"]["loss"]
  (workdir / _FIGURES).write_text(json.dumps(losses))


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, and both held-out losses without fine-tuning."""

  def loss(name: str) -> Column:
    read = lambda folders: json.loads((folders["evaluate"] / _FIGURES).read_text())[name]
    return Column(f"{name} loss", read, LOWER)

  return [*suite.columns(setting, suite.ENCODER), *map(loss, OBJECTIVES)]


STUDY = Study(
  title="Causal and masked rows in one model",
  question="Is a decoder that learns from causal and from masked rows better than one that learns from either alone?",
  paper="Charpentier and Samuel 2024, GPT or BERT: why not both?, abstract and section 4.2",
  claim=(
    "A model trained on both kinds of rows outperforms one trained on masked or on causal rows alone. The paper's "
    "final model has one causal row for 15 masked ones. Unlike a model of masked rows alone, it also predicts the "
    "next token well with causal attention."
  ),
  rule=claims.all_of(
    claims.higher("1/16 causal", than="causal", column="mean"),
    claims.higher("1/16 causal", than="masked", column="mean"),
    claims.lower("1/16 causal", than="masked", column="causal loss"),
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      30,
      "A tiny Llama, 2 layers of width 64, 1,000 steps of 32 x 64 tokens of the installed documentation; 300 steps "
      "of fine-tuning on three tasks.",
    ),
    "small": Scale("one H200", 400, "Ettin's decoder of 32 M, 30,000 steps of 256 x 128 tokens; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 900, "Ettin's decoder of 150 M, 125,000 steps of 256 x 128; GLUE, 60,000 steps."),
  },
  caveats=(
    "in the paper the gain over masked rows alone is small after fine-tuning on MNLI, and a tiny model may not show "
    "it. A causal row predicts five times as many tokens as a masked one, so shares of rows are not shares of "
    "predictions. Fine-tuning reads the inputs in both directions, which a causal model has not done before."
  ),
)
