"""Masked diffusion: cross-entropy of masked tokens with weight 1 / t, an upper bound of the negative log-likelihood."""

from collections.abc import Collection, Mapping
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.configuration.section_keys import key as config_key
from t2t.feature_spec import DIFFUSION, NOISE_UNITS
from t2t.losses.cross_entropy import CrossEntropy, token_sums
from t2t.losses.protocol import Baseline, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models.architecture import Batch, ModelProtocol, predicted_side
from t2t.models.auxiliary import Auxiliary

_QUARTERS = 4  # ranges of t with their own held-out loss
# Distance of the levels of neighbouring blocks: the golden ratio, whose multiples spread evenly over (0, 1].
_BETWEEN_BLOCKS = round(NOISE_UNITS * (5**0.5 - 1) / 2)


@dataclasses.dataclass(frozen=True)
class DiffusionConfig:
  """Settings of masked diffusion: `config.diffusion`."""

  eval_samples: int = config_key(
    4, "noise levels of each held-out example, one in each equal part of (0, 1]: a power of two", least=1
  )


def check_objectives(names: Collection[str], loss: str, *, where: str) -> None:
  """Checks that all objectives of a run, or none, are of masked diffusion, as the loss is.

  Raises:
    UserError: they are not; begins with `where`.
  """
  if loss == "diffusion" and not (names and set(names) <= set(DIFFUSION)):
    raise UserError(
      f"{where}: config.train.loss=diffusion needs noise levels, but the examples have none. Set "
      f"--config.data.objective={' or '.join(DIFFUSION)}, or config.train.loss=cross_entropy."
    )
  if loss != "diffusion":
    raise UserError(
      f"{where}: the examples of masked diffusion need a weight of 1 / t for each masked token, but "
      f"config.train.loss={loss} ignores noise levels. Set --config.train.loss=diffusion, and use no other objective "
      "in the run."
    )


def check_blocks(config: Config) -> None:
  """Checks that a model that reads its text in blocks is trained by masked diffusion.

  Raises:
    UserError: the loss is another.
  """
  if config.train.loss != "diffusion":
    raise UserError(
      f"config.model.block_length={config.model.block_length} is for masked diffusion or heads, but "
      f"config.train.loss={config.train.loss}. Set --config.train.loss=diffusion --config.data.objective="
      f"{' or '.join(DIFFUSION)}, or --config.model.block_length=0."
    )


def bound_weights(batch: Batch, side: str) -> jax.Array:
  """Returns the weight of each target, float32 [batch, length]: 1 / t if it is masked, else 0.

  In:  loss_weights [0, 1, 1], noise_levels [524288, 524288, 262144]
  Out: [0, 2, 4]

  Args:
    batch: SIDE_loss_weights, 1 at masked tokens, and SIDE_noise_levels, see `data.objectives.masked_diffusion`.
    side: "encoder" or "decoder".
  """
  levels = batch[f"{side}_noise_levels"]
  return jnp.where(batch[f"{side}_loss_weights"] > 0, NOISE_UNITS / jnp.maximum(levels, 1).astype(jnp.float32), 0.0)


def row_hashes(*arrays: jax.Array) -> jax.Array:
  """Returns a number for the content of each row, uint32 [batch]."""
  total = jnp.zeros(arrays[0].shape[0], jnp.uint32)
  for x in arrays:
    odd = 2 * jax.random.bits(jax.random.key(x.shape[1]), (x.shape[1],), jnp.uint32) + 1
    total = total * jnp.uint32(0x9E3779B1) + jnp.sum((x.astype(jnp.uint32) + 1) * odd, axis=1, dtype=jnp.uint32)
  return total


def _behind(batch: Batch, x: jax.Array, first: jax.Array) -> jax.Array:
  """Shifts a decoder's targets to the positions that read them; the first position of an example has `first`."""
  shifted = jnp.pad(x[:, :-1], [(0, 0), (1, 0)])
  starts = jnp.arange(x.shape[1]) == 0
  segments = batch.get("decoder_segment_ids")
  if segments is not None:
    starts = starts | (segments != jnp.pad(segments[:, :-1], [(0, 0), (1, 0)]))
  return jnp.where(starts, first, shifted)


def _masks_of_rows(batch: Batch, side: str, index: jax.Array | int, levels: jax.Array) -> jax.Array:
  """Draws masks with the probabilities of levels, bool [batch, length], from each row's content and the index."""
  hashes = row_hashes(batch[f"{side}_target_tokens"], batch[f"{side}_noise_levels"])
  keys = jax.vmap(lambda x: jax.random.fold_in(jax.random.fold_in(jax.random.key(0), x), index))(hashes)
  draws = jax.vmap(lambda row: jax.random.bits(row, levels.shape[1:], jnp.uint32))(keys)
  return (draws % NOISE_UNITS).astype(jnp.int32) < levels


def in_blocks(batch: Batch, side: str, block_length: int) -> Batch:
  """Returns the batch with a noise level for each block of `block_length` tokens, and its masks.

  The first block of each example keeps its level and masks, so a block as long as the row changes nothing. Block b has
  the level t + b * 0.618 modulo 1: each is uniform on (0, 1], and those of a row are spread evenly. Masks depend only
  on the row's content.

  In:  input_tokens [3, 99, 5, 99], target_tokens [3, 4, 5, 6], noise_levels [524288] * 4, blocks of two
  Out: input_tokens [3, 99, 99, 6], noise_levels [524288, 524288, 123767, 123767], with the second block's masks drawn

  Args:
    batch: see `bound_weights`, of an encoder. Without any masked token, which shows the mask, it is returned unchanged.
    side: "encoder".
    block_length: tokens, counted from the first of each example.

  Source: Arriola et al. 2025 (BD3-LM), section 3; there the levels of a row are independent.
  """
  levels, targets = batch[f"{side}_noise_levels"], batch[f"{side}_target_tokens"]
  inputs, was_masked = batch[f"{side}_input_tokens"], batch[f"{side}_loss_weights"] > 0
  positions = batch.get(f"{side}_positions")
  positions = jnp.broadcast_to(jnp.arange(levels.shape[1]), levels.shape) if positions is None else positions
  block = positions // block_length
  # NOISE_UNITS divides 2**32, so that an overflow does not matter.
  moved = (levels - 1).astype(jnp.uint32) + block.astype(jnp.uint32) * jnp.uint32(_BETWEEN_BLOCKS)
  moved = jnp.where(levels > 0, (moved % NOISE_UNITS).astype(levels.dtype) + 1, 0)
  # Rows with equal levels have other masks if their first blocks differ.
  first = {**batch, f"{side}_noise_levels": levels * 2 + was_masked}
  masked = jnp.where(block > 0, _masks_of_rows(first, side, 0, moved), was_masked)
  mask_id = jnp.max(jnp.where(was_masked, inputs, -1))
  known = mask_id >= 0
  shown = jnp.where(masked, mask_id, jnp.where(levels > 0, targets, inputs))
  return {
    **batch,
    f"{side}_input_tokens": jnp.where(known, shown, inputs),
    f"{side}_loss_weights": jnp.where(known, masked, was_masked).astype(batch[f"{side}_loss_weights"].dtype),
    f"{side}_noise_levels": jnp.where(known, moved, levels),
  }


def resampled(batch: Batch, side: str, index: jax.Array, number: int) -> dict[str, jax.Array]:
  """Returns the batch with other masks, at noise levels in one of `number` equal parts of (0, 1].

  The levels of a batch are uniform on (0, 1]; in part `index` they become (index + t) / number. The masks depend only
  on the row's content and the index, not on the place of the row in a batch, the mesh or the step.

  In:  noise_levels [524288, 524288] (t = 1/2), index 1 of 4
  Out: noise_levels [393216, 393216] (t = 3/8), new masks

  Args:
    batch: see `bound_weights`; masked inputs show the mask. Without any masked token it is returned unchanged.
    side: "encoder" or "decoder".
    index: int [], of the part.
    number: a power of two.
  """
  levels, targets = batch[f"{side}_noise_levels"], batch[f"{side}_target_tokens"]
  inputs, was_masked = batch[f"{side}_input_tokens"], batch[f"{side}_loss_weights"] > 0
  moved = index * (NOISE_UNITS // number) + -(-levels // number)
  moved = jnp.where(levels > 0, moved, 0)
  masked = _masks_of_rows(batch, side, index, moved)
  # A decoder reads a target one position later.
  at_inputs = lambda x, first: _behind(batch, x, first) if side == "decoder" else x
  nowhere = jnp.zeros_like(was_masked)
  mask_id = jnp.max(jnp.where(at_inputs(was_masked, nowhere), inputs, -1))
  read = at_inputs(jnp.where(masked, mask_id, targets), inputs)
  noised, known = at_inputs(levels > 0, nowhere), mask_id >= 0
  return {
    **batch,
    f"{side}_input_tokens": jnp.where(known & noised, read, inputs),
    f"{side}_loss_weights": jnp.where(known, masked, was_masked).astype(batch[f"{side}_loss_weights"].dtype),
    f"{side}_noise_levels": jnp.where(known, moved, levels),
  }


@dataclasses.dataclass(frozen=True)
class Diffusion(CrossEntropy):
  """Cross-entropy of masked tokens, each with weight 1 / t, divided by the number of tokens that may be masked.

  Its expectation over levels and masks is an upper bound of the negative log-likelihood per token. Held-out loss is the
  mean over `eval_samples` levels of each example, which are the same in every evaluation.
  Metrics: loss, z_loss, accuracy (of masked tokens, weighted alike); held-out also loss_t1 to loss_t4, the loss at t in
  (0, 1/4] to (3/4, 1].

  With `block_length` each block has its own level, and the bound is the sum of those of the blocks.

  Source: Sahoo et al. 2024 (MDLM), equation 11; Nie et al. 2025 (LLaDA), equations 3 and 4; blocks: Arriola et al. 2025
  (BD3-LM), section 3.
  """

  eval_samples: int = 4
  block_length: int = 0
  unit: ClassVar[str] = "nats per target token, an upper bound"

  @classmethod
  def from_config(cls, run: Config) -> "Diffusion":
    settings: DiffusionConfig = run.diffusion or DiffusionConfig()
    number = settings.eval_samples
    if not 1 <= number <= 1024 or number & (number - 1):
      raise UserError(f"config.diffusion.eval_samples={number}: must be a power of two from 1 to 1024, for example 4")
    if run.model.kind.has_encoder_and_decoder:
      raise UserError(
        "config.train.loss=diffusion needs a single stack that reads text in both directions, but "
        "config.model.architecture=encoder_decoder. Set config.model.architecture=encoder_only, or decoder_only with "
        "config.model.bidirectional_prefix=True."
      )
    if run.model.kind.is_decoder_only and not run.model.bidirectional_prefix:
      raise UserError(
        "config.train.loss=diffusion needs bidirectional attention, but config.model.bidirectional_prefix=False makes "
        "attention causal. Set config.model.bidirectional_prefix=True."
      )
    if run.model.memory_length:
      raise UserError(
        "config.train.loss=diffusion does not support states that rows pass on. Set config.model.memory_length=0."
      )
    base = CrossEntropy.from_config(run)
    return cls(base.config, base.auxiliary, eval_samples=number, block_length=run.model.block_length)

  def weights(self, batch: Batch) -> Weights:
    levels = batch[f"{predicted_side(batch)}_noise_levels"]
    return {"loss": jnp.sum((levels > 0).astype(jnp.float32))} | self.auxiliary.weights(batch)

  def __call__(
    self, module: ModelProtocol, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    """Computes the terms of the batch's masks, or held-out metrics of new masks; see `Loss`."""
    if train:
      summed, sums, aux = self._of_masks(module, self._noisy(batch), key=key, train=True)
      terms = {"loss": summed / jnp.maximum(weights["loss"], 1.0)}
      return self.auxiliary.joined(terms, self._metrics(batch, sums), aux, batch, weights)
    summed, sums, aux = self.sampled(module, batch)
    mean = lambda x: jnp.mean(x, axis=0)
    terms = {"loss": mean(summed) / jnp.maximum(weights["loss"], 1.0)}
    of_ranges: dict[str, WeightedSum] = {}
    if self.eval_samples >= _QUARTERS:
      number = self._metrics(batch, mean(sums))["loss"].weight
      for i, part in enumerate(sums.reshape(_QUARTERS, -1, sums.shape[1])):
        of_ranges[f"loss_t{i + 1}"] = WeightedSum(mean(part)[0], number)
    metrics = self._metrics(batch, mean(sums)) | of_ranges
    return self.auxiliary.joined(terms, metrics, jax.tree.map(mean, aux), batch, weights)

  def sampled(self, module: ModelProtocol, batch: Batch) -> tuple[jax.Array, jax.Array, Auxiliary]:
    """Returns the outputs of `eval_samples` noise levels of each row: sums [samples], [samples, 4], auxiliary ones."""
    side, batch = predicted_side(batch), self._noisy(batch)

    def of_sample(index: jax.Array) -> tuple[jax.Array, jax.Array, Auxiliary]:
      summed, sums, aux = self._of_masks(
        module, resampled(batch, side, index, self.eval_samples), key=None, train=False
      )
      return summed, sums, dataclasses.replace(aux, states={})

    return jax.lax.map(of_sample, jnp.arange(self.eval_samples))

  def _noisy(self, batch: Batch) -> Batch:
    return in_blocks(batch, predicted_side(batch), self.block_length) if self.block_length else batch

  def _of_masks(
    self, module: ModelProtocol, batch: Batch, *, key: jax.Array | None, train: bool
  ) -> tuple[jax.Array, jax.Array, Auxiliary]:
    """Returns the summed loss; sums of cross-entropy, z-loss, accuracy and weights, float32 [4]; auxiliary outputs."""
    side = predicted_side(batch)
    hidden = module.hidden(batch, dropout_key=key)
    loss_weights, targets = bound_weights(batch, side), batch[f"{side}_target_tokens"]
    settings = self.settings(train=train)
    summed, sums, _ = token_sums(settings, module.logits_fn(), hidden.x, targets, loss_weights, sparse=True)
    return summed, jnp.append(sums, jnp.sum(loss_weights)), hidden.aux

  def _metrics(self, batch: Batch, sums: jax.Array) -> dict[str, WeightedSum]:
    number = jnp.sum((batch[f"{predicted_side(batch)}_noise_levels"] > 0).astype(jnp.float32))
    of_tokens = {name: WeightedSum(sums[i], number) for i, name in enumerate(("loss", "z_loss"))}
    return of_tokens | {"accuracy": WeightedSum(sums[2], sums[3])}

  def chance(self, values: Mapping[str, float], *, batch_size: int, vocab_size: int) -> Mapping[str, Baseline]:
    """Returns nothing: the loss of a constant output varies with the drawn levels."""
    del values, batch_size, vocab_size
    return {}
