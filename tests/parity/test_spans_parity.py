"""Windows of contexts, positions of answers, and best spans, as in transformers and its run_qa.

Needs transformers (tests/parity-requirements.txt).
"""

import json
import pathlib

import numpy as np
from parity import transformers
import pytest

from t2t.data import vocabularies
from t2t.data.head_examples import spans
from t2t.data.special_tokens import Framing
from t2t.data.vocabularies import offsets
from t2t.inference import head_predictor
from t2t.models.head_config import HeadConfig

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"
TOKENIZER, XQUAD = SHARED / "tokenizers" / "bert_uncased" / "vocab.txt", SHARED / "xquad" / "xquad.en.json"
HEAD = HeadConfig("span", 2, "span")


@pytest.fixture(scope="module")
def questions():
  """Returns (question, context, first character of the answer, answer) of the English part of XQuAD."""
  if not XQUAD.exists() or not TOKENIZER.exists():
    pytest.skip(f"{XQUAD} or {TOKENIZER} is not there")
  paragraphs = [each for article in json.loads(XQUAD.read_text())["data"] for each in article["paragraphs"]]
  return [
    (qa["question"], paragraph["context"], qa["answers"][0]["answer_start"], qa["answers"][0]["text"])
    for paragraph in paragraphs
    for qa in paragraph["qas"]
  ]


@pytest.fixture(scope="module")
def theirs():
  return transformers.BertTokenizerFast.from_pretrained(str(TOKENIZER.parent))


@pytest.fixture(scope="module")
def ours():
  return vocabularies.load(str(TOKENIZER), extra_ids=0)


def windows(vocabulary, question, context, answer, length):
  framing = Framing.of(vocabulary, "encoder_only")
  ids = offsets.tokens_of(vocabulary, question).ids
  tokens = offsets.tokens_of(vocabulary, context)
  return spans.windows(ids, tokens, answer, framing=framing, length=length, eos_id=vocabulary.eos_id)


def run_qa(features, sequence_ids, index, start, end):
  """Finds an answer in a window as transformers' run_qa.py does, except answers that extend into [SEP]."""
  offsets = features["offset_mapping"][index]
  inside = [i for i, sequence in enumerate(sequence_ids) if sequence == 1]
  first, last = inside[0], inside[-1]
  if not (offsets[first][0] <= start and offsets[last][1] >= end):
    return 0, 0
  behind = last + 1
  while first < behind and offsets[first][0] <= start:
    first += 1
  while offsets[last][1] >= end:
    last -= 1
  return first - 1, last + 1


@pytest.mark.parametrize("length", [384, 200])
def test_windows_are_theirs(questions, ours, theirs, length):
  """Ids, token types, character offsets and answers of every window of every question."""
  number = 0
  for question, context, start, answer in questions:
    found = windows(ours, question, context, (start, start + len(answer)), length)
    features = theirs(
      question,
      context,
      truncation="only_second",
      max_length=length,
      stride=128,
      return_overflowing_tokens=True,
      return_offsets_mapping=True,
    )
    assert len(found) == len(features["input_ids"])
    number += len(found)
    for index, window in enumerate(found):
      assert window.inputs.tolist() == features["input_ids"][index]
      assert window.token_types.tolist() == features["token_type_ids"][index]
      sequence_ids = features.sequence_ids(index)
      offsets = [
        offset if sequence == 1 else (-1, -1)
        for offset, sequence in zip(features["offset_mapping"][index], sequence_ids, strict=True)
      ]
      assert list(zip(window.context_starts, window.context_ends, strict=True)) == offsets
      bounds = int(np.flatnonzero(window.targets % 2)[0]), int(np.flatnonzero(window.targets >= 2)[0])
      assert bounds == run_qa(features, sequence_ids, index, start, start + len(answer))
  assert number > len(questions) == 1190


def postprocess_qa_predictions(context, offsets, logits, null):
  """Implements transformers' utils_qa.py for one question: windows' offsets and logits -> (text, null or not)."""
  prelim, min_null = [], None
  for own, scores in zip(offsets, logits, strict=True):
    starts, ends = scores[:, 0], scores[:, 1]
    feature_null = starts[0] + ends[0]
    if min_null is None or min_null["score"] > feature_null:
      min_null = {"offsets": (0, 0), "score": feature_null, "start_logit": starts[0], "end_logit": ends[0]}
    for start in np.argsort(starts)[-1 : -20 - 1 : -1].tolist():
      for end in np.argsort(ends)[-1 : -20 - 1 : -1].tolist():
        if own[start] is None or own[end] is None:
          continue
        if end < start or end - start + 1 > 30:
          continue
        score = starts[start] + ends[end]
        offset = (own[start][0], own[end][1])
        prelim.append({"offsets": offset, "score": score, "start_logit": starts[start], "end_logit": ends[end]})
  if null:
    prelim.append(min_null)
  predictions = sorted(prelim, key=lambda x: x["score"], reverse=True)[:20]
  if null and not any(p["offsets"] == (0, 0) for p in predictions):
    predictions.append(min_null)
  for each in predictions:
    each["text"] = context[each["offsets"][0] : each["offsets"][1]]
  scores = np.array([each["score"] for each in predictions], np.float64)
  probabilities = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
  if not null:
    return predictions[0]["text"], probabilities[0]
  i = next(i for i, each in enumerate(predictions) if each["text"])
  best = predictions[i]
  if min_null["score"] - best["start_logit"] - best["end_logit"] > 0.0:
    return "", probabilities[[each["offsets"] == (0, 0) for each in predictions].index(True)]
  return best["text"], probabilities[i]


@pytest.mark.parametrize("null", [False, True])
def test_the_best_span_is_theirs(questions, ours, null):
  """For random logits; transformers must not rank other tokens first, which cannot be answers."""
  random, withheld = np.random.default_rng(0), 0
  for question, context, *_ in questions:
    found = windows(ours, question, context, None, 250)
    logits = [np.where(each.head_mask[:, None] > 0, random.normal(size=(len(each.inputs), 2)), -1e4) for each in found]
    for each in logits:
      each[0] = each[0] + 2.5 if null else -1e4
    offsets = [
      [(s, e) if s >= 0 else None for s, e in zip(each.context_starts, each.context_ends, strict=True)]
      for each in found
    ]
    expected, probability = postprocess_qa_predictions(context, offsets, logits, null)
    example = {
      "context": context.encode(),
      "windows": [
        {"answer_heads": each.head_mask, "context_starts": each.context_starts, "context_ends": each.context_ends}
        for each in found
      ],
    } | ({"no_answer": b""} if null else {})
    asked = np.concatenate([own[each.head_mask > 0] for each, own in zip(found, logits, strict=True)])
    text, log_p = head_predictor.answer(HEAD, example, asked)
    assert text == expected
    # With a likely [CLS], transformers considers one start, end and span less.
    assert null or np.exp(log_p) == pytest.approx(probability, rel=1e-6)
    withheld += not text
  assert (0.1 < withheld / len(questions) < 0.9) if null else not withheld
