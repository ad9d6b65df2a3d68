"""Summaries of news: CNN/Daily Mail (See et al. 2017) and XSum (Narayan et al. 2018), prepared by TensorFlow Datasets.

TFDS asks for XSum's articles to be fetched by hand.
"""

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import tfds_source
from t2t.evaluation import task_metrics

for _name, _tfds, _document, _summary in [
  ("cnn_dailymail", "cnn_dailymail:3.4.0", "article", "highlights"),
  ("xsum", "xsum:1.1.0", "document", "summary"),
]:
  seqio.TaskRegistry.add(
    _name,
    source=tfds_source.TfdsSource(_tfds, ("train", "validation", "test")),
    preprocessors=preprocessors.text_to_text(preprocessors.summarize, document=_document, summary=_summary),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.text(),
    metric_fns=[task_metrics.rouge],
  )
