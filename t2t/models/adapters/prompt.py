"""Prompt tuning (Lester et al. 2021): trains only vectors that precede the embedded text.

The vectors are separate embedding rows before the first stack's input, [CLS] or BOS included, as in PEFT. An
encoder-decoder's decoder attends to the encoder's output at the prompt, too. They take the first positions and segment
type 0. Heads and the loss apply to the text's positions as without a prompt.
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
  """Options of prompt tuning and its initialization; defaults are the paper's.

  Raises:
    UserError: a field is out of range, or `init` is unknown.
  """

  length: int = 100  # number of vectors; each takes a position of the model
  #: vocabulary: each vector starts as the embedding of a frequent token; text: of the tokens of `text`; uniform: in
  #: (-0.5, 0.5)
  init: str = "vocabulary"
  text: str = ""  # for init=text: words of the task, such as its instruction or labels; repeated if too short
  most_frequent: int = 5_000  # for init=vocabulary: number of tokens, from the vocabulary's start, to sample from
  also_train: tuple[str, ...] = ()  # patterns over paths of other trained parameters: "norm", "bias"

  def __post_init__(self):
    for name in ("length", "most_frequent"):
      if getattr(self, name) < 1:
        raise UserError(f"config.prompt.{name}={getattr(self, name)}: must be at least 1")
    if self.init not in INITS:
      near = did_you_mean(self.init, INITS)
      raise UserError(f"config.prompt.init={self.init!r}: unknown value. Known values: {', '.join(INITS)}{near}")
    if (self.init == "text") != bool(self.text.strip()):
      raise UserError(
        "config.prompt.init=text needs words, but config.prompt.text is empty. Give config.prompt.text, or another "
        "config.prompt.init."
        if self.init == "text"
        else f"config.prompt.text={self.text!r} has no effect with config.prompt.init={self.init}. Set "
        "config.prompt.init=text, or remove the text."
      )
    object.__setattr__(self, "also_train", tuple(self.also_train))


def adapt(model: nnx.Module, config: PromptConfig, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with learned vectors before the input of its first stack.

  Raises:
    UserError: a pattern of `also_train` matches no parameter.
  """
  model = patterns.copy_of(model)
  for _, submodel in patterns.modules(model, transformer.MODELS):
    table = submodel.input_embed.table
    shape = config.length, table[...].shape[1]
    vectors = jax.random.uniform(rngs.params(), shape, jnp.float32, -0.5, 0.5)
    axes = "positions", table.get_metadata()["axes"][1]
    submodel.input_embed.prompt = nnx.data(nnx.Param(vectors, axes=axes))  # replaces None
  patterns.check(config.also_train, "config.prompt.also_train", patterns.paths_of(model))
  return model


def base_path(path: str) -> str | None:
  """Returns the path of a parameter in the base model; None: the adapter added it."""
  return None if re.search(ADDED, path) else path


def _frequent(vocabulary: Vocabulary, number: int) -> list[int]:
  """Returns the ids of the first text tokens of a vocabulary; vocabularies list the most frequent tokens first."""
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
  """Returns the ids of the tokens that initialize the prompt; None: random initialization.

  Args:
    config: options of prompt tuning.
    vocabulary: the model's vocabulary (`seqio.Vocabulary`); None: unknown.
    seed: seed of the sampling.

  Raises:
    UserError: the vocabulary has no token of the text, or is unknown.
  """
  if config.init == "uniform":
    return None
  if vocabulary is None:
    raise UserError(f"config.prompt.init={config.init} needs a vocabulary. Give config.data.vocabulary.")
  if config.init == "text":
    ids = [token_id for token_id in vocabulary.encode(config.text) if token_id != vocabulary.unk_id]
    if not ids:
      raise UserError(
        f"config.prompt.text={config.text!r}: the vocabulary has no token of this text. Give other words."
      )
    return (ids * -(-config.length // len(ids)))[: config.length]
  ids = _frequent(vocabulary, config.most_frequent)
  return np.random.default_rng(seed).choice(ids, config.length, replace=len(ids) < config.length).tolist()


def begin(params: dict[str, jax.Array], ids: Sequence[int] | None) -> dict[str, jax.Array]:
  """Returns path -> array with a new prompt initialized to these tokens' vectors; see `starts`."""
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
