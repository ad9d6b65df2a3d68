"""Writes the inputs of a mixture's tasks as JSON lines, for predictions without evaluation."""

import json

from etils import epath
import jax

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.data import pipeline, registry
from t2t.evaluation import few_shot
from t2t.storage import gcs


def write(data: DataConfig, architecture: str, folder: str) -> dict[str, str]:
  """Writes FOLDER/TASK-inputs.jsonl for each task, in the order of its split; returns task -> path.

  Args:
    data: config whose `mixture` contains the tasks and whose `eval_split` is read.
    architecture: of the model.
    folder: output folder.

  Raises:
    UserError: the mixture or split is unknown, or examples of a task have no text.
  """
  for module in data.task_modules:
    registry.load(module)
  tasks = pipeline.find_tasks(data, architecture)
  paths = {task.name: f"{folder.rstrip('/')}/{task.name}-inputs.jsonl" for task in tasks}
  if jax.process_index() != 0:
    return paths
  gcs.absolute(folder).mkdir(parents=True, exist_ok=True)
  for task in tasks:
    split = task.splits[0] if len(task.splits) == 1 else data.eval_split
    examples = few_shot.read(data, architecture, task, split)
    if "inputs_pretokenized" not in examples[0]:
      raise UserError(
        f"{task.name}: the examples have no field 'inputs_pretokenized'; add seqio.preprocessors.tokenize to the "
        "preprocessors of the task, or give --input"
      )
    texts = (example["inputs_pretokenized"].decode() for example in examples)
    lines = "".join(json.dumps({"inputs": text}, ensure_ascii=False) + "\n" for text in texts)
    epath.Path(gcs.absolute(paths[task.name])).write_text(lines)
  return paths
