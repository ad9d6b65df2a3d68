"""`t2t infer`: predicts for each line of a file, or serves predictions with `--server`.

The training objective selects the method: generation, prediction heads, or fill-mask.
"""

import argparse
from collections.abc import Callable, Mapping
import dataclasses
import functools
import importlib.util
import sys
from typing import TYPE_CHECKING

from absl import logging
import jax

from t2t import UserError
from t2t.checkpoints import inspect, multi_adapter, pretrained, select_task
from t2t.commands import gin_files
from t2t.configs import default
from t2t.configuration import foreign_names
from t2t.configuration.loading import records
from t2t.convert import gin
from t2t.inference import (
  adapter_routing,
  batch_inference,
  classification,
  decoding,
  jsonl_io,
  option_scores,
  predictor,
  prompt_builder,
  ranking,
  table_inputs,
  text_generation,
  token_classify,
)
from t2t.models.config import DECODERS
from t2t.runtime import hosts, lazy_table, memory, numeric
from t2t.serving import engine, model_service, routes, text_predictor

if TYPE_CHECKING:
  from t2t.data.templates import Template
  from t2t.models.head_config import HeadConfig

_MAX_LENGTH, _TOP = 64, 10
# Options that do not apply to --server.
_OF_FILES = ("input", "output", "field", "strict", "template", "min_confidence", "per_class")


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t infer",
    usage="t2t infer --checkpoint C --input FILE --output FILE [options]\n       t2t infer --checkpoint C --server\n"
    "       t2t infer --logits all --help  (a teacher's logits, for a student)",
    description="Writes the prediction for each line of a file, one JSON object per line, in the\n"
    'same order: {"line": 1, "inputs": ..., "prediction": ..., "score": ...}.\n'
    "The same command again resumes where it stopped.\n\n"
    "A model with a decoder generates text; without --beam and --temperature it\n"
    "decodes greedily.  A model with a trained head predicts a class, number or\n"
    "candidate with probabilities, or entities of a text, or the answer span in a\n"
    "context, with positions.\n"
    "--adapter loads runs that trained an adapter for the checkpoint; a line selects\n"
    'one by name, {"inputs": "...", "adapter": "law"}; memory holds the base model\n'
    "once.  In the same way each line gives its task if the checkpoint has\n"
    "parameters per task (config.pals), or --task gives the task of all lines.\n"
    "BERT and similar models fill each [MASK], <mask> or <extra_id_0> of a line.\n"
    "A model that was fine-tuned on a table reads the columns of another table by\n"
    "name and predicts one of its labels; the output may be a table with an added\n"
    'column for the prediction.  If a text has blanks, "filled" is the text with the\n'
    "generated fillings.\n\n"
    "Input of each head, a line of a .jsonl file, and its output:\n"
    '  class   {"inputs": "..."}, or {"parts": ["...", "..."]}, encoded together\n'
    '          "prediction": "yes", "score": -0.3,\n'
    '          "probabilities": {"no": 0.27, "yes": 0.73}\n'
    '  score   input as for class; "prediction": 3.2\n'
    '  choice  {"inputs": "...", "candidates": ["a", "b"]}\n'
    '          "prediction": "b", "score": -0.3, "probabilities": [0.27, 0.73]\n'
    '  tag     {"inputs": "Ann Lee won."}, split into words and punctuation marks,\n'
    '          or {"words": ["Ann", "Lee", "won", "."]}, already split\n'
    '          "prediction": [{"label": "PER", "start": 0, "end": 7,\n'
    '          "text": "Ann Lee", "probability": 0.9}], "words": [...],\n'
    '          "tags": ["B-PER", "I-PER", "O", "O"]; positions are characters; words\n'
    "          beyond the input length get O\n"
    '  span    {"question": "...", "context": "..."}, in windows if it is long\n'
    '          "prediction": "Ann Lee", "start": 0, "end": 7, "probability": 0.8,\n'
    '          "best": the five likeliest; if questions may have no answer, "null":\n'
    '          0.1 is its probability, and "prediction" is "" if it is likeliest',
    epilog="examples:\n"
    "  t2t infer --checkpoint runs/tiny --input questions.txt --output out.jsonl\n"
    "  t2t infer --checkpoint runs/tiny/checkpoints/500 --beam 4 \\\n"
    "    --input questions.jsonl --field question --output out.jsonl\n"
    "  echo 'Once upon a time' | t2t infer --checkpoint runs/tiny_gpt \\\n"
    "    --input - --output - --temperature 0.7 --top_p 0.9\n"
    "  t2t infer --checkpoint runs/match --input pairs.jsonl --output out.jsonl\n"
    "  echo 'Ann Lee saw Rome.' | t2t infer --checkpoint runs/ner \\\n"
    "    --input - --output -\n"
    "  t2t infer --checkpoint runs/tiny --adapter law=runs/law med=runs/med \\\n"
    "    --input lines.jsonl --output out.jsonl\n"
    "  t2t infer --checkpoint runs/pals --task reviews \\\n"
    "    --input texts.txt --output out.jsonl\n"
    "  t2t infer --checkpoint runs/gpt \\\n"
    "    --template gpt3_superglue:super_glue_boolq.gpt3 \\\n"
    "    --input questions.jsonl --output out.jsonl\n"
    "  t2t infer --checkpoint runs/reviews --input new.csv --output predicted.csv\n"
    "  t2t infer --checkpoint runs/reviews --input new.csv \\\n"
    "    --min_confidence 0.9 --output labelled.jsonl\n"
    "  echo 'Return the [MASK] of days.' | t2t infer --checkpoint runs/tiny_bert \\\n"
    "    --input - --output - --top 5\n"
    "  t2t infer --checkpoint runs/tiny --server\n"
    "  t2t infer --gin_file base_wmt_infer.gin --gin.CHECKPOINT_PATH='\"runs/wmt\"' \\\n"
    "    --gin.INFER_OUTPUT_DIR='\"runs/wmt_out\"'",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    "--checkpoint",
    default="",
    metavar="C",
    help="a workdir that t2t trained in, one of its checkpoints, a folder of Hugging Face or T5X, or hf://ORG/NAME",
  )
  files = parser.add_argument_group("lines")
  add = files.add_argument
  add(
    "--input",
    default="",
    metavar="FILE",
    help=".txt, an input per line; .jsonl, an object per line; a table; - is standard input",
  )
  add(
    "--output",
    default="",
    metavar="FILE",
    help="the predictions; .tsv, .csv, .parquet: the table with added columns; - is standard output",
  )
  add("--field", default="", help="key of the text in a JSON object; default: inputs, or question for a span head")
  add(
    "--template",
    default="",
    metavar="NAME|FILE",
    help="template of lines with its fields: a name of the training, or FILE[:TASK.NAME]; default: that of the "
    "training",
  )
  add("--strict", action="store_true", help="raise an error for empty or too long lines instead of marking them")
  add(
    "--min_confidence",
    type=numeric.number(0.0, 1.0),
    metavar="P",
    help="write a training file of the lines whose class has at least this probability, with the class as label, for "
    "--config.data.files of the next run",
  )
  add(
    "--per_class",
    default="",
    metavar="N|equal",
    help="with --min_confidence: most lines of a class, the most confident; equal: as many as of the rarest class",
  )
  written = parser.add_argument_group("writing")
  add = written.add_argument
  add(
    "--max_length",
    type=int,
    default=_MAX_LENGTH,
    metavar="N",
    help=f"largest number of generated tokens; default: {_MAX_LENGTH}",
  )
  add(
    "--min_length",
    type=int,
    metavar="N",
    help="smallest number of generated tokens; default: 1 with --beam, which often prefers empty text, or 0",
  )
  add("--beam", type=int, default=1, metavar="N", help="beam search with N beams")
  add(
    "--length_penalty",
    type=numeric.number(),
    metavar="A",
    help="beam search: larger values favor longer text; default: 0.6",
  )
  add(
    "--decoder",
    choices=tuple(DECODERS),
    help="speculative: greedy decoding in fewer steps, for a model with config.model.future_tokens; unmask: for a "
    "model of masked diffusion; default: the checkpoint's",
  )
  add("--steps", type=int, metavar="N", help="unmask: number of calls of the model; default: one for each token")
  add(
    "--remasking",
    choices=decoding.REMASKING,
    default="",
    help="unmask: predictions that a step keeps: the likeliest, those farthest from the second, or random ones; "
    "default: confidence",
  )
  add(
    "--block_length",
    type=int,
    metavar="B",
    help="unmask: fill blocks of B tokens from left to right; default: the model's blocks, or all tokens at once",
  )
  add("--temperature", type=numeric.number(), metavar="T", help="sample tokens; values below 1 favor likely tokens")
  add(
    "--top_p", type=numeric.number(), metavar="P", help="sample among the likeliest tokens with this total probability"
  )
  add("--top_k", type=int, metavar="K", help="sample among the K likeliest tokens")
  add("--seed", type=numeric.integer(0, 2**32 - 1), default=0, metavar="N", help="random seed of sampling; default: 0")
  head_group = parser.add_argument_group("heads and blanks")
  add = head_group.add_argument
  add(
    "--head",
    default="",
    metavar="NAME",
    help="head to use, if there are several or the model also predicts tokens",
  )
  add(
    "--no_answer",
    choices=("yes", "no"),
    default="",
    help="whether a question may have no answer in its context; default: as the head was trained",
  )
  add(
    "--exit_entropy",
    type=numeric.number(0.0),
    default=0.0,
    metavar="E",
    help="for a model with config.model.exits: a line leaves after the first layer whose classes have a lower entropy, "
    "in nats (DeeBERT); the row has the number of layers",
  )
  add(
    "--exit_patience",
    type=numeric.integer(1),
    default=0,
    metavar="N",
    help="a line leaves after N layers in a row that agree with the one before (PABEE)",
  )
  add("--top", type=int, metavar="N", help=f"fillings of each blank; default: {_TOP}")
  add(
    "--normalize",
    choices=tuple(option_scores.NORMALIZATIONS),
    default="",
    help="score of the labels that a generative model of a table ranks: sum of log p, mean over tokens, by UTF-8 "
    "bytes, or unconditional: minus log p after --neutral_context; default: sum",
  )
  add(
    "--neutral_context",
    default="",
    metavar="TEXT",
    help="input of --normalize unconditional; default: an empty input",
  )
  model = parser.add_argument_group("model")
  add = model.add_argument
  add(
    "--adapter",
    nargs="+",
    action="extend",
    default=[],
    metavar="NAME=RUN",
    help="adapter runs for the checkpoint; lines without an adapter use the checkpoint itself",
  )
  add(
    "--task",
    default="",
    metavar="NAME",
    help="task of all lines, for a model that was trained on several; its prefix is added to each line",
  )
  add(
    "--inputs_length",
    type=int,
    default=0,
    metavar="N",
    help="largest number of tokens per input; default: as in training",
  )
  add(
    "--weights",
    choices=pretrained.WEIGHTS,
    default="",
    help="average, or trained, the parameters of the last step; default: average for a run with config.eval.average; "
    "int8: the default's, matrices rounded to 8 bits",
  )
  add("--task_modules", default="", metavar="M", help="your modules or .py files that register its tasks")
  add(
    "--special_tokens",
    choices=prompt_builder.SPECIAL_TOKENS,
    default="",
    help=(
      "control tokens to recognize in the text of an input: none; blanks, <extra_id_0> and [MASK]; all, including "
      "<s> and [SEP]; head inputs are always plain text; default: blanks, or as in training for a model of a table"
    ),
  )
  add("--prompt_eos", choices=("yes", "no"), default="", help="append EOS to each input; default: as in training")
  add(
    "--batch_size",
    type=numeric.integer(1),
    default=32,
    metavar="N",
    help="lines per batch, over all devices; default: 32",
  )
  add("--tensor", type=int, default=1, metavar="N", help="devices that share one copy of the model; default: 1")
  page = parser.add_argument_group("page")
  add = page.add_argument
  pages = (
    "serve a web page and an HTTP API on this machine instead of reading files, including OpenAI's "
    "/v1/completions; see /schema.json"
  )
  add("--server", action="store_true", help=pages)
  add("--port", type=int, default=8000, help="port of the page; 0: any free port; default: 8000")
  heard = "address to listen on; default: 127.0.0.1, only this machine; other addresses require the printed token"
  add("--host", default="127.0.0.1", help=heard)
  gin_files.add_options(parser, "infer")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


@gin_files.in_words_of_t5x("infer")
def main(argv: list[str]) -> None:
  """Runs `t2t infer`.

  Args:
    argv: arguments after `t2t infer`.

  Raises:
    UserError: see `batch_inference.run` and the inference method of the model.
  """
  if any(argument.partition("=")[0] == "--logits" for argument in argv):
    lazy_table.load("t2t.commands.infer_logits:main")(argv)  # offline distillation
    return
  options, gin_config = _options(argv)
  of_tasks = gin_config is not None and not options.input and not options.server  # the inputs come from a mixture
  needed = ("checkpoint",) if options.server else ("checkpoint", "input", "output")
  if of_tasks:
    if not gin_config.workdir:
      or_bound = gin_files.or_bound(gin_config, "--workdir")
      raise UserError(f"--output is missing. Give --input FILE with --output FILE,{or_bound}.")
    needed = ("checkpoint",)
  for name in needed:
    if not getattr(options, name):
      or_bound = gin_files.or_bound(gin_config, "--checkpoint") if name == "checkpoint" else ""
      raise UserError(f"--{name} is missing. Give --{name} PATH{or_bound}; see `t2t infer --help`.")
  if options.server and (name := next((name for name in _OF_FILES if getattr(options, name)), "")):
    raise UserError(
      f"--{name} and --server exclude each other. Leave out --{name} to serve requests, or leave out "
      "--server to read files."
    )
  if options.server and not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
    from t2t.runtime import versions

    raise UserError(f"t2t infer --server needs Starlette and uvicorn. Run: {versions.install_command('serve')}")
  jsonl_io.check_local(options.output)
  labelled = None
  if options.per_class or options.min_confidence is not None:
    from t2t.inference import self_training  # few runs label lines

    labelled = self_training.TrainingFile(options.output, options.input, options.min_confidence, options.per_class)
  decode = text_generation.decode_config(
    max_length=options.max_length,
    min_length=options.min_length,
    beam=options.beam,
    length_penalty=options.length_penalty,
    temperature=options.temperature,
    top_p=options.top_p,
    top_k=options.top_k,
    steps=options.steps,
    remasking=options.remasking,
    block_length=options.block_length,
  )
  if options.server:
    memory.keep_freed_memory()  # the server is a single process
  else:
    hosts.start(options, default.get_config().train)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  gin_files.tell(gin_config)
  source = pretrained.read_source(options.checkpoint, weights=options.weights)
  if note := inspect.better(options.checkpoint, source.path, source.run):
    print(note, file=sys.stderr)
  if gin_config is not None:
    from t2t.commands import gin_conversion

    source = gin_conversion.check(gin_config, source)
  if options.decoder:
    source = dataclasses.replace(source, model=dataclasses.replace(source.model, decoder=options.decoder))
  if options.task:
    source = select_task.choose(source, options.task, where="--task")
  adapters = multi_adapter.open_all(source, _places(options.adapter)) or select_task.split_by_task(source)
  pretrained.trust(options.task_modules)
  if options.server:
    from t2t.serving import server  # imports the extra

    server.serve(_service(options, source, adapters, decode), host=options.host, port=options.port)
    return
  if options.input.endswith(".txt"):
    source = select_task.choose(source, source.task, where="--task")
  if adapters and options.input.endswith(".txt"):
    raise UserError(
      f"--adapter: lines of {options.input} cannot select an adapter. Give a .jsonl file with one object per line."
    )
  make_way = _chosen_way(options, source, adapters, decode)
  if options.input and not options.task and (names := prompt_builder.tasks_with_prefixes(source)):
    note = f"{source.name} was trained on {', '.join(names)}; --task NAME adds the prefix of one task to each input"
    print(note, file=sys.stderr)
  mesh = batch_inference.make_mesh(options.tensor)
  load = functools.partial(multi_adapter.load, source, adapters, mesh) if adapters else None
  blank = "" if adapters or options.head or options.template else prompt_builder.blank(source)
  for input_path, output_path in _files(options, gin_config if of_tasks else None, source):
    as_table, rows_path = jsonl_io.is_table(output_path), output_path
    if as_table or labelled:
      from t2t.inference import table_output  # few runs write tables

      rows_path = table_output.rows_path(output_path)
      if as_table:
        table_output.check(output_path, input_path)
    job = batch_inference.InferenceJob(
      input_path, rows_path, options.field, options.batch_size, options.strict, blank=blank
    )
    way = make_way(mesh)
    if labelled:
      labelled.check(way, table_inputs.spec_of(source))
    batch_inference.run(source, mesh, way, job, load=load)
    read = functools.partial(jsonl_io.read, input_path, field=options.field, form=way.form)
    if labelled and jax.process_index() == 0:
      print("\n".join(labelled.write(read)))
    if as_table and jax.process_index() == 0:
      table_output.write(output_path, read)
      print(f"{'table':<14} {output_path}")


def _options(argv: list[str]) -> tuple[argparse.Namespace, gin.ConvertedGin | None]:
  """Returns the options and the converted gin files; gin files set options that are not typed."""
  options, unknown = _parser().parse_known_args(argv)
  gin_config, unknown = gin_files.take(options, unknown, argv)
  typed = [argument for argument in argv if not gin_files.is_binding(argument)]
  for argument in unknown:
    name = argument.partition("=")[0]
    if argument.startswith("--") and (near := foreign_names.translated_option(name, vars(options), dashes="--")):
      raise UserError(f"{name}: no such option{near}")
  if unknown or gin_config is None:
    return _parser().parse_args(typed), gin_config
  options = _parser().parse_args([*gin_config.options, *typed])
  options.checkpoint = options.checkpoint or gin_config.checkpoint
  return options, gin_config


def _files(
  options: argparse.Namespace, gin_config: gin.ConvertedGin | None, source: pretrained.Source
) -> list[tuple[str, str]]:
  """Returns pairs of input and output path: from the options, or one pair for each task of the gin files."""
  if gin_config is None:
    return [(options.input, options.output)]
  from t2t.evaluation import inputs

  paths = inputs.write(records(gin_config.config()).data, source.model.architecture, gin_config.workdir)
  if options.output and len(paths) > 1:
    raise UserError(
      f"--output {options.output} is a single file, but there are {len(paths)} inputs ({', '.join(paths)}). Leave "
      "out --output."
    )
  suffix = "-inputs.jsonl"
  return [(path, options.output or f"{path.removesuffix(suffix)}-predict.jsonl") for path in paths.values()]


def _places(specs: list[str]) -> dict[str, str]:
  """Parses --adapter to a dictionary from name to path.

  Raises:
    UserError: a value is not NAME=RUN, or a name occurs twice.
  """
  paths: dict[str, str] = {}
  for spec in specs:
    name, equals, path = spec.partition("=")
    if not name or not equals or not path:
      raise UserError(
        f"--adapter {spec} does not have the form NAME=RUN. Give the name that input lines use, and the run that "
        "trained the adapter."
      )
    if name in paths:
      raise UserError(f"--adapter {spec}: the name {name} belongs to {paths[name]} already. Give another name.")
    paths[name] = path
  return paths


def _asks(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig, *, where: str = ""
) -> str:
  """Returns the inference method of a model: "head", "fill" or "write".

  Raises:
    UserError: no method fits the model, or options of another method are given.
  """
  where = f"{where}{source.name}" if where else f"--checkpoint {options.checkpoint}"
  template = _template(options, source)
  # A model with both needs --head for its heads, because pre-training heads are rarely useful.
  if options.head or (pretrained.answers_by_heads(source) and not pretrained.predicts_tokens(source)):
    method, reason = "head", "predicts with a head"
  elif source.model.is_generative:
    method, reason = "write", "generates text"
  else:
    predictor.check_predicts_tokens(source.model, where=where)
    method, reason = "fill", "is an encoder without decoder, which fills blanks"
  if method != "write" and decode != text_generation.decode_config(max_length=_MAX_LENGTH):
    raise UserError(
      f"{where} {reason} and generates no text. Leave out generation options, for example --max_length and --beam."
    )
  if method == "write" and source.model.decoder != "unmask" and pretrained.is_diffusion(source):
    raise UserError(
      f"{where} was trained by masked diffusion, and does not write from left to right. Give --decoder unmask."
    )
  if source.model.decoder != "unmask" or method != "write":
    for name in ("steps", "remasking", "block_length"):
      if value := getattr(options, name):
        raise UserError(
          f"--{name} {value} applies only to --decoder unmask, for a model of masked diffusion. Leave out --{name}."
        )
  if method != "fill" and options.top is not None:
    raise UserError(f"--top {options.top}: {where} {reason} and fills no blanks. Leave out --top.")
  if method != "head":
    _exits(options, source)
  if method != "head" and options.no_answer:
    raise UserError(
      f"--no_answer {options.no_answer} applies only to span heads, but {where} {reason}. Leave out --no_answer."
    )
  for name in ("normalize", "neutral_context"):
    ranks = method != "head" and template is not None
    if (value := getattr(options, name)) and not (ranks or method == "write" and _ranks(source, decode)):
      raise UserError(
        f"--{name} {value}: {where} ranks no labels, because it {reason}. Leave out --{name}, or give --template, or a "
        "generative model that was fine-tuned on a table."
      )
  return method


def _ranks(source: pretrained.Source, decode: decoding.DecodeConfig) -> bool:
  """Returns whether a generative model ranks the labels of its table: no generation option is given."""
  spec = table_inputs.spec_of(source)
  is_one_of = spec is not None and spec.kind in ("class", "choice")
  return is_one_of and decode == text_generation.decode_config(max_length=_MAX_LENGTH)


def _way(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Returns a function that builds the inference method on a mesh; lines may have the columns of the training table."""
  if template := _template(options, source):
    return _way_of_template(options, source, decode, template)
  make_way = _way_of_text(options, source, decode)
  return make_way if _asks(options, source, decode) == "fill" else table_inputs.around(source, make_way)


def _template(options: argparse.Namespace, source: pretrained.Source) -> "Template | None":
  """Returns the template of the lines; lines of other files than text have that of the training."""
  has_fields = options.input and not options.input.endswith(".txt")
  if not (options.template or has_fields):
    return None
  from t2t.inference import prompted  # few lines have fields

  return prompted.choose(source, options.template)


def _way_of_template(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig, template: "Template"
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Returns a function that builds the inference method of a template on a mesh."""
  from t2t.inference import prompted

  asks = _asks(options, source, decode)
  if asks == "head":
    head = classification.choose_head(source.model, options.head, where=f"--checkpoint {options.checkpoint}")
    if head.kind != "cloze":
      raise UserError(
        f"--template {options.template}: the head {head.name!r} of {source.name} was trained without a template. Leave "
        "out --template."
      )
    longest = prompt_builder.longest_text(source, inputs_length=options.inputs_length)
    return functools.partial(
      prompted.Classified, source, template=template, head=head, longest=longest, batch_size=options.batch_size
    )
  generates = asks == "write" and not template.words
  if not generates and decode != text_generation.decode_config(max_length=_MAX_LENGTH):
    raise UserError(
      f"{template.where} has words, which are ranked without generation. Leave out generation options, for example "
      "--max_length and --beam."
    )
  # Generation prints how prompts end.
  ends_of = _ends_prompts if not generates else lambda *_: prompt_builder.ends_prompts(source, options.prompt_eos)[0]
  make_ranked = functools.partial(
    prompted.Ranked,
    source,
    template=template,
    longest=prompt_builder.longest_prompt(source, inputs_length=options.inputs_length, max_length=1),
    ends_prompts=source.model.is_generative and ends_of(options, source),
    batch_size=options.batch_size,
    normalize=options.normalize,
    neutral_context=options.neutral_context,
  )
  if not generates:
    return make_ranked
  make_way = _way_of_text(options, source, decode)

  def on(mesh: jax.sharding.Mesh) -> batch_inference.Way:
    generated = prompted.Generated(make_way(mesh), template, source)
    return prompted.RankedOrGenerated(make_ranked(mesh), generated, template)

  return on


def _way_of_text(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Returns a function that builds the inference method for plain text on a mesh."""
  asks = _asks(options, source, decode)
  if asks == "write" and _ranks(source, decode):
    return functools.partial(
      ranking.Ranking,
      source,
      classes=table_inputs.spec_of(source).classes,
      longest=prompt_builder.longest_prompt(source, inputs_length=options.inputs_length, max_length=1),
      ends_prompts=_ends_prompts(options, source),
      batch_size=options.batch_size,
      special_tokens=options.special_tokens,
      normalize=options.normalize,
      neutral_context=options.neutral_context,
    )
  if asks == "write" and source.model.decoder == "unmask":
    from t2t.inference import unmask_lines  # few models are of masked diffusion

    return functools.partial(
      unmask_lines.UnmaskedLines,
      source,
      decode=decode,
      seed=options.seed,
      longest=prompt_builder.longest_prompt(source, inputs_length=options.inputs_length, max_length=decode.max_length),
      ends_prompts=options.prompt_eos == "yes",
      batch_size=options.batch_size,
      special_tokens=options.special_tokens,
    )
  if asks == "write":
    decode = _as_long_as_targets(options, source, decode)
    longest = prompt_builder.longest_prompt(source, inputs_length=options.inputs_length, max_length=decode.max_length)
    return functools.partial(
      text_generation.Writing,
      source,
      decode=decode,
      seed=options.seed,
      longest=longest,
      ends_prompts=_ends_prompts(options, source),
      batch_size=options.batch_size,
      special_tokens=options.special_tokens,
    )
  longest = prompt_builder.longest_text(source, inputs_length=options.inputs_length)
  if asks == "fill":
    from t2t.inference import fill_mask  # only encoders fill blanks

    top = _TOP if options.top is None else options.top
    return functools.partial(
      fill_mask.Filling,
      source,
      top=top,
      longest=longest,
      batch_size=options.batch_size,
      special_tokens=options.special_tokens,
    )
  head = classification.choose_head(source.model, options.head, where=f"--checkpoint {options.checkpoint}")
  if options.no_answer:
    if head.kind != "span":
      raise UserError(
        f"--no_answer {options.no_answer} applies only to span heads, but {head.name!r} is a {head.kind} head. Leave "
        "out --no_answer."
      )
    head = dataclasses.replace(head, no_answer=options.no_answer == "yes")
  exits = _exits(options, source, head)
  return functools.partial(
    token_classify.way_of(head), source, head=head, longest=longest, batch_size=options.batch_size, **exits
  )


def _exits(
  options: argparse.Namespace, source: pretrained.Source, head: "HeadConfig | None" = None
) -> dict[str, tuple[float, int]]:
  """Returns the option of early exit, if given, after a check."""
  exits = (options.exit_entropy, options.exit_patience)
  if not any(exits):
    return {}
  from t2t.inference import early_exit  # few models have exits

  early_exit.rule_of(source.asked, *exits, head=head)
  return {"exits": exits}


def _as_long_as_targets(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> decoding.DecodeConfig:
  """Returns the decoding options; a table's targets length replaces the default maximum length."""
  if table_inputs.spec_of(source) is None or options.max_length != _MAX_LENGTH:
    return decode
  return dataclasses.replace(decode, max_length=max(source.run["data"]["targets_length"], decode.min_length))


def _chosen_way(
  options: argparse.Namespace,
  source: pretrained.Source,
  adapters: Mapping[str, pretrained.Source],
  decode: decoding.DecodeConfig,
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Returns a function that builds the inference method on a mesh; with adapters, each line selects its model.

  Raises:
    UserError: the adapters need different methods.
  """
  if not adapters:
    return _way(options, source, decode)
  wanted = _asked_alike(options, adapters, decode)
  # A base model that only predicts tokens may still have heads.
  itself = wanted[0] != "head" or any(head.kind == wanted[1] for head in source.model.heads)
  sources = adapter_routing.named_models(source, adapters, itself=itself)
  make = {id(adapter_source): _way(options, adapter_source, decode) for adapter_source in sources.values()}
  paths = {name: adapter_source.name for name, adapter_source in adapters.items()}

  def on(mesh: jax.sharding.Mesh) -> batch_inference.Way:
    return adapter_routing.Choosing(
      adapter_routing.ways_of(sources, lambda adapter_source: make[id(adapter_source)](mesh)), paths
    )

  return on


def _asked_alike(
  options: argparse.Namespace, adapters: Mapping[str, pretrained.Source], decode: decoding.DecodeConfig
) -> tuple[str, ...]:
  """Returns the inference method that all adapters share, see `_asked`.

  Raises:
    UserError: two adapters need different methods.
  """
  ways = {
    name: _asked(options, adapter_source, decode, f"--adapter {name}=") for name, adapter_source in adapters.items()
  }
  first, wanted = next(iter(ways.items()))
  for name, way in ways.items():
    if way != wanted:
      raise UserError(
        f"--adapter {name} and --adapter {first} predict by different methods ({' '.join(way)} and "
        f"{' '.join(wanted)}). Run `t2t infer` once for each method."
      )
  return wanted


def _asked(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig, where: str
) -> tuple[str, ...]:
  """Returns the inference method of a model, and the kind of its head."""
  asks = _asks(options, source, decode, where=where)
  if asks != "head":
    return (asks,)
  return asks, classification.choose_head(source.model, options.head, where=where).kind


def _ends_prompts(options: argparse.Namespace, source: pretrained.Source) -> bool:
  ends, reason = prompt_builder.ends_prompts(source, options.prompt_eos)
  if source.model.kind.is_decoder_only:
    print(f"prompts end {'in' if ends else 'without'} EOS, {reason}", file=sys.stderr)
  return ends


def _service(
  options: argparse.Namespace,
  source: pretrained.Source,
  adapters: Mapping[str, pretrained.Source],
  decode: decoding.DecodeConfig,
) -> routes.Service:
  """Returns the service behind the page."""
  first = next(iter(adapters.values()), source)
  if _asks(options, first, decode) != "write" or _ranks(first, decode):
    options.batch_size = 1
    way = _chosen_way(options, source, adapters, decode)
    return model_service.Asker(source, way, adapters=adapters, tensor=options.tensor)
  if adapters:
    _asks(options, source, decode)
    _asked_alike(options, adapters, decode)
  model = engine.Ready(
    source,
    adapters=adapters,
    inputs_length=options.inputs_length,
    ends_prompts=_ends_prompts(options, source),
    tensor=options.tensor,
    special_tokens=options.special_tokens,
  )
  return text_predictor.WritingService(model, defaults=decode)
