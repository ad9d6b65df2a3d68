"""Accuracy and size of pruned and quantized models beside the dense one, on one task.

  nice python benchmarks/compress.py --output runs/compression

The task is the package of a docstring (docs_package), nine classes. Every seed trains a dense model of four layers, and
then each arm for some further steps from it: dense, with pruning, made smaller, or in int8. Prints a table, and writes
compression.json and compression.png after each arm; the same command resumes.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import time

from etils import epath
from flax import nnx
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np

from t2t import __main__ as t2t
from t2t.checkpoints import tensor_writer
from t2t.convert import int8, safetensors
from t2t.models import int8_matrix, presets, transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import is_prunable

TASK, METRIC = "docs_package", "eval/docs_package/accuracy"
# The shape and the recipe of benchmarks/distillation.py, with four heads.
SHAPE = dict(num_encoder_layers=4, embed_dim=64, num_heads=4, head_dim=16, mlp_dim=192)
SHAPE |= dict(attention_window=0, global_attention_every=0, vocabulary_head=False)
RULE = "--config.optimizer.param_groups=/layers/.*(attention|mlp)/: "
BEFORE = "dense, before the further steps"
# Arm -> options of its further steps.
TRAINED = {
  "dense": (),
  "magnitude 50 %": (RULE + "magnitude=0.5", "--config.pruning.every=5"),
  "magnitude 80 %": (RULE + "magnitude=0.8", "--config.pruning.every=5"),
  "magnitude 90 %": (RULE + "magnitude=0.9", "--config.pruning.every=5"),
  "movement 80 %": (RULE + "movement=0.8", "--config.pruning.every=5"),
  "movement 90 %": (RULE + "movement=0.9", "--config.pruning.every=5"),
  "int8 (q8bert)": ("--config.model.fake_quantization=int8", "--config.init.reinit=/ranges/"),
}
# Arm -> arguments of t2t prune, before its further steps.
SHRUNK = {
  "2 of 4 heads": ("heads", "--share", "0.5"),
  "half of the neurons": ("neurons", "--share", "0.5"),
  "2 of 4 layers": ("layers", "--keep", "0,2"),
}


def command(*arguments: str) -> None:
  """Runs a t2t command in this process.

  Raises:
    SystemExit: the command failed.
  """
  if code := t2t.main(list(arguments)):
    raise SystemExit(code)


def trained(folder: pathlib.Path, steps: int, seed: int, *options: str) -> pathlib.Path:
  """Trains, unless the folder has a finished run, and returns the folder."""
  if not (folder / "checkpoints" / str(steps)).exists():
    command(
      *("train", "--config", "tiny_modern_bert", "--workdir", str(folder), f"--config.data.mixture={TASK}"),
      *("--config.data.inputs_length=64", "--config.data.targets_length=8", f"--config.train.seed={seed}"),
      *(f"--config.train.steps={steps}", "--config.train.batch_size=32", "--config.optimizer.learning_rate=0.03"),
      *("--config.model.dtype=float32", "--config.eval.batch_size=64", f"--config.eval.every={steps}"),
      *(f"--config.checkpoint.save_interval_steps={steps}", "--config.eval.num_logged_samples=0", *options),
    )
  return folder


def further(folder: pathlib.Path, dense: pathlib.Path, name: str, steps: int, seed: int) -> pathlib.Path:
  """Trains an arm from the dense model, and returns its run."""
  run = folder / name.replace(" ", "_").replace("%", "percent")
  start = dense
  if name in SHRUNK and not (start := folder / f"{run.name}_start").exists():
    kind, *arguments = SHRUNK[name]
    examples = () if kind == "layers" else ("--examples", "256")
    command("prune", kind, str(dense), *arguments, "--output", str(start), *examples)
  options = (f"--config.init.checkpoint={start}", "--config.init.use_model_config=True", *TRAINED.get(name, ()))
  return trained(run, steps, seed, *options)


def accuracy(run: pathlib.Path) -> float:
  """Returns the accuracy of a run's last evaluation, in percent."""
  rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
  return [row[METRIC] for row in rows if METRIC in row][-1]


def sizes(checkpoint: pathlib.Path) -> tuple[float, float, float]:
  """Returns the MB of the weights of the model and of the layers that are not zero, and the % of zeros in matrices.

  A weight of a run has 4 bytes; an int8 folder has its stored size. Positions of zeros are not counted.
  """
  if (weights := epath.Path(checkpoint) / int8.WEIGHTS).exists():
    nbytes = {name: entry.nbytes for name, entry in safetensors.read_header(weights).items()}
    kernels = [values for path, values, _ in int8.integers(str(checkpoint)) if "/layers" in path]
  else:
    tensors = {path: x.read() for path, x in tensor_writer.open_foreign(str(checkpoint)).tensors.items()}
    nbytes = {path: np.count_nonzero(x) * x.itemsize for path, x in tensors.items()}
    kernels = [x for path, x in tensors.items() if "/layers" in path and is_prunable(path, x.shape)]
  zeros = sum(int(np.sum(x == 0)) for x in kernels) / sum(x.size for x in kernels)
  layers = sum(size for path, size in nbytes.items() if "/layers" in path)
  return sum(nbytes.values()) / 1e6, layers / 1e6, 100 * zeros


def draw(rows: dict[str, dict[str, list[float]]], path: pathlib.Path) -> None:
  """Draws a row for each arm: the accuracy of every seed and their mean, and the size of the layers."""
  names = [name for name in rows if name != BEFORE][::-1]
  figure = matplotlib.figure.Figure(figsize=(7.5, 0.6 + 0.3 * len(names)), dpi=110, layout="constrained")
  left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
  colours = {"magnitude": "#4477aa", "movement": "#cc6677", "int8": "#228833", "dense": "#222222"}
  for place, name in enumerate(names):
    row, colour = rows[name], colours.get(name.split()[0], "#997700")
    left.plot(row["accuracy"], [place] * len(row["accuracy"]), "o", color=colour, markersize=4, alpha=0.5)
    left.plot(statistics.mean(row["accuracy"]), place, "|", color=colour, markersize=12, markeredgewidth=2)
    right.barh(place, statistics.mean(row["layers"]), height=0.5, color=colour, alpha=0.7)
  left.set_yticks(range(len(names)), names)
  left.set_title("held-out accuracy, %", fontsize=9, loc="left")
  right.set_title("nonzero weights of the layers, MB", fontsize=9, loc="left")
  left.set_xlim(0, 100)  # the differences are small, and a narrow range would enlarge them
  left.grid(axis="x", alpha=0.25)
  for axis in (left, right):
    axis.tick_params(labelsize=8, left=False)
    axis.spines[["top", "right", "left"]].set_visible(False)
  figure.savefig(path)


def speed() -> None:
  """Prints the CPU time of a forward pass at the width of base models, in float32 and in int8."""
  print("| 4 layers of width 768, 8 x 128 tokens | float32, s | rounded in float32, s | int8, s |\n|---|---|---|---|")
  for name, fields in {"BERT": presets.bert("base"), "T5 1.1": presets.t5_1_1("base")}.items():
    layers = {key: 4 for key in ("num_encoder_layers", "num_decoder_layers") if fields[key]}
    config = TransformerConfig(**fields | layers | {"dtype": "float32", "vocab_size": 1024, "dropout_rate": 0.0})
    tokens = jax.random.randint(jax.random.key(0), (8, 128), 2, 1000)
    batch = {f"{side}_input_tokens": tokens for side in config.kind.sides}
    seconds = []
    for kind in ("float32", "rounded", "int8"):
      quantized = dataclasses.replace(config, fake_quantization="" if kind == "float32" else "int8")
      model = transformer.build(quantized, nnx.Rngs(0))
      model = int8_matrix.with_integers(model) if kind == "int8" else model
      graphdef, params = nnx.split(model, graph=False)
      # Values do not change the time; a range must not be 0, and integers not all zero.
      params = jax.tree.map(lambda x: jnp.ones_like(x) if x.dtype == jnp.int8 or x.shape[-1] == 2 else x, params)
      forward = jax.jit(lambda params, batch, graphdef=graphdef: nnx.merge(graphdef, params).hidden(batch).x)
      forward(params, batch).block_until_ready()
      times = []
      for _ in range(5):
        start = time.process_time()
        forward(params, batch).block_until_ready()
        times.append(time.process_time() - start)
      seconds.append(min(times))
    print(f"| {name} | " + " | ".join(f"{x:.2f}" for x in seconds) + " |", flush=True)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    "--output", type=pathlib.Path, default=pathlib.Path("runs/compression"), help="resumed if it exists"
  )
  parser.add_argument("--steps", type=int, default=200, help="steps of the dense model")
  parser.add_argument("--further_steps", type=int, default=50, help="steps of each arm")
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--arms", default="", help="names of arms with commas; default: all")
  parser.add_argument("--speed", action="store_true", help="only measure the CPU time of int8 products")
  options = parser.parse_args()
  if options.speed:
    speed()
    return
  chosen = options.arms.split(",") if options.arms else [*TRAINED, *SHRUNK]
  rows: dict[str, dict[str, list[float]]] = {}
  began = time.process_time()
  shape = [f"--config.model.{key}={value}" for key, value in SHAPE.items()]
  for seed in range(options.seeds):
    folder = options.output / f"seed_{seed}"
    dense = trained(folder / "before", options.steps, seed, *shape)
    for name in (BEFORE, *chosen):
      run = dense if name == BEFORE else further(folder, dense, name, options.further_steps, seed)
      measured = run
      if "int8" in name and not (measured := folder / "int8").exists():
        command("convert", str(run), "--to", "int8", str(measured))
      row = rows.setdefault(name, {})
      for key, value in zip(("accuracy", "all", "layers", "zeros"), (accuracy(run), *sizes(measured)), strict=True):
        row.setdefault(key, []).append(value)
      (options.output / "compression.json").write_text(json.dumps(rows, indent=2) + "\n")
      draw(rows, options.output / "compression.png")
  print("| model | accuracy, % | zeros in layers, % | layers, MB | model, MB |\n|---|---|---|---|---|")
  for name, row in rows.items():
    spread = f" ± {statistics.stdev(row['accuracy']):.1f}" if len(row["accuracy"]) > 1 else ""
    sizes_of = [f"{statistics.mean(row[key]):.{digits}f}" for key, digits in (("zeros", 1), ("layers", 2), ("all", 2))]
    print(f"| {name} | {statistics.mean(row['accuracy']):.1f}{spread} | " + " | ".join(sizes_of) + " |")
  print(f"{time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
  main()
