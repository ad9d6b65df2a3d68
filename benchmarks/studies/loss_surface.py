"""Loss surface and trajectory of fine-tuning, from a pre-trained encoder and from scratch."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import json
from typing import Any

from etils import epath
import numpy as np

from t2t.reports import seed_scores
from t2t.studies import claims, figures, results, suite
from t2t.studies.definition import HIGHER, LOWER, ActionStage, Arm, Column, Curve, Folders, Scale, Setting, Study
from t2t.studies.results import StudyRow

_POINTS = 15  # of each axis of a plane
_BATCHES = 8  # of training examples, the same for all points
_RADIUS = 0.5  # of the disc over which the rise of the loss is averaged
_SAVES = 20  # checkpoints of a trajectory
_SURFACE, _PLANE, _RANGE, _PATH = "surface", "plane", "plane range", "path"

Arrays = dict[str, np.ndarray]  # path of a parameter -> values


def _task(setting: Setting) -> str:
  return "docs_order" if suite.is_docs(setting) else "glue_mrpc"


def arms(setting: Setting) -> list[Arm]:
  """Returns fine-tuning from a pre-trained encoder and from scratch, each with its surface."""
  text = suite.text_stages(setting)
  pretrain = dataclasses.replace(suite.encoder(setting), seed=0)
  steps = setting.sized(toy=400, small=4_000, base=4_000)
  keys = {
    "data.mixture": _task(setting),
    "train.steps": steps,
    "eval.every": steps,
    "checkpoint.save_interval_steps": steps // _SAVES,
    "checkpoint.max_to_keep": 2 * _SAVES,
  }
  if suite.is_docs(setting):
    keys["data.inputs_length"] = 64  # a third of the time
  surface = ActionStage("surface", _measure, reads=("finetune",))
  return [
    Arm(
      name,
      [*text, pretrain, suite.finetuning(setting, suite.ENCODER, start="pretrain", keys={**keys, **more}), surface],
    )
    for name, more in (("pre-trained", {}), ("from scratch", {"init.parameters": False}))
  ]


# ---- Measurement -----------------------------------------------------------------------------------------------------


def _measure(workdir: epath.Path, workdirs: Folders, seed: int) -> None:
  """Writes the training loss on two planes through the last checkpoint, and the trajectory on the second plane.

  The first plane has two random directions, normalized by filter (Li et al. 2018, section 4). The second one has the
  first two principal components of the checkpoints (section 7).
  """
  from t2t.checkpoints import manager, pretrained, verify
  from t2t.configuration.loading import records
  from t2t.param_tree import flatten
  from t2t.training import estimate_fisher

  run = workdirs["finetune"]
  source = pretrained.read_source(str(run))
  with estimate_fisher.reading(records(estimate_fisher.run_config(source, [])), source) as read:
    steps = verify.steps(run / manager.CHECKPOINTS)
    checkpoints = {step: _arrays(pretrained, run / manager.CHECKPOINTS / str(step), read.model) for step in steps}
    end: Arrays = {path: np.asarray(x, np.float64) for path, x in flatten(read.model.params).items()}
    loss_at = _loss(read, end)
  axes = [filter_normalized(end, np.random.default_rng([seed, number])) for number in range(2)]
  line = np.linspace(-1.0, 1.0, _POINTS)
  surface = [loss_at(axes, x, y) for y in line for x in line]
  components, path = principal_plane(list(checkpoints.values()), end)
  low, high = path.min(axis=0), path.max(axis=0)
  margin = 0.25 * np.maximum(high - low, 0.1 * (high - low).max() + 1e-9)
  xs, ys = (np.linspace(low[i] - margin[i], high[i] + margin[i], _POINTS) for i in range(2))
  plane = [loss_at(components, x, y) for y in ys for x in xs]
  along = list(checkpoints.values())
  length = sum(_distance(first, second) for first, second in itertools.pairwise(along))
  record = {
    "loss": loss_at(axes, 0.0, 0.0),
    _SURFACE: surface,
    _PLANE: plane,
    _RANGE: [float(x) for x in (xs[0], xs[-1], ys[0], ys[-1])],
    _PATH: {step: list(map(float, point)) for step, point in zip(checkpoints, path, strict=True)},
    "directness": _distance(along[0], along[-1]) / length if length else None,
  }
  (workdir / "surface.json").write_text(json.dumps(record))


def _arrays(pretrained: Any, checkpoint: epath.Path, model: Any) -> Arrays:
  """Returns the parameters of a checkpoint of a run, by path."""
  import jax

  from t2t.param_tree import flatten

  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), model.params)
  params = pretrained.load_params(pretrained.read_source(str(checkpoint)), shapes)
  return {path: np.asarray(x, np.float64) for path, x in flatten(params).items()}


def _loss(read: Any, center: Arrays) -> Callable[[Sequence[Arrays], float, float], float]:
  """Returns (two directions, x, y) -> training loss at the center + x times the first + y times the second."""
  from flax import nnx
  import jax
  import jax.numpy as jnp

  from t2t.param_tree import unflatten

  batches = [batch for _, batch in zip(range(_BATCHES), read.batches)]  # noqa: B905
  stacked = {name: jnp.stack([jnp.asarray(batch[name]) for batch in batches]) for name in batches[0]}

  def of_batch(params: Any, batch: Any) -> jax.Array:
    weights = read.loss.weights(batch)
    terms, _ = read.loss(nnx.merge(read.model.graphdef, params), batch, weights, key=None, train=False)
    return sum(terms.values())

  @jax.jit
  def mean(params: Any) -> jax.Array:  # batches have equal numbers of examples
    return jnp.mean(jax.lax.map(lambda batch: of_batch(params, batch), stacked))

  mesh = jax.sharding.get_mesh()

  def loss_at(directions: Sequence[Arrays], x: float, y: float) -> float:
    moved = {path: center[path] + x * directions[0][path] + y * directions[1][path] for path in center}
    with jax.set_mesh(mesh):
      return float(mean(unflatten({path: jnp.asarray(value, jnp.float32) for path, value in moved.items()})))

  return loss_at


def filter_normalized(center: Arrays, random: np.random.Generator) -> Arrays:
  """Returns a Gaussian direction in which each filter has the norm of the center's; vectors and scalars stay 0.

  A filter is the weights of one output of a matrix, and a token's row of an embedding.

  Source: Li et al. 2018, Visualizing the Loss Landscape of Neural Nets, section 4.
  """
  direction = {}
  for path, values in center.items():
    stacked = "layers/" in path  # a leading axis of layers
    if values.ndim - stacked < 2:
      direction[path] = np.zeros_like(values)
      continue
    axis = -1 if path.startswith("embed") else int(stacked)
    noise = random.standard_normal(values.shape)
    norm = lambda x, axis=axis: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=True))
    direction[path] = noise * norm(values) / (norm(noise) + 1e-10)
  return direction


def principal_plane(checkpoints: Sequence[Arrays], end: Arrays) -> tuple[list[Arrays], np.ndarray]:
  """Returns two orthonormal directions that contain most of a trajectory, and its coordinates, [checkpoints, 2].

  Args:
    checkpoints: in the order of training.
    end: origin of the coordinates.

  Source: Li et al. 2018, section 7.2.
  """
  flat = np.stack([np.concatenate([(x[path] - end[path]).ravel() for path in end]) for x in checkpoints])
  _, _, right = np.linalg.svd(flat, full_matrices=False)
  basis = np.zeros((2, flat.shape[1]))
  basis[: min(2, len(right))] = right[:2]  # fewer than two checkpoints have fewer directions
  directions: list[Arrays] = []
  for vector in basis:
    parts, begin = {}, 0
    for path, values in end.items():
      parts[path] = vector[begin : begin + values.size].reshape(values.shape)
      begin += values.size
    directions.append(parts)
  return directions, flat @ basis.T


def _distance(first: Arrays, second: Arrays) -> float:
  return float(np.sqrt(sum(np.sum(np.square(first[path] - second[path])) for path in first)))


# ---- Columns and picture ---------------------------------------------------------------------------------------------


def _record(folders: Folders) -> dict[str, Any]:
  return json.loads((folders["surface"] / "surface.json").read_text())


def _rise(folders: Folders) -> float:
  """Returns the mean loss over the disc of `_RADIUS` on the first plane, minus the loss of its center."""
  record = _record(folders)
  line = np.linspace(-1.0, 1.0, _POINTS)
  inside = line[:, None] ** 2 + line[None, :] ** 2 <= _RADIUS**2
  return float(np.array(record[_SURFACE]).reshape(_POINTS, _POINTS)[inside].mean()) - record["loss"]


def columns(setting: Setting) -> list[Column]:
  """Returns the rise of the training loss, the loss, the held-out accuracy, and the directness of the trajectory."""
  return [
    Column("rise", _rise, LOWER),
    Column("training loss", lambda folders: _record(folders)["loss"], LOWER),
    Column("accuracy", figures.metric("finetune", f"eval/{_task(setting)}/accuracy"), HIGHER),
    Column("directness", lambda folders: _record(folders)["directness"], HIGHER),
  ]


def curves(setting: Setting) -> list[Curve]:
  """Returns the planes by number of the point, row by row, and the trajectory by step, for `draw`."""
  del setting
  numbered: Callable[[str], Callable[[Folders], Mapping[int, float]]]
  numbered = lambda name: lambda folders: dict(enumerate(_record(folders)[name]))
  along = lambda axis: lambda folders: {int(step): point[axis] for step, point in _record(folders)[_PATH].items()}
  planes = [Curve(name, numbered(name), "point") for name in (_SURFACE, _PLANE, _RANGE)]
  return [*planes, Curve(f"{_PATH} x", along(0)), Curve(f"{_PATH} y", along(1))]


def draw(rows: Sequence[StudyRow], column_names: Sequence[str]) -> bytes:
  """Returns a PNG: for each arm the surface around the end, and the trajectory on its principal plane; first seed."""
  del column_names
  import matplotlib.figure

  first = {arm: next(row for row in rows if row.arm == arm) for arm in results.arms(rows)}
  drawn = {arm: row for arm, row in first.items() if row.curves.get(_SURFACE)}
  figure = matplotlib.figure.Figure(figsize=(8.2, 0.4 + 3.6 * max(1, len(drawn))), dpi=110, layout="constrained")
  axes: Any = figure.subplots(max(1, len(drawn)), 2, squeeze=False)
  grids = {arm: [_grid(row.curves[name]) for name in (_SURFACE, _PLANE)] for arm, row in drawn.items()}
  levels = np.linspace(0.0, max([1.0, *(np.quantile(x, 0.9) for pair in grids.values() for x in pair)]), 15)
  for (left, right), (arm, row) in zip(axes, drawn.items(), strict=False):
    line = np.linspace(-1.0, 1.0, _POINTS)
    filled = left.contourf(line, line, grids[arm][0], levels=levels, cmap="viridis", extend="both")
    left.plot([0.0], [0.0], marker="+", color="white")
    left.set_title(f"{arm}: two random directions, filter-normalized", fontsize=8)
    x_low, x_high, y_low, y_high = (row.curves[_RANGE][number] for number in range(4))
    xs, ys = np.linspace(x_low, x_high, _POINTS), np.linspace(y_low, y_high, _POINTS)
    right.contourf(xs, ys, grids[arm][1], levels=levels, cmap="viridis", extend="both")
    steps = sorted(row.curves[f"{_PATH} x"])
    points = [[row.curves[f"{_PATH} {axis}"][step] for step in steps] for axis in "xy"]
    right.plot(*points, color="white", linewidth=1.0, marker="o", markersize=2.5)
    right.set_title(f"{arm}: checkpoints from step {steps[0]} to {steps[-1]}", fontsize=8)
    right.set_xlabel("first principal component", fontsize=7)
    right.set_ylabel("second", fontsize=7)
    for axis in (left, right):
      axis.tick_params(labelsize=6)
    figure.colorbar(filled, ax=[left, right], shrink=0.8).set_label("training loss (nats)", fontsize=7)
  return seed_scores.png(figure)


def _grid(curve: Mapping[int, float]) -> np.ndarray:
  return np.array([curve[number] for number in range(_POINTS**2)]).reshape(_POINTS, _POINTS)


STUDY = Study(
  title="Loss surface of fine-tuning",
  question="Does fine-tuning of a pre-trained model end in a wider basin of the loss than training from scratch?",
  paper=(
    "Hao et al. 2019, Visualizing and Understanding the Effectiveness of BERT, abstract and section 1; Li et al. 2018, "
    "Visualizing the Loss Landscape of Neural Nets, for the directions"
  ),
  claim=(
    "Pre-training reaches a good initial point for downstream tasks. Fine-tuning from it ends in wider optima than "
    "training from scratch, and the optimization is easier and converges faster."
  ),
  rule=claims.all_of(
    claims.lower("pre-trained", than="from scratch", column="rise"),
    claims.lower("pre-trained", than="from scratch", column="training loss"),
  ),
  arms=arms,
  columns=columns,
  curves=curves,
  draw=draw,
  scales={
    "toy": Scale(
      "two CPU cores",
      10,
      f"A tiny encoder, 2 layers of width 64, pre-trained once for 1,000 steps of 32 x 64 tokens of the "
      f"documentation; 400 steps on the order of words; losses of 128 training examples "
      f"at {_POINTS} x {_POINTS} points of two planes. "
      f"Rise is the mean increase of the loss within a filter-normalized distance of {_RADIUS:g}. "
      "Directness is the distance of the first and the last checkpoint, divided by the length of the path.",
    ),
    "small": Scale("one H200", 150, "BERT base, 30,000 steps; MRPC, 4,000 steps."),
    "base": Scale("eight H200", 400, "BERT base, 125,000 steps; MRPC, 4,000 steps."),
  },
  caveats=(
    "the surfaces of two random directions differ from those of the paper, which spans its planes by fine-tuned "
    "models. A run that has not fitted its data stays on a plateau, which is flat, too. The training loss after equal "
    "steps stands for easy optimization."
  ),
)
