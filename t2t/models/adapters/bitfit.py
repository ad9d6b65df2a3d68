"""BitFit (Ben Zaken et al. 2022): trains only the biases of a model."""

import dataclasses
import re

from flax import nnx

from t2t import UserError
from t2t.models.adapters import Adapter, patterns

ADDED = r"(^|[/_])bias$"  # nothing is added: existing parameters are trained


@dataclasses.dataclass(frozen=True)
class BitFitConfig:
  """Parameters that are trained besides the biases; `config.train.freeze` can exclude some."""

  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm"

  def __post_init__(self):
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: BitFitConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model unchanged.

  Raises:
    UserError: its layers have no biases, or a pattern of `also_train` matches no parameter.
  """
  del rngs
  paths = patterns.paths_of(model)
  if not any(re.search(ADDED, path) and re.search("(^|/)(encoder|decoder)/", path) for path in paths):
    raise UserError(
      "config.bitfit: the model's layers have no biases (config.model.biases=False), as in T5, Llama, "
      "Gemma and ModernBERT. Use config.lora or config.ia3, or a model with biases: BERT, RoBERTa, ALBERT, "
      "ELECTRA, BART or GPT-2."
    )
  patterns.check(config.also_train, "config.bitfit.also_train", paths)
  return model


ADAPTER = Adapter(BitFitConfig, adapt, ADDED, base_path=lambda path: path, merge=lambda params, config: dict(params))
