"""Registered tasks from released files and from TensorFlow Datasets: text and head examples."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

from t2t import UserError
from t2t.data import head_examples, registry, task_resolution, vocabularies
from t2t.data.head_examples import kinds, needs
from t2t.inference import head_predictor
from t2t.models.head_config import HeadConfig

BYTES = vocabularies.load("bytes", extra_ids=0)
for _module in ("conll2003", "hellaswag", "multilingual", "squad", "text_classification", "udpos"):
  registry.load(f"t2t.tasks.{_module}")

TFDS_MODULES = {
  "c4_prefix_lm": "c4",
  "wikipedia_prefix_lm": "wikipedia",
  "wmt_en_de": "translation",
  "cnn_dailymail": "summarization",
  "xsum": "summarization",
}
TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
CONLL = """-DOCSTART- -X- O O

Ann NNP I-NP B-PER
Lee NNP I-NP I-PER
saw VBD I-VP O
Rome NNP I-NP B-LOC

-DOCSTART- -X- O O

It PRP I-NP O
"""
# A word that is written as one and is two, and one that is not written.
CONLLU = """# sent_id = 1
# text = Vámonos al mar.
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tva\tir\tVERB\t_\t_\t_\t_\t_\t_
3\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_

1\tSí\tsí\tINTJ\t_\t_\t0\troot\t_\t_
"""
UPOS = ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ")
UPOS += ("SYM", "VERB", "X", "_")
SWAG = {"ind": 4, "activity_label": "Rain", "ctx": "It rains.", "endings": ["a", "b", "c", "d"], "label": 2}
XNLI = [
  "language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpromptID\tpairID",
  'de\tcontradiction\t\tEs "regnet.\tNein.\t1\t2',
  'en\tcontradiction\t\tIt "rains.\tNo.\t1\t2',
  "de\tentailment\t\tJa.\tJa.\t3\t4",
]
PAWS = ["id\tsentence1\tsentence2\tlabel", '1\ta "b"\t"c ""d"""\t1', "2\tNS\tNS\tNS", "3\te\tf\t0"]
REVIEWS = ("neg/1_2", "pos/0_9")
WIKIANN = "sw:Ann\tB-PER\nsw:a\xa0b\tI-PER\nsw:alifika\tO\nsw:Roma\tB-LOC\n\nsw:Leo\n"
MASAKHANER = "Ann B-PER\nwon O\n1990 B-DATE\n\nIt O\n"
NEWS = ['"3","Oil up","Prices, ""again"", rise"', '"4","Chip","A new\\\\one"']

# task -> files of its folder, the written form of the first example, and the head it needs
RELEASED = {
  "conll2003": (
    {"conll2003/train.txt": CONLL, "conll2003/valid.txt": CONLL},
    ("ner: Ann Lee saw Rome", "PER: Ann Lee; LOC: Rome"),
    head_examples.Need("ner", "tag", TAGS, 9),
  ),
  "udpos": (
    {"es_gsd-ud-train.conllu": CONLLU, "es_gsd-ud-dev.conllu": CONLLU, "test.conllu": CONLLU},
    ("pos: Vamos nos mar", "VERB PRON NOUN"),
    head_examples.Need("pos", "tag", UPOS, 18),
  ),
  "hellaswag": (
    {"hellaswag_train.jsonl": json.dumps(SWAG), "hellaswag_val.jsonl": json.dumps(SWAG)},
    ("hellaswag context: It rains. choice1: a choice2: b choice3: c choice4: d", "choice3"),
    head_examples.Need("hellaswag", "choice", (), 1),
  ),
  "xnli_de": (
    {"xnli.dev.tsv": "\n".join(XNLI), "xnli.test.tsv": "\n".join(XNLI)},
    ('mnli hypothesis: Nein. premise: Es "regnet.', "contradiction"),
    head_examples.Need("mnli", "class", ("entailment", "neutral", "contradiction"), 3),
  ),
  "paws_x_wiki_fr": (
    {"fr/translated_train.tsv": "\n".join(PAWS), "fr/dev_2k.tsv": "\n".join(PAWS)},
    ('paws sentence1: a "b" sentence2: c "d"', "paraphrase"),
    head_examples.Need("paws", "class", ("different_meaning", "paraphrase"), 2),
  ),
  "wikiann_sw": (
    {"sw/train": WIKIANN, "sw/dev": WIKIANN, "sw/test": WIKIANN, "sw/extra": WIKIANN},
    ("wikiann: Ann a\xa0b alifika Roma", "PER: Ann a\xa0b; LOC: Roma"),
    head_examples.Need("wikiann", "tag", TAGS[:7], 7),
  ),
  "masakhaner_yor": (
    {"yor/train.txt": MASAKHANER, "yor/dev.txt": MASAKHANER, "yor/test.txt": MASAKHANER},
    ("masakhaner: Ann won 1990", "PER: Ann; DATE: 1990"),
    head_examples.Need("masakhaner", "tag", (*TAGS[:7], "B-DATE", "I-DATE"), 9),
  ),
  "imdb_reviews": (
    {
      f"aclImdb/{split}/{name}.txt": f"{name}<br />\n" for split in ("train", "test") for name in ("neg/1_2", "pos/0_9")
    },
    ("imdb text: pos/0_9<br />", "positive"),
    head_examples.Need("imdb", "class", ("negative", "positive"), 2),
  ),
  "ag_news_subset": (
    {"ag_news_csv/train.csv": "\n".join(NEWS), "ag_news_csv/test.csv": "\n".join(NEWS)},
    ('ag_news title: Oil up description: Prices, "again", rise', "Business"),
    head_examples.Need("ag_news", "class", ("World", "Sports", "Business", "Sci/Tech"), 4),
  ),
}
# task -> number of records of each split of the files above
NUMBERS = {
  "conll2003": 2,
  "udpos": 2,
  "hellaswag": 1,
  "xnli_de": 2,
  "paws_x_wiki_fr": 2,
  "imdb_reviews": 2,
  "ag_news_subset": 2,
}
NUMBERS |= {"wikiann_sw": 2, "masakhaner_yor": 2}


def write(folder, files):
  for name, text in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")


def released(name, folder):
  """The registered task in bytes, read from a folder."""
  task = seqio.TaskRegistry.get(name)
  return task_resolution.adapt(task, vocabulary=BYTES, folders={task.source.folder_key: str(folder)})


def examples(task, split, **lengths):
  dataset = task.get_dataset({"inputs": 200, "targets": 60} | lengths, split=split, shuffle=False)
  return list(dataset.as_numpy_iterator())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RELEASED)
def test_files_as_they_are_released(name, tmp_path):
  """The first record has the expected text and head example, and its target scores as right."""
  files, (inputs, targets), need = RELEASED[name]
  write(tmp_path, files)
  task = released(name, tmp_path)
  first_split = "validation" if name.startswith("xnli") else "train"
  held_out = next(split for split in ("validation", "test") if split in task.splits)
  for split in (first_split, held_out):
    assert task.source.num_input_examples(split) == NUMBERS[name]
    first, *_ = found = examples(task, split)
    assert len(found) == NUMBERS[name]
    assert (BYTES.decode(first["inputs"].tolist()), BYTES.decode(first["targets"].tolist())) == (inputs, targets)
    right = [task.postprocess_fn("?", example=each, is_target=True) for each in found]
    texts = [each["targets_pretokenized"].decode() for each in found]
    told = [task.postprocess_fn(text, example=each, is_target=False) for text, each in zip(texts, found, strict=True)]
    assert [metric(right, told) for metric in task.metric_fns][0].popitem()[1] == 100.0

  assert head_examples.need_of(task) == need
  head = HeadConfig(need.head, need.number, need.kind, need.labels, reads="each" if need.kind == "tag" else "first")
  for architecture in ("encoder_only", "encoder_decoder"):
    asked = examples(head_examples.for_heads(task, architecture, (head,)), first_split)
    told = []
    for each in asked:
      assert each["has_answer"]
      here = each["answer_targets"][each["answer_heads"] > 0]
      logits = here[:, None] * 8.0 if need.number == 1 else 8.0 * np.eye(need.number)[here]
      told.append(task.postprocess_fn(head_predictor.answer(head, each, logits)[0], example=each, is_target=False))
    right = [task.postprocess_fn("?", example=each, is_target=True) for each in asked]
    assert task.metric_fns[0](right, told).popitem()[1] == 100.0


KINDS = {name: need.kind for name, (*_, need) in RELEASED.items()}
KINDS |= {"squad": "span", "squad_v2": "span", "xnli_en": "class", "paws_x_wiki_en": "class"}
KINDS |= {"xquad_en": "span", "xquad_ar": "span", "tydiqa_goldp_sw": "span"}
del KINDS["masakhaner_yor"]  # files only


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("name", KINDS)
def test_tensorflow_datasets_have_the_fields(name):
  """Its names, versions, splits and features are those of the installed builders."""
  with tfds.testing.mock_data(num_examples=2):
    task = seqio.TaskRegistry.get(name)
    for split in task.splits:
      dataset = needs.formatted(task, task.source.get_dataset(split, shuffle=False))
      assert kinds.kind_of(dataset.element_spec) == KINDS[name]
      if name.startswith(("hellaswag", "xnli", "tydiqa")):
        continue  # made-up records have invalid labels, languages and ids
      found = list(dataset.as_numpy_iterator())
      assert len(found) == 2
      for each in found:
        assert isinstance(each["inputs"], bytes) and isinstance(each["targets"], bytes)
        task.postprocess_fn("?", example=each, is_target=True)


def prepare(folder, name, config, version, rows):
  """A data set of these rows in both splits, as TFDS leaves it."""
  tfds.dataset_builders.store_as_tfds_dataset(
    name=name,
    version=version,
    config=config,
    data_dir=folder,
    features=tfds.features.FeaturesDict(dict.fromkeys(rows, tfds.features.Text())),
    split_datasets={split: tf.data.Dataset.from_tensor_slices(rows) for split in ("train", "validation")},
    disable_shuffling=True,
  )


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.0.1", "3.1.0"])
def test_c4_is_read_in_every_version_3(version, tmp_path):
  """Also in one that the installed TFDS could no longer prepare."""
  prepare(tmp_path, "c4", "en", version, {"text": ["a page", "another"]})
  found = subprocess.run(
    [sys.executable, "-m", "t2t", "tasks", "show", "c4_prefix_lm", "--examples=1", "--config.data.vocabulary=bytes"],
    env=os.environ | {"TFDS_DATA_DIR": str(tmp_path)},
    capture_output=True,
    text=True,
    check=True,
  )
  assert "a page" in found.stdout


@pytest.mark.parametrize("name", ["c4_prefix_lm", "wikipedia_prefix_lm", "wmt_en_de", "cnn_dailymail", "xsum"])
def test_data_that_tfds_has_not_got_are_one_clear_error(name, tmp_path, monkeypatch):
  """The error comes before a download if Beam would have to prepare the data set."""
  registry.load(f"t2t.tasks.{TFDS_MODULES[name]}")
  source = seqio.TaskRegistry.get(name).source
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", lambda *_, **__: 1 / 0)
  for ask in (source.list_shards, source.num_input_examples, source.get_dataset):
    with pytest.raises(UserError, match=rf"cannot provide {re.escape(source.tfds_dataset.name)} \(") as error:
      ask("train")
    assert "config.data.files" in str(error.value) and f"(now {tmp_path})" in str(error.value)
    reason = "Beam" if name.startswith(("c4", "wikipedia")) and ask != source.get_dataset else "division by zero"
    assert reason in str(error.value)


@pytest.mark.parametrize(
  ("name", "file", "text", "message"),
  [
    (
      "conll2003",
      "conll2003/train.txt",
      "Ann NNP I-NP B-PER\nLee I-PER",
      r"line 2: the row has 2 column\(s\), not 4 \(tokens, p",
    ),
    ("conll2003", "conll2003/train.txt", "\nAnn NNP I-NP B-DOG", r"line 2: unknown tag 'B-DOG'. Known tags: O, B-PER"),
    (
      "udpos",
      "train.conllu",
      "# a\n1 Ann _ NOUN",
      r"line 2: the row has 1 column\(s\), not 10. Separate columns by tabs",
    ),
    ("udpos", "train.conllu", "1\tAnn" + "\tN" * 8, r"line 1: unknown tag 'N'. Known tags: ADJ, ADP"),
    (
      "udpos",
      "train.conllu",
      "1\ta" + "\tX" * 8 + "\n1\tb" + "\tX" * 8,
      r"line 2: the word number is '1', not 2",
    ),
    ("udpos", "train.conllu", " 1\ta" + "\tX" * 8, r"line 1: the word number is ' 1', not 1"),
    (
      "udpos",
      "a-ud-train.conllu",
      CONLLU,
      r"several files match the split 'train': a-ud-train, b-ud-train; leave only one",
    ),
    ("hellaswag", "hellaswag_train.jsonl", json.dumps(SWAG | {"endings": "a"}), r"line 1: field 'endings' is a str"),
    (
      "hellaswag",
      "hellaswag_train.jsonl",
      json.dumps(SWAG | {"label": 4}),
      r"line 1: label 4 is not valid. Give one of choice1",
    ),
    ("xnli_de", "xnli.dev.tsv", "language\tsentence1", r"line 1: no column 'gold_label'"),
    ("xnli_de", "xnli.dev.tsv", f"{XNLI[0]}\nde\tneutral", r"line 2: the row has 2 column\(s\), not 7"),
    ("paws_x_wiki_fr", "fr/translated_train.tsv", f"{PAWS[0]}\n1\ta", r"line 2: the row has 2 column\(s\), not 4 \(id"),
    ("masakhaner_yor", "yor/train.txt", "Ann  B-PER", r"line 1: the row has 3 column\(s\), not 2 \(tokens, tags"),
    ("wikiann_sw", "sw/train", "sw:Ann\tB-DATE", r"line 1: unknown tag 'B-DATE'. Known tags: O, B-PER"),
    (
      "ag_news_subset",
      "ag_news_csv/train.csv",
      '"5","a","b"',
      r"line 1: label '5' is not valid. Give a number from 1 to 4 \(World",
    ),
    ("imdb_reviews", "aclImdb/train/neg/0_1.txt", "a", r"has no folder 'pos'. .* contain a file for each review"),
  ],
)
def test_what_is_wrong_with_files(name, file, text, message, tmp_path):
  """The error gives the config key, the file and the line."""
  write(tmp_path, {file: text} | ({"b-ud-train.conllu": text} if file.startswith("a-ud") else {}))
  task = released(name, tmp_path)
  key = task.source.folder_key
  with pytest.raises(UserError, match=rf"^config\.data\.benchmark_dirs\.{key}[:=].*{message}"):
    task.source.num_input_examples("validation" if name.startswith("xnli") else "train")


@pytest.mark.slow
def test_a_test_set_without_labels(tmp_path):
  """HellaSwag's test records have candidates and no right one."""
  write(tmp_path, {"hellaswag_test.jsonl": json.dumps({name: x for name, x in SWAG.items() if name != "label"})})
  task = released("hellaswag", tmp_path)
  (found,) = examples(task, "test")
  assert (found["label"], found["targets_pretokenized"]) == (-1, b"<unk>")
  (asked,) = examples(head_examples.for_heads(task, "encoder_only", (HeadConfig("hellaswag", 1, "choice"),)), "test")
  assert not asked["has_answer"] and np.count_nonzero(asked["answer_heads"]) == 4
