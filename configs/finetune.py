r"""Fine-tuning: generative models with task prefixes, as T5 (Raffel et al. 2020, section 3.1.2); encoders with heads.

  t2t train --config finetune --config.init.checkpoint=runs/tiny --config.data.files=train.tsv \
    --config.data.labels=auto --workdir runs/reviews
  t2t train --config finetune_superglue --config.init.checkpoint=gs://BUCKET/t5_1_1_base --workdir gs://BUCKET/superglue
  t2t train --config finetune_squad --config.init.checkpoint=runs/tiny --workdir runs/qa \
    --config.data.benchmark_dirs.squad=SQuAD
  t2t train --config finetune_docs_summary --config.init.checkpoint=runs/tiny --workdir runs/summary

Model and vocabulary come from the checkpoint, and the recipe depends on its architecture: Adafactor at a constant rate
with dropout; for an encoder alone AdamW over three epochs, 3e-5 after a warm-up over a tenth of the steps (Devlin et
al. 2019, appendix A.3, which tried 2e-5 to 5e-5). With --config.train.loss=heads generative models answer with heads,
too.

T5 took 2**18 steps of 128 sequences, and the best checkpoint on the validation set, evaluated every 5,000 steps; the
best by each metric is kept here as well. Published, T5 1.0 base (table 14): SuperGLUE 76.2, GLUE 82.7, SQuAD 85.44
exact match and 92.08 F1.

`finetune` alone is for a user's table (docs/finetune_table.md), which determines the lengths: at most ten passes with
an evaluation after each, and early stopping after three without improvement.

docs_summary, docs_match and docs_package are for tiny models, on English text that is already on this machine: minutes
on two cores. `python benchmarks/finetuning.py` compares them with the same model from scratch
(--config.init.parameters=False).
"""

from ml_collections import ConfigDict

from t2t.configs import default

# name -> (mixture, module that registers it, lengths of inputs and targets)
_MIXTURES = {
  "superglue": ("super_glue", "t2t.tasks.superglue", (512, 62)),
  "glue": ("glue_v002_proportional", "t2t.tasks.glue", (512, 84)),
  "babylm": ("babylm_glue", "t2t.tasks.babylm", (512, 16)),
  "squad": ("squad", "t2t.tasks.squad", (512, 62)),
  "squad_v2": ("squad_v2", "t2t.tasks.squad", (512, 62)),
  "ner": ("conll2003", "t2t.tasks.conll2003", (256, 128)),
  "pos": ("udpos", "t2t.tasks.udpos", (256, 128)),
  "hellaswag": ("hellaswag", "t2t.tasks.hellaswag", (512, 62)),
  "imdb": ("imdb_reviews", "t2t.tasks.text_classification", (512, 8)),
  "ag_news": ("ag_news_subset", "t2t.tasks.text_classification", (256, 8)),
  "cnn_dailymail": ("cnn_dailymail", "t2t.tasks.summarization", (512, 256)),
  "xsum": ("xsum", "t2t.tasks.summarization", (512, 128)),
  "wmt_en_de": ("wmt_en_de", "t2t.tasks.translation", (256, 256)),
  "wmt_en_fr": ("wmt_en_fr", "t2t.tasks.translation", (256, 256)),
  "wmt_en_ro": ("wmt_en_ro", "t2t.tasks.translation", (256, 256)),
  "docs_summary": ("docs_summary", "t2t.tasks.docs", (128, 48)),
  "docs_match": ("docs_match", "t2t.tasks.docs", (128, 4)),
  "docs_package": ("docs_package", "t2t.tasks.docs", (128, 8)),
}
SIZES = (None, *_MIXTURES)
_NARROW = 256  # maximum width of models with the rates of tiny models


def get_config(mixture: str | None = None) -> ConfigDict:
  """Returns the config for one of SIZES; None: for a user's table."""
  config = default.get_config()
  if mixture is None:
    return _of_table(config)
  config.model.dropout_rate = 0.1
  config.data.mixture, module, lengths = _MIXTURES[mixture]
  config.data.task_modules = (module,)
  config.data.inputs_length, config.data.targets_length = lengths
  config.train.steps = 2**18
  config.train.batch_size = 128
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = 0
  config.eval.every = 5_000
  config.eval.num_beams = 4 if mixture.startswith(("cnn", "xsum", "wmt")) else 1
  config.checkpoint.save_interval_steps = 5_000
  config.init.use_model_config = True
  if mixture.startswith("docs"):
    _small(config)
  return config


def _of_table(config: ConfigDict) -> ConfigDict:
  """Changes the defaults to the recipe for a table, which determines its lengths and metrics."""
  config.model.dropout_rate = 0.1
  config.data.mixture = ""
  config.data.inputs_length = config.data.targets_length = 0
  config.data.num_streams = 1  # a table may have fewer rows than streams
  config.train.epochs = 10.0
  config.train.batch_size = 16
  config.optimizer.learning_rate = 1e-3
  config.optimizer.schedule = "constant"
  config.optimizer.warmup_steps = 0
  config.eval.every = config.checkpoint.save_interval_steps = 0
  config.eval.patience = 3
  config.eval.early_stopping_metric = "table/score"
  config.init.use_model_config = True
  return config


def _for_table(config: ConfigDict) -> None:
  """Adapts the recipe for a table to the model's width and architecture."""
  if config.model.embed_dim <= _NARROW:
    config.train.batch_size = 8
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 0.02  # relative to each parameter's root mean square
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_ratio = 0.1
    config.optimizer.clip_norm = 1.0
  elif config.model.architecture != "encoder_decoder":
    _devlin(config)


def for_architecture(config: ConfigDict) -> None:
  """Adapts the recipe to an encoder alone (Devlin et al. 2019, appendix A.3), if the checkpoint is one.

  Three epochs with AdamW, 3e-5 after a warm-up over a tenth of the steps, then a linear decay to 0, 32 sequences per
  batch.
  """
  if not (config.data.inputs_length or config.data.mixture):
    _for_table(config)
    return
  if config.model.architecture != "encoder_only" or config.data.mixture.startswith("docs"):
    return
  config.train.epochs = 3.0
  config.train.batch_size = 32
  config.eval.every = 0
  config.checkpoint.save_interval_steps = 0
  _devlin(config)


def _devlin(config: ConfigDict) -> None:
  """Sets AdamW of Devlin et al. 2019: 3e-5 after a warm-up over a tenth of the steps, then a linear decay to 0."""
  config.train.z_loss = 0.0
  config.optimizer.name = "adamw"
  config.optimizer.scale_by_parameter = False
  config.optimizer.learning_rate = 3e-5
  config.optimizer.schedule = "linear"
  config.optimizer.warmup_ratio = 0.1
  config.optimizer.weight_decay = 0.01
  config.optimizer.epsilon = 1e-6
  config.optimizer.clip_norm = 1.0


def _small(config: ConfigDict) -> None:
  """Adapts the recipe to a tiny model: at most the steps of its pre-training, at a similar rate."""
  config.model.dropout_rate = 0.0
  config.data.num_streams = 2
  config.train.steps = 200
  config.train.batch_size = 16
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 0.05
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 0.1
  config.optimizer.clip_norm = 1.0
  config.eval.batch_size = 64
  config.eval.every = 50
  config.checkpoint.save_interval_steps = 50
