"""Loads and checks vocabularies, and finds ids with a function: sentinels, masks, word starts, sentence ends."""

import json
import pathlib
import re

from absl import logging
from etils import epath
import numpy as np
import sentencepiece

from t2t import UserError
from t2t.data import vocabulary_classes
from t2t.data.vocabularies import control_tokens
from t2t.data.vocabulary_classes import SentencePieceVocabulary
from t2t.param_tree import Vocabulary
from t2t.storage import gcs, vocabulary_files

DOCS_SIZE = 4096  # with 100 sentinels 4,196 ids, which fit an embedding of 33 x 128 = 4,224 rows
_SENTENCE_END = re.compile(r"""[.!?…。！？؟।][\"'”’»)\]]*\s*$|\n\s*$""")
_DOCS_CHARACTERS = 4_000_000  # training text of the docs vocabulary: 4 s on two cores; more text changes few tokens


def load(spec: str, *, extra_ids: int = 100) -> Vocabulary:
  """Loads the vocabulary that `spec` names, with `extra_ids` sentinels after its ids.

  Args:
    spec: "bytes" (UTF-8 bytes after pad, EOS and unknown, as in ByT5), "docs-SIZE" (`docs_vocabulary`), or the path or
      URL of a vocabulary file or of a published model's folder, see `vocabulary_files.found_in`.
    extra_ids: number of sentinels; the last id is <extra_id_0>, and numbers increase with decreasing ids.

  Raises:
    UserError: the file does not exist, is no vocabulary, already has sentinels, or lacks a required token.
  """
  if extra_ids < 0:
    raise UserError(f"config.data.extra_ids={extra_ids}: the number of sentinels must not be negative; give 0 or more")
  if not spec:
    raise UserError(f"config.data.vocabulary is empty: {_WHAT_TO_GIVE}")
  if spec == "bytes":
    return vocabulary_classes.ByteVocabulary(extra_ids=extra_ids)
  if size := re.fullmatch(r"docs-([1-9][0-9]{2,5})", spec):
    return docs_vocabulary(size=int(size[1]), extra_ids=extra_ids)
  where = f"config.data.vocabulary={spec}"
  spec = gcs.fetched(spec, where="config.data.vocabulary=", vocabulary=True)
  path = epath.Path(spec).expanduser()
  if not path.exists():
    from t2t.storage import hub

    hub.check(spec, where=where.removesuffix(spec))
    raise UserError(f"{where}: no such file; {_WHAT_TO_GIVE}")
  if (path / vocabulary_files.RECORD).exists():
    return load(vocabulary_files.read_record(path).spec(path), extra_ids=extra_ids)
  if path.is_dir():
    path = _file_in(path, where)
  if vocabulary_files.is_subword_file(path):
    from t2t.data.vocabularies import subwords

    vocabulary = subwords.SubwordVocabulary(str(path), extra_ids=extra_ids)
    vocabulary.load_model()
    return vocabulary
  _check_model(path, extra_ids, where)
  return SentencePieceVocabulary(str(path), extra_ids=extra_ids)


_WHAT_TO_GIVE = (
  'give "bytes", docs-SIZE of 100 or more, or the path of a SentencePiece .model file, of a WordPiece vocab.txt, of a '
  "tokenizer.json, or of the encoder.json or vocab.json of a BPE vocabulary"
)


def _file_in(folder: epath.Path, where: str) -> epath.Path:
  paths = vocabulary_files.found_in(folder)
  if len(paths) > 1:
    raise UserError(
      f"{where} contains {len(paths)} files *{paths[0].suffix}; give one of these files, for example {paths[0]}"
    )
  if not paths:
    endings = ", ".join(vocabulary_files.KINDS)
    raise UserError(f"{where}: this folder contains no vocabulary; give a folder with one of {endings}")
  return paths[0]


def _check_model(path: epath.Path, extra_ids: int, where: str) -> None:
  try:
    content = gcs.read(path)
  except OSError as error:
    raise UserError(
      f"{where} cannot be read ({error.strerror or error}); check the path and permissions of the file"
    ) from error
  try:
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
  except (RuntimeError, UnicodeDecodeError) as error:
    raise UserError(
      f"{where} is not a SentencePiece model; download the file again, or train a model with `t2t vocab train`"
    ) from error
  sentinels = [i for i, piece in enumerate(pieces) if vocabulary_files.SENTINEL.fullmatch(piece)]
  if sentinels and extra_ids:
    raise UserError(
      f"{where}: the model already contains {len(sentinels)} sentinels ({pieces[sentinels[0]]} has id "
      f"{sentinels[0]}). Adding {extra_ids} would give each sentinel two ids. Set config.data.extra_ids=0, or "
      "give a model without sentinels, such as the published model of T5."
    )
  # Llama has no pad token. Its id 0 is the unknown token, which never occurs, because unknown characters become bytes.
  free = model.is_unknown(0) or model.is_control(0)
  if model.pad_id() != vocabulary_classes.PAD_ID and not (model.pad_id() < 0 and free):
    reason = f'has no pad token and id 0 is "{pieces[0]}"' if model.pad_id() < 0 else f"pads with id {model.pad_id()}"
    raise UserError(
      f"{where}: the model {reason}, but padding must be id 0. Train a model with `t2t vocab train`, or set pad_id=0 in"
      " your training."
    )
  if model.pad_id() < 0 and model.is_unknown(0) and not any(model.is_byte(i) for i in range(len(pieces))):
    logging.warning(
      "%s: id 0 is both padding and %s, so unknown characters of the text are not learned", where, pieces[0]
    )
  if model.eos_id() < 0:
    raise UserError(
      f"{where}: the model has no EOS token, but targets must end with EOS. Train a model with `t2t vocab train`, which"
      " makes </s> id 1."
    )


def check(vocabulary: Vocabulary, model_vocab_size: int) -> None:
  """Checks that every id has a row in the embedding.

  Raises:
    UserError: the largest id has none; gives a sufficient size.
  """
  if vocabulary.vocab_size > model_vocab_size:
    # Multiples of 128 rows fill the lanes of a TPU's matrix unit and divide evenly over usual meshes.
    fits = -(-vocabulary.vocab_size // 128) * 128
    raise UserError(
      f"config.model.vocab_size={model_vocab_size} is too small: the vocabulary's largest id is"
      f" {vocabulary.vocab_size - 1} ({vocabulary.extra_ids} sentinels included);"
      f" set config.model.vocab_size={fits}, or 0 for the size of the vocabulary"
    )


def num_sentinels(vocabulary: Vocabulary) -> int:
  """Returns the number of sentinels: the added ones, or for plain bytes the last 100 ids, as in ByT5.

  UTF-8 never uses the bytes 0xF5 to 0xFF. Others of the last 100 occur only in characters that are rare in most text
  (Xue et al. 2022, section 3.1).
  """
  if vocabulary_classes.is_bytes(vocabulary) and not vocabulary.extra_ids:
    return 100
  return vocabulary.extra_ids


def sentinel_ids(vocabulary: Vocabulary, count: int) -> list[int]:
  """Returns ids of <extra_id_0>, <extra_id_1>, ..., which decrease from the vocabulary's last id.

  In:  T5's 32,000 tokens and 100 sentinels, count 3
  Out: [32099, 32098, 32097]

  Raises:
    UserError: the vocabulary has fewer sentinels.
  """
  if count > num_sentinels(vocabulary):
    raise UserError(
      f"config.data.extra_ids: {count} sentinels are needed, but the vocabulary has {num_sentinels(vocabulary)}. "
      f"Set config.data.extra_ids={count} or more, or reduce config.data.inputs_length."
    )
  return [vocabulary.vocab_size - 1 - i for i in range(count)]


def pads_with_zero(vocabulary: Vocabulary) -> bool:
  """Returns True if id 0 is padding; in GPT-2 it is "!", in RoBERTa <s>."""
  return vocabulary.pad_id == 0


def bos_id(vocabulary: Vocabulary) -> int:
  """Returns the first decoder input: the vocabulary's BOS, else 0 if 0 is padding (T5), else EOS (GPT-2)."""
  vocabulary_bos = None if vocabulary_classes.is_bytes(vocabulary) else vocabulary.bos_id
  if vocabulary_bos is not None and vocabulary_bos >= 0:
    return vocabulary_bos
  return 0 if pads_with_zero(vocabulary) else vocabulary.eos_id


def mask_id(vocabulary: Vocabulary) -> int:
  """Returns the id of the mask: [MASK] or <mask>, else <extra_id_0>.

  Raises:
    UserError: the vocabulary has neither.
  """
  token_id = find_mask_id(vocabulary)
  if token_id is None:
    raise UserError(
      "config.data.vocabulary has no mask: no [MASK] token, no <mask> token and no sentinels. Set "
      "config.data.extra_ids=1 or more to use <extra_id_0> as the mask."
    )
  return token_id


def find_mask_id(vocabulary: Vocabulary) -> int | None:
  """Returns `mask_id`, or None if the vocabulary has no such id."""
  token_id = _own_id(vocabulary, "mask")
  if token_id is not None:
    return token_id
  return sentinel_ids(vocabulary, 1)[0] if num_sentinels(vocabulary) else None


def cls_id(vocabulary: Vocabulary) -> int | None:
  """Returns the id at the start of BERT's inputs ([CLS], in RoBERTa <s>), or None."""
  return _own_id(vocabulary, "cls")


def sep_id(vocabulary: Vocabulary) -> int | None:
  """Returns the id at the end of each text of BERT's inputs ([SEP], in RoBERTa </s>), or None."""
  return _own_id(vocabulary, "sep")


def starts_with_bos(vocabulary: Vocabulary) -> bool:
  """Returns True if BOS serves as [CLS] (RoBERTa); False for a [CLS] that is declared as BOS (ALBERT)."""
  token_id, names = cls_id(vocabulary), control_tokens.NAMES["cls"]
  return token_id is not None and token_id == bos_id(vocabulary) and token_texts(vocabulary)[token_id] not in names


def framing_ids(vocabulary: Vocabulary) -> set[int]:
  """Returns ids that frame a text without being part of it: padding, BOS, EOS, [CLS], [SEP]."""
  return {vocabulary.pad_id, vocabulary.eos_id, bos_id(vocabulary), cls_id(vocabulary), sep_id(vocabulary)} - {None}


def _own_id(vocabulary: Vocabulary, kind: str) -> int | None:
  """Returns the id of a token by its function, a key of `control_tokens.NAMES`, or None."""
  if not vocabulary_classes.is_sentencepiece(vocabulary):
    return getattr(vocabulary, f"{kind}_id", None)
  model, names = vocabulary.tokenizer, control_tokens.NAMES[kind]
  # The model returns the unknown id for a missing token.
  token_ids = [model.piece_to_id(piece) for piece in names if model.piece_to_id(piece) != model.unk_id()]
  return token_ids[0] if token_ids else None


def token_texts(vocabulary: Vocabulary, *, errors: str = "replace") -> list[str]:
  """Returns the text of each id, with a leading space if it starts a word; special ids and sentinels have their names.

  In:  T5's 32,000 tokens and 100 sentinels
  Out: [0] "<pad>", [1] "</s>", [3] " ", [8774] " Hello", [32099] "<extra_id_0>"

  A part of a character (byte-level BPE and bytes) is U+FFFD, the replacement character; with errors="surrogateescape"
  it is a distinct surrogate.
  """
  if vocabulary_classes.is_sentencepiece(vocabulary):
    pieces = vocabulary.tokenizer.id_to_piece(list(range(vocabulary.vocab_size)))
    return [piece[1:] if vocabulary_files.SENTINEL.fullmatch(piece) else piece.replace("▁", " ") for piece in pieces]
  if vocabulary_classes.is_bytes(vocabulary):
    texts = ["<pad>", "</s>", "<unk>", *(bytes([byte]).decode(errors=errors) for byte in range(256))]
  else:
    texts = vocabulary.token_texts() if errors == "replace" else vocabulary.token_texts(errors=errors)
  return texts + [f"<extra_id_{i}>" for i in reversed(range(vocabulary.extra_ids))]


def token_bytes(vocabulary: Vocabulary) -> np.ndarray | None:
  """Returns the number of UTF-8 bytes of each id's text, int32 [vocab_size]; 0 for special ids and sentinels.

  None for vocabularies that change the text, such as WordPiece.
  """
  if vocabulary_classes.is_sentencepiece(vocabulary):
    model, texts = vocabulary.tokenizer, token_texts(vocabulary)
    sizes = [1 if model.is_byte(i) else len(text.encode()) for i, text in enumerate(texts[: model.get_piece_size()])]
    sizes += [0] * (vocabulary.vocab_size - len(sizes))
  elif vocabulary_classes.is_bytes(vocabulary):
    sizes = [1] * vocabulary.vocab_size
  else:
    encoded = [text.encode(errors="surrogateescape") for text in token_texts(vocabulary, errors="surrogateescape")]
    if not {bytes([byte]) for byte in range(256)} <= set(encoded):
      return None
    sizes = [len(text) for text in encoded]
  array = np.array(sizes, np.int32)
  array[[*special_ids(vocabulary), *sentinel_ids(vocabulary, num_sentinels(vocabulary))]] = 0
  return array


def special_ids(vocabulary: Vocabulary) -> set[int]:
  """Returns ids that no text has: padding, EOS, unknown, mask, reserved ids, and added sentinels."""
  if vocabulary_classes.is_sentencepiece(vocabulary):
    model = vocabulary.tokenizer
    special = {
      i
      for i in range(vocabulary.vocab_size)
      if model.is_control(i)
      or model.is_unknown(i)
      or model.is_unused(i)
      or vocabulary_files.SENTINEL.fullmatch(model.id_to_piece(i))
    }
    named = (_own_id(vocabulary, kind) for kind in ("mask", "cls", "sep"))
    return special | {token_id for token_id in named if token_id is not None}
  token_ids = {0, 1, 2} if vocabulary_classes.is_bytes(vocabulary) else set(vocabulary.special_ids)
  return token_ids | set(range(vocabulary.vocab_size - vocabulary.extra_ids, vocabulary.vocab_size))


def starts_word(vocabulary: Vocabulary) -> np.ndarray:
  """Returns which ids start a word, bool [vocab_size]; special ids and sentinels are separate words.

  White space separates words; in a WordPiece vocabulary also punctuation, as in BERT's whole-word masking. The first
  token of a text always starts a word, even without a space.
  """
  starts = np.array([text[:1].isspace() for text in token_texts(vocabulary)])
  starts[list(special_ids(vocabulary))] = True
  return starts


def ends_sentence(vocabulary: Vocabulary) -> np.ndarray:
  """Returns which ids end a sentence, bool [vocab_size]: . ! ? or similar, with closing quotes or brackets, or a line
  break.
  """
  ends = np.array([_SENTENCE_END.search(text) is not None for text in token_texts(vocabulary)])
  ends[list(special_ids(vocabulary))] = False
  return ends


def ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
  """Returns the ids of text, int32 and ascending: neither special ids nor sentinels."""
  special = special_ids(vocabulary)
  # Bytes without added sentinels use their last ids as sentinels.
  text_ids = vocabulary.vocab_size - num_sentinels(vocabulary) if vocabulary.extra_ids == 0 else vocabulary.vocab_size
  return np.array([i for i in range(text_ids) if i not in special], np.int32)


def t5_vocabulary(*, extra_ids: int = 100) -> SentencePieceVocabulary:
  """Returns T5's vocabulary, 32,000 tokens and `extra_ids` sentinels; it is read from its bucket on first use."""
  return _PublishedVocabulary("gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", extra_ids=extra_ids)


class _PublishedVocabulary(SentencePieceVocabulary):
  """A vocabulary that a registered task names, with an error that suggests alternatives if it cannot be read."""

  def _model_context(self):
    try:
      return super()._model_context()
    except OSError as error:
      raise UserError(
        f"the task's vocabulary, {self.sentencepiece_model_file}, cannot be read ({error}). Set "
        "config.data.vocabulary to a copy of this file, or to another vocabulary."
      ) from error


class _DocsVocabulary(SentencePieceVocabulary):
  """A vocabulary of the installed documentation; its model is trained on first use, not when a task names it."""

  def __init__(self, size: int, *, extra_ids: int):
    super().__init__(f"docs-{size}/spiece.model", extra_ids=extra_ids)
    self.size = size

  def _model_context(self):
    if self._model is None:
      self._sentencepiece_model_file = str(_docs_model(self.size))
    return super()._model_context()

  def __eq__(self, other):
    return isinstance(other, _DocsVocabulary) and (self.size, self.extra_ids) == (other.size, other.extra_ids)


def _docs_model(size: int) -> pathlib.Path:
  from t2t.data import docs_corpus
  from t2t.data.vocabularies import training

  path = docs_corpus.folder() / f"spiece_{size}" / "spiece.model"
  if path.exists():
    return path
  lines = docs_corpus.files()["train"].read_text().splitlines()
  texts, characters = [], 0
  # Every third document, so that all packages are included.
  for line in [*lines[0::3], *lines[1::3], *lines[2::3]]:
    if characters >= _DOCS_CHARACTERS:
      break
    texts.append(json.loads(line)["text"])
    characters += len(texts[-1])
  return training.train_sentencepiece(texts, size=size, output_dir=path.parent, character_coverage=1.0, is_limit=True)


def docs_vocabulary(*, size: int = DOCS_SIZE, extra_ids: int = 100) -> SentencePieceVocabulary:
  """Returns the SentencePiece vocabulary of the installed documentation, with `extra_ids` sentinels.

  It has `size` tokens, or fewer if the text does not allow so many (about 17,000 with the packages that t2t needs).

  The first use on a machine trains the model (about 10 s); later uses read it from the cache folder.
  """
  return _DocsVocabulary(size, extra_ids=extra_ids)
