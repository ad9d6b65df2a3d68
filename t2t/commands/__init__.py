"""One file for each subcommand of `t2t`: options in, one call, what is printed."""
