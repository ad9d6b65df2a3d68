"""Vocabulary size at a constant number of parameters: a larger embedding takes them from the layers."""

from collections.abc import Callable, Sequence
import json
import math

from etils import epath

from t2t import UserError
from t2t.studies import claims, figures, suite
from t2t.studies.claims import UNDECIDED, ClaimRule, Verdict
from t2t.studies.definition import LOWER, NEITHER, ActionStage, Arm, Column, Folders, Scale, Setting, Study
from t2t.studies.results import StudyRow

# Numbers of pieces; XLM-R compares 32 to 256 thousand at a constant number of parameters.
_SIZES = {"toy": (512, 1_024, 2_048, 4_096, 8_192), "small": (8_000, 16_000, 32_000, 64_000, 128_000)}
_SIZES["base"] = (32_000, 64_000, 128_000, 256_000)
_HEADS = {"toy": 2, "small": 12, "base": 12}
_LAYERS = {"toy": 2, "small": 12, "base": 12}
_PARAMETERS = {"toy": 400_000, "small": 110_000_000, "base": 192_000_000}
_MULTIPLE = 128  # of the rows of the embedding


def width(parameters: int, pieces: int, *, layers: int, heads: int) -> int:
  """Returns the width at which embedding and layers have about so many parameters.

  A layer of width d has 4 d^2 of attention and 9 d^2 of a gated MLP of hidden width 3 d.

  In:  400_000, 4_096, layers=2, heads=2
  Out: 68
  """
  quadratic, linear = 13 * layers, -(-pieces // _MULTIPLE) * _MULTIPLE
  exact = (-linear + math.sqrt(linear**2 + 4 * quadratic * parameters)) / (2 * quadratic)
  return max(1, round(exact / (2 * heads))) * 2 * heads  # rotary positions need an even dimension of a head


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each vocabulary; all seeds share its vocabulary."""
  text = suite.text_stages(setting)
  layers, heads = _LAYERS[setting.scale], _HEADS[setting.scale]
  made = []
  for pieces in _SIZES[setting.scale]:
    embed_dim = width(_PARAMETERS[setting.scale], pieces, layers=layers, heads=heads)
    model = {
      "model.vocab_size": 0,  # the vocabulary's
      "model.embed_dim": embed_dim,
      "model.num_heads": heads,
      "model.head_dim": embed_dim // heads,
      "model.mlp_dim": 3 * embed_dim,
      "model.num_encoder_layers": layers,
      "model.mlp_activation": "gated_gelu",
      "model.tied_logits": True,
      "data.vocabulary": "{vocabulary}/spiece.model",
    }
    reads = tuple(stage.name for stage in text)
    vocabulary = ActionStage("vocabulary", _trainer(setting, pieces), reads=reads, seed=0, version=pieces)
    finetune = suite.finetuning(setting, suite.ENCODER, start="pretrain")
    made.append(Arm(f"{pieces:>6} pieces".strip(), [*text, vocabulary, suite.encoder(setting, model), finetune]))
  return made


def _trainer(setting: Setting, pieces: int) -> Callable[[epath.Path, Folders, int], None]:
  """Returns the action that trains a vocabulary of so many pieces on the text of pre-training."""
  if setting.scale != "toy" and not setting.config:
    raise UserError(
      f"--config is missing. Scale {setting.scale} trains its vocabularies on the text of a config: give --config "
      "FILE.py with config.data.files."
    )

  def train_vocabulary(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
    del seed
    from t2t.commands import vocab
    from t2t.configuration.loading import load_config

    is_toy = setting.scale == "toy"
    files = f"{workdirs[suite.TEXT]}/train.jsonl" if is_toy else load_config(setting.config).data.files
    vocab.main(["train", "--input", files, "--size", str(pieces), "--output", str(workdir)])

  return train_vocabulary


def columns(setting: Setting) -> list[Column]:
  """Returns the columns of the suite, parameters, width, and the length of a text in tokens."""
  return [
    *suite.columns(setting, suite.ENCODER),
    Column("parameters", figures.parameters("pretrain", without="^heads/"), NEITHER),
    Column("in layers", figures.parameters("pretrain", without="^embed|^logits|^heads/"), NEITHER),
    Column("loss/byte", _loss_per_byte, LOWER),
  ]


def _loss_per_byte(folders: Folders) -> float | None:
  """Returns the held-out loss of a masked token, divided by the mean bytes of a token of the held-out text."""
  loss = figures.metric("pretrain", "eval/loss")(folders)
  if loss is None or suite.TEXT not in folders:
    return None
  from t2t.data import vocabularies

  vocabulary = vocabularies.load(str(folders["vocabulary"] / "spiece.model"), extra_ids=0)
  lines = (folders[suite.TEXT] / "validation.jsonl").read_text().splitlines()
  texts = [json.loads(line)["text"] for line in lines]
  tokens, size = sum(len(vocabulary.encode(text)) for text in texts), sum(len(text.encode()) for text in texts)
  return loss * tokens / size


_FACTOR = 8  # 256 thousand pieces to 32 thousand


def _larger_is_better(rows: Sequence[StudyRow]) -> Verdict:
  """Compares the smallest vocabulary of the scale with one of `_FACTOR` times as many pieces."""
  if not rows:
    return Verdict(UNDECIDED, "There are no rows.")
  smallest = _SIZES[rows[0].scale][0]
  return claims.higher(f"{_FACTOR * smallest} pieces", than=f"{smallest} pieces", column="mean").decide(rows)


STUDY = Study(
  title="Vocabulary size",
  question="How many parameters should a vocabulary take from the layers of a model?",
  paper="Conneau et al. 2020, Unsupervised Cross-lingual Representation Learning at Scale (XLM-R), section 5.1",
  claim=(
    "At a constant number of parameters, a larger vocabulary and a narrower Transformer score higher. A model of 100 "
    "languages gains 2.8 points on XNLI from 256 thousand pieces in place of 32 thousand."
  ),
  rule=ClaimRule(
    f"The arm with {_FACTOR} times the pieces of the smallest vocabulary is compared with the smallest one. "
    "Agree: its mean is above, paired by seed, and the 95 % interval of the difference excludes 0. Disagree: the "
    "interval is on the other side of 0. Undecided: it includes 0.",
    _larger_is_better,
  ),
  arms=arms,
  columns=columns,
  scales={
    "toy": Scale(
      "two CPU cores",
      40,
      "Encoders of 400,000 parameters in 2 layers, as wide as the embedding leaves; 1,000 steps of 32 x 64 tokens of "
      "the documentation; 300 steps of fine-tuning on three tasks.",
    ),
    "small": Scale("one H200", 500, "110 million parameters in 12 layers, 30,000 steps; GLUE, 20,000 steps."),
    "base": Scale("eight H200", 1_300, "192 million parameters in 12 layers, 125,000 steps; GLUE, 60,000 steps."),
  },
  caveats=(
    "the text is one language, which a small vocabulary covers, and the paper's vocabulary is divided among 100. "
    "Steps have equal numbers of tokens, so that larger vocabularies read more text. The loss of masked tokens "
    "depends on the vocabulary, even if it is divided by bytes."
  ),
)
