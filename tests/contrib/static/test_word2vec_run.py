"""Whole runs of word vectors: trained, resumed, exported and queried by commands."""

import dataclasses
import pathlib
import random

import numpy as np
import pytest

from t2t import UserError
from t2t.__main__ import main
from t2t.checkpoints import pretrained
from t2t.contrib.static import word_vectors

ANIMALS, FOODS = ["cat", "dog", "horse", "cow", "sheep"], ["bread", "cheese", "apple", "soup", "rice"]


def write_text(path: pathlib.Path, number: int = 300) -> None:
  """Writes sentences in which animals share their context, and foods share another."""
  draw = random.Random(0)
  frames = (("the {} and the {} run in the green field", ANIMALS), ("she will eat {} or {} with a spoon", FOODS))
  lines = [frame.format(*draw.sample(words, 2)) for frame, words in (draw.choice(frames) for _ in range(number))]
  path.write_text("\n".join(lines) + "\n")


SMALL = [
  *("--config.model.embed_dim=8", "--config.model.vocab_size=128", "--config.data.inputs_length=32"),
  *("--config.train.batch_size=8", "--config.optimizer.learning_rate=0.05", "--config.data.subsampling=0.05"),
  *("--config.checkpoint.save_interval_steps=30", "--config.eval.every=30", "--config.data.num_streams=1"),
]


def arguments(folder, *, steps, name="run", config="word2vec_skip_gram", extra=()):
  files = [f"--config.data.files={folder / 'text.txt'}", f"--config.data.vocabulary={folder / 'words'}"]
  options = [*SMALL, *files, f"--config.train.steps={steps}", *extra]
  return ["train", "--config", config, "--workdir", str(folder / name), *options]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("word2vec")
  write_text(folder / "text.txt")
  vocab = ["vocab", "train", "--type", "word", "--input", str(folder / "text.txt"), "--size", "100"]
  assert main([*vocab, "--output", str(folder / "words"), "--min_count", "2"]) == 0
  assert main(arguments(folder, steps=60)) == 0
  return folder


@pytest.mark.slow
def test_a_run_learns_which_words_share_contexts(folder):
  table = word_vectors.read(str(folder / "run"))
  for words in (ANIMALS, FOODS):
    near = word_vectors.nearest(table, table.unit_vector(words[0]), top=4, left_out=words[:1])
    assert len({word for word, _ in near} & set(words)) >= 3


@pytest.mark.slow
def test_the_exported_file_has_the_vectors_of_the_run(folder, capsys):
  out = folder / "vectors.txt"
  assert main(["convert", "--from", "t2t", str(folder / "run"), "--to", "word2vec", str(out)]) == 0
  table, back = word_vectors.read(str(folder / "run")), word_vectors.read(str(out))
  assert back.words == table.words and "<unk>" not in back.words
  np.testing.assert_array_equal(back.vectors, table.vectors)
  assert out.read_text().startswith(f"{len(table.words)} 8\n")
  assert main(["neighbours", "--vectors", str(out), "cat", "--top", "3"]) == 0
  assert "cosine" in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", ["word2vec_skip_gram", "word2vec_cbow"])
def test_a_run_that_was_stopped_ends_alike(folder, config):
  whole, stopped = f"whole_{config}", f"stopped_{config}"
  # A schedule that does not depend on the end.
  extra = [f"--config.optimizer.{x}" for x in ("schedule=constant", "warmup_ratio=0.0", "warmup_steps=2")]
  assert main(arguments(folder, steps=24, name=whole, config=config, extra=extra)) == 0
  assert main(arguments(folder, steps=10, name=stopped, config=config, extra=extra)) == 0
  assert main(arguments(folder, steps=24, name=stopped, config=config, extra=extra)) == 0
  first, second = (word_vectors.read(str(folder / name)).vectors for name in (whole, stopped))
  np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_other_runs_have_no_static_vectors(tmp_path, folder, monkeypatch):
  source = pretrained.read_source(str(folder / "run"))
  layered = dataclasses.replace(source, model=dataclasses.replace(source.model, block="transformer"))
  monkeypatch.setattr(pretrained, "read_source", lambda *arguments, **options: layered)
  with pytest.raises(UserError, match="has layers, so that a word's vector depends on its context"):
    word_vectors.of_run(str(folder / "run"))
