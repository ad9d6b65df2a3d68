"""Errors of bfloat16 gradients relative to float32: on one device, and summed over many devices.

  python benchmarks/gradients.py                       # every parameter of each architecture, 64 sequences of 512
  python benchmarks/gradients.py --over_devices        # 16 to 1,024 devices' gradients, in the orders of networks

The first computes the same gradient twice: with `model.dtype` bfloat16 and float32, after a few steps in float32. Token
frequencies are as uneven as those of words (Zipf 1949). "adding" is the error of the sum over the batch alone: relative
to the gradients of its sequences, each computed in bfloat16 and then summed in float64.

The second trains a small language model on the source code of Python, in bytes. The gradients of 1,024 sequences are
the parts of as many devices. The parts are summed in float32, and in bfloat16 in the order of a ring (each device adds
its part to the partial sum that it receives), of the two rings of a square torus, and of a tree.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
import pathlib
import sysconfig
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from t2t import losses
from t2t.models import presets, transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import path_name
from t2t.runtime import memory

# Wide enough for every part of a family; takes a minute each on two cores.
_SMALL = dict(vocab_size=4_096, embed_dim=64, num_heads=2, head_dim=32, mlp_dim=128, dropout_rate=0.0)
_FAMILIES: Mapping[str, dict[str, Any]] = {
  "t5_1_1": presets.t5_1_1("small"),
  "gpt2": presets.gpt2("small"),
  "llama2": presets.llama2("1b"),
  "prefix_lm": presets.prefix_lm("small"),
  "bert": presets.bert("base"),
  "albert": presets.albert("base"),
  "modern_bert": presets.modern_bert("base"),
}
_LOSS = losses.CrossEntropyConfig(z_loss=1e-4, label_smoothing=0.0, logits_chunk_tokens=4_096)


def _small(fields: dict[str, Any], **changed: Any) -> TransformerConfig:
  """Returns a small model of a family with two layers in each stack."""
  layers = {key: min(fields[key], 2) for key in ("num_encoder_layers", "num_decoder_layers")}
  heads = dict(num_kv_heads=1 if fields["num_kv_heads"] else 0, embedding_dim=32 if fields["embedding_dim"] else 0)
  return TransformerConfig(**(fields | _SMALL | layers | heads | changed))


def _batch(architecture: str, *, rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
  """Returns tokens with frequencies of 1 / rank; the first half of a sequence is a decoder's prefix."""
  random, ranks = np.random.default_rng(0), np.arange(1, vocab_size)
  tokens = random.choice(ranks, (rows, length), p=(1 / ranks) / np.sum(1 / ranks)).astype(np.int32)
  half = np.broadcast_to(np.arange(length) < length // 2, tokens.shape).astype(np.int32)
  if architecture == "encoder_only":
    masked = (random.random(tokens.shape) < 0.15).astype(np.int32)
    read = np.where(masked, vocab_size - 1, tokens)
    features = {"encoder_input_tokens": read, "encoder_target_tokens": tokens}
    return features | {"encoder_loss_weights": masked, "encoder_token_types": 1 - half}
  features = {"decoder_target_tokens": tokens, "decoder_input_tokens": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1]}
  if architecture == "encoder_decoder":
    return features | {"encoder_input_tokens": tokens[::-1], "decoder_loss_weights": np.ones_like(tokens)}
  return features | {"decoder_causal_attention": half, "decoder_loss_weights": 1 - half}


def _gradient_of(config: TransformerConfig, weight: float) -> Callable[[dict, dict], dict]:
  """Returns a function of (parameters, batch): the gradient of the summed loss over `weight`."""
  loss = losses.CrossEntropy(_LOSS)
  graphdef = nnx.split(jax.eval_shape(lambda: transformer.build(config, nnx.Rngs(0))), graph=False)[0]

  def of_params(params, batch):
    model = nnx.merge(graphdef, params)
    return sum(loss(model, batch, {"loss": jnp.asarray(weight)}, key=None, train=True)[0].values())

  return jax.jit(jax.grad(of_params))


def _adam(learning_rate: float) -> optax.GradientTransformation:
  return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate, 0.9, 0.95))


def _params(config: TransformerConfig) -> dict:
  return nnx.to_pure_dict(nnx.split(transformer.build(config, nnx.Rngs(0)), graph=False)[1])


def _flat(tree: dict) -> dict[str, np.ndarray]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {path_name(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


@dataclasses.dataclass(frozen=True)
class Error:
  """Relative error of a gradient: norm of the error over norm of the gradient, for all values and for the worst row."""

  relative: float
  worst_row: float


def error(actual: np.ndarray, right: np.ndarray) -> Error:
  """Returns the error of arrays [..., features]; ignores rows with norms below 0.01 of the root mean square."""
  wrong = actual - right
  norms = np.linalg.norm(np.atleast_2d(right), axis=-1)
  counts = norms > 0.01 * math.sqrt(np.mean(np.square(norms)))
  rows = np.linalg.norm(np.atleast_2d(wrong), axis=-1)[counts] / norms[counts]
  return Error(float(np.linalg.norm(wrong) / np.linalg.norm(right)), float(np.max(rows)))


# ---- One device ------------------------------------------------------------------------------------------------------


def of_families(names: list[str], *, rows: int, length: int, steps: int) -> Iterator[tuple[str, str, Error, Error]]:
  """Yields family, parameter, total error of its gradient in bfloat16, and error of the sum over the batch."""
  for name in names:
    config = _small(_FAMILIES[name])
    batch = _batch(config.architecture, rows=rows, length=length, vocab_size=config.vocab_size)
    weight = float(next(np.sum(x) for key, x in batch.items() if key.endswith("loss_weights")))
    narrow, wide = (_gradient_of(dataclasses.replace(config, dtype=dtype), weight) for dtype in ("bfloat16", "float32"))
    params, tx = _params(config), _adam(1e-3)
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(steps):
      updates, state = update(wide(params, batch), state, params)
      params = optax.apply_updates(params, updates)
    actual, right = _flat(narrow(params, batch)), _flat(wide(params, batch))
    added = dict.fromkeys(right, 0.0)
    for row in range(rows):
      row_gradients = _flat(narrow(params, {key: x[row : row + 1] for key, x in batch.items()}))
      added = {path: added[path] + gradient for path, gradient in row_gradients.items()}
    norm = math.sqrt(sum(np.sum(np.square(gradient)) for gradient in right.values()))
    for path, gradient in right.items():
      # A bias of keys has no gradient except rounding errors.
      if np.linalg.norm(gradient) > 1e-6 * norm:
        yield name, path, error(actual[path], gradient), error(actual[path], added[path])


# ---- Over devices ----------------------------------------------------------------------------------------------------


def ring(parts: jax.Array) -> jax.Array:
  """Sums [devices, ...] in their dtype one after another, like a reduce-scatter over a ring."""
  return jax.lax.scan(lambda total, part: (total + part, None), parts[0], parts[1:])[0]


def torus(parts: jax.Array) -> jax.Array:
  """Sums along the two sides of a square, one after the other."""
  side = math.isqrt(parts.shape[0])
  return ring(jax.vmap(ring)(parts.reshape(side, side, *parts.shape[1:])))


def tree(parts: jax.Array) -> jax.Array:
  """Sums in pairs, then pairs of pairs."""
  while parts.shape[0] > 1:
    parts = parts[0::2] + parts[1::2]
  return parts[0]


def _source_code(rows: int, length: int) -> np.ndarray:
  """Returns random excerpts of Python's standard library as bytes, [rows, length]."""
  files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
  text = np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)
  starts = np.random.default_rng(0).integers(0, len(text) - length, rows)
  return np.stack([text[start : start + length] for start in starts]).astype(np.int32)


def _rows_batch(tokens: np.ndarray) -> dict[str, np.ndarray]:
  fed = np.pad(tokens, [(0, 0), (1, 0)])[:, :-1]
  weights = np.ones_like(tokens)
  return {"decoder_target_tokens": tokens, "decoder_input_tokens": fed, "decoder_loss_weights": weights}


def over_devices(*, steps: int, most: int = 1_024) -> Iterator[tuple[int, int, str, float, str, float]]:
  """Yields training steps, devices, method of summation, total error, the worst parameter, and its error."""
  config = _small(_FAMILIES["llama2"], vocab_size=256, dtype="bfloat16", gradient_dtype="float32")
  gradient, params, tx = _gradient_of(config, 64 * 128), _params(config), _adam(3e-3)
  state = tx.init(params)
  update = jax.jit(tx.update)
  sums = {"ring": jax.jit(ring), "torus": jax.jit(torus), "tree": jax.jit(tree)}
  parts_tokens = _source_code(most, 128)
  training = _source_code(64 * steps, 128).reshape(steps, 64, 128)
  for step in range(steps + 1):
    if step in (0, steps):
      parts = [gradient(params, _rows_batch(parts_tokens[index : index + 1])) for index in range(most)]
      parts = jax.tree.map(lambda *x: jnp.stack(x), *parts)
      for devices in (16, 64, 256, most):
        used = jax.tree.map(lambda x, devices=devices: x[:devices], parts)
        right = _flat(jax.tree.map(lambda x: np.sum(np.asarray(x, np.float64), axis=0), used))
        narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), used)
        gradients = {f"bfloat16, {order}": _flat(jax.tree.map(add, narrow)) for order, add in sums.items()}
        gradients["bfloat16 parts, added in float32"] = _flat(
          jax.tree.map(lambda x: jnp.sum(x.astype(jnp.float32), axis=0), narrow)
        )
        gradients["float32, ring"] = _flat(jax.tree.map(sums["ring"], used))
        for how, summed in gradients.items():
          errors = {path: error(summed[path], right[path]).relative for path in right}
          total_error = math.sqrt(sum(np.sum((summed[path] - right[path]) ** 2) for path in right))
          total_error /= math.sqrt(sum(np.sum(right[path] ** 2) for path in right))
          worst = max(errors, key=errors.get)
          yield step, devices, how, total_error, worst, errors[worst]
    if step < steps:
      updates, state = update(gradient(params, _rows_batch(training[step])), state, params)
      params = optax.apply_updates(params, updates)


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--family", choices=list(_FAMILIES), nargs="*", default=list(_FAMILIES))
  parser.add_argument("--rows", type=int, default=64)
  parser.add_argument("--length", type=int, default=512)
  parser.add_argument("--over_devices", action="store_true", help="sum the gradients of many devices instead")
  parser.add_argument(
    "--steps", type=int, help="training steps before measuring; default: 10, and 300 for --over_devices"
  )
  options = parser.parse_args()
  memory.keep_freed_memory()
  jax.config.update("jax_default_matmul_precision", "highest")
  if options.over_devices:
    print(f"{'steps':>5} {'devices':>7}  {'added in':<34}{'error':>9}{'worst':>9}")
    for steps, devices, how, total_error, path, worst in over_devices(steps=options.steps or 300):
      print(f"{steps:>5} {devices:>7}  {how:<34}{total_error:>9.2%}{worst:>9.2%}  {path}", flush=True)
    return
  print(f"{'':<57}{'error':^19}{'adding':^19}")
  print(f"{'family':<12}{'parameter':<45}" + 2 * f"{'all':>8}{'worst row':>11}")
  table_rows = of_families(options.family, rows=options.rows, length=options.length, steps=options.steps or 10)
  for family, path, *errors in table_rows:
    columns = "".join(f"{family_error.relative:>8.2%}{family_error.worst_row:>11.2%}" for family_error in errors)
    print(f"{family:<12}{path:<45}{columns}", flush=True)


if __name__ == "__main__":
  main()
