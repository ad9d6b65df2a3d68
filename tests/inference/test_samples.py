import jax.numpy as jnp
import numpy as np
import pytest
import test_head_losses
import toy

from t2t.inference import samples
from t2t.training import train_state

pytestmark = pytest.mark.slow

WORDS = ["", "</s>", "the", "cat", "sat", "on", "mat", "dog", "a"]
FIRST, SECOND, THIRD = 20, 19, 18


class Words:
  """A vocabulary of whole words."""

  def decode(self, ids):
    return " ".join(WORDS[token] for token in ids)


def shown(inputs, prediction, targets, **how):
  ids = lambda words: np.array([word if isinstance(word, int) else WORDS.index(word) for word in words])
  return samples.fill_in_the_blank(
    ids(inputs),
    ids(prediction),
    ids(targets),
    vocabulary=Words(),
    sentinel_ids=[FIRST, SECOND, THIRD],
    hidden_ids={0, 1},
    **how,
  )


def test_blanks_are_numbered():
  """The example of the docstring; EOS and padding are omitted."""
  assert shown(
    ["the", FIRST, "sat", "on", SECOND, "mat", "</s>", 0],
    [FIRST, "dog", SECOND, "the", "</s>", 0, 0],
    [FIRST, "cat", SECOND, "the", "</s>", 0, 0],
  ) == ("the [1] sat on [2] mat", "[1] dog  [2] the", "[1] cat  [2] the")


def test_only_the_first_blanks_are_shown():
  """Context extends up to the next blank, with dots for omitted text."""
  inputs = ["a", "a", "the", FIRST, "sat", SECOND, "on", "the", THIRD, "mat"]
  prediction = [FIRST, "dog", SECOND, "a", THIRD, "cat"]
  given, predicted, _ = shown(inputs, prediction, prediction, num_blanks=2, context=1)
  assert given == "... the [1] sat [2] on ..."
  assert predicted == "[1] dog  [2] a"
  assert shown(inputs, prediction, prediction, num_blanks=2)[0] == "a a the [1] sat [2] on the ..."


def test_a_blank_without_an_answer_is_a_dash():
  """A prediction may skip a sentinel, or have tokens before its first."""
  _, predicted, truth = shown(["the", FIRST, SECOND], ["dog", SECOND, "on"], [FIRST, "cat", SECOND, "sat"])
  assert predicted == "[1] -  [2] on"
  assert truth == "[1] cat  [2] sat"


def test_text_without_blanks_is_shown_as_it_is():
  assert shown(["the", "cat"], ["a"], ["a"]) == ("the cat", "", "")


def test_masked_tokens_are_blanks():
  """Blanks are the positions with a loss weight; other predictions are ignored."""
  ids = lambda words: np.array([WORDS.index(word) for word in words.split()] + [1, 0])
  given = samples.masked_tokens(
    ids("a dog sat on the </s>"),
    ids("the cat sat on a mat"),
    np.array([0, 1, 0, 0, 1, 1, 0, 0]),
    vocabulary=Words(),
    hidden_ids={0, 1},
  )
  assert given == ("the [1] sat on [2] [3]", "[1] dog  [2] the  [3] -", "[1] cat  [2] a  [3] mat")


def test_only_the_first_masked_tokens_are_shown():
  """Six blanks with twelve tokens before them."""
  tokens = np.array([WORDS.index("a")] * 14 + [WORDS.index("cat")] * 8)
  given, _, truth = samples.masked_tokens(tokens, tokens, np.arange(22) >= 14, vocabulary=Words(), hidden_ids={0, 1})
  assert given == "... " + "a " * 12 + "[1] [2] [3] [4] [5] [6] ..."
  assert truth == "  ".join(f"[{number}] cat" for number in range(1, 7))


# ---- Held-out text ---------------------------------------------------------------------------------------------------


class Ids:
  """A vocabulary that decodes tokens as their ids."""

  def decode(self, ids):
    return " ".join(str(token) for token in ids)


def held_out(model, batch, *, number=2, sentinel_ids=(), hidden_ids=(0, toy.EOS), eos_id=toy.EOS, vocab_size=40):
  graphdef, params = toy.split(model)
  return samples.held_out(
    graphdef,
    train_state.TrainState(jnp.zeros((), jnp.int32), params, {}, ()),
    batch,
    vocabulary=Ids(),
    sentinel_ids=sentinel_ids,
    hidden_ids=hidden_ids,
    eos_id=eos_id,
    vocab_size=vocab_size,
    number=number,
  )


def words(tokens):
  """Returns tokens as text like `Ids`, without EOS and padding."""
  return " ".join(str(token) for token in np.asarray(tokens).tolist() if token > 1)


def written(model, prompt, *, number):
  """Generates greedily up to EOS, without a cache."""
  length, tokens = len(prompt), []
  row = np.zeros((1, length + number), np.int32)
  row[0, 1 : length + 1] = prompt
  read = (jnp.arange(length + number) <= length).astype(jnp.int32)[None]
  while len(tokens) < number and toy.EOS not in tokens:
    row[0, length + 1 : length + 1 + len(tokens)] = tokens
    logits = toy.logits(model, {"decoder_input_tokens": jnp.asarray(row), "decoder_causal_attention": read})
    tokens.append(int(np.argmax(logits[0, length + len(tokens)])))
  return tokens


@pytest.mark.exhaustive
def test_an_encoder_guesses_masked_tokens():
  """Predictions are the likeliest tokens at positions with a loss weight."""
  model, batch = toy.model(toy.KINDS["bert"]), toy.batch((8, 5), padded_to=(9, 6), architecture="encoder_only")
  batch["encoder_loss_weights"] = jnp.zeros((2, 9)).at[0, jnp.array([1, 4])].set(1).at[1, 2].set(1)
  likeliest, targets = np.argmax(toy.logits(model, batch), axis=-1), np.asarray(batch["encoder_target_tokens"])
  first, second = held_out(model, batch, number=9)
  row = targets[0]
  assert first[0] == f"{row[0]} [1] {row[2]} {row[3]} [2] {words(row[5:])}"
  assert first[1] == f"[1] {likeliest[0, 1]}  [2] {likeliest[0, 4]}"
  assert first[2] == f"[1] {row[1]}  [2] {row[4]}"
  assert second[1:] == (f"[1] {likeliest[1, 2]}", f"[1] {targets[1, 2]}")


def test_an_encoder_decoder_fills_blanks():
  """Predictions come from the generated sentinels; the truth comes from the targets."""
  model, batch = toy.model(toy.config(), seed=1), toy.batch((6, 4), (6, 4))
  inputs = jnp.array([[7, 39, 8, 38, 9, 1, 0, 0], [5, 6, 39, 4, 1, 0, 0, 0]])
  targets = jnp.array([[39, 3, 4, 38, 5, 1], [39, 2, 1, 0, 0, 0]])
  batch |= {"encoder_input_tokens": inputs, "decoder_target_tokens": targets}
  found = held_out(model, batch, sentinel_ids=(39, 38, 37))
  assert [(given, truth) for given, _, truth in found] == [("7 [1] 8 [2] 9", "[1] 3 4  [2] 5"), ("5 6 [1] 4", "[1] 2")]
  assert all(prediction.startswith("[1]") for _, prediction, _ in found)


def test_a_sentinel_that_stands_for_masked_tokens_is_no_blank():
  """If targets have no sentinels, the whole text is shown."""
  model, batch = toy.model(toy.config(), seed=1), toy.batch((6, 4), (6, 4))
  batch["encoder_input_tokens"] = jnp.array([[7, 39, 39, 9, 1, 0], [5, 6, 39, 4, 1, 0]])
  batch["decoder_target_tokens"] = jnp.array([[7, 3, 4, 9, 1, 0], [5, 6, 2, 4, 1, 0]])
  found = held_out(model, batch, sentinel_ids=(39, 38, 37))
  assert [(given, truth) for given, _, truth in found] == [("7 39 39 9", "7 3 4 9"), ("5 6 39 4", "5 6 2 4")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["llama", "local_prefix_lm"])
def test_a_decoder_goes_on_behind_its_inputs(kind):
  """The continuation is the likeliest by the model, limited by the longest prompt."""
  model, batch = toy.model(toy.KINDS[kind], seed=2), toy.batch((5, 3), (4, 6), architecture="decoder_only")
  found, rows = held_out(model, batch), np.asarray(batch["decoder_target_tokens"])
  for (given, prediction, truth), row, length, end in zip(found, rows, (5, 3), (9, 9), strict=True):
    assert (given, truth) == (words(row[:length]), words(row[length:end]))
    assert prediction == words(written(model, row[:length], number=14 - 5))


@pytest.mark.exhaustive
def test_of_long_inputs_both_ends_are_shown():
  """The answer may depend on either end."""
  model, batch = toy.model(toy.KINDS["modern_t5"], seed=2), toy.batch((70, 64), (3, 3), padded_to=(70, 4))
  (long, _, _), (whole, _, _) = held_out(model, batch)
  tokens = np.asarray(batch["encoder_input_tokens"])
  assert long == f"{words(tokens[0, :32])} ... {words(tokens[0, 37:69])}" and whole == words(tokens[1, :64])


@pytest.mark.exhaustive
def test_a_language_model_goes_on_behind_half_of_a_text():
  """The prompt is half of the text if there are no inputs."""
  model, batch = toy.model(toy.KINDS["llama"], seed=2), toy.batch((5, 3), (4, 4), architecture="decoder_only")
  del batch["decoder_causal_attention"]
  found, rows = held_out(model, batch), np.asarray(batch["decoder_target_tokens"])
  for (given, prediction, truth), row, half, end in zip(found, rows, (4, 3), (9, 7), strict=True):
    assert (given, truth) == (words(row[:half]), words(row[half:end]))
    assert prediction == words(written(model, row[:half], number=14 - 4))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "modern_t5", "prefix_lm", "llama"])
def test_of_packed_rows_the_first_sequence_is_shown(kind):
  """Text and truth equal those of the sequence alone; predictions may end elsewhere."""
  config = toy.KINDS[kind]
  model, batch = toy.model(config, seed=2), toy.batch((5, 4), (3, 3), architecture=config.architecture)
  if kind == "bert":
    batch["encoder_loss_weights"] = jnp.ones((2, 8)).at[:, 1].set(0)
  if kind == "llama":
    del batch["decoder_causal_attention"]  # a language model's text without inputs
  (alone, _), (found,) = held_out(model, batch), held_out(model, toy.packed(batch))
  assert (found[0], found[2]) == (alone[0], alone[2])
  predictions = [one[1].split() for one in (found, alone)]
  shorter = min(map(len, predictions))
  assert shorter > 2 and predictions[0][:shorter] == predictions[1][:shorter]


@pytest.mark.exhaustive
def test_a_decoder_writes_no_further_than_its_positions():
  """With 40 learned positions, 36 inputs and BOS leave three; four tokens can follow."""
  model = toy.model(toy.KINDS["gpt2"], seed=3)
  batch = toy.batch((36, 20), (3, 3), padded_to=(36, 4), architecture="decoder_only")
  tokens = np.asarray(batch["decoder_target_tokens"])
  # Beyond them the model's logits are NaN, and it would generate 0.
  (given, prediction, _), _ = held_out(model, batch, hidden_ids=(toy.EOS,))
  assert given == words(tokens[0, :36])
  assert len(prediction.split()) == 4
  assert prediction == words(written(model, tokens[0, :36], number=4))


@pytest.mark.exhaustive
def test_a_text_may_have_token_0():
  """If a vocabulary pads with another id, segment ids mark the text."""
  model, batch = toy.model(toy.KINDS["llama"], seed=2), toy.batch((5, 3), (4, 4), architecture="decoder_only")
  tokens = jnp.array([[0, 7, 0, 8, 0, 9, 1, 1], [6, 0, 0, 5, 1, 1, 1, 1]])
  batch = {
    "decoder_target_tokens": tokens,
    "decoder_input_tokens": jnp.pad(tokens, [(0, 0), (1, 0)], constant_values=1)[:, :-1],
    "decoder_segment_ids": jnp.array([[1] * 7 + [0], [1] * 5 + [0] * 3]),
  }
  found = held_out(model, batch, hidden_ids={1})
  assert [(given, truth) for given, _, truth in found] == [("0 7 0", "8 0 9"), ("6 0", "0 5")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_rows_of_nothing_are_not_shown(kind):
  """Padding rows fill the last batch."""
  config = toy.KINDS[kind]
  model, batch = toy.model(config), toy.batch((5, 4), (3, 3), architecture=config.architecture)
  if kind == "bert":
    batch["encoder_loss_weights"] = jnp.ones((2, 8)).at[:, 1].set(0)
  both = held_out(model, batch)
  for kept in range(2):  # padding of each data stream, anywhere in the batch
    left = {name: x.at[1 - kept].set(0) for name, x in batch.items()}
    assert held_out(model, left) == [both[kept]]
  assert held_out(model, {name: jnp.zeros_like(x) for name, x in batch.items()}) == []


@pytest.mark.exhaustive
def test_rows_that_ask_nothing_are_not_shown():
  """Rows and examples without targets are skipped."""
  config = test_head_losses.with_heads("bert")
  (unpacked, packed) = test_head_losses.asked("encoder_only")
  graphdef, params = toy.split(toy.model(config))
  state = train_state.TrainState(jnp.zeros((), jnp.int32), params, {}, ())
  answered = lambda batch, number: samples.answered(
    graphdef, state, batch, vocabulary=Ids(), hidden_ids=(0,), number=number
  )
  batch = {name: jnp.asarray(x) for name, x in unpacked.items()}
  rows = len(batch["encoder_input_tokens"])
  every = answered(batch, rows)
  quiet = batch | {"encoder_answer_heads": batch["encoder_answer_heads"].at[0].set(0)}
  assert len(every) == rows and answered(quiet, rows) == every[1:]
  # The second example of a packed row, if the first has no targets.
  groups, heads = (packed[f"encoder_answer_{name}"] for name in ("groups", "heads"))
  later = {name: jnp.asarray(x) for name, x in packed.items()}
  later["encoder_answer_heads"] = jnp.where(groups == 1, 0, heads)
  has_second = np.flatnonzero((np.asarray(later["encoder_answer_heads"]) > 0).any(axis=1))
  assert len(has_second) and len(answered(later, 99)) == len(has_second)
