"""The aiohttp application: routes, and what happens around every one of them.

Around a handler: the API key, the table from exception to answer, CORS headers, and one log line
for each request. Run it with `handler_cancellation=True`, so that a client that leaves ends its
handler and with it its sequences.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ignis.server import access, api_docs, openapi
from ignis.server.http_errors import body_of, error_response, is_bug, json_response
from ignis.server.routes import ROUTES
from ignis.server.serving import ANSWER_ID, SERVING, Serving, new_id

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)

_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_log = structlog.get_logger("ignis.server")


def build_app(serving: Serving) -> web.Application:
    """The application over `serving`."""
    app = web.Application(middlewares=[_logged, _answered])
    app[SERVING] = serving
    app.on_response_prepare.append(_add_headers)
    for route in ROUTES:
        if route.method == "GET":  # HEAD comes with it
            app.router.add_get(route.path, route.handler)
        else:
            app.router.add_route(route.method, route.path, route.handler)
    description = openapi.describe(serving.version)
    html = api_docs.page(serving.version)

    async def send_openapi(request: web.Request) -> web.Response:
        return json_response(description)

    async def send_docs(request: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    async def send_root(request: web.Request) -> web.Response:
        raise web.HTTPFound("/docs")

    app.router.add_get("/openapi.json", send_openapi)
    app.router.add_get("/docs", send_docs)
    app.router.add_get("/", send_root)
    return app


class QuietBadRequests(logging.Filter):
    """Drops what aiohttp logs, with a traceback, of bytes that are not HTTP: a scanner's noise."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


@web.middleware
async def _logged(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id and write its one log line."""
    asked = request.headers.get("X-Request-Id", "")
    request_id = asked if _SAFE_ID.fullmatch(asked) else new_id("req")
    request[REQUEST_ID] = request_id
    began = time.monotonic()
    status: int | str = "left"
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        level = _log.debug if request.path in _QUIET_PATHS else _log.info
        level(
            "ignis.http.request",
            request_id=request_id,
            method=request.method,
            path=request.path[:200],
            answer_id=request.get(ANSWER_ID),
            status=status,
            duration_ms=round((time.monotonic() - began) * 1e3, 1),
        )


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Check the key, run the handler, and answer what it raises."""
    try:
        if request.method == "OPTIONS":
            return access.preflight(request)
        access.check_key(request, request.app[SERVING].settings.api_key)
        return await handler(request)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except web.HTTPRedirection:
        raise
    except web.HTTPException as error:
        return _router_error(request, error)
    except Exception as error:
        if is_bug(error):
            _log.exception("ignis.http.failed", request_id=request[REQUEST_ID], path=request.path)
        return error_response(error)


def _router_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """What the router refused, in the shape of every other error."""
    headers = {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        methods = ", ".join(sorted(error.allowed_methods))
        message = f"{request.method} is not allowed for {request.path}; use {methods}"
        code, headers = "method_not_allowed", {"Allow": methods}
    elif error.status == 404:
        message = f"there is no {request.path}; /docs lists what there is"
        code = "not_found"
    else:
        message, code = error.reason.lower(), "bad_request"
    body = body_of(message[:500], kind="invalid_request_error", code=code, param=None)
    return json_response(body, status=error.status, headers=headers)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    serving = request.app[SERVING]
    response.headers["X-Request-Id"] = request.get(REQUEST_ID, "")
    origin = access.allowed_origin(request, serving.settings.api_key)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
        if origin != "*":
            response.headers["Vary"] = "Origin"
