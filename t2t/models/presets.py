"""Published sizes of Transformers: one function per family, from a size to all fields of `TransformerConfig`.

The fields are in a dict, which a config may change.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeVar, cast

from t2t import UserError, did_you_mean
from t2t.models.config import TransformerConfig

T = TypeVar("T")

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
# embed_dim, num_heads, mlp_dim, layers, dropout rate.  Vaswani et al. 2017, table 3, English to German.
_TRANSFORMER = {"base": (512, 8, 2048, 6, 0.1), "big": (1024, 16, 4096, 6, 0.3)}
# embed_dim, num_heads, mlp_dim, layers; heads have 64 features.
BERT = {"base": (768, 12, 3072, 12), "large": (1024, 16, 4096, 24)}
# Lan et al. 2020, table 1; heads as released, with 128 features in xlarge.
_ALBERT = BERT | {"xlarge": (2048, 16, 8192, 24), "xxlarge": (4096, 64, 16384, 12)}
# Shoeybi et al. 2020, table 4.
_MEGATRON_BERT = {"336m": BERT["large"], "1_3b": (2048, 32, 8192, 24), "3_9b": (2560, 40, 10240, 48)}
# Conneau et al. 2020, table 7 (XLM's), and Ogueji et al. 2021 with the released configs.
_XLM = {"15": (1024, 8, 4096, 12), "100": (1280, 16, 5120, 16)}
_AFRIBERTA = {"small": (768, 6, 3072, 4), "base": (768, 6, 3072, 8), "large": (768, 6, 3072, 10)}
# Charpentier & Samuel 2024, with their released configs; the last number is the vocabulary size.
_GPT_BERT = {"small": (384, 6, 1280, 12, 8_192), "base": (768, 12, 2560, 12, 16_384)}
# Warner et al. 2024, table 4.
_ELECTRA = {"small": (256, 4, 1024, 12)} | BERT
# Dai et al. 2019, with the released scripts: embed_dim, num_heads, head_dim, mlp_dim, layers, memory_length, dropout.
_TRANSFORMER_XL = {
  "wt103_base": (410, 10, 41, 2100, 16, 150, 0.1),
  "wt103_large": (1024, 16, 64, 4096, 18, 384, 0.2),
  "enwik8_base": (512, 8, 64, 2048, 12, 512, 0.1),
  "enwik8_large": (1024, 8, 128, 3072, 24, 768, 0.15),
}
_MODERN_BERT = {"base": (768, 12, 1152, 22), "large": (1024, 16, 2624, 28)}
# Weller et al. 2025, table 1; each as an encoder and as a decoder.
_ETTIN = {"17m": (256, 4, 384, 7), "32m": (384, 6, 576, 10), "68m": (512, 8, 768, 19)}
_ETTIN |= {"150m": _MODERN_BERT["base"], "400m": _MODERN_BERT["large"], "1b": (1792, 28, 3840, 28)}
# tensor2tensor's universal_transformer.py; layers are steps on each side, twice as many at most if they are adaptive.
_UNIVERSAL = {"base": (1024, 16, 4096, 6), "big": (2048, 16, 8192, 6)}
# Radford et al. 2019, table 2, as released: small has 124 M parameters and is often called gpt2.
GPT2 = {"small": (768, 12, 3072, 12), "medium": (1024, 16, 4096, 24), "large": (1280, 20, 5120, 36)}
GPT2["xl"] = (1600, 25, 6400, 48)
# Brown et al. 2020, table 2.1. Two inconsistent rows are changed to match the given parameter counts: xl has 16 heads
# of 128 features, not 24, at width 2,048; 13B has width 5,120, not 5,140, for 40 heads of 128.
_GPT3 = {
  "small": (768, 12, 3072, 12),
  "medium": (1024, 16, 4096, 24),
  "large": (1536, 16, 6144, 24),
  "xl": (2048, 16, 8192, 24),
  "2_7b": (2560, 32, 10240, 32),
  "6_7b": (4096, 32, 16384, 32),
  "13b": (5120, 40, 20480, 40),
  "175b": (12288, 96, 49152, 96),
}
# Shoeybi et al. 2020, table 2; Rosset 2020.
_MEGATRON_GPT = {"355m": GPT2["medium"], "2_5b": (1920, 20, 7680, 54), "8_3b": (3072, 24, 12288, 72)}
_TURING_NLG = {"17b": (4256, 28, 17024, 78)}
# embed_dim, heads, kv heads, head_dim, mlp_dim, layers.  Touvron et al. 2023; 1b is TinyLlama (Zhang et al. 2024).
_LLAMA2 = {
  "1b": (2048, 32, 4, 64, 5632, 22),
  "7b": (4096, 32, 32, 128, 11008, 32),
  "13b": (5120, 40, 40, 128, 13824, 40),
}
# Llama team 2024, table 3; 3.1 ("1_8b") and 3.2 ("2_1b") as released.
_LLAMA3 = {"8b": (4096, 32, 8, 128, 14336, 32), "70b": (8192, 64, 8, 128, 28672, 80)}
_LLAMA3 |= {"1_8b": _LLAMA3["8b"], "1_70b": _LLAMA3["70b"], "1_405b": (16384, 128, 8, 128, 53248, 126)}
_LLAMA3 |= {"2_1b": (2048, 32, 8, 64, 8192, 16), "2_3b": (3072, 24, 8, 128, 8192, 28)}
# Yang et al. 2024, table 1 (Qwen 2), and Qwen team 2025, section 2 (3b, 14b and 32b of Qwen 2.5), as released.
_QWEN2 = {
  "0_5b": (896, 14, 2, 64, 4864, 24),
  "1_5b": (1536, 12, 2, 128, 8960, 28),
  "3b": (2048, 16, 2, 128, 11008, 36),
  "7b": (3584, 28, 4, 128, 18944, 28),
  "14b": (5120, 40, 8, 128, 13824, 48),
  "32b": (5120, 40, 8, 128, 27648, 64),
  "72b": (8192, 64, 8, 128, 29568, 80),
}
# Jiang et al. 2024, table 1, and the released configs.
_MIXTRAL = {"8x7b": (4096, 32, 8, 128, 14336, 32), "8x22b": (6144, 48, 8, 128, 16384, 56)}
# embed_dim, num_heads, head_dim, mlp_dim, layers (encoder and decoder each), experts, and n of every n-th layer.
# Fedus et al. 2022, table 9; base, large and xxl as released for T5X: base and large have MLPs of T5 1.0's width.
_SWITCH = {f"base_{n}": (768, 12, 64, 3072, 12, n, 2) for n in (8, 16, 32, 64, 128, 256)}
_SWITCH |= {"large_128": (1024, 16, 64, 4096, 24, 128, 2), "xxl_128": (4096, 64, 64, 10240, 24, 128, 2)}
_SWITCH |= {"c_2048": (2080, 32, 64, 6144, 15, 2048, 1)}
# embed_dim, num_heads, head_dim, mlp_dim, layers (encoder and decoder each), experts. Zoph et al. 2022, flaxformer's
# st_moe_32b.gin; with 32 experts T5 1.1 large has the published 4.1 B parameters.
_ST_MOE = {"large": (*_T5_1_1["large"], 32), "32b": (5120, 64, 128, 20480, 24, 64)}
# embed_dim, heads, kv heads, head_dim, mlp_dim, layers of one stack. Zhang et al. 2025, as in google-deepmind/gemma;
# 2b and 9b are Gemma 2's (Gemma team 2024, table 1), the others T5's sizes and one between large and xl.
_T5GEMMA = {
  "s": (512, 8, 8, 64, 1024, 8),
  "b": (768, 12, 12, 64, 2048, 12),
  "l": (1024, 16, 16, 64, 2816, 24),
  "ml": (1152, 4, 4, 256, 6912, 26),
  "xl": (2048, 32, 32, 64, 5120, 24),
  "2b": (2304, 8, 4, 256, 9216, 26),
  "9b": (3584, 16, 8, 256, 14336, 42),
}
# MosaicML 2023, as released; heads fill the width.
_MPT = {"7b": (4096, 32, 32), "30b": (7168, 64, 48)}
# Tay et al. 2023, section 5.
_UL2 = _T5_1_1 | {"20b": (4096, 16, 256, 16384, 32)}

T5_SIZES = tuple(_T5_1_1)
TRANSFORMER_SIZES = tuple(_TRANSFORMER)
BERT_SIZES = tuple(BERT)
ALBERT_SIZES = tuple(_ALBERT)
UNIVERSAL_SIZES = (*_UNIVERSAL, *(f"adaptive_{size}" for size in _UNIVERSAL))
MEGATRON_BERT_SIZES = tuple(_MEGATRON_BERT)
XLM_SIZES = tuple(_XLM)
AFRIBERTA_SIZES = tuple(_AFRIBERTA)
GPT_BERT_SIZES = tuple(_GPT_BERT)
ELECTRA_SIZES = tuple(_ELECTRA)
MODERN_BERT_SIZES = tuple(_MODERN_BERT)
ETTIN_SIZES = tuple(f"{side}_{size}" for side in ("encoder", "decoder") for size in _ETTIN)
TRANSFORMER_XL_SIZES = tuple(_TRANSFORMER_XL)
GPT2_SIZES = tuple(GPT2)
GPT3_SIZES = tuple(_GPT3)
MEGATRON_GPT_SIZES = tuple(_MEGATRON_GPT)
TURING_NLG_SIZES = tuple(_TURING_NLG)
MPT_SIZES = tuple(_MPT)
LLAMA2_SIZES = tuple(_LLAMA2)
LLAMA3_SIZES = tuple(_LLAMA3)
QWEN2_SIZES = tuple(_QWEN2)
UL2_SIZES = tuple(_UL2)
MIXTRAL_SIZES = tuple(_MIXTRAL)
SWITCH_SIZES = tuple(_SWITCH)
ST_MOE_SIZES = tuple(_ST_MOE)
T5GEMMA_SIZES = ("s_s", "b_b", "l_l", "ml_ml", "xl_xl", "2b_2b", "9b_2b", "9b_9b")  # encoder and decoder


def entry(table: Mapping[str, T], size: str) -> T:
  """Returns the row of a size.

  Raises:
    UserError: the table has no such size.
  """
  if size not in table:
    raise UserError(f"unknown size {size!r}. Known values: {', '.join(table)}{did_you_mean(size, table)}")
  return table[size]


def model_fields(**fields: object) -> dict[str, object]:
  """Returns the fields of `TransformerConfig`, so that nothing of another family's config remains.

  `remat` is left out: a config chooses it for the memory of a run, and keeps it when another family replaces the model.
  """
  config = TransformerConfig(**cast(dict[str, Any], fields))
  return {name: value for name, value in dataclasses.asdict(config).items() if name != "remat"}


def _t5(table: Mapping[str, tuple], size: str, **overrides: Any) -> dict[str, Any]:
  embed_dim, num_heads, head_dim, mlp_dim, num_encoder_layers, *decoder_layers = entry(table, size)
  return model_fields(
    architecture="encoder_decoder",
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    num_encoder_layers=num_encoder_layers,
    num_decoder_layers=decoder_layers[0] if decoder_layers else num_encoder_layers,
    **overrides,
  )


def t5_1_0(size: str) -> dict[str, object]:
  """Original T5: relu, tied logits."""
  return _t5(_T5_1_0, size, vocab_size=32_128, mlp_activation="relu", tied_logits=True)


def t5_1_1(size: str) -> dict[str, object]:
  """T5 1.1: gated gelu, untied logits."""
  return _t5(_T5_1_1, size, vocab_size=32_128)


def mt5(size: str) -> dict[str, object]:
  """mT5: T5 1.1 for 101 languages, 250,112 embedding rows."""
  # The released mT5 small has 6 heads and 8 layers like 1.1 small; all sizes equal 1.1's.
  return _t5(_T5_1_1, size, vocab_size=250_112)


def byt5(size: str) -> dict[str, object]:
  """ByT5: bytes instead of subword tokens, a deep encoder and a shallow decoder."""
  return _t5(_BYT5, size, vocab_size=384)


def modern_t5(size: str) -> dict[str, object]:
  """Encoder-decoder in T5 1.1's sizes with modern parts: rotary positions, grouped queries, SwiGLU, QK-norm.

  Four query heads share a key and value head (three in small).
  """
  fields: dict[str, Any] = t5_1_1(size)
  group = 4 if fields["num_heads"] % 4 == 0 else 3
  return fields | dict(
    positions="rotary",
    num_kv_heads=fields["num_heads"] // group,
    scale_attention=True,
    qk_norm=True,
    mlp_activation="gated_silu",
    init_scale=0.02,
  )


def red_llm(size: str) -> dict[str, object]:
  """RedLLM (Zhang et al. 2025): modern_t5 with rotary cross-attention, all heads of keys and values, tied logits.

  Sizes are T5 1.1's, not the paper's.
  """
  return modern_t5(size) | dict(num_kv_heads=0, rotary_cross_attention=True, tied_logits=True)


def encoder_row(row: tuple[int, int, int, int]) -> dict[str, int]:
  """Returns the fields of a row: embed_dim, num_heads, mlp_dim, layers."""
  embed_dim, num_heads, mlp_dim, num_layers = row
  widths = dict(embed_dim=embed_dim, num_heads=num_heads, head_dim=embed_dim // num_heads, mlp_dim=mlp_dim)
  return widths | {"num_encoder_layers": num_layers}


def encoder(row: tuple[int, int, int, int], **overrides: object) -> dict[str, object]:
  """Returns the fields that BERT and its relatives share, with the sizes of a row."""
  return model_fields(
    architecture="encoder_only",
    **encoder_row(row),
    scale_attention=True,
    norm="layer",
    embedding_norm=True,
    tied_logits=True,
    logits_transform=True,
    init_scale=0.02,
    broadcast_dropout=False,
    **overrides,
  )


def bert(size: str) -> dict[str, object]:
  """BERT, uncased (Devlin et al. 2019): post-norm, learned positions, two segment types."""
  return encoder(
    entry(BERT, size),
    vocab_size=30_522,
    positions="learned",
    max_length=512,
    segment_types=2,
    post_norm=True,
    biases=True,
    norm_epsilon=1e-12,
    mlp_activation="gelu",
    dropout_rate=0.1,
  )


def transformer_xl(size: str) -> dict[str, object]:
  """Transformer-XL (Dai et al. 2019): a post-norm decoder with relative sinusoids and a memory."""
  embed_dim, num_heads, head_dim, mlp_dim, layers, memory, dropout = entry(_TRANSFORMER_XL, size)
  return model_fields(
    architecture="decoder_only",
    vocab_size=267_776 if size.startswith("wt103") else 256,
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    num_decoder_layers=layers,
    memory_length=memory,
    positions="relative_xl",
    scale_attention=True,
    norm="layer",
    norm_epsilon=1e-5,
    post_norm=True,
    biases=True,
    attention_biases=False,
    mlp_activation="relu",
    scale_embedding=True,
    tied_logits=True,
    logits_bias=True,
    init_scale=0.02,
    dropout_rate=dropout,
    broadcast_dropout=False,
  )


def electra(size: str) -> dict[str, object]:
  """ELECTRA's discriminator (Clark et al. 2020): BERT's body; small is narrower, with an embedding of 128 features."""
  changed: dict[str, object] = dict(logits_transform=False, embedding_dim=128 if size == "small" else 0)
  changed |= encoder_row(entry(_ELECTRA, size))
  changed["heads"] = ({"name": "replaced", "kind": "detector", "num_classes": 1},)
  return bert("base") | changed


def roberta(size: str) -> dict[str, object]:
  """RoBERTa (Liu et al. 2019): BERT with GPT-2's byte-level vocabulary, and one segment type."""
  # Positions start after the padding id, 1: the first two rows of the table are unused.
  changed = dict(vocab_size=50_265, segment_types=1, norm_epsilon=1e-5, position_offset=2)
  return bert(size) | changed


def unilm(size: str) -> dict[str, object]:
  """UniLM (Dong et al. 2019): BERT with six segment types, which mark the direction of reading; large is published."""
  return bert(size) | {"segment_types": 6, "vocab_size": 28_996}


def longformer(size: str) -> dict[str, object]:
  """Longformer (Beltagy et al. 2020): RoBERTa for 4,096 tokens, with a window of 512 and global tokens."""
  return roberta(size) | dict(attention="longformer", attention_window=256, max_length=4_096)


def bart(size: str) -> dict[str, object]:
  """BART (Lewis et al. 2020): RoBERTa's parts on both sides, half the layers each, tied logits without a transform."""
  changed = dict(architecture="encoder_decoder", segment_types=0, max_length=1024, logits_transform=False)
  layers = entry(BERT, size)[-1] // 2
  changed |= dict(num_encoder_layers=layers, num_decoder_layers=layers, own_decoder_positions=True)
  return roberta(size) | changed


def transformer(size: str) -> dict[str, object]:
  """Transformer (Vaswani et al. 2017): sinusoidal positions, post-norm, one scaled embedding for texts and logits.

  Projections of attention have biases, as in Marian and fairseq; tensor2tensor's have none. The initial scale is that
  of the embedding and, by Glorot's formula, of the projections of attention.
  """
  embed_dim, num_heads, mlp_dim, num_layers, dropout_rate = entry(_TRANSFORMER, size)
  return model_fields(
    architecture="encoder_decoder",
    vocab_size=37_000,
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=embed_dim // num_heads,
    mlp_dim=mlp_dim,
    num_encoder_layers=num_layers,
    num_decoder_layers=num_layers,
    positions="sinusoidal",
    scale_attention=True,
    norm="layer",
    norm_epsilon=1e-5,
    post_norm=True,
    biases=True,
    mlp_activation="relu",
    scale_embedding=True,
    tied_logits=True,
    init_scale=embed_dim**-0.5,
    dropout_rate=dropout_rate,
    broadcast_dropout=False,
  )


def albert(size: str) -> dict[str, object]:
  """ALBERT version 2 (Lan et al. 2020): one shared layer, an embedding of 128 features with a projection."""
  changed = dict(vocab_size=30_000, embedding_dim=128, share_layers=True, mlp_activation="gelu_tanh", dropout_rate=0.0)
  return bert("base") | encoder_row(entry(_ALBERT, size)) | changed


def megatron_bert(size: str) -> dict[str, object]:
  """Megatron's BERT (Shoeybi et al. 2020, section 5.3): pre-norm, which depth requires."""
  changed = dict(post_norm=False, embedding_norm=False, norm_epsilon=1e-5)
  return bert("base") | encoder_row(entry(_MEGATRON_BERT, size)) | changed


def xlm_r(size: str) -> dict[str, object]:
  """XLM-R (Conneau et al. 2020): RoBERTa with a vocabulary of 250,002."""
  return roberta(size) | {"vocab_size": 250_002}


def afriberta(size: str) -> dict[str, object]:
  """AfriBERTa (Ogueji et al. 2021): XLM-R with fewer layers, six heads, a vocabulary of 70,006."""
  return roberta("base") | encoder_row(entry(_AFRIBERTA, size)) | {"vocab_size": 70_006}


def xlm(size: str) -> dict[str, object]:
  """XLM (Conneau & Lample 2019): BERT's parts, tied logits without a transform; 15 has two segment types for TLM."""
  sizes = {"15": dict(vocab_size=95_000, segment_types=2), "100": dict(vocab_size=200_000, segment_types=0)}
  return bert("base") | encoder_row(entry(_XLM, size)) | sizes[size] | {"logits_transform": False}


def modern_bert(size: str) -> dict[str, object]:
  """ModernBERT (Warner et al. 2024): rotary positions, pre-norm, GeGLU, every third layer global."""
  return encoder(
    entry(_MODERN_BERT, size),
    vocab_size=50_368,
    positions="rotary",
    rotary_base=160_000.0,
    local_rotary_base=10_000.0,
    attention_window=64,
    global_attention_every=3,
    norm_epsilon=1e-5,
    mlp_activation="gated_gelu_exact",
  )


def ettin(size: str) -> dict[str, object]:
  """Ettin (Weller et al. 2025): ModernBERT's parts in more sizes, as an encoder, or a decoder, "decoder_150m".

  All layers have one rotary base. transformers counts the position itself in the decoders' half window of 64.
  """
  side, _, width = size.partition("_")
  row = encoder_row(entry(_ETTIN, width if side in ("encoder", "decoder") else size))
  if side == "decoder":
    row |= {"architecture": "decoder_only", "num_encoder_layers": 0, "num_decoder_layers": row["num_encoder_layers"]}
    row |= {"attention_window": 63}
  return modern_bert("base") | row | {"local_rotary_base": 0.0}


def _gpt(row: tuple[int, int, int, int], **overrides: Any) -> dict[str, Any]:
  embed_dim, num_heads, mlp_dim, num_layers = row
  return model_fields(
    architecture="decoder_only",
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=embed_dim // num_heads,
    mlp_dim=mlp_dim,
    num_decoder_layers=num_layers,
    positions="learned",
    scale_attention=True,
    norm="layer",
    norm_epsilon=1e-5,
    biases=True,
    mlp_activation="gelu_tanh",
    tied_logits=True,
    init_scale=0.02,
    broadcast_dropout=False,
    **overrides,
  )


def gpt2(size: str) -> dict[str, object]:
  """GPT-2 (Radford et al. 2019): learned positions, layer norms before the branches, tied logits."""
  return _gpt(entry(GPT2, size), vocab_size=50_257, max_length=1024)


def universal_transformer(size: str) -> dict[str, object]:
  """Universal Transformer (Dehghani et al. 2019): one shared layer, signals of positions and steps before each step.

  The fields are those of tensor2tensor's universal_transformer_base and _big: norms before the branches, learned
  signals of steps, and no adaptive computation time, which adaptive_ adds. Projections of attention have biases, but
  tensor2tensor's have none.
  """
  is_adaptive, width = size.startswith("adaptive_"), size.removeprefix("adaptive_")
  embed_dim, num_heads, mlp_dim, num_layers = entry(_UNIVERSAL, width)
  steps = 2 * num_layers if is_adaptive else num_layers
  changed: dict[str, object] = dict(
    vocab_size=32_768, embed_dim=embed_dim, num_heads=num_heads, head_dim=embed_dim // num_heads
  )
  changed |= dict(mlp_dim=mlp_dim, num_encoder_layers=steps, num_decoder_layers=steps, init_scale=embed_dim**-0.5)
  changed |= dict(positions="none", recurrence="universal", share_layers=True, step_signal="learned")
  changed |= dict(post_norm=False, norm_epsilon=1e-6)
  changed |= dict(halting_threshold=0.99 if is_adaptive else 0.0, dropout_rate=0.3)
  return transformer("base") | changed


def gpt1(size: str) -> dict[str, object]:
  """GPT (Radford et al. 2018): GPT-2 small with post-norm, half the positions and a separate vocabulary."""
  return _gpt(entry({"base": GPT2["small"]}, size), vocab_size=40_478, max_length=512, post_norm=True, dropout_rate=0.1)


def gpt3(size: str) -> dict[str, object]:
  """GPT-3 (Brown et al. 2020): GPT-2 for 2,048 tokens, with local attention in every other layer.

  The width of the local attention is not published; 256 positions are GPT-Neo's (Black et al. 2021).
  """
  # The window is the number of positions to the left of a query; GPT-Neo counts the query, too.
  bands = dict(attention_window=255, global_attention_every=2)
  return _gpt(entry(_GPT3, size), vocab_size=50_257, max_length=2048, **bands)


def megatron_gpt(size: str) -> dict[str, object]:
  """Megatron's GPT-2 (Shoeybi et al. 2020): 51,200 embedding rows, which 8 x 128 divides."""
  return _gpt(entry(_MEGATRON_GPT, size), vocab_size=51_200, max_length=1024, dropout_rate=0.1)


def turing_nlg(size: str) -> dict[str, object]:
  """Turing-NLG (Rosset 2020): a GPT-2 of 78 layers."""
  return _gpt(entry(_TURING_NLG, size), vocab_size=50_257, max_length=1024)


def mpt(size: str) -> dict[str, object]:
  """MPT (MosaicML 2023): ALiBi (Press et al. 2022), layer norms, no biases, tied logits."""
  embed_dim, num_heads, num_layers = entry(_MPT, size)
  return model_fields(
    architecture="decoder_only",
    vocab_size=50_432,
    embed_dim=embed_dim,
    num_heads=num_heads,
    head_dim=embed_dim // num_heads,
    mlp_dim=4 * embed_dim,
    num_decoder_layers=num_layers,
    positions="alibi",
    scale_attention=True,
    norm="layer",
    norm_epsilon=1e-5,
    mlp_activation="gelu",
    tied_logits=True,
    init_scale=0.02,
    broadcast_dropout=False,
  )


def prefix_lm(size: str) -> dict[str, object]:
  """T5 1.1 without its encoder: one stack with bidirectional attention over inputs and causal attention over targets.

  Source: Raffel et al. 2020, section 3.2.1 ("prefix LM").
  """
  changed = dict(architecture="decoder_only", num_encoder_layers=0, bidirectional_prefix=True)
  return t5_1_1(size) | changed


def gpt_bert(size: str) -> dict[str, object]:
  """GPT-BERT (Charpentier & Samuel 2024): a decoder with optional bidirectional attention, approximately LTG-BERT.

  Norms are at both ends of each branch. Positions are T5's bias by distance instead of DeBERTa's attention to
  distances. Gates on attention outputs, and weights of all lower layers, are omitted.
  """
  embed_dim, num_heads, mlp_dim, num_layers, vocab_size = entry(_GPT_BERT, size)
  changed = dict(positions="relative", mlp_activation="gated_gelu_exact", branch_norm=True, logits_transform=True)
  changed |= dict(bidirectional_prefix=True, dropout_rate=0.1, max_length=0)
  row = (embed_dim, num_heads, mlp_dim, num_layers)
  return _gpt(row, vocab_size=vocab_size, max_length=512) | changed


def ul2(size: str) -> dict[str, object]:
  """UL2 (Tay et al. 2023): T5 1.1 with SwiGLU."""
  return _t5(_UL2, size, vocab_size=32_128, mlp_activation="gated_silu")


def llama(row: tuple[int, ...], **overrides: object) -> dict[str, object]:
  """Returns the fields of a Llama: width, heads, heads of keys, width of a head and of the MLP, layers."""
  embed_dim, num_heads, num_kv_heads, head_dim, mlp_dim, num_layers = row
  return model_fields(
    architecture="decoder_only",
    embed_dim=embed_dim,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads if num_kv_heads < num_heads else 0,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    num_decoder_layers=num_layers,
    positions="rotary",
    scale_attention=True,
    norm_epsilon=1e-5,
    mlp_activation="gated_silu",
    init_scale=0.02,
    broadcast_dropout=False,
    **overrides,
  )


def llama2(size: str) -> dict[str, object]:
  """Llama 2 (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU; 1b with grouped queries."""
  return llama(entry(_LLAMA2, size), vocab_size=32_000)


def mixtral(size: str) -> dict[str, object]:
  """Mixtral (Jiang et al. 2024): Llama with eight experts in each layer, two for each token."""
  changed = dict(feed_forward="moe", moe_experts=8, moe_experts_per_token=2, moe_normalize_gates=True)
  return llama(entry(_MIXTRAL, size), vocab_size=32_000, rotary_base=1e6) | changed | {"moe_balance_loss": 0.04}


def switch(size: str) -> dict[str, object]:
  """Switch Transformer (Fedus et al. 2022): T5 with experts in every other layer, one for each token.

  The published 395 B parameters of xxl include gates in the experts; the other released sizes have relu.
  """
  *row, num_experts, every = entry(_SWITCH, size)
  fields = _t5({size: tuple(row)}, size, vocab_size=32_128)
  experts = dict(feed_forward="moe", moe_experts=num_experts, moe_every=every, moe_first=every - 1)
  experts |= dict(moe_capacity_factor=1.25, moe_balance_loss=0.01, moe_jitter=0.01)
  return fields | experts | {"mlp_activation": "gated_gelu" if size == "xxl_128" else "relu"}


def st_moe(size: str) -> dict[str, object]:
  """ST-MoE (Zoph et al. 2022): T5 1.1 with experts in every fourth layer, two for each token, and a router z-loss.

  Experts have gates, and no jitter. The dense MLP after the experts and their multiplicative bias are left out.
  """
  *row, num_experts = entry(_ST_MOE, size)
  experts = dict(feed_forward="moe", moe_experts=num_experts, moe_experts_per_token=2, moe_every=4, moe_first=3)
  experts |= dict(moe_normalize_gates=True, moe_capacity_factor=1.25, moe_balance_loss=0.01, moe_z_loss=0.001)
  return _t5({size: tuple(row)}, size, vocab_size=32_128) | experts


def t5gemma(size: str) -> dict[str, object]:
  """T5Gemma (Zhang et al. 2025): an encoder and a decoder of Gemma 2, each with a separate width and embedding.

  Every other layer has a window, which in both stacks holds 4,095 positions before a query, as in the authors' code.
  """
  if size not in T5GEMMA_SIZES:
    entry(dict.fromkeys(T5GEMMA_SIZES), size)
  encoder, decoder = (_T5GEMMA[part] for part in size.split("_"))
  fields = llama(decoder, vocab_size=256_000, norm_offset=True, branch_norm=True, scale_embedding=True)
  fields |= dict(architecture="encoder_decoder", num_encoder_layers=encoder[-1], own_encoder_embedding=True)
  fields |= dict(norm_epsilon=1e-6, mlp_activation="gated_gelu", tied_logits=True)
  fields |= dict(attention_softcap=50.0, logits_softcap=30.0)
  fields |= dict(attention_window=4_095, global_attention_every=2, global_attention_first=1)
  names = ("embed_dim", "num_heads", "num_kv_heads", "head_dim", "mlp_dim")
  changed = zip(names, encoder[:-1], decoder[:-1], strict=True)
  return fields | {f"encoder_{name}": value for name, value, other in changed if value != other}


def llama3(size: str) -> dict[str, object]:
  """Llama 3 (Llama team 2024): grouped queries and a vocabulary of 128,256.

  Sizes of Llama 3.1 begin with "1_" and of Llama 3.2 with "2_": their rotary positions are scaled to 131,072 tokens.
  Llama 3.2 ties the logits.
  """
  version = size[0] if size[1:2] == "_" else ""
  scaled: dict[str, Any] = dict(
    rotary_scaling="llama3",
    rotary_scaling_factor=32.0 if version == "2" else 8.0,
    rotary_scaling_original_length=8_192,
    tied_logits=version == "2",
  )
  return llama(entry(_LLAMA3, size), vocab_size=128_256, rotary_base=500_000.0, **(scaled if version else {}))


def qwen2(size: str) -> dict[str, object]:
  """Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases of queries, keys and values; small sizes tie the logits."""
  fields = llama(entry(_QWEN2, size), vocab_size=152_064, rotary_base=1_000_000.0, qkv_biases=True)
  small = size in ("0_5b", "1_5b", "3b")
  return fields | dict(norm_epsilon=1e-6, tied_logits=small) | (dict(vocab_size=151_936) if small else {})
