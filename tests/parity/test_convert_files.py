"""Weight files: against the safetensors library in both directions, and the command that converts pickled files.

Needs torch and transformers (tests/parity-requirements.txt), which install safetensors.
"""

import pathlib
import re
import subprocess
import sys

from etils import epath
import foreign
import golden
import ml_dtypes
import numpy as np
import parity
from parity import torch
import pytest
import safetensors.numpy

from t2t import UserError
from t2t.convert import huggingface
from t2t.convert import safetensors as ours

TENSORS = {
  "a.matrix": np.arange(15, dtype=np.float32).reshape(3, 5) / 7,
  "b.vector": np.array([-0.0, np.inf, 1e-40], np.float32),
  "ü.scalar": np.array(3.5, np.float32),
  "d.empty": np.zeros((0, 4), np.float32),
}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_what_the_library_writes_is_read(dtype, tmp_path):
  """Bit-exact for every dtype of parameters."""
  expected = {name: x.astype(DTYPES[dtype]) for name, x in TENSORS.items()}
  safetensors.numpy.save_file(expected, tmp_path / "model.safetensors", metadata={"format": "pt"})
  found = ours.read_header(epath.Path(tmp_path / "model.safetensors"))
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    read = found[name].read()
    assert (read.dtype, read.shape, read.tobytes()) == (value.dtype, value.shape, value.tobytes())


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_what_is_written_the_library_reads(dtype, tmp_path):
  """Bit-exact, tensor by tensor."""
  with ours.SafetensorsWriter(
    epath.Path(tmp_path / "x.safetensors"), {name: x.shape for name, x in TENSORS.items()}, dtype=dtype
  ) as writer:
    for name, value in TENSORS.items():
      writer.write(name, value)
  found = safetensors.numpy.load_file(tmp_path / "x.safetensors")
  assert found.keys() == TENSORS.keys()
  for name, value in TENSORS.items():
    expected = value.astype(DTYPES[dtype])
    assert (found[name].dtype, found[name].tobytes()) == (expected.dtype, expected.tobytes())


def test_a_buffer_of_another_dtype_stands_in_nobody_s_way(tmp_path):
  """Its size is known, and it is not read."""
  tensors = {"mask": np.ones((2, 3), bool), "ids": np.arange(3), "x": np.ones(2, np.float32)}
  safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
  assert ours.read_header(epath.Path(tmp_path / "model.safetensors"))["x"].read().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("length", [0, 5, 8, 30, -1])
def test_what_the_library_finds_cut_off(length, tmp_path):
  """t2t also detects it, and the message gives a remedy."""
  path = tmp_path / "model.safetensors"
  safetensors.numpy.save_file(TENSORS, path)
  path.write_bytes(path.read_bytes()[:length])
  with pytest.raises(safetensors.SafetensorError):
    safetensors.safe_open(path, "np")
  with pytest.raises(UserError, match=rf"{path} is .*again"):
    ours.read_header(epath.Path(path))


@pytest.mark.parametrize("name", ["t5", "t5_1_1", "bert"])
def test_the_command_for_pickled_weights_works(name, tmp_path):
  """The message contains the command, whose output has the same parameters."""
  source = tmp_path / "a folder"
  source.mkdir()
  folder = golden.FOLDER / name
  (source / "config.json").write_text((folder / "config.json").read_text())
  theirs = parity.load(folder, golden.CLASSES.get(name, ""))
  torch.save(theirs.state_dict(), source / "pytorch_model.bin")
  with pytest.raises(UserError, match="pickled") as error:
    huggingface.open_foreign(str(source))
  command = str(error.value).splitlines()[-1].strip()
  command = re.sub("^python ", f"{sys.executable} ", command)
  subprocess.run(command, shell=True, check=True, capture_output=True, cwd=pathlib.Path.home())
  found, expected = (foreign.read(huggingface.open_foreign(str(path))) for path in (source, folder))
  assert found.keys() == expected.keys()
  for path, value in expected.items():
    np.testing.assert_array_equal(found[path], value, err_msg=path)


def test_the_command_keeps_two_tensors_apart(tmp_path):
  """transformers 4 would save only one of them."""
  (tmp_path / "config.json").write_text((golden.FOLDER / "t5" / "config.json").read_text())
  weights = {name: torch.tensor(np.array(x)) for name, x in foreign.safetensors(golden.FOLDER / "t5").items()}
  other = {"decoder.embed_tokens.weight": weights["shared.weight"] + 1}
  torch.save(weights | other, tmp_path / "pytorch_model.bin")
  with pytest.raises(UserError, match="pickled") as error:
    huggingface.open_foreign(str(tmp_path))
  command = re.sub("^python ", f"{sys.executable} ", str(error.value).splitlines()[-1].strip())
  subprocess.run(command, shell=True, check=True, capture_output=True, cwd=pathlib.Path.home())
  with pytest.raises(UserError, match="decoder.embed_tokens.weight differs from shared.weight"):
    huggingface.open_foreign(str(tmp_path))


@pytest.mark.parametrize("name", list(golden.CONFIGS))
def test_every_class_that_fits_loads_the_exported_folder(name, tmp_path):
  """AutoModel and similar classes choose it by config.json; also with another precision, in several files."""
  made = huggingface.open_foreign(str(golden.FOLDER / name))
  huggingface.save(made, epath.Path(tmp_path / "out"), dtype="bfloat16", max_shard_bytes=1_000)
  auto = {"encoder_decoder": "AutoModelForSeq2SeqLM", "decoder_only": "AutoModelForCausalLM"}
  head = auto.get(made.model.architecture, "AutoModelForMaskedLM")
  for each in ("AutoModel", head):
    loaded = getattr(parity.transformers, each).from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    table = loaded.get_input_embeddings().weight.detach().float().numpy()
    own = "encoder/embed/table" if made.model.own_encoder_embedding else "embed/table"  # the input embedding
    np.testing.assert_array_equal(table, made.tensors[own].read().astype(ml_dtypes.bfloat16))
