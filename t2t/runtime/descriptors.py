"""Limit of open files: data, checkpoints and buckets open many files at once."""

from t2t import UserError

NEEDED, _ENOUGH = 256, 65536


def allow() -> None:
  """Raises this process's limit of open files to its maximum; shells start with 1,024 or fewer.

  Raises:
    UserError: the maximum is too low.
  """
  try:
    import resource
  except ImportError:  # Windows has no such limit
    return
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
  if soft != resource.RLIM_INFINITY and soft < most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
  if most < NEEDED:
    raise UserError(
      f"a process can open {most} files here, but training opens up to {NEEDED}. Run `ulimit -n 4096` in the "
      "shell that starts training, or ask the machine's administrator for a higher limit."
    )
