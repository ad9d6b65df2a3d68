"""`t2t vocab train` and `report`: a vocabulary of one's own text, and how one divides the text of each language."""

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
from t2t.data.vocabularies import extending, fertility, training
from t2t.runtime import numeric, progress

_WIDEST = 80  # columns

# --type -> what is trained, the file that is written
_TRAINERS = {
  "sentencepiece": (training.train_sentencepiece, "spiece.model"),
  "wordpiece": (training.train_wordpiece, "vocab.txt"),
  "bpe": (training.train_bpe, "tokenizer.json"),
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
    "  wordpiece      as BERT's, without capitals and accents: vocab.txt\n"
    "  bpe            byte-level, as GPT-2's, but pad 0, </s> 1: tokenizer.json\n\n"
    "Use it with --config.data.vocabulary=DIR/FILE.\n\n"
    "With --extend a published vocabulary gets the pieces that text of your domain\n"
    "needs besides; a checkpoint that was trained with it goes on with\n"
    "--config.init.transfer_vocab=True.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="examples:\n  t2t vocab train --input 'text/*.jsonl.gz' --size 32000 --output my_vocabulary\n"
    "  t2t vocab train --alpha 0.3 en='en/*.txt' sw=sw.txt --size 64000 --output both",
  )
  train.add_argument("languages", nargs="*", metavar="LANGUAGE=GLOBS", help="in place of --input: see --alpha")
  train.add_argument("--type", choices=_TRAINERS, help="default: sentencepiece, or that of --extend")
  train.add_argument(
    "--extend",
    metavar="VOCABULARY",
    help="keep the pieces of this one, a WordPiece or SentencePiece, under their ids, and add what your text needs",
  )
  train.add_argument("--input", help="globs, comma-separated: .txt .jsonl .csv (.gz, .zst too) .parquet .tfrecord*")
  train.add_argument(
    "--alpha",
    type=numeric.number(),
    help="lines of a language (of wordpiece and bpe documents) to this power say how much of it is trained on, as"
    " config.data.alpha does of sources: 1 as it is, which is the default, 0.3 more of small ones, 0 all alike",
  )
  _add_field(train)
  train.add_argument(
    "--size", type=numeric.integer(1), default=32_000, help="number of pieces, special ones included; default: 32000"
  )
  train.add_argument("--output", required=True, help="folder to write the file in")
  train.add_argument(
    "--max_sentences", type=numeric.integer(1), default=1_000_000, help="lines to train on, from the beginning"
  )
  train.add_argument(
    "--character_coverage",
    type=numeric.number(0, 1, above=True),
    help="sentencepiece: part of the text whose characters get a piece; default: 1.0, less of a script of thousands",
  )
  train.add_argument(
    "--byte_fallback", action="store_true", help="sentencepiece: spell unknown characters in bytes, 256 pieces"
  )
  train.add_argument("--symbols", help='sentencepiece: tags that are a piece each, "<2en>,<2sw>"; see language_tags')
  train.add_argument("--cased", action="store_true", help="wordpiece: keep capitals and accents")
  train.add_argument("--overwrite", action="store_true", help="replace a file that is already there")
  report = commands.add_parser(
    "report",
    help="pieces, unknown ones and their length, by language",
    description="Divides text of each language by a vocabulary, and says\n\n"
    "  pieces/word   how many pieces a word becomes; words are parted by white\n"
    "                space, so that it says nothing of Chinese, Japanese, Thai\n"
    "  split         words that are more than one piece\n"
    "  chars/piece   how long a piece is; compares languages of one script\n"
    "  unknown       pieces that the vocabulary does not have\n\n"
    "The same text in all languages (a translation) compares them best.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="example:\n  t2t vocab report --vocabulary spiece.model en=en.txt sw='sw/*.jsonl.gz'",
  )
  report.add_argument("languages", nargs="+", metavar="LANGUAGE=GLOBS", help="a name, and files of text in it")
  report.add_argument("--vocabulary", required=True, help='as config.data.vocabulary: a file, its folder, or "bytes"')
  _add_field(report)
  report.add_argument(
    "--max_lines", type=numeric.integer(1), default=100_000, help="of each language, from the beginning"
  )
  report.add_argument("--json", action="store_true", help="print JSON instead of a table")
  return parser


def _add_field(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    "--field", default="text", help="text field of JSON lines, Parquet and TFRecord files; default: text"
  )


def main(argv: list[str]) -> int:
  """`t2t vocab`: trains a vocabulary on the user's files, or says how one divides them.

  Args:
    argv: what follows `t2t vocab`.

  Raises:
    UserError: input that cannot be read or is too small, or an output that is there already.
  """
  arguments = _parser().parse_args(argv)
  return _report(arguments) if arguments.command == "report" else _train(arguments)


def _files_of(languages: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Language -> its files, as they are typed: en=GLOBS.

  Raises:
    UserError: one that is no such pair, or named twice; a glob that matches nothing.
  """
  files: dict[str, tuple[str, ...]] = {}
  for typed in languages:
    name, _, globs = typed.partition("=")
    if not re.fullmatch(r"[\w-]+", name) or not globs:
      raise UserError(f"{typed}: give LANGUAGE=GLOBS, a name and its files, as en=en.txt")
    if name in files:
      raise UserError(f"{typed}: {name} has files already; name them together, {name}=a.txt,b.txt")
    files[name] = text_files.find_files(globs, where=name, pairs=False)
  return files


def _report(arguments: argparse.Namespace) -> int:
  vocabulary = vocabularies.load(arguments.vocabulary, extra_ids=0)
  divisions: dict[str, fertility.Division] = {}
  for name, files in progress.track(_files_of(arguments.languages).items(), "dividing text"):
    texts = (text for file in files for text in text_files.read_texts(file, field=arguments.field, where=name))
    lines = (line.strip() for text in texts for line in text.splitlines() if line.strip())
    divisions[name] = fertility.measure(vocabulary, itertools.islice(lines, arguments.max_lines))
    if not divisions[name].lines:
      raise UserError(f"{name}: its files hold no text")
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
    raise UserError("give --input GLOBS, or LANGUAGE=GLOBS for each language, and not both")
  if arguments.alpha is not None and not (arguments.languages and 0.0 <= arguments.alpha <= 1.0):
    why = "must be from 0 (all alike) to 1 (as it is)" if arguments.languages else "is of several LANGUAGE=GLOBS"
    raise UserError(f"--alpha {arguments.alpha}: {why}")

  if arguments.extend:
    _check_extends(arguments)
    kind = extending.kind_of(arguments.extend)
    if arguments.type not in (None, kind):
      raise UserError(f"--type {arguments.type}: --extend {arguments.extend} is a {kind} vocabulary; leave --type out")
    arguments.type = kind
  arguments.type = arguments.type or "sentencepiece"
  function, name = _TRAINERS[arguments.type]
  options = {}
  if arguments.character_coverage is not None:
    if arguments.type != "sentencepiece":
      raise UserError(f"--character_coverage: only for --type sentencepiece, not {arguments.type}")
    options["character_coverage"] = arguments.character_coverage
  if arguments.byte_fallback:
    if arguments.type != "sentencepiece":
      raise UserError(f"--byte_fallback: only for --type sentencepiece, not {arguments.type}")
    options["byte_fallback"] = True
  if arguments.symbols:
    if arguments.type != "sentencepiece":
      raise UserError(f"--symbols: only for --type sentencepiece, not {arguments.type}")
    options["symbols"] = [symbol.strip() for symbol in arguments.symbols.split(",") if symbol.strip()]
  if arguments.cased:
    if arguments.type != "wordpiece":
      raise UserError(f"--cased: only for --type wordpiece; {arguments.type} keeps capitals anyway")
    options["cased"] = True
  path = pathlib.Path(arguments.output).expanduser() / name
  if path.exists() and not arguments.overwrite:
    raise UserError(f"--output {path}: exists already; give another folder, or --overwrite to replace it")
  examples: list[str] = []

  def texts(files: Sequence[str], where: str) -> Iterator[str]:
    for file in progress.track(files, "reading text"):
      for text in text_files.read_texts(file, field=arguments.field, where=where):
        if len(examples) < 3:
          examples.append(" ".join(text.split())[: _WIDEST - 2])
        yield text

  gather = training.sentences if arguments.type == "sentencepiece" else training.whole_documents
  if arguments.input:
    files = text_files.find_files(arguments.input, where="--input", pairs=False)
    lines = gather(texts(files, "--input"), arguments.max_sentences)
  else:
    lines = _of_languages(arguments, lambda name, files: gather(texts(files, name), sys.maxsize))
  if arguments.type != "bpe":  # which knows every byte; on the others' text is measured what came out
    lines = list(lines)
  characters = training.count_characters(lines) if arguments.type == "sentencepiece" else {}
  if arguments.extend:
    written = extending.extend(lines, given=arguments.extend, size=arguments.size, output_dir=path.parent)
    return _tell_written(written, lines, examples)
  if characters:
    options.setdefault("character_coverage", training.coverage_for(characters, size=arguments.size))
  # What was gathered is no more than was asked for.
  written = function(lines, size=arguments.size, output_dir=path.parent, max_sentences=sys.maxsize, **options)
  notes = []
  if arguments.type == "wordpiece" and not arguments.cased and (dropped := _dropped(lines)):
    notes.append(f"case        {dropped} of the text are dropped; --cased keeps them")
  if characters:
    pieces = {text.replace(" ", "▁") for text in vocabularies.token_texts(vocabularies.load(str(written), extra_ids=0))}
    known = len({character.replace(" ", "▁") for character in characters} & pieces)
    coverage_note = "a piece for each" if known == len(characters) else f"pieces for the {known:,} most frequent"
    coverage = f"--character_coverage {options['character_coverage']:.6g}"
    notes += [f"characters  {len(characters):,} in the text, {coverage_note} ({coverage})"]
  return _tell_written(written, lines, examples, notes)


def _check_extends(arguments: argparse.Namespace) -> None:
  """Refuses what a vocabulary that is extended says itself."""
  for option in ("character_coverage", "byte_fallback", "cased"):
    if getattr(arguments, option):
      raise UserError(f"--{option}: not with --extend {arguments.extend}, which says it itself; leave it out")
  if arguments.symbols:
    raise UserError(f"--symbols {arguments.symbols}: not with --extend, which adds what text needs; leave it out")


def _tell_written(written: pathlib.Path, lines: Iterable[str], examples: list[str], notes: Sequence[str] = ()) -> int:
  vocabulary = vocabularies.load(str(written), extra_ids=0)
  if written.name == _TRAINERS["wordpiece"][1]:  # as its file has them: "##ing" goes on with a word
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
  """What of text a WordPiece without --cased does not keep: "capitals", "accents", both, or ""."""
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
  """The lines of all languages, as much of each as --alpha says; tells how much that is."""
  files = _files_of(arguments.languages)
  # Of each text, which is a line or a document of several, its lines.
  counts = {name: [text.count("\n") + 1 for text in read(name, paths)] for name, paths in files.items()}
  sizes = {name: len(line_counts) for name, line_counts in counts.items()}
  for name, size in sizes.items():
    if not size:
      raise UserError(f"{name}: its files hold no text")
  alpha = 1.0 if arguments.alpha is None else arguments.alpha
  most = arguments.max_sentences * sum(sizes.values()) // sum(map(sum, counts.values()))
  quotas = training.quotas(sizes, alpha=alpha, most=max(most, 1))
  for name, size in sizes.items():
    share = quotas[name] / sum(quotas.values())
    print(f"{name:<12}{quotas[name]:,} of {size:,} lines, {share:.1%} of all (--alpha {alpha:g})")
  return itertools.chain.from_iterable(
    training.drawn(read(name, paths), size=sizes[name], quota=quotas[name]) for name, paths in files.items()
  )


def _unknown(vocabulary, lines: Iterable[str]) -> str:
  """What part of the text the vocabulary does not know, in words."""
  if vocabulary.unk_id is None:
    return "nothing: every byte has a piece"
  tokens = unknown = 0
  for line in progress.track(lines, "looking for unknown tokens"):
    ids = vocabularies.encode_text(vocabulary, line)
    tokens, unknown = tokens + len(ids), unknown + ids.count(vocabulary.unk_id)
  return f"{unknown:,} of {tokens:,} tokens of the text ({unknown / max(tokens, 1):.2%})"
