"""Token offsets: ids of `encode`, with the characters of each token."""

import ast
import inspect

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
import seqio
from test_subwords import shared

from t2t import UserError
from t2t.data import vocabularies
from t2t.data.vocabularies import offsets

FILES = {"wordpiece": "bert_uncased/vocab.txt", "bpe": "gpt2/encoder.json", "sentencepiece": "t5_spiece/spiece.model"}


@pytest.fixture(scope="module", params=["bytes", *FILES])
def vocabulary(request):
  """Returns one vocabulary of each kind, with five sentinels."""
  spec = shared(FILES[request.param]) if request.param in FILES else "bytes"
  return vocabularies.load(spec, extra_ids=5)


def pieces(vocabulary, text):
  found = offsets.tokens_of(vocabulary, text)
  assert all(column.dtype == np.int32 for column in found)
  return [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]


def test_words_and_parts_of_words(vocabulary):
  """Offsets exclude the space before a word, which some vocabularies include in its token."""
  text = "Ann  lives in Paris."
  found = [piece for piece in pieces(vocabulary, text) if piece]
  words = list(text.replace(" ", "")) if isinstance(vocabulary, seqio.ByteVocabulary) else text[:-1].split()
  assert found[: len(words)] == words
  assert "".join(found) == text.replace(" ", "")


@pytest.mark.parametrize(
  ("text", "own"),
  [("Où est-il ?", "Où"), ("naïve café", "café"), ("日本語 x", "日本語"), ("a 😀 b", "😀"), ("ﬁn ①", "ﬁn")],
)
def test_offsets_count_characters(vocabulary, text, own):
  """Offsets count characters of the Python string, before normalization."""
  found, start = offsets.tokens_of(vocabulary, text), text.index(own)
  inside = (found.starts >= start) & (found.ends <= start + len(own)) & (found.ends > found.starts)
  assert (found.starts[inside].min(), found.ends[inside].max()) == (start, start + len(own))


def test_docstring_example():
  t5 = vocabularies.load(shared(FILES["sentencepiece"]))
  lines = inspect.getdoc(offsets.tokens_of).split("\n")
  expected = next(line for line in lines if line.startswith("Out:")).removeprefix("Out:")
  found = offsets.tokens_of(t5, "Où es-tu?")
  assert [column.tolist() for column in found] == list(ast.literal_eval(expected.strip()))


def test_sentinels_stand_where_they_are_spelled_out(vocabulary):
  """Sentinels are tokens in vocabularies that read them in text; for bytes they are letters."""
  text = "Thank you <extra_id_0> me to <extra_id_4> week"
  found = offsets.tokens_of(vocabulary, text)
  for number in (0, 4):
    (places,) = np.nonzero(found.ids == vocabularies.sentinel_ids(vocabulary, 5)[number])
    if isinstance(vocabulary, seqio.ByteVocabulary):
      assert not len(places)
      continue
    (place,) = places
    assert text[found.starts[place] : found.ends[place]] == f"<extra_id_{number}>"


# Difficult input: combining marks, ligatures, scripts, joiners, all kinds of spaces, special tokens.
_PARTS = "a|É|e\u0301|\u0301| |\xa0|\t|\n|ﬃ|½|日本|😀|\u200d|İ|ß|\x00|\ufeff|가|\u1100\u1161|\u3000|x's|...|[SEP]"
ODD = strategies.text(strategies.characters(exclude_categories=["Cs"]), max_size=12) | strategies.lists(
  strategies.sampled_from([*_PARTS.split("|"), "<extra_id_1>", " <extra_id_9>"]), max_size=10
).map("".join)


@hypothesis.given(ODD)
def test_any_text(vocabulary, text):
  """Ids are equal; ranges are inside the text, monotonic, and without surrounding white space."""
  found = offsets.tokens_of(vocabulary, text)
  assert found.ids.tolist() == list(vocabulary.encode(text))
  assert (found.starts >= 0).all() and (found.starts <= found.ends).all() and (found.ends <= len(text)).all()
  assert (np.diff(found.starts) >= 0).all() and (np.diff(found.ends) >= 0).all()
  for piece in pieces(vocabulary, text):
    assert piece == piece.strip()


def test_a_vocabulary_of_ones_own():
  """The message gives alternatives."""
  with pytest.raises(UserError, match="has no token offsets.*SentencePiece"):
    offsets.tokens_of(seqio.PassThroughVocabulary(5), "a")
