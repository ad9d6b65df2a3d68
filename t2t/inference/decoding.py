"""Writing targets token by token, greedily, by chance or by beam search; and how likely given targets are."""

from collections.abc import Callable
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

_LEARNED = "config.model.max_length, less those of config.prompt or config.prefix"

_BLOCK = 128  # what `largest` looks at together
_CHUNK_TOKENS = 1_024  # target positions per batch shard whose logits exist at one time


LEAST_TEMPERATURE = (
  1e-3  # logits are divided by it: by less they become infinite, and the likeliest token is drawn anyway
)


MOST_BEAMS = 10_000  # more need memory for nothing
MOST_PENALTY = 10  # of a length, either way: ((5 + 1,024) / 6) ** 10 is 2e22, and more is soon no float32


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """How text is written: greedily by default, by chance with a temperature, by beam search with beams.

  Raises:
    UserError: a value that is out of range, or beams together with chance; names the option.
  """

  max_length: int  # positions written at most, EOS included
  min_length: int = 0  # tokens that are written before EOS may come
  num_beams: int = 1  # sequences that are followed at once
  temperature: float = 0.0  # 0: the likeliest token; otherwise tokens are drawn
  top_k: int = 0  # draw among so many likeliest; 0: all
  top_p: float = 1.0  # draw among the likeliest that have this probability together
  length_penalty: float = 0.6  # beams: above 0 favours long sequences, below 0 short ones
  vocab_size: int = 0  # ids below it may be written, which have a piece; 0: as many as the model has
  length_penalty_form: str = "gnmt"  # ((5 + length) / 6) ** penalty (Wu et al. 2016, T5's); "power": length ** penalty

  def __post_init__(self):
    for name in ("max_length", "min_length", "num_beams", "top_k", "vocab_size"):
      numeric.check(name, getattr(self, name), whole=True)
    for name in ("temperature", "top_p"):
      numeric.check(name, getattr(self, name))
    numeric.check("length_penalty", self.length_penalty, -MOST_PENALTY, MOST_PENALTY)
    if 0 < self.temperature < LEAST_TEMPERATURE:
      raise UserError(
        f"temperature={self.temperature}: must be at least {LEAST_TEMPERATURE}, or 0, which takes the likeliest token"
      )
    for option, least in (("max_length", 1), ("min_length", 0), ("num_beams", 1), ("temperature", 0), ("top_k", 0)):
      value = getattr(self, option)
      if not value >= least:
        raise UserError(f"{option}={value}: must be at least {least}")
    if self.num_beams > MOST_BEAMS:
      raise UserError(f"num_beams={self.num_beams}: must be at most {MOST_BEAMS:,}")
    if self.min_length > self.max_length:
      raise UserError(f"min_length={self.min_length}: must be at most max_length={self.max_length}")
    if not 0.0 < self.top_p <= 1.0:
      raise UserError(f"top_p={self.top_p}: must be above 0 and at most 1, which is all tokens")
    if self.length_penalty_form not in LENGTH_PENALTY_FORMS:
      near = did_you_mean(self.length_penalty_form, LENGTH_PENALTY_FORMS)
      raise UserError(
        f"length_penalty_form={self.length_penalty_form!r}: known are {', '.join(LENGTH_PENALTY_FORMS)}{near}"
      )
    if self.num_beams > 1 and self.temperature:
      raise UserError(
        f"num_beams={self.num_beams} and temperature={self.temperature}: beam search draws nothing;"
        " set temperature=0 to search, or num_beams=1 to draw"
      )
    for option, default in (("top_k", 0), ("top_p", 1.0)):
      if getattr(self, option) != default and not self.temperature:
        raise UserError(
          f"{option}={getattr(self, option)} and temperature={self.temperature}: without a temperature nothing is"
          f" drawn; set temperature=1, or {option}={default}"
        )

  def penalty(self, length: jax.Array | int) -> jax.Array | float:
    """What the log-probability of a sequence of so many tokens, EOS included, is divided by."""
    base = (5.0 + length) / 6.0 if self.length_penalty_form == "gnmt" else 1.0 * length
    return base**self.length_penalty


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decoded:
  """What was written for each row of a batch.

  tokens: int32 [batch, beams, max_length], the best first; EOS included, 0 behind it.
  scores: float32 [batch, beams], the sum of the log-probabilities that the model gives the tokens (whatever the
    temperature), EOS included; of beams divided by the length penalty, and -inf where there are fewer texts than beams.
  """

  tokens: jax.Array
  scores: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stream:
  """A text that is being written, one for each row of a batch.

  position: int [], how many tokens are written.
  tokens: int32 [batch, max_length], EOS included, 0 behind it and where nothing is written yet.
  scores: float32 [batch], as in `Decoded`.
  done: bool [batch], whether EOS was written.
  last: int32 [batch], the token that the model reads next.
  keys: random keys [batch], if tokens are drawn.
  state: the model's.
  """

  position: jax.Array
  tokens: jax.Array
  scores: jax.Array
  done: jax.Array
  last: jax.Array
  keys: jax.Array | None
  state: transformer.DecodeState


def check_positions(model_config: TransformerConfig, prompt_length: int, max_length: int) -> None:
  """Checks that a model has as many positions as reading and writing will ask for.

  Args:
    model_config: of the model.
    prompt_length: tokens of the longest input; of a decoder alone with the token that starts it.
    max_length: see `DecodeConfig`.

  Raises:
    UserError: it has not, or it writes no text at all.
  """
  _ = model_config.text_decoder  # or there is none
  most = model_config.most_positions
  if not most:
    return
  if model_config.kind.is_decoder_only:
    # The last token that is written is not read.
    if prompt_length + max_length - 1 > most:
      left = most + 1 - prompt_length
      right = f"max_length={left} is left" if left > 0 else f"prompts may have up to {most} tokens"
      raise UserError(
        f"max_length={max_length} behind a prompt of {prompt_length} tokens: the model has learned"
        f" {most} positions ({_LEARNED}); {right}"
      )
    return
  for name, length in (("max_length", max_length), ("inputs_length", prompt_length)):
    if length > most:
      raise UserError(
        f"{name}={length}: the model has learned {most} positions ({_LEARNED}); give {name}={most} or less"
      )


# ---- One token -------------------------------------------------------------------------------------------------------


def largest(x: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
  """The largest of [..., size] and their indices, both [..., number], as `jax.lax.top_k`: of equals the first.

  They lie in the blocks with the largest maxima, of which only as many are looked into: on a CPU a fifth of the time.
  """
  size = x.shape[-1]
  if size <= number * _BLOCK:
    return jax.lax.top_k(x, number)
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % _BLOCK)], constant_values=-jnp.inf)
  blocks = padded.reshape(*x.shape[:-1], -1, _BLOCK)
  # In their order, so that what is first among equals stays first.
  chosen = jnp.sort(jax.lax.top_k(jnp.max(blocks, axis=-1), number)[1], axis=-1)
  candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=-2)
  values, places = jax.lax.top_k(candidates.reshape(*x.shape[:-1], -1), number)
  block = jnp.take_along_axis(chosen, places // _BLOCK, axis=-1)
  return values, (block * _BLOCK + places % _BLOCK).astype(jnp.int32)


def nucleus(probabilities: jax.Array, top_p: float) -> jax.Array:
  """Which are the fewest likeliest that have the probability `top_p` together, and those as likely as the last of them.

  In:  [0.1, 0.5, 0.15, 0.25], 0.7
  Out: [False, True, False, True]

  Args:
    probabilities: float32 [..., size].
    top_p: above 0; the one that crosses it is kept.

  Source: Holtzman et al. 2020.
  """
  # Bisection for the least of them instead of a sort: as floats that are not negative are ordered, so are their bits.
  bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    enough = jnp.sum(jnp.where(bits >= middle, probabilities, 0.0), axis=-1, keepdims=True) >= top_p
    return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

  # Never so many that the likeliest is not among them.
  low, above = jnp.zeros_like(bits[..., :1]), jnp.max(bits, axis=-1, keepdims=True) + 1
  low, _ = jax.lax.fori_loop(0, 31, halve, (low, above))
  return bits >= low


def draw(logits: jax.Array, keys: jax.Array, config: DecodeConfig) -> jax.Array:
  """A token for each row of float32 [batch, vocab], int32 [batch], with a random key for each, [batch]."""
  indices = None
  scaled = logits / config.temperature
  if config.top_k:
    scaled, indices = largest(scaled, min(config.top_k, logits.shape[-1]))
  if config.top_p < 1.0:
    scaled = jnp.where(nucleus(jax.nn.softmax(scaled, axis=-1), config.top_p), scaled, -jnp.inf)
  drawn = jax.vmap(jax.random.categorical)(keys, scaled)[:, None]
  return (drawn if indices is None else jnp.take_along_axis(indices, drawn, axis=1))[:, 0].astype(jnp.int32)


def _may_come(logits: jax.Array, position: jax.Array, config: DecodeConfig, eos_id: int) -> jax.Array:
  """Logits [..., vocab] without ids that have no piece, and without EOS while less than `min_length` are written.

  Probabilities of the others stay what the model gives them, as with transformers' `min_new_tokens`.
  """
  if config.vocab_size:
    logits = jnp.where(jnp.arange(logits.shape[-1]) < config.vocab_size, logits, -jnp.inf)
  if not config.min_length:
    return logits
  early = (jnp.arange(logits.shape[-1]) == eos_id) & (position < config.min_length)
  return jnp.where(early, -jnp.inf, logits)


# ---- One sequence for each row ---------------------------------------------------------------------------------------


def _row_keys(key: jax.Array, batch_size: int) -> jax.Array:
  """A key for each row, [batch]: those given, or drawn from a single one."""
  return key if key.ndim else jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(batch_size))


def _start(model: nnx.Module, batch: Batch, key: jax.Array | None, config: DecodeConfig) -> Stream:
  """Before the first token."""
  if config.temperature and key is None:
    raise UserError(f"temperature={config.temperature}: tokens are drawn, which needs a random key")
  last, state = model.start_decode(batch, config.max_length)
  batch_size = last.shape[0]
  return Stream(
    position=jnp.zeros((), jnp.int32),
    tokens=jnp.zeros((batch_size, config.max_length), jnp.int32),
    scores=jnp.zeros(batch_size, jnp.float32),
    done=jnp.zeros(batch_size, bool),
    last=last,
    keys=_row_keys(key, batch_size) if config.temperature else None,
    state=model.ready(state),
  )


def _write(model: nnx.Module, stream: Stream, config: DecodeConfig, eos_id: int, end: jax.Array | int) -> Stream:
  """Writes until `end` tokens stand, or every sequence has ended."""

  def unfinished(stream):
    return (stream.position < end) & ~jnp.all(stream.done)

  def write(stream):
    logits, state = model.decode_step(stream.last, stream.state)
    allowed = _may_come(logits, stream.position, config, eos_id)
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

  return jax.lax.while_loop(unfinished, write, stream)


# ---- Beams -----------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Search:
  """A beam search on its way: sequences that go on, with their log-probabilities, and those that have ended, scored.

  position: int [], how many tokens are written.
  running, ended: int32 [batch, beams, max_length], the best first.
  sums, scores: float32 [batch, beams], of running and of ended; -inf where there is none.
  done: bool [batch], whether no running sequence can reach a place among the ended.
  last: int32 [batch, beams], the tokens that the model reads next.
  state: the model's.
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
  """The largest of [batch, size], [batch, number], and what stands there in arrays [batch, size, ...]."""
  scores, places = jax.lax.top_k(scores, number)
  take = lambda x: jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)
  return scores, *(take(x) for x in arrays)


def _extend(model: nnx.Module, search: _Search, config: DecodeConfig, eos_id: int) -> _Search:
  """Writes one token to every beam: of the 2 * beams likeliest continuations those go on that do not end."""
  batch_size, num_beams, max_length = search.running.shape
  number, length = 2 * num_beams, search.position + 1
  logits, state = model.decode_step(search.last, search.state)
  # Of one beam there are no more among the likeliest of all.
  allowed = _may_come(logits, search.position, config, eos_id)
  values, tokens = largest(allowed, min(number, logits.shape[-1]))
  values = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True) + search.sums[..., None]
  parents = jnp.broadcast_to(jnp.arange(num_beams)[None, :, None], values.shape)
  flat = lambda x: x.reshape(batch_size, -1)
  sums, tokens, parents = _best(flat(values), number, flat(tokens), flat(parents))
  texts = jnp.take_along_axis(search.running, parents[..., None], axis=1)
  texts = jax.lax.dynamic_update_slice_in_dim(texts, tokens[..., None], search.position, axis=2)

  # What is not among the best `beams` does not end: an ending is so likely only beside better continuations.
  ends = (tokens == eos_id) | (length == max_length)
  counts = ends & (jnp.arange(number) < num_beams) & ~search.done[:, None]
  new = jnp.where(counts, sums / config.penalty(length), -jnp.inf)
  joined = jnp.concatenate([search.scores, new], axis=1)
  scores, ended = _best(joined, num_beams, jnp.concatenate([search.ended, texts], axis=1))

  sums, running, last, parents = _best(jnp.where(ends, -jnp.inf, sums), num_beams, texts, tokens, parents)
  # Sums only fall, so that none becomes better than divided by the largest penalty that lies ahead.
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
  """Beam search; what it gives for a row does not depend on the other rows."""
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


# ---- What others call ------------------------------------------------------------------------------------------------


def decode(
  model: nnx.Module, batch: Batch, key: jax.Array | None = None, *, config: DecodeConfig, eos_id: int
) -> Decoded:
  """Writes a text for each row of a batch, or several with beams, as config.model.decoder says.

  Args:
    model: generates text.
    batch: the model's inputs, int [batch, length]; see `start_decode`.
    key: random key, or one for each row, if there is a temperature: the same one, the same text.
    config: how it is written.
    eos_id: ends a sequence; what follows is 0.  -1: nothing does.
  """
  return model.config.text_decoder.decode(model, batch, key, config=config, eos_id=eos_id)


def decode_autoregressively(
  model: nnx.Module, batch: Batch, key: jax.Array | None = None, *, config: DecodeConfig, eos_id: int
) -> Decoded:
  """Writes one token after another: greedily, by chance, or by beam search; see `decode` for the arguments.

  Beam search takes the 2 * beams likeliest continuations at each position.  Those that end in EOS are kept if they are
  among the best `beams`; the likeliest others go on.  At `max_length` what goes on ends as it is.  It stops when no
  running sequence can still come among the best.
  """
  if config.num_beams > 1:
    return _search(model, batch, config, eos_id)
  stream = _write(model, _start(model, batch, key, config), config, eos_id, config.max_length)
  return Decoded(stream.tokens[:, None], stream.scores[:, None])


def make_decode(
  graphdef: nnx.GraphDef, config: DecodeConfig, *, eos_id: int
) -> Callable[[Params, Batch, jax.Array | None], Decoded]:
  """The compiled `decode` of (params, batch, key); `params` is the nested dict of all parameters of the model."""
  return jax.jit(
    lambda params, batch, key=None: decode(nnx.merge(graphdef, params), batch, key, config=config, eos_id=eos_id)
  )


def make_stream(
  graphdef: nnx.GraphDef, model_config: TransformerConfig, config: DecodeConfig, *, eos_id: int, tokens_per_call: int
) -> tuple[Callable[[Params, Batch, jax.Array | None], Stream], Callable[[Params, Stream], Stream]]:
  """`decode` in pieces, for a page that shows text as it comes: what starts a `Stream`, and what advances it.

  Args:
    graphdef, model_config: of the model.
    config: with one beam.
    eos_id: ends a sequence.
    tokens_per_call: how many more tokens `advance` writes, unless all sequences have ended or are full.

  Returns:
    start(params, batch, key) and advance(params, stream), both compiled.
  """
  if not model_config.text_decoder.streams:
    raise UserError(
      f"config.model.decoder={model_config.decoder}: does not write from left to right, so that nothing can be"
      " streamed; ask for the whole text"
    )
  if config.num_beams > 1:
    raise UserError(f"num_beams={config.num_beams}: what beams write is known only at the end; stream with num_beams=1")
  if tokens_per_call < 1:
    raise UserError(f"tokens_per_call={tokens_per_call}: must be at least 1")

  def advance(params: Params, stream: Stream) -> Stream:
    end = jnp.minimum(stream.position + tokens_per_call, config.max_length)
    return _write(nnx.merge(graphdef, params), stream, config, eos_id, end)

  start = lambda params, batch, key=None: _start(nnx.merge(graphdef, params), batch, key, config)
  return jax.jit(start), jax.jit(advance)


def log_likelihood(model: ModelProtocol, batch: Batch) -> jax.Array:
  """Sum of the log-probabilities of each row's targets where their loss counts, float32 [batch].

  Args:
    model: of any architecture.
    batch: its features, with decoder_target_tokens and decoder_loss_weights, or those of an encoder alone.
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
    return -jnp.sum(losses.token_cross_entropy(logits, targets)[0] * weights, axis=1)

  weights = batch[f"{side}_loss_weights"].astype(jnp.float32)
  arrays = (hidden, batch[f"{side}_target_tokens"], weights)
  return jnp.sum(jax.lax.map(score_chunk, tuple(chunks(x) for x in arrays)), axis=0)


def make_log_likelihood(graphdef: nnx.GraphDef) -> Callable[[Params, Batch], jax.Array]:
  """The compiled `log_likelihood` of (params, batch)."""
  return jax.jit(lambda params, batch: log_likelihood(nnx.merge(graphdef, params), batch))
