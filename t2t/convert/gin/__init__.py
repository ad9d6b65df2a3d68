"""Conversion of T5X's gin files to a config, a checkpoint and options."""

from t2t.convert.gin.bindings import Gin, read
from t2t.convert.gin.config import ConvertedGin, main, to_config

__all__ = ["ConvertedGin", "Gin", "main", "read", "to_config"]
