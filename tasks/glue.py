"""GLUE (Wang et al. 2018) as text to text, in T5's formats.

The mixture glue_v002_proportional has T5's eight tasks with training data, which leave out WNLI.
config.data.benchmark_dirs.glue names the folder of the released files; without it TensorFlow Datasets provides them.
"""

import functools

import seqio

from t2t.data import postprocessors, preprocessors, task_resolution
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

_NLI = ("entailment", "neutral", "contradiction")
_TWO_SENTENCES = ("sentence1", "sentence2")
_SPLITS = ("train", "validation", "test")


def _add(name, text_format, postprocess, metrics, *, labels=(), splits=_SPLITS, tfds=None) -> None:
  seqio.TaskRegistry.add(
    f"glue_{name}",
    source=benchmark_files.BenchmarkSource(
      "glue", name, tfds=f"glue/{tfds or name}:2.0.0", labels=labels, splits=splits
    ),
    preprocessors=preprocessors.text_to_text(text_format),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocess,
    metric_fns=metrics,
  )


# ---- One or two texts, one of a few labels: the fields in T5's order, the labels in TFDS's --------------------------

for _name, _fields, _labels, _metrics in [
  ("cola", ("sentence",), ("unacceptable", "acceptable"), [task_metrics.matthews]),
  ("sst2", ("sentence",), ("negative", "positive"), [task_metrics.accuracy]),
  ("mrpc", _TWO_SENTENCES, ("not_equivalent", "equivalent"), [task_metrics.f1, task_metrics.accuracy]),
  ("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), [task_metrics.f1, task_metrics.accuracy]),
  ("qnli", ("question", "sentence"), ("entailment", "not_entailment"), [task_metrics.accuracy]),
  ("rte", _TWO_SENTENCES, ("entailment", "not_entailment"), [task_metrics.accuracy]),
  ("wnli", _TWO_SENTENCES, ("not_entailment", "entailment"), [task_metrics.accuracy]),
]:
  _add(
    _name,
    functools.partial(preprocessors.labelled, prefix=_name, fields=_fields, labels=_labels),
    postprocessors.label(_labels),
    _metrics,
    labels=_labels,
  )

# ---- MNLI: validation and test of the genres of the training data, of other genres, and the diagnostic set -----------

for _name, _tfds, _splits in [
  ("mnli", "mnli", {"train": "train", "validation": "validation_matched", "test": "test_matched"}),
  ("mnli_mismatched", "mnli", {"validation": "validation_mismatched", "test": "test_mismatched"}),
  ("ax", "ax", ("test",)),
]:
  _add(
    _name,
    functools.partial(
      preprocessors.labelled,
      prefix="mnli",
      fields=("hypothesis", "premise"),
      labels=_NLI,
      parts=("premise", "hypothesis"),
    ),
    postprocessors.label(_NLI),
    [task_metrics.accuracy],
    labels=_NLI,
    splits=_splits,
    tfds=_tfds,
  )

# ---- A number --------------------------------------------------------------------------------------------------------

_add("stsb", preprocessors.stsb, postprocessors.number(), [task_metrics.pearson, task_metrics.spearman])

seqio.MixtureRegistry.add(
  "glue_v002_proportional",
  [f"glue_{name}" for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")],
  default_rate=task_resolution.by_number_of_examples,
)
