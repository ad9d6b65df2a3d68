"""Files of word vectors, nearest words, analogies and similarities; errors name file and line."""

import json

import hypothesis
from hypothesis import strategies
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from t2t import UserError
from t2t.commands import neighbours
from t2t.contrib.static import evaluation, word_tables, word_vectors

WORDS = ("king", "queen", "man", "woman", "apple")
# Royalty and sex are axes, so that king - man + woman is queen.
VECTORS = np.array([[3, 1, 0], [3, -1, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]], np.float32)


@pytest.fixture
def table():
  return word_vectors.WordVectors(WORDS, VECTORS, "toy")


@pytest.fixture
def path(tmp_path, table):
  word_vectors.write(table, tmp_path / "vectors.txt")
  return tmp_path / "vectors.txt"


def test_words_are_compared_by_the_cosine(table):
  best = word_vectors.nearest(table, table.unit_vector("King"), top=2, left_out=["king"])
  assert [word for word, _ in best] == ["queen", "man"]
  assert best[0][1] == pytest.approx(0.8) and best[1][1] == pytest.approx(10**-0.5)


def test_a_sum_of_words_answers_an_analogy(table):
  (terms,) = word_tables.expressions(["king - man", "+", "woman"])
  assert terms == [(1, "king"), (-1, "man"), (1, "woman")]
  query = word_vectors.combination(table, terms)
  assert word_vectors.nearest(table, query, top=1, left_out=[word for _, word in terms])[0][0] == "queen"
  assert word_tables.expressions(["cat", "dog"]) == [[(1, "cat")], [(1, "dog")]]
  for words in (["king", "-"], ["-", "king"], ["king", "man", "-", "woman"]):
    with pytest.raises(UserError, match="words and signs do not alternate"):
      word_tables.expressions(words)


def test_an_unknown_word_names_those_that_are_spelled_alike(table):
  with pytest.raises(UserError, match="'kingg' is not among the 5 words of toy. Words that are spelled alike: king"):
    table.unit_vector("kingg")


@hypothesis.given(
  arrays.arrays(np.float32, (2, 3), elements=strategies.floats(allow_nan=False, allow_infinity=False, width=32))
)
@hypothesis.settings(max_examples=30, deadline=None)
def test_a_written_file_is_read_back_exactly(tmp_path_factory, vectors):
  path = tmp_path_factory.mktemp("vectors") / "v.txt"
  word_vectors.write(word_vectors.WordVectors(("a", "Ärger"), vectors, "x"), path)
  back = word_vectors.read_text(path)
  assert back.words == ("a", "Ärger")
  np.testing.assert_array_equal(back.vectors, vectors)


def test_files_of_glove_have_no_first_line(tmp_path):
  path = tmp_path / "glove.txt"
  path.write_text("the 0.1 0.2 0.3\n. . . 1 2 3\n")
  back = word_vectors.read_text(path)
  assert back.words == ("the", ". . .")
  np.testing.assert_allclose(back.vectors[1], [1, 2, 3])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "is empty"),
    ("2 3\na 1 2 3\nb 1 2\n", "line 3: 'b 1 2' is not a word and 3 numbers"),
    ("2 2\na 1 2\n", "line 1: announces 2 words, but 1 follow"),
    ("a 1 2\nb 1 x\n", "line 2: 'b 1 x' is not a word and 2 numbers"),
    ("a 1 2\nb 1 inf\n", "line 2: the vector of 'b' is not finite"),
    ("word\n", "line 1: no vector follows"),
  ],
)
def test_a_bad_file_of_vectors_is_named(tmp_path, text, message):
  path = tmp_path / "v.txt"
  path.write_text(text)
  with pytest.raises(UserError, match=f"v.txt.*{message}"):
    word_vectors.read_text(path)


def test_words_with_spaces_are_not_written(tmp_path):
  with pytest.raises(UserError, match="'a b' is empty or contains a space"):
    word_vectors.write(word_vectors.WordVectors(("a b",), VECTORS[:1], "x"), tmp_path / "v.txt")
  assert not (tmp_path / "v.txt").exists()


# ---- Analogies and similarities --------------------------------------------------------------------------------------

ANALOGIES = ": family\nman king woman queen\nman woman king queen\nman king woman apple\n: other\nman king boy prince\n"


def test_analogies_are_counted_by_section(tmp_path, table):
  path = tmp_path / "questions.txt"
  path.write_text(ANALOGIES)
  results = evaluation.analogies(table, evaluation.read_analogies(path))
  assert results == [evaluation.Section("family", 2, 3, 0), evaluation.Section("other", 0, 0, 1)]
  total = evaluation.total(results)
  assert (total.right, total.answered, total.unknown) == (2, 3, 1)
  assert total.accuracy == pytest.approx(2 / 3)


def test_similarities_are_correlated_by_rank(tmp_path, table):
  pairs = "king queen 9\nking man 5\nman apple 1\nking zebra 3\n"
  for separator in (" ", "\t", ","):
    path = tmp_path / "pairs.txt"
    path.write_text(separator.join(("Word 1", "Word 2", "Human")) + "\n" if separator != " " else "# comment\n")
    path.write_text(path.read_text() + pairs.replace(" ", separator))
    result = evaluation.similarities(table, evaluation.read_similarities(path))
    assert (result.spearman, result.pairs, result.unknown) == (pytest.approx(1.0), 3, 1)
  with pytest.raises(UserError, match="both words of 0 of 1 pairs have vectors"):
    evaluation.similarities(table, [("a", "b", 1.0)])


def test_bad_lines_of_evaluations_are_named(tmp_path):
  path = tmp_path / "f.txt"
  path.write_text(": a\nman king woman queen\nman king woman\n")
  with pytest.raises(UserError, match="f.txt, line 3: an analogy has four words, but 'man king woman' has 3"):
    evaluation.read_analogies(path)
  path.write_text(": a\n")
  with pytest.raises(UserError, match="f.txt has no analogies"):
    evaluation.read_analogies(path)
  path.write_text("a b 1\na b c\n")
  with pytest.raises(UserError, match="f.txt, line 2: 'a b c' is not two words and a score"):
    evaluation.read_similarities(path)


# ---- The command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_tables(tmp_path, path, capsys):
  questions, pairs = tmp_path / "q.txt", tmp_path / "s.tsv"
  questions.write_text(ANALOGIES)
  pairs.write_text("king\tqueen\t9\nking\tman\t5\nman\tapple\t1\n")
  files = ["--analogies", str(questions), "--similarities", str(pairs)]
  neighbours.main(["--vectors", str(path), "king", "-", "man", "+", "woman", "--top", "1", *files])
  shown = capsys.readouterr().out
  assert "king - man + woman" in shown and "queen" in shown
  assert "66.67 %" in shown and "Spearman 100.00 % of 3 pairs" in shown
  neighbours.main(["--vectors", str(path), "king", "apple", "--top", "1", "--output", "-"])
  records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [(x["query"], x["neighbours"][0]["word"]) for x in records][0] == ("king", "queen")


def test_options_of_words_and_of_lines_exclude_each_other(path):
  for arguments, message in (
    (["--vectors", str(path)], "WORD is missing"),
    (["--vectors", str(path), "--query", "x", "king"], "--query does not apply with --vectors"),
    (["--checkpoint", "c", "--query", "x", "a.txt", "--analogies", "q"], "--analogies needs --vectors"),
    (["--checkpoint", "c", "--query", "x"], "FILE is missing"),
    (["--checkpoint", "c", "--query", "x", "a", "b"], "b: too many files"),
    (["--vectors", "none.txt", "king"], "--vectors none.txt: no such file or folder"),
  ):
    with pytest.raises(UserError, match=message):
      neighbours.main(arguments)
