"""Pre-training objectives as seqio preprocessors: functions from tf.data.Dataset to tf.data.Dataset.

An objective turns documents, {"text": string} and for entity_masking.py the marked entities, into examples that fit the
sequence lengths: {"inputs", "targets"} for any model with a decoder, and with it the features of masked_seq2seq.py
for one with an encoder, too; {"targets"} alone for text that is simply continued, for an encoder alone {"inputs",
"targets", "loss_weights"} of one length, for a decoder alone these and the features of masked_next_token.py, and what
sentence_pairs.py says of pairs of texts; all int32 [n].  To add one, write
what it does to a sequence in corruption.py or masking.py, and its preprocessor and its row of `OBJECTIVES` here.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import seqio
import tensorflow as tf

from t2t import UserError, did_you_mean, feature_spec
from t2t.data import vocabularies
from t2t.data.objectives import chunking, corruption
from t2t.models.config import HeadConfig
from t2t.runtime.lazy_table import load

Features = dict[str, tf.Tensor]
Preprocessor = Callable[..., tf.data.Dataset]


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
  """T5's objective: spans of the text are taken out of the inputs, and the targets are those spans.

  With `merge_documents`, as T5: documents are concatenated and cut into pieces that fill the inputs to the last token
  (568 raw tokens for 512), whatever document they belong to; next to nothing is spent on padding, and the model sees
  documents meet without a mark.  T5 concatenates 128 documents; here it is 128 pieces of documents no longer than an
  example, which is the same for short documents, and for long ones gives the first example after 70 thousand
  tokens at most and not after 128 books.  Of a document of more than 65,536 tokens one part of that length is drawn in
  each epoch, as T5 does: the rest of a book is left for other epochs.

  Without `merge_documents` each document is cut on its own, the whole of it, examples are as long as their documents,
  and the feature converter packs several into one sequence with segment ids, so that attention never crosses from one
  document into another.

  In:  {"targets": [3, 4, 5, 6, 7]}         with sequence_length {"inputs": 6, "targets": 3} and 99 as the last id
  Out: {"inputs": [3, 4, 5, 6, 99], "targets": [99, 7]}           EOS is added by the next preprocessor

  Args:
    dataset: {"targets": int32 [n]} without EOS.
    sequence_length: maximum lengths of "inputs" and "targets", EOS included.
    output_features: its "targets" has the vocabulary that sentinels are taken from.
    noise_density: part of the tokens that is taken out.
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
  """Text as it stands, each document with EOS behind it, in pieces of exactly the length of the targets.

  In:  {"targets": [3, 4, 1]}, {"targets": [5, 6, 7, 1]}    with sequence_length {"targets": 5} and EOS 1
  Out: {"targets": [3, 4, 1, 5, 6]}, {"targets": [7, 1]}

  The last piece of a group of documents, or of a document that stays apart, is what is left.  Every token of a document
  comes out once in each epoch, however long it is.

  Args: as in `span_corruption`; the documents have EOS.

  Source: Radford et al. 2018 (GPT); Brown et al. 2020, section 2.1, for the joined documents.
  """
  length = chunking.room(sequence_length, {"targets": 0})
  return chunking.cut(dataset, length=length, merge_documents=merge_documents, whole_documents=True)


def prefix_lm(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int], *, merge_documents: bool = True
) -> tf.data.Dataset:
  """The beginning of a piece of text as inputs, the rest as targets; see `corruption.random_prefix`.

  In:  {"targets": [3, 4, 5, 6, 7]}         with sequence_length {"inputs": 8, "targets": 7}
  Out: {"inputs": [3, 4], "targets": [5, 6, 7]}             EOS is added by the next preprocessor

  A piece is so long that it fits wherever it is split: both lengths should be the same, the longer is not filled.

  Args: as in `span_corruption`, T5's draw of one part of a long document included.
  """
  # Both sides end in EOS; together they are then as long as either may be, so that two fill a decoder's sequence.
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
  """A contiguous half of the text is masked token by token, and is the target; see `corruption.mask_fragment`.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      with 99 as mask
  Out: {"inputs": [3, 4, 99, 99, 99, 8], "targets": [5, 6, 7]}            EOS is added by the next preprocessor

  Args: as in `span_corruption`, T5's draw of one part of a long document included.
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


# what a noise may have to know of the vocabulary
_FACTS: dict[str, Callable[[seqio.Vocabulary], Any]] = {
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
  """The corrupted text as inputs, and the whole text as targets.

  In:  {"targets": [3, 4, 5, 6, 7, 8]}      masks as noise, with 99 as mask
  Out: {"inputs": [3, 99, 5, 6, 99, 8], "targets": [3, 4, 5, 6, 7, 8]}    EOS is added by the next preprocessor

  Pieces fit both lengths, which should be the same: the longer is not filled.

  Args:
    dataset: as in `span_corruption`.
    sequence_length: as there.
    output_features: as there.
    noise: makes the inputs of ids and a seed, given `facts` and `options`; they are not longer than the ids.
    facts: keys of `_FACTS`.
    merge_documents: as there, T5's draw of one part of a long document included.
    **options: noise_density and mean_noise_span_length, where the noise has them.
  """
  vocabulary = output_features["targets"].vocabulary
  corrupt_tokens = functools.partial(noise, **{fact: _FACTS[fact](vocabulary) for fact in facts}, **options)
  length = chunking.room(sequence_length, {"inputs": 1, "targets": 1})
  dataset = chunking.cut(dataset, length=length, merge_documents=merge_documents)

  @seqio.map_over_dataset(num_seeds=1)
  def corrupt(features: Features, seed: tf.Tensor) -> Features:
    return {"inputs": corrupt_tokens(features["targets"], seed), "targets": features["targets"]}

  return corrupt(dataset)


# ---- The table -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Objective:
  """What an objective is for, what its examples have, and how they are made."""

  architectures: tuple[str, ...]
  features: tuple[str, ...]
  make: Callable[..., list[Preprocessor]]  # given merge_documents, and noise_density and the like as in `published`
  published: Mapping[str, float] = dataclasses.field(default_factory=dict)
  sentinels: int = 100  # enough at T5's 512 tokens
  heads: tuple[HeadConfig, ...] = ()  # that it asks; the first heads of its model
  annotated: bool = False  # whether records mark phrases in their text, "entities", int [n, 2]
  parallel: bool = False  # whether records are texts and their translations, "first" and "second"


def _imported(name: str | Callable) -> Callable:
  """Imports a function of this package, "module.function": few runs need more than one objective."""
  if callable(name):
    return name
  module, _, function = name.partition(".")
  return load(f"t2t.data.objectives.{module}:{function}")


def _with_eos(
  preprocessor: str | Preprocessor, *, first: str | Preprocessor = chunking.tokenize, **fixed
) -> Callable[..., list[Preprocessor]]:
  """Text to ids, the preprocessor, and EOS behind what it made."""
  return lambda **options: [
    _imported(first),
    functools.partial(_imported(preprocessor), **fixed, **options),
    seqio.preprocessors.append_eos_after_trim,
  ]


def _of_documents_with_eos(preprocessor: str | Preprocessor) -> Callable[..., list[Preprocessor]]:
  """Text to ids, EOS behind each document, and the preprocessor."""
  return lambda **options: [
    chunking.tokenize,
    seqio.preprocessors.append_eos,
    functools.partial(_imported(preprocessor), **options),
  ]


def _of_ids(preprocessor: str, *, first: str | Preprocessor = chunking.tokenize) -> Callable[..., list[Preprocessor]]:
  """Text to ids, and the preprocessor."""
  return lambda **options: [_imported(first), functools.partial(_imported(preprocessor), **options)]


_ENCODER_DECODER, _DECODERS, _ENCODER = ("encoder_decoder",), ("encoder_decoder", "decoder_only"), ("encoder_only",)
_TEXT, _PAIR, _ALIGNED = ("targets",), ("inputs", "targets"), ("inputs", "targets", "loss_weights")
_IDS = ("inputs", "targets")  # features that are ids of the vocabulary
_T5 = {"noise_density": 0.15, "mean_noise_span_length": 3.0}
_BERT = {"noise_density": 0.15}
_MASS = {"noise_density": 0.5}
# Half of 512 tokens in short spans take more sentinels than T5's 100; the 32,128 rows of its embedding hold these, too.
_MANY = 127
_BART = {"noise_density": 0.3, "mean_noise_span_length": 3.0}


def _denoiser(noise: str, *facts: str, published: Mapping[str, float] | None = None) -> Objective:
  make = lambda **options: _with_eos(denoising, noise=_imported(noise), facts=facts)(**options)
  return Objective(_ENCODER_DECODER, _PAIR, make, published or {})


def _ul2(denoisers: str = "") -> Callable[..., list[Preprocessor]]:
  fixed = lambda: {"denoisers": _imported(f"denoisers.{denoisers}")} if denoisers else {}
  return lambda **options: _with_eos("denoisers.ul2", **fixed())(**options)


def _masked(choose: str, published: Mapping[str, float] = _BERT) -> Objective:
  make = lambda **options: _of_ids("masking.masked_lm")(choose=_imported(choose), **options)
  return Objective(_ENCODER, _ALIGNED, make, published)


def _beside_each_other(preprocessor: str, published: Mapping[str, float] | None = None) -> Objective:
  make = _of_documents_with_eos(preprocessor)
  return Objective(("decoder_only",), feature_spec.NEXT_TOKENS, make, published or {})


def _in_place(preprocessor: str, beside: str, published: Mapping[str, float]) -> Objective:
  return Objective(_ENCODER_DECODER, (*_PAIR, beside), _of_ids(preprocessor), published)


def _class_head(name: str, *labels: str) -> HeadConfig:
  # transformers' heads for pre-training have no dropout.
  return HeadConfig(name, len(labels), "class", labels, reads="first", dropout_rate=0.0)


# Classes are arrangements of two texts, see `sentences.SentencePairTask`.
NSP = _class_head("nsp", "next", "random")
SOP = _class_head("sop", "in order", "swapped")
STRUCTURE = _class_head("structure", "next", "previous", "random")


def _with_sentences(task: str, head: HeadConfig, choose: str) -> Objective:
  make = lambda **options: _of_ids("nsp_sop.masked_pairs")(task=_imported(task), choose=_imported(choose), **options)
  return Objective(_ENCODER, (*_ALIGNED, *feature_spec.ANSWERED[1:]), make, _BERT, heads=(head,))


# As many tokens of a span as in the command of SpanBERT's authors.
_BOUNDARIES = HeadConfig("sbo", 15, "boundary")


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
  "masked_next_token": _beside_each_other("masked_next_token.masked_next_token", _BERT),
  "mass": Objective(_ENCODER_DECODER, _PAIR, _with_eos(mass), _MASS),
  "mass_in_place": _in_place("masked_seq2seq.mass_in_place", "target_places", _MASS),
  "bert_style": _denoiser("masking.bert_style", "mask_id", "ordinary_ids", published=_BERT),
  "bert_style_masked_only": _in_place("masked_seq2seq.bert_style_masked_only", "loss_weights", _BERT),
  "deshuffling": _denoiser("corruption.shuffle"),
  # BART gives no rates for masking and deletion alone; these are BERT's, which it follows.
  "token_masking": _denoiser("corruption.mask_tokens", "mask_id", published=_BERT),
  "token_deletion": _denoiser("corruption.delete_tokens", published=_BERT),
  "text_infilling": _denoiser("corruption.infill", "mask_id", published=_BART),
  "sentence_permutation": _denoiser("corruption.permute_sentences", "sentence_ends"),
  "document_rotation": _denoiser("corruption.rotate"),
  "bart": _denoiser("corruption.permute_and_infill", "mask_id", "sentence_ends", published=_BART),
  "masked_lm": _masked("masking.random_tokens"),
  "whole_word_masked_lm": _masked("masking.whole_words"),
  "span_masked_lm": _masked("masking.word_spans"),
  "ngram_masked_lm": _masked("masking.word_ngrams"),
  "fragment_masked_lm": _masked("masking.one_fragment", _MASS),
  "span_masked_lm_sbo": Objective(
    _ENCODER, (*_ALIGNED, *feature_spec.ANSWERED[1:]), _of_ids("masking.masked_spans"), _BERT, heads=(_BOUNDARIES,)
  ),
  "annotated_masked_lm": Objective(
    _ENCODER,
    _ALIGNED,
    _of_ids("entity_masking.annotated_masked_lm", first="entity_masking.tokenize"),
    _BERT,
    annotated=True,
  ),
  "text_to_text": _translated(),
  "translation_lm": Objective(
    _ENCODER,
    (*_ALIGNED, "token_types", "input_places"),
    _of_ids("translation.translation_lm", first="sentence_pairs.encode"),
    _BERT,
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
}


# Those of text alone, which any corpus has.
OF_TEXT = tuple(name for name, objective in OBJECTIVES.items() if not (objective.annotated or objective.parallel))


def _objective(name: str) -> Objective:
  if name not in OBJECTIVES:
    from t2t.data.objectives import other_names

    canonical_name = other_names.name_here(name)
    spelled = name.lower().replace("-", "_") if name.lower().replace("-", "_") in OBJECTIVES else canonical_name
    hint = f"; give {spelled}." if spelled else did_you_mean(name, OBJECTIVES) or "."
    raise UserError(f"config.data.objective={name}: no such objective{hint} There are: {', '.join(sorted(OBJECTIVES))}")
  return OBJECTIVES[name]


def preprocessors(
  name: str,
  *,
  noise_density: float = 0.0,
  mean_noise_span_length: float = 0.0,
  dictionary: str = "",
  switching_rate: float = 0.0,
  both_directions: bool = False,
  tags: Sequence[str] = ("", ""),
  pack: bool = False,
) -> list[Preprocessor]:
  """The preprocessors of an objective, for a seqio task whose source yields {"text": string}.

  Args:
    name: a key of `OBJECTIVES`.
    noise_density: part of the tokens that is noise; 0 is the published one.
    mean_noise_span_length: tokens; 0 is the published one.
    dictionary: file of words and translations that `code_switching.code_switching` puts in their place; "": none.
    switching_rate: with which probability they do.
    both_directions, tags: of texts and their translations, see `pairs.directed`.
    pack: examples are kept apart because the feature converter packs them.

  Raises:
    UserError: no such objective, which names the nearest; or a number that it has not, or not in that range; a
      dictionary for what is not text alone.
  """
  objective = _objective(name)
  options = dict(objective.published)
  for key, value in {"noise_density": noise_density, "mean_noise_span_length": mean_noise_span_length}.items():
    if value and key not in objective.published:
      raise UserError(f"config.data.{key}={value}: config.data.objective={name} has none; set config.data.{key}=0.0")
    if value:
      options[key] = value
  if options:
    corruption.check_noise(**options)
  steps = [functools.partial(step) for step in objective.make(merge_documents=not pack, **options)]
  if dictionary or switching_rate:
    from t2t.data.objectives import code_switching

    code_switching.check(dictionary, switching_rate, objective=name, reads_text=name in OF_TEXT)
    steps.insert(0, functools.partial(code_switching.code_switching, dictionary=dictionary, rate=switching_rate))
  if both_directions and not objective.parallel:
    reading = ", ".join(objective_name for objective_name, candidate in OBJECTIVES.items() if candidate.parallel)
    raise UserError(
      f"config.data.both_directions=True: is of texts and their translations, which config.data.objective={name} does"
      f" not read; these do: {reading}"
    )
  if both_directions or any(tags):
    steps.insert(0, functools.partial(_imported("sentence_pairs.directed"), tags=tags, both_directions=both_directions))
  for step in steps:
    step.objective = name  # what `of` finds, also where a cache takes the place of the first
  return steps


def of(task: seqio.Task | seqio.Mixture) -> set[str]:
  """The objectives that a task, or the tasks of a mixture, were made with by `preprocessors`; empty if by none."""
  tasks = task.tasks if isinstance(task, seqio.Mixture) else [task]
  marks = {getattr(preprocessor, "objective", None) for subtask in tasks for preprocessor in subtask.preprocessors}
  return marks - {None}


def ends_inputs(name: str) -> bool:
  """Whether EOS stands behind what a model is given; text that is continued, or read in place, is given nothing.

  Raises:
    UserError: no such objective; names the nearest.
  """
  return "inputs" in _objective(name).features and _objective(name).features != feature_spec.NEXT_TOKENS


def output_features(name: str, vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
  """The output features that a task with this objective is registered with.

  Raises:
    UserError: no such objective; names the nearest.
  """
  text = seqio.Feature(vocabulary, add_eos=True)
  numbers = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
  return {feature: text if feature in _IDS else numbers for feature in _objective(name).features}


def heads_of(name: str) -> tuple[HeadConfig, ...]:
  """The heads that an objective asks, in the order in which its examples number them.

  Raises:
    UserError: no such objective; names the nearest.
  """
  return _objective(name).heads


def needs_other_documents(name: str) -> bool:
  """Returns True if a class of an objective's examples is made of two documents.

  Raises:
    UserError: no such objective; names the nearest.
  """
  return any("random" in head.labels for head in _objective(name).heads)


def is_annotated(name: str) -> bool:
  """Whether an objective reads what records mark in their text, "entities", int [n, 2].

  Raises:
    UserError: no such objective; names the nearest.
  """
  return _objective(name).annotated


def is_parallel(name: str) -> bool:
  """Whether an objective reads texts and their translations, "first" and "second".

  Raises:
    UserError: no such objective; names the nearest.
  """
  return _objective(name).parallel


def t5_features(name: str) -> dict[str, seqio.Feature]:
  """`output_features` in T5's vocabulary, with as many sentinels as the objective needs at 512 tokens."""
  return output_features(name, vocabularies.t5_vocabulary(extra_ids=_objective(name).sentinels))


def check_fits(name: str, architecture: str, *, where: str = "") -> None:
  """Whether a model can be trained with an objective.

  Args:
    name: a key of `OBJECTIVES`.
    architecture: of the model.
    where: what names the task or mixture that was made with the objective; "": the config names it itself.

  Raises:
    UserError: it cannot; names the objectives that do.
  """
  if architecture not in _objective(name).architectures:
    fitting = sorted(
      objective_name for objective_name, objective in OBJECTIVES.items() if architecture in objective.architectures
    )
    subject = f"{where}: its objective {name}" if where else f"config.data.objective={name}"
    raise UserError(f"{subject} does not fit config.model.architecture={architecture}; these do: {', '.join(fitting)}")
