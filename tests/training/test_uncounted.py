"""Batches without counted positions: many of them end a run with an error, a few do not."""

import itertools

import numpy as np
import pytest
import test_array_batches

import t2t
from t2t import UserError
from t2t.configuration import loading
from t2t.training import recipe
from t2t.training.callbacks import uncounted as uncounted_callback

# Config and changes by loss, in addition to the tests' own sizes.
LOSSES = {
  "cross_entropy": ("t5_1_1_small", {}),
  "heads": ("bert_base", {"train.loss": "heads", "model.heads": ({"name": "nli", "num_classes": 3},)}),
  "tokens_and_heads": ("bert_nsp_base", {}),
  "electra": (
    "electra_small",
    {"model.embedding_dim": 16, "electra.embed_dim": 16, "electra.mlp_dim": 32, "electra.num_layers": 1},
  ),
  "contrastive": ("simcse_base", {}),
  "diffusion": ("mdlm_small", {"data.objective": "masked_diffusion"}),
}
_LENGTHS = {"data.inputs_length": 16, "data.targets_length": 16, "model.max_length": 16}


def config_of(loss, **changes):
  name, own = LOSSES[loss]
  encoder = {"data.objective": "masked_lm", "model.num_decoder_layers": 0} if loss != "cross_entropy" else {}
  own = {"stages": (), "data.mixture": "", "init.use_model_config": False, "optimizer.warmup_steps": 0} | own
  return t2t.config(name, test_array_batches.SMALL | encoder | (_LENGTHS if encoder else {}) | own | changes)


def shapes(config):
  return recipe.batch(loading.records(config))


def uncounted(config):
  """Returns padding only, which every loss accepts."""
  return {name: np.zeros(x.shape, x.dtype) for name, x in shapes(config).items()}


def counted(config, *terms):
  """Returns rows of tokens in which these terms count: tokens, heads."""
  found = {}
  for name, x in shapes(config).items():
    ids = np.random.default_rng(len(name)).integers(3, 300, x.shape)
    halves = 1 + (np.arange(x.shape[1]) >= x.shape[1] // 2) * np.ones(x.shape, int)
    first = (np.arange(x.shape[1]) == 0) * np.ones(x.shape, int)
    of_end = {
      "tokens": ids,
      "weights": np.ones(x.shape) * ("tokens" in terms),
      "ids": halves,
      "levels": np.full(x.shape, 2**19) * ("tokens" in terms),
      "heads": first * ("heads" in terms),
      "groups": first,
      "positions": np.broadcast_to(np.arange(x.shape[1]), x.shape),
    }
    found[name] = of_end.get(name.rpartition("_")[2], np.zeros(x.shape, int)).astype(x.dtype)
  return found


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_in_which_nothing_counts_ends_with_an_error(loss, tmp_path):
  config = config_of(
    loss, **{"train.steps": 2, "eval.every": 2, "checkpoint.save_interval_steps": 2, "eval.num_logged_samples": 0}
  )
  batches = [uncounted(config), uncounted(config)]
  run = t2t.train(config, str(tmp_path), batches=batches, eval_batches=[counted(config, "tokens", "heads")])
  with pytest.raises(
    UserError, match=rf"^step 2: .*no position counts .*config\.train\.loss={loss}: all weights are 0"
  ):
    run.run()


@pytest.mark.slow
@pytest.mark.exhaustive_from(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_held_out_batches_in_which_nothing_counts_are_refused(loss, tmp_path):
  config = config_of(loss, **{"train.steps": 2, "eval.every": 2, "checkpoint.save_interval_steps": 2})
  run = t2t.train(config, str(tmp_path), batches=[counted(config, "tokens", "heads")], eval_batches=[uncounted(config)])
  with pytest.raises(
    UserError, match=r"^eval_batches: (all .*loss_weights are 0|no position of the held-out batches counts)"
  ):
    run.run()


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_say_whether_a_batch_counts(loss):
  """For each term of each loss, because held-out batches are checked by them."""
  config = config_of(loss)
  of_loss = recipe.make(loading.records(config)).loss
  assert not any(float(weight) for weight in of_loss.weights(uncounted(config)).values())
  assert any(float(weight) for weight in of_loss.weights(counted(config, "tokens", "heads")).values())


@pytest.mark.slow
@pytest.mark.exhaustive_from(1)
@pytest.mark.parametrize(
  ("loss", "terms", "microbatches"),
  [("cross_entropy", ("tokens",), 2), ("tokens_and_heads", ("heads",), 1), ("tokens_and_heads", ("tokens",), 2)],
)
def test_a_run_goes_on_in_which_few_batches_count(loss, terms, microbatches, tmp_path, capfd, monkeypatch):
  """A late batch, a single row, or a single term counts; a few batches without are only reported."""
  monkeypatch.setattr(uncounted_callback, "_UNCOUNTED", 2)
  changes = {"train.steps": 4, "eval.every": 4, "checkpoint.save_interval_steps": 4, "eval.num_logged_samples": 0}
  config = config_of(loss, **changes, **{"train.microbatches": microbatches, "train.batch_size": 16})
  last = {name: np.where(np.arange(16)[:, None] == 15, x, 0) for name, x in counted(config, *terms).items()}
  batches = [*itertools.repeat(uncounted(config), 3), last]
  t2t.train(config, str(tmp_path), batches=batches, eval_batches=[counted(config, "tokens", "heads")]).run()
  assert capfd.readouterr().err.count("no position counts") == 1
