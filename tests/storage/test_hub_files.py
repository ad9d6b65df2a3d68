"""Files of the Hugging Face hub: globs, commits, faults and refusals, through the real client and a local hub."""

import gzip
import threading
import time

import fake_hub
from fake_hub import Fault
import pytest

from t2t import UserError
from t2t.data.sources import file_fingerprints, text_files
from t2t.storage import gcs, given_paths, hub_cache, hub_files
from t2t.storage.outage import Away

LINES = b"".join(b"line %d of a file that is long enough\n" % number for number in range(1000))
FILES = {
  "README.md": b"# text",
  "train/a.txt": LINES,
  "train/deep/b.txt.gz": gzip.compress(b"two\n"),
  "train/.hidden.txt": b"no\n",
  "c[1].jsonl": b'{"text": "three"}\n',
}


@pytest.fixture
def the_hub(tmp_path, monkeypatch):
  """A hub with a dataset, an empty cache, and a clock without waiting; `the_hub.slept` are the seconds asked for."""
  with fake_hub.running() as server:
    server.repository("datasets/ORG/text", FILES)
    for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "T2T_CACHE_DIR": str(tmp_path)}.items():
      monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.slept, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (server.slept.append(seconds), sleep(0)))
    forget()
    yield server
  forget()


def forget() -> None:
  """Makes the process as new: only the disk remembers."""
  hub_files._commits.clear()
  hub_files._matched.clear()
  hub_files._tree.cache_clear()
  text_files.sizes.cache_clear()


def offline(monkeypatch) -> None:
  import huggingface_hub.constants

  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def read(pattern: str) -> dict[str, list[str]]:
  """Returns name -> texts of the files that a pattern matches."""
  paths = text_files.find_files(pattern)
  return {path.partition("@")[2][41:]: list(text_files.read_texts(path, field="text")) for path in paths}


@pytest.mark.parametrize(
  ("path", "location"),
  [
    ("hf://datasets/O/n@v1/a/*.txt", ("dataset", "O/n", "v1", "a/*.txt")),
    ("hf://O/n", ("model", "O/n", "", "")),
    ("hf://models/O/n/", ("model", "O/n", "", "")),
    ("hf://datasets/O/n@refs/convert/parquet/x/0.parquet", ("dataset", "O/n", "refs/convert/parquet", "x/0.parquet")),
    ("hf://O/n@feature%2Fone/x", ("model", "O/n", "feature/one", "x")),
  ],
)
def test_a_path_names_repository_revision_and_file(path, location):
  parsed = hub_files.parse(path)
  assert parsed == hub_files.HubPath(*location)
  assert hub_files.parse(parsed.url) == parsed


@pytest.mark.parametrize("path", ["hf://gpt2", "hf://", "hf://datasets/O", "hf://spaces/O/n/x", "hf://O/n/../../x"])
def test_other_forms_are_refused(path):
  with pytest.raises(UserError, match="Give hf://datasets/ORG/NAME@REVISION"):
    hub_files.parse(path, where="config.data.files")


def test_pathlib_does_not_break_a_path():
  import pathlib

  assert given_paths.text(pathlib.Path("hf://O/n"), called="x") == "hf://O/n"


@pytest.mark.parametrize(
  ("pattern", "names"),
  [
    ("**/*.txt", ["train/a.txt"]),
    ("**/*.txt*", ["train/a.txt", "train/deep/b.txt.gz"]),
    ("train/*.txt", ["train/a.txt"]),
    ("train/**/b.*", ["train/deep/b.txt.gz"]),
    ("train/[!b].txt", ["train/a.txt"]),
    ("c[1].jsonl", ["c[1].jsonl"]),
    ("train/?.txt,hf://datasets/ORG/text/c*.jsonl", ["c[1].jsonl", "train/a.txt"]),
  ],
)
def test_globs_match_as_on_a_disk(the_hub, pattern, names):
  """Without hidden files; listings have several pages."""
  assert list(read(f"hf://datasets/ORG/text@main/{pattern}")) == names


def test_files_are_read_from_any_byte(the_hub):
  (path,) = text_files.find_files("hf://datasets/ORG/text/train/*.txt")
  lines = list(text_files.lines(path, where="", start=20_000, stop=20_100))
  assert [line for _, line in lines] == [x + b"\n" for x in LINES.split(b"\n") if 20_000 <= LINES.find(x) < 20_100]
  assert text_files.sizes((path,)) == (len(LINES),)


def test_a_branch_that_moves_is_read_at_its_first_commit(the_hub):
  """In one process; a changed file has another digest."""
  pattern = "hf://datasets/ORG/text@main/c*.jsonl"
  before = file_fingerprints.Contents(text_files.find_files(pattern)).saved()
  the_hub.repository("datasets/ORG/text", {"c[1].jsonl": b'{"text": "other"}\n'})
  assert read(pattern) == {"c[1].jsonl": ["three"]}
  forget()
  assert read(pattern) == {"c[1].jsonl": ["other"]}
  contents = file_fingerprints.Contents(text_files.find_files(pattern))
  assert contents.differences(before) == ["c[1].jsonl has changed content of the same size"]


def test_a_commit_in_the_cache_needs_no_request(the_hub, monkeypatch):
  pattern = "hf://datasets/ORG/text@main/**/*.txt*"
  content = read(pattern)
  forget()
  offline(monkeypatch)
  asked = len(the_hub.requests)
  assert read(pattern) == content and len(the_hub.requests) == asked
  for missing in ("hf://datasets/ORG/text@main/*.jsonl", "hf://datasets/ORG/text@v2/*.txt"):
    with pytest.raises(UserError, match="not in the cache .*HF_HUB_OFFLINE=1 forbids requests"):
      read(missing)
  path = content and text_files.find_files(pattern)[0]
  for file in (hub_cache.root() / "datasets--ORG--text" / "blobs").iterdir():
    file.unlink()
  with pytest.raises(UserError, match="HF_HUB_OFFLINE=1 forbids requests"):
    gcs.open_binary(path)


# ---- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "fault",
  [
    Fault("/revision/main", times=2, status=503),
    Fault("/revision/main"),
    Fault("/tree/", times=2, status=502),
    Fault("HEAD /datasets", times=2, status=500),
    Fault("GET /cdn", times=2, status=503),
    Fault("GET /cdn", times=2),
    Fault("GET /cdn", cut=len(LINES) // 2),
    Fault("/refs", status=500),
  ],
  ids=str,
)
def test_faults_that_pass_are_not_seen(the_hub, fault):
  the_hub.faults[:] = [fault]
  assert read("hf://datasets/ORG/text@main/train/a.txt") == {"train/a.txt": LINES.decode().splitlines()}
  assert fault.times == 0 or "/refs" in fault.match


def test_a_cut_download_continues_where_it_was_cut(the_hub, monkeypatch):
  import huggingface_hub.constants

  monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
  the_hub.faults[:] = [Fault("GET /cdn", cut=len(LINES) // 2)]
  read("hf://datasets/ORG/text@main/train/a.txt")
  assert the_hub.received_ranges == ["", "bytes=19000-"]


@pytest.mark.parametrize("match", ["/revision/main", "/tree/", "HEAD /datasets", "GET /cdn"])
def test_the_hub_decides_how_long_to_wait(the_hub, match):
  """By Retry-After of "too many requests"; longer than other retries together."""
  the_hub.faults[:] = [Fault(match, times=2, status=429, headers={"Retry-After": "70"})]
  assert read("hf://datasets/ORG/text@main/train/a.txt")
  assert sum(seconds >= 70 for seconds in the_hub.slept) in (1, 2)  # the client repeats HEAD once without waiting


@pytest.mark.parametrize("match", ["", "/tree/", "HEAD /datasets", "GET /cdn"])
def test_a_hub_that_stays_away_is_an_outage(the_hub, match):
  """After a bounded time, with one sentence and without the token."""
  the_hub.faults[:] = [Fault(match, times=10_000, status=503)]
  with pytest.raises(Away, match=r"hf://datasets/ORG/text@\w+.*the Hugging Face hub does not answer \(HTTP 503\)"):
    read("hf://datasets/ORG/text@main/train/a.txt")
  assert 50 < sum(the_hub.slept) < 300


# ---- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("pattern", "message"),
  [
    ("ORG/text@mani/*.txt", "the dataset ORG/text has no revision 'mani'; did you mean main"),
    ("ORG/text@main/*.parquet", r"no file matches .*/\*.parquet at commit .* contains README.md, c\[1\].jsonl"),
    ("ORG/text/gone/*.txt", "no file matches .* The dataset contains README.md"),
    ("ORG/text", r"is a repository. Give a glob of its files, for example hf://datasets/ORG/text/\*\*"),
    ("ORG/private/*.txt", "private or gated and there is no token. Check the name, and set HF_TOKEN"),
    ("ORG/nothing/*.txt", "the hub has no dataset ORG/nothing"),
  ],
)
def test_mistakes_are_named(the_hub, pattern, message):
  the_hub.repository("datasets/ORG/private", {"a.txt": b"secret\n"}, private=True)
  with pytest.raises(UserError, match=f"config.data.files: .*{message}"):
    text_files.find_files(f"hf://datasets/{pattern}")


def test_a_token_comes_from_the_environment(the_hub, monkeypatch, tmp_path, capsys):
  """It goes to the hub alone, and into no file or message."""
  the_hub.repository("datasets/ORG/private", {"a.txt": LINES}, private=True)
  monkeypatch.setenv("HF_TOKEN", the_hub.token)
  assert read("hf://datasets/ORG/private/*.txt")["a.txt"]
  assert the_hub.count("GET /cdn") == 1  # which asserts that the request has no token
  contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
  assert contents and not any(the_hub.token.encode() in content for content in contents)
  assert the_hub.token not in "".join(capsys.readouterr())
  monkeypatch.setenv("HF_TOKEN", "hf_wrong")
  forget()
  with pytest.raises(UserError, match="the token may not read it") as error:
    read("hf://datasets/ORG/private/*.txt")
  assert "hf_wrong" not in str(error.value)


def test_the_package_is_named_if_it_is_missing(monkeypatch):
  import sys

  hub_files._library.cache_clear()
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(UserError, match=r"pip install -e '.\[hub\]'"):
    gcs.check("hf://ORG/model", where="")
  hub_files._library.cache_clear()


def test_nothing_is_written_to_the_hub():
  with pytest.raises(UserError, match="nothing is written there"):
    gcs.check_folder("hf://ORG/model", where="--workdir ")


# ---- Local copies ----------------------------------------------------------------------------------------------------


def test_a_model_is_copied_without_files_that_are_never_read(the_hub):
  files = {"config.json": b"{}", "model.safetensors": b"x" * 30_000, "pytorch_model.bin": b"y", "onnx/a.json": b"z"}
  commit = the_hub.repository("ORG/model", files).branches["main"]
  the_hub.repository("ORG/model", {"1_Pooling/config.json": b"{}"})
  folder = gcs.fetched("hf://ORG/model@main", where="")
  assert {str(path.relative_to(folder)) for path in map(hub_cache.pathlib.Path, _walk(folder))} == {
    *("config.json", "model.safetensors", "1_Pooling/config.json")
  }
  assert gcs.origin(f"{folder}/config.json").startswith("hf://ORG/model@")
  earlier = gcs.fetched(f"hf://ORG/model@{commit}", where="")
  assert earlier != folder and gcs.origin(earlier) == f"hf://ORG/model@{commit}"
  assert gcs.fetched("runs/tiny", where="") == gcs.origin("runs/tiny") == "runs/tiny"


def _walk(folder: str) -> list[str]:
  import os

  return [os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names]


def test_a_vocabulary_is_copied_with_the_files_beside_it(the_hub):
  files = {"vocab.json": b"{}", "merges.txt": b"", "tokenizer_config.json": b"{}", "model.safetensors": b"x" * 30_000}
  the_hub.repository("ORG/model", files)
  path = gcs.fetched("hf://ORG/model@main/vocab.json", where="config.data.vocabulary=", vocabulary=True)
  assert path.endswith("/vocab.json")
  names = {name.rpartition("/")[2] for name in _walk(path.rpartition("/")[0])}
  assert names == {"vocab.json", "merges.txt", "tokenizer_config.json"}
  with pytest.raises(UserError, match="config.data.vocabulary=hf://ORG/model@main/gone.model contains no vocabulary"):
    gcs.fetched("hf://ORG/model@main/gone.model", where="config.data.vocabulary=", vocabulary=True)


def test_long_downloads_tell_their_progress(the_hub, monkeypatch, capsys):
  monkeypatch.setattr(hub_files, "_TOLD_SECONDS", 0.0)
  read("hf://datasets/ORG/text@main/train/a.txt")
  assert "downloading hf://datasets/ORG/text@" in capsys.readouterr().err


def test_threads_that_read_one_file_download_it_once(the_hub):
  (path,) = text_files.find_files("hf://datasets/ORG/text/train/*.txt")
  contents = []
  threads = [threading.Thread(target=lambda: contents.append(gcs.open_binary(path).read())) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert contents == [LINES] * 8 and the_hub.count("GET /cdn") == 1
