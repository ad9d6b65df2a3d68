"""Installed documentation as a corpus: docstrings of the Python standard library and of packages that t2t depends on.

It is the default corpus: English text on every machine with t2t, without a download. `ast` parses the files without
importing them, and the user's cache folder keeps the result.
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

# Import name -> distribution, in reading order after the standard library. Chosen for prose per second of parsing:
# SciPy has 5 million characters in 2 s, JAX 1.9 million in 3 s, and TensorFlow's docstrings are mostly generated and
# similar.
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
NAMES = ("python", *PACKAGES)  # all packages that are read
MAX_CHARACTERS = 8_000_000
HELD_OUT = 0.03  # part of the documents, chosen by a hash of the text
MIN_CHARACTERS = 80  # a document shorter than this is a label, not prose
_VERSION = 3  # version of the files written here; change it with `prose`
_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "testing", "site-packages", "dist-packages", "lib2to3", "__pycache__"}

_ROLE = re.compile(r":[\w:]+:`~?\.?([^`<]*)(?:<[^`]*>)?`")  # :class:`~numpy.ndarray` -> numpy.ndarray
_NOT_PROSE = re.compile(r">>>|\.\. |^\s*:\w|---|===|\|\||\+-|::|\\\w+\{|\$", re.MULTILINE)


def prose(docstring: str) -> str:
  """Returns the English of a docstring: paragraphs of sentences, without doctests, tables, field lists and markup.

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
  """Yields the prose of the module, its classes and functions, in file order; nothing if the file does not parse."""
  try:
    tree = ast.parse(path.read_bytes())
  except (SyntaxError, ValueError, OSError, RecursionError):
    return  # site-packages contains templates and files for other Python versions
  pending: list[ast.AST] = [tree]
  while pending:
    node = pending.pop(0)
    docstring = ast.get_docstring(node, clean=False)
    if docstring and len(docstring) >= MIN_CHARACTERS:
      text = prose(docstring)
      if len(text) >= MIN_CHARACTERS:
        yield text
    # Nested functions are rarely documented; walking function bodies would cost more than it finds.
    pending += [n for n in node.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]


def _folders() -> list[tuple[str, pathlib.Path]]:
  """Returns packages and their folders; the standard library is "python"."""
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
  """Returns a key of the installed versions: the same Python and packages give the same documents."""
  versions = [f"t2t-docs {_VERSION}", f"python {platform.python_version()}"]
  for distribution in PACKAGES.values():
    try:
      versions.append(f"{distribution} {importlib.metadata.version(distribution)}")
    except importlib.metadata.PackageNotFoundError:
      continue
  return hashlib.sha256("\n".join(versions).encode()).hexdigest()[:16]


def folder() -> pathlib.Path:
  """Returns the folder of the documents, in the cache; it may not exist yet."""
  root = cache_folder.cache_dir()
  with contextlib.suppress(OSError):
    root.mkdir(parents=True, exist_ok=True)
  if not os.access(root, os.W_OK):
    # Without a writable home (containers, user nobody) each machine repeats the scan, but not each run.
    root = pathlib.Path(tempfile.gettempdir()) / f"t2t-{os.getuid()}"
  return root / "docs" / key()


def files() -> dict[str, pathlib.Path]:
  """Returns the JSON-lines files of the splits "train" and "validation", and makes them if they do not exist.

  Each line has a document's "text" and "package".

  The first call takes about 10 s on one core; later ones only check for the files.
  """
  paths = {split: folder() / f"{split}.jsonl" for split in ("train", "validation")}
  if all(path.exists() for path in paths.values()):
    return paths
  records: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
  seen: set[str] = set()
  characters = 0
  sources = [(package, path) for package, folder_ in _folders() for path in _python_files(folder_)]
  # The trees have millions of small objects and no cycles, so garbage collection would only cost time.
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
  # "train" last: both files exist once it does.
  for split in ("validation", "train"):
    # Files of one package are similar; sorting by a hash makes every part of the corpus alike.
    records[split].sort(key=lambda record: zlib.crc32(json.dumps({"text": record["text"]}).encode()))
    lines = "".join(json.dumps(record) + "\n" for record in records[split])
    cache_folder.write_atomically(paths[split], lines.encode())
  logging.info("installed documentation: %d documents, %d characters, in %s", len(seen), characters, folder())
  return paths
