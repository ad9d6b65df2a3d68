from hypothesis import example, given, strategies
import pytest

from t2t.runtime import amounts


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (754, "12:34"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_duration(seconds, text):
  """Minutes and seconds, and hours if there are any."""
  assert amounts.duration(seconds) == text


@pytest.mark.parametrize(
  ("number", "text"),
  [(0, "0"), (950, "950"), (1234, "1.23k"), (12_345, "12.3k"), (123_456, "123k"), (4.56e6, "4.56M"), (2e9, "2.00G")],
)
def test_compact_count(number, text):
  """Three digits and a unit."""
  assert amounts.compact_count(number) == text


@given(strategies.floats(min_value=0, max_value=9.9e11))
@example(999.7)
@example(9_999.0)
@example(99_999.0)
def test_a_compact_count_is_short(number):
  """At most five characters, whatever the rounding does."""
  assert len(amounts.compact_count(number)) <= 5


@pytest.mark.parametrize(
  ("number", "text"),
  [
    (0, "0 B"),
    (950, "950 B"),
    (1_000, "1 kB"),
    (123_456, "123 kB"),
    (2.5e6, "2.5 MB"),
    (3e12, "3 TB"),
    (-2e9, "-2 GB"),
  ],
)
def test_bytes_have_a_unit(number, text):
  """Decimal prefixes."""
  assert amounts.nbytes(number) == text


@given(strategies.floats(min_value=1, max_value=9e17), strategies.integers(3, 5))
@example(999_999.0, 3)
@example(999.96, 4)
def test_digits_never_round_up_to_a_power(number, digits):
  """999,999 bytes are 1 MB, not 1e+03 kB; the value is exact to the requested digits."""
  text = amounts.with_prefix(number, digits=digits)
  said, _, prefix = text.partition(" ")
  assert "e" not in said and len(said.replace(".", "")) <= max(digits, 4)
  assert abs(float(said) * 1000.0 ** " kMGTP".index(prefix or " ") / number - 1) < 10.0**-digits * 5.01
