"""Decoders: the ways in which models generate text, rows of `models.config.DECODERS`."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from flax import nnx
import jax
import numpy as np

from t2t.inference import decoding
from t2t.inference.prompt_features import PromptFraming, Tokens, prompt_features
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig


class Decoder(Protocol):
  """A way to generate text; whether the model reads in both directions is the model's own.

  streams: whether tokens are final in the order of their positions, so that `decoding.make_stream` can show them.
  """

  streams: ClassVar[bool]

  @staticmethod
  def check(config: TransformerConfig, prompt_length: int, max_length: int) -> None:
    """Checks that a model has the positions that reading and writing need.

    Args:
      config: of the model.
      prompt_length: tokens of the longest prompt, BOS included where a decoder alone reads it.
      max_length: see `decoding.DecodeConfig`.

    Raises:
      UserError: it has not.
    """

  @staticmethod
  def features(
    prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming, max_length: int
  ) -> Mapping[str, np.ndarray]:
    """Returns the features, int32 [prompts, length], that `decode` reads.

    Args:
      prompts: token ids.
      width: positions of the prompts, to which they are padded.
      architecture: of the model.
      framing: of the vocabulary.
      max_length: see `decoding.DecodeConfig`.
    """

  @staticmethod
  def decode(
    model: nnx.Module, batch: Batch, key: jax.Array | None, *, config: decoding.DecodeConfig, eos_id: int
  ) -> decoding.Decoded:
    """Writes a text for each row; runs inside `jax.jit`. See `decoding.decode`."""


class Autoregressive:
  """Writes one token after another, each from those before it."""

  streams = True
  check = staticmethod(decoding.check_positions)
  decode = staticmethod(decoding.decode_autoregressively)

  @staticmethod
  def features(
    prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming, max_length: int
  ) -> dict[str, np.ndarray]:
    """See `prompt_features`."""
    del max_length  # room is made in the cache
    return prompt_features(prompts, width, architecture=architecture, framing=framing)
