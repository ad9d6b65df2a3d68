"""Tiny configs of every family, on English text that is already on this machine: documentation of Python and packages.

  t2t train --config tiny --workdir runs/tiny                # a T5 1.1: less than four minutes on two cores
  t2t train --config tiny_bert --workdir runs/tiny_bert      # the others: under two minutes each

The others, tiny_t5 included, share one shape and one recipe, so that families can be compared. `tiny` is the best known
recipe for four minutes; docs/first_minutes.md explains it.

Expect a held-out loss well below the unigram model's. Among the masked language models only tiny_modern_bert reaches
it, because learned positions take more steps to become useful.
"""

from ml_collections import ConfigDict

from t2t.configs import default, electra, simcse, spanbert
from t2t.models import presets

# name -> (fields of its family, objective, lengths of inputs and targets, whether to pack)
_FAMILIES = {
  None: (presets.t5_1_1("small"), "span_corruption", (64, 14), False),
  "t5": (presets.t5_1_1("small"), "span_corruption", (128, 34), False),
  "bert": (presets.bert("base"), "masked_lm", (128, 128), False),
  "roberta": (presets.roberta("base"), "masked_lm", (128, 128), False),
  "albert": (presets.albert("base"), "span_masked_lm", (128, 128), False),
  "electra": (presets.electra("base"), "masked_lm", (128, 128), False),
  "simcse": (presets.bert("base"), "same_text_twice", (64, 64), False),
  "spanbert": (presets.bert("base"), "span_masked_lm_sbo", (128, 128), False),
  "modern_bert": (presets.modern_bert("base"), "masked_lm", (128, 128), False),
  "gpt": (presets.gpt2("small"), "causal_lm", (128, 128), False),
  "llama": (presets.llama2("1b"), "causal_lm", (128, 128), False),
  "prefix_lm": (presets.prefix_lm("small"), "prefix_lm", (64, 64), True),
  "ul2": (presets.ul2("small"), "ul2", (128, 128), False),
  "bart": (presets.t5_1_1("small"), "bart", (128, 128), False),
  "modern_t5": (presets.modern_t5("small"), "span_corruption", (128, 34), False),
}
SIZES = tuple(_FAMILIES)


def get_config(family: str | None = None) -> ConfigDict:
  """Returns the config for one of SIZES."""
  fields, objective, lengths, pack = _FAMILIES[family]
  config = default.get_config()
  config.model.update(fields)
  config.model.update(
    vocab_size=4_224,  # 4,096 tokens and 100 sentinels, rounded up to a multiple of 128
    embed_dim=128,
    num_heads=4,
    head_dim=32,
    mlp_dim=512 if not config.model.mlp_activation.startswith("gated_") else 384,
    num_kv_heads=2 if config.model.num_kv_heads else 0,
    dropout_rate=0.0,  # because the text is read once
  )
  for stack in ("encoder", "decoder"):
    config.model[f"num_{stack}_layers"] = 3 if config.model[f"num_{stack}_layers"] else 0
  if config.model.embedding_dim:
    config.model.embedding_dim = 64
  if config.model.attention_window:
    config.model.attention_window = 16
  if config.model.positions == "rotary" and config.model.init_scale:
    config.model.init_scale = 0.1  # for a width of 128, as 0.02 for the published widths
  config.data.mixture = f"docs_{objective}"
  config.data.objective = objective  # for the user's own files
  config.data.task_modules = ("t2t.tasks.docs",)
  config.data.inputs_length, config.data.targets_length = lengths
  config.data.pack = pack
  config.data.num_streams = 2
  config.train.steps = 500
  config.train.batch_size = 16
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 0.05  # relative to each parameter's root mean square
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 0.1
  config.optimizer.clip_norm = 1.0
  config.eval.every = 250
  config.checkpoint.save_interval_steps = 250
  if family is None:
    _most_in_four_minutes(config)
  if family == "electra":
    electra.with_generator(config, embed_dim=64, num_heads=2, mlp_dim=256, num_layers=3)
  if family == "spanbert":
    spanbert.with_boundaries(config)
  if family == "simcse":
    simcse.with_pairs(config)
    config.model.dropout_rate = 0.1  # dropout makes the two vectors differ
    config.train.batch_size = 64
  return config


def _most_in_four_minutes(config: ConfigDict) -> None:
  """Sets a shallow, narrow model on short texts: cheaper steps allow more steps.

  Attention starts with a bias that training would need many steps to learn, so the decoder uses its encoder from the
  first step on.
  """
  config.model.update(num_encoder_layers=2, num_decoder_layers=2, mlp_dim=256)
  config.model.attention_init_bias = 6.0
  config.train.steps = 3_000
  config.train.log_every = 10  # writing each of these short steps would take a tenth of the time
  config.optimizer.name = "muon"
  config.optimizer.muon_iterations = 3
  config.optimizer.warmup_ratio = 1 / 60  # 50 steps
  config.eval.every = config.checkpoint.save_interval_steps = 750
