"""How good a model is at tasks: questions, answers, tables, files for leaderboards."""
