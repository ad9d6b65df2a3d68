"""Checks of rules that count layers: `depth`, `top`, `unfreeze_every` and `settle_every` of `param_groups`."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from t2t import UserError
from t2t.param_tree import stack_of
from t2t.training.param_groups import Rule


def check(rule: Rule, names: Collection[str], paths: Sequence[str], numbers: Mapping[str, np.ndarray]) -> None:
  """Checks that the layers of a rule have numbers.

  Args:
    rule: the rule.
    names: settings of the rule that count layers.
    paths: parameters that the rule matches.
    numbers: see `param_groups.layers_from_top`.

  Raises:
    UserError: no parameter is in a layer, a layer is used several times, or layers alternate and settle.
  """
  for name in sorted(names):
    if not any(np.any(numbers[path]) for path in paths):
      raise UserError(f"{rule.where}: {name!r} counts layers, but {paths[0]} is in no layer. Leave {name!r} out.")
    if shared := next((path for path in paths if "layer" in path.split("/") and not stack_of(path)), None):
      raise UserError(
        f"{rule.where}: {name!r} counts layers, but {shared} is of one layer that is used several times. Leave "
        f"{name!r} out, or set config.model.share_layers=False."
      )
  if "settle_every" in names and (path := next((x for x in paths if "/layers/" in stack_of(x)), None)):
    raise UserError(
      f"{rule.where}: 'settle_every' counts layers from the bottom, but {path} is of layers that alternate with "
      "others. Give a pattern without them, such as '^(?!.*/mlp/)'."
    )
