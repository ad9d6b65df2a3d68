"""Skip-Thought (Kiros et al. 2015): the vector of a sentence predicts the next and the previous sentence.

A row has two neighbouring sentences, as for Quick-Thought. The encoder reads both, and each is the target of the
other's vector: a decoder for next sentences writes the second, and a decoder for previous ones the first.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import ClassVar

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.configuration.schema import Config
from t2t.contrib.recurrent.layer import text_starts
from t2t.data import vocabularies
from t2t.losses.contrastive import is_pair
from t2t.losses.cross_entropy import CrossEntropy, token_sums, unigram
from t2t.losses.protocol import Baseline, LogitsFn, Weights
from t2t.metrics import Outputs, WeightedSum
from t2t.models import layers
from t2t.models.architecture import Batch, segments_of
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.models.masks import AttentionMask
from t2t.models.stack import Stack
from t2t.models.transformer import EncoderDecoder


class TwoDecoders(nnx.Module):
  """An encoder-decoder for next sentences, which is kept, and a decoder for previous ones.

  Both share embedding and logits (Kiros et al. 2015, section 2.1).

  Args:
    config: shape of the model.
    rngs: random keys of the initial values.
    start: first input of both decoders.
  """

  def __init__(self, config: TransformerConfig, rngs: nnx.Rngs, *, start: int = 0):
    self.start = start
    self.model = EncoderDecoder(config, rngs)
    self.previous = Stack(config, rngs, num_layers=config.num_decoder_layers, causal=True, cross=True)

  @property
  def config(self) -> TransformerConfig:
    return self.model.config

  def __call__(self, batch: Batch, *, dropout_key: jax.Array | None = None) -> jax.Array:
    """Returns states that predict each token of both texts from the other text, [batch, length, embed]."""
    tokens, segments = batch["encoder_input_tokens"], segments_of(batch, "encoder")
    keys = layers.split_key(dropout_key, 3)
    memory = self.model.hidden_states(batch, dropout_key=keys[0]).x
    shifted = jnp.pad(tokens[:, :-1], [(0, 0), (1, 0)])
    begins = text_starts(segments).at[:, 0].set(True)
    x = self.model.embed(jnp.where(begins, self.start, shifted))

    def written(decoder: Stack, target: int, key: jax.Array | None) -> jax.Array:
      # Tokens of one text have the segment of the other, whose vector they read.
      reads = jnp.where(segments == target, 3 - target, 0)
      mask, memory_mask = AttentionMask(reads, reads, causal=True), AttentionMask(reads, segments)
      return decoder(x, mask=mask, memory=memory, memory_mask=memory_mask, real=reads > 0, dropout_key=key)[0]

    first, second = written(self.previous, 1, keys[1]), written(self.model.decoder, 2, keys[2])
    return jnp.where((segments == 2)[..., None], second, first)

  def logits_fn(self) -> LogitsFn:
    """Returns the function from [..., embed] to float32 logits [..., vocab]."""
    return self.model.logits_fn()


@functools.cache
def _start(spec: str, extra_ids: int) -> int:
  """Returns the first decoder input of a vocabulary; 0 without one, as for batches of a Python program."""
  return vocabularies.bos_id(vocabularies.load(spec, extra_ids=extra_ids)) if spec else 0


def check_vocabulary(run: Config, *, where: str) -> None:
  """Checks that decoders begin with one token in training and at inference.

  A registered task's vocabulary is known only when its data are read, and its decoders begin with 0 in training.

  Raises:
    UserError: the task's vocabulary has another first token; begins with `where`.
  """
  from t2t.data import pipeline

  first = vocabularies.bos_id(pipeline.vocabulary(run.data))
  if first != _start(run.data.vocabulary, run.data.extra_ids):
    raise UserError(
      f"{where}: the task's vocabulary begins texts with token {first}, but config.train.loss=skip_thought reads this "
      "token from config.data.vocabulary, which is empty. Set config.data.vocabulary to the file of the task's "
      "vocabulary."
    )


def _targets(batch: Batch) -> jax.Array:
  """Returns which tokens are predicted, float32 [batch, length]: all of rows with two texts."""
  return ((segments_of(batch, "encoder") > 0) & is_pair(batch)[:, None]).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class SkipThought(CrossEntropy):
  """Mean cross-entropy of each token of two neighbouring sentences, from the vector of the other sentence.

  Metrics are those of `CrossEntropy`, over both directions.

  start: first input of both decoders, the vocabulary's BOS as at inference.
  """

  start: int = 0
  part: ClassVar[str] = "model"  # the decoder of previous sentences is discarded after training
  unit: ClassVar[str] = "nats per token of a neighbouring sentence"

  @classmethod
  def from_config(cls, run: Config) -> "SkipThought":
    """Builds the loss of a run.

    Raises:
      UserError: the model is no encoder-decoder with one vector of a text, or rows are packed.
    """
    model = run.model
    if model.block != "recurrent" or not model.kind.has_encoder_and_decoder:
      raise UserError(
        "config.train.loss=skip_thought needs config.model.block=recurrent and "
        f"config.model.architecture=encoder_decoder, not {model.block} and {model.architecture}. Set these keys, or "
        "config.train.loss=contrastive."
      )
    if run.data.pack:
      raise UserError(
        "config.data.pack=True: config.train.loss=skip_thought reads one pair per row. Set config.data.pack=False, "
        "and config.data.inputs_length to the length of two sentences."
      )
    return cls(CrossEntropy.from_config(run).config, start=_start(run.data.vocabulary, run.data.extra_ids))

  def build(self, config: TransformerConfig, rngs: nnx.Rngs) -> nnx.Module:
    """Builds the model, and the decoder of previous sentences."""
    return TwoDecoders(config, rngs, start=self.start)

  def untrained_params(self, model: TransformerConfig) -> tuple[str, ...]:
    del model
    return ()

  def weights(self, batch: Batch) -> Weights:
    return {"loss": jnp.sum(_targets(batch))}

  def __call__(
    self, module: TwoDecoders, batch: Batch, weights: Weights, *, key: jax.Array | None, train: bool
  ) -> tuple[dict[str, jax.Array], Outputs]:
    states, targets = module(batch, dropout_key=key if train else None), _targets(batch)
    tokens, settings = batch["encoder_input_tokens"], self.settings(train=train)
    summed, sums, _ = token_sums(settings, module.logits_fn(), states, tokens, targets, sparse=True)
    metrics = {name: WeightedSum(sums[i], jnp.sum(targets)) for i, name in enumerate(("loss", "z_loss", "accuracy"))}
    return {"loss": summed / jnp.maximum(weights["loss"], 1.0)}, metrics

  def flops(self, config: TransformerConfig, *, batch_size: int, lengths: Mapping[str, int], predicted: float) -> float:
    """Returns the FLOPs of an encoder, and of two decoders that compute all positions of a row."""
    del predicted  # each position has the logits of one decoder
    lengths = {"encoder": lengths["encoder"], "decoder": 2 * lengths["encoder"]}
    return model_flops(config, batch_size=batch_size, lengths=lengths, predicted=0.5)

  def baselines(self, batches: Sequence[Batch], vocab_size: int) -> Sequence[Baseline]:
    of_tokens = lambda batch: {
      "encoder_target_tokens": batch["encoder_input_tokens"],
      "encoder_loss_weights": _targets(batch),
    }
    return [unigram([of_tokens(batch) for batch in batches], vocab_size)]
