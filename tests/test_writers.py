import json
import struct

from etils import epath
from hypothesis import example, given, strategies
import pytest
from tensorboardX.proto import event_pb2

from t2t import writers


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (754, "12:34"), (3600, "1:00:00"), (90061, "25:01:01")],
)
def test_duration(seconds, text):
  """Minutes and seconds, and hours if there are any."""
  assert writers.duration(seconds) == text


@pytest.mark.parametrize(
  ("number", "text"),
  [(0, "0"), (950, "950"), (1234, "1.23k"), (12_345, "12.3k"), (123_456, "123k"), (4.56e6, "4.56M"), (2e9, "2.00G")],
)
def test_short(number, text):
  """Three digits and a unit."""
  assert writers.short(number) == text


@given(strategies.floats(min_value=0, max_value=9.9e11))
@example(999.7)
@example(9_999.0)
@example(99_999.0)
def test_short_is_short(number):
  """At most five characters, whatever the rounding does."""
  assert len(writers.short(number)) <= 5


def test_wrapped_lines_have_a_width():
  """Words stay whole, behind the label."""
  text = writers.wrapped("input", "one two three four", width=26)
  assert text == "  input        one two\n" + " " * 15 + "three four"


def test_progress_is_a_line_now_and_then(monkeypatch, capsys):
  """Off a terminal: the first step, the last, and one every ten seconds between."""
  now = [0.0]
  monkeypatch.setattr(writers.time, "monotonic", lambda: now[0])
  line = writers.ProgressLine(0, 100)
  for step in range(1, 101):
    now[0] += 0.3
    speed, left = (None, None) if step == 1 else (1234.0, 65.0)
    line.update(step, loss=4.0, tokens_per_second=speed, seconds_left=left)
  line.close()
  lines = capsys.readouterr().err.splitlines()
  assert [text.split()[1] for text in lines] == ["1/100", "35/100", "69/100", "100/100"]
  assert lines[0] == "step 1/100  loss 4.000"
  assert lines[1] == "step 35/100  loss 4.000  1.23k tokens/s  1:05 left"


def test_metrics_file_appends(tmp_path):
  """Lines reach the disk with flush, and a resumed run writes behind what is there."""
  path = epath.Path(tmp_path / "metrics.jsonl")
  file = writers.MetricsFile(path)
  file.write(1, {"train/loss": 2.5})
  assert not path.exists()
  file.flush()
  file.flush()
  resumed = writers.MetricsFile(path)
  resumed.write(2, {"train/loss": 2.25})
  resumed.flush()
  assert [json.loads(line) for line in path.read_text().splitlines()] == [
    {"step": 1, "train/loss": 2.5},
    {"step": 2, "train/loss": 2.25},
  ]


def test_read_metrics_survives_a_killed_run(tmp_path):
  """Of a step that was done twice the later counts; a half-written line does not."""
  path = epath.Path(tmp_path / "metrics.jsonl")
  assert writers.read_metrics(path, "a") == {}
  path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 2, "a"\n{"step": 2, "a": 3.0, "b": 4.0}\n')
  assert writers.read_metrics(path, "a") == {1: 1.0, 2: 3.0}
  assert writers.read_metrics(path, "b") == {2: 4.0}


def test_writer_makes_tensorboard_events(tmp_path):
  """The scalars are in the event file as TensorBoard reads it, and in metrics.jsonl."""
  writer = writers.Writer(epath.Path(tmp_path))
  writer.write(7, {"train/loss": 2.5, "train/accuracy": 0.25})
  writer.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  content, found = path.read_bytes(), {}
  while content:
    (length,) = struct.unpack("<Q", content[:8])  # length, its checksum, data, its checksum
    event = event_pb2.Event.FromString(content[12 : 12 + length])
    found |= {(event.step, value.tag): value.simple_value for value in event.summary.value}
    content = content[16 + length :]
  assert found == {(7, "train/loss"): 2.5, (7, "train/accuracy"): 0.25}
  assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 7, "train/loss": 2.5, "train/accuracy": 0.25}


def test_loss_curve_is_a_picture(tmp_path):
  """Also of a run that has not written anything yet."""
  workdir = epath.Path(tmp_path)
  empty = writers.plot_loss(workdir).read_bytes()
  lines = ['{"step": 1, "train/loss": 3.0}', '{"step": 2, "train/loss": 2.0, "eval/loss": 2.5}']
  (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
  path = writers.plot_loss(workdir, unigram_loss=2.75)
  assert path == workdir / "loss.png"
  assert path.read_bytes().startswith(b"\x89PNG")
  assert path.read_bytes() != empty
