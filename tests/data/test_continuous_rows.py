"""Rows that continue: each row goes on in the next batch, on any number of hosts, and a run resumes at the same row."""

import dataclasses

import numpy as np
import pytest
import seqio
import tensorflow as tf
from test_example_windows import (  # noqa: F401
  assert_same,
  assert_stopping_changes_nothing,
  batches,
  files,
  mesh,
  register,
  small,
  take,
)

from t2t import UserError
from t2t.configuration import loading
from t2t.data import continuous_rows, pipeline
from t2t.training import config_checks


def test_the_order_is_that_of_the_docstring():
  """Each example occurs once, and examples of a part follow each other at the same row of successive batches."""
  examples, follows = continuous_rows.order(tf.constant(7, tf.int64), 3)
  np.testing.assert_array_equal(examples, [0, 3, 5, 1, 4, 6, 2])
  np.testing.assert_array_equal(follows, [False] * 3 + [True] * 4)
  for number in (1, 2, 3, 12, 13):
    examples = continuous_rows.order(tf.constant(number, tf.int64), 3)[0].numpy()
    assert sorted(examples) == list(range(number))
    np.testing.assert_array_equal(np.diff(examples)[2:] if number < 3 else examples[3:] - examples[:-3], 1)


@pytest.mark.slow
def test_rows_go_on_in_the_next_batch(files):  # noqa: F811
  """Flagged rows, joined, are the text, and each begins with the last token before it. Stopping changes nothing."""
  data = dataclasses.replace(files, objective="causal_lm", continuous_rows=True, num_streams=0)
  iterator = batches(data, "decoder_only")
  assert iterator.num_streams == 1
  rows = assert_stopping_changes_nothing(iterator, steps=5, every=3)
  text = " ".join([line for name in "ab" for line in (files_text(files, name))] * 2)  # epochs of a small file
  continued = 0
  for before, after in zip(rows, rows[1:], strict=False):
    for row in np.flatnonzero(after["decoder_continues"][:, 0]):
      targets = np.concatenate([before["decoder_target_tokens"][row], after["decoder_target_tokens"][row]])
      assert after["decoder_input_tokens"][row, 0] == before["decoder_target_tokens"][row, -1]
      assert decoded(targets) in text, decoded(targets)
      continued += 1
    new = after["decoder_continues"][:, 0] == 0
    np.testing.assert_array_equal(after["decoder_input_tokens"][new, 0], 0)
  assert continued > 8


def files_text(data, name):
  with open(data.files.replace("?", name)) as file:
    return file.read().split("\n")


def decoded(targets):
  """Returns the text of bytes, with a space for EOS between records."""
  return bytes(b - 3 if b > 2 else 32 for b in targets[targets > 0]).decode().strip()


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_streams_read(files):  # noqa: F811
  """Two streams, each with half of the rows, read by one host or by two."""
  data = dataclasses.replace(files, objective="causal_lm", continuous_rows=True)
  whole = take(batches(data, "decoder_only"), 3)
  assert np.any(whole[1]["decoder_continues"]) and not np.any(whole[0]["decoder_continues"])
  assert whole[0]["decoder_continues"].shape == (8, 1)


@pytest.mark.slow
def test_rows_after_skipped_batches_continue_nothing(files):  # noqa: F811
  """The memory is of the batch before the skipped ones; the batch after next continues as usual."""
  data = dataclasses.replace(files, objective="causal_lm", continuous_rows=True, num_streams=0)
  iterator = batches(data, "decoder_only")
  take(iterator, 1)
  state = iterator.state()
  whole = take(iterator, 3)
  assert all(np.any(batch["decoder_continues"]) for batch in whole)
  iterator.restore(state, step=1)
  iterator.skip(1)
  assert not np.any((rest := take(iterator, 2))[0]["decoder_continues"])
  assert_same(rest, [whole[1] | {"decoder_continues": np.zeros((8, 1), np.int32)}, whole[2]])
  iterator.skip(1)
  iterator.restore(state, step=1)
  assert_same(take(iterator, 1), whole[:1])


@pytest.mark.slow
def test_held_out_rows_continue_from_the_beginning_of_the_text(files):  # noqa: F811
  """Rows of all batches, joined where they continue, are parts of the text in its order, each token once."""
  data = dataclasses.replace(
    files, objective="causal_lm", continuous_rows=True, eval_files=files.files.replace("?", "b")
  )
  held_out = lambda data, number: pipeline.eval_batches(data, "decoder_only", mesh(), batch_size=8, max_batches=number)
  found = [{name: np.asarray(x) for name, x in batch.items()} for batch in held_out(data, 50)]
  assert not np.any(found[0]["decoder_continues"]) and len(found) > 3
  streams = []
  for row in range(8):
    for batch in found:
      if not batch["decoder_continues"][row]:
        streams.append([])
      streams[-1] += batch["decoder_target_tokens"][row].tolist()
  text = " ".join(files_text(files, "b"))
  parts = [decoded(np.array(stream)) for stream in streams if any(stream)]
  assert len(parts) < 20 and all(part in text for part in parts)
  shuffled = held_out(dataclasses.replace(data, continuous_rows=False), 50)
  count = lambda batches: sum(int(np.sum(batch["decoder_loss_weights"])) for batch in batches)
  assert count(found) == count(shuffled)
  assert_same([{name: np.asarray(x) for name, x in batch.items()} for batch in held_out(data, 2)], found[:2])


def test_a_memory_and_rows_that_continue_need_each_other():
  """The errors name both keys."""

  def run(**keys):
    from t2t.configs import default

    config = default.get_config()
    config.update_from_flattened_dict({"model.vocab_size": 384, "data.files": "x.txt", "data.vocabulary": "bytes"})
    config.model.update(architecture="decoder_only", num_encoder_layers=0, num_decoder_layers=2)
    config.update_from_flattened_dict(keys)
    config_checks.check_continuous(loading.records(config))

  run(**{"data.continuous_rows": True, "model.memory_length": 8})
  for keys, message in (
    ({"model.memory_length": 8}, "config.model.memory_length=8: .* Set --config.data.continuous_rows=True"),
    ({"data.continuous_rows": True}, "has no effect with config.model.memory_length=0"),
    ({"data.continuous_rows": True, "model.memory_length": 8, "data.pack": True}, "config.data.pack=True"),
  ):
    with pytest.raises(UserError, match=message):
      run(**keys)


def test_rows_of_several_tasks_or_with_inputs_are_refused(files, register):  # noqa: F811
  """Before anything is read; a mixture has one name."""
  data = dataclasses.replace(files, continuous_rows=True, objective="prefix_lm")
  with pytest.raises(UserError, match="continuous_rows=True, but config.data.files=.*: the task files has inputs"):
    pipeline.plan(data, "decoder_only", pipeline.load_task(data), train=True, seed=0)
  names = [register(f"continuous_{number}", number=number) for number in range(2)]
  seqio.MixtureRegistry.add("continuous_mixture", names, default_rate=1)
  try:
    mixed = dataclasses.replace(data, files="", mixture="continuous_mixture", eval_split="train")
    task = pipeline.load_task(mixed)
    with pytest.raises(UserError, match="config.data.mixture=continuous_mixture mixes 2 tasks"):
      pipeline.plan(mixed, "decoder_only", task, train=True, seed=0)
  finally:
    seqio.MixtureRegistry.remove("continuous_mixture")
