"""Config: declares every key, and reads, checks and overrides values."""
