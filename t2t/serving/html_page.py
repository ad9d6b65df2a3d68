"""Page of the server: one file, with styles and scripts inlined in the HTML."""

import base64
import functools
import hashlib
import pathlib

_FOLDER = pathlib.Path(__file__).parent / "page"
# Concatenated in this order.
_SCRIPTS = ("elements", "answers", "tokens", "attention", "asking", "start")


def _element(tag: str, *files: str) -> tuple[str, str]:
  """Returns an element with the content of these files, and its digest for the content security policy."""
  content = "\n" + "\n".join((_FOLDER / file).read_text() for file in files)
  digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
  return f"<{tag}>{content}</{tag}>", f"'sha256-{digest}'"


@functools.cache
def page() -> tuple[bytes, str]:
  """Returns the page, and the policy that forbids all other scripts and styles."""
  style, style_digest = _element("style", "style.css")
  script, script_digest = _element("script", *(f"{name}.js" for name in _SCRIPTS))
  content = (_FOLDER / "page.html").read_text().replace("<style></style>", style).replace("<script></script>", script)
  policy = (
    f"default-src 'none'; script-src {script_digest}; style-src {style_digest}; img-src data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
  )
  return content.encode(), policy
