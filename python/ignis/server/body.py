"""Reading request bodies: bounded in size, in time, and in how many bytes are held at once.

Only `application/json` is taken: a web page of another origin can send any other type without
asking first, and this server often runs without a key on a desktop. Compressed bodies are refused,
so that a small body cannot become a large one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from ignis.errors import RequestError
from ignis.server.http_errors import BodyTimeout, BodyTooLarge, MediaTypeUnsupported
from ignis.server.json_body import parse_object

PARSED_IN_LOOP_MAX = 64 * 1024
"""Bytes up to which a body is parsed where it was read; a larger one goes to a thread."""


class BodyReader:
    """Reads JSON bodies of at most `bytes_max`, holding `held_bytes_max` of all at once."""

    def __init__(self, bytes_max: int, timeout_seconds: float, held_bytes_max: int) -> None:
        assert held_bytes_max >= bytes_max, "one largest body must always be admitted"
        self._bytes_max = bytes_max
        self._timeout_seconds = timeout_seconds
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._released = asyncio.Condition()

    async def read_object(self, request: web.Request) -> dict[str, Any]:
        """The JSON object in the body of `request`.

        Raises MediaTypeUnsupported, BodyTooLarge, BodyTimeout, or RequestError for bad JSON.
        """
        _check_media_type(request)
        declared = request.content_length
        if declared is not None and declared > self._bytes_max:
            raise self._too_large(declared)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with self._hold(self._bytes_max if declared is None else declared):
                    data = await self._read(request)
                    if len(data) <= PARSED_IN_LOOP_MAX:
                        return parse_object(data)
                    return await asyncio.to_thread(parse_object, data)
        except TimeoutError:
            raise BodyTimeout(
                f"the body did not arrive within {self._timeout_seconds:g} seconds"
            ) from None

    async def _read(self, request: web.Request) -> bytes:
        data = bytearray()
        try:
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > self._bytes_max:
                    raise self._too_large(None)
        except web.RequestPayloadError as error:
            raise RequestError("the body is not framed as HTTP asks", None, "bad_body") from error
        return bytes(data)

    @asynccontextmanager
    async def _hold(self, size: int) -> AsyncIterator[None]:
        async with self._released:
            await self._released.wait_for(lambda: self._held_bytes + size <= self._held_bytes_max)
            self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size
            async with self._released:
                self._released.notify_all()

    def _too_large(self, declared: int | None) -> BodyTooLarge:
        found = "" if declared is None else f", this one has {declared}"
        return BodyTooLarge(f"a body may have at most {self._bytes_max} bytes{found}")


def _check_media_type(request: web.Request) -> None:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaTypeUnsupported("compressed bodies are not read; send plain JSON")
    kind = request.content_type
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise MediaTypeUnsupported("the Content-Type must be application/json")
