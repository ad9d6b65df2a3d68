"""Scaled rotary frequencies: the published formulas, and settings without an effect."""

import math
import re

import numpy as np
import pytest
import toy

from t2t import UserError

ORIGINAL, BASE, HEAD_DIM = 64, 50.0, 16
PLAIN = BASE ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)


def rotary(**fields):
  """Returns the scheme of a decoder with fields `rotary_scaling...`, without the prefix."""
  named = {f"rotary_scaling{'_' if name else ''}{name}": value for name, value in fields.items()}
  return toy.decoder(positions="rotary", head_dim=HEAD_DIM, rotary_base=BASE, **named).position_scheme


def frequencies(scheme):
  """Returns the angles from position 0 to position 1, which are below pi, and the length of the rotated vector."""
  cos, sin = scheme.angles(np.array(1))
  return np.arctan2(sin, cos), np.hypot(cos, sin)


def test_linear_divides_every_frequency():
  found, length = frequencies(rotary(**{"": "linear"}, factor=4.0))
  np.testing.assert_allclose(found, PLAIN / 4.0, rtol=1e-5)
  np.testing.assert_allclose(length, 1.0, rtol=1e-5)


def test_llama3_keeps_fast_turns_and_divides_slow_ones():
  """By the length of a turn, as in the code of Llama 3.1; all three cases occur."""
  found, length = frequencies(
    rotary(**{"": "llama3"}, factor=8.0, original_length=ORIGINAL, low_turns=1.5, high_turns=3.5)
  )
  expected, cases = [], set()
  for frequency in PLAIN:
    turn = 2 * math.pi / frequency
    smooth = (ORIGINAL / turn - 1.5) / (3.5 - 1.5)
    case = 0 if turn < ORIGINAL / 3.5 else 2 if turn > ORIGINAL / 1.5 else 1
    expected.append([frequency, (1 - smooth) * frequency / 8.0 + smooth * frequency, frequency / 8.0][case])
    cases.add(case)
  assert cases == {0, 1, 2}
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(length, 1.0, rtol=1e-5)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramps_over_feature_pairs(truncate):
  """From the pair of beta_fast turns to the pair of beta_slow turns; vectors are longer, by the published factor."""
  scheme = rotary(**{"": "yarn"}, factor=4.0, original_length=ORIGINAL, beta_fast=6.0, beta_slow=0.5, truncate=truncate)
  found, length = frequencies(scheme)
  first, last = (HEAD_DIM * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (6.0, 0.5))
  first, last = (math.floor(first), math.ceil(last)) if truncate else (first, last)
  ramp = np.clip((np.arange(HEAD_DIM // 2) - first) / (last - first), 0.0, 1.0)
  assert ramp[0] == 0.0 < ramp[-1] < 1.0 or ramp[-1] == 1.0
  np.testing.assert_allclose(found, PLAIN / 4.0 * ramp + PLAIN * (1 - ramp), rtol=1e-5)
  np.testing.assert_allclose(length, 0.1 * math.log(4.0) + 1.0, rtol=1e-5)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"factor": 8.0}, "config.model.rotary_scaling_factor=8.0 has no effect with config.model.rotary_scaling=''."),
    (
      {"": "linear", "original_length": 8},
      "rotary_scaling_original_length=8 has no effect with config.model.rotary_scaling='linear'.",
    ),
    ({"": "llama", "factor": 2.0}, "rotary_scaling='llama': unknown value. Known values: linear, llama3, yarn"),
    ({"": "linear", "factor": 0.5}, "config.model.rotary_scaling_factor=0.5: must be at least 1"),
    ({"": "yarn", "factor": 2.0}, "rotary_scaling=yarn needs the longest sequence before scaling"),
    (
      {"": "llama3", "original_length": 8, "low_turns": 5.0},
      "rotary_scaling_low_turns below rotary_scaling_high_turns",
    ),
    ({"": "yarn", "original_length": 8, "beta_slow": 0.0}, "rotary_scaling_beta_slow=0.0 and config.model."),
    ({"": "yarn", "original_length": 8, "attention_factor": -1.0}, "attention_factor=-1.0: must be at least 0"),
  ],
)
def test_settings_that_cannot_be(fields, message):
  """Before anything is compiled."""
  with pytest.raises(UserError, match=re.escape(message)):
    rotary(**fields)
