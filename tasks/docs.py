"""The embedded default: span corruption of the documentation of installed packages, in a vocabulary of its own."""

import seqio

from t2t.data import objectives, sources, vocabularies

# Neither the source nor the vocabulary reads anything before it is used.
_FEATURE = seqio.Feature(vocabulary=vocabularies.docs_vocabulary(extra_ids=100), add_eos=True)

seqio.TaskRegistry.add(
  "docs_span_corruption",
  source=sources.DocumentationSource(),
  preprocessors=objectives.preprocessors("span_corruption"),
  output_features={"inputs": _FEATURE, "targets": _FEATURE},
  # Examples that each stream draws from; small, so that training starts soon.
  shuffle_buffer_size=128,
)
