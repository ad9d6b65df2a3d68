"""Loading and checking vocabularies, and special ids."""

import pathlib

from etils import epath
import folders
import numpy as np
import pytest
import sentencepiece
import tokenizers

from t2t import UserError
from t2t.data import vocabularies
from t2t.storage import vocabulary_files

TOKENIZERS = folders.SHARED / "data" / "tokenizers"
TEXT = [f"the quick brown fox number {i} jumps over {i * 7} lazy dogs in the garden" for i in range(300)]


def shared(name):
  path = TOKENIZERS / name
  if not path.exists():
    pytest.skip(f"{path} is not there")
  return str(path)


def trained(tmp_path, **options):
  """Trains a SentencePiece model with other settings."""
  prefix = tmp_path / "other"
  options = {"vocab_size": 60} | options
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT), model_prefix=str(prefix), minloglevel=2, hard_vocab_limit=False, **options
  )
  return f"{prefix}.model"


def test_sentinels_count_down_from_the_last_id():
  """<extra_id_0> is T5's 32,099, and text and ids agree."""
  vocabulary = vocabularies.load(shared("t5_spiece/spiece.model"), extra_ids=100)
  assert vocabulary.vocab_size == 32_100
  assert vocabularies.sentinel_ids(vocabulary, 3) == [32099, 32098, 32097]
  assert vocabulary.decode([32099]) == "<extra_id_0>" and vocabulary.encode("<extra_id_1>") == [32098]
  assert vocabulary.encode("Hello world") == [8774, 296]
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)


def test_bytes():
  vocabulary = vocabularies.load("bytes", extra_ids=100)
  assert vocabulary.encode("ab") == [100, 101]
  assert vocabularies.sentinel_ids(vocabulary, 1) == [358]


def test_bytes_alone_take_their_sentinels_from_the_last_ids():
  """ByT5 adds no ids: its 100 sentinels are the last byte ids, from 258 down."""
  vocabulary = vocabularies.load("bytes", extra_ids=0)
  assert vocabularies.num_sentinels(vocabulary) == 100
  assert vocabularies.sentinel_ids(vocabulary, 2) == [258, 257]


def test_more_sentinels_than_there_are():
  with pytest.raises(UserError, match="3 sentinels are needed, but the vocabulary has 2"):
    vocabularies.sentinel_ids(vocabularies.load("bytes", extra_ids=2), 3)


def test_an_id_beyond_the_embedding():
  with pytest.raises(UserError, match="config.model.vocab_size=358 is too small.*358.*config.model.vocab_size=384"):
    vocabularies.check(vocabularies.load("bytes", extra_ids=100), 358)
  vocabularies.check(vocabularies.load("bytes", extra_ids=100), 359)


def test_files_that_are_no_vocabulary(tmp_path):
  with pytest.raises(UserError, match="nowhere.model: no such file"):
    vocabularies.load(str(tmp_path / "nowhere.model"))
  with pytest.raises(
    UserError, match=r"this folder contains no vocabulary; give a folder with one of \*.model, tokenizer.json, vocab"
  ):
    vocabularies.load(str(tmp_path))
  (tmp_path / "text.model").write_text("not a model")
  with pytest.raises(UserError, match="text.model is not a SentencePiece model"):
    vocabularies.load(str(tmp_path / "text.model"))
  model = pathlib.Path(trained(tmp_path))
  model.write_bytes(model.read_bytes().replace("▁".encode(), b"\xffaa", 1))  # a token that is not UTF-8
  with pytest.raises(UserError, match="other.model is not a SentencePiece model"):
    vocabularies.load(str(model))
  with pytest.raises(UserError, match='config.data.vocabulary is empty: give "bytes"'):
    vocabularies.load("")


def test_a_model_with_sentinels_inside():
  """A trap: sentinels in the model, and added ones after them."""
  path = shared("nanodo_cc_all.32000.100extra_with_bos/sentencepiece.model")
  with pytest.raises(UserError, match="already contains 100 sentinels"):
    vocabularies.load(path)


def test_a_folder_holds_one_vocabulary(tmp_path):
  """A SentencePiece model is preferred to the files that Hugging Face converts from it."""
  path = trained(tmp_path, pad_id=0, unk_id=1, eos_id=2, bos_id=-1)
  (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[SEP]\na\n")
  assert vocabularies.load(str(tmp_path)) == vocabularies.load(path)
  pathlib.Path(path).rename(tmp_path / "one.model")
  (tmp_path / "two.model").write_bytes((tmp_path / "one.model").read_bytes())
  with pytest.raises(UserError, match=r"contains 2 files \*.model; give one of these files, for example .*one.model"):
    vocabularies.load(str(tmp_path))
  for name in ("one.model", "two.model"):
    (tmp_path / name).unlink()
  assert vocabularies.load(str(tmp_path), extra_ids=0).vocab_size == 4


def test_a_tokenizer_that_makes_small_letters_goes_before_its_model(tmp_path):
  """The tokenizer.json is preferred for ALBERT; not for others, nor for XLM-R, whose ids are not the model's."""
  trained(tmp_path, pad_id=0, unk_id=1, eos_id=2, bos_id=-1)
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[SEP]": 2, "a": 3}, "[UNK]"))
  found = lambda: [path.name for path in vocabulary_files.found_in(epath.Path(tmp_path))]
  made.save(str(tmp_path / "tokenizer.json"))
  assert found() == ["other.model"]
  for normalizer in (tokenizers.normalizers.Lowercase(), tokenizers.normalizers.BertNormalizer(lowercase=True)):
    made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFKD(), normalizer])
    made.save(str(tmp_path / "tokenizer.json"))
    assert found() == ["tokenizer.json"]
    assert vocabularies.load(str(tmp_path), extra_ids=0).encode("A") == [3]
  (tmp_path / "tokenizer.json").unlink()
  (tmp_path / "other.model").rename(tmp_path / vocabulary_files.SHIFTED)
  assert found() == []


def test_a_model_that_needs_no_pad(tmp_path):
  """Llama's models: id 0 is unknown, or a control token, and also padding."""
  for i, options in enumerate(({}, {"byte_fallback": True}, {"unk_id": 2, "bos_id": 0, "eos_id": 1})):
    (tmp_path / str(i)).mkdir()
    path = trained(tmp_path / str(i), pad_id=-1, vocab_size=320, **options)
    vocabulary = vocabularies.load(path, extra_ids=2)
    assert vocabularies.pads_with_zero(vocabulary)
    assert vocabularies.bos_id(vocabulary) == (0 if "bos_id" in options else 1)
    assert 0 not in vocabularies.ordinary_ids(vocabulary)


def test_a_model_without_pad_or_eos(tmp_path):
  with pytest.raises(UserError, match='has no pad token and id 0 is ".*", but padding must be id 0'):
    vocabularies.load(trained(tmp_path, pad_id=-1, unk_id=5, bos_id=-1, eos_id=6))
  with pytest.raises(UserError, match="pads with id 3"):
    vocabularies.load(trained(tmp_path, pad_id=3))
  with pytest.raises(UserError, match="has no EOS token"):
    vocabularies.load(trained(tmp_path, pad_id=0, unk_id=1, eos_id=-1, bos_id=-1))


# ---- Special ids -----------------------------------------------------------------------------------------------------


def bert(folder):
  """A WordPiece vocabulary: 12 tokens and 2 sentinels."""
  pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", ".", "!", "'"]
  (folder / "vocab.txt").write_text("\n".join(pieces))
  return vocabularies.load(str(folder / "vocab.txt"), extra_ids=2)


def texts_where(vocabulary, chosen):
  texts = vocabularies.token_texts(vocabulary)
  return [texts[i] for i in np.flatnonzero(chosen)]


def test_what_masks_begins_and_separates(tmp_path):
  t5 = vocabularies.load(trained(tmp_path, pad_id=0, eos_id=1, unk_id=2, bos_id=-1), extra_ids=3)
  masked = vocabularies.load(
    trained(tmp_path / "..", pad_id=0, eos_id=1, unk_id=2, bos_id=3, user_defined_symbols=["[MASK]", "[CLS]"])
  )
  of = lambda v: [f(v) for f in (vocabularies.mask_id, vocabularies.bos_id, vocabularies.cls_id, vocabularies.sep_id)]
  assert of(t5) == [t5.vocab_size - 1, 0, None, None]
  assert of(masked) == [4, 3, 5, None]
  assert of(bert(tmp_path)) == [5, 0, 3, 4]
  assert of(vocabularies.load("bytes", extra_ids=0)) == [258, 0, None, None]
  with pytest.raises(UserError, match=r"no \[MASK\] token, no <mask> token and no sentinels.*config.data.extra_ids=1"):
    vocabularies.mask_id(vocabularies.load(t5.sentencepiece_model_file, extra_ids=0))


def test_what_gpt2_pads_and_begins_with():
  """GPT-2's id 0 is an exclamation mark; its only special token is <|endoftext|>."""
  vocabulary = vocabularies.load(shared("gpt2"), extra_ids=1)
  assert not vocabularies.pads_with_zero(vocabulary) and vocabularies.token_texts(vocabulary)[0] == "!"
  assert vocabularies.bos_id(vocabulary) == vocabulary.pad_id == 50256
  assert vocabularies.mask_id(vocabulary) == 50257
  assert len(vocabularies.ordinary_ids(vocabulary)) == 50256


def byte_level(folder):
  """A byte-level BPE."""
  made = tokenizers.ByteLevelBPETokenizer()
  made.train_from_iterator(TEXT, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
  made.save_model(str(folder))
  return vocabularies.load(str(folder), extra_ids=1)


@pytest.mark.parametrize("kind", ["sentencepiece", "byte_fallback", "byte_level", "bytes"])
def test_bytes_of_tokens_are_those_of_the_text(kind, tmp_path):
  """SentencePiece adds a space before the text; EOS and sentinels have no bytes."""
  made = {
    "sentencepiece": lambda: vocabularies.load(trained(tmp_path), extra_ids=2),
    "byte_fallback": lambda: vocabularies.load(
      trained(tmp_path, vocab_size=320, model_type="bpe", byte_fallback=True), extra_ids=2
    ),
    "byte_level": lambda: byte_level(tmp_path),
    "bytes": lambda: vocabularies.load("bytes", extra_ids=2),
  }
  vocabulary, text = made[kind](), "the quick fox" if kind == "sentencepiece" else "the quïck fox"
  sizes, added = vocabularies.token_bytes(vocabulary), kind in ("sentencepiece", "byte_fallback")
  assert sizes[vocabulary.encode(text)].sum() == len(text.encode()) + added
  special = [vocabulary.eos_id, *vocabularies.sentinel_ids(vocabulary, 1)]
  assert len(sizes) == vocabulary.vocab_size and not sizes[special].any()


def test_wordpiece_has_no_bytes(tmp_path):
  assert vocabularies.token_bytes(bert(tmp_path)) is None


def test_words_and_sentences_of_wordpiece(tmp_path):
  vocabulary = bert(tmp_path)
  assert vocabularies.token_texts(vocabulary)[5:] == [
    "[MASK]", " the", " cat", "s", " .", " !", " '", "<extra_id_1>", "<extra_id_0>"
  ]  # fmt: skip
  assert np.flatnonzero(~vocabularies.starts_word(vocabulary)).tolist() == [8]
  assert np.flatnonzero(vocabularies.ends_sentence(vocabulary)).tolist() == [9, 10]
  assert vocabularies.ordinary_ids(vocabulary).tolist() == [6, 7, 8, 9, 10, 11]


def test_words_and_sentences_of_bytes():
  vocabulary = vocabularies.load("bytes", extra_ids=1)
  starts = texts_where(vocabulary, vocabularies.starts_word(vocabulary))
  assert [text for text in starts if not text.isspace()] == ["<pad>", "</s>", "<unk>", "<extra_id_0>"]
  assert texts_where(vocabulary, vocabularies.ends_sentence(vocabulary)) == ["\n", "!", ".", "?"]
  assert vocabularies.ordinary_ids(vocabulary).tolist() == list(range(3, 259))


@pytest.mark.parametrize("name", ["t5_spiece/spiece.model", "gpt2/encoder.json", "bert_uncased/vocab.txt"])
def test_words_of_a_text(name):
  """Word starts split a sentence into words; in BERT's vocabulary also punctuation."""
  vocabulary = vocabularies.load(shared(name))
  texts, starts = vocabularies.token_texts(vocabulary), vocabularies.starts_word(vocabulary)
  words = []
  for i in vocabulary.encode("Unbelievably, antidisestablishmentarianism <extra_id_0> perseveres in 1976."):
    words.append(texts[i]) if starts[i] or not words else words.append(words.pop() + texts[i])
  joined = " ".join(word.strip() for word in words).lower()
  if name.startswith("bert"):
    assert joined == "unbelievably , antidisestablishmentarianism <extra_id_0> perseveres in 1976 ."
  else:
    assert joined == "unbelievably, antidisestablishmentarianism <extra_id_0> perseveres in 1976."
  assert vocabularies.ends_sentence(vocabulary)[i] and not starts[i] or name.startswith("bert")
