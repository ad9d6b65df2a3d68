"""Suites: sets of texts that a model scores without training; one file for each format, and their table."""
