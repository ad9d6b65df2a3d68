"""Transformers as plain Flax NNX trees."""
