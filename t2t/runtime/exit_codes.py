"""Exit codes of t2t, and the codes after which a launcher restarts the command."""

DONE = 0  # all steps are done
FAILED = 1  # internal error, with a traceback
REFUSED = 2  # invalid input of the user
# Another process of the run exited, hangs or could not save, or a bucket or the hub does not answer; EX_TEMPFAIL.
LOST = 75
HUNG_UP = 129  # saved and stopped by SIGHUP: the terminal or the connection was closed
INTERRUPTED = 130  # saved and stopped by SIGINT (Ctrl-C)
TERMINATED = 143  # saved and stopped by SIGTERM, for example a preemption


def goes_on(code: int | None) -> bool:
  """Returns True if a restart may help: after a preemption, or if a process was killed.

  Args:
    code: None if the machine restarted and left no exit code.
  """
  return code is None or code == LOST or (code > 128 and code != INTERRUPTED)
