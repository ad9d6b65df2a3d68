"""Tags with transitions: the sum over all sequences by enumeration, and the numbers of pytorch-crf."""

import dataclasses
import functools
import itertools

from flax import nnx
import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t.losses import head_losses
from t2t.models import crf
from t2t.models.head_config import HeadConfig

# Sequences of 4, 1 and 2 tags in two rows, with positions between them that have no tag.
AT = np.array([[0, 1, 1, 0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0, 0, 0, 0]], bool)
GROUPS = np.array([[1, 1, 1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0]])
SEQUENCES = ((0, (1, 2, 4, 5)), (0, (7,)), (1, (0, 3)))
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def random_transitions(number, *, seed=0, labels=()):
  random = np.random.default_rng(seed)
  allowed, first = np.ones((number, number), bool), np.ones(number, bool)
  if labels:
    allowed, first = crf.allowed_by_bio(labels, name="ner")
  arrays = [random.normal(size=shape).astype(np.float32) for shape in ((number, number), number, number)]
  return crf.Transitions(*map(jnp.asarray, (*arrays, allowed, first)))


def logits_of(number, seed=1):
  logits = np.random.default_rng(seed).normal(size=(*AT.shape, number)).astype(np.float32)
  return np.where(AT[..., None], logits, np.nan)  # states of other positions may be anything


def score(transitions, logits, tags):
  """Returns the score of a sequence; minus infinity if it has a forbidden transition."""
  between = np.where(transitions.allowed, transitions.between, -np.inf)
  first = np.where(transitions.allowed_first, transitions.first, -np.inf)
  total = first[tags[0]] + transitions.last[tags[-1]] + sum(logits[i, tag] for i, tag in enumerate(tags))
  return total + sum(between[pair] for pair in itertools.pairwise(tags))


def enumerated(transitions, logits):
  """Returns all tag sequences and their log-probabilities."""
  sequences = list(itertools.product(range(logits.shape[1]), repeat=len(logits)))
  scores = np.array([score(transitions, logits, tags) for tags in sequences])
  return sequences, scores - np.logaddexp.reduce(scores)


CHAIN = crf.chain_of(jnp.asarray(AT), jnp.asarray(GROUPS))


def test_the_first_and_last_tags_of_sequences():
  """The docstring's arrays, and those of this file."""
  at, groups = np.array([[0, 1, 0, 1, 1, 0]], bool), np.array([[1, 1, 1, 1, 2, 0]])
  chain = crf.chain_of(jnp.asarray(at), jnp.asarray(groups))
  assert chain.first.astype(int).tolist() == [[0, 1, 0, 0, 1, 0]]
  assert chain.last.astype(int).tolist() == [[0, 0, 0, 1, 1, 0]]
  assert np.argwhere(CHAIN.first).tolist() == [[0, 1], [0, 7], [1, 0]]
  assert np.argwhere(CHAIN.last).tolist() == [[0, 5], [0, 7], [1, 3]]


@pytest.mark.parametrize("labels", [(), NAMES])
def test_probabilities_and_best_tags_are_those_of_all_sequences(labels):
  """Every sequence has its share of the sum over all; the decoded one is the likeliest, with its log-probability."""
  transitions, logits = random_transitions(5, labels=labels), logits_of(5)
  decoded = np.asarray(jax.jit(crf.decoded)(transitions, logits, CHAIN))
  conditional = jax.jit(crf.conditional_logits)
  for row, places in SEQUENCES:
    sequences, log_p = enumerated(transitions, logits[row, list(places)])
    best = int(np.argmax(log_p))
    assert decoded[row, list(places), 0].astype(int).tolist() == list(sequences[best])
    np.testing.assert_allclose(decoded[row, list(places), 1].sum(), log_p[best], atol=1e-5)
    possible = np.flatnonzero(np.isfinite(log_p))
    assert len(possible) == len(sequences) or labels
    for number in np.random.default_rng(2).choice(possible, min(6, len(possible)), replace=False):
      tags = np.zeros(AT.shape, int)
      tags[row, list(places)] = sequences[number]
      log_of_tags = jax.nn.log_softmax(conditional(transitions, logits, CHAIN, tags))
      found = sum(float(log_of_tags[row, place, tags[row, place]]) for place in places)
      np.testing.assert_allclose(found, log_p[number], atol=1e-5)


def test_the_numbers_of_pytorch_crf():
  """Log-likelihoods, gradients and best tags of pytorch-crf 0.7.2 in float64 for these scores."""
  between = [[0.0, 0.3, -0.27], [-0.89, -0.45, -0.99], [0.06, 1.34, -0.49]]
  first, last = [-0.62, 0.49, 0.36], [0.11, -0.93, -0.03]
  logits = [
    [[0.7, -1.34, -0.46], [-1.9, -1.29, -1.84], [-0.24, -1.27, 0.27], [0.16, -0.19, -2.52], [-0.54, -0.05, 0.11]],
    [[-1.53, -0.48, -0.98], [-0.81, 1.06, -0.81], [-0.03, 0.88, -0.58], [-0.11, 0.11, 0.06], [-1.23, 0.08, 1.36]],
  ]
  tags, mask = jnp.array([[1, 0, 0, 1, 2], [1, 1, 2, 2, 1]]), jnp.array([[1] * 5, [1, 1, 1, 0, 0]], bool)
  chain, free = crf.chain_of(mask, mask.astype(int)), (jnp.ones((3, 3), bool), jnp.ones(3, bool))

  def log_likelihoods(scores):
    log_p = jax.nn.log_softmax(crf.conditional_logits(crf.Transitions(*scores, *free), jnp.array(logits), chain, tags))
    return jnp.sum(jnp.where(mask, jnp.take_along_axis(log_p, tags[..., None], axis=-1)[..., 0], 0.0), axis=1)

  scores = tuple(map(jnp.array, (between, first, last)))
  np.testing.assert_allclose(log_likelihoods(scores), [-7.072643417, -3.582792858], atol=1e-5)
  gradient = jax.grad(lambda scores: -jnp.sum(log_likelihoods(scores)))(scores)
  expected = [
    [[-0.364475166, -0.522575008, 0.539311133], [-0.336823647, -0.250917872, -1.246869958]]
    + [[0.549006125, 1.375020734, 0.258323659]],
    [0.455868494, -1.656398870, 1.200530376],
    [0.651314846, 0.779740463, -1.431055308],
  ]
  for found, theirs in zip(gradient, expected, strict=True):
    np.testing.assert_allclose(found, theirs, atol=1e-5)
  found = crf.best_tags(crf.Transitions(*scores, *free), jnp.array(logits), chain)
  assert found[0].tolist() == [2, 1, 2, 1, 2] and found[1, :3].tolist() == [2, 1, 1]


def test_the_gradient_is_that_of_finite_differences():
  """For logits and for all scores of transitions."""
  transitions, logits = random_transitions(3), np.nan_to_num(logits_of(3))
  tags = np.random.default_rng(3).integers(0, 3, AT.shape)

  def loss(between, first, last, logits):
    of = crf.Transitions(between, first, last, transitions.allowed, transitions.allowed_first)
    log_p = jax.nn.log_softmax(crf.conditional_logits(of, logits, CHAIN, tags))
    return -jnp.sum(jnp.where(AT, jnp.take_along_axis(log_p, tags[..., None], axis=-1)[..., 0], 0.0))

  test_util.check_grads(loss, (*transitions[:3], logits), order=1, modes="rev", atol=5e-2, rtol=5e-2)


def test_transitions_of_the_scheme():
  """The docstring's list; labels that are no tags of the scheme are an error."""
  allowed, first = crf.allowed_by_bio(NAMES, name="ner")
  forbidden = {(NAMES[i], NAMES[j]) for i, j in zip(*np.nonzero(~allowed), strict=True)}
  to_person, to_place = (("O", "B-LOC", "I-LOC"), "I-PER"), (("O", "B-PER", "I-PER"), "I-LOC")
  assert forbidden == {(before, tag) for names, tag in (to_person, to_place) for before in names}
  assert first.tolist() == [True, True, False, True, False]
  for labels in ((), ("NOUN", "VERB"), ("I-PER",)):
    with pytest.raises(UserError, match="ner has scheme='bio', but"):
      crf.allowed_by_bio(labels, name="ner")


def test_a_forbidden_tag_in_the_labels_has_a_finite_loss():
  """The converter refuses such tags; a word without a token may still separate two tags."""
  transitions = random_transitions(5, labels=NAMES)
  tags = np.full(AT.shape, 2)
  logits = np.nan_to_num(logits_of(5))

  def loss(logits):
    log_p = jax.nn.log_softmax(crf.conditional_logits(transitions, logits, CHAIN, tags))
    return -jnp.sum(jnp.where(AT, log_p[..., 2], 0.0))

  value, gradient = jax.value_and_grad(loss)(logits)
  assert 0 < value < 100 and np.all(np.isfinite(gradient))


@functools.cache
def of_head(kind, **fields):
  """Returns loss, accuracy and gradient of a head of this kind for random words, and its parameters."""
  config = toy.encoder(heads=(HeadConfig("ner", 5, kind, labels=NAMES, **fields),))
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(4)
  batch = {
    "encoder_input_tokens": jnp.asarray(random.integers(3, 40, AT.shape)),
    "encoder_segment_ids": jnp.asarray(GROUPS),
    "encoder_answer_heads": jnp.asarray(AT, jnp.int32),
    "encoder_answer_groups": jnp.asarray(GROUPS),
    "encoder_answer_targets": jnp.asarray(random.integers(0, 5, AT.shape) * AT),
  }
  loss = head_losses.HeadLosses(config, None)

  def compute(params):
    terms, metrics = loss(nnx.merge(graphdef, params), batch, loss.weights(batch), key=None, train=False)
    return sum(terms.values()), metrics

  (value, metrics), gradient = jax.jit(jax.value_and_grad(compute, has_aux=True))(params)
  return value, metrics["accuracy"].value(), gradient, params, graphdef, batch


@pytest.mark.exhaustive
def test_without_transitions_it_is_a_softmax_of_each_word():
  """Transitions begin at 0: loss, accuracy and all gradients equal a tag head's, and transitions have gradients."""
  loss, accuracy, gradient, params, graphdef, batch = of_head("crf")
  expected, right, expected_gradient, *_ = of_head("tag")
  np.testing.assert_allclose([loss, accuracy], [expected, right], rtol=1e-5)
  own = {name: gradient["heads"]["ner"].pop(name) for name in ("transitions", "first", "last")}
  toy.assert_trees_close(gradient, expected_gradient, atol=1e-6)
  assert all(np.any(x) for x in own.values())
  assert not np.any(params["heads"]["ner"]["transitions"])
  decoded = head_losses.all_answers(nnx.merge(graphdef, params), batch, ["ner"])["ner"]
  model = nnx.merge(*of_head("tag")[4:2:-1])
  logits = head_losses.all_answers(model, batch, ["ner"])["ner"]
  assert decoded[AT][:, 0].astype(int).tolist() == np.argmax(logits[AT], axis=-1).tolist()
  np.testing.assert_allclose(decoded[AT][:, 1], np.max(jax.nn.log_softmax(logits[AT]), axis=-1), atol=1e-5)


def test_only_a_crf_head_has_a_scheme():
  """And its reads cannot be pooled."""
  with pytest.raises(UserError, match="ner has scheme='bio' and kind='tag'"):
    HeadConfig("ner", 5, "tag", scheme="bio")
  with pytest.raises(UserError, match="unknown scheme='iob1'"):
    HeadConfig("ner", 5, "crf", scheme="iob1")
  with pytest.raises(UserError, match="ner has reads='concat', but a crf head reads each token"):
    HeadConfig("ner", 5, "crf", reads="concat")
  with pytest.raises(UserError, match="ner has scheme='bio', but its labels are"):
    toy.model(dataclasses.replace(toy.KINDS["bert"], heads=(HeadConfig("ner", 5, "crf", scheme="bio"),)))
