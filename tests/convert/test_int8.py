"""Export of int8 models: the same logits, a quarter of the size."""

import functools

from flax import nnx
import jax
import numpy as np
import pytest
import test_array_batches
import toy

import t2t
from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained
from t2t.convert import int8, safetensors
from t2t.models import fake_quantization
from t2t.storage import gcs

AWARE = {"model.fake_quantization": "int8"}


def train(workdir, *, rows=8, **changes):
  every = {"train.steps": 3, "eval.every": 3, "checkpoint.save_interval_steps": 1, "eval.num_logged_samples": 0}
  every |= {"optimizer.learning_rate": 0.01, "optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
  config = test_array_batches.small(**every | {"train.batch_size": rows, "eval.batch_size": 8} | changes)
  batches = functools.partial(test_array_batches.random_batches, rows=rows)
  data = {"batches": batches, "eval_batches": test_array_batches.held_out()}
  return list(t2t.train(config, str(workdir), **data))


def load(path):
  return pretrained.load(pretrained.read_source(str(path)), sharding.make_mesh({"data": -1}))


def logits(path):
  model = load(path)
  batch = {name: jax.numpy.asarray(x) for name, x in test_array_batches.held_out()[0].items()}
  batch["decoder_input_tokens"] = batch["decoder_target_tokens"]
  return np.asarray(toy.logits(nnx.merge(model.graphdef, model.params), batch))


@pytest.mark.slow
def test_an_int8_folder_computes_what_the_run_evaluated(tmp_path, capsys):
  """Logits and integers agree, and every matrix has ranges."""
  run, out = tmp_path / "run", tmp_path / "out"
  train(run, **AWARE)
  assert command.main(["convert", str(run), "--to", "int8", str(out)]) == 0
  assert "int8 with scales" in capsys.readouterr().out
  np.testing.assert_allclose(logits(out), logits(run), atol=2e-5, rtol=1e-5)
  assert {str(x.dtype) for path, x in toy.flat(load(out).params).items() if path.endswith("/values")} == {"int8"}
  trained = toy.flat(load(run).params)
  ranges = {path: x for path, x in trained.items() if f"/{fake_quantization.RANGES}/" in path}
  assert len(ranges) == 3 * 4 + 2 * 3 and all(np.all(x > 0) for x in ranges.values())
  for path, integers, scale in int8.integers(str(out)):
    expected, _ = int8.quantized(np.asarray(trained[path]), int8.axis_of(path))
    np.testing.assert_array_equal(integers, expected)
    assert scale.dtype == np.float32
  entries = safetensors.read_header(gcs.absolute(str(out / int8.WEIGHTS)))
  stored = [entries[path].dtype for path in trained if int8.axis_of(path) is not None]
  assert len(stored) > 10 and set(stored) == {"I8"}
  assert command.main(["convert", str(out), "--to", "int8", str(tmp_path / "again")]) == 2
  assert "is such a folder already" in capsys.readouterr().err and not (tmp_path / "again").exists()


@pytest.mark.exhaustive
def test_microbatches_and_resumed_runs_have_the_same_ranges(tmp_path):
  """Statistics of rows add up over microbatches, and ranges are part of the state."""
  train(tmp_path / "whole", rows=16, **AWARE)
  train(tmp_path / "two", rows=16, **AWARE, **{"train.microbatches": 2})
  train(tmp_path / "run", rows=16, **AWARE, **{"train.steps": 2})
  train(tmp_path / "run", rows=16, **AWARE)
  whole, halves, resumed = (toy.flat(load(tmp_path / name).params) for name in ("whole", "two", "run"))
  for path, x in whole.items():
    np.testing.assert_array_equal(resumed[path], x)
    if f"/{fake_quantization.RANGES}/" in path:
      np.testing.assert_allclose(halves[path], x, rtol=2e-2)
