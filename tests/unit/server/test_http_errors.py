"""The one table from exception to answer."""

from __future__ import annotations

import json

import pytest

from ignis.admission import NeverFits
from ignis.engine.errors import Draining, EngineFailed, QueueFull
from ignis.errors import IgnisError, RequestError, TemplateError, TemplateMissing
from ignis.server import http_errors
from ignis.server.http_errors import RULES, error_response, is_bug


def fits_never() -> NeverFits:
    return NeverFits("no", code="oversized", needed=9, limit=8, unit="pages")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("no", "n"), 400, "invalid_value"),
        (RequestError("no", "n", "unsupported_value"), 400, "unsupported_value"),
        (fits_never(), 400, "context_length_exceeded"),
        (TemplateError("no"), 400, "render_failed"),
        (TemplateMissing("no"), 400, "template_missing"),
        (http_errors.ModelNotFound("no", "model"), 404, "model_not_found"),
        (http_errors.BodyTooLarge("no"), 413, "body_too_large"),
        (http_errors.BodyTimeout("no"), 408, "body_timeout"),
        (http_errors.MediaTypeUnsupported("no"), 415, "unsupported_media_type"),
        (http_errors.Unauthorized("no"), 401, "invalid_api_key"),
        (http_errors.NotReady("no"), 503, "server_not_ready"),
        (http_errors.RequestTimeout("no"), 504, "request_timeout"),
        (QueueFull(9, 8), 503, "engine_full"),
        (Draining(), 503, "server_draining"),
        (EngineFailed("no"), 500, "engine_error"),
        (IgnisError("no"), 500, "internal_error"),
        (ZeroDivisionError("a secret"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_exception_has_its_answer(error: Exception, status: int, code: str) -> None:
    response = error_response(error)
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)["error"]
    assert (response.status, body["code"]) == (status, code)
    assert body.keys() == {"message", "type", "code", "param"}
    assert "secret" not in body["message"]
    assert ("Retry-After" in response.headers) == (status == 503)
    assert is_bug(error) == isinstance(error, ZeroDivisionError)


def test_no_row_hides_behind_an_earlier_one() -> None:
    for index, (kind, _) in enumerate(RULES):
        assert not any(issubclass(kind, earlier) for earlier, _ in RULES[:index]), kind
