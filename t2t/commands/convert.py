"""`t2t convert`: converts checkpoints of T5X, Hugging Face and PEFT, and gin files of T5X."""

import argparse
from collections.abc import Iterator
import dataclasses
import math
import re
import shlex
import textwrap

from absl import logging
from etils import epath
import jax

from t2t import UserError, convert, did_you_mean
from t2t.checkpoints import adapter_export, pretrained, restore, tensor_writer, verify
from t2t.commands import config_of_run, gin_files
from t2t.convert import (
  atomic_output,
  gin,
  hf_config,
  hf_heads,
  huggingface,
  int8,
  lazy_tensors,
  peft,
  peft_config,
  t5x,
  vocab_override,
)
from t2t.runtime import amounts, numeric
from t2t.storage import gcs, hub

# Value of --from -> its name in messages.
KINDS = {
  "hf": "a Hugging Face folder",
  "peft": "an adapter of PEFT",
  "t5x": "a checkpoint of T5X",
  "t2t": "a checkpoint of t2t",
  "int8": "a folder of int8 tensors",
  "word2vec": "a text file of word vectors",
}
_WRITTEN_ONLY, _READ_ONLY = ("word2vec",), ("t5x",)
_UNITS = {"": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_SHARD = "5GB"  # the default of transformers


@dataclasses.dataclass(frozen=True)
class ConversionJob:
  """A conversion, as the options of the command describe it.

  extra_ids: None: the number in the vocabulary's files.
  dtype, max_shard_bytes: only for a Hugging Face folder.
  head: to hf, the head to export; from hf, the name of the imported head.
  base: base model of an imported adapter; "": the one that its folder names.
  weights: of a t2t checkpoint, see `pretrained.Source`.
  """

  source: str
  kind: str
  out: str
  target: str
  vocabulary: str
  extra_ids: int | None
  dtype: str
  max_shard_bytes: int
  head: str = ""
  base: str = ""
  weights: str = ""


# ---- Converting ------------------------------------------------------------------------------------------------------


def run(job: ConversionJob) -> None:
  """Converts a checkpoint; prints assumptions, the path of the result, and commands that read it.

  Raises:
    UserError: the checkpoint cannot be read, has no counterpart, or the result cannot be written.
  """
  if job.target == "word2vec":
    from t2t.contrib.static import word_vectors

    table = word_vectors.of_run(job.source, where="")
    word_vectors.write(table, gcs.absolute(job.out))
    print(f"wrote {job.out}: {len(table.words):,} words, {table.vectors.shape[1]} numbers each")
    return
  if "peft" in (job.kind, job.target):
    (_take_adapter if job.kind == "peft" else _give_adapter)(job)
    return

  # ---- Source --------------------------------------------------------------------------------------------------------
  if job.kind == "t2t":
    foreign = tensor_writer.open_foreign(job.source, weights=job.weights)
  else:
    foreign = {"hf": huggingface, "t5x": t5x, "int8": int8}[job.kind].open_foreign(job.source)
  lazy_tensors.check(foreign)
  if job.vocabulary:
    foreign = vocab_override.give(foreign, job.vocabulary, extra_ids=job.extra_ids)
  if job.head and job.target == "t2t":
    foreign = hf_heads.renamed(foreign, job.head)
  notes = list(foreign.notes)

  # ---- Result --------------------------------------------------------------------------------------------------------
  out = gcs.absolute(job.out)
  if job.target in ("t2t", "int8"):
    with atomic_output.progress(
      sum(tensor.nbytes for tensor in foreign.tensors.values()), len(foreign.tensors)
    ) as advance:
      if job.target == "int8":
        notes += int8.save(foreign, out, advance=advance)
      else:
        tensor_writer.save(foreign, out, advance=advance)
  else:
    options = {"dtype": job.dtype, "head": job.head, "max_shard_bytes": job.max_shard_bytes}
    target = hf_config.written_as(foreign.model, str(foreign.path), head=job.head)
    with atomic_output.progress(*_size(target, job.dtype)) as advance:
      notes += huggingface.save(foreign, out, **options, advance=advance)
  print("\n".join(_report(foreign, job, notes)))


def _take_adapter(job: ConversionJob) -> None:
  """Converts a PEFT folder to a t2t run."""
  base_name = peft_config.base_named(job.source)
  if not job.base and not (base_name and gcs.absolute(base_name).exists()):
    if base_name and hub.name_of(base_name):
      hub.check(base_name, where=f"{job.source}: {peft.CONFIG}: base_model_name_or_path=")
    named = f"the base model {base_name!r}, but no such folder exists" if base_name else "no base model"
    raise UserError(
      f"{job.source}: {peft.CONFIG} names {named}. Give --base MODEL, the model that the adapter was trained on."
    )
  base, part = adapter_export.open_base(
    job.base or base_name, where="--base " if job.base else f"{job.source}: its base: "
  )
  lazy_tensors.check(base)
  if job.vocabulary:
    base = vocab_override.give(base, job.vocabulary, extra_ids=job.extra_ids)
  adapter = peft.open_adapter(job.source, base, head=job.head)
  nbytes = sum(tensor.nbytes for tensor in adapter.tensors.values())
  with atomic_output.progress(nbytes, len(adapter.tensors) + len(adapter.kept)) as advance:
    written = adapter_export.save(adapter, base, part, gcs.absolute(job.out), advance=advance)
  notes = [
    *base.notes,
    f"refers to its base {base.path}; keep that folder in place, or move it together with {job.out}",
  ]
  if adapter.kept:
    notes.append(f"head parameters taken from the base: {', '.join(adapter.kept)}")
  print("\n".join(_report(written, job, notes)))


def _give_adapter(job: ConversionJob) -> None:
  """Converts a t2t run that trained an adapter to a PEFT folder."""
  source = pretrained.read_source(job.source, where="", weights=job.weights)
  (trained, below), base = adapter_export.trained(source), adapter_export.base_folder(source)
  number = sum(len(tensor.parts) for tensor in trained.values())  # PEFT stores each layer separately
  with atomic_output.progress(sum(tensor.nbytes for tensor in trained.values()), number) as advance:
    notes = peft.save(
      source.model,
      source.adapters,
      trained,
      below,
      gcs.absolute(job.out),
      where=source.name,
      base=base,
      head=job.head,
      advance=advance,
    )
  foreign = lazy_tensors.Foreign(source.path, "t2t", source.model, source.vocabulary, 0, {}, trained)
  print("\n".join(_report(foreign, job, notes)))


def _size(target: hf_config.Written, dtype: str) -> tuple[int, int]:
  """Returns bytes and number of the tensors of a Hugging Face folder."""
  written = huggingface.written(target.family, target.model)
  width = 4 if dtype == "float32" else 2
  return width * sum(math.prod(mapping.shape) for mapping in written.values()), len(written)


def _report(foreign: lazy_tensors.Foreign, job: ConversionJob, notes: list[str]) -> Iterator[str]:
  """Yields the lines of the final report."""
  model, out = foreign.model, gcs.absolute(job.out)
  parameters = sum(math.prod(tensor.shape) for tensor in foreign.tensors.values())
  of_stacks = lambda values: " + ".join(f"{number:,}" for number in values if number)
  layers = of_stacks((model.num_encoder_layers, model.num_decoder_layers))
  widths, heads = (
    of_stacks(dict.fromkeys(getattr(model.of_stack(side), name) for side in model.kind.sides))
    for name in ("embed_dim", "num_heads")
  )
  written = sum((folder / name).stat().length for folder, _, names in out.walk() for name in names)
  dtype = {"t2t": "float32", "int8": "int8 with scales, vectors float32"}.get(job.target, job.dtype)
  yield f"from          {gcs.origin(str(foreign.path))}, {KINDS[job.kind]}"
  yield f"to            {out}, {KINDS[job.target]}"
  yield f"architecture  {model.architecture}, {layers} layers of width {widths}, {heads} heads"
  yield f"parameters    {parameters:,}, {dtype}"
  yield f"size          {amounts.nbytes(written)}"
  for note in notes:
    # Keep paths and options whole, so that they can be copied.
    yield textwrap.fill(f"note: {note}", 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
  yield "next:"
  for command in _commands(foreign, job):
    yield f"  {command}"


def _commands(foreign: lazy_tensors.Foreign, job: ConversionJob) -> Iterator[str]:
  """Yields commands that read the result."""
  out = shlex.quote(job.out)
  if job.target == "peft":
    yield "t2t convert --from t2t BASE --to hf FOLDER, if the base has another format"
    yield f'python -c "import peft; peft.PeftModel.from_pretrained(MODEL, {job.out!r})"'
    return
  if job.target == "hf":
    model_class = hf_config.written_as(foreign.model, str(foreign.path), head=job.head).model_class
    yield f'python -c "import transformers as t; t.{model_class}.from_pretrained({job.out!r})"'
    yield f"t2t convert {out} --to t2t WORKDIR"
    return
  words = "" if foreign.vocabulary else " --config.data.vocabulary=FILE"
  knows_tokens = foreign.model.vocabulary_head
  if foreign.model.kind.is_generative and foreign.vocabulary and knows_tokens:
    yield f"t2t infer --checkpoint {out} --input FILE --output FILE"
  # A detector has no token probabilities either.
  if knows_tokens and not any(head.kind == "detector" for head in foreign.model.heads):
    yield f"t2t eval --checkpoint {out} --config {_config_name(job)} --workdir WORKDIR{words}"
  if foreign.model.kind.is_generative and knows_tokens:
    yield f"t2t train --config finetune_superglue --config.init.checkpoint={out} --workdir WORKDIR{words}"
  else:
    yield f"t2t train --config CONFIG --config.init.checkpoint={out} --workdir WORKDIR{words}"


def _config_name(job: ConversionJob) -> str:
  """Returns the config that evaluates the result: that of the converted run, or superglue for other formats."""
  return config_of_run.quoted_name(job.source) if job.kind == "t2t" else "superglue"


# ---- The command -----------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t convert",
    usage="t2t convert [--from KIND] PATH [--to KIND] OUT [options]",
    description="Imports checkpoints of T5X and Hugging Face and exports them to Hugging Face;\n"
    "imports and exports PEFT adapters. Works parameter by parameter: memory holds\n"
    "only the largest one. Refuses checkpoints that cannot be converted exactly, and\n"
    "prints every assumption.",
    epilog="kinds:\n"
    "  hf     a folder with config.json and safetensors, sharded or not: T5 (1.1,\n"
    "         mT5, ByT5, Flan-T5, UL2), Switch, T5Gemma, BART, Marian, BERT, RoBERTa,\n"
    "         XLM-R, ALBERT, DistilBERT, ModernBERT, ELECTRA, DeBERTa 1 to 3, XLNet,\n"
    "         Longformer, MobileBERT, RemBERT, GPT-2, MPT, Llama, Mistral, Mixtral,\n"
    "         Qwen 2 and 3, Gemma 1 to 3; and their task classes\n"
    "         (...ForSequenceClassification and others).\n"
    "         from_pretrained of transformers loads an exported folder; adapters of\n"
    "         a t2t model are merged\n"
    "  peft   an adapter, a folder with adapter_config.json and safetensors: LoRA,\n"
    "         (IA)3, prompt tuning, prefix tuning. An import becomes a run that\n"
    "         refers to its base\n"
    "  t5x    a T5: a folder of arrays, or the older single file; import only\n"
    "  int8   int8.safetensors, matrices as int8 with scales, and t2t.json; t2t reads\n"
    "         it like a checkpoint (docs/compression.md)\n"
    "  word2vec\n"
    "         a text file of the vectors of a run of word vectors, which gensim's\n"
    "         KeyedVectors.load_word2vec_format reads; export only\n"
    "  t2t    a workdir, or one of its checkpoints\n\n"
    "examples:\n"
    "  t2t convert --from hf flan-t5-base --to t2t runs/flan_t5_base\n"
    "  t2t convert --from t2t runs/tiny --to hf exported --dtype bfloat16\n"
    "  t2t convert --from t2t runs/lora --to peft exported\n"
    "  t2t convert --from t2t runs/q8bert --to int8 exported\n"
    "  t2t convert --from peft adapter --base flan-t5-base --to t2t runs/adapter\n"
    "  t2t convert --from t5x t5_1_1_base/checkpoint_1000000 --to t2t runs/t5_base \\\n"
    "    --vocabulary spiece.model\n"
    "  t2t convert --gin_file base_c4_pretrain.gin --gin.TRAIN_STEPS=1000 > c4.py",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("paths", nargs="*", metavar="PATH OUT", help="the checkpoint, and a folder to create")
  add = parser.add_argument
  add("--from", dest="kind", default="", metavar="KIND", help="hf, peft, t5x, int8 or t2t; default: detected")
  add(
    "--to",
    dest="target",
    default="",
    metavar="KIND",
    help="t2t, hf, peft, int8 or word2vec; default: t2t, or hf for a t2t checkpoint",
  )
  add("--gin", default="", metavar="FILE", help="alias of --gin_file: prints the equivalent config")
  words = parser.add_argument_group("vocabulary")
  add = words.add_argument
  add(
    "--vocabulary",
    default="",
    metavar="FILE",
    help='vocabulary of the checkpoint, if its folder has none; or "bytes"',
  )
  add(
    "--extra_ids",
    type=numeric.integer(0),
    metavar="N",
    help="sentinels after its ids; default: 100 for a .model without sentinels",
  )
  parser.add_argument(
    "--head",
    default="",
    metavar="NAME",
    help="from hf: name of the imported head, that of its task; to hf: the head to export, or vocabulary",
  )
  parser.add_argument(
    "--weights",
    choices=restore.WEIGHTS,
    default="",
    help="from t2t: "
    "average, or trained, the parameters of the last step; default: average for a run with config.eval.average",
  )
  parser.add_argument(
    "--base",
    default="",
    metavar="BASE",
    help="from peft: base model of the adapter; default: the one that its folder names",
  )
  theirs = parser.add_argument_group("writing hf")
  add = theirs.add_argument
  add("--dtype", metavar="DTYPE", help="float32, bfloat16 or float16; default: float32")
  add("--max_shard_size", metavar="SIZE", help=f"largest file size, for example 500MB; default: {_SHARD}")
  gin_files.add_options(parser, "")
  parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
  return parser


def _shard_bytes(text: str) -> int:
  match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]B|)", text.strip().upper())
  if not match or float(match[1]) * _UNITS[match[2]] < 1:
    raise UserError(f"--max_shard_size {text} is not a size. Give, for example, 5GB, 500MB or 500000 (bytes).")
  return int(float(match[1]) * _UNITS[match[2]])


def _known(option: str, kind: str) -> None:
  if kind and kind not in KINDS:
    kinds = [known_kind for known_kind in KINDS if known_kind not in (_WRITTEN_ONLY, _READ_ONLY)[option == "to"]]
    near = did_you_mean(kind, kinds)
    is_path = (
      f". Give the kind before the path: --{option} KIND {kind}" if epath.Path(kind).exists() or "/" in kind else ""
    )
    raise UserError(f"--{option} {kind}: unknown kind. Give one of: {', '.join(kinds)}{near or is_path}")


def _kind(path: str, requested: str) -> str:
  """Returns the kind of a checkpoint.

  Raises:
    UserError: there is no checkpoint, or its kind is not `requested`.
  """
  gcs.check(path, where="")
  folder = gcs.absolute(path)
  if not folder.exists():
    hub.check(path, where="")
    raise UserError(f"{path}: no such file or folder; check the path of the checkpoint")
  detected = convert.kind_of(path)
  if detected == "t2t" and t5x.is_tensorflow(folder):
    raise UserError(f"{path} {t5x.TENSORFLOW}")
  if requested and detected not in (requested, "t2t"):
    raise UserError(f"--from {requested}: {path} is {KINDS[detected]}. Give --from {detected}, or leave out --from.")
  if requested or detected != "t2t":
    return requested or detected
  try:
    restore.checkpoint_folder(path)
  except verify.DamagedCheckpoint:
    raise
  except UserError as error:
    raise UserError(
      f"{path}: no checkpoint found. Give a folder with the files of one of these kinds:\n"
      f"  hf: config.json with a model_type, and model.safetensors or model.safetensors.index.json\n"
      f"  t5x: {t5x.looked_for(folder)}\n"
      f"  t2t: {folder}/state, {folder}/checkpoints/STEP and {folder}/STEP"
    ) from error
  return detected


def _job(options: argparse.Namespace) -> ConversionJob:
  """Checks the options and returns the conversion that they describe."""
  _known("from", options.kind)
  _known("to", options.target)
  if len(options.paths) > 2:
    raise UserError(f"{options.paths[2]}: too many paths. Give one checkpoint and one output folder.")
  if len(options.paths) < 2:
    missing = "the output folder is" if options.paths else "the checkpoint and the output folder are"
    raise UserError(f"{missing} missing. Run `t2t convert PATH OUT`; see `t2t convert --help`.")
  source, out = gcs.fetched(options.paths[0], where=""), options.paths[1]
  if out.startswith("hf://"):
    raise UserError(f"{out}: `t2t convert` writes folders. Run `t2t push {options.paths[0]} {out}` to upload a model.")
  gcs.check(out, where="")
  if options.target == "t5x":
    raise UserError("--to t5x: t2t cannot write T5X checkpoints. Give --to hf, peft or t2t.")
  if options.extra_ids is not None and not options.vocabulary:
    raise UserError(
      f"--extra_ids {options.extra_ids} needs --vocabulary, because sentinels follow the ids of the vocabulary. Give "
      "--vocabulary FILE, or leave out --extra_ids."
    )
  kind = _kind(source, options.kind)
  target = options.target or ("hf" if kind == "t2t" else "t2t")
  if target == "word2vec" and kind != "t2t":
    raise UserError(f"--to word2vec: {source} is {KINDS[kind]}, not a t2t run of word vectors. Give such a run.")
  if kind == target == "t2t":
    raise UserError(f"--to t2t: {source} is a t2t checkpoint already. Copy the folder, or give --to hf.")
  if kind == "peft" and target != "t2t":
    raise UserError(
      f"--to {target}: {source} is a PEFT adapter, and t2t converts adapters only to t2t. Give --to t2t, merge the "
      "result with `t2t adapt merge`, and convert the merged model."
    )
  if target == "peft" and kind != "t2t":
    raise UserError(f"--to peft: {source} is {KINDS[kind]}, not a t2t run that trained an adapter. Give such a run.")
  if options.weights and kind != "t2t":
    raise UserError(f"--weights {options.weights} applies only to a t2t checkpoint. Leave out --weights.")
  if options.base and kind != "peft":
    raise UserError(f"--base {options.base} applies only to --from peft. Leave out --base.")
  if target == "int8" and kind == "int8":
    raise UserError(f"--to int8: {source} is such a folder already. Copy it, or give --to t2t.")
  if target != "hf":
    for name in ("dtype", "max_shard_size"):
      if getattr(options, name):
        raise UserError(
          f"--{name} {getattr(options, name)} applies only to --to hf; other formats store float32. Leave out --{name}."
        )
  return ConversionJob(
    source=source,
    kind=kind,
    out=out,
    target=target,
    vocabulary=options.vocabulary,
    extra_ids=options.extra_ids,
    dtype=options.dtype or "float32",
    head=options.head,
    base=options.base,
    weights=options.weights,
    max_shard_bytes=_shard_bytes(options.max_shard_size or _SHARD),
  )


def main(argv: list[str]) -> None:
  """Runs `t2t convert`.

  Args:
    argv: arguments after `t2t convert`.

  Raises:
    UserError: see `run`.
  """
  # Options may come between the two paths: --from hf DIR --to t2t OUT.
  typed = [argument for argument in argv if gin_files.is_binding(argument)]
  options = _parser().parse_intermixed_args([argument for argument in argv if not gin_files.is_binding(argument)])
  options.gin_file = [*options.gin_file, *([options.gin] if options.gin else [])]
  if options.gin_file:
    if options.paths or options.kind or options.target:
      raise UserError(
        f"--gin_file {options.gin_file[0]} prints a config and converts no checkpoint. Leave out PATH, OUT, "
        "--from and --to."
      )
    from t2t.commands import gin_conversion

    gin.main(gin_conversion.read(options, typed))
    return
  if typed:
    raise UserError(f"{typed[0]} sets a name of a gin file, but --gin_file is missing. Add --gin_file FILE.")
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  # The conversion needs no accelerator, and a run on this machine may hold its accelerators.
  jax.config.update("jax_platforms", "cpu")
  run(_job(options))
