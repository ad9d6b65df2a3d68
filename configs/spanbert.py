"""SpanBERT (Joshi et al. 2020): a BERT that predicts masked spans, also from the two tokens around each.

  t2t train --config spanbert_base --workdir gs://BUCKET/spanbert --config.data.vocabulary=gs://BUCKET/vocab.txt

The embedding has rows for BERT's cased vocabulary. 2.4 million steps of 256 sequences of 512 tokens, each a single
segment, as published. The second loss is a separate mean, `sbo_loss` in the metrics. Published, large: F1 of SQuAD 1.1
94.6 and 2.0 88.7.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def with_boundaries(config: ConfigDict) -> ConfigDict:
  """Adds SpanBERT's head, and the loss that trains it beside the tokens."""
  config.train.loss = "tokens_and_heads"
  # Maximum span length in tokens, as in the authors' command.
  config.model.heads = ({"name": "sbo", "kind": "boundary", "num_classes": 15},)
  return config


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.model.vocab_size = 29_056  # 28,996 rounded up to a multiple of 128 for the mesh
  config.data.mixture = "wikipedia_span_masked_lm_sbo"
  config.data.objective = "span_masked_lm_sbo"  # for the user's own files
  config.train.steps = 2_400_000
  config.optimizer.epsilon = 1e-8
  return with_boundaries(config)
