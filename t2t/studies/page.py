"""Page of a study, docs/studies/NAME.md, and the list in docs/studies.md: generated from committed rows."""

from collections.abc import Mapping, Sequence
import math
import shlex
import textwrap
from typing import Any

from t2t.reports import seed_scores
from t2t.runtime import amounts
from t2t.studies import claims, definition, results
from t2t.studies.definition import Setting, Study
from t2t.studies.results import StudyRow

_WIDTH = 120
BEGIN, END = "<!-- studies: `t2t study --redraw` writes this table -->", "<!-- end of studies -->"


def text(name: str, study: Study, rows: Sequence[StudyRow]) -> str:
  """Returns the page.

  Args:
    name: of the study.
    study: its definition.
    rows: committed rows of all scales.
  """
  lines = [f"# {study.title}", "", *_wrapped(study.question), ""]
  lines += [f"    t2t study {name} --scale {scale}" for scale in scales(rows)]
  lines += ["", "## The claim", "", *_wrapped(f"{study.claim} Source: {study.paper}."), ""]
  lines += ["## The rule, stated before the runs", "", *_numbered(study.rule.parts, study.rule.text), ""]
  for scale in scales(rows):
    lines += _of_scale(name, study, scale, [row for row in rows if row.scale == scale])
  return "\n".join(lines).rstrip() + "\n"


def scales(rows: Sequence[StudyRow]) -> list[str]:
  """Returns the scales of the rows, the smallest first."""
  return [scale for scale in definition.SCALES if any(row.scale == scale for row in rows)]


def setting(rows: Sequence[StudyRow]) -> Setting:
  """Returns the setting of the rows of one scale."""
  return Setting(rows[0].scale, data=str(rows[0].setting.get("data", "")))


def picture_name(name: str, scale: str) -> str:
  """Returns the file name of the picture of a scale, beside the page."""
  return f"{name}_{scale}.png"


def _of_scale(name: str, study: Study, scale: str, rows: Sequence[StudyRow]) -> list[str]:
  declared = study.columns(setting(rows))
  columns = [column.name for column in declared]
  verdict = study.rule.decide(rows)
  size = study.scales[scale]
  seeds = sorted({row.seed for row in rows})
  lines = [f"## Result at scale {scale}: {verdict.word}", "", *_numbered(verdict.parts, verdict.because), ""]
  head = [" | ".join(["arm", *columns]), "|".join(["---"] * (1 + len(columns)))]
  body = [" | ".join([arm, *(_cell(rows, arm, column) for column in columns)]) for arm in results.arms(rows)]
  lines += [f"| {head[0]} |", f"|{head[1]}|", *(f"| {line} |" for line in body), ""]
  shown = (
    f"{len(seeds)} seeds; in brackets the 95 % interval of the mean by Student's t, unless all are equal."
    if len(seeds) > 1
    else ""
  )
  shown = shown or "One seed, so there are no intervals."
  if lower := [column.name for column in declared if column.better == definition.LOWER]:
    shown += f" Lower is better in: {', '.join(lower)}."
  lines += [*_wrapped(shown), ""]
  lines += [f"![{study.title}: {', '.join(columns)} of each arm, scale {scale}]({picture_name(name, scale)})", ""]
  if study.caveats:
    begin = "Limits" if verdict.word == claims.AGREE else "Why the result may differ from the paper's"
    lines += [*_wrapped(f"{begin}: {study.caveats}"), ""]
  lines += [f"### Setup at scale {scale}", "", *_wrapped(f"{size.about} {_origin(rows)}"), ""]
  lines += ["| stage | arms | steps | tokens | FLOPs | seconds |", "|---|---|---|---|---|---|", *_stages(rows), ""]
  lines += [
    f"The commands of seed {seeds[0]}, without `--workdir`. A list gives the further keys of stages and arms.",
    "",
  ]
  return [*lines, *_commands(rows, seeds[0]), ""]


def _cell(rows: Sequence[StudyRow], arm: str, column: str) -> str:
  values = list(results.by_seed(rows, arm, column).values())
  if any(row.arm == arm and row.status == results.DIVERGED for row in rows):
    return results.DIVERGED
  if not values:
    return "-"
  mean, margin = seed_scores.mean_and_margin(values)
  if math.isnan(margin) or not margin:
    return results.number(mean)
  return f"{results.number(mean)} ({results.number(mean - margin)} to {results.number(mean + margin)})"


def _origin(rows: Sequence[StudyRow]) -> str:
  """Returns devices, versions and dates of the rows in a sentence."""
  devices = ", ".join(sorted({row.devices for row in rows}))
  built = _versions(sorted({row.t2t for row in rows}))
  days = sorted({row.ended[:10] for row in rows})
  return f"Devices: {devices}. Versions: {built}. Dates: {', '.join(days)}."


def _versions(texts: Sequence[str]) -> str:
  """Joins the versions of rows that were made at several commits.

  In:  ["t2t 1, commit a, jax 2", "t2t 1, commit b, jax 2"]
  Out: "t2t 1, commit a and b, jax 2"
  """
  parts = [text.split(", ") for text in texts]
  if len({len(of_text) for of_text in parts}) > 1:  # an installed wheel has no commit
    return "; ".join(texts)
  each = [list(dict.fromkeys(values)) for values in zip(*parts, strict=True)]
  return ", ".join(" and ".join([values[0], *(value.split()[-1] for value in values[1:])]) for values in each)


def _stages(rows: Sequence[StudyRow]) -> list[str]:
  """Returns a line for each stage with equal configs, with the means of its runs."""
  stages: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    for stage in row.stages:
      stages.setdefault(stage["digest"], []).append(stage)
  lines, arms, number = [], _arms_of_stages(rows), len(results.arms(rows))
  for key, runs in stages.items():
    mean = lambda name, runs=runs: _mean([run.get(name) for run in runs])
    cells = [f"{x:,.0f}" if x is not None else "-" for x in (mean("steps"),)]
    cells += [amounts.compact_count(x) if x else "-" for x in (mean("tokens"),)]
    cells += [f"{x:.2e}" if x else "-" for x in (mean("flops"),)]
    cells += [f"{x:.0f}" if x is not None else "-" for x in (mean("seconds"),)]
    shared = "all" if len(arms[key]) == number > 1 else ", ".join(arms[key])
    lines.append(f"| {runs[0]['name']} | {shared} | {' | '.join(cells)} |")
  return lines


def _arms_of_stages(rows: Sequence[StudyRow]) -> dict[str, list[str]]:
  """Returns digest of a stage -> arms that have it, in the order of the rows."""
  arms: dict[str, dict[str, None]] = {}
  for row in rows:
    for stage in row.stages:
      arms.setdefault(stage["digest"], {})[row.arm] = None
  return {key: list(names) for key, names in arms.items()}


def _mean(values: Sequence[float | None]) -> float | None:
  known = [x for x in values if x is not None]
  return sum(known) / len(known) if known else None


def _commands(rows: Sequence[StudyRow], seed: int) -> list[str]:
  """Returns the command of the stages of each config with their common keys, and a list of the other keys of each."""
  of_seed = [row for row in rows if row.seed == seed]
  stages = {stage["digest"]: stage for row in of_seed for stage in row.stages if "arguments" in stage}
  lines: list[str] = []
  arms = _arms_of_stages(of_seed)
  for config in dict.fromkeys(stage["config"] for stage in stages.values()):
    keys_of = {key: stage["arguments"] for key, stage in stages.items() if stage["config"] == config}
    common = [
      argument for argument in next(iter(keys_of.values())) if all(argument in others for others in keys_of.values())
    ]
    lines += [_folded(["t2t", "train", "--config", config, *common]), ""]
    for key, arguments in keys_of.items():
      further = " ".join(shlex.quote(argument) for argument in arguments if argument not in common)
      if further:
        lines.append(f"- {stages[key]['name']}, {', '.join(arms[key])}: `{further}`")
    lines += [""] if lines[-1] else []
  return lines[:-1]


def _folded(words: Sequence[str]) -> str:
  """Joins the words of a command to indented lines with backslashes."""
  lines, line = [], "   "
  for word in map(shlex.quote, words):
    if len(line) + len(word) + 3 > _WIDTH and line.strip():
      lines.append(f"{line} \\")
      line = "     "
    line += f" {word}"
  return "\n".join([*lines, line])


def _wrapped(paragraph: str) -> list[str]:
  return textwrap.wrap(" ".join(paragraph.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _numbered(parts: Sequence[str], whole: str) -> list[str]:
  """Returns the first part and a numbered list of the others; without parts, the whole as a paragraph."""
  if not parts:
    return _wrapped(whole)
  indent = {"width": _WIDTH, "subsequent_indent": "   ", "break_long_words": False, "break_on_hyphens": False}
  listed_parts = (textwrap.wrap(f"{number}. {part}", **indent) for number, part in enumerate(parts[1:], start=1))
  return [*_wrapped(parts[0]), "", *(line for part in listed_parts for line in part)]


def listed(studies: Mapping[str, tuple[Study, Sequence[StudyRow]]]) -> str:
  """Returns the table of docs/studies.md: question, and result or state of each study."""
  lines = [BEGIN, "", "| study | question | result |", "|---|---|---|"]
  for name, (study, rows) in studies.items():
    shown = f"[{name}](studies/{name}.md)" if rows else f"`{name}`"
    lines.append(f"| {shown} | {study.question} | {state(study, rows)} |")
  return "\n".join([*lines, "", END])


def state(study: Study, rows: Sequence[StudyRow]) -> str:
  """Returns verdict, parts and seeds of each scale: "toy: undecided (2 agree, 1 undecided; 3 seeds)".

  "no result yet" without rows.
  """
  texts = []
  for scale in scales(rows):
    of_scale = [row for row in rows if row.scale == scale]
    seeds = len({row.seed for row in of_scale})
    verdict = study.rule.decide(of_scale)
    parts = f"{verdict.parts[0].partition(': ')[2].rstrip('.')}; " if verdict.parts else ""
    texts.append(f"{scale}: {verdict.word} ({parts}{seeds} seed{'s' * (seeds != 1)})")
  return ", ".join(texts) or "no result yet"
