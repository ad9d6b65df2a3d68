"""Fertility: statistics of `t2t vocab report`, and shares of languages in training text."""

import json

import numpy as np
import pytest
import seqio

from t2t import UserError
from t2t.commands import vocab
from t2t.data import vocabularies
from t2t.data.vocabularies import fertility, training


class Pieces(seqio.PassThroughVocabulary):
  """A vocabulary with one token for each word of "a"s, and for each other letter; "?" is unknown."""

  unk_id = 2

  def encode(self, text):
    return [i for word in text.split() for i in ([3] if set(word) == {"a"} else [2 if x == "?" else 4 for x in word])]


def test_numbers_by_hand():
  """aaa | b c | a | ? ?: six tokens in four words, two of which are split."""
  found = fertility.measure(Pieces(10), ["aaa bc", "a ??"])
  assert found == fertility.Division(lines=2, characters=10, words=4, pieces=6, unknown=2, split=2)
  assert (found.pieces_per_word, found.split_rate, found.unknown_rate) == (1.5, 0.5, 2 / 6)
  assert found.characters_per_piece == 10 / 6
  assert fertility.measure(Pieces(10), []).unknown_rate == 0.0


def test_bytes_by_hand():
  """Each byte is a token in every script, and none is unknown."""
  found = fertility.measure(vocabularies.load("bytes", extra_ids=0), ["ab é"])
  assert (found.pieces, found.characters, found.unknown, found.split) == (5, 4, 0, 2)


@pytest.fixture
def text(tmp_path):
  """A language with much text, and another with little text and a different alphabet."""
  for name, number, letters in (("en", 900, "abcdefghinorst"), ("sw", 30, "agikmnuwyzñž")):
    draw = np.random.default_rng(number)
    words = ["".join(draw.choice(list(letters), size)) for size in draw.integers(3, 9, 60)]
    (tmp_path / f"{name}.txt").write_text("\n".join(" ".join(draw.choice(words, 5)) for _ in range(number)))
  return tmp_path


def train(text, name, *options):
  argv = ["train", f"en={text}/en.txt", f"sw={text}/sw.txt", "--output", f"{text}/{name}", *options]
  assert vocab.main(argv) == 0
  return f"{text}/{name}"


def report(text, vocabulary, capsys, *options):
  capsys.readouterr()
  assert vocab.main(["report", "--vocabulary", vocabulary, f"en={text}/en.txt", f"sw={text}/sw.txt", *options]) == 0
  return capsys.readouterr().out


def test_a_lower_alpha_gives_a_small_language_more_pieces(text, capsys):
  """Conneau et al. 2020, section 5.2: the effect of the exponent; the table has 80 columns."""
  found = {}
  for alpha in ("1", "0"):
    vocabulary = train(text, alpha, "--alpha", alpha, "--size", "120")
    found[alpha] = json.loads(report(text, vocabulary, capsys, "--json"))["languages"]
  assert found["0"]["sw"]["pieces_per_word"] < found["1"]["sw"]["pieces_per_word"]
  assert found["0"]["en"]["pieces_per_word"] > found["1"]["en"]["pieces_per_word"]
  table = report(text, vocabulary, capsys)
  assert all(len(line) <= 80 for line in table.splitlines())
  row = next(line.split() for line in table.splitlines() if line.strip().startswith("sw"))
  assert row[1:4] == ["30", "150", f"{found['0']['sw']['pieces_per_word']:.2f}"] and row[-1] == "0.00%"


def test_unknown_characters_and_bytes(text, capsys):
  """A vocabulary of one language does not have the other's letters, except as bytes."""
  rates = {}
  for name, options in {"plain": (), "bytes": ("--byte_fallback",)}.items():
    size = "70" if name == "plain" else "330"
    argv = ["train", "--input", f"{text}/en.txt", "--size", size, "--output", f"{text}/{name}", *options]
    assert vocab.main(argv) == 0
    rates[name] = json.loads(report(text, f"{text}/{name}", capsys, "--json"))["languages"]["sw"]["unknown_rate"]
  assert rates["plain"] > 0.05 and rates["bytes"] == 0.0


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_every_type_takes_languages(text, kind, capsys):
  train(text, kind, "--type", kind, "--alpha", "0.3", "--size", "300" if kind == "bpe" else "130")
  out = capsys.readouterr().out
  assert "en          684 of 900 lines, 73.5% of all (--alpha 0.3)" in out
  assert "sw          246 of 30 lines, 26.5% of all" in out


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_documents_of_many_lines_are_of_all_languages(text, kind, capsys):
  """The limit of lines applies per language."""
  for name in ("en", "sw"):
    lines = (text / f"{name}.txt").read_text().splitlines() * 40
    records = (json.dumps({"text": "\n".join(lines[i : i + 20])}) for i in range(0, 1200, 20))
    (text / f"{name}.jsonl").write_text("\n".join(records))
  argv = ["train", f"en={text}/en.jsonl", f"sw={text}/sw.jsonl", "--output", f"{text}/{kind}", "--type", kind]
  assert vocab.main([*argv, "--size", "400" if kind == "bpe" else "130", "--max_sentences", "1000"]) == 0
  assert "sw          25 of 60 lines, 50.0% of all" in capsys.readouterr().out
  found = json.loads(report(text, f"{text}/{kind}", capsys, "--json"))["languages"]
  assert found["sw"]["unknown"] == 0 and found["sw"]["pieces_per_word"] < 3.5


def test_a_word_of_bpe_is_that_behind_a_space(tmp_path):
  """Most words follow a space; at the start of a text the same word has other tokens."""
  lines = ["a dog a dog a dog a dog"] * 50
  vocabulary = vocabularies.load(str(training.train_bpe(lines, size=262, output_dir=tmp_path)), extra_ids=0)
  found = fertility.measure(vocabulary, lines)
  assert found.pieces_per_word == 1.0 and found.split == 0


def test_a_tag_is_one_piece(text):
  """A tag is one token at the start of a text and inside; other vocabulary types refuse tags."""
  vocabulary = vocabularies.load(train(text, "tags", "--size", "120", "--symbols", "<2en>,<2sw>"), extra_ids=0)
  plain, tagged = vocabulary.encode("a bcd"), vocabulary.encode("<2sw> a bcd")
  assert len(tagged) <= len(plain) + 2 and tagged[-len(plain) :] == plain
  assert vocabulary.tokenizer.id_to_piece([i for i in tagged if i not in plain])[-1] == "<2sw>"
  with pytest.raises(UserError, match="--symbols applies only to --type sentencepiece, not to bpe"):
    train(text, "bpe", "--type", "bpe", "--symbols", "<2en>")


def test_the_docstrings_examples():
  assert training.quotas({"en": 10_000, "sw": 100}, alpha=0.5, most=1_100) == {"en": 1_000, "sw": 100}
  assert training.quotas({"en": 10_000, "sw": 100}, alpha=0.3, most=1_100) == {"en": 879, "sw": 221}
  assert "".join(training.drawn("abcd", size=4, quota=2)) == "bd"
  assert "".join(training.drawn("abcd", size=4, quota=6)) == "abbcdd"
  for quota in (1, 3, 7, 50):
    assert len(list(training.drawn("abcdefg", size=7, quota=quota))) == quota


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["train"], "--input is missing; give either --input GLOBS, or LANGUAGE=GLOBS for each language"),
    (
      ["train", "--input", "x", "en=x"],
      "--input and LANGUAGE=GLOBS exclude each other; give either --input GLOBS, or LANGUAGE=GLOBS",
    ),
    (["train", "--input", "x", "--alpha", "0.3"], "--alpha 0.3 needs files by language"),
    (["train", "en=x", "--alpha", "1.5"], "--alpha 1.5 is not between 0"),
    (["train", "en"], "en does not have the form LANGUAGE=GLOBS"),
    (["report", "--vocabulary=bytes", "en=a.txt", "en=b.txt"], "en=b.txt: the language en occurs twice"),
    (["report", "--vocabulary=bytes", "en=nothing.txt"], "en: no file matches nothing.txt"),
    (["report", "--vocabulary=bytes", "en=blank.txt"], "en: the files contain no text"),
    (["report", "--vocabulary=bytes", "en=x.jsonl"], "en: x.jsonl, line 1: no field 'text' .* --field"),
  ],
)
def test_what_cannot_be_divided(tmp_path, monkeypatch, argv, message):
  monkeypatch.chdir(tmp_path)
  for name, content in {"a.txt": "a", "b.txt": "b", "blank.txt": "\n", "x.jsonl": '{"body": "a"}'}.items():
    (tmp_path / name).write_text(content)
  with pytest.raises(UserError, match=message):
    vocab.main([*argv, "--output", "out"] if argv[0] == "train" else argv)
