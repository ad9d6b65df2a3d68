"""Scaling law of the held-out loss, L(N, D) = E + A / N^alpha + B / D^beta, with bootstrap intervals."""

from collections.abc import Sequence
import functools
import math
from typing import Any

import numpy as np

from t2t.reports import seed_scores
from t2t.studies import figures, picture, results, suite
from t2t.studies.claims import AGREE, DISAGREE, UNDECIDED, ClaimRule, Verdict
from t2t.studies.definition import LOWER, NEITHER, Arm, Column, Folders, Scale, Setting, Study, TrainStage
from t2t.studies.results import StudyRow

# Scale -> widths with their layers, steps, sequences of a batch, length.
_SIZES = {
  "toy": ({32: 2, 48: 2, 64: 3, 96: 4}, (125, 250, 500, 1_000), 16, 128),
  "small": ({128: 4, 256: 6, 384: 8, 512: 10}, (1_000, 2_000, 4_000, 8_000, 16_000), 128, 512),
  "base": ({256: 6, 512: 8, 768: 12, 1_024: 18}, (2_000, 4_000, 8_000, 16_000, 32_000), 256, 1_024),
}
_HEAD_DIM = {"toy": 16, "small": 64, "base": 64}
_RESAMPLES = 200
_DELTA = 1e-3  # residual of the logarithm of the loss from which the Huber loss is linear
_LOW, _HIGH = 0.4, 0.6  # exponents of N that count as equal proportions

_Points = tuple[tuple[float, float, float], ...]  # (parameters, tokens, loss) of each run


def arms(setting: Setting) -> list[Arm]:
  """Returns an arm for each number of parameters and tokens; each has a schedule of its own."""
  sizes, all_steps, batch, length = _SIZES[setting.scale]
  text = suite.text_stages(setting)
  made = []
  for width, layers in sizes.items():
    for steps in all_steps:
      keys: dict[str, Any] = {**suite.text_keys(setting), "data.objective": "causal_lm"}
      if setting.scale == "toy":  # bytes, so that the embedding has few of the parameters
        keys |= {"data.vocabulary": "bytes", "model.vocab_size": 384}
      keys |= {
        "model.embed_dim": width,
        "model.num_heads": width // _HEAD_DIM[setting.scale],
        "model.num_kv_heads": width // _HEAD_DIM[setting.scale],
        "model.head_dim": _HEAD_DIM[setting.scale],
        "model.mlp_dim": 8 * width // 3 // 8 * 8,
        "model.num_decoder_layers": layers,
        "data.inputs_length": length,
        "data.targets_length": length,
        "train.batch_size": batch,
        "eval.batches": 64,
        **suite.budget(steps),
      }
      stage = TrainStage("pretrain", setting.config or "tiny_llama", keys)
      made.append(Arm(f"width {width} x {steps} steps", [*text, stage]))
  return made


def columns(setting: Setting) -> list[Column]:
  """Returns N, D, FLOPs and the held-out loss."""
  _, _, batch, length = _SIZES[setting.scale]
  parameters = figures.parameters("pretrain", without="^embed/")

  def tokens(folders: Folders) -> float | None:
    losses = figures.curve("pretrain", "eval/loss")(folders)
    return float(max(losses) * batch * length) if losses else None

  def flops(folders: Folders) -> float | None:
    size, number = parameters(folders), tokens(folders)
    return None if size is None or number is None else 6.0 * size * number

  return [
    Column("parameters", parameters, NEITHER),
    Column("tokens", tokens, NEITHER),
    Column("FLOPs", flops, NEITHER),
    suite.held_out_loss(better=LOWER),
  ]


# ---- Fit -------------------------------------------------------------------------------------------------------------


def points(rows: Sequence[StudyRow]) -> _Points:
  """Returns (parameters, tokens, loss) of each finished run."""
  names = ("parameters", "tokens", "loss")
  values = [tuple(row.figures.get(name) for name in names) for row in rows if row.status == results.FINISHED]
  return tuple(x for x in values if None not in x)  # type: ignore[misc]


def fit(runs: _Points, starts: Sequence[Sequence[float]] = ()) -> np.ndarray:
  """Returns log E, log A, log B, alpha, beta by a Huber loss of the logarithm of the loss, with delta `_DELTA`.

  Args:
    runs: (parameters, tokens, loss) of each run.
    starts: initial values; (): a grid.

  Source: Hoffmann et al. 2022, section 3.3 and appendix D.2.
  """
  from scipy import optimize
  import threadpoolctl

  log_n, log_d, log_loss = np.log(np.array(runs)).T
  n_mean, d_mean = float(log_n.mean()), float(log_d.mean())
  x_n, x_d = log_n - n_mean, log_d - d_mean  # centered, so that exponents and factors hardly depend on each other

  def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
    e, a, b, alpha, beta = x
    terms = np.stack([np.full_like(x_n, e), a - alpha * x_n, b - beta * x_d])
    predicted = np.logaddexp.reduce(terms, axis=0)
    # In units of delta squared, because the solver stops at small absolute changes.
    residual = (predicted - log_loss) / _DELTA
    slopes = np.clip(residual, -1.0, 1.0) / _DELTA * np.exp(terms - predicted)
    gradient = [*slopes.sum(axis=1), -np.sum(slopes[1] * x_n), -np.sum(slopes[2] * x_d)]
    size = np.abs(residual)
    return float(np.sum(np.where(size < 1.0, 0.5 * size**2, size - 0.5))), np.array(gradient)

  if len(starts):
    first = [(e, a - p * n_mean, b - q * d_mean, p, q) for e, a, b, p, q in starts]
  else:
    lowest = float(log_loss.min())
    # The terms of N and D begin with the range of the losses.
    middle = math.log(max(1e-3, float(np.exp(log_loss).mean() - np.exp(lowest))))
    first = [(lowest - step, middle, middle, p, q) for step in (1.0, 0.1) for p in (0.2, 0.5) for q in (0.2, 0.5)]
  # Exponents below 0 would make larger models worse.
  bounds = [(None, None)] * 3 + [(1e-3, 3.0)] * 2
  solve = lambda start: optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
  with threadpoolctl.threadpool_limits(1):  # threads cost a hundred times the arithmetic of five variables
    e, a, b, alpha, beta = min(map(solve, first), key=lambda result: result.fun).x
  return np.array([e, a + alpha * n_mean, b + beta * d_mean, alpha, beta])


@functools.cache
def exponents(runs: _Points) -> dict[str, tuple[float, float, float]]:
  """Returns alpha, beta, and the exponents a and b of N and D by compute, each with its 95 % bootstrap interval.

  N = C^a and D = C^b are optimal, a = beta / (alpha + beta). Runs are drawn with replacement.
  """
  center = fit(runs)
  random = np.random.default_rng(0)
  samples = [center]
  for _ in range(_RESAMPLES):
    drawn = tuple(runs[i] for i in random.integers(len(runs), size=len(runs)))
    samples.append(fit(drawn, [center]))
  derived = lambda x: {"alpha": x[3], "beta": x[4], "a": x[4] / (x[3] + x[4]), "b": x[3] / (x[3] + x[4])}
  names = {name: [derived(x)[name] for x in samples] for name in ("alpha", "beta", "a", "b")}
  interval = lambda values: tuple(float(x) for x in (values[0], *np.quantile(values[1:], (0.025, 0.975))))
  return {name: interval(values) for name, values in names.items()}  # type: ignore[misc]


_LEAST_RUNS = 8


def _proportions(rows: Sequence[StudyRow]) -> Verdict:
  """Decides whether parameters and tokens grow in equal proportions."""
  runs = points(rows)
  if len(runs) < _LEAST_RUNS or len({run[0] for run in runs}) < 3 or len({run[1] for run in runs}) < 3:
    return Verdict(
      UNDECIDED, f"The fit needs {_LEAST_RUNS} runs of three sizes and three budgets; there are {len(runs)}."
    )
  fitted = exponents(runs)
  because = "; ".join(f"{name} = {x:.2f} ({low:.2f} to {high:.2f})" for name, (x, low, high) in fitted.items())
  _, low, high = fitted["a"]
  word = AGREE if low >= _LOW and high <= _HIGH else DISAGREE if high < _LOW or low > _HIGH else UNDECIDED
  return Verdict(word, f"{because}; {len(runs)} runs.")


def draw(rows: Sequence[StudyRow], column_names: Sequence[str]) -> bytes:
  """Returns a PNG: the loss against tokens for each size, and against compute, with the fitted law."""
  del column_names
  import matplotlib.figure

  runs = points(rows)
  figure = matplotlib.figure.Figure(figsize=(9.2, 3.9), dpi=110, layout="constrained")
  left, right = axes = figure.subplots(1, 2, sharey=True)
  enough = len(runs) >= _LEAST_RUNS
  law = fit(runs) if enough else None
  for index, size in enumerate(sorted({run[0] for run in runs})):
    of_size = sorted(run[1:] for run in runs if run[0] == size)
    tokens, losses = np.array(of_size).T
    compute = 6.0 * size * tokens
    for axis, x in ((left, tokens), (right, compute)):
      axis.plot(x, losses, linestyle="", marker="o", markersize=3.5, color=f"C{index}")
    if law is not None:
      line = np.geomspace(tokens.min(), tokens.max(), 50)
      predicted = np.exp(law[0]) + np.exp(law[1]) * size ** -law[3] + np.exp(law[2]) * line ** -law[4]
      left.plot(line, predicted, color=f"C{index}", label=f"N = {size:.3g}")
      right.plot(6.0 * size * line, predicted, color=f"C{index}")
  if law is not None:
    title = ", ".join(f"{name} = {x:.2f} ({low:.2f} to {high:.2f})" for name, (x, low, high) in exponents(runs).items())
    figure.suptitle(f"E + A / N^alpha + B / D^beta; N ~ C^a, D ~ C^b: {title}", fontsize=8)
    left.legend(frameon=False, fontsize=7)
  for axis, label in zip(axes, ("tokens D", "FLOPs C = 6 N D"), strict=True):
    axis.set_xscale("log")
    axis.set_xlabel(label, fontsize=8)
    picture.set_style(axis)
  left.set_ylabel("held-out loss (nats per token)", fontsize=8)
  return seed_scores.png(figure)


STUDY = Study(
  title="Scaling law",
  question="How should parameters and training tokens grow with compute?",
  paper=(
    "Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, table 2 (approach 3) and section 3.3; "
    "Kaplan et al. 2020, Scaling Laws for Neural Language Models"
  ),
  claim=(
    "Parameters N and tokens D should grow in about equal proportions with compute C. The fit gives N ~ C^0.46 and D ~ "
    "C^0.54, another approach 0.50 and 0.50; Kaplan et al. had N ~ C^0.73. The loss is E + A / N^0.34 + B / D^0.28."
  ),
  rule=ClaimRule(
    "L(N, D) = E + A / N^alpha + B / D^beta is fitted to all runs of all seeds. Agree: the 95 % bootstrap interval of "
    f"a = beta / (alpha + beta) lies within {_LOW} and {_HIGH}. Disagree: it lies outside. "
    "Undecided: it crosses a bound.",
    _proportions,
  ),
  arms=arms,
  columns=columns,
  draw=draw,
  scales={
    "toy": Scale(
      "two CPU cores",
      30,
      "Llama decoders of widths 32 to 96 (about 30 thousand to half a million parameters without the embedding) on "
      "0.25 to 2 million bytes of the documentation; 16 runs for each seed.",
    ),
    "small": Scale("one H200", 400, "Llama decoders of widths 128 to 512 on 66 million to 1 billion tokens."),
    "base": Scale("eight H200", 1_500, "Llama decoders of widths 256 to 1,024 on 0.5 to 8 billion tokens."),
  },
  caveats=(
    "the runs are far below the range of the paper, and the learning rate is the same for all sizes. N has the output "
    "matrix and no input embedding. At scale toy a token is a byte, and two million of them are little text. The "
    "interval draws runs with replacement, and has no error of the form of the law."
  ),
)
