"""Wraps the commands of the pages at 80 columns, the width of a page's column: `python docs/site/commands.py`.

A command is in a block of sh, or indented. It is broken between options, with a backslash.
"""

from collections.abc import Iterator
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WIDTH = 80
_INDENTED = "    "  # of a Markdown code block
_MORE = "  "  # of the continuation lines of a command
# An option and its value stay together, as do quoted words and $(...).
_WORD = re.compile(r"""(?:\$\([^()]*\)|"[^"]*"|'[^']*'|\\.|[^\s"'\\])+""")
_COMMANDS = re.compile(
  r"^(?:t2t|gcloud|kubectl|gsutil|git|make|pip|python3?|curl|ssh|scp|export|sbatch|srun|docker|[A-Z_]+=\S)[ =]?"
)


def pages() -> list[pathlib.Path]:
  """Returns the README and the pages of docs/."""
  return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def wrapped(text: str) -> str:
  """Returns a page with the commands that are wider than 80 columns wrapped; other text is unchanged."""
  lines, found, fence = text.split("\n"), [], ""
  while lines:
    line = lines.pop(0)
    if line.startswith("```"):
      fence = "" if fence else line[3:].strip() or "text"
      found.append(line)
      continue
    indent = "" if fence == "sh" else _INDENTED
    is_code = fence == "sh" or (not fence and line.startswith(_INDENTED))
    if not is_code or not _COMMANDS.match(line[len(indent) :]):
      found.append(line)
      continue
    command = [line]
    while command[-1].endswith("\\") and lines:
      command.append(lines.pop(0))
    found += command if all(len(each) - len(indent) <= WIDTH for each in command) else _broken(command, indent)
  return "\n".join(found)


def _broken(command: list[str], indent: str) -> list[str]:
  joined = " ".join(line.strip().removesuffix("\\").strip() for line in command)
  if "#" in joined.replace("'#", "").replace("$#", "") or "<<" in joined:
    return command  # with a comment or a here-document
  made, line = [], ""
  for word in _words(joined):
    more = f"{line} {word}" if line else word
    if line.strip() and len(more) > WIDTH - len(" \\"):
      made.append(f"{line} \\")
      line = f"{_MORE}{word}"
    else:
      line = more
  return [indent + each for each in [*made, line]]


def _words(command: str) -> Iterator[str]:
  """Yields the words of a command; an option without `=` includes its value."""
  words = _WORD.findall(command)
  while words:
    word = words.pop(0)
    takes = re.fullmatch(r"--?[a-z][\w-]*", word) and words and not words[0].startswith(("-", "|", "&", ">", "<", ";"))
    yield f"{word} {words.pop(0)}" if takes else word


def _is_open(code: str) -> bool:
  """Returns True if a line has a comment or an open quote, and therefore cannot be broken."""
  return "#" in code or code.count("'") % 2 == 1 or code.count('"') % 2 == 1


def too_wide(text: str) -> list[str]:
  """Returns the command lines with several words that are wider than a page's column."""
  found, fence = [], ""
  for line in text.split("\n"):
    if line.startswith("```"):
      fence = "" if fence else line[3:].strip() or "text"
      continue
    code = line if fence == "sh" else line.removeprefix(_INDENTED) if not fence and line.startswith(_INDENTED) else ""
    is_command = _COMMANDS.match(code) or code.lstrip().startswith("--")
    if is_command and len(code) > WIDTH and len(_WORD.findall(code)) > 2 and not _is_open(code):
      found.append(line)
  return found


if __name__ == "__main__":
  for page in pages():
    before = page.read_text()
    if (after := wrapped(before)) != before:
      page.write_text(after)
      sys.stdout.write(f"{page.relative_to(ROOT)}\n")
