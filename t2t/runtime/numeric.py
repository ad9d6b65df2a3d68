"""Checks of numbers: types of command-line options, and arguments of Python functions."""

import argparse
from collections.abc import Callable
import math
import numbers
from typing import Any

from t2t import UserError


def integer(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
  """Returns the `type` of an option for whole numbers within the bounds."""
  right = _right("a whole number", least, most)

  def parse(text: str) -> int:
    try:
      value = int(text)
    except ValueError:
      raise argparse.ArgumentTypeError(f"{text[:40]!r} is not valid. Give {right}.") from None
    return _checked(value, text, right, least, most)

  return parse


def number(least: float | None = None, most: float | None = None, *, above: bool = False) -> Callable[[str], float]:
  """Returns the `type` of an option for finite numbers within the bounds; `above` excludes `least`."""
  right = _right("a finite number", least, most, above=above)

  def parse(text: str) -> float:
    try:
      value = float(text)
    except ValueError:
      raise argparse.ArgumentTypeError(f"{text[:40]!r} is not valid. Give {right}.") from None
    if not math.isfinite(value) or (above and value == least):
      raise argparse.ArgumentTypeError(f"{text[:40]} is not valid. Give {right}.")
    return _checked(value, text, right, least, most)

  return parse


def check(name: str, value: Any, least: float | None = None, most: float | None = None, *, whole: bool = False) -> None:
  """Checks that an argument is a finite number within the bounds, not a boolean.

  Args:
    name: of the argument, for the message.
    value: the argument.
    least, most: inclusive bounds.
    whole: whether it must be a whole number.

  Raises:
    UserError: any other value.
  """
  kind = numbers.Integral if whole else numbers.Real
  is_number = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
  if not is_number or (least is not None and value < least) or (most is not None and value > most):
    right = _right("a whole number" if whole else "a finite number", least, most)
    raise UserError(f"{name}={str(value)[:40]} must be {right}")


def _checked(value, text: str, right: str, least: float | None, most: float | None):
  if (least is not None and value < least) or (most is not None and value > most):
    raise argparse.ArgumentTypeError(f"{text[:40]} is not valid. Give {right}.")
  return value


def _right(kind: str, least: float | None, most: float | None, *, above: bool = False) -> str:
  if least is None:
    return kind
  if most is None:
    return f"{kind}, {f'above {least:g}' if above else f'{least:g} or more'}"
  return f"{kind}, {'above ' if above else ''}{least:g} to {most:,}"
