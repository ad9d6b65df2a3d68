"""What the parameters of T5X's functions are called in a t2t config, and what is done about those that have no key.

Every parameter that is known is in one of these tables: it is taken, told and left out, or refused.  What is in none is
refused as well, with the nearest names.
"""

from t2t.convert.gin import t5x_defaults as gin_files

# Parameter -> key of the config, of those whose values are the same.
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
# The same of what is evaluated, by T5X's evaluate, which has one set of examples.
SAME_OF_EVAL = {
  "DatasetConfig.split": "data.eval_split",
  "DatasetConfig.batch_size": "eval.batch_size",
  **{
    name: SAME[name] for name in ("Evaluator.num_examples", "predict_batch_with_aux.num_decodes", "beam_search.alpha")
  },
}
# Key of the config, or option -> the macro that T5X's files for runs have for it, which its users know it by.
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
# What is taken in another way -> how, in words.
TAKEN = {
  "train.model_dir": "`--workdir`",
  "train.total_steps": "`train.steps`, without the steps that the checkpoint has made",
  "train.model": "an encoder-decoder",
  "T5Config.mlp_activations": "`model.mlp_activation`",
  "MlpBlock.activations": "`model.mlp_activation`",
  "Decoder.output_logits_factory": "`model.tied_logits`, where there is none",
  "EncoderDecoderModel.module": "`model`",
  "EncoderDecoderModel.input_vocabulary": "`data.vocabulary`",
  "EncoderDecoderModel.output_vocabulary": "`data.vocabulary`, which is that of the inputs as well",
  "EncoderDecoderModel.optimizer_def": "`optimizer`",
  "EncoderDecoderModel.decode_fn": "beam search; sampling, by `t2t infer` alone",
  "EncoderDecoderModel.loss_normalizing_factor": "nothing, where the optimizer does not feel a factor of the loss",
  "SentencePieceVocabulary.sentencepiece_model_file": "`data.vocabulary`",
  "SentencePieceVocabulary.extra_ids": "`data.extra_ids`",
  "ByteVocabulary.extra_ids": "`data.extra_ids`",
  "DatasetConfig.mixture_or_task_name": "`data.mixture`, by the name that t2t registers it under",
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
  "create_learning_rate_scheduler.step_offset": "steps are counted from 0, where it is the checkpoint's",
  "Adafactor.weight_decay_rate": "`optimizer.weight_decay`, where its exponent is 1",
  "Adafactor.weight_decay_rate_lr_exponent": "`optimizer.weight_decay`",
  "evaluate.output_dir": "`--workdir` of `t2t eval`",
  "infer.output_dir": "`t2t infer` writes TASK-predict.jsonl there",
  "infer.mode": "what `t2t infer` does: predict, predict_with_aux",
  "create_task_from_tfexample_file.paths": "`--input` of `t2t infer` instead",
  "temperature_sample.temperature": "`--temperature` of `t2t infer`",
  "temperature_sample.topk": "`--top_k` of `t2t infer`",
  "temperature_sample.topp": "`--top_p` of `t2t infer`",
}
# What T5X takes where a file says nothing.
THEIR_DEFAULTS = {
  "model.vocab_size": 32_128,  # has none; this is T5's
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
# The activations of the feed-forward layers -> ours; Flax's gelu is the tanh approximation.
ACTIVATIONS = {
  "relu": "relu",
  "gelu": "gelu_tanh",
  "gelu * linear": "gated_gelu",
  "swish * linear": "gated_silu",
  "silu * linear": "gated_silu",
}
# Factors of the learning rate -> our schedule, and whether its top is the base rate over the root of the warm-up.
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
# Tasks and mixtures of the t5 package -> what t2t registers, and the module that does.
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

# Optimizers' parts, whose parameters count only where OPTIMIZER refers to them.
OPTIMIZERS = ("Adafactor", "adamw", "clip_by_global_norm", "chain")

# ---- What is told and left out: it changes nothing that is learned ---------------------------------------------------

# By function and parameter, or by function alone: what it means in T5X, and why a config has no key for it.
TOLD = {
  "T5Config.scan_layers": "whether layers are scanned; t2t always scans them",
  "T5Config.float32_attention_logits": "the type of the softmax, which t2t always computes in float32",
  "DatasetConfig.use_cached": "tasks from T5X's cache; t2t reads them from their source, or config.data.cache_dir",
  "DatasetConfig.shuffle": "t2t always shuffles what it trains on, and never what it evaluates on",
  "DatasetConfig.seed": "a seed of the order of data; config.train.seed is the seed of everything",
  "DatasetConfig.use_custom_packing_ops": "who packs; t2t has one way",
  "DatasetConfig.use_memory_cache": "examples that are evaluated are always kept in memory",
  "DatasetConfig.trim_output_features": "t2t always cuts examples to their lengths",
  "train.use_hardware_rng": "a faster generator; t2t draws with JAX's default, the same numbers on every device",
  "train.actions": "what is done at a NaN; t2t stops there by itself (config.nan_policy.on_nonfinite)",
  "train.stats_period": "steps between numbers of training; config.train.log_every",
  "train.concurrent_metrics": "metrics are computed as they come",
  "train.run_eval_before_training": "an evaluation before the first step; `t2t eval` does it",
  "train.gc_period": "when Python looks for garbage",
  "train.use_gda": "how T5X holds arrays",
  "train.use_jax_array": "how T5X holds arrays",
  "train.use_orbax": "how T5X saves; t2t always does with Orbax",
  "train.summarize_config_fn": "the workdir has the config in config.json",
  "evaluate.summarize_config_fn": "results.json says what was asked",
  "evaluate.fallback_init_rng": "a checkpoint that is missing is an error",
  "infer.fallback_init_rng": "a checkpoint that is missing is an error",
  "infer.checkpoint_period": "how often predictions are saved; the same `t2t infer` goes on from the last line",
  "infer.checkpoint_ds_iter": "how inference goes on; the same `t2t infer` goes on from the last line",
  "infer.merge_chunked_results": "predictions are always in one file",
  "RestoreCheckpointConfig.dtype": "the type that parameters are restored in; t2t reads them into float32",
  "RestoreCheckpointConfig.strict": "t2t always wants all parameters",
  "RestoreCheckpointConfig.fallback_to_scratch": "a checkpoint that is missing is an error",
  "RestoreCheckpointConfig.use_gda": "how T5X holds arrays",
  "RestoreCheckpointConfig.checkpointer_cls": "who reads it",
  "SaveCheckpointConfig.save_dataset": "the position in the data, which t2t always saves",
  "SaveCheckpointConfig.dtype": "the type that parameters are saved in; t2t always saves them as float32",
  "SaveCheckpointConfig.checkpointer_cls": "who writes it",
  "CheckpointConfig.save": "t2t always saves at the end",
  "Adafactor.step_offset": "where its averages begin anew; t2t's always begin with the run",
  "Adafactor.logical_factor_rules": "which dimensions are factored; t2t factors the two largest of each layer's array",
  "Trainer.weight_metrics_computer": "numbers about weights; config.optimizer.log_distance has others",
  "PyLoggingLogger": "results are printed, and written to files",
  "TensorBoardLogger": "results are printed, and written to files",
  "JSONLogger": "how many predictions are written; t2t writes all",
  "Evaluator.logger_cls": "results are printed, and written to files",
  "Evaluator.use_memory_cache": "examples that are evaluated are always kept in memory",
  "PjitPartitioner": "how arrays are split: config.mesh",
  "ModelBasedPjitPartitioner": "how arrays are split: config.mesh",
  "standard_logical_axis_rules": "how arrays are split: config.mesh",
  "get_gin_config_str": "how T5X prints its config",
}

# ---- What is silent: it says how T5X's own parts are put together, or what t2t does anyway ---------------------------

# References to functions that are known.
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
# Functions that are referred to and have no parameters here.
PARTS = (
  *("T5Config", "Transformer", "Trainer", "WeightMetricsComputer", "standard_logical_factor_rules"),
  *("EncoderDecoderModel", "SentencePieceVocabulary", "ByteVocabulary", "EncoderDecoder", "summarize_gin_config"),
  *("beam_search", "temperature_sample", "get_input_vocabulary", "get_output_vocabulary", "TerminateOnNanAction"),
)
# Values that say what t2t does.
HARMLESS = {
  "DatasetConfig.use_cached": (False,),
  "DatasetConfig.seed": (None,),
  "DatasetConfig.use_memory_cache": (True,),
  "Evaluator.use_memory_cache": (True,),
  "DatasetConfig.pack": (False,),  # of what is evaluated
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
  "TerminateOnNanAction.task": None,  # any
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

# ---- What is refused: without it something else would come out -------------------------------------------------------

# Why, and what would do.
REFUSED = {
  "DatasetConfig.batch_fn": "t2t makes its batches itself",
  "Adafactor.beta1": "momentum; t2t's Adafactor has none: leave it out, or --config.optimizer.name=adamw",
  "Adafactor.learning_rate": "T5X's trainer puts that of its scheduler in its place: set base_learning_rate",
  "Adafactor.factored": "t2t's Adafactor always factors large matrices",
  "Adafactor.skip_nan_updates": "leave it out, and --config.nan_policy.on_nonfinite=skip",
  "Adafactor.max_parameter_scale": "t2t's Adafactor bounds no scale",
  "Adafactor.min_dim_size_to_factor": "t2t's Adafactor has 128",
  "Adafactor.epsilon1": "t2t's Adafactor has 1e-30",
  "Adafactor.epsilon2": "t2t's Adafactor has 1e-3",
  "HParamMap.rules": "what holds for some parameters alone: --config.optimizer.param_groups (docs/parameters.md)",
  "EncoderDecoderModel.feature_converter_cls": "t2t's own makes what the model reads",
  "RestoreCheckpointConfig.assignment_map": "what is called otherwise in the checkpoint: --config.init.rename",
  "RestoreCheckpointConfig.state_transformation_fns": "what is changed on the way: --config.init.rename",
  "RestoreCheckpointConfig.restore_dataset": "the position in data of another run; t2t begins at the first example",
  "SentencePieceVocabulary.reverse_extra_ids": "t2t's sentinels count down from the last id",
  "create_learning_rate_scheduler.decay_factor": "of decay_every, which t2t has not",
  "create_learning_rate_scheduler.steps_per_decay": "of decay_every, which t2t has not",
  "create_learning_rate_scheduler.steps_per_cycle": "of cosine_decay, which t2t has not in cycles",
  "create_learning_rate_scheduler.min_learning_rate": "a floor of the rate, which t2t's schedules of T5 have not",
  "infer.shard_id": "`t2t infer` is given the file of a shard as --input",
  "infer.num_shards": "`t2t infer` is given the file of a shard as --input",
  "infer.mode": "`t2t infer` writes; likelihoods of targets are measured by `t2t eval --config.eval.method=rank`",
  "infer.write_fn": "`t2t infer` writes objects with inputs, prediction and score",
  "predict_batch_with_aux.return_all_decodes": "`t2t infer --beam N` always writes all",
  "predict_batch_with_aux.decoder_params": "`t2t infer` has options for how it decodes",
  "T5LayerNorm.use_scale": "t2t's norms have a scale; a checkpoint without one is not T5's",
  "RelativePositionBiases.num_buckets": "t2t has 32, as T5",
  "RelativePositionBiases.max_distance": "t2t has 128, as T5",
  "train.train_state_initializer_cls": "t2t begins with its own initial parameters",
  "train.get_dataset_fn": "t2t reads data itself",
  "train.train_eval_get_dataset_fn": "t2t reads data itself",
  "train.prepare_train_iter_fn": "t2t reads data itself",
  "train.verify_matching_vocabs_fn": "t2t always checks that vocabularies match",
}
# Kinds of runs -> what T5X's function is called, and what reads its files here.
KINDS = {"train": "t2t train", "eval": "t2t eval", "infer": "t2t infer"}
FUNCTIONS = {"train": "train", "evaluate": "eval", "infer": "infer"}
OTHERS = {
  "export": "T5X's export; `t2t convert --to hf` writes what others load",
  "precompile": "T5X's precompile; `t2t plan --topology` compiles for a slice that is not there",
  "train_and_evaluate": "no function of T5X's train.py; see t5x/configs/runs/finetune.gin",
}
# Libraries that T5X's files import, which need not be here.
LIBRARIES = ("t5x", "seqio", "flax", "optax", "t5", "gin", "jax", "jaxlib", "numpy", "clu", "flaxformer", "tensorflow")
# T5X's modules, for names that are none.
MODULES = (
  *("adafactor", "checkpoints", "configs", "contrib", "decoding", "eval", "examples", "gin_utils", "infer", "losses"),
  *("metrics", "models", "optimizers", "partitioning", "precompile", "state_utils", "train", "train_state", "trainer"),
  *("utils", "export", "export_lib", "checkpoint_importer", "binary_search", "multihost_utils", "interactive_model"),
  *("test_utils", "scripts", "notebooks", "beam_search", "t5_gin_utils"),
)


def known() -> tuple[str, ...]:
  """Every parameter that a table has, "function.parameter", without scopes."""
  tables = (SAME, SAME_OF_EVAL, TAKEN, TOLD, HARMLESS, REFUSED, ADAFACTOR, ADAMW, dict.fromkeys(WIRING))
  return tuple(dict.fromkeys(name.rpartition("/")[2] for table in tables for name in table if "." in name))


def in_t5x(kind: str) -> dict[str, str]:
  """Key of the config, or option, of a kind of run -> what T5X calls it: a macro, or else a parameter."""
  same, macros = (SAME, MACROS) if kind == "train" else (SAME_OF_EVAL, MACROS_OF_EVAL)
  return {ours: theirs for theirs, ours in reversed(same.items())} | macros | {"--workdir": WORKDIRS[kind]}


def functions() -> tuple[str, ...]:
  """Every function that a table has."""
  without_parameter = [name for table in (TOLD, HARMLESS) for name in table if "." not in name]
  return tuple(dict.fromkeys([*(name.partition(".")[0] for name in known()), *without_parameter, *PARTS]))
