"""Reads traces: synthetic ones of accelerators with known times, and operations on intervals."""

from hypothesis import given, strategies
import jax
import numpy as np
import pytest

from t2t.reports import page, profile

# A host and two devices; times are in microseconds. Steps of 100 with an evaluation from 250 to 300.
HOST = [
  ("train", 0, 100),
  ("t2t:input", 0, 20),
  ("train", 100, 300),
  ("t2t:input", 110, 130),
  ("t2t:paused", 200, 300),
  ("other", 5, 7),
]
DEVICES = {
  "/device:TPU:0": [
    ("%while.1 = f32[] while", 20, 80),
    ("%fusion.2 = f32[2] fusion", 30, 60),
    ("%dot.3 = f32[] dot", 120, 180),
  ],
  "/device:TPU:1": [("%dot.3 = f32[] dot", 100, 200), ("%eval.4 = f32[] dot", 210, 290)],
}


def xspace(planes) -> bytes:
  """Returns a trace: plane -> line -> (event, begin, end)."""
  texts = []
  for plane, lines in planes.items():
    names = sorted({name for events in lines.values() for name, *_ in events})
    metadata = "".join(
      f'event_metadata {{ key: {key} value {{ id: {key} name: "{name}" }} }}\n'
      for key, name in enumerate(names, start=1)
    )
    text = ""
    for number, (line, events) in enumerate(lines.items(), start=1):
      inside = "".join(
        f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {begin * 10**6} "
        f"duration_ps: {(end - begin) * 10**6} }}\n"
        for name, begin, end in events
      )
      text += f'lines {{ id: {number} name: "{line}" timestamp_ns: 1000 {inside} }}\n'
    texts.append(f'planes {{ name: "{plane}" {metadata} {text} }}\n')
  return jax.profiler.ProfileData.text_proto_to_serialized_xspace("".join(texts))


def test_a_trace_of_two_devices_has_known_shares():
  """Operations of the evaluation do not count, and the time of a loop is without its operations."""
  ignored = {"Steps": [("1", 0, 100)], "XLA Modules": [("jit_step", 0, 100)]}
  devices = {name: {"XLA Ops": events, **ignored} for name, events in DEVICES.items()}
  trace = profile.parse("steps_1-2", xspace({"/host:CPU": {"python": HOST}, **devices}))
  assert (trace.num_steps, trace.num_devices, trace.error) == (2, 2, "")
  assert trace.seconds == pytest.approx(100e-6)
  # Of 200: device 0 computes 120 and is idle in a wait for 30, device 1 for 100 and 20.
  assert (trace.device, trace.input_wait) == pytest.approx((0.55, 0.125))
  assert trace.device + trace.input_wait + trace.host == pytest.approx(1.0)
  seconds = {x.name: 1e6 * x.seconds * 4 for x in trace.operations}
  assert seconds == pytest.approx({"dot.3": 160.0, "while.1": 30.0, "fusion.2": 30.0})
  assert [x.name for x in trace.operations][0] == "dot.3"
  text = "".join(profile.parts([trace], "runs/<b>"))
  assert "dot.3" in text and "72.7%" in text and page.escaped("runs/<b>/profile") in text


def test_clocks_that_differ_leave_the_lengths():
  """The times of a device may begin elsewhere; then only the length of its work is known."""
  late = [(name, begin + 10_000, end + 10_000) for name, begin, end in DEVICES["/device:TPU:0"]]
  trace = profile.parse("steps_1-2", xspace({"/host:CPU": {"python": HOST}, "/device:TPU:0": {"XLA Ops": late}}))
  assert (trace.device, trace.input_wait, trace.host) == pytest.approx((0.6, 0.2, 0.2))


def test_damaged_traces_are_told(tmp_path):
  folder = tmp_path / "profile" / "plugins" / "profile"
  contents = {
    "steps_1-2": b"\xff\xff",
    "steps_3-4": xspace({"/host:CPU": {"python": [("a", 0, 1)]}}),
    "steps_21-22": None,
  }
  for name, content in contents.items():
    (folder / name).mkdir(parents=True)
    if content is not None:
      (folder / name / "process_0.xplane.pb").write_bytes(content)
  traces = profile.read(tmp_path)
  assert [trace.name for trace in traces] == list(contents) and all(trace.error for trace in traces)
  assert "steps_3-4: no training step" in "".join(profile.parts(traces, "run"))


PAIRS = strategies.lists(strategies.tuples(strategies.integers(0, 30), strategies.integers(1, 9)), max_size=6)


def covered(intervals) -> set[int]:
  return {x for begin, end in np.asarray(intervals, int).tolist() for x in range(begin, end)}


@given(PAIRS, PAIRS)
def test_intervals_are_sets(first, second):
  """Union, intersection, difference and length equal those of sets of integers."""
  a, b = ([(begin, begin + length) for begin, length in pairs] for pairs in (first, second))
  joined = profile._union(a)
  assert covered(joined) == covered(np.reshape(a, (-1, 2))) and profile._length(joined) == len(covered(joined))
  assert all(end < begin for (_, end), (begin, _) in zip(joined, joined[1:], strict=False))
  other = profile._union(b)
  assert covered(profile._both(joined, other)) == covered(joined) & covered(other)
  assert covered(profile._without(joined, other)) == covered(joined) - covered(other)
