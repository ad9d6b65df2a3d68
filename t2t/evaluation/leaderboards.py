"""Prediction files in the formats of the GLUE and SuperGLUE leaderboards."""

from collections.abc import Callable, Mapping, Sequence
import io
import itertools
import json
from typing import Any
import uuid
import zipfile

from etils import epath

from t2t import UserError, did_you_mean
from t2t.data import postprocessors

Row = tuple[Mapping[str, Any], Any]  # fields of an example, and the result of the task's postprocess function


def _one_of(*labels: str | int) -> Callable[[Row], str | int]:
  def answer(row: Row) -> str | int:
    _, prediction = row
    if isinstance(prediction, Mapping):
      prediction = prediction["value"]
    return labels[0 if postprocessors.is_unparseable(prediction) else prediction]

  return answer


def _entity(row: Row) -> str:
  example, prediction = row
  return (
    next(iter(postprocessors.texts(example, "options")), "")
    if postprocessors.is_unparseable(prediction)
    else prediction
  )


def _similarity(row: Row) -> str:
  _, prediction = row
  return f"{min(max(prediction or 0.0, 0.0), 5.0):.3f}"


_ENTAILMENT = _one_of("entailment", "not_entailment")
_MNLI = _one_of("entailment", "neutral", "contradiction")

# Leaderboard -> task -> file name, and the function that formats a prediction. Leaderboards take strings where the
# released files have JSON's true and false, capitalized for WSC.
LEADERBOARDS: Mapping[str, Mapping[str, tuple[str, Callable[[Row], str | int]]]] = {
  "super_glue": {
    "super_glue_boolq": ("BoolQ.jsonl", _one_of("false", "true")),
    "super_glue_cb": ("CB.jsonl", _one_of("entailment", "contradiction", "neutral")),
    "super_glue_copa": ("COPA.jsonl", _one_of(0, 1)),
    "super_glue_multirc": ("MultiRC.jsonl", _one_of(0, 1)),
    "super_glue_record": ("ReCoRD.jsonl", _entity),
    "super_glue_rte": ("RTE.jsonl", _ENTAILMENT),
    "super_glue_wic": ("WiC.jsonl", _one_of("false", "true")),
    "super_glue_wsc": ("WSC.jsonl", _one_of("False", "True")),
    "super_glue_axb": ("AX-b.jsonl", _ENTAILMENT),
    "super_glue_axg": ("AX-g.jsonl", _ENTAILMENT),
  },
  "glue": {
    "glue_cola": ("CoLA.tsv", _one_of(0, 1)),
    "glue_sst2": ("SST-2.tsv", _one_of(0, 1)),
    "glue_mrpc": ("MRPC.tsv", _one_of(0, 1)),
    "glue_stsb": ("STS-B.tsv", _similarity),
    "glue_qqp": ("QQP.tsv", _one_of(0, 1)),
    "glue_mnli": ("MNLI-m.tsv", _MNLI),
    "glue_mnli_mismatched": ("MNLI-mm.tsv", _MNLI),
    "glue_qnli": ("QNLI.tsv", _ENTAILMENT),
    "glue_rte": ("RTE.tsv", _ENTAILMENT),
    "glue_wnli": ("WNLI.tsv", _one_of(0, 1)),
    "glue_ax": ("AX.tsv", _MNLI),
  },
}


def write(path: epath.PathLike, predictions: Mapping[str, Sequence[Row]]) -> list[str]:
  """Writes the zip file of a leaderboard atomically, and returns the missing tasks.

  There is a row for every prediction, in the order of "idx". An unparseable prediction is written as the first label of
  the task (in ReCoRD the first entity, in STS-B 0.000). The same predictions give the same bytes.

  Args:
    path: of the zip; its folder is created.
    predictions: task -> (example, prediction) in any order; all tasks belong to one of `LEADERBOARDS`.

  Returns:
    Tasks of the leaderboard without predictions. The leaderboard refuses a zip without their files.

  Raises:
    UserError: there are no predictions, tasks of no leaderboard or of two, or two predictions for one example.
  """
  files = LEADERBOARDS[_leaderboard(predictions)]
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w") as archive:
    for task, (name, answer) in files.items():
      if predictions.get(task):
        file = zipfile.ZipInfo(name)  # dated 1980, so that the bytes do not depend on the day
        archive.writestr(file, _content(task, name, answer, predictions[task]), zipfile.ZIP_DEFLATED)
  path = epath.Path(path).expanduser()
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.parent / f".{path.name}.{uuid.uuid4().hex}"
  try:
    part.write_bytes(content.getvalue())
    part.replace(path)
  finally:
    part.unlink(missing_ok=True)
  return [task for task in files if not predictions.get(task)]


def _leaderboard(predictions: Mapping[str, Sequence[Row]]) -> str:
  board_of_task = {task: name for name, files in LEADERBOARDS.items() for task in files}
  tasks = [task for task, rows in predictions.items() if rows]
  if not tasks:
    raise UserError("config.eval.tasks: there are no predictions to write; name tasks that have examples")
  for task in tasks:
    if task not in board_of_task:
      raise UserError(
        f"config.eval.tasks: no leaderboard takes predictions of {task}"
        f"{did_you_mean(task, board_of_task) or '.'} Name only tasks of a leaderboard: {', '.join(board_of_task)}"
      )
  board_names = sorted({board_of_task[task] for task in tasks})
  if len(board_names) > 1:
    raise UserError(
      f"config.eval.tasks: {', '.join(tasks)} belong to different leaderboards ({', '.join(board_names)}); "
      "evaluate the tasks of one leaderboard at a time"
    )
  return board_names[0]


def _content(task: str, name: str, answer: Callable[[Row], str | int], rows: Sequence[Row]) -> str:
  values_by_index: dict[tuple[int, ...], str | int] = {}
  for row in rows:
    index = postprocessors.indices(row[0])
    if index in values_by_index:
      shown = index[0] if len(index) == 1 else list(index)
      raise UserError(
        f"{task}: the example with idx {shown} has two predictions; remove the duplicate example from the data"
      )
    values_by_index[index] = answer(row)
  ordered = sorted(values_by_index.items())
  if name.endswith(".tsv"):
    return "".join(["index\tprediction\n", *(f"{index}\t{value}\n" for (index,), value in ordered)])
  if name == "MultiRC.jsonl":
    lines = _multirc(ordered)
  else:
    # ReCoRD has (passage, query); its queries are numbered across all passages.
    lines = [{"idx": index[-1], "label": value} for index, value in ordered]
  return "".join(json.dumps(line) + "\n" for line in lines)


def _multirc(ordered: Sequence[tuple[tuple[int, ...], str | int]]) -> list[dict[str, Any]]:
  lines = []
  for passage, of_passage in itertools.groupby(ordered, lambda entry: entry[0][0]):
    questions = []
    for question, of_question in itertools.groupby(of_passage, lambda entry: entry[0][1]):
      rated = [{"idx": answer, "label": value} for (_, _, answer), value in of_question]
      questions.append({"idx": question, "answers": rated})
    lines.append({"idx": passage, "passage": {"questions": questions}})
  return lines
