"""Evaluates a checkpoint on suites: `t2t suites` and `t2t babylm`."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
from typing import Any

import jax
import rich.box
import rich.console
import rich.table

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.evaluation import benchmarks, results
from t2t.evaluation.suites import items as items_lib
from t2t.evaluation.suites import registry
from t2t.evaluation.suites import scoring as scoring_lib
from t2t.inference import option_scores, pseudo_likelihood, text_scores
from t2t.runtime import hosts
from t2t.storage import gcs, safe_read

_PSEUDO_LIKELIHOOD = pseudo_likelihood.DEFAULT  # `SuiteOptions` has a field with the name of the module


@dataclasses.dataclass(frozen=True)
class SuiteOptions:
  """Options of the commands; "" and 0 are the defaults.

  batch_size: rows of a batch, over all devices.
  normalize: key of `option_scores.NORMALIZATIONS`.
  pseudo_likelihood: key of `pseudo_likelihood.PSEUDO_LIKELIHOODS`.
  form: key of `scoring.FORMS`.
  max_tokens, stride: see `text_scores.Scorer`.
  candidates: file of the answers that compete in cloze suites.
  default_pseudo_likelihood: of an encoder.
  """

  batch_size: int = 32
  normalize: str = "sum"
  pseudo_likelihood: str = ""
  form: str = ""
  max_tokens: int = 0
  stride: int = 0
  candidates: str = ""
  default_pseudo_likelihood: str = _PSEUDO_LIKELIHOOD


def prepare(
  paths: Mapping[str, str], source: pretrained.Source, mesh: jax.sharding.Mesh, options: SuiteOptions
) -> list[scoring_lib.Prepared]:
  """Reads and encodes suites, and reports items that are longer than the model; loads no parameters.

  Args:
    paths: suite -> its file or folder.
    source: the checkpoint.
    mesh: on which its parameters are loaded.
    options: see `SuiteOptions`.

  Raises:
    UserError: a file is missing or damaged, or an option does not fit the model.
  """
  normalizations = [name for name, row in option_scores.NORMALIZATIONS.items() if not row.needs_neutral]
  if options.normalize not in normalizations:
    raise UserError(f"--normalize {options.normalize}: unknown value. Give one of: {', '.join(normalizations)}")
  items = {name: registry.read(name, path) for name, path in paths.items()}
  candidates = []
  if options.candidates:
    (file,) = items_lib.files(options.candidates, where="--candidates ", suffix="")
    candidates = safe_read.read_text(file, where=f"--candidates {file}").split()
  kind = source.model.kind
  by_default = "" if kind.is_generative else options.default_pseudo_likelihood
  pseudo = pseudo_likelihood.choose(
    options.pseudo_likelihood or by_default, is_generative=kind.is_generative, where="--pseudo_likelihood"
  )
  vocabulary = pretrained.vocabulary(source)
  form = scoring_lib.choose_form(options.form, source, vocabulary)

  def scoring(max_tokens: int) -> scoring_lib.SuiteScoring:
    limits = {"stride": options.stride} | ({"max_tokens": max_tokens} if max_tokens else {})
    scorer = text_scores.of_source(source, mesh, batch_size=options.batch_size, pseudo_likelihood=pseudo, **limits)
    return scoring_lib.SuiteScoring(scorer, options.normalize, form, vocabulary)

  of_items = scoring(options.max_tokens)
  # A perplexity needs windows, also of a model that reads any number of tokens.
  of_texts = of_items if of_items.scorer.max_tokens else scoring(_trained_length(source))
  prepared = [
    registry.prepare(name, items[name], of_texts if registry.is_text(name) else of_items, candidates=candidates)
    for name in items
  ]
  for suite in prepared:
    if suite.num_long:
      hosts.log_once(f"{suite.name}: {suite.num_long:,} {suite.long_note}")
  return prepared


def _trained_length(source: pretrained.Source) -> int:
  data: Any = source.run["data"]
  return max(data["inputs_length"], data["targets_length"])


def evaluate(
  paths: Mapping[str, str],
  source: pretrained.Source,
  mesh: jax.sharding.Mesh,
  workdir: str,
  options: SuiteOptions,
  *,
  shows_groups: bool = False,
  has_mean: bool = False,
) -> list[results.Result]:
  """Evaluates a checkpoint on suites; writes results.json and predictions, and prints a table.

  Args:
    paths, source, mesh, options: see `prepare`.
    workdir: local or gs://.
    shows_groups, has_mean: see `print_table`.

  Raises:
    UserError: see `prepare`.
  """
  suites = prepare(paths, source, mesh, options)
  params = pretrained.load(source, mesh).params
  suite_results = []
  with results.progress(sum(suite.num_items for suite in suites)) as on_batch:
    for suite in suites:
      step = lambda number, tokens, suite=suite: on_batch(suite.name, number, tokens)
      suite_results.append(suite.run(params, step))
  if jax.process_index() == 0:
    checkpoint = source.name
    path = results.write(suite_results, gcs.absolute(workdir), about={"checkpoint": checkpoint})
    console = rich.console.Console()
    finetuned, notes = finetuned_tasks(json.loads(path.read_text()), checkpoint) if has_mean else ({}, [])
    print_table(suite_results, console, shows_groups=shows_groups, has_mean=has_mean, finetuned=finetuned)
    for note in notes:
      console.print(note, soft_wrap=True, highlight=False, markup=False)
    print(f"results        {path}\npredictions    {path.parent / 'predictions'}")
  return suite_results


def finetuned_tasks(record: Mapping[str, Any], checkpoint: str) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
  """Returns the records of BabyLM's fine-tuned tasks, which `t2t superglue` wrote to the workdir, and notes on them.

  Tasks whose fine-tuning began with another checkpoint are left out.

  Args:
    record: content of results.json.
    checkpoint: the evaluated checkpoint.
  """
  finetuned, notes = {}, []
  for key, row in record.items():
    if not (key.startswith("babylm_") and key.endswith(".validation") and row["metrics"]):
      continue
    name, initial = key.removesuffix(".validation"), row.get("initial_checkpoint")
    if initial is None:
      notes.append(f"{name}: figures of {row.get('checkpoint', 'an unknown checkpoint')}; its origin is not recorded")
    elif initial != checkpoint and (
      gcs.is_remote(initial) or gcs.is_remote(checkpoint) or gcs.absolute(initial) != gcs.absolute(checkpoint)
    ):
      notes.append(f"{name} is left out: it was fine-tuned from {initial}, not from {checkpoint}")
      continue
    finetuned[name] = row
  return finetuned, notes


def print_table(
  suite_results: Sequence[results.Result],
  console: rich.console.Console,
  *,
  shows_groups: bool = False,
  has_mean: bool = False,
  finetuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
  """Prints a row for each metric of each suite, and the rules of scores; at most 80 columns.

  Args:
    suite_results: of `scoring.Prepared.run`.
    console: output.
    shows_groups: whether each group of a suite has a row.
    has_mean: whether the last row is the mean of the first metric of each suite; accuracies of fine-tuned tasks are
      one suite.
    finetuned: see `finetuned_tasks`.
  """
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  for heading in ("suite", "metric"):
    table.add_column(heading, overflow="fold")
  for heading in ("value", "95 % interval", "n", "ties", "long"):
    table.add_column(heading, justify="right", no_wrap=True)
  for result in suite_results:
    facts = [f"{result.n:,}", f"{result.tied:,}", f"{result.details['long']:,}"]
    name = result.task
    ties_of: Mapping[str, int] = result.details.get("ties", {})
    for metric, value in result.metrics.items():
      if metric in ties_of:
        facts[1] = f"{ties_of[metric]:,}"
      interval = _interval(result, metric)
      table.add_row(name, metric.replace("_", " "), f"{value:.2f}" if value < 1e5 else f"{value:.3g}", interval, *facts)
      name, facts = "", [""] * 3
    for group, row in result.details.get("groups", {}).items() if shows_groups else ():
      ends = f"{row['low']:.1f} to {row['high']:.1f}"
      table.add_row(f"  {group}", "accuracy", f"{row['accuracy']:.2f}", ends, f"{row['n']:,}", f"{row['tied']:,}", "")
  for name, record in (finetuned or {}).items():
    facts = [f"{record['n']:,}", f"{record.get('tied', 0):,}", ""]
    for metric, value in record["metrics"].items():
      ends = record["intervals"].get(metric)
      interval = f"{ends['low']:.1f} to {ends['high']:.1f}" if ends else ""
      table.add_row(name, metric, f"{value:.2f}", interval, *facts)
      name, facts = "", [""] * 3
  if has_mean:
    figures = {result.task: next(iter(result.metrics.values())) for result in suite_results}
    if finetuned:
      accuracies = [record["metrics"]["accuracy"] for record in finetuned.values()]
      figures["fine-tuned"] = sum(accuracies) / len(accuracies)
    if (mean := benchmarks.mean(figures)) is not None:
      table.add_row(f"mean of {len(figures)}", "", f"{mean:.2f}", style="bold")
  console.print(table)
  _note(suite_results, console)


def _interval(result: results.Result, metric: str) -> str:
  interval = result.intervals.get(metric)
  if interval is None or metric in result.percentages:
    return results.interval_text(interval)
  return f"{interval.low:.3g} to {interval.high:.3g}"


def _note(suite_results: Sequence[results.Result], console: rich.console.Console) -> None:
  """Prints the rules of intervals, ties and scores, and the items that were left out."""
  methods = {interval.method for result in suite_results for interval in result.intervals.values()}
  results.note_intervals(methods, console)
  console.print("each of k tied options counts 1/k; groups of a suite count equally")
  for rule in dict.fromkeys(tuple(result.rule.items()) for result in suite_results if result.rule):
    if "normalize" in dict(rule):
      console.print(results.rule_text(dict(rule)), highlight=False)
  for form in dict.fromkeys(result.rule["form"] for result in suite_results if "form" in result.rule):
    console.print(f"form={form}: {scoring_lib.FORMS[form]}", highlight=False)
  if any(name.startswith("pseudo_") for result in suite_results for name in result.metrics):
    console.print("pseudo perplexities of encoders cannot be compared with perplexities of other models")
  for result in suite_results:
    left_out: Mapping[str, Any] = result.details.get("left_out", {})
    for reason, number in left_out.items():
      console.print(f"{result.task}: {number:,} items are left out: {reason}")


# ---- BabyLM ----------------------------------------------------------------------------------------------------------


def babylm_paths(folder: str, names: Sequence[str]) -> dict[str, str]:
  """Returns suite -> folder in BabyLM's evaluation data: full_eval or fast_eval, or the folder with full_eval.

  Args:
    folder: the user's folder.
    names: suites; empty: all.

  Raises:
    UserError: a suite is unknown or has no folder; names all missing folders.
  """
  for name in names:
    if not registry.choose(name, where="--suites ").babylm:
      raise UserError(f"--suites {name}: not a suite of BabyLM. Suites of BabyLM: {', '.join(registry.BABYLM)}")
  gcs.check(folder, where="--data ")
  root = gcs.absolute(folder)
  if (root / "full_eval").is_dir():
    root = root / "full_eval"
  if not root.is_dir():
    raise UserError(f"--data {folder}: no such folder. Give BabyLM's evaluation_data/full_eval or fast_eval.")
  is_fast = (root / "blimp_fast").is_dir()
  folders = {name: registry.SUITES[name].babylm[is_fast] for name in names or registry.BABYLM}
  paths = {name: root / child for name, child in folders.items() if child}
  missing = [name for name, path in paths.items() if not path.is_dir()]
  if missing:
    listed = ", ".join(f"{folders[name]} ({name})" for name in missing)
    others = ",".join(name for name in paths if name not in missing)
    otherwise = f", or leave them out with --suites {others}" if others else ""
    raise UserError(f"--data {folder}: folders are missing: {listed}. Download them{otherwise}.")
  return {name: str(path) for name, path in paths.items()}
