"""Encoder for MTEB, over a checkpoint of any architecture.

import mteb
from t2t.integrations.mteb import Encoder

mteb.evaluate(Encoder("runs/simcse"), mteb.get_tasks(["STSBenchmark"]))
"""

from collections.abc import Iterable, Mapping
import functools
import logging
import math
import os
import pathlib
from typing import Any

import jax
import numpy as np

from t2t import UserError, did_you_mean
from t2t.api import loaded_model
from t2t.checkpoints import pretrained
from t2t.convert import sentence_transformers
from t2t.inference import batch_inference, embedding, jsonl_io, prompt_builder
from t2t.runtime import numeric, versions

try:
  from mteb.models import abs_encoder, model_meta
except ModuleNotFoundError as error:
  raise ModuleNotFoundError(f"{error}. Run: {versions.install_command('mteb')}", name=error.name) from error

_LOG = logging.getLogger(__name__)


class Encoder(abs_encoder.AbsEncoder):
  """A checkpoint as an encoder of MTEB 2; vectors equal those of `t2t.load(...).embed`.

  Args:
    checkpoint: see `t2t.load`, as are `tensor`, `task_modules` and `vocabulary`.
    revision: recorded with the results; None: the step of the checkpoint.
    device: argument of MTEB; None, or the platform that JAX uses.
    pool: mean, first or last of the tokens; "": that of the training, see `sentence_transformers.trained_pool`.
    layer: see `t2t.load(...).embed`.
    inputs_length: maximum number of tokens of a text; 0: as in training. Longer texts are cut, and counted in a
      warning.
    batch_size: texts per batch, over all devices; None: that of MTEB.
    prompts: prompt of a task, a task type or a prompt type ("query"), put before each text; see MTEB's documentation.

  Raises:
    UserError: the checkpoint cannot be read, or there is no such pool or layer.
  """

  def __init__(
    self,
    checkpoint: str | os.PathLike,
    revision: str | None = None,
    *,
    device: str | None = None,
    pool: str = "",
    layer: int | str = "",
    inputs_length: int = 0,
    batch_size: int | None = None,
    prompts: Mapping[str, str] | None = None,
    tensor: int = 1,
    task_modules: str = "",
    vocabulary: str = "",
  ):
    if device not in (None, jax.default_backend()):
      raise UserError(f"device={device}: JAX uses {jax.default_backend()}. Leave out 'device', or set JAX_PLATFORMS.")
    if batch_size is not None:
      numeric.check("batch_size", batch_size, 1, whole=True)
    with loaded_model.in_python():
      self._source = loaded_model.read_source(checkpoint, task_modules=task_modules, vocabulary=vocabulary)
      self._longest = prompt_builder.longest_text(self._source, inputs_length=inputs_length)
      self._pool = pool or sentence_transformers.trained_pool(self._source.model)
      if self._pool not in embedding.POOLS:
        near = did_you_mean(self._pool, embedding.POOLS)
        raise UserError(f"pool={self._pool}: unknown value; give one of {', '.join(embedding.POOLS)}{near}")
      if layer == "all":
        raise UserError("layer=all: MTEB reads one vector of a text; give a number, or leave out 'layer' for the last")
      embedding.layers_of(self._source.model, str(layer))
      self._mesh = batch_inference.make_mesh(tensor)
    self._layer, self._batch_size = str(layer), batch_size
    self.model_prompts = dict(prompts or {})
    self._way = functools.cache(self._make_way)
    path = pathlib.PurePath(self._source.name)
    run, step = (path.parent.parent.name, path.name) if path.parent.name == "checkpoints" else (path.name, None)
    self.mteb_model_meta = model_meta.ModelMeta(
      loader=None,
      name=f"t2t/{run}",
      revision=revision or step or "none",
      release_date=None,
      languages=None,
      n_parameters=sum(map(math.prod, pretrained.shapes(self._source).values())),
      memory_usage_mb=None,
      max_tokens=self._longest,
      embed_dim=self._source.model.of_stack(self._source.model.kind.answers).embed_dim,
      license=None,
      open_weights=None,
      public_training_code=None,
      public_training_data=None,
      framework=["JAX"],
      similarity_fn_name=model_meta.ScoringFunction.COSINE,
      use_instructions=bool(prompts),
      training_datasets=None,
    )

  def encode(
    self,
    inputs: Iterable[Mapping[str, Any]],
    *,
    task_metadata: Any,
    hf_split: str,
    hf_subset: str,
    prompt_type: Any = None,
    batch_size: int = 32,
    **others: Any,
  ) -> np.ndarray:
    """Returns a vector of each text, float32 [texts, embed].

    Args:
      inputs: batches with "text".
      task_metadata, prompt_type: select a prompt of `prompts`.
      hf_split, hf_subset: of the task; unused.
      batch_size: texts per batch, if the class got none.
      others: further arguments of MTEB, such as show_progress_bar.
    """
    del hf_split, hf_subset, others
    prompt = self.model_prompts.get(self.get_prompt_name(task_metadata, prompt_type), "")
    texts = [f"{prompt}{text}" for batch in inputs for text in batch["text"]]
    way, params = self._way(self._batch_size or batch_size), self._params
    lines = [way.read(jsonl_io.Line(number, text, {})) for number, text in enumerate(texts, 1)]
    if num_cut := sum(line.cut > 0 for line in lines):
      _LOG.warning(
        "%s: %s of %s texts have more than %s tokens and lost their end; inputs_length=N reads more",
        *(task_metadata.name, f"{num_cut:,}", f"{len(texts):,}", f"{self._longest:,}"),
      )
    rows = way.answer(params, [line.given for line in lines], numbers=range(len(lines)), done=None)
    return np.stack([row["vector"] for row in rows])

  @functools.cached_property
  def _params(self) -> Any:
    with loaded_model.in_python():
      return pretrained.load(self._source, self._mesh).params

  def _make_way(self, batch_size: int) -> embedding.Embedding:
    return embedding.Embedding(
      self._source, self._mesh, pool=self._pool, layer=self._layer, longest=self._longest, batch_size=batch_size
    )
