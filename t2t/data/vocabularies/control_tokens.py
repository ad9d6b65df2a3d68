"""Control tokens that a text spells: finds them, and encodes their letters as text.

Published tokenizers read "[MASK]" or "<extra_id_0>" in a text as the control token of that name. In a corpus these are
letters. Read as control tokens, "[PAD]" would have no loss, and "[MASK]" would become a target.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import copy
import functools
import re

from etils import epath
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from t2t import UserError
from t2t.data import vocabulary_classes
from t2t.param_tree import Vocabulary
from t2t.runtime import data_packages

tf = data_packages.lazy_module("tensorflow")

# Special tokens by function; the first that a vocabulary has is used. [SEP] precedes </s> and <|endoftext|>, because a
# vocabulary of the BERT family may contain these as text (ModernBERT), never the reverse.
NAMES = {
  "pad": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "<|padding|>"),
  "eos": ("[SEP]", "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]"),
  "bos": ("<s>", "<|begin_of_text|>", "<bos>", "[BOS]"),
  "unk": ("[UNK]", "<unk>"),
  "mask": ("[MASK]", "<mask>"),
  "cls": ("[CLS]", "<cls>"),
  "sep": ("[SEP]", "<sep>"),
}
# Control tokens to accept in a prompt: none, those for missing text (sentinels and masks), or all.
CHOICES = ("none", "blanks", "all")

_NAMED = frozenset(name for names in NAMES.values() for name in names)
_BLANKS = frozenset(NAMES["mask"])
# Dialogue turns and reserved tokens; other user-defined tokens are text of a corpus.
_PATTERN = re.compile(r"<\|.*\|>|<(?:start|end)_of_[a-z]+>|<unused_?[0-9]+>|\[unused[0-9]+\]")
_SENTINEL = re.compile(r"▁?<extra_id_[0-9]+>")
MARK = "\ufdd0"  # precedes the name of an intended control token; a noncharacter, which no text contains
# Noncharacters that replace one character of a name, so that it spells no control token. The number of characters, and
# so every position in the text, stays the same.
_PROTECTED = {character: chr(0xFDD1 + number) for number, character in enumerate("<[|{(_@#$&*~!%^+=-/:;?.")}
_PLAIN = {protected: character for character, protected in _PROTECTED.items()}
_ANY_PROTECTED = re.compile(f"[{''.join(_PLAIN)}]")


# ---- Names -----------------------------------------------------------------------------------------------------------


def control_tokens(vocabulary: Vocabulary) -> dict[str, int]:
  """Returns the control tokens that a text can spell, by name -> id.

  In:  T5's 32,000 tokens and 100 sentinels
  Out: {"<extra_id_99>": 32000, ..., "<extra_id_0>": 32099}     SentencePiece reads "</s>" in a text as text

  Byte vocabularies have none. User-defined SentencePiece tokens are text, except sentinels, dialogue turns and names
  such as [MASK]. Special tokens of a tokenizer.json are control tokens.
  """
  reader = _reader(vocabulary)
  return {} if reader is None else dict(reader.names)


def is_blank(name: str) -> bool:
  """Returns True if a control token represents missing text: a sentinel or a mask."""
  return name in _BLANKS or _SENTINEL.fullmatch(name) is not None


def count(vocabulary: Vocabulary, texts: Iterable[str]) -> dict[str, int]:
  """Counts the control tokens that texts spell, by name, in decreasing frequency; only names that occur.

  In:  BERT's vocabulary, ["a [PAD] [PAD]", "[MASK]"]
  Out: {"[PAD]": 2, "[MASK]": 1}
  """
  reader = _reader(vocabulary)
  if reader is None or not reader.names:
    return {}
  counts = collections.Counter(name for text in texts for name in reader.literal.findall(text))
  return dict(counts.most_common())


# ---- Ids -------------------------------------------------------------------------------------------------------------


def encode_text(vocabulary: Vocabulary, text: str, *, special_tokens: str = "none") -> list[int]:
  """Encodes a text; letters that spell a control token are text, unless `special_tokens` accepts it.

  In:  BERT's vocabulary, "a [MASK]"
  Out: the ids of "a", "[", "mask", "]"; with special_tokens "blanks" or "all" of "a", "[MASK]"

  Args:
    vocabulary: any vocabulary; a custom class uses its own `encode`.
    text: valid Unicode.
    special_tokens: accepted control tokens: "none", "blanks" (sentinels and masks), or "all".

  Raises:
    UserError: special_tokens is unknown, or the text has a lone surrogate.
  """
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f"character {error.start + 1} of the text is {text[error.start]!r}, a lone surrogate (half a character); "
      "write the whole character"
    ) from error
  reader = _reader(vocabulary)
  if reader is None:
    return [int(i) for i in vocabulary.encode(text)]
  return reader.encode(text, accept=_accepted(reader, special_tokens))


def _accepted(reader: Reader, special_tokens: str) -> frozenset[str]:
  if special_tokens not in CHOICES:
    raise UserError(f"special_tokens={special_tokens!r} is not valid; give one of {', '.join(CHOICES)}")
  if special_tokens == "none":
    return frozenset()
  return frozenset(name for name in reader.names if special_tokens == "all" or is_blank(name))


def as_text(vocabulary: Vocabulary) -> Vocabulary:
  """Returns an equal vocabulary that encodes names of control tokens as text."""
  return _variant(vocabulary, _AsText)


def as_formatted(vocabulary: Vocabulary) -> Vocabulary:
  """Returns an equal vocabulary that reads names of control tokens as such, except where `protect` was applied.

  A task's format adds control tokens to records; the records' own text is protected before.
  """
  return _variant(vocabulary, _AsFormatted)


def as_published(vocabulary: Vocabulary) -> Vocabulary:
  """Returns the original of a vocabulary from `as_text` or `as_formatted`; other vocabularies unchanged."""
  return getattr(vocabulary, "_published", vocabulary)


def _variant(vocabulary: Vocabulary, kind: type) -> Vocabulary:
  vocabulary = as_published(vocabulary)
  if not (isinstance(vocabulary, FileVocabulary) or vocabulary_classes.is_sentencepiece(vocabulary)):
    return vocabulary
  variant = copy.copy(vocabulary)
  variant.__class__ = _class_of(type(vocabulary), kind)
  variant._published = vocabulary
  return variant


@functools.cache
def _class_of(base: type, kind: type) -> type:
  return type(base.__name__, (kind, base), {"__module__": __name__})


class _Variant:
  """A vocabulary that differs from the published tokenizer only in its encoding."""

  _published: Vocabulary

  @functools.cached_property
  def _reader(self) -> Reader:
    return _reader(self._published)

  def __getstate__(self):
    # The state determines equality in seqio, and copies.
    state = self._published.__getstate__()
    return state if isinstance(state, dict) else dict(state or {})

  def __reduce__(self):
    return _variant, (self._published, type(self).__mro__[1])

  def _model_context(self):
    return self._published._model_context()  # an embedded vocabulary creates its model on first use

  @property
  def sentencepiece_model_file(self) -> str:
    return self._published.sentencepiece_model_file


class _AsText(_Variant):
  """Encodes names of control tokens as text."""

  def _encode(self, s: str | bytes) -> list[int]:
    return self._reader.encode(string_of(s), accept=frozenset())

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return self._reader.encode_tf(s)

  def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
    return self._reader.encode_with_offsets(text, accept=frozenset())


class _AsFormatted(_Variant):
  """Encodes names as control tokens, and protected names as text."""

  def _encode(self, s: str | bytes) -> list[int]:
    return self._reader.encode(string_of(s), accept=self._reader.names, protected=True)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return self._reader.encode_formatted_tf(s, self._encode)

  def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
    reader = self._reader
    return reader.encode_with_offsets(text, accept=frozenset(reader.names), protected=True)


def string_of(text: str | bytes) -> str:
  """Decodes UTF-8 bytes; returns a string unchanged."""
  return text.decode(errors="replace") if isinstance(text, bytes) else text


# ---- Protection ------------------------------------------------------------------------------------------------------


def protect(vocabularies: Sequence[Vocabulary]) -> Callable[[tf.Tensor], tf.Tensor] | None:
  """Returns a function that protects names of control tokens in strings of any shape; None if there are no names.

  In:  "a [MASK] b"
  Out: "a ?MASK] b", with a noncharacter for "?"; `plain` restores the text
  """
  names = sorted({name for vocabulary in vocabularies for name in control_tokens(vocabulary)})
  groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
  for name in names:
    index = next((i for i, character in enumerate(name) if character in _PROTECTED), None)
    if index is not None:
      groups[name[:index], name[index]].append(name[index + 1 :])
  if not groups:
    return None
  rules = [
    (f"({re.escape(before)}){re.escape(character)}({_any_of(ends)})", rf"\1{_PROTECTED[character]}\2")
    for (before, character), ends in groups.items()
  ]

  def protected(texts: tf.Tensor) -> tf.Tensor:
    for pattern, rewrite in rules:
      texts = tf.strings.regex_replace(texts, pattern, rewrite)
    return texts

  return protected


def plain(texts: tf.Tensor) -> tf.Tensor:
  """Removes protection from texts, string of any shape."""
  pattern = f"[{''.join(_PLAIN)}]"

  def restored() -> tf.Tensor:
    restored_texts = texts
    for protected, character in _PLAIN.items():
      restored_texts = tf.strings.regex_replace(restored_texts, protected, "\\\\" if character == "\\" else character)
    return restored_texts

  return tf.cond(tf.reduce_any(tf.strings.regex_full_match(texts, f"(?s).*{pattern}.*")), restored, lambda: texts)


def unprotected(text: str) -> str:
  """Removes protection from a text; see `plain`."""
  return _ANY_PROTECTED.sub(lambda match: _PLAIN[match[0]], text)


def _any_of(names: Collection[str]) -> str:
  """Returns a pattern of literals, longest first; sentinels are merged."""
  numbered = {re.fullmatch(r"(.*extra_id_)[0-9]+>", name) for name in names} - {None}
  alone = [name for name in names if not re.fullmatch(r".*extra_id_[0-9]+>", name)]
  alternatives = [re.escape(name) for name in sorted(alone, key=len, reverse=True)]
  for begin in sorted({match[1] for match in numbered}):
    numbers = [int(match[0][len(begin) : -1]) for match in numbered if match[1] == begin]
    alternatives.append(f"{re.escape(begin)}(?:{'|'.join(map(str, sorted(numbers, reverse=True)))})>")
  return "|".join(alternatives)


# ---- Readers: encoding of each kind of vocabulary without control tokens ---------------------------------------------


class Reader:
  """Encoder for one kind of vocabulary.

  names: control tokens that a text can spell, and their ids.
  """

  names: Mapping[str, int]

  @functools.cached_property
  def literal(self) -> re.Pattern:
    """Returns a pattern that matches any of the names."""
    return re.compile(_any_of(self.names) if self.names else r"(?!)")

  @functools.cached_property
  def _firsts(self) -> frozenset[str]:
    return frozenset(name[0] for name in self.names)

  def spells(self, text: str) -> bool:
    """Returns True if a text contains one of the names."""
    # A character test is ten times as fast as a pattern.
    return any(first in text for first in self._firsts) and self.literal.search(text) is not None

  @functools.cached_property
  def unusual(self) -> str:
    """Returns a regular expression of texts that the fast TensorFlow path cannot encode: with names or protection."""
    return f"(?s).*(?:{self.literal.pattern}|[{''.join(_PLAIN)}]).*" if self.names else "(?!)"

  def encode(self, text: str, *, accept: Collection[str], protected: bool = False) -> list[int]:
    """Encodes a text; unprotected names in `accept` are control tokens, others are text."""
    if not accept or not self.spells(text):
      return self._encode_text(unprotected(text) if protected else text)
    return self._encode_mixed(text, accept, protected)

  def encode_with_offsets(
    self, text: str, *, accept: Collection[str], protected: bool = False
  ) -> list[tuple[int, int, int]]:
    """Returns (id, start, end) of each token, in characters."""
    raise NotImplementedError

  def encode_tf(self, texts: tf.Tensor) -> tf.Tensor:
    """Encodes texts, string [] or [batch]; names are text."""
    raise NotImplementedError

  def encode_formatted_tf(self, texts: tf.Tensor, encode: Callable[[bytes], list[int]]) -> tf.Tensor:
    """Encodes texts, string [] or [batch], by `encode`."""
    raise NotImplementedError

  def _encode_text(self, text: str) -> list[int]:
    raise NotImplementedError

  def _encode_mixed(self, text: str, accept: Collection[str], protected: bool) -> list[int]:
    raise NotImplementedError


class FileVocabulary(vocabulary_classes.BaseVocabulary):
  """A vocabulary of a kind that seqio lacks, see subwords.py.

  files: files of the vocabulary.
  """

  files: Sequence[epath.Path]

  def reader(self) -> Reader:
    """Returns an encoder for texts without control tokens."""
    raise NotImplementedError


def by_python(texts: tf.Tensor, encode: Callable[[bytes], list[int]]) -> tf.Tensor:
  """Encodes in Python: int32 [length] for a scalar; ragged [batch, (length)] for a batch."""

  def encode_one(text: bytes | np.ndarray) -> np.ndarray:
    # TensorFlow passes bytes in a graph, and an array with bytes in eager mode.
    return np.array(encode(np.asarray(text, object).item()), np.int32)

  def batch(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = [encode(text) for text in texts]
    return np.array(sum(ids, []), np.int32), np.cumsum([0, *map(len, ids)], dtype=np.int64)

  # Stateless, because ids are a function of the text; tf.data can then optimize the call.
  if texts.shape.rank == 1:
    flat, splits = tf.numpy_function(batch, [texts], [tf.int32, tf.int64], stateful=False)
    return tf.RaggedTensor.from_row_splits(tf.ensure_shape(flat, [None]), tf.ensure_shape(splits, [None]))
  return tf.ensure_shape(tf.numpy_function(encode_one, [texts], tf.int32, stateful=False), [None])


def _reader(vocabulary: Vocabulary) -> Reader | None:
  """Returns None for vocabularies without control tokens in texts (bytes), and for custom classes."""
  vocabulary = as_published(vocabulary)
  if isinstance(vocabulary, FileVocabulary):
    return vocabulary.reader()
  if vocabulary_classes.is_sentencepiece(vocabulary):
    return _sentencepiece_reader(vocabulary.sp_model)
  return None


# ---- SentencePiece ---------------------------------------------------------------------------------------------------

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece


class _SentencePieces(Reader):
  """Encodes with three models: the published one; one in which control tokens never match; and one in which they need a
  mark.
  """

  def __init__(self, model: bytes):
    self._model = model
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    self._published = _processor(model)
    self._control = {
      i: piece.piece.removeprefix("▁")
      for i, piece in enumerate(proto.pieces)
      if piece.type in (_Piece.USER_DEFINED, _Piece.NORMAL, _Piece.UNUSED) and is_control(piece.piece)
    }
    self.names = {name: i for i, name in self._control.items() if i in self._published.encode(name)}
    for i in self._control:
      proto.pieces[i].type = _Piece.CONTROL
    self._text_model = proto.SerializeToString() if self._control else model
    self._text = _processor(self._text_model) if self._control else self._published

  @functools.cached_property
  def _marked(self) -> sentencepiece.SentencePieceProcessor:
    proto = sentencepiece_model_pb2.ModelProto.FromString(self._model)
    for i in self._control:
      piece = proto.pieces[i]
      space = "▁" if piece.piece.startswith("▁") else ""
      piece.piece = f"{space}{MARK}{piece.piece.removeprefix(space)}"
      piece.type = _Piece.USER_DEFINED
    return _processor(proto.SerializeToString())

  def encode_tf(self, texts):
    return _tf_tokenizer(self._text_model).tokenize(texts)

  def encode_formatted_tf(self, texts, encode):
    if not self.names or texts.shape.rank not in (0, 1):
      return self.encode_tf(texts)
    return tf.cond(
      tf.reduce_any(tf.strings.regex_full_match(texts, self.unusual)),
      lambda: by_python(texts, encode),
      lambda: self.encode_tf(texts),
    )

  def _encode_text(self, text):
    return self._text.encode(text)

  def _encode_mixed(self, text, accept, protected):
    processor, marked, _ = self._mixed(text, accept, protected)
    return processor.encode(marked)

  def encode_with_offsets(self, text, *, accept, protected=False):
    processor, marked, marks = self._text, text, []
    if accept and self.spells(text):
      processor, marked, marks = self._mixed(text, accept, protected)
    elif protected:
      marked = unprotected(text)
    return [
      (i, unmarked(start, marks), unmarked(end, marks)) for i, start, end in sentencepiece_offsets(processor, marked)
    ]

  def _mixed(
    self, text: str, accept: Collection[str], protected: bool
  ) -> tuple[sentencepiece.SentencePieceProcessor, str, list[int]]:
    """Returns the encoder, the text with a mark before each control token, and the positions of the marks."""
    places = []
    for i, start, end in sentencepiece_offsets(self._published, text):
      name = self._control.get(i)
      # Full-width letters that normalize to a name are text.
      if name in accept and name in text[start:end]:
        places.append(start + text[start:end].rindex(name))
    text = unprotected(text) if protected else text
    if not places:
      return self._text, text, []
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    return self._marked, MARK.join(parts), [position + number for number, position in enumerate(places)]


def unmarked(position: int, marks: Sequence[int]) -> int:
  """Converts a position in a text with marks to the text without; `marks` are their positions."""
  return position - sum(mark < position for mark in marks)


def sentencepiece_offsets(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[tuple[int, int, int]]:
  """Returns (id, start, end) of each token, in characters of the text."""
  # The library returns UTF-8 byte offsets.
  encoded = processor.encode(text, out_type="serialized_proto")
  character = [number for number, letter in enumerate(text) for _ in letter.encode()] + [len(text)]
  tokens = []
  for piece in sentencepiece_pb2.SentencePieceText.FromString(encoded).pieces:
    start, is_empty = character[piece.begin], piece.begin == piece.end
    # A token for one byte of a character covers the whole character.
    tokens.append((piece.id, start, start if is_empty else character[piece.end - 1] + 1))
  return tokens


def is_control(piece: str) -> bool:
  """Returns True if a token has the name of a control token."""
  name = piece.removeprefix("▁")
  return name in _NAMED or _PATTERN.fullmatch(name) is not None or _SENTINEL.fullmatch(name) is not None


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
  return sentencepiece.SentencePieceProcessor(model_proto=model)


def _tf_tokenizer(model: bytes):
  import tensorflow_text as tf_text

  return tf_text.SentencepieceTokenizer(model=model)


@functools.lru_cache(maxsize=8)
def _sentencepiece_reader(model: bytes) -> _SentencePieces:
  return _SentencePieces(model)
