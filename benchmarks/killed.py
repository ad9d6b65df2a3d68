"""Commands that benchmarks/kill.py kills, on a tiny model and tiny texts, and the outputs that must be equal.

For a training run: every array of the last checkpoint bit for bit, and each loss in metrics.jsonl and the event files,
without duplicates. For other commands: every file that they write, by name and content, and no other file.
"""

from collections.abc import Callable, Mapping
import dataclasses
import hashlib
import importlib.util
import io
import json
import pathlib
import sys
import zipfile

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from tensorboardX.proto import event_pb2
import trained  # in tests/; kill.py has added it to sys.path

from t2t.storage import tfrecord

_MODEL = (
  *trained.MODEL,
  trained.ONE_ENCODER,
  trained.ONE_DECODER,
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=64",
  "--config.data.targets_length=18",
  "--config.train.batch_size=8",
  "--config.eval.batches=1",
  "--config.eval.num_logged_samples=0",
)
_TRAIN = ("--config.train.steps=40", "--config.eval.every=20", "--config.checkpoint.save_interval_steps=3")
# Enough for the first kill to interrupt it, few enough for a hundred runs.
_LINES = 200

# Compared values by name: a number, a digest or an array.
Outcome = Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Killed:
  """A command that may be killed at any time, and is then rerun.

  arguments: returns the arguments of `t2t` for the folder of `prepare` and the output.
  outcome: returns the compared values of an output folder.
  trains: whether it needs a trained model.
  """

  arguments: Callable[[pathlib.Path, str], list[str]]
  outcome: Callable[[pathlib.Path], Outcome]
  trains: bool = True


def need_beam() -> None:
  """Exits the process if `t2t cache` cannot run."""
  if importlib.util.find_spec("apache_beam") is None:
    sys.exit("t2t cache needs Apache Beam: run pip install -e '.[cache]', or use .venv-beam of make beam")


def prepare(folder: pathlib.Path) -> None:
  """Writes the texts that the commands read."""
  words = np.random.default_rng(0)
  lines = [" ".join(f"w{n}" for n in words.integers(0, 999, 40)) for _ in range(400)]
  (folder / "text.txt").write_text("\n".join(lines))
  (folder / "lines.txt").write_text("".join(f"{line[:50]} <extra_id_0>\n" for line in lines[:_LINES]))
  labels = ("entailment", "contradiction", "neutral")
  for split, number in (("train", 12), ("val", 40), ("test", 40)):
    path = folder / "SuperGLUE" / "CB" / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"premise": lines[i][:20], "hypothesis": lines[i][20:30], "idx": i} for i in range(number)]
    rows = [row | ({} if split == "test" else {"label": labels[row["idx"] % 3]}) for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  (folder / "tasks_killed.py").write_text(
    "import seqio\n"
    "from t2t.data import preprocessors\n"
    "seqio.TaskRegistry.add('killed', source=seqio.TextLineDataSource({'train': "
    f"{str(folder / 'text.txt')!r}}}), preprocessors=[lambda ds: ds.map(lambda line: {{'inputs': line, 'targets':"
    " line}), seqio.preprocessors.tokenize], output_features=preprocessors.t5_features())\n"
  )


def model(folder: pathlib.Path) -> list[str]:
  """Returns the command that trains the model for the others."""
  return [*_train(folder, str(folder / "model")), "--config.train.steps=3"]


def _train(folder: pathlib.Path, output: str) -> list[str]:
  text = f"--config.data.files={folder / 'text.txt'}"
  return ["train", "--config=t5_1_1_small", *_MODEL, *_TRAIN, text, f"--workdir={output}"]


def _tasks(folder: pathlib.Path, command: str, config: str, output: str) -> list[str]:
  task_options = (f"--config.data.benchmark_dirs.superglue={folder / 'SuperGLUE'}", "--config.eval.tasks=cb")
  length = ("--config.data.inputs_length=64", "--config.data.targets_length=16", "--config.train.batch_size=8")
  return [
    command,
    f"--config={config}",
    f"--checkpoint={folder / 'model'}",
    f"--workdir={output}",
    *task_options,
    *length,
  ]


def _superglue(folder: pathlib.Path, output: str) -> list[str]:
  often = ("--config.train.steps=4", "--config.eval.every=2", "--config.checkpoint.save_interval_steps=2")
  return [*_tasks(folder, "superglue", "finetune_superglue", output), *often]


def training(output: pathlib.Path) -> Outcome:
  """Returns the arrays of the last checkpoint by name, and (step, loss) pairs of metrics.jsonl and events.

  Returns {} before the first checkpoint.
  """
  steps = [int(path.name) for path in (output / "checkpoints").glob("*") if path.name.isdigit()]
  if not steps:  # if the bucket was unavailable at the start
    return {}
  folder = output / "checkpoints" / str(max(steps)) / "state"
  logging.set_verbosity(logging.ERROR)  # Orbax warns about a file that t2t saves elsewhere
  with ocp.PyTreeCheckpointer() as checkpointer:
    # Independent of their devices.
    as_numpy = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), checkpointer.metadata(folder).item_metadata.tree
    )
    state = checkpointer.restore(folder, restore_args=as_numpy)
  leaves = jax.tree_util.tree_leaves_with_path(state)
  outcome: dict[str, object] = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
  rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
  outcome["metrics.jsonl"] = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
  outcome["events"] = [
    (event.step, value.simple_value)
    for path in sorted((output / "tensorboard").glob("*tfevents*"))  # as in TensorBoard
    for event in map(event_pb2.Event.FromString, tfrecord.read(io.BytesIO(path.read_bytes())))
    for value in event.summary.value
    if value.tag == "train/loss"
  ]
  return outcome


def files(output: pathlib.Path) -> Outcome:
  """Returns the digest of each file by its path; includes files beside the output, to detect leftovers."""
  parent = str(output.parent)
  contents = {
    path: path.read_bytes().replace(parent.encode(), b"") for path in sorted(output.parent.rglob("*")) if path.is_file()
  }
  return {str(path.relative_to(parent)): hashlib.sha256(content).hexdigest() for path, content in contents.items()}


def cache(output: pathlib.Path) -> Outcome:
  """Returns `files` with the sorted examples of all record files, and t2t.json without the cache's id.

  Beam assigns examples to files at random, and the features of an example have no order. Each cache has a new
  id.
  """
  from tensorflow.core.example import example_pb2  # imports TensorFlow, which other commands do not need

  outcome = dict(files(output))
  paths = sorted(output.rglob("*.tfrecord-*"))
  outcome |= {str(path.relative_to(output.parent)): "records" for path in paths}
  parse = example_pb2.Example.FromString
  read = (record for path in paths for record in tfrecord.read(io.BytesIO(path.read_bytes())))
  outcome["examples"] = sorted(parse(record).SerializeToString(deterministic=True) for record in read)
  for path in output.rglob("t2t.json"):
    outcome[str(path.relative_to(output.parent))] = json.loads(path.read_text()) | {"id": ""}
  return outcome


def _leaderboard(output: pathlib.Path) -> Outcome:
  """Returns SuperGLUE's submission, the table, every prediction, and the model."""
  with zipfile.ZipFile(output / "super_glue.zip") as archive:
    inside = {f"super_glue.zip/{name}": archive.read(name) for name in archive.namelist()}
  digests = {name: digest for name, digest in files(output).items() if name.endswith(("results.json", ".jsonl"))}
  measured = [name for name in digests if name.endswith("metrics.jsonl")]  # has times; compared by `training`
  return inside | {name: digests[name] for name in digests if name not in measured} | training(output / "finetune")


COMMANDS = {
  "train": Killed(_train, training, trains=False),
  "convert": Killed(lambda folder, output: ["convert", str(folder / "model"), output], files),
  "vocab": Killed(
    lambda folder, output: [*("vocab", "train", "--size=50"), f"--input={folder / 'text.txt'}", f"--output={output}"],
    files,
    trains=False,
  ),
  "eval": Killed(lambda folder, output: _tasks(folder, "eval", "superglue", output), files),
  "superglue": Killed(_superglue, _leaderboard),
  "infer": Killed(
    lambda folder, output: [
      *("infer", f"--checkpoint={folder / 'model'}", f"--input={folder / 'lines.txt'}", f"--output={output}/out.jsonl"),
      *("--max_length=8", "--batch_size=2"),
    ],
    files,
  ),
  "cache": Killed(
    lambda folder, output: [
      *("cache", "--mixture=killed", f"--task_modules={folder / 'tasks_killed.py'}", f"--output_dir={output}"),
      *("--vocabulary=bytes", "--num_shards=4"),
    ],
    cache,
    trains=False,
  ),
}
