"""Control tokens that a text spells: which there are, and the ids of a text that only contains their letters.

Published tokenizers read "[MASK]" or "<extra_id_0>" in a text as the control token of that name.  In a corpus these are
letters: read as control tokens, "[PAD]" has no loss and "[MASK]" becomes a target.
"""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import copy
import functools
import json
import re

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2
import seqio
import tensorflow as tf
import tokenizers

from t2t import UserError
from t2t.data.vocabularies import subwords

# How a user says which spelled control tokens of a prompt are meant: none, those that stand for missing text, or all.
CHOICES = ("none", "blanks", "all")

_NAMED = frozenset(name for names in subwords.NAMES.values() for name in names)
_BLANKS = frozenset(subwords.NAMES["mask"])
# Turns of a dialogue, places kept for later; other pieces that a user defined are text of his corpus.
_PATTERN = re.compile(r"<\|.*\|>|<(?:start|end)_of_[a-z]+>|<unused_?[0-9]+>|\[unused[0-9]+\]")
_SENTINEL = re.compile(r"▁?<extra_id_[0-9]+>")
_MARK = "\ufdd0"  # before the name of a control token where it is meant; a noncharacter, which no text contains
# A noncharacter for one character of a name: with it the letters are no control token.  As many characters as before,
# so that positions in a text stay right.
_PROTECTED = {character: chr(0xFDD1 + number) for number, character in enumerate("<[|{(_@#$&*~!%^+=-/:;?.")}
_PLAIN = {protected: character for character, protected in _PROTECTED.items()}
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # piece of a byte, for characters without a piece
_ANY_PROTECTED = re.compile(f"[{''.join(_PLAIN)}]")


# ---- Which there are -------------------------------------------------------------------------------------------------


def control_tokens(vocabulary: seqio.Vocabulary) -> dict[str, int]:
  """Returns the control tokens that a text can spell, by name -> id.

  In:  T5's 32,000 pieces and 100 sentinels
  Out: {"<extra_id_99>": 32000, ..., "<extra_id_0>": 32099}     "</s>" in a text is text: SentencePiece sees to it

  Bytes have none.  SentencePiece's pieces that a user defined are text, except for sentinels, turns of a dialogue and
  names such as [MASK]; special tokens of a tokenizer.json are control tokens.
  """
  reader = _reader(vocabulary)
  return {} if reader is None else dict(reader.names)


def is_blank(name: str) -> bool:
  """Returns True if a control token stands for missing text: a sentinel or a mask."""
  return name in _BLANKS or _SENTINEL.fullmatch(name) is not None


def count(vocabulary: seqio.Vocabulary, texts: Iterable[str]) -> dict[str, int]:
  """Counts the control tokens that texts spell, by name, the most frequent first; names that are not there are absent.

  In:  BERT's vocabulary, ["a [PAD] [PAD]", "[MASK]"]
  Out: {"[PAD]": 2, "[MASK]": 1}
  """
  reader = _reader(vocabulary)
  if reader is None or not reader.names:
    return {}
  found = collections.Counter(name for text in texts for name in reader.literal.findall(text))
  return dict(found.most_common())


# ---- Ids -------------------------------------------------------------------------------------------------------------


def encode_text(vocabulary: seqio.Vocabulary, text: str, *, special_tokens: str = "none") -> list[int]:
  """Returns the ids of a text, in which letters that spell a control token are text.

  In:  BERT's vocabulary, "a [MASK]"
  Out: the ids of "a", "[", "mask", "]"; with special_tokens "blanks" or "all" of "a", "[MASK]"

  Args:
    vocabulary: of any kind; one of the user's own class encodes as it does.
    text: valid Unicode.
    special_tokens: "none"; "blanks": sentinels and masks are control tokens; "all": all control tokens are.

  Raises:
    UserError: no such choice, or a lone surrogate in the text, which is no character.
  """
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise UserError(
      f"character {error.start + 1} of the text is {text[error.start]!r}, one half of a character (a lone surrogate);"
      " write the whole character"
    ) from error
  reader = _reader(vocabulary)
  if reader is None:
    return [int(i) for i in vocabulary.encode(text)]
  return reader.encode(text, accept=_accepted(reader, special_tokens))


def _accepted(reader: "_Reader", special_tokens: str) -> frozenset[str]:
  if special_tokens not in CHOICES:
    raise UserError(f"special_tokens={special_tokens!r}: give one of {', '.join(CHOICES)}")
  if special_tokens == "none":
    return frozenset()
  return frozenset(name for name in reader.names if special_tokens == "all" or is_blank(name))


def as_text(vocabulary: seqio.Vocabulary) -> seqio.Vocabulary:
  """Returns an equal vocabulary that encodes letters as text, whatever they spell."""
  return _variant(vocabulary, _AsText)


def as_formatted(vocabulary: seqio.Vocabulary) -> seqio.Vocabulary:
  """Returns an equal vocabulary that reads spelled control tokens as such, except where `protect` was applied.

  For texts that a task's format makes of records, to which it adds control tokens: those of the records are protected.
  """
  return _variant(vocabulary, _AsFormatted)


def as_published(vocabulary: seqio.Vocabulary) -> seqio.Vocabulary:
  """Returns the vocabulary that `as_text` or `as_formatted` was given; other vocabularies as they are."""
  return getattr(vocabulary, "_published", vocabulary)


def _variant(vocabulary: seqio.Vocabulary, kind: type) -> seqio.Vocabulary:
  vocabulary = as_published(vocabulary)
  if not isinstance(vocabulary, subwords.SubwordVocabulary | seqio.SentencePieceVocabulary):
    return vocabulary
  found = copy.copy(vocabulary)
  found.__class__ = _class_of(type(vocabulary), kind)
  found._published = vocabulary
  return found


@functools.cache
def _class_of(base: type, kind: type) -> type:
  return type(base.__name__, (kind, base), {"__module__": __name__})


class _Variant:
  """A vocabulary that encodes otherwise than the published tokenizer; all else is as in the published one."""

  _published: seqio.Vocabulary

  @functools.cached_property
  def _reader(self) -> "_Reader":
    return _reader(self._published)

  def __getstate__(self):
    # Which vocabularies seqio calls equal, and what they are copied by.
    state = self._published.__getstate__()
    return state if isinstance(state, dict) else dict(state or {})

  def __reduce__(self):
    return _variant, (self._published, type(self).__mro__[1])

  def _model_context(self):
    return self._published._model_context()  # an embedded vocabulary makes its model when it is first needed

  @property
  def sentencepiece_model_file(self) -> str:
    return self._published.sentencepiece_model_file


class _AsText(_Variant):
  """Letters are text."""

  def _encode(self, s: str | bytes) -> list[int]:
    return self._reader.encode(_string(s), accept=frozenset())

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return self._reader.encode_tf(s)

  def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
    return self._reader.encode_with_offsets(text, accept=frozenset())


class _AsFormatted(_Variant):
  """Spelled control tokens are meant, protected ones are text."""

  def _encode(self, s: str | bytes) -> list[int]:
    return self._reader.encode(_string(s), accept=self._reader.names, protected=True)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    return self._reader.encode_formatted_tf(s, self._encode)

  def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
    reader = self._reader
    return reader.encode_with_offsets(text, accept=frozenset(reader.names), protected=True)


def _string(text: str | bytes) -> str:
  return text.decode(errors="replace") if isinstance(text, bytes) else text


# ---- Protection ------------------------------------------------------------------------------------------------------


def protect(vocabularies: Sequence[seqio.Vocabulary]) -> Callable[[tf.Tensor], tf.Tensor] | None:
  """Returns what replaces a character of each spelled control token, string of any shape; None: none can be spelled.

  In:  "a [MASK] b"
  Out: "a ?MASK] b", with a noncharacter for "?"; `plain` gives the text back
  """
  names = sorted({name for vocabulary in vocabularies for name in control_tokens(vocabulary)})
  groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
  for name in names:
    at = next((i for i, character in enumerate(name) if character in _PROTECTED), None)
    if at is not None:
      groups[name[:at], name[at]].append(name[at + 1 :])
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
  """Returns texts without protection, string of any shape."""
  pattern = f"[{''.join(_PLAIN)}]"

  def restored() -> tf.Tensor:
    found = texts
    for protected, character in _PLAIN.items():
      found = tf.strings.regex_replace(found, protected, "\\\\" if character == "\\" else character)
    return found

  return tf.cond(tf.reduce_any(tf.strings.regex_full_match(texts, f"(?s).*{pattern}.*")), restored, lambda: texts)


def _plain(text: str) -> str:
  return _ANY_PROTECTED.sub(lambda match: _PLAIN[match[0]], text)


def _any_of(names: Collection[str]) -> str:
  """A pattern of literals, the longest first; sentinels as one."""
  numbered = {re.fullmatch(r"(.*extra_id_)[0-9]+>", name) for name in names} - {None}
  alone = [name for name in names if not re.fullmatch(r".*extra_id_[0-9]+>", name)]
  found = [re.escape(name) for name in sorted(alone, key=len, reverse=True)]
  for begin in sorted({match[1] for match in numbered}):
    numbers = [int(match[0][len(begin) : -1]) for match in numbered if match[1] == begin]
    found.append(f"{re.escape(begin)}(?:{'|'.join(map(str, sorted(numbers, reverse=True)))})>")
  return "|".join(found)


# ---- Readers: how a kind of vocabulary is kept from seeing control tokens --------------------------------------------


class _Reader:
  """Encoder of one kind of vocabulary.

  names: the control tokens that a text can spell, and their ids.
  """

  names: Mapping[str, int]

  @functools.cached_property
  def literal(self) -> re.Pattern:
    """Any of the names."""
    return re.compile(_any_of(self.names) if self.names else r"(?!)")

  @functools.cached_property
  def _firsts(self) -> frozenset[str]:
    return frozenset(name[0] for name in self.names)

  def spells(self, text: str) -> bool:
    """Returns True if a text contains one of the names."""
    # Characters are found ten times as fast as a pattern.
    return any(first in text for first in self._firsts) and self.literal.search(text) is not None

  @functools.cached_property
  def unusual(self) -> str:
    """Regular expression of the texts that the fast TensorFlow path cannot encode: a name, or protection."""
    return f"(?s).*(?:{self.literal.pattern}|[{''.join(_PLAIN)}]).*" if self.names else "(?!)"

  def encode(self, text: str, *, accept: Collection[str], protected: bool = False) -> list[int]:
    """Ids of a text; names in `accept` are control tokens, except for protected ones, which are text."""
    if not accept or not self.spells(text):
      return self._encode_text(_plain(text) if protected else text)
    return self._encode_mixed(text, accept, protected)

  def encode_with_offsets(
    self, text: str, *, accept: Collection[str], protected: bool = False
  ) -> list[tuple[int, int, int]]:
    """(id, start, end) of each token, in characters."""
    raise NotImplementedError

  def encode_tf(self, texts: tf.Tensor) -> tf.Tensor:
    """Ids of texts, string [] or [batch]; letters are text."""
    raise NotImplementedError

  def encode_formatted_tf(self, texts: tf.Tensor, encode: Callable[[bytes], list[int]]) -> tf.Tensor:
    """Ids of texts, string [] or [batch], by `encode`."""
    raise NotImplementedError

  def _encode_text(self, text: str) -> list[int]:
    raise NotImplementedError

  def _encode_mixed(self, text: str, accept: Collection[str], protected: bool) -> list[int]:
    raise NotImplementedError


def _by_python(texts: tf.Tensor, encode: Callable[[bytes], list[int]]) -> tf.Tensor:
  """int32 [length] of a scalar; of a batch [batch, (length)], ragged."""

  def one(text: bytes | np.ndarray) -> np.ndarray:
    # TensorFlow hands over bytes in a graph, and outside of one an array that holds them.
    return np.array(encode(np.asarray(text, object).item()), np.int32)

  def batch(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ids = [encode(text) for text in texts]
    return np.array(sum(ids, []), np.int32), np.cumsum([0, *map(len, ids)], dtype=np.int64)

  # Stateless: the ids are a function of the text, and tf.data may rewrite what it knows to be that.
  if texts.shape.rank == 1:
    flat, splits = tf.numpy_function(batch, [texts], [tf.int32, tf.int64], stateful=False)
    return tf.RaggedTensor.from_row_splits(tf.ensure_shape(flat, [None]), tf.ensure_shape(splits, [None]))
  return tf.ensure_shape(tf.numpy_function(one, [texts], tf.int32, stateful=False), [None])


def _reader(vocabulary: seqio.Vocabulary) -> _Reader | None:
  """None: of a kind that has no control tokens in its texts (bytes), or of the user's own."""
  vocabulary = as_published(vocabulary)
  if isinstance(vocabulary, subwords.SubwordVocabulary):
    return _subword_reader(vocabulary.content, vocabulary.special_ids, vocabulary.extra_ids)
  if isinstance(vocabulary, seqio.SentencePieceVocabulary):
    return _sentencepiece_reader(vocabulary.sp_model)
  return None


# ---- SentencePiece ---------------------------------------------------------------------------------------------------

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece


class _SentencePieces(_Reader):
  """Three models: the published one; one in which control tokens are pieces that no text has; and one in which their
  pieces have a mark in front."""

  def __init__(self, model: bytes):
    self._model = model
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    self._published = _processor(model)
    self._control = {
      i: piece.piece.removeprefix("▁")
      for i, piece in enumerate(proto.pieces)
      if piece.type in (_Piece.USER_DEFINED, _Piece.NORMAL, _Piece.UNUSED) and _is_control(piece.piece)
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
      piece.piece = f"{space}{_MARK}{piece.piece.removeprefix(space)}"
      piece.type = _Piece.USER_DEFINED
    return _processor(proto.SerializeToString())

  def encode_tf(self, texts):
    return _tf_tokenizer(self._text_model).tokenize(texts)

  def encode_formatted_tf(self, texts, encode):
    if not self.names or texts.shape.rank not in (0, 1):
      return self.encode_tf(texts)
    return tf.cond(
      tf.reduce_any(tf.strings.regex_full_match(texts, self.unusual)),
      lambda: _by_python(texts, encode),
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
      marked = _plain(text)
    return [
      (i, _unmarked(start, marks), _unmarked(end, marks)) for i, start, end in sentencepiece_offsets(processor, marked)
    ]

  def _mixed(
    self, text: str, accept: Collection[str], protected: bool
  ) -> tuple[sentencepiece.SentencePieceProcessor, str, list[int]]:
    """Returns the encoder, the text with a mark before each control token, and the positions of the marks."""
    places = []
    for i, start, end in sentencepiece_offsets(self._published, text):
      name = self._control.get(i)
      # Full-width letters that are normalized to a name are text.
      if name in accept and name in text[start:end]:
        places.append(start + text[start:end].rindex(name))
    text = _plain(text) if protected else text
    if not places:
      return self._text, text, []
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    return self._marked, _MARK.join(parts), [place + number for number, place in enumerate(places)]


def _unmarked(place: int, marks: Sequence[int]) -> int:
  return place - sum(mark < place for mark in marks)


def sentencepiece_offsets(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[tuple[int, int, int]]:
  """Returns (id, start, end) of each piece, in characters of the text."""
  # The library's are in bytes of UTF-8.
  encoded = processor.encode(text, out_type="serialized_proto")
  character = [number for number, each in enumerate(text) for _ in each.encode()] + [len(text)]
  found = []
  for piece in sentencepiece_pb2.SentencePieceText.FromString(encoded).pieces:
    start, is_empty = character[piece.begin], piece.begin == piece.end
    # A part of a character (a piece for one byte of it) is the whole.
    found.append((piece.id, start, start if is_empty else character[piece.end - 1] + 1))
  return found


def _is_control(piece: str) -> bool:
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


# ---- WordPiece, BPE and tokenizer.json -------------------------------------------------------------------------------


class _Subwords(_Reader):
  """Two tokenizers: the published one, and one in which the names of control tokens have a mark in front.

  A Unigram model reads the letters "<0x0A>" as the piece of this byte, which SentencePiece does not.  For texts with
  such letters there is a third, in which pieces of bytes have the mark, too.
  """

  def __init__(self, content: str, special_ids: Collection[int], extra_ids: int):
    self._published = tokenizers.Tokenizer.from_str(content)
    pieces = self._published.get_vocab(with_added_tokens=True)
    self._control = {
      i: piece for piece, i in pieces.items() if piece and (i in special_ids or _SENTINEL.fullmatch(piece))
    }
    added = self._published.get_added_tokens_decoder()
    self._control |= {i: token.content for i, token in added.items() if _is_control(token.content)}
    self._size = max(pieces.values(), default=0) + 1
    self._extra_ids = extra_ids
    candidates = list(self._control.items())
    encoded = self._published.encode_batch_fast([name for _, name in candidates], add_special_tokens=False)
    own = {name: i for (i, name), ids in zip(candidates, encoded, strict=True) if i in ids.ids}
    last = self._size + extra_ids - 1
    self._sentinels = {f"<extra_id_{number}>": last - number for number in range(extra_ids)}
    self.names = self._sentinels | own
    self._content = content
    self._text = self._tokenizer(is_text=True)
    model = json.loads(content)["model"]
    falls_back = model["type"] == "Unigram" and model.get("byte_fallback")
    of_bytes = {pieces.get(f"<0x{byte:02X}>"): None for byte in range(256)} if falls_back else {}
    self._bytes = {} if None in of_bytes else of_bytes  # ids, in the order of the bytes
    self._unknown = model.get("unk_id")

  @functools.cache  # noqa: B019 - readers are few, and kept
  def _tokenizer(self, *, is_text: bool, marks_bytes: bool = False) -> tokenizers.Tokenizer:
    found = self._marked_tokenizer(marks_bytes)
    # Letters are text even with the mark in front.
    found.encode_special_tokens = is_text
    return found

  def _marked_tokenizer(self, marks_bytes: bool) -> tokenizers.Tokenizer:
    content = json.loads(self._content)
    names = {name: _MARK + name for name in self._control.values()}
    model = content["model"]
    if marks_bytes:
      model["byte_fallback"] = False
      names |= {name: _MARK + name for name, _ in model["vocab"] if _BYTE.fullmatch(name)}
    if isinstance(model["vocab"], dict):
      model["vocab"] = {names.get(piece, piece): i for piece, i in model["vocab"].items()}
    else:
      model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in names:
      model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
      prefix = model.get("continuing_subword_prefix") or ""
      pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
      # Of letters that would be merged into a control token.
      model["merges"] = [merge for merge, (a, b) in pairs if not {a, b, a + b.removeprefix(prefix)} & names.keys()]
    normalizer = self._published.normalizer
    for token in content["added_tokens"]:
      if name := names.get(token["content"]):
        # Where the normalizer would drop the mark, the name is found before it.
        keeps = normalizer is None or _MARK in normalizer.normalize_str(name)
        token |= {"content": name, "normalized": token["normalized"] and keeps}
    content["post_processor"] = _without_special(content.get("post_processor"))
    return tokenizers.Tokenizer.from_str(json.dumps(content))

  def encode_tf(self, texts):
    return _by_python(texts, lambda text: self._encode_text(_string(text)))

  def encode_formatted_tf(self, texts, encode):
    return _by_python(texts, encode)

  def _encode_text(self, text):
    # The batch call without offsets is the library's fastest, for a single text, too.
    ids = self._text.encode_batch_fast([text], add_special_tokens=False)[0].ids
    if self._bytes and not self._bytes.keys().isdisjoint(ids) and self._spells_bytes(text):
      return [i for i, _, _ in self._tokens(text, is_text=True)]
    return ids

  def _spells_bytes(self, text: str) -> bool:
    normalizer = self._published.normalizer
    return _BYTE.search(text if normalizer is None else normalizer.normalize_str(text)) is not None

  def _encode_mixed(self, text, accept, protected):
    return [i for i, _, _ in self.encode_with_offsets(text, accept=accept, protected=protected)]

  def encode_with_offsets(self, text, *, accept, protected=False):
    found, end = [], 0
    # Sentinels behind the file's own ids are not known to the library.
    for match in subwords.SENTINEL.finditer(text) if self._sentinels else ():
      name = match[0].strip()
      if name in accept and name in self._sentinels:
        found += self._part(text[end : match.start()], end, accept, protected)
        found.append((self._sentinels[name], *match.span()))
        end = match.end()
    return found + self._part(text[end:], end, accept, protected)

  def _part(self, text: str, at: int, accept: Collection[str], protected: bool) -> list[tuple[int, int, int]]:
    """Tokens of a part of a text without sentinels of ours."""
    places = []
    if accept and self.spells(text):
      encoding = self._published.encode(text, add_special_tokens=False)
      for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        name = self._control.get(i)
        if name in accept and name in text[start:end]:
          places.append(start + text[start:end].rindex(name))
    text = _plain(text) if protected else text
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    marks = [place + number for number, place in enumerate(places)]
    return [
      (i, at + _unmarked(start, marks), at + _unmarked(end, marks))
      for i, start, end in self._tokens(_MARK.join(parts), is_text=not places)
    ]

  def _tokens(self, text: str, *, is_text: bool) -> list[tuple[int, int, int]]:
    """(id, start, end) of each token of a text with marks; `is_text`: names with a mark are text, too."""
    bytes_of = list(self._bytes) if self._bytes and self._spells_bytes(text) else []
    tokenizer = self._tokenizer(is_text=is_text, marks_bytes=bool(bytes_of))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    found = [(i, *offsets) for i, offsets in zip(encoding.ids, encoding.offsets, strict=True)]
    if not bytes_of:
      return found
    # The library returns the letters of an unknown token as its text.
    return [
      (i, start, end)
      for (unit, start, end), letters in zip(found, encoding.tokens, strict=True)
      for i in ([bytes_of[byte] for byte in letters.encode()] if unit == self._unknown else [unit])
    ]


def _without_special(processor: dict | None) -> dict | None:
  """Returns the part of a post-processor that trims offsets and adds no token."""
  if processor is None or processor["type"] in ("ByteLevel", "RobertaProcessing"):
    return processor
  if processor["type"] == "Sequence":
    kept = [each for each in map(_without_special, processor["processors"]) if each is not None]
    return {**processor, "processors": kept}
  return None


@functools.lru_cache(maxsize=8)
def _subword_reader(content: str, special_ids: frozenset[int], extra_ids: int) -> _Subwords:
  return _Subwords(content, special_ids, extra_ids)
