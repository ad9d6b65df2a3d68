"""Examples for heads: the head that a task needs, and the features that a model with that head reads."""

from t2t.data.head_examples.examples import for_heads, gathered
from t2t.data.head_examples.feature_converter import ConvertedExample, HeadFeatureConverter
from t2t.data.head_examples.kinds import ANSWER_FEATURES, KINDS, QuestionKind
from t2t.data.head_examples.needs import Need, head_of, heads_of, is_answered, labels_of, need_of
from t2t.data.special_tokens import Framing

__all__ = [
  "ANSWER_FEATURES",
  "KINDS",
  "ConvertedExample",
  "Framing",
  "HeadFeatureConverter",
  "QuestionKind",
  "Need",
  "for_heads",
  "gathered",
  "head_of",
  "heads_of",
  "is_answered",
  "labels_of",
  "need_of",
]
