"""Contrastive losses: values, gradients, meshes, text vectors, examples and whole runs."""

import dataclasses
import functools
import json

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
import toy

from t2t import UserError, sharding
from t2t.configuration.loading import load_config, override, records
from t2t.data import feature_converters, objectives, pipeline, registry, train_data
from t2t.data.objectives import sentence_pairs
from t2t.losses import contrastive
from t2t.losses.contrastive import ContrastiveConfig
from t2t.models import task_heads
from t2t.models.head_config import HeadConfig
from t2t.training import recipe
from t2t.training.train import train

pytestmark = pytest.mark.slow

HEAD = HeadConfig("text", 0, "vector")
LENGTH = 12


class Ids(seqio.PassThroughVocabulary):
  """Maps ids to themselves: 0 is padding, 1 EOS, 9 a full stop."""

  special_ids = frozenset({0, 1})
  bos_id = 0

  def __init__(self, **own):
    super().__init__(200, eos_id=1)
    self.__dict__ |= own

  def token_texts(self):
    return ["." if i == 9 else " x" for i in range(200)]


class Letters(Ids):
  """Encodes words of one letter: "a" is 5, "b" 6, ..."""

  def _encode_tf(self, text):
    return tf.strings.unicode_decode(tf.strings.regex_replace(text, " ", ""), "UTF-8") - ord("a") + 5


BERT = Ids(cls_id=101, sep_id=102)


def lists(dataset):
  return [{name: x.tolist() for name, x in each.items()} for each in dataset.as_numpy_iterator()]


def of_rows(**columns):
  ragged = {name: tf.ragged.constant(rows, tf.int32) for name, rows in columns.items()}
  return tf.data.Dataset.from_tensor_slices(ragged).map(lambda features: dict(features))


@functools.cache
def batch_of(number=8, *, architecture="encoder_only", same=False):
  """Returns rows of two texts of random tokens, equal in every third row or, with `same`, in all."""
  random, examples = np.random.default_rng(0), []
  for row in range(number):
    first, second = (random.integers(10, 40, random.integers(2, 6)) for _ in range(2))
    second = first if same or row % 3 == 0 else second
    texts = np.repeat([0, 1], [len(first), len(second)])
    examples.append({"inputs": np.concatenate([first, second]), "token_types": 0 * texts, "texts": texts})
  dataset = tf.data.Dataset.from_generator(
    lambda: iter(examples), output_signature=dict.fromkeys(sentence_pairs.FEATURES, tf.TensorSpec([None], tf.int32))
  )
  lengths = dict.fromkeys(sentence_pairs.FEATURES, LENGTH)
  rows = list(
    feature_converters.convert(dataset, architecture, lengths, vocabulary=Ids(), pack=False).as_numpy_iterator()
  )
  return {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}


def loss_of(kind="bert", head=HEAD, **fields):
  """Returns (parameters, batch) -> (loss, metrics) and gradient; parameters; loss; (parameters, batch) -> vectors."""
  config = dataclasses.replace(toy.KINDS[kind], heads=(head,))
  graphdef, params = toy.split(toy.model(config))
  loss = contrastive.Contrastive(ContrastiveConfig(**fields), head)

  def compute(params, batch):
    terms, metrics = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    return sum(terms.values()), metrics

  vectors = jax.jit(lambda params, batch: loss.vectors(nnx.merge(graphdef, params), batch, key=None).x)
  return jax.jit(jax.value_and_grad(compute, has_aux=True)), params, loss, vectors


# ---- Values ----------------------------------------------------------------------------------------------------------


def by_hand(vectors, *, similarity, temperature, margin, symmetric):
  """Computes mean loss and accuracy of float64 [rows, 2, width] in loops."""
  first, second = vectors.astype(np.float64).swapaxes(0, 1)
  if similarity == "cosine":
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
  near = first @ second.T
  terms, right = [], []
  for table in (near, near.T) if symmetric else (near,):
    for i, row in enumerate(table):
      scores = np.exp((row - margin * (np.arange(len(row)) == i)) / temperature)
      terms.append(-np.log(scores[i] / scores.sum()))
  for i, row in enumerate(near):
    right.append(row.argmax() == i)
  return np.mean(terms), np.mean(right)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
  "fields",
  [
    dict(similarity="cosine", temperature=0.05, margin=0.0, symmetric=False),
    dict(similarity="cosine", temperature=0.5, margin=0.3, symmetric=True),
    dict(similarity="dot", temperature=8.0, margin=0.0, symmetric=False),
  ],
  ids=["simcse", "labse", "quick_thought"],
)
def test_it_is_its_formula(fields):
  """The loss is a softmax over the second texts of all rows, and with `symmetric` over the first texts."""
  compute, params, _, vectors = loss_of(**fields)
  batch = batch_of()
  (loss, metrics), _ = compute(params, batch)
  expected, right = by_hand(np.asarray(vectors(params, batch)), **fields)
  np.testing.assert_allclose(loss, expected, rtol=1e-4)
  np.testing.assert_allclose(metrics["loss"].value(), expected, rtol=1e-4)
  np.testing.assert_allclose(metrics["accuracy"].value(), right)
  assert 0 < right < 1


@pytest.mark.exhaustive
def test_a_row_of_padding_is_no_negative():
  """Padding changes neither loss nor gradient, and gradients of a batch with padding are finite."""
  compute, params, loss, _ = loss_of(symmetric=True)
  batch = batch_of()
  longer = {name: jnp.pad(x, [(0, 2), (0, 0)]) for name, x in batch.items()}
  assert loss.weights(longer) == loss.weights(batch) == {"contrastive": 8.0}
  (expected, theirs), expected_gradient = compute(params, batch)
  (found, metrics), gradient = compute(params, longer)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-5)
  toy.assert_trees_close({n: x.value() for n, x in metrics.items()}, {n: x.value() for n, x in theirs.items()})
  (baseline,) = loss.baselines([longer, batch], 40)
  np.testing.assert_allclose(baseline.loss, np.log(8))


def test_chance_knows_of_the_margin():
  """Chance level equals the loss of equal vectors."""
  _, _, loss, _ = loss_of(margin=0.3, temperature=0.5)
  fields = dict(similarity="cosine", temperature=0.5, margin=0.3, symmetric=False)
  (baseline,) = loss.baselines([batch_of()], 40)
  np.testing.assert_allclose(baseline.loss, by_hand(np.ones((8, 2, 3)), **fields)[0], rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mesh_shape", [{"data": 8}, {"data": 4, "tensor": 2}])
def test_the_mesh_changes_nothing(mesh_shape):
  """A pair on each of eight devices is compared with the pairs of the other seven."""
  compute, params, *_ = loss_of(symmetric=True, margin=0.1)
  (expected, _), expected_gradient = compute(params, batch_of())
  mesh = sharding.make_mesh(mesh_shape)
  with jax.set_mesh(mesh):
    compute, *_ = loss_of(symmetric=True, margin=0.1)
    (loss, _), gradient = compute(params, jax.device_put(batch_of(), sharding.batch_sharding(mesh)))
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-4, rtol=1e-3)


def test_the_gradient_of_a_row_reaches_all_second_texts():
  """The first row's gradient reaches all second texts, but no other first text."""
  vectors = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2, 4)), jnp.float32)
  mesh = sharding.make_mesh({"data": 8})
  with jax.set_mesh(mesh):
    of_first_row = lambda x: jax.nn.logsumexp(contrastive.similarities(x, "cosine")[0])
    found = jax.jit(jax.grad(of_first_row))(jax.device_put(vectors, sharding.batch_sharding(mesh)))
  moved = np.any(np.asarray(found) != 0, axis=-1)
  assert moved[:, 1].all() and moved[:, 0].tolist() == [True] + [False] * 7


def test_dropout_makes_two_vectors_of_one_text():
  """Dropout applies in training only."""
  config = dataclasses.replace(toy.KINDS["bert"], heads=(HEAD,), dropout_rate=0.1)
  model, loss = toy.model(config), contrastive.Contrastive(ContrastiveConfig(), HEAD)
  vectors = jax.jit(lambda model, batch, key: loss.vectors(model, batch, key=key).x)
  without, dropped = (vectors(model, batch_of(same=True), key) for key in (None, toy.key()))
  np.testing.assert_allclose(without[:, 0], without[:, 1], atol=1e-5)
  assert np.all(np.any(np.abs(dropped[:, 0] - dropped[:, 1]) > 1e-3, axis=-1))


# ---- Vectors of texts ------------------------------------------------------------------------------------------------


def test_what_is_read_of_a_text():
  """The docstring's example, and an absent text."""
  hidden, segments = jnp.array([[1.0, 3.0, 5.0, 0.0]])[..., None], jnp.array([[1, 1, 2, 0]])
  for reads, expected in {"first": [1, 5, 0], "last": [3, 5, 0], "mean": [2, 5, 0]}.items():
    assert task_heads.read_texts(hidden, segments, number=3, reads=reads)[0, :, 0].tolist() == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "t5_1_1", "gpt2"])
def test_texts_of_a_pair_do_not_see_each_other(kind):
  """Each text has the vector that it has alone, in an encoder, an encoder-decoder and a decoder."""
  config = toy.KINDS[kind]
  head = dataclasses.replace(HEAD, reads="last" if config.kind.is_decoder_only else "mean", num_classes=5)
  *_, params, _, vectors = loss_of(kind, head)
  batch = batch_of(architecture=config.architecture)
  side = config.kind.answers
  found = vectors(params, batch)
  assert found.shape == (8, 2, 5) and found.dtype == jnp.float32
  segments = np.asarray(batch[f"{side}_segment_ids"])
  assert all({1, 2} <= set(row) for row in segments.tolist())
  for text in (1, 2):
    alone = {name: np.zeros_like(x) for name, x in batch.items()}
    for row in range(8):
      at = segments[row] == text
      for name, x in batch.items():
        alone[name][row, : at.sum()] = np.asarray(x)[row][at]
      alone[f"{side}_segment_ids"][row, : at.sum()] = 1
    np.testing.assert_allclose(vectors(params, alone)[:, 0], found[:, text - 1], atol=1e-5)


def test_a_vector_without_a_projection_is_the_pooler():
  """The vector is tanh(first W + b), as in BERT's pooler, which can initialize it."""
  _, params, _, vectors = loss_of()
  own = params["heads"]["text"]
  assert sorted(own) == ["pooler", "pooler_bias"]
  batch = batch_of()
  model = nnx.merge(toy.split(toy.model(dataclasses.replace(toy.KINDS["bert"], heads=(HEAD,))))[0], params)
  first = task_heads.read_texts(model.states(batch), batch["encoder_segment_ids"], number=2, reads="first")
  expected = np.tanh(first @ own["pooler"] + own["pooler_bias"])
  np.testing.assert_allclose(vectors(params, batch), expected, atol=1e-5)


def test_a_vector_as_it_is_read_is_no_hindrance_to_other_losses():
  """A vector head without parameters has none that could stay untrained."""
  head = dataclasses.replace(HEAD, pooler="")
  config = records(override(load_config("tiny_bert"), ["--config.train.loss=cross_entropy"]))
  made = recipe.make(config.with_(model={"heads": (head,)}))
  assert made.idle_heads == ("text",) and not any("heads" in pattern for pattern in made.freeze)
  made.state(sharding.make_mesh({"data": -1}))


# ---- Examples --------------------------------------------------------------------------------------------------------


def test_sentences():
  found = sentence_pairs.sentences(tf.constant([3, 4, 9, 5, 9, 9, 6, 7]), tf.constant(np.arange(200) == 9))
  assert found.to_list() == [[3, 4, 9], [5, 9, 9], [6, 7]]


def test_two_texts_in_one_row():
  """The docstring's example; a long text is cut to half of the row, special tokens included."""
  features = sentence_pairs.output_features(BERT)
  made = lambda length, **texts: lists(sentence_pairs.together(of_rows(**texts), {"inputs": length}, features))
  assert made(16, first=[[3, 4, 5]], second=[[6, 7]]) == [
    {
      "inputs": [101, 3, 4, 5, 102, 101, 6, 7, 102],
      "token_types": [0, 0, 0, 0, 0, 0, 0, 0, 0],
      "texts": [0, 0, 0, 0, 0, 1, 1, 1, 1],
    }
  ]
  (cut,) = made(9, first=[[3] * 7], second=[[6] * 7])
  assert cut["inputs"] == [101, 3, 3, 102, 101, 6, 6, 102]
  with pytest.raises(UserError, match="config.data.inputs_length=5 is too short .*inputs_length=6 or more"):
    made(5, first=[[3]], second=[[6]])


@pytest.mark.parametrize(
  ("objective", "tokens", "expected"),
  [
    ("neighbouring_sentences", [3, 4, 5, 9, 6, 7, 8, 9, 2, 9, 5, 6, 7, 8], [[3, 4, 5, 9, 1, 6, 7, 8, 9, 1]]),
    ("same_text_twice", [3, 4, 5, 9, 6, 7], [[3, 4, 5, 9, 1, 3, 4, 5, 9, 1]]),
  ],
)
def test_examples_of_the_objectives(objective, tokens, expected):
  """The docstrings' examples; a document of one sentence has no pairs."""
  features = objectives.output_features(objective, Ids())
  made = getattr(sentence_pairs, objective)(of_rows(targets=[tokens, [3, 9]]), {"inputs": 12}, features)
  assert [each["inputs"] for each in lists(made)] == expected
  assert lists(made)[0]["texts"] == [0] * 5 + [1] * 5


def test_two_texts_of_a_record():
  """The docstring's example, and a task from a format."""
  texts = tf.data.Dataset.from_tensor_slices({"first": ["a b", "a"], "second": ["c", ""]})
  assert lists(sentence_pairs.encode(texts, sentence_pairs.output_features(Letters()))) == [
    {"first": [5, 6], "second": [7]}
  ]
  registry.load("t2t.tasks.translation")
  task = seqio.TaskRegistry.get("wmt_en_de_pairs").replace(output_features=sentence_pairs.output_features(Letters()))
  records = tf.data.Dataset.from_tensors({"en": "a b", "de": "c"})
  (made,) = lists(
    task.preprocess_precache(records, seed=0).apply(lambda x: task.preprocess_postcache(x, {"inputs": 8}))
  )
  assert made["inputs"] == [5, 6, 1, 7, 1] and made["texts"] == [0, 0, 0, 1, 1]


def test_published_comparisons():
  """Each published config has its settings; LaBSE's margin applies in both directions."""
  of = lambda name: recipe.make(records(load_config(name))).loss.config
  assert of("labse_base") == contrastive.ContrastiveConfig(margin=0.3, symmetric=True)
  assert of("quick_thought_base") == contrastive.ContrastiveConfig(similarity="dot", temperature=1.0)
  assert of("simcse_base") == contrastive.ContrastiveConfig()


# ---- Whole runs ------------------------------------------------------------------------------------------------------


def config_of(*arguments, name="tiny_simcse"):
  return records(override(load_config(name), list(arguments)))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("--config.model.heads=()",), "has none. Give config.model.heads={"),
    (("--config.data.pack=True",), "config.data.pack=True: config.train.loss=contrastive compares one pair"),
    (("--config.contrastive.temperature=0.0",), "config.contrastive.temperature=0.0: must be above 0"),
    (("--config.contrastive.margin=-0.1",), "config.contrastive.margin=-0.1: must be 0 or more"),
    (("--config.contrastive.similarity=euclid",), "similarity=euclid: unknown similarity. Known values: cosine, dot"),
    (("--config.train.batch_size=1",), "config.train.batch_size=1: a pair needs other pairs of the batch as negatives"),
    (("--config.train.microbatches=2",), "the loss contrastive compares all rows of a batch"),
  ],
)
def test_what_cannot_be_compared_is_refused(arguments, message):
  with pytest.raises(UserError) as error:
    recipe.make(config_of(*arguments))
  assert message in str(error.value)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      ("--config.data.mixture=docs_masked_lm",),
      "docs_masked_lm: config.train.loss=contrastive compares pairs of texts",
    ),
    (
      ("--config.train.loss=cross_entropy",),
      "docs_same_text_twice: the examples are pairs of texts, but config.train",
    ),
    (("--config.model.dropout_rate=0.0",), "config.model.dropout_rate=0.0: the two vectors of a text would be equal"),
    (
      ("--config.model.broadcast_dropout=True",),
      "config.model.broadcast_dropout=True: the two vectors of a text would be",
    ),
  ],
)
def test_data_and_loss_must_fit(arguments, message):
  """The contrastive loss needs pairs of texts, and `same_text_twice` needs dropout."""
  with pytest.raises(UserError) as error:
    train_data.check(config_of(*arguments))
  assert message in str(error.value)


def test_what_is_planned_is_what_is_read(tmp_path):
  """The recipe's features equal those of the pipeline."""
  (tmp_path / "text.txt").write_text("One two three. Four five six. Seven eight nine.\n" * 40)
  config = config_of(
    f"--config.data.files={tmp_path}/text.txt", f"--config.data.eval_files={tmp_path}/text.txt",
    "--config.data.vocabulary=bytes", "--config.train.batch_size=8",
  )  # fmt: skip
  planned = recipe.batch(config)
  (batch,) = pipeline.eval_rows(config.data, "encoder_only", batch_size=8, max_batches=1)
  assert {name: x.shape for name, x in planned.items()} == {name: x.shape for name, x in batch.items()}


@pytest.mark.exhaustive
def test_a_run_on_own_text(tmp_path, capsys):
  """Trains on neighbouring sentences of files: the loss falls below chance, and unused parameters stay unchanged."""
  text = "".join(f"The {a} is {b}. It has seen the {a} of {b}.\n" for a in "abcdefgh" for b in "ijklmnop")
  (tmp_path / "text.txt").write_text(text)
  config = config_of(
    f"--config.data.files={tmp_path}/text.txt", f"--config.data.eval_files={tmp_path}/text.txt",
    "--config.data.objective=neighbouring_sentences", "--config.data.vocabulary=bytes", "--config.train.batch_size=16",
    "--config.model.embed_dim=32", "--config.model.num_heads=2", "--config.model.head_dim=16",
    "--config.model.mlp_dim=32", "--config.model.num_encoder_layers=1", "--config.model.vocab_size=384",
    "--config.train.steps=4", "--config.eval.batches=1", "--config.mesh.data=4", "--config.mesh.tensor=2",
  )  # fmt: skip
  state = train(config, str(tmp_path / "run"))
  assert {path.split("/")[0] for path in toy.flat(state.frozen_params)} == {"head"}
  assert "heads/text/pooler" in toy.flat(state.params)
  said = capsys.readouterr().out
  assert "chance         2.7726 (gives all texts of the batch the same similarity)" in said
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  held_out = [line["eval/loss"] for line in lines if "eval/loss" in line]
  assert np.isfinite(held_out).all() and 0 <= lines[-1]["eval/accuracy"] <= 1
