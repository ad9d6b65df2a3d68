"""Parameter-efficient adapters: one file per method, registered in ADAPTERS.

A run has an adapter where its config has the adapter's section, `config.lora` for example, which is absent elsewhere.
The model's own parameters stay as they are; what the adapter adds is trained.
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
Adapters = Mapping[str, object]  # section of the config -> its record; at most one, or none


def _owner(path: str) -> tuple[str, ...]:
  return (path.rpartition("/")[0],)


@dataclasses.dataclass(frozen=True)
class Adapter(Generic[AdapterSection]):
  """A method, the ADAPTER of its file.

  config: the record of its section; has `also_train`, patterns over paths.
  adapt: (model, config, rngs) -> the adapted model; where it can it gives the same as the model before anything is
    trained.
  added: pattern of the paths of the parameters that it adds, or else trains.
  base_path: path of a parameter -> where it was before; None: it is added.
  merge: (path -> array, config) -> path -> array, as the model has them that needs no adapter; None: no such model
    computes the same, and whoever reads a checkpoint keeps the adapter.
  merged_into: path of a parameter that is added -> those of the model, as it was, that it is merged into.
  positions: config -> how many positions it takes in front of a text.
  computes: whether these are computed as a text's are.
  sides: config -> sides of a model whose self-attention has learned keys in front of its own.
  starts: (config, vocabulary, seed=) -> what `begin` is given.
  begin: (path -> array, what `starts` gave) -> the same with what it adds as training begins with it, where that
    depends on the model's own parameters.
  tasks: config -> names of the tasks that it tells apart, in the order of their numbers; (): it is the same for all.
  of_task: (path -> array, number) -> the same of the model that has but this task, and is told of none.
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


# Section of the config -> method; a file is imported when a config has its section.
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

# Section of the config -> its record.
SECTIONS = {name: f"{path}.config" for name, path in ADAPTERS.rows.items()}


def adapt(model: nnx.Module, adapters: Adapters, rngs: nnx.Rngs) -> nnx.Module:
  """The model with what the config adapts it by.

  Raises:
    UserError: patterns that match nothing of the model, or a model that has not what is trained in this way.
  """
  for name, config in adapters.items():
    model = ADAPTERS[name].adapt(model, config, rngs)
  return model


def beginning(adapters: Adapters, vocabulary: Vocabulary | None, *, seed: int) -> Callable[[Params], Params]:
  """What makes of a model's parameters, among which are fresh ones that adapters add, those that training begins with.

  Args:
    adapters: that are new.
    vocabulary: of the model (`seqio.Vocabulary`).
    seed: of what is drawn.

  Raises:
    UserError: a text that the vocabulary has no piece of.
  """
  begins = [(ADAPTERS[name].begin, ADAPTERS[name].starts(x, vocabulary, seed=seed)) for name, x in adapters.items()]

  def begin(params: Params) -> Params:
    for set_initial, start in begins:
      flat = set_initial(flatten(params), start)
      params = unflatten(flat)
    return params

  return begin


def positions(adapters: Adapters, *, computed: bool = False) -> int:
  """How many positions they take in front of a text; those alone that are `computed` as a text's are."""
  return sum(
    ADAPTERS[name].positions(config) for name, config in adapters.items() if ADAPTERS[name].computes or not computed
  )


def prefixed(adapters: Adapters) -> tuple[str, ...]:
  """Sides of a model whose self-attention has learned keys in front of its own."""
  return tuple(side for name, config in adapters.items() for side in ADAPTERS[name].sides(config))


def tasks(adapters: Adapters) -> tuple[str, ...]:
  """Names of the tasks that they tell apart, in the order of their numbers."""
  return tuple(task for name, config in adapters.items() for task in ADAPTERS[name].tasks(config))


def number_of(task: str, adapters: Adapters, *, where: str) -> int:
  """The number of a task.

  Args:
    task: its name.
    adapters: that tell tasks apart.
    where: what names it, for messages.

  Raises:
    UserError: they have none of that name; names those that there are.
  """
  known = tasks(adapters)
  if task not in known:
    near = did_you_mean(task, known)
    raise UserError(f"{where}: none of the tasks of config.{'/'.join(adapters)}, which are {', '.join(known)}{near}")
  return known.index(task)


def of_task(params: Params, adapters: Adapters, number: int) -> Params:
  """The parameters of the model that has but the task of this number; what all tasks share are the same arrays."""
  flat = flatten(params)
  for name in adapters:
    flat = ADAPTERS[name].of_task(flat, number)
  return unflatten(flat)


def as_asked(model: TransformerConfig, adapters: Adapters) -> TransformerConfig:
  """The shape of a model as those know it who ask it something: with as many learned positions as a text may have.

  Raises:
    UserError: none are left for it.
  """
  taken = positions(adapters)
  if not taken or not model.most_positions:
    return model
  if taken >= model.most_positions:
    raise UserError(
      f"config.{next(iter(adapters))}.length={taken}: the model has learned {model.most_positions} positions"
      f" (config.model.max_length), which leaves none for a text"
    )
  return dataclasses.replace(model, max_length=model.most_positions - taken)


def base_path(path: str, adapters: Adapters) -> str | None:
  """Where a parameter of an adapted model is in the model itself; None: the adapter added it."""
  base: str | None = path
  for name in adapters:
    base = base if base is None else ADAPTERS[name].base_path(base)
  return base


def mergeable(adapters: Adapters) -> dict[str, object]:
  """Those of them that can be merged."""
  return {name: config for name, config in adapters.items() if ADAPTERS[name].merge is not None}


def kept(adapters: Adapters) -> dict[str, object]:
  """Those of them that cannot, and stay beside the model."""
  return {name: config for name, config in adapters.items() if ADAPTERS[name].merge is None}


def merged_into(path: str, adapters: Adapters) -> tuple[str, ...]:
  """What a parameter that an adapter added is merged into: paths in the model itself."""
  return tuple(base for name in adapters for base in ADAPTERS[name].merged_into(path))


def merge(params: Mapping[str, jax.Array], adapters: Adapters) -> dict[str, jax.Array]:
  """Path -> array of the model that computes the same without these adapters, which must be `mergeable`."""
  for name, config in adapters.items():
    merge_one = ADAPTERS[name].merge
    assert merge_one is not None
    params = merge_one(params, config)
  return dict(params)


def trained(adapters: Adapters) -> tuple[tuple[str, ...], ...]:
  """Patterns of what each adapter trains: its own, heads by name and `also_train`."""
  configs: Mapping[str, Any] = adapters
  return tuple((ADAPTERS[name].added, "(^|/)heads/", *config.also_train) for name, config in configs.items())


def frozen(adapters: Adapters) -> tuple[str, ...]:
  """Patterns of the parameters that an adapter leaves as they are: all but what it trains."""
  # One that is found where none of the others is; and none, where "." leaves nothing.
  return tuple(f"^(?!.*({'|'.join(patterns)}))" for patterns in trained(adapters) if "." not in patterns)
