"""Parameter-efficient adapters: one file per method, registered in ADAPTERS.

A run uses an adapter if its config has the adapter's section, for example `config.lora`. The model's own parameters are
frozen, and the adapter's parameters are trained.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, Generic, TypeVar

from flax import nnx
import jax

from t2t import UserError, did_you_mean
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params, Vocabulary, flatten, unflatten
from t2t.runtime.lazy_table import LazyTable

AdapterSection = TypeVar("AdapterSection")
Adapters = Mapping[str, object]  # config section -> its dataclass; at most one entry


def _owner(path: str) -> tuple[str, ...]:
  return (path.rpartition("/")[0],)


@dataclasses.dataclass(frozen=True)
class Adapter(Generic[AdapterSection]):
  """An adapter method, the ADAPTER of its file.

  config: dataclass of its section; has `also_train`, patterns over paths.
  adapt: (model, config, rngs) -> the adapted model, if possible with the same outputs as the model before training.
  added: pattern of the paths of the parameters that it adds, or otherwise trains.
  base_path: path of a parameter -> its path in the base model; None: the adapter added it.
  merge: (path -> array, config) -> path -> array of a base model with the same outputs; None: no such model exists, and
    readers of checkpoints keep the adapter.
  merged_into: path of an added parameter -> paths in the base model that it is merged into.
  positions: config -> number of positions that it takes before a text.
  computes: whether these positions are computed like a text's.
  sides: config -> sides of a model with learned prefix keys in self-attention.
  starts: (config, vocabulary, seed=) -> second argument of `begin`.
  begin: (path -> array, result of `starts`) -> the arrays with initial values of the adapter, if these depend on the
    base model's parameters.
  tasks: config -> names of tasks with separate parameters, by task id; (): the same for all tasks.
  of_task: (path -> array, task id) -> the arrays of a model for this task only, which takes no task ids.
  """

  config: type[AdapterSection]
  adapt: Callable[[nnx.Module, AdapterSection, nnx.Rngs], nnx.Module]
  added: str
  base_path: Callable[[str], str | None]
  merge: Callable[[Mapping[str, jax.Array], AdapterSection], dict[str, jax.Array]] | None
  merged_into: Callable[[str], tuple[str, ...]] = _owner
  positions: Callable[[AdapterSection], int] = lambda config: 0
  computes: bool = False
  sides: Callable[[AdapterSection], tuple[str, ...]] = lambda config: ()
  starts: Callable[..., Sequence[int] | None] = lambda config, vocabulary, *, seed: None
  begin: Callable[[dict[str, jax.Array], Sequence[int] | None], dict[str, jax.Array]] = lambda params, start: params
  tasks: Callable[[AdapterSection], tuple[str, ...]] = lambda config: ()
  of_task: Callable[[Mapping[str, jax.Array], int], dict[str, jax.Array]] = lambda params, number: dict(params)


# Config section -> method; its file is imported when a config has the section.
ADAPTERS: LazyTable[Adapter[object]] = LazyTable(
  {
    "lora": "t2t.models.adapters.lora:ADAPTER",
    "bitfit": "t2t.models.adapters.bitfit:ADAPTER",
    "ia3": "t2t.models.adapters.ia3:ADAPTER",
    "houlsby": "t2t.models.adapters.houlsby:ADAPTER",
    "pfeiffer": "t2t.models.adapters.pfeiffer:ADAPTER",
    "prompt": "t2t.models.adapters.prompt:ADAPTER",
    "prefix": "t2t.models.adapters.prefix:ADAPTER",
    "pals": "t2t.models.adapters.pals:ADAPTER",
  }
)

# Config section -> its dataclass.
SECTIONS = {name: f"{path}.config" for name, path in ADAPTERS.rows.items()}


def adapt(model: nnx.Module, adapters: Adapters, rngs: nnx.Rngs) -> nnx.Module:
  """Returns the model with the adapters of the config.

  Raises:
    UserError: patterns that match nothing in the model, or a model without the parameters that the adapter trains.
  """
  shape: TransformerConfig | None = getattr(model, "config", None)
  for name, config in adapters.items():
    if shape is not None and shape.block_class.is_recurrent and name not in ("bitfit", "prompt"):
      raise UserError(
        f"config.{name} adapts attention and MLPs, but config.model.block={shape.block} has neither. Leave "
        f"config.{name} out, or give config.bitfit or config.prompt."
      )
    model = ADAPTERS[name].adapt(model, config, rngs)
  return model


def beginning(adapters: Adapters, vocabulary: Vocabulary | None, *, seed: int) -> Callable[[Params], Params]:
  """Returns a function that sets initial values of new adapter parameters among a model's parameters.

  Args:
    adapters: new adapters.
    vocabulary: the model's vocabulary (`seqio.Vocabulary`).
    seed: seed of random choices.

  Raises:
    UserError: the vocabulary has no token of a text.
  """
  begins = [(ADAPTERS[name].begin, ADAPTERS[name].starts(x, vocabulary, seed=seed)) for name, x in adapters.items()]

  def begin(params: Params) -> Params:
    for set_initial, start in begins:
      flat = set_initial(flatten(params), start)
      params = unflatten(flat)
    return params

  return begin


def positions(adapters: Adapters, *, computed: bool = False) -> int:
  """Returns the number of positions that adapters take before a text; with `computed` only computed ones."""
  return sum(
    ADAPTERS[name].positions(config) for name, config in adapters.items() if ADAPTERS[name].computes or not computed
  )


def prefixed(adapters: Adapters) -> tuple[str, ...]:
  """Returns the sides of a model with learned prefix keys in self-attention."""
  return tuple(side for name, config in adapters.items() for side in ADAPTERS[name].sides(config))


def tasks(adapters: Adapters) -> tuple[str, ...]:
  """Returns the names of tasks with separate parameters, by task id."""
  return tuple(task for name, config in adapters.items() for task in ADAPTERS[name].tasks(config))


def number_of(task: str, adapters: Adapters, *, where: str) -> int:
  """Returns the id of a task.

  Args:
    task: its name.
    adapters: adapters with separate parameters per task.
    where: config key or flag of the name, for messages.

  Raises:
    UserError: the task is unknown; the message contains the known names.
  """
  known = tasks(adapters)
  if task not in known:
    near = did_you_mean(task, known)
    raise UserError(f"{where}: unknown task. The tasks of config.{'/'.join(adapters)} are {', '.join(known)}{near}")
  return known.index(task)


def of_task(params: Params, adapters: Adapters, number: int) -> Params:
  """Returns the parameters of a model for one task; arrays that all tasks share are not copied."""
  flat = flatten(params)
  for name in adapters:
    flat = ADAPTERS[name].of_task(flat, number)
  return unflatten(flat)


def as_asked(model: TransformerConfig, adapters: Adapters) -> TransformerConfig:
  """Returns the config as users of the model see it: learned positions minus the adapters' positions.

  Raises:
    UserError: no positions are left for a text.
  """
  taken = positions(adapters)
  if not taken or not model.most_positions:
    return model
  if taken >= model.most_positions:
    raise UserError(
      f"config.{next(iter(adapters))}.length={taken}: the model has {model.most_positions} learned positions "
      f"(config.model.max_length), so no position is left for a text. Give a length below {model.most_positions}."
    )
  return dataclasses.replace(model, max_length=model.most_positions - taken)


def base_path(path: str, adapters: Adapters) -> str | None:
  """Returns the path in the base model of a parameter of an adapted model; None: the adapter added it."""
  base: str | None = path
  for name in adapters:
    base = base if base is None else ADAPTERS[name].base_path(base)
  return base


def mergeable(adapters: Adapters) -> dict[str, object]:
  """Returns the adapters that can be merged into the model."""
  return {name: config for name, config in adapters.items() if ADAPTERS[name].merge is not None}


def kept(adapters: Adapters) -> dict[str, object]:
  """Returns the adapters that cannot be merged into the model."""
  return {name: config for name, config in adapters.items() if ADAPTERS[name].merge is None}


def merged_into(path: str, adapters: Adapters) -> tuple[str, ...]:
  """Returns the paths in the base model that an added parameter is merged into."""
  return tuple(base for name in adapters for base in ADAPTERS[name].merged_into(path))


def merge(params: Mapping[str, jax.Array], adapters: Adapters) -> dict[str, jax.Array]:
  """Returns path -> array of a model with the same outputs without these adapters, which must be `mergeable`."""
  for name, config in adapters.items():
    merge_one = ADAPTERS[name].merge
    assert merge_one is not None
    params = merge_one(params, config)
  return dict(params)


def trained(adapters: Adapters) -> tuple[tuple[str, ...], ...]:
  """Returns the patterns that each adapter trains: its own, named heads and `also_train`."""
  configs: Mapping[str, Any] = adapters
  return tuple((ADAPTERS[name].added, "(^|/)heads/", *config.also_train) for name, config in configs.items())


def frozen(adapters: Adapters) -> tuple[str, ...]:
  """Returns the patterns of the parameters that an adapter freezes: all except the trained ones."""
  # Negative lookahead over the trained patterns; no pattern if "." trains everything.
  return tuple(f"^(?!.*({'|'.join(patterns)}))" for patterns in trained(adapters) if "." not in patterns)
