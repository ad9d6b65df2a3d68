"""Whole runs with character input: trained on words, resumed, embedded, and started with another vocabulary."""

import json

import numpy as np
import pytest
import test_array_batches
import toy

import t2t
from t2t import UserError
from t2t.__main__ import main
from t2t.checkpoints import pretrained
from t2t.contrib.recurrent import character_table, presets
from t2t.inference import batch_inference

WORDS = ["cat", "dog", "horse", "walks", "sleeps", "quietly", "naïve"]
SMALL = [
  *("--config.model.embed_dim=16", "--config.model.embedding_dim=8", "--config.model.recurrent_hidden=12"),
  *("--config.model.num_encoder_layers=2", "--config.model.vocab_size=128", "--config.train.batch_size=8"),
  *("--config.data.inputs_length=16", "--config.data.targets_length=16", "--config.data.mixture="),
  *("--config.optimizer.schedule=constant", "--config.optimizer.warmup_ratio=0.0", "--config.optimizer.warmup_steps=0"),
  *("--config.checkpoint.save_interval_steps=2", "--config.eval.every=4", "--config.data.num_streams=1"),
  "--config.model.dtype=float32",
]


def arguments(folder, *, steps, name, extra=()):
  files = [f"--config.data.files={folder / 'text.txt'}", f"--config.data.vocabulary={folder / 'words'}"]
  return [
    *("train", "--config", "tiny_elmo", "--workdir", str(folder / name)),
    *(*SMALL, *files, f"--config.train.steps={steps}", *extra),
  ]


def write_words(folder, words, name):
  """Writes a text of these words, and its vocabulary."""
  random = np.random.default_rng(0)
  (folder / f"{name}.txt").write_text("".join(f"{' '.join(random.choice(words, 9))}\n" for _ in range(60)))
  vocab = ["vocab", "train", "--type", "word", "--input", str(folder / f"{name}.txt"), "--size", "100"]
  folder_name = "words" if name == "text" else f"{name}_words"
  assert main([*vocab, "--output", str(folder / folder_name), "--min_count", "1"]) == 0


def encoder_batch():
  """Returns a batch of an encoder."""
  batch = toy.batch((8,) * 8, (6,) * 8, architecture="encoder_only")
  return {name: np.asarray(x) for name, x in batch.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("characters")
  write_words(folder, WORDS, "text")
  assert main(arguments(folder, steps=4, name="run")) == 0
  return folder


def params_of(path):
  """Returns the source of a run, and its parameters by path."""
  source = pretrained.read_source(str(path))
  params = pretrained.load(source, batch_inference.make_mesh(1)).params
  return source, {name: np.asarray(x) for name, x in toy.flat(params).items()}


@pytest.mark.exhaustive
def test_checkpoints_have_the_characters_of_the_vocabulary(folder):
  """Steps change the CNN and not the table."""
  source, params = params_of(folder / "run")
  expected = character_table.table(pretrained.vocabulary(source), rows=128, longest=20)
  np.testing.assert_array_equal(params["embed/characters"], expected)
  assert expected.any() and np.all(np.any(params["embed/cnn/kernels/width_2"], axis=0))
  records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
  losses = [row["eval/loss"] for row in records if "eval/loss" in row]
  assert losses and np.isfinite(losses).all()


@pytest.mark.exhaustive
def test_a_run_that_was_stopped_ends_alike(folder):
  """Every parameter, bit for bit."""
  assert main(arguments(folder, steps=2, name="stopped")) == 0
  assert main(arguments(folder, steps=4, name="stopped")) == 0
  whole, stopped = (params_of(folder / name)[1] for name in ("run", "stopped"))
  assert whole.keys() == stopped.keys()
  for path, x in whole.items():
    np.testing.assert_array_equal(x, stopped[path], err_msg=path)


@pytest.mark.exhaustive
def test_vectors_of_lines_are_written(folder):
  (folder / "lines.txt").write_text("cat walks\ndog sleeps quietly\n")
  output = folder / "vectors.npy"
  files = ["--input", str(folder / "lines.txt"), "--output", str(output), "--layer", "all"]
  assert main(["embed", "--checkpoint", str(folder / "run"), *files]) == 0
  vectors = np.load(output)
  assert vectors.shape == (2, 3, 16) and np.isfinite(vectors).all()
  np.testing.assert_allclose(vectors[:, 0, :8], vectors[:, 0, 8:], rtol=1e-6)  # one vector for both directions


@pytest.mark.exhaustive
def test_held_out_text_has_the_loss_of_training(folder):
  """`t2t eval` on the rows that training evaluated."""
  files = [f"--config.data.files={folder / 'text.txt'}", f"--config.data.vocabulary={folder / 'words'}"]
  number = 8 * t2t.config("tiny_elmo").eval.batches
  options = [*files, "--config.eval.method=loss", f"--config.eval.max_examples={number}"]
  where = ["--checkpoint", str(folder / "run"), "--workdir", str(folder / "eval")]
  assert main(["eval", "--config", "tiny_elmo", *where, *SMALL, *options]) == 0
  measured = json.loads((folder / "eval" / "results.json").read_text())["held_out"]["metrics"]
  records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
  (trained,) = [row["eval/loss"] for row in records if row["step"] == 4 and "eval/loss" in row]
  np.testing.assert_allclose(measured["loss"], trained, rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["infer", "eval"])
def test_predictions_from_both_sides_are_refused(folder, name, capsys):
  """Blanks and tasks; the error names the commands that work."""
  (folder / "blanks.txt").write_text("cat <extra_id_0>\n")
  files = ["--input", str(folder / "blanks.txt"), "--output", str(folder / "filled.jsonl")]
  options = files if name == "infer" else ["--workdir", str(folder / "tasks")]
  assert main([name, "--checkpoint", str(folder / "run"), *options]) == 2
  assert "fills no blanks and scores no texts. Run `t2t embed` for vectors" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_run_has_a_page(folder):
  assert main(["report", str(folder / "run"), "--output", str(folder / "page.html")]) == 0
  assert "<svg" in (folder / "page.html").read_text()


@pytest.mark.exhaustive
def test_a_new_vocabulary_has_vectors_from_its_characters(folder):
  """A classifier of other words: its table is of them, and a known word keeps its vector."""
  words = ["horse", "horses", "unheard"]
  write_words(folder, words, "task")
  rows = [f"horses {word}\t{('no', 'yes')[i % 2]}" for i, word in enumerate(words * 8)]
  (folder / "task.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
  options = [f"--config.init.checkpoint={folder / 'run'}", f"--config.data.files={folder / 'task.tsv'}"]
  options += ["--config.data.labels=auto", f"--config.data.vocabulary={folder / 'task_words'}"]
  options += [
    "--config.model.vocabulary_head=False",
    "--config.init.rename=embed,encoder",
    "--config.train.steps=1",
    "--config.train.batch_size=8",
  ]
  options += [
    "--config.optimizer.warmup_ratio=0.0",
    "--config.optimizer.warmup_steps=0",
    "--config.train.freeze=embed/",
  ]
  assert main(["train", "--config", "finetune", "--workdir", str(folder / "task"), *options]) == 0
  (old, before), (new, after) = params_of(folder / "run"), params_of(folder / "task")
  vocabulary = pretrained.vocabulary(new)
  expected = character_table.table(vocabulary, rows=128, longest=20)
  np.testing.assert_array_equal(after["embed/characters"], expected)
  row = lambda source, params: params["embed/characters"][pretrained.vocabulary(source).encode("horse")[0]]
  np.testing.assert_array_equal(row(old, before), row(new, after))
  np.testing.assert_array_equal(before["embed/cnn/kernels/width_3"], after["embed/cnn/kernels/width_3"])


@pytest.mark.exhaustive
def test_logits_of_another_vocabulary_are_not_taken(folder, capsys):
  """Rows of logits belong to ids."""
  write_words(folder, ["other", "words", "entirely", "here"], "other")
  extra = [f"--config.init.checkpoint={folder / 'run'}", f"--config.data.vocabulary={folder / 'other_words'}"]
  assert main(arguments(folder, steps=1, name="other", extra=extra)) == 2
  error = capsys.readouterr().err
  assert "ids have other tokens" in error and "(config.init.reinit=head)" in error


@pytest.mark.exhaustive
def test_a_run_without_a_vocabulary_is_refused(tmp_path):
  """Batches of a Python program have ids without texts."""
  fields = presets.tiny_elmo() | dict(vocab_size=128, embed_dim=16, embedding_dim=8, recurrent_hidden=12)
  changes = {f"model.{key}": value for key, value in fields.items()} | {"train.loss": "bilm", "train.z_loss": 0.0}
  changes |= {"optimizer.warmup_steps": 0, "optimizer.schedule": "constant"}
  config = test_array_batches.small("bert_base", **changes)
  with pytest.raises(UserError, match="reads the characters of tokens, but the vocabulary is unknown"):
    batches = lambda read=0: iter([])
    t2t.train(config, str(tmp_path), batches=batches, eval_batches=[encoder_batch()]).run()


REFUSED = {
  "hf": "no model of transformers that t2t writes matches this model",
  "word2vec": "has layers, so that a word's vector depends",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("to", REFUSED)
def test_other_formats_are_refused(folder, to, capsys):
  assert main(["convert", str(folder / "run"), "--to", to, str(folder / f"as_{to}")]) != 0
  error = capsys.readouterr().err
  assert REFUSED[to] in error, error
