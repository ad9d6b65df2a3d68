"""Which pages the documents have, in which order, and what they link to: read off docs/index.md, without Sphinx.

python docs/site/pages.py          # the files whose commands `make readme` runs behind the README's, in order
"""

from collections.abc import Iterator, Mapping
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
# A heading of the index that pages come under which it does not name.
_REST = "More"
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|^(?: {4}[^\n]*\n)+|`[^`\n]*`", re.DOTALL | re.MULTILINE)
# Pages that others write, and that may be linked before they are there.
COMING = ("gin.md", "server.md", "trackers.md")
# What a reader of GitHub is pointed to, and a reader of the built documents finds in a page of them.
_AS_PAGES = {"../README.md": "index.md"}


def sections() -> dict[str, list[str]]:
  """Heading of the index -> the pages that are linked under it, without .md; at the end those that no heading has."""
  found, seen = {}, {"index"}
  for part in re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)[1:]:
    heading, _, text = part.partition("\n")
    linked = dict.fromkeys(link.removesuffix(".md") for link, _ in links(text) if link.endswith(".md"))
    found[heading] = [name for name in linked if "/" not in name and name not in seen]
    seen |= set(linked)
  rest = sorted(path.stem for path in DOCS.glob("*.md") if path.stem not in seen)
  return found | ({_REST: rest} if rest else {})


def in_order() -> list[str]:
  """All pages but the index."""
  return [name for names in sections().values() for name in names]


def links(text: str) -> Iterator[tuple[str, str]]:
  """Path and anchor of each link and picture that names no other host."""
  for target in _LINK.findall(_CODE.sub("", text)):
    if not re.match(r"\w+:", target):
      path, _, anchor = target.partition("#")
      yield path, anchor


def anchors(text: str) -> set[str]:
  """Those of the headings, as GitHub makes them."""
  headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text.replace("`", "")), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def for_site(text: str) -> str:
  """Markdown as the site has it: what stands outside of docs/ is a page of the site, a file to take, or only named."""

  def link(found: re.Match) -> str:
    label, path, anchor = found.groups()
    if path in _AS_PAGES:
      return f"[{label}]({_AS_PAGES[path]}{anchor or ''})"
    is_named = (DOCS / path).is_dir() or (path.startswith("../") and path.endswith(".md"))
    is_named |= path in COMING and not (DOCS / path).exists()
    return label if is_named else found.group(0)

  return re.sub(r"(?<!!)\[([^\[\]]*)\]\((?!\w+:)([^()#\s]+)(#[^()\s]*)?\)", link, text)


def listed(texts: Mapping[str, str]) -> str:
  """A line for each page: its title, its plain twin and how it begins.

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
  """The first sentence, without marks."""
  paragraphs = text.partition("\n")[2].strip("\n").split("\n\n")
  first = next(part for part in paragraphs if re.match(r"[\w`*\[]", part))
  plain = re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", " ".join(first.split())).replace("**", "")
  return re.split(r"(?<=[.:?]) (?=[A-Z`])", plain)[0].rstrip(":")


if __name__ == "__main__":
  for each in in_order():
    if re.search(r"^```sh$", (DOCS / f"{each}.md").read_text(), re.MULTILINE):
      print(f"docs/{each}.md")
