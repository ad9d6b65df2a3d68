"""Encoder-decoders initialized from an encoder (Rothe et al. 2020): parameters taken, and training."""

import dataclasses
import re

from etils import epath
from flax import nnx
import foreign
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from t2t import __main__ as command
from t2t import sharding
from t2t.checkpoints import pretrained, tensor_writer
from t2t.checkpoints.warm_start import warm_start
from t2t.configuration.loading import load_config, override, records
from t2t.training import recipe

pytestmark = pytest.mark.slow

BERT = dataclasses.replace(toy.KINDS["bert"], vocab_size=384)
KEYS = ("--config.model.architecture=encoder_decoder", f"--config.model.num_decoder_layers={BERT.num_encoder_layers}")
# name -> keys, log of taken and of fresh parameters, with their numbers
VARIANTS = {
  "bert2bert": (
    ("--config.init.rename=embed,head,encoder,encoder=decoder", "--config.init.reinit=cross_attention"),
    "embed, encoder, head, encoder as decoder (8.28k)",
    "decoder/layers/cross_attention (4.87k), decoder/layers/cross_attention_norm (96)",
  ),
  "bert2rnd": (
    ("--config.init.rename=embed,head,encoder", "--config.init.reinit=decoder"),
    "embed, encoder, head",
    "decoder (13.2k)",
  ),
  "shared": (
    ("--config.init.rename=embed,head,encoder", "--config.init.reinit=decoder", "--config.model.share_stacks=True"),
    "embed, encoder, head",
    "decoder (4.97k)",
  ),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
  """A BERT on bytes, and its parameters."""
  folder, params = tmp_path_factory.mktemp("bert"), foreign.random_params(BERT)
  tensor_writer.save(foreign.in_memory(BERT, params), epath.Path(folder))
  return folder, params


@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_decoder_begins_as_the_encoder(name, encoder, capsys):
  """The decoder is fresh, a copy, or shared; the log contains fresh and renamed parts with their sizes."""
  folder, theirs = encoder
  keys, taken_parts, fresh = VARIANTS[name]
  source, config = pretrained.read_source(str(folder)), load_config("finetune_docs_summary")
  pretrained.adopt(config, source)
  config = records(override(config, [*KEYS, *keys]))
  mesh = sharding.make_mesh({"fsdp": 8})
  with jax.set_mesh(mesh):
    program = recipe.make(config).build(mesh)
    taken = warm_start(source, program.state.params, fresh=config.init.reinit, parts=config.init.rename)
    found = toy.flat(program.init_from_params(taken.over)(taken.params, toy.key()).params)
  said = capsys.readouterr().err.replace("\n    ", " ")
  assert re.search(rf"taken: \S+ parameters in {re.escape(taken_parts)}\n", said)
  assert re.search(rf"fresh: \S+ in {re.escape(fresh)}\n", said)
  for path, x in theirs.items():
    np.testing.assert_array_equal(found[path], x, err_msg=path)
  own = [path for path in found if path.startswith("decoder/")]
  moved = {path: path.replace("decoder", "encoder") for path in own if "cross_attention" not in path}
  assert bool(moved) == (name != "shared") and len(own) > len(moved)
  for path, origin in moved.items():
    assert np.array_equal(found[path], theirs[origin]) == (name == "bert2bert"), path
  assert found["head/transform"].shape == (16, 16) and found["embed/segments"].shape == (2, 16)


@pytest.mark.exhaustive
def test_it_learns(encoder, tmp_path):
  """A training step by the command changes both stacks and the cross-attention."""
  folder, theirs = encoder
  (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
  small = ("inputs_length=32", "targets_length=32", "objective=prefix_lm", "vocabulary=bytes", "extra_ids=0")
  files = (f"files={tmp_path}/text.txt", f"eval_files={tmp_path}/text.txt", "num_streams=1")
  arguments = [f"--config.data.{each}" for each in (*small, *files)]
  arguments += [f"--config.train.{each}" for each in ("batch_size=8", "steps=1")]
  arguments += [f"--config.eval.{each}" for each in ("batches=1", "batch_size=8", "examples=0")]
  arguments += [f"--config.optimizer.{each}" for each in ("name=sgd", "learning_rate=0.1", "schedule=constant")]
  arguments += ["--config.optimizer.warmup_steps=0", f"--config.init.checkpoint={folder}", f"--workdir={tmp_path}/run"]
  assert command.main(["train", "--config=finetune_docs_summary", *arguments, *KEYS, *VARIANTS["bert2bert"][0]]) == 0
  params = pretrained.load(pretrained.read_source(f"{tmp_path}/run"), sharding.make_mesh({"data": 8})).params
  for path, x in toy.flat(params).items():
    assert np.all(np.isfinite(x)), path
    # A bias on all keys does not change the softmax.
    if not path.endswith("key_bias") and "cross_attention" not in path:
      assert not np.array_equal(x, theirs[path.replace("decoder", "encoder")]), path


@pytest.mark.exhaustive
def test_types_of_the_encoder(encoder):
  """Token types distinguish a second part; generated text has the first type."""
  model, batch = toy.model(toy.KINDS["bert2bert"]), toy.batch()
  plain, zeros = model(batch), jnp.zeros_like(batch["encoder_input_tokens"])
  np.testing.assert_array_equal(model(batch | {"encoder_token_types": zeros}), plain)
  assert not np.allclose(model(batch | {"encoder_token_types": zeros.at[:, 2:].set(1)}), plain, atol=1e-3)
  without = dataclasses.replace(toy.KINDS["bert2bert"], segment_types=0)
  graphdef, params = toy.split(model)
  embed = dict(params["embed"])
  embed["positions"] = embed["positions"] + embed.pop("segments")[0]
  found = nnx.merge(toy.split(toy.model(without))[0], params | {"embed": embed})(batch)
  np.testing.assert_allclose(found, plain, atol=1e-5)
