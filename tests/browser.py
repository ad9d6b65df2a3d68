"""A headless Chromium that tests control over pipes, by Chrome's DevTools protocol."""

import base64
from collections.abc import Iterator
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

import pytest

CHROMIUM = "T2T_TEST_CHROMIUM"  # environment variable with the program, if it is not found by its name
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 60.0  # time limit of the browser's answers and of waiting for a page


def program() -> str:
  """Returns the browser's path; skips the test if none is found."""
  browser_path = os.environ.get(CHROMIUM) or next(filter(None, map(shutil.which, _NAMES)), "")
  if not browser_path:
    pytest.skip(f"no Chromium is installed (or named by {CHROMIUM}): the page is not looked at in a browser")
  return browser_path


class Page:
  """A page of a browser.

  Args:
    write, read: descriptors of the pipes to it and from it.
  """

  def __init__(self, write: int, read: int):
    self._write, self._read, self._rest, self._number = write, read, b"", 0
    self._session = ""
    self.said: list[str] = []  # errors of scripts, and console messages
    target = self.call("Target.createTarget", url="about:blank")["targetId"]
    self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Accessibility", "Network"):
      self.call(f"{domain}.enable")

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """Returns the result of a method of the protocol."""
    self._number += 1
    message = {"id": self._number, "method": method, "params": params}
    os.write(
      self._write, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
    )
    while True:
      answer = self._message()
      if answer.get("id") == self._number:
        assert "error" not in answer, (method, answer)
        return answer["result"]
      self._hear(answer)

  def _message(self) -> dict[str, Any]:
    until = time.monotonic() + _SECONDS
    while b"\0" not in self._rest:
      ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
      assert ready, "the browser does not answer"
      content = os.read(self._read, 1 << 16)
      assert content, "the browser has ended"
      self._rest += content
    message, _, self._rest = self._rest.partition(b"\0")
    return json.loads(message)

  def _hear(self, event: dict[str, Any]) -> None:
    if event["method"] == "Runtime.exceptionThrown":
      self.said.append(json.dumps(event["params"]["exceptionDetails"]))
    if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
      self.said.append(json.dumps(event["params"]["entry"]))

  def do(self, script: str) -> Any:
    """Returns the value of an expression on the page, awaited if it is a promise."""
    reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in reply, (script, reply)
    return reply["result"].get("value")

  def until(self, condition: str) -> None:
    """Waits until an expression is true."""
    end = time.monotonic() + _SECONDS
    while not self.do(f"Boolean({condition})"):
      assert time.monotonic() < end, (condition, self.said, self.do("document.body.innerText"))
      time.sleep(0.02)

  def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    """Opens an address and waits until it has loaded."""
    self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    self.call("Emulation.setEmulatedMedia", features=[scheme])
    self.call("Page.navigate", url="about:blank")
    self.call("Page.navigate", url=address)
    self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

  def press(self, key: str, *, code: int = 0, control: bool = False) -> None:
    """Presses and releases one key."""
    codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38}
    codes |= {"ArrowRight": 39, "ArrowDown": 40}
    options = {"key": key, "windowsVirtualKeyCode": codes.get(key, code), "modifiers": 2 if control else 0}
    text = {"Enter": "\r", " ": " "}.get(key)
    down = {"type": "keyDown", "text": text} if text and not control else {"type": "rawKeyDown"}
    self.call("Input.dispatchKeyEvent", **down, **options)
    self.call("Input.dispatchKeyEvent", type="keyUp", **options)

  def type(self, text: str) -> None:
    """Types into the focused element."""
    self.call("Input.insertText", text=text)

  def picture(self, *, height: int | None = None, width: int = 1280) -> bytes:
    """Returns a screenshot as PNG."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1} if height else None
    options = {"clip": clip, "captureBeyondViewport": True} if clip else {}
    return base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"])


@contextlib.contextmanager
def opened() -> Iterator[Page]:
  """Yields the page of a new browser, which ends with the test."""
  to_it, from_it = os.pipe(), os.pipe()
  # The protocol is read from descriptor 3 and written to 4.
  script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
    quiet = ("--no-first-run", "--disable-extensions", "--disable-background-networking", f"--user-data-dir={profile}")
    command = ["bash", "-c", script, "bash", str(to_it[0]), str(from_it[1]), program(), *flags, *quiet]
    process = subprocess.Popen(command, pass_fds=(to_it[0], from_it[1]), stderr=subprocess.DEVNULL)
    os.close(to_it[0])
    os.close(from_it[1])
    try:
      yield Page(to_it[1], from_it[0])
    finally:
      process.terminate()
      process.wait(30)
      os.close(to_it[1])
      os.close(from_it[0])
