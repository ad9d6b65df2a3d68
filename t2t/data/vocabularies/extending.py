"""Extends a vocabulary by tokens for text of a domain; ids of existing tokens do not change."""

from collections.abc import Callable, Sequence
import functools
import pathlib
import re
import tempfile

from etils import epath
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t import UserError
from t2t.data import vocabulary_classes
from t2t.data.vocabularies import reserved_ids, subwords, training
from t2t.data.vocabulary_classes import SentencePieceVocabulary
from t2t.runtime import cache_folder


def extend(lines: Sequence[str], *, given: str, size: int, output_dir: str | pathlib.Path) -> pathlib.Path:
  """Writes a vocabulary with the tokens of another, in order, followed by the most frequent new tokens.

  New tokens come from a vocabulary trained on the text: for WordPiece in order of merges, for SentencePiece with
  their log-probability in the text as the score.

  Args:
    lines: text.
    given: the vocabulary to extend, as for `reserved_ids.load`: WordPiece or a SentencePiece unigram model.
    size: number of tokens, existing ones included.
    output_dir: local folder; created if missing.

  Returns:
    The path of vocab.txt or spiece.model.

  Raises:
    UserError: the vocabulary has another kind or is already as large, or the text has too few new tokens.
  """
  vocabulary = reserved_ids.load(given, extra_ids=0)
  if kind_of(given) == "sentencepiece":
    proto = _proto(vocabulary)
    new = _new_pieces(lines, [piece_entry.piece for piece_entry in proto.pieces], _sentencepieces, size)
    proto.pieces.extend(proto.SentencePiece(piece=piece, score=score) for piece, score in new.items())
    path = pathlib.Path(output_dir) / "spiece.model"
    cache_folder.write_atomically(path, proto.SerializeToString())
    return path
  old = [vocabulary.tokenizer.id_to_token(i) for i in range(vocabulary.vocab_size)]
  train = functools.partial(_wordpieces, cased=not vocabulary.tokenizer.normalizer.lowercase)
  new = _new_pieces(lines, old, train, size)
  for file in vocabulary.files[1:]:  # tokenizer settings
    cache_folder.write_atomically(pathlib.Path(output_dir) / file.name, file.read_bytes())
  path = pathlib.Path(output_dir) / "vocab.txt"
  cache_folder.write_atomically(path, "".join(f"{piece}\n" for piece in (*old, *new)).encode())
  return path


def kind_of(given: str) -> str:
  """Returns "wordpiece" or "sentencepiece".

  Raises:
    UserError: the vocabulary has another kind, which cannot be extended.
  """
  vocabulary = reserved_ids.load(given, extra_ids=0)
  if isinstance(vocabulary, subwords.SubwordVocabulary) and vocabulary.files[0].suffix == ".txt":
    return "wordpiece"
  unigram = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
  if vocabulary_classes.is_sentencepiece(vocabulary) and _proto(vocabulary).trainer_spec.model_type == unigram:
    return "sentencepiece"
  raise UserError(
    f"--extend {given}: only WordPiece (vocab.txt) and SentencePiece unigram models can be extended, because "
    "tokens of other kinds depend on merges; train a new vocabulary instead"
  )


def _proto(vocabulary: SentencePieceVocabulary) -> sentencepiece_model_pb2.ModelProto:
  return sentencepiece_model_pb2.ModelProto.FromString(epath.Path(vocabulary.sentencepiece_model_file).read_bytes())


def _wordpieces(lines: Sequence[str], size: int, folder: str, *, cased: bool) -> dict[str, float]:
  path = training.train_wordpiece(lines, size=size, output_dir=folder, cased=cased)
  return dict.fromkeys(path.read_text().split("\n")[:-1], 0.0)


def _sentencepieces(lines: Sequence[str], size: int, folder: str) -> dict[str, float]:
  path = training.train_sentencepiece(lines, size=size, output_dir=folder)
  model = sentencepiece.SentencePieceProcessor(model_file=str(path))
  ordinary = (i for i in range(len(model)) if not (model.is_control(i) or model.is_unknown(i)))
  return {model.id_to_piece(i): model.get_score(i) for i in ordinary}


def _new_pieces(
  lines: Sequence[str], old: Sequence[str], train: Callable[..., dict[str, float]], size: int
) -> dict[str, float]:
  """Returns the wanted number of new tokens with their scores, from vocabularies of increasing size."""
  num_wanted, old_pieces, requested_size, most = size - len(old), set(old), size, 0
  if num_wanted < 1:
    raise UserError(f"--size {size}: the vocabulary to extend already has {len(old)} tokens; give a larger size")
  while True:
    try:
      with tempfile.TemporaryDirectory() as folder:
        trained = train(lines, requested_size, folder)
    except UserError as error:
      largest = re.search(r"the largest that works is (\d+)", str(error))
      if not largest or most:
        raise
      requested_size = most = int(largest[1])
      continue
    new = [piece for piece in trained if piece not in old_pieces]
    if len(new) >= num_wanted:
      return {piece: trained[piece] for piece in new[:num_wanted]}
    if most:
      raise UserError(f"--size {size}: too large for this text; the largest that works is {len(old) + len(new)}")
    requested_size *= 2
