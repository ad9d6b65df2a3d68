"""FLOPs of a training step."""

from collections.abc import Mapping

from t2t.models.config import BESIDE_FIRST, EMBEDDINGS, RECURRENCES, TransformerConfig


def model_flops(
  config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float = 1.0
) -> float:
  """Returns the FLOPs of one training step, forward and backward, without recomputation.

  Two for each multiply-add, three times the forward pass for forward and backward: 6 x parameters of a matmul x its
  tokens, plus attention's scores, weighted values and positions. A causal mask does not reduce the count; a window
  does. Embedding lookups, norms, softmax and activations are not counted (PaLM, Chowdhery et al. 2022, appendix B).

  Args:
    config: shape of the model.
    batch_size: sequences.
    lengths: computed positions of "encoder" and "decoder", padding included.
    predicted: fraction of the last stack's positions with logits.
  """
  encoder_length, decoder_length = (lengths.get(side, 0) for side in ("encoder", "decoder"))
  if config.block_length and predicted:
    lengths = {side: 2 * length for side, length in lengths.items()}  # clean and noisy tokens
  models = {side: config.of_stack(side) for side in ("encoder", "decoder")}
  layers = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
  joined, kv_joined = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
  encoder, decoder = (
    _stack_multiply_adds(models[side], layers[side], lengths.get(side, 0), predicted=predicted) for side in models
  )
  if encoder_length and decoder_length and config.block_class.is_recurrent:
    decoder += layers["decoder"] * config.block_class.cross_multiply_adds(config, encoder_length, decoder_length)
  elif encoder_length and decoder_length:
    # Queries with the output projection; keys and values of the encoder's width.
    cross = 2 * config.embed_dim * joined * decoder_length
    cross += 2 * models["encoder"].embed_dim * kv_joined * encoder_length
    decoder += config.num_decoder_layers * (cross + 2 * joined * decoder_length * encoder_length)
  positions = sum(
    layers[side] * models[side].position_scheme.multiply_adds(length, batch_size)
    for side, length in lengths.items()
    if length
  )
  if config.beside_first:
    encoder += BESIDE_FIRST[config.beside_first].multiply_adds(models["encoder"]) * encoder_length
  width = config.logits_width
  projected = width * config.vocab_size + (config.embed_dim * width if config.logits_transform else 0)
  logits = config.vocabulary_head * projected * predicted * (decoder_length or encoder_length)
  embedding = sum(EMBEDDINGS[config.embedding].multiply_adds(models[side]) * lengths.get(side, 0) for side in models)
  return 6.0 * (batch_size * (embedding + encoder + decoder + logits) + positions)


def _stack_multiply_adds(config: TransformerConfig, num_layers: int, length: int, *, predicted: float) -> float:
  """Returns the multiply-adds of the layers of one stack for a row, without cross-attention and positions."""
  block = config.block_class.multiply_adds(config)
  if config.block_class.is_recurrent:
    return num_layers * block * length
  block += RECURRENCES[config.recurrence_row].multiply_adds(config) if config.recurrence_row else 0
  keys = 2 * config.embed_dim * config.kv_heads * config.head_dim  # and values
  # Two streams have queries and feed-forward layers each, and keys in common; keys include those of a memory.
  streams, memory = 2 if config.two_streams and predicted else 1, config.memory_length
  pairs = config.attention_class.pairs(config, num_layers, length)
  return (
    num_layers * (streams * block * length + keys * ((memory if length else 0) - (streams - 1) * length))
    + streams * 2 * config.num_heads * config.head_dim * pairs
  )
