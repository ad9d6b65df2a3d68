"""GloVe: its loss and gradients against the formula, its examples, and a whole run."""

import math

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf

from t2t import UserError, losses
from t2t.__main__ import main
from t2t.configuration.loading import load_config, records
from t2t.contrib.static import cooccurrence, glove, word_vectors
from t2t.data import objectives
from t2t.training import optimizers


def bits(counts):
  return np.asarray(counts, np.float32).view(np.int32)


def loss_of(**changed):
  run = records(load_config("glove")).with_(model=dict(vocab_size=8, embed_dim=3, init_scale=0.5), glove=changed)
  return losses.make(run), run.model


def batch_of():
  features = dict(
    input_tokens=[[3, 4, 5], [6, 3, 0]],
    target_tokens=[[4, 3, 3], [6, 7, 0]],
    loss_weights=[[1, 1, 1], [1, 1, 0]],
    segment_ids=[[1, 1, 1], [1, 1, 0]],
  )
  features["pair_counts"] = bits([[1.5, 100.0, 250.0], [0.1, 7.0, 0.0]])
  return {f"encoder_{name}": jnp.asarray(x, jnp.int32) for name, x in features.items()}


def test_loss_and_gradients_are_the_formula():
  loss, model = loss_of()
  batch = batch_of()
  module = loss.build(model, nnx.Rngs(0))
  for name, seed in (("bias", 1), ("context_bias", 2)):
    setattr(module, name, nnx.Param(jax.random.normal(jax.random.key(seed), (8,)), axes=("vocab",)))
  graphdef, params = nnx.split(module, graph=False)
  call = lambda params: loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=True)
  (value, metrics), gradients = jax.value_and_grad(lambda p: (call(p)[0]["glove"], call(p)[1]), has_aux=True)(params)
  gradients = nnx.to_pure_dict(gradients)
  w, c = np.asarray(module.words.embed.table[...]), np.asarray(module.context[...])
  b, d = np.asarray(module.bias[...]), np.asarray(module.context_bias[...])
  total, to_w, to_c, to_b, to_d = 0.0, *map(np.zeros_like, (w, c, b, d))
  pairs = [(3, 4, 1.5), (4, 3, 100.0), (5, 3, 250.0), (6, 6, 0.1), (3, 7, 7.0)]
  for i, j, x in pairs:
    difference = w[i] @ c[j] + b[i] + d[j] - math.log(x)
    weight = (x / 100) ** 0.75 if x < 100 else 1.0
    total += weight * difference**2
    to_w[i] += 2 * weight * difference * c[j]
    to_c[j] += 2 * weight * difference * w[i]
    to_b[i] += 2 * weight * difference
    to_d[j] += 2 * weight * difference
  assert float(value) == pytest.approx(total / 5, rel=1e-5) == pytest.approx(float(metrics["loss"].value()), rel=1e-5)
  found = gradients["words"]["embed"]["table"], gradients["context"], gradients["bias"], gradients["context_bias"]
  for gradient, expected in zip(found, (to_w, to_c, to_b, to_d), strict=True):
    np.testing.assert_allclose(gradient, expected / 5, atol=1e-5)


def test_adagrad_divides_by_all_gradients_so_far():
  settings = records(load_config("glove")).optimizer
  tx, _ = optimizers.make_optimizer(settings, 10)
  params, gradients = {"x": jnp.ones(2)}, [jnp.array([0.3, -1e-4]), jnp.array([0.4, 1e-4])]
  state, squares = tx.init(params), np.zeros(2)
  for gradient in gradients:
    updates, state = tx.update({"x": gradient}, state, params)
    squares += np.square(gradient)
    np.testing.assert_allclose(updates["x"], -0.05 * np.asarray(gradient) / np.sqrt(squares), rtol=1e-3)


def examples(lines, *, length=4):
  vocabulary = seqio.PassThroughVocabulary(10)
  task = seqio.Task(
    "pairs",
    source=seqio.FunctionDataSource(
      lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices({"text": lines}), splits=("train",)
    ),
    preprocessors=objectives.preprocessors("glove"),
    output_features=objectives.output_features("glove", vocabulary),
  )
  lengths = dict.fromkeys(("inputs", "targets", "loss_weights", "pair_counts"), length)
  dataset = task.get_dataset(lengths, "train", shuffle=False, seed=0)
  return [{key: x.tolist() for key, x in row.items()} for row in dataset.as_numpy_iterator()]


def test_lines_of_pairs_fill_rows():
  made = examples(["3 4 1.5 4 3 1.5 5 3 0.1", "6 6 2 3 7 9"])
  assert [row["inputs"] for row in made] == [[3, 4, 5, 6], [3]]
  assert [row["targets"] for row in made] == [[4, 3, 3, 6], [7]]
  assert made[0]["pair_counts"] == bits([1.5, 1.5, 0.1, 2]).tolist() and made[1]["loss_weights"] == [1]


@pytest.mark.parametrize("line", ["3 4", "3 40 1.0", "3 4 0.0", "3 4 -1"])
def test_other_lines_are_refused(line):
  with pytest.raises(tf.errors.InvalidArgumentError, match="no list of ROW COLUMN COUNT"):
    examples([line])


def test_settings_out_of_range_are_refused():
  for changed, message in (({"x_max": 0.0}, "config.glove.x_max=0.0"), ({"alpha": -1.0}, "config.glove.alpha=-1.0")):
    with pytest.raises(UserError, match=message):
      loss_of(**changed)
  run = records(load_config("glove"))
  with pytest.raises(UserError, match="Count them with `t2t vocab pairs`"):
    glove.check_objectives({"skip_gram"}, run, where="x")
  with pytest.raises(UserError, match="config.train.loss=cross_entropy does not read"):
    glove.check_objectives({"glove"}, run.with_(train={"loss": "cross_entropy"}), where="x")


@pytest.mark.slow
def test_a_run_fits_the_counts(tmp_path, capsys):
  """Counted, trained and queried by commands: words with equal neighbours have similar vectors."""
  animals, foods = "cat dog horse cow", "bread cheese soup rice"
  lines = [f"the {a} runs outside" for a in animals.split()] + [f"she eats {x} today" for x in foods.split()]
  (tmp_path / "text.txt").write_text("\n".join(lines * 20) + "\n")
  common = ["--input", str(tmp_path / "text.txt"), "--output"]
  words, counts = str(tmp_path / "words"), str(tmp_path / "counts")
  assert main(["vocab", "train", "--type", "word", *common, words]) == 0
  assert main(["vocab", "pairs", "--vocabulary", words, *common, counts, "--window", "3"]) == 0
  shards = sorted((tmp_path / "counts").glob("pairs-*.txt"))
  assert "files" in capsys.readouterr().out and len(shards[0].read_text().splitlines()[0].split()) <= 384
  options = ["embed_dim=8", "vocab_size=128", "init_scale=0.001"]
  arguments = [f"--config.model.{x}" for x in options] + [f"--config.data.files={counts}/pairs-*.txt"]
  arguments += [f"--config.data.eval_files={counts}/pairs-*.txt", f"--config.data.vocabulary={words}"]
  arguments += ["--config.data.inputs_length=5", "--config.train.batch_size=8", "--config.train.steps=150"]
  arguments += ["--config.eval.every=150", "--config.optimizer.learning_rate=0.1"]
  assert main(["train", "--config", "glove", "--workdir", str(tmp_path / "run"), *arguments]) == 0
  table = word_vectors.read(str(tmp_path / "run"))
  cosine = lambda first, second: float(table.unit_vector(first) @ table.unit_vector(second))
  among = [cosine(a, b) for a in animals.split() for b in animals.split() if a != b]
  between = [cosine(a, x) for a in animals.split() for x in foods.split()]
  assert min(among) > max(between)


def test_pairs_have_the_docstrings_weights():
  made = cooccurrence.summed(*vars(cooccurrence.pairs_of(np.array([3, 4, 3]), size=10, window=2)).values())
  assert dict(zip(made.pairs.tolist(), made.weights.tolist(), strict=True)) == {33: 1.0, 34: 2.0, 43: 2.0}
