"""`t2t compare`: tests whether two checkpoints differ on the same items."""

import argparse

import rich.console

from t2t import UserError
from t2t.evaluation import paired_comparison
from t2t.storage import gcs

_OUTPUT = "changed_items.jsonl"


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t compare",
    description="Tests whether two evaluations of the same items differ, for each task and\n"
    "metric: paired bootstrap, and McNemar's exact test of the items that changed\n"
    "between right and wrong. Writes these items to a file.",
    epilog="examples:\n"
    "  t2t compare runs/eval_a runs/eval_b\n"
    "  t2t compare runs/superglue_a runs/superglue_b --output changed.jsonl\n"
    "  t2t compare runs/a/predictions/super_glue_rte.validation.jsonl \\\n"
    "    runs/b/predictions/super_glue_rte.validation.jsonl",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  source = "workdir of `t2t eval` or `t2t superglue`, its results.json, or a file of its predictions"
  parser.add_argument("a", metavar="A", help=source)
  parser.add_argument("b", metavar="B", help="the same of the other checkpoint")
  parser.add_argument(
    "--output",
    default="",
    metavar="FILE",
    help=f"file of the items that changed, .jsonl; the tests are written beside it as .json; default: {_OUTPUT} in B",
  )
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t compare`."""
  options = _parser().parse_args(argv)
  if options.output and not options.output.endswith(".jsonl"):
    raise UserError(f"--output {options.output}: the name must end in .jsonl")
  a, b = (paired_comparison.read(path, where=f"{name} ") for name, path in (("A", options.a), ("B", options.b)))
  comparisons = [paired_comparison.compare(*pair) for pair in paired_comparison.paired(a, b)]
  console = rich.console.Console()
  console.print(f"A: {options.a}\nB: {options.b}", soft_wrap=True, highlight=False)
  paired_comparison.print_table(comparisons, console)
  for name, names in (("A", a.keys() - b.keys()), ("B", b.keys() - a.keys())):
    if names:
      console.print(f"only in {name}: {', '.join(sorted(names))}")
  root = gcs.absolute(options.b)
  folder = root.parent if root.name.endswith((".json", ".jsonl")) else root
  output = gcs.absolute(options.output) if options.output else folder / _OUTPUT
  paired_comparison.write(comparisons, output)
  print(f"changed items  {output}\ntests          {output.with_suffix('.json')}")
