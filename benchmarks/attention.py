"""Attention kernels of this machine against the formula: errors of results and gradients, and times.

  python benchmarks/attention.py                                     # T5 base, 512/114 tokens, on a GPU

Each row is one attention of T5, forward and backward in bfloat16, with the kernel of `dispatch.choose` or plain. Errors
are ||x - y|| / ||y|| against the formula in float32 on the same rounded inputs. Gradients of padding keys must be zero,
and have their own column. Times are medians of calls that cycle through several sets of inputs.
"""

import argparse
import dataclasses
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from t2t.models import attention
from t2t.models import positions as positions_lib
from t2t.models.kernels import dispatch
from t2t.models.masks import AttentionMask


@dataclasses.dataclass(frozen=True)
class Case:
  """An attention: lengths of queries and keys, and the mask.

  hidden: "", "padding" at the ends of rows, or "packed": three texts in a row.
  """

  name: str
  lengths: tuple[int, int]
  causal: bool = False
  biased: bool = True
  hidden: str = ""


CASES = (
  Case("encoder", (512, 512), hidden="padding"),
  Case("encoder, packed", (512, 512), hidden="packed"),
  Case("decoder", (114, 114), causal=True),
  Case("cross", (114, 512), biased=False, hidden="padding"),
  Case("GPT, 1,024", (1024, 1024), causal=True, biased=False),
)


def _mask(case: Case, batch: int) -> AttentionMask:
  queries, keys = case.lengths
  if not case.hidden:
    return AttentionMask(causal=case.causal)
  if case.hidden == "packed":
    segments = jnp.broadcast_to(jnp.repeat(jnp.arange(1, 4), -(-keys // 3))[:keys], (batch, keys))
    return AttentionMask(segments, segments, causal=case.causal)
  # Padding grows from none in the first row to the whole row in the last.
  real = jnp.maximum(keys - 37 * jnp.arange(batch), 0).at[0].set(keys)
  real = (jnp.arange(keys) < real[:, None]).astype(jnp.int32)
  return AttentionMask(jnp.ones((batch, queries), jnp.int32) if queries != keys else real, real, padded=True)


def _inputs(case: Case, batch: int, heads: int, head_dim: int, seed: int) -> tuple[jax.Array, ...]:
  queries, keys = case.lengths
  draws = iter(jax.random.split(jax.random.key(seed), 5))
  query, key, value, cotangent = (
    jax.random.normal(next(draws), (batch, heads, length, head_dim), jnp.bfloat16)
    for length in (queries, keys, keys, queries)
  )
  return query / 4, key, value, cotangent, jax.random.normal(next(draws), (heads, 257))


def _attend(case: Case, mask: AttentionMask, kernel: str, dtype: jnp.dtype):
  """Returns a function that computes the result and the gradients of queries, keys, values and relative bias."""

  def run(query, key, value, cotangent, distances):
    def attend(query, key, value, distances):
      bias = positions_lib.DistanceBias(distances) if case.biased else None
      return attention.attend(query, key, value, mask=mask, bias=bias, kernel=kernel)

    query, key, value, cotangent = (x.astype(dtype) for x in (query, key, value, cotangent))
    result, pull = jax.vjp(attend, query, key, value, distances)
    return result, *pull(cotangent)

  return jax.jit(run)


def _off(actual: jax.Array, expected: jax.Array) -> float:
  actual, expected = (np.asarray(x, np.float64) for x in (actual, expected))
  size = np.linalg.norm(expected)
  return float(np.linalg.norm(actual - expected) / size) if size else float(np.linalg.norm(actual))


def measure(case: Case, *, batch: int, heads: int, head_dim: int, calls: int) -> list[dict]:
  """Returns a row for the chosen kernel and one for plain."""
  small = min(batch, 8)
  mask, inputs = _mask(case, small), _inputs(case, small, heads, head_dim, 0)
  query, key = inputs[:2]
  if mask.query_segments is not None:  # results of padding queries are unused, so their gradients are zero
    is_text = mask.query_segments[:, None, :, None] > 0
    inputs = (*inputs[:3], jnp.where(is_text, inputs[3], 0), inputs[4])
  bias = "distance" if case.biased else ""
  best = dispatch.choose_here(query, key, mask, bias=bias, dropout="", reach=128).kernel
  exact = jax.device_get(_attend(case, mask, "plain", jnp.float32)(*inputs))
  rows = []
  for kernel in dict.fromkeys((best, "plain")):
    outputs = jax.device_get(_attend(case, mask, kernel, jnp.bfloat16)(*inputs))
    row = {"case": case.name, "kernel": kernel}
    asks = True if mask.query_segments is None else np.asarray(mask.query_segments[:, None, :, None] > 0)
    row["result"] = _off(np.where(asks, outputs[0], 0), np.where(asks, exact[0], 0))
    names = ("query", "keys", "values", "bias")[: 4 if case.biased else 3]
    row |= {name: _off(actual, expected) for name, actual, expected in zip(names, outputs[1:], exact[1:], strict=False)}
    if mask.padded:
      hidden = np.asarray(mask.key_segments[:, None, :, None] == 0)
      row["padding"] = float(max(np.abs(np.where(hidden, np.asarray(x, np.float32), 0)).max() for x in outputs[2:4]))
    row["finite"] = all(np.isfinite(np.asarray(x, np.float32)).all() for x in outputs)
    full_mask = _mask(case, batch)
    sets = [_inputs(case, batch, heads, head_dim, seed) for seed in range(3)]
    timed, seconds = _attend(case, full_mask, kernel, jnp.bfloat16), []
    jax.block_until_ready([timed(*arguments) for arguments in sets])
    for number in range(calls):
      start = time.perf_counter()
      jax.block_until_ready(timed(*sets[number % 3]))
      seconds.append(time.perf_counter() - start)
    row["milliseconds"] = statistics.median(seconds) * 1e3
    rows.append(row)
  return rows


def main() -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--batch", type=int, default=128, help="rows of a batch, for the times")
  parser.add_argument("--heads", type=int, default=12)
  parser.add_argument("--head_dim", type=int, default=64)
  parser.add_argument("--calls", type=int, default=20, help="number of timed calls")
  parser.add_argument("--append", metavar="FILE", help="append each row to this file, as JSON")
  options = parser.parse_args()
  sizes = {"batch": options.batch, "heads": options.heads, "head_dim": options.head_dim}
  for case in CASES:
    for row in measure(case, **sizes, calls=options.calls):
      row = {"device": jax.devices()[0].device_kind, **sizes, **row}
      print(json.dumps(row), flush=True)
      if options.append:
        with open(options.append, "a") as file:
          file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
  main()
