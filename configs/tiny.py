"""Tiny configs of every family, on English text that is already on this machine: documentation of Python and packages.

  t2t train --config tiny --workdir runs/tiny                # a T5 1.1: less than four minutes on two cores
  t2t train --config tiny_bert --workdir runs/tiny_bert      # the others: under two minutes each

The others, tiny_t5 included, share one shape and one recipe, so that families can be compared. `tiny` is the best known
recipe for four minutes; docs/first_minutes.md explains it.

Expect a held-out loss well below the unigram model's. Among the masked language models only tiny_modern_bert reaches
it, because learned positions take more steps to become useful.
"""

from typing import Any

from ml_collections import ConfigDict

from t2t.configs import deberta_v3, default, electra, simcse, spanbert, word2vec
from t2t.models import bert_variants, diffusion_presets, presets
from t2t.runtime import lazy_table

_XLNET_MEMORY = {"memory_length": 384, "memory_reuse": 256}  # of configs/xlnet.py
# name -> (fields of its family, or their function in an optional package; objective, lengths of inputs and targets,
# whether to pack)
_FAMILIES: dict[str | None, tuple[Any, str, tuple[int, int], bool]] = {
  None: (presets.t5_1_1("small"), "span_corruption", (64, 14), False),
  "t5": (presets.t5_1_1("small"), "span_corruption", (128, 34), False),
  "bert": (presets.bert("base"), "masked_lm", (128, 128), False),
  "roberta": (presets.roberta("base"), "masked_lm", (128, 128), False),
  "albert": (presets.albert("base"), "span_masked_lm", (128, 128), False),
  "electra": (presets.electra("base"), "masked_lm", (128, 128), False),
  "simcse": (presets.bert("base"), "same_text_twice", (64, 64), False),
  "spanbert": (presets.bert("base"), "span_masked_lm_sbo", (128, 128), False),
  "modern_bert": (presets.modern_bert("base"), "masked_lm", (128, 128), False),
  "diffusion": (diffusion_presets.llada("8b"), "masked_diffusion", (128, 128), False),
  "block_diffusion": (diffusion_presets.llada("8b") | {"block_length": 4}, "masked_diffusion", (128, 128), False),
  "gpt": (presets.gpt2("small"), "causal_lm", (128, 128), False),
  "llama": (presets.llama2("1b"), "causal_lm", (128, 128), False),
  "prefix_lm": (presets.prefix_lm("small"), "prefix_lm", (64, 64), True),
  "ul2": (presets.ul2("small"), "ul2", (128, 128), False),
  "bart": (presets.t5_1_1("small"), "bart", (128, 128), False),
  "modern_t5": (presets.modern_t5("small"), "span_corruption", (128, 34), False),
  "transformer": (presets.transformer("base"), "prefix_lm", (64, 64), False),
  "universal": (presets.universal_transformer("adaptive_base"), "prefix_lm", (64, 64), False),
  "red_llm": (presets.red_llm("small"), "prefix_lm", (64, 64), False),
  "switch": (presets.switch("base_8") | {"moe_every": 3, "moe_first": 2}, "span_corruption", (128, 34), False),
  "mixtral": (presets.mixtral("8x7b"), "causal_lm", (128, 128), False),
  "qwen2": (presets.qwen2("1_5b"), "causal_lm", (128, 128), False),
  "transformer_xl": (presets.transformer_xl("enwik8_base"), "causal_lm", (64, 64), False),
  "deberta": (bert_variants.deberta("base"), "ngram_masked_lm", (128, 128), False),
  "deberta_v2": (bert_variants.deberta_v2("xlarge"), "ngram_masked_lm", (128, 128), False),
  "deberta_v3": (bert_variants.deberta_v3("base"), "masked_lm", (128, 128), False),
  "xlnet": (bert_variants.xlnet("base") | _XLNET_MEMORY, "overlapping_permuted_lm", (128, 128), False),
  "unilm": (presets.unilm("base"), "unilm", (128, 128), False),
  "longformer": (presets.longformer("base") | {"max_length": 512}, "masked_lm", (128, 128), False),
  "mobilebert": (bert_variants.mobilebert("base"), "masked_lm", (128, 128), False),
  "rembert": (bert_variants.rembert("base"), "masked_lm", (128, 128), False),
  "nezha": (bert_variants.nezha("base"), "whole_word_masked_lm", (128, 128), False),
  "skip_gram": (word2vec.fields(), "skip_gram", (128, 128), False),
  "cbow": (word2vec.fields(), "cbow", (128, 128), False),
  "lstm": ("t2t.contrib.recurrent.presets:tiny_lstm", "causal_lm", (64, 64), False),
  "elmo": ("t2t.contrib.recurrent.presets:tiny_elmo", "masked_lm", (128, 128), False),
  "qrnn": ("t2t.contrib.recurrent.presets:tiny_qrnn", "causal_lm", (64, 64), False),
  "skip_thought": ("t2t.contrib.recurrent.presets:skip_thought", "neighbouring_sentences", (64, 32), False),
  "sa_lstm": ("t2t.contrib.recurrent.presets:sa_lstm", "sequence_autoencoder", (64, 64), False),
  "cove": ("t2t.contrib.recurrent.presets:tiny_cove", "prefix_lm", (64, 64), False),
}
SIZES = tuple(_FAMILIES)
# Families that keep 0.02, with which the results in docs/ were measured.
_PUBLISHED_SCALE = ("bert", "roberta", "albert", "electra", "simcse", "spanbert", "gpt")
_SHALLOW = ("skip_thought", "sa_lstm", "cove")  # as deep as the published models
# Fields of the published size -> value here, in the families that have them.
_SHRUNK = {
  "embedding_dim": 64,
  "output_embedding_dim": 192,
  "bottleneck_dim": 64,
  "attention_window": 16,
  "memory_length": 96,
  "memory_reuse": 64,
  "moe_experts": 4,
  "recurrent_hidden": 256,
  "relative_position_buckets": 32,
}


def get_config(family: str | None = None) -> ConfigDict:
  """Returns the config for one of SIZES."""
  fields, objective, lengths, pack = _FAMILIES[family]
  fields = lazy_table.load(fields)() if isinstance(fields, str) else fields
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
  config.model.update({field: value for field, value in _SHRUNK.items() if config.model[field] > value})
  if config.model.output_embedding_dim and not config.model.logits_transform:  # the model's width
    config.model.output_embedding_dim = 128
  if family in _SHALLOW:
    config.model.update({f"num_{stack}_layers": fields[f"num_{stack}_layers"] for stack in ("encoder", "decoder")})
  if config.model.init_scale and family not in _PUBLISHED_SCALE:
    # For a width of 128, as 0.02 for the published widths; post-norm branches are not scaled by depth.
    config.model.init_scale = 0.05 if config.model.post_norm else 0.1
  config.data.mixture = f"docs_{objective}"
  config.data.objective = objective  # for the user's own files
  config.data.task_modules = ("t2t.tasks.docs",)
  config.data.inputs_length, config.data.targets_length = lengths
  config.data.pack = pack
  config.train.loss = {"masked_diffusion": "diffusion"}.get(objective, config.train.loss)
  config.train.loss = {"elmo": "bilm", "skip_thought": "skip_thought"}.get(str(family), config.train.loss)
  config.data.num_streams = 2
  config.train.steps = 500
  config.train.batch_size = 16
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 0.05  # relative to each parameter's root mean square
  config.optimizer.schedule = "cosine"
  config.optimizer.warmup_ratio = 0.1
  config.optimizer.clip_norm = 1.0
  if family == "transformer":
    config.optimizer.learning_rate = 0.02  # post-norm in two stacks diverges from 0.05
  config.eval.every = 250
  config.checkpoint.save_interval_steps = 250
  if family is None:
    _most_in_four_minutes(config)
  if config.model.memory_length or config.model.recurrent_carry:
    config.data.continuous_rows = True
    config.data.num_streams = 1
  if family == "deberta_v3":
    deberta_v3.with_generator(config)
  if family == "electra":
    electra.with_generator(config, embed_dim=64, num_heads=2, mlp_dim=256, num_layers=3)
  if family in word2vec.SIZES:
    _of_words(config, family)
  if family == "spanbert":
    spanbert.with_boundaries(config)
  if family == "simcse":
    simcse.with_pairs(config)
    config.model.dropout_rate = 0.1  # dropout makes the two vectors differ
    config.train.batch_size = 64
  return config


def _of_words(config: ConfigDict, family: str) -> None:
  """Sets word vectors of 128 dimensions; those of the documentation are of its vocabulary's pieces, without counts."""
  config.model.update(num_heads=1, head_dim=1, mlp_dim=1, num_encoder_layers=1, init_scale=0.004)
  word2vec.with_negatives(config, family)
  config.data.extra_ids = 100  # of the documentation's vocabulary
  config.optimizer.schedule = "cosine"
  config.optimizer.learning_rate = 0.003


def _most_in_four_minutes(config: ConfigDict) -> None:
  """Sets a shallow, narrow model on short texts: cheaper steps allow more steps.

  Attention starts with a bias that training would need many steps to learn, so the decoder uses its encoder from the
  first step on.
  """
  config.model.update(num_encoder_layers=2, num_decoder_layers=2, mlp_dim=256)
  config.model.attention_init_bias = 6.0
  config.data.vocabulary = "docs-16384"
  config.model.vocab_size = 16_512  # with 100 sentinels, rounded up as above
  config.train.batch_size = 32
  config.train.steps = 2_150
  config.train.log_every = 10  # writing each of these short steps would take a tenth of the time
  config.optimizer.name = "muon"
  config.optimizer.muon_iterations = 2
  config.optimizer.learning_rate = 0.04
  config.optimizer.param_groups = ("embed|projection: rate=2.5",)  # most rows have a gradient in few steps
  config.optimizer.warmup_ratio = 1 / 60  # 50 steps
  config.eval.every = config.checkpoint.save_interval_steps = 1_075
