"""`t2t vectors`: similarity of sentences (STS), bitext retrieval (Tatoeba), and cosines of words in sentences."""

import argparse
import dataclasses

import jax
import rich.console

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.commands import embed
from t2t.inference import batch_inference
from t2t.storage import gcs


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t vectors",
    usage="t2t vectors KIND --checkpoint C FILE [FILE] [options]",
    description="Evaluates the vectors of a model of any architecture:\n\n"
    "  sts     FILE: a tab-separated table with the columns sentence1, sentence2 and\n"
    "          score, or sts-dev.csv of the STS benchmark.  Spearman's and Pearson's\n"
    "          correlation of the score with the cosine.\n"
    "  bitext  FILE FILE: a sentence a line, and its translation; or a folder with\n"
    "          tatoeba.fra-eng.fra and tatoeba.fra-eng.eng.  Accuracy of the nearest\n"
    "          sentence in both directions.\n"
    "  words   FILE: a tab-separated table with the columns sentence1 and sentence2,\n"
    "          and word, or marks: Kids [[play]] outside.  The cosine of the word in\n"
    "          both, and its correlation with the column score, if there is one.",
    epilog="examples:\n"
    "  t2t vectors sts --checkpoint runs/tiny_bert --layer all STS-B/dev.tsv\n"
    "  t2t vectors bitext --checkpoint LABSE --margin ratio tatoeba/v1\n"
    "  t2t vectors words --checkpoint runs/tiny_bert senses.tsv --workdir runs/senses",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("kind", metavar="KIND", help="sts, bitext or words")
  add("files", nargs="+", metavar="FILE", help="see above; local or gs://")
  add("--checkpoint", default="", metavar="C", help="a workdir that t2t trained in, or one of its checkpoints")
  add(
    "--margin",
    default="absolute",
    metavar="M",
    help="score of bitext: absolute, the cosine; or distance or ratio, compared with the mean cosine of the four "
    "nearest neighbours (Artetxe & Schwenk 2019); default: absolute",
  )
  add("--workdir", default="", metavar="FOLDER", help="folder for results.json and predictions, for `t2t compare`")
  embed.add_vector_options(parser)
  embed.add_model_options(parser)
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t vectors`.

  Raises:
    UserError: an option or a file cannot be used.
  """
  from t2t.evaluation import results, vectors
  from t2t.evaluation.vectors import bitext, encoding

  options = _parser().parse_args(argv)
  if not options.checkpoint:
    raise UserError("--checkpoint is missing. Give --checkpoint VALUE; see `t2t vectors --help`.")
  for name, value, known in (("KIND", options.kind, vectors.EVALUATIONS), ("--margin", options.margin, bitext.MARGINS)):
    if value not in known:
      raise UserError(f"{name} {value}: unknown value. Give one of: {', '.join(known)}{did_you_mean(value, known)}")
  if options.margin != "absolute" and options.kind != "bitext":
    raise UserError(f"--margin {options.margin} applies to bitext alone. Leave out --margin.")
  embed.check_pool(options.pool)
  if options.kind == "words" and options.pool != "mean":
    raise UserError(f"--pool {options.pool}: a word has the mean of the states of its tokens. Leave out --pool.")
  gcs.check_folder(options.workdir, where="--workdir ")
  evaluation = vectors.read(options.kind, options.files, vectors.VectorOptions(options.margin))
  source, longest = embed.open_source(options)
  mesh = batch_inference.make_mesh(options.tensor)
  encoder = encoding.TextEncoder(
    source, mesh, pool=options.pool, layer=options.layer, longest=longest, batch_size=options.batch_size
  )
  encoded = [encoder.encode_whole(text) for text in evaluation.texts]
  params = pretrained.load(source, mesh).params
  with results.progress(len(encoded)) as on_batch:
    report = lambda number, tokens: on_batch(options.kind, number, tokens)
    text_vectors = encoder.vectors(params, encoded, on_batch=report)
  if jax.process_index() != 0:
    return
  console, all_results = rich.console.Console(), []
  for index, layer in enumerate(encoder.layers):
    of_layer = evaluation.results(text_vectors[:, index])
    if len(encoder.layers) > 1:
      of_layer = [dataclasses.replace(result, task=f"{result.task}_layer_{layer}") for result in of_layer]
    evaluation.show(of_layer, console, layer=f"layer {layer}" if len(encoder.layers) > 1 else "")
    all_results += of_layer
  if any(result.metrics for result in all_results):
    results.print_table(all_results, console, has_means=False)
  cut = sum(text.cut > 0 for text in encoded)
  print(f"texts          {len(encoded):,}" + (f" ({cut:,} truncated to {longest:,} tokens)" if cut else ""))
  if options.workdir:
    about = {"checkpoint": source.name, "pool": options.pool, "inputs_length": longest, "truncated": cut}
    path = results.write(all_results, gcs.absolute(options.workdir), about=about)
    print(f"results        {path}\npredictions    {path.parent / 'predictions'}")
