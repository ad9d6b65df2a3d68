"""Default corpus: the documentation of installed packages, with its own vocabulary.

Tasks are called docs_OBJECTIVE. The fine-tuning tasks are docs_summary, docs_match, docs_package, docs_order,
docs_cloze and docs_punctuation; docs_pairs has pairs of texts.
"""

import functools

import seqio

from t2t.data import docs_corpus, objectives, postprocessors, preprocessors, sources, vocabularies
from t2t.data.objectives import sentence_pairs
from t2t.data.sources import docstrings
from t2t.evaluation import task_metrics

# Sources and vocabulary read nothing before they are used.
_VOCABULARY = vocabularies.docs_vocabulary(extra_ids=100)
_TEXT = seqio.Feature(_VOCABULARY, add_eos=True)

for _objective in objectives.OF_TEXT:
  seqio.TaskRegistry.add(
    f"docs_{_objective}",
    source=sources.DocumentationSource(),
    preprocessors=objectives.preprocessors(_objective),
    output_features=objectives.output_features(_objective, _VOCABULARY),
    # Shuffle buffer of each stream; small, so that training starts soon.
    shuffle_buffer_size=128,
  )

# Generate the first sentence of a docstring from its continuation.
seqio.TaskRegistry.add(
  "docs_summary",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(preprocessors.summarize, document="body", summary="summary"),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.text(),
  metric_fns=[task_metrics.rouge],
  shuffle_buffer_size=1_024,
)

# Pairs of the first sentence of a docstring and its continuation.
seqio.TaskRegistry.add(
  "docs_pairs",
  source=docstrings.DocstringSource(),
  preprocessors=sentence_pairs.preprocessors(preprocessors.pairs, first="summary", second="body"),
  output_features=sentence_pairs.output_features(_VOCABULARY),
  shuffle_buffer_size=1_024,
)

# Classify whether a sentence is the first of a docstring with this continuation.
_LABELS = ("False", "True")
_labelled = functools.partial(preprocessors.labelled, prefix="docs match", fields=("summary", "body"), labels=_LABELS)
seqio.TaskRegistry.add(
  "docs_match",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(docstrings.match, _labelled),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.label(_LABELS),
  metric_fns=[task_metrics.accuracy],
  shuffle_buffer_size=1_024,
)

# Classify the package of a docstring.
_PACKAGES = docs_corpus.NAMES
_of_package = functools.partial(docstrings.of_package, packages=_PACKAGES)
_named = functools.partial(preprocessors.labelled, prefix="docs package", fields=("summary", "body"), labels=_PACKAGES)
seqio.TaskRegistry.add(
  "docs_package",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(_of_package, _named),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.label(_PACKAGES),
  metric_fns=[task_metrics.accuracy],
  shuffle_buffer_size=1_024,
)

# Classify whether the words of a sentence are in their order.
_ordered = functools.partial(preprocessors.labelled, prefix="docs order", fields=("summary",), labels=_LABELS)
seqio.TaskRegistry.add(
  "docs_order",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(docstrings.shuffled, _ordered),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.label(_LABELS),
  metric_fns=[task_metrics.accuracy],
  shuffle_buffer_size=1_024,
)

# Find the word of a body that is left out in its summary.
seqio.TaskRegistry.add(
  "docs_cloze",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(docstrings.cloze, preprocessors.squad),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.squad(),
  metric_fns=[task_metrics.squad],
  shuffle_buffer_size=1_024,
)

# Restore commas and stops.
_tagged = functools.partial(
  preprocessors.tagged, words="words", tags="tags", names=docstrings.PUNCTUATION, prefix="docs punctuation"
)
seqio.TaskRegistry.add(
  "docs_punctuation",
  source=docstrings.DocstringSource(),
  preprocessors=preprocessors.text_to_text(docstrings.punctuation, _tagged),
  output_features={"inputs": _TEXT, "targets": _TEXT},
  postprocess_fn=postprocessors.tagged(docstrings.PUNCTUATION),
  metric_fns=[task_metrics.entity_f1],
  shuffle_buffer_size=1_024,
)
