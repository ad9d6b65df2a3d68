"""Imports and exports Hugging Face folders, config.json and safetensors; hf_mappings.py has the tables."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import fnmatch
import functools
import json
import math
from typing import Any

from etils import epath
import numpy as np

from t2t import UserError
from t2t.configuration.schema import DataConfig
from t2t.convert import atomic_output, hf_heads, hf_mappings, hf_tokenizer, safetensors, sentence_transformers
from t2t.convert import hf_config as settings_lib
from t2t.convert.hf_mappings import Family, Settings
from t2t.convert.lazy_tensors import Foreign, Tensor, check_finite, compare, expected
from t2t.convert.safetensors import TensorEntry
from t2t.models.config import TransformerConfig
from t2t.storage import gcs, safe_read, vocabulary_files

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model*.bin", "model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_BLOCK = 1 << 25  # bytes of each of two tensors per comparison


def is_huggingface(path: str) -> bool:
  """Returns whether a Hugging Face folder is at `path`: its weights, or a config.json with a model_type.

  A file named like Hugging Face weights counts, too, so that `open_foreign` can print the right path.
  """
  folder = gcs.absolute(path)
  if not folder.is_dir():
    return _is_weights(folder) and folder.exists()
  if any((folder / name).exists() for name in (_WEIGHTS, _INDEX)) or _pickles(folder):
    return True
  config = folder / _CONFIG
  return config.exists() and "model_type" in safe_read.read_json(config)


def _is_weights(path: epath.Path) -> bool:
  return any(fnmatch.fnmatch(path.name, pattern) for pattern in (*_PICKLES, "*.safetensors"))


def _pickles(folder: epath.Path) -> list[epath.Path]:
  return [path for pattern in _PICKLES for path in sorted(folder.glob(pattern))]


# ---- Names -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TensorMapping:
  """A Hugging Face tensor in terms of t2t's model.

  ours: the parameters concatenated in it, along their last axis; empty for a zero tensor.
  widths: of each, in that axis.
  layer: index in the stack; None: the parameters are not stacked.
  shape: in Hugging Face.
  transposed: whether it is [out, in].
  axes, order: see `hf_mappings.Layout`; (): a plain matrix.
  expert: index of the expert; None: a tensor of a whole layer.
  leading: other axes of t2t's parameters.
  """

  ours: tuple[str, ...]
  widths: tuple[int, ...]
  layer: int | None
  shape: tuple[int, ...]
  transposed: bool
  axes: tuple[int, ...] = ()
  order: tuple[int, ...] = ()
  expert: int | None = None
  leading: tuple[int, ...] = ()

  def ours_of(self, value: np.ndarray, index: int) -> np.ndarray:
    """Returns the part of a Hugging Face tensor for `ours[index]`, in t2t's layout."""
    if self.order:
      split = value.reshape([self.axes[axis] for axis in self.order]).transpose(np.argsort(self.order))
      value = split.reshape(sum(self.widths), -1)
    value = value.reshape(-1, value[0].size).T if self.transposed else value.reshape(*self.leading, sum(self.widths))
    begin = sum(self.widths[:index])
    return value[..., begin : begin + self.widths[index]]

  def of_expert(self, layer: np.ndarray) -> np.ndarray:
    """Returns the part of a layer's parameter for `expert`; the whole parameter without one."""
    return layer if self.expert is None else layer[self.expert]

  def theirs_of(self, values: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the Hugging Face tensor for all of `ours`."""
    values = list(values)
    if not values:
      return np.zeros(self.shape, np.float32)
    value = values[0] if len(values) == 1 else np.concatenate(values, axis=-1)
    value = value.T if self.transposed else value
    value = value.reshape(self.axes).transpose(self.order) if self.order else value
    return value.reshape(self.shape)


# Their rows are ids, positions or buckets in both formats.
_TABLES = ("embed/table", "embed/positions", "embed/segments", "encoder/position_bias/table")
_TABLES += ("decoder/position_bias/table", "decoder/embed/positions", "encoder/embed/table")


def places(family: Family, model: TransformerConfig) -> dict[str, TensorMapping]:
  """Returns Hugging Face tensor -> mapping to t2t's model, with the layers of a stack in order."""
  known, mappings = expected(model), {}
  _, task = hf_heads.class_of(family, model)
  of_head = {name: f"heads/{model.heads[0].name}/{ours}" for name, ours in task.names.items()} if task else {}
  # Two t2t parameters may share a Hugging Face name in different kinds of models, but no model has both.
  for name, ours in (*family.names.items(), *of_head.items()):
    ours = tuple(_path_in(model, path) for path in ((ours,) if isinstance(ours, str) else ours))
    if ours[0] not in known:
      continue
    leading = name.count("{}")  # axes of layers and experts
    name = name if model.gated else name.replace(*family.ungated)
    shapes = [known[path].shape[leading:] for path in ours]
    widths = tuple(shape[-1] for shape in shapes)
    shape = (*shapes[0][:-1], sum(widths))
    turned = family.transposed or ours[0].startswith(("head/", "heads/"))
    transposed = len(shape) == 2 and ours[0] not in _TABLES and turned
    theirs = shape[::-1] if transposed else shape
    layout = family.layouts.get(name)
    axes, order = (layout.axes(model), layout.order) if layout else ((), ())
    theirs = tuple(axes[axis] for axis in order) if layout and layout.keeps_axes else theirs
    if name in family.shapes:
      shape_of, transposed = family.shapes[name]
      theirs = shape_of(model)
    layers = enumerate(_layer_numbers(model, ours[0], known[ours[0]].shape[0])) if leading else [(None, None)]
    for layer, number in layers:
      for expert in range(known[ours[0]].shape[1]) if leading == 2 else [None]:
        mappings[name.format(number, expert)] = TensorMapping(
          ours, widths, layer, theirs, transposed, axes=axes, order=order, expert=expert, leading=shape[:-1]
        )
  if family.logits_bias and model.logits_bias:
    rows = model.vocab_size
    mappings[family.logits_bias] = TensorMapping(("head/bias",), (rows,), None, (1, rows), False)
  return {name: mapping for name, mapping in mappings.items() if name not in family.constants}


def _path_in(model: TransformerConfig, path: str) -> str:
  """Returns the path of a parameter; names of alternating feed-forward layers have one stack if all are alike."""
  pattern = model.feed_forward_pattern
  return path.replace(f"/mlp/{pattern[0]}/layers/", "/mlp/") if len(pattern) == 1 else path


def _layer_numbers(model: TransformerConfig, path: str, num_rows: int) -> Iterable[int]:
  """Returns the number in the model of each layer in a parameter's stack."""
  pattern = model.feed_forward_pattern
  kind = next((kind for kind in pattern if f"/mlp/{kind}/layers/" in path), None)
  if kind is None:
    return range(num_rows)
  num_layers = num_rows // pattern.count(kind) * len(pattern)
  return [number for number in range(num_layers) if pattern[number % len(pattern)] == kind]


# ---- Import ----------------------------------------------------------------------------------------------------------


def open_foreign(path: str, *, where: str = "") -> Foreign:
  """Opens a Hugging Face folder as a t2t model; reads headers, but no tensors.

  Args:
    path: the folder, local or gs://.
    where: the option or key of the path, for messages.

  Raises:
    UserError: it cannot be read: no config.json, another model_type, an unsupported value of the config, pickled
      weights, a truncated file, tensors that are missing, unknown or of another shape, or a vocabulary larger than the
      embedding.
  """
  folder = gcs.absolute(path)
  named = epath.Path(f"{where}{folder}")
  if not folder.is_dir() and _is_weights(folder):
    if folder.name.endswith(".safetensors"):
      raise UserError(f"{named} is a file. Give the folder of this file, which must contain config.json.")
    raise _pickled(named, folder.parent, folder.name)
  if not (folder / _CONFIG).exists():
    raise UserError(
      f"{named} contains no config.json. Give a folder that `save_pretrained` wrote, or a complete download."
    )
  settings = safe_read.read_json(folder / _CONFIG)
  _check_types(settings, f"{named}/{_CONFIG}")
  family = settings_lib.family(settings, str(named))
  notes = list(family.notes(settings))
  entries = _canonical(family, _entries(folder, named), named)
  class_name = hf_heads.class_in(family, settings, entries)
  entries = _without_unread(family, class_name, entries, notes)
  try:
    fields = settings_lib.read_fields(family, settings)
    fields["tied_logits"] = _is_tied(family, fields, entries, notes)
    if family.logits_bias in entries:
      fields["logits_bias"] = bool(np.any(entries[family.logits_bias].read()))
    if family.shares_head and settings.get("tie_word_embeddings") and not fields["tied_logits"]:
      notes.append(
        "tie_word_embeddings=True, but the logits are not scaled, as in transformers 5; transformers 4 scales"
        " them, and uses the embedding in place of lm_head.weight"
      )
    fields |= hf_heads.read(family, class_name, settings, fields.get("dropout_rate", 0.0))
    model = TransformerConfig(**fields)
  except (hf_mappings.Unknown, UserError) as error:
    raise UserError(f"{named}/{_CONFIG}: {error}") from error
  # The types of a family's keys are checked; other errors come from a value of a wrong type.
  except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
    raise UserError(f"{named}/{_CONFIG}: a value has a wrong type ({error}). Download the file again.") from error
  if not model.logits_bias:
    entries.pop(family.logits_bias, None)
  wanted = places(family, model)
  pooler = _pooler(family, model, entries, named)
  entries = {name: entry for name, entry in entries.items() if name in wanted or name not in family.pooler}
  if pooler and not wanted.keys() & family.pooler.keys():
    notes.append(
      f"only models with a class head have a pooler: {', '.join(family.pooler)} are left behind, and are taken if a"
      " run with config.model.heads starts from this folder (config.init.checkpoint)"
    )
  entries = _without_copies(family, entries, wanted, named, notes)
  hint = f"t2t reads a {', '.join((family.model_class, *family.tasks))}: save one with save_pretrained"
  if settings.get("architectures"):
    hint += f"; this is a {', '.join(settings['architectures'])}"
  shapes = {name: entry.shape for name, entry in entries.items()}
  compare(str(named), shapes, {name: mapping.shape for name, mapping in wanted.items()}, hint=hint)
  unknown = sorted(set(settings) - set(family.keys) - set(family.must) - set(family.reads) - settings_lib.HARMLESS)
  if unknown:
    notes.append(f"config.json: unknown keys: {', '.join(unknown)}")
  if settings.get("decoder_start_token_id") not in (0, None):
    notes.append(
      f"decoder_start_token_id={settings['decoder_start_token_id']}: t2t starts with the vocabulary's BOS, and adds"
      " none to the encoder's inputs: fine-tune the model to get the quality of the published one"
    )
  vocabulary = hf_tokenizer.vocabulary_in(folder, settings)
  notes += hf_tokenizer.check(vocabulary, model.vocab_size, named)
  lengths = _lengths(model, settings, hf_tokenizer.longest_in(folder))
  tensors = _tensors(family, model, wanted, entries)
  return Foreign(
    folder,
    "hf",
    model,
    vocabulary.spec,
    vocabulary.extra_ids,
    lengths,
    tensors,
    pooler=pooler,
    notes=tuple(notes),
    table=_table(settings, f"{named}/{_CONFIG}"),
  )


def _table(settings: Settings, where: str) -> Mapping[str, Any]:
  """Returns the table that `save` wrote beside the model's keys; {} without one."""
  if not (saved := settings.get(DataConfig.EXPORTED_TABLE)):
    return {}
  from t2t.data.tables.spec import from_dict

  return from_dict(saved, where=f"{where}: {DataConfig.EXPORTED_TABLE}").to_dict()


def _check_types(settings: Settings, where: str) -> None:
  """Checks the keys that are read before or after the family's."""
  classes, positions = settings.get("architectures") or [], settings.get("n_positions") or 0
  if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
    raise UserError(
      f"{where}: architectures={str(classes)[:40]} is not a list of class names. Download the file again."
    )
  if type(positions) is not int or positions < 0:
    raise UserError(
      f"{where}: n_positions={str(positions)[:40]!r} is not a number of positions. Download the file again."
    )
  if not isinstance(settings.get("model_type", ""), str):
    raise UserError(
      f"{where}: model_type={str(settings['model_type'])[:40]} is not a name. Set model_type to a name, for example t5."
    )


def _entries(folder: epath.Path, named: epath.Path) -> dict[str, TensorEntry]:
  """Returns every tensor of a folder's files.

  Raises:
    UserError: a file or a tensor is missing; or two files differ.
  """
  index, single = folder / _INDEX, folder / _WEIGHTS
  if index.exists():
    weight_map = safe_read.read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
      raise UserError(f"{named}: {_INDEX} has no 'weight_map' with the file of each tensor. Download {_INDEX} again.")
    files = sorted({*map(str, weight_map.values())})
    outside = [name for name in files if not vocabulary_files.is_own(name)]
    if outside:
      raise UserError(
        f"{named}: {_INDEX} refers to {outside[0]!r}, which is not a file of this folder. Download {_INDEX} again."
      )
    absent = [name for name in files if not (folder / name).exists()]
    if absent:
      raise UserError(
        f"{named}: {_INDEX} refers to {len(files)} files, but {len(absent)} of them are missing: {', '.join(absent)}. "
        "Download the missing files."
      )
    shards = [safetensors.read_header(folder / file) for file in files]
    tensor_entries = _merged((pair for shard in shards for pair in shard.items()), named)
    lost = sorted(set(weight_map) - set(tensor_entries))
    if lost:
      raise UserError(
        f"{named}: {_INDEX} refers to {lost[0]}, but {weight_map[lost[0]]} does not contain this tensor. Download "
        f"{_INDEX} and {weight_map[lost[0]]} again."
      )
    if single.exists() and _WEIGHTS not in files:
      _check_same_weights(tensor_entries, safetensors.read_header(single), named)
    return tensor_entries
  if single.exists():
    return safetensors.read_header(single)
  pickles = _pickles(folder)
  if pickles:
    raise _pickled(named, folder, pickles[0].name)
  raise UserError(f"{named} contains neither {_WEIGHTS} nor {_INDEX}. Download the weights.")


def _merged(pairs: Iterable[tuple[str, TensorEntry]], named: epath.Path) -> dict[str, TensorEntry]:
  """Returns the tensors by name.

  Raises:
    UserError: two different tensors have one name.
  """
  merged: dict[str, TensorEntry] = {}
  for name, entry in pairs:
    previous = merged.setdefault(name, entry)
    if not _same(previous, entry):
      sides = [f"{duplicate.name} of {duplicate.path.name}" for duplicate in (previous, entry)]
      raise UserError(
        f"{named}: two different tensors have the name {name}: {sides[0]} and {sides[1]}. Remove the wrong tensor."
      )
  return merged


def _check_same_weights(
  shards: Mapping[str, TensorEntry], single: Mapping[str, TensorEntry], named: epath.Path
) -> None:
  """Compares the two sets of weights of a folder that has both.

  Raises:
    UserError: they differ.
  """
  different = sorted(name for name in shards.keys() | single.keys() if name not in shards or name not in single)
  different = different or [name for name in shards if not _same(shards[name], single[name])]
  if different:
    raise UserError(
      f"{named}: {_WEIGHTS} and the files of {_INDEX} differ in {different[0]}. transformers reads only {_WEIGHTS}."
      " Remove the outdated files."
    )


def _pickled(named: epath.Path, folder: epath.Path, name: str) -> UserError:
  if fnmatch.fnmatch(name, _PICKLES[0]):
    # transformers 4 would drop one of two tied tensors; this command keeps every tensor.
    return UserError(
      f"{named}: the weights are pickled ({name}). Loading a pickle may run code in the pickle, so t2t does not load"
      " pickles. With torch and safetensors installed, this command converts the weights to safetensors without running"
      " code:\n"
      '  python -c "import pathlib, torch, safetensors.torch as s; w = {}; '
      f"f = pathlib.Path('{folder}'); "
      f"[w.update(torch.load(p, map_location='cpu', weights_only=True)) for p in sorted(f.glob('{_PICKLES[0]}'))]; "
      f"s.save_file({{k: v.clone().contiguous() for k, v in w.items()}}, f / '{_WEIGHTS}', {{'format': 'pt'}})\""
    )
  return UserError(
    f"{named}: the weights are pickled ({name}). Loading a pickle runs any code in the pickle, so t2t does not load"
    " pickles. With torch and transformers installed, and if you trust the file, this command converts the weights to"
    " safetensors:\n"
    '  python -c "import transformers as t; p = t.PretrainedConfig.get_config_dict; '
    f"m = getattr(t, p('{folder}')[0]['architectures'][0]).from_pretrained('{folder}'); "
    f"m.save_pretrained('{folder}', safe_serialization=True)\""
  )


def _canonical(family: Family, entries: Mapping[str, TensorEntry], named: epath.Path) -> dict[str, TensorEntry]:
  """Renames tensors to the current names of a model with a head.

  Raises:
    UserError: two different tensors get the same name.
  """
  names = {}
  for name in entries:
    # The first checkpoints kept TensorFlow's names.
    renamed = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    for prefix in sorted({task.prefix for task in family.tasks.values()} - {""}):
      if renamed.startswith(prefix):
        renamed = family.prefix + renamed.removeprefix(prefix)
    names[name] = renamed
  if family.prefix and not any(name.startswith(family.prefix) for name in names.values()):
    known = (
      *family.names,
      *family.unread,
      family.logits_bias,
      *(name for task in family.tasks.values() for name in task.names),
    )
    beside = {name.split(".")[0] for name in known if not name.startswith(family.prefix)}
    is_beside = lambda name: name.split(".")[0] in beside
    names = {old: name if is_beside(name) else f"{family.prefix}{name}" for old, name in names.items()}
  kept_entries = ((name, entries[old]) for old, name in names.items() if not name.endswith(family.buffers))
  return _merged(kept_entries, named)


def _without_unread(
  family: Family, class_name: str, entries: dict[str, TensorEntry], notes: list[str]
) -> dict[str, TensorEntry]:
  read = family.tasks[class_name].names if class_name in family.tasks else {}
  unread = [name for name in family.unread if name in entries and name not in read]
  if unread:
    notes.append(f"left out, because neither hidden states nor logits depend on these tensors: {', '.join(unread)}")
  return {name: entry for name, entry in entries.items() if name not in unread}


def _pooler(
  family: Family, model: TransformerConfig, entries: Mapping[str, TensorEntry], named: epath.Path
) -> dict[str, Tensor]:
  """Returns the pooler's parameters, if the checkpoint has one."""
  pooler_entries = {name: entries[name] for name in family.pooler if name in entries}
  if not pooler_entries:
    return {}
  width, tensors = model.embed_dim, {}
  wanted = {name: (width,) * (2 if name.endswith(".weight") else 1) for name in family.pooler}
  compare(str(named), {name: entry.shape for name, entry in pooler_entries.items()}, wanted)
  for name, entry in pooler_entries.items():
    mapping = TensorMapping((family.pooler[name],), (width,), None, wanted[name], transposed=len(wanted[name]) == 2)
    read = functools.partial(_read, entry, mapping, 0)
    dtype = safetensors.DTYPES.get(entry.dtype, np.dtype(np.float32))
    tensors[family.pooler[name]] = Tensor(wanted[name], dtype, (read,))
  return tensors


def _head(family: Family) -> str:
  """Returns the Hugging Face name of the logits' matrix; "" without one."""
  return next((name for name, ours in family.names.items() if ours == "head/projection"), "")


def _is_tied(family: Family, fields: Mapping[str, Any], entries: Mapping[str, TensorEntry], notes: list[str]) -> bool:
  """Returns whether logits are tied according to config.json, unless the file contains two matrices.

  Raises:
    hf_mappings.Unknown: T5's tied logits are scaled, but their matrix differs from the embedding.
  """
  head = _head(family)
  table = entries.get(family.copies.get(head, "")) or next(
    (entries[copy] for copy in family.copies if copy in entries and copy != head and copy.endswith(".weight")), None
  )
  if not fields["tied_logits"] or head not in entries or table is None or _same(entries[head], table):
    return fields["tied_logits"]
  if family.shares_head:
    raise hf_mappings.Unknown(
      f"the logits are tied to the embedding and scaled, but {head} differs from {table.name}."
      f" transformers 5 uses both tensors, and transformers 4 only the embedding; t2t's model scales only tied logits."
      f" If {head} was trained without the scale (as in T5 1.1), set tie_word_embeddings to false and remove"
      f" scale_decoder_outputs. If {head} is unused, remove {head} from the file."
    )
  notes.append(
    f"config.json ties the logits to the embedding, but {head} is another matrix: {head} is kept, as in transformers"
    f" 5; transformers 4 ignores {head} and uses the embedding"
  )
  return False


def _difference(left: TensorEntry, right: TensorEntry) -> str:
  """Returns the largest difference of two tensors, for a message: " (by up to 0.25)"; "" if they cannot be read."""
  if left.shape != right.shape:
    return f" ({list(left.shape)} against {list(right.shape)})"
  if not {left.dtype, right.dtype} <= set(safetensors.DTYPES):
    return ""
  return f" (by up to {np.abs(left.read().astype(np.float32) - right.read().astype(np.float32)).max():.3g})"


def _same(left: TensorEntry, right: TensorEntry) -> bool:
  """Returns whether two tensors have equal values; their dtypes may differ."""
  if left == right:
    return True
  if left.shape != right.shape:
    return False
  if left.dtype != right.dtype:
    is_float = left.dtype in safetensors.DTYPES and right.dtype in safetensors.DTYPES
    return is_float and np.array_equal(left.read().astype(np.float64), right.read().astype(np.float64))
  with left.path.open("rb") as first, right.path.open("rb") as second:
    for begin in range(0, left.nbytes, _BLOCK):
      size = min(_BLOCK, left.nbytes - begin)
      first.seek(left.begin + begin)
      second.seek(right.begin + begin)
      if first.read(size) != second.read(size):
        return False
  return True


def _without_copies(
  family: Family,
  entries: Mapping[str, TensorEntry],
  wanted: Mapping[str, TensorMapping],
  named: epath.Path,
  notes: list[str],
) -> dict[str, TensorEntry]:
  """Returns every tensor once: some checkpoints contain tied ones under several names, or only under a second name.

  tests/parity/test_two_tensors.py tests which of two differing tensors transformers reads.

  Raises:
    UserError: two tensors differ that are one in t2t's model.
  """
  entries, is_tied = dict(entries), _head(family) not in wanted
  for copy, original in family.copies.items():
    if copy in wanted:
      continue
    if copy not in entries:
      if original in entries and not is_tied and original.endswith(".bias"):
        notes.append(f"{copy} is missing: {original} is used, as in transformers 4; 5 initializes {copy} with zero")
      continue
    if original not in entries:
      entries[original] = entries[copy]
    elif not _same(entries[copy], entries[original]):
      if not copy.endswith(".bias"):
        raise UserError(
          f"{named}: {copy} differs from {entries[original].name}{_difference(entries[copy], entries[original])}."
          " transformers 5 keeps both tensors, and transformers 4 uses only one tensor. t2t's model has only one"
          f" embedding. If {copy} is not used, delete {copy} from {entries[copy].path.name} and convert again."
        )
      if is_tied:
        raise UserError(
          f"{named}: {copy} and {original} differ, but must be equal if logits are tied. transformers 5 reads"
          f" {copy}, and transformers 4 reads {copy if family.reads_bias_copy else original}. Remove the wrong tensor."
        )
      # With untied logits transformers 5 unties their bias, too, and trains only the copy.
      entries[original] = entries[copy]
      both = f"transformers reads {copy}" if family.reads_bias_copy else f"transformers 5 reads {copy}, 4 {original}"
      notes.append(f"{copy} and {original} differ: {both}; {copy} is kept")
    del entries[copy]
  head = _head(family)
  original = family.copies.get(head, "")
  if family.shares_head and head in wanted and head not in entries and original in entries:
    entries[head] = entries[original]
    notes.append(
      f"{head} is missing: the logits get a copy of the embedding, unscaled, as in transformers 5;"
      f" transformers 4 initializes {head} at random"
    )
  return entries


def _lengths(model: TransformerConfig, settings: Settings, longest: int) -> dict[str, int]:
  positions = model.max_length or longest or settings.get("n_positions") or 512
  if model.kind.is_decoder_only:
    return {"targets_length": min(positions, 1024)}
  return {"inputs_length": min(positions, 512)}


def _tensors(
  family: Family, model: TransformerConfig, wanted: Mapping[str, TensorMapping], entries: Mapping[str, TensorEntry]
) -> dict[str, Tensor]:
  parts: dict[str, dict[int | None, Any]] = {}
  of_experts: dict[tuple[str, int | None], list[Callable[[], np.ndarray]]] = {}
  dtypes = {}
  for name, mapping in wanted.items():
    for index, path in enumerate(mapping.ours):
      read = functools.partial(_read, entries[name], mapping, index)
      if mapping.expert is not None:
        experts = of_experts.setdefault((path, mapping.layer), [])  # in order, see `places`
        experts.append(read)
        read = functools.partial(_stacked, experts)
      parts.setdefault(path, {})[mapping.layer] = read
      dtypes[path] = safetensors.DTYPES.get(entries[name].dtype, np.dtype(np.float32))
  tensors = {}
  for path, x in expected(model).items():
    stacked = "/layers/" in path
    if stacked:
      # Layers without a Hugging Face tensor are constant.
      value = next((value for name, value in family.constants.items() if _is_layer_of(family, name, path)), None)
      constant = functools.partial(np.full, x.shape[1:], value, np.float32)
      found_layers = parts.get(path, {})
      readers = tuple(found_layers.get(layer, constant) for layer in range(x.shape[0]))
    else:
      readers = (parts[path][None],)
    tensors[path] = Tensor(x.shape, dtypes.get(path, np.dtype(np.float32)), readers, stacked=stacked)
  return tensors


def _stacked(readers: Iterable[Callable[[], np.ndarray]]) -> np.ndarray:
  return np.stack([read() for read in readers])


def _is_layer_of(family: Family, name: str, path: str) -> bool:
  """Returns whether the Hugging Face tensor `name`, of some layer, is part of the stacked t2t `path`."""
  return any(
    ours == path and name.startswith(pattern.split("{}")[0]) and name.endswith(pattern.split("{}")[-1])
    for pattern, ours in family.names.items()
  )


def _read(entry: TensorEntry, mapping: TensorMapping, index: int) -> np.ndarray:
  part = mapping.ours_of(entry.read(), index)
  check_finite(part, f"{entry.path}: {entry.name}")
  return part


# ---- Export ----------------------------------------------------------------------------------------------------------

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def written(family: Family, model: TransformerConfig) -> dict[str, TensorMapping]:
  """Returns the exported tensors by their names in the model's class.

  The bias of untied logits is exported under both of its names, because versions of transformers read different ones.
  """
  wanted = places(family, model)
  if _head(family) in wanted:
    is_written = lambda copy: copy.endswith(".bias") or (family.writes_copies and copy not in wanted)
    wanted |= {copy: wanted[original] for copy, original in family.copies.items() if is_written(copy)}
  if family.logits_bias and family.logits_bias not in wanted:
    wanted[family.logits_bias] = TensorMapping((), (), None, (1, model.vocab_size), False)
  _, task = hf_heads.class_of(family, model)
  if task is None or not task.prefix:
    return wanted
  named = lambda name: task.prefix + name.removeprefix(family.prefix) if name.startswith(family.prefix) else name
  return {named(name): mapping for name, mapping in wanted.items()}


def save(
  foreign: Foreign,
  out: epath.Path,
  *,
  dtype: str = "float32",
  head: str = "",
  max_shard_bytes: int = 5_000_000_000,
  advance: atomic_output.Progress = lambda *_: None,
) -> list[str]:
  """Writes a folder that transformers loads with `from_pretrained`.

  Args:
    foreign: a t2t checkpoint, as returned by `tensor_writer.open_foreign`.
    out: a folder that does not exist or is empty.
    dtype: float32, bfloat16 or float16.
    head: head to export, see `hf_heads.reduced`.
    max_shard_bytes: largest size of a file.
    advance: see `atomic_output.Progress`.

  Returns:
    Notes for the user.

  Raises:
    UserError: transformers has no such model, the checkpoint lacks parameters, `out` is not empty, or the disk is full.
  """
  if dtype not in _DTYPES:
    raise UserError(f"--dtype {dtype}: unknown dtype. Known values: {', '.join(_DTYPES)}")
  target = settings_lib.written_as(foreign.model, str(foreign.path), head=head)
  files, moved = hf_tokenizer.files(foreign, target.family), []
  padding = files.ids.get("pad_token_id")
  if padding is not None and target.settings.get("pad_token_id", padding) != padding:
    moved = [
      f"positions start after the padding id, which is {padding} in this vocabulary and"
      f" {target.settings['pad_token_id']} in RoBERTa's: the rows of positions were moved, with the same logits"
    ]
    foreign = _counted_from(foreign, padding + 1)
    target = settings_lib.written_as(foreign.model, str(foreign.path), head=head)
  family, model, model_class, settings = target
  wanted = written(family, model)
  settings = settings | {"model_type": family.model_type, "architectures": [model_class], "torch_dtype": dtype}
  # The defaults are ids of the published vocabularies, which may be outside this one.
  ids = (*_IDS, "cls_token_id", "sep_token_id") if not foreign.model.kind.is_generative else _IDS
  settings = dict.fromkeys(ids) | dict(family.ids) | settings | files.ids
  for section in family.sections:
    start = {"bos_token_id": settings.get("decoder_start_token_id", settings["bos_token_id"])}
    settings[section] = settings[section] | {name: settings[name] for name in _IDS} | start
  if foreign.table:
    settings[DataConfig.EXPORTED_TABLE] = dict(foreign.table)
  width = safetensors.DTYPES[_DTYPES[dtype]].itemsize
  sizes = {name: width * math.prod(mapping.shape) for name, mapping in wanted.items()}
  shards = safetensors.shards(sizes.items(), max_shard_bytes)
  names = [_WEIGHTS]
  if len(shards) > 1:
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
  # Experts of one layer follow each other, so the layer is read once.
  read_layer = functools.lru_cache(maxsize=1)(lambda path, layer: foreign.tensors[path].read_layer(layer))
  with atomic_output.whole(out, sum(sizes.values())) as folder:
    for name, shard in zip(names, shards, strict=True):
      with safetensors.SafetensorsWriter(
        folder / name, {tensor: wanted[tensor].shape for tensor in shard}, dtype=_DTYPES[dtype]
      ) as writer:
        for tensor in shard:
          advance(writer.write(tensor, _value(foreign, wanted[tensor], tensor, dtype, read_layer)), 1)
    if len(shards) > 1:
      weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
      _write_json(folder / _INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    beside = sentence_transformers.files(foreign.model) if files.content else {}
    for name, content in (files.content | beside).items():
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_bytes(content)
    if foreign.model.kind.is_generative and files.ids:
      _write_json(folder / "generation_config.json", files.ids)
    # Written last: without it the folder is not a model.
    _write_json(folder / _CONFIG, settings)
  left = [f"the head {left_head.name}" for left_head in foreign.model.heads if left_head not in model.heads]
  left += ["the head over the vocabulary"] if foreign.model.vocabulary_head and not model.vocabulary_head else []
  notes = [f"left out, because a {model_class} has none: {', '.join(left)}"] if left else []
  return [f"written as a {model_class}", *moved, *files.notes, *notes]


def _counted_from(foreign: Foreign, offset: int) -> Foreign:
  """Returns the model with another `position_offset`; rows before the first position are never used."""
  name, model = "embed/positions", foreign.model
  table, moved = foreign.tensors[name], dataclasses.replace(model, position_offset=offset)

  def read() -> np.ndarray:
    rows = table.read()
    return np.concatenate([np.zeros((offset, rows.shape[1]), rows.dtype), rows[model.position_offset :]])

  shape = (table.shape[0] - model.position_offset + offset, table.shape[1])
  tensors = dict(foreign.tensors) | {name: Tensor(shape, table.dtype, (read,))}
  return dataclasses.replace(foreign, model=moved, tensors=tensors)


def _value(
  foreign: Foreign, mapping: TensorMapping, name: str, dtype: str, read_layer: Callable[[str, int], np.ndarray]
) -> np.ndarray:
  if mapping.layer is None:
    parts = [foreign.tensors[path].read() for path in mapping.ours]
  else:
    parts = [mapping.of_expert(read_layer(path, mapping.layer)) for path in mapping.ours]
  value = mapping.theirs_of(parts)
  if dtype == "float16" and np.any(np.abs(value) > np.finfo(np.float16).max):
    raise UserError(f"--dtype float16: {name} has values beyond 65,504. Give bfloat16 or float32.")
  return value


def _write_json(path: epath.Path, content: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(content, indent=2) + "\n")
