"""Cloze heads with masked language modeling beside them, on the texts of the batch (PET, Schick & Schuetze 2021)."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp

from t2t.configuration.schema import Config
from t2t.losses import adapet
from t2t.losses.head_losses import HeadLosses, asked_of
from t2t.losses.protocol import Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import transformer
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops

_MASK_RATE, _MASKED, _RANDOM = 0.15, 0.8, 0.1  # Devlin et al. 2019, section 3.1, which PET follows


@dataclasses.dataclass(frozen=True)
class HeadsAndMlm(HeadLosses):
  """Terms of cloze heads, as in `HeadLosses`, and the term "mlm": the cross-entropy of masked tokens of the same texts.

  The masked tokens have a forward pass of their own, whose blank stays masked. Their loss is a mean over the tokens of
  a text, then over texts. `config.train.term_weights.mlm` is the factor of the term; Schick & Schuetze 2021 have
  (1 - alpha) cross-entropy + alpha mlm with alpha = 1e-4. Evaluation has the loss of heads alone.
  """

  @classmethod
  def from_config(cls, run: Config) -> "HeadsAndMlm":
    """Builds the loss of a run.

    Raises:
      UserError: a head has no words, or rows have several examples.
    """
    base = HeadLosses.from_config(run)
    adapet.check_cloze(base, run, loss="heads_and_mlm")
    return cls(base.config, None, base.auxiliary)

  def weights(self, batch: Batch) -> Weights:
    return {**super().weights(batch), "mlm": jnp.sum(self._blanks(batch).any(axis=1).astype(jnp.float32))}

  def _blanks(self, batch: Batch) -> jax.Array:
    return jnp.stack([asked_of(batch, number).at for number, _ in self._asked]).any(axis=0)

  def __call__(
    self, module: transformer.Transformer, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    if not train:
      return super().__call__(module, batch, weights, key=key, train=False)
    assert key is not None
    heads_key, mask_key, dropout_key = jax.random.split(key, 3)
    terms, metrics = super().__call__(module, batch, weights, key=heads_key, train=True)
    losses = self.masked_loss(module, batch, mask_key, dropout_key=dropout_key)
    summed, texts = jnp.sum(losses), jnp.sum(self._blanks(batch).any(axis=1).astype(jnp.float32))
    return terms | {"mlm": summed / jnp.maximum(weights["mlm"], 1.0)}, {
      **metrics,
      "mlm_loss": WeightedSum(summed, texts),
    }

  def masked_loss(
    self, module: transformer.Transformer, batch: Batch, key: jax.Array, *, dropout_key: jax.Array | None
  ) -> jax.Array:
    """Returns the cross-entropy of the masked tokens of each text, a mean over its masks, float32 [batch].

    15 % of the tokens between the first and the last one are predicted: 80 % of them are masked, 10 % are a random
    token, and 10 % stay (Devlin et al. 2019). A row without a blank has 0.
    """
    order_key, kind_key, other_key = jax.random.split(key, 3)
    tokens, blanks = batch["encoder_input_tokens"], self._blanks(batch)
    positions, counts = adapet.drawn_positions(batch, blanks, rate=_MASK_RATE, key=order_key)
    # A row without a blank has no example, and none of its tokens counts.
    counts = counts & blanks.any(axis=1)[:, None]
    at = lambda x: jnp.take_along_axis(x, positions, axis=1)
    # ---- Replaced tokens ----
    mask_id = jnp.take_along_axis(tokens, jnp.argmax(blanks, axis=1)[:, None], axis=1)
    others = jax.random.randint(other_key, counts.shape, 0, self.config.vocab_size)
    kind = jax.random.uniform(kind_key, counts.shape)
    replaced = jnp.where(kind < _MASKED, mask_id, jnp.where(kind < _MASKED + _RANDOM, others, at(tokens)))
    rows = jnp.arange(len(tokens))[:, None]
    read = tokens.at[rows, positions].set(jnp.where(counts, replaced, at(tokens)))
    hidden = module.hidden_states({**batch, "encoder_input_tokens": read}, dropout_key=dropout_key).x
    log_p = jax.nn.log_softmax(module.logits_fn()(jnp.take_along_axis(hidden, positions[..., None], axis=1)))
    of_token = jnp.take_along_axis(log_p, at(tokens)[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(counts, of_token, 0.0), axis=1) / jnp.maximum(jnp.sum(counts, axis=1), 1)

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of both forward passes, with logits of the masked tokens in one."""
    sizes = {"batch_size": batch_size, "lengths": lengths}
    masked = model_flops(config, **sizes, predicted=_MASK_RATE)
    return super().flops(config, **sizes, predicted=predicted) + masked
