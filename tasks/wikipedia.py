"""English Wikipedia of June 2023, prepared by TensorFlow Datasets; the last 1 % is held out."""

import seqio

from t2t.data import objectives

# T5's; read when a task is used.
_VOCABULARY = seqio.SentencePieceVocabulary("gs://t5-data/vocabs/cc_all.32000/sentencepiece.model", extra_ids=100)
_FEATURE = seqio.Feature(vocabulary=_VOCABULARY, add_eos=True)

seqio.TaskRegistry.add(
  "wikipedia_span_corruption",
  # The data set has one split, train.
  source=seqio.TfdsDataSource(
    tfds_name="wikipedia/20230601.en:1.0.0", splits={"train": "train[:99%]", "validation": "train[99%:]"}
  ),
  preprocessors=objectives.preprocessors("span_corruption"),
  output_features={"inputs": _FEATURE, "targets": _FEATURE},
)
