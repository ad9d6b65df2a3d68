"""MiniLM (Wang et al. 2020, 2021): a student that copies the self-attention of the teacher's last layer.

  t2t train --config minilm_v1 --workdir gs://BUCKET/minilm --config.data.vocabulary=gs://BUCKET/vocab.txt \
    --config.distillation.teacher=gs://BUCKET/bert_base

Six layers of width 384, 22 M parameters. `v1` copies the attention distributions and the relations of values. `v2`
copies the relations of queries, keys and values with 48 relation heads, so that the student may have another number of
heads. Batches, steps and rates are as published. It learns no prediction; fine-tune it afterwards.
"""

from ml_collections import ConfigDict

from t2t.configs import bert, distilbert

SIZES = ("v1", "v2")


def get_config(version: str = "v1") -> ConfigDict:
  """Returns the config for one of SIZES."""
  config = bert.get_config("base")
  config.stages = ()
  config.model.update(embed_dim=384, head_dim=32, mlp_dim=1_536, num_encoder_layers=6)
  config.train.steps = 400_000
  config.train.batch_size, config.optimizer.learning_rate = {"v1": (1_024, 5e-4), "v2": (256, 6e-4)}[version]
  config.optimizer.warmup_steps = 4_000
  terms = {
    "v1": dict(attention_weight=1.0, attention_loss="kl", relations=("value",)),
    "v2": dict(relations=("query", "key", "value"), relation_heads=48),
  }[version]
  return distilbert.with_terms(
    config, layers=("final",), soft_weight=0.0, hard_weight=0.0, relation_weight=1.0, **terms
  )
