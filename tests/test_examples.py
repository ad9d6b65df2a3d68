import numpy as np

from t2t import examples

WORDS = ["", "</s>", "the", "cat", "sat", "on", "mat", "dog", "a"]
FIRST, SECOND, THIRD = 20, 19, 18


class Words:
  """A vocabulary of whole words."""

  def decode(self, ids):
    return " ".join(WORDS[token] for token in ids)


def shown(inputs, prediction, targets, **how):
  ids = lambda words: np.array([word if isinstance(word, int) else WORDS.index(word) for word in words])
  return examples.fill_in_the_blank(
    ids(inputs),
    ids(prediction),
    ids(targets),
    vocabulary=Words(),
    sentinel_ids=[FIRST, SECOND, THIRD],
    eos_id=1,
    **how,
  )


def test_blanks_are_numbered():
  """The example of the docstring; EOS and padding are not shown."""
  assert shown(
    ["the", FIRST, "sat", "on", SECOND, "mat", "</s>", 0],
    [FIRST, "dog", SECOND, "the", "</s>", 0, 0],
    [FIRST, "cat", SECOND, "the", "</s>", 0, 0],
  ) == ("the [1] sat on [2] mat", "[1] dog  [2] the", "[1] cat  [2] the")


def test_only_the_first_blanks_are_shown():
  """With what stands around them, up to the next blank, and dots where text is left out."""
  inputs = ["a", "a", "the", FIRST, "sat", SECOND, "on", "the", THIRD, "mat"]
  prediction = [FIRST, "dog", SECOND, "a", THIRD, "cat"]
  given, predicted, _ = shown(inputs, prediction, prediction, num_blanks=2, context=1)
  assert given == "... the [1] sat [2] on ..."
  assert predicted == "[1] dog  [2] a"
  assert shown(inputs, prediction, prediction, num_blanks=2)[0] == "a a the [1] sat [2] on the ..."


def test_a_blank_without_an_answer_is_a_dash():
  """A prediction may skip a sentinel, or have tokens before its first."""
  _, predicted, truth = shown(["the", FIRST, SECOND], ["dog", SECOND, "on"], [FIRST, "cat", SECOND, "sat"])
  assert predicted == "[1] -  [2] on"
  assert truth == "[1] cat  [2] sat"


def test_text_without_blanks_is_shown_as_it_is():
  """There is nothing to fill in."""
  assert shown(["the", "cat"], ["a"], ["a"]) == ("the cat", "", "")
