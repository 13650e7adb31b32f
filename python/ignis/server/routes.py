"""Every route: what serves it, what it takes and what it tells its reader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from ignis.server import field_tables
from ignis.server.chat import create_chat_completion
from ignis.server.completions import create_completion
from ignis.server.fields import FieldTable
from ignis.server.status import get_model, health, list_models, metrics, ready
from ignis.server.tokens import detokenize, tokenize

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `statuses` are the answers besides 200 that a caller must expect."""

    method: str
    path: str
    handler: Handler
    summary: str
    table: FieldTable | None = None
    answer: str = "application/json"
    statuses: tuple[int, ...] = ()
    streams: bool = False


_BODY_STATUSES = (400, 401, 404, 408, 413, 415, 500, 503)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        "Answer a conversation",
        field_tables.CHAT,
        statuses=(*_BODY_STATUSES, 504),
        streams=True,
    ),
    Route(
        "POST",
        "/v1/completions",
        create_completion,
        "Continue one prompt or several",
        field_tables.COMPLETIONS,
        statuses=(*_BODY_STATUSES, 504),
        streams=True,
    ),
    Route(
        "POST",
        "/v1/tokenize",
        tokenize,
        "The token ids of a text or a conversation",
        field_tables.TOKENIZE,
        statuses=_BODY_STATUSES,
    ),
    Route(
        "POST",
        "/v1/detokenize",
        detokenize,
        "The text of token ids",
        field_tables.DETOKENIZE,
        statuses=_BODY_STATUSES,
    ),
    Route("GET", "/v1/models", list_models, "The served model and its plan", statuses=(401,)),
    Route(
        "GET",
        "/v1/models/{model}",
        get_model,
        "One model by its id",
        statuses=(401, 404, 503),
    ),
    Route("GET", "/health", health, "Whether the process lives", statuses=(503,)),
    Route("GET", "/ready", ready, "Whether requests are taken", statuses=(500, 503)),
    Route(
        "GET", "/metrics", metrics, "Metrics for Prometheus", answer="text/plain", statuses=(401,)
    ),
)
