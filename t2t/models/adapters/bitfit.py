"""BitFit (Ben Zaken et al. 2022): the biases of a model are trained, and nothing else of it."""

import dataclasses
import re

from flax import nnx

from t2t import UserError
from t2t.models.adapters import Adapter, patterns

ADDED = r"(^|[/_])bias$"  # nothing is added: these are trained


@dataclasses.dataclass(frozen=True)
class BitFitConfig:
  """What is trained besides the biases, of which `config.train.freeze` leaves out some."""

  also_train: tuple[str, ...] = ()  # patterns over paths of parameters that are trained as they are: "norm"

  def __post_init__(self):
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: BitFitConfig, rngs: nnx.Rngs) -> nnx.Module:
  """The model as it is.

  Raises:
    UserError: its layers have no biases, or a pattern of `also_train` matches no parameter.
  """
  del rngs
  paths = patterns.paths_of(model)
  if not any(re.search(ADDED, path) and re.search("(^|/)(encoder|decoder)/", path) for path in paths):
    raise UserError(
      "config.bitfit: this model's layers have no biases (config.model.biases=False), as those of T5, Llama, Gemma and"
      " ModernBERT; BERT, RoBERTa, ALBERT, ELECTRA, BART and GPT-2 have them; here config.lora or config.ia3 would do"
    )
  patterns.check(config.also_train, "config.bitfit.also_train", paths)
  return model


ADAPTER = Adapter(BitFitConfig, adapt, ADDED, base_path=lambda path: path, merge=lambda params, config: dict(params))
