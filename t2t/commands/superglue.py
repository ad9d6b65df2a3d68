"""`t2t superglue`: fine-tunes a pre-trained checkpoint on SuperGLUE and writes the table and the leaderboard zip."""

from collections.abc import Mapping, Sequence
import sys
from typing import TYPE_CHECKING

from absl import logging
from etils import epath
import jax

from t2t import UserError
from t2t.checkpoints import manager, pretrained, retention
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


def superglue(config: Config, source: pretrained.Source, workdir: str) -> list[results.Result]:
  """Fine-tunes, selects the best step of each task on the validation set, and predicts for the test sets.

  A task with several templates trains on all of them. The mean of their scores selects its step, and the majority of
  their predictions is submitted.

  Args:
    config: an overlay of configs/finetune.py with the checkpoint's model.
    source: initial checkpoint.
    workdir: contains fine-tuning in WORKDIR/finetune, which resumes there; results.json, predictions and
      super_glue.zip are written at the end.

  Returns:
    Results on validation and test sets at the best step of each task, one for each template; empty if fine-tuning was
    stopped.

  Raises:
    UserError: see `training.train` and `evaluate.Evaluation`.
  """
  from t2t.data import templates, train_data

  folder = gcs.absolute(workdir)
  data = config.data
  if len(adapters_lib.tasks(config.adapters)) > 1:
    raise UserError(
      f"config.{'/'.join(config.adapters)} has separate parameters for each task, but not for AX-b and AX-g. Train on "
      "the mixture with `t2t train`, and evaluate with `t2t eval`."
    )
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
  config = train_data.resolved(config.with_(data={"mixture": ",".join(trained)}))
  data = config.data
  # Check before training, not after it.
  with_test = _tasks(config, source, [*trained, *diagnostics], split="test")
  config = config.with_(eval={"tasks": ()}, init={"checkpoint": source.name})
  state = train(config, str(folder / "finetune"))
  if int(state.step) < config.train.steps:
    return []  # fine-tuning was stopped and printed how to resume

  # ---- Best step of each task ----------------------------------------------------------------------------------------
  finetuned = folder / "finetune"
  checkpoints = manager.Checkpoints(finetuned, keep=config.checkpoint.max_to_keep)
  best = retention.best_steps(checkpoints.metrics())
  checkpoints.close()
  unmeasured = [name for name in trained if f"{name}/score" not in best]
  if unmeasured:
    raise UserError(
      f"--workdir {finetuned}: the score of {', '.join(unmeasured)} is NaN at every step. See "
      f"{finetuned / 'metrics.jsonl'}, or train again in another --workdir."
    )
  steps = {name: best[f"{name}/score"] for name in trained}
  steps |= {name: steps[_DIAGNOSTICS[name]] for name in diagnostics}

  # ---- Predictions ---------------------------------------------------------------------------------------------------
  task_results, method = [], ""
  for split, task_names in (("validation", trained), ("test", with_test)):
    if task_names:
      evaluation = _evaluation(config, finetuned, {name: steps[name] for name in task_names}, split)
      method = evaluation.method
      task_results += _answers(evaluation, finetuned, {name: steps[name] for name in task_names})
  if jax.process_index() == 0:
    without = sorted(set(trained) - set(with_test))
    if without:
      print(f"no test set: {', '.join(without)}", file=sys.stderr)
    is_complete = not config.eval.max_examples
    results.publish(
      task_results,
      folder,
      about={"method": method, "initial_checkpoint": source.name},
      steps=steps,
      checkpoints={name: str(_checkpoint(finetuned, step)) for name, step in steps.items()},
      whole=is_complete,
    )
  return task_results


def _tasks(config: Config, source: pretrained.Source, names: Sequence[str], *, split: str = "") -> list[str]:
  """Returns the named tasks of the mixture, once for all their templates; with `split`, those that have it."""
  from t2t.data import templates
  from t2t.evaluation import evaluate

  tasks = evaluate.find_tasks(config.data, source.model.architecture, names)
  return list(dict.fromkeys(templates.base_name(task) for task in tasks if not split or split in task.splits))


def _checkpoint(finetuned: epath.Path, step: int) -> epath.Path:
  return finetuned / "checkpoints" / str(step)


def _evaluation(config: Config, finetuned: epath.Path, steps: Mapping[str, int], split: str) -> "evaluate.Evaluation":
  """Returns the evaluation of tasks; their checkpoints differ only in their parameters."""
  from t2t.evaluation import evaluate

  source = pretrained.read_source(str(_checkpoint(finetuned, min(steps.values()))))
  return evaluate.prepare(config, source, tasks=tuple(steps), split=split)


def _answers(
  evaluation: "evaluate.Evaluation", finetuned: epath.Path, steps: Mapping[str, int]
) -> list[results.Result]:
  """Returns the results of each task with the parameters of its best step."""
  task_results = []
  with results.progress(evaluation.num_examples) as on_batch:
    for step in sorted(set(steps.values())):
      source = pretrained.read_source(str(_checkpoint(finetuned, step)))
      params = pretrained.load(source, evaluation.mesh).params
      names = [name for name in steps if steps[name] == step]
      task_results += evaluation.run(params, only=names, on_batch=on_batch, with_intervals=True)
  return sorted(task_results, key=lambda result: list(steps).index(result.of_task))


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
      "--config is finetune_superglue by default"
    ),
    required="--checkpoint PATH --workdir FOLDER",
    brief=True,
  )
  parser.set_defaults(config="finetune_superglue")
  paths = parser.add_argument_group("paths")
  paths.add_argument(
    "--checkpoint", metavar="PATH", help="required: a workdir that t2t trained in, or one of its checkpoints"
  )
  paths.add_argument(
    "--workdir", metavar="FOLDER", help="required: folder or gs:// path for fine-tuning, results and leaderboard files"
  )
  options, config, source = parse_with_checkpoint(parser, argv)
  if config.eval.every != config.checkpoint.save_interval_steps:
    raise UserError(
      f"config.eval.every={config.eval.every} and"
      f" config.checkpoint.save_interval_steps={config.checkpoint.save_interval_steps} differ, but the best"
      " step must be evaluated and saved. Set both keys to the same number."
    )
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  superglue(records(config), source, options.workdir)
