"""Models of t2t for programs of other projects, one file for each; nothing in t2t imports them."""
