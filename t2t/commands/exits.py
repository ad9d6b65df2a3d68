"""`t2t exits`: measures early exit: metrics against layers used, for each rule and threshold."""

from collections.abc import Mapping
import pathlib
from typing import Any

from absl import logging
import jax

from t2t import UserError
from t2t.commands.options import config_parser, parse_with_checkpoint
from t2t.configuration.loading import records
from t2t.configuration.schema import DataConfig
from t2t.runtime import numeric
from t2t.storage import gcs


def main(argv: list[str]) -> None:
  """Runs `t2t exits`.

  Raises:
    UserError: the model has no exits; see `evaluate.prepare`.
  """
  parser = config_parser(
    "t2t exits",
    "Evaluates a checkpoint with heads after inner layers (config.model.exits): the metrics of each layer, and of "
    "early exit by entropy and by patience, against the mean number of layers. Writes a table, exits.jsonl and "
    "exits.png.",
    required="--checkpoint PATH --workdir FOLDER",
    brief=True,
    epilog=(
      "examples:\n"
      "  t2t exits --checkpoint runs/reviews --config.data.eval_files=test.tsv \\\n"
      "    --workdir runs/reviews_exits\n"
      "  t2t infer --checkpoint runs/reviews --exit_entropy 0.4 --input new.tsv \\\n"
      "    --output predicted.tsv"
    ),
  )
  parser.set_defaults(config="finetune")
  parser.add_argument("--checkpoint", help="a workdir of a run with config.model.exits, or one of its checkpoints")
  parser.add_argument("--workdir", help="folder or gs:// bucket for the table and the picture")
  parser.add_argument(
    "--points", type=numeric.integer(1), default=8, metavar="N", help="entropy thresholds to measure; default: 8"
  )
  options, config, source = parse_with_checkpoint(parser, argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if not source.asked.exits:
    raise UserError(
      f"--checkpoint {options.checkpoint}: the model has no heads after its inner layers. Train one with "
      "--config.model.exits=True."
    )
  from t2t.checkpoints import pretrained
  from t2t.data import tables
  from t2t.evaluation import evaluate, exit_sweep
  from t2t.reports import exit_curve

  run = records(config)
  evaluation = evaluate.prepare(run, source, tasks=run.eval.tasks, split=run.data.eval_split)
  params = pretrained.load(source, evaluation.mesh).params
  measured = exit_sweep.measure(evaluation, params, points=options.points)
  if jax.process_index() == 0:
    titles = {tables.TASK: _title(run.data, source.run["data"])}
    print("\n".join(exit_curve.table(measured, titles)))
    folder = gcs.absolute(options.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    exit_curve.write(measured, folder, titles)
    print(f"{'points':<14} {folder / exit_curve.ROWS}\n{'picture':<14} {folder / exit_curve.PICTURE}")


def _title(data: DataConfig, trained: Mapping[str, Any]) -> str:
  """Returns the name of the evaluated table: "test.tsv", or "held-out rows of train.tsv"."""
  saved = trained.get("table") or {}
  given = data.eval_files or saved.get("eval_files", "")
  names = [pathlib.PurePath(name).name for name in (given or saved.get("files", "")).split(",")]
  return ("" if given else "held-out rows of ") + ", ".join(names)
