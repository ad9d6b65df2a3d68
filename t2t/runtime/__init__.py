"""Runtime environment of a run: memory, XLA flags, folders, messages, signals and other processes."""
