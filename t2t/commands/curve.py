"""`t2t curve`: fine-tunes with several numbers of training examples and draws the score against this number."""

import argparse
from collections.abc import Sequence

from absl import logging
from etils import epath
import jax

from t2t import UserError
from t2t.checkpoints import workdir_lock
from t2t.commands import saved_settings
from t2t.commands.options import config_parser, inherited, parse
from t2t.configs import default
from t2t.configuration.loading import flat, records
from t2t.configuration.schema import Config
from t2t.reports import learning_curve
from t2t.reports.learning_curve import Cell
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.training.callbacks.one_of_many import OneOfMany
from t2t.training.train import train

SETTINGS = "curve.json"
# The option that sets each key.
_OF_CELLS = {"data.max_train_examples": "--sizes", "data.subset_seed": "--seeds", "train.seed": "--seeds"}


def cell_config(config: Config, examples: int, seed: int) -> Config:
  """Returns the config of one run: its number of examples, and its seed for their choice, order and dropout."""
  data = {"max_train_examples": examples, "subset_seed": seed}
  return config.with_(data=data, train={"seed": seed})


def run(
  config: Config,
  workdir: str,
  *,
  sizes: Sequence[int],
  seeds: Sequence[int],
  metric: str = "",
  best: bool = False,
  keep_checkpoints: bool = False,
) -> list[Cell]:
  """Fine-tunes once for each number of examples and each seed; finished runs are not repeated.

  Args:
    config: of one run.
    workdir: has the runs in examples-N/seed-K, curve.jsonl with a row for each, and curve.png.
    sizes: numbers of training examples of each task.
    seeds: seeds of the runs.
    metric, best: see `learning_curve.of_run`.
    keep_checkpoints: whether finished runs keep their checkpoints.

  Returns:
    The cells of `sizes` and `seeds`.

  Raises:
    UserError: see `training.train`; or a task has fewer examples, or the workdir has a curve of other settings.
    Stopped: a signal stopped a run, which the same command resumes.
  """
  folder = gcs.absolute(workdir)
  _check_available(config, max(sizes))
  with workdir_lock.held(folder):  # another curve would replace the rows of this one
    settings = {key: value for key, value in flat(config.to_dict()).items() if key not in _OF_CELLS}
    saved_settings.check(folder / SETTINGS, settings, {"metric": metric, "best": best}, kind="curve")
    finished = {(cell.examples, cell.seed): cell for cell in learning_curve.read(folder / learning_curve.ROWS)}
    wanted = [(examples, seed) for examples in sizes for seed in seeds]
    for number, (examples, seed) in enumerate(wanted, start=1):
      which = f"run {number} of {len(wanted)}: {examples:,} examples, seed {seed}"
      if cell := finished.get((examples, seed)):
        hosts.log_once(f"curve: {which}: finished, {cell.metric} {cell.score:.4g}")
        continue
      hosts.log_once(f"curve: {which}")
      of_run = folder / f"examples-{examples}" / f"seed-{seed}"
      train(cell_config(config, examples, seed), str(of_run), callbacks=[OneOfMany()])
      cell = learning_curve.of_run(of_run, examples, seed, metric=metric, best=best)
      finished[examples, seed] = cell
      hosts.log_once(f"curve: {which}: {cell.metric} {cell.score:.4g} at step {cell.step:,}")
      if jax.process_index() == 0:
        _publish(folder, list(finished.values()))
        # The row is written, so that the run is not needed again.
        if not keep_checkpoints and (of_run / "checkpoints").exists():
          (of_run / "checkpoints").rmtree()
    if jax.process_index() == 0:
      _publish(folder, list(finished.values()))
  return [finished[pair] for pair in wanted]


def _publish(folder: epath.Path, cells: Sequence[Cell]) -> None:
  learning_curve.write(folder / learning_curve.ROWS, cells)
  (folder / learning_curve.PICTURE).write_bytes(learning_curve.draw(cells, title=folder.name))


def _check_available(config: Config, most: int) -> None:
  """Refuses more examples than there are, before the first run."""
  from t2t.data import pipeline, task_resolution, train_data

  resolved = train_data.resolved(cell_config(config, most, 0))
  for task in task_resolution.tasks_of(pipeline.load_task(resolved.data)):
    if resolved.data.train_split in task.splits:
      task.num_input_examples(resolved.data.train_split)  # draws the examples


def _numbers(text: str, option: str) -> list[int]:
  """Parses "16,64,256": distinct positive integers, in ascending order."""
  parts = [part.strip() for part in text.split(",")]
  if not all(part.isdigit() and int(part) > 0 for part in parts):
    raise UserError(f"{option} {text}: must be numbers of at least 1 with commas, such as 16,64,256")
  return sorted(set(map(int, parts)))


def _parser() -> argparse.ArgumentParser:
  parser = config_parser(
    "t2t curve",
    "Fine-tunes with several numbers of training examples and several seeds, and draws the score against the number "
    "of examples with 95 % intervals.\n\n"
    "Each run draws its examples balanced over classes (config.data.max_train_examples). The same command again "
    "resumes: finished runs are not repeated, and more --sizes or --seeds may be added.",
    epilog=(
      "examples:\n"
      "  t2t curve --config finetune --config.init.checkpoint=runs/tiny \\\n"
      "    --config.data.files=reviews.tsv --config.data.labels=auto \\\n"
      "    --sizes 16,64,256 --seeds 5 --workdir runs/curve\n"
      "  t2t curve --config finetune_glue --config.data.mixture=glue_rte \\\n"
      "    --config.init.checkpoint=gs://BUCKET/bert_base --sizes 32,128,512 \\\n"
      "    --metric glue_rte/accuracy --workdir gs://BUCKET/rte_curve"
    ),
  )
  parser.add_argument("--workdir", help="folder or gs:// bucket for the runs, curve.jsonl and curve.png")
  parser.add_argument("--sizes", metavar="N,N,...", help="numbers of training examples: 16,64,256")
  parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each number; default: 5")
  parser.add_argument("--metric", default="", metavar="NAME", help="TASK/METRIC or loss; default: the mean task score")
  parser.add_argument("--best", action="store_true", help="take the best evaluation of a run; default: the last one")
  parser.add_argument("--keep_checkpoints", action="store_true", help="keep the checkpoints of finished runs")
  hosts.add_options(parser)
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t curve`.

  Raises:
    UserError: an option is missing or invalid; see `run`.
  """
  parser = _parser()
  options, config = parse(parser, argv)
  if not options.workdir:
    raise UserError("--workdir is missing. Give --workdir FOLDER, a local folder or a gs:// path for the runs.")
  if not options.sizes:
    raise UserError("--sizes is missing. Give the numbers of training examples, such as --sizes 16,64,256.")
  if options.seeds < 1:
    raise UserError(f"--seeds {options.seeds} must be at least 1; an interval needs 2 or more")
  given, defaults = flat(config.to_dict()), flat(default.get_config().to_dict())
  for key, option in _OF_CELLS.items():
    if given[key] != defaults[key]:
      raise UserError(f"config.{key}={given[key]}: {option} sets this key. Leave the key out.")
  sizes = _numbers(options.sizes, "--sizes")
  gcs.check_folder(options.workdir, where="--workdir ")
  hosts.start(options, config.train)
  config = records(inherited(config, parser, argv))
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  cells = run(
    config,
    options.workdir,
    sizes=sizes,
    seeds=range(options.seeds),
    metric=options.metric,
    best=options.best,
    keep_checkpoints=options.keep_checkpoints,
  )
  if jax.process_index() == 0:
    print("\n".join(learning_curve.table(cells)))
    print(f"picture        {gcs.absolute(options.workdir) / learning_curve.PICTURE}")
