"""`t2t eval --config.eval.method=loss`: loss and perplexity of a checkpoint on all held-out text.

Rows are those of evaluation during training. With a memory each row of a batch is a stream of consecutive rows, which
begins with an empty memory, as published perplexities of Transformer-XL are measured (Dai et al. 2019).
"""

import dataclasses
import json

import jax
import jax.numpy as jnp

from t2t import UserError, losses
from t2t.checkpoints import pretrained
from t2t.configuration.schema import Config
from t2t.data import pipeline, train_data, vocabularies
from t2t.losses import text_figures
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
  if losses.has_teacher(config):
    from t2t.losses import teacher_student

    config = teacher_student.without(config)
  data = config.data
  if data.eval_files and not data.is_named:
    config = config.with_(data={"files": data.eval_files})
  config = train_data.resolved(config)
  if data.vocabulary and data.vocabulary != source.vocabulary:
    vocabularies.check_same(pretrained.vocabulary(source), pipeline.vocabulary(data), spec=data.vocabulary)
  if config.train.loss not in ("cross_entropy", "diffusion", "bilm"):
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
  sizes = vocabularies.token_bytes(pipeline.vocabulary(data)) if losses.is_likelihood(config) else None
  bytes_per_target = 0.0 if sizes is None else losses.mean_over_targets(held_out, sizes)
  of_text = text_figures.of_loss(loss, bytes_per_target)
  values = {"loss": loss, **of_text, "accuracy": accuracy, "targets": float(metrics["loss"].weight)}
  if bytes_per_target:
    values["bytes"] = values["targets"] * bytes_per_target
  settings = {"memory_length": config.model.memory_length, "batch_size": batch_size}
  hosts.log_once(
    f"held-out loss {loss:.4f} nats per target token{text_figures.note(of_text)}, token accuracy {accuracy:.1%}, over "
    f"{values['targets']:,.0f} target tokens"
  )
  if jax.process_index() == 0:
    folder = gcs.absolute(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    text = config.data.eval_files or config.data.named
    record["held_out"] = {
      "metrics": values,
      "text": text,
      "checkpoint": source.name,
      "method": METHOD,
      **source.read_as,
      **settings,
    }
    gcs.write(path, json.dumps(record, indent=2) + "\n")
  return values
