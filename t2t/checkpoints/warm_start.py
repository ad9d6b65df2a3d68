"""Selects the parameters that training takes from a checkpoint: all or some, renamed or resized."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import difflib
import math
import re
import textwrap
from typing import Any

import jax
import jax.numpy as jnp

from t2t import UserError
from t2t.checkpoints import pretrained
from t2t.checkpoints.vocab_transfer import Pieces, dimensions
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params, flatten, matches, stack_of, unflatten
from t2t.runtime import amounts, hosts

Shape = tuple[int, ...]

_WIDTH = 80  # columns of log lines


@dataclasses.dataclass(frozen=True)
class TransferPlan:
  """Sources of the parameters of a model.

  taken: path in the model -> path in the checkpoint; other parameters of the model are fresh, others of the checkpoint
    are left behind.
  shared: path in the model -> (dimension, length) of parameters that differ in one dimension: the common part is taken.
  """

  taken: Mapping[str, str]
  shared: Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Taken:
  """Parameters read from a checkpoint, to be combined with fresh ones.

  params: nested dict of arrays, in the shapes and shards of the model, except with `transfer_vocab`; without fresh
    parameters.
  shared: see `TransferPlan`; outside the common part `params` are zeros.
  source: the checkpoint.
  names: path in the model -> path in the checkpoint, for all of `params`.
  pieces: mapping of the vocabulary's rows to rows of the checkpoint.
  by_piece: path in the model -> dimension of the parameters that the mapping applies to; they have all rows of the
    checkpoint.
  tiled: path in the model -> first row of `shared` parameters that is repeated in the rows behind the common part.
  """

  params: Params
  shared: Mapping[str, tuple[int, int]]
  source: pretrained.Source
  names: Mapping[str, str]
  pieces: Pieces | None = None
  by_piece: Mapping[str, int] = dataclasses.field(default_factory=dict)
  tiled: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def fresh_in(self, params: Params) -> list[str]:
    """Returns the paths in `params` that are fresh, even if only in new rows."""
    taken = flatten(self.params)
    resized = self.by_piece if self.pieces is not None and self.pieces.changes else {}
    rows_are_new = lambda path, x: path in resized or (path in self.shared and self._rows_are_new(path, x.shape))
    is_fresh = lambda path, x: path not in taken or (path not in self.tiled and rows_are_new(path, x))
    return [path for path, x in flatten(params).items() if is_fresh(path, x)]

  def _rows_are_new(self, path: str, shape: Shape) -> bool:
    dimension, length = self.shared[path]
    return shape[dimension] > length

  def over(self, fresh: Params, params: Params) -> Params:
    """Returns all parameters of the model, taken or fresh; for `Program.init_from_params`.

    Args:
      fresh: of the whole model.
      params: `self.params`, as arguments of a compiled program.
    """
    merged = flatten(fresh)
    for path, x in flatten(params).items():
      if path in self.by_piece:
        assert self.pieces is not None
        x = self.pieces.rows(x, merged[path], self.by_piece[path])
      elif path in self.tiled:
        (dimension, length), first = self.shared[path], self.tiled[path]
        rows = jnp.arange(x.shape[dimension])
        x = jnp.take(x, jnp.where(rows < length, rows, first + (rows - first) % (length - first)), axis=dimension)
      elif path in self.shared:
        dimension, length = self.shared[path]
        x = jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, dimension) < length, x, merged[path])
      merged[path] = x
    return unflatten(merged)


def warm_start(
  source: pretrained.Source,
  initial: Params,
  *,
  fresh: tuple[str, ...] = (),
  parts: tuple[str, ...] = (),
  rows: tuple[str, ...] = (),
  repeated: tuple[str, ...] = (),
  pieces: Pieces | None = None,
  layers: tuple[int, ...] = (),
  base_path: Callable[[str], str | None] = lambda path: path,
  model: TransformerConfig | None = None,
  elsewhere: tuple[str, ...] = (),
  whole_model: bool = True,
) -> Taken:
  """Reads the initial parameters of a model from a checkpoint, directly into shards, and logs what was taken.

  Without `fresh`, `parts` and `rows` every parameter is taken, with the same name and shape.  Only parameters that they
  select are fresh or left behind.  From an ELECTRA checkpoint the discriminator is taken, unless the model is trained
  by ELECTRA, too, and `parts` is empty: then both are taken.

  For example, a BERT with a pooler was trained on a vocabulary of 30,000, and its encoder initializes both sides of an
  encoder-decoder with 400 more pieces, whose cross-attention BERT lacks:

    fresh=("cross_attention", "head")
    parts=("embed", "encoder", "encoder=decoder")
    rows=("embed/table",)

  The pooler is left behind, because no part contains it.  The rows of the new pieces are fresh.

  Args:
    source: the checkpoint.
    initial: the model's parameters as `jax.ShapeDtypeStruct` with shardings; nested dict.
    fresh: patterns; a parameter with a matching path in the model keeps its initial value.
    parts: "THEIRS=OURS", path prefixes in the checkpoint and in the model, whole words between slashes;
      "NAME" is "NAME=NAME", and "." is everything: (".=discriminator",) puts a model into another, and
      (".", "head/old=head/new") takes everything, with one parameter renamed.  The longest matching prefix of the
      model counts.  Empty: (".",), and a parameter without a place in the model is an error.
    rows: patterns; a parameter with a matching path in the model may differ from the checkpoint's in the length of
      one dimension: ids of a vocabulary, positions, layers.  Row i is copied to row i: pieces must keep their ids.
    repeated: patterns as `rows`; the rows behind those of the checkpoint repeat them, without position_offset rows of
      a table of positions.
    pieces: mapping of the vocabulary's rows to rows of the checkpoint; None: row i is copied to row i.
    layers: layers of the checkpoint's stacks, from 0, that become the model's layers in order; (): all of them.
    base_path: path of a parameter -> its path in the model without adapters; None: the adapter added it.
    elsewhere: patterns of paths that another checkpoint initializes; without `parts` they are left behind here.
    model: config of the model; None: new heads do not take t2t poolers as described below.
    whole_model: whether errors may advise keys of config.init that apply to the whole model only.

  Parameters of an adapter are fresh, and so are heads that the checkpoint lacks. Such a head takes an existing pooler:
  that of a Hugging Face checkpoint, or in t2t that of the one head trained beside tokens (BERT's NSP), if the new head
  has the same.  Heads that the model lacks are left behind.

  Raises:
    UserError: a parameter is neither fresh nor in the checkpoint, or has another shape; a parameter of the checkpoint
      has no place; or a pattern matches nothing.
  """
  flat: Any = flatten(initial)
  places = {base: path for path in flat if (base := base_path(path)) is not None}
  wanted = {base: flat[path] for base, path in places.items()}
  ours = {path: tuple(x.shape) for path, x in sorted(wanted.items())}
  if source.part and not parts and any(path.startswith(source.prefix) for path in ours):
    source = dataclasses.replace(source, part="")  # same loss: take the jointly trained modules too
  there = dict(sorted(pretrained.shapes(source, ours).items()))
  old = {head.name for head in source.model.heads}
  named = [part.split("=")[-1].strip("/") for part in parts if "heads" in part]
  new = [path for path in ours if _head(path) and _head(path) not in old and path not in there]
  new = [path for path in new if not any(_under(name, path) for name in named)]
  user_fresh, fresh = fresh, (*fresh, *(f"^{re.escape(path)}$" for path in new))
  has_place = lambda path: not _head(path) or path in ours or named or _goes_to(path, parts) & ours.keys()
  stays = lambda path: not parts and matches(elsewhere, path)
  theirs = {path: shape for path, shape in there.items() if has_place(path) and not stays(path)}
  all_layers = theirs
  theirs = _of_layers(source, theirs, layers) if layers else theirs
  dimension = dimensions(ours, model) if pieces is not None else {}
  _check_patterns("tile", repeated, ours)
  rows = (*rows, *repeated, *(f"^{re.escape(path)}$" for path in dimension))
  where = f"config.init.checkpoint: {source.name}"
  transfer_plan = plan(where, theirs, ours, fresh=fresh, parts=parts, rows=rows, whole_model=whole_model)
  dimension = {path: axis for path, axis in dimension.items() if path in transfer_plan.taken}
  transfer_plan = dataclasses.replace(
    transfer_plan, shared={path: x for path, x in transfer_plan.shared.items() if path not in dimension}
  )
  poolers = {} if model is None else _poolers(source, model, there, ours)
  is_taken = lambda path, name: path in new and not matches(user_fresh, path) and (not parts or _goes_to(name, parts))
  poolers = {path: name for path, name in poolers.items() if is_taken(path, name)}
  transfer_plan = dataclasses.replace(transfer_plan, taken={**transfer_plan.taken, **poolers})
  plain = (
    not transfer_plan.shared
    and not dimension
    and transfer_plan.taken == {path: path for path in ours}
    and ours.keys() == there.keys()
  )
  lines = [
    f"starting from the parameters of {source.name}",
    *([] if plain else _report(transfer_plan, there, ours, poolers, repeated)),
    *(_lines("layers:", [_layers_text(layers, all_layers)]) if layers else []),
  ]
  hosts.log_once("\n".join([*lines, *(_lines("rows by their pieces:", [f"{pieces}"]) if dimension else [])]))
  read_as = dict(wanted)
  for path, axis in dimension.items():  # all checkpoint rows, padded as the mesh requires
    shape, rows_there = list(ours[path]), there[transfer_plan.taken[path]][axis]
    shape[axis] *= -(-rows_there // shape[axis])
    read_as[path] = wanted[path].update(shape=tuple(shape))
  picked = [path for path, name in transfer_plan.taken.items() if layers and theirs[name] != all_layers[name]]
  for path in picked:  # likewise all layers
    shape = list(ours[path])
    shape[0] *= -(-all_layers[transfer_plan.taken[path]][0] // shape[0])
    read_as[path] = wanted[path].update(shape=tuple(shape))
  read = pretrained.read(source, {path: (name, read_as[path]) for path, name in transfer_plan.taken.items()})
  if picked:
    read |= _picked({path: read[path] for path in picked}, wanted, layers)
  params = unflatten({places[path]: x for path, x in read.items()})
  names = {places[path]: name for path, name in transfer_plan.taken.items()}
  shared = {places[path]: shared for path, shared in transfer_plan.shared.items()}
  by_piece = {places[path]: axis for path, axis in dimension.items()}
  unused = lambda path: source.model.position_offset if path.endswith("/positions") else 0
  tiled = {places[path]: unused(path) for path in transfer_plan.shared if matches(repeated, path)}
  return Taken(params, shared, source, names, pieces, by_piece, tiled)


def _picked(read: Mapping[str, jax.Array], wanted: Mapping[str, Any], layers: tuple[int, ...]) -> dict[str, jax.Array]:
  """Selects layers of stacked parameters; the initialization can reuse arrays of the model's shapes only."""
  select = lambda arrays: {path: jnp.take(x, jnp.asarray(layers), axis=0) for path, x in arrays.items()}
  return jax.jit(select, out_shardings={path: wanted[path].sharding for path in read})(dict(read))


def _layers_text(layers: tuple[int, ...], shapes: Mapping[str, Shape]) -> str:
  """Returns the selected layers of the checkpoint, and their number in each stack."""
  numbers = {path.split("/")[0]: shape[0] for path, shape in shapes.items() if stack_of(path)}
  of = " and ".join(f"{number} of the {side}" for side, number in numbers.items())
  return f"{', '.join(map(str, layers))} of the checkpoint's, which are {of}, counted from 0"


def _of_layers(source: pretrained.Source, theirs: Mapping[str, Shape], layers: tuple[int, ...]) -> dict[str, Shape]:
  """Returns the checkpoint's shapes with a selection of its layers.

  Raises:
    UserError: the layers share parameters or alternate, or the checkpoint has fewer layers.
  """
  where = f"config.init.layers={','.join(map(str, layers))}"
  stacked = {path: shape for path, shape in theirs.items() if stack_of(path)}
  if not stacked or any(stack_of(path).count("layers") > 1 for path in stacked):
    raise UserError(
      f"{where}: {source.path} has layers that share their parameters or are of several kinds, so single layers cannot "
      "be selected. Leave out config.init.layers."
    )
  for path, shape in stacked.items():
    if shape[0] <= max(layers):
      raise UserError(
        f"{where}: the {path.split('/')[0]} of {source.path} has {shape[0]} layers, 0 to {shape[0] - 1}. Give layers "
        "that exist."
      )
  return {path: (len(layers), *shape[1:]) if path in stacked else shape for path, shape in theirs.items()}


def _head(path: str) -> str:
  """Returns the name of the head that a parameter belongs to; "" if none."""
  return path.split("/")[1] if path.startswith("heads/") else ""


_POOLER = ("pooler", "pooler_bias", "norm/scale", "norm/bias")


def _poolers(
  source: pretrained.Source, model: TransformerConfig, theirs: Mapping[str, Shape], ours: Mapping[str, Shape]
) -> dict[str, str]:
  """Maps pooler parameters of heads to the pooler of the one head that t2t trained beside tokens, if equal."""
  if source.foreign is not None or not pretrained.predicts_tokens(source):
    return {}

  def poolers(of: TransformerConfig, shapes: Mapping[str, Shape]) -> dict[str, tuple]:
    """Returns head name -> description of its pooler."""
    by_head = {}
    for head in of.heads:
      head, pooler_shapes = (
        head.spelled_out(of.kind),
        {name: shapes.get(f"heads/{head.name}/{name}") for name in _POOLER},
      )
      activation = of.mlp_activation if head.pooler == "norm" else head.pooler
      by_head |= {head.name: (head.reads, head.pooler, activation, pooler_shapes)} if pooler_shapes["pooler"] else {}
    return by_head

  trained = poolers(source.model, theirs)
  if len(trained) != 1:
    return {}
  ((name, pooler),) = trained.items()
  same = [head for head, other_pooler in poolers(model, ours).items() if head != name and other_pooler == pooler]
  parts = [part for part, shape in pooler[-1].items() if shape]
  return {f"heads/{head}/{part}": f"heads/{name}/{part}" for head in same for part in parts}


# ---- Selection -------------------------------------------------------------------------------------------------------


def plan(
  where: str,
  theirs: Mapping[str, Shape],
  ours: Mapping[str, Shape],
  *,
  fresh: tuple[str, ...] = (),
  parts: tuple[str, ...] = (),
  rows: tuple[str, ...] = (),
  whole_model: bool = True,
) -> TransferPlan:
  """Computes the sources of all parameters; see `warm_start`.

  In:  theirs={"embed/table": (30, 8), "pooler": (8, 8)}, ours={"bert/embed/table": (32, 8), "heads/label": (8, 3)},
       fresh=("heads",), parts=("embed=bert/embed",), rows=("table",)
  Out: TransferPlan(taken={"bert/embed/table": "embed/table"}, shared={"bert/embed/table": (0, 30)})

  Args:
    where: the checkpoint, for messages.
    theirs: path -> shape, of the checkpoint.
    ours: path -> shape, of the model.
    fresh: see `warm_start`; `parts`, `rows` and `whole_model`, too.

  Raises:
    UserError: see there.
  """
  _check_patterns("reinit", fresh, ours)
  _check_patterns("resize", rows, ours)
  pairs = _pairs(where, parts, theirs, ours) or {"": ""}
  taken = {path: _counterpart(path, pairs) for path in ours if not matches(fresh, path)}
  _check_found(where, taken, theirs, renamed=bool(parts))
  _check_placed(where, pairs, theirs, ours, fresh)
  if not taken:
    raise UserError(
      f"config.init.reinit={','.join(fresh)} selects every parameter, so nothing is taken from {where}. Select fewer "
      "parameters, or leave the checkpoint out."
    )
  shared, wrong = {}, []
  for path, name in taken.items():
    differ = [i for i, (a, b) in enumerate(zip(ours[path], theirs[name], strict=False)) if a != b]
    if len(ours[path]) != len(theirs[name]) or len(differ) > 1 or (differ and not matches(rows, path)):
      wrong.append(path)
    elif differ:
      shared[path] = differ[0], min(ours[path][differ[0]], theirs[name][differ[0]])
  if wrong:
    raise UserError(_other_shape(where, wrong, taken, theirs, ours, rows, whole_model=whole_model))
  return TransferPlan(taken, shared)


def _under(prefix: str, path: str) -> bool:
  return not prefix or path == prefix or path.startswith(f"{prefix}/")


def _moved(path: str, prefix: str, new_prefix: str) -> str:
  """Replaces the prefix of a path."""
  return "/".join(filter(None, (new_prefix, path[len(prefix) :].strip("/"))))


def _counterpart(path: str, pairs: Mapping[str, str]) -> str:
  """Returns the checkpoint's name of a parameter of the model; "" if no part contains it."""
  near = [prefix for prefix in pairs if _under(prefix, path)]
  return _moved(path, max(near, key=len), pairs[max(near, key=len)]) if near else ""


def _names(part: str) -> list[str]:
  """Splits THEIRS=OURS or NAME; "" stands for everything."""
  return [name.strip("/").removeprefix(".") for name in part.split("=")]


def _goes_to(path: str, parts: tuple[str, ...]) -> set[str]:
  """Returns the names in the model of a parameter of the checkpoint, by the parts that contain it."""
  pairs = map(_names, parts)
  return {_moved(path, pair[0], pair[-1]) for pair in pairs if _under(pair[0], path)}


def _pairs(where: str, parts: tuple[str, ...], theirs: Collection[str], ours: Collection[str]) -> dict[str, str]:
  """Returns prefix in the model -> prefix in the checkpoint."""
  prefixes: dict[str, str] = {}
  for part in parts:
    names = _names(part)
    if len(names) > 2:
      raise UserError(
        f"config.init.rename: {part!r} has more than one '='. Give THEIRS=OURS, for example encoder=decoder."
      )
    for name, paths, owner in ((names[0], theirs, where), (names[-1], ours, "the model")):
      if not any(_under(name, path) for path in paths):
        raise UserError(f"config.init.rename={part}: no {name!r} in {owner}{_nearest(name, paths)}. Correct the name.")
    if names[-1] in prefixes:
      raise UserError(
        f"config.init.rename={','.join(parts)}: {names[-1] or '.'} of the model occurs twice. Leave one entry out."
      )
    prefixes[names[-1]] = names[0]
  return prefixes


# ---- Errors ----------------------------------------------------------------------------------------------------------


def _check_patterns(key: str, patterns: tuple[str, ...], ours: Collection[str]) -> None:
  for pattern in patterns:
    try:
      has_match = any(matches((pattern,), path) for path in ours)
    except re.error as error:
      raise UserError(
        f"config.init.{key}: {pattern!r} is not a regular expression ({error}). Correct the pattern."
      ) from error
    if not has_match:
      near = _nearest(pattern, ours)
      raise UserError(f"config.init.{key}: {pattern!r} matches no parameter of the model{near}. Correct the pattern.")


def _check_found(where: str, taken: Mapping[str, str], theirs: Collection[str], *, renamed: bool) -> None:
  missing = [path for path, name in taken.items() if name not in theirs]
  if not missing:
    return
  path, there = missing[0], [path for path in taken if path not in missing]
  name = taken[path]
  if name:
    problem = f"{where} has no {name}" + (f" for {path}" if name != path else "")
  else:
    problem = f"{where}: config.init.rename has no source for {path}"
  begin = ",".join(_cover(missing, there))
  parts = "config.init.rename" if renamed else "config.init.rename=.,THEIRS=OURS"
  if not all(path in theirs and not taken[path] for path in missing):
    near, take = _nearest(name or path, theirs), f"To take another parameter, give {parts}."
  else:
    near, take = "", f"To take the checkpoint's parameters, add {begin} to {parts}."
  fresh = f"To start with fresh values, give config.init.reinit={begin}."
  raise UserError(f"{problem}{_more(missing)}{near}. {fresh} {take}")


def _check_placed(
  where: str, pairs: Mapping[str, str], theirs: Collection[str], ours: Collection[str], fresh: tuple[str, ...]
) -> None:
  """Raises an error if a parameter in a part has no place in the model, not even a fresh one."""
  lost = []
  for name in theirs:
    places = [_moved(name, theirs_, ours_) for ours_, theirs_ in pairs.items() if _under(theirs_, name)]
    if places and not any(target in ours or matches(fresh, target) for target in places):
      lost.append(name)
  if lost:
    remedy = "select "
    if pairs == {"": ""}:
      remedy += (
        f"the other parts: config.init.rename={','.join(_cover([name for name in theirs if name not in lost], lost))}"
      )
    else:
      remedy += "smaller parts in config.init.rename"
    raise UserError(
      f"{where} has {lost[0]}{_more(lost)}, which the model lacks{_nearest(lost[0], ours)}. "
      f"To leave {lost[0]} behind, {remedy}."
    )


def _other_shape(
  where: str,
  wrong: Sequence[str],
  taken: Mapping[str, str],
  theirs: Mapping[str, Shape],
  ours: Mapping[str, Shape],
  rows: tuple[str, ...],
  *,
  whole_model: bool,
) -> str:
  path = wrong[0]
  name, matching = taken[path], [path for path in ours if path not in wrong]
  differs_once = (
    len(ours[path]) == len(theirs[name]) and sum(a != b for a, b in zip(ours[path], theirs[name], strict=True)) == 1
  )
  message = f"{where}: {name}: expected {list(ours[path])}, found {list(theirs[name])}{_more(wrong)}"
  shape = ". To train a model of the checkpoint's shape, give config.init.use_model_config=True" if whole_model else ""
  is_other_model = len(dimensions(wrong, None)) < len(wrong)  # more than the vocabulary's rows differ
  message += shape if is_other_model else ""
  if matches(rows, path):
    message += ". config.init.resize allows a difference in one dimension only"
  elif differs_once:
    message += f". To take the common rows, give config.init.resize={path}"
    if whole_model and dimensions([path], None):
      message += ". To map rows by their tokens, give config.init.transfer_vocab=True"
  message += f". To start with fresh values, give config.init.reinit={','.join(_cover(wrong, matching))}"
  return f"{message}{'' if is_other_model else shape}."


def _more(paths: Sequence[str]) -> str:
  return f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""


def _nearest(name: str, paths: Collection[str]) -> str:
  """Returns the nearest paths and path prefixes, for a message."""
  words = [path.split("/") for path in paths]
  known = dict.fromkeys("/".join(segments[:end]) for segments in words for end in range(1, len(segments) + 1))
  near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
  return (
    f"; nearest: {', '.join(near)}"
    if near
    else f"; known parts: {', '.join(dict.fromkeys(segments[0] for segments in words))}"
  )


def _cover(paths: Collection[str], excluded: Collection[str]) -> list[str]:
  """Returns the shortest path prefixes that cover all of `paths` and none of `excluded`.

  In:  paths=["embed/table", "head/bias", "head/norm"], excluded=["embed/norm"]
  Out: ["embed/table", "head"]
  """
  cover: list[str] = []
  for path in paths:
    if not any(_under(prefix, path) for prefix in cover):
      words = path.split("/")
      prefixes = ["/".join(words[: end + 1]) for end in range(len(words))]
      cover.append(
        next(prefix for prefix in prefixes if not any(_under(prefix, excluded_path) for excluded_path in excluded))
      )
  return cover


# ---- Log -------------------------------------------------------------------------------------------------------------


def _report(
  transfer_plan: TransferPlan,
  theirs: Mapping[str, Shape],
  ours: Mapping[str, Shape],
  poolers: Mapping[str, str],
  repeated: tuple[str, ...] = (),
) -> list[str]:
  """Returns lines on taken, resized, fresh and left-behind parameters: each changed part, with its number of
  parameters.
  """
  used = dict.fromkeys(transfer_plan.taken.values())
  fresh, left = (
    [path for path in ours if path not in transfer_plan.taken],
    [name for name in theirs if name not in used],
  )
  same = [path for path, name in transfer_plan.taken.items() if path == name]
  renamed: dict[tuple[str, str], int] = {}
  for path, name in transfer_plan.taken.items():
    if path != name:
      # If a new head takes only a pooler, the pair is the pooler's path.
      heads = f"heads/{_head(path)}/pooler", f"heads/{_head(name)}/pooler"
      pair = heads if path in poolers else _differ(path, name)
      renamed[pair] = renamed.setdefault(pair, 0) + math.prod(ours[path])
  taken = _cover(same, [path for path in ours if path not in same])
  taken += [f"{old} as {new} ({amounts.compact_count(number)})" for (new, old), number in renamed.items()]
  resized, new_rows, number = [], 0, sum(math.prod(ours[path]) for path in transfer_plan.taken)
  for path, (dimension, length) in transfer_plan.shared.items():
    before, after = theirs[transfer_plan.taken[path]][dimension], ours[path][dimension]
    resized.append(f"{path} {before} to {after} ({amounts.compact_count(math.prod(ours[path]))})")
    new_rows += 0 if matches(repeated, path) else math.prod(ours[path]) // after * (after - length)
  number -= new_rows
  sizes = sum(map(math.prod, ours.values())) - number, sum(math.prod(theirs[name]) for name in left)
  begun = {
    prefix: sum(math.prod(ours[path]) for path in fresh if _under(prefix, path))
    for prefix in _cover(fresh, transfer_plan.taken)
  }
  begun = ({"new rows": new_rows} if new_rows else {}) | begun
  label, names = f"taken: {amounts.compact_count(number)} parameters in", taken
  if len(renamed) == 1 and not same and next(iter(renamed))[1] == ".":  # the whole checkpoint is a part of the model
    label, names = f"taken: {amounts.compact_count(number)} parameters as", [next(iter(renamed))[0]]
  lines = {
    label: names,
    "resized:": resized,
    f"fresh: {amounts.compact_count(sizes[0])} in": [f"{x} ({amounts.compact_count(n)})" for x, n in begun.items()],
  }
  report_lines = [line for label, names in lines.items() if names for line in _lines(label, names)]
  # Left-behind parameters do not affect the model.
  return [
    *report_lines,
    *([_line(f"left behind: {amounts.compact_count(sizes[1])} in", _cover(left, used))] if left else []),
  ]


def _differ(path: str, name: str) -> tuple[str, str]:
  """Strips the common ending of two paths."""
  new, old = path.split("/"), name.split("/")
  while new and old and new[-1] == old[-1]:
    new, old = new[:-1], old[:-1]
  return "/".join(new) or ".", "/".join(old) or "."


def _lines(label: str, names: Sequence[str]) -> list[str]:
  """Formats all names on as many lines as they need."""
  return textwrap.wrap(f"{label} {', '.join(names)}", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _line(label: str, names: Sequence[str]) -> str:
  """Formats the names that fit on one line."""
  line = ""
  for shown in range(len(names), 0, -1):
    more = f" and {len(names) - shown} more" if shown < len(names) else ""
    line = f"  {label} {', '.join(names[:shown])}{more}"
    if len(line) <= _WIDTH:
      break
  return line
