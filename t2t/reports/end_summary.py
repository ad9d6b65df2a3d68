"""The summary that a training run prints at its end."""

from collections.abc import Mapping, Sequence
import importlib.util
import textwrap

from etils import epath

from t2t.losses import Baseline
from t2t.reports import goodput
from t2t.training import metric_writers
from t2t.training.callbacks import collapse

_FEW_STEPS = 100  # shorter runs try a command, and their losses say nothing about settings


def show(
  workdir: epath.Path,
  loss: float,
  unit: str,
  baselines: Sequence[Baseline],
  shown: Sequence[Sequence[tuple[str, str]]],
  saved_step: int | None,
  metrics: Mapping[int, Mapping[str, float]],
  best: Mapping[str, int],
  picture: epath.Path,
) -> None:
  """Prints the summary.

  Args:
    workdir: of the run.
    loss, unit: held-out loss and its unit.
    baselines: losses of models that have learned nothing.
    shown: samples, each a sequence of (label, text) lines.
    saved_step: of the last checkpoint.
    metrics: of each checkpoint.
    best: metric -> step of the best checkpoint by it.
    picture: loss curve of the run.
  """
  print(f"\nheld-out loss  {loss:.4f} {unit}")
  for baseline in baselines:
    print(f"{baseline.name:<15}{baseline.loss:.4f} ({baseline.knows})")
  # An n-gram model is not at chance: no cause explains its loss.
  at_chance = [baseline for baseline in baselines if baseline.cause and collapse.is_at(loss, baseline)]
  above, advice = [baseline for baseline in baselines if loss > baseline.loss], ""
  if at_chance:
    advice = f"The loss is at chance, that of a model that {at_chance[0].knows}. Likely cause: {at_chance[0].cause}."
  elif above:
    advice = (
      f"The loss is above that of the {above[0].name}. If the curve still falls, raise config.train.steps. If it has "
      "hardly fallen, change config.optimizer.learning_rate (larger for small models). If only the training loss has "
      "fallen, use more text or fewer steps."
    )
  if advice and (saved_step or 0) < _FEW_STEPS:
    advice = "This run is too short to judge: raise config.train.steps."
  if advice:
    print(textwrap.fill(advice, 80, initial_indent=" " * 15, subsequent_indent=" " * 15))
  for number, lines in enumerate(shown, start=1):
    print(f"\nexample {number}, held out")
    for label, text in lines:
      print(metric_writers.wrapped(label, text))
  best_loss = best.get("loss", "none: no checkpoint has a finite held-out loss")
  print(f"\ncheckpoints    {workdir / 'checkpoints'} (last {saved_step}, best by loss {best_loss})")
  for name, step in best.items():
    if name != "loss" and not name.endswith("/score"):  # a mean of the task's metrics, which are listed themselves
      print(f"  best {name} {metrics[step][name]:.2f} at step {step}")
  print(f"TensorBoard    tensorboard --logdir {workdir / 'tensorboard'}")
  if importlib.util.find_spec("tensorboard") is None:
    print(f"{'':<15}(pip install tensorboard)")
  print(f"metrics        {workdir / 'metrics.jsonl'}")
  print(f"config         {workdir / 'config.json'}")
  print(f"loss curve     {picture}")
  if line := goodput.summary(workdir):
    print(f"goodput        {line}")
