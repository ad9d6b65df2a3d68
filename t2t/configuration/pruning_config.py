"""Optional section `config.pruning`: the schedule of the pruning rules of `config.optimizer.param_groups`."""

from collections.abc import Iterable
import dataclasses
import re

from t2t import UserError
from t2t.configuration import section_keys
from t2t.configuration.section_keys import key

NAME = "pruning"
# Settings of the rules that read the section.
RULES = ("magnitude", "movement", "soft_movement")


def is_used(param_groups: Iterable[str]) -> bool:
  """Returns whether one of the rules "PATTERN: SETTING ..." prunes by the schedule."""
  return any(re.search(rf"\b({'|'.join(RULES)})=", rule.rpartition(":")[2]) for rule in param_groups)


@dataclasses.dataclass(frozen=True)
class PruningConfig:
  """Schedule of the rules magnitude=F, movement=F and soft_movement=F; sparsity is the fraction of zeros.

  Between `start` and `end` the sparsity rises by the cubic of Zhu & Gupta (2017):
  final + (initial - final) * (1 - (step - start) / (end - start))**3.
  """

  start: int = key(0, "first step that prunes", least=0)
  end: int = key(0, "step from which the sparsity is final; 0: half of train.steps", least=0)
  every: int = key(10, "steps between changes of the masks", least=1)
  initial: float = key(0.0, "sparsity at step `start`, below 1", least=0.0, most=0.999)
  score_rate: float = key(0.01, "movement: learning rate of Adam for the scores", least=0.0)
  penalty: float = key(0.0, "soft_movement: final coefficient of the mean of sigmoid(score)", least=0.0)

  def resolved(self, steps: int) -> "PruningConfig":
    """Returns the schedule of a run of this many steps, with `end` above 0.

    Raises:
      UserError: a key is out of range, or the schedule ends before it starts or after the run.
    """
    section_keys.check_ranges(NAME, self)
    end = self.end or max(self.start + 1, steps // 2)
    if end <= self.start:
      raise UserError(
        f"config.pruning.end={self.end} must be after config.pruning.start={self.start}. Give a later end, or 0 for "
        "half of config.train.steps."
      )
    if end >= steps:
      raise UserError(
        f"config.pruning.end={self.end}: the sparsity would be final at step {end}, but config.train.steps={steps}. "
        "Give an earlier start and end, or more steps."
      )
    return dataclasses.replace(self, end=end)
