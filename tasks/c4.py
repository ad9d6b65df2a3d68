"""C4, English: the corpus that T5 was trained on (Raffel et al. 2020, section 2.2), prepared by TensorFlow Datasets.

Preparing c4/en takes a cluster; point TFDS_DATA_DIR at a folder or a bucket that has it.
"""

import seqio

from t2t.data import objectives

# The vocabulary is read when a task is used.
_VOCABULARY = seqio.SentencePieceVocabulary("gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", extra_ids=100)
_FEATURE = seqio.Feature(vocabulary=_VOCABULARY, add_eos=True)

seqio.TaskRegistry.add(
  "c4_span_corruption",
  source=seqio.TfdsDataSource(tfds_name="c4/en:3.0.1", splits=("train", "validation")),
  preprocessors=objectives.preprocessors("span_corruption"),
  output_features={"inputs": _FEATURE, "targets": _FEATURE},
)
