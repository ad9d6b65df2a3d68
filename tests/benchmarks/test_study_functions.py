"""Functions of single studies: fits, directions, ciphers, widths, rules; pictures of their own, and seeds in keys."""

import dataclasses
import string

from etils import epath
import numpy as np
import pytest
import toy

from t2t.commands import study_runs
from t2t.studies import claims, definition, picture, results
from t2t.studies.definition import Setting, TrainStage
from t2t.studies.results import StudyRow


def row(arm, seed, **figures):
  values = {
    "status": results.FINISHED,
    "curves": {},
    "stages": [],
    "setting": {},
    "t2t": "",
    "devices": "",
    "ended": "",
  }
  return StudyRow(study="a", scale="toy", definition="", arm=arm, seed=seed, figures=figures, **values)


def test_a_known_scaling_law_is_recovered():
  """Exponents of noisy runs are those of the law, with narrow intervals; equal proportions agree with the claim."""
  scaling_law = toy.benchmark("studies/scaling_law")
  random, rows = np.random.default_rng(1), []
  for n in (1e5, 4e5, 1.6e6, 6.4e6):
    for d in (1e6, 4e6, 1.6e7, 6.4e7):
      loss = (1.0 + 60.0 / n**0.35 + 90.0 / d**0.35) * np.exp(1e-3 * random.standard_normal())
      rows.append(row(f"{n} {d}", 0, parameters=n, tokens=d, loss=loss))
  fitted = scaling_law.exponents(scaling_law.points(rows))
  for name, true in {"alpha": 0.35, "beta": 0.35, "a": 0.5}.items():
    value, low, high = fitted[name]
    assert abs(value - true) < 0.05 and low - 0.02 < true < high + 0.02 and high - low < 0.2
  assert scaling_law.STUDY.rule.decide(rows).word == claims.AGREE
  assert scaling_law.STUDY.rule.decide(rows[:6]).word == claims.UNDECIDED
  assert scaling_law.draw(rows, ()).startswith(b"\x89PNG")


def test_directions_of_loss_surfaces():
  """Filters have the norms of the parameters, vectors do not move, and the principal plane contains a planar path."""
  loss_surface, random = toy.benchmark("studies/loss_surface"), np.random.default_rng(0)
  shapes = {
    "embed/table": (5, 3),
    "encoder/layers/mlp/up": (2, 3, 4),
    "encoder/layers/norm/scale": (2, 3),
    "norm": (3,),
  }
  center = {path: random.standard_normal(shape) for path, shape in shapes.items()}
  direction = loss_surface.filter_normalized(center, random)
  for path, axis in {"embed/table": -1, "encoder/layers/mlp/up": 1}.items():
    np.testing.assert_allclose(*(np.linalg.norm(x[path], axis=axis) for x in (direction, center)), rtol=1e-6)
  assert not direction["encoder/layers/norm/scale"].any() and not direction["norm"].any()
  first, second = ({path: random.standard_normal(shape) for path, shape in shapes.items()} for _ in range(2))
  path = [{k: center[k] + x * first[k] + y * second[k] for k in center} for x, y in ((3, 1), (2, -1), (1, 0), (0, 0))]
  axes, coordinates = loss_surface.principal_plane(path, center)
  for point, (x, y) in zip(path, coordinates, strict=True):
    for name in center:
      np.testing.assert_allclose(center[name] + x * axes[0][name] + y * axes[1][name], point[name], atol=1e-9)


def test_ciphers_and_documents_of_languages():
  """Ciphers permute letters, differ, and keep English; a document belongs to one language at most."""
  multilingual = toy.benchmark("studies/multilingual")
  texts = [string.ascii_letters.translate(multilingual.cipher(number)) for number in range(8)]
  assert len(set(texts)) == 8 and texts[0] == string.ascii_letters
  assert all(sorted(text) == sorted(string.ascii_letters) for text in texts)
  owners = [[number for number in range(8) if multilingual._has(number, document)] for document in range(640)]
  counts = [sum(number in of_document for of_document in owners) for number in range(8)]
  assert max(map(len, owners)) == 1 and counts == [80, 10] * 4


@pytest.mark.parametrize("pieces", [512, 4_096, 8_192])
def test_widths_keep_the_number_of_parameters(pieces):
  vocabulary_size = toy.benchmark("studies/vocabulary_size")
  width = vocabulary_size.width(400_000, pieces, layers=2, heads=2)
  assert width % 4 == 0
  assert abs(pieces * width + 26 * width**2 - 400_000) < 0.1 * 400_000


@pytest.mark.parametrize("scale, smallest, larger", [("toy", 512, 4_096), ("base", 32_000, 256_000)])
def test_vocabularies_are_compared_at_every_scale(scale, smallest, larger):
  """The rule compares arms of the scale, the smallest and one of eight times as many pieces."""
  study = toy.benchmark("studies/vocabulary_size").STUDY
  rows = lambda delta: [
    dataclasses.replace(row(f"{pieces} pieces", seed, mean=mean + 1.1 * seed), scale=scale)
    for seed in range(3)
    for pieces, mean in ((smallest, 50.0), (larger, 50.0 + delta + 0.1 * seed))
  ]
  assert study.rule.decide(rows(3.0)).word == claims.AGREE
  assert study.rule.decide(rows(-3.0)).word == claims.DISAGREE
  assert study.rule.decide([]).word == claims.UNDECIDED


def test_few_labels_match_many():
  """The rule compares columns of two arms, paired by seed, and every task of the rows has to agree."""
  study = toy.benchmark("studies/learning_curve").STUDY

  def rows(few, many, task="order"):
    return [
      *(row(f"{task} pre-trained", seed, **{"100 labels": few + seed}) for seed in range(3)),
      *(
        row(f"{task} from scratch", seed, **{"100 labels": 20.0 + 1.1 * seed, "1000 labels": many + 1.2 * seed})
        for seed in range(3)
      ),
    ]

  assert study.rule.decide(rows(60.0, 55.0)).word == claims.AGREE
  assert study.rule.decide(rows(60.0, 75.0)).word == claims.DISAGREE
  assert study.rule.decide(rows(60.0, 55.0)[:1]).word == claims.UNDECIDED
  assert study.rule.decide([]).word == claims.UNDECIDED
  both = study.rule.decide([*rows(60.0, 55.0), *rows(60.0, 75.0, "topic")])
  assert both.word == claims.DISAGREE and both.parts[0] == "Parts of the rule: 3 agree, 1 disagree."


def test_arms_of_ulmfit_differ_in_start_and_rules():
  """Only the arm from scratch leaves out parameters; the rules of each ablation lack theirs; any task is measured."""
  ulmfit = toy.benchmark("studies/ulmfit")
  of_arms = {arm.name: {stage.name: stage for stage in arm.stages} for arm in ulmfit.arms(Setting("toy"))}
  classifiers = {name: stages["classifier"] for name, stages in of_arms.items()}
  assert {name: stage.start for name, stage in classifiers.items() if stage.start == "general"} == {
    ulmfit.SCRATCH: "general",
    ulmfit.GENERAL: "general",
  }
  assert [name for name, stage in classifiers.items() if "init.parameters" in stage.keys] == [ulmfit.SCRATCH]
  rules = {name: stage.keys["optimizer.param_groups"] for name, stage in classifiers.items()}
  assert rules[ulmfit.FULL] == rules[ulmfit.GENERAL] == ".: depth=0.3846 unfreeze_every=epoch"
  assert rules["without gradual unfreezing"] == ".: depth=0.3846" and rules["without both"] == ""
  assert of_arms[ulmfit.FULL]["general"].seed == 0 and of_arms[ulmfit.FULL]["target"].seed is None


def test_ulmfit_measures_any_task(tmp_path):
  """The accuracy of the user's task is found by its name; the accuracy of tokens is left out."""
  ulmfit = toy.benchmark("studies/ulmfit")
  rows = '{"step": 4, "eval/accuracy": 1.0, "eval/rte/accuracy": 61.0}\n{"step": 8, "eval/rte/accuracy": 63.5}\n'
  (tmp_path / "metrics.jsonl").write_text(rows)
  folders = {"classifier": epath.Path(tmp_path)}
  assert ulmfit.accuracies(folders) == {4: 61.0, 8: 63.5}
  assert ulmfit.columns(Setting("toy"))[0].value(folders) == 63.5


def test_keys_may_have_the_seed():
  """The seed of the run replaces "{seed}", which is no stage; digests of all seeds are equal."""
  stage = TrainStage("a", "finetune_docs_match", {"data.max_train_examples": 8, "data.subset_seed": "{seed}"})
  assert stage.reads == ()
  planned = study_runs._planned(dataclasses.replace(stage, config="tiny"), {}, ())
  assert [study_runs.stage_config(planned, {}, seed).data.subset_seed for seed in (0, 3)] == [0, 3]


def test_a_study_draws_its_own_picture():
  """`draw` gets the rows and the columns; without it the picture has a panel for each curve, also with a log axis."""
  loaded, setting = definition.load("learning_curve"), Setting("toy")
  name = loaded.curves(setting)[0].name
  rows = [dataclasses.replace(row("order pre-trained", 0), curves={name: {30: 1.0, 3_000: 2.0}})]
  plain = picture.of_study(loaded, setting, rows)
  assert plain.startswith(b"\x89PNG") and plain != picture.draw(rows, (), title=loaded.title)
  own = dataclasses.replace(loaded, draw=lambda rows, columns: f"{len(rows)} {columns[0]}".encode())
  assert picture.of_study(own, setting, rows) == b"1 30 labels"
