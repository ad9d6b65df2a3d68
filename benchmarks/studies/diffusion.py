"""Masked and block diffusion against a causal model of the same size at equal tokens (Arriola et al. 2025)."""

from typing import Any

from t2t.studies import claims, figures, suite
from t2t.studies.definition import LOWER, NEITHER, Arm, Column, Curve, Scale, Setting, Study, TrainStage

CAUSAL, MASKED = "causal", "masked diffusion"
# Arm -> tokens of a block; 0: the row is one block.
ARMS = {"blocks of 4": 4, "blocks of 16": 16, MASKED: 0}
_BITS, _STAGE = "bits per byte", "pretrain"


def _steps(setting: Setting) -> int:
  return setting.sized(toy=2 * suite.TOY_STEPS, small=30_000, base=100_000)


def _pretraining(setting: Setting, config: str, keys: dict[str, Any]) -> TrainStage:
  budget = {**suite.budget(_steps(setting)), "eval.every": _steps(setting) // 4}
  return TrainStage(_STAGE, config, {**suite.text_keys(setting), **keys, **budget})


def _model(setting: Setting, objective: str) -> tuple[str, dict[str, Any]]:
  """Returns config and keys of a model: layers of Llama at scale toy, and of MDLM, which are those of GPT-2, above."""
  is_causal = objective == "causal_lm"
  keys: dict[str, Any] = {"data.objective": objective}
  if setting.scale == "toy":
    side = "decoder" if is_causal else "encoder"
    keys |= {**suite.TOY_MODEL, f"model.num_{side}_layers": 2, "model.num_kv_heads": 0, "train.batch_size": 32}
    keys |= {"data.inputs_length": 64, "data.targets_length": 64}
    return "tiny_llama" if is_causal else "tiny_diffusion", keys
  keys["train.batch_size"] = setting.sized(small=128, base=512)
  if not is_causal:
    return "mdlm_small", keys
  decoder = {"model.architecture": "decoder_only", "model.num_encoder_layers": 0, "model.num_decoder_layers": 12}
  return "mdlm_small", {**keys, **decoder, "train.loss": "cross_entropy"}


def arms(setting: Setting) -> list[Arm]:
  """Returns the causal arm, and an arm for each length of the blocks."""
  text = suite.text_stages(setting)
  made = [Arm(CAUSAL, [*text, _pretraining(setting, *_model(setting, "causal_lm"))])]
  for name, block in ARMS.items():
    config, keys = _model(setting, "masked_diffusion")
    made.append(Arm(name, [*text, _pretraining(setting, config, {**keys, "model.block_length": block})]))
  return made


def columns(setting: Setting) -> list[Column]:
  """Returns the held-out bits per byte, and the loss in nats per token; those of diffusion are upper bounds."""
  del setting
  bits = Column(_BITS, figures.metric(_STAGE, "eval/bits_per_byte"), LOWER)
  return [bits, suite.held_out_loss("nats per token", better=NEITHER)]


def curves(setting: Setting) -> list[Curve]:
  """Returns the bits per byte by step."""
  del setting
  return [Curve(_BITS, figures.curve(_STAGE, "eval/bits_per_byte"))]


STUDY = Study(
  title="Diffusion against causal language models",
  question="How far is the likelihood of masked and block diffusion from that of a causal model at equal tokens?",
  paper="Arriola et al. 2025, Block Diffusion, table of perplexities on LM1B after 65 billion tokens",
  claim=(
    "Perplexity on LM1B: 22.83 of the causal model, at most 28.23 of block diffusion with blocks of four tokens, and "
    "at most 31.78 of masked diffusion (MDLM). Longer blocks lie between."
  ),
  rule=claims.order(CAUSAL, *ARMS, column=_BITS, lower_is_better=True),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      38,
      "Two layers of Llama with width 64, bidirectional or causal; 2,000 steps of 32 x 64 tokens of the documentation.",
    ),
    "small": Scale("one H200", 600, "MDLM and GPT-2 small of its vocabulary, 30,000 steps of 128 x 1,024 tokens."),
    "base": Scale("eight H200", 3_000, "MDLM and GPT-2 small of its vocabulary, 100,000 steps of 512 x 1,024 tokens."),
  },
  caveats=(
    "diffusion learns from masks of all rates, so that each token teaches less in a short run. Steps are equal here, "
    "not FLOPs: blocks read each row twice. All arms share one learning rate. Values of diffusion are upper bounds, "
    "with four noise levels for each row. The rule tests the order of all arms, not each distance. The paper's "
    "distances to the causal model are 0.21 and 0.33 nats per token."
  ),
)
