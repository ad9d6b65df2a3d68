"""Self-speculative decoding: layers that predict later tokens draft them, and one call of the model checks drafts."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from t2t import UserError, sharding
from t2t.inference import decoding
from t2t.inference.decoders import Autoregressive
from t2t.models import multi_token, transformer
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Draft:
  """State of decoding: `block` is the next input token and its drafts, int32 [batch, 1 + future tokens]."""

  position: jax.Array
  tokens: jax.Array
  scores: jax.Array
  done: jax.Array
  block: jax.Array
  drafted: jax.Array
  accepted: jax.Array
  calls: jax.Array
  state: transformer.DecodeState


def num_accepted(drafts: jax.Array, likeliest: jax.Array) -> jax.Array:
  """Returns the number of leading drafts of each row that equal the likeliest tokens, int32 [batch].

  In:  drafts [[5, 6, 7], [5, 6, 7]], likeliest [[5, 6, 8], [4, 6, 7]]
  Out: [2, 0]
  """
  return jnp.sum(jnp.cumprod(drafts == likeliest, axis=1), axis=1)


def _extend(model: nnx.Module, draft: _Draft, config: decoding.DecodeConfig, eos_id: int) -> _Draft:
  """Runs the next token and its drafts, and accepts the drafts that every unfinished row can accept."""
  number = draft.block.shape[1]
  start = draft.state.position
  states, state = multi_token.extend(model, draft.block, draft.state)
  logits = sharding.shard(draft.state.logits_fn(states[0]), "batch", "length", "vocab")
  places = draft.position + jnp.arange(number)
  allowed = decoding.allowed_logits(logits, places[None, :, None], config, eos_id)
  logit, likeliest = (x[..., 0] for x in decoding.largest(allowed, 1))
  row_accepted = num_accepted(draft.block[:, 1:], likeliest[:, :-1])
  # Rows advance together, because all of them write their keys at one position.
  accepted = jnp.min(jnp.where(draft.done, number - 1, row_accepted))
  is_new = jnp.arange(number) <= accepted
  ended = jnp.cumsum(likeliest == eos_id, axis=1) > 0
  before_end = ~draft.done[:, None] & ~jnp.pad(ended[:, :-1], [(0, 0), (1, 0)])
  counts = is_new & before_end & (places < config.max_length)
  tokens = jax.lax.dynamic_update_slice_in_dim(draft.tokens, jnp.where(counts, likeliest, 0), draft.position, axis=1)
  gained = jnp.sum(jnp.where(counts, logit - jax.nn.logsumexp(logits, axis=-1), 0.0), axis=1)
  # Drafts continue the last new token: the k-th later token, from the state that predicts that token.
  last = jax.lax.dynamic_slice_in_dim(states[1:], accepted, 1, axis=2)[:, :, 0]
  later = decoding.allowed_logits(draft.state.logits_fn(last), 0, dataclasses.replace(config, min_length=0), eos_id)
  drafts = decoding.largest(later, 1)[1][..., 0].T
  first = jax.lax.dynamic_slice_in_dim(likeliest, accepted, 1, axis=1)
  is_running = (~draft.done).astype(jnp.float32)
  has_drafts = is_running * (draft.calls > 0)
  return _Draft(
    position=draft.position + accepted + 1,
    tokens=tokens,
    scores=draft.scores + gained,
    done=draft.done | jnp.any((likeliest == eos_id) & counts, axis=1),
    block=jnp.concatenate([first, drafts], axis=1),
    drafted=draft.drafted + has_drafts * (number - 1),
    accepted=draft.accepted + has_drafts * row_accepted,
    calls=draft.calls + 1,
    state=dataclasses.replace(state, position=start + accepted + 1),
  )


class Speculative(Autoregressive):
  """Generates the tokens of greedy decoding with fewer calls of the model (Stern et al. 2018; Gloeckle et al. 2024).

  Each call runs the next token and `future_tokens` drafts. Drafts that equal the model's own likeliest tokens are
  accepted, up to the smallest number among the unfinished rows.
  """

  streams = False

  @staticmethod
  def check(config: TransformerConfig, prompt_length: int, max_length: int) -> None:
    if not config.future_tokens:
      raise UserError(
        "config.model.decoder=speculative needs layers that predict later tokens, but config.model.future_tokens=0. "
        "Train with --config.train.loss=multi_token, or set --config.model.decoder=autoregressive."
      )
    decoding.check_positions(config, prompt_length, max_length + config.future_tokens)

  @staticmethod
  def decode(
    model: nnx.Module, batch: Batch, key: jax.Array | None, *, config: decoding.DecodeConfig, eos_id: int
  ) -> decoding.Decoded:
    """Generates a text for each row, see `decoding.decode`.

    Counts of the result: drafted tokens, drafts accepted by the row (others may accept fewer), and calls of the model
    after the prompts.

    Raises:
      UserError: the options name sampling or beam search.
    """
    del key
    for name, default in (("temperature", 0.0), ("num_beams", 1)):
      if getattr(config, name) != default:
        raise UserError(
          f"{name}={getattr(config, name)}: config.model.decoder=speculative supports only greedy decoding; set "
          f"{name}={default:g}, or config.model.decoder=autoregressive"
        )
    future_tokens = model.config.future_tokens
    room = config.max_length + future_tokens
    last, state = model.start_decode(batch, room, with_future=True)
    batch_size = last.shape[0]
    zeros = jnp.zeros(batch_size, jnp.float32)
    draft = _Draft(
      position=jnp.zeros((), jnp.int32),
      tokens=jnp.zeros((batch_size, room), jnp.int32),
      scores=zeros,
      done=jnp.zeros(batch_size, bool),
      block=jnp.pad(last[:, None], [(0, 0), (0, future_tokens)]),
      drafted=zeros,
      accepted=zeros,
      calls=jnp.zeros((), jnp.int32),
      state=model.ready(state),
    )
    unfinished = lambda draft: (draft.position < config.max_length) & ~jnp.all(draft.done)
    draft = jax.lax.while_loop(unfinished, lambda draft: _extend(model, draft, config, eos_id), draft)
    tokens = draft.tokens[:, None, : config.max_length]
    calls = jnp.broadcast_to(draft.calls.astype(jnp.float32), draft.done.shape)
    counts = {"drafted": draft.drafted, "accepted": draft.accepted, "calls": calls}
    return decoding.Decoded(tokens, draft.scores[:, None], counts)
