"""Signals end any command soon, with a message and the signal's exit code; training saves first.

The processes import only the standard library; the whole command is in test_train.py and test_hosts.py.
"""

import http.server
import os
import signal
import subprocess
import sys
import threading

import folders
import pytest

from t2t.runtime import exit_codes, maintenance, preemption

# Code before a test's block; `doing` reports to the test that a signal may come.
_BEFORE = """
import os, signal, sys, threading, time
from t2t.runtime import preemption
preemption._STEP_SECONDS = preemption._SHORTEST_STEP_SECONDS = preemption._FIRST_SECONDS = 0.3
preemption._ECHO_SECONDS = WITHIN
def doing(): os.write(1, b"doing\\n")
def hang():  # deaf: no signal's handler of Python's gets it out of here
  tell = doing
  while True:
    try:
      tell()
      time.sleep(60)
    except BaseException: tell = lambda: None
signal.signal(signal.SIGHUP, signal.BEFORE)
with preemption.watched("train"):
  try:
"""


def program(block: str, *, before: str = "SIG_DFL", echo: float = 0.0) -> str:
  """Returns a program that runs the block as a command.

  Args:
    before: handling of SIGHUP at the start, independent of the test runner's.
    echo: seconds within which a second SIGTERM is a duplicate.
  """
  code = _BEFORE.replace("BEFORE", before).replace("WITHIN", str(echo)) + "".join(
    f"    {line}\n" for line in block.strip().splitlines()
  )
  return code + "  except preemption.Stopped as stopped:\n    sys.exit(stopped.code)\n"


def run(block: str, *signals: int, before: str = "SIG_DFL", echo: float = 0.0) -> tuple[int, str]:
  """Returns exit code and output of a process that receives each signal when it has reported to be ready."""
  process = subprocess.Popen(
    [sys.executable, "-S", "-c", program(block, before=before, echo=echo)],
    cwd=folders.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    for number in signals:
      assert process.stdout.readline() == "doing\n", process.stderr.read()
      process.send_signal(number)
    return process.wait(timeout=60), process.stderr.read()
  finally:
    process.kill()
    process.communicate()


CODES = {
  signal.SIGTERM: exit_codes.TERMINATED,
  signal.SIGINT: exit_codes.INTERRUPTED,
  signal.SIGHUP: exit_codes.HUNG_UP,
}


@pytest.mark.parametrize("number", CODES)
def test_where_there_is_nothing_to_save_it_ends(number):
  """Even if the main thread is blocked; SIGINT is delivered to it first, and the message explains a second signal."""
  found, said = run("hang()", number)
  assert found == CODES[number] and "Traceback" not in said
  assert said.count("t2t train: ") == (2 if number == signal.SIGINT else 1)
  assert ("SIGINT: ending; again to end at once" in said) == (number == signal.SIGINT)
  assert "nothing new was saved; the same command starts where this one started" in said


def test_what_is_left_behind_is_told():
  """In place of the message that nothing was saved."""
  found, said = run("with preemption.leaving(lambda: 'three of five are done'): hang()", signal.SIGTERM)
  assert found == 143 and "SIGTERM: ended at once; three of five are done" in said and "nothing was saved" not in said


@pytest.mark.parametrize("number", CODES)
def test_what_goes_on_is_brought_to_its_end(number):
  """Within the time limit, with the signal's exit code; a second signal ends it immediately."""
  block = """
with preemption.winding_up(60.0, "when {} is done"):
  try:
    doing()
    while True: time.sleep(0.01)
  except KeyboardInterrupt:
    print("winding up", file=sys.stderr)
    {}
    raise
"""
  code, said = run(block.format("this", "pass"), number)
  assert code == CODES[number] and "winding up\n" in said and "ends within 60 s, when this is done" in said
  second = signal.SIGTERM if number == signal.SIGHUP else number
  code, said = run(block.format("this", "hang()"), number, second)
  assert code == CODES[number] and "again: ended at once" in said


TERMINAL = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with preemption.after_steps() as stop:
  stop.reached()
  doing()
  while not stop.reached(): time.sleep(0.01)
  stop.finish(lambda: console.tell("saved", file=sys.stdout))
"""


def test_a_closed_terminal_is_heard_as_a_signal():
  """With SIGHUP's exit code, although the messages cannot be written."""
  terminal, own = os.openpty()
  process = subprocess.Popen(
    [sys.executable, "-S", "-c", program("from t2t.runtime import console" + TERMINAL)],
    cwd=folders.ROOT,
    **dict.fromkeys(("stdin", "stdout", "stderr"), own),
    start_new_session=True,
  )
  os.close(own)
  assert os.read(terminal, 100) == b"doing\r\n"
  os.close(terminal)
  assert process.wait(timeout=60) == exit_codes.HUNG_UP


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_request_that_comes_twice_is_one(number):
  """From shell and kernel, or to a process and its group: the save still completes."""
  block = """
with preemption.after_steps() as stop:
  stop.reached()
  doing()
  while not stop.reached(): time.sleep(0.01)
  doing()
  time.sleep(0.2)
  stop.finish(lambda: print("saved", file=sys.stderr))
"""
  code, said = run(block, number, number, echo=60.0)
  assert code == CODES[number] and said.endswith("saved\n") and "ended at once" not in said


def test_nohup_stays_deaf_to_a_closed_connection():
  """SIGHUP that is ignored when the command starts stays ignored."""
  block = "doing(); time.sleep(0.2); print('went on', file=sys.stderr)"
  assert run(block, signal.SIGHUP, before="SIG_IGN") == (0, "went on\n")


@pytest.mark.parametrize("number", CODES)
def test_a_forked_process_keeps_its_signals_to_itself(number):
  """For example a pool of a task's module: signals end its processes, and the parent does not receive them."""
  block = f"""
child = os.fork()
if not child:
  try: time.sleep(5)
  finally: os._exit(2)
time.sleep(0.2)
os.kill(child, {int(number)})
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
time.sleep(0.2)
"""
  code, said = run(block)
  assert (code, said) == (0, "2\n" if number == signal.SIGINT else f"-{int(number)}\n")


def test_a_forked_process_may_end_as_a_command_does():
  """Although its parent's handlers were inherited; the parent continues."""
  block = """
child = os.fork()
if not child: sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
"""
  assert run(block) == (0, "3\n")


def test_a_pool_of_processes_ends():
  """By the SIGTERM that the pool sends to each process."""
  block = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
  pool.apply_async(time.sleep, [60])
  time.sleep(0.2)
time.sleep(0.2)
"""
  assert run(block) == (0, "")


STEPS = """
with preemption.after_steps() as stop:
  for step in range(3):
    if stop.reached():
      print(f"save at {step}", file=sys.stderr)
      stop.finish(lambda: print("saved", file=sys.stderr))
"""


@pytest.mark.parametrize("number", CODES)
def test_a_loop_saves_and_stops(number):
  """At the step after the signal, with the signal's exit code."""
  # Setting the deadline is the last effect of a signal.
  deaf = "    if step == 1:\n      doing()\n      while stop._watch._deadline is None: time.sleep(0.001)\n"
  code, said = run(STEPS.replace("    if stop.reached", deaf + "    if stop.reached"), number)
  assert code == CODES[number]
  second = "SIGTERM" if number == signal.SIGHUP else "again"
  assert f"{number.name}: saving after this step; {second} to end at once" in said and said.endswith(
    "save at 1\nsaved\n"
  )


def test_a_cloud_tells_every_host():
  """A signal that arrives after another process's stop request is not a second signal."""
  told = """
      stop._watch.hear_of(sync_point.SyncRequest(sync_point.STOP, signal.SIGTERM, "SIGTERM came to another"))
      stop._agreement.ask(sync_point.SyncRequest(sync_point.STOP, signal.SIGTERM, ""))
      doing()
      while not stop._watch._heard: time.sleep(0.001)
      time.sleep(0.1)
"""
  block = STEPS.replace("    if stop.reached", f"    if step == 1:{told}    if stop.reached")
  code, said = run("from t2t.runtime import sync_point" + block, signal.SIGTERM)
  assert code == 143 and "again" not in said and said.endswith("save at 1\nsaved\n")


def test_a_step_that_does_not_end_is_broken_off():
  """For example when the data hangs."""
  code, said = run(
    STEPS.replace("    if stop.reached", "    if step == 1: hang()\n    if stop.reached"), signal.SIGTERM
  )
  assert code == 143 and "the step did not end in time" in said and "save at" not in said


@pytest.mark.parametrize(("step", "limit"), [(0.1, 15.0), (10.0, 30.0), (30.0, 60.0), (200.0, 300.0)])
def test_a_step_has_as_long_as_steps_take(step, limit, monkeypatch):
  """At least one and a half times the usual step, also if the second step has not ended or an evaluation has just
  begun.
  """
  now = [0.0]
  monkeypatch.setattr(preemption.time, "monotonic", lambda: now[0])
  steps = preemption.Steps(None)
  for number in range(3):
    now[0] += step
    steps.reached()
    assert steps.patience() == (limit if number else max(15.0, 1.5 * step))
  assert all(steps.patience() >= 1.5 * step for _ in steps.abandonable([1]))


def test_a_second_signal_does_not_wait_for_what_is_saved():
  """It ends immediately, except for final callbacks, which get a short time."""
  block = STEPS.replace('print(f"save at', 'stop.saving(); hang(); print(f"save at')
  block = block.replace(
    "    if stop.reached", "    if step == 0: stop.reached(); doing(); time.sleep(0.2)\n    if stop.reached"
  )
  words = 'with preemption.last_words(lambda: print("last words", file=sys.stderr)):\n'
  code, said = run(
    words + "".join(f"  {line}\n" for line in block.strip().splitlines()), signal.SIGTERM, signal.SIGTERM
  )
  assert code == 143 and "SIGTERM again: ended at once" in said and "last words" in said and "save at" not in said


def test_codes_say_whether_the_same_command_goes_on():
  """After preemption, kill and loss; not after success, invalid input, failure or interruption."""
  again = [code for code in (None, 0, 1, 2, 75, 129, 130, 134, 137, 143) if exit_codes.goes_on(code)]
  assert again == [None, 75, 129, 134, 137, 143]


def test_maintenance_is_told_once(monkeypatch):
  """Unexpected answers of the server, or none, are ignored."""
  answers = [(200, b"NONE"), (500, b"TERMINATE"), (200, b"<html>"), *[(200, b"TERMINATE_ON_HOST_MAINTENANCE")] * 3]
  told, asked = [], threading.Semaphore(0)

  class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      assert self.path.endswith("/instance/maintenance-event") and self.headers["Metadata-Flavor"] == "Google"
      status, text = answers.pop(0) if len(answers) > 1 else answers[0]
      self.send_response(status)
      self.end_headers()
      self.wfile.write(text)
      asked.release()

    def log_message(self, *args):
      pass

  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    with maintenance.watched(told.append, every=0.01):
      for _ in range(8):
        assert asked.acquire(timeout=60)
    server.shutdown()
  assert len(told) == 1 and "TERMINATE_ON_HOST_MAINTENANCE" in told[0]
  assert maintenance.event(f"127.0.0.1:{server.server_port}") == "NONE"


def test_elsewhere_there_is_no_maintenance(monkeypatch, tmp_path):
  """A machine outside Google Cloud sends no request."""
  monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
  monkeypatch.setattr(maintenance, "_PRODUCT", tmp_path / "none")
  assert maintenance.address() is None
  (tmp_path / "none").write_text("Google Compute Engine\n")
  assert maintenance.address() == "metadata.google.internal" and os.environ.get("GCE_METADATA_HOST") is None
