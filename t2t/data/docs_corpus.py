"""Installed documentation as a corpus: the docstrings of the Python standard library and of packages t2t depends on.

It is the embedded default: real English that is on every machine where t2t runs, without a download.  The text is read
with `ast`, nothing is imported, and the result is kept in the user's cache folder.
"""

import ast
from collections.abc import Iterator
import contextlib
import gc
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import platform
import re
import sysconfig
import tempfile
import zlib

from absl import logging

from t2t.runtime import cache_folder, progress

# Import name -> distribution, in reading order after the standard library.  Chosen for prose per second of parsing:
# SciPy has 5 million characters in 2 s, JAX 1.9 million in 3 s, and TensorFlow's are mostly generated and alike.
PACKAGES = {
  "numpy": "numpy",
  "scipy": "scipy",
  "optax": "optax",
  "flax": "flax",
  "orbax": "orbax-checkpoint",
  "absl": "absl-py",
  "matplotlib": "matplotlib",
  "keras": "keras",
}
NAMES = ("python", *PACKAGES)  # of all whose documentation is read
MAX_CHARACTERS = 8_000_000
HELD_OUT = 0.03  # part of the documents, chosen by a hash of the text
MIN_CHARACTERS = 80  # a document shorter than this is a label, not prose
_VERSION = 3  # of what this file writes; changing `prose` changes this
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "testing", "site-packages", "dist-packages", "lib2to3", "__pycache__"}

_ROLE = re.compile(r":[\w:]+:`~?\.?([^`<]*)(?:<[^`]*>)?`")  # :class:`~numpy.ndarray` -> numpy.ndarray
_NOT_PROSE = re.compile(r">>>|\.\. |^\s*:\w|---|===|\|\||\+-|::|\\\w+\{|\$", re.MULTILINE)


def prose(docstring: str) -> str:
  """The English of a docstring: its paragraphs of sentences, without doctests, tables, field lists and markup.

  In:  "Returns the `sum`.\\n\\n>>> add(1, 2)\\n3"
  Out: "Returns the sum."                              provided that a paragraph has at least 6 words
  """
  paragraphs = []
  for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
    text = _ROLE.sub(r"\1", paragraph)
    if _NOT_PROSE.search(text):
      continue
    text = " ".join(text.replace("`", "").replace("*", "").split())
    letters = sum(character.isalpha() and character.isascii() or character == " " for character in text)
    if text.count(" ") >= 5 and letters >= 0.9 * len(text):
      paragraphs.append(text)
  return " ".join(paragraphs)


def documents(path: pathlib.Path) -> Iterator[str]:
  """Prose of the module, its classes and functions, in the order of the file; nothing if it does not parse."""
  try:
    tree = ast.parse(path.read_bytes())
  except (SyntaxError, ValueError, OSError, RecursionError):
    return  # files for other Python versions and templates lie about in site-packages
  pending: list[ast.AST] = [tree]
  while pending:
    node = pending.pop(0)
    docstring = ast.get_docstring(node, clean=False)
    if docstring and len(docstring) >= MIN_CHARACTERS:
      text = prose(docstring)
      if len(text) >= MIN_CHARACTERS:
        yield text
    # Functions inside functions are rarely documented: walking statements of bodies would cost more than it finds.
    pending += [n for n in node.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]


def _folders() -> list[tuple[str, pathlib.Path]]:
  """Packages and their folders; the standard library is "python"."""
  folders = [("python", pathlib.Path(sysconfig.get_paths()["stdlib"]))]
  for name in PACKAGES:
    spec = importlib.util.find_spec(name)
    if spec:
      folders += [(name, pathlib.Path(folder)) for folder in spec.submodule_search_locations or ()]
  return folders


def _python_files(folder: pathlib.Path) -> list[pathlib.Path]:
  paths = []
  for root, folders, files in os.walk(folder):
    folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
    paths += [pathlib.Path(root) / name for name in sorted(files) if name.endswith(".py") and "_test" not in name]
  return paths


def key() -> str:
  """Names what is installed: the same Python and packages give the same documents."""
  versions = [f"t2t-docs {_VERSION}", f"python {platform.python_version()}"]
  for distribution in PACKAGES.values():
    try:
      versions.append(f"{distribution} {importlib.metadata.version(distribution)}")
    except importlib.metadata.PackageNotFoundError:
      continue
  return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]


def folder() -> pathlib.Path:
  """Where the documents are kept; a folder in the cache that may not exist yet."""
  root = cache_folder.cache_dir()
  with contextlib.suppress(OSError):
    root.mkdir(parents=True, exist_ok=True)
  if not os.access(root, os.W_OK):
    # A home that cannot be written (containers, nobody): the scan is repeated by the next machine, not by the next run.
    root = pathlib.Path(tempfile.gettempdir()) / f"t2t-{os.getuid()}"
  return root / "docs" / key()


def files() -> dict[str, pathlib.Path]:
  """JSON-lines files of the splits "train" and "validation", read from the installed sources if not yet there.

  A line has a document's "text" and "package".

  The first call takes about 10 s on one core; later ones only look whether the files are there.
  """
  paths = {split: folder() / f"{split}.jsonl" for split in ("train", "validation")}
  if all(path.exists() for path in paths.values()):
    return paths
  records: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
  seen: set[str] = set()
  characters = 0
  sources = [(package, path) for package, folder_ in _folders() for path in _python_files(folder_)]
  # The trees hold millions of small objects and no cycles: the collector would walk them again and again for nothing.
  collecting = gc.isenabled()
  gc.disable()
  try:
    for package, path in progress.track(sources, "reading the installed documentation (once)"):
      for text in documents(path):
        if text in seen or characters >= MAX_CHARACTERS:
          continue
        seen.add(text)
        characters += len(text)
        held_out = zlib.crc32(text.encode()) < HELD_OUT * 2**32
        records["validation" if held_out else "train"].append({"text": text, "package": package})
      if characters >= MAX_CHARACTERS:
        break
  finally:
    if collecting:
      gc.enable()
  # "train" last: both are there once it is.
  for split in ("validation", "train"):
    # Files of one package resemble each other: in the order of a hash every stretch of the corpus is like every other.
    records[split].sort(key=lambda record: zlib.crc32(json.dumps({"text": record["text"]}).encode()))
    lines = "".join(json.dumps(record) + "\n" for record in records[split])
    cache_folder.write_atomically(paths[split], lines.encode())
  logging.info("installed documentation: %d documents, %d characters, in %s", len(seen), characters, folder())
  return paths
