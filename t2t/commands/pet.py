"""`t2t pet`: few labels and unlabeled records: one model per template, their soft labels, and a classifier (PET)."""

import argparse
from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING

from absl import logging
from etils import epath
import jax
import numpy as np

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.commands.options import config_parser, inherited, parse
from t2t.configuration.loading import records
from t2t.configuration.schema import Config
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.training.train import train

if TYPE_CHECKING:
  from t2t.data.templates import Template

_SOFT, _RESULTS = "soft_labels.jsonl", "eval"
# Schick & Schuetze 2021, section 4: factor of a generation's records, and the share of the models that label them.
_GROWTH, _SHARE = 5, 0.25


def run(
  config: Config, workdir: str, *, unlabeled: str, seeds: int = 1, generations: int = 0, final: Config | None = None
) -> None:
  """Trains one model per template and seed, labels records by all of them, and trains a classifier on the labels.

  Args:
    config: of the models with templates.
    workdir: has the models in generation-G/TEMPLATE-seedK, soft_labels.jsonl and the classifier in classifier; each is
      resumed, and a finished one is not repeated. Options that differ between examples have no classifier.
    unlabeled: split of the records without labels.
    seeds: models of each template.
    generations: generations after the first, each on more records that the one before labels (iPET).
    final: of the classifier; None: `config` with other keys.

  Raises:
    UserError: see `training.train`; or there are fewer than two models, or several tasks.
  """
  from t2t.data import run_sources, task_resolution, templates
  from t2t.evaluation import evaluate, pseudo_labels

  data, folder = config.data, gcs.absolute(workdir)
  provider = run_sources.of(dataclasses.replace(data, templates="", template_names=())).tasks()
  tasks = task_resolution.tasks_of(provider) if provider else []
  rows = templates.load(data.templates, names=data.template_names).get(tasks[0].name) if len(tasks) == 1 else None
  if not rows:
    raise UserError(f"{data.named}: t2t pet needs one task with a template in config.data.templates={data.templates}.")
  names = [(row.name, seed) for row in rows for seed in range(seeds)]
  if len(names) < 2:
    raise UserError("t2t pet needs an ensemble, but there is one template and --seeds 1. Give more templates or seeds.")

  def member(generation: int, number: int) -> tuple[Config, epath.Path]:
    name, seed = names[number]
    data_keys = {"template_names": (name,)}
    path = folder / f"generation-{generation}" / f"{name}-seed{seed}"
    if generation:
      data_keys |= {"train_labels": str(path.parent / f"{path.name}.jsonl"), "max_train_examples": -1}
    return config.with_(data=data_keys, train={"seed": config.train.seed + seed}), path

  if not all(_has_classes(row) for row in rows):
    if generations:
      raise UserError(
        f"--generations {generations}: {rows[0].where} has other words in each example, so records without labels get "
        "no class. Leave out --generations."
      )
    _rank(config.with_(train={"loss": config.train.loss or "cross_entropy"}), folder, names)
    return

  labelled: list[pseudo_labels.LabelledRow] = []
  logits: list[np.ndarray] = []
  for generation in range(generations + 1):
    earlier, logits = logits, []
    for number in range(len(names)):
      of_member, path = member(generation, number)
      if generation and jax.process_index() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        others = [i for i in range(len(names)) if i != number]
        random = np.random.default_rng([config.train.seed, generation, number])
        drawn = random.choice(others, max(1, round(_SHARE * len(others))), replace=False)
        pseudo_labels.write(
          path.parent / f"{path.name}.jsonl",
          pseudo_labels.chosen_rows(
            [earlier[i] for i in drawn],
            labelled,
            number=len(labelled) * _GROWTH**generation,
            split=unlabeled,
            seed=(config.train.seed, generation, number),
          ),
        )
      hosts.log_once(f"pet: generation {generation}, model {number + 1} of {len(names)}: {path.name}")
      train(of_member, str(path))
      of_eval = of_member.with_(data={"train_labels": ""})
      logits.append(pseudo_labels.logits(of_eval, str(path), split=unlabeled))
      if not labelled:
        plain = member(0, 0)[0]
        labelled = pseudo_labels.training_rows(plain, pretrained.read_source(str(path)))
  if jax.process_index() == 0:
    pseudo_labels.write(folder / _SOFT, pseudo_labels.soft_rows(logits, split=unlabeled))
  hosts.log_once(f"pet: {len(logits[0]):,} records of {unlabeled} with soft labels; training the classifier")
  classifier = (final or config).with_(
    data={"templates": "", "template_names": (), "train_labels": str(folder / _SOFT), "max_train_examples": -1},
    train={"loss": "distillation", "term_weights": {}},  # the terms are those of the models
  )
  train(classifier, str(folder / "classifier"))
  source = pretrained.read_source(str(folder / "classifier"))
  evaluate.evaluate(classifier.with_(data={"train_labels": ""}), source, str(folder / _RESULTS))


def _has_classes(row: "Template") -> bool:
  """Returns whether a template has the same words for every example, so that a head can classify the blank."""
  from t2t.data import templates

  return bool(row.words) and not any(templates.has_fields(word) for words in row.words.values() for word in words)


def _rank(config: Config, folder: epath.Path, names: Sequence[tuple[str, int]]) -> None:
  """Trains models whose blank has options of each example, and evaluates the mean log-probabilities of the options.

  There is no classifier, as for COPA, ReCoRD and WSC of Schick & Schuetze 2020 ("It's Not Just Size That Matters").
  """
  from t2t.evaluation import pseudo_labels, results

  scores: list[list[np.ndarray]] = []
  for number, (name, seed) in enumerate(names):
    of_member = config.with_(data={"template_names": (name,)}, train={"seed": config.train.seed + seed})
    path = folder / "generation-0" / f"{name}-seed{seed}"
    hosts.log_once(f"pet: model {number + 1} of {len(names)}: {path.name}")
    train(of_member, str(path))
    evaluation, options, of_options = pseudo_labels.option_scores(of_member, str(path), split=config.data.eval_split)
    scores.append(of_options)
  hosts.log_once("pet: the options differ between examples, so there is no classifier; the ensemble ranks them")
  ensemble = evaluation.of_scores(options, [np.mean(rows, axis=0) for rows in zip(*scores, strict=True)])
  if jax.process_index() == 0:
    about = {"checkpoint": str(folder / "generation-0"), "method": "rank", "ensemble": len(names)}
    results.publish([ensemble], folder / _RESULTS, about=about, whole=not config.eval.max_examples)


def _parser() -> argparse.ArgumentParser:
  parser = config_parser(
    "t2t pet",
    "Trains on few labels with templates (PET):\n\n"
    "  t2t pet --config finetune_superglue --workdir gs://BUCKET/pet_boolq \\\n"
    "    --config.init.checkpoint=gs://BUCKET/roberta \\\n"
    "    --config.data.mixture=super_glue_boolq \\\n"
    "    --config.data.templates=pet_superglue \\\n"
    "    --config.data.max_train_examples=32 --seeds 3\n\n"
    "One encoder per template labels records without labels; a classifier learns the soft labels of all of them. The "
    "same command again resumes: finished runs are not repeated.",
    required="--config NAME --workdir FOLDER",
    brief=True,
  )
  models = parser.add_argument_group("models")
  models.add_argument(
    "--workdir", metavar="FOLDER", help="required: folder for the models, soft_labels.jsonl and the classifier"
  )
  models.add_argument("--seeds", type=int, default=1, metavar="N", help="models of each template; default: 1")
  models.add_argument(
    "--generations",
    type=int,
    default=0,
    metavar="N",
    help="repetitions on growing training sets that the models label (iPET); default: 0",
  )
  classifier = parser.add_argument_group("classifier")
  classifier.add_argument(
    "--unlabeled", default="test", metavar="SPLIT", help="split of records without labels; default: test"
  )
  classifier.add_argument(
    "--final_steps", type=int, default=0, metavar="N", help="steps of the classifier; default: config.train.steps"
  )
  hosts.add_options(parser)
  return parser


def main(argv: Sequence[str]) -> None:
  """Runs `t2t pet`.

  Raises:
    UserError: an option is missing or invalid; see `run`.
  """
  parser = _parser()
  options, config = parse(parser, argv)
  if not options.workdir:
    raise UserError("--workdir is missing. Give --workdir FOLDER, a local folder or a gs:// path for the runs.")
  for name, least in (("seeds", 1), ("generations", 0), ("final_steps", 0)):
    if getattr(options, name) < least:
      raise UserError(f"--{name} {getattr(options, name)} must be at least {least}")
  if not config.data.templates:
    raise UserError(
      "config.data.templates is empty. Give a file of templates, or --config.data.templates=pet_superglue."
    )
  gcs.check_folder(options.workdir, where="--workdir ")
  from t2t.data import templates

  templates.load(config.data.templates, names=config.data.template_names)  # a missing file is told first
  hosts.start(options, config.train)
  config = records(inherited(config, parser, argv))
  if config.model.kind.is_generative:
    raise UserError(
      f"config.model.architecture={config.model.architecture}: t2t pet trains encoders, which predict a masked word. "
      "Give the checkpoint of an encoder as config.init.checkpoint."
    )
  logging.set_verbosity(logging.INFO if options.debug else logging.ERROR)
  final = config.with_(train={"steps": options.final_steps}) if options.final_steps else None
  run(
    config,
    options.workdir,
    unlabeled=options.unlabeled,
    seeds=options.seeds,
    generations=options.generations,
    final=final,
  )
