"""Heads on a model's hidden states: the vocabulary head, and the registry of named heads."""

from collections.abc import Callable
import dataclasses
import functools
import importlib
from typing import Any, Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.models import cpu_ops, layers
from t2t.models.config import TransformerConfig
from t2t.models.head_config import HeadConfig
from t2t.runtime import lazy_table


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _against(hidden: jax.Array, table: jax.Array, axes: str) -> jax.Array:
  """Returns float32 [..., vocab] of hidden states [..., embed] and a table, by the axes of an einsum.

  Its gradients are products in the operands' dtype, because TPUs round operands anyway. GPUs would multiply in TF32 at
  a third of the speed, which took a quarter of a step of GPT-2 small on an H200.
  """
  return jnp.einsum(axes, hidden, table, preferred_element_type=jnp.float32)


def _against_forward(hidden, table, axes):
  return _against(hidden, table, axes), (hidden, table)


def _against_backward(axes, residuals, cotangent):
  hidden, table = residuals
  cotangent, leading = cotangent.astype(hidden.dtype), tuple(range(hidden.ndim - 1))
  is_table = axes.split("->")[0].endswith("ve")
  over = lambda left, right, dims: jax.lax.dot_general(left, right, (dims, ((), ())))
  d_hidden = over(cotangent, table, ((hidden.ndim - 1,), (0 if is_table else 1,)))
  pair = (cotangent, hidden) if is_table else (hidden, cotangent)
  return d_hidden.astype(hidden.dtype), over(*pair, (leading, leading)).astype(table.dtype)


_against.defvjp(_against_forward, _against_backward)


@dataclasses.dataclass(frozen=True)
class Logits:
  """Function of a head's weights; compared by value, as required of the static part of a pytree."""

  activation: str
  norm_epsilon: float
  norm: str
  scale: float
  softcap: float

  def __call__(self, weights: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
    """Maps [..., embed] to float32 [..., vocab]."""
    if "transform" in weights:
      hidden = self.transformed(weights, hidden)
    hidden = hidden * self.scale
    if "int8_scale" in weights:
      logits = lazy_table.load("t2t.models.int8_matrix:product")(hidden, weights["projection"], weights["int8_scale"])
    elif hidden.dtype == jnp.bfloat16 and cpu_ops.is_fast(hidden):
      kernel = weights["table"].T if "table" in weights else weights["projection"]
      logits = cpu_ops.dense(hidden, kernel, jnp.float32)
    elif "table" in weights:
      logits = _against(hidden, weights["table"], "...e,ve->...v")
    else:
      logits = _against(hidden, weights["projection"], "...e,ev->...v")
    logits = logits if "bias" not in weights else logits + weights["bias"]
    return layers.softcap(logits, self.softcap)

  def transformed(self, weights: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
    """Applies a dense layer, activation and norm, in the dtype of `hidden`."""
    x = jnp.einsum("...e,ef->...f", hidden, weights["transform"])
    if "transform_bias" in weights:
      x = x + weights["transform_bias"].astype(x.dtype)
    x = layers.ACTIVATIONS[self.activation](x).astype(jnp.float32)
    return layers.normalise(
      x, weights["norm_scale"], weights.get("norm_bias"), kind=self.norm, epsilon=self.norm_epsilon
    ).astype(hidden.dtype)


def gathered(parameter: nnx.Param, dtype: str = "float32") -> jax.Array:
  """Returns a parameter cast to `dtype` and gathered, see `sharding.gather`."""
  return sharding.gather(parameter[...].astype(dtype), tuple(parameter.get_metadata()["axes"]))


def transform_weights(
  config: TransformerConfig, kernel: nnx.Param, bias: nnx.Param | None, norm: layers.Norm
) -> dict[str, jax.Array]:
  """Returns the weights of `Logits.transformed`."""
  weights = {"transform": gathered(kernel, config.dtype), "norm_scale": gathered(norm.scale)}
  if config.norm_offset:
    weights["norm_scale"] = 1.0 + weights["norm_scale"]
  for name, parameter in (("transform_bias", bias), ("norm_bias", norm.bias)):
    if parameter is not None:
      weights[name] = gathered(parameter)
  return weights


class VocabularyHead(nnx.Module):
  """Logits over the vocabulary: a product of hidden states with the embedding if tied, else with a projection.

  With `config.logits_transform`, a dense layer, activation and norm come before, and a bias after (BERT). With
  `config.logits_bias` there is only the bias.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
    self.config = config
    width, tied = config.logits_width, config.embedding_width if config.tied_logits else 0
    if config.output_embedding_dim and not ((config.logits_transform or width == config.embed_dim) and width > tied):
      raise UserError(
        f"config.model.output_embedding_dim={width} needs config.model.logits_transform=True, and with tied logits a "
        f"width above {config.embedding_width}, the embedding's. Set 0, or without a transform {config.embed_dim}."
      )
    axis = "embed" if width == config.embed_dim else "factor"
    scale, rows = layers.fan_in_scale(config, config.embed_dim), config.vocab_size
    self.projection = None if config.tied_logits else layers.param(rngs, (width, rows), (axis, "vocab"), scale=scale)
    # Features of the output embedding beyond those of a tied embedding (Sun et al. 2020, and their code).
    has_table = config.tied_logits and width > tied
    self.table = layers.param(rngs, (rows, width - tied), ("vocab", "factor"), scale=scale) if has_table else None
    if config.logits_transform:
      self.transform = layers.param(rngs, (config.embed_dim, width), ("embed", None), scale=scale)
      self.transform_bias = layers.bias(config, width, axis)
      self.norm = layers.Norm(config, width, axis=axis, kind=config.logits_norm)
    if config.logits_transform or config.logits_bias:
      self.bias = nnx.Param(jnp.zeros(rows, jnp.float32), axes=("vocab",))

  def logits_fn(self, embed: layers.Embed) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from [..., embed] to float32 logits [..., vocab], a pytree with its weights.

    The weights are gathered and cast once for all calls of the function.
    """
    config = self.config
    weights_of = lambda parameter, axis: gathered(parameter, config.dtype)
    if config.fake_quantization:
      rounded = layers.FAKE_QUANTIZATION["weight"]
      weights_of = lambda parameter, axis: rounded(gathered(parameter), axis).astype(config.dtype)
    stored: Any = embed.table if config.tied_logits else self.projection
    if not isinstance(stored, nnx.Param):
      weights = stored.logits_weights()
    elif config.tied_logits:
      table = weights_of(stored, -1)
      beyond = [] if self.table is None else [gathered(self.table, config.dtype)]
      weights = {"table": jnp.concatenate([table, *beyond], axis=1) if beyond else table}
    else:
      weights = {"projection": weights_of(stored, 0)}
    if config.logits_transform:
      weights |= transform_weights(config, self.transform, self.transform_bias, self.norm)
    if config.logits_transform or config.logits_bias:
      weights["bias"] = gathered(self.bias)
    # T5's scale, because its embedding has standard deviation 1.
    scale = config.embed_dim**-0.5 if config.tied_logits and not config.init_scale else 1.0
    function = Logits(
      config.mlp_activation, config.norm_epsilon, config.logits_norm or config.norm, scale, config.logits_softcap
    )
    return jax.tree_util.Partial(function, weights)


def of_tokens(logits_fn: jax.tree_util.Partial, ids: jax.Array) -> jax.tree_util.Partial:
  """Returns the function of `VocabularyHead.logits_fn` for some tokens: [..., embed] -> float32 [..., ids]."""
  axes = {"table": 0, "projection": 1, "int8_scale": 0, "bias": 0}
  weights = {name: jnp.take(x, ids, axes[name]) if name in axes else x for name, x in logits_fn.args[0].items()}
  return jax.tree_util.Partial(logits_fn.func, weights)


# ---- Named heads -----------------------------------------------------------------------------------------------------


class Head(Protocol):
  """A named head of a model; its parameters are under heads/NAME.

  reads: states that it reads: "first" or "last" position of each text, their "mean", "concat" (last, maximum and mean),
    "each", two "spans", or the "boundaries" of a span; the latter has `logits_fn` instead, see
    `task_heads.BoundaryHead`.
  layers: "last", or "mix": a weighted sum of all layers' states.
  """

  reads: str
  layers: str

  def __call__(self, hidden: jax.Array, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Maps [..., embed] to float32 [..., classes]; with layers="mix", [layers + 1, ..., embed]."""


# kind -> class; imported when a model has such a head
HEADS: lazy_table.LazyTable[Callable[[TransformerConfig, HeadConfig, nnx.Rngs], Head]] = lazy_table.LazyTable(
  {
    "class": "t2t.models.task_heads:AnswerHead",
    "score": "t2t.models.task_heads:AnswerHead",
    "choice": "t2t.models.task_heads:AnswerHead",
    "tag": "t2t.models.task_heads:AnswerHead",
    "crf": "t2t.models.crf:CrfHead",
    "span": "t2t.models.task_heads:AnswerHead",
    "span_pair": "t2t.models.span_pair:SpanPairHead",
    "cloze": "t2t.models.task_heads:ClozeHead",
    "vector": "t2t.models.task_heads:AnswerHead",
    "detector": "t2t.models.task_heads:DetectorHead",
    "boundary": "t2t.models.task_heads:BoundaryHead",
  }
)


def build(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Dict:
  """Returns the named heads of a model; boundary heads read the predicted side, the others the inputs."""
  side = lambda head: config.kind.predicts if head.kind == "boundary" else config.kind.answers
  built = nnx.Dict({head.name: HEADS[head.kind](config.of_stack(side(head)), head, rngs) for head in config.heads})
  if config.exits:
    exit_heads: Any = importlib.import_module("t2t.models.exit_heads")  # few models have exits

    exit_heads.check(config)
    for head in config.heads:
      if head.kind in exit_heads.KINDS:
        with_exits: Any = built[head.name]
        with_exits.exits = exit_heads.Exits(config, head, rngs)
  return built
