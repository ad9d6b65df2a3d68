"""GPT (Radford et al. 2018): a post-norm causal language model with 512 tokens.

  t2t vocab train --type bpe --size 40478 --input 'text/*.txt' --output runs/pieces
  t2t train --config gpt1_base --workdir gs://BUCKET/gpt1 --config.data.vocabulary=runs/pieces/tokenizer.json

116.5 M parameters, 31 M of them rows for as many tokens as in the paper, whose vocabulary has no end of text. 64
sequences per step, rates and dropout as published. Its hundred passes over the 0.8 billion words of BooksCorpus are
about three million steps, here on C4. The paper fine-tunes with the language-model loss beside the head's, times 0.5:

  t2t train --config finetune --config.init.checkpoint=gs://BUCKET/gpt1 --config.data.files=reviews.tsv \\
    --config.data.labels=auto --config.train.loss=heads_and_lm --config.train.term_weights.lm=0.5 --workdir runs/reviews

Published: GLUE 72.8 in its own table and 75.1 on average in BERT's (Devlin et
al. 2019, table 1), RACE 59.0.
"""

from ml_collections import ConfigDict

from t2t.configs import gpt2
from t2t.models import presets

SIZES = ("base",)


def get_config(size: str = "base") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = gpt2.get_config("small")
  config.model.update(presets.gpt1(size))
  config.model.vocab_size = 40_576  # rounded up to a multiple of 128 for the mesh
  config.data.targets_length = 512
  config.train.steps = 3_000_000
  config.train.batch_size = 64
  config.optimizer.learning_rate = 2.5e-4
  config.optimizer.end_lr_fraction = 0.0
  config.optimizer.weight_decay = 0.01
  config.optimizer.b2 = 0.999
  return config
