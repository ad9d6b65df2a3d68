"""What text is made into for pre-training: the table of objectives, and what its rows are made of."""

from t2t.data.objectives.denoisers import R_DENOISERS, S_DENOISERS, X_DENOISERS, Denoiser, ul2
from t2t.data.objectives.middle import fill_in_the_middle
from t2t.data.objectives.switching import code_switching
from t2t.data.objectives.table import (
  OBJECTIVES,
  OF_TEXT,
  Objective,
  causal_lm,
  check_fits,
  denoising,
  ends_inputs,
  heads_of,
  is_annotated,
  is_parallel,
  mass,
  needs_other_documents,
  of,
  output_features,
  prefix_lm,
  preprocessors,
  span_corruption,
  t5_features,
)

__all__ = [
  "OBJECTIVES",
  "OF_TEXT",
  "R_DENOISERS",
  "S_DENOISERS",
  "X_DENOISERS",
  "Denoiser",
  "Objective",
  "causal_lm",
  "check_fits",
  "code_switching",
  "denoising",
  "ends_inputs",
  "fill_in_the_middle",
  "heads_of",
  "is_annotated",
  "is_parallel",
  "mass",
  "needs_other_documents",
  "of",
  "output_features",
  "prefix_lm",
  "preprocessors",
  "span_corruption",
  "t5_features",
  "ul2",
]
