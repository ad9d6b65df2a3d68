"""The tokenizer of an exported folder, loaded by AutoTokenizer, gives the ids of t2t's vocabulary.

Needs torch and transformers (tests/parity-requirements.txt).
"""

import dataclasses
import json
import pathlib

from etils import epath
import foreign
import numpy as np
import parity
from parity import transformers
import pytest
import sentencepiece
import seqio
import tokenizers

import t2t
from t2t.convert import huggingface
from t2t.data import head_examples, vocabularies, vocabulary_classes
from t2t.data.vocabularies import training
from t2t.models import presets
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.storage import vocabulary_files

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
SENTENCES = [
  "The quick brown fox jumps over the lazy dog.",
  "  leading, trailing and   many  spaces  ",
  "Tabs\tand\nline breaks\r\nin a text\n",
  "naïve café, Ωμέγα, Straße, İstanbul",
  "日本語のテキストと中文",
  "emoji 👩‍👩‍👧 🏳️‍🌈 and ⅷ ﬁ ＦＵＬＬ ½",
  "don't re-enter: 3.14e-10, $%^&*()_+ {[]}|\\~`",
  "ALL CAPS, MiXeD case; snake_case; CamelCase",
  "a\u0301 combining, zero\u200bwidth, no\u00a0break, soft\u00adhyphen",
  "",
]
TEXT = [f"{sentence} {number} times, and then some more words" for number in range(200) for sentence in SENTENCES]


def unigram(folder):
  return training.train_sentencepiece(TEXT, size=150, output_dir=folder, character_coverage=0.99)


def sentencepiece_model(prefix, **options):
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT), model_prefix=str(prefix), minloglevel=2, **options
  )
  return pathlib.Path(f"{prefix}.model")


def sentencepiece_bpe(folder):
  """A model like Llama 2's: byte tokens, <unk> 0, <s> 1, </s> 2."""
  return sentencepiece_model(
    folder / "tokenizer",
    model_type="bpe",
    vocab_size=500,
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
  )


def wordpiece(folder):
  trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
  trained.train_from_iterator(TEXT, vocab_size=300, show_progress=False)
  trained.save_model(str(folder))
  return folder / "vocab.txt"


def cased(folder):
  return training.train_wordpiece(TEXT, size=300, output_dir=folder, cased=True)


def albert(folder):
  """A model like ALBERT's: [CLS] and [SEP] are its BOS and EOS."""
  return sentencepiece_model(
    folder / "spiece",
    vocab_size=150,
    character_coverage=0.99,
    pad_id=0,
    unk_id=1,
    bos_id=2,
    eos_id=3,
    bos_piece="[CLS]",
    eos_piece="[SEP]",
    control_symbols="[MASK]",
  )


def albert_small(folder):
  """A model like the published ALBERT's: the tokenizer.json beside it lowercases."""
  albert(folder)
  transformers.AlbertTokenizer.from_pretrained(str(folder)).save_pretrained(folder)
  (found,) = vocabulary_files.found_in(epath.Path(folder))
  assert found.name == "tokenizer.json" and (folder / "spiece.model").exists()
  return found


def bert_json(folder):
  """A BERT tokenizer as saved by current transformers, in one file."""
  wordpiece(folder)
  transformers.BertTokenizer.from_pretrained(str(folder)).save_pretrained(folder / "saved")
  assert not (folder / "saved" / "vocab.txt").exists()
  return folder / "saved" / "tokenizer.json"


def byte_level(folder, *special):
  trained = tokenizers.ByteLevelBPETokenizer()
  trained.train_from_iterator(TEXT, vocab_size=400, special_tokens=list(special), show_progress=False)
  trained.save_model(str(folder))
  return folder / "vocab.json"


def gpt2(folder):
  return byte_level(folder, "<|endoftext|>")


def roberta(folder):
  return byte_level(folder, "<s>", "<pad>", "</s>", "<unk>", "<mask>")


def tokenizer_json(folder):
  """A byte-level tokenizer like Llama 3's, in one file."""
  trained = tokenizers.ByteLevelBPETokenizer()
  special = ["<|begin_of_text|>", "<|end_of_text|>"]
  trained.train_from_iterator(TEXT, vocab_size=400, special_tokens=special, show_progress=False)
  trained.save(str(folder / "tokenizer.json"))
  return folder / "tokenizer.json"


def modern_bert(folder):
  """A byte-level tokenizer like ModernBERT's, with BERT's special tokens."""
  trained = tokenizers.ByteLevelBPETokenizer()
  special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
  trained.train_from_iterator(TEXT, vocab_size=400, special_tokens=special, show_progress=False)
  trained.save(str(folder / "tokenizer.json"))
  return folder / "tokenizer.json"


def xlm_roberta(folder):
  """A model like XLM-R's: SentencePiece's ids plus one, after four ids known only to transformers."""
  sentencepiece_model(
    folder / "sentencepiece.bpe",
    vocab_size=150,
    character_coverage=0.99,
  )
  transformers.XLMRobertaTokenizer.from_pretrained(str(folder)).save_pretrained(folder / "saved")
  return folder / "saved" / "tokenizer.json"


T5, GPT2, LLAMA = presets.t5_1_1("small"), presets.gpt2("small"), presets.llama2("7b")
BERT, ROBERTA, MODERN_BERT = presets.bert("base"), presets.roberta("base"), presets.modern_bert("base")
# name -> (family, function or path of the vocabulary, sentinels)
CASES = {
  "t5": (T5, unigram, 100),
  "t5-published": (T5, SHARED / "t5_spiece" / "spiece.model", 100),
  "t5-bytes": (T5, "bytes", 0),
  "t5-bytes-sentinels": (T5, "bytes", 100),
  "t5-bpe": (T5, sentencepiece_bpe, 100),
  "gpt2": (GPT2, gpt2, 0),
  "gpt2-published": (GPT2, SHARED / "gpt2" / "encoder.json", 0),
  "gpt2-sentinels": (GPT2, gpt2, 10),
  "gpt2-unigram": (GPT2, unigram, 10),
  "llama2": (LLAMA, sentencepiece_bpe, 0),
  "llama3": (LLAMA, tokenizer_json, 0),
  "llama-unigram": (LLAMA, unigram, 100),
  "bert": (BERT, wordpiece, 0),
  "bert-published": (BERT, SHARED / "bert_uncased" / "vocab.txt", 0),
  "bert-unigram": (BERT, unigram, 10),
  "bert-bytes": (BERT, "bytes", 0),
  "bert-bytes-sentinels": (BERT, "bytes", 10),
  "bert-cased": (BERT, cased, 0),
  "bert-json": (BERT, bert_json, 0),
  "bert-sentinels": (BERT, wordpiece, 3),
  "albert": (presets.albert("base") | dict(embedding_dim=4), albert, 0),
  "albert-small": (presets.albert("base") | dict(embedding_dim=4), albert_small, 0),
  "distilbert": (BERT | dict(segment_types=0), wordpiece, 0),
  "roberta": (ROBERTA, roberta, 0),
  "roberta-unigram": (ROBERTA, unigram, 10),
  "roberta-bytes": (ROBERTA, "bytes", 0),
  "xlm-roberta": (ROBERTA, xlm_roberta, 0),
  "distilbert-unigram": (BERT | dict(segment_types=0), unigram, 10),
  "modern_bert": (MODERN_BERT, modern_bert, 0),
  "modern_bert-unigram": (MODERN_BERT, unigram, 100),
  "modern_bert-wordpiece": (MODERN_BERT, wordpiece, 0),
}
POSITIONS, LENGTHS = 12, {"inputs_length": 17, "targets_length": 19}
TINY = dict(embed_dim=6, num_heads=3, head_dim=2, mlp_dim=4, dtype="float32")


def exported(name, folder, *, more_rows=7):
  """Exports a small model of the family with that vocabulary; returns both.

  more_rows: embedding rows beyond the vocabulary's ids, as in published models.
  """
  fields, made, extra_ids = CASES[name]
  spec = made
  if callable(made):
    (folder / "files").mkdir()
    spec = made(folder / "files")
  elif spec != "bytes" and not spec.exists():
    pytest.skip(f"{spec} is not there")
  vocabulary = vocabularies.load(str(spec), extra_ids=extra_ids)
  layers = {key: 1 for key in ("num_encoder_layers", "num_decoder_layers") if fields[key]}
  learned = dict(max_length=POSITIONS) if fields["positions"] == "learned" else {}
  rows = dict(vocab_size=vocabulary.vocab_size + more_rows)
  config = TransformerConfig(**(fields | TINY | layers | learned | rows))
  made = foreign.in_memory(config, foreign.random_params(config), vocabulary=spec, extra_ids=extra_ids)
  huggingface.save(dataclasses.replace(made, lengths=LENGTHS), epath.Path(folder / "out"))
  return folder / "out", vocabulary


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory):
  return exported(request.param, tmp_path_factory.mktemp(request.param))


def test_their_tokenizer_gives_our_ids(case):
  """Ids of difficult texts, and decoded text."""
  folder, vocabulary = case
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  for text in SENTENCES:
    expected = list(vocabulary.encode(text))
    assert tokenizer.encode(text, add_special_tokens=False) == expected, text


def test_their_special_ids_are_ours(case):
  """Padding and EOS, in the tokenizer and in the model's config; and each sentinel by name."""
  folder, vocabulary = case
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  config = json.loads((folder / "config.json").read_text())
  assert tokenizer.pad_token_id == config["pad_token_id"] == vocabulary.pad_id
  assert tokenizer.eos_token_id == config["eos_token_id"] == vocabulary.eos_id
  if vocabulary.extra_ids and not vocabulary_classes.is_bytes(vocabulary):
    expected = vocabularies.sentinel_ids(vocabulary, vocabulary.extra_ids)
    names = [f"<extra_id_{number}>" for number in range(vocabulary.extra_ids)]
    assert tokenizer.convert_tokens_to_ids(names) == expected


def test_their_tokenizer_frames_texts_as_heads_read_them(case):
  """Framing by an encoder's tokenizer, with token types if the model uses them; decoders have none."""
  folder, vocabulary = case
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = huggingface.open_foreign(str(folder)).model
  if model.kind.is_generative:
    return
  asks = head_examples.HeadFeatureConverter(vocabulary, "encoder_only", HeadConfig("asked", 2), 400)
  for texts in ([SENTENCES[0]], SENTENCES[3:5]):
    expected, found = asks({"parts": texts}).features, tokenizer(*texts)
    assert found["input_ids"] == expected["inputs"].tolist()
    if isinstance(vocabulary, seqio.ByteVocabulary):  # no token types in this tokenizer
      assert "token_type_ids" not in found
      continue
    assert ("token_type_ids" in found) == (model.segment_types > 1)
    assert found.get("token_type_ids", expected["token_types"].tolist()) == expected["token_types"].tolist()


def test_what_their_tokenizer_gives_goes_into_their_model(case):
  """The model accepts every feature of the tokenizer."""
  folder, _ = case
  features = transformers.AutoTokenizer.from_pretrained(folder)("a text", return_tensors="pt")
  model = transformers.AutoModel.from_pretrained(folder)
  if model.config.is_encoder_decoder:
    features["decoder_input_ids"] = features["input_ids"]
  assert model(**features).last_hidden_state.shape[-1] == TINY["embed_dim"]


def test_the_folder_is_read_again(case):
  """Ids are equal in t2t and in transformers, also after transformers saved the folder."""
  folder, vocabulary = case
  again = folder.parent / "again"
  transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(again)
  parity.load(folder).save_pretrained(again)
  for path in (folder, again):
    found = huggingface.open_foreign(str(path))
    assert f"{vocabulary.vocab_size:,} ids" in " ".join(found.notes)
    read = vocabularies.load(found.vocabulary, extra_ids=found.extra_ids)
    assert read.vocab_size == vocabulary.vocab_size
    for text in SENTENCES:
      assert list(read.encode(text)) == list(vocabulary.encode(text)), text


ENCODERS = [name for name, (fields, _, _) in CASES.items() if fields["architecture"] == "encoder_only"]


@pytest.mark.parametrize("name", ENCODERS)
def test_their_pipeline_fills_masks_as_t2t_does(name, tmp_path):
  """The tokenizer has the mask and the maximum length, and both give the same probabilities."""
  # transformers' byte tokenizer cannot decode an id without a name.
  folder, vocabulary = exported(name, tmp_path, more_rows=0 if CASES[name][1] == "bytes" else 7)
  found = huggingface.open_foreign(str(folder))
  fill = transformers.pipeline("fill-mask", model=str(folder), top_k=50)
  mask_id = vocabularies.mask_id(vocabulary)
  assert fill.tokenizer.mask_token_id == mask_id
  known = {"pad": vocabulary.pad_id, "eos": vocabulary.eos_id, "unk": getattr(vocabulary, "unk_id", None)}
  for kind, own in known.items():
    assert own is None or getattr(fill.tokenizer, f"{kind}_token_id") == own, kind
  learned = found.model.positions == "learned"
  assert fill.tokenizer.model_max_length == (POSITIONS if learned else LENGTHS["inputs_length"])
  model = t2t.load(str(folder))
  # transformers' SentencePiece inserts a space after a mask.
  texts = ("[MASK] fox", "a [MASK] b") + (() if name.endswith("unigram") else ("a  [MASK], b",))
  for text in texts:
    (expected,) = model.fill([text], top=3)
    theirs = fill(text.replace("[MASK]", fill.tokenizer.mask_token))
    # transformers also returns embedding rows beyond the vocabulary.
    scores = {each["token"]: each["score"] for each in theirs}
    for each in expected["fillings"][0]:
      np.testing.assert_allclose(scores[each["id"]], each["probability"], rtol=1e-3, err_msg=text)
