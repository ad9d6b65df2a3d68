"""Vocabularies that need neither TensorFlow nor seqio, with the attributes and methods of seqio's classes.

Where seqio is installed, they are virtual subclasses of its classes (`register`), and equal to seqio's vocabularies of
the same file. Only `encode_tf` and `decode_tf` import TensorFlow.
"""

import abc
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import hashlib
import sys
import threading
import types
from typing import Any

from absl import logging
from etils import epath
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from t2t.storage import gcs

PAD_ID = 0


class BaseVocabulary(metaclass=abc.ABCMeta):
  """Base class, with the methods of `seqio.Vocabulary`.

  Args:
    extra_ids: number of sentinels after the ids of the vocabulary.
  """

  def __init__(self, extra_ids: int = 0):
    self._extra_ids = extra_ids or 0

  @property
  def pad_id(self) -> int:
    return PAD_ID

  @property
  def bos_id(self) -> int | None:
    return None

  @property
  @abc.abstractmethod
  def eos_id(self) -> int | None:
    """Returns the id that ends a text."""

  @property
  @abc.abstractmethod
  def unk_id(self) -> int | None:
    """Returns the id of unknown text."""

  @property
  def extra_ids(self) -> int:
    return self._extra_ids

  @property
  def vocab_size(self) -> int:
    """Returns the number of ids, sentinels included."""
    return self._base_vocab_size + self.extra_ids

  @property
  @abc.abstractmethod
  def _base_vocab_size(self) -> int:
    """Returns the number of ids without sentinels."""

  @abc.abstractmethod
  def _encode(self, s: Any) -> Sequence[int]: ...

  @abc.abstractmethod
  def _decode(self, ids: Sequence[int]) -> Any: ...

  @abc.abstractmethod
  def _encode_tf(self, s: Any) -> Any: ...

  @abc.abstractmethod
  def _decode_tf(self, ids: Any) -> Any: ...

  def encode(self, s: Any) -> Sequence[int]:
    """Encodes a text, without EOS."""
    return self._encode(s)

  def decode(self, ids: Iterable[int]) -> Any:
    """Decodes up to the first EOS; sentinels are unknown."""
    if hasattr(ids, "numpy"):  # iterating over a tensor would create a tensor for each id
      ids = ids.numpy().tolist()
    kept = list(ids)
    if self.unk_id is not None:
      size = self._base_vocab_size
      kept = [self.unk_id if i >= size else i for i in kept]
    if self.eos_id is not None and self.eos_id in kept:
      kept = kept[: kept.index(self.eos_id) + 1]
    return self._decode(kept)

  def encode_tf(self, s: Any) -> Any:
    """Encodes in TensorFlow: string [] -> int32 [length], without EOS."""
    return self._encode_tf(s)

  def decode_tf(self, ids: Any) -> Any:
    """Decodes in TensorFlow up to the first EOS: int [..., length] -> string [...]."""
    import seqio

    return seqio.Vocabulary.decode_tf(self, ids)


class PassThroughVocabulary(BaseVocabulary):
  """Ids that stay as they are; see `seqio.PassThroughVocabulary`.

  Args:
    size: number of ids.
    eos_id: id that ends a sequence, or None.
  """

  def __init__(self, size: int, eos_id: int | None = None):
    super().__init__()
    self._size, self._eos_id = size, eos_id

  @property
  def eos_id(self) -> int | None:
    return self._eos_id

  @property
  def unk_id(self) -> None:
    return None

  @property
  def _base_vocab_size(self) -> int:
    return self._size

  def _encode(self, s: Any) -> Any:
    return s

  def _decode(self, ids: Any) -> Any:
    return ids

  _encode_tf, _decode_tf = _encode, _decode

  def __eq__(self, other: object) -> bool:
    return _is(other, PassThroughVocabulary) and self.vocab_size == other.vocab_size and self.eos_id == other.eos_id

  def __str__(self) -> str:
    return f"PassThroughVocabulary(size={self._size}, eos_id={self._eos_id})"


_BYTES, _NUM_SPECIAL = 256, 3


class ByteVocabulary(BaseVocabulary):
  """UTF-8 bytes after pad 0, EOS 1 and unknown 2; see `seqio.ByteVocabulary`.

  Source: Xue et al. 2022 (ByT5).
  """

  @property
  def eos_id(self) -> int:
    return 1

  @property
  def unk_id(self) -> int:
    return 2

  @property
  def _base_vocab_size(self) -> int:
    return _BYTES + _NUM_SPECIAL

  def _encode(self, s: str | bytes) -> list[int]:
    return [byte + _NUM_SPECIAL for byte in (s if isinstance(s, bytes) else s.encode())]

  def _decode(self, ids: Sequence[int]) -> str:
    numbers = (int(i) - _NUM_SPECIAL for i in ids)
    return bytes(number for number in numbers if 0 <= number < _BYTES).decode(errors="ignore")

  def _encode_tf(self, s: Any) -> Any:
    return self._of_seqio._encode_tf(s)

  def _decode_tf(self, ids: Any) -> Any:
    return self._of_seqio._decode_tf(ids)

  @property
  def _of_seqio(self) -> Any:
    import seqio

    return seqio.ByteVocabulary(extra_ids=self.extra_ids)

  def __eq__(self, other: object) -> bool:
    return is_bytes(other) and all(
      getattr(self, name) == getattr(other, name) for name in ("extra_ids", "eos_id", "unk_id")
    )


@dataclasses.dataclass
class _ModelContext:
  """A SentencePiece model: the processor, and the serialized model with its sentinels."""

  tokenizer: sentencepiece.SentencePieceProcessor
  sp_model: bytes


_lock = threading.Lock()  # reading a serialized model is not safe in several threads


@functools.cache
def _read_model(path: str, extra_ids: int) -> _ModelContext:
  """Reads a model and appends the sentinels <extra_id_N>, ..., <extra_id_0>."""
  model = sentencepiece_model_pb2.ModelProto.FromString(gcs.read(epath.Path(path)))
  for number in reversed(range(extra_ids)):
    model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=model.SentencePiece.USER_DEFINED)
  content = model.SerializeToString()
  tokenizer = sentencepiece.SentencePieceProcessor()
  tokenizer.LoadFromSerializedProto(content)
  if tokenizer.pad_id() != PAD_ID:
    logging.warning("%s: padding is id %d, but the model declares pad_id=%d", path, PAD_ID, tokenizer.pad_id())
  return _ModelContext(tokenizer, content)


class SentencePieceVocabulary(BaseVocabulary):
  """A SentencePiece model with sentinels after its ids; see `seqio.SentencePieceVocabulary`.

  Args:
    sentencepiece_model_file: path of the model, which is read on first use.
    extra_ids: number of sentinels; the last id is <extra_id_0>.
  """

  def __init__(self, sentencepiece_model_file: str, extra_ids: int = 0):
    super().__init__(extra_ids=extra_ids)
    self._sentencepiece_model_file = sentencepiece_model_file
    self._model: _ModelContext | None = None
    # seqio compares vocabularies by their state, which has these options.
    self._normalizer_spec_overrides, self._reverse_extra_ids, self._use_fast_tokenizer = None, True, False

  def __getstate__(self) -> dict[str, Any]:
    return {name: value for name, value in self.__dict__.items() if name != "_model"}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state, _model=None)

  def load_model(self) -> None:
    """Reads the model now."""
    self._model_context()

  def _model_context(self) -> _ModelContext:
    if self._model is None:
      with _lock:
        self._model = _read_model(self._sentencepiece_model_file, self._extra_ids)
    return self._model

  @property
  def sentencepiece_model_file(self) -> str:
    return self._sentencepiece_model_file

  @property
  def sp_model(self) -> bytes:
    """Returns the serialized model, sentinels included."""
    return self._model_context().sp_model

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    return self._model_context().tokenizer

  @property
  def tf_tokenizer(self) -> Any:
    """Returns the tokenizer of tensorflow_text."""
    import tensorflow_text

    return tensorflow_text.SentencepieceTokenizer(model=self.sp_model)

  @property
  def bos_id(self) -> int | None:
    return self.tokenizer.bos_id()

  @property
  def eos_id(self) -> int | None:
    return self.tokenizer.eos_id()

  @property
  def unk_id(self) -> int | None:
    return self.tokenizer.unk_id()

  @property
  def vocab_size(self) -> int:
    return self._base_vocab_size  # the model has the sentinels

  @property
  def _base_vocab_size(self) -> int:
    return self.tokenizer.GetPieceSize()

  def _encode(self, s: str | bytes) -> list[int]:
    return self.tokenizer.EncodeAsIds(s)

  def _decode(self, ids: Sequence[int]) -> str:
    size, unknown = self._base_vocab_size, self.tokenizer.unk_id()
    return self.tokenizer.DecodeIds([unknown if i >= size else int(i) for i in ids])

  def _encode_tf(self, s: Any) -> Any:
    return self.tf_tokenizer.tokenize(s)

  def _decode_tf(self, ids: Any) -> Any:
    return self.tf_tokenizer.detokenize(ids)

  def __eq__(self, other: object) -> bool:
    return is_sentencepiece(other) and self.__getstate__() == other.__getstate__()

  def __str__(self) -> str:
    digest = hashlib.md5(self.sp_model).hexdigest()
    return (
      f"SentencePieceVocabulary(file={self.sentencepiece_model_file}, extra_ids={self._extra_ids}, spm_md5={digest})"
    )


# ---- Kinds -----------------------------------------------------------------------------------------------------------


def register(seqio: types.ModuleType) -> None:
  """Makes the classes of this file virtual subclasses of the classes of the same kind in seqio."""
  seqio.Vocabulary.register(BaseVocabulary)
  for cls in (PassThroughVocabulary, ByteVocabulary, SentencePieceVocabulary):
    getattr(seqio, cls.__name__).register(cls)


def _is(vocabulary: object, cls: type) -> bool:
  """Returns True for an object of a class of this file, or of the class with the same name in seqio."""
  if isinstance(vocabulary, cls):
    return True
  seqio = sys.modules.get("seqio")  # without it there is no object of its classes
  return seqio is not None and isinstance(vocabulary, getattr(seqio, cls.__name__))


def is_bytes(vocabulary: object) -> bool:
  """Returns True for a byte vocabulary of t2t or of seqio."""
  return _is(vocabulary, ByteVocabulary)


def is_sentencepiece(vocabulary: object) -> bool:
  """Returns True for a SentencePiece vocabulary of t2t or of seqio."""
  return _is(vocabulary, SentencePieceVocabulary)
