"""Values of columns and curves, read from the workdirs of an arm's stages."""

from collections.abc import Callable, Mapping
import json
from typing import Any

from etils import epath
import numpy as np

from t2t.reports import history, seed_scores
from t2t.studies.definition import Column, Folders, digest
from t2t.training import metric_writers


def metric(stage: str, name: str, *, best: bool = False) -> Callable[[Folders], float | None]:
  """Returns the function that reads a metric of a stage.

  Args:
    stage: its name; an arm without this stage has no value.
    name: in metrics.jsonl, "eval/docs_match/accuracy".
    best: whether to take the best evaluation instead of the last one.
  """

  def value(folders: Folders) -> float | None:
    values = curve(stage, name)(folders)
    if not values:
      return None
    if not best:
      return values[max(values)]
    return (min if seed_scores.lower_is_better(name.removeprefix("eval/")) else max)(values.values())

  return value


def curve(stage: str, name: str) -> Callable[[Folders], Mapping[int, float]]:
  """Returns the function that reads step -> value of a metric of a stage; {} if the arm has no such stage."""
  return lambda folders: metric_writers.read_metrics(folders[stage] / "metrics.jsonl", name) if stage in folders else {}


def over_stages(stages: Mapping[int, str], name: str) -> Callable[[Folders], Mapping[int, float]]:
  """Returns the function that reads a curve over several stages, such as fine-tunings of several checkpoints.

  Args:
    stages: step of the checkpoint -> name of the stage.
    name: metric, see `metric`.
  """

  def values(folders: Folders) -> dict[int, float]:
    known = {step: metric(stage, name)(folders) for step, stage in stages.items()}
    return {step: value for step, value in known.items() if value is not None}

  return values


def mean_of(name: str, columns: list[Column], *, better: str = "higher") -> Column:
  """Returns a column with the mean of others; no value if one of them has none."""

  def value(folders: Folders) -> float | None:
    values = [column.value(folders) for column in columns]
    known = [x for x in values if x is not None]
    return float(np.mean(known)) if len(known) == len(values) else None

  return Column(name, value, better)


def parameters(stage: str, *, trained: bool = False, without: str = "") -> Callable[[Folders], float | None]:
  """Returns the function that counts the parameters of a stage.

  Args:
    stage: its name; an arm without this stage has no value.
    trained: whether to leave out frozen parameters.
    without: pattern of paths to leave out, such as "^embed|^logits"; "": none.
  """

  def value(folders: Folders) -> float | None:
    if stage not in folders:
      return None
    from flax import nnx
    import jax

    from t2t.param_tree import matches, path_name
    from t2t.training import recipe, replay_step

    made = recipe.make(replay_step.config_of(folders[stage]))
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(lambda key: nnx.to_pure_dict(nnx.split(made.model_fn(key), graph=False)[1]), key)
    left_out = (*(made.freeze if trained else ()), *((without,) if without else ()))
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    return float(sum(x.size for path, x in leaves if not matches(left_out, path_name(path))))

  return value


def of_stage(folder: epath.Path) -> dict[str, Any]:
  """Returns steps, tokens, FLOPs and the config's digest of a training run, for its row.

  Tokens are the average of the logged steps times the number of steps. A run that was stopped and resumed has no
  seconds, because they would be those of the last part.
  """
  notes = history.read(folder)
  tokens = metric_writers.read_metrics(folder / "metrics.jsonl", "train/tokens")
  steps = int(notes[-1]["step"]) if notes else 0
  flops = next((note["flops_per_step"] for note in reversed(notes) if note.get("flops_per_step")), None)
  config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").exists() else {}
  resumed = sum(note["event"] == history.START for note in notes) > 1
  return ({"seconds": None} if resumed else {}) | {
    "steps": steps,
    "tokens": round(float(np.mean(list(tokens.values()))) * steps) if tokens else None,
    "flops": flops * steps if flops else None,
    "config_digest": digest(config),
  }
