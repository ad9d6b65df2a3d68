"""Reports of runs: reads workdirs, draws curves, and writes self-contained HTML pages."""
