"""`t2t neighbours`: the lines, or the words in context, whose vectors are nearest to those of queries."""

import argparse
import json

import jax
import rich.console

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.commands import embed
from t2t.inference import batch_inference, embedding, embedding_files, jsonl_io
from t2t.runtime import numeric
from t2t.storage import gcs


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="t2t neighbours",
    usage="t2t neighbours --checkpoint C --query TEXT ... FILE [options]\n"
    "       t2t neighbours --vectors V WORD ... [options]",
    description="Prints the lines of a file whose vectors have the highest cosine with the\n"
    "vector of each query.  If a word of the query is in double brackets, the words\n"
    "of all lines are compared in their contexts instead; a word has the mean of the\n"
    "states of its tokens.  A model of any architecture.\n\n"
    "With --vectors, prints the words nearest to each WORD, or to a sum of words such\n"
    "as king - man + woman, and evaluates static word vectors.",
    epilog="examples:\n"
    "  t2t neighbours --checkpoint runs/tiny --query 'Return the number of days.' \\\n"
    "    questions.txt\n"
    "  t2t neighbours --checkpoint runs/tiny_bert --query 'Kids [[play]] outside.' \\\n"
    "    --same_word --layer 1 --top 5 sentences.txt\n"
    "  t2t neighbours --checkpoint runs/tiny --queries queries.txt \\\n"
    "    --index vectors.npy --output neighbours.jsonl questions.txt\n"
    "  t2t neighbours --vectors runs/word2vec king - man + woman\n"
    "  t2t neighbours --vectors glove.6B.50d.txt --analogies questions-words.txt \\\n"
    "    --similarities wordsim353.csv",
    allow_abbrev=False,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add(
    "items", nargs="*", metavar="FILE|WORD", help=".txt, a text a line; .jsonl, an object a line; or a table; or words"
  )
  add("--vectors", default="", metavar="V", help="a run of word vectors, or a text file of word2vec or GloVe")
  add(
    "--analogies", default="", metavar="FILE", help="with --vectors: four words a line, in sections that begin with ':'"
  )
  add(
    "--similarities", default="", metavar="FILE", help="with --vectors: two words and a score a line, as in WordSim-353"
  )
  add("--checkpoint", default="", metavar="C", help="a workdir that t2t trained in, or one of its checkpoints")
  add(
    "--query", action="append", default=[], metavar="TEXT", help="a sentence, or a word in one: 'Kids [[play]] outside'"
  )
  add("--queries", default="", metavar="FILE", help="queries, one a line")
  add("--top", type=numeric.integer(1), default=10, metavar="N", help="neighbours of each query; default: 10")
  add("--same_word", action="store_true", help="compare a word with occurrences of the same word alone")
  add("--field", default="", help="key of the text in a JSON object of FILE; default: inputs")
  add(
    "--index", default="", metavar="FILE.npy", help="output of `t2t embed` for FILE, instead of computing the vectors"
  )
  add("--search", default="exact", metavar="S", help="exact, or faiss (needs t2t-jax[faiss]); default: exact")
  add("--output", default="", metavar="FILE", help="file for a JSON object per query; -: standard output, no table")
  embed.add_vector_options(parser)
  embed.add_model_options(parser)
  return parser


def main(argv: list[str]) -> None:
  """Runs `t2t neighbours`.

  Raises:
    UserError: an option, a query or a file cannot be used.
  """
  from t2t.evaluation import results
  from t2t.evaluation.vectors import encoding, nearest, neighbours

  options = _parser().parse_intermixed_args(argv)
  if options.vectors:
    _of_words(options)
    return
  _check(options)
  if options.search not in nearest.SEARCHES:
    known = ", ".join(nearest.SEARCHES)
    raise UserError(f"--search {options.search}: unknown value. Give one of: {known}.")
  nearest.check(options.search)
  queries = neighbours.queries_of(_query_texts(options))
  lines = list(jsonl_io.read(options.file, field=options.field, option="FILE"))
  if options.index and queries[0].words is not None:
    raise UserError(f"--index {options.index} has vectors of lines, but the queries mark words. Leave out --index.")
  source, longest = embed.open_source(options)
  corpus = neighbours.Corpus(lines, queries, same_word=options.same_word, where=f"FILE: {options.file}")
  mesh = batch_inference.make_mesh(options.tensor)
  encoder = encoding.TextEncoder(
    source, mesh, pool=options.pool, layer=options.layer, longest=longest, batch_size=options.batch_size
  )
  index = None
  if options.index:
    run = embedding.run_options(longest, pool=options.pool, layer=options.layer, layers=encoder.layers)
    run |= {"checkpoint": source.name} | ({"task": source.task} if source.task else {})
    index = embedding_files.open_index(options.index, run, lines, option="--index")
  encoded = [encoder.encode_whole(query) for query in queries]
  params = pretrained.load(source, mesh).params
  with results.progress(len(lines)) as on_batch:
    best, counts = corpus.search(
      encoder,
      params,
      encoded,
      top=options.top,
      search=options.search,
      index=index,
      on_batch=lambda number, tokens: on_batch(options.file, number, tokens),
    )
  if jax.process_index() != 0:
    return
  rows = [neighbours.record(*of_query) for of_query in zip(queries, encoded, best, strict=True)]
  content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
  if options.output == jsonl_io.PIPE:
    print(content, end="")
    return
  console = rich.console.Console()
  for query, of_query in zip(queries, best, strict=True):
    neighbours.print_table(query, of_query, console)
  _print_counts(options, counts, sum(text.cut > 0 for text in encoded), longest, of_words=queries[0].words is not None)
  if options.output:
    gcs.write(gcs.absolute(options.output), content)
    print(f"neighbours     {options.output}")


def _of_words(options: argparse.Namespace) -> None:
  """Prints neighbours of words, and evaluates analogies and similarities."""
  from t2t.contrib.static import word_tables

  for name, value in (("checkpoint", options.checkpoint), ("query", options.query), ("queries", options.queries)):
    if value:
      raise UserError(f"--{name} does not apply with --vectors, which compares words. Leave out --{name} or --vectors.")
  if not (options.items or options.analogies or options.similarities):
    raise UserError("WORD is missing. Give words, --analogies FILE or --similarities FILE; see t2t neighbours --help.")
  word_tables.show(
    options.vectors,
    options.items,
    top=options.top,
    analogies=options.analogies,
    similarities=options.similarities,
    output=options.output,
  )


def _check(options: argparse.Namespace) -> None:
  for name in ("analogies", "similarities"):
    if getattr(options, name):
      raise UserError(f"--{name} needs --vectors, static word vectors. Give --vectors V, or leave out --{name}.")
  if len(options.items) != 1:
    fault = "FILE is missing" if not options.items else f"{options.items[1]}: too many files"
    raise UserError(f"{fault}. Give one FILE with lines to compare, or --vectors V with words.")
  options.file = options.items[0]
  if not options.checkpoint:
    raise UserError("--checkpoint is missing. Give --checkpoint VALUE; see `t2t neighbours --help`.")
  if not (options.query or options.queries):
    raise UserError("--query is missing. Give --query TEXT, or a file of queries: --queries FILE.")
  embed.check_pool(options.pool)
  if options.layer == "all":
    raise UserError("--layer all: neighbours are those of one layer. Give the number of a layer.")
  if options.output and options.output != jsonl_io.PIPE:
    jsonl_io.check_local(options.output)
    if not options.output.endswith(".jsonl"):
      raise UserError(f"--output {options.output}: unknown file type. Give a file that ends in .jsonl, or -.")


def _query_texts(options: argparse.Namespace) -> list[tuple[str, str]]:
  """Returns the text of each query and its location."""
  texts = [
    (text, f"--query {number}" if len(options.query) > 1 else "--query") for number, text in enumerate(options.query, 1)
  ]
  if options.queries:
    for line in jsonl_io.read(options.queries, option="--queries"):
      texts.append((line.text, jsonl_io.location(options.queries, line.number, option="--queries")))
  if options.pool != "mean" and any("[[" in text for text, _ in texts):
    raise UserError(
      f"--pool {options.pool} does not apply to words, which have the mean of the states of their tokens. Leave out "
      "--pool."
    )
  return texts


def _print_counts(options: argparse.Namespace, counts, cut_queries: int, longest: int, *, of_words: bool) -> None:
  """Prints what was compared, and what was not read."""
  notes = [f"{counts.empty:,} empty lines"] if counts.empty else []
  notes += [f"{counts.cut:,} lines truncated to {longest:,} tokens"] if counts.cut else []
  notes += [f"{counts.left_out:,} words not read"] if counts.left_out else []
  unit = "words" if of_words else "lines"
  print(f"compared       {counts.candidates:,} {unit} of {options.file}" + (f" ({', '.join(notes)})" if notes else ""))
  if cut_queries:
    print(f"truncated      {cut_queries:,} queries, to {longest:,} tokens")
