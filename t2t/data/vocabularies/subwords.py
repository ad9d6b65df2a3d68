"""WordPiece and byte-level BPE vocabularies from the files of BERT, GPT-2, RoBERTa, Llama 3 and others.

Ids equal the ids of the published tokenizers exactly; the `tokenizers` library does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
import dataclasses
import functools
import json
import math
import re

from etils import epath
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from t2t import UserError
from t2t.data.vocabularies import control_tokens
from t2t.runtime import data_packages
from t2t.storage import gcs, vocabulary_files
from t2t.storage.safe_read import COPY_AGAIN

tf = data_packages.lazy_module("tensorflow")

_BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BPE_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>")
SENTINEL = re.compile(r"\s*<extra_id_([0-9]{1,6})>")
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # token of a byte, for characters without a token
_UNUSED = re.compile(r"\[unused[0-9]+\]|madeupword[0-9]+")


class SubwordVocabulary(control_tokens.FileVocabulary):
  """The vocabulary of a vocab.txt (WordPiece), of tokens with merges (byte-level BPE) or of a tokenizer.json.

  The file is read on first use. Texts are encoded without truncation, [CLS], [SEP] or BOS. A special token spelled in
  the text ("[MASK]", "<|endoftext|>") gives its id, as in the published tokenizers. All reading of data instead uses
  `control_tokens`, which encodes these letters as text.

  Args:
    path: a file accepted by `vocabulary_files.is_subword_file`; for tokens and merges one file, beside the other.
    extra_ids: number of sentinels after the file's ids; the last id is <extra_id_0>, and numbers increase with
      decreasing ids.

  Source: Wu et al. 2016 and Devlin et al. 2019 (WordPiece); Radford et al. 2019, section 2.2 (byte-level BPE).
  """

  def __init__(self, path: str, extra_ids: int = 0):
    super().__init__(extra_ids=extra_ids)
    self._path = str(path)

  @functools.cached_property
  def _file(self) -> _File:
    file = _read(self._path)
    sentinels = [piece for piece in file.ids if SENTINEL.fullmatch(piece)]
    if sentinels and self.extra_ids:
      raise UserError(
        f"config.data.vocabulary={self._path} already contains {len(sentinels)} sentinels ({sentinels[0]} has "
        f"id {file.ids[sentinels[0]]}). Adding {self.extra_ids} would give each sentinel two ids. Set "
        "config.data.extra_ids=0, or give the spiece.model without sentinels."
      )
    return file

  def load_model(self) -> None:
    """Reads the file now.

    Raises:
      UserError: the file does not exist or is invalid; gives the reason.
    """
    _ = self._file

  @property
  def files(self) -> list[epath.Path]:
    """Lists the file, its merges and its tokenizer_config.json, as far as they exist."""
    return vocabulary_files.files_of(epath.Path(self._path).expanduser())

  def __reduce__(self):
    return type(self), (self._path, self.extra_ids)

  def __eq__(self, other):
    if not isinstance(other, SubwordVocabulary) or self.extra_ids != other.extra_ids:
      return False
    if self._path == other._path:
      return True
    try:
      return self._file.special == other._file.special and self._file.content == other._file.content
    except UserError:
      return False  # a task may name a file that this machine lacks

  def __str__(self) -> str:
    return f"SubwordVocabulary(file={self._path}, extra_ids={self.extra_ids})"

  # ---- Ids -----------------------------------------------------------------------------------------------------------

  @property
  def tokenizer(self) -> tokenizers.Tokenizer:
    """Returns the object of the `tokenizers` library, with the file's ids."""
    return self._file.tokenizer

  @property
  def content(self) -> str:
    """Returns the tokenizer as JSON."""
    return self._file.content

  @property
  def _base_vocab_size(self) -> int:
    return self._file.size

  @property
  def eos_id(self) -> int:
    """Returns the id of [SEP], </s>, <|endoftext|> or similar."""
    return self._file.special["eos"]

  @property
  def pad_id(self) -> int:
    """Returns the padding id; without one 0 if no text has id 0, else EOS."""
    token_id = self._file.special["pad"]
    if token_id is not None:
      return token_id
    return 0 if 0 in self.special_ids else self.eos_id

  @property
  def bos_id(self) -> int | None:
    """Returns the id of <s>, <|begin_of_text|> or similar."""
    return self._file.special["bos"]

  @property
  def unk_id(self) -> int | None:
    """Returns the id of unknown text; byte-level BPE needs none."""
    return self._file.special["unk"]

  @property
  def mask_id(self) -> int | None:
    """Returns the id of [MASK] or <mask>."""
    return self._file.special["mask"]

  @property
  def cls_id(self) -> int | None:
    """Returns the id of [CLS], in RoBERTa <s>."""
    return self._file.special["cls"]

  @property
  def sep_id(self) -> int | None:
    """Returns the id of [SEP], in RoBERTa </s>."""
    return self._file.special["sep"]

  @property
  def special_ids(self) -> frozenset[int]:
    """Returns ids of the file that no text has: special tokens, reserved ones ([unused0]), and ids without a token."""
    return self._file.special_ids

  def token_texts(self, *, errors: str = "replace") -> list[str]:
    """Returns the text of each id of the file, with a space if it starts a word; special tokens by name.

    Args:
      errors: handling of parts of characters, as in `bytes.decode`; "surrogateescape" gives distinct surrogates.
    """
    return [text.encode(errors="surrogateescape").decode(errors=errors) for text in self._file.texts]

  def reader(self) -> _Subwords:
    """Returns an encoder for texts without control tokens."""
    return _reader(self.content, self.special_ids, self.extra_ids)

  # ---- Encoding ------------------------------------------------------------------------------------------------------

  def _encode_own(self, texts: Sequence[str]) -> list[list[int]]:
    # The batch call without offsets is the library's fastest, even for a single text.
    encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]

  def _parts(self, text: str) -> Iterator[tuple[int, int, int | None]]:
    """Yields (start, end, id) of each spelled sentinel, and of the text between sentinels, with id None."""
    end = 0
    for match in SENTINEL.finditer(text) if self.extra_ids and "<extra_id_" in text else ():
      if int(match[1]) < self.extra_ids:
        yield end, match.start(), None
        yield *match.span(), self.vocab_size - 1 - int(match[1])
        end = match.end()
    yield end, len(text), None

  def _encode(self, s: str | bytes) -> list[int]:
    text = s.decode(errors="replace") if isinstance(s, bytes) else s
    ids = []
    for start, end, sentinel in self._parts(text):
      ids += self._encode_own([text[start:end]])[0] if sentinel is None else [sentinel]
    return ids

  def encode_with_offsets(self, text: str) -> list[tuple[int, int, int]]:
    """Returns the ids of `encode` with their character ranges: (id, start, end)."""
    tokens = []
    for start, end, sentinel in self._parts(text):
      if sentinel is not None:
        tokens.append((sentinel, start, end))
        continue
      encoded = self.tokenizer.encode(text[start:end], add_special_tokens=False)
      tokens += [
        (i, start + first, start + last) for i, (first, last) in zip(encoded.ids, encoded.offsets, strict=True)
      ]
    return tokens

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    """Encodes int32 [length] for a scalar; ragged [batch, (length)] for a batch."""

    def encode(text: bytes | np.ndarray) -> np.ndarray:
      # TensorFlow passes bytes in a graph, and an array with bytes in eager mode.
      return np.array(self._encode(np.asarray(text, object).item()), np.int32)

    def encode_batch(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      ids = [self._encode(text) for text in texts]
      return np.array(sum(ids, []), np.int32), np.cumsum([0, *map(len, ids)], dtype=np.int64)

    # Stateless, because ids are a function of the text; tf.data can then optimize the call.
    if s.shape.rank == 1:
      flat, splits = tf.numpy_function(encode_batch, [s], [tf.int32, tf.int64], stateful=False)
      return tf.RaggedTensor.from_row_splits(tf.ensure_shape(flat, [None]), tf.ensure_shape(splits, [None]))
    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids

  # ---- Decoding ------------------------------------------------------------------------------------------------------

  def decode(self, ids) -> str:
    """Decodes up to the first EOS, without special tokens, as the library does; sentinels have their names.

    The library omits masks and unknown tokens if its file declares them as special; `decode_named` names them. Ids
    beyond the last one have no text.
    """
    return self._decode(self._up_to_eos(ids))

  def decode_named(self, ids) -> str:
    """Decodes up to the first EOS, with names of masks and unknown tokens; ids beyond the last one are unknown.

    In:  the ids of "a", [MASK], [UNK], [SEP]
    Out: "a [MASK] [UNK]"
    """
    return self._decode(self._up_to_eos(ids), named=True)

  def _up_to_eos(self, ids) -> list[int]:
    # The base class would convert sentinels to unknown ids.
    ids = np.asarray(ids).tolist()
    return ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids

  def _decode(self, ids: Sequence[int], *, named: bool = False) -> str:
    shown, run = [], []

    def end_run():
      if run:
        text = self.tokenizer.decode(run, skip_special_tokens=not named)
        # Some decoders strip the space at the start of each part.
        lacks_space = shown and self._file.texts[run[0]].startswith(" ") and not text.startswith(" ")
        shown.append(f" {text}" if lacks_space else text)
        run.clear()

    for i in ids:
      if self._file.size <= i < self.vocab_size:
        end_run()
        # Adds the space that `encode` strips.
        shown.append(f"{' ' if shown else ''}<extra_id_{self.vocab_size - 1 - i}>")
        continue
      if not 0 <= i < self._file.size:
        i = self.unk_id if named else None
      if i is not None and i not in self._file.unseen_ids:
        run.append(i)
    end_run()
    return "".join(shown)

  def decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    """Decodes in TensorFlow: int [..., length] -> string [...]."""
    return self._decode_tf(ids)

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    def decode(ids: np.ndarray) -> np.ndarray:
      flat = ids.reshape([math.prod(ids.shape[:-1]), ids.shape[-1]])
      return np.array([self.decode(row).encode() for row in flat], object).reshape(ids.shape[:-1])

    if isinstance(ids, tf.RaggedTensor):
      return tf.map_fn(self.decode_tf, ids, fn_output_signature=tf.string)
    ids = tf.convert_to_tensor(ids)
    texts = tf.numpy_function(decode, [ids], tf.string, stateful=False)
    return tf.ensure_shape(texts, ids.shape[:-1])


# ---- Files -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _File:
  """Content of a vocabulary's files."""

  tokenizer: tokenizers.Tokenizer
  content: str  # the tokenizer as JSON
  ids: dict[str, int]  # id of every token
  size: int
  special: dict[str, int | None]  # by the keys of `control_tokens.NAMES`
  special_ids: frozenset[int]
  unseen_ids: frozenset[int]  # special, and omitted in decoded text
  texts: tuple[str, ...]


@functools.lru_cache(maxsize=16)
def _read(spec: str) -> _File:
  where = f"config.data.vocabulary={spec}"
  path = epath.Path(spec).expanduser()
  if not path.exists():
    raise UserError(f"{where}: no such file; check the path")
  pieces, merges = vocabulary_files.pieces_and_merges(path)
  if merges is not None:
    tokenizer = _byte_level_bpe(pieces, merges, where)
  elif path.suffix == ".txt":
    tokenizer = _wordpiece(path, where)
  else:
    tokenizer = _tokenizer_json(path, where)
  return _summarise(tokenizer, _settings(path), where)


def _settings(path: epath.Path) -> dict:
  """Returns the tokenizer_config.json beside a file; {} if there is none."""
  settings = path.parent / vocabulary_files.SETTINGS
  return _json(settings, f"config.data.vocabulary={settings}") if settings.exists() else {}


def _text(path: epath.Path, where: str) -> str:
  try:
    return gcs.read(path).decode().replace("\r\n", "\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{where}: {path.name} is not UTF-8 text (byte {error.start}). {COPY_AGAIN}") from error
  except OSError as error:
    raise UserError(f"{where}: {path} cannot be read ({error}); check the path and permissions of the file") from error


def _json(path: epath.Path, where: str) -> dict:
  try:
    content = json.loads(_text(path, where))
  except (ValueError, RecursionError) as error:  # also too deeply nested, or a number with too many digits
    raise UserError(f"{where}: {path.name} is not JSON ({error}). {COPY_AGAIN}") from error
  if not isinstance(content, dict):
    raise UserError(f"{where}: {path.name} contains no JSON object. {COPY_AGAIN}")
  return content


def _wordpiece(path: epath.Path, where: str) -> tokenizers.Tokenizer:
  # splitlines() would also split at tokens that are Unicode line separators.
  pieces = _text(path, where).removesuffix("\n").split("\n")
  if pieces == [""]:
    raise UserError(f"{where} is empty. {COPY_AGAIN} A vocab.txt has one token per line, [PAD] first.")
  ids = {piece: i for i, piece in enumerate(pieces)}
  missing = [piece for piece in ("[PAD]", "[UNK]", "[SEP]") if piece not in ids]
  if missing:
    raise UserError(
      f"{where} is not a WordPiece vocabulary, because the file has no {' and no '.join(missing)}; give a file like"
      " BERT's vocab.txt"
    )
  if len(ids) < len(pieces):
    first = next(i for i, piece in enumerate(pieces) if ids[piece] != i)
    raise UserError(
      f"{where}: line {first + 1} and line {ids[pieces[first]] + 1} are the same token, {pieces[first]!r}; "
      "remove one of the lines, because the id of a token is its line number"
    )
  settings = _settings(path)
  lower_case = settings.get("do_lower_case")
  if lower_case is None:
    # An uncased vocabulary has no token with capitals, except special tokens.
    lower_case = not any(piece != piece.lower() for piece in pieces if not re.fullmatch(r"\[.+\]", piece))
  tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
  # By default, accents are stripped if text is lowercased, as in BERT.
  tokenizer.normalizer = normalizers.BertNormalizer(
    lowercase=lower_case,
    strip_accents=settings.get("strip_accents"),
    handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece()
  tokenizer.add_special_tokens([piece for piece in _BERT_SPECIAL if piece in ids])
  return tokenizer


def _byte_level_bpe(pieces_path: epath.Path, merges_path: epath.Path, where: str) -> tokenizers.Tokenizer:
  for path, other_path in ((pieces_path, merges_path), (merges_path, pieces_path)):
    if not path.exists():
      raise UserError(
        f"{where}: {path.name} is missing; put {path.name} beside {other_path.name}, because a BPE vocabulary needs"
        " both"
      )
  ids = _json(pieces_path, where)
  if not ids or sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
    raise UserError(
      f"{where}: {pieces_path.name} is not a BPE vocabulary, because its ids are not 0, 1, 2 and so on. {COPY_AGAIN}"
    )
  lacking = [character for character in pre_tokenizers.ByteLevel.alphabet() if character not in ids]
  if lacking or any(piece.endswith("</w>") for piece in ids):
    raise UserError(
      f"{where}: {pieces_path.name} is not a byte-level BPE vocabulary like GPT-2's, because"
      f" {f'{len(lacking)} of the 256 bytes have no token' if lacking else 'words end in </w>'}."
      " Give the tokenizer.json of this model."
    )
  merges = []
  for number, line in enumerate(_text(merges_path, where).split("\n"), 1):
    if line and not (number == 1 and line.startswith("#version")):
      pair = tuple(line.split(" "))
      # The library would accept some of these lines, and panic at others.
      if len(pair) != 2 or any(piece not in ids for piece in (*pair, "".join(pair))):
        raise UserError(
          f"{where}: line {number} of {merges_path.name}, {line!r}, does not merge two tokens of {pieces_path.name}"
          " into another token. Copy or download both files again."
        )
      merges.append(pair)
  tokenizer = tokenizers.Tokenizer(models.BPE(ids, merges))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens([piece for piece in _BPE_SPECIAL if piece in ids])
  if "<mask>" in ids:
    # The mask replaces a word and the space before it (RoBERTa).
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
  return tokenizer


def _tokenizer_json(path: epath.Path, where: str) -> tokenizers.Tokenizer:
  content = _json(path, where)
  if "model" not in content:
    raise UserError(
      f'{where} is not a tokenizer.json, because the file has no "model". Give a tokenizer.json, or the token file of a'
      f" BPE vocabulary ({' or '.join(vocabulary_files.MERGES)}) beside"
      f" {' or '.join(vocabulary_files.MERGES.values())}."
    )
  try:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
  except Exception as error:  # the library raises nothing narrower
    raise UserError(
      f"{where}: tokenizers {tokenizers.__version__} cannot read this file ({error}). Upgrade tokenizers, or download"
      " the file again."
    ) from error
  # Truncation and padding belong to the data pipeline.
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return tokenizer


_MOST_IDS = 2**24  # memory limit: each id has a text


def _summarise(tokenizer: tokenizers.Tokenizer, settings: dict, where: str) -> _File:
  ids = tokenizer.get_vocab(with_added_tokens=True)
  size = max(ids.values(), default=0) + 1
  if size > _MOST_IDS:
    raise UserError(f"{where}: the largest id, {size - 1:,}, is above the limit of {_MOST_IDS - 1:,}. {COPY_AGAIN}")

  def special(kind: str) -> int | None:
    configured = settings.get(f"{kind}_token")
    configured = configured.get("content") if isinstance(configured, dict) else configured
    return next((ids[name] for name in (configured, *control_tokens.NAMES[kind]) if name in ids), None)

  named = {kind: special(kind) for kind in control_tokens.NAMES}
  if named["eos"] is None:
    eos_names = " ".join(control_tokens.NAMES["eos"])
    raise UserError(
      f"{where} has no end-of-text token, but targets must end with an end-of-text token; add one of: {eos_names}"
    )
  if named["mask"] is not None and named["cls"] is None:
    # RoBERTa: its BOS and EOS have the function of [CLS] and [SEP].
    named |= {"cls": named["bos"], "sep": named["eos"]}
  added = tokenizer.get_added_tokens_decoder()
  special_ids = {i for i, token in added.items() if token.special} | {i for i in named.values() if i is not None}
  unseen = special_ids - {named["mask"], named["unk"]}
  special_ids |= {i for piece, i in ids.items() if _UNUSED.fullmatch(piece)}
  special_ids |= set(range(size)) - set(ids.values())
  content = tokenizer.to_str()
  return _File(
    tokenizer=tokenizer,
    content=content,
    ids=ids,
    size=size,
    special=named,
    special_ids=frozenset(special_ids),
    unseen_ids=frozenset(unseen),
    texts=_texts(ids, size, frozenset(special_ids), frozenset(added), json.loads(content)),
  )


def _texts(
  ids: dict[str, int], size: int, special_ids: frozenset[int], added: frozenset[int], content: dict
) -> tuple[str, ...]:
  """Returns the text of each id, with a leading space if it starts a word; parts of characters are surrogates."""
  prefix = content["model"].get("continuing_subword_prefix")
  is_wordpiece = content["model"]["type"] == "WordPiece"
  byte_level = '"ByteLevel"' in json.dumps([content["pre_tokenizer"], content["decoder"]])
  byte_of = _byte_of_character()
  texts = [""] * size
  for piece, i in ids.items():
    if i in special_ids or i in added:
      texts[i] = piece
    elif is_wordpiece:
      texts[i] = piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
    # other tokens are unchanged, as in the library's ByteLevel decoder
    elif byte_level and byte_of.keys() >= set(piece):
      texts[i] = bytes(byte_of[character] for character in piece).decode(errors="surrogateescape")
    else:
      texts[i] = piece.replace("▁", " ")
  return tuple(texts)


def _byte_of_character() -> dict[str, int]:
  """Returns the byte of each character in byte-level BPE: printable bytes keep theirs, others start at U+0100."""
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  unprintable = [byte for byte in range(256) if byte not in printable]
  return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(unprintable)}


# ---- Encoding without control tokens ---------------------------------------------------------------------------------


class _Subwords(control_tokens.Reader):
  """Encodes with two tokenizers: the published one, and one in which names of control tokens start with a mark.

  A Unigram model, unlike SentencePiece, reads the letters "<0x0A>" as the token of this byte. For texts with such
  letters there is a third tokenizer, in which byte tokens start with the mark, too.
  """

  def __init__(self, content: str, special_ids: Collection[int], extra_ids: int):
    self._published = tokenizers.Tokenizer.from_str(content)
    pieces = self._published.get_vocab(with_added_tokens=True)
    self._control = {
      i: piece
      for piece, i in pieces.items()
      if piece and (i in special_ids or vocabulary_files.SENTINEL.fullmatch(piece))
    }
    added = self._published.get_added_tokens_decoder()
    self._control |= {i: token.content for i, token in added.items() if control_tokens.is_control(token.content)}
    self._size = max(pieces.values(), default=0) + 1
    self._extra_ids = extra_ids
    candidates = list(self._control.items())
    encoded = self._published.encode_batch_fast([name for _, name in candidates], add_special_tokens=False)
    control_ids = {name: i for (i, name), ids in zip(candidates, encoded, strict=True) if i in ids.ids}
    last = self._size + extra_ids - 1
    self._sentinels = {f"<extra_id_{number}>": last - number for number in range(extra_ids)}
    self.names = self._sentinels | control_ids
    self._content = content
    self._text = self._tokenizer(is_text=True)
    model = json.loads(content)["model"]
    falls_back = model["type"] == "Unigram" and model.get("byte_fallback")
    of_bytes = {pieces.get(f"<0x{byte:02X}>"): None for byte in range(256)} if falls_back else {}
    self._bytes = {} if None in of_bytes else of_bytes  # ids, in the order of the bytes
    self._unknown = model.get("unk_id")

  @functools.cache  # noqa: B019 - readers are few, and kept
  def _tokenizer(self, *, is_text: bool, marks_bytes: bool = False) -> tokenizers.Tokenizer:
    tokenizer = self._marked_tokenizer(marks_bytes)
    # With this option, even marked names are text.
    tokenizer.encode_special_tokens = is_text
    return tokenizer

  def _marked_tokenizer(self, marks_bytes: bool) -> tokenizers.Tokenizer:
    content = json.loads(self._content)
    names = {name: control_tokens.MARK + name for name in self._control.values()}
    model = content["model"]
    if marks_bytes:
      model["byte_fallback"] = False
      names |= {name: control_tokens.MARK + name for name, _ in model["vocab"] if _BYTE.fullmatch(name)}
    if isinstance(model["vocab"], dict):
      model["vocab"] = {names.get(piece, piece): i for piece, i in model["vocab"].items()}
    else:
      model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in names:
      model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
      prefix = model.get("continuing_subword_prefix") or ""
      pairs = [(merge, merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
      # Drops merges that would create a control token from letters.
      model["merges"] = [merge for merge, (a, b) in pairs if not {a, b, a + b.removeprefix(prefix)} & names.keys()]
    normalizer = self._published.normalizer
    for token in content["added_tokens"]:
      if name := names.get(token["content"]):
        # If the normalizer would drop the mark, the name is matched before normalization.
        keeps = normalizer is None or control_tokens.MARK in normalizer.normalize_str(name)
        token |= {"content": name, "normalized": token["normalized"] and keeps}
    content["post_processor"] = _without_special(content.get("post_processor"))
    return tokenizers.Tokenizer.from_str(json.dumps(content))

  def encode_tf(self, texts):
    return control_tokens.by_python(texts, lambda text: self._encode_text(control_tokens.string_of(text)))

  def encode_formatted_tf(self, texts, encode):
    return control_tokens.by_python(texts, encode)

  def _encode_text(self, text):
    # The batch call without offsets is the library's fastest, even for a single text.
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
    tokens, end = [], 0
    # The library does not know added sentinels.
    for match in SENTINEL.finditer(text) if self._sentinels else ():
      name = match[0].strip()
      if name in accept and name in self._sentinels:
        tokens += self._part(text[end : match.start()], end, accept, protected)
        tokens.append((self._sentinels[name], *match.span()))
        end = match.end()
    return tokens + self._part(text[end:], end, accept, protected)

  def _part(self, text: str, offset: int, accept: Collection[str], protected: bool) -> list[tuple[int, int, int]]:
    """Encodes a part of a text without added sentinels."""
    places = []
    if accept and self.spells(text):
      encoding = self._published.encode(text, add_special_tokens=False)
      for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        name = self._control.get(i)
        if name in accept and name in text[start:end]:
          places.append(start + text[start:end].rindex(name))
    text = control_tokens.unprotected(text) if protected else text
    parts = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    marks = [position + number for number, position in enumerate(places)]
    return [
      (i, offset + control_tokens.unmarked(start, marks), offset + control_tokens.unmarked(end, marks))
      for i, start, end in self._tokens(control_tokens.MARK.join(parts), is_text=not places)
    ]

  def _tokens(self, text: str, *, is_text: bool) -> list[tuple[int, int, int]]:
    """Returns (id, start, end) of each token of a text with marks; with `is_text`, marked names are text, too."""
    bytes_of = list(self._bytes) if self._bytes and self._spells_bytes(text) else []
    tokenizer = self._tokenizer(is_text=is_text, marks_bytes=bool(bytes_of))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    tokens = [(i, *offsets) for i, offsets in zip(encoding.ids, encoding.offsets, strict=True)]
    if not bytes_of:
      return tokens
    # The library returns the letters of an unknown token as its text.
    return [
      (i, start, end)
      for (unit, start, end), letters in zip(tokens, encoding.tokens, strict=True)
      for i in ([bytes_of[byte] for byte in letters.encode()] if unit == self._unknown else [unit])
    ]


def _without_special(processor: dict | None) -> dict | None:
  """Returns the part of a post-processor that trims offsets but adds no token."""
  if processor is None or processor["type"] in ("ByteLevel", "RobertaProcessing"):
    return processor
  if processor["type"] == "Sequence":
    trimming = [part for part in map(_without_special, processor["processors"]) if part is not None]
    return {**processor, "processors": trimming}
  return None


@functools.lru_cache(maxsize=8)
def _reader(content: str, special_ids: frozenset[int], extra_ids: int) -> _Subwords:
  return _Subwords(content, special_ids, extra_ids)
