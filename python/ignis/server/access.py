"""Who may call: the API key, and which web pages a browser lets in.

The key is compared in constant time. Without a key only pages from this machine are let in by a
browser, because any other page could use the model unasked; with a key every page is, as it must
know the key.
"""

from __future__ import annotations

import hmac
import re

from aiohttp import web

from ignis.server.http_errors import Unauthorized

OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json", "/docs", "/"})
"""Paths that need no key: they tell nothing about what is asked of the model."""

_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")


def check_key(request: web.Request, api_key: str | None) -> None:
    """Raise Unauthorized unless `request` may pass."""
    if not api_key or request.path in OPEN_PATHS:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given_bytes = given.strip().encode("utf-8", "surrogateescape")
    same = hmac.compare_digest(given_bytes, api_key.encode("utf-8", "surrogateescape"))
    if scheme.lower() != "bearer" or not same:
        raise Unauthorized("send the server's API key as 'Authorization: Bearer KEY'")


def allowed_origin(request: web.Request, api_key: str | None) -> str | None:
    """The value of Access-Control-Allow-Origin for `request`, None to send none."""
    origin = request.headers.get("Origin")
    if origin is None:
        return None
    if api_key:
        return "*"
    return origin if _LOCAL_ORIGIN.fullmatch(origin) else None


def preflight(request: web.Request) -> web.Response:
    """The answer to a browser that asks what it may send."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    asked = request.headers.get("Access-Control-Request-Headers", "")
    # SDKs add headers of their own (x-stainless-...); none of them means anything here.
    if re.fullmatch(r"[A-Za-z0-9_, -]{1,2000}", asked):
        headers["Access-Control-Allow-Headers"] = asked
    return web.Response(status=204, headers=headers)
