import ast
import dataclasses
import html.parser
import inspect
import json
import math
import os
import re
import shutil
import xml.etree.ElementTree

from etils import epath
from hypothesis import given, settings, strategies
import numpy as np
import pytest
import trained

from t2t import __main__ as command
from t2t.checkpoints import workdir_lock
from t2t.configuration.loading import load_config, records
from t2t.losses import teacher_student
from t2t.reports import comparison, curves, first_batches, history, page, single, written
from t2t.reports import run as runs

NASTY = '<script>alert(1)</script>&"$x^2$'


def made(folder, rows, *, steps=100, **changes):
  """Writes a workdir with these rows of metrics, and config tiny with some changed keys of `optimizer`."""
  folder.mkdir(parents=True)
  (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  config = records(load_config("tiny")).with_(train={"steps": steps}, optimizer=changes).to_dict()
  (folder / "config.json").write_text(json.dumps(config))
  return folder


def falling(steps, *, every=1, sources=(), tokens=100.0):
  """Returns rows of a run with a falling loss, and of its evaluations."""
  rows = []
  for step in range(every, steps + 1, every):
    loss = 2.0 + math.exp(-step / steps)
    rows.append({"step": step, "train/loss": loss, "train/tokens": tokens, "train/step_seconds": 0.5})
  measured = {"eval/loss": 2.5, "eval/accuracy": 0.5} | {f"eval/loss/{name}": 2.0 for name in sources}
  return [*rows, {"step": steps, **measured}]


class Elements(html.parser.HTMLParser):
  """Collects tags with attributes, and the text of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.text = [], ""
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.text += data


def check(text):
  """Checks every page: one file, no script, no external resources, descriptions of pictures, ordered headings."""
  found = Elements(text)
  assert len(text.encode()) < page.MOST_BYTES
  assert not re.search(r"https?://|//\w|@import|url\((?!#)", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
  assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
  assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on") or name == "src"]
  assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for tag, attrs in found.tags if tag == "svg")
  levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
  assert levels[0] == 1 and levels.count(1) == 1
  assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
  ids = re.findall(r'\bid="([^"]*)"', text)
  assert len(ids) == len(set(ids))
  assert set(re.findall(r'(?:href="|url\()#([\w.-]+)', text)) <= set(ids)
  for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
    xml.etree.ElementTree.fromstring(svg)
  return found


@settings(deadline=None)
@given(
  values=strategies.lists(strategies.floats(-1e6, 1e6), min_size=1, max_size=400),
  points=strategies.integers(2, 60),
)
def test_a_thinned_curve_has_its_ends_and_extremes(values, points):
  """In order, and about as many points as requested."""
  steps, thin = curves.thinned(range(len(values)), values, points=points)
  assert len(thin) <= max(points, 2) + 2
  assert (thin[0], thin[-1], min(thin), max(thin)) == (values[0], values[-1], min(values), max(values))
  assert list(steps) == sorted(set(steps.tolist()))
  np.testing.assert_array_equal(np.asarray(values)[steps.astype(int)], thin)


@pytest.mark.slow
def test_a_page_stands_by_itself(tmp_path):
  """Names with HTML are escaped."""
  rows = falling(40, sources=(NASTY, "de"))
  rows.append({"step": 40, f"eval/{NASTY}/f1": 71.5, f"train/epoch/{NASTY}": 3.0})
  folder = made(tmp_path / '<b>"run', rows, learning_rate=0.125)
  found = check(single.html(runs.read(str(folder))))
  assert found.text.count(NASTY) >= 4
  for expected in ('<b>"run: step 40 of 100, held-out loss 2.5000', "config.optimizer.learning_rate", "0.125", "71.5"):
    assert expected in found.text


def sample(given, made):
  return [["input", given], ["prediction", made], ["truth", "right"]]


def test_samples_show_how_the_answer_to_the_same_input_changed(tmp_path):
  """Earlier predictions on the last input, in order of the steps; of many the first, the last and some between."""
  folder = made(tmp_path / "run", falling(20))
  lines = [{"step": 0, "samples": [sample("another", "lost")]}]
  lines += [{"step": step, "samples": [sample(NASTY, f"made at {step}.")]} for step in range(1, 101)]
  (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 101}\n{"st')
  found = check(single.html(runs.read(str(folder)))).text
  shown = [int(step) for step in re.findall(r"made at (\d+)\.", found)]
  assert shown[:3] == [100, 1, 6] and shown[-1] == 100 and len(shown) == 21  # the last is above its table
  assert NASTY in found and "lost" not in found
  (folder / "samples.jsonl").write_text(json.dumps({"step": 1, "samples": [sample("a", "x" * 400_000)] * 5}) + "\n")
  check(single.html(runs.read(str(folder))))


def test_what_the_model_was_given_is_shown_piece_by_piece(tmp_path):
  """Counted tokens are underlined, special tokens have a colour; damaged lines are skipped."""
  folder = made(tmp_path / "run", falling(20))
  pieces = [["the", "", False], ["<X>", "sentinel", True], [NASTY, "unheard of", False]]
  row = {"stage": "", "step": 0, "rows": [{"encoder_input_tokens": {"pieces": pieces, "more": 4, "padding": 1_000}}]}
  bad = [{**row, "rows": [{"x": {"pieces": [["a"]], "more": 0, "padding": 0}}]}, {**row, "rows": 3}, [], "x"]
  lines = [json.dumps(line) for line in [*bad, row, {**row, "stage": NASTY, "step": 10}]]
  (folder / first_batches.NAME).write_text("\n".join(lines) + '\n{"stage')
  text = single.html(runs.read(str(folder)))
  found = check(text).text
  assert text.count("<b class=k0>&lt;X&gt;</b>") == 2 and "<span>the</span>" in text
  assert "input of the encoder: 7 tokens; 4 more; 1,000 positions are padding" in found
  assert f"Stage {NASTY}, from step 11" in found


def test_memory_is_told_and_drawn(tmp_path):
  for name, words in (("device_memory_peak", "3 GB of a device at most"), ("host_memory", "3 GB of the host at most")):
    rows = [{"step": step, f"train/{name}": 1e9 * min(step, 3)} for step in range(1, 6)]
    found = check(single.html(runs.read(str(made(tmp_path / name[0], rows))))).text
    assert words in found and name not in found and ", bytes" in found


@pytest.mark.exhaustive
def test_a_page_of_many_sources_is_small(tmp_path):
  """Long curves of many sources are thinned until it is."""
  names = [f"language{number}" for number in range(100)]
  rows = [
    {"step": step, "train/loss": math.sin(step)}
    | {f"train/epoch/{name}": math.sin(step * i) for i, name in enumerate(names, start=1)}
    | {f"eval/loss/{name}": math.cos(step * i) for i, name in enumerate(names, start=1)}
    | {f"eval/task{i}/f1": math.cos(step * i) for i in range(1, 60)}
    for step in range(1, 600)
  ]
  folder = made(tmp_path / "many", rows)
  start = {"event": "start", "time": "2026-01-01T00:00:00+00:00", "config": "tiny", "t2t": "", "devices": ""}
  starts = (json.dumps({**start, "step": step, "command": "t2t train " * 100}) + "\n" for step in range(1000))
  (folder / "history.jsonl").write_text("".join(starts))
  found = check(single.html(runs.read(str(folder)))).text
  assert "12 of 100" in found and "the first and the last 100 of 1,000" in found


def test_what_cannot_be_read_is_told(tmp_path):
  """Torn lines are counted; the rest is shown."""
  folder = made(tmp_path / "torn", falling(20))
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"step": 20, "train/huge": 1' + "0" * 400 + '}\n{"step": 21, "train/lo\n7\n')
  (folder / "history.jsonl").write_text('{"event": "start"}\nnull\n{\n')
  run = runs.read(str(folder))
  assert (run.step, run.damaged, run.history) == (20, 2, [])
  assert "2 lines of metrics.jsonl are damaged" in check(single.html(run)).text
  (folder / "metrics.jsonl").unlink()
  (folder / "config.json").write_text("[")
  found = check(single.html(runs.read(str(folder)))).text
  assert "No metrics yet" in found and "config.json is missing or cannot be read" in found


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
  """With its content, and a remedy."""
  run = made(tmp_path / "all" / "one", falling(5))
  (run / "checkpoints" / "5").mkdir(parents=True)
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "notes.txt").touch()
  for path, expected in {
    tmp_path / "all": "is not a run, but contains runs: one",
    run / "checkpoints": f"the run is {run}",
    tmp_path / "other": "but notes.txt",
    tmp_path / "nowhere": "is empty or does not exist",
  }.items():
    assert command.main(["report", str(path)]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
  ("typed", "shown"),
  [
    ("/bin/t2t train --config tiny", "t2t train --config tiny"),
    ("t2t train --config.train.logits_chunk_tokens=512", "t2t train --config.train.logits_chunk_tokens=512"),
    ("t2t x --hf_token=abc --api-key abc --steps 3", "t2t x --hf_token=*** --api-key *** --steps 3"),
    ("t2t x --a=https://me:pass@host/b", "t2t x --a=https://***@host/b"),
    ("t2t x --a=https://host/b?X-Goog-Signature=ab12", "t2t x --a=https://host/b?***"),
    ("t2t x --password --steps 3", "t2t x --password --steps 3"),
    ("t2t x hf_abcdefghijk", "t2t x ***"),
  ],
)
def test_a_command_line_is_kept_without_secrets(typed, shown):
  assert history.without_secrets(typed.split()) == shown


def test_a_run_notes_its_starts_and_ends(tmp_path, capsys):
  """In order; an error of writing is only logged."""
  workdir = epath.Path(tmp_path)
  history.started(workdir, 0, flops_per_step=1e9)
  history.ended(workdir, 3, history.STOPPED)
  history.started(workdir, 3, flops_per_step=1e9)
  assert [(note["event"], note["step"]) for note in history.read(workdir)] == [("start", 0), ("end", 3), ("start", 3)]
  found = check(single.html(runs.read(str(tmp_path)))).text
  assert "started" in found and "stopped" in found and "resumed" in found
  (tmp_path / "file").touch()
  history.ended(workdir / "file", 3, history.STOPPED)
  assert "could not be written" in capsys.readouterr().err


def test_every_run_leaves_its_report():
  """With its command, examples and settings; with few targets the unigram baseline is shown, too."""
  workdir = trained.workdir("encoder_decoder")
  run = runs.read(str(workdir))
  assert [(note["event"], note["step"]) for note in run.history] == [("start", 0), ("end", 2)]
  assert (run.state, run.step, run.steps, run.history[-1]["why"]) == (runs.FINISHED, 2, 2, history.FINISHED)
  assert run.history[0]["flops_per_step"] > 0
  found = check((workdir / written.NAME).read_text()).text
  assert "step 2 of 2" in found and "held-out loss" in found and "config.train.batch_size" in found
  assert "predicts each token by its frequency in the others of these 48 targets" in found


def test_a_report_that_fails_ends_no_run(tmp_path, monkeypatch, capsys):
  """It logs one line on standard error."""
  made(tmp_path / "run", falling(5))
  monkeypatch.setattr(single, "html", lambda run: 1 / 0)
  written.at_end(epath.Path(tmp_path / "run"), ends=True)
  told = capsys.readouterr()
  assert told.out == "" and told.err.count("\n") == 1 and "division by zero" in told.err


def test_a_stopped_run_has_a_report(tmp_path, capsys):
  """Its line has the format of the summary."""
  folder = made(tmp_path / "run", falling(5))
  written.at_end(epath.Path(folder), ends=False)
  assert capsys.readouterr().out == f"report         {folder / 'report.html'}\n"
  assert "stopped" in check((folder / "report.html").read_text()).text


@pytest.mark.slow
def test_runs_are_compared(tmp_path, capsys):
  """By name, with config differences and the last value of each metric."""
  one = made(tmp_path / "a" / "run", falling(40, sources=("de",)), learning_rate=0.25)
  other = made(tmp_path / "b" / "run", falling(80, every=10), learning_rate=0.5)
  for over in comparison.AXES:
    if over != "flops":
      assert command.main(["report", str(one), str(other), "--over", over]) == 0
      found = check((tmp_path / "report.html").read_text()).text
      assert f"Curves over {comparison.AXES[over]}" in found
  assert "a/run" in found and "b/run" in found
  assert "config.optimizer.learning_rate" in found and "0.25" in found and "eval/loss/de" in found
  capsys.readouterr()
  for arguments, expected in {
    (one, other, "--over", "flops"): "give --over steps",
    (one, one): "is given twice",
    (one, "--over", "time"): "applies only to several runs. Leave out --over",
    (one, "--output", tmp_path): "is a folder",
  }.items():
    assert command.main(["report", *map(str, arguments)]) == 2
    assert expected in capsys.readouterr().err


def test_runs_with_nothing_in_common_are_shown(tmp_path):
  """With a remark that they have no metric in common."""
  one = made(tmp_path / "a", [{"step": 1, "train/loss": 3.0}])
  other = made(tmp_path / "b", [{"step": 1, "eval/task/f1": 60.0}])
  found = check(comparison.html([runs.read(str(one)), runs.read(str(other))], over="steps")).text
  assert "no metric in common" in found and "train/loss, smoothed" in found and "eval/task/f1" in found


def test_an_axis_of_tokens_is_a_sum(tmp_path):
  """A row also counts for the steps before it; values between rows are interpolated."""
  run = runs.read(str(made(tmp_path / "run", falling(40, every=10, tokens=7.0))))
  known = comparison.axis(run, "tokens")
  assert known == {10: 70.0, 20: 140.0, 30: 210.0, 40: 280.0}
  assert comparison._moved({5: 1.0, 20: 2.0, 35: 3.0}, known) == {35.0: 1.0, 140.0: 2.0, 245.0: 3.0}


def test_runs_are_listed(tmp_path, capsys):
  """The newest first, in 80 columns; a run with a locked workdir is running."""
  finished = made(tmp_path / "finished", falling(100))
  made(tmp_path / "deep" / "running", falling(30))
  os.utime(finished / "metrics.jsonl", (1e9, 1e9))
  with workdir_lock.held(epath.Path(tmp_path / "deep" / "running")):
    assert command.main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    head = next(line for line in lines if "config" in line)
    assert head.split() == ["run", "config", "step", "train", "held", "out", "written", "state"]
    row = next(line for line in lines if "deep/running" in line).split()
    assert row[1:4] == ["30/100", f"{2 + math.exp(-1):.4f}", "2.5000"] and row[5:] == ["s", "ago", "runs"]
    # Numbers end where their heading does, and states begin there.
    (line,) = (line for line in lines if "finished" in line)
    assert line.rindex("finished") == head.index("state")
    assert all(line[head.index(name) + len(name) - 1].isdigit() for name in ("step", "train", "held out"))
    first, second = (line.split() for line in lines if "running" in line or "finished" in line)
    assert (first[0], first[-1], second[0], second[-1]) == ("deep/running", "runs", "finished", "finished")
    assert "2.5000" in first
  assert command.main(["runs", str(tmp_path), "--json"]) == 0
  found = json.loads(capsys.readouterr().out)
  assert [(each["run"], each["state"], each["step"]) for each in found] == [
    ("deep/running", "stopped", 30),
    ("finished", "finished", 100),
  ]


def test_runs_of_long_names_are_listed_with_their_state(tmp_path, capsys):
  """Other columns become narrower."""
  made(tmp_path / "finetune_a_model_with_a_long_name_and_another_learning_rate", falling(100))
  config = tmp_path / "short" / "config.json"
  made(config.parent, falling(30))
  config.write_text(json.dumps(json.loads(config.read_text()) | {"name": "finetune_docs_summary_as_t5"}))
  assert command.main(["runs", str(tmp_path)]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert all(len(line) <= 80 for line in lines)
  assert lines[1].split()[-1] == "state" and "finished" in " ".join(lines) and "stopped" in " ".join(lines)


def test_metrics_of_losses_have_titles_in_words(tmp_path):
  """Every metric of a distilled run, with the head that it belongs to; unknown metrics have their name in words."""
  source = ast.parse(inspect.getsource(teacher_student))
  names = {name for node in ast.walk(source) for name in _yielded(node)}
  assert {"agreement", "soft_targets", "hidden_means", "cosine"} <= names
  titles = {name: single.title_of(name) for name in names | {"sparsity", "z_loss", "replaced", "own_loss"}}
  assert not [title for title in titles.values() if "_" in title or title[0].islower() and title[:2] != "z-"]
  assert all("teacher" in titles[name] for name in names) and titles["own_loss"] == "Own loss"
  assert single.title_of("table_soft_targets") == f"{titles['soft_targets']}: table"
  metrics = {"train/agreement": {5: 0.5}, "eval/agreement": {5: 0.5}}
  run = dataclasses.replace(runs.read(str(made(tmp_path / "run", falling(10)))), metrics=metrics)
  assert [picture.title for picture in single.curves_of(run, 20)] == ["Agreement with the teacher"]


def _yielded(node):
  """Returns the names of metrics that the generators of a loss yield."""
  if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple | ast.Call):
    first = (node.value.elts if isinstance(node.value, ast.Tuple) else node.value.args)[0]
    return [x.value.strip("_") for x in ast.walk(first) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
  return []


def test_a_score_that_is_another_metric_is_left_out(tmp_path):
  """The score is the mean of all metrics of a task."""
  values = {"eval/one/accuracy": {5: 50.0}, "eval/one/score": {5: 50.0}}
  values |= {f"eval/two/{name}": {5: value} for name, value in (("f1", 40.0), ("accuracy", 60.0), ("score", 50.0))}
  run = dataclasses.replace(runs.read(str(made(tmp_path / "run", falling(10)))), metrics=values)
  assert {task: [*metrics] for task, metrics in single.by_task(run).items()} == {
    "one": ["accuracy"],
    "two": ["f1", "accuracy", "score"],
  }


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path, capsys):
  made(tmp_path / "whole", falling(20))
  (tmp_path / "broken" / "metrics.jsonl").mkdir(parents=True)
  assert command.main(["runs", str(tmp_path)]) == 0
  said = capsys.readouterr()
  assert "whole" in said.out and "broken cannot be read" in said.err
  shutil.rmtree(tmp_path / "whole")
  assert command.main(["runs", str(tmp_path)]) == 0
  assert "broken cannot be read" in capsys.readouterr().err


def test_a_folder_without_runs_is_told(tmp_path, capsys):
  (tmp_path / "empty").mkdir()
  for name, expected in (
    ("empty", "no runs, because neither this folder nor two levels of folders below contain"),
    ("nowhere", "no such folder"),
  ):
    assert command.main(["runs", str(tmp_path / name)]) == 2
    assert expected in capsys.readouterr().err
