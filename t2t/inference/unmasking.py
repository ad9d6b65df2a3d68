"""Decoding by iterative unmasking, for models of masked diffusion: all blanks are predicted in each step, some kept."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from t2t import UserError
from t2t.inference import decoding
from t2t.inference.prompt_features import PromptFraming, Tokens, padded
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig


def _confidence(log_p: jax.Array, token: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the log-probability of each predicted token (Nie et al. 2025, low-confidence remasking)."""
  del keys
  return jnp.take_along_axis(log_p, token[..., None], axis=-1)[..., 0]


def _margin(log_p: jax.Array, token: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the probability of the likeliest token minus that of the second (Kim et al. 2025, top-k margin)."""
  del token, keys
  values = decoding.largest(log_p, 2)[0]
  return jnp.exp(values[..., 0]) - jnp.exp(values[..., 1])


def _random(log_p: jax.Array, token: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns a random number of each blank, so that blanks are filled in a random order (Sahoo et al. 2024)."""
  del token
  return jax.vmap(lambda key: jax.random.uniform(key, log_p.shape[1:2]))(keys)


# DecodeConfig.remasking -> (log-probabilities [batch, blanks, vocab], predicted tokens [batch, blanks], keys [batch])
# -> float32 [batch, blanks]; a step keeps the predictions with the largest values.
REMASKING: dict[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = {
  "confidence": _confidence,
  "margin": _margin,
  "random": _random,
}


def schedule(number: jax.Array, step: jax.Array | int, steps: int) -> jax.Array:
  """Returns how many of `number` blanks a step fills; the first steps fill one more if they do not divide evenly.

  In:  number 7, steps 3
  Out: 3, 2, 2 for step 0, 1, 2
  """
  return number // steps + (step < number % steps)


def blocks(config: decoding.DecodeConfig, trained: int = 0) -> tuple[int, int]:
  """Returns the number of blocks, and of steps in each.

  Args:
    config: options of decoding.
    trained: `TransformerConfig.block_length`. Blocks of the model are counted from the text's first token, so the first
      one may begin in the prompt, and there may be one more.

  Raises:
    UserError: the steps do not divide into blocks, or the model was trained on other blocks.
  """
  if trained and config.block_length not in (0, trained):
    raise UserError(
      f"block_length={config.block_length}: the model was trained on blocks of config.model.block_length={trained} "
      f"tokens. Set block_length={trained}, or leave it out."
    )
  length = min(trained or config.block_length or config.max_length, config.max_length)
  number = -(-config.max_length // length)
  steps = config.steps or config.max_length
  if not config.steps and (trained or steps % number):
    steps = number * length
  if steps % number:
    raise UserError(
      f"steps={steps}: max_length={config.max_length} with block_length={length} has {number} blocks, "
      f"each with the same number of steps; set steps={max(1, steps // number) * number}"
    )
  return number, steps // number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Canvas:
  """State of unmasking: the rows with masks, int32 [batch, width]; of each blank its token, score and whether it is
  masked, [batch, max_length].
  """

  tokens: jax.Array
  filled: jax.Array
  gained: jax.Array
  masked: jax.Array


def _read(model: nnx.Module, tokens: jax.Array, batch: Batch) -> dict[str, jax.Array]:
  """Returns the model's features of rows with masks; a decoder reads each token one position later, after BOS."""
  if not model.config.kind.is_decoder_only:
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": batch["real"]}
  read = jnp.concatenate([batch["begin"], tokens[:, :-1]], axis=1)
  return {
    "decoder_input_tokens": read,
    "decoder_segment_ids": batch["real"],
    "decoder_causal_attention": batch["real"],
  }


class Unmask:
  """Fills masks in several steps: the masks in a prompt, or `max_length` masks after a prompt without any.

  Each step predicts all masks and keeps some predictions, in blocks from left to right if `block_length` is given. A
  model with `config.model.block_length` fills its own blocks, and reads no later one.
  """

  streams = False

  @staticmethod
  def check(config: TransformerConfig, prompt_length: int, max_length: int) -> None:
    if config.kind.has_encoder_and_decoder or (config.kind.is_decoder_only and not config.bidirectional_prefix):
      raise UserError(
        "config.model.decoder=unmask needs a model with bidirectional attention over its whole text, but "
        f"config.model.architecture={config.architecture} has causal attention. Use a checkpoint of masked diffusion, "
        "or --decoder autoregressive."
      )
    if config.two_streams:
      raise UserError(
        "config.model.decoder=unmask: a model with config.model.two_streams=True is not trained on masks. Use a "
        "checkpoint of masked diffusion."
      )
    most = config.most_positions
    if most and prompt_length + max_length > most:
      raise UserError(
        f"max_length={max_length} and a prompt of {prompt_length} tokens need {prompt_length + max_length} positions, "
        f"but the model has only {most}; set max_length={max(1, most - prompt_length)} or less, or shorten the prompt"
      )

  @staticmethod
  def features(
    prompts: Sequence[Tokens], width: int, *, architecture: str, framing: PromptFraming, max_length: int
  ) -> Mapping[str, np.ndarray]:
    """Returns rows with masks, their real positions, the masks to fill, and the first input of a decoder.

    In:  [[7, 8], [7, 99, 9]], width 4, mask 99, max_length 2
    Out: {"tokens": [[7, 8, 99, 99, 0, 0], [7, 99, 9, 0, 0, 0]], "real": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]],
          "blanks": [[0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]], "ends": [[1], [0]], "begin": [[0], [0]]}
    """
    del architecture
    mask_id = framing.mask_id
    if mask_id is None:
      raise UserError("config.data.vocabulary has no mask token, which config.model.decoder=unmask needs")
    has_blanks = [mask_id in prompt for prompt in prompts]
    if (most := max((list(prompt).count(mask_id) for prompt in prompts), default=0)) > max_length:
      raise UserError(f"max_length={max_length}: a text has {most} blanks; set max_length={most} or more")
    after = [mask_id] * max_length
    rows = [[*prompt, *([] if has else after)] for prompt, has in zip(prompts, has_blanks, strict=True)]
    size = width + max_length
    return {
      "tokens": padded(rows, size, framing.pad_id),
      "real": padded([[1] * len(row) for row in rows], size, 0),
      "blanks": padded([[int(token == mask_id) for token in row] for row in rows], size, 0),
      "ends": np.array([[int(not has)] for has in has_blanks], np.int32),
      "begin": np.full((len(rows), 1), framing.bos_id, np.int32),
    }

  @staticmethod
  def decode(
    model: nnx.Module, batch: Batch, key: jax.Array | None, *, config: decoding.DecodeConfig, eos_id: int
  ) -> decoding.Decoded:
    """Fills the blanks of each row; see `decoding.decode`.

    Tokens are those of the blanks from left to right, up to EOS after a prompt; blanks inside a text never become EOS.
    The score is the sum of log-probabilities that the tokens had when they were kept.

    Raises:
      UserError: an option does not apply, or randomness has no key.
    """
    for name, default in (("num_beams", 1), ("top_k", 0), ("top_p", 1.0), ("min_length", 0)):
      if getattr(config, name) != default:
        raise UserError(
          f"{name}={getattr(config, name)}: config.model.decoder=unmask does not support {name}; set "
          f"{name}={default:g}, or config.model.decoder=autoregressive"
        )
    if key is None and (config.temperature or config.remasking == "random"):
      raise UserError(
        f"temperature={config.temperature}, remasking={config.remasking}: sampling needs a random key; give the "
        "argument `key`"
      )
    blanks, length = batch["blanks"] > 0, config.max_length
    batch_size = blanks.shape[0]
    trained = model.config.block_length
    number_of_blocks, steps = blocks(config, trained)
    number = jnp.sum(blanks, axis=1)
    places = jnp.argsort(~blanks, axis=1, stable=True)[:, :length]
    is_blank = jnp.arange(length) < number[:, None]
    if trained:
      # Blocks without blanks are left out.
      begins = is_blank & (jnp.diff(places // trained, axis=1, prepend=places[:, :1] // trained) != 0)
      block = jnp.cumsum(begins, axis=1)
      number_of_blocks = jnp.max(block) + 1
    else:
      block = jnp.arange(length) // (config.block_length or length)
    mask_id = jnp.max(jnp.where(blanks, batch["tokens"], 0))
    rows = jnp.arange(batch_size)[:, None]
    row_keys = decoding.row_keys(jax.random.key(0) if key is None else key, batch_size)

    def unmask(index: jax.Array, canvas: _Canvas) -> _Canvas:
      keys = jax.vmap(lambda row: jax.random.split(jax.random.fold_in(row, index)))(row_keys)
      hidden = model(_read(model, canvas.tokens, batch))
      logits = model.logits(jnp.take_along_axis(hidden, places[..., None], axis=1))
      ids = jnp.arange(logits.shape[-1])
      never = (ids == mask_id) | ((ids == eos_id) & (batch["ends"][..., None] == 0))
      allowed = jnp.where(never, -jnp.inf, decoding.allowed_logits(logits, 0, config, eos_id))
      if config.temperature:
        draw = lambda row_key, row: jax.random.categorical(row_key, row / config.temperature)
        token = jax.vmap(draw)(keys[:, 0], allowed).astype(jnp.int32)
      else:
        token = decoding.largest(allowed, 1)[1][..., 0]
      log_p = allowed - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
      here = is_blank & (block == index // steps)
      count = schedule(jnp.sum(here, axis=1), index % steps, steps)
      value = jnp.where(here & canvas.masked, REMASKING[config.remasking](log_p, token, keys[:, 1]), -jnp.inf)
      order = jnp.argsort(jnp.argsort(-value, axis=1, stable=True), axis=1)
      kept = here & canvas.masked & (order < count[:, None])
      filled = jnp.where(kept, token, canvas.filled)
      shown = jnp.where(canvas.masked & ~kept, mask_id, filled)
      old = jnp.take_along_axis(canvas.tokens, places, axis=1)
      return _Canvas(
        tokens=canvas.tokens.at[rows, places].set(jnp.where(is_blank, shown, old)),
        filled=filled,
        gained=jnp.where(kept, _confidence(log_p, token, keys), canvas.gained),
        masked=canvas.masked & ~kept,
      )

    zeros = jnp.zeros((batch_size, length))
    start = _Canvas(batch["tokens"], zeros.astype(jnp.int32), zeros, jnp.broadcast_to(is_blank, zeros.shape))
    canvas = jax.lax.fori_loop(0, number_of_blocks * steps, unmask, start)
    ended = (jnp.cumsum(canvas.filled == eos_id, axis=1) - (canvas.filled == eos_id)) > 0
    counts = is_blank & ~(ended & (batch["ends"] > 0))
    scores = jnp.sum(jnp.where(counts, canvas.gained, 0.0), axis=1)
    return decoding.Decoded(jnp.where(counts, canvas.filled, 0)[:, None], scores[:, None])
