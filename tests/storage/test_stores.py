"""s3:// and az://: listings, ranges, local copies, and every failure as a sentence."""

import bz2
import concurrent.futures
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import time

import fake_stores
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import sentencepiece
import test_token_files
import trained

from t2t import UserError
from t2t import __main__ as command
from t2t.checkpoints import multi_adapter, pretrained
from t2t.data import run_sources, vocabularies
from t2t.data.sources import file_fingerprints, text_files
from t2t.storage import compression, gcs, outage, stores

SCHEMES = ("s3", "az")


@pytest.fixture(params=SCHEMES)
def scheme(request):
  return request.param


@pytest.fixture
def store(monkeypatch, tmp_path):
  """A server with both stores, their credentials in the environment, and few retries."""
  for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT", "http_proxy", "HTTP_PROXY"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("T2T_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setattr(stores, "_TRIES", 2)
  with fake_stores.serve() as served:
    for name in SCHEMES:
      for variable, value in served.environment(name).items():
        monkeypatch.setenv(variable, value)
    for name in ("text/a.txt", "text/b.txt", "text/in/c.txt", "text/[1].txt"):
      served.objects[f"bucket/{name}"] = f"the text of {name}\n".encode() * 3
    yield served


@pytest.mark.parametrize(
  ("pattern", "names"),
  [
    ("text/*.txt", ["text/[1].txt", "text/a.txt", "text/b.txt"]),
    ("text/**/*.txt", ["text/[1].txt", "text/a.txt", "text/b.txt", "text/in/c.txt"]),
    ("**/c.txt", ["text/in/c.txt"]),
    ("*/?.txt", ["text/a.txt", "text/b.txt"]),
    ("text/{a,x}.txt", ["text/a.txt"]),
    ("text/[!a].txt", ["text/b.txt"]),
    ("text/[1].txt", ["text/[1].txt"]),
    ("text/a.txt", ["text/a.txt"]),
    ("text/*.csv", []),
  ],
)
def test_globs_match_as_in_other_buckets(scheme, pattern, names, store):
  expected = [f"{scheme}://bucket/{name}" for name in names]
  assert sorted(gcs.glob(f"{scheme}://bucket/{pattern}", where="config.data.files")) == expected


def test_files_are_read_by_ranges(scheme, store, tmp_path):
  """Text, Parquet and token ids of a store equal those of a disk."""
  path = f"{scheme}://bucket/text/a.txt"
  assert list(text_files.read_texts(path, field="text")) == ["the text of text/a.txt"] * 3
  with gcs.open_binary(path) as file:
    assert (file.seek(-9, 2), file.read(), file.tell()) == (60, b"xt/a.txt\n", 69)
  pa.parquet.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
  np.save(tmp_path / "a.npy", test_token_files.stream(test_token_files.TEXTS))
  for name in ("a.parquet", "a.npy"):
    store.objects[f"bucket/{name}"] = (tmp_path / name).read_bytes()
  assert list(text_files.read_texts(f"{scheme}://bucket/a.parquet", field="text")) == ["one", "two"]
  sources = [
    run_sources.of(test_token_files.config(f"{folder}/a.npy", eval_files=f"{folder}/a.npy")).make_source()
    for folder in (f"{scheme}://bucket", tmp_path)
  ]
  ids = [[x["tokens"].tolist() for x in source.get_dataset().as_numpy_iterator()] for source in sources]
  assert ids[0] == ids[1]


def test_a_changed_object_is_noticed(scheme, store):
  path = f"{scheme}://bucket/text/a.txt"
  saved = file_fingerprints.Contents([path]).saved()
  assert file_fingerprints.Contents([path]).differences(saved) == []
  store.objects["bucket/text/a.txt"] = store.objects["bucket/text/a.txt"].swapcase()
  assert file_fingerprints.Contents([path]).differences(saved) == ["a.txt has changed content of the same size"]


def test_an_object_of_equal_size_and_second_is_another(scheme, store):
  """The server dates all objects alike; scans on the disk and copies follow the ETag."""
  path = f"{scheme}://bucket/text/a.txt"
  seen = []
  for content in (b"one\n", b"two\n", b"two\n"):
    store.objects["bucket/text/a.txt"] = content
    copy = pathlib.Path(gcs.fetched(path, where="--checkpoint "))
    seen.append((text_files.stats([path])[path], copy.read_bytes(), copy.stat().st_ino))
  assert [content for _, content, _ in seen] == [b"one\n", b"two\n", b"two\n"]
  assert seen[0][0] != seen[1][0] and seen[1] == seen[2]


def test_messages_name_the_path_in_the_store(scheme, store, tmp_path, capsys):
  """The copy in the cache is of no use to the user, and may be gone later."""
  arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
  assert command.main(["infer", "--checkpoint", f"{scheme}://bucket/text", *arguments]) == 2
  error = " ".join(capsys.readouterr().err.split())
  assert f"no checkpoint in {scheme}://bucket/text/state" in error and str(tmp_path / "cache") not in error


def test_a_copy_has_no_blocks_of_two_objects(scheme, store, monkeypatch):
  path, open_binary = f"{scheme}://bucket/text/a.txt", stores.open_binary
  monkeypatch.setattr(stores, "_READ_AT_ONCE", 4)

  def overwritten(path):
    reader = open_binary(path)
    reader.read(1)
    reader.seek(0)
    store.objects["bucket/text/a.txt"] = store.objects["bucket/text/a.txt"].swapcase()
    return reader

  monkeypatch.setattr(stores, "open_binary", overwritten)
  with pytest.raises(outage.Away, match="was overwritten while it was copied"):
    gcs.fetched(path, where="--checkpoint ")


def test_a_vocabulary_is_copied_once(scheme, store, tmp_path):
  text = iter([f"sentence {number} of many words" for number in range(100)])
  model = tmp_path / "own.model"
  with model.open("wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=text, model_writer=file, vocab_size=32, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2
    )
  store.objects["bucket/v/own.model"] = model.read_bytes()
  remote, local = (vocabularies.load(path) for path in (f"{scheme}://bucket/v/own.model", str(model)))
  assert remote.encode("sentence of words") == local.encode("sentence of words")
  store.faults.append({"match": "v/own.model", "status": 500, "times": 99, "read": True})
  assert vocabularies.load(f"{scheme}://bucket/v").vocab_size == local.vocab_size


def test_a_copy_of_a_workdir_has_its_last_step(scheme, store, tmp_path):
  """A second copy takes new objects and drops removed ones."""
  for name in ("config.json", "checkpoints/9/x", "checkpoints/10/x", "checkpoints/10/deep/y"):
    store.objects[f"bucket/run/{name}"] = name.encode()
  copy = pathlib.Path(gcs.fetched(f"{scheme}://bucket/run", where="--checkpoint "))
  listed = lambda: sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
  assert listed() == ["checkpoints/10/deep/y", "checkpoints/10/x", "config.json"]
  del store.objects["bucket/run/checkpoints/10/x"]
  store.objects["bucket/run/config.json"] = b"longer than before"
  assert gcs.fetched(f"{scheme}://bucket/run", where="--checkpoint ") == str(copy)
  assert listed() == ["checkpoints/10/deep/y", "config.json"]
  assert (copy / "config.json").read_bytes() == b"longer than before"


def test_a_copy_in_use_stays(scheme, store):
  """A reader of a step keeps the step, whatever else is copied; without readers it is removed."""
  for step in (9, 10):
    store.objects[f"bucket/2026/run/checkpoints/{step}/x"] = b"array"
  old = pathlib.Path(gcs.fetched(f"{scheme}://bucket/2026/run/checkpoints/9", where="--checkpoint "))
  gcs.fetched(f"{scheme}://bucket/2026/run", where="--checkpoint ")
  assert (old / "x").read_bytes() == b"array"
  while stores._kept:
    os.close(stores._kept.popitem()[1])
  gcs.fetched(f"{scheme}://bucket/2026/run", where="--checkpoint ")
  assert not (old / "x").exists() and (old.parent / "10" / "x").exists()


def test_several_readers_copy_once(scheme, store, monkeypatch):
  """The processes of a machine share the copies."""
  for number in range(20):
    store.objects[f"bucket/run/{number}.bin"] = b"array"
  opened, open_binary = [], stores.open_binary

  def slowly(path):
    opened.append(path)
    time.sleep(0.01)
    return open_binary(path)

  monkeypatch.setattr(stores, "open_binary", slowly)
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    copies = list(pool.map(lambda _: gcs.fetched(f"{scheme}://bucket/run", where="--checkpoint "), range(4)))
  assert len(set(copies)) == 1 and len(opened) == 20
  assert len([path for path in pathlib.Path(copies[0]).iterdir() if path.read_bytes() == b"array"]) == 20


def test_a_step_comes_with_the_vocabulary_of_its_workdir(scheme, store):
  """The step is read as on a disk; other steps are not copied."""
  for name in ("config.json", "vocabulary/vocabulary.json", "vocabulary/own.model", "checkpoints/9/x"):
    store.objects[f"bucket/run/{name}"] = name.encode()
  store.objects["bucket/run/checkpoints/10/x"] = b"other"
  copy = pathlib.Path(gcs.fetched(f"{scheme}://bucket/run/checkpoints/9", where="--checkpoint "))
  run = copy.parent.parent
  files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
  assert files == ["checkpoints/9/x", "config.json", "vocabulary/own.model", "vocabulary/vocabulary.json"]
  assert gcs.origin(str(run / "vocabulary")) == f"{scheme}://bucket/run/vocabulary"


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 500, "read": True}, {"cut": 20, "read": True}])
def test_a_short_fault_is_retried(scheme, fault, store):
  store.faults.append({"match": "bucket", **fault})
  assert list(text_files.read_texts(f"{scheme}://bucket/text/a.txt", field="text")) == ["the text of text/a.txt"] * 3


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}, {"cut": 300}])
def test_an_outage_in_the_middle_of_a_file_is_no_damage(fault, store, monkeypatch):
  """In any format the error is an outage, which launchers start again at, and has one line."""
  text = "".join(f'{{"text": "{hashlib.sha256(b"%d" % x).hexdigest()}"}}\n' for x in range(5000)).encode()
  content = {"a.jsonl": text, "a.jsonl.gz": gzip.compress(text), "a.jsonl.bz2": bz2.compress(text, 1)}
  content |= {"a.jsonl.xz": lzma.compress(text), "a.jsonl.zst": pa.compress(text, "zstd", asbytes=True)}
  table = io.BytesIO()
  pa.parquet.write_table(pa.table({"text": [str(x) * 9 for x in range(2000)]}), table, row_group_size=500)
  content["a.parquet"] = table.getvalue()
  monkeypatch.setattr(stores, "_READ_AT_ONCE", 2000)
  monkeypatch.setattr(compression, "_BLOCK", 2000)
  for name, data in content.items():
    store.objects[f"bucket/{name}"] = data
    records = text_files.read_texts(f"s3://bucket/{name}", field="text")
    next(records)
    store.faults[:] = [{"match": name, "times": 999, "read": True, **fault}]
    with pytest.raises(outage.Away, match=rf"{name}.* cannot be read .*") as away:
      list(records)
    assert "\n" not in str(away.value) and "corrupt" not in str(away.value)
    store.faults.clear()


WORDS = {"s3": "bucket", "az": "container"}


def test_errors_are_sentences(scheme, store, monkeypatch):
  """Missing buckets, objects and rights are for the user to correct; launchers do not start again."""
  word = WORDS[scheme]
  with pytest.raises(UserError, match=rf"config.data.files: {scheme}://none/\*.txt: {word} 'none' does not exist"):
    text_files.find_files(f"{scheme}://none/*.txt")
  with pytest.raises(UserError, match=rf"no file matches .*\. The nearest folder .*{scheme}://bucket/text/, contains"):
    text_files.find_files(f"{scheme}://bucket/text/*.csv")
  with pytest.raises(UserError, match=rf"config.data.vocabulary={scheme}://bucket/none does not exist"):
    vocabularies.load(f"{scheme}://bucket/none")
  with pytest.raises(UserError, match=rf"{scheme}://: the path has no {word}"):
    gcs.check(f"{scheme}://", where="config.init.checkpoint=")
  with pytest.raises(UserError, match=r"nothing is written there, because .*`aws s3 sync`"):
    gcs.check_folder(f"{scheme}://bucket/run", where="--workdir ")
  store.faults.append({"match": "bucket", "status": 403, "times": 99})
  with pytest.raises(UserError, match=rf"access to {word} 'bucket' is denied .*Set A.*in the environment") as denied:
    gcs.check(f"{scheme}://bucket/x", where="config.init.checkpoint=")
  assert denied.value.exit_code == 2 and outage.reason(denied.value) is None


def test_missing_credentials_are_named(store, monkeypatch):
  for name in ("AZURE_STORAGE_CONNECTION_STRING", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
    monkeypatch.delenv(name)
  monkeypatch.setenv("HOME", "/nonexistent")
  with pytest.raises(UserError, match=r"az:// needs the name of a storage account\. Set AZURE_STORAGE_ACCOUNT and"):
    gcs.check("az://bucket/x", where="config.data.files")
  with pytest.raises(UserError, match=r"access to bucket 'bucket' is denied .*Set AWS_ACCESS_KEY_ID"):
    gcs.check("s3://bucket/x", where="config.data.files")


@pytest.mark.slow
def test_an_outage_ends_the_command_with_what_launchers_start_again_at(scheme, store, capsys):
  store.faults.append({"match": "bucket", "status": 503, "times": 999})
  arguments = ["train", "--config", "tiny", "--workdir", f"{stores.cache_folder.cache_dir()}/run"]
  files = f"--config.data.files={scheme}://bucket/text/a.txt"
  assert command.main([*arguments, files, "--config.data.vocabulary=bytes"]) == 75
  assert f"{WORDS[scheme]} 'bucket' cannot be reached" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"cut": 20}])
def test_an_outage_in_mid_run_ends_it_with_what_launchers_start_again_at(
  scheme, fault, store, tmp_path, monkeypatch, capsys
):
  """With one sentence; the same command resumes when the store answers."""
  for number in range(4):
    lines = "".join(f"line {x} of text {number} that is read again and again\n" for x in range(50))
    store.objects[f"bucket/mid/{number}.txt"] = lines.encode()
  outage_of_reads = {"match": "mid/", "read": True, "times": 10**6, **fault}
  trained.after_step(monkeypatch, 3, lambda: store.faults.append(outage_of_reads))
  files = f"--config.data.files={scheme}://bucket/mid/*.txt"
  run = [*trained.arguments("encoder_decoder", tmp_path / "run"), files, "--config.eval.every=1000000"]
  # Rows of many steps have been read ahead.
  run += ["--config.train.batch_size=64", "--config.checkpoint.save_interval_steps=20"]
  assert command.main([*run, "--config.train.steps=100000"]) == 75
  last = capsys.readouterr().err.strip().splitlines()[-1]
  assert last.startswith("t2t train: error: ") and f"{scheme}://bucket/mid/" in last and "cannot be read" in last
  store.faults.clear()
  saved = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
  trained.after_step(monkeypatch, 3, store.faults.clear)
  assert command.main([*run, f"--config.train.steps={saved + 2}"]) == 0


@pytest.mark.exhaustive
def test_a_run_reads_text_and_checkpoint_of_a_store(scheme, store, tmp_path):
  """Text, vocabulary and initial checkpoint come from the store, and training equals that from a disk."""
  first = trained.workdir("encoder_decoder")
  for path in first.rglob("*"):
    if path.is_file():
      store.objects[f"bucket/run/{path.relative_to(first)}"] = path.read_bytes()
  lines = "".join(f"line {number} of a text that is read\n" for number in range(200)).encode()
  (tmp_path / "local.txt").write_bytes(lines)
  store.objects["bucket/local.txt"] = lines
  losses = []
  for number, (text, checkpoint) in enumerate(
    [(f"{tmp_path}/local.txt", str(first)), (f"{scheme}://bucket/local.txt", f"{scheme}://bucket/run")]
  ):
    workdir = tmp_path / f"run{number}"
    arguments = trained.arguments("encoder_decoder", workdir)
    changes = [f"--config.data.files={text}", f"--config.init.checkpoint={checkpoint}", "--config.train.steps=2"]
    assert command.main([*arguments, *changes]) == 0
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    losses.append([row["train/loss"] for row in rows if "train/loss" in row])
  assert losses[0] == losses[1] and len(losses[0]) == 2


@pytest.mark.exhaustive
def test_an_adapter_names_its_base_in_the_store(store, tmp_path):
  """The path is the same after a resume: the copy in the cache may be gone when the adapter is read."""
  first = trained.workdir("encoder_decoder")
  for path in first.rglob("*"):
    if path.is_file():
      store.objects[f"bucket/run/{path.relative_to(first)}"] = path.read_bytes()
  for steps in (1, 2):
    arguments = [*trained.arguments("encoder_decoder", tmp_path / "run"), *trained._ADAPTER, "--config.lora.rank=2"]
    options = ["--config.init.checkpoint=s3://bucket/run", f"--config.train.steps={steps}"]
    assert command.main([*arguments, *options]) == 0
    base = json.loads((tmp_path / f"run/checkpoints/{steps}/base/metadata").read_text())
    assert base["path"] == "s3://bucket/run/checkpoints/2"
  adapters = multi_adapter.open_all(pretrained.read_source("s3://bucket/run"), {"one": str(tmp_path / "run")})
  assert adapters["one"].base.path == "s3://bucket/run/checkpoints/2"
