"""`t2t babylm` and `t2t suites` as a user runs them, for each architecture; errors come before a model is loaded."""

import json
import shutil

import numpy as np
import pytest
import suite_files
import trained

from t2t import __main__ as command
from t2t.checkpoints import pretrained
from t2t.evaluation.suites import registry

pytestmark = pytest.mark.slow

ARCHITECTURES = (
  "decoder_only",
  pytest.param("encoder_decoder", marks=pytest.mark.exhaustive),
  pytest.param("encoder_only", marks=pytest.mark.exhaustive),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return suite_files.babylm(tmp_path_factory.mktemp("babylm"))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def evaluated(request, data, tmp_path_factory):
  """Returns architecture, workdir of `t2t babylm` and its output."""
  workdir = tmp_path_factory.mktemp(request.param)
  source = trained.workdir(request.param)
  arguments = ["babylm", f"--checkpoint={source}", f"--workdir={workdir}", f"--data={data}"]
  assert command.main(arguments) == 0
  return request.param, workdir, arguments


def records(workdir):
  return json.loads((workdir / "results.json").read_text())


def rows(workdir, suite):
  return [json.loads(line) for line in (workdir / "predictions" / f"{suite}.test.jsonl").read_text().splitlines()]


def test_each_figure_has_number_interval_and_ties(evaluated):
  """All suites of BabyLM; figures are means over equally weighted groups of the items in the files."""
  architecture, workdir, _ = evaluated
  found = records(workdir)
  assert list(found) == [f"{name}.test" for name in registry.BABYLM]
  for name, record in found.items():
    items = rows(workdir, name.removesuffix(".test"))
    assert record["n"] == len(items) and record["intervals"].keys() <= record["metrics"].keys() and "long" in record
    assert record["normalize"] == "sum"
    assert record.get("pseudo_likelihood") == ("pll" if architecture == "encoder_only" else None)
    if "accuracy" not in record["metrics"]:
      continue
    scores = [item["option_scores"][: 2 if name.startswith("ewok") else None] for item in items]
    right = [float(np.argmax(row) == 0) for row in scores]  # no ties in these files
    groups = {item["group"]: [] for item in items}
    for item, share in zip(items, right, strict=True):
      groups[item["group"]].append(share)
    assert record["metrics"]["accuracy"] == pytest.approx(100 * np.mean([np.mean(x) for x in groups.values()]))
    assert {group: row["n"] for group, row in record["groups"].items()} == {k: len(v) for k, v in groups.items()}
    low, high = (record["intervals"]["accuracy"][end] for end in ("low", "high"))
    assert low <= record["metrics"]["accuracy"] <= high
  assert found["wug_adjectives.test"]["metrics"].keys() == {"spearman_correlation"}


def test_scores_do_not_depend_on_the_batch(evaluated, tmp_path, capsys):
  """Batches of one text; the output has one table with the mean, and the rule of scores."""
  architecture, workdir, arguments = evaluated
  capsys.readouterr()
  others = [f"--workdir={tmp_path}", "--batch_size=1", "--suites=blimp,ewok", "--groups"]
  assert command.main([*arguments, *others]) == 0
  output = capsys.readouterr().out
  assert "mean of 2" in output and "adjunct_island" in output and "95 % interval" in output
  assert ("form=span" in output) == (architecture == "encoder_decoder")
  for suite in ("blimp", "ewok"):
    assert records(tmp_path)[f"{suite}.test"]["metrics"] == records(workdir)[f"{suite}.test"]["metrics"]
    for mine, other in zip(rows(tmp_path, suite), rows(workdir, suite), strict=True):
      np.testing.assert_allclose(mine["option_scores"], other["option_scores"], rtol=2e-6)


def test_two_evaluations_are_compared(evaluated, tmp_path, capsys):
  """`t2t compare` reads the predictions; the same checkpoint does not differ from itself."""
  _, workdir, _ = evaluated
  shutil.copytree(workdir, tmp_path / "other")
  assert command.main(["compare", str(workdir), str(tmp_path / "other")]) == 0
  output = capsys.readouterr().out
  assert "blimp" in output and "spearman" in output and "0 right -> wrong" in output


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  folder = tmp_path_factory.mktemp("files")
  pairs = [suite_files.pair("own", i) for i in range(3)]
  same = {"sentence_good": "the same", "sentence_bad": "the same"}
  long = {"sentence_good": "long " * 30, "sentence_bad": "long  " * 30}
  suite_files.lines(folder / "pairs.jsonl", [*pairs, same | {"UID": "own"}, long | {"UID": "own"}])
  (folder / "text.txt").write_text("quick brown é fox\n" * 20)
  (folder / "ptb.test.txt").write_text(" the <unk> fox saw N dogs \n" * 8)
  suite_files.lama(folder / "lama")
  return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_suites_of_a_user(architecture, files, tmp_path, capsys):
  """Ties count a half, long texts are scored in windows and reported, and answers of several tokens are left out."""
  suites = [f"{name}={files / path}" for name, path in (("pairs", "pairs.jsonl"), ("text", "text.txt"))]
  suites += [f"ptb={files / 'ptb.test.txt'}", f"lama_trex={files / 'lama'}", f"lama_google_re={files / 'lama'}"]
  source = trained.workdir(architecture)
  assert command.main(["suites", f"--checkpoint={source}", f"--workdir={tmp_path}", *suites]) == 0
  captured = capsys.readouterr()
  found = records(tmp_path)
  ends = [found["pairs.test"][name] for name in ("tied", "n")]
  assert ends == [1, 5] and (100 * 0.5 / 5) <= found["pairs.test"]["metrics"]["accuracy"] % 20 <= 10
  is_limited = architecture != "encoder_decoder"  # relative positions have no limit
  assert found["pairs.test"]["long"] == int(is_limited)
  assert ("pairs: 1 of 5 items are longer than the 80 tokens" in captured.err + captured.out) == is_limited
  text, prefix = found["text.test"], "pseudo_" if architecture == "encoder_only" else ""
  assert (text["words"], text["bytes"], text["tokens"]) == (80, 380, 380)
  nats = -sum(row["score"] for row in rows(tmp_path, "text"))
  assert text["metrics"][f"{prefix}bits_per_byte"] == pytest.approx(nats / np.log(2) / 380)
  assert text["metrics"][f"{prefix}word_perplexity"] == pytest.approx(np.exp(nats / 80))
  assert text["metrics"][f"{prefix}perplexity"] == pytest.approx(np.exp(nats / 380))
  assert text["n"] == len(rows(tmp_path, "text")) > 1 and text["intervals"].keys() == text["metrics"].keys()
  # An encoder predicts no EOS, so its words are those of the file alone.
  ends = 0 if architecture == "encoder_only" else 8
  assert (found["ptb.test"]["words"], found["ptb.test"]["tokens"]) == (8 * 6 + ends, 8 * 24 + ends)
  lama = found["lama_trex.test"]
  assert lama["n"] == 4 and lama["left_out"] == {"answer of several tokens": 2} and len(lama["groups"]) == 2
  assert lama["metrics"]["accuracy"] <= lama["metrics"]["precision_at_10"]


@pytest.mark.exhaustive
def test_an_encoder_decoder_has_two_forms(files, tmp_path):
  """The whole sentence after an empty input, or the text of a span; only the latter reads a sentinel."""
  source = trained.workdir("encoder_decoder")
  for form in ("prefix", "span"):
    arguments = ["suites", f"--checkpoint={source}", f"--workdir={tmp_path / form}", f"pairs={files / 'pairs.jsonl'}"]
    assert command.main([*arguments, f"--form={form}"]) == 0
  both = [rows(tmp_path / form, "pairs")[0]["option_scores"] for form in ("prefix", "span")]
  assert not np.allclose(*both, rtol=1e-3)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["suites"], "no suite is given. Give NAME=PATH. Suites: pairs, blimp"),
    (["suites", "blmp=x"], "blmp: no such suite; did you mean blimp"),
    (["suites", "pairs"], "pairs: the path is missing. Give pairs=PATH: your JSON lines"),
    (["suites", "pairs=a", "pairs=b"], "the suite is given twice"),
    (["suites", "pairs=absent.jsonl"], "pairs=absent.jsonl: no such file or folder"),
    (["suites", "--form=span", "pairs=PAIRS"], "--form span: only encoder-decoders have several forms"),
    (["suites", "--normalize=unconditional", "pairs=PAIRS"], "--normalize unconditional: unknown value. Give one of"),
    (["suites", "--pseudo_likelihood=pll", "pairs=PAIRS"], "only encoders have pseudo-log-likelihoods"),
    (["suites", "--max_tokens=99", "pairs=PAIRS"], "max_tokens=99: the model has 80 positions"),
    (["suites", "cloze=SEVERAL"], "cloze: no item is left (1 answer of several tokens)"),
    (["babylm"], "--data is missing"),
    (["babylm", "--data=absent"], "--data absent: no such folder"),
  ],
)
def test_bad_input_is_refused_before_the_model_is_loaded(arguments, message, files, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(pretrained, "load", None)
  several = {"masked_sentences": ["a [MASK]"], "obj_label": "several"}
  paths = {"PAIRS": files / "pairs.jsonl", "SEVERAL": suite_files.lines(tmp_path / "several.jsonl", [several])}
  for name, path in paths.items():
    arguments = [argument.replace(name, str(path)) for argument in arguments]
  source = trained.workdir("decoder_only")
  assert command.main([*arguments, f"--checkpoint={source}", f"--workdir={tmp_path}"]) == 2
  assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_held_out_losses_of_text_have_bits_per_byte(architecture):
  """A byte has at least the loss of a token, because EOS and sentinels have no bytes; an encoder prints none."""
  lines = (trained.workdir(architecture) / "metrics.jsonl").read_text().splitlines()
  (row,) = [row for row in map(json.loads, lines) if "eval/loss" in row]
  assert ("eval/bits_per_byte" in row) == ("eval/perplexity" in row) == (architecture != "encoder_only")
  if architecture != "encoder_only":
    bits = row["eval/loss"] / np.log(2)
    assert bits <= row["eval/bits_per_byte"] < (1.05 if architecture == "decoder_only" else 3) * bits
    assert row["eval/perplexity"] == pytest.approx(np.exp(row["eval/loss"]))


@pytest.mark.parametrize("name", ["suites", "babylm"])
def test_a_path_of_the_command_is_missing(name, tmp_path, capsys):
  assert command.main([name, *(["pairs=x"] if name == "suites" else []), f"--workdir={tmp_path}"]) == 2
  assert "--checkpoint is missing" in capsys.readouterr().err
