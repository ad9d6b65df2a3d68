"""Mixtures of several sources, `config.data.sources`: the task and the sampling rate of each.

The result is a seqio mixture; example_windows.py samples from it by example number, for any number of hosts.
"""

from collections.abc import Callable, Mapping
import math

import seqio

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import default_features, languages, task_resolution

SIZES = ("examples", "tokens")
_KEY = "config.data.sources"


def rates(data: DataConfig, size: Callable[[str], float]) -> dict[str, float]:
  """Returns the sampling rate of each source; the sum is 1.

  The remainder after sources with a share is divided among the others by their rates. Without rates it is divided by
  their sizes to the power of `data.alpha`: proportional at 1, uniform at 0. Conneau & Lample 2019 have 0.5, Conneau et
  al. 2020 and mT5 (Xue et al. 2021) 0.3; the temperature T of Raffel et al. 2020, section 3.5.2, is 1 / alpha.

  Args:
    data: config of the data.
    size: name of a source -> its size; called where sizes decide.

  Raises:
    UserError: a rate is negative, or only some sources without a share have one; the shares leave nothing.
  """
  sources = {source.name: source for source in data.source_list if source.name}
  for name, source in sources.items():
    for key, high in (("rate", math.inf), ("share", 1.0)):
      value = getattr(source, key)
      if not 0.0 <= value <= high or not math.isfinite(value):
        rule = "at least 0" if high == math.inf else "from 0 to 1"
        raise UserError(f"{_KEY}.{name}.{key}={value}: the value must be {rule}")
    if source.rate and source.share:
      raise UserError(
        f"{_KEY}.{name} has both rate={source.rate} and share={source.share}. Leave out 'rate' or 'share'."
      )
  if not 0.0 <= data.alpha <= 1.0:
    raise UserError(f"config.data.alpha={data.alpha}: the value must be from 0 (uniform) to 1 (by size)")
  if data.mixing_unit not in SIZES:
    raise UserError(f"config.data.mixing_unit={data.mixing_unit!r}: unknown unit. Give {' or '.join(SIZES)}.")
  if not 0.0 <= data.repeat_warning_epochs < math.inf:
    raise UserError(
      f"config.data.repeat_warning_epochs={data.repeat_warning_epochs}: the value must be a number of passes, or 0 "
      "(no warning)"
    )
  shares = {name: source.share for name, source in sources.items() if source.share}
  unshared = [name for name in sources if name not in shares]
  remaining_share = 1.0 - math.fsum(shares.values())
  if unshared and remaining_share <= 0.0 or not unshared and not math.isclose(remaining_share, 0.0, abs_tol=1e-6):
    rule = "below 1, because some sources have no share" if unshared else "1, because every source has a share"
    raise UserError(
      f"{_KEY}: the shares of {', '.join(shares)} add up to {1.0 - remaining_share:g}, but the sum must be {rule}. "
      "Correct the shares."
    )
  rated = [name for name in unshared if sources[name].rate]
  if rated and len(rated) < len(unshared):
    unrated = next(name for name in unshared if name not in rated)
    raise UserError(
      f"{_KEY}.{unrated} has no rate, but {_KEY}.{rated[0]} has a rate. Give every source a rate or a share. To sample "
      "the sources by size, remove all rates."
    )
  weights = {name: sources[name].rate if rated else size(name) ** data.alpha for name in unshared}
  total = math.fsum(weights.values())
  return {name: shares[name] if name in shares else remaining_share * weights[name] / total for name in sources}


def join(
  source_data: Mapping[str, DataConfig], parts: Mapping[str, task_resolution.Provider], rates: Mapping[str, float]
) -> seqio.Mixture:
  """Joins the sources into one mixture.

  Args:
    source_data: see `DataConfig.parts`.
    parts: name -> task or mixture of the source; a text task gets that name.
    rates: see `rates`.

  Raises:
    UserError: the sources cannot be mixed.
  """
  tasks: dict[str, tuple[seqio.Task, float]] = {}
  of_source = {}
  for name, part in parts.items():
    part = part.replace(name=name) if source_data[name].is_text else part
    drawn = task_resolution.tasks_of(part)
    inner = {task.name: part.get_rate(task) if isinstance(part, seqio.Mixture) else 1.0 for task in drawn}
    for task in drawn:
      if task.name in tasks:
        raise UserError(
          f"{_KEY}.{name} reads {task.name}, but {_KEY}.{of_source[task.name]} already reads this task. A task has one "
          "sampling rate, so name the task in one source only."
        )
      tasks[task.name] = task, rates[name] * inner[task.name] / math.fsum(inner.values())
      of_source[task.name] = name
  numbers = languages.numbers(source_data)
  task_languages = {task: numbers[name] for task, name in of_source.items() if numbers}
  aligned_tasks = default_features.alike([task for task, _ in tasks.values()], task_languages)
  # All tasks of a mixture yield the same features.
  yielded = {of_source[task.name]: tuple(sorted(task.output_features)) for task in aligned_tasks}
  task_resolution.check_yields(yielded, f"{_KEY}: sources")
  return seqio.Mixture("sources", [(task, tasks[task.name][1]) for task in aligned_tasks])
