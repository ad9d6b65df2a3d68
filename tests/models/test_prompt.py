import dataclasses
import re

import adapters as shared
from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import trained

from t2t import UserError, sharding
from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.data import vocabularies
from t2t.models import adapters as adapters_lib
from t2t.models.adapters import prompt
from t2t.training import recipe

pytestmark = pytest.mark.slow

LENGTH = 5
PROMPT = prompt.PromptConfig(length=LENGTH)


def with_prompt(config):
  """Returns a model with a prompt, and the same model with the prompt's vectors as additional tokens."""
  model = adapters_lib.adapt(toy.model(config), {"prompt": PROMPT}, nnx.Rngs(toy.key(1)))
  params = toy.split(model)[1]
  whole = toy.split(toy.model(dataclasses.replace(config, vocab_size=config.vocab_size + LENGTH)))
  flat = traverse_util.flatten_dict(params, sep="/")
  (added,) = (path for path in flat if path.endswith("embed/prompt"))
  vectors = {added.replace("prompt", "table"): flat.pop(added)}
  for path in [path for path in flat if path.endswith("embed/table")]:
    rows = vectors.get(path, np.zeros((LENGTH, flat[path].shape[1]), np.float32))
    flat[path] = jnp.concatenate([flat[path], rows])
  # Logits of the additional tokens are ignored.
  given = traverse_util.flatten_dict(whole[1], sep="/")
  flat = {path: x if given[path].shape == x.shape else given[path] for path, x in flat.items()}
  return model, nnx.merge(whole[0], traverse_util.unflatten_dict(flat, sep="/"))


def with_ids(config, batch):
  """Returns a batch with these tokens before the input side."""
  side = config.kind.answers
  ids = np.broadcast_to(config.vocab_size + np.arange(LENGTH), (2, LENGTH))
  front = {"input_tokens": ids, "token_types": 0 * ids, "causal_attention": 0 * ids + 1}
  found = dict(batch)
  for name, x in front.items():
    if f"{side}_{name}" in batch:
      found[f"{side}_{name}"] = np.concatenate([x.astype(np.int32), batch[f"{side}_{name}"]], axis=1)
  return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", toy.KINDS)
def test_it_is_a_text_with_more_tokens_in_front(kind):
  """States and logits of the text equal a model's that reads tokens with the prompt's vectors first.

  The prompt therefore has the first positions, and the text the following ones.
  """
  config = toy.KINDS[kind]
  model, whole = with_prompt(config)
  batch = toy.batch(architecture=config.architecture)
  run = jax.jit(lambda model, batch: (model(batch), model.states(batch)))
  (hidden, states), (expected, expected_states) = run(model, batch), run(whole, with_ids(config, batch))
  cut = lambda x: x if config.kind.has_encoder_and_decoder else x[:, LENGTH:]
  np.testing.assert_allclose(hidden, cut(expected), atol=1e-5)
  np.testing.assert_allclose(states, expected_states[:, LENGTH:], atol=1e-5)
  without = jax.jit(lambda model, batch: model(batch))(toy.model(config), batch)
  assert np.max(np.abs(hidden - without)) > 1e-2


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("kind", toy.REPRESENTATIVES)
def test_rows_that_say_their_positions_are_the_same(kind):
  """Rows for heads, with segments: one text in a row."""
  config = toy.KINDS[kind]
  model, _ = with_prompt(config)
  batch = toy.batch(architecture=config.architecture)
  side = config.kind.answers
  tokens = batch.get(f"{side}_target_tokens", batch[f"{side}_input_tokens"])
  said = {"segment_ids": (tokens > 0).astype(jnp.int32), "positions": jnp.arange(tokens.shape[1])[None] + 0 * tokens}
  rows = batch | {f"{side}_{name}": x for name, x in said.items()}
  states = jax.jit(lambda model, batch: model.states(batch))
  at = np.asarray(tokens > 0)
  np.testing.assert_allclose(states(model, rows)[at], states(model, batch)[at], atol=1e-5)


def test_every_layer_is_cut_alike():
  """For heads that mix all layers."""
  model, _ = with_prompt(toy.KINDS["bert"])
  batch = toy.batch(architecture="encoder_only")
  states = model.states(batch, every_layer=True)
  assert states.shape[:3] == (4, *batch["encoder_input_tokens"].shape)
  np.testing.assert_allclose(states[-1], model.states(batch), atol=1e-6)


# ---- How it begins ---------------------------------------------------------------------------------------------------


def vocabulary():
  return vocabularies.load("bytes", extra_ids=0)


def test_it_begins_with_the_words_of_a_text():
  """Repeated or cut off to the prompt's length."""
  begins = lambda length: prompt.PromptConfig(length=length, init="text", text="ab c")
  ids = vocabulary().encode("ab c")
  assert prompt.starts(begins(9), vocabulary(), seed=0) == [*ids, *ids, ids[0]]
  assert prompt.starts(begins(3), vocabulary(), seed=0) == ids[:3]


def test_it_begins_with_frequent_pieces():
  """Each is text, different from the previous one if possible, and among the first; by the seed."""
  frequent = prompt.PromptConfig(length=20, most_frequent=40)
  found = prompt.starts(frequent, vocabulary(), seed=0)
  texts = [vocabulary().decode([each]) for each in found]
  assert len(set(found)) == 20 and all(text.strip() for text in texts)
  assert set(texts) <= {chr(each) for each in range(128)}
  assert found == prompt.starts(frequent, vocabulary(), seed=0) != prompt.starts(frequent, vocabulary(), seed=1)
  assert len(prompt.starts(dataclasses.replace(frequent, most_frequent=3), vocabulary(), seed=0)) == 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--config.prompt.init=text", "--config.prompt.text=fox")])
def test_a_run_begins_with_vectors_of_its_checkpoint(options, tmp_path):
  """By the command: with a rate of zero the prompt equals rows of the checkpoint's embedding; resuming works."""
  base = trained.workdir("encoder_decoder")
  fixed = ("--config=t5_1_1_small", "--config.init.use_model_config=True", "--config.prompt.length=4", *options)
  small = (*trained.SMALL[len(trained.MODEL) :], f"--config.data.files={base}.jsonl", "--config.optimizer.name=adamw")
  start = lambda path: f"--config.init.checkpoint={path}"
  rate = "--config.optimizer.learning_rate=0.0"
  assert command.main(["train", *fixed, *small, start(base), rate, "--workdir", str(tmp_path / "run")]) == 0
  mesh = sharding.make_mesh({"fsdp": 8})
  params = toy.flat(pretrained.load(pretrained.read_source(str(tmp_path / "run")), mesh).params)
  table, vectors = np.asarray(params["embed/table"]), np.asarray(params["embed/prompt"])
  rows = [np.flatnonzero(np.all(table == each, axis=1)) for each in vectors]
  assert all(len(each) == 1 for each in rows)
  if options:
    assert [int(each[0]) for each in rows] == (vocabulary().encode("fox") * 2)[:4]
  # A run that starts from it continues to train its prompt.
  assert command.main(["train", *fixed, *small, start(tmp_path / "run"), rate, "--workdir", str(tmp_path / "on")]) == 0
  again = toy.flat(pretrained.load(pretrained.read_source(str(tmp_path / "on")), mesh).params)
  np.testing.assert_array_equal(again["embed/prompt"], vectors)


# ---- What is refused, and how long texts may be ----------------------------------------------------------------------

LEARNED = dict(positions="learned", max_length=40)
SHORT = ("--config.data.inputs_length=24", "--config.data.targets_length=8", "--config.prompt.length=16")


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.prompt.length=0"], "config.prompt.length=0: must be at least 1"),
    (
      ["--config.prompt.init=vocab"],
      "config.prompt.init='vocab': unknown value. Known values: .*; did you mean vocabulary?",
    ),
    (
      ["--config.prompt.init=text"],
      "config.prompt.init=text needs words, but config.prompt.text is empty. Give config.prompt.text",
    ),
    (["--config.prompt.text=a"], "config.prompt.text='a' has no effect .*. Set config.prompt.init=text"),
    (
      ["--config.prompt.also_train=nrom"],
      "config.prompt.also_train: the pattern 'nrom' matches no path. Paths: .* mean norm?",
    ),
    (["--config.prompt.length=4", "--config.data.pack=True"], r"\(config.data.pack=True\).* or set config.data.pack=F"),
  ],
)
def test_what_does_not_fit_is_refused(arguments, message):
  """Before anything is on a device; the message has the key and a value that works."""
  with pytest.raises(UserError, match=message):
    shared.program(*arguments)


def test_learned_positions_are_the_texts_and_the_prompts():
  """At the limit it works; one more is refused with a value that works."""
  shared.program(*SHORT, **LEARNED)
  with pytest.raises(
    UserError, match=r"length=17 and the encoder's 24 positions exceed the model's 40 learned .* to 23, or"
  ):
    shared.program(*SHORT, "--config.prompt.length=17", **LEARNED)
  config = toy.config(**LEARNED)
  assert adapters_lib.as_asked(config, {"prompt": PROMPT}).most_positions == 40 - LENGTH
  with pytest.raises(UserError, match="config.prompt.length=40: .* no position is left for a text"):
    adapters_lib.as_asked(config, {"prompt": prompt.PromptConfig(length=40)})


def test_what_is_computed_is_counted():
  """FLOPs of plans and runs include its positions, also with a sharded sequence; positions with a loss do not."""
  given = override(default.get_config(), list(SHORT))
  given.model.update(dataclasses.asdict(toy.decoder()))
  config = records(given)
  assert recipe.lengths(config) == {"decoder": 32} and recipe.positions(config) == {"decoder": 48}
  assert recipe.share_of_text(config) == 32 / 48
  plain = dataclasses.replace(config, sections={})
  assert recipe.make(config).flops(predicted=1.0) > 1.4 * recipe.make(plain).flops(predicted=1.0)


@pytest.mark.exhaustive
def test_a_line_is_cut_to_what_is_left(tmp_path, capsys):
  """By the command, for a decoder with learned positions: prompt, input and output fit together."""
  base = trained.workdir("decoder_only")
  fixed = ("--config=tiny_gpt", "--config.init.use_model_config=True", f"--config.init.checkpoint={base}")
  small = (*trained.SMALL[len(trained.MODEL) :], f"--config.data.files={base}.jsonl", "--config.prompt.length=30")
  lengths = ("--config.data.objective=causal_lm", "--config.data.targets_length=50")
  run = str(tmp_path / "run")
  assert command.main(["train", *fixed, *small, *lengths, "--workdir", run]) == 0
  (tmp_path / "in.txt").write_text("the quick brown fox\n")
  files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl")]
  assert command.main(["infer", "--checkpoint", run, *files, "--max_length", "8", "--beam", "2"]) == 0
  capsys.readouterr()
  more = ["--inputs_length", "48", "--max_length", "8"]
  assert command.main(["infer", "--checkpoint", run, *files, *more]) == 2
  assert re.search(r"learned 50 positions .*max_length=2 is left", " ".join(capsys.readouterr().err.split()))
