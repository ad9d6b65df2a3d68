"""Perplexity and bits per byte of a loss."""

from collections.abc import Mapping
import math

_MOST_NATS = 700.0  # exp of more is infinite


def of_loss(loss: float, bytes_per_target: float) -> dict[str, float]:
  """Returns the perplexity of a loss in nats per target and, if the bytes of a target are known, bits per byte."""
  figures = {"perplexity": math.exp(min(loss, _MOST_NATS))}
  return figures | ({"bits_per_byte": loss / math.log(2) / bytes_per_target} if bytes_per_target else {})


def note(figures: Mapping[str, float]) -> str:
  """Returns the figures of `of_loss` in words, after a comma; "" without figures."""
  words = {"perplexity": "perplexity {:.4g}", "bits_per_byte": "{:.4g} bits per byte"}
  return "".join(f", {words[name].format(value)}" for name, value in figures.items())
