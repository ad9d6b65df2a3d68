"""Routes each input line to one of several adapters, or to one task of a multi-task checkpoint."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, jsonl_io
from t2t.param_tree import Params

FIELD = jsonl_io.ADAPTER
BASE = ""  # the base model


def named(value: Any, names: Sequence[str], where: str) -> str:
  """Returns the adapter that a line selects.

  Args:
    value: of the line's adapter field; None if the line lacks it.
    names: of the adapters; includes `BASE` if the base model may be selected.
    where: location of the line, for messages.

  Raises:
    UserError: the name is unknown, or is missing where the base model cannot be selected.
  """
  known = ", ".join(filter(None, names))
  if value is None:
    if BASE not in names:
      raise UserError(
        f"{where} has no field {FIELD!r}, but the base model cannot be used without an adapter; give one of {known}"
      )
    return BASE
  if not isinstance(value, str) or not value or value not in names:
    if not known:
      raise UserError(f"{where} selects the adapter {str(value)[:60]!r}, but no adapter is loaded; leave out {FIELD!r}")
    near = did_you_mean(str(value), list(filter(None, names)))
    raise UserError(f"{where}: unknown adapter {str(value)[:60]!r}. Known adapters: {known}{near}")
  return value


def named_models(
  source: pretrained.Source, adapters: Mapping[str, pretrained.Source], *, itself: bool = True
) -> dict[str, pretrained.Source]:
  """Returns the models that a line may select, by name; `BASE` is the model for lines without a name.

  Args:
    source: the checkpoint.
    adapters: adapters of the checkpoint, or its tasks.
    itself: whether the base model may be selected; a checkpoint with several tasks is never selected without one.
  """
  return ({BASE: source} if itself and not source.tasks else {}) | dict(adapters)


class Choosing:
  """Serves several models that differ only in their adapters; implements `batch_inference.Way`.

  Lines with the same adapter are batched together. The samples of a line do not depend on other lines.

  Args:
    ways: adapter name -> way; `BASE` is the base model. Models of one structure may share a way.
    options: adapter name -> further values that rows depend on.
  """

  def __init__(self, ways: Mapping[str, batch_inference.Way], options: Mapping[str, Any]):
    self._ways = ways
    first = next(iter(ways.values()))
    self.asks, self.unit, self.nothing = first.asks, first.unit, first.nothing
    self.pairs = all(way.pairs for way in ways.values())
    self.longest = max(way.longest for way in ways.values())
    cut_to = {way.cut_to for way in ways.values()}
    self.cut_to = cut_to.pop() if len(cut_to) == 1 else "the maximum of its adapter"
    self.form = dataclasses.replace(first.form, may=(FIELD,))
    adapter_options = {name: {FIELD: options[name]} if name in options else {} for name in ways}
    self.options = first.options | {
      "adapters": {name: adapter_options[name] | dict(way.options) for name, way in ways.items()}
    }

  @property
  def remarks(self) -> Sequence[str]:
    return tuple(dict.fromkeys(remark for way in self._ways.values() for remark in way.remarks))

  def _name(self, line: jsonl_io.Line, where: str = "") -> str:
    return named(line.others.get(FIELD), list(self._ways), where)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """Checks the adapter name of the line, then the line itself."""
    self._ways[self._name(line, where)].check(line, where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    name = self._name(line)
    encoded_line = self._ways[name].read(line)
    return encoded_line if encoded_line.error else dataclasses.replace(encoded_line, given=[name, encoded_line.given])

  def answer(
    self,
    params: Mapping[str, Params],
    inputs: Sequence[Any],
    *,
    numbers: Sequence[int],
    done: batch_inference.Done | None,
  ) -> list[dict[str, Any]]:
    """Answers the lines adapter by adapter; `params` has the parameters of each adapter by its name."""
    rows: list[dict[str, Any]] = [{}] * len(inputs)
    for name in dict.fromkeys(name for name, _ in inputs):
      mine = [index for index, (adapter_name, _) in enumerate(inputs) if adapter_name == name]
      answers = self._ways[name].answer(
        params[name], [inputs[index][1] for index in mine], numbers=[numbers[index] for index in mine], done=done
      )
      for index, answer in zip(mine, answers, strict=True):
        rows[index] = answer
    return rows


def ways_of(
  sources: Mapping[str, pretrained.Source], make_way: Callable[[pretrained.Source], batch_inference.Way]
) -> dict[str, batch_inference.Way]:
  """Returns a way for each model; models with the same structure and settings share a way and its compiled programs.

  Args:
    sources: name -> checkpoint.
    make_way: builds the way of a checkpoint.
  """
  by_structure: dict[str, batch_inference.Way] = {}
  ways = {}
  for name, source in sources.items():
    # The values that a way depends on: model, adapters, loss and data settings.
    data, loss = source.run["data"], source.run.get("train", {}).get("loss")
    settings = [data.get(key) for key in ("inputs_length", "objective", "mixture", "files", "table")]
    key = repr((source.model, source.adapters, loss, settings[:3], bool(settings[3]), settings[4]))
    ways[name] = by_structure[key] = by_structure.get(key) or make_way(source)
  return ways
