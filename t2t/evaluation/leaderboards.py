"""Files of predictions that the leaderboards of GLUE and SuperGLUE take."""

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

Row = tuple[Mapping[str, Any], Any]  # the fields of an example, and what its task's postprocess function gave


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

# Leaderboard -> task -> the file's name, and what stands there for a prediction.  The releases have JSON's true and
# false where the leaderboard wants strings, WSC's with a capital.
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
  """Writes the zip that a leaderboard takes, whole or not at all, and says which of its tasks are not in it.

  A row is there for every prediction, in the order of the examples' "idx": where the model's text named no answer, it
  has the task's first label (in ReCoRD the first entity, in STS-B 0.000).  The same predictions give the same bytes.

  Args:
    path: of the zip; its folder is made.
    predictions: task -> (example, prediction) in any order; the tasks of one of `LEADERBOARDS`.

  Returns:
    Tasks that the leaderboard wants and that have no predictions.  It refuses a zip without their files.

  Raises:
    UserError: nothing to write, tasks of no leaderboard or of two, two predictions for one example.
  """
  files = LEADERBOARDS[_leaderboard(predictions)]
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w") as archive:
    for task, (name, answer) in files.items():
      if predictions.get(task):
        file = zipfile.ZipInfo(name)  # of 1980, so that the bytes do not depend on the day
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
    raise UserError("there are no predictions to write: config.eval.tasks must name tasks that have examples")
  for task in tasks:
    if task not in board_of_task:
      raise UserError(
        f"config.eval.tasks: no leaderboard takes predictions of {task}{did_you_mean(task, board_of_task)};"
        f" those that one takes are {', '.join(board_of_task)}"
      )
  board_names = sorted({board_of_task[task] for task in tasks})
  if len(board_names) > 1:
    raise UserError(
      f"config.eval.tasks: {', '.join(tasks)} go to different leaderboards ({', '.join(board_names)}), each of which"
      " takes a zip of its own"
    )
  return board_names[0]


def _content(task: str, name: str, answer: Callable[[Row], str | int], rows: Sequence[Row]) -> str:
  values_by_index: dict[tuple[int, ...], str | int] = {}
  for row in rows:
    index = postprocessors.indices(row[0])
    if index in values_by_index:
      shown = index[0] if len(index) == 1 else list(index)
      raise UserError(f"{task}: two predictions for the example with idx {shown}; a leaderboard takes one")
    values_by_index[index] = answer(row)
  ordered = sorted(values_by_index.items())
  if name.endswith(".tsv"):
    return "".join(["index\tprediction\n", *(f"{index}\t{value}\n" for (index,), value in ordered)])
  if name == "MultiRC.jsonl":
    lines = _multirc(ordered)
  else:
    # ReCoRD has (passage, query), and queries that are numbered through all passages.
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
