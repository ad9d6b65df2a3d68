"""Converts model and vocabulary of T5X's gin files to config keys."""

from typing import Any

from t2t.convert.gin import param_map as gin_names
from t2t.convert.gin import t5x_defaults as gin_files
from t2t.convert.gin.bindings import UNSET, BindingReader
from t2t.convert.gin.parser import Reference
from t2t.convert.gin.same import of_sections, same

ADD_MODEL = "; add one in front, for example --gin_file t5x/examples/t5/t5_1_1/base.gin"
# Model fields that are compared with a checkpoint's.
_SHAPE = (*gin_files.NETWORK.values(), "tied_logits")


def settings(reader: BindingReader) -> dict[str, Any]:
  """Returns keys of config.model."""
  model = same(reader, of_sections(gin_names.SAME, "model"))
  module, model_reference = reader.value("EncoderDecoderModel.module"), reader.value("train.model")
  reader.macros |= {"MODEL", "ARCHITECTURE"}  # in files with a model, but without a run
  if isinstance(model_reference, Reference) and not model_reference.name.endswith("EncoderDecoderModel"):
    reader.refuse(
      "train.model", model_reference, "only encoder-decoders are supported; set config.model in a Python config"
    )
    return {}
  if not model:
    if isinstance(module, Reference):
      reader.refuse(
        "EncoderDecoderModel.module",
        module,
        "only sizes of T5X's T5Config and Flaxformer's T5 are supported; set config.model in a Python config",
      )
    elif "MODEL" not in reader.not_given:
      reader.missing(f"contains no model{ADD_MODEL}")
    return {}
  # A dropout left to the command line differs from T5X's default.
  dropout = {"model.dropout_rate": 0.0} if reader.key("T5Config.dropout_rate") else {}
  flaxformer = any(reader.key(name) for name in ("Embed.features", "Encoder.num_layers"))
  theirs = {"model.dtype": "bfloat16"} if flaxformer else gin_names.THEIR_DEFAULTS
  return {"model.architecture": "encoder_decoder"} | theirs | dropout | model | _head(reader) | _activation(reader)


def _head(reader: BindingReader) -> dict[str, Any]:
  """Returns whether Flaxformer's decoder ties the logits to the embedding."""
  if not reader.key("Decoder.output_logits_factory"):
    return {}
  return {"model.tied_logits": not isinstance(reader.value("Decoder.output_logits_factory"), Reference)}


def _activation(reader: BindingReader) -> dict[str, Any]:
  name = next((name for name in ("MlpBlock.activations", "T5Config.mlp_activations") if reader.key(name)), "")
  activations = reader.value(name) if name else ("relu",)
  names = " * ".join(map(str, activations)) if isinstance(activations, list | tuple) else ""
  if names in gin_names.ACTIVATIONS:
    return {"model.mlp_activation": gin_names.ACTIVATIONS[names]}
  if activations is not UNSET:
    why = f"t2t supports {', '.join(gin_names.ACTIVATIONS)}; or give --config.model.mlp_activation=NAME"
    reader.refuse(name, activations, why, "model.mlp_activation")
  return {}


def shape(reader: BindingReader) -> dict[str, Any]:
  """Returns keys of config.model to compare with a checkpoint's model."""
  names = {name: key for name, key in of_sections(gin_names.SAME, "model").items() if key.partition(".")[2] in _SHAPE}
  model = same(reader, names) | _head(reader)
  return model | _activation(reader) if model else {}


def vocabulary(reader: BindingReader) -> dict[str, Any]:
  """Returns keys of config.data for the vocabulary."""
  vocabularies = [reader.value(f"EncoderDecoderModel.{side}_vocabulary") for side in ("input", "output")]
  settled_by, give = ("data.vocabulary",), "; give --config.data.vocabulary=FILE"
  if vocabularies[1] not in (UNSET, vocabularies[0]):
    why = f"t2t has one vocabulary for inputs and targets{give}"
    reader.refuse("EncoderDecoderModel.output_vocabulary", vocabularies[1], why, *settled_by)
  if not isinstance(vocabularies[0], Reference):
    return {}
  scope, _, function = vocabularies[0].name.rpartition("/")
  function = f"{f'{scope}/' if scope else ''}{function.rpartition('.')[2]}"
  extra_ids = reader.value(f"{function}.extra_ids")
  values = {"data.extra_ids": extra_ids if isinstance(extra_ids, int) else 0}
  if function.endswith("ByteVocabulary"):
    return {"data.vocabulary": "bytes"} | values
  path = reader.value(f"{function}.sentencepiece_model_file")
  if not isinstance(path, str):
    why = f'config.data.vocabulary supports files and "bytes"{give}'
    reader.refuse("EncoderDecoderModel.input_vocabulary", vocabularies[0], why, *settled_by)
    return {}
  return {"data.vocabulary": path} | values
