"""SQuAD 1.1 (Rajpurkar et al. 2016) as text to text, in T5's format.

config.data.folders.squad names the folder of the released files; without it TensorFlow Datasets provides them.
"""

import seqio

from t2t import task_metrics
from t2t.data import answers, text_formats
from t2t.data.sources import released

seqio.TaskRegistry.add(
  "squad",
  source=released.BenchmarkSource("squad", tfds="squad/v1.1:3.0.0", splits=("train", "validation")),
  preprocessors=text_formats.preprocessors(text_formats.squad),
  output_features=text_formats.t5_features(),
  postprocess_fn=answers.squad(),
  metric_fns=[task_metrics.squad],
)
