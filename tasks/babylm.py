"""BabyLM's fine-tuning set of 2025 as text to text: seven tasks of GLUE and SuperGLUE, each in JSON lines.

config.data.benchmark_dirs.babylm names the folder glue_filtered of its evaluation data, with TASK.train.jsonl and
TASK.valid.jsonl. MNLI and QQP have 10,000 training examples there, and there is no test split.
"""

import functools

import seqio

from t2t.data import postprocessors, preprocessors, task_resolution
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

_BOOLEAN = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")
_TASKS = {
  "boolq": (("question", "passage"), _BOOLEAN, [task_metrics.accuracy]),
  "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), [task_metrics.accuracy]),
  "mrpc": (
    ("sentence1", "sentence2"),
    ("not_equivalent", "equivalent"),
    [task_metrics.f1, task_metrics.accuracy],
  ),
  "multirc": (("question", "paragraph"), _BOOLEAN, [task_metrics.accuracy]),
  "qqp": (("question1", "question2"), ("not_duplicate", "duplicate"), [task_metrics.f1, task_metrics.accuracy]),
  "rte": (("sentence1", "sentence2"), _ENTAILMENT, [task_metrics.accuracy]),
  "wsc": (("question", "text"), _BOOLEAN, [task_metrics.accuracy]),
}

for _name, (_fields, _labels, _metrics) in _TASKS.items():
  seqio.TaskRegistry.add(
    f"babylm_{_name}",
    source=benchmark_files.BenchmarkSource("babylm", _name, tfds="", labels=_labels, splits=("train", "validation")),
    preprocessors=preprocessors.text_to_text(
      functools.partial(preprocessors.labelled, prefix=_name, fields=_fields, labels=_labels)
    ),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.label(_labels),
    metric_fns=_metrics,
  )

seqio.MixtureRegistry.add(
  "babylm_glue", [f"babylm_{name}" for name in _TASKS], default_rate=task_resolution.by_number_of_examples
)
