"""Recipes: one default that holds every key, and small overlays on it."""
