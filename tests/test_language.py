"""Plain language: how docstrings begin, words and lengths of sentences in documents, and what error messages name."""

import ast
from collections.abc import Iterator
import functools
import re

import error_messages
import folders
import pytest

ROOT = folders.ROOT
CODE = sorted(
  path
  for folder in (*folders.PACKAGES, "benchmarks", "tests", "docs/site", ".ci")
  for path in (ROOT / folder).rglob("*.py")
  if not {"golden", "saved", "spoiled"} & set(path.parts)
)
MOST_WORDS = 30
MOST_LINES = 250
NO_FIRST_WORDS = frozenset(
  ("What", "Of", "Those", "Who", "Whoever", "Whose", "As", "That", "Where", "One", "Whether", "Itself")
)
# Word of the documents that readers stumble over -> how it is found. A clause after "for" has a subject and a verb.
CLAUSE = (
  r"(?:(?:the|a|an|its|their|each|every|no|some|all|most)\s)?(?:[\w`.]+\s){0,4}?"
  r"(?:is|are|has|have|was|were|does|do|would|cannot|must|needs?)\b"
)
NO_WORDS = {
  "for (because)": rf"[,;:.]\s[Ff]or\s(?:(?:it|they|we|you|there|this|that)\s(?!\w+[,.;])|{CLAUSE})",
  "nobody": r"\b(?:n|N)obody\b",
  "whoever": r"\b(?:who|Who)ever\b",
  "those that": r"\b[Tt]hose\s(?:that|who|which)\b",
  "the one that": r"\b[Tt]he\sones?\s(?:that|who|which)\b",
}
# A location, or words that a message or a document begins with -> why the rule does not hold there. At most 40.
EXCEPTIONS: dict[str, str] = {
  "not a manifest": "the caller adds the path",
  "does not match its checksum": "the caller adds the path",
  "a key that is neither text nor a number": "the caller adds file and position",
  "the step is a link": "the caller adds the path",
  "a name occurs twice": "the caller adds the path",
  "connection closed by the peer": "the caller adds the peer",
  "wrong token of the run": "the caller drops the connection; a token is a secret",
  "the file ends within a record": "the caller adds the path",
}


# ---- Docstrings ------------------------------------------------------------------------------------------------------


def docstrings(source: str) -> Iterator[tuple[int, str]]:
  """Yields line and text of each docstring of a module."""
  for node in ast.walk(ast.parse(source)):
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
      continue
    if text := ast.get_docstring(node):
      yield getattr(node, "lineno", 1), text


def first_word(text: str) -> str:
  return (re.findall(r"[A-Za-z]+", text) or [""])[0]


def test_first_words_are_found():
  source = '"""What it is."""\ndef f():\n  """Of x."""\nclass A:\n  """Returns one."""\n'
  assert [(line, first_word(text)) for line, text in docstrings(source)] == [(1, "What"), (2, "Of"), (4, "Returns")]


@pytest.mark.parametrize("folder", sorted({str(path.relative_to(ROOT).parts[0]) for path in CODE}))
def test_docstrings_begin_with_a_noun_or_a_verb(folder):
  paths = [path for path in CODE if path.relative_to(ROOT).parts[0] == folder]
  found = [
    f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
    for path in paths
    for line, text in docstrings(path.read_text())
    if first_word(text) in NO_FIRST_WORDS
  ]
  assert not found, "\n".join(found)


# ---- Documents -------------------------------------------------------------------------------------------------------


def sentences(markdown: str) -> Iterator[str]:
  """Yields the sentences of a page: of paragraphs, list items and table cells, without code and targets of links."""
  markdown = re.sub(r"^```.*?^```$|^(?: {4,}[^\n]*\n)+|<!--.*?-->", "\n", markdown, flags=re.DOTALL | re.MULTILINE)
  for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#>|]|\d+\.)\s?)", markdown):
    for cell in re.split(r"\s\|\s", block.strip().strip("|")):
      text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", cell)
      text = re.sub(r"`[^`]*`", "`code`", text).strip().lstrip("#-*> ")
      yield from (" ".join(part.split()) for part in re.split(r"(?<=[.:;?!])\s+", text) if part.strip("|-: "))


def test_sentences_are_found():
  page = "# A title\n\nOne two\nthree. `x y` [four](u v)!\n\n- five: six\n- seven\n\n    no\n\n"
  page += "```sh\nno\n```\n\n| a b | c |\n|---|---|\n"
  assert list(sentences(page)) == ["A title", "One two three.", "`code` four!", "five:", "six", "seven", "a b", "c"]


def test_words_are_found():
  """Conjunctions are told from prepositions."""
  matches = lambda word, text: bool(re.search(NO_WORDS[word], text))
  for text in ("It stays, for it is free.", "x, for the table is long", "It ends: for no process has a lock"):
    assert matches("for (because)", text), text
  for text in ("for each host, for the whole run", "keys, for example of a table", "once, for all runs"):
    assert not matches("for (because)", text), text
  assert matches("those that", "Those that remain") and not matches("nobody", "somebody")


@functools.cache
def findings(path) -> list[str]:
  """Returns what a page has against the rules, without the exceptions."""
  found = []
  for sentence in sentences(path.read_text()):
    rules = [word for word, pattern in NO_WORDS.items() if re.search(pattern, sentence)]
    if len(sentence.split()) > MOST_WORDS:
      rules.append(f"{len(sentence.split())} words")
    if rules and not any(sentence.startswith(beginning) for beginning in EXCEPTIONS):
      found.append(f"{path.name}: {', '.join(rules)}: {sentence}")
  return found


@pytest.mark.parametrize("path", folders.DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_plain(path):
  """Sentences have at most 30 words and none of the banned ones; a page has at most 250 lines."""
  assert not findings(path), "\n".join(findings(path))
  assert len(path.read_text().splitlines()) <= MOST_LINES


# ---- Errors ----------------------------------------------------------------------------------------------------------

# A key before a colon, a config key, a flag, a file, a function with its module, or a name in quotes.
NAMES_SOMETHING = re.compile(r"^\w+: |config\.|--\w|`|'\w|\"\w|\w/|\w=|\w\.\w|\b[A-Z_]{4,}\b")


def test_messages_are_found():
  source = "raise E('all is lost')\nraise E(f'{x}: gone')\nraise E(wrong)\nraise\nraise E('a' + b, 'config.x')\n"
  raised = list(error_messages.raised_in(source, "m"))
  assert [error.message for error in raised] == ["all is lost", "{x}: gone", "a{b} | config.x"]
  assert [error.has_value for error in raised] == [False, True, True]


def test_errors_name_a_key_a_path_or_a_value():
  raised = error_messages.all_raised()
  assert len(raised) > 1000
  bare = [
    f"{error.location}: {error.class_name}: {error.message}"
    for error in raised
    if not error.has_value
    and not NAMES_SOMETHING.search(error.message)
    and not any(error.message.startswith(beginning) for beginning in EXCEPTIONS)
  ]
  assert not bare, "\n".join(bare)


def test_no_punctuation_follows_a_suggestion():
  """The text of `t2t.did_you_mean` ends with a question mark."""
  after = re.compile(r"did_you_mean\([^{}]*\)\}[^\w\s{]")
  assert after.search("no x{did_you_mean(name, known)}; give y") and not after.search(
    "{did_you_mean(name, known) or '.'} Y"
  )
  found = [f"{error.location}: {error.message}" for error in error_messages.all_raised() if after.search(error.message)]
  assert not found, "\n".join(found)


def test_exceptions_are_few_and_used():
  """Each has a reason, and still is in the tree."""
  assert len(EXCEPTIONS) <= 40 and all(EXCEPTIONS.values())
  texts = [error.message for error in error_messages.all_raised()]
  texts += [sentence for path in folders.DOCUMENTS for sentence in sentences(path.read_text())]
  unused = [beginning for beginning in EXCEPTIONS if not any(text.startswith(beginning) for text in texts)]
  assert not unused, unused
