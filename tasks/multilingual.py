"""Pairs of sentences in several languages: XNLI (Conneau et al. 2018) and PAWS-X (Yang et al. 2019).

Tasks are called xnli_LANGUAGE and paws_x_wiki_LANGUAGE.  XNLI has no training data: what was trained on glue_mnli
answers it, by the same head or in the same words.  config.data.folders.xnli and config.data.folders.paws_x_wiki name
the folders of the released files (XNLI-1.0, x-final); without them TensorFlow Datasets provides them.
"""

import functools

import seqio

from t2t import task_metrics
from t2t.data import answers, text_formats
from t2t.data.sources import released


def _add(benchmark: str, language: str, formats, *, tfds: str, labels, splits) -> None:
  seqio.TaskRegistry.add(
    f"{benchmark}_{language}",
    source=released.BenchmarkSource(benchmark, language, tfds=tfds, labels=labels, splits=splits),
    preprocessors=text_formats.preprocessors(*formats),
    output_features=text_formats.t5_features(),
    postprocess_fn=answers.label(labels),
    metric_fns=[task_metrics.accuracy],
  )


# As of glue_mnli.
_NLI = ("entailment", "neutral", "contradiction")
_mnli = functools.partial(
  text_formats.labelled,
  prefix="mnli",
  fields=("hypothesis", "premise"),
  labels=_NLI,
  parts=("premise", "hypothesis"),
)
for _language in released.XNLI_LANGUAGES:
  _in_language = functools.partial(text_formats.in_language, language=_language)
  _add("xnli", _language, [_in_language, _mnli], tfds="xnli:1.1.0", labels=_NLI, splits=("validation", "test"))

# One head for all languages.
_SAME = ("different_meaning", "paraphrase")
_paws = functools.partial(text_formats.labelled, prefix="paws", fields=("sentence1", "sentence2"), labels=_SAME)
for _language in released.PAWS_LANGUAGES:
  _add(
    "paws_x_wiki",
    _language,
    [_paws],
    tfds=f"paws_x_wiki/{_language}:1.0.0",
    labels=_SAME,
    splits=("train", "validation", "test"),
  )
