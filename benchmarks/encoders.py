"""Tiny BERT, DeBERTa and XLNet after equal steps of pre-training, fine-tuned on one classification task.

  python benchmarks/encoders.py --data FOLDER                # three encoders, three seeds: an hour of two cores
  python benchmarks/encoders.py --data FOLDER --steps 1000 --seeds 1 --encoders BERT,XLNet

FOLDER has encyclopedia articles, see electra.py. The encoders have the same width, layers, batches, vocabulary and
optimizer, and read the same articles. The task is to tell which of five headings a paragraph is under; its paragraphs
are from other articles than those of pre-training. Each encoder is fine-tuned from its checkpoint and from random
parameters. A seed changes the initial parameters and the order of the data, in pre-training and in fine-tuning.

Prints a table and writes encoders.json; the same command resumes an interrupted run.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import command_runs
import electra
from etils import epath
from ml_collections import ConfigDict
import numpy as np

from t2t import UserError
from t2t.data import vocabularies
from t2t.runtime import memory
from t2t.training import metric_writers

# name -> (config, objective); XLNet without a memory, so that all read the same batches.
ENCODERS = {
  "BERT": ("tiny_bert", "masked_lm"),
  "DeBERTa": ("tiny_deberta", "masked_lm"),
  "XLNet": ("tiny_xlnet", "permuted_lm"),
}
# Whether fine-tuning starts from the checkpoint's parameters.
STARTS = {"pre-trained": True, "not pre-trained": False}
_LENGTH = 64  # tokens of a row
_PARAGRAPHS = (1_200, 600)  # for fine-tuning, and for evaluation


def encoder_config(encoder: str, folder: pathlib.Path, vocabulary: str, *, seed: int, steps: int) -> ConfigDict:
  """Returns the config of pre-training."""
  name, objective = ENCODERS[encoder]
  config = electra.tiny_config(name, folder, vocabulary, seed=seed)
  config.model.update(memory_length=0, memory_reuse=0, init_scale=0.05)
  config.data.continuous_rows = False
  config.data.objective = objective
  config.data.num_streams = 2
  config.data.inputs_length = config.data.targets_length = _LENGTH
  config.train.steps = steps
  config.eval.every = config.checkpoint.save_interval_steps = steps
  config.checkpoint.max_to_keep = 1
  return config


def write_task(folder: pathlib.Path, vocabulary: str, output: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """Writes the labelled paragraphs as JSON lines, unless they exist; returns the files of both splits."""
  _, train_files, test_files = electra.shards(folder)
  paths = output / "headings_train.jsonl", output / "headings_test.jsonl"
  for path, files, number in zip(paths, (train_files, test_files), _PARAGRAPHS, strict=True):
    if not path.exists():
      texts = vocabularies.load(vocabulary, extra_ids=0)
      examples = electra.paragraphs(electra.texts(files), texts, most=number, words=0)
      rows = zip(examples.texts, examples.sections, strict=True)
      lines = [json.dumps({"text": text, "label": electra.SECTIONS[section]}) for text, section in rows]
      path.write_text("\n".join(lines) + "\n")
  return paths


def finetuning_arguments(
  checkpoint: pathlib.Path, files: tuple[pathlib.Path, pathlib.Path], workdir: pathlib.Path, *, start: str, seed: int
) -> list[str]:
  """Returns the command that fine-tunes a checkpoint, or its shape from random parameters."""
  return [
    *("train", "--config", "finetune"),
    f"--config.init.checkpoint={checkpoint}",
    f"--config.init.parameters={STARTS[start]}",
    f"--config.data.files={files[0]}",
    f"--config.data.eval_files={files[1]}",
    "--config.data.labels=auto",
    f"--config.data.inputs_length={_LENGTH}",
    "--config.train.epochs=3.0",
    f"--config.train.seed={seed}",
    "--config.train.batch_size=16",
    "--config.optimizer.name=adamw",
    "--config.optimizer.scale_by_parameter=False",
    "--config.optimizer.learning_rate=0.0005",
    "--config.optimizer.schedule=linear",
    "--config.optimizer.warmup_ratio=0.1",
    "--config.optimizer.clip_norm=1.0",
    "--config.eval.patience=0",
    "--config.eval.batches=100",
    "--config.eval.num_logged_samples=0",
    *("--workdir", str(workdir)),
  ]


def accuracy(workdir: pathlib.Path) -> float:
  """Returns the accuracy after the last step of fine-tuning, in percent."""
  values = metric_writers.read_metrics(epath.Path(workdir) / "metrics.jsonl", "eval/table/accuracy")
  return values[max(values)]


def table(results: dict[str, Any]) -> str:
  """Formats mean and standard deviation over seeds, a line of Markdown for each encoder."""
  lines = ["| encoder | " + " | ".join(STARTS) + " | difference |", "|---|---|---|---|"]
  for encoder, runs in results["encoders"].items():
    accuracies = [np.array([run[start] for run in runs]) for start in STARTS]
    spread = lambda values: f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.1f}"
    cells = [spread(values) for values in (*accuracies, accuracies[0] - accuracies[1])]
    lines.append(f"| {encoder}, {len(runs)} seeds | {' | '.join(cells)} |")
  lines += [f"| {name} | | {100 * value:.1f} | |" for name, value in results["baselines"].items()]
  return "\n".join(lines)


def baselines(folder: pathlib.Path, vocabulary: str) -> dict[str, float]:
  """Returns the accuracy of a bag of words, and of the most frequent heading."""
  tokens = vocabularies.load(vocabulary, extra_ids=0)
  _, *files = electra.shards(folder)
  fitted, tested = (
    electra.paragraphs(electra.texts(split), tokens, most=most, words=2)
    for split, most in zip(files, _PARAGRAPHS, strict=True)
  )
  frequent = np.bincount(tested.sections).max() / len(tested.sections)
  return {"bag of words": electra.without_model(fitted, tested)["section"], "most frequent heading": float(frequent)}


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/encoders.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data", required=True, type=pathlib.Path, help="folder with the articles, see above")
  parser.add_argument("--encoders", default=",".join(ENCODERS), help=f"comma-separated, of {', '.join(ENCODERS)}")
  parser.add_argument("--steps", type=int, default=3_000, help="steps of pre-training")
  parser.add_argument("--seeds", type=int, default=3, help="runs of each encoder")
  parser.add_argument("--output", default="runs/encoders", type=pathlib.Path, help="folder for results and workdirs")
  options = parser.parse_args(argv)
  encoders = options.encoders.split(",")
  if unknown := [name for name in encoders if name not in ENCODERS]:
    raise UserError(f"--encoders {unknown[0]}: unknown encoder; known are {', '.join(ENCODERS)}")
  for name in ("steps", "seeds"):
    if getattr(options, name) < 1:
      raise UserError(f"--{name} {getattr(options, name)}: must be 1 or more")
  memory.keep_freed_memory()
  output = options.output.resolve()
  output.mkdir(parents=True, exist_ok=True)
  vocabulary = electra.vocabulary_of(options.data, output)
  files = write_task(options.data, vocabulary, output)
  results: dict[str, Any] = {"baselines": baselines(options.data, vocabulary), "encoders": {}}
  # Seed by seed, so that encoders are comparable at any time.
  for seed in range(options.seeds):
    for encoder in encoders:
      workdir = output / f"{encoder}_{seed}"
      config = encoder_config(encoder, options.data, vocabulary, seed=seed, steps=options.steps)
      losses = electra.pretrain(config, workdir)["loss"]
      run: dict[str, float] = {"held_out_loss": losses[options.steps]}
      for start in STARTS:
        finetuned = output / f"{encoder}_{seed}_{start.replace(' ', '_')}"
        command_runs.run(finetuning_arguments(workdir, files, finetuned, start=start, seed=seed), finetuned)
        run[start] = accuracy(finetuned)
      results["encoders"].setdefault(encoder, []).append(run)
      scores = ", ".join(f"{name} {value:.2f}" for name, value in run.items())
      print(f"seed {seed}, {encoder}: {scores}", file=sys.stderr, flush=True)
      (output / "encoders.json").write_text(json.dumps(results, indent=1) + "\n")
  print(table(results))


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
