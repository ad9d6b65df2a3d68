"""Objectives on datasets: the docstrings' arrays, maximum lengths, and the registry."""

import functools
import inspect
import math

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import objectives, vocabularies
from t2t.data.objectives import chunking, corruption, denoisers, fill_in_the_middle

T5 = {"noise_density": 0.15, "mean_noise_span_length": 3.0}
ALL = sorted(objectives.OBJECTIVES)
WHOLE_TEXT = [  # targets are the text
  "bart",
  "bert_style",
  "deshuffling",
  "document_rotation",
  "sentence_permutation",
  "sequence_autoencoder",
  "text_infilling",
  "token_deletion",
  "token_masking",
]
WEIGHTED = [
  "answer_diffusion",
  "masked_diffusion",
  "bert_style_masked_only",
  "masked_lm_seq2seq",
  "masked_next_token",
  "next_token",
]  # and every encoder objective
WITHOUT_NOISE = ["causal_lm", "next_token", "s_denoising", "neighbouring_sentences", "same_text_twice", "text_to_text"]
WITHOUT_NOISE += ["translation", "translation_ranking", "glove", "sequence_autoencoder"]
PERMUTED = ["deshuffling", "document_rotation", "sentence_permutation", "sequence_autoencoder"]


def rows(*rows_of_targets):
  dataset = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows_of_targets, tf.int32))
  return dataset.map(lambda row: {"targets": row})


def lists(dataset):
  return [{key: value.tolist() for key, value in row.items()} for row in dataset.as_numpy_iterator()]


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, 1 EOS, 9 a full stop; the last ids are sentinels."""

  special_ids = frozenset({0, 1})

  def __init__(self, vocab_size=97, extra_ids=3, pieces=()):
    super().__init__(vocab_size, eos_id=1)
    self._extra_ids = extra_ids
    self._pieces = dict(pieces)

  def encode(self, text):
    return [50, 51]

  def token_texts(self):
    return [self._pieces.get(i, "." if i == 9 else " x") for i in range(self._base_vocab_size)]


def features(**options):
  feature = seqio.Feature(Ids(**options), add_eos=True)
  return {"inputs": feature, "targets": feature}


def drawn(preprocessor, tokens, sequence_length, *, number=400, seed=0, **options):
  """Returns the results of a preprocessor for many copies of a document."""
  with seqio.utils.map_seed_manager(seed):
    return lists(preprocessor(rows(*[tokens] * number), sequence_length, features(), merge_documents=False, **options))


def made(name, *, texts, inputs_length=64, targets_length=64, seed=0, vocabulary=None, **options):
  """Returns the examples of a task with this objective."""
  vocabulary = vocabulary or vocabularies.load("bytes", extra_ids=40)
  task = seqio.Task(
    "made",
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": texts}), splits=("train",)
    ),
    preprocessors=objectives.preprocessors(name, **options),
    output_features=objectives.output_features(name, vocabulary),
  )
  lengths = {"inputs": inputs_length, "targets": targets_length, "loss_weights": inputs_length}
  return lists(task.get_dataset(lengths, "train", shuffle=False, seed=seed))


# ---- Span corruption -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_span_corruption():
  out = objectives.span_corruption(rows([3, 4, 5, 6, 7]), {"inputs": 6, "targets": 3}, features())
  assert lists(out) == [{"inputs": [3, 4, 5, 6, 99], "targets": [99, 7]}]


@pytest.mark.slow
def test_every_example_is_full_when_documents_merge():
  """Joined short documents fill all examples but the last with 568 tokens; separate ones stay separate."""
  documents = [[5] * 71 for _ in range(24)]  # 3 x 568
  lengths = {"inputs": 512, "targets": 114}
  merged = lists(objectives.span_corruption(rows(*documents), lengths, features(extra_ids=100, vocab_size=900)))
  assert [len(e["inputs"]) + 1 for e in merged] == [512] * 3
  assert [len(e["targets"]) + 1 for e in merged] == [114] * 3
  apart = objectives.span_corruption(
    rows(*documents), lengths, features(extra_ids=100, vocab_size=900), merge_documents=False
  )
  noise, spans = corruption.span_counts(71, **T5)
  assert [len(e["inputs"]) for e in lists(apart)] == [71 - noise + spans] * 24


@pytest.mark.slow
def test_one_part_of_a_long_document_is_drawn(monkeypatch):
  """Joined documents are sampled as in T5; separate documents stay whole."""
  monkeypatch.setattr(chunking, "MAX_DOCUMENT", 50)
  lengths = {"inputs": 20, "targets": 10}
  for merge in (True, False):
    examples = lists(
      objectives.span_corruption(rows(*[[5] * 70] * 30), lengths, features(extra_ids=5), merge_documents=merge)
    )
    found = sum((example["inputs"] + example["targets"]).count(5) for example in examples)
    assert (30 * 20 < found < 30 * 50) if merge else found == 30 * 70


# ---- UL2 -------------------------------------------------------------------------------------------------------------


def test_ul2_puts_the_mode_in_front():
  out = drawn(
    denoisers.ul2, [3, 4, 5, 6, 7, 8], {"inputs": 12, "targets": 6}, number=1, denoisers=denoisers.S_DENOISERS
  )
  assert out == [{"inputs": [50, 51, 3, 4, 5, 6, 99], "targets": [99, 7, 8]}]


@pytest.mark.exhaustive
def test_ul2_mixes_seven_denoisers_equally():
  """Each denoiser, identified by mode, length and sentinels, fills its inputs and restores its text."""
  length, vocab_size, text = 300, 5_000, 2_000
  modes = {"[NLU]": 10, "[S2S]": 11, "[NLG]": 12}

  class Modes(Ids):
    def encode(self, text):
      return [modes[text]]

  feature = seqio.Feature(Modes(vocab_size, 100))
  all_denoisers = denoisers.R_DENOISERS + denoisers.S_DENOISERS + denoisers.X_DENOISERS
  kinds = [(d.noise_density, d.mean_noise_span_length) for d in all_denoisers]
  assert sorted(kinds) == [(0.15, 3), (0.15, 8), (0.15, 64), (0.25, math.inf), (0.5, 3), (0.5, 8), (0.5, 64)]
  sizes = [corruption.span_lengths(length - 1, noise_density=r, mean_noise_span_length=mu) for r, mu in kinds]
  with seqio.utils.map_seed_manager(0):
    document = list(range(100, 100 + text))
    dataset = denoisers.ul2(
      rows(*[document] * 300), {"inputs": length, "targets": length}, {"targets": feature}, merge_documents=False
    )
    found = lists(dataset)
  counts = np.zeros(7)
  for example in found:
    mode, inputs, targets = example["inputs"][0], example["inputs"][1:], example["targets"]
    assert len(example["inputs"]) < length and len(targets) < length
    sentinels = [token for token in targets if token > vocab_size]
    assert sentinels == [token for token in inputs if token > vocab_size]
    assert sentinels == [vocab_size + 99 - i for i in range(len(sentinels))]
    spans = {}
    for token in targets:
      if token > vocab_size:
        spans[token] = last = []
      else:
        last.append(token)
    restored = [token for given in inputs for token in spans.get(given, [given])]
    assert restored == list(range(restored[0], restored[0] + len(restored)))
    if restored[-1] < 100 + text - 1:  # excludes remainders of documents
      signature = (mode, len(inputs) + 1, len(targets) + 1, len(sentinels))
      match = [
        i
        for i, (size, denoiser) in enumerate(zip(sizes, all_denoisers, strict=True))
        if signature == (modes[denoiser.mode], size.inputs, size.targets, size.spans)
      ]
      assert len(match) == 1
      counts[match[0]] += 1
  assert counts.sum() > 1_000
  # Excluding the last chunks favours short ones.
  np.testing.assert_allclose(counts / counts.sum(), 1 / 7, atol=0.04)


def test_modes_of_any_length_leave_room_for_the_text():
  """Modes with different numbers of tokens never make inputs too long, EOS included."""
  modes = {"[NLU]": [10], "[S2S]": [11, 12, 13, 14], "[NLG]": [15, 16]}

  class Modes(Ids):
    def encode(self, text):
      return modes[text]

  feature = seqio.Feature(Modes(500, 100))
  with seqio.utils.map_seed_manager(0):
    documents = rows(*[list(range(100, 400))] * 20)
    lengths = {"inputs": 40, "targets": 40}
    found = lists(denoisers.ul2(documents, lengths, {"targets": feature}, merge_documents=False))
  longest = {
    mode[0]: max(len(each["inputs"]) for each in found if each["inputs"][0] == mode[0]) for mode in modes.values()
  }
  assert longest == {10: 39 - 3, 11: 39, 15: 39 - 2}


@pytest.mark.slow
def test_ul2_needs_room_for_all_its_denoisers():
  """T5's lengths do not fit; the error gives a sufficient one."""
  arguments = {"texts": ["some text"], "inputs_length": 128, "vocabulary": vocabularies.load("bytes", extra_ids=100)}
  assert made("r_denoising", targets_length=40, **arguments)
  with pytest.raises(
    UserError, match="config.data.targets_length=40 is too short.*Set config.data.targets_length="
  ) as e:
    made("ul2", targets_length=40, **arguments)
  assert made("ul2", targets_length=int(str(e.value).rsplit("=", 1)[1].removesuffix(".")), **arguments)
  with pytest.raises(UserError, match="config.data.extra_ids=20 is too small.* gives 30 noise spans"):
    made("x_denoising", targets_length=128, **{**arguments, "vocabulary": vocabularies.load("bytes", extra_ids=20)})


# ---- Text continuation -----------------------------------------------------------------------------------------------


def test_causal_lm():
  """The docstring's example: documents end in EOS and are joined."""
  out = objectives.causal_lm(rows([3, 4, 1], [5, 6, 7, 1]), {"targets": 5})
  assert lists(out) == [{"targets": [3, 4, 1, 5, 6]}, {"targets": [7, 1]}]
  found = made("causal_lm", texts=["ab", "cde"], targets_length=4)
  assert found == [{"targets": [100, 101, 1, 102]}, {"targets": [103, 104, 1]}]
  apart = made("causal_lm", texts=["ab", "cde"], targets_length=4, pack=True)
  assert apart == [{"targets": [100, 101, 1]}, {"targets": [102, 103, 104, 1]}]


@pytest.mark.slow
def test_fill_in_the_middle():
  """The docstring's examples, with the documented frequencies."""
  found = drawn(fill_in_the_middle.fill_in_the_middle, [3, 4, 5, 6, 7], {"targets": 12}, number=800)
  found = [example["targets"] for example in found]
  for row in ([3, 4, 5, 6, 7], [99, 3, 98, 6, 7, 97, 4, 5, 1], [99, 98, 6, 7, 97, 3, 4, 5, 1]):
    assert row in found
  plain = np.mean([row == [3, 4, 5, 6, 7] for row in found])
  suffix_first = np.mean([row[:2] == [99, 98] for row in found])
  assert abs(plain - 0.5) < 0.06
  assert abs(suffix_first - (0.25 + 0.25 / 6)) < 0.05  # an empty prefix looks the same: 11 of 36 pairs of cuts, near 0
  assert len({tuple(row) for row in found}) > 20


def test_pieces_of_the_vocabulary_mark_the_middle():
  """Marks of Code Llama's vocabulary."""
  marks = {40: " <PRE>", 41: " <MID>", 42: " <SUF>"}
  out = fill_in_the_middle.fill_in_the_middle(rows(*[[3, 4, 5]] * 50), {"targets": 12}, features(pieces=marks))
  marks = {token for example in lists(out) for token in example["targets"]} - {3, 4, 5, 1}
  assert marks == {40, 41, 42}
  assert any(example["targets"][0] == 40 for example in lists(out))


def test_prefix_lm():
  """The docstring's example; a chunk fits for every split."""
  prefix_lm = lambda dataset, lengths, _, **options: objectives.prefix_lm(dataset, lengths, **options)
  found = drawn(prefix_lm, [3, 4, 5, 6, 7], {"inputs": 8, "targets": 7})
  assert {"inputs": [3, 4], "targets": [5, 6, 7]} in found
  assert all(example["inputs"] + example["targets"] == [3, 4, 5, 6, 7] for example in found)
  found = drawn(prefix_lm, [3] * 6, {"inputs": 8, "targets": 7}, number=1)
  assert [len(example["inputs"] + example["targets"]) for example in found] == [5, 1]


DOCUMENTS: list[list[int]] = []  # documents in the datasets of `of_documents`


@functools.cache
def of_documents(name, merge):
  """Returns the dataset of an objective from `DOCUMENTS`, cached because building takes longer than reading."""
  signature = {"targets": tf.TensorSpec([None], tf.int32)}
  dataset = tf.data.Dataset.from_generator(
    lambda: ({"targets": np.array(document, np.int32)} for document in DOCUMENTS), output_signature=signature
  )
  _, *steps = objectives.preprocessors(name, pack=not merge)  # the first step tokenizes
  with seqio.utils.map_seed_manager(0):
    for step in steps:
      fitting = {"sequence_length": {"targets": 3_000}, "output_features": features()}
      dataset = step(dataset, **{key: fitting[key] for key in fitting.keys() & arguments_of(step)})
  return dataset


def arguments_of(step) -> set[str]:
  return set(inspect.signature(step).parameters)


def in_order(tokens):
  """Returns the original text of a chunk of `fill_in_the_middle`; its marks are 99, 98 and 97."""
  if tokens[0] != 99:
    return tokens
  assert tokens[-1] == 1
  suffix, middle = tokens.index(98), tokens.index(97)
  return tokens[1:suffix] + tokens[middle + 1 : -1] + tokens[suffix + 1 : middle]


LENGTHS = strategies.integers(1, 7_000) | strategies.sampled_from([65_535, 65_536, 65_537, 131_072, 300_001])


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(
  strategies.sampled_from(["causal_lm", "fill_in_the_middle"]),
  strategies.booleans(),
  strategies.lists(LENGTHS, max_size=3),
)
@hypothesis.example("causal_lm", True, [300_001, 7])
@hypothesis.example("causal_lm", True, [3] * 200 + [70_000])
def test_all_of_a_text_that_is_continued_comes_out(name, merge, lengths):
  """Every token of every document occurs once and in order, with EOS exactly at ends of documents."""
  DOCUMENTS[:] = [[10 + (13 * i + number) % 80 for i in range(length)] for number, length in enumerate(lengths)]
  found = [
    tokens for each in of_documents(name, merge).as_numpy_iterator() for tokens in in_order(each["targets"].tolist())
  ]
  assert found == [token for document in DOCUMENTS for token in [*document, 1]]


# ---- Noise and text --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mass():
  """The docstring's example; half of the inputs must fit the targets."""
  found = drawn(objectives.mass, [3, 4, 5, 6, 7, 8], {"inputs": 8, "targets": 4})
  assert {"inputs": [3, 4, 99, 99, 99, 8], "targets": [5, 6, 7]} in found
  found = drawn(objectives.mass, [3] * 20, {"inputs": 16, "targets": 4}, number=1)
  assert [len(example["inputs"]) for example in found] == [6, 6, 6, 2]  # 7 tokens would give 4 masks
  assert max(len(example["targets"]) for example in found) <= 4


def test_denoising():
  noise = {"noise": corruption.mask_tokens, "facts": ("mask_id",), "noise_density": 0.3}
  found = drawn(objectives.denoising, [3, 4, 5, 6, 7, 8], {"inputs": 8, "targets": 8}, **noise)
  assert {"inputs": [3, 99, 5, 6, 99, 8], "targets": [3, 4, 5, 6, 7, 8]} in found


TEXTS = ["Oh. ", "a", "No! Yes? Well.", "ab", "One two three. Four five, six? Seven eight nine ten eleven twelve." * 3]


@pytest.mark.exhaustive_from(6)
@pytest.mark.parametrize("name", WHOLE_TEXT)
def test_targets_are_the_text(name):
  """Targets are the whole text with EOS; permutations keep the tokens, other noise removes the published fraction."""
  vocabulary = vocabularies.load("bytes", extra_ids=40)
  found = made(name, texts=TEXTS, pack=True)
  text = [token for example in found for token in example["targets"][:-1]]
  assert text == [token for each in TEXTS for token in vocabulary.encode(each)]
  for example in found:
    inputs, targets = example["inputs"], example["targets"]
    assert inputs[-1] == targets[-1] == 1 and len(inputs) <= len(targets)
    if name in PERMUTED:
      assert sorted(inputs) == sorted(targets)
    else:
      noise = int(corruption.noise_count(len(targets) - 1, objectives.OBJECTIVES[name].published["noise_density"]))
      hidden = len(inputs) - inputs.count(vocabularies.mask_id(vocabulary)) - 1
      if name == "bert_style":
        assert 0 < sum(a != b for a, b in zip(inputs, targets, strict=True)) <= noise or len(targets) < 5
      else:
        assert hidden == len(targets) - 1 - noise
  is_changed = any(example["inputs"] != example["targets"] for example in found)
  assert is_changed == (name != "sequence_autoencoder")


# ---- All objectives --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  ("name", "pack"),  # separation depends only on the cutting function, shared by many
  [*((name, False) for name in ALL), *((name, True) for name in ("span_corruption", "causal_lm", "masked_lm", "bart"))],
)
def test_examples_fit_and_are_what_the_table_says(name, pack):
  """Checks features, types and lengths: no example is long enough for seqio to trim it."""
  objective = objectives.OBJECTIVES[name]
  letters = "abcdefgh. ij klm? nop"
  texts = ["".join(letters[(i * k) % len(letters)] for k in range(1, 1 + size)) for i, size in enumerate(
    (1, 2, 3, 4, 40, 61, 62, 63, 64, 65, 66, 200, 5, 1)
  )]  # fmt: skip
  records = {"text": texts, "entities": np.tile([[[0, 1]]], (len(texts), 1, 1))}
  if objective.parallel:
    records = {"first": texts, "second": texts[::-1]}
  if objective.counted:
    records = {"text": [" ".join(f"{3 + i % 50} {3 + i * i % 50} {1 + i}" for i in range(len(text))) for text in texts]}
  vocabulary = vocabularies.load("bytes", extra_ids=40)
  # Extra room shows the preprocessors' output untrimmed.
  task = seqio.Task(
    "all",
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(records), splits=("train",)
    ),
    preprocessors=objectives.preprocessors(name, pack=pack),
    output_features=objectives.output_features(name, vocabulary),
  )
  lengths = dict.fromkeys(("inputs", "targets", *objective.features), 64)
  dataset = task.get_dataset(lengths, "train", shuffle=False, seed=0, trim_output_features=False)
  assert set(dataset.element_spec) >= set(objective.features) == set(task.output_features)
  assert all(dataset.element_spec[feature].dtype == tf.int32 for feature in objective.features)
  found = lists(dataset)
  longest = {feature: max(len(example[feature]) for example in found) for feature in objective.features}
  assert all(1 <= length <= 64 for length in longest.values())
  if name == "prefix_lm":  # both sides together have the length of one
    longest = {"both": max(len(example["inputs"]) + len(example["targets"]) for example in found)}
  # The room is used, except for pairs of short sentences.
  assert max(longest.values()) == 64 or "texts" in objective.features
  if objective.features == ("inputs", "targets"):
    assert all(example[key][-1] == 1 and 1 not in example[key][:-1] for example in found for key in objective.features)
  again = lists(task.get_dataset(lengths, "train", shuffle=False, seed=0, trim_output_features=False))
  other = lists(task.get_dataset(lengths, "train", shuffle=False, seed=1, trim_output_features=False))
  assert found == again
  assert (found == other) == (name in WITHOUT_NOISE)


def test_an_unknown_objective_names_the_nearest():
  with pytest.raises(UserError, match="span_corupt.*did you mean span_corruption"):
    objectives.preprocessors("span_corupt")
  with pytest.raises(
    UserError, match="zzz: no such objective. Known objectives: annotated_masked_lm, answer_diffusion, bart, "
  ):
    objectives.output_features("zzz", seqio.ByteVocabulary())


def keywords(name, **options):
  """Returns the arguments of an objective's preprocessor."""
  return next(step.keywords for step in objectives.preprocessors(name, **options)[1:] if step.keywords)


def test_noise_is_the_published_unless_given():
  """0 selects the published value; inapplicable and invalid numbers are refused."""
  assert keywords("mass")["noise_density"] == 0.5
  assert keywords("bart")["noise_density"] == 0.3 and keywords("bart")["mean_noise_span_length"] == 3.0
  assert keywords("bart", noise_density=0.4)["noise_density"] == 0.4
  assert keywords("masked_lm", pack=True) == {**keywords("masked_lm"), "merge_documents": False}
  for name in ("masked_lm", "whole_word_masked_lm", "span_masked_lm", "bert_style"):
    assert keywords(name)["noise_density"] == 0.15
  with pytest.raises(UserError, match="config.data.mean_noise_span_length=3.0 has no effect with .*masked_lm. .*=0.0"):
    objectives.preprocessors("masked_lm", mean_noise_span_length=3.0)
  with pytest.raises(UserError, match="config.data.noise_density=0.2 has no effect with .*causal_lm"):
    objectives.preprocessors("causal_lm", noise_density=0.2)
  with pytest.raises(UserError, match="config.data.noise_density=1.5"):
    objectives.preprocessors("masked_lm", noise_density=1.5)


def test_rates_of_the_replacement_have_published_values():
  """BERT's and those of T5's variant; a rate out of range, a sum above 1 or an objective without them is an error."""
  rates = lambda name, **options: tuple(keywords(name, **options)[key] for key in ("mask_rate", "random_rate"))
  encoders = ("masked_lm", "unilm", "masked_lm_sop", "span_masked_lm_sbo", "translation_lm", "annotated_masked_lm")
  assert {rates(name) for name in (*encoders, "masked_next_token", "masked_lm_seq2seq")} == {(0.8, 0.1)}
  assert rates("bert_style") == rates("bert_style_masked_only") == (0.9, 0.1)
  assert rates("masked_lm", mask_rate=1.0, random_rate=0.0) == (1.0, 0.0)
  assert rates("masked_lm", mask_rate=0.0) == (0.0, 0.1)
  for options, message in (
    ({"mask_rate": 1.2}, "config.data.mask_rate=1.2: the value must be from 0 to 1"),
    ({"random_rate": -0.5}, "config.data.random_rate=-0.5: the value must be from 0 to 1"),
    ({"random_rate": 0.3}, "config.data.mask_rate=0.8 and config.data.random_rate=0.3 add up to more than 1"),
  ):
    with pytest.raises(UserError, match=message):
      objectives.preprocessors("masked_lm", **options)
  with pytest.raises(UserError, match="config.data.mask_rate=0.8 has no effect with .*span_corruption. Set .*=-1.0"):
    objectives.preprocessors("span_corruption", mask_rate=0.8)


@pytest.mark.parametrize("name", ALL)
def test_the_table_is_consistent(name):
  """An objective's features match its architectures."""
  objective = objectives.OBJECTIVES[name]
  assert set(objective.architectures) <= {"encoder_decoder", "decoder_only", "encoder_only"}
  encodes = objective.architectures == ("encoder_only",)
  assert ("loss_weights" in objective.features) == (encodes or name in WEIGHTED)
  compares = len(objective.architectures) == 3
  assert ("texts" in objective.features) == (compares or bool(objective.heads))
  output_features = objectives.output_features(name, seqio.ByteVocabulary(10))
  assert tuple(output_features) == objective.features
  for feature, definition in output_features.items():
    is_text = feature in ("inputs", "targets")
    assert definition.dtype == tf.int32 and definition.add_eos == is_text
    assert isinstance(definition.vocabulary, seqio.PassThroughVocabulary) != is_text


def test_which_objective_fits_which_architecture():
  with pytest.raises(UserError) as error:
    objectives.check_fits("masked_lm", "decoder_only")
  assert str(error.value).startswith(
    "config.data.objective=masked_lm does not fit config.model.architecture=decoder_only. "
    "Give one of the objectives answer_diffusion, causal_lm, drop"
  )
  objectives.check_fits("masked_lm", "encoder_only")
  assert {name for name, each in objectives.OBJECTIVES.items() if "encoder_only" in each.architectures} == {
    "answer_diffusion",
    "masked_diffusion",
    "masked_lm",
    "whole_word_masked_lm",
    "span_masked_lm",
    "ngram_masked_lm",
    "fragment_masked_lm",
    "unilm",
    "permuted_lm",
    "overlapping_permuted_lm",
    "span_masked_lm_sbo",
    "annotated_masked_lm",
    "translation_lm",
    "translation_ranking",
    "masked_lm_nsp",
    "masked_lm_sop",
    "ngram_masked_lm_sop",
    "struct_bert",
    "neighbouring_sentences",
    "same_text_twice",
    "skip_gram",
    "cbow",
    "glove",
  }


def task(name, preprocessors):
  source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: rows([1]), splits=("train",))
  return seqio.Task(name, source=source, preprocessors=preprocessors, output_features=features())


def test_tasks_know_their_objectives():
  """Also after custom preprocessors, in nested mixtures, and after seqio changed the vocabulary."""
  plain = task("plain", [seqio.preprocessors.append_eos])
  spans = task("spans", [seqio.preprocessors.append_eos, *objectives.preprocessors("span_corruption")])
  prefix = task("prefix", objectives.preprocessors("prefix_lm"))
  assert objectives.of(plain) == set()
  assert objectives.of(spans) == {"span_corruption"} and objectives.of(prefix) == {"prefix_lm"}
  mixture = seqio.Mixture("both", [(seqio.Mixture("inner", [(spans, 1), (plain, 1)]), 1), (prefix, 1)])
  assert objectives.of(mixture) == {"span_corruption", "prefix_lm"}
  for each in (spans, prefix):
    changed = seqio.helpers.mixture_or_task_with_new_vocab(
      each, f"{each.name}_changed", new_vocab=seqio.ByteVocabulary(), add_to_seqio_registry=False
    )
    assert objectives.of(changed) == objectives.of(each)
