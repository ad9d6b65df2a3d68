"""Settings of the gin files that come with T5X and Flaxformer, for configs that include them without an installation.

Contains only settings with a t2t config key, and the macros that a file reads.
"""

import re
from typing import Any

from t2t.convert.gin.parser import Binding, Location, Macro, Reference
from t2t.models import presets

REQUIRED = Macro("gin.REQUIRED")

_FAMILIES = {
  "t5_1_0": presets.t5_1_0,
  "t5": presets.t5_1_0,
  "t5_1_1": presets.t5_1_1,
  "mt5": presets.mt5,
  "byt5": presets.byt5,
}
_SIZES = {"3B": "xl", "11B": "xxl"}
_MODEL = re.compile(
  r"(?:.*/)?t5x/(?:examples/(?:t5|scalable_t5|gpu_t5)|contrib/gpu/t5)/(\w+)/(tiny|small|base|large|xl|xxl|3B|11B)\.gin"
)
# Flaxformer has the sizes of a model in macros, which its architectures read.
_FLAXFORMER_MODEL = re.compile(
  r"(?:.*/)?flaxformer/t5x/configs/t5/models/(t5|t5_1_1|mt5|byt5)_(small|base|large|xl|xxl|3B|11B)\.gin"
)
_ARCHITECTURE = re.compile(r"(?:.*/)?flaxformer/t5x/configs/t5/architectures/t5_(1_1_)?flaxformer\.gin")
_ADAMW = re.compile(r"(?:.*/)?t5x/(?:examples/(?:t5|gpu_t5)|contrib/gpu/t5)/t5_1_1/adamw_opt\.gin")
_RUN = re.compile(r"(?:.*/)?t5x/(contrib/gpu/t5/)?configs/runs/(\w+)\.gin")
_VOCABULARIES = {"mt5": "mc4.250000.100extra"}

# T5Config's parameter -> field of `TransformerConfig`.
NETWORK = {
  "vocab_size": "vocab_size",
  "emb_dim": "embed_dim",
  "num_heads": "num_heads",
  "head_dim": "head_dim",
  "mlp_dim": "mlp_dim",
  "num_encoder_layers": "num_encoder_layers",
  "num_decoder_layers": "num_decoder_layers",
}
# Flaxformer's parameter -> field of `TransformerConfig`.
FLAXFORMER = {
  "Embed.num_embeddings": "vocab_size",
  "Embed.features": "embed_dim",
  "MultiHeadDotProductAttention.num_heads": "num_heads",
  "MultiHeadDotProductAttention.head_dim": "head_dim",
  "MlpBlock.intermediate_dim": "mlp_dim",
  "Encoder.num_layers": "num_encoder_layers",
  "Decoder.num_layers": "num_decoder_layers",
  "EncoderDecoder.dtype": "dtype",
  "dropout_factory/Dropout.rate": "dropout_rate",
}
# Field of `TransformerConfig` -> Flaxformer's macro.
_MACROS = {
  "vocab_size": "NUM_EMBEDDINGS",
  "embed_dim": "EMBED_DIM",
  "num_heads": "NUM_HEADS",
  "head_dim": "HEAD_DIM",
  "mlp_dim": "MLP_DIM",
  "num_encoder_layers": "NUM_ENCODER_LAYERS",
  "num_decoder_layers": "NUM_DECODER_LAYERS",
}
_TINY = dict(embed_dim=8, num_heads=4, head_dim=3, mlp_dim=16, num_encoder_layers=2, num_decoder_layers=2)


def _dataset(scope: str, **overrides: Any) -> dict[str, Any]:
  fields = dict(
    mixture_or_task_name=Macro("MIXTURE_OR_TASK_NAME"),
    task_feature_lengths=Macro("TASK_FEATURE_LENGTHS"),
    use_cached=Macro("USE_CACHED_TASKS"),
    module=Macro("MIXTURE_OR_TASK_MODULE"),
    pack=True,
  )
  return {f"{scope}/DatasetConfig.{name}": value for name, value in (fields | overrides).items()}


def _run(**overrides: Any) -> dict[str, Any]:
  """Returns the common settings of pre-training and fine-tuning."""
  macros = dict.fromkeys(("MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "MODEL_DIR"), REQUIRED)
  macros |= dict(USE_CACHED_TASKS=True, MIXTURE_OR_TASK_MODULE=None, USE_HARDWARE_RNG=False, RANDOM_SEED=None)
  return macros | {
    "train.model": Macro("MODEL"),
    "train.model_dir": Macro("MODEL_DIR"),
    "train.total_steps": Macro("TRAIN_STEPS"),
    "train.random_seed": Macro("RANDOM_SEED"),
    "train.use_hardware_rng": Macro("USE_HARDWARE_RNG"),
    "Trainer.num_microbatches": None,
    **overrides,
  }


def _asked(function: str, *, output: str, **overrides: Any) -> dict[str, Any]:
  """Returns the common settings of evaluation and inference: one data set, without a scope, and one checkpoint."""
  macros = dict.fromkeys(("MIXTURE_OR_TASK_NAME", "CHECKPOINT_PATH", output), REQUIRED)
  macros |= dict(MIXTURE_OR_TASK_MODULE=None, MIXTURE_OR_TASK_SPLIT="test")
  dataset = {
    "mixture_or_task_name": Macro("MIXTURE_OR_TASK_NAME"),
    "task_feature_lengths": Macro("TASK_FEATURE_LENGTHS"),
    "split": Macro("MIXTURE_OR_TASK_SPLIT"),
    "batch_size": 32,
    "module": Macro("MIXTURE_OR_TASK_MODULE"),
  }
  return (
    macros
    | {f"DatasetConfig.{name}": value for name, value in dataset.items()}
    | {
      f"{function}.model": Macro("MODEL"),
      f"{function}.output_dir": Macro(output),
      "RestoreCheckpointConfig.path": Macro("CHECKPOINT_PATH"),
      "RestoreCheckpointConfig.mode": "specific",
    }
    | overrides
  )


_RUNS = {
  "pretrain": _run(SHUFFLE_TRAIN_EXAMPLES=True)
  | _dataset("train", split="train", batch_size=128, shuffle=Macro("SHUFFLE_TRAIN_EXAMPLES"))
  | _dataset("train_eval", split="validation", batch_size=128)
  | {
    "train.eval_steps": 20,
    "train.eval_period": 1_000,
    "RestoreCheckpointConfig.path": [],
    "SaveCheckpointConfig.period": 1_000,
    "SaveCheckpointConfig.keep": None,
    "create_learning_rate_scheduler.factors": "constant * rsqrt_decay",
    "create_learning_rate_scheduler.base_learning_rate": 1.0,
    "create_learning_rate_scheduler.warmup_steps": 10_000,
  },
  "finetune": _run(
    INITIAL_CHECKPOINT_PATH=REQUIRED,
    DROPOUT_RATE=0.1,
    BATCH_SIZE=128,
    EVAL_STEPS=20,
    EVAL_PERIOD=1_000,
    EVALUATOR_USE_MEMORY_CACHE=True,
    EVALUATOR_NUM_EXAMPLES=None,
    JSON_WRITE_N_RESULTS=None,
  )
  | _dataset("train", split="train", batch_size=Macro("BATCH_SIZE"))
  | _dataset("train_eval", split="validation", batch_size=Macro("BATCH_SIZE"))
  | _dataset("infer_eval", split="validation", batch_size=Macro("BATCH_SIZE"), task_feature_lengths=None, pack=False)
  | {
    "train.infer_eval_dataset_cfg": Reference("infer_eval/utils.DatasetConfig", True),
    "train.eval_steps": Macro("EVAL_STEPS"),
    "train.eval_period": Macro("EVAL_PERIOD"),
    "Evaluator.num_examples": Macro("EVALUATOR_NUM_EXAMPLES"),
    "Evaluator.use_memory_cache": Macro("EVALUATOR_USE_MEMORY_CACHE"),
    "JSONLogger.write_n_results": Macro("JSON_WRITE_N_RESULTS"),
    "RestoreCheckpointConfig.path": Macro("INITIAL_CHECKPOINT_PATH"),
    "SaveCheckpointConfig.period": 5_000,
    "SaveCheckpointConfig.keep": None,
    "create_learning_rate_scheduler.factors": "constant",
    "create_learning_rate_scheduler.base_learning_rate": 0.001,
    "create_learning_rate_scheduler.warmup_steps": 1_000,
  },
  "eval": _asked("evaluate", output="EVAL_OUTPUT_DIR", TASK_FEATURE_LENGTHS=None)
  | {"Evaluator.num_examples": None, "Evaluator.use_memory_cache": True},
  "infer": _asked("infer", output="INFER_OUTPUT_DIR", TASK_FEATURE_LENGTHS=REQUIRED)
  | {"infer.mode": "predict", "infer.shard_id": 0, "infer.num_shards": 1},
  "infer_from_tfexample_file": _asked("infer", output="INFER_OUTPUT_DIR", FEATURE_LENGTHS=REQUIRED)
  | dict.fromkeys(("TF_EXAMPLE_FILE_PATHS", "TF_EXAMPLE_FILE_TYPE"), REQUIRED)
  | {
    "DatasetConfig.mixture_or_task_name": Reference("create_task_from_tfexample_file", True),
    "DatasetConfig.task_feature_lengths": Macro("FEATURE_LENGTHS"),
    "DatasetConfig.split": "infer",
    "create_task_from_tfexample_file.paths": Macro("TF_EXAMPLE_FILE_PATHS"),
    "create_task_from_tfexample_file.file_type": Macro("TF_EXAMPLE_FILE_TYPE"),
    "infer.mode": "predict",
    "infer.shard_id": 0,
    "infer.num_shards": 1,
  },
}
# NVIDIA's GPU recipes do not pack.
_ON_GPUS = {
  "pretrain": dict(BATCH_SIZE=128)
  | {
    f"{scope}/DatasetConfig.{name}": value
    for scope in ("train", "train_eval")
    for name, value in (("batch_size", Macro("BATCH_SIZE")), ("pack", False))
  },
  "finetune": {f"{scope}/DatasetConfig.pack": False for scope in ("train", "train_eval")},
}
_RUNS["pretrain"] |= {"train.infer_eval_dataset_cfg": None}


def _encoder_decoder(family: str) -> dict[str, Any]:
  """Returns the common settings of T5X's and Flaxformer's models: loss, vocabulary, optimizer."""
  bindings = dict(Z_LOSS=1e-4, LABEL_SMOOTHING=0.0, LOSS_NORMALIZING_FACTOR=None)
  bindings |= dict(VOCABULARY=Reference("seqio.SentencePieceVocabulary", True))
  if family == "byt5":
    bindings["VOCABULARY"] = Reference("seqio.ByteVocabulary", True)
  else:
    name = _VOCABULARIES.get(family, "cc_all.32000.100extra")
    bindings["SentencePieceVocabulary.sentencepiece_model_file"] = f"gs://t5-data/vocabs/{name}/sentencepiece.model"
  return bindings | {
    "OPTIMIZER": Reference("adafactor.Adafactor", True),
    "Adafactor.decay_rate": 0.8,
    "MODEL": Reference("models.EncoderDecoderModel", True),
    "EncoderDecoderModel.input_vocabulary": Macro("VOCABULARY"),
    "EncoderDecoderModel.output_vocabulary": Macro("VOCABULARY"),
    "EncoderDecoderModel.optimizer_def": Macro("OPTIMIZER"),
    "EncoderDecoderModel.z_loss": Macro("Z_LOSS"),
    "EncoderDecoderModel.label_smoothing": Macro("LABEL_SMOOTHING"),
    "EncoderDecoderModel.loss_normalizing_factor": Macro("LOSS_NORMALIZING_FACTOR"),
  }


def _shape(family: str, size: str) -> dict[str, Any]:
  fields = _FAMILIES[family](_SIZES.get(size, size) if size != "tiny" else "small")
  return fields | (_TINY if size == "tiny" else {})


def _activations(gated: bool) -> tuple[str, ...]:
  return ("gelu", "linear") if gated else ("relu",)


def _model(family: str, size: str, *, scalable: bool) -> dict[str, Any]:
  fields = _shape(family, size)
  bindings = _encoder_decoder(family) | {
    "DROPOUT_RATE": REQUIRED,
    "T5Config.dtype": "bfloat16",
    "T5Config.mlp_activations": _activations(fields["mlp_activation"] == "gated_gelu"),
    "T5Config.dropout_rate": Macro("DROPOUT_RATE"),
    "T5Config.logits_via_embedding": fields["tied_logits"],
  }
  bindings |= {f"T5Config.{theirs}": fields[ours] for theirs, ours in NETWORK.items()}
  return bindings | ({"T5Config.remat_policy": "minimal"} if scalable else {})


def _architecture(*, gated: bool) -> dict[str, Any]:
  """Returns the settings of Flaxformer's T5: its files read all sizes from macros."""
  bindings = dict.fromkeys(_MACROS.values(), REQUIRED)
  bindings |= dict(ACTIVATION_DTYPE="bfloat16", DROPOUT_RATE=0.0, ACTIVATION_PARTITIONING_DIMS=1)
  macros = _MACROS | {"dtype": "ACTIVATION_DTYPE", "dropout_rate": "DROPOUT_RATE"}
  bindings |= {theirs: Macro(macros[ours]) for theirs, ours in FLAXFORMER.items()}
  return bindings | {
    "ARCHITECTURE": Reference("t5_architecture.EncoderDecoder", True),
    "EncoderLayer.activation_partitioning_dims": Macro("ACTIVATION_PARTITIONING_DIMS"),
    "MlpBlock.activations": _activations(gated),
    "Decoder.output_logits_factory": Reference("output_logits/dense.DenseGeneral") if gated else None,
  }


def _flaxformer_model(family: str, size: str) -> dict[str, Any]:
  fields = _shape(family, size)
  bindings = _architecture(gated=fields["mlp_activation"] == "gated_gelu") | _encoder_decoder(family)
  bindings |= {macro: fields[ours] for ours, macro in _MACROS.items()}
  return bindings | {"EncoderDecoderModel.module": Macro("ARCHITECTURE")}


_ADAMW_CHAIN = {
  "OPTIMIZER": Reference("optimizers.chain", True),
  "chain.transformations": [Reference("optax.clip_by_global_norm", True), Reference("optax.adamw", True)],
  "clip_by_global_norm.max_norm": 1.0,
  "adamw.learning_rate": 1e-4,
  "adamw.weight_decay": 0.01,
  "T5Config.scale_attn_logits": True,
}


def _bound(path: str) -> dict[str, Any] | None:
  """Returns the bindings of a file of T5X or Flaxformer; None if it is unknown."""
  if (model := _MODEL.fullmatch(path)) and model[1] in _FAMILIES:
    return _model(model[1], model[2], scalable="scalable" in path)
  if model := _FLAXFORMER_MODEL.fullmatch(path):
    return _flaxformer_model(model[1], model[2])
  if architecture := _ARCHITECTURE.fullmatch(path):
    return _architecture(gated=bool(architecture[1]))
  if (run := _RUN.fullmatch(path)) and run[2] in _RUNS:
    return _RUNS[run[2]] | (_ON_GPUS.get(run[2], {}) if run[1] else {})
  return _ADAMW_CHAIN if _ADAMW.fullmatch(path) else None


def standard(path: str) -> list[Binding] | None:
  """Returns the bindings of the T5X or Flaxformer file at `path`; None if it is unknown."""
  values = _bound(path)
  if values is None:
    return None
  location = Location(f"{path} (T5X's copy)", 0)
  bindings = []
  for name, value in values.items():
    scope, _, selector = name.rpartition("/")
    function, _, parameter = selector.rpartition(".")
    bindings.append(Binding(scope, function, parameter, value, location))
  return bindings
