"""ADAPET: decoupled label losses and label conditioning for templates (Tam et al. 2021)."""

import dataclasses

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.losses.head_losses import HeadLosses, HeadTargets, asked_of
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import transformer
from t2t.models.architecture import Batch, real_positions
from t2t.models.auxiliary import Hidden
from t2t.models.head_config import HeadConfig


@dataclasses.dataclass(frozen=True)
class AdapetConfig:
  """Settings of ADAPET, config.adapet."""

  mask_rate: float = 0.105  # share of the tokens that label conditioning masks; the authors' code
  conditioning_weight: float = 1.0  # factor of label conditioning


@dataclasses.dataclass(frozen=True)
class Adapet(HeadLosses):
  """Terms of cloze heads: NAME, the decoupled label loss, and NAME_conditioning.

  With q, the softmax of a masked token over the whole vocabulary, the label loss is -log q(right word) - sum of log(1 -
  q(wrong word)), so that the words of labels do not only compete with each other. Label conditioning fills the blank
  with the word of a label drawn at random, masks other tokens, and predicts them if the label is right; if it is wrong,
  they become less likely. Evaluation has the loss of cloze heads alone.
  """

  settings: AdapetConfig = AdapetConfig()

  @classmethod
  def from_config(cls, run: Config) -> "Adapet":
    """Builds the loss of a run.

    Raises:
      UserError: a head has no words, rows have several examples, or a setting is out of range.
    """
    base, settings = HeadLosses.from_config(run), run.adapet or AdapetConfig()
    check_cloze(base, run, loss="adapet")
    if not 0.0 < settings.mask_rate < 1.0:
      raise UserError(f"config.adapet.mask_rate={settings.mask_rate}: must be above 0 and below 1")
    if not 0.0 <= settings.conditioning_weight < float("inf"):
      raise UserError(f"config.adapet.conditioning_weight={settings.conditioning_weight}: must be at least 0")
    return cls(base.config, None, base.auxiliary, settings=settings)

  def __call__(
    self, module: transformer.Transformer, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    if not train:
      return super().__call__(module, batch, weights, key=key, train=False)
    assert key is not None
    first_key, drawn_key, second_key = jax.random.split(key, 3)
    outputs, logits = self.predict(module, batch, dropout_key=first_key)
    terms, metrics = self.of_logits(module, outputs, logits, batch, weights, train=True)
    of_heads: dict[str, WeightedSum] = {}
    for number, head in self._asked:
      head_targets = asked_of(batch, number)
      summed = jnp.sum(self.label_loss(module, outputs, logits[head.name], head_targets))
      terms[head.name] = summed / jnp.maximum(weights[head.name], 1e-8)
      conditioned = jnp.sum(self.conditioning(module, batch, head, head_targets, drawn_key, dropout_key=second_key))
      total = jnp.maximum(weights["examples"], 1.0)
      terms[f"{head.name}_conditioning"] = self.settings.conditioning_weight * conditioned / total
      examples = jnp.sum(jnp.any(head_targets.at, axis=1).astype(jnp.float32))
      of_heads[f"{head.name}_label"] = WeightedSum(summed, examples)
      of_heads[f"{head.name}_conditioning"] = WeightedSum(conditioned, examples)
    return terms, {**metrics, **of_heads}

  def label_loss(
    self, module: transformer.Transformer, outputs: Hidden, logits: jax.Array, head_targets: HeadTargets
  ) -> jax.Array:
    """Returns the decoupled label loss of each row, float32 [batch]; 0 in a row without an answer.

    Args:
      module: the model.
      outputs: of `predict`.
      logits: of the words at every position, float32 [batch, length, classes].
      head_targets: at most one label a row.
    """
    hidden = outputs.x if outputs.x.ndim == 3 else outputs.x[-1]
    has_label, blank = jnp.any(head_targets.at, axis=1), jnp.argmax(head_targets.at, axis=1)
    at_blank = lambda x: jnp.take_along_axis(x, blank[:, None, None], axis=1)[:, 0]
    log_q = at_blank(logits) - jax.nn.logsumexp(module.logits_fn()(at_blank(hidden)), axis=-1)[:, None]
    label = jnp.take_along_axis(head_targets.targets, blank[:, None], axis=1)
    is_right = label == jnp.arange(log_q.shape[-1])
    return jnp.where(has_label, -jnp.sum(jnp.where(is_right, log_q, log_of_rest(log_q)), axis=-1), 0.0)

  def conditioning(
    self,
    module: transformer.Transformer,
    batch: Batch,
    head: HeadConfig,
    head_targets: HeadTargets,
    key: jax.Array,
    *,
    dropout_key: jax.Array | None,
  ) -> jax.Array:
    """Returns the loss of label conditioning of each row, a mean over its masked tokens, float32 [batch]."""
    label_key, mask_key = jax.random.split(key)
    tokens, at = batch["encoder_input_tokens"], head_targets.at
    has_label, blank = jnp.any(at, axis=1), jnp.argmax(at, axis=1)[:, None]
    mask_id = jnp.take_along_axis(tokens, blank, axis=1)
    # ---- A label ----
    drawn = jax.random.randint(label_key, (len(tokens),), 0, head.num_classes)
    is_right = drawn == jnp.take_along_axis(head_targets.targets, blank, axis=1)[:, 0]
    words = jnp.array([ids[0] for ids in head.words])
    filled = jnp.where(at, words[drawn][:, None], tokens)
    # ---- Masks: a share of the tokens inside the text ----
    positions, counts = drawn_positions(batch, at, rate=self.settings.mask_rate, key=mask_key)
    rows = jnp.arange(len(tokens))[:, None]
    is_masked = jnp.zeros(tokens.shape, bool).at[rows, positions].max(counts)
    read = {**batch, "encoder_input_tokens": jnp.where(is_masked, mask_id, filled)}
    hidden = module.hidden_states(read, dropout_key=dropout_key).x
    log_p = jax.nn.log_softmax(module.logits_fn()(jnp.take_along_axis(hidden, positions[..., None], axis=1)))
    of_token = jnp.take_along_axis(log_p, jnp.take_along_axis(tokens, positions, axis=1)[..., None], axis=-1)[..., 0]
    loss = -jnp.where(is_right[:, None], of_token, log_of_rest(of_token))
    mean = jnp.sum(jnp.where(counts, loss, 0.0), axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1)
    return jnp.where(has_label, mean, 0.0)


def check_cloze(base: HeadLosses, run: Config, *, loss: str) -> None:
  """Checks that a loss of a run reads the blanks of templates, one example in each row.

  Raises:
    UserError: a head has no words, or rows have several examples.
  """
  for _, head in base._asked:
    if head.kind != "cloze":
      raise UserError(
        f"config.train.loss={loss}: the head {head.name} has kind={head.kind!r}, but the loss is for the words of "
        "templates. Give config.data.templates, and an encoder; or set config.train.loss=heads."
      )
  if run.data.pack:
    raise UserError(f"config.train.loss={loss} reads one example in each row. Set config.data.pack=False.")


def drawn_positions(batch: Batch, at: jax.Array, *, rate: float, key: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Draws a share of the tokens inside each text, without its first and last token.

  Args:
    batch: one text in each row.
    at: positions that are never drawn, bool [batch, length].
    rate: share of the other tokens; at least one is drawn.
    key: of the draw.

  Returns:
    Positions, int32 [batch, most]; and which of them count, bool [batch, most].
  """
  real = real_positions(batch, "encoder")
  ends = jnp.roll(real, -1, axis=1).at[:, -1].set(False)
  inside = real & ends & ~at & (jnp.arange(at.shape[1]) > 0)
  most = max(1, round(rate * at.shape[1]))
  order = jnp.where(inside, jax.random.uniform(key, at.shape), -1.0)
  _, positions = jax.lax.top_k(order, most)
  wanted = jnp.clip(jnp.round(rate * jnp.sum(inside, axis=1)), 1, most)
  return positions, (jnp.arange(most) < wanted[:, None]) & jnp.take_along_axis(inside, positions, axis=1)


def log_of_rest(log_p: jax.Array) -> jax.Array:
  """Returns log(1 - p) of log-probabilities; p is at most 1 - 1e-6, so that gradients stay finite."""
  return jnp.log1p(-jnp.exp(jnp.minimum(log_p, jnp.log1p(-1e-6))))
