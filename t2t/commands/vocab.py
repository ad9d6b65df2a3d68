"""`t2t vocab`: trains a vocabulary, measures how it tokenizes each language, and counts pairs of words."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import itertools
import json
import pathlib
import re
import sys
import textwrap
import unicodedata

import rich.box
import rich.console
import rich.table

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.sources import text_files
from t2t.data.vocabularies import extending, fertility, text_sample, training
from t2t.runtime import numeric, progress
from t2t.storage import encoding

_WIDEST = 80  # columns

# --type -> training function, file name
_TRAINERS = {
  "sentencepiece": (training.train_sentencepiece, "spiece.model"),
  "wordpiece": (training.train_wordpiece, "vocab.txt"),
  "bpe": (training.train_bpe, "tokenizer.json"),
  "word": (training.train_words, "tokenizer.json"),
}


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(prog="t2t vocab", description="Vocabularies for your own text.")
  commands = parser.add_subparsers(dest="command", required=True)
  train = commands.add_parser(
    "train",
    help="train a vocabulary on your own text",
    description="Trains a vocabulary and writes it as one file:\n\n"
    "  sentencepiece  unigram model with T5's special ids (pad 0, </s> 1,\n"
    "                 <unk> 2, no sentinels): spiece.model\n"
    "  wordpiece      like BERT's, without capitals and accents: vocab.txt\n"
    "  bpe            byte-level like GPT-2's, but pad 0, </s> 1: tokenizer.json\n"
    "  word           the most frequent words, for word vectors: tokenizer.json, and\n"
    "                 word_counts.tsv with their counts\n\n"
    "Use it with --config.data.vocabulary=DIR/FILE.\n\n"
    "--extend adds the pieces that your text needs to a published vocabulary; a\n"
    "checkpoint trained with that vocabulary continues training with\n"
    "--config.init.transfer_vocab=True.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="examples:\n  t2t vocab train --input 'text/*.jsonl.gz' --size 32000 --output my_vocabulary\n"
    "  t2t vocab train --alpha 0.3 en='en/*.txt' sw=sw.txt --size 64000 --output both",
  )
  train.add_argument("languages", nargs="*", metavar="LANGUAGE=GLOBS", help="replaces --input: see --alpha")
  train.add_argument("--type", choices=_TRAINERS, help="default: sentencepiece, or the type of --extend")
  train.add_argument(
    "--extend",
    metavar="VOCABULARY",
    help="WordPiece or SentencePiece vocabulary to extend: its pieces keep their ids, and new pieces are added",
  )
  train.add_argument(
    "--input", help="globs, comma-separated: .txt .jsonl .csv (.gz, .zst, .br too) .parquet .tfrecord*"
  )
  train.add_argument(
    "--alpha",
    type=numeric.number(),
    help=(
      "exponent for the lines of a language (documents for wordpiece and bpe), which sets its share of the "
      "training text, as config.data.alpha does for sources: 1 (default) proportional, 0.3 favors small languages, "
      "0 uniform"
    ),
  )
  _add_field(train)
  train.add_argument(
    "--size", type=numeric.integer(1), default=32_000, help="number of pieces, including special ones; default: 32000"
  )
  train.add_argument("--output", required=True, help="folder to write the file in")
  train.add_argument(
    "--max_sentences",
    type=numeric.integer(1),
    default=1_000_000,
    help="largest number of training lines, drawn at random from all files; default: 1000000",
  )
  train.add_argument("--seed", type=numeric.integer(0), default=0, help="random seed of the drawn lines; default: 0")
  train.add_argument(
    "--character_coverage",
    type=numeric.number(0, 1, above=True),
    help=(
      "sentencepiece: fraction of the text with characters that get a piece; default: 1.0, less for scripts with "
      "thousands of characters"
    ),
  )
  train.add_argument(
    "--byte_fallback", action="store_true", help="sentencepiece: encode unknown characters as bytes, 256 pieces"
  )
  train.add_argument(
    "--symbols", help='sentencepiece: tags that become one piece each, "<2en>,<2sw>"; see language_tags'
  )
  train.add_argument("--cased", action="store_true", help="wordpiece, word: keep capitals and accents")
  train.add_argument(
    "--min_count", type=numeric.integer(1), help="word: number of times that a word must occur; default: 5"
  )
  train.add_argument("--overwrite", action="store_true", help="replace an existing file")
  pairs = commands.add_parser(
    "pairs",
    help="count pairs of words near each other, for GloVe",
    description="Counts how often words occur near each other, weighted by 1 / distance, and\n"
    "writes shuffled pairs-*.txt for the config glove.  Continues after an\n"
    "interruption; memory holds --most_pairs pairs, about 50 bytes each.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="example:\n  t2t vocab pairs --vocabulary words --input 'text/*.txt' --output counts",
  )
  pairs.add_argument("--vocabulary", required=True, help="words, see `t2t vocab train --type word`")
  pairs.add_argument("--input", required=True, help="globs, comma-separated, as for `t2t vocab train`")
  pairs.add_argument("--output", required=True, help="folder for the counts")
  pairs.add_argument("--window", type=numeric.integer(), default=10, help="largest distance; default: 10")
  pairs.add_argument(
    "--most_pairs", type=numeric.integer(1_000), default=20_000_000, help="pairs in memory; default: 20000000"
  )
  pairs.add_argument("--seed", type=numeric.integer(0), default=0, help="random seed of the order; default: 0")
  _add_field(pairs)
  report = commands.add_parser(
    "report",
    help="print pieces per word, piece length and unknown pieces by language",
    description="Tokenizes text of each language with a vocabulary, and prints\n\n"
    "  pieces/word   pieces per word; words are separated by white space, so that\n"
    "                the number is meaningless for Chinese, Japanese, Thai\n"
    "  split         fraction of words with more than one piece\n"
    "  chars/piece   length of a piece; comparable between languages of one script\n"
    "  unknown       fraction of pieces that are unknown\n\n"
    "The same text in all languages (a translation) gives the best comparison.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="example:\n  t2t vocab report --vocabulary spiece.model en=en.txt sw='sw/*.jsonl.gz'",
  )
  report.add_argument(
    "languages", nargs="+", metavar="LANGUAGE=GLOBS", help="a name, and files of text in that language"
  )
  report.add_argument(
    "--vocabulary", required=True, help='same as config.data.vocabulary: a file, its folder, or "bytes"'
  )
  _add_field(report)
  report.add_argument(
    "--max_lines",
    type=numeric.integer(1),
    default=100_000,
    help="largest number of lines per language, from the beginning",
  )
  report.add_argument("--json", action="store_true", help="print JSON instead of a table")
  return parser


def _add_field(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--field", default="text", help="text field of JSON lines, Parquet and TFRecord files; default: text"
  )


def main(argv: list[str]) -> int:
  """Runs `t2t vocab`, which trains a vocabulary, measures one, or counts pairs of its words.

  Args:
    argv: arguments after `t2t vocab`.

  Raises:
    UserError: the input cannot be read or is too small, or the output exists.
  """
  arguments = _parser().parse_args(argv)
  return {"report": _report, "pairs": _pairs, "train": _train}[arguments.command](arguments)


def _files_of(languages: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Parses LANGUAGE=GLOBS arguments to a dictionary from language to files.

  Raises:
    UserError: an argument has another form, a language occurs twice, or a glob matches nothing.
  """
  files: dict[str, tuple[str, ...]] = {}
  for typed in languages:
    name, _, globs = typed.partition("=")
    if not re.fullmatch(r"[\w-]+", name) or not globs:
      raise UserError(
        f"{typed} does not have the form LANGUAGE=GLOBS. Give a language and files, for example en=en.txt."
      )
    if name in files:
      raise UserError(
        f"{typed}: the language {name} occurs twice. Give all files of this language together: {name}=a.txt,b.txt"
      )
    files[name] = text_files.find_files(globs, where=name, pairs=False)
  return files


def _check_text(name: str, files: Sequence[str], size: int) -> None:
  if not size:
    raise UserError(f"{name}: the files contain no text ({', '.join(files)}). Give other files.")


def _pairs(arguments: argparse.Namespace) -> int:
  from t2t.contrib.static import cooccurrence

  vocabulary = vocabularies.load(arguments.vocabulary, extra_ids=0)
  files = text_files.find_files(arguments.input, where="--input", pairs=False)

  def texts() -> Iterator[list[int]]:
    for file in progress.track(files, "counting pairs"):
      for text in text_files.read_texts(file, field=arguments.field, where="--input"):
        for line in encoding.lines(text):
          yield [i for i in vocabularies.encode_text(vocabulary, line) if i != vocabulary.unk_id]

  shards, number = cooccurrence.count(
    texts(),
    pathlib.Path(arguments.output).expanduser(),
    size=vocabulary.vocab_size,
    window=arguments.window,
    settings={"vocabulary": vocabularies.digest(vocabulary), "input": cooccurrence.digest(files)},
    most=arguments.most_pairs,
    seed=arguments.seed,
  )
  print(f"wrote {number:,} pairs to {len(shards)} files: {shards[0].parent}/pairs-*.txt")
  return 0


def _report(arguments: argparse.Namespace) -> int:
  vocabulary = vocabularies.load(arguments.vocabulary, extra_ids=0)
  divisions: dict[str, fertility.Division] = {}
  for name, files in progress.track(_files_of(arguments.languages).items(), "dividing text"):
    texts = (text for file in files for text in text_files.read_texts(file, field=arguments.field, where=name))
    lines = (line.strip() for text in texts for line in encoding.lines(text) if line.strip())
    divisions[name] = fertility.measure(vocabulary, itertools.islice(lines, arguments.max_lines))
    _check_text(name, files, divisions[name].lines)
  if arguments.json:
    named = ("pieces_per_word", "split_rate", "characters_per_piece", "unknown_rate")
    rows = {
      name: dataclasses.asdict(division) | {key: getattr(division, key) for key in named}
      for name, division in divisions.items()
    }
    print(json.dumps({"vocabulary": arguments.vocabulary, "size": vocabulary.vocab_size, "languages": rows}, indent=2))
    return 0
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column("language", overflow="fold")
  for column in ("lines", "words", "pieces/word", "split", "chars/piece", "unknown"):
    table.add_column(column, justify="right", no_wrap=True)
  for name, division in divisions.items():
    rates = f"{division.pieces_per_word:.2f}", f"{division.split_rate:.1%}", f"{division.characters_per_piece:.2f}"
    table.add_row(name, f"{division.lines:,}", f"{division.words:,}", *rates, f"{division.unknown_rate:.2%}")
  rich.console.Console(file=sys.stdout, width=80, highlight=False).print(table)
  return 0


def _train(arguments: argparse.Namespace) -> int:
  if bool(arguments.input) == bool(arguments.languages):
    fault = "--input and LANGUAGE=GLOBS exclude each other" if arguments.input else "--input is missing"
    raise UserError(f"{fault}; give either --input GLOBS, or LANGUAGE=GLOBS for each language")
  if arguments.alpha is not None and not (arguments.languages and 0.0 <= arguments.alpha <= 1.0):
    why = (
      "is not between 0 (uniform) and 1 (proportional). Give a number between 0 and 1."
      if arguments.languages
      else "needs files by language. Leave out --alpha, or give several LANGUAGE=GLOBS."
    )
    raise UserError(f"--alpha {arguments.alpha} {why}")

  if arguments.extend:
    _check_extends(arguments)
    kind = extending.kind_of(arguments.extend)
    if arguments.type not in (None, kind):
      raise UserError(f"--type {arguments.type}: --extend {arguments.extend} is a {kind} vocabulary. Leave out --type.")
    arguments.type = kind
  arguments.type = arguments.type or "sentencepiece"
  function, name = _TRAINERS[arguments.type]
  options = {}
  if arguments.character_coverage is not None:
    if arguments.type != "sentencepiece":
      raise UserError(
        f"--character_coverage applies only to --type sentencepiece, not to {arguments.type}. Leave out this option."
      )
    options["character_coverage"] = arguments.character_coverage
  if arguments.byte_fallback:
    if arguments.type != "sentencepiece":
      raise UserError(
        f"--byte_fallback applies only to --type sentencepiece, not to {arguments.type}. Leave out this option."
      )
    options["byte_fallback"] = True
  if arguments.symbols:
    if arguments.type != "sentencepiece":
      raise UserError(
        f"--symbols applies only to --type sentencepiece, not to {arguments.type}. Leave out this option."
      )
    options["symbols"] = [symbol.strip() for symbol in arguments.symbols.split(",") if symbol.strip()]
  if arguments.cased:
    if arguments.type not in ("wordpiece", "word"):
      raise UserError(
        f"--cased applies only to --type wordpiece, because {arguments.type} always keeps capitals. Leave out --cased."
      )
    options["cased"] = True
  if arguments.min_count is not None:
    if arguments.type != "word":
      raise UserError(f"--min_count applies only to --type word, not to {arguments.type}. Leave out this option.")
    options["min_count"] = arguments.min_count
  path = pathlib.Path(arguments.output).expanduser() / name
  if path.exists() and not arguments.overwrite:
    raise UserError(
      f"--output {arguments.output}: {path} exists already. Give another folder, or --overwrite to replace the file."
    )
  examples: list[str] = []

  def texts(files: Sequence[str], where: str) -> Iterator[str]:
    for file in progress.track(files, "reading text"):
      for text in text_files.read_texts(file, field=arguments.field, where=where):
        if len(examples) < 3:
          examples.append(" ".join(text.split())[: _WIDEST - 2])
        yield text

  # Byte-level BPE has tokens for line breaks, and WordPiece reads past them.
  gather = training.sentences if arguments.type == "sentencepiece" else iter
  if arguments.input:
    files = text_files.find_files(arguments.input, where="--input", pairs=False)
    lines, most = gather(texts(files, "--input")), arguments.max_sentences
  else:  # the proportions of the languages respect --max_sentences
    lines, most = _of_languages(arguments, lambda name, files: gather(texts(files, name))), sys.maxsize
  sample = text_sample.draw(lines, most_lines=most, seed=arguments.seed)
  lines = sample.texts
  characters = training.count_characters(lines) if arguments.type == "sentencepiece" else {}
  if arguments.extend:
    written = extending.extend(lines, given=arguments.extend, size=arguments.size, output_dir=path.parent)
    return _tell_written(written, lines, examples, [f"text        {sample.note}"] if sample.note else [])
  if characters:
    options.setdefault("character_coverage", training.coverage_for(characters, size=arguments.size))
  written = function(lines, size=arguments.size, output_dir=path.parent, **options)
  notes = [f"text        {sample.note}"] if sample.note else []
  if arguments.type == "wordpiece" and not arguments.cased and (dropped := _dropped(lines)):
    notes.append(f"case        {dropped} of the text are dropped; --cased keeps them")
  if characters:
    pieces = {text.replace(" ", "▁") for text in vocabularies.token_texts(vocabularies.load(str(written), extra_ids=0))}
    known = len({character.replace(" ", "▁") for character in characters} & pieces)
    coverage_note = "one piece each" if known == len(characters) else f"pieces for the {known:,} most frequent"
    coverage = f"--character_coverage {options['character_coverage']:.6g}"
    notes += [f"characters  {len(characters):,} in the text, {coverage_note} ({coverage})"]
  return _tell_written(written, lines, examples, notes)


def _check_extends(arguments: argparse.Namespace) -> None:
  """Raises an error for options that the extended vocabulary determines."""
  for option in ("character_coverage", "byte_fallback", "cased"):
    if getattr(arguments, option):
      raise UserError(
        f"--{option} does not apply with --extend, because {arguments.extend} determines this option. Leave out "
        f"--{option}."
      )
  if arguments.symbols:
    raise UserError(f"--symbols {arguments.symbols} does not apply with --extend. Leave out --symbols.")


def _tell_written(written: pathlib.Path, lines: Iterable[str], examples: list[str], notes: Sequence[str] = ()) -> int:
  vocabulary = vocabularies.load(str(written), extra_ids=0)
  if written.name == _TRAINERS["wordpiece"][1]:  # pieces as in the file: "##ing" continues a word
    pieces = [vocabulary.tokenizer.id_to_token(i) for i in range(vocabulary.vocab_size)]
  else:
    pieces = [text.replace(" ", "▁") for text in vocabularies.token_texts(vocabulary)]
  named = [f"{pieces[i]} {i}" for i in sorted(vocabularies.special_ids(vocabulary))]
  print(f"wrote {written}: {len(pieces)} pieces ({', '.join(named)})")
  for line in notes:
    print(line)
  print(f"unknown     {_unknown(vocabulary, lines)}")
  for text in examples:
    shown = " ".join(pieces[i] for i in vocabularies.encode_text(vocabulary, text))
    indented = {"initial_indent": " " * 4, "subsequent_indent": " " * 4}
    print(f"  {text}\n{textwrap.fill(shown, _WIDEST, break_on_hyphens=False, **indented)}")
  return 0


def _dropped(lines: Iterable[str]) -> str:
  """Returns what a WordPiece without --cased drops from text: "capitals", "accents", both, or ""."""
  capitals = accents = False
  for line in lines:
    lower = line.lower()
    capitals = capitals or lower != line
    accents = accents or (
      not lower.isascii() and any(unicodedata.category(x) == "Mn" for x in unicodedata.normalize("NFD", lower))
    )
    if capitals and accents:
      break
  return " and ".join(name for name, there in (("capitals", capitals), ("accents", accents)) if there)


def _of_languages(arguments: argparse.Namespace, read: Callable[[str, Sequence[str]], Iterator[str]]) -> Iterator[str]:
  """Returns lines of all languages in the proportions of --alpha; prints the proportions."""
  files = _files_of(arguments.languages)
  sizes, num_lines = {}, 0  # a text is a line or a document
  for name, paths in files.items():
    sizes[name] = 0
    for text in read(name, paths):
      sizes[name], num_lines = sizes[name] + 1, num_lines + text.count("\n") + 1
    _check_text(name, paths, sizes[name])
  alpha = 1.0 if arguments.alpha is None else arguments.alpha
  most = arguments.max_sentences * sum(sizes.values()) // num_lines
  quotas = training.quotas(sizes, alpha=alpha, most=max(most, 1))
  for name, size in sizes.items():
    share = quotas[name] / sum(quotas.values())
    print(f"{name:<12}{quotas[name]:,} of {size:,} lines, {share:.1%} of all (--alpha {alpha:g})")
  return itertools.chain.from_iterable(
    training.drawn(read(name, paths), size=sizes[name], quota=quotas[name]) for name, paths in files.items()
  )


def _unknown(vocabulary, lines: Iterable[str]) -> str:
  """Describes the unknown fraction of the text."""
  if vocabulary.unk_id is None:
    return "nothing: every byte has a piece"
  tokens = unknown = 0
  for line in progress.track(lines, "looking for unknown tokens"):
    ids = vocabularies.encode_text(vocabulary, line)
    tokens, unknown = tokens + len(ids), unknown + ids.count(vocabulary.unk_id)
  return f"{unknown:,} of {tokens:,} tokens of the text ({unknown / max(tokens, 1):.2%})"
