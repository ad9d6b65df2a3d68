"""Pages whose Python blocks are executed in the build, and shown with their output.

Such a page is Jupytext Markdown with a python block for each cell, readable like any other page. It is converted here
to the format of MyST-NB.
"""

from collections.abc import Mapping, Sequence
import re
from typing import Any

# Every such page contains it.
MARK = "<!-- Each python block is a cell, and is run when the documents are built. -->"
_BLOCK = re.compile(r'^```python(?: alt="([^"\n]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_FRONT = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_notebook(text: str) -> bool:
  """Returns True if a page's code is executed."""
  return MARK in text


def as_myst(text: str) -> str:
  """Returns a page in MyST-NB's format; `alt` of a block is the alternative text of its picture."""

  def cell(found: re.Match) -> str:
    alt, code = found.groups()
    image = f"---\nmystnb:\n  image:\n    alt: {alt}\n---\n" if alt else ""
    return f"```{{code-cell}}\n{image}{code}```"

  return _FRONT + _BLOCK.sub(cell, text)


def with_outputs(text: str, cells: Sequence[Mapping[str, Any]]) -> str:
  """Returns a page with the output of its cells as text.

  Args:
    text: the page.
    cells: of the executed notebook, in nbformat.
  """
  outputs = iter([_printed(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"])

  def shown(found: re.Match) -> str:
    printed, (alt, code) = next(outputs), found.groups()
    picture = f"\n\n(A picture: {alt}.)" if alt else ""
    return f"```python\n{code}```{picture}" + (f"\n\n```\n{printed}```" if printed else "")

  return _BLOCK.sub(shown, text)


def _printed(outputs: Sequence[Mapping[str, Any]]) -> str:
  """Returns the standard output of a cell, and its value."""
  texts = []
  for output in outputs:
    if output.get("name") == "stdout":
      texts += output["text"]
    elif output["output_type"] == "execute_result":
      texts += [*output["data"]["text/plain"], "\n"]
  return _COLOURS.sub("", "".join(texts))
