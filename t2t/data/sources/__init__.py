"""Where text comes from: files of one's own, the documentation on this machine, benchmarks as they were released."""

from t2t.data.sources.files import DocumentationSource, FileSource, text_hash, user_error

__all__ = ["DocumentationSource", "FileSource", "text_hash", "user_error"]
