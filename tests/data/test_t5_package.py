"""A task module that imports the t5 package runs without it, or its error has the lines that take its place."""

import importlib
import re
import sys
import textwrap

import folders
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data import objectives, registry, t5_package


@pytest.fixture
def load(tmp_path, monkeypatch):
  """A function: the names that a module with this text registers; the t5 package's modules are forgotten afterwards."""
  if "t5" in sys.modules:
    pytest.skip("a t5 package is installed and loaded")

  def loaded(text, name="tasks"):
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    return registry.load(str(path))

  yield loaded
  for name in [name for name in sys.modules if name == "t5" or name.startswith("t5.")]:
    del sys.modules[name]


MODULE = """
  import functools
  import seqio
  import t5
  import t5.data
  from t5.data import preprocessors, postprocessors
  from t5.evaluation import metrics as t5_metrics
  from t5.data.preprocessors import rekey

  LABELS = ["no", "yes"]
  seqio.TaskRegistry.add(
    "t5_package_boolq",
    source=seqio.TextLineDataSource({"train": "DATA", "validation": "DATA"}),
    preprocessors=[
      functools.partial(t5.data.preprocessors.parse_tsv, field_names=["question", "passage", "label"]),
      number,
      functools.partial(preprocessors.glue, benchmark_name="boolq", label_names=LABELS, id_key=None),
      seqio.preprocessors.tokenize,
      seqio.preprocessors.append_eos,
    ],
    postprocess_fn=functools.partial(postprocessors.string_label_to_class_id, label_classes=LABELS),
    metric_fns=[t5_metrics.accuracy],
    output_features={key: seqio.Feature(seqio.ByteVocabulary()) for key in ("inputs", "targets")},
  )
"""
NUMBER = """
  import tensorflow as tf
  def number(dataset):
    return dataset.map(lambda x: {**x, "label": tf.strings.to_number(x["label"], tf.int32)})
"""


def test_a_task_module_of_t5_runs_as_it_is(load, tmp_path):
  """From a TSV to examples, answers and a metric, all by names of the package; nothing else finds them."""
  (tmp_path / "data.tsv").write_text("is it?\tIt is.\t1\nwas it?\tNo.\t0\nwill it?\tWho knows.\t-1\n")
  text = textwrap.dedent(NUMBER) + textwrap.dedent(MODULE).replace("DATA", str(tmp_path / "data.tsv"))
  assert load(text) == ("t5_package_boolq",)
  task = seqio.TaskRegistry.get("t5_package_boolq")
  rows = list(task.get_dataset(None, "train", shuffle=False).as_numpy_iterator())
  assert rows[0]["inputs_pretokenized"] == b"boolq passage: It is. question: is it?"
  assert [row["targets_pretokenized"] for row in rows] == [b"yes", b"no", b"<unk>"]
  assert [task.postprocess_fn(each) for each in ("yes", "no", "maybe")] == [1, 0, -1]
  assert task.metric_fns[0]([1, 0, 1], [1, 1, 1])["accuracy"] == pytest.approx(200 / 3)
  del sys.modules["t5"]
  with pytest.raises(ModuleNotFoundError):
    __import__("t5.data.missing")


@pytest.mark.parametrize(
  ("line", "said"),
  [
    ("from t5.data.preprocessors import span_corruption", 'objectives.preprocessors("span_corruption")'),
    ("import t5.data\nx = t5.data.preprocessors.prefix_lm", 'objectives.preprocessors("prefix_lm")'),
    ("from t5.evaluation import metrics\nx = metrics.rouge", "metric_fns=[task_metrics.rouge]"),
    ("from t5.data.glue_utils import get_glue_metric", "t2t.tasks.glue"),
    ("import t5.data.mixtures", "`t2t tasks` lists them"),
    ("import t5.models", "`t2t tasks` lists them"),
    ("from t5.data import preprocessors as p\np.unheard_of", "docs/from_t5x.md has the table"),
  ],
)
def test_a_name_without_a_counterpart_has_its_rewrite_in_the_error(load, line, said):
  """With the file and the line; not an ImportError that says nothing."""
  with pytest.raises(UserError, match=r"tasks.py, line \d: t5\.") as error:
    load(line)
  assert said in str(error.value) and "the t5 package is not installed" in str(error.value)


def test_every_name_of_the_page_runs_or_has_its_rewrite():
  """Names of docs/from_t5x.md are available or have a rewrite; the replacement functions exist."""
  page = (folders.ROOT / "docs" / "from_t5x.md").read_text()
  table = page.partition("| `t5.data.preprocessors` | t2t |")[2].partition("\n## ")[0]
  rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
  names = {name for row in rows if "none" not in row[1] for name in re.findall(r"`(\w+)`", row[0])}
  known = t5_package._AVAILABLE["t5.data.preprocessors"]
  left = {name for name in names if name not in known and f"t5.data.preprocessors.{name}" not in t5_package._INSTEAD}
  assert len(names) > 40 and not left
  for ours in t5_package._FUNCTIONS.values():
    module, _, function = ours.rpartition(".")
    assert callable(getattr(importlib.import_module(f"t2t.data.{module}"), function)), ours
  for ours in t5_package._OBJECTIVES.values():
    assert objectives.preprocessors(ours)


def test_an_installed_package_is_not_shadowed(load, tmp_path, monkeypatch):
  """The finder comes behind all others."""
  (tmp_path / "lib" / "t5").mkdir(parents=True)
  (tmp_path / "lib" / "t5" / "__init__.py").write_text("MINE = 7\n")
  monkeypatch.syspath_prepend(str(tmp_path / "lib"))
  load("import t5\nassert t5.MINE == 7")


@pytest.mark.slow
def test_what_they_compute_is_what_t5_computes():
  """By the examples of the package's own documentation and tests."""
  of = lambda step, record, **options: next(step(tf.data.Dataset.from_tensors(record), **options).as_numpy_iterator())
  names = t5_package._AVAILABLE
  pre, metrics = names["t5.data.preprocessors"], names["t5.evaluation.metrics"]
  found = of(
    pre["preprocess_tsv"], "6,7,42", field_delim=",", num_fields=3, inputs_format="{2} {1}", targets_format="x{0}"
  )
  assert found == {"inputs": b"42 7", "targets": b"x6"}
  found = of(
    pre["preprocess_tsv"],
    "6,7,42",
    field_delim=",",
    field_names=["a", "b", "c"],
    inputs_format="{c}-{a}",
    targets_format="{b}.",
  )
  assert found == {"inputs": b"42-6", "targets": b"7."}
  found = of(
    pre["translate"], {"en": "That is good.", "de": "Das ist gut."}, source_language="en", target_language="de"
  )
  assert found == {"inputs": b"translate English to German: That is good.", "targets": b"Das ist gut."}
  found = of(pre["stsb"], {"sentence1": "a", "sentence2": "b", "label": 3.25, "idx": 4})
  assert found == {"inputs": b"stsb sentence1: a sentence2: b", "targets": b"3.2", "idx": 4}
  record = {"id": "1", "context": "Some context.", "question": "A q?", "answers": {"text": ["It's", "x"]}}
  assert of(pre["squad"], record)["inputs"] == b"question: A q ? context: Some context . "
  assert of(pre["squad"], record)["targets"] == b"It ' s"
  assert metrics["squad"]([["", "abc"], ["the a"]], ["abc d", ""]) == {"em": 50.0, "f1": pytest.approx(100 / 3)}
  assert metrics["f1_score_with_invalid"]([0, 1, 1, 0], [2, 1, 1, 0]) == {"f1": pytest.approx(80.0)}
  assert metrics["mean_multiclass_f1"](3)([0, 1, 2], [0, 1, 1])["mean_3class_f1"] == pytest.approx(
    100 * (1 + 2 / 3) / 3
  )
  grouped = metrics["mean_group_metric"](metrics["accuracy"])
  targets = [{"group": "a", "value": 0}, {"group": "a", "value": 1}, {"group": "b", "value": 1}]
  assert grouped(targets, [{"value": 0}, {"value": 0}, {"value": 1}]) == {"accuracy": 75.0}
  np.testing.assert_allclose(metrics["pearson_corrcoef"]([1, 2, 3], [2, 4, 6.0])["pearson_corrcoef"], 100)
  assert metrics["bleu"](["a b c d e"], ["a b c d e"])["bleu"] == pytest.approx(100)
