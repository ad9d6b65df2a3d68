"""Tags of words: positions, written entities and their metric."""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import head_examples, postprocessors, preprocessors, special_tokens, vocabularies
from t2t.data.head_examples import tags as tags_lib
from t2t.data.head_examples.reading import Reading
from t2t.evaluation import task_metrics
from t2t.inference import head_predictor
from t2t.models.head_config import HeadConfig

pytestmark = pytest.mark.slow

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BYTES = vocabularies.load("bytes", extra_ids=0)
BERT = special_tokens.Framing((101,), (102,), (102,))
HEAD = HeadConfig("ner", len(NAMES), "tag", NAMES)


# ---- Positions -------------------------------------------------------------------------------------------------------


def asked(words, tags, *, vocabulary=BYTES, length=100):
  return make(words, tags, Reading(vocabulary, BERT, length, 0, "each", False))


def make(words, tags, reading):
  record = {"words": tf.constant(words), "tags": tf.constant(tags)}
  (found,) = tf.data.Dataset.from_tensors(record).map(lambda x: tags_lib.make(x, reading)).as_numpy_iterator()
  return {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in found.items()}


def test_docstring_example(tmp_path):
  """Only the first token of a word has a tag."""
  (tmp_path / "vocab.txt").write_text("[PAD] [UNK] [CLS] [SEP] [MASK] ann lee ##s won".replace(" ", "\n"))
  found = asked(["Ann", "Lees", "won"], [1, 2, 0], vocabulary=vocabularies.load(str(tmp_path / "vocab.txt")))
  assert found == {
    "inputs": [101, 5, 6, 7, 8, 102],
    "token_types": [0] * 6,
    "texts": [0] * 6,
    "answer_heads": [0, 1, 1, 0, 1, 0],
    "answer_targets": [0, 1, 2, 0, 0, 0],
    "asked_words": [0, 1, 2],
    "inputs_uncut": 6,
    "has_answer": True,
  }


@pytest.mark.exhaustive
@hypothesis.given(
  strategies.lists(strategies.text("aé日", min_size=1, max_size=5), min_size=1, max_size=9), strategies.integers(8, 60)
)
@hypothesis.settings(max_examples=50)
def test_each_word_is_asked_at_its_beginning(words, length):
  """Each word that fits has a tag, including words of multibyte characters."""
  tags = [i % 5 for i in range(len(words))]
  found = asked(words, tags, length=length)
  begins = [1 + len(" ".join([*words[:i], ""]).encode()) for i in range(len(words))]
  kept = [i for i, begin in enumerate(begins) if begin < min(length, len(found["inputs"])) - 1]
  assert found["asked_words"] == kept
  assert np.flatnonzero(found["answer_heads"]).tolist() == [begins[i] for i in kept]
  assert [found["answer_targets"][begins[i]] for i in kept] == [tags[i] for i in kept]
  assert len(found["inputs"]) <= length


def test_a_word_of_which_nothing_is_read():
  """A vocabulary may leave out a character; the others keep their tags."""
  words, starts, ends = ["a", "\x00", "b"], np.array([0, 4]), np.array([1, 5])
  assert tags_lib.first_tokens(words, starts, ends) == [(0, 0), (1, 2)]


@pytest.mark.exhaustive
@hypothesis.given(
  strategies.lists(strategies.text("aé日", min_size=1, max_size=5), min_size=1, max_size=9), strategies.integers(8, 60)
)
@hypothesis.settings(max_examples=25)
def test_words_that_somebody_gives_are_read_as_those_of_a_task(words, length):
  """Tokens and positions equal those of a task; the cut counts the tokens of a longer reading."""
  convert = head_examples.HeadFeatureConverter(BYTES, "encoder_only", HEAD, length)
  found, cut = convert({"words": words})
  reading = dataclasses.replace(convert.reading, length=200)  # more than nine words of five characters have bytes
  example = make(words, [0] * len(words), dataclasses.replace(reading, length=length))
  assert {name: x.tolist() for name, x in found.items()} == {name: example[name] for name in found}
  assert cut == len(make(words, [0] * len(words), reading)["inputs"]) - len(found["inputs"])


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("Ann Lee (58) saw Rome.", ["Ann", "Lee", "(", "58", ")", "saw", "Rome", "."]),
    ("«Zoë»\u00a0— O'Neil’s\tU.S.", ["«", "Zoë", "»", "—", "O", "'", "Neil", "’", "s", "U", ".", "S", "."]),
    ("3$+ a_b 日本。", ["3", "$", "+", "a", "_", "b", "日本", "。"]),
  ],
)
def test_a_text_becomes_words(text, words):
  """Each sign of punctuation stands alone, whatever script it is of."""
  assert tags_lib.split(text) == words


@hypothesis.given(strategies.text("aé日.,'»  \t😀", max_size=20))
def test_words_are_where_their_text_is(text):
  """In order, and all between them is white space."""
  words = tags_lib.split(text)
  places = tags_lib.places(words, text)
  assert [text[start:end] for start, end in places] == words
  bounds = [0, *itertools.chain(*places), len(text)]
  assert not "".join(text[end:start] for end, start in zip(bounds[::2], bounds[1::2], strict=True)).strip()
  assert tags_lib.places([*words, "b"], text) is None and tags_lib.places(["a", "é"], "é a") is None


@hypothesis.given(strategies.text("aé.,  😀", max_size=20), strategies.integers(0, 2**32 - 1), strategies.booleans())
def test_entities_are_where_their_text_is(text, seed, cut):
  """CoNLL's of the tags; each as likely as its words' tags together; a word that was cut has O."""
  random, words = np.random.default_rng(seed), tags_lib.split(text)
  asked = range(len(words) - (cut and len(words) > 0))
  logits = 2 * random.normal(size=(len(asked), len(NAMES))).astype(np.float32)
  given = {"words": words, "asked_words": list(asked), "text": text, "places": tags_lib.places(words, text)}
  found = head_predictor.fields(HEAD, given, logits)
  log_p = np.max(logits, axis=-1) - np.logaddexp.reduce(logits, axis=-1)
  assert found["tags"] == [NAMES[i] for i in logits.argmax(-1)] + ["O"] * (len(words) - len(asked))
  assert found["score"] == pytest.approx(log_p.sum(), rel=1e-4, abs=1e-6)
  expected = postprocessors.entities(found["tags"])
  assert [each["label"] for each in found["prediction"]] == [kind for kind, _, _ in expected]
  for each, (_, first, behind) in zip(found["prediction"], expected, strict=True):
    assert text[each["start"] : each["end"]] == each["text"]
    assert each["text"].split()[0].startswith(words[first]) and each["text"].endswith(words[behind - 1])
    assert tags_lib.split(each["text"]) == words[first:behind]
    assert each["probability"] == pytest.approx(np.exp(log_p[first:behind].sum()), rel=1e-4)


def test_what_a_head_says():
  """A tag for each word of the example; those that were cut have O."""
  example = {"words": [b"Ann", b"x", b"saw", b"Rome"], "asked_words": np.array([0, 2])}
  logits = np.eye(5, dtype=np.float32)[[1, 3]]
  text, score = head_predictor.answer(HEAD, example, logits)
  assert text == "B-PER O B-LOC O" and score == pytest.approx(2 * (1 - np.log(np.e + 4)))
  assert head_predictor.sample(HEAD, logits, np.array([1, 0])) == ("B-PER B-LOC", "B-PER O")


def test_a_task_of_tags():
  """From records to what the head is asked and to the metric; written, the same records are text."""
  records = {"tokens": [["Ann", "Lee", "saw", "Rome"]], "ner": [[1, 2, 0, 3]]}
  options = {"words": "tokens", "tags": "ner", "names": NAMES, "prefix": "ner"}
  feature = seqio.Feature(BYTES, add_eos=True)
  task = seqio.Task(
    "mine",
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(records), splits=("train",)
    ),
    preprocessors=preprocessors.text_to_text(preprocessors.tagged, **options),
    output_features={"inputs": feature, "targets": feature},
    postprocess_fn=postprocessors.tagged(NAMES),
    metric_fns=[task_metrics.entity_f1],
  )
  assert head_examples.need_of(task) == head_examples.Need("ner", "tag", NAMES, 5)
  apart = head_examples.for_heads(task, "encoder_only", (HEAD,))
  (example,) = apart.get_dataset({"inputs": 50}, split="train", shuffle=False).as_numpy_iterator()
  logits = np.eye(5, dtype=np.float32)[example["answer_targets"][example["answer_heads"] > 0]]
  value = task.postprocess_fn(head_predictor.answer(HEAD, example, logits)[0], example=example, is_target=False)
  right = task.postprocess_fn("?", example=example, is_target=True)
  assert value == right == ["B-PER", "I-PER", "O", "B-LOC"]
  written = task.get_dataset({"inputs": 50, "targets": 50}, split="train", shuffle=False)
  (example,) = written.as_numpy_iterator()
  text = BYTES.decode(example["targets"].tolist())
  assert text == "PER: Ann Lee; LOC: Rome"
  assert task.metric_fns[0]([right], [task.postprocess_fn(text, example=example, is_target=False)]) == {"f1": 100.0}


def test_an_unknown_tag():
  """Which, and how many there are."""
  records = tf.data.Dataset.from_tensors({"tokens": ["a"], "ner": [5]})
  with pytest.raises(
    tf.errors.OpError,
    match="UserError: ner: a word has the tag 5, but there are only 5 tags, numbered from 0: O, B-PER",
  ):
    list(preprocessors.tagged(records, words="tokens", tags="ner", names=NAMES, prefix="ner"))


# ---- Entities in writing ---------------------------------------------------------------------------------------------


@hypothesis.given(strategies.lists(strategies.sampled_from(NAMES), max_size=12), strategies.randoms())
def test_what_is_written_is_read_again(tags, random):
  """Entities are found in order, for any words."""
  words = [f"w{i}" for i in range(len(tags))]
  text = postprocessors.written_tags(words, tags, NAMES)
  found = postprocessors.tags_of(text, words, NAMES)
  assert postprocessors.entities(found) == postprocessors.entities(tags)
  if tags:
    assert postprocessors.tags_of(" ".join(tags), words, NAMES) == tags


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("PER: Ann", "B-PER O O O O"),
    ("PER: Ann; PER: Ann", "B-PER O O B-PER O"),  # behind the first
    ("LOC: Rome; PER: Ann", "O O B-LOC B-PER O"),  # from the left: the Ann behind Rome
    ("PER:  Ann  saw ; LOC: nowhere", "B-PER I-PER O O O"),  # one that is not there
    ("none", "O O O O O"),
    ("LOC: ; PER: Ann", "B-PER O O O O"),
    ("O B-PER", "O B-PER O O O"),  # tags, too few
    ("O O O O O O O", "O O O O O"),  # and too many
    ("ORG: Ann", None),
    ("I do not know", None),
    ("", None),
  ],
)
def test_texts_that_models_write(text, expected):
  """Entities are aligned with the words from the left; what names neither tags nor entities is no answer."""
  example = {"words": [word.encode() for word in ["Ann", "saw", "Rome", "Ann", ";"]]}
  value = postprocessors.tagged(NAMES)(text, example=example)
  assert value == (expected and expected.split())
  assert postprocessors.is_unparseable(value) == (expected is None)


def test_an_i_that_goes_on_with_nothing_begins():
  """Entities follow the CoNLL script."""
  assert postprocessors.entities(["I-PER", "I-LOC", "I-LOC", "O", "I-LOC", "B-LOC"]) == [
    ("PER", 0, 1), ("LOC", 1, 3), ("LOC", 4, 5), ("LOC", 5, 6),
  ]  # fmt: skip


# ---- A tag for each word, which marks no entity ----------------------------------------------------------------------


PARTS = ("DET", "NOUN", "VERB", "B", "PER-X")


@pytest.mark.exhaustive
@hypothesis.given(strategies.lists(strategies.sampled_from(PARTS), min_size=1, max_size=12))
def test_a_word_s_own_tags_are_written_and_read_again(tags):
  words = [f"w{i}" for i in range(len(tags))]
  record = {"tokens": tf.constant(words), "pos": tf.constant([PARTS.index(tag) for tag in tags])}
  records = tf.data.Dataset.from_tensors(record)
  (found,) = preprocessors.tagged(records, words="tokens", tags="pos", names=PARTS, prefix="pos").as_numpy_iterator()
  assert found["targets"].decode() == " ".join(tags)
  read = postprocessors.tagged(PARTS)(found["targets"].decode(), example=found)
  assert read == postprocessors.tagged(PARTS)("?", example=found, is_target=True) == tags
  assert postprocessors.entities(tags) == [(tag, i, i + 1) for i, tag in enumerate(tags)]
  assert task_metrics.word_accuracy([tags], [read]) == {"word_accuracy": 100.0}


def test_a_word_that_is_not_asked_leaves_the_others_right():
  """Words without a prediction are read as O."""
  head = HeadConfig("pos", len(PARTS), "tag", PARTS)
  example = {"words": [b"the", b"cat", b"ran"], "asked_words": [0, 1], "tags": [0, 1, 2]}
  written, _ = head_predictor.answer(head, example, 8.0 * np.eye(len(PARTS))[[0, 1]])
  read = postprocessors.tagged(PARTS)(written, example=example)
  assert read == ["DET", "NOUN", "O"]
  right = postprocessors.tagged(PARTS)("?", example=example, is_target=True)
  assert task_metrics.word_accuracy([right], [read]) == {"word_accuracy": pytest.approx(200 / 3)}


@pytest.mark.parametrize("text", ["NOUN: Ann", "DET CAT", "none", ""])
def test_what_names_no_tags_is_no_answer(text):
  assert postprocessors.tagged(PARTS)(text, example={"words": [b"Ann", b"saw"]}) is None


def test_word_accuracy():
  """Two of five words are right; missing words count as wrong."""
  assert task_metrics.word_accuracy([["A", "B"], ["A"], ["C", "D"]], [["A", "C"], None, ["C"]]) == {
    "word_accuracy": pytest.approx(40.0)
  }


@pytest.mark.parametrize(
  ("names", "message"),
  [
    (
      ("O", "B-PER", "NOUN"),
      "NOUN does not begin with B- or I-, but B-PER does. Begin all tags except O with B- or I-",
    ),
    (("DET", "PROPER NOUN"), "tag 'PROPER NOUN' contains white space"),
  ],
)
def test_tags_of_two_kinds_are_refused(names, message):
  with pytest.raises(UserError, match=message):
    postprocessors.tagged(names)


# ---- The metric ------------------------------------------------------------------------------------------------------


def test_entity_f1():
  """Whole entities: one of three found, one of two right: 2 x 1 / (3 + 2)."""
  right = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
  told = [["B-PER", "I-PER", "O", "O"], ["B-PER", "O"]]
  assert task_metrics.entity_f1(right, told) == {"f1": pytest.approx(100 * 2 / 5)}
  assert task_metrics.entity_f1(right, right) == {"f1": 100.0}
  assert task_metrics.entity_f1(right, [None, None]) == {"f1": 0.0}
  assert task_metrics.entity_f1([["O"]], [["O"]]) == task_metrics.entity_f1([], []) == {"f1": 0.0}


_TAGS = strategies.lists(strategies.sampled_from(NAMES), min_size=1, max_size=8)


@pytest.mark.exhaustive
@hypothesis.given(strategies.lists(strategies.tuples(_TAGS, _TAGS), min_size=1, max_size=4))
def test_entity_f1_against_its_definition(pairs):
  """F1 is twice the shared entities divided by the entities of both sides."""
  pairs = [(right[: len(told)], told[: len(right)]) for right, told in pairs]
  right, told = (
    {(i, *each) for i, pair in enumerate(pairs) for each in postprocessors.entities(pair[side])} for side in (0, 1)
  )
  expected = 200 * len(right & told) / max(len(right) + len(told), 1)
  assert task_metrics.entity_f1(*zip(*pairs, strict=True))["f1"] == pytest.approx(expected)
