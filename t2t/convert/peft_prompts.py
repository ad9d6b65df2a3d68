"""Conversion between PEFT's prompt tuning and prefix tuning and t2t's config.prompt and config.prefix.

Both have one matrix, `prompt_embeddings`, with a row for each position: a vector of a prompt; or keys and values of all
layers of a prefix. The network that computed a prefix is not stored.

PEFT's prefix belongs to the decoder, if there is one.  After an encoder the decoder's layer i gets the keys and values
at index 2 i, modulo their number; those in between belong to the cross-attention, which ignores them.

Source: PEFT 0.21, src/peft/peft_model.py (get_prompt), src/peft/tuners/{prompt_tuning,prefix_tuning}.
"""

from collections.abc import Mapping
import functools
from typing import Any

import numpy as np

from t2t import UserError
from t2t.convert.hf_mappings import Settings
from t2t.convert.lazy_tensors import Tensor, check_finite
from t2t.convert.safetensors import TensorEntry
from t2t.models.adapters.prefix import PrefixConfig
from t2t.models.config import TransformerConfig

NAME = "prompt_embeddings"
SECTIONS = ("prompt", "prefix")
_PROMPT = "embed/prompt"


def check(section: str, model: TransformerConfig, where: str) -> None:
  """Raises an error if PEFT computes another result for a model and its trained heads.

  Raises:
    UserError: the results would differ.
  """
  if section == "prompt" and (model.heads or not model.kind.is_generative):
    raise UserError(
      f"{where}: t2t converts prompts only of models that generate text. Heads read the first vector of the prompt in"
      " PEFT, but the first token of the text in t2t. Use config.prefix, which is the same in PEFT and t2t."
    )
  if section == "prompt" and model.scale_embedding:
    raise UserError(
      f"{where}: t2t does not convert prompts of models with config.model.scale_embedding=True, because only some"
      " versions of transformers scale these prompts"
    )
  if section == "prefix" and not (model.heads or model.kind.is_generative):
    raise UserError(
      f"{where}: PEFT supports a prefix of an encoder-only model only with the task SEQ_CLS or TOKEN_CLS, but the "
      "model has no head for these tasks"
    )


def _length(settings: Settings, where: str) -> int:
  length = settings.get("num_virtual_tokens")
  if type(length) is not int or length < 1:
    raise UserError(f"{where}: num_virtual_tokens={str(length)[:40]!r} is not a whole number of at least 1")
  return length


def prompt_fields(settings: Settings, where: str) -> dict[str, Any]:
  """Returns fields of `PromptConfig`."""
  return {"length": _length(settings, where)}


def prefix_fields(settings: Settings, where: str) -> dict[str, Any]:
  """Returns fields of `PrefixConfig`, without its side."""
  return {"length": _length(settings, where), "hidden": 0}


def _parts(settings: Settings, model: TransformerConfig, where: str) -> int:
  """Returns num_transformer_submodules, a factor of all sizes in PEFT."""
  parts = settings.get("num_transformer_submodules")
  parts = (2 if model.kind.has_encoder_and_decoder else 1) if parts is None else parts
  if type(parts) is not int or parts not in (1, 2):
    raise UserError(f"{where}: num_transformer_submodules={str(parts)[:40]!r} is neither 1 nor 2")
  return parts


def shape(section: str, settings: Settings, fields: Mapping[str, Any], model: TransformerConfig, where: str):
  """Returns the shape of `prompt_embeddings` for the settings and the base.

  Raises:
    UserError: settings and base do not match.
  """
  length, parts = fields["length"], _parts(settings, model, where)
  if section == "prompt":
    return length * parts, model.embedding_dim or model.embed_dim
  if model.kind.has_encoder_and_decoder and parts != 2:
    raise UserError(f"{where}: num_transformer_submodules={parts}: PEFT requires 2 for a prefix of an encoder-decoder")
  sizes = {"num_attention_heads": model.kv_heads, "token_dim": model.kv_heads * model.head_dim}
  for name, size in sizes.items():
    if settings.get(name) != size:
      raise UserError(
        f"{where}: {name}={str(settings.get(name))[:40]} does not match the base, which has {size}. Give "
        "another --base."
      )
  layers = settings.get("num_layers")
  least = getattr(model, f"num_{model.kind.predicts}_layers")
  if type(layers) is not int or layers < least or (layers > least and not model.kind.has_encoder_and_decoder):
    raise UserError(
      f"{where}: num_layers={str(layers)[:40]} does not match the base, which has {least}. Give another --base."
    )
  return length, layers * 2 * sizes["token_dim"]


def read(
  section: str, settings: Settings, fields: Mapping[str, Any], entry: TensorEntry, model: TransformerConfig
) -> tuple[dict[str, Tensor], dict[str, Any]]:
  """Returns the trained tensors by paths in the adapted model, and further fields of the section."""
  length = fields["length"]

  def rows() -> np.ndarray:
    value = entry.read()
    check_finite(value, f"{entry.path}: {entry.name}")
    return value[:length]

  if section == "prompt":
    # For an encoder-decoder PEFT has unused extra rows.
    size = length, entry.shape[1]
    return {_PROMPT: Tensor(size, np.dtype(np.float32), (rows,))}, {}
  side = model.kind.predicts
  number, joined, layers = getattr(model, f"num_{side}_layers"), settings["token_dim"], settings["num_layers"]
  places = 2 * np.arange(number) % layers if model.kind.has_encoder_and_decoder else np.arange(number)

  def part(index: int) -> np.ndarray:
    return np.swapaxes(rows().reshape(length, layers, 2, joined)[:, places, index], 0, 1)

  tensors = {
    f"{side}/prefix/{name}": Tensor((number, length, joined), np.dtype(np.float32), (functools.partial(part, index),))
    for index, name in enumerate(("keys", "values"))
  }
  return tensors, {"sides": (side,)}


def _made(trained: Mapping[str, Tensor], side: str, name: str) -> np.ndarray:
  """Returns keys or values of a prefix, [layers, length, heads * kv], stored or computed by its network."""
  of = lambda part: np.asarray(trained[f"{side}/prefix/{part}"].read())
  if f"{side}/prefix/table" not in trained:
    return of(name)
  hidden = np.tanh(of("table") @ of("hidden") + of("hidden_bias"))
  return np.einsum("ph,lhk->lpk", hidden, of(name)) + of(f"{name}_bias")[:, None]


def written(
  section: str, config: Any, trained: Mapping[str, Tensor], model: TransformerConfig, where: str
) -> tuple[dict[str, Any], np.ndarray, set[str]]:
  """Returns fields of adapter_config.json, `prompt_embeddings`, and the exported paths.

  Raises:
    UserError: the prefix belongs to the encoder of an encoder-decoder.
  """
  side, length = model.kind.predicts, config.length
  settings = {"num_virtual_tokens": length, "num_transformer_submodules": 1}
  if section == "prompt":
    width = model.embedding_dim or model.embed_dim
    sizes = {"token_dim": width, "num_attention_heads": model.num_heads}
    sizes |= {"num_layers": getattr(model, f"num_{side}_layers"), "prompt_tuning_init": "RANDOM"}
    return settings | sizes, trained[_PROMPT].read(), {_PROMPT}
  _check_sides(config, model, where)
  both = np.stack([_made(trained, side, name) for name in ("keys", "values")], axis=1)  # [layers, 2, length, kv]
  if model.kind.has_encoder_and_decoder:
    # Insert unused entries for the cross-attention.
    both, settings["num_transformer_submodules"] = np.stack([both, np.zeros_like(both)], axis=1), 2
  both = both.reshape(-1, 2, *both.shape[-2:])
  sizes = {"token_dim": both.shape[-1], "num_attention_heads": model.kv_heads, "num_layers": both.shape[0]}
  matrix = np.moveaxis(both, 2, 0).reshape(length, -1)
  return (
    settings | sizes | {"prefix_projection": False},
    matrix,
    {p for p in trained if p.startswith(f"{side}/prefix/")},
  )


def _check_sides(config: PrefixConfig, model: TransformerConfig, where: str) -> None:
  sides = [side for side in model.kind.sides if side in config.sides]
  if sides != [model.kind.predicts]:
    raise UserError(
      f"{where}: config.prefix.sides={','.join(config.sides)}: PEFT supports a prefix only in the "
      f"{model.kind.predicts}."
      f" Train with --config.prefix.sides={model.kind.predicts}."
    )
