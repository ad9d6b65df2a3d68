"""Predicts time and memory of a training step on devices that are not attached."""
