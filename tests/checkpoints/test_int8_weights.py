"""`--weights int8`: any checkpoint with rounded matrices."""

import json
import pathlib

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import trained

import t2t
from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import int8_weights, pretrained
from t2t.models import int8_matrix
from t2t.param_tree import unflatten

ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
# Kinds with a table, a projection, both and neither for logits; biases; experts; shared layers; recurrent cells.
FAST = ("t5_1_1", "gpt2", "bert", "albert", "rembert", "switch", "awd_lstm")
TEXTS = ["the quick brown fox", "lazy dogs jump over seven wizards", "a"]


def rounded(model):
  """Returns the model with int8 matrices, and with float32 matrices of the same values."""
  integers = int8_matrix.weight_only(model)
  graphdef, params = toy.split(model)
  stored, params = toy.flat(toy.split(integers)[1]), toy.flat(params)
  matrices = [path for path in params if f"{path}/values" in stored]
  for path in matrices:
    assert stored[f"{path}/values"].dtype == np.int8
    params[path] = stored[f"{path}/values"] * stored[f"{path}/scale"]
  assert len(matrices) > 2 or not model.config.block.startswith("transformer")
  return integers, nnx.merge(graphdef, unflatten(params))


@pytest.mark.exhaustive_from(7)  # FAST
@pytest.mark.parametrize("kind", (*FAST, *(kind for kind in toy.KINDS if kind not in FAST)))
def test_logits_are_those_of_rounded_matrices(kind, monkeypatch):
  """With inputs in float32, as on accelerators, integers times their scales are the rounded matrices."""
  monkeypatch.setattr(int8_matrix, "_rounds_inputs", lambda: False)
  config = toy.KINDS[kind]
  batch = toy.batch(architecture=config.architecture)
  model = toy.model(config)
  integers, plain = rounded(model)
  expected = toy.logits(plain, batch)
  np.testing.assert_allclose(toy.logits(integers, batch), expected, rtol=1e-4, atol=1e-4)
  change = np.abs(expected - toy.logits(model, batch))
  assert 0 < np.max(change) < 0.2 * np.std(expected)


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (2, 5), (2, 3, 2), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_inputs_are_rounded_on_cpus(shape, dtype):
  """The product is that of the integers of each row, whatever the number of rows; a row of zeros stays 0."""
  random = np.random.default_rng(0)
  x = random.normal(size=(*shape, 24)).astype(np.float32) * random.uniform(0.01, 100, size=(*shape, 1))
  x.reshape(-1, 24)[:1] = 0
  x = np.array(jnp.asarray(x, dtype).astype(jnp.float32))
  values, scale = random.integers(-127, 128, size=(24, 7)), random.uniform(0.1, 1, size=7).astype(np.float32)
  largest = np.max(np.abs(x), axis=-1, keepdims=True)
  of_rows = np.where(largest > 0, largest, 127) / np.float32(127)
  expected = (np.rint(x / of_rows).astype(np.int64) @ values) * of_rows * scale
  product = jax.jit(int8_matrix.product)(jnp.asarray(x, dtype), jnp.asarray(values, jnp.int8), jnp.asarray(scale))
  assert product.dtype == jnp.float32 and product.shape == (*shape, 7)
  np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-4)
  np.testing.assert_array_equal(product.reshape(-1, 7)[:1], 0)


def test_a_range_before_the_first_step_is_that_of_each_row():
  """A product with an unused range, 0, is near that in float32 and not 0."""
  random = np.random.default_rng(0)
  x, kernel = random.normal(size=(5, 24)), random.normal(size=(24, 7))
  matrix = int8_matrix.Int8Matrix(*int8_matrix._stored(nnx.Param(jnp.asarray(kernel), axes=("embed", "mlp")), -2))
  options = {"gradient_dtype": "", "quantization": "", "dropout_key": None}
  product = matrix.dense(jnp.asarray(x), None, input_range=nnx.Param(jnp.zeros(2)), **options)
  np.testing.assert_allclose(product, x @ kernel, atol=0.2)


@pytest.mark.parametrize("rounds_inputs", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_meshes_compute_the_same(architecture, rounds_inputs, monkeypatch):
  """Sums in another order change an input that is rounded by a step at most."""
  monkeypatch.setattr(int8_matrix, "_rounds_inputs", lambda: rounds_inputs)
  source = pretrained.read_source(str(trained.workdir(architecture)), weights="int8")
  batch = toy.batch((7, 4, 6, 8) * 2, (3, 5, 6, 4) * 2, architecture=architecture)
  logits = []
  for shape in ({"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}):
    mesh = sharding.make_mesh(shape)
    loaded = pretrained.load(source, mesh)
    with jax.set_mesh(mesh):
      logits.append(np.asarray(jax.jit(toy.logits)(nnx.merge(loaded.graphdef, loaded.params), batch)))
  np.testing.assert_allclose(*logits, rtol=0, atol=0.05 * np.std(logits[0]) if rounds_inputs else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_checkpoint_is_read(architecture, tmp_path, monkeypatch, capsys):
  """Scores are near those of float32, the same from any format, any size of groups and rounded matrices."""
  monkeypatch.setattr(int8_weights, "_MOST_BYTES", 1 << 10)
  run = trained.workdir(architecture)
  model = t2t.load(run, weights="int8")
  matrices = {path: x for path, x in toy.flat(model.params).items() if x.dtype == np.int8}
  assert sum(x.size for x in matrices.values()) > 0.75 * sum(x.size for x in toy.flat(t2t.load(run).params).values())
  logits = lambda model: model.logits(TEXTS, None if architecture != "encoder_decoder" else TEXTS[::-1])
  expected, actual = logits(t2t.load(run)), logits(model)
  for exact, near in zip(expected, actual, strict=True):
    assert 0 < np.max(np.abs(near - exact)) < 0.1 * np.std(exact)
  model.save_pretrained(tmp_path / "other", dtype="float32")  # unrounded
  vocabulary = {"vocabulary": "bytes"}
  for exact, same in zip(expected, logits(t2t.load(tmp_path / "other", **vocabulary)), strict=True):
    np.testing.assert_allclose(same, exact, rtol=1e-4, atol=1e-4)
  capsys.readouterr()
  other = t2t.load(tmp_path / "other", weights="int8", **vocabulary)
  assert capsys.readouterr().err.count("the last 125 are padding") == 1
  for near, same in zip(actual, logits(other), strict=True):
    np.testing.assert_allclose(same, near, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_commands_read_int8(tmp_path, capsys):
  """t2t infer and eval."""
  run = trained.workdir("encoder_decoder")
  (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
  losses, scores = [], []
  for name, options in (("float", ()), ("int8", ("--weights", "int8"))):
    out = str(tmp_path / f"{name}.jsonl")
    fixed = ("--checkpoint", str(run), "--input", str(tmp_path / "in.txt"), "--output", out, "--max_length", "4")
    assert command.main(["infer", *fixed, *options]) == 0
    scores.append([json.loads(line)["score"] for line in pathlib.Path(out).read_text().splitlines()])
    data = (f"--config.data.eval_files={run.with_name(run.name + '.jsonl')}", "--config.data.mixture=")
    fixed = ("--checkpoint", str(run), "--workdir", str(tmp_path / name), "--config.eval.method=loss")
    assert command.main(["eval", "--config", "t5_1_1_small", *fixed, *data, "--config.eval.batches=1", *options]) == 0
    losses.append(json.loads((tmp_path / name / "results.json").read_text()))
  capsys.readouterr()
  fixed = ("--checkpoint", str(run), "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "float.jsonl"))
  assert command.main(["infer", *fixed, "--max_length", "4", "--weights", "int8"]) == 2
  assert "belongs to a run with other options: --weights int8, previously None" in capsys.readouterr().err
  np.testing.assert_allclose(scores[1], scores[0], atol=0.1)
  assert scores[1] != scores[0]
  of = [record["held_out"] for record in losses]
  assert [record.get("weights") for record in of] == [None, "int8"]
  exact, near = (record["metrics"]["loss"] for record in of)
  assert exact != near and abs(exact - near) < 0.02 * exact


def test_what_has_no_int8_matrices_is_refused(monkeypatch):
  run, adapter = trained.workdir("decoder_only"), trained.adapter("decoder_only", "--config.lora.rank=2")
  base = pretrained.read_source(str(run), weights="int8")
  from t2t.checkpoints import multi_adapter

  with pytest.raises(UserError, match=r"--weights int8: --adapter needs the float32 parameters of its base\. Leave"):
    multi_adapter.open_all(base, {"a": str(adapter)})
  monkeypatch.setattr(int8_matrix, "weight_only", lambda model: model)
  with pytest.raises(UserError, match=r"--weights int8: .* has no layers with int8 matrices\. Leave out --weights"):
    pretrained.load(base, sharding.make_mesh({"data": -1}))
