"""Autoregressive decoding (greedy, sampling, beam search) and log-likelihoods of given targets."""

from collections.abc import Callable, Mapping
import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, did_you_mean, losses, sharding
from t2t.models import transformer
from t2t.models.architecture import Batch, ModelProtocol, predicted_side
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params
from t2t.runtime import numeric

LENGTH_PENALTY_FORMS = ("gnmt", "power")
REMASKING = ("confidence", "margin", "random")  # rows of `unmasking.REMASKING`

_LEARNED = "config.model.max_length minus the positions of config.prompt or config.prefix"

_BLOCK = 128  # block size in `largest`
_CHUNK_TOKENS = 1_024  # target positions per batch shard with logits in memory at one time


LEAST_TEMPERATURE = (
  1e-3  # divides the logits: smaller values give infinities, and would select the likeliest token anyway
)


MOST_BEAMS = 10_000  # more only waste memory
MOST_PENALTY = 10  # absolute length penalty: ((5 + 1,024) / 6) ** 10 is 2e22, near the limit of float32


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """Decoding options: greedy by default, sampling with a temperature, beam search with several beams.

  Raises:
    UserError: a value is out of range, or beam search is combined with sampling; names the option.
  """

  max_length: int  # maximum number of new tokens, EOS included
  min_length: int = 0  # minimum number of tokens before EOS
  num_beams: int = 1  # 1: no beam search
  temperature: float = 0.0  # 0: greedy decoding; above 0: sampling
  top_k: int = 0  # sample from the k likeliest tokens; 0: all
  top_p: float = 1.0  # sample from the likeliest tokens with this total probability
  length_penalty: float = 0.6  # for beam search: above 0 favours long sequences, below 0 short ones
  vocab_size: int = 0  # only ids below it are generated; 0: all ids of the model
  steps: int = 0  # of unmasking; 0: one for each token
  remasking: str = "confidence"  # which predictions a step of unmasking keeps, see `REMASKING`
  block_length: int = 0  # unmasking fills blocks of this length from left to right; 0: all at once
  length_penalty_form: str = "gnmt"  # ((5 + length) / 6) ** penalty (Wu et al. 2016, T5's); "power": length ** penalty

  def __post_init__(self):
    for name in ("max_length", "min_length", "num_beams", "top_k", "vocab_size", "steps", "block_length"):
      numeric.check(name, getattr(self, name), whole=True)
    for name in ("temperature", "top_p"):
      numeric.check(name, getattr(self, name))
    numeric.check("length_penalty", self.length_penalty, -MOST_PENALTY, MOST_PENALTY)
    if 0 < self.temperature < LEAST_TEMPERATURE:
      raise UserError(f"temperature={self.temperature} must be at least {LEAST_TEMPERATURE}, or 0 for greedy decoding")
    for option, least in (("max_length", 1), ("min_length", 0), ("num_beams", 1), ("temperature", 0), ("top_k", 0)):
      value = getattr(self, option)
      if not value >= least:
        raise UserError(f"{option}={value} must be at least {least}")
    for option in ("steps", "block_length"):
      if not 0 <= getattr(self, option) <= self.max_length:
        raise UserError(
          f"{option}={getattr(self, option)} must be 1 to max_length={self.max_length}, because each step fills at "
          "least one token; or 0 for the default"
        )
    if self.remasking not in REMASKING:
      raise UserError(
        f"remasking={self.remasking!r}: unknown value. Known values: {', '.join(REMASKING)}"
        f"{did_you_mean(self.remasking, REMASKING)}"
      )
    if self.num_beams > MOST_BEAMS:
      raise UserError(f"num_beams={self.num_beams} must be at most {MOST_BEAMS:,}")
    if self.min_length > self.max_length:
      raise UserError(f"min_length={self.min_length} must be at most max_length={self.max_length}")
    if not 0.0 < self.top_p <= 1.0:
      raise UserError(f"top_p={self.top_p} must be above 0 and at most 1 (1 keeps all tokens)")
    if self.length_penalty_form not in LENGTH_PENALTY_FORMS:
      near = did_you_mean(self.length_penalty_form, LENGTH_PENALTY_FORMS)
      raise UserError(
        f"length_penalty_form={self.length_penalty_form!r}: unknown value. Known values: "
        f"{', '.join(LENGTH_PENALTY_FORMS)}{near}"
      )
    if self.num_beams > 1 and self.temperature:
      raise UserError(
        f"num_beams={self.num_beams} and temperature={self.temperature}: beam search does not sample; set "
        "temperature=0 for beam search, or num_beams=1 for sampling"
      )
    for option, default in (("top_k", 0), ("top_p", 1.0)):
      if getattr(self, option) != default and not self.temperature:
        raise UserError(
          f"{option}={getattr(self, option)} needs sampling, but temperature={self.temperature} turns sampling off; "
          f"set temperature=1, or {option}={default}"
        )

  def penalty(self, length: jax.Array | int) -> jax.Array | float:
    """Returns the divisor of a sequence's log-probability; `length` is its number of tokens, EOS included."""
    base = (5.0 + length) / 6.0 if self.length_penalty_form == "gnmt" else 1.0 * length
    return base**self.length_penalty


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoded:
  """Generated sequences of a batch.

  tokens: int32 [batch, beams, max_length], the best first; EOS included, 0 after it.
  scores: float32 [batch, beams], sums of the model's log-probabilities of the tokens, EOS included. They ignore the
    temperature; with beams they are divided by the length penalty, and -inf marks missing sequences.
  counts: name -> float32 [batch], statistics of the method, for example accepted drafts.
  """

  tokens: jax.Array
  scores: jax.Array
  counts: Mapping[str, jax.Array] = dataclasses.field(default_factory=dict)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
  """State of decoding in steps, for each row of a batch.

  position: int [], number of generated tokens.
  tokens: int32 [batch, max_length], EOS included, 0 after it and at positions that are not generated yet.
  scores: float32 [batch], as in `Decoded`.
  done: bool [batch], whether EOS was generated.
  last: int32 [batch], the next input token.
  keys: random keys [batch], for sampling.
  state: of the model.
  """

  position: jax.Array
  tokens: jax.Array
  scores: jax.Array
  done: jax.Array
  last: jax.Array
  keys: jax.Array | None
  state: transformer.DecodeState


def check_positions(model_config: TransformerConfig, prompt_length: int, max_length: int) -> None:
  """Checks that a model has enough positions for the prompt and the output.

  Args:
    model_config: of the model.
    prompt_length: tokens of the longest input, including the start token of a decoder-only model.
    max_length: see `DecodeConfig`.

  Raises:
    UserError: the model has too few positions, or does not generate text.
  """
  _ = model_config.text_decoder  # raises if the model does not generate text
  most = model_config.most_positions
  if not most:
    return
  if model_config.kind.is_decoder_only:
    # The last generated token is not an input.
    if prompt_length + max_length - 1 > most:
      left = most + 1 - prompt_length
      right = f"set max_length={left} or less" if left > 0 else f"shorten the prompt to at most {most} tokens"
      raise UserError(
        f"max_length={max_length} and a prompt of {prompt_length} tokens need {prompt_length + max_length - 1} "
        f"positions, but the model has only {most} positions ({_LEARNED}); {right}"
      )
    return
  for name, length in (("max_length", max_length), ("inputs_length", prompt_length)):
    if length > most:
      raise UserError(f"{name}={length}: the model has only {most} positions ({_LEARNED}); set {name}={most} or less")


# ---- Single tokens ---------------------------------------------------------------------------------------------------


def largest(x: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
  """Returns the largest values of [..., size] and their indices, both [..., number]; equal to `jax.lax.top_k`.

  Searches only the blocks with the largest maxima, which takes a fifth of the time of `top_k` on a CPU.
  """
  size = x.shape[-1]
  if size <= number * _BLOCK:
    return jax.lax.top_k(x, number)
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % _BLOCK)], constant_values=-jnp.inf)
  blocks = padded.reshape(*x.shape[:-1], -1, _BLOCK)
  # Sorted blocks keep the order of equal values.
  chosen = jnp.sort(jax.lax.top_k(jnp.max(blocks, axis=-1), number)[1], axis=-1)
  candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=-2)
  values, places = jax.lax.top_k(candidates.reshape(*x.shape[:-1], -1), number)
  block = jnp.take_along_axis(chosen, places // _BLOCK, axis=-1)
  return values, (block * _BLOCK + places % _BLOCK).astype(jnp.int32)


def nucleus(probabilities: jax.Array, top_p: float) -> jax.Array:
  """Returns the mask of the smallest likeliest set with total probability `top_p`; ties with its last member are
  included.

    In:  [0.1, 0.5, 0.15, 0.25], 0.7
    Out: [False, True, False, True]

    Args:
      probabilities: float32 [..., size].
      top_p: above 0; the value that crosses it is included.

    Source: Holtzman et al. 2020.
  """
  # Bisects for the smallest member instead of sorting; non-negative floats have the same order as their bits.
  bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    enough = jnp.sum(jnp.where(bits >= middle, probabilities, 0.0), axis=-1, keepdims=True) >= top_p
    return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

  # The upper bound keeps the likeliest token in the set.
  low, above = jnp.zeros_like(bits[..., :1]), jnp.max(bits, axis=-1, keepdims=True) + 1
  low, _ = jax.lax.fori_loop(0, 31, halve, (low, above))
  return bits >= low


def draw(logits: jax.Array, keys: jax.Array, config: DecodeConfig) -> jax.Array:
  """Samples a token id for each row, int32 [batch], from float32 [batch, vocab] with random keys [batch]."""
  indices = None
  scaled = logits / config.temperature
  if config.top_k:
    scaled, indices = largest(scaled, min(config.top_k, logits.shape[-1]))
  if config.top_p < 1.0:
    scaled = jnp.where(nucleus(jax.nn.softmax(scaled, axis=-1), config.top_p), scaled, -jnp.inf)
  drawn = jax.vmap(jax.random.categorical)(keys, scaled)[:, None]
  return (drawn if indices is None else jnp.take_along_axis(indices, drawn, axis=1))[:, 0].astype(jnp.int32)


def allowed_logits(logits: jax.Array, position: jax.Array, config: DecodeConfig, eos_id: int) -> jax.Array:
  """Masks logits [..., vocab] of ids outside the vocabulary, and of EOS before `min_length` tokens.

  `position` broadcasts against the logits. Probabilities of other ids are not renormalized, as with transformers'
  `min_new_tokens`.
  """
  if config.vocab_size:
    logits = jnp.where(jnp.arange(logits.shape[-1]) < config.vocab_size, logits, -jnp.inf)
  if not config.min_length:
    return logits
  early = (jnp.arange(logits.shape[-1]) == eos_id) & (position < config.min_length)
  return jnp.where(early, -jnp.inf, logits)


# ---- Greedy decoding and sampling ------------------------------------------------------------------------------------


def row_keys(key: jax.Array, batch_size: int) -> jax.Array:
  """Returns a key for each row, [batch]; derives them from `key` if it is a single key."""
  return key if key.ndim else jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(batch_size))


def start(model: nnx.Module, batch: Batch, key: jax.Array | None, config: DecodeConfig) -> Stream:
  """Reads the prompts of a batch; `key` is one random key, or one for each row, for sampling."""
  if config.temperature and key is None:
    raise UserError(f"temperature={config.temperature}: sampling needs a random key; give the argument `key`")
  last, state = model.start_decode(batch, config.max_length)
  batch_size = last.shape[0]
  return Stream(
    position=jnp.zeros((), jnp.int32),
    tokens=jnp.zeros((batch_size, config.max_length), jnp.int32),
    scores=jnp.zeros(batch_size, jnp.float32),
    done=jnp.zeros(batch_size, bool),
    last=last,
    keys=row_keys(key, batch_size) if config.temperature else None,
    state=model.ready(state),
  )


def next_token(model: nnx.Module, stream: Stream, config: DecodeConfig, eos_id: int) -> Stream:
  """Generates one token of every row that has not ended."""
  logits, state = model.decode_step(stream.last, stream.state)
  allowed = allowed_logits(logits, stream.position, config, eos_id)
  if config.temperature:
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(stream.keys, stream.position)
    token = draw(allowed, keys, config)
    logit = jnp.take_along_axis(logits, token[:, None], axis=1)[:, 0]
  else:
    logit, token = (x[:, 0] for x in largest(allowed, 1))
  token = jnp.where(stream.done, 0, token)
  gained = jnp.where(stream.done, 0.0, logit - jax.nn.logsumexp(logits, axis=-1))
  return dataclasses.replace(
    stream,
    position=stream.position + 1,
    tokens=jax.lax.dynamic_update_slice_in_dim(stream.tokens, token[:, None], stream.position, axis=1),
    scores=stream.scores + gained,
    done=stream.done | (token == eos_id),
    last=token,
    state=state,
  )


# ---- Beam search -----------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
  """State of a beam search: running sequences with their log-probabilities, and ended sequences with their scores.

  position: int [], number of generated tokens.
  running, ended: int32 [batch, beams, max_length], the best first.
  sums, scores: float32 [batch, beams], of running and of ended sequences; -inf for missing ones.
  done: bool [batch], whether no running sequence can enter `ended`.
  last: int32 [batch, beams], the next input tokens.
  state: of the model.
  """

  position: jax.Array
  running: jax.Array
  sums: jax.Array
  ended: jax.Array
  scores: jax.Array
  done: jax.Array
  last: jax.Array
  state: transformer.DecodeState


def _best(scores: jax.Array, number: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Returns the largest of scores [batch, size], and the same entries of arrays [batch, size, ...]."""
  scores, places = jax.lax.top_k(scores, number)
  take = lambda x: jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)
  return scores, *(take(x) for x in arrays)


def _extend(model: nnx.Module, search: _Search, config: DecodeConfig, eos_id: int) -> _Search:
  """Adds one token to every beam: keeps the best unfinished of the 2 * beams likeliest continuations."""
  batch_size, num_beams, max_length = search.running.shape
  number, length = 2 * num_beams, search.position + 1
  logits, state = model.decode_step(search.last, search.state)
  # More continuations of one beam cannot be among the likeliest of all beams.
  allowed = allowed_logits(logits, search.position, config, eos_id)
  values, tokens = largest(allowed, min(number, logits.shape[-1]))
  values = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True) + search.sums[..., None]
  parents = jnp.broadcast_to(jnp.arange(num_beams)[None, :, None], values.shape)
  flat = lambda x: x.reshape(batch_size, -1)
  sums, tokens, parents = _best(flat(values), number, flat(tokens), flat(parents))
  texts = jnp.take_along_axis(search.running, parents[..., None], axis=1)
  texts = jax.lax.dynamic_update_slice_in_dim(texts, tokens[..., None], search.position, axis=2)

  # An ended sequence below rank `beams` is dropped, because better continuations are still running.
  ends = (tokens == eos_id) | (length == max_length)
  counts = ends & (jnp.arange(number) < num_beams) & ~search.done[:, None]
  new = jnp.where(counts, sums / config.penalty(length), -jnp.inf)
  joined = jnp.concatenate([search.scores, new], axis=1)
  scores, ended = _best(joined, num_beams, jnp.concatenate([search.ended, texts], axis=1))

  sums, running, last, parents = _best(jnp.where(ends, -jnp.inf, sums), num_beams, texts, tokens, parents)
  # Sums only decrease, so the largest penalty still ahead gives an upper bound of the score.
  longest = max_length if config.length_penalty > 0 else length + 1
  hopeless = sums[:, 0] / config.penalty(longest) <= scores[:, -1]
  return _Search(
    position=length,
    running=running,
    sums=sums,
    ended=ended,
    scores=scores,
    done=search.done | hopeless,
    last=last,
    state=state.follow(parents),
  )


def _search(model: nnx.Module, batch: Batch, config: DecodeConfig, eos_id: int) -> Decoded:
  """Beam search; the result of a row does not depend on other rows."""
  num_beams = config.num_beams
  first, state = model.start_decode(batch, config.max_length, num_beams=num_beams)
  empty = jnp.zeros((first.shape[0], num_beams, config.max_length), jnp.int32)
  none = jnp.full(empty.shape[:2], -jnp.inf)
  search = _Search(
    position=jnp.zeros((), jnp.int32),
    running=empty,
    sums=none.at[:, 0].set(0.0),
    ended=empty,
    scores=none,
    done=jnp.zeros(first.shape[0], bool),
    last=jnp.broadcast_to(first[:, None], none.shape),
    state=model.ready(state),
  )
  unfinished = lambda search: (search.position < config.max_length) & ~jnp.all(search.done)
  search = jax.lax.while_loop(unfinished, lambda search: _extend(model, search, config, eos_id), search)
  return Decoded(jnp.where(jnp.isfinite(search.scores)[..., None], search.ended, 0), search.scores)


# ---- Public functions ------------------------------------------------------------------------------------------------


def decode(
  model: nnx.Module, batch: Batch, key: jax.Array | None = None, *, config: DecodeConfig, eos_id: int
) -> Decoded:
  """Generates a text for each row of a batch, or several with beam search, with the method of config.model.decoder.

  Args:
    model: generates text.
    batch: the model's inputs, int [batch, length]; see `start_decode`.
    key: random key, or one for each row, for sampling; the same key gives the same text.
    config: decoding options.
    eos_id: ends a sequence; 0 follows it. -1: sequences never end early.
  """
  return model.config.text_decoder.decode(model, batch, key, config=config, eos_id=eos_id)


def decode_autoregressively(
  model: nnx.Module, batch: Batch, key: jax.Array | None = None, *, config: DecodeConfig, eos_id: int
) -> Decoded:
  """Generates tokens from left to right: greedily, by sampling, or by beam search; see `decode` for the arguments.

  Beam search takes the 2 * beams likeliest continuations at each position. A continuation with EOS is stored if it is
  among the best `beams`; the likeliest others continue. Sequences that reach `max_length` end there. The search stops
  when no running sequence can enter the best.
  """
  if config.num_beams > 1:
    return _search(model, batch, config, eos_id)
  unfinished = lambda stream: (stream.position < config.max_length) & ~jnp.all(stream.done)
  write = lambda stream: next_token(model, stream, config, eos_id)
  stream = jax.lax.while_loop(unfinished, write, start(model, batch, key, config))
  return Decoded(stream.tokens[:, None], stream.scores[:, None])


def make_decode(
  graphdef: nnx.GraphDef, config: DecodeConfig, *, eos_id: int
) -> Callable[[Params, Batch, jax.Array | None], Decoded]:
  """Returns the compiled `decode` of (params, batch, key); `params` is the nested dict of all model parameters."""
  return jax.jit(
    lambda params, batch, key=None: decode(nnx.merge(graphdef, params), batch, key, config=config, eos_id=eos_id)
  )


def likelihoods(model: ModelProtocol, batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Computes the log-probability of each row's targets, and whether all of them are the likeliest tokens.

  The log-softmax and the sums are in float32, whatever the model computes in.

  Args:
    model: of any architecture.
    batch: with decoder_target_tokens and decoder_loss_weights, or the same features of an encoder-only model.

  Returns:
    sums of log-probabilities with the loss weights, float32 [batch]; bool [batch], True if each target with a weight
    has the highest logit, alone or with others.
  """
  side = predicted_side(batch)
  hidden, logits_fn = model(batch), model.logits_fn()
  batch_size, length = hidden.shape[:2]
  rows = -(-batch_size // sharding.num_shards("batch"))
  num_chunks = -(-length // max(1, _CHUNK_TOKENS // rows))
  size = -(-length // num_chunks)

  def chunks(x: jax.Array) -> jax.Array:
    # [batch, length, ...] -> [chunks, batch, size, ...]
    x = jnp.pad(x, [(0, 0), (0, num_chunks * size - length)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(batch_size, num_chunks, size, *x.shape[2:]), 1, 0)

  def score_chunk(chunk):
    hidden, targets, weights = chunk
    logits = sharding.shard(logits_fn(hidden), "batch", "length", "vocab")
    loss, _, right = losses.token_cross_entropy(logits, targets)
    return -jnp.sum(loss * weights, axis=1), jnp.all((right > 0) | (weights == 0), axis=1)

  weights = batch[f"{side}_loss_weights"].astype(jnp.float32)
  arrays = (hidden, batch[f"{side}_target_tokens"], weights)
  log_p, is_greedy = jax.lax.map(score_chunk, tuple(chunks(x) for x in arrays))
  return jnp.sum(log_p, axis=0), jnp.all(is_greedy, axis=0)


def make_likelihoods(graphdef: nnx.GraphDef) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
  """Returns the compiled `likelihoods` of (params, batch)."""
  return jax.jit(lambda params, batch: likelihoods(nnx.merge(graphdef, params), batch))
