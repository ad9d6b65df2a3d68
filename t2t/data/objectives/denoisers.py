"""UL2's mixture of denoisers: span corruption whose rate and lengths are drawn for each example."""

from collections.abc import Mapping, Sequence
import dataclasses
import math

import seqio
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Denoiser:
  """One of the seven tasks that UL2 mixes."""

  mode: str  # text in front of the inputs
  noise_density: float
  mean_noise_span_length: float  # infinite: one span, which ends the text


R_DENOISERS = (Denoiser("[NLU]", 0.15, 3.0), Denoiser("[NLU]", 0.15, 8.0))
S_DENOISERS = (Denoiser("[S2S]", 0.25, math.inf),)
X_DENOISERS = (
  Denoiser("[NLG]", 0.5, 3.0),
  Denoiser("[NLG]", 0.5, 8.0),
  Denoiser("[NLG]", 0.15, 64.0),
  Denoiser("[NLG]", 0.5, 64.0),
)


def ul2(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  denoisers: Sequence[Denoiser] = R_DENOISERS + S_DENOISERS + X_DENOISERS,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Span corruption with a denoiser drawn for each example, all equally likely, and its mode in front of the inputs.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      S_DENOISERS, [50, 51] the ids of its mode and 99 the last id
  Out: {"inputs": [50, 51, 3, 4, 5, 6, 99], "targets": [99, 7, 8]}        EOS is added by the next preprocessor

  Each example holds as much text as its own denoiser needs to fill the inputs.  The modes are the texts of the
  released checkpoints for the paper's [R], [S] and [X]; a vocabulary without pieces for them spells them.

  Args and errors: as in `span_corruption`, T5's draw of one part of a long document included; the targets of each
  denoiser must fit.

  Source: Tay et al. 2023, section 3.1.2 and table 1.
  """
  vocabulary = output_features["targets"].vocabulary
  # Not text of a record: where the vocabulary has a piece for it, it is that piece.
  published = vocabularies.as_published(vocabulary)
  modes = [list(published.encode(denoiser.mode)) for denoiser in denoisers]
  lengths = corruption.check_mixture(
    sequence_length["inputs"],
    sequence_length["targets"],
    noise=[(denoiser.noise_density, denoiser.mean_noise_span_length) for denoiser in denoisers],
    extra_ids=vocabularies.num_sentinels(vocabulary),
    mode_length=max(len(mode) for mode in modes),
  )
  first_sentinel = vocabularies.sentinel_ids(vocabulary, 1)[0]
  dataset = chunking.cut_into_kinds(dataset, lengths=[kind.raw for kind in lengths], merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    kind = features["kind"]
    corrupted = corruption.corrupt_spans(
      features["targets"],
      seeds,
      first_sentinel=first_sentinel,
      noise_density=tf.constant([d.noise_density for d in denoisers], tf.float64)[kind],
      mean_noise_span_length=tf.constant([d.mean_noise_span_length for d in denoisers], tf.float64)[kind],
    )
    mode = tf.ragged.constant(modes, tf.int32)[kind]
    return {**corrupted, "inputs": tf.concat([mode, corrupted["inputs"]], 0)}

  return corrupt(dataset)
