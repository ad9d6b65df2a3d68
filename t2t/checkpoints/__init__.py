"""What is kept of a run, and where a model's parameters come from."""
