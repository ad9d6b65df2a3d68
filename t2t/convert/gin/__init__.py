"""Gin files of T5X, read as the t2t config that says the same."""

from t2t.convert.gin.config import main, to_config

__all__ = ["main", "to_config"]
