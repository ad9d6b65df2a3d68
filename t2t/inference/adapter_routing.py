"""Several adapters of one model, or the tasks that it tells apart, of which each line says which is asked."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from t2t import UserError, did_you_mean
from t2t.checkpoints import pretrained
from t2t.inference import batch_inference, jsonl_io
from t2t.param_tree import Params

FIELD = jsonl_io.ADAPTER
BASE = ""  # the name of the model itself


def named(value: Any, names: Sequence[str], where: str) -> str:
  """The adapter that a line asks for.

  Args:
    value: of its field; None: it has none.
    names: of the adapters, and `BASE` where the model itself can be asked.
    where: what a message calls the line.

  Raises:
    UserError: there is none of that name; or the line says none, and the model itself cannot be asked.
  """
  known = ", ".join(filter(None, names))
  if value is None:
    if BASE not in names:
      raise UserError(f"{where}: says no {FIELD!r}, and the model by itself cannot be asked; name one of {known}")
    return BASE
  if not isinstance(value, str) or not value or value not in names:
    near = did_you_mean(str(value), list(filter(None, names)))
    problem = f"there is none of that name; known are {known}{near}" if known else "no adapter is loaded"
    raise UserError(f"{where}: {FIELD} {str(value)[:60]!r}: {problem}")
  return value


def named_models(
  source: pretrained.Source, adapters: Mapping[str, pretrained.Source], *, itself: bool = True
) -> dict[str, pretrained.Source]:
  """What a line may name: name -> model, `BASE` that of a line that names none.

  Args:
    source: the checkpoint.
    adapters: on top of it, or its tasks.
    itself: whether it can be asked without an adapter; one that tells tasks apart cannot.
  """
  return ({BASE: source} if itself and not source.tasks else {}) | dict(adapters)


class Choosing:
  """The way of several models that are alike but for their adapters; see `batch_inference.Way`.

  Lines of one adapter are batched together; what is drawn for a line does not depend on the others.

  Args:
    ways: name -> how it is asked; `BASE` is the model itself. Those of one structure may be the same.
    options: name -> what rows depend on besides.
  """

  def __init__(self, ways: Mapping[str, batch_inference.Way], options: Mapping[str, Any]):
    self._ways = ways
    first = next(iter(ways.values()))
    self.asks, self.unit, self.nothing = first.asks, first.unit, first.nothing
    self.pairs = all(way.pairs for way in ways.values())
    self.longest = max(way.longest for way in ways.values())
    cut_to = {way.cut_to for way in ways.values()}
    self.cut_to = cut_to.pop() if len(cut_to) == 1 else "tokens of its adapter"
    self.form = dataclasses.replace(first.form, may=(FIELD,))
    adapter_options = {name: {FIELD: options[name]} if name in options else {} for name in ways}
    self.options = first.options | {
      "adapters": {name: adapter_options[name] | dict(way.options) for name, way in ways.items()}
    }

  def _name(self, line: jsonl_io.Line, where: str = "") -> str:
    return named(line.others.get(FIELD), list(self._ways), where)

  def check(self, line: jsonl_io.Line, where: str) -> None:
    """See `batch_inference.Way`; and whether there is the adapter that it names."""
    self._ways[self._name(line, where)].check(line, where)

  def read(self, line: jsonl_io.Line) -> batch_inference.EncodedLine:
    """See `batch_inference.Way`."""
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
    """Those of one adapter after those of another; `params` has the parameters of each by its name."""
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
  """A way for each model; those of one structure, asked alike, have one, and with it its compiled programs.

  Args:
    sources: name -> checkpoint.
    make_way: how a checkpoint is asked.
  """
  by_structure: dict[str, batch_inference.Way] = {}
  ways = {}
  for name, source in sources.items():
    # What a way is made of: the model, what adapts it, and how its run says that it is asked.
    data, loss = source.run["data"], source.run.get("train", {}).get("loss")
    settings = [data.get(key) for key in ("inputs_length", "objective", "mixture", "files", "table")]
    key = repr((source.model, source.adapters, loss, settings[:3], bool(settings[3]), settings[4]))
    ways[name] = by_structure[key] = by_structure.get(key) or make_way(source)
  return ways
