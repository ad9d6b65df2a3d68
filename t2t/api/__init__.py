"""Python interface: `t2t.load`, `t2t.train` and `t2t.config`."""
