"""How many files a process may have open: data, checkpoints and buckets take many at once."""

import resource

from t2t import UserError

NEEDED, _ENOUGH = 256, 65536


def allow() -> None:
  """Lets this process have as many as it may let itself have: shells begin with 1,024 or less.

  Raises:
    UserError: that is too few.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
  if soft != resource.RLIM_INFINITY and soft < most:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
  if most < NEEDED:
    raise UserError(
      f"a process may have {most} files open here, and training takes up to {NEEDED}: give it more, with"
      " `ulimit -n 4096` in the shell that starts it, or what the machine's administrator sets"
    )
