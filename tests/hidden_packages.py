"""Runs t2t in a process without the packages of the extra `data`, and without the modules and signals of Unix.

`python hidden_packages.py FOLDER CHECKPOINT ...` prints one JSON object: what commands say that need the packages,
predictions of checkpoints, and of models trained on arrays, output of commands, and results of file locks.
"""

import contextlib
import errno
import importlib.machinery
import importlib.util
import io
import itertools
import json
import os
import pathlib
import select
import signal
import struct
import sys
import types

import numpy as np

PACKAGES = ("seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text")
# Commands that read text files, tables or tasks.
NEEDING = {
  "train": ("--config=tiny", "--workdir=nowhere"),
  "eval": ("--checkpoint=nowhere", "--workdir=nowhere"),
  "tasks": (),
  "cache": ("--config=tiny",),
}
TEXTS = ("a fox", "é <extra_id_0> dog")


class _Installed(importlib.machinery.PathFinder):
  """Finds every package but those of the extra."""

  @classmethod
  def find_spec(cls, fullname, path=None, target=None):
    hidden = fullname.partition(".")[0] in PACKAGES
    return None if hidden else super().find_spec(fullname, path, target)


def hide() -> None:
  sys.meta_path[:] = [_Installed if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
  assert not any(map(importlib.util.find_spec, PACKAGES))


# What Windows lacks; etils needs `grp` and `pwd`, too, unless `os.name` is that of Windows.
UNIX_MODULES = ("fcntl", "resource", "termios")
UNIX_NAMES = {
  signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
  select: ("poll",),
  os: ("O_DIRECTORY", "fork", "getuid", "killpg", "register_at_fork", "set_blocking"),
}


def hide_unix() -> None:
  """Removes what Windows lacks, after libraries have imported it; gives a `msvcrt` whose locks are real."""
  import fcntl

  def locking(descriptor: int, mode: int, size: int) -> None:
    assert mode == msvcrt.LK_NBLCK
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    # Like those of Windows, these locks belong to an open file, also within a process. Linux gives a file that is open
    # for reading no exclusive lock; a shared one is excluded by the same locks of writers.
    is_read_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    kind = fcntl.F_RDLCK if is_read_only else fcntl.F_WRLCK
    try:
      fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, size, 0))
    except BlockingIOError as error:
      raise PermissionError(errno.EACCES, "Permission denied") from error

  msvcrt = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
  sys.modules["msvcrt"] = msvcrt
  sys.modules.update(dict.fromkeys(UNIX_MODULES))  # None: the import fails
  for module, names in UNIX_NAMES.items():
    for name in names:
      delattr(module, name)


def locks(folder: pathlib.Path, workdir: str) -> dict[str, list[bool]]:
  """Returns which attempts to lock a file succeed, and whether a workdir counts as held before, in and after a run."""
  from etils import epath

  from t2t import UserError
  from t2t.checkpoints import workdir_lock
  from t2t.runtime import file_lock

  path = folder / "locked"
  path.write_bytes(b"content")
  attempts, held = [], [workdir_lock.is_held(epath.Path(workdir))]
  with path.open("r+b") as first, path.open("r+b") as second:
    attempts += [file_lock.lock(first), file_lock.lock(second), file_lock.lock(second, shared=True)]
    assert (first.tell(), first.read(), second.read()) == (0, b"content", b"content")
  with path.open("r+b") as first, path.open("r+b") as second, path.open("r+b") as third:
    attempts += [file_lock.lock(first, shared=True), file_lock.lock(second, shared=True), file_lock.lock(third)]
    file_lock.remove(first, path)
    assert first.closed and not path.exists()
  with workdir_lock.held(epath.Path(workdir)):
    held.append(workdir_lock.is_held(epath.Path(workdir)))
    with contextlib.suppress(UserError), workdir_lock.held(epath.Path(workdir)):
      held.append("twice")
  return {"attempts": attempts, "held": [*held, workdir_lock.is_held(epath.Path(workdir))]}


def commands(folder: pathlib.Path, checkpoint: str) -> str:
  """Returns the output of `t2t infer` from a checkpoint that was converted to Hugging Face and back."""
  from t2t import __main__ as command

  texts, output = folder / "texts.txt", folder / "output.jsonl"
  texts.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
  converted = [str(folder / name) for name in ("hf", "back")]
  for paths in itertools.pairwise([checkpoint, *converted]):
    assert command.main(["convert", *paths, "--vocabulary=bytes"]) == 0
  options = (f"--input={texts}", f"--output={output}", "--batch_size=2", "--max_length=4")
  assert command.main(["infer", f"--checkpoint={converted[-1]}", *options]) == 0
  return output.read_text(encoding="utf-8")


def refused() -> dict[str, list]:
  """Returns the exit code and the message of each command that needs the packages."""
  from t2t import __main__ as command

  said = {}
  for name, arguments in NEEDING.items():
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
      said[name] = [command.main([name, *arguments]), stderr.getvalue()]
  return said


def predictions(path: str) -> dict[str, object]:
  """Returns what a checkpoint predicts for `TEXTS`, as JSON."""
  import t2t

  model = t2t.load(path)
  found = {"ids": model.tokenize(TEXTS), "vectors": model.embed([*TEXTS, {"parts": ["a", "b c"]}]).tolist()}
  found["texts"] = model.detokenize(found["ids"])
  if model.config.heads:
    return found | {"classes": model.classify(TEXTS), "answers": model.answer([{"parts": ["a fox", "a dog"]}])}
  found["scores"] = model.score(["a"] * 2, TEXTS).tolist()
  if model.config.is_generative:
    return found | {"written": model.generate(TEXTS, max_length=4), "logits": model.logits(["a"], ["b"])[0].tolist()}
  return found | {"fillings": model.fill(TEXTS[1:])}


SMALL = {
  "model.vocab_size": 384,
  "model.embed_dim": 16,
  "model.num_heads": 2,
  "model.head_dim": 8,
  "model.mlp_dim": 32,
  "model.num_encoder_layers": 1,
  "model.num_decoder_layers": 0,
  "model.dtype": "float32",
  "model.max_length": 32,
  "model.heads": ({"name": "nli", "num_classes": 3, "labels": ("no", "maybe", "yes")},),
  "train.loss": "heads",
  "data.vocabulary": "bytes",
  "data.extra_ids": 0,
  "data.inputs_length": 24,
  "data.targets_length": 24,
  "train.batch_size": 8,
  "train.steps": 4,
  "train.log_every": 1,
  "eval.batches": 1,
  "eval.every": 2,
  "checkpoint.save_interval_steps": 2,
  "stages": (),
  "optimizer.warmup_steps": 0,
}


def batches(read: int = 0):
  """Yields batches for a class head, each determined by its number."""
  for number in itertools.count(read):
    ids = np.random.default_rng(number).integers(3, 259, size=(8, 20))
    asked = np.zeros_like(ids)
    asked[:, 0] = 1
    yield {
      "encoder_input_tokens": ids,
      "encoder_segment_ids": np.ones_like(ids),
      "encoder_positions": np.broadcast_to(np.arange(20), ids.shape),
      "encoder_token_types": np.zeros_like(ids),
      "encoder_answer_groups": asked,
      "encoder_answer_heads": asked,
      "encoder_answer_targets": asked * (number % 3),
    }


def trained(workdir: str, *, stop: int = 0) -> list[dict[str, float]]:
  """Returns the rows of a run on arrays; it ends after step `stop`, if that is given."""
  import t2t

  rows = []
  config = t2t.config("bert_base", SMALL)
  for row in t2t.train(config, workdir, batches=batches, eval_batches=list(itertools.islice(batches(99), 1))):
    rows.append({key: x for key, x in row.items() if key == "step" or key.endswith("/loss")})
    if row["step"] == stop:
      break
  return rows


def main(folder: str, *checkpoints: str) -> None:
  hide()
  import jax
  from jax._src import xla_bridge
  import orbax.checkpoint  # noqa: F401 - with uvloop, which Windows does without

  hide_unix()

  found = {"refused": refused()}
  assert not xla_bridge.backends_are_initialized()
  # As conftest.py sets them.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", 8)
  jax.config.update("jax_default_matmul_precision", "highest")
  jax.config.update("jax_compilation_cache_dir", os.environ["T2T_TEST_PROGRAMS"])
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  found["predictions"] = [predictions(path) for path in checkpoints]
  whole, parts = (str(pathlib.Path(folder) / name) for name in ("whole", "parts"))
  found["whole"] = trained(whole)
  found["parts"] = [*trained(parts, stop=2), *trained(parts)]
  found["predictions"].append(predictions(parts))
  found["locks"] = locks(pathlib.Path(folder), parts)
  found["commands"] = commands(pathlib.Path(folder), checkpoints[0])
  found["loaded"] = sorted(set(PACKAGES) & {name.partition(".")[0] for name in sys.modules})
  print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
  with contextlib.redirect_stdout(io.StringIO()):
    main(*sys.argv[1:])
