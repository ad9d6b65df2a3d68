"""Pre-training objectives as seqio preprocessors: functions from tf.data.Dataset to tf.data.Dataset.

An objective converts documents, {"text": string}, to examples that fit the sequence lengths; all features are int32
[n]. entity_masking.py also reads marked entities. The features depend on the model:

- any model with a decoder: {"inputs", "targets"}, or {"targets"} for plain text;
- encoder and decoder: also the features of masked_seq2seq.py;
- an encoder: {"inputs", "targets", "loss_weights"} of one length;
- a decoder: also the features of masked_next_token.py;
- pairs of texts: the features of sentence_pairs.py.

To add an objective, write its transformation of one sequence in corruption.py or masking.py, and its preprocessor and
entry of `OBJECTIVES` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from t2t import UserError, did_you_mean, feature_spec
from t2t.data import vocabularies
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Vocabulary
from t2t.runtime import data_packages
from t2t.runtime.lazy_table import load

# Imported when an objective converts text: its facts are read by predictions, too, which need no seqio.
seqio, tf = data_packages.lazy_module("seqio"), data_packages.lazy_module("tensorflow")
chunking = data_packages.lazy_module("t2t.data.objectives.chunking")
corruption = data_packages.lazy_module("t2t.data.objectives.corruption")

Features = dict[str, Any]  # tensors
Preprocessor = Callable[..., Any]  # returns a tf.data.Dataset


# ---- Objectives ------------------------------------------------------------------------------------------------------


def span_corruption(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Replaces spans of the inputs by sentinels, with the spans as targets (T5).

  With `merge_documents`, as in T5, documents are concatenated and cut into chunks that fill the inputs completely (568
  raw tokens for 512). Almost no padding is needed, and documents meet without a separator. T5 concatenates 128
  documents; this function concatenates 128 chunks no longer than an example. Short documents give the same result; long
  ones give the first example after at most 70 thousand tokens, not after 128 books. In each epoch, one part of 65,536
  tokens is drawn from a longer document, as in T5.

  Without `merge_documents`, each document is cut separately and completely. The feature converter packs several
  examples into one row with segment ids, so that attention never crosses documents.

  In:  {"targets": [3, 4, 5, 6, 7]}         with sequence_length {"inputs": 6, "targets": 3} and 99 as the last id
  Out: {"inputs": [3, 4, 5, 6, 99], "targets": [99, 7]}           EOS is added by the next preprocessor

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum lengths of "inputs" and "targets", EOS included.
    output_features: "targets" has the vocabulary with the sentinels.
    noise_density: fraction of tokens that are removed.
    mean_noise_span_length: tokens.
    merge_documents: see above.

  Raises:
    UserError: targets do not fit their length, or there are fewer sentinels than spans.

  Source: Raffel et al. 2020, sections 3.1.4 and 3.3.4.
  """
  lengths = corruption.check_lengths(
    sequence_length["inputs"],
    sequence_length["targets"],
    noise_density=noise_density,
    mean_noise_span_length=mean_noise_span_length,
    extra_ids=vocabularies.num_sentinels(output_features["targets"].vocabulary),
  )
  first_sentinel = vocabularies.sentinel_ids(output_features["targets"].vocabulary, 1)[0]
  dataset = chunking.cut(dataset, length=lengths.raw, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=2)
  def corrupt(features: Features, seeds: Sequence[tf.Tensor]) -> Features:
    return corruption.corrupt_spans(
      features["targets"],
      seeds,
      first_sentinel=first_sentinel,
      noise_density=noise_density,
      mean_noise_span_length=mean_noise_span_length,
    )

  return corrupt(dataset)


def causal_lm(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool = True
) -> tf.data.Dataset:
  """Cuts text with EOS after each document into chunks of exactly the targets' length.

  In:  {"targets": [3, 4, 1]}, {"targets": [5, 6, 7, 1]}    with sequence_length {"targets": 5} and EOS 1
  Out: {"targets": [3, 4, 1, 5, 6]}, {"targets": [7, 1]}

  The last chunk of a group of documents, or of a separate document, is the remainder. Every token of a document occurs
  once per epoch.

  Args: see `span_corruption`; documents have EOS.

  Source: Radford et al. 2018 (GPT); Brown et al. 2020, section 2.1, for joining documents.
  """
  length = chunking.room(sequence_length, {"targets": 0})
  return chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)


def prefix_lm(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool = True
) -> tf.data.Dataset:
  """Splits chunks at a random point into inputs and targets; see `corruption.random_prefix`.

  In:  {"targets": [3, 4, 5, 6, 7]}         with sequence_length {"inputs": 8, "targets": 7}
  Out: {"inputs": [3, 4], "targets": [5, 6, 7]}             EOS is added by the next preprocessor

  A chunk fits for every split; set both lengths equal, because the longer one is not filled.

  Args: see `span_corruption`, including one part per epoch of a long document.
  """
  # Both sides end in EOS; together they are then as long as either may be, so that a decoder's row holds both.
  length = chunking.room(sequence_length, {"inputs": 2, "targets": 2}, shortest=2)
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def divide(features: Features, seed: tf.Tensor) -> Features:
    return corruption.random_prefix(features["targets"], seed)

  return divide(dataset)


def mass(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise_density: float = 0.5,
  merge_documents: bool = True,
) -> tf.data.Dataset:
  """Masks a contiguous half of the text token by token; it is the target; see `corruption.mask_fragment`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      with 99 as mask
  Out: {"inputs": [3, 4, 99, 99, 99, 8], "targets": [5, 6, 7]}            EOS is added by the next preprocessor

  Args: see `span_corruption`, including one part per epoch of a long document.
  """
  mask_id = vocabularies.mask_id(output_features["targets"].vocabulary)
  chunking.room(sequence_length, {"targets": 1})
  length = chunking.room(sequence_length, {"inputs": 1})
  while round(length * noise_density) > sequence_length["targets"] - 1:
    length -= 1
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    return corruption.mask_fragment(features["targets"], seed, mask_id=mask_id, noise_density=noise_density)

  return corrupt(dataset)


# Facts about the vocabulary that a noise function may need.
_FACTS: dict[str, Callable[[Vocabulary], Any]] = {
  "mask_id": vocabularies.mask_id,
  "ordinary_ids": vocabularies.ordinary_ids,
  "sentence_ends": vocabularies.ends_sentence,
}


def denoising(
  dataset: tf.data.Dataset,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, seqio.Feature],
  *,
  noise: Callable[..., tf.Tensor],
  facts: Sequence[str] = (),
  merge_documents: bool = True,
  **options: float,
) -> tf.data.Dataset:
  """Returns corrupted text as inputs, and the whole text as targets.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      masks as noise, with 99 as mask
  Out: {"inputs": [3, 99, 5, 6, 99, 8], "targets": [3, 4, 5, 6, 7, 8]}    EOS is added by the next preprocessor

  Chunks fit both lengths; set them equal, because the longer one is not filled.

  Args:
    dataset, sequence_length, output_features: see `span_corruption`.
    noise: maps ids and a seed to inputs that are not longer, given `facts` and `options`.
    facts: keys of `_FACTS`.
    merge_documents: see `span_corruption`, including one part per epoch of a long document.
    **options: noise_density and mean_noise_span_length, if the noise has them.
  """
  vocabulary = output_features["targets"].vocabulary
  corrupt_tokens = functools.partial(noise, **{fact: _FACTS[fact](vocabulary) for fact in facts}, **options)
  length = chunking.room(sequence_length, {"inputs": 1, "targets": 1})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    return {"inputs": corrupt_tokens(features["targets"], seed), "targets": features["targets"]}

  return corrupt(dataset)


# ---- The registry ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Objective:
  """An objective: supported architectures, features of its examples, and its preprocessors."""

  architectures: tuple[str, ...]
  features: tuple[str, ...]
  make: Callable[..., list[Preprocessor]]  # takes merge_documents, and the keys of `published`
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)
  sentinels: int = 100  # sufficient at T5's 512 tokens
  heads: tuple[HeadConfig, ...] = ()  # heads that it trains; the first heads of its model
  annotated: bool = False  # whether records mark phrases in their text, "entities", int [n, 2]
  parallel: bool = False  # whether records are texts and their translations, "first" and "second"
  counted: bool = False  # whether records are counts of pairs of words, not text


def _imported(name: str | Callable) -> Callable:
  """Imports "module.function" of this package, or "package.module:function", on demand: few runs need several."""
  if callable(name):
    return name
  if ":" in name:
    return load(name)
  module, _, function = name.partition(".")
  return load(f"t2t.data.objectives.{module}:{function}")


def _with_eos(
  preprocessor: str | Preprocessor, *, first: str | Preprocessor = "chunking.tokenize", **fixed
) -> Callable[..., list[Preprocessor]]:
  """Returns tokenization, the preprocessor, and EOS after its features."""
  return lambda **options: [
    _imported(first),
    functools.partial(_imported(preprocessor), **fixed, **options),
    seqio.preprocessors.append_eos_after_trim,
  ]


def _of_documents_with_eos(preprocessor: str | Preprocessor) -> Callable[..., list[Preprocessor]]:
  """Returns tokenization, EOS after each document, and the preprocessor."""
  return lambda **options: [
    chunking.tokenize,
    seqio.preprocessors.append_eos,
    functools.partial(_imported(preprocessor), **options),
  ]


def _of_ids(preprocessor: str, *, first: str | Preprocessor = "chunking.tokenize") -> Callable[..., list[Preprocessor]]:
  """Returns tokenization and the preprocessor."""
  return lambda **options: [_imported(first), functools.partial(_imported(preprocessor), **options)]


_ENCODER_DECODER, _DECODERS, _ENCODER = ("encoder_decoder",), ("encoder_decoder", "decoder_only"), ("encoder_only",)
_TEXT, _PAIR, _ALIGNED = ("targets",), ("inputs", "targets"), ("inputs", "targets", "loss_weights")
_IDS = ("inputs", "targets")  # features with ids of the vocabulary
_T5 = {"noise_density": 0.15, "mean_noise_span_length": 3.0}
_BERT = {"noise_density": 0.15}
# Fractions of the tokens to predict that become masks and random tokens, see `masking.replace`.
_BERT_RULE = {"mask_rate": 0.8, "random_rate": 0.1}
_BERT_MASKS = {**_BERT, **_BERT_RULE}
_T5_MASKS = {**_BERT, "mask_rate": 0.9, "random_rate": 0.1}
_MASS = {"noise_density": 0.5}
# 512 tokens at density 0.5 in short spans need more than T5's 100 sentinels; its embedding of 32,128 rows has room.
_MANY = 127
_BART = {"noise_density": 0.3, "mean_noise_span_length": 3.0}
_STATIC, _WORD2VEC = "t2t.contrib.static", {"window": 5, "subsampling": 1e-5}
_WINDOWED, _COUNTED = (*_ALIGNED, "windows"), (*_ALIGNED, "pair_counts")


def _denoiser(noise: str | Callable, *facts: str, published: Mapping[str, float] | None = None) -> Objective:
  make = lambda **options: _with_eos(denoising, noise=_imported(noise), facts=facts)(**options)
  return Objective(_ENCODER_DECODER, _PAIR, make, published or {})


def _ul2(denoisers: str = "") -> Callable[..., list[Preprocessor]]:
  fixed = lambda: {"denoisers": _imported(f"denoisers.{denoisers}")} if denoisers else {}
  return lambda **options: _with_eos("denoisers.ul2", **fixed())(**options)


def _masked(choose: str, published: Mapping[str, float] = _BERT) -> Objective:
  make = lambda **options: _of_ids("masking.masked_lm")(choose=_imported(choose), **options)
  return Objective(_ENCODER, _ALIGNED, make, {**published, **_BERT_RULE})


def _beside_each_other(preprocessor: str, published: Mapping[str, float] | None = None) -> Objective:
  make = _of_documents_with_eos(preprocessor)
  return Objective(("decoder_only",), feature_spec.NEXT_TOKENS, make, published or {})


def _noised(make: Callable[..., list[Preprocessor]], **options: bool) -> Objective:
  # A decoder reads the direction of attention, an encoder does not.
  return Objective(("decoder_only", *_ENCODER), (*feature_spec.NEXT_TOKENS, "noise_levels"), make, **options)


def _in_place(preprocessor: str, *beside: str, published: Mapping[str, float]) -> Objective:
  return Objective(_ENCODER_DECODER, (*_PAIR, *beside), _of_ids(preprocessor), published)


def _class_head(name: str, *labels: str) -> HeadConfig:
  # transformers' pre-training heads have no dropout.
  return HeadConfig(name, len(labels), "class", labels, reads="first", dropout_rate=0.0)


# Classes are arrangements of two texts, see `nsp_sop.SentencePairTask`.
NSP = _class_head("nsp", "next", "random")
SOP = _class_head("sop", "in order", "swapped")
STRUCTURE = _class_head("structure", "next", "previous", "random")


def _with_sentences(task: str, head: HeadConfig, choose: str) -> Objective:
  make = lambda **options: _of_ids("nsp_sop.masked_pairs")(task=_imported(task), choose=_imported(choose), **options)
  return Objective(_ENCODER, (*_ALIGNED, *feature_spec.ANSWERED[1:]), make, _BERT_MASKS, heads=(head,))


# Number of predicted tokens per span, from the command of SpanBERT's authors.
_BOUNDARIES = (HeadConfig("sbo", 15, "boundary"),)


def _compared(make: Callable[..., list[Preprocessor]], *, parallel: bool = False) -> Objective:
  return Objective((*_DECODERS, *_ENCODER), feature_spec.PAIRED, make, parallel=parallel)


def _translated() -> Objective:
  return Objective(_DECODERS, _PAIR, _with_eos("translation.translation", first="sentence_pairs.encode"), parallel=True)


OBJECTIVES: dict[str, Objective] = {
  "span_corruption": Objective(_DECODERS, _PAIR, _with_eos(span_corruption), _T5),
  "ul2": Objective(_DECODERS, _PAIR, _ul2(), sentinels=_MANY),
  "r_denoising": Objective(_DECODERS, _PAIR, _ul2("R_DENOISERS")),
  "s_denoising": Objective(_DECODERS, _PAIR, _ul2("S_DENOISERS")),
  "x_denoising": Objective(_DECODERS, _PAIR, _ul2("X_DENOISERS"), sentinels=_MANY),
  "iid_span_corruption": Objective(_DECODERS, _PAIR, _with_eos("iid_denoising.iid_span_corruption"), _BERT),
  "iid_token_corruption": Objective(_DECODERS, _PAIR, _with_eos("iid_denoising.iid_token_corruption"), _BERT),
  "drop_tokens": Objective(_DECODERS, _PAIR, _with_eos("iid_denoising.drop_tokens"), _BERT),
  "prefix_lm": Objective(_DECODERS, _PAIR, _with_eos(prefix_lm)),
  "causal_lm": Objective(_DECODERS, _TEXT, _of_documents_with_eos(causal_lm)),
  "fill_in_the_middle": Objective(
    ("decoder_only",), _TEXT, _of_documents_with_eos("fill_in_the_middle.fill_in_the_middle")
  ),
  "next_token": _beside_each_other("masked_next_token.next_token"),
  "masked_next_token": _beside_each_other("masked_next_token.masked_next_token", _BERT_MASKS),
  "masked_diffusion": _noised(_of_documents_with_eos("masked_diffusion.masked_diffusion")),
  "answer_diffusion": _noised(
    _of_ids("masked_diffusion.answer_diffusion", first="sentence_pairs.encode"), parallel=True
  ),
  "mass": Objective(_ENCODER_DECODER, _PAIR, _with_eos(mass), _MASS),
  "mass_in_place": _in_place("masked_seq2seq.mass_in_place", "target_places", published=_MASS),
  "bert_style": _denoiser("masking.bert_style", "mask_id", "ordinary_ids", published=_T5_MASKS),
  "bert_style_masked_only": _in_place("masked_seq2seq.bert_style_masked_only", "loss_weights", published=_T5_MASKS),
  "masked_lm_seq2seq": _in_place(
    "masked_seq2seq.masked_lm_seq2seq", "loss_weights", "target_inputs", published=_BERT_MASKS
  ),
  "deshuffling": _denoiser("corruption.shuffle"),
  # BART gives no rates for masking and deletion alone; these are BERT's, which it follows.
  "token_masking": _denoiser("corruption.mask_tokens", "mask_id", published=_BERT),
  "token_deletion": _denoiser("corruption.delete_tokens", published=_BERT),
  "text_infilling": _denoiser("corruption.infill", "mask_id", published=_BART),
  "sentence_permutation": _denoiser("corruption.permute_sentences", "sentence_ends"),
  "document_rotation": _denoiser("corruption.rotate"),
  "sequence_autoencoder": dataclasses.replace(_denoiser(lambda tokens, seed: tokens), architectures=_DECODERS),
  "bart": _denoiser("corruption.permute_and_infill", "mask_id", "sentence_ends", published=_BART),
  "masked_lm": _masked("masking.random_tokens"),
  "whole_word_masked_lm": _masked("masking.whole_words"),
  "span_masked_lm": _masked("masking.word_spans"),
  "ngram_masked_lm": _masked("masking.word_ngrams"),
  "fragment_masked_lm": _masked("masking.one_fragment", _MASS),
  "unilm": Objective(_ENCODER, (*_ALIGNED, "token_types", "input_ranks"), _of_ids("unilm.unilm"), _BERT_MASKS),
  "span_masked_lm_sbo": Objective(
    _ENCODER, (*_ALIGNED, *feature_spec.ANSWERED[1:]), _of_ids("masking.masked_spans"), _BERT_MASKS, heads=_BOUNDARIES
  ),
  "permuted_lm": Objective(
    _ENCODER, (*_ALIGNED, "input_ranks"), _of_ids("permuted_lm.permuted_lm"), {"noise_density": 1 / 6}
  ),
  "overlapping_permuted_lm": Objective(
    _ENCODER,
    (*_ALIGNED, "input_ranks"),
    lambda **options: _of_ids("permuted_lm.permuted_lm")(overlap=True, **options),
    {"noise_density": 1 / 6},
  ),
  "annotated_masked_lm": Objective(
    _ENCODER,
    _ALIGNED,
    _of_ids("entity_masking.annotated_masked_lm", first="entity_masking.tokenize"),
    _BERT_MASKS,
    annotated=True,
  ),
  "text_to_text": _translated(),
  "translation_lm": Objective(
    _ENCODER,
    (*_ALIGNED, "token_types", "input_places"),
    _of_ids("translation.translation_lm", first="sentence_pairs.encode"),
    _BERT_MASKS,
    parallel=True,
  ),
  "translation": _translated(),
  "translation_ranking": _compared(
    lambda merge_documents: [_imported("sentence_pairs.encode"), _imported("sentence_pairs.together")], parallel=True
  ),
  "masked_lm_nsp": _with_sentences("nsp_sop.NEXT", NSP, "masking.random_tokens"),
  "masked_lm_sop": _with_sentences("nsp_sop.ORDER", SOP, "masking.random_tokens"),
  "ngram_masked_lm_sop": _with_sentences("nsp_sop.ORDER", SOP, "masking.word_ngrams"),
  "struct_bert": _with_sentences("nsp_sop.STRUCTURE", STRUCTURE, "masking.random_tokens"),
  "neighbouring_sentences": _compared(_of_ids("sentence_pairs.neighbouring_sentences")),
  "same_text_twice": _compared(_of_ids("sentence_pairs.same_text_twice")),
  "skip_gram": Objective(_ENCODER, _WINDOWED, _of_ids(f"{_STATIC}.windows:skip_gram"), _WORD2VEC),
  "cbow": Objective(_ENCODER, _WINDOWED, _of_ids(f"{_STATIC}.windows:cbow"), _WORD2VEC),
  "glove": Objective(
    _ENCODER, _COUNTED, _of_ids(f"{_STATIC}.glove:glove", first=f"{_STATIC}.glove:read_pairs"), counted=True
  ),
}


# Objectives of plain text, which any corpus has.
OF_TEXT = tuple(name for name, row in OBJECTIVES.items() if not (row.annotated or row.parallel or row.counted))


def _objective(name: str) -> Objective:
  if name not in OBJECTIVES:
    from t2t.data.objectives import other_names

    canonical_name = other_names.name_here(name)
    spelled = name.lower().replace("-", "_") if name.lower().replace("-", "_") in OBJECTIVES else canonical_name
    hint = f"; the name in t2t is {spelled}." if spelled else did_you_mean(name, OBJECTIVES) or "."
    raise UserError(
      f"config.data.objective={name}: no such objective{hint} Known objectives: {', '.join(sorted(OBJECTIVES))}."
    )
  return OBJECTIVES[name]


def preprocessors(
  name: str,
  *,
  noise_density: float = 0.0,
  mean_noise_span_length: float = 0.0,
  mask_rate: float = -1.0,
  random_rate: float = -1.0,
  window: int = -1,
  subsampling: float = -1.0,
  dictionary: str = "",
  switching_rate: float = 0.0,
  both_directions: bool = False,
  tags: Sequence[str] = ("", ""),
  pack: bool = False,
) -> list[Preprocessor]:
  """Returns the preprocessors of an objective, for a seqio task whose source yields {"text": string}.

  Args:
    name: a key of `OBJECTIVES`.
    noise_density: fraction of noise tokens; 0: the published value.
    mean_noise_span_length: tokens; 0: the published value.
    mask_rate, random_rate: fractions of the tokens to predict; below 0: the published values.
    window: largest distance of a context word; -1: the published value.
    subsampling: frequency above which words are dropped at random; below 0: the published value.
    dictionary: file of words and translations for `code_switching.code_switching`; "": none.
    switching_rate: probability of replacing a word of the dictionary.
    both_directions, tags: for texts with translations, see `sentence_pairs.directed`.
    pack: whether documents stay separate, because the feature converter packs examples.

  Raises:
    UserError: the objective does not exist (gives the nearest), a number does not apply or is out of range, or a
      dictionary is given for an objective that does not read plain text.
  """
  objective = _objective(name)
  options = dict(objective.published)
  # Key -> its value, and the value that stands for the published one.
  of_noise = {"noise_density": (noise_density, 0.0), "mean_noise_span_length": (mean_noise_span_length, 0.0)}
  of_noise |= {"mask_rate": (mask_rate, -1.0), "random_rate": (random_rate, -1.0)}
  of_words = {"window": (window, -1), "subsampling": (subsampling, -1.0)}
  for key, (value, off) in (of_noise | of_words).items():
    if value != off and key not in objective.published:
      raise UserError(
        f"config.data.{key}={value} has no effect with config.data.objective={name}. Set config.data.{key}={off}."
      )
    if value != off:
      options[key] = value
  noise = {key: value for key, value in options.items() if key not in of_words}
  if noise:
    corruption.check_noise(**noise)
  steps = [functools.partial(step) for step in objective.make(merge_documents=not pack, **options)]
  if dictionary or switching_rate:
    from t2t.data.objectives import code_switching

    code_switching.check(dictionary, switching_rate, objective=name, reads_text=name in OF_TEXT)
    steps.insert(0, functools.partial(code_switching.code_switching, dictionary=dictionary, rate=switching_rate))
  if both_directions and not objective.parallel:
    reading = ", ".join(objective_name for objective_name, candidate in OBJECTIVES.items() if candidate.parallel)
    raise UserError(
      f"config.data.both_directions=True needs texts with translations, but config.data.objective={name} reads no "
      f"translations. Give one of the objectives {reading}."
    )
  if both_directions or any(tags):
    steps.insert(0, functools.partial(_imported("sentence_pairs.directed"), tags=tags, both_directions=both_directions))
  for step in steps:
    step.objective = name  # read by `of`, also if a cache replaces the first preprocessors
  return steps


def of(task: seqio.Task | seqio.Mixture) -> set[str]:
  """Returns the objectives of a task, or of a mixture's tasks, built by `preprocessors`; empty if there are none."""
  tasks = task.tasks if isinstance(task, seqio.Mixture) else [task]
  marks = {getattr(preprocessor, "objective", None) for subtask in tasks for preprocessor in subtask.preprocessors}
  return marks - {None}


def ends_inputs(name: str) -> bool:
  """Returns True if EOS ends the inputs of an objective; objectives without separate inputs have none.

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  return "inputs" in _objective(name).features and "both_ways" not in _objective(name).features


def of_corpus_tasks(mixture: str, modules: Sequence[str]) -> set[str] | None:
  """Returns the objectives of a mixture whose tasks are called CORPUS_OBJECTIVE; None if another task is among them.

  In:  "docs_span_corruption"; "docs_summary"
  Out: {"span_corruption"}; None

  Args:
    mixture: names of tasks, separated by commas.
    modules: config.data.task_modules; tasks of other modules than those of t2t may have any name.
  """
  parts = [name.strip().partition("_") for name in mixture.split(",")]
  if not all(module.startswith("t2t.tasks.") for module in modules):
    return None
  known = all(corpus in feature_spec.CORPORA and name in OF_TEXT for corpus, _, name in parts)
  return {name for _, _, name in parts} if known else None


def output_features(name: str, vocabulary: Vocabulary) -> dict[str, seqio.Feature]:
  """Returns the output features for registering a task with this objective.

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  text = seqio.Feature(vocabulary, add_eos=True)
  numbers = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
  return {feature: text if feature in _IDS else numbers for feature in _objective(name).features}


def heads_of(name: str) -> tuple[HeadConfig, ...]:
  """Returns the heads that an objective trains, in the order of their numbers in examples.

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  return _objective(name).heads


def needs_other_documents(name: str) -> bool:
  """Returns True if a class of an objective's examples combines two documents.

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  return any("random" in head.labels for head in _objective(name).heads)


def is_annotated(name: str) -> bool:
  """Returns True if an objective reads marked phrases of records, "entities", int [n, 2].

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  return _objective(name).annotated


def is_parallel(name: str) -> bool:
  """Returns True if an objective reads texts with translations, "first" and "second".

  Raises:
    UserError: the objective does not exist; gives the nearest.
  """
  return _objective(name).parallel


def t5_features(name: str) -> dict[str, seqio.Feature]:
  """Returns `output_features` for T5's vocabulary, with the sentinels that the objective needs at 512 tokens."""
  return output_features(name, vocabularies.t5_vocabulary(extra_ids=_objective(name).sentinels))


def check_fits(name: str, architecture: str, *, where: str = "") -> None:
  """Checks that an architecture can be trained with an objective.

  Args:
    name: a key of `OBJECTIVES`.
    architecture: config.model.architecture.
    where: description of the task or mixture of the objective, for messages; "": the config names the objective.

  Raises:
    UserError: the objective does not fit; gives objectives that do.
  """
  if architecture not in _objective(name).architectures:
    fitting = sorted(
      objective_name for objective_name, objective in OBJECTIVES.items() if architecture in objective.architectures
    )
    subject = f"{where}: the objective {name}" if where else f"config.data.objective={name}"
    raise UserError(
      f"{subject} does not fit config.model.architecture={architecture}. Give one of the objectives "
      f"{', '.join(fitting)}."
    )
