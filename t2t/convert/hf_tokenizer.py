"""Reads the vocabulary of a Hugging Face folder, and writes the tokenizer files of an exported one.

This module determines the size of a vocabulary without TensorFlow; `t2t.data.vocabularies` tokenizes.
"""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from etils import epath
from sentencepiece import sentencepiece_model_pb2
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from t2t import UserError
from t2t.convert import vocab_override
from t2t.convert.hf_mappings import Family, Settings
from t2t.convert.lazy_tensors import Foreign
from t2t.models.architecture import ARCHITECTURES
from t2t.storage import safe_read, vocabulary_files

_SPACE = "▁"
_T5 = ("t5", "mt5")
_BYT5_EXTRA_IDS = 125
_MOST_EXTRA_IDS = 1_000_000
_LENGTH, _NO_LENGTH = "model_max_length", 10**9  # transformers writes 10^30 for no limit


@dataclasses.dataclass(frozen=True)
class HfVocabulary:
  """Description of a folder's tokenizer files.

  spec: argument of `t2t.data.vocabularies.load`; "": there is none.
  extra_ids: number of sentinels after its own ids.
  size: number of ids, including sentinels.
  is_shifted: whether the file's ids are not the model's (XLM-R has four own ids first).
  keeps_case: whether it has only lower-case pieces, as ALBERT's, but does not lower-case text.
  """

  spec: str
  extra_ids: int
  size: int
  is_shifted: bool = False
  keeps_case: bool = False


# ---- Import ----------------------------------------------------------------------------------------------------------


def vocabulary_in(folder: epath.Path, settings: Settings) -> HfVocabulary:
  """Returns the vocabulary in a Hugging Face folder.

  Args:
    folder: of the checkpoint.
    settings: its config.json.

  Raises:
    UserError: a file cannot be read.
  """
  path = folder / vocabulary_files.SETTINGS
  tokenizer_settings = safe_read.read_json(path) if path.exists() else {}
  if "ByT5Tokenizer" in (tokenizer_settings.get("tokenizer_class"), settings.get("tokenizer_class")):
    # In published models the last bytes are the sentinels, and the tokenizer's <extra_id_0>, ... are untrained.
    # `_bytes` writes another number of them.
    extra_ids = _num_listed(tokenizer_settings, path) or _extra_ids(tokenizer_settings, path, _BYT5_EXTRA_IDS)
    extra_ids = 0 if extra_ids == _BYT5_EXTRA_IDS else extra_ids
    return HfVocabulary("bytes", extra_ids, vocab_override.BYTES + extra_ids)
  settings_path, path = path, next(iter(vocabulary_files.found_in(folder)), None)
  if path is None:
    return HfVocabulary("", 0, 0, is_shifted=(folder / vocabulary_files.SHIFTED).exists())
  ids = _ids(path)
  size = max(ids.values(), default=-1) + 1
  if any(vocabulary_files.SENTINEL.fullmatch(piece) for piece in ids):
    return HfVocabulary(str(path), 0, size)
  extra_ids = _num_listed(tokenizer_settings, settings_path)
  if path.suffix == ".model" and not extra_ids:
    # By default a T5 has 100 sentinels, if the embedding has rows for them.
    usual = 100 if settings.get("model_type") in _T5 and size + 100 <= settings.get("vocab_size", 32_128) else 0
    extra_ids = _extra_ids(tokenizer_settings, settings_path, usual)
  alone = path.suffix == ".model" and not (folder / "tokenizer.json").exists()
  keeps_case = alone and settings.get("model_type") == "albert" and tokenizer_settings.get("do_lower_case", True)
  return HfVocabulary(str(path), extra_ids, size + extra_ids, keeps_case=keeps_case)


def longest_in(folder: epath.Path) -> int:
  """Returns the maximum length of a folder's tokenizer; 0 if it has none."""
  path = folder / vocabulary_files.SETTINGS
  length = safe_read.read_json(path).get(_LENGTH) if path.exists() else None
  return length if type(length) is int and 0 < length <= _NO_LENGTH else 0


_BY_JSON = (
  "to tokenize as transformers does, t2t needs a tokenizer.json: write this file by"
  " AutoTokenizer.from_pretrained(...).save_pretrained(...), and give the file with --vocabulary"
)


def _extra_ids(tokenizer_settings: Mapping[str, Any], path: epath.Path, usual: int) -> int:
  extra_ids = tokenizer_settings.get("extra_ids", usual)
  if type(extra_ids) is not int or not 0 <= extra_ids <= _MOST_EXTRA_IDS:
    raise UserError(
      f"{path}: extra_ids={str(extra_ids)[:40]!r} is not a valid number of sentinels. Set a number, for "
      f"example {_BYT5_EXTRA_IDS}."
    )
  return extra_ids


def _num_listed(tokenizer_settings: Mapping[str, Any], path: epath.Path) -> int:
  """Returns the number of sentinels that a tokenizer_config.json adds; their key depends on the version of
  transformers.
  """
  try:
    added = tokenizer_settings.get("added_tokens_decoder") or {}
    listed = {str(token["content"]) for token in added.values()}
    for key in ("additional_special_tokens", "extra_special_tokens"):
      listed |= {str(token) for token in tokenizer_settings.get(key) or []}
  except (TypeError, AttributeError, LookupError) as error:
    raise UserError(f"{path}: the added tokens have an unknown format ({error!r}). Copy the file again.") from error
  return sum(vocabulary_files.SENTINEL.fullmatch(token) is not None for token in listed)


def _ids(path: epath.Path) -> dict[str, int]:
  try:
    return vocabulary_files.ids_of(path)
  except UserError:
    raise
  except Exception as error:  # each library raises another class
    if path.suffix == ".model":
      raise UserError(f"{path} is not a SentencePiece model ({error}). Download the file again.") from error
    if path.name == "tokenizer.json":
      raise UserError(
        f"{path}: tokenizers {tokenizers.__version__} cannot read this file: {error}. Download the file again, or "
        "upgrade tokenizers."
      ) from error
    raise UserError(f"{path} is not valid {path.suffix[1:].upper()} ({error}). Download the file again.") from error


def check(vocabulary: HfVocabulary, rows: int, named: epath.Path) -> list[str]:
  """Returns notes on a vocabulary and an embedding with this number of rows.

  Raises:
    UserError: there are ids without a row.
  """
  if vocabulary.is_shifted:
    return [
      f"the ids of {vocabulary_files.SHIFTED} differ from the model's, which has XLM-R's four own ids first: {_BY_JSON}"
    ]
  if not vocabulary.spec:
    return ["there is no vocabulary beside the model: give the vocabulary of its training with --vocabulary"]
  if vocabulary.size > rows:
    raise UserError(
      f"{named}: the tokenizer {vocabulary.spec} has {vocabulary.size:,} ids ({vocabulary.extra_ids} sentinels "
      f"included), but the embedding has only {rows:,} rows. Give the matching vocabulary with --vocabulary."
    )
  text = f"vocabulary: {vocabulary.size:,} ids ({vocabulary.extra_ids} sentinels included), {rows:,} rows"
  padding = rows - vocabulary.size
  notes = [f"{text}: the last {padding:,} rows are padding, and are kept" if padding else text]
  if vocabulary.keeps_case:
    notes.append(
      f"{vocabulary.spec} has no capitals, and only AlbertTokenizer of transformers lower-cases text: {_BY_JSON}"
    )
  return notes


# ---- Export ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Files:
  """Files beside the exported weights.

  content: name of a file -> its bytes.
  ids: special ids for config.json and generation_config.json.
  notes: messages for the user.
  """

  content: dict[str, bytes]
  ids: dict[str, int]
  notes: list[str] = dataclasses.field(default_factory=list)


def files(foreign: Foreign, family: Family) -> Files:
  """Returns the tokenizer files of a t2t model's vocabulary, for transformers' AutoTokenizer.

  Raises:
    UserError: the vocabulary cannot be read, or the family does not support it.
  """
  if not foreign.vocabulary:
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1} if family.model_type in _T5 else {}
    return Files({}, ids, ["there is no vocabulary beside the checkpoint, so no tokenizer was written"])
  # Import TensorFlow only if there is a vocabulary.
  from t2t.data import special_tokens, vocabularies

  vocabulary = vocabularies.load(foreign.vocabulary, extra_ids=foreign.extra_ids)
  vocabularies.check(vocabulary, foreign.model.vocab_size)
  ids = {"pad_token_id": vocabulary.pad_id, "eos_token_id": vocabulary.eos_id}
  if foreign.model.kind.has_encoder_and_decoder:
    ids["decoder_start_token_id"] = vocabularies.bos_id(vocabulary)
  elif foreign.model.kind.is_decoder_only:
    ids["bos_token_id"] = vocabularies.bos_id(vocabulary)
  else:
    ends = {"cls_token_id": vocabularies.cls_id(vocabulary), "sep_token_id": vocabularies.sep_id(vocabulary)}
    ids |= {name: end for name, end in ends.items() if end is not None}
  sentinels = [f"<extra_id_{i}>" for i in range(foreign.extra_ids)]
  length = _longest(foreign)
  mask_id = None if foreign.model.kind.is_generative else vocabularies.find_mask_id(vocabulary)
  if mask_id is not None and "mask_token_id" in family.ids:
    ids["mask_token_id"] = mask_id
  if foreign.vocabulary == "bytes":
    return _bytes(sentinels, ids, mask_id, length, has_types=foreign.model.segment_types > 1)
  path = epath.Path(foreign.vocabulary)
  texts = vocabularies.token_texts(vocabulary)
  # Without a mask token the first sentinel is the mask.
  token_ids = {kind: ids.get(f"{kind}_token_id") for kind in ("pad", "bos", "eos", "cls", "sep")}
  token_ids |= {"mask": mask_id, "unk": getattr(vocabulary, "unk_id", None)}
  special: dict[str, Any] = {
    f"{kind}_token": texts[i] for kind, i in token_ids.items() if i is not None and 0 <= i < len(texts)
  }
  special |= length
  frame = _Frame(special_tokens.Framing.of(vocabulary, foreign.model.architecture), foreign.model.segment_types > 1)
  if path.suffix == ".model":
    return _pieces(path, family, frame, sentinels, ids, special)
  tokenizer_files = _subwords(vocabulary, family, frame, sentinels, ids, special)
  if foreign.model.kind.is_decoder_only and foreign.model.heads:
    begins = " ".join(texts[i] for i in frame.ids.begin)
    tokenizer_files.notes.append(
      f"inputs of heads start with {begins}, and {texts[vocabulary.eos_id]} separates texts: add both yourself before"
      " calling the tokenizer"
    )
  return tokenizer_files


def _longest(foreign: Foreign) -> dict[str, int]:
  """Returns the tokenizer's maximum length: the model's positions, or the length of training texts."""
  model = foreign.model
  longest = model.max_length or foreign.lengths.get(
    "targets_length" if model.kind.is_decoder_only else "inputs_length", 0
  )
  return {_LENGTH: longest} if longest else {}


@dataclasses.dataclass(frozen=True)
class _Frame:
  """Special tokens around the texts of a model's input.

  ids: `t2t.data.special_tokens.Framing`.
  has_types: whether the model has token types for two texts.
  """

  ids: Any
  has_types: bool

  @property
  def features(self) -> dict[str, list[str]]:
    """Features of the tokenizer: token types only if the model uses them."""
    return {"model_input_names": ["input_ids", *(["token_type_ids"] if self.has_types else []), "attention_mask"]}

  def put_around(self, tokenizer: tokenizers.Tokenizer) -> None:
    """Makes a tokenizer add the tokens to one text and to two."""
    named = lambda ids, kind: [f"{tokenizer.id_to_token(i)}:{kind}" for i in ids]
    last = int(self.has_types)
    begin, between, end = named(self.ids.begin, 0), named(self.ids.between, 0), self.ids.end
    tokenizer.post_processor = processors.TemplateProcessing(
      single=[*begin, "$A:0", *named(end, 0)],
      pair=[*begin, "$A:0", *between, f"$B:{last}", *named(end, last)],
      special_tokens=[(tokenizer.id_to_token(i), i) for i in {*self.ids.begin, *self.ids.between, *self.ids.end}],
    )


# Class of any tokenizer.json.
_FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}


def _settings_file(**settings: Any) -> dict[str, bytes]:
  return {vocabulary_files.SETTINGS: (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _bytes(
  sentinels: list[str], ids: dict[str, int], mask_id: int | None, length: Mapping[str, int], *, has_types: bool
) -> Files:
  settings: dict[str, Any] = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": len(sentinels), **length}
  notes = []
  if mask_id is not None:
    # transformers counts sentinels up; for bytes the mask is the last sentinel, which never occurs in UTF-8. Each gets
    # its id explicitly, because a token named as the mask would otherwise come first.
    settings["mask_token"] = f"<extra_id_{len(sentinels) - 1}>" if sentinels else "<mask>"
    added = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    names = {mask_id + 1 - len(sentinels) + i: name for i, name in enumerate(sentinels)} or {mask_id: "<mask>"}
    settings["added_tokens_decoder"] = {str(i): {"content": name, **added} for i, name in names.items()}
  if sentinels:
    notes = [
      f"the {len(sentinels)} sentinels count down from the last id; ByT5's tokenizer of transformers counts its"
      " <extra_id_0>, ... up from 259: use ids, not names"
    ]
  if has_types:
    notes.append(
      "ByT5's tokenizer of transformers returns no token_type_ids: for a pair of texts, set 1 for each token of the"
      " second yourself"
    )
  return Files(_settings_file(**settings), ids, notes)


def _subwords(
  vocabulary: Any,
  family: Family,
  frame: _Frame,
  sentinels: list[str],
  ids: dict[str, int],
  special: Mapping[str, Any],
) -> Files:
  """Returns the files of a `t2t.data.vocabularies.subwords.SubwordVocabulary`."""
  content = {file.name: file.read_bytes() for file in vocabulary.files}
  saved_settings = json.loads(content.pop(vocabulary_files.SETTINGS, b"{}"))
  # Names in transformers.
  renamed = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
  ends = (*renamed, "vocab.json", "merges.txt")
  named = {}
  for name, value in content.items():
    end = next((end for end in ends if name.endswith(end)), name)
    named[renamed.get(end, end)] = value
  if "vocab.json" in named:
    classes = {"roberta": "RobertaTokenizer", "bart": "BartTokenizer"}
    settings = {"tokenizer_class": classes.get(family.model_type, "GPT2Tokenizer")}
    # transformers 5 would create these tokens without the flags: RoBERTa's <mask> also takes the space before it.
    if strips := _stripping(vocabulary.tokenizer):
      settings["added_tokens_decoder"] = strips
  else:
    tokenizer_json, settings = vocabulary.tokenizer.to_str(), _FAST | frame.features
    if any(name.endswith(".txt") for name in named):
      # BertTokenizer lower-cases by default.
      lower = json.loads(tokenizer_json)["normalizer"]["lowercase"]
      settings |= {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    else:
      named = {"tokenizer.json": next(iter(named.values()))}
    if not ARCHITECTURES[family.fields["architecture"]].is_generative:
      tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
      frame.put_around(tokenizer)
      named["tokenizer.json"] = tokenizer.to_str(pretty=True).encode()
  if isinstance(saved_settings.get(_LENGTH), (int, float)) and saved_settings[_LENGTH] > special.get(
    _LENGTH, _NO_LENGTH
  ):
    del saved_settings[_LENGTH]
  if isinstance(saved_settings.get("extra_special_tokens"), list):  # format of transformers 5, which 4 does not read
    saved_settings["additional_special_tokens"] = saved_settings.pop("extra_special_tokens")
  settings |= dict(special) | saved_settings
  if sentinels:
    # After the file's own ids, in this order: the last id is <extra_id_0>.
    settings["additional_special_tokens"] = sentinels[::-1]
  return Files(named | _settings_file(**settings), ids)


def _stripping(tokenizer: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
  """Returns the special tokens that absorb adjacent spaces, by id, as in tokenizer_config.json."""
  flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
  added = tokenizer.get_added_tokens_decoder().items()
  return {str(i): {flag: getattr(token, flag) for flag in flags} for i, token in added if token.lstrip or token.rstrip}


def _pieces(
  path: epath.Path,
  family: Family,
  frame: _Frame,
  sentinels: list[str],
  ids: dict[str, int],
  special: Mapping[str, Any],
) -> Files:
  proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
  trained = proto.trainer_spec
  is_unigram = trained.model_type == trained.UNIGRAM
  special = special | {"unk_token": proto.pieces[trained.unk_id].piece}
  if family.model_type in _T5 and is_unigram and trained.unk_id == 2:
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": len(sentinels), "additional_special_tokens": sentinels}
    return Files({"spiece.model": path.read_bytes()} | _settings_file(**settings, **special), ids)
  if trained.bos_id >= 0:
    special |= {"bos_token": proto.pieces[trained.bos_id].piece}
  # After the model's own ids, in this order: the last id is <extra_id_0>.
  settings = _FAST | frame.features | ({"additional_special_tokens": sentinels[::-1]} if sentinels else {})
  tokenizer = _fast(proto, sentinels)
  # As in training; a decoder without BOS in its vocabulary gets text without special tokens.
  if not ARCHITECTURES[family.fields["architecture"]].is_decoder_only or trained.bos_id >= 0:
    frame.put_around(tokenizer)
  content = {"spiece.model": path.read_bytes(), "tokenizer.json": tokenizer.to_str().encode()}
  return Files(content | _settings_file(**settings, **special), ids)


def _fast(proto: sentencepiece_model_pb2.ModelProto, sentinels: list[str]) -> tokenizers.Tokenizer:
  """Converts a SentencePiece model to the tokenizers library, without a conversion in transformers.

  The library's own conversions drop the first space of a text that starts with one.
  """
  trained, spec = proto.trainer_spec, proto.normalizer_spec
  if trained.model_type == trained.UNIGRAM:
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, trained.unk_id, trained.byte_fallback))
  else:
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    bpe = models.BPE(
      ids,
      _merges(proto),
      unk_token=proto.pieces[trained.unk_id].piece,
      fuse_unk=True,
      byte_fallback=trained.byte_fallback,
    )
    tokenizer = tokenizers.Tokenizer(bpe)
  steps = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
  if spec.remove_extra_whitespaces:
    steps += [normalizers.Replace(tokenizers.Regex("^ +| +$"), ""), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
  steps += [normalizers.Prepend(_SPACE)] if spec.add_dummy_prefix else []
  tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
  spaces = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
  tokenizer.decoder = decoders.Sequence([*spaces, *([decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else [])])
  control = [piece.piece for piece in proto.pieces if piece.type == piece.CONTROL]
  tokenizer.add_special_tokens([*control, *sentinels[::-1]])
  return tokenizer


def _merges(proto: sentencepiece_model_pb2.ModelProto) -> list[tuple[str, str]]:
  """Returns the merges that make each piece, the likeliest piece first."""
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED)}
  order = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  merges = []
  for piece, score in scores.items():
    halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
    pairs = [pair for pair in halves if pair[0] in scores and pair[1] in scores]
    merges += [(-score, order[left], order[right], left, right) for left, right in pairs]
  return [(left, right) for *_, left, right in sorted(merges)]
