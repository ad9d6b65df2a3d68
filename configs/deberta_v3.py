"""DeBERTa version 3 (He et al. 2023): a DeBERTa that detects replaced tokens, with gradient-disentangled sharing.

  t2t train --config deberta_v3_base --workdir gs://BUCKET/deberta --config.data.vocabulary=gs://BUCKET/spm.model

The vocabulary is a SentencePiece model of 128,000 tokens. Sizes, without the embedding: xsmall 22 M, small 44 M, base
86 M, large 304 M parameters. The generator has the width of the discriminator and half of its layers. Only the
generator trains the shared embedding, and the discriminator adds a difference to it. 500,000 steps of 8,192 sequences
of 512 tokens, here on C4. Published on MNLI: 88.1, 88.3, 90.6, 91.8.
"""

from ml_collections import ConfigDict

from t2t.configs import deberta, electra
from t2t.models import bert_variants

SIZES = bert_variants.DEBERTA_V3_SIZES


def with_generator(config: ConfigDict) -> ConfigDict:
  """Makes the model a detector of replaced tokens, and adds a generator of the same width with half of the layers."""
  model = config.model
  model.update(
    absolute_positions="",  # only the generator has an enhanced mask decoder
    embedding_difference=True,
    vocabulary_head=False,
    heads=({"name": "replaced", "kind": "detector", "num_classes": 1},),
  )
  electra.with_generator(config, model.embed_dim, model.num_heads, model.mlp_dim, model.num_encoder_layers // 2)
  config.electra.mask_decoder = True
  return config


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = deberta.get_config("base")
  config.model.update(bert_variants.deberta_v3(size))
  config.model.vocab_size = 128_128  # rounded up to a multiple of 128 for the mesh
  config.data.mixture = "c4_masked_lm"
  config.data.objective = "masked_lm"  # for the user's own files
  config.train.steps = 500_000
  config.train.batch_size = 8_192
  config.optimizer.learning_rate = 3e-4 if size == "large" else 6e-4
  config.optimizer.b2 = 0.98
  return with_generator(config)
