"""Globs over the names of objects: one translation to regular expressions for all stores."""

import fnmatch
import re

_WILDCARD = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]/]*\]|\{[^}]*\})")
_VISIBLE = r"(?!\.)"


def compiled(pattern: str, *, like_local: bool) -> re.Pattern[str]:
  """Returns the regular expression of a glob, for whole names with "/" between folders.

  In:  "train-[0-3].txt"; "**/*.txt"
  Out: matches train-2.txt, and not train-7.txt; matches a.txt and b/c/a.txt

  Args:
    pattern: `*`, `?` and `[...]` stay within a folder, `**` does not. Brackets are those of `fnmatch`.
    like_local: whether wildcards skip hidden names, and `**` is only special as a whole name, as for local files;
      otherwise `{a,b}` has alternatives, as on Google Cloud Storage.
  """
  tokens = list(filter(None, _WILDCARD.split(pattern)))
  parts, starts = [], True  # whether the next part begins a name
  for number, token in enumerate(tokens, start=1):
    parts.append(_of_local(token, starts, ends=number == len(tokens)) if like_local else _of_store(token))
    starts = token.endswith("/")
  return re.compile("".join(parts), re.DOTALL)


def _of_local(token: str, starts: bool, *, ends: bool) -> str:
  if token == "**/" and starts:
    return f"(?:{_VISIBLE}[^/]+/)*"
  if token == "**" and starts and ends:
    return f"(?:{_VISIBLE}[^/]+/)*{_VISIBLE}[^/]+"
  is_wildcard = _WILDCARD.fullmatch(token) and not token.startswith("{")
  within = {"**/": "[^/]*/", "**": "[^/]*"}
  return (_VISIBLE if starts and is_wildcard else "") + (within.get(token) or _common(token))


def _of_store(token: str) -> str:
  across = {"**/": "(?:.*/)?", "**": ".*"}
  if token.startswith("{") and token.endswith("}"):
    return f"(?:{'|'.join(map(re.escape, token[1:-1].split(',')))})"
  return across.get(token) or _common(token)


def _common(token: str) -> str:
  if token in ("*", "?"):
    return "[^/]*" if token == "*" else "[^/]"
  if _WILDCARD.fullmatch(token) and token.startswith("["):
    translated = fnmatch.translate(token)  # "(?s:[0-3])\Z"
    return f"(?!/){translated[4 : translated.rindex(')')]}"
  return re.escape(token)
