"""Transformer models as plain Flax NNX modules."""
