"""Examples for heads: the head that a task needs, and the features that a model with that head reads."""

from t2t.data.head_examples.feature_converter import ConvertedExample, HeadFeatureConverter
from t2t.data.head_examples.kinds import ANSWER_FEATURES, KINDS, QuestionKind
from t2t.data.special_tokens import Framing
from t2t.runtime import data_packages

# These import seqio.
_OF_TASKS = {
  "for_heads": "examples",
  "gathered": "examples",
  "Need": "needs",
  "head_of": "needs",
  "heads_of": "needs",
  "is_answered": "needs",
  "labels_of": "needs",
  "need_of": "needs",
}
__getattr__ = data_packages.lazy_attributes(__name__, _OF_TASKS)

__all__ = [
  "ANSWER_FEATURES",
  "KINDS",
  "ConvertedExample",
  "Framing",
  "HeadFeatureConverter",
  "QuestionKind",
  *_OF_TASKS,
]
