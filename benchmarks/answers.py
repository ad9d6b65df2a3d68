"""One task, three ways to answer it, for the three architectures: written, ranked, and by a head.

  python benchmarks/answers.py --output runs/answers            # about half an hour on two cores

Which package a docstring is of (docs_package): each tiny model is pre-trained on the documentation of this
machine, and fine-tuned twice, to write the answer and to give it by a head.  Prints a table, which the README has.
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
  """A t2t command, as a user types it.

  Raises:
    SystemExit: it failed, and has said why.
  """
  code = t2t.main(list(arguments))
  if code:
    raise SystemExit(code)


def finetuned(folder: pathlib.Path, loss: str, steps: int) -> pathlib.Path:
  """The folder of a model that was fine-tuned to answer so."""
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
  """Of the held-out examples, in percent."""
  folder = checkpoint / f"by_{method}"
  command(
    *("eval", "--config", "finetune_docs_package", "--checkpoint", str(checkpoint), "--workdir", str(folder)),
    *(f"--config.eval.method={method}", "--config.eval.max_examples=2048"),
  )
  (result,) = json.loads((folder / "results.json").read_text()).values()
  return result["metrics"]["accuracy"]


def main() -> None:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/answers"), help="resumed if there")
  parser.add_argument("--steps", type=int, default=600, help="of fine-tuning")
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
