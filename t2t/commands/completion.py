"""`t2t completion`: a script for bash and zsh that completes commands, options, configs and keys."""

import argparse
from collections.abc import Sequence
import contextlib
import io
import re

from t2t import __main__ as command
from t2t.commands.keys_help import keys_by_section
from t2t.configuration.loading import config_names
from t2t.runtime import versions

_DESCRIPTION = """\
Prints a script that makes the shell complete commands, options, config names
and config keys.  bash loads it from its completion folder:

  mkdir -p ~/.local/share/bash-completion/completions
  t2t completion bash > ~/.local/share/bash-completion/completions/t2t

and zsh from where ~/.zshrc sources it:

  t2t completion zsh > ~/.t2t-completion.zsh
  echo 'source ~/.t2t-completion.zsh' >> ~/.zshrc

Generating it takes some seconds, because it reads the help of every command.
Generate it again after an upgrade of t2t."""
# Command -> its subcommands.
PARTS = {
  "checkpoint": ("list", "verify", "prune", "diff"),
  "vocab": ("train", "report"),
  "adapt": ("merge",),
  "tasks": ("show",),
  "launch": ("tpu-vm", "gke", "slurm", "status", "logs", "stop", "delete"),
}
_SCRIPT = """\
# Completion of {version} for bash and zsh.
if [ -n "${{ZSH_VERSION-}}" ]; then autoload -U +X compinit bashcompinit; compinit; bashcompinit; fi
_t2t() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  # bash takes --config=tiny for three words.
  if [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [ "$word" = "=" ]; then word=""; fi
  if [ "$COMP_CWORD" = 1 ]; then
    words="{commands}"
  elif [ "$before" = "--config" ]; then
    words="{configs}"
  elif [[ "$before" == --* && "$word" != -* && "$before" != "--debug" ]]; then
    return  # a value: files, as the shell completes them
  elif [[ "$word" == --config.* ]]; then
    words="{keys}"
    if type compopt > /dev/null 2>&1; then compopt -o nospace 2> /dev/null; fi
  else
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _t2t t2t
"""


def main(argv: list[str]) -> None:
  """Runs `t2t completion`, which prints the script."""
  form = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="t2t completion", description=_DESCRIPTION, formatter_class=form, allow_abbrev=False
  )
  parser.add_argument("shell", choices=("bash", "zsh"), help="shell; one script serves both")
  parser.parse_args(argv)
  print(script(), end="")


def script() -> str:
  """Returns the completion script."""
  keys = [f"--config.{section}.{key}=" for section, values in keys_by_section().items() for key in values]
  cases = []
  for name in command.SUBCOMMANDS:
    parts = PARTS.get(name, ())
    cases += [_case(f'"{name} {part}"', options(name, part)) for part in parts]
    cases.append(_case(f'"{name} "*', [*parts, *options(name)]))
  return _SCRIPT.format(
    version=versions.line().partition(",")[0],
    commands=" ".join(command.SUBCOMMANDS),
    configs=" ".join(config_names()),
    keys=" ".join(keys),
    cases="\n".join(cases),
  )


def _case(pattern: str, words: Sequence[str]) -> str:
  return f'      {pattern}) words="{" ".join(words)}" ;;'


def options(*arguments: str) -> list[str]:
  """Returns the options that a command's help lists."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
    command.main([*arguments, "--help"])
  option_names = re.findall(r"^  (?:-\w(?: \S+)?, )?(--[a-z][\w-]*)", output.getvalue(), re.MULTILINE)
  return list(dict.fromkeys(name for name in option_names if not name.startswith("--config.")))
