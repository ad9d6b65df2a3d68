"""What the gin files that come with T5X set, for configs that include them and stand elsewhere.

Only what a t2t config can say is here, and what tells which macros a file reads.
"""

import re
from typing import Any

from t2t.convert.gin.parser import Binding, Location, Macro, Reference
from t2t.models import sizes

REQUIRED = Macro("gin.REQUIRED")

_FAMILIES = {"t5_1_0": sizes.t5_1_0, "t5": sizes.t5_1_0, "t5_1_1": sizes.t5_1_1, "mt5": sizes.mt5, "byt5": sizes.byt5}
_SIZES = {"3B": "xl", "11B": "xxl"}
# t5x/examples/t5/t5_1_1/base.gin, and Flaxformer's flaxformer/t5x/configs/t5/models/t5_1_1_base.gin.
_MODEL = re.compile(
  r"(?:.*/)?(?:t5x/(?:examples/(?:t5|scalable_t5|gpu_t5)|contrib/gpu/t5)/(\w+)/|flaxformer/t5x/configs/t5/models/(\w+)_)"
  r"(tiny|small|base|large|xl|xxl|3B|11B)\.gin"
)
_RUN = re.compile(r"(?:.*/)?t5x/(?:contrib/gpu/t5/)?configs/runs/(\w+)\.gin")
_VOCABULARIES = {"mt5": "mc4.250000.100extra"}

# T5Config's parameters -> fields of `TransformerConfig`.
NETWORK = {
  "vocab_size": "vocab_size",
  "emb_dim": "embed_dim",
  "num_heads": "num_heads",
  "head_dim": "head_dim",
  "mlp_dim": "mlp_dim",
  "num_encoder_layers": "num_encoder_layers",
  "num_decoder_layers": "num_decoder_layers",
}
_TINY = dict(embed_dim=8, num_heads=4, head_dim=3, mlp_dim=16, num_encoder_layers=2, num_decoder_layers=2)


def _dataset(scope: str, **others: Any) -> dict[str, Any]:
  fields = dict(
    mixture_or_task_name=Macro("MIXTURE_OR_TASK_NAME"),
    task_feature_lengths=Macro("TASK_FEATURE_LENGTHS"),
    use_cached=Macro("USE_CACHED_TASKS"),
    module=Macro("MIXTURE_OR_TASK_MODULE"),
    pack=True,
  )
  return {f"{scope}/DatasetConfig.{name}": value for name, value in (fields | others).items()}


def _run(**others: Any) -> dict[str, Any]:
  """What pre-training and fine-tuning have in common."""
  macros = dict.fromkeys(("MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS", "TRAIN_STEPS", "MODEL_DIR"), REQUIRED)
  macros |= dict(USE_CACHED_TASKS=True, MIXTURE_OR_TASK_MODULE=None, USE_HARDWARE_RNG=False, RANDOM_SEED=None)
  return macros | {
    "train.model": Macro("MODEL"),
    "train.model_dir": Macro("MODEL_DIR"),
    "train.total_steps": Macro("TRAIN_STEPS"),
    "train.random_seed": Macro("RANDOM_SEED"),
    "train.use_hardware_rng": Macro("USE_HARDWARE_RNG"),
    "Trainer.num_microbatches": None,
    **others,
  }


_RUNS = {
  "pretrain": _run(SHUFFLE_TRAIN_EXAMPLES=True)
  | _dataset("train", split="train", batch_size=128, shuffle=Macro("SHUFFLE_TRAIN_EXAMPLES"))
  | _dataset("train_eval", split="validation", batch_size=128)
  | {
    "train.eval_steps": 20,
    "train.eval_period": 1_000,
    "RestoreCheckpointConfig.path": [],
    "SaveCheckpointConfig.period": 1_000,
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
    "train.eval_steps": Macro("EVAL_STEPS"),
    "train.eval_period": Macro("EVAL_PERIOD"),
    "Evaluator.num_examples": Macro("EVALUATOR_NUM_EXAMPLES"),
    "Evaluator.use_memory_cache": Macro("EVALUATOR_USE_MEMORY_CACHE"),
    "JSONLogger.write_n_results": Macro("JSON_WRITE_N_RESULTS"),
    "RestoreCheckpointConfig.path": Macro("INITIAL_CHECKPOINT_PATH"),
    "SaveCheckpointConfig.period": 5_000,
    "create_learning_rate_scheduler.factors": "constant",
    "create_learning_rate_scheduler.base_learning_rate": 0.001,
    "create_learning_rate_scheduler.warmup_steps": 1_000,
  },
}


def _model(family: str, size: str, *, scalable: bool) -> dict[str, Any]:
  fields = _FAMILIES[family](_SIZES.get(size, size) if size != "tiny" else "small")
  fields |= _TINY if size == "tiny" else {}
  found = dict(Z_LOSS=1e-4, LABEL_SMOOTHING=0.0, LOSS_NORMALIZING_FACTOR=None, DROPOUT_RATE=REQUIRED)
  found |= dict(VOCABULARY=Reference("seqio.SentencePieceVocabulary", True))
  if family == "byt5":
    found["VOCABULARY"] = Reference("seqio.ByteVocabulary", True)
  else:
    name = _VOCABULARIES.get(family, "cc_all.32000.100extra")
    found["SentencePieceVocabulary.sentencepiece_model_file"] = f"gs://t5-data/vocabs/{name}/sentencepiece.model"
  found |= {
    "OPTIMIZER": Reference("adafactor.Adafactor", True),
    "Adafactor.decay_rate": 0.8,
    "MODEL": Reference("models.EncoderDecoderModel", True),
    "EncoderDecoderModel.input_vocabulary": Macro("VOCABULARY"),
    "EncoderDecoderModel.output_vocabulary": Macro("VOCABULARY"),
    "EncoderDecoderModel.optimizer_def": Macro("OPTIMIZER"),
    "EncoderDecoderModel.z_loss": Macro("Z_LOSS"),
    "EncoderDecoderModel.label_smoothing": Macro("LABEL_SMOOTHING"),
    "EncoderDecoderModel.loss_normalizing_factor": Macro("LOSS_NORMALIZING_FACTOR"),
    "T5Config.dtype": "bfloat16",
    "T5Config.mlp_activations": ("gelu", "linear") if fields["mlp_activation"] == "gated_gelu" else ("relu",),
    "T5Config.dropout_rate": Macro("DROPOUT_RATE"),
    "T5Config.logits_via_embedding": fields["tied_logits"],
  }
  found |= {f"T5Config.{theirs}": fields[ours] for theirs, ours in NETWORK.items()}
  return found | ({"T5Config.remat_policy": "minimal"} if scalable else {})


def standard(path: str) -> list[Binding] | None:
  """The bindings of a file that comes with T5X, or None if `path` is none that is known."""
  model, run = _MODEL.fullmatch(path), _RUN.fullmatch(path)
  if model and (model[1] or model[2]) in _FAMILIES:
    found = _model(model[1] or model[2], model[3], scalable="scalable" in path)
  elif run and run[1] in _RUNS:
    found = _RUNS[run[1]]
  else:
    return None
  location = Location(f"{path} (as T5X has it)", 0)
  bindings = []
  for name, value in found.items():
    scope, _, selector = name.rpartition("/")
    function, _, parameter = selector.rpartition(".")
    bindings.append(Binding(scope, function, parameter, value, location))
  return bindings
