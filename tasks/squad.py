"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) as text to text, in T5's format; heads answer with spans.

config.data.benchmark_dirs.squad and config.data.benchmark_dirs.squad_v2 name the folders of the released files; without
them TensorFlow Datasets provides them. In 2.0 the paragraphs do not answer half of the questions.
"""

import functools

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

for _name, _tfds, _format, _metric in [
  ("squad", "squad/v1.1:3.0.0", preprocessors.squad, task_metrics.squad),
  (
    "squad_v2",
    "squad/v2.0:3.0.0",
    functools.partial(preprocessors.spans, unanswerable=True),
    task_metrics.squad_v2,
  ),
]:
  seqio.TaskRegistry.add(
    _name,
    source=benchmark_files.BenchmarkSource(_name, tfds=_tfds, splits=("train", "validation")),
    preprocessors=preprocessors.text_to_text(_format),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.squad(),
    metric_fns=[_metric],
  )
