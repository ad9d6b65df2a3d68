"""Decoders: the text generation methods in `models.config.DECODERS`."""

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
  """A text generation method, independent of the model's attention direction.

  streams: whether tokens become final from left to right, so that a server can send them early.
  """

  streams: ClassVar[bool]

  @staticmethod
  def check(config: TransformerConfig, prompt_length: int, max_length: int) -> None:
    """Checks that the model has enough positions for the prompt and the output.

    Args:
      config: of the model.
      prompt_length: tokens of the longest prompt, including BOS for a decoder-only model.
      max_length: see `decoding.DecodeConfig`.

    Raises:
      UserError: the model has too few positions.
    """

  @staticmethod
  def features(
    prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming, max_length: int
  ) -> Mapping[str, np.ndarray]:
    """Returns the features, int32 [prompts, length], that `decode` reads.

    Args:
      prompts: token ids.
      width: padded length of the prompts.
      architecture: of the model.
      framing: special ids of the vocabulary.
      max_length: see `decoding.DecodeConfig`.
    """

  @staticmethod
  def decode(
    model: nnx.Module, batch: Batch, key: jax.Array | None, *, config: decoding.DecodeConfig, eos_id: int
  ) -> decoding.Decoded:
    """Generates a text for each row; runs inside `jax.jit`. See `decoding.decode`."""


class Autoregressive:
  """Generates tokens from left to right, each conditioned on the previous tokens."""

  streams = True
  check = staticmethod(decoding.check_positions)
  decode = staticmethod(decoding.decode_autoregressively)

  @staticmethod
  def features(
    prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming, max_length: int
  ) -> dict[str, np.ndarray]:
    del max_length  # the cache has room for the output
    return prompt_features(prompts, width, architecture=architecture, framing=framing)
