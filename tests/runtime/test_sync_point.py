"""All processes act on a request at the same point, whichever of them receives it and however far each is."""

import threading

from hypothesis import given
from hypothesis import strategies as st
import pytest

from t2t.runtime import sync_point
from t2t.runtime.sync_point import SAVE, STOP, SyncRequest

PROCESSES = 3


class Wires:
  """Ordered links between processes whose messages a test delivers."""

  def __init__(self):
    self.waiting = {}
    everyone = range(PROCESSES)
    send = lambda sender: lambda other, word, text: self.waiting.setdefault((sender, other), []).append((word, text))
    others = lambda index: [other for other in everyone if other != index] if index == 0 else [0]
    self.all = [sync_point.Agreement(index, others(index), send(index)) for index in everyone]

  def deliver(self, choose) -> bool:
    wires = sorted(wire for wire, messages in self.waiting.items() if messages)
    if not wires:
      return False
    sender, other = wires[choose(len(wires))]
    self.all[other].take(sender, *self.waiting[sender, other].pop(0))
    return True


@pytest.mark.slow
@given(st.data())
def test_all_do_the_same_at_the_same_point(data):
  """With any delay of messages, and with processes that are some points ahead."""
  wires, points, found = Wires(), [0] * PROCESSES, [{} for _ in range(PROCESSES)]
  choose = lambda number: data.draw(st.integers(0, number - 1))

  def go_on(index):
    if not wires.all[index]._counting:  # otherwise it would wait
      points[index] += 1
      asked = wires.all[index].reached()
      if asked:
        found[index][points[index]] = asked.wish

  for _ in range(data.draw(st.integers(1, 4))):
    wires.all[choose(PROCESSES)].ask(SyncRequest(data.draw(st.sampled_from([SAVE, STOP])), 15, ""))
    for _ in range(choose(12)):
      if data.draw(st.booleans()):
        wires.deliver(choose)
      else:
        go_on(choose(PROCESSES))
  while wires.deliver(choose):
    pass
  last = max(points) + 1
  for index in range(PROCESSES):
    while points[index] < last:
      go_on(index)
  assert found[0] and found == [found[0]] * PROCESSES


def test_alone_it_is_the_next_point():
  """Once."""
  alone = sync_point.Agreement()
  assert alone.reached() is None
  alone.ask(SyncRequest(STOP, 15, "why"))
  assert alone.reached() == (STOP, 15, "why") and alone.reached() is None


def test_nobody_passes_a_point_while_they_count():
  """Otherwise the chosen point might be passed already."""
  wires, passed = Wires(), threading.Event()
  wires.all[1].ask(SyncRequest(STOP, 15, ""))
  wires.deliver(lambda number: 0)  # the first process counts
  thread = threading.Thread(target=lambda: (wires.all[0].reached(), passed.set()))
  thread.start()
  assert not passed.wait(0.05)
  while wires.deliver(lambda number: 0):
    pass
  thread.join()
  assert passed.is_set() and wires.all[1].reached()
