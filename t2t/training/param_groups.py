"""Parameter groups, `config.optimizer.param_groups`: rules that set options for parameters by their paths.

  "^embed: frozen"                                  not trained
  "encoder/layers: rate=0.1 depth=0.9 from_step=1000"
  "decoder: decay=0.01", ".: anchor=0.01", "mlp: moments=bfloat16"

A rule is a pattern that is searched in paths, a colon, and settings. If two rules set the same option for a parameter,
the later rule wins. Patterns of `config.train.freeze` are rules "PATTERN: frozen" before these.
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
from t2t.runtime import lazy_table

_KEY = "config.optimizer.param_groups"
EPOCH = "epoch"  # value of `unfreeze_every`, which `data.train_data` replaces by the steps of an epoch


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


_steps_or_epoch = lambda text: EPOCH if text == EPOCH else _number(1, kind=int)(text)
_DTYPES = ("bfloat16", "float32")
SETTLED_RATE = 0.1  # of layers after their steps of `settle_every`, as in MobileBERT's code

# Setting -> (parser of its value, description of valid values).
_SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
  "frozen": (_choice("", *_DTYPES), "frozen, or frozen=bfloat16 to store it in half the memory"),
  "trained": (_choice(""), "trained, which undoes an earlier rule's frozen"),
  "rate": (_number(1e-30), "a factor on the learning rate, above 0; use frozen to disable training"),
  "depth": (_number(1e-30, 1.0), "a factor on the rate for each layer from the top, above 0, at most 1"),
  "top": (_number(1, kind=int), "the number of layers from the top that are trained, a whole number from 1"),
  "from_step": (_number(0, kind=int), "the step, a whole number, of the first update"),
  "unfreeze_every": (_steps_or_epoch, "steps, a whole number, or epoch, until the next layer from the top is trained"),
  "settle_every": (
    _number(1, kind=int),
    "steps, a whole number, after which the next layer from the bottom settles",
  ),
  "decay": (_number(0), "a weight decay, at least 0"),
  "anchor": (_number(0), "a decay towards the initial values, at least 0"),
  "moments": (_choice(*_DTYPES), "bfloat16 or float32, the dtype of the first moments"),
}

# Setting -> a `param_transforms.Transform`, which the forward pass applies.
TRANSFORMS = lazy_table.LazyTable[Any](
  {"mask": "t2t.training.param_transforms:Mask", "magnitude": "t2t.training.pruning:Magnitude"}
  | {"movement": "t2t.training.pruning:Movement", "soft_movement": "t2t.training.pruning:SoftMovement"}
)


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule of the table.

  Attributes:
    settings: name -> value; the value of "frozen" is the storage dtype, "" for the parameters' own.
    where: the rule and its key, for messages.
  """

  pattern: str
  settings: Mapping[str, object]
  where: str


@functools.cache
def parse(lines: tuple[str, ...]) -> tuple[Rule, ...]:
  """Parses the rules of `config.optimizer.param_groups`.

    In:  ("encoder/layers: rate=0.1 from_step=1000",)
    Out: (Rule("encoder/layers", {"rate": 0.1, "from_step": 1000}, ...),)

  Raises:
    UserError: a malformed rule, an unknown setting, an invalid value, or a setting that is set twice.
  """
  rules, seen = [], set()
  for line in lines:
    where = f"{_KEY}: {line!r}"
    # The last colon, because patterns may contain colons, "(?:...)", and settings do not.
    pattern, colon, settings_text = line.rpartition(":")
    pattern = pattern.strip()
    if not colon or not pattern or not settings_text.strip():
      raise UserError(
        f"{where}: not a rule. Give PATTERN: SETTING ..., for example 'encoder/layers: rate=0.1 depth=0.9'."
      )
    check_pattern(pattern, where)
    settings = {}
    for text in settings_text.split():
      name, equals, value = text.partition("=")
      if name not in _SETTINGS and name not in TRANSFORMS:
        known = (*_SETTINGS, *TRANSFORMS)
        near = did_you_mean(name, known) or "."
        raise UserError(f"{where}: unknown setting {name!r}. Give one of {', '.join(known)}{near}")
      if (pattern, name) in seen:
        raise UserError(f"{where}: {name!r} is set twice for {pattern!r}. Leave one of the two settings out.")
      seen.add((pattern, name))
      read, wanted = _SETTINGS[name] if name in _SETTINGS else (TRANSFORMS[name].read, TRANSFORMS[name].wanted)
      try:
        settings[name] = read(value)
        if equals and not value:
          raise ValueError
      except ValueError as error:
        raise UserError(f"{where}: {text!r} is not valid. Give {wanted}.") from error
    if "frozen" in settings and len(settings) > 1:
      setting_name = next(name for name in settings if name != "frozen")
      raise UserError(f"{where}: frozen parameters have no {setting_name!r}. Leave 'frozen' or {setting_name!r} out.")
    rules.append(Rule(pattern, settings, where))
  return tuple(rules)


def setting(config: OptimizerConfig, path: str, name: str) -> object:
  """Returns the table's value of a setting for a parameter; None if no rule sets it."""
  values = [rule.settings[name] for rule in _setting(config, name) if re.search(rule.pattern, path)]
  return values[-1] if values else None


def sets(config: OptimizerConfig, *names: str) -> bool:
  """Returns True if a rule sets one of these, for any parameters."""
  return any(_setting(config, name) for name in names)


def _setting(config: OptimizerConfig, name: str) -> list[Rule]:
  return [rule for rule in parse(tuple(config.param_groups)) if name in rule.settings]


# ---- Frozen parameters -----------------------------------------------------------------------------------------------


def _all_rules(config: Config) -> tuple[Rule, ...]:
  frozen = []
  for pattern in config.train.freeze:
    check_pattern(pattern, "config.train.freeze")
    frozen.append(Rule(pattern, {"frozen": ""}, f"config.train.freeze: {pattern!r}"))
  return (*frozen, *parse(tuple(config.optimizer.param_groups)))


def frozen_patterns(config: Config) -> tuple[str, ...]:
  """Returns the patterns of frozen parameters from both keys, for `split_frozen`."""
  return _without_later(_all_rules(config), lambda rule: "frozen" in rule.settings, ("trained",))


def halved_patterns(config: Config) -> tuple[str, ...]:
  """Returns the patterns of frozen parameters that are stored in bfloat16."""
  return _without_later(
    _all_rules(config), lambda rule: rule.settings.get("frozen") == "bfloat16", ("trained", "frozen")
  )


def _without_later(
  rules: Sequence[Rule], is_meant: Callable[[Rule], bool], undone_by: Sequence[str]
) -> tuple[str, ...]:
  """Returns the patterns of rules, each excluding the patterns of later rules that undo it."""
  patterns = []
  for index, rule in enumerate(rules):
    if is_meant(rule):
      later_rules = (later_rule for later_rule in rules[index + 1 :] if not is_meant(later_rule))
      later = [later_rule.pattern for later_rule in later_rules if set(undone_by) & set(later_rule.settings)]
      but = "".join(f"(?!.*(?:{pattern}))" for pattern in later)
      patterns.append(f"^{but}(?=.*(?:{rule.pattern}))" if later else rule.pattern)
  return tuple(patterns)


# ---- Layers ----------------------------------------------------------------------------------------------------------


_BESIDE = {"": 0, "first": 1, "inner": 2, "last": 1}  # layers of a stack besides those of a level


def deepest(shapes: Mapping[str, tuple[int, ...]]) -> int:
  """Returns the number of layers of the deepest stack; 0 if there is no stack."""
  return max((shape[0] + _BESIDE[_level(path)] for path, shape in shapes.items() if stack_of(path)), default=0)


def _level(path: str) -> str:
  """Returns first, inner or last for a parameter of layers that differ by their level in a stack; "" for others."""
  return (re.findall(r"_(first|inner|last)/layers/", path) or [""])[0]


def layers_from_top(shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """Returns each parameter's distance from the top in layers, for stacks that of each layer.

  The last layer of a stack has 1, its first layer the number of layers, and embeddings one more. Heads and other
  parameters after the layers have 0.

  Args:
    shapes: of the parameters, or of some of them, by path.
    num_layers: of the deepest stack of the whole model, trained or not.

  Returns:
    int [], of a stack int [layers].

  Raises:
    ValueError: a stack is deeper.
  """
  if deepest(shapes) > num_layers:
    raise ValueError(f"num_layers={num_layers}, but a stack has {deepest(shapes)} layers")

  def distance(path: str, shape: tuple[int, ...]) -> np.ndarray:
    if level := _level(path):
      return {"first": num_layers, "last": 1, "inner": num_layers - 1}[level] - np.arange(shape[0])
    if stack := stack_of(path):
      # Alternating layers of one kind have the distance of the first layer of their group.
      outer = stack.partition("/layers/")[0]
      depth = max(other[0] for name, other in shapes.items() if stack_of(name) and name.startswith(outer))
      return depth - np.arange(shape[0]) * depth // shape[0]
    below = "embed" in path.split("/") or "position_bias" in path
    return np.array(num_layers + 1 if below else 0)

  return {path: distance(path, shape) for path, shape in shapes.items()}


def rates(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """Returns the learning-rate factor of each parameter, for stacks that of each layer, if it is not 1 everywhere.

  The factor is `rate` * `depth` ** layers from the top; below the last `top` layers it is 0. ULMFiT's depth is 1/2.6.
  Without a `depth` rule it is by `config.optimizer.layer_decay`, which counts one more layer between the last layer and
  the heads, as the code of Clark et al. 2020 does (google-research/electra, model/optimization.py).
  """
  factors = {}
  for path, number in layers_from_top(shapes, num_layers).items():
    settings: Any = (setting(config, path, name) for name in ("rate", "depth", "top"))
    rate, depth, top = settings
    by_depth = config.layer_decay ** (number + (number > 0)) if depth is None else depth**number
    factors[path] = np.asarray((1.0 if rate is None else rate) * by_depth * (top is None or number <= top))
  return {path: factor for path, factor in factors.items() if np.any(factor != 1.0)}


def openings(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """Returns the step of the first update of each parameter, for stacks that of each layer, if it is above 0.

  The step is `from_step` + `unfreeze_every` * layers from the top. With unfreeze_every=epoch, which is replaced by its
  steps before, the first epoch trains heads, the second also the last layer, and so on (Howard & Ruder 2018, gradual
  unfreezing).

  Raises:
    UserError: the steps of an epoch are unknown.
  """
  first_steps = {}
  for path, number in layers_from_top(shapes, num_layers).items():
    first, every = setting(config, path, "from_step") or 0, setting(config, path, "unfreeze_every") or 0
    if every == EPOCH:
      raise UserError(
        f"{_KEY}: 'unfreeze_every={EPOCH}': the steps of an epoch are unknown, because config.train.epochs=0.0 and the "
        "data is no table. Set config.train.epochs, or give a number of steps."
      )
    first_steps[path] = np.asarray(first + every * number)
  return {path: opening for path, opening in first_steps.items() if np.any(opening)}


def settling(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]], num_layers: int) -> dict[str, np.ndarray]:
  """Returns the step from which each parameter of layers, for stacks each layer, has the factor `SETTLED_RATE`.

  The step is `settle_every` times the layer's number from 1 at the bottom; embeddings settle with the first layer.
  """
  every: dict[str, Any] = {path: setting(config, path, "settle_every") for path in shapes}
  numbers = layers_from_top(shapes, num_layers).items()
  return {path: every[path] * (1 + np.max(x) - x) for path, x in numbers if every[path] and np.any(x)}


# ---- Checks ----------------------------------------------------------------------------------------------------------


def check(config: Config, shapes: Mapping[str, tuple[int, ...]], *, never: tuple[str, ...], part: str = "") -> None:
  """Checks that each rule matches a parameter, and that rules do not contradict each other.

  Args:
    config: of the run.
    shapes: of all parameters of the model by path.
    never: patterns of parameters that are never trained: an adapter's base, heads without a loss.
    part: path of the model that the run keeps, see `Loss.part`; "": the root.

  Raises:
    UserError: with the rule and a fix.
  """
  rules, frozen = _all_rules(config), (*frozen_patterns(config), *never)
  trained = [path for path in shapes if not matches(frozen, path)]
  num_layers = deepest(shapes)
  numbers = layers_from_top(shapes, num_layers)
  opened = openings(config.optimizer, {path: shapes[path] for path in trained}, num_layers)
  for rule in rules:
    mine = [path for path in shapes if re.search(rule.pattern, path)]
    if not mine:
      prefixed = rule.pattern.replace("^", f"^{part}/")
      if part and any(re.search(prefixed, path) for path in shapes):
        raise UserError(
          f"{rule.where}: {rule.pattern!r} matches no parameter, because paths of this run's model begin with {part}/. "
          f"Give {prefixed!r}."
        )
      near = nearest(rule.pattern, shapes)
      raise UserError(f"{rule.where}: {rule.pattern!r} matches no parameter{near} Correct the pattern.")
    if "frozen" in rule.settings:
      if not any(matches(frozen, path) for path in mine):
        raise UserError(
          f"{rule.where}: the rule has no effect, because later rules undo 'frozen' for all its parameters. Leave the "
          "rule out."
        )
      continue
    if not set(mine) & set(trained):
      who = next((rule.where for rule in rules if "frozen" in rule.settings and re.search(rule.pattern, mine[0])), None)
      who = who or "an adapter, or a loss that does not use it"
      raise UserError(
        f"{rule.where}: the rule matches no trained parameter. {mine[0]} is frozen because of {who}. Leave the rule "
        f"out, or train {mine[0]}."
      )
    if names := {"depth", "top", "unfreeze_every", "settle_every"} & set(rule.settings):
      lazy_table.load("t2t.training.layer_rules:check")(rule, names, mine, numbers)
  if sets(config.optimizer, *TRANSFORMS):
    lazy_table.load("t2t.training.param_transforms:check")(config.optimizer, shapes, trained)
  for path, opening in opened.items():
    if np.max(opening) >= config.train.steps:
      raise UserError(
        f"{_KEY}: {path} would be trained from step {int(np.max(opening))}, but "
        f"config.train.steps={config.train.steps}. Give a smaller 'from_step' or 'unfreeze_every', or 'frozen'."
      )


def check_adapters(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> None:
  """Checks that rules leave at least one trained parameter of each adapter, and of each pattern of its `also_train`.

  Args:
    config: of the run.
    shapes: of all parameters of the model by path.

  Raises:
    UserError: with both keys.
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
        raise UserError(
          f"{where} must be trained, but all its parameters are frozen because of {rule}. Leave one of the two "
          "settings out."
        )


def nearest(pattern: str, paths: Sequence[str] | Mapping[str, object]) -> str:
  """Returns the end of an error about a pattern without a match: the nearest path, or else all paths."""
  parts = [path.split("/") for path in paths]
  known = sorted({"/".join(part[start:end]) for part in parts for end in range(len(part) + 1) for start in range(end)})
  near = did_you_mean(pattern.strip("^$").strip("/"), known)
  return near or f"; known parameters: {', '.join(sorted(paths))}."
