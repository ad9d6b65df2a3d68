"""`t2t train`: one loop, from a config and a workdir to a trained model."""

from collections.abc import Mapping
import contextlib
import dataclasses
import json
import math
import sys

from flax import nnx
import jax
from ml_collections import ConfigDict

from t2t import UserError, losses, sharding
from t2t import metrics as metrics_lib
from t2t.checkpoints import pretrained, store
from t2t.config import section
from t2t.generation import samples
from t2t.models import transformer
from t2t.models.config import TransformerConfig
from t2t.models.flops import model_flops
from t2t.params import join_frozen, split_frozen
from t2t.runtime import hosts, watchdog
from t2t.storage import bucket
from t2t.training import meshes, optimizers, train_state, writers
from t2t.training import report as reports
from t2t.training.throughput import Throughput


def train(config: ConfigDict, workdir: str) -> train_state.TrainState:
  """Trains until `config.train.steps`, resuming from `workdir` if anything is there.

  Args:
    config: see configs/default.py.
    workdir: local or gs://; checkpoints, metrics and config.json are written there.

  Returns:
    The state after the last step.

  Raises:
    UserError: something in the config, the data or the workdir cannot be used; before any training unless a record
      of a large corpus turns out to be broken on the way, or the loss stops being finite.
  """
  bucket.check(workdir, where="--workdir ")
  bucket.check(config.init.checkpoint, where="config.init.checkpoint=")
  # TensorFlow is loaded here, where data is really read: it takes 5 s, and the rest of t2t does without it.
  from t2t.data import pipeline, vocabularies
  from t2t.evaluation import evaluate

  # ---- Config --------------------------------------------------------------
  model_config = section(config, "model", TransformerConfig)
  loss_config = losses.CrossEntropyConfig(config.train.z_loss, config.train.label_smoothing, config.train.chunk_tokens)
  loss_fn = losses.make_loss_fn(loss_config)
  tx, schedule = optimizers.make_optimizer(section(config, "optimizer", optimizers.OptimizerConfig), config.train.steps)
  if config.data.files:
    config.data.mixture = ""  # files of one's own take the place of whatever mixture a config names
  data = section(config, "data", pipeline.DataConfig)
  eval_batch_size = config.eval.batch_size or config.train.batch_size

  # ---- Mesh ----------------------------------------------------------------
  hosts.check_number(config.train.hosts)
  mesh, why = meshes.make(config)
  check_sizes(config, mesh)

  # ---- Data ----------------------------------------------------------------
  steps = watchdog.Watchdog(config.train.stall_factor, longest=config.train.stall_seconds)
  with steps.running():
    pipeline.check(
      data,
      batch_size=config.train.batch_size,
      model_vocab_size=model_config.vocab_size,
      architecture=model_config.architecture,
      model_max_length=model_config.most_positions,
    )
  check_lengths(pipeline.model_lengths(data, model_config.architecture), mesh)
  workdir = bucket.absolute(workdir)
  first = jax.process_index() == 0

  with contextlib.ExitStack() as stack:
    stack.enter_context(steps.running())
    stack.enter_context(store.lock(workdir))
    stack.enter_context(jax.set_mesh(mesh))

    # ---- Model and optimizer -----------------------------------------------
    model_fn = lambda key: transformer.build(model_config, nnx.Rngs(key))
    graphdef, abstract_state, make_state = train_state.abstract_train_state(
      model_fn, tx, mesh, freeze=config.train.freeze, offload_optimizer=config.train.offload_optimizer
    )
    _say(f"{_described(abstract_state, mesh)}; {workdir}" + (f"\nmesh: {why}" if why else ""))
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
    train_step = train_state.make_train_step(
      graphdef, loss_fn, tx, shardings, num_microbatches=config.train.microbatches
    )
    # Held out, the loss is the cross-entropy of the targets themselves, whatever training smooths.
    plain_loss_fn = losses.make_loss_fn(dataclasses.replace(loss_config, label_smoothing=0.0))
    eval_step = train_state.make_eval_step(graphdef, plain_loss_fn)
    parameter_key, dropout_key = jax.random.split(jax.random.key(config.train.seed))
    # What the tasks of the mixture are measured by, besides the loss; tasks of pre-training have no metrics.
    vocabulary = pipeline.vocabulary(data)
    task_evaluation = evaluate.of_training(
      data, config.eval, model_config, graphdef, mesh, vocabulary=vocabulary, batch_size=eval_batch_size
    )

    # ---- Where training starts ---------------------------------------------
    # In this order: 1. this workdir's own checkpoint (the same command again resumes it); 2. config.init.checkpoint
    # (parameters only, step 0); 3. fresh parameters.
    checkpoints = store.Checkpoints(workdir, keep=config.checkpoint.keep)
    stack.callback(checkpoints.close)
    start, saved = checkpoints.latest_step(), {}
    saved_config = {} if start is None else checkpoints.config(start)
    batches = pipeline.train_batches(
      data,
      model_config.architecture,
      mesh,
      batch_size=config.train.batch_size,
      seed=config.train.seed,
      num_streams=saved_config.get("data", {}).get("num_streams"),
    )
    stack.callback(batches.close)
    # What was chosen at the first start is part of the config from then on: it decides the order of the data.
    resolved = json.loads(config.to_json_best_effort())
    resolved["data"]["num_streams"] = batches.num_streams
    if start is not None:
      if start > config.train.steps:
        raise UserError(
          f"--workdir {workdir} is at step {start}, beyond config.train.steps={config.train.steps};"
          " give more steps to go on, or another workdir"
        )
      _say(
        f"resuming from step {start}"
        + "".join(f"\n  with another {change}" for change in _changes(saved_config, resolved))
      )
      state, saved = checkpoints.restore(start, abstract_state, batches.stream_names, writers.UNWRITTEN)
      batches.restore(saved, step=start)
    elif config.init.checkpoint and config.init.parameters:
      source = pretrained.find(config.init.checkpoint, where="config.init.checkpoint=")
      wanted = join_frozen(abstract_state.params, abstract_state.frozen_params)
      params = pretrained.load_params(source, wanted)
      state = make_warm_start(make_state, shardings, config.train.freeze)(params, parameter_key)
      del params  # they are the state's now
      _say(f"starting from the parameters of {source.path}")
    else:
      state = jax.jit(make_state, out_shardings=shardings)(parameter_key)
    start = start or 0
    if first:
      (workdir / "config.json").write_text(json.dumps(resolved, indent=2) + "\n")
      vocabularies.save(vocabulary, workdir / store.VOCABULARY)

    # ---- Steps -------------------------------------------------------------
    if start == config.train.steps:
      _say("nothing left to train: give a larger --config.train.steps to go on; what follows is the run as it stands")
    eval_batches = pipeline.eval_batches(
      data, model_config.architecture, mesh, batch_size=eval_batch_size, max_batches=config.eval.batches
    )
    chosen = transformer.attention_kernels(model_config, eval_batches[0])
    _say("attention: " + "; ".join(f"{part} {choice}" for part, choice in chosen.items()))
    throughput = Throughput(
      flops_per_step=model_flops(
        model_config,
        batch_size=config.train.batch_size,
        lengths=pipeline.model_lengths(data, model_config.architecture),
        predicted=losses.share_of_weights(eval_batches),
      ),
      devices=list(mesh.devices.flat),
    )
    writer = writers.Writer(workdir, start=start, unwritten=saved) if first else None
    line = writers.ProgressLine(start, config.train.steps) if first else None
    if first:
      stack.callback(writer.close)
      stack.callback(line.close)
    stop_requested = None
    report = reports.Report(config, schedule, throughput, writer, line)

    def evaluate_all(step, state):
      """Every metric by name: the held-out loss, and those of the tasks."""
      loss = report.evaluation(step, _evaluate(eval_step, state, eval_batches))
      if task_evaluation is None:
        return {"loss": loss}
      params = join_frozen(state.params, state.frozen_params)
      return {"loss": loss} | report.tasks(step, task_evaluation.run(params))

    # What was measured, and after which step.
    measured, measured_step = None, None
    saved_step, last_step = start if start else None, start
    # (step, metrics, seconds waited): read after the next step has been dispatched, so that the device never waits.
    pending = None
    for step in range(start, config.train.steps):
      batch = next(batches)
      state, metrics = train_step(state, batch, dropout_key)
      if pending is not None:
        report.step(*pending)
        steps.step()
      pending, last_step = (step + 1, metrics, batches.wait_seconds), step + 1

      if stop_requested is None:
        # Not before the step is compiled: until then a signal ends the process at once, and nothing is lost.
        stop_requested = stack.enter_context(hosts.stopping())

      is_last = last_step == config.train.steps
      stopping = stop_requested(last_step)
      evaluates = (last_step % config.eval.every == 0 or is_last) and not stopping
      saves = last_step % config.checkpoint.every == 0 or is_last or stopping
      if evaluates or saves:
        # A checkpoint is made of a state whose loss is known to be finite.
        report.step(*pending)
        pending = None
        throughput.pause()
        steps.pause()
      if evaluates:
        measured, measured_step = evaluate_all(last_step, state), last_step
      if saves:
        # A run that goes on from this checkpoint finds all that was measured up to it, there or in the checkpoint.
        beside = batches.state() | (writer.flush() if first else {})
        checkpoints.save(last_step, state, beside, resolved, metrics=measured if evaluates else None)
        saved_step = last_step
      if stopping:
        break
      if evaluates or saves:
        steps.resume()
    steps.pause()
    if last_step == config.train.steps and measured_step != last_step:
      # Nothing was left to train; or a stop at the last step, which saves first: there may be no time for more.
      measured = evaluate_all(last_step, state)
    checkpoints.wait()
    if first:
      writer.flush()
      line.close()
    if last_step < config.train.steps:
      if first:
        print(
          f"stopped after step {last_step} of {config.train.steps}, saved; the same command again goes on from there"
        )
      return state

    # ---- What came out -----------------------------------------------------
    unigram = float(losses.unigram_loss(eval_batches, model_config.vocab_size))
    shown = []
    if config.eval.examples:
      shown = samples.held_out(
        graphdef,
        state,
        eval_batches[0],
        vocabulary=vocabulary,
        sentinel_ids=vocabularies.sentinel_ids(vocabulary, vocabularies.num_sentinels(vocabulary)),
        hidden_ids=vocabularies.framing_ids(vocabulary),
        eos_id=vocabulary.eos_id,
        number=config.eval.examples,
      )
    if first:
      picture = writers.plot_loss(workdir, unigram_loss=unigram)
      reports.summarise(
        workdir,
        loss=measured["loss"],
        unigram=unigram,
        shown=shown,
        saved_step=saved_step,
        metrics=checkpoints.metrics(),
        best=store.best_steps(checkpoints.metrics()),
        picture=picture,
      )
  return state


def check_sizes(config: ConfigDict, mesh: jax.sharding.Mesh) -> None:
  """What must divide what, and be positive, before anything is built.

  Raises:
    UserError: what does not; names the keys, and values that would do.
  """
  for name, key in (
    ("train", "steps"),
    ("train", "batch_size"),
    ("train", "microbatches"),
    ("train", "chunk_tokens"),
    ("train", "log_every"),
    ("eval", "every"),
    ("eval", "batches"),
    ("checkpoint", "every"),
    ("checkpoint", "keep"),
  ):
    if config[name][key] < 1:
      raise UserError(f"config.{name}.{key}={config[name][key]}: must be at least 1")
  shards = sharding.num_shards("batch", mesh)
  rows = shards * config.train.microbatches
  if config.train.batch_size % rows:
    low = config.train.batch_size // rows * rows
    raise UserError(
      f"config.train.batch_size={config.train.batch_size} does not divide into {config.train.microbatches}"
      f" microbatch(es) over {shards} batch shard(s) (config.mesh.data * config.mesh.fsdp);"
      f" {' or '.join(str(size) for size in (low, low + rows) if size)} would"
    )
  if config.eval.batch_size % shards:
    raise UserError(
      f"config.eval.batch_size={config.eval.batch_size} does not divide over {shards} batch shard(s); give a multiple"
    )
  for key, heads in (("num_heads", config.model.num_heads), ("num_kv_heads", config.model.num_kv_heads)):
    if heads % mesh.shape["tensor"]:
      works = [n for n in range(1, heads + 1) if heads % n == 0]
      raise UserError(
        f"config.mesh.tensor={mesh.shape['tensor']} does not divide config.model.{key}={heads};"
        f" sizes that would do: {works}"
      )


def check_lengths(lengths: Mapping[str, int], mesh: jax.sharding.Mesh) -> None:
  """Whether the mesh divides the positions of "encoder" and "decoder".

  Raises:
    UserError: it does not; names lengths that would do.
  """
  parts = sharding.num_shards("length", mesh)
  for side, length in lengths.items():
    if length % parts:
      low = length // parts * parts
      raise UserError(
        f"config.mesh.sequence={parts} does not divide the {side}'s {length} positions;"
        f" {' or '.join(str(size) for size in (low, low + parts) if size)} would do"
      )


def _say(text: str) -> None:
  """Tells what is going on, once, however many hosts there are."""
  if jax.process_index() == 0:
    print(text, file=sys.stderr, flush=True)


def _described(state: train_state.TrainState, mesh: jax.sharding.Mesh) -> str:
  """How large the model is and where it lies."""
  number = sum(math.prod(x.shape) for x in jax.tree.leaves((state.params, state.frozen_params)))
  axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
  return f"{writers.short(number)} parameters on {mesh.size} x {mesh.devices.flat[0].device_kind} ({axes})"


def _changes(old: dict, new: dict) -> list[str]:
  """What a resumed run does otherwise than the run that saved its checkpoint."""
  return [
    f"config.{section}.{key}: {value!r}, it was {old[section][key]!r}"
    for section, values in new.items()
    for key, value in values.items()
    if key in old.get(section, {}) and old[section][key] != value
  ]


def make_warm_start(make_state, shardings, freeze):
  """The compiled (parameters, key) -> a fresh state (step 0, new optimizer) that has their memory, and them.

  Arguments, and not closed over: as constants of the program they would be in memory twice, take minutes to compile,
  and not be there at all on several hosts, each of which has but its shards.
  """

  def make(params, key):
    trained, frozen = split_frozen(params, freeze)
    return dataclasses.replace(make_state(key), params=trained, frozen_params=frozen)

  return jax.jit(make, donate_argnums=0, out_shardings=shardings)


def _evaluate(eval_step, state, eval_batches) -> metrics_lib.Metrics:
  """The metrics of all held-out batches together."""
  total = None
  for batch in eval_batches:
    metrics = eval_step(state, batch)
    total = metrics if total is None else metrics_lib.merge(total, metrics)
  return total
