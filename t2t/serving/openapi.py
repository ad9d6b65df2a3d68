"""OpenAPI document of the server, generated from the schemas that check the requests."""

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
  "400": "Invalid request; the error says how to fix it.",
  "401": "The token is missing or wrong.",
  "403": "Wrong host name, or a request from another site.",
  "404": "Unknown path or model.",
  "408": "The request did not arrive in time.",
  "413": "Too much text.",
  "503": "Too many pending requests, or the server is shutting down; retry.",
}

# Descriptions of GET responses by path.
_READ = {
  "/about": "Facts and features of the model.",
  "/schema.json": "This.",
  "/v1/models": "Names of the models for /v1/completions.",
  "/v1/models/{model}": "A model of this server.",
}


def _version() -> str:
  try:
    return metadata.version("t2t-jax")
  except metadata.PackageNotFoundError:
    return "unknown"


def document(found: Mapping[str, Endpoint]) -> dict[str, Any]:
  """Returns the OpenAPI document of a server's endpoints, by path."""
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
