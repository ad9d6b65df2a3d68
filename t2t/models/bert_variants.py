"""Published sizes of encoders that change more of BERT than numbers: positions, blocks and embeddings.

Functions as in presets.py, which most commands import.
"""

from t2t.models import presets

# Chung et al. 2021, table 8, as released.
_REMBERT = {"base": (1152, 18, 4608, 32)}
# Sun et al. 2020, table 1, with the released configs: attention of tiny reads only the narrow states.
_MOBILEBERT = {
  "base": {"num_feed_forwards": 4},
  "tiny": {"num_feed_forwards": 2, "bottleneck_attention": True},
}
# He et al. 2021, 2023, with the released configs; xlarge of version 1 is deeper, not wider.
_DEBERTA = presets.BERT | {"xlarge": (1024, 16, 4096, 48)}
_DEBERTA_V2 = {"xlarge": (1536, 24, 6144, 24), "xxlarge": (1536, 24, 6144, 48)}
_DEBERTA_V3 = {"xsmall": (384, 6, 1536, 12), "small": (768, 12, 3072, 6)} | presets.BERT

REMBERT_SIZES = tuple(_REMBERT)
MOBILEBERT_SIZES = tuple(_MOBILEBERT)
DEBERTA_SIZES = tuple(_DEBERTA)
DEBERTA_V2_SIZES = tuple(_DEBERTA_V2)
DEBERTA_V3_SIZES = tuple(_DEBERTA_V3)
NEZHA_SIZES = tuple(presets.BERT)
XLNET_SIZES = tuple(presets.BERT)


def xlnet(size: str) -> dict[str, object]:
  """XLNet (Yang et al. 2019): BERT's sizes, Transformer-XL's positions, relative segments and a query stream."""
  return presets.encoder(
    presets.entry(presets.BERT, size),
    vocab_size=32_000,
    positions="relative_xl",
    relative_segments=True,
    two_streams=True,
    post_norm=True,
    biases=True,
    attention_biases=False,
    norm_epsilon=1e-12,
    mlp_activation="gelu",
    dropout_rate=0.1,
  ) | dict(embedding_norm=False, logits_transform=False, logits_bias=True)


def rembert(size: str) -> dict[str, object]:
  """RemBERT (Chung et al. 2021): a narrow input embedding, and a wide output embedding that fine-tuning drops."""
  changed = dict(vocab_size=250_300, embedding_dim=256, output_embedding_dim=1664, tied_logits=False, dropout_rate=0.0)
  return presets.bert("base") | presets.encoder_row(presets.entry(_REMBERT, size)) | changed


def mobilebert(size: str) -> dict[str, object]:
  """MobileBERT (Sun et al. 2020): deep and narrow, with bottlenecks around each block, and norms without statistics."""
  changed: dict[str, object] = dict(embedding="trigram", embedding_dim=128, block="bottleneck", bottleneck_dim=128)
  changed |= dict(norm="affine", logits_norm="layer", output_embedding_dim=512, mlp_activation="relu", dropout_rate=0.0)
  changed |= presets.encoder_row((512, 4, 512, 24)) | {"head_dim": 32}
  return presets.bert("base") | changed | presets.entry(_MOBILEBERT, size)


def deberta(size: str) -> dict[str, object]:
  """DeBERTa (He et al. 2021): BERT with disentangled attention over distances of up to 512, and RoBERTa's vocabulary.

  Absolute positions come in before the vocabulary's logits (the enhanced mask decoder).
  """
  changed = dict(vocab_size=50_265, segment_types=0, norm_epsilon=1e-7, positions="disentangled", key_bias=False)
  changed |= dict(relative_position_buckets=1024, relative_position_max_distance=512)
  return (
    presets.bert("base")
    | presets.encoder_row(presets.entry(_DEBERTA, size))
    | changed
    | {"absolute_positions": "mask_decoder"}
  )


def deberta_v3(size: str) -> dict[str, object]:
  """DeBERTa version 3 (He et al. 2023): 256 buckets in each direction, and matrices shared by content and positions."""
  changed = dict(vocab_size=128_100, key_bias=True, relative_position_buckets=512)
  changed |= dict(share_position_projections=True, relative_position_norm=True)
  return deberta("base") | presets.encoder_row(presets.entry(_DEBERTA_V3, size)) | changed


def deberta_v2(size: str) -> dict[str, object]:
  """DeBERTa version 2 (He et al. 2021, as released): version 3 with a convolution beside the first layer."""
  changed = dict(beside_first="convolution", beside_first_activation="gelu")
  return deberta_v3("base") | presets.encoder_row(presets.entry(_DEBERTA_V2, size)) | changed


def nezha(size: str) -> dict[str, object]:
  """NEZHA (Wei et al. 2019): BERT for Chinese, with a fixed vector for each distance up to 64 on keys and values."""
  changed = dict(vocab_size=21_128, positions="functional_relative", relative_position_max_distance=64, max_length=0)
  return presets.bert(size) | changed
