"""`t2t suites`: evaluates a checkpoint on sets of texts that need no training."""

import argparse
from collections.abc import Mapping

from absl import logging

from t2t import UserError
from t2t.checkpoints import pretrained, select_task
from t2t.configs import default
from t2t.evaluation.suites import registry, run
from t2t.inference import batch_inference
from t2t.runtime import hosts, numeric
from t2t.storage import gcs


def make_parser(prog: str, usage: str, description: str, epilog: str) -> argparse.ArgumentParser:
  """Returns a parser with the options of all suites."""
  parser = argparse.ArgumentParser(
    prog=prog,
    usage=f"{prog} --checkpoint C --workdir W {usage} [options]",
    description=description,
    epilog=epilog,
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--checkpoint", default="", metavar="C", help="a workdir that t2t trained in, or any checkpoint that t2t reads")
  add("--workdir", default="", metavar="W", help="folder or gs:// bucket for results.json and predictions")
  add("--groups", action="store_true", help="add a row for each paradigm, domain or relation; results.json has them")
  add(
    "--batch_size",
    type=numeric.integer(1),
    default=32,
    metavar="N",
    help="texts per batch, over all devices; default: 32. Scores do not depend on it",
  )
  add("--normalize", default="sum", metavar="RULE", help="score of an option: sum, mean or bytes; default: sum")
  add("--form", default="", metavar="F", help="how an encoder-decoder reads a text: prefix or span; see docs/suites.md")
  add(
    "--max_tokens", type=int, default=0, metavar="N", help="tokens that the model reads at once; default: its positions"
  )
  add("--stride", type=int, default=0, metavar="N", help="tokens that a window of a longer text adds; default: half")
  add("--tensor", type=int, default=1, metavar="N", help="devices that share one copy of the model; default: 1")
  add("--task", default="", metavar="NAME", help="task, for a model with task-specific parameters")
  return parser


def _paths(arguments: list[str]) -> dict[str, str]:
  """Returns suite -> path of arguments NAME=PATH.

  Raises:
    UserError: an argument has another form, or a suite is unknown or occurs twice.
  """
  if not arguments:
    raise UserError(f"no suite is given. Give NAME=PATH. Suites: {', '.join(registry.SUITES)}")
  paths: dict[str, str] = {}
  for argument in arguments:
    name, _, path = argument.partition("=")
    registry.choose(name, where="")
    if not path:
      raise UserError(f"{argument}: the path is missing. Give {name}=PATH: {registry.SUITES[name].files}")
    if name in paths:
      raise UserError(f"{argument}: the suite is given twice. Run the command for each path, with its own --workdir.")
    paths[name] = path
  return paths


def evaluate(options: argparse.Namespace, paths: Mapping[str, str], *, has_mean: bool = False, **settings: str) -> None:
  """Evaluates the checkpoint of the options on suites."""
  hosts.start(options, default.get_config().train)
  source = select_task.choose(pretrained.read_source(options.checkpoint), options.task, where="--task")
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  names = ("batch_size", "normalize", "form", "max_tokens", "stride", "pseudo_likelihood")
  run_options = run.SuiteOptions(**{name: getattr(options, name) for name in names}, **settings)
  mesh = batch_inference.make_mesh(options.tensor)
  run.evaluate(paths, source, mesh, options.workdir, run_options, shows_groups=options.groups, has_mean=has_mean)


def check(options: argparse.Namespace, prog: str) -> None:
  """Raises an error if --checkpoint or --workdir is missing or cannot be used."""
  for name in ("checkpoint", "workdir"):
    if not getattr(options, name):
      raise UserError(f"--{name} is missing. Give --{name} PATH; see `{prog} --help`.")
  gcs.check_folder(options.workdir, where="--workdir ")


def main(argv: list[str]) -> None:
  """Runs `t2t suites`."""
  suites = "\n".join(f"  {name:<17}{suite.files}" for name, suite in registry.SUITES.items())
  parser = make_parser(
    "t2t suites",
    "SUITE=PATH ...",
    "Scores texts without training: minimal pairs, cloze questions, perplexity and\n"
    "bits per byte, for models of every architecture. Each figure has its number of\n"
    "items, a 95 % interval, ties, and items that are longer than the model.\n\n"
    f"suites and their files:\n{suites}",
    "examples:\n"
    "  t2t suites --checkpoint runs/gpt --workdir runs/gpt_suites blimp=blimp/data\n"
    "  t2t suites --checkpoint runs/tiny_bert --workdir runs/bert_suites \\\n"
    "    pairs=pairs.jsonl text=test.txt --pseudo_likelihood pll\n"
    "  t2t suites --checkpoint BERT --workdir runs/lama lama_trex=LAMA/data\n"
    "  t2t compare runs/gpt_suites runs/other_suites",
  )
  parser.add_argument("suites", nargs="*", metavar="SUITE=PATH", help="a suite and its file or folder")
  add = parser.add_argument
  add(
    "--pseudo_likelihood",
    default="",
    metavar="RULE",
    help="masks of an encoder: pll_word_l2r, pll or joint; default: pll_word_l2r",
  )
  add("--candidates", default="", metavar="FILE", help="words that compete in cloze suites; default: all tokens")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  options = parser.parse_args(argv)
  paths = _paths(options.suites)
  check(options, parser.prog)
  evaluate(options, paths, candidates=options.candidates)
