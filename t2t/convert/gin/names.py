"""What the parameters of T5X's functions are called in a t2t config, and why some are nothing there."""

from t2t.convert.gin import files as gin_files

# Parameter -> key of the config, of those whose values are the same.
SAME = {
  **{f"T5Config.{theirs}": f"model.{ours}" for theirs, ours in gin_files.NETWORK.items()},
  "T5Config.dtype": "model.dtype",
  "T5Config.logits_via_embedding": "model.tied_logits",
  "T5Config.dropout_rate": "model.dropout_rate",
  "T5Config.remat_policy": "model.remat",
  "T5Config.scale_attn_logits": "model.scale_attention",
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
  "SaveCheckpointConfig.period": "checkpoint.every",
  "SaveCheckpointConfig.keep": "checkpoint.keep",
  "Evaluator.num_examples": "eval.max_examples",
  "predict_batch_with_aux.num_decodes": "eval.num_beams",
  "beam_search.alpha": "eval.length_penalty",
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

# Why a parameter has no counterpart, by function and parameter, or by function alone.  "": it says how T5X's own parts
# are put together, and there is nothing to tell.
REASONS = {
  "T5Config.scan_layers": "t2t always scans its layers",
  "T5Config.float32_attention_logits": "the softmax is always computed in float32",
  "DatasetConfig.use_cached": "t2t reads tasks from their source",
  "DatasetConfig.shuffle": "t2t always shuffles what it trains on, and never what it evaluates on",
  "DatasetConfig.seed": "config.train.seed is the seed of everything",
  "DatasetConfig.module": "give its name in config.data.task_modules",
  "train.model_dir": "give --workdir",
  "train.use_hardware_rng": "t2t draws with JAX's default generator, and the same numbers on every device",
  "train": "",
  "EncoderDecoderModel.loss_normalizing_factor": "t2t takes the mean over the targets; Adafactor feels no factor",
  "EncoderDecoderModel": "",
  "Transformer": "",
  "CheckpointConfig": "",
  "RestoreCheckpointConfig": "parameters are read into float32, and names of arrays as T5X's",
  "SaveCheckpointConfig.save_dataset": "the position in the data is always saved",
  "SaveCheckpointConfig.dtype": "parameters are always saved as float32",
  "Adafactor.step_offset": "the optimizer's steps are counted from the start of the run",
  "Adafactor.logical_factor_rules": "",
  "Trainer.weight_metrics_computer": "",
  "Trainer.learning_rate_fn": "",
  "Evaluator": "results are printed, and written to TensorBoard and to files",
  "JSONLogger": "all predictions are written",
  "chain.transformations": "",
  "PjitPartitioner": "config.mesh says how arrays are split",
  "ModelBasedPjitPartitioner": "config.mesh says how arrays are split",
}
