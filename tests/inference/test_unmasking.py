"""Decoding by unmasking: exact against enumeration and a plain loop, infilling, blocks, and refusals."""

import collections
import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import UserError
from t2t import __main__ as command
from t2t.inference import decoding, text_generation, unmasking
from t2t.inference.prompt_features import PromptFraming

MASK, EOS = 6, 1
FRAMING = PromptFraming(bos_id=0, eos_id=EOS, pad_id=0, mask_id=MASK)
ENCODER = toy.encoder(num_encoder_layers=1, vocab_size=8, decoder="unmask")
DECODER = toy.decoder(num_decoder_layers=1, vocab_size=8, bidirectional_prefix=True, decoder="unmask")
WORDS = 6  # ids 0 to 5 are generated


def log_probabilities(model, rows):
  """Returns log p of ids 0 to 5 at each position of rows with masks, float64 [rows, length, 6]."""
  rows = np.array(rows)
  if model.config.kind.is_decoder_only:
    read = np.pad(rows[:, :-1], [(0, 0), (1, 0)])
    features = {"decoder_input_tokens": read, "decoder_causal_attention": np.ones_like(rows)}
    features |= {"decoder_segment_ids": np.ones_like(rows)}
  else:
    features = {"encoder_input_tokens": rows, "encoder_segment_ids": np.ones_like(rows)}
  logits = toy.logits(model, {name: jnp.asarray(x) for name, x in features.items()})
  return np.asarray(jax.nn.log_softmax(logits), np.float64)[..., :WORDS]


def decoded(model, prompts, *, key=0, number=None, **options):
  """Returns the result of `decode` for prompts with one width; `number`: copies of the first prompt."""
  config = decoding.DecodeConfig(vocab_size=WORDS, **options)
  prompts = prompts if number is None else prompts[:1] * number
  features = unmasking.Unmask.features(
    prompts,
    max(map(len, prompts)),
    architecture=model.config.architecture,
    framing=FRAMING,
    max_length=config.max_length,
  )
  features = {name: jnp.asarray(x) for name, x in features.items()}
  program = jax.jit(lambda features, key: decoding.decode(model, features, key, config=config, eos_id=EOS))
  return program(features, jax.random.key(key))


# ---- Distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_random_order_one_token_a_step_is_the_ancestral_distribution(config):
  """Frequencies of texts equal the mean over all orders of the products of conditionals (Sahoo et al. 2024)."""
  model, number = toy.model(config, seed=3), 4_000
  texts = list(itertools.product(range(WORDS), repeat=2))
  blanks = (
    [(7, MASK, MASK)] + [(7, token, MASK) for token in range(WORDS)] + [(7, MASK, token) for token in range(WORDS)]
  )
  log_p = dict(zip(blanks, log_probabilities(model, blanks), strict=True))
  # A row is renormalized over the ids that may be generated.
  log_p = {row: x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for row, x in log_p.items()}
  first = log_p[7, MASK, MASK]
  expected = [
    (math.exp(first[1, a] + log_p[7, a, MASK][2, b]) + math.exp(first[2, b] + log_p[7, MASK, b][1, a])) / 2
    for a, b in texts
  ]
  np.testing.assert_allclose(sum(expected), 1.0)
  found = decoded(model, [[7]], number=number, max_length=2, temperature=1.0, remasking="random")
  # What follows EOS is cut; compare texts without an early end.
  counts = collections.Counter(map(tuple, np.asarray(found.tokens[:, 0]).tolist()))
  for (a, b), p in zip(texts, expected, strict=True):
    if a != EOS:
      assert abs(counts[a, b] / number - p) < 5 * math.sqrt(p * (1 - p) / number) + 1e-9
  ends = sum(p for (a, _), p in zip(texts, expected, strict=True) if a == EOS)
  assert abs(counts[EOS, 0] / number - ends) < 5 * math.sqrt(ends * (1 - ends) / number)


def plain(model, row, *, steps, block_length, ends):
  """Fills a row by confidence in a plain loop; returns its tokens and the sum of their log-probabilities."""
  row, score = list(row), 0.0
  blanks = [i for i, token in enumerate(row) if token == MASK]
  parts = [blanks[i : i + block_length] for i in range(0, len(blanks), block_length)]
  for part in parts:
    for step in range(steps // len(parts)):
      log_p = log_probabilities(model, [row])[0]
      if not ends:
        log_p[:, EOS] = -np.inf
      open_blanks = [i for i in part if row[i] == MASK]
      count = len(part) // (steps // len(parts)) + (step < len(part) % (steps // len(parts)))
      likeliest = sorted(open_blanks, key=lambda i: -log_p[i].max())[:count]
      for i in likeliest:
        row[i], score = int(log_p[i].argmax()), score + log_p[i].max()
  return [row[i] for i in blanks], score


@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("config", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("steps", "block_length"), [(4, 3), (6, 0), (4, 0)])
def test_greedy_confidence_is_a_plain_loop(config, steps, block_length):
  """All steps, fewer steps than tokens, and blocks, after a prompt and within a text."""
  model = toy.model(config, seed=1)
  prompts = [[7, 3, 2, 4], [MASK, 3, MASK, MASK, 5, MASK, MASK, 2, MASK]]
  found = decoded(model, prompts, max_length=6, steps=steps, block_length=block_length)
  rows = [[*prompts[0], *[MASK] * 6], prompts[1]]
  for i, row in enumerate(rows):
    tokens, score = plain(model, row, steps=steps, block_length=block_length or 6, ends=i == 0)
    kept = tokens[: tokens.index(EOS) + 1] if i == 0 and EOS in tokens else tokens
    assert found.tokens[i, 0].tolist() == kept + [0] * (6 - len(kept))
    if kept == tokens:
      np.testing.assert_allclose(found.scores[i, 0], score, rtol=1e-4)


@pytest.mark.slow
def test_sampling_depends_on_the_row_and_its_key_alone():
  """A row alone is the row among others; margin and temperature run."""
  model = toy.model(ENCODER, seed=2)
  options = {"max_length": 4, "temperature": 0.7, "remasking": "margin", "steps": 2}
  both, alone = decoded(model, [[7, 3], [2, 5]], **options), decoded(model, [[7, 3]], **options)
  assert both.tokens[0].tolist() == alone.tokens[0].tolist()
  many = decoded(model, [[7]], number=50, max_length=4, temperature=1.0)
  assert len({tuple(x) for x in np.asarray(many.tokens[:, 0]).tolist()}) > 5 and (many.tokens < WORDS).all()


# ---- Blocks of the model ---------------------------------------------------------------------------------------------

IN_BLOCKS = dataclasses.replace(ENCODER, block_length=3)


def plain_in_blocks(model, row, *, steps, remasking="confidence"):
  """Fills a row block by block in a plain loop that reads nothing after the block; returns its tokens and score."""
  row, ends, score = list(row), row[-1] == MASK, 0.0
  blanks = [i for i, token in enumerate(row) if token == MASK]
  for block in sorted({i // 3 for i in blanks}):
    part = [i for i in blanks if i // 3 == block]
    for step in range(steps):
      log_p = log_probabilities(model, [row[: 3 * block + 3]])[0]
      if not ends:
        log_p[:, EOS] = -np.inf
      margins = np.diff(np.sort(np.exp(log_p))[:, -2:])[:, 0]
      value = log_p.max(axis=-1) if remasking == "confidence" else margins
      count = len(part) // steps + (step < len(part) % steps)
      for i in sorted((i for i in part if row[i] == MASK), key=lambda i: -value[i])[:count]:
        row[i], score = int(log_p[i].argmax()), score + log_p[i].max()
  return [row[i] for i in blanks], score


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize(("steps", "remasking"), [(0, "confidence"), (6, "margin"), (3, "confidence"), (9, "margin")])
def test_blocks_of_the_model_are_a_plain_loop(steps, remasking):
  """Blocks are counted from the text's first token, whatever the prompt, and later ones are not read.

  Texts are longer than any row of training, because positions are relative.
  """
  model, prompts = toy.model(IN_BLOCKS, seed=1), [[7, 3, 2, 4], [7, 3], [MASK, 3, MASK, MASK, 5, 2, 4, 2, 3, 4, MASK]]
  found = decoded(model, prompts, max_length=9, steps=steps, remasking=remasking)
  for i, row in enumerate([[*prompts[0], *[MASK] * 9], [*prompts[1], *[MASK] * 9], prompts[2]]):
    tokens, score = plain_in_blocks(model, row, steps=(steps or 9) // 3, remasking=remasking)
    kept = tokens[: tokens.index(EOS) + 1] if i < 2 and EOS in tokens else tokens
    assert found.tokens[i, 0].tolist() == kept + [0] * (9 - len(kept))
    if kept == tokens:
      np.testing.assert_allclose(found.scores[i, 0], score, rtol=1e-4)


@pytest.mark.slow
def test_random_order_within_blocks_is_the_distribution_of_the_model():
  """Frequencies of texts are products over blocks of the mean over orders within each block."""
  model, number = toy.model(dataclasses.replace(ENCODER, block_length=2), seed=3), 4_000

  def conditional(row, place):
    log_p = log_probabilities(model, [row])[0][place]
    return np.exp(log_p - np.logaddexp.reduce(log_p))

  first = conditional([7, MASK], 1)
  expected = {}
  for a in range(WORDS):
    both = [conditional([7, a, MASK, MASK], place) for place in (2, 3)]
    after = [[conditional([7, a, x, MASK], 3), conditional([7, a, MASK, x], 2)] for x in range(WORDS)]
    for b, c in itertools.product(range(WORDS), repeat=2):
      expected[a, b, c] = first[a] * (both[0][b] * after[b][0][c] + both[1][c] * after[c][1][b]) / 2
  np.testing.assert_allclose(sum(expected.values()), 1.0)
  found = decoded(model, [[7]], number=number, max_length=3, temperature=1.0, remasking="random")
  counts = collections.Counter(map(tuple, np.asarray(found.tokens[:, 0]).tolist()))
  for text, p in expected.items():
    if EOS not in text[:2]:  # else it is cut
      assert abs(counts[text] / number - p) < 5 * math.sqrt(p * (1 - p) / number) + 1e-9


def test_blocks_of_the_model_exclude_others():
  """The option may repeat the model's length, but not change it."""
  assert unmasking.blocks(decoding.DecodeConfig(8, block_length=4), 4) == (2, 4)
  assert unmasking.blocks(decoding.DecodeConfig(6), 4) == (2, 4)
  assert unmasking.blocks(decoding.DecodeConfig(3), 4) == (1, 3)
  with pytest.raises(UserError, match="block_length=2: the model was trained on blocks of config.model.block_length=4"):
    unmasking.blocks(decoding.DecodeConfig(8, block_length=2), 4)
  with pytest.raises(UserError, match="steps=3: max_length=8 with block_length=4 has 2 blocks.*set steps=2"):
    unmasking.blocks(decoding.DecodeConfig(8, steps=3), 4)


# ---- Options ---------------------------------------------------------------------------------------------------------


def test_options_that_do_not_fit_are_refused():
  """Each message names the option, and a value that works."""
  with pytest.raises(UserError, match="--steps 9 must be 1 to 8, the value of --max_length"):
    text_generation.decode_config(max_length=8, steps=9)
  with pytest.raises(UserError, match="block_length=9 must be 1 to max_length=8"):
    decoding.DecodeConfig(8, block_length=9)
  with pytest.raises(UserError, match="remasking='confidnce': unknown value.*confidence"):
    decoding.DecodeConfig(8, remasking="confidnce")
  with pytest.raises(UserError, match="steps=5: max_length=8 with block_length=4 has 2 blocks.*set steps=4"):
    unmasking.blocks(decoding.DecodeConfig(8, steps=5, block_length=4))
  assert unmasking.blocks(decoding.DecodeConfig(7, block_length=4)) == (2, 4)
  with pytest.raises(UserError, match="num_beams=2: config.model.decoder=unmask does not support num_beams"):
    decoded(toy.model(ENCODER), [[7]], max_length=2, num_beams=2)
  for config in (toy.decoder(), toy.config()):
    with pytest.raises(UserError, match="needs a model with bidirectional attention over its whole text"):
      unmasking.Unmask.check(config, 4, 4)
  with pytest.raises(UserError, match="max_length=1: a text has 2 blanks; set max_length=2 or more"):
    decoded(toy.model(ENCODER), [[MASK, 3, MASK]], max_length=1)


def test_the_table_is_the_options():
  """The option's values, which the parser shows without this module, are the rows."""
  assert tuple(unmasking.REMASKING) == decoding.REMASKING


# ---- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_trained_evaluated_and_fills_lines(tmp_path, capsys):
  """A decoder of masked diffusion has held-out bits per byte; lines are continued, and their blanks filled."""
  text, run = tmp_path / "text.txt", tmp_path / "run"
  text.write_text("".join(f"the {i} quick brown foxes jump over {i * i} lazy dogs\n" for i in range(150)))
  train = [
    *("train", "--config=tiny_diffusion", "--config.data.vocabulary=bytes", "--config.model.vocab_size=384"),
    *("--config.model.architecture=decoder_only", "--config.model.bidirectional_prefix=True"),
    *("--config.model.num_decoder_layers=1", "--config.model.num_encoder_layers=0", "--config.model.embed_dim=32"),
    *("--config.model.mlp_dim=32", "--config.data.mixture=", f"--config.data.files={text}"),
    *(f"--config.data.eval_files={text}", "--config.data.inputs_length=64", "--config.data.targets_length=64"),
    *("--config.train.batch_size=8", "--config.train.steps=2", "--config.eval.batches=1", f"--workdir={run}"),
  ]
  assert command.main(train) == 0
  lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  values = next(line for line in lines if "eval/loss" in line)
  assert values["eval/bits_per_byte"] > values["eval/loss"] / math.log(2)  # EOS has no bytes
  np.testing.assert_allclose(np.mean([values[f"eval/loss_t{i}"] for i in (1, 2, 3, 4)]), values["eval/loss"], rtol=1e-5)
  (tmp_path / "lines.txt").write_text("the quick\nthe [MASK]uick [MASK]\n")
  infer = ["infer", f"--checkpoint={run}", f"--input={tmp_path}/lines.txt", "--max_length=4"]
  assert command.main([*infer, "--decoder=unmask", "--steps=2", f"--output={tmp_path}/out.jsonl"]) == 0
  continued, filled = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
  assert len(continued["prediction"].encode()) <= 4 and "fillings" not in continued
  assert len(filled["fillings"]) == 2 and "uick" in filled["prediction"]
  capsys.readouterr()
  assert command.main([*infer, f"--output={tmp_path}/other.jsonl"]) == 2
  assert "was trained by masked diffusion" in capsys.readouterr().err
