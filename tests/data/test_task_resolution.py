"""Task resolution: mixtures, adapted tasks, selection by name and benchmarks."""

import dataclasses
import functools
import json
import subprocess
import sys

import folders
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, sharding
from t2t.configuration.schema import DataConfig
from t2t.data import fingerprint as identities
from t2t.data import (
  objectives,
  pipeline,
  postprocessors,
  preprocessors,
  registry,
  task_resolution,
  validation,
  vocabularies,
)
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

SHARED = folders.SHARED / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")

MODULES = tuple(f"t2t.tasks.{name}" for name in ("superglue", "glue", "squad", "summarization", "translation", "docs"))
NLI = ("entailment", "contradiction", "neutral")


@pytest.fixture(scope="module", autouse=True)
def tasks():
  for module in MODULES:
    registry.load(module)


def lines(number, **fields):
  """Records that differ in their premise."""
  return "".join(json.dumps({**fields, "premise": f"{i} drops.", "idx": i}) + "\n" for i in range(number))


@pytest.fixture
def folder(tmp_path):
  """CB and COPA as released, small."""
  for name, number in (("train", 40), ("val", 6), ("train8", 8)):
    for task, fields in (
      ("CB", {"hypothesis": "It is wet.", "label": "neutral"}),
      ("COPA", {"choice1": "a", "choice2": "b", "question": "cause", "label": 1}),
    ):
      (tmp_path / task).mkdir(exist_ok=True)
      (tmp_path / task / f"{name}.jsonl").write_text(lines(number if task == "CB" else 2 * number, **fields))
  return tmp_path


@pytest.fixture
def data(folder):
  return DataConfig(
    mixture="super_glue_cb,super_glue_copa",
    task_modules=MODULES,
    benchmark_dirs={"superglue": str(folder)},
    vocabulary="bytes",
    inputs_length=64,
    targets_length=16,
    num_streams=2,
  )


# ---- Mixtures --------------------------------------------------------------------------------------------------------


def test_several_names_are_mixed_by_numbers_of_examples(data):
  """Rates are what the folder holds, of the split that is trained on, at most 2**19."""
  rates = lambda found: {task.name: found.get_rate(task) for task in found.tasks}
  assert rates(pipeline.load_task(data)) == {"super_glue_cb": 40, "super_glue_copa": 80}
  few = dataclasses.replace(data, train_split="train8")
  assert rates(pipeline.load_task(few)) == {"super_glue_cb": 8, "super_glue_copa": 16}
  assert task_resolution.by_number_of_examples.keywords == {"maximum": 2**19}


def test_a_mixture_among_several_gives_its_tasks():
  found = task_resolution.named("squad, super_glue,super_glue_cb", modules=())
  assert len(found.tasks) == 9
  assert {task.name for task in found.tasks} >= {"squad", "super_glue_cb", "super_glue_record"}


@pytest.mark.parametrize(
  ("mixture", "message"),
  [
    (
      "super_glue_cb,super_glue_cbb",
      r"mixture=super_glue_cbb: no task or mixture has this name. Similar names:",
    ),
    (
      "super_glue_cb,docs_causal_lm",
      r"must yield the same features to be mixed \(super_glue_cb: inputs, targets;",
    ),
  ],
)
def test_names_that_cannot_be_mixed(mixture, message):
  """The error names the task and the reason."""
  with pytest.raises(UserError, match=message):
    task_resolution.named(mixture, modules=())


def check(data, architecture="encoder_decoder", **options):
  validation.check(data, batch_size=4, model_vocab_size=400, architecture=architecture, **options)


@pytest.mark.exhaustive
def test_good_data_passes(data):
  """For the architectures that write."""
  check(data)
  check(data, "decoder_only")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"mixture": "super_glue_cb,docs_span_corruption"},
      r"docs_span_corruption has no number of examples.* the source num_input_examples=\{'train': NUMBER\}",
    ),
    (
      {"train_split": "train16"},
      r"has no split 'train16', because there is no file .*/CB/train16\.jsonl. Known splits:",
    ),
    ({"eval_split": "test"}, r"has no split 'test', because there is no file .*/CB/test\.jsonl"),
    ({"mixture": "super_glue"}, r"has no folder 'BoolQ' for super_glue_boolq \(found: CB, COPA"),
    (
      {"mixture": "super_glue_cb", "benchmark_dirs": {"superglue": "/no/such"}},
      r"benchmark_dirs\.superglue=/no/such: no such folder",
    ),
    (
      {"benchmark_dirs": {"superglu": "x"}},
      r"benchmark_dirs\.superglu=x: no task of .*mixture=super_glue_cb,.* did you mean superglue\?",
    ),
    (
      {"benchmark_dirs": {"conll": "x"}},
      r"benchmark_dirs\.conll=x: no task of .* reads this folder\. Known keys: superglue\.$",
    ),
    (
      {"mixture": "docs_span_corruption", "benchmark_dirs": {"squad": "x"}},
      r"mixture=docs_span_corruption reads this folder\. Leave the key out",
    ),
    (
      {"mixture": "", "files": "*.txt"},
      r"benchmark_dirs\.superglue=.* is for registered tasks, but config\.data\.files is set",
    ),
  ],
)
def test_data_that_is_refused(data, changes, message):
  """Before any work on a device."""
  with pytest.raises(UserError, match=message):
    check(dataclasses.replace(data, **changes))


def test_different_vocabularies():
  cb = seqio.TaskRegistry.get("super_glue_cb")
  one, other = (task_resolution.adapt(cb, vocabulary=vocabularies.load("bytes", extra_ids=ids)) for ids in (100, 200))
  both = seqio.Mixture("both", [(one, 1), (other.replace(name="other"), 1)])
  with pytest.raises(UserError, match=r"mixture=both: other and super_glue_cb are registered with different voc"):
    task_resolution.check(both, {}, where="config.data.mixture=both")


def test_a_bad_line_is_found_before_training(data, folder):
  """The error names the line in training or validation."""
  (folder / "COPA" / "val.jsonl").write_text('{"premise": "p"}\n')
  with pytest.raises(UserError, match=r"val\.jsonl, line 1: no field 'choice1'"):
    check(data)


# ---- Copies ----------------------------------------------------------------------------------------------------------


def metric_with(threshold):
  """A metric that remembers something."""

  def above(targets, predictions):
    return {"above": float(sum(prediction > threshold for prediction in predictions)) + 0 * len(targets)}

  return above


def test_a_copy_differs_in_what_was_asked_for_alone(folder):
  """Names, preprocessors, postprocessors, metrics (closures too), rates, shuffling and drawing stay; so does the
  registry, and mixtures in mixtures are copied through."""
  draw = functools.partial(tf.data.Dataset.sample_from_datasets, stop_on_empty_dataset=False)
  task = seqio.Task(
    "mine",
    source=benchmark_files.BenchmarkSource(
      "super_glue", "cb", tfds="super_glue/cb:1.0.2", labels=NLI, folder_key="superglue"
    ),
    preprocessors=preprocessors.text_to_text(preprocessors.labelled, prefix="cb", fields=("premise",), labels=NLI),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.label(NLI),
    metric_fns=[metric_with(1), task_metrics.accuracy],
    shuffle_buffer_size=7,
  )
  inner = seqio.Mixture("inner", [(task, 3)], sample_fn=draw)
  outer = seqio.Mixture("outer", [(inner, 2.0), (seqio.TaskRegistry.get("super_glue_copa"), 5)])
  copy = task_resolution.adapt(outer, vocabulary=vocabularies.load("bytes"), folders={"superglue": str(folder)})
  mine = next(each for each in copy.tasks if each.name == "mine")
  assert (copy.name, [each.name for each in copy.tasks]) == ("outer", ["mine", "super_glue_copa"])
  assert [copy.get_rate(each) for each in copy.tasks] == [2.0, 5]
  assert mine.preprocessors == task.preprocessors
  assert [metric([0], [2]) for metric in mine.metric_fns] == [{"above": 1.0}, {"accuracy": 0.0}]
  assert mine.postprocess_fn("neutral", example=None, is_target=False) == 2
  assert mine.shuffle_buffer_size == 7
  assert copy._task_map["inner"]._sample_fn is draw
  assert mine.source.num_input_examples("train") == 40
  assert mine.output_features["inputs"].vocabulary.vocab_size == 359
  assert task.source.folder == "" and task.output_features == preprocessors.t5_features()
  assert task_resolution.adapt(outer) is outer and task_resolution.adapt(task, folders={"superglue": ""}) is task


@pytest.mark.slow
def test_a_decoder_reads_no_eos_between_prompt_and_answer(data):
  """But pre-training objectives stay as they are, and so do the other architectures."""
  task = pipeline.load_task(dataclasses.replace(data, mixture="super_glue_cb"))
  ends = {}
  for architecture in ("encoder_decoder", "decoder_only"):
    examples = pipeline.task_examples(data, architecture, task, split="validation")
    example = next(iter(examples.as_numpy_iterator()))
    ends[architecture] = example["inputs"][-1], example["targets"][-1]
    (found,) = pipeline.find_tasks(data, architecture, ["cb"])
    assert found.output_features["inputs"].add_eos == (architecture == "encoder_decoder")
  assert ends == {"encoder_decoder": (1, 1), "decoder_only": (ord(".") + 3, 1)}
  both = seqio.Mixture("both", [(seqio.TaskRegistry.get(name), 1) for name in ("squad", "docs_span_corruption")])
  adapted = task_resolution.for_architecture(both, "decoder_only")
  assert {each.name: each.output_features["inputs"].add_eos for each in adapted.tasks} == {
    "docs_span_corruption": True,
    "squad": False,
  }
  assert objectives.of(adapted) == {"span_corruption"}


# ---- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("mixture", "names", "found"),
  [
    ("super_glue", ("cb", "super_glue_rte"), ["super_glue_cb", "super_glue_rte"]),
    ("super_glue", ("axb", "axg"), ["super_glue_axb", "super_glue_axg"]),  # registered, not in the mixture
    ("super_glue_cb,super_glue_copa", ("rte", "cb", "cb"), ["super_glue_rte", "super_glue_cb"]),
    ("glue_v002_proportional", ("mnli", "mismatched"), ["glue_mnli", "glue_mnli_mismatched"]),
    ("squad", (), ["squad"]),
    ("squad", ("squad",), ["squad"]),
    ("super_glue_cb", ("boolq",), ["super_glue_boolq"]),
    ("super_glue_rte,glue_sst2", ("rte",), ["super_glue_rte"]),
  ],
)
def test_tasks_by_short_names(data, mixture, names, found):
  """Names match a suffix in the mixture first, then in its benchmark."""
  tasks = pipeline.find_tasks(dataclasses.replace(data, mixture=mixture, benchmark_dirs={}), "encoder_decoder", names)
  assert [task.name for task in tasks] == found
  assert all(task.output_features["targets"].vocabulary.vocab_size == 359 for task in tasks)


@pytest.mark.parametrize(
  ("mixture", "name", "message"),
  [
    ("super_glue_rte,glue_rte", "rte", r"eval\.tasks: rte matches several tasks: .*_rte, .*_rte\. Give the whole name"),
    (
      "super_glue",
      "super_glue_cd",
      r"is not a task; did you mean super_glue_cb\? Choose from super_glue_boolq,",
    ),
    ("squad", "nonsense", r"nonsense is not a task\. Choose from squad"),
    ("", "cb", r"config\.data\.mixture is empty"),
  ],
)
def test_names_that_are_refused(data, mixture, name, message):
  """The error lists the valid names."""
  with pytest.raises(UserError, match=message):
    pipeline.find_tasks(dataclasses.replace(data, mixture=mixture, benchmark_dirs={}), "encoder_decoder", [name])


# ---- The registered tasks --------------------------------------------------------------------------------------------


def registered(*modules):
  return [name for module in modules for name in registry.load(f"t2t.tasks.{module}")]


def test_what_is_registered():
  """By these names."""
  assert registered("superglue") == [
    "super_glue",
    *(
      f"super_glue_{name}"
      for name in ["axb", "axg", "boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc", "wsc_spans"]
    ),
  ]
  assert registered("glue") == [
    *(
      f"glue_{name}" for name in ["ax", "cola", "mnli", "mnli_mismatched", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb"]
    ),
    "glue_v002_proportional",
    "glue_wnli",
  ]
  assert registered("squad", "summarization", "translation") == [
    "squad", "squad_v2", "cnn_dailymail", "xsum", "wmt_en_de", "wmt_en_de_pairs", "wmt_en_fr", "wmt_en_fr_pairs",
    "wmt_en_ro", "wmt_en_ro_pairs",
  ]  # fmt: skip
  assert (
    len(seqio.MixtureRegistry.get("super_glue").tasks)
    == len(seqio.MixtureRegistry.get("glue_v002_proportional").tasks)
    == 8
  )


@pytest.mark.exhaustive_from(5)
@pytest.mark.parametrize("name", ["cb", "copa", "boolq", "multirc", "record", "wsc", "axg"])
def test_every_example_can_be_judged(name):
  """TFDS's records, through the format, keep what the postprocessor and the metrics need."""
  import tensorflow_datasets as tfds

  with tfds.testing.mock_data(num_examples=3):
    task = task_resolution.adapt(seqio.TaskRegistry.get(f"super_glue_{name}"), vocabulary=vocabularies.load("bytes"))
    split = "test" if name == "axg" else "validation"
    dataset = task.get_dataset({"inputs": 512, "targets": 64}, split, shuffle=False, try_in_mem_cache=False)
    examples = list(dataset.as_numpy_iterator())
  values = {
    is_target: [
      task.postprocess_fn(example["targets_pretokenized"].decode(), example=example, is_target=is_target)
      for example in examples
    ]
    for is_target in (False, True)
  }
  for metric in task.metric_fns:
    assert all(0 <= value <= 100 for value in metric(values[True], values[False]).values())


# ---- Batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("steps", [1, 45])  # within an epoch, and after two
def test_restored_batches_of_benchmarks_go_on_bit_for_bit(data, steps):
  """A mixture of files, shuffled whole: a new iterator continues where the old one was; the position is small."""
  mesh = sharding.make_mesh({"fsdp": -1})
  batches = lambda: pipeline.train_batches(data, "encoder_decoder", mesh, batch_size=8, seed=1)
  take = lambda iterator, count: [
    np.concatenate([np.asarray(array) for array in next(iterator).values()], 1) for _ in range(count)
  ]
  iterator = batches()
  take(iterator, steps)
  state = iterator.state()
  expected = take(iterator, 4)
  resumed = batches()
  resumed.restore(state, step=0)
  np.testing.assert_array_equal(take(resumed, 4), expected)
  assert sum(len(part) for part in state.values()) < 500_000


@pytest.mark.exhaustive
def test_a_small_task_is_not_split_into_too_many_streams(data):
  """The smallest task limits the number of streams; the user may set more."""
  mesh = sharding.make_mesh({"fsdp": -1})
  few = dataclasses.replace(data, train_split="train8", num_streams=0)
  iterator = pipeline.train_batches(few, "encoder_decoder", mesh, batch_size=8, seed=1)
  assert iterator.num_streams == 2
  wanted = dataclasses.replace(few, num_streams=4)
  next(pipeline.train_batches(wanted, "encoder_decoder", mesh, batch_size=8, seed=1))


def test_a_position_knows_the_folder_by_its_name(data, folder):
  """The same folder elsewhere goes on; a position of before there were such folders does, too."""

  def identity(data, **options):
    options = {"batch_size": 8, "seed": 1, "num_streams": 2} | options
    return identities.settings(data, pipeline.vocabulary(data), **options)

  moved = dataclasses.replace(data, benchmark_dirs={"superglue": f"/elsewhere/{folder.name}/"})
  assert identity(data) == identity(moved)
  assert identity(data)["data.benchmark_dirs.superglue"] == folder.name
  for dirs in ({}, {"superglue": ""}):
    assert not any("benchmark_dirs" in key for key in identity(dataclasses.replace(data, benchmark_dirs=dirs)))


@needs_shared
def test_wsc_of_the_released_files():
  """T5's 259 examples to train on, each with one pronoun marked."""
  folders = {"superglue": str(SHARED / "superglue")}
  task = task_resolution.adapt(
    seqio.TaskRegistry.get("super_glue_wsc"), vocabulary=vocabularies.load("bytes"), folders=folders
  )
  counts = {}
  for split in ("train", "validation", "test"):
    dataset = task.get_dataset(None, split, shuffle=False, try_in_mem_cache=False)
    examples = list(dataset.as_numpy_iterator())
    counts[split] = len(examples)
    assert all(example["inputs_pretokenized"].count(b"*") == 2 for example in examples)
  assert counts == {"train": 259, "validation": 104, "test": 146}


@needs_shared
def test_winogender_pairs():
  """The two examples of a pair have one hypothesis and one label, and differ in a pronoun."""
  folders = {"superglue": str(SHARED / "superglue")}
  task = task_resolution.adapt(
    seqio.TaskRegistry.get("super_glue_axg"), vocabulary=vocabularies.load("bytes"), folders=folders
  )
  dataset = task.get_dataset(None, "test", shuffle=False, try_in_mem_cache=False)
  pairs = {}
  for example in dataset.as_numpy_iterator():
    text = example["inputs_pretokenized"].decode()
    pairs.setdefault(int(example["pair"]), []).append((text.partition("premise:")[0], int(example["label"]), text))
  assert len(pairs) == 178
  for first, second in pairs.values():
    assert first[:2] == second[:2] and first[2] != second[2]


@pytest.mark.exhaustive
def test_a_task_that_comes_with_t2t_is_named_with_its_module():
  """A new process shows the error before the module is imported."""
  program = "from t2t.data import task_resolution; task_resolution.named('udpos', modules=())"
  told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
  assert (
    "mixture=udpos: this task is in t2t.tasks.udpos, but t2t.tasks.udpos is not "
    "imported. Add t2t.tasks.udpos to config.data.task_modules" in told
  )
