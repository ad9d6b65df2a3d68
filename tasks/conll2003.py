"""Named entities of CoNLL 2003 (Tjong Kim Sang & De Meulder 2003), English: a head tags words, other models generate.

config.data.benchmark_dirs.conll2003 names the folder of train.txt, valid.txt and test.txt; without it TensorFlow
Datasets provides them.
"""

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

# In TFDS's order.
_TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")

seqio.TaskRegistry.add(
  "conll2003",
  source=benchmark_files.BenchmarkSource(
    "conll2003",
    tfds="conll2003/conll2003:1.0.0",
    labels=_TAGS,
    splits={"train": "train", "validation": "dev", "test": "test"},
  ),
  preprocessors=preprocessors.text_to_text(preprocessors.tagged, words="tokens", tags="ner", names=_TAGS, prefix="ner"),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.tagged(_TAGS),
  metric_fns=[task_metrics.entity_f1],
)
