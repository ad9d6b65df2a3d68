"""Detects collapse: a loss that stays at the value of a model with the same output for every input."""

from collections.abc import Mapping, Sequence
from typing import Any

import optax

from t2t.configuration.schema import Config
from t2t.losses import Baseline, Loss
from t2t.training.run import Callback, DispatchedStep, Run

STEPS = 50  # steps in a row at chance before a warning
TOLERANCE = 1e-3  # relative to the loss
# A constant predictor that is fitted on training text has a slightly higher loss on held-out text.
_ABOVE = 0.02
# Fresh parameters may be at chance during warm-up; warn only above this fraction of the peak learning rate.
_RATE = 0.1


def is_at(loss: float, baseline: Baseline) -> bool:
  """Returns True if a loss equals that of a baseline, within `TOLERANCE`."""
  return abs(loss - baseline.loss) <= TOLERANCE * baseline.loss


class Collapse:
  """Detects losses at chance, of training steps and of consecutive evaluations.

  Args:
    config: of a stage.
    loss: of the stage.
    schedule: the learning rate by step.
  """

  def __init__(self, config: Config, loss: Loss, schedule: optax.Schedule):
    self._config, self._loss, self._schedule = config, loss, schedule
    self._rows: dict[str, int] = {}  # metric -> steps in a row at chance
    self._reported: set[str] = set()
    self._evaluated: tuple[int, float] | None = None

  def step(self, step: int, values: Mapping[str, float]) -> list[str]:
    """Returns one sentence for each metric of a training step that is at chance.

    Args:
      step: its number.
      values: its metrics.
    """
    sizes = {"batch_size": self._config.train.batch_size, "vocab_size": self._config.model.vocab_size}
    sentences = []
    for name, baseline in self._loss.chance(values, **sizes).items():
      at_chance = name in values and is_at(values[name], baseline)
      self._rows[name] = self._rows[name] + 1 if at_chance and name in self._rows else int(at_chance)
      if name in self._reported or not self._rows[name] or self._rows[name] % STEPS:
        continue
      rate: Any = self._schedule(step - STEPS)
      if float(rate) >= _RATE * self._config.optimizer.learning_rate:
        self._reported.add(name)
        sentences.append(
          f"step {step}: {name} {values[name]:.4f} has been at chance for {self._rows[name]} steps (within "
          f"{TOLERANCE:.1%} of {baseline.loss:.4f}, the loss of a model that {baseline.knows}). Likely cause: "
          f"{baseline.cause}"
        )
    return sentences

  def evaluation(self, step: int, loss: float, baselines: Sequence[Baseline]) -> list[str]:
    """Returns a sentence if this evaluation and the previous one are at the same baseline.

    Args:
      step: its number.
      loss: held-out loss.
      baselines: computed on the same text.
    """
    before, self._evaluated = self._evaluated, (step, loss)
    if before is None or step - before[0] < STEPS or abs(loss - before[1]) > TOLERANCE * abs(loss):
      return []
    sentences = []
    for baseline in (x for x in baselines if x.is_exact and x.name not in self._reported):
      if -TOLERANCE * baseline.loss <= loss - baseline.loss <= _ABOVE * baseline.loss:
        self._reported.add(baseline.name)
        sentences.append(
          f"step {step}: held-out loss {loss:.4f} has not changed since step {before[0]} and is at chance "
          f"({baseline.name} {baseline.loss:.4f}, which {baseline.knows}). Likely cause: {baseline.cause}"
        )
    return sentences


class ChanceWarnings(Callback):
  """Warns of losses at chance, and logs the name of each stage."""

  def on_start(self, run: Run) -> None:
    if not run.batches.begins_stage:
      self.on_stage(run)

  def on_stage(self, run: Run) -> None:
    stage, training_recipe = run.program.stage, run.program.made
    self._collapse = Collapse(stage.config, training_recipe.loss, training_recipe.schedule)
    if stage.described:
      run.logger.say(f"{stage.described}: {stage.changes or 'as the config has it'}")

  def on_metrics(self, run: Run, step: DispatchedStep, metrics: dict[str, float]) -> None:
    for text in self._collapse.step(step.step, metrics):
      run.remark(step.step, text)

  def on_evaluation(self, run: Run, step: int, metrics: Mapping[str, float]) -> None:
    for text in self._collapse.evaluation(step, metrics["loss"], run.program.baselines):
      run.remark(step, text)
