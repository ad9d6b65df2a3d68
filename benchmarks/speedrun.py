"""How well a model reads after so many minutes on this machine, from scratch: the project's speed run.

  python benchmarks/speedrun.py                                        # three seeds of the tiny config as it is
  python benchmarks/speedrun.py --name narrow --config.model.mlp_dim=256 --config.train.steps=1500

Each seed is a `t2t train` of its own on the installed documentation, timed from its start to its end, and counts if it
ends within --seconds.  It is measured by its loss on all held-out text, in nats for each byte that was masked: so
vocabularies may differ.  Objective, density and lengths of spans may not, for some blanks are easier than others.

Prints a row of the table in docs/first_minutes.md, which any command may beat.
"""

import argparse
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from etils import epath
import numpy as np
import seqio

from t2t import UserError
from t2t.configuration.loading import load_config, override, records
from t2t.data import pipeline, train_data, vocabularies
from t2t.runtime import numeric
from t2t.training import mesh_selection, metric_writers

_ALL = 1_000  # held-out batches: more than there are
_LOG = "log.txt"


def bytes_per_target(name: str, overrides: list[str]) -> float:
  """How many masked bytes stand for each target of the held-out text; sentinels and EOS are targets, too.

  Raises:
    UserError: the vocabulary is neither SentencePiece's nor of bytes.
  """
  config = load_config(name)
  override(config, [*overrides, f"--config.eval.batches={_ALL}"])
  run = train_data.resolved(records(config))
  mesh, _ = mesh_selection.make(run)
  vocabulary = pipeline.vocabulary(run.data)
  if not isinstance(vocabulary, seqio.SentencePieceVocabulary | seqio.ByteVocabulary):
    raise UserError("config.data.vocabulary: the bytes of its tokens are not known; give SentencePiece's, or bytes")
  lengths = _lengths(vocabulary)
  targets = np.concatenate([np.asarray(x["decoder_target_tokens"]) for x in train_data.eval_batches(run, mesh)])
  return float(lengths[targets].sum() / (targets != vocabulary.pad_id).sum())


def _lengths(vocabulary: seqio.Vocabulary) -> np.ndarray:
  """Bytes that each id stands for; none for what frames the text."""
  lengths = np.ones(vocabulary.vocab_size, np.int64)
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    model = vocabulary.tokenizer
    for i in range(model.get_piece_size()):
      lengths[i] = 1 if model.is_byte(i) else len(model.id_to_piece(i).replace("\u2581", " ").encode())
  sentinels = vocabularies.sentinel_ids(vocabulary, vocabularies.num_sentinels(vocabulary))
  lengths[[*vocabularies.framing_ids(vocabulary), *sentinels]] = 0
  return lengths


def train(workdir: pathlib.Path, config: str, overrides: list[str]) -> tuple[float, float]:
  """Seconds of a whole run, and its held-out loss in nats a target."""
  shutil.rmtree(workdir, ignore_errors=True)
  workdir.mkdir(parents=True)
  command = [sys.executable, "-m", "t2t", "train", "--config", config, "--workdir", str(workdir), *overrides]
  started = time.perf_counter()
  with (workdir / _LOG).open("w") as log:
    ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
  seconds = time.perf_counter() - started
  if ended.returncode:
    raise UserError(f"{' '.join(command)} failed:\n{(workdir / _LOG).read_text()[-2_000:]}")
  losses = metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", "eval/loss")
  return seconds, losses[max(losses)]


def main(argv: list[str]) -> None:
  """The command."""
  parser = argparse.ArgumentParser("python benchmarks/speedrun.py", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("--config", default="tiny", help="the recipe")
  parser.add_argument("--name", help="of what is tried, in the table; without: the overrides, or none: as it is")
  parser.add_argument("--seeds", type=int, default=3, help="runs")
  parser.add_argument(
    "--seconds", type=numeric.number(0, above=True), default=240.0, help="that a run may take, start and end included"
  )
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/speedrun"), help="of the runs")
  options, overrides = parser.parse_known_args(argv)
  tried = " ".join(argument.removeprefix("--config.") for argument in overrides)
  name = options.name or tried or "as it is"
  folder = options.workdir / re.sub(r"[^\w.=-]+", "_", name)
  size = bytes_per_target(options.config, overrides)
  losses, times = [], []
  for seed in range(options.seeds):
    run_options = [*overrides, f"--config.train.seed={seed}", f"--config.eval.batches={_ALL}"]
    print(f"seed {seed}: trains up to {options.seconds:.0f} s, see {folder / str(seed) / _LOG}", file=sys.stderr)
    seconds, loss = train(folder / str(seed), options.config, run_options)
    print(f"seed {seed}: {loss:.4f} nats a target, {loss / size:.4f} a byte, {seconds:.0f} s", flush=True)
    losses.append(loss / size)
    times.append(seconds)
  spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
  late = " (too late)" if max(times) > options.seconds else ""
  print(f"| {name} | {statistics.mean(losses):.4f}{spread} | {max(times):.0f}{late} | `{' '.join(overrides)}` |")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
