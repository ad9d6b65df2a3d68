"""Terms of distillation: distances between outputs of a student's and a teacher's layers, and the pairs of layers.

Functions take float arrays of any dtype, compute in float32, and return sums over positions. A loss divides them by the
number of positions in the whole batch. Teachers are constants: callers stop their gradients.
"""

from collections.abc import Sequence
import re

import jax
import jax.numpy as jnp

from t2t import UserError

# Names of layer maps, `config.distillation.layers`.
MAPS = ("uniform", "skip", "last", "final")
ATTENTION_LOSSES = ("scores", "probabilities", "kl")

LayerPairs = tuple[tuple[int, int], ...]


def layer_pairs(layers: Sequence[str], student: int, teacher: int, *, where: str) -> LayerPairs:
  """Returns the pairs (student layer, teacher layer) of a layer map, counted from 0.

  In:  ("uniform",), 2 and 6 layers -> ((0, 2), (1, 5))
       ("skip",), 2 and 6 layers -> ((0, 2),)
       ("last",), 2 and 6 layers -> ((0, 4), (1, 5))
       ("final",), 2 and 6 layers -> ((1, 5),)
       ("0", "5"), 2 and 6 layers -> ((0, 0), (1, 5))
       ("1:3",), 2 and 6 layers -> ((1, 3),)

  Args:
    layers: a name of `MAPS`; or the teacher's layer for each of the student's; or pairs STUDENT:TEACHER.
    student, teacher: numbers of layers.
    where: stack and models, for messages.

  Raises:
    UserError: a model has fewer layers than the map names, or the map is malformed or repeats a pair.
  """
  key = f"config.distillation.layers={','.join(layers)}"
  if len(layers) == 1 and layers[0] in MAPS:
    if teacher < student:
      raise UserError(
        f"{key}: {where} has {student} layers in the student and {teacher} in the teacher. Give a student with at "
        f"most {teacher} layers, or pairs STUDENT:TEACHER, counted from 0, for example 0:0."
      )
    uniform = tuple((layer, (layer + 1) * teacher // student - 1) for layer in range(student))
    last = tuple((layer, teacher - student + layer) for layer in range(student))
    return {"uniform": uniform, "skip": uniform[:-1], "last": last, "final": last[-1:]}[layers[0]]
  if not layers or not all(re.fullmatch(r"\d+(:\d+)?", text) for text in layers):
    raise UserError(
      f"{key}: not a layer map. Give {', '.join(MAPS)}; the teacher's layer for each layer of the student, such as "
      "1,3; or pairs STUDENT:TEACHER, counted from 0."
    )
  are_pairs = [":" in text for text in layers]
  if any(are_pairs) and not all(are_pairs):
    raise UserError(
      f"{key}: {layers[are_pairs.index(False)]!r} has no student layer, but other elements are pairs. Give pairs "
      "STUDENT:TEACHER alone, or the teacher's layer for each layer of the student."
    )
  if not any(are_pairs) and len(layers) != student:
    raise UserError(
      f"{key}: {where} has {student} layers in the student, but the map names {len(layers)}. Give {student} layers of "
      "the teacher, or pairs STUDENT:TEACHER."
    )
  numbers = [text.split(":") if ":" in text else (str(index), text) for index, text in enumerate(layers)]
  pairs = tuple((int(ours), int(theirs)) for ours, theirs in numbers)
  if repeated := [pair for index, pair in enumerate(pairs) if pair in pairs[:index]]:
    raise UserError(f"{key}: names the pair {repeated[0][0]}:{repeated[0][1]} twice. Give each pair once.")
  for name, number, used in (("student", student, [a for a, _ in pairs]), ("teacher", teacher, [b for _, b in pairs])):
    if max(used) >= number:
      raise UserError(
        f"{key}: {where} has {number} layers in the {name}, 0 to {number - 1}, but the map names layer {max(used)}. "
        "Give layers that exist."
      )
  return pairs


def _of_positions(values: jax.Array, real: jax.Array) -> jax.Array:
  """Returns the sum of values [..., batch, length] over real positions, bool [batch, length]."""
  return jnp.sum(jnp.where(real, values, 0.0))


def _float32(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  return tuple(x.astype(jnp.float32) for x in arrays)


def soft_targets(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
  """Returns T**2 KL(softmax(teacher / T), softmax(student / T)) over the last axis (Hinton et al. 2015).

  The factor keeps the size of the gradient. An impossible class, with a logit of -inf in both, counts 0.
  """
  log_q, log_p = (jax.nn.log_softmax(x.astype(jnp.float32) / temperature) for x in (teacher, student))
  return temperature**2 * _divergence(log_q, log_p)


def soft_targets_of_few(student: jax.Array, teacher: jax.Array, normalizer: jax.Array, temperature: float) -> jax.Array:
  """Returns `soft_targets` with one class for all tokens whose logits are not known.

  The class has the rest of the probability in both models; the divergence is at most that of whole logits.

  Args:
    student: [..., vocab].
    teacher: [..., vocab], -inf where a logit is not known.
    normalizer: [...], the logarithm of the sum of the teacher's exp(logit / temperature) over the vocabulary.
    temperature: divides the logits.
  """
  student, teacher = (x.astype(jnp.float32) / temperature for x in (student, teacher))
  is_known = jnp.isfinite(teacher)
  log_q, log_p = teacher - normalizer[..., None], jax.nn.log_softmax(student)
  known = _divergence(log_q, log_p)
  # Rounding may leave less than nothing; the floor is far below the spacing of float32 at 1.
  rest = jnp.log(jnp.maximum(-jnp.expm1(jax.nn.logsumexp(log_q, axis=-1)), 1e-12))
  student_rest = jax.nn.logsumexp(jnp.where(is_known, -jnp.inf, log_p), axis=-1)
  return temperature**2 * (known + jnp.exp(rest) * (rest - student_rest))


def _divergence(log_q: jax.Array, log_p: jax.Array) -> jax.Array:
  """Returns KL(q, p) of log-probabilities over the last axis; where both are -inf, a term is 0."""
  is_possible = jnp.isfinite(log_q) & jnp.isfinite(log_p)
  difference = jnp.where(is_possible, log_q, 0.0) - jnp.where(is_possible, log_p, 0.0)
  return jnp.sum(jnp.exp(log_q) * difference, axis=-1)


def states(student: jax.Array, teacher: jax.Array, real: jax.Array) -> jax.Array:
  """Returns the squared error of states, [..., batch, length, embed]: a mean over features, a sum over the rest."""
  student, teacher = _float32(student, teacher)
  return _of_positions(jnp.mean(jnp.square(student - teacher), axis=-1), real)


def normalized_states(
  student: jax.Array, teacher: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns distances of states as in MobileBERT (Sun et al. 2020, section 3.4): of shape, mean and variance.

  They are the squared error of states with mean 0 and variance 1 over the features, the squared error of the means, and
  the absolute error of the variances, each a sum over positions.
  """
  student, teacher = _float32(student, teacher)
  moments = [(jnp.mean(x, axis=-1, keepdims=True), jnp.var(x, axis=-1, keepdims=True)) for x in (student, teacher)]
  (mean, variance), (teacher_mean, teacher_variance) = moments
  normed = lambda x, mean, variance: (x - mean) * jax.lax.rsqrt(variance + 1e-12)
  shape = states(normed(student, mean, variance), normed(teacher, teacher_mean, teacher_variance), real)
  of_means = _of_positions(jnp.square(mean - teacher_mean)[..., 0], real)
  return shape, of_means, _of_positions(jnp.abs(variance - teacher_variance)[..., 0], real)


def cosine(student: jax.Array, teacher: jax.Array, real: jax.Array) -> jax.Array:
  """Returns 1 - cos of states, [..., batch, length, embed], summed over positions (Sanh et al. 2019)."""
  student, teacher = _float32(student, teacher)
  square = lambda x: jnp.sum(jnp.square(x), axis=-1)
  product = jnp.sum(student * teacher, axis=-1) * jax.lax.rsqrt(jnp.maximum(square(student) * square(teacher), 1e-24))
  return _of_positions(1.0 - product, real)


def attention(student: jax.Array, teacher: jax.Array, real: jax.Array, *, kind: str) -> jax.Array:
  """Returns the distance of attention, a mean over heads, and over keys for squared errors, and a sum over queries.

  Args:
    student, teacher: logits, [..., batch, heads, query, key], -inf where a query does not attend.
    real: queries that count, bool [batch, query].
    kind: scores: squared error of the logits (Jiao et al. 2020, equation 7); probabilities: of the softmax; kl: the KL
      divergence (Wang et al. 2020; Sun et al. 2020).
  """
  student, teacher = _float32(student, teacher)
  attends = jnp.isfinite(student) & jnp.isfinite(teacher)
  # A query that attends to nothing, such as padding, has equal probabilities, which do not count.
  student, teacher = (jnp.where(attends.any(axis=-1, keepdims=True), x, 0.0) for x in (student, teacher))
  if kind == "kl":
    of_queries = _divergence(jax.nn.log_softmax(teacher), jax.nn.log_softmax(student))
  else:
    compared = (student, teacher) if kind == "scores" else (jax.nn.softmax(student), jax.nn.softmax(teacher))
    errors = jnp.square(jnp.where(attends, compared[0], 0.0) - jnp.where(attends, compared[1], 0.0))
    of_queries = jnp.sum(errors, axis=-1) / jnp.maximum(jnp.sum(attends, axis=-1), 1)
  return _of_positions(jnp.mean(of_queries, axis=-2), real)


def relation_logits(x: jax.Array, attends: jax.Array, *, heads: int) -> jax.Array:
  """Returns scaled products of a layer's queries, keys or values with each other, [..., batch, heads, query, key].

  Args:
    x: [..., batch, heads, length, kv].
    attends: bool, broadcastable to the result; other logits are -inf.
    heads: number of relation heads, into which the features of all heads are split (Wang et al. 2021); 0: those of `x`.
  """
  x = x.astype(jnp.float32)
  if heads:
    joined = jnp.moveaxis(x, -3, -2)  # [..., batch, length, heads, kv]
    joined = joined.reshape(*joined.shape[:-2], heads, -1)
    x = jnp.moveaxis(joined, -2, -3)
  logits = jnp.einsum("...qk,...sk->...qs", x, x) * x.shape[-1] ** -0.5
  return jnp.where(attends, logits, -jnp.inf)
