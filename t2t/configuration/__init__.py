"""Config: the declaration of every key, and what reads, checks and overrides them."""
