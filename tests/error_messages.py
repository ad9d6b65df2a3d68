"""Every error message of t2t as a table.

python tests/error_messages.py > messages.tsv     # location, class, message; placeholders in braces
"""

import ast
from collections.abc import Iterator
import dataclasses

import folders


@dataclasses.dataclass(frozen=True)
class Raised:
  """A `raise` with a message in it.

  Attributes:
    location: file and line.
    class_name: the exception's class, as the code spells it.
    message: the text, with `{expression}` for each value.
    has_value: whether the text contains a value of the program.
  """

  location: str
  class_name: str
  message: str
  has_value: bool


def text_of(node: ast.expr) -> str:
  """Returns the text of an expression, with `{expression}` for each part that is not a constant."""
  match node:
    case ast.Constant(value=str(text)):
      return text
    case ast.JoinedStr(values=values):
      return "".join(text_of(value) for value in values)
    case ast.FormattedValue(value=value):
      return f"{{{ast.unparse(value)}}}"
    case ast.BinOp(left=left, op=ast.Add(), right=right):
      return text_of(left) + text_of(right)
    case _:
      return f"{{{ast.unparse(node)}}}"


def raised_in(source: str, name: str) -> Iterator[Raised]:
  """Yields the errors of a module whose text stands in the `raise` itself.

  Args:
    source: the module's code.
    name: its name in locations.
  """
  for node in ast.walk(ast.parse(source)):
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
      continue
    parts = [part for argument in node.exc.args for part in ast.walk(argument)]
    if not any(isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value for part in parts):
      continue
    has_value = any(isinstance(part, ast.FormattedValue | ast.Name | ast.Attribute | ast.Call) for part in parts)
    message = " | ".join(map(text_of, node.exc.args))
    yield Raised(f"{name}:{node.lineno}", ast.unparse(node.exc.func), message, has_value)


def all_raised() -> list[Raised]:
  """Returns the errors of t2t and of all that a wheel carries with it, by file and line."""
  paths = [path for package in folders.PACKAGES for path in sorted((folders.ROOT / package).rglob("*.py"))]
  return [error for path in paths for error in raised_in(path.read_text(), str(path.relative_to(folders.ROOT)))]


if __name__ == "__main__":
  for raised in all_raised():
    print(raised.location, raised.class_name, " ".join(raised.message.split()), sep="\t")
