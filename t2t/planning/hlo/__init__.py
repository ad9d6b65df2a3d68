"""XLA's optimised programs: read as text, counted in operations, bytes and collectives."""
