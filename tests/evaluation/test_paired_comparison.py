"""Comparison of two evaluations: tests, changed items, and errors."""

import json

from etils import epath
import numpy as np
import pytest
import rich.console
import scipy.stats

from t2t import UserError
from t2t import __main__ as command
from t2t.evaluation import evaluate, paired_comparison, results, task_metrics

RANDOM = np.random.default_rng(3)
TARGETS = RANDOM.integers(0, 2, 60).tolist()
A = [target if RANDOM.random() < 0.8 else 1 - target for target in TARGETS]
B = [target if RANDOM.random() < 0.5 else 1 - target for target in TARGETS]


class Task:
  """The attributes of a seqio task that `Evaluation._uncertainty` needs."""

  score_metric_fns = ()

  def __init__(self, *metrics):
    self.predict_metric_fns = metrics


def evaluated(folder, values, targets=TARGETS, *metrics, task="some_task", split="validation", tied=()):
  """Writes the files of an evaluation; returns the folder's name."""
  answers = [
    results.Answer({"idx": i, "inputs_pretokenized": f"question {i}".encode()}, str(value), value, target, -1.0)
    for i, (value, target) in enumerate(zip(values, targets, strict=True))
  ]
  for index, alternatives in tied:
    answers[index] = results.Answer(
      answers[index].example, "", alternatives[0], targets[index], -1.0, tied=alternatives
    )
  task_metrics_of = Task(*(metrics or (task_metrics.accuracy,)))
  uncertainty = evaluate.Evaluation._uncertainty(None, task_metrics_of, answers, None)
  metrics = {name: 0.0 for name in uncertainty["statistics"]}
  results.write([results.Result(task, split, metrics, answers, **uncertainty)], epath.Path(folder), about={})
  return str(folder)


def compared(a, b):
  both = (paired_comparison.read(path, where="A ") for path in (a, b))
  return [paired_comparison.compare(*pair) for pair in paired_comparison.paired(*both)]


def test_accuracy_of_two_checkpoints(tmp_path):
  """Differences, McNemar's exact test, and the bootstrap's interval and p-value against references."""
  (found,) = compared(evaluated(tmp_path / "a", A), evaluated(tmp_path / "b", B))
  right_a, right_b = np.equal(A, TARGETS), np.equal(B, TARGETS)
  lost, won = int(np.sum(right_a & ~right_b)), int(np.sum(~right_a & right_b))
  assert (found.worse, found.better, found.items, found.units) == (lost, won, 60, 60)
  # Two tails of a binomial distribution with equal chances.
  assert found.mcnemar == pytest.approx(min(1.0, 2 * scipy.stats.binom.cdf(min(lost, won), lost + won, 0.5)))
  row = found.metrics["accuracy"]
  assert (row.a, row.b) == pytest.approx((100 * right_a.mean(), 100 * right_b.mean()))
  difference = 100 * (right_b.astype(float) - right_a)
  expected = scipy.stats.bootstrap(
    (difference,), np.mean, n_resamples=10_000, method="percentile", random_state=np.random.default_rng(5)
  ).confidence_interval
  assert (row.low, row.high) == pytest.approx((expected.low, expected.high), abs=2.0)
  assert row.p < 0.05 and row.high < 0
  changes = [(item["idx"], item["change"], item["a"], item["b"]) for item in found.changed]
  expected_changes = [(i, "right -> wrong", str(A[i]), str(B[i])) for i in np.flatnonzero(right_a & ~right_b)]
  expected_changes += [(i, "wrong -> right", str(A[i]), str(B[i])) for i in np.flatnonzero(~right_a & right_b)]
  assert changes == expected_changes


def test_equal_predictions_do_not_differ(tmp_path):
  (found,) = compared(evaluated(tmp_path / "a", A), evaluated(tmp_path / "b", A))
  assert (found.worse, found.better, found.mcnemar, list(found.changed)) == (0, 0, 1.0, [])
  row = found.metrics["accuracy"]
  assert (row.low, row.high, row.p, row.b - row.a) == (0.0, 0.0, 1.0, 0.0)


def test_p_values_of_equal_checkpoints_are_not_small(tmp_path):
  """Two checkpoints with errors of the same rate differ at the 5 % level in about a twentieth of the cases."""
  small = 0
  for trial in range(20):
    random = np.random.default_rng(trial)
    a, b = ([t if random.random() < 0.7 else 1 - t for t in TARGETS] for _ in range(2))
    (found,) = compared(evaluated(tmp_path / f"a{trial}", a), evaluated(tmp_path / f"b{trial}", b))
    small += found.metrics["accuracy"].p < 0.05
  assert small <= 4


def test_tied_items_are_left_out_of_mcnemar(tmp_path):
  """A half-right item is neither right nor wrong; the metric counts it by half."""
  tied = [(0, (0, 1))]
  (found,) = compared(evaluated(tmp_path / "a", A, tied=tied), evaluated(tmp_path / "b", B))
  assert found.ties == 1 and all(item["idx"] != 0 for item in found.changed)
  right = [0.5, *np.equal(A, TARGETS)[1:]]
  assert found.metrics["accuracy"].a == pytest.approx(100 * np.mean(right))


def written(folder, name, rows):
  """Writes predictions with the statistics of each item; returns the folder's name."""
  folder.mkdir()
  lines = [
    {"idx": i, "inputs": inputs, "target": None, "prediction": "", "value": 0, "unit": str(i), "statistics": statistics}
    for i, (inputs, statistics) in enumerate(rows)
  ]
  (folder / f"{name}.test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(folder)


@pytest.mark.parametrize("number", [2, 3, 5])
def test_ties_of_any_number_of_options_are_left_out_of_mcnemar(number, tmp_path):
  """A chance of 1/k is neither right nor wrong; a weight of the item's group does not change this."""
  rows = lambda shares: [(f"q{i}", {"accuracy": ["mean", x * 0.7, 0.7]}) for i, x in enumerate(shares)]
  a = written(tmp_path / "a", "entity_tracking", rows([1 / number] * 6 + [1, 0]))
  (found,) = compared(a, written(tmp_path / "b", "entity_tracking", rows([1] * 3 + [0] * 4 + [1])))
  assert (found.ties, found.worse, found.better) == (6, 1, 1)
  assert [item["inputs"] for item in found.changed] == ["q6", "q7"]


def windows_of(nats, width=30):
  """Returns items as `t2t suites text=FILE` writes them."""
  texts = [f"document 0, tokens {width * i} to {width * i + width - 1}" for i in range(len(nats))]
  values = [{"bits_per_byte": ["quotient", x, 77.0], "perplexity": ["perplexity", x, 30]} for x in nats]
  return list(zip(texts, values, strict=True))


def test_bits_per_byte_have_significant_digits(tmp_path, capsys):
  """A difference of 0.04 bits is shown with its interval; percentages keep one decimal."""
  nats = np.random.default_rng(0).normal(100, 5, 60)
  other = nats * 0.97 + np.random.default_rng(1).normal(0, 0.3, 60)
  (found,) = compared(
    written(tmp_path / "a", "text", windows_of(nats)), written(tmp_path / "b", "text", windows_of(other))
  )
  paired_comparison.print_table([found], rich.console.Console(width=80))
  (line,) = [line for line in capsys.readouterr().out.splitlines() if "bits" in line]
  row = found.metrics["bits_per_byte"]
  assert f"{row.a:.3f}" in line and f"{row.b - row.a:+.4f}" in line
  assert f"{row.low:+.4f} to {row.high:+.4f}" in line and -0.1 < row.low < row.high < -0.01


@pytest.mark.parametrize(("number", "width"), [(8, 30), (10, 24)])
def test_windows_of_a_text_must_be_the_same(number, width, tmp_path):
  a = written(tmp_path / "a", "text", windows_of([1.0] * 10))
  with pytest.raises(UserError, match=r"text.test: .*different windows, 10 and \d.* same --max_tokens and --stride"):
    compared(a, written(tmp_path / "b", "text", windows_of([1.0] * number, width)))


def test_other_metrics(tmp_path):
  """F1 of classes that one checkpoint never predicts, and correlations without right and wrong items."""
  classes = [value * 2 for value in TARGETS]
  wrong = [3 if index % 7 == 0 else value for index, value in enumerate(classes)]
  metric = task_metrics.occurring_class_f1
  (found,) = compared(
    evaluated(tmp_path / "a", classes, classes, metric), evaluated(tmp_path / "b", wrong, classes, metric)
  )
  assert found.metrics["f1"].a == 100.0 and found.metrics["f1"].b == pytest.approx(metric(classes, wrong)["f1"])
  assert found.better == 0 and found.worse == sum(value == 3 for value in wrong)
  numbers = RANDOM.normal(size=30).tolist()
  near, far = ([x + scale * y for x, y in zip(numbers, RANDOM.normal(size=30), strict=True)] for scale in (0.1, 3.0))
  both = (task_metrics.pearson, task_metrics.spearman)
  (found,) = compared(evaluated(tmp_path / "c", near, numbers, *both), evaluated(tmp_path / "d", far, numbers, *both))
  assert found.mcnemar is None and not found.changed
  assert all(row.high < 0 and row.p < 0.01 for row in found.metrics.values())


def test_groups_are_the_units(tmp_path):
  """Answers of one question are resampled together."""
  group = lambda values: [{"group": index // 6, "value": value} for index, value in enumerate(values)]
  metrics = (task_metrics.multirc_f1a, task_metrics.multirc_exact_match)
  a = evaluated(tmp_path / "a", group(A), group(TARGETS), *metrics)
  (found,) = compared(a, evaluated(tmp_path / "b", group(B), group(TARGETS), *metrics))
  assert (found.items, found.units) == (60, 10) and found.metrics.keys() == {"f1a", "exact_match"}
  assert found.metrics["f1a"].b == pytest.approx(task_metrics.multirc_f1a(group(TARGETS), group(B))["f1a"])
  assert found.worse == int(np.sum(np.equal(A, TARGETS) & ~np.equal(B, TARGETS)))


def test_files_of_earlier_versions(tmp_path):
  """Without statistics of items, values are compared with targets."""
  for name, values in (("a", A), ("b", B)):
    folder = epath.Path(evaluated(tmp_path / name, values)) / "predictions"
    file = folder / "some_task.validation.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in ("unit", "statistics")} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in kept))
  (found,) = compared(str(tmp_path / "a" / "results.json"), str(tmp_path / "b" / "predictions"))
  assert found.metrics["exact_match"].a == pytest.approx(100 * np.equal(A, TARGETS).mean())
  (mixed,) = compared(evaluated(tmp_path / "c", A), str(tmp_path / "b"))
  assert mixed.metrics == found.metrics and (mixed.worse, mixed.better) == (found.worse, found.better)


def test_texts_with_line_separators(tmp_path):
  """JSON lines may contain characters at which `str.splitlines` divides."""
  text = "a\u2028b\u2029c\x85d"
  file = epath.Path(evaluated(tmp_path / "a", A)) / "predictions" / "some_task.validation.jsonl"
  file.write_text(file.read_text().replace("question 7", f"question {text}"))
  (found,) = compared(str(tmp_path / "a"), str(tmp_path / "a"))
  assert found.items == 60
  assert paired_comparison.read(str(file), where="A ")["some_task.validation"].items[7]["inputs"] == f"question {text}"


# ---- The command -----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
  """A table within 80 columns, the items that changed, and the tests as JSON."""
  a, b = evaluated(tmp_path / "a", A), evaluated(tmp_path / "b", B)
  evaluated(tmp_path / "b", B, task="other")
  assert command.main(["compare", a, b, "--output", str(tmp_path / "out" / "changed.jsonl")]) == 0
  out = capsys.readouterr().out
  assert "task (validation)" in out and "right -> wrong" in out and "only in B: other.validation" in out
  assert all(len(line) <= 80 or str(tmp_path) in line for line in out.splitlines())
  lines = [json.loads(line) for line in (tmp_path / "out" / "changed.jsonl").read_text().splitlines()]
  tests = json.loads((tmp_path / "out" / "changed.json").read_text())["some_task.validation"]
  assert len(lines) == tests["worse"] + tests["better"] > 0
  assert lines[0].keys() == {"task", "change", "idx", "inputs", "target", "a", "b"}
  assert command.main(["compare", a, f"{b}/predictions/some_task.validation.jsonl"]) == 0
  assert (tmp_path / "b" / "predictions" / "changed_items.jsonl").exists()
  assert command.main(["compare", a, b]) == 0  # its own output in B/predictions is no evaluation


def test_long_names_stay_within_80_columns(tmp_path, capsys):
  metrics = (task_metrics.accuracy, task_metrics.matthews)
  name = "super_glue_winogender_diagnostics"
  both = [evaluated(tmp_path / part, values, TARGETS, *metrics, task=name) for part, values in (("a", A), ("b", B))]
  paired_comparison.print_table(compared(*both), rich.console.Console(width=80))
  assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
  ("a", "b", "message"),
  [
    ({}, {"split": "test"}, "A has some_task.validation; B has some_task.test: no task and split is in both"),
    ({}, {"task": "other"}, "A has some_task.validation; B has other.validation"),
    ({}, {"cut": 50}, "some_task.validation: A has 60 items, and B has 50. Evaluate .*max_examples"),
    ({}, {"flip": True}, r"some_task.validation: item 3 differs in 'target': \d in A, \d in B"),
    ({"target": None}, {"target": None}, "some_task.validation: no gold answers"),
  ],
)
def test_what_cannot_be_compared(a, b, message, tmp_path, capsys):
  folders = []
  for name, options in (("a", a), ("b", b)):
    options, targets = dict(options), list(TARGETS)
    cut, flip = options.pop("cut", 60), options.pop("flip", False)
    targets[2] = 1 - targets[2] if flip else targets[2]
    unlabelled = "target" in options and [options.pop("target")] * 60
    folders.append(evaluated(tmp_path / name, A[:cut], targets[:cut], **options))
    if unlabelled:
      file = tmp_path / name / "predictions" / "some_task.validation.jsonl"
      lines = [json.loads(line) for line in file.read_text().splitlines()]
      file.write_text(
        "".join(json.dumps({"inputs": x["inputs"], "target": None, "value": 0, "prediction": ""}) + "\n" for x in lines)
      )
  assert command.main(["compare", *folders]) == 2
  error = " ".join(capsys.readouterr().err.split())
  with pytest.raises(UserError, match=message):
    raise UserError(error)


def test_what_is_no_evaluation(tmp_path):
  with pytest.raises(UserError, match=r"A .*nothing: no predictions. Give the --workdir"):
    paired_comparison.read(str(tmp_path / "nothing"), where="A ")
  path = tmp_path / "some.validation.jsonl"
  path.write_text('{"inputs": "a"}\n')
  with pytest.raises(UserError, match="line 1: the field 'target' is missing"):
    paired_comparison.read(str(path), where="A ")
  path.write_text("[\n")
  with pytest.raises(UserError, match="line 1: not a JSON object"):
    paired_comparison.read(str(path), where="A ")
