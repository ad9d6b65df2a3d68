"""A model that writes: decoding, batches of prompts, files of lines."""
