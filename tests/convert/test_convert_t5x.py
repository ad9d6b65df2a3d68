"""T5X checkpoints, written here according to the format's description, compute the same as in T5X."""

import gc
import pathlib
import struct

from etils import epath
from flax import nnx, serialization, traverse_util
import folders
import foreign
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import t5x_files as files
import toy

from t2t import UserError
from t2t.convert import flax_msgpack, lazy_tensors, t5x
from t2t.models import transformer

TINY = folders.SHARED / "data" / "checkpoints" / "t5x_test_t5_tiny"

# ---- T5X in NumPy ----------------------------------------------------------------------------------------------------


def buckets(distance: int, *, bidirectional: bool) -> int:
  """Returns the bucket of a distance to the right; distances here stay below the last, shared bucket."""
  half = files.BUCKETS // 2 if bidirectional else files.BUCKETS
  offset = half if bidirectional and distance > 0 else 0
  distance = abs(distance) if bidirectional else max(0, -distance)
  exact = half // 2
  if distance < exact:
    return offset + distance
  return offset + min(half - 1, exact + int(np.log(distance / exact) / np.log(128 / exact) * (half - exact)))


def norm(x, scale):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def attend(p, name, x, memory, bias, allowed):
  def heads(y, kernel):
    return (y @ p[f"{name}/{kernel}/kernel"]).reshape(len(y), files.HEADS, files.KV)

  scores = np.einsum("qhd,khd->hqk", heads(x, "query"), heads(memory, "key")) + bias
  scores = np.where(allowed, scores, -1e10)
  weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
  weights /= weights.sum(axis=-1, keepdims=True)
  return np.einsum("hqk,khd->qhd", weights, heads(memory, "value")).reshape(len(x), -1) @ p[f"{name}/out/kernel"]


def mlp(p, name, x):
  if f"{name}/wi/kernel" in p:
    return np.maximum(x @ p[f"{name}/wi/kernel"], 0) @ p[f"{name}/wo/kernel"]
  gate = x @ p[f"{name}/wi_0/kernel"]
  gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
  return (gate * (x @ p[f"{name}/wi_1/kernel"])) @ p[f"{name}/wo/kernel"]


def bias(p, stack, length):
  table = p[f"{stack}/relpos_bias/rel_embedding"]
  rows = [
    [table[:, buckets(key - query, bidirectional=stack == "encoder")] for key in range(length)]
    for query in range(length)
  ]
  return np.moveaxis(np.array(rows), -1, 0)


def logits(p: dict[str, np.ndarray], inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
  """T5X's minimal model in NumPy, for one sequence without padding: float [targets, vocab]."""
  p = {name: x.astype(np.float64) for name, x in p.items()}
  embedding = p["token_embedder/embedding"]
  x, y = embedding[inputs], embedding[targets]
  for index in range(files.LAYERS["encoder"]):
    layer = f"encoder/layers_{index}"
    normed = norm(x, p[f"{layer}/pre_attention_layer_norm/scale"])
    x = x + attend(p, f"{layer}/attention", normed, normed, bias(p, "encoder", len(x)), True)
    x = x + mlp(p, f"{layer}/mlp", norm(x, p[f"{layer}/pre_mlp_layer_norm/scale"]))
  x = norm(x, p["encoder/encoder_norm/scale"])
  causal = np.tril(np.ones((len(y), len(y)), bool))
  for index in range(files.LAYERS["decoder"]):
    layer = f"decoder/layers_{index}"
    normed = norm(y, p[f"{layer}/pre_self_attention_layer_norm/scale"])
    y = y + attend(p, f"{layer}/self_attention", normed, normed, bias(p, "decoder", len(y)), causal)
    normed = norm(y, p[f"{layer}/pre_cross_attention_layer_norm/scale"])
    y = y + attend(p, f"{layer}/encoder_decoder_attention", normed, x, 0.0, True)
    y = y + mlp(p, f"{layer}/mlp", norm(y, p[f"{layer}/pre_mlp_layer_norm/scale"]))
  y = norm(y, p["decoder/decoder_norm/scale"])
  if "decoder/logits_dense/kernel" in p:
    return y @ p["decoder/logits_dense/kernel"]
  return y @ embedding.T / np.sqrt(files.EMBED)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def model_of(foreign: lazy_tensors.Foreign) -> nnx.Module:
  lazy_tensors.check(foreign)
  graphdef, _ = toy.split(jax.eval_shape(lambda: transformer.build(foreign.model, nnx.Rngs(0))))
  flat = {path: jnp.asarray(tensor.read()) for path, tensor in foreign.tensors.items()}
  return nnx.merge(graphdef, traverse_util.unflatten_dict(flat, sep="/"))


def our_logits(foreign: lazy_tensors.Foreign, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
  batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": targets, "decoder_target_tokens": targets}
  return np.asarray(toy.logits(model_of(foreign), {name: jnp.asarray(x[None]) for name, x in batch.items()}))[0]


def values(foreign: lazy_tensors.Foreign) -> dict[str, np.ndarray]:
  return {path: tensor.read() for path, tensor in foreign.tensors.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, np.ndarray]:
  """t2t's parameters for `files.parameters()`."""
  return values(
    t5x.open_foreign(str(files.single_file(tmp_path_factory.mktemp("expected") / "checkpoint_0", files.parameters())))
  )


def assert_same(foreign: lazy_tensors.Foreign, expected: dict[str, np.ndarray], **tolerance) -> None:
  found = values(foreign)
  assert found.keys() == expected.keys()
  for path, x in expected.items():
    np.testing.assert_allclose(found[path], x, err_msg=path, **({"rtol": 0} | tolerance))


@pytest.mark.slow
@pytest.mark.exhaustive_from(8)
@pytest.mark.parametrize("stored", list(files.STORED))
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_logits_are_those_of_t5x(version, stored, tmp_path):
  """Joined and separate heads, scanned and unscanned layers have the right axes."""
  params = files.parameters(gated=version == "1.1", tied=version == "1.0")
  foreign = t5x.open_foreign(str(files.write(tmp_path / "checkpoint_7", files.STORED[stored](params))))
  assert (foreign.model.num_encoder_layers, foreign.model.num_decoder_layers) == (2, 4)
  assert foreign.model.tied_logits == (version == "1.0")
  random = np.random.default_rng(1)
  inputs, targets = random.integers(1, files.VOCAB, 9), random.integers(1, files.VOCAB, 6)
  np.testing.assert_allclose(our_logits(foreign, inputs, targets), logits(params, inputs, targets), atol=1e-4)


@pytest.mark.parametrize("reference", ["file", "gcs", "placeholder"])
@pytest.mark.parametrize("optimizer", [True, False])
def test_folders(reference, optimizer, expected, tmp_path):
  """Written by T5X or Orbax, to a disk or a bucket and copied, with and without the optimizer's state."""
  folder = files.write(tmp_path / "checkpoint_7", files.parameters(), reference=reference, optimizer=optimizer)
  assert t5x.is_t5x(str(folder))
  foreign = t5x.open_foreign(str(folder))
  assert_same(foreign, expected)
  assert any("optimizer" in note for note in foreign.notes) == optimizer


def test_some_arrays_may_stand_in_the_msgpack_file(expected, tmp_path):
  """T5X stores unpartitioned arrays there."""
  inline = [name for name in files.parameters() if "norm" in name or "layers_1" in name]
  assert_same(
    t5x.open_foreign(str(files.write(tmp_path / "checkpoint_7", files.parameters(), inline=inline))), expected
  )


def test_a_folder_without_its_msgpack_file(expected, tmp_path):
  """Orbax's newer layout has no such file; the folder names are enough."""
  folder = files.write(tmp_path / "checkpoint_7" / "state", files.parameters(), reference="placeholder")
  (folder / "checkpoint").unlink()
  files.zarr(folder / "state.step", np.zeros((), np.int32))
  for path in (folder, folder.parent):
    assert t5x.is_t5x(str(path))
    foreign = t5x.open_foreign(str(path))
    assert_same(foreign, expected)
    assert "(1 arrays)" in foreign.notes[0]


def test_the_last_checkpoint_of_a_folder(expected, tmp_path):
  for step in (900, 1000):
    params = {name: x + (step == 900) for name, x in files.parameters().items()}
    files.write(tmp_path / f"checkpoint_{step}" / "state", params, reference="placeholder")
  (tmp_path / "checkpoint_2000.tmp-17").mkdir()
  assert t5x.is_t5x(str(tmp_path))
  foreign = t5x.open_foreign(str(tmp_path))
  assert_same(foreign, expected)
  assert "checkpoint_1000" in str(foreign.path)


@pytest.mark.parametrize("scan", [True, False])
def test_arrays_in_pieces(scan, expected, tmp_path, monkeypatch):
  """Flax splits arrays over a gigabyte."""
  monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 100)
  params = files.scanned(files.parameters(), axis=1) if scan else files.parameters()
  path = files.single_file(tmp_path / "model.checkpoint_3", params)
  assert flax_msgpack.read(path)["optimizer"]["target"]["token_embedder"]["embedding"].pieces[1][1] == 25
  assert_same(t5x.open_foreign(str(path)), expected)
  assert_same(t5x.open_foreign(str(tmp_path)), expected)


@pytest.mark.parametrize("stored", ["bfloat16", "16 bits without a meaning", "bfloat16 in one file"])
def test_bfloat16(stored, expected, tmp_path):
  """T5X's files of version 2 store it as uint16."""
  params = {name: x.astype(ml_dtypes.bfloat16) for name, x in files.parameters().items()}
  if stored.startswith("16"):
    params = {name: x.view(np.uint16) for name, x in params.items()}
  path = (
    files.single_file(tmp_path / "checkpoint_0", params) if "file" in stored else files.write(tmp_path / "one", params)
  )
  foreign = t5x.open_foreign(str(path))
  assert {tensor.dtype for tensor in foreign.tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
  assert_same(foreign, expected, rtol=2**-8)


def test_uncompressed_arrays(expected, tmp_path):
  folder = files.write(tmp_path / "one", files.parameters())
  for name, x in files.parameters().items():
    path = folder / f"target.{name.replace('/', '.')}"
    for file in path.iterdir():
      file.unlink()
    files.zarr(path, x, compressor=None)
  assert_same(t5x.open_foreign(str(folder)), expected)


def test_layers_are_read_one_by_one(expected, tmp_path):
  """If each layer has its own arrays."""
  foreign = t5x.open_foreign(str(files.write(tmp_path / "one", files.parameters())))
  for path, tensor in foreign.tensors.items():
    assert tensor.stacked == ("/layers/" in path)
    if tensor.stacked:
      np.testing.assert_array_equal(tensor.read_layer(1), expected[path][1])


def test_as_many_layers_as_features(tmp_path, monkeypatch):
  """Shapes do not determine the layer axis; T5X's default is used and reported."""
  monkeypatch.setitem(files.LAYERS, "encoder", files.EMBED)
  params = files.parameters()
  foreign = t5x.open_foreign(str(files.single_file(tmp_path / "checkpoint_0", files.scanned(params, axis=1))))
  assert any("as many layers as features" in note for note in foreign.notes)
  wanted = values(t5x.open_foreign(str(files.single_file(tmp_path / "checkpoint_1", params))))
  assert_same(foreign, wanted)


def test_what_is_assumed_is_told(tmp_path):
  notes = "\n".join(t5x.open_foreign(str(files.single_file(tmp_path / "checkpoint_0", files.parameters()))).notes)
  for words in ("optimizer's state was left out (2 arrays)", "gated_gelu", "128", "--vocabulary", "37 rows"):
    assert words in notes


def test_the_file_that_t5x_tests_with():
  if not TINY.exists():
    pytest.skip("needs ../shared/data: T5X's own test checkpoint")
  assert t5x.is_t5x(str(TINY))
  foreign = t5x.open_foreign(str(TINY))
  lazy_tensors.check(foreign)
  model = foreign.model
  assert (model.num_encoder_layers, model.num_decoder_layers, model.embed_dim, model.mlp_dim) == (2, 2, 8, 16)
  assert (model.num_heads, model.head_dim, model.vocab_size) == (4, 3, 32_128)
  assert model.gated and not model.tied_logits
  assert foreign.tensors["decoder/layers/cross_attention/out"].shape == (2, 12, 8)
  tokens = np.arange(1, 12)
  found = our_logits(foreign, tokens, tokens[:5])
  assert found.shape == (5, 32_128)
  assert np.isfinite(found).all() and found.std() > 0


# ---- Bad input -------------------------------------------------------------------------------------------------------


def fails(path: pathlib.Path, *words: str) -> str:
  with pytest.raises(UserError) as error:
    values(t5x.open_foreign(str(path)))
  for word in words:
    assert word in str(error.value)
  return str(error.value)


def changed(**changes) -> dict[str, np.ndarray]:
  """Returns the parameters with changed or removed values."""
  params = files.parameters()
  for name, x in changes.items():
    name = name.replace("__", "/")
    params |= {name: x} if x is not None else {}
    if x is None:
      del params[name]
  return params


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"decoder__layers_2__mlp__wo__kernel": None}, ["decoder/layers_2/mlp/wo/kernel: missing; expected [14, 10]"]),
    ({"encoder__layers_0__mlp__wi_0__bias": np.zeros(3)}, ["encoder/layers_0/mlp/wi_0/bias: unknown; found [3]"]),
    (
      {"decoder__layers_1__self_attention__out__kernel": np.zeros((10, 15))},
      ["decoder/layers_1/self_attention/out/kernel: expected [15, 10], found [10, 15]"],
    ),
    ({"token_embedder__embedding": None}, ["the array token_embedder/embedding is missing"]),
    (
      {"token_embedder__embedding": np.zeros(3)},
      ["token_embedder/embedding has the shape [3], but must have 2 dimensions"],
    ),
    ({"encoder__relpos_bias__rel_embedding": None}, ["the array encoder/relpos_bias/rel_embedding is missing"]),
    ({"encoder__relpos_bias__rel_embedding": np.zeros((4, 8))}, ["4 heads", "do not divide the 15 columns"]),
  ],
)
def test_arrays_that_are_missing_unknown_or_of_a_wrong_shape(changes, words, tmp_path):
  """The message contains the checkpoint's name, with the expected and the found shape."""
  fails(files.single_file(tmp_path / "checkpoint_0", changed(**changes)), *words)


def test_a_scanned_array_of_a_wrong_shape(tmp_path):
  params = files.scanned(files.heads_apart(files.parameters()), axis=1)
  params["decoder/layers/self_attention/out/kernel"] = np.zeros((5, 3, 4, 10))
  fails(files.write(tmp_path / "one", params), "self_attention/out/kernel: expected [5, 4, 3, 10], found [5, 3, 4, 10]")


@pytest.mark.parametrize("scan", [True, False])
def test_tables_of_relative_positions_that_differ_from_layer_to_layer(scan, tmp_path):
  """t2t has one table per stack."""
  params = files.relative_positions_in_layers(files.parameters(), "relative_posemb", differ=True)
  params = files.scanned(params, axis=1) if scan else params
  fails(
    files.single_file(tmp_path / "checkpoint_0", params),
    "each layer of the encoder has a separate table of relative positions",
    "scalable_t5",
  )


def test_other_models_are_refused(tmp_path):
  decoder_only = {name: x for name, x in files.parameters().items() if not name.startswith("encoder")}
  fails(
    files.single_file(tmp_path / "checkpoint_0", decoder_only),
    "encoder/layers/pre_attention_layer_norm/scale is missing",
  )
  params = {f"params/{name}": x for name, x in files.parameters().items()}
  fails(
    files.single_file(tmp_path / "checkpoint_1", params),
    "the array token_embedder/embedding is missing",
    "Arrays: params/",
  )
  (tmp_path / "checkpoint_2").write_bytes(serialization.to_bytes({"version": 3, "optimizer": {"target": {}}}))
  fails(tmp_path / "checkpoint_2", "Arrays: none")


def test_files_that_are_cut_off(tmp_path):
  """A truncation at any byte is an error with the expected size."""
  path = files.single_file(tmp_path / "checkpoint_0", files.parameters())
  content = path.read_bytes()
  for end in [*range(10, 1_000, 7), *range(1_000, len(content), 997), len(content) - 1]:
    path.write_bytes(content[:end])
    assert f"the file ends at byte {end:,}" in fails(path, "is truncated")
  (tmp_path / "checkpoint_0").write_bytes(b"")
  fails(path, "no T5X checkpoint; looked for")


@pytest.mark.parametrize(
  "what",
  [
    b"\xc1",  # undefined in msgpack
    b"\xc7\x0c\x01\x93\x91\x04\xa6object\xc4\x00",  # an array of Python objects
    b"\xc7\x0c\x01\x93\x91\x04\xa5int32\xc4\x01\x00",  # four numbers in one byte
    b"\xc7\x0b\x01\x93\xa1x\xa5int32\xc4\x00\x00",  # a string as shape
    b"\x81\xa1a" * 100 + b"\xc0",  # deeply nested dicts
    struct.pack(">BI", 0xDF, 2**32 - 1),  # four billion entries
  ],
)
def test_files_that_are_no_arrays(what, tmp_path):
  path = tmp_path / "checkpoint_0"
  path.write_bytes(b"\x81\xa6target" + what)
  fails(path)


def test_unknown_extensions_are_passed_over(tmp_path):
  """They are not parameters, and their content is ignored."""
  path = tmp_path / "file"
  path.write_bytes(b"\x82\xa1a\xc7\x02\x63\x80\x03\xa1b\xcd\x01\x00")
  assert flax_msgpack.read(path) == {"a": None, "b": 256}


def test_chunks_that_are_gone_or_cut_off(tmp_path):
  """TensorStore would read a missing file as zeros."""
  folder = files.write(tmp_path / "one", files.parameters())
  array = folder / "target.decoder.layers_1.mlp.wo.kernel"
  chunk = array / "1.0"
  content = chunk.read_bytes()
  chunk.write_bytes(content[: len(content) // 2])
  fails(folder, str(array), "Copy the checkpoint again")
  chunk.unlink()
  fails(folder, str(array), "only 1 of 2 chunks exist")
  (array / ".zarray").write_text("{}")
  fails(folder, str(array), "cannot be read as the zarr array decoder/layers_1/mlp/wo/kernel")
  (array / ".zarray").unlink()
  fails(folder, str(array), "does not exist")


def test_what_is_no_checkpoint_of_t5x(tmp_path):
  """Folders of t2t and Hugging Face are distinguished from T5X's."""
  (tmp_path / "state").mkdir()
  (tmp_path / "config.json").write_text("{}")
  (tmp_path / "notes.txt").write_text("nothing")
  for path in (tmp_path, tmp_path / "config.json", tmp_path / "notes.txt", tmp_path / "gone"):
    assert not t5x.is_t5x(str(path))
    fails(path)
  fails(tmp_path / "gone", "no such file or folder")
  (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1000000"\n')
  assert not t5x.is_t5x(str(tmp_path))
  fails(tmp_path, "is a TensorFlow checkpoint")


@pytest.mark.exhaustive
def test_what_was_read_leaves_nothing_behind(tmp_path):
  """File handles are released in a process with many checkpoints."""
  folder = files.write(tmp_path / "checkpoint_7", files.parameters())
  counts = []
  for _ in range(3):
    foreign.read(t5x.open_foreign(str(folder)))
    gc.collect()
    counts.append(len(gc.get_objects()))
  assert counts[2] - counts[1] < 100


# ---- Duplicate arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["joined", "scanned"])
def test_two_tables_of_relative_positions(stored, expected, tmp_path):
  """Under both names, of the stack or of each layer: equal tables are merged, different ones are an error."""
  params = files.parameters()
  one, other = (f"decoder/{name}/rel_embedding" for name in ("relpos_bias", "relative_posemb"))
  layers = {
    f"decoder/layers_{index}/relpos_bias/rel_embedding": params[one] for index in range(files.LAYERS["decoder"])
  }
  write = lambda name, change: str(files.single_file(tmp_path / name, files.STORED[stored](params | change)))
  for number, same in enumerate(({other: params[one]}, layers)):
    found = t5x.open_foreign(write(f"checkpoint_{number}", same))
    assert_same(found, expected)
    assert "the decoder has the same table of relative positions under several names; one table was kept" in found.notes
  differing = {name: x + 1 for name, x in layers.items()}
  for number, change in enumerate(({other: params[one] + 1}, differing), start=2):
    with pytest.raises(UserError, match=rf"the decoder has two different tables of relative positions, {one} and "):
      t5x.open_foreign(write(f"checkpoint_{number}", change))


def test_layers_that_are_scanned_and_not(tmp_path):
  """A checkpoint with both forms is an error."""
  both = files.scanned(files.parameters(), axis=1) | files.parameters()
  with pytest.raises(UserError, match=r"decoder/layers/.*: unknown; found"):
    t5x.open_foreign(str(files.single_file(tmp_path / "checkpoint_0", both)))


def test_an_array_that_is_there_twice(tmp_path):
  """Under one name in the file, or under two equivalent ones."""
  path = tmp_path / "checkpoint_0"
  twice = b"\x82\xa6target\x82\xa1a\x01\xa1a\x02\xa5state\x80"
  path.write_bytes(twice)
  with pytest.raises(UserError, match="the second value of the key 'a' in a dict"):
    flax_msgpack.read(epath.Path(path))
  tree = {"target": {"a": {"b": np.ones(2, np.float32)}, "a/b": np.zeros(2, np.float32)}}
  path.write_bytes(serialization.to_bytes({"version": 3, "optimizer": tree}))
  with pytest.raises(UserError, match="two arrays have the name a/b"):
    t5x.open_foreign(str(path))
