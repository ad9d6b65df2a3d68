"""What answers behind the page of `t2t infer --server`: a model that writes, or one that is asked as each line is."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import functools
import json
import math
import threading
import time
from typing import Any, Protocol

import jax
import numpy as np

from t2t import UserError, sharding
from t2t.checkpoints import one_base, pretrained
from t2t.generation import choosing, decoding, line_files, lines, predictor, prompting, writing
from t2t.params import Params
from t2t.runtime import amounts

# What a request may ask for: a page is no place for more, and the memory for it is taken from the device.
_MAX_LENGTH, _MAX_BEAMS, _MAX_TOP_K = 1_024, 16, 1_000_000
_MAX_CHARACTERS, _MAX_TEXTS = 100_000, 256
_LONGEST_WAIT = 300.0  # seconds until the model is free
_SMALLEST_ROOM = 64  # positions; shorter texts are written with the same program

Event = dict[str, Any]


# ---- Requests --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Request:
  """What is to be written.

  adapter: the one that writes; "": the model itself.
  decode: how; its lengths are those that were asked for, whatever the model has room for.
  seed: of what is drawn.
  """

  inputs: str
  decode: decoding.DecodeConfig
  seed: int = 0
  adapter: str = ""


_LENGTH = 64  # that is written at most, if a request does not say

# option of `t2t infer`, which says what each is -> the least and the greatest value
_RANGES: dict[str, tuple[float, float]] = {
  "max_length": (1, _MAX_LENGTH),
  "min_length": (0, _MAX_LENGTH),
  "beam": (1, _MAX_BEAMS),
  "length_penalty": (-10, 10),
  "temperature": (0, 100),
  "top_p": (0, 1),
  "top_k": (0, _MAX_TOP_K),
  "seed": (0, 2**32 - 1),
}


def parse(body: bytes) -> Request:
  """The request that a JSON object makes.

  In:  b'{"inputs": "2 + 2 =", "beam": 4}'
  Out: Request("2 + 2 =", DecodeConfig(max_length=64, min_length=1, num_beams=4))

  Raises:
    UserError: what cannot be used, and what would be right.
  """
  fields = _fields(body)
  for name, value in fields.items():
    if name not in (*_TEXTS, *_RANGES):
      raise UserError(f"{name!r}: no such option; there are {', '.join((*_TEXTS, *_RANGES))}")
    accepted, kind = (str, "string") if name in _TEXTS else _NUMBERS[name in _FRACTIONS]
    if not isinstance(value, accepted) or isinstance(value, bool):
      raise UserError(f"{name}: is {json.dumps(value)[:40]}; give a {kind}")
    if name == "temperature" and 0 < value < decoding.LEAST_TEMPERATURE:
      raise UserError(f"{name}: is {value}; give {decoding.LEAST_TEMPERATURE} to 100, or 0 for the likeliest token")
    if name in _RANGES and not _RANGES[name][0] <= value <= _RANGES[name][1]:
      raise UserError(f"{name}: is {value}; give {_RANGES[name][0]} to {_RANGES[name][1]}")
  inputs, adapter, seed = fields.pop("inputs", ""), fields.pop("adapter", ""), fields.pop("seed", 0)
  if not _is_text(inputs):
    raise UserError("inputs: there is nothing to read; write something")
  try:
    return Request(inputs, writing.decode_config(**({"max_length": _LENGTH} | fields)), seed, adapter)
  except UserError as error:  # options that have nothing to do with each other, called as those of the command
    raise UserError(str(error).replace("--", "")) from None


class TooLarge(UserError):
  """A request that would hold the model too long."""


def _check_size(value: Any) -> None:
  """Texts are made tokens of before most of them is cut away: 900 kB took 11 s.

  Raises:
    TooLarge: there are more texts, or more characters in them, than may be.
  """
  texts, waiting = [], [value]
  while waiting:
    each = waiting.pop()
    if isinstance(each, str):
      texts.append(len(each))
    else:
      waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []
  if len(texts) > _MAX_TEXTS or sum(texts) > _MAX_CHARACTERS:
    raise TooLarge(
      f"the request has {sum(texts):,} characters in {len(texts):,} texts; {_MAX_CHARACTERS:,} in {_MAX_TEXTS} are the"
      " most; more is what `t2t infer --input FILE` is for"
    )


def _fields(body: bytes) -> dict[str, Any]:
  try:
    fields = json.loads(body)
  except (ValueError, RecursionError) as error:
    raise UserError(f"the request is not JSON: {error}") from None
  if not isinstance(fields, dict):
    raise UserError('the request is no JSON object; it must be like {"inputs": "..."}')
  _check_size(fields)
  return fields


_TEXTS = ("inputs", "adapter")
_FRACTIONS = ("length_penalty", "temperature", "top_p")
_NUMBERS = {True: ((int, float), "number"), False: (int, "whole number")}


def _is_text(text: str) -> bool:
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:  # half of a surrogate pair
    return False
  return bool(text.strip())


# ---- Models ----------------------------------------------------------------------------------------------------------


class Service(Protocol):
  """One model, which answers one request after another."""

  def about(self) -> Mapping[str, Any]:
    """What the page says of the model, and what it offers."""

  def parse(self, body: bytes) -> Any:
    """The request that a JSON object makes.

    Raises:
      UserError: what cannot be used, and what would be right.
    """

  def generate(self, request: Any) -> Iterator[Event]:
    """What happens until it is answered."""


def _waiting(device: threading.Lock) -> Iterator[Event]:
  """Takes the lock; meanwhile something is sent all the time, so that who has left is noticed."""
  until = time.monotonic() + _LONGEST_WAIT
  while not device.acquire(timeout=1.0):
    yield {"state": "waiting"}
    if time.monotonic() > until:
      raise UserError(f"the model was not free for {_LONGEST_WAIT:.0f} s; ask again later")


def make_mesh(tensor: int) -> jax.sharding.Mesh:
  """So many devices, over which a model is split; the others stay idle, since there is one row at a time.

  Raises:
    UserError: there are not so many.
  """
  devices = jax.devices()
  if not 1 <= tensor <= len(devices):
    raise UserError(f"--tensor {tensor}: there are {len(devices)} device(s)")
  return sharding.make_mesh({"tensor": tensor}, devices=devices[:tensor])


def facts(source: pretrained.Source, params: Params) -> dict[str, Any]:
  """What the page says of any model."""
  number = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
  path = source.path
  # By name: where it lies is nobody's business who opens the page.
  run, step = (path.parent.parent.name, path.name) if path.parent.name == "checkpoints" else (path.name, "")
  return {
    "architecture": source.model.architecture.replace("_", "-"),
    "parameters": amounts.compact_count(number),
    "checkpoint": run,
    "step": int(step) if step.isdigit() else None,
  }


def _adapters(names: Iterable[str]) -> dict[str, Any]:
  """The adapters that a request may name, as the page knows them."""
  found = [name for name in names if name != choosing.BASE]
  return {"adapters": found} if found else {}


class Writer:
  """One model, which answers one request after another.

  Args:
    source: its checkpoint.
    adapters: that lie on top of it, see `one_base.open_all`.
    ends_prompts: whether EOS ends an input, see `prompting.ends_prompts`.
    inputs_length: tokens of an input at most; 0: as in training.
    tensor: devices that the model is split over; the others stay idle, since there is one row at a time.
    defaults: how text is written unless the page says otherwise.
  """

  def __init__(
    self,
    source: pretrained.Source,
    *,
    adapters: Mapping[str, pretrained.Source] | None = None,
    ends_prompts: bool,
    inputs_length: int = 0,
    tensor: int = 1,
    defaults: decoding.DecodeConfig,
  ):
    self._source = source
    self._defaults = defaults
    self._mesh = make_mesh(tensor)
    self._vocabulary = pretrained.vocabulary(source)
    self._framing = predictor.framing(self._vocabulary, causal=pretrained.reads_causally(source))
    sources = choosing.asked(source, adapters or {})
    # Whichever is asked, what it is asked fits.
    shortest = min(sources.values(), key=lambda each: each.asked.most_positions)
    self._asked = shortest.asked
    most = self._room(_MAX_LENGTH)
    self._max_inputs = prompting.longest_prompt(shortest, inputs_length=inputs_length, max_length=most)
    self._prompts = prompting.Prompts(self._vocabulary, ends=ends_prompts, longest=self._max_inputs)
    self._extra = int(source.model.kind.continues)  # BOS
    decoding.check_positions(self._asked, self._max_inputs + self._extra, most)
    self._models = {name: pretrained.abstract(each, self._mesh) for name, each in sources.items()}
    # Of models that are alike but for their numbers one has the programs.
    self._alike = {
      name: next(other for other, each in self._models.items() if each.graphdef == model.graphdef)
      for name, model in self._models.items()
    }
    self._params = one_base.load(source, adapters or {}, self._mesh)
    self._device = threading.Lock()
    # A program for each choice of options; of those that were not used for long the memory is given back.
    self._stream = functools.lru_cache(maxsize=16)(self._make_stream)
    self._beams = functools.lru_cache(maxsize=16)(self._make_beams)
    self._compiled: set[tuple] = set()

  def about(self) -> dict[str, Any]:
    """What the page says of the model, and what it offers."""
    defaults = self._defaults
    mode = "beam" if defaults.num_beams > 1 else "sample" if defaults.temperature else "greedy"
    shown = {"mode": mode, "max_length": defaults.max_length}
    if defaults.min_length != (mode == "beam"):  # what a request gets that does not say
      shown["min_length"] = defaults.min_length
    if mode == "beam":
      shown |= {"beam": defaults.num_beams, "length_penalty": defaults.length_penalty}
    if mode == "sample":
      shown |= {name: getattr(defaults, name) for name in ("temperature", "top_p", "top_k")}
    return (
      facts(self._source, self._params[choosing.BASE])
      | _adapters(self._models)
      | {
        "asks": "write",
        "max_inputs": self._max_inputs,
        "max_length": self._room(_MAX_LENGTH),
        "defaults": shown,
      }
    )

  def parse(self, body: bytes) -> Request:
    """See `parse`; and whether there is the adapter that it names."""
    request = parse(body)
    choosing.named(request.adapter or None, list(self._models), "the request")
    return request

  def generate(self, request: Request) -> Iterator[Event]:
    """What happens until the text is written; each event has the whole text so far.

    The last one has "ended", whether the model came to the end; before it come any number of {"state": "waiting"},
    {"state": "compiling"}, {"state": "searching"} and {"prediction": text, "tokens": number, "tokens_per_second": ...}.
    """
    yield from _waiting(self._device)
    try:
      tokens, cut = self._prompts(request.inputs)
      if cut:
        yield {"cut": cut}
      yield from (self._search if request.decode.num_beams > 1 else self._write)(tokens, request)
    finally:
      self._device.release()

  # ---- With beams ----------------------------------------------------------

  def _search(self, tokens: list[int], request: Request) -> Iterator[Event]:
    config = self._within(request.decode, self._room(request.decode.max_length))
    predictor = self._beams(config, self._alike[request.adapter])
    seen = self._seen(config, len(tokens), request.adapter)
    yield {"state": "searching" if seen else "compiling"}
    start = time.monotonic()
    generation = predictor.generate(self._params[request.adapter], [tokens])[0]
    found = prompting.answer(generation, self._vocabulary)
    ended = len(generation.tokens[0]) < config.max_length
    number = len(generation.tokens[0]) + ended
    speed = {"tokens_per_second": number / (time.monotonic() - start)} if seen else {}
    yield found | speed | {"tokens": number, "ended": ended}

  def _make_beams(self, config: decoding.DecodeConfig, name: str) -> predictor.Predictor:
    return predictor.Predictor(
      self._models[name].config,
      self._models[name].graphdef,
      self._mesh,
      self._framing,
      decode=config,
      batch_size=1,
      max_inputs=self._max_inputs,
    )

  # ---- Token by token ------------------------------------------------------

  def _write(self, tokens: list[int], request: Request) -> Iterator[Event]:
    limit = self._room(request.decode.max_length)
    # Room for more than is asked for: the options' program then serves all lengths up to that.
    room = self._room(max(_SMALLEST_ROOM, 1 << (limit - 1).bit_length()))
    config = dataclasses.replace(self._within(request.decode, limit), max_length=room)
    begin, advance = self._stream(config, self._alike[request.adapter])
    params = self._params[request.adapter]
    if not self._seen(config, len(tokens), request.adapter):
      yield {"state": "compiling"}
    with jax.set_mesh(self._mesh):
      # The key of the first line of a file.
      keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(request.seed), np.zeros(1, np.uint32))
      carry = begin(params, self._features(tokens), keys)
    while True:
      with jax.set_mesh(self._mesh):
        carry = advance(params, carry)
        written, position, score = jax.device_get((carry.tokens[0], carry.position, carry.scores[0]))
      written = written[:position].tolist()
      ended = written[-1] == self._framing.eos_id
      text = self._vocabulary.decode(written[:-1] if ended else written)
      event: Event = {"prediction": text, "tokens": len(written)}
      if len(written) == 1:
        first = time.monotonic()  # before it came the prompt, and perhaps the compiler
      else:
        event["tokens_per_second"] = (len(written) - 1) / (time.monotonic() - first)
      if ended or len(written) == limit:
        yield event | {"score": prompting.rounded(score), "ended": ended}
        return
      # Half of a character that is made of several bytes.
      yield event | {"prediction": text.rstrip("\ufffd")}

  def _make_stream(self, config: decoding.DecodeConfig, name: str):
    return decoding.make_stream(self._models[name].graphdef, config, eos_id=self._framing.eos_id, tokens_per_call=1)

  def _features(self, tokens: list[int]) -> Mapping[str, np.ndarray]:
    width = predictor.bucket(len(tokens) + self._extra, self._max_inputs + self._extra)
    architecture = self._source.model.architecture
    return predictor.prompt_features([tokens], width, architecture=architecture, framing=self._framing)

  # ---- Sizes ---------------------------------------------------------------

  def _room(self, max_length: int) -> int:
    """`max_length`, or as many positions as the model has learned to write in."""
    most = self._asked.most_positions
    if self._source.model.kind.continues:
      most //= 2  # the other half is the prompt's
    return min(max_length, most) if most else max_length

  def _within(self, config: decoding.DecodeConfig, limit: int) -> decoding.DecodeConfig:
    """How a text is written that has no more tokens, whose least number is not more, either."""
    return dataclasses.replace(config, max_length=limit, min_length=min(config.min_length, limit))

  def _seen(self, config: decoding.DecodeConfig, length: int, name: str) -> bool:
    """Whether this has been asked for before; if not, it has to be compiled."""
    program = (self._alike[name], config, predictor.bucket(length + self._extra, self._max_inputs + self._extra))
    known = program in self._compiled
    self._compiled.add(program)
    return known


# ---- With heads and blanks -------------------------------------------------------------------------------------------


class Asker:
  """A model that is asked as each line of a file is.

  Args:
    source: its checkpoint.
    make_way: how it is asked, on a mesh.
    adapters: that lie on top of it, see `one_base.open_all`; the way chooses among them.
    tensor: devices that the model is split over.
  """

  def __init__(
    self,
    source: pretrained.Source,
    make_way: Callable[[jax.sharding.Mesh], lines.Way],
    *,
    adapters: Mapping[str, pretrained.Source] | None = None,
    tensor: int = 1,
  ):
    mesh = make_mesh(tensor)
    self._source, self._way, self._adapters = source, make_way(mesh), adapters or {}
    of_all = one_base.load(source, self._adapters, mesh)
    self._base = of_all[choosing.BASE]
    self._params = of_all if adapters else self._base
    self._device, self._widths = threading.Lock(), set()

  def about(self) -> dict[str, Any]:
    """What the page says of the model, and what it is asked."""
    found = facts(self._source, self._base) | _adapters(self._adapters)
    head = {"head": self._way.options["head"]} if "head" in self._way.options else {}
    return found | head | {"asks": self._way.asks, "pairs": self._way.pairs, "max_inputs": self._way.longest}

  def parse(self, body: bytes) -> line_files.Line:
    """The line that a JSON object makes, as one of a file.

    In:  b'{"parts": ["a", "b"], "candidates": ["c", "d"]}'
    Out: Line(1, "a b", {"parts": ["a", "b"], "candidates": ["c", "d"]})

    Raises:
      UserError: what cannot be used, and what would be right.
    """
    where = "the request"
    fields = _fields(body)
    form = self._way.form
    known = (form.field, *form.lists, *form.needs, *form.may)
    for name in fields:
      if name not in known:
        raise UserError(f"{name!r}: no such option; there are {', '.join(known)}")
    text = fields.pop(form.field, None)
    for name in form.lists:
      if text is None and name in fields:
        text = " ".join(line_files.texts(fields, name, where))
    if not isinstance(text, str) or not _is_text(text):
      raise UserError(f"{form.field}: there is nothing to read; write something")
    line = line_files.Line(1, text, fields)
    self._way.check(line, where)
    return line

  def generate(self, request: line_files.Line) -> Iterator[Event]:
    """What happens until it is answered, see `Writer.generate`; the last event has the fields of a row."""
    yield from _waiting(self._device)
    try:
      asked = self._way.read(request)
      if asked.error:
        raise UserError(f"{asked.error}: {_HINTS[asked.error]}")
      if asked.cut:
        yield {"cut": asked.cut}
      width = predictor.bucket(asked.tokens - asked.cut, self._way.longest)
      if width not in self._widths:
        yield {"state": "compiling"}
        self._widths.add(width)
      (answer,) = self._way.answer(self._params, [asked.given], numbers=[0], done=None)
      yield answer | {"tokens": asked.tokens - asked.cut, "ended": True}
    finally:
      self._device.release()


# What is wrong with a text -> what would be right.
_HINTS = {
  lines.NO_BLANK: "write [MASK] where a word is to be filled in",
  lines.NO_CONTEXT: "give the text that the answer is looked for in",
}
