r"""ULMFiT in three runs (Howard & Ruder 2018): a language model, on the task's text, then a classifier.

  t2t train --config ulmfit_general --workdir gs://BUCKET/general --config.data.vocabulary=gs://BUCKET/gpt2
  t2t train --config ulmfit_task --config.init.checkpoint=gs://BUCKET/general --workdir gs://BUCKET/reviews_lm \
    --config.data.files='reviews/*.txt' --config.train.steps=2000
  t2t train --config ulmfit_classifier --config.init.checkpoint=gs://BUCKET/reviews_lm --workdir gs://BUCKET/reviews \
    --config.data.files=reviews.tsv --config.data.labels=auto

The first run may be any other language model: every config with the objective causal_lm, a masked language model, or a
checkpoint of Hugging Face. The next runs take its model and vocabulary. The rules are the paper's:

- discriminative rates: each layer has the rate of the layer above divided by 2.6;
- slanted triangle: up in a tenth of the steps from 1/32 of the peak, then linearly down;
- concat pooling: the classifier reads the last state, and the maximum and the mean of all states;
- gradual unfreezing: the classifier trains alone for an epoch, then with the last layer, and one more layer each epoch.

`ulmfit_classifier` has three epochs more than the model has layers; the run refuses too few for all layers. The peaks
are not the paper's, which are of an LSTM (0.004 and 0.01), but starting values for Transformers, not measured here. The
paper's language model is an AWD-LSTM of WikiText-103, read in two directions. Published, error in percent: IMDb 4.6,
TREC-6 3.6, AG 5.01, DBpedia 0.80, Yelp full 29.98.
"""

from ml_collections import ConfigDict

from t2t.configs import dapt, finetune, gpt2

SIZES = ("general", "task", "classifier")
_NARROW = 256  # maximum width of models with the rates of tiny models


def get_config(size: str) -> ConfigDict:
  """Returns the config for one of SIZES."""
  if size == "general":
    config = gpt2.get_config("small")
    config.data.mixture, config.data.task_modules = "wikipedia_causal_lm", ("t2t.tasks.wikipedia",)
    return config
  if size == "task":
    config = dapt.get_config("task")
    config.data.repeat_warning_epochs = 0.0
  else:
    config = finetune.get_config()
    config.train.loss = "heads"
    config.train.head_reads = "concat"
    config.eval.patience = 0  # layers that are still frozen may improve the score
  config.train.batch_size = 64
  config.optimizer.name = "adamw"
  config.optimizer.b1, config.optimizer.b2 = 0.7, 0.99
  config.optimizer.schedule = "slanted_triangle"
  config.optimizer.warmup_fraction, config.optimizer.init_lr_divisor = 0.1, 32.0
  config.optimizer.warmup_steps, config.optimizer.warmup_ratio = 0, 0.0
  config.optimizer.weight_decay, config.optimizer.scale_by_parameter = 0.0, False
  config.optimizer.clip_norm = 1.0
  config.optimizer.param_groups = (".: depth=0.3846",)  # 1 / 2.6
  return config


def for_architecture(config: ConfigDict) -> None:
  """Sets the objective of the checkpoint's kind of model, its rate, and the epochs of gradual unfreezing."""
  layers = max(config.model.num_encoder_layers, config.model.num_decoder_layers)
  config.optimizer.learning_rate = 1e-3 if config.model.embed_dim <= _NARROW else 2e-4
  if config.train.loss != "heads":
    dapt.for_architecture(config)
    return
  # Heads, each layer, and the embeddings; and two epochs with all parameters.
  config.train.epochs = layers + 3.0
  config.optimizer.param_groups = (".: depth=0.3846 unfreeze_every=epoch",)
