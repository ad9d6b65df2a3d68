"""Runs every ```sh block of a Markdown file, top to bottom, in one shell, and stops at the first that fails."""

import os
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
  # Each trains for a few steps: programs that are compiled as they are take less time than ones that are optimised.
  flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
  environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
  return subprocess.run(["bash", "-euxo", "pipefail", "-c", script], check=False, env=environment).returncode


if __name__ == "__main__":
  sys.exit(main(sys.argv[1]))
