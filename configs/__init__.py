"""Configs: one default with every key, and small overlays on it."""
