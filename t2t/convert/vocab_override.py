"""Assigns a vocabulary of the user to a checkpoint, and copies it beside one; without TensorFlow.

`t2t.data.vocabularies` tokenizes; this module needs only file names and the number of ids.
"""

import dataclasses

from etils import epath

from t2t import UserError
from t2t.convert.lazy_tensors import Foreign
from t2t.storage import gcs, hub, vocabulary_files

BYTES = 3 + 256  # padding, EOS and unknown before the bytes
_T5_SENTINELS = 100
_WHAT_TO_GIVE = (
  'Give "bytes", a SentencePiece .model file, a vocab.txt, a tokenizer.json, an encoder.json or vocab.json, or a'
  " folder with one of these files."
)


# ---- Reading ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Found:
  """Description of a vocabulary's files.

  spec: argument of `t2t.data.vocabularies.load`.
  own_ids: number of ids without sentinels after them.
  has_sentinels: whether these include sentinels.
  extra_ids: number of sentinels after them; None: unknown.
  """

  spec: str
  own_ids: int
  has_sentinels: bool = False
  extra_ids: int | None = None


def give(foreign: Foreign, spec: str, *, extra_ids: int | None = None) -> Foreign:
  """Returns a checkpoint with the vocabulary of the user, which replaces its own.

  Args:
    foreign: the checkpoint.
    spec: of `--vocabulary`: "bytes", a file, or a folder.
    extra_ids: of `--extra_ids`, sentinels after the vocabulary's own ids; None: the number in its files, or T5's 100
      after a SentencePiece model without any, if there are rows for them.

  Raises:
    UserError: the file does not exist, is not a vocabulary, or has ids without a row in the embedding.
  """
  where, rows = f"--vocabulary {spec}", foreign.model.vocab_size
  vocabulary = _vocabulary_at(spec, where)
  if extra_ids is None:
    has_room = vocabulary.own_ids + _T5_SENTINELS <= rows
    usual = vocabulary.spec.endswith(".model") and not vocabulary.has_sentinels and has_room
    extra_ids = vocabulary.extra_ids if vocabulary.extra_ids is not None else _T5_SENTINELS * usual
  elif extra_ids < 0:
    raise UserError(f"--extra_ids {extra_ids} is negative. Give 0 or more (T5 has {_T5_SENTINELS}).")
  elif extra_ids and vocabulary.has_sentinels:
    raise UserError(f"--extra_ids {extra_ids}: {spec} already contains sentinels. Leave out --extra_ids.")
  size = vocabulary.own_ids + extra_ids
  if size > rows:
    fewer = f", or --extra_ids {rows - vocabulary.own_ids} or less" if vocabulary.own_ids <= rows else ""
    raise UserError(
      f"{where} has {size:,} ids ({extra_ids} sentinels included), but the embedding of {foreign.path} has only "
      f"{rows:,} rows. Give the vocabulary that the model was trained with{fewer}."
    )
  padding = f"; the last {rows - size:,} are padding, and are kept" if rows > size else ""
  # Remove the checkpoint's notes on its own or missing vocabulary.
  notes = [note for note in foreign.notes if "vocabulary" not in note]
  notes.append(f"vocabulary: {spec}, {extra_ids} sentinels included: {size:,} of {rows:,} rows used{padding}")
  return dataclasses.replace(foreign, vocabulary=vocabulary.spec, extra_ids=extra_ids, notes=tuple(notes))


def _vocabulary_at(spec: str, where: str) -> _Found:
  if spec == "bytes":
    return _Found(spec, BYTES)
  spec = gcs.fetched(spec, where=where.removesuffix(spec), vocabulary=True)
  path = epath.Path(spec).expanduser()
  if not path.exists():
    hub.check(spec, where=where.removesuffix(spec))
    raise UserError(f"{where}: no such file. {_WHAT_TO_GIVE}")
  if (path / vocabulary_files.RECORD).exists():
    record = vocabulary_files.read_record(path)
    return dataclasses.replace(_vocabulary_at(record.spec(path), where), extra_ids=record.extra_ids)
  if path.is_dir():
    path = next(iter(vocabulary_files.found_in(path)), path)
  if path.is_dir() or path.suffix not in (".model", ".txt", ".json", ".bpe"):
    raise UserError(f"{where} is not a vocabulary. {_WHAT_TO_GIVE}")
  pieces = path if path.suffix == ".model" else vocabulary_files.files_of(path)[0]
  try:
    ids = vocabulary_files.ids_of(pieces)
  except UserError as error:
    raise UserError(f"{where}: {error}") from error
  # Libraries raise various errors for invalid files; `tokenizers` raises only Exception.
  except Exception as error:
    raise UserError(f"{where}: {pieces} is not a valid {pieces.suffix} file ({error}). {_WHAT_TO_GIVE}") from error
  return _Found(
    str(path), max(ids.values(), default=-1) + 1, any(vocabulary_files.SENTINEL.fullmatch(piece) for piece in ids)
  )


# ---- Writing ---------------------------------------------------------------------------------------------------------


def save(foreign: Foreign, folder: epath.Path) -> None:
  """Copies a checkpoint's vocabulary into a folder for `t2t.data.vocabularies.load`.

  The files are identical to the output of `t2t.data.vocabularies.save`.

  Raises:
    UserError: a file does not exist.
  """
  path = epath.Path(foreign.vocabulary).expanduser()
  if foreign.vocabulary == "bytes":
    files, name = {}, "bytes"
  elif path.suffix == ".model":
    files, name = {"spiece.model": path.read_bytes()}, "spiece.model"
  else:
    files = {file.name: file.read_bytes() for file in vocabulary_files.files_of(path)}
    name = next(iter(files))
  folder.mkdir(parents=True, exist_ok=True)
  record = vocabulary_files.Record(name, foreign.extra_ids).content()
  # The record comes last: a folder without it is incomplete.
  for name, content in {**files, vocabulary_files.RECORD: record}.items():
    (folder / name).write_bytes(content)
