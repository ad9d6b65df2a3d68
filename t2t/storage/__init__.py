"""Files and objects, local or in a bucket: atomic writes, growing logs and bounded reads."""
