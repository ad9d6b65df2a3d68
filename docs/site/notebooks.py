"""Pages whose code is run when the documents are built, and shown with what it printed.

Such a page is Jupytext's Markdown, in which a python block is a cell: GitHub and programs read it as any other page.
MyST-NB runs notebooks of another form, of MyST's, which is made of it here.
"""

from collections.abc import Mapping, Sequence
import re
from typing import Any

# Stands on each such page.
MARK = "<!-- Each python block is a cell, and is run when the documents are built. -->"
_BLOCK = re.compile(r'^```python(?: alt="([^"\n]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_FRONT = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def is_notebook(text: str) -> bool:
  """Whether a page's code is run."""
  return MARK in text


def as_myst(text: str) -> str:
  """A page as MyST-NB runs it; `alt` of a block says what its picture shows."""

  def cell(found: re.Match) -> str:
    alt, code = found.groups()
    image = f"---\nmystnb:\n  image:\n    alt: {alt}\n---\n" if alt else ""
    return f"```{{code-cell}}\n{image}{code}```"

  return _FRONT + _BLOCK.sub(cell, text)


def with_outputs(text: str, cells: Sequence[Mapping[str, Any]]) -> str:
  """A page with what its cells printed, as text.

  Args:
    text: the page.
    cells: of the notebook that was run, as nbformat has them.
  """
  outputs = iter([_printed(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"])

  def shown(found: re.Match) -> str:
    printed, (alt, code) = next(outputs), found.groups()
    picture = f"\n\n(A picture: {alt}.)" if alt else ""
    return f"```python\n{code}```{picture}" + (f"\n\n```\n{printed}```" if printed else "")

  return _BLOCK.sub(shown, text)


def _printed(outputs: Sequence[Mapping[str, Any]]) -> str:
  """What a cell wrote to standard output, and its value."""
  texts = []
  for output in outputs:
    if output.get("name") == "stdout":
      texts += output["text"]
    elif output["output_type"] == "execute_result":
      texts += [*output["data"]["text/plain"], "\n"]
  return _COLOURS.sub("", "".join(texts))
