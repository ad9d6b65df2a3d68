"""Speed run of the project: quality of a model trained from scratch in a few minutes on this machine.

  python benchmarks/speedrun.py                                        # three seeds of the default tiny config
  python benchmarks/speedrun.py --name narrow --config.model.mlp_dim=256 --config.train.steps=1500
  python benchmarks/speedrun.py --record 2026-12-01_narrow --seeds 5   # also writes benchmarks/records/NAME

docs/first_minutes.md has the rules. Each seed is a separate `t2t train` on the installed documentation, timed from
start to end; it counts if it ends within --seconds. The metric is the loss on all held-out text, in nats per masked
byte, so vocabularies may differ. Objective, density and lengths of spans must not differ, because some blanks are
easier than others. The second metric is the share of the 60 blanks of benchmarks/blanks.jsonl that are filled with an
accepted answer, by a beam of 4.

Prints a row of the table in docs/first_minutes.md, and the p value of the difference to the last record: a one-sided
Welch test over the seeds. A record needs p < 0.05.
"""

import argparse
from collections.abc import Sequence
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from etils import epath
import numpy as np
from scipy import stats

import t2t
from t2t import UserError
from t2t.configuration.loading import load_config, override, records
from t2t.data import pipeline, train_data, vocabularies
from t2t.runtime import numeric, versions
from t2t.training import mesh_selection, metric_writers

BENCHMARKS = pathlib.Path(__file__).parent
RECORDS = BENCHMARKS / "records"
_LIMIT = 240.0  # seconds of a record's runs
# Keys of config.data that decide which blanks the evaluation has.
_BLANKS = ("mixture", "objective", "noise_density", "mean_noise_span_length", "files", "eval_files")
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


def is_accepted(prediction: str, accepted: Sequence[str]) -> bool:
  """Returns whether the text after <extra_id_0> is one of the answers; case and surrounding spaces do not count."""
  filled = re.split(r"<extra_id_\d+>", prediction.partition("<extra_id_0>")[2])[0]
  return filled.strip().casefold() in {answer.casefold() for answer in accepted}


def share_filled(workdir: pathlib.Path, blanks: pathlib.Path = BENCHMARKS / "blanks.jsonl") -> float:
  """Returns the percentage of blanks that a run fills with an accepted answer."""
  rows = [json.loads(line) for line in blanks.read_text().splitlines()]
  predictions = t2t.load(workdir).generate([row["text"] for row in rows], beam=4, max_length=16)
  right = [is_accepted(text, row["accepted"]) for text, row in zip(predictions, rows, strict=True)]
  return 100 * statistics.mean(right)


def last_record() -> dict | None:
  """Returns the newest record, by the name of its folder, which begins with the date; None: there is none."""
  files = sorted(RECORDS.glob("*/record.json"))
  return json.loads(files[-1].read_text()) if files else None


def p_value(losses: Sequence[float], before: Sequence[float]) -> float:
  """Returns the probability of a mean at least so much lower if both recipes were equal: a one-sided Welch test."""
  return float(stats.ttest_ind(losses, before, equal_var=False, alternative="less").pvalue)


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser("python benchmarks/speedrun.py", description=__doc__)
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument("--config", default="tiny", help="the recipe")
  parser.add_argument("--name", help="name in the table; default: the overrides")
  parser.add_argument("--seeds", type=numeric.integer(1), default=3, help="runs")
  parser.add_argument(
    "--seconds", type=numeric.number(0, above=True), default=_LIMIT, help="time limit of a run, including start and end"
  )
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/speedrun"), help="folder for the runs")
  parser.add_argument("--record", metavar="DATE_NAME", help="writes benchmarks/records/DATE_NAME/record.json")
  options, overrides = parser.parse_known_args(argv)
  if options.record and (RECORDS / options.record).exists():
    raise UserError(f"--record {options.record}: {RECORDS / options.record} exists. Give another name.")
  if options.record and not re.match(r"\d{4}-\d\d-\d\d_\w", options.record):
    raise UserError(f"--record {options.record}: begin with the date, because records are sorted: 2026-12-01_NAME")
  if options.record and options.seeds < 3:
    raise UserError(f"--seeds {options.seeds}: a record needs at least 3 seeds")
  if options.record and options.seconds > _LIMIT:
    raise UserError(f"--seconds {options.seconds:g}: runs of a record have {_LIMIT:g} s. Leave out --seconds.")
  if options.record and (last := last_record()) and options.record <= last["name"]:
    raise UserError(
      f"--record {options.record} sorts before the last record, {last['name']}, but this order is that of the "
      "comparisons. Give a name that sorts after it."
    )
  if changed := [x for x in overrides if x.startswith(tuple(f"--config.data.{key}=" for key in _BLANKS))]:
    raise UserError(f"{changed[0]} changes the blanks of the evaluation, so its loss does not compare. Leave it out.")
  tried = " ".join(argument.removeprefix("--config.") for argument in overrides)
  name = options.name or options.record or tried or "default config"
  folder = options.workdir / re.sub(r"[^\w.=-]+|^[.]+", "_", name)
  size = bytes_per_target(options.config, overrides)
  losses, times, shares = [], [], []
  for seed in range(options.seeds):
    run_options = [*overrides, f"--config.train.seed={seed}", f"--config.eval.batches={_ALL}"]
    workdir = folder / str(seed)
    print(f"seed {seed}: training for up to {options.seconds:.0f} s, log in {workdir / _LOG}", file=sys.stderr)
    seconds, loss = train(workdir, options.config, run_options)
    losses.append(loss / size)
    times.append(seconds)
    shares.append(share_filled(workdir))
    print(
      f"seed {seed}: {loss:.4f} nats per target, {losses[-1]:.4f} per byte, {shares[-1]:.0f} % of the blanks, "
      f"{seconds:.0f} s",
      flush=True,
    )
  spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
  late = " (too late)" if max(times) > options.seconds else ""
  mean = statistics.mean(losses)
  share = statistics.mean(shares)
  print(f"| {name} | {mean:.4f}{spread} | {share:.0f} | {max(times):.0f}{late} | `{' '.join(overrides)}` |")
  before = last_record()
  p = None
  if before and len(losses) > 1:
    p = p_value(losses, before["nats_per_byte"])
    change = 100 * (mean / statistics.mean(before["nats_per_byte"]) - 1)
    print(f"{change:+.1f} % against the record {before['name']}, p = {p:.4f}")
  if not options.record:
    return
  if late:
    raise UserError(f"no record: a run took {max(times):.0f} s, above --seconds {options.seconds:.0f}")
  if p is not None and p >= 0.05:
    raise UserError(f"no record: p = {p:.4f} is not below 0.05. Improve the recipe, or give more --seeds.")
  row = {
    "name": options.record,
    "written": datetime.date.today().isoformat(),
    "commit": versions.commit(),
    "config": options.config,
    "overrides": overrides,
    "nats_per_byte": [round(loss, 5) for loss in losses],
    "blanks_percent": [round(share, 1) for share in shares],
    "seconds": [round(seconds, 1) for seconds in times],
    "cores": os.cpu_count(),
    "p_against": {before["name"]: p} if before else {},
  }
  (RECORDS / options.record).mkdir(parents=True)
  (RECORDS / options.record / "record.json").write_text(json.dumps(row, indent=2) + "\n")
  print(f"wrote {RECORDS / options.record / 'record.json'}; describe what changed in README.md beside it")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
