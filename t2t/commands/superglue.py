"""`t2t superglue`: fine-tunes a pre-trained checkpoint on SuperGLUE and writes the table and the leaderboard zip."""

from collections.abc import Callable, Mapping, Sequence
import sys
from typing import TYPE_CHECKING

from absl import logging
from etils import epath
import jax

from t2t import UserError
from t2t.checkpoints import ensemble, manager, pretrained, retention
from t2t.commands.options import config_parser, parse_with_checkpoint
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.evaluation import results
from t2t.models import adapters as adapters_lib
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.training.train import train

if TYPE_CHECKING:  # imports seqio, which parsing of options does not need
  from t2t.evaluation import evaluate

# Diagnostic sets have no training data: the best model of the diagnosed task predicts for them.
_DIAGNOSTICS = {"super_glue_axb": "super_glue_rte", "super_glue_axg": "super_glue_rte"}

Member = tuple[Config, pretrained.Source]


def superglue(
  config: Config, source: pretrained.Source, workdir: str, *, others: Sequence[Member] = ()
) -> list[results.Result]:
  """Fine-tunes, selects the best step of each task on the validation set, and predicts for the test sets.

  A task with several templates trains on all of them. The mean of their scores selects its step, and the majority of
  their predictions is submitted.

  With `others` each checkpoint is fine-tuned by itself, the member of number i with the seed config.train.seed + i. The
  mean of their probabilities, each at its best step of the task, predicts.

  Args:
    config: an overlay of configs/finetune.py with the checkpoint's model.
    source: initial checkpoint.
    workdir: contains fine-tuning in WORKDIR/finetune, which resumes there, and that of other members in
      WORKDIR/finetune-2 and so on; results.json, predictions and super_glue.zip are written at the end.
    others: config and initial checkpoint of further members of an ensemble.

  Returns:
    Results on validation and test sets at the best step of each task, one for each template; empty if fine-tuning was
    stopped.

  Raises:
    UserError: see `training.train`, `evaluate.Evaluation` and `ensemble.check`.
  """
  from t2t.data import templates

  folder = gcs.absolute(workdir)
  data = config.data
  if len(adapters_lib.tasks(config.adapters)) > 1:
    raise UserError(
      f"config.{'/'.join(config.adapters)} has separate parameters for each task, but not for AX-b and AX-g. Train on "
      "the mixture with `t2t train`, and evaluate with `t2t eval`."
    )
  if others:
    ensemble.check([source, *(other for _, other in others)])
  named = _tasks(config, source, config.eval.tasks)
  trained = [name for name in named if name not in _DIAGNOSTICS]
  if not trained:
    raise UserError(
      "config.eval.tasks: AX-b and AX-g have no training data. Add rte, whose model also predicts AX-b and AX-g."
    )
  diagnostics = [
    name for name, of in _DIAGNOSTICS.items() if of in trained and (name in named or not config.eval.tasks)
  ]
  if data.templates and not config.eval.tasks:
    known_templates = templates.load(data.templates, names=data.template_names)
    without = [name for name in diagnostics if name not in known_templates]
    diagnostics = [name for name in diagnostics if name in known_templates]
    if without:
      hosts.log_once(f"config.data.templates={data.templates} has no template for {', '.join(without)}; left out")
  # Check before training, not after it.
  config = _of_tasks(config, trained)
  initial = [(config, source), *((_of_tasks(other_config, trained), other) for other_config, other in others)]
  with_test = _tasks(config, source, [*trained, *diagnostics], split="test")
  members: list[tuple[epath.Path, dict[str, int]]] = []  # folder, and best step of each task
  for number, (member_config, start) in enumerate(initial):
    seed = member_config.train.seed + number
    member_config = member_config.with_(eval={"tasks": ()}, init={"checkpoint": start.name}, train={"seed": seed})
    finetuned = folder / (f"finetune-{number + 1}" if number else "finetune")
    state = train(member_config, str(finetuned))
    if int(state.step) < member_config.train.steps:
      return []  # fine-tuning was stopped and printed how to resume
    steps = _best_steps(member_config, finetuned, trained)
    members.append((finetuned, steps | {name: steps[_DIAGNOSTICS[name]] for name in diagnostics}))
  config = config.with_(eval={"tasks": ()})

  # ---- Predictions ---------------------------------------------------------------------------------------------------
  by_split: list[tuple[evaluate.Evaluation, list[results.Result]]] = []
  for split, task_names in (("validation", trained), ("test", with_test)):
    if task_names:
      evaluation = _evaluation(config, members, task_names, split)
      by_split.append((evaluation, _answers(evaluation, members, task_names)))
  task_results = [result for _, of_split in by_split for result in of_split]
  if jax.process_index() == 0:
    # Only now, because the other processes would wait for this one before the next split.
    task_results = [x for evaluation, of_split in by_split for x in evaluation.with_baseline(of_split)]
    without = sorted(set(trained) - set(with_test))
    if without:
      print(f"no test set: {', '.join(without)}", file=sys.stderr)
    is_complete = not config.eval.max_examples
    paths = {name: [str(_checkpoint(finetuned, steps[name])) for finetuned, steps in members] for name in members[0][1]}
    results.publish(
      task_results,
      folder,
      about={"method": by_split[-1][0].method, "initial_checkpoint": ",".join(start.name for _, start in initial)},
      steps=None if others else members[0][1],
      checkpoints={name: ",".join(of_task) for name, of_task in paths.items()},
      whole=is_complete,
    )
  return task_results


def _of_tasks(config: Config, trained: Sequence[str]) -> Config:
  """Returns the config of fine-tuning on the tasks, resolved with their data."""
  from t2t.data import train_data

  return train_data.resolved(config.with_(data={"mixture": ",".join(trained)}))


def _best_steps(config: Config, finetuned: epath.Path, trained: Sequence[str]) -> dict[str, int]:
  """Returns the step of each task with its best validation score.

  Raises:
    UserError: a score is NaN at every step.
  """
  checkpoints = manager.Checkpoints(finetuned, keep=config.checkpoint.max_to_keep)
  best = retention.best_steps(checkpoints.metrics())
  checkpoints.close()
  unmeasured = [name for name in trained if f"{name}/score" not in best]
  if unmeasured:
    raise UserError(
      f"--workdir {finetuned}: the score of {', '.join(unmeasured)} is NaN at every step. See "
      f"{finetuned / 'metrics.jsonl'}, or train again in another --workdir."
    )
  return {name: best[f"{name}/score"] for name in trained}


def _tasks(config: Config, source: pretrained.Source, names: Sequence[str], *, split: str = "") -> list[str]:
  """Returns the named tasks of the mixture, once for all their templates; with `split`, those that have it."""
  from t2t.data import templates
  from t2t.evaluation import evaluate

  tasks = evaluate.find_tasks(config.data, source.model.architecture, names)
  return list(dict.fromkeys(templates.base_name(task) for task in tasks if not split or split in task.splits))


def _checkpoint(finetuned: epath.Path, step: int) -> epath.Path:
  return finetuned / "checkpoints" / str(step)


def _evaluation(
  config: Config, members: Sequence[tuple[epath.Path, Mapping[str, int]]], names: Sequence[str], split: str
) -> "evaluate.Evaluation":
  """Returns the evaluation of tasks; checkpoints of a member differ only in their parameters."""
  from t2t.evaluation import evaluate

  source, *others = _sources(members, lambda steps: min(steps[name] for name in names))
  return evaluate.prepare(config, source, tasks=tuple(names), split=split, others=others)


def _sources(
  members: Sequence[tuple[epath.Path, Mapping[str, int]]], step_of: Callable[[Mapping[str, int]], int]
) -> list[pretrained.Source]:
  return [pretrained.read_source(str(_checkpoint(finetuned, step_of(steps)))) for finetuned, steps in members]


def _answers(
  evaluation: "evaluate.Evaluation",
  members: Sequence[tuple[epath.Path, Mapping[str, int]]],
  names: Sequence[str],
) -> list[results.Result]:
  """Returns the results of each task with the parameters of its best steps, one for each member."""
  task_results = []
  by_steps: dict[tuple[int, ...], list[str]] = {}
  for name in names:
    by_steps.setdefault(tuple(steps[name] for _, steps in members), []).append(name)
  with results.progress(evaluation.num_examples) as on_batch:
    for _, same_steps in sorted(by_steps.items()):
      sources = _sources(members, lambda steps, name=same_steps[0]: steps[name])
      params = ensemble.load(sources, evaluation.mesh).params
      task_results += evaluation.run(params, only=same_steps, on_batch=on_batch, with_intervals=True)
  return sorted(task_results, key=lambda result: list(names).index(result.of_task))


def main(argv: list[str]) -> None:
  """Runs `t2t superglue`."""
  parser = config_parser(
    "t2t superglue",
    "Fine-tunes a checkpoint on SuperGLUE:\n\n"
    "  t2t superglue --checkpoint gs://BUCKET/t5_1_1_base \\\n"
    "    --workdir gs://BUCKET/superglue\n\n"
    "The best step of each task on the validation set gives the table and the zip for the leaderboard. The same "
    "command again resumes.",
    epilog=(
      "example:\n"
      "  t2t superglue --checkpoint runs/tiny --workdir runs/superglue \\\n"
      "    --config.data.benchmark_dirs.superglue=SuperGLUE \\\n"
      "    --config.eval.tasks=cb,copa,rte \\\n"
      "    --config.train.steps=1000 --config.train.batch_size=16 \\\n"
      "    --config.eval.every=200 --config.checkpoint.save_interval_steps=200\n"
      "  t2t superglue --checkpoint runs/base,runs/base,runs/base \\\n"
      "    --workdir runs/three_seeds\n"
      "--config is finetune_superglue by default"
    ),
    required="--checkpoint PATH --workdir FOLDER",
    brief=True,
  )
  parser.set_defaults(config="finetune_superglue")
  paths = parser.add_argument_group("paths")
  paths.add_argument(
    "--checkpoint",
    metavar="PATH,...",
    help="required: a workdir that t2t trained in, or one of its checkpoints; several are fine-tuned in turn, and the "
    "mean of their probabilities predicts",
  )
  paths.add_argument(
    "--workdir", metavar="FOLDER", help="required: folder or gs:// path for fine-tuning, results and leaderboard files"
  )
  options, config, source = parse_with_checkpoint(parser, argv, several=True)
  if config.eval.every != config.checkpoint.save_interval_steps:
    raise UserError(
      f"config.eval.every={config.eval.every} and"
      f" config.checkpoint.save_interval_steps={config.checkpoint.save_interval_steps} differ, but the best"
      " step must be evaluated and saved. Set both keys to the same number."
    )
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  others = [(records(other_config), other) for other_config, other in options.others]
  superglue(records(config), source, options.workdir, others=others)
