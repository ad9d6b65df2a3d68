"""Runs of several kinds, from distilled to block diffusion: microbatches and the mesh change no loss and gradient.

The programs are those that a config builds. `CASES` has a row for each kind of run.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import json
from typing import NamedTuple

import jax
import numpy as np
import pytest
import test_head_losses
import test_state_collections
import toy

from t2t import sharding
from t2t.configuration import loading
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

ROWS, STEPS = 32, 3
ONE_DEVICE = {"data": 1}
MESHES = {"8": {"data": 8}, "4-2": {"data": 4, "tensor": 2}, "2-2-2": {"data": 2, "fsdp": 2, "tensor": 2}}
# Gradient descent with an update that is the gradient: an adaptive optimizer enlarges rounding where it is nearly zero.
PLAIN = {"optimizer.name": "sgd", "optimizer.learning_rate": 0.05, "optimizer.clip_norm": 0.0, "train.z_loss": 1e-4}
PLAIN |= {"optimizer.weight_decay": 0.0, "train.batch_size": ROWS, "train.log_every": 1, "train.steps": 10}
TERMS = {"hidden_weight": 1.0, "embedding_weight": 1.0, "cosine_weight": 1.0, "attention_weight": 1.0}
TERMS |= {"relation_weight": 1.0, "relations": ("query", "key", "value"), "relation_heads": 2, "dtype": "float32"}
PRUNING = {"pruning.start": 0, "pruning.end": 3, "pruning.every": 1, "pruning.score_rate": 0.3}
MATRICES = "/layers/.*(attention|mlp)/"
CLASSES = (HeadConfig("topic", 3), HeadConfig("likeness", 1, "score"))


def texts(architecture: str) -> dict[str, np.ndarray]:
  """Returns rows with one token to all tokens, and with unequal numbers of targets."""
  random = np.random.default_rng(0)
  lengths = lambda most: tuple(int(x) for x in random.integers(1, most + 1, ROWS))
  batch = toy.batch(lengths(8), lengths(6), padded_to=(8, 6), architecture=architecture)
  return {name: np.asarray(x) for name, x in batch.items()}


def answers() -> dict[str, np.ndarray]:
  """Returns rows with one example of any kind of head each."""
  batch = test_head_losses.asked("encoder_only", number=5)[0]
  return {name: np.asarray(x)[:ROWS] for name, x in batch.items()}


def noisy() -> dict[str, np.ndarray]:
  """Returns rows of one to all tokens with a noise level each, of which about half are masked."""
  random, batch = np.random.default_rng(1), texts("encoder_only")
  real = batch["encoder_input_tokens"] > 0
  masked = (random.random(real.shape) < 0.5) & real
  levels = np.where(real, random.integers(1, 2**20, (ROWS, 1)), 0).astype(np.int32)
  inputs = np.where(masked, 39, batch["encoder_input_tokens"])
  features = {"target_tokens": batch["encoder_input_tokens"], "noise_levels": levels, "input_tokens": inputs}
  return batch | {f"encoder_{name}": x for name, x in (features | {"loss_weights": masked.astype(np.float32)}).items()}


def neighbours() -> dict[str, np.ndarray]:
  """Returns rows of two texts, and some of one text."""
  tokens = texts("encoder_only")["encoder_input_tokens"]
  segments = (tokens > 0) * (1 + (np.arange(8) >= np.arange(ROWS)[:, None] % 5))
  return {"encoder_input_tokens": tokens, "encoder_segment_ids": segments.astype(np.int32)}


class Case(NamedTuple):
  """A kind of run.

  Attributes:
    kind: its model, of `toy.KINDS`.
    changes: keys of the config.
    teacher: fields of the teacher that differ from the student; None: no teacher.
    batch: returns the rows of all steps.
    heads: heads of the model.
    close: fraction of each parameter whose update is equal; below 1 where rounding changes a rank or an integer.
  """

  kind: str
  changes: Mapping[str, object] = {}
  teacher: Mapping[str, object] | None = None
  batch: Callable[[], Mapping[str, np.ndarray]] | None = None
  heads: tuple[HeadConfig, ...] = ()
  close: float = 1.0


def distilled(kind: str, *, heads: tuple[HeadConfig, ...] = (), **terms: object) -> Case:
  """Returns a run with a wider and deeper teacher, with all terms."""
  settings = {"distillation.teacher": ("teacher",)} | {f"distillation.{key}": x for key, x in (TERMS | terms).items()}
  deeper = {f"num_{side}_layers": 4 for side in toy.KINDS[kind].kind.sides}
  return Case(kind, settings, {"embed_dim": 24} | deeper, answers if heads else None, heads)


def pruned(rule: str, **pruning: float) -> Case:
  keys = {f"pruning.{key}": x for key, x in pruning.items()}
  # Other orders of sums change ranks of weights that are nearly equal.
  return Case("t5_1_1", PRUNING | {"optimizer.param_groups": (f"{MATRICES}: {rule}",)} | keys, close=0.99)


CASES = {
  "masked_lm": distilled("bert", layers=("uniform",)),
  "heads": distilled("bert", heads=test_head_losses.HEADS[:5], layers=("last",)),
  "encoder_decoder": distilled("t5_1_1", layers=("last",), soft_positions="all"),
  "moments": distilled(
    "bert",
    layers=("final",),
    attention_loss="kl",
    hidden_loss="normalized",
    mean_weight=1.0,
    variance_weight=1.0,
  ),
  "magnitude": pruned("magnitude=0.75"),
  "movement": pruned("movement=0.75"),
  "soft_movement": pruned("soft_movement=0.4", penalty=10.0),
  "int8": Case("bert", {"model.fake_quantization": "int8", "optimizer.range_decay": 0.5}, close=0.9),
  "exits": Case("bert", {"model.exits": True, "train.loss": "early_exit"}, batch=answers, heads=CLASSES),
  "exits_modern": Case("modern_bert", {"model.exits": True, "train.loss": "early_exit"}, batch=answers, heads=CLASSES),
  "block_diffusion": Case("mosaic_bert", {"model.block_length": 3, "train.loss": "diffusion"}, batch=noisy),
  "characters": Case(
    "bilstm",
    {"train.loss": "bilm", "model.embedding": "characters_both_directions", "model.embedding_dim": 8}
    | {"model.character_cnn": "tiny", "model.tied_logits": False, "model.logits_transform": False},
  ),
  "attentional": Case("luong"),
  "skip_thought": Case("gru_seq2seq", {"train.loss": "skip_thought"}, batch=neighbours),
  "exits_albert": Case("albert", {"model.exits": True, "train.loss": "early_exit"}, batch=answers, heads=CLASSES),
}


def run_of(case: Case, microbatches: int):
  """Returns the records of a run, whose teacher has been read."""
  # Mixtures name the heads of a run; these are given.
  changes = {key: x for key, x in case.changes.items() if not key.startswith("model.")}
  if case.heads:
    changes = {"train.loss": "heads"} | changes
  config = test_state_collections.config(**PLAIN | changes | {"train.microbatches": microbatches})
  fields = {key.partition(".")[2]: x for key, x in case.changes.items() if key.startswith("model.")}
  model = dataclasses.replace(toy.KINDS[case.kind], heads=case.heads, dropout_rate=0.0, **fields)
  run = dataclasses.replace(loading.records(config), model=model).with_(data={"inputs_length": 8, "targets_length": 6})
  if case.teacher is None:
    return run
  teacher: TransformerConfig = dataclasses.replace(model, **case.teacher)
  settings = dataclasses.replace(run.distillation, models=(json.dumps(dataclasses.asdict(teacher)),))
  return run.with_section("distillation", settings)


@functools.cache
def trained(name: str, mesh_shape: tuple[tuple[str, int], ...], microbatches: int = 1):
  """Returns metrics, updates and collections of each step."""
  shape, case = dict(mesh_shape), CASES[name]
  mesh = sharding.make_mesh(shape, devices=jax.devices()[:1] if shape == ONE_DEVICE else None)
  host = lambda tree: {path: np.asarray(x) for path, x in toy.flat(jax.device_get(tree)).items()}
  history = []
  with jax.set_mesh(mesh):
    program = recipe.make(run_of(case, microbatches)).build(mesh)
    state = program.init()(toy.key())
    rows = case.batch() if case.batch else texts(toy.KINDS[case.kind].architecture)
    batch = jax.device_put(rows, sharding.batch_sharding(mesh))
    before, frozen = host(state.params), host(state.frozen_params)
    for _ in range(STEPS):
      state, metrics = program.train_step(state, batch, toy.key())
      after = host(state.params)
      values = {key: float(x.value()) for key, x in metrics.items() if key != "grad_squares"}
      updates = {path: x - before[path] for path, x in after.items()}
      history.append((values, updates, host(state.collections)))
      before = after
    for path, x in host(state.frozen_params).items():
      np.testing.assert_array_equal(x, frozen[path])
  return history


def assert_same_training(name: str, mesh_shape: Mapping[str, int], microbatches: int) -> None:
  """Compares metrics, the update of every parameter, and collections of each step with one device's."""
  close = CASES[name].close
  expected, found = trained(name, tuple(ONE_DEVICE.items())), trained(name, tuple(mesh_shape.items()), microbatches)
  for step, (one, other) in enumerate(zip(expected, found, strict=True)):
    assert other[0] == pytest.approx(one[0], rel=1e-4 if close == 1.0 else 2e-2, abs=1e-5), step
    for mine, its in zip(one[1:], other[1:], strict=True):
      assert mine.keys() == its.keys()
      for path, x in mine.items():
        largest = np.max(np.abs(x.astype(np.float32)), initial=0.0)
        is_equal = np.isclose(its[path], x, rtol=1e-3, atol=1e-3 * largest + 1e-7)
        assert np.mean(is_equal) >= close, (step, path, np.mean(is_equal))


@pytest.mark.exhaustive
@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_microbatches_change_nothing(name, microbatches):
  """Terms have the denominators of the whole batch; scores, masks and ranges are those of the whole batch."""
  assert_same_training(name, ONE_DEVICE, microbatches)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CASES)
def test_the_mesh_changes_nothing(name, mesh):
  assert_same_training(name, MESHES[mesh], 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_each_case_does_what_it_names(name):
  """Every trained parameter has an update, and every step finite values; a frozen teacher and its terms exist."""
  history, has_teacher = trained(name, tuple(ONE_DEVICE.items())), CASES[name].teacher is not None
  for path, x in history[0][1].items():
    assert np.any(x) or path == "student/heads/cause/projection_bias", path  # the same for all candidates
    assert not path.startswith("teacher")
  for values, _, collections in history:
    assert np.isfinite(list(values.values())).all(), values
    assert bool(collections) == (CASES[name].close < 1.0)  # masks, scores and ranges
  terms = " ".join(history[0][0])
  assert all((term in terms) == has_teacher for term in ("soft_targets", "hidden_states", "relations", "cosine"))
