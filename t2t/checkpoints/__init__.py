"""Checkpoints: saving, restoring, verification, and initialization of parameters."""
