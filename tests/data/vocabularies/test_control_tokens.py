"""Letters that spell a control token: text in records, control tokens where intended."""

import json
import pickle

import folders
from hypothesis import given, settings, strategies
import numpy as np
import pytest
import sentencepiece
import seqio
import tensorflow as tf
import tokenizers

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline, raw_text, vocabularies
from t2t.data.vocabularies import offsets, subwords, training
from t2t.inference import fill_mask, prompt_builder

TEXT = [f"the number {i} of things, in naïve text isn't right <tag> [note] | (x) a_b" for i in range(200)]
SPELLED = [
  *("[PAD]", "[MASK]", "[SEP]", "[CLS]", "[UNK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<extra_id_0>"),
  *("<extra_id_1>", "<|endoftext|>", "<0x0A>", "<|begin_of_text|>", "<start_of_turn>", "［MASK］", "＜extra_id_0＞"),
  *("[mask]", "▁<extra_id_0>"),
]


def sentencepiece_model(folder, **options):
  (folder / "model").mkdir(parents=True)
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT),
    model_prefix=str(folder / "model" / "spiece"),
    minloglevel=2,
    pad_id=0,
    eos_id=1,
    **options,
  )
  return str(folder / "model" / "spiece.model")


def unigram(folder):
  symbols = "[MASK],<start_of_turn>,[PAD]"
  return sentencepiece_model(
    folder, vocab_size=70, hard_vocab_limit=False, user_defined_symbols=symbols, unk_id=2, bos_id=-1
  )


def bpe_with_bytes(folder):
  """A tokenizer with byte tokens and control tokens, like Llama 2's and Gemma's."""
  return sentencepiece_model(
    folder,
    model_type="bpe",
    vocab_size=340,
    byte_fallback=True,
    unk_id=3,
    bos_id=2,
    user_defined_symbols="<mask>,<start_of_turn>",
    control_symbols="[CLS],[SEP]",
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
  )


def wordpiece(folder):
  return str(training.train_wordpiece(TEXT, size=120, output_dir=folder, cased=False))


def byte_level(folder):
  made = tokenizers.ByteLevelBPETokenizer()
  special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
  made.train_from_iterator(TEXT, vocab_size=300, special_tokens=special, show_progress=False)
  made.save_model(str(folder))
  return str(folder / "vocab.json")


def llama3(folder):
  made = tokenizers.ByteLevelBPETokenizer()
  special = ["<|begin_of_text|>", "<|end_of_text|>", "<start_of_turn>"]
  made.train_from_iterator(TEXT, vocab_size=300, special_tokens=special, show_progress=False)
  made.save(str(folder / "tokenizer.json"))
  return str(folder / "tokenizer.json")


def unigram_json(folder):
  """A tokenizer.json like T5's: control tokens are in the model, and full-width letters match them, too."""
  made = tokenizers.Tokenizer(tokenizers.models.Unigram())
  made.normalizer = tokenizers.normalizers.NFKC()
  made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
  special = ["<pad>", "</s>", "<unk>", "[MASK]", "<extra_id_0>"]
  trainer = tokenizers.trainers.UnigramTrainer(
    vocab_size=100, special_tokens=special, unk_token="<unk>", show_progress=False
  )
  made.train_from_iterator(TEXT, trainer)
  made.add_tokens(["<tag>"])
  made.save(str(folder / "tokenizer.json"))
  return str(folder / "tokenizer.json")


KINDS = {
  "unigram": (unigram, 5),
  "bpe_with_bytes": (bpe_with_bytes, 5),
  "wordpiece": (wordpiece, 0),
  "wordpiece_sentinels": (wordpiece, 5),
  "byte_level": (byte_level, 5),
  "llama3": (llama3, 0),
  "unigram_json": (unigram_json, 0),
  "bytes": (lambda folder: "bytes", 5),
}


@pytest.fixture(scope="module", params=list(KINDS))
def vocabulary(request, tmp_path_factory):
  make, extra_ids = KINDS[request.param]
  return vocabularies.load(make(tmp_path_factory.mktemp(request.param)), extra_ids=extra_ids)


def control_ids(vocabulary):
  return vocabularies.special_ids(vocabulary) - {vocabulary.unk_id} | set(
    i for name, i in vocabularies.control_tokens_of(vocabulary).items() if i != vocabulary.unk_id
  )


TEXTS = strategies.lists(
  strategies.sampled_from([*SPELLED, " ", "the", "number ", "a", "[", "<", "\x00", "\u200b", "é"]), max_size=8
)
TEXTS = TEXTS.map("".join)


# ---- Ids -------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(TEXTS)
def test_letters_are_text(vocabulary, text):
  """A text gives no control token, in Python and in a graph, and offsets have the same ids."""
  encoded = vocabularies.as_text(vocabulary)
  ids = list(encoded.encode(text))
  assert not set(ids) & control_ids(vocabulary)
  assert encoded.encode_tf(tf.constant(text)).numpy().tolist() == ids
  assert vocabularies.encode_text(vocabulary, text) == ids
  assert offsets.tokens_of(encoded, text).ids.tolist() == ids


@settings(max_examples=25)
@given(TEXTS)
def test_text_without_control_tokens_is_encoded_as_published(vocabulary, text):
  published = list(vocabulary.encode(text))
  if not set(published) & control_ids(vocabulary) and vocabulary.unk_id not in published:
    assert list(vocabularies.as_text(vocabulary).encode(text)) == published


@pytest.mark.slow
@settings(max_examples=25)
@given(TEXTS.filter(lambda text: not set("［＜") & set(text)))
def test_all_control_tokens_are_those_of_the_published_tokenizer(vocabulary, text):
  assert vocabularies.encode_text(vocabulary, text, special_tokens="all") == list(vocabulary.encode(text))


@pytest.mark.slow
@settings(max_examples=25)
@given(TEXTS, TEXTS)
def test_what_a_record_spells_is_text_beside_what_a_format_writes(vocabulary, record, written):
  """Protected letters are text, other names are control tokens; protection keeps the number of characters."""
  protect = vocabularies.protect([vocabulary])
  shown = tf.constant(record) if protect is None else protect(tf.constant(record))
  assert vocabularies.plain(shown).numpy().decode() == record
  assert len(shown.numpy().decode()) == len(record)
  formatted = vocabularies.as_formatted(vocabulary)
  assert formatted.encode_tf(shown).numpy().tolist() == list(vocabularies.as_text(vocabulary).encode(record))
  both = tf.strings.join([written, " ", shown])
  found = formatted.encode_tf(both).numpy().tolist()
  meant = vocabularies.encode_text(vocabulary, f"{written} ", special_tokens="all")
  own = control_ids(vocabulary)
  assert [i for i in found if i in own] == [i for i in meant if i in own]


def test_a_text_comes_back(vocabulary):
  """Vocabularies with a token for each character restore the text."""
  encoded = vocabularies.as_text(vocabulary)
  for text in ("[PAD]", "a <extra_id_0> b", "</s>", "<|endoftext|> x", "<start_of_turn>"):
    ids = list(encoded.encode(text))
    if vocabulary.unk_id not in ids and not isinstance(vocabulary, subwords.SubwordVocabulary):
      assert vocabulary.decode(ids) == text
    if "ByteLevel" in str(getattr(vocabulary, "content", "")):
      assert vocabulary.decode(ids) == text


def test_a_batch_is_as_its_texts(vocabulary):
  texts = ["the number", "a [MASK] <extra_id_0> b", ""]
  if isinstance(vocabulary, seqio.ByteVocabulary):
    return  # seqio's decoder needs texts of one length
  for encoded in (vocabularies.as_text(vocabulary), vocabularies.as_formatted(vocabulary)):
    assert encoded.encode_tf(tf.constant(texts)).to_list() == [list(encoded.encode(text)) for text in texts]


def test_they_are_the_same_vocabulary(vocabulary):
  for changed in (vocabularies.as_text(vocabulary), vocabularies.as_formatted(vocabulary)):
    assert changed == vocabulary and vocabulary == changed
    assert vocabularies.digest(changed) == vocabularies.digest(vocabulary)
    assert vocabularies.token_texts(changed) == vocabularies.token_texts(vocabulary)
    again = pickle.loads(pickle.dumps(changed))
    assert list(again.encode("a [MASK] b")) == list(changed.encode("a [MASK] b"))
    assert vocabularies.as_published(changed) is vocabulary


def test_words_of_wordpiece(tmp_path):
  """BERT's basic tokenizer splits them without a list of tokens to keep."""
  vocabulary = vocabularies.load(wordpiece(tmp_path), extra_ids=0)
  texts = vocabularies.token_texts(vocabulary)
  ids = vocabularies.encode_text(vocabulary, "the [PAD]")
  assert [texts[i] for i in ids][:2] == [" the", " ["] and texts[ids[-1]] == " ]"
  assert vocabulary.encode("the [PAD]")[-1] == vocabulary.pad_id


def test_pieces_that_a_user_defined_are_text(tmp_path):
  """User-defined tags and words are matched in text; names of control tokens are not."""
  path = training.train_sentencepiece(
    TEXT, size=60, output_dir=tmp_path, character_coverage=0.99, symbols=["<2en>", "[URL]", "[MASK]"]
  )
  vocabulary = vocabularies.load(str(path), extra_ids=0)
  texts = vocabularies.token_texts(vocabulary)
  shown = [texts[i] for i in vocabularies.encode_text(vocabulary, "<2en> [URL] [MASK]")]
  assert "<2en>" in shown and "[URL]" in shown and "[MASK]" not in shown
  assert list(vocabularies.control_tokens_of(vocabulary)) == ["[MASK]"]


def test_letters_of_a_byte_are_text(tmp_path):
  """A tokenizer.json reads the letters of a byte as SentencePiece does; alone it would read the byte token."""
  path = sentencepiece_model(
    tmp_path,
    vocab_size=320,
    hard_vocab_limit=False,
    byte_fallback=True,
    unk_id=2,
    bos_id=-1,
    normalization_rule_name="identity",
  )
  published = vocabularies.load(path)
  pieces = [(published.tokenizer.id_to_piece(i), published.tokenizer.get_score(i)) for i in range(published.vocab_size)]
  made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2, True))
  made.normalizer = tokenizers.normalizers.NFKC()
  made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.ByteFallback()
  made.add_special_tokens(["<pad>", "</s>", "<unk>"])
  made.save(str(tmp_path / "tokenizer.json"))
  vocabulary = vocabularies.load(str(tmp_path / "tokenizer.json"))
  assert 3 + 10 in made.encode("<0x0A>").ids
  for text in ("<0x0A>", "the <0x0A>é number <0xC3><0xA9>", "the é\n", "é <0x0a> <0x0A"):
    expected = list(published.encode(text))
    assert list(vocabularies.as_text(vocabulary).encode(text)) == expected
    assert vocabularies.encode_text(vocabulary, text, special_tokens="all") == expected
    assert offsets.tokens_of(vocabularies.as_text(vocabulary), text).ids.tolist() == expected
  found = vocabularies.encode_text(vocabulary, "</s><0x0A>", special_tokens="all")
  assert found == [1, *published.encode("<0x0A>")[1:]] or found == [1, *published.encode("<0x0A>")]
  wide = vocabularies.encode_text(vocabulary, "＜0x0A＞")
  assert wide == list(published.encode("<0x0A>"))


def test_counts(tmp_path):
  vocabulary = vocabularies.load(wordpiece(tmp_path), extra_ids=2)
  texts = ["[PAD] [PAD]", "<extra_id_1> [MASK][MASK][MASK]", "<extra_id_2> </s>"]
  assert vocabularies.count_control_tokens(vocabulary, texts) == {"[MASK]": 3, "[PAD]": 2, "<extra_id_1>": 1}
  assert vocabularies.count_control_tokens(vocabularies.load("bytes"), texts) == {}


# ---- Prompts ---------------------------------------------------------------------------------------------------------


def test_which_control_tokens_of_a_prompt_are_meant(tmp_path):
  """Sentinels and masks are accepted by default; framing tokens are not."""
  vocabulary = vocabularies.load(wordpiece(tmp_path), extra_ids=2)
  text, texts = "the [MASK] <extra_id_0> [PAD]", vocabularies.token_texts(vocabulary)
  names = set(vocabularies.control_tokens_of(vocabulary)) - {"[UNK]"}
  found = {}
  for choice in prompt_builder.SPECIAL_TOKENS:
    prompts = prompt_builder.Prompts(vocabulary, ends=False, longest=99, special_tokens=choice)
    found[choice] = [texts[i] for i in prompts(text)[0] if texts[i] in names]
  meant = {"none": [], "blanks": ["[MASK]", "<extra_id_0>"], "all": ["[MASK]", "<extra_id_0>", "[PAD]"]}
  assert found == meant
  assert prompt_builder.Prompts(vocabulary, ends=False, longest=99)(text) == (
    vocabularies.encode_text(vocabulary, text, special_tokens="blanks"),
    0,
  )
  with pytest.raises(UserError, match="special_tokens='some' is not valid; give one of none, blanks, all"):
    vocabularies.encode_text(vocabulary, text, special_tokens="some")


def test_a_lone_surrogate_is_named(vocabulary):
  with pytest.raises(UserError, match=r"character 3 of the text is '\\ud800', a lone surrogate"):
    vocabularies.encode_text(vocabulary, "ab\ud800")


def test_blanks_beside_letters_that_spell_others(tmp_path):
  vocabulary = vocabularies.load(wordpiece(tmp_path), extra_ids=0)
  ids, _ = fill_mask.Blanks(vocabulary, "encoder_only")("the [MASK] [SEP] [PAD]", 99)
  assert ids.count(vocabulary.mask_id) == 1 and ids.count(vocabulary.sep_id) == 1 and vocabulary.pad_id not in ids
  ids, _ = fill_mask.Blanks(vocabulary, "encoder_only", special_tokens="all")("the [MASK] [SEP] [PAD]", 99)
  assert ids.count(vocabulary.sep_id) == 2 and ids.count(vocabulary.pad_id) == 1


# ---- Data ------------------------------------------------------------------------------------------------------------

LINE = "the number [PAD] of <extra_id_0> things [MASK] isn't </s> right"


def data_of(folder, vocabulary, **options):
  (folder / "text.txt").write_text("\n".join(f"{LINE} {i}" for i in range(20)))
  return DataConfig(
    files=str(folder / "text.txt"),
    vocabulary=vocabulary,
    inputs_length=96,
    targets_length=96,
    shuffle_buffer=1,
    num_streams=1,
    **options,
  )


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("objective", ["causal_lm", "next_token"])
def test_files(tmp_path, objective):
  """A corpus with such letters has no control token, unless the config accepts them."""
  spec = wordpiece(tmp_path)
  for special_tokens in (False, True):
    data = data_of(tmp_path, spec, extra_ids=5, objective=objective, special_tokens=special_tokens)
    task, own = pipeline.load_task(data, "decoder_only"), pipeline.vocabulary(data)
    examples = pipeline.task_examples(data, "decoder_only", task, split="train")
    ids = np.concatenate([example["targets"] for example in examples.as_numpy_iterator()])
    found = set(ids.tolist()) & (control_ids(own) - {own.eos_id})
    names = {vocabularies.control_tokens_of(own)[name] for name in ("[PAD]", "<extra_id_0>", "[MASK]")}
    assert found == (names if special_tokens else set())


def with_a_blank(dataset):
  """A format that writes a sentinel, as T5's do."""
  return dataset.map(
    lambda x: {
      "inputs": tf.strings.join(["fill <extra_id_0>: ", x["text"]]),
      "targets": tf.strings.join(["<extra_id_0> ", x["text"]]),
    }
  )


@pytest.mark.slow
def test_a_format_that_writes_sentinels(tmp_path):
  """The format's sentinel is a token, the same letters in the record are text; texts are unchanged."""
  vocabulary = vocabularies.load(wordpiece(tmp_path), extra_ids=5)
  records = [{"text": LINE}, {"text": "the number"}]
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.from_generator(
      lambda: records, output_signature={"text": tf.TensorSpec([], tf.string)}
    ),
    splits=("train",),
    num_input_examples={"train": 2},
  )
  feature = seqio.Feature(vocabulary, add_eos=True)
  task = seqio.Task(
    "spelled_test",
    source=source,
    preprocessors=[with_a_blank, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={"inputs": feature, "targets": feature},
  )
  found = raw_text.guarded(raw_text.guarded(task))
  assert len(found.preprocessors) == 5  # protected only once
  lengths = {"inputs": 99, "targets": 99}
  examples = list(found.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator())
  blank = vocabularies.sentinel_ids(vocabulary, 1)[0]
  for example, record in zip(examples, records, strict=True):
    assert example["inputs_pretokenized"].decode() == f"fill <extra_id_0>: {record['text']}"
    for name in ("inputs", "targets"):
      own = [i for i in example[name].tolist() if i in control_ids(vocabulary) - {vocabulary.eos_id}]
      assert own == [blank]
  assert raw_text.spelled(task, split="train") == {"[PAD]": 1, "<extra_id_0>": 1, "[MASK]": 1}
  plain = next(task.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator())
  assert plain["inputs"].tolist().count(blank) == 2  # the earlier behaviour


@pytest.mark.slow
def test_a_run_of_an_older_version_goes_on_and_is_told(tmp_path, monkeypatch, capsys):
  """A position without information about control tokens resumes with a message; others must match."""
  import jax

  from t2t import sharding

  spec, mesh = wordpiece(tmp_path), sharding.make_mesh({"fsdp": -1})

  def batches(special_tokens):
    data = data_of(tmp_path, spec, objective="causal_lm", special_tokens=special_tokens)
    return pipeline.train_batches(data, "decoder_only", mesh, batch_size=jax.device_count(), seed=1)

  saved = batches(False).state()
  older = {}
  for name, content in saved.items():
    position = json.loads(content)
    del position["identity"]["data.special_tokens"]
    older[name] = json.dumps(position).encode()
  batches(False).restore(older, step=0)
  assert "the text spells control tokens ([PAD] " in capsys.readouterr().err
  batches(True).restore(older, step=0)
  assert "spells" not in capsys.readouterr().err
  with pytest.raises(UserError, match="config.data.special_tokens is True, but the checkpoint's data position belongs"):
    batches(True).restore(saved, step=0)


@pytest.mark.exhaustive
def test_the_published_vocabularies():
  """Published files: T5's, BERT's, GPT-2's, and one with sentinels."""
  root = folders.SHARED / "data" / "tokenizers"
  if not root.exists():
    pytest.skip(f"{root} is not there")
  for path, extra_ids in (
    ("t5_spiece/spiece.model", 100),
    ("bert_uncased/vocab.txt", 0),
    ("gpt2/encoder.json", 0),
    ("nanodo_cc_all.32000.100extra_with_bos/sentencepiece.model", 0),
  ):
    vocabulary = vocabularies.load(str(root / path), extra_ids=extra_ids)
    for text in (" ".join(SPELLED), "".join(SPELLED), *SPELLED, f"a{SPELLED[0]}b"):
      assert not set(vocabularies.encode_text(vocabulary, text)) & control_ids(vocabulary)
