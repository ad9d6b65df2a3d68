"""What the comparisons share: another implementation with our parameters, and how its numbers are set against ours.

A family is a table: the other side's name of a parameter -> ours, or several of ours where they are one matrix there.
`{}` stands for the number of a layer.
"""

from collections.abc import Callable, Mapping
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import losses
from t2t.models import transformer
from t2t.models.config import TransformerConfig

torch = pytest.importorskip("torch", reason="needs torch: pip install -r tests/parity/requirements.txt")
transformers = pytest.importorskip("transformers", reason="needs transformers: tests/parity/requirements.txt")

Names = Mapping[str, str | tuple[str, ...]]
Inputs = Callable[[transformer.Batch], dict[str, torch.Tensor]]  # what their model is called with
# One of theirs -> all of ours that it consists of, and which layer's.
_Places = dict[str, tuple[tuple[str, ...], int | None]]


@dataclasses.dataclass(frozen=True)
class Pair:
  """Our model and theirs, with the same parameters.

  transposed: whether their matrices are [out, in], as torch's are; ours are [in, out].
  """

  config: TransformerConfig
  graphdef: nnx.GraphDef
  params: dict
  theirs: torch.nn.Module
  places: _Places
  transposed: bool

  @property
  def model(self) -> nnx.Module:
    """Ours."""
    return nnx.merge(self.graphdef, self.params)

  def as_theirs(self, name: str, params: dict[str, np.ndarray]) -> np.ndarray:
    """Their parameter `name`, or the gradient of it, from all of ours."""
    ours, layer = self.places[name]
    joined = np.concatenate([params[path] if layer is None else params[path][layer] for path in ours], axis=-1)
    is_table = ours[0] in ("embed/table", "embed/positions", "embed/segments") or ours[0].endswith("bias/table")
    return joined.T if self.transposed and joined.ndim == 2 and not is_table else joined


def _places(names: Names, config: TransformerConfig, absent: tuple[str, ...]) -> _Places:
  found = {}
  for theirs, ours in names.items():
    ours = (ours,) if isinstance(ours, str) else ours
    stack = ours[0].split("/")[0]
    layers = range(getattr(config, f"num_{stack}_layers")) if "{}" in theirs else [None]
    for layer in layers:
      found[theirs.format(layer)] = (ours, layer)
  return {name: place for name, place in found.items() if name not in absent}


def pair(
  config: TransformerConfig,
  theirs: torch.nn.Module,
  names: Names,
  *,
  transposed: bool = True,
  absent: tuple[str, ...] = (),
  unread: tuple[str, ...] = (),
) -> Pair:
  """Our model with random parameters, no two alike, and theirs with the same.

  Args:
    config: shape of ours.
    theirs: of the same shape.
    names: their names -> ours.
    transposed: whether their matrices are [out, in].
    absent: names that `names` has for a layer, but their model has not.
    unread: parameters of theirs that neither hidden states nor logits depend on.
  """
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(0)
  # Norms start as ones and biases as zeros, which would hide where they are applied.
  params = jax.tree.map(lambda x: x + jnp.asarray(0.2 * random.normal(size=x.shape), jnp.float32), params)
  made = Pair(config, graphdef, params, theirs.eval(), _places(names, config, absent), transposed)
  flat, parameters = _flat(params), dict(theirs.named_parameters())
  assert set(made.places) == set(parameters) - set(unread)
  assert {path for paths, _ in made.places.values() for path in paths} == set(flat)
  with torch.no_grad():
    for name in made.places:
      value = torch.tensor(made.as_theirs(name, flat))
      assert value.shape == parameters[name].shape, name
      parameters[name].copy_(value)
  return made


def _flat(params: dict) -> dict[str, np.ndarray]:
  return {path: np.asarray(x) for path, x in toy.flat(params).items()}


def side(batch: transformer.Batch) -> str:
  """Whose targets a batch has."""
  return "encoder" if "encoder_target_tokens" in batch else "decoder"


def real(batch: transformer.Batch, which: str | None = None) -> np.ndarray:
  """bool [batch, length], false for padding."""
  which = which or side(batch)
  tokens = f"{which}_input_tokens" if which == "encoder" else f"{which}_target_tokens"
  return np.asarray(batch.get(f"{which}_segment_ids", batch[tokens])) > 0


def as_torch(x: jax.Array) -> torch.Tensor:
  """Whole numbers as torch wants them."""
  return torch.tensor(np.array(x), dtype=torch.long)


def inputs(batch: transformer.Batch) -> dict[str, torch.Tensor]:
  """What their models of one stack are called with."""
  features = {"input_ids": as_torch(batch[f"{side(batch)}_input_tokens"]), "attention_mask": as_torch(real(batch))}
  if "encoder_token_types" in batch:
    features["token_type_ids"] = as_torch(batch["encoder_token_types"])
  return features


def assert_same_hidden_states(pair: Pair, batch: transformer.Batch, *, pooled: bool = False) -> None:
  """Of all positions that are not padding; and what the pooler makes of the first."""
  hidden = jax.jit(lambda model, batch: model(batch))(pair.model, batch)
  with torch.no_grad():
    expected = pair.theirs.base_model(**inputs(batch))
  at = real(batch)
  np.testing.assert_allclose(np.asarray(hidden)[at], expected.last_hidden_state.numpy()[at], atol=1e-4)
  if pooled:
    np.testing.assert_allclose(pair.model.pooled(hidden), expected.pooler_output.numpy(), atol=1e-4)


def assert_same_logits(pair: Pair, batch: transformer.Batch, inputs: Inputs = inputs) -> None:
  """Of all positions that are not padding."""
  with torch.no_grad():
    expected = pair.theirs(**inputs(batch))[0].numpy()
  at = real(batch)
  np.testing.assert_allclose(np.asarray(toy.logits(pair.model, batch))[at], expected[at], atol=1e-4)


def assert_same_loss_and_gradients(pair: Pair, batch: transformer.Batch, inputs: Inputs = inputs) -> None:
  """The mean loss over the targets that count, and the gradient of every parameter."""
  loss_fn = losses.make_loss_fn(toy.loss_config(z_loss=0.0, chunk_tokens=16))

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
  flat, parameters = _flat(gradient), dict(pair.theirs.named_parameters())
  for name in pair.places:
    found, other = pair.as_theirs(name, flat), parameters[name].grad
    other = np.zeros_like(found) if other is None else other.numpy()
    np.testing.assert_allclose(found, other, atol=1e-4 * max(1.0, np.abs(other).max()), err_msg=name)
