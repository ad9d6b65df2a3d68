"""T5Gemma from Gemma 2 (Zhang et al. 2025): both stacks start as a decoder, and learn to be an encoder-decoder.

  t2t train --config t5gemma_adapt_2b_2b_ul2 --workdir gs://BUCKET/t5gemma --config.init.checkpoint=google/gemma-2-2b \
    --config.data.vocabulary=gemma/tokenizer.model --config.data.files='gs://BUCKET/text/*.jsonl.gz'

The encoder takes the layers of the decoder-only model, with attention in both directions; the decoder takes them, too.
Stacks of one size also copy self-attention as cross-attention. For 9b_2b cross-attention starts at random, and the
other parameters wait for 1,000 steps; the encoder has a checkpoint of its own:

  t2t train --config t5gemma_adapt_9b_2b_ul2 --workdir gs://BUCKET/t5gemma --config.init.checkpoint=google/gemma-2-2b \
    --config.init.others.encoder.checkpoint=google/gemma-2-9b \
    --config.init.others.encoder.rename=decoder=encoder,embed=encoder/embed ...

From the paper (arXiv 2504.06225): initialization, the 1,000 steps, objectives, 2 T tokens, 1,024 rows in a batch,
4,096 tokens on each side of prefixlm, and clipping. Guesses: the rate, its shape and warm-up, and 1,024 tokens on each
side of ul2, with 256 sentinels after Gemma's vocabulary. Other than the paper: prefixlm has no teacher, and ul2 has
mode tokens.
The authors average the last five checkpoints, 10,000 steps apart: --config.optimizer.average=lawa
--config.optimizer.average_every=10000 --config.eval.average=True, with the memory of five models.
"""

from ml_collections import ConfigDict

from t2t.configs import t5gemma

SIZES = tuple(f"{size}_{objective}" for size in ("2b_2b", "9b_2b", "9b_9b") for objective in ("ul2", "prefixlm"))
_LENGTHS = {"ul2": 1_024, "prefixlm": 4_096}
_LAYERS = "decoder/layers"
# Parameters of self-attention that cross-attention has, too.
_ATTENTION = ("self_attention", "self_attention_norm", "branch_norms/self_attention")


def get_config(size: str = "2b_2b_ul2") -> ConfigDict:
  """Returns the config for one of SIZES."""
  shape, _, objective = size.rpartition("_")
  encoder, _, decoder = shape.partition("_")
  config = t5gemma.get_config(size)
  config.data.mixture = ""  # given by the user, because tasks of C4 have T5's vocabulary
  config.data.task_modules = ()
  config.data.inputs_length = config.data.targets_length = _LENGTHS[objective]
  config.data.extra_ids = 256 if objective == "ul2" else 0
  config.model.vocab_size += config.data.extra_ids
  config.init.resize = ("embed/table", "encoder/embed/table") if config.data.extra_ids else ()
  both = ("embed", "decoder")
  if encoder == decoder:
    cross = (f"{_LAYERS}/{name}={_LAYERS}/{name.replace('self', 'cross')}" for name in _ATTENTION)
    config.init.rename = (*both, "embed=encoder/embed", "decoder=encoder", *cross)
  else:
    config.init.rename, config.init.reinit = both, ("cross_attention",)
    config.optimizer.param_groups = ("^(?!.*cross_attention): from_step=1000",)
  config.train.batch_size = 1_024
  config.train.steps = round(2e12 / (config.train.batch_size * 2 * _LENGTHS[objective]))
  config.optimizer.learning_rate = 1e-4
  config.optimizer.warmup_steps = 100
  return config
