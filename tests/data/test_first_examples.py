"""Checks before training: tasks without examples are refused; cut, unanswered and unknown examples are reported."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
import seqio
import tensorflow as tf
import test_example_windows

from t2t import UserError
from t2t.configuration.loading import load_config, records
from t2t.configuration.schema import DataConfig
from t2t.data import (
  example_windows,
  first_examples,
  head_examples,
  pipeline,
  postprocessors,
  preprocessors,
  shard_order,
  task_resolution,
  train_data,
  validation,
  vocabularies,
)
from t2t.data.preview import examples as previews
from t2t.data.sources import bad_records, slices
from t2t.evaluation import task_metrics

small, batches = test_example_windows.small, test_example_windows.batches  # the fixture, and training batches

LABELS = ("no", "certainly")


def reviews(split, shuffle_files=False, seed=None, *, number, label):
  found = {"text": [f"{split} review {i}" for i in range(number)], "label": [label(i) for i in range(number)]}
  return tf.data.Dataset.from_tensor_slices(found)


@pytest.fixture
def register():
  """Registers classification tasks and mixtures, and removes them after the test."""
  names = []

  def add(name, *steps, number=40, label=lambda i: i % 2, metrics=(task_metrics.accuracy,), source=None):
    function = functools.partial(reviews, number=number, label=label)
    seqio.TaskRegistry.add(
      name,
      source=source or seqio.FunctionDataSource(function, splits=("train", "validation")),
      preprocessors=[
        *steps,
        *preprocessors.text_to_text(preprocessors.labelled, prefix=name, fields=("text",), labels=LABELS),
      ],
      output_features=preprocessors.t5_features(),
      postprocess_fn=postprocessors.label(LABELS),
      metric_fns=list(metrics),
    )
    names.append((seqio.TaskRegistry, name))
    return name

  def mix(name, rates):
    seqio.MixtureRegistry.add(name, list(rates.items()))
    names.append((seqio.MixtureRegistry, name))
    return name

  add.mix = mix
  yield add
  for registry, name in reversed(names):
    registry.remove(name)


def nothing_of(*splits):
  """Returns a preprocessor that drops all records of these splits."""
  begins = "|".join(splits)
  return lambda dataset: dataset.filter(lambda x: ~tf.strings.regex_full_match(x["text"], f"({begins}) .*"))


def data_of(mixture, **options):
  lengths = {"inputs_length": 64, "targets_length": 16} | options
  return DataConfig(mixture=mixture, vocabulary="bytes", num_streams=2, shuffle_buffer=4, **lengths)


def check(data, **options):
  return validation.check(data, **{"batch_size": 8, "model_vocab_size": 384, **options})


# ---- Tasks without examples ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_task_without_training_examples_is_refused(register):
  name = register("empty_train", nothing_of("train"))
  with pytest.raises(UserError, match=r"empty_train: split 'train' has no example, because .* none of the 40 records"):
    check(data_of(name))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("number", [3, 5_000])
def test_as_few_records_are_read_as_are_enough(register, monkeypatch, number):
  """The number of records read is bounded; streams that start without the check stop, too."""
  monkeypatch.setattr(bad_records, "MOST_UNUSED", 1_000)
  name = register("empty_both", nothing_of("train", "validation"), number=number)
  with pytest.raises(UserError, match="empty_both: split 'train' has no example") as raised:
    next(batches(data_of(name)))
  read = int(str(raised.value).partition("none of the ")[2].split()[0].replace(",", ""))
  assert read < 20_000


@pytest.mark.exhaustive
def test_each_component_of_a_mixture_makes_examples(register):
  register.mix("half_empty", {register("full"): 1.0, register("empty_part", nothing_of("train")): 1.0})
  with pytest.raises(UserError, match="empty_part: split 'train' has no example"):
    check(data_of("half_empty"))
  with pytest.raises(UserError, match="empty_part: split 'train' has no example"):
    next(batches(data_of("half_empty")))


@pytest.mark.exhaustive
def test_a_component_of_rate_0_is_never_drawn(register):
  register.mix("rate_0", {register("drawn"): 1.0, register("never_drawn", nothing_of("train")): 0.0})
  assert any("never_drawn has rate 0" in note for note in check(data_of("rate_0")))
  next(batches(data_of("rate_0")))


@pytest.mark.exhaustive
def test_held_out_examples_that_are_lacking_are_named(register, capfd):
  name = register("empty_held_out", nothing_of("validation"))
  with pytest.raises(UserError, match="split 'validation' .*no held-out example: empty_held_out .* of the 40 records"):
    pipeline.eval_rows(data_of(name), "encoder_decoder", batch_size=8, max_batches=2)
  register.mix("held_out_part", {register("held_out"): 1.0, name: 1.0})
  assert pipeline.eval_rows(data_of("held_out_part"), "encoder_decoder", batch_size=8, max_batches=9)
  assert "empty_held_out: split 'validation' has no held-out example in 40 records" in capfd.readouterr().err


@pytest.mark.slow
def test_a_stream_whose_share_makes_nothing_reads_the_other_shares(register, small):
  """A stream with only filtered records in its share reads all shares, also after a resume."""
  odd = lambda dataset: dataset.filter(lambda x: tf.strings.regex_full_match(x["text"], ".*[13579]"))
  name = register("odd_numbers", odd, number=60)
  data = data_of(name)
  plan = pipeline.plan(data, "encoder_decoder", pipeline.load_task(data), train=True, seed=1)
  (source,) = example_windows.sources_of(plan, 2)
  texts = [[record for piece in share for _, record in source.records.read(piece)] for share in source.shares]
  assert all(int(record[1].split()[-1]) % 2 == 0 for record in texts[0])
  test_example_windows.assert_stopping_changes_nothing(batches(data), steps=4)


class _Shards:
  """Twelve shards of one record each; each shard is a window."""

  num_columns = 1

  def shards(self):
    return [shard_order.Shard(1e6)] * 12

  def read(self, piece):
    yield 10**6, (b"%d" % piece.shard,)

  def parse(self, found):
    return found


def shards_of(name, *, num_streams, seed):
  data = data_of(name)
  plan = pipeline.plan(data, "encoder_decoder", pipeline.load_task(data), train=True, seed=seed)
  return example_windows.TaskSource(plan, plan.task, _Shards(), shard_order.shares(_Shards().shards(), num_streams))


@pytest.mark.parametrize("seed", range(5))
def test_one_example_in_an_epoch_is_enough(register, seed):
  """The example may be anywhere in an epoch: at the beginning of one and at the end of the next."""
  source = shards_of(register("a_twelfth"), num_streams=1, seed=seed)
  read = []
  for window in itertools.islice(source.windows(0, shard_order.WindowPosition()), 600):
    read.append(window.position)
    if window.records == [(b"7",)]:
      source.progress.note(0)
  order = itertools.islice(source.order(0).windows(_Shards(), shard_order.WindowPosition()), 600)
  assert read == [window.position for window in order]


def test_shares_without_an_example_end(register):
  source = shards_of(register("no_twelfth"), num_streams=2, seed=1)
  assert len(list(itertools.islice(source.windows(0, shard_order.WindowPosition()), 600))) <= 2 * (6 + 12 + 2 * 4)


# ---- Notes on the first examples -------------------------------------------------------------------------------------


def counts(data, architecture="encoder_decoder", heads=()):
  task = pipeline.load_task(data, architecture, heads=heads)
  plan = pipeline.plan(data, architecture, task, train=True, seed=0)
  return first_examples.read(plan, plan.tasks[0])


def test_cut_texts_are_counted(register):
  """Lengths in bytes: the label `certainly` with EOS has 10, and inputs have 25 or 26."""
  data = data_of(register("cut", number=100), inputs_length=25, targets_length=9)
  found = counts(data)
  assert (found.examples, found.complete, found.cut) == (100, True, {"inputs": 90, "targets": 50})
  assert found.longest == {"inputs": 26, "targets": 10}
  assert (
    "cut: targets: 50 % of all 100 examples are cut at 9 tokens; the longest has 10" in first_examples.notes(found)[1]
  )


@pytest.mark.slow
def test_a_class_that_would_be_cut_is_refused(register):
  data = data_of(register("cut_class"), targets_length=9)
  with pytest.raises(UserError, match="targets_length=9: the answer 'certainly' .* has 10 .*targets_length=10"):
    check(data)
  check(dataclasses.replace(data, targets_length=10))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_a_preview_counts_what_is_cut(register, architecture):
  """Truncation is also counted for a mixture, and for texts that the task itself cuts."""
  register.mix("cut_mixture", {register("cut_preview"): 1.0})
  for name in ("cut_preview", "cut_mixture"):
    data = data_of(name, targets_length=9)
    task = task_resolution.for_architecture(pipeline.load_task(data), architecture)
    shown = previews.preview(data, architecture, task, split="train", num_records=2, num_examples=20)
    assert previews.summarize(shown).truncated["targets"] == 10
    assert max(len(shown.trimmed(i)["targets"]) for i in range(20)) == 9


HEADS = head_examples.needs.HeadConfig("unanswered", 2, "class", LABELS, reads="first")


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("heads", [(), (HEADS,)])
@pytest.mark.parametrize("every", [20, 3])
def test_examples_without_an_answer_are_counted(register, heads, every):
  """Few unanswered examples are reported, many are refused; training leaves them out, with or without a head."""
  register("unanswered", number=120, label=lambda i: -1 if i % every == 0 else i % 2)
  data = data_of("unanswered")
  architecture = "encoder_only" if heads else "encoder_decoder"
  found = counts(data, architecture, heads)
  assert found.unanswered == 120 // every
  if every == 3:
    with pytest.raises(UserError, match=r"unanswered: split 'train': 40 of all 120 examples have no answer"):
      check(data, architecture=architecture, heads=heads)
    return
  assert any("6 of all 120 examples" in note for note in check(data, architecture=architecture, heads=heads))
  if not heads:
    rows_of = np.concatenate(
      [np.asarray(next(it)["decoder_target_tokens"]) for it in [batches(data)] for _ in range(8)]
    )
    written = {pipeline.vocabulary(data).decode(row.tolist()) for row in rows_of}
    assert written == set(LABELS)


def test_unknown_tokens_are_counted(register, tmp_path):
  (tmp_path / "vocab.txt").write_text(
    "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "train", "no", "certainly"])
  )
  data = dataclasses.replace(data_of(register("unknown")), vocabulary=f"{tmp_path}/vocab.txt")
  found = counts(data)
  assert 0.3 < found.unknown / found.tokens < 0.9
  assert any("are unknown. The vocabulary lacks part" in note for note in first_examples.notes(found))


@pytest.mark.slow
def test_one_class_alone_is_said(register):
  name = register("one_class", label=lambda i: 1)
  assert "one_class: all 40 examples of split 'train' are of one class, 'certainly'" in check(data_of(name))


# ---- Files -----------------------------------------------------------------------------------------------------------


def files_of(tmp_path, *texts, **options):
  (tmp_path / "a.txt").write_text("\n".join(texts))
  return DataConfig(
    files=f"{tmp_path}/a.txt", vocabulary="bytes", **{"inputs_length": 32, "targets_length": 32, **options}
  )


@pytest.mark.parametrize("objective", ["span_corruption", "causal_lm", "masked_lm", "neighbouring_sentences"])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_corpus_of_one_document_says_that_it_is_held_out(small, tmp_path, objective, copies):
  data = files_of(tmp_path, *["one book in one line. it ends here."] * copies, objective=objective)
  what = "the only document is" if copies == 1 else "all 3 documents have the same text, and are"
  with pytest.raises(UserError, match=f"{what} held out, .*config.data.eval_files"):
    pipeline.load_task(data)
  (tmp_path / "b.txt").write_text("another book.")
  pipeline.load_task(dataclasses.replace(data, eval_files=f"{tmp_path}/b.txt"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("objective", ["masked_lm_nsp", "struct_bert"])
def test_pairs_of_sentences_need_two_documents(small, tmp_path, objective):
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"abcdefghi"]))
  texts = [" . ".join(f"{x} {y} {x}" for x in "abcdefghi" for y in pair) + " ." for pair in ("abc", "def")]
  data = files_of(tmp_path, *texts, objective=objective)
  data = dataclasses.replace(data, vocabulary=f"{tmp_path}/vocab.txt")
  options = {"architecture": "encoder_only", "model_vocab_size": 128, "batch_size": 2}
  with pytest.raises(UserError, match="one document is left to train on .1 more are held out.*of one class"):
    check(data, **options)
  (tmp_path / "b.txt").write_text("a b . c d .")
  notes = check(dataclasses.replace(data, eval_files=f"{tmp_path}/b.txt"), **options)
  assert any("one document is held out" in note and "config.data.eval_files" in note for note in notes)


# ---- Heads -----------------------------------------------------------------------------------------------------------


def test_heads_follow_from_the_examples_of_a_task(register):
  """A task without metrics is still learned by a head."""
  config = records(load_config("tiny_bert"))
  name = register("unmeasured", metrics=())
  run = train_data.resolved(config.with_(data={"mixture": name, "vocabulary": "bytes", "eval_split": "validation"}))
  assert run.train.loss == "heads"
  assert [(head.kind, head.labels) for head in run.model.heads] == [("class", LABELS)]


# ---- A user's own sources --------------------------------------------------------------------------------------------


def fails(split, shuffle_files=False, seed=None):
  raise OSError("the database is away")


def fails_later(split, shuffle_files=False, seed=None):
  def texts():
    yield from ({"text": f"train {i}", "label": i % 2} for i in range(3))
    raise OSError("the database is away")

  return tf.data.Dataset.from_generator(
    texts, output_signature={"text": tf.TensorSpec([], tf.string), "label": tf.TensorSpec([], tf.int32)}
  )


@pytest.mark.slow
@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize("function", [fails, fails_later])
@pytest.mark.parametrize("heads", [(), (HEADS,)])
def test_errors_of_a_source_name_its_task(register, function, heads):
  name = register("unanswered", source=seqio.FunctionDataSource(function, splits=("train", "validation")))
  with pytest.raises(UserError, match="^unanswered: .*: the database is away"):
    check(data_of(name), architecture="encoder_only" if heads else "encoder_decoder", heads=heads)


def _in_python(features):
  text = tf.py_function(lambda text: 1 // 0 and text, [features["text"]], tf.string)
  return features | {"text": tf.ensure_shape(text, [])}


def _in_tensorflow(features):
  return features | {"text": tf.unstack(tf.strings.split(features["text"], " "), num=9)[0]}


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(
  ("step", "reason"),
  [(_in_python, "ZeroDivisionError: integer division"), (_in_tensorflow, "Input shape axis 0 must equal 9, got shape")],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_errors_of_a_preprocessor_name_its_task(register, step, reason, mixed):
  """The error is one line, without TensorFlow's text on its graph."""
  name = register("own_step", lambda dataset: dataset.map(step))
  name = register.mix("own_mix", {name: 1.0, register("other"): 1.0}) if mixed else name
  with pytest.raises(UserError, match="^own_step: the source or a preprocessor fails: .*" + reason) as raised:
    check(data_of(name))
  assert not any(word in str(raised.value) for word in ("{{", "[[", "Iterator", "\n"))


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("heads", [(), (HEADS,)])
def test_labels_that_count_from_1_are_refused(register, heads):
  """The largest label is out of range, and does not count as a missing label."""
  name = register("unanswered", label=lambda i: 1 + i % 2)
  with pytest.raises(
    UserError, match="unanswered: .*(must be below the number of classes|the label 2, but there are 2)"
  ):
    check(data_of(name), architecture="encoder_only" if heads else "encoder_decoder", heads=heads)


def test_metrics_that_cannot_be_called_name_their_task(register):
  name = register("own_metric", metrics=(lambda t, p: {"a": 1.0},))
  with pytest.raises(UserError, match="^own_metric: its metric_fns cannot be used: .*'targets', 'predictions'"):
    check(data_of(name))


def test_a_data_set_that_is_not_there_names_its_task(register):
  name = register("own_tfds", source=seqio.TfdsDataSource("no_such_data_set:1.0.0"))
  with pytest.raises(UserError, match=r"^own_tfds: the source \(TfdsDataSource\) fails: "):
    check(data_of(name))


def test_the_vocabulary_decides_what_is_unknown():
  """An EOS id is not the unknown id."""
  assert first_examples._unknown_id(vocabularies.load("bytes", extra_ids=0)) in (-1, 2)


# ---- Slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("split", "expected"),
  [
    ("train[:100]", range(100)),
    ("train[-20:]", range(480, 500)),
    ("train[10%:20%]", range(50, 100)),
    ("train[:-90%]", range(50)),
    ("train[490:]+train[:5]", [*range(490, 500), *range(5)]),
  ],
)
def test_slices_of_a_split_are_those_of_tensorflow_datasets(split, expected):
  parts = slices.parts(split, {"train": 500}.__getitem__, where="here")
  assert [i for part in parts for i in range(part.start, part.stop)] == list(expected)


@pytest.mark.parametrize("split", ["train[:900]", "train[5:5]", "train[x]", "train[::2]"])
def test_a_slice_that_is_none_is_refused(split):
  with pytest.raises(UserError, match=r"^here: split 'train\["):
    slices.parts(split, {"train": 500}.__getitem__, where="here")


@pytest.fixture
def released_cb(tmp_path):
  """SuperGLUE's CB as released, with 40 training records."""
  (tmp_path / "CB").mkdir()
  labels = ("entailment", "contradiction", "neutral")
  line = lambda i: json.dumps({"premise": f"p{i}", "hypothesis": f"h{i}", "label": labels[i % 3], "idx": i})
  for name, number in (("train", 40), ("val", 10)):
    (tmp_path / "CB" / f"{name}.jsonl").write_text("\n".join(map(line, range(number))) + "\n")
  return DataConfig(
    mixture="super_glue_cb",
    task_modules=("t2t.tasks.superglue",),
    benchmark_dirs={"superglue": str(tmp_path)},
    vocabulary="bytes",
    inputs_length=128,
    targets_length=24,
    num_streams=2,
    shuffle_buffer=4,
  )


@pytest.mark.exhaustive
def test_released_files_are_read_in_slices(released_cb):
  data = dataclasses.replace(released_cb, train_split="train[:25%]", eval_split="validation[-4:]")
  check(data)
  task = pipeline.load_task(data)
  assert [task.num_input_examples(split) for split in (data.train_split, data.eval_split)] == [10, 4]
  numbers = lambda split: [int(x["idx"]) for x in pipeline.task_examples(data, "encoder_decoder", task, split=split)]
  assert numbers(data.train_split) == list(range(10)) and numbers(data.eval_split) == list(range(6, 10))
  read = functools.partial(task.source.get_dataset, data.train_split, shuffle=True, seed=1)
  shards = [read(shard_info=seqio.ShardInfo(i, 3)) for i in range(3)]
  assert sorted(int(x["idx"]) for shard in shards for x in shard) == list(range(10))
  with pytest.raises(UserError, match=r"split 'train\[:900\]': .*900"):
    check(dataclasses.replace(data, train_split="train[:900]"))


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("objective", ["mass", "mass_in_place", "token_masking", "bert_style", "masked_lm"])
def test_all_of_a_text_may_be_noise(small, tmp_path, objective):
  """A noise density of 1 makes the model predict the whole text; noise spans need text between them."""
  (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghi"]))
  data = files_of(tmp_path, *[" ".join("abcdefghi"[i % 5 :]) for i in range(9)], objective=objective, noise_density=1.0)
  data = dataclasses.replace(data, vocabulary=f"{tmp_path}/vocab.txt")
  architecture = "encoder_only" if objective == "masked_lm" else "encoder_decoder"
  batch = pipeline.eval_rows(data, architecture, batch_size=8, max_batches=1)[0]
  side = "encoder" if objective == "masked_lm" else "decoder"
  counted = batch[f"{side}_target_tokens"][batch[f"{side}_loss_weights"] > 0]
  assert set(counted.tolist()) - {3} == set(range(5, 14))
  with pytest.raises(UserError, match="noise_density=1.0: .* below 1 for noise spans"):
    pipeline.load_task(dataclasses.replace(data, objective="span_corruption"))
