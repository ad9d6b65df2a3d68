"""Checks a Google Cloud project before anything costs money: credentials, input files and a writable bucket."""

from collections.abc import Mapping, Sequence

from t2t import UserError
from t2t.launch import shell as shell_lib


def check_credentials(shell: shell_lib.Shell) -> None:
  """Checks that `gcloud` is installed and logged in.

  Raises:
    UserError: with the command that installs it or logs in.
  """
  shell.say("Checking the login")
  answer = shell.ask(
    ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"], pretend="you@example.com"
  )
  if answer.code or not answer.out.strip():
    raise UserError("gcloud is not logged in; run `gcloud auth login`")


def check_reads(shell: shell_lib.Shell, reads: Mapping[str, Sequence[str]]) -> None:
  """Checks that the files which a command reads are in the bucket; a dry run prints the checks and copy commands.

  Args:
    shell: runs gcloud.
    reads: key or option, "config.data.vocabulary" -> paths in buckets.

  Raises:
    UserError: a file is missing; with the command that copies it.
  """
  for key, paths in reads.items():
    for path in paths:
      folder = path.rpartition("/")[0] + "/"
      copied = f"gcloud storage cp --recursive {path.rpartition('/')[2]} {folder}"
      shell.say(
        f"Checking that {key} is in the bucket; if not, copy it:\n  {copied}"
      )  # on a separate line, to be pasted
      answer = shell.ask(["gcloud", "storage", "ls", path])
      if answer.code:
        raise UserError(f"{key}={path} is not in the bucket, or cannot be read:\n{answer.reason()}\nCopy it: {copied}")


def check_bucket(shell: shell_lib.Shell, path: str) -> None:
  """Checks that a file can be written to and deleted from the folder `path` of a bucket.

  Raises:
    UserError: it cannot; with the command that creates the bucket or grants access.
  """
  bucket = "gs://" + path.removeprefix("gs://").split("/")[0]
  probe = f"{path.rstrip('/')}/.t2t_write_test"
  shell.say("Checking that the bucket is writable")
  answer = shell.ask(["gcloud", "storage", "cp", "-", probe], given="t2t")
  if answer.code:
    text = answer.err.lower()
    # The message "does not have ... access to the Google Cloud Storage bucket" also contains "(or it may not exist)".
    forbidden = "403" in text or "permission" in text or "does not have" in text
    missing = not forbidden and ("404" in text or "not found" in text or "does not exist" in text)
    how = (
      f"Create the bucket: gcloud storage buckets create {bucket} --location=REGION (the region of the TPUs)"
      if missing
      else "Grant access to yourself and to the machines' service account:\n"
      f"  gcloud storage buckets add-iam-policy-binding {bucket} \\\n"
      "    --member=user:YOU --role=roles/storage.objectAdmin"
    )
    raise UserError(f"{path} cannot be written:\n{answer.reason()}\n{how}")
  shell.ask(["gcloud", "storage", "rm", "--quiet", probe])
