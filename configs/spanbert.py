"""SpanBERT (Joshi et al. 2020): a BERT that predicts masked spans, also from the two tokens beside each.

  t2t train --config spanbert_base --workdir gs://BUCKET/spanbert --config.data.vocabulary=gs://BUCKET/vocab.txt

Rows are for BERT's cased vocabulary.  2.4 million steps of 256 sequences of 512 tokens, each one segment of text, as
published; the second loss is a mean of its own, `sbo_loss` in the metrics.  Published, large: F1 of SQuAD 1.1 94.6 and
2.0 88.7.
"""

from ml_collections import ConfigDict

from t2t.configs import bert

SIZES = bert.SIZES


def with_boundaries(config: ConfigDict) -> ConfigDict:
  """The config with SpanBERT's head and the loss that learns it beside the tokens."""
  config.train.loss = "tokens_and_heads"
  # Of each span so many tokens, as in the command of the authors.
  config.model.heads = ({"name": "sbo", "kind": "boundary", "num_classes": 15},)
  return config


def get_config(size: str = "base") -> ConfigDict:
  """The recipe for one of SIZES."""
  config = bert.get_config(size)
  config.stages = ()
  config.model.vocab_size = 29_056  # 28,996 up to a multiple of 128, for the mesh to divide
  config.data.mixture = "wikipedia_span_masked_lm_sbo"
  config.data.objective = "span_masked_lm_sbo"  # of files of one's own
  config.train.steps = 2_400_000
  config.optimizer.epsilon = 1e-8
  return with_boundaries(config)
