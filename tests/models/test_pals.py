"""Projected attention layers of several tasks: their outputs, and the separation of tasks."""

import dataclasses

from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import sharding
from t2t.models import adapters as adapters_lib
from t2t.models.adapters import pals
from t2t.models.masks import AttentionMask

pytestmark = pytest.mark.slow

TASKS = ("reviews", "questions", "titles")
CONFIG = pals.PalsConfig(tasks=TASKS, size=6, heads=2)
KINDS = ("t5_1_1", "local_prefix_lm", "gpt2", "bert", "shared_everything", "albert", "t5gemma")


def with_pals(kind, **fields):
  """Returns a model with PALs of three tasks and random values, as after training."""
  model = adapters_lib.adapt(
    toy.model(dataclasses.replace(toy.KINDS[kind], **fields)), {"pals": CONFIG}, nnx.Rngs(toy.key(1))
  )
  graphdef, params = toy.split(model)
  random = np.random.default_rng(0)
  moved = lambda path, x: random.normal(size=x.shape).astype(np.float32) / 3 if "/pals/" in path else x
  flat = {path: moved(path, x) for path, x in traverse_util.flatten_dict(params, sep="/").items()}
  return nnx.merge(graphdef, jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(flat, sep="/")))


def told(model, batch, tasks):
  """Returns the batch with the task of each row, or of each position."""
  tasks = np.asarray(tasks, np.int32)
  return batch | {f"{side}_tasks": jnp.asarray(tasks[:, None]) for side in model.architecture.sides}


def alone(model, task):
  """Returns the model for one task, which takes no task ids."""
  graphdef, params = toy.split(model)
  return nnx.merge(graphdef, adapters_lib.of_task(params, {"pals": CONFIG}, task))


# ---- What they compute -----------------------------------------------------------------------------------------------


def reference(x, task, layer, found, *, causal):
  """Computes V^D MultiHead(V^E h) of one text, [length, embed], head by head, in float64."""
  encode, decode = found.encode[...][task], found.decode[...][task]
  matrices = [np.asarray(getattr(found, name)[...][layer, task], np.float64) for name in ("query", "key", "value")]
  hidden = np.asarray(x, np.float64) @ np.asarray(encode, np.float64)
  query, key, value = (hidden @ matrix for matrix in matrices)
  heads = []
  for head in range(CONFIG.heads):
    own = slice(head * 3, (head + 1) * 3)
    logits = query[:, own] @ key[:, own].T / np.sqrt(3)
    if causal:
      logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    heads.append(weights / weights.sum(axis=1, keepdims=True) @ value[:, own])
  return np.concatenate(heads, axis=1) @ np.asarray(decode, np.float64)


def layer_of(model, side, number):
  """Returns one layer of a stack."""
  return jax.tree.map(lambda x: x[number], getattr(model, side).layers)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "side"), [("bert", "encoder"), ("gpt2", "decoder")])
def test_they_are_the_papers_formula(kind, side):
  """LN(x + FFN(x) + PAL(h)) for BERT's post-norm, and x + FFN(norm(x)) + PAL(norm(h)) for GPT-2's pre-norm."""
  model = with_pals(kind)
  stack, config = getattr(model, side), model.config
  lengths, tasks = (7, 4), (2, 0)
  x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 7, config.embed_dim)).astype(np.float32))
  segments = jnp.asarray(np.arange(7) < np.array(lengths)[:, None]).astype(jnp.int32)
  mask = AttentionMask(segments, segments, causal=side == "decoder")
  states, *_ = stack(x, mask=mask, tasks=jnp.array(tasks)[:, None], every_layer=True)
  for number in range(stack.num_layers - (stack.norm is not None)):  # the last one has an additional norm
    layer, h = layer_of(model, side, number), states[number]
    read = h if config.post_norm else layer.self_attention_norm(h)
    own = layer.self_attention.keys_and_values(read)
    middle = h + layer.self_attention(read, *own, mask=mask)
    middle = layer.self_attention_norm(middle) if config.post_norm else middle
    plain = middle + layer.mlp(middle if config.post_norm else layer.mlp_norm(middle))
    for row, (length, task) in enumerate(zip(lengths, tasks, strict=True)):
      added = reference(read[row, :length], task, number, stack.pals, causal=side == "decoder")
      assert np.abs(added).max() > 0.1
      expected = jnp.asarray(np.asarray(plain[row, :length]) + added, jnp.float32)
      expected = layer.mlp_norm(expected) if config.post_norm else expected
      np.testing.assert_allclose(states[number + 1, row, :length], expected, atol=1e-4)


def test_they_are_as_many_as_the_papers():
  """Eight tasks are 1.13 times BERT base (Stickland & Murray 2019, table 1)."""
  size, embed, layers = 204, 768, 12
  config = pals.PalsConfig(tasks=tuple("abcdefgh"))
  stack = jax.eval_shape(lambda: pals.Pals(embed, config, nnx.Rngs(0), num_layers=layers))
  number = sum(x.size for x in jax.tree.leaves(toy.split(stack)[1]))
  assert number == 8 * (2 * embed * size + layers * 3 * size**2)
  assert round(1 + number / 110e6, 2) == 1.13


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_of_its_task(kind):
  """Rows of several tasks in a batch equal the rows of single-task models."""
  model = with_pals(kind)
  batch = toy.batch((7, 4, 6), (3, 5, 4), architecture=model.config.architecture)
  found = toy.logits(model, told(model, batch, (2, 0, 1)))
  each = [toy.logits(alone(model, task), batch) for task in range(3)]
  for row, task in enumerate((2, 0, 1)):
    np.testing.assert_allclose(found[row], each[task][row], atol=1e-5)
    assert np.abs(each[task][row] - each[(task + 1) % 3][row]).max() > 1e-2


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_are_as_rows_by_themselves(kind):
  """Texts of different tasks in one row do not attend to each other, and each uses its own small attention."""
  model = with_pals(kind)
  architecture = model.config.architecture
  inputs, targets, tasks = (7, 4, 5), (3, 5, 2), (1, 0, 2)
  batch = toy.batch(inputs, targets, padded_to=(7, 5), architecture=architecture)
  expected = toy.logits(model, told(model, batch, tasks))
  side = model.architecture.predicts
  lengths = {
    "encoder": inputs,
    "decoder": targets if len(model.architecture.sides) == 2 else [a + b for a, b in zip(inputs, targets, strict=True)],
  }
  packed = {}
  for name, x in batch.items():
    own = lengths[name.partition("_")[0]]
    packed[name] = jnp.concatenate([x[row, :length] for row, length in enumerate(own)])[None]
  for each in model.architecture.sides:
    own = np.array(lengths[each])
    packed[f"{each}_segment_ids"] = jnp.asarray(np.repeat([1, 2, 3], own)[None].astype(np.int32))
    packed[f"{each}_positions"] = jnp.asarray(np.concatenate([np.arange(n) for n in own])[None].astype(np.int32))
    packed[f"{each}_tasks"] = jnp.asarray(np.repeat(tasks, own)[None].astype(np.int32))
  found = toy.logits(model, packed)[0]
  start = 0
  for row, length in enumerate(lengths[side]):
    np.testing.assert_allclose(found[start : start + length], expected[row, :length], atol=1e-4)
    start += length


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_beams", [1, 2])
@pytest.mark.parametrize("kind", ["t5_1_1", "local_prefix_lm", "shared_everything"])
def test_cached_decode_equals_teacher_forcing(kind, num_beams):
  """Rows of different tasks, token by token."""
  model = with_pals(kind)
  inputs, lengths, rows = np.array([2, 6]), (3, 5), np.arange(2)
  batch = toy.batch(inputs, lengths, padded_to=(6, 5), architecture=model.config.architecture)
  batch = told(model, batch, (2, 1))
  logits, targets = toy.logits(model, batch), batch["decoder_target_tokens"]
  starts = inputs if len(model.architecture.sides) == 1 else np.zeros(2, int)

  @jax.jit
  def decode(model, batch, written):
    token, state = model.start_decode(batch, 6, num_beams=num_beams)
    state, found = model.ready(state), []
    beams = lambda x: x if num_beams == 1 else jnp.broadcast_to(x[:, None], (2, num_beams))
    for column in written:
      logits, state = model.decode_step(beams(token), state)
      found.append(logits if num_beams == 1 else logits[:, -1])
      token = column
    return found

  written = [targets[rows, starts + step] for step in range(min(lengths))]
  for step, found in enumerate(decode(model, batch, written)):
    np.testing.assert_allclose(found, logits[rows, starts + step], atol=1e-4, err_msg=f"step {step}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("packed", [False, True])
def test_a_task_learns_nothing_of_another(packed):
  """Rows of one task have gradients at all of its matrices, and none at others'."""
  model = with_pals("t5_1_1")
  batch = told(model, toy.batch(), (1, 1))
  if packed:
    wide = lambda side: jnp.broadcast_to(batch[f"{side}_tasks"], batch[f"{side}_input_tokens"].shape)
    batch |= {f"{side}_tasks": wide(side) for side in model.architecture.sides}
  loss = toy.summed_loss()
  gradient = jax.jit(jax.grad(lambda model: loss(model, batch, None)[0]))(model)
  for path, x in toy.flat(toy.split(gradient)[1]).items():
    if "/pals/" in path:
      of_task = np.abs(np.moveaxis(x, -3, 0)).reshape(3, -1)
      assert not of_task[[0, 2]].any() and (of_task[1] > 0).mean() > 0.9, path


def test_several_tasks_must_be_told():
  """A row without a task id is not of the first task."""
  model = with_pals("bert")
  with pytest.raises(ValueError, match="3 tasks, but the batch has no feature with task ids"):
    model(toy.batch(architecture="encoder_only"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("packed", [False, True])
def test_any_mesh_computes_the_same(packed):
  """Rows, positions, features and heads split over eight devices: loss and gradients, with full recomputation."""
  model = with_pals("t5_1_1", remat="full")
  batch = told(model, toy.batch((7, 4) * 4, (3, 5) * 4), (2, 0, 1, 1, 0, 2, 1, 0))
  if packed:
    wide = lambda side: jnp.broadcast_to(batch[f"{side}_tasks"], batch[f"{side}_input_tokens"].shape)
    batch |= {f"{side}_tasks": wide(side) for side in model.architecture.sides}
  loss = toy.summed_loss()
  learn = lambda: jax.jit(jax.value_and_grad(lambda model: loss(model, batch, None)[0]))(model)
  expected, gradient = learn()
  with jax.set_mesh(sharding.make_mesh({"fsdp": 2, "sequence": 2, "tensor": 2})):
    found, split = learn()
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  toy.assert_trees_close(toy.flat(toy.split(split)[1]), toy.flat(toy.split(gradient)[1]), atol=1e-3)
