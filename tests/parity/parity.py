"""Shared comparisons: another implementation with the same parameters, and comparison of its outputs.

Parameters are converted in both directions by `t2t.convert`, so equal outputs also prove its tables.
"""

from collections.abc import Callable
import dataclasses
import json
import pathlib

from flax import nnx
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t.convert import hf_config as settings_lib
from t2t.convert import huggingface
from t2t.models import task_heads, transformer
from t2t.models.architecture import real_positions
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

torch = pytest.importorskip("torch", reason="needs torch: pip install -r tests/parity-requirements.txt")
transformers = pytest.importorskip("transformers", reason="needs transformers: tests/parity-requirements.txt")
# For models this small, threads mostly spin; one thread saves a third of the tests' CPU time.
torch.set_num_threads(1)

Inputs = Callable[[transformer.Batch], dict[str, torch.Tensor]]  # arguments of the transformers model


@dataclasses.dataclass(frozen=True)
class Pair:
  """A t2t model and a transformers model with the same parameters.

  folder: the transformers model, saved by transformers.
  places: tensor of transformers -> parameter of t2t.
  """

  config: TransformerConfig
  graphdef: nnx.GraphDef
  params: dict
  theirs: torch.nn.Module
  folder: pathlib.Path
  places: dict[str, huggingface.TensorMapping]

  @property
  def model(self) -> nnx.Module:
    """Returns the t2t model."""
    return nnx.merge(self.graphdef, self.params)

  def as_theirs(self, name: str, params: dict[str, np.ndarray]) -> np.ndarray:
    """Converts t2t's parameters or gradients to the transformers parameter `name`."""
    place = self.places[name]
    layers = (params[path] if place.layer is None else params[path][place.layer] for path in place.ours)
    return place.theirs_of(place.of_expert(np.asarray(layer)) for layer in layers)


# Gradients on a second, short batch repeat those on the long one; hidden states and logits are compared on both.
GRADIENT_BATCHES = pytest.mark.parametrize(
  "batch", ["long", pytest.param("short", marks=pytest.mark.exhaustive)], indirect=True
)


def exported(config: TransformerConfig, folder: pathlib.Path, *, dtype: str = "float32") -> pathlib.Path:
  """Exports a model with random parameters for transformers."""
  huggingface.save(foreign.in_memory(config, foreign.random_params(config)), folder, dtype=dtype)
  return folder


def load(folder: pathlib.Path, model_class: str = "") -> torch.nn.Module:
  """Loads a folder with transformers, by the class in its config.json."""
  name = model_class or json.loads((folder / "config.json").read_text())["architectures"][0]
  # Missing keys would be random, unexpected ones would be lost.
  model, report = getattr(transformers, name).from_pretrained(
    folder, attn_implementation="eager", dtype="float32", output_loading_info=True
  )
  assert not [name for names in report.values() for name in names], report
  for module in model.modules():
    if isinstance(module, torch.nn.Embedding):
      module.padding_idx = None  # of an export without a vocabulary; torch would not train the row
  return model.eval()


def pair(config: TransformerConfig, folder: pathlib.Path, *, model_class: str = "") -> Pair:
  """Exports a model with random parameters, loads and saves it with transformers, and imports it again.

  Args:
    config: shape of the t2t model.
    folder: output folder.
    model_class: class in transformers, if it is not that of the exported folder.
  """
  theirs = load(exported(config, folder / "ours"), model_class)
  theirs.save_pretrained(folder / "theirs")
  again = huggingface.open_foreign(str(folder / "theirs"))
  assert again.model == config
  params = foreign.random_params(config)
  for path, value in foreign.read(again).items():
    np.testing.assert_array_equal(value, params[path], err_msg=path)
  family, model, _, _ = settings_lib.written_as(config, "")
  assert model == config
  places = huggingface.written(family, config)
  # If a bias is stored twice, transformers reads the copy.
  parameters = dict(theirs.named_parameters(remove_duplicate=False))
  read = {original: copy for copy, original in family.copies.items() if copy in parameters}
  renamed = {read.get(name, name) if name.endswith(".bias") else name: place for name, place in places.items()}
  places = {name: place for name, place in renamed.items() if place.ours}
  return Pair(config, foreign.graphdef(config), foreign.nested(params), theirs, folder / "theirs", places)


def with_roberta_ids(batch: transformer.Batch, padding: int) -> transformer.Batch:
  """Replaces the padding id by an unused one, because RoBERTa counts positions of other ids."""
  tokens = batch["encoder_input_tokens"]
  segments = batch.get("encoder_segment_ids", (tokens > 0).astype(jnp.int32))
  # Then no sequence ends in id 1; t2t uses segment ids.
  moved = jnp.where(segments > 0, jnp.where(tokens == toy.EOS, 2, tokens), padding)
  others = {name: x for name, x in batch.items() if name != "encoder_token_types"}
  return others | {"encoder_segment_ids": segments, "encoder_input_tokens": moved}


def side(batch: transformer.Batch) -> str:
  """Returns the side with targets."""
  return "encoder" if "encoder_target_tokens" in batch else "decoder"


def real(batch: transformer.Batch, which: str | None = None) -> np.ndarray:
  """Returns bool [batch, length], False for padding."""
  return np.asarray(real_positions(batch, which or side(batch)))


def as_torch(x: jax.Array) -> torch.Tensor:
  """Converts integers for torch."""
  return torch.tensor(np.array(x), dtype=torch.long)


def of_both_sides(batch: transformer.Batch) -> dict[str, torch.Tensor]:
  """Returns the arguments of a transformers encoder-decoder."""
  return dict(
    input_ids=as_torch(batch["encoder_input_tokens"]),
    attention_mask=as_torch(batch["encoder_input_tokens"] > 0),
    decoder_input_ids=as_torch(batch["decoder_input_tokens"]),
  )


def inputs(batch: transformer.Batch) -> dict[str, torch.Tensor]:
  """Returns the arguments of a transformers encoder or decoder."""
  features = {"input_ids": as_torch(batch[f"{side(batch)}_input_tokens"]), "attention_mask": as_torch(real(batch))}
  if "encoder_token_types" in batch:
    features["token_type_ids"] = as_torch(batch["encoder_token_types"])
  if "encoder_global_tokens" in batch:
    features["global_attention_mask"] = as_torch(batch["encoder_global_tokens"])
  return features


def assert_same_hidden_states(pair: Pair, batch: transformer.Batch, *, pooled: bool = False) -> None:
  """Compares hidden states without padding, and with `pooled` the pooler's output."""
  hidden = jax.jit(lambda model, batch: model(batch))(pair.model, batch)
  with torch.no_grad():
    expected = pair.theirs.base_model(**inputs(batch))
  at = real(batch)
  theirs = expected.last_hidden_state.numpy()[at]
  # Relative to the largest value, as for logits below.
  np.testing.assert_allclose(np.asarray(hidden)[at], theirs, atol=1e-4 * max(1.0, np.abs(theirs).max()))
  if pooled:
    found = huggingface.open_foreign(str(pair.folder)).pooler
    head = task_heads.AnswerHead(pair.config, HeadConfig("nli", 3), nnx.Rngs(0))
    graphdef, params = toy.split(head)
    head = nnx.merge(graphdef, params | {name: jnp.asarray(tensor.read()) for name, tensor in found.items()})
    np.testing.assert_allclose(head.pooled(hidden[:, 0]), expected.pooler_output.numpy(), atol=1e-4)


def assert_same_logits(pair: Pair, batch: transformer.Batch, inputs: Inputs = inputs) -> None:
  """Compares logits without padding."""
  with torch.no_grad():
    expected = pair.theirs(**inputs(batch))[0].numpy()
  at = real(batch)
  # Relative to the largest logit: on some processors, transformers' float32 and float64 logits differ by 1.2e-4 at 5.
  tolerance = 1e-4 * max(1.0, np.abs(expected[at]).max())
  np.testing.assert_allclose(np.asarray(toy.logits(pair.model, batch))[at], expected[at], atol=tolerance)


def assert_same_loss_and_gradients(pair: Pair, batch: transformer.Batch, inputs: Inputs = inputs) -> None:
  """Compares the mean loss over weighted targets, and the gradient of every parameter."""
  loss_fn = toy.summed_loss(toy.loss_config(z_loss=0.0, logits_chunk_tokens=16))

  def mean_loss(params):
    total, metrics = loss_fn(nnx.merge(pair.graphdef, params), batch, None)
    return total / metrics["loss"].weight

  loss, gradient = jax.jit(jax.value_and_grad(mean_loss))(pair.params)
  labels = as_torch(batch[f"{side(batch)}_target_tokens"])
  labels = labels.masked_fill(as_torch(batch[f"{side(batch)}_loss_weights"]) == 0, -100)
  pair.theirs.zero_grad()
  logits = pair.theirs(**inputs(batch))[0]
  expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
  expected.backward()
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
  assert_same_gradients(pair, gradient)


def assert_same_gradients(pair: Pair, gradient: dict) -> None:
  """Compares all gradients after the backward pass of the transformers model."""
  flat, gradients = toy.flat(gradient), gradients_of(pair.theirs)
  assert pair.places.keys() <= gradients.keys()
  for name in pair.places:
    found, other = pair.as_theirs(name, flat), gradients[name]
    other = np.zeros_like(found) if other is None else other
    # Six layers with QK-norm differ by 1.1e-4 in float32 on some processors.
    np.testing.assert_allclose(found, other, atol=2e-4 * max(1.0, np.abs(other).max()), err_msg=name)


def gradients_of(module: torch.nn.Module) -> dict[str, np.ndarray | None]:
  """Returns gradients by the names of files; Mixtral's experts are one parameter in memory."""
  gradients = {}
  for name, parameter in module.named_parameters(remove_duplicate=False):
    gradient = None if parameter.grad is None else parameter.grad.numpy()
    layer, _, merged = name.partition(".mlp.experts.")
    if merged in ("gate_up_proj", "down_proj"):
      for index, expert in enumerate(gradient):
        parts = {"w2": expert} if merged == "down_proj" else dict(zip(("w1", "w3"), np.split(expert, 2), strict=True))
        for part, value in parts.items():
          gradients[f"{layer}.block_sparse_moe.experts.{index}.{part}.weight"] = value
    gradients[name.replace(".mlp.gate.weight", ".block_sparse_moe.gate.weight")] = gradient
  tables = [f"{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")]
  if "router.classifier" in str(list(gradients)) and not module.config.tie_word_embeddings:
    # Switch's tables are three parameters, which t2t has as one.
    total = sum(gradients[name] for name in tables if gradients[name] is not None)
    gradients |= dict.fromkeys(tables, total)
  return gradients


def ending(pair: Pair, batch: transformer.Batch) -> int:
  """Returns a token that occurs early, late or never in the outputs; as EOS it gives different lengths."""
  texts = foreign.writes(pair.graphdef, pair.params, batch, num_beams=1, eos_id=-1)
  is_token = texts == np.arange(1, pair.config.vocab_size)[:, None, None]
  lengths = np.where(np.any(is_token, axis=-1), np.argmax(is_token, axis=-1) + 1, foreign.MAX_LENGTH)
  return 1 + int(np.argmax([len(set(each)) for each in lengths.tolist()]))


def writes(
  theirs: torch.nn.Module, batch: transformer.Batch, *, num_beams: int, eos_id: int, min_length: int = 0
) -> np.ndarray:
  """Generates with transformers, greedily or by beam search, as `foreign.writes` does: int [batch, max_length]."""
  if "encoder_input_tokens" in batch:
    tokens, prompts = np.asarray(batch["encoder_input_tokens"]), real(batch, "encoder")
    start = 1
  else:
    # transformers pads on the left.
    tokens, prompts = np.asarray(batch["decoder_input_tokens"]), np.asarray(batch["decoder_causal_attention"]) > 0
    order = np.argsort(prompts, axis=1, kind="stable")
    tokens, prompts = (np.take_along_axis(x, order, axis=1) for x in (tokens, prompts))
    start = tokens.shape[1]
  options = dict(length_penalty=foreign.LENGTH_PENALTY, early_stopping="never") if num_beams > 1 else {}
  if "encoder_input_tokens" in batch:
    options["decoder_start_token_id"] = int(batch["decoder_input_tokens"][0, 0])
  written = theirs.generate(
    input_ids=as_torch(tokens * prompts),
    attention_mask=as_torch(prompts),
    max_new_tokens=foreign.MAX_LENGTH,
    min_new_tokens=min_length,
    do_sample=False,
    num_beams=num_beams,
    pad_token_id=0,
    eos_token_id=eos_id,
    **options,
  ).numpy()[:, start:]
  # With beams, transformers fills up with EOS.
  ended = np.cumsum(written == eos_id, axis=1) - (written == eos_id) > 0
  return np.pad(np.where(ended, 0, written), [(0, 0), (0, foreign.MAX_LENGTH - written.shape[1])])


def assert_writes_the_same(pair: Pair, batch: transformer.Batch, *, num_beams: int) -> None:
  """Compares generated tokens, greedy or by beam search; some texts end before the last position, others do not."""
  eos_id = ending(pair, batch)
  found = foreign.writes(pair.graphdef, pair.params, batch, num_beams=num_beams, eos_id=eos_id)
  expected = writes(pair.theirs, batch, num_beams=num_beams, eos_id=eos_id)
  np.testing.assert_array_equal(found, expected)
  lengths = np.sum(expected > 0, axis=1)
  assert np.min(lengths) < np.max(lengths)
