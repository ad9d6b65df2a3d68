"""Templates: a text with the fields of a record and a blank, and the words that fill the blank for each label."""

from t2t.data.templates.format import FILTERS, Filled, Template, has_fields, load, shipped
from t2t.runtime import data_packages

# `task_steps` imports seqio.
_OF_TASKS = (
  "STEPS",
  "apply",
  "base_name",
  "check_sentinel",
  "compose",
  "form_of",
  "is_templated",
  "templates_of",
  "variants",
)
__getattr__ = data_packages.lazy_attributes(__name__, dict.fromkeys(_OF_TASKS, "task_steps"))

__all__ = ["FILTERS", "Filled", "Template", "has_fields", "load", "shipped", *_OF_TASKS]
