"""Access control of `t2t infer --server`: local requests, and remote requests with the token.

Other sites in a browser can send requests to this machine, by DNS rebinding or across origins. Both are refused.
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

TOKEN = "T2T_SERVER_TOKEN"  # an environment variable, because all users of a machine can see command lines
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Admission:
  """Requirements of a request.

  host: address that the server listens on.
  token: required token; "" if none is required.
  """

  host: str
  token: str = ""

  def refusal(self, headers: Mapping[str, str], *, asks: bool) -> tuple[int, str] | None:
    """Returns status and reason of a refusal; None if the request is accepted.

    Args:
      headers: of the request.
      asks: whether it requests more than the page itself, which has no secrets.
    """
    host = headers.get("Host", "")
    name = _name(host)
    if name is None or not self._is_mine(name):
      return 403, f"Host: {host[:80]} is not served; use {'localhost' if is_local(self.host) else self.host}"
    # Only browsers send the origin of a request.
    origin = headers.get("Origin")
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and asks:
      return 403, "Sec-Fetch-Site: requests from other sites are refused; open the page of this server"
    if origin is not None and urllib.parse.urlsplit(origin).netloc != host:
      return 403, f"Origin: requests from {origin[:80]} are refused; open the page of this server"
    if asks and self.token:
      given = headers.get("Authorization", "").removeprefix("Bearer ").strip()
      if not hmac.compare_digest(given.encode(), self.token.encode()):
        return 401, "Authorization: the token is missing or wrong; open the address that the command printed"
    return None

  def _is_mine(self, name: str) -> bool:
    """Returns True if a name belongs to this server; IP addresses are safe, because DNS rebinding needs a name."""
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
  """Returns True if only this machine reaches an address."""
  return host in ("127.0.0.1", "localhost", "::1")


def _name(host: str) -> str | None:
  """Returns the host name of a Host header, or None; "localhost:8000" gives "localhost", "[::1]:80" gives "::1"."""
  try:
    return urllib.parse.urlsplit(f"//{host}").hostname
  except ValueError:
    return None


def of(host: str) -> Admission:
  """Returns the requirements of a server at `host`; a remote host always has a token, from the environment or new.

  Raises:
    UserError: the token of the environment is too weak.
  """
  token = os.environ.get(TOKEN, "")
  if token and (len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token):
    raise UserError(
      f"{TOKEN} must have at least {_SHORTEST} characters, only letters and digits; set another token, or unset {TOKEN}"
    )
  if not token and not is_local(host):
    token = secrets.token_urlsafe(24)
  return Admission(host, token)
