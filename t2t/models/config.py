"""The shape of a Transformer, and the named sizes of the T5 family."""

import dataclasses

from t2t import UserError, did_you_mean

ARCHITECTURES = ("encoder_decoder",)
ACTIVATIONS = ("relu", "gated_gelu")
REMAT_POLICIES = ("none", "minimal", "full")
DTYPES = ("bfloat16", "float32")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape of a Transformer; every field is an integer count, a rate, a switch or a name.

  Raises:
    UserError: a field that is out of range or an unknown name; names the config key.
  """

  architecture: str  # encoder_decoder
  vocab_size: int  # rows of the embedding; at least the vocabulary's, best a multiple of 128
  embed_dim: int  # width of the residual stream
  num_heads: int  # of each attention
  head_dim: int  # num_heads * head_dim need not be embed_dim
  mlp_dim: int  # width inside the feed-forward layers
  num_encoder_layers: int
  num_decoder_layers: int
  mlp_activation: str = "gated_gelu"  # gated_gelu (T5 1.1) or relu (T5 1.0)
  tied_logits: bool = False  # logits from the embedding, scaled by embed_dim**-0.5 (T5 1.0)
  relative_position_buckets: int = 32
  relative_position_max_distance: int = 128  # positions; all that lie further share the last bucket
  dropout_rate: float = 0.0  # T5 pre-trains without, and fine-tunes with 0.1
  dtype: str = "bfloat16"  # of activations; parameters, norms, softmax and logits are float32
  remat: str = "none"  # what the backward pass recomputes: none, minimal (all but matmuls), full
  norm_epsilon: float = 1e-6

  def __post_init__(self):
    if self.dtype == "float16":
      raise UserError(
        "config.model.dtype=float16: T5's activations overflow float16's range (65,504), and there is no loss scaling;"
        " use bfloat16, which has float32's range, or float32"
      )
    for field, known in (
      ("architecture", ARCHITECTURES),
      ("mlp_activation", ACTIVATIONS),
      ("remat", REMAT_POLICIES),
      ("dtype", DTYPES),
    ):
      value = getattr(self, field)
      if value not in known:
        raise UserError(
          f"config.model.{field}={value!r}: known are {', '.join(known)}{did_you_mean(str(value), known)}"
        )
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type is int and value < 1:
        raise UserError(f"config.model.{field.name}={value}: must be at least 1")
    if not 0.0 <= self.dropout_rate < 1.0:
      raise UserError(f"config.model.dropout_rate={self.dropout_rate}: must be at least 0 and below 1")
    if self.relative_position_buckets % 4:
      raise UserError(
        f"config.model.relative_position_buckets={self.relative_position_buckets}: must be a multiple of 4"
        " (half for each direction, half of those for exact distances)"
      )


# embed_dim, num_heads, head_dim, mlp_dim, layers (encoder and decoder each).
# 1.0: Raffel et al. 2020, section 3.7 (3B and 11B are its xl and xxl); 1.1: Shazeer 2020 and the released t5.1.1
# checkpoints; mT5: Xue et al. 2021; ByT5: Xue et al. 2022, table 1 (encoder and decoder layers differ).
_T5_1_0 = {
  "small": (512, 8, 64, 2048, 6),
  "base": (768, 12, 64, 3072, 12),
  "large": (1024, 16, 64, 4096, 24),
  "xl": (1024, 32, 128, 16384, 24),
  "xxl": (1024, 128, 128, 65536, 24),
}
_T5_1_1 = {
  "small": (512, 6, 64, 1024, 8),
  "base": (768, 12, 64, 2048, 12),
  "large": (1024, 16, 64, 2816, 24),
  "xl": (2048, 32, 64, 5120, 24),
  "xxl": (4096, 64, 64, 10240, 24),
}
_BYT5 = {
  "small": (1472, 6, 64, 3584, 12, 4),
  "base": (1536, 12, 64, 3968, 18, 6),
  "large": (1536, 16, 64, 3840, 36, 12),
  "xl": (2560, 32, 64, 6720, 36, 12),
  "xxl": (4672, 64, 64, 12352, 36, 12),
}
SIZES = ("small", "base", "large", "xl", "xxl")


def _sized(table, size: str, **others) -> dict:
  if size not in table:
    raise UserError(f"unknown size {size!r}: known are {', '.join(table)}" + did_you_mean(size, table))
  embed_dim, num_heads, head_dim, mlp_dim, num_encoder_layers, *rest = table[size]
  return dict(
    architecture="encoder_decoder",
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    num_encoder_layers=num_encoder_layers,
    num_decoder_layers=rest[0] if rest else num_encoder_layers,
    **others,
  )


def t5_1_0(size: str) -> dict:
  """The original T5: relu, logits from the embedding. Fields of `TransformerConfig`."""
  return _sized(_T5_1_0, size, vocab_size=32_128, mlp_activation="relu", tied_logits=True)


def t5_1_1(size: str) -> dict:
  """T5 1.1: gated gelu, logits of their own. Fields of `TransformerConfig`."""
  return _sized(_T5_1_1, size, vocab_size=32_128)


def mt5(size: str) -> dict:
  """mT5: T5 1.1 over 101 languages, 250,112 rows in the embedding. Fields of `TransformerConfig`."""
  # The released mT5 small has 6 heads and 8 layers as 1.1 small; all sizes agree with 1.1.
  return _sized(_T5_1_1, size, vocab_size=250_112)


def byt5(size: str) -> dict:
  """ByT5: bytes instead of pieces, a deep encoder and a shallow decoder. Fields of `TransformerConfig`."""
  return _sized(_BYT5, size, vocab_size=384)
