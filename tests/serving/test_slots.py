"""Texts that are generated together, and begin and end at different times."""

import functools
import threading
import weakref

import jax
import numpy as np
import pytest
import toy

from t2t import UserError, sharding
from t2t.checkpoints import pretrained
from t2t.inference import decoding
from t2t.models import int8_matrix
from t2t.serving import routes, slots

LENGTH = 7
KINDS = ["t5_1_1", "llama", "awd_lstm", "luong", "gpt2 in int8"]
KINDS += ["gpt2", "gemma_t5", "t5gemma", "bart", "learned_prefix_lm", "mixtral", "switch", "transformer_xl"]
KINDS += ["gru_seq2seq", "universal_gpt", "local_llama", "reformer", "mpt"]


def prompts(config, number):
  """Returns batches of one prompt each."""
  rows = toy.batch((7, 4, 5, 3, 6) * 4, (1,) * 20, padded_to=(8, 1), architecture=config.architecture)
  return [{name: x[i : i + 1] for name, x in rows.items()} for i in range(number)]


def group(kind="t5_1_1", *, eos_id=toy.EOS, **options):
  """Returns a model with its slots; "KIND in int8" has matrices in int8."""
  kind, _, in_int8 = kind.partition(" in ")
  model = toy.model(toy.KINDS[kind], seed=3)
  model = int8_matrix.weight_only(model) if in_int8 else model
  graphdef, params = toy.split(model)
  mesh = sharding.make_mesh({"data": 1}, devices=jax.devices()[:1])
  found = pretrained.PretrainedModel(model.config, graphdef, params)
  programs = slots.Programs(found, decoding.DecodeConfig(LENGTH, **options), eos_id=eos_id)
  return model, slots.Slots(programs, params, mesh, "", weakref.WeakValueDictionary())


decode = functools.cache(decoding.make_decode)


def keys(*numbers):
  return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), np.array(numbers, np.uint32))


def alone(model, batch, number, *, eos_id, limit, **options):
  """Returns tokens without EOS, and the score, of a text that is generated alone."""
  graphdef, params = toy.split(model)
  found = decode(graphdef, decoding.DecodeConfig(limit, **options), eos_id=eos_id)(params, batch, keys(number))
  tokens = found.tokens[0, 0].tolist()
  return tokens[: tokens.index(eos_id)] if eos_id in tokens else tokens, float(found.scores[0, 0])


@pytest.mark.slow
@pytest.mark.exhaustive_from(4)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_the_one_that_is_generated_alone(kind):
  """Texts come at random, in ones and threes, with several limits; more than the rows wait in line."""
  options, random = {"temperature": 1.0}, np.random.default_rng(1)
  model, rows = group(kind, eos_id=9, **options)
  batches, requests, waiting = prompts(model.config, 12), [], []
  sizes = set()
  for number, batch in enumerate(batches):
    texts = [slots.RunningText(int(random.choice([2, LENGTH]))) for _ in range(1 if number % 3 else 3)]
    numbers = [100 * number + i for i in range(len(texts))]
    rows.line_up(texts)
    requests.append((batch, texts, numbers))
    waiting.append((batch, texts, numbers))
    for _ in range(random.integers(0, 3)):
      while waiting and rows.enter(waiting[0][1], waiting[0][0], keys(*waiting[0][2])):
        del waiting[0]
      rows.advance()
      sizes.add(rows.size)
  while waiting or rows.size:
    while waiting and rows.enter(waiting[0][1], waiting[0][0], keys(*waiting[0][2])):
      del waiting[0]
    rows.advance()
    sizes.add(rows.size)
  assert {4, 8} <= sizes
  for batch, texts, numbers in requests:
    for text, number in zip(texts, numbers, strict=True):
      tokens, score = alone(model, batch, number, eos_id=9, limit=text.limit, **options)
      assert text.is_complete and text.tokens == tokens
      assert text.score == pytest.approx(score, abs=1e-4)
  assert rows.size == 0 and not rows.is_used


def test_texts_wait_in_line():
  """Seventeen texts need more rows than there are: the last begins when another ends, and not before."""
  model, rows = group(eos_id=-1)
  batches = prompts(model.config, 3)
  requests = [
    ([slots.RunningText(3) for _ in range(15)], batches[0]),
    ([slots.RunningText(2), slots.RunningText(2)], batches[1]),
  ]
  requests.append(([slots.RunningText(1)], batches[2]))
  for texts, _ in requests:
    rows.line_up(texts)
  enter = lambda i: rows.enter(requests[i][0], requests[i][1], keys(*range(len(requests[i][0]))))
  assert not enter(2) and enter(0)
  assert not enter(1) and not enter(2)  # the last fits, but it is not first in line
  requests[0][0][4].left = True
  assert enter(1) and not enter(2)
  for _ in range(3):
    rows.advance()
  assert enter(2)
  rows.advance()
  assert [len(text.tokens) for texts, _ in requests for text in texts if not text.left] == [3] * 14 + [2, 2, 1]


def test_a_text_that_nobody_waits_for_leaves_the_line():
  model, rows = group(eos_id=-1)
  batch = prompts(model.config, 1)[0]
  gone, stays = [slots.RunningText(2)], [slots.RunningText(2)]
  rows.line_up(gone)
  rows.line_up(stays)
  gone[0].left = True
  assert rows.enter(stays, batch, keys(0))


def test_memory_is_freed_when_nobody_reads():
  """A group of texts whose clients left is unused; groups of one model share its weights while one is in use."""
  model, rows = group(eos_id=-1)
  batch, texts = prompts(model.config, 1)[0], [slots.RunningText(LENGTH)]
  other = slots.Slots(rows._programs, rows._params, rows._mesh, "", rows._all_shared)
  for each, entering in ((rows, texts), (other, [slots.RunningText(LENGTH)])):
    each.line_up(entering)
    assert each.enter(entering, batch, keys(0)) and each.is_used
  assert rows._shared is other._shared
  texts[0].left = True
  assert not rows.is_used and other.is_used
  rows.advance()
  assert rows.size == 0 and len(rows._all_shared) == 1
  while other.is_used:
    other.advance()
  assert not rows._all_shared


def test_a_failed_step_ends_all_texts(monkeypatch):
  """Each text has the error, and further texts are generated."""
  model, rows = group(eos_id=-1)
  batch = prompts(model.config, 1)[0]
  first, second = [slots.RunningText(LENGTH)], [slots.RunningText(LENGTH)]
  for texts in (first, second):
    rows.line_up(texts)
    assert rows.enter(texts, batch, keys(0))
  step = rows._programs.step
  monkeypatch.setattr(rows._programs, "step", lambda *_: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    rows.advance()
  assert all(isinstance(text.error, ZeroDivisionError) for text in (*first, *second)) and rows.size == 0
  monkeypatch.setattr(rows._programs, "step", step)
  third = [slots.RunningText(LENGTH)]
  rows.line_up(third)
  assert rows.enter(third, batch, keys(0))
  while rows.size:
    rows.advance()
  assert third[0].tokens == alone(model, batch, 0, eos_id=-1, limit=LENGTH)[0]


def test_decoders_that_do_not_go_from_left_to_right():
  found = pretrained.PretrainedModel(toy.encoder(decoder="unmask"), toy.split(toy.model(toy.encoder()))[0], {})
  with pytest.raises(UserError, match="cannot stream"):
    slots.Programs(found, decoding.DecodeConfig(LENGTH), eos_id=1)


# ---- The lock --------------------------------------------------------------------------------------------------------


def test_turns_are_taken_in_order():
  """Ten threads ask while the lock is held, and get it in this order; the third gives up."""
  device, order = routes.Turns(), []
  holder = device.ask()
  turns = [device.ask() for _ in range(10)]
  assert holder.is_set() and not any(turn.is_set() for turn in turns)
  device.give_up(turns.pop(2))

  def take(number):
    turns[number].wait(10.0)
    order.append(number)
    device.release()

  threads = [threading.Thread(target=take, args=(number,)) for number in range(9)]
  for thread in threads:
    thread.start()
  device.release()
  for thread in threads:
    thread.join()
  assert order == list(range(9))
  with device.held():
    assert not device.ask().is_set()


def test_a_request_that_gives_up_its_turn_passes_it_on(monkeypatch):
  """A client that leaves while it waits neither keeps the lock nor its place."""
  device = routes.Turns()
  device.ask()
  first, second = routes.waiting(device), device.ask()
  monkeypatch.setattr(routes, "LONGEST_WAIT", 0.0)
  assert next(first) == {"state": "waiting"}
  with pytest.raises(routes.Busy, match="retry later"):
    next(first)
  device.release()
  assert second.is_set()
  third = routes.waiting(device)
  assert next(third) == {"state": "waiting"}
  third.close()
  device.release()
  assert device.ask().is_set()
