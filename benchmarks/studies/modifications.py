"""Modifications of the Transformer at equal steps, as keys of a T5 (Narang et al. 2021)."""

from typing import Any

from t2t.studies import claims, figures, suite
from t2t.studies.definition import LOWER, NEITHER, Arm, Column, Curve, Scale, Setting, Study, TrainStage

VANILLA = "vanilla"
_EARLY = 0.1  # part of the steps after which the early loss is taken

# Scale -> width, heads, width of the feed-forward layers, layers of each stack.
_SHAPES = {"toy": (64, 4, 192, 2), "small": (512, 8, 2_048, 6), "base": (768, 12, 3_072, 12)}


def _modifications(scale: str) -> dict[str, dict[str, Any]]:
  """Returns the keys of each arm beyond the vanilla model's; gated layers have two thirds of the hidden width."""
  width, heads, hidden, layers = _SHAPES[scale]
  gated = 2 * hidden // 3 // 8 * 8
  stacks = lambda number: {"model.num_encoder_layers": number, "model.num_decoder_layers": number}
  universal = {"model.share_layers": True, "model.recurrence": "universal", "model.positions": "none"}
  universal["model.attention_init_bias"] = 0.0  # of relative positions
  return {
    VANILLA: {},
    "GeLU": {"model.mlp_activation": "gelu"},
    "Swish": {"model.mlp_activation": "silu"},
    "GeGLU": {"model.mlp_activation": "gated_gelu", "model.mlp_dim": gated},
    "SwiGLU": {"model.mlp_activation": "gated_silu", "model.mlp_dim": gated},
    "RMS norm": {"model.norm": "rms"},
    "deeper": {**stacks(2 * layers), "model.mlp_dim": hidden // 2, "model.num_heads": max(1, heads // 2)},
    "shallower": {**stacks(max(1, layers // 2)), "model.mlp_dim": 2 * hidden, "model.num_heads": 2 * heads},
    "shared layers": {"model.share_layers": True},
    "factorized embedding": {"model.embedding_dim": width // 4},
    "untied softmax": {"model.tied_logits": False},
    "Universal Transformer": universal,
    "adaptive steps": {**universal, "model.halting_threshold": 0.99},
    "Switch": {
      "model.feed_forward": "moe",
      "model.moe_experts": 8,
      "model.moe_every": 2,
      "model.moe_first": 1,
      "model.moe_capacity_factor": 1.25,
      "model.moe_balance_loss": 0.01,
      "model.moe_jitter": 0.01,
    },
  }


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each modification: span corruption of a T5, then fine-tuning."""
  width, heads, hidden, layers = _SHAPES[setting.scale]
  vanilla = {
    "model.embed_dim": width,
    "model.num_heads": heads,
    "model.head_dim": width // heads,
    "model.mlp_dim": hidden,
    "model.num_encoder_layers": layers,
    "model.num_decoder_layers": layers,
    "model.mlp_activation": "relu",
    "model.norm": "layer",
    "model.tied_logits": True,
  }
  steps = setting.sized(toy=600, small=30_000, base=65_536)
  if setting.scale == "toy":
    # Attention that starts at neighbours: otherwise the decoder ignores its encoder for more steps than these.
    vanilla |= {"train.batch_size": 32, "data.inputs_length": 64, "data.targets_length": 18}
    vanilla |= {"model.attention_init_bias": 6.0}
  budget = {**suite.budget(steps), "eval.every": max(1, round(_EARLY * steps))}
  common = {**suite.text_keys(setting), "data.objective": "span_corruption", **vanilla, **budget}
  # Heads answer at scale toy, because so small a model does not write answers yet.
  answers = {"train.loss": "heads"} if setting.scale == "toy" else {}
  kind = suite.ENCODER if setting.scale == "toy" else ""
  config = setting.config or setting.sized(toy="tiny_t5", small="t5_small", base="t5_base")
  return [
    Arm(
      name,
      [
        *suite.text_stages(setting),
        TrainStage("pretrain", config, {**common, **keys}),
        suite.finetuning(setting, kind, start="pretrain", keys=answers),
      ],
    )
    for name, keys in _modifications(setting.scale).items()
  ]


def columns(setting: Setting) -> list[Column]:
  """Returns early and final loss, parameters, FLOPs and the columns of the suite, as table 1 of the paper."""

  def early(folders: Any) -> float | None:
    losses = figures.curve("pretrain", "eval/loss")(folders)
    return losses[min(losses)] if losses else None

  kind = suite.ENCODER if setting.scale == "toy" else ""
  return [
    Column("early loss", early, LOWER),
    suite.held_out_loss("final loss", better=LOWER),
    Column("parameters", figures.parameters("pretrain"), NEITHER),
    Column("FLOPs", lambda folders: figures.of_stage(folders["pretrain"])["flops"], NEITHER),
    *suite.columns(setting, kind),
  ]


def curves(setting: Setting) -> list[Curve]:
  """Returns the held-out loss against the step."""
  del setting
  return [Curve("held-out loss of pre-training", figures.curve("pretrain", "eval/loss"))]


STUDY = Study(
  title="Modifications of the Transformer",
  question="Which modifications of the Transformer help a T5 at the same number of steps?",
  paper="Narang et al. 2021, Do Transformer Modifications Transfer Across Implementations and Applications?, table 1",
  claim=(
    "Most modifications do not improve a T5 base, which has a final loss of 1.838. Some do: the final loss is 1.792 "
    "with GeGLU, 1.789 with SwiGLU, 1.821 with RMS norm, and also lower with experts (Switch). Sharing all layers "
    "hurts. The rule tests these five."
  ),
  rule=claims.all_of(
    claims.lower("GeGLU", than=VANILLA, column="final loss"),
    claims.lower("SwiGLU", than=VANILLA, column="final loss"),
    claims.lower("RMS norm", than=VANILLA, column="final loss"),
    claims.lower("Switch", than=VANILLA, column="final loss"),
    claims.higher("shared layers", than=VANILLA, column="final loss"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  scales={
    "toy": Scale(
      "two CPU cores",
      150,
      "T5 of 2 + 2 layers of width 64, 600 steps of span corruption, 32 x 64 tokens of the documentation; 300 steps "
      "of fine-tuning on three tasks with heads.",
    ),
    "small": Scale("one H200", 1_500, "T5 of 6 + 6 layers of width 512, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 4_000, "T5 of 12 + 12 layers of width 768, 65,536 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "differences of about 2 % of the loss may be too small for a short training. Sharing two layers may cost less than "
    "sharing 12. At scale toy attention starts at neighbours, except in the Universal Transformers, which "
    "have no relative positions. All modifications have the hyperparameters of the vanilla model, as in the paper."
  ),
)
