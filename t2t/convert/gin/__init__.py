"""Gin files of T5X, read as what t2t runs: a config, a checkpoint, options."""

from t2t.convert.gin.bindings import Gin, read
from t2t.convert.gin.config import ConvertedGin, main, to_config

__all__ = ["ConvertedGin", "Gin", "main", "read", "to_config"]
