"""Vocabularies: loading and checking them, and what their ids mean: sentinels, masks, words, ends of sentences."""

import json
import pathlib
import re

from absl import logging
from etils import epath
import numpy as np
import sentencepiece
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.vocabularies import control_tokens
from t2t.storage import gcs, vocabulary_files

DOCS_SIZE = 4096  # with 100 sentinels 4,196 ids: an embedding of 33 x 128 = 4,224 rows holds them
_SENTENCE_END = re.compile(r"""[.!?…。！？؟।][\"'”’»)\]]*\s*$|\n\s*$""")
_DOCS_CHARACTERS = 4_000_000  # what the small vocabulary is trained on: 4 s on two cores, and more changes few pieces


def load(spec: str, *, extra_ids: int = 100) -> seqio.Vocabulary:
  """The vocabulary that `spec` names, with `extra_ids` sentinels behind its own ids.

  Args:
    spec: "bytes" (UTF-8 bytes after pad, EOS and unknown, as ByT5), or the path or URL of a vocabulary's file, or of
      the folder of a published model, see `vocabulary_files.found_in`.
    extra_ids: number of sentinels; the last id is <extra_id_0> and they count down from there.

  Raises:
    UserError: no such file, not a vocabulary, one that holds sentinels already, or lacks what it needs.
  """
  if extra_ids < 0:
    raise UserError(f"config.data.extra_ids={extra_ids}: the number of sentinels cannot be negative; T5 has 100")
  if not spec:
    raise UserError(f"config.data.vocabulary is empty: {_WHAT_TO_GIVE}")
  if spec == "bytes":
    return seqio.ByteVocabulary(extra_ids=extra_ids)
  gcs.check(spec, where="config.data.vocabulary=")
  where = f"config.data.vocabulary={spec}"
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
  return seqio.SentencePieceVocabulary(str(path), extra_ids=extra_ids)


_WHAT_TO_GIVE = (
  'give "bytes", or the path of a SentencePiece .model file, of a WordPiece vocab.txt, of a tokenizer.json, or of the'
  " encoder.json or vocab.json of a BPE vocabulary"
)


def _file_in(folder: epath.Path, where: str) -> epath.Path:
  paths = vocabulary_files.found_in(folder)
  if len(paths) > 1:
    raise UserError(f"{where}: has {len(paths)} of *{paths[0].suffix}; give one of them, for example {paths[0]}")
  if not paths:
    endings = ", ".join(vocabulary_files.KINDS)
    raise UserError(f"{where}: is a folder with no vocabulary in it; looked for {endings}")
  return paths[0]


def _check_model(path: epath.Path, extra_ids: int, where: str) -> None:
  try:
    content = gcs.read(path)
  except OSError as error:
    raise UserError(f"{where}: cannot be read ({error.strerror or error})") from error
  try:
    model = sentencepiece.SentencePieceProcessor(model_proto=content)
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
  except (RuntimeError, UnicodeDecodeError) as error:
    raise UserError(f"{where}: not a SentencePiece model; `t2t vocab train` makes one") from error
  sentinels = [i for i, piece in enumerate(pieces) if vocabulary_files.SENTINEL.fullmatch(piece)]
  if sentinels and extra_ids:
    raise UserError(
      f"{where}: the model already contains {len(sentinels)} sentinel pieces"
      f" ({pieces[sentinels[0]]} has id {sentinels[0]});"
      f" {extra_ids} more behind them would give each sentinel two ids."
      " Give a model without sentinels, as T5's is published"
    )
  # Llama's has no pad piece; id 0 is its unknown piece, which text never has since unknown characters are bytes.
  free = model.is_unknown(0) or model.is_control(0)
  if model.pad_id() != seqio.vocabularies.PAD_ID and not (model.pad_id() < 0 and free):
    reason = f'has no pad piece and id 0 is "{pieces[0]}"' if model.pad_id() < 0 else f"pads with id {model.pad_id()}"
    raise UserError(f"{where}: the model {reason}; padding must be id 0 (train it with pad_id=0, as `t2t vocab train`)")
  if model.pad_id() < 0 and model.is_unknown(0) and not any(model.is_byte(i) for i in range(len(pieces))):
    logging.warning("%s: id 0 is both padding and %s: unknown characters of the text are not learned", where, pieces[0])
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


def pads_with_zero(vocabulary: seqio.Vocabulary) -> bool:
  """Whether id 0 is padding; in GPT-2 it stands for "!", in RoBERTa for <s>."""
  return vocabulary.pad_id == 0


def bos_id(vocabulary: seqio.Vocabulary) -> int:
  """The id that decoder inputs start with: the vocabulary's own BOS, else 0 where it pads (T5), else EOS (GPT-2)."""
  vocabulary_bos = None if isinstance(vocabulary, seqio.ByteVocabulary) else vocabulary.bos_id
  if vocabulary_bos is not None and vocabulary_bos >= 0:
    return vocabulary_bos
  return 0 if pads_with_zero(vocabulary) else vocabulary.eos_id


def mask_id(vocabulary: seqio.Vocabulary) -> int:
  """The id that hides a token: the vocabulary's own [MASK] or <mask>, else <extra_id_0>.

  Raises:
    UserError: there is neither.
  """
  token_id = find_mask_id(vocabulary)
  if token_id is None:
    raise UserError(
      "config.data.vocabulary: has neither a [MASK] or <mask> piece nor sentinels, and masking needs one id;"
      " set config.data.extra_ids=1 or more, and <extra_id_0> is it"
    )
  return token_id


def find_mask_id(vocabulary: seqio.Vocabulary) -> int | None:
  """`mask_id`, or None where the vocabulary has no such id."""
  token_id = _own_id(vocabulary, "mask")
  if token_id is not None:
    return token_id
  return sentinel_ids(vocabulary, 1)[0] if num_sentinels(vocabulary) else None


def cls_id(vocabulary: seqio.Vocabulary) -> int | None:
  """The id that BERT's inputs start with ([CLS], in RoBERTa <s>), if there is one."""
  return _own_id(vocabulary, "cls")


def sep_id(vocabulary: seqio.Vocabulary) -> int | None:
  """The id that ends each text of BERT's inputs ([SEP], in RoBERTa </s>), if there is one."""
  return _own_id(vocabulary, "sep")


def starts_with_bos(vocabulary: seqio.Vocabulary) -> bool:
  """Whether BOS stands in the place of [CLS] (RoBERTa), and is not a [CLS] that is called BOS (ALBERT)."""
  token_id, names = cls_id(vocabulary), control_tokens.NAMES["cls"]
  return token_id is not None and token_id == bos_id(vocabulary) and token_texts(vocabulary)[token_id] not in names


def framing_ids(vocabulary: seqio.Vocabulary) -> set[int]:
  """Ids that stand around a text and are no part of it: padding, BOS, EOS, [CLS], [SEP]."""
  return {vocabulary.pad_id, vocabulary.eos_id, bos_id(vocabulary), cls_id(vocabulary), sep_id(vocabulary)} - {None}


def _own_id(vocabulary: seqio.Vocabulary, kind: str) -> int | None:
  """The id of a piece by what it is for, a key of `control_tokens.NAMES`."""
  if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return getattr(vocabulary, f"{kind}_id", None)
  model, names = vocabulary.tokenizer, control_tokens.NAMES[kind]
  # What the model does not have it calls unknown.
  token_ids = [model.piece_to_id(piece) for piece in names if model.piece_to_id(piece) != model.unk_id()]
  return token_ids[0] if token_ids else None


def token_texts(vocabulary: seqio.Vocabulary, *, errors: str = "replace") -> list[str]:
  """What each id stands for, with a space in front where a word starts; special ids and sentinels by their names.

  In:  T5's 32,000 pieces and 100 sentinels
  Out: [0] "<pad>", [1] "</s>", [3] " ", [8774] " Hello", [32099] "<extra_id_0>"

  A part of a character (byte-level BPE and bytes) is the replacement character, U+FFFD; with errors "surrogateescape"
  each is another.
  """
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    pieces = vocabulary.tokenizer.id_to_piece(list(range(vocabulary.vocab_size)))
    return [piece[1:] if vocabulary_files.SENTINEL.fullmatch(piece) else piece.replace("▁", " ") for piece in pieces]
  if isinstance(vocabulary, seqio.ByteVocabulary):
    texts = ["<pad>", "</s>", "<unk>", *(bytes([byte]).decode(errors=errors) for byte in range(256))]
  else:
    texts = vocabulary.token_texts() if errors == "replace" else vocabulary.token_texts(errors=errors)
  return texts + [f"<extra_id_{i}>" for i in reversed(range(vocabulary.extra_ids))]


def special_ids(vocabulary: seqio.Vocabulary) -> set[int]:
  """Ids that no text has: padding, EOS, unknown, mask, what the vocabulary keeps for later, and added sentinels."""
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
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
  token_ids = {0, 1, 2} if isinstance(vocabulary, seqio.ByteVocabulary) else set(vocabulary.special_ids)
  return token_ids | set(range(vocabulary.vocab_size - vocabulary.extra_ids, vocabulary.vocab_size))


def starts_word(vocabulary: seqio.Vocabulary) -> np.ndarray:
  """For each id, bool [vocab_size]: a word starts with it; special ids and sentinels are words of their own.

  White space separates words, and in a WordPiece vocabulary punctuation as well, as in BERT's whole-word masking.  The
  first piece of a text may lack the space: it starts a word, whatever this says.
  """
  starts = np.array([text[:1].isspace() for text in token_texts(vocabulary)])
  starts[list(special_ids(vocabulary))] = True
  return starts


def ends_sentence(vocabulary: seqio.Vocabulary) -> np.ndarray:
  """For each id, bool [vocab_size]: it ends in . ! ? or their like, and quotes or brackets, or in a line break."""
  ends = np.array([_SENTENCE_END.search(text) is not None for text in token_texts(vocabulary)])
  ends[list(special_ids(vocabulary))] = False
  return ends


def ordinary_ids(vocabulary: seqio.Vocabulary) -> np.ndarray:
  """The ids that text is made of, int32 and ascending: neither special ids nor sentinels."""
  special = special_ids(vocabulary)
  # Bytes without added sentinels take them from their last ids.
  text_ids = vocabulary.vocab_size - num_sentinels(vocabulary) if vocabulary.extra_ids == 0 else vocabulary.vocab_size
  return np.array([i for i in range(text_ids) if i not in special], np.int32)


def t5_vocabulary(*, extra_ids: int = 100) -> seqio.SentencePieceVocabulary:
  """T5's 32,000 pieces and `extra_ids` sentinels; the bucket that holds them is read when the vocabulary is used."""
  return _PublishedVocabulary("gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", extra_ids=extra_ids)


class _PublishedVocabulary(seqio.SentencePieceVocabulary):
  """A vocabulary that a registered task names and not the user: who cannot reach it is told what to give instead."""

  # Here seqio reads the model, whatever asked for it; nothing public comes before.
  def _model_context(self):
    try:
      return super()._model_context()
    except (tf.errors.OpError, OSError) as error:
      reason = str(error).partition("error details: ")[2].partition("\n")[0] or str(error)
      raise UserError(
        f"the task's vocabulary, {self.sentencepiece_model_file}, cannot be read ({reason}); set config.data.vocabulary"
        " to a copy of it, or to another"
      ) from error


class _DocsVocabulary(seqio.SentencePieceVocabulary):
  """The vocabulary of the embedded default: its model is trained when it is first needed, not when a task names it."""

  def __init__(self, *, extra_ids: int):
    super().__init__("docs/spiece.model", extra_ids=extra_ids)

  # Here seqio reads the model, from the file that it was made with and no other can be given.
  def _model_context(self):
    if self._model is None:
      self._sentencepiece_model_file = str(_docs_model())
    return super()._model_context()

  def __eq__(self, other):
    return isinstance(other, _DocsVocabulary) and self.extra_ids == other.extra_ids


def _docs_model() -> pathlib.Path:
  from t2t.data import docs_corpus
  from t2t.data.vocabularies import training

  path = docs_corpus.folder() / f"spiece_{DOCS_SIZE}" / "spiece.model"
  if path.exists():
    return path
  lines = docs_corpus.files()["train"].read_text().splitlines()
  texts, characters = [], 0
  # Every third document, so that all packages have a say.
  for line in [*lines[0::3], *lines[1::3], *lines[2::3]]:
    if characters >= _DOCS_CHARACTERS:
      break
    texts.append(json.loads(line)["text"])
    characters += len(texts[-1])
  return training.train_sentencepiece(texts, size=DOCS_SIZE, output_dir=path.parent, character_coverage=1.0)


def docs_vocabulary(*, extra_ids: int = 100) -> seqio.SentencePieceVocabulary:
  """The SentencePiece vocabulary of the installed documentation, 4,096 pieces and `extra_ids` sentinels.

  It costs nothing until it is used; the first use on a machine reads the documentation and trains the model (about
  10 s), later ones load it from the cache folder.
  """
  return _DocsVocabulary(extra_ids=extra_ids)
