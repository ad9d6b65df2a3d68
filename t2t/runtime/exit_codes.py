"""What the exit codes of t2t say, and at which of them a launcher starts the same command again."""

DONE = 0  # all steps are made
FAILED = 1  # an error of the code, with its traceback
REFUSED = 2  # what the user gave cannot be used
# Another process of the run is gone, stands still, or could not save, or a bucket does not answer; EX_TEMPFAIL of
# sysexits.h.
LOST = 75
HUNG_UP = 129  # saved and stopped because the terminal or the connection was closed: SIGHUP
INTERRUPTED = 130  # saved and stopped by a person: SIGINT, Ctrl-C
TERMINATED = 143  # saved and stopped by whoever takes the machine: SIGTERM


def goes_on(code: int | None) -> bool:
  """Whether the same command again may come further: the machine was taken, or a process was killed.

  Args:
    code: None where the machine restarted, so that there is none.
  """
  return code is None or code == LOST or (code > 128 and code != INTERRUPTED)
