"""Quality of the hidden states of ELECTRA, and of BERT of the same size, after equal training FLOPs.

  python benchmarks/electra.py --data FOLDER              # three arms, two seeds: about an hour of CPU time
  python benchmarks/electra.py --data FOLDER --arms BERT,ELECTRA --steps 10000 --seeds 3

FOLDER has encyclopedia articles as train-*.jsonl.gz and validation-*.jsonl.gz: JSON lines with a "text" in which a line
"Section::::History." is a heading. The last two train files are used for the probes only.

Each arm is a `t2t train` of tiny_bert or tiny_electra on the same text and batches. Steps are chosen for equal FLOPs,
as t2t counts them, including the generator. Losses of the arms are not comparable. Therefore, at several points of
training, two linear classifiers are trained on the frozen states of all layers and tested on held-out articles:

  capitals  for a word in lower-cased text, whether it was capitalized; half of the words were
  section   for the beginning of a section, its heading out of five

Prints a table, writes electra.json and electra.png; the same command resumes an interrupted run.
"""

import argparse
import collections
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import json
import os
import pathlib
import re
import shutil
import sys
from typing import Any

from etils import epath
from flax import nnx
import jax
import matplotlib.figure
from ml_collections import ConfigDict
import numpy as np
from sklearn import feature_extraction, linear_model, pipeline, preprocessing

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configuration.loading import load_config, records
from t2t.data import pipeline as data_pipeline
from t2t.data import vocabularies
from t2t.data.vocabularies import training
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.runtime import memory
from t2t.training import mesh_selection, metric_writers, recipe
from t2t.training.train import train

# name -> (config, positions of the discriminator's loss, colour)
ARMS = {
  "BERT": ("tiny_bert", None, "#1f5fa8"),
  "ELECTRA": ("tiny_electra", "all", "#c8442e"),
  "ELECTRA 15%": ("tiny_electra", "masked", "#e39a3b"),
}
SECTIONS = ("History", "Reception", "Production", "Plot", "Development")
PROBES = {
  "capitals": "capitalized words (accuracy, %)",
  "section": "heading of a section (accuracy, %)",
}
_VOCABULARY = 4_096  # tokens
_LENGTH = 64  # tokens of a probed paragraph
_WORDS = 4_000  # number of words for training a probe, and as many for testing
_PARAGRAPHS = (1_200, 600)


# ---- Training --------------------------------------------------------------------------------------------------------


def shards(folder: pathlib.Path) -> tuple[list[str], list[str], list[str]]:
  """Returns the files for pre-training, for training probes, and for testing.

  Raises:
    UserError: files are missing.
  """
  split_files = [sorted(str(path) for path in folder.glob(f"{split}-*.jsonl.gz")) for split in ("train", "validation")]
  if len(split_files[0]) < 3 or not split_files[1]:
    raise UserError(
      f"--data {folder}: has too few files; give a folder with three or more train-*.jsonl.gz and a "
      "validation-*.jsonl.gz"
    )
  return split_files[0][:-2], split_files[0][-2:], split_files[1]


def texts(files: Sequence[str]) -> Iterator[str]:
  """Yields the articles."""
  for file in files:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
      for line in lines:
        yield json.loads(line)["text"]


def arm_config(arm: str, folder: pathlib.Path, vocabulary: str, *, seed: int) -> ConfigDict:
  """Returns the config of an arm; `with_budget` sets its steps."""
  name, positions, _ = ARMS[arm]
  config = tiny_config(name, folder, vocabulary, seed=seed)
  if positions:
    config.electra.positions = positions
  return config


def tiny_config(name: str, folder: pathlib.Path, vocabulary: str, *, seed: int) -> ConfigDict:
  """Returns a tiny config that reads the articles; all have the same batches, optimizer and vocabulary."""
  config = load_config(name)
  files, _, held_out = shards(folder)
  config.data.mixture, config.data.task_modules = "", ()
  config.data.files, config.data.eval_files = ",".join(files), ",".join(held_out)
  config.data.objective = "masked_lm"
  config.data.vocabulary, config.data.extra_ids = vocabulary, 0
  config.model.vocab_size = _VOCABULARY
  config.train.seed = seed
  config.train.batch_size = 8  # with a small budget, more steps help more than larger batches
  config.optimizer.scale_by_parameter = False
  config.optimizer.learning_rate = 2e-3
  config.optimizer.schedule = "linear"
  config.optimizer.weight_decay = 0.01
  config.optimizer.b2 = 0.98
  config.eval.num_logged_samples = 0
  config.eval.batches = 10
  return config


def vocabulary_of(folder: pathlib.Path, output: pathlib.Path) -> str:
  """Returns the path of a vocabulary in `output`, and trains it on the first articles if it does not exist."""
  path = output / "vocabulary" / "vocab.txt"
  if not path.exists():
    articles = itertools.islice(texts(shards(folder)[0]), 300)
    training.train_wordpiece(articles, size=_VOCABULARY, output_dir=path.parent)
  return str(path)


def step_flops(config: ConfigDict) -> float:
  """Returns the FLOPs of a training step, as t2t counts them."""
  run = records(config)
  return recipe.make(run).flops(predicted=recipe.share_predicted(run))


def with_budget(config: ConfigDict, flops: float, *, points: int) -> ConfigDict:
  """Sets the steps that cost `flops` (rounded to a multiple of `points`), and `points` checkpoints."""
  every = max(1, round(flops / step_flops(config) / points))
  config.train.steps = every * points
  config.optimizer.warmup_steps = config.train.steps // 10
  config.optimizer.warmup_ratio = 0.0
  config.eval.every = config.checkpoint.save_interval_steps = every
  config.checkpoint.max_to_keep = points
  return config


def pretrain(config: ConfigDict, workdir: pathlib.Path) -> dict[str, dict[int, float]]:
  """Trains the remaining steps of a run without output; returns its held-out metrics by step."""
  metrics = epath.Path(workdir) / "metrics.jsonl"
  if not _is_run_of(config, workdir):
    shutil.rmtree(workdir, ignore_errors=True)
  if config.train.steps not in metric_writers.read_metrics(metrics, "eval/loss"):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
      state = train(records(config), str(workdir))
    if int(state.step) < config.train.steps:
      raise UserError(f"{workdir}: stopped at step {int(state.step)}; rerun the same command to resume")
  names = ("loss", "accuracy", "generator_loss", "generator_accuracy", "replaced")
  curves = {name: metric_writers.read_metrics(metrics, f"eval/{name}") for name in names}
  return {name: curve for name, curve in curves.items() if curve}


def _is_run_of(config: ConfigDict, workdir: pathlib.Path) -> bool:
  if not (workdir / "config.json").exists():
    return False
  wanted = json.loads(json.dumps(records(config).to_dict()))
  had = json.loads((workdir / "config.json").read_text())
  wanted["data"]["num_streams"] = had["data"]["num_streams"]  # the value chosen for 0
  return wanted == had


def baselines(config: ConfigDict) -> dict[str, float]:
  """Returns the held-out losses of trivial baselines."""
  run = records(config)
  batches = data_pipeline.eval_rows(
    run.data, run.model.architecture, batch_size=run.train.batch_size, max_batches=run.eval.batches
  )
  return {baseline.name: baseline.loss for baseline in recipe.make(run).loss.baselines(batches, run.model.vocab_size)}


# ---- Probes ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Paragraphs:
  """Examples for training or testing probes.

  texts: original text.
  tokens: int32 [paragraphs, length].
  sections: int [paragraphs], indices of SECTIONS.
  words: (paragraph, position of the first token, lower-cased word, whether it was capitalized), balanced.
  """

  texts: list[str]
  tokens: np.ndarray
  sections: np.ndarray
  words: list[tuple[int, int, str, bool]]


def paragraphs(articles: Iterator[str], vocabulary: Any, *, most: int, words: int, seed: int = 0) -> Paragraphs:
  """Selects the first long paragraph of each section with a heading in SECTIONS."""
  passages = []
  for article in articles:
    for title, body in re.findall(r"^Section::::(.*)\.\n((?:(?!Section::::).*\n)*)", article + "\n", re.MULTILINE):
      long = [line for line in body.splitlines() if len(line) >= 200]
      if title in SECTIONS and long:
        passages.append((SECTIONS.index(title), long[0]))
  rng = np.random.default_rng(seed)
  passages = [passages[index] for index in rng.permutation(len(passages))[:most]]
  tokens = np.full((len(passages), _LENGTH), max(vocabulary.pad_id, 0), np.int32)
  seen: dict[bool, list[tuple[int, int, str, bool]]] = {True: [], False: []}
  for row, (_, text) in enumerate(passages):
    ids = [vocabularies.cls_id(vocabulary)]
    previous = "."
    for word in re.findall(r"\w+|[^\w\s]", text[: 8 * _LENGTH]):
      pieces = vocabulary.encode(word)
      if len(ids) + len(pieces) >= _LENGTH:
        break
      # Excludes words at the start of sentences and quotations, which are always capitalized.
      if word.isalpha() and len(word) > 1 and previous not in '.!?:"“':
        seen[word[0].isupper()].append((row, len(ids), word.lower(), word[0].isupper()))
      ids += pieces
      previous = word
    ids.append(vocabularies.sep_id(vocabulary))
    tokens[row, : len(ids)] = ids
  number = min(words // 2, *(len(examples) for examples in seen.values()))
  chosen = [examples[index] for examples in seen.values() for index in rng.permutation(len(examples))[:number]]
  return Paragraphs([text for _, text in passages], tokens, np.asarray([section for section, _ in passages]), chosen)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _states(config: TransformerConfig, graphdef: nnx.GraphDef, params: Params, tokens: jax.Array) -> list[jax.Array]:
  """Returns the output of the embedding and of each layer, [rows, length, embed]."""
  batch = {"encoder_input_tokens": tokens}
  states = []
  for layer in range(config.num_encoder_layers):
    layer_params = jax.tree.map(lambda x, layer=layer: x[layer : layer + 1], params["encoder"])
    model = nnx.merge(graphdef, dict(params) | {"encoder": layer_params})
    if not states:
      states.append(model.embed.project(model.look_up(batch)))
    states.append(model.read(states[-1], batch))
  return states


def read(config: TransformerConfig, params: Params, texts: Paragraphs) -> dict[str, np.ndarray]:
  """Returns inputs of the probes: for each word the states at its first token, for each paragraph the mean states."""
  one_layer = dataclasses.replace(config, num_encoder_layers=1, heads=(), dropout_rate=0.0)
  abstract = jax.eval_shape(lambda key: transformer.build(one_layer, nnx.Rngs(key)), jax.random.key(0))
  graphdef = nnx.split(abstract, graph=False)[0]
  params = {name: part for name, part in params.items() if name != "heads"}
  means, places = [], collections.defaultdict(list)
  for row, position, _, _ in texts.words:
    places[row].append(position)
  words: dict[tuple[int, int], np.ndarray] = {}
  for start in range(0, len(texts.tokens), 100):
    tokens = texts.tokens[start : start + 100]
    padded = np.pad(tokens, ((0, 100 - len(tokens)), (0, 0)), constant_values=tokens[0, 0])
    states = np.concatenate([np.asarray(x) for x in _states(config, graphdef, params, padded)], axis=-1)
    real = (tokens != 0)[..., None]
    means.append((states[: len(tokens)] * real).sum(1) / real.sum(1))
    for row in range(start, start + len(tokens)):
      words |= {(row, position): states[row - start, position] for position in places[row]}
  return {
    "section": np.concatenate(means),
    "capitals": np.stack([words[row, position] for row, position, _, _ in texts.words]),
  }


def labels(texts: Paragraphs) -> dict[str, np.ndarray]:
  """Returns the targets of the probes."""
  return {"section": texts.sections, "capitals": np.asarray([capital for *_, capital in texts.words])}


def _classifier() -> Any:
  return pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression(C=0.01, max_iter=1_000))


def probe(config: TransformerConfig, params: Params, fitted: Paragraphs, tested: Paragraphs) -> dict[str, float]:
  """Returns the accuracy of each probe."""
  inputs, test_inputs = read(config, params, fitted), read(config, params, tested)
  right, expected = labels(fitted), labels(tested)
  return {
    name: float(np.mean(_classifier().fit(inputs[name], right[name]).predict(test_inputs[name]) == expected[name]))
    for name in PROBES
  }


def without_model(fitted: Paragraphs, tested: Paragraphs) -> dict[str, float]:
  """Returns the accuracy without context: most frequent spelling of each word, and bag of words of each paragraph."""
  counts: collections.Counter[str] = collections.Counter()
  for _, _, word, capital in fitted.words:
    counts[word] += 1 if capital else -1
  answers = np.asarray([counts[word] > 0 for _, _, word, _ in tested.words])
  bag = feature_extraction.text.CountVectorizer(binary=True)
  cut = [" ".join(text[: 8 * _LENGTH].split()[:50]) for text in (*fitted.texts, *tested.texts)]
  rows = bag.fit(cut[: len(fitted.texts)]).transform(cut)
  model = linear_model.LogisticRegression(max_iter=1_000).fit(rows[: len(fitted.texts)], fitted.sections)
  return {
    "capitals": float(np.mean(answers == labels(tested)["capitals"])),
    "section": float(np.mean(model.predict(rows[len(fitted.texts) :]) == tested.sections)),
  }


def probe_run(config: ConfigDict, workdir: pathlib.Path, fitted: Paragraphs, tested: Paragraphs) -> dict[str, Any]:
  """Probes a run's checkpoints and its initial parameters, by step; caches results in probes.json."""
  path = workdir / "probes.json"
  results = json.loads(path.read_text()) if path.exists() else {}
  run = records(config)
  mesh, _ = mesh_selection.make(run)
  with jax.set_mesh(mesh):
    for step in range(0, config.train.steps + 1, config.checkpoint.save_interval_steps):
      if str(step) in results:
        continue
      if step:
        model = pretrained.load(pretrained.read_source(str(workdir / "checkpoints" / str(step))), mesh)
        shape, params = model.config, model.params
      else:
        shape = dataclasses.replace(run.model, heads=())
        fresh = transformer.build(shape, nnx.Rngs(config.train.seed))
        params = nnx.to_pure_dict(nnx.split(fresh, graph=False)[1])
      results[str(step)] = probe(shape, params, fitted, tested)
      path.write_text(json.dumps(results))
  return results


# ---- Results ---------------------------------------------------------------------------------------------------------


def _mean(runs: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns FLOPs and the mean over seeds of a probe, or of the held-out loss relative to its baseline."""
  curves = [_curve(run, name) for run in runs]
  return curves[0][0], np.mean([values for _, values in curves], axis=0)


def _curve(run: dict[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
  if name == "loss":
    steps, values = list(run["held_out"]["loss"]), np.asarray(list(run["held_out"]["loss"].values()))
    values = values / next(iter(run["baselines"].values()))
  else:
    steps, values = list(run["probes"]), 100 * np.asarray([accuracies[name] for accuracies in run["probes"].values()])
  return np.asarray([int(step) for step in steps]) * run["step_flops"], values


def draw(results: dict[str, Any], path: pathlib.Path) -> None:
  """Plots both probes and the held-out loss against training FLOPs: each seed, and their mean."""
  figure = matplotlib.figure.Figure(figsize=(11.5, 3.9), dpi=110, layout="constrained")
  panels = {**PROBES, "loss": "held-out loss relative to\nits own baseline"}
  for axis, (name, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
    for arm, runs in results["arms"].items():
      colour = ARMS[arm][2]
      for run in runs:
        axis.plot(_curve(run, name)[0] / 1e12, _curve(run, name)[1], color=colour, linewidth=0.7, alpha=0.4)
      flops, mean = _mean(runs, name)
      axis.plot(flops / 1e12, mean, color=colour, linewidth=1.8, marker="o", markersize=3, label=arm)
    if name in PROBES:
      level = 100 * results["without_model"][name]
      words = {"capitals": "most frequent spelling of each word", "section": "bag of words"}[name]
      axis.axhline(level, color="#8a8a8a", linestyle="--", linewidth=0.9)
      axis.annotate(words, (1, level), xycoords=("axes fraction", "data"), fontsize=7, color="#6a6a6a", ha="right")
    else:
      axis.axhline(1.0, color="#8a8a8a", linestyle="--", linewidth=0.9)
    axis.set_xlabel("training compute (10$^{12}$ FLOPs)", fontsize=8)
    axis.set_ylabel(label, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title({"capitals": "probe: capitals", "section": "probe: section"}.get(name, "own loss"), fontsize=9)
  handles, names = axis.get_legend_handles_labels()
  figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
  figure.savefig(path)


def table(results: dict[str, Any]) -> str:
  """Formats a line for each arm: its cost, and the accuracy of its probes at the end."""
  head = f"{'arm':<32}{'steps':>7}{'FLOPs':>10}{'capitals':>16}{'section':>16}{'loss/baseline':>17}{'accuracy':>10}"
  lines = [head, "-" * len(head)]
  for arm, runs in results["arms"].items():
    cells = ""
    for name in ("capitals", "section", "loss"):
      last = [_curve(run, name)[1][-1] for run in runs]
      spread = np.std(last, ddof=1) if len(last) > 1 else 0.0
      digits = 3 if name == "loss" else 1
      cells += f"{f'{np.mean(last):.{digits}f} ± {spread:.{digits}f}':>{17 if name == 'loss' else 16}}"
    accuracy = 100 * np.mean([list(run["held_out"]["accuracy"].values())[-1] for run in runs])
    steps = runs[0]["steps"]
    lines.append(f"{arm:<32}{steps:>7}{steps * runs[0]['step_flops']:>10.2e}{cells}{accuracy:>9.1f}%")
  for label, accuracies in (
    ("without a model", results["without_model"]),
    ("most frequent answer", results["majority"]),
  ):
    lines.append(f"{label:<49}" + "".join(f"{100 * accuracies[name]:>16.1f}" for name in PROBES))
  lines.append(f"{'before the first step':<49}" + "".join(f"{_untrained(results, name):>16.1f}" for name in PROBES))
  return "\n".join(lines)


def _untrained(results: dict[str, Any], name: str) -> float:
  return float(np.mean([_curve(run, name)[1][0] for runs in results["arms"].values() for run in runs]))


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/electra.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data", required=True, type=pathlib.Path, help="folder with the articles, see above")
  parser.add_argument(
    "--arms", default=",".join(ARMS), help=f"comma-separated, of {', '.join(ARMS)}".replace("%", "%%")
  )
  parser.add_argument(
    "--steps", type=int, default=3_000, help="steps of ELECTRA; the other arms have as many as cost the same"
  )
  parser.add_argument("--points", type=int, default=5, help="number of checkpoints to probe")
  parser.add_argument("--seeds", type=int, default=2, help="runs of each arm")
  parser.add_argument(
    "--output", default="runs/electra", type=pathlib.Path, help="folder for results, picture and workdirs"
  )
  options = parser.parse_args(argv)
  arms = options.arms.split(",")
  for arm in arms:
    if arm not in ARMS:
      raise UserError(f"--arms {arm}: unknown arm; known are {', '.join(ARMS)}")
  for name in ("steps", "points", "seeds"):
    if getattr(options, name) < 1:
      raise UserError(f"--{name} {getattr(options, name)}: must be 1 or more")
  _, probe_files, test_files = shards(options.data)
  memory.keep_freed_memory()
  vocabulary_file = vocabulary_of(options.data, options.output)
  vocabulary = vocabularies.load(vocabulary_file, extra_ids=0)
  fitted, tested = (
    paragraphs(texts(files), vocabulary, most=most, words=_WORDS)
    for files, most in zip((probe_files, test_files), _PARAGRAPHS, strict=True)
  )
  counts = np.bincount(tested.sections, minlength=len(SECTIONS))
  results: dict[str, Any] = {
    "paragraphs": [len(fitted.texts), len(tested.texts)],
    "words": [len(fitted.words), len(tested.words)],
    "without_model": without_model(fitted, tested),
    "majority": {"capitals": 0.5, "section": float(counts.max() / counts.sum())},
    "arms": {},
  }
  config = lambda arm, seed: arm_config(arm, options.data, vocabulary_file, seed=seed)
  budget = options.steps * step_flops(config("ELECTRA", 0))
  # Seed by seed, so that arms are comparable at any time.
  for seed in range(options.seeds):
    for arm in arms:
      workdir = options.output / f"{arm.replace(' ', '_').rstrip('%')}_{seed}"
      run = with_budget(config(arm, seed), budget, points=options.points)
      held_out = pretrain(run, workdir)
      run_results = {
        "steps": run.train.steps,
        "step_flops": step_flops(run),
        "held_out": held_out,
        "baselines": baselines(run),
        "probes": probe_run(run, workdir, fitted, tested),
      }
      results["arms"].setdefault(arm, []).append(run_results)
      last = ", ".join(
        f"{name} {100 * value:.1f} %" for name, value in list(run_results["probes"].values())[-1].items()
      )
      print(f"seed {seed}, {arm}: {run.train.steps} steps, {last}", file=sys.stderr, flush=True)
      (options.output / "electra.json").write_text(json.dumps(results, indent=1) + "\n")
      draw(results, options.output / "electra.png")
  print(table(results))
  print(f"\ncurves  {os.path.relpath(options.output / 'electra.png')}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
