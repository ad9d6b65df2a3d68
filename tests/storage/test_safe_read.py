"""Untrusted files are read within bounds, as data only, or rejected with a sentence."""

import ast
import json
import os
import pathlib
import struct

from etils import epath
import folders
import foreign
import hypothesis
from hypothesis import strategies as st
import msgpack
import numpy as np
import pytest
import t5x_files
import toy

from t2t import UserError, convert
from t2t.convert import flax_msgpack, huggingface, safetensors, t5x
from t2t.storage import safe_read, vocabulary_files

ROOT = folders.ROOT
CONFIG = toy.config(relative_position_buckets=8)
PARAMS = foreign.random_params(CONFIG)
W = "shared.weight"


@pytest.fixture
def folder(tmp_path):
  """An exported T5 for a test to damage."""
  huggingface.save(foreign.in_memory(CONFIG, PARAMS), epath.Path(tmp_path / "t5"))
  return tmp_path / "t5"


def header(path: pathlib.Path) -> tuple[dict, bytes]:
  content = path.read_bytes()
  end = 8 + int.from_bytes(content[:8], "little")
  return json.loads(content[8:end]), content[end:]


def write(path: pathlib.Path, head, body: bytes) -> None:
  text = head if isinstance(head, bytes) else json.dumps(head).encode()
  path.write_bytes(len(text).to_bytes(8, "little") + text + body)


# ---- Safetensors -----------------------------------------------------------------------------------------------------

BAD_ENTRIES = {
  "negative offsets": ({"data_offsets": [-2568, -8]}, "not a list of sizes"),
  "offsets that are no numbers": ({"data_offsets": [0.0, 2560.0]}, "not a list of sizes"),
  "offsets that overlap": ({"data_offsets": [64, 2624]}, "according to the offsets"),
  "a dtype that is none": ({"dtype": "F99"}, "unknown dtype 'F99'. Known dtypes:"),
  "a dtype that is a list": ({"dtype": ["F32"]}, "unknown dtype"),
  "a shape that is not the length": ({"shape": [41, 16]}, "bytes, but has the offsets"),
  "a negative shape": ({"shape": [-40, -16]}, "not a list of sizes"),
  "a shape in letters": ({"shape": "ab"}, "not a list of sizes"),
  "many dimensions": ({"shape": [1] * 1000 + [40, 16]}, "not a list of sizes"),
  "an end without end": ({"data_offsets": [0, 2**62]}, "bytes, but has the offsets"),
}


@pytest.mark.parametrize("case", BAD_ENTRIES)
def test_a_tensor_that_its_header_misrepresents(case, folder):
  """No tensor shows the bytes of another, or of the header."""
  changes, words = BAD_ENTRIES[case]
  path = folder / "model.safetensors"
  head, body = header(path)
  order = [*(name for name in head if name != W), W]  # the overlapping one is last
  head[W] = head[W] | changes
  write(path, {name: head[name] for name in order}, body)
  with pytest.raises(UserError, match=words):
    huggingface.open_foreign(str(folder))


def test_headers_that_are_none(folder):
  """Lengths beyond the file or the limit, deep nesting, duplicate names, bytes that belong to no tensor."""
  path = folder / "model.safetensors"
  head, body = header(path)
  again = json.dumps(head)[:-1].encode() + f', "{W}": {json.dumps(head[W])}}}'.encode()
  for content, words in (
    ((2**60).to_bytes(8, "little") + b"{}", "is truncated"),
    (b'{"a":' * 50_000, "not valid safetensors"),
    (again, "a name occurs twice"),
    (b"{}", "bytes belong to no tensor"),
  ):
    path.write_bytes(content) if content[:1] == b"\0" else write(path, content, body)
    with pytest.raises(UserError, match=words):
      safetensors.read_header(path)
  with path.open("wb") as file:  # sparse
    file.write((99_000_000).to_bytes(8, "little") + b"{")
    file.truncate(100_000_000)
  with pytest.raises(UserError, match="more than the limit of"):
    safetensors.read_header(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(value, folder, tmp_path):
  """The message names tensor and position, in either format."""
  path = folder / "model.safetensors"
  head, body = header(path)
  place = head[W]["data_offsets"][0] + 4 * 17
  write(path, head, body[:place] + struct.pack("<f", value) + body[place + 4 :])
  with pytest.raises(UserError, match=rf"{W}: 1 of 640 numbers are NaN or infinite, the first at index \[1, 1\]"):
    foreign.read(huggingface.open_foreign(str(folder)))
  params = t5x_files.parameters()
  params["decoder/decoder_norm/scale"][3] = value
  with pytest.raises(UserError, match="decoder/decoder_norm/scale: 1 of 10 numbers"):
    foreign.read(t5x.open_foreign(str(t5x_files.single_file(tmp_path / "single", params))))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_no_file_is_not_waited_for(name, folder):
  """A pipe, on which reading blocks; an endless device; a folder."""
  path = folder / name
  for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
    path.unlink()
    make(path)
    with pytest.raises(UserError, match="is not a file but a folder, a pipe or a device"):
      huggingface.open_foreign(str(folder))
    path.rmdir() if path.is_dir() else path.unlink()
    path.touch()


@pytest.mark.parametrize("name", ["../t5/model.safetensors", "/etc/passwd", "a\0b", 3, ["a"]])
def test_an_index_names_files_of_its_folder_alone(name, folder):
  (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {W: name}}))
  with pytest.raises(UserError, match="not a file of this folder|missing"):
    huggingface.open_foreign(str(folder))


# ---- config.json and vocabularies ------------------------------------------------------------------------------------

BAD_VALUES = [("num_layers", value) for value in (10_000_000, 10**30, -2, "2", 2.5, True, [2], np.nan)]
BAD_VALUES += [("num_decoder_layers", 10_000_000), ("num_decoder_layers", "x"), ("num_heads", 10**9), ("num_heads", 0)]
BAD_VALUES += [("d_model", 10**12), ("vocab_size", {}), ("layer_norm_epsilon", np.nan), ("layer_norm_epsilon", -1)]
BAD_VALUES += [("dropout_rate", "x"), ("feed_forward_proj", [1]), ("model_type", [1]), ("tie_word_embeddings", "yes")]
BAD_VALUES += [("architectures", 3), ("architectures", [["a"]]), ("n_positions", "x")]


@pytest.mark.parametrize("key, value", BAD_VALUES)
def test_a_config_with_absurd_values(key, value, folder):
  """An immediate error with the file, without any computation."""
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
  with pytest.raises(UserError, match=r"config\.json: "):
    huggingface.open_foreign(str(folder))


@pytest.mark.parametrize(
  "content", [b"", b"{", b"[]", b"\xff\xfe\0", b"[" * 100_000, b'{"num_layers": %s}' % (b"9" * 5000)]
)
def test_a_config_that_is_no_json(content, folder):
  (folder / "config.json").write_bytes(content)
  with pytest.raises(UserError, match=r"config\.json (cannot be read as JSON|is not a JSON object)"):
    convert.open_foreign(str(folder))


BAD_VOCABULARIES = [
  ("spiece.model", b""),
  ("spiece.model", b"\0" * 9),
  ("tokenizer.json", b"{}"),
  ("tokenizer.json", b"3"),
]
BAD_VOCABULARIES += [
  ("vocab.json", b'{"a": -1}'),
  ("vocab.json", b'{"a": 1e400}'),
  ("vocab.txt", b""),
  ("vocab.txt", b"\xff"),
]


@pytest.mark.parametrize("name, content", BAD_VOCABULARIES)
def test_a_vocabulary_that_is_none(name, content, folder):
  (folder / name).write_bytes(content)
  with pytest.raises(UserError, match=name):
    huggingface.open_foreign(str(folder))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl"])
def test_a_pickle_is_refused_as_a_file_and_in_a_folder(name, folder):
  """With an alternative; a file with weights alone does not describe the model."""
  with pytest.raises(UserError, match="Give the folder of this file"):
    convert.open_foreign(str(folder / "model.safetensors"))
  (folder / "model.safetensors").rename(folder / name)
  for path in (folder, folder / name):
    with pytest.raises(UserError, match="Loading a pickle (runs|may run) .*\n.*(save_pretrained|weights_only=True)"):
      convert.open_foreign(str(path))


# ---- msgpack and zarr ------------------------------------------------------------------------------------------------

HEAD = b"\x82\xa7version\x03\xa9optimizer"


def array(*content) -> bytes:
  packed = msgpack.packb(list(content))
  return HEAD + b"\x81\xa6target\x81\xa1a" + b"\xc7" + bytes([len(packed)]) + b"\x01" + packed


@pytest.mark.parametrize(
  "content",
  [
    HEAD + b"\x91" * 33_000_000,
    HEAD + b"\xdd\xff\xff\xff\xff",
    HEAD + b"\xdd" + struct.pack(">I", 2_000_000) + b"\x90" * 2_000_000,
    HEAD + b"\xdb" + struct.pack(">I", 2**25) + b"a" * 2**25,
    array([-4, -4], "float32", b"\0" * 64),
    array([True], "float32", b"\0" * 4),
    array([1], "float33", b"\0" * 4),
    HEAD + b"\x81\xa6target\x81\xa1a" + msgpack.packb("PLACEHOLDER://.."),
    HEAD + b"\x81\xa6target\x81\xa1a" + msgpack.packb({"driver": "x", "kvstore": 3}),
    HEAD + msgpack.packb({"__msgpack_chunked_array__": True, "shape": {"0": "a"}, "chunks": {}}),
  ],
  ids=lambda content: repr(content[22:44]),
)
def test_msgpack_that_no_checkpoint_is(content, tmp_path, monkeypatch):
  monkeypatch.setattr(flax_msgpack, "_MOST_VALUES", 20_000)  # to be fast
  (tmp_path / "checkpoint").write_bytes(content)
  with pytest.raises(UserError, match="checkpoint"):
    t5x.open_foreign(str(tmp_path / "checkpoint"))


def test_a_name_is_no_dict(tmp_path):
  """Nested references double the text: a hundred bytes would take all memory."""
  path = tmp_path / "checkpoint"
  path.write_bytes(HEAD + b"\x81" * 18 + b"\xa1a" + b"\x01" * 18)
  with pytest.raises(UserError, match="checkpoint: .*a key that is neither text nor a number"):
    flax_msgpack.read(epath.Path(path))


BAD_ZARR = {
  "shape": [2**50, 10],
  "chunks": [0, 10],
  "dtype": "|O",
  "compressor": {"id": "pickle"},
  "filters": [{"id": "x"}],
}


def test_arrays_that_say_what_cannot_be(tmp_path):
  """Sizes, dtypes and codecs; chunks that are pipes; more values than the bytes can hold."""
  folder = t5x_files.write(tmp_path / "t5x", t5x_files.parameters()) / "target.token_embedder.embedding"
  good = json.loads((folder / ".zarray").read_text())
  huge = {"shape": [2**31, 10], "chunks": [2**31, 10]}
  for changes in (*({key: value} for key, value in BAD_ZARR.items()), {"chunks": [2**30, 10]}, huge):
    (folder / ".zarray").write_text(json.dumps(good | changes))
    with pytest.raises(UserError, match="cannot be read as the zarr array token_embedder/embedding"):
      t5x.open_foreign(str(folder.parent))
  (folder / ".zarray").write_text(json.dumps(good))
  (folder / "0.0").unlink()
  os.mkfifo(folder / "0.0")
  with pytest.raises(UserError, match="is not a file but a folder, a pipe or a device"):
    t5x.open_foreign(str(folder.parent))


# ---- Random content --------------------------------------------------------------------------------------------------

_ANYTHING = st.recursive(
  st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
  max_leaves=6,
)
_ENTRY = st.fixed_dictionaries(
  {},
  optional={
    "dtype": st.sampled_from(["F32", "BF16", "I8"]) | _ANYTHING,
    "shape": st.lists(st.integers(-1, 9), max_size=3) | _ANYTHING,
    "data_offsets": st.lists(st.integers(-1, 99), min_size=2, max_size=2) | _ANYTHING,
  },
)
_FUZZ = hypothesis.settings(
  max_examples=int(os.environ.get("T2T_FUZZ_EXAMPLES", 25)), deadline=None, derandomize=True, database=None
)


def refused_or_read(read, content: bytes, path: pathlib.Path) -> None:
  path.write_bytes(content)
  try:
    read(path)
  except UserError as error:
    assert str(path) in str(error)


@pytest.fixture(scope="module")
def anywhere(tmp_path_factory):
  return tmp_path_factory.mktemp("fuzz")


@_FUZZ
@hypothesis.given(
  st.dictionaries(st.text(max_size=4), _ENTRY | _ANYTHING, max_size=3) | _ANYTHING, st.binary(max_size=99)
)
def test_any_safetensors(anywhere, head, body):
  """Random headers and bytes: read with each tensor within the file, or rejected."""
  text = json.dumps(head).encode()

  def read(path: pathlib.Path) -> None:
    for entry in safetensors.read_header(epath.Path(path)).values():
      assert 8 + len(text) <= entry.begin and entry.begin + entry.nbytes <= path.stat().st_size
      if entry.dtype in safetensors.DTYPES:
        entry.read()

  refused_or_read(read, len(text).to_bytes(8, "little") + text + body, anywhere / "any.safetensors")


@_FUZZ
@hypothesis.given(st.binary(max_size=60) | _ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(anywhere, content):
  """In place of each kind of file."""
  for name, read in {
    "any.json": lambda path: safe_read.read_json(epath.Path(path)),
    "any.safetensors": lambda path: safetensors.read_header(epath.Path(path)),
    "any.msgpack": lambda path: flax_msgpack.read(epath.Path(path)),
    "msgpack": lambda path: flax_msgpack.first_key(epath.Path(path)),
  }.items():
    refused_or_read(read, content, anywhere / name)
  refused_or_read(lambda path: flax_msgpack.read(epath.Path(path)), HEAD + content, anywhere / "any.msgpack")
  for name in ("any.model", "tokenizer.json", "vocab.json", "vocab.txt"):
    (anywhere / name).write_bytes(content)
    try:
      vocabulary_files.ids_of(epath.Path(anywhere / name))
    except Exception as error:  # any error of the library, which the caller converts to a sentence
      assert not isinstance(error, AttributeError | AssertionError)


# ---- No code execution -----------------------------------------------------------------------------------------------

# File and name -> reason why it is allowed.
_MAY = {
  ("runtime/data_packages.py", "exec_module"): "an installed package that is imported anyway, TensorFlow or seqio",
  ("runtime/imports.py", "exec_module"): "the user's own .py files, named by the user on this command line",
}
_RUN = {"eval", "exec", "compile_command", "exec_module", "run_path", "loads_pickle", "__import__"}
_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch"}


def runs(tree: ast.AST) -> set[str]:
  """Returns the calls of a file that could execute code from another file."""
  found = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import | ast.ImportFrom):
      names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
      found |= {name for name in names if name.split(".")[0] in _MODULES}
    if isinstance(node, ast.Call):
      function = node.func
      owner = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
      name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
      if name in _RUN and (isinstance(function, ast.Name) or name == "exec_module" or owner == "builtins"):
        found.add(name)
      if (owner, name) in {("yaml", "load"), ("yaml", "load_all"), ("yaml", "unsafe_load"), ("runpy", "run_path")}:
        found.add(f"{owner}.{name}")
      if any(word.arg == "allow_pickle" and getattr(word.value, "value", True) for word in node.keywords):
        found.add("allow_pickle")
  return found


@pytest.mark.slow
def test_nothing_that_is_read_is_run():
  """No pickle, eval or unsafe YAML in the whole package; exceptions have reasons."""
  for line in ("import pickle", "eval(x)", "yaml.load(x)", "np.load(x, allow_pickle=True)", "from torch import load"):
    assert runs(ast.parse(line)), line
  found = set()
  for room in folders.PACKAGES:
    for path in (ROOT / room).rglob("*.py"):
      name = str(path.relative_to(ROOT / room)) if room == "t2t" else str(path.relative_to(ROOT))
      found |= {(name, what) for what in runs(ast.parse(path.read_text()))}
  assert found == set(_MAY)
