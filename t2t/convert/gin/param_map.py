"""Tables of T5X's parameters: config keys, and the treatment of parameters without a key.

Every known parameter is in one of the tables: it is converted, reported and left out, or refused.  Unknown parameters
are refused with the nearest names.
"""

from t2t.convert.gin import t5x_defaults as gin_files

# Parameter -> config key with the same values.
SAME = {
  **{f"T5Config.{theirs}": f"model.{ours}" for theirs, ours in gin_files.NETWORK.items()},
  "T5Config.dtype": "model.dtype",
  "T5Config.logits_via_embedding": "model.tied_logits",
  "T5Config.dropout_rate": "model.dropout_rate",
  "T5Config.remat_policy": "model.remat",
  "T5Config.scale_attn_logits": "model.scale_attention",
  **{theirs: f"model.{ours}" for theirs, ours in gin_files.FLAXFORMER.items()},
  "train/DatasetConfig.batch_size": "train.batch_size",
  "train/DatasetConfig.split": "data.train_split",
  "train/DatasetConfig.pack": "data.pack",
  "train_eval/DatasetConfig.split": "data.eval_split",
  "train.random_seed": "train.seed",
  "train.eval_period": "eval.every",
  "train.eval_steps": "eval.batches",
  "Trainer.num_microbatches": "train.microbatches",
  "EncoderDecoderModel.z_loss": "train.z_loss",
  "EncoderDecoderModel.label_smoothing": "train.label_smoothing",
  "SaveCheckpointConfig.period": "checkpoint.save_interval_steps",
  "SaveCheckpointConfig.keep": "checkpoint.max_to_keep",
  "Evaluator.num_examples": "eval.max_examples",
  "predict_batch_with_aux.num_decodes": "eval.num_beams",
  "beam_search.alpha": "eval.length_penalty",
}
# The same for T5X's evaluate, which has one data set.
SAME_OF_EVAL = {
  "DatasetConfig.split": "data.eval_split",
  "DatasetConfig.batch_size": "eval.batch_size",
  **{
    name: SAME[name] for name in ("Evaluator.num_examples", "predict_batch_with_aux.num_decodes", "beam_search.alpha")
  },
}
# Config key, or option -> macro in T5X's run files, the name that its users know.
MACROS = {
  "data.mixture": "MIXTURE_OR_TASK_NAME",
  "data.task_modules": "MIXTURE_OR_TASK_MODULE",
  "data.inputs_length": "TASK_FEATURE_LENGTHS",
  "data.targets_length": "TASK_FEATURE_LENGTHS",
  "train.steps": "TRAIN_STEPS",
  "train.batch_size": "BATCH_SIZE",
  "init.checkpoint": "INITIAL_CHECKPOINT_PATH",
}
MACROS_OF_EVAL = {
  **{key: MACROS[key] for key in ("data.mixture", "data.task_modules", "data.inputs_length", "data.targets_length")},
  "data.eval_split": "MIXTURE_OR_TASK_SPLIT",
  "--inputs_length": "TASK_FEATURE_LENGTHS",
  "--checkpoint": "CHECKPOINT_PATH",
}
WORKDIRS = {"train": "MODEL_DIR", "eval": "EVAL_OUTPUT_DIR", "infer": "INFER_OUTPUT_DIR"}
# Parameters converted in another way -> description.
TAKEN = {
  "train.model_dir": "`--workdir`",
  "train.total_steps": "`train.steps`, without the steps of the checkpoint",
  "train.model": "an encoder-decoder",
  "T5Config.mlp_activations": "`model.mlp_activation`",
  "MlpBlock.activations": "`model.mlp_activation`",
  "Decoder.output_logits_factory": "`model.tied_logits`, if it is None",
  "EncoderDecoderModel.module": "`model`",
  "EncoderDecoderModel.input_vocabulary": "`data.vocabulary`",
  "EncoderDecoderModel.output_vocabulary": "`data.vocabulary`, the same as for inputs",
  "EncoderDecoderModel.optimizer_def": "`optimizer`",
  "EncoderDecoderModel.decode_fn": "beam search; sampling only in `t2t infer`",
  "EncoderDecoderModel.loss_normalizing_factor": "no key, if the optimizer is invariant to a factor of the loss",
  "SentencePieceVocabulary.sentencepiece_model_file": "`data.vocabulary`",
  "SentencePieceVocabulary.extra_ids": "`data.extra_ids`",
  "ByteVocabulary.extra_ids": "`data.extra_ids`",
  "DatasetConfig.mixture_or_task_name": "`data.mixture`, with t2t's name",
  "DatasetConfig.task_feature_lengths": "`data.inputs_length` and `data.targets_length`",
  "DatasetConfig.module": "`data.task_modules`",
  "DatasetConfig.split": "`data.train_split`, `data.eval_split`",
  "DatasetConfig.batch_size": "`train.batch_size`, `eval.batch_size`",
  "DatasetConfig.pack": "`data.pack`",
  "CheckpointConfig.restore": "`init.checkpoint`, unless it is None",
  "RestoreCheckpointConfig.path": "`init.checkpoint`; `--checkpoint` of `t2t eval` and `t2t infer`",
  "RestoreCheckpointConfig.mode": "one checkpoint",
  "PjitPartitioner.num_partitions": "`mesh.tensor`",
  "PjitPartitioner.model_parallel_submesh": "`mesh.tensor`",
  "ModelBasedPjitPartitioner.num_partitions": "`mesh.tensor`",
  "ModelBasedPjitPartitioner.model_parallel_submesh": "`mesh.tensor`",
  "chain.transformations": "`optimizer.name`, `optimizer.clip_norm`",
  "create_learning_rate_scheduler.factors": "`optimizer.schedule`",
  "create_learning_rate_scheduler.base_learning_rate": "`optimizer.learning_rate`",
  "create_learning_rate_scheduler.warmup_steps": "`optimizer.warmup_steps`",
  "create_learning_rate_scheduler.step_offset": "0, if it is the checkpoint's step",
  "Adafactor.weight_decay_rate": "`optimizer.weight_decay`, if its exponent is 1",
  "Adafactor.weight_decay_rate_lr_exponent": "`optimizer.weight_decay`",
  "evaluate.output_dir": "`--workdir` of `t2t eval`",
  "infer.output_dir": "`t2t infer` writes TASK-predict.jsonl there",
  "infer.mode": "mode of `t2t infer`: predict, predict_with_aux",
  "create_task_from_tfexample_file.paths": "`--input` of `t2t infer` instead",
  "temperature_sample.temperature": "`--temperature` of `t2t infer`",
  "temperature_sample.topk": "`--top_k` of `t2t infer`",
  "temperature_sample.topp": "`--top_p` of `t2t infer`",
}
# T5X's defaults.
THEIR_DEFAULTS = {
  "model.vocab_size": 32_128,  # T5's, because T5X has no default
  "model.dtype": "float32",
  "model.embed_dim": 512,
  "model.num_heads": 8,
  "model.num_encoder_layers": 6,
  "model.num_decoder_layers": 6,
  "model.head_dim": 64,
  "model.mlp_dim": 2_048,
  "model.dropout_rate": 0.1,
  "model.tied_logits": False,
}
# Activations of the feed-forward layers -> t2t's; Flax's gelu is the tanh approximation.
ACTIVATIONS = {
  "relu": "relu",
  "gelu": "gelu_tanh",
  "gelu * linear": "gated_gelu",
  "swish * linear": "gated_silu",
  "silu * linear": "gated_silu",
}
# Factors of the learning rate -> t2t's schedule, and whether its peak is the base rate divided by the root of the
# warm-up.
SCHEDULES = {
  "constant * rsqrt_decay": ("t5_inverse_sqrt", True),
  "constant * rsqrt_normalized_decay": ("t5_inverse_sqrt", False),
  "constant * linear_warmup * rsqrt_decay": ("inverse_sqrt", True),
  "constant * linear_warmup * rsqrt_normalized_decay": ("inverse_sqrt", False),
  "constant * linear_warmup": ("constant", False),
  "constant": ("constant", False),
}
ADAFACTOR = {
  "Adafactor.decay_rate": "optimizer.adafactor_decay_rate",
  "Adafactor.clipping_threshold": "optimizer.adafactor_clip",
  "Adafactor.multiply_by_parameter_scale": "optimizer.scale_by_parameter",
  "Adafactor.global_norm_clip_threshold": "optimizer.clip_norm",
}
ADAMW = {
  "adamw.learning_rate": "optimizer.learning_rate",
  "adamw.weight_decay": "optimizer.weight_decay",
  "adamw.b1": "optimizer.b1",
  "adamw.b2": "optimizer.b2",
  "adamw.eps": "optimizer.epsilon",
  "clip_by_global_norm.max_norm": "optimizer.clip_norm",
}
# Tasks and mixtures of the t5 package -> t2t's name and module.
MIXTURES = {
  "c4_v220_span_corruption": ("c4_span_corruption", "t2t.tasks.c4"),
  "wmt_t2t_ende_v003": ("wmt_en_de", "t2t.tasks.translation"),
  "wmt15_enfr_v003": ("wmt_en_fr", "t2t.tasks.translation"),
  "wmt16_enro_v003": ("wmt_en_ro", "t2t.tasks.translation"),
  "glue_v002_proportional": ("glue_v002_proportional", "t2t.tasks.glue"),
  "super_glue_v102_proportional": ("super_glue", "t2t.tasks.superglue"),
  "squad_v010_allanswers": ("squad", "t2t.tasks.squad"),
  "cnn_dailymail_v002": ("cnn_dailymail", "t2t.tasks.summarization"),
}

# Optimizer parts: their parameters count only if OPTIMIZER refers to them.
OPTIMIZERS = ("Adafactor", "adamw", "clip_by_global_norm", "chain")

# ---- Reported and left out, without effect on what is learned --------------------------------------------------------

# By function and parameter, or by function: the meaning in T5X, and why a config has no key for it.
TOLD = {
  "T5Config.scan_layers": "scanning of layers; t2t always scans them",
  "T5Config.float32_attention_logits": "dtype of the softmax, always float32 in t2t",
  "DatasetConfig.use_cached": "tasks from T5X's cache; t2t reads them from their source, or from config.data.cache_dir",
  "DatasetConfig.shuffle": "t2t always shuffles training data, and never evaluation data",
  "DatasetConfig.seed": "seed of the data order; in t2t config.train.seed is the only seed",
  "DatasetConfig.use_custom_packing_ops": "implementation of packing; t2t has one",
  "DatasetConfig.use_memory_cache": "t2t always keeps evaluation examples in memory",
  "DatasetConfig.trim_output_features": "t2t always truncates examples to their lengths",
  "train.use_hardware_rng": "a faster generator; t2t uses JAX's default, with the same numbers on every device",
  "train.actions": "actions at a NaN; t2t has config.nan_policy.on_nonfinite",
  "train.stats_period": "steps between training metrics; config.train.log_every",
  "train.concurrent_metrics": "background computation of metrics; t2t logs them as they are computed",
  "train.run_eval_before_training": "an evaluation before the first step; run `t2t eval`",
  "train.gc_period": "interval of Python's garbage collection",
  "train.use_gda": "implementation of arrays in T5X",
  "train.use_jax_array": "implementation of arrays in T5X",
  "train.use_orbax": "checkpoint library; t2t always uses Orbax",
  "train.summarize_config_fn": "the config is in config.json of the workdir",
  "evaluate.summarize_config_fn": "the settings are in results.json",
  "evaluate.fallback_init_rng": "in t2t a missing checkpoint is an error",
  "infer.fallback_init_rng": "in t2t a missing checkpoint is an error",
  "infer.checkpoint_period": "interval of saving predictions; the same `t2t infer` resumes after the last line",
  "infer.checkpoint_ds_iter": "resumption of inference; the same `t2t infer` resumes after the last line",
  "infer.merge_chunked_results": "t2t always writes predictions to one file",
  "RestoreCheckpointConfig.dtype": "dtype of restored parameters; t2t restores float32",
  "RestoreCheckpointConfig.strict": "t2t always requires all parameters",
  "RestoreCheckpointConfig.fallback_to_scratch": "in t2t a missing checkpoint is an error",
  "RestoreCheckpointConfig.use_gda": "implementation of arrays in T5X",
  "RestoreCheckpointConfig.checkpointer_cls": "implementation of reading",
  "SaveCheckpointConfig.save_dataset": "data position, which t2t always saves",
  "SaveCheckpointConfig.dtype": "dtype of saved parameters; t2t always saves float32",
  "SaveCheckpointConfig.checkpointer_cls": "implementation of writing",
  "CheckpointConfig.save": "t2t always saves at the end",
  "Adafactor.step_offset": "step at which its averages restart; t2t's always start with the run",
  "Adafactor.logical_factor_rules": "factored dimensions; t2t factors the two largest of each layer's array",
  "Trainer.weight_metrics_computer": "metrics of weights; t2t has config.optimizer.log_distance",
  "PyLoggingLogger": "t2t prints results, and writes them to files",
  "TensorBoardLogger": "t2t prints results, and writes them to files",
  "JSONLogger": "number of written predictions; t2t writes all",
  "Evaluator.logger_cls": "t2t prints results, and writes them to files",
  "Evaluator.use_memory_cache": "t2t always keeps evaluation examples in memory",
  "PjitPartitioner": "sharding of arrays: config.mesh",
  "ModelBasedPjitPartitioner": "sharding of arrays: config.mesh",
  "standard_logical_axis_rules": "sharding of arrays: config.mesh",
  "get_gin_config_str": "format of T5X's config log",
}

# ---- Ignored: T5X's wiring, and t2t's own behavior -------------------------------------------------------------------

# Parameters that refer to known functions.
WIRING = (
  *(f"train.{name}_cfg" for name in ("train_dataset", "train_eval_dataset", "infer_eval_dataset", "checkpoint")),
  *(f"train.{name}" for name in ("partitioner", "trainer_cls", "inference_evaluator_cls", "summarize_config_fn")),
  *(f"evaluate.{name}" for name in ("model", "dataset_cfg", "partitioner", "restore_checkpoint_cfg")),
  "evaluate.inference_evaluator_cls",
  *(f"infer.{name}" for name in ("model", "dataset_cfg", "partitioner", "restore_checkpoint_cfg")),
  "Transformer.config",
  "CheckpointConfig.save",
  "CheckpointConfig.restore",
  "Trainer.learning_rate_fn",
  "Trainer.weight_metrics_computer",
  "PjitPartitioner.logical_axis_rules",
  "ModelBasedPjitPartitioner.logical_axis_rules",
  "Adafactor.logical_factor_rules",
  "create_task_from_tfexample_file.features",
  "Feature.vocabulary",
  "get_input_vocabulary.model",
  "get_output_vocabulary.model",
)
# Functions without parameters in these tables.
PARTS = (
  *("T5Config", "Transformer", "Trainer", "WeightMetricsComputer", "standard_logical_factor_rules"),
  *("EncoderDecoderModel", "SentencePieceVocabulary", "ByteVocabulary", "EncoderDecoder", "summarize_gin_config"),
  *("beam_search", "temperature_sample", "get_input_vocabulary", "get_output_vocabulary", "TerminateOnNanAction"),
)
# Values that match t2t's behavior.
HARMLESS = {
  "DatasetConfig.use_cached": (False,),
  "DatasetConfig.seed": (None,),
  "DatasetConfig.use_memory_cache": (True,),
  "Evaluator.use_memory_cache": (True,),
  "DatasetConfig.pack": (False,),  # in evaluation
  "CheckpointConfig.restore": (None,),
  "train.infer_eval_dataset_cfg": (None,),
  "train.stats_period": (None,),
  "train.actions": (None,),
  "infer.shard_id": (0,),
  "infer.num_shards": (1,),
  "infer.mode": ("predict", "predict_with_aux"),
  "Adafactor.factored": (True,),
  "Adafactor.beta1": (None,),
  "Adafactor.learning_rate": (None,),
  "Adafactor.max_parameter_scale": (None,),
  "Adafactor.skip_nan_updates": (False, None),
  "Adafactor.min_dim_size_to_factor": (128,),
  "Adafactor.epsilon1": (1e-30,),
  "Adafactor.epsilon2": (1e-3,),
  "EncoderDecoderModel.feature_converter_cls": (None,),
  "RestoreCheckpointConfig.assignment_map": (None,),
  "RestoreCheckpointConfig.state_transformation_fns": ((), [], None),
  "RestoreCheckpointConfig.restore_dataset": (False,),
  "SentencePieceVocabulary.reverse_extra_ids": (None, True),
  "TerminateOnNanAction.task": None,  # any value
  "create_task_from_tfexample_file.file_type": None,
  "create_task_from_tfexample_file.inputs_key": None,
  "create_task_from_tfexample_file.targets_key": (None,),
  # Flaxformer's T5.
  "EncoderDecoder.shared_token_embedder_factory": None,
  **{f"EncoderDecoder.{name}_factory": None for name in ("encoder", "decoder")},
  **{f"Encoder.{name}_dropout_factory": None for name in ("input", "output")},
  "Decoder.dropout_factory": None,
  "Encoder.layer_factory": None,
  "Decoder.layer_factory": None,
  "Encoder.layer_norm_factory": None,
  "Decoder.layer_norm_factory": None,
  "Encoder.position_embedder_factory": (None,),
  "Decoder.position_embedder_factory": (None,),
  "Encoder.shared_relative_position_bias_factory": None,
  "Decoder.shared_relative_position_bias_factory": None,
  **{f"{side}Layer.{name}": None for side in ("Encoder", "Decoder") for name in ("mlp", "dropout_factory")},
  **{f"{side}Layer.layer_norm_factory": None for side in ("Encoder", "Decoder")},
  **{f"{side}Layer.activation_partitioning_dims": None for side in ("Encoder", "Decoder")},
  "EncoderLayer.attention": None,
  "DecoderLayer.self_attention": None,
  "DecoderLayer.encoder_decoder_attention": None,
  "Embed.cast_input_dtype": ("int32",),
  "Embed.attend_dtype": ("float32",),
  "Embed.one_hot": (True, False),
  "Embed.embedding_init": None,
  "Embed.name": None,
  **{f"MultiHeadDotProductAttention.{name}": None for name in ("kernel_init", "bias_init")},
  "MultiHeadDotProductAttention.use_bias": (False,),
  "MultiHeadDotProductAttention.broadcast_dropout": (True,),
  "MultiHeadDotProductAttention.dropout_rate": None,
  "RelativePositionBiases.num_heads": None,
  "RelativePositionBiases.num_buckets": (32,),
  "RelativePositionBiases.max_distance": (128,),
  "RelativePositionBiases.embedding_init": None,
  "MlpBlock.use_bias": (False,),
  **{f"MlpBlock.{name}": None for name in ("kernel_init", "bias_init", "intermediate_dropout_rate")},
  "MlpBlock.final_dropout_rate": (0, 0.0),
  **{f"{name}.dtype": None for name in ("Encoder", "Decoder", "Embed", "MlpBlock", "T5LayerNorm", "EncoderDecoder")},
  **{f"{name}.dtype": None for name in ("MultiHeadDotProductAttention", "RelativePositionBiases")},
  "T5LayerNorm.use_scale": (True,),
  "Dropout.broadcast_dims": ((-2,),),
  "normal.stddev": (1.0, 1e-6),
  "variance_scaling.scale": (1.0,),
  "variance_scaling.mode": ("fan_in", "fan_avg"),
  "variance_scaling.distribution": ("normal", "uniform", "truncated_normal"),
  "DenseGeneral": None,
}

# ---- Refused, because the result would differ ------------------------------------------------------------------------

# Reason, and alternative.
REFUSED = {
  "DatasetConfig.batch_fn": "t2t forms its own batches",
  "Adafactor.beta1": "t2t's Adafactor has no momentum: leave beta1 out, or give --config.optimizer.name=adamw",
  "Adafactor.learning_rate": "T5X's trainer uses the rate of the schedule instead: set base_learning_rate",
  "Adafactor.factored": "t2t's Adafactor always factors large matrices",
  "Adafactor.skip_nan_updates": "leave skip_nan_updates out, and give --config.nan_policy.on_nonfinite=skip",
  "Adafactor.max_parameter_scale": "t2t's Adafactor does not bound the parameter scale",
  "Adafactor.min_dim_size_to_factor": "t2t's Adafactor uses 128",
  "Adafactor.epsilon1": "t2t's Adafactor uses 1e-30",
  "Adafactor.epsilon2": "t2t's Adafactor uses 1e-3",
  "HParamMap.rules": "rules for parameter groups: give --config.optimizer.param_groups (docs/parameters.md)",
  "EncoderDecoderModel.feature_converter_cls": "t2t uses its own feature converters",
  "RestoreCheckpointConfig.assignment_map": "renaming of the checkpoint's parameters: give --config.init.rename",
  "RestoreCheckpointConfig.state_transformation_fns": "transformation of the checkpoint's parameters: give "
  "--config.init.rename",
  "RestoreCheckpointConfig.restore_dataset": "data position of another run; t2t begins at the first example",
  "SentencePieceVocabulary.reverse_extra_ids": "t2t's sentinels count down from the last id",
  "create_learning_rate_scheduler.decay_factor": "belongs to decay_every, which t2t lacks",
  "create_learning_rate_scheduler.steps_per_decay": "belongs to decay_every, which t2t lacks",
  "create_learning_rate_scheduler.steps_per_cycle": "belongs to cyclic cosine_decay, which t2t lacks",
  "create_learning_rate_scheduler.min_learning_rate": "minimum of the learning rate, which t2t's T5 schedules lack",
  "infer.shard_id": "give the file of a shard as --input of `t2t infer`",
  "infer.num_shards": "give the file of a shard as --input of `t2t infer`",
  "infer.mode": "`t2t infer` generates text; `t2t eval --config.eval.method=rank` computes likelihoods of targets",
  "infer.write_fn": "`t2t infer` writes objects with inputs, prediction and score",
  "predict_batch_with_aux.return_all_decodes": "`t2t infer --beam N` always writes all",
  "predict_batch_with_aux.decoder_params": "use the decoding options of `t2t infer`",
  "T5LayerNorm.use_scale": "t2t's norms have a scale, as in T5",
  "RelativePositionBiases.num_buckets": "t2t uses 32, as in T5",
  "RelativePositionBiases.max_distance": "t2t uses 128, as in T5",
  "train.train_state_initializer_cls": "t2t uses its own initialization",
  "train.get_dataset_fn": "t2t uses its own data pipeline",
  "train.train_eval_get_dataset_fn": "t2t uses its own data pipeline",
  "train.prepare_train_iter_fn": "t2t uses its own data pipeline",
  "train.verify_matching_vocabs_fn": "t2t always checks that vocabularies match",
}
# Kind of run -> t2t's command; T5X's function -> kind of run.
KINDS = {"train": "t2t train", "eval": "t2t eval", "infer": "t2t infer"}
FUNCTIONS = {"train": "train", "evaluate": "eval", "infer": "infer"}
OTHERS = {
  "export": "t2t does not run T5X's export. Use `t2t convert --to hf`.",
  "precompile": "t2t does not run T5X's precompile. Use `t2t plan --topology`, which compiles for an absent slice.",
  "train_and_evaluate": "T5X's train.py has no such function. See t5x/configs/runs/finetune.gin.",
}
# Libraries imported by T5X's files, which need not be installed.
LIBRARIES = ("t5x", "seqio", "flax", "optax", "t5", "gin", "jax", "jaxlib", "numpy", "clu", "flaxformer", "tensorflow")
# T5X's modules, to detect typing errors.
MODULES = (
  *("adafactor", "checkpoints", "configs", "contrib", "decoding", "eval", "examples", "gin_utils", "infer", "losses"),
  *("metrics", "models", "optimizers", "partitioning", "precompile", "state_utils", "train", "train_state", "trainer"),
  *("utils", "export", "export_lib", "checkpoint_importer", "binary_search", "multihost_utils", "interactive_model"),
  *("test_utils", "scripts", "notebooks", "beam_search", "t5_gin_utils"),
)


def known() -> tuple[str, ...]:
  """Returns every parameter in a table, "function.parameter", without scopes."""
  tables = (SAME, SAME_OF_EVAL, TAKEN, TOLD, HARMLESS, REFUSED, ADAFACTOR, ADAMW, dict.fromkeys(WIRING))
  return tuple(dict.fromkeys(name.rpartition("/")[2] for table in tables for name in table if "." in name))


def in_t5x(kind: str) -> dict[str, str]:
  """Returns config key or option -> T5X's macro, or else parameter, for a kind of run."""
  same, macros = (SAME, MACROS) if kind == "train" else (SAME_OF_EVAL, MACROS_OF_EVAL)
  return {ours: theirs for theirs, ours in reversed(same.items())} | macros | {"--workdir": WORKDIRS[kind]}


def functions() -> tuple[str, ...]:
  """Returns every function in a table."""
  without_parameter = [name for table in (TOLD, HARMLESS) for name in table if "." not in name]
  return tuple(dict.fromkeys([*(name.partition(".")[0] for name in known()), *without_parameter, *PARTS]))
