"""HellaSwag (Zellers et al. 2019): choose which of four sentences continues a text.

config.data.benchmark_dirs.hellaswag names the folder of the released files; without it TensorFlow Datasets provides
them.
"""

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

_CHOICES = ("choice1", "choice2", "choice3", "choice4")

seqio.TaskRegistry.add(
  "hellaswag",
  source=benchmark_files.BenchmarkSource("hellaswag", tfds="hellaswag:1.1.0", labels=_CHOICES),
  preprocessors=preprocessors.text_to_text(
    preprocessors.choices, prefix="hellaswag", fields=("context",), candidates="endings"
  ),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.label(_CHOICES),
  metric_fns=[task_metrics.accuracy],
)
