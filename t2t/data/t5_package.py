"""Stand-ins for the t5 package, for task modules that import it where it is not installed.

Functions with an exact counterpart run under their names. Others raise an error with the two lines that replace them.
The finder comes last in `sys.meta_path`, so an installed t5 package has precedence.

Source: t5 0.9.4, t5/data/preprocessors.py, t5/data/postprocessors.py, t5/evaluation/metrics.py, t5/data/utils.py.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import importlib.abc
import importlib.machinery
import re
import string
import sys
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t2t.runtime.imports import UnknownName

_PAGE = "docs/from_t5x.md has the table"


# ---- t5.data.preprocessors -------------------------------------------------------------------------------------------


@seqio.map_over_dataset
def _parse_tsv(line, field_names=None, field_delim="\t", field_columns=None):
  names = field_names or ["inputs", "targets"]
  columns = field_columns or list(range(len(names)))
  defaults = [""] * len(names)
  values = tf.io.decode_csv(line, defaults, field_delim=field_delim, use_quote_delim=False, select_cols=columns)
  return dict(zip(names, values, strict=False))


@seqio.map_over_dataset
def _preprocess_tsv(
  line,
  field_delim="\t",
  num_fields=2,
  inputs_format="{0}",
  targets_format="{1}",
  field_names=None,
  use_quote_delim=False,
):
  names = [str(number) for number in range(num_fields)] if field_names is None else list(field_names)
  values = dict(zip(names, tf.io.decode_csv(line, [""] * len(names), field_delim, use_quote_delim), strict=True))
  pattern = "(" + "|".join(re.escape(f"{{{name}}}") for name in names) + ")"

  def filled(template: str) -> tf.Tensor:
    parts = re.split(pattern, template)
    return tf.strings.join([values[part[1:-1]] if re.fullmatch(pattern, part) else part for part in parts])

  return {"inputs": filled(inputs_format), "targets": filled(targets_format)}


@seqio.map_over_dataset
def _summarize(x, article_key, summary_key):
  return {"inputs": tf.strings.join(["summarize:", x[article_key]], separator=" "), "targets": x[summary_key]}


_LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}


def _language(code: str) -> str:
  if code[:2] in _LANGUAGES:
    return _LANGUAGES[code[:2]]
  try:
    import babel
  except ImportError as error:
    raise UnknownName(
      f"t5.data.preprocessors.translate: the English name of the language {code!r} is unknown without the package "
      f"babel. Run pip install babel, or use only the languages {', '.join(_LANGUAGES)}."
    ) from error
  return babel.Locale(code[:2]).english_name


@seqio.map_over_dataset
def _translate(x, source_language, target_language):
  prompt = f"translate {_language(source_language)} to {_language(target_language)}: "
  return {"inputs": tf.strings.join([prompt, x[source_language]]), "targets": x[target_language]}


@seqio.map_over_dataset
def _glue(x, benchmark_name, label_names, feature_names=None, id_key="idx"):
  keys = feature_names or sorted(set(x) - {"label", "idx"})
  words = [benchmark_name]
  for key in keys:
    words += [f"{key}:", x[key]]
  joined = tf.strings.join(words, separator=" ")
  names = tf.constant([*label_names, "<unk>"])
  target = tf.gather(names, tf.where(tf.equal(x["label"], -1), len(label_names), tf.cast(x["label"], tf.int32)))
  if benchmark_name != "multirc":
    return ({"idx": x[id_key]} if id_key else {}) | {"inputs": joined, "targets": target}
  joined = tf.strings.regex_replace(tf.strings.regex_replace(joined, "<br>", " "), "<(/)?b>", "")
  places = {f"idx/{name}": x["idx"][name] for name in ("paragraph", "question", "answer")}
  return places | {"inputs": joined, "targets": target}


@seqio.map_over_dataset
def _stsb(x):
  words = ["stsb sentence1:", x["sentence1"], "sentence2:", x["sentence2"]]
  target = tf.as_string(tf.round(x["label"] * 5) / 5, precision=1)
  return {"inputs": tf.strings.join(words, separator=" "), "targets": target, "idx": x["idx"]}


def _spaced(text: tf.Tensor) -> tf.Tensor:
  return tf.strings.regex_replace(tf.strings.regex_replace(text, r"([[:punct:]])", r" \1 "), r"\s+", " ")


@seqio.map_over_dataset
def _squad(x, include_context=True):
  answers, question, context = (_spaced(text) for text in (x["answers"]["text"], x["question"], x["context"]))
  words = ["question:", question, "context:", context] if include_context else ["squad trivia question:", question]
  inputs = tf.strings.regex_replace(tf.strings.join(words, separator=" "), r"\s+", " ")
  qa_features = {"context": context, "question": question, "answers": answers}
  return {"inputs": inputs, "targets": answers[0], "id": x["id"]} | qa_features


@seqio.map_over_dataset
def _trim_tokens_at_front(x, sequence_length, keys_to_trim=None, **unused_kwargs):
  trimmed = {key: x[key][-(sequence_length[key] - 1) :] for key in keys_to_trim or sequence_length if key in x}
  return {**x, **trimmed}  # leaves room for EOS, which is added later


# ---- t5.data.postprocessors ------------------------------------------------------------------------------------------


def _string_to_float(string, default=-1.0, **unused_kwargs):
  try:
    return float(string)
  except ValueError:
    return default


def _lower_text(string, **unused_kwargs):
  return string.lower()


def _string_label_to_class_id(string_label, label_classes, default=-1, **unused_kwargs):
  return label_classes.index(string_label) if string_label in label_classes else default


def _multirc_answer(string_label, example=None, is_target=False):
  value = {"value": _string_label_to_class_id(string_label, label_classes=("False", "True"))}
  return value | ({"group": example["idx/question"]} if is_target else {})


def _qa(answer, example=None, is_target=False):
  return [tf.compat.as_text(answer_text) for answer_text in example["answers"]] if is_target else answer


# ---- t5.evaluation.metrics -------------------------------------------------------------------------------------------


def _sklearn_metrics_wrapper(metric_str, metric_dict_str=None, metric_post_process_fn=None, **metric_fn_kwargs):
  import sklearn.metrics

  if not hasattr(sklearn.metrics, metric_str):
    raise ValueError(f"sklearn.metrics has no function {metric_str}. Correct the name of the metric.")

  def metric(targets, predictions):
    value = getattr(sklearn.metrics, metric_str)(targets, predictions, **metric_fn_kwargs)
    return {metric_dict_str or metric_str: metric_post_process_fn(value) if metric_post_process_fn else value}

  return metric


def _accuracy(targets, predictions):
  return _sklearn_metrics_wrapper("accuracy_score", "accuracy", lambda value: 100 * value)(targets, predictions)


def _sequence_accuracy(targets, predictions):
  return {"sequence_accuracy": 100 * np.mean([p == t for p, t in zip(predictions, targets, strict=True)])}


def _pearson_corrcoef(targets, predictions):
  import scipy.stats

  return {"pearson_corrcoef": 100 * scipy.stats.pearsonr(targets, predictions)[0]}


def _spearman_corrcoef(targets, predictions):
  import scipy.stats

  return {"spearman_corrcoef": 100 * scipy.stats.spearmanr(targets, predictions)[0]}


def _mean_multiclass_f1(num_classes, **metric_fn_kwargs):
  options = {"beta": 1, "labels": range(num_classes), "average": "macro"} | metric_fn_kwargs
  return _sklearn_metrics_wrapper("fbeta_score", f"mean_{num_classes}class_f1", lambda value: 100 * value, **options)


def _f1_score_with_invalid(targets, predictions):
  targets, predictions = np.asarray(targets), np.asarray(predictions)
  is_valid = (predictions == 0) | (predictions == 1)
  predictions = np.where(is_valid, predictions, 1 - targets)
  return _sklearn_metrics_wrapper("f1_score", "f1", lambda value: 100 * value)(targets, predictions)


def _mean_group_metric(metric_fn, group_key="group", value_key="value", return_subgroup_scores=False):
  def metric(targets, predictions):
    groups: dict[Any, tuple[list, list]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
      of_group = groups.setdefault(target[group_key], ([], []))
      of_group[0].append(target[value_key])
      of_group[1].append(prediction[value_key])
    scores: dict[str, list[float]] = {}
    for group, pair in groups.items():
      for name, score in metric_fn(*pair).items():
        scores.setdefault(name, []).append(score)
        if return_subgroup_scores:
          scores.setdefault(f"{group}-{name}", []).append(score)
    return {name: np.mean(values) for name, values in scores.items()}

  return metric


def _bleu(targets, predictions, tokenizer="intl"):
  import sacrebleu

  references = targets if isinstance(targets[0], list) else [targets]
  options = dict(smooth_method="exp", smooth_value=0.0, force=False, lowercase=False, use_effective_order=False)
  return {"bleu": sacrebleu.corpus_bleu(predictions, references, tokenize=tokenizer, **options).score}


def _normalized(answer: str) -> str:
  letters = "".join(character for character in answer.lower() if character not in string.punctuation)
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def _word_f1(target: str, prediction: str) -> float:
  target_words, words = target.split(), prediction.split()
  shared = sum((collections.Counter(words) & collections.Counter(target_words)).values())
  if shared == 0:
    return 0.0
  precision, recall = shared / len(words), shared / len(target_words)
  return 2 * precision * recall / (precision + recall)


def _squad_metric(targets, predictions):
  if len(targets) != len(predictions):
    raise ValueError(
      f"squad: {len(targets)} targets, but {len(predictions)} predictions. Give as many predictions as targets."
    )
  pairs = [([_normalized(t) for t in u], _normalized(p)) for u, p in zip(targets, predictions, strict=True)]
  exact = np.mean([max(t == prediction for t in right) for right, prediction in pairs])
  overlap = np.mean([max(_word_f1(t, prediction) for t in right) for right, prediction in pairs])
  return {"em": 100 * exact, "f1": 100 * overlap}


# ---- The modules -----------------------------------------------------------------------------------------------------


_SPM_PATH = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"


def _get_default_vocabulary():
  return seqio.SentencePieceVocabulary(_SPM_PATH, 100)


def _rate_unsupervised(task, value=1e6):
  del task
  return value


_AVAILABLE: dict[str, dict[str, Any]] = {
  "t5": {},
  "t5.data": {
    "DEFAULT_EXTRA_IDS": 100,
    "DEFAULT_SPM_PATH": _SPM_PATH,
    "get_default_vocabulary": _get_default_vocabulary,
    "rate_num_examples": seqio.mixing_rate_num_examples,
    "rate_unsupervised": _rate_unsupervised,
    "TaskRegistry": seqio.TaskRegistry,
    "MixtureRegistry": seqio.MixtureRegistry,
    "SentencePieceVocabulary": seqio.SentencePieceVocabulary,
    "ByteVocabulary": seqio.ByteVocabulary,
    "Feature": seqio.Feature,
  },
  "t5.data.preprocessors": {
    "rekey": seqio.preprocessors.rekey,
    "tokenize": seqio.preprocessors.tokenize,
    "parse_tsv": _parse_tsv,
    "preprocess_tsv": _preprocess_tsv,
    "summarize": _summarize,
    "translate": _translate,
    "glue": _glue,
    "stsb": _stsb,
    "squad": _squad,
    "trim_tokens_at_front": _trim_tokens_at_front,
  },
  "t5.data.postprocessors": {
    "string_to_float": _string_to_float,
    "lower_text": _lower_text,
    "string_label_to_class_id": _string_label_to_class_id,
    "multirc": _multirc_answer,
    "qa": _qa,
  },
  "t5.evaluation": {},
  "t5.evaluation.metrics": {
    "accuracy": _accuracy,
    "bleu": _bleu,
    "squad": _squad_metric,
    "sequence_accuracy": _sequence_accuracy,
    "pearson_corrcoef": _pearson_corrcoef,
    "spearman_corrcoef": _spearman_corrcoef,
    "mean_multiclass_f1": _mean_multiclass_f1,
    "f1_score_with_invalid": _f1_score_with_invalid,
    "mean_group_metric": _mean_group_metric,
    "sklearn_metrics_wrapper": _sklearn_metrics_wrapper,
  },
  "t5.data.utils": {},
  "t5.data.glue_utils": {},
}
_AVAILABLE["t5.data.utils"] = {
  name: _AVAILABLE["t5.data"][name]
  for name in ("DEFAULT_EXTRA_IDS", "DEFAULT_SPM_PATH", "get_default_vocabulary", "rate_num_examples")
} | {"rate_unsupervised": _rate_unsupervised}


def _objective(name: str) -> str:
  steps = f'preprocessors=[READ, *objectives.preprocessors("{name}")]'
  return f'\n  from t2t.data import objectives\n  {steps}  # READ yields {{"text": ...}}; tokens and EOS are included'


def _format(calls: str) -> str:
  return (
    f"\n  from t2t.data import preprocessors, qa_preprocessors\n  preprocessors=preprocessors.text_to_text({calls})"
  )


def _metric(name: str) -> str:
  return f"\n  from t2t.evaluation import task_metrics\n  metric_fns=[task_metrics.{name}]"


def _answer(call: str) -> str:
  return f"\n  from t2t.data import postprocessors\n  postprocess_fn=postprocessors.{call}"


def _function(name: str) -> str:
  return f"\n  from t2t.data import objectives, vocabularies\n  {name}  # its docstring has the arguments"


# Helper functions of t5's objectives, which t2t's objectives call themselves -> t2t's functions.
_FUNCTIONS = {
  "random_spans_noise_mask": "objectives.corruption.noise_mask",
  "iid_noise_mask": "objectives.corruption.random_mask",
  "random_prefix_noise_mask": "objectives.corruption.random_prefix",
  "noise_span_to_unique_sentinel": "objectives.corruption.spans_to_sentinels",
  "nonnoise_span_to_unique_sentinel": "objectives.corruption.spans_to_sentinels",
  "noise_token_to_sentinel": "objectives.corruption.mask_tokens",
  "noise_span_to_sentinel": "objectives.corruption.infill",
  "noise_token_to_random_token": "objectives.masking.replace",
  "noise_token_to_random_token_or_sentinel": "objectives.masking.replace",
  "drop_noise_tokens": "objectives.iid_denoising.drop",
  "drop_nonnoise_tokens": "objectives.iid_denoising.drop",
  "permute_noise_tokens": "objectives.corruption.shuffle",
  "sentinel_id": "vocabularies.sentinel_ids",
  "random_spans_helper": "objectives.corruption.span_lengths",
  "random_spans_tokens_length": "objectives.corruption.span_lengths",
  "random_spans_targets_length": "objectives.corruption.span_lengths",
  "select_random_chunk": "objectives.chunking.random_chunk",
  "single_example_select_random_chunk": "objectives.chunking.random_chunk",
  "reduce_concat_tokens": "objectives.chunking.concatenate",
  "split_tokens": "objectives.chunking.split",
  "split_tokens_to_inputs_length": "objectives.chunking.split",
  "split_tokens_to_targets_length": "objectives.chunking.split",
  "concatenate_and_split_to_fixed_length": "objectives.chunking.cut",
}
_OBJECTIVES = {
  "span_corruption": "span_corruption",
  "denoise": "span_corruption",
  "single_example_denoise": "span_corruption",
  "unsupervised": "span_corruption",
  "iid_denoising": "iid_span_corruption",
  "prefix_lm": "prefix_lm",
  "targets_for_prefix_lm_objective": "prefix_lm",
  "pack_prefix_lm_encoder_decoder": "prefix_lm",
  "pack_prefix_lm_decoder_only": "prefix_lm",
  "full_lm": "causal_lm",
  "lm": "causal_lm",
  "neighboring_pairs": "neighbouring_sentences",
  "next_sentence_prediction": "masked_lm_nsp",
}

_RANKED = _format("preprocessors.choices") + "\n  --config.eval.method=rank"

# Full name -> the lines that replace it.
_INSTEAD: dict[str, str] = {
  **{f"t5.data.preprocessors.{name}": _objective(ours) for name, ours in _OBJECTIVES.items()},
  **{f"t5.data.preprocessors.{name}": _function(ours) for name, ours in _FUNCTIONS.items()},
  "t5.data.preprocessors.multi_translate": _format('preprocessors.translate, source="en", target="de"'),
  "t5.data.preprocessors.rank_classification": _RANKED,
  "t5.data.preprocessors.rank_classification_formatter": _RANKED,
  "t5.data.preprocessors.trim_and_pad_dataset": " nothing; batches are cut and padded as they are read",
  "t5.data.preprocessors.squad_span_space_tokenized": _format("qa_preprocessors.spans"),
  "t5.data.preprocessors.record": _format("qa_preprocessors.record, qa_preprocessors.each_answer"),
  "t5.data.preprocessors.wsc": _format("preprocessors.wsc"),
  "t5.data.preprocessors.wsc_simple": _format("preprocessors.only_right, preprocessors.wsc"),
  "t5.data.postprocessors.record": _answer("record()"),
  "t5.data.postprocessors.wsc_simple": _answer("wsc()"),
  "t5.data.postprocessors.span_qa": _answer("squad()"),
  "t5.evaluation.metrics.rouge": _metric("rouge"),
  "t5.evaluation.metrics.trivia_qa": _metric("squad"),
  "t5.evaluation.metrics.multirc_f1_over_all_answers": _metric("multirc_f1a"),
  "t5.evaluation.metrics.all_match": _metric("accuracy"),
}
_REGISTERS = ("t5.data.tasks", "t5.data.mixtures", "t5.models", "t5.data.dataset_providers")


def _instead(name: str) -> str:
  if name in _INSTEAD:
    return f"Use instead:{_INSTEAD[name]}"
  if name.startswith("t5.data.glue_utils."):
    return (
      "Use instead, for GLUE and SuperGLUE as t2t registers them:\n  "
      "--config.data.task_modules=t2t.tasks.glue,t2t.tasks.superglue\n  "
      "--config.data.mixture=glue_v002_proportional"
    )
  return f"{_PAGE} of the counterparts in t2t"


def _missing(module: str, name: str) -> UnknownName:
  full = f"{module}.{name}"
  return UnknownName(f"{full}: the t5 package is not installed, and t2t has no exact counterpart. {_instead(full)}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds the modules of `_AVAILABLE` if nothing else does."""

  def find_spec(self, fullname, path, target=None):
    del path, target
    if fullname in _AVAILABLE:
      is_package = any(name.startswith(f"{fullname}.") for name in _AVAILABLE)
      return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
    if fullname.startswith("t5."):
      parent, _, name = fullname.rpartition(".")
      if fullname in _REGISTERS:
        raise UnknownName(
          f"{fullname}: the t5 package is not installed. Use tasks and mixtures of t2t instead; `t2t tasks` lists "
          "them. docs/from_t5x.md lists the mixtures of t5 with their names in t2t."
        )
      raise _missing(parent, name)
    return None

  def create_module(self, spec):
    del spec

  def exec_module(self, module):
    name = module.__name__
    vars(module).update(_AVAILABLE[name])
    vars(module)["__getattr__"] = _getter(name)
    # As in the package's own __init__, so that code that runs later finds all of them.
    for child in _AVAILABLE:
      if child.rpartition(".")[0] == name:
        importlib.import_module(child)


def _getter(module: str) -> Callable[[str], Any]:
  def get(name: str) -> Any:
    if name.startswith("__"):
      raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise _missing(module, name)

  return get


_FINDER = _Finder()


@contextlib.contextmanager
def importable() -> Iterator[None]:
  """Lets `import t5` find the names above within the context, unless the package is installed."""
  sys.meta_path.append(_FINDER)
  try:
    yield
  finally:
    sys.meta_path.remove(_FINDER)


def available() -> Mapping[str, Sequence[str]]:
  """Returns the names that run, by module."""
  return {module: sorted(names) for module, names in _AVAILABLE.items() if names}
