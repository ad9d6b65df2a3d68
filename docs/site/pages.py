"""Pages of the documents, their order and their links, read from docs/index.md without Sphinx.

python docs/site/pages.py          # the files whose commands `make readme` runs after the README's, in order
"""

from collections.abc import Iterator, Mapping
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# Files on GitHub that are pages of the site.
_AS_PAGES = {"../README.md": "index.md"}


def sections() -> dict[str, list[str]]:
  """Returns the pages linked under each heading of the index, without .md."""
  found, seen = {}, {"index"}
  for part in re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)[1:]:
    heading, _, text = part.partition("\n")
    linked = dict.fromkeys(link.removesuffix(".md") for link, _ in links(text) if link.endswith(".md"))
    found[heading] = [name for name in linked if "/" not in name and name not in seen]
    seen |= set(linked)
  return found


def studies() -> list[str]:
  """Returns the generated pages of studies, which docs/studies.md lists."""
  return sorted(f"studies/{path.stem}" for path in (DOCS / "studies").glob("*.md"))


def in_order() -> list[str]:
  """Returns all pages but the index and those of `studies`."""
  return [name for names in sections().values() for name in names]


def links(text: str) -> Iterator[tuple[str, str]]:
  """Yields path and anchor of each link or picture without a host."""
  for target in _LINK.findall(_CODE.sub("", text)):
    if not re.match(r"\w+:", target):
      path, _, anchor = target.partition("#")
      yield path, anchor


def anchors(text: str) -> set[str]:
  """Returns the anchors of the headings, as GitHub generates them."""
  headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text.replace("`", "")), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def for_site(text: str) -> str:
  """Returns Markdown for the site: files outside docs/ become pages, downloads or plain text."""

  def link(found: re.Match) -> str:
    label, path, anchor = found.groups()
    if path in _AS_PAGES:
      return f"[{label}]({_AS_PAGES[path]}{anchor or ''})"
    is_named = (DOCS / path).is_dir() or (path.startswith("../") and path.endswith(".md"))
    return label if is_named else found.group(0)

  return re.sub(r"(?<!!)\[([^\[\]]*)\]\((?!\w+:)([^()#\s]+)(#[^()\s]*)?\)", link, text)


def listed(texts: Mapping[str, str]) -> str:
  """Formats a line for each page: its title, its Markdown copy and its first sentence.

  Args:
    texts: page -> its Markdown.
  """
  lines = [f"# t2t\n\n> {_beginning(texts['index'])}\n"]
  for heading, names in sections().items():
    lines += [
      f"## {heading}\n",
      *(f"- [{_title(texts[name])}]({name}.md): {_beginning(texts[name])}" for name in names),
    ]
    lines.append("")
  return "\n".join(lines)


def _title(text: str) -> str:
  return re.search(r"^# (.*)$", text, re.MULTILINE).group(1)


def _beginning(text: str) -> str:
  """Returns the first sentence without markup."""
  paragraphs = text.partition("\n")[2].strip("\n").split("\n\n")
  first = next(part for part in paragraphs if re.match(r"[\w`*\[]", part))
  plain = re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(first.split())).replace("**", "")
  return re.split(r"(?<=[.:?]) (?=[A-Z`])", plain)[0].rstrip(":")


if __name__ == "__main__":
  for each in in_order():
    if re.search(r"^```sh$", (DOCS / f"{each}.md").read_text(), re.MULTILINE):
      print(f"docs/{each}.md")
