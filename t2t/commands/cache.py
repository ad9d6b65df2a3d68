"""`t2t cache`: Apache Beam writes the offline cache of a task, here or on a cluster."""

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
    description="Writes the tokens of tasks in files, with Apache Beam, so that training need not\n"
    "tokenize a large corpus again (pip install -e '.[cache]'). What is random, or\n"
    "depends on a length, still happens in training, in each epoch anew. Train with\n"
    "--config.data.cache_dir=DIR. What is complete already is left as it is.",
    epilog="examples:\n"
    "  t2t cache --mixture docs_span_corruption --output_dir cache\n"
    "  t2t cache --mixture c4_span_corruption --output_dir gs://BUCKET/cache \\\n"
    "    --runner DataflowRunner -- --project P --region R \\\n"
    "    --temp_location gs://BUCKET/tmp --sdk_container_image IMAGE\n\n"
    "On a cluster the workers need t2t, the task modules, the sources and the\n"
    "vocabulary within reach: --sdk_container_image or --setup_file, and gs:// paths.\n"
    "On this machine, for several cores:\n"
    "  -- --direct_num_workers 8 --direct_running_mode multi_processing\n",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--mixture", required=True, metavar="NAME,...", help="registered tasks or mixtures")
  parser.add_argument("--output_dir", required=True, metavar="DIR", help="local or gs://; each task has a folder in it")
  parser.add_argument(
    "--task_modules",
    type=_names,
    default=(),
    metavar="M,...",
    help="modules or .py files of your own that register tasks",
  )
  parser.add_argument("--splits", type=_names, default=(), metavar="S,...", help="default: all that a task has")
  parser.add_argument(
    "--runner",
    default="DirectRunner",
    help="DirectRunner (this machine, in its memory), DataflowRunner, FlinkRunner or another of Beam's; default:"
    " DirectRunner",
  )
  parser.add_argument(
    "--num_shards",
    type=numeric.integer(0),
    default=0,
    metavar="N",
    help="files of each split, best a multiple of config.data.num_streams; default: as many as the source has, at"
    " least 64",
  )
  parser.add_argument("--vocabulary", default="", metavar="V", help="as config.data.vocabulary; default: the task's")
  parser.add_argument(
    "--extra_ids",
    type=numeric.integer(0),
    metavar="N",
    help="as config.data.extra_ids, with --vocabulary; default: 100",
  )
  parser.add_argument("--overwrite", action="store_true", help="make complete caches anew")
  parser.add_argument("--debug", action="store_true", help="show the log, and the traceback of an error")
  return parser


def _modules(mixture: str, user_modules: Sequence[str]) -> tuple[str, ...]:
  """Those of the user's modules and t2t's that register what is to be cached."""
  registered = {}
  for module in registry.shipped():
    try:
      registered[module] = registry.load(module)
    except UserError:
      continue  # for want of a package; `t2t tasks` says which
  # The user's may import t2t's.
  registered |= {module: registry.load(module, where="--task_modules") for module in user_modules}
  names = {name.strip() for name in mixture.split(",")}
  return tuple(module for module, tasks in registered.items() if names & set(tasks) or module in user_modules)


def main(argv: list[str]) -> int:
  """`t2t cache`: writes the tokens of tasks in files.

  Args:
    argv: what follows `t2t cache`; behind "--" are options of Beam.

  Raises:
    UserError: Apache Beam is not there, a task cannot be cached, or the pipeline fails.
  """
  at = argv.index("--") if "--" in argv else len(argv)
  options = _parser().parse_args(argv[:at])
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if not options.debug:
    # What it logs of a failure is in the error that it raises.
    python_logging.getLogger("apache_beam").setLevel(python_logging.CRITICAL)
  if options.extra_ids is not None and not options.vocabulary:
    raise UserError(f"--extra_ids {options.extra_ids}: only with --vocabulary; the task's own has its number")
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
