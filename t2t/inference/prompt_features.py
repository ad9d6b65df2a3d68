"""Features of prompts that a model generates text from."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from t2t.models.architecture import ARCHITECTURES
from t2t.models.config import TransformerConfig

Tokens = Sequence[int]


@dataclasses.dataclass(frozen=True)
class PromptFraming:
  """Special ids around a text.

  bos_id: first input of a decoder.
  eos_id: ends a text.
  pad_id: fills a row; segment ids mark padding, so the id may also be a token.
  cls_id, sep_id, mask_id: of an encoder-only model; None if the vocabulary lacks them.
  causal: whether a decoder-only model with bidirectional prefixes reads the prompt from left to right.
  """

  bos_id: int
  eos_id: int
  pad_id: int
  cls_id: int | None = None
  sep_id: int | None = None
  mask_id: int | None = None
  causal: bool = False

  @property
  def around(self) -> list[int]:
    """Lists the special ids that an encoder-only model reads around a text."""
    return [x for x in (self.cls_id, self.sep_id) if x is not None]


def framing(vocabulary, *, causal: bool = False) -> PromptFraming:
  """Returns the special ids of a seqio vocabulary."""
  from t2t.data import vocabularies

  return PromptFraming(
    bos_id=vocabularies.bos_id(vocabulary),
    eos_id=vocabulary.eos_id,
    pad_id=max(vocabulary.pad_id, 0),
    cls_id=vocabularies.cls_id(vocabulary),
    sep_id=vocabularies.sep_id(vocabulary),
    mask_id=vocabularies.find_mask_id(vocabulary),
    causal=causal,
  )


def padded(rows: Sequence[Tokens], width: int, value: int, dtype: type = np.int32) -> np.ndarray:
  """Pads sequences at the end with `value`, [rows, width]."""
  filled = np.full((len(rows), width), value, dtype)
  for row, tokens in zip(filled, rows, strict=True):
    row[: len(tokens)] = tokens
  return filled


def prompt_features(
  prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming
) -> dict[str, np.ndarray]:
  """Returns the features for generating from prompts.

  In:  [[7, 8, 1], [9, 1]], width 4, an encoder-decoder that starts with 0
  Out: {"encoder_input_tokens": [[7, 8, 1, 0], [9, 1, 0, 0]], "encoder_segment_ids": [[1, 1, 1, 0], [1, 1, 0, 0]],
        "decoder_input_tokens": [[0], [0]]}

  Args:
    prompts: token ids, each at most `width` (decoder-only: `width` - 1, because BOS comes first).
    width: positions of the encoder, or of a decoder-only model.
    architecture: encoder_decoder or decoder_only.
    framing: special ids of the vocabulary.
  """
  if ARCHITECTURES[architecture].is_decoder_only:
    prompts = [[framing.bos_id, *prompt] for prompt in prompts]
    real = [[1] * len(prompt) for prompt in prompts]
    return {
      "decoder_input_tokens": padded(prompts, width, framing.pad_id),
      "decoder_segment_ids" if framing.causal else "decoder_causal_attention": padded(real, width, 0),
    }
  return {
    "encoder_input_tokens": padded(prompts, width, framing.pad_id),
    "encoder_segment_ids": padded([[1] * len(prompt) for prompt in prompts], width, 0),
    "decoder_input_tokens": np.full((len(prompts), 1), framing.bos_id, np.int32),
  }


def predicted_last(config: TransformerConfig, features: Mapping[str, Any], mask_id: int | None) -> dict[str, Any]:
  """Adds the ranks of a model with two streams: masks are predicted from all other tokens, and read by none.

  The model was trained on orders of tokens, never on a mask. Other models are unchanged.

  In:  encoder_input_tokens [[5, 9, 7, 0]] of which 9 is the mask, of a model with `two_streams`
  Out: encoder_ranks [[0, 1, 0, 0]] besides

  Args:
    config: of the model.
    features: of an encoder.
    mask_id: of the vocabulary.

  Source: Yang et al. 2019; transformers' `perm_mask` and `target_mapping`.
  """
  if not config.two_streams:
    return dict(features)
  return {**features, "encoder_ranks": (features["encoder_input_tokens"] == mask_id).astype(np.int32)}
