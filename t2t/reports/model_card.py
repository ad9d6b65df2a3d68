"""Model card of a run for the Hugging Face hub: README.md with YAML, data, training, results and use."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import re
import shlex
from typing import Any

from t2t.configuration.loading import flat
from t2t.reports import run as runs
from t2t.reports import single
from t2t.runtime import amounts, versions

MARK = "<!-- Written by t2t push, which replaces this file. Remove this line to keep your own. -->"
_ON_HUB = re.compile(r"hf://(?P<datasets>datasets/)?(?P<name>[^/@,\s]+/[^/@,\s]+)")
_MOST_ROWS = 40  # of the table of results
_HIDDEN = ("train/", "device/")  # metrics of speed and optimization
_SOURCES = ("files", "mixture", "eval_files", "objective", "vocabulary")


def text(
  name: str,
  license: Mapping[str, str],
  *,
  config: Mapping[str, Any],
  run: runs.RecordedRun | None,
  step: int,
  picture: str,
) -> str:
  """Returns the card.

  Args:
    name: ORG/NAME of the repository.
    license: fields of the card, see `hub_licenses.front_matter`.
    config: config.json of the exported folder.
    run: that trained the model; None: unknown.
    step: of the exported checkpoint; later metrics are left out.
    picture: name of the file with the loss curve; "": there is none.
  """
  keys = flat(run.config) if run is not None else {}
  if run is not None:
    until = {
      metric: {at: value for at, value in values.items() if at <= step} for metric, values in run.metrics.items()
    }
    run = dataclasses.replace(run, metrics=until)
  lines = [
    *_front_matter(license, keys),
    MARK,
    "",
    f"# {name.rpartition('/')[2]}",
    "",
    _first_sentence(config, keys),
    "",
  ]
  if run is not None:
    for title, section in (
      ("Data", _data(keys)),
      ("Training", _training(run, keys, step)),
      ("Results", _results(run, picture)),
    ):
      if rows := list(section):
        lines += [f"## {title}", "", *rows, ""]
  return "\n".join([*lines, "## Use", "", *_use(name, config), ""])


def _front_matter(license: Mapping[str, str], keys: Mapping[str, Any]) -> Iterator[str]:
  values = [str(value) for value in _leaves(keys)]
  matches = [match for value in values for match in _ON_HUB.finditer(value)]
  datasets = dict.fromkeys(match["name"] for match in matches if match["datasets"])
  bases = dict.fromkeys(
    match["name"] for match in _ON_HUB.finditer(str(keys.get("init.checkpoint", ""))) if not match["datasets"]
  )
  # JSON texts are YAML, too, whatever they contain.
  fields: dict[str, Any] = {**license, "library_name": "transformers", "tags": ["t2t", "jax"]}
  fields |= {"datasets": list(datasets)} if datasets else {}
  fields |= {"base_model": list(bases)} if bases else {}
  yield "---"
  for key, value in fields.items():
    yield f"{key}: {json.dumps(value)}"
  yield "---"


def _leaves(value: Any) -> Iterator[Any]:
  if isinstance(value, Mapping | list | tuple):
    for item in value.values() if isinstance(value, Mapping) else value:
      yield from _leaves(item)
  else:
    yield value


def _first_sentence(published: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
  kind = keys.get("model.architecture", "").replace("_", "-")
  model_class = next(iter(published.get("architectures") or ()), published.get("model_type", "model"))
  base = keys.get("init.checkpoint")
  start = f" It starts from `{base}`." if base else ""
  return (
    f"A `{model_class}`{f', {kind},' if kind else ''} trained with t2t, exported to the format of transformers.{start}"
  )


def _data(keys: Mapping[str, Any]) -> Iterator[str]:
  for key in _SOURCES:
    if value := keys.get(f"data.{key}"):
      yield f"- {key}: `{value}`"
  for name, source in (keys.get("data.sources") or {}).items():
    yield f"- source {name}: `{source.get('files') or source.get('mixture')}`"
  lengths = [str(keys[f"data.{side}_length"]) for side in ("inputs", "targets") if keys.get(f"data.{side}_length")]
  if lengths:
    yield f"- tokens of an example: {' + '.join(lengths)}"


def _training(run: runs.RecordedRun, keys: Mapping[str, Any], step: int) -> Iterator[str]:
  start = next((note for note in reversed(run.history) if note.get("command")), {})
  yield f"- steps: {step:,}" + (f" of {run.steps:,}" if run.steps and run.steps != step else "")
  for title, key in (("batch", "train.batch_size"), ("seed", "train.seed"), ("optimizer", "optimizer.name")):
    if keys.get(key) is not None:
      yield f"- {title}: {keys[key]}"
  if keys.get("optimizer.learning_rate") is not None:
    yield f"- learning rate: {keys['optimizer.learning_rate']}, {keys.get('optimizer.schedule')}"
  if tokens := single.total(run, "train/tokens"):
    yield f"- tokens: about {amounts.compact_count(tokens)}"
  if seconds := single.total(run, "train/step_seconds"):
    yield f"- time in steps: about {amounts.duration(seconds)}"
  if start.get("devices"):
    yield f"- devices: {start['devices']}"
  yield f"- versions: {start.get('t2t') or versions.line()}"
  if start.get("command"):
    yield from ("", "The command, and the same config as `config.json` of the run:", "", "```sh")
    yield _wrapped(start["command"])
    yield "```"


def _wrapped(command: str) -> str:
  """Returns a command with an option in each line; a value with characters of the shell is quoted."""
  words: list[str] = []
  for word in command.split(" "):
    if not words or word.startswith("--") or (words and not words[-1].startswith("--")):
      words.append(word)
    else:
      words[-1] += f" {word}"
  quoted = [shlex.join(word.split(" ")) if word.startswith("--") else word for word in words]
  return " \\\n  ".join(quoted)


def _results(run: runs.RecordedRun, picture: str) -> Iterator[str]:
  rows = list(_rows(run))
  if rows:
    yield "| metric | last | best | at step |"
    yield "|---|---|---|---|"
    for name, last, best, step in rows[:_MOST_ROWS]:
      yield f"| {name} | {last:.4g} | {best:.4g} | {step:,} |"
    for baseline in single.baselines(run):
      yield f"| loss of the {baseline.name} ({baseline.knows}) | {baseline.loss:.4g} | | |"
    yield ""
  if picture:
    yield f"![Loss over steps]({picture})"


def _rows(run: runs.RecordedRun) -> Iterator[Sequence[Any]]:
  """Yields name, last value, best value and its step of each metric of held-out data."""
  for name, values in sorted(run.metrics.items()):
    if not values or name.startswith(_HIDDEN):
      continue
    best = (min if "loss" in name or "perplexity" in name else max)(values, key=lambda step: values[step])
    yield name, next(reversed(values.values())), values[best], best


def _use(name: str, published: Mapping[str, Any]) -> Iterator[str]:
  model_class = next(iter(published.get("architectures") or ()), "AutoModel")
  yield from (
    "```python",
    "import transformers",
    "",
    f'model = transformers.{model_class}.from_pretrained("{name}")',
    "```",
  )
  yield from ("", "With t2t:", "", "```sh", f"t2t infer --checkpoint hf://{name} --input FILE --output FILE", "```")
