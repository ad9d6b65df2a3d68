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
  joined, kv_joined = config.num_heads * config.head_dim, config.kv_heads * config.head_dim
  queries, keys = 2 * config.embed_dim * joined, 2 * config.embed_dim * kv_joined  # with output projection, and values
  own = config.attention_class
  block = config.block_class.multiply_adds(config)
  block += RECURRENCES[config.recurrence_row].multiply_adds(config) if config.recurrence_row else 0
  # Two streams have queries and feed-forward layers each, and keys in common; keys include those of a memory.
  streams, memory = 2 if config.two_streams and predicted else 1, config.memory_length
  stack = lambda num_layers, length: (
    num_layers * (streams * block * length + keys * ((memory if length else 0) - (streams - 1) * length))
    + streams * 2 * joined * own.pairs(config, num_layers, length)
  )
  encoder, decoder = stack(config.num_encoder_layers, encoder_length), stack(config.num_decoder_layers, decoder_length)
  if encoder_length and decoder_length:
    cross = queries * decoder_length + keys * encoder_length + 2 * joined * decoder_length * encoder_length
    decoder += config.num_decoder_layers * cross
  scheme, layers = config.position_scheme, {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
  positions = sum(layers[side] * scheme.multiply_adds(length, batch_size) for side, length in lengths.items() if length)
  if config.beside_first:
    encoder += BESIDE_FIRST[config.beside_first].multiply_adds(config) * encoder_length
  width = config.logits_width
  projected = width * config.vocab_size + (config.embed_dim * width if config.logits_transform else 0)
  projected = projected if config.vocabulary_head else 0
  logits = projected * predicted * (decoder_length or encoder_length)
  embedding = EMBEDDINGS[config.embedding].multiply_adds(config) * (encoder_length + decoder_length)
  return 6.0 * (batch_size * (embedding + encoder + decoder + logits) + positions)
