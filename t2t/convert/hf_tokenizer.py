"""The vocabulary of a Hugging Face folder, and the tokenizer files of one that is written.

What is read here is how large a vocabulary is, without TensorFlow; `t2t.data.vocabularies` makes ids of texts.
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
_LENGTH, _NO_LENGTH = "model_max_length", 10**9  # transformers writes 10^30 where there is none


@dataclasses.dataclass(frozen=True)
class HfVocabulary:
  """What a folder's tokenizer files say.

  spec: what `t2t.data.vocabularies.load` takes; "": there is none.
  extra_ids: sentinels behind its own ids.
  size: ids, sentinels included.
  is_shifted: whether there are pieces alone whose ids are not the model's (XLM-R's count four of its own first).
  keeps_case: whether it has only small letters, as ALBERT's, and does not make them of capitals.
  """

  spec: str
  extra_ids: int
  size: int
  is_shifted: bool = False
  keeps_case: bool = False


# ---- From them -------------------------------------------------------------------------------------------------------


def vocabulary_in(folder: epath.Path, settings: Settings) -> HfVocabulary:
  """The vocabulary in a Hugging Face folder.

  Args:
    folder: that of the checkpoint.
    settings: its config.json.

  Raises:
    UserError: a file that cannot be read.
  """
  path = folder / vocabulary_files.SETTINGS
  tokenizer_settings = safe_read.read_json(path) if path.exists() else {}
  if "ByT5Tokenizer" in (tokenizer_settings.get("tokenizer_class"), settings.get("tokenizer_class")):
    # As published its sentinels are the last bytes, and what its tokenizer calls <extra_id_0>, ... was not trained on.
    # Another number of those is what `_bytes` wrote.
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
    # Not said: a T5 has 100, if there are rows for them.
    usual = 100 if settings.get("model_type") in _T5 and size + 100 <= settings.get("vocab_size", 32_128) else 0
    extra_ids = _extra_ids(tokenizer_settings, settings_path, usual)
  alone = path.suffix == ".model" and not (folder / "tokenizer.json").exists()
  keeps_case = alone and settings.get("model_type") == "albert" and tokenizer_settings.get("do_lower_case", True)
  return HfVocabulary(str(path), extra_ids, size + extra_ids, keeps_case=keeps_case)


def longest_in(folder: epath.Path) -> int:
  """Returns the number of tokens that a folder's tokenizer cuts texts to; 0 if it names none."""
  path = folder / vocabulary_files.SETTINGS
  length = safe_read.read_json(path).get(_LENGTH) if path.exists() else None
  return length if type(length) is int and 0 < length <= _NO_LENGTH else 0


_BY_JSON = (
  "t2t reads text as they do from a tokenizer.json, which transformers'"
  " AutoTokenizer.from_pretrained(...).save_pretrained(...) writes; give that with --vocabulary"
)


def _extra_ids(tokenizer_settings: Mapping[str, Any], path: epath.Path, usual: int) -> int:
  extra_ids = tokenizer_settings.get("extra_ids", usual)
  if type(extra_ids) is not int or not 0 <= extra_ids <= _MOST_EXTRA_IDS:
    raise UserError(
      f"{path}: extra_ids is {str(extra_ids)[:40]!r}; it must be a number of sentinels, as {_BYT5_EXTRA_IDS}"
    )
  return extra_ids


def _num_listed(tokenizer_settings: Mapping[str, Any], path: epath.Path) -> int:
  """How many sentinels a tokenizer_config.json adds; where they stand depends on the version of transformers."""
  try:
    added = tokenizer_settings.get("added_tokens_decoder") or {}
    listed = {str(token["content"]) for token in added.values()}
    for key in ("additional_special_tokens", "extra_special_tokens"):
      listed |= {str(token) for token in tokenizer_settings.get(key) or []}
  except (TypeError, AttributeError, LookupError) as error:
    raise UserError(
      f"{path}: its added tokens are not as transformers writes them ({error!r}); copy it again"
    ) from error
  return sum(vocabulary_files.SENTINEL.fullmatch(token) is not None for token in listed)


def _ids(path: epath.Path) -> dict[str, int]:
  try:
    return vocabulary_files.ids_of(path)
  except UserError:
    raise
  except Exception as error:  # each library raises something else
    if path.suffix == ".model":
      raise UserError(f"{path}: not a SentencePiece model ({error})") from error
    if path.name == "tokenizer.json":
      raise UserError(f"{path}: tokenizers {tokenizers.__version__} cannot read it: {error}") from error
    raise UserError(f"{path}: cannot be read as {path.suffix[1:].upper()} ({error})") from error


def check(vocabulary: HfVocabulary, rows: int, named: epath.Path) -> list[str]:
  """What is to be told of a vocabulary and an embedding of so many rows.

  Raises:
    UserError: there are ids without a row.
  """
  if vocabulary.is_shifted:
    return [
      f"the ids of {vocabulary_files.SHIFTED} are not the model's, which count XLM-R's own four first: {_BY_JSON}"
    ]
  if not vocabulary.spec:
    return ["no vocabulary lies beside it: t2t needs one to read text; give it with --vocabulary"]
  if vocabulary.size > rows:
    raise UserError(
      f"{named}: its tokenizer does not match its embedding: {vocabulary.size:,} ids ({vocabulary.extra_ids} sentinels"
      f" included) in {vocabulary.spec}, {rows:,} rows"
    )
  text = f"vocabulary: {vocabulary.size:,} ids ({vocabulary.extra_ids} sentinels included), {rows:,} rows"
  padding = rows - vocabulary.size
  notes = [f"{text}: the last {padding:,} rows are padding, and are kept as they are" if padding else text]
  if vocabulary.keeps_case:
    notes.append(
      f"{vocabulary.spec} knows no capitals, of which their AlbertTokenizer makes small letters first: {_BY_JSON}"
    )
  return notes


# ---- To them ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Files:
  """What is written beside the weights.

  content: name of a file -> its bytes.
  ids: for config.json and generation_config.json.
  notes: what the user must be told.
  """

  content: dict[str, bytes]
  ids: dict[str, int]
  notes: list[str] = dataclasses.field(default_factory=list)


def files(foreign: Foreign, family: Family) -> Files:
  """The tokenizer files of a t2t model's vocabulary, for transformers' AutoTokenizer.

  Raises:
    UserError: the vocabulary cannot be read, or is not one that the family can have.
  """
  if not foreign.vocabulary:
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1} if family.model_type in _T5 else {}
    return Files({}, ids, ["no vocabulary lies beside the checkpoint, so no tokenizer was written"])
  # TensorFlow is loaded only here, where a vocabulary is really read.
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
  if foreign.vocabulary == "bytes":
    return _bytes(sentinels, ids, mask_id, length, has_types=foreign.model.segment_types > 1)
  path = epath.Path(foreign.vocabulary)
  texts = vocabularies.token_texts(vocabulary)
  # A vocabulary without a mask of its own hides tokens by its first sentinel.
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
      f"what heads read starts with {begins}, and texts are parted by {texts[vocabulary.eos_id]}: write both before you"
      " give text to their tokenizer"
    )
  return tokenizer_files


def _longest(foreign: Foreign) -> dict[str, int]:
  """The number of tokens that a tokenizer cuts texts to: the model's positions, or the length of training texts."""
  model = foreign.model
  longest = model.max_length or foreign.lengths.get(
    "targets_length" if model.kind.is_decoder_only else "inputs_length", 0
  )
  return {_LENGTH: longest} if longest else {}


@dataclasses.dataclass(frozen=True)
class _Frame:
  """What stands around the texts that a model reads.

  ids: `t2t.data.special_tokens.Framing`.
  has_types: whether the model tells the second text from the first.
  """

  ids: Any
  has_types: bool

  @property
  def features(self) -> dict[str, list[str]]:
    """What a tokenizer gives: token types only where the model takes them."""
    return {"model_input_names": ["input_ids", *(["token_type_ids"] if self.has_types else []), "attention_mask"]}

  def put_around(self, tokenizer: tokenizers.Tokenizer) -> None:
    """Has a tokenizer do so of one text and of two."""
    named = lambda ids, kind: [f"{tokenizer.id_to_token(i)}:{kind}" for i in ids]
    last = int(self.has_types)
    begin, between, end = named(self.ids.begin, 0), named(self.ids.between, 0), self.ids.end
    tokenizer.post_processor = processors.TemplateProcessing(
      single=[*begin, "$A:0", *named(end, 0)],
      pair=[*begin, "$A:0", *between, f"$B:{last}", *named(end, last)],
      special_tokens=[(tokenizer.id_to_token(i), i) for i in {*self.ids.begin, *self.ids.between, *self.ids.end}],
    )


# Any tokenizer.json.
_FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}


def _settings_file(**settings: Any) -> dict[str, bytes]:
  return {vocabulary_files.SETTINGS: (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _bytes(
  sentinels: list[str], ids: dict[str, int], mask_id: int | None, length: Mapping[str, int], *, has_types: bool
) -> Files:
  settings: dict[str, Any] = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": len(sentinels), **length}
  notes = []
  if mask_id is not None:
    # Theirs counts sentinels up; of bytes alone the last is the mask, which no text in UTF-8 has.  Each has its id
    # here, for a token that is named as the mask would come before the others.
    settings["mask_token"] = f"<extra_id_{len(sentinels) - 1}>" if sentinels else "<mask>"
    added = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    names = {mask_id + 1 - len(sentinels) + i: name for i, name in enumerate(sentinels)} or {mask_id: "<mask>"}
    settings["added_tokens_decoder"] = {str(i): {"content": name, **added} for i, name in names.items()}
  if sentinels:
    notes = [
      f"the {len(sentinels)} sentinels count down from the last id; ByT5's tokenizer of transformers counts its"
      " <extra_id_0>, ... up from 259: write ids, not names"
    ]
  if has_types:
    notes.append(
      "ByT5's tokenizer of transformers returns no token_type_ids: of a pair of texts, give 1 for each token of the"
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
  """Of a `t2t.data.vocabularies.subwords.SubwordVocabulary`."""
  content = {file.name: file.read_bytes() for file in vocabulary.files}
  saved_settings = json.loads(content.pop(vocabulary_files.SETTINGS, b"{}"))
  # As transformers calls them.
  renamed = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
  ends = (*renamed, "vocab.json", "merges.txt")
  named = {}
  for name, value in content.items():
    end = next((end for end in ends if name.endswith(end)), name)
    named[renamed.get(end, end)] = value
  if "vocab.json" in named:
    classes = {"roberta": "RobertaTokenizer", "bart": "BartTokenizer"}
    settings = {"tokenizer_class": classes.get(family.model_type, "GPT2Tokenizer")}
    # Transformers 5 makes tokens without these of a vocab.json: RoBERTa's <mask> takes the space before it, too.
    if strips := _stripping(vocabulary.tokenizer):
      settings["added_tokens_decoder"] = strips
  else:
    tokenizer_json, settings = vocabulary.tokenizer.to_str(), _FAST | frame.features
    if any(name.endswith(".txt") for name in named):
      # Theirs makes all letters small unless it is told.
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
  if isinstance(
    saved_settings.get("extra_special_tokens"), list
  ):  # transformers 5 writes it so, and 4 does not read it
    saved_settings["additional_special_tokens"] = saved_settings.pop("extra_special_tokens")
  settings |= dict(special) | saved_settings
  if sentinels:
    # Behind the file's own ids in this order: the last id is <extra_id_0>.
    settings["additional_special_tokens"] = sentinels[::-1]
  return Files(named | _settings_file(**settings), ids)


def _stripping(tokenizer: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
  """The special tokens that take the spaces beside them, by id, as a tokenizer_config.json lists them."""
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
  # Behind the model's own ids in this order: the last id is <extra_id_0>.
  settings = _FAST | frame.features | ({"additional_special_tokens": sentinels[::-1]} if sentinels else {})
  tokenizer = _fast(proto, sentinels)
  # As the model was trained; a decoder without BOS in its vocabulary reads text as it is.
  if not ARCHITECTURES[family.fields["architecture"]].is_decoder_only or trained.bos_id >= 0:
    frame.put_around(tokenizer)
  content = {"spiece.model": path.read_bytes(), "tokenizer.json": tokenizer.to_str().encode()}
  return Files(content | _settings_file(**settings, **special), ids)


def _fast(proto: sentencepiece_model_pb2.ModelProto, sentinels: list[str]) -> tokenizers.Tokenizer:
  """A SentencePiece model as the library of tokenizers has it, which transformers reads as it is.

  Its own conversions leave out the first space of a text that starts with one.
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
  """The pairs of pieces that make a piece, the likeliest piece first."""
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED)}
  order = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  merges = []
  for piece, score in scores.items():
    halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
    pairs = [pair for pair in halves if pair[0] in scores and pair[1] in scores]
    merges += [(-score, order[left], order[right], left, right) for left, right in pairs]
  return [(left, right) for *_, left, right in sorted(merges)]
