"""Early exit of encoders: rows leave after the first layer whose head is sure, and the batch shrinks.

The layers run in a `lax.while_loop`, a few at a time. Between these chunks the rows that have left are removed from the
batch. Rules: Xin et al. 2020 (DeeBERT), entropy; Zhou et al. 2020 (PABEE), patience.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError, sharding
from t2t.inference import head_predictor, predictor
from t2t.inference.row_batches import Example
from t2t.models import exit_heads
from t2t.models.architecture import Batch
from t2t.models.auxiliary import Auxiliary
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.param_tree import Params


@dataclasses.dataclass(frozen=True)
class ExitRule:
  """Rule by which a row leaves.

  entropy: the row leaves when the entropy of the classes, in nats, is below it (DeeBERT); 0: never.
  patience: the row leaves when this number of layers in a row have agreed with the one before (PABEE); 0: never.
  tolerance: largest difference of two scores that agree; classes agree if they are equal.
  """

  entropy: float = 0.0
  patience: int = 0
  tolerance: float = 0.5

  @property
  def options(self) -> dict[str, float]:
    """Returns the options that select the rule, by name."""
    return {"exit_patience": self.patience} if self.patience else {"exit_entropy": self.entropy}

  def begin(self, rows: int, classes: int) -> dict[str, jax.Array]:
    """Returns the state of each row before the first layer."""
    return {
      "left": jnp.zeros(rows, bool),
      "layers": jnp.zeros(rows, jnp.int32),
      "agreed": jnp.zeros(rows, jnp.int32),
      "logits": jnp.zeros((rows, classes)),
    }

  def step(self, state: dict[str, jax.Array], logits: jax.Array, number: jax.Array | int) -> dict[str, jax.Array]:
    """Returns the state after a layer, with rows that leave.

    Args:
      state: see `begin`; logits are those of the last layer that a row has read.
      logits: of the layer's head, float32 [rows, classes].
      number: of the layer, from 1.
    """
    if self.patience:
      if logits.shape[-1] == 1:
        agrees = jnp.abs(logits - state["logits"])[:, 0] < self.tolerance
      else:
        agrees = jnp.argmax(logits, axis=-1) == jnp.argmax(state["logits"], axis=-1)
      agreed = jnp.where(agrees & (number > 1), state["agreed"] + 1, 0)
      leaves = agreed >= self.patience
    else:
      log_p = jax.nn.log_softmax(logits)
      agreed, leaves = state["agreed"], -jnp.sum(jnp.exp(log_p) * log_p, axis=-1) < self.entropy
    return self._kept(state, logits, number, leaves, agreed)

  def finish(self, state: dict[str, jax.Array], logits: jax.Array, number: int) -> dict[str, jax.Array]:
    """Returns the state after the last layer, which all remaining rows leave; see `step`."""
    return self._kept(state, logits, number, jnp.ones_like(state["left"]), state["agreed"])

  def _kept(self, state, logits, number, leaves, agreed):
    left = state["left"]
    new = {"left": left | leaves, "layers": number, "agreed": agreed, "logits": logits}
    return {name: jnp.where(left[:, None] if x.ndim == 2 else left, state[name], x) for name, x in _arrays(new, state)}


def _arrays(new: dict[str, Any], state: dict[str, jax.Array]):
  return ((name, jnp.broadcast_to(x, state[name].shape)) for name, x in new.items())


def rule_of(
  model: TransformerConfig, entropy: float, patience: int, *, head: HeadConfig | None = None, where: str = "--"
) -> ExitRule | None:
  """Returns the rule of two options, or None without them.

  Args:
    model: of the checkpoint.
    entropy, patience: the options; 0: not given.
    head: used for prediction, if known.
    where: precedes the options' names in messages.

  Raises:
    UserError: both are given, a value is out of range, or the model or the head has no exits.
  """
  if not entropy and not patience:
    return None
  name, value = ("exit_patience", patience) if patience else ("exit_entropy", entropy)
  if entropy and patience:
    raise UserError(
      f"{where}exit_entropy {entropy:g} and {where}exit_patience {patience} exclude each other. Leave one of them out."
    )
  if not model.exits:
    decodes = " A decoder keeps keys and values of all layers, so it cannot leave early." if model.is_generative else ""
    raise UserError(
      f"{where}{name} {value:g}: the model has no heads after its inner layers.{decodes} Leave it out, or train an "
      "encoder with --config.model.exits=True."
    )
  if head is not None and head.kind not in exit_heads.KINDS:
    raise UserError(
      f"{where}{name} {value:g} applies to heads of the kinds {' and '.join(exit_heads.KINDS)}, but {head.name!r} is a "
      f"{head.kind} head. Leave it out."
    )
  most = model.num_encoder_layers - 1
  if patience and not 1 <= patience <= most:
    raise UserError(
      f"{where}exit_patience {patience}: must be from 1 to {most}, because the model has {most + 1} layers. With "
      f"{most} no row leaves early."
    )
  if entropy and head is not None and head.kind == "score":
    raise UserError(
      f"{where}exit_entropy {entropy:g}: {head.name!r} predicts a number, which has no entropy. Give "
      f"{where}exit_patience."
    )
  largest = math.log(head.num_classes) if head is not None and head.kind == "class" else math.inf
  if entropy and not 0.0 < entropy <= largest:
    bound = "" if largest == math.inf else f" and at most {largest:.3f}, the entropy of equal probabilities"
    raise UserError(f"{where}exit_entropy {entropy:g}: must be above 0{bound}.")
  return ExitRule(entropy, patience)


def _check(config: TransformerConfig, exits: tuple[float, int], where: str, head: HeadConfig) -> None:
  rule_of(config, *exits, head=head, where=where)


class ExitAnswerer(head_predictor.Answerer):
  """Computes the logits of a head at the layer that each row leaves; see `head_predictor.Answerer`.

  After a call of `logits`, `layers` has the number of layers of each row, in the order of the examples.

  Args:
    config, graphdef, mesh, options: see `head_predictor.Answerer`.
    exits: entropy and patience, see `rule_of`.
    where: precedes the options' names in messages.
    chunk: layers between two removals of rows; 0: a sixth of the layers.

  Raises:
    UserError: see `rule_of`.
  """

  def __init__(
    self,
    config: TransformerConfig,
    graphdef: nnx.GraphDef,
    mesh: jax.sharding.Mesh,
    *,
    exits: tuple[float, int],
    where: str = "--",
    chunk: int = 0,
    **options: Any,
  ):
    rule = rule_of(config, *exits, where=where)
    assert rule is not None
    super().__init__(config, graphdef, mesh, **options)
    self._rule, self._num_layers = rule, config.num_encoder_layers
    self.check = functools.partial(_check, config, exits, where)
    self._chunk = chunk or max(1, config.num_encoder_layers // 6)
    self._shards = sharding.num_shards("batch", mesh)

  def logits(
    self, params: Params, head: HeadConfig, examples: Sequence[Example], *, on_batch: Callable | None = None
  ) -> list[np.ndarray]:
    row_logits: list[np.ndarray] = [np.zeros(0)] * len(examples)
    self.layers = [0] * len(examples)
    program = functools.partial(self._run_early, head)
    for indices, (logits, layers) in self.run(program, params, head, examples, on_batch=on_batch):
      for i, row, used in zip(indices, logits, layers, strict=False):
        if not np.isfinite(row).all():
          raise UserError(f"--checkpoint: head {head.name} produced NaN or Inf; use a different checkpoint")
        row_logits[i], self.layers[i] = row[None], int(used)
    return row_logits

  @functools.cached_property
  def _programs_of_chunks(self) -> dict[str, Callable]:
    """Programs by name; each is compiled once for every number of rows and length."""
    return {
      "begin": jax.jit(self._begin, static_argnums=0),
      "chunk": jax.jit(self._run_chunk, static_argnums=0),
      "take": jax.jit(_take),
    }

  def _run_early(self, head: HeadConfig, params: Params, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits and layers of each row of a batch, on the host; removes rows that have left between chunks."""
    programs, places = self._programs_of_chunks, np.arange(next(iter(batch.values())).shape[0])
    logits = np.zeros((len(places), head.num_classes), np.float32)
    layers = np.zeros(len(places), np.int32)
    x, state = programs["begin"](head.num_classes, params, batch)
    first = jnp.zeros((), jnp.int32)
    while True:
      x, state, first = programs["chunk"](head.name, params, batch, x, state, first)
      host = jax.tree.map(predictor.gathered, {name: state[name] for name in ("left", "logits", "layers")})
      is_new = host["left"] & (places >= 0)
      logits[places[is_new]], layers[places[is_new]] = host["logits"][is_new], host["layers"][is_new]
      places = np.where(is_new, -1, places)
      remaining = np.flatnonzero(places >= 0)
      if not len(remaining):
        return logits, layers
      rows = self._rows_for(len(remaining))
      if rows < len(places):
        # Rows that fill the smaller batch have left already.
        filled = np.concatenate([remaining, np.repeat(np.flatnonzero(places < 0)[:1], rows - len(remaining))])
        places = places[filled]
        batch, x, state = programs["take"]((batch, x, state), jnp.asarray(filled))

  def _rows_for(self, number: int) -> int:
    """Returns the number of rows of a batch with `number` rows: a power of two for each shard."""
    return self._shards * 2 ** max(0, math.ceil(math.log2(number / self._shards)))

  def _begin(self, classes: int, params: Params, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    model: Any = nnx.merge(self.graphdef, params)
    embedded: list[jax.Array] = []

    def no_layer(run: Callable, x: jax.Array, layer_inputs: Any):
      del run, layer_inputs
      embedded.append(x)
      return x, (None, None, Auxiliary())

    model.run_layers(batch, None, no_layer)
    return embedded[0], self._rule.begin(embedded[0].shape[0], classes)

  def _run_chunk(self, name, params, batch, x, state, first):
    """Runs layers from `first`, at most `_chunk`, until all rows have left; returns states, rows' states and the next.

    Returns:
      Hidden states, the state of the rows, and the index of the next layer, all on the devices.
    """
    model: Any = nnx.merge(self.graphdef, params)
    head, last = model.heads[name], self._num_layers - 1
    at = jnp.argmax(batch[f"{self._side}_answer_heads"] > 0, axis=1)
    end = jnp.minimum(first + self._chunk, self._num_layers)
    results: list[Any] = []

    def loop(run: Callable, x: jax.Array, layer_inputs: Any):
      pick = lambda index: jax.tree.map(lambda v: jax.lax.dynamic_index_in_dim(v, index, keepdims=False), layer_inputs)

      def body(carry):
        index, x, state = carry
        x = run(x, pick(index))[0]
        exit_logits = exit_heads.row_logits(head.exits.at(jnp.minimum(index, last - 1)), model.of_text(x), batch, at)
        stepped = self._rule.step(state, exit_logits, index + 1)
        state = jax.tree.map(lambda new, old: jnp.where(index < last, new, old), stepped, state)
        return index + 1, x, state

      results.append(
        jax.lax.while_loop(lambda carry: (carry[0] < end) & ~jnp.all(carry[2]["left"]), body, (first, x, state))
      )
      return results[0][1], (None, None, Auxiliary())

    normed = model.run_layers(batch, x, loop)
    index, x, state = results[0]
    finished = self._rule.finish(state, exit_heads.row_logits(head, model.of_text(normed), batch, at), last + 1)
    state = jax.tree.map(lambda new, old: jnp.where(index > last, new, old), finished, state)
    return x, state, index


def _take(tree: Any, indices: jax.Array) -> Any:
  """Returns some rows of each array of a tree."""
  return jax.tree.map(lambda x: sharding.shard(x[indices], "batch", *[None] * (x.ndim - 1)), tree)


# ---- All exits -------------------------------------------------------------------------------------------------------


def all_logits(graphdef: nnx.GraphDef, name: str, params: Params, batch: Batch) -> jax.Array:
  """Returns the logits of a head after every layer, float32 [batch, layers, classes]."""
  model: Any = nnx.merge(graphdef, params)
  head = model.heads[name]
  side = model.architecture.answers
  at = jnp.argmax(batch[f"{side}_answer_heads"] > 0, axis=1)
  states = model.states(batch, every_layer=True)
  take = lambda x: jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]
  inner = jax.vmap(take)(head.exits.logits(states, batch))
  return jnp.moveaxis(jnp.concatenate([inner, exit_heads.row_logits(head, states[-1], batch, at)[None]]), 0, 1)


def program_of(graphdef: nnx.GraphDef, head: HeadConfig) -> Callable[[Params, Batch], jax.Array]:
  """Returns the compiled `all_logits` of a head.

  Raises:
    UserError: the head has no exits.
  """
  if head.kind not in exit_heads.KINDS:
    raise UserError(
      f"head {head.name!r} is a {head.kind} head and has no exits. Name another task in config.eval.tasks."
    )
  return jax.jit(functools.partial(all_logits, graphdef, head.name))


def of_examples(
  answerer: head_predictor.Answerer, params: Params, head: HeadConfig, examples: Sequence[Example]
) -> np.ndarray:
  """Returns the logits of a head after every layer, float32 [examples, layers, classes]; see `program_of`."""
  of_rows: list[Any] = [None] * len(examples)
  for indices, logits in answerer.run(program_of(answerer.graphdef, head), params, head, examples):
    for i, row in zip(indices, logits, strict=False):
      of_rows[i] = row
  return np.stack(of_rows)


def replayed(rule: ExitRule, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the number of layers and the logits of each row under a rule.

  Args:
    rule: by which rows leave.
    logits: of each layer, float32 [rows, layers, classes]; see `all_logits`.

  Returns:
    int32 [rows], float32 [rows, classes].
  """
  rows, num_layers, classes = logits.shape
  state = rule.begin(rows, classes)
  for index in range(num_layers - 1):
    state = rule.step(state, jnp.asarray(logits[:, index]), index + 1)
  state = rule.finish(state, jnp.asarray(logits[:, -1]), num_layers)
  return np.asarray(state["layers"]), np.asarray(state["logits"])
