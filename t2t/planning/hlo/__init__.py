"""Parses XLA's optimised HLO text and counts its operations, bytes and collectives."""
