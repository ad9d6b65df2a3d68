"""Sentence-pair tasks: the docstrings' arrays, and correct labels for each arrangement."""

import dataclasses
import functools
import itertools

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration import stages
from t2t.configuration.loading import load_config, records
from t2t.data import objectives, pipeline, train_data
from t2t.data.objectives import masking, nsp_sop
from t2t.losses.head_losses import HeadLosses
from t2t.models.head_config import HeadConfig
from t2t.training import recipe

pytestmark = pytest.mark.slow

SEED = [3, 5]


class Vocabulary(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, 1 EOS, 9 a full stop, 96 a mask, 97 [CLS] and 98 [SEP]."""

  special_ids = frozenset({0, 1, 96, 97, 98})
  mask_id, cls_id, sep_id, bos_id = 96, 97, 98, 1

  def __init__(self):
    super().__init__(99, eos_id=1)

  def token_texts(self):
    return [". " if i == 9 else " x" for i in range(99)]


def documents(number=40, seed=0):
  """Returns documents of random lengths; tokens of each are increasing, in a range of its own."""
  random = np.random.default_rng(seed)
  rows = [np.arange(10, 10 + random.integers(1, 60)) for _ in range(number)]
  dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([row.tolist() for row in rows], tf.int32))
  return dataset.map(lambda row: {"targets": row}), rows


def pairs(task, *, length=24, **options):
  feature = seqio.Feature(Vocabulary(), add_eos=True)
  dataset, rows = documents()
  with seqio.map_seed_manager(initial_seed=1):
    made = nsp_sop.masked_pairs(
      dataset, {"inputs": length, "targets": length}, {"targets": feature}, task=task, **options
    )
  return list(made.as_numpy_iterator()), rows


def halves_of(example):
  tokens = example["targets"]
  (first, second) = np.flatnonzero(tokens == 98)
  return tokens[1:first], tokens[first + 1 : second]


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", [nsp_sop.NEXT, nsp_sop.ORDER, nsp_sop.STRUCTURE], ids=lambda task: task.head.name)
def test_arrangements_are_what_their_class_says(task):
  """B continues A, A continues B, or neither; all are about equally frequent."""
  found, _ = pairs(task)
  counts = np.zeros(len(task.arrangements))
  for example in found:
    assert example["inputs"][0] == 97 and np.sum(example["targets"] == 98) == 2
    assert np.flatnonzero(example["answer_heads"]).tolist() == [0] and example["answer_heads"][0] == 1
    first, second = halves_of(example)
    name = task.arrangements[example["answer_targets"][0]]
    follows = {"next": second[0] == first[-1] + 1, "swapped": first[0] == second[-1] + 1}
    if name in follows:
      assert follows[name]
    counts[example["answer_targets"][0]] += 1
    types = np.concatenate([np.zeros(len(first) + 2), np.ones(len(second) + 1)])
    np.testing.assert_array_equal(example["token_types"], types)
  assert len(found) > 60 and counts.min() > 0.5 * counts.mean()


def test_a_text_from_elsewhere_is_of_another_document():
  """The docstring's arrays; never from the same document, and empty if there is no other."""
  second = tf.ragged.constant([[5, 5], [6], [7, 7, 7]], dtype=tf.int32)
  group = {"second": second, "document": tf.constant([0, 0, 1]), "kind": tf.constant([0, 0, 0])}
  made = nsp_sop.with_others(group, SEED)
  assert made["second"].to_list() == [[5, 5], [6], [7, 7]] and made["other"].to_list() == [[7, 7], [7], [5, 5]]
  alone = nsp_sop.with_others(group | {"document": tf.constant([2, 2, 2])}, SEED)
  assert alone["second"].to_list() == second.to_list() and alone["other"].to_list() == [[], [], []]


def test_a_text_from_elsewhere_is_of_the_same_kind():
  """The same kind is preferred if its length is close; ties are random."""
  second = tf.RaggedTensor.from_row_lengths(tf.repeat(tf.range(10, 15), [8, 9, 8, 10, 40]), [8, 9, 8, 10, 40])
  group = {"second": second, "document": tf.range(5), "kind": tf.constant([0, 0, 1, 0, 1])}
  assert [row[0] for row in nsp_sop.with_others(group, SEED)["other"].to_list()][0] == 11
  assert [row[0] for row in nsp_sop.with_others(group, SEED)["other"].to_list()][2] in (10, 11)
  drawn = {nsp_sop.with_others(group, [1, seed])["other"].to_list()[1][0] for seed in range(20)}
  assert drawn == {10, 13}


def test_a_document_alone_has_no_other():
  """All pairs of a single document are "next"."""
  feature = seqio.Feature(Vocabulary(), add_eos=True)
  dataset = tf.data.Dataset.from_tensors({"targets": tf.range(10, 90)})
  made = nsp_sop.masked_pairs(dataset, {"inputs": 16, "targets": 16}, {"targets": feature}, task=nsp_sop.NEXT)
  assert {int(example["answer_targets"][0]) for example in made.as_numpy_iterator()} == {0}


def test_a_copy_of_a_document_is_the_same_document():
  """Epochs of a small corpus are adjacent in a window; a "random" text is from neither copy."""
  dataset = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(10, 90), [4, 20])).repeat(20)
  feature = seqio.Feature(Vocabulary(), add_eos=True)
  made = nsp_sop.masked_pairs(
    dataset.map(lambda row: {"targets": row}),
    {"inputs": 24, "targets": 24},
    {"targets": feature},
    task=nsp_sop.NEXT,
  )
  found = list(made.as_numpy_iterator())
  assert sum(example["answer_targets"][0] for example in found) > 20
  for example in found:
    first, second = halves_of(example)
    assert ((first[0] - 10) // 20 != (second[0] - 10) // 20) == example["answer_targets"][0]


# ---- Cues that could reveal the class --------------------------------------------------------------------------------


@functools.cache
def shapes(task, length, share=0.6):
  """Returns classes of many examples; lengths of example, A and B; and whether A and B end a sentence.

  A fraction `share` of the documents has sentences; the others have none.
  """
  random = np.random.default_rng(7)
  number = 14 * length  # about 4,000 chunks
  sizes = np.where(random.random(number) < 0.5, random.integers(10, 100, number), random.integers(100, 800, number))
  tokens = random.integers(10, 90, sizes.sum()).astype(np.int32)
  ends = np.cumsum(random.integers(8, 30, len(tokens))) - 1
  tokens[ends[ends < share * len(tokens)]] = 9
  tokens[np.cumsum(sizes) - 1] = 9  # a document ends with a sentence
  dataset = tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_lengths(tokens, sizes))
  with seqio.map_seed_manager(initial_seed=3):
    made = nsp_sop.masked_pairs(
      dataset.map(lambda row: {"targets": row}),
      {"inputs": length, "targets": length},
      {"targets": seqio.Feature(Vocabulary(), add_eos=True)},
      task=task,
      choose=lambda candidates, *_, **__: (tf.zeros_like(candidates), tf.range(tf.size(candidates))),
    )
  rows = []
  for example in made.as_numpy_iterator():
    first, second = halves_of(example)
    ends = (first[-1] == 9, second[-1] == 9)
    rows.append((example["answer_targets"][0], len(example["targets"]), len(first), len(second), *ends))
  return np.array(rows).T


def advantage(labels, seen):
  """Returns the accuracy gain over the majority class from a classifier that knows `seen`."""
  half = len(labels) // 2
  counts = np.zeros((seen.max() + 1, labels.max() + 1))
  np.add.at(counts, (seen[:half], labels[:half]), 1)
  return np.mean(counts.argmax(axis=1)[seen[half:]] == labels[half:]) - np.bincount(labels[half:]).max() / (
    len(labels) - half
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("task", "length"),
  [(nsp_sop.NEXT, 64), (nsp_sop.NEXT, 128), (nsp_sop.ORDER, 64), (nsp_sop.STRUCTURE, 64)],
  ids=lambda each: str(each) if isinstance(each, int) else each.head.name,
)
def test_lengths_do_not_tell_the_class(task, length):
  """Lengths of the example and of either text, in short and long documents."""
  labels, *lengths, _, _ = shapes(task, length)
  assert len(labels) > 3000 and max(advantage(labels, seen) for seen in lengths) < 0.03


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", [nsp_sop.NEXT, nsp_sop.ORDER, nsp_sop.STRUCTURE], ids=lambda task: task.head.name)
def test_ends_of_sentences_do_not_tell_the_class(task):
  """Nor together with the example's length; most short examples end with their document."""
  labels, size, _, _, *ends = shapes(task, 64, 0.6 if task is nsp_sop.NEXT else 1.0)
  assert advantage(labels, ends[0] + 2 * ends[1] + 4 * (size > 60)) < 0.03


def test_a_text_is_divided_behind_a_sentence():
  """A random sentence end if there is one, else any point; neither half is empty."""
  ends = tf.range(20) == 9
  halves = lambda tokens, seed: [
    x.numpy().tolist() for x in nsp_sop.halves(tf.constant(tokens), seed, ends_sentence=ends)
  ]
  found = {tuple(halves([3, 4, 9, 5, 6, 9, 7], [1, seed])[0]) for seed in range(20)}
  assert found == {(3, 4, 9), (3, 4, 9, 5, 6, 9)}
  anywhere = [halves([3, 4, 5, 9], [1, seed]) for seed in range(20)]  # the last full stop ends the text
  assert {len(first) for first, _ in anywhere} == {1, 2, 3} and all(a + b == [3, 4, 5, 9] for a, b in anywhere)


@hypothesis.given(strategies.lists(strategies.booleans(), max_size=80), strategies.integers(1, 20))
@hypothesis.settings(max_examples=50)
def test_pieces_are_whole_sentences(ends, length):
  """Chunks have as many sentences as fit; a longer one is cut, and no token is lost."""
  splits = nsp_sop.cuts(tf.constant(ends, tf.bool), length=length).numpy().tolist()
  assert (splits[0], splits[-1]) == (0, len(ends)) and splits == sorted(set(splits))
  behind = {i + 1 for i, end in enumerate(ends) if end}
  for start, end in itertools.pairwise(splits):
    fits = [at for at in behind if start < at <= start + length]
    longest = min(start + length, len(ends))
    assert end == (max(fits) if fits and longest < len(ends) else longest)


def test_the_pieces_of_the_docstring():
  """Sentences of three, two and seven tokens, and a remainder."""
  ends = np.isin(np.arange(13), (2, 4, 11))
  assert nsp_sop.cuts(tf.constant(ends), length=5).numpy().tolist() == [0, 5, 10, 13]


def test_every_token_comes_out():
  """Documents are cut in order; only single tokens are dropped."""
  found, rows = pairs(nsp_sop.ORDER)
  tokens = np.concatenate([np.concatenate(halves_of(example)) for example in found])
  expected = np.concatenate([row[: len(row) - (len(row) % 21 == 1)] for row in rows])
  np.testing.assert_array_equal(np.sort(tokens), np.sort(expected))


def test_trigrams_are_shuffled():
  """Shuffles 5 % of the movable trigrams; other tokens stay."""
  tokens, may_move = tf.range(100, 400), tf.range(300) % 50 != 7
  moved_to, where = (x.numpy() for x in nsp_sop.shuffle_trigrams(tokens, may_move, SEED))
  assert where.sum() == 3 * round(0.05 * sum(all((i + k) % 50 != 7 for k in range(3)) for i in range(0, 300, 3)))
  np.testing.assert_array_equal(moved_to[~where], tokens.numpy()[~where])
  assert not np.any(where & ~may_move.numpy())
  runs_of = np.split(np.flatnonzero(where), where.sum() // 3)
  assert all(sorted(moved_to[run]) == tokens.numpy()[run].tolist() for run in runs_of)
  assert any(moved_to[run].tolist() != tokens.numpy()[run].tolist() for run in runs_of)


@pytest.mark.exhaustive
def test_the_order_of_words_has_a_loss():
  """Tokens in shuffled trigrams are predicted, masked or not."""
  found, _ = pairs(nsp_sop.STRUCTURE, length=64)
  plain, _ = pairs(dataclasses.replace(nsp_sop.STRUCTURE, shuffles_words=False), length=64)
  share = lambda examples: sum(x["loss_weights"].sum() for x in examples) / sum(len(x["inputs"]) for x in examples)
  assert share(plain) + 0.02 < share(found) < share(plain) + 0.12
  changed = [(x["inputs"] != x["targets"]) & (x["loss_weights"] == 0) for x in found]
  assert not np.concatenate(changed).any()


def test_short_ngrams_are_more_frequent():
  """N-grams have one, two or three words in the ratio 6 : 3 : 2; the number of tokens is exact."""
  candidates = tf.constant([False] + [True] * 2000 + [False])
  chosen, groups = masking.word_ngrams(candidates, candidates, SEED)
  assert tf.math.count_nonzero(chosen) == 300
  sizes = np.bincount(np.bincount(groups.numpy()[1:-1]))[1:4]
  np.testing.assert_allclose(sizes / sizes.sum(), np.array([6, 3, 2]) / 11, atol=0.04)


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def run(objective="masked_lm_nsp", **train):
  config = records(load_config("tiny_bert"))
  return config.with_(data={"mixture": f"docs_{objective}", "objective": objective}, train=train)


def test_a_run_has_the_head_that_its_objective_asks():
  """The objective's head is the first and is trained; a head of that name in the config stays unchanged."""
  config = train_data.resolved(run())
  assert config.train.loss == "tokens_and_heads" and config.model.heads == (nsp_sop.NEXT.head,)
  own = dataclasses.replace(nsp_sop.NEXT.head, reads="mean")
  config = train_data.resolved(run().with_(model={"heads": (HeadConfig("other", 1, "detector"), own)}))
  assert [head.name for head in config.model.heads] == ["nsp", "other"] and config.model.heads[0] == own


@pytest.mark.parametrize("name", ["albert_base", "bert_nsp_base", "spanbert_base", "struct_bert_base"])
def test_configs_have_the_heads_of_their_objectives(name):
  """Configs list the classes in the objective's order, because they cannot import t2t.data."""
  config = records(load_config(name))
  assert config.model.heads == objectives.heads_of(config.data.objective)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"train": {"loss": "cross_entropy"}}, "loss=cross_entropy does not train both the tokens and the head 'nsp'"),
    (
      {"model": {"heads": (HeadConfig("nsp", 3),)}},
      r"nsp is a class head with 3 classes, but the objective needs a class head with 2 classes \(next, random\)",
    ),
    ({"data": {"mixture": "docs_masked_lm_nsp,docs_masked_lm_sop"}}, "the objectives use different heads"),
  ],
)
def test_what_an_objective_cannot_ask(changes, message):
  with pytest.raises(UserError, match=message):
    train_data.resolved(run().with_(**changes))


@pytest.mark.exhaustive
def test_what_is_planned_is_what_is_read():
  """The recipe's features equal those of the pipeline, and both terms have a denominator."""
  config = train_data.resolved(run()).with_(train={"batch_size": 8})
  mesh = sharding.make_mesh({"fsdp": 8})
  batch = next(train_data.batches(stages.of(config), mesh, num_streams=None))
  planned = recipe.batch(config)
  assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
    name: (x.shape, x.dtype) for name, x in planned.items()
  }
  train_data.check(config)
  weights = HeadLosses.from_config(config).weights(batch)
  assert weights["nsp"] == 8.0 and weights["tokens"] == np.sum(batch["encoder_loss_weights"])


def test_objectives_with_heads_are_those_of_the_table():
  """Exactly these objectives have heads."""
  asks = {name: [head.name for head in objectives.heads_of(name)] for name in objectives.OBJECTIVES}
  assert {name: heads for name, heads in asks.items() if heads} == {
    "masked_lm_nsp": ["nsp"],
    "masked_lm_sop": ["sop"],
    "ngram_masked_lm_sop": ["sop"],
    "struct_bert": ["structure"],
    "span_masked_lm_sbo": ["sbo"],
  }
  assert pipeline.load_task(run().data).output_features.keys() == set(objectives.OBJECTIVES["masked_lm_nsp"].features)
