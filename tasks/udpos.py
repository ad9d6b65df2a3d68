"""Parts of speech of Universal Dependencies (Nivre et al. 2020): a head tags words, other models generate the tags.

config.data.benchmark_dirs.udpos names the folder of a released treebank, *-ud-train.conllu and so on, or of
train.conllu, dev.conllu and test.conllu in the same format. Without it TensorFlow Datasets provides English (EWT).
"""

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

# In TFDS's order; _ is the tag of words without syntax.
_TAGS = ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ")
_TAGS += ("SYM", "VERB", "X", "_")

seqio.TaskRegistry.add(
  "udpos",
  source=benchmark_files.BenchmarkSource(
    "udpos",
    tfds="universal_dependencies/en_ewt:1.0.1",
    labels=_TAGS,
    splits={"train": "train", "validation": "dev", "test": "test"},
  ),
  preprocessors=preprocessors.text_to_text(
    preprocessors.tagged, words="tokens", tags="upos", names=_TAGS, prefix="pos"
  ),
  output_features=preprocessors.t5_features(),
  postprocess_fn=postprocessors.tagged(_TAGS),
  metric_fns=[task_metrics.word_accuracy],
)
