"""C4, English: the corpus that T5 was trained on (Raffel et al. 2020, section 2.2), prepared by TensorFlow Datasets.

Tasks are called c4_OBJECTIVE.  Preparing c4/en takes a cluster; point TFDS_DATA_DIR at a folder or bucket that has it.
Any version 3 will do, the newest that is there: many have 3.0.1; the installed TFDS prepares 3.1.0 alone, which takes
the newest page of a URL, not one at random, and mends how bad words are matched.
"""

import seqio

from t2t.data import objectives
from t2t.data.sources import tfds_source


def _add(name: str, objective: str, **options) -> None:
  seqio.TaskRegistry.add(
    name,
    source=tfds_source.TfdsSource("c4/en:3.*.*", ("train", "validation")),
    preprocessors=objectives.preprocessors(objective, **options),
    output_features=objectives.t5_features(objective),
  )


for _objective in objectives.OF_TEXT:
  _add(f"c4_{_objective}", _objective)
# ModernBERT's rate (Warner et al. 2024, section 2.2).
_add("c4_masked_lm_30", "masked_lm", noise_density=0.3)
