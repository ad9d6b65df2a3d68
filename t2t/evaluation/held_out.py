"""`t2t eval --config.eval.method=loss`: loss and perplexity of a checkpoint on all held-out text.

Rows are those of evaluation during training. With a memory each row of a batch is a stream of consecutive rows, which
begins with an empty memory, as published perplexities of Transformer-XL are measured (Dai et al. 2019).
"""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp

from t2t import UserError, losses
from t2t.checkpoints import pretrained
from t2t.configuration.schema import Config
from t2t.data import pipeline, train_data, vocabularies
from t2t.evaluation import results
from t2t.runtime import hosts
from t2t.storage import gcs
from t2t.training import mesh_selection, recipe, train_step
from t2t.training.train_state import TrainState

METHOD = "loss"  # config.eval.method
_ALL = 2**31  # batches


def evaluate(config: Config, source: pretrained.Source, workdir: str) -> dict[str, float]:
  """Returns loss, perplexity, bits per byte, accuracy and number of targets, and adds them to WORKDIR/results.json.

  Args:
    config: `data` selects text and objective, with `eval_files` or the held-out part of `files`.
    source: the checkpoint.
    workdir: local or gs://.

  Raises:
    UserError: the loss is not a cross-entropy, or data and checkpoint do not fit together.
  """
  data = config.data
  if data.eval_files and not data.is_named:
    config = config.with_(data={"files": data.eval_files})
  config = train_data.resolved(config)
  if config.train.loss != "cross_entropy":
    raise UserError(
      f"config.eval.method={METHOD} measures the cross-entropy of tokens, but config.train.loss={config.train.loss}. "
      "Give --config.train.loss=cross_entropy, or another config.eval.method."
    )
  batch_size, number = config.eval.batch_size or config.train.batch_size, config.eval.max_examples
  batches = -(-number // batch_size) if number else _ALL
  # The rows of training have no part in this, so they need not fit the mesh.
  config = config.with_(
    train={"batch_size": batch_size, "microbatches": 1}, eval={"batch_size": batch_size, "batches": batches}
  )
  built = recipe.make(config)
  mesh, _ = mesh_selection.make(config)
  with jax.set_mesh(mesh):
    recipe.check_sizes(config, mesh)
    recipe.check_lengths(config, mesh)
    held_out = train_data.eval_batches(config, mesh)
    # The memory may have another length than in training; parameters do not depend on it.
    model_config = dataclasses.replace(source.model, memory_length=config.model.memory_length)
    model = pretrained.load(dataclasses.replace(source, model=model_config), mesh)
    collections = {name: value for name, value in built.collections.items() if value.by_row}
    state = TrainState(jnp.zeros((), jnp.int32), model.params, {}, (), dict.fromkeys(collections, {}))
    step = train_step.make_eval_step(model.graphdef, losses.without_auxiliary(built.loss), collections)
    metrics = jax.device_get(train_step.evaluate(step, state, held_out, collections))
  loss, accuracy = (float(metrics[name].value()) for name in ("loss", "accuracy"))
  values = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}
  values["targets"] = float(metrics["loss"].weight)
  sizes = vocabularies.token_bytes(pipeline.vocabulary(data)) if source.model.kind.is_generative else None
  if sizes is not None and (bytes_per_target := losses.mean_over_targets(held_out, sizes)):
    values["bytes"] = values["targets"] * bytes_per_target
    values["bits_per_byte"] = loss / math.log(2) / bytes_per_target
  settings = {"memory_length": config.model.memory_length, "batch_size": batch_size}
  hosts.log_once(
    f"held-out loss {loss:.4f} nats per target token, perplexity {values['perplexity']:.4g}"
    + (f", {values['bits_per_byte']:.4g} bits per byte" if "bits_per_byte" in values else "")
    + f", token accuracy {accuracy:.1%}, over {values['targets']:,.0f} target tokens"
  )
  if jax.process_index() == 0:
    folder = gcs.absolute(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    text = config.data.eval_files or config.data.named
    record["held_out"] = {"metrics": values, "text": text, "checkpoint": str(source.path), "method": METHOD, **settings}
    results.replace_text(path, json.dumps(record, indent=2) + "\n")
  return values
