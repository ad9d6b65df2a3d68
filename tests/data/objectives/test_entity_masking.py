"""Annotated phrases: token positions, masking as a whole, and invalid annotations."""

import json

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline, shard_order, sources, vocabularies
from t2t.data.objectives import entity_masking
from t2t.data.sources import text_files
from t2t.data.vocabularies import offsets

TEXT = "Ann Lee of New York saw Rome again, and wrote of it"
ENTITIES = [[24, 28], [0, 7], [11, 19]]  # in any order


class Vocabulary(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 1 is EOS, 99 a mask; ids from 50 on start a word."""

  special_ids, mask_id, cls_id, sep_id, bos_id = frozenset({0, 1, 99}), 99, None, None, 1

  def __init__(self):
    super().__init__(100, eos_id=1)

  def token_texts(self):
    return [" x" if i >= 50 else "x" for i in range(100)]


def flags(*bits):
  return tf.constant([bool(bit) for bit in bits])


@pytest.mark.exhaustive
def test_the_examples_of_the_docstrings():
  """The docstrings' arrays, for some seed."""
  np.testing.assert_array_equal(entity_masking.checked([[7, 12], [0, 3]], 12, location=""), [[0, 3], [7, 12]])
  places = np.array([0, 4, 8, 12]), np.array([3, 7, 11, 14])
  starts = entity_masking.unit_starts(*places, np.array([[4, 14]]), np.array([True, True, True, False]))
  assert starts.tolist() == [True, True, False, False]
  record = b'{"text": " Ann saw Rome", "entities": [[1, 4], [9, 13]]}'
  marked = text_files.marked("a.jsonl", 1, record, field="text", annotations="entities", where="")
  assert marked.tolist() == [[0, 3], [8, 12]] and marked.dtype == np.int32
  candidates, starts = flags(0, 1, 1, 1, 1, 1, 0), flags(1, 1, 0, 1, 1, 0, 1)
  drawn = [entity_masking.whole_units(candidates, starts, [i, 7], noise_density=0.5) for i in range(20)]
  lists = [tuple(x.numpy().tolist() for x in each) for each in drawn]
  assert ([0, 1, 1, 0, 0, 0, 0], [0, 1, 1, 2, 3, 3, 4]) in lists
  dataset = tf.data.Dataset.from_tensors({"targets": [3, 4, 5, 6, 7], "starts": [1, 1, 0, 0, 1]}).repeat(200)
  feature = {"targets": seqio.Feature(Vocabulary(), add_eos=True)}
  options = {"noise_density": 0.6, "merge_documents": False}
  found = entity_masking.annotated_masked_lm(dataset, {"inputs": 6, "targets": 6}, feature, **options)
  assert {
    "inputs": [3, 99, 99, 99, 7, 1],
    "targets": [3, 4, 5, 6, 7, 1],
    "loss_weights": [0, 1, 1, 1, 0, 0],
  } in [{name: x.tolist() for name, x in example.items()} for example in found.as_numpy_iterator()]


def test_text_to_ids():
  """The docstring's three tokens, of which the last two are a phrase."""
  pieces = ["a", " bc", " d"]

  class Words(seqio.ByteVocabulary):
    """Encodes whole words as ids from 5 on."""

  def tokens_of(vocabulary, text):
    assert isinstance(vocabulary, Words) and text == "".join(pieces)
    return offsets.Tokens(*(np.array(x, np.int32) for x in ([5, 6, 7], [0, 2, 5], [1, 4, 6])))

  monkeypatch = pytest.MonkeyPatch()
  with monkeypatch.context() as patched:
    patched.setattr(offsets, "tokens_of", tokens_of)
    records = tf.data.Dataset.from_tensors({"text": "a bc d", "entities": [[2, 6]]})
    (found,) = entity_masking.tokenize(records, {"targets": seqio.Feature(Words())}).as_numpy_iterator()
  assert {name: x.tolist() for name, x in found.items()} == {"targets": [5, 6, 7], "starts": [1, 1, 0]}


@hypothesis.given(st.data())
def test_tokens_of_a_phrase_are_a_unit(data):
  """A token belongs to a phrase if it shares a character; other units start as words do."""
  size = data.draw(st.integers(1, 20))
  bounds = lambda most: sorted(data.draw(st.sets(st.integers(0, size), max_size=most)) | {0, size})
  cuts = bounds(8)
  starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
  marks = bounds(6)
  chosen = data.draw(st.lists(st.booleans(), min_size=len(marks), max_size=len(marks)))
  ranges = np.array([x for x in zip(marks, marks[1:], strict=False) if chosen[marks.index(x[0])]]).reshape(-1, 2)
  words = np.array(data.draw(st.lists(st.booleans(), min_size=len(starts), max_size=len(starts))))
  found = entity_masking.unit_starts(starts, ends, ranges, words)
  own_of = lambda start, end: next((i for i, (a, b) in enumerate(ranges) if a < end and b > start), None)
  of = [own_of(*place) for place in zip(starts, ends, strict=True)]
  for i, own in enumerate(of):
    first = i == 0 or of[i - 1] != own
    assert found[i] == (first if own is not None else words[i] or i == 0 or of[i - 1] is not None)


# ---- Files -----------------------------------------------------------------------------------------------------------


def data_of(path, **fields):
  return DataConfig(**({
    "files": str(path), "eval_files": str(path), "vocabulary": "bytes", "objective": "annotated_masked_lm",
    "inputs_length": 64, "targets_length": 64, "noise_density": 0.3,
  } | fields))  # fmt: skip


def write(path, *records):
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  return path


def examples(data):
  task = pipeline.load_task(data)
  found = pipeline.task_examples(data, "encoder_only", task, split="train")
  return list(found.as_numpy_iterator())


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("pack", [False, True])
def test_phrases_of_own_files_are_hidden_whole(tmp_path, pack):
  """All bytes of a phrase are treated alike; other words are independent; leading white space is included."""
  record = {"body": f"  {TEXT}", "marks": [[a + 2, b + 2] for a, b in ENTITIES]}
  path = write(tmp_path / "a.jsonl", *[record] * 300)
  found = examples(data_of(path, field="body", annotations="marks", pack=pack))
  assert len(found) > 200
  vocabulary = vocabularies.load("bytes", extra_ids=100)
  mask, together, fates = vocabularies.mask_id(vocabulary), 0, set()
  for example in found:
    targets = example["targets"]
    at = "".join(chr(max(x - 3, 0)) for x in targets).find(TEXT)
    if at < 0:
      continue  # a chunk of joined records without a whole phrase
    for start, end in ENTITIES:
      own = slice(at + start, at + end)
      hidden = example["loss_weights"][own]
      assert hidden.all() or not hidden.any()
      together += hidden.all()
      if hidden.all():
        changed = example["inputs"][own] != targets[own]
        fates.add("mask" if (example["inputs"][own] == mask).all() else "other" if changed.any() else "kept")
        assert (example["inputs"][own] == mask).all() or not (example["inputs"][own] == mask).any()
    word = slice(at + TEXT.index(" wrote"), at + TEXT.index(" of it"))
    assert len(set(example["loss_weights"][word])) == 1
  assert together > 50 and fates == {"mask", "other", "kept"}


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ({"entities": [[0, 3], [2, 7]]}, r"a.jsonl, line 3: field 'entities': \[0, 3\] and \[2, 7\] overlap"),
    ({"entities": [[48, 52]]}, r"line 3: field 'entities': \[48, 52\] is not a range in the text of 51 ch"),
    ({"entities": [[4, 4]]}, r"line 3: .*\[4, 4\] is not a range in"),
    ({"entities": [[-1, 3]]}, r"line 3: .*\[-1, 3\] is not a range in"),
    ({"entities": [[0, 3, "PER"]]}, r"line 3: .*\[0, 3, 'PER'\] is not a range; give \[start, end\]"),
    ({"entities": ["ab"]}, "line 3: .*'ab' is not a range"),
    ({"entities": {"0": 3}}, r"line 3: field 'entities' is not a list .* Set config.data.annotations"),
    ({"marks": []}, "line 3: no field 'entities' .fields: 'text', 'marks'.. Set config.data.annotations"),
  ],
)
def test_a_record_that_marks_nothing_is_named(tmp_path, record, message):
  """The message has file, line and field."""
  good = {"text": TEXT, "entities": ENTITIES}
  path = write(tmp_path / "a.jsonl", good, good, {"text": TEXT} | record, good)
  source = sources.FileSource({"train": (str(path),)}, annotations="entities")
  with pytest.raises((UserError, tf.errors.OpError), match=message):
    list(source.get_dataset("train").as_numpy_iterator())
  with pytest.raises(UserError, match=message):
    next(_records(source))


def _records(source):
  records = source.records("train")
  (shard,) = records.shards()
  (whole,) = shard_order.shares([shard], 1)
  return iter([records.parse(found) for piece in whole for _, found in records.read(piece)])


def test_text_without_marks_is_refused(tmp_path):
  """Sources without annotations are refused: other kinds of files, and a task's source."""
  (tmp_path / "a.txt").write_text(f"{TEXT}\n" * 50)
  source = sources.FileSource({"train": (str(tmp_path / "a.txt"),)}, annotations="entities")
  with pytest.raises(UserError, match="a.txt has no annotated phrases, .*JSON lines with a field 'entities'"):
    next(_records(source))
  plain = tf.data.Dataset.from_tensors({"text": TEXT, "id": 1})
  with pytest.raises(UserError, match="no field 'entities' .* Fields of the records: text, id"):
    entity_masking.tokenize(plain, {"targets": seqio.Feature(seqio.ByteVocabulary())})


# ---- Registered tasks ------------------------------------------------------------------------------------------------


def test_a_task_of_ones_own(tmp_path):
  """Ranges may be [n, 2] or ragged; an error names the record by its text."""
  feature = {"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=True)}
  ranges = tf.ragged.constant([ENTITIES, []], ragged_rank=1, inner_shape=(2,), dtype=tf.int64)
  records = tf.data.Dataset.from_tensor_slices({"text": [TEXT, "b c"], "entities": ranges})
  first, second = entity_masking.tokenize(records, feature).as_numpy_iterator()
  assert second["starts"].tolist() == [1, 1, 0]
  starts = np.flatnonzero(first["starts"])
  assert {0, 11, 24} <= set(starts) and not set(starts) & {*range(1, 7), *range(12, 19), *range(25, 28)}
  assert bytes(first["targets"].astype(np.uint8) - 3) == TEXT.encode()
  wrong = tf.data.Dataset.from_tensors({"text": TEXT, "entities": [[0, 99]]})
  with pytest.raises(tf.errors.OpError) as raised:
    list(entity_masking.tokenize(wrong, feature))
  message = str(sources.user_error(raised.value))
  assert message.startswith(f"entities of the text '{TEXT[:40]}...': [0, 99] is not a range in the text of 51")


def test_corpora_have_the_objectives_of_text():
  """Corpora support all objectives except those with annotations, translations or counts."""
  assert set(objectives.OBJECTIVES) - set(objectives.OF_TEXT) == {
    *(
      "answer_diffusion",
      "annotated_masked_lm",
      "text_to_text",
      "translation_lm",
      "translation",
      "translation_ranking",
    ),
    "glove",
  }
