"""T5's translation tasks from English: the data of Raffel et al. (2020, section 2.3), from TensorFlow Datasets.

To German as in Vaswani et al. (2017), with newstest2013 for validation and newstest2014 for test; to French WMT 2015;
to Romanian WMT 2016. A contrastive loss compares the sentences of wmt_en_LANGUAGE_pairs.
"""

import seqio

from t2t.data import postprocessors, preprocessors, vocabularies
from t2t.data.objectives import sentence_pairs
from t2t.data.sources import tfds_source
from t2t.evaluation import task_metrics

for _language, _tfds in [
  ("de", "wmt_t2t_translate/de-en:1.0.0"),
  ("fr", "wmt15_translate/fr-en:1.0.0"),
  ("ro", "wmt16_translate/ro-en:1.0.0"),
]:
  _source = tfds_source.TfdsSource(_tfds, ("train", "validation", "test"))
  seqio.TaskRegistry.add(
    f"wmt_en_{_language}",
    source=_source,
    preprocessors=preprocessors.text_to_text(preprocessors.translate, source="en", target=_language),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocessors.text(),
    metric_fns=[task_metrics.bleu],
  )
  seqio.TaskRegistry.add(
    f"wmt_en_{_language}_pairs",
    source=_source,
    preprocessors=sentence_pairs.preprocessors(preprocessors.pairs, first="en", second=_language),
    output_features=sentence_pairs.output_features(vocabularies.t5_vocabulary()),
  )
