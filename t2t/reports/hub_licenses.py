"""Licenses of the Hugging Face hub: their identifiers, and what a model card says of another license."""

from collections.abc import Mapping
import os

from t2t import UserError, did_you_mean

OTHER, FILE = "other", "LICENSE"
_PAGE = "https://huggingface.co/docs/hub/repositories-licenses"
# The identifiers of the page, July 2026.
_IDENTIFIERS = """
  afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
  bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
  cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
  cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
  cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
  eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research
  intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit
  mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openrail openrail++ osl-3.0 other pddl postgresql unknown
  unlicense wtfpl zlib
"""
IDENTIFIERS = frozenset(_IDENTIFIERS.split())


def front_matter(license: str, *, name: str, link: str) -> Mapping[str, str]:
  """Returns the fields of a model card for a license.

  In:  "other", name "my-license", link "terms.txt"
  Out: {"license": "other", "license_name": "my-license", "license_link": "LICENSE"}

  Args:
    license: identifier of the hub.
    name, link: of a license without an identifier; the link is a URL, or a file that is uploaded as LICENSE.

  Raises:
    UserError: the hub has no such license, or name and link do not belong to it.
  """
  if license not in IDENTIFIERS:
    near = did_you_mean(license.lower().replace(" ", "-"), IDENTIFIERS)
    given = f"--license {license} is not an identifier of the hub{near or '.'}" if license else "--license is missing."
    raise UserError(
      f"{given} Give the license of the model as {_PAGE} names it: --license apache-2.0, mit, cc-by-4.0, ...; for "
      "a license without an identifier --license other --license_name NAME --license_link URL|FILE."
    )
  if license != OTHER:
    if name or link:
      option = "--license_name" if name else "--license_link"
      raise UserError(f"{option} {name or link}: only for --license other. Leave the option out.")
    return {"license": license}
  for option, value in (("--license_name NAME", name), ("--license_link URL|FILE", link)):
    if not value.strip():
      raise UserError(f"--license other: the hub requires a name and the text of the license. Give {option}.")
  if not is_url(link) and not os.path.isfile(link):
    raise UserError(f"--license_link {link}: no such file. Give a URL, or a file that is uploaded as {FILE}.")
  return {"license": license, "license_name": name, "license_link": link if is_url(link) else FILE}


def is_url(link: str) -> bool:
  """Returns whether a link is a URL, not a file."""
  return link.startswith(("https://", "http://"))
