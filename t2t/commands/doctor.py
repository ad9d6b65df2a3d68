"""`t2t doctor`: checks whether this machine has what t2t needs."""

import argparse
import dataclasses
import json
import textwrap

from t2t.runtime import environment

_DESCRIPTION = """\
Checks versions, devices, memory, disk, extras and credentials (only whether
they exist; they are never printed).  Prints one line each, and a remedy for
each problem.  Exit code 1 if there is a problem.  Paste the output into a bug
report."""
_EXAMPLES = """\
examples:
  t2t doctor
  t2t doctor --json"""
_WIDTH, _NAME = 80, 14  # columns
_STATES = {environment.FINE: "ok", environment.MISSING: "- ", environment.WRONG: "! "}
_LEGEND = "ok: works   -: absent, fine unless you need it   !: needs a fix"


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t doctor",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t doctor`; returns 1 if there is a problem."""
  options = _parser().parse_args(argv)
  all_findings: list[environment.Finding] = []
  for kind, findings in environment.everything():
    all_findings += findings
    if not options.json:
      print(f"{kind}:")
      print("\n".join(map(_line, findings)), flush=True)
  wrong = [finding for finding in all_findings if finding.state == environment.WRONG]
  if options.json:
    print(json.dumps([dataclasses.asdict(finding) for finding in all_findings], indent=1))
  else:
    print(f"\n{_LEGEND}")
    print(f"to fix: {', '.join(finding.name for finding in wrong)}" if wrong else "no problem found")
  return int(bool(wrong))


def _line(finding: environment.Finding) -> str:
  """Formats a finding, with its remedy on the following lines."""
  text = f"{_STATES[finding.state]} {finding.name:<{_NAME}} {finding.found}"
  indent = " " * (_NAME + 4)
  lines = textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
  if finding.remedy:
    lines += textwrap.wrap(
      f"{indent}{finding.remedy}", _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
  return "\n".join(lines)
