"""seqio tasks and mixtures of t2t; each module registers its own when it is imported."""
