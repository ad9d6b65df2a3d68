"""SuperGLUE (Wang et al. 2019) as text to text, in T5's formats.

The mixture super_glue has the tasks with training data; super_glue_axb and super_glue_axg are evaluated only.
config.data.benchmark_dirs.superglue names the folder of the released files; without it TensorFlow Datasets has them.
"""

import functools

import seqio

from t2t.data import postprocessors, preprocessors, task_resolution
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

_BOOLEAN = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")


def _add(
  name, formats, postprocess, metrics, *, labels=(), splits=("train", "validation", "test"), tfds=None, of=None
) -> None:
  seqio.TaskRegistry.add(
    f"super_glue_{name}",
    source=benchmark_files.BenchmarkSource(
      "super_glue",
      of or name,
      tfds=f"super_glue/{tfds or name}:1.0.2",
      labels=labels,
      splits=splits,
      folder_key="superglue",
    ),
    preprocessors=preprocessors.text_to_text(*formats),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocess,
    metric_fns=metrics,
  )


def _labelled(prefix, fields, labels, parts=()):
  return functools.partial(preprocessors.labelled, prefix=prefix, fields=fields, labels=labels, parts=parts)


_NLI = {"fields": ("hypothesis", "premise"), "parts": ("premise", "hypothesis")}


# ---- One text, one of a few labels: the fields in T5's order, the labels in TFDS's -----------------------------------

for _name, _fields, _labels, _metrics in [
  ("boolq", {"fields": ("passage", "question"), "parts": ("question", "passage")}, _BOOLEAN, [task_metrics.accuracy]),
  ("cb", _NLI, ("entailment", "contradiction", "neutral"), [task_metrics.cb_f1, task_metrics.accuracy]),
  ("rte", _NLI, _ENTAILMENT, [task_metrics.accuracy]),
  ("wic", {"fields": ("sentence1", "sentence2", "word")}, _BOOLEAN, [task_metrics.accuracy]),
]:
  _add(_name, [_labelled(_name, labels=_labels, **_fields)], postprocessors.label(_labels), _metrics, labels=_labels)

# ---- Tasks with special formats --------------------------------------------------------------------------------------

_CHOICES = ("choice1", "choice2")
_add("copa", [preprocessors.copa], postprocessors.label(_CHOICES), [task_metrics.accuracy], labels=_CHOICES)
_add(
  "multirc",
  [functools.partial(preprocessors.multirc, labels=_BOOLEAN)],
  postprocessors.multirc(),
  [task_metrics.multirc_f1a, task_metrics.multirc_exact_match],
  labels=_BOOLEAN,
)
_add("record", [preprocessors.record, preprocessors.each_answer], postprocessors.record(), [task_metrics.record])
_add(
  "wsc",
  [preprocessors.only_right, preprocessors.wsc],
  postprocessors.wsc(),
  [task_metrics.accuracy],
  labels=_BOOLEAN,
  tfds="wsc.fixed",
)

# The same records for a head that reads both spans; not in the mixture super_glue.
_add(
  "wsc_spans",
  [functools.partial(preprocessors.wsc_spans, labels=_BOOLEAN)],
  postprocessors.label(_BOOLEAN),
  [task_metrics.accuracy],
  labels=_BOOLEAN,
  tfds="wsc.fixed",
  of="wsc",
)

# ---- Diagnostic sets with labels, answered like RTE: test splits -----------------------------------------------------

_RENAME = functools.partial(
  seqio.preprocessors.rekey,
  key_map={"premise": "sentence1", "hypothesis": "sentence2", "label": "label", "idx": "idx"},
)
_RTE = _labelled("rte", labels=_ENTAILMENT, **_NLI)

_add(
  "axb",
  [_RENAME, _RTE],
  postprocessors.label(_ENTAILMENT),
  [task_metrics.matthews],
  labels=_ENTAILMENT,
  splits=("test",),
)
_add(
  "axg",
  [_RTE, preprocessors.pair],
  postprocessors.axg(),
  [task_metrics.axg_parity, task_metrics.accuracy],
  labels=_ENTAILMENT,
  splits=("test",),
)

seqio.MixtureRegistry.add(
  "super_glue",
  [f"super_glue_{name}" for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")],
  default_rate=task_resolution.by_number_of_examples,
)
