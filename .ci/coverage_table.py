"""Prints the coverage of each package of t2t from the output of `coverage json`."""

import collections
import json
import pathlib
import sys


def main(path: str) -> None:
  """Prints statements and coverage of packages up to two levels deep; modules outside packages are in the row t2t."""
  counts: collections.defaultdict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
  for name, file in json.loads(pathlib.Path(path).read_text())["files"].items():
    for package in ("/".join(pathlib.PurePath(name).parts[:-1][:2]), "total"):
      counts[package][0] += file["summary"]["num_statements"]
      counts[package][1] += file["summary"]["covered_lines"]
  total = counts.pop("total")
  print(f"{'package':<24}{'statements':>12}{'covered':>10}")
  for package, (statements, covered) in [*sorted(counts.items()), ("total", total)]:
    print(f"{package:<24}{statements:>12}{100 * covered / max(statements, 1):>8.0f} %")


if __name__ == "__main__":
  main(sys.argv[1])
