"""`t2t infer`: what a model makes of each line of a file; with `--server`, of what is typed on a page.

It writes, or its heads answer, or it fills blanks: as it was trained.
"""

import argparse
from collections.abc import Callable, Mapping
import dataclasses
import functools
import importlib.util
import sys

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
  fill_mask,
  jsonl_io,
  predictor,
  prompt_builder,
  ranking,
  table_inputs,
  table_output,
  text_generation,
  token_classify,
)
from t2t.runtime import hosts, memory, numeric
from t2t.serving import engine, model_service, routes, text_predictor

_MAX_LENGTH, _TOP = 64, 10
_OF_FILES = ("input", "output", "field", "strict")  # options that --server has no use for


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t infer",
    usage="t2t infer --checkpoint C --input FILE --output FILE [options]\n       t2t infer --checkpoint C --server",
    description="Writes what a model makes of each line of a file, one JSON object a line, in\n"
    'the same order: {"line": 1, "inputs": ..., "prediction": ..., "score": ...}.\n'
    "The same command again goes on where it stopped.\n\n"
    "A model with a decoder writes; without --beam and --temperature it takes the\n"
    "likeliest token each time.  One that was trained to answer by a head says\n"
    "which class, number or candidate, and the probability of each; or which words\n"
    "of a text are entities, or which part of a context answers a question, and\n"
    "where they stand.\n"
    "With --adapter the runs that trained an adapter on top of the checkpoint are\n"
    'asked as well, each by lines that name it, {"inputs": "...", "adapter": "law"};\n'
    "what they lie on top of is in memory once.  So each line names its task where\n"
    "the checkpoint tells tasks apart (config.pals), or --task that of all.\n"
    "BERT and its like fill each [MASK], <mask> or <extra_id_0> of a line.\n"
    "A model that was fine-tuned on a table reads the columns of another one, by\n"
    "their names, and tells a label that it was trained on; the output may be a\n"
    "table, too, with the prediction as a column more.  Where a text has blanks,\n"
    '"filled" is the text with what was written in them.\n\n'
    "What a head is asked, a line of a .jsonl file, and what the row has of it:\n"
    '  class   {"inputs": "..."}, or {"parts": ["...", "..."]}, read together\n'
    '          "prediction": "yes", "score": -0.3,\n'
    '          "probabilities": {"no": 0.27, "yes": 0.73}\n'
    '  score   as a class; "prediction": 3.2\n'
    '  choice  {"inputs": "...", "candidates": ["a", "b"]}\n'
    '          "prediction": "b", "score": -0.3, "probabilities": [0.27, 0.73]\n'
    '  tag     {"inputs": "Ann Lee won."}, whose signs of punctuation become words of\n'
    '          their own, or {"words": ["Ann", "Lee", "won", "."]}, which stay\n'
    '          "prediction": [{"label": "PER", "start": 0, "end": 7,\n'
    '          "text": "Ann Lee", "probability": 0.9}], "words": [...],\n'
    '          "tags": ["B-PER", "I-PER", "O", "O"]; characters of the text; words\n'
    "          that did not fit have O\n"
    '  span    {"question": "...", "context": "..."}, in windows if it is long\n'
    '          "prediction": "Ann Lee", "start": 0, "end": 7, "probability": 0.8,\n'
    '          "best": the five likeliest; where there may be no answer "null": 0.1,\n'
    '          how likely that is, and "prediction": "" if it is likelier than any',
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
    "  t2t infer --checkpoint runs/reviews --input new.csv --output predicted.csv\n"
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
    help="a workdir that t2t trained in, one of its checkpoints, or a folder of Hugging Face's or T5X's",
  )
  files = parser.add_argument_group("lines")
  add = files.add_argument
  add("--input", default="", metavar="FILE", help=".txt, an input a line; .jsonl, an object a line; a table; -")
  add(
    "--output",
    default="",
    metavar="FILE",
    help="the predictions; .tsv, .csv, .parquet: columns more; - is standard output",
  )
  add("--field", default="", help="of an object: where its text is; default: inputs, of a span head question")
  add("--strict", action="store_true", help="refuse lines that are empty or too long, instead of marking them")
  written = parser.add_argument_group("writing")
  add = written.add_argument
  add(
    "--max_length", type=int, default=_MAX_LENGTH, metavar="N", help=f"tokens to write at most; default: {_MAX_LENGTH}"
  )
  add(
    "--min_length",
    type=int,
    metavar="N",
    help="tokens before the text may end; default: 1 with --beam, which finds that no text is the likeliest, or 0",
  )
  add("--beam", type=int, default=1, metavar="N", help="beam search with so many beams")
  add("--length_penalty", type=numeric.number(), metavar="A", help="of beam search; larger writes more; default: 0.6")
  add("--temperature", type=numeric.number(), metavar="T", help="draw tokens; below 1 the likely ones more often")
  add(
    "--top_p", type=numeric.number(), metavar="P", help="draw among the likeliest that have this probability together"
  )
  add("--top_k", type=int, metavar="K", help="draw among so many likeliest")
  add("--seed", type=numeric.integer(0, 2**32 - 1), default=0, metavar="N", help="of what is drawn; default: 0")
  head_group = parser.add_argument_group("heads and blanks")
  add = head_group.add_argument
  add(
    "--head",
    default="",
    metavar="NAME",
    help="the head that is asked, where there are several, or the model predicts tokens, too",
  )
  add(
    "--no_answer",
    choices=("yes", "no"),
    default="",
    help="whether a question may have no answer in its context; default: as the head was trained",
  )
  add("--top", type=int, metavar="N", help=f"fillings of each blank; default: {_TOP}")
  model = parser.add_argument_group("model")
  add = model.add_argument
  add(
    "--adapter",
    nargs="+",
    action="extend",
    default=[],
    metavar="NAME=RUN",
    help="runs of adapters on top of the checkpoint; a line that names none is the checkpoint's",
  )
  add(
    "--task",
    default="",
    metavar="NAME",
    help="of a model that was trained on several: the one that all lines are of, whose prefix they get",
  )
  add("--inputs_length", type=int, default=0, metavar="N", help="tokens of an input at most; default: as in training")
  add("--task_modules", default="", metavar="M", help="modules or .py files of yours that its tasks are registered in")
  add(
    "--special_tokens",
    choices=prompt_builder.SPECIAL_TOKENS,
    default="",
    help="which letters of an input that spell control tokens are these, and not text: none; blanks, <extra_id_0> and"
    " [MASK]; all, as <s> and [SEP]; what heads are asked is text; default: blanks, of a table's model as in training",
  )
  add("--prompt_eos", choices=("yes", "no"), default="", help="EOS behind each input; default: as in training")
  add(
    "--batch_size",
    type=numeric.integer(1),
    default=32,
    metavar="N",
    help="lines at a time, over all devices; default: 32",
  )
  add("--tensor", type=int, default=1, metavar="N", help="devices that share one copy of the model; default: 1")
  page = parser.add_argument_group("page")
  add = page.add_argument
  pages = (
    "instead of files a page on this machine, and paths for programs, as OpenAI's /v1/completions; see /schema.json"
  )
  add("--server", action="store_true", help=pages)
  add("--port", type=int, default=8000, help="of the page; 0: any that is free; default: 8000")
  heard = "whose requests are heard; default: 127.0.0.1, this machine's; others need the token that is printed"
  add("--host", default="127.0.0.1", help=heard)
  gin_files.add_options(parser, "infer")
  hosts.add_options(parser)
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


@gin_files.in_words_of_t5x("infer")
def main(argv: list[str]) -> None:
  """The command.

  Args:
    argv: what follows `t2t infer`.

  Raises:
    UserError: see `batch_inference.run`, and what each way of asking needs.
  """
  options, gin_config = _options(argv)
  of_tasks = gin_config is not None and not options.input and not options.server  # the inputs are a mixture's
  needed = ("checkpoint",) if options.server else ("checkpoint", "input", "output")
  if of_tasks:
    if not gin_config.workdir:
      or_bound = gin_files.or_bound(gin_config, "--workdir")
      raise UserError(f"where to write is missing: give --input FILE with --output FILE,{or_bound}")
    needed = ("checkpoint",)
  for name in needed:
    if not getattr(options, name):
      or_bound = gin_files.or_bound(gin_config, "--checkpoint") if name == "checkpoint" else ""
      raise UserError(f"--{name} is missing: give --{name} PATH{or_bound}; see `t2t infer --help`")
  if options.server and (name := next((name for name in _OF_FILES if getattr(options, name)), "")):
    raise UserError(f"--{name}: is for files, and --server answers requests; leave out one of them")
  if options.server and not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
    raise UserError('t2t infer --server needs Starlette and uvicorn: pip install "t2t-jax[serve]"')
  jsonl_io.check_local(options.output)
  decode = text_generation.decode_config(
    max_length=options.max_length,
    min_length=options.min_length,
    beam=options.beam,
    length_penalty=options.length_penalty,
    temperature=options.temperature,
    top_p=options.top_p,
    top_k=options.top_k,
  )
  if options.server:
    memory.keep_freed_memory()  # the page is one process's
  else:
    hosts.start(options, default.get_config().train)
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  gin_files.tell(gin_config)
  source = pretrained.read_source(options.checkpoint)
  if note := inspect.better(options.checkpoint, source.path, source.run):
    print(note, file=sys.stderr)
  source = source if gin_config is None else gin_files.check(gin_config, source)
  if options.task:
    source = select_task.choose(source, options.task, where="--task")
  adapters = multi_adapter.open_all(source, _places(options.adapter)) or select_task.split_by_task(source)
  pretrained.trust(options.task_modules)
  if options.server:
    from t2t.serving import server  # which imports the extra

    server.serve(_service(options, source, adapters, decode), host=options.host, port=options.port)
    return
  if options.input.endswith(".txt"):
    source = select_task.choose(source, source.task, where="--task")
  if adapters and options.input.endswith(".txt"):
    raise UserError(f"--adapter: a line of {options.input} can name none; give a .jsonl file, with an object on each")
  make_way = _chosen_way(options, source, adapters, decode)
  if options.input and not options.task and (names := prompt_builder.tasks_with_prefixes(source)):
    note = (
      f"{source.path}: was trained on {', '.join(names)}; --task NAME puts the prefix of one in front of each input"
    )
    print(note, file=sys.stderr)
  mesh = batch_inference.make_mesh(options.tensor)
  load = functools.partial(multi_adapter.load, source, adapters, mesh) if adapters else None
  blank = "" if adapters or options.head else prompt_builder.blank(source)
  for input_path, output_path in _files(options, gin_config if of_tasks else None, source):
    as_table = jsonl_io.is_table(output_path)
    if as_table:
      table_output.check(output_path, input_path)
    rows_path = table_output.rows_path(output_path) if as_table else output_path
    job = batch_inference.InferenceJob(
      input_path, rows_path, options.field, options.batch_size, options.strict, blank=blank
    )
    way = make_way(mesh)
    batch_inference.run(source, mesh, way, job, load=load)
    if as_table and jax.process_index() == 0:
      read = functools.partial(jsonl_io.read, input_path, field=options.field, form=way.form)
      table_output.write(output_path, read)
      print(f"{'table':<14} {output_path}")


def _options(argv: list[str]) -> tuple[argparse.Namespace, gin.ConvertedGin | None]:
  """The options, with those that gin files say where none is typed, and the files."""
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
  """What is read and written: the files of the options, or of the tasks of gin files."""
  if gin_config is None:
    return [(options.input, options.output)]
  from t2t.evaluation import inputs

  paths = inputs.write(records(gin_config.config()).data, source.model.architecture, gin_config.workdir)
  if options.output and len(paths) > 1:
    raise UserError(f"--output {options.output}: {', '.join(paths)} have a file each; leave it out")
  suffix = "-inputs.jsonl"
  return [(path, options.output or f"{path.removesuffix(suffix)}-predict.jsonl") for path in paths.values()]


def _places(specs: list[str]) -> dict[str, str]:
  """Name -> path of what --adapter says.

  Raises:
    UserError: it does not say both, or a name twice.
  """
  paths: dict[str, str] = {}
  for spec in specs:
    name, equals, path = spec.partition("=")
    if not name or not equals or not path:
      raise UserError(f"--adapter {spec}: give NAME=RUN, the name that lines have and the run that trained it")
    if name in paths:
      raise UserError(f"--adapter {spec}: {name} is {paths[name]} already; give another name")
    paths[name] = path
  return paths


def _asks(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig, *, where: str = ""
) -> str:
  """How a model is asked: "head", "fill" or "write".

  Raises:
    UserError: it can be asked in no way, or there are options of another.
  """
  where = f"{where}{source.path}" if where else f"--checkpoint {options.checkpoint}"
  # Of a model that learned both, heads are asked by name: those of pre-training tell what nobody asks for.
  if options.head or (pretrained.answers_by_heads(source) and not pretrained.predicts_tokens(source)):
    method, reason = "head", "is asked by its head"
  elif source.model.is_generative:
    method, reason = "write", "writes"
  else:
    predictor.check_predicts_tokens(source.model, where=where)
    method, reason = "fill", "is an encoder alone, which fills blanks"
  if method != "write" and decode != text_generation.decode_config(max_length=_MAX_LENGTH):
    raise UserError(
      f"{where} {reason} and writes nothing: leave out the options of writing, as --max_length and --beam"
    )
  if method != "fill" and options.top is not None:
    raise UserError(f"--top {options.top}: {where} {reason}, and fills no blanks; leave it out")
  if method != "head" and options.no_answer:
    raise UserError(f"--no_answer {options.no_answer}: {where} {reason}, and it is for span heads; leave it out")
  return method


def _ranks(source: pretrained.Source, decode: decoding.DecodeConfig) -> bool:
  """Returns whether a model that writes ranks the labels of its table: no option of writing is given."""
  spec = table_inputs.spec_of(source)
  is_one_of = spec is not None and spec.kind in ("class", "choice")
  return is_one_of and decode == text_generation.decode_config(max_length=_MAX_LENGTH)


def _way(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Builds the way of asking a model on a mesh; a line may have the columns of the checkpoint's table."""
  make_way = _way_of_text(options, source, decode)
  return make_way if _asks(options, source, decode) == "fill" else table_inputs.around(source, make_way)


def _way_of_text(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """Returns what builds the way of asking each text."""
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
      raise UserError(f"--no_answer {options.no_answer}: {head.name} is a {head.kind} head, no span's; leave it out")
    head = dataclasses.replace(head, no_answer=options.no_answer == "yes")
  return functools.partial(
    token_classify.way_of(head), source, head=head, longest=longest, batch_size=options.batch_size
  )


def _as_long_as_targets(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig
) -> decoding.DecodeConfig:
  """Returns the options of writing; the length is that of the targets of the checkpoint's table, unless it is typed."""
  if table_inputs.spec_of(source) is None or options.max_length != _MAX_LENGTH:
    return decode
  return dataclasses.replace(decode, max_length=max(source.run["data"]["targets_length"], decode.min_length))


def _chosen_way(
  options: argparse.Namespace,
  source: pretrained.Source,
  adapters: Mapping[str, pretrained.Source],
  decode: decoding.DecodeConfig,
) -> Callable[[jax.sharding.Mesh], batch_inference.Way]:
  """What is asked of each line, where lines may choose among adapters.

  Raises:
    UserError: adapters that are asked in different ways.
  """
  if not adapters:
    return _way(options, source, decode)
  wanted = _asked_alike(options, adapters, decode)
  # A base that only predicts tokens may carry heads.
  itself = wanted[0] != "head" or any(head.kind == wanted[1] for head in source.model.heads)
  sources = adapter_routing.named_models(source, adapters, itself=itself)
  make = {id(adapter_source): _way(options, adapter_source, decode) for adapter_source in sources.values()}
  paths = {name: str(adapter_source.path) for name, adapter_source in adapters.items()}

  def on(mesh: jax.sharding.Mesh) -> batch_inference.Way:
    return adapter_routing.Choosing(
      adapter_routing.ways_of(sources, lambda adapter_source: make[id(adapter_source)](mesh)), paths
    )

  return on


def _asked_alike(
  options: argparse.Namespace, adapters: Mapping[str, pretrained.Source], decode: decoding.DecodeConfig
) -> tuple[str, ...]:
  """How all of the adapters are asked, see `_asked`.

  Raises:
    UserError: two are asked in different ways.
  """
  ways = {
    name: _asked(options, adapter_source, decode, f"--adapter {name}=") for name, adapter_source in adapters.items()
  }
  first, wanted = next(iter(ways.items()))
  for name, way in ways.items():
    if way != wanted:
      raise UserError(
        f"--adapter {name}: is asked otherwise ({' '.join(way)}) than {first} ({' '.join(wanted)}); ask them apart"
      )
  return wanted


def _asked(
  options: argparse.Namespace, source: pretrained.Source, decode: decoding.DecodeConfig, where: str
) -> tuple[str, ...]:
  """How a model is asked, and of a head its kind."""
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
  """What answers behind the page."""
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
