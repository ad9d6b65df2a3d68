"""Converts T5X's gin files to a config, a checkpoint and options; and lists bindings without a counterpart.

A gin file binds parameters of functions, in itself, in its includes, and through macros.  The last value of each
counts. Values are looked up by name, and bindings that were never read are reported or refused.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import re
import shlex
import sys
from typing import Any

from ml_collections import ConfigDict

from t2t import UserError
from t2t.convert.gin import bindings as gin_bindings
from t2t.convert.gin import model as gin_model
from t2t.convert.gin import optimizer as gin_optimizer
from t2t.convert.gin import overlay, unsupported
from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin.bindings import UNSET, BindingReader, GinFinding
from t2t.convert.gin.parser import Reference
from t2t.convert.gin.same import of_sections, same

_STEP = re.compile(r".*checkpoint_(\d+)/?")


@dataclasses.dataclass(frozen=True)
class ConvertedGin:
  """Gin files converted to t2t's terms.

  name: names of the files.
  kind: of the run, a key of `param_map.KINDS`.
  values: config key -> value, for example "train.steps"; other keys have their defaults.
  findings: bindings without an exact counterpart.
  workdir: T5X's output folder; "": left open.
  checkpoint: to evaluate or to infer with; "" for training.
  options: of `t2t infer`, as typed.
  model: config key -> value of the checkpoint's model; empty for training, where the config has it.
  of_split: whether lengths are those of the longest examples of the split.
  """

  name: str
  kind: str
  values: Mapping[str, Any]
  findings: tuple[GinFinding, ...]
  workdir: str = ""
  checkpoint: str = ""
  options: tuple[str, ...] = ()
  model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  of_split: bool = False

  @property
  def text(self) -> str:
    """The config as Python source."""
    return overlay.text_of(self.name, self.values, self.kind)

  def config(self) -> ConfigDict:
    """Returns the config that the text describes."""
    return overlay.config_of(self.values)

  def refused(self, typed: Sequence[str]) -> list[GinFinding]:
    """Returns the bindings that prevent a run, except settled ones.

    Args:
      typed: config keys and options on the command line.
    """
    is_settled = lambda key: any(typed_key == key or typed_key.startswith(f"{key}.") for typed_key in typed)
    return [finding for finding in self.findings if finding.refused and not any(map(is_settled, finding.settled_by))]


def to_config(gin: gin_bindings.Gin, kind: str = "") -> ConvertedGin:
  """Converts gin files.

  Args:
    gin: the files.
    kind: required kind of run, a key of `param_map.KINDS`; "": the kind that they describe.

  Raises:
    UserError: they describe another.
  """
  reader = BindingReader(gin)
  kind = _kind(reader, kind)
  converted = _trained(reader) if kind == "train" else _asked(reader, kind)
  findings = sorted({*reader.findings, *unsupported.left(reader, kind)}, key=_by_line)
  return dataclasses.replace(converted, findings=(*unsupported.not_given(reader, kind), *findings))


def _kind(reader: BindingReader, wanted: str) -> str:
  """Returns the kind of the run.

  Raises:
    UserError: it differs from the required kind.
  """
  kinds = unsupported.kinds(reader)
  for kind, location in kinds.items():
    if kind in gin_names.OTHERS and wanted not in kinds:
      raise UserError(f"{location}: the line binds {kind}. {gin_names.OTHERS[kind]}")
  if wanted and kinds and wanted not in kinds:
    kind, location = next(iter(kinds.items()))
    files = " ".join(f"--gin_file {path}" for path in reader.gin.paths)
    raise UserError(
      f"{location}: {reader.gin.name} is for T5X's {kind}.py, not for `{gin_names.KINDS[wanted]}`. Run"
      f" `{gin_names.KINDS[kind]} {files}`."
    )
  if not kinds and wanted:
    runs = {"train": ("pretrain", "finetune")}.get(wanted, (wanted,))
    includes = " or ".join(f"--gin_file t5x/configs/runs/{run}.gin" for run in runs)
    reader.missing(f"no binding of {_function(wanted)}, so the files describe no run. Add {includes}.")
  return wanted or next(iter(kinds), "train")


def _function(kind: str) -> str:
  return next(name for name, value in gin_names.FUNCTIONS.items() if value == kind)


def _by_line(finding: GinFinding) -> tuple[str, int]:
  match = re.match(r"(.*?):(\d+): ", finding.text)
  return (match[1], int(match[2])) if match else (finding.text, 0)


# ---- Training --------------------------------------------------------------------------------------------------------


def _trained(reader: BindingReader) -> ConvertedGin:
  values = gin_model.settings(reader) | _data(reader) | _training(reader)
  values |= gin_optimizer.settings(reader, _steps_before(reader))
  workdir = _open_to_options(reader, "train.model_dir")
  if "train" in unsupported.kinds(reader):
    _check_all_is_said(reader, values)
  return ConvertedGin(reader.gin.name, "train", values, (), workdir)


def _open_to_options(reader: BindingReader, name: str) -> str:
  """Returns a path that an option may also give; "" if it is left open."""
  known = dict(reader.not_given)
  value = reader.value(name)
  reader.not_given = known
  if value is not UNSET and not isinstance(value, str):
    reader.refuse(name, value, "is not a path")
  return value if isinstance(value, str) else ""


def _check_all_is_said(reader: BindingReader, values: Mapping[str, Any]) -> None:
  """Records the missing required parameters of T5X's functions."""
  open_to = {of for _, of in reader.not_given.values()}
  for name, keys in {
    "train.total_steps": ("train.steps", "train.epochs"),
    "train/DatasetConfig.mixture_or_task_name": ("data.mixture", "data.files", "data.sources"),
    "train/DatasetConfig.task_feature_lengths": ("data.inputs_length", "data.targets_length"),
    "train/DatasetConfig.batch_size": ("train.batch_size",),
  }.items():
    if reader.key(name) is None and name not in open_to and keys[0] not in values:
      reader.missing(
        f"{name} is not bound, but T5X requires a value. Bind {name}, or give --config.{keys[0]}=VALUE.", *keys
      )


def _data(reader: BindingReader) -> dict[str, Any]:
  data = same(reader, of_sections(gin_names.SAME, "data"))
  data |= _mixture(reader, "train/DatasetConfig") | _lengths(reader, "train/DatasetConfig")
  _check_held_out(reader)
  return data | gin_model.vocabulary(reader)


def _mixture(reader: BindingReader, dataset: str) -> dict[str, Any]:
  """Returns the mixture, and the modules that register it, which the files import as in T5X."""
  name = f"{dataset}.mixture_or_task_name"
  mixture, module = reader.value(name), reader.value(f"{dataset}.module")
  user_modules = unsupported.own_modules(reader)
  modules = [module] if isinstance(module, str) else []
  modules += [user_module for user_module in user_modules if user_module not in modules]
  ours, known = gin_names.MIXTURES.get(mixture, (mixture, "")) if isinstance(mixture, str) else ("", "")
  reader.findings += unsupported.modules(reader, needed=not known)
  if isinstance(mixture, Reference):
    reader.refuse(name, mixture, "t2t reads examples from a task, or from --input FILE", "data.mixture", "--input")
  if not isinstance(mixture, str):
    return {}
  if known:
    return {"data.mixture": ours, "data.task_modules": (known,)}
  if not modules:
    reader.refuse(
      name,
      mixture,
      "t2t has no such mixture. Import the module of the mixture in the gin file, or give"
      f" --config.data.task_modules=MODULE. T5X's mixtures in t2t: {', '.join(gin_names.MIXTURES)}",
      "data.mixture",
      "data.task_modules",
      "data.files",
      "data.sources",
      "--input",
    )
  return {"data.mixture": ours, "data.task_modules": tuple(modules)}


def _lengths(reader: BindingReader, dataset: str) -> dict[str, Any]:
  keys, name = {}, f"{dataset}.task_feature_lengths"
  lengths = reader.value(name)
  for feature, length in (lengths if isinstance(lengths, dict) else {}).items():
    if feature in ("inputs", "targets") and isinstance(length, int):
      keys[f"data.{feature}_length"] = length
    elif length is not UNSET:
      reader.refuse(name, {feature: length}, "t2t has only lengths of inputs and targets, in tokens")
  return keys


def _check_held_out(reader: BindingReader) -> None:
  """Reports differences between T5X's two evaluation data sets and the training data, because t2t has one."""
  split = reader.value("train_eval/DatasetConfig.split")
  scopes = ("train_eval", "infer_eval") if unsupported.asks_while_training(reader) else ("train_eval",)
  for name in ("mixture_or_task_name", "task_feature_lengths", "module", "pack", "batch_size"):
    wanted = reader.value(f"train/DatasetConfig.{name}")
    for scope in scopes:
      value = reader.value(f"{scope}/DatasetConfig.{name}")
      # Generation inputs are never packed, and the batch size has its own key.
      is_told = name not in ("pack", "batch_size") or (name == "pack" and scope == "train_eval")
      if is_told and value not in (UNSET, None, wanted):
        reader.tell(
          f"{scope}/DatasetConfig.{name}",
          value,
          "setting of evaluation data; t2t evaluates the training mixture on another split, and others with `t2t eval`",
        )
  value = reader.value("infer_eval/DatasetConfig.split") if len(scopes) > 1 else UNSET
  if value not in (UNSET, split):
    reader.tell(
      "infer_eval/DatasetConfig.split",
      value,
      "split for generation; t2t has one evaluation split, config.data.eval_split",
    )


def _training(reader: BindingReader) -> dict[str, Any]:
  settings = same(reader, of_sections(gin_names.SAME, "train", "eval", "checkpoint"))
  if any(function == "EncoderDecoderModel" for _, function, _ in reader.gin.bindings):
    settings = {"train.z_loss": 0.0} | settings
  settings["train.microbatches"] = max(1, settings.get("train.microbatches", 1))  # 0 in T5X means one
  batch = reader.value("train_eval/DatasetConfig.batch_size")
  if isinstance(batch, int) and batch != settings.get("train.batch_size"):
    settings["eval.batch_size"] = batch
  if _decoding(reader, may_sample=False):
    settings["eval.num_beams"] = 1
  steps, earlier = reader.value("train.total_steps"), _steps_before(reader)
  if steps is not UNSET and not (isinstance(steps, int) and steps > earlier):
    reader.refuse(
      "train.total_steps", steps, f"is not a number above the checkpoint's {earlier:,} steps", "train.steps"
    )
  elif isinstance(steps, int):
    settings["train.steps"] = steps - earlier
    if earlier:
      reader.tell(
        "train.total_steps",
        steps,
        f"T5X counts on from the checkpoint's step {earlier:,}, t2t from 0: {steps - earlier:,} steps",
      )
  if path := _checkpoint(reader):
    settings["init.checkpoint"] = path
    _check_steps(reader, path, earlier)
  if reader.key("SaveCheckpointConfig.keep") and reader.value("SaveCheckpointConfig.keep") is None:
    reader.tell(
      "SaveCheckpointConfig.keep", None, "T5X deletes no checkpoint; t2t keeps 3 (config.checkpoint.max_to_keep)"
    )
  return settings | _mesh(reader)


def _checkpoint(reader: BindingReader, *settled_by: str) -> str:
  """Returns the path of the initial checkpoint, or of the one to evaluate."""
  path, mode = reader.value("RestoreCheckpointConfig.path"), reader.value("RestoreCheckpointConfig.mode")
  if reader.key("CheckpointConfig.restore") and reader.value("CheckpointConfig.restore") is None:
    return ""
  settled_by = settled_by or ("init.checkpoint",)
  if path not in (UNSET, None, [], ()) and not isinstance(path, str):
    reader.refuse("RestoreCheckpointConfig.path", path, "t2t supports only one checkpoint. Give one path.", *settled_by)
    return ""
  if mode not in (UNSET, "specific", "latest"):
    reader.refuse(
      "RestoreCheckpointConfig.mode",
      mode,
      "t2t supports only one checkpoint. Give 'specific' or 'latest'.",
      *settled_by,
    )
  return path if isinstance(path, str) else ""


def _steps_before(reader: BindingReader) -> int:
  """Returns the number of steps in the name of the initial checkpoint."""
  path = reader.value("RestoreCheckpointConfig.path")
  is_read = isinstance(path, str) and not (
    reader.key("CheckpointConfig.restore") and reader.value("CheckpointConfig.restore") is None
  )
  return int(match[1]) if is_read and (match := _STEP.fullmatch(path)) else 0


def _check_steps(reader: BindingReader, path: str, earlier: int) -> None:
  """Reports differences in step counts: T5X's checkpoints have them in their names, and TRAIN_STEPS includes them."""
  if reader.value("RestoreCheckpointConfig.mode") == "latest":
    why = (
      "T5X restores the last checkpoint, and counts on from its steps. Give the path of this checkpoint, for example "
      f"{path.rstrip('/')}/checkpoint_1000000"
    )
    reader.refuse("RestoreCheckpointConfig.mode", "latest", why, "init.checkpoint")
    return
  offset = reader.value("Adafactor.step_offset")
  why = "t2t restores only parameters; T5X also restores the optimizer's averages"
  why += f" (unless Adafactor.step_offset = {earlier})" if earlier else ""
  if not earlier:
    why += "; the name has no number of steps, so all of train.total_steps are trained"
  if not earlier or offset != earlier:
    reader.tell("RestoreCheckpointConfig.path", path, why)


def _mesh(reader: BindingReader) -> dict[str, Any]:
  values = {}
  for partitioner in ("PjitPartitioner", "ModelBasedPjitPartitioner"):
    parts, submesh = (reader.value(f"{partitioner}.{name}") for name in ("num_partitions", "model_parallel_submesh"))
    parts = math.prod(submesh) if isinstance(submesh, tuple) and submesh else parts
    if isinstance(parts, int) and parts > 1:
      values["mesh.tensor"] = parts
  return values


def _decoding(reader: BindingReader, *, may_sample: bool) -> dict[str, Any]:
  """Returns the sampling options of `t2t infer`; {} for beam search."""
  decode_fn = reader.value("EncoderDecoderModel.decode_fn")
  name = decode_fn.name.rpartition(".")[2] if isinstance(decode_fn, Reference) else ""
  read = {parameter: reader.value(f"temperature_sample.{parameter}") for parameter in ("temperature", "topk", "topp")}
  if name in ("", "beam_search") and decode_fn in (UNSET, None) or name == "beam_search":
    return {}
  if name != "temperature_sample":
    reader.refuse(
      "EncoderDecoderModel.decode_fn", decode_fn, "t2t supports beam_search, and temperature_sample in `t2t infer`"
    )
    return {}
  temperature, topk, topp = (
    value if isinstance(value, int | float) else theirs
    for value, theirs in zip(read.values(), (1.0, 1, 0.0), strict=True)
  )
  if temperature == 0 or topk == 1:
    return {"beam": 1}  # greedy decoding
  if not may_sample:
    reader.refuse("EncoderDecoderModel.decode_fn", decode_fn, "only `t2t infer` samples. Leave out decode_fn.")
  options = {"beam": 1, "temperature": temperature} | ({"top_k": topk} if topk else {})
  return options | ({"top_p": topp} if topp else {})


# ---- Evaluation and inference ----------------------------------------------------------------------------------------


def _asked(reader: BindingReader, kind: str) -> ConvertedGin:
  """Converts an evaluation or inference run; the checkpoint has the model, which is compared."""
  function = _function(kind)
  for name in ("EncoderDecoderModel.module", f"{function}.model"):
    reader.value(name)
  reader.macros |= {"MODEL", "ARCHITECTURE"}
  values = same(reader, gin_names.SAME_OF_EVAL) | _mixture(reader, "DatasetConfig") | _lengths(reader, "DatasetConfig")
  values |= _mesh(reader)
  drawn = _decoding(reader, may_sample=kind == "infer")
  if "beam" in drawn:
    values["eval.num_beams"] = 1
  vocabulary = gin_model.vocabulary(reader)
  lengths = reader.value("DatasetConfig.task_feature_lengths")
  known = dict(reader.not_given)
  checkpoint = _checkpoint(reader, "--checkpoint")
  reader.not_given = known
  return ConvertedGin(
    reader.gin.name,
    kind,
    values | vocabulary,
    (),
    _open_to_options(reader, f"{function}.output_dir"),
    checkpoint,
    _infer_options(values, drawn) if kind == "infer" else (),
    gin_model.shape(reader),
    lengths is None,
  )


def _infer_options(values: Mapping[str, Any], drawn: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the options of `t2t infer` for config keys."""
  options = {
    "max_length": "data.targets_length",
    "inputs_length": "data.inputs_length",
    "batch_size": "eval.batch_size",
    "beam": "eval.num_beams",
    "length_penalty": "eval.length_penalty",
    "tensor": "mesh.tensor",
  }
  option_values = {option: values[key] for option, key in options.items() if key in values} | dict(drawn)
  if option_values.get("beam", 1) == 1:
    option_values.pop("length_penalty", None)
  return tuple(f"--{option}={value}" for option, value in option_values.items())


# ---- Command ---------------------------------------------------------------------------------------------------------


def main(gin: gin_bindings.Gin) -> None:
  """Prints the config of gin files, and on stderr the other bindings: `t2t convert --gin X.gin > x.py`."""
  converted = to_config(gin)
  print(converted.text if converted.kind != "infer" else _infer_command(converted), end="")
  sys.stdout.flush()
  for heading, refused in (("settle before the run", True), ("not in the config", False)):
    notes = [finding.text for finding in converted.findings if finding.refused == refused]
    if notes:
      print(f"\n{heading}:\n" + "\n".join(f"  {note}" for note in notes), file=sys.stderr)


def _infer_command(converted: ConvertedGin) -> str:
  arguments = [f"--checkpoint={converted.checkpoint or 'CHECKPOINT'}", "--input=FILE.jsonl", "--output=FILE.jsonl"]
  return f"t2t infer {shlex.join([*arguments, *converted.options])}\n"
