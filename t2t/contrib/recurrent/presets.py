"""Published sizes of recurrent models, from a size to all fields of `TransformerConfig`."""

from t2t.models import presets

# vocabulary rounded up to a multiple of 128, rates of dropout: words, input and output, between layers, weights.
_AWD_LSTM = {
  "ptb": (10_112, 0.1, 0.4, 0.25, 0.5),
  "wikitext2": (33_280, 0.1, 0.4, 0.2, 0.5),
  "ulmfit": (60_032, 0.05, 0.4, 0.3, 0.5),
}
AWD_LSTM_SIZES = tuple(_AWD_LSTM)


def _fields(width: int, **fields: object) -> dict[str, object]:
  """Returns the fields of LSTM layers without positions; one head has the width, because a config needs heads."""
  size = dict(embed_dim=width, num_heads=1, head_dim=width, mlp_dim=width, positions="none")
  return presets.model_fields(**(size | dict(block="recurrent", feed_forward="lstm") | fields))


def awd_lstm(size: str) -> dict[str, object]:
  """AWD-LSTM (Merity et al. 2017) and the language model of ULMFiT (Howard & Ruder 2018): 400, 1,150, 1,150, 400.

  The embedding is tied to the logits. The authors drop 0.65 instead of 0.4 of the input on WikiText-2.
  """
  vocab_size, words, outer, between, weights = presets.entry(_AWD_LSTM, size)
  return _fields(
    400,
    architecture="decoder_only",
    vocab_size=vocab_size,
    mlp_dim=1_150,
    num_decoder_layers=3,
    recurrent_hidden=1_150,
    recurrent_carry=True,
    recurrent_dropout=between,
    recurrent_weight_dropout=weights,
    recurrent_size_loss=2.0,
    recurrent_change_loss=1.0,
    embedding_dropout=words,
    dropout_rate=outer,
    tied_logits=True,
    logits_bias=True,
  )


_NO_DROPOUT = dict(embedding_dropout=0.0, recurrent_dropout=0.0, recurrent_weight_dropout=0.0)


def tiny_lstm() -> dict[str, object]:
  """AWD-LSTM without dropout, for a text that is read once; configs/tiny.py makes it smaller."""
  return awd_lstm("ulmfit") | _NO_DROPOUT


def tiny_qrnn() -> dict[str, object]:
  """AWD-QRNN (Merity et al. 2018) without dropout, as `tiny_lstm`."""
  return tiny_lstm() | dict(feed_forward="qrnn")


def elmo() -> dict[str, object]:
  """ELMo (Peters et al. 2018): a character CNN, and 2 layers of 4,096 units and 512 features in each direction.

  Both directions share token vectors and logits. The vocabulary is that of the logits, rounded up to a multiple of 128.
  """
  return _fields(
    1_024,
    architecture="encoder_only",
    vocab_size=32_128,
    mlp_dim=4_096,
    num_encoder_layers=2,
    embedding="characters_both_directions",
    character_cnn="elmo",
    embedding_dim=512,
    recurrent_hidden=4_096,
    recurrent_projection=True,
    recurrent_residual=True,
    recurrent_clip=3.0,
    recurrent_dropout=0.1,
    dropout_rate=0.1,
    broadcast_dropout=False,
  )


def tiny_elmo() -> dict[str, object]:
  """ELMo with a small character CNN and without dropout, as `tiny_lstm`."""
  return elmo() | dict(character_cnn="tiny", recurrent_dropout=0.0)


def skip_thought() -> dict[str, object]:
  """Skip-Thought (Kiros et al. 2015), uni-skip: words of 620 features, 2,400 GRU units, 20,000 words.

  The words are projected to 2,400 features before each GRU, whose input matrix is then a product of two.
  """
  return _fields(
    2_400,
    architecture="encoder_decoder",
    vocab_size=20_096,  # rounded up to a multiple of 128
    num_encoder_layers=1,
    num_decoder_layers=1,
    feed_forward="gru",
    embedding_dim=620,
    output_embedding_dim=2_400,
  )


def sa_lstm() -> dict[str, object]:
  """SA-LSTM (Dai & Le 2015): words of 512 features and 1,024 LSTM units, which read and write a text.

  The vocabulary is that of the tokens, rounded up to a multiple of 128. Words are projected as in `skip_thought`.
  """
  return _fields(
    1_024,
    architecture="decoder_only",
    vocab_size=32_128,
    num_decoder_layers=1,
    embedding_dim=512,
    output_embedding_dim=1_024,
  )


def cove() -> dict[str, object]:
  """CoVe (McCann et al. 2017): words of 300 features, two layers of 300 LSTM units in each direction.

  The decoder has two LSTM layers of 600 units, as many as the encoder. Words are projected as in `skip_thought`.
  """
  return _fields(
    600,
    architecture="encoder_decoder",
    vocab_size=37_120,
    num_encoder_layers=2,
    num_decoder_layers=1,  # of two LSTMs and one attention
    block="recurrent_attention",
    embedding_dim=300,
    output_embedding_dim=600,
    own_encoder_embedding=True,
    logits_bias=True,
    recurrent_dropout=0.2,
    dropout_rate=0.2,
  )


def tiny_cove() -> dict[str, object]:
  """CoVe without dropout, as `tiny_lstm`, and one embedding of both languages."""
  return cove() | dict(recurrent_dropout=0.0, own_encoder_embedding=False)
