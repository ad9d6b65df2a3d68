"""Files with two tensors for one parameter of t2t: which one transformers reads, and t2t's messages.

Versions 4 and 5 of transformers differ: each note is checked against the installed version.
"""

import json
import shutil

import foreign
import golden
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t import UserError
from t2t.convert import hf_config as settings_lib
from t2t.convert import huggingface
from t2t.models.architecture import real_positions

IS_5 = int(parity.transformers.__version__.split(".")[0]) >= 5
NAMES = [name for name in golden.CONFIGS if name not in ("llama2", "mistral", "t5_1_1")]


def family_of(name):
  return settings_lib.FAMILIES[json.loads((golden.FOLDER / name / "config.json").read_text())["model_type"]]


COPIES = [(name, copy, original) for name in NAMES for copy, original in family_of(name).copies.items()]
EMBEDDINGS = [case for case in COPIES if "embed_tokens" in case[1]]
BIASES = [case for case in COPIES if case[1].endswith(".bias")]
HEADS = [case for case in COPIES if case not in EMBEDDINGS + BIASES]


@pytest.fixture
def folder(tmp_path):
  """Returns a function that copies a golden model, with tensors changed by `change`, and other keys in config.json."""

  def made(name, change, **settings):
    path = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
    path.mkdir()
    found = {key: np.asarray(x, np.float32) for key, x in foreign.safetensors(golden.FOLDER / name).items()}
    foreign.write_safetensors(path / "model.safetensors", change(found))
    config = json.loads((golden.FOLDER / name / "config.json").read_text())
    rope = config.get("rope_parameters") or {}  # ignored by transformers 4
    config |= {"rope_theta": rope.get("full_attention", rope)["rope_theta"]} if rope else {}
    config |= {"rope_local_base_freq": rope["sliding_attention"]["rope_theta"]} if "sliding_attention" in rope else {}
    (path / "config.json").write_text(json.dumps(config | {"dtype": "float32", "torch_dtype": "float32"} | settings))
    return path

  return made


def theirs(path, name):
  config = json.loads((path / "config.json").read_text())
  model_class = golden.CLASSES.get(name, "") or config["architectures"][0]
  options = {"attn_implementation": "eager", "torch_dtype": torch.float32}
  return getattr(parity.transformers, model_class).from_pretrained(path, **options).eval()


def their_logits(path, name):
  with torch.no_grad():
    features = golden.batch(name)
    return theirs(path, name)(**golden.inputs(features))[0].numpy()[at(features)]


def our_logits(path, name):
  features = golden.batch(name)
  return np.asarray(toy.logits(foreign.model(huggingface.open_foreign(str(path)), dtype="float32"), features))[
    at(features)
  ]


def at(features):
  return np.asarray(real_positions(features, "decoder" if "decoder_input_tokens" in features else "encoder"))


def refusal(path):
  with pytest.raises(UserError) as error:
    huggingface.open_foreign(str(path))
  return str(error.value)


def notes(path):
  return "\n".join(huggingface.open_foreign(str(path)).notes)


def added(copy, original, *, differs):
  """Adds a copy of a tensor, with equal or different values."""
  return lambda found: found | {copy: (np.float32(0.5) - found[original]) if differs else found[original]}


@pytest.mark.parametrize("case", COPIES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_copy_with_the_same_numbers_changes_nothing(case, folder):
  """Every tensor that some checkpoints have twice."""
  name, copy, original = case
  untied = {"tie_word_embeddings": False} if name == "mt5" else {}  # with True, transformers 4 scales its logits
  path = folder(name, added(copy, original, differs=False), **untied)
  np.testing.assert_allclose(our_logits(path, name), their_logits(path, name), atol=1e-4)


@pytest.mark.parametrize("case", EMBEDDINGS, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_stack_with_an_embedding_of_its_own_is_refused(case, folder):
  """transformers 5 keeps it separate; 4 uses one of the two for both."""
  name, copy, original = case
  path = folder(name, added(copy, original, differs=True))
  assert f"{copy} differs from {original} (" in (said := refusal(path)) and "transformers 5 keeps both" in said
  model = theirs(path, name)
  stack, shared = (model.get_parameter(each).detach().numpy() for each in (copy, original))
  there = foreign.safetensors(path)
  np.testing.assert_array_equal(shared, there[original])
  np.testing.assert_array_equal(stack, there[copy if IS_5 else original])


def test_embeddings_of_both_stacks_without_a_shared_one(folder):
  """Equal ones are the embedding; different ones are refused by name."""
  encoder, decoder = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"

  def change(differs):
    def changed(found):
      table = found["shared.weight"]
      return {key: x for key, x in found.items() if key != "shared.weight"} | {
        encoder: table,
        decoder: table + np.float32(differs),
      }

    return changed

  path = folder("t5", change(0.0))
  np.testing.assert_allclose(our_logits(path, "t5"), their_logits(path, "t5"), atol=1e-4)
  assert f"{decoder} differs from {encoder}" in refusal(folder("t5", change(1.0)))


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case[0])
def test_a_matrix_of_logits_that_the_config_ties(case, folder):
  """The matrix is kept, as in version 5, with a note about 4; T5 scales tied logits, so its matrix is refused."""
  name, copy, original = case
  tied = folder(name, added(copy, original, differs=True), tie_word_embeddings=True)
  without = folder(name, lambda found: {key: x for key, x in found.items() if key != copy}, tie_word_embeddings=True)
  expected = their_logits(tied, name)
  if name == "t5":
    assert f"{copy} differs from {original}" in refusal(tied)
    assert np.allclose(expected, their_logits(without, name), atol=1e-4) != IS_5
    return
  assert ("transformers 4 scales them" if name == "mt5" else f"{copy} is another matrix: {copy} is kept") in notes(tied)
  if IS_5:
    np.testing.assert_allclose(our_logits(tied, name), expected, atol=1e-4)
  else:
    np.testing.assert_allclose(expected, their_logits(without, name), atol=1e-4)
    assert np.abs(our_logits(tied, name) - expected).max() > 0.1


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case[0])
def test_a_matrix_of_logits_that_is_not_there(case, folder):
  """Refused if config.json unties it, except for T5s, for which transformers 5 uses the unscaled embedding."""
  name, copy, _ = case
  path = folder(name, lambda found: {key: x for key, x in found.items() if key != copy}, tie_word_embeddings=False)
  settings = json.loads((path / "config.json").read_text())
  settings.pop("scale_decoder_outputs", None)
  (path / "config.json").write_text(json.dumps(settings))
  if not family_of(name).shares_head:
    assert copy in refusal(path) or "tie_word_embeddings=False" in refusal(path)
    return
  assert f"{copy} is missing" in notes(path)
  model = theirs(path, name)
  is_tied = np.array_equal(*(model.get_parameter(each).detach().numpy() for each in ("shared.weight", copy)))
  assert is_tied == IS_5
  if IS_5:
    np.testing.assert_allclose(our_logits(path, name), their_logits(path, name), atol=1e-4)


@pytest.mark.parametrize("case", BIASES, ids=lambda case: case[0])
def test_two_biases_of_logits(case, folder):
  """Refused if tied; untied, the copy is kept, as in transformers 5, with a note about 4."""
  name, copy, original = case
  family = family_of(name)
  head = next(each for each, ours in family.names.items() if ours == "head/projection")
  table = family.copies[head]

  def read(path):
    model, there = theirs(path, name), foreign.safetensors(path)
    bias = model.get_output_embeddings().bias.detach().numpy()
    return next((each for each in (copy, original) if each in there and np.array_equal(there[each], bias)), "")

  change = added(copy, original, differs=True)
  tied = folder(name, change)
  in_4 = copy if family.reads_bias_copy else original
  assert read(tied) == (copy if IS_5 else in_4)
  assert f"transformers 5 reads {copy}, and transformers 4 reads {in_4}" in refusal(tied)
  untied = folder(name, lambda found: change(found) | {head: found[table] + 1}, tie_word_embeddings=False)
  assert read(untied) == (copy if IS_5 else in_4)
  said = f"transformers reads {copy}" if in_4 == copy else f"transformers 5 reads {copy}, 4 {original}"
  assert f"{copy} and {original} differ: {said}; {copy} is kept" in notes(untied)
  if read(untied) == copy:
    np.testing.assert_allclose(our_logits(untied, name), their_logits(untied, name), atol=1e-4)
  alone = folder(name, lambda found: found | {head: found[table] + 1}, tie_word_embeddings=False)
  assert f"{copy} is missing: {original} is used, as in transformers 4; 5 initializes {copy} with zero" in notes(alone)
  bias = theirs(alone, name).get_output_embeddings().bias.detach().numpy()
  np.testing.assert_array_equal(bias, np.zeros_like(bias) if IS_5 else foreign.safetensors(alone)[original])


def test_weights_that_lie_there_twice(folder):
  """transformers prefers model.safetensors to shards beside it, as the message states."""
  path = folder("gpt2", dict)
  shard = lambda change: foreign.write_safetensors(
    path / "model-00001-of-00001.safetensors", change(foreign.safetensors(golden.FOLDER / "gpt2"))
  )
  shard(dict)
  names = foreign.safetensors(golden.FOLDER / "gpt2")
  index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
  (path / "model.safetensors.index.json").write_text(json.dumps(index))
  np.testing.assert_allclose(our_logits(path, "gpt2"), their_logits(path, "gpt2"), atol=1e-4)
  shard(lambda found: found | {"transformer.ln_f.bias": found["transformer.ln_f.bias"] + 1})
  assert "differ in transformer.ln_f.bias. transformers reads only model.safetensors" in refusal(path)
  single = folder("gpt2", dict)
  np.testing.assert_allclose(their_logits(path, "gpt2"), their_logits(single, "gpt2"), atol=1e-4)
  shutil.rmtree(path)
