"""Saves a vocabulary beside a model, and compares vocabularies by content."""

from collections.abc import Mapping, Sequence
import hashlib
from typing import Any

from etils import epath

from t2t import UserError
from t2t.data import vocabulary_classes
from t2t.data.vocabularies import control_tokens, reserved_ids
from t2t.param_tree import Vocabulary
from t2t.runtime import hosts
from t2t.storage import vocabulary_files

# Maximum fraction of ids with other tokens for keeping an embedding; BERT has 994 unused tokens of 30,522, intended for
# replacement.
_OTHER_PIECES = 0.1


def save(vocabulary: Vocabulary, folder: epath.Path) -> None:
  """Copies a vocabulary's files to `folder`, next to the model; `reserved_ids.load` reads them.

  A vocabulary of a custom class is not copied.
  """
  name_and_files = _files(vocabulary)
  if name_and_files is None:
    return
  name, files = name_and_files
  folder.mkdir(parents=True, exist_ok=True)
  record = vocabulary_files.Record(name, vocabulary.extra_ids).content()
  # The record is written last, so that an incomplete folder has none.
  for name, content in {**files, vocabulary_files.RECORD: record}.items():
    part = folder / f"{name}.part"
    part.write_bytes(content)
    part.replace(folder / name)


def _files(vocabulary: Vocabulary) -> tuple[str, dict[str, bytes]] | None:
  """Returns the name for `vocabulary_files.Record`, and name -> content of the files; None for a custom class."""
  if vocabulary_classes.is_bytes(vocabulary):
    return "bytes", {}
  if vocabulary_classes.is_sentencepiece(vocabulary):
    vocabulary.load_model()
    return "spiece.model", {"spiece.model": epath.Path(vocabulary.sentencepiece_model_file).read_bytes()}
  if isinstance(vocabulary, control_tokens.FileVocabulary):
    return vocabulary.files[0].name, {path.name: path.read_bytes() for path in vocabulary.files}
  return None


def saved_extra_ids(folder: epath.Path) -> int | None:
  """Returns the number of sentinels of a vocabulary saved by `save`; None if there is none."""
  has_record = (folder / vocabulary_files.RECORD).exists()
  return vocabulary_files.read_record(folder).extra_ids if has_record else None


def digest(vocabulary: Vocabulary) -> str:
  """Returns a hash that is equal for vocabularies with equal ids for every text, independent of file names and
  locations.

  The hash of a custom class is "".
  """
  name_and_files = _files(vocabulary)
  if name_and_files is None:
    return ""
  hasher = hashlib.blake2b(f"{vocabulary.extra_ids}".encode(), digest_size=8)
  # In reading order: tokens, merges, settings.
  for content in name_and_files[1].values():
    hasher.update(hashlib.blake2b(content).digest())
  return hasher.hexdigest()


_CONTENT = ", content "


def named(spec: str, content_digest: str) -> str:
  """Returns the name of a vocabulary in the identity of training data.

  In:  "runs/vocabulary/spiece.model", "9f86d081884c7d65"
  Out: "spiece.model, content 9f86d081884c7d65"
  """
  return spec.rsplit("/", 1)[-1] + (f"{_CONTENT}{content_digest}" if content_digest else "")


def unnamed(name: str) -> tuple[str, str]:
  """Returns the file name and the digest of a result of `named`; the digest is "" in names of older versions."""
  return tuple(name.rsplit(_CONTENT, 1)) if _CONTENT in name else (name, "")


def check_run(vocabulary: Vocabulary, copy_folder: epath.Path, saved: Mapping[str, Any] | None, *, spec: str) -> None:
  """Refuses another vocabulary than at the start of the run, or than on the other hosts.

  Args:
    vocabulary: vocabulary of the config.
    copy_folder: folder of the run's own copy.
    saved: identity of the last checkpoint's data position; None: there is no checkpoint.
    spec: config.data.vocabulary.

  Raises:
    UserError: the vocabularies differ.
  """
  content_digest = digest(vocabulary)
  if hosts.share(content_digest) != content_digest:
    raise UserError(
      f"config.data.vocabulary={spec}: the vocabulary on this host differs from the vocabulary on the first host. Copy "
      "the vocabulary from the first host."
    )
  if saved is not None:
    check_saved(vocabulary, copy_folder, noted=unnamed(str(saved.get("data.vocabulary", "")))[1], spec=spec)


def check_same(trained: Vocabulary, configured: Vocabulary, *, spec: str) -> None:
  """Checks that a model uses the vocabulary of its training.

  Args:
    trained: the vocabulary of the checkpoint.
    configured: the vocabulary of the config.
    spec: config.data.vocabulary.

  Raises:
    UserError: they differ; gives the first id with different tokens.
  """
  if text := difference(trained, configured):
    raise UserError(
      f"config.data.vocabulary={spec}: the checkpoint was trained with another vocabulary ({text}). Leave"
      ' config.data.vocabulary empty ("") to use the vocabulary of the checkpoint.'
    )


def difference(trained: Vocabulary, configured: Vocabulary) -> str:
  """Describes how the run's vocabulary differs from the checkpoint's; "" if it does not."""
  ours, theirs = reserved_ids.token_texts(trained), reserved_ids.token_texts(configured)
  if ours == theirs:
    return ""
  index = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if len(set(pair)) > 1), None)
  if index is not None:
    return f"id {index} is {theirs[index]!r}, not {ours[index]!r}"
  sizes = f"the checkpoint's vocabulary has {len(ours):,} ids, the run's vocabulary {len(theirs):,}"
  if len(ours) - trained.extra_ids != len(theirs) - configured.extra_ids:
    return sizes
  return (
    f"{sizes}: {trained.extra_ids} and {configured.extra_ids} of them are sentinels; the checkpoint's number is"
    f" --config.data.extra_ids={trained.extra_ids}"
  )


def check_saved(configured: Vocabulary, folder: epath.Path, *, noted: str, spec: str) -> None:
  """Checks that a resumed run has the vocabulary that it started with, before its copy is rewritten.

  Args:
    configured: the vocabulary of the config.
    folder: folder with the run's copy, see `save`.
    noted: `digest` of the vocabulary of the last checkpoint; "": unknown, and the copy is compared.
    spec: config.data.vocabulary.

  Raises:
    UserError: the vocabulary differs.
  """
  now = digest(configured)
  if not now or now == noted:
    return  # custom classes cannot be compared, and a modified copy is rewritten
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
    found, remedy = f"the copy in {folder} differs, too", "Restore the original vocabulary with"
  else:
    found = difference(saved_copy, configured) or "the same tokens, but other scores, merges or rules"
    remedy = f"Use the run's vocabulary with --config.data.vocabulary={folder}"
  raise UserError(
    f"config.data.vocabulary={spec}: this run started with another vocabulary ({found}). {remedy} "
    f"--config.data.extra_ids={configured.extra_ids if saved_copy is None else saved_copy.extra_ids}, or start a "
    "run in another --workdir."
  )


def compare_start(trained: Vocabulary, configured: Vocabulary, *, where: str, by_ids: Sequence[str]) -> str:
  """Describes the differences for a model that keeps its embedding with another vocabulary; "" if there are none.

  Args:
    trained: the vocabulary of the checkpoint.
    configured: the vocabulary of the run.
    where: name of the checkpoint, for messages.
    by_ids: parameters with one row per id, as for config.init.reinit.

  Raises:
    UserError: more ids have other tokens than a few replaced ones.
  """
  if not digest(trained) or not digest(configured):
    return ""  # a custom class
  found = difference(trained, configured)
  if not found:
    return ""
  pairs = list(zip(reserved_ids.token_texts(trained), reserved_ids.token_texts(configured), strict=False))
  num_changed = sum(a != b for a, b in pairs)
  summary = f"{where} was trained with a vocabulary that differs from the run's ({found})"
  if num_changed > _OTHER_PIECES * len(pairs):
    raise UserError(
      f"{summary}. {num_changed:,} of {len(pairs):,} ids have other tokens, so their embeddings would be wrong. Use "
      "the checkpoint's vocabulary (config.init.use_model_config=True without config.data.vocabulary), match "
      "tokens (config.init.transfer_vocab=True), or initialize fresh embeddings "
      f"(config.init.reinit={','.join(by_ids)})."
    )
  return f"{summary}: {num_changed:,} of {len(pairs):,} ids have other tokens"
