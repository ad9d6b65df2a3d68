r"""SuperGLUE (Wang et al. 2019), to evaluate a checkpoint on.

  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/superglue \
    --config.data.benchmark_dirs.superglue=SuperGLUE
  t2t eval --config superglue --checkpoint runs/finetuned --workdir runs/superglue --config.data.eval_split=test

The second writes the zip that the leaderboard takes.  Without that folder, of the files as released, the data
comes from TensorFlow Datasets.
"""

from ml_collections import ConfigDict

from t2t.configs import finetune


def get_config() -> ConfigDict:
  """The tasks and lengths of `finetune_superglue`."""
  return finetune.get_config("superglue")
