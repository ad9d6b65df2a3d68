"""`t2t study`: tests a claim of a paper by the runs of a study file, with seeds, intervals and a verdict."""

import argparse
from collections.abc import Sequence
import pathlib
import sys

from absl import logging
import jax

from t2t import UserError
from t2t.checkpoints import workdir_lock
from t2t.commands import saved_settings
from t2t.commands.options import config_parser, parse_known
from t2t.runtime import exit_codes, hosts, numeric
from t2t.storage import gcs
from t2t.studies import definition, page, picture, results
from t2t.studies.definition import SCALES, Setting, Study
from t2t.studies.results import StudyRow

SETTINGS = "study.json"
_ROOT = pathlib.Path(definition.__file__).resolve().parent.parent.parent
RESULTS, PAGES, INDEX = (_ROOT / path for path in ("benchmarks/results/studies", "docs/studies", "docs/studies.md"))


def _parser() -> argparse.ArgumentParser:
  parser = config_parser(
    "t2t study",
    "Tests a claim of a paper: trains the arms of a study with several seeds, prints a table with 95 % intervals, "
    "draws a picture, and decides by the study's rule: agree, disagree or undecided.\n\n"
    "Without NAME it lists the studies. The same command again resumes: finished runs are not repeated, and more "
    "--seeds or --arms may be added.",
    epilog=(
      "examples:\n"
      "  t2t study\n"
      "  t2t study masking_rate --seeds 3\n"
      "  t2t study masking_rate --arms 'mask 15 %,mask 40 %' --seeds 1 \\\n"
      "    --config.train.steps=20\n"
      "  t2t study masking_rate --scale base --workdir gs://BUCKET/masking \\\n"
      "    --data gs://BUCKET/glue --config bert_base\n"
      "  t2t study my_study.py --stage.pretrain.train.batch_size=64"
    ),
    required="[NAME | FILE.py]",
    brief=True,
  )
  parser.add_argument("study", nargs="?", help="a study that `t2t study` lists, or the path of a file with STUDY")
  runs = parser.add_argument_group("runs")
  runs.add_argument("--scale", default="toy", metavar="|".join(SCALES), help="sizes of model and data; default: toy")
  runs.add_argument("--seeds", type=numeric.integer(1), default=3, metavar="N", help="runs of each arm; default: 3")
  runs.add_argument("--arms", default="", metavar="ARM,ARM,...", help="the arms to train; default: all")
  runs.add_argument("--data", default="", metavar="FOLDER", help="folder of GLUE, instead of tasks on documentation")
  runs.add_argument(
    "--workdir", default="", metavar="FOLDER", help="folder or gs:// path; default: runs/studies/NAME_SCALE"
  )
  runs.add_argument("--keep_checkpoints", action="store_true", help="keep checkpoints that no later stage reads")
  runs.add_argument("--list", action="store_true", help="print arms, stages and rule of the study, and train nothing")
  written = parser.add_argument_group("pages of a checkout")
  written.add_argument(
    "--publish", action="store_true", help="write the rows to benchmarks/results/studies, and docs/studies/NAME.md"
  )
  written.add_argument("--redraw", action="store_true", help="write all pages again from committed rows")
  parser.description += (
    "\n\n--config.SECTION.KEY=VALUE overrides a key in all stages,\n--stage.NAME.SECTION.KEY=VALUE in one stage."
  )
  hosts.add_options(parser)
  return parser


def main(argv: list[str]) -> int:
  """Runs `t2t study`; returns the exit code.

  Raises:
    UserError: an option is invalid, or see `study_runs.StudyRuns`.
  """
  options, overrides = parse_known(_parser(), argv)
  if unknown := [x for x in overrides if not x.startswith(("--config.", "--noconfig.", "--stage."))]:
    raise UserError(f"unknown option {unknown[0]}; `t2t study --help` lists all options")
  if options.redraw:
    return redraw()
  if not options.study:
    print("\n".join(listing()))
    return exit_codes.DONE
  name = pathlib.Path(options.study).stem
  study = definition.load(options.study)
  setting = Setting(_scale(study, options.scale), options.config or "", options.data)
  if options.publish:
    _check_publishable(options.study, setting, overrides)
  arms = [arm.strip() for arm in options.arms.split(",") if arm.strip()]
  if options.list:
    print("\n".join(described(study, setting)))
    return exit_codes.DONE
  return _train(name, study, setting, options, arms, overrides)


def _scale(study: Study, scale: str) -> str:
  if scale not in study.scales:
    raise UserError(f"--scale {scale}: the study has the scales {', '.join(study.scales)}. Give one of these.")
  return scale


def _train(
  name: str, study: Study, setting: Setting, options: argparse.Namespace, arms: Sequence[str], overrides: Sequence[str]
) -> int:
  from t2t.commands import study_runs
  from t2t.configuration.schema import TrainConfig

  if seed := next((x for x in overrides if x.startswith("--config.train.seed")), None):
    raise UserError(f"{seed}: --seeds sets this key. Leave the key out.")
  workdir = options.workdir or f"runs/studies/{name}_{setting.scale}"
  gcs.check_folder(workdir, where="--workdir ")
  hosts.start(options, TrainConfig())
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  plan = study_runs.plan(name, study, setting, arms=arms, seeds=range(options.seeds), overrides=overrides)
  folder = gcs.absolute(workdir)
  with workdir_lock.held(folder):
    fixed = {"study": name, "scale": setting.scale, "config": setting.config, "data": setting.data}
    saved_settings.check(folder / SETTINGS, {}, fixed | {"overrides": list(overrides)}, kind="study")
    size = study.scales[setting.scale]
    hosts.log_once(f"study: {study.question}")
    hosts.log_once(
      f"study: {len(plan.arms)} arms x {options.seeds} seeds; {size.minutes:g} minutes with 3 seeds on {size.machine}; "
      f"{folder}"
    )
    rows = study_runs.StudyRuns(plan, folder, keep_checkpoints=options.keep_checkpoints).train()
  if jax.process_index() == 0:
    print("\n" + "\n".join(report(study, setting, rows)))
    print(f"rows           {folder / study_runs.ROWS}")
    print(f"picture        {folder / study_runs.PICTURE}")
    if options.publish:
      print(f"page           {publish(name, rows)}")
  return exit_codes.DONE


def report(study: Study, setting: Setting, rows: Sequence[StudyRow]) -> list[str]:
  """Returns table and verdict as lines of at most 80 columns."""
  import textwrap

  verdict = study.rule.decide(rows)
  lines = results.table(rows, [column.name for column in study.columns(setting)])
  for label, text in (("claim", study.claim), ("rule", study.rule.text), (verdict.word, verdict.because)):
    lines += ["", *textwrap.wrap(f"{label}: {text}", 80)]
  return [*lines, ""]


def described(study: Study, setting: Setting) -> list[str]:
  """Returns claim, rule, and stages of each arm as lines."""
  import textwrap

  size = study.scales[setting.scale]
  lines = [study.title, ""]
  for text in (f"claim: {study.claim}", f"rule: {study.rule.text}", f"scale {setting.scale}: {size.about}"):
    lines += [*textwrap.wrap(text, 80), ""]
  for arm in definition.chosen_arms(study, setting, ()):
    lines.append(arm.name)
    for stage in arm.stages:
      keys = getattr(stage, "keys", {})
      begin = f"  {stage.name}: {getattr(stage, 'config', 'action')}"
      start = [f"from {name}" for name in stage.reads]
      text = " ".join([begin, *start, *(f"{key}={value}" for key, value in keys.items())])
      lines += textwrap.wrap(text, 80, subsequent_indent="    ", break_long_words=False)
  columns = ", ".join(column.name for column in study.columns(setting))
  return [*lines, "", *textwrap.wrap(f"columns: {columns}", 80)]


def listing() -> list[str]:
  """Returns question, results and times of each study as lines of at most 80 columns."""
  import textwrap

  lines: list[str] = []
  for name in definition.names():
    study = definition.load(name)
    times = ", ".join(f"{scale} {size.minutes:g} min on {size.machine}" for scale, size in study.scales.items())
    lines.append(name)
    for text in (study.question, f"result: {page.state(study, committed(name))}", f"time: {times}"):
      lines += textwrap.wrap(text, 80, initial_indent="  ", subsequent_indent="  ")
  return lines or ["no studies: this t2t is not a checkout. Give the path of a study file: t2t study FILE.py"]


# ---- Pages -----------------------------------------------------------------------------------------------------------


def committed(name: str) -> list[StudyRow]:
  """Returns the committed rows of a study."""
  return results.read(gcs.absolute(str(RESULTS / f"{name}.jsonl")))


def _check_publishable(spec: str, setting: Setting, overrides: Sequence[str]) -> None:
  if not definition.is_shipped(spec):
    raise UserError(f"--publish: {spec} is not a study in benchmarks/studies of a checkout. Leave out --publish.")
  if overrides or setting.config:
    changed = overrides[0] if overrides else f"--config {setting.config}"
    raise UserError(f"--publish: {changed} changes the study. Change its file instead, or leave out --publish.")


def publish(name: str, rows: Sequence[StudyRow]) -> pathlib.Path:
  """Replaces the committed rows of the scale, and writes page, pictures and list; returns the path of the page."""
  scale = rows[0].scale
  kept = [row for row in committed(name) if row.scale != scale]
  RESULTS.mkdir(parents=True, exist_ok=True)
  results.write(gcs.absolute(str(RESULTS / f"{name}.jsonl")), [*kept, *rows])
  redraw()
  return PAGES / f"{name}.md"


def redraw() -> int:
  """Writes the pages, the pictures and the list of docs/studies.md from committed rows; returns the exit code."""
  studies = {name: (definition.load(name), committed(name)) for name in definition.names()}
  PAGES.mkdir(parents=True, exist_ok=True)
  for name, (study, rows) in studies.items():
    if not rows:
      continue
    (PAGES / f"{name}.md").write_text(page.text(name, study, rows))
    for scale in page.scales(rows):
      of_scale = [row for row in rows if row.scale == scale]
      content = picture.of_study(study, page.setting(of_scale), of_scale)
      (PAGES / page.picture_name(name, scale)).write_bytes(content)
  if INDEX.exists():
    before, _, rest = INDEX.read_text().partition(page.BEGIN)
    INDEX.write_text(before + page.listed(studies) + rest.partition(page.END)[2])
  print(f"pages          {PAGES}", file=sys.stderr)
  return exit_codes.DONE
