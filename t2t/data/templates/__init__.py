"""Templates: a text with the fields of a record and a blank, and the words that fill the blank for each label."""

from t2t.data.templates.format import FILTERS, Template, has_fields, load, shipped
from t2t.data.templates.task_steps import (
  BLANKS,
  STEPS,
  apply,
  base_name,
  compose,
  is_templated,
  templates_of,
  variants,
)

__all__ = [
  "BLANKS",
  "FILTERS",
  "STEPS",
  "Template",
  "apply",
  "base_name",
  "compose",
  "has_fields",
  "is_templated",
  "load",
  "shipped",
  "templates_of",
  "variants",
]
