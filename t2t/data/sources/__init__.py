"""Text sources: user files, the installed documentation, and released benchmark files."""

from t2t.runtime import data_packages

__all__ = ["DocumentationSource", "FileSource", "text_hash", "user_error"]

# `files` imports seqio, which reading tables and lines of text does not need.
__getattr__ = data_packages.lazy_attributes(__name__, dict.fromkeys(__all__, "files"))
