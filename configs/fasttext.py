"""fastText (Bojanowski et al. 2017): skip-gram whose words are sums of character n-grams, 300 dimensions.

  t2t vocab train --type word --input 'text/*.txt' --size 200000 --output words
  t2t train --config fasttext_skip_gram --workdir runs/fasttext --config.data.files='text/*.txt' \
    --config.data.vocabulary=words

As published: n-grams of 3 to 6 characters in 2,000,000 rows, and words with their own row; 5 negatives, and a threshold
of 1e-4 for frequent words. The vector of a word is the sum, as in the paper; the released code takes the mean. Unknown
words have vectors, too: `t2t neighbours --vectors runs/fasttext WORD`. Batches are a quarter of word2vec's.
"""

from ml_collections import ConfigDict

from t2t.configs import word2vec

SIZES = word2vec.SIZES


def get_config(size: str = "skip_gram") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = word2vec.get_config(size)
  config.model.update(embedding="subword", subword_buckets=2_000_000)
  config.data.subsampling = 1e-4
  config.train.batch_size = 16
  config.train.steps = 240_000
  return config
