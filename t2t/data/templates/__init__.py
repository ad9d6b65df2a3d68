"""Templates: a text with the fields of a record and a blank, and the words that fill the blank for each label."""

from t2t.data.templates.format import FILTERS, Filled, Template, has_fields, load, shipped
from t2t.data.templates.task_steps import (
  BLANKS,
  STEPS,
  apply,
  base_name,
  check_sentinel,
  compose,
  form_of,
  is_templated,
  templates_of,
  variants,
)

__all__ = [
  "BLANKS",
  "FILTERS",
  "Filled",
  "STEPS",
  "Template",
  "apply",
  "base_name",
  "check_sentinel",
  "compose",
  "form_of",
  "has_fields",
  "is_templated",
  "load",
  "shipped",
  "templates_of",
  "variants",
]
