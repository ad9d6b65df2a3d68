"""seqio tasks and mixtures that come with t2t; each module registers its own when it is imported."""
