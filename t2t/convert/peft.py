"""Imports and exports adapters of Hugging Face's PEFT library: adapter_config.json and adapter_model.safetensors.

A PEFT folder contains only the trained tensors, with module names of transformers. The tensors determine which modules
are adapted, and adapter_config.json (peft_config.py) determines their meaning.

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
from t2t.convert.huggingface import TensorMapping
from t2t.convert.lazy_tensors import Foreign, Tensor, check_finite, compare
from t2t.convert.safetensors import TensorEntry
from t2t.models.adapters import ia3
from t2t.models.config import TransformerConfig
from t2t.storage import gcs

CONFIG, WEIGHTS = peft_config.NAME, "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_IN_FRONT = "base_model.model."  # prefix of module names
_IN_FRONT_OF_WHOLE = "base_model."  # prefix for tensors outside the modules of the model


def is_peft(path: str) -> bool:
  """Returns whether a PEFT folder is at `path`; reads only file names."""
  folder = gcs.absolute(path)
  return folder.is_dir() and (folder / CONFIG).exists()


# ---- Names -----------------------------------------------------------------------------------------------------------


def _modules(places: Mapping[str, TensorMapping]) -> dict[str, TensorMapping]:
  """Returns adaptable module -> mapping of its matrix to t2t's model."""
  modules = {}
  for name, mapping in places.items():
    of_layer = any(f"{part}/" in path for path in mapping.ours for part in ("attention", "mlp"))
    if of_layer and name.endswith(".weight") and len(mapping.shape) == 2 and not mapping.order:
      modules[name.removesuffix(".weight")] = mapping
  return modules


def _shortest(modules: Collection[str], all_modules: Collection[str]) -> list[str]:
  """Returns name endings that match these modules and no other, as PEFT's target_modules.

  In:  ["encoder.0.q", "encoder.1.q"], ["encoder.0.q", "encoder.0.k", "encoder.1.q", "encoder.1.k"]
  Out: ["q"]
  """
  ending = lambda name, number: ".".join(name.split(".")[-number:])
  other_modules, endings = set(all_modules) - set(modules), {}
  for name in modules:
    for number in range(1, name.count(".") + 2):
      short = ending(name, number)
      if not any(other_name == short or other_name.endswith(f".{short}") for other_name in other_modules):
        break
    endings[short] = None
  return list(endings)


# ---- Import ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PeftAdapter:
  """A PEFT folder in terms of t2t.

  path: the folder.
  model: the base, with the trained head.
  section, config: section of t2t's config, for example `lora`, and its keys.
  tensors: path in the adapted model -> trained parameter.
  kept: paths of untrained head parameters, which come from the base.
  """

  path: epath.Path
  model: TransformerConfig
  section: str
  config: dict[str, Any]
  tensors: Mapping[str, Tensor]
  kept: tuple[str, ...] = ()


def open_adapter(path: str, base: Foreign, *, head: str = "") -> PeftAdapter:
  """Opens a PEFT folder with its base model; reads headers, but no tensors.

  Args:
    path: the folder, local or gs://.
    base: the base model.
    head: name of a trained head; "": that of the base's head, or its kind.

  Raises:
    UserError: the folder cannot be read, has settings that t2t's adapter does not support, or belongs to another model.
  """
  folder = gcs.absolute(path)
  kind, settings, task_type = peft_config.read(folder)
  where = f"{folder}/{CONFIG}"
  if not (folder / WEIGHTS).exists():
    if (folder / _PICKLE).exists():
      raise UserError(
        f"{folder}: the weights are pickled ({_PICKLE}). Loading a pickle runs any code in the pickle, so t2t does not"
        " load pickles. Save the adapter again with save_pretrained of a newer PEFT, which writes safetensors."
      )
    raise UserError(f"{folder} contains no {WEIGHTS}. Download this file.")
  entries = safetensors.read_header(folder / WEIGHTS)
  family = settings_lib.family_of(base.model, str(base.path))
  is_front = kind.section in peft_prompts.SECTIONS
  begin = _IN_FRONT_OF_WHOLE if is_front else _IN_FRONT
  there = {name.removeprefix(begin): entry for name, entry in entries.items() if name.startswith(begin)}
  model = _with_head(base.model, family, peft_config.TASKS[task_type], there, where, head)
  wanted = peft_config.TASK_OF[model.architecture]
  if task_type is not None and not model.heads and task_type != wanted:
    raise UserError(
      f"{where}: task_type={task_type!r} does not fit the base {base.path}. The task_type of "
      f"{model.architecture.replace('_', '-')} models is {wanted or 'null'}. Give another --base."
    )
  fields = kind.fields(settings, where)
  if is_front:
    peft_prompts.check(kind.section, model, where)
    heads = _heads(huggingface.written(family, model))
    wanted = {f"{begin}{name}": mapping.shape for name, mapping in heads.items() if name in there}
    wanted[peft_prompts.NAME] = peft_prompts.shape(kind.section, settings, fields, model, where)
    compare(str(folder), {name: entry.shape for name, entry in entries.items()}, wanted)
    tensors, besides = peft_prompts.read(kind.section, settings, fields, entries[peft_prompts.NAME], model)
    head_tensors, kept_paths = _of_heads(heads, there)
    return PeftAdapter(folder, model, kind.section, fields | besides, tensors | head_tensors, kept_paths)
  tensors, kept_paths = _tensors(folder, family, model, kind.parts(fields), fields, entries, base.tensors)
  targets = sorted({path.rpartition("/")[0] for path in tensors if not path.startswith("heads/")})
  config = fields | {"targets": tuple(f"^{target}$" for target in targets)}
  return PeftAdapter(folder, model, kind.section, config, tensors, kept_paths)


def _with_head(
  base: TransformerConfig,
  family: Family,
  kinds: tuple[str, ...],
  entries: Mapping[str, TensorEntry],
  where: str,
  name: str,
) -> TransformerConfig:
  """Returns the base with the head of the trained class, or without heads."""
  if not kinds:
    if name:
      raise UserError(f"--head {name}: {where} has no task with a head. Leave out --head.")
    return dataclasses.replace(base, heads=())
  base_head = next((head for head in base.heads if head.kind in kinds), None)
  for class_name, task in family.tasks.items():
    if task.pretrains or not set(kinds) & set(task.kinds):
      continue
    matrix = next(theirs for theirs, ours in task.names.items() if ours == "projection")
    if base_head is None:
      if matrix not in entries:
        raise UserError(
          f"{where}: neither the base nor the folder has a {' or '.join(kinds)} head (no {matrix}). Give a --base "
          "with such a head."
        )
      shape = entries[matrix].shape
      label_settings = {"num_labels": shape[0] if shape else 0}
      base_head = heads_lib.read(family, class_name, label_settings, base.dropout_rate)["heads"][0]
    base_head = dataclasses.replace(base_head, name=name or base_head.name)
    return dataclasses.replace(base, heads=(base_head,), vocabulary_head=False)
  raise UserError(f"{where}: t2t supports no {family.model_type} of transformers with a {' or '.join(kinds)} head")


def _shape(part: str, mapping: TensorMapping, fields: Mapping[str, Any]) -> tuple[int, ...]:
  """Returns the shape of a module's PEFT tensor; an (IA)3 vector scales the matrix's inputs or outputs."""
  rows, columns = mapping.shape[::-1] if mapping.transposed else mapping.shape  # inputs, outputs
  return {
    "lora_down": lambda: (fields["rank"], rows),
    "lora_up": lambda: (columns, fields["rank"]),
    "lora_magnitude": lambda: (columns,),
    "ia3": lambda: (1, rows) if ia3.reads(mapping.ours[0]) else (columns, 1),
  }[part]()


def _own_shape(part: str, mapping: TensorMapping, index: int, theirs: tuple[int, ...]) -> tuple[int, ...]:
  """Returns the shape of the part of a PEFT tensor that belongs to `mapping.ours[index]`."""
  if part == "ia3":
    return (theirs[1] if ia3.reads(mapping.ours[0]) else mapping.widths[index],)
  return theirs[::-1] if part == "lora_down" else (*theirs[1:], mapping.widths[index])


def _ours(part: str, mapping: TensorMapping, index: int, value: np.ndarray, below: Mapping[str, Tensor]) -> np.ndarray:
  """Returns the part of a PEFT tensor that belongs to `mapping.ours[index]`, in t2t's layout."""
  begin = sum(mapping.widths[:index])
  columns = slice(begin, begin + mapping.widths[index])
  if part == "lora_down":
    return value.T  # all parts of a matrix have the same input
  if part == "lora_magnitude":
    # PEFT stores a length, t2t the difference from the base's.
    return value[columns].astype(np.float32) - _lengths(below[mapping.ours[index]], mapping.layer)
  if part == "ia3":
    # PEFT stores a factor, t2t the difference from one.
    factors = value[0] if ia3.reads(mapping.ours[0]) else value[columns, 0]
    return factors.astype(np.float32) - np.float32(1.0)
  return value.T[:, columns]


def _theirs(part: str, mapping: TensorMapping, values: list[np.ndarray], below: Mapping[str, Tensor]) -> np.ndarray:
  """Inverse of `_ours`, for all parts of a matrix."""
  if part == "lora_down":
    return values[0].T
  if part == "lora_magnitude":
    values = [x + _lengths(below[path], mapping.layer) for path, x in zip(mapping.ours, values, strict=True)]
  if part == "ia3":
    factors = np.float32(1.0) + np.concatenate(values).astype(np.float32)
    return factors[None] if ia3.reads(mapping.ours[0]) else factors[:, None]
  return np.concatenate(values, axis=-1).T


def _lengths(matrix: Tensor, layer: int | None) -> np.ndarray:
  """Returns the column norms of a base matrix, float32 [out]."""
  values = matrix.read() if layer is None else matrix.read_layer(layer)
  return np.linalg.norm(np.asarray(values, np.float64), axis=0).astype(np.float32)


def _tensors(
  folder: epath.Path,
  family: Family,
  model: TransformerConfig,
  parts: Mapping[str, str],
  fields: Mapping[str, Any],
  entries: Mapping[str, TensorEntry],
  below: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
  """Returns the trained tensors by paths in the adapted model, and the paths of untrained head parameters.

  Raises:
    UserError: tensors are missing, unknown or of another shape; or only some layers of a stack are adapted.
  """
  places = huggingface.written(family, model)
  modules = _modules(places)
  theirs = lambda module, part: f"{_IN_FRONT}{module}.{part}"
  adapted = [module for module in modules if any(theirs(module, part) in entries for part in parts)]
  wanted = {
    theirs(module, part): _shape(ours, modules[module], fields) for module in adapted for part, ours in parts.items()
  }
  of_head = _heads(places)
  wanted |= {
    f"{_IN_FRONT}{name}": mapping.shape for name, mapping in of_head.items() if f"{_IN_FRONT}{name}" in entries
  }
  compare(
    str(folder),
    {name: entry.shape for name, entry in entries.items()},
    wanted,
    hint=f"t2t supports adapters of the matrices of attention and feed-forward layers of a {family.model_type},"
    " and a task head",
  )
  if not adapted:
    raise UserError(f"{folder}/{WEIGHTS} contains no adapter of a known module. Give another folder.")
  _check_all_layers(folder, modules, adapted)
  readers: dict[str, dict[int | None, Callable[[], np.ndarray]]] = {}
  shapes: dict[str, tuple[int, ...]] = {}
  for module in adapted:
    mapping = modules[module]
    for part, ours in parts.items():
      entry, shape = entries[theirs(module, part)], wanted[theirs(module, part)]
      for index, path in enumerate(mapping.ours):
        adapter_path = f"{path}/{ours}"
        readers.setdefault(adapter_path, {})[mapping.layer] = functools.partial(
          _read, entry, ours, mapping, index, below
        )
        shapes[adapter_path] = _own_shape(ours, mapping, index, shape)
  tensors = {}
  for path, of_layers in readers.items():
    stacked = None not in of_layers
    shape = (len(of_layers), *shapes[path]) if stacked else shapes[path]
    layer_readers = tuple(of_layers[layer] for layer in (range(len(of_layers)) if stacked else [None]))
    tensors[path] = Tensor(shape, np.dtype(np.float32), layer_readers, stacked=stacked)
  there = {name: entries[f"{_IN_FRONT}{name}"] for name in of_head if f"{_IN_FRONT}{name}" in entries}
  heads, kept_paths = _of_heads(of_head, there)
  return tensors | heads, kept_paths


def _heads(places: Mapping[str, TensorMapping]) -> dict[str, TensorMapping]:
  """Returns the tensors that belong to a head."""
  return {name: mapping for name, mapping in places.items() if mapping.ours and mapping.ours[0].startswith("heads/")}


def _of_heads(
  heads: Mapping[str, TensorMapping], entries: Mapping[str, TensorEntry]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
  """Returns the trained head tensors by paths in the adapted model, and the paths of untrained ones."""
  tensors = {}
  for name, mapping in heads.items():
    if name in entries:
      shape = mapping.shape[::-1] if mapping.transposed else mapping.shape
      read = functools.partial(_read_of_head, entries[name], mapping)
      tensors[mapping.ours[0]] = Tensor(shape, np.dtype(np.float32), (read,))
  return tensors, tuple(mapping.ours[0] for mapping in heads.values() if mapping.ours[0] not in tensors)


def _check_all_layers(folder: epath.Path, modules: Mapping[str, TensorMapping], adapted: Collection[str]) -> None:
  paths = {path for module in adapted for path in modules[module].ours}
  for module, mapping in modules.items():
    if module not in adapted and paths & set(mapping.ours):
      adapted_module = next(
        candidate for candidate in adapted if paths & set(modules[candidate].ours) & set(mapping.ours)
      )
      raise UserError(
        f"{folder}/{WEIGHTS} adapts {adapted_module}, but not {module}; t2t adapts a matrix in all layers or in none"
      )


def _read(entry: TensorEntry, part: str, mapping: TensorMapping, index: int, below: Mapping[str, Tensor]) -> np.ndarray:
  return _ours(part, mapping, index, _finite(entry), below)


def _read_of_head(entry: TensorEntry, mapping: TensorMapping) -> np.ndarray:
  return mapping.ours_of(_finite(entry), 0)


def _finite(entry: TensorEntry) -> np.ndarray:
  value = entry.read()
  check_finite(value, f"{entry.path}: {entry.name}")
  return value


# ---- Export ----------------------------------------------------------------------------------------------------------


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
  """Writes a folder for PEFT's `from_pretrained`, on a base as exported by `t2t convert --to hf`.

  Args:
    model: the base's, with the trained heads.
    adapters: section of the config -> its record.
    trained: path in the adapted model -> trained parameter.
    below: path in the base -> parameter, of matrices adapted with `dora`.
    out: a folder that does not exist or is empty.
    where: the run, for messages.
    base: path of the base for adapter_config.json, or "".
    head: head to export, see `hf_heads.reduced`.
    advance: see `atomic_output.Progress`.

  Returns:
    Notes for the user.

  Raises:
    UserError: PEFT has no such adapter, transformers has no such model, `out` is not empty, or the disk is full.
  """
  of_section = {kind.section: name for name, kind in peft_config.KINDS.items()}
  for section in adapters:
    if section not in of_section:
      raise UserError(
        f"{where}: config.{section} cannot be exported to PEFT, only "
        f"{', '.join(f'config.{name}' for name in of_section)}. "
        "If the adapter can be merged, give --to hf, which writes the merged model."
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
  written |= {mapping.ours[0] for mapping in heads.values()}
  left = sorted(path for path in trained if path not in written and not path.startswith("heads/"))
  if left:
    raise UserError(
      f"{where}: {left[0]} was trained, too, but PEFT's format cannot store this parameter. Give --to hf."
    )
  begin = _IN_FRONT_OF_WHOLE if section in peft_prompts.SECTIONS else _IN_FRONT
  for name, mapping in heads.items():
    read = lambda mapping=mapping: mapping.theirs_of([trained[mapping.ours[0]].read()])
    tensors[f"{begin}{name}"] = mapping.shape, read
  task = next((name for name, kinds in peft_config.TASKS.items() if part.heads and part.heads[0].kind in kinds), None)
  if part.heads and task is None:
    raise UserError(
      f"{where}: PEFT has no task type for a {part.heads[0].kind} head. Give --to hf, which writes the whole model."
    )
  settings |= {
    "peft_type": of_section[section],
    "task_type": task if part.heads else peft_config.TASK_OF[model.architecture],
    "base_model_name_or_path": base or None,
    "modules_to_save": _saved_whole(heads) or None,
    "inference_mode": True,
  }
  with atomic_output.whole(out, 4 * sum(math.prod(shape) for shape, _ in tensors.values())) as folder:
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    with safetensors.SafetensorsWriter(folder / WEIGHTS, shapes, dtype="F32") as writer:
      for name, (_, read) in tensors.items():
        advance(writer.write(name, np.asarray(read(), np.float32)), 1)
    # Written last: without it the folder is not an adapter.
    (folder / CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
  notes = [] if base else ["adapter_config.json has no base, because the base is not a Hugging Face folder"]
  return [f"written for a {model_class}", *notes]


Written = dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]  # name of a PEFT tensor -> shape, reader


def _of_modules(
  section: str,
  config: Any,
  kind: peft_config.PeftKind,
  trained: Mapping[str, Tensor],
  below: Mapping[str, Tensor],
  family: Family,
  places: Mapping[str, TensorMapping],
  where: str,
) -> tuple[Written, set[str], dict[str, Any]]:
  """Returns the PEFT tensors of adapted modules, the exported paths, and fields of adapter_config.json."""
  parts = kind.parts(vars(config))
  adapter_paths = lambda path: [f"{path}/{ours}" for ours in parts.values()]
  is_adapted = lambda mapping: any(
    adapter_path in trained for path in mapping.ours for adapter_path in adapter_paths(path)
  )
  adapted = {module: mapping for module, mapping in _modules(places).items() if is_adapted(mapping)}
  tensors = {}
  for module, mapping in adapted.items():
    for theirs, ours in parts.items():
      read = functools.partial(_value, trained, below, ours, mapping, module, where)
      tensors[f"{_IN_FRONT}{module}.{theirs}"] = _shape(ours, mapping, vars(config)), read
  paths = {
    adapter_path for mapping in adapted.values() for path in mapping.ours for adapter_path in adapter_paths(path)
  }
  named = _named(section, adapted, _all_modules(family, places)) | {"fan_in_fan_out": not family.transposed}
  return tensors, paths, kind.write(config) | named


def _value(
  trained: Mapping[str, Tensor], below: Mapping[str, Tensor], part: str, mapping: TensorMapping, module: str, where: str
) -> np.ndarray:
  """Returns the PEFT tensor of a module.

  Raises:
    UserError: it is one matrix in transformers, but several in t2t with different adapters.
  """
  read = lambda tensor: tensor.read() if mapping.layer is None else tensor.read_layer(mapping.layer)
  missing = [path for path in mapping.ours if f"{path}/{part}" not in trained]
  if part == "ia3":  # factor one
    ones = {path: np.zeros(width, np.float32) for path, width in zip(mapping.ours, mapping.widths, strict=True)}
    values = [ones[path] if path in missing else read(trained[f"{path}/{part}"]) for path in mapping.ours]
    return _theirs(part, mapping, values, below)
  values = [np.asarray(read(trained[f"{path}/{part}"])) for path in mapping.ours if path not in missing]
  if missing or (part == "lora_down" and any(np.any(value != values[0]) for value in values[1:])):
    raise UserError(
      f"{where}: {module} is one matrix in transformers, but separate matrices in t2t: "
      f"{', '.join(path.rpartition('/')[2] for path in mapping.ours)}. PEFT does not support a separate adapter for"
      " each of these matrices. Give --to hf, which writes the merged model."
    )
  return _theirs(part, mapping, values, below)


def _named(section: str, adapted: Mapping[str, TensorMapping], all_modules: Collection[str]) -> dict[str, list[str]]:
  """Returns the fields of adapter_config.json with the adapted modules."""
  if section != "ia3":
    return {"target_modules": _shortest(adapted, all_modules)}
  inputs = {module for module, mapping in adapted.items() if ia3.reads(mapping.ours[0])}
  reading, writing = (
    _shortest([module for module in adapted if (module in inputs) == is_read], all_modules) for is_read in (True, False)
  )
  # PEFT requires these names among the targets, too.
  return {"target_modules": reading + writing, "feedforward_modules": reading}


def _all_modules(family: Family, places: Mapping[str, TensorMapping]) -> set[str]:
  """Returns the names of all modules that an ending could match."""
  names = {*places, *family.copies, *family.copies.values(), *family.pooler, *family.unread}
  return {name.rpartition(".")[0] for name in names if name.endswith(".weight")}


def _saved_whole(heads: Mapping[str, TensorMapping]) -> list[str]:
  """Returns the modules of a head for PEFT's modules_to_save, with PEFT's names for the modules that it adds itself."""
  saved_modules: dict[str, None] = {}
  for name in heads:
    parts = name.split(".")
    top = next((index for index, part in enumerate(parts) if part in ("classifier", "score")), len(parts) - 2)
    saved_modules[".".join(parts[: top + 1])] = None
  return list(saved_modules)
