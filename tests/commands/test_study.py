"""`t2t study`: planning, resuming, shared stages, the table, the page and refusals, on a study of two arms."""

import json
import pathlib

from etils import epath
import pytest
import test_language

from t2t import UserError
from t2t import __main__ as command
from t2t.commands import study, study_runs
from t2t.studies import definition, page, results
from t2t.studies.definition import Setting
from t2t.training import metric_writers

# Both arms read the same first stage; an action of the second arm fails once if the file "stop" exists.
FILE = """
import json, pathlib
from t2t import UserError
from t2t.studies import claims, figures
from t2t.studies.definition import LOWER, ActionStage, Arm, Column, Curve, Scale, Study

HERE = pathlib.Path(__file__).parent

def _write(workdir, **metrics):
  with (HERE / "calls.txt").open("a") as calls:
    calls.write(f"{workdir.parent.name.split('-')[0]}/{workdir.name} ")
  lines = [json.dumps({"step": step, **{f"eval/{key}": x + step for key, x in metrics.items()}}) for step in (1, 2)]
  (workdir / "metrics.jsonl").write_text("\\n".join(lines) + "\\n")

def first(workdir, workdirs, seed):
  _write(workdir, loss=5.0 - seed)

def plain(workdir, workdirs, seed):
  _write(workdir, accuracy=50.0 + 2 * seed)

def better(workdir, workdirs, seed):
  if (HERE / "stop").exists() and seed == 1:
    raise KeyboardInterrupt
  base = figures.metric("first", "eval/loss")(workdirs)
  _write(workdir, accuracy=60.0 + 2.1 * seed + 0.0 * base)

def arm(name, function):
  return Arm(name, [ActionStage("first", first), ActionStage("second", function, ("first",))])

ACCURACY = Column("score", figures.metric("second", "eval/accuracy"))
STUDY = Study(
  title="Better and plain",
  question="Is better better than plain?",
  paper="Somebody 2020, table 1",
  claim="Better is better.",
  rule=claims.higher("better", than="plain", column="score"),
  arms=lambda setting: [arm("plain", plain), arm("better", better)],
  columns=lambda setting: [
    ACCURACY, Column("loss", figures.metric("first", "eval/loss"), LOWER), figures.mean_of("mean", [ACCURACY]),
  ],
  curves=lambda setting: [Curve("loss", figures.curve("first", "eval/loss"))],
  scales={"toy": Scale("any machine", 1, "Nothing is trained.")},
  caveats="nothing is trained.",
)
"""


def written(folder, text=FILE):
  """Returns the path of the study file."""
  (folder / "fake.py").write_text(text)
  return str(folder / "fake.py")


def calls(folder):
  return (folder / "calls.txt").read_text().split()


def arguments(folder, *options, text=FILE):
  return ["study", written(folder, text), f"--workdir={folder / 'out'}", *options]


def test_a_study_is_made_and_resumed(tmp_path, capsys):
  """A stopped study continues without repeating a run, and more seeds and the other arms are added."""
  (tmp_path / "stop").touch()
  assert command.main(arguments(tmp_path, "--seeds=2")) == 130
  assert calls(tmp_path) == ["first/seed-0", "second/seed-0", "second/seed-0", "first/seed-1", "second/seed-1"]
  (tmp_path / "stop").unlink()
  capsys.readouterr()
  assert command.main(arguments(tmp_path, "--seeds=2")) == 0
  assert calls(tmp_path)[5:] == ["second/seed-1"]  # the shared first stage of seed 1 had finished
  said = capsys.readouterr()
  assert "run 1 of 1: better, second, seed 1" in said.err
  assert all(len(line) <= 80 for line in said.out.splitlines()[:-2])
  assert "agree: score: better minus plain is 10.0" in said.out
  rows = [json.loads(line) for line in (tmp_path / "out" / "study.jsonl").read_text().splitlines()]
  assert [(row["arm"], row["seed"], row["figures"]["score"]) for row in rows] == [
    *(("plain", 0, 52.0), ("plain", 1, 54.0), ("better", 0, 62.0), ("better", 1, 64.1))
  ]
  assert rows[0]["curves"] == {"loss": {"1": 6.0, "2": 7.0}} and rows[0]["figures"]["mean"] == 52.0
  assert rows[0]["stages"][0]["digest"] == rows[2]["stages"][0]["digest"]
  assert rows[0]["t2t"].startswith("t2t ") and rows[0]["devices"]
  assert (tmp_path / "out" / "study.png").read_bytes().startswith(b"\x89PNG")

  assert command.main(arguments(tmp_path, "--seeds=2")) == 0 and len(calls(tmp_path)) == 6
  assert command.main(arguments(tmp_path, "--seeds=3", "--arms=plain")) == 0
  assert calls(tmp_path)[6:] == ["first/seed-2", "second/seed-2"]
  assert len(results.read(study_runs.gcs.absolute(str(tmp_path / "out" / "study.jsonl")))) == 5

  for options, text, message in (
    (("--seeds=2", "--config.train.steps=3"), FILE, "--overrides=.*: the study in .* was made with"),
    (("--seeds=2",), FILE.replace("60.0", "61.0"), ""),
    (("--seeds=2",), FILE.replace("Better is better.", "Better is worse."), "claim, rule or columns of the study have"),
    (("--seeds=2",), FILE.replace('"better", than="plain"', '"plain", than="better"'), "claim, rule or columns"),
    (
      ("--seeds=2",),
      FILE.replace('function, ("first",))', 'function, ("first",), version=2)'),
      "the stages of arm plain have changed since its row of seed 0",
    ),
  ):
    if message:
      with pytest.raises(UserError, match=message):
        study.main(arguments(tmp_path, *options, text=text)[1:])
  with pytest.raises(UserError, match="--study=other: the study in .* was made with fake"):
    (tmp_path / "other.py").write_text(FILE)
    study.main([str(tmp_path / "other.py"), f"--workdir={tmp_path / 'out'}"])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (("--arms=better,plainest",), "--arms plainest: no such arm; did you mean plain\\? Give some of: plain, better"),
    (("--scale=base",), "--scale base: the study has the scales toy"),
    (("--publish",), "--publish: .*fake.py is not a study in benchmarks/studies"),
    (("--stage.third.train.steps=2",), "no stage is called third. Stages: first, second"),
    (("--sseds=2",), "unknown option --sseds; did you mean --seeds"),
    (("--config.train.seed=2",), "--config.train.seed=2: --seeds sets this key"),
  ],
)
def test_what_is_refused(options, message, tmp_path):
  with pytest.raises(UserError, match=message):
    study.main(arguments(tmp_path, *options)[1:])


def test_files_that_are_no_study(tmp_path):
  name = definition.names()[0]
  for spec, message in (
    (name[:-1], f"no such study; did you mean {name}"),
    (str(tmp_path / "absent.py"), "absent.py: no such file"),
  ):
    with pytest.raises(UserError, match=message):
      definition.load(spec)
  for text, message in (("x = 1", "does not define STUDY"), ("1 / 0", "the file fails with ZeroDivisionError")):
    with pytest.raises(UserError, match=message):
      definition.load(written(tmp_path, text))
  backwards = FILE.replace('[ActionStage("first", first), ActionStage(', '[ActionStage("zero", first), ActionStage(')
  with pytest.raises(UserError, match="stage 'second' of arm 'plain' reads 'first', which is no earlier stage"):
    definition.chosen_arms(definition.load(written(tmp_path, backwards)), Setting("toy"), ())


TRAINED = """
from t2t.studies import claims, figures
from t2t.studies.definition import Arm, Column, Scale, Study, TrainStage

KEYS = {"train.steps": 2, "eval.every": 2, "checkpoint.save_interval_steps": 2, "eval.num_logged_samples": 0}
KEYS |= {"data.files": "FOLDER/text.txt", "data.mixture": "", "data.vocabulary": "bytes", "train.batch_size": 8}
KEYS |= {"model.embed_dim": 16, "model.mlp_dim": 16, "model.num_heads": 1, "model.head_dim": 16}
KEYS |= {"optimizer.name": "adamw", "model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
KEYS |= {"data.num_streams": 1, "data.inputs_length": 32, "data.targets_length": 10, "eval.batches": 1}

def arm(name, **keys):
  keys = {key.replace("__", "."): value for key, value in keys.items()}
  first = TrainStage("first", "tiny", {**KEYS, **keys.pop("first", {})})
  return Arm(name, [first, TrainStage("second", "tiny", {**KEYS, **keys}, start="first")])

STUDY = Study(
  title="t", question="q", paper="p", claim="c", rule=claims.lower("slow", than="fast", column="loss"),
  arms=lambda setting: [
    arm("slow"), arm("fast", optimizer__learning_rate=0.1), arm("other", first={"train.batch_size": 16}),
  ],
  columns=lambda setting: [Column("loss", figures.metric("second", "eval/loss"), "lower")],
  scales={"toy": Scale("any machine", 1, "Two steps.")},
)
"""


def planned(folder, *overrides, seeds=1):
  loaded = definition.load(written(folder, TRAINED.replace("FOLDER", str(folder))))
  return study_runs.plan("fake", loaded, Setting("toy"), arms=(), seeds=range(seeds), overrides=overrides)


def test_equal_stages_have_equal_digests(tmp_path):
  """Digests depend on changed keys and on earlier stages; an override of a stage changes it and the later ones."""
  plain = planned(tmp_path)
  slow, fast, other = (plain.digests(arm) for arm in ("slow", "fast", "other"))
  assert slow[0] == fast[0] and slow[1] != fast[1]
  assert other[0] != slow[0] and other[1] != slow[1]  # its start differs
  same = planned(tmp_path, "--stage.first.train.steps=2")
  assert same.digests("slow") == slow
  later = planned(tmp_path, "--stage.second.train.steps=3")
  assert later.digests("slow")[0] == slow[0] and later.digests("slow")[1] != slow[1]
  everywhere = planned(tmp_path, "--config.train.steps=3")
  assert everywhere.digests("slow")[0] != slow[0]
  with pytest.raises(UserError, match="train.stps"):
    planned(tmp_path, "--config.train.stps=3")


@pytest.mark.slow
def test_stages_are_trained(tmp_path, capsys):
  """The checkpoint of the first stage starts the second; the row has its loss, tokens and FLOPs."""
  (tmp_path / "text.txt").write_text("\n".join(f"{i} is the number {i} of a line of text." for i in range(200)))
  text = TRAINED.replace("FOLDER", str(tmp_path))
  assert command.main(arguments(tmp_path, "--seeds=1", "--arms=fast", text=text)) == 0
  (row,) = [json.loads(line) for line in (tmp_path / "out" / "study.jsonl").read_text().splitlines()]
  first, second = sorted((tmp_path / "out" / "runs").glob("*/seed-0"))
  assert row["figures"]["loss"] == metric_writers.read_metrics(epath.Path(second / "metrics.jsonl"), "eval/loss")[2]
  assert all(stage["steps"] == 2 and stage["flops"] > 0 and stage["tokens"] > 0 for stage in row["stages"])
  saved = json.loads((second / "config.json").read_text())
  assert saved["init"]["checkpoint"] == str(first) and saved["train"]["seed"] == 0
  assert (first / "checkpoints").exists() and not (second / "checkpoints").exists()


# ---- Committed results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", definition.names())
def test_shipped_studies_are_complete(name):
  """A study loads, its arms and columns exist at scale toy, and its text is plain."""
  loaded = definition.load(name)
  setting = Setting("toy")
  arms = definition.chosen_arms(loaded, setting, ())
  columns = [column.name for column in loaded.columns(setting)]
  assert len(arms) > 1 and len(set(columns)) == len(columns) and all("," not in arm.name for arm in arms)
  for text in (loaded.question, loaded.claim, loaded.caveats, loaded.scales["toy"].about):
    assert all(len(sentence.split()) <= test_language.MOST_WORDS for sentence in test_language.sentences(text)), text


@pytest.mark.parametrize("name", [path.stem for path in study.RESULTS.glob("*.jsonl")])
def test_pages_agree_with_committed_rows(name):
  """Page, figures, verdict and rule come from the rows; the rows belong to this claim and rule."""
  rows, loaded = study.committed(name), definition.load(name)
  assert (study.PAGES / f"{name}.md").read_text() == page.text(name, loaded, rows)
  assert not test_language.findings(study.PAGES / f"{name}.md")
  for row in rows:
    assert row.definition == loaded.digest(Setting(row.scale, data=row.setting["data"]))
  for scale in page.scales(rows):
    assert (study.PAGES / page.picture_name(name, scale)).read_bytes().startswith(b"\x89PNG")


def test_the_list_of_studies_is_current():
  studies = {name: (definition.load(name), study.committed(name)) for name in definition.names()}
  assert page.listed(studies) in study.INDEX.read_text()
  assert {path.stem for path in study.PAGES.glob("*.md")} == {path.stem for path in study.RESULTS.glob("*.jsonl")}
  assert all(len(line) <= 80 for line in study.listing())


def test_a_page_has_every_figure(tmp_path, monkeypatch):
  """Published rows give a page with the table, the verdict, the commands and the rule."""
  loaded = definition.load(written(tmp_path))
  study.main(arguments(tmp_path, "--seeds=2")[1:])
  rows = results.read(study_runs.gcs.absolute(str(tmp_path / "out" / "study.jsonl")))
  text = page.text("fake", loaded, rows)
  assert "## Result at scale toy: agree" in text and loaded.rule.text.split(".")[0] in text.replace("\n", " ")
  assert "| plain | 53.0 (40.3 to 65.7) | 6.50 (0.147 to 12.9) | 53.0 (40.3 to 65.7) |" in text
  (tmp_path / "page.md").write_text(text)
  assert not test_language.findings(tmp_path / "page.md") and "Lower is better in: loss." in text
  for folder, attribute in (("results", "RESULTS"), ("pages", "PAGES")):
    monkeypatch.setattr(study, attribute, tmp_path / folder)
  monkeypatch.setattr(study, "INDEX", tmp_path / "studies.md")
  monkeypatch.setattr(definition, "STUDIES", tmp_path)
  (tmp_path / "studies.md").write_text(f"# Studies\n\n{page.BEGIN}\n{page.END}\nend\n")
  assert study.publish("fake", rows) == tmp_path / "pages" / "fake.md"
  assert (tmp_path / "pages" / "fake.md").read_text() == text
  index = (tmp_path / "studies.md").read_text()
  assert "| [fake](studies/fake.md) | Is better better than plain? | toy: agree (2 seeds) |" in index
  assert index.endswith("end\n") and pathlib.Path(tmp_path / "pages" / "fake_toy.png").exists()
