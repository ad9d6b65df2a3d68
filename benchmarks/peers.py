"""Comparison with transformers on this machine's CPU: training, decoding and embedding, alternating in one process.

  make .venv-parity/installed && .venv-parity/bin/python benchmarks/peers.py
  .venv-parity/bin/python benchmarks/peers.py t5 greedy --dtype bfloat16 --rounds 9

A training step is forward, backward and AdamW's update, without dropout: T5 1.1 small on 8 x 512/114 random tokens,
BERT base on 8 x 128, ModernBERT base on 4 x 256, GPT-2 small on 2 x 512, a Llama of 134 M parameters on 2 x 512. In
`mixed` BERT base reads 32 texts of 16 to 128 tokens for one update: t2t packs them into rows, transformers
accumulates batches of 8, each padded to its longest text; only tokens of texts count. greedy and beams (4) generate
64 tokens for each of 16 inputs of 128 random tokens with T5 1.1 small; EOS is disabled. `embed` makes mean vectors of
1,000 texts of 5 to 200 words with BERT base, tokens included; transformers reads batches of 32 in the order of their
lengths, as sentence-transformers does.

Parameters are float32 in training. For bfloat16, t2t computes in bfloat16 as its configs do, and transformers uses
torch.autocast, or bfloat16 parameters for decoding and embedding. The first round is not counted; then both alternate.
Ratios are those of medians and of bests. Peak memory is that of a process of its own that does the work twice,
libraries included; that of transformers also loads JAX for the sizes of the work, 0.2 GB.
"""

import argparse
from collections.abc import Callable
import functools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))

DTYPES = ("float32", "bfloat16")
T2T, TRANSFORMERS = "t2t", "transformers"
_ROWS, _INPUTS_LENGTH, _NEW_TOKENS = 16, 128, 64
_LLAMA = dict(embed_dim=768, num_heads=12, num_kv_heads=4, head_dim=64, mlp_dim=2048, num_decoder_layers=12)
# Work -> config and overrides.
_TRAINING = {
  "t5": ("t5_1_1_small", "train.batch_size=8", "train.logits_chunk_tokens=1024"),
  "bert": ("bert_base", "train.batch_size=8", "data.inputs_length=128"),
  "modern_bert": ("modern_bert_base", "train.batch_size=4", "data.inputs_length=256", "stages=()"),
  "gpt2": ("gpt2_small", "train.batch_size=2", "data.targets_length=512", "train.logits_chunk_tokens=1024"),
  "llama": (
    "llama2_7b",
    "train.batch_size=2",
    "data.targets_length=512",
    "train.logits_chunk_tokens=1024",
    *(f"model.{name}={value}" for name, value in _LLAMA.items()),
  ),
}
_MIXED, _EMBED = "mixed", "embed"
_TEXTS, _WORDS, _BATCH = 1_000, (5, 200), 32  # of `embed`
_BEAMS = {"greedy": 1, "beams": 4}
WORK = (*_TRAINING, _MIXED, *_BEAMS, _EMBED)

Run = Callable[[], object]


# ---- t2t -------------------------------------------------------------------------------------------------------------


def _config(name: str, dtype: str, *overrides: str) -> Any:
  from t2t.commands.options import config_parser, parse
  from t2t.configuration.loading import records

  overrides = (f"model.dtype={dtype}", "model.dropout_rate=0", "optimizer.name=adamw", *overrides)
  _, config = parse(config_parser("", ""), ["--config", name, *(f"--config.{override}" for override in overrides)])
  return records(config)


def _training(work: str, dtype: str, *more: str) -> Any:
  """Returns the config of a training step; that of `mixed` is BERT's."""
  name, *overrides = _TRAINING["bert" if work == _MIXED else work]
  return _config(name, dtype, *overrides, *more)


def _our_write(beams: int, dtype: str) -> Run:
  import decode as decode_benchmark

  from t2t.inference import decoding

  decode_config = decoding.DecodeConfig(_NEW_TOKENS, num_beams=beams, temperature=0.0, top_k=0, top_p=1.0)
  config = _config("t5_1_1_small", dtype)
  write, _ = decode_benchmark.start(config, decode_config, batch_size=_ROWS, inputs_length=_INPUTS_LENGTH)
  return write


def _our_mixed(dtype: str) -> Run:
  import jax
  import train_step as step_benchmark

  rows = packed(mixed_lengths(), width=_INPUTS_LENGTH)
  config = _training(_MIXED, dtype, f"train.batch_size={len(rows)}", "data.pack=True")
  running = step_benchmark.start(config)
  batch = {name: np.array(value) for name, value in jax.device_get(running.batch).items()}
  for row, lengths in enumerate(rows):
    numbers = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    padding = _INPUTS_LENGTH - len(numbers)
    batch["encoder_segment_ids"][row] = np.pad(numbers, (0, padding))
    batch["encoder_positions"][row] = np.pad(places, (0, padding))
    batch["encoder_loss_weights"][row, len(numbers) :] = 0
  running.batch = {name: jax.device_put(value, running.batch[name].sharding) for name, value in batch.items()}
  return running


def _our_embedding(folder: str, dtype: str) -> Run:
  import t2t

  model, lines = t2t.load(pathlib.Path(folder) / dtype), texts()
  return lambda: model.embed(lines)


def ours(work: str, dtype: str, folder: str) -> Run:
  """Returns t2t's run of the work."""
  from t2t.runtime import memory

  memory.keep_freed_memory()
  if work in _BEAMS:
    return _our_write(_BEAMS[work], dtype)
  if work == _EMBED:
    return _our_embedding(folder, dtype)
  if work == _MIXED:
    return _our_mixed(dtype)
  import train_step as step_benchmark

  return step_benchmark.start(_training(work, dtype))


# ---- transformers ----------------------------------------------------------------------------------------------------


def _t5() -> Any:
  import transformers

  size = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6}
  kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
  kind |= {"dropout_rate": 0.0}  # also of attention, which has no module
  return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=32_128, **size, **kind))


def _their_model(work: str) -> Any:
  import transformers

  if work == "t5":
    return _t5()
  if work in ("bert", _MIXED):
    return transformers.BertForMaskedLM(
      transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
  if work == "modern_bert":
    return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig())
  if work == "gpt2":
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))
  size = {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64}
  size |= {"intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 32_000}
  return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size))


def _their_batches(work: str, dtype: str) -> list[dict[str, Any]]:
  """Returns one batch of the sizes of t2t's, or the batches of `mixed`."""
  import torch

  numbers = np.random.default_rng(0)
  tokens = lambda *shape: torch.from_numpy(numbers.integers(1, 30_000, shape))
  config = _training(work, dtype)
  hidden = lambda ids: torch.where(torch.rand(ids.shape) < (config.data.noise_density or 0.15), ids, -100)
  if work == _MIXED:
    batches = []
    for lengths in np.array_split(mixed_lengths(), len(mixed_lengths()) // 8):
      ids = tokens(len(lengths), max(lengths))
      mask = torch.arange(max(lengths))[None] < torch.from_numpy(lengths)[:, None]
      batches.append({"input_ids": ids, "attention_mask": mask.long(), "labels": torch.where(mask, hidden(ids), -100)})
    return batches
  rows, inputs, targets = config.train.batch_size, config.data.inputs_length, config.data.targets_length
  if work == "t5":
    return [{"input_ids": tokens(rows, inputs), "labels": tokens(rows, targets)}]
  ids = tokens(rows, inputs if work in ("bert", "modern_bert") else targets)
  return [{"input_ids": ids, "labels": hidden(ids) if work in ("bert", "modern_bert") else ids}]


def _their_step(work: str, dtype: str) -> Run:
  import torch

  batches, model = _their_batches(work, dtype), _their_model(work)
  model.train()
  assert not [x for x in model.modules() if isinstance(x, torch.nn.Dropout) and x.p]
  optimizer = torch.optim.AdamW(model.parameters())

  def step() -> None:
    optimizer.zero_grad()
    for batch in batches:
      with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        loss = model(**batch).loss
      loss.backward()
    optimizer.step()

  return step


def _their_write(beams: int, dtype: str) -> Run:
  import torch

  model = _t5().to(getattr(torch, dtype)).eval()
  ids = torch.from_numpy(np.random.default_rng(0).integers(2, 32_000, (_ROWS, _INPUTS_LENGTH)))
  lengths = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS}

  def write() -> None:
    with torch.inference_mode():
      model.generate(input_ids=ids, num_beams=beams, do_sample=False, **lengths)

  return write


def _their_embedding(folder: str, dtype: str) -> Run:
  import torch
  import transformers

  tokenizer = transformers.AutoTokenizer.from_pretrained(pathlib.Path(folder) / dtype)
  model = transformers.AutoModel.from_pretrained(pathlib.Path(folder) / dtype, dtype=getattr(torch, dtype)).eval()
  lines = sorted(texts(), key=len)

  def embed() -> list[Any]:
    vectors = []
    for first in range(0, len(lines), _BATCH):
      batch = tokenizer(lines[first : first + _BATCH], padding=True, truncation=True, return_tensors="pt")
      with torch.inference_mode():
        states = model(**batch).last_hidden_state
      mask = batch["attention_mask"][..., None]
      vectors.append((states * mask).sum(1) / mask.sum(1))
    return vectors

  return embed


def theirs(work: str, dtype: str, folder: str) -> Run:
  """Returns transformers' run of the work."""
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  torch.manual_seed(0)
  if work in _BEAMS:
    return _their_write(_BEAMS[work], dtype)
  return _their_embedding(folder, dtype) if work == _EMBED else _their_step(work, dtype)


# ---- Work ------------------------------------------------------------------------------------------------------------


def mixed_lengths() -> np.ndarray:
  """Returns the numbers of tokens of 32 texts, 16 to 128."""
  return np.random.default_rng(0).integers(16, _INPUTS_LENGTH + 1, 32)


def packed(lengths: np.ndarray, *, width: int) -> list[list[int]]:
  """Returns the lengths of the texts in each row: each text is in the first row with room for it.

  In:  [5, 4, 3, 2], width=7
  Out: [[5, 2], [4, 3]]
  """
  rows: list[list[int]] = []
  for length in map(int, lengths):
    row = next((row for row in rows if sum(row) + length <= width), None)
    if row is None:
      rows.append([length])
    else:
      row.append(length)
  return rows


@functools.cache
def texts() -> list[str]:
  """Returns texts of words of the documentation, 5 to 200 words each."""
  from t2t.data import docs_corpus

  numbers = np.random.default_rng(0)
  lines = docs_corpus.files()["train"].read_text().splitlines()[:_TEXTS]
  words = " ".join(json.loads(line)["text"] for line in lines).split()
  sizes = numbers.integers(*_WORDS, _TEXTS)
  starts = numbers.integers(0, len(words) - _WORDS[1], _TEXTS)
  return [" ".join(words[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def bert_folder(folder: str) -> None:
  """Writes a BERT base with random parameters in each dtype, and a WordPiece vocabulary of the texts."""
  import torch
  import transformers

  from t2t.data.vocabularies import training

  path = training.train_wordpiece(texts(), size=4_000, output_dir=folder)
  model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=4_000))
  for dtype in DTYPES:
    of_dtype = pathlib.Path(folder) / dtype
    model.to(getattr(torch, dtype)).save_pretrained(of_dtype)
    shutil.copyfile(path, of_dtype / "vocab.txt")
    (of_dtype / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def tokens_of(work: str, dtype: str) -> int:
  """Returns the number of tokens read and predicted, or generated; for `embed` the number of texts."""
  if work in _BEAMS:
    return _ROWS * _NEW_TOKENS
  if work == _EMBED:
    return _TEXTS
  if work == _MIXED:
    return int(mixed_lengths().sum())
  import train_step as step_benchmark

  return step_benchmark.tokens_per_step(_training(work, dtype))


def compare(work: str, dtype: str, rounds: int, folder: str) -> dict[str, Any]:
  """Runs both in turn; returns speeds and ratios."""
  runs = ours(work, dtype, folder), theirs(work, dtype, folder)
  seconds: tuple[list[float], ...] = ([], [])
  for _ in range(rounds + 1):
    for run, took in zip(runs, seconds, strict=True):
      started = time.perf_counter()
      run()
      took.append(time.perf_counter() - started)
  best, median = ([kind(took[1:]) for took in seconds] for kind in (min, statistics.median))
  return {
    "rates": [tokens_of(work, dtype) / median_seconds for median_seconds in median],
    "best": best[1] / best[0],
    "median": median[1] / median[0],
  }


def peak_memory(work: str, dtype: str, side: str, folder: str) -> float:
  """Returns the peak memory of a process that does the work twice with one library, in GB."""
  command = [sys.executable, __file__, work, "--dtype", dtype, "--only", side, "--folder", folder]
  # Not ru_maxrss, which begins with the size of this process.
  child = subprocess.run(command, capture_output=True, text=True, check=False)
  if child.returncode:
    raise SystemExit(f"{' '.join(command)} failed:\n{child.stderr}")
  return int(child.stdout.split()[-2]) * 1024 / 1e9


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  kind = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser("python benchmarks/peers.py", description=__doc__, formatter_class=kind)
  parser.add_argument("work", nargs="*", metavar="WORK", help=f"work to run; default: all: {', '.join(WORK)}")
  parser.add_argument("--dtype", choices=(*DTYPES, "both"), default="both", help="dtype of matrix products")
  parser.add_argument("--rounds", type=int, default=5, help="number of timed runs of each")
  parser.add_argument(
    "--only", choices=(T2T, TRANSFORMERS), help="do the work twice with one library, and print its peak memory"
  )
  parser.add_argument("--folder", help="folder of the model of `embed`; default: written anew")
  options = parser.parse_args(argv)
  for work in options.work:
    if work not in WORK:
      parser.error(f"{work!r}: unknown work; known are {', '.join(WORK)}")
  if options.only:
    (work,) = options.work
    run = (ours if options.only == T2T else theirs)(work, options.dtype, options.folder)
    run(), run()
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("VmHWM")))  # "VmHWM:    1234 kB"
    return
  import jax
  import torch
  import transformers

  print(f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
  rates = f"{'work':<12}{'dtype':<10}{T2T:>9}{TRANSFORMERS:>14}"
  print(f"{rates}  ratio (best)   GB of t2t, transformers; tokens or texts/s")
  with tempfile.TemporaryDirectory() as temporary:
    folder = options.folder or temporary
    chosen = options.work or WORK
    if _EMBED in chosen and not options.folder:
      bert_folder(folder)
    for work in chosen:
      for dtype in DTYPES if options.dtype == "both" else (options.dtype,):
        result = compare(work, dtype, options.rounds, folder)
        memory = [peak_memory(work, dtype, side, folder) for side in (T2T, TRANSFORMERS)]
        left, right = result["rates"]
        row = f"{work:<12}{dtype:<10}{left:>9,.0f}{right:>14,.0f}  {result['median']:.2f} ({result['best']:.2f})"
        print(f"{row}    {memory[0]:.2f}, {memory[1]:.2f}", flush=True)


if __name__ == "__main__":
  main(sys.argv[1:])
