"""Loading, checking and training vocabularies."""

import pathlib

import pytest
import sentencepiece

from t2t import UserError
from t2t.data import vocabularies

TOKENIZERS = pathlib.Path(__file__).parents[1].parent / "shared" / "data" / "tokenizers"
TEXT = [f"the quick brown fox number {i} jumps over {i * 7} lazy dogs in the garden" for i in range(300)]


def shared(name):
  path = TOKENIZERS / name
  if not path.exists():
    pytest.skip(f"{path} is not there")
  return str(path)


def trained(tmp_path, **options):
  """A SentencePiece model as some other trainer might have made it."""
  prefix = tmp_path / "other"
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT), model_prefix=str(prefix), vocab_size=60, minloglevel=2, **options
  )
  return f"{prefix}.model"


def test_sentinels_count_down_from_the_last_id():
  """<extra_id_0> is T5's 32,099, and text and ids agree on it."""
  vocabulary = vocabularies.load(shared("t5_spiece/spiece.model"), extra_ids=100)
  assert vocabulary.vocab_size == 32_100
  assert vocabularies.sentinel_ids(vocabulary, 3) == [32099, 32098, 32097]
  assert vocabulary.decode([32099]) == "<extra_id_0>" and vocabulary.encode("<extra_id_1>") == [32098]
  assert vocabulary.encode("Hello world") == [8774, 296]
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)


def test_bytes():
  vocabulary = vocabularies.load("bytes", extra_ids=100)
  assert vocabulary.encode("ab") == [100, 101]
  assert vocabularies.sentinel_ids(vocabulary, 1) == [358]


def test_bytes_alone_take_their_sentinels_from_the_last_ids():
  """ByT5 adds no ids: its 100 sentinels are the last byte ids, 258 and down."""
  vocabulary = vocabularies.load("bytes", extra_ids=0)
  assert vocabularies.num_sentinels(vocabulary) == 100
  assert vocabularies.sentinel_ids(vocabulary, 2) == [258, 257]


def test_more_sentinels_than_there_are():
  with pytest.raises(UserError, match="3 sentinels are needed, the vocabulary has 2"):
    vocabularies.sentinel_ids(vocabularies.load("bytes", extra_ids=2), 3)


def test_an_id_beyond_the_embedding():
  with pytest.raises(UserError, match="config.model.vocab_size=358 is too small.*358.*config.model.vocab_size=384"):
    vocabularies.check(vocabularies.load("bytes", extra_ids=100), 358)
  vocabularies.check(vocabularies.load("bytes", extra_ids=100), 359)


def test_files_that_are_no_vocabulary(tmp_path):
  with pytest.raises(UserError, match="nowhere.model: no such file"):
    vocabularies.load(str(tmp_path / "nowhere.model"))
  with pytest.raises(UserError, match="is a folder"):
    vocabularies.load(str(tmp_path))
  (tmp_path / "text.model").write_text("not a model")
  with pytest.raises(UserError, match="text.model: not a SentencePiece model"):
    vocabularies.load(str(tmp_path / "text.model"))
  with pytest.raises(UserError, match='config.data.vocabulary is empty: give "bytes"'):
    vocabularies.load("")


def test_a_model_with_sentinels_inside():
  """The trap: ids of its own sentinels, and ours behind them."""
  path = shared("nanodo_cc_all.32000.100extra_with_bos/sentencepiece.model")
  with pytest.raises(UserError, match="already contains 100 sentinel pieces"):
    vocabularies.load(path)


def test_a_model_without_pad_or_eos(tmp_path):
  with pytest.raises(UserError, match="has no pad piece; padding must be id 0"):
    vocabularies.load(trained(tmp_path, pad_id=-1))
  with pytest.raises(UserError, match="pads with id 3"):
    vocabularies.load(trained(tmp_path, pad_id=3))
  with pytest.raises(UserError, match="has no EOS piece"):
    vocabularies.load(trained(tmp_path, pad_id=0, unk_id=1, eos_id=-1, bos_id=-1))


def test_vocab_train(tmp_path, capsys):
  """The command writes a model that `load` takes, shows three lines, and does not overwrite."""
  (tmp_path / "text.txt").write_text("\n".join(TEXT))
  argv = ["train", "--input", str(tmp_path / "*.txt"), "--size", "80", "--output", str(tmp_path / "vocabulary")]
  assert vocabularies.main(argv) == 0
  shown = capsys.readouterr().out.splitlines()
  assert "spiece.model: 80 pieces" in shown[0] and len(shown) == 1 + 2 * 3
  vocabulary = vocabularies.load(str(tmp_path / "vocabulary" / "spiece.model"), extra_ids=10)
  assert vocabulary.vocab_size == 90 and vocabulary.decode(vocabulary.encode(TEXT[0])) == TEXT[0]
  assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.bos_id) == (0, 1, 2, -1)
  with pytest.raises(UserError, match="exists already.*--overwrite"):
    vocabularies.main(argv)
  with pytest.raises(UserError, match=r"--size 30000: too large for this text; the largest that works is \d+"):
    vocabularies.main([*argv, "--overwrite", "--size", "30000"])
  with pytest.raises(UserError, match="--input: no file matches"):
    vocabularies.main(["train", "--input", str(tmp_path / "*.jsonl"), "--output", str(tmp_path)])


def test_long_lines_are_cut_and_not_dropped():
  text = "word " * 3000
  lines = list(vocabularies._lines([text], 100))
  assert all(len(line.encode()) <= 4000 for line in lines) and " ".join(lines).split() == text.split()
