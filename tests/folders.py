"""Folders that tests read."""

import pathlib

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
SHARED = ROOT.parent / "shared"  # beside a checkout; tests that read it skip where it is absent
