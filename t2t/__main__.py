"""The `t2t` command: a table of subcommands, each imported only when called."""

import atexit
import contextlib
import errno
import gc
import importlib
import os
import re
import sys
import threading
import traceback

from t2t import UserError, did_you_mean
from t2t.runtime import console, exit_codes, preemption, quiet
from t2t.storage import outage

# name -> (module with main(argv), description)
SUBCOMMANDS = {
  "train": ("t2t.commands.train", "pre-train or fine-tune a model; the same command again resumes"),
  "eval": ("t2t.commands.eval", "evaluate a checkpoint on SuperGLUE or other tasks"),
  "compare": ("t2t.commands.compare", "test whether two evaluated checkpoints differ on the same items"),
  "curve": ("t2t.commands.curve", "fine-tune with few examples: score by number of examples"),
  "sweep": ("t2t.commands.sweep", "train with each combination of settings: table and picture"),
  "study": ("t2t.commands.study", "test a claim of a paper: runs with seeds, table, picture, verdict"),
  "pet": ("t2t.commands.pet", "train on few labels with templates (PET): ensemble, soft labels"),
  "exits": ("t2t.commands.exits", "measure early exit of an encoder: score by layers used"),
  "superglue": ("t2t.commands.superglue", "fine-tune a checkpoint on SuperGLUE: table and leaderboard files"),
  "suites": ("t2t.commands.suites", "score minimal pairs, cloze questions and perplexity of texts"),
  "babylm": ("t2t.commands.babylm", "evaluate a checkpoint on the zero-shot suites of BabyLM"),
  "ngram": ("t2t.commands.ngram", "measure an n-gram model (Kneser-Ney) as the baseline of a run"),
  "infer": ("t2t.commands.infer", "predict each line of a file, or serve a web page and an HTTP API"),
  "embed": ("t2t.commands.embed", "write a vector for each line of a file, or probe layers for a task"),
  "neighbours": ("t2t.commands.neighbours", "find the lines, or words in context, with the nearest vectors"),
  "vectors": ("t2t.commands.vectors", "evaluate vectors: STS, bitext retrieval, words in sentences"),
  "adapt": ("t2t.commands.adapt", "merge an adapter into its base model"),
  "prune": ("t2t.commands.prune", "remove layers, attention heads or neurons from a model"),
  "fisher": ("t2t.commands.fisher", "estimate the importance of each parameter (Fisher), for later runs"),
  "convert": ("t2t.commands.convert", "import and export Hugging Face and T5X checkpoints"),
  "push": ("t2t.commands.push", "export a checkpoint and upload it to the Hugging Face hub"),
  "checkpoint": ("t2t.commands.checkpoint", "list, verify, prune and compare the checkpoints of a run"),
  "report": ("t2t.commands.report", "write a report on one or more runs: curves, config, history"),
  "runs": ("t2t.commands.runs", "list the runs in a folder: step, losses, state"),
  "replay": ("t2t.commands.replay", "repeat one step of a run: its loss, its texts, the origin of a NaN"),
  "plan": ("t2t.commands.plan", "check whether training fits a TPU slice, and estimate its speed"),
  "tasks": ("t2t.commands.tasks", "list tasks, and show the examples of a task"),
  "vocab": ("t2t.commands.vocab", "train a vocabulary on your own text: SentencePiece, WordPiece, BPE"),
  "cache": ("t2t.commands.cache", "tokenize a large corpus into files, with Apache Beam"),
  "doctor": ("t2t.commands.doctor", "check what t2t needs on this machine, and suggest fixes"),
  "completion": ("t2t.commands.completion", "print a bash or zsh script that completes commands and keys"),
  "launch": ("t2t.launch.command", "run a command on Cloud TPU VMs, on GKE or under SLURM"),
}
_TRAINING = ("train", "sweep", "curve", "study", "pet", "superglue")

# OS errors with an obvious remedy, which need no traceback.
_MACHINE = {
  errno.EMFILE: "Raise the limit with `ulimit -n 4096` in the shell that starts t2t.",
  errno.ENFILE: "Close other programs, because the limit of the whole machine is reached.",
  errno.ENOSPC: "Free some space, or give another folder. Checkpoints saved earlier are intact.",
  errno.EDQUOT: "Free some space, or give another folder. Checkpoints saved earlier are intact.",
  errno.EROFS: "Give a writable folder.",
}

# Allocations between two garbage collections. Imports allocate millions of objects and hardly any garbage: with
# Python's default of 700, collection takes a fifth of the time.
_COLLECTED = 100_000


def _usage() -> str:
  commands = "\n".join(f"  {name:<12}{text}" for name, (_, text) in SUBCOMMANDS.items())
  return (
    "usage: t2t COMMAND [options]\n\n"
    "Pre-trains text-to-text Transformers in JAX, from a laptop to a TPU pod.\n\n"
    f"commands:\n{commands}\n\n"
    "t2t COMMAND --help lists its options; --debug shows the traceback of an error;\n"
    "t2t --version prints the versions that a bug report needs.\n"
    "Try: t2t train --config tiny --workdir runs/tiny"
  )


def main(argv: list[str] | None = None) -> int:
  """Runs one subcommand.

  Returns:
    The exit code: 0 on success, 1 if a check fails, 2 if the user's input cannot be used, 128 plus the signal number
    if a signal stopped the command; see exit_codes.py.
  """
  if argv is None:
    return _of_process()
  if not argv or argv[0] in ("-h", "--help", "help"):
    print(_usage())
    return 0 if argv else 2
  if argv[0] in ("--version", "-V", "version"):
    from t2t.runtime import versions

    print(versions.line())
    return 0
  command, *arguments = argv
  if command == "launch":  # `launch` handles signals itself, because it has machines to release
    return _run(command, arguments)
  with preemption.watched(command), contextlib.ExitStack() as stack:
    if command in _TRAINING:
      from t2t.runtime import early_signals

      stack.enter_context(early_signals.remembered())
    return _run(command, arguments)


def _of_process() -> int:
  try:
    code = main(sys.argv[1:])
  except Exception:
    if not _compiles():
      raise
    traceback.print_exc()
    code = exit_codes.FAILED
  if _compiles():
    quiet.drain()
    # XLA aborts a process that Python shuts down during a compilation; exit without the shutdown.
    for file in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError):
        file.flush()
    os._exit(code)
  return code


def _compiles() -> bool:
  """Returns whether the thread of training/background_compile.py is alive, without importing that module."""
  return any(thread.name == "compiler" for thread in threading.enumerate())


def _run(command: str, arguments: list[str]) -> int:
  gc.set_threshold(_COLLECTED)
  # At exit Python would traverse all objects once more, for two seconds.
  atexit.register(gc.freeze)
  try:
    if command.startswith("-"):
      named = next((word for word in arguments if word in SUBCOMMANDS), "COMMAND")
      raise UserError(f"{command} comes before the command; give options after the command: t2t {named} {command} ...")
    if command not in SUBCOMMANDS:
      near = did_you_mean(command, SUBCOMMANDS)
      raise UserError(f"no such command {command!r}{near or '.'} Commands: {', '.join(SUBCOMMANDS)}")
    from t2t.runtime import data_packages

    with data_packages.says_what_is_missing():
      return importlib.import_module(SUBCOMMANDS[command][0]).main(arguments) or 0
  except UserError as error:
    # An unreachable bucket makes listing a folder and saving checkpoints fail; its exit code means "try again".
    return _told(command, arguments, str(error), exit_codes.LOST if outage.reason(error) else error.exit_code)
  except BrokenPipeError:
    # The reader of the output (`| head`) has closed the pipe; flushing the buffer at exit must not fail either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except preemption.Stopped as stopped:
    return stopped.code
  except KeyboardInterrupt:
    begins = command == "train" and not preemption.has_stepped()
    unsaved = " before the first step; nothing new was saved, the same command starts again" if begins else ""
    console.tell(f"t2t {command}: interrupted{unsaved}")
    _end_others("was interrupted", exit_codes.INTERRUPTED)
    return exit_codes.INTERRUPTED
  except Exception as error:
    return _of_others(command, arguments, error)
  return 0


def _of_others(command: str, arguments: list[str], error: Exception) -> int:
  """Returns the exit code of an error that is not the user's; raises it again if only its traceback explains it."""
  if why := outage.reason(error):
    why = (
      f"a bucket does not respond ({why}); checkpoints saved earlier are intact. Run the same command again to resume."
    )
    return _told(command, arguments, why, exit_codes.LOST)
  if isinstance(error, OSError) and error.errno in _MACHINE and "--debug" not in arguments:
    why = f"{error.filename or 'this machine'}: {error.strerror.lower()}. {_MACHINE[error.errno]}"
    return _told(command, arguments, why, exit_codes.REFUSED)
  if "RESOURCE_EXHAUSTED" in str(error) and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    return _told(command, arguments, _out_of_memory(command, str(error)), exit_codes.FAILED)
  _end_others(f"{type(error).__name__}: {error}".partition("\n")[0], exit_codes.FAILED, traceback.format_exc())
  raise error


def _out_of_memory(command: str, text: str) -> str:
  """Returns advice for a device out of memory, with the size from XLA's message."""
  match = re.search(r"allocat\w* (?:of )?(\d[\d.]* ?(?:[KMGT]?i?B\b|bytes))", text)
  wanted = f" (could not allocate {match[1]})" if match else ""
  if command != "train":
    return f"a device is out of memory{wanted}; read fewer rows at a time, or use more devices (config.mesh)"
  return (
    f"a device is out of memory{wanted}. Reduce the batch (--config.train.microbatches=2, or a smaller "
    "--config.train.batch_size), keep fewer activations (--config.model.remat=full), or shard the parameters "
    "(--config.mesh.fsdp). `t2t plan` reports the memory of a step and the settings that fit."
  )


def _told(command: str, arguments: list[str], why: str, code: int) -> int:
  """Prints an error without a traceback, and ends the other processes of the run."""
  storage = sys.modules.get("t2t.storage.gcs")  # not imported: there are no local copies of a store
  why = why if storage is None else storage.with_origins(why)
  if "--debug" in arguments:
    traceback.print_exc()
  console.told_of(f"t2t {command}: error: {why}")
  _end_others(why, code)
  return code


def _end_others(why: str, code: int, trace: str = "") -> None:
  """Sends the error to the other processes of the run, which then exit with the same code."""
  link = sys.modules.get("t2t.runtime.peer_monitor")  # not imported: a run of one process
  if link is not None:
    link.fail(why, code, trace=trace)


if __name__ == "__main__":
  sys.exit(main())
