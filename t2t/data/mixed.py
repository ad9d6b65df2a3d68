"""Several sources at once, `config.data.sources`: what each is read as, and how often each is drawn.

What comes of them is a mixture of seqio's, from which rows.py draws as from any other: by the number of the example,
whatever the number of hosts.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math

import seqio

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import filled, languages, selection
from t2t.data.sources import scan

SIZES = ("examples", "tokens")
_KEY = "config.data.sources"
# What a source may say itself of how it is read, where it is files, and where it is not.
_OF_FILES = (
  "eval_files",
  "field",
  "translation",
  "both_directions",
  "objective",
  "noise_density",
  "mean_noise_span_length",
)


def each(data: DataConfig) -> dict[str, DataConfig]:
  """The sources, by name in order, each as if it were all that is read.

  Raises:
    UserError: one that is neither files nor a mixture, or both; or has a key that has no say.
  """
  for key in ("files", "eval_files", "language"):
    if getattr(data, key):
      raise UserError(f"config.data.{key}={getattr(data, key)}: with {_KEY} give {_KEY}.NAME.{key}")
  found = {}
  for name, source in data.sources.items():
    where = f"{_KEY}.{name}"
    if bool(source.files) == bool(source.mixture):
      both = f"{where}.files={source.files!r} and {where}.mixture={source.mixture!r}"
      raise UserError(f"{both}: give one of them, files of text or the name of a registered task or mixture")
    own = {key: getattr(source, key) for key in _OF_FILES if getattr(source, key)}
    if source.mixture and own:
      key = next(iter(own))
      raise UserError(f"{where}.{key}={own[key]}: is of files, and registered tasks say it themselves; leave it out")
    if source.files:
      for key, split in (("train_split", "train"), ("eval_split", "validation")):
        if getattr(data, key) != split:
          raise UserError(f"config.data.{key}={getattr(data, key)}: {where} has files, of which it is {split!r}")
    own = {"files": source.files, "mixture": source.mixture, "language": source.language, **own}
    if source.files and data.cache_dir:
      raise UserError(f"config.data.cache_dir={data.cache_dir}: holds tasks, and {where} has files; register a task")
    own |= {"folders": {}} if source.files else {}  # of the registered tasks
    found[name] = dataclasses.replace(data, sources={}, **own)
  return found


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
        wanted = "at least 0" if high == math.inf else "from 0 to 1"
        raise UserError(f"{_KEY}.{name}.{key}={value}: must be {wanted}")
    if source.rate and source.share:
      raise UserError(f"{_KEY}.{name}: has rate={source.rate} and share={source.share}; leave one of them out")
  if not 0.0 <= data.alpha <= 1.0:
    raise UserError(f"config.data.alpha={data.alpha}: must be from 0 (all alike) to 1 (by size)")
  if data.size not in SIZES:
    raise UserError(f"config.data.size={data.size!r}: give {' or '.join(SIZES)}")
  if not 0.0 <= data.most_epochs < math.inf:
    raise UserError(f"config.data.most_epochs={data.most_epochs}: must be a number of passes, or 0 (never told)")
  shares = {name: source.share for name, source in sources.items() if source.share}
  others = [name for name in sources if name not in shares]
  left = 1.0 - math.fsum(shares.values())
  if others and left <= 0.0 or not others and not math.isclose(left, 0.0, abs_tol=1e-6):
    wanted = "below 1, for there are sources without" if others else "1, for every source has one"
    raise UserError(f"{_KEY}: the shares of {', '.join(shares)} add up to {1.0 - left:g}; they must be {wanted}")
  given = [name for name in others if sources[name].rate]
  if given and len(given) < len(others):
    without = next(name for name in others if name not in given)
    raise UserError(
      f"{_KEY}.{without}: has no rate, and {given[0]} has one; give all of them a rate (or a share), or none, and they"
      " are drawn by their sizes"
    )
  weights = {name: sources[name].rate if given else size(name) ** data.alpha for name in others}
  total = math.fsum(weights.values())
  return {name: shares[name] if name in shares else left * weights[name] / total for name in sources}


def join(data: DataConfig, own: Mapping[str, DataConfig], parts: Mapping[str, selection.Found]) -> seqio.Mixture:
  """The sources as one mixture, which draws its tasks as `rates` says.

  Args:
    data: what is read.
    own: see `each`.
    parts: name -> what is read of it; of files a task, which gets that name.

  Raises:
    UserError: they cannot be mixed.
  """
  found = rates(data, lambda name: _size(data, name, own[name], parts[name]))
  tasks: dict[str, tuple[seqio.Task, float]] = {}
  of_source = {}
  for name, part in parts.items():
    part = part.replace(name=name) if own[name].files else part
    drawn = selection.tasks_of(part)
    inner = {task.name: part.get_rate(task) if isinstance(part, seqio.Mixture) else 1.0 for task in drawn}
    for task in drawn:
      if task.name in tasks:
        raise UserError(f"{_KEY}.{name}: {task.name} is read by another source already; a task is drawn at one rate")
      tasks[task.name] = task, found[name] * inner[task.name] / math.fsum(inner.values())
      of_source[task.name] = name
  numbers = languages.numbers(own)
  told = {task: numbers[name] for task, name in of_source.items() if numbers}
  alike = filled.alike([task for task, _ in tasks.values()], told)
  # A mixture's tasks yield the same.
  yielded = {of_source[task.name]: tuple(sorted(task.output_features)) for task in alike}
  selection.check_yields(yielded, f"{_KEY}: sources")
  return seqio.Mixture("sources", [(task, tasks[task.name][1]) for task in alike])


def task_names(name: str, own: DataConfig) -> list[str]:
  """Names of seqio's tasks that are read of a source: of files one, which has the source's.

  Args:
    name: of the source.
    own: see `each`.
  """
  if not own.mixture:
    return [name]
  return [task.name for task in selection.tasks_of(selection.named(own.mixture, modules=own.task_modules))]


def parts(data: DataConfig, mixture: seqio.Mixture) -> dict[str, selection.Found]:
  """Of each source that names its language what is read of it, as it is mixed.

  Args:
    data: what is read.
    mixture: see `join`.
  """
  tasks = {task.name: task for task in selection.tasks_of(mixture)}
  found: dict[str, selection.Found] = {}
  for name, own in each(data).items():
    mine = [tasks[each] for each in task_names(name, own)]
    if own.language and any(data.eval_split in task.splits for task in mine):
      rated = [(task, mixture.get_rate(task)) for task in mine]
      found[name] = mine[0] if len(mine) == 1 else seqio.Mixture(name, rated)
  return found


def _size(data: DataConfig, name: str, own: DataConfig, part: selection.Found) -> float:
  """How much a source has; of files of which only a part was looked at about how much."""
  where = f"{_KEY}.{name}"
  if own.files:
    source = part.source
    looked = scan.scan(source.list_shards("train"), field=own.field, where=f"{where}.files", malformed=own.malformed)
    counted = looked.documents if data.size == "examples" else looked.characters
    if looked.complete:
      return float(counted)
    # What stands beside texts in their records, and how many bytes a character has, differs from source to source.
    return math.fsum(shard.weight for shard in source.records("train").shards()) * counted / max(looked.size, 1)
  counts = [task.num_input_examples(data.train_split) for task in selection.tasks_of(part)]
  if data.size == "tokens" or None in counts:
    why = "nobody has counted its tokens" if data.size == "tokens" else "it does not say how many examples it has"
    raise UserError(f"{where}: {why}, by which config.data.size={data.size} draws; give {where}.rate or .share")
  return float(sum(counts))
