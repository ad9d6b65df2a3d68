"""What the server can be asked, as OpenAPI has it: made of what checks the requests."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from t2t.serving import routes
from t2t.serving.routes import Endpoint

_ERROR = routes.record(error=routes.TEXT)
_OPENAI_ERROR = routes.record(
  error=routes.record(
    message=routes.TEXT,
    type=routes.TEXT,
    param=routes.or_null(routes.TEXT),
    code=routes.or_null(routes.TEXT),
  )
)
_REFUSALS = {
  "400": "What cannot be used, and what would be right.",
  "401": "The token is missing or another.",
  "403": "Another host's name, or a page of another site.",
  "404": "There is no such path, or no such model.",
  "408": "The request did not come in time.",
  "413": "There is too much text.",
  "503": "Too many wait, or the server ends; ask again.",
}

# path -> what it answers to GET
_READ = {
  "/about": "What model it is, and what it offers.",
  "/schema.json": "This.",
  "/v1/models": "The names that a request to /v1/completions may have as its model.",
  "/v1/models/{model}": "One of them.",
}


def _version() -> str:
  try:
    return metadata.version("t2t-jax")
  except metadata.PackageNotFoundError:
    return "unknown"


def document(found: Mapping[str, Endpoint]) -> dict[str, Any]:
  """The OpenAPI document of a server's endpoints, by their paths."""
  json = {"application/json": {"schema": {"type": "object"}}}
  paths: dict[str, Any] = {
    path: {"get": {"summary": says, "responses": {"200": {"description": "JSON.", "content": json}}}}
    for path, says in _READ.items()
  }
  name = {"name": "model", "in": "path", "required": True, "schema": routes.TEXT}
  paths["/v1/models/{model}"]["get"]["parameters"] = [name]
  for path, endpoint in found.items():
    refused = _OPENAI_ERROR if path.startswith("/v1/") else _ERROR
    content = {"application/json": {"schema": refused}}
    replies = {form: {"schema": dict(endpoint.replies)} for form in endpoint.forms}
    responses: dict[str, Any] = {"200": {"description": endpoint.says, "content": replies}}
    responses |= {status: {"description": says, "content": content} for status, says in _REFUSALS.items()}
    body = {"required": True, "content": {"application/json": {"schema": dict(endpoint.schema)}}}
    paths[path] = {"post": {"summary": endpoint.says, "requestBody": body, "responses": responses}}
  return {
    "openapi": "3.1.0",
    "info": {"title": "t2t infer --server", "version": _version()},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{}, {"token": []}],
    "paths": paths,
  }
