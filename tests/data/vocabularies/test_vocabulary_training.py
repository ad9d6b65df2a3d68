"""Training of vocabularies, by function and by command."""

import json
import random
import re
import signal
import subprocess
import sys

import pytest

from t2t import UserError
from t2t.commands import vocab
from t2t.data import vocabularies
from t2t.data.vocabularies import training

TEXT = [f"the quick brown fox number {i} jumps over {i * 7} lazy dogs in the garden" for i in range(300)]


def argv_for(folder, *options):
  (folder / "text.txt").write_text("\n".join(TEXT))
  return ["train", "--input", str(folder / "*.txt"), "--output", str(folder / "vocabulary"), *options]


def test_sentencepiece(tmp_path, capsys):
  """The command writes a model that `load` reads, prints three lines, and does not overwrite."""
  argv = argv_for(tmp_path, "--size", "80")
  assert vocab.main(argv) == 0
  shown = capsys.readouterr().out.splitlines()
  assert "spiece.model: 80 pieces (<pad> 0, </s> 1, <unk> 2)" in shown[0] and max(map(len, shown[1:])) <= 80
  assert shown[3] == f"  {TEXT[0]}" and shown[4].startswith("    ▁")
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary" / "spiece.model"), extra_ids=10)
  assert vocabulary.vocab_size == 90 and vocabulary.decode(vocabulary.encode(TEXT[0])) == TEXT[0]
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.bos_id) == (0, 1, 2, -1)
  with pytest.raises(UserError, match="exists already. .*--overwrite"):
    vocab.main(argv)
  with pytest.raises(UserError, match=r"--size 30000: too large for this text; the largest that works is \d+"):
    vocab.main([*argv, "--overwrite", "--size", "30000"])
  with pytest.raises(UserError, match="--input: no file matches"):
    vocab.main(["train", "--input", str(tmp_path / "*.jsonl"), "--output", str(tmp_path)])


def test_every_letter_of_an_alphabet_has_a_piece(tmp_path, capsys):
  """Rare letters are covered; with lower coverage, the summary reports unknown ones."""
  argv = argv_for(tmp_path, "--size", "80")
  (tmp_path / "names.txt").write_text("Vienna\nKansas")
  assert vocab.main(argv) == 0
  shown = capsys.readouterr().out
  assert re.search(r"characters  39 in the text, one piece each \(--character_coverage 1\)", shown)
  assert re.search(r"unknown     0 of [\d,]+ tokens of the text \(0.00%\)", shown)
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary"), extra_ids=0)
  assert vocabulary.unk_id not in vocabulary.encode("Vienna Kansas")
  lower = ["--output", str(tmp_path / "lower"), "--character_coverage", "0.9995"]
  assert vocab.main([*argv, *lower]) == 0
  shown = capsys.readouterr().out
  assert "pieces for the 37 most frequent (--character_coverage 0.9995)" in shown
  assert re.search(r"unknown     2 of [\d,]+ tokens of the text \(0.01%\)", shown)


def test_coverage_follows_the_alphabet():
  """A small alphabet, as in the docstring, is covered completely; a large one to at least T5's coverage."""
  assert training.coverage_for({"a": 99_996, "V": 4}, size=100) == 1.0
  flat = {chr(i): 1 for i in range(4_000)}
  assert training.coverage_for(flat, size=32_000) == 0.9995
  with_tail = {chr(i): 1 if i >= 1_000 else 10_000 for i in range(4_000)}
  assert training.coverage_for(with_tail, size=32_000) == pytest.approx(1 - 3_000 / 10_003_000)
  assert training.coverage_for({chr(i): 10_000 if i < 50 else 1 for i in range(60)}, size=100) < 1.0


def test_byte_fallback(tmp_path, capsys):
  """Characters outside the training text become bytes, also in TensorFlow, and are restored."""
  argv = argv_for(tmp_path, "--size", "340", "--byte_fallback")
  assert vocab.main(argv) == 0
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary"), extra_ids=10)
  ids = vocabulary.encode("naïve 校服 😀")
  assert vocabulary.unk_id not in ids and vocabulary.decode(ids) == "naïve 校服 😀"
  assert vocabulary.encode_tf("naïve 校服 😀").numpy().tolist() == ids
  with pytest.raises(UserError, match=r"--size 200: too small, .* alone need \d+"):
    vocab.main([*argv, "--overwrite", "--size", "200"])


def test_wordpiece(tmp_path, capsys):
  argv = argv_for(tmp_path, "--type", "wordpiece", "--size", "120")
  assert vocab.main(argv) == 0
  shown = capsys.readouterr().out.splitlines()
  assert (
    "vocab.txt: 120 pieces ([PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4)" in shown[0]
    and max(map(len, shown[1:])) <= 80
  )
  assert shown[2] == f"  {TEXT[0]}" and "▁" not in "".join(shown)
  assert re.fullmatch(r"unknown     0 of [\d,]+ tokens of the text \(0.00%\)", shown[1])
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary"), extra_ids=10)
  assert vocabulary.vocab_size == 130 and vocabulary.decode(vocabulary.encode(TEXT[0])) == TEXT[0]
  assert vocabulary.encode("THE FÓX") == vocabulary.encode("the fox")
  with pytest.raises(UserError, match="exists already. .*--overwrite"):
    vocab.main(argv)
  with pytest.raises(UserError, match=r"--size 30000: too large for this text; the largest that works is \d+"):
    vocab.main([*argv, "--overwrite", "--size", "30000"])
  with pytest.raises(
    UserError, match=r"--size 10: too small, because special tokens and single characters alone are \d+"
  ):
    vocab.main([*argv, "--overwrite", "--size", "10"])


@pytest.mark.parametrize(
  ("text", "said"),
  [("The cat", "capitals of"), ("the café", "accents of"), ("The café", "capitals and accents of"), ("the cat", "")],
)
def test_what_wordpiece_drops_is_told(tmp_path, capsys, text, said):
  argv = argv_for(tmp_path, "--type", "wordpiece", "--size", "90")
  (tmp_path / "more.txt").write_text(f"{text}\n")
  assert vocab.main(argv) == 0
  shown = capsys.readouterr().out
  assert " ##" in shown and max(map(len, shown.splitlines()[1:])) <= 80
  found = [line for line in shown.splitlines() if line.startswith("case ")]
  assert found == ([f"case        {said} the text are dropped; --cased keeps them"] if said else [])
  assert vocab.main([*argv, "--cased", "--overwrite"]) == 0
  assert "case   " not in capsys.readouterr().out


def test_cased_wordpiece(tmp_path):
  path = training.train_wordpiece(["The cat saw The dog"] * 5, size=30, output_dir=tmp_path, cased=True)
  vocabulary = vocabularies.load(str(path), extra_ids=0)
  assert vocabulary.decode(vocabulary.encode("The cat")) == "The cat"


def test_bpe(tmp_path, capsys):
  """Every byte has a token, so any text is restored; line breaks are learned."""
  argv = argv_for(tmp_path, "--type", "bpe", "--size", "300")
  assert vocab.main(argv) == 0
  shown = capsys.readouterr().out
  assert "tokenizer.json: 300 pieces (<pad> 0, </s> 1)" in shown and "unknown     nothing: every byte" in shown
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary"), extra_ids=10)
  assert (vocabulary.vocab_size, vocabulary.pad_id, vocabulary.eos_id) == (310, 0, 1)
  text = "the fox\n\n  naïve 校服 😀"
  assert vocabulary.decode(vocabulary.encode(text)) == text
  assert len(vocabulary.encode(TEXT[0])) < len(TEXT[0]) / 2
  with pytest.raises(UserError, match="--size 200: too small, .* alone are 258"):
    vocab.main([*argv, "--overwrite", "--size", "200"])


def test_the_same_text_gives_the_same_vocabulary(tmp_path):
  for function in (training.train_wordpiece, training.train_bpe):
    written = [function(TEXT, size=280, output_dir=tmp_path / str(i)).read_bytes() for i in range(3)]
    assert written[0] == written[1] == written[2]


def test_no_text(tmp_path):
  for function in (
    training.train_sentencepiece,
    training.train_wordpiece,
    training.train_bpe,
  ):
    with pytest.raises(UserError, match="--input: there is no text"):
      function([], size=300, output_dir=tmp_path)


def test_options_of_another_type(tmp_path):
  with pytest.raises(UserError, match="--cased applies only to --type wordpiece"):
    vocab.main(argv_for(tmp_path, "--cased"))
  with pytest.raises(UserError, match="--character_coverage applies only to --type sentencepiece, not to bpe"):
    vocab.main(argv_for(tmp_path, "--type", "bpe", "--character_coverage", "1.0"))
  with pytest.raises(UserError, match="--byte_fallback applies only to --type sentencepiece, not to wordpiece"):
    vocab.main(argv_for(tmp_path, "--type", "wordpiece", "--byte_fallback"))


def test_long_lines_are_cut_and_not_dropped():
  text = "word " * 3000
  lines = list(training.sentences([text]))
  assert all(len(line.encode()) <= 4000 for line in lines) and " ".join(lines).split() == text.split()


# ---- Extension -------------------------------------------------------------------------------------------------------

DOMAIN = [f"cardiomyopathy and endocarditis of patient {i}: cardiomyopathy, endocarditis" for i in range(100)]


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 90), ("sentencepiece", 80)])
def test_a_vocabulary_is_extended(tmp_path, capsys, kind, size):
  """Old ids keep their tokens; new tokens come from the text, which then has fewer tokens."""
  assert vocab.main(argv_for(tmp_path, "--size", str(size), "--type", kind)) == 0
  (tmp_path / "domain.txt").write_text("\n".join(DOMAIN))
  given, out = tmp_path / "vocabulary", tmp_path / "longer"
  argv = ["train", "--input", str(tmp_path / "domain.txt"), "--extend", str(given), "--output", str(out)]
  assert vocab.main([*argv, "--size", str(size + 12)]) == 0
  assert f"{size + 12} pieces" in capsys.readouterr().out
  old, new = (vocabularies.load(str(folder), extra_ids=0) for folder in (given, out))
  before, after = vocabularies.token_texts(old), vocabularies.token_texts(new)
  assert after[:size] == before and not set(before) & set(after[size:])
  assert all(piece.strip() in " ".join(DOMAIN) for piece in after[size:])
  assert len(new.encode(DOMAIN[0])) < 0.7 * len(old.encode(DOMAIN[0]))
  assert new.decode(new.encode(TEXT[0])) == old.decode(old.encode(TEXT[0]))
  with pytest.raises(UserError, match=f"--size {size}: .* already has {size} tokens; give a larger size"):
    vocab.main([*argv, "--size", str(size), "--overwrite"])
  with pytest.raises(UserError, match=r"--size 9000: too large for this text; the largest that works is \d+"):
    vocab.main([*argv, "--size", "9000", "--overwrite"])
  assert vocab.main([*argv, "--size", str(size + 12), "--type", kind, "--overwrite"]) == 0
  with pytest.raises(UserError, match=f"--type bpe: --extend .* is a {kind} vocabulary"):
    vocab.main([*argv, "--type", "bpe", "--overwrite"])
  with pytest.raises(UserError, match="--symbols <2en> does not apply with --extend"):
    vocab.main([*argv, "--symbols", "<2en>"])


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_all_lines_of_documents_extend_it(tmp_path, kind):
  """Lines are counted, not documents."""
  assert vocab.main(argv_for(tmp_path, "--size", "90", "--type", kind)) == 0
  first = "\n".join(["the text of the beginning of it"] * 60)
  records = [first] * 3 + ["\n".join(DOMAIN)] * 3
  (tmp_path / "domain.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in records))
  given, out = tmp_path / "vocabulary", tmp_path / "longer"
  argv = ["train", "--input", str(tmp_path / "domain.jsonl"), "--extend", str(given), "--output", str(out)]
  assert vocab.main([*argv, "--size", "110"]) == 0
  assert any("card" in piece for piece in vocabularies.token_texts(vocabularies.load(str(out), extra_ids=0))[90:])


def test_pieces_that_come_of_merges_are_not_extended(tmp_path):
  assert vocab.main(argv_for(tmp_path, "--size", "300", "--type", "bpe")) == 0
  with pytest.raises(UserError, match="--extend .*: only WordPiece .* and SentencePiece unigram models can"):
    vocab.main(argv_for(tmp_path, "--extend", str(tmp_path / "vocabulary"), "--size", "400", "--overwrite"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_training_at_once(number, tmp_path):
  """A signal ends training at once although SentencePiece ignores Python's handlers; the start was printed before."""
  draws = random.Random(0)
  with (tmp_path / "a.txt").open("w") as file:
    for _ in range(60_000):
      file.write(" ".join("".join(draws.choices("abcdefghijklmnop", k=7)) for _ in range(12)) + "\n")
  command = [sys.executable, "-m", "t2t", "vocab", "train", "--input", f"{tmp_path}/a.txt", "--size", "8000"]
  options = {"stderr": subprocess.PIPE, "text": True}
  with subprocess.Popen([*command, "--output", str(tmp_path / "v")], **options) as child:
    while "training a SentencePiece vocabulary of 8,000 tokens on" not in (line := child.stderr.readline()):
      assert line
    child.send_signal(number)
    assert child.wait() == -number
  assert not (tmp_path / "v" / "spiece.model").exists()
