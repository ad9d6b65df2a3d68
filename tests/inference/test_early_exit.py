"""Early exit: rules against the papers' formulas, removal of rows, and the model without exits."""

import dataclasses

import jax
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.inference import early_exit, head_predictor, prompt_features, row_batches
from t2t.models.head_config import HeadConfig

LAYERS, HEAD, SCORE = 5, HeadConfig("topic", 3), HeadConfig("likeness", 1, "score")


def model(kind="bert", heads=(HEAD, SCORE), **fields):
  """Returns config, structure and parameters of a model whose exits disagree, and rows of different lengths."""
  config = dataclasses.replace(toy.KINDS[kind], heads=heads, exits=True, num_encoder_layers=LAYERS, **fields)
  graphdef, params = toy.split(toy.model(config))
  random = np.random.default_rng(0)
  params["heads"] = jax.tree.map(lambda x: x + random.normal(size=x.shape).astype(np.float32), params["heads"])
  lengths = (5, 6, 8, 6, 7, 5, 7, 8, 5, 7)
  rows = [{"inputs": random.integers(3, 40, n).tolist(), "answer_heads": [1] + [0] * (n - 1)} for n in lengths]
  return config, graphdef, params, rows


def answerer(config, graphdef, exits=(0.0, 0), *, batch_size=8, **options):
  mesh = sharding.make_mesh({"data": 2}, devices=jax.devices()[:2])
  return head_predictor.of_model(config, graphdef, mesh, exits=exits, pad_id=0, batch_size=batch_size, **options)


def deebert(logits, entropy):
  """Returns the layers of a row, [layers, classes] (Xin et al. 2020, section 3.3)."""
  for number, x in enumerate(logits[:-1], start=1):
    p = np.exp(x) / np.exp(x).sum()
    if -np.sum(p * np.log(p)) < entropy:
      return number
  return len(logits)


def pabee(logits, patience, tolerance=0.5):
  """Returns the layers of a row (Zhou et al. 2020, equations 3 and 4)."""
  count = 0
  for number in range(2, len(logits)):
    a, b = logits[number - 2], logits[number - 1]
    same = abs(a[0] - b[0]) < tolerance if len(a) == 1 else np.argmax(a) == np.argmax(b)
    count = count + 1 if same else 0
    if count == patience:
      return number
  return len(logits)


@pytest.mark.parametrize("classes", [1, 3])
def test_rules_are_the_papers(classes):
  """On random logits of 60 rows: entropy, patience, and no exit at threshold 0."""
  logits = np.random.default_rng(1).normal(size=(60, LAYERS, classes)).astype(np.float32)
  cases = [(early_exit.ExitRule(patience=p), lambda x, p=p: pabee(x, p)) for p in (1, 2, 4)]
  if classes > 1:
    cases += [(early_exit.ExitRule(entropy=e), lambda x, e=e: deebert(x, e)) for e in (0.0, 0.5, 0.9)]
  for rule, formula in cases:
    layers, left_with = early_exit.replayed(rule, logits)
    expected = [formula(row) for row in logits]
    assert layers.tolist() == expected and (len(set(expected)) > 2 or rule.entropy == 0.0)
    np.testing.assert_array_equal(left_with, [row[n - 1] for row, n in zip(logits, expected, strict=True)])


def all_exits(config, graphdef, params, rows, head):
  """Returns the logits after every layer of each row, computed in one batch: [rows, layers, classes]."""
  batch = row_batches.features_of(rows, 8, side="encoder", pad_id=0)
  number = 1 + config.heads.index(head)
  batch["encoder_answer_heads"] = prompt_features.padded([row["answer_heads"] for row in rows], 8, 0) * number
  return np.asarray(early_exit.program_of(graphdef, head)(params, batch))


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", ["bert", "modern_bert", "albert"])
def test_a_row_leaves_alike_in_any_batch(kind):
  """Layers and logits do not depend on the other rows; the last layer's are the model's without early exit."""
  config, graphdef, params, rows = model(kind)
  of_layers = all_exits(config, graphdef, params, rows, HEAD)
  full = answerer(config, graphdef).logits(params, HEAD, rows)
  np.testing.assert_allclose(np.concatenate(full), of_layers[:, -1], atol=2e-5)
  p = np.exp(of_layers) / np.exp(of_layers).sum(-1, keepdims=True)
  rule = early_exit.ExitRule(entropy=float(np.median(-np.sum(p * np.log(p), axis=-1))))
  layers, logits = early_exit.replayed(rule, of_layers)
  assert len(set(layers.tolist())) > 2
  leaving = answerer(config, graphdef, (rule.entropy, 0), chunk=2)
  for order in (range(10), range(9, -1, -1)):
    found = leaving.logits(params, HEAD, [rows[i] for i in order])
    assert leaving.layers == [layers[i] for i in order]
    np.testing.assert_allclose(np.concatenate(found), logits[list(order)], atol=2e-5)


def test_layers_that_no_row_needs_do_not_run(monkeypatch):
  """Each chunk has at most twice the rows that remain, and the last chunk is that of the last row."""
  config, graphdef, params, rows = model()
  expected = early_exit.replayed(early_exit.ExitRule(patience=1), all_exits(config, graphdef, params, rows[:8], HEAD))[
    0
  ]
  leaving, sizes = answerer(config, graphdef, (0.0, 1), chunk=1), []
  programs = leaving._programs_of_chunks
  run_chunk = programs["chunk"]

  def counted(name, params, batch, x, *rest):
    sizes.append(x.shape[0])
    return run_chunk(name, params, batch, x, *rest)

  monkeypatch.setitem(programs, "chunk", counted)
  leaving.logits(params, HEAD, rows[:8])
  assert leaving.layers == expected.tolist() and len(set(expected)) > 2 and len(sizes) == max(expected)
  for number, size in enumerate(sizes):
    remaining = np.sum(expected > number)
    assert remaining <= size < max(2 * remaining, 3)


@pytest.mark.parametrize(
  ("fields", "entropy", "patience", "head", "message"),
  [
    ({}, 0.3, 2, HEAD, "exit_entropy 0.3 and --exit_patience 2 exclude each other"),
    ({"exits": False}, 0.3, 0, HEAD, "exit_entropy 0.3: the model has no heads after its inner layers"),
    ({}, 0.0, 5, HEAD, "exit_patience 5: must be from 1 to 4"),
    ({}, 1.2, 0, HEAD, "exit_entropy 1.2: must be above 0 and at most 1.099"),
    ({}, -0.1, 0, None, "exit_entropy -0.1: must be above 0"),
    ({}, 0.3, 0, SCORE, "'likeness' predicts a number, which has no entropy"),
    ({}, 0.3, 0, HeadConfig("tags", 3, "tag"), "'tags' is a tag head"),
  ],
)
def test_bad_thresholds_are_refused(fields, entropy, patience, head, message):
  config = dataclasses.replace(
    toy.KINDS["bert"], **({"heads": (HEAD,), "exits": True, "num_encoder_layers": LAYERS} | fields)
  )
  with pytest.raises(UserError) as error:
    early_exit.rule_of(config, entropy, patience, head=head)
  assert message in str(error.value)


def test_a_decoder_has_no_exits():
  """Its cache has the keys of all layers."""
  config = dataclasses.replace(toy.KINDS["gpt2"], heads=(HEAD,))
  with pytest.raises(UserError, match="keeps keys and values of all layers"):
    early_exit.rule_of(config, 0.3, 0)
  with pytest.raises(UserError, match="config.model.exits=True: config.model.architecture=decoder_only keeps keys"):
    toy.model(dataclasses.replace(config, exits=True))
  with pytest.raises(UserError, match="needs a head of the kinds class or score and at least two layers"):
    toy.model(dataclasses.replace(toy.KINDS["bert"], exits=True))
