"""Inference: decoding, batch prediction and resumable output files."""
