"""Published sizes of encoders with Llama's parts: functions as in presets.py, which most commands import."""

from collections.abc import Mapping

from t2t.models import presets

# embed_dim, heads, kv heads, head_dim, mlp_dim, layers.  Boizard et al. 2025, table 1, and their released code.
_EUROBERT = {
  "210m": (768, 12, 12, 64, 3072, 12),
  "610m": (1152, 18, 6, 64, 4096, 26),
  "2_1b": (2304, 18, 6, 128, 6144, 32),
}
# Le Breton et al. 2025, as released: two thirds of 3,072 features, because SwiGLU has a third matrix.
_NEOBERT = {"base": (768, 12, 12, 64, 2048, 28)}

EUROBERT_SIZES = tuple(_EUROBERT)
NEOBERT_SIZES = tuple(_NEOBERT)


def _encoder(table: Mapping[str, tuple[int, ...]], size: str, vocab_size: int) -> dict[str, object]:
  embed_dim, num_heads, num_kv_heads, head_dim, mlp_dim, num_layers = presets.entry(table, size)
  return presets.llama2("7b") | dict(
    architecture="encoder_only",
    vocab_size=vocab_size,
    embed_dim=embed_dim,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads if num_kv_heads < num_heads else 0,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    num_encoder_layers=num_layers,
    num_decoder_layers=0,
  )


def eurobert(size: str) -> dict[str, object]:
  """EuroBERT (Boizard et al. 2025): Llama's parts with attention in both directions, and Llama 3's vocabulary."""
  return _encoder(_EUROBERT, size, 128_256) | dict(rotary_base=250_000.0)


def neobert(size: str) -> dict[str, object]:
  """NeoBERT (Le Breton et al. 2025): Llama's parts with attention in both directions, 28 layers, BERT's vocabulary."""
  return _encoder(_NEOBERT, size, 30_522) | dict(norm_epsilon=1e-6, logits_bias=True)
