"""The routes that tell about the server: models, health, readiness, metrics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ignis.engine.errors import Draining, EngineFailed
from ignis.server.http_errors import ModelNotFound, NotReady, error_response, json_response
from ignis.server.serving import SERVING, LoadedModel


async def list_models(request: web.Request) -> web.Response:
    """The served model, as a list of one; empty while it loads."""
    loaded = request.app[SERVING].loaded
    return json_response({"object": "list", "data": [_card(loaded)] if loaded else []})


async def get_model(request: web.Request) -> web.Response:
    """One model by its id."""
    model, asked = request.app[SERVING].model, request.match_info["model"]
    if asked != model.id:
        raise ModelNotFound(f"the model {asked!r} is not served here", "model")
    return json_response(_card(model))


def _card(model: LoadedModel) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "ignis",
        "max_model_len": model.context_tokens_max,
        **model.facts,
    }


async def health(request: web.Request) -> web.Response:
    """200 while the process can serve or will; 503 after the engine failed."""
    state = request.app[SERVING].state
    return json_response({"status": state}, status=503 if state == "failed" else 200)


async def ready(request: web.Request) -> web.Response:
    """200 while requests are taken; 503 with Retry-After while loading or draining."""
    match request.app[SERVING].state:
        case "ready":
            return json_response({"status": "ready"})
        case "loading":
            return error_response(NotReady("the model is still loading"))
        case "draining":
            return error_response(Draining())
        case "failed":
            return error_response(EngineFailed("a round failed; restart the server"))


async def metrics(request: web.Request) -> web.Response:
    """Every metric in Prometheus' text format."""
    return web.Response(
        body=request.app[SERVING].metrics.render(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )
