"""From text files and seqio tasks to batches: sources, vocabularies, objectives and the resumable pipeline."""
