"""`t2t babylm`: evaluates a checkpoint on the zero-shot suites of BabyLM."""

from t2t import UserError
from t2t.commands import suites
from t2t.evaluation.suites import registry, run
from t2t.runtime import hosts


def main(argv: list[str]) -> None:
  """Runs `t2t babylm`."""
  parser = suites.make_parser(
    "t2t babylm",
    "--data FOLDER",
    "Evaluates a checkpoint on the zero-shot suites of BabyLM, from the folder of its\n"
    f"evaluation data: {', '.join(registry.BABYLM[:4])},\n{', '.join(registry.BABYLM[4:])}.\n"
    "An encoder masks one token at a time (pll), as BabyLM does.\n\n"
    "The fine-tuning set has its own command, with the same --workdir: the table then\n"
    "has its tasks, too.",
    "examples:\n"
    "  t2t superglue --config finetune_babylm --checkpoint runs/gpt \\\n"
    "    --workdir runs/babylm \\\n"
    "    --config.data.benchmark_dirs.babylm=evaluation_data/full_eval/glue_filtered\n"
    "  t2t babylm --checkpoint runs/gpt --workdir runs/babylm \\\n"
    "    --data evaluation_data/full_eval\n"
    "  t2t babylm --checkpoint runs/gpt --workdir runs/babylm_fast \\\n"
    "    --data evaluation_data/fast_eval --suites blimp,supplement",
  )
  add = parser.add_argument
  add("--data", default="", metavar="FOLDER", help="evaluation_data/full_eval or fast_eval of BabyLM")
  add("--suites", default="", metavar="NAMES", help="comma-separated suites; default: all")
  add("--pseudo_likelihood", default="", metavar="RULE", help="masks of an encoder; default: pll")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  options = parser.parse_args(argv)
  suites.check(options, parser.prog)
  if not options.data:
    raise UserError("--data is missing. Give --data FOLDER: evaluation_data/full_eval of BabyLM.")
  paths = run.babylm_paths(options.data, [name for name in options.suites.split(",") if name])
  suites.evaluate(options, paths, has_mean=True, default_pseudo_likelihood="pll")
