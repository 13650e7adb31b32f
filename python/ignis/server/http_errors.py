"""From exception to HTTP answer: one table, and the exceptions that only HTTP knows.

Bodies have OpenAI's shape, `{"error": {"message", "type", "code", "param"}}`. The first row whose
class matches decides. A row without a code lets the exception say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ignis.admission import NeverFits
from ignis.engine.errors import Draining, QueueFull, Unavailable
from ignis.errors import EngineError, IgnisError, RequestError, TemplateError, TemplateMissing
from ignis.server.json_text import dump

INVALID = "invalid_request_error"
SERVER = "server_error"
OVERLOADED = "overloaded_error"


class ModelNotFound(RequestError):
    """The request names a model that is not served."""


class BodyTooLarge(RequestError):
    """The body is larger than `server.body_bytes_max`."""


class BodyTimeout(RequestError):
    """The body did not arrive in time."""


class MediaTypeUnsupported(RequestError):
    """The body is not plain JSON: another media type, or compressed."""


class RequestTimeout(IgnisError):
    """An answer that is not streamed was not done in time."""


class Unauthorized(RequestError):
    """The API key is missing or wrong."""


class NotReady(Unavailable):
    """The model is still loading."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one class of exception is answered; `code` None takes the exception's own."""

    status: int
    type: str
    code: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None
    param: str | None = None


_RETRY = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}

RULES: tuple[tuple[type[Exception], Rule], ...] = (
    (NeverFits, Rule(400, INVALID, "context_length_exceeded")),
    (ModelNotFound, Rule(404, INVALID, "model_not_found")),
    (BodyTooLarge, Rule(413, INVALID, "body_too_large", _CLOSE)),
    (BodyTimeout, Rule(408, INVALID, "body_timeout", _CLOSE)),
    (MediaTypeUnsupported, Rule(415, INVALID, "unsupported_media_type", _CLOSE)),
    (
        Unauthorized,
        Rule(
            401, "authentication_error", "invalid_api_key", {"WWW-Authenticate": "Bearer", **_CLOSE}
        ),
    ),
    (RequestError, Rule(400, INVALID, None)),
    (TemplateMissing, Rule(400, INVALID, "template_missing", param="messages")),
    (TemplateError, Rule(400, INVALID, "render_failed", param="messages")),
    (NotReady, Rule(503, OVERLOADED, "server_not_ready", _RETRY)),
    (QueueFull, Rule(503, OVERLOADED, "engine_full", _RETRY)),
    (Draining, Rule(503, OVERLOADED, "server_draining", {"Retry-After": "5"})),
    (Unavailable, Rule(503, OVERLOADED, "unavailable", _RETRY)),
    (RequestTimeout, Rule(504, SERVER, "request_timeout")),
    (EngineError, Rule(500, SERVER, "engine_error")),
    (Exception, Rule(500, SERVER, "internal_error", message="the server failed; its log says why")),
)


def rule_of(error: Exception) -> Rule:
    """The row that answers `error`; the last row matches everything."""
    return next(rule for kind, rule in RULES if isinstance(error, kind))


def error_body(error: Exception) -> dict[str, Any]:
    """The body that tells a client about `error`."""
    rule = rule_of(error)
    return body_of(
        rule.message or str(error),
        kind=rule.type,
        code=rule.code or getattr(error, "code", None),
        param=getattr(error, "param", None) or rule.param,
    )


def body_of(message: str, *, kind: str, code: str | None, param: str | None) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def error_response(error: Exception) -> web.Response:
    """The whole HTTP answer to `error`."""
    rule = rule_of(error)
    return json_response(error_body(error), status=rule.status, headers=rule.headers)


def json_response(
    body: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`body` as an HTTP answer."""
    return web.Response(
        body=dump(body), status=status, headers=headers, content_type="application/json"
    )


def is_bug(error: Exception) -> bool:
    """Whether `error` belongs in the log with its traceback: nobody raised it on purpose."""
    return not isinstance(error, IgnisError)
