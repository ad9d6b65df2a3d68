"""`t2t eval`: evaluates a checkpoint."""

import argparse
from collections.abc import Sequence
import itertools
import json

from absl import logging
from ml_collections import ConfigDict

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.commands import gin_files
from t2t.commands.options import config_parser, parse_with_checkpoint
from t2t.configuration.loading import records
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline, registry
from t2t.evaluation import evaluate
from t2t.runtime import numeric
from t2t.storage import gcs, outage


def _is_of_table(argv: list[str]) -> bool:
  """Returns whether --checkpoint was fine-tuned on a table, according to its config.json; runs before JAX starts.

  True also for a local path that does not exist: the config of tables takes any key of files, so that the next error
  names the path.
  """
  options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  options.add_argument("--checkpoint", default="")
  path = options.parse_known_args(argv)[0].checkpoint.partition(",")[0]
  if not path:
    return False
  # A bucket is checked later, with the other options; one that does not exist has no config.json.
  root = gcs.absolute(path if path.startswith("gs://") else gcs.fetched(path, where="--checkpoint "))
  if not gcs.is_remote(str(root)) and not root.exists():
    return True
  for folder in (root, *([root.parent.parent] if root.name.isdigit() else [])):  # WORKDIR/checkpoints/STEP
    try:
      saved = json.loads(gcs.read(folder / "config.json"))
      return bool(saved.get(DataConfig.EXPORTED_TABLE) or saved["data"].get("table"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
      if outage.reason(error):
        raise outage.Away(f"--checkpoint {path} cannot be read ({error}). Run the same command again.") from error
  return False


@gin_files.in_words_of_t5x("eval")
def main(argv: list[str]) -> None:
  """Runs `t2t eval`."""
  parser = config_parser(
    "t2t eval",
    "Evaluates a checkpoint: writes a table of metrics, every prediction, and files for leaderboards.",
    epilog=(
      "examples:\n"
      "  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/eval \\\n"
      "    --config.data.benchmark_dirs.superglue=SuperGLUE \\\n"
      "    --config.eval.tasks=cb,copa,rte\n"
      "  t2t eval --config superglue --checkpoint runs/seed1,runs/seed2,runs/seed3 \\\n"
      "    --workdir runs/ensemble\n"
      "  t2t eval --checkpoint runs/reviews --config.data.eval_files=test.tsv \\\n"
      "    --workdir runs/reviews_test\n"
      "  t2t eval --config transformer_xl_enwik8_base --checkpoint runs/xl \\\n"
      "    --workdir runs/xl_test --config.data.mixture='' \\\n"
      "    --config.data.eval_files=test.txt --config.eval.method=loss\n"
      "  t2t eval --config superglue --checkpoint runs/gpt --shots 4 \\\n"
      "    --workdir runs/few_shot\n"
      "  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/test \\\n"
      "    --config.data.eval_split=test\n"
      "  t2t eval --gin_file base_wmt_eval.gin --gin.CHECKPOINT_PATH='\"runs/wmt\"' \\\n"
      "    --gin.EVAL_OUTPUT_DIR='\"runs/eval\"'"
    ),
  )
  parser.set_defaults(config="finetune" if _is_of_table(argv) else "superglue")
  parser.add_argument(
    "--checkpoint",
    metavar="PATH,...",
    help="a workdir that t2t trained in, or one of its checkpoints; several are an ensemble, the mean of their "
    "probabilities",
  )
  parser.add_argument("--workdir", help="folder or gs:// bucket for results.json and predictions")
  parser.add_argument(
    "--shots", type=int, help="solved training examples before each input; sets config.eval.num_shots"
  )
  parser.add_argument(
    "--exit_entropy", type=numeric.number(0.0), metavar="E", help="early exit by entropy; sets config.eval.exit_entropy"
  )
  parser.add_argument(
    "--exit_patience",
    type=numeric.integer(1),
    metavar="N",
    help="early exit by patience; sets config.eval.exit_patience",
  )
  parser.add_argument(
    "--weights",
    choices=pretrained.WEIGHTS,
    default="",
    help="average, or trained, the parameters of the last step; default: average for a run with config.eval.average; "
    "int8: the default's, matrices rounded to 8 bits",
  )
  gin_files.add_options(parser, "eval")
  options, config, source = parse_with_checkpoint(parser, argv, several=True)
  for option, key in (("shots", "num_shots"), ("exit_entropy", "exit_entropy"), ("exit_patience", "exit_patience")):
    if getattr(options, option) is not None:
      config.eval[key] = getattr(options, option)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if options.gin is not None:
    from t2t.commands import gin_conversion

    gin_files.tell(options.gin)
    source = gin_conversion.check(options.gin, source)
    if options.gin.of_split:
      _adopt_longest(config, source.model.architecture, typed=argv)
  if config.eval.method == "loss":
    from t2t.evaluation import held_out

    if options.others:
      raise UserError(
        f"--checkpoint {options.checkpoint}: config.eval.method=loss measures one checkpoint. Give one, or another "
        "config.eval.method."
      )
    held_out.evaluate(records(config), source, options.workdir)
    return
  evaluate.evaluate(records(config), source, options.workdir, others=[other for _, other in options.others])


def _adopt_longest(config: ConfigDict, architecture: str, *, typed: Sequence[str]) -> None:
  """Sets config.data.inputs_length and targets_length to the lengths of the longest evaluated examples.

  Args:
    config: its mixture, split and tasks select the examples.
    architecture: of the model.
    typed: the command line; its keys take precedence.

  Raises:
    UserError: see `evaluate.find_tasks`.
  """
  keys = [f"{side}_length" for side in ("inputs", "targets")]
  record = records(config)
  for module in record.data.task_modules:
    registry.load(module)
  longest = dict.fromkeys(keys, 1)
  for task in evaluate.find_tasks(record.data, architecture, record.eval.tasks):
    split = task.splits[0] if len(task.splits) == 1 else record.data.eval_split
    examples = pipeline.task_examples(record.data, architecture, task, split=split, trim=False).as_numpy_iterator()
    for example in itertools.islice(examples, record.eval.max_examples or None):
      for key in keys:
        longest[key] = max(longest[key], len(example.get(key.partition("_")[0], ())))
  for key in keys:
    if not any(argument.partition("=")[0] == f"--config.data.{key}" for argument in typed):
      config.data[key] = longest[key]
