"""Benchmarks as a seqio source, from TensorFlow Datasets or from the released files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import fnmatch
import functools
from typing import Any

from etils import epath
import numpy as np
import seqio
import tensorflow as tf

from t2t import UserError
from t2t.data.sources import benchmark_parsers, named, slices, tfds_source

# ---- Layouts of released files ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Layout:
  """Layout of the released files of a task.

  folder: of the task, in the user's folder; "": the user's folder itself.
  read: (path, where, labels) -> records of a file.
  stems: split -> file names without ending, or globs such as *-ud-dev; any other file is a split with its own name.
  suffixes: endings of the files; "": none.
  folders: whether a split is a folder of files.
  """

  folder: str
  read: Callable[..., Iterator[benchmark_parsers.Record]]
  stems: Mapping[str, Sequence[str]]
  suffixes: Sequence[str]
  folders: bool = False


def _lines(
  folder: str, read: Callable[..., Iterator[benchmark_parsers.Record]], stems: Mapping[str, Sequence[str]] | None = None
) -> _Layout:
  return _Layout(folder, read, stems or {"validation": ["val"]}, [".jsonl"])


def _objects(folder: str, *texts: str, stems: Mapping[str, Sequence[str]] | None = None) -> _Layout:
  return _lines(folder, functools.partial(benchmark_parsers.objects, texts=texts), stems)


def _table(
  folder: str,
  *columns: str,
  stems: Mapping[str, Sequence[str]] | None = None,
  suffixes: Sequence[str] = (".tsv",),
  **options: Any,
) -> _Layout:
  """Returns the layout of a table with text columns, each "column", or "name=column" if TFDS uses another name."""
  texts = {column.partition("=")[0]: column.rpartition("=")[2] for column in columns}
  read = functools.partial(benchmark_parsers.table, columns=texts, **options)
  return _Layout(folder, read, stems or {"validation": ["dev"]}, suffixes)


def _squad(version: str) -> _Layout:
  stems = {"train": [f"train-{version}"], "validation": [f"dev-{version}"]}
  return _Layout("", benchmark_parsers.squad, stems, [".json"])


# Benchmarks with a task for each language, BENCHMARK_LANGUAGE.
LANGUAGES: dict[str, tuple[str, ...]] = {
  "xnli": ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
  "paws_x_wiki": ("de", "en", "es", "fr", "ja", "ko", "zh"),
  "xquad": ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh"),
  "tydiqa_goldp": ("ar", "bn", "en", "fi", "id", "ko", "ru", "sw", "te"),
  # Languages of XTREME (Hu et al. 2020).
  "wikiann": (
    *("af", "ar", "bg", "bn", "de", "el", "en", "es", "et", "eu", "fa", "fi", "fr", "he", "hi", "hu", "id", "it", "ja"),
    *("jv", "ka", "kk", "ko", "ml", "mr", "ms", "my", "nl", "pt", "ru", "sw", "ta", "te", "th", "tl", "tr", "ur", "vi"),
    *("yo", "zh"),
  ),
  # MasakhaNER 1 has amh and nine languages of version 2; all others are in version 2 only.
  "masakhaner": (
    *("amh", "bam", "bbj", "ewe", "fon", "hau", "ibo", "kin", "lug", "luo", "mos", "nya", "pcm", "sna", "swa", "tsn"),
    *("twi", "wol", "xho", "yor", "zul"),
  ),
}
# Prefixes of the ids of TyDi QA.
TYDI_NAMES = {
  "ar": "arabic",
  "bn": "bengali",
  "en": "english",
  "fi": "finnish",
  "id": "indonesian",
  "ko": "korean",
  "ru": "russian",
  "sw": "swahili",
  "te": "telugu",
}


def _tagged(folder: str, delimiter: str, suffix: str, **options: str) -> _Layout:
  """Returns the layout of files with a word and its tag in each line."""
  fields = {"words": "tokens", "tags": "tags", "names": ("tokens", "tags"), "delimiter": delimiter}
  read = functools.partial(benchmark_parsers.columns, **fields, **options)
  return _Layout(folder, read, {"validation": ["dev"]}, [suffix])


def _babylm(name: str, **texts: str) -> _Layout:
  """Returns the layout of NAME.train.jsonl and NAME.valid.jsonl; see `benchmark_parsers.labelled_texts`."""
  read = functools.partial(benchmark_parsers.labelled_texts, texts=texts)
  return _lines("", read, {"train": [f"{name}.train"], "validation": [f"{name}.valid"]})


_PAIR = ("sentence1", "sentence2")
_MNLI = ("premise=sentence1", "hypothesis=sentence2")

_LAYOUTS: dict[str, dict[str, _Layout]] = {
  "super_glue": {
    "boolq": _objects("BoolQ", "passage", "question"),
    "cb": _objects("CB", "premise", "hypothesis"),
    "copa": _objects("COPA", "premise", "choice1", "choice2", "question"),
    "multirc": _lines("MultiRC", benchmark_parsers.multirc),
    "record": _lines("ReCoRD", benchmark_parsers.record),
    "rte": _objects("RTE", "premise", "hypothesis"),
    "wic": _objects("WiC", "word", "sentence1", "sentence2"),
    "wsc": _lines("WSC", benchmark_parsers.wsc),
    "axb": _objects("AX-b", *_PAIR, stems={"test": ["AX-b"]}),
    "axg": _objects("AX-g", "premise", "hypothesis", stems={"test": ["AX-g"]}),
  },
  "glue": {
    "cola": _table("CoLA", "sentence", no_header=("source", "label", "star", "sentence")),
    "sst2": _table("SST-2", "sentence"),
    "mrpc": _table(
      "MRPC",
      "sentence1=#1 String",
      "sentence2=#2 String",
      label="Quality",
      stems={"train": ["msr_paraphrase_train"], "validation": ["dev"], "test": ["msr_paraphrase_test"]},
      suffixes=(".txt", ".tsv"),
    ),
    "stsb": _table("STS-B", *_PAIR, label="score"),
    # A few questions contain a line break, which splits their rows.
    "qqp": _table("QQP", "question1", "question2", label="is_duplicate", broken_rows=True),
    "mnli": _table("MNLI", *_MNLI, label="gold_label", stems={"validation": ["dev_matched"], "test": ["test_matched"]}),
    "mnli_mismatched": _table(
      "MNLI", *_MNLI, label="gold_label", stems={"validation": ["dev_mismatched"], "test": ["test_mismatched"]}
    ),
    "qnli": _table("QNLI", "question", "sentence"),
    "rte": _table("RTE", *_PAIR),
    "wnli": _table("WNLI", *_PAIR),
    "ax": _table("diagnostic", *_MNLI, stems={"test": ["diagnostic"]}),
  },
  "babylm": {
    "boolq": _babylm("boolq", question="{question}", passage="{passage}"),
    "mnli": _babylm("mnli", premise="{premise}", hypothesis="{hypothesis}"),
    "mrpc": _babylm("mrpc", sentence1="{sentence1}", sentence2="{sentence2}"),
    "multirc": _babylm("multirc", question="Question: {question} Answer: {answer}", paragraph="{paragraph}"),
    "qqp": _babylm("qqp", question1="{question1}", question2="{question2}"),
    "rte": _babylm("rte", sentence1="{sentence1}", sentence2="{sentence2}"),
    "wsc": _babylm("wsc", question='Does "{span2_text}" refer to "{span1_text}" in this passage?', text="{text}"),
  },
  "squad": {"": _squad("v1.1")},
  "squad_v2": {"": _squad("v2.0")},
  "chat": {"": _lines("", benchmark_parsers.messages, {"validation": ["val", "validation"]})},
  "hellaswag": {
    "": _lines(
      "",
      benchmark_parsers.hellaswag,
      {"train": ["hellaswag_train"], "validation": ["hellaswag_val"], "test": ["hellaswag_test"]},
    ),
  },
  "conll2003": {
    "": _Layout(
      "conll2003",
      functools.partial(
        benchmark_parsers.columns, words="tokens", tags="ner", names=("tokens", "pos", "chunks", "ner")
      ),
      {"train": ["train"], "validation": ["valid"], "test": ["test"]},
      [".txt"],
    ),
  },
  "udpos": {
    "": _Layout(
      "",
      benchmark_parsers.conllu,
      {"train": ["*-ud-train"], "validation": ["dev", "*-ud-dev"], "test": ["*-ud-test"]},
      [".conllu"],
    ),
  },
  "xnli": {
    language: _Layout(
      "",
      functools.partial(benchmark_parsers.xnli, language=language),
      {"validation": ["xnli.dev"], "test": ["xnli.test"]},
      [".tsv"],
    )
    for language in LANGUAGES["xnli"]
  },
  "paws_x_wiki": {
    language: _Layout(
      language,
      functools.partial(benchmark_parsers.quoted, texts=_PAIR, delimiter="\t", left_out=True),
      {"train": ["translated_train"], "validation": ["dev_2k"], "test": ["test_2k"]},
      [".tsv"],
    )
    for language in LANGUAGES["paws_x_wiki"]
  },
  "xquad": {
    language: _Layout("", benchmark_parsers.squad, {"test": [f"xquad.{language}"]}, [".json"])
    for language in LANGUAGES["xquad"]
  },
  "tydiqa_goldp": {
    language: _Layout(
      "",
      functools.partial(benchmark_parsers.squad, begins=f"{TYDI_NAMES[language]}-"),
      {"train": ["tydiqa-goldp-v1.1-train"], "validation": ["tydiqa-goldp-v1.1-dev"]},
      [".json"],
    )
    for language in LANGUAGES["tydiqa_goldp"]
  },
  "wikiann": {
    language: _tagged(language, "\t", "", begins=f"{language}:", untagged="O") for language in LANGUAGES["wikiann"]
  },
  "masakhaner": {language: _tagged(language, " ", ".txt") for language in LANGUAGES["masakhaner"]},
  "imdb_reviews": {
    "": _Layout("aclImdb", benchmark_parsers.reviews, {"train": ["train"], "test": ["test"]}, [""], folders=True),
  },
  "ag_news_subset": {
    "": _Layout(
      "ag_news_csv",
      functools.partial(
        benchmark_parsers.quoted,
        texts=("title", "description"),
        delimiter=",",
        columns=("label", "title", "description"),
        first_label=1,
      ),
      {"train": ["train"], "test": ["test"]},
      [".csv"],
    ),
  },
}


# ---- Source ----------------------------------------------------------------------------------------------------------


class BenchmarkSource(named.FolderSource):
  """Task of a benchmark, from TensorFlow Datasets or from a folder of released files.

  It adds "training" to the fields of TFDS: whether the split name begins with "train". Some formats make more, or
  fewer, examples of a training record.

  A split read from files is in memory and shuffled as a whole, and any number of shards can read it.
  """

  def __init__(
    self,
    benchmark: str,
    name: str = "",
    *,
    tfds: str,
    labels: Sequence[str] = (),
    splits: Sequence[str] | Mapping[str, str] = ("train", "validation", "test"),
    folder_key: str = "",
    folder: str = "",
    sliced: Sequence[str] = (),
  ):
    """Creates a source without reading anything.

    Args:
      benchmark: key of `_LAYOUTS`.
      name: of the task in the benchmark, "cb"; "" if it is the only one.
      tfds: data set, configuration and version; "": TFDS does not have the data.
      labels: names of the classes, in TFDS's order.
      splits: of TFDS; a mapping if TFDS uses other names.
      folder_key: key of the folder in config.data.benchmark_dirs; "": the name of the benchmark.
      folder: folder of the released files; "": read from TFDS.
      sliced: further splits, slices of the others, see `slices.parts`.
    """
    super().__init__(splits=tuple(splits))
    self._slices = tuple(sliced)
    self.folder_key, self.folder, self.labels = folder_key or benchmark, folder, tuple(labels)
    self._benchmark, self._name, self._tfds_name, self._tfds_splits = benchmark, name, tfds, splits
    self._layout = _LAYOUTS[benchmark][name]
    self._key = f"config.data.benchmark_dirs.{self.folder_key}"
    instead = f"{self._key} to the folder of the released files"
    names = dict(splits) if isinstance(splits, Mapping) else {split: split for split in splits}
    names |= {split: self._of_known(split, names) for split in self._slices if self._is_known(split, names)}
    self._of_tfds = tfds_source.TfdsSource(tfds, names if self._slices else splits, instead=instead) if tfds else None
    self._where = f"{self._key}={folder}"
    self._task = f"{benchmark}_{name}" if name else benchmark

  @staticmethod
  def _is_known(split: str, names: Iterable[str]) -> bool:
    return set(slices.bases(split)) <= set(names)

  @staticmethod
  def _of_known(split: str, names: Mapping[str, str]) -> str:
    """Translates a slice to the split names of TFDS."""
    bases = zip(split.split("+"), slices.bases(split), strict=True)
    return "+".join(names[base] + part.removeprefix(base) for part, base in bases)

  def at(self, folder: str | None = None, *, sliced: Sequence[str] = ()) -> "BenchmarkSource":
    """Returns the same task with other slices as splits, read from a folder of released files; None: from the same
    place.
    """
    return BenchmarkSource(
      self._benchmark,
      self._name,
      tfds=self._tfds_name,
      labels=self.labels,
      splits=self._tfds_splits,
      folder_key=self.folder_key,
      folder=self.folder if folder is None else folder,
      sliced=sliced,
    )

  @property
  def _tfds(self) -> tfds_source.TfdsSource:
    if self._of_tfds is None:
      raise UserError(
        f"{self._key} is empty, and TensorFlow Datasets has no {self._benchmark}; set {self._key} to the folder "
        "of the released files"
      )
    return self._of_tfds

  def __str__(self) -> str:
    return str(epath.Path(self.folder) / self._layout.folder) if self.folder else self._tfds_name or self._key

  @property
  def splits(self) -> Sequence[str]:
    """Splits of TFDS or of the released files, and the slices."""
    names = tuple(self._files) if self.folder else super().splits
    return (*names, *(split for split in self._slices if split not in names and self._is_known(split, names)))

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """True for files; see the class."""
    return bool(self.folder)

  def _task_folder(self) -> epath.Path:
    folder, layout_folder = epath.Path(self.folder), self._layout.folder
    if not folder.is_dir():
      raise UserError(f"{self._where}: no such folder; give the folder of the released files")
    if (folder / layout_folder).is_dir():
      return folder / layout_folder
    # Diagnostic sets may be outside a task folder.
    stems = {stem for stems in self._layout.stems.values() for stem in stems}
    if any((folder / f"{stem}{suffix}").exists() for stem in stems for suffix in self._layout.suffixes):
      return folder
    names = sorted(child.name for child in folder.iterdir())
    raise UserError(
      f"{self._where} has no folder {layout_folder!r} for {self._task} (found: {', '.join(names) or 'nothing'}). Add"
      f" this folder with the released files. {self._leave_out()}"
    )

  def _leave_out(self, split: str = "") -> str:
    """Returns how to run without the tasks that have no files; with `split`, without those that lack its file."""
    names = [name for name in _LAYOUTS[self._benchmark] if name and self._sibling(name)._has(split)]
    mixture = ",".join(f"{self._benchmark}_{name}" for name in names) or "A,B,C"
    others = f"those of {self._benchmark} with files" if names else "others"
    return (
      f"To leave tasks out, name only {others}: --config.data.mixture={mixture} (training) and "
      f"--config.eval.tasks={','.join(names) or 'A,B,C'} (evaluation)."
    )

  def _sibling(self, name: str) -> "BenchmarkSource":
    return BenchmarkSource(self._benchmark, name, tfds="", folder_key=self.folder_key, folder=self.folder)

  def _has(self, split: str) -> bool:
    if not any((epath.Path(self.folder) / self._layout.folder).glob("*")):
      return False
    return split in self._files if split else bool(self._files)

  @functools.cached_property
  def _files(self) -> dict[str, str]:
    """Split -> file, well-known splits first; cached, because a run reads it often and listing a bucket is slow."""
    paths = {}
    for path in sorted(self._task_folder().iterdir()):
      for suffix in self._layout.suffixes:
        if path.name.endswith(suffix) and path.is_dir() == self._layout.folders:
          paths[path.name.removesuffix(suffix)] = str(path)
    stems_by_split = {"train": [], "validation": [], "test": []}
    stems_by_split |= self._layout.stems
    files = {}
    for split, stems in stems_by_split.items():
      matches = next(filter(None, (fnmatch.filter(paths, stem) for stem in (split, *stems))), [])
      if len(matches) > 1:
        raise UserError(
          f"{self._where}: several files match the split {split!r}: {', '.join(matches)}; leave only one of these files"
          " in the folder"
        )
      if matches:
        files[split] = paths[matches[0]]
    # A file is also a split with its own name, unless that is the name of the task.
    return files | {stem: path for stem, path in paths.items() if stem != self._layout.folder}

  def file(self, split: str) -> str:
    """Returns the released file of a split.

    Raises:
      UserError: the file or its folder is missing; the message lists the splits, and what to set.
    """
    files = self._files
    if split not in files:
      stems = self._layout.stems.get(split, [split])
      expected_names = " or ".join(f"{stem}{self._layout.suffixes[0]}" for stem in stems)
      raise UserError(
        f"{self._where}: {self._task} has no split {split!r}, because there is no file "
        f"{self._task_folder()}/{expected_names}. Known splits: {', '.join(files) or 'none'}. Set "
        f"--config.data.train_split or --config.data.eval_split to a known split. {self._leave_out(split)}"
      )
    return files[split]

  def files_of(self, split: str) -> list[str]:
    """Returns the released files of a split, sorted; for a folder, the texts in it."""
    paths = [epath.Path(self.file(base)) for base in self._bases(split)]
    path_groups = ([*path.glob("*/*.txt")] if path.is_dir() else [path] for path in paths)
    return sorted({str(path) for group in path_groups for path in group})

  def _bases(self, split: str) -> list[str]:
    """Returns the splits with files that a split consists of."""
    return [split] if split in self._files or split not in self.splits else slices.bases(split)

  def _parts(self, split: str) -> list[slices.Part]:
    if self._bases(split) == [split]:
      return [slices.Part(split, 0, self._read(split)[0])]
    return slices.parts(split, lambda base: self._read(base)[0], where=self._where)

  def _read(self, split: str) -> tuple[int, Mapping[str, Any]]:
    path = self.file(split)
    stat = tf.io.gfile.stat(path)
    stamp = (stat.length, stat.mtime_nsec)
    return _read(path, stamp, self._benchmark, self._name, self.labels, self._key)

  def list_shards(self, split: str) -> Sequence[str]:
    return [self.file(base) for base in self._bases(split)[:1]] if self.folder else self._tfds.list_shards(split)

  def num_input_examples(self, split: str) -> int | None:
    if not self.folder:
      return self._tfds.num_input_examples(split)
    return sum(part.stop - part.start for part in self._parts(split))

  def get_dataset(
    self,
    split: str = "train",
    shuffle: bool = True,
    seed: int | None = None,
    shard_info: seqio.ShardInfo | None = None,
    *,
    sequence_length: Mapping[str, int] | None = None,
    use_cached: bool = False,
    num_epochs: int | None = 1,
  ) -> tf.data.Dataset:
    """Returns one pass over a shard of a split.

    Args:
      split: one of `splits`.
      shuffle: whether to use a new order for each pass.
      seed: of the order.
      shard_info: index and number of shards; None: all records.
      sequence_length: not used, like `use_cached` and `num_epochs`; seqio passes them.
      use_cached: see above.
      num_epochs: see above.

    Raises:
      UserError: a file is missing, a record cannot be used, or TFDS does not have the data.
    """
    del sequence_length, use_cached, num_epochs
    training = split.startswith("train")
    if self.folder:
      records = self._records(split, shuffle=shuffle, seed=seed, shard_info=shard_info)
    else:
      records = self._tfds.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard_info)
    return records.map(lambda record: {**record, "training": training})

  def _records(
    self, split: str, *, shuffle: bool, seed: int | None, shard_info: seqio.ShardInfo | None
  ) -> tf.data.Dataset:
    first, *other_datasets = (
      self._records_of(part, shuffle=shuffle, seed=seed, shard_info=shard_info) for part in self._parts(split)
    )
    return functools.reduce(lambda records, more: records.concatenate(more), other_datasets, first)

  def _records_of(
    self, part: slices.Part, *, shuffle: bool, seed: int | None, shard_info: seqio.ShardInfo | None
  ) -> tf.data.Dataset:
    columns = self._read(part.split)[1]
    num_shards, shard = (shard_info.num_shards, shard_info.index) if shard_info else (1, 0)
    number = len(range(part.start + shard, part.stop, num_shards))
    indices = tf.data.Dataset.range(number)
    if shuffle and number:
      seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
      # A computed permutation: its position takes a few bytes of a checkpoint, a shuffle buffer takes megabytes.
      epoch = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).take(1)
      indices = epoch.flat_map(
        lambda drawn: tf.data.Dataset.range(number).map(
          lambda i: tf.random.experimental.index_shuffle(i, tf.stack([drawn, seed]), number - 1)
        )
      )

    def record(i: tf.Tensor) -> dict[str, tf.Tensor]:
      return tf.nest.map_structure(lambda column: column[part.start + shard + num_shards * i], columns)

    return indices.map(record)


@functools.lru_cache(maxsize=64)
def _read(
  path: str, stamp: tuple[int, int], benchmark: str, name: str, labels: tuple[str, ...], where: str
) -> tuple[int, Mapping[str, Any]]:
  """Returns the number of records, and a tensor of each field; streams and epochs share the tensors."""
  del stamp  # cache key: changes with the file
  records = list(_LAYOUTS[benchmark][name].read(path, where, labels))
  if not records:
    raise UserError(f"{where}: {path} contains no record; download the released file again")
  return len(records), _column(records)


def _column(values: Sequence[Any]) -> Any:
  """Stacks texts, numbers, lists of texts or arrays to one tensor; mappings to a tensor for each key.

  In:  [{"text": "a", "idx": 0}, {"text": "b", "idx": 1}]
  Out: {"text": ["a", "b"], "idx": [0, 1]}
  """
  first = values[0]
  if isinstance(first, dict):
    return {key: _column([value[key] for value in values]) for key in first}
  if isinstance(first, list | np.ndarray):
    lists = isinstance(first, list)
    flat = tf.constant([text for value in values for text in value], tf.string) if lists else np.concatenate(values)
    return tf.RaggedTensor.from_row_lengths(flat, np.array([len(value) for value in values], np.int64))
  types = {str: tf.string, int: tf.int32, float: tf.float32}
  return tf.constant(values, types[type(first)])
