"""What advances the parameters: optimizers, the state and its step, what is reported on the way."""
