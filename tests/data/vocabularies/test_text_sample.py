import collections
import sys
import tracemalloc

import pytest

from t2t.commands import vocab
from t2t.data import vocabularies
from t2t.data.vocabularies import text_sample

TEXTS = [f"line {number}" for number in range(1_000)]


def test_without_a_limit_the_texts_come_back_in_order():
  sample = text_sample.draw(iter(TEXTS), most_lines=1_000)
  assert sample.texts == TEXTS and not sample.note


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_has_the_wanted_lines_in_order(seed):
  sample = text_sample.draw(iter(TEXTS), most_lines=100, seed=seed)
  assert len(sample.texts) == 100 == sample.lines and sample.texts == sorted(sample.texts, key=TEXTS.index)
  assert sample.note == ("100 of 1,000 lines of the text (10.0%), drawn at random; the limit is --max_sentences 100")
  assert sample == text_sample.draw(iter(TEXTS), most_lines=100, seed=seed)
  assert sample.texts != text_sample.draw(iter(TEXTS), most_lines=100, seed=seed + 1).texts


def test_every_text_has_the_same_probability():
  """Over 600 seeds each of 20 texts is drawn 150 times on average; 100 is beyond four standard deviations."""
  texts = [str(number) for number in range(20)]
  counts = collections.Counter()
  for seed in range(600):
    counts.update(text_sample.draw(texts, most_lines=5, seed=seed).texts)
  assert set(counts) == set(texts) and all(100 < count < 200 for count in counts.values())


def test_documents_count_by_their_lines():
  texts = ["one", "two\nlines", "\n".join(["many"] * 500)] * 10
  sample = text_sample.draw(texts, most_lines=40)
  assert sample.lines == sum(text.count("\n") + 1 for text in sample.texts) <= 40
  assert sample.all_texts == 30 and sample.all_lines == 5_030
  assert text_sample.draw(["many\nlines"], most_lines=1).texts == ["many\nlines"]
  assert text_sample.draw([], most_lines=1) == text_sample.Sample([], 0, 0, 0, "")


def test_memory_is_bounded():
  size = sys.getsizeof("x" * 1_000)
  tracemalloc.start()
  sample = text_sample.draw(("x" * 1_000 for _ in range(20_000)), most_lines=sys.maxsize, most_bytes=100 * size)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert len(sample.texts) == 100 and "GB of memory" in sample.limit
  assert peak < 300 * size


def test_a_vocabulary_has_words_of_all_files(tmp_path, capsys):
  """The first file alone has more lines than the sample."""
  for number, word in enumerate(("alpha", "omega")):
    (tmp_path / f"{number}.txt").write_text(f"{word} {word}s\n" * 500)
  argv = ["train", "--input", f"{tmp_path}/*.txt", "--size", "14", "--max_sentences", "100"]
  assert vocab.main([*argv, "--output", str(tmp_path / "vocabulary")]) == 0
  printed = capsys.readouterr().out
  assert "text        100 of 1,000 lines of the text (10.0%), drawn at random" in printed
  assert "unknown     0 of" in printed
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary"), extra_ids=0)
  assert set("alphaomega") <= set("".join(vocabularies.token_texts(vocabulary)))
