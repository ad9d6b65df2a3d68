"""Files of token ids: the same batches as text, documents of any range, positions, and errors before training."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import test_pipeline

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import batch_iterator, pipeline, run_sources, validation, vocabularies
from t2t.data.sources import text_files, token_files

TEXTS = test_pipeline.TEXTS[:60]
EOS = 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def mesh():
  return sharding.make_mesh({"fsdp": -1})


def stream(texts) -> np.ndarray:
  vocabulary = vocabularies.load("bytes")
  return np.array([i for text in texts for i in (*vocabulary.encode(text), EOS)], np.uint16)


def config(files: str, **options) -> DataConfig:
  lengths = {"inputs_length": 512, "targets_length": 512}
  return DataConfig(files=files, **{"vocabulary": "bytes", "num_streams": 2, **lengths, **options})


@pytest.fixture
def written(tmp_path):
  """Writes the same documents as text, .npy and .bin; returns their configs."""
  for split, texts in (("train", TEXTS), ("eval", TEXTS[:9])):
    (tmp_path / f"{split}.txt").write_text("".join(f"{text}\n" for text in texts))
    np.save(tmp_path / f"{split}.npy", stream(texts).astype(">u4"))
    stream(texts).tofile(tmp_path / f"{split}.bin")
  dtypes = {"bin": {"tokens_dtype": "uint16"}}
  return {
    kind: config(f"{tmp_path}/train.{kind}", eval_files=f"{tmp_path}/eval.{kind}", **dtypes.get(kind, {}))
    for kind in ("txt", "npy", "bin")
  }


def train_batches(data, architecture, mesh, count):
  iterator = pipeline.train_batches(data, architecture, mesh, batch_size=8, seed=1)
  return test_pipeline.take(iterator, count)


OBJECTIVES = (
  ("causal_lm", "decoder_only"),
  ("span_corruption", "encoder_decoder"),
  ("prefix_lm", "encoder_decoder"),
  ("masked_lm", "encoder_only"),
)


@pytest.mark.parametrize("kind", ["npy", "bin"])
def test_files_contain_the_documents_of_their_text(kind, written):
  """A document is the ids between end ids, in the order of the lines of the text."""
  source = run_sources.of(written[kind]).make_source()
  for split, texts in (("train", TEXTS), ("validation", TEXTS[:9])):
    records = [record["tokens"].tolist() for record in source.get_dataset(split, shuffle=False).as_numpy_iterator()]
    assert records == [stream([text]).tolist() for text in texts]


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(("objective", "architecture"), OBJECTIVES)
def test_ids_make_the_batches_of_their_text(objective, architecture, written, mesh):
  """Training and held-out batches equal those of the text that t2t tokenizes."""
  text, npy = (dataclasses.replace(written[kind], objective=objective, num_streams=1) for kind in ("txt", "npy"))
  expected = train_batches(text, architecture, mesh, 3)
  test_pipeline.assert_same(train_batches(npy, architecture, mesh, 3), expected)
  held_out = [pipeline.eval_rows(data, architecture, batch_size=8, max_batches=4) for data in (text, npy)]
  test_pipeline.assert_same(*held_out)
  assert held_out[0]


@pytest.mark.slow
def test_batches_resume_bit_for_bit(written, mesh):
  """A new iterator continues exactly at a saved position."""
  data = dataclasses.replace(written["npy"], objective="causal_lm", num_streams=1)
  make = lambda: pipeline.train_batches(data, "decoder_only", mesh, batch_size=8, seed=1)
  iterator = make()
  test_pipeline.take(iterator, 3)
  state = iterator.state()
  expected = test_pipeline.take(iterator, 3)
  resumed = make()
  resumed.restore(state, step=0)
  test_pipeline.assert_same(test_pipeline.take(resumed, 3), expected)


@pytest.mark.exhaustive
def test_the_number_of_processes_changes_nothing(written, mesh):
  """Two processes make the rows of one."""
  data = dataclasses.replace(written["npy"], objective="causal_lm", eval_files="")
  plan = pipeline.plan(data, "decoder_only", pipeline.load_task(data), train=True, seed=1)
  rows = []
  for process in range(2):
    of_process = batch_iterator.BatchIterator(
      plan, [process], num_streams=2, batch_size=8, batch_sharding=sharding.batch_sharding(mesh), identity={}
    )
    rows += of_process.next_rows().values()
  (whole,) = train_batches(data, "decoder_only", mesh, 1)
  for name, array in whole.items():
    np.testing.assert_array_equal(array, np.concatenate([part[name] for part in rows]), err_msg=name)


def brute_force(ids, end, longest):
  """Returns the beginnings of documents, by the rule of `token_files.documents`."""
  starts = [0]
  for place in range(1, len(ids)):
    divided = place % longest == 0 and end not in ids[place - longest : place]
    if ids[place - 1] == end or divided:
      starts.append(place)
  return starts


@pytest.mark.parametrize("seed", range(6))
def test_any_division_of_a_file_yields_each_document_once(seed, tmp_path, monkeypatch):
  """Ranges of a file partition its documents, with and without end ids, at any length of blocks."""
  random = np.random.default_rng(seed)
  monkeypatch.setattr(token_files, "_LONGEST", 16)
  monkeypatch.setattr(token_files, "_BLOCK", int(random.choice([4, 8, 16])))
  ids = random.integers(2, 50, 2_000).astype(np.uint16)
  ids[random.random(2_000) < (0.0, 0.02, 0.1, 0.3, 0.9, 0.05)[seed]] = EOS
  np.save(tmp_path / "a.npy", ids)
  place = token_files.layout(str(tmp_path / "a.npy"), (tmp_path / "a.npy").stat().st_size, FORMAT, where="files")
  read = lambda **limits: list(token_files.documents(str(tmp_path / "a.npy"), place, end=EOS, **limits))
  whole = read()
  np.testing.assert_array_equal(np.concatenate([part for _, part in whole]), ids)
  assert [position for position, _ in whole] == brute_force(ids.tolist(), EOS, 16)
  cuts = [0, *sorted(random.choice(np.arange(1, 2_000), 9, replace=False).tolist()), 0]
  ranges = [read(start=start, stop=stop) for start, stop in itertools.pairwise(cuts)]
  assert [position for part in ranges for position, _ in part] == [position for position, _ in whole]
  np.testing.assert_array_equal(np.concatenate([ids for part in ranges for _, ids in part]), ids)


FORMAT = token_files.IdFormat("", EOS, 359)


@pytest.mark.slow
def test_a_stream_without_ends_is_read_whole(tmp_path):
  """Each id of text without end ids occurs once, in parts, and no EOS is added."""
  ids = np.arange(6_000) % 300 + 3
  np.save(tmp_path / "a.npy", ids)
  data = config(f"{tmp_path}/a.npy", eval_files=f"{tmp_path}/a.npy", objective="causal_lm", targets_length=500)
  source = run_sources.of(data).make_source()
  parts = [record["tokens"] for record in source.get_dataset("train", shuffle=False).as_numpy_iterator()]
  assert len(parts) == 3
  np.testing.assert_array_equal(np.concatenate(parts), ids)
  rows = pipeline.eval_rows(data, "decoder_only", batch_size=1, max_batches=20)
  learned = np.concatenate([row["decoder_target_tokens"][row["decoder_loss_weights"] > 0] for row in rows])
  np.testing.assert_array_equal(np.sort(learned), np.sort(ids))


def test_llm_c_files_have_a_header(tmp_path):
  header = np.zeros(256, np.int32)
  header[:3] = 20240520, 1, len(stream(TEXTS))
  (tmp_path / "a.bin").write_bytes(header.tobytes() + stream(TEXTS).tobytes())
  source = run_sources.of(config(f"{tmp_path}/a.bin", eval_files=f"{tmp_path}/a.bin")).make_source()
  records = [record["tokens"] for record in source.get_dataset("train", shuffle=False).as_numpy_iterator()]
  np.testing.assert_array_equal(np.concatenate(records), stream(TEXTS))


def test_a_small_corpus_holds_out_one_document(tmp_path):
  np.save(tmp_path / "a.npy", stream(TEXTS[:9]))
  source = run_sources.of(config(f"{tmp_path}/a.npy")).make_source()
  sizes = [len(list(source.get_dataset(split, shuffle=False).as_numpy_iterator())) for split in ("train", "validation")]
  assert sizes == [8, 1]


GOOD = np.array([5, 6, EOS], np.uint16)


@pytest.mark.parametrize(
  ("name", "content", "options", "message"),
  [
    ("a.bin", GOOD, {}, r"a.bin: config.data.tokens_dtype is empty: .*uint16 for nanoGPT"),
    ("a.bin", GOOD, {"tokens_dtype": "int8"}, r"config.data.tokens_dtype=int8 is not one of uint16, uint32, int32"),
    (
      "a.bin",
      b"123",
      {"tokens_dtype": "uint16"},
      r"a.bin has 3 bytes, which is no multiple of the 2 bytes of a uint16",
    ),
    ("a.bin", b"", {"tokens_dtype": "uint16"}, r"a.bin has no ids"),
    ("a.npy", b"", {}, r"a.npy is not a NumPy file of ids"),
    ("a.npy", GOOD[:0], {}, r"a.npy has no ids"),
    ("a.npy", GOOD[None], {}, r"a.npy has an array of shape \(1, 3\), but ids must be one row"),
    ("a.npy", GOOD.astype(float), {}, r"a.npy has values of type float64, but ids must be integers"),
    ("a.npy", GOOD, {"tokens_dtype": "int32"}, r"type uint16, but config.data.tokens_dtype=int32"),
    ("a.npy", np.array([5, EOS, 7, 359, 400]), {}, r"a.npy: id 359 at position 3 is not in the vocabulary.* 359 ids"),
    ("a.npy", np.array([5, -1]), {}, r"a.npy: id -1 at position 1 is not in the vocabulary"),
    ("a.npy", np.array([EOS, EOS]), {}, r"a.npy has only end ids \(1\)"),
    ("a.npy", GOOD, {"tokens_end": 400}, r"config.data.tokens_end=400 is not an id"),
    ("a.npy", GOOD, {"objective": "annotated_masked_lm"}, r"annotated_masked_lm reads words, phrases or translations"),
    ("a.npy", GOOD, {"eval_files": ""}, r"the only document is held out.*Id 1 ends a document"),
    ("a.npy", GOOD, {"special_tokens": True}, r"config.data.special_tokens=True reads letters"),
  ],
)
def test_bad_input_is_named_before_training(name, content, options, message, tmp_path):
  path = tmp_path / name
  if isinstance(content, bytes):
    path.write_bytes(content)
  elif name.endswith(".npy"):
    np.save(path, content)
  else:
    content.tofile(path)
  data = config(str(path), **{"eval_files": str(path), **options})
  architecture = "encoder_only" if "masked" in data.objective else "encoder_decoder"
  with pytest.raises(UserError, match=message):
    validation.check(data, batch_size=1, model_vocab_size=512, architecture=architecture)


def test_a_truncated_npy_file_is_named(tmp_path):
  np.save(tmp_path / "a.npy", np.tile(GOOD, 9))
  content = (tmp_path / "a.npy").read_bytes()
  (tmp_path / "a.npy").write_bytes(content[:-4])
  with pytest.raises(UserError, match=r"the header promises 27 ids of type uint16, 182 bytes in all, but .* 178 bytes"):
    run_sources.of(config(f"{tmp_path}/a.npy")).make_source()


def test_ids_are_not_mixed_with_text_or_read_as_text(tmp_path):
  np.save(tmp_path / "a.npy", GOOD)
  (tmp_path / "b.txt").write_text("text\n")
  with pytest.raises(UserError, match=r"b.txt has text, but other files have token ids.*config.data.sources"):
    run_sources.of(config(f"{tmp_path}/*.txt,{tmp_path}/a.npy")).make_source()
  with pytest.raises(UserError, match=r"a.npy has token ids, not text"):
    next(text_files.read_texts(f"{tmp_path}/a.npy", field="text"))


@pytest.mark.exhaustive
def test_ids_are_a_source_beside_text(written, mesh):
  """Named sources mix text and ids by their sizes."""
  parts = {name: {"files": written[name].files, "eval_files": written[name].eval_files} for name in ("txt", "npy")}
  data = config("", sources=parts, objective="causal_lm", mixing_unit="tokens")
  validation.check(data, batch_size=8, model_vocab_size=512, architecture="decoder_only")
  mixture = pipeline.load_task(data, "decoder_only")
  rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
  assert 1 < rates["npy"] / rates["txt"] < 5  # characters of text, and an estimate of four per token
  assert len(jax.tree.leaves(train_batches(data, "decoder_only", mesh, 1)))
