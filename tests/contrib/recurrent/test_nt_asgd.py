"""NT-ASGD: the trigger, the average from there on, and runs that are stopped."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_array_batches
import test_state_collections

import t2t
from t2t.configuration import loading
from t2t.contrib.recurrent import nt_asgd
from t2t.training import state_collections
from t2t.training.run import Callback


def first_trigger(losses, interval):
  """Returns the index of the loss at which averaging starts, as algorithm 1 of the paper states it; None: never."""
  logs = []
  for t, loss in enumerate(losses):
    if t > interval and loss > min(logs[: t - interval]):
      return t
    logs.append(loss)
  return None


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_trigger_is_that_of_the_paper(interval):
  random = np.random.default_rng(interval)
  for _ in range(50):
    losses = list(3.0 - 0.1 * np.arange(30) + random.normal(size=30))
    found = next((i for i, x in enumerate(losses) if nt_asgd.triggers(losses[:i], x, interval)), None)
    assert found == first_trigger(losses, interval)
  assert not any(nt_asgd.triggers([1.0] * i, 1.0, interval) for i in range(9))  # an equal loss is not above


def test_the_average_is_the_mean_since_the_trigger():
  """Before the trigger it is the parameters, exactly."""
  options = {"optimizer.average": "nt_asgd", "eval.average": True}
  collections = state_collections.of_run(loading.records(test_state_collections.config(**options)))
  values, params = state_collections.init(collections, {"a": {"b": jnp.zeros(2)}})
  taken = []
  for step in range(9):
    if step == 4:
      more = values["average"][nt_asgd.weight_average.MORE] | {"started": jnp.ones((), jnp.int32)}
      values = {"average": {**values["average"], nt_asgd.weight_average.MORE: more}}
    params = jax.tree.map(lambda x, step=step: x + jnp.sin(step + jnp.arange(2.0)), params)
    values, params = state_collections.update(collections, values, params, jnp.asarray(step))
    taken = [*taken, params["a"]["b"]] if step > 4 else [params["a"]["b"]]
    evaluated = state_collections.evaluated(collections, values, params)["a"]["b"]
    np.testing.assert_allclose(evaluated, np.mean(taken, axis=0), rtol=1e-5)
    if len(taken) == 1:
      np.testing.assert_array_equal(evaluated, params["a"]["b"])


class Worse(Callback):
  """Makes the weights of a step random, so that the held-out loss after it rises."""

  def __init__(self, step):
    self.step = step

  def on_batch(self, run, batch):
    del batch
    if run.step == self.step - 1:
      spoiled = jax.tree.map(lambda x: x * 3.0, run.state.params)
      run.state = dataclasses.replace(run.state, params=spoiled)


@pytest.mark.exhaustive
def test_stopped_after_every_step_equals_never_stopped(tmp_path):
  """The average starts after the evaluation that is worse, also in a resumed run; bit for bit."""
  steps = 6
  options = {"train.steps": steps, "eval.every": 1, "checkpoint.save_interval_steps": 1, "eval.average": True}
  options |= {"optimizer.average": "nt_asgd", "optimizer.average_last": 1}
  config = test_state_collections.config(**options)
  data = {"batches": test_array_batches.random_batches, "eval_batches": test_array_batches.held_out()}
  whole, stopped = test_state_collections.Recorder(), test_state_collections.Recorder()
  t2t.train(config, str(tmp_path / "whole"), callbacks=[Worse(4), whole], **data).run()
  for last in range(1, steps + 1):
    for row in t2t.train(config, str(tmp_path / "stopped"), callbacks=[Worse(4), stopped], **data):
      if row["step"] == last:
        break
  jax.tree.map(np.testing.assert_array_equal, stopped.values[-1], whole.values[-1])
  counts = [int(value["average"][nt_asgd.weight_average.MORE]["count"]) for value in whole.values]
  assert counts[:4] == [0, 0, 0, 0] and counts[-1] > 0
  losses = [*whole.losses]
  start = first_trigger(losses, 1)
  assert counts == [max(0, step - start) for step in range(steps)]
