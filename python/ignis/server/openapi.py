"""The OpenAPI description, made from the routes and their field tables."""

from __future__ import annotations

from typing import Any

from ignis.server.routes import ROUTES, Route

_ERROR_REF = {"$ref": "#/components/schemas/Error"}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_EVENT_SCHEMA = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {"type": "string", "description": "a chunk or an error as JSON, or [DONE] at last"}
    },
}
_REASONS = {
    400: "The request is wrong; `param` names the field",
    401: "The API key is missing or wrong",
    404: "The model is not served here",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not plain JSON",
    500: "The server failed",
    503: "Not now: loading, draining, or the queue is full; see Retry-After",
    504: "The answer was not done in time",
}


def describe(version: str) -> dict[str, Any]:
    """The whole description, as `/openapi.json` sends it."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ignis",
            "version": version,
            "description": "A language-model server with OpenAI's routes.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {route.answer: {"schema": _answer_schema(route)}}
    if route.streams:
        content["text/event-stream"] = {"schema": _EVENT_SCHEMA}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "responses": {
            "200": {"description": "Done", "content": content},
            **{
                str(status): {
                    "description": _REASONS[status],
                    "content": {"application/json": {"schema": _error_schema(route)}},
                }
                for status in route.statuses
            },
        },
    }
    if "{model}" in route.path:
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if route.table is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": route.table.schema()}},
        }
    return operation


def _answer_schema(route: Route) -> dict[str, Any]:
    return {"type": "object" if route.answer == "application/json" else "string"}


def _error_schema(route: Route) -> dict[str, Any]:
    # /health answers with its state, good or bad.
    return {"type": "object"} if route.path == "/health" else _ERROR_REF
