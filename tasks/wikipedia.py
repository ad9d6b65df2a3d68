"""English Wikipedia of June 2023, prepared by TensorFlow Datasets; the last 1 % is held out.

Tasks are called wikipedia_OBJECTIVE; wikipedia_masked_lm_25 masks a quarter of the tokens.
"""

import seqio

from t2t.data import objectives
from t2t.data.sources import tfds_source


def _add(name: str, objective: str, **options) -> None:
  seqio.TaskRegistry.add(
    name,
    # The data set has only the split train.
    source=tfds_source.TfdsSource("wikipedia/20230601.en:1.0.0", {"train": "train[:99%]", "validation": "train[99%:]"}),
    preprocessors=objectives.preprocessors(objective, **options),
    output_features=objectives.t5_features(objective),
  )


for _objective in objectives.OF_TEXT:
  _add(f"wikipedia_{_objective}", _objective)
# Large ELECTRA's rate (Clark et al. 2020, appendix A).
_add("wikipedia_masked_lm_25", "masked_lm", noise_density=0.25)
