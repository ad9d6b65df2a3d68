"""TinyBERT (Jiao et al. 2020): a BERT of four narrow layers that copies a BERT base's layers, in two stages.

  t2t train --config tinybert_general --workdir gs://BUCKET/tinybert --config.data.vocabulary=gs://BUCKET/vocab.txt \
    --config.distillation.teacher=gs://BUCKET/bert_base
  t2t train --config tinybert_task --workdir gs://BUCKET/tinybert_glue \
    --config.init.checkpoint=gs://BUCKET/tinybert --config.distillation.teacher=gs://BUCKET/bert_base_glue

14.5 M parameters: 4 layers of width 312. `general` copies embeddings, every third layer's states, projected to the
teacher's width, and attention scores; it trains no prediction. `task` does the same with a teacher that was fine-tuned
on the task, and then learns soft targets of its heads. Published: GLUE 77.0, where BERT base has 79.5, with augmented
data, which this config does not make.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, distilbert, finetune

SIZES = ("general", "task")
_LAYERS = dict(hidden_weight=1.0, embedding_weight=1.0, attention_weight=1.0)


def get_config(stage: str = "general") -> ConfigDict:
  """Returns the config for one of SIZES."""
  if stage == "general":
    config = bert.get_config("base")
    config.stages = ()
    config.model.update(embed_dim=312, head_dim=26, mlp_dim=1_200, num_encoder_layers=4)
    config.data.inputs_length = 128
    config.train.steps = 400_000  # three passes over English Wikipedia and books
    config.train.batch_size = 256
    config.optimizer.warmup_ratio = 0.1
    return distilbert.with_terms(config, layers=("uniform",), soft_weight=0.0, hard_weight=0.0, **_LAYERS)
  config = finetune.get_config("glue")
  config.train.steps = 100_000
  config.train.batch_size = 32
  config.eval.every = config.checkpoint.save_interval_steps = 5_000
  of_adam = dict(name="adamw", learning_rate=5e-5, scale_by_parameter=False, weight_decay=0.01, epsilon=1e-6)
  config.optimizer.update(of_adam | dict(schedule="linear", warmup_ratio=0.1, clip_norm=1.0))
  config = distilbert.with_terms(
    config, temperature=1.0, layers=("uniform",), hard_weight=0.0, soft_weight=0.0, **_LAYERS
  )
  predictions = {f"distillation.{name}": 0.0 for name in _LAYERS} | {"distillation.soft_weight": 1.0}
  # Twenty passes for the layers, three for the predictions.
  config.stages = ({"name": "layers", "fraction": 0.87}, {"name": "predictions", **predictions})
  return config
