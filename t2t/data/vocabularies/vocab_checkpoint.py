"""The vocabulary that is kept beside a model, and whether another is the same: by content, whatever it is called."""

from collections.abc import Sequence
import hashlib

from etils import epath
import seqio

from t2t import UserError
from t2t.data.vocabularies import control_tokens, reserved_ids
from t2t.storage import vocabulary_files

# Of the ids of a checkpoint's vocabulary so many may stand for other pieces where its embedding is taken: BERT's has
# 994 unused ones of 30,522, which are there to be given away.
_OTHER_PIECES = 0.1


def save(vocabulary: seqio.Vocabulary, folder: epath.Path) -> None:
  """Copies a vocabulary's files to `folder`, next to the model; `reserved_ids.load` reads them.

  A vocabulary of the user's own class is left where it is.
  """
  name_and_files = _files(vocabulary)
  if name_and_files is None:
    return
  name, files = name_and_files
  folder.mkdir(parents=True, exist_ok=True)
  record = vocabulary_files.Record(name, vocabulary.extra_ids).content()
  # The record last: a folder without it was not written to its end.
  for name, content in {**files, vocabulary_files.RECORD: record}.items():
    part = folder / f"{name}.part"
    part.write_bytes(content)
    part.replace(folder / name)


def _files(vocabulary: seqio.Vocabulary) -> tuple[str, dict[str, bytes]] | None:
  """What `vocabulary_files.Record` calls it, and name -> content of its files; None: it is of the user's own class."""
  if isinstance(vocabulary, seqio.ByteVocabulary):
    return "bytes", {}
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    vocabulary.load_model()
    return "spiece.model", {"spiece.model": epath.Path(vocabulary.sentencepiece_model_file).read_bytes()}
  if isinstance(vocabulary, control_tokens.FileVocabulary):
    return vocabulary.files[0].name, {path.name: path.read_bytes() for path in vocabulary.files}
  return None


def saved_extra_ids(folder: epath.Path) -> int | None:
  """How many sentinels the vocabulary in a folder of `save` has; None: there is no such folder."""
  has_record = (folder / vocabulary_files.RECORD).exists()
  return vocabulary_files.read_record(folder).extra_ids if has_record else None


def digest(vocabulary: seqio.Vocabulary) -> str:
  """The same of vocabularies that make the same ids of any text, whatever their files are called and wherever they lie.

  It is "" of one of the user's own class.
  """
  name_and_files = _files(vocabulary)
  if name_and_files is None:
    return ""
  hasher = hashlib.blake2b(f"{vocabulary.extra_ids}".encode(), digest_size=8)
  # In the order in which they are read: pieces, merges, settings.
  for content in name_and_files[1].values():
    hasher.update(hashlib.blake2b(content).digest())
  return hasher.hexdigest()


def check_same(trained: seqio.Vocabulary, configured: seqio.Vocabulary, *, spec: str) -> None:
  """Whether a model reads the words that it was trained with.

  Args:
    trained: the vocabulary of the checkpoint.
    configured: the one that the config names.
    spec: what the config names it with.

  Raises:
    UserError: they differ; names the first id whose pieces do.
  """
  if difference := _difference(trained, configured):
    raise UserError(
      f"config.data.vocabulary={spec}: the checkpoint was trained with another vocabulary ({difference});"
      ' leave it empty ("") to use the checkpoint\'s'
    )


def _difference(trained: seqio.Vocabulary, configured: seqio.Vocabulary) -> str:
  """Returns a sentence on how the run's vocabulary differs from the checkpoint's; "" if it does not."""
  ours, theirs = reserved_ids.token_texts(trained), reserved_ids.token_texts(configured)
  if ours == theirs:
    return ""
  index = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if len(set(pair)) > 1), None)
  if index is not None:
    return f"id {index} is {theirs[index]!r}, not {ours[index]!r}"
  sizes = f"the checkpoint's has {len(ours):,} ids, the run's {len(theirs):,}"
  if len(ours) - trained.extra_ids != len(theirs) - configured.extra_ids:
    return sizes
  return (
    f"{sizes}: {trained.extra_ids} and {configured.extra_ids} of them are sentinels; the checkpoint's number is"
    f" --config.data.extra_ids={trained.extra_ids}"
  )


def check_saved(configured: seqio.Vocabulary, folder: epath.Path, *, noted: str, spec: str) -> None:
  """Whether a run goes on with the vocabulary that it began with, before its copy of it is written anew.

  Args:
    configured: the one that the config names.
    folder: where the run keeps its own, see `save`.
    noted: `digest` of what its last checkpoint was trained with; "": it does not say, and what is kept counts.
    spec: what the config names it with.

  Raises:
    UserError: it is another.
  """
  now = digest(configured)
  if not now or now == noted:
    return  # of an own class nothing is known, and a copy that somebody has changed is mended
  try:
    extra_ids = saved_extra_ids(folder)
    saved_copy = None if extra_ids is None else reserved_ids.load(str(folder), extra_ids=extra_ids)
  except UserError:
    if not noted:
      raise
    saved_copy = None
  saved_digest = "" if saved_copy is None else digest(saved_copy)
  if noted not in ("", saved_digest):
    saved_copy, saved_digest = None, ""
  if saved_digest == now or saved_copy is None and not noted:
    return
  if saved_copy is None:
    difference, remedy = f"its copy in {folder} is not the one either", "bring the old one back"
  else:
    difference = _difference(saved_copy, configured) or "the same pieces, but other scores, merges or rules"
    remedy = f"go on with its own, --config.data.vocabulary={folder}"
  raise UserError(
    f"config.data.vocabulary={spec}: this run was begun with another vocabulary ({difference}); {remedy}"
    f" --config.data.extra_ids={configured.extra_ids if saved_copy is None else saved_copy.extra_ids}, or begin another"
    " --workdir"
  )


def compare_start(trained: seqio.Vocabulary, configured: seqio.Vocabulary, *, where: str, by_ids: Sequence[str]) -> str:
  """What is to be said of a model that goes on in another vocabulary, whose embedding it keeps; "": nothing.

  Args:
    trained: the vocabulary of the checkpoint.
    configured: the one of the run.
    where: what the user named the checkpoint with, for messages.
    by_ids: what the model has a row of for each id, as config.init.reinit names it.

  Raises:
    UserError: more ids stand for other pieces than a few that were given away.
  """
  if not digest(trained) or not digest(configured):
    return ""  # of the user's own class
  difference = _difference(trained, configured)
  if not difference:
    return ""
  pairs = list(zip(reserved_ids.token_texts(trained), reserved_ids.token_texts(configured), strict=False))
  num_changed = sum(a != b for a, b in pairs)
  summary = f"{where}: was trained with another vocabulary than the run's ({difference})"
  if num_changed > _OTHER_PIECES * len(pairs):
    raise UserError(
      f"{summary}: {num_changed:,} of {len(pairs):,} ids stand for other pieces, whose embeddings would be taken; take"
      " the checkpoint's vocabulary, config.init.use_model_config=True without config.data.vocabulary, or find them by"
      " their"
      f" pieces, config.init.transfer_vocab=True, or have them begin fresh, config.init.reinit={','.join(by_ids)}"
    )
  return f"{summary}: {num_changed:,} of {len(pairs):,} ids stand for other pieces"
