"""The vocabulary of a Hugging Face folder, and the tokenizer files of one that is written.

What is read here is how large a vocabulary is, without TensorFlow; `t2t.data.vocabularies` makes ids of texts.
"""

from collections.abc import Mapping
import dataclasses
import json
import re
from typing import Any

from etils import epath
from sentencepiece import sentencepiece_model_pb2
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from t2t import UserError
from t2t.convert import vocabulary_files
from t2t.convert.families import Family, Settings
from t2t.convert.tensors import Foreign
from t2t.models.architecture import ARCHITECTURES

_SPACE = "▁"
_T5 = ("t5", "mt5")
_SETTINGS = "tokenizer_config.json"
# A SentencePiece model first: the tokenizer.json beside it is made from it, and T5's has the sentinels inside.
_FILES = ("spiece.model", "tokenizer.model", "tokenizer.json", "vocab.txt", "encoder.json", "vocab.json")
_SHIFTED = "sentencepiece.bpe.model"
_BYT5_EXTRA_IDS = 125


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """What a folder's tokenizer files say.

  spec: what `t2t.data.vocabularies.load` takes; "": there is none.
  extra_ids: sentinels behind its own ids.
  size: ids, sentinels included.
  is_shifted: whether there are pieces alone whose ids are not the model's (XLM-R's count four of its own first).
  """

  spec: str
  extra_ids: int
  size: int
  is_shifted: bool = False


# ---- From them -------------------------------------------------------------------------------------------------------


def vocabulary_in(folder: epath.Path, settings: Settings) -> Vocabulary:
  """The vocabulary in a Hugging Face folder.

  Args:
    folder: that of the checkpoint.
    settings: its config.json.

  Raises:
    UserError: a file that cannot be read.
  """
  tokenizer_settings = _json(folder / _SETTINGS) if (folder / _SETTINGS).exists() else {}
  if "ByT5Tokenizer" in (tokenizer_settings.get("tokenizer_class"), settings.get("tokenizer_class")):
    # As published its sentinels are the last bytes, and what its tokenizer calls <extra_id_0>, ... was not trained on.
    # Another number of those is what `_bytes` wrote.
    extra_ids = _num_listed(tokenizer_settings) or tokenizer_settings.get("extra_ids", _BYT5_EXTRA_IDS)
    extra_ids = 0 if extra_ids == _BYT5_EXTRA_IDS else extra_ids
    return Vocabulary("bytes", extra_ids, vocabulary_files.BYTES + extra_ids)
  path = next((folder / name for name in _FILES if (folder / name).exists()), None)
  if path is None:
    return Vocabulary("", 0, 0, is_shifted=(folder / _SHIFTED).exists())
  ids = _ids(path)
  size = max(ids.values(), default=-1) + 1
  if any(vocabulary_files.SENTINEL.fullmatch(piece) for piece in ids):
    return Vocabulary(str(path), 0, size)
  extra_ids = _num_listed(tokenizer_settings)
  if path.suffix == ".model" and not extra_ids:
    # Not said: a T5 has 100, if there are rows for them.
    usual = 100 if settings.get("model_type") in _T5 and size + 100 <= settings.get("vocab_size", 32_128) else 0
    extra_ids = tokenizer_settings.get("extra_ids", usual)
  return Vocabulary(str(path), extra_ids, size + extra_ids)


def _num_listed(tokenizer_settings: Mapping[str, Any]) -> int:
  """How many sentinels a tokenizer_config.json adds; where they stand depends on the version of transformers."""
  added = tokenizer_settings.get("added_tokens_decoder") or {}
  listed = {str(token["content"]) for token in added.values()}
  for key in ("additional_special_tokens", "extra_special_tokens"):
    listed |= {str(token) for token in tokenizer_settings.get(key) or []}
  return sum(vocabulary_files.SENTINEL.fullmatch(token) is not None for token in listed)


def _ids(path: epath.Path) -> dict[str, int]:
  try:
    return vocabulary_files.ids_of(path)
  except Exception as error:  # each library raises something else
    if path.suffix == ".model":
      raise UserError(f"{path}: not a SentencePiece model ({error})") from error
    if path.name == "tokenizer.json":
      raise UserError(f"{path}: tokenizers {tokenizers.__version__} cannot read it: {error}") from error
    raise UserError(f"{path}: cannot be read as {path.suffix[1:].upper()} ({error})") from error


def _json(path: epath.Path) -> dict[str, Any]:
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise UserError(f"{path}: cannot be read as JSON ({error})") from error


def check(vocabulary: Vocabulary, rows: int, named: epath.Path) -> list[str]:
  """What is to be told of a vocabulary and an embedding of so many rows.

  Raises:
    UserError: there are ids without a row.
  """
  if vocabulary.is_shifted:
    return [
      f"the ids of {_SHIFTED} are not the model's, which count XLM-R's own four first: t2t reads them from a"
      " tokenizer.json, as transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) writes it; give that"
      " with --vocabulary"
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
  return [f"{text}: the last {padding:,} rows are padding, and are kept as they are" if padding else text]


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
  from t2t.data import vocabularies

  vocabulary = vocabularies.load(foreign.vocabulary, extra_ids=foreign.extra_ids)
  vocabularies.check(vocabulary, foreign.model.vocab_size)
  ids = {"pad_token_id": vocabulary.pad_id, "eos_token_id": vocabulary.eos_id}
  if foreign.model.kind.reads_apart:
    ids["decoder_start_token_id"] = vocabularies.bos_id(vocabulary)
  elif foreign.model.kind.continues:
    ids["bos_token_id"] = vocabularies.bos_id(vocabulary)
  else:
    ends = {"cls_token_id": vocabularies.cls_id(vocabulary), "sep_token_id": vocabularies.sep_id(vocabulary)}
    ids |= {name: end for name, end in ends.items() if end is not None}
  sentinels = [f"<extra_id_{i}>" for i in range(foreign.extra_ids)]
  if foreign.vocabulary == "bytes":
    return _bytes(sentinels, ids)
  path = epath.Path(foreign.vocabulary)
  texts = vocabularies.token_texts(vocabulary)
  special = {f"{kind}_token": texts[ids[f"{kind}_token_id"]] for kind in ("pad", "eos") if ids[f"{kind}_token_id"] >= 0}
  if path.suffix == ".model":
    return _pieces(path, family, sentinels, ids, special)
  return _subwords({each.name: each.read_bytes() for each in vocabulary.files}, family, sentinels, ids, special)


# Any tokenizer.json.  Token types, which it would make, only BERT's models take.
_FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}


def _settings_file(**settings: Any) -> dict[str, bytes]:
  return {_SETTINGS: (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}


def _bytes(sentinels: list[str], ids: dict[str, int]) -> Files:
  notes = []
  if sentinels:
    notes = [
      f"the {len(sentinels)} sentinels count down from the last id; ByT5's tokenizer of transformers counts its"
      " <extra_id_0>, ... up from 259: write ids, not names"
    ]
  return Files(_settings_file(tokenizer_class="ByT5Tokenizer", extra_ids=len(sentinels)), ids, notes)


def _subwords(
  found: Mapping[str, bytes], family: Family, sentinels: list[str], ids: dict[str, int], special: Mapping[str, str]
) -> Files:
  content = dict(found)
  own = json.loads(content.pop(_SETTINGS, b"{}"))
  # As transformers calls them.
  renamed = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
  ends = (*renamed, "vocab.json", "merges.txt")
  named = {}
  for name, value in content.items():
    end = next((end for end in ends if name.endswith(end)), name)
    named[renamed.get(end, end)] = value
  lists = [value.decode() for name, value in named.items() if name.endswith(".txt") and name != "merges.txt"]
  if lists:
    # Theirs makes all letters small unless it is told.  Told from the pieces as t2t.data does, which loads TensorFlow.
    pieces = (piece for each in lists for piece in each.split("\n") if not re.fullmatch(r"\[.+\]", piece))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": all(piece == piece.lower() for piece in pieces)}
  elif "vocab.json" in named:
    settings = {
      "tokenizer_class": {"roberta": "RobertaTokenizer", "bart": "BartTokenizer"}.get(
        family.model_type, "GPT2Tokenizer"
      )
    }
  else:
    settings = dict(_FAST)
  settings |= dict(special) | own
  if sentinels:
    # Behind the file's own ids in this order: the last id is <extra_id_0>.
    settings["additional_special_tokens"] = sentinels[::-1]
  return Files(named | _settings_file(**settings), ids)


def _pieces(
  path: epath.Path, family: Family, sentinels: list[str], ids: dict[str, int], special: Mapping[str, str]
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
  settings = _FAST | ({"additional_special_tokens": sentinels[::-1]} if sentinels else {})
  content = {"spiece.model": path.read_bytes(), "tokenizer.json": _fast(proto, sentinels, family).to_str().encode()}
  return Files(content | _settings_file(**settings, **special), ids)


def _fast(proto: sentencepiece_model_pb2.ModelProto, sentinels: list[str], family: Family) -> tokenizers.Tokenizer:
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
  # As the model was trained: what an encoder reads ends with EOS, what a decoder reads starts with BOS.
  kind = ARCHITECTURES[family.fields["architecture"]]
  if kind.reads_apart:
    tokenizer.post_processor = _template("$A {}", proto.pieces[trained.eos_id].piece, trained.eos_id)
  elif kind.continues and trained.bos_id >= 0:
    tokenizer.post_processor = _template("{} $A", proto.pieces[trained.bos_id].piece, trained.bos_id)
  return tokenizer


def _template(template: str, piece: str, piece_id: int) -> processors.TemplateProcessing:
  return processors.TemplateProcessing(single=template.format(piece), special_tokens=[(piece, piece_id)])


def _merges(proto: sentencepiece_model_pb2.ModelProto) -> list[tuple[str, str]]:
  """The pairs of pieces that make a piece, the likeliest piece first."""
  scores = {piece.piece: piece.score for piece in proto.pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED)}
  order = {piece.piece: i for i, piece in enumerate(proto.pieces)}
  found = []
  for piece, score in scores.items():
    halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
    pairs = [pair for pair in halves if pair[0] in scores and pair[1] in scores]
    found += [(-score, order[left], order[right], left, right) for left, right in pairs]
  return [(left, right) for *_, left, right in sorted(found)]
