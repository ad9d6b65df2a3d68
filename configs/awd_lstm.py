"""AWD-LSTM (Merity et al. 2017) and the language model of ULMFiT (Howard & Ruder 2018), for words.

  t2t train --config awd_lstm_ulmfit --workdir runs/awd_lstm --config.data.mixture='' \
    --config.data.files=wikitext.txt --config.data.vocabulary=VOCABULARY

Sizes: ptb, wikitext2 and ulmfit, by vocabulary and dropout rates; with the published vocabularies 24 M, 34 M and 44 M
parameters. Each row of a batch continues the row before, so that the state of an LSTM goes on (truncated
back-propagation). Published perplexities: Penn Treebank 57.3, WikiText-2 65.8.

The weights are averaged from the evaluation at which the held-out loss has stopped to improve (NT-ASGD), and the
average is evaluated. The authors vary the rows' length at random; here rows have 70 tokens. For a vocabulary of bytes
give --config.data.vocabulary=bytes and --config.model.vocab_size=0.
"""

from ml_collections import ConfigDict

from t2t.configs import default
from t2t.contrib.recurrent import presets

SIZES = presets.AWD_LSTM_SIZES

_BATCH_SIZES = {"ptb": 20, "wikitext2": 80, "ulmfit": 64}


def get_config(size: str = "ulmfit") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = default.get_config()
  config.model.update(presets.awd_lstm(size))
  config.data.mixture = "wikipedia_causal_lm"
  config.data.objective = "causal_lm"  # for the user's own files
  config.data.task_modules = ("t2t.tasks.wikipedia",)
  config.data.continuous_rows = True
  config.data.targets_length = 70
  config.data.extra_ids = 0
  config.train.steps = 100_000
  config.train.batch_size = _BATCH_SIZES[size]
  config.train.z_loss = 0.0
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 30.0
  config.optimizer.schedule = "constant"
  config.optimizer.scale_by_parameter = False
  config.optimizer.weight_decay = 1.2e-6
  config.optimizer.average = "nt_asgd"
  config.eval.average = True
  config.optimizer.clip_norm = 0.25
  return config
