"""Transfer between sentence tasks: encoders trained on next sentences and on sentence order, each tested on both.

  python benchmarks/sentences.py --data wikipedia --vocabulary vocab.txt --output runs/sentences

Lan et al. (2020, table 5) found little transfer from next sentences to sentence order (52.0 %, near chance), and much
in the other direction (78.9 %). A head is tested on the other task without training: next counts as in order, and
random counts as swapped.
"""

import argparse
import dataclasses
import json
import pathlib

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import rich.box
import rich.console
import rich.table

from t2t import sharding
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, override, records
from t2t.configuration.schema import Config
from t2t.data import pipeline
from t2t.losses import head_losses
from t2t.training.train import train

TASKS = {"next": "masked_lm_nsp", "order": "masked_lm_sop"}


def run_config(options: argparse.Namespace, objective: str) -> Config:
  """Returns the config of a tiny encoder on pairs of texts."""
  config = load_config(options.config)
  typed = [
    f"--config.data.files={options.data}/train*",
    f"--config.data.eval_files={options.data}/validation*",
    f"--config.data.vocabulary={options.vocabulary}",
    "--config.data.extra_ids=0",
    f"--config.data.objective={objective}",
    f"--config.data.inputs_length={options.length}",
    f"--config.data.targets_length={options.length}",
    f"--config.model.vocab_size={options.vocab_size}",
    f"--config.train.steps={options.steps}",
    f"--config.train.batch_size={options.batch_size}",
    f"--config.eval.every={options.steps}",
    f"--config.checkpoint.save_interval_steps={options.steps}",
    "--config.eval.batches=40",
    "--config.eval.num_logged_samples=0",
  ]
  return records(override(config, typed))


def accuracy(run: Config, folder: pathlib.Path, objective: str) -> float:
  """Returns the accuracy of a trained model on the held-out pairs of an objective, from 0 to 1."""
  mesh = sharding.make_mesh({"data": -1})
  source = pretrained.read_source(str(folder))
  loaded = pretrained.load(source, mesh)
  loss = head_losses.HeadLosses(loaded.config, None)
  data = dataclasses.replace(run.data, objective=objective)
  rows = pipeline.eval_rows(data, loaded.config.architecture, batch_size=run.train.batch_size, max_batches=40)

  @jax.jit
  def right(params, batch):
    model = nnx.merge(loaded.graphdef, params)
    return loss(model, batch, loss.weights(batch), key=None, train=False)[1]["accuracy"]

  with jax.set_mesh(mesh):
    parts = [right(loaded.params, {name: jnp.asarray(x) for name, x in batch.items()}) for batch in rows]
  return float(np.sum([part.total for part in parts]) / np.sum([part.weight for part in parts]))


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--data", required=True, help="folder with train* and validation* files for config.data.files")
  add("--vocabulary", required=True, help="vocabulary with [CLS] and [SEP]: BERT's vocab.txt")
  add("--vocab_size", type=int, default=30_592, help="rows of the embedding")
  add(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("runs/sentences"),
    help="folder for runs and results; resumed if it exists",
  )
  add("--config", default="tiny_modern_bert", help="config of the encoder")
  add("--steps", type=int, default=4_000)
  add("--batch_size", type=int, default=32)
  add("--length", type=int, default=64, help="tokens of a pair")
  options = parser.parse_args()
  accuracies = {}
  for name, objective in TASKS.items():
    run = run_config(options, objective)
    train(run, str(options.output / name))
    accuracies[name] = {tested: accuracy(run, options.output / name, TASKS[tested]) for tested in TASKS}
  (options.output / "sentences.json").write_text(json.dumps(accuracies, indent=2) + "\n")
  table = rich.table.Table("trained on", *(f"asked: {name}" for name in TASKS), box=rich.box.SIMPLE)
  for name, row in accuracies.items():
    table.add_row(name, *(f"{100 * row[tested]:.1f} %" for tested in TASKS))
  rich.console.Console().print(table)


if __name__ == "__main__":
  main()
