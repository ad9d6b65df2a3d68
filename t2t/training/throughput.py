"""Training throughput."""

import collections
import time

import jax

from t2t import accelerators


class Throughput:
  """Tokens per second, step time, MFU and the fraction of time spent waiting for data, as a moving average.

  The first step is left out, because it contains the compilation.
  """

  def __init__(self, *, devices: list[jax.Device], flops_per_step: float = 0.0):
    peak = accelerators.peak_flops(devices[0].device_kind)
    self._flops_per_second = None if peak is None else peak * len(devices)
    self._flops_per_step = flops_per_step
    # (seconds, tokens, seconds waited) of the latest steps
    self._window: collections.deque[tuple[float, float, float]] = collections.deque(maxlen=50)
    self._last: float | None = None

  def step(self, *, tokens: float, wait_seconds: float) -> dict[str, float]:
    """Records the end of a step; returns values of the latest steps, {} after the first."""
    now = time.monotonic()
    if self._last is not None:
      self._window.append((now - self._last, tokens, wait_seconds))
    self._last = now
    if not self._window:
      return {}
    seconds, tokens, waited = (sum(column) for column in zip(*self._window, strict=True))
    values = {
      "step_seconds": self._window[-1][0],
      "tokens_per_second": tokens / seconds,
      "steps_per_second": len(self._window) / seconds,
      "input_wait": self._window[-1][2] / self._window[-1][0],
      "input_wait_average": waited / seconds,
    }
    if self._flops_per_second is not None:
      values["mfu"] = self._flops_per_step * values["steps_per_second"] / self._flops_per_second
    return values

  def begin(self, flops_per_step: float) -> None:
    """Starts a new window, because steps of another stage have another speed."""
    self._flops_per_step = flops_per_step
    self._window.clear()
    self._last = None

  def pause(self) -> None:
    """Excludes the time until the next step, for example of an evaluation."""
    self._last = None
