"""Declarations of a study file: arms, their stages, columns, curves, scales, and the claim with its rule."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
import re
from typing import Any, TypeVar

from etils import epath

from t2t import UserError, did_you_mean
from t2t.runtime import imports, versions
from t2t.studies.claims import ClaimRule
from t2t.studies.results import StudyRow

T = TypeVar("T")

Folders = Mapping[str, epath.Path]  # name of a stage -> its workdir

SCALES = ("toy", "small", "base")
HIGHER, LOWER, NEITHER = "higher", "lower", ""

_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STUDIES = _ROOT / "benchmarks" / "studies"


@dataclasses.dataclass(frozen=True)
class Setting:
  """Options of the command that a study may depend on.

  scale: one of `SCALES`.
  config: the user's pre-training config; "": the study's.
  data: the user's folder of benchmarks; "": the tasks on the installed documentation.
  """

  scale: str
  config: str = ""
  data: str = ""

  def sized(self, **values: T) -> T:
    """Returns the value of the scale: `setting.sized(toy=300, small=20_000, base=100_000)`."""
    return values[self.scale]


@dataclasses.dataclass(frozen=True)
class Scale:
  """Size of a study.

  machine: for which the time holds, "two CPU cores".
  minutes: of all arms with three seeds on this machine; estimated where no page has a result.
  about: model, steps and data in a sentence.
  """

  machine: str
  minutes: float
  about: str


@dataclasses.dataclass(frozen=True)
class TrainStage:
  """Stage of an arm that trains: `t2t train` with the seed of the run.

  name: unique within the arm; stages of several arms with equal configs, starts and seeds are trained once.
  config: name of a config, or path of a file.
  keys: "SECTION.KEY" -> value. "{STAGE}" in a text is the workdir of an earlier stage, "{seed}" the seed of the run.
  start: earlier stage whose checkpoint config.init.checkpoint names; "": none.
  seed: the same for all runs, for example of a teacher; None: the seed of the run.
  """

  name: str
  config: str
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  start: str = ""
  seed: int | None = None

  @property
  def reads(self) -> tuple[str, ...]:
    """Names of earlier stages in the order of their use."""
    named = [name for value in self.keys.values() if isinstance(value, str) for name in _PLACEHOLDER.findall(value)]
    stages = [name for name in named if name != SEED]
    return tuple(dict.fromkeys([*([self.start] if self.start else []), *stages]))


@dataclasses.dataclass(frozen=True)
class ActionStage:
  """Stage of an arm that trains nothing: prunes, converts, estimates.

  name: see `TrainStage`.
  function: (workdir to write, workdirs of the stages in `reads`, seed) -> None; called again after an interruption.
  reads: names of earlier stages.
  version: increase it when the function changes, so that the stage is repeated.
  seed: see `TrainStage`.
  """

  name: str
  function: Callable[[epath.Path, Folders, int], None]
  reads: tuple[str, ...] = ()
  version: int = 1
  seed: int | None = None


StageOfArm = TrainStage | ActionStage

SEED = "seed"  # "{seed}" in keys
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclasses.dataclass(frozen=True)
class Arm:
  """Row of the table.

  name: short, "mask 15 %".
  stages: in the order of their execution.
  """

  name: str
  stages: Sequence[StageOfArm]


@dataclasses.dataclass(frozen=True)
class Column:
  """Column of the table.

  name: short, with the unit if it is not a percentage.
  value: workdirs of an arm's stages -> value; None if the arm has none. See `figures`.
  better: `HIGHER`, `LOWER` or `NEITHER`.
  """

  name: str
  value: Callable[[Folders], float | None]
  better: str = HIGHER


@dataclasses.dataclass(frozen=True)
class Curve:
  """Curves of the picture: a panel with a line for each arm.

  name: label of the values.
  values: workdirs of an arm's stages -> step -> value; {} if the arm has none.
  x: label of the steps.
  log_x: whether the axis of the steps is logarithmic.
  """

  name: str
  values: Callable[[Folders], Mapping[int, float]]
  x: str = "step"
  log_x: bool = False


@dataclasses.dataclass(frozen=True)
class Study:
  """Claim of a paper and the runs that test it.

  title, question: for readers.
  paper: authors, year, title, and where in the paper the figures are.
  claim: statement of the paper, with its figures.
  rule: decides from the rows whether they agree, see `claims`.
  arms, columns, curves: by setting.
  scales: name -> size.
  caveats: limits, and why a result at a small scale may differ from the paper's.
  draw: (rows of one scale, names of the columns) -> PNG, instead of `picture.draw`.
  """

  title: str
  question: str
  paper: str
  claim: str
  rule: ClaimRule
  arms: Callable[[Setting], Sequence[Arm]]
  columns: Callable[[Setting], Sequence[Column]]
  scales: Mapping[str, Scale]
  caveats: str = ""
  curves: Callable[[Setting], Sequence[Curve]] = lambda setting: ()
  draw: Callable[[Sequence[StudyRow], Sequence[str]], bytes] | None = None

  def digest(self, setting: Setting) -> str:
    """Returns a digest of claim, rule and columns, which must not change once rows exist."""
    columns = [(column.name, column.better) for column in self.columns(setting)]
    curves = [curve.name for curve in self.curves(setting)]
    return digest([self.question, self.paper, self.claim, self.rule.text, columns, curves])


def digest(value: Any) -> str:
  """Returns ten hexadecimal digits of a JSON value."""
  return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:10]


def names() -> list[str]:
  """Returns the studies of the checkout; a wheel has none."""
  return sorted(path.stem for path in STUDIES.glob("*.py") if not path.stem.startswith("_"))


def load(spec: str) -> Study:
  """Loads the study of a name, or of a user's .py file that defines `STUDY`.

  Raises:
    UserError: it does not exist, or the file defines no study.
  """
  path = pathlib.Path(spec) if spec.endswith(".py") else STUDIES / f"{spec}.py"
  if not path.is_file():
    if spec.endswith(".py"):
      raise UserError(f"{spec}: no such file. Give the path of a study, or a name that `t2t study` lists.")
    known = names()
    listed = f"Give one of {', '.join(known)}, or a path." if known else _IN_CHECKOUT
    raise UserError(f"t2t study {spec}: no such study{did_you_mean(spec, known) or '.'} {listed}")
  try:
    study = getattr(imports.file_module(path, f"t2t_study_{path.stem}"), "STUDY", None)
  except UserError:
    raise
  except Exception as error:
    raise UserError(f"{path}: the file fails with {type(error).__name__} ({error}). Correct the file.") from error
  if not isinstance(study, Study):
    raise UserError(
      f"{path}: the file does not define STUDY. Add STUDY = Study(...), see benchmarks/studies/README.md."
    )
  return study


_IN_CHECKOUT = "The studies are in a checkout of t2t, benchmarks/studies; give the path of a file."


def is_shipped(spec: str) -> bool:
  """Returns whether a study is one of the checkout, so that its rows and page are committed."""
  return versions.is_checkout() and spec in names()


def chosen_arms(study: Study, setting: Setting, wanted: Sequence[str]) -> list[Arm]:
  """Returns the arms with these names, or all arms, after checks of their stages.

  Raises:
    UserError: an arm is unknown, or a stage reads one that is not before it.
  """
  arms = list(study.arms(setting))
  known = [arm.name for arm in arms]
  for name in wanted:
    if name not in known:
      raise UserError(f"--arms {name}: no such arm{did_you_mean(name, known) or '.'} Give some of: {', '.join(known)}.")
  if len(set(known)) < len(known):
    raise UserError(f"STUDY.arms: two arms have the same name ({', '.join(known)}). Rename one.")
  for arm in arms:
    before: list[str] = []
    for stage in arm.stages:
      if stage.name in before:
        raise UserError(f"STUDY.arms: arm {arm.name!r} has two stages {stage.name!r}. Rename one.")
      for name in stage.reads:
        if name not in before:
          raise UserError(
            f"STUDY.arms: stage {stage.name!r} of arm {arm.name!r} reads {name!r}, which is no earlier stage of it "
            f"({', '.join(before) or 'none'}). Correct the name."
          )
      before.append(stage.name)
  return [arm for arm in arms if not wanted or arm.name in wanted]
