"""`t2t cache`: writes the offline cache of a task with Apache Beam, on this machine or on a cluster."""

import argparse
from collections.abc import Sequence
import logging as python_logging

from absl import logging

from t2t import UserError
from t2t.data import beam_caching, registry
from t2t.runtime import numeric


def _names(text: str) -> tuple[str, ...]:
  return tuple(filter(None, (part.strip() for part in text.split(","))))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t cache",
    usage="t2t cache --mixture NAME --output_dir DIR [options] [-- BEAM OPTIONS]",
    description="Writes the tokens of tasks to files with Apache Beam, so that training does not\n"
    "tokenize a large corpus again (pip install -e '.[cache]'). Random preprocessing\n"
    "and preprocessing that depends on a length still run during training, anew in\n"
    "each epoch. Train with --config.data.cache_dir=DIR. Complete caches are kept.",
    epilog="examples:\n"
    "  t2t cache --mixture docs_span_corruption --output_dir cache\n"
    "  t2t cache --mixture c4_span_corruption --output_dir gs://BUCKET/cache \\\n"
    "    --runner DataflowRunner -- --project P --region R \\\n"
    "    --temp_location gs://BUCKET/tmp --sdk_container_image IMAGE\n\n"
    "Workers of a cluster need access to t2t, the task modules, the sources and the\n"
    "vocabulary: give --sdk_container_image or --setup_file, and gs:// paths.\n"
    "To use several cores of this machine:\n"
    "  -- --direct_num_workers 8 --direct_running_mode multi_processing\n",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--mixture", required=True, metavar="NAME,...", help="registered tasks or mixtures")
  parser.add_argument(
    "--output_dir", required=True, metavar="DIR", help="local or gs://; each task gets a folder in it"
  )
  parser.add_argument(
    "--task_modules",
    type=_names,
    default=(),
    metavar="M,...",
    help="your modules or .py files that register tasks",
  )
  parser.add_argument("--splits", type=_names, default=(), metavar="S,...", help="default: all splits of a task")
  parser.add_argument(
    "--runner",
    default="DirectRunner",
    help=(
      "Beam runner: DirectRunner (this machine, in memory), DataflowRunner, FlinkRunner or another one; default: "
      "DirectRunner"
    ),
  )
  parser.add_argument(
    "--num_shards",
    type=numeric.integer(0),
    default=0,
    metavar="N",
    help=(
      "files per split, preferably a multiple of config.data.num_streams; default: the number of source files, at "
      "least 64"
    ),
  )
  parser.add_argument("--vocabulary", default="", metavar="V", help="as config.data.vocabulary; default: the task's")
  parser.add_argument(
    "--extra_ids",
    type=numeric.integer(0),
    metavar="N",
    help="as config.data.extra_ids, with --vocabulary; default: 100",
  )
  parser.add_argument("--overwrite", action="store_true", help="rewrite complete caches")
  parser.add_argument("--debug", action="store_true", help="show the log, and the traceback of an error")
  return parser


def _modules(mixture: str, user_modules: Sequence[str]) -> tuple[str, ...]:
  """Returns the user modules, and the t2t modules that register a name of the mixture."""
  registered = {}
  for module in registry.shipped():
    try:
      registered[module] = registry.load(module)
    except UserError:
      continue  # missing package; `t2t tasks` prints it
  # User modules come last because they may import t2t modules.
  registered |= {module: registry.load(module, where="--task_modules") for module in user_modules}
  names = {name.strip() for name in mixture.split(",")}
  return tuple(module for module, tasks in registered.items() if names & set(tasks) or module in user_modules)


def main(argv: list[str]) -> int:
  """Runs `t2t cache`, which writes the tokens of tasks to files.

  Args:
    argv: arguments after `t2t cache`; options after "--" go to Beam.

  Raises:
    UserError: Apache Beam is missing, a task cannot be cached, or the pipeline fails.
  """
  at = argv.index("--") if "--" in argv else len(argv)
  options = _parser().parse_args(argv[:at])
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if not options.debug:
    # The raised error contains what Beam logs about a failure.
    python_logging.getLogger("apache_beam").setLevel(python_logging.CRITICAL)
  if options.extra_ids is not None and not options.vocabulary:
    raise UserError(
      f"--extra_ids {options.extra_ids} needs --vocabulary, because a task's own vocabulary sets the number of "
      "sentinels. Give --vocabulary V, or leave out --extra_ids."
    )
  beam_caching.load_beam()
  beam_caching.run(
    beam_caching.CacheJob(
      mixture=options.mixture,
      modules=_modules(options.mixture, options.task_modules),
      output_dir=options.output_dir,
      splits=options.splits,
      num_shards=options.num_shards,
      vocabulary=options.vocabulary,
      extra_ids=100 if options.extra_ids is None else options.extra_ids,
      runner=options.runner,
      beam_options=tuple(argv[at + 1 :]),
      overwrite=options.overwrite,
    )
  )
  return 0
