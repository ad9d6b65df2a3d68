"""`t2t neighbours` and `t2t vectors`: search, similarity, bitext retrieval and words in context."""

import functools
import json

from flax import nnx
import jax
import numpy as np
import pytest
import scipy.stats
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.data.head_examples import Framing
from t2t.data.vocabularies import offsets
from t2t.evaluation import intervals, vectors
from t2t.evaluation.vectors import bitext, encoding, nearest, neighbours, words
from t2t.inference import embedding_files, jsonl_io

RANDOM = np.random.default_rng(3)
ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
LINES = [
  "the quick fox",
  "",
  "a lazy dog jumps",
  "seven wizards, a fox and a box",
  "naïve fox 校服",
  "dire " * 20 + "fox",
]


# ---- Search ----------------------------------------------------------------------------------------------------------


def of_integers(*shape):
  """Returns small integers, whose products are exact and often equal."""
  return RANDOM.integers(-2, 3, shape).astype(np.float32)


@pytest.mark.parametrize("block", [1, 3, 7, 4_096])
def test_the_exact_search_equals_a_sorted_matrix(block, monkeypatch):
  """Equal scores are in the order of the candidates, in blocks of any size, and however they are added."""
  monkeypatch.setattr(nearest, "_BLOCK", block)
  queries, candidates = of_integers(5, 6), of_integers(50, 6)
  search = nearest.ExactSearch(queries, 9)
  for part in np.split(candidates, [4, 20, 21]):
    search.add(part)
  scores, numbers = search.result()
  products = queries @ candidates.T
  order = np.argsort(-products, axis=1, kind="stable")[:, :9]
  np.testing.assert_array_equal(numbers, order)
  np.testing.assert_array_equal(scores, np.take_along_axis(products, order, axis=1))
  assert nearest.nearest(queries, candidates[:4], 9)[1].shape == (5, 4)


def test_faiss_finds_the_same_neighbours():
  """Scores are equal up to rounding, and neighbours up to ties; fewer candidates than neighbours are all returned."""
  pytest.importorskip("faiss", reason="faiss is an extra: pip install 't2t-jax[faiss]'")
  queries, candidates = (encoding.unit(RANDOM.normal(size=shape)) for shape in ((7, 12), (300, 12)))
  searches = [nearest.SEARCHES[name](queries, 10) for name in ("exact", "faiss")]
  for search in searches:
    search.add(candidates[:100])
    search.add(candidates[100:])
  (scores, numbers), (faiss_scores, faiss_numbers) = (search.result() for search in searches)
  np.testing.assert_allclose(faiss_scores, scores, atol=1e-6)
  of_faiss = np.take_along_axis(queries @ candidates.T, faiss_numbers, axis=1)
  np.testing.assert_allclose(of_faiss, np.take_along_axis(queries @ candidates.T, numbers, axis=1), atol=1e-6)
  few = nearest.FaissSearch(queries, 10)
  few.add(candidates[:3])
  assert sorted(few.result()[1][0].tolist()) == [0, 1, 2]


def test_cosines_are_products_of_unit_vectors():
  x = np.array([[3.0, 4.0], [1e-30, 0.0], [0.0, 0.0]], np.float32)
  np.testing.assert_allclose(encoding.unit(x), [[0.6, 0.8], [1, 0], [0, 0]])


# ---- Words -----------------------------------------------------------------------------------------------------------


def test_marks_and_places():
  assert words.marked("Kids [[play]] outside", "x") == ("Kids play outside", (5, 9))
  assert words.marked("[[ New York ]]!", "x") == (" New York !", (1, 9))
  assert words.marked("no marks", "x") == ("no marks", None)
  assert words.place("Play", "They play, replaying it", "x") == (5, 9)
  assert words.of_text("Ann, 58, saw Rome.") == [(0, 3), (5, 7), (9, 12), (13, 17)]
  long = "It was late, and after the long day kids play outside."
  assert neighbours.shown(long, (41, 45)) == "…the long day kids [[play]] outside."


@pytest.mark.parametrize(
  ("function", "message"),
  [
    (lambda: words.marked("a [[b", "--query"), r"^--query: 'a \[\[b' must have one"),
    (lambda: words.marked("a ]]b[[", "x"), "must have one"),
    (lambda: words.marked("[[a]] [[b]]", "x"), "must have one"),
    (lambda: words.marked("a [[ ]] b", "x"), "no word between them"),
    (
      lambda: words.place("play", "They replay it", "FILE a, line 2"),
      "^FILE a, line 2: the word 'play' does not occur",
    ),
    (lambda: words.place("a", "a b a", "x"), r"occurs 2 times in 'a b a'. Mark one of them: \[\[a\]\]"),
    (lambda: neighbours.queries_of([("a [[b]]", "x"), ("c", "--queries: q.txt, line 2")]), "line 2: 'c' has no marked"),
    (lambda: neighbours.queries_of([(" ", "--query")]), "^--query: an empty text has no vector"),
  ],
)
def test_bad_marks(function, message):
  with pytest.raises(UserError, match=message):
    function()


def encoder(architecture, *, batch_size=32, longest=48):
  source = pretrained.read_source(str(trained.workdir(architecture)))
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  return encoding.TextEncoder(source, mesh, pool="mean", layer="all", longest=longest, batch_size=batch_size)


@functools.cache
def loaded(architecture):
  source = pretrained.read_source(str(trained.workdir(architecture)))
  return pretrained.load(source, sharding.make_mesh({"data": 1}, devices=jax.devices()[:1]))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_word_has_the_mean_of_its_tokens(architecture):
  """All layers, in batches of any size; a word that truncation removes is left out."""
  texts = [encoding.Sentence(line, words.of_text(line)) for line in LINES if line]
  of_model = encoder(architecture, batch_size=4)
  encoded = [of_model.encode(text) for text in texts]
  word_vectors = of_model.vectors(loaded(architecture).params, encoded)
  source = pretrained.read_source(str(trained.workdir(architecture)))
  vocabulary = pretrained.vocabulary(source)
  framing = Framing.of(vocabulary, architecture)
  model = nnx.merge(loaded(architecture).graphdef, loaded(architecture).params)
  side, room, expected = model.architecture.answers, 48 - framing.size(1), []
  tokens = [offsets.tokens_of(vocabulary, text.text) for text in texts]
  rows = [[*framing.begin, *x.ids[:room], *framing.end] for x in tokens]
  ids, real = (
    np.array([[*row, *[0] * (48 - len(row))] for row in of_rows])
    for of_rows in (rows, [[1] * len(row) for row in rows])
  )
  batch = {f"{side}_input_tokens": ids, f"{side}_segment_ids": real}
  batch |= {f"{side}_{name}": x for name, x in (("token_types", 0 * ids), ("causal_attention", real))}
  states = np.asarray(jax.jit(lambda batch: model.states(batch, every_layer=True))(batch))
  for number, (text, x) in enumerate(zip(texts, tokens, strict=True)):
    for start, end in text.words:
      # A space has an empty range at the character behind it.
      inside = [i for i, first in enumerate(x.starts) if start <= first < min(end, x.ends[i])]
      if inside[-1] < room:
        expected.append(states[:, number, [len(framing.begin) + i for i in inside]].mean(axis=1))
  np.testing.assert_allclose(word_vectors, np.stack(expected), atol=1e-5)
  assert len(encoded[-1].read) == 9 and encoded[-1].cut > 0 and len(texts[-1].words) == 21
  with pytest.raises(UserError, match="^x: the word 'fox' is not within the 48 tokens that the model reads"):
    of_model.encode_whole(encoding.Sentence(LINES[-1], ((100, 103),), "x"))


@pytest.mark.exhaustive
def test_an_encoded_sentence_is_that_of_its_words():
  """Sentences and words have the same special tokens, in any architecture."""
  for architecture in ARCHITECTURES:
    of_model = encoder(architecture)
    for line in LINES[2:]:
      sentence, of_words = of_model.encode(encoding.Sentence(line)), of_model.encode(encoding.Sentence(line, ((0, 1),)))
      assert sentence.example["inputs"] == of_words.example["inputs"] and sentence.cut == of_words.cut


# ---- Similarity and bitext -------------------------------------------------------------------------------------------


def test_correlations_and_intervals_are_those_of_scipy(tmp_path):
  """Both formats of STS-B; quotes are letters, and ranks of equal scores are averaged."""
  scores, x = RANDOM.integers(0, 6, 40), RANDOM.normal(size=(80, 5)).astype(np.float32)
  glue = ["index\tsentence1\tsentence2\tscore", *(f'{i}\ta "{i}\tb\t{score}' for i, score in enumerate(scores))]
  (tmp_path / "dev.tsv").write_text("\n".join(glue) + "\n")
  (tmp_path / "sts-dev.csv").write_text("".join(f'm\tf\ty\t{i}\t{s}\ta "{i}\tb\tmore\n' for i, s in enumerate(scores)))
  one, other = (
    vectors.read("sts", [str(tmp_path / name)], vectors.VectorOptions()) for name in ("dev.tsv", "sts-dev.csv")
  )
  assert [text.text for text in one.texts] == [text.text for text in other.texts] and one.texts[2].text == 'a "1'
  (result,) = one.results(x)
  assert result.metrics == other.results(x)[0].metrics
  cosines = np.array([a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x[::2], x[1::2], strict=True)])
  pearson = lambda a, b, axis: 100 * scipy.stats.pearsonr(a, b, axis=axis).statistic
  spearman = lambda a, b, axis: pearson(*(scipy.stats.rankdata(x, axis=axis) for x in (a, b)), axis)
  for name, function, expected in (
    ("spearman", spearman, scipy.stats.spearmanr(scores, cosines).statistic),
    ("pearson", pearson, scipy.stats.pearsonr(scores, cosines).statistic),
  ):
    assert result.metrics[f"{name}_correlation"] == pytest.approx(100 * expected)
    expected = scipy.stats.bootstrap(
      (scores, cosines),
      function,
      paired=True,
      vectorized=True,
      n_resamples=intervals.RESAMPLES,
      method="percentile",
      random_state=np.random.default_rng(intervals.SEED),
    ).confidence_interval
    interval = result.intervals[f"{name}_correlation"]
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high)) and interval.units == 40


def by_hand(queries, candidates, margin):
  """Returns the score of each pair by the formulas of Artetxe & Schwenk (2019), a pair at a time."""
  cosine = lambda a, b: float(a @ b / np.sqrt((a @ a) * (b @ b)))
  scores = np.zeros((len(queries), len(candidates)))
  for i, x in enumerate(queries):
    for j, y in enumerate(candidates):
      near = [sorted((cosine(a, b) for b in others), reverse=True)[:4] for a, others in ((x, candidates), (y, queries))]
      mean = sum(sum(values) / (2 * len(values)) for values in near)
      scores[i, j] = {"absolute": cosine(x, y), "distance": cosine(x, y) - mean, "ratio": cosine(x, y) / mean}[margin]
  return scores


@pytest.mark.parametrize("margin", bitext.MARGINS)
def test_the_retrieved_sentence_has_the_highest_margin(margin, monkeypatch):
  monkeypatch.setattr(bitext, "_BLOCK", 5)
  queries = RANDOM.normal(size=(12, 6)) + 1.0
  candidates = queries + 0.9 * RANDOM.normal(size=(12, 6))
  retrieved = bitext.retrieve(encoding.unit(queries), encoding.unit(candidates), margin=margin)
  scores = by_hand(queries, candidates, margin)
  assert [best.tolist() for best, _ in retrieved] == [[index] for index in scores.argmax(axis=1)]
  np.testing.assert_allclose([score for _, score in retrieved], scores.max(axis=1), rtol=1e-5)


def test_margins_choose_differently():
  """A candidate that is near to every query loses by its margin."""
  queries, candidates = np.eye(3) + 0.3, np.array([[1.6, 0.3, 0.3], [0.3, 1.6, 0.3], [1.0, 1.0, 1.0]])
  best = lambda margin: [
    x.tolist() for x, _ in bitext.retrieve(encoding.unit(queries), encoding.unit(candidates), margin=margin)
  ]
  assert best("absolute") == [[0], [1], [2]]
  with pytest.raises(UserError, match="is not positive. Use --margin distance"):
    bitext.retrieve(encoding.unit(queries), encoding.unit(-candidates), margin="ratio")


def test_accuracy_of_both_directions(tmp_path):
  """Two equal translations tie, and each counts a half; the interval is the exact one of scipy."""
  folder = tmp_path / "v1"
  folder.mkdir()
  for name, sentences in (("fra", "abcd"), ("eng", "wxyz")):
    (folder / f"tatoeba.fra-eng.{name}").write_text("".join(f"{x}\n" for x in sentences))
  evaluation = vectors.read("bitext", [str(folder)], vectors.VectorOptions())
  sides = np.eye(4), np.eye(4)[[0, 0, 2, 1]]
  to_eng, to_fra = evaluation.results(np.concatenate(sides).astype(np.float32))
  assert [text.text for text in evaluation.texts] == [*"abcdwxyz"]
  assert (to_eng.task, to_eng.split, to_fra.split) == ("bitext_fra-eng", "fra_to_eng", "eng_to_fra")
  # a: w and x tie; b: z is nearest; c: y; d: all tie at 0.
  assert to_eng.metrics["accuracy"] == pytest.approx(100 * (0.5 + 0 + 1 + 0.25) / 4) and to_eng.tied == 2
  assert to_fra.metrics["accuracy"] == pytest.approx(50.0) and to_fra.tied == 0
  exact = scipy.stats.binomtest(2, 4).proportion_ci(0.95, method="exact")
  assert (to_fra.intervals["accuracy"].low, to_fra.intervals["accuracy"].high) == pytest.approx(
    (100 * exact.low, 100 * exact.high)
  )


@pytest.mark.parametrize(
  ("kind", "contents", "message"),
  [
    ("bitext", ["a\nb\n", "a\n"], r"1.txt has 2 lines, and .*2.txt has 1"),
    ("bitext", ["a\n\nc\n", "a\nb\nc\n"], "1.txt, line 2 is empty"),
    ("bitext", ["a\n"], "give two files with a sentence on each line, or a folder"),
    ("sts", ["sentence1\tsentence2\na\tb\n"], r"line 1: no column 'score' \(columns: sentence1, sentence2\)"),
    ("sts", ["m\tf\ty\t1\tfive\ta\tb\n"], "line 1: score is 'five', not a number"),
    ("sts", ["m\tf\ty\t1\tnan\ta\tb\n"], "line 1: score is 'nan', not a number"),
    ("sts", ["sentence1\tsentence2\tscore\na\t\t1\n"], "line 2: sentence2 is empty"),
    ("sts", ["sentence1\tsentence2\tscore\na\tb\n"], "line 2 has 2 fields, separated by tabs, but needs 3"),
    ("sts", ["a\n", "b\n"], "2 files, but sts reads one file"),
    ("sts", [" \n"], "is empty"),
    ("words", ["sentence1\tsentence2\na b\ta [[b]]\n"], "line 2, sentence1: neither a column 'word' nor marks"),
    ("words", ["word\tsentence1\tsentence2\nc\tc d\ta b\n"], "line 2, sentence2: the word 'c' does not occur in 'a b'"),
    ("words", ["sentence\nx\n"], "no column 'sentence1'"),
  ],
)
def test_bad_files(kind, contents, message, tmp_path):
  paths = [str(tmp_path / f"{number}.txt") for number in range(1, len(contents) + 1)]
  for path, content in zip(paths, contents, strict=True):
    with open(path, "w") as file:
      file.write(content)
  with pytest.raises(UserError, match=message):
    vectors.read(kind, paths, vectors.VectorOptions())


def test_words_of_a_table():
  """A second word may differ; marks have precedence."""
  from t2t.evaluation.vectors import files, word_pairs

  row = files.Row({"word": "play", "word2": "game", "sentence1": "They play.", "sentence2": "A game, a [[play]]."}, "x")
  one, other = (word_pairs._text(row, side) for side in (1, 2))
  assert word_pairs.shown(one) == "They [[play]]." and word_pairs.shown(other) == "A game, a [[play]]."
  row.fields["sentence2"] = "A game."
  assert word_pairs.shown(word_pairs._text(row, 2)) == "A [[game]]."


# ---- Commands --------------------------------------------------------------------------------------------------------


def widest(said):
  """Returns the width of the tables, which are followed by paths."""
  return max(len(line) for line in said.partition("compared  ")[0].partition("texts  ")[0].splitlines())


@pytest.fixture
def run(tmp_path, capsys):
  """Runs `t2t neighbours`, or another command; returns its exit code and output."""
  (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))

  def run(*others, name="neighbours", architecture="encoder_only"):
    argv = [name, *others, "--checkpoint", trained.workdir(architecture)]
    capsys.readouterr()
    code = command.main([str(x) for x in argv])
    said = capsys.readouterr()
    return code, said.out if code == 0 else said.err

  return run


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "encoder_decoder"])
def test_neighbours_of_sentences(architecture, run, tmp_path):
  """With and without an index, the order is that of the cosines of `t2t embed`; nothing is cut silently."""
  file, query = tmp_path / "in.txt", LINES[5].strip()
  options = ("--query", query, "--query", "a fox", file, "--top", "4", "--batch_size", "2")
  code, said = run(*options, "--output", tmp_path / "out.jsonl", architecture=architecture)
  assert code == 0 and widest(said) <= 80
  assert "compared       5 lines of" in said and "1 empty lines, 1 lines truncated to 48 tokens" in said
  assert "truncated      1 queries, to 48 tokens" in said
  rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert rows[0]["cut"] > 0 and "cut" not in rows[1] and rows[1]["query"] == "a fox"
  embedded = ("--input", file, "--output", tmp_path / "index.npy")
  assert run(*embedded, name="embed", architecture=architecture)[0] == 0
  x = np.load(tmp_path / "index.npy")
  x /= np.linalg.norm(x, axis=1, keepdims=True)
  scores = x @ x[5]
  assert [row["line"] for row in rows[0]["neighbours"]] == [1 + i for i in np.argsort(-np.nan_to_num(scores))[:4]]
  np.testing.assert_allclose([row["score"] for row in rows[0]["neighbours"]], np.sort(-scores)[:4] * -1, atol=1e-5)
  code, said = run(*options, "--index", tmp_path / "index.npy", "--output", "-", architecture=architecture)
  indexed = [json.loads(line) for line in said.splitlines()]
  for row, other in zip(rows, indexed, strict=True):
    assert [x["line"] for x in row["neighbours"]] == [x["line"] for x in other["neighbours"]]


@pytest.mark.exhaustive
def test_neighbours_of_words(run, tmp_path):
  """All words of all lines, or occurrences of the same word alone; the table marks them."""
  (tmp_path / "queries.txt").write_text("the quick [[Fox]]\nseven [[wizards]]\n")
  output = ("--output", tmp_path / "out.jsonl")
  code, said = run("--queries", tmp_path / "queries.txt", tmp_path / "in.txt", "--top", "99", "--layer", "0", *output)
  assert code == 0 and widest(said) <= 80 and "[[wizards]], a fox" in said
  rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert len(rows[0]["neighbours"]) == 3 + 4 + 7 + 3 + 9 and "26 words of" in said and "12 words not read" in said
  best = rows[1]["neighbours"][0]
  assert (best["word"], best["line"], best["start"], best["end"]) == ("wizards", 4, 6, 13)
  assert best["score"] == pytest.approx(1.0, abs=1e-5)  # layer 0 has positions, which are equal here
  code, said = run("--query", "the quick [[Fox]]", tmp_path / "in.txt", "--same_word", *output)
  (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert sorted(x["line"] for x in row["neighbours"]) == [1, 4, 5] and "compared       3 words of" in said


@pytest.mark.slow
@pytest.mark.exhaustive_from(6)
@pytest.mark.parametrize(
  ("others", "message"),
  [
    (("--query", "a [[b", "in.txt"), "--query: 'a [[b' must have one [[ and one ]]"),
    (("in.txt",), "--query is missing"),
    (("--query", "a", "none.txt"), "FILE: none.txt: no such file"),
    (("--query", "a", "--queries", "none.txt", "in.txt"), "--queries: none.txt: no such file"),
    (("--query", "a", "--layer", "all", "in.txt"), "--layer all: neighbours are those of one layer"),
    (("--query", "a", "--layer", "7", "in.txt"), "--layer 7: no such layer"),
    (("--query", "[[a]]", "--pool", "first", "in.txt"), "--pool first does not apply to words"),
    (("--query", "a", "--search", "exct", "in.txt"), "--search exct: unknown value. Give one of: exact, faiss"),
    (("--query", "a", "--same_word", "in.txt"), "--same_word: no query has a marked word"),
    (("--query", "a [[cat]]", "--same_word", "in.txt"), "FILE: in.txt: no line has the word 'cat'"),
    (("--query", "a [[fox]]", "--index", "index.npy", "in.txt"), "has vectors of lines, but the queries mark words"),
    (("--query", "a", "--index", "in.txt", "in.txt"), "--index in.txt is not a complete .npy file of `t2t embed`"),
    (("--query", "x " * 40 + "[[fox]]", "in.txt"), "the word 'fox' is not within the 48 tokens"),
    (("--query", "a", "in.txt", "--output", "out.txt"), "--output out.txt: unknown file type"),
  ],
)
def test_what_has_no_neighbours(others, message, run, tmp_path, monkeypatch):
  """Errors come before the model is loaded."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(pretrained, "load", None)
  code, said = run(*others)
  assert code == 2 and message in said


@pytest.mark.exhaustive
def test_the_index_of_another_model_is_refused(run, tmp_path, monkeypatch):
  """Another layer, checkpoint, text, or an incomplete file, before the model is loaded."""
  file, index = tmp_path / "in.txt", tmp_path / "index.npy"
  assert run("--input", file, "--output", index, name="embed")[0] == 0
  monkeypatch.setattr(pretrained, "load", None)
  ask = lambda *others, **how: run("--query", "a fox", "--index", index, *others, file, **how)
  assert "belongs to another model: layer 1 instead of 0" in ask("--layer", "0")[1]
  assert "belongs to another model: pool mean instead of last" in ask("--pool", "last")[1]
  code, said = ask(architecture="decoder_only")
  assert code == 2 and f"belongs to another model: checkpoint {trained.workdir('encoder_only')}" in said
  record = json.loads((tmp_path / "index.npy.run.json").read_text())
  file.write_text("other\n" * 6)
  assert f"belongs to other lines, those of {record['input']}" in ask()[1]
  content = index.read_bytes()
  index.write_bytes(content[:-4])
  assert "is not a complete .npy file" in ask()[1]


@pytest.mark.slow
def test_evaluations_are_compared(run, tmp_path):
  """The files of predictions are those of `t2t compare`; every layer has a row, and cosines of words are shown."""
  rows = [f"{LINES[i]}\t{LINES[j]}\t{score}" for i, j, score in ((0, 2, 1), (0, 4, 3.5), (2, 3, 2), (4, 5, 0))]
  (tmp_path / "sts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
  (tmp_path / "words.tsv").write_text(f"word\tsentence1\tsentence2\nfox\t{LINES[0]}\t{LINES[4]}\n")
  for name, layer in (("a", "all"), ("b", "1")):
    evaluate = ("sts", tmp_path / "sts.tsv", "--layer", layer, "--workdir", tmp_path / name)
    code, said = run(*evaluate, name="vectors")
    assert code == 0 and widest(said) <= 80 and "texts          8 (1 truncated to 48 tokens)" in said
  record = json.loads((tmp_path / "a" / "results.json").read_text())
  assert record.keys() == {"sts_layer_0.sts", "sts_layer_1.sts"} and record["sts_layer_1.sts"]["n"] == 4
  of_b = json.loads((tmp_path / "b" / "results.json").read_text())["sts.sts"]
  assert of_b["metrics"] == record["sts_layer_1.sts"]["metrics"] and of_b["intervals"].keys() == of_b["metrics"].keys()
  (tmp_path / "a" / "predictions" / "sts_layer_0.sts.jsonl").rename(tmp_path / "a" / "predictions" / "sts.sts.jsonl")
  assert command.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
  code, said = run("words", tmp_path / "words.tsv", "--workdir", tmp_path / "a", name="vectors")
  (item,) = map(json.loads, (tmp_path / "a" / "predictions" / "words.words.jsonl").read_text().splitlines())
  assert code == 0 and f"{item['value']['cosine']:.4f}" in said and "[[fox]]" in said
  assert item["inputs"] == "the quick [[fox]]\tnaïve [[fox]] 校服"


@pytest.mark.slow
@pytest.mark.exhaustive_from(3)
@pytest.mark.parametrize(
  ("others", "message"),
  [
    (("stss", "in.txt"), "KIND stss: unknown value. Give one of: sts, bitext, words; did you mean sts?"),
    (("bitext", "in.txt", "in.txt", "--margin", "rato"), "--margin rato: unknown value"),
    (("sts", "in.txt", "--margin", "ratio"), "--margin ratio applies to bitext alone"),
    (("words", "in.txt", "--pool", "last"), "--pool last: a word has the mean"),
    (("sts", "none.tsv"), "FILE none.tsv cannot be read"),
    (("sts", "in.txt", "--workdir", "in.txt"), "--workdir in.txt is a file"),
  ],
)
def test_what_cannot_be_evaluated(others, message, run, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  code, said = run(*others, name="vectors")
  assert code == 2 and message in said


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({}, ""),
    ({"checkpoint": "runs/b/checkpoints/2"}, "another model: checkpoint runs/b/checkpoints/2 instead of runs/a$"),
    ({"layer": "0"}, "another model: layer 0 instead of 1"),
    ({"task": "x"}, "another model: task x instead of None"),
    ({"texts": "0"}, "--index .*npy belongs to other lines, those of in.txt"),
    ({"lines": 2}, "belongs to other lines"),
  ],
)
def test_an_index_belongs_to_its_run(change, message, tmp_path):
  """The record of `t2t embed` names the checkpoint, the vectors and the lines."""
  lines = [jsonl_io.Line(number, text, {}) for number, text in enumerate(("a", "", "b"), 1)]
  total, digest = embedding_files.digest_of(lines)
  run = {"checkpoint": "runs/a", "inputs_length": 48, "pool": "mean", "layer": "1"}
  record = {**run, "input": "in.txt", "lines": total, "texts": digest, **change}
  np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
  (tmp_path / "x.npy.run.json").write_text(json.dumps(record))
  read = lambda: embedding_files.open_index(str(tmp_path / "x.npy"), run, lines, option="--index")
  if not message:
    assert read().shape == (3, 2)
    np.save(tmp_path / "x.npy", np.ones((3, 1, 2), np.float32))
    message = r"the shape \[3, 1, 2\], not \[3, embed\]"
  with pytest.raises(UserError, match=message.removesuffix("$")):
    read()


def test_a_corpus_needs_text():
  with pytest.raises(UserError, match="^FILE: x: all lines are empty"):
    neighbours.Corpus([jsonl_io.Line(1, "", {})], neighbours.queries_of([("a", "x")]), same_word=False, where="FILE: x")
