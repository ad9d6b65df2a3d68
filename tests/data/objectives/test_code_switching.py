"""Code switching: literal texts, rates, files, tasks, and invalid dictionaries."""

import dataclasses

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import determinism, fingerprint, objectives, pipeline, validation, vocabularies
from t2t.data.objectives import code_switching

DICTIONARY = "red\trouge\nhouse\tmaison\nhouse\tcasa\nParis\tLutèce\n"


@pytest.fixture
def dictionary(tmp_path):
  path = tmp_path / "words.tsv"
  path.write_text(DICTIONARY)
  return str(path)


def switched(texts, **options):
  dataset = tf.data.Dataset.from_tensor_slices({"text": texts})
  with seqio.utils.map_seed_manager(options.pop("seed", 0)):
    found = code_switching.code_switching(dataset, **options)
  return [example["text"].decode() for example in found.as_numpy_iterator()]


def test_docstring_examples(dictionary):
  """Words of the dictionary are replaced; combining marks and other words stay."""
  words = code_switching.read_dictionary(dictionary)
  assert words == {"red": ("rouge",), "house": ("maison", "casa"), "Paris": ("Lutèce",)}
  draws = np.array([[0.9, 0.1, 0.2], [0, 0, 0.9]])
  found = code_switching.switch(
    "The red house.", draws, dictionary={"red": ["rouge"], "house": ["maison", "casa"]}, rate=0.5
  )
  assert found == "The rouge casa."
  assert "the rouge house" in switched(["the red house"] * 50, dictionary=dictionary, rate=0.5)


def test_words_are_found_as_they_stand(dictionary):
  """Lower case is tried, too; parts of words do not match, and the surrounding text is unchanged."""
  texts = ["RED, Paris; paris", "  redden\tred\n(red)  ", "", "日本 red 日本", "Red House"]
  assert switched(texts, dictionary=dictionary, rate=1.0)[:4] == [
    "rouge, Lutèce; paris", "  redden\trouge\n(rouge)  ", "", "日本 rouge 日本"]  # fmt: skip


def test_marks_belong_to_their_letters():
  """In Hindi, in Thai and with combining accents, a word does not match a word with a mark after it."""
  words = {"हिन्दी": ("Hindi",), "ภาษาที่": ("language",), "cafe": ("house",)}
  switched = lambda text: code_switching.switch(text, np.zeros([2, 20]), dictionary=words, rate=1.0)
  assert switched("हिन्दी, ภาษาที่ cafe") == "Hindi, language house"
  assert switched("cafe\u0301 नमस्ते") == "cafe\u0301 नमस्ते"


def test_words_with_marks_are_read(tmp_path):
  (tmp_path / "words.tsv").write_text("हिन्दी\tHindi\n")
  assert code_switching.read_dictionary(str(tmp_path / "words.tsv")) == {"हिन्दी": ("Hindi",)}


def test_rates_and_draws(dictionary):
  """Words are drawn independently, translations uniformly; a seed determines the text."""
  options = {"dictionary": dictionary, "rate": 0.3}
  found = switched(["house " * 200] * 40, **options)
  words = " ".join(found).split()
  shares = [np.mean([word == each for word in words]) for each in ("house", "maison", "casa")]
  np.testing.assert_allclose(shares, (0.7, 0.15, 0.15), atol=0.02)
  assert found == switched(["house " * 200] * 40, **options) and len(set(found)) == 40
  assert found != switched(["house " * 200] * 40, seed=1, **options)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("red\trouge\nhouse\n", "line 2: 'house' is not a word and a translation, separated by a tab"),
    ("red\trouge\tx\n", "line 1: 'red.trouge.tx' is not a word"),
    ("red\t\n", "line 1: 'red' is not a word and a translation, separated by a tab"),
    ("red house\tmaison rouge\n", "line 1: 'red house' is not a single word"),
    ("\n\n", "has no words"),
    (b"r\xe9d\trouge\n", r"not valid UTF-8 \(byte 2\)"),
    (None, "cannot be read"),
  ],
)
def test_a_dictionary_that_cannot_be_used(tmp_path, content, message):
  """The message has the line."""
  path = tmp_path / "words.tsv"
  if content is not None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(UserError, match=rf"config.data.dictionary={path}.*{message}"):
    switched(["a"], dictionary=str(path), rate=0.5)


def data_of(tmp_path, **fields):
  (tmp_path / "a.txt").write_text("".join(f"the red house {i}\n" for i in range(100)))
  files = {"files": f"{tmp_path}/a.txt", "eval_files": f"{tmp_path}/a.txt", "vocabulary": "bytes"}
  options = {"objective": "causal_lm", "inputs_length": 64, "targets_length": 64, "pack": True}
  return DataConfig(**(files | options | {"switching_rate": 0.5} | fields))


def test_own_files_are_switched(tmp_path, dictionary):
  """The dictionary and its rate are part of the data's fingerprint."""
  data = data_of(tmp_path, dictionary=dictionary)
  vocabulary = vocabularies.load("bytes")
  made = pipeline.task_examples(data, "decoder_only", pipeline.load_task(data), split="train")
  texts = [vocabulary.decode(example["targets"][:-1]) for example in made.as_numpy_iterator()]
  assert len(texts) == 100 and len(set(" ".join(text.split()[:3]) for text in texts)) == 6
  assert all(text.split()[3] == str(i) for i, text in enumerate(texts))

  def of(data):
    return fingerprint.settings(data, vocabulary, batch_size=1, seed=0, num_streams=1)

  plain = dataclasses.replace(data, dictionary="", switching_rate=0.0)
  assert not {"data.dictionary", "data.switching_rate"} & of(plain).keys()
  assert of(data)["data.switching_rate"] == 0.5 and of(data) != of(dataclasses.replace(data, switching_rate=0.4))
  before = of(data)
  (tmp_path / "words.tsv").write_text(DICTIONARY + "the\tla\n")
  assert of(data) != before


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"switching_rate": 0.0}, "config.data.switching_rate=0.0: the rate must be above 0"),
    ({"switching_rate": 1.5}, "config.data.switching_rate=1.5: .* at most 1"),
    ({"dictionary": ""}, "config.data.switching_rate=0.5 has no effect, because config.data.dictionary is empty"),
    ({"objective": "annotated_masked_lm"}, "works only with objectives of plain text"),
  ],
)
def test_keys_that_do_not_go_together(tmp_path, dictionary, fields, message):
  with pytest.raises(UserError, match=message):
    pipeline.load_task(data_of(tmp_path, **({"dictionary": dictionary} | fields)))


@pytest.mark.parametrize("sources", [{}, {"docs": {"mixture": "docs_causal_lm"}}])
def test_registered_tasks_are_not_switched(tmp_path, dictionary, sources):
  """An error says that the dictionary would have no effect."""
  data = data_of(tmp_path, dictionary=dictionary, files="", sources=sources)
  data = dataclasses.replace(data, mixture="" if sources else "docs_causal_lm")
  with pytest.raises(UserError, match=r"config.data.dictionary=.* replace words of files only, but .*docs"):
    validation.check(data, batch_size=1, model_vocab_size=384)


def test_a_task_that_switches_is_repeatable(tmp_path, dictionary):
  """A registered task with code switching passes the check of determinism, and has its objective."""
  features = objectives.output_features("causal_lm", vocabularies.load("bytes"))
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": ["the red house"] * 40}),
    splits=("train", "validation"),
  )
  steps = objectives.preprocessors("causal_lm", dictionary=dictionary, switching_rate=0.5, pack=True)
  task = seqio.Task("switched", source=source, preprocessors=steps, output_features=features)
  assert objectives.of(task) == {"causal_lm"}
  data = data_of(tmp_path, switching_rate=0.0)
  determinism.check(pipeline.plan(data, "decoder_only", task, train=True, seed=0))
