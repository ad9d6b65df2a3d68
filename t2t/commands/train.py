"""`t2t train`: trains a model."""

from absl import logging

from t2t import UserError
from t2t.commands import gin_files
from t2t.commands.options import config_parser, inherited, parse
from t2t.configuration.loading import records
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.training.train import train


@gin_files.in_words_of_t5x("train")
def main(argv: list[str]) -> None:
  """Runs `t2t train`."""
  parser = config_parser(
    "t2t train",
    "Trains a model; the same command again resumes where it stopped.",
    epilog=(
      "examples:\n"
      "  t2t train --config tiny --workdir runs/tiny\n"
      "  t2t train --config t5_1_1_small --workdir runs/own \\\n"
      "    --config.data.files='text/*.jsonl.gz' \\\n"
      "    --config.data.vocabulary=spiece.model\n"
      "  t2t train --config finetune --config.init.checkpoint=runs/tiny \\\n"
      "    --config.data.files=reviews.tsv --config.data.labels=auto \\\n"
      "    --workdir runs/reviews\n"
      "  t2t train --gin_file base_c4_pretrain.gin --gin.TRAIN_STEPS=1000 \\\n"
      "    --gin.MODEL_DIR='\"runs/t5x\"'"
    ),
  )
  parser.add_argument("--workdir", help="folder or gs:// bucket for checkpoints, metrics and config.json")
  parser.add_argument(
    "--profile",
    metavar="BEGIN:END",
    help="trace the steps after BEGIN up to END, such as 100:105, into WORKDIR/profile (docs/profiling.md)",
  )
  parser.add_argument("--profile_hosts", choices=("first", "all"), default="first", help="processes that write a trace")
  gin_files.add_options(parser, "train")
  hosts.add_options(parser)
  options, config = parse(parser, argv)
  if not options.workdir:
    or_bound = gin_files.or_bound(options.gin, "--workdir")
    raise UserError(
      f"--workdir is missing. Give --workdir FOLDER{or_bound}, a local folder or a gs:// path for checkpoints "
      "and metrics."
    )
  callbacks = []
  if options.profile is not None:
    from t2t.training import profiling

    ranges = profiling.parse(options.profile)
    callbacks.append(profiling.Profile(ranges, on_all=options.profile_hosts == "all"))
    if not config.train.epochs:  # with epochs the number of steps is known when the data has been read
      profiling.check(ranges, config.train.steps)
  gcs.check_folder(options.workdir, where="--workdir ")
  hosts.start(options, config.train)
  gin_files.tell(options.gin)
  config = inherited(config, parser, argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  train(records(config), options.workdir, callbacks=callbacks)
