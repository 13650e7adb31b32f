"""Sending a generation's answers: as server-sent events while they come, or whole at the end.

A stream ends with `[DONE]` on every path. What fails before its first token is a plain HTTP error;
what fails later is an error event. While nothing happens a comment line is sent at intervals, so
that proxies keep the connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from aiohttp import web

from ignis.server.answer import Delta
from ignis.server.asked import Asked
from ignis.server.generation import Answer, Generation
from ignis.server.http_errors import RequestTimeout, error_body, is_bug, json_response
from ignis.server.json_text import dump
from ignis.server.serving import SERVING
from ignis.server.shapes import Shape, Whole

WRITE_STALL_SECONDS = 60.0
"""How long a client may take nothing from a full connection before its request is cancelled."""

_log = structlog.get_logger()


class EventStream:
    """Server-sent events to one client."""

    def __init__(self) -> None:
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx would hold events back
            }
        )

    async def open(self, request: web.Request) -> None:
        """Send the headers."""
        await self.response.prepare(request)

    async def send(self, *chunks: dict[str, Any]) -> None:
        """Send events, in one write. Raises ConnectionError if the client left or stalls."""
        await self._write(b"".join(b"data: " + dump(chunk) + b"\n\n" for chunk in chunks))

    async def keep_alive(self) -> None:
        """Send a comment, which clients ignore."""
        await self._write(b": keep-alive\n\n")

    async def close(self) -> None:
        """Send the end mark and end the response."""
        await self._write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(WRITE_STALL_SECONDS):
                await self.response.write(data)
        except TimeoutError:
            raise ConnectionResetError(
                f"the client read nothing for {WRITE_STALL_SECONDS:g} seconds"
            ) from None


async def reply(
    request: web.Request, generation: Generation, shape: Shape, asked: Asked
) -> web.StreamResponse:
    """Answer `request` as it asked. What still runs when this ends, however it ends, is cancelled.

    Raises what fails before the first token, and RequestTimeout.
    """
    settings = request.app[SERVING].settings
    try:
        if asked.stream:
            return await reply_streamed(
                request,
                generation,
                shape,
                keepalive_seconds=settings.keepalive_seconds,
                include_usage=asked.include_usage,
            )
        async with asyncio.timeout(settings.request_timeout):
            return await reply_whole(generation, shape)
    except TimeoutError:
        raise RequestTimeout(
            f"the answer was not done within {settings.request_timeout:g} seconds; stream it, or "
            "lower max_tokens"
        ) from None
    finally:
        generation.close()


async def reply_streamed(
    request: web.Request,
    generation: Generation,
    shape: Shape,
    *,
    keepalive_seconds: float,
    include_usage: bool,
) -> web.StreamResponse:
    """Answer `request` with events. Raises what fails before the first token."""
    first = await generation.next(keepalive_seconds)
    events = EventStream()
    await events.open(request)
    openings = [shape.opening(answer.index) for answer in generation.answers]
    await events.send(*(chunk for chunk in openings if chunk is not None))
    try:
        event = first
        while True:
            if event is None:
                await events.keep_alive()
            else:
                await events.send(*_chunks(shape, *event))
            if generation.is_done:
                break
            event = await generation.next(keepalive_seconds)
        if include_usage:
            await events.send(shape.usage(generation.usage()))
    except ConnectionError:
        raise
    except Exception as error:
        if is_bug(error):
            _log.exception("ignis.http.failed", path=request.path)
        await events.send(error_body(error))
    await events.close()
    return events.response


async def reply_whole(generation: Generation, shape: Shape) -> web.Response:
    """The body with every answer, once all of them have ended."""
    answers = [Whole("", [], "") for _ in generation.answers]
    while not generation.is_done:
        event = await generation.next(None)
        assert event is not None, "without a limit something always comes"
        answer, delta = event
        whole = answers[answer.index]
        whole.text += delta.text
        whole.tokens.extend(delta.tokens)
        whole.finish = delta.finish or ""
    return json_response(shape.whole(answers, generation.usage()))


def _chunks(shape: Shape, answer: Answer, delta: Delta) -> list[dict[str, Any]]:
    chunks = []
    if delta.text or delta.tokens:
        chunks.append(shape.text(answer.index, delta.text, delta.tokens))
    if delta.finish is not None:
        chunks.append(shape.finish(answer.index, delta.finish))
    return chunks
