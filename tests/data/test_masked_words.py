"""Templates as masked language modeling of their words."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t.data import vocabularies
from t2t.data.head_examples import masked_words
from t2t.data.special_tokens import Framing

FRAMING = Framing((300,), (301,), (301,))


def masked(length, **fields):
  """Returns the features of a filled template; bytes are tokens, with 3 as the first."""
  example = {"header": "", "blank_before": "ab", "blank_space": " ", "blank_word": "xyz", "blank_after": "cd"} | fields
  example = {name: tf.constant(text) for name, text in example.items()}
  vocabulary = seqio.ByteVocabulary()
  return {name: np.array(x) for name, x in masked_words.masked_word(example, vocabulary, FRAMING, length).items()}


@pytest.fixture(autouse=True)
def mask(monkeypatch):
  monkeypatch.setattr(vocabularies, "mask_id", lambda vocabulary: 302)


def test_each_token_of_the_word_is_masked():
  """Inputs and targets differ at the word alone, with its space, and only these positions count."""
  features = masked(20)
  at = [ord(x) + 3 for x in "ab xyzcd"]
  assert features["targets"].tolist() == [300, *at, 301]
  assert features["loss_weights"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]
  assert features["inputs"].tolist() == np.where(features["loss_weights"], 302, features["targets"]).tolist()
  assert features["has_answer"] and not masked(20, blank_word="<unk>")["has_answer"]


@pytest.mark.parametrize("length", range(7, 12))
def test_a_long_text_keeps_its_word_and_what_is_next_to_it(length):
  features = masked(length, blank_before="a" * 9 + "b", blank_after="c" + "d" * 9)
  assert len(features["inputs"]) == length and features["loss_weights"].sum() == 4
  start = int(features["loss_weights"].argmax())
  kept = "".join(chr(x - 3) for x in features["targets"][1:-1])
  assert kept[start - 1 : start + 3] == " xyz" and (start == 1 or kept[start - 2] == "b")
