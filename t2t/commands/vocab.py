"""`t2t vocab train`: a vocabulary of one's own text."""

import argparse
from collections.abc import Iterable, Sequence
import pathlib

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.sources import text_files
from t2t.data.vocabularies import extending, training
from t2t.runtime import progress

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
    "--config.init.by_piece=True.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="example:\n  t2t vocab train --input 'text/*.jsonl.gz' --size 32000 --output my_vocabulary",
  )
  train.add_argument("--type", choices=_TRAINERS, help="default: sentencepiece, or that of --extend")
  train.add_argument(
    "--extend",
    metavar="VOCABULARY",
    help="keep the pieces of this one, a WordPiece or SentencePiece, under their ids, and add what your text needs",
  )
  train.add_argument("--input", required=True, help="globs, comma-separated: .txt .jsonl .jsonl.gz .parquet .tfrecord*")
  train.add_argument(
    "--field", default="text", help="text field of JSON lines, Parquet and TFRecord files; default: text"
  )
  train.add_argument("--size", type=int, default=32_000, help="number of pieces, special ones included; default: 32000")
  train.add_argument("--output", required=True, help="folder to write the file in")
  train.add_argument("--max_sentences", type=int, default=1_000_000, help="lines to train on, from the beginning")
  train.add_argument(
    "--character_coverage",
    type=float,
    help="sentencepiece: part of the text whose characters get a piece; default: 1.0, less of a script of thousands",
  )
  train.add_argument(
    "--byte_fallback", action="store_true", help="sentencepiece: spell unknown characters in bytes, 256 pieces"
  )
  train.add_argument("--cased", action="store_true", help="wordpiece: keep capitals and accents")
  train.add_argument("--overwrite", action="store_true", help="replace a file that is already there")
  return parser


def main(argv: list[str]) -> int:
  """`t2t vocab train`: trains a vocabulary on the user's files.

  Args:
    argv: what follows `t2t vocab`.

  Raises:
    UserError: input that cannot be read or is too small, or an output that is there already.
  """
  arguments = _parser().parse_args(argv)

  if arguments.extend:
    _check_extends(arguments)
    arguments.type = extending.kind_of(arguments.extend)
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
  if arguments.cased:
    if arguments.type != "wordpiece":
      raise UserError(f"--cased: only for --type wordpiece; {arguments.type} keeps capitals anyway")
    options["cased"] = True
  path = pathlib.Path(arguments.output).expanduser() / name
  if path.exists() and not arguments.overwrite:
    raise UserError(f"--output {path}: exists already; give another folder, or --overwrite to replace it")
  files = text_files.find_files(arguments.input, where="--input", pairs=False)
  examples: list[str] = []

  def texts():
    for file in progress.track(files, "reading text"):
      for text in text_files.read_texts(file, field=arguments.field, where="--input"):
        if len(examples) < 3:
          examples.append(" ".join(text.split())[:80])
        yield text

  gather = training.sentences if arguments.type == "sentencepiece" else training.whole_documents
  lines = gather(texts(), arguments.max_sentences)
  if arguments.type != "bpe":  # which knows every byte; on the others' text is measured what came out
    lines = list(lines)
  characters = training.count_characters(lines) if arguments.type == "sentencepiece" else {}
  if arguments.extend:
    written = extending.extend(lines, given=arguments.extend, size=arguments.size, output_dir=path.parent)
    return _report(written, lines, examples)
  if characters:
    options.setdefault("character_coverage", training.coverage_for(characters, size=arguments.size))
  written = function(
    lines, size=arguments.size, output_dir=path.parent, max_sentences=arguments.max_sentences, **options
  )
  said = []
  if characters:
    pieces = {text.replace(" ", "▁") for text in vocabularies.token_texts(vocabularies.load(str(written), extra_ids=0))}
    known = len({character.replace(" ", "▁") for character in characters} & pieces)
    which = "a piece for each" if known == len(characters) else f"pieces for the {known:,} most frequent"
    coverage = f"--character_coverage {options['character_coverage']:.6g}"
    said = [f"characters  {len(characters):,} in the text, {which} ({coverage})"]
  return _report(written, lines, examples, said)


def _check_extends(arguments: argparse.Namespace) -> None:
  """Refuses what a vocabulary that is extended says itself."""
  for option in ("type", "character_coverage", "byte_fallback", "cased"):
    if getattr(arguments, option):
      raise UserError(f"--{option}: not with --extend {arguments.extend}, which says it itself; leave it out")


def _report(written: pathlib.Path, lines: Iterable[str], examples: list[str], said: Sequence[str] = ()) -> int:
  vocabulary = vocabularies.load(str(written), extra_ids=0)
  pieces = [text.replace(" ", "▁") for text in vocabularies.token_texts(vocabulary)]
  named = [f"{pieces[i]} {i}" for i in sorted(vocabularies.special_ids(vocabulary))]
  print(f"wrote {written}: {len(pieces)} pieces ({', '.join(named)})")
  for line in said:
    print(line)
  print(f"unknown     {_unknown(vocabulary, lines)}")
  for text in examples:
    print(f"  {text}\n    {' '.join(pieces[i] for i in vocabulary.encode(text))}")
  return 0


def _unknown(vocabulary, lines: Iterable[str]) -> str:
  """What part of the text the vocabulary does not know, in words."""
  if vocabulary.unk_id is None:
    return "nothing: every byte has a piece"
  tokens = unknown = 0
  for line in progress.track(lines, "looking for unknown tokens"):
    ids = vocabulary.encode(line)
    tokens, unknown = tokens + len(ids), unknown + ids.count(vocabulary.unk_id)
  return f"{unknown:,} of {tokens:,} tokens of the text ({unknown / max(tokens, 1):.2%})"
