"""Three prediction methods on one task, for the three architectures: generation, ranking, and a head.

  python benchmarks/answers.py --output runs/answers            # about half an hour on two cores

The task is the package of a docstring (docs_package). Each tiny model is pre-trained on the documentation of this
machine, and fine-tuned twice: to generate the answer, and to predict it with a head. Prints the table of the README.
"""

import argparse
import json
import pathlib

import rich.box
import rich.console
import rich.table

from t2t import __main__ as t2t

MODELS = {"encoder-decoder": "tiny_t5", "decoder": "tiny_llama", "encoder": "tiny_modern_bert"}


def command(*arguments: str) -> None:
  """Runs a t2t command in this process.

  Raises:
    SystemExit: the command failed.
  """
  code = t2t.main(list(arguments))
  if code:
    raise SystemExit(code)


def finetuned(folder: pathlib.Path, loss: str, steps: int) -> pathlib.Path:
  """Fine-tunes a model with this loss and returns its folder."""
  command(
    *("train", "--config", "finetune_docs_package", "--workdir", str(folder / loss)),
    *(f"--config.init.checkpoint={folder / 'pretrained'}", f"--config.train.loss={loss}"),
    *(
      f"--config.train.steps={steps}",
      f"--config.eval.every={steps}",
      f"--config.checkpoint.save_interval_steps={steps}",
    ),
    *("--config.eval.max_examples=512", "--config.eval.num_logged_samples=0"),
  )
  return folder / loss


def accuracy(checkpoint: pathlib.Path, method: str) -> float:
  """Returns the accuracy on held-out examples, in percent."""
  folder = checkpoint / f"by_{method}"
  command(
    *("eval", "--config", "finetune_docs_package", "--checkpoint", str(checkpoint), "--workdir", str(folder)),
    *(f"--config.eval.method={method}", "--config.eval.max_examples=2048"),
  )
  (result,) = json.loads((folder / "results.json").read_text()).values()
  return result["metrics"]["accuracy"]


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    default=pathlib.Path("runs/answers"),
    help="folder for runs and results; resumed if it exists",
  )
  parser.add_argument("--steps", type=int, default=600, help="fine-tuning steps")
  parser.add_argument("--pretraining_steps", type=int, default=500)
  options = parser.parse_args()
  accuracies: dict[str, dict[str, float]] = {}
  for name, config in MODELS.items():
    folder = options.output / name
    every = options.pretraining_steps
    command(
      *("train", "--config", config, "--workdir", str(folder / "pretrained"), f"--config.train.steps={every}"),
      *(f"--config.eval.every={every}", f"--config.checkpoint.save_interval_steps={every}"),
    )
    accuracies[name] = {"head": accuracy(finetuned(folder, "heads", options.steps), "head")}
    if name == "encoder":
      accuracies[name]["rank"] = accuracy(folder / "pretrained", "rank")
      continue
    written = finetuned(folder, "cross_entropy", options.steps)
    accuracies[name] |= {method: accuracy(written, method) for method in ("write", "rank")}
  (options.output / "answers.json").write_text(json.dumps(accuracies, indent=2) + "\n")
  table = rich.table.Table("", "written", "ranked", "by a head", box=rich.box.SIMPLE)
  for name, row in accuracies.items():
    table.add_row(name, *(f"{row[method]:.1f}" if method in row else "-" for method in ("write", "rank", "head")))
  rich.console.Console().print(table)


if __name__ == "__main__":
  main()
