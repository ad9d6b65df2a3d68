"""`t2t completion`: bash completes existing commands, options, configs and keys."""

import functools
import shutil
import subprocess

import pytest

from t2t import __main__ as command
from t2t.commands import completion
from t2t.configuration.loading import config_names


@functools.cache
def script() -> str:
  return completion.script()


def completed(*words: str) -> list[str]:
  """Returns bash's completions of the last of some words, split as bash splits them."""
  line = " ".join(f"'{word}'" for word in ("t2t", *words))
  asked = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _t2t; printf "%s\\n" "${{COMPREPLY[@]}}"'
  done = subprocess.run(["bash", "-c", f"{script()}\n{asked}"], capture_output=True, text=True, check=True)
  return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (("tr",), ["train"]),
    (("",), list(command.SUBCOMMANDS)),
    (("train", "--config", "tiny_be"), ["tiny_bert"]),
    (("train", "--config", "=", "tiny_be"), ["tiny_bert"]),
    (("train", "--config", "="), config_names()),
    (("train", "--work"), ["--workdir"]),
    (("train", "--config.train.batch"), ["--config.train.batch_size="]),
    (("train", "--workdir", "ru"), []),  # file names, from the shell
    (("checkpoint", "ver"), ["verify"]),
    (("checkpoint", "prune", "--ke"), ["--keep"]),
    (("checkpoint", "list", "--ke"), []),
    (("vocab", "train", "--cas"), ["--cased"]),
    (("launch", "tpu-vm", "--zo"), ["--zone"]),
  ],
)
def test_what_is_offered(words, expected):
  assert completed(*words) == expected


@pytest.mark.parametrize("name", command.SUBCOMMANDS)
def test_every_command_has_its_options(name):
  """Also its subcommands, which its help lists."""
  assert f'"{name} "*)' in script()
  for part in completion.PARTS.get(name, ()):
    assert "--help" in completion.options(name, part), part


def test_the_script_is_printed(capsys):
  assert command.main(["completion", "zsh"]) == 0
  assert capsys.readouterr().out == script()
