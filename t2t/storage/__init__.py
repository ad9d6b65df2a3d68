"""Files and objects, local or on a bucket: read whole or not at all, written in parts or at once."""
