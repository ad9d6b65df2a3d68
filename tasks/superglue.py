"""SuperGLUE (Wang et al. 2019) as text to text, in T5's formats.

The mixture super_glue has the tasks with training data; super_glue_axb and super_glue_axg are evaluated only.
config.data.folders.superglue names the folder of the released files; without it TensorFlow Datasets provides them.
"""

import functools

import seqio

from t2t import task_metrics
from t2t.data import answers, selection, text_formats
from t2t.data.sources import released

_BOOLEAN = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")


def _add(name, formats, postprocess, metrics, *, labels=(), splits=("train", "validation", "test"), tfds=None) -> None:
  seqio.TaskRegistry.add(
    f"super_glue_{name}",
    source=released.BenchmarkSource(
      "super_glue",
      name,
      tfds=f"super_glue/{tfds or name}:1.0.2",
      labels=labels,
      splits=splits,
      folder_key="superglue",
    ),
    preprocessors=text_formats.preprocessors(*formats),
    output_features=text_formats.t5_features(),
    postprocess_fn=postprocess,
    metric_fns=metrics,
  )


def _labelled(prefix, fields, labels, parts=()):
  return functools.partial(text_formats.labelled, prefix=prefix, fields=fields, labels=labels, parts=parts)


_NLI = {"fields": ("hypothesis", "premise"), "parts": ("premise", "hypothesis")}


# ---- One text, one of a few labels: the fields in T5's order, the labels in TFDS's -----------------------------------

for _name, _fields, _labels, _metrics in [
  ("boolq", {"fields": ("passage", "question"), "parts": ("question", "passage")}, _BOOLEAN, [task_metrics.accuracy]),
  ("cb", _NLI, ("entailment", "contradiction", "neutral"), [task_metrics.cb_f1, task_metrics.accuracy]),
  ("rte", _NLI, _ENTAILMENT, [task_metrics.accuracy]),
  ("wic", {"fields": ("sentence1", "sentence2", "word")}, _BOOLEAN, [task_metrics.accuracy]),
]:
  _add(_name, [_labelled(_name, labels=_labels, **_fields)], answers.label(_labels), _metrics, labels=_labels)

# ---- Tasks with a format of their own --------------------------------------------------------------------------------

_CHOICES = ("choice1", "choice2")
_add("copa", [text_formats.copa], answers.label(_CHOICES), [task_metrics.accuracy], labels=_CHOICES)
_add(
  "multirc",
  [functools.partial(text_formats.multirc, labels=_BOOLEAN)],
  answers.multirc(),
  [task_metrics.multirc_f1a, task_metrics.multirc_exact_match],
  labels=_BOOLEAN,
)
_add("record", [text_formats.record, text_formats.each_answer], answers.record(), [task_metrics.record])
_add(
  "wsc",
  [text_formats.only_right, text_formats.wsc],
  answers.wsc(),
  [task_metrics.accuracy],
  labels=_BOOLEAN,
  tfds="wsc.fixed",
)

# ---- Diagnostic sets, to be answered as RTE: tests that have labels --------------------------------------------------

_RENAME = functools.partial(
  seqio.preprocessors.rekey,
  key_map={"premise": "sentence1", "hypothesis": "sentence2", "label": "label", "idx": "idx"},
)
_RTE = _labelled("rte", labels=_ENTAILMENT, **_NLI)

_add("axb", [_RENAME, _RTE], answers.label(_ENTAILMENT), [task_metrics.matthews], labels=_ENTAILMENT, splits=("test",))
_add(
  "axg",
  [_RTE, text_formats.pair],
  answers.axg(),
  [task_metrics.axg_parity, task_metrics.accuracy],
  labels=_ENTAILMENT,
  splits=("test",),
)

seqio.MixtureRegistry.add(
  "super_glue",
  [f"super_glue_{name}" for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")],
  default_rate=selection.by_number_of_examples,
)
