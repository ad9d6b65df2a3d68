"""`t2t infer --logits`: writes a teacher's logits of the rows that a training run reads (offline distillation)."""

import argparse

from absl import logging

from t2t import UserError
from t2t.commands.options import config_parser, inherited, parse
from t2t.configuration.loading import records
from t2t.inference import teacher_logits
from t2t.runtime import hosts
from t2t.storage import gcs

_TEACHER = "--config.distillation.teacher"
_DESCRIPTION = """\
Writes the logits of a checkpoint for each row that a training run reads, so that a student learns from them without the
teacher in memory: config.distillation.logits=FOLDER (docs/distillation.md).

--config and its keys are those of the student's `t2t train`: they select data, order, packing and masking. The output
is a folder of safetensors files. The same command again resumes after the last file."""
_EXAMPLES = """\
examples:
  t2t infer --logits 64 --checkpoint runs/tiny_bert --config tiny_bert \\
    --config.train.steps=10 --output runs/logits
  t2t train --config tiny_bert --config.train.steps=10 \\
    --config.distillation.logits=runs/logits --workdir runs/student"""


def _parser() -> argparse.ArgumentParser:
  required = "--logits K|all --checkpoint C --config NAME --output FOLDER\n      "
  parser = config_parser("t2t infer", _DESCRIPTION, epilog=_EXAMPLES, required=required, brief=True)
  add = parser.add_argument
  add("--logits", type=_width, metavar="K|all", help="largest logits of each token; heads have all of theirs")
  add("--checkpoint", default="", metavar="C", help="the teacher: a run, a checkpoint, or a folder of Hugging Face")
  add("--output", default="", metavar="FOLDER", help="folder of the logits, local or gs://")
  add(
    "--logits_dtype",
    choices=tuple(teacher_logits.DTYPES),
    default="float32",
    help="dtype of the logits in the files; default: float32, equal to the teacher's to the bit",
  )
  hosts.add_options(parser)
  return parser


def _width(text: str) -> int:
  """Returns the number of logits; 0 for all."""
  if text == "all":
    return 0
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not valid. Give a whole number of at least 1, or all.")
  return int(text)


def main(argv: list[str]) -> None:
  """Runs `t2t infer --logits`.

  Args:
    argv: arguments after `t2t infer`.

  Raises:
    UserError: an option is missing; or see `teacher_logits.write`.
  """
  parser = _parser()
  options, _ = parser.parse_known_args(argv)
  if typed := next((x for x in argv if x.startswith((_TEACHER, "--config.distillation.logits"))), ""):
    raise UserError(f"{typed} and --logits exclude each other. Give the teacher as --checkpoint alone.")
  for name in ("checkpoint", "output"):
    if not getattr(options, name):
      raise UserError(f"--{name} is missing. Give --{name} PATH; see `t2t infer --logits all --help`.")
  argv = [*argv, f"{_TEACHER}={options.checkpoint}"]  # the settings of the same run with the teacher in memory
  options, config = parse(parser, argv)
  gcs.check_folder(options.output, where="--output ")
  gcs.check(options.output, where="--output ")
  hosts.start(options, config.train)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  config = records(inherited(config, parser, argv))
  teacher_logits.write(config, options.output, width=options.logits, dtype=options.logits_dtype)
