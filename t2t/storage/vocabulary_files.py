"""Recognizes vocabulary files by their names and folders, without TensorFlow."""

import dataclasses
import json
import pathlib
import re

from etils import epath
import sentencepiece
import tokenizers

from t2t import UserError
from t2t.storage import safe_read

# Token file -> merges file of byte-level BPE, by the ends of their names.
MERGES = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
SETTINGS = "tokenizer_config.json"
COUNTS = "word_counts.tsv"  # beside a tokenizer.json: how often each word occurs in the vocabulary's text
# Names the vocabulary file of a folder, and the number of sentinels; see `Record`.
RECORD = "vocabulary.json"
# File name of XLM-R and BARThez, whose ids differ from SentencePiece's by four leading tokens.
SHIFTED = "sentencepiece.bpe.model"
SENTINEL = re.compile("▁?<extra_id_[0-9]+>")
_JSON = "tokenizer.json"
_MOST_IDS = 2**31  # ids are int32
# Vocabulary files of published models. SentencePiece comes first: Hugging Face's tokenizer.json is made from it, and
# T5's contains the sentinels.
KINDS = ("*.model", _JSON, "vocab.txt", "encoder.json", "vocab.json")
# Names of all files of which a vocabulary may consist, and of the settings beside them.
PATTERNS = (
  *("*.model", "*vocab.txt", "*vocab.json", "*merges.txt", "*vocab.bpe", "*encoder.json", "tokenizer*.json"),
  *("special_tokens_map.json", "added_tokens.json", "config.json", "vocabulary.json", COUNTS),
)


@dataclasses.dataclass(frozen=True)
class Record:
  """Description that is written beside a vocabulary in a checkpoint.

  Attributes:
    file: name of the file in the folder, or "bytes".
    extra_ids: number of sentinels after the vocabulary's own ids.
  """

  file: str
  extra_ids: int

  def spec(self, folder: epath.Path) -> str:
    """Returns the argument for `t2t.data.vocabularies.load`."""
    return "bytes" if self.file == "bytes" else str(folder / self.file)

  def content(self) -> bytes:
    """Returns the JSON to write."""
    return json.dumps(dataclasses.asdict(self), indent=2).encode()


def is_subword_file(path: epath.Path) -> bool:
  """Returns True for extensions of WordPiece and BPE vocabularies: .txt, .json, .bpe."""
  return path.suffix in (".txt", ".json", ".bpe")


def is_own(name: object) -> bool:
  """Returns True if a name from a file refers to a file in the same folder, rather than elsewhere on the machine."""
  return isinstance(name, str) and name not in ("", ".", "..") and pathlib.PurePath(name).name == name


def read_record(folder: epath.Path) -> Record:
  """Returns the record of a folder that has one.

  Raises:
    UserError: it is malformed or not a file, or names a file outside the folder.
  """
  path = folder / RECORD
  try:
    values = safe_read.read_json(path)
    record = Record(values["file"], values["extra_ids"])
  except (UserError, KeyError) as error:
    raise UserError(f"{path} is not a vocabulary record of t2t ({error!r}). Copy the file again.") from error
  if not is_own(record.file) or type(record.extra_ids) is not int or record.extra_ids < 0:
    raise UserError(
      f"{path}: 'file' {record.file!r} or 'extra_ids' {record.extra_ids!r} is not valid. Set 'file' to a file of the "
      "same folder or to 'bytes', and 'extra_ids' to a whole number of at least 0."
    )
  return record


def found_in(folder: epath.Path) -> list[epath.Path]:
  """Returns the files of the first of `KINDS` in a folder, sorted; [] if there is none.

  A tokenizer.json that lowercases (ALBERT) comes before a SentencePiece model, which cannot.
  """
  by_kind = ((kind, sorted(path for path in folder.glob(kind) if path.name != SHIFTED)) for kind in KINDS)
  kind, files = next(((kind, files) for kind, files in by_kind if files), ("", []))
  json_path = folder / _JSON
  return [json_path] if kind == "*.model" and json_path.exists() and makes_small(json_path) else files


def makes_small(path: epath.Path) -> bool:
  """Returns True if a tokenizer.json lowercases; False also for other files."""
  try:
    normalizer = json.loads(safe_read.read(path))["normalizer"]
  except (ValueError, KeyError, TypeError, RecursionError):
    return False  # the tokenizer's loader reports the error
  return any(marker in json.dumps(normalizer) for marker in ('"Lowercase"', '"lowercase": true'))


def pieces_and_merges(path: epath.Path) -> tuple[epath.Path, epath.Path | None]:
  """Returns the token file and the merges file for either of them; None for vocabularies without merges."""
  for pieces, merges in MERGES.items():
    for mine, partner_suffix in ((pieces, merges), (merges, pieces)):
      if path.name.endswith(mine):
        partner = path.parent / (path.name.removesuffix(mine) + partner_suffix)
        return (path, partner) if mine == pieces else (partner, path)
  return path, None


def files_of(path: epath.Path) -> list[epath.Path]:
  """Returns all files of a subword vocabulary: tokens, merges, and settings and counts of words if there are any.

  Raises:
    UserError: the token file or the merges file is missing.
  """
  files = [part for part in pieces_and_merges(path) if part is not None]
  for file in files:
    if not file.exists():
      raise UserError(f"{path}: {file.name} is missing in the same folder. Copy both files into one folder.")
  beside = (path.parent / name for name in (SETTINGS, *((COUNTS,) if path.name == _JSON else ())))
  return [*files, *(file for file in beside if file.exists())]


def ids_of(path: epath.Path) -> dict[str, int]:
  """Returns the id of each token of a SentencePiece model, vocab.txt, tokenizer.json, encoder.json or vocab.json.

  Raises the library's errors for malformed files, and:
    UserError: not a file, no tokens, or invalid ids.
  """
  ids = _ids_of(path)
  if not ids or not all(type(i) is int and 0 <= i < _MOST_IDS for i in ids.values()):
    problem = "has ids that are negative or too large" if ids else "has no tokens"
    raise UserError(f"{path} {problem}. {safe_read.COPY_AGAIN}")
  return ids


def _ids_of(path: epath.Path) -> dict[str, int]:
  content = safe_read.read(path)
  if not content:
    return {}  # SentencePiece would load a model that fails on each call
  if path.suffix == ".model":
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    return {model.id_to_piece(i): i for i in range(model.get_piece_size())}
  text = content.decode("utf-8")
  if path.suffix == ".txt":
    return {piece: i for i, piece in enumerate(text.removesuffix("\n").split("\n"))}
  content = safe_read.json_object(content, path)
  if path.name == _JSON and not isinstance(content.get("model"), dict):
    raise UserError(f"{path} has no 'model' with the tokens. {safe_read.COPY_AGAIN}")
  if isinstance(content.get("model"), dict):  # a tokenizer.json; in other files "model" may be a token
    return tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
  return content
