"""Texts in a run's report: predictions on the same held-out examples over training, and the first training rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2t.reports import page
from t2t.reports import run as runs

_SHOWN = 160  # characters of each step's prediction; the last is complete
# Feature -> its name on the page.
_FEATURES = {
  "encoder_input_tokens": "input of the encoder",
  "encoder_target_tokens": "original tokens",
  "decoder_target_tokens": "target of the decoder",
}


def examples(run: runs.RecordedRun, *, most: int = 20) -> Iterator[str]:
  """Yields each of the last samples with earlier predictions on the same input.

  Args:
    run: with samples.jsonl; otherwise only the samples at its end are shown.
    most: maximum of steps per sample: the first, the last and some between.
  """
  last = run.samples[max(run.samples)] if run.samples else _noted(run)
  for number, lines in enumerate(last, start=1):
    yield f"<h3>Example {number}</h3>{page.pairs((label, text or '(empty)') for label, text in lines)}"
    predictions = dict(sorted(_predictions(run, _text(lines, "input")).items()))
    if len(predictions) > 1:
      rows = [
        (step, text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...") for step, text in _some(predictions, most)
      ]
      yield page.table(f"Predictions on the input of example {number}", ("step", "prediction"), rows)


def _noted(run: runs.RecordedRun) -> list[list[tuple[str, str]]]:
  noted_examples = next((note["examples"] for note in reversed(run.history) if note.get("examples")), [])
  noted = []
  for lines in noted_examples if isinstance(noted_examples, list) else []:
    try:
      noted.append([(str(label), str(text)) for label, text in lines])
    except (TypeError, ValueError):  # malformed
      continue
  return noted


def _text(lines: Sequence[tuple[str, str]], wanted: str) -> str | None:
  return next((text for label, text in lines if label == wanted), None)


def _predictions(run: runs.RecordedRun, input_text: str | None) -> dict[int, str]:
  """Returns step -> prediction on this input; stages may have other inputs."""
  return {
    step: _text(lines, "prediction") or "(empty)"
    for step, samples in run.samples.items()
    for lines in samples
    if input_text is not None and _text(lines, "input") == input_text
  }


def _some(predictions: Mapping[int, str], most: int) -> list[tuple[int, str]]:
  """Returns at most `most` of them, including the first and the last."""
  items, most = list(predictions.items()), max(2, most)
  if len(items) <= most:
    return items
  return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def first_rows(run: runs.RecordedRun) -> Iterator[str]:
  """Yields the first rows of the first batch of each stage, token by token."""
  if not run.first_rows:
    return
  yield page.paragraph(
    "The first rows of the first batch, token by token; underlined tokens count in the loss.", soft=True
  )
  for batch_record in run.first_rows:
    if batch_record["stage"]:
      yield f"<h3>Stage {page.escaped(batch_record['stage'])}, from step {batch_record['step'] + 1:,}</h3>"
    for number, features in enumerate(batch_record["rows"], start=1):
      parts = [_feature(name, feature) for name, feature in features.items()]
      yield page.folded(f"Row {number}", *parts) if number > 1 else "".join(parts)


def _feature(name: str, feature: Mapping[str, Any]) -> str:
  title = _FEATURES.get(name, name)
  more = f"; {feature['more']:,} more" if feature["more"] else ""
  padding = f"; {feature['padding']:,} positions are padding" if feature["padding"] else ""
  length = len(feature["pieces"]) + feature["more"]
  return page.paragraph(f"{title}: {length:,} tokens{more}{padding}", soft=True) + page.pieces(feature["pieces"])
