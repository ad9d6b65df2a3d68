import json

from etils import epath
from hypothesis import given, strategies
import pytest
import tensorboardX
from tensorboardX.proto import event_pb2

from t2t import losses
from t2t.storage import logs, tfrecord
from t2t.training import loss_curve, metric_writers
from t2t.training.metric_writers import Histogram


def test_wrapped_lines_have_a_width():
  """Words stay whole, after the label."""
  text = metric_writers.wrapped("input", "one two three four", width=26)
  assert text == "  input        one two\n" + " " * 15 + "three four"


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_text_keeps_its_label(text):
  """The text is shown as empty."""
  assert metric_writers.wrapped("prediction", text) == "  prediction   (empty)"


def test_progress_is_a_line_now_and_then(monkeypatch, capsys):
  """Without a terminal: that the first step is being compiled, the first step, the last, and one every ten seconds."""
  now = [0.0]
  monkeypatch.setattr(metric_writers.time, "monotonic", lambda: now[0])
  line = metric_writers.ProgressLine(0, 100)
  for step in range(1, 101):
    now[0] += 0.3
    speed, left = (None, None) if step == 1 else (1234.0, 65.0)
    line.update(step, loss=4.0, tokens_per_second=speed, seconds_left=left)
  line.close()
  compiling, *lines = capsys.readouterr().err.splitlines()
  assert compiling == "compiling the first step"
  assert [text.split()[1] for text in lines] == ["1/100", "35/100", "69/100", "100/100"]
  assert lines[0] == "step 1/100  loss 4.000"
  assert lines[1] == "step 35/100  loss 4.000  1.23k tokens/s  1:05 left"


def test_read_metrics_passes_over_what_is_no_row(tmp_path):
  """A line that was torn by a kill, and any other content."""
  path = epath.Path(tmp_path / "metrics.jsonl")
  assert metric_writers.read_metrics(path, "a") == {}
  broken = [b'{"step": 2, "a"', b"7", b'{"a": 1.0}', b'{"step": "2", "a": 1.0}', b"\xff\x00", b"[" * 100_000, b""]
  path.write_bytes(b"\n".join([b'{"step": 1, "a": 1.0}', *broken, b'{"step": 2, "a": 3.0, "b": 4.0}']))
  assert metric_writers.read_metrics(path, "a") == {1: 1.0, 2: 3.0}
  assert metric_writers.read_metrics(path, "b") == {2: 4.0}


def rows(workdir):
  return [tuple(json.loads(line).items()) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def events(workdir):
  """Returns (step, name, value) of each scalar in the event files, as TensorBoard reads them."""
  found = []
  for path in sorted((workdir / "tensorboard").iterdir()):
    with path.open("rb") as file:
      for record in tfrecord.read(file):
        event = event_pb2.Event.FromString(record)
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
  return found


def test_writer_makes_rows_and_tensorboard_events(tmp_path):
  """Rows are in the files after `flush`, also during the run."""
  writer = metric_writers.MetricWriter(epath.Path(tmp_path))
  for step in (7, 8):
    writer.write(step, {"train/loss": 2.5, "train/accuracy": 0.25})
    writer.flush()
    expected = [
      (n, name, value) for n in range(7, step + 1) for name, value in (("train/loss", 2.5), ("train/accuracy", 0.25))
    ]
    assert events(tmp_path) == expected
    assert [row[0] for row in rows(tmp_path)] == [("step", n) for n in range(7, step + 1)]
  writer.close()
  assert rows(tmp_path)[0] == (("step", 7), ("train/loss", 2.5), ("train/accuracy", 0.25))


def test_event_files_are_those_of_tensorboards_own_writer(tmp_path):
  """The same scalars as through tensorboardX, which has its own framing and checksums."""
  with tensorboardX.SummaryWriter(str(tmp_path / "tensorboard")) as writer:
    writer.add_scalar("a/b", 0.5, 3)
  assert events(tmp_path) == [(3, "a/b", 0.5)]
  (path,) = (tmp_path / "tensorboard").iterdir()
  with path.open("rb") as file:
    assert b"".join(map(tfrecord.frame, tfrecord.read(file))) == path.read_bytes()


def test_a_run_that_goes_on_has_each_step_once(tmp_path):
  """Killed after step 5 with a torn line and a torn event, resumed at 3, evaluated again at the end."""
  first = metric_writers.MetricWriter(epath.Path(tmp_path))
  for step in range(1, 6):
    first.write(step, {"train/loss": float(step)})
  first.write(3, {"eval/loss": 30.0})
  for step in (2, 3, 4):
    first.samples(step, [[("prediction", f"as {step}")]])
  first.flush()  # then killed
  for path in (tmp_path / "metrics.jsonl", tmp_path / "samples.jsonl", *(tmp_path / "tensorboard").iterdir()):
    with path.open("ab") as file:
      file.write(b'{"step": 6')
  second = metric_writers.MetricWriter(epath.Path(tmp_path), start=3)
  second.write(3, {"eval/loss": 30.0})
  second.samples(3, [[("prediction", "as 3")]])
  second.samples(5, [[("prediction", "as 5")]])
  for step in (4, 5):
    second.write(step, {"train/loss": float(10 * step)})
  second.close()
  expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)]
  assert [(step, value) for (_, step), (name, value) in rows(tmp_path) if name == "train/loss"] == expected
  assert [(step, value) for step, name, value in events(tmp_path) if name == "train/loss"] == expected
  assert [(step, value) for (_, step), (name, value) in rows(tmp_path) if name == "eval/loss"] == [(3, 30.0)]
  assert [(step, value) for step, name, value in events(tmp_path) if name == "eval/loss"] == [(3, 30.0)]
  assert metric_writers.read_samples(tmp_path / "samples.jsonl") == {
    step: [[("prediction", f"as {step}")]] for step in (2, 3, 5)
  }
  assert [step for step, name, _ in events(tmp_path) if name == "examples/1"] == [2, 3, 5]


def test_texts_and_histograms_are_those_of_tensorboard(tmp_path):
  """A text belongs to the text plugin, as verbatim Markdown; a histogram has a count for each limit."""
  writer = metric_writers.MetricWriter(epath.Path(tmp_path))
  writer.samples(1, [[("input", "a *b*\n# c"), ("", "d")]])
  spread = Histogram(limits=[-1.0, 0.0, 1.0], counts=[3.0, 1.0], sum=-1.0, sum_squares=2.5)
  writer.histograms(1, {"params/embed/table": spread})
  writer.histograms(2, {})
  writer.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  with path.open("rb") as file:
    _, text, histogram = (event_pb2.Event.FromString(record).summary.value for record in tfrecord.read(file))
  assert text[0].metadata.plugin_data.plugin_name == "text"
  assert text[0].tensor.string_val == [b"    input       a *b* # c\n                d"]
  found = histogram[0].histo
  assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1.0, 1.0, 4.0, -1.0, 2.5)
  assert (found.bucket_limit, found.bucket) == ([0.0, 1.0], [3.0, 1.0])


@pytest.mark.parametrize("place", [0, 3, 9, 14, 40])
def test_a_bad_event_costs_no_other(place, tmp_path, capsys):
  """Damage of the length, the length's checksum, or the content: only this record is removed, and it is kept."""
  writer = metric_writers.MetricWriter(epath.Path(tmp_path))
  for step in (1, 2, 3):
    writer.write(step, {"train/loss": float(step)})
  writer.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  with path.open("rb") as file:
    frames = [tfrecord.frame(record) for record in tfrecord.read(file)]
  bad = bytearray(frames[2])
  bad[place] ^= 1
  path.write_bytes(b"".join([*frames[:2], bad, *frames[3:], frames[1][:-1]]))
  for _ in range(2):
    metric_writers.MetricWriter(epath.Path(tmp_path), start=3).close()
  assert events(tmp_path) == [(step, "train/loss", float(step)) for step in (1, 3)]
  assert (tmp_path / "events.damaged").read_bytes() == bytes(bad)
  assert capsys.readouterr().err.count("1 damaged records were removed; they are kept in ") == 1


@given(strategies.lists(strategies.binary(max_size=30), max_size=4), strategies.binary(max_size=40), strategies.data())
def test_records_are_found_around_anything(contents, garbage, data):
  """All of them, with the bytes between; a last record that was not completely written is left out."""
  frames = [tfrecord.frame(content) for content in contents]
  at = data.draw(strategies.integers(0, len(frames)))
  whole, others = tfrecord.salvage(b"".join([*frames[:at], garbage, *frames[at:]]))
  assert whole == contents
  assert others == [garbage] or (at == len(frames) and not others) or not garbage


def test_what_is_no_row_is_kept_beside_the_rows(tmp_path, capsys):
  """Garbage, NULs, torn and foreign lines in any place: rows stay, and the next row starts a new line."""
  path = tmp_path / "metrics.jsonl"
  row = lambda step: json.dumps({"step": step, "train/loss": float(step)}).encode()
  foreign = [
    b"\xff\x00\xfe",
    b"\x00" * 50,
    b"7",
    b'{"train/loss": 1.0}',
    b'{"step": 2, "train/loss": "x"}',
    b'{"step": 3',
  ]
  path.write_bytes(b"\n".join([foreign[0], row(1), *foreign[1:-1], row(2), foreign[-1]]))
  for start in (2, 3):  # the second time nothing is left to remove
    writer = metric_writers.MetricWriter(epath.Path(tmp_path), start=start)
    writer.write(start + 1, {"train/loss": float(start + 1)})
    writer.close()
  assert path.read_bytes().splitlines() == [row(step) for step in (1, 2, 3, 4)]
  assert (tmp_path / "metrics.jsonl.damaged").read_bytes().splitlines() == foreign
  assert capsys.readouterr().err.count("6 damaged lines were removed; they are kept in metrics.jsonl.damaged") == 1
  path.write_bytes(b"\n".join([row(1), *foreign]))  # as after a kill between two writes
  metric_writers.MetricWriter(epath.Path(tmp_path), start=1).close()
  assert (tmp_path / "metrics.jsonl.damaged").read_bytes().splitlines() == foreign


def test_rows_that_no_checkpoint_belongs_to_are_kept_beside(tmp_path, capsys):
  """For example after the folder of checkpoints was emptied: old metrics are kept although the run restarts."""
  for value in (1.0, 2.0):
    writer = metric_writers.MetricWriter(epath.Path(tmp_path))
    writer.write(1, {"train/loss": value})
    writer.close()
  row = lambda value: json.dumps({"step": 1, "train/loss": value}).encode()
  assert (tmp_path / "metrics.jsonl").read_bytes().splitlines() == [row(2.0)]
  assert (tmp_path / "metrics.jsonl.earlier").read_bytes().splitlines() == [row(1.0)]
  assert "no checkpoint belongs to its 1 rows; they are kept in metrics.jsonl.earlier" in capsys.readouterr().err


def test_a_disk_that_is_full_for_a_while_costs_no_line(tmp_path, monkeypatch, capsys):
  """A write may have been applied by half; the next write continues there, and training is not affected."""
  writer = metric_writers.MetricWriter(epath.Path(tmp_path))
  writer.write(1, {"train/loss": 1.0})
  writer.flush()
  append = logs._Disk.append

  def full(disk, content):
    append(disk, content[: len(content) // 2])
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(logs._Disk, "append", full)
  for step in (2, 3):
    writer.write(step, {"train/loss": float(step)})
    writer.flush()
  monkeypatch.setattr(logs._Disk, "append", append)
  writer.write(4, {"train/loss": 4.0})
  writer.close()
  assert [(step, value) for (_, step), (_, value) in rows(tmp_path)] == [(n, float(n)) for n in range(1, 5)]
  assert events(tmp_path) == [(n, "train/loss", float(n)) for n in range(1, 5)]
  assert capsys.readouterr().err.count("metrics.jsonl: cannot be written ([Errno 28] No space left on device)") == 1


def test_what_could_not_be_written_goes_with_the_checkpoint(tmp_path, monkeypatch):
  """Killed while the disk was full: the resumed run writes the checkpoint's rows, each once."""
  first = metric_writers.MetricWriter(epath.Path(tmp_path))
  first.write(1, {"train/loss": 1.0})
  assert first.flush() == {}
  append = logs._Disk.append
  monkeypatch.setattr(logs._Disk, "append", lambda disk, content: append(disk, content[:9]) or 1 / 0)
  for step in (2, 3):
    first.write(step, {"train/loss": float(step)})
  first.samples(3, [[("input", "a"), ("prediction", "b")]])
  unwritten = first.flush()  # then killed
  assert set(unwritten) == set(metric_writers.UNWRITTEN)
  monkeypatch.setattr(logs._Disk, "append", append)
  for _ in range(2):  # the second time it is killed before another checkpoint
    second = metric_writers.MetricWriter(epath.Path(tmp_path), start=3, unwritten=unwritten)
    second.write(4, {"train/loss": 4.0})
    second.close()
  expected = [(n, float(n)) for n in range(1, 5)]
  assert [(step, value) for (_, step), (_, value) in rows(tmp_path)] == expected
  assert sorted((step, value) for step, name, value in events(tmp_path) if name == "train/loss") == expected
  assert metric_writers.read_samples(epath.Path(tmp_path) / metric_writers.SAMPLES) == {
    3: [[("input", "a"), ("prediction", "b")]]
  }


@pytest.mark.parametrize(
  ("steps", "name"),
  [
    ([1, 2, 3], "each step"),
    ([10, 20, 30, 36], "every 10 steps"),
    ([10, 20, 25, 30], "logged steps"),
    ([3], "one step"),
  ],
)
def test_the_legend_names_the_logged_steps(steps, name):
  import matplotlib.figure

  axes = matplotlib.figure.Figure().subplots()
  loss_curve.draw(axes, dict.fromkeys(steps, 1.0), {})
  assert axes.get_legend_handles_labels()[1] == [f"training, {name}"]


def test_loss_curve_is_a_picture(tmp_path):
  """Also of a run without metrics."""
  workdir = epath.Path(tmp_path)
  empty = loss_curve.save(workdir).read_bytes()
  lines = ['{"step": 1, "train/loss": 3.0}', '{"step": 2, "train/loss": 2.0, "eval/loss": 2.5}']
  (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
  path = loss_curve.save(workdir, baselines=[losses.Baseline("unigram model", 2.75, "")])
  assert path == workdir / "loss.png"
  assert path.read_bytes().startswith(b"\x89PNG")
  assert path.read_bytes() != empty
