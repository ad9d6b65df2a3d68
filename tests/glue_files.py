"""Tiny files of GLUE and SuperGLUE in their released formats, with invented content and random labels."""

from collections.abc import Iterable, Mapping, Sequence
import json
import pathlib

import numpy as np

WORDS = ("good", "bad", "grey", "fox", "dog", "house", "runs", "sees", "old", "red")
NAMES = ("Ann", "Ann Lee", "Bob", "Bob Ray", "Eve")
SIZES = {"train": 31, "validation": 13, "test": 4}
NLI = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")

# Task -> folder, columns of texts, column of the label, labels as written.
_TABLES = {
  "sst2": ("SST-2", ("sentence",), "label", ("0", "1")),
  "mrpc": ("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1")),
  "stsb": ("STS-B", ("sentence1", "sentence2"), "score", ("0.0", "2.5", "3.75", "5.0")),
  "qqp": ("QQP", ("question1", "question2"), "is_duplicate", ("0", "1")),
  "mnli": ("MNLI", ("sentence1", "sentence2"), "gold_label", NLI),
  "qnli": ("QNLI", ("question", "sentence"), "label", ENTAILMENT),
  "rte": ("RTE", ("sentence1", "sentence2"), "label", ENTAILMENT),
  "wnli": ("WNLI", ("sentence1", "sentence2"), "label", ("0", "1")),
}
_STEMS = {
  "mrpc": {"train": "msr_paraphrase_train", "test": "msr_paraphrase_test"},
  "mnli": {"validation": "dev_matched", "test": "test_matched"},
}

Labels = dict[tuple[str, str], list]  # task and split -> labels


def sentence(random: np.random.Generator) -> str:
  """Returns three words."""
  return " ".join(random.choice(WORDS, 3))


def _write(path: pathlib.Path, lines: Iterable[str | Mapping]) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def _drawn(random: np.random.Generator, labels: Sequence, number: int) -> list:
  """Returns random labels; the share of each differs, so that one is the most frequent."""
  return random.choice(labels, number, p=random.dirichlet([3.0] * len(labels))).tolist()


def glue(folder: pathlib.Path, seed: int = 0) -> Labels:
  """Writes every task of GLUE, with AX and both validation sets of MNLI; returns the labels as written."""
  random = np.random.default_rng(seed)
  labels: Labels = {}

  def table(task: str, split: str, stem: str, suffix: str, key: str) -> None:
    name, texts, column, choices = _TABLES[task]
    drawn = labels[key, split] = _drawn(random, choices, SIZES[split])
    rows = ["\t".join(["index", *texts, *([] if split == "test" else [column])])]
    for number, label in enumerate(drawn):
      cells = [str(number), *(sentence(random) for _ in texts), *([] if split == "test" else [label])]
      rows.append("\t".join(cells))
    _write(folder / name / f"{stem}{suffix}", rows)

  for split in SIZES:
    stem = {"validation": "dev"}.get(split, split)
    for task in _TABLES:
      table(task, split, _STEMS.get(task, {}).get(split, stem), ".txt" if task == "mrpc" else ".tsv", task)
    labels["cola", split] = _drawn(random, ("0", "1"), SIZES[split])
    rows = [f"x\t{label}\t\t{sentence(random)}" for label in labels["cola", split]]
    if split == "test":
      rows = ["index\tsentence", *(f"{number}\t{sentence(random)}" for number in range(SIZES[split]))]
    _write(folder / "CoLA" / f"{stem}.tsv", rows)
    if split != "train":
      table("mnli", split, f"{stem}_mismatched", ".tsv", "mnli_mismatched")
  rows = ["index\tsentence1\tsentence2", *(f"{i}\t{sentence(random)}\t{sentence(random)}" for i in range(4))]
  _write(folder / "diagnostic" / "diagnostic.tsv", rows)
  return labels


def superglue(folder: pathlib.Path, seed: int = 0) -> Labels:
  """Writes every task of SuperGLUE, with AX-b and AX-g; returns the labels as written.

  Those of MultiRC are lists, one for each question. Those of ReCoRD are pairs: entities, and the answers.
  """
  random = np.random.default_rng(seed)
  labels: Labels = {}
  text = lambda: sentence(random)
  fields = {
    "BoolQ": (("passage", "question"), (False, True)),
    "CB": (("premise", "hypothesis"), NLI),
    "COPA": (("premise", "choice1", "choice2"), (0, 1)),
    "RTE": (("premise", "hypothesis"), ENTAILMENT),
    "WiC": (("word", "sentence1", "sentence2"), (False, True)),
    "WSC": ((), (False, True)),
  }

  def unlabelled(row: dict, split: str, *names: str) -> dict:
    return {name: x for name, x in row.items() if split != "test" or name not in names}

  for split, number in SIZES.items():
    stem = {"validation": "val"}.get(split, split)
    for name, (texts, choices) in fields.items():
      drawn = labels[name.lower(), split] = _drawn(random, choices, number)
      rows = []
      for index, label in enumerate(drawn):
        row = {field: text() for field in texts} | {"idx": index, "label": label}
        row |= {"question": "cause"} if name == "COPA" else {}
        if name == "WSC":
          noun = str(random.choice(["fox", "dog", "house"]))
          target = {"span1_text": noun, "span1_index": 1, "span2_text": "it", "span2_index": 3}
          row |= {"text": f"The {noun} sees it .", "target": target}
        rows.append(unlabelled(row, split, "label"))
      _write(folder / name / f"{stem}.jsonl", rows)
    questions = [_drawn(random, (0, 1), 3) for _ in range(number)]
    labels["multirc", split] = questions
    rows = []
    for index, of_question in enumerate(questions):
      answers = [{"text": text(), "idx": i, "label": int(label)} for i, label in enumerate(of_question)]
      answers = [unlabelled(answer, split, "label") for answer in answers]
      rows.append(
        {"idx": index, "passage": {"text": text(), "questions": [{"question": "Q?", "idx": 0, "answers": answers}]}}
      )
    _write(folder / "MultiRC" / f"{stem}.jsonl", rows)
    rows, labels["record", split] = [], []
    for index in range(number):
      mentions = random.choice(NAMES, 6).tolist()
      passage, entities = "", []
      for mention in mentions:
        entities.append({"start": len(passage), "end": len(passage) + len(mention) - 1})
        passage += f"{mention} . "
      answer = str(random.choice(mentions))
      labels["record", split].append((mentions, [answer]))
      query = unlabelled({"query": "@placeholder won", "idx": index, "answers": [{"text": answer}]}, split, "answers")
      rows.append({"idx": index, "passage": {"text": passage, "entities": entities}, "qas": [query]})
    _write(folder / "ReCoRD" / f"{stem}.jsonl", rows)
  labels["axb", "test"] = _drawn(random, ENTAILMENT, 8)
  labels["axg", "test"] = _drawn(random, ENTAILMENT, 8)
  pair = lambda a, b: {a: text(), b: text()}
  rows = [pair("sentence1", "sentence2") | {"idx": i, "label": x} for i, x in enumerate(labels["axb", "test"])]
  _write(folder / "AX-b" / "AX-b.jsonl", rows)
  rows = [
    {
      "premise": f"{WORDS[i // 2]} {('he', 'she')[i % 2]} won",
      "hypothesis": text(),
      "idx": i,
      "label": x,
      "pair_id": i // 2,
    }
    for i, x in enumerate(labels["axg", "test"])
  ]
  _write(folder / "AX-g" / "AX-g.jsonl", rows)
  return labels
