"""Adapters of Hugging Face's PEFT library, adapter_config.json and adapter_model.safetensors, as t2t's and back.

A folder of theirs has what was trained alone, by the names that the modules have in transformers; which modules that
is the tensors say; what the numbers mean, adapter_config.json (peft_config.py).

Source: PEFT 0.21, src/peft/utils/save_and_load.py, src/peft/tuners/lora/dora.py, src/peft/tuners/ia3/layer.py.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import functools
import json
import math
from typing import Any

from etils import epath
import numpy as np

from t2t import UserError
from t2t.convert import atomic_output, huggingface, peft_config, peft_prompts, safetensors
from t2t.convert import hf_config as settings_lib
from t2t.convert import hf_heads as heads_lib
from t2t.convert.hf_mappings import Family
from t2t.convert.huggingface import Place
from t2t.convert.lazy_tensors import Foreign, Tensor, check_finite, compare
from t2t.convert.safetensors import Entry
from t2t.models.adapters import ia3
from t2t.models.config import TransformerConfig
from t2t.storage import gcs

CONFIG, WEIGHTS = peft_config.NAME, "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_IN_FRONT = "base_model.model."  # of the names of modules
_IN_FRONT_OF_WHOLE = "base_model."  # where they are no part of a model that PEFT has changed


def is_peft(path: str) -> bool:
  """Whether a folder of PEFT's is at `path`; looks at names alone."""
  folder = gcs.absolute(path)
  return folder.is_dir() and (folder / CONFIG).exists()


# ---- Names -----------------------------------------------------------------------------------------------------------


def _modules(places: Mapping[str, Place]) -> dict[str, Place]:
  """Their modules whose matrix may be adapted -> what the matrix is in t2t's model."""
  found = {}
  for name, place in places.items():
    of_layer = any(f"{part}/" in path for path in place.ours for part in ("attention", "mlp"))
    if of_layer and name.endswith(".weight") and len(place.shape) == 2:
      found[name.removesuffix(".weight")] = place
  return found


def _shortest(modules: Collection[str], all_modules: Collection[str]) -> list[str]:
  """Endings of names that fit these modules and no other, as PEFT's target_modules has them.

  In:  ["encoder.0.q", "encoder.1.q"], ["encoder.0.q", "encoder.0.k", "encoder.1.q", "encoder.1.k"]
  Out: ["q"]
  """
  ending = lambda name, number: ".".join(name.split(".")[-number:])
  others, found = set(all_modules) - set(modules), {}
  for name in modules:
    for number in range(1, name.count(".") + 2):
      short = ending(name, number)
      if not any(each == short or each.endswith(f".{short}") for each in others):
        break
    found[short] = None
  return list(found)


# ---- From them -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Adapter:
  """What a folder of theirs is in t2t.

  path: the folder.
  model: the base, with the head that was trained.
  section, config: of t2t's config, as `config.lora` and its keys.
  tensors: path in the adapted model -> what was trained.
  kept: paths of a head that were not, and are the base's.
  """

  path: epath.Path
  model: TransformerConfig
  section: str
  config: dict[str, Any]
  tensors: Mapping[str, Tensor]
  kept: tuple[str, ...] = ()


def open_adapter(path: str, base: Foreign, *, head: str = "") -> Adapter:
  """A folder of theirs on top of a model; headers are read, no tensors.

  Args:
    path: the folder, local or gs://.
    base: the model that it lies on top of.
    head: what a head that was trained is called; "": as the base's, or by its kind.

  Raises:
    UserError: it cannot be read, says what t2t's adapter cannot, or lies on top of another model.
  """
  folder = gcs.absolute(path)
  kind, settings, task_type = peft_config.read(folder)
  where = f"{folder}/{CONFIG}"
  if not (folder / WEIGHTS).exists():
    if (folder / _PICKLE).exists():
      raise UserError(
        f"{folder}: its weights are pickled ({_PICKLE}); loading a pickle runs whatever code is in it, so t2t does not;"
        " save it again with save_pretrained of a newer PEFT, which writes safetensors"
      )
    raise UserError(f"{folder}: no weights there; looked for {WEIGHTS}")
  entries = safetensors.read_header(folder / WEIGHTS)
  family = settings_lib.family_of(base.model, str(base.path))
  is_front = kind.section in peft_prompts.SECTIONS
  begin = _IN_FRONT_OF_WHOLE if is_front else _IN_FRONT
  there = {name.removeprefix(begin): entry for name, entry in entries.items() if name.startswith(begin)}
  model = _with_head(base.model, family, peft_config.TASKS[task_type], there, where, head)
  wanted = peft_config.TASK_OF[model.architecture]
  if task_type is not None and not model.heads and task_type != wanted:
    raise UserError(
      f"{where}: task_type={task_type!r}: {base.path} is {model.architecture.replace('_', '-')}, whose task type is"
      f" {wanted or 'left out'}"
    )
  fields = kind.fields(settings, where)
  if is_front:
    peft_prompts.check(kind.section, model, where)
    heads = _heads(huggingface.written(family, model))
    wanted = {f"{begin}{name}": place.shape for name, place in heads.items() if name in there}
    wanted[peft_prompts.NAME] = peft_prompts.shape(kind.section, settings, fields, model, where)
    compare(str(folder), {name: entry.shape for name, entry in entries.items()}, wanted)
    found, besides = peft_prompts.read(kind.section, settings, fields, entries[peft_prompts.NAME], model)
    own, kept = _of_heads(heads, there)
    return Adapter(folder, model, kind.section, fields | besides, found | own, kept)
  found, kept = _tensors(folder, family, model, kind.parts(fields), fields, entries, base.tensors)
  targets = sorted({path.rpartition("/")[0] for path in found if not path.startswith("heads/")})
  config = fields | {"targets": tuple(f"^{each}$" for each in targets)}
  return Adapter(folder, model, kind.section, config, found, kept)


def _with_head(
  base: TransformerConfig,
  family: Family,
  kinds: tuple[str, ...],
  entries: Mapping[str, Entry],
  where: str,
  name: str,
) -> TransformerConfig:
  """The base with the head of the class that was trained, or with none."""
  if not kinds:
    if name:
      raise UserError(f"--head {name}: {where} says of no task with a head; leave it out")
    return dataclasses.replace(base, heads=())
  own = next((head for head in base.heads if head.kind in kinds), None)
  for class_name, task in family.tasks.items():
    if task.pretrains or not set(kinds) & set(task.kinds):
      continue
    matrix = next(theirs for theirs, ours in task.names.items() if ours == "projection")
    if own is None:
      if matrix not in entries:
        raise UserError(f"{where}: its base has no {' or '.join(kinds)} head, and it has none either, no {matrix}")
      shape = entries[matrix].shape
      said = {"num_labels": shape[0] if shape else 0}
      own = heads_lib.read(family, class_name, said, base.dropout_rate)["heads"][0]
    own = dataclasses.replace(own, name=name or own.name)
    return dataclasses.replace(base, heads=(own,), vocabulary_head=False)
  raise UserError(f"{where}: t2t knows no {family.model_type} of transformers with a {' or '.join(kinds)} head")


def _shape(part: str, place: Place, fields: Mapping[str, Any]) -> tuple[int, ...]:
  """Of their tensor for a module; an (IA)3 vector lies along what it multiplies, the matrix's inputs or its outputs."""
  rows, columns = place.shape[::-1] if place.transposed else place.shape  # what comes in, and what goes out
  return {
    "lora_down": lambda: (fields["rank"], rows),
    "lora_up": lambda: (columns, fields["rank"]),
    "lora_magnitude": lambda: (columns,),
    "ia3": lambda: (1, rows) if ia3.reads(place.ours[0]) else (columns, 1),
  }[part]()


def _own_shape(part: str, place: Place, index: int, theirs: tuple[int, ...]) -> tuple[int, ...]:
  """Of the part of their tensor, of a shape, that is `place.ours[index]`'s."""
  if part == "ia3":
    return (theirs[1] if ia3.reads(place.ours[0]) else place.widths[index],)
  return theirs[::-1] if part == "lora_down" else (*theirs[1:], place.widths[index])


def _ours(part: str, place: Place, index: int, value: np.ndarray, below: Mapping[str, Tensor]) -> np.ndarray:
  """The part of their tensor that is `place.ours[index]`'s, as ours lies."""
  begin = sum(place.widths[:index])
  columns = slice(begin, begin + place.widths[index])
  if part == "lora_down":
    return value.T  # what comes in is the same for all of a matrix's parts
  if part == "lora_magnitude":
    # Theirs is a length, ours how much more it is than the base's.
    return value[columns].astype(np.float32) - _lengths(below[place.ours[index]], place.layer)
  if part == "ia3":
    # Theirs is what is multiplied with, ours how much more that is than one.
    own = value[0] if ia3.reads(place.ours[0]) else value[columns, 0]
    return own.astype(np.float32) - np.float32(1.0)
  return value.T[:, columns]


def _theirs(part: str, place: Place, values: list[np.ndarray], below: Mapping[str, Tensor]) -> np.ndarray:
  """The inverse of `_ours`, of all parts of a matrix."""
  if part == "lora_down":
    return values[0].T
  if part == "lora_magnitude":
    values = [x + _lengths(below[path], place.layer) for path, x in zip(place.ours, values, strict=True)]
  if part == "ia3":
    factors = np.float32(1.0) + np.concatenate(values).astype(np.float32)
    return factors[None] if ia3.reads(place.ours[0]) else factors[:, None]
  return np.concatenate(values, axis=-1).T


def _lengths(matrix: Tensor, layer: int | None) -> np.ndarray:
  """Of the columns of a base's matrix, float32 [out]."""
  whole = matrix.read() if layer is None else matrix.read_layer(layer)
  return np.linalg.norm(np.asarray(whole, np.float64), axis=0).astype(np.float32)


def _tensors(
  folder: epath.Path,
  family: Family,
  model: TransformerConfig,
  parts: Mapping[str, str],
  fields: Mapping[str, Any],
  entries: Mapping[str, Entry],
  below: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
  """What was trained, by paths in the adapted model, and which parameters of its head were not.

  Raises:
    UserError: tensors are missing, unknown or of another shape; or of a stack some layers are adapted and some not.
  """
  places = huggingface.written(family, model)
  modules = _modules(places)
  theirs = lambda module, part: f"{_IN_FRONT}{module}.{part}"
  adapted = [module for module in modules if any(theirs(module, part) in entries for part in parts)]
  wanted = {
    theirs(module, part): _shape(ours, modules[module], fields) for module in adapted for part, ours in parts.items()
  }
  of_head = _heads(places)
  wanted |= {f"{_IN_FRONT}{name}": place.shape for name, place in of_head.items() if f"{_IN_FRONT}{name}" in entries}
  compare(
    str(folder),
    {name: entry.shape for name, entry in entries.items()},
    wanted,
    hint=f"t2t reads adapters of the matrices of attentions and feed-forward layers of a {family.model_type},"
    " and a head for a task",
  )
  if not adapted:
    raise UserError(f"{folder}/{WEIGHTS}: adapts nothing")
  _check_all_layers(folder, modules, adapted)
  readers: dict[str, dict[int | None, Callable[[], np.ndarray]]] = {}
  shapes: dict[str, tuple[int, ...]] = {}
  for module in adapted:
    place = modules[module]
    for part, ours in parts.items():
      entry, shape = entries[theirs(module, part)], wanted[theirs(module, part)]
      for index, path in enumerate(place.ours):
        own = f"{path}/{ours}"
        readers.setdefault(own, {})[place.layer] = functools.partial(_read, entry, ours, place, index, below)
        shapes[own] = _own_shape(ours, place, index, shape)
  found = {}
  for path, of_layers in readers.items():
    stacked = None not in of_layers
    shape = (len(of_layers), *shapes[path]) if stacked else shapes[path]
    each = tuple(of_layers[layer] for layer in (range(len(of_layers)) if stacked else [None]))
    found[path] = Tensor(shape, np.dtype(np.float32), each, stacked=stacked)
  there = {name: entries[f"{_IN_FRONT}{name}"] for name in of_head if f"{_IN_FRONT}{name}" in entries}
  heads, kept = _of_heads(of_head, there)
  return found | heads, kept


def _heads(places: Mapping[str, Place]) -> dict[str, Place]:
  """Those of them that are of a head."""
  return {name: place for name, place in places.items() if place.ours and place.ours[0].startswith("heads/")}


def _of_heads(heads: Mapping[str, Place], entries: Mapping[str, Entry]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
  """What was trained of a head, by paths in the adapted model, and which parameters of it were not."""
  found = {}
  for name, place in heads.items():
    if name in entries:
      shape = place.shape[::-1] if place.transposed else place.shape
      read = functools.partial(_read_of_head, entries[name], place)
      found[place.ours[0]] = Tensor(shape, np.dtype(np.float32), (read,))
  return found, tuple(place.ours[0] for place in heads.values() if place.ours[0] not in found)


def _check_all_layers(folder: epath.Path, modules: Mapping[str, Place], adapted: Collection[str]) -> None:
  paths = {path for module in adapted for path in modules[module].ours}
  for module, place in modules.items():
    if module not in adapted and paths & set(place.ours):
      other = next(each for each in adapted if paths & set(modules[each].ours) & set(place.ours))
      raise UserError(f"{folder}/{WEIGHTS}: adapts {other} and not {module}; t2t adapts a matrix in all layers or none")


def _read(entry: Entry, part: str, place: Place, index: int, below: Mapping[str, Tensor]) -> np.ndarray:
  return _ours(part, place, index, _finite(entry), below)


def _read_of_head(entry: Entry, place: Place) -> np.ndarray:
  return place.ours_of(_finite(entry), 0)


def _finite(entry: Entry) -> np.ndarray:
  value = entry.read()
  check_finite(value, f"{entry.path}: {entry.name}")
  return value


# ---- To them ---------------------------------------------------------------------------------------------------------


def save(
  model: TransformerConfig,
  adapters: Mapping[str, Any],
  trained: Mapping[str, Tensor],
  below: Mapping[str, Tensor],
  out: epath.Path,
  *,
  where: str,
  base: str = "",
  head: str = "",
  advance: atomic_output.Progress = lambda *_: None,
) -> list[str]:
  """Writes a folder that PEFT's `from_pretrained` loads on top of the base as `t2t convert --to hf` writes that.

  Args:
    model: the base's, with the heads that were trained.
    adapters: section of the config -> its record.
    trained: path in the adapted model -> what the run trained.
    below: path in the base -> parameter, of the matrices that are adapted with `dora`.
    out: not there yet, or an empty folder.
    where: the run, for messages.
    base: what the folder says that its base is: a path, or "".
    head: the one that is written, see `heads.reduced`.
    advance: see `atomic_output.Progress`.

  Returns:
    What the user must be told.

  Raises:
    UserError: PEFT has no such adapter, transformers no such model, `out` is taken, or no space is left.
  """
  of_section = {kind.section: name for name, kind in peft_config.KINDS.items()}
  for section in adapters:
    if section not in of_section:
      raise UserError(
        f"{where}: config.{section}: t2t writes {', '.join(f'config.{name}' for name in of_section)} for PEFT, no other"
        " adapter; --to hf writes the model itself, if it can be merged"
      )
  ((section, config),) = adapters.items()
  kind = peft_config.KINDS[of_section[section]]
  family, part, model_class, _ = settings_lib.written_as(model, where, head=head)
  places = huggingface.written(family, part)
  heads = _heads(places)
  if section in peft_prompts.SECTIONS:
    peft_prompts.check(section, part, where)
    settings, matrix, written = peft_prompts.written(section, config, trained, model, where)
    tensors: Written = {peft_prompts.NAME: (matrix.shape, lambda: matrix)}
  else:
    tensors, written, settings = _of_modules(section, config, kind, trained, below, family, places, where)
  written |= {place.ours[0] for place in heads.values()}
  left = sorted(path for path in trained if path not in written and not path.startswith("heads/"))
  if left:
    raise UserError(f"{where}: {left[0]} was trained besides, and PEFT's folder has no place for it")
  begin = _IN_FRONT_OF_WHOLE if section in peft_prompts.SECTIONS else _IN_FRONT
  for name, place in heads.items():
    read = lambda place=place: place.theirs_of([trained[place.ours[0]].read()])
    tensors[f"{begin}{name}"] = place.shape, read
  task = next((name for name, kinds in peft_config.TASKS.items() if part.heads and part.heads[0].kind in kinds), None)
  if part.heads and task is None:
    raise UserError(f"{where}: PEFT has no task type for a {part.heads[0].kind} head; --to hf writes the model itself")
  settings |= {
    "peft_type": of_section[section],
    "task_type": task if part.heads else peft_config.TASK_OF[model.architecture],
    "base_model_name_or_path": base or None,
    "modules_to_save": _saved_whole(heads) or None,
    "inference_mode": True,
  }
  with atomic_output.whole(out, 4 * sum(math.prod(shape) for shape, _ in tensors.values())) as folder:
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    with safetensors.Writer(folder / WEIGHTS, shapes, dtype="F32") as writer:
      for name, (_, read) in tensors.items():
        advance(writer.write(name, np.asarray(read(), np.float32)), 1)
    # Last: without it nothing takes the folder for an adapter.
    (folder / CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
  notes = [] if base else ["adapter_config.json names no base: what it lies on top of is no folder of Hugging Face's"]
  return [f"written for a {model_class}", *notes]


Written = dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]  # name of a tensor of theirs -> shape, reader


def _of_modules(
  section: str,
  config: Any,
  kind: peft_config.Kind,
  trained: Mapping[str, Tensor],
  below: Mapping[str, Tensor],
  family: Family,
  places: Mapping[str, Place],
  where: str,
) -> tuple[Written, set[str], dict[str, Any]]:
  """Their tensors of the modules that are adapted, the paths that are in them, and fields of adapter_config.json."""
  parts = kind.parts(vars(config))
  own = lambda path: [f"{path}/{ours}" for ours in parts.values()]
  is_adapted = lambda place: any(each in trained for path in place.ours for each in own(path))
  adapted = {module: place for module, place in _modules(places).items() if is_adapted(place)}
  tensors = {}
  for module, place in adapted.items():
    for theirs, ours in parts.items():
      read = functools.partial(_value, trained, below, ours, place, module, where)
      tensors[f"{_IN_FRONT}{module}.{theirs}"] = _shape(ours, place, vars(config)), read
  paths = {each for place in adapted.values() for path in place.ours for each in own(path)}
  named = _named(section, adapted, _all_modules(family, places)) | {"fan_in_fan_out": not family.transposed}
  return tensors, paths, kind.write(config) | named


def _value(
  trained: Mapping[str, Tensor], below: Mapping[str, Tensor], part: str, place: Place, module: str, where: str
) -> np.ndarray:
  """Their tensor of a module.

  Raises:
    UserError: it is one matrix there and several here, which are not adapted alike.
  """
  read = lambda tensor: tensor.read() if place.layer is None else tensor.read_layer(place.layer)
  missing = [path for path in place.ours if f"{path}/{part}" not in trained]
  if part == "ia3":  # multiplied with one
    ones = {path: np.zeros(width, np.float32) for path, width in zip(place.ours, place.widths, strict=True)}
    values = [ones[path] if path in missing else read(trained[f"{path}/{part}"]) for path in place.ours]
    return _theirs(part, place, values, below)
  values = [np.asarray(read(trained[f"{path}/{part}"])) for path in place.ours if path not in missing]
  if missing or (part == "lora_down" and any(np.any(value != values[0]) for value in values[1:])):
    raise UserError(
      f"{where}: {module} is one matrix there, {', '.join(path.rpartition('/')[2] for path in place.ours)} here, each"
      " adapted by itself: PEFT has one product for all of it; --to hf writes the merged model"
    )
  return _theirs(part, place, values, below)


def _named(section: str, adapted: Mapping[str, Place], all_modules: Collection[str]) -> dict[str, list[str]]:
  """Fields of adapter_config.json that name the modules which are adapted."""
  if section != "ia3":
    return {"target_modules": _shortest(adapted, all_modules)}
  inputs = {module for module, place in adapted.items() if ia3.reads(place.ours[0])}
  reading, writing = (
    _shortest([each for each in adapted if (each in inputs) == is_read], all_modules) for is_read in (True, False)
  )
  # Word for word among the targets, as theirs asks for.
  return {"target_modules": reading + writing, "feedforward_modules": reading}


def _all_modules(family: Family, places: Mapping[str, Place]) -> set[str]:
  """Names of all modules that an ending could mean."""
  names = {*places, *family.copies, *family.copies.values(), *family.pooler, *family.unread}
  return {name.rpartition(".")[0] for name in names if name.endswith(".weight")}


def _saved_whole(heads: Mapping[str, Place]) -> list[str]:
  """The modules of a head, as PEFT's modules_to_save has them; those that it adds by itself as it calls them."""
  found: dict[str, None] = {}
  for name in heads:
    parts = name.split(".")
    top = next((index for index, each in enumerate(parts) if each in ("classifier", "score")), len(parts) - 2)
    found[".".join(parts[: top + 1])] = None
  return list(found)
