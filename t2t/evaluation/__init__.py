"""Evaluation of models on tasks: methods, metrics, tables, leaderboard files."""
