"""Checkpoints for tests: trained by the command for two steps, once for all workers."""

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib

import numpy as np

from t2t import __main__ as command

# A model and a corpus so small that Python takes most of the time.
MODEL = (
  "--config.model.vocab_size=384",
  "--config.model.embed_dim=16",
  "--config.model.num_heads=2",
  "--config.model.head_dim=8",
  "--config.model.mlp_dim=32",
  "--config.model.dtype=float32",
)
SMALL = (
  *MODEL,
  "--config.data.vocabulary=bytes",
  "--config.data.inputs_length=48",
  "--config.data.targets_length=24",
  "--config.data.num_streams=1",
  "--config.train.batch_size=8",
  "--config.train.steps=2",
  "--config.eval.batches=1",
  "--config.eval.num_logged_samples=0",
)
ONE_DECODER, ONE_ENCODER = "--config.model.num_decoder_layers=1", "--config.model.num_encoder_layers=1"

# architecture -> options of its training
_MODELS = {
  "encoder_decoder": ("--config=t5_1_1_small", ONE_ENCODER, ONE_DECODER),
  "decoder_only": (
    "--config=tiny_gpt",
    "--config.data.objective=causal_lm",
    ONE_DECODER,
    "--config.model.max_length=80",
  ),
  "encoder_only": (
    "--config=tiny_bert",
    "--config.data.objective=masked_lm",
    ONE_ENCODER,
    "--config.model.max_length=80",
  ),
}


def arguments(architecture: str, workdir: pathlib.Path) -> list[str]:
  """Returns the command that trains this architecture in a workdir, after `workdir` has written its text."""
  text = pathlib.Path(os.environ["T2T_TEST_PROGRAMS"]) / "trained" / f"{architecture}.jsonl"
  return ["train", *_MODELS[architecture], *SMALL, f"--config.data.files={text}", "--workdir", str(workdir)]


@functools.cache
def workdir(architecture: str) -> pathlib.Path:
  """Returns the workdir of a model of this architecture, trained on random words and bytes; treat it as read-only."""
  with _once(architecture) as (path, is_new):
    if is_new:
      words = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "wizards", "box", "dire", "jugs")
      random = np.random.default_rng(0)
      documents = [" ".join(random.choice(words, size=60)) for _ in range(200)]
      text = path.with_name(f"{architecture}.jsonl")
      text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
      assert command.main(arguments(architecture, path)) == 0
  return path


def after_step(monkeypatch, step: int, action: Callable[[], object]) -> None:
  """Calls a function when a run of this process has done a step."""
  from t2t.training.run import Run

  advance = Run.advance

  def advance_and_act(run, *arguments):
    advance(run, *arguments)
    if run.step == step:
      action()

  monkeypatch.setattr(Run, "advance", advance_and_act)


# Common options of all adapters: a rate at which two steps change the outputs.
_ADAPTER = (
  "--config.init.use_model_config=True",
  "--config.optimizer.name=adamw",
  "--config.optimizer.learning_rate=0.03",
  "--config.optimizer.schedule=constant",
  "--config.optimizer.warmup_steps=0",
  "--config.optimizer.scale_by_parameter=False",
)


@functools.cache
def adapter(architecture: str, *options: str, seed: int = 0) -> pathlib.Path:
  """Returns the workdir of an adapter trained on top of `workdir(architecture)`; treat it as read-only.

  Args:
    architecture: architecture of the base.
    options: additional options of the command, such as --config.lora.rank=2.
    seed: seed of the run.
  """
  base = workdir(architecture)
  name = hashlib.sha256(repr((options, seed)).encode()).hexdigest()[:8]
  with _once(f"{architecture}_adapter_{name}") as (path, is_new):
    if is_new:
      fixed = (f"--config.init.checkpoint={base}", f"--config.train.seed={seed}", *_ADAPTER)
      assert command.main([*arguments(architecture, path), *fixed, *options]) == 0
  return path


@contextlib.contextmanager
def _once(name: str) -> Iterator[tuple[pathlib.Path, bool]]:
  """Yields a folder's path, and whether to write it: one worker writes, and the others wait."""
  folder = pathlib.Path(os.environ["T2T_TEST_PROGRAMS"]) / "trained"
  folder.mkdir(exist_ok=True)
  path, done = folder / name, folder / f"{name}.done"
  with open(folder / f"{name}.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield path, not done.exists()
    done.touch()
