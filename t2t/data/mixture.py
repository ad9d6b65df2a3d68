"""Several sources at once, `config.data.sources`: what each is read as, and how often each is drawn.

The result is a seqio mixture, from which example_windows.py samples by the number of the example, whatever the
number of hosts.
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
  """How often each source is drawn; the sum is 1.

  What sources with a share leave is divided among the others by their rates, or, if none has one, by their sizes to
  the power of `data.alpha`: proportional to them at 1 and all alike at 0 (Conneau & Lample 2019 have 0.5, Conneau et
  al. 2020 and mT5, Xue et al. 2021, 0.3; the temperature T of Raffel et al. 2020, section 3.5.2, is 1 / alpha).

  Args:
    data: what is read.
    size: name of a source -> how much it has; asked where sizes decide.

  Raises:
    UserError: rates that are below 0, or of some of those without a share alone; shares that leave nothing.
  """
  sources = {source.name: source for source in data.source_list if source.name}
  for name, source in sources.items():
    for key, high in (("rate", math.inf), ("share", 1.0)):
      value = getattr(source, key)
      if not 0.0 <= value <= high or not math.isfinite(value):
        rule = "at least 0" if high == math.inf else "from 0 to 1"
        raise UserError(f"{_KEY}.{name}.{key}={value}: must be {rule}")
    if source.rate and source.share:
      raise UserError(f"{_KEY}.{name}: has rate={source.rate} and share={source.share}; leave one of them out")
  if not 0.0 <= data.alpha <= 1.0:
    raise UserError(f"config.data.alpha={data.alpha}: must be from 0 (all alike) to 1 (by size)")
  if data.mixing_unit not in SIZES:
    raise UserError(f"config.data.mixing_unit={data.mixing_unit!r}: give {' or '.join(SIZES)}")
  if not 0.0 <= data.repeat_warning_epochs < math.inf:
    raise UserError(
      f"config.data.repeat_warning_epochs={data.repeat_warning_epochs}: must be a number of passes, or 0 (never told)"
    )
  shares = {name: source.share for name, source in sources.items() if source.share}
  unshared = [name for name in sources if name not in shares]
  remaining_share = 1.0 - math.fsum(shares.values())
  if unshared and remaining_share <= 0.0 or not unshared and not math.isclose(remaining_share, 0.0, abs_tol=1e-6):
    rule = "below 1, for there are sources without" if unshared else "1, for every source has one"
    raise UserError(
      f"{_KEY}: the shares of {', '.join(shares)} add up to {1.0 - remaining_share:g}; they must be {rule}"
    )
  rated = [name for name in unshared if sources[name].rate]
  if rated and len(rated) < len(unshared):
    unrated = next(name for name in unshared if name not in rated)
    raise UserError(
      f"{_KEY}.{unrated}: has no rate, and {rated[0]} has one; give all of them a rate (or a share), or none, and they"
      " are drawn by their sizes"
    )
  weights = {name: sources[name].rate if rated else size(name) ** data.alpha for name in unshared}
  total = math.fsum(weights.values())
  return {name: shares[name] if name in shares else remaining_share * weights[name] / total for name in sources}


def join(
  source_data: Mapping[str, DataConfig], parts: Mapping[str, task_resolution.Provider], rates: Mapping[str, float]
) -> seqio.Mixture:
  """The sources as one mixture.

  Args:
    source_data: see `DataConfig.parts`.
    parts: name -> what is read of it; of text a task, which gets that name.
    rates: see `rates`.

  Raises:
    UserError: they cannot be mixed.
  """
  tasks: dict[str, tuple[seqio.Task, float]] = {}
  of_source = {}
  for name, part in parts.items():
    part = part.replace(name=name) if source_data[name].is_text else part
    drawn = task_resolution.tasks_of(part)
    inner = {task.name: part.get_rate(task) if isinstance(part, seqio.Mixture) else 1.0 for task in drawn}
    for task in drawn:
      if task.name in tasks:
        raise UserError(f"{_KEY}.{name}: {task.name} is read by another source already; a task is drawn at one rate")
      tasks[task.name] = task, rates[name] * inner[task.name] / math.fsum(inner.values())
      of_source[task.name] = name
  numbers = languages.numbers(source_data)
  task_languages = {task: numbers[name] for task, name in of_source.items() if numbers}
  aligned_tasks = default_features.alike([task for task, _ in tasks.values()], task_languages)
  # A mixture's tasks yield the same.
  yielded = {of_source[task.name]: tuple(sorted(task.output_features)) for task in aligned_tasks}
  task_resolution.check_yields(yielded, f"{_KEY}: sources")
  return seqio.Mixture("sources", [(task, tasks[task.name][1]) for task in aligned_tasks])
