"""Reports of runs: what stands in a workdir, read, drawn, and put on a page that needs nothing but a browser."""
