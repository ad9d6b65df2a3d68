"""Vocabularies: loading and checking them, the ids of sentinels, and training a SentencePiece model."""

import argparse
from collections.abc import Iterable
import contextlib
import io
import json
import pathlib
import re

from absl import logging
from etils import epath
import sentencepiece
import seqio

from t2t import UserError
from t2t.data import cache, documentation, progress

DOCS_SIZE = 4096  # with 100 sentinels 4,196 ids: an embedding of 33 x 128 = 4,224 rows holds them
_DOCS_CHARACTERS = 4_000_000  # what the small vocabulary is trained on: 4 s on two cores, and more changes few pieces


def load(spec: str, *, extra_ids: int = 100) -> seqio.Vocabulary:
  """The vocabulary that `spec` names, with `extra_ids` sentinels behind its own ids.

  Args:
    spec: "bytes" (UTF-8 bytes after pad, EOS and unknown, as ByT5), or the path or URL of a SentencePiece model.
    extra_ids: number of sentinels; the last id is <extra_id_0> and they count down from there.

  Raises:
    UserError: no such file, not a SentencePiece model, a model that holds sentinels already, or lacks pad or EOS.
  """
  if extra_ids < 0:
    raise UserError(f"config.data.extra_ids={extra_ids}: the number of sentinels cannot be negative; T5 has 100")
  if not spec:
    raise UserError('config.data.vocabulary is empty: give "bytes" or the path of a SentencePiece .model file')
  if spec == "bytes":
    return seqio.ByteVocabulary(extra_ids=extra_ids)
  _check_model(spec, extra_ids)
  return seqio.SentencePieceVocabulary(str(epath.Path(spec).expanduser()), extra_ids=extra_ids)


def _check_model(spec: str, extra_ids: int) -> None:
  where = f"config.data.vocabulary={spec}"
  path = epath.Path(spec).expanduser()
  if not path.exists():
    raise UserError(f'{where}: no such file; give "bytes" or the path of a SentencePiece .model file')
  if path.is_dir():
    models = sorted(str(found) for found in path.glob("*.model"))
    raise UserError(f"{where}: is a folder; give a file, for example {models[0] if models else path / 'spiece.model'}")
  try:
    model = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
  except (RuntimeError, OSError) as error:
    raise UserError(f"{where}: not a SentencePiece model; `t2t vocab train` makes one") from error
  pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
  sentinels = [i for i, piece in enumerate(pieces) if re.fullmatch("▁?<extra_id_[0-9]+>", piece)]
  if sentinels and extra_ids:
    raise UserError(
      f"{where}: the model already contains {len(sentinels)} sentinel pieces"
      f" ({pieces[sentinels[0]]} has id {sentinels[0]});"
      f" {extra_ids} more behind them would give each sentinel two ids."
      " Give a model without sentinels, as T5's is published"
    )
  if model.pad_id() != seqio.vocabularies.PAD_ID:
    found = "has no pad piece" if model.pad_id() < 0 else f"pads with id {model.pad_id()}"
    raise UserError(f"{where}: the model {found}; padding must be id 0 (train it with pad_id=0, as `t2t vocab train`)")
  if model.eos_id() < 0:
    raise UserError(f"{where}: the model has no EOS piece; targets must end in one (`t2t vocab train` makes </s> id 1)")


def check(vocabulary: seqio.Vocabulary, model_vocab_size: int) -> None:
  """Every id must have a row in the embedding.

  Raises:
    UserError: the largest id is beyond it; says which size would do.
  """
  if vocabulary.vocab_size > model_vocab_size:
    # Rows in multiples of 128 fill the lanes of a TPU's matrix unit and divide over any usual mesh.
    fits = -(-vocabulary.vocab_size // 128) * 128
    raise UserError(
      f"config.model.vocab_size={model_vocab_size} is too small: the vocabulary's largest id is"
      f" {vocabulary.vocab_size - 1} ({vocabulary.extra_ids} sentinels included);"
      f" set config.model.vocab_size={fits}"
    )


def num_sentinels(vocabulary: seqio.Vocabulary) -> int:
  """How many sentinels there are: those that were added, or of bytes alone the last 100 ids, as in ByT5.

  UTF-8 never uses the bytes 0xF5 to 0xFF, and the rest of the last 100 only inside characters that are rare in most
  text (Xue et al. 2022, section 3.1).
  """
  if isinstance(vocabulary, seqio.ByteVocabulary) and not vocabulary.extra_ids:
    return 100
  return vocabulary.extra_ids


def sentinel_ids(vocabulary: seqio.Vocabulary, count: int) -> list[int]:
  """Ids of <extra_id_0>, <extra_id_1>, ...: they count down from the vocabulary's last id.

  In:  T5's 32,000 pieces and 100 sentinels, count 3
  Out: [32099, 32098, 32097]

  Raises:
    UserError: the vocabulary has fewer sentinels.
  """
  if count > num_sentinels(vocabulary):
    raise UserError(
      f"config.data.extra_ids: {count} sentinels are needed, the vocabulary has {num_sentinels(vocabulary)};"
      f" set config.data.extra_ids={count} or more, or shorten config.data.inputs_length"
    )
  return [vocabulary.vocab_size - 1 - i for i in range(count)]


def train_sentencepiece(
  texts: Iterable[str],
  *,
  size: int,
  output_dir: str | pathlib.Path,
  max_sentences: int = 1_000_000,
  character_coverage: float = 0.9995,
) -> pathlib.Path:
  """Trains a unigram model that T5 can use (pad 0, </s> 1, <unk> 2, no BOS, no sentinels) and writes spiece.model.

  Args:
    texts: documents; long ones are cut into pieces of at most 4,000 bytes at spaces.
    size: number of pieces, the three special ones included.
    output_dir: local folder; made if it is not there.
    max_sentences: at most so many lines are used, from the beginning.
    character_coverage: part of the characters that get a piece; 1.0 for small alphabets, T5 had 0.9995.

  Returns:
    The path of the model.

  Raises:
    UserError: no text, or more pieces asked for than the text can give; says the largest number that works.

  Source: Kudo 2018 (unigram), Raffel et al. 2020 section 2.2.1 (the special pieces).
  """
  if size < 4:
    raise UserError(f"--size {size}: a vocabulary needs room for pad, </s>, <unk> and at least one piece")
  model = io.BytesIO()
  lines = _lines(texts, max_sentences)
  first = next(lines, None)
  if first is None:
    raise UserError("--input: there is no text to train a vocabulary on")

  def with_first():
    yield first
    yield from lines

  try:
    with _quiet():
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=with_first(),
        model_writer=model,
        model_type="unigram",
        vocab_size=size,
        character_coverage=character_coverage,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        pad_piece="<pad>",
        max_sentence_length=_MAX_LINE_BYTES + 1,
        # The default 1,000,000 suits corpora of gigabytes; a small vocabulary of a small corpus needs far fewer seeds.
        seed_sentencepiece_size=min(1_000_000, max(20 * size, 50_000)),
        train_extremely_large_corpus=False,
        minloglevel=2,
      )
  except (RuntimeError, OSError) as error:
    raise _trainer_error(error, size) from error
  path = pathlib.Path(output_dir) / "spiece.model"
  cache.write_atomically(path, model.getvalue())
  return path


_MAX_LINE_BYTES = 4000


def _lines(texts: Iterable[str], max_sentences: int):
  """Lines that the trainer takes whole; it would silently drop those that are longer than its limit."""
  count = 0
  for text in texts:
    for line in text.splitlines():
      line = line.strip().replace("\0", "")
      while line:
        if count >= max_sentences:
          return
        # A character has at most 4 bytes in UTF-8.
        if len(line) <= _MAX_LINE_BYTES // 4 or len(line.encode()) <= _MAX_LINE_BYTES:
          head, line = line, ""
        else:
          cut = line.rfind(" ", 1, _MAX_LINE_BYTES // 4)
          cut = cut if cut > 0 else _MAX_LINE_BYTES // 4
          head, line = line[:cut], line[cut:].lstrip()
        count += 1
        yield head


@contextlib.contextmanager
def _quiet():
  """SentencePiece's progress is hundreds of lines; ours is two."""
  logging.info("training a SentencePiece vocabulary ...")
  yield
  logging.info("training a SentencePiece vocabulary: done")


def _trainer_error(error: Exception, size: int) -> UserError:
  message = str(error)
  largest = re.search(r"set it to a value <= (\d+)", message)
  if largest:
    return UserError(f"--size {size}: too large for this text; the largest that works is {largest.group(1)}")
  required = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
  if required:
    return UserError(
      f"--size {size}: too small, the characters of this text alone need {required.group(2)};"
      " take at least a few times that, or lower --character_coverage"
    )
  return UserError(f"--size {size}: SentencePiece could not train on this text: {message.splitlines()[0]}")


class _DocsVocabulary(seqio.SentencePieceVocabulary):
  """The vocabulary of the embedded default: its model is trained when it is first needed, not when a task names it."""

  def __init__(self, *, extra_ids: int):
    super().__init__("docs/spiece.model", extra_ids=extra_ids)

  def _model_context(self):
    if self._model is None:
      self._sentencepiece_model_file = str(_docs_model())
    return super()._model_context()

  def __eq__(self, other):
    return isinstance(other, _DocsVocabulary) and self.extra_ids == other.extra_ids


def _docs_model() -> pathlib.Path:
  path = documentation.folder() / f"spiece_{DOCS_SIZE}" / "spiece.model"
  if path.exists():
    return path
  lines = documentation.files()["train"].read_text().splitlines()
  texts, characters = [], 0
  # Every third document, so that all packages have a say.
  for line in [*lines[0::3], *lines[1::3], *lines[2::3]]:
    if characters >= _DOCS_CHARACTERS:
      break
    texts.append(json.loads(line)["text"])
    characters += len(texts[-1])
  return train_sentencepiece(texts, size=DOCS_SIZE, output_dir=path.parent, character_coverage=1.0)


def docs_vocabulary(*, extra_ids: int = 100) -> seqio.SentencePieceVocabulary:
  """The SentencePiece vocabulary of the installed documentation, 4,096 pieces and `extra_ids` sentinels.

  It costs nothing until it is used; the first use on a machine reads the documentation and trains the model (about
  10 s), later ones load it from the cache folder.
  """
  return _DocsVocabulary(extra_ids=extra_ids)


def main(argv: list[str]) -> int:
  """`t2t vocab train`: trains a SentencePiece model on the user's files.

  Args:
    argv: what follows `t2t vocab`.

  Raises:
    UserError: input that cannot be read or is too small, or an output that is there already.
  """
  parser = argparse.ArgumentParser(prog="t2t vocab", description="Vocabularies for your own text.")
  commands = parser.add_subparsers(dest="command", required=True)
  train = commands.add_parser(
    "train",
    help="train a SentencePiece model that T5 models can use",
    description="Trains a unigram SentencePiece model with T5's special ids (pad 0, </s> 1,\n<unk> 2, no sentinels)"
    " and writes it as spiece.model. Use it with\n--config.data.vocabulary=DIR/spiece.model.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
    epilog="example:\n  t2t vocab train --input 'text/*.jsonl.gz' --size 32000 --output my_vocabulary",
  )
  train.add_argument("--input", required=True, help="globs, comma-separated: .txt .jsonl .jsonl.gz .parquet .tfrecord*")
  train.add_argument(
    "--field", default="text", help="text field of JSON lines, Parquet and TFRecord files; default: text"
  )
  train.add_argument(
    "--size", type=int, default=32_000, help="number of pieces, the three special ones included; default: 32000"
  )
  train.add_argument("--output", required=True, help="folder to write spiece.model in")
  train.add_argument("--max_sentences", type=int, default=1_000_000, help="lines to train on, from the beginning")
  train.add_argument("--character_coverage", type=float, default=0.9995, help="part of the characters to give a piece")
  train.add_argument("--overwrite", action="store_true", help="replace a spiece.model that is already there")
  arguments = parser.parse_args(argv)

  # Imported here: only this command reads files, and it brings TensorFlow along.
  from t2t.data import sources

  path = pathlib.Path(arguments.output).expanduser() / "spiece.model"
  if path.exists() and not arguments.overwrite:
    raise UserError(f"--output {path}: exists already; give another folder, or --overwrite to replace it")
  files = sources.find_files(arguments.input, where="--input")
  examples: list[str] = []

  def texts():
    for file in progress.track(files, "reading text"):
      for text in sources.read_texts(file, field=arguments.field, where="--input"):
        if len(examples) < 3:
          examples.append(" ".join(text.split())[:80])
        yield text

  written = train_sentencepiece(
    texts(),
    size=arguments.size,
    output_dir=path.parent,
    max_sentences=arguments.max_sentences,
    character_coverage=arguments.character_coverage,
  )
  model = sentencepiece.SentencePieceProcessor(model_file=str(written))
  print(f"wrote {written}: {model.get_piece_size()} pieces (pad 0, </s> 1, <unk> 2)")
  for text in examples:
    print(f"  {text}\n    {' '.join(model.encode_as_pieces(text))}")
  return 0
