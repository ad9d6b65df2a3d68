"""`t2t embed`: writes a vector for each line of a file; `--probe` measures what each layer encodes of a task."""

import argparse
import dataclasses
import functools

from absl import logging
import jax

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained, select_task
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.inference import batch_inference, embedding, embedding_files, jsonl_io, prompt_builder
from t2t.runtime import hosts, numeric


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t embed",
    usage="t2t embed --checkpoint C --input FILE --output FILE.npy [options]\n"
    "       t2t embed --checkpoint C --layer all --probe TASK [options]\n"
    "                 [--config.data.KEY=VALUE ...]",
    description="Writes a float32 vector for each line of a file: the hidden states of a model of\n"
    "any architecture, of its encoder if it has one, pooled over the tokens of the\n"
    "line.  The same command again resumes where it stopped.\n\n"
    "A .npy file has the shape [lines, embed]; for all layers [lines, layers + 1,\n"
    "embed], the embeddings first.  A .parquet file has the columns line, inputs and\n"
    "vector, or layer_0, layer_1, ...  The vector of an empty line is NaN (null in\n"
    ".parquet).",
    epilog="examples:\n"
    "  t2t embed --checkpoint runs/tiny --input texts.txt --output vectors.npy\n"
    "  t2t embed --checkpoint runs/tiny_bert --pool first --layer 2 \\\n"
    "    --input texts.jsonl --field text --output vectors.parquet\n"
    "  t2t embed --checkpoint runs/tiny_bert --layer all --probe docs_match\n"
    "  t2t embed --checkpoint BERT --layer all --probe glue_sst2_v002 \\\n"
    "    --config.data.benchmark_dirs.glue=GLUE",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--checkpoint", default="", metavar="C", help="a workdir that t2t trained in, or one of its checkpoints")
  files = parser.add_argument_group("lines")
  add = files.add_argument
  add("--input", default="", metavar="FILE", help=".txt, a text a line; .jsonl, an object a line")
  add("--output", default="", metavar="FILE", help="output: a local .npy or .parquet file")
  add(
    "--field",
    default="",
    help='key of the text in a JSON object; default: inputs, or "parts", a list of texts encoded together',
  )
  add("--strict", action="store_true", help="raise an error for empty or too long lines instead of marking them")
  add_vector_options(parser)
  probe = parser.add_argument_group("probe")
  add = probe.add_argument
  add(
    "--probe",
    default="",
    metavar="TASK",
    help=(
      "replaces the files: accuracy of a linear classifier on the vectors of each layer, fitted to the training "
      "split of a registered task and measured on its validation split"
    ),
  )
  add(
    "--examples",
    type=numeric.integer(1),
    default=5_000,
    metavar="N",
    help="largest number of examples per split; default: 5000",
  )
  add_model_options(parser)
  return parser


def add_vector_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options that select the states of a text."""
  vector_group = parser.add_argument_group("vectors")
  add = vector_group.add_argument
  add(
    "--pool", default="mean", metavar="P", help="pooling over the tokens of a line: mean, first or last; default: mean"
  )
  add("--layer", default="", metavar="N", help="0, the embeddings, to the last layer, or all; default: the last")


def add_model_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of the model and its devices."""
  model = parser.add_argument_group("model")
  add = model.add_argument
  add("--task_modules", default="", metavar="M", help="your modules or .py files that register tasks")
  add("--task", default="", metavar="NAME", help="task of all lines, for a model with task-specific parameters")
  add(
    "--inputs_length",
    type=int,
    default=0,
    metavar="N",
    help="largest number of tokens per line; default: as in training",
  )
  add(
    "--batch_size",
    type=numeric.integer(1),
    default=32,
    metavar="N",
    help="lines per batch, over all devices; default: 32",
  )
  add("--tensor", type=int, default=1, metavar="N", help="devices that share one copy of the model; default: 1")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def check_pool(pool: str) -> None:
  """Checks the value of --pool.

  Raises:
    UserError: it is unknown.
  """
  if pool not in embedding.POOLS:
    known = ", ".join(embedding.POOLS)
    raise UserError(f"--pool {pool}: unknown value. Give one of: {known}{did_you_mean(pool, embedding.POOLS)}")


def open_source(options: argparse.Namespace) -> tuple[pretrained.Source, int]:
  """Starts JAX, and returns the checkpoint and the maximum number of tokens of a text.

  Args:
    options: of a parser with `add_model_options`.

  Raises:
    UserError: the checkpoint cannot be read, or has fewer positions.
  """
  hosts.start(options, default.get_config().train)
  source = select_task.choose(pretrained.read_source(options.checkpoint), options.task, where="--task")
  pretrained.trust(options.task_modules)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  return source, prompt_builder.longest_text(source, inputs_length=options.inputs_length)


def main(argv: list[str]) -> None:
  """Runs `t2t embed`.

  Args:
    argv: arguments after `t2t embed`.

  Raises:
    UserError: see `batch_inference.run` and `probes.probe`.
  """
  options, overrides = _parser().parse_known_args(argv)
  for name in ("checkpoint",) if options.probe else ("checkpoint", "input", "output"):
    if not getattr(options, name):
      raise UserError(f"--{name} is missing. Give --{name} VALUE; see `t2t embed --help`.")
  check_pool(options.pool)
  if not options.probe:
    _check_files(options, overrides)
  source, longest = open_source(options)
  mesh = batch_inference.make_mesh(options.tensor)
  if options.probe:
    _probe(options, overrides, source, mesh, longest=longest)
    return
  way = embedding.Embedding(
    source, mesh, pool=options.pool, layer=options.layer, longest=longest, batch_size=options.batch_size
  )
  read = functools.partial(jsonl_io.read, options.input, field=options.field, form=way.form)
  job = batch_inference.InferenceJob(
    options.input, options.output, options.field, options.batch_size, options.strict, called="vectors"
  )
  batch_inference.run(
    source, mesh, way, job, open_output=functools.partial(embedding_files.output, read=read, shape=way.shape)
  )


def _check_files(options: argparse.Namespace, overrides: list[str]) -> None:
  if overrides:
    raise UserError(f"unknown option {overrides[0]}. See `t2t embed --help`.")
  if options.input == jsonl_io.PIPE:
    raise UserError(
      "--input - (standard input): the header of the output needs the number of lines in advance. Give --input FILE."
    )
  jsonl_io.check_local(options.output)
  if not options.output.endswith(embedding_files.ENDINGS):
    raise UserError(
      f"--output {options.output}: unknown file type. Give a file that ends in {' or '.join(embedding_files.ENDINGS)}."
    )


def _probe(
  options: argparse.Namespace,
  overrides: list[str],
  source: pretrained.Source,
  mesh: jax.sharding.Mesh,
  *,
  longest: int,
) -> None:
  from t2t.evaluation import probes

  for name in ("input", "output", "field"):
    if getattr(options, name):
      raise UserError(
        f"--{name} {getattr(options, name)} does not apply with --probe, which reads a task and prints a table. "
        f"Leave out --{name}."
      )
  config = default.get_config()
  if options.task_modules:
    config.data.task_modules = (*config.data.task_modules, *options.task_modules.split(","))
  data = records(override(config, overrides)).data
  probe_result = probes.probe(
    dataclasses.replace(data.reading(mixture=options.probe), inputs_length=longest),
    source,
    mesh,
    pool=options.pool,
    layer=options.layer,
    limit=options.examples,
    batch_size=options.batch_size,
  )
  if jax.process_index() == 0:
    probes.print_table(probe_result)
