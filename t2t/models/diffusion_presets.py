"""Published sizes of models of masked diffusion, as in presets.py."""

from t2t.models import presets

_LLADA = {"8b": (4096, 32, 32, 128, 12288, 32)}  # Nie et al. 2025, table 5, as released
_MDLM = {"small": presets.GPT2["small"]}  # Sahoo et al. 2024, appendix C.2, with the released configs
LLADA_SIZES, MDLM_SIZES = tuple(_LLADA), tuple(_MDLM)


def llada(size: str) -> dict[str, object]:
  """LLaDA (Nie et al. 2025): Llama's layers with bidirectional attention, for masked diffusion."""
  row = presets.entry(_LLADA, size)
  fields = presets.llama(row, vocab_size=126_464, rotary_base=500_000.0)
  return fields | dict(architecture="encoder_only", num_encoder_layers=row[-1], num_decoder_layers=0)


def mdlm(size: str) -> dict[str, object]:
  """MDLM (Sahoo et al. 2024): a pre-norm encoder with rotary positions, without the layers that read the time.

  The model does not depend on the time (`time_conditioning`), so its modulation by the time is left out.
  """
  return presets.model_fields(
    architecture="encoder_only",
    **presets.encoder_row(presets.entry(_MDLM, size)),
    vocab_size=50_258,
    positions="rotary",
    scale_attention=True,
    norm="layer",
    norm_epsilon=1e-5,
    mlp_activation="gelu_tanh",
    init_scale=0.02,
    dropout_rate=0.1,
    broadcast_dropout=False,
  )
