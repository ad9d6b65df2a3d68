"""Decoded text equals `decode` of the `tokenizers` library, for each kind of tokenizer.json and decoder.

The only intended difference: t2t decodes up to the first EOS, as seqio's vocabularies do. Texts that spell EOS are
encoded as text here, as t2t encodes all text.
"""

import json
import random

import parity  # noqa: F401  skips this file where torch and transformers are absent
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from t2t.data import vocabularies

TEXT = [
  f"the number {i} of things, in naïve 日本語 text isn't right . do not go ! \U0001f600 \n next\tline"
  for i in range(200)
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ODD = [
  *("the", "number", " ", "  ", "\t", "\n", "日本語", "naïve", "isn't", "do not", " .", ".", "!", "?", "'s", "'ve"),
  *("\u3042", "\U0001f600", "\U0001f469\u200d\U0001f467", "\x00", "\x07", "\ufffd", "é", "e\u0301", "\u00a0", "\u200b"),
  *("▁", "Ġ", "##s", *SPECIAL, *BERT, "<extra_id_0>", "<0x0A>", "<|endoftext|>", "ＦＵＬＬ", "［MASK］", "ﬁ", "</w>"),
  *("<think>", "foo", "a" * 30, "ABC", "\r\n", "𝔘", "\u2028", "- ", '"', "( x )"),
]


def bpe(decoder, *, normalizer=None, splits=None, falls_back=False, special=SPECIAL, **options):
  made = tokenizers.Tokenizer(models.BPE(unk_token=next(x for x in special if "unk" in x.lower()), **options))
  if normalizer is not None:
    made.normalizer = normalizer
  if splits is not None:
    made.pre_tokenizer = splits
  alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(splits, pre_tokenizers.ByteLevel) else []
  suffix = options.get("end_of_word_suffix")
  trainer = trainers.BpeTrainer(
    vocab_size=500,
    special_tokens=special,
    show_progress=False,
    initial_alphabet=alphabet,
    **({"end_of_word_suffix": suffix} if suffix else {}),
  )
  made.train_from_iterator(TEXT, trainer)
  if falls_back:
    content = json.loads(made.to_str())
    pieces = content["model"]["vocab"]
    pieces |= {f"<0x{byte:02X}>": len(pieces) + byte for byte in range(256)}
    content["model"]["byte_fallback"] = True
    made = tokenizers.Tokenizer.from_str(json.dumps(content))
  made.decoder = decoder
  return made


def wordpiece(decoder, *, lowercase=True):
  made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=300, special_tokens=BERT, show_progress=False))
  if decoder is not None:
    made.decoder = decoder
  return made


def unigram(*, normalizer=None, splits=None, special=SPECIAL, added=()):
  made = tokenizers.Tokenizer(models.Unigram())
  if normalizer is not None:
    made.normalizer = normalizer
  made.pre_tokenizer = splits or pre_tokenizers.Metaspace()
  trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
  made.train_from_iterator(TEXT, trainer)
  made.decoder = decoders.Metaspace()
  made.add_tokens(list(added))
  return made


def word_level(decoder=None):
  made = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
  made.pre_tokenizer = pre_tokenizers.Whitespace()
  made.train_from_iterator(TEXT, trainers.WordLevelTrainer(special_tokens=BERT, show_progress=False))
  if decoder is not None:
    made.decoder = decoder
  return made


def metaspace(scheme):
  return bpe(decoders.Metaspace(prepend_scheme=scheme), splits=pre_tokenizers.Metaspace(prepend_scheme=scheme))


def of_bytes(**options):
  return bpe(decoders.ByteLevel(), splits=pre_tokenizers.ByteLevel(add_prefix_space=False), **options)


_PLAIN = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
_PREPENDED = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
_SPACES = normalizers.Replace(" ", "▁")
_WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])

KINDS = {
  "gpt2": of_bytes,
  "gpt2-space": lambda: bpe(decoders.ByteLevel(), splits=pre_tokenizers.ByteLevel(add_prefix_space=True)),
  "modern_bert": lambda: of_bytes(special=["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]),
  "llama2": lambda: bpe(
    decoders.Sequence([*_PLAIN, decoders.Strip(" ", 1, 0)]), normalizer=_PREPENDED, falls_back=True, fuse_unk=True
  ),
  "gemma": lambda: bpe(decoders.Sequence(_PLAIN), normalizer=_SPACES, falls_back=True),
  "fused": lambda: bpe(decoders.Sequence([_PLAIN[0], decoders.Fuse()]), normalizer=_SPACES),
  "metaspace": lambda: metaspace("always"),
  "metaspace-first": lambda: metaspace("first"),
  "metaspace-never": lambda: metaspace("never"),
  "wordpiece": lambda: wordpiece(decoders.WordPiece()),
  "wordpiece-as-it-is": lambda: wordpiece(decoders.WordPiece(cleanup=False)),
  "wordpiece-cased": lambda: wordpiece(decoders.WordPiece(), lowercase=False),
  "wordpiece-without": lambda: wordpiece(None),
  "unigram": unigram,
  "unigram-nfkc": lambda: unigram(normalizer=normalizers.NFKC(), splits=_WORDS),
  "albert": lambda: unigram(special=["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
  "unigram-added": lambda: unigram(added=("<think>", "foo", "\n\n")),
  "suffix": lambda: bpe(decoders.BPEDecoder(), splits=pre_tokenizers.Whitespace(), end_of_word_suffix="</w>"),
  "word-level": word_level,
  "ctc": lambda: word_level(decoders.CTC()),
}


def odd_texts(number=500):
  drawn = random.Random(0)
  return ["".join(drawn.choice(ODD) for _ in range(drawn.randint(0, 8))) for _ in range(number)]


@pytest.fixture(scope="module", params=list(KINDS))
def pair(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  theirs = KINDS[request.param]()
  theirs.save(str(folder / "tokenizer.json"))
  return theirs, vocabularies.load(str(folder), extra_ids=0)


def test_decoded_text_is_the_librarys(pair):
  """Difficult texts, ids of the published tokenizer up to EOS, and transformers' decoding."""
  theirs, ours = pair
  wrapped = PreTrainedTokenizerFast(tokenizer_object=theirs)
  for text in odd_texts():
    ids = vocabularies.encode_text(ours, text)
    assert ours.decode(ids) == theirs.decode(ids), text
    assert ours.decode(ids) == wrapped.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    published = theirs.encode(text, add_special_tokens=False).ids
    assert list(ours.encode(text)) == published
    written = published[: published.index(ours.eos_id)] if ours.eos_id in published else published
    assert ours.decode(published) == theirs.decode(written), text


def test_any_ids(pair):
  """Also parts of characters, and tokens in arbitrary order."""
  theirs, ours = pair
  drawn = random.Random(1)
  for _ in range(300):
    ids = [drawn.randrange(ours.vocab_size) for _ in range(drawn.randint(0, 12))]
    ids = [i for i in ids if i != ours.eos_id]
    assert ours.decode(ids) == theirs.decode(ids)


def test_letters_are_encoded_as_the_library_does_without_special_tokens(pair):
  """Equal to `encode_special_tokens`, unless the model has a token for the letters."""
  theirs, ours = pair
  theirs.encode_special_tokens = True
  try:
    special = set(ours.special_ids) - {ours.unk_id}
    for text in odd_texts():
      expected = theirs.encode(text, add_special_tokens=False).ids
      # An unknown character and the letters of the unknown token have the same id.
      if not set(expected) & special and "unk" not in text.lower():
        assert vocabularies.encode_text(ours, text) == expected
  finally:
    theirs.encode_special_tokens = False
