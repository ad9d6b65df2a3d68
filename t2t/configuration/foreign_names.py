"""Translates names of settings and options of Hugging Face, T5X and MaxText to names of t2t."""

from collections.abc import Callable, Iterable, Sequence
import functools
import inspect
import re
from typing import Any, TypeVar

from t2t import UserError, did_you_mean

_Door = TypeVar("_Door", bound=Callable[..., Any])

_HUGGING_FACE = {
  "lr": "optimizer.learning_rate",
  "num_train_epochs": "train.epochs",
  "num_epochs": "train.epochs",
  "max_steps": "train.steps",
  "max_train_steps": "train.steps",
  "num_steps": "train.steps",
  "per_device_train_batch_size": "train.batch_size, over all devices",
  "train_batch_size": "train.batch_size, over all devices",
  "per_device_eval_batch_size": "eval.batch_size, over all devices",
  "eval_batch_size": "eval.batch_size, over all devices",
  "gradient_accumulation_steps": "train.microbatches, the number of parts of train.batch_size",
  "num_warmup_steps": "optimizer.warmup_steps",
  "adam_beta1": "optimizer.b1",
  "adam_beta2": "optimizer.b2",
  "adam_epsilon": "optimizer.epsilon",
  "max_grad_norm": "optimizer.clip_norm",
  "lr_scheduler_type": "optimizer.schedule",
  "lr_scheduler": "optimizer.schedule",
  "optim": "optimizer.name",
  "label_smoothing_factor": "train.label_smoothing",
  "eval_steps": "eval.every",
  "eval_strategy": "eval.every, in steps; 0: once an epoch",
  "evaluation_strategy": "eval.every, in steps; 0: once an epoch",
  "save_steps": "checkpoint.save_interval_steps",
  "save_strategy": "checkpoint.save_interval_steps, in steps; 0: once an epoch",
  "logging_steps": "train.log_every",
  "save_total_limit": "checkpoint.max_to_keep",
  "output_dir": "--workdir",
  "bf16": "model.dtype=bfloat16",
  "fp16": "model.dtype=bfloat16",
  "max_seq_length": "data.inputs_length",
  "max_source_length": "data.inputs_length",
  "max_length": "data.inputs_length, or model.max_length of learned positions",
  "seq_length": "data.inputs_length",
  "block_size": "data.inputs_length",
  "model_name_or_path": "init.checkpoint, with init.use_model_config=True",
  "train_file": "data.files",
  "validation_file": "data.eval_files",
  "dataset_name": "data.mixture, or data.files",
  "tokenizer_name": "data.vocabulary",
  "gradient_checkpointing": "model.remat",
  "early_stopping_patience": "eval.patience",
  "metric_for_best_model": "eval.early_stopping_metric",
  "report_to": "logging.tracker",
  "mlm_probability": "data.noise_density",
  "generation_num_beams": "eval.num_beams",
  "resume_from_checkpoint": "--workdir; repeat the command with the same workdir to resume",
  "hidden_size": "model.embed_dim",
  "d_model": "model.embed_dim",
  "n_embd": "model.embed_dim",
  "num_hidden_layers": "model.num_encoder_layers, model.num_decoder_layers",
  "num_layers": "model.num_encoder_layers, model.num_decoder_layers",
  "n_layer": "model.num_decoder_layers",
  "num_attention_heads": "model.num_heads",
  "n_head": "model.num_heads",
  "num_key_value_heads": "model.num_kv_heads",
  "intermediate_size": "model.mlp_dim",
  "d_ff": "model.mlp_dim",
  "d_kv": "model.head_dim",
  "hidden_dropout_prob": "model.dropout_rate",
  "max_position_embeddings": "model.max_length",
  "lora_r": "lora.rank",
  "lora_alpha": "lora.alpha",
  "target_modules": "lora.targets",
}
_T5X = {
  "TRAIN_STEPS": "train.steps",
  "total_steps": "train.steps",
  "BATCH_SIZE": "train.batch_size",
  "TASK_FEATURE_LENGTHS": "data.inputs_length, data.targets_length",
  "MIXTURE_OR_TASK_NAME": "data.mixture",
  "MIXTURE_OR_TASK_MODULE": "data.task_modules",
  "MODEL_DIR": "--workdir",
  "INITIAL_CHECKPOINT_PATH": "init.checkpoint",
  "DROPOUT_RATE": "model.dropout_rate",
  "LABEL_SMOOTHING": "train.label_smoothing",
  "Z_LOSS": "train.z_loss",
  "EVAL_PERIOD": "eval.every",
  "eval_period": "eval.every",
  "EVAL_STEPS": "eval.batches",
  "BEAM_SIZE": "eval.num_beams",
  "USE_CACHED_TASKS": "data.cache_dir",
  "random_seed": "train.seed",
  "num_microbatches": "train.microbatches",
  "base_learning_rate": "optimizer.learning_rate",
  "emb_dim": "model.embed_dim",
  "assignment_map": "init.rename=THEIRS=OURS; init.reinit for fresh parameters",
}
_MAXTEXT = {
  "per_device_batch_size": "train.batch_size, over all devices",
  "global_batch_size_to_train_on": "train.batch_size",
  "max_target_length": "data.targets_length",
  "warmup_steps_fraction": "optimizer.warmup_ratio",
  "cosine_learning_rate_final_fraction": "optimizer.end_lr_fraction",
  "learning_rate_final_fraction": "optimizer.end_lr_fraction",
  "checkpoint_period": "checkpoint.save_interval_steps",
  "eval_interval": "eval.every",
  "log_period": "train.log_every",
  "base_output_directory": "--workdir",
  "run_name": "--workdir",
  "base_emb_dim": "model.embed_dim",
  "base_num_query_heads": "model.num_heads",
  "base_num_kv_heads": "model.num_kv_heads",
  "base_mlp_dim": "model.mlp_dim",
  "base_num_decoder_layers": "model.num_decoder_layers",
  "load_parameters_path": "init.checkpoint",
  "opt_type": "optimizer.name",
  "adam_b1": "optimizer.b1",
  "adam_b2": "optimizer.b2",
  "adam_eps": "optimizer.epsilon",
  "adam_weight_decay": "optimizer.weight_decay",
  "gradient_clipping_threshold": "optimizer.clip_norm",
  "remat_policy": "model.remat",
  "ici_data_parallelism": "mesh.data",
  "ici_fsdp_parallelism": "mesh.fsdp",
  "ici_tensor_parallelism": "mesh.tensor",
  "ici_expert_parallelism": "mesh.expert",
  "ici_sequence_parallelism": "mesh.sequence",
  "ici_pipeline_parallelism": "mesh.stage",
  "num_pipeline_microbatches": "model.pipeline_microbatches",
  "num_pipeline_repeats": "model.pipeline_rounds",
  "dcn_data_parallelism": "mesh.dcn_data",
  "dataset_path": "data.files",
  "tokenizer_path": "data.vocabulary",
  "packing": "data.pack",
}
_NAMES = {"Hugging Face": _HUGGING_FACE, "T5X": _T5X, "MaxText": _MAXTEXT}
# Options of commands and functions: foreign name -> names here, of which the first existing option is used.
_OPTIONS = {
  "Hugging Face": {
    "num_beams": ("beam",),
    "max_new_tokens": ("max_length",),
    "min_new_tokens": ("min_length",),
    "do_sample": ("temperature",),
    "top_k": ("top",),
    "model": ("checkpoint",),
    "model_name_or_path": ("checkpoint",),
    "pretrained_model_name_or_path": ("checkpoint",),
    "tokenizer": ("vocabulary",),
    "max_length": ("inputs_length",),
    "model_max_length": ("inputs_length",),
    "max_seq_length": ("inputs_length",),
    "max_source_length": ("inputs_length",),
    "max_target_length": ("max_length",),
    "per_device_eval_batch_size": ("batch_size",),
    "eval_batch_size": ("batch_size",),
    "train_dataset": ("examples",),
    "eval_dataset": ("eval_examples",),
    "output_dir": ("workdir", "output"),
    "args": ("config",),
  },
  "vLLM": {"max_tokens": ("max_length",), "min_tokens": ("min_length",), "tensor_parallel_size": ("tensor",)},
  "T5X": {"beam_size": ("beam",)},
}


def translated(name: str) -> str:
  """Returns the end of an error that translates a name of another framework; "" for an unknown name.

  In:  "adam_beta1"
  Out: "; Hugging Face's adam_beta1 is config.optimizer.b1"
  """
  name = name.rpartition(".")[2].replace("-", "_")
  for framework, names in _NAMES.items():
    if (key := names.get(name)) is not None:
      return f"; {framework}'s {name} is {'' if key.startswith('--') else 'config.'}{key}"
  return ""


def translated_option(name: str, known: Iterable[str], *, dashes: str = "") -> str:
  """Returns the end of an error that translates an option of another framework; "" for an unknown name.

  In:  "num_beams", the options of `t2t infer`, dashes="--"
  Out: "; Hugging Face's num_beams is --beam"

  Args:
    name: the unknown option.
    known: names of the options of the command or function.
    dashes: prefix of an option's name.
  """
  name, known = name.lstrip("-").replace("-", "_"), set(known)
  for framework, names in _OPTIONS.items():
    if here := next((option for option in names.get(name, ()) if option in known), ""):
      return f"; {framework}'s {name} is {dashes}{here}"
  return ""


def translating(function: _Door) -> _Door:
  """Wraps a function to raise UserError for unknown options, with t2t's name of a foreign option."""
  kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
  known = [parameter.name for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds]
  known = [name for name in known if name != "self"]

  @functools.wraps(function)
  def call(*args, **options):
    for name in options:
      if name not in known:
        near = translated_option(name, known) or did_you_mean(name, known)
        near += "" if near.endswith("?") else "."
        raise UserError(f"{name}: {function.__name__} has no such option{near} Accepted options: {', '.join(known)}")
    return function(*args, **options)

  return call  # type: ignore[return-value]


def t5x_pairs(value: Sequence[object]) -> list[str]:
  """Converts pairs of T5X's `assignment_map` to options; a pair is (pattern, path in the checkpoint or None: fresh).

  In:  ((r"^.*decoder.*$", None), ("encoder", "body"))
  Out: ["--config.init.reinit=decoder", "--config.init.rename=body=encoder"]
  """
  entries: Sequence[Any] = value
  value = [(entry.removesuffix("=None"), None) if str(entry).endswith("=None") else entry for entry in entries]
  pairs: Any = [value] if len(value) == 2 and isinstance(value[0], str) and not isinstance(value[1], str) else value
  if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
    return []
  plain = lambda pattern: re.sub(r"/?(\(?\.\*\)?)?\$?$", "", re.sub(r"^\^?(\(?\.\*\)?)?", "", str(pattern)))
  fresh = [plain(ours) or "." for ours, theirs in pairs if theirs is None]
  # init.rename keeps the rest of a path, which T5X matches by a group at the end.
  without_group = lambda path: re.sub(r"/?\\\d$", "", str(path))
  moved = [f"{without_group(theirs)}={plain(ours)}" for ours, theirs in pairs if theirs is not None]
  options = [f"--config.init.reinit={','.join(fresh)}"] if fresh else []
  return options + ([f"--config.init.rename={','.join(moved)}"] if moved else [])
