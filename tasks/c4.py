"""C4, English: the corpus that T5 was trained on (Raffel et al. 2020, section 2.2), prepared by TensorFlow Datasets.

Tasks are called c4_OBJECTIVE.  Preparing c4/en takes a cluster; point TFDS_DATA_DIR at a folder or bucket that has it.
"""

import seqio

from t2t.data import objectives

# The vocabulary is read when a task is used.
_MODEL = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
_VOCABULARY = seqio.SentencePieceVocabulary(_MODEL, extra_ids=100)
# At 512 tokens half of them in short spans need more sentinels; the 32,128 rows of T5's embedding hold these, too.
_MORE_SENTINELS = seqio.SentencePieceVocabulary(_MODEL, extra_ids=127)


def _add(name: str, objective: str, **options) -> None:
  seqio.TaskRegistry.add(
    name,
    source=seqio.TfdsDataSource(tfds_name="c4/en:3.0.1", splits=("train", "validation")),
    preprocessors=objectives.preprocessors(objective, **options),
    output_features=objectives.output_features(
      objective, _MORE_SENTINELS if objective in ("ul2", "x_denoising") else _VOCABULARY
    ),
  )


for _objective in objectives.OBJECTIVES:
  _add(f"c4_{_objective}", _objective)
# ModernBERT's rate (Warner et al. 2024, section 2.2).
_add("c4_masked_lm_30", "masked_lm", noise_density=0.3)
