"""Draws pictures of each objective on one text, with t2t's own preprocessors, like `t2t tasks show`.

.venv/bin/python docs/site/objectives.py       # writes docs/pictures/objectives/NAME.svg
"""

from collections.abc import Mapping, Sequence
import functools
import itertools
import json
import pathlib
import sys
import tempfile
from typing import Any

import svg

from t2t.configuration.schema import DataConfig
from t2t.data import objectives, pipeline, task_resolution, vocabularies

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "pictures" / "objectives"
# Each token occurs once, so that its origin is unambiguous.
SENTENCES = ("The mill stood by a river .", "Did its wheel turn all day ?", "At night nobody slept !")
TRANSLATION = "Die Mühle lag am Fluss ."
TEXT = " ".join(SENTENCES)
_PHRASES = ("mill", "a river")
_MODES = ("[NLU]", "[S2S]", "[NLG]")  # UL2's mode tokens at the start of inputs
_LENGTH = 40
_COPIES = 8  # of the text, which give different examples
_WIDTH = 560


# ---- Examples --------------------------------------------------------------------------------------------------------


def _vocabulary(folder: pathlib.Path, *, masks: bool) -> str:
  """Writes a vocabulary of the words above, like BERT's with `masks`, otherwise like T5's; returns its path."""
  words = list(dict.fromkeys(f"{TEXT} {TRANSLATION}".split()))
  if masks:
    path = folder / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    return str(path)
  from sentencepiece import sentencepiece_model_pb2

  model = sentencepiece_model_pb2.ModelProto()
  kinds = model.SentencePiece
  for piece, kind in (("<pad>", kinds.CONTROL), ("</s>", kinds.CONTROL), ("<unk>", kinds.UNKNOWN)):
    model.pieces.add(piece=piece, score=0.0, type=kind)
  for word in [*_MODES, *words]:
    model.pieces.add(piece=f"▁{word}", score=-1.0, type=kinds.NORMAL)
  model.trainer_spec.CopyFrom(model.trainer_spec.__class__(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
  model.normalizer_spec.CopyFrom(model.normalizer_spec.__class__(name="identity", add_dummy_prefix=True))
  path = folder / "spiece.model"
  path.write_bytes(model.SerializeToString())
  return str(path)


def _text(folder: pathlib.Path, name: str) -> str:
  """Writes the text in the format of this objective; returns its path."""
  if objectives.is_parallel(name):
    path = folder / "pairs.tsv"
    path.write_text(f"{SENTENCES[0]}\t{TRANSLATION}\n" * _COPIES)
  elif objectives.is_annotated(name):
    path = folder / "marked.jsonl"
    spans = [[TEXT.index(phrase), TEXT.index(phrase) + len(phrase)] for phrase in _PHRASES]
    path.write_text((json.dumps({"text": TEXT, "entities": spans}) + "\n") * _COPIES)
  elif objectives.OBJECTIVES[name].counted:
    path = folder / "pairs.txt"
    path.write_text(_pairs() * _COPIES)
  else:
    path = folder / "text.txt"
    path.write_text((TEXT + "\n") * _COPIES)
  return str(path)


def _pairs() -> str:
  """Returns counts of the first sentence's words and their two next ones, in the ids of `_vocabulary`."""
  words = [word for word in SENTENCES[0].split() if word.isalpha()]
  ids = [5 + SENTENCES[0].split().index(word) for word in words]
  near = [(i, j, 1 / (j - i)) for i in range(len(ids)) for j in range(i + 1, min(i + 3, len(ids)))]
  return " ".join(f"{ids[i]} {ids[j]} {weight:g}" for i, j, weight in near) + "\n"


def example(name: str) -> tuple[Mapping[str, Any], Sequence[str]]:
  """Returns an objective's example of the text by feature, and the token of each id.

  Selects the first example in which a token was moved or masked.
  """
  objective = objectives.OBJECTIVES[name]
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    path = _text(folder, name)
    data = DataConfig(
      files=path,
      eval_files=path,
      objective=name,
      vocabulary=_vocabulary(folder, masks="decoder_only" not in objective.architectures),
      inputs_length=_LENGTH,
      targets_length=_LENGTH,
      pack=True,  # keeps texts separate
    )
    architecture = objective.architectures[0]
    task = pipeline.load_task(data, architecture)
    made = pipeline.task_examples(data, architecture, task, split="validation").as_numpy_iterator()
    found = list(itertools.islice(made, _COPIES))
    return max(found, key=_is_shown), vocabularies.token_texts(task_resolution.vocabulary_of(task))


def _is_shown(example: Mapping[str, Any]) -> int:
  """Returns 1 if an example shows the objective, 0 if the text is unchanged."""
  read, asked = (example[key].tolist() if key in example else [] for key in ("inputs", "targets"))
  if "target_places" in example or not (read and asked):
    return int(asked[:-1] != sorted(asked[:-1]))  # ids ascend along the text; EOS is last
  if len(read) == len(asked):
    return int(read != asked)
  return 1


# ---- Drawing ---------------------------------------------------------------------------------------------------------


@functools.cache
def _tints() -> dict[str, str]:
  """Returns the tint of each word's sentence."""
  found = {word: svg.TINTS[number] for number, words in enumerate(SENTENCES) for word in words.split()}
  return {word: svg.TINTS[3] for word in TRANSLATION.split()} | found


def _box(piece: str, *, original: str = "", loss: bool = False, dim: bool = False) -> tuple[str, str, bool, bool]:
  word = piece.strip().removeprefix("▁")
  if word in _tints():
    fill = svg.STRANGE if original and original != piece else svg.PAPER if dim else _tints()[word]
  else:
    fill = svg.HIDDEN if "extra_id" in word or "MASK" in word else svg.SPECIAL
  return word.replace("extra_id_", ""), fill, loss, dim


def draw(name: str) -> str:
  """Returns the picture of an objective."""
  features, texts = example(name)
  before = SENTENCES[0] if objectives.is_parallel(name) else TEXT
  rows = [("text", [_box(word) for word in before.split()])]
  if objectives.is_parallel(name):
    rows.append(("beside it", [_box(word) for word in TRANSLATION.split()]))
  pieces = {key: [texts[i] for i in features[key]] for key in ("inputs", "targets", "target_inputs") if key in features}
  weights = features.get("loss_weights")
  one_row = weights is not None and len(weights) == len(pieces.get("inputs", ()))
  for key, row in pieces.items():
    if key == "target_inputs":
      rows.append(("read", [_box(piece) for piece in row]))
    elif key == "inputs":
      originals = pieces["targets"] if one_row else [""] * len(row)
      rows.append((key, [_box(piece, original=original) for piece, original in zip(row, originals, strict=True)]))
    else:
      counts = [True] * len(row) if weights is None else [bool(weight) for weight in weights]
      rows.append((key, [_box(piece, loss=count, dim=not count) for piece, count in zip(row, counts, strict=True)]))
  for key in ("token_types", "texts", "input_ranks"):
    if key in features and len(set(features[key].tolist())) > 1:
      label = key.replace("token_types", "types").removeprefix("input_")
      rows.append((label, [(str(i), svg.PAPER, False, False) for i in features[key]]))
  if "windows" in features:
    rows.append(("window", [(str(i), svg.PAPER, False, False) for i in features["windows"]]))
  if "pair_counts" in features:
    counts = features["pair_counts"].view("float32")
    rows.append(("count", [(f"{x:g}", svg.PAPER, False, False) for x in counts]))
  asked = features.get("answer_heads")
  if asked is not None and asked.any():
    label = objectives.heads_of(name)[int(asked[asked > 0][0]) - 1].name
    answers = [str(int(x)) for x in features["answer_targets"][asked > 0]]
    rows.append((label, [(answer, svg.TINTS[7], True, False) for answer in answers]))
  parts, y = [], 8.0
  for label, boxes in rows:
    drawn, y = svg.row(y, label, boxes, width=_WIDTH)
    parts += drawn
    y += 6
  said = "; ".join(f"{label}: {' '.join(words for words, *_ in boxes)}" for label, boxes in rows)
  return svg.picture(_WIDTH, y, parts, title=name, about=said)


def main() -> int:
  """Draws all pictures."""
  return svg.write(FOLDER, sys.argv[1:] or objectives.OBJECTIVES, draw)


if __name__ == "__main__":
  sys.exit(main())
