"""Folders and documents that tests read."""

import pathlib

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
PACKAGES = ("t2t", "configs", "tasks", "launch")  # contents of a wheel
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = (*PAGES, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "AGENTS.md")))
SHARED = ROOT.parent / "shared"  # beside a checkout; tests that read it skip where it is absent
