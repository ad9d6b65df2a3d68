"""Writes a teacher's logits of the rows that a training run reads, for distillation without the teacher in memory."""

from collections.abc import Callable, Mapping
import contextlib
import functools
import hashlib
import itertools
import json
import shutil
from typing import Any

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from t2t import UserError, losses, sharding
from t2t.checkpoints import base_model_ref, logit_files, pretrained, teachers, workdir_lock
from t2t.configuration.schema import Config
from t2t.configuration.stages import Stage
from t2t.losses import logits_student
from t2t.losses.logits_student import TOKENS, LogitsManifest, TeacherOutput
from t2t.losses.teacher_student import TeacherLoss, teacher_models
from t2t.models import transformer
from t2t.models.architecture import Batch
from t2t.models.config import TransformerConfig
from t2t.param_tree import Params, flatten
from t2t.runtime import amounts, hosts, progress
from t2t.storage import gcs
from t2t.training import mesh_selection, recipe, train_step

DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_LAYERS = dict.fromkeys((f"{name}_weight" for name in logits_student._LAYERS), 0.0)


def write(config: Config, output: str, *, width: int, dtype: str = "float32") -> None:
  """Writes the logits of all rows of a run, in the order of its steps; goes on in a folder that was begun.

  Args:
    config: of the run, with config.distillation.teacher.
    output: a folder, local or gs://.
    width: number of logits of a token, the largest; 0: all.
    dtype: of the logits in the files: float32 or bfloat16.

  Raises:
    UserError: the teacher does not fit the run (see `teacher_student.TeacherLoss`), the disk has too little space, the
      folder has other logits, or another command writes there.
  """
  from t2t.data import train_data

  if len(config.distillation.teacher) != 1:
    raise UserError(
      f"--checkpoint {','.join(config.distillation.teacher)}: logits are of one teacher. Give one checkpoint."
    )
  (path,), folder = config.distillation.teacher, gcs.absolute(output)
  sources: teachers.Sources = {}
  config = teachers.resolved(config, sources=sources)
  run = [_soft(stage) for stage in train_data.resolved_stages(config)]
  config = run[-1].config
  vocabulary = train_data.vocabulary(config)
  teachers.check_vocabularies(config, vocabulary, sources)
  built: list[Any] = [losses.make(stage.config) for stage in run]
  (model,) = teacher_models(config.distillation).values()
  outputs = [logits_student.outputs_of(loss, model, width=width) for loss in built]
  for stage, kinds in zip(run, outputs, strict=True):
    if kinds != outputs[0]:
      raise UserError(f"config.stages, {stage.name}: other outputs than in {run[0].name}. Write each stage alone.")
  for stage, key in itertools.product(run, ("temperature", "soft_positions", "dtype")):
    first, other = (getattr(x.config.distillation, key) for x in (run[0], stage))
    if first != other:
      raise UserError(
        f"config.stages, {stage.name}: config.distillation.{key}={other}, but {first} in {run[0].name}. A folder "
        "has one value. Write each stage alone."
      )
  for stage, loss in zip(run, built, strict=True):
    loss.check_lengths(recipe.lengths(stage.config))
  mesh, _ = mesh_selection.make(recipe.largest(run).config)
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    for stage in run:
      recipe.check_sizes(stage.config, mesh)
      recipe.check_lengths(stage.config, mesh)
    train_data.check_stages(run)
    stack.enter_context(workdir_lock.held(folder, option="--output"))
    # On another number of hosts a resumed writer reads the same rows; a value of the command is compared below.
    streams = None if config.data.num_streams else logit_files.saved_streams(folder)
    batches = train_data.batches(run, mesh, num_streams=streams)
    stack.callback(batches.close)
    graphdef, params, digest = _load(sources[path], model, config.distillation.dtype, mesh)
    manifest = LogitsManifest(
      teacher=digest,
      vocabulary=logit_files.vocabulary_digest(vocabulary),
      temperature=config.distillation.temperature,
      positions=config.distillation.soft_positions,
      num_streams=batches.num_streams,
      outputs=outputs[0],
      dtype=config.distillation.dtype,
    )
    writer = logit_files.LogitsWriter(folder, manifest, _about(run), dtype=DTYPES[dtype])
    programs = [_program(stage.config, loss, outputs[0], graphdef) for stage, loss in zip(run, built, strict=True)]
    steps, resumed = run[-1].end, writer.step
    _check_shared(output, resumed)
    if resumed:
      hosts.log_once(f"{output}: resuming after step {min(resumed, steps):,} of {steps:,}")
    is_stated = False
    for step in progress.track(range(1, steps + 1), "logits", total=steps):
      batch = next(batches)
      if step <= resumed:
        continue
      digests = logit_files.row_digests({name: _gathered(x) for name, x in batch.items()})
      if not len(rows := writer.new(digests)):
        continue
      arrays = _that_count(programs[batches.stage](params, batch), rows, mesh)
      if not is_stated:
        _state_size(run, arrays, manifest, str(folder), left=steps - step + 1, dtype=DTYPES[dtype])
        is_stated = True
      writer.add(digests[rows], arrays)
      if writer.is_due:
        writer.flush(step)
    repeats = None
    if steps >= resumed:  # are the rows of the step after the last one known?
      later = {name: _gathered(x) for name, x in next(batches).items()}
      repeats = not len(writer.new(logit_files.row_digests(later)))
    writer.finish(max(steps, resumed), repeats=repeats)
    hosts.share(None)  # a student of the next command may start on any host as soon as this one ends there
    hosts.log_once(f"{output}: logits of {writer.rows:,} rows, complete for {max(steps, resumed):,} steps")


def _soft(stage: Stage) -> Stage:
  """Returns a stage with soft targets alone: files have no layers."""
  return stage.with_(distillation={**_LAYERS, "soft_weight": 1.0})


def _about(run: list[Stage]) -> dict[str, Any]:
  """Returns the settings that the rows of a run depend on, as JSON; the number of steps may grow."""
  stages = {}
  for number, stage in enumerate(run):
    sections: Any = json.loads(json.dumps(stage.config.to_dict()))
    train = {key: sections["train"][key] for key in ("batch_size", "seed")}
    data = {key: value for key, value in sections["data"].items() if key != "num_streams"}  # is in the manifest
    stages[stage.name or str(number)] = {"begin": stage.begin, "data": data, "train": train}
  return stages


def _load(
  source: pretrained.Source, model: TransformerConfig, dtype: str, mesh: jax.sharding.Mesh
) -> tuple[nnx.GraphDef, Params, str]:
  """Returns structure and parameters of the teacher as a run has it, and a digest of the checkpoint's parameters."""
  build = lambda key: transformer.build(model, nnx.Rngs(key))
  graphdef, state = nnx.split(jax.eval_shape(build, jax.random.key(0)), graph=False)
  shape = lambda x, placed: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed)
  shapes = jax.tree.map(shape, nnx.to_pure_dict(state), sharding.param_shardings(state, mesh))
  params = pretrained.load_params(source, shapes)
  digests = json.dumps(base_model_ref.digests(flatten(params)), sort_keys=True)
  digest = hashlib.blake2b(digests.encode(), digest_size=8).hexdigest()
  if dtype == "bfloat16":  # as `param_tree.split_frozen`
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  return graphdef, params, digest


def _program(
  config: Config, loss: TeacherLoss, outputs: tuple[TeacherOutput, ...], graphdef: nnx.GraphDef
) -> Callable[[Params, Batch], Mapping[str, Mapping[str, jax.Array]]]:
  """Returns the compiled function from parameters and a batch to `logits_student.written`, by microbatches."""
  number = config.train.microbatches

  def compute(params: Params, batch: Batch) -> dict[str, dict[str, jax.Array]]:
    return logits_student.written(loss, outputs, nnx.merge(graphdef, params), batch)

  def in_parts(params: Params, batch: Batch) -> dict[str, dict[str, jax.Array]]:
    # As in the training step, because the shapes of a matrix product decide its last bits.
    copies, rows, part = sharding.num_copies(), train_step._microbatches(batch, number), compute
    if copies > 1:
      rows = jax.tree.map(functools.partial(train_step._split_by_copy, copies), rows)
      by_copy = sharding.by_copy(lambda params, rows, key: compute(params, rows))
      part = lambda params, rows: by_copy(params, rows, jnp.arange(copies))
    size, rank = config.train.batch_size, 2 + (copies > 1)
    whole = lambda x: train_step._whole_batch(x, jax.ShapeDtypeStruct((size, *x.shape[rank:]), x.dtype))
    return jax.tree.map(whole, jax.lax.map(functools.partial(part, params), rows))

  return jax.jit(in_parts if number > 1 else compute)


def _gathered(x: jax.Array) -> np.ndarray:
  return np.asarray(x if jax.process_count() == 1 else multihost_utils.process_allgather(x, tiled=True))


def _that_count(
  outputs: Mapping[str, Mapping[str, jax.Array]], rows: np.ndarray, mesh: jax.sharding.Mesh
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the arrays of the positions that count in some rows, see `LogitsWriter.add`; others stay on the device."""
  taken: dict[str, dict[str, np.ndarray]] = {}
  for name, output in outputs.items():
    at = _gathered(output["at"])[rows]
    number, positions = np.nonzero(at)
    indices = rows[number] * at.shape[1] + positions
    # Powers of two, so that few programs are compiled.
    padded = np.zeros(1 << max(len(indices) - 1, 0).bit_length(), np.int32)
    padded[: len(indices)] = indices
    take = _taking(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    arrays = {key: np.asarray(take(x, padded))[: len(indices)] for key, x in output.items() if key != "at"}
    taken[name] = arrays | {"at": at}
  return taken


@functools.cache
def _taking(everywhere: jax.sharding.NamedSharding) -> Callable[[jax.Array, np.ndarray], jax.Array]:
  """Returns the compiled function from [rows, length, ...] and numbers of positions [n] to [n, ...] on all devices."""
  return jax.jit(lambda x, indices: x.reshape(-1, *x.shape[2:])[indices], out_shardings=everywhere)


def _check_shared(output: str, step: int) -> None:
  """Checks that all processes read the same folder, so that they skip the same steps."""
  if jax.process_count() > 1 and len(set(multihost_utils.process_allgather(np.array(step)).tolist())) > 1:
    raise UserError(f"--output {output} differs between the hosts. Give a bucket or a shared folder.")


def _state_size(
  run: list[Stage],
  arrays: Mapping[str, Mapping[str, np.ndarray]],
  manifest: LogitsManifest,
  output: str,
  *,
  left: int,
  dtype: str,
) -> None:
  """Prints the expected size of the files, and what the largest logits leave out, from the first batch.

  Raises:
    UserError: the disk has too little space.
  """
  counts = {name: float(np.mean(np.sum(x["at"], axis=1))) for name, x in arrays.items()}
  rows = left * run[-1].config.train.batch_size
  needed = rows * logit_files.nbytes_of(manifest.outputs, counts, dtype=dtype)
  listed = ", ".join(
    f"{x.name}: {x.width:,} of {x.size:,} logits at {counts[x.name]:.3g} positions of a row" for x in manifest.outputs
  )
  a_step = sum(x.nbytes for arrays_of in arrays.values() for x in arrays_of.values())
  hosts.log_once(
    f"{output}: about {amounts.nbytes(needed)} for {rows:,} rows, less if rows repeat ({listed}); "
    f"{amounts.nbytes(a_step)} a step in host memory"
  )
  tokens = arrays.get(TOKENS, {})
  if "normalizer" in tokens and len(tokens["values"]):
    share = np.exp(tokens["values"] / manifest.temperature - tokens["normalizer"][..., None]).sum(axis=-1)
    hosts.log_once(
      f"  the {tokens['values'].shape[-1]:,} largest have {100 * share.mean():.1f} % of the probability "
      f"at temperature {manifest.temperature:g}, in the first batch"
    )
  if "://" not in output and (free := shutil.disk_usage(output).free) < needed:
    raise UserError(
      f"--output {output} needs about {amounts.nbytes(needed)}, but the disk has {amounts.nbytes(free)} free. Give "
      "fewer logits, --logits_dtype bfloat16, or another disk."
    )
