"""The `t2t` command: a table of subcommands, each imported only when it is called."""

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

# name -> (module with main(argv), what it does)
SUBCOMMANDS = {
  "train": ("t2t.commands.train", "pre-train or fine-tune a model; the same command again resumes"),
  "eval": ("t2t.commands.eval", "evaluate a checkpoint on SuperGLUE or other tasks"),
  "superglue": ("t2t.commands.superglue", "fine-tune a checkpoint on SuperGLUE: table and leaderboard files"),
  "infer": ("t2t.commands.infer", "write what a model makes of each line of a file, or on a page"),
  "embed": ("t2t.commands.embed", "a vector for each line of a file; what each layer knows of a task"),
  "adapt": ("t2t.commands.adapt", "make a model by itself of an adapter and what it lies on top of"),
  "fisher": ("t2t.commands.fisher", "how much each parameter counts for what is learned, for later runs"),
  "convert": ("t2t.commands.convert", "bring checkpoints from Hugging Face and T5X, and take them back"),
  "checkpoint": ("t2t.commands.checkpoint", "list, verify, prune and compare what a run has saved"),
  "report": ("t2t.commands.report", "a page on a run, or on several: curves, config, history"),
  "runs": ("t2t.commands.runs", "list the runs in a folder: step, losses, state"),
  "replay": ("t2t.commands.replay", "do one step of a run again: its loss, its texts, where a NaN arose"),
  "plan": ("t2t.commands.plan", "whether training fits a TPU slice, and how fast it may be"),
  "tasks": ("t2t.commands.tasks", "list tasks, and show what one makes of its text"),
  "vocab": ("t2t.commands.vocab", "train a vocabulary on your own text: SentencePiece, WordPiece, BPE"),
  "cache": ("t2t.commands.cache", "write the tokens of a large corpus in files, with Apache Beam"),
  "doctor": ("t2t.commands.doctor", "what this machine has of what t2t needs, and what to do"),
  "completion": ("t2t.commands.completion", "have bash or zsh complete commands, configs and keys"),
  "launch": ("t2t.launch.command", "run a command on Cloud TPU VMs, on GKE or under SLURM"),
}


# What a machine lacks, and no traceback says better.
_MACHINE = {
  errno.EMFILE: "let the process have more, with `ulimit -n 4096` in the shell that starts it",
  errno.ENFILE: "the whole machine has no more",
  errno.ENOSPC: "make room, or give another folder; what was saved before is whole",
  errno.EDQUOT: "make room, or give another folder; what was saved before is whole",
  errno.EROFS: "give a folder that can be written",
}

# Objects that are made before Python looks for garbage among them.  Libraries make millions as they are imported, and
# hardly any garbage: with Python's own 700 the looking takes a fifth of the time.
_COLLECTED = 100_000


def _usage() -> str:
  commands = "\n".join(f"  {name:<12}{text}" for name, (_, text) in SUBCOMMANDS.items())
  return (
    "usage: t2t COMMAND [options]\n\n"
    "Pre-trains text-to-text Transformers in JAX, from a laptop to a TPU pod.\n\n"
    f"commands:\n{commands}\n\n"
    "t2t COMMAND --help says more; --debug shows the traceback of an error;\n"
    "t2t --version is what a bug report needs first.\n"
    "Try: t2t train --config tiny --workdir runs/tiny"
  )


def main(argv: list[str] | None = None) -> int:
  """Runs one subcommand.

  Returns:
    The exit code: 0 when it is done, 1 when a check finds something wrong, 2 when what the user gave cannot be used,
    128 and its number when a signal stopped it; see exit_codes.py.
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
  if command == "launch":  # which has machines to look after before it ends
    return _run(command, arguments)
  with preemption.watched(command):
    return _run(command, arguments)


def _of_process() -> int:
  """`main` of this process's own arguments."""
  try:
    code = main(sys.argv[1:])
  except Exception:
    if not _compiles():
      raise
    traceback.print_exc()
    code = exit_codes.FAILED
  if _compiles():
    quiet.drain()
    # As where the data is found wanting: XLA brings down a process that Python takes apart around it.
    for file in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError):
        file.flush()
    os._exit(code)
  return code


def _compiles() -> bool:
  """Whether the thread of training/ahead.py, which is not imported for it, is still at work."""
  return any(thread.name == "compiler" for thread in threading.enumerate())


def _run(command: str, arguments: list[str]) -> int:
  gc.set_threshold(_COLLECTED)
  # At the end it would look through all of them again, for two seconds.
  atexit.register(gc.freeze)
  try:
    if command.startswith("-"):
      named = next((word for word in arguments if word in SUBCOMMANDS), "COMMAND")
      raise UserError(f"{command}: options stand behind the command, t2t {named} {command} ...")
    if command not in SUBCOMMANDS:
      near = did_you_mean(command, SUBCOMMANDS)
      raise UserError(f"no such command {command!r}{near or ';'} there are {', '.join(SUBCOMMANDS)}")
    return importlib.import_module(SUBCOMMANDS[command][0]).main(arguments) or 0
  except UserError as error:
    # A folder that cannot be listed, or checkpoints that cannot be saved, because its bucket is away.
    return _told(command, arguments, str(error), exit_codes.LOST if outage.reason(error) else error.exit_code)
  except BrokenPipeError:
    # Who reads the output (`| head`) has seen enough; what is still buffered must not fail at exit, either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except preemption.Stopped as stopped:
    return stopped.code
  except KeyboardInterrupt:
    console.tell(f"t2t {command}: interrupted")
    _end_others("was interrupted", exit_codes.INTERRUPTED)
    return exit_codes.INTERRUPTED
  except Exception as error:
    return _of_others(command, arguments, error)
  return 0


def _of_others(command: str, arguments: list[str], error: Exception) -> int:
  """The exit code of an error that is not the user's; it is raised again where only its traceback says what it is."""
  if why := outage.reason(error):
    why = f"a bucket does not answer ({why}); what was saved before is as it was, and the same command goes on from it"
    return _told(command, arguments, why, exit_codes.LOST)
  if isinstance(error, OSError) and error.errno in _MACHINE and "--debug" not in arguments:
    why = f"{error.filename or 'this machine'}: {error.strerror.lower()}; {_MACHINE[error.errno]}"
    return _told(command, arguments, why, exit_codes.REFUSED)
  if "RESOURCE_EXHAUSTED" in str(error) and type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    return _told(command, arguments, _out_of_memory(command, str(error)), exit_codes.FAILED)
  _end_others(f"{type(error).__name__}: {error}".partition("\n")[0], exit_codes.FAILED, traceback.format_exc())
  raise error


def _out_of_memory(command: str, text: str) -> str:
  """Returns advice on a device whose memory is full, from the sizes in XLA's message."""
  match = re.search(r"allocat\w* (?:of )?(\d[\d.]* ?(?:[KMGT]?i?B\b|bytes))", text)
  wanted = f", which had no room for {match[1]}" if match else ""
  if command != "train":
    return f"the memory of a device is full{wanted}; read fewer rows at a time, or more devices (config.mesh)"
  return (
    f"the memory of a device is full{wanted}; cut the batch (--config.train.microbatches=2, or a smaller"
    " --config.train.batch_size), keep less of it (--config.model.remat=full), or split the parameters"
    " (--config.mesh.fsdp); `t2t plan` says what a step needs, and what would make it fit"
  )


def _told(command: str, arguments: list[str], why: str, code: int) -> int:
  """Ends with an error that needs no traceback."""
  if "--debug" in arguments:
    traceback.print_exc()
  console.told_of(f"t2t {command}: error: {why}")
  _end_others(why, code)
  return code


def _end_others(why: str, code: int, trace: str = "") -> None:
  """Of a run on several hosts: they wait for this process, are told why it ends, and end as it does."""
  link = sys.modules.get("t2t.runtime.peer_monitor")  # where it was not needed, this process is alone
  if link is not None:
    link.fail(why, code, trace=trace)


if __name__ == "__main__":
  sys.exit(main())
