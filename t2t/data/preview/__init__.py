"""Previews of tasks: their first examples, counts, and how they are printed."""
