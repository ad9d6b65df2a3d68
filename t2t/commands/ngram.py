"""`t2t ngram`: the loss of an n-gram model on the held-out text of a run."""

import argparse

from absl import logging

from t2t.checkpoints import pretrained
from t2t.evaluation import kneser_ney, ngram_baseline
from t2t.losses import text_figures
from t2t.reports import ngram_record
from t2t.runtime import numeric
from t2t.storage import gcs
from t2t.training import replay_step

_DESCRIPTION = """\
Counts the n-grams of a run's training text, and measures the n-gram model on
the held-out targets of the run: interpolated modified Kneser-Ney smoothing
(Chen & Goodman 1999). The loss is a baseline for causal language models, in the
same unit as their held-out loss. Writes RUN/ngram.json; `t2t report RUN` and
the summary at the end of the run show it. Needs no accelerator."""
_EXAMPLES = """\
examples:
  t2t ngram runs/gpt
  t2t ngram runs/gpt --order 5 --tokens 20000000"""


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t ngram",
    description=_DESCRIPTION,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("run", metavar="RUN", help="workdir that t2t trains in, local or gs://")
  parser.add_argument(
    "--order",
    type=numeric.integer(1, kneser_ney.MOST_ORDER),
    default=3,
    metavar="N",
    help="tokens of the longest n-grams; default: 3",
  )
  parser.add_argument(
    "--tokens",
    type=numeric.integer(1),
    default=ngram_baseline.MOST_TOKENS,
    metavar="N",
    help="count at most the first N training tokens, with 120 bytes of memory for each; default: 10 million",
  )
  parser.add_argument("--task_modules", default="", help="task modules that you trust, separated by commas")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t ngram`.

  Raises:
    UserError: there is no run, its objective is not causal, or its data cannot be read.
  """
  options = _parser().parse_args(argv)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  gcs.check(options.run, where="")
  workdir = gcs.absolute(options.run)
  config = replay_step.config_of(workdir)
  pretrained.trust(options.task_modules)
  measured = ngram_baseline.measure(config, order=options.order, most_tokens=options.tokens)
  ngram_record.write(workdir, [measured])
  baseline = measured.baseline
  print(f"{baseline.name:<15}{baseline.loss:.4f} nats per target token{text_figures.note(measured.figures)}")
  print(f"{'':<15}{baseline.knows}")
  print(f"{'':<15}{' + '.join(f'{x:,}' for x in measured.num_ngrams)} distinct n-grams of 1 to {measured.order} tokens")
  print(f"{'held out':<15}{measured.num_targets:,} targets, those of the run's held-out loss")
  print(f"{'written':<15}{workdir / ngram_record.NAME}; `t2t report {options.run}` shows it")
