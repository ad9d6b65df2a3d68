"""Comparison with transformers on this machine's CPU: training steps and decoding, alternating in one process.

  make .venv-parity/installed && .venv-parity/bin/python benchmarks/peers.py
  .venv-parity/bin/python benchmarks/peers.py t5 greedy --dtype bfloat16 --rounds 9

A training step is forward, backward and AdamW's update, without dropout: T5 1.1 small on 8 x 512/114 random tokens,
BERT base on 8 x 128, GPT-2 small on 2 x 512. greedy and beams (4) generate 64 tokens for each of 16 inputs of 128
random tokens with T5 1.1 small; EOS is disabled. Parameters are float32 in training. For bfloat16, t2t computes in
bfloat16 as its configs do, and transformers uses torch.autocast, or bfloat16 parameters for decoding. The first round
is not counted; then both alternate. Ratios are those of medians and of bests.
"""

import argparse
from collections.abc import Callable
import pathlib
import statistics
import sys
import time

import jax
import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import decode as decode_benchmark  # noqa: E402
import train_step as step_benchmark  # noqa: E402

from t2t.commands.options import config_parser, parse  # noqa: E402
from t2t.configuration.loading import records  # noqa: E402
from t2t.configuration.schema import Config  # noqa: E402
from t2t.inference import decoding  # noqa: E402
from t2t.runtime import memory  # noqa: E402

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROWS, _INPUTS_LENGTH, _NEW_TOKENS = 16, 128, 64
# Work -> config and overrides.
_TRAINING = {
  "t5": ("t5_1_1_small", "train.batch_size=8", "train.logits_chunk_tokens=1024"),
  "bert": ("bert_base", "train.batch_size=8", "data.inputs_length=128"),
  "gpt2": ("gpt2_small", "train.batch_size=2", "data.targets_length=512", "train.logits_chunk_tokens=1024"),
}
_BEAMS = {"greedy": 1, "beams": 4}
WORK = (*_TRAINING, *_BEAMS)


def _config(name: str, dtype: str, *overrides: str) -> Config:
  overrides = (f"model.dtype={dtype}", "model.dropout_rate=0", "optimizer.name=adamw", *overrides)
  _, config = parse(config_parser("", ""), ["--config", name, *(f"--config.{override}" for override in overrides)])
  return records(config)


def _t5() -> transformers.PreTrainedModel:
  size = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6}
  kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
  return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=32_128, **size, **kind))


def _peer_step(work: str, config: Config, dtype: str) -> Callable[[], object]:
  """Returns a training step of transformers' model of the same size and batch shapes."""
  numbers = np.random.default_rng(0)
  tokens = lambda *shape: torch.from_numpy(numbers.integers(1, 30_000, shape))
  rows, inputs, targets = config.train.batch_size, config.data.inputs_length, config.data.targets_length
  if work == "t5":
    model, batch = _t5(), {"input_ids": tokens(rows, inputs), "labels": tokens(rows, targets)}
  elif work == "bert":
    model, ids = transformers.BertForMaskedLM(transformers.BertConfig()), tokens(rows, inputs)
    hidden = torch.from_numpy(numbers.random((rows, inputs)) < config.data.noise_density)
    batch = {"input_ids": ids, "labels": torch.where(hidden, ids, -100)}
  else:
    model, ids = transformers.GPT2LMHeadModel(transformers.GPT2Config()), tokens(rows, targets)
    batch = {"input_ids": ids, "labels": ids}
  model.train()
  for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  optimizer = torch.optim.AdamW(model.parameters())

  def step() -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
      loss = model(**batch).loss
    loss.backward()
    optimizer.step()

  return step


def _peer_write(beams: int, dtype: str) -> Callable[[], object]:
  model = _t5().to(_DTYPES[dtype]).eval()
  ids = torch.from_numpy(np.random.default_rng(0).integers(2, 32_000, (_ROWS, _INPUTS_LENGTH)))
  lengths = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS}

  def write() -> None:
    with torch.inference_mode():
      model.generate(input_ids=ids, num_beams=beams, do_sample=False, **lengths)

  return write


def both(work: str, dtype: str) -> tuple[Callable[[], object], Callable[[], object], int]:
  """Returns t2t's and transformers' run of the work, and its number of tokens (read and predicted, or generated)."""
  if work in _BEAMS:
    beams = _BEAMS[work]
    decode_config = decoding.DecodeConfig(_NEW_TOKENS, num_beams=beams, temperature=0.0, top_k=0, top_p=1.0)
    config = _config("t5_1_1_small", dtype)
    write, _ = decode_benchmark.start(config, decode_config, batch_size=_ROWS, inputs_length=_INPUTS_LENGTH)
    return write, _peer_write(beams, dtype), _ROWS * _NEW_TOKENS
  config = _config(_TRAINING[work][0], dtype, *_TRAINING[work][1:])
  return step_benchmark.start(config), _peer_step(work, config, dtype), step_benchmark.tokens_per_step(config)


def compare(work: str, dtype: str, rounds: int) -> dict:
  """Runs both in turn; returns speeds and ratios."""
  ours, theirs, tokens = both(work, dtype)
  seconds = ([], [])
  for _ in range(rounds + 1):
    for run, took in zip((ours, theirs), seconds, strict=True):
      started = time.perf_counter()
      run()
      took.append(time.perf_counter() - started)
  seconds = [took[1:] for took in seconds]
  best, median = ([kind(took) for took in seconds] for kind in (min, statistics.median))
  return {
    "rates": [tokens / median_seconds for median_seconds in median],
    "best": best[1] / best[0],
    "median": median[1] / median[0],
  }


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  kind = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser("python benchmarks/peers.py", description=__doc__, formatter_class=kind)
  parser.add_argument("work", nargs="*", metavar="WORK", help=f"work to run; default: all: {', '.join(WORK)}")
  parser.add_argument("--dtype", choices=(*_DTYPES, "both"), default="both", help="dtype of matrix products")
  parser.add_argument("--rounds", type=int, default=5, help="number of timed runs of each")
  options = parser.parse_args(argv)
  for work in options.work:
    if work not in WORK:
      parser.error(f"{work!r}: unknown work; known are {', '.join(WORK)}")
  memory.keep_freed_memory()
  transformers.logging.set_verbosity_error()
  torch.manual_seed(0)
  print(f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
  print(f"{'work':<8}{'dtype':<10}{'t2t':>12}{'transformers':>14}   tokens/s, ratio of medians, of bests")
  for work in options.work or WORK:
    for dtype in _DTYPES if options.dtype == "both" else (options.dtype,):
      result = compare(work, dtype, options.rounds)
      ours, theirs = result["rates"]
      ratios = f"{result['median']:.2f}  {result['best']:.2f}"
      print(f"{work:<8}{dtype:<10}{ours:>12,.0f}{theirs:>14,.0f}   {ratios}", flush=True)


if __name__ == "__main__":
  main(sys.argv[1:])
