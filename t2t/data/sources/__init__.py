"""Text sources: user files, the installed documentation, and released benchmark files."""

from t2t.data.sources.files import DocumentationSource, FileSource, text_hash, user_error

__all__ = ["DocumentationSource", "FileSource", "text_hash", "user_error"]
