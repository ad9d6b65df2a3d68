"""English Wikipedia of June 2023, prepared by TensorFlow Datasets; the last 1 % is held out.

Tasks are called wikipedia_OBJECTIVE.
"""

import seqio

from t2t.data import objectives

for _objective in objectives.OBJECTIVES:
  seqio.TaskRegistry.add(
    f"wikipedia_{_objective}",
    # The data set has one split, train.
    source=seqio.TfdsDataSource(
      tfds_name="wikipedia/20230601.en:1.0.0", splits={"train": "train[:99%]", "validation": "train[99%:]"}
    ),
    preprocessors=objectives.preprocessors(_objective),
    output_features=objectives.t5_features(_objective),
  )
