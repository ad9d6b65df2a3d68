"""Resolves the settings of a table to a complete config: columns, classes, prefix, lengths."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from t2t import UserError
from t2t.configuration.schema import Config, DataConfig
from t2t.data import vocabularies
from t2t.data.sources import file_fingerprints
from t2t.data.tables import columns, examples, labels, reading, values
from t2t.data.tables.spec import TASK, TableSpec, default_prefix, from_dict
from t2t.losses import answered_by_heads
from t2t.param_tree import Vocabulary
from t2t.runtime import hosts

_MEASURED = 1_000  # rows whose lengths are measured
_FIT = 0.99  # share of rows that must not be cut
_LONGEST = 512  # maximum number of positions, unless config.data sets more
_SHORTEST_SPAN, _SPAN = 208, 384  # positions of a context window; BERT uses the latter
_SPECIAL = 3  # [CLS] and [SEP], or EOS


def find(data: DataConfig) -> TableSpec:
  """Returns the spec of the table that `data` names.

  Raises:
    UserError: there is no table, or its columns or labels are ambiguous; the message gives a setting.
  """
  files = next((source.files for source in data.source_list if source.files and not source.name), "")
  if not files:
    raise UserError(
      f"config.data.labels={data.labels} needs a table, but config.data.files is empty; give a table, for example"
      " --config.data.files=train.tsv"
    )
  if data.has_tasks:
    other_source = data.source_list[0]
    key = "config.data.sources" if other_source.name else f"config.data.mixture={data.source_list[-1].mixture}"
    raise UserError(f"config.data.labels={data.labels}: a table cannot be mixed with other data; leave out {key}")
  where = reading.described(files)
  rows = reading.read(files, where="config.data.files")
  spec = columns.Finder(rows, columns=data.columns, labels=data.labels, where=where).spec()
  spec = labels.decide(spec, rows, data.labels, files=files, where=where)
  spec = examples.begin(spec, rows)
  prefix = default_prefix(spec.kind, spec.texts, data.prefix)
  return dataclasses.replace(spec, prefix=prefix, files=files, eval_files=data.eval_files)


def with_table(data: DataConfig) -> DataConfig:
  """Returns the data config with its table as the registered task `TASK`; other data is unchanged."""
  if not data.labels:
    return data
  return dataclasses.replace(data.reading(mixture=TASK), table=find(data).to_dict(), **_UNTYPED)


# Keys that `DataConfig.table` replaces once the table is read.
_UNTYPED = {"labels": "", "columns": "", "prefix": "", "train_split": "train", "eval_split": "validation"}


def spec_of(data: DataConfig) -> TableSpec | None:
  """Returns the spec of the table, or None if the data is not a table."""
  return from_dict(data.table) if data.table else None


def make_task(data: DataConfig) -> Any:
  """Returns the seqio task of a table; see `task.make`."""
  from t2t.data.tables import task  # imports seqio

  return task.make(from_dict(data.table), malformed=data.max_bad_record_fraction)


def resolved(config: Config, vocabulary: Any) -> Config:
  """Resolves a run on a table: sets its task, its lengths and its evaluation method, and logs them.

  Args:
    config: of a run with config.data.labels or config.data.table.
    vocabulary: function that returns the seqio vocabulary of the run.

  Raises:
    UserError: see `find`; or the model cannot generate a label.
  """
  if not config.data.vocabulary:
    raise UserError(
      "config.data.vocabulary is empty, but a table needs the vocabulary of the model that is fine-tuned. "
      + (
        f"Call t2t.config with init={{'checkpoint': {config.init.checkpoint!r}}} to read the model, vocabulary and"
        " recipe of the checkpoint. If the checkpoint has no vocabulary, set config.data.vocabulary."
        if config.init.checkpoint
        else "Give --config.init.checkpoint=CHECKPOINT. If the checkpoint has no vocabulary, also give"
        " --config.data.vocabulary=FILE."
      )
    )
  is_new, is_auto = bool(config.data.labels), config.data.labels == "auto"
  config = config.with_(data=dataclasses.asdict(with_table(config.data)))
  spec = from_dict(config.data.table)
  loss = config.train.loss
  by_heads = answered_by_heads(loss) or not (loss or config.model.kind.is_generative)
  if spec.kind == "text" and by_heads:
    cause, remedy = "an encoder", "Start from an encoder-decoder or a decoder"
    if config.model.kind.is_generative:
      cause, remedy = f"config.train.loss={loss}", "Leave out config.train.loss"
    raise UserError(
      f"{reading.described(spec.files)}: column {spec.label!r} has texts to generate, but {cause} cannot generate text."
      f" {remedy}, or give --config.data.labels=auto with a column of classes."
    )
  table = examples.load(spec, malformed=config.data.max_bad_record_fraction)
  if is_new:
    names = reading.names_of(reading.read(spec.files, where="config.data.files")[:1000])
    lines = [f"{reading.described(spec.files, key='table ')}: {labels.named(spec, names)}", *table.notes]
    if (
      is_auto
      and spec.kind == "class"
      and len(spec.classes) > 2
      and all(values.number(x) is not None for x in spec.classes)
    ):
      lines.append("the labels are numbers, read as classes; --config.data.labels=number reads them as a score")
    if by_heads and not config.model.kind.is_generative and vocabularies.cls_id(vocabulary()) is None:
      lines.append(
        "the head reads the mean of all tokens, because the vocabulary has no [CLS]: `t2t convert --to hf` will "
        "refuse this model, because transformers has no equivalent"
      )
    if spec.prefix and config.model.kind.is_generative:
      lines.append(f"inputs begin with {spec.prefix!r}, which infer, eval and t2t.load add automatically")
    hosts.log_once("\n  ".join(lines))
  reading.forget()
  if not by_heads:
    _check_writable(spec, config.data, vocabulary())
    if spec.kind in ("class", "choice") and not config.eval.method:
      config = config.with_(eval={"method": "rank"})
  return _with_lengths(config, spec, table, vocabulary, by_heads=by_heads)


def _encode(text: str, data: DataConfig, vocabulary: Vocabulary) -> list[int]:
  """Encodes a text as training does: control tokens in it are text, unless config.data.special_tokens is set."""
  return vocabularies.encode_text(vocabulary, text, special_tokens="all" if data.special_tokens else "none")


def _check_writable(spec: TableSpec, data: DataConfig, vocabulary: Vocabulary) -> None:
  """Refuses classes with equal token ids, which the model could not distinguish."""
  written: dict[tuple[int, ...], str] = {}
  for name in spec.classes if spec.kind == "class" else ():
    ids = tuple(_encode(name, data, vocabulary))
    if ids in written or not ids:
      written_as = f"like {written[ids]!r}" if ids in written else "as no token"
      raise UserError(
        f"{reading.described(spec.files)}: the model's vocabulary encodes the label {name!r} {written_as}; "
        "rename the label, or train a head with --config.train.loss=heads"
      )
    written[ids] = name


def identity(table: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the table settings that a saved data position depends on; folders may move."""
  read = {key: x for key, x in table.items() if key not in ("files", "eval_files") and (key != "label_is" or x)}
  settings = {f"data.table.{key}": list(x) if isinstance(x, tuple) else x for key, x in read.items()}
  files = table["files"]
  paths = reading.find(files, where="config.data.files")
  held_out = "given" if table["eval_files"] else "empty: a tenth of data.files is held out"
  return settings | {"data.files": file_fingerprints.summary(paths) if paths else files, "data.eval_files": held_out}


def on_disk(table: Mapping[str, str]) -> dict[str, str]:
  """Returns the config.data keys with files on disk -> the files."""
  return {key: files for key, files in table.items() if files and not DataConfig.is_in_memory(files)}


# ---- Lengths ---------------------------------------------------------------------------------------------------------


def _with_lengths(config: Config, spec: TableSpec, table: examples.Table, vocabulary: Any, *, by_heads: bool) -> Config:
  """Sets input and target lengths that are 0 to what the first rows need; a label is never cut."""
  data = config.data
  rows = [*table.train[:_MEASURED], *table.held_out[:_MEASURED]] if table.train else table.held_out[:_MEASURED]
  count = functools.cache(lambda text: len(_encode(text, data, vocabulary())))
  longest = 1 + max((count(name) for name in spec.classes), default=0) if spec.kind == "class" else 0
  targets = data.targets_length
  if not targets:
    written = [count(row["targets"]) + 1 for row in rows]
    targets = _rounded(longest or _percentile(written), 8, _LONGEST)
  elif not by_heads and longest > targets:
    raise UserError(
      f"config.data.targets_length={targets}: the longest label has {longest} tokens and would be cut; set"
      f" config.data.targets_length={longest} or more, or 0 to fit the labels"
    )
  inputs = data.inputs_length
  if not inputs:
    needed = [_tokens(row, spec, count, are_apart=by_heads and not config.model.kind.is_generative) for row in rows]
    most = config.model.max_length or 0
    room = _room(config, targets, by_heads=by_heads)
    target_length = _rounded(_percentile(needed), 16, _LONGEST)
    if spec.kind == "span" and by_heads:  # contexts are cut into windows of at least this length
      target_length = min(max(target_length, _SHORTEST_SPAN), _SPAN)
    inputs = min(target_length, room) if room else target_length
    cut = sum(n > inputs for n in needed)
    why = f" (the model has learned {most} positions)" if room and inputs == room else ""
    windows = spec.kind == "span" and by_heads
    tail = f"; {cut:,} of the first {len(needed):,} are longer, and cut" if cut and not windows else ""
    hosts.log_once(
      f"config.data.inputs_length={inputs}{why}, targets_length={targets}: the longest input has {max(needed)} "
      f"tokens{tail}"
    )
  return config.with_(data={"inputs_length": inputs, "targets_length": targets})


def _room(config: Config, targets: int, *, by_heads: bool) -> int:
  """Returns the number of positions for inputs; 0: unlimited."""
  most = config.model.most_positions
  if not most:
    return 0
  return max(1, most - (targets + 1 if config.model.kind.is_decoder_only and not by_heads else 0))


def _tokens(row: examples.Example, spec: TableSpec, count: Any, *, are_apart: bool) -> int:
  """Returns the number of tokens that a model reads of an example."""
  if spec.kind == "choice" and (are_apart or "candidates" in row):
    shared = sum(map(count, row["parts"])) + _SPECIAL + 1
    return sum(shared + count(candidate) for candidate in row["candidates"])
  if are_apart and "parts" in row:
    return sum(map(count, row["parts"])) + _SPECIAL + len(row["parts"])
  if are_apart and "words" in row:
    return count(" ".join(row["words"])) + _SPECIAL
  return count(row["inputs"]) + _SPECIAL


def _percentile(lengths: Sequence[int]) -> int:
  return int(np.ceil(np.quantile(lengths, _FIT))) if lengths else 1


def _rounded(length: int, multiple: int, most: int) -> int:
  return min(-(-max(length, 1) // multiple) * multiple, most)
