"""Early exit of a fine-tuned encoder: accuracy against layers, and the time that leaving early saves.

  python benchmarks/early_exit.py --checkpoint runs/encoders/BERT_0 \\
    --train runs/encoders/headings_train.jsonl --test runs/encoders/headings_test.jsonl     # minutes on two cores

The checkpoint and the files are those of encoders.py; any encoder and any table with labels do. Three models are
fine-tuned: without exits; with all exits at once (PABEE); and, from the first, with exits on a frozen body (DeeBERT).
`t2t exits` measures the last two. Then all rows are classified with and without early exit in turns, and the least CPU
time of each is compared with that of all layers: a ratio in one process, which other processes hardly change.

Prints Markdown tables, and writes exits.jsonl, exits.png and times.json; finished parts are not repeated.
"""

import argparse
import json
import pathlib
import time
import warnings

from flax import nnx
import numpy as np

import t2t
from t2t import UserError, sharding
from t2t import __main__ as commands
from t2t.inference import head_predictor
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.runtime import numeric

_REPEATS = 2


def command(*arguments: str) -> None:
  """Runs a t2t command in this process.

  Raises:
    SystemExit: the command failed.
  """
  if code := commands.main(list(arguments)):
    raise SystemExit(code)


def finetune(options: argparse.Namespace, name: str, start: pathlib.Path, *keys: str) -> pathlib.Path:
  """Fine-tunes a model unless that is done already, and returns its folder."""
  folder = options.output / name
  if (folder / "checkpoints" / str(options.steps)).exists():
    return folder
  command(
    *("train", "--config", "finetune", "--workdir", str(folder), f"--config.init.checkpoint={start}"),
    *(f"--config.data.files={options.train}", f"--config.data.eval_files={options.test}"),
    *("--config.data.labels=auto", "--config.data.inputs_length=64", f"--config.train.steps={options.steps}"),
    *("--config.train.batch_size=16", "--config.optimizer.name=adamw", "--config.optimizer.schedule=linear"),
    *("--config.optimizer.scale_by_parameter=False", f"--config.optimizer.learning_rate={options.rate}"),
    *("--config.optimizer.warmup_ratio=0.1", "--config.optimizer.clip_norm=1.0", "--config.eval.patience=0"),
    *(f"--config.eval.every={options.steps}", "--config.eval.batches=100", *keys),
  )
  return folder


def times(folder: pathlib.Path, test: pathlib.Path) -> list[dict[str, float | str]]:
  """Returns mean layers, accuracy and the ratio of CPU times of some rules."""
  rows = [json.loads(line) for line in test.read_text().splitlines()]
  labels, texts = [row["label"] for row in rows], [{"text": row["text"]} for row in rows]
  warnings.simplefilter("ignore")  # texts are cut, as in training
  model = t2t.load(folder)
  layers = model.config.num_encoder_layers
  rules: dict[str, dict[str, float]] = {"all layers": {}}
  rules |= {f"entropy {x}": {"exit_entropy": x} for x in (1.2, 0.8)}
  rules |= {f"patience {n}": {"exit_patience": n} for n in range(1, layers - 1)}
  best, predicted = dict.fromkeys(rules, float("inf")), {name: [] for name in rules}
  for repeat in range(1 + _REPEATS):  # the first compiles
    for name, rule in rules.items():
      start = time.process_time()
      predicted[name] = model.classify(texts, **rule)
      if repeat:
        best[name] = min(best[name], time.process_time() - start)
  measured = []
  for name, answers in predicted.items():
    right = sum(answer["prediction"] == label for answer, label in zip(answers, labels, strict=True))
    used = sum(answer.get("layers", layers) for answer in answers) / len(answers)
    ratio = best[name] / best["all layers"]
    measured.append({"rule": name, "layers": used, "accuracy": 100 * right / len(labels), "time": ratio})
  return measured


def times_of_layers(*, layers: int = 12, width: int = 256, rows: int = 64, length: int = 128) -> list[dict[str, float]]:
  """Returns mean layers and the ratio of CPU times for a model with random parameters, whose rows leave evenly.

  The cost of a layer does not depend on the weights.
  """
  config = TransformerConfig(
    **dict(architecture="encoder_only", vocab_size=512, embed_dim=width, num_heads=8, head_dim=width // 8),
    **dict(mlp_dim=4 * width, num_encoder_layers=layers, dtype="float32", positions="rotary", scale_attention=True),
    heads=(HeadConfig("topic", 4),),
    exits=True,
  )
  graphdef, state = nnx.split(transformer.build(config, nnx.Rngs(0)), graph=False)
  params, random = nnx.to_pure_dict(state), np.random.default_rng(0)
  examples = [
    {"inputs": random.integers(3, 512, length).tolist(), "answer_heads": [1] + [0] * (length - 1)} for _ in range(rows)
  ]
  mesh = sharding.make_mesh({"data": -1})
  make = lambda exits: head_predictor.of_model(config, graphdef, mesh, exits=exits, pad_id=0, batch_size=rows)
  answerers = {"all layers": make((0.0, 0))} | {f"patience {n}": make((0.0, n)) for n in (1, 2, 3, 5)}
  best = dict.fromkeys(answerers, float("inf"))
  for repeat in range(1 + _REPEATS):
    for name, answerer in answerers.items():
      start = time.process_time()
      answerer.logits(params, config.heads[0], examples)
      if repeat:
        best[name] = min(best[name], time.process_time() - start)
  return [
    {"rule": name, "layers": float(np.mean(x.layers or layers)), "time": best[name] / best["all layers"]}
    for name, x in answerers.items()
  ]


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--checkpoint", type=pathlib.Path, required=True, help="pre-trained encoder")
  parser.add_argument("--train", type=pathlib.Path, required=True, help="JSON lines with text and label")
  parser.add_argument("--test", type=pathlib.Path, required=True, help="held-out JSON lines")
  parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/early_exit"))
  parser.add_argument("--steps", type=int, default=150, help="of each fine-tuning")
  parser.add_argument("--rate", type=numeric.number(0.0), default=5e-4, help="learning rate")
  options = parser.parse_args()
  print("| 12 layers of width 256: rule | layers | time |\n|---|---|---|")
  for row in times_of_layers():
    print(f"| {row['rule']} | {row['layers']:.2f} | {row['time']:.2f} |", flush=True)
  if not options.test.exists():
    raise UserError(f"--test {options.test}: no such file. Run benchmarks/encoders.py first.")
  exits = "--config.model.exits=True"
  plain = finetune(options, "without_exits", options.checkpoint)
  joint = finetune(options, "pabee", options.checkpoint, exits)
  frozen = finetune(
    *(options, "deebert", plain, exits, "--config.init.reinit=/exits/"),
    *("--config.train.loss=early_exit", "--config.early_exit.layer_weights=uniform"),
    "--config.optimizer.param_groups=.: frozen,/exits/: trained",
  )
  for folder in (joint, frozen):
    command(
      *("exits", "--checkpoint", str(folder), f"--config.data.eval_files={options.test}"),
      *("--workdir", str(options.output / f"{folder.name}_exits"), "--points", "10"),
    )
  print("| model | rule | layers | accuracy, % | time |\n|---|---|---|---|---|")
  results = {folder.name: times(folder, options.test) for folder in (joint, frozen)}
  for name, measured in results.items():
    for row in measured:
      print(f"| {name} | {row['rule']} | {row['layers']:.2f} | {row['accuracy']:.1f} | {row['time']:.2f} |")
  (options.output / "times.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
  main()
