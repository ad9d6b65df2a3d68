"""Benchmarks of transfer between languages: a task per language, BENCHMARK_LANGUAGE, and a mixture of all.

Pairs of sentences: xnli (Conneau et al. 2018) and paws_x_wiki (Yang et al. 2019). Questions: xquad (Artetxe et al.
2020) and tydiqa_goldp (Clark et al. 2020). Named entities: wikiann (Pan et al. 2017, split by Rahimi et al. 2019), in
the 40 languages of XTREME, and masakhaner and masakhaner2 (Adelani et al. 2021, 2022).

Benchmarks without training data are evaluated on a model trained on the English counterpart, with the same head or the
same words: xnli after glue_mnli, xquad after squad. config.data.benchmark_dirs.BENCHMARK names the folder of the
released files. Without it TensorFlow Datasets provides them, except masakhaner.
"""

from collections.abc import Callable, Sequence
import functools

import seqio

from t2t.data import postprocessors, preprocessors
from t2t.data.sources import benchmark_files
from t2t.evaluation import task_metrics

_ALL = ("train", "validation", "test")


def _add(
  benchmark: str,
  language: str,
  formats: Sequence[Callable],
  postprocess: postprocessors.Postprocess,
  metric: Callable,
  *,
  tfds: str,
  labels: Sequence[str] = (),
  splits: Sequence[str] = _ALL,
) -> None:
  seqio.TaskRegistry.add(
    f"{benchmark}_{language}",
    source=benchmark_files.BenchmarkSource(benchmark, language, tfds=tfds, labels=labels, splits=splits),
    preprocessors=preprocessors.text_to_text(*formats),
    output_features=preprocessors.t5_features(),
    postprocess_fn=postprocess,
    metric_fns=[metric],
  )


# ---- Pairs of sentences ----------------------------------------------------------------------------------------------

# as in glue_mnli
_NLI = ("entailment", "neutral", "contradiction")
_mnli = functools.partial(
  preprocessors.labelled,
  prefix="mnli",
  fields=("hypothesis", "premise"),
  labels=_NLI,
  parts=("premise", "hypothesis"),
)
for _language in benchmark_files.LANGUAGES["xnli"]:
  _add(
    "xnli",
    _language,
    [functools.partial(preprocessors.in_language, language=_language), _mnli],
    postprocessors.label(_NLI),
    task_metrics.accuracy,
    tfds="xnli:1.1.0",
    labels=_NLI,
    splits=("validation", "test"),
  )

# One head for all languages.
_SAME = ("different_meaning", "paraphrase")
_paws = functools.partial(preprocessors.labelled, prefix="paws", fields=("sentence1", "sentence2"), labels=_SAME)
for _language in benchmark_files.LANGUAGES["paws_x_wiki"]:
  _add(
    "paws_x_wiki",
    _language,
    [_paws],
    postprocessors.label(_SAME),
    task_metrics.accuracy,
    tfds=f"paws_x_wiki/{_language}:1.0.0",
    labels=_SAME,
  )

# ---- Questions -------------------------------------------------------------------------------------------------------

# as in squad
for _language in benchmark_files.LANGUAGES["xquad"]:
  _add(
    "xquad",
    _language,
    [preprocessors.squad],
    postprocessors.squad(),
    task_metrics.squad,
    tfds=f"xquad/{_language}:3.0.0",
    splits=("test",),
  )
for _language in benchmark_files.LANGUAGES["tydiqa_goldp"]:
  _of_language = functools.partial(preprocessors.with_id, begins=f"{benchmark_files.TYDI_NAMES[_language]}-")
  _add(
    "tydiqa_goldp",
    _language,
    [_of_language, preprocessors.squad],
    postprocessors.squad(),
    task_metrics.squad,
    tfds="tydi_qa/goldp:3.0.0",
    splits=("train", "validation"),
  )

# ---- Named entities --------------------------------------------------------------------------------------------------

# In TFDS's order; MasakhaNER's as its authors list them.
_WIKIANN = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
_MASAKHANER = (*_WIKIANN, "B-DATE", "I-DATE")
for _benchmark, _tags, _tfds in [("wikiann", _WIKIANN, "wikiann/{}:1.0.0"), ("masakhaner", _MASAKHANER, "")]:
  for _language in benchmark_files.LANGUAGES[_benchmark]:
    _add(
      _benchmark,
      _language,
      [functools.partial(preprocessors.tagged, words="tokens", tags="tags", names=_tags, prefix=_benchmark)],
      postprocessors.tagged(_tags),
      task_metrics.entity_f1,
      tfds=_tfds.format(_language),
      labels=_tags,
    )

# ---- All languages together ------------------------------------------------------------------------------------------

_FIRST = ("amh", "hau", "ibo", "kin", "lug", "luo", "pcm", "swa", "wol", "yor")  # MasakhaNER 1
_mixtures = {name: languages for name, languages in benchmark_files.LANGUAGES.items() if name != "masakhaner"}
for _name, _languages in _mixtures.items():
  seqio.MixtureRegistry.add(_name, [f"{_name}_{_language}" for _language in _languages], default_rate=1.0)
_second = [language for language in benchmark_files.LANGUAGES["masakhaner"] if language != "amh"]
for _name, _languages in {"masakhaner": _FIRST, "masakhaner2": _second}.items():
  seqio.MixtureRegistry.add(_name, [f"masakhaner_{_language}" for _language in _languages], default_rate=1.0)
