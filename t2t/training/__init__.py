"""Training: optimizers, the train state and its step, the training loop, and reporting."""
