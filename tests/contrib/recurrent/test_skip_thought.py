"""Skip-Thought: the loss from plain encoder-decoders, and whole runs."""

import json

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import seqio
import toy

import t2t
from t2t import UserError, feature_spec
from t2t import __main__ as command
from t2t.configuration.loading import records
from t2t.contrib import data_checks
from t2t.contrib.recurrent import skip_thought
from t2t.data import vocabularies
from t2t.inference import predictor, prompt_features

CONFIG = toy.config(feed_forward="gru", block="recurrent", positions="none", num_encoder_layers=1, num_decoder_layers=1)
ONE = {"loss": 1.0}  # sums instead of means
FIRST, SECOND = [5, 7, 9, 1], [8, 6, 1]


def pair(first=FIRST, second=SECOND, length=9):
  padding = [0] * (length - len(first) - len(second))
  rows = {"input_tokens": [*first, *second, *padding], "segment_ids": [1] * len(first) + [2] * len(second) + padding}
  return {f"encoder_{name}": jnp.array([row]) for name, row in rows.items()}


def one_way(read, written, start):
  """Returns the features of inference, which scores a text after a prompt."""
  framing = prompt_features.PromptFraming(bos_id=start, eos_id=1, pad_id=0)
  rows, widths = [predictor.ScoredRow(read, written)], (len(read), len(written))
  features = predictor.scored_features(rows, widths, architecture="encoder_decoder", framing=framing)
  return jax.tree.map(jnp.asarray, features)


@pytest.mark.slow
@pytest.mark.parametrize("start", [3, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_the_loss_is_that_of_two_encoder_decoders(start):
  """Two models: the second sentence after the first, and the first before the second; each token counts once.

  They read what inference reads, from the vocabulary's first token on.
  """
  module = jax.jit(lambda: skip_thought.TwoDecoders(CONFIG, nnx.Rngs(0), start=start))()
  loss = skip_thought.SkipThought(toy.loss_config(z_loss=0.0))
  batch = jax.tree.map(lambda *rows: jnp.concatenate(rows), pair(), pair(second=[]))  # a row without a pair
  weights = loss.weights(batch)
  terms, metrics = jax.jit(lambda module: loss(module, batch, weights, key=None, train=True))(module)
  total = 0.0
  other = nnx.clone(module.model)
  other.decoder = module.previous
  plain = toy.loss(z_loss=0.0)
  for model, texts in ((module.model, (FIRST, SECOND)), (other, (SECOND, FIRST))):
    own = one_way(*texts, start)
    total += jax.jit(lambda model, own: plain(model, own, ONE, key=None, train=True)[0]["loss"])(model, own)
  assert weights["loss"] == 7
  np.testing.assert_allclose(terms["loss"], total / 7, rtol=1e-5)
  np.testing.assert_allclose(metrics["loss"].value(), total / 7, rtol=1e-5)
  np.testing.assert_allclose(loss.baselines([batch], 40)[0].loss, loss.baselines([pair()], 40)[0].loss, rtol=1e-6)


@pytest.mark.slow
def test_every_parameter_learns():
  """Both decoders, the encoder, the embedding and the logits have a gradient."""
  module = skip_thought.TwoDecoders(CONFIG, nnx.Rngs(0))
  loss, batch = skip_thought.SkipThought(toy.loss_config()), pair()
  graphdef, params = toy.split(module)

  def total(params):
    return loss(nnx.merge(graphdef, params), batch, ONE, key=None, train=True)[0]["loss"]

  gradients = toy.flat(jax.jit(jax.grad(total))(params))
  assert {path.split("/")[0] for path in gradients} == {"model", "previous"}
  assert [path for path, x in gradients.items() if not np.any(x)] == []


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory):
  """Writes a vocabulary whose BOS is 2."""
  prefix = tmp_path_factory.mktemp("pieces") / "spiece"
  options = dict(vocab_size=40, hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2)
  texts = iter([f"Line {i} of a text. It has {i * 7} words." for i in range(40)])
  sentencepiece.SentencePieceTrainer.train(sentence_iterator=texts, model_prefix=str(prefix), **options)
  return f"{prefix}.model"


def test_decoders_begin_as_at_inference(sentencepiece_file):
  """With the BOS of the run's vocabulary; a task that is registered with another first token is refused."""
  files = {"data.files": "text.txt", "data.mixture": "", "data.vocabulary": sentencepiece_file, "data.extra_ids": 0}
  loss = skip_thought.SkipThought.from_config(records(t2t.config("tiny_skip_thought", files)))
  vocabulary = vocabularies.load(sentencepiece_file, extra_ids=0)
  framing = prompt_features.framing(vocabulary)
  prompt = prompt_features.prompt_features([FIRST], 4, architecture="encoder_decoder", framing=framing)
  assert loss.start == loss.build(CONFIG, nnx.Rngs(0)).start == prompt["decoder_input_tokens"][0, 0] == 2
  source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=["train"])
  features = {name: seqio.Feature(vocabulary) for name in feature_spec.PAIRED}
  seqio.TaskRegistry.add("pairs_with_bos", source, preprocessors=[], output_features=features)
  changes = {"data.mixture": "pairs_with_bos", "data.task_modules": ()}
  run = records(t2t.config("tiny_skip_thought", changes))
  with pytest.raises(UserError, match="vocabulary begins texts with token 2, .* Set config.data.vocabulary"):
    data_checks.check((), run, where="config.data.mixture=pairs_with_bos")
  with_file = changes | {"data.vocabulary": sentencepiece_file, "data.extra_ids": 0}
  data_checks.check((), records(t2t.config("tiny_skip_thought", with_file)), where="")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"model.block": "transformer", "model.feed_forward": "dense"}, "skip_thought needs config.model.block=recurrent"),
    ({"data.pack": True}, "skip_thought reads one pair per row. Set config.data.pack=False"),
  ],
)
def test_settings_that_do_not_fit_are_errors(changes, message):
  """Before anything is built."""
  with pytest.raises(UserError, match=message):
    skip_thought.SkipThought.from_config(records(t2t.config("tiny_skip_thought", changes)))


# ---- Whole runs ------------------------------------------------------------------------------------------------------

SMALL = {"model.vocab_size": 384, "model.embed_dim": 16, "model.embedding_dim": 8, "model.output_embedding_dim": 16}
SMALL |= {"model.dtype": "float32", "data.vocabulary": "bytes", "data.mixture": "", "data.num_streams": 1}
SMALL |= {"data.inputs_length": 64, "data.targets_length": 16, "train.batch_size": 8, "train.steps": 2}
SMALL |= {"optimizer.schedule": "constant", "optimizer.warmup_ratio": 0.0, "optimizer.warmup_steps": 0}
SMALL |= {"eval.batches": 1, "eval.every": 2, "checkpoint.save_interval_steps": 1}


@pytest.fixture
def folder(tmp_path):
  documents = (" ".join(f"Line {j} of {i}. It has {i * j} words." for j in range(9)) for i in range(60))
  (tmp_path / "text.txt").write_text("\n".join(documents))
  return tmp_path


def run(folder, name, **changes):
  config = t2t.config("tiny_skip_thought", SMALL | {"data.files": f"{folder}/text.txt"} | changes)
  return list(t2t.train(config, str(folder / name)))


@pytest.mark.exhaustive
def test_a_run_gives_vectors_and_next_sentences(folder):
  """The vector of `t2t embed --pool last` is the encoder's last state; `t2t infer` writes with the kept decoder."""
  rows = run(folder, "run")
  assert np.isfinite([row["train/loss"] for row in rows if "train/loss" in row]).all()
  (folder / "in.txt").write_text("This is sentence 3.\nIt has words.\n")
  files = ["--checkpoint", str(folder / "run"), "--input", str(folder / "in.txt"), "--output"]
  assert command.main(["embed", *files, str(folder / "out.npy"), "--pool", "last"]) == 0
  vectors = np.load(folder / "out.npy")
  assert vectors.shape == (2, 16) and np.all(np.abs(vectors) < 1) and np.any(vectors[0] != vectors[1])
  assert command.main(["infer", *files, str(folder / "out.jsonl"), "--max_length", "4"]) == 0
  assert len([json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]) == 2


@pytest.mark.exhaustive
def test_a_resumed_run_equals_an_uninterrupted_one(folder):
  """Losses of the steps after the restart, bit for bit."""
  whole = run(folder, "whole", **{"train.steps": 4})
  run(folder, "stopped")
  rest = run(folder, "stopped", **{"train.steps": 4})
  losses, resumed = ({row["step"]: row["train/loss"] for row in rows if "train/loss" in row} for rows in (whole, rest))
  assert resumed == {step: losses[step] for step in (3, 4)}


@pytest.mark.exhaustive
def test_examples_without_pairs_are_errors(folder):
  """Another objective gives no neighbouring sentences."""
  with pytest.raises(UserError, match="loss=skip_thought compares pairs of texts, but the examples are not pairs"):
    run(folder, "run", **{"data.objective": "prefix_lm"})
