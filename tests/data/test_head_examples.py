"""Examples for models with heads: framing of texts, questions for heads, and tasks that no head can answer."""

import dataclasses
import functools

from hypothesis import given, settings, strategies
import numpy as np
import pytest
import sentencepiece
import seqio
import tensorflow as tf
import tokenizers

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.data import (
  head_examples,
  postprocessors,
  preprocessors,
  special_tokens,
  task_resolution,
  train_data,
  vocabularies,
)
from t2t.data.example_windows import labelled
from t2t.data.head_examples import kinds, needs
from t2t.data.head_examples.reading import Reading
from t2t.evaluation import task_metrics
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig

pytestmark = pytest.mark.slow

BERT = special_tokens.Framing((101,), (102,), (102,))
ROBERTA = special_tokens.Framing((0,), (2, 2), (2,))
BYTES = vocabularies.load("bytes", extra_ids=0)


def framed(texts, around=BERT, length=100):
  tokens, types = special_tokens.framed(tf.ragged.constant(texts, dtype=tf.int32), around, length)
  return tokens.numpy().tolist(), types.numpy().tolist()


# ---- Framing ---------------------------------------------------------------------------------------------------------


def test_framed_texts():
  """Frames texts like BERT and RoBERTa; the separator after a text belongs to that text."""
  assert framed([[7, 8], [9]]) == ([101, 7, 8, 102, 9, 102], [0, 0, 0, 0, 1, 1])
  assert framed([[7, 8], [9]], ROBERTA) == ([0, 7, 8, 2, 2, 9, 2], [0, 0, 0, 0, 0, 1, 1])
  assert framed([[7], [8], [9]])[0] == [101, 7, 102, 8, 102, 9, 102]
  assert framed([[7], [8], [9]])[1] == [0, 0, 0, 1, 1, 1, 1]
  assert framed([[7]])[0] == [101, 7, 102]
  assert framed([[], [9]])[0] == [101, 102, 9, 102]


@settings(deadline=None, max_examples=50)
@given(lengths=strategies.lists(strategies.integers(0, 30), min_size=1, max_size=4), room=strategies.integers(0, 60))
def test_the_longest_text_is_cut_first(lengths, room):
  """Texts that fit stay whole; otherwise the room is filled, and no text is cut below a longer one's remainder."""
  kept = special_tokens.shortened(tf.constant(lengths), room).numpy()
  assert all(0 <= k <= n for k, n in zip(kept, lengths, strict=True))
  assert kept.sum() == min(sum(lengths), room)
  cut = [k for k, n in zip(kept, lengths, strict=True) if k < n]
  if cut:
    assert max(kept) - min(cut) <= 1 and cut == sorted(cut, reverse=True)


@settings(deadline=None, max_examples=20)
@given(
  texts=strategies.lists(strategies.lists(strategies.integers(3, 90), max_size=9), min_size=1, max_size=3),
  length=strategies.integers(8, 30),
)
def test_a_framed_text_fits(texts, length):
  """Framed texts keep all special tokens, and each part keeps its beginning."""
  tokens, types = framed(texts, BERT, length)
  assert len(tokens) == len(types) <= length
  parts = " ".join(map(str, tokens[1:])).split("102")
  assert tokens[0] == 101 and tokens.count(102) == len(texts) and parts[-1] == ""
  for text, part in zip(texts, parts, strict=False):
    kept = [int(token) for token in part.split()]
    assert kept == text[: len(kept)]


@pytest.mark.parametrize(
  ("architecture", "expected"),
  [
    ("encoder_decoder", special_tokens.Framing((), (1,), (1,))),
    ("decoder_only", special_tokens.Framing((0,), (1,), ())),
    ("encoder_only", special_tokens.Framing((), (1,), (1,))),
  ],
)
def test_a_vocabulary_without_cls(architecture, expected):
  """EOS separates texts; a decoder starts with BOS and reads up to the last token."""
  assert special_tokens.Framing.of(BYTES, architecture) == expected


def test_a_cls_that_is_called_bos_is_no_bos(tmp_path):
  """ALBERT's model calls [CLS] and [SEP] BOS and EOS; RoBERTa's <s> is a BOS, with two separators between texts."""
  made = functools.partial(
    sentencepiece.SentencePieceTrainer.train,
    model_prefix=str(tmp_path / "spiece"),
    **dict(vocab_size=20, hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2),
  )
  made(sentence_iterator=iter(["a few words"] * 9), bos_piece="[CLS]", eos_piece="[SEP]")
  vocabulary = vocabularies.load(str(tmp_path / "spiece.model"), extra_ids=0)
  assert special_tokens.Framing.of(vocabulary, "encoder_only") == special_tokens.Framing((2,), (3,), (3,))
  pieces = {piece: i for i, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"))}
  tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, "<unk>")).save(str(tmp_path / "tokenizer.json"))
  vocabulary = vocabularies.load(str(tmp_path / "tokenizer.json"), extra_ids=0)
  assert special_tokens.Framing.of(vocabulary, "encoder_only") == ROBERTA


def test_texts_of_bytes_have_lengths_of_their_own():
  """seqio's byte vocabulary takes only texts of one length."""
  assert special_tokens.encode(BYTES, tf.constant(["a", "bc", ""])).to_list() == [[100], [101, 102], []]


# ---- Tasks -----------------------------------------------------------------------------------------------------------

RECORDS = [
  {"text": "is it", "other": "so", "label": 1, "idx": 0, "training": True},
  {"text": "no", "other": "it is not", "label": 0, "idx": 1, "training": True},
  {"text": "who", "other": "knows", "label": -1, "idx": 2, "training": True},
]
LABELS = ("no", "yes")
BERT_LIKE = TransformerConfig("encoder_only", 384, 8, 1, 8, 8, num_encoder_layers=1)


def source(records):
  def dataset_fn(split, shuffle_files, seed=None):
    del split, shuffle_files, seed
    signature = {name: tf.TensorSpec.from_tensor(tf.constant(value)) for name, value in records[0].items()}
    signature = {name: tf.TensorSpec([None] * spec.shape.rank, spec.dtype) for name, spec in signature.items()}
    return tf.data.Dataset.from_generator(lambda: iter(records), output_signature=signature)

  return seqio.FunctionDataSource(dataset_fn, splits=("train",), num_input_examples={"train": len(records)})


def task(records=RECORDS, *formats, name="odd"):
  steps = formats or (
    functools.partial(preprocessors.labelled, prefix="sure", fields=("text", "other"), labels=LABELS),
  )
  feature = seqio.Feature(BYTES, add_eos=True)
  return seqio.Task(
    name,
    source=source(records),
    preprocessors=preprocessors.text_to_text(*steps),
    output_features={"inputs": feature, "targets": feature},
    postprocess_fn=postprocessors.label(LABELS),
    metric_fns=[task_metrics.accuracy],
  )


def examples(found, head, *, architecture="encoder_only", length=32):
  asked = head_examples.for_heads(found, architecture, (HeadConfig("other", 4), head))
  dataset = asked.get_dataset({"inputs": length}, split="train", shuffle=False, num_epochs=1)
  return list(dataset.as_numpy_iterator())


def test_a_task_says_which_head_it_needs():
  """The head's name, kind and classes come from the first record; the vocabulary decides which token it reads."""
  assert head_examples.need_of(task()) == needs.Need("sure", "class", LABELS, 2)
  (head,) = head_examples.heads_of([task()], BERT_LIKE, BYTES)
  assert head == HeadConfig("sure", 2, "class", LABELS, reads="mean")


def test_a_given_head_that_reads_the_first_token_is_named(capsys):
  """Without [CLS] the first token of a text says little of it; a head with "reads" is as given."""
  model = dataclasses.replace(BERT_LIKE, heads=(HeadConfig("sure", 2, labels=LABELS),))
  assert head_examples.heads_of([task()], model, BYTES)[0].reads == ""
  assert "sure reads the first token, and the vocabulary has no [CLS]" in capsys.readouterr().err
  model = dataclasses.replace(BERT_LIKE, heads=(HeadConfig("sure", 2, labels=LABELS, reads="mean"),))
  assert head_examples.heads_of([task()], model, BYTES)[0].reads == "mean"
  assert not capsys.readouterr().err


def test_what_a_class_head_reads():
  """Examples have the framed parts, the label where the head reads, the text and the record's fields."""
  first, second, third = examples(task(), HeadConfig("sure", 2, labels=LABELS, reads="first"))
  encoded = [BYTES.encode(part) for part in ("is it", "so")]
  assert first["inputs"].tolist() == [*encoded[0], 1, *encoded[1], 1]
  assert first["answer_heads"].tolist() == [2] + [0] * 8
  assert first["answer_targets"].tolist() == [1] + [0] * 8
  assert first["token_types"].tolist() == [0] * 6 + [1] * 3
  assert (first["idx"], first["label"], first["inputs_pretokenized"]) == (0, 1, b"sure text: is it other: so")
  assert [bool(each["has_answer"]) for each in (first, second, third)] == [True, True, False]


def test_what_a_decoder_reads():
  """A decoder reads BOS and the text of the generative task; the head reads the last token."""
  first = examples(task(), HeadConfig("sure", 2, labels=LABELS, reads="last"), architecture="decoder_only")[0]
  assert first["inputs"].tolist() == [0, *BYTES.encode("sure text: is it other: so")]
  assert np.flatnonzero(first["answer_heads"]).tolist() == [len(first["inputs"]) - 1]


def test_a_text_that_is_cut_still_answers():
  """A head that reads the last token reads the last one that is kept."""
  for architecture, reads, at in (("decoder_only", "last", 11), ("encoder_decoder", "mean", 0)):
    first = examples(task(), HeadConfig("sure", 2, reads=reads), architecture=architecture, length=12)[0]
    assert len(first["inputs"]) == 12 and np.flatnonzero(first["answer_heads"]).tolist() == [at]


def test_candidates_are_texts_of_their_own():
  """Candidates follow the same premise; the target is 1 for the right one."""
  record = {"premise": "It rained.", "choice1": "It is wet.", "choice2": "Dry.", "question": "effect", "label": 1}
  found = task([record | {"idx": 0}], preprocessors.copa)
  assert head_examples.need_of(found) == needs.Need("copa", "choice", (), 1)
  (first,) = examples(found, HeadConfig("copa", 1, "choice", reads="first"), length=128)
  texts = [BYTES.decode(first["inputs"][first["texts"] == i].tolist()) for i in range(2)]
  premise = "It rained. What happened as a result?"
  assert [text.startswith(premise) for text in texts] == [True, True]
  at = np.flatnonzero(first["answer_heads"])
  assert at.tolist() == [0, np.flatnonzero(first["texts"] == 1)[0]]
  assert first["answer_targets"][at].tolist() == [0, 1]


@pytest.mark.parametrize(("length", "kept"), [(128, (1, 40, 2, 3)), (60, (1, 34, 2, 3)), (34, (1, 8, 2, 3))])
def test_the_longest_candidate_is_cut_first(length, kept):
  """Candidates that fit stay whole; a cut candidate keeps its beginning."""
  candidates = ["a", "b" * 40, "cc", "ddd"]
  example = {"parts": tf.constant(["why"]), "candidates": tf.constant(candidates), "label": tf.constant(1)}
  reading = Reading(BYTES, special_tokens.Framing((), (1,), (1,)), length, 0, "first", False)
  found = kinds.KINDS["choice"].make(example, reading)
  rows = [found["inputs"].numpy()[found["texts"].numpy() == i].tolist() for i in range(4)]
  read = [text[:number] for text, number in zip(candidates, kept, strict=True)]
  assert rows == [[*BYTES.encode("why"), 1, *BYTES.encode(text), 1] for text in read]
  assert len(found["inputs"]) <= length


def test_a_number_keeps_its_bits():
  """A head learns the exact number, which T5 would round. A missing label is -1 in STS-B, and NaN in other scored
  tasks.
  """
  records = [{"sentence1": "a", "sentence2": "b", "label": value, "idx": 0} for value in (3.27, -1.0)]
  found = examples(task(records, preprocessors.stsb), HeadConfig("stsb", 1, "score", reads="first"))
  assert found[0]["answer_targets"][:1].view(np.float32) == np.float32(3.27)
  assert [bool(each["has_answer"]) for each in found] == [True, False]
  format = functools.partial(preprocessors.scored, prefix="mood", fields=("text",), label="mood")
  records = [{"text": "a", "mood": value} for value in (-1.0, float("nan"), 0.0)]
  found = examples(task(records, format), HeadConfig("mood", 1, "score", reads="first"))
  assert [bool(each["has_answer"]) for each in found] == [True, False, True]
  assert found[0]["answer_targets"][:1].view(np.float32) == -1.0


def test_nothing_is_left_out_for_a_head():
  """A head also learns from wrong nouns, which the generative task leaves out."""
  record = {"text": "He ran.", "span1_text": "Bob", "span2_text": "He", "span2_index": 0, "idx": 0, "training": True}
  records = [record | {"label": label} for label in (0, 1)]
  found = task(records, preprocessors.only_right, preprocessors.wsc)
  assert head_examples.need_of(found) == needs.Need("wsc", "class", (), 2)
  targets = [each["answer_targets"][0] for each in examples(found, HeadConfig("wsc", 2, reads="first"))]
  assert targets == [0, 1]


def test_answers_that_are_not_given_are_not_learnt():
  """Examples without an answer are made, as for test sets, but training batches leave them out."""
  asked = head_examples.for_heads(task(), "encoder_only", (HeadConfig("sure", 2, labels=LABELS, reads="first"),))
  dataset = asked.get_dataset({"inputs": 32}, split="train", shuffle=False, num_epochs=1)
  assert [each["idx"] for each in labelled(dataset).as_numpy_iterator()] == [0, 1]


def test_a_mixture_keeps_its_rates():
  """Tasks keep their rates, and the mixture itself is unchanged."""
  both = seqio.Mixture("both", [(task(), 3), (task(name="even"), 1)])
  asked = head_examples.for_heads(both, "encoder_only", (HeadConfig("sure", 2, labels=LABELS, reads="first"),))
  assert {each.name: asked.get_rate(each) for each in task_resolution.tasks_of(asked)} == {"odd": 3, "even": 1}
  assert all(
    set(each.output_features) == {"inputs", *kinds.ANSWER_FEATURES} for each in task_resolution.tasks_of(asked)
  )
  assert "targets" in both.output_features


def test_classes_in_another_order():
  """A head from elsewhere keeps its class order; targets are indices in that order."""
  head = HeadConfig("class", 2, labels=("YES", "no"), reads="first")
  asked = head_examples.for_heads(task(), "encoder_only", (head,))
  dataset = asked.get_dataset({"inputs": 32}, split="train", shuffle=False, num_epochs=1)
  found = [int(each["answer_targets"][0]) for each in dataset.take(2).as_numpy_iterator()]
  assert found == [0, 1]  # labels 1 and 0 of the task
  assert head_examples.heads_of([task()], dataclasses.replace(BERT_LIKE, heads=(head,)), BYTES) == (head,)
  need = head_examples.need_of(task())
  assert head_examples.labels_of(head, need) == ("yes", "no")
  assert head_examples.labels_of(HeadConfig("class", 2), need) == LABELS


def test_classes_that_differ_in_case():
  """Classes that differ only in case are distinct if the task distinguishes them; a head with other capitals is
  refused.
  """
  need = needs.Need("words", "class", ("Polish", "polish", "other"), 3)
  head = HeadConfig("words", 3, labels=("polish", "other", "Polish"))
  assert needs.order_of(head, need) == (2, 0, 1) and head_examples.labels_of(head, need) == head.labels
  assert needs._checked(head, need, "words") == head
  with pytest.raises(UserError, match="words is a class head with 3 classes"):
    needs._checked(HeadConfig("words", 3, labels=("POLISH", "polish", "other")), need, "words")


# ---- Tasks that no head can answer -----------------------------------------------------------------------------------


def without_options(dataset):
  return dataset.map(lambda record: {"inputs": record["text"], "targets": record["other"]})


def other_options(dataset):
  """Gives the second record other options."""
  options = tf.constant([["a", "b"], ["a", "c"], ["a", "b"]])
  return dataset.map(
    lambda x: {"inputs": x["text"], "targets": "a", "label": 0, "options": tf.gather(options, x["idx"])}
  )


def test_a_task_without_options():
  """The message lists the features that a head needs, and an alternative."""
  with pytest.raises(
    UserError, match=r"odd: no head can answer this task\. The examples have the fields inputs, targets, but .*opti"
  ):
    head_examples.need_of(task(RECORDS, without_options))


def test_options_that_differ():
  """Every example needs the options of the first one, because a class head has fixed classes."""
  found = task(RECORDS, other_options)
  need = head_examples.need_of(found)
  with pytest.raises(
    tf.errors.OpError, match="UserError: odd: an example has the options a, c, but the first example has a, b"
  ):
    examples(found, HeadConfig(need.head, 2, labels=need.labels, reads="first"))


def test_a_label_outside_of_the_options():
  """The error names the label before training, when the first examples are made."""
  found = task([RECORDS[0], RECORDS[1] | {"label": 2}])
  found = found.replace(preprocessors=[_without_targets, *found.preprocessors[1:]])
  with pytest.raises(tf.errors.OpError, match="UserError: odd: the label 2 is out of range.* has 2 classes"):
    examples(found, HeadConfig("odd", 2, labels=LABELS, reads="first"))


def _without_targets(dataset):
  """Formats a record with a label and options, but with targets that do not depend on the label."""
  return dataset.map(
    lambda x: {"inputs": x["text"], "targets": x["other"], "label": x["label"], "options": tf.constant(LABELS)}
  )


def test_more_candidates_than_fit():
  """The message has the number of candidates and a remedy."""
  record = {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}
  with pytest.raises(
    tf.errors.OpError, match=r"UserError: config.data.inputs_length=11 is too short for an example with 2 candidates"
  ):
    examples(task([record], preprocessors.copa), HeadConfig("copa", 1, "choice", reads="first"), length=11)


@pytest.mark.parametrize(
  ("head", "message"),
  [
    (HeadConfig("sure", 3), r"sure is a class head with 3 classes, but odd needs a class head with 2 \(no, yes\)"),
    (HeadConfig("sure", 1, "score"), "sure is a score head with 1 classes"),
    (HeadConfig("sure", 2, labels=("no", "maybe")), r"sure is a class head with 2 classes \(no, maybe\)"),
    (HeadConfig("other", 2), "odd: the model has no head 'sure' to answer this task. Heads of the model: other"),
  ],
)
def test_a_head_of_another_kind(head, message):
  """The message names the head and its classes."""
  with pytest.raises(UserError, match=message):
    head_examples.head_of(task(), (head,))


def test_two_tasks_of_one_name():
  """Tasks with the same question share a head; otherwise the error names both tasks."""
  same = head_examples.heads_of([task(), task(name="even")], BERT_LIKE, BYTES)
  assert [head.name for head in same] == ["sure"]
  other = functools.partial(preprocessors.labelled, prefix="sure", fields=("text",), labels=("a", "b", "c"))
  with pytest.raises(
    UserError,
    match="odd and even need different heads with the name 'sure'. One head has 2 classes .*, and the other has 3",
  ):
    head_examples.heads_of([task(), task(RECORDS, other, name="even")], BERT_LIKE, BYTES)


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("labels", "message"),
  [
    (
      (1, 2, 0),
      r"answers_before: the label 2 is out of range, .* has 2 classes, numbered from 0 \(no, yes\). Correct the label",
    ),
    ((-1, -1, -1), "answers_before: none of the first examples of split 'train' has an answer to learn from. Set"),
  ],
)
def test_the_first_examples_are_made_before_training(labels, message, monkeypatch):
  """Invalid first examples are refused before anything is written."""
  found = task([record | {"label": label} for record, label in zip(RECORDS, labels, strict=True)])
  found = found.replace(name="answers_before", preprocessors=[_without_targets, *found.preprocessors[1:]])
  monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, found.name, found)
  config = records(load_config("tiny_bert"))
  data = {"mixture": found.name, "task_modules": (), "eval_split": "train", "inputs_length": 32}
  config = config.with_(data=data, train={"loss": "", "batch_size": 2}, model={"vocab_size": 384})
  with pytest.raises(UserError, match=message):
    train_data.check(train_data.resolved(config))


def test_only_questions_ask_a_head():
  """A task that compares texts needs no head; steps that read lengths, and caches, do not matter."""

  def cut(dataset, sequence_length):
    return dataset.map(lambda example: {"text": tf.strings.substr(example["text"], 0, sequence_length["inputs"])})

  found = task().replace(metric_fns=[])
  assert not head_examples.is_answered(task_resolution.named("docs_pairs", modules=("t2t.tasks.docs",)))
  assert not head_examples.is_answered(found.replace(preprocessors=[cut]))
  assert head_examples.is_answered(found)
  assert head_examples.is_answered(found.replace(preprocessors=[seqio.CacheDatasetPlaceholder(), *found.preprocessors]))
