"""WordPiece and byte-level BPE: ids of the published tokenizers, and invalid files."""

import json
import pathlib
import pickle
import re

import folders
from hypothesis import given, strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf
import tokenizers

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.vocabularies import subwords

TOKENIZERS = folders.SHARED / "data" / "tokenizers"

# Text, and its ids in the reference Python tokenizers: BERT's uncased and GPT-2's. From Wikipedia and RTE, with
# difficult input: accents, scripts, emoji, control characters, spaces, long words, special tokens.
# fmt: off
GOLDEN = [
  (
    "Yet, we now are discovering that antibiotics are losing their effectiveness against illness.",
    [2664, 1010, 2057, 2085, 2024, 13648, 2008, 24479, 2024, 3974, 2037, 12353, 2114, 7355, 1012],
    [11486, 11, 356, 783, 389, 21611, 326, 22392, 389, 6078, 511, 13530, 1028, 8526, 13],
  ),
  (
    (
      "That record belongs to José-Luis Viejo, who beat the peloton by 22 mins 50 secs in the 1976 stage "
      "Montgenèvre-Manosque."
    ),
    [2008, 2501, 7460, 2000, 4560, 1011, 6446, 20098, 5558, 1010, 2040, 3786, 1996, 21877, 10994, 2239, 2011, 2570,
    8117, 2015, 2753, 10819, 2015, 1999, 1996, 3299, 2754, 18318, 6914, 6777, 2890, 1011, 2158, 2891, 4226, 1012],
    [2504, 1700, 14448, 284, 36997, 12, 25596, 271, 47154, 7639, 11, 508, 4405, 262, 16176, 18970, 416, 2534, 23550,
    2026, 792, 82, 287, 262, 15408, 3800, 5575, 5235, 14064, 43933, 12, 5124, 418, 4188, 13],
  ),
  (
    'Almost all South Korean secondary students wear a uniform called "gyobok" (Korean: 교복, 校服).',
    [2471, 2035, 2148, 4759, 3905, 2493, 4929, 1037, 6375, 2170, 1000, 1043, 7677, 5092, 2243, 1000, 1006, 4759,
    1024, 1455, 30013, 29996, 30011, 30020, 1010, 100, 100, 1007, 1012],
    [23379, 477, 2520, 6983, 9233, 2444, 5806, 257, 8187, 1444, 366, 1360, 672, 482, 1, 357, 42, 29456, 25, 220, 166,
    113, 238, 167, 111, 113, 11, 10545, 254, 94, 17312, 235, 737],
  ),
  (
    "I'm not good at hazmat language and that CSI-style precision.",
    [1045, 1005, 1049, 2025, 2204, 2012, 5292, 2480, 18900, 2653, 1998, 2008, 22174, 1011, 2806, 11718, 1012],
    [40, 1101, 407, 922, 379, 11595, 6759, 3303, 290, 326, 49911, 12, 7635, 15440, 13],
  ),
  (
    "It isn't, they've said; we'll see what SHE'D DO.",
    [2009, 3475, 1005, 1056, 1010, 2027, 1005, 2310, 2056, 1025, 2057, 1005, 2222, 2156, 2054, 2016, 1005, 1040,
    2079, 1012],
    [1026, 2125, 470, 11, 484, 1053, 531, 26, 356, 1183, 766, 644, 48052, 6, 35, 8410, 13],
  ),
  (
    "A month after the start of the campaign, fans had donated $254,500, just 17% of the $1.5 million goal.",
    [1037, 3204, 2044, 1996, 2707, 1997, 1996, 3049, 1010, 4599, 2018, 6955, 1002, 22234, 1010, 3156, 1010, 2074,
    2459, 1003, 1997, 1996, 1002, 1015, 1012, 1019, 2454, 3125, 1012],
    [32, 1227, 706, 262, 923, 286, 262, 1923, 11, 3296, 550, 15863, 720, 24970, 11, 4059, 11, 655, 1596, 4, 286, 262,
    720, 16, 13, 20, 1510, 3061, 13],
  ),
  (
    "I think what Charlie Brown is—what I hope to show in this film—is the everyday qualities of perseverance...",
    [1045, 2228, 2054, 4918, 2829, 2003, 1517, 2054, 1045, 3246, 2000, 2265, 1999, 2023, 2143, 1517, 2003, 1996,
    10126, 11647, 1997, 2566, 3366, 21998, 1012, 1012, 1012],
    [40, 892, 644, 11526, 4373, 318, 960, 10919, 314, 2911, 284, 905, 287, 428, 2646, 960, 271, 262, 10908, 14482,
    286, 45712, 590, 986],
  ),
  (
    'Fauda (فوضى; means "chaos" in Arabic) is an Israeli political thriller television series.',
    [6904, 14066, 1006, 1291, 29836, 29827, 29837, 1025, 2965, 1000, 8488, 1000, 1999, 5640, 1007, 2003, 2019, 5611,
    2576, 10874, 2547, 2186, 1012],
    [37, 3885, 64, 357, 149, 223, 30335, 148, 114, 149, 231, 26, 1724, 366, 354, 7495, 1, 287, 17526, 8, 318, 281,
    6085, 1964, 32251, 5581, 2168, 13],
  ),
  (
    (
      "\xc5ngstr\xf6m's na\xefve \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac, \u039f\u0394\u039f\u03a3, "
      "Stra\xdfe, \u0130stanbul: e\u0301 = \xe9"
    ),
    [17076, 15687, 1005, 1055, 15743, 1159, 29727, 29727, 24824, 16177, 18199, 29726, 14608, 1010, 1169, 29722,
    29730, 29733, 1010, 2358, 27807, 1010, 9960, 1024, 1041, 1027, 1041],
    [127, 227, 782, 2536, 9101, 76, 338, 41492, 7377, 243, 39377, 39377, 138, 115, 26180, 29945, 43000, 138, 105, 11,
    7377, 253, 138, 242, 138, 253, 138, 96, 11, 15195, 39683, 68, 11, 34754, 108, 24179, 25, 304, 136, 223, 796,
    38251],
  ),
  (
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 ok \U0001f1e9\U0001f1ea",
    [100, 100, 7929, 100],
    [47249, 222, 50169, 102, 447, 235, 41840, 102, 447, 235, 41840, 100, 12876, 12520, 229, 102, 8582, 229, 103],
  ),
  (
    "tab\there, bell\x07, nul\x00, soft\xadhyphen, \u200bzero\ufeff width, \ufffd and line\u2028ends\r\n\r\nhere ",
    [21628, 2182, 1010, 4330, 1010, 16371, 2140, 1010, 3730, 10536, 8458, 2368, 1010, 5717, 9381, 1010, 1998, 2240,
    4515, 2182],
    [8658, 197, 1456, 11, 8966, 195, 11, 299, 377, 188, 11, 2705, 3907, 36362, 831, 11, 20126, 22570, 171, 119, 123,
    9647, 11, 20543, 290, 1627, 447, 101, 2412, 201, 198, 201, 198, 1456, 220],
  ),
  (
    "  two  spaces,   three,\xa0one that does not break \u3000 and an ideographic one  ",
    [2048, 7258, 1010, 2093, 1010, 2028, 2008, 2515, 2025, 3338, 1998, 2019, 8909, 8780, 14773, 2028],
    [220, 734, 220, 9029, 11, 220, 220, 1115, 11, 1849, 505, 326, 857, 407, 2270, 220, 5099, 222, 290, 281, 1405,
    6826, 530, 220, 220],
  ),
  (
    "pneumonoultramicroscopicsilicovolcanoconiosis, " + "a" * 101,
    [1052, 2638, 2819, 17175, 11314, 6444, 2594, 7352, 26461, 27572, 11261, 6767, 15472, 6761, 8663, 10735, 2483,
    1010, 100],
    [79, 25668, 261, 25955, 859, 2500, 1416, 404, 873, 41896, 709, 349, 5171, 36221, 42960, 11, 257, 24794, 24794,
    24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794,
    24794, 24794, 24794, 24794, 24794, 24794, 24794],
  ),
  (
    "the [MASK] and <|endoftext|> of [unused1] a [CLS]b<mask></s>",
    [1996, 103, 1998, 1026, 1064, 2203, 15794, 10288, 2102, 1064, 1028, 1997, 1031, 15171, 2487, 1033, 1037, 101,
    1038, 1026, 7308, 1028, 1026, 1013, 1055, 1028],
    [1169, 685, 31180, 42, 60, 290, 220, 50256, 286, 685, 403, 1484, 16, 60, 257, 685, 5097, 50, 60, 65, 27, 27932,
    12240, 82, 29],
  ),
]
# fmt: on

WORDPIECE = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!?'"]
WORDPIECE += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"] + ["the", "cat", "##s", "sat"][:2]


def shared(name):
  path = TOKENIZERS / name
  if not path.exists():
    pytest.skip(f"{path} is not there")
  return str(path)


@pytest.fixture
def wordpiece(tmp_path):
  """Returns a folder with a small vocab.txt."""
  (tmp_path / "vocab.txt").write_text("\n".join(WORDPIECE) + "\n")
  return tmp_path


def write_bpe(folder, *, special=(), pieces="encoder.json", merges="vocab.bpe"):
  """Writes byte-level tokens and merges: the bytes, " the", "cat" with its parts, and `special` first."""
  made = [("c", "a"), ("ca", "t"), ("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")]
  names = [*special, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in made)]
  if not special:
    names.append("<|endoftext|>")
  (folder / pieces).write_text(json.dumps({name: i for i, name in enumerate(names)}))
  (folder / merges).write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in made))
  return str(folder / pieces)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
  """Returns a vocabulary in GPT-2's files, with 262 ids."""
  return subwords.SubwordVocabulary(write_bpe(tmp_path_factory.mktemp("gpt2")), extra_ids=3)


def roberta(folder):
  return write_bpe(
    folder, special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], pieces="vocab.json", merges="merges.txt"
  )


# ---- Ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "bert", "gpt2"), GOLDEN)
def test_ids_are_those_of_the_reference(text, bert, gpt2):
  """Exact ids of BERT and GPT-2, in a graph and in eager mode, with and without sentinels."""
  for extra_ids in (0, 100):
    for name, ids in (("bert_uncased/vocab.txt", bert), ("gpt2/encoder.json", gpt2)):
      vocabulary = vocabularies.load(shared(name), extra_ids=extra_ids)
      assert vocabulary.encode(text) == ids
      dataset = tf.data.Dataset.from_tensors(text).map(vocabulary.encode_tf)
      assert next(iter(dataset)).numpy().tolist() == ids


@given(strategies.text().filter(lambda text: not re.search(r"<\|endoftext\|>|<extra_id_[0-2]>", text)))
def test_byte_level_bpe_loses_nothing(gpt2, text):
  """Any text is restored, except EOS, which ends it, and spaces beside sentinels."""
  assert gpt2.decode(gpt2.encode(text)) == text
  assert gpt2.decode_tf(gpt2.encode_tf(tf.constant(text))).numpy().decode() == text


def test_byte_level_bpe_merges_what_its_file_says(gpt2):
  texts = gpt2.token_texts()
  assert [texts[i] for i in gpt2.encode("the cat, the cat")] == ["t", "h", "e", " ", "cat", ",", " the", " ", "cat"]


def test_a_piece_that_is_made_of_no_bytes(tmp_path):
  """The token is its own text, as the library decodes it."""
  path = pathlib.Path(write_bpe(tmp_path))
  pieces = json.loads(path.read_text())
  path.write_text(json.dumps(pieces | {"˗x": len(pieces)}))
  vocabulary = subwords.SubwordVocabulary(str(path))
  assert vocabulary.token_texts()[len(pieces)] == vocabulary.tokenizer.decode([len(pieces)]) == "˗x"


def test_wordpiece_takes_the_longest_pieces(wordpiece):
  vocabulary = vocabularies.load(str(wordpiece), extra_ids=0)
  texts = vocabulary.token_texts()
  assert [texts[i] for i in vocabulary.encode("The cáts, 2")] == [" the", " cat", "s", " ,", "[UNK]"]
  assert vocabulary.decode(vocabulary.encode("The cáts, the bee!")) == "the cats, the bee!"


def test_capitals_count_where_the_vocabulary_has_any(wordpiece):
  """Tokens determine case handling unless the settings do."""
  cased, settings = wordpiece / "cased-vocab.txt", wordpiece / "tokenizer_config.json"
  cased.write_text("\n".join([*WORDPIECE, "The", "á"]))
  vocabulary = vocabularies.load(str(cased), extra_ids=0)
  assert [vocabulary.token_texts()[i] for i in vocabulary.encode("The the á")] == [" The", " the", " á"]
  (wordpiece / "lower").mkdir()
  (wordpiece / "lower" / "vocab.txt").write_text("\n".join([*WORDPIECE, "The", "á"]))
  (wordpiece / "lower" / settings.name).write_text(json.dumps({"do_lower_case": True}))
  vocabulary = vocabularies.load(str(wordpiece / "lower"), extra_ids=0)
  assert [vocabulary.token_texts()[i] for i in vocabulary.encode("The the á")] == [" the", " the", " a"]


def test_nothing_is_added_and_nothing_cut(tmp_path):
  """Truncation and special tokens of a tokenizer.json do not apply."""
  tokenizer = tokenizers.Tokenizer.from_file(bpe_json(tmp_path))
  tokenizer.enable_truncation(3)
  tokenizer.enable_padding(length=9)
  tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  vocabulary = vocabularies.load(str(tmp_path), extra_ids=0)
  assert len(vocabulary.encode("abcdefgh")) == 8


def bpe_json(folder):
  """Writes RoBERTa's files as a tokenizer.json."""
  vocabulary = subwords.SubwordVocabulary(roberta(folder))
  vocabulary.tokenizer.save(str(folder / "tokenizer.json"))
  return str(folder / "tokenizer.json")


def test_special_ids(wordpiece, tmp_path, gpt2):
  """Special ids of the three families."""
  ids = lambda v: [v.pad_id, v.eos_id, v.bos_id, v.unk_id, v.mask_id, v.cls_id, v.sep_id]
  assert ids(vocabularies.load(str(wordpiece))) == [0, 4, None, 2, 5, 3, 4]
  assert ids(gpt2) == [261, 261, None, None, None, None, None]
  for path in (roberta(tmp_path), bpe_json(tmp_path)):
    assert ids(vocabularies.load(path)) == [1, 2, 0, 3, 4, 0, 2]


def test_settings_name_the_special_pieces(tmp_path):
  """A chat model has another EOS, declared beside its tokenizer.json."""
  path = bpe_json(tmp_path)
  settings = {"eos_token": {"content": "<unk>"}, "pad_token": "</s>", "bos_token": None}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
  vocabulary = vocabularies.load(path)
  assert (vocabulary.eos_id, vocabulary.pad_id, vocabulary.bos_id) == (3, 2, 0)


def test_a_mask_takes_the_space_before_it(tmp_path):
  """RoBERTa's <mask> replaces a word and its space."""
  vocabulary = vocabularies.load(roberta(tmp_path), extra_ids=0)
  assert [vocabulary.token_texts()[i] for i in vocabulary.encode("a <mask> the")] == ["a", "<mask>", " the"]


# ---- Sentinels and decoding ------------------------------------------------------------------------------------------


def test_sentinels_lie_behind_the_own_ids(gpt2):
  """Their ids decrease from the last id, in text and ids; spaces around them are restored."""
  assert gpt2.vocab_size == 262 + 3 and vocabularies.sentinel_ids(gpt2, 2) == [264, 263]
  text = "the cat <extra_id_0> the <extra_id_2>, <extra_id_1> <extra_id_0>"
  ids = gpt2.encode(text)
  assert [i for i in ids if i >= 262] == [264, 262, 263, 264]
  assert gpt2.decode(ids) == text
  assert gpt2.decode(gpt2.encode("<extra_id_3>")) == "<extra_id_3>" and max(gpt2.encode("<extra_id_3>")) < 262


def test_decoding_stops_at_eos_and_hides_what_no_text_has(wordpiece):
  vocabulary = vocabularies.load(str(wordpiece), extra_ids=2)
  the, cat = vocabulary.encode("the cat")
  pad, unknown, first, end, mask = (WORDPIECE.index(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK"))
  last = vocabulary.vocab_size - 1
  ids = [first, the, mask, last, cat, vocabulary.vocab_size + 5, unknown, pad, end, cat]
  assert vocabulary.decode_named(ids) == "the [MASK] <extra_id_0> cat [UNK] [UNK]"
  shown = "the <extra_id_0> cat"  # as transformers' skip_special_tokens=True, which omits unknown tokens
  assert vocabulary.decode(ids) == shown and vocabulary.decode(np.array(ids)) == shown
  batch = tf.constant([ids, [cat] + [pad] * 9])
  assert vocabulary.decode_tf(batch).numpy().tolist() == [shown.encode(), b"cat"]
  assert vocabulary.decode([]) == "" and vocabulary.decode_tf(tf.constant([], tf.int32)).numpy() == b""


# ---- In tf.data ------------------------------------------------------------------------------------------------------


def test_a_dataset_resumes_where_it_was(gpt2, tmp_path):
  """Encodes in several threads, in order, and resumes from a saved position."""
  texts = [f"the cat {i}" * (1 + i % 7) for i in range(60)]
  options = tf.data.Options()
  options.deterministic = True
  options.experimental_symbolic_checkpoint = True
  dataset = tf.data.Dataset.from_tensor_slices(texts).map(gpt2.encode_tf, num_parallel_calls=4).with_options(options)
  assert dataset.element_spec == tf.TensorSpec([None], tf.int32)
  expected = [gpt2.encode(text) for text in texts]
  assert [ids.tolist() for ids in dataset.as_numpy_iterator()] == expected
  iterator = iter(dataset)
  for _ in range(20):
    next(iterator)
  saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
  restored = iter(dataset)
  tf.train.Checkpoint(iterator=restored).read(saved)
  assert [ids.numpy().tolist() for ids in restored] == expected[20:]


def test_a_batch_is_ragged(gpt2):
  texts = ["the cat", "", "<extra_id_0>"]
  assert gpt2.encode_tf(tf.constant(texts)).to_list() == [gpt2.encode(text) for text in texts]


def test_seqio_tokenizes_and_converts(gpt2):
  """A task's preprocessors and seqio's need nothing else."""
  feature = seqio.Feature(vocabulary=gpt2, add_eos=True)
  dataset = tf.data.Dataset.from_tensors({"targets": "the cat"})
  dataset = seqio.preprocessors.tokenize(dataset, {"targets": feature}, copy_pretokenized=False)
  dataset = seqio.preprocessors.append_eos(dataset, {"targets": feature})
  assert next(dataset.as_numpy_iterator())["targets"].tolist() == [*gpt2.encode("the cat"), gpt2.eos_id]


def test_text_that_is_not_utf8(gpt2):
  assert gpt2.decode_tf(gpt2.encode_tf(tf.constant(b"a\xffb"))).numpy().decode() == "a\ufffdb"


# ---- Objects ---------------------------------------------------------------------------------------------------------


def test_equal_by_content(wordpiece, tmp_path, gpt2):
  """Two copies of a file are equal; a missing file equals only itself, and is not read earlier."""
  copy = tmp_path / "copy"
  copy.mkdir()
  (copy / "vocab.txt").write_bytes((wordpiece / "vocab.txt").read_bytes())
  one, other = (vocabularies.load(str(folder), extra_ids=2) for folder in (wordpiece, copy))
  assert one == other and one == pickle.loads(pickle.dumps(one))
  assert one != vocabularies.load(str(copy), extra_ids=3) and one != gpt2
  (copy / "vocab.txt").write_text("\n".join([*WORDPIECE[:-1], "sat"]))
  copy.rename(tmp_path / "changed")
  assert one != subwords.SubwordVocabulary(str(tmp_path / "changed" / "vocab.txt"), extra_ids=2)
  nowhere = subwords.SubwordVocabulary("nowhere/vocab.txt", extra_ids=2)
  assert nowhere == subwords.SubwordVocabulary("nowhere/vocab.txt", extra_ids=2)
  assert nowhere != one and one != nowhere
  with pytest.raises(UserError, match="config.data.vocabulary=nowhere/vocab.txt: no such file"):
    nowhere.encode("a")


# ---- Invalid files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("vocab.txt", "", "vocab.txt is empty"),
    ("vocab.txt", "[PAD]\n[UNK]\n[SEP]\na\nb\na\n", "line 4 and line 6 are the same token, 'a'"),
    ("vocab.txt", "a\nb\n", r"the file has no \[PAD\] and no \[UNK\] and no \[SEP\]"),
    ("vocab.txt", b"\xff\xfe", "vocab.txt is not UTF-8 text"),
    ("encoder.json", "{}", "vocab.bpe is missing; put vocab.bpe beside encoder.json"),
    ("merges.txt", "a b", "vocab.json is missing; put vocab.json beside merges.txt"),
    ("tokenizer.json", "hello", "tokenizer.json is not JSON"),
    ("tokenizer.json", "[" * 10_000, "tokenizer.json is not JSON .maximum recursion depth"),
    ("tokenizer.json", '{"a": ' + "9" * 5_000 + "}", "tokenizer.json is not JSON"),
    ("tokenizer.json", "[1]", "tokenizer.json contains no JSON object"),
    ("tokenizer.json", '{"a": 1}', 'the file has no "model".*encoder.json or vocab.json'),
    ("tokenizer.json", '{"model": {"type": "Quantum"}}', "cannot read this file"),
  ],
)
def test_files_that_are_no_vocabulary(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(UserError, match=f"(?s)config.data.vocabulary=.*{message}"):
    vocabularies.load(str(path))


def test_pieces_and_merges_that_do_not_fit(tmp_path):
  path = pathlib.Path(write_bpe(tmp_path))
  ids = json.loads(path.read_text())
  merges = (tmp_path / "vocab.bpe").read_text()
  (tmp_path / "vocab.bpe").write_text(merges + "x y\n")
  with pytest.raises(
    UserError, match="line 7 of vocab.bpe, 'x y', does not merge two tokens of encoder.json into another"
  ):
    vocabularies.load(str(path))
  (tmp_path / "vocab.bpe").write_text(merges)
  path.write_text(json.dumps({piece: i for piece, i in ids.items() if piece != "a"}))
  with pytest.raises(UserError, match="encoder.json is not a BPE vocabulary, because its ids are not 0, 1, 2"):
    vocabularies.load(str(path))
  path.write_text(json.dumps({piece if piece != "!" else "!!": i for piece, i in ids.items()}))
  with pytest.raises(
    UserError, match="not a byte-level BPE vocabulary.*1 of the 256 bytes have no token.*tokenizer.json"
  ):
    vocabularies.load(str(path))


def test_sentinels_inside(tmp_path):
  """A trap: sentinels in the file, and added ones after them."""
  tokenizer = tokenizers.Tokenizer.from_file(bpe_json(tmp_path))
  tokenizer.add_special_tokens(["<extra_id_0>"])
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  with pytest.raises(UserError, match="already contains 1 sentinels.*config.data.extra_ids=0"):
    vocabularies.load(str(tmp_path))
  assert vocabularies.load(str(tmp_path), extra_ids=0).encode("<extra_id_0>") == [266]


def test_a_vocabulary_without_an_end(tmp_path):
  tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
  with pytest.raises(UserError, match="has no end-of-text token"):
    vocabularies.load(str(tmp_path))


def test_a_piece_and_an_id_that_none_has(tmp_path):
  """A token outside the byte alphabet is its own text; an implausibly large id is refused."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
  made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.ByteLevel(), tokenizers.decoders.ByteLevel()
  special, alphabet = ["<pad>", "</s>", "<unk>"], sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  content = json.loads(made.to_str())
  content["model"]["vocab"] = {piece: i for i, piece in enumerate([*special, *alphabet, "\u051f"])}
  path = tmp_path / "odd" / "tokenizer.json"
  path.parent.mkdir()
  path.write_text(json.dumps(content))
  assert vocabularies.token_texts(vocabularies.load(str(path), extra_ids=0))[-1] == "\u051f"
  content["model"]["vocab"]["\u051f"] = 2**31
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps(content))
  with pytest.raises(
    UserError, match="tokenizer.json: the largest id, 2,147,483,648, is above the limit of 16,777,215"
  ):
    vocabularies.load(str(path), extra_ids=0)
