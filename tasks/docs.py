"""The embedded default: the documentation of installed packages, in a vocabulary of its own.

Tasks are called docs_OBJECTIVE.
"""

import seqio

from t2t.data import objectives, sources, vocabularies

# Neither the source nor the vocabulary reads anything before it is used.
_VOCABULARY = vocabularies.docs_vocabulary(extra_ids=100)

for _objective in objectives.OBJECTIVES:
  seqio.TaskRegistry.add(
    f"docs_{_objective}",
    source=sources.DocumentationSource(),
    preprocessors=objectives.preprocessors(_objective),
    output_features=objectives.output_features(_objective, _VOCABULARY),
    # Examples that each stream draws from; small, so that training starts soon.
    shuffle_buffer_size=128,
  )
