"""Who is let in by `t2t infer --server`: this machine's own page, and elsewhere who has the token.

What a browser shows of another site can send requests to this machine as well: under that site's name (DNS rebinding),
or across origins.  Neither gets an answer.
"""

from collections.abc import Mapping
import dataclasses
import hmac
import ipaddress
import os
import secrets
import socket
import urllib.parse

from t2t import UserError

TOKEN = "T2T_SERVER_TOKEN"  # in the environment: what stands on a command line all users of a machine can see
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Admission:
  """What a request must have.

  host: address whose requests are heard.
  token: that it must give; "": none.
  """

  host: str
  token: str = ""

  def refusal(self, headers: Mapping[str, str], *, asks: bool) -> tuple[int, str] | None:
    """Status and reason for which a request is refused; None if it is let in.

    Args:
      headers: of the request.
      asks: whether it wants more than the page itself, which has no secrets.
    """
    host = headers.get("Host", "")
    name = _name(host)
    if name is None or not self._is_mine(name):
      return 403, f"no requests for {host[:80]}; this page is at {'localhost' if is_local(self.host) else self.host}"
    # Browsers say where a request comes from; what is no browser says nothing.
    origin = headers.get("Origin")
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and asks:
      return 403, "no requests from other sites"
    if origin is not None and urllib.parse.urlsplit(origin).netloc != host:
      return 403, f"no requests from {origin[:80]}"
    if asks and self.token:
      given = headers.get("Authorization", "").removeprefix("Bearer ").strip()
      if not hmac.compare_digest(given.encode(), self.token.encode()):
        return 401, "the token is missing or another; open the address that the command printed"
    return None

  def _is_mine(self, name: str) -> bool:
    """Whether a name is one of this server's; another site's name may lead here, an address is nobody's."""
    if name in ("localhost", "127.0.0.1", "::1"):
      return True
    if is_local(self.host):
      return False
    if name in (self.host, socket.gethostname()):
      return True
    try:
      ipaddress.ip_address(name)
    except ValueError:
      return False
    return True


def is_local(host: str) -> bool:
  """Whether only this machine reaches an address."""
  return host in ("127.0.0.1", "localhost", "::1")


def _name(host: str) -> str | None:
  """In: "localhost:8000", "[::1]:80"  Out: "localhost", "::1"; None of what is no name."""
  try:
    return urllib.parse.urlsplit(f"//{host}").hostname
  except ValueError:
    return None


def of(host: str) -> Admission:
  """For a server at `host`: beyond this machine only with a token, that of the environment or a new one.

  Raises:
    UserError: a token that can be guessed.
  """
  token = os.environ.get(TOKEN, "")
  if token and (len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
    raise UserError(f"{TOKEN}: must be {_SHORTEST} characters or more, letters and digits; or leave it out")
  if not token and not is_local(host):
    token = secrets.token_urlsafe(24)
  return Admission(host, token)
