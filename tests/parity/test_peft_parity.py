"""Adapters and models exported by t2t, read by PEFT; and PEFT's adapters, read by t2t.

Needs torch, transformers and peft (tests/parity-requirements.txt).
"""

import dataclasses
import warnings

import adapters as shared
from etils import epath
from flax import nnx
import foreign
import numpy as np
import parity
from parity import torch
import pytest
import toy

from t2t.convert import peft as peft_lib
from t2t.convert import peft_config
from t2t.models.adapters.ia3 import Ia3Config
from t2t.models.adapters.lora import LoraConfig
from t2t.models.adapters.prefix import PrefixConfig
from t2t.models.adapters.prompt import PromptConfig

peft = pytest.importorskip("peft", reason="needs peft: tests/parity-requirements.txt")

SQUARE = dict(head_dim=4, init_scale=0.02)
BERT = dataclasses.replace(toy.KINDS["bert"], **SQUARE)
CLASS = ({"name": "class", "kind": "class", "num_classes": 3},)
KINDS = {
  "t5_1_1": toy.KINDS["t5_1_1"],
  "llama": toy.KINDS["llama"],
  "bert": BERT,
  "bert_class": dataclasses.replace(BERT, heads=CLASS, vocabulary_head=False),
  "gpt2": dataclasses.replace(toy.KINDS["gpt2"], scale_attention=True, **SQUARE),
  "mpt": dataclasses.replace(toy.KINDS["mpt"], mlp_dim=64, **SQUARE),
  "mistral": dataclasses.replace(toy.KINDS["llama"], attention_window=2),
  "gemma2": dataclasses.replace(toy.KINDS["gemma"], local_rotary_base=10_000.0),
}
LORA = LoraConfig(rank=3, alpha=6.0, targets=("attention/", "mlp/"))
INPUTS = {"t5_1_1": parity.of_both_sides}


def ours(config, params, batch):
  """Returns logits of the t2t model with these parameters."""
  return np.asarray(toy.logits(nnx.merge(foreign.graphdef(config), foreign.nested(params)), batch))


def read_by_peft(base, folder):
  """Loads a model with an adapter from a folder; a warning is an error."""
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)  # about missing and unexpected keys
    return peft.PeftModel.from_pretrained(base, folder).eval()


def theirs(model, kind, batch):
  with torch.no_grad():
    return model(**INPUTS.get(kind, parity.inputs)(batch))[0].numpy()


def assert_same(found, expected, at):
  tolerance = 1e-4 * max(1.0, np.abs(expected[at]).max())
  np.testing.assert_allclose(found[at], expected[at], atol=tolerance)


VARIANTS = {"rslora": dict(rslora=True), "dora": dict(dora=True)}


@pytest.mark.parametrize(
  ("kind", "variant"), [("t5_1_1", ""), ("llama", ""), ("bert", ""), ("t5_1_1", "rslora"), ("llama", "dora")]
)
def test_what_t2t_writes_gives_the_same_logits_in_peft(kind, variant, tmp_path):
  """`from_pretrained` of the adapter with the exported base; the adapter's effect is large."""
  config = KINDS[kind]
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  adapters = {"lora": dataclasses.replace(LORA, **VARIANTS.get(variant, {}))}
  arrays = shared.random_adapter(config, adapters)
  below = shared.tensors(params)
  peft_lib.save(config, adapters, shared.tensors(arrays), below, epath.Path(tmp_path / "adapter"), where="RUN")
  batch = toy.batch(architecture=config.architecture)
  before = theirs(base, kind, batch)
  adapted = read_by_peft(base, tmp_path / "adapter")
  found = ours(config, shared.merged(params, arrays, adapters), batch)
  at = parity.real(batch)
  assert_same(found, theirs(adapted, kind, batch), at)
  assert np.max(np.abs(found - before)[at]) > 0.1


@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "gpt2"])
def test_what_peft_writes_gives_the_same_logits_in_t2t(kind, tmp_path):
  """Adapters of PEFT's code, with its names and default targets."""
  config = KINDS[kind]
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  task = peft_config.TASK_OF[config.architecture]
  torch.manual_seed(0)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    adapted = peft.get_peft_model(
      base, peft.LoraConfig(task_type=task, r=3, lora_alpha=6, init_lora_weights=False)
    ).eval()
  adapted.save_pretrained(tmp_path / "adapter")
  found = peft_lib.open_adapter(str(tmp_path / "adapter"), foreign.in_memory(config, params))
  arrays = {path: tensor.read() for path, tensor in found.tensors.items()}
  batch = toy.batch(architecture=config.architecture)
  params = shared.merged(params, arrays, {"lora": LoraConfig(**found.config)})
  assert_same(ours(config, params, batch), theirs(adapted, kind, batch), parity.real(batch))


@pytest.mark.parametrize("targets", [Ia3Config().targets, ("attention/", "mlp/")], ids=["paper", "all"])
@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "gpt2", "bert"])
def test_vectors_that_t2t_writes_give_the_same_logits_in_peft(kind, targets, tmp_path):
  """(IA)3 on outputs and on inputs of matrices, biases included."""
  config, adapters = KINDS[kind], {"ia3": Ia3Config(targets=targets)}
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  arrays = shared.random_adapter(config, adapters)
  peft_lib.save(config, adapters, shared.tensors(arrays), {}, epath.Path(tmp_path / "adapter"), where="RUN")
  batch = toy.batch(architecture=config.architecture)
  before = theirs(base, kind, batch)
  adapted = read_by_peft(base, tmp_path / "adapter")
  found = ours(config, shared.merged(params, arrays, adapters), batch)
  at = parity.real(batch)
  assert_same(found, theirs(adapted, kind, batch), at)
  assert np.max(np.abs(found - before)[at]) > 0.02


@pytest.mark.parametrize("kind", ["t5_1_1", "llama", "gpt2", "bert"])
def test_vectors_that_peft_writes_give_the_same_logits_in_t2t(kind, tmp_path):
  """(IA)3 on the default modules, for BERT the ends of both branches; exported files equal the imported ones."""
  config = KINDS[kind]
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  task = peft_config.TASK_OF[config.architecture]
  torch.manual_seed(0)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    adapted = peft.get_peft_model(base, peft.IA3Config(task_type=task, init_ia3_weights=False)).eval()
  adapted.save_pretrained(tmp_path / "adapter")
  found = peft_lib.open_adapter(str(tmp_path / "adapter"), foreign.in_memory(config, params))
  arrays = {path: tensor.read() for path, tensor in found.tensors.items()}
  batch = toy.batch(architecture=config.architecture)
  params = shared.merged(params, arrays, {"ia3": Ia3Config(**found.config)})
  assert_same(ours(config, params, batch), theirs(adapted, kind, batch), parity.real(batch))


FRONTS = {
  "prompt": lambda kind: PromptConfig(length=5),
  "prefix": lambda kind: PrefixConfig(length=5, hidden=0, sides=("decoder",)),
  "made": lambda kind: PrefixConfig(length=5, hidden=7, sides=("decoder",)),
}


def theirs_behind(model, kind, batch):
  """Returns logits of the text alone: PEFT's decoders also return logits of the prompt."""
  found = theirs(model, kind, batch)
  return found[:, -batch["decoder_input_tokens"].shape[1] :]


IN_FRONT = [(kind, front) for kind in ("t5_1_1", "llama", "gpt2") for front in FRONTS]
# A distance bias, and windows.
IN_FRONT += [("mpt", "prompt"), ("mpt", "prefix"), ("mistral", "prompt"), ("mistral", "prefix"), ("gemma2", "prefix")]


@pytest.mark.parametrize(("kind", "front"), IN_FRONT)
def test_what_t2t_puts_in_front_gives_the_same_logits_in_peft(kind, front, tmp_path):
  """A prompt, a prefix, and a prefix network; both shift positions."""
  config, adapters = KINDS[kind], {"prompt" if front == "prompt" else "prefix": FRONTS[front](kind)}
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  arrays = shared.random_adapter(config, adapters)
  peft_lib.save(config, adapters, shared.tensors(arrays), {}, epath.Path(tmp_path / "adapter"), where="RUN")
  batch = toy.batch(architecture=config.architecture)
  before = theirs(base, kind, batch)
  with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    found = np.asarray(toy.logits(shared.with_adapter(config, adapters, params, arrays), batch))
    expected = theirs_behind(adapted, kind, batch)
  at = parity.real(batch)
  assert_same(found, expected, at)
  assert np.max(np.abs(found - before)[at]) > 0.02


@pytest.mark.parametrize("front", ["prompt", "prefix", "made"])
@pytest.mark.parametrize("kind", ["t5_1_1", "even_t5", "llama", "gpt2"])
def test_what_peft_puts_in_front_gives_the_same_logits_in_t2t(kind, front, tmp_path):
  """Created and saved by PEFT's code with its defaults; pairs of decoder layers share theirs."""
  config = dataclasses.replace(KINDS["t5_1_1"], num_decoder_layers=2) if kind == "even_t5" else KINDS[kind]
  params = foreign.random_params(config)
  base = parity.load(parity.exported(config, tmp_path / "base"))
  task = peft_config.TASK_OF[config.architecture]
  torch.manual_seed(0)
  options = {"task_type": task, "num_virtual_tokens": 5}
  if front == "prompt":
    settings = peft.PromptTuningConfig(**options)
  else:
    sizes = {"token_dim": config.kv_heads * config.head_dim, "num_attention_heads": config.kv_heads}
    if config.num_kv_heads:  # sizes that PEFT computes by itself
      sizes = {}
    if config.kind.has_encoder_and_decoder:  # PEFT uses the encoder's number
      sizes["num_layers"] = config.num_decoder_layers
    settings = peft.PrefixTuningConfig(**options, **sizes, prefix_projection=front == "made", encoder_hidden_size=7)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    adapted = peft.get_peft_model(base, settings).eval()
  adapted.save_pretrained(tmp_path / "adapter")
  found = peft_lib.open_adapter(str(tmp_path / "adapter"), foreign.in_memory(config, params))
  arrays = {path: tensor.read() for path, tensor in found.tensors.items()}
  kinds = {"prompt": PromptConfig, "prefix": PrefixConfig}
  model = shared.with_adapter(config, {found.section: kinds[found.section](**found.config)}, params, arrays)
  batch = toy.batch(architecture=config.architecture)
  expected = theirs_behind(adapted, "t5_1_1" if kind == "even_t5" else kind, batch)
  assert_same(np.asarray(toy.logits(model, batch)), expected, parity.real(batch))


def test_a_prefix_with_a_head_gives_the_same_logits_in_peft(tmp_path):
  """P-tuning v2 of BERT, SEQ_CLS: pooler and classifier are in the folder, and read the first text token in both."""
  config, adapters = KINDS["bert_class"], {"prefix": PrefixConfig(length=5, hidden=0)}
  arrays = shared.random_adapter(config, adapters)
  peft_lib.save(config, adapters, shared.tensors(arrays), {}, epath.Path(tmp_path / "adapter"), where="RUN")
  base = parity.load(parity.exported(config, tmp_path / "base"))
  batch = toy.batch(architecture="encoder_only")
  adapted = read_by_peft(base, tmp_path / "adapter")
  with torch.no_grad():
    expected = adapted(**parity.inputs(batch)).logits.numpy()
  model = shared.with_adapter(config, adapters, foreign.random_params(config), arrays)
  np.testing.assert_allclose(np.asarray(model.heads["class"](model(batch)[:, 0])), expected, atol=1e-4)


def test_a_head_is_written_for_their_class(tmp_path):
  """BERT, SEQ_CLS: pooler and classifier are in the folder, and PEFT finds them."""
  config = KINDS["bert_class"]
  arrays = shared.random_adapter(config, {"lora": LORA})
  peft_lib.save(config, {"lora": LORA}, shared.tensors(arrays), {}, epath.Path(tmp_path / "adapter"), where="RUN")
  base = parity.load(parity.exported(config, tmp_path / "base"))
  batch = toy.batch(architecture="encoder_only")
  adapted = read_by_peft(base, tmp_path / "adapter")
  state = {name: x.detach().numpy() for name, x in adapted.base_model.model.named_parameters()}
  saved = foreign.safetensors(tmp_path / "adapter")
  for name in ("bert.pooler.dense", "classifier"):
    theirs_now = state[f"{name}.modules_to_save.default.weight"]
    np.testing.assert_array_equal(theirs_now, saved[f"base_model.model.{name}.weight"])
  with torch.no_grad():
    expected = adapted(**parity.inputs(batch)).logits.numpy()
  params = foreign.nested(shared.merged(foreign.random_params(config), arrays, {"lora": LORA}))
  model = nnx.merge(foreign.graphdef(config), params)
  np.testing.assert_allclose(np.asarray(model.heads["class"](model(batch)[:, 0])), expected, atol=1e-4)
