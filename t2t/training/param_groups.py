"""The table over parameters' paths, `config.optimizer.param_groups`: what each rule sets, and for which parameters.

  "^embed: frozen"                                  as they are, not trained
  "encoder/layers: rate=0.1 depth=0.9 from_step=1000"
  "decoder: decay=0.01", ".: anchor=0.01", "mlp: moments=bfloat16"

A rule is a pattern that is looked for in paths, a colon, and settings.  Of two rules that set the same for a parameter,
the later has the say.  `config.train.freeze` is rules, too, in front of these: each "PATTERN: frozen".
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np

from t2t import UserError, did_you_mean
from t2t.configuration.schema import Config, OptimizerConfig
from t2t.models.adapters import ADAPTERS
from t2t.param_tree import check_pattern, matches, stack_of
from t2t.runtime.lazy_table import LazyTable

_KEY = "config.optimizer.param_groups"


def _number(low: float, high: float = math.inf, *, kind: type = float) -> Callable[[str], float]:
  def read(text: str) -> float:
    value = kind(text)
    if not low <= value <= high or not math.isfinite(value):
      raise ValueError
    return value

  return read


def _choice(*names: str) -> Callable[[str], str]:
  def read(text: str) -> str:
    if text not in names:
      raise ValueError
    return text

  return read


_DTYPES = ("bfloat16", "float32")

# Setting -> (what reads its value; what is to be given).
_SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
  "frozen": (_choice("", *_DTYPES), "frozen, or frozen=bfloat16 to be held in half the memory"),
  "trained": (_choice(""), "trained, which takes back an earlier rule's frozen"),
  "rate": (_number(1e-30), "a factor on the learning rate, above 0; what is not to change is frozen"),
  "depth": (_number(1e-30, 1.0), "a factor on the rate for each layer from the top, above 0, at most 1"),
  "from_step": (_number(0, kind=int), "the step, a whole number, before which there is no update"),
  "unfreeze_every": (_number(1, kind=int), "steps, a whole number, after which the next layer from the top is trained"),
  "decay": (_number(0), "a weight decay, at least 0"),
  "anchor": (_number(0), "a decay towards the values that training began from, at least 0"),
  "moments": (_choice(*_DTYPES), "bfloat16 or float32, dtype of the first moments"),
}

# Setting -> a `param_transforms.Transform`, which the forward pass applies.
TRANSFORMS: LazyTable = LazyTable({"mask": "t2t.training.param_transforms:Mask"})


@dataclasses.dataclass(frozen=True)
class Rule:
  """A line of the table.

  settings: name -> value; that of "frozen" is the dtype in which the parameters are held, "" for their own.
  where: the line, and the key that it stands in, for messages.
  """

  pattern: str
  settings: Mapping[str, object]
  where: str


@functools.cache
def parse(lines: tuple[str, ...]) -> tuple[Rule, ...]:
  """The rules of `config.optimizer.param_groups`.

  In:  ("encoder/layers: rate=0.1 from_step=1000",)
  Out: (Rule("encoder/layers", {"rate": 0.1, "from_step": 1000}, ...),)

  Raises:
    UserError: a line that is no rule, a setting that there is not or that has no such value, or one that is set twice.
  """
  rules, seen = [], set()
  for line in lines:
    where = f"{_KEY}: {line!r}"
    # Patterns may have colons, "(?:...)", and settings have none.
    pattern, colon, settings_text = line.rpartition(":")
    pattern = pattern.strip()
    if not colon or not pattern or not settings_text.strip():
      raise UserError(f"{where}: a rule is PATTERN: SETTING ..., for example 'encoder/layers: rate=0.1 depth=0.9'")
    check_pattern(pattern, where)
    settings = {}
    for text in settings_text.split():
      name, equals, value = text.partition("=")
      if name not in _SETTINGS and name not in TRANSFORMS:
        known = (*_SETTINGS, *TRANSFORMS)
        raise UserError(f"{where}: no setting {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}")
      if (pattern, name) in seen:
        raise UserError(f"{where}: {name} is set twice for {pattern!r}; leave one of them out")
      seen.add((pattern, name))
      read, wanted = _SETTINGS[name] if name in _SETTINGS else (TRANSFORMS[name].read, TRANSFORMS[name].wanted)
      try:
        settings[name] = read(value)
        if equals and not value:
          raise ValueError
      except ValueError as error:
        raise UserError(f"{where}: {text}: give {wanted}") from error
    if "frozen" in settings and len(settings) > 1:
      setting_name = next(name for name in settings if name != "frozen")
      raise UserError(f"{where}: what is frozen has no {setting_name}; leave one of them out")
    rules.append(Rule(pattern, settings, where))
  return tuple(rules)


def setting(config: OptimizerConfig, path: str, name: str) -> object:
  """What the table sets for a parameter; None: nothing."""
  values = [rule.settings[name] for rule in _setting(config, name) if re.search(rule.pattern, path)]
  return values[-1] if values else None


def sets(config: OptimizerConfig, *names: str) -> bool:
  """Whether a rule sets one of these, for whichever parameters."""
  return any(_setting(config, name) for name in names)


def _setting(config: OptimizerConfig, name: str) -> list[Rule]:
  return [rule for rule in parse(tuple(config.param_groups)) if name in rule.settings]


# ---- What is not trained ---------------------------------------------------------------------------------------------


def _all_rules(config: Config) -> tuple[Rule, ...]:
  frozen = []
  for pattern in config.train.freeze:
    check_pattern(pattern, "config.train.freeze")
    frozen.append(Rule(pattern, {"frozen": ""}, f"config.train.freeze: {pattern!r}"))
  return (*frozen, *parse(tuple(config.optimizer.param_groups)))


def frozen_patterns(config: Config) -> tuple[str, ...]:
  """Patterns of what is not trained, by both keys: `split_frozen` takes them."""
  return _without_later(_all_rules(config), lambda rule: "frozen" in rule.settings, ("trained",))


def halved_patterns(config: Config) -> tuple[str, ...]:
  """Patterns of what is frozen and held in bfloat16."""
  return _without_later(
    _all_rules(config), lambda rule: rule.settings.get("frozen") == "bfloat16", ("trained", "frozen")
  )


def _without_later(
  rules: Sequence[Rule], is_meant: Callable[[Rule], bool], undone_by: Sequence[str]
) -> tuple[str, ...]:
  """The patterns of rules, each without what later rules take out by other settings."""
  patterns = []
  for index, rule in enumerate(rules):
    if is_meant(rule):
      later_rules = (later_rule for later_rule in rules[index + 1 :] if not is_meant(later_rule))
      later = [later_rule.pattern for later_rule in later_rules if set(undone_by) & set(later_rule.settings)]
      but = "".join(f"(?!.*(?:{pattern}))" for pattern in later)
      patterns.append(f"^{but}(?=.*(?:{rule.pattern}))" if later else rule.pattern)
  return tuple(patterns)


# ---- Layers ----------------------------------------------------------------------------------------------------------


def deepest(shapes: Mapping[str, tuple[int, ...]]) -> int:
  """The number of layers of the deepest stack; 0: there is none."""
  return max((shape[0] for path, shape in shapes.items() if stack_of(path)), default=0)


def layers_from_top(shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """How far below the top each parameter lies, and of a stack each of its layers.

  A stack's last layer has 1, its first as many as there are layers, what tokens are embedded by one more; heads and
  what stands behind the layers have 0.

  Args:
    shapes: of the parameters by their paths, or of some of them.
    num_layers: of the deepest stack of the whole model, trained or not.

  Returns:
    int [], of a stack int [layers].

  Raises:
    ValueError: a stack is deeper.
  """
  if deepest(shapes) > num_layers:
    raise ValueError(f"num_layers={num_layers}, and a stack has {deepest(shapes)}")

  def distance(path: str, shape: tuple[int, ...]) -> np.ndarray:
    if stack_of(path):
      return shape[0] - np.arange(shape[0])
    below = "embed" in path.split("/") or "position_bias" in path
    return np.array(num_layers + 1 if below else 0)

  return {path: distance(path, shape) for path, shape in shapes.items()}


def rates(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """The factor on the learning rate of each parameter, and of a stack of each layer, where it is not 1 throughout.

  `rate` * `depth` ** layers from the top: with rate=1 and depth=1/2.6 those of ULMFiT (Howard & Ruder 2018).  Where no
  rule has a depth it is `config.optimizer.layer_decay`, which counts a layer more between the last and the heads, as
  does the code of Clark et al. 2020 (google-research/electra, model/optimization.py).
  """
  factors = {}
  for path, number in layers_from_top(shapes, num_layers).items():
    rates: Any = setting(config, path, "rate"), setting(config, path, "depth")
    rate, depth = rates
    by_depth = config.layer_decay ** (number + (number > 0)) if depth is None else depth**number
    factors[path] = np.asarray((1.0 if rate is None else rate) * by_depth)
  return {path: factor for path, factor in factors.items() if np.any(factor != 1.0)}


def openings(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """The number of updates made when each parameter's first is, and of a stack each layer's, where it is above 0.

  `from_step` + `unfreeze_every` * layers from the top: with unfreeze_every the steps of an epoch, heads are trained in
  the first, the last layer as well in the second, and so on (Howard & Ruder 2018, gradual unfreezing).
  """
  first_steps = {}
  for path, number in layers_from_top(shapes, num_layers).items():
    first, every = setting(config, path, "from_step") or 0, setting(config, path, "unfreeze_every") or 0
    first_steps[path] = np.asarray(first + every * number)
  return {path: opening for path, opening in first_steps.items() if np.any(opening)}


# ---- What cannot be meant --------------------------------------------------------------------------------------------


def check(config: Config, shapes: Mapping[str, tuple[int, ...]], *, never: tuple[str, ...]) -> None:
  """Refuses rules that fit no parameter, or contradict others.

  Args:
    config: of the run.
    shapes: of all parameters of the model by their paths.
    never: patterns of what is not trained whatever the table says: of an adapter's base, of heads without a loss.

  Raises:
    UserError: names the rule, and what would be right.
  """
  rules, frozen = _all_rules(config), (*frozen_patterns(config), *never)
  trained = [path for path in shapes if not matches(frozen, path)]
  num_layers = deepest(shapes)
  numbers = layers_from_top(shapes, num_layers)
  opened = openings(config.optimizer, {path: shapes[path] for path in trained}, num_layers)
  for rule in rules:
    mine = [path for path in shapes if re.search(rule.pattern, path)]
    if not mine:
      raise UserError(f"{rule.where}: {rule.pattern!r} matches no parameter{nearest(rule.pattern, shapes)}")
    if "frozen" in rule.settings:
      if not any(matches(frozen, path) for path in mine):
        raise UserError(f"{rule.where}: later rules take it back for every parameter that it matches; leave it out")
      continue
    if not set(mine) & set(trained):
      who = next((rule.where for rule in rules if "frozen" in rule.settings and re.search(rule.pattern, mine[0])), None)
      who = who or "an adapter, or a loss that makes nothing of them"
      raise UserError(f"{rule.where}: none of its parameters is trained, {mine[0]} because of {who}; leave one out")
    for name in {"depth", "unfreeze_every"} & set(rule.settings):
      if not any(np.any(numbers[path]) for path in mine):
        raise UserError(f"{rule.where}: {name} is by layers, and {mine[0]} belongs to none; leave it out")
  for path, opening in opened.items():
    if np.max(opening) >= config.train.steps:
      raise UserError(
        f"{_KEY}: {path} would be trained from step {int(np.max(opening))}, and the run has {config.train.steps}"
        " (config.train.steps): a smaller from_step or unfreeze_every, or frozen"
      )


def check_adapters(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
  """Refuses an adapter of which the table leaves nothing, or nothing of what one pattern of its `also_train` is for.

  Args:
    config: of the run.
    shapes: of all parameters of the model by their paths.

  Raises:
    UserError: names both keys.
  """
  frozen = frozen_patterns(config)
  adapters: Mapping[str, Any] = config.adapters
  for name, adapter in adapters.items():
    also = [(pattern, f"config.{name}.also_train: {pattern!r}") for pattern in adapter.also_train]
    for pattern, where in [(ADAPTERS[name].added, f"config.{name}"), *also]:
      mine = [path for path in shapes if re.search(pattern, path)]
      if mine and all(matches(frozen, path) for path in mine):
        rules = (rule for rule in _all_rules(config) if "frozen" in rule.settings)
        rule = next(candidate.where for candidate in rules if re.search(candidate.pattern, mine[0]))
        raise UserError(f"{where}: is to be trained, and all of it is frozen because of {rule}; leave one of them out")


def nearest(pattern: str, paths: Sequence[str] | Mapping[str, object]) -> str:
  """The end of an error about a pattern that is nowhere found: what is nearest to it, or else what there is."""
  parts = [path.split("/") for path in paths]
  known = sorted({"/".join(part[start:end]) for part in parts for end in range(len(part) + 1) for start in range(end)})
  near = did_you_mean(pattern.strip("^$").strip("/"), known)
  return near or f"; there are {', '.join(sorted(paths))}"
