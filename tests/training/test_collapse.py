"""A loss that stays at chance is reported, with the likely cause; one that falls is not."""

import math

import pytest
import toy

from t2t import losses
from t2t.configuration.loading import load_config, override, records
from t2t.losses import Baseline
from t2t.models.head_config import HeadConfig
from t2t.training.callbacks import collapse


def watch(name, *options, heads=(), loss=""):
  config = records(override(load_config(name), [f"--config.{option}" for option in options]))
  config = config.with_(train={"loss": loss or config.train.loss or "cross_entropy"})
  config = config.with_(model={"heads": heads}) if heads else config
  return collapse.Collapse(config, losses.make(config), lambda step: config.optimizer.learning_rate)


_NSP = (HeadConfig("nsp", 2),)
_SIMCSE = math.log(63 + 1)
_LABSE = 0.3 / 0.05 + math.log(4095 + math.exp(-0.3 / 0.05))
_THREE = -0.13 * math.log(0.13) - 0.87 * math.log(0.87)


@pytest.mark.parametrize(
  ("name", "heads", "loss", "values", "cause"),
  [
    ("tiny_simcse", (), "", {"loss": _SIMCSE}, "all vectors are equal"),
    ("labse_base", (), "", {"loss": _LABSE}, "all vectors are equal"),
    ("tiny_t5", (), "", {"loss": math.log(4_224)}, "every token has the same probability"),
    ("tiny_bert", _NSP, "tokens_and_heads", {"loss": 3.0, "nsp_loss": math.log(2)}, "the answer is the same for every"),
    ("tiny_bert", (HeadConfig("nli", 3),), "heads", {"loss": math.log(3)}, "the answer is the same for every text"),
    (
      "tiny_electra",
      (),
      "",
      {"loss": _THREE, "replaced": 0.13, "generator_loss": 5.0},
      "the discriminator gives every token the same score",
    ),
  ],
)
def test_a_loss_at_chance_is_reported_once(name, heads, loss, values, cause):
  """After fifty steps within a thousandth, and only once; a step elsewhere restarts the count."""
  found, far = watch(name, heads=heads, loss=loss), {key: 1.1 * value for key, value in values.items()}
  near = values | {key: value * 1.0009 for key, value in values.items() if key.endswith("loss") and value < 20}
  said = [text for step in range(1, 200) for text in found.step(step, far if step == 40 else near)]
  assert len(said) == 1 and said[0].startswith("step 90: ") and cause in said[0]


def test_a_loss_that_only_passes_chance_is_not_reported():
  """Near chance for fewer than fifty steps, or at the low rates of a long warm-up."""
  found = watch("tiny_t5")
  falls = [math.log(4_224) * (1.02 - 0.001 * step) for step in range(200)]
  assert not [text for step, loss in enumerate(falls, start=1) for text in found.step(step, {"loss": loss})]
  config = records(load_config("tiny_t5"))
  warms = collapse.Collapse(config, losses.make(config), lambda step: config.optimizer.learning_rate * step / 10_000)
  steps = [step for step in range(1, 1_200) if warms.step(step, {"loss": math.log(4_224)})]
  assert steps == [1_100]


def test_evaluations_that_stay_at_a_baseline_are_reported():
  """A constant predictor has a slightly higher loss than one fitted on held-out text; falling or much higher losses
  differ.
  """
  unigram = Baseline("unigram model", 5.0, "knows how often", cause="ignores its input")
  for losses_, reported in (((5.04, 5.041), True), ((5.04, 5.0), False), ((5.5, 5.5), False), ((4.9, 4.9), False)):
    found = watch("tiny_t5")
    said = [text for number, loss in enumerate(losses_) for text in found.evaluation(100 * number, loss, [unigram])]
    assert bool(said) == reported and all("ignores its input" in text for text in said)
  few = Baseline("unigram model", 5.0, "few", is_exact=False)
  assert not [text for step in (100, 200) for text in watch("tiny_t5").evaluation(step, 5.0, [few])]


def test_chance_is_what_equal_vectors_and_logits_have():
  """The loss of a toy batch equals the baseline."""
  baseline = losses.cross_entropy.uniform(40)
  logits = toy.jnp.zeros((3, 40))
  loss, _, _ = losses.token_cross_entropy(logits, toy.jnp.arange(3), z_loss=0.0, label_smoothing=0.0)
  assert collapse.is_at(float(loss[0]), baseline)
