"""English Wikipedia of June 2023, prepared by TensorFlow Datasets; the last 1 % is held out.

Tasks are called wikipedia_OBJECTIVE.
"""

import seqio

from t2t.data import objectives

# T5's; read when a task is used.
_MODEL = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
_VOCABULARY = seqio.SentencePieceVocabulary(_MODEL, extra_ids=100)
# At 512 tokens half of them in short spans need more sentinels; the 32,128 rows of T5's embedding hold these, too.
_MORE_SENTINELS = seqio.SentencePieceVocabulary(_MODEL, extra_ids=127)

for _objective in objectives.OBJECTIVES:
  seqio.TaskRegistry.add(
    f"wikipedia_{_objective}",
    # The data set has one split, train.
    source=seqio.TfdsDataSource(
      tfds_name="wikipedia/20230601.en:1.0.0", splits={"train": "train[:99%]", "validation": "train[99%:]"}
    ),
    preprocessors=objectives.preprocessors(_objective),
    output_features=objectives.output_features(
      _objective, _MORE_SENTINELS if _objective in ("ul2", "x_denoising") else _VOCABULARY
    ),
  )
