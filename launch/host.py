"""Entry point on each host: `python -m t2t.launch.host COMMAND ...` checks the workdir, then runs t2t.

The hosts' service account may have other permissions than the user; t2t itself detects the other hosts.
"""

import os
import sys

from t2t import UserError
from t2t import __main__ as t2t_main
from t2t.launch import job as job_lib


def check_workdir(path: str) -> None:
  """Writes a file to the workdir and deletes it, with this machine's account.

  Raises:
    UserError: access is denied; with the role to grant.
  """
  from etils import epath  # for a bucket it imports TensorFlow, which takes seconds

  probe = epath.Path(path) / f".t2t_write_test_{os.uname().nodename}_{os.getpid()}"
  try:
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.write_text("t2t")
    probe.unlink()
  except Exception as error:  # any error of the bucket's client
    raise UserError(
      f"{path} cannot be written from {os.uname().nodename}: {str(error).splitlines()[0]}\n"
      "Grant the machines' service account roles/storage.objectAdmin on the bucket (see docs/launch.md)."
    ) from error


def main(argv: list[str]) -> int:
  """Checks the workdir and runs one t2t command; returns its exit code."""
  workdir = job_lib.option(argv, "workdir")
  try:
    if workdir and workdir.startswith("gs://"):
      check_workdir(workdir)
  except UserError as error:
    print(f"t2t launch: error: {error}", file=sys.stderr, flush=True)
    return 2
  return t2t_main.main(argv)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
