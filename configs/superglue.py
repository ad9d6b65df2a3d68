r"""SuperGLUE (Wang et al. 2019), for evaluation of a checkpoint.

  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/superglue \
    --config.data.benchmark_dirs.superglue=SuperGLUE
  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/superglue --config.data.eval_split=test

The second command writes the leaderboard's zip file. Without the folder of released files the data comes from
TensorFlow Datasets.
"""

from ml_collections import ConfigDict

from t2t.configs import finetune


def get_config() -> ConfigDict:
  """Returns the tasks and lengths of `finetune_superglue`."""
  return finetune.get_config("superglue")
