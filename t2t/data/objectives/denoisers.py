"""UL2's mixture of denoisers: span corruption with a random rate and span length per example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from t2t.data import vocabularies
from t2t.runtime import data_packages

# Imported when an objective converts text: its facts are read by predictions, too, which need no seqio.
seqio, tf = data_packages.lazy_module("seqio"), data_packages.lazy_module("tensorflow")
chunking = data_packages.lazy_module("t2t.data.objectives.chunking")
corruption = data_packages.lazy_module("t2t.data.objectives.corruption")

Features = dict[str, Any]  # tensors


@dataclasses.dataclass(frozen=True)
class Denoiser:
  """A denoising task of UL2, which mixes seven."""

  mode: str  # text before the inputs
  noise_density: float
  mean_noise_span_length: float  # infinity: one span at the end of the text


R_DENOISERS = (Denoiser("[NLU]", 0.15, 3.0), Denoiser("[NLU]", 0.15, 8.0))
S_DENOISERS = (Denoiser("[S2S]", 0.25, math.inf),)
X_DENOISERS = (
  Denoiser("[NLG]", 0.5, 3.0),
  Denoiser("[NLG]", 0.5, 8.0),
  Denoiser("[NLG]", 0.15, 64.0),
  Denoiser("[NLG]", 0.5, 64.0),
)


OF_OBJECTIVES: dict[str, Sequence[Denoiser]] = {
  "ul2": (*R_DENOISERS, *S_DENOISERS, *X_DENOISERS),
  "r_denoising": R_DENOISERS,
  "s_denoising": S_DENOISERS,
  "x_denoising": X_DENOISERS,
}


def mode_tokens(name: str) -> tuple[str, ...]:
  """Returns the mode tokens of UL2's objectives: "[NLU] ", "[S2S] ", "[NLG] "; other objectives have none."""
  return tuple(dict.fromkeys(f"{denoiser.mode} " for denoiser in OF_OBJECTIVES.get(name, ())))


def ul2(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  denoisers: Sequence[Denoiser] = R_DENOISERS + S_DENOISERS + X_DENOISERS,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Corrupts spans with a uniformly drawn denoiser per example, and prepends its mode to the inputs.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      S_DENOISERS, [50, 51] the ids of its mode and 99 the last id
  Out: {"inputs": [50, 51, 3, 4, 5, 6, 99], "targets": [99, 7, 8]}        EOS is added by the next preprocessor

  Each example has as much text as its denoiser needs to fill the inputs. The modes are those in the released
  checkpoints, for the paper's [R], [S] and [X]; a vocabulary without such tokens spells them out.

  Args and errors: see `span_corruption`, including one part per epoch of a long document; targets of every denoiser
  must fit.

  Source: Tay et al. 2023, section 3.1.2 and table 1.
  """
  vocabulary = output_features["targets"].vocabulary
  # The mode is not text of a record, so it may be a control token of the vocabulary.
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
