import dataclasses
import json

import adapters as shared
from etils import epath
import foreign
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.convert import peft
from t2t.models.adapters.ia3 import Ia3Config
from t2t.models.adapters.lora import LoraConfig
from t2t.models.adapters.prefix import PrefixConfig
from t2t.models.adapters.prompt import PromptConfig

ALL = LoraConfig(rank=3, alpha=6.0, targets=("attention/", "mlp/"))
SOME = LoraConfig(rank=2, alpha=2.5, rslora=True, dropout=0.25, targets=("attention/query", "attention/value"))
CLASS = ({"name": "nli", "kind": "class", "num_classes": 3, "labels": ("no", "yes", "maybe")},)
SQUARE = dict(head_dim=4, init_scale=0.02)  # required by Hugging Face
BERT, ALBERT, GPT2 = (dataclasses.replace(toy.KINDS[name], **SQUARE) for name in ("bert", "albert", "gpt2"))
GPT2 = dataclasses.replace(GPT2, scale_attention=True)
KINDS = {
  "t5_1_1": toy.KINDS["t5_1_1"],
  "llama": toy.KINDS["llama"],
  "bert": BERT,
  "albert": ALBERT,
  "bert_class": dataclasses.replace(BERT, heads=CLASS, vocabulary_head=False),
}


def written(config, lora, folder, **options):
  """Writes a PEFT folder with random numbers; returns them by t2t path."""
  arrays = shared.random_adapter(config, {"lora": lora})
  below = shared.tensors(foreign.random_params(config))
  peft.save(config, {"lora": lora}, shared.tensors(arrays), below, epath.Path(folder), where="RUN", **options)
  return arrays


def open_adapter(folder, config, **options):
  """Opens an adapter with a random base without the task's head."""
  config = dataclasses.replace(config, heads=(), vocabulary_head=True)
  base = dataclasses.replace(foreign.in_memory(config, foreign.random_params(config)), path=epath.Path("BASE"))
  return peft.open_adapter(str(folder), base, **options)


@pytest.mark.parametrize("lora", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_every_bit_is_the_same(kind, lora, tmp_path):
  """Ranks, alpha, targets, and numbers."""
  config = KINDS[kind]
  arrays = written(config, lora, tmp_path / "out")
  found = open_adapter(tmp_path / "out", config, head="nli" if config.heads else "")
  assert found.section == "lora" and found.model.architecture == config.architecture and not found.kept
  assert [head.kind for head in found.model.heads] == [head.kind for head in config.heads]
  again = LoraConfig(**found.config)
  assert dataclasses.replace(again, targets=()) == dataclasses.replace(lora, targets=())
  assert shared.adapted_shapes(found.model, {"lora": again}) == shared.adapted_shapes(config, {"lora": lora})
  assert found.tensors.keys() == arrays.keys()
  for path, tensor in found.tensors.items():
    np.testing.assert_array_equal(tensor.read(), arrays[path], err_msg=path)


def test_of_columns_theirs_has_the_length_and_ours_what_it_is_more(tmp_path):
  """Exact up to the rounding of a sum; PEFT's values are restored if no column is far from its old length."""
  config, lora = KINDS["t5_1_1"], dataclasses.replace(SOME, dora=True)
  arrays = written(config, lora, tmp_path / "out")
  lengths = np.linalg.norm(foreign.random_params(config)["encoder/layers/self_attention/value"][1], axis=0)
  name = "base_model.model.encoder.block.1.layer.0.SelfAttention.v.lora_magnitude_vector"
  path = "encoder/layers/self_attention/value/lora_magnitude"
  theirs = foreign.safetensors(tmp_path / "out")[name]
  np.testing.assert_allclose(theirs, lengths + arrays[path][1], rtol=1e-6)
  found = open_adapter(tmp_path / "out", config)
  assert LoraConfig(**found.config).dora
  for path, tensor in found.tensors.items():
    np.testing.assert_allclose(tensor.read(), arrays[path], atol=1e-6, err_msg=path)
  model, below = found.model, shared.tensors(foreign.random_params(config))
  peft.save(model, {"lora": lora}, found.tensors, below, epath.Path(tmp_path / "again"), where="RUN")
  assert (tmp_path / "again/adapter_model.safetensors").read_bytes() == (
    tmp_path / "out/adapter_model.safetensors"
  ).read_bytes()


IA3 = {"paper": Ia3Config(), "all": Ia3Config(targets=("attention/", "mlp/"))}


@pytest.mark.parametrize("targets", IA3)
@pytest.mark.parametrize("kind", [*KINDS, "gpt2"])
def test_of_vectors_what_is_multiplied_with_is_the_same_there_and_back(kind, targets, tmp_path):
  """PEFT's factors are restored if at least a half; t2t stores the difference from one."""
  config, adapters = (KINDS | {"gpt2": GPT2})[kind], {"ia3": IA3[targets]}
  arrays = {
    path: np.maximum(x, np.float32(-0.5)) if path.endswith("ia3") else x
    for path, x in shared.random_adapter(config, adapters).items()
  }
  save = lambda tensors, name: peft.save(config, adapters, tensors, {}, epath.Path(tmp_path / name), where="RUN")
  save(shared.tensors(arrays), "out")
  found = open_adapter(tmp_path / "out", config, head="nli" if config.heads else "")
  assert found.section == "ia3"
  for path, x in arrays.items():
    np.testing.assert_array_equal(1 + found.tensors[path].read(), 1 + x, err_msg=path)
  # A concatenated matrix gets factors of one for parts without an adapter.
  for path in found.tensors.keys() - arrays.keys():
    assert kind == "gpt2" and path.endswith("query/ia3") and not np.any(found.tensors[path].read())
  again = {"ia3": Ia3Config(**found.config)}
  peft.save(found.model, again, found.tensors, {}, epath.Path(tmp_path / "again"), where="RUN", head="")
  files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("out", "again")]
  assert files[0] == files[1]


def test_vectors_lie_as_theirs(tmp_path):
  """Vectors scale the inputs of a branch's last matrix, and the outputs of others; PEFT lists the former twice."""
  config = KINDS["t5_1_1"]
  arrays = shared.random_adapter(config, {"ia3": IA3["paper"]})
  peft.save(config, {"ia3": IA3["paper"]}, shared.tensors(arrays), {}, epath.Path(tmp_path / "out"), where="RUN")
  found = foreign.safetensors(tmp_path / "out")
  key = found["base_model.model.encoder.block.1.layer.0.SelfAttention.k.ia3_l"]
  np.testing.assert_array_equal(key[:, 0], 1 + arrays["encoder/layers/self_attention/key/ia3"][1])
  down = found["base_model.model.encoder.block.1.layer.1.DenseReluDense.wo.ia3_l"]
  np.testing.assert_array_equal(down[0], 1 + arrays["encoder/layers/mlp/down/ia3"][1])
  said = json.loads((tmp_path / "out/adapter_config.json").read_text())
  assert (said["target_modules"], said["feedforward_modules"]) == (["wo", "k", "v"], ["wo"])
  assert said["peft_type"] == "IA3"
  found["base_model.model.encoder.block.1.layer.0.SelfAttention.k.ia3_l"] = key.T
  foreign.write_safetensors(tmp_path / "out/adapter_model.safetensors", found)
  with pytest.raises(UserError, match=r"SelfAttention.k.ia3_l: expected \[24, 1\], found \[1, 24\]"):
    open_adapter(tmp_path / "out", config)


# ---- Prompts and prefixes --------------------------------------------------------------------------------------------

FRONTS = [
  ("t5_1_1", {"prompt": PromptConfig(length=5)}),
  ("llama", {"prompt": PromptConfig(length=5)}),
  ("t5_1_1", {"prefix": PrefixConfig(length=5, hidden=0, sides=("decoder",))}),
  ("llama", {"prefix": PrefixConfig(length=5, hidden=0)}),
  ("llama", {"prefix": PrefixConfig(length=5, hidden=7)}),
  ("bert_class", {"prefix": PrefixConfig(length=5, hidden=0)}),
]


def save_front(kind, adapters, folder, **fields):
  """Writes a PEFT folder of a prompt or prefix with random numbers; returns them by t2t path."""
  config = dataclasses.replace(KINDS[kind], **fields)
  arrays = shared.random_adapter(config, adapters)
  peft.save(config, adapters, shared.tensors(arrays), {}, epath.Path(folder), where="RUN")
  return arrays


@pytest.mark.parametrize(("kind", "adapters"), FRONTS, ids=[f"{kind}-{next(iter(each))}" for kind, each in FRONTS])
def test_what_stands_in_front_is_the_same_there_and_back(kind, adapters, tmp_path):
  """Bit-identical; the network of a prefix is folded into its output, up to rounding."""
  arrays = save_front(kind, adapters, tmp_path / "out")
  found = open_adapter(tmp_path / "out", KINDS[kind], head="nli" if KINDS[kind].heads else "")
  ((section, config),) = adapters.items()
  assert found.section == section and not found.kept
  again = {section: type(config)(**found.config)}
  assert again[section].length == config.length
  assert shared.adapted_shapes(found.model, again).keys() >= found.tensors.keys()
  folded = shared.adapted_shapes(found.model, again)
  for path, tensor in found.tensors.items():
    assert tensor.shape == folded[path] == tensor.read().shape, path
  if section == "prefix" and config.hidden:
    of = lambda name: arrays[f"decoder/prefix/{name}"].astype(np.float64)
    hidden = np.tanh(of("table") @ of("hidden") + of("hidden_bias"))
    expected = hidden @ of("values") + of("values_bias")[:, None]
    np.testing.assert_allclose(found.tensors["decoder/prefix/values"].read(), expected, atol=1e-5)
  else:
    assert found.tensors.keys() == arrays.keys()
    for path, tensor in found.tensors.items():
      np.testing.assert_array_equal(tensor.read(), arrays[path], err_msg=path)
  peft.save(found.model, again, found.tensors, {}, epath.Path(tmp_path / "again"), where="RUN")
  files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("out", "again")]
  assert files[0] == files[1]


@pytest.mark.parametrize(
  ("kind", "fields", "adapters", "message"),
  [
    (
      "t5_1_1",
      {},
      {"prefix": PrefixConfig()},
      "config.prefix.sides=encoder,decoder: PEFT supports a prefix only in the decoder",
    ),
    ("bert", {}, {"prompt": PromptConfig()}, "t2t converts prompts only of models that generate text"),
    ("bert", {}, {"prefix": PrefixConfig()}, "with the task SEQ_CLS or TOKEN_CLS, but the model has no head"),
    ("llama", {"scale_embedding": True, "norm_offset": True}, {"prompt": PromptConfig()}, "config.model.scale_embed"),
    ("llama", {}, {"prompt": PromptConfig(also_train=("norm",))}, None),
  ],
)
def test_what_means_something_else_there_is_not_written(kind, fields, adapters, message, tmp_path):
  """The message contains the reason, and nothing is written."""
  config = dataclasses.replace(KINDS[kind], **fields)
  arrays = shared.random_adapter(config, adapters)
  if message is None:
    arrays["decoder/norm/scale"] = np.ones(16, np.float32)
    message = "decoder/norm/scale was trained, too"
  with pytest.raises(UserError, match=message):
    peft.save(config, adapters, shared.tensors(arrays), {}, epath.Path(tmp_path / "out"), where="RUN")
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("front", "fields", "message"),
  [
    (0, {"num_virtual_tokens": 0}, "num_virtual_tokens='0' is not a whole number of at least 1"),
    (0, {"num_virtual_tokens": 6}, r"prompt_embeddings: expected \[6, 16\], found \[5, 16\]"),
    (0, {"num_transformer_submodules": 3}, "num_transformer_submodules='3' is neither 1 nor 2"),
    (
      2,
      {"num_transformer_submodules": 1},
      "num_transformer_submodules=1: PEFT requires 2 for a prefix of an encoder-decoder",
    ),
    (3, {"num_attention_heads": 4}, "num_attention_heads=4 does not match the base, which has 2"),
    (3, {"num_layers": 2}, "num_layers=2 does not match the base, which has 3"),
    (3, {"invented_later": 0.5}, "invented_later=0.5: config.prefix does not support this setting"),
  ],
)
def test_sizes_of_what_stands_in_front_are_the_bases(front, fields, message, tmp_path):
  """The message contains the field, before a tensor is read."""
  kind, adapters = FRONTS[front]
  save_front(kind, adapters, tmp_path / "out")
  spoil(tmp_path / "out", **fields)
  with pytest.raises(UserError, match=message):
    open_adapter(tmp_path / "out", KINDS[kind])


def test_the_file_is_as_theirs(tmp_path):
  """Names, shapes, and the matrices' layout: PEFT's are [out, in], and their product is added to W."""
  arrays = written(KINDS["t5_1_1"], SOME, tmp_path / "out")
  found = foreign.safetensors(tmp_path / "out")
  name = "base_model.model.decoder.block.2.layer.1.EncDecAttention.v"
  assert found[f"{name}.lora_A.weight"].shape == (2, 16) and found[f"{name}.lora_B.weight"].shape == (24, 2)
  value = "decoder/layers/cross_attention/value"
  np.testing.assert_array_equal(found[f"{name}.lora_A.weight"].T, arrays[f"{value}/lora_down"][2])
  np.testing.assert_array_equal(found[f"{name}.lora_B.weight"].T, arrays[f"{value}/lora_up"][2])
  config = json.loads((tmp_path / "out/adapter_config.json").read_text())
  assert (config["r"], config["lora_alpha"], config["peft_type"], config["task_type"]) == (
    2,
    2.5,
    "LORA",
    "SEQ_2_SEQ_LM",
  )
  assert config["target_modules"] == ["q", "v"]


@pytest.mark.parametrize(
  ("targets", "expected"),
  [
    (("attention/out",), ["attention.output.dense"]),
    (("mlp/up",), ["intermediate.dense"]),
    # "output.dense" is also the ending of another name.
    (("mlp/down",), ["0.output.dense", "1.output.dense", "2.output.dense"]),
    (("attention/out", "mlp/down"), ["output.dense"]),
  ],
)
def test_endings_of_names_fit_what_is_adapted_and_nothing_else(targets, expected, tmp_path):
  """The shortest endings; BERT has three matrices called dense, and two more in its heads."""
  written(BERT, LoraConfig(rank=2, targets=targets), tmp_path / "out")
  assert json.loads((tmp_path / "out/adapter_config.json").read_text())["target_modules"] == expected


def test_what_is_one_matrix_there_has_one_product(tmp_path):
  """Separate adapters of GPT-2's query, key and value have no counterpart; PEFT's is split by columns."""
  config = GPT2
  with pytest.raises(
    UserError,
    match="transformer.h.0.attn.c_attn is one matrix in transformers, but separate matrices in t2t: query, key, value",
  ):
    written(config, ALL, tmp_path / "refused")
  assert not (tmp_path / "refused").exists()
  arrays = shared.random_adapter(config, {"lora": ALL})
  for part in ("query", "key", "value"):
    arrays[f"decoder/layers/self_attention/{part}/lora_down"] = arrays["decoder/layers/self_attention/out/lora_down"][
      :, :16
    ]
  peft.save(config, {"lora": ALL}, shared.tensors(arrays), {}, epath.Path(tmp_path / "out"), where="RUN")
  found = open_adapter(tmp_path / "out", config)
  for path, tensor in found.tensors.items():
    np.testing.assert_array_equal(tensor.read(), arrays[path], err_msg=path)


def spoil(folder, **fields):
  path = folder / "adapter_config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.exhaustive_from(15)
@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"use_qalora": True}, "adapter_config.json: use_qalora=true: config.lora does not support this setting"),
    ({"rank_pattern": {"q": 4}}, 'rank_pattern={"q": 4}: config.lora does not support'),
    ({"layers_to_transform": [0]}, "layers_to_transform=\\[0\\]: config.lora does not support"),
    ({"bias": "all"}, 'bias="all": config.lora does not support'),
    ({"init_lora_weights": "pissa"}, 'init_lora_weights="pissa": config.lora does not support'),
    ({"invented_later": 0.5}, "invented_later=0.5: config.lora does not support"),
    ({"peft_type": "BOFT"}, "peft_type='BOFT': unsupported; t2t reads LORA, IA3"),
    ({"task_type": "QUESTION_ANS"}, "task_type='QUESTION_ANS': unsupported; t2t reads CAUSAL_LM"),
    (
      {"task_type": "CAUSAL_LM"},
      "task_type='CAUSAL_LM' does not fit the base BASE. The task_type of encoder-decoder models is SEQ_2_SEQ_LM",
    ),
    ({"r": 0}, "r=0 is not a whole number of at least 1"),
    ({"r": True}, "r='True' is not a number"),
    ({"lora_dropout": 1.0}, "lora_dropout=1.0 is not a number of at least 0 and below 1"),
    ({"use_dora": "yes"}, "use_dora='yes' is neither true nor false"),
    ({"use_dora": True}, "q.lora_magnitude_vector: missing"),
    ({"r": 5}, r"q.lora_A.weight: expected \[5, 16\], found \[2, 16\]"),
    ({"lora_alpha": "16"}, "lora_alpha='16' is not a number"),
  ],
)
def test_a_field_that_says_what_t2t_cannot_is_named(fields, message, tmp_path):
  """The error comes before a tensor is read; disabled, empty and harmless fields are ignored."""
  config = KINDS["t5_1_1"]
  written(config, SOME, tmp_path / "out")
  spoil(tmp_path / "out", peft_version="0.21.2", megatron_core="megatron.core", qalora_group_size=16, loftq_config={})
  open_adapter(tmp_path / "out", config)
  spoil(tmp_path / "out", **fields)
  with pytest.raises(UserError, match=message):
    open_adapter(tmp_path / "out", config)


NAME = "base_model.model.encoder.block.{}.layer.0.SelfAttention.q.lora_{}.weight"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda found: found.pop(NAME.format(0, "A")), r"q.lora_A.weight: missing; expected \[2, 16\]"),
    (
      lambda found: found.update({"base_model.model.lm_head.weight": np.zeros((4, 3), np.float32)}),
      "lm_head.weight: unknown",
    ),
    (
      lambda found: [found.pop(NAME.format(1, part)) for part in "AB"],
      "adapts .*block.0.layer.0.SelfAttention.q, but not .*block.1.layer.0.SelfAttention.q; t2t adapts .* all layers",
    ),
  ],
)
def test_tensors_that_do_not_belong_together_are_refused(change, message, tmp_path):
  """The message contains a missing name, an unknown one, or a layer without an adapter."""
  config = KINDS["t5_1_1"]
  written(config, SOME, tmp_path / "out")
  found = foreign.safetensors(tmp_path / "out")
  change(found)
  foreign.write_safetensors(tmp_path / "out/adapter_model.safetensors", found)
  with pytest.raises(UserError, match=message):
    open_adapter(tmp_path / "out", config)


def test_files_of_others_are_read_within_bounds(tmp_path):
  """Pickles are not opened, NaN is an error, and JSON may have any content."""
  config = KINDS["t5_1_1"]
  written(config, SOME, tmp_path / "out")
  content = foreign.safetensors(tmp_path / "out")
  content[NAME.format(0, "A")] = np.full((2, 16), np.nan, np.float32)
  foreign.write_safetensors(tmp_path / "out/adapter_model.safetensors", content)
  with pytest.raises(UserError, match="32 of 32 numbers are NaN"):
    open_adapter(tmp_path / "out", config).tensors["encoder/layers/self_attention/query/lora_down"].read()
  (tmp_path / "out/adapter_model.safetensors").rename(tmp_path / "out/adapter_model.bin")
  with pytest.raises(UserError, match="the weights are pickled"):
    open_adapter(tmp_path / "out", config)
  (tmp_path / "out/adapter_config.json").write_text("[" * 100_000)
  with pytest.raises(UserError, match="cannot be read as JSON"):
    open_adapter(tmp_path / "out", config)
