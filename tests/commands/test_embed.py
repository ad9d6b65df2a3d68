"""`t2t embed`: vectors of lines, resumed runs, and linear probes of layers."""

import json
import random

from flax import nnx
import jax
import numpy as np
import pyarrow.parquet
import pytest
import test_classification
import test_hosts
import toy
import trained

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained
from t2t.data import head_examples
from t2t.evaluation import probes
from t2t.inference import embedding

pytestmark = pytest.mark.slow

TEXTS = [
  "the quick brown fox",
  "a",
  "",
  "naïve 校服",
  "jumps over a lazy dog while seven wizards box with dire",
  "dire",
] * 3
ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")


def arguments(folder, *others, architecture="encoder_only", output="out.npy", texts=TEXTS, name="in.txt"):
  (folder / name).write_text("".join(f"{text}\n" for text in texts))
  fixed = ("--checkpoint", trained.workdir(architecture), "--input", folder / name, "--output", folder / output)
  return [str(argument) for argument in ("embed", *fixed, "--batch_size", "1", *others)]


@pytest.fixture
def run(tmp_path, capsys):
  """Runs the command; returns its exit code and output."""

  def run(*others, **how):
    capsys.readouterr()
    code = command.main(arguments(tmp_path, *others, **how))
    said = capsys.readouterr()
    return code, said.out + said.err

  return run


def expected(architecture, texts, *, pool, longest=48):
  """Returns vectors of all layers, [texts, layers, embed], for each text alone without padding."""
  source = pretrained.read_source(str(trained.workdir(architecture)))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  loaded = pretrained.load(source, mesh)
  model, vocabulary = nnx.merge(loaded.graphdef, loaded.params), pretrained.vocabulary(source)
  framing = head_examples.Framing.of(vocabulary, architecture)
  side, found = model.architecture.answers, []
  for text in texts:
    room = longest - len(framing.begin) - len(framing.end)
    ids = np.array([[*framing.begin, *vocabulary.encode(text)[:room], *framing.end]], np.int32)
    batch = {f"{side}_input_tokens": ids, f"{side}_segment_ids": np.ones_like(ids)}
    batch |= {"encoder_token_types": np.zeros_like(ids)} if side == "encoder" else {}
    with jax.set_mesh(mesh):
      states = np.asarray(model.states(jax.tree.map(jax.numpy.asarray, batch), every_layer=True))[:, 0]
    found.append({"mean": states.mean(axis=1), "first": states[:, 0], "last": states[:, -1]}[pool])
  return np.stack(found)


# ---- Vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("architecture", "pool"), [("encoder_decoder", "mean"), ("decoder_only", "last"), ("encoder_only", "first")]
)
def test_vectors_are_pooled_states(architecture, pool, run, tmp_path):
  """Vectors depend only on their text, in any architecture; float32, and NaN for an empty line."""
  code, said = run("--pool", pool, "--layer", "all", architecture=architecture)
  assert code == 0 and "lines          18 (3 empty, 3 truncated to 48 tokens)" in said and "vectors        " in said
  found = np.load(tmp_path / "out.npy")
  layers = expected(architecture, [text for text in TEXTS if text], pool=pool)
  assert found.dtype == np.float32 and found.shape == (18, 2, 16)
  there = np.array([bool(text) for text in TEXTS])
  np.testing.assert_allclose(found[there], layers, atol=1e-5)
  assert np.isnan(found[~there]).all()
  for number, options in ((1, ()), (0, ("--layer", "0"))):
    assert run("--pool", pool, *options, architecture=architecture, output=f"{number}.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), found[:, number], atol=1e-5)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", toy.REPRESENTATIVES)
@pytest.mark.parametrize("pool", embedding.POOLS)
def test_batches_and_meshes_change_nothing(kind, pool):
  """Batches of different lengths on a mesh equal single texts."""
  config = toy.KINDS[kind]
  graphdef, params = toy.split(toy.model(config))
  layers = embedding.layers_of(config, "all")
  examples = [
    {"inputs": list(range(2, 2 + n)), "token_types": [0] * n, "texts": [0] * n} for n in (3, 17, 1, 9, 20, 4, 5, 6, 7)
  ]
  mesh = sharding.make_mesh({"data": 8})
  how = dict(pool=pool, layers=layers, pad_id=0)
  together = embedding.Embedder(config, graphdef, mesh, batch_size=4, **how).vectors(params, examples)
  one = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  alone = embedding.Embedder(config, graphdef, one, batch_size=1, **how)
  assert together.shape == (9, len(layers), 16)
  for example, vectors in zip(examples, together, strict=True):
    np.testing.assert_allclose(alone.vectors(params, [example])[0], vectors, atol=1e-5)


@pytest.mark.exhaustive
def test_parts_are_read_together(run, tmp_path):
  """Parts are joined by separators; other fields are ignored."""
  lines = [{"parts": ["a dog", "fox"], "id": 3}, {"inputs": "a dog"}, {"inputs": "a dog", "id": {"x": 1}}]
  code, _ = run(texts=map(json.dumps, lines), name="in.jsonl")
  found = np.load(tmp_path / "out.npy")
  assert code == 0 and np.array_equal(found[1], found[2]) and not np.allclose(found[0], found[1])


# ---- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_resumed_at_any_byte_equals_uninterrupted(run, tmp_path):
  """NumPy cannot load an incomplete file; the resumed file is byte-identical, and a further run changes nothing."""
  assert run("--layer=all")[0] == 0
  whole = (tmp_path / "out.npy").read_bytes()
  for size in (1, 128, 300, random.Random(0).randrange(128, len(whole)), len(whole) - 1):
    (tmp_path / "out.npy").write_bytes(whole[:size])
    with pytest.raises((ValueError, EOFError)):
      np.load(tmp_path / "out.npy")
    assert run("--layer=all")[0] == 0
    assert (tmp_path / "out.npy").read_bytes() == whole, size
  code, said = run("--layer=all")
  assert code == 0 and "is complete: 18 lines; nothing left to do" in said


@pytest.mark.exhaustive
def test_parquet_has_the_same_vectors_and_their_texts(run, tmp_path, monkeypatch):
  """Rows are written in row groups, also after an interruption, with a column for each layer."""
  monkeypatch.setattr("t2t.inference.embedding_files._GROUP_BYTES", 5 * 2 * 16 * 4)
  assert run("--layer=all")[0] == run("--layer=all", output="out.parquet")[0] == 0
  vectors = np.load(tmp_path / "out.npy")
  path = tmp_path / "out.parquet"
  table = pyarrow.parquet.read_table(path)
  assert pyarrow.parquet.ParquetFile(path).num_row_groups == 4
  assert table.column_names == ["line", "inputs", "layer_0", "layer_1"]
  assert table["line"].to_pylist() == list(range(1, 19)) and table["inputs"].to_pylist() == TEXTS
  for layer in range(2):
    for found, vector in zip(table[f"layer_{layer}"].to_pylist(), vectors[:, layer], strict=True):
      assert np.isnan(vector).all() if found is None else np.array_equal(np.array(found, np.float32), vector)
  assert "is complete" in run("--layer=all", output="out.parquet")[1] and not list(tmp_path.glob("*.part*"))
  path.unlink()
  content = (tmp_path / "out.npy").read_bytes()
  (tmp_path / "out.parquet.part.npy").write_bytes(content[: len(content) // 2])
  assert "lines; resuming after them" in run("--layer=all", output="out.parquet")[1]
  assert pyarrow.parquet.read_table(path).equals(table) and not list(tmp_path.glob("*.part*"))
  assert run(output="one.parquet")[0] == 0
  assert pyarrow.parquet.read_table(tmp_path / "one.parquet").column_names == ["line", "inputs", "vector"]


def test_the_output_of_another_run_is_refused(run, tmp_path):
  """After changed lines or options the message contains the difference, and the output is unchanged."""
  assert run()[0] == 0
  before = (tmp_path / "out.npy").read_bytes()
  for others, how, message in (
    (("--pool=last",), {}, "--pool last, previously mean"),
    (("--layer=0",), {}, "--layer 0, previously 1"),
    ((), {"texts": [*TEXTS, "more"]}, "in.txt differ from the recorded lines"),
    ((), {"texts": ["other", *TEXTS[1:]]}, "belongs to another input"),
  ):
    code, said = run(*others, **how)
    assert code == 2 and message in said and "to start over" in said
    assert (tmp_path / "out.npy").read_bytes() == before
  (tmp_path / "out.npy.run.json").unlink()
  assert "exists, but its record out.npy.run.json is missing" in run()[1]


@pytest.mark.parametrize(
  ("others", "message"),
  [
    (("--layer=2",), "--layer 2: no such layer; give 0 (embedding layer) to 1 (last layer), or 'all'"),
    (("--layer=last",), "--layer last: no such layer; give 0"),
    (("--pool=man",), "--pool man: unknown value. Give one of: mean, first, last; did you mean mean?"),
    (("--output=out.txt",), "--output out.txt: unknown file type. Give a file that ends in .npy or .parquet"),
    (("--output=gs://b/out.npy",), "must be a local file"),
    (("--input=-",), "--input - (standard input): the header of the output needs the number of lines"),
    (("--beam=3",), "unknown option --beam=3"),
    (("--inputs_length=81",), "--inputs_length 81: the model has only 80 positions"),
    (("--strict",), "line 3: empty line"),
    (("--probe=docs_match",), "does not apply with --probe, which reads a task and prints a table"),
  ],
)
def test_what_cannot_be_done(others, message, run, tmp_path):
  code, said = run(*others)
  assert code == 2 and message in said and not (tmp_path / "out.npy").exists()


@pytest.mark.exhaustive
def test_two_processes_do_as_one_does(run, tmp_path):
  """The first process reads and writes, both compute."""
  assert run()[0] == 0
  codes, said = test_hosts.Processes(2, 1, [arguments(tmp_path, output="two.npy")], cache=tmp_path).wait()
  assert codes == [0, 0], "\n".join(said)
  np.testing.assert_allclose(np.load(tmp_path / "two.npy"), np.load(tmp_path / "out.npy"), atol=1e-5)


# ---- Probes ----------------------------------------------------------------------------------------------------------


def probe(*others, architecture="encoder_only"):
  modules = f"--task_modules={test_classification.module()}"
  return command.main(["embed", f"--checkpoint={trained.workdir(architecture)}", modules, *others])


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_probe_of_each_layer(architecture, capsys):
  """The table has 80 columns, for any architecture; the probe separates its training examples."""
  assert probe("--probe=asked_pair", "--layer=all", architecture=architecture) == 0
  said = capsys.readouterr().out
  assert "asked_pair: accuracy (%) of a linear probe, fitted to 5 examples, of 4" in said
  assert max(map(len, said.splitlines())) <= 80
  rows = [line.split() for line in said.splitlines()]
  assert ["0", "(embedded)", "100.00", "100.00"] in rows and ["1", "100.00", "100.00"] in rows
  assert ["always", "the", "most", "frequent", "50.00"] in rows


def test_a_probe_is_a_linear_classifier_of_its_features():
  """A single informative feature is found at any scale; a nonlinear relation is not."""
  random = np.random.default_rng(0)
  x = random.normal(size=(400, 8)) * 10.0 ** np.arange(-4, 4)
  linear, other = x[:, 0] > 0, x[:, 0] * x[:, 1] > 0
  share = lambda y: np.mean(probes.fit(x[:300], y[:300]).predict(x[300:]) == y[300:])
  assert share(linear) > 0.9 and share(other) < 0.7


@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize(
  ("others", "message"),
  [
    (("--probe=asked_stsb",), "--probe asked_stsb has no classes (kind of head: score)"),
    (("--probe=asked",), "--probe asked is a mixture of several tasks; give one of these tasks: asked_"),
    (("--probe=asked_pairs",), "asked_pairs: no task or mixture has this name. Similar names: asked_pair"),
    (("--probe=asked_pair", "--examples=1"), "first 1 training examples all have the same class"),
    (("--probe=asked_pair", "--config.data.eval_split=dev"), "has no split 'dev'"),
    (("--probe=asked_pair", "--config.data.folder.glue=x"), "nearest: data.benchmark_dirs"),
  ],
)
def test_what_cannot_be_probed(others, message, capsys):
  assert probe(*others) == 2
  assert message in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_benchmark_draws_what_the_command_prints(tmp_path, capsys):
  """Plot and command use one function; existing numbers are reused unless their inputs changed."""
  benchmark = toy.benchmark("probes")
  overrides = [f"--config.data.task_modules={test_classification.module()}"]
  argv = [f"--checkpoints={trained.workdir('encoder_only')}", f"--workdir={tmp_path}", "--task=asked_pair", *overrides]
  benchmark.main(argv)
  said = capsys.readouterr().out
  assert (tmp_path / "probes.png").read_bytes().startswith(b"\x89PNG")
  assert probe("--probe=asked_pair", "--layer=all") == 0
  assert capsys.readouterr().out in said
  found = json.loads((tmp_path / "probes.json").read_text())
  (numbers,) = found["probes"].values()
  numbers["accuracy"]["1"] = 12.34
  (tmp_path / "probes.json").write_text(json.dumps(found))
  benchmark.main(argv)
  assert "12.34" in capsys.readouterr().out
  benchmark.main([*argv, "--pool=last"])
  assert "12.34" not in capsys.readouterr().out
