"""`t2t infer`: what a model writes for each line of a file; with `--server`, for what is typed on a page."""

import argparse
import sys

from absl import logging

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configs import default
from t2t.generation import lines, predictor, prompting, server
from t2t.runtime import hosts, memory


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t infer",
    usage="t2t infer --checkpoint C --input FILE --output FILE [options]\n       t2t infer --checkpoint C --server",
    description="Writes what a model makes of each line of a file, one JSON object a line, in\n"
    'the same order: {"line": 1, "inputs": ..., "prediction": ..., "score": ...}.\n'
    "The same command again goes on where it stopped.  Without --beam and\n"
    "--temperature the likeliest token is taken each time.",
    epilog="examples:\n"
    "  t2t infer --checkpoint runs/tiny --input questions.txt --output out.jsonl\n"
    "  t2t infer --checkpoint runs/tiny/checkpoints/500 --beam 4 \\\n"
    "    --input questions.jsonl --field question --output out.jsonl\n"
    "  echo 'Once upon a time' | t2t infer --checkpoint runs/tiny_gpt \\\n"
    "    --input - --output - --temperature 0.7 --top_p 0.9\n"
    "  t2t infer --checkpoint runs/tiny --server",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--checkpoint", default="", metavar="C", help="a workdir that t2t trained in, or one of its checkpoints")
  files = parser.add_argument_group("lines")
  add = files.add_argument
  add("--input", default="", metavar="FILE", help=".txt, an input a line; .jsonl, an object a line; - standard input")
  add("--output", default="", metavar="FILE", help="the predictions; - is standard output")
  add("--field", default="", help="of an object: where its text is; default: inputs")
  add("--strict", action="store_true", help="refuse lines that are empty or too long, instead of marking them")
  writing = parser.add_argument_group("writing")
  add = writing.add_argument
  add("--max_length", type=int, default=64, metavar="N", help="tokens to write at most; default: 64")
  add("--beam", type=int, default=1, metavar="N", help="beam search with so many beams")
  add("--length_penalty", type=float, metavar="A", help="of beam search; larger writes more; default: 0.6")
  add("--temperature", type=float, metavar="T", help="draw tokens; below 1 the likely ones more often")
  add("--top_p", type=float, metavar="P", help="draw among the likeliest that have this probability together")
  add("--top_k", type=int, metavar="K", help="draw among so many likeliest")
  add("--seed", type=int, default=0, metavar="N", help="of what is drawn; default: 0")
  model = parser.add_argument_group("model")
  add = model.add_argument
  add("--inputs_length", type=int, default=0, metavar="N", help="tokens of an input at most; default: as in training")
  add("--prompt_eos", choices=("yes", "no"), default="", help="EOS behind each input; default: as in training")
  add("--batch_size", type=int, default=32, metavar="N", help="lines at a time, over all devices; default: 32")
  add("--tensor", type=int, default=1, metavar="N", help="devices that share one copy of the model; default: 1")
  page = parser.add_argument_group("page")
  add = page.add_argument
  add("--server", action="store_true", help="a page on this machine instead of files: type, and watch it write")
  add("--port", type=int, default=8000, help="of the page; 0: any that is free; default: 8000")
  add("--host", default="127.0.0.1", help="whose requests are heard; default: 127.0.0.1, this machine's alone")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def main(argv: list[str]) -> None:
  """The command.

  Args:
    argv: what follows `t2t infer`.

  Raises:
    UserError: see `lines.infer`.
  """
  options = _parser().parse_args(argv)
  needed = ("checkpoint",) if options.server else ("checkpoint", "input", "output")
  for name in needed:
    if not getattr(options, name):
      raise UserError(f"--{name} is missing; see `t2t infer --help`")
  if options.batch_size < 1:
    raise UserError(f"--batch_size {options.batch_size}: must be at least 1")
  decode = lines.decode_config(
    max_length=options.max_length,
    beam=options.beam,
    length_penalty=options.length_penalty,
    temperature=options.temperature,
    top_p=options.top_p,
    top_k=options.top_k,
  )
  if options.server:
    memory.keep_freed_memory()  # the page is one process's
  else:
    train = default.get_config().train
    hosts.start(options, compiler_flags=train.xla_flags, programs=train.compilation_cache)
  source = pretrained.read_source(options.checkpoint)
  predictor.check_architecture(source.model, where=f"--checkpoint {options.checkpoint}")
  max_inputs = prompting.longest_prompt(source, inputs_length=options.inputs_length, max_length=options.max_length)
  ends, reason = prompting.ends_prompts(source, options.prompt_eos)
  if source.model.kind.continues:
    print(f"prompts end {'in' if ends else 'without'} EOS, {reason}", file=sys.stderr)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  if options.server:
    server.serve(
      source,
      inputs_length=options.inputs_length,
      ends_prompts=ends,
      tensor=options.tensor,
      defaults=decode,
      host=options.host,
      port=options.port,
    )
    return
  lines.infer(
    source,
    lines.Job(
      input=options.input,
      output=options.output,
      field=options.field,
      decode=decode,
      seed=options.seed,
      max_inputs=max_inputs,
      ends_prompts=ends,
      batch_size=options.batch_size,
      strict=options.strict,
      tensor=options.tensor,
    ),
  )
