"""Speed run of the project: quality of a model trained from scratch in a few minutes on this machine.

  python benchmarks/speedrun.py                                        # three seeds of the default tiny config
  python benchmarks/speedrun.py --name narrow --config.model.mlp_dim=256 --config.train.steps=1500

Each seed is a separate `t2t train` on the installed documentation, timed from start to end; it counts if it ends within
--seconds. The metric is the loss on all held-out text, in nats per masked byte, so vocabularies may differ. Objective,
density and lengths of spans must not differ, because some blanks are easier than others.

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

from t2t import UserError
from t2t.configuration.loading import load_config, override, records
from t2t.data import pipeline, train_data, vocabularies
from t2t.runtime import numeric
from t2t.training import mesh_selection, metric_writers

_ALL = 1_000  # held-out batches; more than exist
_LOG = "log.txt"


def bytes_per_target(name: str, overrides: list[str]) -> float:
  """Returns the number of masked bytes per target of the held-out text; sentinels and EOS are targets, too.

  Raises:
    UserError: the vocabulary changes the text, such as WordPiece.
  """
  config = load_config(name)
  override(config, [*overrides, f"--config.eval.batches={_ALL}"])
  run = train_data.resolved(records(config))
  mesh, _ = mesh_selection.make(run)
  vocabulary = pipeline.vocabulary(run.data)
  lengths = vocabularies.token_bytes(vocabulary)
  if lengths is None:
    raise UserError("config.data.vocabulary: the bytes of its tokens are unknown; give a SentencePiece model, or bytes")
  targets = np.concatenate([np.asarray(x["decoder_target_tokens"]) for x in train_data.eval_batches(run, mesh)])
  return float(lengths[targets].sum() / (targets != vocabulary.pad_id).sum())


def train(workdir: pathlib.Path, config: str, overrides: list[str]) -> tuple[float, float]:
  """Trains a whole run; returns its seconds and its held-out loss in nats per target."""
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
  """Runs the benchmark."""
  parser = argparse.ArgumentParser("python benchmarks/speedrun.py", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("--config", default="tiny", help="the recipe")
  parser.add_argument("--name", help="name in the table; default: the overrides")
  parser.add_argument("--seeds", type=int, default=3, help="runs")
  parser.add_argument(
    "--seconds", type=numeric.number(0, above=True), default=240.0, help="time limit of a run, including start and end"
  )
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/speedrun"), help="folder for the runs")
  options, overrides = parser.parse_known_args(argv)
  tried = " ".join(argument.removeprefix("--config.") for argument in overrides)
  name = options.name or tried or "default config"
  folder = options.workdir / re.sub(r"[^\w.=-]+", "_", name)
  size = bytes_per_target(options.config, overrides)
  losses, times = [], []
  for seed in range(options.seeds):
    run_options = [*overrides, f"--config.train.seed={seed}", f"--config.eval.batches={_ALL}"]
    print(
      f"seed {seed}: training for up to {options.seconds:.0f} s, log in {folder / str(seed) / _LOG}", file=sys.stderr
    )
    seconds, loss = train(folder / str(seed), options.config, run_options)
    print(f"seed {seed}: {loss:.4f} nats per target, {loss / size:.4f} per byte, {seconds:.0f} s", flush=True)
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
