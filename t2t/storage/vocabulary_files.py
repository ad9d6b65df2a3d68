"""Which files are a vocabulary, by their names and places; without TensorFlow."""

import dataclasses
import json
import pathlib
import re

from etils import epath
import sentencepiece
import tokenizers

from t2t import UserError
from t2t.storage import safe_read

# Pieces -> merges, which byte-level BPE has besides; by the ends of their names.
MERGES = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
SETTINGS = "tokenizer_config.json"
# Says which file of a folder is the vocabulary, and how many sentinels follow; see `Record`.
RECORD = "vocabulary.json"
# XLM-R's and BARThez's: SentencePiece's ids are not theirs, which count four pieces of their own first.
SHIFTED = "sentencepiece.bpe.model"
SENTINEL = re.compile("▁?<extra_id_[0-9]+>")
_JSON = "tokenizer.json"
_MOST_IDS = 2**31  # ids are int32
# Of a published model's folder.  A SentencePiece model first: the tokenizer.json that Hugging Face lays beside it is
# made from it, and T5's has the sentinels inside.
KINDS = ("*.model", _JSON, "vocab.txt", "encoder.json", "vocab.json")


@dataclasses.dataclass(frozen=True)
class Record:
  """What is written beside a vocabulary that was copied to a checkpoint.

  file: name of the file in the folder, or "bytes".
  extra_ids: sentinels behind the vocabulary's own ids.
  """

  file: str
  extra_ids: int

  def spec(self, folder: epath.Path) -> str:
    """What `t2t.data.vocabularies.load` takes."""
    return "bytes" if self.file == "bytes" else str(folder / self.file)

  def content(self) -> bytes:
    """As it is written."""
    return json.dumps(dataclasses.asdict(self), indent=2).encode()


def is_subword_file(path: epath.Path) -> bool:
  """Whether the name is one of those that WordPiece and BPE vocabularies have: *.txt, *.json, *.bpe."""
  return path.suffix in (".txt", ".json", ".bpe")


def is_own(name: object) -> bool:
  """Whether a name that a file gives is that of a file in the same folder, and of none elsewhere on this machine."""
  return isinstance(name, str) and name not in ("", ".", "..") and pathlib.PurePath(name).name == name


def read_record(folder: epath.Path) -> Record:
  """The record of a folder that has one.

  Raises:
    UserError: it is torn or no file, or names a file that is not in the folder.
  """
  path = folder / RECORD
  try:
    values = safe_read.read_json(path)
    record = Record(values["file"], values["extra_ids"])
  except (UserError, KeyError) as error:
    raise UserError(f"{path}: not what t2t writes beside a vocabulary ({error!r}); copy it again") from error
  if not is_own(record.file) or type(record.extra_ids) is not int or record.extra_ids < 0:
    raise UserError(
      f"{path}: its file is {record.file!r} and its extra_ids {record.extra_ids!r}; it must be a file of the same"
      " folder, or bytes, and a number"
    )
  return record


def found_in(folder: epath.Path) -> list[epath.Path]:
  """The files of the first of `KINDS` that a folder has, sorted; none if it has none.

  A tokenizer.json comes before a SentencePiece model that could not do what it does: make small letters of capitals
  (ALBERT).
  """
  by_kind = ((kind, sorted(path for path in folder.glob(kind) if path.name != SHIFTED)) for kind in KINDS)
  kind, files = next(((kind, files) for kind, files in by_kind if files), ("", []))
  json_path = folder / _JSON
  return [json_path] if kind == "*.model" and json_path.exists() and makes_small(json_path) else files


def makes_small(path: epath.Path) -> bool:
  """Whether a tokenizer.json makes small letters of capitals; False as well of what is none."""
  try:
    normalizer = json.loads(safe_read.read(path))["normalizer"]
  except (ValueError, KeyError, TypeError, RecursionError):
    return False  # who reads it says what is wrong with it
  return any(marker in json.dumps(normalizer) for marker in ('"Lowercase"', '"lowercase": true'))


def pieces_and_merges(path: epath.Path) -> tuple[epath.Path, epath.Path | None]:
  """The file of the pieces and that of the merges, of either; None: its kind of vocabulary has no merges."""
  for pieces, merges in MERGES.items():
    for mine, partner_suffix in ((pieces, merges), (merges, pieces)):
      if path.name.endswith(mine):
        partner = path.parent / (path.name.removesuffix(mine) + partner_suffix)
        return (path, partner) if mine == pieces else (partner, path)
  return path, None


def files_of(path: epath.Path) -> list[epath.Path]:
  """All that a vocabulary of subwords is read from: its pieces, their merges, and the settings if there are any.

  Raises:
    UserError: pieces without their merges, or the other way round.
  """
  files = [part for part in pieces_and_merges(path) if part is not None]
  for file in files:
    if not file.exists():
      raise UserError(f"{path}: {file.name} must lie beside it, and does not")
  settings = path.parent / SETTINGS
  return [*files, settings] if settings.exists() else files


def ids_of(path: epath.Path) -> dict[str, int]:
  """The id of each piece of a SentencePiece model, vocab.txt, tokenizer.json, encoder.json or vocab.json.

  Raises whatever its library does where it is none, and:
    UserError: it is no file, has no pieces, or ids that none can have.
  """
  ids = _ids_of(path)
  if not ids or not all(type(i) is int and 0 <= i < _MOST_IDS for i in ids.values()):
    problem = "has ids that no embedding has rows for" if ids else "has no pieces"
    raise UserError(f"{path}: {problem}; copy or download it again")
  return ids


def _ids_of(path: epath.Path) -> dict[str, int]:
  content = safe_read.read(path)
  if not content:
    return {}  # of which SentencePiece makes a model that fails whenever it is asked
  if path.suffix == ".model":
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    return {model.id_to_piece(i): i for i in range(model.get_piece_size())}
  text = content.decode("utf-8")
  if path.suffix == ".txt":
    return {piece: i for i, piece in enumerate(text.removesuffix("\n").split("\n"))}
  content = safe_read.json_object(content, path)
  if path.name == _JSON and not isinstance(content.get("model"), dict):
    raise UserError(f"{path}: has no model, which says what its pieces are; copy or download it again")
  if isinstance(content.get("model"), dict):  # a tokenizer.json; "model" may also be a piece
    return tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
  return content
