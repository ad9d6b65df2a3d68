"""Linear probes of each layer of several checkpoints, in one picture: `t2t embed --layer all --probe TASK`.

  python benchmarks/probes.py --checkpoints runs/tiny_bert --task docs_match
  python benchmarks/probes.py --checkpoints runs/bert,runs/roberta,gs://BUCKET/t5 --task glue_sst2_v002 \
    --config.data.benchmark_dirs.glue=GLUE

Prints a table for each checkpoint, writes probes.json and probes.png; results in probes.json are reused.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import matplotlib.figure

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.configs import default
from t2t.configuration.loading import override, records
from t2t.evaluation import probes
from t2t.inference import batch_inference, embedding, prompt_builder
from t2t.runtime import memory

_COLOURS = ("#1f5fa8", "#c8442e", "#3c8d40", "#8a5fb0", "#b8860b")


def draw(results: dict[str, probes.Probe], path: pathlib.Path) -> None:
  """Plots accuracy against the layer, or against the relative depth if models have different numbers of layers.

  Args:
    results: by name of the checkpoint.
    path: of the picture.
  """
  figure = matplotlib.figure.Figure(figsize=(5.6, 3.4), dpi=110, layout="constrained")
  axis = figure.subplots()
  same = len({max(result.accuracy) for result in results.values()}) == 1
  for i, (name, result) in enumerate(results.items()):
    layers = [number if same else number / max(result.accuracy) for number in result.accuracy]
    colour = _COLOURS[i % len(_COLOURS)]
    axis.plot(layers, list(result.accuracy.values()), color=colour, marker="o", markersize=3, linewidth=1.6, label=name)
  first = next(iter(results.values()))
  axis.axhline(first.constant, color="#888888", linewidth=0.9, linestyle="--", label="most frequent class")
  axis.set_xlabel("layer; 0 is the embedding" if same else "relative depth of the layer", fontsize=8)
  axis.set_ylabel(f"{first.split} accuracy (%)", fontsize=8)
  axis.tick_params(labelsize=7)
  axis.grid(alpha=0.25)
  axis.spines[["top", "right"]].set_visible(False)
  axis.legend(frameon=False, fontsize=8)
  figure.suptitle(f"{first.task}: a linear probe of each layer", fontsize=9)
  figure.savefig(path)


def probe(checkpoint: str, options: argparse.Namespace, overrides: list[str]) -> probes.Probe:
  """Probes a checkpoint.

  Raises:
    UserError: see `probes.probe`.
  """
  source = pretrained.read_source(checkpoint, where="--checkpoints ")
  data = records(override(default.get_config(), overrides)).data
  longest = prompt_builder.longest_text(source, inputs_length=0)
  data = dataclasses.replace(data, mixture=options.task, files="", inputs_length=longest)
  return probes.probe(data, source, batch_inference.make_mesh(1), pool=options.pool, limit=options.examples)


def main(argv: list[str]) -> None:
  """Runs the benchmark."""
  parser = argparse.ArgumentParser(
    prog="python benchmarks/probes.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--checkpoints", required=True, help="workdirs or checkpoints, separated by commas")
  parser.add_argument("--task", default="docs_match", help="of classes")
  parser.add_argument("--pool", default="mean", choices=tuple(embedding.POOLS), help="pooling of a text's tokens")
  parser.add_argument("--examples", type=int, default=5_000, help="maximum examples of each split")
  parser.add_argument("--workdir", default="runs/probes", help="folder for results and picture")
  options, overrides = parser.parse_known_args(argv)
  if options.examples < 2:
    raise UserError(f"--examples {options.examples}: must be 2 or more")
  memory.keep_freed_memory()
  workdir = pathlib.Path(options.workdir)
  path = workdir / "probes.json"
  about = {name: getattr(options, name) for name in ("task", "pool", "examples")} | {"overrides": overrides}
  there = json.loads(path.read_text()) if path.exists() else {}
  there = there if there.get("about") == about else {"about": about, "probes": {}}
  results = {}
  for checkpoint in options.checkpoints.split(","):
    if checkpoint not in there["probes"]:
      there["probes"][checkpoint] = dataclasses.asdict(probe(checkpoint, options, overrides))
      workdir.mkdir(parents=True, exist_ok=True)
      path.write_text(json.dumps(there, indent=2) + "\n")
    fields = there["probes"][checkpoint]
    numbered = {name: {int(layer): x for layer, x in fields[name].items()} for name in ("accuracy", "fitted")}
    results[checkpoint] = probes.Probe(**{**fields, **numbered})
    print(checkpoint)
    probes.print_table(results[checkpoint])
  draw(results, workdir / "probes.png")
  print(f"numbers        {path}\npicture        {workdir / 'probes.png'}")


if __name__ == "__main__":
  try:
    main(sys.argv[1:])
  except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
