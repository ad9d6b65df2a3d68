"""Subcommands of `t2t`, one file each: parses options, makes one call, prints the result."""
