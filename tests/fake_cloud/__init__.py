"""A cloud of stand-in programs on PATH, for the tests of `t2t launch`."""

import json
import pathlib
import shlex
import sys

from t2t import __main__ as t2t_main

PROGRAM = pathlib.Path(__file__).parent / "program.py"
NOT_FOUND = (1, "", "ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource 'x' was not found")


class Cloud:
  """Programs that record their calls, and answer as a test sets."""

  def __init__(self, folder: pathlib.Path, monkeypatch, *programs: str):
    self._folder = folder / "cloud"
    binaries = folder / "bin"
    binaries.mkdir()
    self._folder.mkdir()
    for program in programs:
      path = binaries / program
      path.write_text(f"#!{sys.executable} -IS\n{PROGRAM.read_text()}")
      path.chmod(0o755)
    self._rules = []
    self.on("auth list", "someone@example.com\n")
    monkeypatch.setenv("PATH", str(binaries))
    monkeypatch.setenv("FAKE_CLOUD", str(self._folder))
    monkeypatch.chdir(folder)

  def on(self, pattern: str, *answers) -> None:
    """Sets the answers to command lines with `pattern`: output, or (exit code, output, errors), in turn."""
    listed = [[0, answer, ""] if isinstance(answer, str) else list(answer) for answer in answers]
    self._rules.insert(0, [pattern, listed])
    for count in self._folder.glob("count_*"):
      count.unlink()
    (self._folder / "rules.json").write_text(json.dumps(self._rules))

  def launch(self, line: str) -> int:
    """Runs `t2t launch` with the words of `line`; returns its exit code."""
    return t2t_main.main(["launch", *shlex.split(line)])

  @property
  def calls(self) -> list[str]:
    """Returns the command lines so far."""
    return [shlex.join(words) for words, _ in self._noted()]

  @property
  def given(self) -> list[str]:
    """Returns the input of programs that read it."""
    return [given for _, given in self._noted() if given is not None]

  def _noted(self):
    path = self._folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

  def forget(self) -> None:
    """Starts a new list of calls."""
    (self._folder / "calls.jsonl").unlink(missing_ok=True)

  def live(self, *nodes: str, hosts: int, python: str) -> pathlib.Path:
    """Makes workers run their scripts, with `python` in place of uv's; returns their homes."""
    tools = self._folder / "worker_bin"
    tools.mkdir()
    scripts = {
      "hostname": "echo $WORKER",
      "uv": f"mkdir -p venv/bin; printf '%s' {shlex.quote(python)} > venv/bin/python; chmod +x venv/bin/python",
    }
    for name, text in scripts.items():
      (tools / name).write_text(f"#!/bin/bash\n{text}\n")
      (tools / name).chmod(0o755)
    for node in nodes:
      for worker in range(hosts):
        (self._folder / "homes" / f"{node}-w-{worker}").mkdir(parents=True)
    return self._folder / "homes"
