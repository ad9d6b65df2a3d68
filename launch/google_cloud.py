"""What must be right in a Google Cloud project before anything is paid for: credentials, and a bucket to write to."""

from collections.abc import Mapping, Sequence

from t2t import UserError
from t2t.launch import shell as shell_lib


def check_credentials(shell: shell_lib.Shell) -> None:
  """Checks that `gcloud` is installed and somebody is logged in.

  Raises:
    UserError: says how to install it or to log in.
  """
  shell.say("Is somebody logged in?")
  answer = shell.ask(
    ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"], pretend="you@example.com"
  )
  if answer.code or not answer.out.strip():
    raise UserError("nobody is logged in to Google Cloud; run `gcloud auth login`")


def check_reads(shell: shell_lib.Shell, reads: Mapping[str, Sequence[str]]) -> None:
  """Checks that what a command reads is in its bucket; a dry run prints the checks, and how each is copied there.

  Args:
    shell: runs gcloud.
    reads: key or option, "config.data.vocabulary" -> paths in buckets.

  Raises:
    UserError: nothing is there; says how to copy it.
  """
  for key, paths in reads.items():
    for path in paths:
      folder = path.rpartition("/")[0] + "/"
      copied = f"gcloud storage cp --recursive {path.rpartition('/')[2]} {folder}"
      shell.say(f"Is {key} there? If not, copy it:\n  {copied}")  # a line of its own, to be pasted
      answer = shell.ask(["gcloud", "storage", "ls", path])
      if answer.code:
        raise UserError(f"{key}={path}: is not in the bucket, or cannot be read:\n{answer.reason()}\nCopy it: {copied}")


def check_bucket(shell: shell_lib.Shell, path: str) -> None:
  """Checks that a file can be written to, and deleted from, the folder `path` of a bucket.

  Raises:
    UserError: it cannot; says what to create or to grant.
  """
  bucket = "gs://" + path.removeprefix("gs://").split("/")[0]
  probe = f"{path.rstrip('/')}/.t2t_write_test"
  shell.say("Can the bucket be written?")
  answer = shell.ask(["gcloud", "storage", "cp", "-", probe], given="t2t")
  if answer.code:
    text = answer.err.lower()
    # "does not have ... access to the Google Cloud Storage bucket" says "(or it may not exist)" besides.
    forbidden = "403" in text or "permission" in text or "does not have" in text
    missing = not forbidden and ("404" in text or "not found" in text or "does not exist" in text)
    how = (
      f"create it: gcloud storage buckets create {bucket} --location=REGION (the region of the TPUs)"
      if missing
      else "grant yourself and the machines' service account the right to:\n"
      f"  gcloud storage buckets add-iam-policy-binding {bucket} \\\n"
      "    --member=user:YOU --role=roles/storage.objectAdmin"
    )
    raise UserError(f"{path} cannot be written:\n{answer.reason()}\n{how}")
  shell.ask(["gcloud", "storage", "rm", "--quiet", probe])
