"""Export of adapters without their base model, and import of adapters as runs."""

import dataclasses
from typing import Any

from etils import epath

from t2t import UserError
from t2t.checkpoints import base_model_ref, pretrained, tensor_writer
from t2t.convert import atomic_output, lazy_tensors, peft
from t2t.convert.lazy_tensors import Foreign, Tensor
from t2t.models import adapters as adapters_lib
from t2t.models import transformer
from t2t.storage import gcs


def trained(source: pretrained.Source, *, where: str = "") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
  """Returns the trained parameters of an adapter's run and the parameters of its base, as lazy tensors.

  Returns:
    Path in the adapted model -> parameter; path in the base -> parameter.

  Raises:
    UserError: the checkpoint has no adapter, is damaged, or its base has changed.
  """
  if not source.adapters:
    raise UserError(f"{where}{source.name}: the model has no adapter. Give --to hf, which writes the whole model.")
  adapter_tensors, frozen, _ = tensor_writer.saved(source, where)
  below = frozen | tensor_writer.of_base(source)
  # not None: no parameter in `below` was added
  places: Any = {path: adapters_lib.base_path(path, source.adapters) for path in below}
  return adapter_tensors, {places[path]: tensor for path, tensor in below.items()}


def base_folder(source: pretrained.Source) -> str:
  """Returns the Hugging Face folder of an adapter's base; "" if the base has another format."""
  below = pretrained.base_of(source) if source.base is not None else None
  return str(below.path) if below is not None and below.foreign is not None and below.foreign.kind == "hf" else ""


def open_base(path: str, *, where: str) -> tuple[Foreign, str]:
  """Opens the base of an adapter in another format; returns its parameters as lazy tensors, and its `Source.part`.

  Raises:
    UserError: the base does not exist, cannot be read, or has an adapter that must be merged first.
  """
  source = pretrained.read_source(path, where=where)
  pretrained.check_may_be_base(source, where=f"{where}{path}")
  return source.foreign or tensor_writer.open_foreign(str(source.path), where=where), source.part


def save(
  adapter: peft.PeftAdapter,
  base: Foreign,
  part: str,
  out: epath.Path,
  *,
  advance: atomic_output.Progress = lambda *_: None,
) -> Foreign:
  """Writes a t2t run with the adapter, which refers to its base by path and array digests.

  Args:
    adapter: see `peft.open_adapter`.
    base, part: see `open_base`.
    out: a folder that does not exist or is empty.
    advance: see `atomic_output.Progress`.

  Returns:
    The written parameters, as `tensor_writer.save` takes them.

  Raises:
    UserError: the base has other parameters, `out` is not empty, or the disk is full.
  """
  atomic_output.check(out, 0)
  section = adapters_lib.ADAPTERS[adapter.section]
  adapters = {adapter.section: section.config(**adapter.config)}
  adapter_tensors = dict(adapter.tensors) | {path: _of_head(base, adapter, path) for path in adapter.kept}
  adapted = lambda rngs: adapters_lib.adapt(transformer.build(adapter.model, rngs), adapters, rngs)
  shapes = {path: x.shape for path, x in lazy_tensors.expected_of(adapted).items()}
  below: Any = {path: adapters_lib.base_path(path, adapters) for path in shapes if path not in adapter_tensors}
  there = {path: base.tensors[name].shape for path, name in below.items() if name in base.tensors}
  lazy_tensors.compare(str(adapter.path), there | {path: x.shape for path, x in adapter_tensors.items()}, shapes)
  entries = {}
  for path, name in below.items():
    tensor = base.tensors[name]
    digest = base_model_ref.digest_of_parts(read() for read in tensor.parts)
    entries[path] = base_model_ref.BaseEntry(name, tensor.shape, digest)
  base_location = gcs.origin(str(base.path))
  base_record = base_model_ref.Base(
    base_location, base_model_ref.beside(base_location, gcs.absolute(str(out))), part, entries
  )
  foreign = dataclasses.replace(
    base, kind="peft", path=adapter.path, model=adapter.model, tensors=adapter_tensors, pooler={}
  )
  config: Any = tensor_writer.run_config(foreign, out)
  records: dict[str, Any] = adapters
  config |= {name: dataclasses.asdict(record) for name, record in records.items()}
  # Same keys as in a run that was initialized from the base.
  config["init"] |= {"checkpoint": base_location, "use_model_config": True}
  tensor_writer.save(foreign, out, config=config, base=base_record, advance=advance)
  return foreign


def _of_head(base: Foreign, adapter: peft.PeftAdapter, path: str) -> Tensor:
  """Returns an untrained parameter of the head, from the base's head or from its pooler."""
  head, name = adapter.model.heads[0], path.rpartition("/")[2]
  places = [f"heads/{base_head.name}/{name}" for base_head in base.model.heads if base_head.kind == head.kind]
  tensor = next((base.tensors[candidate] for candidate in places if candidate in base.tensors), base.pooler.get(name))
  if tensor is None:
    raise UserError(
      f"{adapter.path}: the head's parameter {name!r} is missing in the adapter and in {base.path}. Give --base MODEL "
      "with the model that the adapter was trained on, including the pooler."
    )
  return tensor
