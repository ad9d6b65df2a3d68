"""Classification of single texts: film reviews (IMDB, Maas et al. 2011) and news (AG News, Zhang et al. 2015).

Neither has a validation split: use --config.data.eval_split=test. config.data.benchmark_dirs.imdb_reviews and
config.data.benchmark_dirs.ag_news_subset name the folders of the released files (aclImdb, ag_news_csv); without them
TensorFlow Datasets provides them.
"""

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

for _name, _tfds, _prefix, _fields, _labels in [
  ("imdb_reviews", "imdb_reviews/plain_text:1.0.0", "imdb", ("text",), ("negative", "positive")),
  (
    "ag_news_subset",
    "ag_news_subset:1.0.0",
    "ag_news",
    ("title", "description"),
    ("World", "Sports", "Business", "Sci/Tech"),
  ),
]:
  seqio.TaskRegistry.add(
    _name,
    source=benchmark_files.BenchmarkSource(_name, tfds=_tfds, labels=_labels, splits=("train", "test")),
    preprocessors=preprocessors.text_to_text(preprocessors.labelled, prefix=_prefix, fields=_fields, labels=_labels),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.label(_labels),
    metric_fns=[task_metrics.accuracy],
  )
