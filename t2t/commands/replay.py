"""`t2t replay`: repeats one training step of a run and inspects it."""

import argparse
from collections.abc import Iterator
import math
import textwrap
from typing import Any

from absl import logging
import jax
import numpy as np

from t2t.checkpoints import pretrained
from t2t.runtime import hosts, numeric
from t2t.storage import gcs
from t2t.training import replay_step

_DESCRIPTION = """\
Repeats one step of a run: restores the newest intact checkpoint before it and
the position in the data, trains up to the step, and prints the recorded and the
new loss, the texts of the batch, and the first operation with a NaN or Inf, if
there is one. Writes nothing to RUN. Exit code 1 if the loss is not
bit-identical to the recorded one."""
_EXAMPLES = """\
examples:
  t2t replay runs/looked_at --step 4
  t2t replay gs://BUCKET/base --step 31415 --rows 4"""
_WIDTH = 80  # columns


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t replay",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("run", metavar="RUN", help="workdir that t2t trained in, local or gs://")
  parser.add_argument("--step", type=int, required=True, metavar="N", help="step to inspect")
  parser.add_argument(
    "--rows",
    type=numeric.integer(0),
    default=8,
    metavar="N",
    help="number of texts to print, first those with a NaN or Inf; default: 8",
  )
  parser.add_argument("--task_modules", default="", help="task modules that you trust, separated by commas")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  hosts.add_options(parser)
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t replay`; returns 1 if the loss differs from the recorded one.

  Args:
    argv: arguments after `t2t replay`.

  Raises:
    UserError: the run or step does not exist, no checkpoint precedes it, or its data have changed.
  """
  options = _parser().parse_args(argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  gcs.check(options.run, where="")
  workdir = gcs.absolute(options.run)
  config = replay_step.config_of(workdir)
  hosts.start(options, config.train)
  pretrained.trust(options.task_modules)
  replayed = replay_step.replay(workdir, options.step)
  if jax.process_index() == 0:
    print("\n".join([*_lines(replayed), *_texts(replayed, _vocabulary(config), options.rows)]))
  return int(replayed.recorded is not None and replayed.recorded != replayed.loss)


def _vocabulary(config: Any) -> Any:
  from t2t.data import pipeline

  return pipeline.vocabulary(config.data)


def _lines(replayed: replay_step.Replayed) -> Iterator[str]:
  yield f"step {replayed.step}, replayed from step {replayed.checkpoint}"
  if replayed.recorded is None:
    yield (
      f"  loss now       {replayed.loss!r}; none is recorded: the run ended at this step, skipped the update, or logs"
    )
    yield "                 fewer steps (config.train.log_every)"
  elif replayed.recorded == replayed.loss:
    yield f"  loss           {replayed.loss!r}, bit-identical to the recorded loss"
  else:
    yield f"  loss now       {replayed.loss!r}"
    difference = f"{replayed.loss - replayed.recorded:.3g}"
    yield f"  loss recorded  {replayed.recorded!r}, differs by {difference}; docs/nan_policy.md explains"
    yield "                 how a loss depends on more than config and data"
  yield f"  gradient norm  {replayed.grad_norm!r}"
  if replayed.finite:
    return
  yield "  parameters     " + (
    f"not finite before the step: {replayed.parameter}" if replayed.parameter else "were finite"
  )
  # XLA's fused operations may overflow where the separate ones do not.
  yield f"  first place    {replayed.origin or 'not found: all values are finite if operations run one by one'}"
  yield "  gradients      " + (f"not finite: {replayed.gradient}" if replayed.gradient else "finite")


def _texts(replayed: replay_step.Replayed, vocabulary: Any, number: int) -> Iterator[str]:
  rows = len(next(iter(replayed.batch.values())))
  first = [row for row in (replayed.origin.rows if replayed.origin else ()) if row < rows]
  shown = [*first, *(row for row in range(rows) if row not in first)][:number]
  for row in shown:
    mark = ", first NaN or Inf" if row in first else ""
    yield f"row {row} of {rows}, of stream {row * replayed.num_streams // rows} of {replayed.num_streams}{mark}"
    for name, values in replayed.batch.items():
      if name.endswith(("input_tokens", "target_tokens")) and not name.startswith("decoder_input"):
        text = " | ".join(_pieces(values[row], vocabulary))
        yield textwrap.fill(
          f"{name}: {text}", _WIDTH, initial_indent="  ", subsequent_indent="    ", max_lines=12, placeholder=" ..."
        )
    for name, values in replayed.batch.items():
      if name.endswith("loss_weights") and not math.isfinite(float(np.sum(values[row]))):
        yield f"  {name}: not finite"


def _pieces(tokens: np.ndarray, vocabulary: Any) -> Iterator[str]:
  """Yields the texts of a row, which EOS separates if several are packed."""
  piece: list[int] = []
  for token in (*tokens.tolist(), vocabulary.eos_id):
    if token == vocabulary.eos_id:
      if piece:
        yield " ".join(vocabulary.decode(piece).split())
      piece = []
    elif token != vocabulary.pad_id:
      piece.append(token)
