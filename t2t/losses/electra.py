"""ELECTRA (Clark et al. 2020): a small generator replaces tokens, and the model predicts which tokens were replaced.

One step trains both models; replacements are sampled on the device from the generator's softmax.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.configuration.schema import Config
from t2t.losses.auxiliary_terms import AuxiliaryTerms
from t2t.losses.cross_entropy import CrossEntropyConfig, token_sums, uniform
from t2t.losses.protocol import Baseline, LogitsFn, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers
from t2t.models.architecture import Batch, real_positions
from t2t.models.auxiliary import Hidden
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.head_config import HeadConfig
from t2t.models.heads import VocabularyHead
from t2t.models.stack import Stack
from t2t.models.transformer import EncoderOnly

HEAD = "replaced"  # name of the discriminator's head
PREDICTS, POSITIONS = ("replaced", "tokens"), ("all", "masked")


@dataclasses.dataclass(frozen=True)
class ElectraConfig:
  """Settings of ELECTRA's generator and of the discriminator's task: `config.electra`.

  Default sizes of the generator are for the base model. The ablations of Clark et al. 2020, section 3.4, are
  "ELECTRA 15%": positions=masked; "replace MLM": predicts=tokens and positions=masked; "all-tokens MLM", without its
  copy mechanism: predicts=tokens.
  """

  embed_dim: int = 256  # width of the generator
  num_heads: int = 4  # attention heads of the generator, each as wide as the discriminator's
  mlp_dim: int = 1024  # feed-forward width of the generator
  num_layers: int = 12  # layers of the generator
  generator_weight: float = 1.0  # weight of the generator's loss, a mean over masked tokens
  discriminator_weight: float = 50.0  # weight of the discriminator's loss, a mean over its predicted tokens
  share_embeddings: bool = True  # share embeddings of tokens, positions and segments between both models
  predicts: str = "replaced"  # task of the discriminator: replaced, yes or no per token; tokens, the original
  positions: str = "all"  # tokens that the discriminator predicts: all, or masked
  mask_decoder: bool = False  # generator with disentangled positions: an enhanced mask decoder (DeBERTa v3)


def generator_config(model: TransformerConfig, electra: ElectraConfig) -> TransformerConfig:
  """Returns the config of the generator: the discriminator's, with the sizes of `config.electra`."""
  for field, value in (("block", "transformer"), ("embedding", "tokens")):
    if getattr(model, field) != value:
      raise UserError(
        f"config.model.{field}={getattr(model, field)}: ELECTRA's generator needs config.model.{field}={value}"
      )
  width = model.embedding_width
  return dataclasses.replace(
    model,
    embed_dim=electra.embed_dim,
    num_heads=electra.num_heads,
    num_kv_heads=0,
    mlp_dim=electra.mlp_dim,
    num_encoder_layers=electra.num_layers,
    embedding_dim=0 if width == electra.embed_dim else width,
    output_embedding_dim=0,
    tied_logits=True,
    logits_transform=True,
    vocabulary_head=True,
    embedding_difference=False,
    absolute_positions="mask_decoder" if electra.mask_decoder else model.absolute_positions,
    heads=(),
  )


class Generator(nnx.Module):
  """A masked language model with its own embedding, or the embedding of the discriminator.

  With `shares_table` only the token table is the discriminator's, and only the generator's loss trains it, because the
  discriminator adds a difference to it: gradient-disentangled embedding sharing (He et al. 2023, section 3.3).
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, shares_embeddings: bool, shares_table: bool):
    self.gradient_dtype = config.gradient_dtype
    self.shares_table = shares_table
    self.embed = None if shares_embeddings else layers.Embed(config, rngs, owns_table=not shares_table)
    projects = shares_embeddings and config.embedding_dim
    shape, axes = (config.embedding_dim, config.embed_dim), ("factor", None)
    self.projection = layers.param(rngs, shape, axes, scale=layers.fan_in_scale(config, shape[0])) if projects else None
    self.projection_bias = layers.bias(config, config.embed_dim, "embed") if projects else None
    self.encoder = Stack(config, rngs, num_layers=config.num_encoder_layers, causal=False)
    self.head = VocabularyHead(config, rngs)

  def hidden(self, batch: Batch, discriminator: EncoderOnly, *, dropout_key: jax.Array | None) -> Hidden:
    """Returns hidden states, [batch, length, embed], with auxiliary outputs."""
    if self.embed is not None:
      table = discriminator.embed.table if self.shares_table else None
      x = self.embed.project(discriminator.look_up(batch, embed=self.embed, table=table))
    else:
      x = discriminator.look_up(batch)
      if self.projection is not None:
        x = layers.dense(x, self.projection, self.projection_bias, gradient_dtype=self.gradient_dtype)
    return discriminator.read(x, batch, encoder=self.encoder, predicts=True, dropout_key=dropout_key)

  def logits_fn(self, embed: layers.Embed) -> LogitsFn:
    """Returns the function from [..., embed] to float32 logits [..., vocab]."""
    return self.head.logits_fn(embed if self.embed is None or self.shares_table else self.embed)


class Pair(nnx.Module):
  """Generator and discriminator; `hidden` and `logits` are the generator's.

  A shared embedding belongs to the discriminator, the part that is kept; it is passed to the generator.
  """

  def __init__(self, config: TransformerConfig, electra: ElectraConfig, rngs: nnx.Rngs):
    self.discriminator = EncoderOnly(config, rngs)
    shares = {
      "shares_embeddings": electra.share_embeddings and not config.embedding_difference,
      "shares_table": electra.share_embeddings and config.embedding_difference,
    }
    self.generator = Generator(generator_config(config, electra), rngs, **shares)

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns the generator's hidden states."""
    return self.hidden(batch, dropout_key=dropout_key).x

  def hidden(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> Hidden:
    """Returns the generator's hidden states, with auxiliary outputs."""
    return self.generator.hidden(batch, self.discriminator, dropout_key=dropout_key)

  def logits_fn(self) -> LogitsFn:
    """Returns the generator's `logits_fn`."""
    return self.generator.logits_fn(self.discriminator.embed)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Returns the generator's logits, float32 [batch, length, vocab]."""
    return sharding.shard(self.logits_fn()(hidden), "batch", "length", "vocab")


@dataclasses.dataclass(frozen=True)
class Electra:
  """The loss of ELECTRA: a generator term over masked tokens and a discriminator term over real tokens.

  Auxiliary terms of the discriminator's layers keep their names; the generator's are called generator_NAME.
  Metrics: loss and accuracy (discriminator), generator_loss, generator_accuracy, replaced (fraction of real tokens).
  """

  config: ElectraConfig
  tokens: CrossEntropyConfig
  auxiliary: AuxiliaryTerms = AuxiliaryTerms()
  supports_microbatching: ClassVar[bool] = True
  unit: ClassVar[str] = "nats per token, for replaced or original"
  part: ClassVar[str] = "discriminator"  # the generator is discarded after training

  @property
  def heads(self) -> tuple[str, ...]:
    return (HEAD,) if self.config.predicts == "replaced" else ()

  @classmethod
  def from_config(cls, run: Config) -> "Electra":
    """Builds the loss of a run.

    Raises:
      UserError: the model does not fit the loss, or the generator is larger than the discriminator.
    """
    model, electra, train = run.model, run.electra, run.train
    if electra is None:
      raise UserError(
        "config.train.loss=electra: config.electra is missing. Start from a config such as electra_small."
      )
    if model.kind.is_generative:
      raise UserError(
        "config.train.loss=electra needs a bidirectional encoder, but "
        f"config.model.architecture={model.architecture}. Give encoder_only."
      )
    for key, known in (("predicts", PREDICTS), ("positions", POSITIONS)):
      if getattr(electra, key) not in known:
        raise UserError(
          f"config.electra.{key}={getattr(electra, key)}: unknown value. Known values: {', '.join(known)}"
        )
    sizes = {
      "embed_dim": "embed_dim",
      "num_heads": "num_heads",
      "mlp_dim": "mlp_dim",
      "num_layers": "num_encoder_layers",
    }
    for key, theirs in sizes.items():
      if not 0 < getattr(electra, key) <= getattr(model, theirs):
        raise UserError(
          f"config.electra.{key}={getattr(electra, key)}: must be from 1 to the discriminator's "
          f"config.model.{theirs}={getattr(model, theirs)}. The paper uses a quarter to a half of this value."
        )
    if model.absolute_positions == "mask_decoder":
      raise UserError(
        "config.model.absolute_positions=mask_decoder needs vocabulary logits, which config.train.loss=electra trains "
        "only in the generator. Set config.model.absolute_positions='' and config.electra.mask_decoder=True."
      )
    if electra.mask_decoder and not (model.positions == "disentangled" and model.max_length):
      raise UserError(
        f"config.electra.mask_decoder=True needs config.model.positions=disentangled and config.model.max_length, not "
        f"{model.positions} and {model.max_length}. Set these keys, or config.electra.mask_decoder=False."
      )
    if model.embedding_difference and not (electra.share_embeddings and electra.predicts == "replaced"):
      raise UserError(
        "config.model.embedding_difference=True needs config.electra.share_embeddings=True and "
        f"config.electra.predicts=replaced, not {electra.share_embeddings} and {electra.predicts}. Set these keys, or "
        "config.model.embedding_difference=False."
      )
    if electra.predicts == "replaced" and HeadConfig(HEAD, 1, "detector") not in model.heads:
      listing = ", ".join(f"{head.name} ({head.kind}, {head.num_classes})" for head in model.heads) or "none"
      raise UserError(
        f"config.train.loss=electra needs a detector {HEAD!r} with one score, but config.model.heads has {listing}. "
        f'Give config.model.heads={{"name": "{HEAD}", "kind": "detector", "num_classes": 1}}.'
      )
    tokens = CrossEntropyConfig(train.z_loss, train.label_smoothing, train.logits_chunk_tokens)
    return cls(electra, tokens, AuxiliaryTerms.from_config(run, only_states=False))

  @property
  def _generator_auxiliary(self) -> AuxiliaryTerms:
    model = self.auxiliary.model and generator_config(self.auxiliary.model, self.config)
    return dataclasses.replace(self.auxiliary, model=model, prompt=0, prefix="generator_")

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Builds generator and discriminator."""
    return Pair(config, self.config, rngs)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    """Returns no patterns: every parameter but unused heads is trained."""
    del model
    return ()

  def _asked(self, batch: Batch) -> jax.Array:
    """Returns the weights of positions that the discriminator predicts, float32 [batch, length]."""
    if self.config.positions == "masked":
      return batch["encoder_loss_weights"].astype(jnp.float32)
    return real_positions(batch, "encoder").astype(jnp.float32)

  def weights(self, batch: Batch) -> Weights:
    """Returns the numbers of masked tokens and of tokens that the discriminator predicts."""
    masked = jnp.sum(batch["encoder_loss_weights"].astype(jnp.float32))
    counts = {"generator": masked, "discriminator": jnp.sum(self._asked(batch))}
    return counts | self.auxiliary.weights(batch) | self._generator_auxiliary.weights(batch)

  def __call__(
    self, module: Pair, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    assert key is not None  # evaluation samples tokens, too
    draw, *keys = jax.random.split(key, 3)
    generator_key, discriminator_key = keys if train else (None, None)
    tokens = self.tokens if train else dataclasses.replace(self.tokens, label_smoothing=0.0)
    masked, targets = batch["encoder_loss_weights"].astype(jnp.float32), batch["encoder_target_tokens"]
    real = real_positions(batch, "encoder")

    # ---- The generator -----------------------------------------------------------------------------------------------
    hidden = module.hidden(batch, dropout_key=generator_key)
    summed, sums, drawn = token_sums(tokens, module.logits_fn(), hidden.x, targets, masked, sparse=True, draw=draw)
    generator = self.config.generator_weight * summed / jnp.maximum(weights["generator"], 1.0)

    # ---- The discriminator -------------------------------------------------------------------------------------------
    assert drawn is not None  # because of `draw`
    corrupted = jnp.where(masked > 0, drawn, targets)
    replaced = (corrupted != targets).astype(jnp.float32)
    position_weights = self._asked(batch)
    # Segments mark real positions even if a sampled token has the id of padding.
    segments = batch.get("encoder_segment_ids", real.astype(jnp.int32))
    changed = dict(batch) | {"encoder_input_tokens": corrupted, "encoder_segment_ids": segments}
    read = module.discriminator.hidden_states(changed, dropout_key=discriminator_key)
    seen = read.x
    if self.config.predicts == "replaced":
      scores = module.discriminator.head_logits(HEAD, seen)[..., 0]
      summed = jnp.sum(position_weights * (jax.nn.softplus(scores) - replaced * scores))
      # A score of 0 is a tie.
      says = jnp.where(scores == 0, 0.5, (scores > 0) == (replaced > 0))
      loss, right = summed, jnp.sum(position_weights * says)
    else:
      logits_fn = module.discriminator.logits_fn()
      sparse = self.config.positions == "masked"
      summed, (loss, _, right), _ = token_sums(tokens, logits_fn, seen, targets, position_weights, sparse=sparse)
    discriminator = self.config.discriminator_weight * summed / jnp.maximum(weights["discriminator"], 1.0)

    number = jnp.sum(position_weights)
    metrics = {
      "loss": WeightedSum(loss, number),
      "accuracy": WeightedSum(right, number),
      "generator_loss": WeightedSum(sums[0], jnp.sum(masked)),
      "generator_accuracy": WeightedSum(sums[2], jnp.sum(masked)),
      "replaced": WeightedSum(jnp.sum(replaced), jnp.sum(real.astype(jnp.float32))),
    }
    terms = {"generator": generator, "discriminator": discriminator}
    terms, metrics = self._generator_auxiliary.joined(terms, metrics, hidden.aux, batch, weights)
    return self.auxiliary.joined(terms, metrics, read.aux, batch, weights)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns FLOPs of both models; the generator computes logits of masked tokens only."""
    discriminator_share = {"replaced": 0.0, "tokens": 1.0 if self.config.positions == "all" else predicted}[
      self.config.predicts
    ]
    both = ((config, discriminator_share), (generator_config(config, self.config), predicted))
    return sum(model_flops(model, batch_size=batch_size, lengths=lengths, predicted=share) for model, share in both)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    """Returns the loss of predicting the rate of masked tokens; [] if the discriminator predicts tokens."""
    del vocab_size
    if self.config.predicts == "tokens":
      return []
    weights = [self.weights(batch) for batch in batches]
    share = float(sum(w["generator"] for w in weights)) / max(float(sum(w["discriminator"] for w in weights)), 1.0)
    return [Baseline("constant", _entropy(share), "predicts the rate of masked tokens for every token", cause=_CAUSE)]

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    """Returns losses of constant outputs, see `Loss`: equal scores of all tokens, or equal probabilities."""
    del batch_size
    baselines = {"generator_loss": uniform(vocab_size)}
    if self.config.predicts == "tokens":
      return baselines | {"loss": uniform(vocab_size)}
    # The metric `replaced` is over all real tokens, so it does not apply to masked positions alone.
    if self.config.positions == "all":
      knows = "predicts the rate of replaced tokens for every token"
      baselines["loss"] = Baseline("constant", _entropy(values.get("replaced", 0.0)), knows, cause=_CAUSE)
    return baselines


_CAUSE = (
  "the discriminator gives every token the same score; give a lower config.optimizer.learning_rate, a longer "
  "warm-up, or a smaller generator (config.electra.embed_dim)"
)


def _entropy(share: float) -> float:
  share = min(max(share, 1e-6), 0.5)
  return -share * math.log(share) - (1 - share) * math.log(1 - share)
