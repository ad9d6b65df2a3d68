"""Prompt tuning (Lester et al. 2021): learned vectors stand in front of the embedded text, and nothing else is trained.

They are rows of the embedding of their own, in front of all that is read first, [CLS] or BOS included, as PEFT has
them: the encoder's inputs where there is an encoder, whose output at the prompt the decoder reads as well.  They have
the first positions, and segment type 0; what the text's states are asked, and where its loss counts, stays as it is.
"""

from collections.abc import Sequence
import dataclasses
import re

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, did_you_mean
from t2t.models import transformer
from t2t.models.adapters import Adapter, patterns
from t2t.param_tree import Vocabulary

ADDED = "(^|/)embed/prompt$"
INITS = ("vocabulary", "text", "uniform")


@dataclasses.dataclass(frozen=True)
class PromptConfig:
  """What it is, and how it begins; defaults are the paper's.

  Raises:
    UserError: a field that is out of range, or no such start.
  """

  length: int = 100  # vectors, each of which takes a position of the model's
  #: each begins as the vector of one of the most frequent pieces; or text: of those of `text`; or uniform: within 0.5
  init: str = "vocabulary"
  text: str = ""  # for init=text: words of the task, as its instruction or its labels; shorter ones are repeated
  most_frequent: int = 5_000  # for init=vocabulary: pieces of the vocabulary, from its beginning, that are drawn among
  also_train: tuple[str, ...] = ()  # patterns over paths of parameters that are trained as they are: "norm", "bias"

  def __post_init__(self):
    for name in ("length", "most_frequent"):
      if getattr(self, name) < 1:
        raise UserError(f"config.prompt.{name}={getattr(self, name)}: must be at least 1")
    if self.init not in INITS:
      near = did_you_mean(self.init, INITS)
      raise UserError(f"config.prompt.init={self.init!r}: known are {', '.join(INITS)}{near}")
    if (self.init == "text") != bool(self.text.strip()):
      right = "give config.prompt.text, or another init" if self.init == "text" else "it needs config.prompt.init=text"
      raise UserError(f"config.prompt.text={self.text!r} and config.prompt.init={self.init}: {right}")
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: PromptConfig, rngs: nnx.Rngs) -> nnx.Module:
  """The model with vectors in front of what it reads first.

  Raises:
    UserError: a pattern of `also_train` that matches no parameter.
  """
  model = patterns.copy_of(model)
  for _, submodel in patterns.modules(model, transformer.MODELS):
    table = submodel.embed.table
    shape = config.length, table[...].shape[1]
    vectors = jax.random.uniform(rngs.params(), shape, jnp.float32, -0.5, 0.5)
    axes = "positions", table.get_metadata()["axes"][1]
    submodel.embed.prompt = nnx.data(nnx.Param(vectors, axes=axes))  # in place of a None
  patterns.check(config.also_train, "config.prompt.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Where a parameter was before; None: it is new."""
  return None if re.search(ADDED, path) else path


def _frequent(vocabulary: Vocabulary, number: int) -> list[int]:
  """Ids of the first pieces of a vocabulary that are text; those of all kinds have the most frequent ones first."""
  special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
  frequent_ids = []
  for token_id in range(vocabulary.vocab_size):
    text = "" if token_id in special else vocabulary.decode([token_id]).strip()
    if text and "\ufffd" not in text and not re.fullmatch(r"\[.+\]|<.+>", text):
      frequent_ids.append(token_id)
    if len(frequent_ids) == number:
      break
  return frequent_ids


def starts(config: PromptConfig, vocabulary: Vocabulary | None, *, seed: int) -> Sequence[int] | None:
  """Ids of the pieces whose vectors the prompt begins with; None: it begins with what is drawn for it.

  Args:
    config: says which.
    vocabulary: of the model (`seqio.Vocabulary`); None: not known.
    seed: of what is drawn.

  Raises:
    UserError: the vocabulary has no piece of the text, or is not known.
  """
  if config.init == "uniform":
    return None
  if vocabulary is None:
    raise UserError(f"config.prompt.init={config.init}: asks a vocabulary for pieces; give config.data.vocabulary")
  if config.init == "text":
    ids = [token_id for token_id in vocabulary.encode(config.text) if token_id != vocabulary.unk_id]
    if not ids:
      raise UserError(f"config.prompt.text={config.text!r}: the vocabulary has no piece of it; give other words")
    return (ids * -(-config.length // len(ids)))[: config.length]
  ids = _frequent(vocabulary, config.most_frequent)
  return np.random.default_rng(seed).choice(ids, config.length, replace=len(ids) < config.length).tolist()


def begin(params: dict[str, jax.Array], ids: Sequence[int] | None) -> dict[str, jax.Array]:
  """Path -> array, with the vectors of these pieces in place of a prompt that is fresh; see `starts`."""
  if ids is None:
    return params
  updated = dict(params)
  for path in params:
    if re.search(ADDED, path):
      updated[path] = jnp.take(params[f"{path.rpartition('/')[0]}/table"], jnp.asarray(ids), axis=0)
  return updated


ADAPTER = Adapter(
  PromptConfig,
  adapt,
  ADDED,
  base_path,
  merge=None,
  positions=lambda config: config.length,
  computes=True,
  starts=starts,
  begin=begin,
)
