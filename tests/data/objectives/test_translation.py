"""Texts with translations: masking, file formats, and training."""

import collections
import gzip
import json
import re

from flax import nnx
import numpy as np
import pytest
import seqio
import tensorflow as tf
import toy

from t2t import UserError
from t2t import __main__ as command
from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import docs_corpus, feature_converters, objectives, pipeline, validation
from t2t.data.objectives.translation import translation_lm
from t2t.data.sources import bitext
from t2t.training import recipe
from t2t.training.train import train

pytestmark = pytest.mark.slow


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, [CLS] 101 and [SEP] 102, or both </s> as in XLM; 99 is the mask."""

  mask_id, pad_id, bos_id = 99, 0, 101

  def __init__(self, *, cls_id=101, sep_id=102):
    super().__init__(110, eos_id=sep_id)
    self.cls_id, self.sep_id, self._extra_ids = cls_id, sep_id, 0
    self.special_ids = {0, 1, 2, *range(99, 110)}


def examples(*documents, vocabulary=None, inputs=16, targets=16, **options):
  texts = {"first": [first for first, _ in documents], "second": [second for _, second in documents]}
  dataset = tf.data.Dataset.from_tensor_slices({n: tf.ragged.constant(x, tf.int32) for n, x in texts.items()})
  features = dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary or Ids()))
  with seqio.utils.map_seed_manager(0):
    dataset = translation_lm(dataset, {"inputs": inputs, "targets": targets}, features, **options)
  return [{name: x.tolist() for name, x in example.items()} for example in dataset.as_numpy_iterator()]


# ---- Examples --------------------------------------------------------------------------------------------------------


def test_the_docstrings_example():
  """For some seed; two of five tokens are masked, in either or both texts, but no special token."""
  found = examples(*[([3, 4, 5], [6, 7])] * 400, noise_density=0.4)
  assert {
    "inputs": [101, 3, 99, 5, 102, 101, 99, 7, 102],
    "targets": [101, 3, 4, 5, 102, 101, 6, 7, 102],
    "loss_weights": [0, 0, 1, 0, 0, 0, 1, 0, 0],
    "token_types": [0, 0, 0, 0, 0, 1, 1, 1, 1],
    "input_places": [0, 1, 2, 3, 4, 0, 1, 2, 3],
  } in found
  for each in found:
    inputs, targets, weights = (np.array(each[name]) for name in ("inputs", "targets", "loss_weights"))
    assert weights.sum() == 2 and not weights[targets > 100].any()
    np.testing.assert_array_equal(inputs[weights == 0], targets[weights == 0])
  assert len({tuple(each["loss_weights"]) for each in found}) == 10  # all choices of two of five


def test_the_papers_figure():
  """</s> the [MASK] [MASK] blue </s> </s> [MASK] rideaux etaient [MASK] </s>: positions 0 to 5 twice, en and fr."""
  end, the, curtains, were, blue, les, rideaux, etaient, bleus = 101, 11, 12, 13, 14, 21, 22, 23, 24
  pair = ([the, curtains, were, blue], [les, rideaux, etaient, bleus])
  found = examples(*[pair] * 1_500, vocabulary=Ids(cls_id=end, sep_id=end), noise_density=0.5)
  assert {
    "inputs": [end, the, 99, 99, blue, end, end, 99, rideaux, etaient, 99, end],
    "targets": [end, the, curtains, were, blue, end, end, les, rideaux, etaient, bleus, end],
    "loss_weights": [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0],
    "token_types": [0] * 6 + [1] * 6,
    "input_places": [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
  } in found


def test_what_does_not_fit_is_cut():
  """The longer text is cut first, so that both remain; the row is full."""
  (found,) = examples(([3] * 3, [5] * 30))
  assert [found["targets"].count(token) for token in (3, 5, 101, 102)] == [3, 9, 2, 2]
  (found,) = examples(([3] * 30, [5] * 31))
  assert [found["targets"].count(token) for token in (3, 5)] == [6, 6]
  with pytest.raises(UserError, match=r"inputs_length=5 .*Set config.data.inputs_length=6"):
    examples(([3], [4]), inputs=5)
  with pytest.raises(UserError, match=r"targets_length=8 .*Set config.data.targets_length=16"):
    examples(([3], [4]), targets=8)


def test_what_the_model_gets():
  """Positions and token types are the task's, packed or not; only the texts of one pair attend to each other."""
  found = examples(([3, 4, 5], [6, 7]), ([8], [9]))
  lengths = feature_converters.feature_lengths("encoder_only", tuple(found[0]), inputs_length=16, targets_length=16)
  signature = {name: tf.TensorSpec([None], tf.int32) for name in found[0]}
  dataset = tf.data.Dataset.from_generator(lambda: iter(found), output_signature=signature)
  convert = lambda pack: feature_converters.convert(dataset, "encoder_only", lengths, vocabulary=Ids(), pack=pack)
  (row,) = convert(True).as_numpy_iterator()
  assert row["encoder_positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0]
  assert row["encoder_token_types"].tolist() == [0] * 5 + [1] * 4 + [0] * 3 + [1] * 3 + [0]
  assert row["encoder_segment_ids"].tolist() == [1] * 9 + [2] * 6 + [0]
  assert row["encoder_target_tokens"].tolist() == [*found[0]["targets"], *found[1]["targets"], 0]
  first, _ = convert(False).as_numpy_iterator()
  assert first["encoder_positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, *[0] * 7]
  assert first["encoder_token_types"].tolist() == [0] * 5 + [1] * 4 + [0] * 7
  assert first["encoder_segment_ids"].tolist() == [1] * 9 + [0] * 7


# ---- Files -----------------------------------------------------------------------------------------------------------

PAIRS = [(f"word {i} of it", f"mot {i} de la") for i in range(300)]


def write(folder, kind):
  """Writes the pairs as files of a kind; returns the config keys that name them."""
  if kind == "tsv":
    (folder / "a.tsv").write_text("".join(f"{first}\t{second}\n" for first, second in PAIRS))
    return {"files": f"{folder}/a.tsv"}
  if kind == "json":
    lines = "".join(json.dumps({"en": first, "fr": second, "id": 1}) + "\n" for first, second in PAIRS)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return {"files": f"{folder}/a.jsonl.gz", "field": "en", "translation": "fr"}
  for i, language in enumerate(("en", "fr")):
    (folder / f"a.{language}.txt").write_text("".join(f"{pair[i]}\n" for pair in PAIRS))
  return {"files": f"{folder}/*.en.txt", "translation": ".en.txt=.fr.txt"}


def data_of(**fields):
  options = {"vocabulary": "bytes", "objective": "translation_lm", "inputs_length": 48, "targets_length": 48}
  return DataConfig(**(options | fields))


def texts(data, split):
  """Returns the pairs of a split from its examples: bytes, each text followed by EOS."""
  task = pipeline.load_task(data)
  found = [x["targets"] for x in pipeline.task_examples(data, "encoder_only", task, split=split).as_numpy_iterator()]
  decoded = [bytes(np.where(x == 1, 10, x - 3).astype(np.uint8)).decode() for x in found]
  return [tuple(text.split("\n")[:-1]) for text in decoded]


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("kind", ["tsv", "json", "aligned"])
def test_pairs_of_files(tmp_path, kind):
  """Two columns, two fields, or two files give the same pairs, some held out, and resume."""
  data = data_of(**write(tmp_path, kind))
  held_out = texts(data, "validation")
  assert 1 <= len(held_out) < 20
  assert sorted([*texts(data, "train"), *held_out]) == sorted(PAIRS)
  assert texts(data_of(**write(tmp_path, kind), eval_files=data.files), "validation") == PAIRS
  found = pipeline.eval_rows(data, "encoder_only", batch_size=4, max_batches=1)[0]
  row = np.flatnonzero(found["encoder_token_types"].any(axis=1))[0]  # streams without held-out text have none
  places, types = found["encoder_positions"][row], found["encoder_token_types"][row]
  assert np.flatnonzero(places == 0)[1] == np.flatnonzero(types)[0]


def test_blank_pairs_are_left_out(tmp_path):
  (tmp_path / "a.tsv").write_text("one\tun\n\ntwo\t \n \tdeux\nthree\ttrois\n")
  assert texts(data_of(files=f"{tmp_path}/a.tsv", eval_files=f"{tmp_path}/a.tsv"), "train") == [
    ("one", "un"),
    ("three", "trois"),
  ]


def check(data):
  validation.check(data, architecture="encoder_only", batch_size=1, model_vocab_size=512)


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("files", "keys", "message"),
  [
    (
      {"a.en.txt": "a\nb\nc\n", "a.fr.txt": "a\nb\n"},
      {"translation": ".en.txt=.fr.txt"},
      r"a.en.txt, line 3: .*/a.fr.txt has no line 3",
    ),
    (
      {"a.en.txt": "a\nb\n", "a.fr.txt": "a\nb\nc\nd\n"},
      {"translation": ".en.txt=.fr.txt"},
      r"a.fr.txt, line 3: .*/a.en.txt has no line 3",
    ),
    ({"a.en.txt": "a\n"}, {"translation": ".en.txt=.fr.txt"}, r"^config.data.translation=.*a.fr.txt cannot be read"),
    (
      {"a.en.txt": "a\n"},
      {"translation": ".eng.txt=.fr.txt"},
      r"a.en.txt does not end in '.eng.txt', the first part of config.data",
    ),
    (
      {"a.tsv": "a\tb\n"},
      {"translation": ".en.txt=.fr.txt"},
      r"^config.data.translation=.* applies only to parallel text files",
    ),
    ({"a.txt": "a\n"}, {}, "a.txt has no translations for config.data.translation=translation. Give a .tsv"),
    ({"a.tsv": "a\tb\na\n"}, {}, r"a.tsv, line 2: the line has no tab; give a text and its translation"),
    ({"a.tsv": "a\tb\na\tb\tc\n"}, {}, r"a.tsv, line 2: the line has 3 columns, separated by tabs"),
    ({"a.jsonl": '{"text": "a", "translation": "b"}\n{"text": "a"}\n'}, {}, "line 2: no field 'translation'"),
    ({"a.jsonl": '{"text": "a", "translation": 3}\n'}, {}, "line 1: field 'translation' has type number, not string"),
    ({"a.tsv": "a\tb\n"}, {"objective": "masked_lm"}, "a.tsv has texts and translations, but this objective"),
  ],
)  # fmt: skip
def test_files_without_translations(tmp_path, files, keys, message):
  """The message has file, line and remedy, before training."""
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  first = min(files)
  with pytest.raises(UserError, match=message):
    check(data_of(files=f"{tmp_path}/{first}", eval_files=f"{tmp_path}/{first}", **keys))


def test_lines_are_counted_before_training(tmp_path):
  """Small files are checked before training; others while they are read."""
  for language, lines in {"en": 3, "fr": 2}.items():
    (tmp_path / f"a.{language}.txt").write_text("a\n" * lines)
  check_files = lambda most: bitext.check(
    [f"{tmp_path}/a.en.txt"], field="text", translation=".en.txt=.fr.txt", where="config.data.files", most=most
  )
  check_files(5)
  with pytest.raises(UserError, match="a.en.txt, line 3: .*a.fr.txt has no line 3"):
    check_files(6)


def test_an_empty_key_and_a_vocabulary_of_pairs(tmp_path):
  with pytest.raises(UserError, match="config.data.translation is empty. Give a field of"):
    data_of(translation="")
  (tmp_path / "a.tsv").write_text("a\tb\n")
  assert command.main(["vocab", "train", "--input", f"{tmp_path}/a.tsv", "--size", "9", "--output", "x"]) == 2
  plain = tf.data.Dataset.from_tensors({"en": "a", "fr": "b"})
  with pytest.raises(UserError, match="no field 'first', only the fields en, fr. Pairs of texts need"):
    objectives.preprocessors("translation_lm")[0].func(plain, {"inputs": seqio.Feature(seqio.ByteVocabulary())})


@pytest.mark.parametrize("pack", [False, True])
def test_a_plan_has_the_features_of_the_batches(tmp_path, pack):
  """The recipe's features, including positions, need no data."""
  data = data_of(**write(tmp_path, "tsv"), pack=pack)
  config = records(load_config("tiny_bert")).with_(data=vars(data) | {"mixture": ""}, train={"batch_size": 4})
  rows = pipeline.eval_rows(data, "encoder_only", batch_size=4, max_batches=1)[0]
  assert {name: (x.shape, x.dtype) for name, x in rows.items()} == {
    name: (x.shape, x.dtype) for name, x in recipe.batch(config).items()
  }


def test_learned_positions_start_anew():
  """Learned positions are used; both texts attend to each other."""
  model = toy.model(toy.KINDS["bert"])
  tokens = np.array([[5, 6, 7, 8, 9, 10]])
  batch = {"encoder_input_tokens": tokens, "encoder_positions": np.array([[0, 1, 2, 0, 1, 2]])}
  restarted, through = toy.logits(model, batch), toy.logits(model, {"encoder_input_tokens": tokens})
  assert np.abs(restarted - through).max() > 1e-3
  other = toy.logits(model, batch | {"encoder_input_tokens": np.array([[5, 6, 7, 8, 9, 11]])})
  assert np.abs(restarted[0, 0] - other[0, 0]).max() > 1e-5


# ---- Training --------------------------------------------------------------------------------------------------------


def cipher_pairs(*, num_words=100, length=8):
  """Returns texts of eight words of the documentation, and the same in a word cipher."""
  texts = (json.loads(line)["text"] for line in docs_corpus.files()["train"].read_text().splitlines())
  texts = [re.findall("[a-z]+", text.lower()) for text in texts]
  words = [word for word, _ in collections.Counter(word for text in texts for word in text).most_common(num_words)]
  order = np.random.default_rng(0).permutation(num_words)
  cipher = {word: f"x{words[i]}" for word, i in zip(words, order, strict=True)}
  texts = [[word for word in text if word in cipher] for text in texts]
  sentences = {tuple(text[i : i + length]) for text in texts for i in range(0, len(text) - length, length)}
  pairs = [" ".join(each) + "\t" + " ".join(cipher[word] for word in each) for each in sorted(sentences)]
  return [*words, *cipher.values()], list(np.random.default_rng(1).permutation(pairs))


@pytest.mark.exhaustive
def test_a_translation_beside_a_text_helps(tmp_path):
  """Masked words are predicted from the other language, and guessed if it is hidden."""
  words, pairs = cipher_pairs()
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
  (tmp_path / "train.tsv").write_text("\n".join(pairs[:5_000]) + "\n")
  (tmp_path / "held_out.tsv").write_text("\n".join(pairs[5_000:5_256]) + "\n")
  config = load_config("tiny_bert")
  config.model.update(vocab_size=256, embed_dim=64, num_heads=4, head_dim=16, mlp_dim=128, num_encoder_layers=2)
  config.model.update(max_length=20, init_scale=0.1)
  config.data.update(files=f"{tmp_path}/train.tsv", eval_files=f"{tmp_path}/held_out.tsv", mixture="", extra_ids=0)
  config.data.update(
    objective="translation_lm", vocabulary=f"{tmp_path}/vocab.txt", inputs_length=20, targets_length=20
  )
  config.train.update(steps=200, batch_size=64)
  config.eval.update(every=200, batches=4, examples=0)
  run = records(config)
  state = train(run, str(tmp_path / "run"))

  rows = pipeline.eval_rows(run.data, "encoder_only", batch_size=64, max_batches=4)
  graphdef = nnx.split(recipe.make(run).model_fn(toy.key()), graph=False)[0]

  def accuracy(change):
    """Returns the accuracy for masked words of the first text."""
    right = total = 0
    for batch in rows:
      likeliest = np.argmax(toy.logits(state.model(graphdef), batch | change(batch)), -1)
      hidden = (batch["encoder_loss_weights"] > 0) & (batch["encoder_token_types"] == 0)
      right += ((likeliest == batch["encoder_target_tokens"]) & hidden).sum()
      total += hidden.sum()
    return right / total

  def covered(batch):
    return {"encoder_segment_ids": np.where(batch["encoder_token_types"] == 0, batch["encoder_segment_ids"], 0)}

  def of_another(batch):
    second = batch["encoder_token_types"] > 0
    tokens = batch["encoder_input_tokens"]
    return {"encoder_input_tokens": np.where(second, np.roll(tokens, 1, axis=0), tokens)}

  beside, alone, wrong = (accuracy(change) for change in (lambda batch: {}, covered, of_another))
  print(f"right of the hidden words: {beside:.1%} beside their translation, {alone:.1%} alone, {wrong:.1%} of another")
  assert beside > 0.8 and alone < 0.5 and wrong < 0.5
