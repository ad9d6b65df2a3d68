"""Families of models against a unigram model: each is trained for 200 steps, on bytes of the installed documentation.

  python benchmarks/families.py                                    # all families: 10 to 20 minutes on two cores
  python benchmarks/families.py --families 'deberta*,xlnet'

Each row is a `t2t train` of a tiny config; with --commands the commands are printed and not run. Losses of different
objectives are not comparable. The baseline is the best unigram model of the held-out targets, a lower bound for all
predictions that ignore the context. Exits with 1 if a family is not below it.

Prints a table and writes families.json, to which a run with --families adds its rows.
"""

import argparse
import dataclasses
import fnmatch
import json
import pathlib
import shlex
import sys

import command_runs
from etils import epath
from ml_collections import ConfigDict

from t2t import UserError, losses
from t2t.configuration.loading import load_config, override, records
from t2t.data import docs_corpus, pipeline
from t2t.runtime import memory
from t2t.training import metric_writers


@dataclasses.dataclass(frozen=True)
class Family:
  """A row of the table.

  config: name of a shipped config.
  options: further options of `t2t train`.
  metric: held-out loss that is compared with the unigram model's.
  devices: number of CPU devices.
  """

  config: str
  options: tuple[str, ...] = ()
  metric: str = "loss"
  devices: int = 1


# Encoders predict 15 % of the positions, so they get more and shorter rows. Single bytes are masked: masked words would
# leave too little context.
_ENCODER = (
  "--config.train.batch_size=128",
  "--config.data.inputs_length=16",
  "--config.data.targets_length=16",
  "--config.optimizer.scale_by_parameter=False",
  "--config.optimizer.learning_rate=0.002",
  "--config.eval.batches=20",
)
_MASKED = (*_ENCODER, "--config.data.objective=masked_lm")
_MEMORY = ("--config.model.memory_length=12", "--config.model.memory_reuse=8")  # rows of 16 begin 8 after each other
_NO_MEMORY = ("--config.model.memory_length=0", "--config.model.memory_reuse=0", "--config.data.continuous_rows=False")
FAMILIES = {
  "Transformer": Family("tiny_transformer"),
  "Universal Transformer, adaptive": Family("tiny_universal"),
  "RedLLM": Family("tiny_red_llm"),
  "Switch Transformer": Family("tiny_switch"),
  "Mixtral": Family("tiny_mixtral"),
  "Qwen 2": Family("tiny_qwen2"),
  "Transformer-XL": Family("tiny_transformer_xl", ("--config.model.memory_length=32",)),
  "Reformer's attention": Family("tiny_gpt", ("--config.model.attention=lsh", "--config.model.lsh_chunk=8")),
  "multi-token prediction": Family("tiny_gpt", ("--config.model.future_tokens=2", "--config.train.loss=multi_token")),
  "pipeline of two stages": Family(
    "tiny_gpt", ("--config.mesh.stage=2", "--config.model.num_decoder_layers=2"), devices=2
  ),
  "DeBERTa": Family("tiny_deberta", _MASKED),
  "DeBERTa 2": Family("tiny_deberta_v2", _MASKED),
  "DeBERTa 3, generator": Family("tiny_deberta_v3", _MASKED, metric="generator_loss"),
  "NEZHA": Family("tiny_nezha", _MASKED),
  "XLNet": Family("tiny_xlnet", (*_ENCODER, *_MEMORY)),
  "permuted LM": Family("tiny_xlnet", (*_ENCODER, *_NO_MEMORY, "--config.data.objective=permuted_lm")),
  # Two segments share a row, and most examples hide one side of the context.
  "UniLM": Family(
    "tiny_unilm",
    (
      *_ENCODER,
      "--config.data.inputs_length=32",
      "--config.data.targets_length=32",
      "--config.train.batch_size=64",
    ),
  ),
  "Longformer": Family("tiny_longformer", _MASKED),
  "MobileBERT": Family("tiny_mobilebert", _MASKED),
  "RemBERT": Family("tiny_rembert", _MASKED),
}


def held_out(config: ConfigDict, workdir: pathlib.Path, *, metric: str = "loss") -> dict[str, float]:
  """Returns a metric of a run's last step, and the loss of the best unigram model on the same held-out targets."""
  values = metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", f"eval/{metric}")
  batches = pipeline.eval_rows(
    records(config).data, config.model.architecture, batch_size=config.train.batch_size, max_batches=config.eval.batches
  )
  return {
    "held_out_loss": values[config.train.steps],
    "unigram_loss": float(losses.unigram_loss(batches, config.model.vocab_size)),
  }


def arguments(family: Family, *, steps: int, seed: int = 0) -> list[str]:
  """Returns the options of `t2t train`, without a workdir."""
  files = docs_corpus.files()
  return [
    *("--config", family.config),
    "--config.data.mixture=",
    "--config.data.task_modules=",
    f"--config.data.files={files['train']}",
    f"--config.data.eval_files={files['validation']}",
    "--config.data.vocabulary=bytes",
    "--config.model.vocab_size=384",
    "--config.data.inputs_length=32",
    "--config.data.targets_length=32",
    f"--config.train.steps={steps}",
    f"--config.train.seed={seed}",
    f"--config.eval.every={steps}",
    "--config.eval.batches=40",
    "--config.eval.num_logged_samples=0",
    f"--config.checkpoint.save_interval_steps={steps}",
    *family.options,
  ]


def shell_command(family: Family, *, steps: int) -> str:
  """Returns the command of a row."""
  devices = f"JAX_NUM_CPU_DEVICES={family.devices} " if family.devices > 1 else ""
  return devices + shlex.join(["t2t", "train", *arguments(family, steps=steps), "--workdir", "WORKDIR"])


def run(family: Family, workdir: pathlib.Path, *, steps: int) -> dict[str, float]:
  """Trains a family without output; returns its held-out loss, the unigram model's, and the seconds of training.

  A run that was completed before is not repeated.

  Raises:
    UserError: the command failed; includes the end of its output.
  """
  options = arguments(family, steps=steps)
  seconds = command_runs.run(["train", *options, "--workdir", str(workdir)], workdir, devices=family.devices)
  config = override(load_config(family.config), options[2:])
  return held_out(config, workdir, metric=family.metric) | {"seconds": seconds}


def behind(results: dict[str, dict[str, float]]) -> list[str]:
  """Returns the families that are not below the unigram model, NaN included."""
  return [name for name, row in results.items() if not row["held_out_loss"] < row["unigram_loss"]]


def table(results: dict[str, dict[str, float]]) -> str:
  """Formats a line of Markdown for each family."""
  lines = ["| family | config | held-out loss | unigram model | difference | seconds |", "|---|---|---|---|---|---|"]
  for name in (name for name in FAMILIES if name in results):
    row = results[name]
    difference = row["held_out_loss"] - row["unigram_loss"]
    figures = f"{row['held_out_loss']:.3f} | {row['unigram_loss']:.3f} | {difference:+.3f} | {row['seconds']:.0f}"
    lines.append(f"| {name} | `{FAMILIES[name].config}` | {figures} |")
  return "\n".join(lines)


def main(argv: list[str]) -> int:
  """Runs the benchmark; returns 1 if a family is not below the unigram model."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/families.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--families", default="*", help=f"comma-separated patterns of configs, or of {', '.join(FAMILIES)}"
  )
  parser.add_argument("--steps", type=int, default=200, help="steps of each family")
  parser.add_argument("--commands", action="store_true", help="prints the commands, and trains nothing")
  parser.add_argument(
    "--output", default="runs/families", type=pathlib.Path, help="folder for families.json and workdirs"
  )
  options = parser.parse_args(argv)
  patterns = options.families.split(",")
  chosen = {name: family for name, family in FAMILIES.items() if _is_chosen(name, family, patterns)}
  if not chosen:
    raise UserError(f"--families {options.families}: no family matches; known are {', '.join(FAMILIES)}")
  if options.commands:
    print("\n".join(shell_command(family, steps=options.steps) for family in chosen.values()))
    return 0
  memory.keep_freed_memory()
  options.output.mkdir(parents=True, exist_ok=True)
  for number, (name, family) in enumerate(chosen.items(), start=1):
    row = run(family, options.output / "".join(x if x.isalnum() else "_" for x in name), steps=options.steps)
    print(
      f"{number}/{len(chosen)}  {name}: held-out loss {row['held_out_loss']:.3f}, unigram model "
      f"{row['unigram_loss']:.3f}",
      file=sys.stderr,
      flush=True,
    )
    record = options.output / "families.json"
    results = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps(results | {name: row}, indent=1) + "\n")
  results = json.loads(record.read_text())
  print(table(results))
  if late := behind({name: results[name] for name in chosen}):
    print(f"\nnot below the unigram model: {', '.join(late)}", file=sys.stderr)
    return 1
  return 0


def _is_chosen(name: str, family: Family, patterns: list[str]) -> bool:
  words = (name, family.config, family.config.removeprefix("tiny_"))
  return any(fnmatch.fnmatch(word, pattern) for pattern in patterns for word in words)


if __name__ == "__main__":
  try:
    sys.exit(main(sys.argv[1:]))
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
