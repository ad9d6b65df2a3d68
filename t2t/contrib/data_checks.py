"""Checks of the data of runs whose losses or objectives are in optional packages."""

from collections.abc import Collection

from t2t import feature_spec
from t2t.configuration.schema import Config
from t2t.runtime.lazy_table import load

_OF_WORDS = ("negative_sampling", "glove", *feature_spec.STATIC)


def check(names: Collection[str], run: Config, *, where: str) -> None:
  """Checks that loss, objectives and vocabulary of a run fit together.

  Args:
    names: objectives of the examples.
    run: config of the run.
    where: beginning of messages.

  Raises:
    UserError: they do not; begins with `where`.
  """
  if {run.train.loss, *names} & set(_OF_WORDS):
    load("t2t.contrib.static.glove:check_objectives")(names, run, where=where)
  if run.train.loss == "skip_thought":
    load("t2t.contrib.recurrent.skip_thought:check_vocabulary")(run, where=where)
